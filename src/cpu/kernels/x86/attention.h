/* A part of table.h, in the same terms: attention of many queries, and rows of a cache as floats.
 * Few queries are attention_few.h.
 *
 * A lane is a query, keys and values are broadcast, and the softmax needs no sum across lanes.
 *
 * Invariant: what a lane or a row holds does not depend on its number or on what is beside it. */

/* ---- rows of a cache as floats ---- */

enum { ROWS_AHEAD = 48 }; /* rows: the next ones lie a whole position apart */

/* How rows of a cache are fetched: to the second cache, and where lines are asked for more than once, from twice as
 * far, too. (With AVX2, where a row takes more instructions, twice cost a Zen 4 a tenth, D163.) */
INLINE struct fetch fetch_rows(size_t stride) {
    const size_t bytes = ROWS_AHEAD * stride;
    const bool twice = VW == 16 && sheaf__cpu_fetch == SHEAF__FETCH_OFTEN;
    return twice ? (struct fetch){{2 * bytes, bytes}, 2, false} : (struct fetch){{bytes}, 1, false};
}
/* Nothing, where rows are read again. */
INLINE struct fetch fetch_nothing(void) { return (struct fetch){.times = 0}; }

INLINE bool load_rows(enum sheaf_type type, const void *px, size_t stride, int64_t rows, int64_t n,
                      float *y, int64_t y_stride) {
    const char *x = px;
    const size_t size = plain_size(type);
    const struct fetch fetch = fetch_rows(stride);
    v_f acc[4] = {v_set1(0.0f), v_set1(0.0f), v_set1(0.0f), v_set1(0.0f)};
    for (int64_t r = 0; r < rows; r++, x += stride, y += y_stride) {
        int64_t i = 0;
        fetch_lines(fetch, x, (size_t)n * size);
        for (; i + 4 * VW <= n; i += 4 * VW) {
            UNROLL for (int j = 0; j < 4; j++) {
                v_f v = load_plain(type, x, i + j * VW);
                v_store(y + i + j * VW, v);
                acc[j] = finite_so_far(acc[j], v);
            }
        }
        for (; i < n; i += VW) {
            const int64_t len = n - i < VW ? n - i : VW;
            v_f v = len == VW ? load_plain(type, x, i) : load_plain_n(type, x, i, len);
            v_store_n(y + i, v, len);
            acc[0] = finite_so_far(acc[0], v);
        }
    }
    return v_sum(v_add(v_add(acc[0], acc[1]), v_add(acc[2], acc[3]))) == 0.0f;
}

#define LOAD_ROWS(NAME, TYPE)                                                                      \
    static bool NAME(const void *x, size_t stride, int64_t rows, int64_t n, float *y,              \
                     int64_t y_stride) {                                                           \
        return load_rows(TYPE, x, stride, rows, n, y, y_stride);                                   \
    }
LOAD_ROWS(load_rows_f32, SHEAF_TYPE_F32)
LOAD_ROWS(load_rows_f16, SHEAF_TYPE_F16)
LOAD_ROWS(load_rows_bf16, SHEAF_TYPE_BF16)

static bool load_rows_q8_0(const void *px, size_t stride, int64_t rows, int64_t n, float *y,
                           int64_t y_stride) {
    const char *x = px;
    const size_t size = (size_t)(n / 32) * sizeof(struct sheaf__block_q8_0);
    const struct fetch fetch = fetch_rows(stride);
    v_f acc = v_set1(0.0f);
    for (int64_t r = 0; r < rows; r++, x += stride, y += y_stride) {
        const struct sheaf__block_q8_0 *block = (const void *)x;
        fetch_lines(fetch, x, size);
        for (int64_t b = 0; b < n / 32; b++) {
            v_f d = v_set1(f16(block[b].d));
            acc = finite_so_far(acc, d); /* bytes are */
            UNROLL for (int j = 0; j < PER_32; j++)
                v_store(y + 32 * b + j * VW, v_mul(d, v_load_i8(block[b].qs + j * VW)));
        }
    }
    return v_sum(acc) == 0.0f;
}

/* Four numbers of a block that say whether all of its elements are finite: levels and nibbles are. */
INLINE __m128 block_numbers(enum sheaf_type type, const void *block, float *f) {
    block_scales(block, has_min(type), type == SHEAF_TYPE_Q4_0 ? -8.0f : -16.0f, f);
    return _mm_loadu_ps(f);
}

/* 32 elements of IQ4_NL: levels looked up as bytes. */
INLINE void levels32(const uint8_t *qs, v_f d, v_f *w) {
    int8_t q[SHEAF__QK];
    _mm256_storeu_si256((__m256i *)q, _mm256_shuffle_epi8(twice128(iq4_levels), nibbles(qs)));
    UNROLL for (int j = 0; j < PER_32; j++) w[j] = v_mul(d, v_load_i8(q + j * VW));
}

/* Rows of the other types of 32. Scales come ahead of their use, as in row_32. */
INLINE bool load_rows_32(enum sheaf_type type, const void *px, size_t stride, int64_t rows,
                         int64_t n, float *y, int64_t y_stride) {
    enum { AHEAD = 8 };
    const char *x = px;
    const size_t block = block_size_32(type), size = (size_t)(n / SHEAF__QK) * block;
    const struct fetch fetch = fetch_rows(stride);
    __m128 seen = _mm_setzero_ps();
    for (int64_t r = 0; r < rows; r++, x += stride, y += y_stride) {
        const char *p = x;
        fetch_lines(fetch, x, size);
        for (int64_t first = 0; first < n / SHEAF__QK; first += AHEAD) {
            const int64_t rest = n / SHEAF__QK - first, few = rest < AHEAD ? rest : AHEAD;
            float f[AHEAD][4], *to = y + first * SHEAF__QK;
            for (int64_t b = 0; b < few; b++)
                seen = _mm_fmadd_ps(block_numbers(type, p + (size_t)b * block, f[b]),
                                    _mm_setzero_ps(), seen);
            IN_MEMORY(f);
            for (int64_t b = 0; b < few; b++, p += block, to += SHEAF__QK) {
                v_f w[PER_32];
                if (type == SHEAF_TYPE_IQ4_NL) {
                    levels32(((const struct sheaf__block_iq4_nl *)(const void *)p)->qs,
                             v_set1(f[b][0]), w);
                } else {
                    weights32(type, p, f[b], w);
                }
                UNROLL for (int j = 0; j < PER_32; j++) v_store(to + j * VW, w[j]);
            }
        }
    }
    float sums[4];
    _mm_storeu_ps(sums, seen);
    return sums[0] + sums[1] + sums[2] + sums[3] == 0.0f;
}

#define LOAD_ROWS_32(NAME, TYPE)                                                                   \
    static bool NAME(const void *x, size_t stride, int64_t rows, int64_t n, float *y,              \
                     int64_t y_stride) {                                                           \
        return load_rows_32(TYPE, x, stride, rows, n, y, y_stride);                                \
    }
LOAD_ROWS_32(load_rows_q4_0, SHEAF_TYPE_Q4_0)
LOAD_ROWS_32(load_rows_q4_1, SHEAF_TYPE_Q4_1)
LOAD_ROWS_32(load_rows_q5_0, SHEAF_TYPE_Q5_0)
LOAD_ROWS_32(load_rows_q5_1, SHEAF_TYPE_Q5_1)
LOAD_ROWS_32(load_rows_iq4_nl, SHEAF_TYPE_IQ4_NL)

/* ---- many queries: a lane each ---- */

static void pack_lanes(const float *const *x, int64_t n, float *panel) {
    pack_columns(x, n, LANES, panel);
}

static void unpack_lanes(const float *panel, int64_t n, const float *by, int cols,
                         float *const *y) {
    for (int c = 0; c < cols; c += 4) {
        const int wide = cols - c < 4 ? cols - c : 4;
        const __m128 factor = _mm_loadu_ps(by + c);
        int64_t i = 0;
        for (; wide == 4 && i + 4 <= n; i += 4) {
            const float *from = panel + i * LANES + c;
            __m128 r0 = _mm_mul_ps(_mm_loadu_ps(from), factor);
            __m128 r1 = _mm_mul_ps(_mm_loadu_ps(from + LANES), factor);
            __m128 r2 = _mm_mul_ps(_mm_loadu_ps(from + 2 * LANES), factor);
            __m128 r3 = _mm_mul_ps(_mm_loadu_ps(from + 3 * LANES), factor);
            _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
            _mm_storeu_ps(y[c] + i, r0);
            _mm_storeu_ps(y[c + 1] + i, r1);
            _mm_storeu_ps(y[c + 2] + i, r2);
            _mm_storeu_ps(y[c + 3] + i, r3);
        }
        for (; i < n; i++) {
            for (int j = 0; j < wide; j++) y[c + j][i] = panel[i * LANES + c + j] * by[c + j];
        }
    }
}

static void lanes_scores(int64_t k, const float *keys, int64_t rows, const float *queries,
                         int lanes, float *c) {
    lanes_tiles(false, k, keys, k, 1, rows, queries, lanes, c, false);
}
static void lanes_values(int64_t n, const float *values, int64_t wide, const float *weights,
                         int lanes, float *c) {
    lanes_tiles(false, n, values, 1, wide, wide, weights, lanes, c, true);
}

INLINE void soften(int vectors, int64_t n, float scale, const float *mask, const float *slope,
                   float *scores, float *weights, float *max, float *sum, float *shrink) {
    v_f m[LANE_VECTORS], from[LANE_VECTORS], total[LANE_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) m[v] = v_load(max + v * VW);
    lanes_max(vectors, n, scale, mask, slope, scores, m);
    UNROLL for (int v = 0; v < vectors; v++) {
        from[v] = v_if_equal(m[v], v_set1(-INFINITY), v_set1(0.0f), m[v]);
        const v_f less = v_exp(v_sub(v_load(max + v * VW), from[v]));
        total[v] = v_mul(v_load(sum + v * VW), less);
        v_store(max + v * VW, m[v]);
        v_store(shrink + v * VW, less);
    }
    for (int64_t j = 0; j < n; j++, scores += LANES, weights += LANES) {
        UNROLL for (int v = 0; v < vectors; v++) {
            const v_f e = v_exp(v_sub(v_load(scores + v * VW), from[v]));
            v_store(weights + v * VW, e);
            total[v] = v_add(total[v], e);
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) v_store(sum + v * VW, total[v]);
}
/* See `soften` of kernels.h. */
static void lanes_soften(int64_t n, int lanes, float scale, const float *mask, const float *slope,
                         float *scores, float *weights, float *max, float *sum, float *shrink) {
    LANES_BY_VECTORS(lanes, soften, n, scale, mask, slope, scores, weights, max, sum, shrink);
}

/* exp(x) - 1 for |x| <= 30, as v_exp, without its loss near 0. */
INLINE v_f v_expm1(v_f x) {
    v_f n = v_round(v_mul(x, v_set1(1.44269504f)));
    v_f r = v_fnma(n, v_set1(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set1(0x1.7f7d1cp-20f), r);
    v_f p = v_set1(1.0f / 5040);
    p = v_fma(p, r, v_set1(1.0f / 720));
    p = v_fma(p, r, v_set1(1.0f / 120));
    p = v_fma(p, r, v_set1(1.0f / 24));
    p = v_fma(p, r, v_set1(1.0f / 6));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(v_mul(p, r), r, r);
    return v_add(v_ldexp(p, n), v_sub(v_ldexp(v_set1(1.0f), n), v_set1(1.0f)));
}

/* cap * tanh(x / cap), with tanh(u) = e / (e + 2) of e = exp(2 u) - 1. NaN passes. */
INLINE v_f v_softcap(v_f x, v_f cap, v_f twice_by) {
    x = v_max(v_set1(-30.0f), v_min(v_set1(30.0f), v_mul(x, twice_by)));
    v_f e = v_expm1(x);
    return v_mul(cap, v_div(e, v_add(e, v_set1(2.0f))));
}
static void softcap_f32(int64_t n, float cap, const float *x, float *y) {
    v_f c = v_set1(cap), by = v_set1(2.0f / cap);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_softcap(v_load(x + i), c, by));
    if (i < n) v_store_n(y + i, v_softcap(v_load_n(x + i, n - i), c, by), n - i);
}

/* Rows of acc times `by`. */
static void lanes_scale(int64_t n, int lanes, const float *by, float *acc) {
    for (int64_t i = 0; i < n; i++, acc += LANES) {
        for (int l = 0; l < lanes; l += VW)
            v_store(acc + l, v_mul(v_load(acc + l), v_load(by + l)));
    }
}
