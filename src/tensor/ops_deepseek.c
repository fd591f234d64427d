/* Constructors of DeepSeek's ops: the scores by which sparse attention picks its rows, and residual
 * streams that are mixed (hyper-connections). */
#include "tensor/construct.h"

static bool all_f32(struct sheaf_tensor *const *t, int n) {
    for (int i = 0; i < n; i++) {
        if (t[i] && t[i]->type != SHEAF_TYPE_F32) return false;
    }
    return true;
}
static bool has_shape(const struct sheaf_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
    return t->ne[0] == a && t->ne[1] == b && t->ne[2] == c && t->ne[3] == d;
}

struct sheaf_tensor *sheaf_lightning_indexer(struct sheaf_context *ctx, struct sheaf_tensor *q,
                                             struct sheaf_tensor *k, struct sheaf_tensor *w,
                                             struct sheaf_tensor *mask) {
    if (missing(q, k) || missing(w, mask)) return NULL;
    const char *name = "LIGHTNING_INDEXER";
    const int64_t d = q->ne[0], h = q->ne[1], n = q->ne[2], s = q->ne[3], t = k->ne[2];
    if (q->type != SHEAF_TYPE_F32 || w->type != SHEAF_TYPE_F32 || !is_float_type(k->type))
        return refuse(name, q, k, "q and weights must be f32, k of a float type");
    if (mask->type != SHEAF_TYPE_F16 && mask->type != SHEAF_TYPE_F32)
        return refuse(name, q, mask, "the mask must be f16 or f32");
    if (!has_shape(k, d, 1, t, s)) return refuse(name, q, k, "k of [d, h, n, s] is [d, 1, t, s]");
    if (!has_shape(w, h, n, 1, s))
        return refuse(name, q, w, "weights of [d, h, n, s] are [h, n, 1, s]");
    if (!has_shape(mask, t, n, 1, s) && !has_shape(mask, t, n, 1, 1))
        return refuse(name, k, mask, "the mask of t rows is [t, n, 1, 1|s]");
    struct sheaf_tensor *out =
        make(ctx, SHEAF_OP_LIGHTNING_INDEXER, SHEAF_TYPE_F32, (int64_t[]){t, n, 1, s}, q, k);
    if (!out) return NULL;
    out->src[2] = w;
    out->src[3] = mask;
    return out;
}

struct sheaf_tensor *sheaf_dsv4_hc_comb(struct sheaf_context *ctx, struct sheaf_tensor *mixes,
                                        struct sheaf_tensor *scale, struct sheaf_tensor *base,
                                        float eps, int n_iter) {
    if (missing(mixes, scale) || missing(base, base)) return NULL;
    const char *name = "DSV4_HC_COMB";
    if (!all_f32((struct sheaf_tensor *[]){mixes, scale, base}, 3))
        return refuse(name, mixes, base, "the operands must be f32");
    int64_t c = 1;
    while (c < SHEAF_HC_MAX && (2 + c) * c < mixes->ne[0]) c++;
    if ((2 + c) * c != mixes->ne[0] || mixes->ne[2] != 1 || mixes->ne[3] != 1)
        return refuse(name, mixes, NULL, "mixes are [(2 + c) c, n] of 1 to 8 streams c");
    if (base->ne[0] != mixes->ne[0] || sheaf_nrows(base) != 1)
        return refuse(name, mixes, base, "base of mixes [m, n] is [m]");
    if (scale->ne[0] < 3 || sheaf_nrows(scale) != 1)
        return refuse(name, mixes, scale, "scale has 3 elements");
    if (n_iter < 1 || !(eps >= 0))
        return refuse(name, mixes, NULL, "there must be an iteration or more, and eps >= 0");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_DSV4_HC_COMB, SHEAF_TYPE_F32,
                                  (int64_t[]){c, c, mixes->ne[1], 1}, mixes, scale);
    if (!t) return NULL;
    t->src[2] = base;
    sheaf__set_param_f32(t, 0, eps);
    t->op_params[1] = n_iter;
    return t;
}

static struct sheaf_tensor *hc_pre(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                   struct sheaf_tensor *weights, float scale, bool gated) {
    if (missing(x, weights)) return NULL;
    const char *name = "DSV4_HC_PRE";
    if (!all_f32((struct sheaf_tensor *[]){x, weights}, 2))
        return refuse(name, x, weights, "the operands must be f32");
    if (x->ne[3] != 1 ||
        !(gated ? sheaf_are_same_shape(x, weights) : has_shape(weights, x->ne[1], x->ne[2], 1, 1)))
        return refuse(name, x, weights,
                      gated ? "x is [e, c, n], and so is the gate"
                            : "x is [e, c, n], weights [c, n]");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_DSV4_HC_PRE, SHEAF_TYPE_F32,
                                  (int64_t[]){x->ne[0], x->ne[2], 1, 1}, x, weights);
    if (!t) return NULL;
    sheaf__set_param_f32(t, 0, scale);
    t->op_params[1] = gated;
    return t;
}

struct sheaf_tensor *sheaf_dsv4_hc_pre(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                       struct sheaf_tensor *weights) {
    return hc_pre(ctx, x, weights, 1.0f, false);
}
struct sheaf_tensor *sheaf_dsv4_hc_pre_gated(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                             struct sheaf_tensor *gate, float scale) {
    return hc_pre(ctx, x, gate, scale, true);
}

struct sheaf_tensor *sheaf_dsv4_hc_post(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                        struct sheaf_tensor *residual, struct sheaf_tensor *post,
                                        struct sheaf_tensor *comb) {
    if (missing(x, residual) || missing(post, post)) return NULL;
    const char *name = "DSV4_HC_POST";
    const int64_t e = x->ne[0], n = x->ne[1], c = residual->ne[1], d = post->ne[0];
    if (!all_f32((struct sheaf_tensor *[]){x, residual, post, comb}, 4))
        return refuse(name, x, residual, "the operands must be f32");
    if (!has_shape(x, e, n, 1, 1) || !has_shape(residual, e, c, n, 1))
        return refuse(name, x, residual, "x is [e, n], the residual [e, c, n]");
    if (!has_shape(post, d, n, 1, 1) || (!comb && d != c))
        return refuse(name, residual, post, "post is [d, n], and d is c without comb");
    if (comb && !has_shape(comb, d, c, n, 1))
        return refuse(name, residual, comb, "comb is [d, c, n]");
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_DSV4_HC_POST, SHEAF_TYPE_F32, (int64_t[]){e, d, n, 1}, x, residual);
    if (!t) return NULL;
    t->src[2] = post;
    t->src[3] = comb;
    return t;
}
