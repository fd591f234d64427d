/* The primitives of table.h in 8 floats (AVX2, FMA, F16C), for avx2.c and avxvnni.c. */
#include "cpu/kernels/kernels.h"

#include <immintrin.h>

typedef __m256 v_f;
enum { VW = 8 };

static inline v_f v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, v_f v) { _mm256_storeu_ps(p, v); }
static inline v_f v_set1(float a) { return _mm256_set1_ps(a); }
static inline v_f v_add(v_f a, v_f b) { return _mm256_add_ps(a, b); }
static inline v_f v_sub(v_f a, v_f b) { return _mm256_sub_ps(a, b); }
static inline v_f v_mul(v_f a, v_f b) { return _mm256_mul_ps(a, b); }
static inline v_f v_div(v_f a, v_f b) { return _mm256_div_ps(a, b); }
static inline v_f v_fma(v_f a, v_f b, v_f c) { return _mm256_fmadd_ps(a, b, c); }
static inline v_f v_fnma(v_f a, v_f b, v_f c) { return _mm256_fnmadd_ps(a, b, c); }
/* The second operand if either is NaN. */
static inline v_f v_min(v_f a, v_f b) { return _mm256_min_ps(a, b); }
static inline v_f v_max(v_f a, v_f b) { return _mm256_max_ps(a, b); }
static inline v_f v_round(v_f a) { return _mm256_round_ps(a, 8); /* nearest, no exceptions */ }

static inline v_f v_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline void v_store_f16(uint16_t *p, v_f v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, 0));
}
static inline v_f v_load_bf16(const uint16_t *p) {
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
static inline v_f v_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* Bytes 8i .. 8i + 7, unsigned, of the 16 that both halves of q hold. */
static inline v_f v_bytes(__m256i q, int i) {
    const int zero = (int)0x80808000u; /* the byte picked, then three zeros */
    __m256i pick = _mm256_setr_epi32(zero, zero + 1, zero + 2, zero + 3, zero + 4, zero + 5,
                                     zero + 6, zero + 7);
    pick = _mm256_add_epi32(pick, _mm256_set1_epi32(8 * i));
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(q, pick));
}
/* The low nibbles of 8 bytes, and 16 times the high ones: masking is cheaper than shifting. */
static inline void v_nibbles(const uint8_t *p, v_f *lo, v_f *hi_16) {
    __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    *lo = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0x0f)));
    *hi_16 = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xf0)));
}

/* 4 floats, each twice; the two of each pair swapped; with the sign of the first of each turned. */
static inline v_f v_twice(const float *p) {
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                    _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
static inline v_f v_swap(v_f v) { return _mm256_permute_ps(v, 0xb1); }
static inline v_f v_turn(v_f v) {
    return _mm256_xor_ps(v, _mm256_setr_ps(-0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f, 0));
}

/* 8 doubles, plus 8 floats, or their squares: exact in double, so the fma rounds as a sum does. */
typedef struct {
    __m256d lo, hi;
} v_d;
static inline v_d v_zeros(void) { return (v_d){_mm256_setzero_pd(), _mm256_setzero_pd()}; }
static inline v_d v_add_8(v_d acc, const float *p) {
    acc.lo = _mm256_add_pd(acc.lo, _mm256_cvtps_pd(_mm_loadu_ps(p)));
    acc.hi = _mm256_add_pd(acc.hi, _mm256_cvtps_pd(_mm_loadu_ps(p + 4)));
    return acc;
}
static inline v_d v_add_sq_8(v_d acc, const float *p) {
    __m256d lo = _mm256_cvtps_pd(_mm_loadu_ps(p)), hi = _mm256_cvtps_pd(_mm_loadu_ps(p + 4));
    acc.lo = _mm256_fmadd_pd(lo, lo, acc.lo);
    acc.hi = _mm256_fmadd_pd(hi, hi, acc.hi);
    return acc;
}
static inline void v_lanes(double *lanes, v_d acc) {
    _mm256_storeu_pd(lanes, acc.lo);
    _mm256_storeu_pd(lanes + 4, acc.hi);
}

static inline float v_sum(v_f v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float v_largest(v_f v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline v_f v_if_equal(v_f a, v_f b, v_f x, v_f otherwise) {
    return _mm256_blendv_ps(otherwise, x, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

/* Eight elements of a row: a vector has one. */
static inline v_f v_eight(const float *p) { return v_load(p); }
static inline v_f v_eights(const float *a, const float *b) {
    (void)b;
    return v_load(a);
}
static inline v_f v_eights_f16(const uint16_t *a, const uint16_t *b) {
    (void)b;
    return v_load_f16(a);
}
static inline v_f v_eights_bf16(const uint16_t *a, const uint16_t *b) {
    (void)b;
    return v_load_bf16(a);
}
static inline v_f v_eights_i8(const int8_t *a, const int8_t *b) {
    (void)b;
    return v_load_i8(a);
}
static inline v_f v_eights_set1(float a, float b) {
    (void)b;
    return v_set1(a);
}

/* Eight vectors of partial sums, each of a row, to a sum in each lane: in 128 bits, then of the two
 * halves. */
static inline v_f v_sum_twos(v_f a, v_f b) {
    return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}
static inline v_f v_sum_fours(v_f a, v_f b) {
    const __m256d c = _mm256_castps_pd(a), d = _mm256_castps_pd(b);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(c, d)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
}
static inline v_f v_sum_eights(v_f a, v_f b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* p * 2^n for integer n in [-151, 129], in two steps so that each factor is a normal number. */
static inline v_f v_ldexp(v_f p, v_f n) {
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1),
            bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(i, half);
    half = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    rest = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(half)), _mm256_castsi256_ps(rest));
}

/* v_ldexp is 8 instructions. Where the result is a normal number, its exponent is that of p and n, which
 * the low bits of t = n + 1.5 * 2^23 are: the same bits by two. */
enum { V_LDEXP_COSTS = 1 };
static inline bool v_all_within(v_f a, float b) { /* of the absolute values; false for NaN */
    const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
    return _mm256_movemask_ps(_mm256_cmp_ps(size, _mm256_set1_ps(b), _CMP_LE_OQ)) == 0xff;
}
static inline v_f v_ldexp_near(v_f p, v_f t) {
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}
