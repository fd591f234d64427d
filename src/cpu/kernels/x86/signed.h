/* A part of kernels.h: types whose weights are looked up, or have three bits or fewer. They become
 * signed bytes with a scale for each 16, and are multiplied by activations in digits as these.
 *
 * One form for all keeps the formats short: 32 weights in their own order are a vector (signed_32),
 * the 16 scales of 256 weights two (scales_256). Types of fewer than 256 are taken 256 weights at a
 * time; the rest of a row is copied, with zeros after it, whose scales meet activations of 0.
 *
 * With VNNI bytes meet three digits as int24.h has them (few.h), an offset making them unsigned. Where 32
 * weights have one scale in nibbles or points of 4 they meet two, which is twice as fast (eights.h), and so
 * do Q2_K, Q3_K, TQ1_0 and TQ2_0, of which a lane is a piece (pieces.h).
 * Without VNNI these have lanes for pieces as well (halves.h), MXFP4 goes with Q5_0, and the others meet
 * integers of 16 bits, IQ4 eight blocks at a time (digits_iq4).
 *
 * Invariant: as in int24.h. */

/* ---- weights ---- */

/* 32 numbers of levels to these. */
INLINE __m256i levels_of(enum sheaf_type type, __m256i q) {
    static const int8_t iq4[16] = SHEAF__IQ4_LEVELS, fp4[16] = SHEAF__FP4_LEVELS;
    const bool of_fp4 = type == SHEAF_TYPE_MXFP4 || type == SHEAF_TYPE_NVFP4;
    return _mm256_shuffle_epi8(twice128(of_fp4 ? fp4 : iq4), q);
}

/* Ternary digit n (constant) of 32 bytes of TQ1_0, less 1: the upper part of 3 times what is left of it. */
INLINE __m256i ternary(__m256i x, int n) {
    const __m256i by = _mm256_set1_epi16(n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81);
    const __m256i even = _mm256_mullo_epi16(x, by);
    const __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(x, 8), by);
    x = _mm256_blendv_epi8(even, _mm256_slli_epi16(odd, 8), _mm256_set1_epi16((int16_t)0xff00));
    const __m256i one = _mm256_set1_epi8(86), two = _mm256_set1_epi8((char)171); /* 256 / 3 .. */
    const __m256i least = _mm256_add_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(x, one), x),
                                          _mm256_cmpeq_epi8(_mm256_max_epu8(x, two), x));
    return _mm256_sub_epi8(_mm256_set1_epi8(-1), least);
}
/* The same of 16 bytes: digit a, then b. */
INLINE __m256i ternary_16(__m128i x, __m128i y, int a, int b) {
    const __m256i lo = ternary(_mm256_castsi128_si256(x), a);
    return _mm256_inserti128_si256(
        lo, _mm256_castsi256_si128(ternary(_mm256_castsi128_si256(y), b)), 1);
}
INLINE __m256i tq1_0_32(const struct sheaf__block_tq1_0 *b, int s) {
    const __m128i last = load128(b->qs + 32);
    if (s < 5) return ternary(load256(b->qs), s);
    if (s < 7) return ternary_16(last, last, 2 * s - 10, 2 * s - 9);
    int32_t four;
    memcpy(&four, b->qh, sizeof four);
    __m256i x = _mm256_set_m128i(_mm_set1_epi32(four), last);
    /* digit 4 of `last`; 0, 1, 2, 3 of the four bytes */
    const __m256i by = _mm256_setr_epi16(81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 3, 3, 9, 9, 27, 27);
    const __m256i even = _mm256_mullo_epi16(x, by);
    const __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(x, 8), by);
    x = _mm256_blendv_epi8(even, _mm256_slli_epi16(odd, 8), _mm256_set1_epi16((int16_t)0xff00));
    return ternary(x, 0);
}

/* 8 bytes to 32 numbers of 2 bits. */
INLINE __m256i quarters_of(const uint8_t *p) {
    const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    const __m256i y = _mm256_or_si256(x, _mm256_slli_epi32(x, 6));
    return _mm256_and_si256(_mm256_or_si256(y, _mm256_slli_epi32(y, 12)), _mm256_set1_epi8(3));
}

/* Weights 32 s .. of the 256 at w; signs: of signs_256, for types of which they are packed. */
INLINE __m256i signed_32(enum sheaf_type type, const char *w, int s, const uint32_t *signs) {
    switch ((int)type) {
    case SHEAF_TYPE_IQ4_NL:
        return levels_of(type,
                         nibbles(((const struct sheaf__block_iq4_nl *)(const void *)w)[s].qs));
    case SHEAF_TYPE_MXFP4:
        return levels_of(type, nibbles(((const struct sheaf__block_mxfp4 *)(const void *)w)[s].qs));
    case SHEAF_TYPE_IQ4_XS:
        return levels_of(
            type, nibbles(((const struct sheaf__block_iq4_xs *)(const void *)w)->qs + 16 * s));
    case SHEAF_TYPE_NVFP4: { /* 8 bytes of 16 weights */
        const struct sheaf__block_nvfp4 *b = (const struct sheaf__block_nvfp4 *)(const void *)w;
        const __m256i q = _mm256_permute4x64_epi64(
            _mm256_castsi128_si256(load128(b[s / 2].qs + s % 2 * 16)), 0x50);
        return levels_of(type, and15(_mm256_srlv_epi64(q, _mm256_setr_epi64x(0, 4, 0, 4))));
    }
    case SHEAF_TYPE_Q2_K: {
        const struct sheaf__block_q2_k *b = (const void *)w;
        return _mm256_and_si256(_mm256_srli_epi16(load256(b->qs + s / 4 * 32), s % 4 * 2),
                                _mm256_set1_epi8(3));
    }
    case SHEAF_TYPE_Q3_K: {
        const struct sheaf__block_q3_k *b = (const void *)w;
        const __m256i bit2 = _mm256_set1_epi8(4), h = load256(b->hmask);
        __m256i q = _mm256_and_si256(_mm256_srli_epi16(load256(b->qs + s / 4 * 32), s % 4 * 2),
                                     _mm256_set1_epi8(3));
        q = _mm256_or_si256(
            q, _mm256_and_si256(s < 2 ? _mm256_slli_epi16(h, 2 - s) : _mm256_srli_epi16(h, s - 2),
                                bit2));
        return _mm256_sub_epi8(q, bit2);
    }
    case SHEAF_TYPE_IQ2_XXS: {
        const uint8_t *q = ((const struct sheaf__block_iq2_xxs *)(const void *)w)->qs + 8 * s;
        return with_signs(points_4(iq2_xxs_grid, q[0], q[1], q[2], q[3]), &signs[s]);
    }
    case SHEAF_TYPE_IQ2_XS: {
        uint16_t q[4];
        memcpy(q, ((const struct sheaf__block_iq2_xs *)(const void *)w)->qs + 8 * s, sizeof q);
        return with_signs(points_4(iq2_xs_grid, q[0] & 511u, q[1] & 511u, q[2] & 511u, q[3] & 511u),
                          &signs[s]);
    }
    case SHEAF_TYPE_IQ2_S: {
        const struct sheaf__block_iq2_s *b = (const void *)w;
        const uint8_t *q = b->qs + 4 * s;
        const unsigned h = b->qh[s];
        return with_signs(points_4(iq2_s_grid, q[0] | (h << 8 & 0x300), q[1] | (h << 6 & 0x300),
                                   q[2] | (h << 4 & 0x300), q[3] | (h << 2 & 0x300)),
                          b->signs + 4 * s);
    }
    case SHEAF_TYPE_IQ3_XXS:
        return with_signs(
            points_8(iq3_xxs_grid,
                     ((const struct sheaf__block_iq3_xxs *)(const void *)w)->qs + 8 * s, 0),
            &signs[s]);
    case SHEAF_TYPE_TQ1_0:
        return tq1_0_32((const void *)w, s);
    case SHEAF_TYPE_TQ2_0: {
        const struct sheaf__block_tq2_0 *b = (const void *)w;
        const __m256i q = _mm256_srli_epi16(load256(b->qs + s / 4 * 32), s % 4 * 2);
        return _mm256_sub_epi8(_mm256_and_si256(q, _mm256_set1_epi8(3)), _mm256_set1_epi8(1));
    }
    case SHEAF_TYPE_Q1_0: {
        const struct sheaf__block_q1_0 *b = (const struct sheaf__block_q1_0 *)(const void *)w;
        return spread_bits(b[s / 4].qs + s % 4 * 4, 1, -1);
    }
    case SHEAF_TYPE_Q2_0: {
        const struct sheaf__block_q2_0 *b = (const struct sheaf__block_q2_0 *)(const void *)w;
        return _mm256_sub_epi8(quarters_of(b[s / 2].qs + s % 2 * 8), _mm256_set1_epi8(1));
    }
    case SHEAF_TYPE_IQ1_S: {
        const struct sheaf__block_iq1_s *b = (const void *)w;
        const uint8_t *q = b->qs + 4 * s;
        const unsigned h = b->qh[2 * s] | (unsigned)b->qh[2 * s + 1] << 8;
        const __m256i x = points_4(iq1_grid, q[0] | (h << 8 & 0x700), q[1] | (h << 5 & 0x700),
                                   q[2] | (h << 2 & 0x700), q[3] | (h >> 1 & 0x700));
        return _mm256_add_epi8(x, _mm256_set1_epi8(h >> 15 ? -1 : 1));
    }
    case SHEAF_TYPE_IQ1_M: {
        const struct sheaf__block_iq1_m *b = (const void *)w;
        const uint8_t *q = b->qs + 4 * s;
        const unsigned h = b->qh[2 * s] | (unsigned)b->qh[2 * s + 1] << 8;
        const __m256i x = points_4(iq1_grid, q[0] | (h << 8 & 0x700), q[1] | (h << 4 & 0x700),
                                   q[2] | (h & 0x700), q[3] | (h >> 4 & 0x700));
        const __m256i bit = _mm256_setr_epi64x(8, 0x80, 0x800, 0x8000);
        const __m256i plus = _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(h), bit),
                                                _mm256_setzero_si256());
        return _mm256_add_epi8(x, _mm256_or_si256(_mm256_andnot_si256(plus, _mm256_set1_epi8(-1)),
                                                  _mm256_and_si256(plus, _mm256_set1_epi8(1))));
    }
    default: {
        const struct sheaf__block_iq3_s *b = (const void *)w;
        return with_signs(points_8(iq3_s_grid, b->qs + 8 * s, b->qh[s]), b->signs + 4 * s);
    }
    }
}

/* ---- scales ---- */

struct scales {
    __m256 lo, hi;
};

INLINE struct scales scaled(__m128i bytes, float d) {
    const __m256 by = _mm256_set1_ps(d);
    const __m256i lo = _mm256_cvtepi8_epi32(bytes);
    const __m256i hi = _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes));
    return (struct scales){_mm256_mul_ps(_mm256_cvtepi32_ps(lo), by),
                           _mm256_mul_ps(_mm256_cvtepi32_ps(hi), by)};
}
INLINE struct scales all_of(float d) {
    return (struct scales){_mm256_set1_ps(d), _mm256_set1_ps(d)};
}
INLINE struct scales each_twice(__m256 x) {
    return (struct scales){_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
                           _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
/* The 16 nibbles of 8 bytes, the low one of each first. */
INLINE __m128i nibbles_8(const uint8_t *p) {
    const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)p);
    const __m128i low = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(x, low), _mm_and_si128(_mm_srli_epi16(x, 4), low));
}
INLINE __m128i odd_of(__m128i x) { /* 2 x + 1 */
    return _mm_add_epi8(_mm_add_epi8(x, x), _mm_set1_epi8(1));
}
/* The top nibbles of 8 dwords, as 2 x + 1, each twice. */
INLINE __m128i top_nibbles(__m256i x) {
    x = _mm256_srli_epi32(x, 28);
    const __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i b = _mm_packus_epi16(w, w);
    return odd_of(_mm_unpacklo_epi8(b, b));
}

INLINE __m128i q3_k_scales(const uint8_t *scales) {
    uint32_t high;
    memcpy(&high, scales + 8, sizeof high);
    const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)scales);
    const __m128i low = _mm_set1_epi8(15);
    const __m128i l =
        _mm_unpacklo_epi64(_mm_and_si128(x, low), _mm_and_si128(_mm_srli_epi16(x, 4), low));
    __m128i h = _mm_srlv_epi32(_mm_set1_epi32((int)high), _mm_setr_epi32(0, 2, 4, 6));
    h = _mm_slli_epi16(_mm_and_si128(h, _mm_set1_epi8(3)), 4);
    return _mm_sub_epi8(_mm_or_si128(l, h), _mm_set1_epi8(32));
}

/* The 8 scales of IQ4_XS, before d: of scale i bits 4 i of scales_l, and above them bits 2 i of scales_h, which
 * lies behind the 16 bits of d. */
INLINE __m256i iq4_xs_scales(const struct sheaf__block_iq4_xs *b) {
    int32_t low, first;
    memcpy(&low, b->scales_l, sizeof low);
    memcpy(&first, b, sizeof first);
    const __m256i at = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i to_bit4 = _mm256_setr_epi32(12, 14, 16, 18, 20, 22, 24, 26);
    const __m256i l =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(low), at), _mm256_set1_epi32(15));
    const __m256i h = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(first), to_bit4),
                                       _mm256_set1_epi32(0x30));
    return _mm256_sub_epi32(_mm256_or_si256(l, h), _mm256_set1_epi32(32));
}

/* d of 8 blocks of IQ4_NL. */
INLINE __m256 iq4_nl_scales(const struct sheaf__block_iq4_nl *b) {
    uint16_t d[8];
    UNROLL_12 for (int i = 0; i < 8; i++) d[i] = b[i].d;
    return _mm256_cvtph_ps(load128(d));
}

/* 8 scales of NVFP4: the bits of E4M3 as those of a float are 2^-119 times it, half of it; also
 * where both are subnormal. */
INLINE __m256 nvfp4_scales(__m128i d) {
    const __m256i x = _mm256_cvtepu8_epi32(d);
    const __m256i bits = _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x7f)), 20);
    const __m256i none = _mm256_cmpeq_epi32(x, _mm256_set1_epi32(0x7f));
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_andnot_si256(none, bits)),
                         _mm256_set1_ps(0x1p119f));
}

/* 8 scales of 4 bits, 2 x + 1 times d. */
INLINE __m256 odd_scales(__m256i x, float d) {
    x = _mm256_add_epi32(_mm256_slli_epi32(x, 1), _mm256_set1_epi32(1));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(d));
}

/* The scales of each 32 of 256 weights, of IQ4, IQ3 and MXFP4. */
INLINE __m256 scales_32(enum sheaf_type type, const char *w) {
    if (type == SHEAF_TYPE_IQ4_NL) return iq4_nl_scales((const void *)w);
    if (type == SHEAF_TYPE_MXFP4) return mxfp4_scales((const void *)w);
    if (type == SHEAF_TYPE_IQ3_XXS) {
        const struct sheaf__block_iq3_xxs *b = (const void *)w;
        return odd_scales(_mm256_srli_epi32(load256(b->signs_scales), 28), f16(b->d) * 0.25f);
    }
    if (type == SHEAF_TYPE_IQ3_S) {
        const struct sheaf__block_iq3_s *b = (const void *)w;
        const __m256i at = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        int32_t all;
        memcpy(&all, b->scales, sizeof all);
        return odd_scales(
            _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(all), at), _mm256_set1_epi32(15)),
            f16(b->d));
    }
    const struct sheaf__block_iq4_xs *b = (const void *)w;
    return _mm256_mul_ps(_mm256_cvtepi32_ps(iq4_xs_scales(b)), _mm256_set1_ps(f16(b->d)));
}

/* The scales of each 16 of 256 weights. */
INLINE struct scales scales_256(enum sheaf_type type, const char *w) {
    switch ((int)type) {
    case SHEAF_TYPE_NVFP4: {
        const struct sheaf__block_nvfp4 *b = (const void *)w;
        uint32_t d[4];
        UNROLL for (int i = 0; i < 4; i++) memcpy(&d[i], b[i].d, sizeof d[i]);
        const __m128i x = _mm_setr_epi32((int)d[0], (int)d[1], (int)d[2], (int)d[3]);
        return (struct scales){nvfp4_scales(x), nvfp4_scales(_mm_unpackhi_epi64(x, x))};
    }
    case SHEAF_TYPE_Q2_K: {
        const struct sheaf__block_q2_k *b = (const void *)w;
        return scaled(_mm_and_si128(load128(b->scales), _mm_set1_epi8(15)), f16(b->d));
    }
    case SHEAF_TYPE_Q3_K: {
        const struct sheaf__block_q3_k *b = (const void *)w;
        return scaled(q3_k_scales(b->scales), f16(b->d));
    }
    case SHEAF_TYPE_IQ2_XXS: {
        const struct sheaf__block_iq2_xxs *b = (const void *)w;
        return scaled(top_nibbles(iq2_xxs_rests(b->qs)), f16(b->d) * 0.125f);
    }
    case SHEAF_TYPE_IQ2_XS: {
        const struct sheaf__block_iq2_xs *b = (const void *)w;
        return scaled(odd_of(nibbles_8(b->scales)), f16(b->d) * 0.125f);
    }
    case SHEAF_TYPE_IQ2_S: {
        const struct sheaf__block_iq2_s *b = (const void *)w;
        return scaled(odd_of(nibbles_8(b->scales)), f16(b->d) * 0.125f);
    }
    case SHEAF_TYPE_TQ1_0:
        return all_of(f16(((const struct sheaf__block_tq1_0 *)(const void *)w)->d));
    case SHEAF_TYPE_TQ2_0:
        return all_of(f16(((const struct sheaf__block_tq2_0 *)(const void *)w)->d));
    case SHEAF_TYPE_Q1_0: {
        const struct sheaf__block_q1_0 *b = (const void *)w;
        return (struct scales){_mm256_set1_ps(f16(b[0].d)), _mm256_set1_ps(f16(b[1].d))};
    }
    case SHEAF_TYPE_Q2_0: {
        const struct sheaf__block_q2_0 *b = (const void *)w;
        return (struct scales){_mm256_set_m128(_mm_set1_ps(f16(b[1].d)), _mm_set1_ps(f16(b[0].d))),
                               _mm256_set_m128(_mm_set1_ps(f16(b[3].d)), _mm_set1_ps(f16(b[2].d)))};
    }
    case SHEAF_TYPE_IQ1_S: {
        const struct sheaf__block_iq1_s *b = (const void *)w;
        const __m128i h = _mm_and_si128(_mm_srli_epi16(load128(b->qh), 12), _mm_set1_epi16(7));
        const __m128i x = _mm_packus_epi16(h, h);
        return scaled(odd_of(_mm_unpacklo_epi8(x, x)), f16(b->d) * 0.125f);
    }
    case SHEAF_TYPE_IQ1_M: {
        const struct sheaf__block_iq1_m *b = (const void *)w;
        uint64_t all, s[2];
        memcpy(&all, b->scales, sizeof all);
        for (int i = 0; i < 2; i++, all >>= 32) /* 3 bits of 12 in each 16 to a byte */
            s[i] = (all & 7) | (all & 0x38) << 5 | (all & 0x1c0) << 10 | (all & 0xe00) << 15 |
                   (all & 0x70000) << 16 | (all & 0x380000) << 21 | (all & 0x1c00000) << 26 |
                   (all & 0xe000000) << 31;
        return scaled(odd_of(_mm_set_epi64x((int64_t)s[1], (int64_t)s[0])),
                      f16(sheaf__iq1_m_d(b->scales)) * 0.125f);
    }
    default:
        return each_twice(scales_32(type, w));
    }
}

/* Q2_K alone: what is taken off each weight. */
INLINE struct scales mins_256(const char *w) {
    const struct sheaf__block_q2_k *b = (const void *)w;
    const __m128i m = _mm_and_si128(_mm_srli_epi16(load128(b->scales), 4), _mm_set1_epi8(15));
    return scaled(m, f16(b->dmin));
}

INLINE bool signs_are_packed(enum sheaf_type type) {
    return type == SHEAF_TYPE_IQ2_XXS || type == SHEAF_TYPE_IQ2_XS || type == SHEAF_TYPE_IQ3_XXS;
}

/* ---- rows ---- */

#if defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/pieces.h"

/* Bits of a weight with its offset; the offset. */
INLINE int bits_of_signed(enum sheaf_type type) {
    switch ((int)type) {
    case SHEAF_TYPE_Q1_0:
    case SHEAF_TYPE_Q2_0:
        return 2;
    case SHEAF_TYPE_NVFP4:
    case SHEAF_TYPE_IQ1_S:
    case SHEAF_TYPE_IQ1_M:
        return 5;
    default:
        return 7;
    }
}

INLINE __m512 joined(struct scales s) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(s.lo), s.hi, 1);
}

#include "cpu/kernels/x86/eights.h"
#include "cpu/kernels/x86/few.h"
#else
/* One scale for all 32 weights. */
INLINE bool by_32(enum sheaf_type type) {
    return type == SHEAF_TYPE_IQ2_XXS || type == SHEAF_TYPE_IQ3_XXS || type == SHEAF_TYPE_IQ3_S ||
           type == SHEAF_TYPE_IQ1_S || type == SHEAF_TYPE_Q1_0 || type == SHEAF_TYPE_Q2_0;
}

INLINE void digits_signed(enum sheaf_type type, int64_t k, const char *w, struct fetch fetch,
                          const struct sheaf__act_digits *const *act, int C, float *sum) {
    __m256 acc[TILE][2];
    UNROLL for (int c = 0; c < C; c++) acc[c][0] = acc[c][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < k; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, k - i, sheaf__digits_at_end(k), rest);
        const struct scales s = scales_256(type, p);
        float t[TILE][16];
        uint32_t signs[8];
        if (signs_are_packed(type)) signs_256(type, p, signs);
        fetch_lines(fetch, w, size_256(type));
        UNROLL for (int c = 0; c < C; c++) {
            const struct sheaf__act_digits *y = &act[c][i / SHEAF__QK_K];
            const struct scales dx = each_twice(_mm256_load_ps(y->d));
            _mm256_storeu_ps(t[c], _mm256_mul_ps(s.lo, dx.lo));
            _mm256_storeu_ps(t[c] + 8, _mm256_mul_ps(s.hi, dx.hi));
        }
        UNROLL_12 for (int j = 0; j < 8; j++) {
            const __m256i q = signed_32(type, p, j, signs);
            const __m256i q0 = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
            const __m256i q1 = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
            UNROLL for (int c = 0; c < C; c++) {
                const int16_t *x = act[c][i / SHEAF__QK_K].word[0] + 32 * j;
                const __m256i a = _mm256_madd_epi16(q0, load256(x));
                const __m256i b = _mm256_madd_epi16(q1, load256(x + 16));
                const __m256 first = _mm256_set1_ps(t[c][2 * j]);
                if (by_32(type)) {
                    const __m256 dot = _mm256_cvtepi32_ps(_mm256_add_epi32(a, b));
                    acc[c][j % 2] = _mm256_fmadd_ps(dot, first, acc[c][j % 2]);
                    continue;
                }
                acc[c][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), first, acc[c][0]);
                acc[c][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(b), _mm256_set1_ps(t[c][2 * j + 1]),
                                            acc[c][1]);
            }
        }
    }
    UNROLL for (int c = 0; c < C; c++) sum[c] = v_sum(_mm256_add_ps(acc[c][0], acc[c][1]));
}

/* Lanes of the products of eight vectors of signed bytes, with their offset, with block b of each column. */
INLINE void dots_iq4(const __m256i *q, enum sheaf__act act, const void *const *cols, int C,
                     int64_t b, __m256 *to) {
#if defined(KERNELS_VNNI_256)
    UNROLL for (int c = 0; c < C; c++) to[c] =
        dot_lanes(8, 8, q, act, part_of_column(act, cols[c], b), 0);
#else
    __m256i dot[TILE];
    UNROLL for (int c = 0; c < C; c++) dot[c] = _mm256_setzero_si256();
    UNROLL_8 for (int v = 0; v < 8; v++) {
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(q[v], 8), 8);
        const __m256i odd = _mm256_srai_epi16(q[v], 8);
        UNROLL for (int c = 0; c < C; c++) {
            const void *y = part_of_column(act, cols[c], b);
            if (act == SHEAF__ACT_BYTES) {
                dot[c] = dot_signed(dot[c], q[v], digit_of(act, y, v, 0));
                continue;
            }
            const int16_t *x = ((const struct sheaf__act_digits *)y)->word[0] + 32 * v;
            dot[c] = madd_acc(madd_acc(dot[c], even, load256(x)), odd, load256(x + 16));
        }
    }
    UNROLL for (int c = 0; c < C; c++) to[c] = _mm256_cvtepi32_ps(dot[c]);
#endif
}

/* IQ4_NL and IQ4_XS: eight blocks, a lane each, by integers of 16 bits, with VNNI by two digits, or rounded. */
INLINE void digits_iq4(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                       struct fetch fetch, const void *const *cols, int C, const v_f *from, v_f *to,
                       float *sum) {
    static const int8_t iq4[16] = SHEAF__IQ4_LEVELS;
    const bool xs = type == SHEAF_TYPE_IQ4_XS;
    const size_t block = xs ? SHEAF__QK / 2 : sizeof(struct sheaf__block_iq4_nl);
    const size_t qs =
        xs ? offsetof(struct sheaf__block_iq4_xs, qs) : offsetof(struct sheaf__block_iq4_nl, qs);
    const __m256i levels = _mm256_add_epi8(twice128(iq4), _mm256_set1_epi8((char)SIGNED_OFFSET));
    __m256 acc[TILE], sums[TILE];
    take_sums(from, C, acc, sums);
    for (int64_t i = 0, b = 0; i < k; i += SHEAF__QK_K, b++, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, k - i, from || sheaf__digits_at_end(k), rest);
        const __m256 d = xs ? scales_32(type, p) : halves_8(p, block);
        __m256i q[8];
        __m256 dot[TILE];
        fetch_lines(fetch, w, size_256(type));
        nibbles_oct(p + qs, block, q);
        UNROLL_8 for (int v = 0; v < 8; v++) q[v] = _mm256_shuffle_epi8(levels, q[v]);
        dots_iq4(q, act, cols, C, b, dot);
        UNROLL for (int c = 0; c < C; c++) {
            const void *y = part_of_column(act, cols[c], b);
            acc[c] = _mm256_fmadd_ps(dot[c], _mm256_mul_ps(d, d_of(act, y)), acc[c]);
            sums[c] = _mm256_fmadd_ps(d, sums32_of(act, y), sums[c]);
        }
    }
    if (keep_sums(to, C, acc, sums)) return;
    UNROLL for (int c = 0; c < C; c++) sum[c] =
        v_sum(_mm256_fmadd_ps(sums[c], _mm256_set1_ps(-(float)SIGNED_OFFSET), acc[c]));
}

#include "cpu/kernels/x86/halves.h"

#include "cpu/kernels/x86/rows_of_lanes.h"
#endif

/* ---- panels ---- */

INLINE void floats_signed(enum sheaf_type type, const void *src, float *y, int64_t n) {
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, n - i, false, rest);
        const struct scales s = scales_256(type, p);
        const struct scales m = type == SHEAF_TYPE_Q2_K ? mins_256(p) : s;
        float scale[16], min[16];
        uint32_t signs[8];
        int8_t q[32];
        _mm256_storeu_ps(scale, s.lo);
        _mm256_storeu_ps(scale + 8, s.hi);
        _mm256_storeu_ps(min, m.lo);
        _mm256_storeu_ps(min + 8, m.hi);
        if (signs_are_packed(type)) signs_256(type, p, signs);
        UNROLL_12 for (int j = 0; j < 8; j++) {
            if (i + 32 * j >= n) break;
            _mm256_storeu_si256((__m256i *)q, signed_32(type, p, j, signs));
            UNROLL for (int v = 0; v < PER_32; v++) {
                const int at = 2 * j + v * VW / 16;
                v_f x = v_mul(v_load_i8(q + v * VW), v_set1(scale[at]));
                if (type == SHEAF_TYPE_Q2_K) x = v_sub(x, v_set1(min[at]));
                v_store(y + i + 32 * j + v * VW, x);
            }
        }
    }
}

INLINE void blocks_signed(enum sheaf_type type, const void *src, struct panel_row *to, int64_t n) {
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, n - i, false, rest);
        const struct scales s = scales_256(type, p);
        const bool mins = type == SHEAF_TYPE_Q2_K;
        const struct scales m = mins ? mins_256(p) : s;
        const __m256 zero = _mm256_setzero_ps();
        float scale[16], min[16];
        uint32_t signs[8];
        _mm256_storeu_ps(scale, s.lo);
        _mm256_storeu_ps(scale + 8, s.hi);
        _mm256_storeu_ps(min, _mm256_sub_ps(zero, m.lo));
        _mm256_storeu_ps(min + 8, _mm256_sub_ps(zero, m.hi));
        if (signs_are_packed(type)) signs_256(type, p, signs);
        UNROLL_12 for (int j = 0; j < 8; j++) {
            if (i + 32 * j >= n) break;
            panel_block(type, signed_32(type, p, j, signs), scale + 2 * j,
                        mins ? min + 2 * j : NULL, to + i / PANEL_ROW_UNIT, j);
        }
    }
}

/* ---- the functions of the table ---- */

/* Types with one scale for 32 weights, and for 16: X for each; and entries of a table, of types whose
 * integers have at most 5 bits, and 8 (panel_bits). */
#define SIGNED_BY_32(X) SIGNED_IN_LANES_BY_32(X) SIGNED_IN_ORDER_BY_32(X)
#define SIGNED_BY_16(X) SIGNED_IN_LANES_BY_16(X) SIGNED_IN_ORDER_BY_16(X)
/* Those that tables of 32 bytes unpack to lanes of their own (digits_row), and in their order (digits_signed) */
#define SIGNED_IN_LANES_BY_32(X) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(TQ1_0) X(TQ2_0)
#define SIGNED_IN_LANES_BY_16(X) X(Q2_K) X(Q3_K)
#define SIGNED_IN_ORDER_BY_32(X) X(IQ2_XXS) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(Q1_0) X(Q2_0)
#define SIGNED_IN_ORDER_BY_16(X) X(NVFP4) X(IQ2_XS) X(IQ2_S) X(IQ1_M)
#define ENTRIES_OF_5_BITS(FN)                                                                      \
    [SHEAF_TYPE_MXFP4] = FN##_MXFP4, [SHEAF_TYPE_NVFP4] = FN##_NVFP4,                              \
    [SHEAF_TYPE_Q2_K] = FN##_Q2_K, [SHEAF_TYPE_Q3_K] = FN##_Q3_K, [SHEAF_TYPE_TQ1_0] = FN##_TQ1_0, \
    [SHEAF_TYPE_TQ2_0] = FN##_TQ2_0, [SHEAF_TYPE_Q1_0] = FN##_Q1_0, [SHEAF_TYPE_Q2_0] = FN##_Q2_0
#define ENTRIES_OF_8_BITS(FN)                                                                      \
    [SHEAF_TYPE_IQ4_NL] = FN##_IQ4_NL, [SHEAF_TYPE_IQ4_XS] = FN##_IQ4_XS,                          \
    [SHEAF_TYPE_IQ2_XXS] = FN##_IQ2_XXS, [SHEAF_TYPE_IQ3_XXS] = FN##_IQ3_XXS,                      \
    [SHEAF_TYPE_IQ3_S] = FN##_IQ3_S, [SHEAF_TYPE_IQ1_S] = FN##_IQ1_S,                              \
    [SHEAF_TYPE_IQ2_XS] = FN##_IQ2_XS, [SHEAF_TYPE_IQ2_S] = FN##_IQ2_S,                            \
    [SHEAF_TYPE_IQ1_M] = FN##_IQ1_M
#define ENTRIES_SIGNED(FN) ENTRIES_OF_5_BITS(FN), ENTRIES_OF_8_BITS(FN)

#define FLOATS_SIGNED(TYPE)                                                                        \
    static void floats_signed_##TYPE(const void *src, void *y, int64_t n) {                        \
        floats_signed(SHEAF_TYPE_##TYPE, src, y, n);                                               \
    }
SIGNED_BY_32(FLOATS_SIGNED)
SIGNED_BY_16(FLOATS_SIGNED)

#define BLOCKS_SIGNED(TYPE)                                                                        \
    static void blocks_signed_##TYPE(const void *src, void *to, int64_t n) {                       \
        blocks_signed(SHEAF_TYPE_##TYPE, src, to, n);                                              \
    }
SIGNED_BY_32(BLOCKS_SIGNED)
SIGNED_BY_16(BLOCKS_SIGNED)

#if defined(KERNELS_VNNI_512)
INLINE void rows_signed(enum sheaf_type type, int64_t k, const void *w, size_t w_stride, int64_t nr,
                        const void *const *act, int nc, float *const *out) {
    if (by_levels(type))
        rows_by_eights(type, SHEAF__ACT_DIGITS, k, w, w_stride, nr, act, nc, out);
    else if (by_pieces(type) && nc == 1)
        rows_by_pieces(type, SHEAF__ACT_DIGITS, k, w, w_stride, nr, act, nc, out);
    else
        rows_by_few(type, few_act(type), k, w, w_stride, nr, act, nc, out);
}
#define FEW_SIGNED(TYPE)                                                                           \
    static void few_signed_##TYPE(int64_t k, const void *w, size_t w_stride, int64_t nr,           \
                                  const void *const *act, int nc, float *const *out) {             \
        rows_by_few(SHEAF_TYPE_##TYPE, SHEAF__ACT_WORDS, k, w, w_stride, nr, act, nc, out);        \
    }
#define LEVELS(X) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(IQ3_XXS) X(IQ3_S)
LEVELS(FEW_SIGNED)
#else
/* One column, or four, of which some may be the first again: these functions are many. */
INLINE void rows_signed(enum sheaf_type type, int64_t k, const void *w, size_t w_stride, int64_t nr,
                        const void *const *act, int nc, float *const *out) {
    const size_t bytes = (size_t)k * size_256(type) / SHEAF__QK_K;
    const char *row = w;
    const struct sheaf__act_digits *col[TILE];
    float sum[TILE];
    for (int c = 0; c < TILE; c++) col[c] = act[c < nc ? c : 0];
    if (nc == 1) {
        BY_FETCH(bytes, w_stride,
                 for (int64_t r = 0; r < nr; r++, row += w_stride)
                     digits_signed(type, k, row, fetch, col, 1, out[0] + r));
        return;
    }
    const struct fetch fetch = fetch_few(sheaf__cpu_fetch, 1, bytes, w_stride);
    for (int64_t r = 0; r < nr; r++, row += w_stride) {
        digits_signed(type, k, row, fetch, col, TILE, sum);
        for (int c = 0; c < nc; c++) out[c][r] = sum[c];
    }
}
#endif
#define ROWS_SIGNED(TYPE)                                                                          \
    static void rows_signed_##TYPE(int64_t k, const void *w, size_t w_stride, int64_t nr,          \
                                   const void *const *act, int nc, float *const *out) {            \
        rows_signed(SHEAF_TYPE_##TYPE, k, w, w_stride, nr, act, nc, out);                          \
    }
SIGNED_IN_ORDER_BY_32(ROWS_SIGNED)
SIGNED_IN_ORDER_BY_16(ROWS_SIGNED)
#if !defined(KERNELS_VNNI_512)
#undef ROWS_SIGNED
#define ROWS_SIGNED(TYPE)  ROWS_OF_ACT(rows_signed_##TYPE, SHEAF_TYPE_##TYPE, SHEAF__ACT_DIGITS)
#define ROUNDED_ROWS(TYPE) ROWS_OF_ACT(rounded_##TYPE, SHEAF_TYPE_##TYPE, SHEAF__ACT_BYTES)
#endif
SIGNED_IN_LANES_BY_32(ROWS_SIGNED)
SIGNED_IN_LANES_BY_16(ROWS_SIGNED)
ROUNDED(ROUNDED_ROWS)
