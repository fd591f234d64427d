/* Constructors of ops over square matrices and windows: sums along a row, triangles, a triangular
 * system, a part of a tensor that is replaced or added to; and ARANGE. */
#include "tensor/construct.h"

#include <math.h>

/* ---- windows ---- */

struct sheaf_tensor *sheaf_add1(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                struct sheaf_tensor *b) {
    if (missing(a, b)) return NULL;
    if (sheaf_nelements(b) != 1)
        return refuse("ADD1", a, b, "the second operand must have one element");
    return sheaf_add(ctx, a, b);
}

static struct sheaf_tensor *window(struct sheaf_context *ctx, enum sheaf_op op,
                                   struct sheaf_tensor *a, struct sheaf_tensor *b,
                                   const int64_t start[4]) {
    if (missing(a, b)) return NULL;
    const char *name = sheaf_op_name(op);
    if (a->type != SHEAF_TYPE_F32 || b->type != SHEAF_TYPE_F32)
        return refuse(name, a, b, "the operands must be f32");
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (start[i] < 0 || start[i] > INT32_MAX || b->ne[i] > a->ne[i] - start[i])
            return refuse(name, a, b, "the second operand does not lie inside the first");
    }
    struct sheaf_tensor *t = make(ctx, op, SHEAF_TYPE_F32, a->ne, a, b);
    for (int i = 0; i < SHEAF_MAX_DIMS && t; i++) t->op_params[i] = (int32_t)start[i];
    return t;
}

struct sheaf_tensor *sheaf_set(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b, const int64_t start[4]) {
    return window(ctx, SHEAF_OP_SET, a, b, start);
}
struct sheaf_tensor *sheaf_acc(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b, const int64_t start[4]) {
    return window(ctx, SHEAF_OP_ACC, a, b, start);
}

/* ---- matrices ---- */

struct sheaf_tensor *sheaf_cumsum(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return map_f32(ctx, SHEAF_OP_CUMSUM, a);
}

struct sheaf_tensor *sheaf_tri(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               enum sheaf_tri_type type) {
    struct sheaf_tensor *t = map_f32(ctx, SHEAF_OP_TRI, a);
    if (!t) return NULL;
    if ((unsigned)type > SHEAF_TRI_TYPE_LOWER)
        return refuse("TRI", a, NULL, "the number of the triangle is unknown");
    if (a->ne[0] != a->ne[1]) return refuse("TRI", a, NULL, "the matrices must be square");
    t->op_params[0] = (int32_t)type;
    return t;
}

struct sheaf_tensor *sheaf_diag(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32 || a->ne[1] != 1)
        return refuse("DIAG", a, NULL, "the operand must be f32 [n, 1, h, s]");
    return make(ctx, SHEAF_OP_DIAG, SHEAF_TYPE_F32,
                (int64_t[]){a->ne[0], a->ne[0], a->ne[2], a->ne[3]}, a, NULL);
}

static struct sheaf_tensor *diag_mask(struct sheaf_context *ctx, enum sheaf_op op,
                                      struct sheaf_tensor *a, int n_past) {
    struct sheaf_tensor *t = map_f32(ctx, op, a);
    if (!t) return NULL;
    if (n_past < 0) return refuse(sheaf_op_name(op), a, NULL, "n_past must not be negative");
    t->op_params[0] = n_past;
    return t;
}

struct sheaf_tensor *sheaf_diag_mask_inf(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                         int n_past) {
    return diag_mask(ctx, SHEAF_OP_DIAG_MASK_INF, a, n_past);
}
struct sheaf_tensor *sheaf_diag_mask_zero(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                          int n_past) {
    return diag_mask(ctx, SHEAF_OP_DIAG_MASK_ZERO, a, n_past);
}

struct sheaf_tensor *sheaf_solve_tri(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                     struct sheaf_tensor *b) {
    if (missing(a, b)) return NULL;
    if (a->type != SHEAF_TYPE_F32 || b->type != SHEAF_TYPE_F32)
        return refuse("SOLVE_TRI", a, b, "the operands must be f32");
    if (a->ne[0] != a->ne[1] || b->ne[1] != a->ne[0] || b->ne[2] != a->ne[2] ||
        b->ne[3] != a->ne[3])
        return refuse("SOLVE_TRI", a, b, "the operands are [n, n, h, s] and [m, n, h, s]");
    return make(ctx, SHEAF_OP_SOLVE_TRI, SHEAF_TYPE_F32, b->ne, a, b);
}

struct sheaf_tensor *sheaf_arange(struct sheaf_context *ctx, float start, float stop, float step) {
    const float n = ceilf((stop - start) / step);
    if (!(n >= 0) || n > 1e9f) {
        sheaf_set_error(SHEAF_STATUS_INVALID,
                        "ARANGE: %g to %g by %g is no list of 0 to 10^9 numbers", (double)start,
                        (double)stop, (double)step);
        return NULL;
    }
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_ARANGE, SHEAF_TYPE_F32, (int64_t[]){(int64_t)n, 1, 1, 1}, NULL, NULL);
    if (!t) return NULL;
    sheaf__set_param_f32(t, 0, start);
    sheaf__set_param_f32(t, 1, stop);
    sheaf__set_param_f32(t, 2, step);
    return t;
}
