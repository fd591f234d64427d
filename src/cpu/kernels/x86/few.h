/* A part of table.h, of the AVX-512 table: quantized weights by several columns, 2, 4 or 8 at
 * once, of which some may be the first again.
 *
 * A row's weights are unpacked once for all columns. Then what bounds is the two pipes that
 * multiply: a Zen 5 does two products of 64 bytes a cycle. So weights of fewer than 6 bits meet
 * activations as integers of 16 bits (VPDPWSSD), as many products as two digits of 8, with no shift
 * between the digits and signed weights, so that no offset is left: 256 weights and a column are 8
 * products, one conversion, one permutation of scales, one multiply-add. Q8_0 and the types that
 * become bytes keep three digits, those of pieces two. Columns that are to be rounded are bytes,
 * with half the products of words (ROUNDED: types that have such rows).
 *
 * Columns are multiplied in parts that stay in the first cache, for FEW_ROWS rows each, whose sums
 * wait in memory, in the lanes that they have.
 *
 * Invariant: a lane sums what a lane of the kernels of one column sums, and the lanes are added in
 * that order: the same bits. */

enum {
    FEW_ROWS = 32,
    /* Elements of a part of all columns, which stays in a first cache of 32 KiB beside the weights: as words
     * and as digits */
    FEW_WORDS = 8192,
    FEW_DIGITS = 4096,
    FEW_SUMS = 2,                             /* vectors of sums that a column has at most */
    FEW_SCALES = FEW_WORDS / 2 / SHEAF__QK_K, /* two columns have a vector for 256 elements */
};

/* A part of the columns, of which only the pointers of the format in use mean anything, and what few_scales puts
 * together of it. */
struct few {
    const struct sheaf__act_digits *digits[SHEAF__TILE_COLS];
    const struct sheaf__act_words *words[SHEAF__TILE_COLS];
    const struct sheaf__act_bytes *bytes[SHEAF__TILE_COLS];
    v_f scales[FEW_SCALES];
};

/* ---- scales of columns ---- */

/* Of the 8 blocks of number b of column c. */
INLINE const float *few_d(enum sheaf__act act, const struct few *f, int c, int64_t b) {
    return act == SHEAF__ACT_WORDS   ? f->words[c][b].d
           : act == SHEAF__ACT_BYTES ? f->bytes[c][b].d
                                     : f->digits[c][b].d;
}
/* Number b of column c, in bytes or digits. */
INLINE const void *few_column(enum sheaf__act act, const struct few *f, int c, int64_t b) {
    return act == SHEAF__ACT_BYTES ? (const void *)&f->bytes[c][b] : (const void *)&f->digits[c][b];
}
/* Columns go by pairs. */
INLINE int pairs_of_columns(int C) { return (C + 1) / 2; }

/* Of types by eights, d of two columns a vector for 256 elements: lane 4 i + 2 h + c that of column c and of
 * the block that has half h of 128 bits number i. */
INLINE void few_scales(enum sheaf_type type, enum sheaf__act act, int64_t k, int C, struct few *f) {
    v_f *to = f->scales;
    for (int64_t b = 0; b < (k + SHEAF__QK_K - 1) / SHEAF__QK_K && by_eights(type); b++) {
        for (int p = 0; p < pairs_of_columns(C); p++) {
            __m128 d[4];
            UNROLL for (int c = 0; c < 2; c++) {
                const float *x = few_d(act, f, 2 * p + c < C ? 2 * p + c : 0, b);
                const __m128 lo = _mm_load_ps(x), hi = _mm_load_ps(x + 4);
                d[c] = is_k(type) ? _mm_shuffle_ps(lo, hi, 0x88) : lo;
                d[2 + c] = is_k(type) ? _mm_shuffle_ps(lo, hi, 0xdd) : hi;
            }
            float all[VW];
            _MM_TRANSPOSE4_PS(d[0], d[1], d[2], d[3]);
            UNROLL for (int i = 0; i < 4; i++) _mm_storeu_ps(all + 4 * i, d[i]);
            *to++ = v_load(all);
        }
    }
}

/* ---- a row: adds a part of it to its sums acc ---- */

/* Of C columns: one a column, then one of its mins where the type has them; two of types that become bytes. */
INLINE int sums_of_few(enum sheaf_type type, int C) {
    const bool one = by_eights(type)   ? !eights_have_mins(type)
                     : by_pieces(type) ? type != SHEAF_TYPE_Q2_K
                                       : false;
    return one ? C : 2 * C;
}

/* Two vectors of words of 64 bytes, less an offset: the even ones, then the odd ones. */
INLINE void words_of_bytes(__m512i x, int offset, __m512i *q) {
    const __m512i off = _mm512_set1_epi16((int16_t)offset);
    q[0] = _mm512_and_si512(x, _mm512_set1_epi16(255));
    q[1] = _mm512_srli_epi16(x, 8);
    if (offset == 0) return;
    UNROLL for (int i = 0; i < 2; i++) q[i] = _mm512_sub_epi16(q[i], off);
}

/* Lanes of 16 products of eight vectors of words. */
INLINE __m512 dot_words(const __m512i *q, const struct sheaf__act_words *y) {
    __m512i sum = _mm512_setzero_si512();
    UNROLL_8 for (int v = 0; v < 8; v++) sum =
        _mm512_dpwssd_epi32(sum, q[v], load512(y->x + 32 * v));
    return _mm512_cvtepi32_ps(sum);
}
/* Types by eights. */
INLINE void row_eights(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                       bool long_row, struct fetch fetch, const struct few *f, int C, v_f *acc) {
    const v_f *scales = f->scales;
    for (int64_t i = 0, b = 0; i < k; i += SHEAF__QK_K, b++, w += size_256(type)) {
        int n = 8;
        if (k - i < SHEAF__QK_K) n = blocks_of_rest(type, long_row, (int)(k - i) / SHEAF__QK, &w);
        struct eight x;
        __m512i q[8];
        v_f t[SHEAF__TILE_COLS / 2];
        fetch_lines(fetch, w, size_256(type));
        unpack_eight(type, w, n, &x);
        UNROLL for (int v = 0; v < 4 && act == SHEAF__ACT_WORDS; v++)
            words_of_bytes(x.q[v], offset_eight(type), q + 2 * v);
        UNROLL for (int p = 0; p < pairs_of_columns(C); p++) t[p] =
            scale_eight(type, &x, scales[p]);
        UNROLL_8 for (int c = 0; c < C; c++) {
            const v_f d =
                c % 2 ? _mm512_permute_ps(t[c / 2], 0xf5) : _mm512_permute_ps(t[c / 2], 0xa0);
            v_f dot;
            if (act == SHEAF__ACT_WORDS)
                dot = dot_words(q, &f->words[c][b]);
            else
                dot_eight(type, act, 1, &x, few_column(act, f, c, b), &dot);
            acc[c] = v_fma(dot, d, acc[c]);
            if (!eights_have_mins(type)) continue;
            const float *sums =
                act == SHEAF__ACT_BYTES ? f->bytes[c][b].lane_sums : f->words[c][b].lane_sums;
            acc[C + c] = mins_of_eight(type, x.m, sums, acc[C + c]);
        }
        scales += pairs_of_columns(C);
    }
}

/* Types of which a lane is a piece. */
INLINE void row_pieces(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                       struct fetch fetch, const struct few *f, int C, v_f *acc) {
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++, w += size_256(type)) {
        __m512i q[4];
        __m512 s, m = v_set1(0.0f);
        fetch_lines(fetch, w, size_256(type));
        unpack_pieces(type, w, q, &s, &m);
        UNROLL_8 for (int c = 0; c < C; c++) {
            add_pieces(type, act, q, s, m, few_column(act, f, c, b), &acc[c], &acc[C + c]);
        }
    }
}

/* Bits of a weight with its offset; the offset. */
INLINE int bits_of_signed(enum sheaf_type type) {
    switch ((int)type) {
    case SHEAF_TYPE_Q1_0:
    case SHEAF_TYPE_Q2_0:
        return 2;
    case SHEAF_TYPE_NVFP4:
    case SHEAF_TYPE_IQ1_S:
    case SHEAF_TYPE_IQ1_M:
        return 5;
    default:
        return 7;
    }
}

INLINE __m512 joined(struct scales s) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(s.lo), s.hi, 1);
}

/* Types that become bytes. */
INLINE void row_signed(enum sheaf_type type, int64_t k, const char *w, bool long_row,
                       struct fetch fetch, const struct few *f, int C, v_f *acc) {
    const int bits = bits_of_signed(type);
    const int offset = 1 << (bits - 1);
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i each_4_times = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (int64_t i = 0, b = 0; i < k; i += SHEAF__QK_K, b++, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, k - i, long_row, rest);
        const __m512 s = joined(scales_256(type, p));
        const __m512 m = _mm512_mul_ps(s, _mm512_set1_ps((float)-offset));
        uint32_t signs[8];
        v_f t[SHEAF__TILE_COLS];
        if (signs_are_packed(type)) signs_256(type, p, signs);
        fetch_lines(fetch, w, size_256(type));
        UNROLL_8 for (int c = 0; c < C; c++) {
            const struct sheaf__act_digits *y = &f->digits[c][b];
            const __m512 dx = _mm512_castps256_ps512(_mm256_load_ps(y->d));
            t[c] = v_mul(s, _mm512_permutexvar_ps(twice, dx));
            acc[C + c] = v_fma(m, v_load(y->sums16), acc[C + c]);
        }
        UNROLL for (int j = 0; j < 4; j++) {
            __m512i q = _mm512_castsi256_si512(signed_32(type, p, 2 * j, signs));
            q = _mm512_inserti64x4(q, signed_32(type, p, 2 * j + 1, signs), 1);
            q = _mm512_add_epi8(q, _mm512_set1_epi8((char)offset));
            const __m512i pick = _mm512_add_epi32(each_4_times, _mm512_set1_epi32(4 * j));
            UNROLL_8 for (int c = 0; c < C; c++) {
                v_f *to = &acc[j % 2 * C + c];
                *to = v_fma(dot_digits(bits, q, f->digits[c][b].digit[j]),
                            _mm512_permutexvar_ps(pick, t[c]), *to);
            }
        }
    }
}

/* A part of a row, from its sums so far, zeros at first, to those with this part. */
INLINE void few_row(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                    struct fetch fetch, const struct few *f, int C, bool first, v_f *sums) {
    const bool long_row = !first || sheaf__digits_at_end(k);
    v_f acc[SHEAF__TILE_COLS * FEW_SUMS];
    UNROLL_16 for (int i = 0; i < sums_of_few(type, C); i++) acc[i] =
        first ? v_set1(0.0f) : sums[i];
    if (by_eights(type))
        row_eights(type, act, k, w, long_row, fetch, f, C, acc);
    else if (by_pieces(type))
        row_pieces(type, act, k, w, fetch, f, C, acc);
    else
        row_signed(type, k, w, long_row, fetch, f, C, acc);
    UNROLL_16 for (int i = 0; i < sums_of_few(type, C); i++) sums[i] = acc[i];
}

/* ---- sums across vectors, as v_sum has them ---- */

INLINE void sums_of_all(const v_f *x, int C, float *to) {
    const int last = pairs_of_columns(C) - 1;
    v_f eights[SHEAF__TILE_COLS / 2];
    __m512 q[2];
    UNROLL for (int p = 0; p <= last; p++) eights[p] =
        v_halves(x[2 * p], x[2 * p + 1 < C ? 2 * p + 1 : 2 * p]);
    UNROLL for (int i = 0; i < 2; i++) {
        const __m512 a = eights[2 * i < last ? 2 * i : last];
        const __m512 b = eights[2 * i + 1 < last ? 2 * i + 1 : last];
        q[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    __m512 s =
        _mm512_add_ps(_mm512_shuffle_ps(q[0], q[1], 0x44), _mm512_shuffle_ps(q[0], q[1], 0xee));
    s = _mm512_add_ps(_mm512_permute_ps(s, 0xa0), _mm512_permute_ps(s, 0xf5));
    float all[16];
    v_store(all, s);
    UNROLL_8 for (int c = 0; c < C; c++) to[c] = all[c % 4 * 4 + c / 4 * 2];
}

/* The results of a row of which all parts are summed. */
INLINE void end_few(enum sheaf_type type, int C, const v_f *sums, float *to) {
    v_f x[SHEAF__TILE_COLS];
    UNROLL_8 for (int c = 0; c < C; c++) {
        const v_f second = sums_of_few(type, C) > C ? sums[C + c] : sums[c];
        x[c] = by_eights(type)   ? end_eights(type, sums[c], second)
               : by_pieces(type) ? end_of_pieces(type, sums[c], second)
                                 : v_add(sums[c], second);
    }
    sums_of_all(x, C, to);
}

/* ---- rows ---- */

/* Elements of a part: few_scales has room for its scales. One column without such scales needs no parts. */
INLINE int64_t few_part(enum sheaf_type type, enum sheaf__act act, int64_t k, int C) {
    const int64_t fit = (act == SHEAF__ACT_DIGITS ? FEW_DIGITS : FEW_WORDS) / (C > 1 ? C : 2);
    return k <= fit || (C == 1 && act == SHEAF__ACT_DIGITS && !by_eights(type)) ? k : fit;
}

/* Rows by C columns, of which those beyond nc are the first again. */
INLINE void few_rows(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                     size_t w_stride, int64_t nr, struct fetch fetch, const void *const *columns,
                     int nc, int C, float *const *out) {
    const int64_t part = few_part(type, act, k, C);
    const size_t size = size_256(type);
    struct few f;
    v_f sums[FEW_ROWS][SHEAF__TILE_COLS * FEW_SUMS];
    for (int64_t r0 = 0; r0 < nr; r0 += FEW_ROWS, w += FEW_ROWS * w_stride) {
        const int64_t rows = nr - r0 < FEW_ROWS ? nr - r0 : FEW_ROWS;
        int64_t i = 0;
        do {
            const int64_t left = k - i < part ? k - i : part, b = i / SHEAF__QK_K;
            const char *at = w + (size_t)b * size;
            for (int c = 0; c < C; c++) {
                const void *y = columns[c < nc ? c : 0];
                f.digits[c] = (const struct sheaf__act_digits *)y + b;
                f.words[c] = (const struct sheaf__act_words *)y + b;
                f.bytes[c] = (const struct sheaf__act_bytes *)y + b;
            }
            if (r0 == 0 || part < k) few_scales(type, act, left, C, &f);
            for (int64_t r = 0; r < rows; r++, at += w_stride) {
                v_f *of = sums[part < k ? r : 0];
                few_row(type, act, left, at, fetch, &f, C, i == 0, of);
                if (i + left < k) continue;
                float to[SHEAF__TILE_COLS]; /* now, while the next row comes from memory */
                end_few(type, C, of, to);
                for (int c = 0; c < nc; c++) out[c][r0 + r] = to[c];
            }
            i += part;
        } while (i < k);
    }
}

/* The same, fetched ahead. */
INLINE void few_columns(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                        size_t w_stride, int64_t nr, const void *const *columns, int nc, int C,
                        float *const *out) {
    const size_t row = bytes_of_weights(type, few_part(type, act, k, C));
    if (C == 1) {
        BY_FETCH(row, w_stride,
                 few_rows(type, act, k, w, w_stride, nr, fetch, columns, nc, 1, out));
    } else {
        const struct fetch fetch =
            fetch_few(sheaf__cpu_fetch, by_pieces(type) || C == 2 ? 2 : 1, row, w_stride);
        few_rows(type, act, k, w, w_stride, nr, fetch, columns, nc, C, out);
    }
}
/* Columns 1, 2, 4 or 8 at once; one rounded column has other kernels (rows_by_one). */
INLINE void rows_at_once(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                         size_t w_stride, int64_t nr, const void *const *columns, int nc,
                         float *const *out) {
    if (nc == 1 && act != SHEAF__ACT_BYTES)
        few_columns(type, act, k, w, w_stride, nr, columns, nc, 1, out);
    else if (nc <= 2)
        few_columns(type, act, k, w, w_stride, nr, columns, nc, 2, out);
    else if (nc <= 4)
        few_columns(type, act, k, w, w_stride, nr, columns, nc, 4, out);
    else
        few_columns(type, act, k, w, w_stride, nr, columns, nc, SHEAF__TILE_COLS, out);
}
/* Five or six columns are four, then the others, which find the same rows in a cache (D192). */
INLINE void rows_by_few(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                        size_t w_stride, int64_t nr, const void *const *columns, int nc,
                        float *const *out) {
    if (nc < 5 || nc > 6) {
        rows_at_once(type, act, k, w, w_stride, nr, columns, nc, out);
        return;
    }
    float *to[SHEAF__TILE_COLS];
    for (int64_t r = 0; r < nr; r += FEW_ROWS, w += FEW_ROWS * w_stride) {
        const int64_t rows = nr - r < FEW_ROWS ? nr - r : FEW_ROWS;
        for (int c = 0; c < nc; c++) to[c] = out[c] + r;
        rows_at_once(type, act, k, w, w_stride, rows, columns, 4, to);
        rows_at_once(type, act, k, w, w_stride, rows, columns + 4, nc - 4, to + 4);
    }
}
INLINE void rows_by_one(enum sheaf_type type, enum sheaf__act act, int64_t k, const void *w,
                        size_t w_stride, int64_t nr, const void *const *columns, int nc,
                        float *const *out) {
    if (by_pieces(type))
        rows_by_pieces(type, act, k, w, w_stride, nr, columns, nc, out);
    else
        rows_by_eights(type, act, k, w, w_stride, nr, columns, nc, out);
}

#define ROWS_FEW(NAME, TYPE)                                                                       \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        rows_by_few(TYPE, SHEAF__ACT_WORDS, k, w, w_stride, nr, act, nc, out);                     \
    }
ROWS_FEW(few_q4_0, SHEAF_TYPE_Q4_0)
ROWS_FEW(few_q4_1, SHEAF_TYPE_Q4_1)
ROWS_FEW(few_q5_0, SHEAF_TYPE_Q5_0)
ROWS_FEW(few_q5_1, SHEAF_TYPE_Q5_1)
ROWS_FEW(few_q4_k, SHEAF_TYPE_Q4_K)
ROWS_FEW(few_q5_k, SHEAF_TYPE_Q5_K)
#define ROWS_ONE_OR_FEW(NAME, TYPE, ACT)                                                           \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        if (nc == 1)                                                                               \
            rows_by_one(TYPE, ACT, k, w, w_stride, nr, act, nc, out);                              \
        else                                                                                       \
            rows_by_few(TYPE, ACT, k, w, w_stride, nr, act, nc, out);                              \
    }
ROWS_ONE_OR_FEW(rows_digits_q6_k, SHEAF_TYPE_Q6_K, SHEAF__ACT_DIGITS)
ROWS_ONE_OR_FEW(rows_digits_q8_0, SHEAF_TYPE_Q8_0, SHEAF__ACT_DIGITS)
#define ROUNDED_ROWS(TYPE) ROWS_ONE_OR_FEW(rounded_##TYPE, SHEAF_TYPE_##TYPE, SHEAF__ACT_BYTES)
