/* A part of kernels.h, of the AVX-512 table: products of few-bit weights with many columns, by
 * integers.
 *
 * Activations are integers of 16 bits times the scale of their block of 32, as two unsigned bytes:
 * q + 2^15 = h * 256 + l. VNNI multiplies the bytes with the integers of the weights exactly, at
 * half the instructions of floats. The 2^15 comes off through the sum of a block's weights, which
 * the accumulators start from. Weights are those of blocks.h, of types with one scale for 32.
 *
 * Rounding to 2^-16 of a block's largest is a 16th of what a K/V cache of F16 does, and a
 * thousandth of what types of 4 and 5 bits do to weights; it is used for those only.
 *
 * Invariant: as in panels.h. */

enum { PANEL16_ROWS = 6, PANEL16_COLS = 32, PANEL16_UNIT = 32 };

/* 32 elements of 32 columns */
struct panel16 {
    uint8_t x[2][8][PANEL16_COLS][4]; /* h, l */
    float d[PANEL16_COLS];
    float sums[PANEL16_COLS];
};
static_assert(sizeof(struct panel16) % 64 == 0, "no padding");

static void pack_16(const float *const *x, int64_t n, void *panel) {
    struct panel16 *to = panel;
    for (int64_t b = 0; b < n / 32; b++, to++) {
        for (int c = 0; c < PANEL16_COLS; c++) {
            const __m512 v[2] = {v_load(x[c] + 32 * b), v_load(x[c] + 32 * b + 16)};
            /* by their bits, which puts NaN above infinity */
            __m512i a = _mm512_castps_si512(_mm512_abs_ps(v[0]));
            a = _mm512_max_epi32(a, _mm512_castps_si512(_mm512_abs_ps(v[1])));
            const float max =
                _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(a))));
            const bool zero = max < tiny;
            const __m512 id = _mm512_set1_ps(zero ? 0.0f : 32767.0f / max);
            __m512i sum = _mm512_setzero_si512();
            uint8_t byte[2][32];
            for (int g = 0; g < 2; g++) {
                __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[g], id));
                sum = _mm512_add_epi32(sum, q);
                q = _mm512_add_epi32(q, _mm512_set1_epi32(1 << 15));
                _mm_storeu_si128((__m128i *)(byte[0] + 16 * g),
                                 _mm512_cvtepi32_epi8(_mm512_srli_epi32(q, 8)));
                _mm_storeu_si128((__m128i *)(byte[1] + 16 * g), _mm512_cvtepi32_epi8(q));
            }
            for (int j = 0; j < 8; j++) {
                memcpy(to->x[0][j][c], byte[0] + 4 * j, 4);
                memcpy(to->x[1][j][c], byte[1] + 4 * j, 4);
            }
            to->d[c] = zero ? 0.0f : max / 32767.0f;
            to->sums[c] = to->d[c] * (float)_mm512_reduce_add_epi32(sum);
        }
    }
}

#if !defined(KERNELS_AMX)
/* acc += a digit of 32 elements of the columns . blocks of the rows */
INLINE void add_digit(int vectors, const uint8_t (*x)[PANEL16_COLS][4], const struct panel_block *w,
                      size_t w_stride, __m512i (*acc)[2]) {
    UNROLL_12 for (int j = 0; j < 8; j++) {
        __m512i xs[2];
        UNROLL for (int v = 0; v < vectors; v++) xs[v] = load512(x[j][16 * v]);
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            const __m512i q = four_bytes(w[(size_t)r * w_stride].q + 4 * j);
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                _mm512_dpbusd_epi32(acc[r][v], xs[v], q);
        }
        __asm__ volatile("" ::: "memory"); /* a value loaded twice is not worth a register */
    }
}

/* The columns of so many vectors. */
INLINE void panel_16(int vectors, bool mins, int64_t k, const struct panel_block *w,
                     size_t w_stride, const struct panel16 *panel, float *c, bool add) {
    __m512 sum[PANEL16_ROWS][2];
    UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] =
            add ? v_load(c + r * PANEL16_COLS + 16 * v) : v_set1(0.0f);
    }
    for (int64_t b = 0; b < k / 32; b++, panel++, w++) {
        __m512i acc[PANEL16_ROWS][2];
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                _mm512_set1_epi32(w[(size_t)r * w_stride].start[0]);
        }
        add_digit(vectors, panel->x[0], w, w_stride, acc);
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = _mm512_slli_epi32(acc[r][v], 8);
        }
        add_digit(vectors, panel->x[1], w, w_stride, acc);
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            const struct panel_block *row = &w[(size_t)r * w_stride];
            UNROLL for (int v = 0; v < vectors; v++) {
                const __m512 d = v_mul(v_set1(row->d[0]), v_load(panel->d + 16 * v));
                sum[r][v] = v_fma(_mm512_cvtepi32_ps(acc[r][v]), d, sum[r][v]);
                if (mins)
                    sum[r][v] = v_fma(v_set1(row->m[0]), v_load(panel->sums + 16 * v), sum[r][v]);
            }
        }
    }
    UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) v_store(c + r * PANEL16_COLS + 16 * v, sum[r][v]);
    }
}

static void tile_16(int64_t k, const void *row, size_t stride, const void *panel, int used,
                    float *c, bool add) {
    const struct panel_block *w = row;
    stride /= sizeof *w;
    if (used > 16 && w->has_min) {
        panel_16(2, true, k, w, stride, panel, c, add);
    } else if (used > 16) {
        panel_16(2, false, k, w, stride, panel, c, add);
    } else if (w->has_min) {
        panel_16(1, true, k, w, stride, panel, c, add);
    } else {
        panel_16(1, false, k, w, stride, panel, c, add);
    }
}
#endif
