/* Vectors of 16 bytes in the C of GCC and Clang, and the few instructions that it has no words for. The rest of
 * this folder is written with these, so that it is the same source for every CPU: 64-bit ARM with and without
 * products of bytes (FEAT_DotProd), and x86 with SSE4.1.
 *
 * What differs between them: v_fma rounds once where there is an instruction for it, else twice. Sums of
 * integers are exact everywhere. */
#ifndef SHEAF_CPU_KERNELS_V128_VECTOR_H
#define SHEAF_CPU_KERNELS_V128_VECTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "quant/quants.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The compiler computes x here, not later: gcc would multiply for one sum after the other, each of which waits for
 * itself, and spill. */
#if defined(__aarch64__)
#define NOW(x) __asm__ volatile("" : "+w"(x))
#else
#define NOW(x) __asm__ volatile("" : "+x"(x))
#endif

typedef float v_f __attribute__((vector_size(16)));
typedef int32_t v_i32 __attribute__((vector_size(16)));
typedef uint32_t v_u32 __attribute__((vector_size(16)));
typedef int8_t v_i8 __attribute__((vector_size(16)));
typedef uint8_t v_u8 __attribute__((vector_size(16)));
enum { VW = 4 };

/* ---- loads and stores, of any alignment ---- */

#define V_LOAD(NAME, TYPE)                                                                         \
    INLINE TYPE NAME(const void *p) {                                                              \
        TYPE v;                                                                                    \
        memcpy(&v, p, sizeof v);                                                                   \
        return v;                                                                                  \
    }
V_LOAD(v_load, v_f)
V_LOAD(v_load_i8, v_i8)
V_LOAD(v_load_u8, v_u8)
INLINE void v_store(float *p, v_f v) { memcpy(p, &v, sizeof v); }
INLINE void v_store_i8(int8_t *p, v_i8 v) { memcpy(p, &v, sizeof v); }

/* The first n < VW floats, zeros after them. */
INLINE v_f v_load_n(const float *p, int64_t n) {
    float t[VW] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return v_load(t);
}

INLINE v_f v_set1(float a) { return (v_f){a, a, a, a}; }
INLINE v_i32 v_set_i32(int32_t a) { return (v_i32){a, a, a, a}; }
INLINE v_u8 v_bytes(int a) { return (v_u8){0} + (uint8_t)a; }

/* ---- floats ---- */

INLINE v_f v_fma(v_f a, v_f b, v_f c) {
#if defined(__aarch64__)
    return (v_f)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
/* acc + a[LANE] * b; LANE is a constant */
#if defined(__aarch64__)
#define V_FMA_LANE(a, LANE, b, acc)                                                                \
    ((v_f)vfmaq_laneq_f32((float32x4_t)(acc), (float32x4_t)(b), (float32x4_t)(a), LANE))
#else
#define V_FMA_LANE(a, LANE, b, acc) ((acc) + v_set1((a)[LANE]) * (b))
#endif

INLINE v_f v_select(v_i32 mask, v_f a, v_f b) {
    return (v_f)((mask & (v_i32)a) | (~mask & (v_i32)b));
}
/* The second operand if either is NaN. */
INLINE v_f v_max(v_f a, v_f b) { return v_select((v_i32)(a > b), a, b); }

INLINE float v_sum(v_f v) { return (v[0] + v[2]) + (v[1] + v[3]); }
INLINE v_f v_from_i32(v_i32 v) { return __builtin_convertvector(v, v_f); }

/* Four numbers of 16 bits. */
INLINE v_u32 v_load_u16(const uint16_t *p) {
#if defined(__aarch64__)
    return (v_u32)vmovl_u16(vld1_u16(p));
#else
    return (v_u32)_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#endif
}

/* Four F16 as floats. */
INLINE v_f v_load_f16(const uint16_t *p) {
#if defined(__aarch64__)
    return (v_f)vcvt_f32_f16((float16x4_t)vld1_u16(p));
#else
    const v_i32 h = (v_i32)v_load_u16(p), sign = (h & 0x8000) << 16, bits = (h & 0x7fff) << 13;
    const v_i32 one = v_set_i32(1 << 23), more = v_set_i32(112 << 23); /* of an exponent */
    const v_i32 top = bits >= v_set_i32(31 << 23);                     /* infinities and NaN */
    const v_i32 small = (v_i32)((v_f)(bits + more + one) - (v_f)(more + one)); /* subnormal ones */
    const v_i32 normal = bits + more + (top & more), below = bits < one;
    return (v_f)(sign | (below & small) | (~below & normal));
#endif
}
INLINE void v_store_f16(uint16_t *p, v_f v) {
#if defined(__aarch64__)
    vst1_u16(p, (uint16x4_t)vcvt_f16_f32((float32x4_t)v));
#else
    for (int i = 0; i < VW; i++) p[i] = sheaf__f32_to_f16(v[i]);
#endif
}
INLINE v_f v_load_bf16(const uint16_t *p) { return (v_f)(v_load_u16(p) << 16); }

/* Bytes 4 PART .. 4 PART + 3 as floats. PART is a constant. */
INLINE v_f v_from_i8(v_i8 q, int part) {
#if defined(__aarch64__)
    const int16x8_t eight =
        part < 2 ? vmovl_s8(vget_low_s8((int8x16_t)q)) : vmovl_high_s8((int8x16_t)q);
    return v_from_i32((v_i32)(part % 2 ? vmovl_high_s16(eight) : vmovl_s16(vget_low_s16(eight))));
#else
    const int32_t four = ((v_i32)q)[part];
    return v_from_i32((v_i32)_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four)));
#endif
}

/* ---- bytes ---- */

/* table[q[i]] for numbers below 16 */
INLINE v_i8 v_lookup(v_i8 table, v_u8 q) {
#if defined(__aarch64__)
    return (v_i8)vqtbl1q_s8((int8x16_t)table, (uint8x16_t)q);
#else
    return (v_i8)_mm_shuffle_epi8((__m128i)table, (__m128i)q);
#endif
}

/* sum + the products of 16 bytes, in any lanes; b has no -128 where no instruction does it. */
INLINE v_i32 dot_16(v_i32 sum, v_i8 a, v_i8 b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return (v_i32)vdotq_s32((int32x4_t)sum, (int8x16_t)a, (int8x16_t)b);
#elif defined(KERNELS_EMULATED_DOT) /* tests/emulators/dotprod */
    return emulated_dot_16(sum, a, b);
#elif defined(__aarch64__)
    const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)a), vget_low_s8((int8x16_t)b));
    const int16x8_t high = vmull_high_s8((int8x16_t)a, (int8x16_t)b);
    return (v_i32)vpadalq_s16(vpadalq_s16((int32x4_t)sum, low), high);
#else
    const __m128i x = (__m128i)a, y = (__m128i)b; /* the size of a, and its sign on b */
    const __m128i twos = _mm_maddubs_epi16(_mm_abs_epi8(x), _mm_sign_epi8(y, x));
    return sum + (v_i32)_mm_madd_epi16(twos, _mm_set1_epi16(1));
#endif
}

#if defined(__ARM_FEATURE_DOTPROD) || defined(KERNELS_EMULATED_DOT)
/* Activations of 16 bits are two digits of 8, which an instruction multiplies; else they are words. */
#define KERNELS_DIGITS
/* sum[j] + the products of bytes 4 j .. 4 j + 3 of a with bytes 4 LANE .. of b; LANE is a constant. */
#if defined(KERNELS_EMULATED_DOT)
#define DOT_4_LANE(sum, a, b, LANE) emulated_dot_4(sum, a, b, LANE)
#else
#define DOT_4_LANE(sum, a, b, LANE)                                                                \
    ((v_i32)vdotq_laneq_s32((int32x4_t)(sum), (int8x16_t)(a), (int8x16_t)(b), LANE))
#endif
#else
/* sum + the products of 16 bytes with 16 words, in any lanes. */
INLINE v_i32 dot_16_words(v_i32 sum, v_i8 a, const int16_t *b) {
#if defined(__aarch64__)
    const int16x8_t low = vmovl_s8(vget_low_s8((int8x16_t)a)), high = vmovl_high_s8((int8x16_t)a);
    const int16x8_t x = vld1q_s16(b), y = vld1q_s16(b + 8);
    int32x4_t to = vmlal_s16((int32x4_t)sum, vget_low_s16(low), vget_low_s16(x));
    to = vmlal_high_s16(to, low, x);
    to = vmlal_s16(to, vget_low_s16(high), vget_low_s16(y));
    return (v_i32)vmlal_high_s16(to, high, y);
#else
    const __m128i x = (__m128i)a, *y = (const __m128i *)(const void *)b;
    const __m128i low = _mm_cvtepi8_epi16(x), high = _mm_cvtepi8_epi16(_mm_unpackhi_epi64(x, x));
    return sum + (v_i32)_mm_madd_epi16(low, _mm_loadu_si128(y)) +
           (v_i32)_mm_madd_epi16(high, _mm_loadu_si128(y + 1));
#endif
}
#endif

#endif
