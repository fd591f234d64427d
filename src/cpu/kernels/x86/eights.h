/* A part of table.h, of the AVX-512 table: weights with one scale for 32, eight blocks at a time, by one
 * column: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and the types of levels IQ4_NL, IQ4_XS, MXFP4, IQ3_XXS,
 * IQ3_S. Several columns: few.h.
 *
 * 256 weights are four vectors of bytes. A lane of 4 bytes is of the same block in all of them, and a block
 * has two lanes, so that 16 products are added in a lane before they meet a scale: one conversion, one
 * multiplication of scales and one multiply-add serve 256 weights. Such instructions and the unpacking take
 * most of the time here; on a Zen 4, which works on 512 bits in two halves, even where weights come from
 * memory.
 *
 * Vectors 0 and 1 (2 and 3) are the low and the high nibbles of the first (the last) 8 of the 16 bytes that
 * a block's nibbles take. 16 bytes of a vector are 8 of block i < 4 and 8 of block i + 4: two quads of blocks
 * in a row, which are unpacked apart, come together by unpacking quadwords. Activations lie in the same
 * order (SHEAF__DIGITS_EIGHTS). Low nibbles of K are the even blocks, and high ones the odd blocks: they come
 * together so, and 16 bytes are 8 of block 2 g and 8 of block 2 g + 1 (SHEAF__DIGITS_K).
 *
 * Invariant: as in digits.h. */

enum { EIGHTS_ROWS = 3 }; /* most at once by one column */

/* Eight blocks of 32. */
struct eight {
    __m512i q[4]; /* unsigned by an offset */
    __m512 d, m;  /* scales (scale_eight), and mins of Q4_1, Q5_1 and K, of each lane's block */
};

/* Types of 32 whose nibbles are weights. */
INLINE bool by_nibbles(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q4_0 || type == SHEAF_TYPE_Q4_1 || type == SHEAF_TYPE_Q5_0 ||
           type == SHEAF_TYPE_Q5_1;
}
INLINE bool by_levels(enum sheaf_type type) {
    return type == SHEAF_TYPE_IQ4_NL || type == SHEAF_TYPE_IQ4_XS || type == SHEAF_TYPE_MXFP4 ||
           type == SHEAF_TYPE_IQ3_XXS || type == SHEAF_TYPE_IQ3_S;
}
INLINE bool by_eights(enum sheaf_type type) {
    return by_nibbles(type) || by_levels(type) || is_k(type) || type == SHEAF_TYPE_Q8_0;
}
INLINE bool eights_have_mins(enum sheaf_type type) { return has_min(type) || is_k(type); }
/* A power of two, or 0. */
INLINE int offset_eight(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q4_0                                                             ? 8
           : type == SHEAF_TYPE_Q5_0                                                           ? 16
           : eights_have_mins(type)                                                            ? 0
           : type == SHEAF_TYPE_IQ3_XXS                                                        ? 64
           : type == SHEAF_TYPE_Q8_0 || type == SHEAF_TYPE_IQ4_NL || type == SHEAF_TYPE_IQ4_XS ? 128
                                                                                               : 16;
}

/* ---- where a block's words lie ---- */

/* The first n <= 64 bytes at p; none for n <= 0. */
INLINE __m512i load_n(const char *p, int n) {
    if (n >= 64) return load512(p);
    return n <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi8(((uint64_t)1 << n) - 1, p);
}

/* Of 4 bits: four blocks are 72 or 80 bytes. Words below 32 are of the first 64 bytes of the first four
 * blocks, the others of those of the last four. What the first 64 bytes lack of nibbles of the fourth block
 * is read by itself. Scales, then mins, are there for each lane. */
#define FOUR_WORDS(AT) AT, AT + 1, AT + 2, AT + 3
#define TWO_BLOCKS(AT) FOUR_WORDS(AT), FOUR_WORDS((AT) + 32)
#define TWO_SCALES(AT) AT, AT, (AT) + 32, (AT) + 32
static const struct eight_4 {
    _Alignas(64) int16_t first[32], last[32], scales[32];
} eight_q4_0 = {{TWO_BLOCKS(1), TWO_BLOCKS(10), TWO_BLOCKS(19), TWO_BLOCKS(28)},
                {TWO_BLOCKS(5), TWO_BLOCKS(14), TWO_BLOCKS(23), TWO_BLOCKS(24)},
                {TWO_SCALES(0), TWO_SCALES(9), TWO_SCALES(18), TWO_SCALES(27)}},
  eight_q4_1 = {{TWO_BLOCKS(2), TWO_BLOCKS(12), TWO_BLOCKS(22), TWO_BLOCKS(22)},
                {TWO_BLOCKS(6), TWO_BLOCKS(16), TWO_BLOCKS(26), TWO_BLOCKS(26)},
                {TWO_SCALES(0), TWO_SCALES(10), TWO_SCALES(20), TWO_SCALES(30), TWO_SCALES(1),
                 TWO_SCALES(11), TWO_SCALES(21), TWO_SCALES(31)}};

/* Of 5 bits: four blocks are 88 or 96 bytes. Words below 32 are of the first 64 bytes of these, the others of
 * the last 64. `fifths` are the top bits of each 16 bytes' block; of scales and mins each is there four times. */
#define W0(AT)           (int16_t)((AT) < 32 ? (AT) : (AT) + 20) /* the last 64 bytes begin at word 12 */
#define W1(AT)           (int16_t)((AT) < 32 ? (AT) : (AT) + 16) /* .. 16 */
#define FOUR_5(W, AT)    W(AT), W((AT) + 1), W((AT) + 2), W((AT) + 3)
#define NIBBLES_5(W, AT) FOUR_5(W, AT), FOUR_5(W, (AT) + 4)
#define FIFTH_5(W, AT)   W(AT), W((AT) + 1)
#define FIFTHS_5(W, AT)  FIFTH_5(W, AT), FIFTH_5(W, AT), FIFTH_5(W, AT), FIFTH_5(W, AT)
#define SCALES_5(W, AT)  FOUR(W(AT))
static const struct quad_5 {
    _Alignas(64) int16_t nibbles[32];
    int16_t fifths[32], scales[32];
} quad_q5_0 = {{NIBBLES_5(W0, 3), NIBBLES_5(W0, 14), NIBBLES_5(W0, 25), NIBBLES_5(W0, 36)},
               {FIFTHS_5(W0, 1), FIFTHS_5(W0, 12), FIFTHS_5(W0, 23), FIFTHS_5(W0, 34)},
               {SCALES_5(W0, 0), SCALES_5(W0, 11), SCALES_5(W0, 22), SCALES_5(W0, 33)}},
  quad_q5_1 = {{NIBBLES_5(W1, 4), NIBBLES_5(W1, 16), NIBBLES_5(W1, 28), NIBBLES_5(W1, 40)},
               {FIFTHS_5(W1, 2), FIFTHS_5(W1, 14), FIFTHS_5(W1, 26), FIFTHS_5(W1, 38)},
               {SCALES_5(W1, 0), SCALES_5(W1, 12), SCALES_5(W1, 24), SCALES_5(W1, 36),
                SCALES_5(W1, 1), SCALES_5(W1, 13), SCALES_5(W1, 25), SCALES_5(W1, 37)}};

#if defined(KERNELS_VBMI)
/* Of 8 blocks of MXFP4, 17 bytes each: the first and the last 8 bytes of the nibbles, and exponents in the lanes
 * of their blocks. Bytes below 64 are of the first 64, the others of the second; the last 8 are behind both. */
#define PAIR_17(F, AT) F((AT)), F((AT) + 4 * 17)
#define ALL_17(F, AT)                                                                              \
    { PAIR_17(F, AT), PAIR_17(F, (AT) + 17), PAIR_17(F, (AT) + 34), PAIR_17(F, (AT) + 51) }
#define BYTES_17(AT)     NIBBLES(AT)
#define EXPONENTS_17(AT) FOUR(AT), FOUR(AT)
static const _Alignas(64) uint8_t mxfp4_first[64] = ALL_17(BYTES_17, 1),
                                  mxfp4_last[64] = ALL_17(BYTES_17, 9),
                                  mxfp4_exponents[64] = ALL_17(EXPONENTS_17, 0);
#else
/* Of 4 blocks of MXFP4, 17 bytes each, the nibbles of two begin at an even byte of the 64 from 1 on, and
 * those of the others at one of the last 64: words below 32, and from 32 on. */
static const _Alignas(64) int16_t quad_mxfp4[32] = {NIBBLES(0), NIBBLES(39), NIBBLES(17),
                                                    NIBBLES(56)};
#endif

/* ---- unpacking ---- */

/* Bytes 0 .. 7 and 8 .. 15 of eight blocks of 16, four in each of a and b. */
INLINE void eight_of_quads(__m512i a, __m512i b, __m512i *x) {
    x[0] = _mm512_unpacklo_epi64(a, b);
    x[1] = _mm512_unpackhi_epi64(a, b);
}
/* Eight numbers, one for each block, to the lanes of each. */
INLINE __m512 lanes_of_blocks(__m256 x) {
    const __m512i at = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
    return _mm512_permutexvar_ps(at, _mm512_castps256_ps512(x));
}
/* The low, then the high nibbles of two vectors. */
INLINE void low_and_high(const __m512i *nibbles, __m512i *q) {
    UNROLL for (int i = 0; i < 2; i++) {
        q[2 * i] = and15_512(nibbles[i]);
        q[2 * i + 1] = and15_512(_mm512_srli_epi16(nibbles[i], 4));
    }
}
/* Halves, four lanes for each, to floats. */
INLINE __m512 low_halves(__m512i s) { return _mm512_cvtph_ps(_mm512_castsi512_si256(s)); }
INLINE __m512 high_halves(__m512i s) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(s, 1)); }

/* x with the 8 bytes at p as its quadword `number`. */
INLINE __m512i with_qword(__m512i x, int number, const char *p) {
    int64_t q;
    memcpy(&q, p, sizeof q);
    return _mm512_mask_set1_epi64(x, (__mmask8)(1 << number), q);
}

#include "cpu/kernels/x86/repacked_eights.h"

#if defined(KERNELS_REPACKED)
/* Eight blocks in the order of repacked.c. */
INLINE void eight_of_4(enum sheaf_type type, const char *w, int n, __m512i *nibbles,
                       struct eight *x) {
    (void)n;
    load_nibbles(w, nibbles);
    x->d = halves_of_eight(w + 128);
    if (has_min(type)) x->m = halves_of_eight(w + 144);
}
INLINE void eight_of_5(enum sheaf_type type, const char *w, int n, struct eight *x) {
    (void)n;
    load_fives(w, w + 128, x->q);
    x->d = halves_of_eight(w + 160);
    if (has_min(type)) x->m = halves_of_eight(w + 176);
}
#else
/* Nibbles, scales and mins of the first n <= 8 blocks of 4 bits at w; zeros after them. */
INLINE void eight_of_4(enum sheaf_type type, const char *w, int n, __m512i *nibbles,
                       struct eight *x) {
    const struct eight_4 *at = has_min(type) ? &eight_q4_1 : &eight_q4_0;
    const int quad = 4 * (int)block_size_32(type);
    __m512i a = load_n(w, n * quad / 4);
    __m512i b = load_n(w + quad, n * quad / 4 - quad);
    LOADED_ONCE(a); /* they cross lines of the cache */
    LOADED_ONCE(b);
    const __m512i s = _mm512_permutex2var_epi16(a, load512(at->scales), b);
    __m512i first = _mm512_permutex2var_epi16(a, load512(at->first), b);
    __m512i last = _mm512_permutex2var_epi16(a, load512(at->last), b);
    UNROLL for (int i = 0; i < 2; i++) {
        const char *end = w + (i + 1) * quad;
        if (n < 4 * (i + 1)) break;
        if (has_min(type)) first = with_qword(first, 6 + i, end - 16);
        last = with_qword(last, 6 + i, end - 8);
    }
    nibbles[0] = first;
    nibbles[1] = last;
    x->d = low_halves(s);
    if (has_min(type)) x->m = high_halves(s);
}

/* The first n <= 8 blocks of 5 bits at w; zeros after them. */
INLINE void eight_of_5(enum sheaf_type type, const char *w, int n, struct eight *x) {
    const struct quad_5 *at = has_min(type) ? &quad_q5_1 : &quad_q5_0;
    const int quad = 4 * (int)block_size_32(type), last = quad - 64;
    const __m512i bit = _mm512_set1_epi64((int64_t)0x8040201008040201u);
    const __m512i each_8 =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8));
    __m512i of_quads[2], fifths[2], s[2], nibbles[2];
    UNROLL for (int i = 0; i < 2; i++) {
        const int there = n * quad / 4 - i * quad;
        __m512i a = load_n(w + i * quad, there), b = load_n(w + i * quad + last, there - last);
        LOADED_ONCE(a);
        LOADED_ONCE(b);
        of_quads[i] = _mm512_permutex2var_epi16(a, load512(at->nibbles), b);
        fifths[i] = _mm512_permutex2var_epi16(a, load512(at->fifths), b);
        s[i] = _mm512_permutex2var_epi16(a, load512(at->scales), b);
    }
    const __m512i tops = _mm512_unpacklo_epi64(fifths[0], fifths[1]);
    const __m512i halves_of = _mm512_mask_blend_epi32(0xaaaa, s[0], s[1]);
    eight_of_quads(of_quads[0], of_quads[1], nibbles);
    low_and_high(nibbles, x->q);
    UNROLL for (int v = 0; v < 4; v++) { /* bytes 0, 2, 1, 3 of the top bits */
        const __m512i byte = _mm512_add_epi8(each_8, _mm512_set1_epi8((char)(v % 2 * 2 + v / 2)));
        const __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(tops, byte), bit);
        x->q[v] = _mm512_mask_add_epi8(x->q[v], set, x->q[v], _mm512_set1_epi8(16));
    }
    x->d = low_halves(halves_of);
    if (has_min(type)) x->m = high_halves(halves_of);
}

#endif

/* Number at[i] of n, a multiple of 64, in a table. */
INLINE __m512i words_at(const uint16_t *table, int n, __m512i at) {
    __m512i x[8];
    UNROLL_12 for (int i = 0; i < n / 64; i++) x[i] =
        _mm512_permutex2var_epi16(load512(table + 64 * i), at, load512(table + 64 * i + 32));
    for (int bit = 64; bit < n; bit *= 2) {
        const __mmask32 upper = _mm512_test_epi16_mask(at, _mm512_set1_epi16((int16_t)bit));
        const int pairs = n / bit / 2;
        UNROLL_12 for (int i = 0; i < pairs; i++) x[i] =
            _mm512_mask_blend_epi16(upper, x[2 * i], x[2 * i + 1]);
    }
    return x[0];
}

/* 128 weights of IQ3 from number 128 h on: first halves of blocks of 32, and second ones. */
INLINE void quad_of_points(enum sheaf_type type, const char *w, int h, const uint32_t *signs,
                           int offset, __m512i *lo, __m512i *hi) {
    static const _Alignas(64) uint16_t of_xxs[] = {SHEAF__IQ3_XXS_GRID(SHEAF__IQ_POINTS)};
    static const _Alignas(64) uint16_t of_s[] = {SHEAF__IQ3_S_GRID(SHEAF__IQ_POINTS)};
    const struct sheaf__block_iq3_xxs *xxs = (const void *)w;
    const struct sheaf__block_iq3_s *s = (const void *)w;
    const __m128i words = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m512i off = _mm512_set1_epi8((char)offset), three_bits = _mm512_set1_epi8(7);
    __m512i x, levels;
    __m128i minus;
    if (type == SHEAF_TYPE_IQ3_XXS) {
        x = words_at(of_xxs, 256, _mm512_cvtepu8_epi16(load256(xxs->qs + 32 * h)));
        levels = _mm512_set1_epi64(0x3e342c241c140c04);
        minus = load128(signs + 4 * h);
    } else {
        __mmask32 high;
        memcpy(&high, s->qh + 4 * h, sizeof high);
        x = _mm512_cvtepu8_epi16(load256(s->qs + 32 * h));
        x = words_at(of_s, 512, _mm512_mask_add_epi16(x, high, x, _mm512_set1_epi16(256)));
        levels = _mm512_set1_epi64(0x0f0d0b0907050301);
        minus = load128(s->signs + 16 * h);
    }
    const __m512i even = _mm512_shuffle_epi8(levels, _mm512_and_si512(x, three_bits));
    const __m512i odd =
        _mm512_shuffle_epi8(levels, _mm512_and_si512(_mm512_srli_epi16(x, 4), three_bits));
    minus = _mm_shuffle_epi8(minus, words);
    *lo = _mm512_unpacklo_epi8(even, odd);
    *hi = _mm512_unpackhi_epi8(even, odd);
    *lo = _mm512_mask_sub_epi8(_mm512_add_epi8(*lo, off), (__mmask64)_mm_cvtsi128_si64(minus), off,
                               *lo);
    *hi = _mm512_mask_sub_epi8(_mm512_add_epi8(*hi, off), (__mmask64)_mm_extract_epi64(minus, 1),
                               off, *hi);
}

/* 256 weights of IQ3. */
INLINE void eight_of_points(enum sheaf_type type, const char *w, __m512i *q) {
    const int offset = offset_eight(type);
    __m512i lo[2], hi[2], x[2];
    uint32_t signs[8];
    if (signs_are_packed(type)) signs_256(type, w, signs);
    UNROLL for (int h = 0; h < 2; h++) quad_of_points(type, w, h, signs, offset, &lo[h], &hi[h]);
    eight_of_quads(lo[0], lo[1], x);
    q[0] = x[0];
    q[2] = x[1];
    eight_of_quads(hi[0], hi[1], x);
    q[1] = x[0];
    q[3] = x[1];
}

/* 256 weights of Q8_0. */
INLINE void eight_of_8(const char *w, __m512i *q) {
    const size_t block = sizeof(struct sheaf__block_q8_0);
    __m512i even[2], odd[2]; /* pieces of blocks 0, 4, 1, 5, and of the others */
    UNROLL for (int i = 0; i < 2; i++, w += 2 * block) {
        const __m512i a = pair_8(w, w + block), b = pair_8(w + 4 * block, w + 5 * block);
        even[i] = _mm512_unpacklo_epi64(a, b);
        odd[i] = _mm512_unpackhi_epi64(a, b);
    }
    q[0] = _mm512_shuffle_i64x2(even[0], even[1], 0x88);
    q[1] = _mm512_shuffle_i64x2(even[0], even[1], 0xdd);
    q[2] = _mm512_shuffle_i64x2(odd[0], odd[1], 0x88);
    q[3] = _mm512_shuffle_i64x2(odd[0], odd[1], 0xdd);
}

/* Are the scales of a type exponents of two? */
INLINE bool by_exponents(enum sheaf_type type) {
#if defined(KERNELS_VBMI)
    return type == SHEAF_TYPE_MXFP4;
#else
    (void)type;
    return false;
#endif
}
/* d times the scales of eight blocks. */
INLINE v_f scale_eight(enum sheaf_type type, const struct eight *x, v_f d) {
    return by_exponents(type) ? v_ldexp(d, x->d) : v_mul(x->d, d);
}

/* 256 weights of MXFP4: nibbles and scales. */
INLINE void eight_of_mxfp4(const char *w, __m512i *nibbles, struct eight *x) {
#if defined(KERNELS_REPACKED)
    load_nibbles(w, nibbles);
    x->d = exponents_of_eight(w + 128);
#elif defined(KERNELS_VBMI)
    __m512i a = load512(w), b = load512(w + 64);
    LOADED_ONCE(a);
    LOADED_ONCE(b);
    const __m512i last = _mm512_permutex2var_epi8(a, load512(mxfp4_last), b);
    const __m512i e =
        _mm512_maskz_permutex2var_epi8(0x1111111111111111, a, load512(mxfp4_exponents), b);
    nibbles[0] = _mm512_permutex2var_epi8(a, load512(mxfp4_first), b);
    nibbles[1] = with_qword(last, 7, w + 128);
    x->d = _mm512_cvtepi32_ps(_mm512_sub_epi32(e, _mm512_set1_epi32(128)));
#else
    const __m512i at = load512(quad_mxfp4);
    const char *second = w + size_256(SHEAF_TYPE_MXFP4) / 2;
    eight_of_quads(_mm512_permutex2var_epi16(load512(w + 1), at, load512(w + 4)),
                   _mm512_permutex2var_epi16(load512(second + 1), at, load512(second + 4)),
                   nibbles);
    x->d = lanes_of_blocks(scales_32(SHEAF_TYPE_MXFP4, w));
#endif
}

/* The low, then the high nibbles of two vectors as levels of a type, unsigned. */
INLINE void low_and_high_levels(enum sheaf_type type, const __m512i *nibbles, __m512i *q) {
    const __m256i numbers = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m512i levels = _mm512_add_epi8(_mm512_broadcast_i64x4(levels_of(type, numbers)),
                                           _mm512_set1_epi8((char)offset_eight(type)));
#if defined(KERNELS_VBMI)
    /* by six bits, of which the upper two choose one of four times the same 16 */
    UNROLL for (int i = 0; i < 2; i++) {
        q[2 * i] = _mm512_permutexvar_epi8(nibbles[i], levels);
        q[2 * i + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(nibbles[i], 4), levels);
    }
#else
    low_and_high(nibbles, q);
    UNROLL for (int v = 0; v < 4; v++) q[v] = _mm512_shuffle_epi8(levels, q[v]);
#endif
}

#if defined(KERNELS_REPACKED)
INLINE int k_odd_times(enum sheaf_type type) {
    (void)type;
    return 1;
}
INLINE void eight_of_k(enum sheaf_type type, const char *w, struct eight *x) {
    const char *qs = w + size_256(type) - SHEAF__QK_K / 2;
    __m512i nibbles[2];
    if (type == SHEAF_TYPE_Q5_K) {
        load_fives(qs, w + offsetof(struct sheaf__block_q5_k, qh), x->q);
        return;
    }
    load_nibbles(qs, nibbles);
    low_and_high(nibbles, x->q);
}
#else
/* Weights of odd blocks of Q4_K and Q5_K become so many times themselves, since that takes fewer shifts; end_eights
 * takes it back. */
INLINE int k_odd_times(enum sheaf_type type) { return type == SHEAF_TYPE_Q5_K ? 2 : 16; }
/* A block of Q4_K or Q5_K. */
INLINE void eight_of_k(enum sheaf_type type, const char *w, struct eight *x) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i to_bit4 = _mm512_setr_epi64(4, 4, 2, 2, 0, 0, 62, 62); /* from 0, 2, 4, 6 */
    const char *qs = w + size_256(type) - SHEAF__QK_K / 2;
    const __m512i s = (__m512i)k_scales(w);
    __m512i x0 = load512(qs), x1 = load512(qs + 64);
    LOADED_ONCE(x0);
    LOADED_ONCE(x1);
    const __m512i q[2] = {_mm512_shuffle_i64x2(x0, x1, 0x88), _mm512_shuffle_i64x2(x0, x1, 0xdd)};
    UNROLL for (int i = 0; i < 2; i++) { /* 16 bytes of each 32 */
        __m512i even = _mm512_and_si512(q[i], low), odd = _mm512_andnot_si512(low, q[i]);
        if (five) { /* bits 4 and 5 of h are the fifth ones of even and odd blocks */
            const struct sheaf__block_q5_k *b = (const void *)w;
            const __m512i h =
                _mm512_rolv_epi64(_mm512_broadcast_i32x4(load128(b->qh + 16 * i)), to_bit4);
            odd = _mm512_srli_epi16(odd, 3);
            even =
                _mm512_ternarylogic_epi64(even, h, _mm512_set1_epi8(16), 0xf8); /* even | h & 16 */
            odd = _mm512_ternarylogic_epi64(odd, h, _mm512_set1_epi8(32), 0xf8);
        }
        eight_of_quads(even, odd, x->q + 2 * i);
    }
    x->d = _mm512_castsi512_ps(_mm512_shuffle_epi32(s, _MM_PERM_BBAA));
    x->m = _mm512_castsi512_ps(_mm512_shuffle_epi32(s, _MM_PERM_DDCC));
}

#endif

/* The first n <= 8 blocks of 32 at w, zeros after them; of types of_six_bits without d and m. */
INLINE void unpack_weights(enum sheaf_type type, const char *w, int n, struct eight *x) {
    __m512i nibbles[2];
    if (is_k(type)) {
        eight_of_k(type, w, x);
        return;
    }
    if (type == SHEAF_TYPE_Q5_0 || type == SHEAF_TYPE_Q5_1) {
        eight_of_5(type, w, n, x);
        return;
    }
    if (by_nibbles(type)) {
        eight_of_4(type, w, n, nibbles, x);
        low_and_high(nibbles, x->q);
        return;
    }
    if (type == SHEAF_TYPE_IQ4_NL) {
        eight_of_4(SHEAF_TYPE_Q4_0, w, n, nibbles, x);
        low_and_high_levels(type, nibbles, x->q);
        return;
    }
    _Alignas(8) char rest[MOST_256];
    w = whole_256(type, w, 32 * n, false, rest);
    if (type == SHEAF_TYPE_Q8_0) {
        x->d = lanes_of_blocks(gather_halves(w, sizeof(struct sheaf__block_q8_0), 8));
        eight_of_8(w, x->q);
    } else if (type == SHEAF_TYPE_MXFP4) {
        eight_of_mxfp4(w, nibbles, x);
        low_and_high_levels(type, nibbles, x->q);
    } else if (type == SHEAF_TYPE_IQ4_XS) {
        const struct sheaf__block_iq4_xs *b = (const void *)w;
#if defined(KERNELS_REPACKED)
        load_nibbles((const char *)b->qs, nibbles);
#else
        x->d = lanes_of_blocks(scales_32(type, w));
        __m512i q0 = load512(b->qs), q1 = load512(b->qs + 64);
        LOADED_ONCE(q0);
        LOADED_ONCE(q1);
        eight_of_quads(q0, q1, nibbles);
#endif
        low_and_high_levels(type, nibbles, x->q);
    } else {
        x->d = lanes_of_blocks(scales_32(type, w));
        eight_of_points(type, w, x->q);
    }
}
/* The same with d and m. */
INLINE void unpack_eight(enum sheaf_type type, const char *w, int n, struct eight *x) {
    unpack_weights(type, w, n, x);
    if (!of_six_bits(type)) return;
    struct rows_d d;
    d_of_rows(1, w, 0, &d);
    scales_of_rows(type, 1, w, 0, &d, x);
    scales_to_lanes(type, 1, x);
}

/* The last n < 8 blocks of a row, from *w on: as whole_256 has them, eight that end with a long row, or these. */
INLINE int blocks_of_rest(enum sheaf_type type, bool long_row, int n, const char **w) {
    if (!long_row) return n;
    *w = whole_256(type, *w, n * SHEAF__QK, true, NULL);
    return 8;
}

/* ---- rows of one column ---- */

/* Vector v of digit j of 256 activations, and minus the sums of such digits in each lane. */
INLINE __m512i digit_eight(enum sheaf__act act, const void *y, int v, int j) {
    return load512(act == SHEAF__ACT_BYTES ? ((const struct sheaf__act_bytes *)y)->x + 64 * v
                                           : ((const struct sheaf__act_digits *)y)->digit[v][j]);
}
INLINE __m512i minus_eight(enum sheaf__act act, const void *y, int j) {
    return load512(act == SHEAF__ACT_BYTES ? ((const struct sheaf__act_bytes *)y)->minus_sums
                                           : ((const struct sheaf__act_digits *)y)->minus_sums[j]);
}

/* Lanes of 16 products of R rows with 256 activations in digits or bytes. Of two digits the sums of the second
 * take the offset of both, of three those of the second and the third. */
INLINE void dot_eight(enum sheaf_type type, enum sheaf__act act, int R, const struct eight *x,
                      const void *y, v_f *dot) {
    enum { DIGITS = 3 };
    const int n = act == SHEAF__ACT_BYTES ? 1 : type == SHEAF_TYPE_Q8_0 ? 3 : 2;
    /* chains of their own, as each product waits for the one before */
    __m512i sum[EIGHTS_ROWS][DIGITS];
    UNROLL for (int j = 0; j < n; j++) {
        __m512i from = _mm512_setzero_si512();
        if (offset_eight(type) && (j > 0 || n == 1)) {
            const unsigned bits = (unsigned)__builtin_ctz((unsigned)offset_eight(type));
            from = _mm512_slli_epi32(minus_eight(act, y, j > 0 ? j - 1 : 0), bits);
        }
        UNROLL for (int r = 0; r < R; r++) sum[r][j] = from;
    }
    UNROLL for (int v = 0; v < 4; v++) {
        UNROLL for (int j = 0; j < n; j++) {
            __m512i digit = digit_eight(act, y, v, j);
            if (R > 1) LOADED_ONCE(digit);
            UNROLL for (int r = 0; r < R; r++) sum[r][j] =
                _mm512_dpbusd_epi32(sum[r][j], x[r].q[v], digit);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        __m512i *s = sum[r];
        if (n > 1) s[0] = _mm512_add_epi32(_mm512_slli_epi32(s[0], 8), s[1]);
        dot[r] = _mm512_cvtepi32_ps(s[0]);
        if (n > 2) dot[r] = v_fma(dot[r], v_set1(256.0f), _mm512_cvtepi32_ps(s[2]));
    }
}

/* mins plus those of eight blocks times the sums of their activations; K takes its mins off. */
INLINE v_f mins_of_eight(enum sheaf_type type, v_f m, const float *lane_sums, v_f mins) {
    return is_k(type) ? v_fnma(m, v_load(lane_sums), mins) : v_fma(m, v_load(lane_sums), mins);
}
/* The lanes of a row from the sums of its products and of its mins. */
INLINE v_f end_eights(enum sheaf_type type, v_f acc, v_f mins) {
    if (!eights_have_mins(type)) return acc;
    if (!is_k(type)) return v_add(mins, acc);
    const float odd = 1.0f / (float)k_odd_times(type);
    const v_f part = _mm512_broadcast_f32x4(_mm_setr_ps(1.0f, 1.0f, odd, odd));
    return v_fma(acc, part, mins);
}

/* The first n <= 8 blocks of R rows at w by y. d_of is d of these rows, and becomes that of those at `next`. */
INLINE void digits_eight(enum sheaf_type type, enum sheaf__act act, int R, const char *w,
                         size_t w_stride, int n, const char *next, struct rows_d *d_of,
                         struct fetch fetch, const void *y, v_f *acc, v_f *mins) {
    const struct sheaf__act_digits *digits = y;
    const struct sheaf__act_bytes *bytes = y;
    const bool rounded = act == SHEAF__ACT_BYTES;
    const float *sums = rounded ? bytes->lane_sums : digits->lane_sums;
    struct eight x[EIGHTS_ROWS];
    v_f dot[EIGHTS_ROWS], d = v_load(rounded ? bytes->lane_d : digits->lane_d);
    UNROLL for (int r = 0; r < R; r++) {
        fetch_lines(fetch, w + (size_t)r * w_stride, size_256(type));
        unpack_weights(type, w + (size_t)r * w_stride, n, &x[r]);
    }
    if (of_six_bits(type)) {
        scales_of_rows(type, R, w, w_stride, d_of, x);
        d_of_rows(R, next, w_stride, d_of);
    }
    dot_eight(type, act, R, x, y, dot);
    if (of_six_bits(type)) scales_to_lanes(type, R, x);
    UNROLL for (int r = 0; r < R; r++) {
        acc[r] = v_fma(dot[r], scale_eight(type, &x[r], d), acc[r]);
        if (eights_have_mins(type)) mins[r] = mins_of_eight(type, x[r].m, sums, mins[r]);
    }
}

/* out[0] to out[R - 1]: R rows by y. */
INLINE void digits_eights(enum sheaf_type type, enum sheaf__act act, int R, int64_t k,
                          const char *w, size_t w_stride, struct fetch fetch, const char *y,
                          float *out) {
    v_f acc[EIGHTS_ROWS], mins[EIGHTS_ROWS];
    int64_t blocks = k / SHEAF__QK;
    UNROLL for (int r = 0; r < R; r++) acc[r] = mins[r] = v_set1(0.0f);
    struct rows_d d;
    if (of_six_bits(type)) d_of_rows(R, w, w_stride, &d);
    for (; blocks >= 8; blocks -= 8, w += size_256(type), y += act_size_256(act)) {
        const char *next = blocks > 8 ? w + size_256(type) : w;
        digits_eight(type, act, R, w, w_stride, 8, next, &d, fetch, y, acc, mins);
    }
    if (blocks > 0) {
        const int n = blocks_of_rest(type, sheaf__digits_at_end(k), (int)blocks, &w);
        digits_eight(type, act, R, w, w_stride, n, w, &d, fetch, y, acc, mins);
    }
    UNROLL for (int r = 0; r < R; r++) out[r] = v_sum(end_eights(type, acc[r], mins[r]));
}

/* One column after the other, R rows at once. */
INLINE void rows_eights(enum sheaf_type type, enum sheaf__act act, int R, int64_t k, const char *w,
                        size_t w_stride, int64_t nr, struct fetch fetch, const void *const *cols,
                        int nc, float *const *out) {
    for (int c = 0; c < nc; c++) {
        const char *row = w;
        int64_t r = 0;
        for (; r + R <= nr; r += R, row += (size_t)R * w_stride)
            digits_eights(type, act, R, k, row, w_stride, fetch, cols[c], out[c] + r);
        for (; r < nr; r++, row += w_stride)
            digits_eights(type, act, 1, k, row, w_stride, fetch, cols[c], out[c] + r);
    }
}
/* A CPU that loads 64 bytes once a cycle (Zen 4) multiplies three rows at once, which share the loads of the
 * column (D160). */
INLINE void rows_by_eights(enum sheaf_type type, enum sheaf__act act, int64_t k, const void *w,
                           size_t w_stride, int64_t nr, const void *const *cols, int nc,
                           float *const *out) {
    const size_t bytes = bytes_of_weights(type, k);
    if (sheaf__cpu_fetch == SHEAF__FETCH_OFTEN) {
        const struct fetch fetch =
            fetch_together(act == SHEAF__ACT_BYTES, EIGHTS_ROWS, bytes, w_stride);
        rows_eights(type, act, EIGHTS_ROWS, k, w, w_stride, nr, fetch, cols, nc, out);
    } else {
        BY_FETCH(bytes, w_stride,
                 rows_eights(type, act, 1, k, w, w_stride, nr, fetch, cols, nc, out));
    }
}
#define ROWS_EIGHTS(NAME, TYPE)                                                                    \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        rows_by_eights(TYPE, SHEAF__ACT_DIGITS, k, w, w_stride, nr, act, nc, out);                 \
    }
ROWS_EIGHTS(rows_digits_q4_0, SHEAF_TYPE_Q4_0)
ROWS_EIGHTS(rows_digits_q4_1, SHEAF_TYPE_Q4_1)
ROWS_EIGHTS(rows_digits_q5_0, SHEAF_TYPE_Q5_0)
ROWS_EIGHTS(rows_digits_q5_1, SHEAF_TYPE_Q5_1)
ROWS_EIGHTS(rows_digits_q4_k, SHEAF_TYPE_Q4_K)
ROWS_EIGHTS(rows_digits_q5_k, SHEAF_TYPE_Q5_K)
