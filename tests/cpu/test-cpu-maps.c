/* Ops of the CPU backend that compute each element from one element of each operand: UNARY, GLU,
 * and those with a name of their own, against their formulas in double (cpu_cases.h). */
#include "cpu_cases.h"

static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double hold(double x, double lo, double hi) { return fmin(hi, fmax(lo, x)); }

static double unary(const T *t, double x) {
    switch (sheaf_get_unary_op(t)) {
    case SHEAF_UNARY_OP_SILU:
        return x * logistic(x);
    case SHEAF_UNARY_OP_ABS:
        return fabs(x);
    case SHEAF_UNARY_OP_SGN:
        return (x > 0) - (x < 0);
    case SHEAF_UNARY_OP_STEP:
        return x > 0;
    case SHEAF_UNARY_OP_ELU:
        return x > 0 ? x : exp(x) - 1;
    case SHEAF_UNARY_OP_GELU_QUICK:
        return x * logistic(1.702 * x);
    case SHEAF_UNARY_OP_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case SHEAF_UNARY_OP_HARDSWISH:
        return x * hold((x + 3) / 6, 0, 1);
    case SHEAF_UNARY_OP_HARDSIGMOID:
        return hold((x + 3) / 6, 0, 1);
    case SHEAF_UNARY_OP_EXPM1:
        return exp(x) - 1;
    case SHEAF_UNARY_OP_SOFTPLUS:
        return log(1 + exp(x));
    case SHEAF_UNARY_OP_XIELU:
        return x > 0 ? param(t, 2) * x * x + param(t, 3) * x
                     : param(t, 1) * (exp(fmin(x, param(t, 4))) - 1 - x) + param(t, 3) * x;
    case SHEAF_UNARY_OP_FLOOR:
        return floor(x);
    case SHEAF_UNARY_OP_CEIL:
        return ceil(x);
    case SHEAF_UNARY_OP_ROUND:
        return x < 0 ? -floor(0.5 - x) : floor(x + 0.5);
    case SHEAF_UNARY_OP_TRUNC:
        return x < 0 ? ceil(x) : floor(x);
    default:
        cr_assert_fail("no meaning for %s", sheaf_op_desc(t));
        return 0;
    }
}

static double gated(const T *t, double a, double b) {
    const double x = fmin(a, param(t, 3)), y = hold(b, -param(t, 3), param(t, 3));
    switch (sheaf_get_glu_op(t)) {
    case SHEAF_GLU_OP_SWIGLU:
        return a * logistic(a) * b;
    case SHEAF_GLU_OP_GEGLU_ERF:
        return 0.5 * a * (1 + erf(a / sqrt(2))) * b;
    case SHEAF_GLU_OP_GEGLU_QUICK:
        return a * logistic(1.702 * a) * b;
    case SHEAF_GLU_OP_SWIGLU_OAI:
        return x * logistic(param(t, 2) * x) * (y + 1);
    case SHEAF_GLU_OP_SWIGLU_CLAMP:
        return x * logistic(x) * y;
    default:
        cr_assert_fail("no meaning for %s", sheaf_op_desc(t));
        return 0;
    }
}

static double meaning(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0], *b = t->src[1];
    if (t->op == SHEAF_OP_GLU) {
        const int64_t half = t->op_params[1] ? 0 : t->ne[0];
        return gated(t, value(a, b ? i0 : i0 + t->ne[0] - half, i1, i2, i3),
                     b ? value(b, i0, i1, i2, i3) : value(a, i0 + half, i1, i2, i3));
    }
    const double x = value(a, i0, i1, i2, i3);
    switch (t->op) {
    case SHEAF_OP_UNARY:
        return unary(t, x);
    case SHEAF_OP_SQR:
        return x * x;
    case SHEAF_OP_SQRT:
        return sqrt(x);
    case SHEAF_OP_SIN:
        return sin(x);
    case SHEAF_OP_COS:
        return cos(x);
    case SHEAF_OP_LOG:
        return log(x);
    case SHEAF_OP_CLAMP:
        return hold(x, param(t, 0), param(t, 1));
    case SHEAF_OP_LEAKY_RELU:
        return x > 0 ? x : param(t, 0) * x;
    default:
        cr_assert_fail("no meaning for %s", sheaf_op_name(t->op));
        return 0;
    }
}

static T *parted(C *c, enum sheaf_glu_op op, T *a) { return sheaf_glu(c, a, op, true); }

#define WIDE(type)     turned(c, type, "wide", 130, 7, 2, 1)
#define U(K, name, error) K(name, error, sheaf_unary(c, WIDE(F32), SHEAF_UNARY_OP_##name))
/* clang-format off */
#define CASES(K)                                                                                   \
    U(K, ABS, 0) U(K, SGN, 0) U(K, STEP, 0) U(K, ELU, 3e-7) U(K, GELU_QUICK, 4e-7)                 \
    U(K, GELU_ERF, 4e-7) U(K, HARDSWISH, 3e-7) U(K, HARDSIGMOID, 2e-7) U(K, EXPM1, 3e-7)           \
    U(K, SOFTPLUS, 3e-7) U(K, FLOOR, 0) U(K, CEIL, 0) U(K, ROUND, 0) U(K, TRUNC, 0)                \
    K(xielu, 4e-7, sheaf_xielu(c, WIDE(F32), 0.8f, 0.3f, 0.5f, -1e-6f))                            \
    K(xielu_near, 4e-7, sheaf_xielu(c, X(F32, 600, 3, 1, 1), -0.8f, 25.0f, 0.25f, 0.5f))           \
    K(silu_f16, 1e-3, sheaf_silu(c, WIDE(F16)))                                                    \
    K(gelu_erf_bf16, 8e-3, sheaf_unary(c, WIDE(BF16), SHEAF_UNARY_OP_GELU_ERF))                    \
    K(sqr_f16, 1e-3, sheaf_sqr(c, X(F16, 130, 7, 1, 1)))                                           \
    K(sqrt, 1e-7, sheaf_sqrt(c, turned(c, F32, "one+", 130, 7, 2, 1)))                             \
    K(sin, 2e-7, sheaf_sin(c, WIDE(F32)))                                                          \
    K(cos, 2e-7, sheaf_cos(c, WIDE(F32)))                                                          \
    K(log, 2e-7, sheaf_ln(c, turned(c, F32, "one+", 1300, 2, 2, 1)))                               \
    K(clamp, 0, sheaf_clamp(c, WIDE(F32), -1.5f, 3.25f))                                           \
    K(clamp_one_side, 0, sheaf_clamp(c, WIDE(F32), 2.0f, INFINITY))                                \
    K(clamp_f16, 0, sheaf_clamp(c, WIDE(F16), -1.5f, 3.25f))                                       \
    K(leaky_relu, 1e-7, sheaf_leaky_relu(c, WIDE(F32), 0.125f))                                    \
    K(geglu_erf, 6e-7, sheaf_glu_split(c, WIDE(F32), TURNED(F32, 130, 7, 2, 1), SHEAF_GLU_OP_GEGLU_ERF))\
    K(geglu_erf_parts, 6e-7, parted(c, SHEAF_GLU_OP_GEGLU_ERF, L(F32, "wide", 1200, 3, 1, 1)))     \
    K(geglu_quick, 6e-7, sheaf_glu(c, WIDE(F32), SHEAF_GLU_OP_GEGLU_QUICK, false))                 \
    K(swiglu_oai, 6e-7, sheaf_swiglu_oai(c, WIDE(F32), WIDE(F32), 1.702f, 7.0f))                   \
    K(swiglu_oai_big, 6e-7, sheaf_swiglu_oai(c, L(F32, "wide", 2880, 3, 1, 1), L(F32, "wide", 2880, 3, 1, 1), 1.702f, 7.0f))\
    K(swiglu_clamp, 6e-7, sheaf_swiglu_clamp(c, WIDE(F32), WIDE(F32), 3.0f))                       \
    K(swiglu_f16, 2e-3, sheaf_swiglu_split(c, X(F16, 130, 7, 1, 1), X(F16, 130, 7, 1, 1)))
/* clang-format on */

MAKE_CASES

Test(cpu_maps, every_case) { run_cpu_cases(cases, N_CASES, meaning); }

/* Where an exponential overflows, the result does not. */
static T *build_far(C *c) { return sheaf_unary(c, X(F32, 6, 1, 1, 1), SHEAF_UNARY_OP_SOFTPLUS); }
static T *build_far_oai(C *c) {
    return sheaf_swiglu_oai(c, X(F32, 6, 1, 1, 1), X(F32, 6, 1, 1, 1), 1.702f, 7.0f);
}
static T *build_nan_clamp(C *c) { return sheaf_clamp(c, X(F32, 6, 1, 1, 1), -1, 1); }
Test(cpu_maps, far_values_and_nan) {
    sheaf_backend_t backend = new_backend(1);
    const float in[6] = {-INFINITY, -1000, 0, 1000, INFINITY, NAN};
    const float soft[5] = {0, 0, 0.693147182f, 1000, INFINITY}, held[5] = {-1, -1, 0, 1, 1};
    T *(*const builds[])(C *) = {build_far, build_nan_clamp};
    const float *const want[] = {soft, held};
    for (int k = 0; k < 2; k++) {
        struct run r = prepare(backend, builds[k]);
        memcpy(r.node->src[0]->data, in, sizeof in);
        cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
        const float *out = r.node->data;
        for (int i = 0; i < 5; i++)
            cr_assert(out[i] == want[k][i] || fabsf(out[i] - want[k][i]) < 1e-6f, "%d %d: %g", k, i,
                      (double)out[i]);
        cr_assert(isnan(out[5]));
        finish(&r);
    }
    struct run r = prepare(backend, build_far_oai);
    memcpy(r.node->src[0]->data, in, sizeof in);
    ((float *)r.node->src[0]->data)[0] = -1e6f; /* -inf * 0 is NaN, as it is for silu */
    memcpy(r.node->src[1]->data, (float[6]){50, 2, 3, 50, -50, 1}, sizeof in);
    cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
    const float *out = r.node->data;
    cr_assert(out[0] == 0 && out[1] == 0 && out[2] == 0);
    cr_assert_float_eq(out[3] / 56, 1, 1e-4);
    cr_assert_float_eq(out[4] / -42, 1, 1e-4);
    cr_assert(isnan(out[5]));
    finish(&r);
    sheaf_backend_free(backend);
}
