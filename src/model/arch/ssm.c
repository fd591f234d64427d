/* Builds layers with a state: Mamba-2 (arXiv 2405.21060), of one sequence. Letters: c channels, n
 * tokens, d elements of a head, h heads, g groups, k elements of state. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

/* Elements [first, first + rows) of each column of x [.., n]: a view. */
static struct sheaf_tensor *part(struct sheaf__builder *b, struct sheaf_tensor *x, int64_t first,
                                 int64_t rows) {
    if (!x) return NULL;
    return sheaf_view_2d(b->ctx, x, rows, b->n_tokens, x->nb[1], (size_t)first * sizeof(float));
}

/* The same as [each, rows / each, n, 1]. */
static struct sheaf_tensor *part_in(struct sheaf__builder *b, struct sheaf_tensor *x, int64_t first,
                                    int64_t rows, int64_t each) {
    if (!x) return NULL;
    const size_t one = sizeof(float), column = x->nb[1];
    return sheaf_view_4d(b->ctx, x, each, rows / each, b->n_tokens, 1, (size_t)each * one, column,
                         column * (size_t)b->n_tokens, (size_t)first * one);
}

/* What the next evaluation begins with; nothing in this graph reads it. */
static void store(struct sheaf__builder *b, struct sheaf_tensor *x, struct sheaf_tensor *cache) {
    struct sheaf_tensor *to = sheaf_view_1d(b->ctx, cache, cache->ne[0], 0);
    if (b->graph) (void)sheaf_build_forward_expand(b->graph, sheaf_cpy(b->ctx, x, to));
}

/* Each channel's convolution over the last taps of xbc [c, n], and SiLU: [c, n, 1]. */
static struct sheaf_tensor *convolve(struct sheaf__builder *b, int64_t il,
                                     struct sheaf_tensor *xbc) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const int64_t before = b->hp->n_taps - 1, channels = sheaf__hparams_channels(b->hp);
    struct sheaf_tensor *cache = b->cache->conv[il];
    struct sheaf_tensor *x = sheaf_get_rows(b->ctx, cache, b->slot);
    x = sheaf_reshape_3d(b->ctx, x, before, channels, 1);
    xbc = sheaf_reshape_3d(b->ctx, sheaf_cont(b->ctx, sheaf_transpose(b->ctx, xbc)), b->n_tokens,
                           channels, 1);
    x = sheaf_concat(b->ctx, x, xbc, 0); // [taps - 1 + n, c, 1]
    if (!x) return NULL;
    store(b,
          sheaf_view_3d(b->ctx, x, before, channels, 1, x->nb[1], x->nb[2],
                        (size_t)b->n_tokens * sizeof(float)),
          cache);
    x = sheaf_ssm_conv(b->ctx, x, w[SHEAF__W_SSM_CONV]); // [c, n, 1]
    return sheaf_silu(b->ctx, sheaf_add(b->ctx, x, w[SHEAF__W_SSM_CONV_BIAS]));
}

/* The scan over xbc [c, n, 1] with steps dt [h, n]: y [d, h, n, 1]. */
static struct sheaf_tensor *scan(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *xbc,
                                 struct sheaf_tensor *dt) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const struct sheaf__hparams *hp = b->hp;
    const int64_t inner = hp->d_inner, k = hp->d_state, bc = hp->n_ssm_group * k;
    const int64_t d = inner / hp->n_ssm_head, n = b->n_tokens;
    struct sheaf_tensor *x = part_in(b, xbc, 0, inner, d);
    struct sheaf_tensor *in = part_in(b, xbc, inner, bc, k);
    struct sheaf_tensor *out = part_in(b, xbc, inner + bc, bc, k);
    struct sheaf_tensor *states =
        sheaf_reshape_4d(b->ctx, b->cache->state[il], k, d, hp->n_ssm_head, 1);
    dt = sheaf_add(b->ctx, sheaf_cont(b->ctx, dt), w[SHEAF__W_SSM_DT_BIAS]);
    dt = sheaf_reshape_3d(b->ctx, dt, hp->n_ssm_head, n, 1);
    struct sheaf_tensor *y =
        sheaf_ssm_scan(b->ctx, states, x, dt, w[SHEAF__W_SSM_A], in, out, b->slot, 1);
    if (!y) return NULL;
    const size_t one = sizeof(float);
    store(b, sheaf_view_1d(b->ctx, y, k * inner, (size_t)(inner * n) * one), b->cache->state[il]);
    y = sheaf_view_4d(b->ctx, y, d, hp->n_ssm_head, n, 1, (size_t)d * one, (size_t)inner * one,
                      (size_t)(inner * n) * one, 0);
    return sheaf_add(b->ctx, y, sheaf_mul(b->ctx, x, w[SHEAF__W_SSM_D]));
}

/* The norm of each group of y [d, h, n, 1]: [inner, n]. Of one group, which members share, written
 * out: they add one number a token instead of gathering y. */
static struct sheaf_tensor *norm_groups(struct sheaf__builder *b, struct sheaf_tensor *y,
                                        struct sheaf_tensor *weight) {
    const struct sheaf__hparams *hp = b->hp;
    const int64_t inner = hp->d_inner, groups = hp->n_ssm_group, n = b->n_tokens;
    if (groups > 1) {
        y = sheaf_reshape_3d(b->ctx, y, inner / groups, groups, n);
        return sheaf_reshape_2d(b->ctx, sheaf__build_norm(b, y, weight), inner, n);
    }
    y = sheaf_reshape_2d(b->ctx, y, inner, n);
    struct sheaf_tensor *root = sheaf_sum_rows(b->ctx, sheaf_sqr(b->ctx, y)); // [1, n]
    root = sheaf_sqrt(b->ctx, sheaf_scale_bias(b->ctx, root, 1.0f / (float)inner, hp->rms_eps));
    y = sheaf_div(b->ctx, y, root);
    return sheaf_mul(b->ctx, y, sheaf_reshape_1d(b->ctx, weight, inner));
}

struct sheaf_tensor *sheaf__build_state(struct sheaf__builder *b, int64_t il,
                                        struct sheaf_tensor *x) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const struct sheaf__hparams *hp = b->hp;
    const int64_t inner = hp->d_inner, channels = sheaf__hparams_channels(hp);
    struct sheaf_tensor *zx = sheaf_mul_mat(b->ctx, w[SHEAF__W_SSM_IN], x); // z x B C dt
    struct sheaf_tensor *z = part_in(b, zx, 0, inner, inner / hp->n_ssm_head);
    struct sheaf_tensor *xbc = convolve(b, il, part(b, zx, inner, channels));
    struct sheaf_tensor *y = scan(b, il, xbc, part(b, zx, inner + channels, hp->n_ssm_head));
    y = sheaf_swiglu_split(b->ctx, sheaf_cont(b->ctx, z), y);
    y = norm_groups(b, y, w[SHEAF__W_SSM_NORM]);
    y = sheaf_mul_mat(b->ctx, w[SHEAF__W_SSM_OUT], sheaf__build_wanted(b, il, y));
    return sheaf_format_name(y, "ssm_out-%d", (int)il);
}
