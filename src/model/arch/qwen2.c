/* Architecture `qwen2`: as llama, with biases on q, k and v, and rotary pairs (i, i + d/2). */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    return sheaf__build_plain_attention(b, il, x, SHEAF_ROPE_TYPE_NEOX);
}

const struct sheaf__arch sheaf__arch_qwen2 = {
    .name = "qwen2",
    .needs = SHEAF__W_BIT(ATTN_NORM) | SHEAF__W_BIT(Q) | SHEAF__W_BIT(K) | SHEAF__W_BIT(V) |
             SHEAF__W_BIT(Q_BIAS) | SHEAF__W_BIT(K_BIAS) | SHEAF__W_BIT(V_BIAS) | SHEAF__W_BIT(O) |
             SHEAF__W_BIT(FFN_NORM) | SHEAF__W_BIT(GATE) | SHEAF__W_BIT(UP) | SHEAF__W_BIT(DOWN) |
             SHEAF__W_BIT(TOKEN_EMBD) | SHEAF__W_BIT(OUTPUT_NORM),
    .allows = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(QKV_BIAS) | SHEAF__W_BIT(OUTPUT) |
              SHEAF__W_BIT(ROPE_FREQS),
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};
