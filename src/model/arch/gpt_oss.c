/* Architecture `gpt-oss`: biases everywhere, a sink for each head, a sliding window in every other
 * layer, experts with biases whose weights are the softmax of those chosen, a clamped unit; rotary
 * pairs (i, i + d/2), scaled by YaRN.
 * Source of the facts: the gpt-oss model card (arXiv 2508.10925) and the converter of GGUF files,
 * which names the norm before the experts post_attention_norm. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static enum sheaf_status read_hparams(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    hp->gating = SHEAF__GATING_SOFTMAX_OF_CHOSEN;
    hp->freq_base_swa = hp->freq_base;
    enum sheaf_status status = sheaf__hparams_windows(gguf, hp, 2);
    if (!status)
        status = sheaf__hparams_float(gguf, hp->arch->name, "rope.freq_base_swa", 1, 1e12,
                                      &hp->freq_base_swa);
    return status;
}

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    const bool swa = sheaf__hparams_is_swa(b->hp, il);
    struct sheaf__rope rope = sheaf__rope_of(b->hp, SHEAF_ROPE_TYPE_NEOX);
    if (swa) rope.freq_base = b->hp->freq_base_swa;
    struct sheaf_tensor *y = sheaf__build_norm(b, x, b->model->layers[il].w[SHEAF__W_ATTN_NORM]);
    y = sheaf__build_attention(b, il, y, &rope, swa ? b->mask_swa : b->mask);
    return sheaf__build_half(b, sheaf__build_residual(b, sheaf__build_wanted(b, il, x), y));
}

static struct sheaf_tensor *ffn(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x) {
    struct sheaf_tensor *y =
        sheaf__build_norm(b, x, b->model->layers[il].w[SHEAF__W_ATTN_POST_NORM]);
    y = sheaf__build_mixture(b, il, y, SHEAF_GLU_OP_SWIGLU_OAI);
    return sheaf__build_half(b, sheaf__build_residual(b, x, y));
}

const struct sheaf__arch sheaf__arch_gpt_oss = {
    .name = "gpt-oss",
    .needs = SHEAF__W_ATTENTION | SHEAF__W_BIT(Q_BIAS) | SHEAF__W_BIT(K_BIAS) |
             SHEAF__W_BIT(V_BIAS) | SHEAF__W_BIT(O_BIAS) | SHEAF__W_BIT(SINKS) |
             SHEAF__W_BIT(ATTN_POST_NORM),
    .mixture = SHEAF__W_MIXTURE | SHEAF__W_BIT(ROUTER_BIAS) | SHEAF__W_BIT(GATE_EXPERTS_BIAS) |
               SHEAF__W_BIT(UP_EXPERTS_BIAS) | SHEAF__W_BIT(DOWN_EXPERTS_BIAS),
    .allows = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(QKV_BIAS),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT),
    .bpe = true,
    .read_hparams = read_hparams,
    .attention = attention,
    .ffn = ffn,
};
