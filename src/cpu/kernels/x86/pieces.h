/* A part of table.h, of the AVX-512 table: weights with a scale for 16, of few bits that lie apart in
 * a block of 256, by activations in two digits or rounded: Q2_K, Q3_K, Q6_K, TQ1_0, TQ2_0.
 *
 * A lane is a piece of 16 weights: vector v has elements 4 v .. 4 v + 3 of each of the 16 pieces, lane
 * 4 g + c those of piece 4 c + g (SHEAF__DIGITS_PIECES), as a transposition of dwords within 128 bits
 * leaves them. So the scales of a block are one vector, and one conversion and one fma serve 256 weights.
 * A lane sums 16 products by two digits, below 2^31 also of bytes. What the offset of signed weights makes
 * of them is where the sum begins (pieces_less).
 *
 * The two bits of piece B lie at one of four places of a byte, number B % 8 / 2 (its field). Q2_K, Q3_K and
 * TQ2_0 are not shifted but multiplied where they lie, and a lane's sum is divided by its power of two at the
 * end of the row.
 *
 * Invariant: as in digits.h. */

INLINE bool by_pieces(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q2_K || type == SHEAF_TYPE_Q3_K || type == SHEAF_TYPE_Q6_K ||
           type == SHEAF_TYPE_TQ1_0 || type == SHEAF_TYPE_TQ2_0;
}

/* f(B) for the 16 pieces, in the order of lanes. */
#define PIECES_OF(SETR, F)                                                                         \
    SETR(F(0), F(4), F(8), F(12), F(1), F(5), F(9), F(13), F(2), F(6), F(10), F(14), F(3), F(7),   \
         F(11), F(15))
#define PIECES(F)  PIECES_OF(_mm512_setr_epi32, F)
#define BYTES_4(X) ((int)((X)*0x01010101u))
#define FIELD(B)   ((B) % 8 / 2)
#define EACH_4(q)  UNROLL for (int v = 0; v < 4; v++) q[v]

INLINE __m512i plus(__m512i at, int v) { return _mm512_add_epi32(at, _mm512_set1_epi32(v)); }
/* x where bits of `where` are set, else y. */
INLINE __m512i bits_of(__m512i where, __m512i x, __m512i y) {
    return _mm512_ternarylogic_epi64(where, x, y, 0xca);
}

/* Pieces 2 s and 2 s + 1 of each half are bits 2 s of its 32 bytes: Q2_K, Q3_K, TQ2_0. */
#define DWORD_2(B) ((B) / 8 * 8 + (B) % 2 * 4)
#define BITS_2(B)  BYTES_4(3 << 2 * FIELD(B))
#define PART_2(B)  (1.0f / (float)(1 << 2 * FIELD(B)))
INLINE void pieces_of_2(const uint8_t *qs, __m512i *q) {
    const __m512i x = load512(qs);
    EACH_4(q) =
        _mm512_and_si512(_mm512_permutexvar_epi32(plus(PIECES(DWORD_2), v), x), PIECES(BITS_2));
}

/* Three bits end below the eighth where the last two fields are shifted down by two: they begin at bits 0,
 * 2, 2, 4. Then the third bit has to go up by two for even fields and by three for odd ones, from where
 * it lies in a half, which is its field. */
#define PLACE_3(B)  ((FIELD(B) + 1) / 2 * 2)
#define DWORD_L3(B) (FIELD(B) / 2 * 16 + DWORD_2(B))
#define DWORD_H3(B) (FIELD(B) % 2 * 16 + DWORD_2(B))
#define BITS_L3(B)  BYTES_4(3 << PLACE_3(B))
#define BITS_3(B)   BYTES_4(7 << PLACE_3(B))
#define PART_3(B)   (1.0f / (float)(1 << PLACE_3(B)))
INLINE void pieces_of_3(const struct sheaf__block_q3_k *b, __m512i *q) {
    const __m512i x0 = load512(b->qs), x1 = _mm512_srli_epi16(x0, 2), h = twice256(b->hmask);
    const __m512i h0 = _mm512_rolv_epi32(h, halves(2, 30)),
                  h1 = _mm512_rolv_epi32(h, halves(3, 31));
    UNROLL for (int v = 0; v < 4; v++) {
        const __m512i low = _mm512_permutex2var_epi32(x0, plus(PIECES(DWORD_L3), v), x1);
        const __m512i high = _mm512_permutex2var_epi32(h0, plus(PIECES(DWORD_H3), v), h1);
        q[v] = _mm512_and_si512(bits_of(PIECES(BITS_L3), low, high), PIECES(BITS_3));
    }
}

/* Of a half, low nibbles are pieces 0 .. 3, whose bits 4 and 5 are bits 0 of the 32 bytes of qh and bits 2
 * of these; high nibbles are pieces 4 .. 7, with bits 4 and 6. Turned to the left by 4 and by 2, dwords
 * of qh have the bits of low nibbles above these, and those of high nibbles below the high nibble of the
 * byte before, which turning back by 4 puts above it. */
INLINE void pieces_of_6(const struct sheaf__block_q6_k *b, __m512i *q) {
    const __m512i low = _mm512_set1_epi8(15), two = _mm512_set1_epi8(0x33);
    __m512i x[4], y[4];
    UNROLL for (int h = 0; h < 2; h++) {
        const __m512i l = load512(b->ql + 64 * h);
        const __m512i tops = _mm512_rolv_epi32(twice256(b->qh + 32 * h), halves(4, 2));
        const __m512i top = _mm512_and_si512(tops, two);
        x[2 * h] = bits_of(low, l, top);
        x[2 * h + 1] = _mm512_ror_epi32(bits_of(low, top, l), 4);
    }
    UNROLL for (int h = 0; h < 2; h++) {
        y[h] = _mm512_unpacklo_epi32(x[2 * h], x[2 * h + 1]);
        y[2 + h] = _mm512_unpackhi_epi32(x[2 * h], x[2 * h + 1]);
    }
    UNROLL for (int h = 0; h < 2; h++) {
        q[2 * h] = _mm512_unpacklo_epi64(y[2 * h], y[2 * h + 1]);
        q[2 * h + 1] = _mm512_unpackhi_epi64(y[2 * h], y[2 * h + 1]);
    }
}

/* TQ1_0: pieces 0 .. 9 are digits of 32 bytes, 10 .. 14 of 16 bytes; digit v of the last four bytes is
 * vector v of piece 15. A digit is the top of 3 times a byte that was multiplied by a power of 3: bytes
 * are so in the upper halves of words. */
#define THREES(N)   ((N) == 0 ? 1 : (N) == 1 ? 3 : (N) == 2 ? 9 : (N) == 3 ? 27 : 81)
#define WORDS(N)    (THREES(N) * 0x10001)
#define DIGIT_1(B)  ((B) < 10 ? (B) / 2 : (B)-10)
#define DWORD_T1(B) ((B) < 10 ? (B) % 2 * 4 : 8)
#define POWER_T1(B) ((B) < 15 ? WORDS(DIGIT_1(B)) : 0)
INLINE void pieces_of_ternary(const struct sheaf__block_tq1_0 *b, __m512i *q) {
    const __m512i x = _mm512_maskz_loadu_epi32(0x1fff, b->qs), three = _mm512_set1_epi16(3);
    UNROLL for (int v = 0; v < 4; v++) {
        const __m512i at =
            _mm512_mask_mov_epi32(plus(PIECES(DWORD_T1), v), 0x8000, _mm512_set1_epi32(12));
        const __m512i by =
            _mm512_mask_mov_epi32(PIECES(POWER_T1), 0x8000, _mm512_set1_epi32(WORDS(v)));
        const __m512i y = _mm512_permutexvar_epi32(at, x);
        const __m512i even = _mm512_mullo_epi16(_mm512_slli_epi16(y, 8), by);
        const __m512i odd =
            _mm512_mullo_epi16(_mm512_and_si512(y, _mm512_set1_epi16((int16_t)0xff00)), by);
        q[v] = _mm512_or_si512(_mm512_mulhi_epu16(even, three),
                               _mm512_slli_epi16(_mm512_mulhi_epu16(odd, three), 8));
    }
}

INLINE __m512 pieces_half(uint16_t d) { return _mm512_cvtph_ps(_mm256_set1_epi16((int16_t)d)); }
INLINE __m512 scales_of_pieces(__m128i lanes, __m512 d) {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(lanes)), d);
}
#define SAME(B) (B)
INLINE __m128i lanes_of_pieces(__m128i bytes) {
    return _mm_shuffle_epi8(bytes, PIECES_OF(_mm_setr_epi8, SAME));
}

#if defined(KERNELS_REPACKED)
/* In the order of repacked.c two bits v of each of 64 bytes are those of vector v, so that a piece has no field, and
 * third bits are as the fifth bits of eights.h. */
INLINE void pieces_of_2_repacked(const uint8_t *qs, __m512i *q) {
    __m512i x = load512(qs);
    const __m512i three = _mm512_set1_epi8(3);
    __asm__("" : "+v"(x)); /* gcc would load it four times, across lines */
    EACH_4(q) = _mm512_and_si512(v ? words_right(x, 2 * v) : x, three);
}
INLINE void pieces_of_3_repacked(const struct sheaf__block_q3_k *b, __m512i *q) {
    const __m512i by_half = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    const __m512i h = _mm512_sllv_epi64(twice256(b->hmask), by_half), four = _mm512_set1_epi8(4);
    pieces_of_2_repacked(b->qs, q);
    EACH_4(q) = _mm512_ternarylogic_epi64(q[v], words_right(h, 2 + v), four, 0xf8);
}
#endif

/* Integers and scales, and of Q2_K what times the sum of a piece's activations is taken off. */
INLINE void unpack_pieces(enum sheaf_type type, const char *w, __m512i *q, __m512 *s, __m512 *m) {
    if (type == SHEAF_TYPE_Q2_K) {
        const struct sheaf__block_q2_k *b = (const void *)w;
        const __m128i x = lanes_of_pieces(load128(b->scales)), low = _mm_set1_epi8(15);
#if defined(KERNELS_REPACKED)
        pieces_of_2_repacked(b->qs, q);
#else
        pieces_of_2(b->qs, q);
#endif
        const __m128 d = _mm_cvtph_ps(_mm_loadu_si32(&b->d)); /* and dmin */
        *s = scales_of_pieces(_mm_and_si128(x, low), _mm512_broadcastss_ps(d));
        *m = scales_of_pieces(_mm_and_si128(_mm_srli_epi16(x, 4), low),
                              _mm512_broadcastss_ps(_mm_movehdup_ps(d)));
    } else if (type == SHEAF_TYPE_Q3_K) {
        const struct sheaf__block_q3_k *b = (const void *)w;
#if defined(KERNELS_REPACKED)
        pieces_of_3_repacked(b, q);
#else
        pieces_of_3(b, q);
#endif
        *s = scales_of_pieces(lanes_of_pieces(q3_k_scales(b->scales)), pieces_half(b->d));
    } else if (type == SHEAF_TYPE_Q6_K) {
        const struct sheaf__block_q6_k *b = (const void *)w;
        pieces_of_6(b, q);
        *s = scales_of_pieces(lanes_of_pieces(load128(b->scales)), pieces_half(b->d));
    } else if (type == SHEAF_TYPE_TQ1_0) {
        const struct sheaf__block_tq1_0 *b = (const void *)w;
        pieces_of_ternary(b, q);
        *s = pieces_half(b->d);
    } else {
        const struct sheaf__block_tq2_0 *b = (const void *)w;
        pieces_of_2(b->qs, q);
        *s = pieces_half(b->d);
    }
}

INLINE bool has_fields(enum sheaf_type type) {
#if defined(KERNELS_REPACKED)
    if (type == SHEAF_TYPE_Q2_K || type == SHEAF_TYPE_Q3_K) return false;
#endif
    return type == SHEAF_TYPE_Q2_K || type == SHEAF_TYPE_Q3_K || type == SHEAF_TYPE_TQ2_0;
}
/* The lanes of a row, of their sums and of Q2_K those of its mins. */
INLINE __m512 end_of_pieces(enum sheaf_type type, __m512 sums, __m512 mins) {
    if (!has_fields(type)) return type == SHEAF_TYPE_Q2_K ? v_sub(sums, mins) : sums;
    sums = v_mul(sums, type == SHEAF_TYPE_Q3_K ? PIECES_OF(_mm512_setr_ps, PART_3)
                                               : PIECES_OF(_mm512_setr_ps, PART_2));
    return type == SHEAF_TYPE_Q2_K ? v_sub(sums, mins) : sums;
}

/* What the sum of a piece begins with because of the offset of signed weights, as pieces_less has it. */
#define LESS_2(B) (2 * FIELD(B))
#define LESS_3(B) (PLACE_3(B) + 2)
INLINE __m512i less_of_bytes(enum sheaf_type type, const struct sheaf__act_bytes *y) {
    const __m512i minus = load512(y->minus_sums);
    return type == SHEAF_TYPE_Q6_K    ? _mm512_slli_epi32(minus, 5)
           : type == SHEAF_TYPE_Q3_K  ? has_fields(type) ? _mm512_sllv_epi32(minus, PIECES(LESS_3))
                                                         : _mm512_slli_epi32(minus, 2)
            : type == SHEAF_TYPE_TQ2_0 ? _mm512_sllv_epi32(minus, PIECES(LESS_2))
                                      : minus;
}

/* y: of digits or of bytes. */
INLINE __m512i less_of_pieces(enum sheaf_type type, enum sheaf__act act, const void *y) {
    const struct sheaf__act_digits *digits = y;
    if (type == SHEAF_TYPE_Q2_K) return _mm512_setzero_si512();
    if (act == SHEAF__ACT_BYTES) return less_of_bytes(type, y);
    if (type == SHEAF_TYPE_Q3_K && !has_fields(type))
        return _mm512_slli_epi32(load512(digits->digit[LESS_TQ1_0][2]), 2);
    return load512(digits->digit[pieces_less_of(type)][2]);
}

/* Vector v of a column: bytes, or a digit. */
INLINE const void *column_vector(enum sheaf__act act, const void *y, int v, int digit) {
    const struct sheaf__act_digits *digits = y;
    const struct sheaf__act_bytes *bytes = y;
    return act == SHEAF__ACT_BYTES ? (const void *)(bytes->x + 64 * v) : digits->digit[v][digit];
}
/* What the digits of a block have summed, or its bytes (low alone). */
INLINE void add_sums(enum sheaf_type type, enum sheaf__act act, __m512i high, __m512i low, __m512 s,
                     __m512 m, const void *y, __m512 *acc, __m512 *mins) {
    const struct sheaf__act_digits *digits = y;
    const struct sheaf__act_bytes *bytes = y;
    const bool rounded = act == SHEAF__ACT_BYTES;
    if (!rounded) low = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
    *acc = v_fma(_mm512_cvtepi32_ps(low),
                 v_mul(s, v_load(rounded ? bytes->lane_d : digits->lane_d)), *acc);
    if (type == SHEAF_TYPE_Q2_K)
        *mins = v_fma(m, v_load(rounded ? bytes->lane_sums : digits->sums16), *mins);
}

INLINE void add_pieces(enum sheaf_type type, enum sheaf__act act, const __m512i *q, __m512 s,
                       __m512 m, const void *y, __m512 *acc, __m512 *mins) {
    __m512i high = _mm512_setzero_si512(), low = less_of_pieces(type, act, y);
    UNROLL for (int v = 0; v < 4; v++) {
        if (act == SHEAF__ACT_DIGITS)
            high = _mm512_dpbusd_epi32(high, q[v], load512(column_vector(act, y, v, 0)));
        low = _mm512_dpbusd_epi32(low, q[v], load512(column_vector(act, y, v, 1)));
    }
    add_sums(type, act, high, low, s, m, y, acc, mins);
}

/* One row or two, for both of which a vector of the column is loaded once. */
INLINE void few_rows_by_pieces(enum sheaf_type type, enum sheaf__act act, int rows, int64_t k,
                               const char *w, size_t w_stride, struct fetch fetch, const char *y,
                               float *out) {
    const size_t block = size_256(type), part = act_size_256(act);
    __m512 acc[2], mins[2];
    UNROLL for (int r = 0; r < rows; r++) acc[r] = mins[r] = v_set1(0.0f);
    for (int64_t left = k / SHEAF__QK_K; left > 0; left--, w += block, y += part) {
        __m512i q[2][4], high[2], low[2];
        __m512 s[2], m[2];
        UNROLL for (int r = 0; r < rows; r++) {
            fetch_lines(fetch, w + (size_t)r * w_stride, block);
            unpack_pieces(type, w + (size_t)r * w_stride, q[r], &s[r], &m[r]);
            high[r] = _mm512_setzero_si512();
            low[r] = less_of_pieces(type, act, y);
        }
        UNROLL for (int v = 0; v < 4; v++) {
            UNROLL for (int digit = act == SHEAF__ACT_BYTES; digit < 2; digit++) {
                __m512i x = load512(column_vector(act, y, v, digit));
                __asm__("" : "+v"(x)); /* gcc would load it for each row */
                UNROLL for (int r = 0; r < rows; r++) {
                    __m512i *sum = digit ? &low[r] : &high[r];
                    *sum = _mm512_dpbusd_epi32(*sum, q[r][v], x);
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            add_sums(type, act, high[r], low[r], s[r], m[r], y, &acc[r], &mins[r]);
    }
    UNROLL for (int r = 0; r < rows; r++) out[r] = v_sum(end_of_pieces(type, acc[r], mins[r]));
}

INLINE void rows_by_pieces(enum sheaf_type type, enum sheaf__act act, int64_t k, const void *w,
                           size_t w_stride, int64_t nr, const void *const *cols, int nc,
                           float *const *out) {
    for (int c = 0; c < nc; c++) {
        const char *row = w;
        int64_t r = 0;
        BY_FETCH_OFTEN(2, FETCH_AHEAD, bytes_of_weights(type, k), w_stride,
                       for (; r + 1 < nr; r += 2, row += 2 * w_stride) few_rows_by_pieces(
                           type, act, 2, k, row, w_stride, fetch, cols[c], out[c] + r));
        BY_FETCH_OFTEN(2, FETCH_AHEAD, bytes_of_weights(type, k), w_stride,
                       for (; r < nr; r++, row += w_stride) few_rows_by_pieces(
                           type, act, 1, k, row, w_stride, fetch, cols[c], out[c] + r));
    }
}
