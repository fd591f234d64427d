/* Functions of one element or two: UNARY, GLU, and ops that map an element, as cpu/ops/functions.c has
 * them. */
#ifndef SHEAF_CUDA_FUNCTIONS_CUH
#define SHEAF_CUDA_FUNCTIONS_CUH

#include "cuda/kernel.cuh"
#include "tensor/access.h"

/* Which one, and its parameters: of GLU and UNARY the number, else the op. */
struct Function {
    int op, number;
    float p[4];
};

static inline Function function_of(const struct sheaf_tensor *node) {
    const bool unary = node->op == SHEAF_OP_UNARY, glu = node->op == SHEAF_OP_GLU;
    Function f;
    f.op = (int)node->op;
    f.number = node->op_params[0];
    for (int i = 0; i < 4; i++) f.p[i] = sheaf__param_f32(node, (glu ? 2 : unary ? 1 : 0) + i);
    return f;
}

HD float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
/* By its tanh approximation, as x * sigmoid(2u). */
HD float gelu_of(float x) {
    float u = 0.79788456080286535588f * x * (1.0f + 0.044715f * x * x);
    return x / (1.0f + expf(-2.0f * u));
}
HD float relu_of(float x) { return x < 0.0f ? 0.0f : x; }
HD float silu_of(float x) { return x / (1.0f + expf(-x)); }
HD float gelu_erf_of(float x) { return 0.5f * x * erfcf(-0.70710678118654752440f * x); }
HD float gelu_quick_of(float x) { return x * sigmoid_of(1.702f * x); }
HD float clamp_of(float x, float min, float max) {
    const float y = x < min ? min : x;
    return y > max ? max : y;
}
HD float hardsigmoid_of(float x) { return clamp_of((x + 3.0f) / 6.0f, 0.0f, 1.0f); }
HD float xielu_of(float x, const float *p) {
    if (x > 0.0f) return p[1] * x * x + p[2] * x;
    return (expm1f(fminf(x, p[3])) - x) * p[0] + p[2] * x;
}

HD float unary_of(const Function &f, float x) {
    switch (f.number) {
    case SHEAF_UNARY_OP_SILU:
        return silu_of(x);
    case SHEAF_UNARY_OP_GELU:
        return gelu_of(x);
    case SHEAF_UNARY_OP_RELU:
        return relu_of(x);
    case SHEAF_UNARY_OP_TANH:
        return tanhf(x);
    case SHEAF_UNARY_OP_SIGMOID:
        return sigmoid_of(x);
    case SHEAF_UNARY_OP_NEG:
        return -x;
    case SHEAF_UNARY_OP_ABS:
        return fabsf(x);
    case SHEAF_UNARY_OP_SGN:
        return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
    case SHEAF_UNARY_OP_STEP:
        return x > 0.0f ? 1.0f : 0.0f;
    case SHEAF_UNARY_OP_ELU:
        return x > 0.0f ? x : expm1f(x);
    case SHEAF_UNARY_OP_GELU_QUICK:
        return gelu_quick_of(x);
    case SHEAF_UNARY_OP_GELU_ERF:
        return gelu_erf_of(x);
    case SHEAF_UNARY_OP_HARDSWISH:
        return x * hardsigmoid_of(x);
    case SHEAF_UNARY_OP_HARDSIGMOID:
        return hardsigmoid_of(x);
    case SHEAF_UNARY_OP_EXPM1:
        return expm1f(x);
    case SHEAF_UNARY_OP_SOFTPLUS:
        return x > 20.0f ? x : log1pf(expf(x));
    case SHEAF_UNARY_OP_XIELU:
        return xielu_of(x, f.p);
    case SHEAF_UNARY_OP_FLOOR:
        return floorf(x);
    case SHEAF_UNARY_OP_CEIL:
        return ceilf(x);
    case SHEAF_UNARY_OP_ROUND:
        return roundf(x);
    case SHEAF_UNARY_OP_TRUNC:
        return truncf(x);
    default:
        return expf(x);
    }
}

/* Of UNARY and of the ops that map an element. */
HD float map_of(const Function &f, float x) {
    switch (f.op) {
    case SHEAF_OP_SCALE:
        return x * f.p[0] + f.p[1];
    case SHEAF_OP_SQR:
        return x * x;
    case SHEAF_OP_SQRT:
        return sqrtf(x);
    case SHEAF_OP_SIN:
        return sinf(x);
    case SHEAF_OP_COS:
        return cosf(x);
    case SHEAF_OP_LOG:
        return logf(x);
    case SHEAF_OP_CLAMP:
        return clamp_of(x, f.p[0], f.p[1]);
    case SHEAF_OP_LEAKY_RELU:
        return x > 0.0f ? x : x * f.p[0];
    default:
        return unary_of(f, x);
    }
}

HD float glu_of(const Function &f, float a, float b) {
    const float limit = f.p[1], x = a > limit ? limit : a;
    switch (f.number) {
    case SHEAF_GLU_OP_SWIGLU:
        return silu_of(a) * b;
    case SHEAF_GLU_OP_GEGLU:
        return gelu_of(a) * b;
    case SHEAF_GLU_OP_GEGLU_ERF:
        return gelu_erf_of(a) * b;
    case SHEAF_GLU_OP_GEGLU_QUICK:
        return gelu_quick_of(a) * b;
    case SHEAF_GLU_OP_SWIGLU_OAI:
        return x * sigmoid_of(f.p[0] * x) * (clamp_of(b, -limit, limit) + 1.0f);
    case SHEAF_GLU_OP_SWIGLU_CLAMP:
        return silu_of(x) * clamp_of(b, -limit, limit);
    default:
        return relu_of(a) * b;
    }
}

#endif
