/* A part of table.h, of the AVX-512 table: F32, F16 and BF16 weights by 5 to 8 columns at once.
 *
 * Three rows meet eight columns in registers, one of the ACCS sums of a row and a column after the other,
 * so that a weight is read from memory and converted once. Columns are multiplied in parts that stay in the
 * first cache; sums wait in memory. (A Zen 4 reads columns from the second cache as fast and stores vectors of 512 bits
 * at half the speed, so there they are whole, D164.) The next rows are fetched a line or two a step: all at once they
 * would fill the buffers that loads from the second cache need. Twice four columns read memory in one half of
 * the time and multiplied in both.
 *
 * Invariant: a lane sums what a lane of row_plain sums, and the lanes are added in that order: the same
 * bits. */

enum { EIGHT_ROWS = 3, EIGHT_GROUP = 2 * EIGHT_ROWS, EIGHT_PART = 512 };
static_assert(EIGHT_PART % (ACCS * VW) == 0, "whole rounds");

/* Sum number j of EIGHT_ROWS rows by eight columns, n elements, whole rounds. */
INLINE void tile_eight(enum sheaf_type type, int64_t n, const char *const *row, struct fetch fetch,
                       const float *const *act, int j, bool first,
                       v_f (*sums)[ACCS][SHEAF__TILE_COLS]) {
    const size_t size = plain_size(type);
    v_f acc[EIGHT_ROWS][SHEAF__TILE_COLS];
    UNROLL for (int r = 0; r < EIGHT_ROWS; r++) {
        UNROLL_8 for (int c = 0; c < SHEAF__TILE_COLS; c++) acc[r][c] =
            first ? v_set1(0.0f) : sums[r][j][c];
    }
    for (int64_t i = j * VW; i < n; i += ACCS * VW) {
        const size_t at = (size_t)(i - j * VW) * size;
        v_f x[EIGHT_ROWS];
        UNROLL for (int r = 0; r < EIGHT_ROWS; r++) {
            x[r] = load_plain(type, row[r], i);
            /* a round is ACCS lines of F32; two of the others, of rows 0 and 1, then of row 2 */
            if (size == sizeof(float))
                fetch_lines(fetch, row[r] + at + (size_t)j * 64, 64);
            else if (r / 2 == j / 2)
                fetch_lines(fetch, row[r] + at + (size_t)(j % 2) * 64, 64);
        }
        UNROLL_8 for (int c = 0; c < SHEAF__TILE_COLS; c++) {
            v_f y = v_load(act[c] + i);
            LOADED_ONCE(y);
            UNROLL for (int r = 0; r < EIGHT_ROWS; r++) acc[r][c] = v_fma(x[r], y, acc[r][c]);
        }
    }
    UNROLL for (int r = 0; r < EIGHT_ROWS; r++) {
        UNROLL_8 for (int c = 0; c < SHEAF__TILE_COLS; c++) sums[r][j][c] = acc[r][c];
    }
}

/* The results of a row from the sums of its whole rounds, the first i elements. */
INLINE void end_eight(enum sheaf_type type, int64_t k, int64_t i, const char *w,
                      const float *const *act, v_f (*sums)[SHEAF__TILE_COLS], int nc,
                      float *const *out, int64_t r) {
    v_f x[SHEAF__TILE_COLS];
    float to[SHEAF__TILE_COLS];
    for (int c = 0; c < nc && i < k; c++) {
        v_f acc[1][ACCS];
        UNROLL for (int j = 0; j < ACCS; j++) acc[0][j] = sums[j][c];
        row_plain_end(type, k, i, w, act + c, 1, acc, NULL, out + c, r);
    }
    if (i < k) return;
    UNROLL_8 for (int c = 0; c < SHEAF__TILE_COLS; c++) x[c] =
        v_add(v_add(sums[0][c], sums[1][c]), v_add(sums[2][c], sums[3][c]));
    sums_of_all(x, SHEAF__TILE_COLS, to);
    for (int c = 0; c < nc; c++) out[c][r] = to[c];
}

/* Columns beyond nc are the first again, rows beyond nr the last. */
INLINE void rows_eight(enum sheaf_type type, bool often, int64_t k, const char *w, size_t w_stride,
                       int64_t nr, const void *const *columns, int nc, float *const *out) {
    const size_t size = plain_size(type);
    const int64_t whole = k / (ACCS * VW) * (ACCS * VW);
    const size_t ahead = EIGHT_GROUP * w_stride;
    const struct fetch fetch = often ? fetch_often(FETCH_MOST, ahead, 0, 0)
                                     : (struct fetch){.ahead = {ahead}, .times = 1};
    const int64_t part = often ? whole : EIGHT_PART;
    const float *act[SHEAF__TILE_COLS];
    v_f sums[EIGHT_GROUP][ACCS][SHEAF__TILE_COLS];
    for (int c = 0; c < SHEAF__TILE_COLS; c++) act[c] = columns[c < nc ? c : 0];
    for (int64_t r0 = 0; r0 < nr; r0 += EIGHT_GROUP) {
        const int64_t rows = nr - r0 < EIGHT_GROUP ? nr - r0 : EIGHT_GROUP;
        int64_t i = 0;
        do {
            const int64_t n = whole - i < part ? whole - i : part;
            const float *at[SHEAF__TILE_COLS];
            UNROLL_8 for (int c = 0; c < SHEAF__TILE_COLS; c++) at[c] = act[c] + i;
            for (int64_t r = 0; r < rows; r += EIGHT_ROWS) {
                const char *row[EIGHT_ROWS];
                for (int64_t j = 0; j < EIGHT_ROWS; j++)
                    row[j] = w + (size_t)(r0 + (r + j < rows ? r + j : rows - 1)) * w_stride +
                             (size_t)i * size;
                UNROLL for (int j = 0; j < ACCS; j++)
                    tile_eight(type, n, row, fetch, at, j, i == 0, &sums[r]);
            }
            i += part;
        } while (i < whole);
        for (int64_t r = 0; r < rows; r++)
            end_eight(type, k, whole, w + (size_t)(r0 + r) * w_stride, act, sums[r], nc, out,
                      r0 + r);
    }
}
#define ROWS_EIGHT(NAME, TYPE, FEW)                                                                \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        if (nc > 4 && sheaf__cpu_fetch == SHEAF__FETCH_OFTEN)                                      \
            rows_eight(TYPE, true, k, w, w_stride, nr, act, nc, out);                              \
        else if (nc > 4)                                                                           \
            rows_eight(TYPE, false, k, w, w_stride, nr, act, nc, out);                             \
        else                                                                                       \
            FEW(k, w, w_stride, nr, act, nc, out);                                                 \
    }
ROWS_EIGHT(eight_f32, SHEAF_TYPE_F32, rows_dot_f32)
ROWS_EIGHT(eight_f16, SHEAF_TYPE_F16, rows_dot_f16)
ROWS_EIGHT(eight_bf16, SHEAF_TYPE_BF16, rows_dot_pairs)
