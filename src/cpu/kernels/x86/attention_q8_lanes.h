/* A part of table.h, of the AVX-512 table: attention of many queries over a cache of Q8_0, in integers. Queries
 * become digits and weights of values words, as in attention_q8.h; a lane is a query, as in attention.h.
 *
 * A product of bytes or words takes four elements, or two, a lane where floats take one: a key and a value
 * of 64 by 48 queries are 192 products instead of 384.
 *
 * Invariant: as in attention.h. */

/* 32 elements of the queries, d and offset as in struct sheaf__query_digits */
struct lanes_digits {
    int8_t high[8][LANES][4], low[8][LANES][4];
    float d[LANES];
    int32_t offset[LANES];
};
/* 32 elements of the keys of a tile, plus 128 */
struct lanes_keys {
    uint8_t x[LANE_ROWS][SHEAF__QK];
    float d[LANE_ROWS];
};
/* 32 elements of a block of values, tile by tile, two keys side by side */
struct lanes_values {
    int16_t x[SHEAF__QK / LANE_ROWS][SHEAF__ATTN_BLOCK / 2][LANE_ROWS][2];
    float d[SHEAF__ATTN_BLOCK];
};
/* The largest scale of each key, as a magnitude: behind the values */
typedef float lanes_scales[SHEAF__ATTN_BLOCK];

static_assert(sizeof(struct lanes_digits) <= SHEAF__QK * LANES * sizeof(float) &&
                  sizeof(struct lanes_keys) <= SHEAF__QK * LANE_ROWS * sizeof(float) &&
                  sizeof(struct lanes_values) + sizeof(lanes_scales) <=
                      SHEAF__QK * SHEAF__ATTN_BLOCK * sizeof(float),
              "in the space of floats");

static void pack_lanes_digits(const float *const *x, int64_t k, float *y) {
    struct lanes_digits *to = (void *)y;
    for (int64_t b = 0; b < k / SHEAF__QK; b++, to++) {
        for (int c = 0; c < LANES; c++) {
            struct sheaf__query_digits q;
            query_digits(SHEAF__QK, x[c] + b * SHEAF__QK, &q);
            for (int i = 0; i < 8; i++) {
                memcpy(to->high[i][c], q.high + 4 * i, 4);
                memcpy(to->low[i][c], q.low + 4 * i, 4);
            }
            to->d[c] = q.d;
            to->offset[c] = q.offset;
        }
    }
}

static void take_keys_q8(int64_t k, int64_t n, const void *px, size_t stride, float *y) {
    const int64_t blocks = k / SHEAF__QK;
    const char *x = px;
    struct lanes_keys *tile = (void *)y;
    const struct fetch fetch = fetch_rows(stride);
    for (int64_t j = 0; j < n; j += LANE_ROWS, tile += blocks) {
        if (n - j < LANE_ROWS) memset(tile, 0, (size_t)blocks * sizeof *tile);
        for (int r = 0; r < LANE_ROWS && j + r < n; r++, x += stride) {
            const struct sheaf__block_q8_0 *from = (const void *)x;
            fetch_lines(fetch, x, (size_t)blocks * sizeof *from);
            for (int64_t b = 0; b < blocks; b++) {
                const __m256i q = load256(from[b].qs);
                _mm256_storeu_si256((__m256i *)tile[b].x[r],
                                    _mm256_xor_si256(q, _mm256_set1_epi8(-128)));
                tile[b].d[r] = f16(from[b].d);
            }
        }
    }
}

INLINE void store_halves(__m512i x, void *a, void *b) {
    _mm256_storeu_si256(a, _mm512_castsi512_si256(x));
    _mm256_storeu_si256(b, _mm512_extracti64x4_epi64(x, 1));
}

static bool take_values_q8(int64_t wide, int64_t n, const void *px, size_t stride, float *y) {
    const int64_t blocks = wide / SHEAF__QK;
    const __m512i order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i after = _mm512_add_epi64(order, _mm512_set1_epi64(4));
    struct lanes_values *to = (void *)y;
    float *most = (void *)(to + blocks);
    const struct fetch fetch = fetch_rows(stride);
    bool finite = true;
    for (int64_t j = 0; j < n; j++) {
        const char *x = (const char *)px + (size_t)j * stride;
        const struct sheaf__block_q8_0 *from = (const void *)x;
        most[j] = 0.0f;
        fetch_lines(fetch, x, (size_t)blocks * sizeof *from);
        for (int64_t b = 0; b < blocks; b++) {
            const float d = f16(from[b].d);
            finite = finite && isfinite(d);
            to[b].d[j] = isfinite(d) ? d : 0.0f;
            most[j] = fmaxf(fabsf(to[b].d[j]), most[j]);
        }
    }
    for (int64_t j = 0; j < n; j += 2) {
        const char *x = (const char *)px + (size_t)j * stride;
        const struct sheaf__block_q8_0 *first = (const void *)x;
        /* the weight of a key that is not there is 0 */
        const struct sheaf__block_q8_0 *second = (const void *)(x + (j + 1 < n ? stride : 0));
        for (int64_t b = 0; b < blocks; b++) {
            const __m512i p = words_of(&first[b]), q = words_of(&second[b]);
            const __m512i low = _mm512_unpacklo_epi16(p, q), high = _mm512_unpackhi_epi16(p, q);
            store_halves(_mm512_permutex2var_epi64(low, order, high), to[b].x[0][j / 2],
                         to[b].x[1][j / 2]);
            store_halves(_mm512_permutex2var_epi64(low, after, high), to[b].x[2][j / 2],
                         to[b].x[3][j / 2]);
        }
    }
    return finite;
}

/* acc += four elements of the lanes at x, of each of eight steps, by those of the rows */
INLINE void add_digits(int vectors, int8_t (*x)[LANES][4], const struct lanes_keys *keys,
                       __m512i (*acc)[LANE_VECTORS]) {
    UNROLL_8 for (int i = 0; i < 8; i++) {
        __m512i xs[LANE_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) xs[v] = load512(x[i][v * VW]);
        UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
            const __m512i q = four_bytes(keys->x[r] + 4 * i);
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                _mm512_dpbusd_epi32(acc[r][v], q, xs[v]);
        }
        __asm__ volatile("" ::: "memory"); /* as in panels8.h */
    }
}

INLINE void digits_tile(int vectors, int64_t blocks, const struct lanes_keys *keys,
                        struct lanes_digits *x, float *c) {
    for (int64_t b = 0; b < blocks; b++, keys++, x++) {
        __m512i acc[LANE_ROWS][LANE_VECTORS];
        UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = _mm512_setzero_si512();
        }
        add_digits(vectors, x->high, keys, acc);
        UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                _mm512_add_epi32(_mm512_slli_epi32(acc[r][v], 8), load512(x->offset + v * VW));
        }
        add_digits(vectors, x->low, keys, acc);
        UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
            const v_f d = v_set1(keys->d[r]);
            UNROLL for (int v = 0; v < vectors; v++) {
                float *to = c + r * LANES + v * VW;
                const v_f dot = v_mul(_mm512_cvtepi32_ps(acc[r][v]), v_load(x->d + v * VW));
                v_store(to, v_fma(dot, d, b > 0 ? v_load(to) : v_set1(0.0f)));
            }
        }
    }
}

static void scores_q8(int64_t k, const float *keys, int64_t rows, const float *queries, int lanes,
                      float *c) {
    const int64_t blocks = k / SHEAF__QK;
    const struct lanes_keys *tile = (const void *)keys;
    for (; rows > 0; rows -= LANE_ROWS, tile += blocks, c += LANE_ROWS * LANES)
        LANES_BY_VECTORS(lanes, digits_tile, blocks, tile, (void *)queries, c);
}

/* What n weights of each lane are multiplied by to become words, and what a sum of words is multiplied by. */
INLINE void weight_scales(int vectors, int64_t n, const float *scales, const float *weights,
                          v_f *by, v_f *back) {
    v_f most[LANE_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) most[v] = v_set1(0.0f);
    for (int64_t j = 0; j < n; j++, weights += LANES) {
        const v_f d = v_set1(scales[j]);
        UNROLL for (int v = 0; v < vectors; v++) most[v] =
            v_max(v_mul(v_load(weights + v * VW), d), most[v]);
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        const __mmask16 any = _mm512_cmp_ps_mask(most[v], v_set1(0x1p-100f), _CMP_GE_OQ);
        by[v] = _mm512_maskz_div_ps(any, v_set1(32767.0f), most[v]);
        back[v] = v_mul(most[v], v_set1(1.0f / 32767.0f));
    }
}

/* Weights times the scales of their values as words, two keys side by side. */
INLINE void words_of_weights(int vectors, int64_t n, const float *d, const float *weights,
                             const v_f *by, int16_t (*to)[LANES][2]) {
    for (int64_t j = 0; j < n; j += 2, weights += 2 * LANES, to++) {
        const bool both = j + 1 < n;
        UNROLL for (int v = 0; v < vectors; v++) {
            const float *at = weights + v * VW;
            const v_f a = v_mul(v_mul(v_load(at), by[v]), v_set1(d[j]));
            const v_f b =
                both ? v_mul(v_mul(v_load(at + LANES), by[v]), v_set1(d[j + 1])) : v_set1(0.0f);
            const __m512i high = _mm512_slli_epi32(_mm512_cvtps_epi32(b), 16);
            _mm512_storeu_si512(to[0][v * VW],
                                _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_cvtps_epi32(a), high));
        }
    }
}

INLINE void values_tile(int vectors, int64_t pairs, int16_t (*x)[LANE_ROWS][2],
                        int16_t (*weights)[LANES][2], const v_f *back, float *c) {
    __m512i acc[LANE_ROWS][LANE_VECTORS];
    UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = _mm512_setzero_si512();
    }
    for (int64_t j = 0; j < pairs; j++) {
        __m512i w[LANE_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) w[v] = load512(weights[j][v * VW]);
        UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
            const __m512i q = four_bytes(x[j][r]);
            UNROLL for (int v = 0; v < vectors; v++) add_word_products(&acc[r][v], w[v], q);
        }
    }
    UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            float *to = c + r * LANES + v * VW;
            v_store(to, v_fma(_mm512_cvtepi32_ps(acc[r][v]), back[v], v_load(to)));
        }
    }
}

INLINE void values_by_lanes(int vectors, int64_t n, struct lanes_values *values, int64_t blocks,
                            const float *weights, float *c) {
    int16_t words[SHEAF__ATTN_BLOCK / 2][LANES][2];
    v_f by[LANE_VECTORS], back[LANE_VECTORS];
    weight_scales(vectors, n, (const void *)(values + blocks), weights, by, back);
    for (int64_t b = 0; b < blocks; b++) {
        words_of_weights(vectors, n, values[b].d, weights, by, words);
        for (int i = 0; i < SHEAF__QK / LANE_ROWS; i++, c += LANE_ROWS * LANES)
            values_tile(vectors, (n + 1) / 2, values[b].x[i], words, back, c);
    }
}
static void values_q8(int64_t n, const float *values, int64_t wide, const float *weights, int lanes,
                      float *c) {
    LANES_BY_VECTORS(lanes, values_by_lanes, n, (void *)values, wide / SHEAF__QK, weights, c);
}
