/* The primitives of table.h in 16 floats, for AVX-512 (F, BW, VL, DQ, VNNI). */
#include "cpu/kernels/kernels.h"

#include <immintrin.h>

#define KERNELS_VNNI_512

typedef __m512 v_f;
enum { VW = 16 };

static inline v_f v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, v_f v) { _mm512_storeu_ps(p, v); }
static inline v_f v_set1(float a) { return _mm512_set1_ps(a); }
static inline v_f v_add(v_f a, v_f b) { return _mm512_add_ps(a, b); }
static inline v_f v_sub(v_f a, v_f b) { return _mm512_sub_ps(a, b); }
static inline v_f v_mul(v_f a, v_f b) { return _mm512_mul_ps(a, b); }
static inline v_f v_div(v_f a, v_f b) { return _mm512_div_ps(a, b); }
static inline v_f v_fma(v_f a, v_f b, v_f c) { return _mm512_fmadd_ps(a, b, c); }
static inline v_f v_fnma(v_f a, v_f b, v_f c) { return _mm512_fnmadd_ps(a, b, c); }
/* The second operand if either is NaN. */
static inline v_f v_min(v_f a, v_f b) { return _mm512_min_ps(a, b); }
static inline v_f v_max(v_f a, v_f b) { return _mm512_max_ps(a, b); }
/* Only asked for |a| < 2^31. (The macro of _mm512_roundscale_ps warns of its own mask at -O0.) */
static inline v_f v_round(v_f a) { return _mm512_cvtepi32_ps(_mm512_cvtps_epi32(a)); }
/* p * 2^n, any n */
static inline v_f v_ldexp(v_f p, v_f n) { return _mm512_scalef_ps(p, n); }
enum { V_LDEXP_COSTS = 0 };
static inline bool v_all_within(v_f a, float b) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(a), _mm512_set1_ps(b), _CMP_LE_OQ) == 0xffff;
}
static inline v_f v_ldexp_near(v_f p, v_f t) { return v_ldexp(p, v_sub(t, v_set1(0x1.8p23f))); }

static inline v_f v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void v_store_f16(uint16_t *p, v_f v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, 0));
}
static inline v_f v_load_bf16(const uint16_t *p) {
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
static inline v_f v_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* The 16 unsigned bytes that both halves of q hold; i = 0. */
static inline v_f v_bytes(__m256i q, int i) {
    (void)i;
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(q)));
}
/* The low nibbles of 16 bytes, and 16 times the high ones: masking is cheaper than shifting. */
static inline void v_nibbles(const uint8_t *p, v_f *lo, v_f *hi_16) {
    __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    *lo = _mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32(0x0f)));
    *hi_16 = _mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32(0xf0)));
}

/* 8 floats, each twice; the two of each pair swapped; with the sign of the first of each turned. */
static inline v_f v_twice(const float *p) {
    const __m512i at = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(at, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
static inline v_f v_swap(v_f v) { return _mm512_permute_ps(v, 0xb1); }
static inline v_f v_turn(v_f v) {
    return _mm512_xor_ps(v, _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000)));
}

/* 8 doubles, plus 8 floats, or their squares: exact in double, so the fma rounds as a sum does. */
typedef __m512d v_d;
static inline v_d v_zeros(void) { return _mm512_setzero_pd(); }
static inline v_d v_add_8(v_d acc, const float *p) {
    return _mm512_add_pd(acc, _mm512_cvtps_pd(_mm256_loadu_ps(p)));
}
static inline v_d v_add_sq_8(v_d acc, const float *p) {
    v_d x = _mm512_cvtps_pd(_mm256_loadu_ps(p));
    return _mm512_fmadd_pd(x, x, acc);
}
static inline void v_lanes(double *lanes, v_d acc) { _mm512_storeu_pd(lanes, acc); }

/* Halves of a and of b added: eight numbers of each. */
static inline v_f v_halves(v_f a, v_f b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
static inline float v_sum(v_f v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float v_largest(v_f v) { return _mm512_reduce_max_ps(v); }

static inline v_f v_if_equal(v_f a, v_f b, v_f x, v_f otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), otherwise, x);
}

/* Eight elements of each of two rows; the same eight twice. */
static inline __m256i two128(const void *a, const void *b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                   _mm_loadu_si128((const __m128i *)b), 1);
}
static inline v_f v_eight(const float *p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }
static inline v_f v_eights(const float *a, const float *b) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
}
static inline v_f v_eights_f16(const uint16_t *a, const uint16_t *b) {
    return _mm512_cvtph_ps(two128(a, b));
}
static inline v_f v_eights_bf16(const uint16_t *a, const uint16_t *b) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(two128(a, b)), 16));
}
static inline v_f v_eights_i8(const int8_t *a, const int8_t *b) {
    const __m128i x = _mm_loadl_epi64((const __m128i *)a), y = _mm_loadl_epi64((const __m128i *)b);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi64(x, y)));
}
static inline v_f v_eights_set1(float a, float b) {
    return _mm512_mask_broadcastss_ps(_mm512_set1_ps(a), 0xff00, _mm_set_ss(b));
}

/* Eight vectors of partial sums, eight of each of two rows, to a sum in each lane: in 128 bits, then of
 * the two halves. Vectors 0 to 3 hold rows 0 to 3 and 4 to 7, the others rows 8 to 11 and 12 to 15. */
static inline v_f v_sum_twos(v_f a, v_f b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
static inline v_f v_sum_fours(v_f a, v_f b) {
    const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}
static inline v_f v_sum_eights(v_f a, v_f b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
