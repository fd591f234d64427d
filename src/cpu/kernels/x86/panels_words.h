/* A part of table.h, of the AVX-512 table: the products of panels16.h by words, for cores with two ports for all that
 * works on 512 bits (Intel's).
 *
 * There an instruction that is no product takes the place of one: of 64 cycles for a block of 32, six rows and 16
 * columns by two digits 16 join, shift and place sums. Words of weights multiply whole activations (VPDPWSSD), as many
 * a cycle, and leave one sum to place: 39 of 231 cycles for twelve rows and 32 columns, which are summed at a time, so
 * that no product waits for another. Sums of a pass are in memory, which other ports load and store.
 *
 * Invariant: the bits are those of panels16.h, whose integers these are. */

enum { WORDS_ROWS = 12 };

/* Four rows, addressed from the first. */
struct four_rows {
    const char *first;
    size_t stride;
};
INLINE void rows_of_tile(const char *first, size_t stride, struct four_rows *rows) {
    UNROLL for (int i = 0; i < WORDS_ROWS / 4; i++) {
        rows[i].first = row_at(first, stride, 4 * i);
        rows[i].stride = stride;
    }
}
INLINE const char *row_of(const struct four_rows *rows, int r) {
    return rows[r / 4].first + (size_t)(r % 4) * rows->stride;
}

enum {
    /* A block of a panel, of 16 or 32 columns: rows of 4 bytes for each. As struct panel16, with pairs of
     * words where that has digits. */
    WORDS_SUMS = 16,
    WORDS_LESS = 18,
    WORDS_UNIT = 19,
    WORDS_ALL = 20,
};
static_assert(WORDS_ALL * 4 * PANEL16_COLS == sizeof(struct panel16) &&
                  WORDS_SUMS * 4 * PANEL16_COLS == offsetof(struct panel16, sums),
              "they differ in the digits only");

INLINE size_t at_row(int cols, int row) { return (size_t)(row * cols) * 4; }

INLINE void pack_words_of(int cols, const float *const *x, int64_t n, char *panel) {
    const size_t size = at_row(cols, WORDS_ALL);
    for (int64_t b = 0; b < n / 32; b++) {
        char *to = panel + (size_t)b * size;
        for (int c = 0; c < cols; c++, to += 4) {
            __m512i q[2];
            int16_t words[32];
            const int32_t exponent = integers_by_power(x[c] + 32 * b, q);
            memcpy(to + at_row(cols, WORDS_LESS), &exponent, sizeof exponent);
            for (int g = 0; g < 2; g++) {
                const int32_t sum = sum_of_lanes(q[g]);
                memcpy(to + at_row(cols, WORDS_SUMS + g), &sum, sizeof sum);
                _mm256_storeu_si256((__m256i *)(words + 16 * g), _mm512_cvtepi32_epi16(q[g]));
            }
            for (int j = 0; j < 16; j++) memcpy(to + at_row(cols, j), words + 2 * j, 4);
        }
    }
    for (int c = 0; c < cols; c += 16, panel += 64)
        units_of_columns(n / 32, size, panel + at_row(cols, WORDS_LESS),
                         panel + at_row(cols, WORDS_UNIT));
}
static void pack_words_16(const float *const *x, int64_t n, int used, void *panel) {
    if (used <= PANEL16_HALF)
        pack_words_of(PANEL16_HALF, x, n, panel);
    else
        pack_words_of(PANEL16_COLS, x, n, panel);
}

/* As struct panel_row. */
struct words_row {
    uint16_t q[PANEL_ROW_BLOCKS][32];
    struct panel_scales of[PANEL_ROW_BLOCKS];
};
static_assert(sizeof(struct words_row) == 384, "no padding");

INLINE void widen_row(const struct panel_row *from, int64_t n, struct words_row *to) {
    for (; n > 0; n -= PANEL_ROW_UNIT, from++, to++) {
        UNROLL for (int b = 0; b < PANEL_ROW_BLOCKS; b++)
            _mm512_storeu_si512(to->q[b], _mm512_cvtepu8_epi16(load256(from->q[b])));
        memcpy(to->of, from->of, sizeof to->of);
    }
}

#define WIDE(BLOCKS_OF)   BY_WAY_OF_BYTES(wide_##BLOCKS_OF, BLOCKS_OF, widen_row)
#define WIDE_SIGNED(TYPE) WIDE(blocks_signed_##TYPE)
WIDE(blocks_q8_0)
WIDE(blocks_q4_0)
WIDE(blocks_q4_1)
WIDE(blocks_q5_0)
WIDE(blocks_q5_1)
WIDE(blocks_q4_k)
WIDE(blocks_q5_k)
WIDE(blocks_q6_k)
SIGNED_BY_32(WIDE_SIGNED)
SIGNED_BY_16(WIDE_SIGNED)

/* The columns of so many vectors. */
INLINE void columns_words(int vectors, bool mins, bool by_16, int64_t k, const char *w,
                          size_t stride, const char *panel, float *c, bool add) {
    const int cols = 16 * vectors, parts = BLOCK_PARTS(by_16), pairs = 16 / parts;
    const size_t size = at_row(cols, WORDS_ALL);
    const struct panel_scales *like = (const void *)(w + offsetof(struct words_row, of));
    const __m512i offset = _mm512_set1_epi32(-like->offset);
    _Alignas(64) float sum[WORDS_ROWS][2][VW];
    for (int r = 0; r < WORDS_ROWS; r++) {
        for (int v = 0; v < vectors; v++) v_store(sum[r][v], v_set1(0.0f));
    }
    for (int64_t b = 0; b < k / 32; b++, panel += size) {
        const char *row = w + b / PANEL_ROW_BLOCKS * (int64_t)sizeof(struct words_row);
        const int64_t i = b % PANEL_ROW_BLOCKS;
        struct four_rows q[WORDS_ROWS / 4], of[WORDS_ROWS / 4];
        rows_of_tile(row + 64 * i, stride, q);
        rows_of_tile(row + offsetof(struct words_row, of) + 32 * i, stride, of);
        UNROLL for (int p = 0; p < parts; p++) {
            __m512i acc[WORDS_ROWS][2], less[2];
            v_f all[2];
            UNROLL for (int v = 0; v < vectors; v++) {
                const char *x = panel + 64 * v;
                less[v] = load512(x + at_row(cols, WORDS_LESS));
                __m512i start = load512(x + at_row(cols, WORDS_SUMS + p));
                if (!by_16)
                    start = _mm512_add_epi32(start, load512(x + at_row(cols, WORDS_SUMS + 1)));
                if (mins) all[v] = in_units_16(start, less[v]);
                start = mins ? _mm512_setzero_si512() : _mm512_mullo_epi32(start, offset);
                UNROLL_12 for (int r = 0; r < WORDS_ROWS; r++) acc[r][v] = start;
            }
            UNROLL_16 for (int j = pairs * p; j < pairs * (p + 1); j++) {
                __m512i x[2];
                UNROLL for (int v = 0; v < vectors; v++) x[v] =
                    load512(panel + at_row(cols, j) + 64 * v);
                UNROLL_12 for (int r = 0; r < WORDS_ROWS; r++) {
                    const __m512i two = four_bytes(row_of(q, r) + 4 * j);
                    UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                        _mm512_dpwssd_epi32(acc[r][v], two, x[v]);
                }
                /* a value loaded twice is not worth a register */
                __asm__ volatile("" ::: "memory");
            }
            UNROLL_12 for (int r = 0; r < WORDS_ROWS; r++) {
                const struct panel_scales *s = (const void *)row_of(of, r);
                UNROLL for (int v = 0; v < vectors; v++) {
                    v_f x = v_load(sum[r][v]);
                    x = v_fma(in_units_16(acc[r][v], less[v]), v_set1(s->d[p]), x);
                    if (mins) x = v_fma(v_set1(s->m[p]), all[v], x);
                    v_store(sum[r][v], x);
                }
            }
        }
    }
    panel -= size;
    for (int v = 0; v < vectors; v++) {
        const v_f unit =
            v_load((const float *)(const void *)(panel + at_row(cols, WORDS_UNIT)) + 16 * v);
        for (int r = 0; r < WORDS_ROWS; r++) {
            float *to = c + r * PANEL16_COLS + 16 * v;
            const v_f x = v_ldexp(v_load(sum[r][v]), unit);
            v_store(to, add ? v_add(v_load(to), x) : x);
        }
    }
}

#define BY_VECTORS(MINS, BY_16)                                                                    \
    if (used <= VW) {                                                                              \
        columns_words(1, MINS, BY_16, k, row, stride, panel, c, add);                              \
    } else {                                                                                       \
        columns_words(2, MINS, BY_16, k, row, stride, panel, c, add);                              \
    }
static void tile_words_16(int64_t k, const void *row, size_t stride, const void *panel, int used,
                          float *c, bool add) {
    const struct panel_scales *like =
        (const void *)((const char *)row + offsetof(struct words_row, of));
    BY_KIND(like, BY_VECTORS(mins, by_16));
}
