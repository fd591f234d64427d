/* Attention of many queries with AMX: products of BF16, of one term each in the fast mode, of the sums of two in
 * the exact one (see amx.c).
 *
 * Rows, of keys and of the elements of values, and columns, of queries and of weights, lie in units of 32
 * elements, of which each term is a tile or a row of one: what amx.c multiplies with, for 48 lanes. Rows of
 * values are their columns turned, 64 keys side by side.
 *
 * Invariant: as in attention.h. */
#include "cpu/kernels/x86/attention_bf16.h"

enum {
    LANES_LINE = LANES * sizeof(float),
    LANES_UNIT = BF16_UNIT / 2 * LANES /* floats of a term */
};

/* ---- tiles ---- */

/* The next tile of each vector of lanes: tiles 5 to 7. */
INLINE void load_lanes(int vectors, const float *x) {
    _tile_loadd(5, x, LANES_LINE);
    if (vectors > 1) _tile_loadd(6, x + AMX_TILE, LANES_LINE);
    if (vectors > 2) _tile_loadd(7, x + 2 * AMX_TILE, LANES_LINE);
}
/* By the first terms of 16 rows (tile 3), or by the second (tile 4). */
#define MULTIPLY_LANES(VECTORS, ROWS)                                                              \
    do {                                                                                           \
        _tile_dpbf16ps(0, ROWS, 5);                                                                \
        if ((VECTORS) > 1) _tile_dpbf16ps(1, ROWS, 6);                                             \
        if ((VECTORS) > 2) _tile_dpbf16ps(2, ROWS, 7);                                             \
    } while (0)

/* c [16][lanes] = or += 16 rows, `stride` bytes apart, . lanes, of so many units */
INLINE void lanes_by_rows(int vectors, int terms, int64_t units, const char *row, size_t stride,
                          const float *x, float *c, bool add) {
    if (add) {
        _tile_loadd(0, c, LANES_LINE);
        if (vectors > 1) _tile_loadd(1, c + AMX_TILE, LANES_LINE);
        if (vectors > 2) _tile_loadd(2, c + 2 * AMX_TILE, LANES_LINE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
    }
    for (int64_t u = 0; u < units; u++, row += terms * ROW_BF16, x += terms * LANES_UNIT) {
        _tile_loadd(3, row, stride);
        load_lanes(vectors, x);
        if (terms == 2) {
            _tile_loadd(4, row + ROW_BF16, stride);
            MULTIPLY_LANES(vectors, 4);
        }
        MULTIPLY_LANES(vectors, 3);
        if (terms == 2) {
            load_lanes(vectors, x + LANES_UNIT);
            MULTIPLY_LANES(vectors, 3);
        }
    }
    _tile_stored(0, c, LANES_LINE);
    if (vectors > 1) _tile_stored(1, c + AMX_TILE, LANES_LINE);
    if (vectors > 2) _tile_stored(2, c + 2 * AMX_TILE, LANES_LINE);
}

static int64_t units_of(int64_t n) { return (n + BF16_UNIT - 1) / BF16_UNIT; }

INLINE void rows_amx(int terms, int64_t units, int64_t units_of_row, const float *rows, int64_t n,
                     const float *x, int lanes, float *c, bool add) {
    const size_t stride = (size_t)(units_of_row * terms) * ROW_BF16;
    const char *row = (const char *)rows;
    for (int64_t r = 0; r < n; r += AMX_TILE, row += AMX_TILE * stride, c += AMX_TILE * LANES)
        LANES_BY_VECTORS(lanes, lanes_by_rows, terms, units, row, stride, x, c, add);
}

/* ---- what they multiply ---- */

INLINE void pack_queries_amx(int terms, const float *const *x, int64_t k, float *y) {
    char rounded[LANES][2 * ROW_BF16];
    for (int64_t i = 0; i < k; i += BF16_UNIT) {
        for (int c = 0; c < LANES; c++) terms_of_floats(terms, x[c] + i, BF16_UNIT, rounded[c]);
        for (int t = 0; t < terms; t++, y += LANES_UNIT) {
            const float *pairs[LANES]; /* moved as floats, whatever they are */
            for (int c = 0; c < LANES; c++)
                pairs[c] = (const float *)(const void *)(rounded[c] + t * ROW_BF16);
            pack_columns(pairs, BF16_UNIT / 2, LANES, y);
        }
    }
}

INLINE void pack_values_amx(int terms, int64_t wide, const float *x, float *y) {
    const float *keys[SHEAF__ATTN_BLOCK];
    float turned[AMX_TILE][SHEAF__ATTN_BLOCK];
    char *row = (char *)y;
    for (int64_t i = 0; i < wide; i += AMX_TILE) {
        for (int j = 0; j < SHEAF__ATTN_BLOCK; j++) keys[j] = x + j * wide + i;
        pack_columns(keys, AMX_TILE, SHEAF__ATTN_BLOCK, turned[0]);
        for (int r = 0; r < AMX_TILE; r++) {
            terms_of_floats(terms, turned[r], SHEAF__ATTN_BLOCK, row);
            row += (size_t)terms * SHEAF__ATTN_BLOCK * sizeof(uint16_t);
        }
    }
}

/* Weights as pairs of both terms: n keys, and zeros to the end of the unit. */
static void pack_weights_twice(int64_t n, const float *x, float *y) {
    for (int64_t j = 0; j < units_of(n) * BF16_UNIT; j += 2, x += 2 * LANES, y += LANES) {
        if (j > 0 && j % BF16_UNIT == 0) y += LANES_UNIT;
        for (int v = 0; v < LANES; v += VW) {
            const v_f a = j < n ? v_load(x + v) : v_set1(0.0f);
            const v_f b = j + 1 < n ? v_load(x + LANES + v) : v_set1(0.0f);
            const v_f a_rest = second_term(a, _mm512_cvtneps_pbh(a));
            const v_f b_rest = second_term(b, _mm512_cvtneps_pbh(b));
            v_store(y + v, _mm512_castsi512_ps(side_by_side(a, b)));
            v_store(y + LANES_UNIT + v, _mm512_castsi512_ps(side_by_side(a_rest, b_rest)));
        }
    }
}

/* ---- entries ---- */

static void (*soften_floats)(int64_t n, int lanes, float scale, const float *mask,
                             const float *slope, float *scores, float *weights, float *max,
                             float *sum, float *shrink); /* of the table that this one extends */

static void soften_twice(int64_t n, int lanes, float scale, const float *mask, const float *slope,
                         float *scores, float *weights, float *max, float *sum, float *shrink) {
    soften_floats(n, lanes, scale, mask, slope, scores, scores, max, sum, shrink);
    pack_weights_twice(n, scores, weights);
}
static void soften_once(int64_t n, int lanes, float scale, const float *mask, const float *slope,
                        float *scores, float *weights, float *max, float *sum, float *shrink) {
    const int64_t pairs = (n + 1) / 2, all = units_of(n) * BF16_UNIT / 2;
    lanes_soften_bf16(n, lanes, scale, mask, slope, scores, weights, max, sum, shrink);
    memset(weights + pairs * LANES, 0, (size_t)((all - pairs) * LANES) * sizeof *weights);
}

#define ATTENTION_AMX(NAME, TERMS)                                                                 \
    static void queries_##NAME(const float *const *x, int64_t k, float *y) {                       \
        pack_queries_amx(TERMS, x, k, y);                                                          \
    }                                                                                              \
    static void keys_##NAME(int64_t k, int64_t rows, const float *x, float *y) {                   \
        terms_of_floats(TERMS, x, k *rows, (char *)y);                                             \
    }                                                                                              \
    static void turned_##NAME(int64_t wide, const float *x, float *y) {                            \
        pack_values_amx(TERMS, wide, x, y);                                                        \
    }                                                                                              \
    static void scores_##NAME(int64_t k, const float *keys, int64_t rows, const float *queries,    \
                              int lanes, float *c) {                                               \
        rows_amx(TERMS, units_of(k), units_of(k), keys, rows, queries, lanes, c, false);           \
    }                                                                                              \
    static void values_##NAME(int64_t n, const float *values, int64_t wide, const float *weights,  \
                              int lanes, float *c) {                                               \
        rows_amx(TERMS, units_of(n), units_of(SHEAF__ATTN_BLOCK), values, wide, weights, lanes, c, \
                 true);                                                                            \
    }
ATTENTION_AMX(once, 1)
ATTENTION_AMX(twice, 2)

#define USE_ATTENTION_AMX(KIND, NAME)                                                              \
    table->attention[KIND] = table->attention[SHEAF__ATTENTION_FLOATS];                            \
    table->attention[KIND].rows = AMX_TILE;                                                        \
    table->attention[KIND].unit = BF16_UNIT;                                                       \
    table->attention[KIND].pack_queries = queries_##NAME;                                          \
    table->attention[KIND].pack_keys = keys_##NAME;                                                \
    table->attention[KIND].pack_values = turned_##NAME;                                            \
    table->attention[KIND].scores = scores_##NAME;                                                 \
    table->attention[KIND].soften = soften_##NAME;                                                 \
    table->attention[KIND].values = values_##NAME;                                                 \
    table->attention[KIND].begin = begin_tiles;                                                    \
    table->attention[KIND].end = end_tiles

static void use_attention_amx(struct sheaf__cpu_kernels *table) {
    soften_floats = table->attention[SHEAF__ATTENTION_FLOATS].soften;
    USE_ATTENTION_AMX(SHEAF__ATTENTION_BF16_BOTH, twice);
    USE_ATTENTION_AMX(SHEAF__ATTENTION_BF16, once);
}
