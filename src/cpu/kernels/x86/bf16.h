/* Panels of BF16 for the tables that multiply BF16: BF16 and F16 weights with many columns, with AMX
 * (amx.c) all but F32.
 *
 * BF16 weights are multiplied as they are. Activations are rounded to BF16, one term of 8 bits, or
 * are the sum of two terms, the second what rounding to the first left: 16 bits. A product of two
 * BF16 is exact in the float that it is added to. F16 weights have 11 bits and would need two terms
 * as well, which without AMX is no faster than floats: they are here only where activations have one term, and
 * are rounded like them. In units of 32 elements, so that a unit of a row is a line of the cache and
 * one row of a tile of AMX.
 *
 * Invariant: as in panels.h. */

#include <math.h>

#include "cpu/kernels/x86/vector.h"

enum { BF16_COLS = 32, BF16_UNIT = 32, ROW_BF16 = BF16_UNIT * sizeof(uint16_t) };

/* A term of 32 elements of 32 columns: two elements of a column side by side. */
struct panel_bf16 {
    uint16_t x[BF16_UNIT / 2][BF16_COLS][2];
};
static_assert(sizeof(struct panel_bf16) == 2048, "no padding");

/* An activation that is infinite or NaN, or becomes it when rounded, has no second term. */
INLINE v_f second_term(v_f x, __m256bh first) {
    const v_f f = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)first), 16));
    const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(f), v_set1(INFINITY), _CMP_LT_OQ);
    return _mm512_maskz_sub_ps(finite, x, f);
}

/* 32 elements of `cols` columns, at most BF16_COLS, as struct panel_bf16 has a term of them, `terms` of each; elements
 * from n on are zeros. */
INLINE void pack_unit(int terms, int cols, const float *const *x, int64_t i, int64_t n,
                      uint16_t *to) {
    uint16_t rounded[2][BF16_COLS][BF16_UNIT];
    for (int c = 0; c < cols; c++) {
        for (int half = 0; half < 2; half++) {
            const int64_t at = i + half * VW, left = n - at;
            v_f v = left >= VW  ? v_load(x[c] + at)
                    : left <= 0 ? v_set1(0.0f)
                                : v_load_n(x[c] + at, left);
            const __m256bh first = _mm512_cvtneps_pbh(v);
            memcpy(rounded[0][c] + half * VW, &first, sizeof first);
            if (terms == 1) continue;
            const __m256bh second = _mm512_cvtneps_pbh(second_term(v, first));
            memcpy(rounded[1][c] + half * VW, &second, sizeof second);
        }
    }
    for (int t = 0; t < terms; t++, to += cols * BF16_UNIT) {
        const float *pairs[BF16_COLS]; /* moved as floats, whatever they are */
        for (int c = 0; c < cols; c++) pairs[c] = (const float *)(const void *)rounded[t][c];
        pack_columns(pairs, BF16_UNIT / 2, cols, (float *)(void *)to);
    }
}

static void pack_bf16(const float *const *x, int64_t n, int used, void *panel) {
    struct panel_bf16 *to = panel;
    (void)used;
    for (int64_t i = 0; i < n; i += BF16_UNIT, to++) pack_unit(1, BF16_COLS, x, i, n, to->x[0][0]);
}
static void pack_bf16_twice(const float *const *x, int64_t n, int used, void *panel) {
    struct panel_bf16 *to = panel;
    (void)used;
    for (int64_t i = 0; i < n; i += BF16_UNIT, to += 2)
        pack_unit(2, BF16_COLS, x, i, n, to->x[0][0]);
}

static void unpack_bf16(const void *w, void *row, int64_t n) {
    const int64_t tail = (BF16_UNIT - n % BF16_UNIT) % BF16_UNIT;
    memcpy(row, w, (size_t)n * sizeof(uint16_t));
    memset((char *)row + (size_t)n * sizeof(uint16_t), 0, (size_t)tail * sizeof(uint16_t));
}

static void unpack_f16(const void *w, void *row, int64_t n) {
    uint16_t *to = row, last[BF16_UNIT] = {0};
    for (int64_t i = 0; i < n; i += BF16_UNIT, to += BF16_UNIT) {
        const uint16_t *from = (const uint16_t *)w + i;
        if (n - i < BF16_UNIT) from = memcpy(last, from, (size_t)(n - i) * sizeof *last);
        const __m512bh rounded = _mm512_cvtne2ps_pbh(v_load_f16(from + VW), v_load_f16(from));
        memcpy(to, &rounded, sizeof rounded);
    }
}

/* Adds the panels of BF16 of one term and of two to a table: what their tiles are. */
static void use_panels_bf16(struct sheaf__cpu_kernels *table, int rows, sheaf__tile_fn one,
                            sheaf__tile_fn two, void (*begin)(struct sheaf__cpu_kept *),
                            void (*end)(const struct sheaf__cpu_kept *)) {
    struct sheaf__cpu_panels p = {
        .rows = rows,
        .cols = BF16_COLS,
        .unit = BF16_UNIT,
        .panel_bytes = sizeof(struct panel_bf16),
        .row_bytes = ROW_BF16,
        .pack = pack_bf16,
        .unpack = {[SHEAF_TYPE_BF16] = unpack_bf16, [SHEAF_TYPE_F16] = unpack_f16},
        .tile = one,
        .begin = begin,
        .end = end,
    };
    table->panels[SHEAF__PANELS_BF16] = p;
    p.panel_bytes *= 2;
    p.unpack[SHEAF_TYPE_F16] = NULL;
    p.pack = pack_bf16_twice;
    p.tile = two;
    table->panels[SHEAF__PANELS_BF16_TWICE] = p;
}
