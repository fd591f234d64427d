/* Constructors of ops that compute each element from the same one of their operand, and of those
 * that only place elements: FILL, REPEAT, PAD. */
#include "tensor/construct.h"

#include <math.h>

/* ---- of each element ---- */

struct sheaf_tensor *sheaf_sqr(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return map_plain(ctx, SHEAF_OP_SQR, a);
}
struct sheaf_tensor *sheaf_sqrt(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return map_plain(ctx, SHEAF_OP_SQRT, a);
}
struct sheaf_tensor *sheaf_sin(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return map_plain(ctx, SHEAF_OP_SIN, a);
}
struct sheaf_tensor *sheaf_cos(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return map_plain(ctx, SHEAF_OP_COS, a);
}
struct sheaf_tensor *sheaf_ln(struct sheaf_context *ctx, struct sheaf_tensor *a) {
    return map_plain(ctx, SHEAF_OP_LOG, a);
}

struct sheaf_tensor *sheaf_clamp(struct sheaf_context *ctx, struct sheaf_tensor *a, float min,
                                 float max) {
    struct sheaf_tensor *t = map_plain(ctx, SHEAF_OP_CLAMP, a);
    if (!t) return NULL;
    if (!(min <= max)) return refuse("CLAMP", a, NULL, "min must not be above max");
    sheaf__set_param_f32(t, 0, min);
    sheaf__set_param_f32(t, 1, max);
    return t;
}

struct sheaf_tensor *sheaf_leaky_relu(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      float slope) {
    struct sheaf_tensor *t = map_plain(ctx, SHEAF_OP_LEAKY_RELU, a);
    if (t) sheaf__set_param_f32(t, 0, slope);
    return t;
}

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

struct sheaf_tensor *sheaf_xielu(struct sheaf_context *ctx, struct sheaf_tensor *a, float alpha_n,
                                 float alpha_p, float beta, float eps) {
    struct sheaf_tensor *t = map_plain(ctx, SHEAF_OP_UNARY, a);
    if (!t) return NULL;
    t->op_params[0] = SHEAF_UNARY_OP_XIELU;
    sheaf__set_param_f32(t, 1, beta + softplus(alpha_n));
    sheaf__set_param_f32(t, 2, softplus(alpha_p));
    sheaf__set_param_f32(t, 3, beta);
    sheaf__set_param_f32(t, 4, eps);
    return t;
}

/* ---- places of elements ---- */

struct sheaf_tensor *sheaf_fill(struct sheaf_context *ctx, struct sheaf_tensor *like, float value) {
    if (missing(like, like)) return NULL;
    if (!is_plain_type(like->type))
        return refuse("FILL", like, NULL, "the tensor must be f32, f16 or bf16");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_FILL, like->type, like->ne, NULL, NULL);
    if (t) sheaf__set_param_f32(t, 0, value);
    return t;
}

static struct sheaf_tensor *repeat(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   const int64_t ne[SHEAF_MAX_DIMS]) {
    if (sheaf_is_quantized(a->type))
        return refuse("REPEAT", a, NULL, "the operand must not be of a block type");
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (ne[i] < 0 || (a->ne[i] == 0 ? ne[i] != 0 : ne[i] % a->ne[i] != 0))
            return refuse("REPEAT", a, NULL,
                          "the new shape's dimensions must be multiples of the operand's");
    }
    return make(ctx, SHEAF_OP_REPEAT, a->type, ne, a, NULL);
}

struct sheaf_tensor *sheaf_repeat(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                  struct sheaf_tensor *shape_of) {
    return missing(a, shape_of) ? NULL : repeat(ctx, a, shape_of->ne);
}
struct sheaf_tensor *sheaf_repeat_4d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                     int64_t ne1, int64_t ne2, int64_t ne3) {
    return missing(a, a) ? NULL : repeat(ctx, a, (int64_t[]){ne0, ne1, ne2, ne3});
}

struct sheaf_tensor *sheaf_pad(struct sheaf_context *ctx, struct sheaf_tensor *a, const int left[4],
                               const int right[4], bool circular) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32) return refuse("PAD", a, NULL, "the operand must be f32");
    int64_t ne[SHEAF_MAX_DIMS];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        const int64_t more = (int64_t)left[i] + right[i];
        if (left[i] < 0 || right[i] < 0)
            return refuse("PAD", a, NULL, "the numbers of added elements must not be negative");
        if (circular && more > 0 && a->ne[i] == 0)
            return refuse("PAD", a, NULL, "an empty dimension has no elements to repeat");
        if (__builtin_add_overflow(a->ne[i], more, &ne[i]))
            return refuse("PAD", a, NULL, "the padded dimension overflows");
    }
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_PAD, SHEAF_TYPE_F32, ne, a, NULL);
    for (int i = 0; i < SHEAF_MAX_DIMS && t; i++) {
        t->op_params[2 * i] = left[i];
        t->op_params[2 * i + 1] = right[i];
    }
    if (t) t->op_params[8] = circular;
    return t;
}
