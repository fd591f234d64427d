/* The functions of functions.h: those that call the C library, one element at a time; the others
 * are kernels (cpu/kernels/elements.h). */
#include "cpu/ops/functions.h"

#include <math.h>

#include "tensor/access.h"

/* name: y[i] = f(x), x an element */
#define UNARY(name, f)                                                                             \
    static void name##_f32(int64_t n, const float *v, float *y) {                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float x = v[i];                                                                  \
            y[i] = f;                                                                              \
        }                                                                                          \
    }

static inline float xielu_of(float x, const float *p) {
    if (x > 0.0f) return p[1] * x * x + p[2] * x;
    return (expm1f(fminf(x, p[3])) - x) * p[0] + p[2] * x;
}

UNARY(elu, x > 0.0f ? x : expm1f(x))
UNARY(gelu_erf, 0.5f * x * erfcf(-0.70710678118654752440f * x))
UNARY(expm1, expm1f(x))
UNARY(floor, floorf(x))
UNARY(ceil, ceilf(x))
UNARY(round, roundf(x))
UNARY(trunc, truncf(x))
UNARY(sin, sinf(x))
UNARY(cos, cosf(x))
UNARY(log, logf(x))
static void xielu_f32(int64_t n, const float *v, const float *p, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = xielu_of(v[i], p);
}

/* NULL: a kernel, or XIELU, which has parameters */
_Static_assert(SHEAF_UNARY_OP_COUNT == 22 && SHEAF_GLU_OP_COUNT == 7,
               "a new one is here or in kernels/elements.h");
static const sheaf__cpu_unary_fn unary_fns[SHEAF_UNARY_OP_COUNT] = {
    [SHEAF_UNARY_OP_ELU] = elu_f32,     [SHEAF_UNARY_OP_GELU_ERF] = gelu_erf_f32,
    [SHEAF_UNARY_OP_EXPM1] = expm1_f32, [SHEAF_UNARY_OP_FLOOR] = floor_f32,
    [SHEAF_UNARY_OP_CEIL] = ceil_f32,   [SHEAF_UNARY_OP_ROUND] = round_f32,
    [SHEAF_UNARY_OP_TRUNC] = trunc_f32,
};

static sheaf__cpu_unary_fn unary_of(const struct sheaf__cpu_kernels *kern, enum sheaf_unary_op op) {
    if (op == SHEAF_UNARY_OP_SILU) return kern->silu_f32;
    if (op == SHEAF_UNARY_OP_GELU) return kern->gelu_f32;
    return kern->elements.unary[op] ? kern->elements.unary[op] : unary_fns[op];
}

static sheaf__cpu_unary_fn plain_of(const struct sheaf__cpu_kernels *kern, enum sheaf_op op) {
    switch (op) {
    case SHEAF_OP_SQR:
        return kern->elements.sqr;
    case SHEAF_OP_SQRT:
        return kern->elements.sqrt;
    case SHEAF_OP_SIN:
        return sin_f32;
    case SHEAF_OP_COS:
        return cos_f32;
    case SHEAF_OP_LOG:
        return log_f32;
    default:
        return NULL;
    }
}

static sheaf__cpu_map_fn map_of(const struct sheaf__cpu_kernels *kern, enum sheaf_op op) {
    switch (op) {
    case SHEAF_OP_SCALE:
        return kern->elements.scale;
    case SHEAF_OP_CLAMP:
        return kern->elements.clamp;
    case SHEAF_OP_LEAKY_RELU:
        return kern->elements.leaky_relu;
    default:
        return xielu_f32;
    }
}

struct sheaf__cpu_function sheaf__cpu_function_of(const struct sheaf__cpu_kernels *kern,
                                                  const struct sheaf_tensor *node) {
    const bool unary = node->op == SHEAF_OP_UNARY;
    struct sheaf__cpu_function f = {.plain = unary ? unary_of(kern, sheaf_get_unary_op(node))
                                                   : plain_of(kern, node->op)};
    if (!f.plain) f.with = map_of(kern, node->op);
    for (int i = 0; i < 4; i++) /* of UNARY behind the op's number */
        f.p[i] = sheaf__param_f32(node, unary + i);
    return f;
}

/* ---- gated ---- */

static const enum sheaf_unary_op gates[] = {
    [SHEAF_GLU_OP_REGLU] = SHEAF_UNARY_OP_RELU,
    [SHEAF_GLU_OP_GEGLU] = SHEAF_UNARY_OP_GELU,
    [SHEAF_GLU_OP_GEGLU_ERF] = SHEAF_UNARY_OP_GELU_ERF,
    [SHEAF_GLU_OP_GEGLU_QUICK] = SHEAF_UNARY_OP_GELU_QUICK,
};

struct sheaf__cpu_gate sheaf__cpu_gate_of(const struct sheaf__cpu_kernels *kern,
                                          const struct sheaf_tensor *node) {
    const enum sheaf_glu_op op = sheaf_get_glu_op(node);
    struct sheaf__cpu_gate g = {.p = {sheaf__param_f32(node, 2), sheaf__param_f32(node, 3)}};
    switch (op) {
    case SHEAF_GLU_OP_SWIGLU:
        g.both = kern->swiglu_f32;
        break;
    case SHEAF_GLU_OP_SWIGLU_OAI:
        g.with = kern->elements.swiglu_oai;
        break;
    case SHEAF_GLU_OP_SWIGLU_CLAMP:
        g.with = kern->elements.swiglu_clamp;
        break;
    default:
        g.plain = unary_of(kern, gates[op]);
    }
    return g;
}
