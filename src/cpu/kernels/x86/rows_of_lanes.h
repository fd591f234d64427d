/* A part of table.h, of tables with vectors of 32 bytes: rows of all types that are unpacked to lanes of blocks or
 * pieces (digits_avx2.h, signed_avx2.h, halves.h), by one to four columns, in digits or rounded. A new type gets a
 * line in digits_row. */

/* A part of a row by C columns: its sums, or those so far to `to`. */
INLINE void digits_row(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                       struct fetch fetch, const void *const *cols, int C, const v_f *from, v_f *to,
                       float *sum) {
    if (is_k(type))
        digits_k(type, act, k, w, fetch, cols, C, from, to, sum);
    else if (type == SHEAF_TYPE_Q6_K)
        digits_6k(act, k, w, fetch, cols, C, from, to, sum);
    else if (BY_IQ4(type))
        digits_iq4(type, act, k, w, fetch, cols, C, from, to, sum);
    else if (BY_HALVES(type))
        digits_halves(type, act, k, w, fetch, cols, C, from, to, sum);
    else
        digits_32(type, act, k, w, fetch, cols, C, from, to, sum);
}

#define DIGITS_PARTS(TYPE, ACT, C)                                                                 \
    for (int64_t r0 = 0; r0 < nr; r0 += PART_ROWS) {                                               \
        const int64_t rows = nr - r0 < PART_ROWS ? nr - r0 : PART_ROWS;                            \
        v_f sums[PART_ROWS][2 * (C)];                                                              \
        int64_t i = 0;                                                                             \
        do {                                                                                       \
            const bool last = i + part >= k;                                                       \
            const char *p = (const char *)w + (size_t)r0 * w_stride;                               \
            const void *cols[C];                                                                   \
            p += (size_t)(i / SHEAF__QK_K) * size_256(TYPE);                                       \
            UNROLL for (int c = 0; c < (C); c++) cols[c] =                                         \
                part_of_column(ACT, act[c < nc ? c : 0], i / SHEAF__QK_K);                         \
            for (int64_t r = 0; r < rows; r++, p += w_stride) {                                    \
                float sum[C] = {0};                                                                \
                digits_row(TYPE, ACT, last ? k - i : part, p, fetch, cols, C, i ? sums[r] : NULL,  \
                           last ? NULL : sums[r], sum);                                            \
                for (int c = 0; c < nc && last; c++) out[c][r0 + r] = sum[c];                      \
            }                                                                                      \
            i += part;                                                                             \
        } while (i < k);                                                                           \
    }
/* How often lines of the weights of one column are asked for: twice by loops of few instructions (a Zen 4 that read at
 * 30 to 36 GB/s: of that 79 to 94 % -> 94 to 102 %; Q5_K and MXFP4 became 1 to 4 % slower). */
INLINE int times_asked(enum sheaf_type type, enum sheaf__act act) {
#if defined(KERNELS_REPACKED)
    const bool few = type == SHEAF_TYPE_Q4_0 || type == SHEAF_TYPE_Q4_1 || is_five(type) ||
                     type == SHEAF_TYPE_Q6_K;
    return few && act == SHEAF__ACT_BYTES ? 2 : 1;
#else
    (void)type, (void)act;
    return 1;
#endif
}
#define ROWS_OF_ACT(NAME, TYPE, ACT)                                                               \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        const int64_t part = part_of(k, nc);                                                       \
        const size_t row = bytes_of_weights(TYPE, part);                                           \
        if (nc == 1) {                                                                             \
            BY_FETCH_OFTEN(times_asked(TYPE, ACT), FETCH_AHEAD, row, w_stride,                     \
                           DIGITS_PARTS(TYPE, ACT, 1));                                            \
            return;                                                                                \
        }                                                                                          \
        const struct fetch fetch = fetch_few(sheaf__cpu_fetch, 1, row, w_stride);                  \
        if (nc == 2) {                                                                             \
            DIGITS_PARTS(TYPE, ACT, 2)                                                             \
        } else if (nc == 3) {                                                                      \
            DIGITS_PARTS(TYPE, ACT, 3)                                                             \
        } else {                                                                                   \
            DIGITS_PARTS(TYPE, ACT, 4)                                                             \
        }                                                                                          \
    }
ROWS_OF_ACT(rows_digits_q8_0, SHEAF_TYPE_Q8_0, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q4_0, SHEAF_TYPE_Q4_0, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q4_1, SHEAF_TYPE_Q4_1, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q5_0, SHEAF_TYPE_Q5_0, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q5_1, SHEAF_TYPE_Q5_1, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q4_k, SHEAF_TYPE_Q4_K, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q5_k, SHEAF_TYPE_Q5_K, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q6_k, SHEAF_TYPE_Q6_K, SHEAF__ACT_DIGITS)
