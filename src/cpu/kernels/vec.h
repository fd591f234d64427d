/* Branch-free math that compilers vectorise in a loop, and sums in lanes.
 *
 * The results are the same for every vector width: products are never contracted (the build says
 * -ffp-contract=off), and sums run in a fixed number of lanes that are added in a fixed order. */
#ifndef SHEAF_CPU_KERNELS_VEC_H
#define SHEAF_CPU_KERNELS_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* exp to about 1 ulp; below -87.3 it is 0, NaN stays NaN. Cody and Waite's reduction by ln 2 in two
 * parts, polynomial with the coefficients of expf in S. Moshier's Cephes. */
static inline float sheaf__expf(float x) {
    const float lo = -87.33654f, hi = 88.72283f;
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float c = x < lo ? lo : x;
    c = c > hi ? hi : c;
    float z = c * 1.44269504f + magic;
    float n = z - magic;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    /* 2^n as a product of two, so that n = 128 does not overflow before y < 1 is applied */
    uint32_t bits;
    memcpy(&bits, &z, sizeof bits);
    int32_t e = (int32_t)(bits - 0x4B400000u);
    int32_t half = e >> 1;
    uint32_t b1 = (uint32_t)(half + 127) << 23, b2 = (uint32_t)(e - half + 127) << 23;
    float s1, s2;
    memcpy(&s1, &b1, sizeof s1);
    memcpy(&s2, &b2, sizeof s2);
    y = y * s1 * s2;
    y = x < lo ? 0.0f : y;
    return x > hi ? __builtin_inff() : y;
}

static inline float sheaf__sigmoidf(float x) { return 1.0f / (1.0f + sheaf__expf(-x)); }
static inline float sheaf__siluf(float x) { return x / (1.0f + sheaf__expf(-x)); }
/* GELU by its tanh approximation. x * sigmoid(2u) is the same value as x/2 * (1 + tanh(u)) without
 * the cancellation on the negative side. */
static inline float sheaf__geluf(float x) {
    float u = 0.79788456080286535588f * x * (1.0f + 0.044715f * x * x);
    return x / (1.0f + sheaf__expf(-2.0f * u));
}

/* tanh to about 2 ulp. Near 0, Cephes' polynomial of tanhf; elsewhere 1 - 2 / (exp(2 |x|) + 1). */
static inline float sheaf__tanhf(float x) {
    const float a = __builtin_fabsf(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const float near = a + a * z * p, far = 1.0f - 2.0f / (sheaf__expf(2.0f * a) + 1.0f);
    return __builtin_copysignf(a < 0.625f ? near : far, x);
}

/* sin and cos of an angle in radians, |t| < 2^30: reduced in double (a position times a frequency
 * has more digits than a float), then Cephes' polynomials for sinf and cosf on [-pi/4, pi/4]. */
static inline void sheaf__sincosf(double t, float *s, float *c) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    double z = t * 0.63661977236758134308 + magic;
    double n = z - magic;
    double rd = (t - n * 1.5707963267341256142) - n * 6.0771005065061922e-11;
    float r = (float)rd, r2 = r * r;
    float sn = ((-1.9515295891e-4f * r2 + 8.3321608736e-3f) * r2 - 1.6666654611e-1f) * r2 * r + r;
    float cs = ((2.443315711809948e-5f * r2 - 1.388731625493765e-3f) * r2 + 4.166664568298827e-2f) *
                   r2 * r2 -
               0.5f * r2 + 1.0f;
    uint64_t bits;
    memcpy(&bits, &z, sizeof bits);
    int q = (int)(bits & 3);
    float a = (q & 1) ? cs : sn, b = (q & 1) ? sn : cs;
    *s = (q & 2) ? -a : a;
    *c = ((q + 1) & 2) ? -b : b;
}

enum { SHEAF__LANES = 8 };

static inline double sheaf__lanes_sum(const double *lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
           ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

static inline double sheaf__sum(int64_t n, const float *x) {
    double lanes[SHEAF__LANES] = {0};
    int64_t i = 0;
    for (; i + SHEAF__LANES <= n; i += SHEAF__LANES) {
        for (int j = 0; j < SHEAF__LANES; j++) lanes[j] += (double)x[i + j];
    }
    for (int j = 0; i < n; i++, j++) lanes[j] += (double)x[i];
    return sheaf__lanes_sum(lanes);
}

static inline double sheaf__sum_squares(int64_t n, const float *x) {
    double lanes[SHEAF__LANES] = {0};
    int64_t i = 0;
    for (; i + SHEAF__LANES <= n; i += SHEAF__LANES) {
        for (int j = 0; j < SHEAF__LANES; j++) lanes[j] += (double)x[i + j] * (double)x[i + j];
    }
    for (int j = 0; i < n; i++, j++) lanes[j] += (double)x[i] * (double)x[i];
    return sheaf__lanes_sum(lanes);
}

/* Pairs [i, n) of n; see `rotate` of kernels.h. */
static inline void sheaf__rotate(int64_t i, int64_t n, bool side_by_side, const float *x,
                                 const float *cos, const float *sin, float *y) {
    const int64_t step = side_by_side ? 2 : 1, other = side_by_side ? 1 : n;
    for (; i < n; i++) {
        float x0 = x[i * step], x1 = x[i * step + other];
        y[i * step] = x0 * cos[i] - x1 * sin[i];
        y[i * step + other] = x0 * sin[i] + x1 * cos[i];
    }
}

#endif
