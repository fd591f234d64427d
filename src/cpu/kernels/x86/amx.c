/* The AVX-512 table with products by AMX tiles: what it changes of that of avx512.c. Attention of many queries is
 * attention_amx.h, few columns of quantized weights panels_scaled_amx.h, of Q8_0 panels_in_place_amx.h, of F16 and BF16
 * plain_in_place_amx.h.
 *
 * All weights but F32 are multiplied as BF16, the products that AMX adds to floats. In the exact mode
 * weights are the sum of two BF16, and so are activations (see bf16.h): of the four products of terms
 * the one of both second terms is left out, at 2^-16 of the whole at most. BF16 weights have one term.
 * In the fast mode all have one. With few columns, unpacking weights counts more than multiplying them: they stay
 * integers, whose sums meet their scales after each 32 elements.
 *
 * Panels and unpacked rows lie as AMX wants them: a unit of 16 rows is one tile, a unit of 16 columns,
 * two BF16 of a column side by side, another. 32 rows by 32 columns are four tiles of sums, and need a
 * load of a tile for each product or less.
 *
 * The shapes of tiles are a state of the thread: set before a chunk's first tile, and after its last
 * one as they were before (begin, end), for ggml's CPU backend sets its own once in a thread and
 * relies on them. Compilers know of tile loads that they happen in order, not that they read memory:
 * each function that loads tiles is called through a pointer.
 *
 * A product of two tiles takes 16 cycles, and a load of one from the first two caches 9 to 20 beside it
 * (measured on a Xeon of 2024, Granite Rapids). */
#include "cpu/kernels/x86/avx512.h"
#include "cpu/kernels/x86/bf16.h"
#include "cpu/kernels/x86/bf16_integers.h"
#include "cpu/kernels/x86/bf16_rows.h"
#include "cpu/kernels/x86/integers.h"
#include "cpu/kernels/x86/k_scales.h"
#include "cpu/kernels/x86/units.h"
#include "quant/quants.h"

enum {
    AMX_TILE = 16,
    AMX_ROWS = 2 * AMX_TILE,
    AMX_CHUNK =
        256, /* columns come from the third cache, 120 cycles a tile, once for so many rows */
};

/* What LDTILECFG reads. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
};
static_assert(sizeof(struct tile_shapes) == 64, "as LDTILECFG has it");

/* Sums of 32 x 32 in tiles 0 to 3; rows of weights in 4 and 5; columns in 6 and 7. */
static void begin_tiles(struct sheaf__cpu_kept *kept) {
    static const struct tile_shapes shapes = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_storeconfig(kept);
    _tile_loadconfig(&shapes);
}
static void end_tiles(const struct sheaf__cpu_kept *kept) {
    _tile_release();
    if (kept->bytes[0]) _tile_loadconfig(kept); /* its palette; 0: the thread had no tiles */
}

enum { SUMS_LINE = BF16_COLS * sizeof(float), COLS_LINE = sizeof(uint16_t[BF16_COLS][2]) };

/* Adds the products of rows and columns; NULL: of those that are loaded. A product waits for the tiles
 * that it needs, not for all. both: tiles of columns, not only the first. */
INLINE void multiply(const char *row, size_t stride, const struct panel_bf16 *panel, bool both) {
    if (panel) _tile_loadd(6, panel->x[0][0], COLS_LINE);
    if (row) _tile_loadd(4, row, stride);
    _tile_dpbf16ps(0, 4, 6);
    if (both) {
        if (panel) _tile_loadd(7, panel->x[0][AMX_TILE], COLS_LINE);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (row) _tile_loadd(5, row + AMX_TILE * stride, stride);
    _tile_dpbf16ps(2, 5, 6);
    if (both) _tile_dpbf16ps(3, 5, 7);
}
INLINE void begin_sums(const float *c, bool both, bool add) {
    const float *below = c + AMX_TILE * BF16_COLS;
    if (!add) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, c, SUMS_LINE);
    _tile_loadd(2, below, SUMS_LINE);
    if (!both) return;
    _tile_loadd(1, c + AMX_TILE, SUMS_LINE);
    _tile_loadd(3, below + AMX_TILE, SUMS_LINE);
}
/* Rows that are so many apart in c. */
INLINE void store_sums(float *c, size_t apart, bool both) {
    const size_t line = apart * SUMS_LINE;
    float *below = c + apart * AMX_TILE * BF16_COLS;
    _tile_stored(0, c, line);
    _tile_stored(2, below, line);
    if (!both) return;
    _tile_stored(1, c + AMX_TILE, line);
    _tile_stored(3, below + AMX_TILE, line);
}

/* A unit of rows and of columns; of_w, of_x: terms of weights and of activations. Each is loaded once: weights' second
 * by activations' first, then first by first, then first by second. */
INLINE void multiply_terms(int of_w, int of_x, const char *row, size_t stride,
                           const struct panel_bf16 *panel, bool both) {
    if (of_w == 2) multiply(row + ROW_BF16, stride, panel, both);
    multiply(row, stride, of_w == 2 ? NULL : panel, both);
    if (of_x == 2) multiply(NULL, 0, panel + 1, both);
}
/* apart: as that of store_sums. */
INLINE void panel_amx(int of_w, int of_x, int64_t k, const char *row, size_t stride,
                      const struct panel_bf16 *panel, bool both, float *c, size_t apart, bool add) {
    begin_sums(c, both, add);
    for (int64_t i = 0; i < k; i += BF16_UNIT, row += of_w * ROW_BF16, panel += of_x)
        multiply_terms(of_w, of_x, row, stride, panel, both);
    store_sums(c, apart, both);
}
#define TILE_AMX(NAME, OF_W, OF_X)                                                                 \
    static void NAME(int64_t k, const void *row, size_t stride, const void *panel, int used,       \
                     float *c, bool add) {                                                         \
        if (used > AMX_TILE) {                                                                     \
            panel_amx(OF_W, OF_X, k, row, stride, panel, true, c, 1, add);                         \
        } else {                                                                                   \
            panel_amx(OF_W, OF_X, k, row, stride, panel, false, c, 1, add);                        \
        }                                                                                          \
    }
TILE_AMX(tile_bf16, 1, 1)
TILE_AMX(tile_bf16_twice, 1, 2)
TILE_AMX(tile_bf16_both, 2, 2)

/* ---- weights of any type, by way of floats ---- */

/* A unit, 16 floats and 16. */
INLINE void terms_of_unit(int terms, v_f low, v_f high, char *row) {
    const __m512i first = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    _mm512_storeu_si512(row, first);
    if (terms == 1) return;
    const v_f l = second_term(low, (__m256bh)_mm512_castsi512_si256(first));
    const v_f h = second_term(high, (__m256bh)_mm512_extracti64x4_epi64(first, 1));
    _mm512_storeu_si512(row + ROW_BF16, (__m512i)_mm512_cvtne2ps_pbh(h, l));
}
INLINE void terms_of_floats(int terms, const float *x, int64_t n, char *row) {
    for (int64_t i = 0; i < n; i += BF16_UNIT, row += terms * ROW_BF16)
        terms_of_unit(terms, n - i < VW ? v_load_n(x + i, n - i) : v_load(x + i),
                      n - i <= VW         ? v_set1(0.0f)
                      : n - i < BF16_UNIT ? v_load_n(x + i + VW, n - i - VW)
                                          : v_load(x + i + VW),
                      row);
}
static void one_term(const float *x, void *row, int64_t n) { terms_of_floats(1, x, n, row); }
static void two_terms(const float *x, void *row, int64_t n) { terms_of_floats(2, x, n, row); }

/* ---- weights of 4 bits: the 16 levels of a block are rounded, and looked up ---- */

struct levels {
    __m512i first, second; /* terms; every 16 words the same */
};
INLINE struct levels levels_of(int terms, v_f x) {
    struct levels l;
    const __m256bh first = _mm512_cvtneps_pbh(x);
    l.first = _mm512_broadcast_i64x4((__m256i)first);
    if (terms == 2)
        l.second = _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(second_term(x, first)));
    return l;
}
/* A unit of a row; at: the number of an element's level in the low 4 bits of a word. */
INLINE void look_up(int terms, struct levels l, __m512i at, char *row) {
    _mm512_storeu_si512(row, _mm512_permutexvar_epi16(at, l.first));
    if (terms == 2) _mm512_storeu_si512(row + ROW_BF16, _mm512_permutexvar_epi16(at, l.second));
}

/* 16 bytes: 16 elements in the low nibbles, then 16 in the high ones. */
INLINE __m512i low_then_high(const uint8_t *q) {
    const __m256i words = _mm256_cvtepu8_epi16(load128(q));
    return _mm512_inserti64x4(_mm512_castsi256_si512(words), _mm256_srli_epi16(words, 4), 1);
}

/* 32 weights, each d times the level that its nibble names. */
INLINE void nibbles_by_levels(int terms, const int8_t *levels, float d, const uint8_t *qs,
                              char *row) {
    look_up(terms, levels_of(terms, v_mul(v_load_i8(levels), v_set1(d))), low_then_high(qs), row);
}
INLINE void nibbles_q4_0(int terms, const char *w, char *row) {
    const struct sheaf__block_q4_0 *b = (const void *)w;
    nibbles_by_levels(terms, q4_levels, _cvtsh_ss(b->d), b->qs, row);
}
INLINE void nibbles_q4_1(int terms, const char *w, char *row) {
    const struct sheaf__block_q4_1 *b = (const void *)w;
    const v_f d = v_set1(_cvtsh_ss(b->d)), m = v_set1(_cvtsh_ss(b->m));
    look_up(terms, levels_of(terms, v_fma(v_load_i8(from_0), d, m)), low_then_high(b->qs), row);
}
INLINE void nibbles_iq4_nl(int terms, const char *w, char *row) {
    const struct sheaf__block_iq4_nl *b = (const void *)w;
    nibbles_by_levels(terms, iq4_levels, _cvtsh_ss(b->d), b->qs, row);
}
INLINE void nibbles_mxfp4(int terms, const char *w, char *row) {
    const struct sheaf__block_mxfp4 *b = (const void *)w;
    nibbles_by_levels(terms, fp4_levels, sheaf__mxfp4_scale(b->e), b->qs, row);
}
INLINE void nibbles_iq4_xs(int terms, const char *w, char *row) {
    const struct sheaf__block_iq4_xs *b = (const void *)w;
    const float d = _cvtsh_ss(b->d);
    for (int s = 0; s < 8; s++, row += terms * ROW_BF16) {
        const int low = b->scales_l[s / 2] >> s % 2 * 4 & 15, high = b->scales_h >> 2 * s & 3;
        nibbles_by_levels(terms, iq4_levels, d * (float)((low | high << 4) - 32), b->qs + 16 * s,
                          row);
    }
}
/* 32 bytes: a block of 32 in the low nibbles, the next in the high ones. */
INLINE void nibbles_q4_k(int terms, const char *w, char *row) {
    const struct sheaf__block_q4_k *b = (const void *)w;
    const float d = _cvtsh_ss(b->d), dmin = _cvtsh_ss(b->dmin);
    for (int s = 0; s < 8; s++, row += terms * ROW_BF16) {
        uint8_t scale, min;
        sheaf__k_scale_min(b->scales, s, &scale, &min);
        const v_f x = v_fma(v_load_i8(from_0), v_set1(d * scale), v_set1(-dmin * min));
        const __m512i at = _mm512_cvtepu8_epi16(load256(b->qs + s / 2 * 32));
        look_up(terms, levels_of(terms, x), s % 2 ? _mm512_srli_epi16(at, 4) : at, row);
    }
}

#define UNPACK_NIBBLES(NAME, TERMS, TYPE, BLOCK)                                                   \
    static void NAME(const void *w, void *row, int64_t n) {                                        \
        const char *from = w;                                                                      \
        char *to = row;                                                                            \
        for (; n > 0; n -= BLOCK, from += sizeof(struct sheaf__block_##TYPE))                      \
            nibbles_##TYPE(TERMS, from, to), to += BLOCK / BF16_UNIT * TERMS * ROW_BF16;           \
    }
#define UNPACK_BY_TERMS(TYPE, BLOCK)                                                               \
    UNPACK_NIBBLES(one_##TYPE, 1, TYPE, BLOCK) UNPACK_NIBBLES(two_##TYPE, 2, TYPE, BLOCK)
UNPACK_BY_TERMS(q4_0, SHEAF__QK)
UNPACK_BY_TERMS(q4_1, SHEAF__QK)
UNPACK_BY_TERMS(iq4_nl, SHEAF__QK)
UNPACK_BY_TERMS(mxfp4, SHEAF__QK)
UNPACK_BY_TERMS(iq4_xs, SHEAF__QK_K)
UNPACK_BY_TERMS(q4_k, SHEAF__QK_K)

#include "cpu/kernels/x86/attention_amx.h"
#include "cpu/kernels/x86/panels_in_place_amx.h"
#include "cpu/kernels/x86/panels_scaled_amx.h"
#include "cpu/kernels/x86/plain_in_place_amx.h"

void sheaf__cpu_kernels_extend(struct sheaf__cpu_kernels *table) {
    sheaf__cpu_kernels_use_vbmi(table);
    use_attention_amx(table);
    use_rows_bf16(table, 4); /* tiles multiply more: 8 columns of F16 121 tokens/s, by rows 87 */
    use_panels_bf16(table, AMX_ROWS, tile_bf16, tile_bf16_twice, begin_tiles, end_tiles);
    struct sheaf__cpu_panels *one = &table->panels[SHEAF__PANELS_BF16];
    struct sheaf__cpu_panels *both = &table->panels[SHEAF__PANELS_BF16_BOTH];
    struct sheaf__cpu_panels *twice = &table->panels[SHEAF__PANELS_BF16_TWICE];
    twice->chunk = one->chunk = AMX_CHUNK;
    one->from_floats = one_term;
    *both = *twice;
    memset(both->unpack, 0, sizeof both->unpack);
    both->row_bytes = 2 * ROW_BF16;
    both->tile = tile_bf16_both;
    both->from_floats = two_terms;
    /* By rows they would be two passes over the weights. BF16 by 4 columns, us a MiB: rows 90, tiles 77. */
    both->from[SHEAF_TYPE_F16] = SHEAF__TILE_COLS + 1;
    twice->from[SHEAF_TYPE_BF16] = 3;
    one->from[SHEAF_TYPE_BF16] = 4;
#define USE_NIBBLES(TYPE, NAME)                                                                    \
    both->unpack[SHEAF_TYPE_##TYPE] = two_##NAME;                                                  \
    one->unpack[SHEAF_TYPE_##TYPE] = one_##NAME
    USE_NIBBLES(Q4_0, q4_0);
    USE_NIBBLES(Q4_1, q4_1);
    USE_NIBBLES(IQ4_NL, iq4_nl);
    USE_NIBBLES(MXFP4, mxfp4);
    USE_NIBBLES(IQ4_XS, iq4_xs);
    USE_NIBBLES(Q4_K, q4_k);
    /* Up to so many columns of quantized weights are for PANELS_BF16_SCALED. Prompts of 64 tokens, tokens/s so and as
     * two BF16: Q4_0 484 and 417, Q4_K_M 441 and 392, Q6_K 379 and 334, Q8_0 422 and 347; of 96: 529 and 488, 443 and
     * 446, 346 and 409, 467 and 406 (Granite Rapids, November 2026). */
    both->above = 64;
    /* With --fast from 17 tokens on one BF16 of each weight is: 268 and 241, 248 and 213, 176 and 172, 204 and 195. */
    one->above = AMX_TILE;
    use_scaled_amx(table);
    table->panels[SHEAF__PANELS_16] = table->panels[SHEAF__PANELS_16_WORDS] =
        (struct sheaf__cpu_panels){0};
    use_in_place_amx(table);
    use_plain_in_place_amx(table);
}
