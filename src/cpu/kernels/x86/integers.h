/* A part of table.h and amx.c: 32 activations as integers, and what times them they are. */
#ifndef SHEAF_CPU_KERNELS_X86_INTEGERS_H
#define SHEAF_CPU_KERNELS_X86_INTEGERS_H

#include "cpu/kernels/x86/vector.h"

/* The largest magnitude of 32, by their bits, which puts NaN above infinity. */
INLINE float largest_of_32(const __m512 *v) {
    const __m512i a = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(v[0])),
                                       _mm512_castps_si512(_mm512_abs_ps(v[1])));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(a))));
}
INLINE void round_to_integers(const __m512 *v, float by, __m512i *q) {
    const __m512 x = _mm512_set1_ps(by);
    UNROLL for (int h = 0; h < 2; h++) q[h] = _mm512_cvtps_epi32(_mm512_mul_ps(v[h], x));
}
/* 32 activations as integers of magnitudes up to `top`; returns what times them the activations are. */
INLINE float integers_of_32(const float *x, float top, __m512i *q) {
    const __m512 v[2] = {v_load(x), v_load(x + 16)};
    const float max = largest_of_32(v);
    const bool zero = max < 0x1p-100f; /* top / max would overflow */
    round_to_integers(v, zero ? 0.0f : top / max, q);
    return zero ? 0.0f : max / top;
}

#endif
