/* A part of kernels.h, of the AVX-512 table: weights with a scale for 16, of few bits that lie apart in
 * a block of 256, by activations in digits: Q2_K, Q3_K, Q6_K, TQ1_0, TQ2_0.
 *
 * A lane is a piece of 16 weights: vector v has elements 4 v .. 4 v + 3 of each of the 16 pieces
 * (SHEAF__DIGITS_PIECES). So the scales of a block are one vector as they are, one conversion and one
 * fma serve 256 weights, and unpacking is to fetch a dword for each lane and to shift it. A lane sums 16
 * products by two digits, below 2^31 also of 6 bits; the third digit, which Q6_K alone has, has a sum of
 * its own.
 *
 * Invariant: as in int24.h. */

/* f(B) for the 16 pieces. */
#define PIECES(F)                                                                                  \
    _mm512_setr_epi32(F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), F(9), F(10), F(11),    \
                      F(12), F(13), F(14), F(15))
#define EACH_4(q) UNROLL for (int v = 0; v < 4; v++) q[v]

INLINE __m512i dwords_at(__m512i at, int v, __m512i x) {
    return _mm512_permutexvar_epi32(_mm512_add_epi32(at, _mm512_set1_epi32(v)), x);
}

/* Pieces 2 s and 2 s + 1 of each half are bits 2 s of its 32 bytes: Q2_K, Q3_K, TQ2_0. */
#define DWORD_2(B)  ((B) / 8 * 8 + (B) % 2 * 4)
#define SHIFT_2(B)  ((B) % 8 / 2 * 2)
#define DWORD_H3(B) ((B) % 2 * 4)
#define RIGHT_H3(B) (((B) / 2 + 30) % 32) /* bit B / 2 to bit 2, turning dwords */
INLINE void pieces_of_2(const uint8_t *qs, __m512i *q) {
    const __m512i x = load512(qs), three = _mm512_set1_epi8(3);
    EACH_4(q) = _mm512_and_si512(
        _mm512_srlv_epi32(dwords_at(PIECES(DWORD_2), v, x), PIECES(SHIFT_2)), three);
}
INLINE void pieces_of_3(const struct sheaf__block_q3_k *b, __m512i *q) {
    const __m512i high = _mm512_castsi256_si512(load256(b->hmask)), bit2 = _mm512_set1_epi8(4);
    pieces_of_2(b->qs, q);
    EACH_4(q) = _mm512_ternarylogic_epi64(/* q | high & 4 */
                                          q[v],
                                          _mm512_rorv_epi32(dwords_at(PIECES(DWORD_H3), v, high),
                                                            PIECES(RIGHT_H3)),
                                          bit2, 0xf8);
}

/* Piece 2 t + p of a half: low nibbles for t < 2, else high ones, of ql, and bits 2 t of qh. */
#define DWORD_L6(B) ((B) / 8 * 16 + (B) / 2 % 2 * 8 + (B) % 2 * 4)
#define SHIFT_L6(B) ((B) % 8 / 4 * 4)
#define DWORD_H6(B) ((B) / 8 * 8 + (B) % 2 * 4)
#define RIGHT_H6(B) (((B) % 8 / 2 * 2 + 28) % 32) /* to bits 4 and 5 */
INLINE void pieces_of_6(const struct sheaf__block_q6_k *b, __m512i *q) {
    const __m512i l0 = load512(b->ql), l1 = load512(b->ql + 64), high = load512(b->qh);
    const __m512i two = _mm512_set1_epi8(0x30);
    UNROLL for (int v = 0; v < 4; v++) {
        const __m512i at = _mm512_add_epi32(PIECES(DWORD_L6), _mm512_set1_epi32(v));
        const __m512i l = _mm512_permutex2var_epi32(l0, at, l1);
        const __m512i h = _mm512_rorv_epi32(dwords_at(PIECES(DWORD_H6), v, high), PIECES(RIGHT_H6));
        q[v] = _mm512_ternarylogic_epi64(and15_512(_mm512_srlv_epi32(l, PIECES(SHIFT_L6))), h, two,
                                         0xf8);
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
            _mm512_mask_mov_epi32(_mm512_add_epi32(PIECES(DWORD_T1), _mm512_set1_epi32(v)), 0x8000,
                                  _mm512_set1_epi32(12));
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

/* Scales of the pieces, and what times the sum of a piece's activations is taken off. */
INLINE __m512 scales_of_pieces(__m128i bytes, float d) {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), v_set1(d));
}
INLINE void unpack_pieces(enum sheaf_type type, const char *w, __m512i *q, __m512 *s, __m512 *m) {
    const __m128i low = _mm_set1_epi8(15);
    if (type == SHEAF_TYPE_Q2_K) {
        const struct sheaf__block_q2_k *b = (const void *)w;
        const __m128i x = load128(b->scales);
        pieces_of_2(b->qs, q);
        *s = scales_of_pieces(_mm_and_si128(x, low), f16(b->d));
        *m = scales_of_pieces(_mm_and_si128(_mm_srli_epi16(x, 4), low), f16(b->dmin));
        return;
    }
    int offset = 1;
    if (type == SHEAF_TYPE_Q3_K) {
        const struct sheaf__block_q3_k *b = (const void *)w;
        pieces_of_3(b, q);
        *s = scales_of_pieces(q3_k_scales(b->scales), f16(b->d));
        offset = 4;
    } else if (type == SHEAF_TYPE_Q6_K) {
        const struct sheaf__block_q6_k *b = (const void *)w;
        pieces_of_6(b, q);
        *s = scales_of_pieces(load128(b->scales), f16(b->d));
        offset = 32;
    } else if (type == SHEAF_TYPE_TQ1_0) {
        const struct sheaf__block_tq1_0 *b = (const void *)w;
        pieces_of_ternary(b, q);
        *s = v_set1(f16(b->d));
    } else {
        const struct sheaf__block_tq2_0 *b = (const void *)w;
        pieces_of_2(b->qs, q);
        *s = v_set1(f16(b->d));
    }
    *m = offset == 1 ? *s : _mm512_mul_ps(*s, v_set1((float)offset));
}

/* Lanes of 16 products of four vectors of weights with digit j of a column. */
INLINE __m512i dot_pieces(const __m512i *q, const struct sheaf__act_digits *y, int j) {
    __m512i sum = _mm512_setzero_si512();
    UNROLL for (int v = 0; v < 4; v++) sum =
        _mm512_dpbusd_epi32(sum, q[v], load512(y->digit[v][j]));
    return sum;
}
