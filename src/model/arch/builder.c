/* Builds the shared pieces of transformer graphs. Constructors pass NULL on, so that only the last
 * result needs a check (sheaf/ops.h). */
#include "model/arch/builder.h"

#include "model/arch/arch.h"

static struct sheaf_tensor *halves(struct sheaf__builder *b, const char *name, int64_t ne0,
                                   int64_t ne1) {
    struct sheaf_tensor *t =
        sheaf_set_name(sheaf_new_tensor_2d(b->ctx, SHEAF_TYPE_F16, ne0, ne1), name);
    if (t) sheaf_set_input(t);
    return t;
}

uint16_t sheaf__mask_number(int64_t position) {
    if (position < 0) return 0xc000;                 /* -2: of most cells, without a conversion */
    if (position > SHEAF__MASK_REACH) return 0x6800; /* 2048 */
    return sheaf_fp32_to_fp16((float)(2 * position));
}

/* Where x [t] or [1, n] is less than y, the difference, else 0: [t, n]. */
static struct sheaf_tensor *below(struct sheaf__builder *b, struct sheaf_tensor *x,
                                  struct sheaf_tensor *y) {
    x = sheaf_repeat_4d(b->ctx, x, b->n_kv, b->n_tokens, 1, 1);
    return sheaf_clamp(b->ctx, sheaf_sub(b->ctx, x, y), -SHEAF__MASK_FAR, 0);
}

static void make_masks(struct sheaf__builder *b, bool windows) {
    b->mask_tokens = halves(b, "inp_mask_tokens", 1, b->n_tokens);
    b->mask_cells = halves(b, "inp_mask_cells", b->n_kv, 1);
    b->mask_far = halves(b, "inp_mask_far", 1, 1);
    struct sheaf_tensor *later = below(b, b->mask_tokens, b->mask_cells);
    b->mask = sheaf_set_name(sheaf_mul(b->ctx, later, b->mask_far), "mask");
    if (!windows) return;
    b->mask_until = halves(b, "inp_mask_until", b->n_kv, 1);
    struct sheaf_tensor *outside =
        sheaf_add(b->ctx, below(b, b->mask_until, b->mask_tokens), later);
    b->mask_swa = sheaf_set_name(sheaf_mul(b->ctx, outside, b->mask_far), "mask_swa");
}

void sheaf__build_inputs(struct sheaf__builder *b) {
    struct {
        struct sheaf_tensor **t;
        const char *name;
        bool wanted;
    } ids[] = {
        {&b->ids, "inp_ids", true},
        {&b->pos, "inp_pos", true},
        {&b->rows, "inp_rows", true},
        {&b->slot, "inp_slot", b->hp->arch->scans != 0},
        {&b->out_ids, "inp_out_ids", b->n_wanted < b->n_tokens && !b->hp->arch->encoder},
    };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        *ids[i].t = NULL;
        if (!ids[i].wanted) continue;
        int64_t n = ids[i].t == &b->out_ids ? b->n_wanted : b->n_tokens;
        if (ids[i].t == &b->slot) n = 1;
        *ids[i].t = sheaf_set_name(sheaf_new_tensor_1d(b->ctx, SHEAF_TYPE_I32, n), ids[i].name);
        if (*ids[i].t) sheaf_set_input(*ids[i].t);
    }
    b->mask = b->mask_swa = b->mask_tokens = b->mask_cells = b->mask_until = b->mask_far = NULL;
    if (b->hp->arch->encoder) return;
    const bool windows = b->hp->swa_window > 0;
    if (b->makes_masks) {
        make_masks(b, windows);
        return;
    }
    b->mask = halves(b, "inp_mask", b->n_kv, b->n_tokens);
    if (windows) b->mask_swa = halves(b, "inp_mask_swa", b->n_kv, b->n_tokens);
}

static bool differs_from_1(float scale) { return scale < 1 || scale > 1; }

struct sheaf_tensor *sheaf__build_embedding(struct sheaf__builder *b) {
    struct sheaf_tensor *x = sheaf_get_rows(b->ctx, b->model->w[SHEAF__W_TOKEN_EMBD], b->ids);
    if (differs_from_1(b->hp->embd_scale)) x = sheaf_scale(b->ctx, x, b->hp->embd_scale);
    return sheaf_set_name(x, "inp_embd");
}

struct sheaf_tensor *sheaf__build_norm(struct sheaf__builder *b, struct sheaf_tensor *x,
                                       struct sheaf_tensor *weight) {
    return sheaf_mul(b->ctx, sheaf_rms_norm(b->ctx, x, b->hp->rms_eps), weight);
}

struct sheaf_tensor *sheaf__build_wanted(struct sheaf__builder *b, int64_t il,
                                         struct sheaf_tensor *x) {
    const bool last = il == b->hp->n_layer - 1;
    return last && b->out_ids ? sheaf_get_rows(b->ctx, x, b->out_ids) : x;
}

struct sheaf_tensor *sheaf__build_logits(struct sheaf__builder *b, struct sheaf_tensor *x) {
    x = sheaf__build_norm(b, x, b->model->w[SHEAF__W_OUTPUT_NORM]);
    struct sheaf_tensor *output = b->model->w[SHEAF__W_OUTPUT];
    if (!output) output = b->model->w[SHEAF__W_TOKEN_EMBD]; /* tied */
    x = sheaf_mul_mat(b->ctx, output, x);
    if (differs_from_1(b->hp->logit_scale)) x = sheaf_scale(b->ctx, x, 1.0f / b->hp->logit_scale);
    const float cap = b->hp->logit_cap;
    if (cap > 0) {
        x = sheaf_unary(b->ctx, sheaf_scale(b->ctx, x, 1.0f / cap), SHEAF_UNARY_OP_TANH);
        x = sheaf_scale(b->ctx, x, cap);
    }
    return sheaf_set_name(x, "logits");
}

/* A complete graph shows what it lacks. */
struct sheaf_tensor *sheaf__build_half(struct sheaf__builder *b, struct sheaf_tensor *x) {
    if (b->order) sheaf_build_forward_expand(b->order, x);
    return x;
}

struct sheaf_tensor *sheaf__build_residual(struct sheaf__builder *b, struct sheaf_tensor *x,
                                           struct sheaf_tensor *y) {
    if (differs_from_1(b->hp->residual_scale)) y = sheaf_scale(b->ctx, y, b->hp->residual_scale);
    return sheaf_add(b->ctx, x, y);
}

struct sheaf_tensor *sheaf__build_plain_attention(struct sheaf__builder *b, int64_t il,
                                                  struct sheaf_tensor *x,
                                                  enum sheaf_rope_mode mode) {
    const struct sheaf__rope rope = sheaf__rope_of(b->hp, mode);
    struct sheaf_tensor *y = sheaf__build_norm(b, x, b->model->layers[il].w[SHEAF__W_ATTN_NORM]);
    y = sheaf__build_attention(b, il, y, b->hp->no_rope ? NULL : &rope, b->mask);
    return sheaf__build_half(b, sheaf__build_residual(b, sheaf__build_wanted(b, il, x), y));
}

struct sheaf_tensor *sheaf__build_plain_ffn(struct sheaf__builder *b, int64_t il,
                                            struct sheaf_tensor *x) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    struct sheaf_tensor *y = sheaf__build_norm(b, x, w[SHEAF__W_FFN_NORM]);
    y = w[SHEAF__W_ROUTER] ? sheaf__build_mixture(b, il, y, SHEAF_GLU_OP_SWIGLU)
                           : sheaf__build_ffn(b, il, y, SHEAF_GLU_OP_SWIGLU);
    return sheaf__build_half(b, sheaf__build_residual(b, x, y));
}

struct sheaf_tensor *sheaf__build_pooled(struct sheaf__builder *b, struct sheaf_tensor *x,
                                         enum sheaf__pooling pooling) {
    const int64_t e = b->hp->n_embd, n = b->n_tokens;
    if (!x || pooling == SHEAF__POOLING_NONE) return x;
    if (pooling == SHEAF__POOLING_MEAN) {
        x = sheaf_sum_rows(b->ctx, sheaf_cont(b->ctx, sheaf_transpose(b->ctx, x)));
        return sheaf_reshape_1d(b->ctx, sheaf_scale(b->ctx, x, 1.0f / (float)n), e);
    }
    const int64_t column = pooling == SHEAF__POOLING_CLS ? 0 : n - 1;
    return sheaf_cont(b->ctx, sheaf_view_1d(b->ctx, x, e, (size_t)column * x->nb[1]));
}

struct sheaf_tensor *sheaf__build_model(struct sheaf__builder *chunks, int n_chunks) {
    const struct sheaf__hparams *hp = chunks->hp;
    struct sheaf_tensor *x[SHEAF__MAX_CHUNKS];
    for (int c = 0; c < n_chunks; c++)
        x[c] = hp->arch->embedding ? hp->arch->embedding(&chunks[c])
                                   : sheaf__build_embedding(&chunks[c]);
    for (int64_t il = 0; il < hp->n_layer; il++) {
        /* of the last layer, chunks before the last are read through the cache only */
        if (il == hp->n_layer - 1)
            for (int c = 0; c < n_chunks - 1; c++) chunks[c].order = NULL;
        for (int c = 0; c < n_chunks; c++) x[c] = hp->arch->attention(&chunks[c], il, x[c]);
        for (int c = 0; c < n_chunks; c++) {
            if (hp->arch->ffn) x[c] = hp->arch->ffn(&chunks[c], il, x[c]);
            sheaf_format_name(x[c], "layer-%d", (int)il);
        }
    }
    if (hp->arch->encoder) return x[0];
    return sheaf__build_logits(&chunks[n_chunks - 1], x[n_chunks - 1]);
}
