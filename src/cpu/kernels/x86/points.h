/* A part of table.h, for signed.h: points of the grids of the IQ formats as signed bytes, and
 * signs.
 *
 * Points are loaded one by one: a vector of gathered loads takes as long. */

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
#define POINT1(p)                                                                                  \
    COORD2(p, 0, -8, 0, 8) | COORD2(p, 1, -8, 0, 8) | COORD2(p, 2, -8, 0, 8) |                     \
        COORD2(p, 3, -8, 0, 8) | COORD2(p, 4, -8, 0, 8) | COORD2(p, 5, -8, 0, 8) |                 \
        COORD2(p, 6, -8, 0, 8) | COORD2(p, 7, -8, 0, 8)
#define POINTS1(a, b, c, d, e, f, g, h)                                                            \
    POINT1(a), POINT1(b), POINT1(c), POINT1(d), POINT1(e), POINT1(f), POINT1(g), POINT1(h),
static const uint64_t iq1_grid[] = {SHEAF__IQ1_GRID(POINTS1)};
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

/* 2^(x - 128) of the exponents of MXFP4. */
INLINE __m256 powers_of_two(__m256i x) {
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(x, _mm256_set1_epi32(1)), 23);
    const __m256i tiny_one = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), x);
    const __m256i is_normal = _mm256_cmpgt_epi32(x, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(tiny_one, normal, is_normal));
}
/* Of 8 blocks. */
INLINE __m256 mxfp4_scales(const struct sheaf__block_mxfp4 *b) {
    uint64_t e = 0;
    UNROLL_12 for (int i = 0; i < 8; i++) e |= (uint64_t)b[i].e << 8 * i;
    return powers_of_two(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)e)));
}
