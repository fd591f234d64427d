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

/* Bytes h of 4 elements of a column, [8][cols][4] at x, then bytes l, and its d and sum. */
INLINE void pack_block(const float *from, int cols, uint8_t (*x)[4], float *d, float *sum) {
    const __m512 v[2] = {v_load(from), v_load(from + 16)};
    /* by their bits, which puts NaN above infinity */
    __m512i a = _mm512_castps_si512(_mm512_abs_ps(v[0]));
    a = _mm512_max_epi32(a, _mm512_castps_si512(_mm512_abs_ps(v[1])));
    const float max =
        _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(a))));
    const bool zero = max < tiny;
    const __m512 id = _mm512_set1_ps(zero ? 0.0f : 32767.0f / max);
    __m512i sums = _mm512_setzero_si512();
    uint8_t byte[2][32];
    for (int g = 0; g < 2; g++) {
        __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[g], id));
        sums = _mm512_add_epi32(sums, q);
        q = _mm512_add_epi32(q, _mm512_set1_epi32(1 << 15));
        _mm_storeu_si128((__m128i *)(byte[0] + 16 * g),
                         _mm512_cvtepi32_epi8(_mm512_srli_epi32(q, 8)));
        _mm_storeu_si128((__m128i *)(byte[1] + 16 * g), _mm512_cvtepi32_epi8(q));
    }
    for (int j = 0; j < 8; j++) {
        memcpy(x[j * cols], byte[0] + 4 * j, 4);
        memcpy(x[(8 + j) * cols], byte[1] + 4 * j, 4);
    }
    *d = zero ? 0.0f : max / 32767.0f;
    *sum = *d * (float)_mm512_reduce_add_epi32(sums);
}

static void pack_16(const float *const *x, int64_t n, int used, void *panel) {
    struct panel16 *to = panel;
    struct panel16_half *half = panel;
    for (int64_t b = 0; b < n / 32; b++) {
        for (int c = 0; used <= PANEL16_HALF && c < PANEL16_HALF; c++)
            pack_block(x[c] + 32 * b, PANEL16_HALF, &half[b].x[0][0][c], &half[b].d[c],
                       &half[b].sums[c]);
        for (int c = 0; used > PANEL16_HALF && c < PANEL16_COLS; c++)
            pack_block(x[c] + 32 * b, PANEL16_COLS, &to[b].x[0][0][c], &to[b].d[c], &to[b].sums[c]);
    }
}

/* ---- weights ---- */

/* Four blocks, the first and second halves of each in lo and hi, its scale and its min in its four
 * lanes of d and m: as panel_block of blocks.h has them, `step` apart. */
INLINE void panel_quad(enum sheaf_type type, __m512i lo, __m512i hi, __m512 d, __m512 m,
                       struct panel_block *to, int step) {
    const bool min = has_min(type) || type == SHEAF_TYPE_Q4_K || type == SHEAF_TYPE_Q5_K;
    const struct panel_block like = {.has_min = min, .bits = (uint8_t)panel_bits(type)};
    const __m512i one = _mm512_set1_epi8(1);
    int64_t flags;
    memcpy(&flags, &like.by_16, sizeof flags);
    if (!min) {
        const __m512i offset = _mm512_set1_epi8(type == SHEAF_TYPE_Q4_0 ? 8 : 16);
        lo = _mm512_sub_epi8(lo, offset);
        hi = _mm512_sub_epi8(hi, offset);
        m = _mm512_setzero_ps();
    }
    __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), one, lo);
    sum = _mm512_dpbusd_epi32(sum, one, hi);
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
    sum = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), sum), 7);
    const __m512i dm = _mm512_castps_si512(_mm512_mask_blend_ps(0xcccc, d, m));
    const __m512i end = _mm512_mask_blend_epi64(0xaa, sum, _mm512_set1_epi64(flags));
    /* lane b of each is for block b */
    const __m512i q01 = _mm512_shuffle_i32x4(lo, hi, 0x44),
                  q23 = _mm512_shuffle_i32x4(lo, hi, 0xee);
    const __m512i r01 = _mm512_shuffle_i32x4(dm, end, 0x44);
    const __m512i r23 = _mm512_shuffle_i32x4(dm, end, 0xee);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(q01, r01, 0x88));
    _mm512_storeu_si512(to + step, _mm512_shuffle_i32x4(q01, r01, 0xdd));
    _mm512_storeu_si512(to + 2 * step, _mm512_shuffle_i32x4(q23, r23, 0x88));
    _mm512_storeu_si512(to + 3 * step, _mm512_shuffle_i32x4(q23, r23, 0xdd));
}
static_assert(sizeof(struct panel_block) == 64 && offsetof(struct panel_block, d) == 32 &&
                  offsetof(struct panel_block, start) == 48 &&
                  offsetof(struct panel_block, by_16) == 56,
              "the order of panel_quad");

INLINE void quads_32(enum sheaf_type type, const void *src, struct panel_block *to, int64_t n) {
    const bool five = type == SHEAF_TYPE_Q5_0 || type == SHEAF_TYPE_Q5_1;
    const char *w = src;
    int64_t b = 0;
    for (; b + 4 <= n / SHEAF__QK; b += 4, w += 4 * block_size_32(type), to += 4) {
        __m512i lo, hi, s;
        if (five)
            unpack_quad_5(type, w, 4, &lo, &hi, &s);
        else
            unpack_quad_4(type, w, 4, &lo, &hi, &s);
        panel_quad(type, lo, hi, _mm512_cvtph_ps(_mm512_castsi512_si256(s)),
                   _mm512_cvtph_ps(_mm512_extracti64x4_epi64(s, 1)), to, 1);
    }
    blocks_32(type, w, to, n - b * SHEAF__QK);
}

/* Q4_K and Q5_K: the even blocks of 256, then the odd ones. */
INLINE void quads_k(enum sheaf_type type, const void *src, struct panel_block *to, int64_t n) {
    const size_t block = type == SHEAF_TYPE_Q5_K ? sizeof(struct sheaf__block_q5_k)
                                                 : sizeof(struct sheaf__block_q4_k);
    const __m512i even = _mm512_cvtepi8_epi32(_mm_setr_epi8(FOUR(0), FOUR(2), FOUR(4), FOUR(6)));
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += block, to += 8) {
        const __m512 s = k_scales(w), m = _mm512_mul_ps(s, _mm512_set1_ps(-1.0f));
        __m512i lo[2][DIGITS_ROWS], hi[2][DIGITS_ROWS];
        unpack_k(type, w, lo, hi, 0);
        UNROLL for (int h = 0; h < 2; h++) {
            const __m512i at = _mm512_add_epi32(even, _mm512_set1_epi32(h));
            const __m512i min_at = _mm512_add_epi32(at, _mm512_set1_epi32(8));
            panel_quad(type, h ? hi[0][0] : lo[0][0], h ? hi[1][0] : lo[1][0],
                       _mm512_permutexvar_ps(at, s), _mm512_permutexvar_ps(min_at, m), to + h, 2);
        }
    }
}

BLOCKS(blocks_q4_0, quads_32, SHEAF_TYPE_Q4_0)
BLOCKS(blocks_q4_1, quads_32, SHEAF_TYPE_Q4_1)
BLOCKS(blocks_q5_0, quads_32, SHEAF_TYPE_Q5_0)
BLOCKS(blocks_q5_1, quads_32, SHEAF_TYPE_Q5_1)
BLOCKS(blocks_q4_k, quads_k, SHEAF_TYPE_Q4_K)
BLOCKS(blocks_q5_k, quads_k, SHEAF_TYPE_Q5_K)

/* ---- tiles ---- */

/* acc += a digit of 32 elements of the columns . blocks of the rows */
INLINE void add_digit(const uint8_t (*x)[PANEL16_COLS][4], const struct panel_block *w,
                      size_t w_stride, __m512i (*acc)[2]) {
    UNROLL_12 for (int j = 0; j < 8; j++) {
        __m512i xs[2];
        UNROLL for (int v = 0; v < 2; v++) xs[v] = load512(x[j][16 * v]);
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            const __m512i q = four_bytes(w[(size_t)r * w_stride].q + 4 * j);
            UNROLL for (int v = 0; v < 2; v++) acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], xs[v], q);
        }
        __asm__ volatile("" ::: "memory"); /* a value loaded twice is not worth a register */
    }
}

/* All columns. */
INLINE void panel_16(bool mins, int64_t k, const struct panel_block *w, size_t w_stride,
                     const struct panel16 *panel, float *c, bool add) {
    __m512 sum[PANEL16_ROWS][2];
    UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
        UNROLL for (int v = 0; v < 2; v++) sum[r][v] =
            add ? v_load(c + r * PANEL16_COLS + 16 * v) : v_set1(0.0f);
    }
    for (int64_t b = 0; b < k / 32; b++, panel++, w++) {
        __m512i acc[PANEL16_ROWS][2];
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            UNROLL for (int v = 0; v < 2; v++) acc[r][v] =
                _mm512_set1_epi32(w[(size_t)r * w_stride].start[0]);
        }
        add_digit(panel->x[0], w, w_stride, acc);
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            UNROLL for (int v = 0; v < 2; v++) acc[r][v] = _mm512_slli_epi32(acc[r][v], 8);
        }
        add_digit(panel->x[1], w, w_stride, acc);
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            const struct panel_block *row = &w[(size_t)r * w_stride];
            UNROLL for (int v = 0; v < 2; v++) {
                const __m512 d = v_mul(v_set1(row->d[0]), v_load(panel->d + 16 * v));
                sum[r][v] = v_fma(_mm512_cvtepi32_ps(acc[r][v]), d, sum[r][v]);
                if (mins)
                    sum[r][v] = v_fma(v_set1(row->m[0]), v_load(panel->sums + 16 * v), sum[r][v]);
            }
        }
    }
    UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
        UNROLL for (int v = 0; v < 2; v++) v_store(c + r * PANEL16_COLS + 16 * v, sum[r][v]);
    }
}

/* 24 columns: a vector and half a vector. */
INLINE void columns_24(bool mins, int64_t k, const struct panel_block *w, size_t w_stride,
                       const struct panel16 *panel, float *c, bool add) {
    __m512 sum[PANEL16_ROWS];
    __m256 rest[PANEL16_ROWS];
    UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
        sum[r] = add ? v_load(c + r * PANEL16_COLS) : v_set1(0.0f);
        rest[r] = add ? _mm256_loadu_ps(c + r * PANEL16_COLS + 16) : _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < k / 32; b++, panel++, w++) {
        __m512i acc[PANEL16_ROWS];
        __m256i half[PANEL16_ROWS];
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            acc[r] = _mm512_set1_epi32(w[(size_t)r * w_stride].start[0]);
            half[r] = _mm512_castsi512_si256(acc[r]);
        }
        UNROLL for (int t = 0; t < 2; t++) {
            UNROLL_12 for (int r = 0; r < PANEL16_ROWS && t; r++) {
                acc[r] = _mm512_slli_epi32(acc[r], 8);
                half[r] = _mm256_slli_epi32(half[r], 8);
            }
            UNROLL_12 for (int j = 0; j < 8; j++) {
                const __m512i x = load512(panel->x[t][j]);
                const __m256i y = load256(panel->x[t][j][16]);
                UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
                    const __m512i q = four_bytes(w[(size_t)r * w_stride].q + 4 * j);
                    acc[r] = _mm512_dpbusd_epi32(acc[r], x, q);
                    half[r] = _mm256_dpbusd_epi32(half[r], y, _mm512_castsi512_si256(q));
                }
                __asm__ volatile("" ::: "memory"); /* as above */
            }
        }
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
            const struct panel_block *row = &w[(size_t)r * w_stride];
            const __m512 d = v_mul(v_set1(row->d[0]), v_load(panel->d));
            const __m256 e =
                _mm256_mul_ps(_mm256_set1_ps(row->d[0]), _mm256_loadu_ps(panel->d + 16));
            sum[r] = v_fma(_mm512_cvtepi32_ps(acc[r]), d, sum[r]);
            rest[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(half[r]), e, rest[r]);
            if (!mins) continue;
            sum[r] = v_fma(v_set1(row->m[0]), v_load(panel->sums), sum[r]);
            rest[r] = _mm256_fmadd_ps(_mm256_set1_ps(row->m[0]), _mm256_loadu_ps(panel->sums + 16),
                                      rest[r]);
        }
    }
    UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {
        v_store(c + r * PANEL16_COLS, sum[r]);
        _mm256_storeu_ps(c + r * PANEL16_COLS + 16, rest[r]);
    }
}

/* Sums of both digits apart, so that a block of weights is loaded once for both: 16 columns, or 8 in
 * half a vector, of half a panel. */
#define FEW_COLUMNS(NAME, V, I, PS, SI, LOAD)                                                      \
    INLINE void NAME(bool mins, int64_t k, const struct panel_block *w, size_t w_stride,           \
                     const struct panel16_half *panel, float *c, bool add) {                       \
        V sum[PANEL16_ROWS];                                                                       \
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) sum[r] =                                  \
            add ? PS(loadu_ps)(c + r * PANEL16_COLS) : PS(setzero_ps)();                           \
        for (int64_t b = 0; b < k / 32; b++, panel++, w++) {                                       \
            I h[PANEL16_ROWS], l[PANEL16_ROWS];                                                    \
            UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                     \
                h[r] = PS(set1_epi32)(w[(size_t)r * w_stride].start[0]);                           \
                l[r] = PS(SI)();                                                                   \
            }                                                                                      \
            UNROLL_12 for (int j = 0; j < 8; j++) {                                                \
                const I xh = LOAD(panel->x[0][j]), xl = LOAD(panel->x[1][j]);                      \
                UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                 \
                    int32_t four;                                                                  \
                    memcpy(&four, w[(size_t)r * w_stride].q + 4 * j, sizeof four);                 \
                    const I q = PS(set1_epi32)(four);                                              \
                    h[r] = PS(dpbusd_epi32)(h[r], xh, q);                                          \
                    l[r] = PS(dpbusd_epi32)(l[r], xl, q);                                          \
                }                                                                                  \
            }                                                                                      \
            UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                     \
                const struct panel_block *row = &w[(size_t)r * w_stride];                          \
                const V d = PS(mul_ps)(PS(set1_ps)(row->d[0]), PS(loadu_ps)(panel->d));            \
                const I all = PS(add_epi32)(PS(slli_epi32)(h[r], 8), l[r]);                        \
                sum[r] = PS(fmadd_ps)(PS(cvtepi32_ps)(all), d, sum[r]);                            \
                if (mins)                                                                          \
                    sum[r] =                                                                       \
                        PS(fmadd_ps)(PS(set1_ps)(row->m[0]), PS(loadu_ps)(panel->sums), sum[r]);   \
            }                                                                                      \
        }                                                                                          \
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++)                                           \
            PS(storeu_ps)(c + r * PANEL16_COLS, sum[r]);                                           \
    }
#define IN_512(FN) _mm512_##FN
#define IN_256(FN) _mm256_##FN
FEW_COLUMNS(columns_16, __m512, __m512i, IN_512, setzero_si512, load512)
FEW_COLUMNS(columns_8, __m256, __m256i, IN_256, setzero_si256, load256)

static void tile_16(int64_t k, const void *row, size_t stride, const void *panel, int used,
                    float *c, bool add) {
    const struct panel_block *w = row;
    stride /= sizeof *w;
    if (used > PANEL16_HALF && used <= 24 && w->has_min) {
        columns_24(true, k, w, stride, panel, c, add);
    } else if (used > PANEL16_HALF && used <= 24) {
        columns_24(false, k, w, stride, panel, c, add);
    } else if (used > PANEL16_HALF && w->has_min) {
        panel_16(true, k, w, stride, panel, c, add);
    } else if (used > PANEL16_HALF) {
        panel_16(false, k, w, stride, panel, c, add);
    } else if (used > 8 && w->has_min) {
        columns_16(true, k, w, stride, panel, c, add);
    } else if (used > 8) {
        columns_16(false, k, w, stride, panel, c, add);
    } else if (w->has_min) {
        columns_8(true, k, w, stride, panel, c, add);
    } else {
        columns_8(false, k, w, stride, panel, c, add);
    }
}
