/* The kernels in plain C: run anywhere, the model of what the others compute.
 *
 * 256 weights become floats once and meet every column of the tile. Products are added in 8 lanes
 * (element j in lane j mod 8), which is what compilers turn into vectors of the baseline
 * instruction set; of the types of ROWS_DOT_FLOATS the lanes are added after each 256. */
#include <math.h>

#include "cpu/kernels/elements.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/recurrent.h"
#include "cpu/kernels/rows.h"
#include "cpu/kernels/vec.h"
#include "quant/iq.h"

enum { LANES = 8 };

static float add_lanes(const float *lane) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* ---- plain types ---- */

/* n % LANES == 0 */
static void add_to_lanes(int64_t n, const float *x, const float *y, float *lane) {
    for (int64_t i = 0; i < n; i += LANES) {
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l] * y[i + l];
    }
}

static float dot_f32(int64_t n, const void *px, const float *y) {
    const float *x = px;
    float lane[LANES] = {0};
    int64_t whole = n - n % LANES;
    add_to_lanes(whole, x, y, lane);
    for (int64_t i = whole; i < n; i++) lane[i - whole] += x[i] * y[i];
    return add_lanes(lane);
}

static float dot_f16(int64_t n, const void *px, const float *y) {
    const uint16_t *x = px;
    float lane[LANES] = {0};
    for (int64_t i = 0; i < n; i++) lane[i % LANES] += sheaf__f16_to_f32(x[i]) * y[i];
    return add_lanes(lane);
}

static float dot_bf16(int64_t n, const void *px, const float *y) {
    const uint16_t *x = px;
    float lane[LANES] = {0};
    for (int64_t i = 0; i < n; i++) lane[i % LANES] += sheaf__bf16_to_f32(x[i]) * y[i];
    return add_lanes(lane);
}

#define ROWS_DOT_PLAIN(NAME, DOT)                                                                  \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        for (int64_t r = 0; r < nr; r++) {                                                         \
            const void *row = (const char *)w + (size_t)r * w_stride;                              \
            for (int c = 0; c < nc; c++) out[c][r] = DOT(k, row, act[c]);                          \
        }                                                                                          \
    }
ROWS_DOT_PLAIN(rows_dot_f32, dot_f32)
ROWS_DOT_PLAIN(rows_dot_f16, dot_f16)
ROWS_DOT_PLAIN(rows_dot_bf16, dot_bf16)

/* ---- blocks by plain floats: SEGMENT weights at a time become floats ---- */

enum { SEGMENT = 256 }; /* a multiple of every block */

#define ROWS_DOT_BLOCKS(NAME, DEQUANTIZE, BLOCK, PER_BLOCK)                                        \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        for (int64_t r = 0; r < nr; r++) {                                                         \
            const struct BLOCK *row = (const void *)((const char *)w + (size_t)r * w_stride);      \
            float lane[SHEAF__TILE_COLS][LANES] = {{0}}, x[SEGMENT];                               \
            for (int64_t i = 0; i < k; i += SEGMENT) {                                             \
                int64_t n = k - i < SEGMENT ? k - i : SEGMENT;                                     \
                DEQUANTIZE(row + i / PER_BLOCK, x, n);                                             \
                for (int c = 0; c < nc; c++)                                                       \
                    add_to_lanes(n, x, (const float *)act[c] + i, lane[c]);                        \
            }                                                                                      \
            for (int c = 0; c < nc; c++) out[c][r] = add_lanes(lane[c]);                           \
        }                                                                                          \
    }
ROWS_DOT_BLOCKS(rows_dot_q8_0, sheaf__dequantize_q8_0, sheaf__block_q8_0, SHEAF__QK)
ROWS_DOT_BLOCKS(rows_dot_q4_0, sheaf__dequantize_q4_0, sheaf__block_q4_0, SHEAF__QK)
ROWS_DOT_BLOCKS(rows_dot_q4_1, sheaf__dequantize_q4_1, sheaf__block_q4_1, SHEAF__QK)
ROWS_DOT_BLOCKS(rows_dot_q5_0, sheaf__dequantize_q5_0, sheaf__block_q5_0, SHEAF__QK)
ROWS_DOT_BLOCKS(rows_dot_q5_1, sheaf__dequantize_q5_1, sheaf__block_q5_1, SHEAF__QK)
ROWS_DOT_BLOCKS(rows_dot_q4_k, sheaf__dequantize_q4_k, sheaf__block_q4_k, SHEAF__QK_K)
ROWS_DOT_BLOCKS(rows_dot_q5_k, sheaf__dequantize_q5_k, sheaf__block_q5_k, SHEAF__QK_K)
ROWS_DOT_BLOCKS(rows_dot_q6_k, sheaf__dequantize_q6_k, sheaf__block_q6_k, SHEAF__QK_K)

/* Rows of the other types. */
static void rows_dot_floats(void (*to_float)(const void *, float *, int64_t), size_t block_bytes,
                            int64_t block, int64_t k, const void *w, size_t w_stride, int64_t nr,
                            const void *const *act, int nc, float *const *out) {
    float x[SHEAF__QK_K];
    for (int64_t r = 0; r < nr; r++) {
        const char *row = (const char *)w + (size_t)r * w_stride;
        float sum[SHEAF__TILE_COLS] = {0};
        for (int64_t i = 0; i < k; i += SHEAF__QK_K) {
            const int64_t n = k - i < SHEAF__QK_K ? k - i : SHEAF__QK_K;
            to_float(row + (size_t)(i / block) * block_bytes, x, n);
            for (int c = 0; c < nc; c++) sum[c] += dot_f32(n, x, (const float *)act[c] + i);
        }
        for (int c = 0; c < nc; c++) out[c][r] = sum[c];
    }
}
#define ROWS_DOT_FLOATS(type, block)                                                               \
    static void rows_dot_##type(int64_t k, const void *w, size_t w_stride, int64_t nr,             \
                                const void *const *act, int nc, float *const *out) {               \
        rows_dot_floats(sheaf__dequantize_##type, sizeof(struct sheaf__block_##type), block, k, w, \
                        w_stride, nr, act, nc, out);                                               \
    }
ROWS_DOT_FLOATS(q2_k, SHEAF__QK_K)
ROWS_DOT_FLOATS(q3_k, SHEAF__QK_K)
ROWS_DOT_FLOATS(iq4_nl, SHEAF__QK)
ROWS_DOT_FLOATS(iq4_xs, SHEAF__QK_K)
ROWS_DOT_FLOATS(mxfp4, SHEAF__QK)
ROWS_DOT_FLOATS(nvfp4, SHEAF__QK_NVFP4)
ROWS_DOT_FLOATS(q1_0, SHEAF__QK1)
ROWS_DOT_FLOATS(q2_0, SHEAF__QK2)
ROWS_DOT_FLOATS(tq1_0, SHEAF__QK_K)
ROWS_DOT_FLOATS(tq2_0, SHEAF__QK_K)
ROWS_DOT_FLOATS(iq2_xxs, SHEAF__QK_K)
ROWS_DOT_FLOATS(iq2_xs, SHEAF__QK_K)
ROWS_DOT_FLOATS(iq2_s, SHEAF__QK_K)
ROWS_DOT_FLOATS(iq3_xxs, SHEAF__QK_K)
ROWS_DOT_FLOATS(iq3_s, SHEAF__QK_K)
ROWS_DOT_FLOATS(iq1_s, SHEAF__QK_K)
ROWS_DOT_FLOATS(iq1_m, SHEAF__QK_K)

static void f16_to_f32(const void *px, float *y, int64_t n) {
    const uint16_t *x = px;
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__f16_to_f32(x[i]);
}
static void f32_to_f16(const float *x, void *py, int64_t n) {
    uint16_t *y = py;
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__f32_to_f16(x[i]);
}
static void bf16_to_f32(const void *px, float *y, int64_t n) {
    const uint16_t *x = px;
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__bf16_to_f32(x[i]);
}
/* ---- attention ---- */

static bool load_rows(void (*to_float)(const void *, float *, int64_t), const void *px,
                      size_t stride, int64_t rows, int64_t n, float *y, int64_t y_stride) {
    const char *x = px;
    bool finite = true;
    for (int64_t r = 0; r < rows; r++, x += stride, y += y_stride) {
        float zero = 0; /* 0 times what is not finite is NaN */
        to_float(x, y, n);
        for (int64_t i = 0; i < n; i++) zero += 0.0f * y[i];
        finite = finite && zero == 0.0f;
    }
    return finite;
}
static void copy_f32(const void *x, float *y, int64_t n) { memcpy(y, x, (size_t)n * sizeof *y); }

#define LOAD_ROWS(NAME, TO_FLOAT)                                                                  \
    static bool NAME(const void *x, size_t stride, int64_t rows, int64_t n, float *y,              \
                     int64_t y_stride) {                                                           \
        return load_rows(TO_FLOAT, x, stride, rows, n, y, y_stride);                               \
    }
LOAD_ROWS(load_rows_f32, copy_f32)
LOAD_ROWS(load_rows_f16, f16_to_f32)
LOAD_ROWS(load_rows_bf16, bf16_to_f32)
LOAD_ROWS(load_rows_q8_0, sheaf__dequantize_q8_0)
LOAD_ROWS(load_rows_q4_0, sheaf__dequantize_q4_0)
LOAD_ROWS(load_rows_q4_1, sheaf__dequantize_q4_1)
LOAD_ROWS(load_rows_q5_0, sheaf__dequantize_q5_0)
LOAD_ROWS(load_rows_q5_1, sheaf__dequantize_q5_1)
LOAD_ROWS(load_rows_iq4_nl, sheaf__dequantize_iq4_nl)

static void dots(int64_t k, const float *x, int64_t stride, int64_t rows, const float *const *q,
                 int n_q, float *out, int64_t out_stride) {
    for (int c = 0; c < n_q; c++, out += out_stride) {
        for (int64_t j = 0; j < rows; j++) out[j] = dot_f32(k, x + j * stride, q[c]);
    }
}

static void mix(int64_t rows, const float *x, int64_t stride, int64_t n, const float *w,
                int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {
    for (int64_t r = 0; r < n_y; r++, w += w_stride, y += y_stride) {
        for (int64_t j = 0; j < rows; j++) {
            for (int64_t i = 0; i < n; i++) y[i] += w[j] * x[j * stride + i];
        }
    }
}

/* ---- rows ---- */

static float max_f32(int64_t n, const float *x) {
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] > max) max = x[i];
    }
    return max;
}

static bool finite_f32(int64_t n, const float *x) {
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return false;
    }
    return true;
}

static float exp_f32(int64_t n, const float *x, float max, float *y) {
    float lane[LANES] = {0};
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__expf(x[i] - max);
    for (int64_t i = 0; i < n; i++) lane[i % LANES] += y[i];
    return add_lanes(lane);
}

static void softcap_f32(int64_t n, float cap, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = cap * tanhf(x[i] / cap);
}

const struct sheaf__cpu_kernels sheaf__cpu_kernels_portable = {
    .name = "portable",
    .tile_cols = 4,
    .rows_dot =
        {
            [SHEAF_TYPE_F32] = rows_dot_f32,         [SHEAF_TYPE_F16] = rows_dot_f16,
            [SHEAF_TYPE_BF16] = rows_dot_bf16,       [SHEAF_TYPE_Q8_0] = rows_dot_q8_0,
            [SHEAF_TYPE_Q4_0] = rows_dot_q4_0,       [SHEAF_TYPE_Q4_1] = rows_dot_q4_1,
            [SHEAF_TYPE_Q5_0] = rows_dot_q5_0,       [SHEAF_TYPE_Q5_1] = rows_dot_q5_1,
            [SHEAF_TYPE_Q4_K] = rows_dot_q4_k,       [SHEAF_TYPE_Q5_K] = rows_dot_q5_k,
            [SHEAF_TYPE_Q6_K] = rows_dot_q6_k,       [SHEAF_TYPE_Q2_K] = rows_dot_q2_k,
            [SHEAF_TYPE_Q3_K] = rows_dot_q3_k,       [SHEAF_TYPE_IQ4_NL] = rows_dot_iq4_nl,
            [SHEAF_TYPE_IQ4_XS] = rows_dot_iq4_xs,   [SHEAF_TYPE_MXFP4] = rows_dot_mxfp4,
            [SHEAF_TYPE_NVFP4] = rows_dot_nvfp4,     [SHEAF_TYPE_Q1_0] = rows_dot_q1_0,
            [SHEAF_TYPE_Q2_0] = rows_dot_q2_0,       [SHEAF_TYPE_TQ1_0] = rows_dot_tq1_0,
            [SHEAF_TYPE_TQ2_0] = rows_dot_tq2_0,     [SHEAF_TYPE_IQ2_XXS] = rows_dot_iq2_xxs,
            [SHEAF_TYPE_IQ2_XS] = rows_dot_iq2_xs,   [SHEAF_TYPE_IQ2_S] = rows_dot_iq2_s,
            [SHEAF_TYPE_IQ3_XXS] = rows_dot_iq3_xxs, [SHEAF_TYPE_IQ3_S] = rows_dot_iq3_s,
            [SHEAF_TYPE_IQ1_S] = rows_dot_iq1_s,     [SHEAF_TYPE_IQ1_M] = rows_dot_iq1_m,
        },
    .load_rows =
        {
            [SHEAF_TYPE_F32] = load_rows_f32,
            [SHEAF_TYPE_F16] = load_rows_f16,
            [SHEAF_TYPE_BF16] = load_rows_bf16,
            [SHEAF_TYPE_Q8_0] = load_rows_q8_0,
            [SHEAF_TYPE_Q4_0] = load_rows_q4_0,
            [SHEAF_TYPE_Q4_1] = load_rows_q4_1,
            [SHEAF_TYPE_Q5_0] = load_rows_q5_0,
            [SHEAF_TYPE_Q5_1] = load_rows_q5_1,
            [SHEAF_TYPE_IQ4_NL] = load_rows_iq4_nl,
        },
    .dots = dots,
    .mix = mix,
    .softcap_f32 = softcap_f32,
    .to_float =
        {
            [SHEAF_TYPE_F16] = f16_to_f32,
            [SHEAF_TYPE_BF16] = bf16_to_f32,
            [SHEAF_TYPE_Q8_0] = sheaf__dequantize_q8_0,
        },
    .from_float =
        {
            [SHEAF_TYPE_F16] = f32_to_f16,
            [SHEAF_TYPE_BF16] = f32_to_bf16,
            [SHEAF_TYPE_Q8_0] = sheaf__quantize_q8_0,
        },
    .sum = sheaf__sum,
    .sum_sq = sheaf__sum_squares,
    .rotate = rotate,
    .max_f32 = max_f32,
    .finite_f32 = finite_f32,
    .scale_f32 = scale_f32,
    .exp_f32 = exp_f32,
    .silu_f32 = silu_f32,
    .gelu_f32 = gelu_f32,
    .swiglu_f32 = swiglu_f32,
    .elements = ELEMENTS,
    .state_rows = state_rows,
    .state_cols = state_cols,
    .exp_products = exp_products,
    .conv_rows = conv_rows,
};
