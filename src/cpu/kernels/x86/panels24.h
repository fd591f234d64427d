/* A part of table.h, of the AVX-512 table: products of Q8_0 with many columns, by integers.
 *
 * Weights of 8 bits are fine enough for the 16 bits of panels16.h to show beside them, so activations have three
 * digits, q = h * 65536 + m * 256 + l: three products of bytes where floats take four multiply-adds. A sum of
 * 32 products needs 36 bits. It is kept in units of 256, which are rounded once for a block: 2^-27 of the
 * largest sum that there may be.
 *
 * Invariant: as in panels.h. */

static void pack_24(const float *const *x, int64_t n, int used, void *panel) {
    pack_panel(x, n, 3, used, panel);
}

/* 16 columns. Weights are bytes plus 128, so 128 times the sum of the activations comes off: half of it in units of
 * 256, and what is left of an odd sum from the lowest digits. */
#define COLUMNS_24(NAME, PANEL)                                                                    \
    INLINE void NAME(int64_t k, const char *w, size_t stride, const struct PANEL *panel, int from, \
                     float *c, bool add) {                                                         \
        __m512 sum[PANEL16_ROWS];                                                                  \
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) sum[r] = v_set1(0.0f);                    \
        for (int64_t b = 0; b < k / 32; b++, panel++) {                                            \
            const char *row[PANEL16_ROWS];                                                         \
            __m512i acc[PANEL16_ROWS][3];                                                          \
            const __m512i all =                                                                    \
                _mm512_add_epi32(load512(panel->sums[0] + from), load512(panel->sums[1] + from));  \
            const __m512i half =                                                                   \
                _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_srai_epi32(all, 1));               \
            /* 128 to round, less 128 if the sum is odd */                                         \
            const __m512i start =                                                                  \
                _mm512_slli_epi32(_mm512_andnot_si512(all, _mm512_set1_epi32(1)), 7);              \
            UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                     \
                row[r] = row_at(block_at(w, b), stride, r);                                        \
                acc[r][0] = _mm512_setzero_si512();                                                \
                acc[r][1] = half;                                                                  \
                acc[r][2] = start;                                                                 \
            }                                                                                      \
            UNROLL_12 for (int j = 0; j < 8; j++) {                                                \
                __m512i x[3];                                                                      \
                UNROLL for (int i = 0; i < 3; i++) x[i] = load512(panel->x[i][j][from]);           \
                UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                 \
                    const __m512i q = four_bytes(row[r] + 4 * j);                                  \
                    UNROLL for (int i = 0; i < 3; i++) acc[r][i] =                                 \
                        _mm512_dpbusd_epi32(acc[r][i], q, x[i]);                                   \
                }                                                                                  \
            }                                                                                      \
            const __m512i less = load512(panel->less + from);                                      \
            UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                     \
                const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(acc[r][0], 8), acc[r][1]); \
                const __m512i q = _mm512_add_epi32(high, _mm512_srai_epi32(acc[r][2], 8));         \
                sum[r] = v_fma(in_units_16(q, less), v_set1(scales_at(row[r])->d[0]), sum[r]);     \
            }                                                                                      \
        }                                                                                          \
        panel--;                                                                                   \
        const v_f unit = v_add(v_load(panel->unit + from), v_set1(8.0f));                          \
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                         \
            float *to = c + r * PANEL16_COLS + from;                                               \
            const v_f x = v_ldexp(sum[r], unit);                                                   \
            v_store(to, add ? v_add(v_load(to), x) : x);                                           \
        }                                                                                          \
    }
COLUMNS_24(columns_24, panel24)
COLUMNS_24(columns_24_half, panel24_half)

static void tile_24(int64_t k, const void *row, size_t stride, const void *panel, int used,
                    float *c, bool add) {
    if (used <= PANEL16_HALF) {
        columns_24_half(k, row, stride, panel, 0, c, add);
        return;
    }
    columns_24(k, row, stride, panel, 0, c, add);
    columns_24(k, row, stride, panel, PANEL16_HALF, c, add);
}
