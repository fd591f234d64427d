/* A part of kernels.h: types whose weights are looked up, or lie in three or fewer bits. They become
 * signed bytes with a scale for each 16, and are multiplied by activations in digits as these.
 *
 * One form for all keeps twelve formats short: 32 weights in their own order are a vector (bytes_32),
 * the 16 scales of 256 weights two (scales_256). Types of 32 and 64 are taken 256 weights at a time;
 * the rest of a row is copied, with zeros after it, whose scales are 0.
 *
 * With VNNI bytes meet three digits as int24.h has them, an offset making them unsigned. Without it
 * they meet integers of 16 bits: h and l of a lane sum to less than 2^31 (127 * 2 * 127.5 * 2^16),
 * so one conversion serves 16 weights.
 *
 * Grids are looked up weight by weight of a point, as general registers have it: a vector of
 * gathered loads takes as long. */

/* ---- grids, as bytes ---- */

#define COORD2(p, j, zero, one, two)                                                               \
    (uint64_t)(uint8_t)(((p) >> 2 * (j)&3) == 0   ? (zero)                                         \
                        : ((p) >> 2 * (j)&3) == 1 ? (one)                                          \
                                                  : (two))                                         \
        << 8 * (j)
#define POINT2(p)                                                                                  \
    COORD2(p, 0, 8, 25, 43) | COORD2(p, 1, 8, 25, 43) | COORD2(p, 2, 8, 25, 43) |                  \
        COORD2(p, 3, 8, 25, 43) | COORD2(p, 4, 8, 25, 43) | COORD2(p, 5, 8, 25, 43) |              \
        COORD2(p, 6, 8, 25, 43) | COORD2(p, 7, 8, 25, 43)
#define POINTS2(a, b, c, d, e, f, g, h)                                                            \
    POINT2(a), POINT2(b), POINT2(c), POINT2(d), POINT2(e), POINT2(f), POINT2(g), POINT2(h),
static const uint64_t iq2_xxs_grid[] = {SHEAF__IQ2_XXS_GRID(POINTS2)};
static const uint64_t iq2_xs_grid[] = {SHEAF__IQ2_XS_GRID(POINTS2)};
static const uint64_t iq2_s_grid[] = {SHEAF__IQ2_S_GRID(POINTS2)};

/* Levels 4, 12, .. 52, 62 and 1, 3, .. 15 */
#define LEVEL_XXS(n)        ((n) == 7 ? 62u : 8u * (n) + 4)
#define LEVEL_S(n)          (2u * (n) + 1)
#define COORD3(p, j, LEVEL) LEVEL((unsigned)((p) >> 4 * (j)&7)) << 8 * (j)
#define POINT3(p, LEVEL)                                                                           \
    COORD3(p, 0, LEVEL) | COORD3(p, 1, LEVEL) | COORD3(p, 2, LEVEL) | COORD3(p, 3, LEVEL)
#define POINTS3_XXS(a, b, c, d, e, f, g, h)                                                        \
    POINT3(a, LEVEL_XXS), POINT3(b, LEVEL_XXS), POINT3(c, LEVEL_XXS), POINT3(d, LEVEL_XXS),        \
        POINT3(e, LEVEL_XXS), POINT3(f, LEVEL_XXS), POINT3(g, LEVEL_XXS), POINT3(h, LEVEL_XXS),
#define POINTS3_S(a, b, c, d, e, f, g, h)                                                          \
    POINT3(a, LEVEL_S), POINT3(b, LEVEL_S), POINT3(c, LEVEL_S), POINT3(d, LEVEL_S),                \
        POINT3(e, LEVEL_S), POINT3(f, LEVEL_S), POINT3(g, LEVEL_S), POINT3(h, LEVEL_S),
static const uint32_t iq3_xxs_grid[] = {SHEAF__IQ3_XXS_GRID(POINTS3_XXS)};
static const uint32_t iq3_s_grid[] = {SHEAF__IQ3_S_GRID(POINTS3_S)};

/* 4 points of 8, or 8 points of 4. */
INLINE __m256i points_4(const uint64_t *grid, unsigned a, unsigned b, unsigned c, unsigned d) {
    return _mm256_set_epi64x((int64_t)grid[d], (int64_t)grid[c], (int64_t)grid[b],
                             (int64_t)grid[a]);
}
INLINE __m256i points_8(const uint32_t *grid, const uint8_t *q, unsigned high) {
#define POINT(i) (int)grid[q[i] | (high << (8 - (i)) & 256)]
    return _mm256_setr_epi32(POINT(0), POINT(1), POINT(2), POINT(3), POINT(4), POINT(5), POINT(6),
                             POINT(7));
#undef POINT
}

/* ---- signs: a bit for each weight, a dword for 32 ---- */

/* Seven bits in each byte, and the eighth that makes their number even. */
INLINE __m256i even_signs(__m256i seven) {
    __m256i odd = _mm256_xor_si256(seven, _mm256_srli_epi32(seven, 4));
    odd = _mm256_xor_si256(odd, _mm256_srli_epi32(odd, 2));
    odd = _mm256_xor_si256(odd, _mm256_srli_epi32(odd, 1));
    odd = _mm256_and_si256(odd, _mm256_set1_epi8(1));
    return _mm256_or_si256(seven, _mm256_slli_epi32(odd, 7));
}
/* 4 times 7 bits of each dword to its bytes. */
INLINE __m256i spread_sevens(__m256i x) {
    __m256i y = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
    y = _mm256_or_si256(y, _mm256_and_si256(_mm256_slli_epi32(x, 1), _mm256_set1_epi32(0x7f00)));
    y = _mm256_or_si256(y, _mm256_and_si256(_mm256_slli_epi32(x, 2), _mm256_set1_epi32(0x7f0000)));
    return _mm256_or_si256(
        y, _mm256_and_si256(_mm256_slli_epi32(x, 3), _mm256_set1_epi32(0x7f000000)));
}

/* The dwords of IQ2_XXS: points, and signs with the scale, in turn. */
INLINE __m256i iq2_xxs_rests(const uint8_t *qs) {
    const __m256 a = _mm256_loadu_ps((const float *)(const void *)qs);
    const __m256 b = _mm256_loadu_ps((const float *)(const void *)(qs + 32));
    const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    return _mm256_permute4x64_epi64(odd, 0xd8);
}

/* Signs of 256 weights, for types of which they are packed: to s[8]. */
INLINE void signs_256(enum sheaf_type type, const char *w, uint32_t *s) {
    __m256i x;
    if (type == SHEAF_TYPE_IQ2_XXS) {
        x = spread_sevens(
            iq2_xxs_rests(((const struct sheaf__block_iq2_xxs *)(const void *)w)->qs));
    } else if (type == SHEAF_TYPE_IQ2_XS) {
        const struct sheaf__block_iq2_xs *b = (const void *)w;
        x = _mm256_packus_epi16(_mm256_srli_epi16(load256(b->qs), 9),
                                _mm256_srli_epi16(load256(b->qs + 32), 9));
        x = _mm256_permute4x64_epi64(x, 0xd8);
    } else {
        x = spread_sevens(
            load256(((const struct sheaf__block_iq3_xxs *)(const void *)w)->signs_scales));
    }
    _mm256_storeu_si256((__m256i *)s, even_signs(x));
}

/* q where the bit is not set, else -q. */
INLINE __m256i with_signs(__m256i q, const void *bits) {
    const __m256i minus = spread_bits(bits, -1, 0);
    return _mm256_sub_epi8(_mm256_xor_si256(q, minus), minus);
}

/* ---- weights ---- */

/* Bytes of 256 weights. */
INLINE size_t size_256(enum sheaf_type type) {
    return type == SHEAF_TYPE_IQ4_NL    ? 8 * sizeof(struct sheaf__block_iq4_nl)
           : type == SHEAF_TYPE_MXFP4   ? 8 * sizeof(struct sheaf__block_mxfp4)
           : type == SHEAF_TYPE_NVFP4   ? 4 * sizeof(struct sheaf__block_nvfp4)
           : type == SHEAF_TYPE_IQ4_XS  ? sizeof(struct sheaf__block_iq4_xs)
           : type == SHEAF_TYPE_Q2_K    ? sizeof(struct sheaf__block_q2_k)
           : type == SHEAF_TYPE_Q3_K    ? sizeof(struct sheaf__block_q3_k)
           : type == SHEAF_TYPE_IQ2_XXS ? sizeof(struct sheaf__block_iq2_xxs)
           : type == SHEAF_TYPE_IQ2_XS  ? sizeof(struct sheaf__block_iq2_xs)
           : type == SHEAF_TYPE_IQ2_S   ? sizeof(struct sheaf__block_iq2_s)
           : type == SHEAF_TYPE_IQ3_XXS ? sizeof(struct sheaf__block_iq3_xxs)
                                        : sizeof(struct sheaf__block_iq3_s);
}

/* 32 numbers of levels to these. */
INLINE __m256i levels_of(enum sheaf_type type, __m256i q) {
    static const int8_t iq4[16] = SHEAF__IQ4_LEVELS, fp4[16] = SHEAF__FP4_LEVELS;
    const bool of_fp4 = type == SHEAF_TYPE_MXFP4 || type == SHEAF_TYPE_NVFP4;
    return _mm256_shuffle_epi8(twice128(of_fp4 ? fp4 : iq4), q);
}

/* Weights 32 s .. of the 256 at w; signs: of signs_256, for types of which they are packed. */
INLINE __m256i bytes_32(enum sheaf_type type, const char *w, int s, const uint32_t *signs) {
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

INLINE __m128i iq4_xs_scales(const struct sheaf__block_iq4_xs *b) {
    uint32_t low;
    memcpy(&low, b->scales_l, sizeof low);
    const __m256i at = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i twice = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    __m256i l =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)low), at), _mm256_set1_epi32(15));
    __m256i h = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(b->scales_h), twice),
                                 _mm256_set1_epi32(3));
    l = _mm256_or_si256(l, _mm256_slli_epi32(h, 4));
    const __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(l), _mm256_extracti128_si256(l, 1));
    const __m128i x = _mm_sub_epi8(_mm_packus_epi16(w, w), _mm_set1_epi8(32));
    return _mm_unpacklo_epi8(x, x);
}

/* d of 8 blocks of IQ4_NL. */
INLINE __m256 iq4_nl_scales(const struct sheaf__block_iq4_nl *b) {
    uint16_t d[8];
    UNROLL_12 for (int i = 0; i < 8; i++) d[i] = b[i].d;
    return _mm256_cvtph_ps(load128(d));
}

/* 2^(e - 128) of 8 blocks of MXFP4. */
INLINE __m256 mxfp4_scales(const struct sheaf__block_mxfp4 *b) {
    uint64_t e = 0;
    UNROLL_12 for (int i = 0; i < 8; i++) e |= (uint64_t)b[i].e << 8 * i;
    const __m256i x = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)e));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(x, _mm256_set1_epi32(1)), 23);
    const __m256i tiny_one = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), x);
    const __m256i is_normal = _mm256_cmpgt_epi32(x, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(tiny_one, normal, is_normal));
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

/* The scales of each 16 of 256 weights. */
INLINE struct scales scales_256(enum sheaf_type type, const char *w) {
    switch ((int)type) {
    case SHEAF_TYPE_IQ4_NL:
        return each_twice(iq4_nl_scales((const void *)w));
    case SHEAF_TYPE_MXFP4:
        return each_twice(mxfp4_scales((const void *)w));
    case SHEAF_TYPE_NVFP4: {
        const struct sheaf__block_nvfp4 *b = (const void *)w;
        uint32_t d[4];
        UNROLL for (int i = 0; i < 4; i++) memcpy(&d[i], b[i].d, sizeof d[i]);
        const __m128i x = _mm_setr_epi32((int)d[0], (int)d[1], (int)d[2], (int)d[3]);
        return (struct scales){nvfp4_scales(x), nvfp4_scales(_mm_unpackhi_epi64(x, x))};
    }
    case SHEAF_TYPE_IQ4_XS: {
        const struct sheaf__block_iq4_xs *b = (const void *)w;
        return scaled(iq4_xs_scales(b), f16(b->d));
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
    case SHEAF_TYPE_IQ3_XXS: {
        const struct sheaf__block_iq3_xxs *b = (const void *)w;
        return scaled(top_nibbles(load256(b->signs_scales)), f16(b->d) * 0.25f);
    }
    default: {
        const struct sheaf__block_iq3_s *b = (const void *)w;
        uint8_t s[8] = {0};
        memcpy(s, b->scales, sizeof b->scales);
        const __m128i x = nibbles_8(s);
        return scaled(odd_of(_mm_unpacklo_epi8(x, x)), f16(b->d));
    }
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

enum { MOST_256 = 8 * sizeof(struct sheaf__block_iq4_nl) }; /* of the types of 32 and 64 */

/* The 256 weights at w, of which `left` are there. */
INLINE const char *whole_256(enum sheaf_type type, const char *w, int64_t left, char *rest) {
    if (left >= SHEAF__QK_K) return w;
    memset(rest, 0, MOST_256);
    memcpy(rest, w, size_256(type) * (size_t)left / SHEAF__QK_K);
    return rest;
}

/* ---- rows ---- */

#if defined(KERNELS_VNNI_512)
/* Bits of a weight with its offset; the offset. */
INLINE int bits_of_bytes(enum sheaf_type type) {
    switch ((int)type) {
    case SHEAF_TYPE_Q2_K:
        return 2;
    case SHEAF_TYPE_Q3_K:
        return 3;
    case SHEAF_TYPE_MXFP4:
    case SHEAF_TYPE_NVFP4:
    case SHEAF_TYPE_IQ3_S:
        return 5;
    case SHEAF_TYPE_IQ4_NL:
    case SHEAF_TYPE_IQ4_XS:
        return 8;
    default:
        return 7;
    }
}

INLINE __m512 joined(struct scales s) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(s.lo), s.hi, 1);
}

INLINE void digits_bytes(enum sheaf_type type, int64_t k, const char *w, size_t ahead,
                         const struct sheaf__act_digits *const *act, int C, float *sum) {
    const int bits = bits_of_bytes(type);
    const int offset = type == SHEAF_TYPE_Q2_K ? 0 : 1 << (bits - 1);
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i each_4_times = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512 acc[SHEAF__TILE_COLS][2];
    UNROLL for (int c = 0; c < C; c++) acc[c][0] = acc[c][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, k - i, rest);
        const __m512 s = joined(scales_256(type, p));
        const __m512 m = type == SHEAF_TYPE_Q2_K
                             ? _mm512_sub_ps(_mm512_setzero_ps(), joined(mins_256(p)))
                             : _mm512_mul_ps(s, _mm512_set1_ps((float)-offset));
        uint32_t signs[8];
        __m512 t[SHEAF__TILE_COLS];
        if (signs_are_packed(type)) signs_256(type, p, signs);
        if (C == 1) prefetch(w + ahead, size_256(type));
        UNROLL for (int c = 0; c < C; c++) {
            const struct sheaf__act_digits *y = &act[c][i / SHEAF__QK_K];
            const __m512 dx = _mm512_castps256_ps512(_mm256_load_ps(y->d));
            t[c] = _mm512_mul_ps(s, _mm512_permutexvar_ps(twice, dx));
            acc[c][1] = _mm512_fmadd_ps(m, v_load(y->sums16), acc[c][1]);
        }
        UNROLL for (int j = 0; j < 4; j++) {
            __m512i q = _mm512_castsi256_si512(bytes_32(type, p, 2 * j, signs));
            q = _mm512_inserti64x4(q, bytes_32(type, p, 2 * j + 1, signs), 1);
            if (offset) q = _mm512_add_epi8(q, _mm512_set1_epi8((char)offset));
            const __m512i pick = _mm512_add_epi32(each_4_times, _mm512_set1_epi32(4 * j));
            UNROLL for (int c = 0; c < C; c++) {
                const struct sheaf__act_digits *y = &act[c][i / SHEAF__QK_K];
                acc[c][j % 2] = _mm512_fmadd_ps(dot_digits(bits, q, y->digit[j]),
                                                _mm512_permutexvar_ps(pick, t[c]), acc[c][j % 2]);
            }
        }
    }
    UNROLL for (int c = 0; c < C; c++) sum[c] = v_sum(_mm512_add_ps(acc[c][0], acc[c][1]));
}
#else
/* 16 weights by the integers h, and l, of a column: h * 2^16 + l. */
INLINE __m256 dot_words(__m256i q, const int16_t *h, const int16_t *l) {
    const __m256i high = _mm256_slli_epi32(_mm256_madd_epi16(q, load256(h)), 16);
    return _mm256_cvtepi32_ps(_mm256_add_epi32(high, _mm256_madd_epi16(q, load256(l))));
}

INLINE void digits_bytes(enum sheaf_type type, int64_t k, const char *w, size_t ahead,
                         const struct sheaf__act_digits *const *act, int C, float *sum) {
    __m256 acc[SHEAF__TILE_COLS][2];
    UNROLL for (int c = 0; c < C; c++) acc[c][0] = acc[c][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < k; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, k - i, rest);
        const struct scales s = scales_256(type, p);
        float t[SHEAF__TILE_COLS][16];
        uint32_t signs[8];
        if (signs_are_packed(type)) signs_256(type, p, signs);
        if (C == 1) prefetch(w + ahead, size_256(type));
        UNROLL for (int c = 0; c < C; c++) {
            const struct sheaf__act_digits *y = &act[c][i / SHEAF__QK_K];
            const struct scales dx = each_twice(_mm256_load_ps(y->d));
            _mm256_storeu_ps(t[c], _mm256_mul_ps(s.lo, dx.lo));
            _mm256_storeu_ps(t[c] + 8, _mm256_mul_ps(s.hi, dx.hi));
            if (type != SHEAF_TYPE_Q2_K) continue;
            const struct scales m = mins_256(p);
            acc[c][0] = _mm256_fnmadd_ps(m.lo, _mm256_load_ps(y->sums16), acc[c][0]);
            acc[c][1] = _mm256_fnmadd_ps(m.hi, _mm256_load_ps(y->sums16 + 8), acc[c][1]);
        }
        UNROLL_12 for (int j = 0; j < 8; j++) {
            const __m256i q = bytes_32(type, p, j, signs);
            const __m256i q0 = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
            const __m256i q1 = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
            UNROLL for (int c = 0; c < C; c++) {
                const struct sheaf__act_digits *y = &act[c][i / SHEAF__QK_K];
                const int16_t *h = y->word[0] + 32 * j, *l = y->word[1] + 32 * j;
                acc[c][0] =
                    _mm256_fmadd_ps(dot_words(q0, h, l), _mm256_set1_ps(t[c][2 * j]), acc[c][0]);
                acc[c][1] = _mm256_fmadd_ps(dot_words(q1, h + 16, l + 16),
                                            _mm256_set1_ps(t[c][2 * j + 1]), acc[c][1]);
            }
        }
    }
    UNROLL for (int c = 0; c < C; c++) sum[c] = hsum8(_mm256_add_ps(acc[c][0], acc[c][1]));
}
#endif

/* ---- panels ---- */

INLINE void floats_bytes(enum sheaf_type type, const void *src, float *y, int64_t n) {
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, n - i, rest);
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
            _mm256_storeu_si256((__m256i *)q, bytes_32(type, p, j, signs));
            UNROLL for (int v = 0; v < PER_32; v++) {
                const int at = 2 * j + v * VW / 16;
                v_f x = v_mul(v_load_i8(q + v * VW), v_set1(scale[at]));
                if (type == SHEAF_TYPE_Q2_K) x = v_sub(x, v_set1(min[at]));
                v_store(y + i + 32 * j + v * VW, x);
            }
        }
    }
}

#if defined(KERNELS_VNNI_512)
/* Types with one scale for 32. */
INLINE void blocks_bytes(enum sheaf_type type, const void *src, struct panel_block *to, int64_t n) {
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, n - i, rest);
        const struct scales s = scales_256(type, p);
        float scale[16];
        uint32_t signs[8];
        _mm256_storeu_ps(scale, s.lo);
        _mm256_storeu_ps(scale + 8, s.hi);
        if (signs_are_packed(type)) signs_256(type, p, signs);
        UNROLL_12 for (int j = 0; j < 8; j++, to++) {
            if (i + 32 * j >= n) break;
            panel_block(bytes_32(type, p, j, signs), scale[2 * j], 0.0f, false, to);
        }
    }
}
#endif

/* ---- the functions of the table ---- */

/* Types with one scale for 32 weights, and for 16: X for each, and their entries in a table. */
#define BYTES_BY_32(X) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(IQ2_XXS) X(IQ3_XXS) X(IQ3_S)
#define BYTES_BY_16(X) X(Q2_K) X(Q3_K) X(NVFP4) X(IQ2_XS) X(IQ2_S)
#define ENTRIES_BY_32(FN)                                                                          \
    [SHEAF_TYPE_IQ4_NL] = FN##_IQ4_NL, [SHEAF_TYPE_IQ4_XS] = FN##_IQ4_XS,                          \
    [SHEAF_TYPE_MXFP4] = FN##_MXFP4, [SHEAF_TYPE_IQ2_XXS] = FN##_IQ2_XXS,                          \
    [SHEAF_TYPE_IQ3_XXS] = FN##_IQ3_XXS, [SHEAF_TYPE_IQ3_S] = FN##_IQ3_S
#define ENTRIES_BY_16(FN)                                                                          \
    [SHEAF_TYPE_Q2_K] = FN##_Q2_K, [SHEAF_TYPE_Q3_K] = FN##_Q3_K, [SHEAF_TYPE_NVFP4] = FN##_NVFP4, \
    [SHEAF_TYPE_IQ2_XS] = FN##_IQ2_XS, [SHEAF_TYPE_IQ2_S] = FN##_IQ2_S

#define FLOATS_BYTES(TYPE)                                                                         \
    static void floats_bytes_##TYPE(const void *src, void *y, int64_t n) {                         \
        floats_bytes(SHEAF_TYPE_##TYPE, src, y, n);                                                \
    }
BYTES_BY_32(FLOATS_BYTES)
BYTES_BY_16(FLOATS_BYTES)

#if defined(KERNELS_VNNI_512)
#define BLOCKS_BYTES(TYPE)                                                                         \
    static void blocks_bytes_##TYPE(const void *src, void *to, int64_t n) {                        \
        blocks_bytes(SHEAF_TYPE_##TYPE, src, to, n);                                               \
    }
BYTES_BY_32(BLOCKS_BYTES)
#endif
