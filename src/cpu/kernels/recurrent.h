/* Rows of the states of recurrent layers: SSM_SCAN, GATED_DELTA_NET, RWKV_WKV6, RWKV_WKV7 and
 * GATED_LINEAR_ATTN are loops over tokens around these (cpu/ops/recurrent.c).
 *
 * Every table compiles this file for its instruction set. Products are never contracted and sums
 * run in 16 lanes, element i in lane i mod 16, which are added in one order: all tables give the
 * same bits. */
#ifndef SHEAF_CPU_KERNELS_RECURRENT_H
#define SHEAF_CPU_KERNELS_RECURRENT_H

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"
#if defined(__AVX__)
#include <immintrin.h>
#endif

/* 16 lanes in the registers that there are: vectors wider than those are slow. */
#if defined(__AVX512F__)
enum { STATE_WIDE = 16 };
#elif defined(__AVX__)
enum { STATE_WIDE = 8 };
#else
enum { STATE_WIDE = 4 };
#endif
enum { STATE_LANES = 16, STATE_PARTS = STATE_LANES / STATE_WIDE };
typedef float state_vec __attribute__((vector_size(STATE_WIDE * sizeof(float))));
#define STATE_LOAD(v, p) memcpy(&(v), (p), sizeof(v))

/* Rows at a time, which share what is loaded; as many as registers hold sums of. Vectors of columns
 * at a time: the sum of one waits for itself from row to row. */
enum { STATE_ROWS = STATE_WIDE == 4 ? 1 : 4, STATE_COLS = 4 };
#define STATE_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define STATE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define STATE_UNROLL _Pragma("GCC unroll 4")
#endif

/* Lane i + 8 to lane i, then 4, 2, 1. */
#if defined(__AVX__)
STATE_INLINE float state_sum(const state_vec *v) {
#if defined(__AVX512F__)
    const __m512 x = (__m512)v[0];
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), high);
#else
    const __m256 half = _mm256_add_ps((__m256)v[0], (__m256)v[1]);
#endif
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#else
STATE_INLINE float state_sum(const state_vec *v) {
    float lane[STATE_LANES], half[STATE_LANES / 2];
    memcpy(lane, v, sizeof lane);
    for (int i = 0; i < STATE_LANES / 2; i++) half[i] = lane[i] + lane[i + STATE_LANES / 2];
    return ((half[0] + half[4]) + (half[2] + half[6])) +
           ((half[1] + half[5]) + (half[3] + half[7]));
}
#endif

STATE_INLINE float state_dot(int64_t n, const float *x, const float *y) {
    state_vec sum[STATE_PARTS] = {{0}};
    int64_t i = 0;
    for (; i + STATE_LANES <= n; i += STATE_LANES) {
        STATE_UNROLL for (int p = 0; p < STATE_PARTS; p++) {
            state_vec a, b;
            STATE_LOAD(a, x + i + p * STATE_WIDE);
            STATE_LOAD(b, y + i + p * STATE_WIDE);
            sum[p] += a * b;
        }
    }
    if (i < n) {
        float lane[STATE_LANES];
        memcpy(lane, sum, sizeof lane);
        for (int l = 0; i < n; i++, l++) lane[l] += x[i] * y[i];
        memcpy(sum, lane, sizeof lane);
    }
    return state_sum(sum);
}

/* Elements [i, n) of row r, fewer than there are lanes. */
static inline void state_rest(int64_t n, int64_t i, int64_t r, float sa,
                              const struct sheaf__state_rows *x, state_vec *sum) {
    const float *w = x->w + r * x->w_stride, *from = x->from + r * n;
    float lane[STATE_LANES], *to = x->to + r * n;
    memcpy(lane, sum, sizeof lane);
    for (int l = 0; i < n; i++, l++) {
        float t = from[i] * w[i] + x->k[i] * x->v[r];
        if (x->a) t += x->b[i] * sa;
        to[i] = t;
        lane[l] += t * x->q[i];
    }
    memcpy(sum, lane, sizeof lane);
}

/* Rows [r, r + R): to = from * w + v * k + sa * b, and the sums of to * q. `with`: there is a sa;
 * `one`: one w for all. */
STATE_INLINE void state_step(int R, bool with, bool one, int64_t n, int64_t r,
                             const struct sheaf__state_rows *x) {
    const float *w = x->w + r * x->w_stride, *k = x->k, *q = x->q, *b = x->b, *v = x->v + r;
    const float *from = x->from + r * n;
    const int64_t w_stride = one ? 0 : x->w_stride;
    float *to = x->to + r * n, sa[STATE_ROWS] = {0};
    state_vec sum[STATE_ROWS][STATE_PARTS] = {{{0}}};
    int64_t i = 0;
    STATE_UNROLL for (int j = 0; j < R; j++) sa[j] = with ? state_dot(n, from + j * n, x->a) : 0;
    for (; i + STATE_LANES <= n; i += STATE_LANES) {
        STATE_UNROLL for (int p = 0; p < STATE_PARTS; p++) {
            const int64_t at = i + p * STATE_WIDE;
            state_vec t, wi, ki, qi, bi = {0};
            STATE_LOAD(wi, w + at);
            STATE_LOAD(ki, k + at);
            STATE_LOAD(qi, q + at);
            if (with) STATE_LOAD(bi, b + at);
            STATE_UNROLL for (int j = 0; j < R; j++) {
                if (!one && j > 0) STATE_LOAD(wi, w + j * w_stride + at);
                STATE_LOAD(t, from + j * n + at);
                t = t * wi + ki * v[j];
                if (with) t += bi * sa[j];
                memcpy(to + j * n + at, &t, sizeof t);
                sum[j][p] += t * qi;
            }
        }
    }
    STATE_UNROLL for (int j = 0; j < R; j++) {
        if (i < n) state_rest(n, i, r + j, sa[j], x, sum[j]);
        x->y[r + j] = state_sum(sum[j]);
    }
}

STATE_INLINE void state_all(bool with, bool one, int64_t n, int64_t rows,
                            const struct sheaf__state_rows *x) {
    int64_t r = 0;
    for (; r + STATE_ROWS <= rows; r += STATE_ROWS) state_step(STATE_ROWS, with, one, n, r, x);
    for (; r < rows; r++) state_step(1, with, one, n, r, x);
}

static void state_rows(int64_t n, int64_t rows, const struct sheaf__state_rows *x) {
    if (x->a && x->w_stride == 0)
        state_all(true, true, n, rows, x);
    else if (x->a)
        state_all(true, false, n, rows, x);
    else if (x->w_stride == 0)
        state_all(false, true, n, rows, x);
    else
        state_all(false, false, n, rows, x);
}

/* Columns [j, n) of all rows, a column at a time. */
static void state_last_cols(int64_t n, int64_t rows, int64_t j, const struct sheaf__state_cols *x) {
    for (int64_t c = j; c < n; c++) {
        float y = x->c * x->v[c];
        for (int64_t r = 0; r < rows; r++) {
            const float t = x->from[r * x->stride + c];
            y += t * x->u[r];
            x->to[r * x->stride + c] = t * x->w[r] + x->v[c] * x->k[r];
        }
        x->y[c] = y;
    }
}

/* V vectors of columns from column j on, their sums in registers. */
STATE_INLINE void state_some_cols(int V, int64_t rows, int64_t j,
                                  const struct sheaf__state_cols *x) {
    const float *from = x->from + j, *us = x->u, *ws = x->w, *ks = x->k;
    float *to = x->to + j;
    state_vec v[STATE_COLS], y[STATE_COLS];
    STATE_UNROLL for (int p = 0; p < V; p++) {
        STATE_LOAD(v[p], x->v + j + p * STATE_WIDE);
        y[p] = v[p] * x->c;
    }
    for (int64_t r = 0; r < rows; r++, from += x->stride, to += x->stride) {
        const float u = us[r], w = ws[r], k = ks[r];
        STATE_UNROLL for (int p = 0; p < V; p++) {
            state_vec t;
            STATE_LOAD(t, from + p * STATE_WIDE);
            y[p] += t * u;
            t = t * w + v[p] * k;
            memcpy(to + p * STATE_WIDE, &t, sizeof t);
        }
    }
    STATE_UNROLL for (int p = 0; p < V; p++) memcpy(x->y + j + p * STATE_WIDE, &y[p], sizeof y[p]);
}

static void state_cols(int64_t n, int64_t rows, const struct sheaf__state_cols *x) {
    int64_t j = 0;
    for (; j + STATE_COLS * STATE_WIDE <= n; j += STATE_COLS * STATE_WIDE)
        state_some_cols(STATE_COLS, rows, j, x);
    for (; j + STATE_WIDE <= n; j += STATE_WIDE) state_some_cols(1, rows, j, x);
    state_last_cols(n, rows, j, x);
}

static void exp_products(int64_t n, int64_t rows, const float *x, const float *a, int64_t a_stride,
                         float *y) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n; i++) y[r * n + i] = sheaf__expf(x[r] * a[r * a_stride + i]);
    }
}

/* The tokens of one channel, n at most as many as lanes. */
static inline void conv_row(int64_t n, int64_t taps, const float *row, const float *tap, float *y) {
    if (n == STATE_LANES) {
        state_vec sum[STATE_PARTS] = {{0}};
        for (int64_t k = 0; k < taps; k++) {
            for (int p = 0; p < STATE_PARTS; p++) {
                state_vec v;
                STATE_LOAD(v, row + k + p * STATE_WIDE);
                sum[p] += v * tap[k];
            }
        }
        memcpy(y, sum, sizeof sum);
        return;
    }
    for (int64_t t = 0; t < n; t++) {
        float sum = 0;
        for (int64_t k = 0; k < taps; k++) sum += row[t + k] * tap[k];
        y[t] = sum;
    }
}

/* Channels in blocks, so that what is written lies side by side. */
static void conv_rows(int64_t n_t, int64_t rows, int64_t taps, const float *x, int64_t x_stride,
                      const float *w, int64_t w_stride, float *y, int64_t y_stride) {
    float out[STATE_LANES][STATE_LANES];
    for (int64_t c = 0; c < rows; c += STATE_LANES) {
        const int64_t width = rows - c < STATE_LANES ? rows - c : STATE_LANES;
        for (int64_t t0 = 0; t0 < n_t; t0 += STATE_LANES) {
            const int64_t n = n_t - t0 < STATE_LANES ? n_t - t0 : STATE_LANES;
            for (int64_t i = 0; i < width; i++)
                conv_row(n, taps, x + (c + i) * x_stride + t0, w + (c + i) * w_stride, out[i]);
            for (int64_t t = 0; t < n; t++) {
                for (int64_t i = 0; i < width; i++) y[(t0 + t) * y_stride + c + i] = out[i][t];
            }
        }
    }
}

#endif
