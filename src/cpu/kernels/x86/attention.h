/* A part of kernels.h, in the same terms: attention.
 *
 * Few queries: vectors lie along a head. A dot product with each of VW keys leaves a vector of
 * partial sums for each; those VW vectors are added up together, by halves, so that a sum costs
 * three instructions instead of nine. Many queries: a lane is a query, keys and values are
 * broadcast, and the softmax needs no sum across lanes.
 *
 * Invariant: what a lane or a row holds does not depend on its number or on what is beside it. */

/* ---- rows of a cache as floats ---- */

enum { ROWS_AHEAD = 32 }; /* rows: the next ones lie a whole position apart */

/* Takes a vector to what shows whether all of them were finite: 0 times what is not is NaN. */
INLINE v_f finite_so_far(v_f acc, v_f x) { return v_fma(x, v_set1(0.0f), acc); }

INLINE bool load_rows(enum sheaf_type type, const void *px, size_t stride, int64_t rows, int64_t n,
                      float *y, int64_t y_stride) {
    const char *x = px;
    const size_t size = type == SHEAF_TYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    v_f acc[4] = {v_set1(0.0f), v_set1(0.0f), v_set1(0.0f), v_set1(0.0f)};
    for (int64_t r = 0; r < rows; r++, x += stride, y += y_stride) {
        int64_t i = 0;
        prefetch(x + ROWS_AHEAD * stride, (size_t)n * size);
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
    v_f acc = v_set1(0.0f);
    for (int64_t r = 0; r < rows; r++, x += stride, y += y_stride) {
        const struct sheaf__block_q8_0 *block = (const void *)x;
        prefetch(x + ROWS_AHEAD * stride, size);
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
    static const int8_t levels[16] = SHEAF__IQ4_LEVELS;
    int8_t q[SHEAF__QK];
    _mm256_storeu_si256((__m256i *)q, _mm256_shuffle_epi8(twice128(levels), nibbles(qs)));
    UNROLL for (int j = 0; j < PER_32; j++) w[j] = v_mul(d, v_load_i8(q + j * VW));
}

/* Rows of the other types of 32. Scales come ahead of their use, as in row_32. */
INLINE bool load_rows_32(enum sheaf_type type, const void *px, size_t stride, int64_t rows,
                         int64_t n, float *y, int64_t y_stride) {
    enum { AHEAD = 8 };
    const char *x = px;
    const size_t block =
        type == SHEAF_TYPE_IQ4_NL ? sizeof(struct sheaf__block_iq4_nl) : block_size_32(type);
    const size_t size = (size_t)(n / SHEAF__QK) * block;
    __m128 seen = _mm_setzero_ps();
    for (int64_t r = 0; r < rows; r++, x += stride, y += y_stride) {
        const char *p = x;
        prefetch(x + ROWS_AHEAD * stride, size);
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

/* ---- few queries ---- */

/* As many as there are registers for their sums. */
enum { DOT_QUERIES = VW == 16 ? 4 : 2 };

/* Keys [0, VW) by Q queries, n of the keys there: a vector of each is loaded once for all. */
INLINE void dots_vector(int64_t k, const float *x, int64_t stride, int64_t n, const float *const *q,
                        int Q, float *const *out) {
    v_f quads[DOT_QUERIES][VW / 4];
    UNROLL for (int g = 0; g < VW / 4; g++) {
        const float *row[4];
        v_f acc[DOT_QUERIES][4];
        UNROLL for (int j = 0; j < 4; j++) {
            /* a row that is not there is computed from another and not used */
            row[j] = x + (4 * g + j < n ? 4 * g + j : 0) * stride;
            UNROLL for (int c = 0; c < Q; c++) acc[c][j] = v_set1(0.0f);
        }
        int64_t i = 0;
        for (; i + VW <= k; i += VW) {
            v_f y[DOT_QUERIES];
            UNROLL for (int c = 0; c < Q; c++) y[c] = v_load(q[c] + i);
            UNROLL for (int j = 0; j < 4; j++) {
                v_f v = v_load(row[j] + i);
                UNROLL for (int c = 0; c < Q; c++) acc[c][j] = v_fma(v, y[c], acc[c][j]);
            }
        }
        for (int j = 0; j < 4 && i < k; j++) {
            for (int c = 0; c < Q; c++)
                acc[c][j] =
                    v_fma(v_load_n(row[j] + i, k - i), v_load_n(q[c] + i, k - i), acc[c][j]);
        }
        UNROLL for (int c = 0; c < Q; c++) quads[c][g] = v_sum_quads(acc[c]);
    }
    UNROLL for (int c = 0; c < Q; c++) {
        v_f sums = v_sum_lanes(quads[c]);
        if (n >= VW) {
            v_store(out[c], sums);
        } else {
            v_store_n(out[c], sums, n);
        }
    }
}

/* out[c][j] = row j of x . q[c] */
static void dots(int64_t k, const float *x, int64_t stride, int64_t rows, const float *const *q,
                 int n_q, float *out, int64_t out_stride) {
    for (int64_t j = 0; j < rows; j += VW) {
        const float *key = x + j * stride;
        for (int c = 0; c < n_q; c += DOT_QUERIES) {
            float *to[4];
            for (int i = 0; i < 4; i++) to[i] = out + (c + i) * out_stride + j;
            const int some = n_q - c < DOT_QUERIES ? n_q - c : DOT_QUERIES;
            if (some == 4) dots_vector(k, key, stride, rows - j, q + c, DOT_QUERIES, to);
            if (some == 3) dots_vector(k, key, stride, rows - j, q + c, DOT_QUERIES - 1, to);
            if (some == 2) dots_vector(k, key, stride, rows - j, q + c, 2, to);
            if (some == 1) dots_vector(k, key, stride, rows - j, q + c, 1, to);
        }
    }
}

#if defined(__clang__)
#define UNROLL_8 UNROLL
#else
#define UNROLL_8 _Pragma("GCC unroll 8")
#endif

enum { MIX_VECTORS = VW == 16 ? 4 : 2, MIX_ROWS = 4 };
/* Rows that mix_direct takes at once: 8 by half the vectors, so that they share what is converted. */
enum { MIX_DIRECT = VW == 16 ? 8 : 4 };

/* R rows of y from element i on, vectors of them */
INLINE void mix_piece(int64_t rows, const float *x, int64_t stride, const float *w,
                      int64_t w_stride, int R, int vectors, float *y, int64_t y_stride) {
    v_f acc[MIX_ROWS][MIX_VECTORS], v[MIX_VECTORS];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int i = 0; i < vectors; i++) acc[r][i] = v_load(y + r * y_stride + i * VW);
    }
    for (int64_t j = 0; j < rows; j++, x += stride) {
        UNROLL for (int i = 0; i < vectors; i++) v[i] = v_load(x + i * VW);
        UNROLL for (int r = 0; r < R; r++) {
            v_f a = v_set1(w[r * w_stride + j]);
            UNROLL for (int i = 0; i < vectors; i++) acc[r][i] = v_fma(a, v[i], acc[r][i]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int i = 0; i < vectors; i++) v_store(y + r * y_stride + i * VW, acc[r][i]);
    }
}

INLINE void mix_rows(int64_t rows, const float *x, int64_t stride, int64_t n, const float *w,
                     int64_t w_stride, int R, float *y, int64_t y_stride) {
    int64_t i = 0;
    for (; i + MIX_VECTORS * VW <= n; i += MIX_VECTORS * VW)
        mix_piece(rows, x + i, stride, w, w_stride, R, MIX_VECTORS, y + i, y_stride);
    for (; i + VW <= n; i += VW) mix_piece(rows, x + i, stride, w, w_stride, R, 1, y + i, y_stride);
    for (int r = 0; r < R && i < n; r++) {
        v_f acc = v_load_n(y + r * y_stride + i, n - i);
        for (int64_t j = 0; j < rows; j++)
            acc = v_fma(v_set1(w[r * w_stride + j]), v_load_n(x + j * stride + i, n - i), acc);
        v_store_n(y + r * y_stride + i, acc, n - i);
    }
}

/* y[r] += sum of w[r][j] * row j of x */
static void mix(int64_t rows, const float *x, int64_t stride, int64_t n, const float *w,
                int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {
    for (; n_y >= 4; n_y -= 4, w += 4 * w_stride, y += 4 * y_stride)
        mix_rows(rows, x, stride, n, w, w_stride, 4, y, y_stride);
    if (n_y == 3) mix_rows(rows, x, stride, n, w, w_stride, 3, y, y_stride);
    if (n_y == 2) mix_rows(rows, x, stride, n, w, w_stride, 2, y, y_stride);
    if (n_y == 1) mix_rows(rows, x, stride, n, w, w_stride, 1, y, y_stride);
}

/* ---- few queries by rows of a cache as they lie ----
 *
 * Converting in registers keeps the float units at work while rows come; the bits are those of
 * load_rows, then dots or mix. */

/* Vector number i / VW of a row: its elements from i on. */
INLINE v_f vector_of(enum sheaf_type type, const char *row, int64_t i) {
    if (type != SHEAF_TYPE_Q8_0) return load_plain(type, row, i);
    const struct sheaf__block_q8_0 *b =
        (const struct sheaf__block_q8_0 *)(const void *)row + i / 32;
    return v_mul(v_set1(f16(b->d)), v_load_i8(b->qs + i % 32));
}
/* Bytes of n elements: whole blocks, also for half of one (Q8_0). */
INLINE size_t bytes_of_elements(enum sheaf_type type, int64_t n) {
    if (type == SHEAF_TYPE_Q8_0) return (size_t)(n + 31) / 32 * sizeof(struct sheaf__block_q8_0);
    return (size_t)n * (type == SHEAF_TYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* Four keys by Q queries. With `keep` the keys are left there as floats. */
INLINE void dots_four(enum sheaf_type type, int64_t k, const char *const *row,
                      const float *const *q, int Q, float *keep, v_f (*acc)[4]) {
    enum { STEP = 32 };
    UNROLL for (int c = 0; c < Q; c++) {
        UNROLL for (int j = 0; j < 4; j++) acc[c][j] = v_set1(0.0f);
    }
    for (int64_t i = 0; i < k; i += STEP) {
        UNROLL for (int v = 0; v < STEP; v += VW) {
            v_f x[4];
            UNROLL for (int j = 0; j < 4; j++) x[j] = vector_of(type, row[j], i + v);
            if (keep) {
                UNROLL for (int j = 0; j < 4; j++) v_store(keep + j * k + i + v, x[j]);
            }
            UNROLL for (int c = 0; c < Q; c++) {
                const v_f y = v_load(q[c] + i + v);
                UNROLL for (int j = 0; j < 4; j++) acc[c][j] = v_fma(x[j], y, acc[c][j]);
            }
        }
    }
}

/* Keys [0, VW) by Q queries, n of the keys there; the first call for them fetches those to come. */
INLINE void dots_keys(enum sheaf_type type, int64_t k, const char *x, size_t stride, int64_t n,
                      const float *const *q, int Q, bool first, float *keep, float *const *out) {
    v_f quads[DOT_QUERIES][VW / 4];
    for (int g = 0; g < VW / 4; g++) {
        const char *row[4];
        v_f acc[DOT_QUERIES][4];
        UNROLL for (int j = 0; j < 4; j++) {
            /* a row that is not there is computed from another and not used */
            row[j] = x + (size_t)(4 * g + j < n ? 4 * g + j : 0) * stride;
            if (first) prefetch(row[j] + ROWS_AHEAD * stride, bytes_of_elements(type, k));
        }
        dots_four(type, k, row, q, Q, keep ? keep + 4 * g * k : NULL, acc);
        UNROLL for (int c = 0; c < Q; c++) quads[c][g] = v_sum_quads(acc[c]);
    }
    UNROLL for (int c = 0; c < Q; c++) {
        const v_f sums = v_sum_lanes(quads[c]);
        if (n >= VW) {
            v_store(out[c], sums);
        } else {
            v_store_n(out[c], sums, n);
        }
    }
}

INLINE void dots_rows(enum sheaf_type type, int64_t k, const char *x, size_t stride, int64_t rows,
                      const float *const *q, int n_q, float *out, int64_t out_stride) {
    float floats[VW * SHEAF__DIRECT_WIDTH];
    for (int64_t j = 0; j < rows; j += VW, x += VW * stride) {
        for (int c = 0; c < n_q; c += DOT_QUERIES) {
            const int some = n_q - c < DOT_QUERIES ? n_q - c : DOT_QUERIES;
            float *to[4];
            for (int i = 0; i < 4; i++) to[i] = out + (c + i) * out_stride + j;
            if (c > 0) {
                const int64_t n = rows - j;
                const size_t width = (size_t)k * sizeof *floats;
                const char *f = (const char *)floats;
                const enum sheaf_type as = SHEAF_TYPE_F32;
                if (some == 4) dots_keys(as, k, f, width, n, q + c, DOT_QUERIES, false, NULL, to);
                if (some == 3)
                    dots_keys(as, k, f, width, n, q + c, DOT_QUERIES - 1, false, NULL, to);
                if (some == 2) dots_keys(as, k, f, width, n, q + c, 2, false, NULL, to);
                if (some == 1) dots_keys(as, k, f, width, n, q + c, 1, false, NULL, to);
            } else if (n_q > DOT_QUERIES) {
                dots_keys(type, k, x, stride, rows - j, q, DOT_QUERIES, true, floats, to);
            } else {
                if (some == 4)
                    dots_keys(type, k, x, stride, rows - j, q, DOT_QUERIES, true, NULL, to);
                if (some == 3)
                    dots_keys(type, k, x, stride, rows - j, q, DOT_QUERIES - 1, true, NULL, to);
                if (some == 2) dots_keys(type, k, x, stride, rows - j, q, 2, true, NULL, to);
                if (some == 1) dots_keys(type, k, x, stride, rows - j, q, 1, true, NULL, to);
            }
        }
    }
}

/* R rows of y from element i on, so many vectors of them. */
INLINE void mix_direct(enum sheaf_type type, int64_t rows, const char *x, size_t stride, int64_t i,
                       const float *w, int64_t w_stride, int R, int vectors, bool first, float *y,
                       int64_t y_stride) {
    v_f acc[MIX_DIRECT][MIX_VECTORS], v[MIX_VECTORS];
    const size_t at = bytes_of_elements(type, i), bytes = bytes_of_elements(type, vectors * VW);
    UNROLL_8 for (int r = 0; r < R; r++) {
        UNROLL for (int j = 0; j < vectors; j++) acc[r][j] = v_load(y + r * y_stride + i + j * VW);
    }
    for (int64_t j = 0; j < rows; j++, x += stride) {
        if (first) prefetch(x + ROWS_AHEAD * stride + at, bytes);
        UNROLL for (int u = 0; u < vectors; u++) v[u] = vector_of(type, x, i + u * VW);
        UNROLL_8 for (int r = 0; r < R; r++) {
            v_f a = v_set1(w[r * w_stride + j]);
            UNROLL for (int u = 0; u < vectors; u++) acc[r][u] = v_fma(a, v[u], acc[r][u]);
        }
    }
    UNROLL_8 for (int r = 0; r < R; r++) {
        UNROLL for (int j = 0; j < vectors; j++) v_store(y + r * y_stride + i + j * VW, acc[r][j]);
    }
}

INLINE void mix_some(enum sheaf_type type, int64_t rows, const char *x, size_t stride, int64_t n,
                     const float *w, int64_t w_stride, int R, bool first, float *y,
                     int64_t y_stride) {
    const int vectors = R > 4 ? MIX_VECTORS / 2 : MIX_VECTORS;
    int64_t i = 0;
    for (; i + vectors * VW <= n; i += vectors * VW)
        mix_direct(type, rows, x, stride, i, w, w_stride, R, vectors, first, y, y_stride);
    for (; i < n; i += VW)
        mix_direct(type, rows, x, stride, i, w, w_stride, R, 1, first, y, y_stride);
}

INLINE void mix_typed(enum sheaf_type type, int64_t rows, const char *x, size_t stride, int64_t n,
                      const float *w, int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {
    bool first = true;
    for (; n_y >= MIX_DIRECT; n_y -= MIX_DIRECT, first = false) {
        mix_some(type, rows, x, stride, n, w, w_stride, MIX_DIRECT, first, y, y_stride);
        w += MIX_DIRECT * w_stride, y += MIX_DIRECT * y_stride;
    }
    for (; n_y >= 4; n_y -= 4, w += 4 * w_stride, y += 4 * y_stride, first = false)
        mix_some(type, rows, x, stride, n, w, w_stride, 4, first, y, y_stride);
    if (n_y == 3) mix_some(type, rows, x, stride, n, w, w_stride, 3, first, y, y_stride);
    if (n_y == 2) mix_some(type, rows, x, stride, n, w, w_stride, 2, first, y, y_stride);
    if (n_y == 1) mix_some(type, rows, x, stride, n, w, w_stride, 1, first, y, y_stride);
}

#define DIRECT(TYPE, NAME)                                                                         \
    static void dots_##NAME(int64_t k, const void *x, size_t stride, int64_t rows,                 \
                            const float *const *q, int n_q, float *out, int64_t out_stride) {      \
        dots_rows(TYPE, k, x, stride, rows, q, n_q, out, out_stride);                              \
    }                                                                                              \
    static void mix_##NAME(int64_t rows, const void *x, size_t stride, int64_t n, const float *w,  \
                           int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {            \
        mix_typed(TYPE, rows, x, stride, n, w, w_stride, n_y, y, y_stride);                        \
    }
DIRECT(SHEAF_TYPE_F32, f32)
DIRECT(SHEAF_TYPE_F16, f16)
DIRECT(SHEAF_TYPE_BF16, bf16)
DIRECT(SHEAF_TYPE_Q8_0, q8_0)

/* ---- many queries: a lane each ---- */

enum { LANE_VECTORS = 3, LANES = LANE_VECTORS * VW, LANE_ROWS = VW == 16 ? 8 : 4 };

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

/* c[r] = or += sum over i of a[r * by_row + i * by_i] * panel[i], for LANE_ROWS rows r */
INLINE void lanes_tile(int64_t k, const float *a, int64_t by_row, int64_t by_i, const float *panel,
                       int vectors, float *c, bool add) {
    v_f acc[LANE_ROWS][LANE_VECTORS], b[LANE_VECTORS];
    UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
            add ? v_load(c + r * LANES + v * VW) : v_set1(0.0f);
    }
    for (int64_t i = 0; i < k; i++, panel += LANES) {
        UNROLL for (int v = 0; v < vectors; v++) b[v] = v_load(panel + v * VW);
        UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
            v_f x = v_set1(a[r * by_row + i * by_i]);
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = v_fma(x, b[v], acc[r][v]);
        }
    }
    UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) v_store(c + r * LANES + v * VW, acc[r][v]);
    }
}

#define LANES_TILES(BY_ROW, BY_I, A, ADD)                                                          \
    const int vectors = (lanes + VW - 1) / VW;                                                     \
    for (int64_t r = 0; r < rows; r += LANE_ROWS, c += LANE_ROWS * LANES) {                        \
        if (vectors == 1) lanes_tile(k, A, BY_ROW, BY_I, panel, 1, c, ADD);                        \
        if (vectors == 2) lanes_tile(k, A, BY_ROW, BY_I, panel, 2, c, ADD);                        \
        if (vectors == 3) lanes_tile(k, A, BY_ROW, BY_I, panel, 3, c, ADD);                        \
    }

static void lanes_scores(int64_t k, const float *a, int64_t stride, int64_t rows,
                         const float *panel, int lanes, float *c) {
    LANES_TILES(stride, 1, a + r * stride, false)
}
static void lanes_values(int64_t k, const float *a, int64_t stride, int64_t rows,
                         const float *panel, int lanes, float *c) {
    LANES_TILES(1, stride, a + r, true)
}

/* See `soften` of kernels.h. */
static void lanes_soften(int64_t n, int lanes, float scale, const float *mask, const float *slope,
                         float *scores, float *max, float *sum, float *shrink) {
    for (int l = 0; l < lanes; l += VW) {
        v_f m = v_load(max + l), s = v_set1(scale), before = m, closed = v_set1(-INFINITY);
        float *at = scores + l;
        for (int64_t j = 0; j < n; j++, at += LANES) {
            v_f x = v_mul(v_load(at), s);
            if (mask) {
                v_f y = v_load(mask + j * LANES + l);
                x = v_if_equal(y, closed, closed, v_fma(v_load(slope + l), y, x));
            }
            v_store(at, x);
            m = v_max(x, m);
        }
        v_f from = v_if_equal(m, closed, v_set1(0.0f), m);
        v_f less = v_exp(v_sub(before, from)), total = v_mul(v_load(sum + l), less);
        at = scores + l;
        for (int64_t j = 0; j < n; j++, at += LANES) {
            v_f e = v_exp(v_sub(v_load(at), from));
            v_store(at, e);
            total = v_add(total, e);
        }
        v_store(max + l, m);
        v_store(sum + l, total);
        v_store(shrink + l, less);
    }
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
