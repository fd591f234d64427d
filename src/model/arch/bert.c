/* Architecture `bert` (BERT, MiniLM, BGE, E5): every token sees all others; learned positions,
 * norms with means and biases behind the residuals, GELU without a gate. Source of the facts: the
 * BERT paper (arXiv 1810.04805) and the converter of GGUF files. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static enum sheaf_status read_hparams(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    int64_t pooling = hp->pooling;
    enum sheaf_status status =
        sheaf__hparams_float(gguf, arch, "attention.layer_norm_epsilon", 0, 1, &hp->norm_eps);
    if (!status)
        status = sheaf__hparams_int(gguf, "tokenizer.ggml", "token_type_count", 1, 1 << 16,
                                    &hp->n_token_kinds);
    if (!status)
        status = sheaf__hparams_int(gguf, arch, "pooling_type", SHEAF__POOLING_NONE,
                                    SHEAF__POOLING_LAST, &pooling);
    hp->pooling = (enum sheaf__pooling)pooling;
    return status;
}

/* (x - mean) / deviation * weight + bias */
static struct sheaf_tensor *norm(struct sheaf__builder *b, struct sheaf_tensor *x,
                                 struct sheaf_tensor *weight, struct sheaf_tensor *bias) {
    x = sheaf_mul(b->ctx, sheaf_norm(b->ctx, x, b->hp->norm_eps), weight);
    return sheaf_add(b->ctx, x, bias);
}

static struct sheaf_tensor *embedding(struct sheaf__builder *b) {
    struct sheaf_tensor *const *w = b->model->w;
    struct sheaf_tensor *kind = sheaf_view_1d(b->ctx, w[SHEAF__W_TOKEN_KINDS], b->hp->n_embd, 0);
    struct sheaf_tensor *x = sheaf__build_embedding(b);
    x = sheaf_add(b->ctx, x, sheaf_get_rows(b->ctx, w[SHEAF__W_POSITIONS], b->pos));
    x = sheaf_add(b->ctx, x, kind);
    return norm(b, x, w[SHEAF__W_EMBD_NORM], w[SHEAF__W_EMBD_NORM_BIAS]);
}

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    struct sheaf_tensor *y = sheaf__build_attention(b, il, x, NULL, NULL);
    return norm(b, sheaf_add(b->ctx, x, y), w[SHEAF__W_ATTN_OUT_NORM],
                w[SHEAF__W_ATTN_OUT_NORM_BIAS]);
}

static struct sheaf_tensor *ffn(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    struct sheaf_tensor *y = sheaf_mul_mat(b->ctx, w[SHEAF__W_UP], x); // [f, n]
    if (w[SHEAF__W_UP_BIAS]) y = sheaf_add(b->ctx, y, w[SHEAF__W_UP_BIAS]);
    y = sheaf_mul_mat(b->ctx, w[SHEAF__W_DOWN], sheaf_gelu(b->ctx, y));
    if (w[SHEAF__W_DOWN_BIAS]) y = sheaf_add(b->ctx, y, w[SHEAF__W_DOWN_BIAS]);
    sheaf_format_name(y, "ffn_out-%d", (int)il);
    return norm(b, sheaf_add(b->ctx, x, y), w[SHEAF__W_LAYER_OUT_NORM],
                w[SHEAF__W_LAYER_OUT_NORM_BIAS]);
}

const struct sheaf__arch sheaf__arch_bert = {
    .name = "bert",
    .needs = SHEAF__W_BIT(Q) | SHEAF__W_BIT(K) | SHEAF__W_BIT(V) | SHEAF__W_BIT(O) |
             SHEAF__W_BIT(ATTN_OUT_NORM) | SHEAF__W_BIT(ATTN_OUT_NORM_BIAS) |
             SHEAF__W_BIT(LAYER_OUT_NORM) | SHEAF__W_BIT(LAYER_OUT_NORM_BIAS),
    .dense = SHEAF__W_BIT(UP) | SHEAF__W_BIT(DOWN),
    .allows = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(QKV_BIAS) | SHEAF__W_BIT(Q_BIAS) |
              SHEAF__W_BIT(K_BIAS) | SHEAF__W_BIT(V_BIAS) | SHEAF__W_BIT(O_BIAS) |
              SHEAF__W_BIT(UP_BIAS) | SHEAF__W_BIT(DOWN_BIAS),
    .model_needs = SHEAF__W_OF_MODEL(TOKEN_EMBD) | SHEAF__W_OF_MODEL(POSITIONS) |
                   SHEAF__W_OF_MODEL(TOKEN_KINDS) | SHEAF__W_OF_MODEL(EMBD_NORM) |
                   SHEAF__W_OF_MODEL(EMBD_NORM_BIAS),
    .encoder = true,
    .read_hparams = read_hparams,
    .embedding = embedding,
    .attention = attention,
    .ffn = ffn,
};
