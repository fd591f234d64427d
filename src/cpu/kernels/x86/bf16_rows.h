/* Rows of BF16 and F16 weights by 4 or 8 columns that are rounded to BF16, F16 weights rounded, too: for the
 * modules that multiply BF16.
 *
 * Two rows meet all columns in registers, so that a load of a column serves both; a weight is read once. What
 * bounds is reading: a product of 32 elements takes half a cycle of a Zen 5, eight columns of 64 bytes of
 * weights four.
 *
 * Invariant: lane j of a sum is elements 2 j and 2 j + 1 of each 32, in their order, whatever is computed beside
 * it. */

enum {
    BF16_STEP = 32,
    BF16_AHEAD = 8192, /* bytes */
    BF16_GROUP = 16,   /* rows */
    BF16_MOST = 8192,  /* elements of all columns: half of a first cache of 32 KiB */
};
static_assert(BF16_MOST / SHEAF__TILE_COLS % BF16_STEP == 0, "parts are whole steps");

INLINE __m512bh bf16_weights(enum sheaf_type type, const uint16_t *w) {
    if (type == SHEAF_TYPE_BF16) return (__m512bh)_mm512_loadu_si512(w);
    return _mm512_cvtne2ps_pbh(v_load_f16(w + VW), v_load_f16(w));
}

/* acc += products of BF16_STEP elements of two rows with C columns. */
INLINE void add_bf16(enum sheaf_type type, int C, const uint16_t *const *row,
                     const uint16_t *const *y, int64_t i, __m512 (*acc)[SHEAF__TILE_COLS]) {
    const __m512bh x[2] = {bf16_weights(type, row[0] + i), bf16_weights(type, row[1] + i)};
    UNROLL_8 for (int c = 0; c < C; c++) {
        __m512i b = _mm512_loadu_si512(y[c] + i);
        __asm__("" : "+v"(b)); /* one load for both rows */
        UNROLL for (int r = 0; r < 2; r++) acc[r][c] =
            _mm512_dpbf16_ps(acc[r][c], x[r], (__m512bh)b);
    }
}

/* Sums across lanes: of row r and column c in lane c % 4 + 4 * r + c / 4 * 8. */
INLINE v_f sums_bf16(int C, __m512 (*acc)[SHEAF__TILE_COLS]) {
    v_f v[SHEAF__TILE_COLS];
    UNROLL_8 for (int c = 0; c < SHEAF__TILE_COLS; c++) { /* halves: row 0, then row 1 */
        v[c] = v_halves(acc[0][c % C], acc[1][c % C]);
    }
    return v_sum_eights(v_sum_fours(v_sum_twos(v[0], v[1]), v_sum_twos(v[2], v[3])),
                        v_sum_fours(v_sum_twos(v[4], v[5]), v_sum_twos(v[6], v[7])));
}

/* acc += products of n elements of two rows with C columns, zeros after the last. */
INLINE void add_part_bf16(enum sheaf_type type, int C, int64_t n, const uint16_t *const *row,
                          const uint16_t *const *y, size_t ahead, __m512 (*acc)[SHEAF__TILE_COLS]) {
    const size_t rest = (size_t)(n % BF16_STEP) * sizeof(uint16_t);
    const int64_t whole = n - n % BF16_STEP;
    for (int64_t i = 0; i < whole; i += BF16_STEP) {
        UNROLL for (int r = 0; r < 2; r++)
            _mm_prefetch((const char *)(row[r] + i) + ahead, _MM_HINT_T1);
        add_bf16(type, C, row, y, i, acc);
    }
    if (rest) {
        uint16_t ends[2 + SHEAF__TILE_COLS][BF16_STEP] = {{0}};
        const uint16_t *end[2 + SHEAF__TILE_COLS];
        for (int j = 0; j < 2 + C; j++)
            end[j] = memcpy(ends[j], (j < 2 ? row[j] : y[j - 2]) + whole, rest);
        add_bf16(type, C, end, end + 2, 0, acc);
    }
}

/* Columns beyond nc are the first again, and the row behind the last is the last. Columns that do not stay in
 * the first cache are multiplied in parts, for BF16_GROUP rows each, whose sums wait in memory. */
INLINE void rows_bf16(enum sheaf_type type, int C, int64_t k, const char *w, size_t w_stride,
                      int64_t nr, const void *const *columns, int nc, float *const *out) {
    const int64_t part = C * k <= BF16_MOST ? k : BF16_MOST / C;
    const size_t ahead = ahead_by(BF16_AHEAD, (size_t)part * sizeof(uint16_t), w_stride);
    __m512 sums[BF16_GROUP / 2][2][SHEAF__TILE_COLS];
    for (int64_t r0 = 0; r0 < nr; r0 += BF16_GROUP, w += BF16_GROUP * w_stride) {
        const int64_t rows = nr - r0 < BF16_GROUP ? nr - r0 : BF16_GROUP;
        int64_t i = 0;
        do {
            const uint16_t *y[SHEAF__TILE_COLS];
            for (int c = 0; c < C; c++) y[c] = (const uint16_t *)columns[c < nc ? c : 0] + i;
            for (int64_t r = 0; r < rows; r += 2) {
                const char *first = w + (size_t)r * w_stride;
                const char *second = r + 1 < rows ? first + w_stride : first;
                const uint16_t *row[2] = {(const uint16_t *)(const void *)first + i,
                                          (const uint16_t *)(const void *)second + i};
                __m512 acc[2][SHEAF__TILE_COLS];
                UNROLL for (int j = 0; j < 2; j++) {
                    UNROLL_8 for (int c = 0; c < C; c++) acc[j][c] =
                        i ? sums[r / 2][j][c] : v_set1(0.0f);
                }
                add_part_bf16(type, C, k - i < part ? k - i : part, row, y, ahead, acc);
                UNROLL for (int j = 0; j < 2; j++) {
                    UNROLL_8 for (int c = 0; c < C; c++) sums[r / 2][j][c] = acc[j][c];
                }
            }
            i += part;
        } while (i < k);
        float to[VW];
        for (int64_t r = 0; r < rows; r++) {
            if (r % 2 == 0) v_store(to, sums_bf16(C, sums[r / 2]));
            for (int c = 0; c < nc; c++) out[c][r0 + r] = to[c % 4 + 4 * (r % 2) + c / 4 * 8];
        }
    }
}
#define ROWS_BF16(NAME, TYPE)                                                                      \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *columns, int nc, float *const *out) {                      \
        if (nc <= SHEAF__TILE_COLS / 2)                                                            \
            rows_bf16(TYPE, SHEAF__TILE_COLS / 2, k, w, w_stride, nr, columns, nc, out);           \
        else                                                                                       \
            rows_bf16(TYPE, SHEAF__TILE_COLS, k, w, w_stride, nr, columns, nc, out);               \
    }
ROWS_BF16(rounded_f16, SHEAF_TYPE_F16)
ROWS_BF16(rounded_bf16, SHEAF_TYPE_BF16)

static void use_rows_bf16(struct sheaf__cpu_kernels *table) {
    table->rows_dot_rounded[SHEAF_TYPE_F16] = rounded_f16;
    table->rows_dot_rounded[SHEAF_TYPE_BF16] = rounded_bf16;
}
