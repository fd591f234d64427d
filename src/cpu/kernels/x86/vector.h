/* What all files of x86 kernels write their loops with, after the primitives of table.h: INLINE,
 * UNROLL, loads of a few elements, integers packed to bytes, and columns turned into panels. */
#ifndef SHEAF_CPU_KERNELS_X86_VECTOR_H
#define SHEAF_CPU_KERNELS_X86_VECTOR_H

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL    _Pragma("clang loop unroll(full)")
#define UNROLL_8  UNROLL
#define UNROLL_12 UNROLL
#define UNROLL_16 UNROLL
#else
#define UNROLL    _Pragma("GCC unroll 4")
#define UNROLL_8  _Pragma("GCC unroll 8")
#define UNROLL_12 _Pragma("GCC unroll 12")
#define UNROLL_16 _Pragma("GCC unroll 16")
#endif

INLINE __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE __m128i load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

/* The first n < VW elements, zeros after them. */
INLINE v_f v_load_n(const float *p, int64_t n) {
    float t[VW] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return v_load(t);
}
INLINE void v_store_n(float *p, v_f v, int64_t n) {
    float t[VW];
    v_store(t, v);
    memcpy(p, t, (size_t)n * sizeof *p);
}

/* gcc loads again for each use, and loads are what would bound the loops that say so. */
#define LOADED_ONCE(x) __asm__("" : "+v"(x))

#if defined(KERNELS_VNNI_512)
/* Words shifted by the number of a vector: gcc 12 takes it as an int, later ones as an unsigned. */
INLINE __m512i words_left(__m512i x, int n) { return _mm512_slli_epi16(x, (uint8_t)n); }
INLINE __m512i words_right(__m512i x, int n) { return _mm512_srli_epi16(x, (uint8_t)n); }

INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }
#endif

/* Bytes of 32 integers q[0..3], or words of 16, in their order; those out of range are the nearest.
 * Packing works in halves of 128 bits: the order of dwords after it is 0 2 4 6 1 3 5 7. */
INLINE __m256i pack_bytes(const __m256i *q) {
    const __m256i p =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
INLINE __m256i pack_words(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

/* panel[i][c] = x[c][i], i < n, c < cols */
INLINE void pack_columns(const float *const *x, int64_t n, int cols, float *panel) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int c = 0; c < cols; c += 4) {
            __m128 r0 = _mm_loadu_ps(x[c] + i), r1 = _mm_loadu_ps(x[c + 1] + i);
            __m128 r2 = _mm_loadu_ps(x[c + 2] + i), r3 = _mm_loadu_ps(x[c + 3] + i);
            float *to = panel + i * cols + c;
            _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
            _mm_storeu_ps(to, r0);
            _mm_storeu_ps(to + cols, r1);
            _mm_storeu_ps(to + 2 * cols, r2);
            _mm_storeu_ps(to + 3 * cols, r3);
        }
    }
    for (; i < n; i++) {
        for (int c = 0; c < cols; c++) panel[i * cols + c] = x[c][i];
    }
}

#endif
