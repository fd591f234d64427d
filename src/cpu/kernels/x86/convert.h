/* A part of table.h, in the same terms: rows of quantized weights to floats and floats to the types
 * of a K/V cache, with the bits of quant/quants.c, tables.c and iq.c: GET_ROWS, SET_ROWS, CPY.
 *
 * To floats: integers times a scale, less a min where the type has one, each rounded as there; nothing
 * is contracted, and offsets are taken off the integers, so that a zero has the sign it has there. From
 * floats: the block functions of quant/blocks.h in vectors; a block with NaN goes through these. */

/* ---- to floats ---- */

/* y = d * q + m, of 32 signed bytes; m NULL: without. */
INLINE void exact_32(__m256i q, float d, const float *m, float *y) {
    int8_t bytes[32];
    _mm256_storeu_si256((__m256i *)bytes, q);
    UNROLL for (int j = 0; j < PER_32; j++) {
        v_f x = v_mul(v_set1(d), v_load_i8(bytes + j * VW));
        if (m) x = v_add(x, v_set1(*m));
        v_store(y + j * VW, x);
    }
}

INLINE void exact_of_32(enum sheaf_type type, const void *src, float *y, int64_t n) {
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK, w += block_size_32(type)) {
        float d, m = 0;
        const __m256i q = unpack32(type, w, &d, &m);
        exact_32(q, d, has_min(type) ? &m : NULL, y + i);
    }
}

/* Q4_K and Q5_K. */
INLINE void exact_k(enum sheaf_type type, const void *src, float *y, int64_t n) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const size_t block = size_256(type);
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += block, y += SHEAF__QK_K) {
        const struct sheaf__block_q4_k *b4 = (const void *)w;
        const struct sheaf__block_q5_k *b5 = (const void *)w;
        const float d = f16(b4->d), dmin = -f16(b4->dmin);
        const __m256i high = five ? load256(b5->qh) : _mm256_setzero_si256();
        int16_t s[16];
        _mm256_storeu_si256((__m256i *)s, k_scales_mins(b4->scales));
        UNROLL_12 for (int j = 0; j < 8; j++) {
            const float m = dmin * (float)s[8 + j];
            exact_32(unpack32_k(five, w, high, j), d * (float)s[j], &m, y + 32 * j);
        }
    }
}

static void exact_q6_k(const void *src, float *y, int64_t n) {
    const struct sheaf__block_q6_k *b = src;
    for (; n > 0; n -= SHEAF__QK_K, b++, y += SHEAF__QK_K) {
        const float d = f16(b->d);
        UNROLL_12 for (int j = 0; j < 8; j++) {
            int8_t bytes[32];
            _mm256_storeu_si256((__m256i *)bytes, unpack32_q6_k(b, j));
            UNROLL for (int v = 0; v < PER_32; v++) {
                const float s = d * (float)b->scales[2 * j + v * VW / 16];
                v_store(y + 32 * j + v * VW, v_mul(v_set1(s), v_load_i8(bytes + v * VW)));
            }
        }
    }
}

#define EXACT(NAME, EXACT_OF, TYPE)                                                                \
    static void NAME(const void *src, float *y, int64_t n) { EXACT_OF(TYPE, src, y, n); }
EXACT(exact_q4_0, exact_of_32, SHEAF_TYPE_Q4_0)
EXACT(exact_q4_1, exact_of_32, SHEAF_TYPE_Q4_1)
EXACT(exact_q5_0, exact_of_32, SHEAF_TYPE_Q5_0)
EXACT(exact_q5_1, exact_of_32, SHEAF_TYPE_Q5_1)
EXACT(exact_q4_k, exact_k, SHEAF_TYPE_Q4_K)
EXACT(exact_q5_k, exact_k, SHEAF_TYPE_Q5_K)
#define EXACT_SIGNED(TYPE)                                                                         \
    static void exact_signed_##TYPE(const void *src, float *y, int64_t n) {                        \
        floats_signed_##TYPE(src, y, n);                                                           \
    }
SIGNED_BY_32(EXACT_SIGNED)
SIGNED_BY_16(EXACT_SIGNED)

/* ---- from floats ---- */

struct block32 {
    __m256 x[4];
};
INLINE struct block32 load_block(const float *x) {
    return (struct block32){{_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
                             _mm256_loadu_ps(x + 24)}};
}
INLINE bool has_nan(struct block32 b) {
    const __m256 first = _mm256_cmp_ps(b.x[0], b.x[1], _CMP_UNORD_Q);
    return _mm256_movemask_ps(_mm256_or_ps(first, _mm256_cmp_ps(b.x[2], b.x[3], _CMP_UNORD_Q)));
}
/* The largest of 8, without NaN. */
INLINE float max_of_8(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
/* The first of x that equals `value`, under the mask of bits: zeros differ in sign. */
INLINE float first_equal(struct block32 b, __m256 mask, float value, const float *x) {
    const __m256 v = _mm256_set1_ps(value);
    uint32_t bits = 0;
    UNROLL for (int j = 0; j < 4; j++) {
        const __m256 equal = _mm256_cmp_ps(_mm256_and_ps(b.x[j], mask), v, _CMP_EQ_OQ);
        bits |= (uint32_t)_mm256_movemask_ps(equal) << 8 * j;
    }
    return x[__builtin_ctz(bits)];
}

/* sheaf__signed_max and sheaf__range, of blocks without NaN. */
INLINE float signed_max_32(struct block32 b, const float *x) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 a = _mm256_max_ps(_mm256_and_ps(b.x[0], mask), _mm256_and_ps(b.x[1], mask));
    const __m256 c = _mm256_max_ps(_mm256_and_ps(b.x[2], mask), _mm256_and_ps(b.x[3], mask));
    const float max = max_of_8(_mm256_max_ps(a, c));
    return max > 0 ? first_equal(b, mask, max, x) : 0;
}
INLINE void range_32(struct block32 b, const float *x, float *min, float *max) {
    const __m256 all = _mm256_castsi256_ps(_mm256_set1_epi32(-1)), sign = _mm256_set1_ps(-0.0f);
    const __m256 most = _mm256_max_ps(_mm256_max_ps(b.x[0], b.x[1]), _mm256_max_ps(b.x[2], b.x[3]));
    const __m256 least =
        _mm256_min_ps(_mm256_min_ps(b.x[0], b.x[1]), _mm256_min_ps(b.x[2], b.x[3]));
    *max = first_equal(b, all, max_of_8(most), x);
    *min = first_equal(b, all, -max_of_8(_mm256_xor_ps(least, sign)), x);
}

/* 32 times sheaf__floor_to((x - min) * id + add, hi). */
INLINE __m256i floors_32(struct block32 b, float min, float id, float add, int hi) {
    __m256i q[4];
    UNROLL for (int j = 0; j < 4; j++) {
        __m256 x = _mm256_mul_ps(_mm256_sub_ps(b.x[j], _mm256_set1_ps(min)), _mm256_set1_ps(id));
        x = _mm256_add_ps(x, _mm256_set1_ps(add));
        x = _mm256_max_ps(x, _mm256_setzero_ps()); /* 0 for NaN */
        q[j] = _mm256_cvttps_epi32(_mm256_min_ps(x, _mm256_set1_ps((float)hi)));
    }
    return pack_bytes(q);
}
INLINE void store_nibbles(__m256i q, uint8_t *to) {
    q = and15(q);
    const __m128i high = _mm_slli_epi16(_mm256_extracti128_si256(q, 1), 4);
    _mm_storeu_si128((__m128i *)to, _mm_or_si128(_mm256_castsi256_si128(q), high));
}
INLINE void store_fifths(__m256i q, uint8_t *to) {
    const int bits = _mm256_movemask_epi8(_mm256_slli_epi16(q, 3));
    memcpy(to, &bits, sizeof bits);
}

/* Blocks with an offset: Q4_0 and Q5_0. x less 0 is x; a zero's sign is lost in the addend. */
INLINE __m256i around_zero(struct block32 b, const float *x, int top, uint16_t *d) {
    const float id = sheaf__scale_to(signed_max_32(b, x) / (float)-top, d);
    return floors_32(b, 0, id, (float)top + 0.5f, 2 * top - 1);
}
/* Blocks with a min: Q4_1 and Q5_1. */
INLINE __m256i above_min(struct block32 b, const float *x, int top, uint16_t *d, uint16_t *m) {
    float min, max;
    range_32(b, x, &min, &max);
    *m = sheaf__f32_to_f16(min);
    const float id = sheaf__scale_to((max - min) / (float)top, d);
    return floors_32(b, min, id, 0.5f, top);
}

#define FROM_FLOATS(type, CODE)                                                                    \
    static void f32_to_##type(const float *x, void *py, int64_t n) {                               \
        struct sheaf__block_##type *y = py;                                                        \
        for (int64_t i = 0; i < n; i += SHEAF__QK, x += SHEAF__QK, y++) {                          \
            const struct block32 b = load_block(x);                                                \
            if (has_nan(b)) {                                                                      \
                sheaf__quantize_block_##type(x, y);                                                \
            } else {                                                                               \
                CODE;                                                                              \
            }                                                                                      \
        }                                                                                          \
    }
#define STORE_5(CODE)                                                                              \
    const __m256i q = CODE;                                                                        \
    store_nibbles(q, y->qs);                                                                       \
    store_fifths(q, y->qh)
FROM_FLOATS(q4_0, store_nibbles(around_zero(b, x, 8, &y->d), y->qs))
FROM_FLOATS(q4_1, store_nibbles(above_min(b, x, 15, &y->d, &y->m), y->qs))
FROM_FLOATS(q5_0, STORE_5(around_zero(b, x, 16, &y->d)))
FROM_FLOATS(q5_1, STORE_5(above_min(b, x, 31, &y->d, &y->m)))
