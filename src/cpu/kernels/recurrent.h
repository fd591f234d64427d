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

enum { STATE_LANES = 16 };
typedef float state_vec __attribute__((vector_size(STATE_LANES * sizeof(float))));

static float state_sum(const float *lane) {
    float half[STATE_LANES / 2];
    for (int i = 0; i < STATE_LANES / 2; i++) half[i] = lane[i] + lane[i + STATE_LANES / 2];
    return ((half[0] + half[4]) + (half[2] + half[6])) +
           ((half[1] + half[5]) + (half[3] + half[7]));
}

static float state_dot(int64_t n, const float *x, const float *y) {
    float lane[STATE_LANES];
    state_vec sum = {0};
    int64_t i = 0;
    for (; i + STATE_LANES <= n; i += STATE_LANES) {
        state_vec a, b;
        memcpy(&a, x + i, sizeof a);
        memcpy(&b, y + i, sizeof b);
        sum += a * b;
    }
    memcpy(lane, &sum, sizeof lane);
    for (int l = 0; i < n; i++, l++) lane[l] += x[i] * y[i];
    return state_sum(lane);
}

/* One row: to = from * w + v * k + sa * b, and the sum of to * q. */
static float state_row(int64_t n, const struct sheaf__state_rows *x, const float *w, float v,
                       const float *from, float *to) {
    const float sa = x->a ? state_dot(n, from, x->a) : 0;
    float lane[STATE_LANES];
    state_vec sum = {0};
    int64_t i = 0;
    for (; i + STATE_LANES <= n; i += STATE_LANES) {
        state_vec t, c;
        memcpy(&t, from + i, sizeof t);
        memcpy(&c, w + i, sizeof c);
        t *= c;
        memcpy(&c, x->k + i, sizeof c);
        t += c * v;
        if (x->a) {
            memcpy(&c, x->b + i, sizeof c);
            t += c * sa;
        }
        memcpy(to + i, &t, sizeof t);
        memcpy(&c, x->q + i, sizeof c);
        sum += t * c;
    }
    memcpy(lane, &sum, sizeof lane);
    for (int l = 0; i < n; i++, l++) {
        float t = from[i] * w[i] + x->k[i] * v;
        if (x->a) t += x->b[i] * sa;
        to[i] = t;
        lane[l] += t * x->q[i];
    }
    return state_sum(lane);
}

static void state_rows(int64_t n, int64_t rows, const struct sheaf__state_rows *x) {
    for (int64_t r = 0; r < rows; r++)
        x->y[r] = state_row(n, x, x->w + r * x->w_stride, x->v[r], x->from + r * n, x->to + r * n);
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
        state_vec v, y;
        memcpy(&v, x->v + j, sizeof v);
        y = v * x->c;
        for (int64_t r = 0; r < rows; r++) {
            state_vec t;
            memcpy(&t, x->from + r * x->stride + j, sizeof t);
            y += t * x->u[r];
            t = t * x->w[r] + v * x->k[r];
            memcpy(x->to + r * x->stride + j, &t, sizeof t);
        }
        memcpy(x->y + j, &y, sizeof y);
    }
    state_block(rows, j, n - j, x);
}

static void exp_products(int64_t n, int64_t rows, const float *x, const float *a, int64_t a_stride,
                         float *y) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n; i++) y[r * n + i] = sheaf__expf(x[r] * a[r * a_stride + i]);
    }
}

/* Channels in blocks, so that what is written lies side by side. */
static void conv_rows(int64_t n_t, int64_t rows, int64_t taps, const float *x, int64_t x_stride,
                      const float *w, int64_t w_stride, float *y, int64_t y_stride) {
    enum { TOKENS = 64 };
    float out[STATE_LANES][TOKENS];
    for (int64_t c = 0; c < rows; c += STATE_LANES) {
        const int64_t width = rows - c < STATE_LANES ? rows - c : STATE_LANES;
        for (int64_t t0 = 0; t0 < n_t; t0 += TOKENS) {
            const int64_t n = n_t - t0 < TOKENS ? n_t - t0 : TOKENS;
            for (int64_t i = 0; i < width; i++) {
                const float *row = x + (c + i) * x_stride + t0, *tap = w + (c + i) * w_stride;
                for (int64_t t = 0; t < n; t++) out[i][t] = 0;
                for (int64_t k = 0; k < taps; k++) {
                    for (int64_t t = 0; t < n; t++) out[i][t] += row[t + k] * tap[k];
                }
            }
            for (int64_t t = 0; t < n; t++) {
                for (int64_t i = 0; i < width; i++) y[(t0 + t) * y_stride + c + i] = out[i][t];
            }
        }
    }
}

#endif
