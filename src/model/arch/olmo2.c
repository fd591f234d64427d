/* Architecture `olmo2` (and OLMo 3): no norms before the halves of a layer but behind them, norms
 * of all heads of q and of k together, rotary pairs (i, i + d/2), SwiGLU; in OLMo 3, sliding
 * windows in three of four layers, whose positions are not scaled. Source of the facts: the OLMo 2
 * report (arXiv 2501.00656) and the converter of GGUF files. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static enum sheaf_status read_hparams(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    hp->freq_base_swa = hp->freq_base;
    enum sheaf_status status = sheaf__hparams_windows(gguf, hp, 4);
    if (!status)
        status = sheaf__hparams_float(gguf, hp->arch->name, "rope.freq_base_swa", 1, 1e12,
                                      &hp->freq_base_swa);
    return status;
}

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    const struct sheaf__hparams *hp = b->hp;
    const bool swa = sheaf__hparams_is_swa(hp, il);
    struct sheaf__rope rope = sheaf__rope_of(hp, SHEAF_ROPE_TYPE_NEOX);
    if (swa) rope = (struct sheaf__rope){rope.mode, hp->freq_base_swa, 1, 0, 1};
    struct sheaf_tensor *y = sheaf__build_attention(b, il, x, &rope, swa ? b->mask_swa : b->mask);
    y = sheaf__build_half(b, y);
    y = sheaf__build_norm(b, y, b->model->layers[il].w[SHEAF__W_ATTN_POST_NORM]);
    return sheaf_add(b->ctx, sheaf__build_wanted(b, il, x), y);
}

static struct sheaf_tensor *ffn(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x) {
    struct sheaf_tensor *y = sheaf__build_half(b, sheaf__build_ffn(b, il, x, SHEAF_GLU_OP_SWIGLU));
    y = sheaf__build_norm(b, y, b->model->layers[il].w[SHEAF__W_FFN_POST_NORM]);
    return sheaf_add(b->ctx, x, y);
}

const struct sheaf__arch sheaf__arch_olmo2 = {
    .name = "olmo2",
    .needs = SHEAF__W_BIT(Q) | SHEAF__W_BIT(K) | SHEAF__W_BIT(V) | SHEAF__W_BIT(O) |
             SHEAF__W_BIT(Q_NORM_WHOLE) | SHEAF__W_BIT(K_NORM_WHOLE) |
             SHEAF__W_BIT(ATTN_POST_NORM) | SHEAF__W_BIT(FFN_POST_NORM),
    .dense = SHEAF__W_DENSE,
    .allows = SHEAF__W_BIT(QKV),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT),
    .bpe = true,
    .read_hparams = read_hparams,
    .attention = attention,
    .ffn = ffn,
};
