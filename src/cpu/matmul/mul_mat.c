/* MUL_MAT and MUL_MAT_ID over a thread team.
 *
 * Two phases with a barrier between them. First the columns of src1 are turned into the activation
 * format in use, once, in the work buffer (plain floats that are dense already are used where they
 * lie). Then chunks of weight rows are taken from a shared counter; a chunk is
 * multiplied with all columns, tile_cols of the kernels at a time, while its rows are in cache.
 *
 * Invariant: what a thread writes is decided by the chunk alone, so neither the number of threads
 * nor the order in which chunks are taken is visible in the result. */
#include <string.h>

#include "cpu/matmul/mul_mat.h"
#include "cpu/matmul/repacked.h"

#include "base/arith.h"
#include "sheaf/tensor.h"

enum {
    CHUNKS_PER_THREAD = 8,   /* so that a late thread costs an eighth of its share at most */
    MIN_CHUNK = 16,          /* rows; 16 floats of dst are a cache line */
    MAX_CHUNK = 64,          /* rows; 64 rows of 4-bit weights of k = 4096 fit half of a small L2 */
    CHUNK_BYTES = 256 << 10, /* of weights that are read again for the next columns */
    /* rows that are read once only: what counts then is that each thread reads on in memory. Two
     * threads read F16 at 49 GB/s in chunks of 64 rows, at 54 in these (AMD EPYC, Zen 5, November
     * 2026). */
    MAX_CHUNK_ONCE = 512,
    /* Columns longer than this are multiplied in parts, for GROUP rows each: a column of 14336 does
     * not stay in the first cache beside the weights, and one thread then read Q4_0 at 8 GB/s and
     * Q8_0 at 15 instead of 30 and 32 (the same machine). In three digits one of 8192 does not stay
     * in 32 KiB: a Zen 4 read Q8_0 at 20 GB/s, in parts at 31. Parts are as long as they may be (D161) and whole
     * units of every format. */
    MAX_WHOLE = 8192,
    MAX_WHOLE_OF_3 = 6144,
    MAX_PART_OF_FLOATS = 4096,
    PART_UNIT = SHEAF__SEGMENT,
    GROUP = 32,
    /* Converted columns that begin whole KiB apart share few sets of the first cache: F16 by 16
     * took 120 us a MiB instead of 54 (k = 2048, Zen 5). */
    ALIAS = 1024, /* bytes */
    APART = 320,  /* added then */
};

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

static bool dense_rows(const struct sheaf_tensor *t) {
    return t->nb[0] == sheaf_type_size(t->type);
}

/* ---- phase 1: columns of src1 ---- */

struct columns {
    const struct sheaf_tensor *b;
    enum sheaf__act act;
    enum sheaf__digits_order order;
    sheaf__rows_dot_fn rows_dot; /* that goes with act; takes columns in that format */
    bool direct;                 /* src1's own memory is the activation format */
    int64_t k, n;                /* elements of a column; columns */
    int tile;                    /* columns that rows_dot takes at once */
    size_t row_size;             /* bytes of a converted column */
    char *data;
};

/* Of a product in which at most so many columns meet one row. */
static struct columns describe_columns(const struct sheaf__cpu_kernels *kern,
                                       const struct sheaf_tensor *dst, int64_t most, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    struct columns c = {
        .b = b, .tile = kern->tile_cols, .act = SHEAF__ACT_F32, .k = b->ne[0], .data = work};
    const struct sheaf__cpu_repacked *repacked = sheaf__cpu_repacked(a);
    c.rows_dot = kern->rows_dot[a->type];
    if (!c.rows_dot) c.rows_dot = sheaf__cpu_kernels_portable.rows_dot[a->type];
    if (kern->rows_dot_digits[a->type]) {
        c.act = SHEAF__ACT_DIGITS;
        c.rows_dot = repacked ? repacked->rows_dot_digits : kern->rows_dot_digits[a->type];
    }
    c.n = b->ne[1] * b->ne[2] * b->ne[3];
    c.order = kern->digits_order[a->type];
    if (sheaf__mul_mat_rounds_rows(kern, dst)) {
        c.rows_dot = repacked ? repacked->rows_dot_rounded : kern->rows_dot_rounded[a->type];
        c.act = sheaf_is_quantized(a->type) ? SHEAF__ACT_BYTES : SHEAF__ACT_BF16;
        c.order = sheaf__bytes_order(c.order);
        if (c.act == SHEAF__ACT_BF16) c.tile = kern->bf16_cols;
    } else if (most > 1 && kern->rows_dot_few[a->type]) {
        c.act = SHEAF__ACT_WORDS;
        c.rows_dot = repacked ? repacked->rows_dot_few : kern->rows_dot_few[a->type];
        c.order = kern->few_order[a->type];
    }
    c.direct = c.act == SHEAF__ACT_F32 && b->type == SHEAF_TYPE_F32 && dense_rows(b);
    c.row_size = sheaf__align_up(sheaf__act_row_size(c.act, c.k), 64);
    if (c.row_size % ALIAS == 0) c.row_size += APART;
    return c;
}

static size_t columns_size(const struct columns *c) {
    return c->direct ? 0 : (size_t)c->n * c->row_size;
}

static const char *column_source(const struct sheaf_tensor *b, int64_t i1, int64_t i2, int64_t i3) {
    return (const char *)b->data + (size_t)i1 * b->nb[1] + (size_t)i2 * b->nb[2] +
           (size_t)i3 * b->nb[3];
}

static const void *column(const struct columns *c, int64_t i1, int64_t i2, int64_t i3) {
    if (c->direct) return column_source(c->b, i1, i2, i3);
    return c->data + (size_t)((i3 * c->b->ne[2] + i2) * c->b->ne[1] + i1) * c->row_size;
}

const float *sheaf__mul_mat_gather(const struct sheaf__cpu_kernels *kern,
                                   const struct sheaf_tensor *b, const char *src, int64_t i,
                                   int64_t n, float *tmp) {
    src += (size_t)i * b->nb[0];
    if (dense_rows(b)) {
        if (b->type == SHEAF_TYPE_F32) return (const float *)(const void *)src;
        kern->to_float[SHEAF_TYPE_F16](src, tmp, n);
        return tmp;
    }
    for (int64_t j = 0; j < n; j++, src += b->nb[0]) {
        uint16_t h;
        if (b->type == SHEAF_TYPE_F32) {
            memcpy(&tmp[j], src, sizeof tmp[j]);
        } else {
            memcpy(&h, src, sizeof h);
            tmp[j] = sheaf_fp16_to_fp32(h);
        }
    }
    return tmp;
}

/* The threads share out columns, or segments of columns when there are fewer columns than threads:
 * blocks are independent of each other. */
static void convert_columns(const struct sheaf__cpu_kernels *kern, const struct columns *c, int ith,
                            int nth) {
    const struct sheaf_tensor *b = c->b;
    float tmp[SHEAF__SEGMENT];
    int64_t segments = (c->k + SHEAF__SEGMENT - 1) / SHEAF__SEGMENT, step = c->n < nth ? nth : 1;
    int64_t first_segment = c->n < nth ? ith : 0;
    const bool at_end = sheaf__digits_at_end(c->k);
    for (int64_t j = c->n < nth ? 0 : ith; j < c->n; j += c->n < nth ? 1 : nth) {
        int64_t i1 = j % b->ne[1], i2 = j / b->ne[1] % b->ne[2], i3 = j / b->ne[1] / b->ne[2];
        const char *src = column_source(b, i1, i2, i3);
        char *dst = c->data + (size_t)j * c->row_size;
        for (int64_t s = first_segment; s < segments; s += step) {
            int64_t i = s * SHEAF__SEGMENT, n = min_i64(SHEAF__SEGMENT, c->k - i);
            const float *x = sheaf__mul_mat_gather(kern, b, src, i, n, tmp);
            void *at = dst + sheaf__act_row_size(c->act, i);
            if (c->act == SHEAF__ACT_DIGITS) {
                kern->to_digits(x, at, n, at_end, c->order);
            } else if (c->act == SHEAF__ACT_WORDS) {
                kern->to_words(x, at, n, at_end, c->order);
            } else if (c->act == SHEAF__ACT_BYTES) {
                kern->to_bytes(x, at, n, at_end, c->order);
            } else if (c->act == SHEAF__ACT_BF16) {
                kern->from_float[SHEAF_TYPE_BF16](x, at, n);
            } else {
                memcpy(at, x, (size_t)n * sizeof *x);
            }
        }
    }
}

/* ---- phase 2: rows of src0 ---- */

/* out[c] = `rows` rows at w . nc columns. How a column is cut depends on the product alone. */
static void multiply(const struct columns *c, const struct sheaf_tensor *a, const char *w,
                     int64_t rows, const void *const *act, int nc, float *const *out) {
    const size_t stride = a->nb[1];
    const bool three = c->act == SHEAF__ACT_DIGITS && sheaf__digits_used(c->order) == 3;
    const bool floats = c->act == SHEAF__ACT_F32 || c->act == SHEAF__ACT_BF16;
    const int64_t whole = three ? MAX_WHOLE_OF_3 : MAX_WHOLE;
    if (c->k <= whole) {
        c->rows_dot(c->k, w, stride, rows, act, nc, out);
        return;
    }
    const int64_t most = floats ? MAX_PART_OF_FLOATS : whole;
    const int64_t parts = (c->k + most - 1) / most, even = (c->k + parts - 1) / parts;
    const int64_t part = (even + PART_UNIT - 1) / PART_UNIT * PART_UNIT;
    for (int64_t r0 = 0; r0 < rows; r0 += GROUP, w += GROUP * stride) {
        const int64_t n = min_i64(GROUP, rows - r0);
        float sums[SHEAF__BF16_COLS][GROUP];
        for (int64_t i = 0, now; i < c->k; i += now) {
            const void *at[SHEAF__BF16_COLS];
            float *to[SHEAF__BF16_COLS];
            /* less than a unit goes with the part before it: kernels look back from the end of a
             * row */
            now = c->k - i < part + PART_UNIT ? c->k - i : part;
            for (int j = 0; j < nc; j++) {
                at[j] = (const char *)act[j] + sheaf__act_row_size(c->act, i);
                to[j] = i == 0 ? out[j] + r0 : sums[j];
            }
            c->rows_dot(now, w + sheaf_row_size(a->type, i), stride, n, at, nc, to);
            for (int j = 0; i > 0 && j < nc; j++) {
                for (int64_t r = 0; r < n; r++) out[j][r0 + r] += sums[j][r];
            }
        }
    }
}

static int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* once: rows are read once only. */
static int64_t chunk_rows(int64_t rows, int64_t batches, bool once, size_t row_size, int nth) {
    const int64_t fit = max_i64(CHUNK_BYTES / ((int64_t)row_size + 1), MIN_CHUNK);
    const int64_t most = once ? MAX_CHUNK_ONCE : min_i64(fit / MIN_CHUNK * MIN_CHUNK, MAX_CHUNK);
    int64_t share = rows * batches / ((int64_t)nth * CHUNKS_PER_THREAD);
    share = (share + MIN_CHUNK - 1) / MIN_CHUNK * MIN_CHUNK;
    return share < MIN_CHUNK ? MIN_CHUNK : min_i64(share, most);
}

/* A thread's chunk of a round. */
static int64_t round_share(int64_t rows, int nth) {
    return rows * 3 / (4 * (int64_t)nth) / MIN_CHUNK * MIN_CHUNK;
}

/* Chunk number t of `rows` rows that are read once: each round of a chunk for every thread takes
 * three quarters of what is left, so that threads read on in memory for long and yet end together:
 * reading is slow where a chunk begins. Returns the rows of the chunk from *first on, 0 beyond the
 * last. */
static int64_t shrinking_chunk(int64_t rows, int nth, int64_t t, int64_t *first) {
    int64_t at = 0, chunk = nth > 1 ? round_share(rows, nth) : rows;
    for (; t >= nth && chunk > MIN_CHUNK; t -= nth) {
        at += nth * chunk;
        chunk = round_share(rows - at, nth);
    }
    if (chunk < MIN_CHUNK) chunk = MIN_CHUNK;
    *first = at + t * chunk;
    return *first < rows ? min_i64(chunk, rows - *first) : 0;
}

enum sheaf_status sheaf__mul_mat(const struct sheaf_tensor *dst, int ith, int nth, void *work,
                                 struct sheaf__cpu_sync *sync) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];

    if (!kern) return SHEAF_STATUS_INVALID;
    if (sheaf_is_empty(dst)) return SHEAF_STATUS_SUCCESS;
    if (sheaf__mul_mat_by_panels(kern, dst, sheaf__mul_mat_whole_columns(dst)))
        return sheaf__mul_mat_panels(kern, dst, ith, nth, work, sync);
    const int64_t n = sheaf__mul_mat_columns(a, b);
    const struct columns cols = describe_columns(kern, dst, n, work);
    if (ith == 0) sync->packed = NULL;
    if (!cols.direct) convert_columns(kern, &cols, ith, nth);
    sheaf__mul_mat_start(sync, ith, nth);

    int64_t m = a->ne[1], batches = a->ne[2] * a->ne[3];
    const bool once = batches == 1 && n <= cols.tile;
    int64_t chunk = chunk_rows(m, batches, n <= cols.tile, sheaf_row_size(a->type, cols.k), nth),
            chunks = (m + chunk - 1) / chunk;
    for (;;) {
        const int64_t t = sheaf__mul_mat_take(sync), batch = once ? 0 : t / chunks;
        int64_t first = t % chunks * chunk, rows = min_i64(chunk, m - first);
        if (once) rows = shrinking_chunk(m, nth, t, &first);
        if (batch >= batches || rows == 0) break;
        const int64_t a2 = batch % a->ne[2], a3 = batch / a->ne[2];
        const char *w = (const char *)a->data + (size_t)first * a->nb[1] + (size_t)a2 * a->nb[2] +
                        (size_t)a3 * a->nb[3];
        for (int64_t j0 = 0; j0 < n; j0 += cols.tile) {
            const void *act[SHEAF__BF16_COLS];
            float *out[SHEAF__BF16_COLS];
            int nc = (int)min_i64(cols.tile, n - j0);
            for (int c = 0; c < nc; c++) {
                struct sheaf__mul_mat_at at = sheaf__mul_mat_at(a, b, a2, a3, j0 + c);
                act[c] = column(&cols, at.i1, at.i2, at.i3);
                out[c] = (float *)(void *)sheaf__mul_mat_ptr(dst, at) + first;
            }
            multiply(&cols, a, w, rows, act, nc, out);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- experts ---- */

/* The pairs (u, n) sorted by expert, made by thread 0; pair p is (p % u, p / u). It lies after the
 * converted columns in the work buffer:
 *   start[x + 2]  pairs[start[e] .. start[e + 1]) use expert e; e = x: no expert held here
 *   groups[x]     those of the experts that have pairs: first the n_many that are multiplied by
 *                 panels, then the n_few by rows
 *   pairs[u n] */
struct routing {
    int64_t n_many, n_few;
    int64_t bad_pair; /* a pair whose id is out of range, or -1 */
    int64_t *start, *pairs;
    struct sheaf__mul_mat_group *groups;
};

static size_t routing_size(const struct sheaf_tensor *dst) {
    int64_t x = dst->src[0]->ne[2], pairs = dst->ne[1] * dst->ne[2];
    return sizeof(struct routing) + (size_t)x * sizeof(struct sheaf__mul_mat_group) +
           (size_t)(x + 2 + pairs) * sizeof(int64_t);
}

static int32_t id_of(const struct sheaf_tensor *ids, int64_t u, int64_t n) {
    int32_t id;
    memcpy(&id, (const char *)ids->data + (size_t)u * ids->nb[0] + (size_t)n * ids->nb[1],
           sizeof id);
    return id;
}

/* The expert of a pair among those held here: x if another device holds it, -1 if none does. */
static int64_t expert_of(const struct sheaf_tensor *dst, int64_t u, int64_t n) {
    int64_t base = dst->op_params[SHEAF_OP_PARAM_BASE];
    int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT], x = dst->src[0]->ne[2];
    int64_t id = id_of(dst->src[2], u, n);
    if (extent == 0) return id >= 0 && id < x ? id : -1;
    if (id < 0 || id >= extent) return -1;
    return id >= base && id < base + x ? id - base : x;
}

static void make_routing(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst,
                         struct routing *r) {
    int64_t x = dst->src[0]->ne[2], n_pairs = dst->ne[1] * dst->ne[2], u = dst->ne[1];
    r->groups = (struct sheaf__mul_mat_group *)(void *)(r + 1);
    r->start = (int64_t *)(void *)(r->groups + x);
    r->pairs = r->start + x + 2;
    r->n_many = r->n_few = 0;
    r->bad_pair = -1;
    memset(r->start, 0, (size_t)(x + 2) * sizeof *r->start);
    for (int64_t p = 0; p < n_pairs; p++) {
        int64_t e = expert_of(dst, p % u, p / u);
        if (e < 0) {
            r->bad_pair = p;
            return;
        }
        r->start[e + 1]++;
    }
    for (int64_t e = 0; e <= x; e++) r->start[e + 1] += r->start[e];
    /* fill from the back of each expert's range: start[e + 1] walks down to where e begins */
    for (int64_t p = n_pairs - 1; p >= 0; p--)
        r->pairs[--r->start[expert_of(dst, p % u, p / u) + 1]] = p;
    /* now start[e + 1] is the first pair of e: shift down */
    memmove(r->start, r->start + 1, (size_t)(x + 1) * sizeof *r->start);
    r->start[x + 1] = n_pairs;
    for (int many = 1; many >= 0; many--) {
        for (int64_t e = 0; e < x; e++) {
            const int64_t n = r->start[e + 1] - r->start[e];
            if (n == 0 || sheaf__mul_mat_by_panels(kern, dst, n) != (many != 0)) continue;
            r->groups[r->n_many + r->n_few] =
                (struct sheaf__mul_mat_group){e, n, r->pairs + r->start[e]};
            *(many ? &r->n_many : &r->n_few) += 1;
        }
    }
}

static float *dst_row(const struct sheaf_tensor *dst, int64_t i1, int64_t i2) {
    return (float *)(void *)((char *)dst->data + (size_t)i1 * dst->nb[1] + (size_t)i2 * dst->nb[2]);
}

static enum sheaf_status bad_expert(const struct sheaf_tensor *dst, int64_t pair) {
    int64_t u = pair % dst->ne[1], n = pair / dst->ne[1];
    int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    return sheaf_set_error(
        SHEAF_STATUS_INVALID, "%s: expert id %d (choice %lld of token %lld) is outside [0, %lld)",
        dst->name[0] ? dst->name : "MUL_MAT_ID", (int)id_of(dst->src[2], u, n), (long long)u,
        (long long)n, (long long)(extent != 0 ? extent : dst->src[0]->ne[2]));
}

enum sheaf_status sheaf__mul_mat_id(const struct sheaf_tensor *dst, int ith, int nth, void *work,
                                    struct sheaf__cpu_sync *sync) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];

    if (!kern) return SHEAF_STATUS_INVALID;
    if (sheaf_is_empty(dst)) return SHEAF_STATUS_SUCCESS;
    const struct columns cols = describe_columns(kern, dst, dst->ne[2], work);
    struct routing *route = (void *)((char *)work + columns_size(&cols));
    if (ith == 0) sync->packed = NULL;
    if (ith == 0) make_routing(kern, dst, route);
    const bool some_by_panels =
        sheaf__mul_mat_by_panels(kern, dst, dst->ne[1] * dst->ne[2]); /* all to one */
    if (!some_by_panels && !cols.direct) convert_columns(kern, &cols, ith, nth);
    sheaf__mul_mat_start(sync, ith, nth);
    if (route->bad_pair >= 0) return bad_expert(dst, route->bad_pair);
    if (some_by_panels) {
        if (route->n_few > 0 && !cols.direct) convert_columns(kern, &cols, ith, nth);
        sheaf__mul_mat_id_panels(
            kern, dst, route->groups, route->n_many, ith, nth,
            (char *)work + sheaf__align_up(columns_size(&cols) + routing_size(dst), 64), sync);
        if (route->n_few > 0) {
            sheaf__cpu_barrier(sync, nth); /* all have taken their last number */
            sheaf__mul_mat_start(sync, ith, nth);
        }
    }

    int64_t m = a->ne[1], x = a->ne[2], n_u = dst->ne[1];
    for (int64_t i = route->start[x] + ith; i < route->start[x + 1]; i += nth) {
        int64_t p = route->pairs[i];
        memset(dst_row(dst, p % n_u, p / n_u), 0, (size_t)m * sizeof(float));
    }
    int64_t chunk = chunk_rows(m, route->n_few, cols.n <= cols.tile,
                               sheaf_row_size(a->type, cols.k), nth),
            chunks = (m + chunk - 1) / chunk;
    for (int64_t t = sheaf__mul_mat_take(sync); t < chunks * route->n_few;
         t = sheaf__mul_mat_take(sync)) {
        int64_t e = route->groups[route->n_many + t / chunks].expert;
        int64_t first = t % chunks * chunk, rows = min_i64(chunk, m - first);
        const char *w = (const char *)a->data + (size_t)first * a->nb[1] + (size_t)e * a->nb[2];
        for (int64_t j0 = route->start[e]; j0 < route->start[e + 1]; j0 += cols.tile) {
            const void *act[SHEAF__TILE_COLS];
            float *out[SHEAF__TILE_COLS];
            int nc = (int)min_i64(cols.tile, route->start[e + 1] - j0);
            for (int c = 0; c < nc; c++) {
                int64_t u = route->pairs[j0 + c] % n_u, n = route->pairs[j0 + c] / n_u;
                act[c] = column(&cols, u % b->ne[1], n, 0);
                out[c] = dst_row(dst, u, n) + first;
            }
            multiply(&cols, a, w, rows, act, nc, out);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- reference ---- */

/* Work of thread ith: a row of weights and a column, as floats. */
struct ref_rows {
    float *w, *x;
};

static size_t ref_size(const struct sheaf_tensor *dst) {
    return 2 * sheaf__align_up((size_t)dst->src[0]->ne[0] * sizeof(float), 64);
}

static struct ref_rows ref_rows(const struct sheaf_tensor *dst, void *work, int ith) {
    char *mem = (char *)work + (size_t)ith * ref_size(dst);
    return (struct ref_rows){(void *)mem, (void *)(mem + ref_size(dst) / 2)};
}

static float dot_double(int64_t k, const float *w, const float *x) {
    double sum = 0;
    for (int64_t i = 0; i < k; i++) sum += (double)w[i] * (double)x[i];
    return (float)sum;
}

enum sheaf_status sheaf__mul_mat_ref(const struct sheaf_tensor *dst, int ith, int nth, void *work) {
    const struct sheaf__cpu_kernels *kern = &sheaf__cpu_kernels_portable;
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    struct ref_rows buf = ref_rows(dst, work, ith);

    if (sheaf_is_empty(dst)) return SHEAF_STATUS_SUCCESS;
    int64_t k = a->ne[0], m = a->ne[1], n = sheaf__mul_mat_columns(a, b);
    for (int64_t t = ith; t < m * a->ne[2] * a->ne[3]; t += nth) {
        int64_t row = t % m, a2 = t / m % a->ne[2], a3 = t / m / a->ne[2];
        const char *w = (const char *)a->data + (size_t)row * a->nb[1] + (size_t)a2 * a->nb[2] +
                        (size_t)a3 * a->nb[3];
        enum sheaf_status status = sheaf_to_float(a->type, w, buf.w, k);
        if (status != SHEAF_STATUS_SUCCESS) return status;
        for (int64_t j = 0; j < n; j++) {
            struct sheaf__mul_mat_at at = sheaf__mul_mat_at(a, b, a2, a3, j);
            const float *x = sheaf__mul_mat_gather(kern, b, sheaf__mul_mat_ptr(b, at), 0, k, buf.x);
            float *out = (float *)(void *)sheaf__mul_mat_ptr(dst, at);
            out[row] = dot_double(k, buf.w, x);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__mul_mat_id_ref(const struct sheaf_tensor *dst, int ith, int nth,
                                        void *work) {
    const struct sheaf__cpu_kernels *kern = &sheaf__cpu_kernels_portable;
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    struct ref_rows buf = ref_rows(dst, work, ith);

    if (sheaf_is_empty(dst)) return SHEAF_STATUS_SUCCESS;
    int64_t k = a->ne[0], x = a->ne[2], n_u = dst->ne[1];
    for (int64_t p = 0; p < n_u * dst->ne[2]; p++) { /* every thread, so that all agree */
        if (expert_of(dst, p % n_u, p / n_u) < 0) return bad_expert(dst, p);
    }
    for (int64_t p = ith; p < n_u * dst->ne[2]; p += nth) {
        int64_t u = p % n_u, n = p / n_u, e = expert_of(dst, u, n);
        const float *col =
            sheaf__mul_mat_gather(kern, b, column_source(b, u % b->ne[1], n, 0), 0, k, buf.x);
        float *out = dst_row(dst, u, n);
        for (int64_t row = 0; row < a->ne[1]; row++) {
            out[row] = 0;
            if (e == x) continue;
            const char *w = (const char *)a->data + (size_t)row * a->nb[1] + (size_t)e * a->nb[2];
            enum sheaf_status status = sheaf_to_float(a->type, w, buf.w, k);
            if (status != SHEAF_STATUS_SUCCESS) return status;
            out[row] = dot_double(k, buf.w, col);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

size_t sheaf__mul_mat_work_size(const struct sheaf_tensor *dst, int nth) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    size_t size = 0, ref = (size_t)nth * ref_size(dst);
    const bool id = dst->op == SHEAF_OP_MUL_MAT_ID;
    const int64_t n = id ? dst->ne[2] : sheaf__mul_mat_columns(dst->src[0], dst->src[1]);
    const bool panels =
        kern && sheaf__mul_mat_by_panels(kern, dst,
                                         id ? dst->ne[1] * n : sheaf__mul_mat_whole_columns(dst));
    if (kern && (id || !panels)) {
        const struct columns cols = describe_columns(kern, dst, n, NULL);
        size = columns_size(&cols);
    }
    if (panels && !id) size = sheaf__mul_mat_panels_size(kern, dst, nth);
    if (id) size = sheaf__align_up(size + routing_size(dst), 64);
    if (panels && id) size += sheaf__mul_mat_id_panels_size(kern, dst, nth);
    return size > ref ? size : ref;
}
