/* Constructors of the ops of attention inside windows: cutting an image into windows and back, and
 * places relative to each other. Dimension 0 is the embedding, 1 and 2 are space. */
#include "tensor/construct.h"

struct sheaf_tensor *sheaf_win_part(struct sheaf_context *ctx, struct sheaf_tensor *a, int w) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32 || a->ne[3] != 1)
        return refuse("WIN_PART", a, NULL, "the operand must be f32 [e, i, j]");
    if (w < 1) return refuse("WIN_PART", a, NULL, "the size of a window is from 1 on");
    int64_t n;
    if (a->ne[1] > INT64_MAX - w || a->ne[2] > INT64_MAX - w ||
        __builtin_mul_overflow((a->ne[1] + w - 1) / w, (a->ne[2] + w - 1) / w, &n))
        return refuse("WIN_PART", a, NULL, "there are too many windows");
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_WIN_PART, SHEAF_TYPE_F32, (int64_t[]){a->ne[0], w, w, n}, a, NULL);
    if (t) t->op_params[0] = w;
    return t;
}

struct sheaf_tensor *sheaf_win_unpart(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t i,
                                      int64_t j, int w) {
    if (missing(a, a)) return NULL;
    int64_t n;
    if (a->type != SHEAF_TYPE_F32 || w < 1 || a->ne[1] != w || a->ne[2] != w)
        return refuse("WIN_UNPART", a, NULL, "the operand must be f32 [e, w, w, windows]");
    if (i < 0 || j < 0 || i > INT64_MAX - w || j > INT64_MAX - w ||
        __builtin_mul_overflow((i + w - 1) / w, (j + w - 1) / w, &n) || n != a->ne[3])
        return refuse("WIN_UNPART", a, NULL, "dimension 3 is the windows that cover i and j");
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_WIN_UNPART, SHEAF_TYPE_F32, (int64_t[]){a->ne[0], i, j, 1}, a, NULL);
    if (t) t->op_params[0] = w;
    return t;
}

struct sheaf_tensor *sheaf_get_rel_pos(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                       int64_t n) {
    if (missing(a, a)) return NULL;
    if (!is_plain_type(a->type))
        return refuse("GET_REL_POS", a, NULL, "the operand must be f32, f16 or bf16");
    if (n < 1 || n > INT32_MAX || a->ne[1] != 2 * n - 1 || a->ne[2] != 1 || a->ne[3] != 1)
        return refuse("GET_REL_POS", a, NULL, "the operand must be [e, 2 n - 1], n from 1 on");
    return make(ctx, SHEAF_OP_GET_REL_POS, a->type, (int64_t[]){a->ne[0], n, n, 1}, a, NULL);
}

struct sheaf_tensor *sheaf_add_rel_pos(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                       struct sheaf_tensor *pw, struct sheaf_tensor *ph) {
    if (missing(a, pw) || missing(ph, ph)) return NULL;
    const char *name = "ADD_REL_POS";
    if (a->type != SHEAF_TYPE_F32 || pw->type != SHEAF_TYPE_F32 || ph->type != SHEAF_TYPE_F32)
        return refuse(name, a, pw, "all operands must be f32");
    int64_t keys, rows;
    if (!sheaf_are_same_shape(pw, ph) || a->ne[3] != 1 || pw->ne[3] != a->ne[2] ||
        __builtin_mul_overflow(pw->ne[0], pw->ne[0], &keys) || keys != a->ne[0] ||
        __builtin_mul_overflow(pw->ne[1], pw->ne[2], &rows) || rows != a->ne[1])
        return refuse(name, a, pw, "a is [n.n, u.t, b], pw and ph are [n, t, u, b]");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_ADD_REL_POS, SHEAF_TYPE_F32, a->ne, a, pw);
    if (t) t->src[2] = ph;
    return t;
}
