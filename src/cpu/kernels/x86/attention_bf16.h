/* Attention of many queries with products of BF16 (VDPBF16PS): queries, keys, weights and values are rounded
 * to BF16, 8 bits of significand, sums are floats. Only where the user asks for rounding.
 *
 * Two elements, of a query and of a key, or two keys, of weights and of values, lie side by side in a
 * word.
 *
 * Invariant: as in attention.h. */
#include "cpu/kernels/x86/lanes.h"

/* A vector of a and one of b, rounded: a[0], b[0], a[1], ... */
INLINE __m512i side_by_side(v_f a, v_f b) {
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* n floats to BF16, in their order. y may be x. */
INLINE void round_bf16(int64_t n, const float *x, void *y) {
    uint16_t *to = y;
    for (; n >= 2 * VW; n -= 2 * VW, x += 2 * VW, to += 2 * VW)
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(v_load(x + VW), v_load(x)));
    for (; n > 0; n -= VW, x += VW, to += VW) {
        const __m256bh last = _mm512_cvtneps_pbh(n < VW ? v_load_n(x, n) : v_load(x));
        memcpy(to, &last, (size_t)(n < VW ? n : VW) * sizeof *to);
    }
}

static void pack_queries_bf16(const float *const *x, int64_t n, float *panel) {
    enum { PART = 64 };
    uint16_t rounded[LANES][PART];
    const float *pairs[LANES]; /* moved as floats, whatever they are */
    for (int c = 0; c < LANES; c++) pairs[c] = (const float *)(const void *)rounded[c];
    for (int64_t i = 0; i < n; i += PART, panel += PART / 2 * LANES) {
        const int64_t len = n - i < PART ? n - i : PART;
        for (int c = 0; c < LANES; c++) round_bf16(len, x[c] + i, rounded[c]);
        pack_columns(pairs, len / 2, LANES, panel);
    }
}

static void round_keys(int64_t n, float *x) { round_bf16(n, x, x); }

static void round_values(int64_t rows, int64_t n, float *x) {
    for (int64_t j = 0; j < rows; j += 2) {
        const float *a = x + j * n, *b = a + n;
        float *to = x + j / 2 * n;
        for (int64_t i = 0; i < n; i += VW) {
            const __mmask16 there = (__mmask16)(n - i < VW ? (1u << (n - i)) - 1 : 0xffff);
            const __m512i both = side_by_side(_mm512_maskz_loadu_ps(there, a + i),
                                              _mm512_maskz_loadu_ps(there, b + i));
            _mm512_mask_storeu_epi32(to + i, there, both);
        }
    }
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
                        float *scores, float *max, float *sum, float *shrink) {
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
    float *to = scores;
    for (int64_t j = 0; j < n; j += 2, scores += 2 * LANES, to += LANES) {
        const bool both = j + 1 < n;
        UNROLL for (int v = 0; v < vectors; v++) {
            const float *at = scores + v * VW;
            const v_f a = exp2_of_less(v_fma(v_load(at), by, off[v]));
            const v_f b = both ? exp2_of_less(v_fma(v_load(at + LANES), by, off[v])) : v_set1(0.0f);
            const v_f e = _mm512_castsi512_ps(side_by_side(a, b));
            v_store(to + v * VW, e);
            total[v] = lanes_add(true, e, both_ones, total[v]);
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) v_store(sum + v * VW, total[v]);
}
/* See `soften` of kernels.h. The sum is that of weights as they are rounded. */
static void lanes_soften_bf16(int64_t n, int lanes, float scale, const float *mask,
                              const float *slope, float *scores, float *max, float *sum,
                              float *shrink) {
    LANES_BY_VECTORS(lanes, soften_bf16, n, scale, mask, slope, scores, max, sum, shrink);
}

LANES_TILES(lanes_scores_bf16, lanes_values_bf16, true)

static void use_attention_bf16(struct sheaf__cpu_kernels *table) {
    struct sheaf__cpu_attention a = table->attention;
    a.pair = 2;
    a.pack_queries = pack_queries_bf16;
    a.round_keys = round_keys;
    a.round_values = round_values;
    a.scores = lanes_scores_bf16;
    a.soften = lanes_soften_bf16;
    a.values = lanes_values_bf16;
    table->attention_rounded = a;
}
