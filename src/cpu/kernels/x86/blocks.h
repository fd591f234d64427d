/* A part of table.h, in the same terms: rows of quantized weights as bytes with scales, which the
 * tiles of panels16.h and panels8.h multiply.
 *
 * Bytes of weights are unsigned by an offset. With VNNI the integers of the activations take it off, without
 * it is a part of the min.
 *
 * Invariant: d * q + m is the value of quant/quants.c to rounding. */

/* The integers of a block of 32, signed without a min, unsigned with one. */
INLINE __m256i unpack32(enum sheaf_type type, const void *p, float *d, float *m) {
    if (type == SHEAF_TYPE_Q8_0) {
        const struct sheaf__block_q8_0 *b = p;
        *d = f16(b->d);
        return load256(b->qs);
    }
    if (type == SHEAF_TYPE_Q4_0) {
        const struct sheaf__block_q4_0 *b = p;
        *d = f16(b->d);
        return _mm256_sub_epi8(nibbles(b->qs), _mm256_set1_epi8(8));
    }
    if (type == SHEAF_TYPE_Q4_1) {
        const struct sheaf__block_q4_1 *b = p;
        *d = f16(b->d);
        *m = f16(b->m);
        return nibbles(b->qs);
    }
    if (type == SHEAF_TYPE_Q5_0) { /* nibble - 16 + 16 bit = nibble | (bit ? 0 : 0xf0) */
        const struct sheaf__block_q5_0 *b = p;
        *d = f16(b->d);
        return _mm256_or_si256(nibbles(b->qs), spread_bits(b->qh, 0, -16));
    }
    const struct sheaf__block_q5_1 *b = p;
    *d = f16(b->d);
    *m = f16(b->m);
    return _mm256_or_si256(nibbles(b->qs), spread_bits(b->qh, 16, 0));
}

/* The integers of 32, number j of the eight at w, of Q4_K or Q5_K; unsigned, since these have mins.
 * fifth: the upper bits of Q5_K, those of j in bit j of each byte. */
INLINE __m256i unpack32_k(bool five, const void *w, __m256i fifth, int j) {
    const struct sheaf__block_q4_k *b4 = w;
    const struct sheaf__block_q5_k *b5 = w;
    const __m256i x = load256((five ? b5->qs : b4->qs) + j / 2 * 32);
    const __m256i q = j % 2 ? high15(x) : and15(x);
    if (!five) return q;
    /* to bit 4 */
    const __m256i bit = j < 4 ? _mm256_slli_epi16(fifth, 4 - j) : _mm256_srli_epi16(fifth, j - 4);
    return _mm256_or_si256(q, _mm256_and_si256(bit, _mm256_set1_epi8(16)));
}

/* The integers of 32, number j of the eight of *b: quarter t of half g; signed. */
INLINE __m256i unpack32_q6_k(const struct sheaf__block_q6_k *b, int j) {
    const int g = j / 4, t = j % 4;
    const __m256i l = load256(b->ql + 64 * g + t % 2 * 32), h = load256(b->qh + 32 * g);
    /* bits 2t, 2t + 1 to bits 4, 5 */
    const __m256i u = t < 2 ? _mm256_slli_epi16(h, 4 - 2 * t) : _mm256_srli_epi16(h, 2 * t - 4);
    const __m256i high = _mm256_and_si256(u, _mm256_set1_epi8(0x30));
    const __m256i q = _mm256_or_si256(t < 2 ? and15(l) : high15(l), high);
    return _mm256_sub_epi8(q, _mm256_set1_epi8(32));
}

INLINE int panel_bits(enum sheaf_type type) {
    switch ((int)type) {
    case SHEAF_TYPE_Q4_0:
    case SHEAF_TYPE_Q4_1:
    case SHEAF_TYPE_Q4_K:
    case SHEAF_TYPE_Q2_K:
    case SHEAF_TYPE_Q3_K:
    case SHEAF_TYPE_TQ1_0:
    case SHEAF_TYPE_TQ2_0:
    case SHEAF_TYPE_Q1_0:
    case SHEAF_TYPE_Q2_0:
        return 4;
    case SHEAF_TYPE_Q5_0:
    case SHEAF_TYPE_Q5_1:
    case SHEAF_TYPE_Q5_K:
    case SHEAF_TYPE_MXFP4:
    case SHEAF_TYPE_NVFP4:
        return 5;
    case SHEAF_TYPE_Q6_K:
        return 6;
    default:
        return 8;
    }
}
/* Added to signed weights, which makes them unsigned. */
INLINE int panel_offset(enum sheaf_type type) {
    const bool none = type == SHEAF_TYPE_Q4_1 || type == SHEAF_TYPE_Q5_1 ||
                      type == SHEAF_TYPE_Q4_K || type == SHEAF_TYPE_Q5_K || type == SHEAF_TYPE_Q2_K;
    if (none) return 0;
    return type == SHEAF_TYPE_MXFP4 || type == SHEAF_TYPE_NVFP4 ? 12 : 1 << (panel_bits(type) - 1);
}

#if defined(KERNELS_VNNI_512)
/* What struct panel_scales has in lane 3 of each block's eight. */
INLINE __m512 panel_flags(enum sheaf_type type, bool min) {
    const struct panel_scales like = {
        .by_16 = panel_by_16(type), .has_min = min, .offset = (uint8_t)panel_offset(type)};
    int32_t flags;
    memcpy(&flags, &like.by_16, sizeof flags);
    return _mm512_castsi512_ps(_mm512_set1_epi32(flags));
}
#endif

/* Block b of a row. q: as signed_32 and unpack32 have them; d and m of 16 each; m is NULL if the type has
 * none. */
INLINE void panel_block(enum sheaf_type type, __m256i q, const float *d, const float *m,
                        struct panel_row *row, int64_t b) {
    const int offset = panel_offset(type);
    if (offset) q = _mm256_add_epi8(q, _mm256_set1_epi8((char)offset));
#if defined(KERNELS_VNNI_512)
    struct panel_row *at = row + b / PANEL_ROW_BLOCKS;
    struct panel_scales *to = &at->of[b % PANEL_ROW_BLOCKS];
    _mm256_storeu_si256((__m256i *)at->q[b % PANEL_ROW_BLOCKS], q);
    *to = (struct panel_scales){
        .by_16 = panel_by_16(type), .has_min = m != NULL, .offset = (uint8_t)offset};
    UNROLL for (int h = 0; h < 2; h++) {
        to->d[h] = d[h];
        to->m[h] = m ? m[h] : 0.0f;
    }
#else
#if defined(KERNELS_VNNI_256)
    const int in_min = 0;
#else
    const int in_min = offset;
#endif
    struct panel_row *to = row + b;
    _mm256_storeu_si256((__m256i *)to->q, q);
    UNROLL for (int h = 0; h < 2; h++) {
        to->d[h] = d[h];
        to->m[h] = (m ? m[h] : 0.0f) - (float)in_min * d[h];
    }
    to->by_16 = panel_by_16(type);
    to->has_min = m || in_min;
    to->bits = (uint8_t)panel_bits(type);
    to->offset = (uint8_t)offset;
#endif
}

/* n weights at src, to block `first` of a row and those after it. */
INLINE void blocks_32(enum sheaf_type type, const void *src, struct panel_row *to, int64_t first,
                      int64_t n) {
    const char *w = src;
    for (int64_t b = 0; b < n / 32; b++, w += block_size_32(type)) {
        float d[2], m[2] = {0, 0};
        const __m256i q = unpack32(type, w, &d[0], &m[0]);
        d[1] = d[0];
        m[1] = m[0];
        panel_block(type, q, d, has_min(type) ? m : NULL, to, first + b);
    }
}

#if !defined(KERNELS_VNNI_512)
/* Q4_K and Q5_K. */
INLINE void blocks_k(enum sheaf_type type, const void *src, struct panel_row *to, int64_t n) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const size_t block = size_256(type);
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += block, to += 8) {
        const struct sheaf__block_q4_k *b4 = (const void *)w;
        const struct sheaf__block_q5_k *b5 = (const void *)w;
        const float d = f16(b4->d), dmin = -f16(b4->dmin);
        const __m256i high = five ? load256(b5->qh) : _mm256_setzero_si256();
        int16_t s[16];
        _mm256_storeu_si256((__m256i *)s, k_scales_mins(b4->scales));
        UNROLL_12 for (int j = 0; j < 8; j++) {
            const float scale = d * (float)s[j], min = dmin * (float)s[8 + j];
            const float ds[2] = {scale, scale}, ms[2] = {min, min};
            panel_block(type, unpack32_k(five, w, high, j), ds, ms, to, j);
        }
    }
}

static void blocks_q6_k(const void *src, void *dst, int64_t n) {
    const struct sheaf__block_q6_k *b = src;
    struct panel_row *to = dst;
    for (; n > 0; n -= SHEAF__QK_K, b++, to += 8) {
        const float d = f16(b->d);
        UNROLL_12 for (int j = 0; j < 8; j++) {
            const float ds[2] = {d * (float)b->scales[2 * j], d * (float)b->scales[2 * j + 1]};
            panel_block(SHEAF_TYPE_Q6_K, unpack32_q6_k(b, j), ds, NULL, to, j);
        }
    }
}
#endif

#if defined(KERNELS_VNNI_512)
/* A pass of rows of another form, which FROM_ROW makes of the bytes that BLOCKS_OF unpacks. gcc 14
 * takes these for unset where n may be 0. */
#define BY_WAY_OF_BYTES(NAME, BLOCKS_OF, FROM_ROW)                                                 \
    static void NAME(const void *src, void *to, int64_t n) {                                       \
        struct panel_row row[SHEAF__QK_K / PANEL_ROW_UNIT];                                        \
        if (n <= 0) return;                                                                        \
        BLOCKS_OF(src, row, n);                                                                    \
        FROM_ROW(row, n, to);                                                                      \
    }
#endif
#if !defined(KERNELS_VNNI_512) /* panels16.h has these for several blocks at a time */
INLINE void all_blocks_32(enum sheaf_type type, const void *src, struct panel_row *to, int64_t n) {
    blocks_32(type, src, to, 0, n);
}
UNPACK(blocks_q8_0, all_blocks_32, SHEAF_TYPE_Q8_0)
UNPACK(blocks_q4_0, all_blocks_32, SHEAF_TYPE_Q4_0)
UNPACK(blocks_q4_1, all_blocks_32, SHEAF_TYPE_Q4_1)
UNPACK(blocks_q5_0, all_blocks_32, SHEAF_TYPE_Q5_0)
UNPACK(blocks_q5_1, all_blocks_32, SHEAF_TYPE_Q5_1)
UNPACK(blocks_q4_k, blocks_k, SHEAF_TYPE_Q4_K)
UNPACK(blocks_q5_k, blocks_k, SHEAF_TYPE_Q5_K)
#endif

/* A tile of integers. */
enum { TILE_ROWS = VW == 16 ? 6 : 4, TILE_COLS = 2 * VW };

/* Four bytes in all lanes. */
#if defined(KERNELS_VNNI_512)
INLINE __m512i four_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}
#else
INLINE __m256i four_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

/* c = 0, of so many vectors of columns. */
INLINE void clear_tile(int vectors, float *c) {
    for (int r = 0; r < TILE_ROWS; r++) {
        for (int v = 0; v < vectors; v++) v_store(c + r * TILE_COLS + VW * v, v_set1(0.0f));
    }
}

/* c += the integers acc of part h of a block, times the scales of the rows w and those of the columns, d, of
 * which so many vectors are used; with `mins` also the rows' mins times the columns' sums. */
INLINE void add_block(int vectors, bool by_16, bool mins, int h, __m256i (*acc)[2],
                      const struct panel_row *w, size_t w_stride, const float *d,
                      const float (*sums)[TILE_COLS], float *c) {
    v_f sum[2];
    UNROLL for (int v = 0; v < vectors; v++) {
        sum[v] = v_load(sums[h] + VW * v);
        if (!by_16) sum[v] = v_add(sum[v], v_load(sums[1] + VW * v));
    }
    UNROLL for (int r = 0; r < TILE_ROWS; r++) {
        const struct panel_row *row = &w[(size_t)r * w_stride];
        UNROLL for (int v = 0; v < vectors; v++) {
            float *to = c + r * TILE_COLS + VW * v;
            const v_f scale = v_mul(v_set1(row->d[h]), v_load(d + VW * v));
            v_f x = v_fma(_mm256_cvtepi32_ps(acc[r][v]), scale, v_load(to));
            if (mins) x = v_fma(v_set1(row->m[h]), sum[v], x);
            v_store(to, x);
        }
    }
}
#endif
