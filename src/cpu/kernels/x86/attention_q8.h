/* A part of table.h, of the AVX-512 table: attention of few queries over a cache of Q8_0, in integers.
 *
 * Queries become two digits of a byte, weights of values one integer of 16 bits, and VNNI multiplies them
 * with the bytes of the cache exactly. Scales of blocks meet sums of 32 products, or weights, not each
 * element: floats took 22 cycles of a Zen 5 for the values of a key of 64 by eight queries, 12 of 44
 * instructions to convert and scale.
 *
 * Keys are turned so that a lane is a key: 40 instructions for 32 elements of 16 keys, which all queries
 * share, and no sum across lanes is left.
 *
 * A weight times the scale of a block of its value is an integer of 16 bits of the largest such product of the row and
 * of its 64 keys. So where one block of a value is much smaller than another, it has fewer bits: at a hundredth of the
 * largest its sums are off by 7e-4 of themselves (of Q8_0 itself each element may be off by 4e-3), at equal sizes by
 * 1e-5.
 *
 * Invariant: a score depends on its key and query alone. A sum of values depends on its own row's weights
 * in each VALUES from the first; a value of weight 0 is never read into it. */

enum {
    KEY_VECTORS = 2,    /* of 16 keys, that share a load of digits */
    DIGIT_QUERIES = 16, /* whose sums are kept together */
    VALUES = SHEAF__VALUES_TOGETHER,
    VALUE_ROWS = 8,
    Q8_BLOCKS = SHEAF__DIRECT_WIDTH / SHEAF__QK,
};

/* How rows are fetched: twice as many rows ahead as of F16, which are twice as long, unless these would be too large
 * a part of a second cache. A Xeon (Emerald Rapids) reads 4096 positions of TinyLlama's shape at 6.1 GB/s so, and at
 * 4.9 with ROWS_AHEAD rows (November 2026). Asked for twice, a Zen 4 reads them no faster. */
INLINE struct fetch fetch_bytes(size_t stride) {
    const size_t most = 256 << 10, once = ROWS_AHEAD * stride;
    return (struct fetch){{2 * once < most ? 2 * once : once}, 1, false};
}

/* GCC 12 would copy each sum twice. */
INLINE void add_word_products(__m512i *acc, __m512i a, __m512i b) {
    *acc = _mm512_dpwssd_epi32(*acc, a, b);
    __asm__("" : "+v"(*acc));
}

INLINE __m512i magnitudes(v_f x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}
/* The largest of magnitudes. Their bits are in their order, with infinity and NaN at the end. */
INLINE float largest(__m512i x) {
    const uint32_t bits = _mm512_reduce_max_epu32(x);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* ---- products ---- */

static void query_digits(int64_t k, const float *x, struct sheaf__query_digits *y) {
    for (int64_t b = 0; b < k / SHEAF__QK; b++, x += SHEAF__QK, y++) {
        const v_f v[2] = {v_load(x), v_load(x + VW)};
        const float top = largest(_mm512_max_epu32(magnitudes(v[0]), magnitudes(v[1])));
        const float d = top / (127.0f * 256.0f);
        const v_f by = v_set1(d >= 0x1p-126f ? 1.0f / d : 0.0f);
        __m512i sum = _mm512_setzero_si512();
        UNROLL for (int j = 0; j < 2; j++) {
            const __m512i q = _mm512_cvtps_epi32(v_mul(v[j], by));
            const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
            const __m512i low = _mm512_sub_epi32(q, _mm512_slli_epi32(high, 8));
            _mm_storeu_si128((__m128i *)(y->high + j * VW), _mm512_cvtepi32_epi8(high));
            _mm_storeu_si128((__m128i *)(y->low + j * VW), _mm512_cvtepi32_epi8(low));
            sum = _mm512_add_epi32(sum, q);
        }
        y->d = d;
        y->offset =
            sum_of_lanes(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), sum), 7));
    }
}

/* Eight rows of 32 bytes plus 128; t[i]: bytes 4 i .. 4 i + 3 and 16 + 4 i .. of rows 0 to 3, then 4 to 7. */
INLINE void turn_rows(const char *x, size_t stride, __m512i *t) {
    __m512i a[4];
    UNROLL for (int i = 0; i < 4; i++) a[i] = _mm512_xor_si512(
        two256(x + (size_t)i * stride, x + (size_t)(i + 4) * stride), _mm512_set1_epi8(-128));
    const __m512i p = _mm512_unpacklo_epi32(a[0], a[1]), q = _mm512_unpackhi_epi32(a[0], a[1]);
    const __m512i r = _mm512_unpacklo_epi32(a[2], a[3]), s = _mm512_unpackhi_epi32(a[2], a[3]);
    t[0] = _mm512_unpacklo_epi64(p, r);
    t[1] = _mm512_unpackhi_epi64(p, r);
    t[2] = _mm512_unpacklo_epi64(q, s);
    t[3] = _mm512_unpackhi_epi64(q, s);
}

/* t[i]: bytes 4 i .. 4 i + 3 of 16 rows, a row a lane. */
INLINE void turn_keys(const char *x, size_t stride, __m512i *t) {
    __m512i a[4], b[4];
    turn_rows(x, stride, a);
    turn_rows(x + 8 * stride, stride, b);
    UNROLL for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(a[i], b[i], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(a[i], b[i], 0xdd);
    }
}

/* The halves at p, p + stride .. of 8 rows. (As in gather_halves gcc would use twice the instructions.) */
INLINE __m128i eight_halves(const char *p, size_t stride) {
    uint16_t h[8];
    UNROLL_8 for (int i = 0; i < 8; i++) memcpy(&h[i], p + (size_t)i * stride, sizeof h[i]);
    __m128i x = _mm_cvtsi32_si128(h[0]);
    x = _mm_insert_epi16(x, h[1], 1);
    x = _mm_insert_epi16(x, h[2], 2);
    x = _mm_insert_epi16(x, h[3], 3);
    x = _mm_insert_epi16(x, h[4], 4);
    x = _mm_insert_epi16(x, h[5], 5);
    x = _mm_insert_epi16(x, h[6], 6);
    return _mm_insert_epi16(x, h[7], 7);
}

/* sum[c][v] += block b of query q[c] . that of the 16 keys t[v], with the scales d[v]; Q is 1, or 2 whose sums
 * do not wait for each other. */
INLINE void digit_products(__m512i (*t)[8], const v_f *d, int V,
                           const struct sheaf__query_digits *const *q, int Q, int64_t b,
                           v_f (*sum)[KEY_VECTORS]) {
    __m512i high[2][KEY_VECTORS], low[2][KEY_VECTORS];
    UNROLL for (int c = 0; c < Q; c++) {
        UNROLL for (int v = 0; v < V; v++) {
            high[c][v] = _mm512_setzero_si512();
            low[c][v] = _mm512_set1_epi32(q[c][b].offset);
        }
    }
    UNROLL_8 for (int i = 0; i < 8; i++) {
        UNROLL for (int c = 0; c < Q; c++) {
            const struct sheaf__query_digits *y = &q[c][b];
            __m512i by = four_bytes(y->high + 4 * i);
            UNROLL for (int v = 0; v < V; v++) high[c][v] =
                _mm512_dpbusd_epi32(high[c][v], t[v][i], by);
            by = four_bytes(y->low + 4 * i);
            UNROLL for (int v = 0; v < V; v++) low[c][v] =
                _mm512_dpbusd_epi32(low[c][v], t[v][i], by);
        }
    }
    UNROLL for (int c = 0; c < Q; c++) {
        UNROLL for (int v = 0; v < V; v++) {
            const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high[c][v], 8), low[c][v]);
            sum[c][v] = v_fma(_mm512_cvtepi32_ps(dot), v_mul(d[v], v_set1(q[c][b].d)), sum[c][v]);
        }
    }
}

/* A Zen 4 that is asked for a line of 32 rows at once reads keys of 256 by four queries at 14 GB/s, and at 17 if it is
 * asked for some of them before each pair of queries (November 2026). */
#if defined(KERNELS_HALVES)
enum { KEYS_EVENLY = 1 };
#else
enum { KEYS_EVENLY = 0 };
#endif

/* Asks for a line of rows [from, to), further on; returns `to`. */
INLINE size_t fetch_keys(struct fetch fetch, const char *x, size_t stride, size_t from, size_t to) {
    const size_t end = fetch.times ? to : from;
    for (; from < end; from++) fetch_lines(fetch, x + from * stride, 1);
    return from;
}

/* sum[c][v] = the 16 keys of vector v at x . q[c]. */
INLINE void digit_keys(int64_t k, const char *x, size_t stride, int V,
                       const struct sheaf__query_digits *const *q, int n_q, struct fetch fetch,
                       v_f (*sum)[KEY_VECTORS]) {
    const size_t rows = (size_t)(V * VW), some = 2 * rows / (size_t)(n_q + 1);
    for (int c = 0; c < n_q; c++) {
        UNROLL for (int v = 0; v < V; v++) sum[c][v] = v_set1(0.0f);
    }
    for (int64_t b = 0; b < k / SHEAF__QK; b++, x += sizeof(struct sheaf__block_q8_0)) {
        __m512i t[KEY_VECTORS][8];
        v_f d[KEY_VECTORS];
        size_t asked = KEYS_EVENLY ? 0 : fetch_keys(fetch, x, stride, 0, rows); /* rows */
        UNROLL for (int v = 0; v < V; v++) {
            const char *p = x + (size_t)(v * VW) * stride;
            turn_keys(p + offsetof(struct sheaf__block_q8_0, qs), stride, t[v]);
            d[v] = _mm512_cvtph_ps(
                _mm256_set_m128i(eight_halves(p + 8 * stride, stride), eight_halves(p, stride)));
        }
        int c = 0;
        for (; c + 2 <= n_q; c += 2) {
            if (KEYS_EVENLY) asked = fetch_keys(fetch, x, stride, asked, asked + some);
            digit_products(t, d, V, q + c, 2, b, sum + c);
        }
        if (KEYS_EVENLY) fetch_keys(fetch, x, stride, asked, rows);
        if (c < n_q) digit_products(t, d, V, q + c, 1, b, sum + c);
    }
}

/* The first n of V vectors of keys. */
INLINE void digit_scores(int64_t k, const char *x, size_t stride, int V, int64_t n,
                         const struct sheaf__query_digits *const *q, int n_q, struct fetch fetch,
                         float *out, int64_t out_stride) {
    for (; n_q > 0; n_q -= DIGIT_QUERIES, q += DIGIT_QUERIES, out += DIGIT_QUERIES * out_stride) {
        const int some = n_q < DIGIT_QUERIES ? n_q : DIGIT_QUERIES;
        v_f sum[DIGIT_QUERIES][KEY_VECTORS];
        digit_keys(k, x, stride, V, q, some, fetch, sum);
        for (int c = 0; c < some; c++) {
            UNROLL for (int v = 0; v < V; v++) {
                float *to = out + c * out_stride + v * VW;
                if (n >= V * VW)
                    v_store(to, sum[c][v]);
                else
                    v_store_n(to, sum[c][v], n);
            }
        }
        fetch = fetch_nothing();
    }
}

static void dots_digits(int64_t k, const void *px, size_t stride, int64_t rows,
                        const struct sheaf__query_digits *const *q, int n_q, float *out,
                        int64_t out_stride) {
    const size_t row = (size_t)(k / SHEAF__QK) * sizeof(struct sheaf__block_q8_0);
    const struct fetch fetch = fetch_bytes(stride);
    enum { BOTH = KEY_VECTORS * VW };
    const char *x = px;
    for (; rows >= BOTH; rows -= BOTH, x += BOTH * stride, out += BOTH)
        digit_scores(k, x, stride, KEY_VECTORS, BOTH, q, n_q, fetch, out, out_stride);
    for (; rows >= VW; rows -= VW, x += VW * stride, out += VW)
        digit_scores(k, x, stride, 1, VW, q, n_q, fetch, out, out_stride);
    if (rows > 0) {
        char last[VW * Q8_BLOCKS * sizeof(struct sheaf__block_q8_0)];
        memset(last, 0, VW * row);
        for (int64_t r = 0; r < rows; r++)
            memcpy(last + (size_t)r * row, x + (size_t)r * stride, row);
        digit_scores(k, last, row, 1, rows, q, n_q, fetch_nothing(), out, out_stride);
    }
}

/* ---- sums of values ---- */

/* The scales of n <= VALUES rows, zeros after them, and the largest magnitude of each row. */
struct value_scales {
    float d[Q8_BLOCKS][VALUES], most[VALUES];
};
INLINE void scales_of_values(const char *x, size_t stride, int64_t n, int64_t blocks,
                             struct value_scales *s) {
    for (int64_t j = 0; j < VALUES; j += 8) {
        const int64_t left = n - j;
        __m256i most = _mm256_setzero_si256();
        for (int64_t b = 0; b < blocks; b++) {
            const char *p = x + (size_t)j * stride + (size_t)b * sizeof(struct sheaf__block_q8_0);
            const __m256 d = left >= 8  ? _mm256_cvtph_ps(eight_halves(p, stride))
                             : left > 0 ? gather_halves(p, stride, (int)left)
                                        : _mm256_setzero_ps();
            _mm256_storeu_ps(s->d[b] + j, d);
            most = _mm256_max_epu32(
                most, _mm256_and_si256(_mm256_castps_si256(d), _mm256_set1_epi32(0x7fffffff)));
        }
        _mm256_storeu_si256((__m256i *)(s->most + j), most);
    }
}

/* Vector j of n weights, zeros behind them, and those that are not 0: 0 times a scale that is not finite
 * would be NaN. */
INLINE __mmask16 weights_at(const float *w, int64_t n, int j, v_f *v) {
    const int64_t left = n - j * VW;
    const __mmask16 there = (__mmask16)(left >= VW ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
    *v = _mm512_maskz_loadu_ps(there, w + j * VW);
    return _mm512_cmp_ps_mask(*v, v_set1(0.0f), _CMP_NEQ_UQ);
}

/* n weights of R rows times the scales of their values, as integers of 16 bits times scale[r]. A largest
 * product takes a chain of instructions, so those of all rows come first, where the chains overlap. */
INLINE void weights_of_values(const struct value_scales *s, int64_t n, int64_t blocks,
                              const float *w, int64_t w_stride, int R,
                              int16_t (*to)[VALUE_ROWS][VALUES], float *scale) {
    for (int r = 0; r < R; r++) {
        __m512i most = _mm512_setzero_si512();
        UNROLL for (int j = 0; j < VALUES / VW; j++) {
            v_f v;
            const __mmask16 open = weights_at(w + r * w_stride, n, j, &v);
            most = _mm512_max_epu32(
                most, magnitudes(_mm512_maskz_mul_ps(open, v, v_load(s->most + j * VW))));
        }
        scale[r] = largest(most) * (1.0f / 32767.0f);
    }
    for (int r = 0; r < R; r++) {
        const v_f by = v_set1(scale[r] >= 0x1p-115f ? 1.0f / scale[r] : 0.0f);
        UNROLL for (int j = 0; j < VALUES / VW; j++) {
            v_f v;
            const __mmask16 open = weights_at(w + r * w_stride, n, j, &v);
            v = v_mul(v, by);
            for (int64_t b = 0; b < blocks; b++) {
                const v_f x = _mm512_maskz_mul_ps(open, v, v_load(s->d[b] + j * VW));
                _mm256_storeu_si256((__m256i *)(to[b][r] + j * VW),
                                    _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
            }
        }
    }
}

INLINE __m512i words_of(const void *block) {
    return _mm512_cvtepi8_epi16(load256(((const struct sheaf__block_q8_0 *)block)->qs));
}

/* 32 elements of R rows of y += weights . n rows of bytes, times scale. */
INLINE void mix_block(const char *x, size_t stride, int64_t n, int16_t (*w)[VALUES],
                      const float *scale, int R, struct fetch fetch, float *y, int64_t y_stride) {
    __m512i acc[VALUE_ROWS][2];
    UNROLL_8 for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = _mm512_setzero_si512();
    for (int64_t j = 0; j < n; j += 2, x += 2 * stride) {
        fetch_lines(fetch, x, 1);
        fetch_lines(fetch, x + stride, 1);
        /* the weight of a row that is not there is 0 */
        const __m512i a = words_of(x), b = words_of(x + (j + 1 < n ? stride : 0));
        const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
        UNROLL_8 for (int r = 0; r < R; r++) {
            const __m512i by = four_bytes(&w[r][j]);
            add_word_products(&acc[r][0], low, by);
            add_word_products(&acc[r][1], high, by);
        }
    }
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    UNROLL_8 for (int r = 0; r < R; r++) {
        float *p = y + r * y_stride;
        const v_f low = _mm512_cvtepi32_ps(acc[r][0]), high = _mm512_cvtepi32_ps(acc[r][1]);
        const v_f by = v_set1(scale[r]);
        v_store(p, v_fma(_mm512_permutex2var_ps(low, first, high), by, v_load(p)));
        v_store(p + VW, v_fma(_mm512_permutex2var_ps(low, second, high), by, v_load(p + VW)));
    }
}

INLINE void mix_values(const char *x, size_t stride, int64_t n, const struct value_scales *s,
                       int64_t blocks, const float *w, int64_t w_stride, int R, struct fetch fetch,
                       float *y, int64_t y_stride) {
    int16_t by[Q8_BLOCKS][VALUE_ROWS][VALUES];
    float scale[VALUE_ROWS];
    weights_of_values(s, n, blocks, w, w_stride, R, by, scale);
    for (int64_t b = 0; b < blocks; b++)
        mix_block(x + (size_t)b * sizeof(struct sheaf__block_q8_0), stride, n, by[b], scale, R,
                  fetch, y + b * SHEAF__QK, y_stride);
}

static void mix_integers(int64_t rows, const void *px, size_t stride, int64_t n, const float *w,
                         int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {
    const int64_t blocks = n / SHEAF__QK;
    const char *x = px;
    for (; rows > 0; rows -= VALUES, x += VALUES * stride, w += VALUES) {
        const int64_t some = rows < VALUES ? rows : VALUES;
        struct fetch fetch = fetch_bytes(stride);
        struct value_scales s;
        scales_of_values(x, stride, some, blocks, &s);
        int64_t r = 0;
#define MIX(R)                                                                                     \
    for (; n_y - r >= (R); r += (R), fetch = fetch_nothing())                                      \
    mix_values(x, stride, some, &s, blocks, w + r * w_stride, w_stride, R, fetch,                  \
               y + r * y_stride, y_stride)
        MIX(VALUE_ROWS);
        MIX(4);
        MIX(3);
        MIX(2);
        MIX(1);
#undef MIX
    }
}
