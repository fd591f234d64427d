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

static float state_sum(const float *lane) {
    float half[STATE_LANES / 2];
    for (int i = 0; i < STATE_LANES / 2; i++) half[i] = lane[i] + lane[i + STATE_LANES / 2];
    return ((half[0] + half[4]) + (half[2] + half[6])) +
           ((half[1] + half[5]) + (half[3] + half[7]));
}

static float state_dot(int64_t n, const float *x, const float *y) {
    float lane[STATE_LANES];
    state_vec sum[STATE_PARTS] = {{0}};
    int64_t i = 0;
    for (; i + STATE_LANES <= n; i += STATE_LANES) {
        for (int p = 0; p < STATE_PARTS; p++) {
            state_vec a, b;
            STATE_LOAD(a, x + i + p * STATE_WIDE);
            STATE_LOAD(b, y + i + p * STATE_WIDE);
            sum[p] += a * b;
        }
    }
    memcpy(lane, sum, sizeof lane);
    for (int l = 0; i < n; i++, l++) lane[l] += x[i] * y[i];
    return state_sum(lane);
}

/* One row: to = from * w + v * k + sa * b, and the sum of to * q. `with`: there is a sa. */
static inline float state_row(int64_t n, bool with, const struct sheaf__state_rows *x,
                              const float *w, float v, const float *from, float *to) {
    const float sa = with ? state_dot(n, from, x->a) : 0;
    const float *k = x->k, *q = x->q, *b = x->b;
    float lane[STATE_LANES];
    state_vec sum[STATE_PARTS] = {{0}};
    int64_t i = 0;
    for (; i + STATE_LANES <= n; i += STATE_LANES) {
        for (int p = 0; p < STATE_PARTS; p++) {
            const int64_t at = i + p * STATE_WIDE;
            state_vec t, c;
            STATE_LOAD(t, from + at);
            STATE_LOAD(c, w + at);
            t *= c;
            STATE_LOAD(c, k + at);
            t += c * v;
            if (with) {
                STATE_LOAD(c, b + at);
                t += c * sa;
            }
            memcpy(to + at, &t, sizeof t);
            STATE_LOAD(c, q + at);
            sum[p] += t * c;
        }
    }
    memcpy(lane, sum, sizeof lane);
    for (int l = 0; i < n; i++, l++) {
        float t = from[i] * w[i] + k[i] * v;
        if (with) t += b[i] * sa;
        to[i] = t;
        lane[l] += t * q[i];
    }
    return state_sum(lane);
}

static void state_rows(int64_t n, int64_t rows, const struct sheaf__state_rows *x) {
    for (int64_t r = 0; r < rows; r++) {
        const float *w = x->w + r * x->w_stride, *from = x->from + r * n;
        x->y[r] = x->a ? state_row(n, true, x, w, x->v[r], from, x->to + r * n)
                       : state_row(n, false, x, w, x->v[r], from, x->to + r * n);
    }
}

/* Columns [j, j + width) of all rows, their sums in registers. */
static inline void state_block(int64_t rows, int64_t j, int64_t width,
                               const struct sheaf__state_cols *x) {
    for (int64_t c = j; c < j + width; c++) {
        float y = x->c * x->v[c];
        for (int64_t r = 0; r < rows; r++) {
            const float t = x->from[r * x->stride + c];
            y += t * x->u[r];
            x->to[r * x->stride + c] = t * x->w[r] + x->v[c] * x->k[r];
        }
        x->y[c] = y;
    }
}

static void state_cols(int64_t n, int64_t rows, const struct sheaf__state_cols *x) {
    int64_t j = 0;
    for (; j + STATE_LANES <= n; j += STATE_LANES) {
        state_vec v[STATE_PARTS], y[STATE_PARTS];
        for (int p = 0; p < STATE_PARTS; p++) {
            STATE_LOAD(v[p], x->v + j + p * STATE_WIDE);
            y[p] = v[p] * x->c;
        }
        for (int64_t r = 0; r < rows; r++) {
            const float u = x->u[r], w = x->w[r], k = x->k[r];
            const float *from = x->from + r * x->stride + j;
            float *to = x->to + r * x->stride + j;
            for (int p = 0; p < STATE_PARTS; p++) {
                state_vec t;
                STATE_LOAD(t, from + p * STATE_WIDE);
                y[p] += t * u;
                t = t * w + v[p] * k;
                memcpy(to + p * STATE_WIDE, &t, sizeof t);
            }
        }
        memcpy(x->y + j, y, sizeof y);
    }
    state_block(rows, j, n - j, x);
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
