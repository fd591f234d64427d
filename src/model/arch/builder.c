/* Builds the shared pieces of transformer graphs. Constructors pass NULL on, so that only the last
 * result needs a check (sheaf/ops.h). */
#include "model/arch/builder.h"

void sheaf__build_inputs(struct sheaf__builder *b) {
    struct {
        struct sheaf_tensor **t;
        const char *name;
        bool wanted;
    } ids[] = {
        {&b->ids, "inp_ids", true},
        {&b->pos, "inp_pos", true},
        {&b->rows, "inp_rows", true},
        {&b->out_ids, "inp_out_ids", b->n_wanted < b->n_tokens},
    };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        *ids[i].t = NULL;
        if (!ids[i].wanted) continue;
        int64_t n = ids[i].t == &b->out_ids ? b->n_wanted : b->n_tokens;
        *ids[i].t = sheaf_set_name(sheaf_new_tensor_1d(b->ctx, SHEAF_TYPE_I32, n), ids[i].name);
        if (*ids[i].t) sheaf_set_input(*ids[i].t);
    }
    b->mask = sheaf_new_tensor_2d(b->ctx, SHEAF_TYPE_F16, b->n_kv, b->n_tokens);
    sheaf_set_name(b->mask, "inp_mask");
    if (b->mask) sheaf_set_input(b->mask);
    b->mask_swa = NULL;
    if (b->hp->swa_window > 0) {
        b->mask_swa = sheaf_new_tensor_2d(b->ctx, SHEAF_TYPE_F16, b->n_kv, b->n_tokens);
        sheaf_set_name(b->mask_swa, "inp_mask_swa");
        if (b->mask_swa) sheaf_set_input(b->mask_swa);
    }
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

/* One of q, k, v as [d, heads, n] out of its own weight. */
static struct sheaf_tensor *project(struct sheaf__builder *b, struct sheaf_tensor *x,
                                    struct sheaf_tensor *weight, struct sheaf_tensor *bias,
                                    int64_t d, int64_t heads) {
    struct sheaf_tensor *y = sheaf_mul_mat(b->ctx, weight, x); // [d.heads, n]
    if (bias) y = sheaf_add(b->ctx, y, bias);
    return sheaf_reshape_3d(b->ctx, y, d, heads, b->n_tokens);
}

/* One of q, k, v as [d, heads, n] out of the fused product y [h.d + g.d + g.d, n]. */
static struct sheaf_tensor *take(struct sheaf__builder *b, struct sheaf_tensor *y, int64_t first,
                                 int64_t d, int64_t heads) {
    if (!y) return NULL;
    struct sheaf_tensor *part =
        sheaf_view_2d(b->ctx, y, d * heads, b->n_tokens, y->nb[1], (size_t)first * sizeof(float));
    return sheaf_reshape_3d(b->ctx, sheaf_cont(b->ctx, part), d, heads, b->n_tokens);
}

/* The norm of all heads of a token together: x [d, h, n]. */
static struct sheaf_tensor *norm_heads(struct sheaf__builder *b, struct sheaf_tensor *x,
                                       struct sheaf_tensor *weight) {
    if (!x) return NULL;
    const int64_t d = x->ne[0], h = x->ne[1];
    x = sheaf__build_norm(b, sheaf_reshape_2d(b->ctx, x, d * h, b->n_tokens), weight);
    return sheaf_reshape_3d(b->ctx, x, d, h, b->n_tokens);
}

struct sheaf__rope sheaf__rope_of(const struct sheaf__hparams *hp, enum sheaf_rope_mode mode) {
    return (struct sheaf__rope){mode, hp->freq_base, hp->freq_scale, hp->ext_factor,
                                hp->attn_factor};
}

/* Of the frequencies of layer il; NULL: none. A model for long contexts has two sets. */
static struct sheaf_tensor *rope_factors(const struct sheaf__builder *b, int64_t il) {
    struct sheaf_tensor *const *w = b->model->w;
    const bool longer = b->cache->n_ctx > b->hp->n_ctx_orig;
    struct sheaf_tensor *factors = b->model->layers[il].w[SHEAF__W_ROPE_FREQS_LAYER];
    if (!factors) factors = w[SHEAF__W_ROPE_FREQS];
    return factors ? factors : w[longer ? SHEAF__W_ROPE_LONG : SHEAF__W_ROPE_SHORT];
}

static struct sheaf_tensor *rotate(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x,
                                   const struct sheaf__rope *rope) {
    const struct sheaf__hparams *hp = b->hp;
    if (!rope) return x;
    return sheaf_rope_ext(b->ctx, x, b->pos, rope_factors(b, il), (int)hp->n_rot, (int)rope->mode,
                          (int)hp->n_ctx_orig, rope->freq_base, rope->freq_scale, rope->ext_factor,
                          rope->attn_factor, hp->beta_fast, hp->beta_slow);
}

/* Writes x [d, g, n] into the cache [d.g, L] and returns its first n_kv rows as [d, t, g]. */
static struct sheaf_tensor *through_cache(struct sheaf__builder *b, struct sheaf_tensor *cache,
                                          int kind, struct sheaf_tensor *x, int64_t d) {
    int64_t g = b->hp->n_head_kv;
    if (b->before) cache = b->before->written[kind];
    struct sheaf_tensor *all =
        sheaf_set_rows(b->ctx, cache, sheaf_reshape_2d(b->ctx, x, d * g, b->n_tokens), b->rows);
    b->written[kind] = all;
    if (!all) return NULL;
    /* reads the result of set_rows, so that the graph's order follows from its edges */
    struct sheaf_tensor *seen = sheaf_view_2d(b->ctx, all, d * g, b->n_kv, all->nb[1], 0);
    return sheaf_permute(b->ctx, sheaf_reshape_3d(b->ctx, seen, d, g, b->n_kv), 0, 2, 1, 3);
}

struct sheaf_tensor *sheaf__build_wanted(struct sheaf__builder *b, int64_t il,
                                         struct sheaf_tensor *x) {
    const bool last = il == b->hp->n_layer - 1;
    return last && b->out_ids ? sheaf_get_rows(b->ctx, x, b->out_ids) : x;
}

struct sheaf_tensor *sheaf__build_attention(struct sheaf__builder *b, int64_t il,
                                            struct sheaf_tensor *x, const struct sheaf__rope *rope,
                                            struct sheaf_tensor *mask) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const struct sheaf__hparams *hp = b->hp;
    int64_t h = hp->n_head, g = hp->n_head_kv;
    struct sheaf_tensor *q, *k, *v;
    if (w[SHEAF__W_QKV]) {
        struct sheaf_tensor *y = sheaf_mul_mat(b->ctx, w[SHEAF__W_QKV], x);
        if (w[SHEAF__W_QKV_BIAS]) y = sheaf_add(b->ctx, y, w[SHEAF__W_QKV_BIAS]);
        q = take(b, y, 0, hp->head_k, h);
        k = take(b, y, h * hp->head_k, hp->head_k, g);
        v = take(b, y, (h + g) * hp->head_k, hp->head_v, g);
    } else {
        q = project(b, x, w[SHEAF__W_Q], w[SHEAF__W_Q_BIAS], hp->head_k, h);
        k = project(b, x, w[SHEAF__W_K], w[SHEAF__W_K_BIAS], hp->head_k, g);
        v = project(b, x, w[SHEAF__W_V], w[SHEAF__W_V_BIAS], hp->head_v, g);
    }
    /* side by side, as devices compute products of one x together, if their results are apart */
    struct sheaf_tensor *const products[] = {q, k, v};
    for (int i = 0; i < 3 && b->order; i++) sheaf_build_forward_expand(b->order, products[i]);
    if (w[SHEAF__W_Q_NORM]) q = sheaf__build_norm(b, q, w[SHEAF__W_Q_NORM]);
    if (w[SHEAF__W_K_NORM]) k = sheaf__build_norm(b, k, w[SHEAF__W_K_NORM]);
    if (w[SHEAF__W_Q_NORM_WHOLE]) q = norm_heads(b, q, w[SHEAF__W_Q_NORM_WHOLE]);
    if (w[SHEAF__W_K_NORM_WHOLE]) k = norm_heads(b, k, w[SHEAF__W_K_NORM_WHOLE]);
    q = rotate(b, il, q, rope);
    k = rotate(b, il, k, rope);
    k = through_cache(b, b->cache->k[il], 0, k, hp->head_k); // [d, t, g]
    v = through_cache(b, b->cache->v[il], 1, v, hp->head_v);
    q = sheaf_permute(b->ctx, q, 0, 2, 1, 3); // [d, n, h]
    struct sheaf_tensor *y =
        sheaf_flash_attn_ext(b->ctx, q, k, v, mask, hp->attn_scale, 0.0f, 0.0f); // [d, h, n]
    sheaf_format_name(y, "attn-%d", (int)il);
    y = sheaf__build_wanted(b, il, sheaf_reshape_2d(b->ctx, y, hp->head_v * h, b->n_tokens));
    y = sheaf_mul_mat(b->ctx, w[SHEAF__W_O], y);
    if (w[SHEAF__W_O_BIAS]) y = sheaf_add(b->ctx, y, w[SHEAF__W_O_BIAS]);
    return sheaf_format_name(y, "attn_out-%d", (int)il);
}

/* down(glu(gate x, up x)) */
static struct sheaf_tensor *gated(struct sheaf__builder *b, struct sheaf_tensor *x,
                                  struct sheaf_tensor *gate, struct sheaf_tensor *up,
                                  struct sheaf_tensor *down, enum sheaf_glu_op glu) {
    gate = sheaf_mul_mat(b->ctx, gate, x); // [f, n]
    up = sheaf_mul_mat(b->ctx, up, x);
    return sheaf_mul_mat(b->ctx, down, sheaf_glu_split(b->ctx, gate, up, glu));
}

struct sheaf_tensor *sheaf__build_ffn(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x,
                                      enum sheaf_glu_op glu) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    struct sheaf_tensor *y;
    if (w[SHEAF__W_GATE_UP]) {
        y = sheaf_mul_mat(b->ctx, w[SHEAF__W_GATE_UP], x); // [f + f, n]
        y = sheaf_mul_mat(b->ctx, w[SHEAF__W_DOWN], sheaf_glu(b->ctx, y, glu, false));
    } else {
        y = gated(b, x, w[SHEAF__W_GATE], w[SHEAF__W_UP], w[SHEAF__W_DOWN], glu);
    }
    return sheaf_format_name(y, "ffn_out-%d", (int)il);
}

/* The weights of the chosen experts, [1, u, n], and their numbers, [u, n]. */
static struct sheaf_tensor *route(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x,
                                  struct sheaf_tensor **ids) {
    const struct sheaf__hparams *hp = b->hp;
    const int64_t n = x ? x->ne[1] : 0, used = hp->n_expert_used;
    struct sheaf_tensor *p = // [x, n]
        sheaf_soft_max(b->ctx, sheaf_mul_mat(b->ctx, b->model->layers[il].w[SHEAF__W_ROUTER], x));
    *ids = sheaf_top_k(b->ctx, p, (int)used); // [u, n]
    struct sheaf_tensor *w =
        sheaf_get_rows(b->ctx, sheaf_reshape_3d(b->ctx, p, 1, hp->n_expert, n), *ids); // [1, u, n]
    w = sheaf_reshape_2d(b->ctx, w, used, n);
    w = sheaf_div(b->ctx, w, sheaf_sum_rows(b->ctx, w));
    return sheaf_reshape_3d(b->ctx, w, 1, used, n);
}

struct sheaf_tensor *sheaf__build_mixture(struct sheaf__builder *b, int64_t il,
                                          struct sheaf_tensor *x, enum sheaf_glu_op glu) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const int64_t e = b->hp->n_embd, used = b->hp->n_expert_used, n = x ? x->ne[1] : 0;
    struct sheaf_tensor *ids, *weights = route(b, il, x, &ids), *sum = NULL;
    if (w[SHEAF__W_GATE_SHARED])
        sum = gated(b, x, w[SHEAF__W_GATE_SHARED], w[SHEAF__W_UP_SHARED], w[SHEAF__W_DOWN_SHARED],
                    glu);
    x = sheaf_reshape_3d(b->ctx, x, e, 1, n);
    struct sheaf_tensor *gate = sheaf_mul_mat_id(b->ctx, w[SHEAF__W_GATE_EXPERTS], x, ids);
    struct sheaf_tensor *up = sheaf_mul_mat_id(b->ctx, w[SHEAF__W_UP_EXPERTS], x, ids); // [f, u, n]
    struct sheaf_tensor *y = sheaf_mul_mat_id(b->ctx, w[SHEAF__W_DOWN_EXPERTS],
                                              sheaf_glu_split(b->ctx, gate, up, glu), ids);
    y = sheaf_mul(b->ctx, y, weights); // [e, u, n]
    for (int64_t i = 0; i < used && y; i++) {
        struct sheaf_tensor *one =
            sheaf_view_2d(b->ctx, y, e, n, y->nb[2], (size_t)i * y->nb[1]); // [e, n]
        sum = sum ? sheaf_add(b->ctx, sum, one) : one;
    }
    return sheaf_format_name(sum, "ffn_out-%d", (int)il);
}

struct sheaf_tensor *sheaf__build_logits(struct sheaf__builder *b, struct sheaf_tensor *x) {
    x = sheaf__build_norm(b, x, b->model->w[SHEAF__W_OUTPUT_NORM]);
    struct sheaf_tensor *output = b->model->w[SHEAF__W_OUTPUT];
    if (!output) output = b->model->w[SHEAF__W_TOKEN_EMBD]; /* tied */
    x = sheaf_mul_mat(b->ctx, output, x);
    if (differs_from_1(b->hp->logit_scale)) x = sheaf_scale(b->ctx, x, 1.0f / b->hp->logit_scale);
    return sheaf_set_name(x, "logits");
}

/* What the graph lacks shows when it is complete. */
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

struct sheaf_tensor *sheaf__build_model(struct sheaf__builder *chunks, int n_chunks) {
    const struct sheaf__hparams *hp = chunks->hp;
    struct sheaf_tensor *x[SHEAF__MAX_CHUNKS];
    for (int c = 0; c < n_chunks; c++) x[c] = sheaf__build_embedding(&chunks[c]);
    for (int64_t il = 0; il < hp->n_layer; il++) {
        /* of the last layer, chunks before the last are read through the cache only */
        if (il == hp->n_layer - 1)
            for (int c = 0; c < n_chunks - 1; c++) chunks[c].order = NULL;
        for (int c = 0; c < n_chunks; c++) x[c] = hp->arch->attention(&chunks[c], il, x[c]);
        for (int c = 0; c < n_chunks; c++) {
            x[c] = hp->arch->ffn(&chunks[c], il, x[c]);
            sheaf_format_name(x[c], "layer-%d", (int)il);
        }
    }
    return sheaf__build_logits(&chunks[n_chunks - 1], x[n_chunks - 1]);
}
