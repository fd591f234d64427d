/* A part of table.h, in the same terms: F32, F16 and BF16 weights by few columns of floats, row by row. With AVX-512
 * one column of BF16 is bf16_pairs.h, and 5 to 8 columns are plain_few.h.
 *
 * Invariant: as in table.h; parts of k do not show in the bits. */

/* Bytes of an element of F32, F16, BF16. */
INLINE size_t plain_size(enum sheaf_type type) {
    return type == SHEAF_TYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}
INLINE v_f load_plain(enum sheaf_type type, const void *p, int64_t i) {
    if (type == SHEAF_TYPE_F32) return v_load((const float *)p + i);
    if (type == SHEAF_TYPE_F16) return v_load_f16((const uint16_t *)p + i);
    return v_load_bf16((const uint16_t *)p + i);
}
INLINE v_f load_plain_n(enum sheaf_type type, const void *p, int64_t i, int64_t n) {
    if (type == SHEAF_TYPE_F32) return v_load_n((const float *)p + i, n);
    uint16_t t[VW] = {0};
    memcpy(t, (const uint16_t *)p + i, (size_t)n * sizeof *t);
    return load_plain(type, t, 0);
}

/* ---- a row by C columns, a constant after inlining ---- */

/* Several columns that do not stay in the first cache beside the weights are multiplied in parts, for
 * PART_ROWS rows each: sums wait in memory meanwhile, in the lanes that they have, so that parts do
 * not show in the bits. Four columns of 5632 came from the second cache at half the speed. One column
 * is whole: mul_mat.c cuts long ones. */
enum { PART = 1024, PART_ROWS = 8, MOST_WHOLE = 4096 /* elements of all columns */ };
INLINE int64_t part_of(int64_t k, int nc) { return nc == 1 || nc * k <= MOST_WHOLE ? k : PART; }

/* Sums before a part: zeros where `from` is NULL. */
INLINE v_f carried(const v_f *from, int i) { return from ? from[i] : v_set1(0.0f); }

/* Vector number j of k goes to accumulator j mod ACCS: a row alone, which reads memory in order,
 * would wait for one. (Four rows at a time read F16 at 25 GB/s where one reads it at 36: rows of 4
 * KiB meet in the same sets of the cache. AMD EPYC, Zen 5, November 2026.) */
enum { ACCS = 4, PLAIN_COLS = VW == 16 ? 4 : 2, TILE = VW == 16 ? SHEAF__TILE_COLS : 4 };

/* Elements of a row from i on, less than a round, and what becomes of the sums. */
INLINE void row_plain_end(enum sheaf_type type, int64_t k, int64_t i, const char *w,
                          const float *const *act, int C, v_f (*acc)[ACCS], v_f *to,
                          float *const *out, int64_t r) {
    UNROLL for (int j = 0; j < ACCS; j++) {
        const int64_t at = i + j * VW, n = k - at;
        if (n <= 0) break;
        const v_f x = n >= VW ? load_plain(type, w, at) : load_plain_n(type, w, at, n);
        UNROLL for (int c = 0; c < C; c++) {
            const float *p = act[c] + at;
            acc[c][j] = v_fma(x, n >= VW ? v_load(p) : v_load_n(p, n), acc[c][j]);
        }
    }
    UNROLL for (int c = 0; c < C && to; c++) {
        UNROLL for (int j = 0; j < ACCS; j++) to[c * ACCS + j] = acc[c][j];
    }
    UNROLL for (int c = 0; c < C && !to; c++) {
        v_f sum = v_add(acc[c][0], acc[c][1]);
        UNROLL for (int j = 2; j < ACCS; j += 2) sum =
            v_add(sum, v_add(acc[c][j], acc[c][(j + 1) % ACCS]));
        out[c][r] = v_sum(sum);
    }
}

/* out[c][r], or the sums so far to `to`. k of all parts except the last is whole rounds. */
INLINE void row_plain(enum sheaf_type type, int64_t k, const char *w, struct fetch fetch,
                      const float *const *act, int C, const v_f *from, v_f *to, float *const *out,
                      int64_t r) {
    const size_t size = plain_size(type);
    v_f acc[PLAIN_COLS][ACCS];
    UNROLL for (int c = 0; c < C; c++) {
        UNROLL for (int j = 0; j < ACCS; j++) acc[c][j] = carried(from, c * ACCS + j);
    }
    int64_t i = 0;
    for (; i + ACCS * VW <= k; i += ACCS * VW) {
        fetch_lines(fetch, w + (size_t)i * size, ACCS * VW * size);
        UNROLL for (int j = 0; j < ACCS; j++) {
            const v_f x = load_plain(type, w, i + j * VW);
            UNROLL for (int c = 0; c < C; c++) acc[c][j] =
                v_fma(x, v_load(act[c] + i + j * VW), acc[c][j]);
        }
    }
    row_plain_end(type, k, i, w, act, C, acc, to, out, r);
}

#if defined(KERNELS_VNNI_512)
/* The same of F16 or BF16 by one column in vectors of 32 bytes, line by line: the same bits. For CPUs that are asked for
 * each line several times, and drop fewer requests of a slower loop (D176). */
INLINE void row_in_halves(enum sheaf_type type, int64_t k, const char *w, struct fetch fetch,
                          const float *act, float *const *out, int64_t r) {
    enum { HALF = VW / 2, LINE = 64 / sizeof(uint16_t) };
    __m256 half[ACCS][2];
    v_f acc[1][ACCS];
    UNROLL for (int j = 0; j < ACCS; j++) half[j][0] = half[j][1] = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + ACCS * VW <= k; i += ACCS * VW) {
        UNROLL_8 for (int j = 0; j < 2 * ACCS; j++) {
            const int64_t at = i + j * HALF;
            const char *p = w + (size_t)at * sizeof(uint16_t);
            if (j * HALF % LINE == 0) fetch_lines(fetch, p, 64);
            const __m128i x = load128(p);
            const __m256 f =
                type == SHEAF_TYPE_F16
                    ? _mm256_cvtph_ps(x)
                    : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
            half[j / 2][j % 2] = _mm256_fmadd_ps(f, _mm256_loadu_ps(act + at), half[j / 2][j % 2]);
        }
    }
    UNROLL for (int j = 0; j < ACCS; j++) acc[0][j] =
        _mm512_insertf32x8(_mm512_castps256_ps512(half[j][0]), half[j][1], 1);
    row_plain_end(type, k, i, w, &act, 1, acc, NULL, out, r);
}
#endif

/* Row by row, as memory is read in order then. */
INLINE void rows_plain(enum sheaf_type type, int64_t k, int64_t part, const char *w,
                       size_t w_stride, int64_t nr, struct fetch fetch, const void *const *act,
                       int C, float *const *out) {
    const size_t size = plain_size(type);
    v_f sums[PART_ROWS][PLAIN_COLS * ACCS];
    if (part == k) {
        const float *at[PLAIN_COLS];
        UNROLL for (int c = 0; c < C; c++) at[c] = act[c];
#if defined(KERNELS_VNNI_512)
        if (C == 1 && type != SHEAF_TYPE_F32 && fetch.times == FETCH_MOST) {
            for (int64_t r = 0; r < nr; r++, w += w_stride)
                row_in_halves(type, k, w, fetch, at[0], out, r);
            return;
        }
#endif
        for (int64_t r = 0; r < nr; r++, w += w_stride)
            row_plain(type, k, w, fetch, at, C, NULL, NULL, out, r);
        return;
    }
    for (int64_t r0 = 0; r0 < nr; r0 += PART_ROWS) {
        const int64_t rows = nr - r0 < PART_ROWS ? nr - r0 : PART_ROWS;
        int64_t i = 0;
        do {
            const bool last = i + part >= k;
            const float *at[PLAIN_COLS];
            UNROLL for (int c = 0; c < C; c++) at[c] = (const float *)act[c] + i;
            for (int64_t r = 0; r < rows; r++) {
                const char *p = w + (size_t)(r0 + r) * w_stride + (size_t)i * size;
                row_plain(type, last ? k - i : part, p, fetch, at, C, i ? sums[r] : NULL,
                          last ? NULL : sums[r], out, r0 + r);
            }
            i += part;
        } while (i < k);
    }
}
INLINE void rows_plain_few(enum sheaf_type type, int64_t k, const char *w, size_t w_stride,
                           int64_t nr, const void *const *act, int C, float *const *out) {
    const bool fits = sheaf__cpu_fetch == SHEAF__FETCH_BOTH && C * k <= 2 * MOST_WHOLE;
    const int64_t part = fits ? k : part_of(k, C);
    const size_t row = (size_t)part * plain_size(type);
    if (C == 1) {
        BY_FETCH_PLAIN(row, w_stride,
                       rows_plain(type, k, part, w, w_stride, nr, fetch, act, 1, out));
    } else {
        BY_FETCH_FEW(2, row, w_stride,
                     rows_plain(type, k, part, w, w_stride, nr, fetch, act, C, out));
    }
}
/* Functions of their own: together they would leave no registers for the addresses of four columns. */
#define ROWS_PLAIN(NAME, TYPE, C)                                                                  \
    __attribute__((noinline)) static void NAME(int64_t k, const void *w, size_t w_stride,          \
                                               int64_t nr, const void *const *act,                 \
                                               float *const *out) {                                \
        rows_plain_few(TYPE, k, w, w_stride, nr, act, C, out);                                     \
    }
#define ROWS_DOT(NAME, TYPE)                                                                       \
    ROWS_PLAIN(NAME##_1, TYPE, 1)                                                                  \
    ROWS_PLAIN(NAME##_2, TYPE, 2)                                                                  \
    ROWS_PLAIN(NAME##_3, TYPE, PLAIN_COLS - 1)                                                     \
    ROWS_PLAIN(NAME##_4, TYPE, PLAIN_COLS)                                                         \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        for (; nc >= PLAIN_COLS; nc -= PLAIN_COLS, act += PLAIN_COLS, out += PLAIN_COLS)           \
            NAME##_4(k, w, w_stride, nr, act, out);                                                \
        if (nc == 3) NAME##_3(k, w, w_stride, nr, act, out);                                       \
        if (nc == 2) NAME##_2(k, w, w_stride, nr, act, out);                                       \
        if (nc == 1) NAME##_1(k, w, w_stride, nr, act, out);                                       \
    }
ROWS_DOT(rows_dot_f32, SHEAF_TYPE_F32)
ROWS_DOT(rows_dot_f16, SHEAF_TYPE_F16)
ROWS_DOT(rows_dot_bf16, SHEAF_TYPE_BF16)
