/* A part of table.h, in the same terms: products with many columns.
 *
 * Activations are packed once in panels of PANEL_COLS columns in which an element of all columns
 * lies together; weights become floats row by row, so an element of a row is broadcast against two
 * vectors of columns. PANEL_ROWS rows by PANEL_COLS columns are summed in registers: 12 x 32 with
 * AVX-512, 6 x 16 with AVX2, which is the shape of BLIS' kernels for them.
 *
 * Invariant: a sum runs over k in order, carried on through memory, so that neither the rows and
 * columns beside it nor the length of a pass show in its bits. */

enum { PANEL_ROWS = VW == 16 ? 12 : 6, PANEL_COLS = 2 * VW };

/* Half a panel lies together: with 16 columns in the first halves of lines of 128 bytes, a pass of k had
 * half of the first cache's sets and filled it. */
static void pack_f32(const float *const *x, int64_t n, int used, void *panel) {
    pack_columns(x, n, used > VW ? PANEL_COLS : VW, panel);
}

/* c[r][..] = a row r . the columns of so many vectors, all of the panel, or added to what is there */
INLINE void panel_floats(int vectors, int64_t k, const float *a, size_t a_stride,
                         const float *panel, float *c, bool add) {
    v_f acc[PANEL_ROWS][2], b[2];
    UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
            add ? v_load(c + r * PANEL_COLS + v * VW) : v_set1(0.0f);
    }
    for (int64_t i = 0; i < k; i++, panel += vectors * VW) {
        UNROLL for (int v = 0; v < vectors; v++) b[v] = v_load(panel + v * VW);
        UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) {
            v_f x = v_set1(a[(size_t)r * a_stride + (size_t)i]);
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = v_fma(x, b[v], acc[r][v]);
        }
    }
    UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) v_store(c + r * PANEL_COLS + v * VW, acc[r][v]);
    }
}
#if defined(KERNELS_VNNI_512)
/* The first 8 columns, in half a vector: on cores that take two cycles for 64 bytes it takes one. */
INLINE void panel_floats_8(int64_t k, const float *a, size_t a_stride, const float *panel, float *c,
                           bool add) {
    __m256 acc[PANEL_ROWS];
    UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) acc[r] =
        add ? _mm256_loadu_ps(c + r * PANEL_COLS) : _mm256_setzero_ps();
    for (int64_t i = 0; i < k; i++, panel += VW) {
        const __m256 b = _mm256_loadu_ps(panel);
        UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) {
            const __m256 x = _mm256_set1_ps(a[(size_t)r * a_stride + (size_t)i]);
            acc[r] = _mm256_fmadd_ps(x, b, acc[r]);
        }
    }
    UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) _mm256_storeu_ps(c + r * PANEL_COLS, acc[r]);
}
/* 24 columns: a vector and half a vector. */
INLINE void panel_floats_24(int64_t k, const float *a, size_t a_stride, const float *panel,
                            float *c, bool add) {
    v_f acc[PANEL_ROWS];
    __m256 rest[PANEL_ROWS];
    UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) {
        acc[r] = add ? v_load(c + r * PANEL_COLS) : v_set1(0.0f);
        rest[r] = add ? _mm256_loadu_ps(c + r * PANEL_COLS + VW) : _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < k; i++, panel += PANEL_COLS) {
        const v_f b = v_load(panel);
        const __m256 half = _mm256_loadu_ps(panel + VW);
        UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) {
            const float x = a[(size_t)r * a_stride + (size_t)i];
            acc[r] = v_fma(v_set1(x), b, acc[r]);
            rest[r] = _mm256_fmadd_ps(_mm256_set1_ps(x), half, rest[r]);
        }
    }
    UNROLL_12 for (int r = 0; r < PANEL_ROWS; r++) {
        v_store(c + r * PANEL_COLS, acc[r]);
        _mm256_storeu_ps(c + r * PANEL_COLS + VW, rest[r]);
    }
}
#endif
static void panel_f32(int64_t k, const void *row, size_t stride, const void *panel, int used,
                      float *c, bool add) {
#if defined(KERNELS_VNNI_512)
    if (used <= 8) {
        panel_floats_8(k, row, stride / sizeof(float), panel, c, add);
        return;
    }
    if (used > VW && used <= 24) {
        panel_floats_24(k, row, stride / sizeof(float), panel, c, add);
        return;
    }
#endif
    if (used > VW) {
        panel_floats(2, k, row, stride / sizeof(float), panel, c, add);
    } else {
        panel_floats(1, k, row, stride / sizeof(float), panel, c, add);
    }
}

/* ---- weights to floats: the values of quant/quants.c to rounding ---- */

INLINE void floats_32(enum sheaf_type type, const void *src, float *y, int64_t n) {
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK, w += block_size_32(type)) {
        float f[4];
        v_f x[PER_32];
        block_scales(w, has_min(type), type == SHEAF_TYPE_Q4_0 ? -8.0f : -16.0f, f);
        IN_MEMORY(f);
        weights32(type, w, f, x);
        UNROLL for (int j = 0; j < PER_32; j++) v_store(y + i + j * VW, x[j]);
    }
}

UNPACK(floats_q4_0, floats_32, SHEAF_TYPE_Q4_0)
UNPACK(floats_q4_1, floats_32, SHEAF_TYPE_Q4_1)
UNPACK(floats_q5_0, floats_32, SHEAF_TYPE_Q5_0)
UNPACK(floats_q5_1, floats_32, SHEAF_TYPE_Q5_1)

static void floats_f32(const void *src, void *y, int64_t n) {
    memcpy(y, src, (size_t)n * sizeof(float));
}
static void floats_f16(const void *src, void *y, int64_t n) { f16_to_f32(src, y, n); }
static void floats_bf16(const void *src, void *y, int64_t n) { bf16_to_f32(src, y, n); }
static void floats_q8_0(const void *src, void *y, int64_t n) { q8_0_to_f32(src, y, n); }

/* y = d * q + m for 16 bytes that lie in both halves of q. */
INLINE void store_16(__m256i q, float d, float m, float *y) {
    v_f x[PER_16];
    widen16(q, v_set1(d), v_set1(m), x);
    UNROLL for (int i = 0; i < PER_16; i++) v_store(y + i * VW, x[i]);
}

INLINE void floats_k(enum sheaf_type type, const void *src, float *y, int64_t n) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const size_t block = size_256(type);
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += block, y += SHEAF__QK_K) {
        const struct sheaf__block_q4_k *b4 = (const void *)w;
        const struct sheaf__block_q5_k *b5 = (const void *)w;
        const __m256i bit4 = _mm256_set1_epi8(16);
        const uint8_t *qs = five ? b5->qs : b4->qs;
        int16_t s[16];
        _mm256_storeu_si256((__m256i *)s, k_scales_mins(b4->scales));
        const float d = f16(b4->d), dmin = -f16(b4->dmin);
        UNROLL for (int j = 0; j < 4; j++) {
            UNROLL for (int h = 0; h < 2; h++) {
                __m256i q = twice128(qs + 32 * j + 16 * h), lo = and15(q), hi = high15(q);
                if (five) { /* bit 2j to bit 4, and the next one */
                    __m256i x = twice128(b5->qh + 16 * h);
                    __m256i x_lo =
                        j < 2 ? _mm256_slli_epi16(x, 4 - 2 * j) : _mm256_srli_epi16(x, 2 * j - 4);
                    __m256i x_hi =
                        j < 2 ? _mm256_slli_epi16(x, 3 - 2 * j) : _mm256_srli_epi16(x, 2 * j - 3);
                    lo = _mm256_or_si256(lo, _mm256_and_si256(x_lo, bit4));
                    hi = _mm256_or_si256(hi, _mm256_and_si256(x_hi, bit4));
                }
                float *to = y + 64 * j + 16 * h;
                store_16(lo, d * (float)s[2 * j], dmin * (float)s[8 + 2 * j], to);
                store_16(hi, d * (float)s[2 * j + 1], dmin * (float)s[9 + 2 * j], to + 32);
            }
        }
    }
}
UNPACK(floats_q4_k, floats_k, SHEAF_TYPE_Q4_K)
UNPACK(floats_q5_k, floats_k, SHEAF_TYPE_Q5_K)

static void floats_q6_k(const void *src, void *to, int64_t n) {
    const struct sheaf__block_q6_k *b = src;
    float *y = to;
    const __m256i two = _mm256_set1_epi8(0x30);
    for (; n > 0; n -= SHEAF__QK_K, b++, y += SHEAF__QK_K) {
        const float d = f16(b->d);
        UNROLL for (int g = 0; g < 2; g++) {
            UNROLL for (int t = 0; t < 4; t++) {
                UNROLL for (int h = 0; h < 2; h++) {
                    __m256i l = twice128(b->ql + 64 * g + t % 2 * 32 + 16 * h);
                    __m256i u = twice128(b->qh + 32 * g + 16 * h);
                    /* bits 2t, 2t + 1 to bits 4, 5 */
                    u = t < 2 ? _mm256_slli_epi16(u, 4 - 2 * t) : _mm256_srli_epi16(u, 2 * t - 4);
                    __m256i q =
                        _mm256_or_si256(t < 2 ? and15(l) : high15(l), _mm256_and_si256(u, two));
                    const int at = 128 * g + 32 * t + 16 * h;
                    const float s = d * (float)b->scales[at / 16];
                    store_16(q, s, -32.0f * s, y + at);
                }
            }
        }
    }
}
