/* A part of kernels.h, in the same terms: blocks of weights by plain floats.
 *
 * Types of 32: 32 weights become floats in registers, d * q + m with q unsigned, and meet all
 * columns of the tile. Types of 256: the integers q become floats, their sum with the activations
 * is multiplied by the scale, and the mins meet the sums of activations.
 *
 * Invariant: products of 16 or 32 weights are summed from their first, and each such sum is added
 * to the one accumulator of the (row, column): the same for every tile. (An accumulator fed by
 * every fma would wait for itself when there is one column.) */

enum { PER_16 = 16 / VW, PER_32 = 32 / VW }; /* vectors of 16 and of 32 floats */

INLINE __m256i twice128(const void *p) { return _mm256_broadcastsi128_si256(load128(p)); }
INLINE __m256i and15(__m256i q) { return _mm256_and_si256(q, _mm256_set1_epi8(15)); }
INLINE __m256i high15(__m256i q) { return and15(_mm256_srli_epi16(q, 4)); }

/* w = d * q + m for 16 unsigned bytes, which lie in both halves of q. */
INLINE void widen16(__m256i q, v_f d, v_f m, v_f *w) {
    UNROLL for (int i = 0; i < PER_16; i++) w[i] = v_fma(v_bytes(q, i), d, m);
}

/* acc[c] += w . column c, for the 32 elements from number i on. */
INLINE void add32(const v_f *w, const void *const *act, int64_t i, int C, v_f *acc) {
    UNROLL for (int c = 0; c < C; c++) {
        const float *y = (const float *)act[c] + i;
        v_f sum = v_mul(w[0], v_load(y));
        UNROLL for (int j = 1; j < PER_32; j++) sum = v_fma(w[j], v_load(y + j * VW), sum);
        acc[c] = v_add(acc[c], sum);
    }
}

/* Keeps an array in memory: the compilers here would rather permute it in registers than load an
 * element into every lane, and loads are free in these loops. */
#define IN_MEMORY(array) __asm__("" : "+m"(array))

/* f[0] = d, f[1] = d / 16, f[2] = what is added to every element, from the first bytes of a block:
 * d, and m if the type has one; `offset` stands in for m. */
INLINE void block_scales(const void *p, bool min, float offset, float *f) {
    int32_t halves;
    memcpy(&halves, p, sizeof halves);
    __m128 dm = _mm_cvtph_ps(_mm_cvtsi32_si128(halves));
    dm = min ? _mm_permute_ps(dm, 0x50) : _mm_permute_ps(dm, 0);
    _mm_storeu_ps(f, _mm_mul_ps(dm, _mm_setr_ps(1.0f, 1.0f / 16, min ? 1.0f : offset, 0.0f)));
}

/* 32 weights of a block of any type of 32; f as block_scales gives it. */
INLINE void weights32(enum sheaf_type type, const void *p, const float *f, v_f *w) {
    const bool min = has_min(type);
    v_f d = v_set1(f[0]);
    if (type == SHEAF_TYPE_Q8_0) {
        const struct sheaf__block_q8_0 *b = p;
        UNROLL for (int j = 0; j < PER_32; j++) w[j] = v_mul(d, v_load_i8(b->qs + j * VW));
    } else if (type == SHEAF_TYPE_Q4_0 || type == SHEAF_TYPE_Q4_1) {
        const struct sheaf__block_q4_0 *b0 = p;
        const struct sheaf__block_q4_1 *b1 = p;
        v_f d_16 = v_set1(f[1]), m = v_set1(f[2]);
        const uint8_t *q = min ? b1->qs : b0->qs;
        UNROLL for (int j = 0; j < PER_16; j++) {
            v_nibbles(q + j * VW, &w[j], &w[PER_16 + j]);
            w[j] = v_fma(w[j], d, m);
            w[PER_16 + j] = v_fma(w[PER_16 + j], d_16, m);
        }
    } else {
        const struct sheaf__block_q5_0 *b0 = p;
        const struct sheaf__block_q5_1 *b1 = p;
        v_f m = v_set1(f[2]);
        __m256i q = twice128(min ? b1->qs : b0->qs);
        __m256i h = spread_bits(min ? b1->qh : b0->qh, 16, 0);
        __m256i lo = _mm256_permute2x128_si256(h, h, 0), hi = _mm256_permute2x128_si256(h, h, 0x11);
        widen16(_mm256_or_si256(and15(q), lo), d, m, w);
        widen16(_mm256_or_si256(high15(q), hi), d, m, w + PER_16);
    }
}

INLINE void row_32(enum sheaf_type type, int64_t k, const char *w, const void *const *act, int C,
                   v_f *acc) {
    const size_t block = block_size_32(type);
    /* Scales come ahead of their use: they pass through memory, and what waits for them would fill
     * the queue of the float units. */
    enum { AHEAD = 8 };
    for (int64_t first = 0; first < k; first += AHEAD * SHEAF__QK) {
        const int64_t rest = (k - first) / SHEAF__QK, n = rest < AHEAD ? rest : AHEAD;
        float f[AHEAD][4];
        for (int64_t b = 0; b < n; b++)
            block_scales(w + (size_t)b * block, has_min(type),
                         type == SHEAF_TYPE_Q4_0 ? -8.0f : -16.0f, f[b]);
        IN_MEMORY(f);
        for (int64_t b = 0; b < n; b++, w += block) {
            v_f x[PER_32];
            if (C == 1 && b % 2 == 0)
                prefetch(w + PREFETCH_AHEAD, block); /* two blocks are at most 68 bytes */
            weights32(type, w, f[b], x);
            add32(x, act, first + b * SHEAF__QK, C, acc);
        }
    }
}

/* acc[c] += d * (q . column c) for the 16 n integers q from element i on, as floats. */
INLINE void add_scaled(const v_f *q, int n, v_f d, const void *const *act, int64_t i, int C,
                       v_f *acc) {
    UNROLL for (int c = 0; c < C; c++) {
        const float *y = (const float *)act[c] + i;
        v_f sum = v_mul(q[0], v_load(y));
        UNROLL for (int j = 1; j < n * PER_16; j++) sum = v_fma(q[j], v_load(y + j * VW), sum);
        acc[c] = v_fma(d, sum, acc[c]);
    }
}

/* acc[c] += the 16 mins of a block . the sums of the activations from element i on. */
INLINE void add_mins(const float *m, const void *const *act, int64_t k, int64_t i, int C,
                     v_f *acc) {
    UNROLL for (int c = 0; c < C; c++) {
        const float *sums = (const float *)act[c] + k + i / 16;
        UNROLL for (int j = 0; j < 16; j += VW) acc[c] =
            v_fma(v_load(m + j), v_load(sums + j), acc[c]);
    }
}

INLINE void bytes16(__m256i q, v_f *x) {
    UNROLL for (int i = 0; i < PER_16; i++) x[i] = v_bytes(q, i);
}

/* Q4_K and Q5_K. */
INLINE void row_k(enum sheaf_type type, int64_t k, const char *w, const void *const *act, int C,
                  v_f *acc) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const size_t block = five ? sizeof(struct sheaf__block_q5_k) : sizeof(struct sheaf__block_q4_k);
    const __m256i bit4 = _mm256_set1_epi8(16);
    for (int64_t i = 0; i < k; i += SHEAF__QK_K, w += block) {
        const struct sheaf__block_q4_k *b4 = (const void *)w;
        const struct sheaf__block_q5_k *b5 = (const void *)w;
        float d[8], m[16];
        if (C == 1) prefetch(w + PREFETCH_AHEAD, block);
        __m256i sm = k_scales_mins(b4->scales); /* d, dmin, scales lie alike in both */
        __m256i s = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(sm));
        __m256 dx = _mm256_set1_ps(f16(b4->d));
        if (!five) /* v_nibbles */
            dx = _mm256_mul_ps(dx, _mm256_setr_ps(1, 0.0625f, 1, 0.0625f, 1, 0.0625f, 1, 0.0625f));
        _mm256_storeu_ps(d, _mm256_mul_ps(_mm256_cvtepi32_ps(s), dx));
        __m128i mins = _mm256_extracti128_si256(sm, 1); /* each is for two sums */
        __m256i m0 = _mm256_cvtepi16_epi32(_mm_unpacklo_epi16(mins, mins));
        __m256i m1 = _mm256_cvtepi16_epi32(_mm_unpackhi_epi16(mins, mins));
        __m256 dmin = _mm256_set1_ps(-f16(b4->dmin));
        _mm256_storeu_ps(m, _mm256_mul_ps(_mm256_cvtepi32_ps(m0), dmin));
        _mm256_storeu_ps(m + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(m1), dmin));
        IN_MEMORY(d);
        add_mins(m, act, k, i, C, acc);
        UNROLL for (int j = 0; j < 4; j++) {
            v_f lo[PER_32], hi[PER_32];
            UNROLL for (int v = 0; v < PER_32 && !five; v++)
                v_nibbles(b4->qs + 32 * j + v * VW, &lo[v], &hi[v]);
            UNROLL for (int h = 0; h < 2 && five; h++) { /* bit 2j to bit 4, and the next one */
                __m256i q = twice128(b5->qs + 32 * j + 16 * h), x = twice128(b5->qh + 16 * h);
                __m256i x_lo =
                    j < 2 ? _mm256_slli_epi16(x, 4 - 2 * j) : _mm256_srli_epi16(x, 2 * j - 4);
                __m256i x_hi =
                    j < 2 ? _mm256_slli_epi16(x, 3 - 2 * j) : _mm256_srli_epi16(x, 2 * j - 3);
                bytes16(_mm256_or_si256(and15(q), _mm256_and_si256(x_lo, bit4)), lo + h * PER_16);
                bytes16(_mm256_or_si256(high15(q), _mm256_and_si256(x_hi, bit4)), hi + h * PER_16);
            }
            add_scaled(lo, 2, v_set1(d[2 * j]), act, i + 64 * j, C, acc);
            add_scaled(hi, 2, v_set1(d[2 * j + 1]), act, i + 64 * j + 32, C, acc);
        }
    }
}

/* Q6_K: 6-bit integers unsigned, their offset of 32 as a min. */
INLINE void row_6k(enum sheaf_type type, int64_t k, const char *w, const void *const *act, int C,
                   v_f *acc) {
    const __m256i two = _mm256_set1_epi8(0x30);
    (void)type;
    for (int64_t i = 0; i < k; i += SHEAF__QK_K, w += sizeof(struct sheaf__block_q6_k)) {
        const struct sheaf__block_q6_k *b = (const void *)w;
        float d[16], m[16];
        if (C == 1) prefetch(w + PREFETCH_AHEAD, sizeof *b);
        v_f dx = v_set1(f16(b->d));
        UNROLL for (int j = 0; j < 16; j += VW) {
            v_f s = v_mul(v_load_i8(b->scales + j), dx);
            v_store(d + j, s);
            v_store(m + j, v_mul(s, v_set1(-32.0f)));
        }
        IN_MEMORY(d);
        add_mins(m, act, k, i, C, acc);
        UNROLL for (int g = 0; g < 2; g++) {
            UNROLL for (int t = 0; t < 4; t++) {
                UNROLL for (int h = 0; h < 2; h++) {
                    v_f x[PER_16];
                    __m256i l = twice128(b->ql + 64 * g + t % 2 * 32 + 16 * h);
                    __m256i u = twice128(b->qh + 32 * g + 16 * h);
                    /* bits 2t, 2t + 1 to bits 4, 5 */
                    u = t < 2 ? _mm256_slli_epi16(u, 4 - 2 * t) : _mm256_srli_epi16(u, 2 * t - 4);
                    __m256i q =
                        _mm256_or_si256(t < 2 ? and15(l) : high15(l), _mm256_and_si256(u, two));
                    bytes16(q, x);
                    int at = 128 * g + 32 * t + 16 * h;
                    add_scaled(x, 1, v_set1(d[at / 16]), act, i + at, C, acc);
                }
            }
        }
    }
}

/* One row at a time: that reads memory in order, and a row's weights in registers leave no room for
 * those of another. */
#define ROW(ROW_FN, TYPE, C)                                                                       \
    do {                                                                                           \
        v_f acc[C];                                                                                \
        UNROLL for (int c = 0; c < C; c++) acc[c] = v_set1(0.0f);                                  \
        ROW_FN(TYPE, k, row, act, C, acc);                                                         \
        UNROLL for (int c = 0; c < C; c++) out[c][r] = v_sum(acc[c]);                              \
    } while (0)
#define ROWS_F32(NAME, ROW_FN, TYPE)                                                               \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        if (nc > 4) {                                                                              \
            NAME(k, w, w_stride, nr, act + 4, nc - 4, out + 4);                                    \
            nc = 4;                                                                                \
        }                                                                                          \
        for (int64_t r = 0; r < nr; r++) {                                                         \
            const char *row = (const char *)w + (size_t)r * w_stride;                              \
            if (nc == 1)                                                                           \
                ROW(ROW_FN, TYPE, 1);                                                              \
            else if (nc == 2)                                                                      \
                ROW(ROW_FN, TYPE, 2);                                                              \
            else if (nc == 3)                                                                      \
                ROW(ROW_FN, TYPE, 3);                                                              \
            else                                                                                   \
                ROW(ROW_FN, TYPE, 4);                                                              \
        }                                                                                          \
    }
ROWS_F32(rows_dot_q8_0, row_32, SHEAF_TYPE_Q8_0)
ROWS_F32(rows_dot_q4_0, row_32, SHEAF_TYPE_Q4_0)
ROWS_F32(rows_dot_q4_1, row_32, SHEAF_TYPE_Q4_1)
ROWS_F32(rows_dot_q5_0, row_32, SHEAF_TYPE_Q5_0)
ROWS_F32(rows_dot_q5_1, row_32, SHEAF_TYPE_Q5_1)
ROWS_F32(rows_dot_q4_k, row_k, SHEAF_TYPE_Q4_K)
ROWS_F32(rows_dot_q5_k, row_k, SHEAF_TYPE_Q5_K)
ROWS_F32(rows_dot_q6_k, row_6k, SHEAF_TYPE_Q6_K)
