/* Architecture `qwen3`: as qwen2, without biases, and with norms of the heads of q and k. `qwen3moe`:
 * with a mixture of experts in place of the feed-forward: softmax over all experts, the best few, their
 * weights divided by their sum. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    return sheaf__build_plain_attention(b, il, x, SHEAF_ROPE_TYPE_NEOX);
}

const struct sheaf__arch sheaf__arch_qwen3 = {
    .name = "qwen3",
    .needs =
        SHEAF__W_ATTENTION | SHEAF__W_BIT(FFN_NORM) | SHEAF__W_BIT(Q_NORM) | SHEAF__W_BIT(K_NORM),
    .dense = SHEAF__W_DENSE,
    .allows = SHEAF__W_BIT(QKV),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT) | SHEAF__W_OF_MODEL(ROPE_FREQS),
    .bpe = true,
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};

const struct sheaf__arch sheaf__arch_qwen3moe = {
    .name = "qwen3moe",
    .needs =
        SHEAF__W_ATTENTION | SHEAF__W_BIT(FFN_NORM) | SHEAF__W_BIT(Q_NORM) | SHEAF__W_BIT(K_NORM),
    .mixture = SHEAF__W_MIXTURE,
    .allows = SHEAF__W_BIT(QKV),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT) | SHEAF__W_OF_MODEL(ROPE_FREQS),
    .bpe = true,
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};
