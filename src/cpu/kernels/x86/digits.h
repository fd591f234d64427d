/* A part of table.h, of the AVX-512 table: blocks of weights by activations in digits, or rounded, in bytes.
 *
 * An activation is an integer of 24 or 16 bits times the scale of its block of 32, kept as three or
 * two signed bytes: q = (h * 256 + m) * 256 + l, or h * 256 + m for weights of up to 6 bits. VNNI
 * multiplies each digit with the unsigned integers of the weights exactly: 64 weights cost an
 * instruction for each digit, where floats take four and the unpacking to 32 bits besides. With 24
 * bits what rounding is left is that of floats.
 *
 * 64 weights are a vector of bytes, 4 of them a lane. With weights of up to 6 bits a lane's sum
 * by three digits stays below 2^31: 4 * 63 * (127 * 2^16 + 128 * 2^8 + 128); by two digits so does that
 * of four vectors of whole bytes, 16 * 255 * 127 * 257. It becomes a float and is scaled by the product of
 * both scales; offsets and mins of weights meet the sums of activations.
 *
 * Here is what all share; types with a scale for 32: eights.h; for 16: pieces.h.
 *
 * These loops spend their time on scales and unpacking, not on products, so activations lie in the
 * order in which weights of few bits come out of wide loads (enum sheaf__digits_order).
 *
 * One column meets row by row, as memory is read in order then: a Zen 5 reads Q4_0 at 37 GB/s, by two
 * rows at 28 to 33, and at 24 instead of 20 while the other core reads too. (On a Zen 4 it meets three rows
 * of eights.h at once.) Several columns: few.h.
 *
 * Invariant: as there, one order of accumulation per (row, column) whatever the tile. */

#include "cpu/kernels/x86/integers.h"

INLINE __m512i twice256(const void *p) { return _mm512_broadcast_i64x4(load256(p)); }
INLINE __m512i two256(const void *a, const void *b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load256(a)), load256(b), 1);
}
INLINE __m512i and15_512(__m512i q) { return _mm512_and_si512(q, _mm512_set1_epi8(15)); }

/* a in the lower half, b in the upper half of the bits. */
INLINE __m512i halves(int a, int b) {
    return _mm512_inserti64x4(_mm512_set1_epi32(a), _mm256_set1_epi32(b), 1);
}

/* For tables of words and lanes: one four times, and the eight from one on. */
#define FOUR(AT)    AT, AT, AT, AT
#define NIBBLES(AT) AT, AT + 1, AT + 2, AT + 3, AT + 4, AT + 5, AT + 6, AT + 7

/* Lanes of 4 products of 64 weights of up to `bits` bits with the three digits of a column. */
INLINE __m512 dot_digits(int bits, __m512i q, const int8_t (*x)[64]) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i a = _mm512_dpbusd_epi32(zero, q, load512(x[0]));
    a = _mm512_dpbusd_epi32(_mm512_slli_epi32(a, 8), q, load512(x[1]));
    if (bits <= 6)
        return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_slli_epi32(a, 8), q, load512(x[2])));
    const __m512 low = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(zero, q, load512(x[2])));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_set1_ps(256.0f), low);
}

/* ---- blocks of 32 ---- */

/* The 64 integers of two blocks of Q8_0, unsigned. */
INLINE __m512i pair_8(const char *p0, const char *p1) {
    const struct sheaf__block_q8_0 *a = (const void *)p0, *b = (const void *)p1;
    return _mm512_xor_si512(two256(a->qs, b->qs), _mm512_set1_epi8(-128));
}

/* The halves at p, p + block .. of n <= 8 blocks, zeros after them. They are put together in
 * general registers: shuffles are what these loops have too many of, and memory would be waited
 * for. */
INLINE __m256 gather_halves(const char *p, size_t block, int n) {
    uint64_t h[2] = {0, 0};
    UNROLL_12 for (int i = 0; i < 8; i++) {
        uint16_t one;
        if (i >= n) break;
        memcpy(&one, p + (size_t)i * block, sizeof one);
        h[i / 4] |= (uint64_t)one << (i % 4 * 16);
    }
    /* gcc would do it in vectors, with twice the instructions */
    __asm__("" : "+r"(h[0]), "+r"(h[1]));
    return _mm256_cvtph_ps(_mm_set_epi64x((int64_t)h[1], (int64_t)h[0]));
}

/* ---- activations ---- */

/* The sum of all lanes; wraps, as it may where an activation is not finite. */
INLINE int32_t sum_of_lanes(__m512i v) {
    const __m256i x = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 1)));
}
/* Sums of lanes 0 to 3 and 8 to 11, and of the others, in the first two. */
INLINE __m128i sums_of_lanes(__m512i v) {
    const __m256i x = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    const __m128i lo = _mm256_castsi256_si128(x), hi = _mm256_extracti128_si256(x, 1);
    const __m128i s = _mm_add_epi32(_mm_unpacklo_epi32(lo, hi), _mm_unpackhi_epi32(lo, hi));
    return _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
}
/* The same as floats, times d, to the lanes of a block. */
INLINE void set_lane_sums(float *of_block, __m128i sums, float d) {
    _mm_storel_pi((__m64 *)(void *)of_block, _mm_mul_ps(_mm_cvtepi32_ps(sums), _mm_set1_ps(d)));
}

/* SHEAF__DIGITS_PIECES: what sums of products of a lane begin with because of the offset of a type, which
 * is this times the sum of the lane's integers, by the field of its piece. They lie where third digits
 * would. */
enum { LESS_Q6_K, LESS_Q3_K, LESS_TQ2_0, LESS_TQ1_0 };
static const int32_t pieces_less[4][4] = {
    [LESS_Q6_K] = {-32, -32, -32, -32},
    [LESS_Q3_K] = {-4, -16, -16, -64},
    [LESS_TQ2_0] = {-1, -4, -16, -64},
    [LESS_TQ1_0] = {-1, -1, -1, -1},
};
INLINE int pieces_less_of(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q6_K    ? LESS_Q6_K
           : type == SHEAF_TYPE_Q3_K  ? LESS_Q3_K
           : type == SHEAF_TYPE_TQ2_0 ? LESS_TQ2_0
                                      : LESS_TQ1_0;
}

static void to_digits(const float *x, struct sheaf__act_digits *y, int64_t n, bool at_end,
                      enum sheaf__digits_order order) {
    const float top = sheaf__digits_top(order);
    const int used = sheaf__digits_used(order);
    const bool pieces = order == SHEAF__DIGITS_PIECES;
    const __m512i half = _mm512_set1_epi32(128);
    if (n % 256) memset(&y[n / 256], 0, sizeof *y);
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        struct sheaf__act_digits *to = &y[i / 8];
        const int b = sheaf__digits_block(i, n, at_end);
        __m512i q[2];
        const float d = integers_of_32(x, top, q);
        for (int h = 0; h < 2; h++) {
            const int at = sheaf__digits_place(order, 32 * b + 16 * h);
            const int second = sheaf__digits_place(order, 32 * b + 16 * h + 8);
            __m512i rest = q[h];
            for (int j = used - 1; j >= 0; j--) { /* the least digit first */
                const __m512i more = _mm512_srai_epi32(_mm512_add_epi32(rest, half), 8);
                const __m512i digit = j ? _mm512_sub_epi32(rest, _mm512_slli_epi32(more, 8)) : rest;
                const __m128i bytes = _mm512_cvtepi32_epi8(digit);
                rest = more;
                if (!pieces) {
                    _mm_storel_epi64((__m128i *)(to->digit[at / 64][j] + at % 64), bytes);
                    _mm_storel_epi64((__m128i *)(to->digit[second / 64][j] + second % 64),
                                     _mm_unpackhi_epi64(bytes, bytes));
                    continue;
                }
                int32_t four[4]; /* to the four vectors */
                _mm_storeu_si128((__m128i *)four, bytes);
                for (int p = 0; p < 4; p++) memcpy(to->digit[p][j] + at, &four[p], sizeof *four);
            }
        }
        to->d[b] = d;
        if (order == SHEAF__DIGITS_EIGHTS || order == SHEAF__DIGITS_EIGHTS_24 ||
            order == SHEAF__DIGITS_K) {
            const __m128i sums = sums_of_lanes(_mm512_add_epi32(q[0], q[1]));
            const int lane = sheaf__digits_block_lane(order, b);
            __m128i high = sums, low = _mm_setzero_si128();
            if (used == 3) {
                UNROLL for (int h = 0; h < 2; h++) q[h] =
                    _mm512_srai_epi32(_mm512_add_epi32(q[h], half), 8);
                high = sums_of_lanes(_mm512_add_epi32(q[0], q[1]));
                low = _mm_sub_epi32(_mm_slli_epi32(high, 8), sums);
            }
            to->lane_d[lane] = to->lane_d[lane + 1] = d;
            set_lane_sums(to->lane_sums + lane, sums, d);
            _mm_storel_epi64((__m128i *)(void *)&to->minus_sums[0][lane],
                             _mm_sub_epi32(_mm_setzero_si128(), high));
            _mm_storel_epi64((__m128i *)(void *)&to->minus_sums[1][lane], low);
            continue;
        }
        const int sums[2] = {sum_of_lanes(q[0]), sum_of_lanes(q[1])};
        for (int h = 0; h < 2; h++) {
            const int lane = pieces ? sheaf__digits_piece_lane(2 * b + h) : 2 * b + h;
            to->lane_d[lane] = d;
            to->sums16[lane] = d * (float)sums[h];
            for (int v = 0; v < 4 && pieces; v++) {
                /* wraps where an activation is not finite: d is not either */
                const uint32_t less = (uint32_t)pieces_less[v][b % 4] * (uint32_t)sums[h];
                memcpy(to->digit[v][2] + 4 * lane, &less, sizeof less);
            }
        }
    }
}

static void to_words(const float *x, struct sheaf__act_words *y, int64_t n, bool at_end,
                     enum sheaf__digits_order order) {
    const __m512i evens_first =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    if (n % 256) memset(&y[n / 256], 0, sizeof *y);
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        struct sheaf__act_words *to = &y[i / 8];
        const int b = sheaf__digits_block(i, n, at_end);
        __m512i q[2];
        const float d = integers_of_32(x, sheaf__digits_top(order), q);
        for (int h = 0; h < 2; h++) {
            int64_t words[4]; /* even ones of the first 8 elements, of the last, odd ones */
            _mm256_storeu_si256((__m256i *)words,
                                _mm512_cvtepi32_epi16(_mm512_permutexvar_epi32(evens_first, q[h])));
            for (int j = 0; j < 4; j++) {
                const int first = 32 * b + 16 * h + j % 2 * 8 + j / 2;
                memcpy(to->x + sheaf__digits_place(order, first), &words[j], sizeof *words);
            }
        }
        const __m512i both = _mm512_add_epi32(q[0], q[1]);
        to->d[b] = d;
        set_lane_sums(to->lane_sums + sheaf__digits_block_lane(order, b), sums_of_lanes(both), d);
    }
}

/* SHEAF__DIGITS_EIGHTS and _24, _K, _PIECES */
static void to_bytes(const float *x, struct sheaf__act_bytes *y, int64_t n, bool at_end,
                     enum sheaf__digits_order order) {
    const bool pieces = order == SHEAF__DIGITS_PIECES;
    if (n % 256) memset(&y[n / 256], 0, sizeof *y);
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        struct sheaf__act_bytes *to = &y[i / 8];
        const int b = sheaf__digits_block(i, n, at_end);
        __m512i q[2];
        int8_t bytes[32];
        const float d = integers_of_32(x, 127.0f, q);
        for (int h = 0; h < 2; h++)
            _mm_storeu_si128((__m128i *)(void *)(bytes + 16 * h), _mm512_cvtepi32_epi8(q[h]));
        for (int e = 0; e < 32; e += 4)
            memcpy(to->x + sheaf__digits_place(order, 32 * b + e), bytes + e, 4);
        to->d[b] = d;
        const int of_block = sheaf__digits_block_lane(order, b);
        for (int h = 0; h < 2; h++) {
            const int lane = pieces ? sheaf__digits_piece_lane(2 * b + h) : of_block + h;
            to->lane_d[lane] = d;
            if (!pieces) continue;
            to->minus_sums[lane] = sum_of_lanes(_mm512_sub_epi32(_mm512_setzero_si512(), q[h]));
            to->lane_sums[lane] = -d * (float)to->minus_sums[lane];
        }
        if (pieces) continue;
        const __m128i sums = sums_of_lanes(_mm512_add_epi32(q[0], q[1]));
        set_lane_sums(to->lane_sums + of_block, sums, d);
        _mm_storel_epi64((__m128i *)(void *)&to->minus_sums[of_block],
                         _mm_sub_epi32(_mm_setzero_si128(), sums));
    }
}

/* sum, and lanes of 16 products of four vectors of bytes. */
INLINE __m512 dot_bytes(__m512i sum, const __m512i *q, const struct sheaf__act_bytes *y) {
    UNROLL for (int v = 0; v < 4; v++) sum = _mm512_dpbusd_epi32(sum, q[v], load512(y->x + 64 * v));
    return _mm512_cvtepi32_ps(sum);
}

#define DIGITS_ORDER                                                                               \
    {                                                                                              \
        [SHEAF_TYPE_Q8_0] = SHEAF__DIGITS_EIGHTS_24, [SHEAF_TYPE_Q4_0] = SHEAF__DIGITS_EIGHTS,     \
        [SHEAF_TYPE_Q4_1] = SHEAF__DIGITS_EIGHTS, [SHEAF_TYPE_Q5_0] = SHEAF__DIGITS_EIGHTS,        \
        [SHEAF_TYPE_Q5_1] = SHEAF__DIGITS_EIGHTS, [SHEAF_TYPE_Q4_K] = SHEAF__DIGITS_K,             \
        [SHEAF_TYPE_Q5_K] = SHEAF__DIGITS_K, [SHEAF_TYPE_IQ4_NL] = SHEAF__DIGITS_EIGHTS,           \
        [SHEAF_TYPE_IQ4_XS] = SHEAF__DIGITS_EIGHTS, [SHEAF_TYPE_IQ3_XXS] = SHEAF__DIGITS_EIGHTS,   \
        [SHEAF_TYPE_IQ3_S] = SHEAF__DIGITS_EIGHTS, [SHEAF_TYPE_MXFP4] = SHEAF__DIGITS_EIGHTS,      \
        [SHEAF_TYPE_Q2_K] = SHEAF__DIGITS_PIECES, [SHEAF_TYPE_Q3_K] = SHEAF__DIGITS_PIECES,        \
        [SHEAF_TYPE_Q6_K] = SHEAF__DIGITS_PIECES, [SHEAF_TYPE_TQ1_0] = SHEAF__DIGITS_PIECES,       \
        [SHEAF_TYPE_TQ2_0] = SHEAF__DIGITS_PIECES,                                                 \
    }
#define FEW_ORDER                                                                                  \
    {                                                                                              \
        [SHEAF_TYPE_Q4_0] = SHEAF__DIGITS_EIGHT_WORDS,                                             \
        [SHEAF_TYPE_Q4_1] = SHEAF__DIGITS_EIGHT_WORDS,                                             \
        [SHEAF_TYPE_Q5_0] = SHEAF__DIGITS_EIGHT_WORDS,                                             \
        [SHEAF_TYPE_Q5_1] = SHEAF__DIGITS_EIGHT_WORDS, [SHEAF_TYPE_Q4_K] = SHEAF__DIGITS_K_WORDS,  \
        [SHEAF_TYPE_Q5_K] = SHEAF__DIGITS_K_WORDS,                                                 \
        [SHEAF_TYPE_IQ4_NL] = SHEAF__DIGITS_EIGHT_WORDS,                                           \
        [SHEAF_TYPE_IQ4_XS] = SHEAF__DIGITS_EIGHT_WORDS,                                           \
        [SHEAF_TYPE_IQ3_XXS] = SHEAF__DIGITS_EIGHT_WORDS,                                          \
        [SHEAF_TYPE_IQ3_S] = SHEAF__DIGITS_EIGHT_WORDS,                                            \
        [SHEAF_TYPE_MXFP4] = SHEAF__DIGITS_EIGHT_WORDS,                                            \
    }
