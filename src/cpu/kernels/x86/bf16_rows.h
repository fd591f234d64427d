/* Rows of BF16 and F16 weights by 4, 8 or twice 8 columns that are rounded to BF16, F16 weights rounded, too: for
 * the modules that multiply BF16.
 *
 * Two rows, or one, meet a group of columns in registers: a load of a column serves both, and a weight is read once.
 * The second group meets the same part of the two rows right after the first, from the first cache, where F16
 * weights lie as BF16 then. What bounds is reading: a product of 32 elements takes half a cycle of a Zen 5, eight
 * columns of 64 bytes of weights four.
 *
 * Invariant: lane j of a sum is elements 2 j and 2 j + 1 of each 32, in their order, whatever is computed beside
 * it. */
#include "cpu/kernels/x86/fetch.h"

enum {
    BF16_STEP = 32,
    BF16_GROUP = 32,  /* rows; F16 by 16, k = 2048: 59 us a MiB with 16, 54 with 32, 51 with 64 */
    BF16_MOST = 8192, /* elements of all columns: half of a first cache of 32 KiB */
    BF16_KEPT = BF16_MOST / SHEAF__BF16_COLS, /* elements of a part, where there are two groups */
};
static_assert(BF16_KEPT % BF16_STEP == 0, "parts are whole steps");

INLINE __m512bh bf16_weights(enum sheaf_type type, const uint16_t *w) {
    if (type == SHEAF_TYPE_BF16) return (__m512bh)_mm512_loadu_si512(w);
    return _mm512_cvtne2ps_pbh(v_load_f16(w + VW), v_load_f16(w));
}

/* acc += products of BF16_STEP elements of R rows with C columns. `kept`, if not NULL, gets the weights as
 * BF16. */
INLINE void add_bf16(enum sheaf_type type, int R, int C, const uint16_t *const *row,
                     const uint16_t *const *y, int64_t i, uint16_t (*kept)[BF16_KEPT],
                     __m512 (*acc)[SHEAF__TILE_COLS]) {
    __m512bh x[2];
    UNROLL for (int r = 0; r < R; r++) {
        x[r] = bf16_weights(type, row[r] + i);
        if (kept) memcpy(kept[r] + i, &x[r], sizeof x[r]);
    }
    UNROLL_8 for (int c = 0; c < C; c++) {
        __m512i b = load512(y[c] + i);
        LOADED_ONCE(b);
        UNROLL for (int r = 0; r < R; r++) acc[r][c] =
            _mm512_dpbf16_ps(acc[r][c], x[r], (__m512bh)b);
    }
}

/* The results of R rows and C columns from their sums, for so many rows and columns at most. */
INLINE void end_bf16(int R, int C, __m512 (*sums)[SHEAF__TILE_COLS], int64_t rows, int columns,
                     float *const *out, int64_t to_row) {
    v_f v[SHEAF__TILE_COLS];
    float to[VW]; /* of row r and column c in c % 4 + 4 r + c / 4 * 8 */
    UNROLL_8 for (int c = 0; c < SHEAF__TILE_COLS; c++) v[c] =
        v_halves(sums[0][c % C], sums[R - 1][c % C]);
    v_store(to, v_sum_eights(v_sum_fours(v_sum_twos(v[0], v[1]), v_sum_twos(v[2], v[3])),
                             v_sum_fours(v_sum_twos(v[4], v[5]), v_sum_twos(v[6], v[7]))));
    for (int r = 0; r < R && r < rows; r++) {
        for (int c = 0; c < C && c < columns; c++)
            out[c][to_row + r] = to[c % 4 + 4 * r + c / 4 * 8];
    }
}

/* acc += products of n elements of R rows with C columns, zeros after the last. */
INLINE void add_part_bf16(enum sheaf_type type, int R, int C, int64_t n, const uint16_t *const *row,
                          const uint16_t *const *y, struct fetch fetch, uint16_t (*kept)[BF16_KEPT],
                          __m512 (*acc)[SHEAF__TILE_COLS]) {
    const size_t rest = (size_t)(n % BF16_STEP) * sizeof(uint16_t);
    const int64_t whole = n - n % BF16_STEP;
    for (int64_t i = 0; i < whole; i += BF16_STEP) {
        UNROLL for (int r = 0; r < R; r++)
            fetch_lines(fetch, (const char *)(row[r] + i), BF16_STEP * sizeof(uint16_t));
        add_bf16(type, R, C, row, y, i, kept, acc);
    }
    if (rest) {
        uint16_t ends[2 + SHEAF__TILE_COLS][BF16_STEP] = {{0}};
        const uint16_t *end[2 + SHEAF__TILE_COLS];
        for (int j = 0; j < R + C; j++)
            end[j] = memcpy(ends[j], (j < R ? row[j] : y[j - R]) + whole, rest);
        uint16_t last[2][BF16_KEPT];
        add_bf16(type, R, C, end, end + R, 0, kept ? last : NULL, acc);
        UNROLL for (int r = 0; r < R && kept; r++) memcpy(kept[r] + whole, last[r], rest);
    }
}

/* R rows by a group of C columns, with their sums. */
INLINE void add_group_bf16(enum sheaf_type type, int R, int C, int64_t n,
                           const uint16_t *const *row, const uint16_t *const *y, struct fetch fetch,
                           uint16_t (*kept)[BF16_KEPT], bool first,
                           __m512 (*sums)[SHEAF__TILE_COLS]) {
    __m512 acc[2][SHEAF__TILE_COLS];
    UNROLL for (int j = 0; j < R; j++) {
        UNROLL_8 for (int c = 0; c < C; c++) acc[j][c] = first ? v_set1(0.0f) : sums[j][c];
    }
    add_part_bf16(type, R, C, n, row, y, fetch, kept, acc);
    UNROLL for (int j = 0; j < R; j++) {
        UNROLL_8 for (int c = 0; c < C; c++) sums[j][c] = acc[j][c];
    }
}

/* R rows at a time, by one group of C columns or two; columns beyond nc are the first again, rows beyond nr the last.
 * Columns that do not stay in the first cache are multiplied in parts, for BF16_GROUP rows each, whose sums wait
 * in memory. */
INLINE void rows_bf16(enum sheaf_type type, int R, int C, int groups, int64_t k, const char *w,
                      size_t w_stride, int64_t nr, const void *const *columns, int nc,
                      float *const *out) {
    const int64_t fit = BF16_MOST / (C * groups), part = k <= fit ? k : fit;
    const struct fetch fetch = fetch_second(2, (size_t)part * sizeof(uint16_t), w_stride),
                       none = {0};
    __m512 sums[BF16_GROUP][2][2][SHEAF__TILE_COLS]; /* rows, group, row, column */
    uint16_t kept[2][BF16_KEPT];
    for (int64_t r0 = 0; r0 < nr; r0 += BF16_GROUP, w += BF16_GROUP * w_stride) {
        const int64_t rows = nr - r0 < BF16_GROUP ? nr - r0 : BF16_GROUP;
        int64_t i = 0;
        do {
            const int64_t n = k - i < part ? k - i : part;
            const uint16_t *y[SHEAF__BF16_COLS];
            for (int c = 0; c < C * groups; c++)
                y[c] = (const uint16_t *)columns[c < nc ? c : 0] + i;
            const uint16_t *again[2] = {kept[0], kept[1]};
            const bool keep = groups > 1 && type == SHEAF_TYPE_F16;
            for (int64_t r = 0; r < rows; r += R) {
                const char *first = w + (size_t)r * w_stride;
                const char *second = r + 1 < rows ? first + w_stride : first;
                const uint16_t *row[2] = {(const uint16_t *)(const void *)first + i,
                                          (const uint16_t *)(const void *)second + i};
                __m512(*at)[2][SHEAF__TILE_COLS] = sums[part < k ? r / R : 0];
                add_group_bf16(type, R, C, n, row, y, fetch, keep ? kept : NULL, i == 0, at[0]);
                if (groups > 1)
                    add_group_bf16(SHEAF_TYPE_BF16, R, C, n, keep ? again : row, y + C, none, NULL,
                                   i == 0, at[1]);
                for (int g = 0; g < groups && i + n == k; g++)
                    end_bf16(R, C, at[g], rows - r, nc - g * C, out + g * C, r0 + r);
            }
            i += part;
        } while (i < k);
    }
}
/* Four whole columns meet one row: memory is then read in its order, and what a load of two rows saves is not
 * missed. F16 by 4, us a MiB, k = 2048 and 5632 (in parts): one row 28 and 40, two 32 and 35 (Zen 5). */
INLINE void few_rows_bf16(enum sheaf_type type, int64_t k, const char *w, size_t w_stride,
                          int64_t nr, const void *const *columns, int nc, float *const *out) {
    if (nc <= 4 && 4 * k <= BF16_MOST)
        rows_bf16(type, 1, 4, 1, k, w, w_stride, nr, columns, nc, out);
    else if (nc <= 4)
        rows_bf16(type, 2, 4, 1, k, w, w_stride, nr, columns, nc, out);
    else if (nc <= 8)
        rows_bf16(type, 2, 8, 1, k, w, w_stride, nr, columns, nc, out);
    else
        rows_bf16(type, 2, 8, 2, k, w, w_stride, nr, columns, nc, out);
}
#define ROWS_BF16(NAME, TYPE)                                                                      \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *columns, int nc, float *const *out) {                      \
        few_rows_bf16(TYPE, k, w, w_stride, nr, columns, nc, out);                                 \
    }
ROWS_BF16(rounded_f16, SHEAF_TYPE_F16)
ROWS_BF16(rounded_bf16, SHEAF_TYPE_BF16)

/* Adds these rows to a table, for so many columns at most. */
static void use_rows_bf16(struct sheaf__cpu_kernels *table, int most) {
    table->bf16_cols = most;
    table->rows_dot_rounded[SHEAF_TYPE_F16] = rounded_f16;
    table->rows_dot_rounded[SHEAF_TYPE_BF16] = rounded_bf16;
}
