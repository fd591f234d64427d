/* Attention: rows of a cache as floats and as they lie, few queries, and many, a lane each.
 *
 * Invariant: what a lane or a row holds does not depend on its number or on what is beside it. */
#include "cpu/kernels/v128/panels.h"

enum { LANES = PANEL_COLS, LANE_ROWS = PANEL_ROWS };

/* ---- rows of a cache as floats ---- */

/* 0 times what is not finite is NaN. */
INLINE bool all_finite(int64_t n, const float *x) {
    v_f seen = v_set1(0.0f);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) seen = seen + v_load(x + i) * v_set1(0.0f);
    for (; i < n; i++) seen[0] += x[i] * 0.0f;
    return v_sum(seen) == 0.0f;
}

INLINE bool load_rows(void (*to_floats)(const void *, float *, int64_t), const void *px,
                      size_t stride, int64_t rows, int64_t n, float *y, int64_t y_stride) {
    const char *x = px;
    bool finite = true;
    for (int64_t r = 0; r < rows; r++, x += stride, y += y_stride) {
        to_floats(x, y, n);
        finite = all_finite(n, y) && finite;
    }
    return finite;
}

/* ---- few queries ---- */

/* out[c][j] = row j of x . q[c], for C queries */
INLINE void dots_by(enum sheaf_type type, int C, int64_t k, const char *x, size_t stride,
                    int64_t rows, const float *const *q, float *out, int64_t out_stride) {
    float floats[SHEAF__DIRECT_WIDTH];
    for (int64_t j = 0; j < rows; j++, x += stride) {
        float to[TILE];
        if (type == SHEAF_TYPE_Q8_0) {
            floats_q8_0(x, floats, k);
            dots_plain(SHEAF_TYPE_F32, C, k, floats, q, to);
        } else {
            dots_plain(type, C, k, x, q, to);
        }
        UNROLL for (int c = 0; c < C; c++) out[c * out_stride + j] = to[c];
    }
}
INLINE void dots_all(enum sheaf_type type, int64_t k, const void *x, size_t stride, int64_t rows,
                     const float *const *q, int n_q, float *out, int64_t out_stride) {
    for (int c = 0; c < n_q; c += TILE, q += TILE, out += TILE * out_stride) {
        const int left = n_q - c;
        if (left == 1)
            dots_by(type, 1, k, x, stride, rows, q, out, out_stride);
        else if (left == 2)
            dots_by(type, 2, k, x, stride, rows, q, out, out_stride);
        else if (left == 3)
            dots_by(type, 3, k, x, stride, rows, q, out, out_stride);
        else
            dots_by(type, 4, k, x, stride, rows, q, out, out_stride);
    }
}

/* y[r] += w[r][j] * row j of x for R rows of y, 16 elements from i on, j by j. */
INLINE void mix_part(enum sheaf_type type, int R, int64_t i, int64_t rows, const char *x,
                     size_t stride, const float *w, int64_t w_stride, float *y, int64_t y_stride) {
    v_f acc[TILE][4];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int p = 0; p < 4; p++) acc[r][p] = v_load(y + r * y_stride + i + p * VW);
    }
    for (int64_t j = 0; j < rows; j++, x += stride) {
        v_f v[4];
        if (type == SHEAF_TYPE_Q8_0) {
            const struct sheaf__block_q8_0 *b =
                (const struct sheaf__block_q8_0 *)(const void *)x + i / 32;
            const v_i8 q = v_load_i8(b->qs + i % 32);
            const v_f d = v_set1(f16_at(&b->d));
            UNROLL for (int p = 0; p < 4; p++) v[p] = d * v_from_i8(q, p);
        } else {
            UNROLL for (int p = 0; p < 4; p++) v[p] = plain_4(type, x, i + p * VW);
        }
        UNROLL for (int r = 0; r < R; r++) {
            const v_f by = v_set1(w[r * w_stride + j]);
            UNROLL for (int p = 0; p < 4; p++) acc[r][p] = v_fma(by, v[p], acc[r][p]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int p = 0; p < 4; p++) v_store(y + r * y_stride + i + p * VW, acc[r][p]);
    }
}
INLINE void mix_some(enum sheaf_type type, int R, int64_t rows, const void *x, size_t stride,
                     int64_t n, const float *w, int64_t w_stride, float *y, int64_t y_stride) {
    int64_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW)
        mix_part(type, R, i, rows, x, stride, w, w_stride, y, y_stride);
    for (; i < n && type == SHEAF_TYPE_F32; i++) {
        for (int r = 0; r < R; r++) {
            for (int64_t j = 0; j < rows; j++) {
                const float *row = (const void *)((const char *)x + (size_t)j * stride);
                y[r * y_stride + i] = v_fma(v_set1(w[r * w_stride + j]), v_set1(row[i]),
                                            v_set1(y[r * y_stride + i]))[0];
            }
        }
    }
}
INLINE void mix_all(enum sheaf_type type, int64_t rows, const void *x, size_t stride, int64_t n,
                    const float *w, int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {
    for (; n_y >= TILE; n_y -= TILE, w += TILE * w_stride, y += TILE * y_stride)
        mix_some(type, TILE, rows, x, stride, n, w, w_stride, y, y_stride);
    for (; n_y > 0; n_y--, w += w_stride, y += y_stride)
        mix_some(type, 1, rows, x, stride, n, w, w_stride, y, y_stride);
}

#define AS_THEY_LIE(TYPE, type)                                                                    \
    static void dots_##type(int64_t k, const void *x, size_t stride, int64_t rows,                 \
                            const float *const *q, int n_q, float *out, int64_t out_stride) {      \
        dots_all(SHEAF_TYPE_##TYPE, k, x, stride, rows, q, n_q, out, out_stride);                  \
    }                                                                                              \
    static void mix_##type(int64_t rows, const void *x, size_t stride, int64_t n, const float *w,  \
                           int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {            \
        mix_all(SHEAF_TYPE_##TYPE, rows, x, stride, n, w, w_stride, n_y, y, y_stride);             \
    }
#define DIRECT_TYPES(X)                                                                            \
    X(F32, f32)                                                                                    \
    X(F16, f16)                                                                                    \
    X(BF16, bf16)                                                                                  \
    X(Q8_0, q8_0)
DIRECT_TYPES(AS_THEY_LIE)
#undef AS_THEY_LIE

static void dots(int64_t k, const float *x, int64_t stride, int64_t rows, const float *const *q,
                 int n_q, float *out, int64_t out_stride) {
    dots_all(SHEAF_TYPE_F32, k, x, (size_t)stride * sizeof *x, rows, q, n_q, out, out_stride);
}
static void mix(int64_t rows, const float *x, int64_t stride, int64_t n, const float *w,
                int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {
    mix_all(SHEAF_TYPE_F32, rows, x, (size_t)stride * sizeof *x, n, w, w_stride, n_y, y, y_stride);
}

#define CACHE_TYPES(X)                                                                             \
    DIRECT_TYPES(X)                                                                                \
    X(Q4_0, q4_0)                                                                                  \
    X(Q4_1, q4_1)                                                                                  \
    X(Q5_0, q5_0)                                                                                  \
    X(Q5_1, q5_1)                                                                                  \
    X(IQ4_NL, iq4_nl)
#define LOAD_ROWS(TYPE, type)                                                                      \
    static bool load_rows_##type(const void *x, size_t stride, int64_t rows, int64_t n, float *y,  \
                                 int64_t y_stride) {                                               \
        return load_rows(floats_##type, x, stride, rows, n, y, y_stride);                          \
    }
CACHE_TYPES(LOAD_ROWS)
#undef LOAD_ROWS

/* ---- many queries ---- */

static void pack_lanes(const float *const *x, int64_t n, float *panel) {
    pack_f32(x, n, LANES, panel);
}
static void unpack_lanes(const float *panel, int64_t n, const float *by, int cols,
                         float *const *y) {
    for (int64_t i = 0; i < n; i++, panel += LANES) {
        for (int c = 0; c < cols; c++) y[c][i] = panel[c] * by[c];
    }
}
static void lanes_scores(int64_t k, const float *keys, int64_t rows, const float *queries,
                         int lanes, float *c) {
    (void)lanes;
    for (; rows > 0; rows -= LANE_ROWS, keys += LANE_ROWS * k, c += LANE_ROWS * LANES)
        floats_tile(false, k, keys, k, queries, c, false);
}
static void lanes_values(int64_t n, const float *values, int64_t wide, const float *weights,
                         int lanes, float *c) {
    (void)lanes;
    for (int64_t r = 0; r < wide; r += LANE_ROWS, c += LANE_ROWS * LANES)
        floats_tile(true, n, values + r, wide, weights, c, true);
}
static void lanes_scale(int64_t n, int lanes, const float *by, float *c) {
    (void)lanes;
    for (int64_t i = 0; i < n; i++, c += LANES) {
        for (int l = 0; l < LANES; l++) c[l] *= by[l];
    }
}

/* See `soften` of kernels.h. */
static void lanes_soften(int64_t n, int lanes, float scale, const float *mask, const float *slope,
                         float *scores, float *weights, float *max, float *sum, float *shrink) {
    v_f m[PANEL_VECTORS], from[PANEL_VECTORS], total[PANEL_VECTORS];
    const v_f closed = v_set1(-__builtin_inff());
    (void)lanes;
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) m[v] = v_load(max + v * VW);
    for (int64_t j = 0; j < n; j++) {
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
            v_f x = v_load(scores + j * LANES + v * VW) * v_set1(scale);
            if (mask) {
                const v_f y = v_load(mask + j * LANES + v * VW);
                x = v_select((v_i32)(y == closed), closed, v_fma(v_load(slope + v * VW), y, x));
            }
            v_store(scores + j * LANES + v * VW, x);
            m[v] = v_max(x, m[v]);
        }
    }
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
        float old[VW], less[VW];
        from[v] = v_select((v_i32)(m[v] == closed), v_set1(0.0f), m[v]);
        v_store(old, v_load(max + v * VW) - from[v]);
        for (int l = 0; l < VW; l++) less[l] = sheaf__expf(old[l]);
        total[v] = v_load(sum + v * VW) * v_load(less);
        v_store(max + v * VW, m[v]);
        v_store(shrink + v * VW, v_load(less));
    }
    for (int64_t j = 0; j < n; j++) {
        float x[LANES];
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
            v_store(x + v * VW, v_load(scores + j * LANES + v * VW) - from[v]);
        for (int l = 0; l < LANES; l++) weights[j * LANES + l] = sheaf__expf(x[l]);
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) total[v] =
            total[v] + v_load(weights + j * LANES + v * VW);
    }
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) v_store(sum + v * VW, total[v]);
}
