/* The body of the tables with vectors of 16 bytes: neon.c, dotprod.c and sse41.c include it and are compiled with
 * the flags of their instruction set. The parts lie in the files included here, each with what it needs before it:
 * vector.h, weights.h, rows.h, panels.h, attention.h.
 *
 * Defined by the build (src/cpu/CMakeLists.txt): KERNELS_NAME and KERNELS_TABLE, as for x86/table.h. */
#include <math.h>

#include "cpu/kernels/elements.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/recurrent.h"
#include "cpu/kernels/rows.h"
#include "cpu/kernels/vec.h"
#include "quant/blocks.h"

#include "cpu/kernels/v128/attention.h"

/* ---- conversions from floats ---- */

static void f32_to_f16(const float *x, void *to, int64_t n) {
    uint16_t *y = to;
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store_f16(y + i, v_load(x + i));
    for (; i < n; i++) y[i] = sheaf__f32_to_f16(x[i]);
}
#define FROM_FLOATS(type)                                                                          \
    static void f32_to_##type(const float *x, void *to, int64_t n) {                               \
        struct sheaf__block_##type *y = to;                                                        \
        for (int64_t i = 0; i < n / SHEAF__QK; i++)                                                \
            sheaf__quantize_block_##type(x + i * SHEAF__QK, &y[i]);                                \
    }
FROM_FLOATS(q8_0)
FROM_FLOATS(q4_0)
FROM_FLOATS(q4_1)
FROM_FLOATS(q5_0)
FROM_FLOATS(q5_1)

/* ---- rows ---- */

static float max_f32(int64_t n, const float *x) {
    v_f m = v_set1(-INFINITY);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) m = v_max(v_load(x + i), m);
    float max = -INFINITY;
    for (int l = 0; l < VW; l++) max = m[l] > max ? m[l] : max;
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}
static bool finite_f32(int64_t n, const float *x) { return all_finite(n, x); }
static float exp_f32(int64_t n, const float *x, float max, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__expf(x[i] - max);
    v_f sum = v_set1(0.0f);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) sum = sum + v_load(y + i);
    if (i < n) sum = sum + v_load_n(y + i, n - i);
    return v_sum(sum);
}
static void softcap_f32(int64_t n, float cap, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = cap * sheaf__tanhf(x[i] / cap);
}

/* ---- the table ---- */

#define ENTRY(PREFIX, TYPE, type) [SHEAF_TYPE_##TYPE] = PREFIX##type
#define UNPACK_ENTRY(TYPE, type)  ENTRY(unpack_, TYPE, type),
#define DIGITS_ENTRY(TYPE, type)  ENTRY(digits_, TYPE, type),
#define ROUNDED_ENTRY(TYPE, type) ENTRY(rounded_, TYPE, type),
#if defined(KERNELS_DIGITS)
#define ORDER_ENTRY(TYPE, type) [SHEAF_TYPE_##TYPE] = SHEAF__DIGITS_IN_PLACE,
#else
#define ORDER_ENTRY(TYPE, type) [SHEAF_TYPE_##TYPE] = SHEAF__DIGITS_SHORTS,
#endif
#define FLOATS_ENTRY(TYPE, type)  ENTRY(floats_, TYPE, type),
#define LOAD_ENTRY(TYPE, type)    ENTRY(load_rows_, TYPE, type),
#define DOTS_ENTRY(TYPE, type)    ENTRY(dots_, TYPE, type),
#define MIX_ENTRY(TYPE, type)     ENTRY(mix_, TYPE, type),

#if defined(KERNELS_DIGITS)
#define BYTES_ENTRY(TYPE, type) ENTRY(bytes_, TYPE, type),
#define PANELS_OF_DIGITS(PACK, TILE_FN)                                                            \
    {                                                                                              \
        .rows = PANEL_ROWS, .cols = PANEL_COLS, .unit = 32,                                        \
        .panel_bytes = sizeof(struct panel_of_digits), .row_bytes = sizeof(struct weights_row),    \
        .pack = PACK, .tile = TILE_FN, .unpack = {QUANTIZED_TYPES(BYTES_ENTRY)},                   \
    }
#endif

const struct sheaf__cpu_kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .panels =
        {
            [SHEAF__PANELS_FLOATS] =
                {
                    .rows = PANEL_ROWS,
                    .cols = PANEL_COLS,
                    .unit = 1,
                    .panel_bytes = PANEL_COLS * sizeof(float),
                    .row_bytes = sizeof(float),
                    .pack = pack_f32,
                    .tile = tile_f32,
                    .unpack = {ENTRY(unpack_, F32, f32), ENTRY(unpack_, F16, f16),
                               ENTRY(unpack_, BF16, bf16), QUANTIZED_TYPES(UNPACK_ENTRY)},
                },
#if defined(KERNELS_DIGITS)
            [SHEAF__PANELS_16] = PANELS_OF_DIGITS(pack_16, tile_16),
            [SHEAF__PANELS_8] = PANELS_OF_DIGITS(pack_8, tile_8),
#endif
        },
    .rows_dot = {ENTRY(rows_dot_, F32, f32), ENTRY(rows_dot_, F16, f16),
                 ENTRY(rows_dot_, BF16, bf16)},
    .tile_cols = TILE,
    .rows_dot_digits = {QUANTIZED_TYPES(DIGITS_ENTRY)},
    .digits_order = {QUANTIZED_TYPES(ORDER_ENTRY)},
    .rows_dot_rounded = {QUANTIZED_TYPES(ROUNDED_ENTRY)},
    .rounded_cols = 2 * TILE,
    .to_bytes = to_bytes,
    .to_digits = to_digits,
    .attention[SHEAF__ATTENTION_FLOATS] =
        {
            .lanes = LANES,
            .rows = LANE_ROWS,
            .unit = 1,
            .pack = pack_lanes,
            .unpack = unpack_lanes,
            .pack_queries = pack_lanes,
            .scores = lanes_scores,
            .soften = lanes_soften,
            .values = lanes_values,
            .scale = lanes_scale,
        },
    .load_rows = {CACHE_TYPES(LOAD_ENTRY)},
    .dots = dots,
    .mix = mix,
    .dots_of = {DIRECT_TYPES(DOTS_ENTRY)},
    .mix_of = {DIRECT_TYPES(MIX_ENTRY)},
    .softcap_f32 = softcap_f32,
    .to_float = {ENTRY(floats_, F16, f16), ENTRY(floats_, BF16, bf16),
                 QUANTIZED_TYPES(FLOATS_ENTRY)},
    .from_float =
        {
            ENTRY(f32_to_, F16, f16),
            ENTRY(f32_to_, BF16, bf16),
            ENTRY(f32_to_, Q8_0, q8_0),
            ENTRY(f32_to_, Q4_0, q4_0),
            ENTRY(f32_to_, Q4_1, q4_1),
            ENTRY(f32_to_, Q5_0, q5_0),
            ENTRY(f32_to_, Q5_1, q5_1),
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
