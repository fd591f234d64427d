/* Builds attention: projections, norms of heads, rotary positions, the cache, and the product with
 * the heads' output. */
#include "model/arch/builder.h"

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

/* The mean of the squares of all heads of each token, x [d, h, n]: [1, n]. */
static struct sheaf_tensor *mean_square(struct sheaf__builder *b, struct sheaf_tensor *x) {
    if (!x) return NULL;
    const int64_t row = x->ne[0] * x->ne[1];
    x = sheaf_sum_rows(b->ctx, sheaf_sqr(b->ctx, sheaf_reshape_2d(b->ctx, x, row, b->n_tokens)));
    return sheaf_scale(b->ctx, x, 1.0f / (float)row);
}

/* x [d, h, n] divided by column i of roots [2, n], times weight [d.h]. */
static struct sheaf_tensor *divide_rows(struct sheaf__builder *b, struct sheaf_tensor *x,
                                        struct sheaf_tensor *roots, int i,
                                        struct sheaf_tensor *weight) {
    if (!x || !roots) return NULL;
    const int64_t d = x->ne[0], h = x->ne[1], n = b->n_tokens;
    struct sheaf_tensor *root =
        sheaf_view_2d(b->ctx, roots, 1, n, roots->nb[1], (size_t)i * sizeof(float));
    x = sheaf_div(b->ctx, sheaf_reshape_2d(b->ctx, x, d * h, n), sheaf_cont(b->ctx, root));
    return sheaf_reshape_3d(b->ctx, sheaf_mul(b->ctx, x, weight), d, h, n);
}

/* Norms over all heads of a token, of q and of k. Written out, because members that hold some of
 * the heads then add 2 numbers a token instead of gathering q and k. */
static void norm_rows(struct sheaf__builder *b, struct sheaf_tensor *const *w,
                      struct sheaf_tensor **q, struct sheaf_tensor **k) {
    struct sheaf_tensor *roots = // [2, n]
        sheaf_concat(b->ctx, mean_square(b, *q), mean_square(b, *k), 0);
    roots = sheaf_sqrt(b->ctx, sheaf_scale_bias(b->ctx, roots, 1.0f, b->hp->rms_eps));
    *q = divide_rows(b, *q, roots, 0, w[SHEAF__W_Q_NORM_WHOLE]);
    *k = divide_rows(b, *k, roots, 1, w[SHEAF__W_K_NORM_WHOLE]);
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
                                          int kind, struct sheaf_tensor *x, int64_t d, int64_t g) {
    if (!cache) return sheaf_permute(b->ctx, x, 0, 2, 1, 3); /* of an encoder */
    if (b->before) cache = b->before->written[kind];
    struct sheaf_tensor *all =
        sheaf_set_rows(b->ctx, cache, sheaf_reshape_2d(b->ctx, x, d * g, b->n_tokens), b->rows);
    b->written[kind] = all;
    if (!all) return NULL;
    /* reads the result of set_rows, so that the graph's order follows from its edges */
    struct sheaf_tensor *seen = sheaf_view_2d(b->ctx, all, d * g, b->n_kv, all->nb[1], 0);
    return sheaf_permute(b->ctx, sheaf_reshape_3d(b->ctx, seen, d, g, b->n_kv), 0, 2, 1, 3);
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
    if (w[SHEAF__W_Q_NORM_WHOLE]) norm_rows(b, w, &q, &k);
    q = rotate(b, il, q, rope);
    k = rotate(b, il, k, rope);
    k = through_cache(b, b->cache->k[il], 0, k, hp->head_k, g); // [d, t, g]
    v = through_cache(b, b->cache->v[il], 1, v, hp->head_v, g);
    q = sheaf_permute(b->ctx, q, 0, 2, 1, 3); // [d, n, h]
    struct sheaf_tensor *y =                  // [d, h, n]
        sheaf_flash_attn_sinks(b->ctx, q, k, v, mask, w[SHEAF__W_SINKS], hp->attn_scale, 0, 0);
    sheaf_format_name(y, "attn-%d", (int)il);
    y = sheaf__build_wanted(b, il, sheaf_reshape_2d(b->ctx, y, hp->head_v * h, b->n_tokens));
    y = sheaf_mul_mat(b->ctx, w[SHEAF__W_O], y);
    if (w[SHEAF__W_O_BIAS]) y = sheaf_add(b->ctx, y, w[SHEAF__W_O_BIAS]);
    return sheaf_format_name(y, "attn_out-%d", (int)il);
}

/* Queries of layer il over x [e, n]: [d, h, n]. */
static struct sheaf_tensor *latent_queries(struct sheaf__builder *b, int64_t il,
                                           struct sheaf_tensor *x) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    struct sheaf_tensor *q = w[SHEAF__W_Q];
    if (!q) {
        x = sheaf_mul_mat(b->ctx, w[SHEAF__W_Q_A], x);
        x = sheaf__build_norm(b, x, w[SHEAF__W_Q_A_NORM]);
        q = w[SHEAF__W_Q_B];
    }
    return project(b, x, q, NULL, b->hp->head_k, b->hp->n_head);
}

/* n_kv elements from element `first` of each head of x [d, h, n]: a view. */
static struct sheaf_tensor *part_of_heads(struct sheaf__builder *b, struct sheaf_tensor *x,
                                          int64_t first, int64_t n) {
    if (!x) return NULL;
    return sheaf_view_3d(b->ctx, x, n, x->ne[1], x->ne[2], x->nb[1], x->nb[2],
                         (size_t)first * sizeof(float));
}

/* The cache of layer il with this chunk's tokens: [c + r, t, 1], c n_lora_kv, r n_rot. */
static struct sheaf_tensor *latent_keys(struct sheaf__builder *b, int64_t il,
                                        struct sheaf_tensor *x, const struct sheaf__rope *rope) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const int64_t c = b->hp->n_lora_kv, r = b->hp->n_rot, n = b->n_tokens;
    struct sheaf_tensor *y = sheaf_mul_mat(b->ctx, w[SHEAF__W_KV_A], x); // [c + r, n]
    y = sheaf_reshape_3d(b->ctx, y, c + r, 1, n);
    struct sheaf_tensor *latent = sheaf_cont(b->ctx, part_of_heads(b, y, 0, c));
    struct sheaf_tensor *rotated =
        rotate(b, il, sheaf_cont(b->ctx, part_of_heads(b, y, c, r)), rope);
    latent = sheaf__build_norm(b, latent, w[SHEAF__W_KV_A_NORM]);
    y = sheaf_concat(b->ctx, latent, rotated, 0); // [c + r, 1, n]
    return through_cache(b, b->cache->k[il], 0, y, c + r, 1);
}

struct sheaf_tensor *sheaf__build_latent_attention(struct sheaf__builder *b, int64_t il,
                                                   struct sheaf_tensor *x,
                                                   const struct sheaf__rope *rope,
                                                   struct sheaf_tensor *mask) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const struct sheaf__hparams *hp = b->hp;
    const int64_t nope = hp->head_k - hp->n_rot, h = hp->n_head, n = b->n_tokens;
    struct sheaf_tensor *q = latent_queries(b, il, x);
    struct sheaf_tensor *k = latent_keys(b, il, x, rope); // [c + r, t, 1]
    struct sheaf_tensor *q_rot =
        rotate(b, il, sheaf_cont(b->ctx, part_of_heads(b, q, nope, hp->n_rot)), rope); // [r, h, n]
    q = sheaf_permute(b->ctx, part_of_heads(b, q, 0, nope), 0, 2, 1, 3);
    q = sheaf_mul_mat(b->ctx, w[SHEAF__W_K_B], sheaf_cont(b->ctx, q)); // [c, n, h]
    q_rot = sheaf_cont(b->ctx, sheaf_permute(b->ctx, q_rot, 0, 2, 1, 3));
    q = sheaf_concat(b->ctx, q, q_rot, 0); // [c + r, n, h]
    if (!k) return NULL;
    struct sheaf_tensor *v = sheaf_view_4d(b->ctx, k, hp->n_lora_kv, k->ne[1], k->ne[2], k->ne[3],
                                           k->nb[1], k->nb[2], k->nb[3], 0);
    struct sheaf_tensor *y =
        sheaf_flash_attn_ext(b->ctx, q, k, v, mask, hp->attn_scale, 0.0f, 0.0f); // [c, h, n]
    sheaf_format_name(y, "attn-%d", (int)il);
    y = sheaf_cont(b->ctx, sheaf_permute(b->ctx, y, 0, 2, 1, 3));
    y = sheaf_mul_mat(b->ctx, w[SHEAF__W_V_B], y); // [d, n, h]
    y = sheaf_cont(b->ctx, sheaf_permute(b->ctx, y, 0, 2, 1, 3));
    y = sheaf__build_wanted(b, il, sheaf_reshape_2d(b->ctx, y, hp->head_v * h, n));
    return sheaf_format_name(sheaf_mul_mat(b->ctx, w[SHEAF__W_O], y), "attn_out-%d", (int)il);
}
