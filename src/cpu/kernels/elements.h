/* Rows of elements: arithmetic of two rows, functions of one element and of two, and places in an
 * order. UNARY, GLU and the ops of cpu/ops/elementwise.c are loops over chunks around these;
 * functions that need the C library are in cpu/ops/functions.c.
 *
 * Every table compiles this file for its instruction set. Loops are free of branches and calls, so
 * that compilers turn them into vector code, and products are never contracted: all tables give the
 * same bits. */
#ifndef SHEAF_CPU_KERNELS_ELEMENTS_H
#define SHEAF_CPU_KERNELS_ELEMENTS_H

#include <math.h>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"

/* ---- two rows ---- */

#define BINARY(name, f)                                                                            \
    static void each_##name(int64_t n, const float *a, const float *b, float *y) {                 \
        for (int64_t i = 0; i < n; i++) y[i] = f;                                                  \
    }
BINARY(add, a[i] + b[i])
BINARY(sub, a[i] - b[i])
BINARY(mul, a[i] * b[i])
BINARY(div, a[i] / b[i])

/* ---- one element ---- */

/* name: y[i] = f(x), x an element */
#define UNARY(name, f)                                                                             \
    static void each_##name(int64_t n, const float *v, float *y) {                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float x = v[i];                                                                  \
            y[i] = f;                                                                              \
        }                                                                                          \
    }
/* the same with parameters p */
#define MAP(name, f)                                                                               \
    static void each_##name(int64_t n, const float *v, const float *params, float *y) {            \
        const float p[2] = {params[0], params[1]};                                                 \
        (void)p;                                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float x = v[i];                                                                  \
            y[i] = f;                                                                              \
        }                                                                                          \
    }

static inline float hardsigmoid_of(float x) {
    const float y = (x + 3.0f) / 6.0f;
    return y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y;
}
static inline float clamp_of(float x, float min, float max) {
    const float y = x < min ? min : x;
    return y > max ? max : y;
}

/* log(1 + exp(x)) without overflow: max(x, 0) + log(1 + t) with t = exp(-|x|), and log(1 + t) =
 * 2 atanh(t / (2 + t)), whose argument is at most 1/3: the series to the 15th power is exact to
 * 2e-9. */
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
UNARY(tanh, sheaf__tanhf(x))
UNARY(sigmoid, sheaf__sigmoidf(x))
UNARY(neg, -x)
UNARY(exp, sheaf__expf(x))
UNARY(abs, fabsf(x))
UNARY(sgn, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x)
UNARY(step, x > 0.0f ? 1.0f : 0.0f)
UNARY(gelu_quick, x *sheaf__sigmoidf(1.702f * x))
UNARY(hardswish, x *hardsigmoid_of(x))
UNARY(hardsigmoid, hardsigmoid_of(x))
UNARY(softplus, softplus_of(x))
UNARY(sqr, x *x)
UNARY(sqrt, sqrtf(x))
MAP(scale, x *p[0] + p[1])
MAP(clamp, clamp_of(x, p[0], p[1]))
MAP(leaky_relu, x > 0.0f ? x : x * p[0])

/* ---- gated ---- */

static void each_swiglu_oai(int64_t n, const float *a, const float *b, const float *p, float *y) {
    const float alpha = p[0], limit = p[1];
    for (int64_t i = 0; i < n; i++) {
        const float x = a[i] > limit ? limit : a[i];
        y[i] = x * sheaf__sigmoidf(alpha * x) * (clamp_of(b[i], -limit, limit) + 1.0f);
    }
}
static void each_swiglu_clamp(int64_t n, const float *a, const float *b, const float *p, float *y) {
    const float limit = p[1];
    for (int64_t i = 0; i < n; i++) {
        const float x = a[i] > limit ? limit : a[i];
        y[i] = sheaf__siluf(x) * clamp_of(b[i], -limit, limit);
    }
}

/* ---- places in an order ---- */

/* As many keys at a time as registers hold with their counts; not 16 with AVX-512, whose
 * comparisons give masks, not vectors to add. */
#if defined(__AVX__)
enum { KEYS_WIDE = 8 };
#else
enum { KEYS_WIDE = 4 };
#endif
enum { KEYS_PARTS = 4, KEYS_TOGETHER = KEYS_WIDE * KEYS_PARTS };
typedef int32_t keys_vec __attribute__((vector_size(KEYS_WIDE * sizeof(int32_t))));

/* For KEYS_TOGETHER of n keys, how many of all are below each. The counts have names since gcc 12
 * keeps an array of them in memory, where each waits for its store (AVX2, 128 keys: 1.8 us instead
 * of 0.5). */
static inline void count_below(int64_t n, const int32_t *keys, const int32_t *of, int32_t *below) {
    keys_vec key[KEYS_PARTS], a = {0}, b = {0}, c = {0}, d = {0};
    memcpy(key, of, sizeof key);
    for (int64_t j = 0; j < n; j++) {
        const keys_vec other = keys[j] - (keys_vec){0}; /* in all lanes */
        a -= (keys_vec)(other < key[0]);
        b -= (keys_vec)(other < key[1]);
        c -= (keys_vec)(other < key[2]);
        d -= (keys_vec)(other < key[3]);
    }
    memcpy(below, &a, sizeof a);
    memcpy(below + KEYS_WIDE, &b, sizeof b);
    memcpy(below + 2 * KEYS_WIDE, &c, sizeof c);
    memcpy(below + 3 * KEYS_WIDE, &d, sizeof d);
}

static void each_below(int64_t n, const int32_t *keys, int32_t *below) {
    int64_t i = 0;
    for (; i + KEYS_TOGETHER <= n; i += KEYS_TOGETHER) count_below(n, keys, keys + i, below + i);
    if (i == n) return;
    int32_t rest[KEYS_TOGETHER] = {0}, counts[KEYS_TOGETHER];
    memcpy(rest, keys + i, (size_t)(n - i) * sizeof *rest);
    count_below(n, keys, rest, counts);
    memcpy(below + i, counts, (size_t)(n - i) * sizeof *counts);
}

/* ---- the part of a table ---- */

#define ELEMENTS                                                                                   \
    {                                                                                              \
        .add = each_add, .sub = each_sub, .mul = each_mul, .div = each_div, .sqr = each_sqr,       \
        .sqrt = each_sqrt, .scale = each_scale, .clamp = each_clamp,                               \
        .leaky_relu = each_leaky_relu, .swiglu_oai = each_swiglu_oai,                              \
        .swiglu_clamp = each_swiglu_clamp, .below = each_below,                                    \
        .unary = {                                                                                 \
            [SHEAF_UNARY_OP_RELU] = each_relu,                                                     \
            [SHEAF_UNARY_OP_TANH] = each_tanh,                                                     \
            [SHEAF_UNARY_OP_SIGMOID] = each_sigmoid,                                               \
            [SHEAF_UNARY_OP_NEG] = each_neg,                                                       \
            [SHEAF_UNARY_OP_EXP] = each_exp,                                                       \
            [SHEAF_UNARY_OP_ABS] = each_abs,                                                       \
            [SHEAF_UNARY_OP_SGN] = each_sgn,                                                       \
            [SHEAF_UNARY_OP_STEP] = each_step,                                                     \
            [SHEAF_UNARY_OP_GELU_QUICK] = each_gelu_quick,                                         \
            [SHEAF_UNARY_OP_HARDSWISH] = each_hardswish,                                           \
            [SHEAF_UNARY_OP_HARDSIGMOID] = each_hardsigmoid,                                       \
            [SHEAF_UNARY_OP_SOFTPLUS] = each_softplus,                                             \
        },                                                                                         \
    }

#undef BINARY
#undef UNARY
#undef MAP

#endif
