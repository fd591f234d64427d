/* The body of the x86 kernel tables: a template by inclusion. avx2.c and avx512.c define what is listed
 * here and then include this file; avxvnni.c and vbmi.c take the parts without a table, avxvnni.c extends
 * the table of avx2.c, and avx512vbmi.c, avx512bf16.c and amx.c that of avx512.c.
 *
 * Defined by the build (src/cpu/CMakeLists.txt) for each table:
 *   KERNELS_NAME       the name of the instruction set, a string
 *   KERNELS_TABLE      the name of the table that this file defines (struct sheaf__cpu_kernels)
 * Defined before, where the instruction set has it (avx512.h, avxvnni.c, vbmi.c):
 *   KERNELS_VNNI_512   products of bytes in 512 bits (VNNI)
 *   KERNELS_VNNI_256   the same in 256 bits (AVX-VNNI)
 *   KERNELS_VBMI       permutations of bytes in 512 bits (VBMI)
 *   KERNELS_REPACKED   weights in another order (repacked.c, repacked_avx2.c)
 *   KERNELS_HALVES     attention of few queries for a Zen 4 (attention_halves.c)
 *   KERNELS_NO_TABLE   the parts only
 * Primitives that avx2.h and avx512.h give as static inline functions:
 *   v_f, VW            a vector of VW floats; v_load v_store v_set1 v_add v_sub v_mul v_div v_fma
 *                      v_fnma v_min v_max v_round v_ldexp v_sum v_largest v_if_equal v_swap v_turn v_twice
 *   v_ldexp_near, v_all_within, V_LDEXP_COSTS   2^n for a normal result, and whether to ask for it
 *   v_load_f16 v_store_f16 v_load_bf16 v_load_i8 v_bytes v_nibbles   VW values of another type as floats
 *   v_eights v_eights_f16 v_eights_bf16 v_eights_i8 v_eights_set1   eight elements, or one for them, of
 *                      each of VW / 8 rows; v_eight: the same eight for all
 *   v_sum_twos v_sum_fours v_sum_eights   sums across eight vectors of such rows
 *   v_d                eight sums in double: v_zeros v_add_8 v_add_sq_8 v_lanes, the same lanes in
 *                      every table, so that sums have the same bits
 * The parts use these, and the parts included before them; so does a new part.
 * Bytes of blocks are unpacked in 256 bits by all, since a block is 32 bytes when unpacked.
 *
 * Invariant: one accumulator per (row, column), fed in the order of k, so that tile shapes may
 * change freely without changing a bit of the result. */
#include <math.h>

#include "cpu/kernels/elements.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/recurrent.h"
#include "cpu/kernels/vec.h"
#include "quant/blocks.h"
#include "quant/iq.h"

/* ---- what the others are written with: loops, fetching ahead, formats of weights ---- */

#include "cpu/kernels/x86/vector.h"

#include "cpu/kernels/x86/fetch.h"
#include "cpu/kernels/x86/units.h"

#include "cpu/kernels/x86/formats.h"
#include "cpu/kernels/x86/k_scales.h"
#include "cpu/kernels/x86/points.h"
#include "cpu/kernels/x86/rows.h"
#include "cpu/kernels/x86/weights32.h"

#include "cpu/kernels/x86/signed.h"

/* ---- rows by few columns: plain weights, quantized ones as integers ---- */

#include "cpu/kernels/x86/plain.h"
#if defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/bf16_pairs.h"
#include "cpu/kernels/x86/digits.h"
#include "cpu/kernels/x86/pieces.h"

#include "cpu/kernels/x86/eights.h"
#include "cpu/kernels/x86/few.h"
#include "cpu/kernels/x86/plain_few.h"
#else
#include "cpu/kernels/x86/digits_avx2.h"

#include "cpu/kernels/x86/halves.h"
#include "cpu/kernels/x86/signed_avx2.h"

#include "cpu/kernels/x86/rows_of_lanes.h"
#endif

/* ---- panels of many columns: floats, and bytes of weights that meet activations of 16 and 8 bits ---- */

#include "cpu/kernels/x86/blocks.h"
#include "cpu/kernels/x86/panels.h"
#if defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/panels16.h"
#endif
#include "cpu/kernels/x86/panels8.h"
#include "cpu/kernels/x86/signed_entries.h"
#if !defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/panels16_avx2.h"
#elif !defined(KERNELS_NO_TABLE)
#include "cpu/kernels/x86/panels_words.h"
#endif

/* ---- conversions, attention ---- */

#include "cpu/kernels/x86/convert.h"
#include "cpu/kernels/x86/lanes.h"

#include "cpu/kernels/x86/attention.h"
#include "cpu/kernels/x86/attention_few.h"
#if defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/attention_q8.h"
#include "cpu/kernels/x86/attention_q8_lanes.h"
#endif

/* ---- the table ---- */

/* Quantized types whose weights have fewer than 8 bits, integers of at most 6 bits and of 8. */
#define ENTRIES_OF_6_BITS(FN)                                                                      \
    [SHEAF_TYPE_Q4_0] = FN##_q4_0, [SHEAF_TYPE_Q4_1] = FN##_q4_1, [SHEAF_TYPE_Q5_0] = FN##_q5_0,   \
    [SHEAF_TYPE_Q5_1] = FN##_q5_1, [SHEAF_TYPE_Q4_K] = FN##_q4_k, [SHEAF_TYPE_Q5_K] = FN##_q5_k,   \
    [SHEAF_TYPE_Q6_K] = FN##_q6_k, ENTRIES_OF_5_BITS(FN##_signed)
#define ENTRIES_OF_ALL(FN) ENTRIES_OF_6_BITS(FN), ENTRIES_OF_8_BITS(FN##_signed)

#if defined(KERNELS_VNNI_512)
#define ENTRIES_16 [SHEAF_TYPE_Q8_0] = blocks_q8_0, ENTRIES_OF_ALL(blocks)
#else
#define ENTRIES_16 [SHEAF_TYPE_Q8_0] = words_q8_0, ENTRIES_OF_ALL(words)
#endif
#if defined(KERNELS_VNNI_512) || defined(KERNELS_VNNI_256)
#define ENTRIES_8 [SHEAF_TYPE_Q8_0] = blocks_q8_0, ENTRIES_OF_ALL(blocks)
#else
#define ENTRIES_8 ENTRIES_OF_6_BITS(blocks)
#endif

#define ENTRIES_DIGITS                                                                             \
    [SHEAF_TYPE_Q8_0] = rows_digits_q8_0, [SHEAF_TYPE_Q4_0] = rows_digits_q4_0,                    \
    [SHEAF_TYPE_Q4_1] = rows_digits_q4_1, [SHEAF_TYPE_Q5_0] = rows_digits_q5_0,                    \
    [SHEAF_TYPE_Q5_1] = rows_digits_q5_1, [SHEAF_TYPE_Q4_K] = rows_digits_q4_k,                    \
    [SHEAF_TYPE_Q5_K] = rows_digits_q5_k, [SHEAF_TYPE_Q6_K] = rows_digits_q6_k,                    \
    ENTRIES_SIGNED(rows_signed)

#define ROUNDED_ENTRY(TYPE) [SHEAF_TYPE_##TYPE] = rounded_##TYPE,

/* Of integers: panels and rows lie in units of PANEL_ROW_BLOCKS blocks. */
#define PANELS(ROWS, COLS, PANEL, ROW, PACK, TILE_OF)                                              \
    .rows = ROWS, .cols = COLS, .unit = PANEL_ROW_UNIT,                                            \
    .panel_bytes = PANEL_ROW_BLOCKS * sizeof(struct PANEL), .row_bytes = sizeof(struct ROW),       \
    .pack = PACK, .tile = TILE_OF
/* Words take longer to unpack than one panel saves. */
#define PANELS_WORDS(PANEL, ROW, PACK, TILE_OF)                                                    \
    PANELS(WORDS_ROWS, PANEL16_COLS, PANEL, ROW, PACK, TILE_OF), .above = PANEL16_COLS
/* Q8_0 by rows has activations of 24 bits, so panels are faster from fewer columns on: 8, us a MiB, AVX-512 192 and
 * 130, AVX2 302 and 179 (Zen 4, November 2026). */
#define PANELS_16                                                                                  \
    PANELS(PANEL16_ROWS, PANEL16_COLS, panel16, panel_row, pack_16, tile_16),                      \
        .from = {[SHEAF_TYPE_Q8_0] = 8}
#define PANELS_8  PANELS(PANEL8_ROWS, PANEL8_COLS, panel8, panel_row, pack_8, tile_8)
#define WORDS_16  PANELS_WORDS(panel16, words_row, pack_words_16, tile_words_16)

#if !defined(KERNELS_NO_TABLE)
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
                    .tile = panel_f32,
                    .unpack =
                        {
                            [SHEAF_TYPE_F32] = floats_f32,
                            [SHEAF_TYPE_F16] = floats_f16,
                            [SHEAF_TYPE_BF16] = floats_bf16,
                            [SHEAF_TYPE_Q8_0] = floats_q8_0,
                            [SHEAF_TYPE_Q4_0] = floats_q4_0,
                            [SHEAF_TYPE_Q4_1] = floats_q4_1,
                            [SHEAF_TYPE_Q5_0] = floats_q5_0,
                            [SHEAF_TYPE_Q5_1] = floats_q5_1,
                            [SHEAF_TYPE_Q4_K] = floats_q4_k,
                            [SHEAF_TYPE_Q5_K] = floats_q5_k,
                            [SHEAF_TYPE_Q6_K] = floats_q6_k,
                            ENTRIES_SIGNED(floats_signed),
                        },
                },
            [SHEAF__PANELS_16] = {PANELS_16, .unpack = {ENTRIES_16}},
#if defined(KERNELS_VNNI_512)
            [SHEAF__PANELS_16_WORDS] = {WORDS_16,
                                        .unpack = {[SHEAF_TYPE_Q8_0] = wide_blocks_q8_0,
                                                   ENTRIES_OF_ALL(wide_blocks)}},
#endif
            [SHEAF__PANELS_8] = {PANELS_8, .unpack = {ENTRIES_8}},
        },
    .rows_dot =
        {
#if defined(KERNELS_VNNI_512)
            [SHEAF_TYPE_F32] = eight_f32,
            [SHEAF_TYPE_F16] = eight_f16,
            [SHEAF_TYPE_BF16] = eight_bf16,
#else
            [SHEAF_TYPE_F32] = rows_dot_f32,
            [SHEAF_TYPE_F16] = rows_dot_f16,
            [SHEAF_TYPE_BF16] = rows_dot_bf16,
#endif
        },
    .rows_dot_digits = {ENTRIES_DIGITS},
    .digits_order = DIGITS_ORDER,
    .tile_cols = TILE,
#if defined(KERNELS_VNNI_512)
    .rows_dot_few =
        {
            [SHEAF_TYPE_Q4_0] = few_q4_0,
            [SHEAF_TYPE_Q4_1] = few_q4_1,
            [SHEAF_TYPE_Q5_0] = few_q5_0,
            [SHEAF_TYPE_Q5_1] = few_q5_1,
            [SHEAF_TYPE_Q4_K] = few_q4_k,
            [SHEAF_TYPE_Q5_K] = few_q5_k,
            [SHEAF_TYPE_IQ4_NL] = few_signed_IQ4_NL,
            [SHEAF_TYPE_IQ4_XS] = few_signed_IQ4_XS,
            [SHEAF_TYPE_MXFP4] = few_signed_MXFP4,
            [SHEAF_TYPE_IQ3_XXS] = few_signed_IQ3_XXS,
            [SHEAF_TYPE_IQ3_S] = few_signed_IQ3_S,
        },
    .few_order = FEW_ORDER,
    .to_words = to_words,
#endif
    .rows_dot_rounded = {ROUNDED(ROUNDED_ENTRY)},
    .rounded_cols = 8,
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
#if defined(KERNELS_VNNI_512)
    .attention[SHEAF__ATTENTION_Q8] =
        {
            .lanes = LANES,
            .rows = LANE_ROWS,
            .unit = SHEAF__QK,
            .pack = pack_lanes,
            .unpack = unpack_lanes,
            .pack_queries = pack_lanes_digits,
            .of = SHEAF_TYPE_Q8_0,
            .take_keys = take_keys_q8,
            .take_values = take_values_q8,
            .scores = scores_q8,
            .soften = lanes_soften,
            .values = values_q8,
            .scale = lanes_scale,
        },
    .attention_q8 = {.query = query_digits, .dots = dots_digits, .mix = mix_integers},
#endif
    .dots = dots,
    .mix = mix,
    .dots_of =
        {
            [SHEAF_TYPE_F32] = dots_f32,
            [SHEAF_TYPE_F16] = dots_f16,
            [SHEAF_TYPE_BF16] = dots_bf16,
#if !defined(KERNELS_VNNI_512)
            [SHEAF_TYPE_Q8_0] = dots_q8_0,
#endif
        },
    .mix_of =
        {
            [SHEAF_TYPE_F32] = mix_f32,
            [SHEAF_TYPE_F16] = mix_f16,
            [SHEAF_TYPE_BF16] = mix_bf16,
#if !defined(KERNELS_VNNI_512)
            [SHEAF_TYPE_Q8_0] = mix_q8_0,
#endif
        },
    .softcap_f32 = softcap_f32,
    .to_float =
        {
            [SHEAF_TYPE_F16] = f16_to_f32,
            [SHEAF_TYPE_BF16] = bf16_to_f32,
            [SHEAF_TYPE_Q8_0] = q8_0_to_f32,
            [SHEAF_TYPE_Q4_0] = exact_q4_0,
            [SHEAF_TYPE_Q4_1] = exact_q4_1,
            [SHEAF_TYPE_Q5_0] = exact_q5_0,
            [SHEAF_TYPE_Q5_1] = exact_q5_1,
            [SHEAF_TYPE_Q4_K] = exact_q4_k,
            [SHEAF_TYPE_Q5_K] = exact_q5_k,
            [SHEAF_TYPE_Q6_K] = exact_q6_k,
            ENTRIES_SIGNED(exact_signed),
        },
    .from_float =
        {
            [SHEAF_TYPE_F16] = f32_to_f16,
            [SHEAF_TYPE_BF16] = f32_to_bf16,
            [SHEAF_TYPE_Q8_0] = f32_to_q8_0,
            [SHEAF_TYPE_Q4_0] = f32_to_q4_0,
            [SHEAF_TYPE_Q4_1] = f32_to_q4_1,
            [SHEAF_TYPE_Q5_0] = f32_to_q5_0,
            [SHEAF_TYPE_Q5_1] = f32_to_q5_1,
        },
    .sum = sum,
    .sum_sq = sum_sq,
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
    .conv_rows = conv_few,
};
#endif
