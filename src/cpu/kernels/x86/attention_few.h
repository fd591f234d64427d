/* A part of table.h, in the same terms: attention of few queries, by rows of a cache as they lie.
 *
 * Vectors lie along a head, eight elements of each of ROWS_IN rows. A product of two rows is eight
 * partial sums, and those of VW keys are added up together, by halves: 21 instructions for VW
 * products (45 where a vector of 16 lanes is one row). Rows become floats in registers, once for
 * each DOT_QUERIES queries that share them, while the float units multiply.
 *
 * Invariant: element i of a product enters partial sum i mod 8, and a value is added key by key,
 * whatever is computed beside them. So the bits depend neither on the number of keys and queries
 * nor on the type in which the same floats lie. */

/* Bytes of n elements: whole blocks, also for half of one (Q8_0). */
INLINE size_t bytes_of_elements(enum sheaf_type type, int64_t n) {
    if (type == SHEAF_TYPE_Q8_0) return (size_t)(n + 31) / 32 * sizeof(struct sheaf__block_q8_0);
    return (size_t)n * plain_size(type);
}

/* ---- products ---- */

enum {
    ROWS_IN = VW / 8,
    DOT_VECTORS = VW / ROWS_IN, /* of VW keys */
    DOT_QUERIES = VW == 16 ? 8 : 4,
    DOT_MOST = 4, /* vectors of a tile */
    STEP = 32,    /* elements: a block of Q8_0 */
};
/* Vectors by Q queries: as many as there are registers for their sums. */
#define DOT_WIDE(Q) ((Q) > (VW == 16 ? 4 : 2) ? 2 : 4)

/* The first key of vector v; the one of its upper half is four further. */
INLINE int key_of(int v) { return ROWS_IN == 2 ? v / 4 * 8 + v % 4 : v; }

struct dot_rows {
    const char *low, *high; /* high: if ROWS_IN is 2 */
};

/* Elements [i, i + 8) of rows; of Q8_0 without their scales. */
INLINE v_f eights_of(enum sheaf_type type, struct dot_rows x, int64_t i) {
    const size_t at = type == SHEAF_TYPE_Q8_0
                          ? (size_t)(i / STEP) * sizeof(struct sheaf__block_q8_0) +
                                offsetof(struct sheaf__block_q8_0, qs) + (size_t)(i % STEP)
                          : bytes_of_elements(type, i);
    const void *a = x.low + at, *b = x.high + at;
    return type == SHEAF_TYPE_F32    ? v_eights(a, b)
           : type == SHEAF_TYPE_F16  ? v_eights_f16(a, b)
           : type == SHEAF_TYPE_BF16 ? v_eights_bf16(a, b)
                                     : v_eights_i8(a, b);
}

/* The scales of the blocks of which element i is the first. */
INLINE v_f scales_of(struct dot_rows x, int64_t i) {
    const size_t at = (size_t)(i / STEP) * sizeof(struct sheaf__block_q8_0);
    const struct sheaf__block_q8_0 *a = (const void *)(x.low + at),
                                   *b = (const void *)(x.high + at);
    return v_eights_set1(f16(a->d), f16(b->d));
}

/* acc[c][v] += vector v of floats . q[c], of eight elements. */
INLINE void dots_step(const v_f *x, int V, const float *const *q, int Q, int64_t i,
                      v_f (*acc)[DOT_MOST]) {
    UNROLL_8 for (int c = 0; c < Q; c++) {
        const v_f y = v_eight(q[c] + i);
        UNROLL for (int v = 0; v < V; v++) acc[c][v] = v_fma(x[v], y, acc[c][v]);
    }
}

/* The last elements of rows of floats, fewer than eight: zeros after them. */
INLINE void dots_end(int64_t i, int64_t k, const struct dot_rows *row, int V, const float *const *q,
                     int Q, v_f (*acc)[DOT_MOST]) {
    const size_t bytes = (size_t)(k - i) * sizeof(float);
    float low[8] = {0}, high[8] = {0}, y[8] = {0};
    v_f x[DOT_MOST];
    for (int v = 0; v < V; v++) {
        memcpy(low, (const float *)(const void *)row[v].low + i, bytes);
        memcpy(high, (const float *)(const void *)row[v].high + i, bytes);
        x[v] = v_eights(low, high);
    }
    for (int c = 0; c < Q; c++) {
        memcpy(y, q[c] + i, bytes);
        UNROLL for (int v = 0; v < V; v++) acc[c][v] = v_fma(x[v], v_eight(y), acc[c][v]);
    }
}

/* The next lines of rows. A few at a time: a core has no more than some 20 requests under way, and whole
 * rows of 256 at once were read at 12 GB/s, not at 20 (Zen 4). */
INLINE void fetch_step(struct fetch fetch, enum sheaf_type type, const struct dot_rows *row, int V,
                       int64_t i) {
    const size_t bytes = bytes_of_elements(type, STEP);
    const size_t at = bytes * (size_t)(i / STEP);
    UNROLL for (int v = 0; v < V; v++) {
        fetch_lines(fetch, row[v].low + at, bytes);
        if (ROWS_IN == 2) fetch_lines(fetch, row[v].high + at, bytes);
    }
}

/* V vectors of keys by Q queries. */
INLINE void dots_tile(enum sheaf_type type, int64_t k, const struct dot_rows *row, int V,
                      const float *const *q, int Q, struct fetch fetch, v_f (*acc)[DOT_MOST]) {
    const bool scaled = type == SHEAF_TYPE_Q8_0;
    v_f d[DOT_MOST], x[DOT_MOST];
    int64_t i = 0;
    UNROLL_8 for (int c = 0; c < Q; c++) {
        UNROLL for (int v = 0; v < V; v++) acc[c][v] = v_set1(0.0f);
    }
    for (; i + STEP <= k; i += STEP) {
        fetch_step(fetch, type, row, V, i);
        UNROLL for (int v = 0; v < V && scaled; v++) d[v] = scales_of(row[v], i);
        UNROLL for (int j = 0; j < STEP; j += 8) {
            UNROLL for (int v = 0; v < V; v++) {
                x[v] = eights_of(type, row[v], i + j);
                if (scaled) x[v] = v_mul(d[v], x[v]);
            }
            dots_step(x, V, q, Q, i + j, acc);
        }
    }
    for (; !scaled && i + 8 <= k; i += 8) {
        UNROLL for (int v = 0; v < V; v++) x[v] = eights_of(type, row[v], i);
        dots_step(x, V, q, Q, i, acc);
    }
    if (type == SHEAF_TYPE_F32 && i < k) dots_end(i, k, row, V, q, Q, acc);
}

/* The first VW of n keys by Q queries: out[c * out_stride + j]. */
INLINE void dots_keys(enum sheaf_type type, int64_t k, const char *x, size_t stride, int64_t n,
                      const float *const *q, int Q, struct fetch fetch, float *out,
                      int64_t out_stride) {
    enum { PAIRS = DOT_VECTORS / 2 };
    const int V = DOT_WIDE(Q);
    v_f pairs[DOT_QUERIES][PAIRS];
    for (int first = 0; first < DOT_VECTORS; first += V) {
        struct dot_rows row[DOT_MOST];
        v_f acc[DOT_QUERIES][DOT_MOST];
        UNROLL for (int v = 0; v < V; v++) {
            /* a row that is not there is computed from another and not used */
            const int64_t low = key_of(first + v), high = low + 4;
            row[v].low = x + (size_t)(low < n ? low : 0) * stride;
            row[v].high = ROWS_IN == 2 ? x + (size_t)(high < n ? high : 0) * stride : row[v].low;
        }
        dots_tile(type, k, row, V, q, Q, fetch, acc);
        UNROLL_8 for (int c = 0; c < Q; c++) {
            UNROLL for (int v = 0; v < V; v += 2) pairs[c][(first + v) / 2] =
                v_sum_twos(acc[c][v], acc[c][v + 1]);
        }
    }
    UNROLL_8 for (int c = 0; c < Q; c++) {
        const v_f sums = v_sum_eights(v_sum_fours(pairs[c][0], pairs[c][1]),
                                      v_sum_fours(pairs[c][2], pairs[c][3]));
        if (n >= VW) {
            v_store(out + c * out_stride, sums);
        } else {
            v_store_n(out + c * out_stride, sums, n);
        }
    }
}

/* Any number of queries, most of them DOT_QUERIES at a time. */
INLINE void dots_queries(enum sheaf_type type, int64_t k, const char *x, size_t stride, int64_t n,
                         const float *const *q, int n_q, struct fetch fetch, float *out,
                         int64_t out_stride) {
#define DOTS(Q)                                                                                    \
    for (; n_q >= (Q); n_q -= (Q), q += (Q), out += (Q)*out_stride, fetch = fetch_nothing())       \
    dots_keys(type, k, x, stride, n, q, Q, fetch, out, out_stride)
    DOTS(DOT_QUERIES);
    if (DOT_QUERIES > 4) DOTS(4);
    DOTS(3);
    DOTS(2);
    DOTS(1);
#undef DOTS
}

/* Rows that more queries meet than registers hold become floats once more for each DOT_QUERIES: in memory they were
 * slower to reach (8 queries of 64 with AVX2, F16: 16.4 ns a key, and 12.2 so; Zen 5, November 2026). */
INLINE void dots_rows(enum sheaf_type type, int64_t k, const char *x, size_t stride, int64_t rows,
                      const float *const *q, int n_q, float *out, int64_t out_stride) {
    const struct fetch fetch = fetch_rows(stride);
    for (; rows > 0; rows -= VW, x += VW * stride, out += VW)
        dots_queries(type, k, x, stride, rows, q, n_q, fetch, out, out_stride);
}

/* out[c][j] = row j of x . q[c] */
static void dots(int64_t k, const float *x, int64_t stride, int64_t rows, const float *const *q,
                 int n_q, float *out, int64_t out_stride) {
    const size_t bytes = (size_t)stride * sizeof *x;
    for (; rows > 0; rows -= VW, x += VW * stride, out += VW)
        dots_queries(SHEAF_TYPE_F32, k, (const char *)x, bytes, rows, q, n_q, fetch_nothing(), out,
                     out_stride);
}

/* ---- sums of values ---- */

/* Vectors of a row, and rows: 8 by half the vectors, so that they share what is converted. */
enum { MIX_VECTORS = VW == 16 ? 4 : 2, MIX_ROWS = VW == 16 ? 8 : 4 };

/* Elements [i, i + VW) of a row, or the n that there are, of floats. */
INLINE v_f vector_of(enum sheaf_type type, const char *row, int64_t i, int64_t n) {
    if (type != SHEAF_TYPE_Q8_0)
        return n < VW ? load_plain_n(type, row, i, n) : load_plain(type, row, i);
    const struct sheaf__block_q8_0 *b =
        (const struct sheaf__block_q8_0 *)(const void *)row + i / 32;
    return v_mul(v_set1(f16(b->d)), v_load_i8(b->qs + i % 32));
}

/* Rows ahead of which others are fetched meanwhile, piece by piece, as many bytes as are read. */
struct next_rows {
    struct fetch fetch;
    const char *p;            /* the row */
    size_t at, bytes, stride; /* at: of its bytes, what was fetched ahead of them */
};
/* If each pass over rows fetched the lines that it reads itself further on, memory would have
 * nothing to do in the second half of a pair of lines, which the hardware has fetched with the
 * first: a value of 64 by eight rows in F16 took 14.5 ns from memory, and takes 12.5 (Granite
 * Rapids, November 2026). */
INLINE void fetch_piece(struct next_rows *next, size_t bytes) {
    if (!next->fetch.times) return;
    fetch_lines(next->fetch, next->p + next->at, bytes);
    next->at += bytes;
    if (next->at >= next->bytes) next->at = 0, next->p += next->stride;
}

#if defined(KERNELS_HALVES)
/* acc += *w * v. A weight that is broadcast into a register would take pipes that multiply (attention_halves.h). */
INLINE void add_weighted(v_f *acc, const float *w, v_f v) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(v), "m"(*w));
}
#endif

/* R rows of y, `vectors` of them from element i on; of the last one n elements. */
INLINE void mix_tile(enum sheaf_type type, int64_t rows, const char *x, size_t stride, int64_t i,
                     int64_t n, const float *w, int64_t w_stride, int R, int vectors,
                     struct next_rows *next, float *y, int64_t y_stride) {
    v_f acc[MIX_ROWS][MIX_VECTORS], v[MIX_VECTORS];
    const size_t bytes = bytes_of_elements(type, vectors * VW);
    UNROLL_8 for (int r = 0; r < R; r++) {
        float *p = y + r * y_stride + i;
        UNROLL for (int u = 0; u < vectors; u++) acc[r][u] =
            n < VW ? v_load_n(p, n) : v_load(p + u * VW);
    }
    for (int64_t j = 0; j < rows; j++, x += stride) {
        fetch_piece(next, bytes);
        UNROLL for (int u = 0; u < vectors; u++) v[u] = vector_of(type, x, i + u * VW, n);
        UNROLL_8 for (int r = 0; r < R; r++) {
#if defined(KERNELS_HALVES)
            UNROLL for (int u = 0; u < vectors; u++)
                add_weighted(&acc[r][u], w + r * w_stride + j, v[u]);
#else
            const v_f a = v_set1(w[r * w_stride + j]);
            UNROLL for (int u = 0; u < vectors; u++) acc[r][u] = v_fma(a, v[u], acc[r][u]);
#endif
        }
    }
    UNROLL_8 for (int r = 0; r < R; r++) {
        float *p = y + r * y_stride + i;
        UNROLL for (int u = 0; u < vectors && n >= VW; u++) v_store(p + u * VW, acc[r][u]);
        if (n < VW) v_store_n(p, acc[r][0], n);
    }
}

INLINE void mix_rows(enum sheaf_type type, int64_t rows, const char *x, size_t stride, int64_t n,
                     const float *w, int64_t w_stride, int R, struct fetch fetch, float *y,
                     int64_t y_stride) {
    const int vectors = R > 4 ? MIX_VECTORS / 2 : MIX_VECTORS;
    struct next_rows next = {fetch, x, 0, bytes_of_elements(type, n), stride};
    int64_t i = 0;
    for (; i + vectors * VW <= n; i += vectors * VW)
        mix_tile(type, rows, x, stride, i, VW, w, w_stride, R, vectors, &next, y, y_stride);
    for (; i + VW <= n; i += VW)
        mix_tile(type, rows, x, stride, i, VW, w, w_stride, R, 1, &next, y, y_stride);
    if (type == SHEAF_TYPE_F32 && i < n)
        mix_tile(type, rows, x, stride, i, n - i, w, w_stride, R, 1, &next, y, y_stride);
}

INLINE void mix_typed(enum sheaf_type type, int64_t rows, const char *x, size_t stride, int64_t n,
                      const float *w, int64_t w_stride, int64_t n_y, struct fetch fetch, float *y,
                      int64_t y_stride) {
#define MIX(R)                                                                                     \
    for (; n_y >= (R); n_y -= (R), w += (R)*w_stride, y += (R)*y_stride, fetch = fetch_nothing())  \
    mix_rows(type, rows, x, stride, n, w, w_stride, R, fetch, y, y_stride)
    MIX(MIX_ROWS);
    if (MIX_ROWS > 4) MIX(4);
    MIX(3);
    MIX(2);
    MIX(1);
#undef MIX
}

static void mix_floats(int64_t rows, const void *x, size_t stride, int64_t n, const float *w,
                       int64_t w_stride, int64_t n_y, struct fetch fetch, float *y,
                       int64_t y_stride) {
    mix_typed(SHEAF_TYPE_F32, rows, x, stride, n, w, w_stride, n_y, fetch, y, y_stride);
}

/* y[r] += sum of w[r][j] * row j of x */
static void mix(int64_t rows, const float *x, int64_t stride, int64_t n, const float *w,
                int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {
    mix_floats(rows, x, (size_t)stride * sizeof *x, n, w, w_stride, n_y, fetch_nothing(), y,
               y_stride);
}

/* ---- entries ---- */

#if defined(KERNELS_HALVES)
#include "cpu/kernels/x86/attention_halves.h"
#else
#define DOTS_AS_THEY_LIE dots_rows
#endif

#define DIRECT(TYPE, NAME)                                                                         \
    static void dots_##NAME(int64_t k, const void *x, size_t stride, int64_t rows,                 \
                            const float *const *q, int n_q, float *out, int64_t out_stride) {      \
        DOTS_AS_THEY_LIE(TYPE, k, x, stride, rows, q, n_q, out, out_stride);                       \
    }                                                                                              \
    static void mix_##NAME(int64_t rows, const void *x, size_t stride, int64_t n, const float *w,  \
                           int64_t w_stride, int64_t n_y, float *y, int64_t y_stride) {            \
        const struct fetch fetch = fetch_rows(stride);                                             \
        if (TYPE == SHEAF_TYPE_F32) {                                                              \
            mix_floats(rows, x, stride, n, w, w_stride, n_y, fetch, y, y_stride);                  \
        } else {                                                                                   \
            mix_typed(TYPE, rows, x, stride, n, w, w_stride, n_y, fetch, y, y_stride);             \
        }                                                                                          \
    }
DIRECT(SHEAF_TYPE_F32, f32)
DIRECT(SHEAF_TYPE_F16, f16)
DIRECT(SHEAF_TYPE_BF16, bf16)
#if !defined(KERNELS_VNNI_512)
DIRECT(SHEAF_TYPE_Q8_0, q8_0)
#endif
