/* A part of table.h: sizes of the blocks of quantized weights, and the first steps of unpacking them. */

#include "cpu/kernels/x86/levels.h"

INLINE float f16(uint16_t h) { return _cvtsh_ss(h); }

/* Bytes of 256 activations in digits or in bytes. */
INLINE size_t act_size_256(enum sheaf__act act) {
    return act == SHEAF__ACT_BYTES ? sizeof(struct sheaf__act_bytes)
                                   : sizeof(struct sheaf__act_digits);
}

/* 16 bytes to 32 nibbles: the low ones first. */
INLINE __m256i nibbles(const uint8_t *p) {
    __m128i b = load128(p);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(b), _mm_srli_epi16(b, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* 32 bits to 32 bytes: `set` where the bit is set, else `clear`. */
INLINE __m256i spread_bits(const uint8_t *p, int8_t set, int8_t clear) {
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m256i byte_of =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    __m256i b = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of), bit_of);
    return _mm256_blendv_epi8(_mm256_set1_epi8(clear), _mm256_set1_epi8(set),
                              _mm256_cmpeq_epi8(b, bit_of));
}

/* Bytes of a block of a type of 32. */
INLINE size_t block_size_32(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q8_0     ? sizeof(struct sheaf__block_q8_0)
           : type == SHEAF_TYPE_Q4_0   ? sizeof(struct sheaf__block_q4_0)
           : type == SHEAF_TYPE_Q4_1   ? sizeof(struct sheaf__block_q4_1)
           : type == SHEAF_TYPE_Q5_0   ? sizeof(struct sheaf__block_q5_0)
           : type == SHEAF_TYPE_Q5_1   ? sizeof(struct sheaf__block_q5_1)
           : type == SHEAF_TYPE_IQ4_NL ? sizeof(struct sheaf__block_iq4_nl)
                                       : sizeof(struct sheaf__block_mxfp4);
}

/* Bytes of 256 weights of any quantized type. */
INLINE size_t size_256(enum sheaf_type type) {
    const bool of_32 = type == SHEAF_TYPE_Q8_0 || type == SHEAF_TYPE_Q4_0 ||
                       type == SHEAF_TYPE_Q4_1 || type == SHEAF_TYPE_Q5_0 ||
                       type == SHEAF_TYPE_Q5_1 || type == SHEAF_TYPE_IQ4_NL ||
                       type == SHEAF_TYPE_MXFP4;
    return of_32                        ? 8 * block_size_32(type)
           : type == SHEAF_TYPE_NVFP4   ? 4 * sizeof(struct sheaf__block_nvfp4)
           : type == SHEAF_TYPE_IQ4_XS  ? sizeof(struct sheaf__block_iq4_xs)
           : type == SHEAF_TYPE_Q2_K    ? sizeof(struct sheaf__block_q2_k)
           : type == SHEAF_TYPE_Q3_K    ? sizeof(struct sheaf__block_q3_k)
           : type == SHEAF_TYPE_Q4_K    ? sizeof(struct sheaf__block_q4_k)
           : type == SHEAF_TYPE_Q5_K    ? sizeof(struct sheaf__block_q5_k)
           : type == SHEAF_TYPE_Q6_K    ? sizeof(struct sheaf__block_q6_k)
           : type == SHEAF_TYPE_IQ2_XXS ? sizeof(struct sheaf__block_iq2_xxs)
           : type == SHEAF_TYPE_IQ2_XS  ? sizeof(struct sheaf__block_iq2_xs)
           : type == SHEAF_TYPE_IQ2_S   ? sizeof(struct sheaf__block_iq2_s)
           : type == SHEAF_TYPE_IQ3_XXS ? sizeof(struct sheaf__block_iq3_xxs)
           : type == SHEAF_TYPE_IQ3_S   ? sizeof(struct sheaf__block_iq3_s)
           : type == SHEAF_TYPE_IQ1_S   ? sizeof(struct sheaf__block_iq1_s)
           : type == SHEAF_TYPE_IQ1_M   ? sizeof(struct sheaf__block_iq1_m)
           : type == SHEAF_TYPE_TQ1_0   ? sizeof(struct sheaf__block_tq1_0)
           : type == SHEAF_TYPE_TQ2_0   ? sizeof(struct sheaf__block_tq2_0)
           : type == SHEAF_TYPE_Q1_0    ? 2 * sizeof(struct sheaf__block_q1_0)
                                        : 4 * sizeof(struct sheaf__block_q2_0);
}

/* Bytes of n weights, whole blocks. */
INLINE size_t bytes_of_weights(enum sheaf_type type, int64_t n) {
    return (size_t)n * size_256(type) / SHEAF__QK_K;
}

enum { MOST_256 = 8 * sizeof(struct sheaf__block_q8_0) }; /* of the types of less than 256 */

/* The 256 weights at w; of the last `left` of a row, those that end with it if there are as many (long_row), as
 * activations lie (sheaf__digits_block), or these with zeros after them. */
INLINE const char *whole_256(enum sheaf_type type, const char *w, int64_t left, bool long_row,
                             char *rest) {
#if defined(KERNELS_REPACKED)
    return w; /* rows are of whole 256 */
#endif
    if (left >= SHEAF__QK_K) return w;
    if (long_row) return w - bytes_of_weights(type, SHEAF__QK_K - left);
    memset(rest, 0, MOST_256);
    memcpy(rest, w, bytes_of_weights(type, left));
    return rest;
}

INLINE bool has_min(enum sheaf_type t) { return t == SHEAF_TYPE_Q4_1 || t == SHEAF_TYPE_Q5_1; }
INLINE bool is_five(enum sheaf_type t) { return t == SHEAF_TYPE_Q5_0 || t == SHEAF_TYPE_Q5_1; }
INLINE bool is_k(enum sheaf_type t) { return t == SHEAF_TYPE_Q4_K || t == SHEAF_TYPE_Q5_K; }

/* Types whose few columns may be rounded. */
#define ROUNDED_COMMON(X)                                                                          \
    X(Q4_0)                                                                                        \
    X(Q4_1)                                                                                        \
    X(Q5_0)                                                                                        \
    X(Q5_1)                                                                                        \
    X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(TQ1_0) X(TQ2_0)
#if defined(KERNELS_VNNI_512)
#define ROUNDED(X) ROUNDED_COMMON(X) X(IQ3_XXS) X(IQ3_S)
#else
#define ROUNDED(X) ROUNDED_COMMON(X)
#endif

/* Functions of a table for one type: n weights unpacked. */
#define UNPACK(NAME, WEIGHTS_OF, TYPE)                                                             \
    static void NAME(const void *src, void *to, int64_t n) { WEIGHTS_OF(TYPE, src, to, n); }
