/* The AVX-512 table with products of BF16 (VDPBF16PS): what it adds to that of avx512.c. */
#include "cpu/kernels/x86/avx512.h"
#include "cpu/kernels/x86/bf16.h"

#include "cpu/kernels/x86/attention_bf16.h"
#include "cpu/kernels/x86/bf16_rows.h"

enum { BF16_ROWS = 12 };

INLINE __m512bh two_weights(const char *row, int64_t i) {
    int32_t x;
    memcpy(&x, row + (size_t)i * sizeof(uint16_t), sizeof x);
    return (__m512bh)_mm512_set1_epi32(x);
}
INLINE __m512bh pairs_of(const uint16_t (*x)[2]) {
    __m512bh v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* The columns of so many vectors. */
INLINE void panel_bf16(int vectors, int terms, int64_t k, const char *row, size_t stride,
                       const struct panel_bf16 *panel, float *c, bool add) {
    v_f acc[BF16_ROWS][2];
    UNROLL_12 for (int r = 0; r < BF16_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
            add ? v_load(c + r * BF16_COLS + v * VW) : v_set1(0.0f);
    }
    for (int64_t i = 0; i < k; i += BF16_UNIT, panel += terms) {
        for (int j = 0; j < BF16_UNIT / 2; j++) {
            __m512bh x[2][2];
            UNROLL for (int t = 0; t < terms; t++) {
                UNROLL for (int v = 0; v < vectors; v++) x[t][v] = pairs_of(panel[t].x[j] + v * VW);
            }
            UNROLL_12 for (int r = 0; r < BF16_ROWS; r++) {
                const __m512bh w = two_weights(row + (size_t)r * stride, i + 2 * j);
                UNROLL for (int t = 0; t < terms; t++) {
                    UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                        _mm512_dpbf16_ps(acc[r][v], w, x[t][v]);
                }
            }
        }
    }
    UNROLL_12 for (int r = 0; r < BF16_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) v_store(c + r * BF16_COLS + v * VW, acc[r][v]);
    }
}
#define TILE_BF16(NAME, TERMS)                                                                     \
    static void NAME(int64_t k, const void *row, size_t stride, const void *panel, int used,       \
                     float *c, bool add) {                                                         \
        if (used > VW) {                                                                           \
            panel_bf16(2, TERMS, k, row, stride, panel, c, add);                                   \
        } else {                                                                                   \
            panel_bf16(1, TERMS, k, row, stride, panel, c, add);                                   \
        }                                                                                          \
    }
TILE_BF16(tile_bf16, 1)
TILE_BF16(tile_bf16_twice, 2)

/* ---- attention of many queries: two elements of a query and of a key, or two keys of weights and of values,
 * side by side ---- */

/* n floats to BF16, in their order. */
INLINE void round_bf16(int64_t n, const float *x, void *y) {
    uint16_t *to = y;
    for (; n >= 2 * VW; n -= 2 * VW, x += 2 * VW, to += 2 * VW)
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(v_load(x + VW), v_load(x)));
    for (; n > 0; n -= VW, x += VW, to += VW) {
        const __m256bh last = _mm512_cvtneps_pbh(n < VW ? v_load_n(x, n) : v_load(x));
        memcpy(to, &last, (size_t)(n < VW ? n : VW) * sizeof *to);
    }
}

static void pack_queries_bf16(const float *const *x, int64_t n, float *panel) {
    enum { PART = 64 };
    uint16_t rounded[LANES][PART];
    const float *pairs[LANES]; /* moved as floats, whatever they are */
    for (int c = 0; c < LANES; c++) pairs[c] = (const float *)(const void *)rounded[c];
    for (int64_t i = 0; i < n; i += PART, panel += PART / 2 * LANES) {
        const int64_t len = n - i < PART ? n - i : PART;
        for (int c = 0; c < LANES; c++) round_bf16(len, x[c] + i, rounded[c]);
        pack_columns(pairs, len / 2, LANES, panel);
    }
}

static void pack_keys_bf16(int64_t k, int64_t rows, const float *x, float *y) {
    round_bf16(k * rows, x, y);
}

static void pack_values_bf16(int64_t wide, const float *x, float *y) {
    for (int64_t j = 0; j < SHEAF__ATTN_BLOCK; j += 2, x += 2 * wide, y += wide) {
        for (int64_t i = 0; i < wide; i += VW) {
            const __mmask16 there = (__mmask16)(wide - i < VW ? (1u << (wide - i)) - 1 : 0xffff);
            const __m512i both = side_by_side(_mm512_maskz_loadu_ps(there, x + i),
                                              _mm512_maskz_loadu_ps(there, x + wide + i));
            _mm512_mask_storeu_epi32(y + i, there, both);
        }
    }
}

static void scores_bf16(int64_t k, const float *keys, int64_t rows, const float *queries, int lanes,
                        float *c) {
    lanes_tiles(true, k / 2, keys, k / 2, 1, rows, queries, lanes, c, false);
}
static void values_bf16(int64_t n, const float *values, int64_t wide, const float *weights,
                        int lanes, float *c) {
    lanes_tiles(true, (n + 1) / 2, values, 1, wide, wide, weights, lanes, c, true);
}

static void use_attention_bf16(struct sheaf__cpu_kernels *table) {
    struct sheaf__cpu_attention *a = &table->attention[SHEAF__ATTENTION_BF16];
    *a = table->attention[SHEAF__ATTENTION_FLOATS];
    a->unit = 2;
    a->pack_queries = pack_queries_bf16;
    a->pack_keys = pack_keys_bf16;
    a->pack_values = pack_values_bf16;
    a->scores = scores_bf16;
    a->soften = lanes_soften_bf16;
    a->values = values_bf16;
}

void sheaf__cpu_kernels_extend(struct sheaf__cpu_kernels *table) {
    sheaf__cpu_kernels_use_vbmi(table);
    sheaf__cpu_kernels_use_repacked(table);
    if (sheaf__cpu_fetch == SHEAF__FETCH_OFTEN) sheaf__cpu_kernels_use_halves(table); /* a Zen 4 */
    use_rows_bf16(table, SHEAF__BF16_COLS);
    use_attention_bf16(table);
    use_panels_bf16(table, BF16_ROWS, tile_bf16, tile_bf16_twice, NULL, NULL);
    /* AMD's cores shift and add in other pipes than those that multiply: joining digits costs no products. */
    table->panels[SHEAF__PANELS_16_WORDS] = (struct sheaf__cpu_panels){0};
}
