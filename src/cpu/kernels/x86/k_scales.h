/* A part of table.h and amx.c: scales and mins of Q4_K and Q5_K. */
#ifndef SHEAF_CPU_KERNELS_X86_K_SCALES_H
#define SHEAF_CPU_KERNELS_X86_K_SCALES_H

#include "cpu/kernels/x86/vector.h"

/* The 8 scales and the 8 mins of the bytes a[4], b[4], c[4] (sheaf__k_scale_min), a byte each. */
struct k_bytes {
    uint64_t scales, mins;
};
INLINE struct k_bytes k_bytes(const void *packed) {
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, bits45 = 0x30303030;
    uint32_t a, b, c;
    memcpy(&a, packed, sizeof a);
    memcpy(&b, (const char *)packed + 4, sizeof b);
    memcpy(&c, (const char *)packed + 8, sizeof c);
    return (struct k_bytes){
        (uint64_t)((c & low4) | (a >> 2 & bits45)) << 32 | (a & low6),
        (uint64_t)((c >> 4 & low4) | (b >> 2 & bits45)) << 32 | (b & low6),
    };
}

/* The scales (low half) and the mins (high half) as i16. */
INLINE __m256i k_scales_mins(const uint8_t *packed) {
    const struct k_bytes x = k_bytes(packed);
    return _mm256_cvtepu8_epi16(_mm_set_epi64x((int64_t)x.mins, (int64_t)x.scales));
}

#if defined(KERNELS_VNNI_512)
/* Of Q4_K and Q5_K at w the scales of blocks 2 g and 2 g + 1, then their mins, times d and dmin, in 128
 * bits g: spreading them is a shuffle within 128 bits, of which a Zen 4 has more than of others. They are taken
 * apart in general registers: the loops that need them have too many instructions on vectors (D160). */
INLINE __m512 k_scales(const char *w) {
    struct k_bytes bytes = k_bytes(w + 4);              /* behind d and dmin */
    __asm__("" : "+r"(bytes.scales), "+r"(bytes.mins)); /* gcc would do it in vectors */
    const __m128i all = _mm_unpacklo_epi16(_mm_cvtsi64_si128((int64_t)bytes.scales),
                                           _mm_cvtsi64_si128((int64_t)bytes.mins));
    const __m512i first_or_second = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 1, 1));
    const __m512 d =
        _mm512_permutexvar_ps(first_or_second, _mm512_castps128_ps512(_mm_cvtph_ps(load128(w))));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(all)), d);
}
/* The 8 scales, then the 8 mins, these with their sign turned. */
INLINE __m512 scales_then_minus_mins(const char *w) {
    const __m512i d_then_m =
        _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m512 minus = _mm512_castsi512_ps(_mm512_inserti64x4(
        _mm512_setzero_si512(), _mm256_set1_epi32(INT32_MIN), 1));
    return _mm512_xor_ps(_mm512_permutexvar_ps(d_then_m, k_scales(w)), minus);
}
#else
/* The 8 scales, then the 8 mins, of Q4_K and Q5_K as bytes, of x: the first 16 bytes of a block,
 * which are the halves d and dmin and bytes a[4], b[4], c[4]. */
INLINE __m128i k_scale_bytes(__m128i x) {
    /* a, c, b, c >> 4 and the top bits of a and b */
    const __m128i low =
        _mm_srlv_epi32(_mm_shuffle_epi32(x, _MM_SHUFFLE(3, 2, 3, 1)), _mm_setr_epi32(0, 0, 0, 4));
    const __m128i top = _mm_srli_epi32(_mm_shuffle_epi32(x, _MM_SHUFFLE(2, 2, 1, 1)), 2);
    const __m128i take = _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f);
    const __m128i add = _mm_setr_epi32(0, 0x30303030, 0, 0x30303030);
    return _mm_or_si128(_mm_and_si128(low, take), _mm_and_si128(top, add));
}

/* The 8 scales, then the 8 mins, of Q4_K and Q5_K at w, times d and dmin: k_scales_mins without
 * general registers. */
INLINE void k_scales(const char *w, __m256 *scales, __m256 *mins) {
    const __m128i x = load128(w);
    const __m128i all = k_scale_bytes(x);
    const __m128 d = _mm_cvtph_ps(x);
    const __m256i s = _mm256_cvtepu8_epi32(all);
    const __m256i m = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(all, all));
    *scales = _mm256_mul_ps(_mm256_cvtepi32_ps(s), _mm256_broadcastss_ps(d));
    *mins = _mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
}
#endif

#endif
