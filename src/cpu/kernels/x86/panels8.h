/* A part of table.h, in the same terms: products with many columns whose activations are rounded
 * to 8 bits, d = (largest magnitude of 32) / 127. Only where the user asks for it: rounding makes a
 * difference in the last bit of an activation a step of 1/127 in a few, and so another split of the
 * same model other tokens.
 *
 * Products of bytes are summed exactly in 32 bits, of a block of 32, or of 16 where weights have a
 * scale for 16; then one conversion joins them to the sums. With VNNI accumulators start from what takes
 * off the offset of the weights. Without VNNI sums of pairs have 16 bits, which hold those of 8 products
 * of weights of 4 bits (8 * 2 * 15 * 127 < 2^15), 4 of 5 bits, 2 of 6 bits, before they are widened, and
 * not one of 8 bits: panels16_avx2.h multiplies those.
 *
 * Invariant: as in panels.h. */

enum { PANEL8_ROWS = TILE_ROWS };

/* Blocks whose largest magnitude is below this are zero: 127 / max would overflow. */
static const float tiny = 0x1p-116f;

/* 8 i32, each the sum of 4 bytes. */
INLINE __m256i sum_4(__m256i q) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
}

/* The sums of 16 bytes each. */
INLINE void sums_16(__m256i q, int32_t *sums) {
    __m256i s = sum_4(q);
    s = _mm256_hadd_epi32(s, s);
    s = _mm256_hadd_epi32(s, s);
    sums[0] = _mm256_extract_epi32(s, 0);
    sums[1] = _mm256_extract_epi32(s, 4);
}

static void pack_8(const float *const *x, int64_t n, int used, void *panel) {
    struct panel8 *to = panel;
    (void)used;
    for (int64_t b = 0; b < n / 32; b++, to++) {
        for (int c = 0; c < PANEL8_COLS; c++) {
            const float *from = x[c] + 32 * b;
            __m256i bits = _mm256_setzero_si256();
            UNROLL for (int j = 0; j < 4; j++) bits =
                max_abs_bits(bits, _mm256_loadu_ps(from + 8 * j));
            const float max = hmax_bits(bits), d = max < tiny ? 0.0f : max / 127.0f;
            const __m256i q = round_32(from, max < tiny ? 0.0f : 127.0f / max);
            int32_t sums[2];
            int8_t bytes[32];
            sums_16(q, sums);
            to->d[c] = d;
#if defined(KERNELS_VNNI_512)
            to->sums[0][c] = sums[0];
            to->sums[1][c] = sums[1];
#else
            to->sums[0][c] = d * (float)sums[0];
            to->sums[1][c] = d * (float)sums[1];
#endif
#if defined(KERNELS_VNNI_256)
            to->integers[0][c] = sums[0];
            to->integers[1][c] = sums[1];
#endif
            _mm256_storeu_si256((__m256i *)bytes, q);
            for (int j = 0; j < 8; j++) memcpy(to->x[j][c], bytes + 4 * j, 4);
        }
    }
}

#if defined(KERNELS_VNNI_512)
/* acc += elements 4 j .. of the columns . those of the rows, for n of them from j on */
INLINE void add_bytes(int vectors, const struct panel8 *panel, int j, int n, const char *const *row,
                      __m512i (*acc)[2]) {
    UNROLL_12 for (int i = j; i < j + n; i++) {
        __m512i xs[2];
        UNROLL for (int v = 0; v < vectors; v++) xs[v] = load512(panel->x[i][16 * v]);
        UNROLL_12 for (int r = 0; r < PANEL8_ROWS; r++) {
            const __m512i q = four_bytes(row[r] + 4 * i);
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                _mm512_dpbusd_epi32(acc[r][v], q, xs[v]);
        }
        __asm__ volatile("" ::: "memory"); /* a value loaded twice is not worth a register */
    }
}

/* The columns of so many vectors. */
INLINE void panel_8(int vectors, bool by_16, bool mins, int64_t k, const char *w, size_t stride,
                    const struct panel8 *panel, float *c, bool add) {
    const int parts = BLOCK_PARTS(by_16);
    const __m512i offset = _mm512_set1_epi32(-scales_at(w)->offset);
    __m512 sum[PANEL8_ROWS][2];
    UNROLL_12 for (int r = 0; r < PANEL8_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] =
            add ? v_load(c + r * PANEL8_COLS + 16 * v) : v_set1(0.0f);
    }
    for (int64_t b = 0; b < k / 32; b++, panel++) {
        const char *row[PANEL8_ROWS];
        UNROLL_12 for (int r = 0; r < PANEL8_ROWS; r++) row[r] = row_at(block_at(w, b), stride, r);
        UNROLL for (int h = 0; h < parts; h++) {
            __m512i acc[PANEL8_ROWS][2];
            __m512 d[2], sums[2];
            UNROLL for (int v = 0; v < vectors; v++) {
                __m512i x = load512(panel->sums[h] + 16 * v);
                if (!by_16) x = _mm512_add_epi32(x, load512(panel->sums[1] + 16 * v));
                d[v] = v_load(panel->d + 16 * v);
                sums[v] = v_mul(d[v], _mm512_cvtepi32_ps(x));
                x = mins ? _mm512_setzero_si512() : _mm512_mullo_epi32(x, offset);
                UNROLL_12 for (int r = 0; r < PANEL8_ROWS; r++) acc[r][v] = x;
            }
            add_bytes(vectors, panel, 8 / parts * h, 8 / parts, row, acc);
            UNROLL_12 for (int r = 0; r < PANEL8_ROWS; r++) {
                const struct panel_scales *of = scales_at(row[r]);
                UNROLL for (int v = 0; v < vectors; v++) {
                    const __m512 scale = v_mul(v_set1(of->d[h]), d[v]);
                    sum[r][v] = v_fma(_mm512_cvtepi32_ps(acc[r][v]), scale, sum[r][v]);
                    if (mins) sum[r][v] = v_fma(v_set1(of->m[h]), sums[v], sum[r][v]);
                }
            }
        }
    }
    UNROLL_12 for (int r = 0; r < PANEL8_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) v_store(c + r * PANEL8_COLS + 16 * v, sum[r][v]);
    }
}
#elif defined(KERNELS_VNNI_256)
/* acc = `first` + elements of the columns . those of the rows, n times 4 of them from 4 j on. */
INLINE void sum_bytes(int vectors, const struct panel8 *panel, int j, int n,
                      const struct panel_row *w, size_t w_stride, const __m256i *first,
                      __m256i (*acc)[2]) {
    UNROLL_12 for (int i = j; i < j + n; i++) {
        __m256i x[2];
        UNROLL for (int v = 0; v < vectors; v++) x[v] = load256(panel->x[i][8 * v]);
        UNROLL for (int r = 0; r < PANEL8_ROWS; r++) {
            const __m256i q = four_bytes(w[(size_t)r * w_stride].q + 4 * i);
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                _mm256_dpbusd_avx_epi32(i == j ? first[v] : acc[r][v], q, x[v]);
        }
        __asm__ volatile("" ::: "memory"); /* a value loaded twice is not worth a register */
    }
}

/* The columns of so many vectors. Sums stay in memory: registers are for the integers. */
INLINE void panel_8(int vectors, bool by_16, bool mins, int64_t k, const struct panel_row *w,
                    size_t w_stride, const struct panel8 *panel, float *c, bool add) {
    const int parts = BLOCK_PARTS(by_16);
    const __m256i offset = _mm256_set1_epi32(-w->offset);
    if (!add) clear_tile(vectors, c);
    for (int64_t b = 0; b < k / 32; b++, panel++, w++) {
        UNROLL for (int h = 0; h < parts; h++) {
            __m256i acc[PANEL8_ROWS][2], first[2];
            UNROLL for (int v = 0; v < vectors; v++) {
                __m256i x = load256(panel->integers[h] + VW * v);
                if (!by_16) x = _mm256_add_epi32(x, load256(panel->integers[1] + VW * v));
                first[v] = mins ? _mm256_setzero_si256() : _mm256_mullo_epi32(x, offset);
            }
            sum_bytes(vectors, panel, 8 / parts * h, 8 / parts, w, w_stride, first, acc);
            add_block(vectors, by_16, mins, h, acc, w, w_stride, panel->d, panel->sums, c);
        }
    }
}

#else
/* acc = elements of the columns . those of the rows, n times 4 of them from 4 j on; summed in 16 bits if
 * they hold all sums, else in 32. */
INLINE void sum_bytes(bool narrow, int vectors, const struct panel8 *panel, int j, int n,
                      const struct panel_row *w, size_t w_stride, __m256i (*acc)[2]) {
    const int step = narrow ? 1 : 2; /* those of 6 bits */
    const __m256i one = _mm256_set1_epi16(1);
    UNROLL_12 for (int i = 0; i < n; i += step) {
        UNROLL for (int r = 0; r < PANEL8_ROWS; r++) {
            const uint8_t *q = w[(size_t)r * w_stride].q + 4 * (j + i);
            UNROLL for (int v = 0; v < vectors; v++) {
                __m256i p = _mm256_maddubs_epi16(four_bytes(q), load256(panel->x[j + i][8 * v]));
                if (step == 2) {
                    const __m256i next = load256(panel->x[j + i + 1][8 * v]);
                    p = _mm256_add_epi16(p, _mm256_maddubs_epi16(four_bytes(q + 4), next));
                }
                if (!narrow) p = _mm256_madd_epi16(p, one);
                if (i > 0)
                    p = narrow ? _mm256_add_epi16(acc[r][v], p) : _mm256_add_epi32(acc[r][v], p);
                acc[r][v] = p;
                __asm__("" : "+x"(acc[r][v])); /* gcc would multiply all first, and spill */
            }
        }
        __asm__ volatile("" ::: "memory");
    }
    UNROLL for (int r = 0; r < PANEL8_ROWS && narrow; r++) {
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = _mm256_madd_epi16(acc[r][v], one);
    }
}

/* The columns of so many vectors. Sums stay in memory: registers are for the integers. */
INLINE void panel_8(int vectors, int bits, bool by_16, int64_t k, const struct panel_row *w,
                    size_t w_stride, const struct panel8 *panel, float *c, bool add) {
    const bool narrow = bits <= 5;
    const int n = by_16 || bits == 5 ? 4 : 8; /* of a part, in fours */
    if (!add) clear_tile(vectors, c);
    for (int64_t b = 0; b < k / 32; b++, panel++, w++) {
        for (int part = 0; part < 8 / n; part++) {
            __m256i acc[PANEL8_ROWS][2];
            sum_bytes(narrow, vectors, panel, part * n, n, w, w_stride, acc);
            add_block(vectors, by_16, by_16 || part == 0, by_16 ? part : 0, acc, w, w_stride,
                      panel->d, panel->sums, c);
        }
    }
}

#define TILE_8(VECTORS)                                                                            \
    if (like->bits == 4 && !like->by_16)                                                           \
        panel_8(VECTORS, 4, false, k, w, stride, panel, c, add);                                   \
    else if (like->bits == 4)                                                                      \
        panel_8(VECTORS, 4, true, k, w, stride, panel, c, add);                                    \
    else if (like->bits == 5 && !like->by_16)                                                      \
        panel_8(VECTORS, 5, false, k, w, stride, panel, c, add);                                   \
    else if (like->bits == 5)                                                                      \
        panel_8(VECTORS, 5, true, k, w, stride, panel, c, add);                                    \
    else                                                                                           \
        panel_8(VECTORS, 6, true, k, w, stride, panel, c, add)
#endif

#if defined(KERNELS_VNNI_512) || defined(KERNELS_VNNI_256)
#define TILE_8(VECTORS) BY_KIND(like, panel_8(VECTORS, by_16, mins, k, w, stride, panel, c, add))
#endif

static void tile_8(int64_t k, const void *row, size_t stride, const void *panel, int used, float *c,
                   bool add) {
#if defined(KERNELS_VNNI_512)
    const char *w = row;
    const struct panel_scales *like = scales_at(w);
#else
    const struct panel_row *w = row, *like = w;
    stride /= sizeof *w;
#endif
    if (used > VW) {
        TILE_8(2);
    } else {
        TILE_8(1);
    }
}
