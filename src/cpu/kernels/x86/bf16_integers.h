/* A part of vbmi.c and amx.c: integers of up to 8 bits as BF16, which holds them exactly, 32 of a block of quantized
 * weights in a vector. */
#ifndef SHEAF_CPU_KERNELS_X86_BF16_INTEGERS_H
#define SHEAF_CPU_KERNELS_X86_BF16_INTEGERS_H

#include "cpu/kernels/x86/levels.h"
#include "cpu/kernels/x86/vector.h"

/* Integers that are BF16, 16 and 16. */
INLINE __m512i bf16_integers(__m512i x, __m512i y) {
    const __m512i lo = _mm512_castps_si512(_mm512_cvtepi32_ps(x));
    const __m512i hi = _mm512_castps_si512(_mm512_cvtepi32_ps(y));
    const __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(lo, 16));
    const __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(hi, 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}
/* 16 levels, twice, since words are looked up by their low 5 bits. */
INLINE __m512i bf16_levels(const int8_t *levels) {
    const __m512i x = _mm512_cvtepi8_epi32(load128(levels));
    return bf16_integers(x, x);
}
/* 32 numbers from `first` on. */
INLINE __m512i bf16_from(int first) {
    const __m512i x =
        _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(first));
    return bf16_integers(x, _mm512_add_epi32(x, _mm512_set1_epi32(16)));
}

/* Words of 16 bytes whose low 4 bits are the bytes' low nibbles, then their high ones. */
INLINE __m512i low_and_high_words(const void *qs) {
    const __m512i twice = _mm512_broadcast_i64x4(
        _mm256_cvtepu8_epi16(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
    const __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    const __m512i x = _mm512_permutexvar_epi8(twice, _mm512_castsi128_si512(load128(qs)));
    return _mm512_srlv_epi16(x, shift);
}

/* 32 signed bytes as BF16. Even ones, then odd ones become the high bytes of integers, 2^24 times themselves, which
 * comes off the exponents of all but zeros. */
INLINE __m512i bf16_of_bytes(const void *bytes) {
    const __m512i even = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), 24);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1 << 24));
    const __mmask64 high = 0x8888888888888888;
    const __m512i q = _mm512_castsi256_si512(load256(bytes));
    const __m512i x =
        _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(high, even, q)));
    const __m512i y =
        _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(high, odd, q)));
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(x, 16), y);
    return _mm512_subs_epu16(both, _mm512_set1_epi16(24 << 7));
}

#endif
