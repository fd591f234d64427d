/* Constructors of the ops with a state. Operands are checked by the op's row in the table, so that
 * a constructor and a backend take the same. */
#include "sheaf/backend-impl.h"
#include "tensor/construct.h"

/* The node, if its op's check takes it; the text names the operands that `refuse` has room for. */
static struct sheaf_tensor *checked(struct sheaf_tensor *t, const char *want) {
    if (!t || sheaf_backend_op_is_valid(t)) return t;
    return refuse(sheaf_op_name(t->op), t->src[0], t->src[1], want);
}

/* A flat result: y as many elements as `like`, then the states. */
static struct sheaf_tensor *make_flat(struct sheaf_context *ctx, enum sheaf_op op,
                                      const struct sheaf_tensor *like, int64_t states, int n_src,
                                      struct sheaf_tensor *const *src) {
    int64_t n = 0;
    for (int i = 0; i < n_src; i++) {
        if (missing(src[i], src[i])) return NULL;
    }
    if (__builtin_add_overflow(sheaf_nelements(like), states, &n))
        return refuse(sheaf_op_name(op), src[0], src[1], "the result is too large");
    struct sheaf_tensor *t = make(ctx, op, SHEAF_TYPE_F32, (int64_t[]){n, 1, 1, 1}, src[0], src[1]);
    for (int i = 2; t && i < n_src; i++) t->src[i] = src[i];
    return t;
}

/* Elements of the states, negative if they are too many. */
static int64_t state_size(const struct sheaf_tensor *state, int64_t seqs, int64_t kept) {
    int64_t n = kept;
    for (int i = 0; i < 3; i++) {
        if (__builtin_mul_overflow(n, state->ne[i], &n)) return INT64_MIN;
    }
    return __builtin_mul_overflow(n, seqs, &n) ? INT64_MIN : n;
}

struct sheaf_tensor *sheaf_ssm_conv(struct sheaf_context *ctx, struct sheaf_tensor *sx,
                                    struct sheaf_tensor *w) {
    if (missing(sx, w)) return NULL;
    const char *want = "operands are f32 sx [t + k - 1, c, s] and w [k, c] with dense rows";
    if (w->ne[0] < 1 || sx->ne[0] < w->ne[0] - 1) return refuse("SSM_CONV", sx, w, want);
    return checked(make(ctx, SHEAF_OP_SSM_CONV, SHEAF_TYPE_F32,
                        (int64_t[]){sx->ne[1], sx->ne[0] - w->ne[0] + 1, sx->ne[2], 1}, sx, w),
                   want);
}

struct sheaf_tensor *sheaf_ssm_scan(struct sheaf_context *ctx, struct sheaf_tensor *s,
                                    struct sheaf_tensor *x, struct sheaf_tensor *dt,
                                    struct sheaf_tensor *a, struct sheaf_tensor *b,
                                    struct sheaf_tensor *c, struct sheaf_tensor *ids, int kept) {
    if (missing(s, x)) return NULL;
    if (kept < 1) return refuse("SSM_SCAN", s, x, "at least one state must be kept");
    struct sheaf_tensor *t = make_flat(ctx, SHEAF_OP_SSM_SCAN, x, state_size(s, x->ne[3], kept), 7,
                                       (struct sheaf_tensor *const[]){s, x, dt, a, b, c, ids});
    if (t) t->op_params[0] = kept;
    return checked(t, "operands are f32 s [k, d, g.r, S] without gaps, x [d, g.r, t, s], "
                      "dt [g.r, t, s], a [1 or k, g.r], b and c [k, g, t, s], and ids i32 [s]; "
                      "more than one state is kept with a [1, g.r] only");
}

struct sheaf_tensor *sheaf_gated_delta_net(struct sheaf_context *ctx, struct sheaf_tensor *q,
                                           struct sheaf_tensor *k, struct sheaf_tensor *v,
                                           struct sheaf_tensor *gate, struct sheaf_tensor *beta,
                                           struct sheaf_tensor *state, int kept) {
    if (missing(v, state)) return NULL;
    if (kept < 1) return refuse("GATED_DELTA_NET", v, state, "at least one state must be kept");
    struct sheaf_tensor *t =
        make_flat(ctx, SHEAF_OP_GATED_DELTA_NET, v, state_size(state, v->ne[3], kept), 6,
                  (struct sheaf_tensor *const[]){q, k, v, gate, beta, state});
    if (t) t->op_params[0] = kept;
    return checked(t, "operands are f32 q and k [i, g, t, s], v [i, r.g, t, s], gate [1 or i, r.g, "
                      "t, s], beta [1, r.g, t, s] and state [i, i, r.g, s] without gaps");
}

struct sheaf_tensor *sheaf_rwkv_wkv6(struct sheaf_context *ctx, struct sheaf_tensor *k,
                                     struct sheaf_tensor *v, struct sheaf_tensor *r,
                                     struct sheaf_tensor *tf, struct sheaf_tensor *td,
                                     struct sheaf_tensor *state) {
    if (missing(k, state)) return NULL;
    return checked(make_flat(ctx, SHEAF_OP_RWKV_WKV6, k, sheaf_nelements(state), 6,
                             (struct sheaf_tensor *const[]){k, v, r, tf, td, state}),
                   "operands are f32 k, v, r, td [i, h, s.t], tf [i, h] and state [h.i.i, s]");
}

struct sheaf_tensor *sheaf_rwkv_wkv7(struct sheaf_context *ctx, struct sheaf_tensor *r,
                                     struct sheaf_tensor *w, struct sheaf_tensor *k,
                                     struct sheaf_tensor *v, struct sheaf_tensor *a,
                                     struct sheaf_tensor *b, struct sheaf_tensor *state) {
    if (missing(r, state)) return NULL;
    return checked(make_flat(ctx, SHEAF_OP_RWKV_WKV7, r, sheaf_nelements(state), 7,
                             (struct sheaf_tensor *const[]){r, w, k, v, a, b, state}),
                   "operands are f32 r, w, k, v, a, b [i, h, s.t] and state [h.i.i, s]");
}

struct sheaf_tensor *sheaf_gated_linear_attn(struct sheaf_context *ctx, struct sheaf_tensor *k,
                                             struct sheaf_tensor *v, struct sheaf_tensor *q,
                                             struct sheaf_tensor *g, struct sheaf_tensor *state,
                                             float scale) {
    if (missing(k, state)) return NULL;
    struct sheaf_tensor *t = make_flat(ctx, SHEAF_OP_GATED_LINEAR_ATTN, k, sheaf_nelements(state),
                                       5, (struct sheaf_tensor *const[]){k, v, q, g, state});
    if (t) sheaf__set_param_f32(t, 0, scale);
    return checked(t, "operands are f32 k, v, q, g [i, h, s.t] and state [h.i.i, s]");
}
