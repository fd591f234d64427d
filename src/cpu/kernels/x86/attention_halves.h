/* A part of attention_few.h, for a Zen 4, which computes vectors of 512 bits in two halves: products of few queries
 * with rows of a cache in vectors of 256 bits.
 *
 * Eight elements of a row are loaded and converted by one instruction of half a cycle, where those of two rows take
 * 2.3 cycles to be joined and converted; and eight elements of a query that go to both halves of a vector take pipes
 * that multiply. Four rows by eight queries and eight elements take 18.8 cycles in 512 bits and 16.1 here, of which
 * multiply-adds are 16 (a loop that is not in the tree, November 2026).
 *
 * Invariant: as in attention_few.h, the same bits. */

enum { HALF = 8, HALF_MOST = 8 /* rows of a tile */ };
/* Rows by Q queries: as many as registers hold. */
#define HALF_WIDE(Q) ((Q) > 4 ? 2 : (Q) > 3 ? 4 : 8)

/* As v_sum_twos and so on: eight vectors of partial sums, each of a row. */
INLINE __m256 half_sum_twos(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}
INLINE __m256 half_sum_fours(__m256 a, __m256 b) {
    const __m256d c = _mm256_castps_pd(a), d = _mm256_castps_pd(b);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(c, d)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
}
INLINE __m256 half_sum_eights(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* Elements [i, i + 8) of a row. */
INLINE __m256 half_of(enum sheaf_type type, const char *row, int64_t i) {
    const char *p = row + bytes_of_elements(type, i);
    if (type == SHEAF_TYPE_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    if (type == SHEAF_TYPE_F16) return _mm256_cvtph_ps(load128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}

/* acc[c][r] += eight elements of row r . q[c]. What there is less of stays in registers. */
INLINE void half_step(enum sheaf_type type, const char *const *row, int rows, const float *const *q,
                      int Q, int64_t i, __m256 (*acc)[HALF_MOST]) {
    __m256 x[HALF_MOST], y[DOT_QUERIES];
    UNROLL_8 for (int r = 0; r < rows && rows <= Q; r++) x[r] = half_of(type, row[r], i);
    UNROLL_8 for (int c = 0; c < Q; c++) {
        y[c] = _mm256_loadu_ps(q[c] + i);
        LOADED_ONCE(y[c]);
        UNROLL_8 for (int r = 0; r < rows && rows <= Q; r++) acc[c][r] =
            _mm256_fmadd_ps(x[r], y[c], acc[c][r]);
    }
    UNROLL_8 for (int r = 0; r < rows && rows > Q; r++) {
        x[r] = half_of(type, row[r], i);
        UNROLL_8 for (int c = 0; c < Q; c++) acc[c][r] = _mm256_fmadd_ps(x[r], y[c], acc[c][r]);
    }
}

/* `rows` rows by Q queries. */
INLINE void half_tile(enum sheaf_type type, int64_t k, const char *const *row, int rows,
                      const float *const *q, int Q, struct fetch fetch, __m256 (*acc)[HALF_MOST]) {
    UNROLL_8 for (int c = 0; c < Q; c++) {
        UNROLL_8 for (int r = 0; r < rows; r++) acc[c][r] = _mm256_setzero_ps();
    }
    int64_t i = 0;
    for (; i + STEP <= k; i += STEP) {
        UNROLL_8 for (int r = 0; r < rows; r++)
            fetch_lines(fetch, row[r] + bytes_of_elements(type, i), bytes_of_elements(type, STEP));
        UNROLL for (int j = 0; j < STEP; j += HALF) half_step(type, row, rows, q, Q, i + j, acc);
    }
    for (; i < k; i += HALF) half_step(type, row, rows, q, Q, i, acc);
}

/* The first HALF of n keys by Q queries, as dots_keys. */
INLINE void half_keys(enum sheaf_type type, int64_t k, const char *x, size_t stride, int64_t n,
                      const float *const *q, int Q, struct fetch fetch, float *out,
                      int64_t out_stride) {
    const int rows = HALF_WIDE(Q);
    __m256 pairs[DOT_QUERIES][HALF / 2];
    for (int first = 0; first < HALF; first += rows) {
        const char *row[HALF_MOST];
        __m256 acc[DOT_QUERIES][HALF_MOST];
        UNROLL_8 for (int r = 0; r < rows; r++) row[r] =
            x + (size_t)(first + r < n ? first + r : 0) * stride;
        half_tile(type, k, row, rows, q, Q, fetch, acc);
        UNROLL_8 for (int c = 0; c < Q; c++) {
            UNROLL for (int r = 0; r < rows; r += 2) pairs[c][(first + r) / 2] =
                half_sum_twos(acc[c][r], acc[c][r + 1]);
        }
    }
    const __mmask8 there = (__mmask8)(n >= HALF ? 0xff : (1 << n) - 1);
    UNROLL_8 for (int c = 0; c < Q; c++)
        _mm256_mask_storeu_ps(out + c * out_stride, there,
                              half_sum_eights(half_sum_fours(pairs[c][0], pairs[c][1]),
                                              half_sum_fours(pairs[c][2], pairs[c][3])));
}

#define DOTS_AS_THEY_LIE half_rows
/* As dots_rows. */
INLINE void half_rows(enum sheaf_type type, int64_t k, const char *x, size_t stride, int64_t rows,
                      const float *const *q, int n_q, float *out, int64_t out_stride) {
    const struct fetch all = fetch_rows(stride);
    for (; rows > 0; rows -= HALF, x += HALF * stride, out += HALF) {
        struct fetch fetch = all;
        int c = 0;
#define DOTS(Q)                                                                                    \
    for (; c + (Q) <= n_q; c += (Q), fetch = fetch_nothing())                                      \
    half_keys(type, k, x, stride, rows, q + c, Q, fetch, out + c * out_stride, out_stride)
        DOTS(DOT_QUERIES);
        DOTS(4);
        DOTS(3);
        DOTS(2);
        DOTS(1);
#undef DOTS
    }
}
