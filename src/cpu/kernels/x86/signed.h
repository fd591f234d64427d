/* A part of table.h: types whose weights are looked up, or have three bits or fewer. They become
 * signed bytes with a scale for each 16, and are multiplied by activations in digits as these.
 *
 * One form for all keeps the formats short: 32 weights in their own order are a vector (signed_32),
 * the 16 scales of 256 weights two (scales_256). Types of fewer than 256 are taken 256 weights at a
 * time; the rest of a row is copied, with zeros after it, whose scales meet activations of 0.
 *
 * With VNNI bytes meet three digits as digits.h has them (few.h), an offset making them unsigned. Where 32
 * weights have one scale in nibbles or points of 4 they meet two, which is twice as fast (eights.h), and so
 * do Q2_K, Q3_K, TQ1_0 and TQ2_0, of which a lane is a piece (pieces.h).
 * Without VNNI these have lanes for pieces as well (halves.h), MXFP4 goes with Q5_0, and the others meet
 * integers of 16 bits, IQ4 eight blocks at a time (signed_avx2.h). What a table takes of all: signed_entries.h.
 *
 * Invariant: as in digits.h. */

/* ---- weights ---- */

/* 32 numbers of levels to these. */
INLINE __m256i levels_of(enum sheaf_type type, __m256i q) {
    const bool of_fp4 = type == SHEAF_TYPE_MXFP4 || type == SHEAF_TYPE_NVFP4;
    return _mm256_shuffle_epi8(twice128(of_fp4 ? fp4_levels : iq4_levels), q);
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
