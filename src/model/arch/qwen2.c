/* Architecture `qwen2`: as llama, with biases on q, k and v, and rotary pairs (i, i + d/2). */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    return sheaf__build_plain_attention(b, il, x, SHEAF_ROPE_TYPE_NEOX);
}

const struct sheaf__arch sheaf__arch_qwen2 = {
    .name = "qwen2",
    .needs = SHEAF__W_ATTENTION | SHEAF__W_BIT(FFN_NORM) | SHEAF__W_BIT(Q_BIAS) |
             SHEAF__W_BIT(K_BIAS) | SHEAF__W_BIT(V_BIAS),
    .dense = SHEAF__W_DENSE,
    .allows = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(QKV_BIAS),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT) | SHEAF__W_OF_MODEL(ROPE_FREQS),
    .bpe = true,
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};
