/* Architecture `gemma3` (text): embeddings scaled by sqrt(n_embd), norms before and after attention
 * and feed-forward, norms of q and k heads, GEGLU, five layers with a sliding window for each with
 * full attention; logits may be capped. GGUF files hold norm weights with the +1 already added.
 * Source of the facts: the Gemma 3 report (arXiv 2503.19786) and the converter of GGUF files. */
#include <math.h>

#include "model/arch/arch.h"
#include "model/arch/builder.h"

static enum sheaf_status read_hparams(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    hp->embd_scale = sqrtf((float)hp->n_embd);
    /* 27B is the one model that scales by n_embd / n_head instead of the head size */
    if (hp->n_layer == 62) hp->attn_scale = 1.0f / sqrtf((float)(hp->n_embd / hp->n_head));
    enum sheaf_status status = sheaf__hparams_windows(gguf, hp, 6);
    if (!status)
        status = sheaf__hparams_float(gguf, hp->arch->name, "rope.freq_base_swa", 1, 1e12,
                                      &hp->freq_base_swa);
    if (!status)
        status = sheaf__hparams_float(gguf, hp->arch->name, "final_logit_softcapping", 0, 1e6,
                                      &hp->logit_cap);
    return status;
}

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    const struct sheaf__hparams *hp = b->hp;
    const struct sheaf__rope full = sheaf__rope_of(hp, SHEAF_ROPE_TYPE_NEOX);
    const struct sheaf__rope local = {SHEAF_ROPE_TYPE_NEOX, hp->freq_base_swa, hp->freq_scale_swa,
                                      0, 1};
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const bool swa = sheaf__hparams_is_swa(hp, il);
    struct sheaf_tensor *y = sheaf__build_norm(b, x, w[SHEAF__W_ATTN_NORM]);
    y = sheaf__build_attention(b, il, y, swa ? &local : &full, swa ? b->mask_swa : b->mask);
    y = sheaf__build_half(b, y);
    y = sheaf__build_norm(b, y, w[SHEAF__W_ATTN_POST_NORM]);
    return sheaf_add(b->ctx, sheaf__build_wanted(b, il, x), y);
}

static struct sheaf_tensor *ffn(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    struct sheaf_tensor *y = sheaf__build_norm(b, x, w[SHEAF__W_FFN_NORM]);
    y = sheaf__build_half(b, sheaf__build_ffn(b, il, y, SHEAF_GLU_OP_GEGLU));
    return sheaf_add(b->ctx, x, sheaf__build_norm(b, y, w[SHEAF__W_FFN_POST_NORM]));
}

const struct sheaf__arch sheaf__arch_gemma3 = {
    .name = "gemma3",
    .needs = SHEAF__W_ATTENTION | SHEAF__W_BIT(Q_NORM) | SHEAF__W_BIT(K_NORM) |
             SHEAF__W_BIT(ATTN_POST_NORM) | SHEAF__W_BIT(FFN_NORM) | SHEAF__W_BIT(FFN_POST_NORM),
    .dense = SHEAF__W_DENSE,
    .allows = SHEAF__W_BIT(QKV),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT),
    .read_hparams = read_hparams,
    .attention = attention,
    .ffn = ffn,
};
