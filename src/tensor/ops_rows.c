/* Constructors of ops over rows: norms, sums, sorting, a bias for each expert. */
#include "tensor/construct.h"

/* ---- norms ---- */

static struct sheaf_tensor *norm(struct sheaf_context *ctx, enum sheaf_op op,
                                 struct sheaf_tensor *a, float eps) {
    struct sheaf_tensor *t = map_f32(ctx, op, a);
    if (!t) return NULL;
    if (!(eps >= 0)) return refuse(sheaf_op_name(op), a, NULL, "eps must not be negative");
    sheaf__set_param_f32(t, 0, eps);
    return t;
}

struct sheaf_tensor *sheaf_rms_norm(struct sheaf_context *ctx, struct sheaf_tensor *a, float eps) {
    return norm(ctx, SHEAF_OP_RMS_NORM, a, eps);
}
struct sheaf_tensor *sheaf_norm(struct sheaf_context *ctx, struct sheaf_tensor *a, float eps) {
    return norm(ctx, SHEAF_OP_NORM, a, eps);
}
struct sheaf_tensor *sheaf_l2_norm(struct sheaf_context *ctx, struct sheaf_tensor *a, float eps) {
    return norm(ctx, SHEAF_OP_L2_NORM, a, eps);
}

struct sheaf_tensor *sheaf_group_norm(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int n_groups, float eps) {
    struct sheaf_tensor *t = map_f32(ctx, SHEAF_OP_GROUP_NORM, a);
    if (!t) return NULL;
    if (n_groups < 1) return refuse("GROUP_NORM", a, NULL, "there must be a group or more");
    if (!(eps >= 0)) return refuse("GROUP_NORM", a, NULL, "eps must not be negative");
    const int64_t channels = a->ne[2] ? (a->ne[2] - 1) / n_groups + 1 : 1;
    if (channels > INT32_MAX) return refuse("GROUP_NORM", a, NULL, "a group is too large");
    t->op_params[0] = n_groups;
    sheaf__set_param_f32(t, 1, eps);
    t->op_params[2] = (int32_t)channels;
    return t;
}

/* ---- sums ---- */

struct sheaf_tensor *sheaf_sum_rows(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32) return refuse("SUM_ROWS", a, NULL, "the operand must be f32");
    return make(ctx, SHEAF_OP_SUM_ROWS, SHEAF_TYPE_F32,
                (int64_t[]){1, a->ne[1], a->ne[2], a->ne[3]}, a, NULL);
}

struct sheaf_tensor *sheaf_mean(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32) return refuse("MEAN", a, NULL, "the operand must be f32");
    return make(ctx, SHEAF_OP_MEAN, SHEAF_TYPE_F32, (int64_t[]){1, a->ne[1], a->ne[2], a->ne[3]}, a,
                NULL);
}

struct sheaf_tensor *sheaf_sum(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    if (!is_plain_type(a->type))
        return refuse("SUM", a, NULL, "the operand must be f32, f16 or bf16");
    return make(ctx, SHEAF_OP_SUM, SHEAF_TYPE_F32, (int64_t[]){1, 1, 1, 1}, a, NULL);
}

/* ---- sorting ---- */

struct sheaf_tensor *sheaf_argsort(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   enum sheaf_sort_order order) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32) return refuse("ARGSORT", a, NULL, "the operand must be f32");
    if (order != SHEAF_SORT_ORDER_ASC && order != SHEAF_SORT_ORDER_DESC)
        return refuse("ARGSORT", a, NULL, "the order must be ascending or descending");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_ARGSORT, SHEAF_TYPE_I32, a->ne, a, NULL);
    if (t) t->op_params[0] = (int32_t)order;
    return t;
}

struct sheaf_tensor *sheaf_argsort_top_k(struct sheaf_context *ctx, struct sheaf_tensor *a, int k) {
    if (missing(a, a)) return NULL;
    if (k < 1 || k > a->ne[0])
        return refuse("ARGSORT", a, NULL, "k must be from 1 to the length of a row");
    struct sheaf_tensor *t = sheaf_argsort(ctx, a, SHEAF_SORT_ORDER_DESC);
    if (!t) return NULL;
    return sheaf_view_4d(ctx, t, k, t->ne[1], t->ne[2], t->ne[3], t->nb[1], t->nb[2], t->nb[3], 0);
}

/* ---- rows by number ---- */

struct sheaf_tensor *sheaf_add_id(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                  struct sheaf_tensor *b, struct sheaf_tensor *ids) {
    if (missing(a, b) || missing(ids, ids)) return NULL;
    if (a->type != SHEAF_TYPE_F32 || b->type != SHEAF_TYPE_F32)
        return refuse("ADD_ID", a, b, "the operands must be f32");
    if (ids->type != SHEAF_TYPE_I32) return refuse("ADD_ID", a, ids, "ids must be i32");
    if (a->ne[0] != b->ne[0] || a->ne[3] != 1 || b->ne[2] != 1 || b->ne[3] != 1)
        return refuse("ADD_ID", a, b, "operands are [m, u, n], [m, x] and ids [u, n]");
    if (ids->ne[0] != a->ne[1] || ids->ne[1] != a->ne[2] || ids->ne[2] != 1 || ids->ne[3] != 1)
        return refuse("ADD_ID", a, ids, "operands are [m, u, n], [m, x] and ids [u, n]");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_ADD_ID, SHEAF_TYPE_F32, a->ne, a, b);
    if (t) t->src[2] = ids;
    return t;
}
