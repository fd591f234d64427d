/* A part of table.h: what a table has for the types that become signed bytes (signed.h): rows, and what panels take of
 * them. The rows by which they meet few columns are chosen here. */

/* ---- panels ---- */

INLINE void floats_signed(enum sheaf_type type, const void *src, float *y, int64_t n) {
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, n - i, false, rest);
        const struct scales s = scales_256(type, p);
        const struct scales m = type == SHEAF_TYPE_Q2_K ? mins_256(p) : s;
        float scale[16], min[16];
        uint32_t signs[8];
        int8_t q[32];
        _mm256_storeu_ps(scale, s.lo);
        _mm256_storeu_ps(scale + 8, s.hi);
        _mm256_storeu_ps(min, m.lo);
        _mm256_storeu_ps(min + 8, m.hi);
        if (signs_are_packed(type)) signs_256(type, p, signs);
        UNROLL_12 for (int j = 0; j < 8; j++) {
            if (i + 32 * j >= n) break;
            _mm256_storeu_si256((__m256i *)q, signed_32(type, p, j, signs));
            UNROLL for (int v = 0; v < PER_32; v++) {
                const int at = 2 * j + v * VW / 16;
                v_f x = v_mul(v_load_i8(q + v * VW), v_set1(scale[at]));
                if (type == SHEAF_TYPE_Q2_K) x = v_sub(x, v_set1(min[at]));
                v_store(y + i + 32 * j + v * VW, x);
            }
        }
    }
}

INLINE void blocks_signed(enum sheaf_type type, const void *src, struct panel_row *to, int64_t n) {
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, n - i, false, rest);
        const struct scales s = scales_256(type, p);
        const bool mins = type == SHEAF_TYPE_Q2_K;
        const struct scales m = mins ? mins_256(p) : s;
        const __m256 zero = _mm256_setzero_ps();
        float scale[16], min[16];
        uint32_t signs[8];
        _mm256_storeu_ps(scale, s.lo);
        _mm256_storeu_ps(scale + 8, s.hi);
        _mm256_storeu_ps(min, _mm256_sub_ps(zero, m.lo));
        _mm256_storeu_ps(min + 8, _mm256_sub_ps(zero, m.hi));
        if (signs_are_packed(type)) signs_256(type, p, signs);
        UNROLL_12 for (int j = 0; j < 8; j++) {
            if (i + 32 * j >= n) break;
            panel_block(type, signed_32(type, p, j, signs), scale + 2 * j,
                        mins ? min + 2 * j : NULL, to + i / PANEL_ROW_UNIT, j);
        }
    }
}

/* ---- the functions of the table ---- */

/* Types with one scale for 32 weights, and for 16: X for each; and entries of a table, of types whose
 * integers have at most 5 bits, and 8 (panel_bits). */
#define SIGNED_BY_32(X) SIGNED_IN_LANES_BY_32(X) SIGNED_IN_ORDER_BY_32(X)
#define SIGNED_BY_16(X) SIGNED_IN_LANES_BY_16(X) SIGNED_IN_ORDER_BY_16(X)
/* Those that tables of 32 bytes unpack to lanes of their own (digits_row), and in their order (digits_signed) */
#define SIGNED_IN_LANES_BY_32(X) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(TQ1_0) X(TQ2_0)
#define SIGNED_IN_LANES_BY_16(X) X(Q2_K) X(Q3_K)
#define SIGNED_IN_ORDER_BY_32(X) X(IQ2_XXS) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(Q1_0) X(Q2_0)
#define SIGNED_IN_ORDER_BY_16(X) X(NVFP4) X(IQ2_XS) X(IQ2_S) X(IQ1_M)
#define ENTRIES_OF_5_BITS(FN)                                                                      \
    [SHEAF_TYPE_MXFP4] = FN##_MXFP4, [SHEAF_TYPE_NVFP4] = FN##_NVFP4,                              \
    [SHEAF_TYPE_Q2_K] = FN##_Q2_K, [SHEAF_TYPE_Q3_K] = FN##_Q3_K, [SHEAF_TYPE_TQ1_0] = FN##_TQ1_0, \
    [SHEAF_TYPE_TQ2_0] = FN##_TQ2_0, [SHEAF_TYPE_Q1_0] = FN##_Q1_0, [SHEAF_TYPE_Q2_0] = FN##_Q2_0
#define ENTRIES_OF_8_BITS(FN)                                                                      \
    [SHEAF_TYPE_IQ4_NL] = FN##_IQ4_NL, [SHEAF_TYPE_IQ4_XS] = FN##_IQ4_XS,                          \
    [SHEAF_TYPE_IQ2_XXS] = FN##_IQ2_XXS, [SHEAF_TYPE_IQ3_XXS] = FN##_IQ3_XXS,                      \
    [SHEAF_TYPE_IQ3_S] = FN##_IQ3_S, [SHEAF_TYPE_IQ1_S] = FN##_IQ1_S,                              \
    [SHEAF_TYPE_IQ2_XS] = FN##_IQ2_XS, [SHEAF_TYPE_IQ2_S] = FN##_IQ2_S,                            \
    [SHEAF_TYPE_IQ1_M] = FN##_IQ1_M
#define ENTRIES_SIGNED(FN) ENTRIES_OF_5_BITS(FN), ENTRIES_OF_8_BITS(FN)

#define FLOATS_SIGNED(TYPE) UNPACK(floats_signed_##TYPE, floats_signed, SHEAF_TYPE_##TYPE)
#define BLOCKS_SIGNED(TYPE) UNPACK(blocks_signed_##TYPE, blocks_signed, SHEAF_TYPE_##TYPE)
SIGNED_BY_32(FLOATS_SIGNED)
SIGNED_BY_16(FLOATS_SIGNED)
SIGNED_BY_32(BLOCKS_SIGNED)
SIGNED_BY_16(BLOCKS_SIGNED)

#if defined(KERNELS_VNNI_512)
INLINE void rows_signed(enum sheaf_type type, int64_t k, const void *w, size_t w_stride, int64_t nr,
                        const void *const *act, int nc, float *const *out) {
    if (by_levels(type))
        rows_by_eights(type, SHEAF__ACT_DIGITS, k, w, w_stride, nr, act, nc, out);
    else if (by_pieces(type) && nc == 1)
        rows_by_pieces(type, SHEAF__ACT_DIGITS, k, w, w_stride, nr, act, nc, out);
    else
        rows_by_few(type, SHEAF__ACT_DIGITS, k, w, w_stride, nr, act, nc, out);
}
#define FEW_SIGNED(TYPE) ROWS_FEW(few_signed_##TYPE, SHEAF_TYPE_##TYPE)
#define LEVELS(X) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(IQ3_XXS) X(IQ3_S)
LEVELS(FEW_SIGNED)
#else
/* One column, or four, of which some may be the first again: these functions are many. */
INLINE void rows_signed(enum sheaf_type type, int64_t k, const void *w, size_t w_stride, int64_t nr,
                        const void *const *act, int nc, float *const *out) {
    const size_t bytes = bytes_of_weights(type, k);
    const char *row = w;
    const struct sheaf__act_digits *col[TILE];
    float sum[TILE];
    for (int c = 0; c < TILE; c++) col[c] = act[c < nc ? c : 0];
    if (nc == 1) {
        BY_FETCH(bytes, w_stride,
                 for (int64_t r = 0; r < nr; r++, row += w_stride)
                     digits_signed(type, k, row, fetch, col, 1, out[0] + r));
        return;
    }
    const struct fetch fetch = fetch_few(sheaf__cpu_fetch, 1, bytes, w_stride);
    for (int64_t r = 0; r < nr; r++, row += w_stride) {
        digits_signed(type, k, row, fetch, col, TILE, sum);
        for (int c = 0; c < nc; c++) out[c][r] = sum[c];
    }
}
#endif
#define ROWS_SIGNED(TYPE)                                                                          \
    static void rows_signed_##TYPE(int64_t k, const void *w, size_t w_stride, int64_t nr,          \
                                   const void *const *act, int nc, float *const *out) {            \
        rows_signed(SHEAF_TYPE_##TYPE, k, w, w_stride, nr, act, nc, out);                          \
    }
SIGNED_IN_ORDER_BY_32(ROWS_SIGNED)
SIGNED_IN_ORDER_BY_16(ROWS_SIGNED)
#if !defined(KERNELS_VNNI_512)
#undef ROWS_SIGNED
#define ROWS_SIGNED(TYPE)  ROWS_OF_ACT(rows_signed_##TYPE, SHEAF_TYPE_##TYPE, SHEAF__ACT_DIGITS)
#define ROUNDED_ROWS(TYPE) ROWS_OF_ACT(rounded_##TYPE, SHEAF_TYPE_##TYPE, SHEAF__ACT_BYTES)
#endif
SIGNED_IN_LANES_BY_32(ROWS_SIGNED)
SIGNED_IN_LANES_BY_16(ROWS_SIGNED)
ROUNDED(ROUNDED_ROWS)
