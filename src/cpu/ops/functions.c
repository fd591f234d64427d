/* The functions of functions.h. Loops without calls are free of branches, so that compilers turn
 * them into vector code. */
#include "cpu/ops/functions.h"

#include <math.h>

#include "cpu/kernels/vec.h"
#include "tensor/access.h"

/* name: y[i] = f(x), x an element */
#define UNARY(name, f)                                                                             \
    static void name##_f32(int64_t n, const float *v, float *y) {                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float x = v[i];                                                                  \
            y[i] = f;                                                                              \
        }                                                                                          \
    }
/* the same with parameters p */
#define MAP(name, f)                                                                               \
    static void name##_f32(int64_t n, const float *v, const float *p, float *y) {                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float x = v[i];                                                                  \
            y[i] = f;                                                                              \
        }                                                                                          \
    }

static inline float hardsigmoid_of(float x) {
    const float y = (x + 3.0f) / 6.0f;
    return y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y;
}
static inline float xielu_of(float x, const float *p) {
    if (x > 0.0f) return p[1] * x * x + p[2] * x;
    return (expm1f(fminf(x, p[3])) - x) * p[0] + p[2] * x;
}
static inline float clamp_of(float x, float min, float max) {
    const float y = x < min ? min : x;
    return y > max ? max : y;
}

/* log(1 + exp(x)) without overflow: max(x, 0) + log(1 + t) with t = exp(-|x|), and log(1 + t) =
 * 2 atanh(t / (2 + t)), whose argument is at most 1/3: the series to the 15th power is exact to 2e-9. */
static inline float softplus_of(float x) {
    const float t = sheaf__expf(-fabsf(x)), s = t / (2.0f + t), q = s * s;
    float p = q * (1.0f / 15.0f) + 1.0f / 13.0f;
    p = p * q + 1.0f / 11.0f;
    p = p * q + 1.0f / 9.0f;
    p = p * q + 1.0f / 7.0f;
    p = p * q + 1.0f / 5.0f;
    p = p * q + 1.0f / 3.0f;
    return (x > 0.0f ? x : 0.0f) + 2.0f * (s + s * q * p);
}

UNARY(relu, x < 0.0f ? 0.0f : x)
UNARY(tanh, tanhf(x))
UNARY(sigmoid, sheaf__sigmoidf(x))
UNARY(neg, -x)
UNARY(exp, sheaf__expf(x))
UNARY(abs, fabsf(x))
UNARY(sgn, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x)
UNARY(step, x > 0.0f ? 1.0f : 0.0f)
UNARY(elu, x > 0.0f ? x : expm1f(x))
UNARY(gelu_quick, x *sheaf__sigmoidf(1.702f * x))
UNARY(gelu_erf, 0.5f * x * erfcf(-0.70710678118654752440f * x))
UNARY(hardswish, x *hardsigmoid_of(x))
UNARY(hardsigmoid, hardsigmoid_of(x))
UNARY(expm1, expm1f(x))
UNARY(softplus, softplus_of(x))
UNARY(floor, floorf(x))
UNARY(ceil, ceilf(x))
UNARY(round, roundf(x))
UNARY(trunc, truncf(x))
UNARY(sqr, x *x)
UNARY(sqrt, sqrtf(x))
UNARY(sin, sinf(x))
UNARY(cos, cosf(x))
UNARY(log, logf(x))
MAP(scale, x *p[0] + p[1])
MAP(clamp, clamp_of(x, p[0], p[1]))
MAP(leaky_relu, x > 0.0f ? x : x * p[0])
MAP(xielu, xielu_of(x, p))

/* NULL: a kernel, or one with parameters */
static const sheaf__cpu_unary_fn unary_fns[] = {
    [SHEAF_UNARY_OP_SILU] = NULL,
    [SHEAF_UNARY_OP_GELU] = NULL,
    [SHEAF_UNARY_OP_RELU] = relu_f32,
    [SHEAF_UNARY_OP_TANH] = tanh_f32,
    [SHEAF_UNARY_OP_SIGMOID] = sigmoid_f32,
    [SHEAF_UNARY_OP_NEG] = neg_f32,
    [SHEAF_UNARY_OP_EXP] = exp_f32,
    [SHEAF_UNARY_OP_ABS] = abs_f32,
    [SHEAF_UNARY_OP_SGN] = sgn_f32,
    [SHEAF_UNARY_OP_STEP] = step_f32,
    [SHEAF_UNARY_OP_ELU] = elu_f32,
    [SHEAF_UNARY_OP_GELU_QUICK] = gelu_quick_f32,
    [SHEAF_UNARY_OP_GELU_ERF] = gelu_erf_f32,
    [SHEAF_UNARY_OP_HARDSWISH] = hardswish_f32,
    [SHEAF_UNARY_OP_HARDSIGMOID] = hardsigmoid_f32,
    [SHEAF_UNARY_OP_EXPM1] = expm1_f32,
    [SHEAF_UNARY_OP_SOFTPLUS] = softplus_f32,
    [SHEAF_UNARY_OP_XIELU] = NULL,
    [SHEAF_UNARY_OP_FLOOR] = floor_f32,
    [SHEAF_UNARY_OP_CEIL] = ceil_f32,
    [SHEAF_UNARY_OP_ROUND] = round_f32,
    [SHEAF_UNARY_OP_TRUNC] = trunc_f32,
};
_Static_assert(sizeof unary_fns / sizeof *unary_fns == SHEAF_UNARY_OP_COUNT,
               "a unary op is missing");

static const struct {
    sheaf__cpu_unary_fn plain;
    sheaf__cpu_map_fn with;
} maps[SHEAF_OP_COUNT] = {
    [SHEAF_OP_SQR] = {.plain = sqr_f32},    [SHEAF_OP_SQRT] = {.plain = sqrt_f32},
    [SHEAF_OP_SIN] = {.plain = sin_f32},    [SHEAF_OP_COS] = {.plain = cos_f32},
    [SHEAF_OP_LOG] = {.plain = log_f32},    [SHEAF_OP_SCALE] = {.with = scale_f32},
    [SHEAF_OP_CLAMP] = {.with = clamp_f32}, [SHEAF_OP_LEAKY_RELU] = {.with = leaky_relu_f32},
};

static sheaf__cpu_unary_fn unary_of(const struct sheaf__cpu_kernels *kern, enum sheaf_unary_op op) {
    if (op == SHEAF_UNARY_OP_SILU) return kern->silu_f32;
    return op == SHEAF_UNARY_OP_GELU ? kern->gelu_f32 : unary_fns[op];
}

struct sheaf__cpu_function sheaf__cpu_function_of(const struct sheaf__cpu_kernels *kern,
                                                  const struct sheaf_tensor *node) {
    struct sheaf__cpu_function f = {.plain = maps[node->op].plain, .with = maps[node->op].with};
    const int first = node->op == SHEAF_OP_UNARY ? 1 : 0; /* behind the op's number */
    for (int i = 0; i < 4; i++) f.p[i] = sheaf__param_f32(node, first + i);
    if (node->op == SHEAF_OP_UNARY) {
        f.plain = unary_of(kern, sheaf_get_unary_op(node));
        if (!f.plain) f.with = xielu_f32;
    }
    return f;
}

/* ---- gated ---- */

static void swiglu_oai_f32(int64_t n, const float *a, const float *b, const float *p, float *y) {
    const float alpha = p[0], limit = p[1];
    for (int64_t i = 0; i < n; i++) {
        const float x = a[i] > limit ? limit : a[i];
        y[i] = x * sheaf__sigmoidf(alpha * x) * (clamp_of(b[i], -limit, limit) + 1.0f);
    }
}
static void swiglu_clamp_f32(int64_t n, const float *a, const float *b, const float *p, float *y) {
    const float limit = p[1];
    for (int64_t i = 0; i < n; i++) {
        const float x = a[i] > limit ? limit : a[i];
        y[i] = sheaf__siluf(x) * clamp_of(b[i], -limit, limit);
    }
}

static const struct {
    enum sheaf_unary_op gate;
    sheaf__cpu_gate_fn with;
} gates[] = {
    [SHEAF_GLU_OP_SWIGLU] = {.gate = SHEAF_UNARY_OP_SILU},
    [SHEAF_GLU_OP_GEGLU] = {.gate = SHEAF_UNARY_OP_GELU},
    [SHEAF_GLU_OP_REGLU] = {.gate = SHEAF_UNARY_OP_RELU},
    [SHEAF_GLU_OP_GEGLU_ERF] = {.gate = SHEAF_UNARY_OP_GELU_ERF},
    [SHEAF_GLU_OP_GEGLU_QUICK] = {.gate = SHEAF_UNARY_OP_GELU_QUICK},
    [SHEAF_GLU_OP_SWIGLU_OAI] = {.with = swiglu_oai_f32},
    [SHEAF_GLU_OP_SWIGLU_CLAMP] = {.with = swiglu_clamp_f32},
};
_Static_assert(sizeof gates / sizeof *gates == SHEAF_GLU_OP_COUNT, "a glu op is missing");

struct sheaf__cpu_gate sheaf__cpu_gate_of(const struct sheaf__cpu_kernels *kern,
                                          const struct sheaf_tensor *node) {
    const enum sheaf_glu_op op = sheaf_get_glu_op(node);
    struct sheaf__cpu_gate g = {.with = gates[op].with};
    if (!g.with) g.plain = unary_of(kern, gates[op].gate);
    for (int i = 0; i < 2; i++) g.p[i] = sheaf__param_f32(node, 2 + i);
    return g;
}
