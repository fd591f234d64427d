/* Architecture `llama`: pre-norms, rotary pairs (2i, 2i+1), grouped-query attention, SwiGLU.
 * Also SmolLM2, TinyLlama, Mistral 7B and others that are converted under this name; with experts,
 * Mixtral. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    return sheaf__build_plain_attention(b, il, x, SHEAF_ROPE_TYPE_NORMAL);
}

const struct sheaf__arch sheaf__arch_llama = {
    .name = "llama",
    .needs = SHEAF__W_ATTENTION | SHEAF__W_BIT(FFN_NORM),
    .dense = SHEAF__W_DENSE,
    .mixture = SHEAF__W_MIXTURE,
    .allows = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(Q_BIAS) | SHEAF__W_BIT(K_BIAS) |
              SHEAF__W_BIT(V_BIAS) | SHEAF__W_BIT(QKV_BIAS) | SHEAF__W_BIT(O_BIAS) |
              SHEAF__W_BIT(ROPE_FREQS_LAYER),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT) | SHEAF__W_OF_MODEL(ROPE_FREQS),
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};
