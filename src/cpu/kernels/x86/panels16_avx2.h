/* A part of table.h, of the AVX2 table: products of quantized weights with many columns, by
 * integers of 16 bits.
 *
 * Activations are the integers of panels16.h, which digits of products by rows are made of, too, but not
 * taken apart into bytes; weights are widened to 16 bits, without an offset. VPMADDWD multiplies 16 pairs
 * exactly where a multiply-add of floats takes 8, and its sums, of at most 32 * 128 * 32512, are added on
 * pipes that do not multiply. One conversion for 32 weights, or for 16 where they have a scale for 16,
 * joins them to the sums.
 *
 * Invariant: as in panels.h. */

enum { PANEL16_ROWS = TILE_ROWS, PANEL16_COLS = TILE_COLS };

/* 32 elements of all columns */
struct panel16 {
    int16_t x[16][PANEL16_COLS][2];
    float d[PANEL16_COLS];
    float sums[2][PANEL16_COLS]; /* of 16 each, times d */
};
static_assert(sizeof(struct panel16) % 64 == 0, "no padding");

static void pack_16(const float *const *x, int64_t n, int used, void *panel) {
    struct panel16 *to = panel;
    (void)used;
    for (int64_t b = 0; b < n / 32; b++, to++) {
        for (int c = 0; c < PANEL16_COLS; c++) {
            __m256i q[4];
            int16_t words[32];
            to->d[c] = integers_of_32(x[c] + 32 * b, 127.0f * 256.0f, q);
            UNROLL for (int h = 0; h < 2; h++) {
                const __m256i first = q[2 * h], second = q[2 * h + 1];
                store256(words + 16 * h, pack_words(first, second));
                to->sums[h][c] = to->d[c] * (float)hsum8_i32(_mm256_add_epi32(first, second));
            }
            for (int j = 0; j < 16; j++) memcpy(to->x[j][c], words + 2 * j, 4);
        }
    }
}

/* n weights of a row of bytes, widened; their offset, which is a part of the min there, comes off. */
INLINE void widen_row(enum sheaf_type type, struct panel_row *row, int64_t n) {
    const __m256i offset = _mm256_set1_epi16((int16_t)panel_offset(type));
    for (int64_t b = 0; b < n / 32; b++, row++) {
        const __m256i q = load256(row->q);
        const __m128i half[2] = {_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)};
        UNROLL for (int h = 0; h < 2; h++) {
            const __m256i wide = _mm256_cvtepu8_epi16(half[h]);
            _mm256_storeu_si256((__m256i *)(row->words + 16 * h), _mm256_sub_epi16(wide, offset));
        }
        if (panel_offset(type)) row->has_min = 0;
    }
}

/* The columns of so many vectors. Sums stay in memory: registers are for the integers. */
INLINE void panel_16(int vectors, bool by_16, bool mins, int64_t k, const struct panel_row *w,
                     size_t w_stride, const struct panel16 *panel, float *c, bool add) {
    const int parts = BLOCK_PARTS(by_16), pairs = 16 / parts;
    if (!add) clear_tile(vectors, c);
    for (int64_t b = 0; b < k / 32; b++, panel++, w++) {
        UNROLL for (int h = 0; h < parts; h++) {
            __m256i acc[PANEL16_ROWS][2];
            UNROLL_16 for (int i = pairs * h; i < pairs * (h + 1); i++) {
                __m256i x[2];
                UNROLL for (int v = 0; v < vectors; v++) x[v] = load256(panel->x[i][VW * v]);
                UNROLL for (int r = 0; r < PANEL16_ROWS; r++) {
                    const __m256i q = four_bytes(w[(size_t)r * w_stride].words + 2 * i);
                    UNROLL for (int v = 0; v < vectors; v++) {
                        acc[r][v] = i > pairs * h ? madd_acc(acc[r][v], q, x[v])
                                                  : _mm256_madd_epi16(q, x[v]);
                        __asm__("" : "+x"(acc[r][v])); /* gcc would multiply all first, and spill */
                    }
                }
                __asm__ volatile("" ::: "memory");
            }
            add_block(vectors, by_16, mins, h, acc, w, w_stride, panel->d, panel->sums, c);
        }
    }
}

INLINE void panel_16_of(int vectors, int64_t k, const struct panel_row *w, size_t w_stride,
                        const struct panel16 *panel, float *c, bool add) {
    BY_KIND(w, panel_16(vectors, by_16, mins, k, w, w_stride, panel, c, add));
}

static void tile_16(int64_t k, const void *row, size_t stride, const void *panel, int used,
                    float *c, bool add) {
    const size_t w_stride = stride / sizeof(struct panel_row);
    if (used > VW)
        panel_16_of(2, k, row, w_stride, panel, c, add);
    else
        panel_16_of(1, k, row, w_stride, panel, c, add);
}

/* The functions of the table: a row of bytes, then of words. */
#define WORDS(NAME, BLOCKS, TYPE)                                                                  \
    static void NAME(const void *src, void *to, int64_t n) {                                       \
        BLOCKS(src, to, n);                                                                        \
        widen_row(TYPE, to, n);                                                                    \
    }
WORDS(words_q8_0, blocks_q8_0, SHEAF_TYPE_Q8_0)
WORDS(words_q4_0, blocks_q4_0, SHEAF_TYPE_Q4_0)
WORDS(words_q4_1, blocks_q4_1, SHEAF_TYPE_Q4_1)
WORDS(words_q5_0, blocks_q5_0, SHEAF_TYPE_Q5_0)
WORDS(words_q5_1, blocks_q5_1, SHEAF_TYPE_Q5_1)
WORDS(words_q4_k, blocks_q4_k, SHEAF_TYPE_Q4_K)
WORDS(words_q5_k, blocks_q5_k, SHEAF_TYPE_Q5_K)
WORDS(words_q6_k, blocks_q6_k, SHEAF_TYPE_Q6_K)
#define WORDS_SIGNED(TYPE) WORDS(words_signed_##TYPE, blocks_signed_##TYPE, SHEAF_TYPE_##TYPE)
SIGNED_BY_32(WORDS_SIGNED)
SIGNED_BY_16(WORDS_SIGNED)
