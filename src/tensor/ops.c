/* Op constructors: check shapes and types, make the descriptor, compute nothing.
 *
 * Invariant: a returned tensor is one that every backend may be asked about: shapes fit, sizes are
 * in range, view_src is never itself a view. Every constructor starts with `if (missing(...))
 * return NULL`, which keeps the first error. */
#include "tensor/construct.h"
#include "tensor/op_info.h"

struct sheaf_tensor *sheaf_view_tensor(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    return make_view(ctx, SHEAF_OP_VIEW, a, 0);
}

struct sheaf_tensor *sheaf_in_place(struct sheaf_tensor *node, int operand) {
    if (!node) return NULL;
    const struct sheaf__op_info *info = sheaf__op_info(node->op);
    if (operand < 0 || operand >= info->in_place || !node->src[operand])
        return refuse(info->name, node, NULL, "it cannot write its result over that operand");
    struct sheaf_tensor *a = node->src[operand];
    if (node->view_src || !sheaf_are_same_shape(node, a) || node->type != a->type)
        return refuse(info->name, node, a,
                      "a result written over an operand has its type and shape, and no memory yet");
    memcpy(node->nb, a->nb, sizeof node->nb);
    node->view_src = sheaf__memory_owner(a);
    node->view_offs = a->view_offs;
    node->data = a->data;
    if (!sheaf__op_written(node)) /* the same memory as an operand before it */
        return refuse(info->name, node, a, "the operand cannot take the result");
    return node;
}

/* ---- elementwise ---- */

static struct sheaf_tensor *binary(struct sheaf_context *ctx, enum sheaf_op op,
                                   struct sheaf_tensor *a, struct sheaf_tensor *b) {
    if (missing(a, b)) return NULL;
    const char *name = sheaf_op_name(op);
    if (a->type != SHEAF_TYPE_F32 && a->type != SHEAF_TYPE_F16 && a->type != SHEAF_TYPE_BF16)
        return refuse(name, a, b, "the first operand must be f32, f16 or bf16");
    if (b->type != SHEAF_TYPE_F32 && b->type != a->type)
        return refuse(name, a, b, "the second operand must be f32 or of the first one's type");
    if (!sheaf_can_repeat(b, a))
        return refuse(name, a, b, "the second operand does not repeat to the first one's shape");
    return make(ctx, op, a->type, a->ne, a, b);
}

struct sheaf_tensor *sheaf_add(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b) {
    return binary(ctx, SHEAF_OP_ADD, a, b);
}
struct sheaf_tensor *sheaf_sub(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b) {
    return binary(ctx, SHEAF_OP_SUB, a, b);
}
struct sheaf_tensor *sheaf_mul(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b) {
    return binary(ctx, SHEAF_OP_MUL, a, b);
}
struct sheaf_tensor *sheaf_div(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b) {
    return binary(ctx, SHEAF_OP_DIV, a, b);
}

struct sheaf_tensor *sheaf_scale(struct sheaf_context *ctx, struct sheaf_tensor *a, float s) {
    return sheaf_scale_bias(ctx, a, s, 0);
}
struct sheaf_tensor *sheaf_scale_bias(struct sheaf_context *ctx, struct sheaf_tensor *a, float s,
                                      float b) {
    struct sheaf_tensor *t = map_f32(ctx, SHEAF_OP_SCALE, a);
    if (!t) return NULL;
    sheaf__set_param_f32(t, 0, s);
    sheaf__set_param_f32(t, 1, b);
    return t;
}

struct sheaf_tensor *sheaf_unary(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                 enum sheaf_unary_op op) {
    if (missing(a, a)) return NULL;
    if ((unsigned)op >= SHEAF_UNARY_OP_COUNT)
        return refuse("UNARY", a, NULL, "the unary op's number is unknown");
    if (op == SHEAF_UNARY_OP_XIELU)
        return refuse("UNARY", a, NULL, "XIELU has parameters; use sheaf_xielu");
    struct sheaf_tensor *t = map_plain(ctx, SHEAF_OP_UNARY, a);
    if (t) t->op_params[0] = (int32_t)op;
    return t;
}
struct sheaf_tensor *sheaf_silu(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return sheaf_unary(ctx, a, SHEAF_UNARY_OP_SILU);
}
struct sheaf_tensor *sheaf_gelu(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return sheaf_unary(ctx, a, SHEAF_UNARY_OP_GELU);
}
struct sheaf_tensor *sheaf_relu(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return sheaf_unary(ctx, a, SHEAF_UNARY_OP_RELU);
}
struct sheaf_tensor *sheaf_tanh(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return sheaf_unary(ctx, a, SHEAF_UNARY_OP_TANH);
}
struct sheaf_tensor *sheaf_sigmoid(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return sheaf_unary(ctx, a, SHEAF_UNARY_OP_SIGMOID);
}

static struct sheaf_tensor *glu(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                struct sheaf_tensor *b, enum sheaf_glu_op op, bool swapped) {
    if (missing(a, a)) return NULL;
    if ((unsigned)op >= SHEAF_GLU_OP_COUNT)
        return refuse("GLU", a, b, "the glu op's number is unknown");
    const char *name = sheaf_glu_op_name(op);
    if (!is_plain_type(a->type) || (b && b->type != a->type))
        return refuse(name, a, b, "operands must be f32, f16 or bf16, both of one type");
    int64_t ne[SHEAF_MAX_DIMS];
    memcpy(ne, a->ne, sizeof ne);
    if (b) {
        if (!sheaf_are_same_shape(a, b))
            return refuse(name, a, b, "the operands must have the same shape");
    } else {
        if (ne[0] % 2)
            return refuse(name, a, NULL, "dimension 0 must be even: gate and value side by side");
        ne[0] /= 2;
    }
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_GLU, a->type, ne, a, b);
    if (!t) return NULL;
    t->op_params[0] = (int32_t)op;
    t->op_params[1] = swapped;
    return t;
}

/* Those with parameters have constructors of their own. */
static bool limited(enum sheaf_glu_op op) {
    return op == SHEAF_GLU_OP_SWIGLU_OAI || op == SHEAF_GLU_OP_SWIGLU_CLAMP;
}
static const char use_own[] =
    "it has parameters; use sheaf_swiglu_oai or sheaf_swiglu_clamp of two operands";

struct sheaf_tensor *sheaf_glu(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               enum sheaf_glu_op op, bool swapped) {
    if (missing(a, a)) return NULL;
    return limited(op) ? refuse(sheaf_glu_op_name(op), a, NULL, use_own)
                       : glu(ctx, a, NULL, op, swapped);
}
struct sheaf_tensor *sheaf_glu_split(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                     struct sheaf_tensor *b, enum sheaf_glu_op op) {
    if (missing(a, b)) return NULL;
    return limited(op) ? refuse(sheaf_glu_op_name(op), a, b, use_own) : glu(ctx, a, b, op, false);
}
struct sheaf_tensor *sheaf_swiglu_oai(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      struct sheaf_tensor *b, float alpha, float limit) {
    if (missing(a, b)) return NULL;
    if (!(limit >= 0)) return refuse("SWIGLU_OAI", a, b, "the limit must not be negative");
    struct sheaf_tensor *t = glu(ctx, a, b, SHEAF_GLU_OP_SWIGLU_OAI, false);
    if (!t) return NULL;
    sheaf__set_param_f32(t, 2, alpha);
    sheaf__set_param_f32(t, 3, limit);
    return t;
}
struct sheaf_tensor *sheaf_swiglu_clamp(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                        struct sheaf_tensor *b, float limit) {
    if (missing(a, b)) return NULL;
    if (!(limit >= 0)) return refuse("SWIGLU_CLAMP", a, b, "the limit must not be negative");
    struct sheaf_tensor *t = glu(ctx, a, b, SHEAF_GLU_OP_SWIGLU_CLAMP, false);
    if (t) sheaf__set_param_f32(t, 3, limit);
    return t;
}
struct sheaf_tensor *sheaf_swiglu(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return sheaf_glu(ctx, a, SHEAF_GLU_OP_SWIGLU, false);
}
struct sheaf_tensor *sheaf_swiglu_split(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                        struct sheaf_tensor *b) {
    return sheaf_glu_split(ctx, a, b, SHEAF_GLU_OP_SWIGLU);
}
struct sheaf_tensor *sheaf_geglu(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return sheaf_glu(ctx, a, SHEAF_GLU_OP_GEGLU, false);
}
struct sheaf_tensor *sheaf_geglu_split(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                       struct sheaf_tensor *b) {
    return sheaf_glu_split(ctx, a, b, SHEAF_GLU_OP_GEGLU);
}

/* ---- rows ---- */

struct sheaf_tensor *sheaf_argmax(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32 || a->ne[2] != 1 || a->ne[3] != 1 || a->ne[0] < 1)
        return refuse("ARGMAX", a, NULL, "the operand must be f32 [i, j] with i > 0");
    return make(ctx, SHEAF_OP_ARGMAX, SHEAF_TYPE_I32, (int64_t[]){a->ne[1], 1, 1, 1}, a, NULL);
}

struct sheaf_tensor *sheaf_count_equal(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                       struct sheaf_tensor *b) {
    if (missing(a, b)) return NULL;
    if (a->type != SHEAF_TYPE_I32 || b->type != SHEAF_TYPE_I32 || !sheaf_are_same_shape(a, b))
        return refuse("COUNT_EQUAL", a, b, "both operands must be i32 of one shape");
    return make(ctx, SHEAF_OP_COUNT_EQUAL, SHEAF_TYPE_I64, (int64_t[]){1, 1, 1, 1}, a, b);
}

struct sheaf_tensor *sheaf_top_k(struct sheaf_context *ctx, struct sheaf_tensor *a, int k) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32) return refuse("TOP_K", a, NULL, "the operand must be f32");
    if (k < 1 || k > a->ne[0])
        return refuse("TOP_K", a, NULL, "k must be from 1 to the length of a row");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_TOP_K, SHEAF_TYPE_I32,
                                  (int64_t[]){k, a->ne[1], a->ne[2], a->ne[3]}, a, NULL);
    if (t) t->op_params[0] = k;
    return t;
}

struct sheaf_tensor *sheaf_concat(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                  struct sheaf_tensor *b, int dim) {
    if (missing(a, b)) return NULL;
    if (dim < 0 || dim >= SHEAF_MAX_DIMS)
        return refuse("CONCAT", a, b, "the dimension must be 0 to 3");
    if (a->type != b->type) return refuse("CONCAT", a, b, "the operands must have the same type");
    int64_t ne[SHEAF_MAX_DIMS];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        ne[i] = a->ne[i];
        if (i != dim && a->ne[i] != b->ne[i])
            return refuse("CONCAT", a, b, "other dimensions must be equal");
    }
    if (__builtin_add_overflow(a->ne[dim], b->ne[dim], &ne[dim]))
        return refuse("CONCAT", a, b, "the sum overflows");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_CONCAT, a->type, ne, a, b);
    if (t) t->op_params[0] = dim;
    return t;
}

/* ---- products ---- */

struct sheaf_tensor *sheaf_mul_mat(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   struct sheaf_tensor *b) {
    if (missing(a, b)) return NULL;
    if (a->ne[0] != b->ne[0])
        return refuse("MUL_MAT", a, b, "dimension 0 (the summed one) must be equal");
    for (int i = 2; i < SHEAF_MAX_DIMS; i++) {
        if (a->ne[i] != b->ne[i] && (a->ne[i] == 0 || b->ne[i] % a->ne[i]))
            return refuse("MUL_MAT", a, b,
                          "dimensions 2 and 3 of the second must be multiples of the first one's");
    }
    if (!is_float_type(a->type))
        return refuse("MUL_MAT", a, b, "the first operand must be of a float type");
    if (b->type != SHEAF_TYPE_F32 && !(b->type == SHEAF_TYPE_F16 && a->type == SHEAF_TYPE_F16))
        return refuse("MUL_MAT", a, b, "the second operand must be f32 (or f16 with f16)");
    if (sheaf_is_transposed(a) && a->ne[0] > 1 && a->ne[1] > 1)
        return refuse("MUL_MAT", a, b, "the first operand must not be transposed; use sheaf_cont");
    return make(ctx, SHEAF_OP_MUL_MAT, SHEAF_TYPE_F32,
                (int64_t[]){a->ne[1], b->ne[1], b->ne[2], b->ne[3]}, a, b);
}

struct sheaf_tensor *sheaf_mul_mat_id(struct sheaf_context *ctx, struct sheaf_tensor *as,
                                      struct sheaf_tensor *b, struct sheaf_tensor *ids) {
    if (missing(as, b) || missing(ids, ids)) return NULL;
    if (as->ne[3] != 1 || b->ne[3] != 1 || ids->ne[2] != 1 || ids->ne[3] != 1)
        return refuse("MUL_MAT_ID", as, b, "operands are [k, m, x], [k, 1|u, n] and ids [u, n]");
    if (ids->type != SHEAF_TYPE_I32) return refuse("MUL_MAT_ID", as, ids, "ids must be i32");
    if (as->ne[0] != b->ne[0])
        return refuse("MUL_MAT_ID", as, b, "dimension 0 (the summed one) must be equal");
    if (ids->ne[1] != b->ne[2])
        return refuse("MUL_MAT_ID", b, ids, "ids must have one column a token");
    if (b->ne[1] != 1 && b->ne[1] != ids->ne[0])
        return refuse("MUL_MAT_ID", b, ids,
                      "dimension 1 of b must be 1 or the number of experts used");
    if (!is_float_type(as->type) || b->type != SHEAF_TYPE_F32)
        return refuse("MUL_MAT_ID", as, b, "weights must be of a float type and b f32");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_MUL_MAT_ID, SHEAF_TYPE_F32,
                                  (int64_t[]){as->ne[1], ids->ne[0], b->ne[2], 1}, as, b);
    if (t) t->src[2] = ids;
    return t;
}

/* ---- copies ---- */

struct sheaf_tensor *sheaf_cpy(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b) {
    if (missing(a, b)) return NULL;
    if (sheaf_nelements(a) != sheaf_nelements(b))
        return refuse("CPY", a, b, "the numbers of elements must be equal");
    struct sheaf_tensor *t = make_view(ctx, SHEAF_OP_CPY, b, 0);
    if (!t) return NULL;
    t->src[0] = a;
    t->src[1] = b;
    return t;
}

struct sheaf_tensor *sheaf_cont(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    return make(ctx, SHEAF_OP_CONT, a->type, a->ne, a, NULL);
}
struct sheaf_tensor *sheaf_dup(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    return make(ctx, SHEAF_OP_DUP, a->type, a->ne, a, NULL);
}
struct sheaf_tensor *sheaf_cast(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                enum sheaf_type type) {
    if (missing(a, a)) return NULL;
    return make(ctx, SHEAF_OP_DUP, type, a->ne, a, NULL);
}

/* ---- views ---- */

static struct sheaf_tensor *reshape(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                    const int64_t ne[SHEAF_MAX_DIMS]) {
    if (missing(a, a)) return NULL;
    bool negative = false;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) negative = negative || ne[i] < 0;
    if (negative || !is_countable(ne))
        return refuse("RESHAPE", a, NULL, "the new shape is negative or too large");
    if (ne[0] * ne[1] * ne[2] * ne[3] != sheaf_nelements(a))
        return refuse("RESHAPE", a, NULL, "the new shape has another number of elements");
    if (!sheaf_is_contiguous(a))
        return refuse("RESHAPE", a, NULL, "the operand must be contiguous; use sheaf_cont");
    const int64_t block = sheaf_blck_size(a->type);
    if (ne[0] % block)
        return refuse("RESHAPE", a, NULL, "dimension 0 must be whole blocks of the type");
    struct sheaf_tensor *t = make_view(ctx, SHEAF_OP_RESHAPE, a, 0);
    if (!t) return NULL;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) t->ne[i] = ne[i];
    sheaf__set_dense_strides(t);
    return t;
}

struct sheaf_tensor *sheaf_reshape(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   struct sheaf_tensor *shape_of) {
    if (missing(a, shape_of)) return NULL;
    return reshape(ctx, a, shape_of->ne);
}
struct sheaf_tensor *sheaf_reshape_1d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int64_t ne0) {
    return reshape(ctx, a, (int64_t[]){ne0, 1, 1, 1});
}
struct sheaf_tensor *sheaf_reshape_2d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int64_t ne0, int64_t ne1) {
    return reshape(ctx, a, (int64_t[]){ne0, ne1, 1, 1});
}
struct sheaf_tensor *sheaf_reshape_3d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int64_t ne0, int64_t ne1, int64_t ne2) {
    return reshape(ctx, a, (int64_t[]){ne0, ne1, ne2, 1});
}
struct sheaf_tensor *sheaf_reshape_4d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return reshape(ctx, a, (int64_t[]){ne0, ne1, ne2, ne3});
}

/* nb[1..] of 0 means dense from the dimension below. */
static struct sheaf_tensor *view(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                 const int64_t ne[SHEAF_MAX_DIMS], size_t nb1, size_t nb2,
                                 size_t nb3, size_t offset) {
    if (missing(a, a)) return NULL;
    const int64_t block = sheaf_blck_size(a->type);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (ne[i] < 0) return refuse("VIEW", a, NULL, "a dimension is negative");
    }
    if (!is_countable(ne)) return refuse("VIEW", a, NULL, "it is too large");
    if (ne[0] % block)
        return refuse("VIEW", a, NULL, "dimension 0 must be whole blocks of the type");
    if (offset % sheaf_type_size(a->type))
        return refuse("VIEW", a, NULL, "the offset cuts an element or block");
    size_t nb[SHEAF_MAX_DIMS] = {sheaf_type_size(a->type), nb1, nb2, nb3};
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) {
        const size_t below = (size_t)(i == 1 ? ne[0] / block : ne[i - 1]);
        if (!nb[i] && !sheaf__mul_size(nb[i - 1], below, &nb[i]))
            return refuse("VIEW", a, NULL, "it is too large");
    }
    /* the end of the last element, with every product checked */
    size_t end = a->view_offs;
    bool fits = sheaf__add_size(end, offset, &end);
    const bool empty = ne[0] == 0 || ne[1] == 0 || ne[2] == 0 || ne[3] == 0;
    for (int i = 0; i < SHEAF_MAX_DIMS && !empty; i++) {
        const size_t n = (size_t)(i == 0 ? ne[0] / block : ne[i]);
        size_t span = 0;
        fits = fits && sheaf__mul_size(n - 1, nb[i], &span) && sheaf__add_size(end, span, &end);
    }
    const struct sheaf_tensor *owner = sheaf__memory_owner(a);
    if (!empty) fits = fits && sheaf__add_size(end, nb[0], &end);
    if (!fits || end > sheaf_nbytes(owner)) {
        char text[200];
        snprintf(text, sizeof text,
                 "the view [%lld %lld %lld %lld] at offset %zu ends outside its %zu bytes",
                 (long long)ne[0], (long long)ne[1], (long long)ne[2], (long long)ne[3], offset,
                 sheaf_nbytes(owner));
        return refuse("VIEW", a, NULL, text);
    }
    struct sheaf_tensor *t = make_view(ctx, SHEAF_OP_VIEW, a, offset);
    if (!t) return NULL;
    memcpy(t->ne, ne, sizeof t->ne);
    memcpy(t->nb, nb, sizeof t->nb);
    const uint64_t offs = offset;
    memcpy(t->op_params, &offs, sizeof offs);
    return t;
}

struct sheaf_tensor *sheaf_view_1d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                   size_t offset) {
    return view(ctx, a, (int64_t[]){ne0, 1, 1, 1}, 0, 0, 0, offset);
}
struct sheaf_tensor *sheaf_view_2d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                   int64_t ne1, size_t nb1, size_t offset) {
    return view(ctx, a, (int64_t[]){ne0, ne1, 1, 1}, nb1, 0, 0, offset);
}
struct sheaf_tensor *sheaf_view_3d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                   int64_t ne1, int64_t ne2, size_t nb1, size_t nb2,
                                   size_t offset) {
    return view(ctx, a, (int64_t[]){ne0, ne1, ne2, 1}, nb1, nb2, 0, offset);
}
struct sheaf_tensor *sheaf_view_4d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                   int64_t ne1, int64_t ne2, int64_t ne3, size_t nb1, size_t nb2,
                                   size_t nb3, size_t offset) {
    return view(ctx, a, (int64_t[]){ne0, ne1, ne2, ne3}, nb1, nb2, nb3, offset);
}

struct sheaf_tensor *sheaf_permute(struct sheaf_context *ctx, struct sheaf_tensor *a, int axis0,
                                   int axis1, int axis2, int axis3) {
    if (missing(a, a)) return NULL;
    const int axes[SHEAF_MAX_DIMS] = {axis0, axis1, axis2, axis3};
    unsigned seen = 0;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (axes[i] >= 0 && axes[i] < SHEAF_MAX_DIMS) seen |= 1u << axes[i];
    }
    if (seen != 0xF) return refuse("PERMUTE", a, NULL, "the axes must be 0, 1, 2, 3 in some order");
    if (axis0 != 0 && sheaf_blck_size(a->type) > 1)
        return refuse("PERMUTE", a, NULL, "the rows of a block type stay whole: axis 0 must be 0");
    struct sheaf_tensor *t = make_view(ctx, SHEAF_OP_PERMUTE, a, 0);
    if (!t) return NULL;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        t->ne[axes[i]] = a->ne[i];
        t->nb[axes[i]] = a->nb[i];
        t->op_params[i] = axes[i];
    }
    return t;
}

struct sheaf_tensor *sheaf_transpose(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    struct sheaf_tensor *t = sheaf_permute(ctx, a, 1, 0, 2, 3);
    if (!t) return NULL;
    t->op = SHEAF_OP_TRANSPOSE;
    memset(t->op_params, 0, sizeof t->op_params);
    return t;
}

/* ---- gather and scatter of rows ---- */

struct sheaf_tensor *sheaf_get_rows(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                    struct sheaf_tensor *b) {
    if (missing(a, b)) return NULL;
    if (b->type != SHEAF_TYPE_I32) return refuse("GET_ROWS", a, b, "the ids must be i32");
    const bool whole_numbers = a->type == SHEAF_TYPE_I32;
    if (!is_float_type(a->type) && !whole_numbers)
        return refuse("GET_ROWS", a, b, "the rows must be of a float type or i32");
    if (b->ne[3] != 1 || b->ne[1] != a->ne[2] || b->ne[2] != a->ne[3])
        return refuse("GET_ROWS", a, b, "rows are [e, v, h, s] and ids [n, h, s]");
    return make(ctx, SHEAF_OP_GET_ROWS, whole_numbers ? SHEAF_TYPE_I32 : SHEAF_TYPE_F32,
                (int64_t[]){a->ne[0], b->ne[0], b->ne[1], b->ne[2]}, a, b);
}

struct sheaf_tensor *sheaf_set_rows(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                    struct sheaf_tensor *b, struct sheaf_tensor *c) {
    if (missing(a, b) || missing(c, c)) return NULL;
    if ((b->type != SHEAF_TYPE_F32 && b->type != SHEAF_TYPE_F16) || !is_float_type(a->type))
        return refuse("SET_ROWS", a, b,
                      "rows to write must be f32 or f16, the target of a float type");
    if (c->type != SHEAF_TYPE_I64 && c->type != SHEAF_TYPE_I32)
        return refuse("SET_ROWS", a, c, "ids must be i64 or i32");
    if (a->ne[0] != b->ne[0] || a->ne[2] != b->ne[2] || a->ne[3] != b->ne[3])
        return refuse("SET_ROWS", a, b,
                      "target [e, L, h, s] and rows [e, n, h, s] must agree in e, h, s");
    if (c->ne[0] != b->ne[1] || c->ne[3] != 1 || !sheaf__divides(c->ne[1], b->ne[2]) ||
        !sheaf__divides(c->ne[2], b->ne[3]))
        return refuse("SET_ROWS", b, c,
                      "rows are [e, n, h, s] and ids [n, divisor of h, divisor of s]");
    struct sheaf_tensor *t = make_view(ctx, SHEAF_OP_SET_ROWS, a, 0);
    if (!t) return NULL;
    t->src[1] = b;
    t->src[2] = c;
    return t;
}

/* ---- attention ---- */

struct sheaf_tensor *sheaf_soft_max(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return sheaf_soft_max_ext(ctx, a, NULL, 1.0f, 0.0f);
}

/* A mask of scores ne, and sinks for heads: false with the error set if they do not fit. */
static bool fits_mask(const char *op, const struct sheaf_tensor *a, const struct sheaf_tensor *mask,
                      const int64_t ne[SHEAF_MAX_DIMS], float max_bias, const char *want) {
    if (!mask && max_bias > 0)
        return refuse(op, a, NULL, "head slopes (max_bias > 0) need a mask"), false;
    if (!mask) return true;
    if (mask->type != SHEAF_TYPE_F16 && mask->type != SHEAF_TYPE_F32)
        return refuse(op, a, mask, "the mask must be f16 or f32"), false;
    if (mask->ne[0] != ne[0] || mask->ne[1] < ne[1] || !sheaf__divides(mask->ne[2], ne[2]) ||
        !sheaf__divides(mask->ne[3], ne[3]))
        return refuse(op, a, mask, want), false;
    return true;
}
static bool fits_sinks(const char *op, const struct sheaf_tensor *a,
                       const struct sheaf_tensor *sinks) {
    if (!sinks || (sinks->type == SHEAF_TYPE_F32 && sinks->ne[0] == a->ne[2] &&
                   sheaf_nelements(sinks) == sinks->ne[0]))
        return true;
    return refuse(op, a, sinks, "sinks are f32, one for each head (dimension 2)"), false;
}

struct sheaf_tensor *sheaf_soft_max_ext(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                        struct sheaf_tensor *mask, float scale, float max_bias) {
    return sheaf_soft_max_sinks(ctx, a, mask, NULL, scale, max_bias);
}

struct sheaf_tensor *sheaf_soft_max_sinks(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                          struct sheaf_tensor *mask, struct sheaf_tensor *sinks,
                                          float scale, float max_bias) {
    if (missing(a, a) ||
        !fits_mask("SOFT_MAX", a, mask, a->ne, max_bias,
                   "the mask of [k, n, h, s] is [k, >=n, divisor of h, divisor of s]") ||
        !fits_sinks("SOFT_MAX", a, sinks))
        return NULL;
    struct sheaf_tensor *t = map_f32(ctx, SHEAF_OP_SOFT_MAX, a);
    if (!t) return NULL;
    sheaf__set_param_f32(t, 0, scale);
    sheaf__set_param_f32(t, 1, max_bias);
    t->src[1] = mask;
    t->src[2] = sinks;
    return t;
}

/* ROPE with the parameters 0 to 8; sections are the caller's. */
static struct sheaf_tensor *rope(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                 struct sheaf_tensor *pos, struct sheaf_tensor *freq_factors,
                                 const int32_t i[3], const float f[6]) {
    const bool vision = i[1] == SHEAF_ROPE_TYPE_VISION;
    const int n_dims = i[0], pairs = vision ? n_dims : n_dims / 2;
    if (a->type != SHEAF_TYPE_F32 && a->type != SHEAF_TYPE_F16)
        return refuse("ROPE", a, NULL, "the operand must be f32 or f16");
    if (n_dims < 2 || n_dims % 2 || n_dims > a->ne[0])
        return refuse("ROPE", a, NULL, "n_dims must be even, from 2 to dimension 0");
    if (vision && a->ne[0] != 2 * (int64_t)n_dims)
        return refuse("ROPE", a, NULL, "n_dims must be half of dimension 0 with VISION");
    if (freq_factors && (freq_factors->type != SHEAF_TYPE_F32 || freq_factors->ne[0] < pairs))
        return refuse("ROPE", a, freq_factors,
                      "frequency factors are f32, one a pair: [n_dims / 2]");
    if (!(f[0] > 0)) return refuse("ROPE", a, NULL, "freq_base must be positive");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_ROPE, a->type, a->ne, a, pos);
    if (!t) return NULL;
    t->src[2] = freq_factors;
    memcpy(t->op_params, i, 3 * sizeof *i);
    for (int k = 0; k < 6; k++) sheaf__set_param_f32(t, 3 + k, f[k]);
    return t;
}

struct sheaf_tensor *sheaf_rope_ext(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                    struct sheaf_tensor *pos, struct sheaf_tensor *freq_factors,
                                    int n_dims, int mode, int n_ctx_orig, float freq_base,
                                    float freq_scale, float ext_factor, float attn_factor,
                                    float beta_fast, float beta_slow) {
    if (missing(a, pos)) return NULL;
    if (mode != SHEAF_ROPE_TYPE_NORMAL && mode != SHEAF_ROPE_TYPE_NEOX)
        return refuse("ROPE", a, pos, "the mode must be NORMAL or NEOX");
    if (pos->type != SHEAF_TYPE_I32 || pos->ne[0] != a->ne[2] || sheaf_nelements(pos) != pos->ne[0])
        return refuse("ROPE", a, pos, "positions are i32 [n] for [d, h, n, s]");
    return rope(ctx, a, pos, freq_factors, (int32_t[]){n_dims, mode, n_ctx_orig},
                (float[]){freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow});
}

struct sheaf_tensor *sheaf_rope_multi(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      struct sheaf_tensor *pos, struct sheaf_tensor *freq_factors,
                                      int n_dims, const int sections[4], int mode, int n_ctx_orig,
                                      float freq_base, float freq_scale, float ext_factor,
                                      float attn_factor, float beta_fast, float beta_slow) {
    if (missing(a, pos)) return NULL;
    if (mode != SHEAF_ROPE_TYPE_MROPE && mode != SHEAF_ROPE_TYPE_VISION &&
        mode != SHEAF_ROPE_TYPE_IMROPE)
        return refuse("ROPE", a, pos, "the mode must be MROPE, VISION or IMROPE");
    if (pos->type != SHEAF_TYPE_I32 || pos->ne[0] / 4 != a->ne[2] || pos->ne[0] % 4 ||
        sheaf_nelements(pos) != pos->ne[0])
        return refuse("ROPE", a, pos, "positions are i32 [4 n] for [d, h, n, s] with sections");
    int64_t round = 0;
    for (int i = 0; i < 4; i++) {
        if (sections[i] < 0) return refuse("ROPE", a, NULL, "a section is negative");
        round += sections[i];
    }
    if (round < 1 || round > a->ne[0])
        return refuse("ROPE", a, NULL, "the sum of the sections must be from 1 to dimension 0");
    struct sheaf_tensor *t =
        rope(ctx, a, pos, freq_factors, (int32_t[]){n_dims, mode, n_ctx_orig},
             (float[]){freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow});
    for (int i = 0; i < 4 && t; i++) t->op_params[9 + i] = sections[i];
    return t;
}

struct sheaf_tensor *sheaf_rope_set_offset(struct sheaf_tensor *rope, int offset) {
    if (missing(rope, rope)) return NULL;
    if (rope->op != SHEAF_OP_ROPE && rope->op != SHEAF_OP_ROPE_BACK)
        return refuse("ROPE", rope, NULL, "only a ROPE has an offset");
    const bool vision = rope->op_params[1] == SHEAF_ROPE_TYPE_VISION;
    if (offset < 0 || offset > rope->ne[0] - rope->op_params[0] || (vision && offset))
        return refuse("ROPE", rope, NULL,
                      "the offset plus n_dims must be within dimension 0, and 0 with VISION");
    rope->op_params[13] = offset;
    return rope;
}

struct sheaf_tensor *sheaf_rope_back(struct sheaf_tensor *rope) {
    if (missing(rope, rope)) return NULL;
    if (rope->op != SHEAF_OP_ROPE) return refuse("ROPE_BACK", rope, NULL, "only a ROPE is undone");
    rope->op = SHEAF_OP_ROPE_BACK;
    return rope;
}

struct sheaf_tensor *sheaf_flash_attn_ext(struct sheaf_context *ctx, struct sheaf_tensor *q,
                                          struct sheaf_tensor *k, struct sheaf_tensor *v,
                                          struct sheaf_tensor *mask, float scale, float max_bias,
                                          float logit_softcap) {
    return sheaf_flash_attn_sinks(ctx, q, k, v, mask, NULL, scale, max_bias, logit_softcap);
}

struct sheaf_tensor *sheaf_flash_attn_sinks(struct sheaf_context *ctx, struct sheaf_tensor *q,
                                            struct sheaf_tensor *k, struct sheaf_tensor *v,
                                            struct sheaf_tensor *mask, struct sheaf_tensor *sinks,
                                            float scale, float max_bias, float logit_softcap) {
    if (missing(q, k) || missing(v, v)) return NULL;
    const char *name = "FLASH_ATTN_EXT";
    if (q->type != SHEAF_TYPE_F32 || !is_float_type(k->type) || !is_float_type(v->type))
        return refuse(name, q, k, "q must be f32, k and v of float types");
    if (q->ne[0] != k->ne[0])
        return refuse(name, q, k, "q and k must have the same head size (dimension 0)");
    if (k->ne[1] != v->ne[1] || k->ne[2] != v->ne[2] || k->ne[3] != v->ne[3])
        return refuse(name, k, v, "k [d, t, g, s] and v [e, t, g, s] must agree in t, g, s");
    if (!sheaf__divides(k->ne[2], q->ne[2]))
        return refuse(name, q, k, "the query heads must be a multiple of the K/V heads");
    if (q->ne[3] != k->ne[3]) return refuse(name, q, k, "dimension 3 must be equal");
    const int64_t scores[SHEAF_MAX_DIMS] = {k->ne[1], q->ne[1], q->ne[2], q->ne[3]};
    if (!fits_mask(name, q, mask, scores, max_bias,
                   "the mask is [t, >=n, divisor of the heads, divisor of s]") ||
        !fits_sinks(name, q, sinks))
        return NULL;
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_FLASH_ATTN_EXT, SHEAF_TYPE_F32,
                                  (int64_t[]){v->ne[0], q->ne[2], q->ne[1], q->ne[3]}, q, k);
    if (!t) return NULL;
    t->src[2] = v;
    sheaf__set_param_f32(t, 0, scale);
    sheaf__set_param_f32(t, 1, max_bias);
    sheaf__set_param_f32(t, 2, logit_softcap);
    t->src[3] = mask;
    t->src[4] = sinks;
    return t;
}
