/* What attention of many queries in BF16 has in common, with VDPBF16PS (avx512bf16.c) and with AMX
 * (attention_amx.h): pairs, and the softmax where weights are rounded, to 8 bits of significand. */
#include "cpu/kernels/x86/lanes.h"

/* A vector of a and one of b, rounded: a[0], b[0], a[1], ... */
INLINE __m512i side_by_side(v_f a, v_f b) {
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* 2^t for t <= 0, to 9e-5 of it, less than what rounding changes; 2^0 is 1. NaN passes, and -inf gives 0. */
INLINE v_f exp2_of_less(v_f t) {
    t = v_max(v_set1(-200.0f), t);
    const v_f r =
        _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF); /* what the next lower integer leaves */
    v_f p = v_set1(0.07706820f);
    p = v_fma(p, r, v_set1(0.22764373f));
    p = v_fma(p, r, v_set1(0.69511707f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_ldexp(p, t); /* by its next lower integer */
}

/* m[v] becomes the largest of n scores times scale, and of itself. */
INLINE void lanes_max_plain(int vectors, int64_t n, float scale, const float *scores, v_f *m) {
    v_f most[LANE_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) most[v] = v_set1(-INFINITY);
    for (int64_t j = 0; j < n; j++, scores += LANES) {
        UNROLL for (int v = 0; v < vectors; v++) most[v] = v_max(v_load(scores + v * VW), most[v]);
    }
    UNROLL for (int v = 0; v < vectors; v++) m[v] = v_max(v_mul(most[v], v_set1(scale)), m[v]);
}

INLINE void soften_bf16(int vectors, int64_t n, float scale, const float *mask, const float *slope,
                        float *scores, float *weights, float *max, float *sum, float *shrink) {
    const float log2e = 1.44269504f;
    const bool plain = !mask && scale > 0.0f; /* no pass of its own multiplies the scores */
    const v_f by = v_set1(plain ? scale * log2e : log2e), ones = v_set1(1.0f);
    const v_f both_ones = _mm512_castsi512_ps(side_by_side(ones, ones));
    v_f m[LANE_VECTORS], off[LANE_VECTORS], total[LANE_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) m[v] = v_load(max + v * VW);
    if (plain) {
        lanes_max_plain(vectors, n, scale, scores, m);
    } else {
        lanes_max(vectors, n, scale, mask, slope, scores, m);
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        const v_f from = v_if_equal(m[v], v_set1(-INFINITY), v_set1(0.0f), m[v]);
        const v_f less = exp2_of_less(v_mul(v_sub(v_load(max + v * VW), from), v_set1(log2e)));
        off[v] = v_mul(from, v_set1(-log2e));
        total[v] = v_mul(v_load(sum + v * VW), less);
        v_store(max + v * VW, m[v]);
        v_store(shrink + v * VW, less);
    }
    for (int64_t j = 0; j < n; j += 2, scores += 2 * LANES, weights += LANES) {
        const bool both = j + 1 < n;
        UNROLL for (int v = 0; v < vectors; v++) {
            const float *at = scores + v * VW;
            const v_f a = exp2_of_less(v_fma(v_load(at), by, off[v]));
            const v_f b = both ? exp2_of_less(v_fma(v_load(at + LANES), by, off[v])) : v_set1(0.0f);
            const v_f e = _mm512_castsi512_ps(side_by_side(a, b));
            v_store(weights + v * VW, e);
            total[v] = lanes_add(true, e, both_ones, total[v]);
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) v_store(sum + v * VW, total[v]);
}
/* See `soften` of kernels.h. The sum is that of weights as they are rounded. */
static void lanes_soften_bf16(int64_t n, int lanes, float scale, const float *mask,
                              const float *slope, float *scores, float *weights, float *max,
                              float *sum, float *shrink) {
    LANES_BY_VECTORS(lanes, soften_bf16, n, scale, mask, slope, scores, weights, max, sum, shrink);
}
