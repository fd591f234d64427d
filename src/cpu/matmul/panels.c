/* MUL_MAT with many columns: blocked for the caches as BLIS does it.
 *
 * First the threads pack the columns of src1 in panels, once, in the work buffer. Then they take
 * chunks of weight rows. A chunk is unpacked, to floats or to integers, PASS elements of k at a
 * time; those, and the sums of the chunk, stay in the second cache, while the piece of one panel
 * that they meet stays in the first. If there is one panel only, a tile's rows are unpacked at a time,
 * and stay in the first as well; then a chunk has more rows, so that the pieces of the panel, which
 * come from the second cache, do so less often. Weights that are not quantized are many bytes for one
 * panel, so reading them counts: each tile takes all of k, in passes so short that weights are fetched
 * while others are multiplied. Some kinds read weights where they lie for one panel or two, all of k at once
 * (tile_in_place); a chunk's last rows, if they are too few for that, go as others do. Sums are kept as the tiles leave
 * them and written to dst at the end.
 *
 * Invariant: a sum runs over k in order (see the tiles), so threads, chunks and blocks of columns
 * do not show in its bits. */
#include <string.h>

#include "base/arith.h"
#include "cpu/matmul/mul_mat.h"
#include "cpu/matmul/repacked.h"

enum {
    /* Of kinds that round, where rows do not: from so many columns on */
    MIN_COLUMNS = 8,
    LAST_EXACT = SHEAF__PANELS_24_IN_PLACE, /* kinds behind it round */
    /* rows_dot goes over the weights once for each tile_cols columns; panels unpack them, and cost the same for 9
     * columns as for 16. Up to so many columns rows are faster. */
    MOST_BY_ROWS = 12,
    MIN_ROUNDED_PLAIN = 4, /* columns: fewer cost little beside the reading of weights */
    PASS = SHEAF__SEGMENT, /* elements of k; 32 columns of them are 32 KiB */
    /* The same by tiles. F16 by 16 columns, us a MiB: 196 with passes of 256 over a chunk, 160 so, 160 and
     * 185 with 64 and 32 elements (k = 2048, Xeon with AMX, November 2026). */
    TILE_PASS = 128,
    /* Elements of a row that are fetched ahead then: the next pass begins 400 cycles later, sooner than memory
     * answers. TinyLlama's shape in F16 generated for 16 sequences at 144 tokens/s with one pass ahead, at 188 with
     * two, at 181 with four (Zen 5, November 2026). */
    TILE_AHEAD = 2 * TILE_PASS,
    CHUNK = 96,      /* rows at most, whole tiles of every table: 96 KiB as floats of a pass */
    CHUNK_ONE = 192, /* with one panel: half of its sums, for 16 columns, are 12 KiB */
    BLOCK = 512,     /* columns: sums of a chunk are 192 KiB */
    CHUNKS_PER_THREAD = 4, /* at least, where there are as many tiles */
    MAX_PANEL_COLS = 32,
    /* Columns that read weights where they lie at most, if the kind can: one panel or two, one after the other */
    MOST_IN_PLACE = 32,
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

struct product {
    const struct sheaf__cpu_kernels *kern;
    const struct sheaf_tensor *a, *b, *dst;
    int64_t k, m, batches;
    int64_t columns; /* at most so many meet one matrix */
    const struct sheaf__cpu_panels *kind;
    const struct sheaf__cpu_repacked *repacked; /* of a; NULL: it lies as it was written */
    int64_t rows;            /* of a tile */
    int64_t cols;            /* of a panel */
    sheaf__tile_fn in_place; /* few panels: reads weights where they lie; or NULL */
    bool by_tiles;           /* one panel: a tile takes all of k before the next does */
    int64_t pass;            /* elements of k that are multiplied at a time */
    int64_t piece;           /* elements of k that are packed at a time */
    int64_t chunk;           /* rows */
    size_t stride;           /* bytes from one row of a pass to the next */
    size_t panel_size;       /* bytes */
};

/* A matrix of a and the columns that meet it. */
struct matrix {
    const char *w;
    int64_t a2, a3;
    const int64_t *pairs; /* MUL_MAT_ID: the columns' pairs; else NULL */
    int64_t n, panels;    /* columns; panels of them */
    char *packed;
};

/* Bytes of k elements of a panel, and of an unpacked row. */
static size_t panel_bytes(const struct sheaf__cpu_panels *kind, int64_t k) {
    return (size_t)(round_up(k, kind->unit) / kind->unit) * kind->panel_bytes;
}
static size_t row_bytes(const struct sheaf__cpu_panels *kind, int64_t k) {
    return (size_t)(round_up(k, kind->unit) / kind->unit) * kind->row_bytes;
}

/* Rows at most that meet several panels: whole tiles. */
static int64_t chunk_of(const struct sheaf__cpu_panels *kind) {
    return kind->chunk ? kind->chunk : round_up(CHUNK, kind->rows);
}

/* Columns that meet one matrix. Panels of all experts are of one kind, which is that of the mean of an expert. A member
 * that has some of the experts or columns counts all, so that it computes the same bits. */
static int64_t columns_of(const struct sheaf_tensor *dst) {
    if (dst->op != SHEAF_OP_MUL_MAT_ID) return sheaf__mul_mat_whole_columns(dst);
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const int64_t pairs = dst->ne[1] * dst->ne[2];
    const int64_t experts = extent != 0 ? extent : dst->src[0]->ne[2];
    return experts > 0 ? (pairs + experts - 1) / experts : 0;
}

static bool lacks(const struct sheaf__cpu_panels *kind, enum sheaf_type type, int64_t columns) {
    const bool has = kind->unpack[type] || (kind->from_floats && type != SHEAF_TYPE_F32);
    return !has || (sheaf_is_quantized(type) &&
                    (columns <= kind->above || (kind->most && columns > kind->most)));
}

/* Plain weights from so many columns on, not heads of one token that meet the same K/V head; not plain experts, which
 * few rows meet. */
bool sheaf__mul_mat_rounds_rows(const struct sheaf__cpu_kernels *kern,
                                const struct sheaf_tensor *dst) {
    const enum sheaf_type type = dst->src[0]->type;
    if (!kern->rows_dot_rounded[type]) return false;
    if (sheaf_is_quantized(type)) return sheaf__rounding() == SHEAF__ROUND_Q8;
    if (sheaf__rounding() == SHEAF__ROUND_NONE || dst->op != SHEAF_OP_MUL_MAT) return false;
    return sheaf__mul_mat_whole_ne1(dst) >= MIN_ROUNDED_PLAIN;
}

/* Floats are for all types that have nothing better. Fewer columns than a kind that rounds is for are rounded by rows,
 * or not at all. */
static const struct sheaf__cpu_panels *kind_of(const struct sheaf__cpu_kernels *kern,
                                               const struct sheaf_tensor *dst) {
    static const int best[] = {[SHEAF__ROUND_NONE] = LAST_EXACT,
                               [SHEAF__ROUND_BF16] = SHEAF__PANELS_BF16,
                               [SHEAF__ROUND_Q8] = SHEAF__PANELS_8};
    const enum sheaf_type type = dst->src[0]->type;
    const int64_t n = columns_of(dst);
    const struct sheaf__cpu_panels *kind = &kern->panels[best[sheaf__rounding()]];
    const bool by_rows = sheaf__mul_mat_rounds_rows(kern, dst);
    while (kind > &kern->panels[LAST_EXACT] &&
           (lacks(kind, type, n) || (!by_rows && n < kind->from[type])))
        kind--;
    while (kind > &kern->panels[SHEAF__PANELS_FLOATS] && lacks(kind, type, n)) kind--;
    return kind;
}

/* So many columns and more are faster by panels of this kind than by rows. */
static int64_t fewest(const struct sheaf__cpu_kernels *kern, const struct sheaf__cpu_panels *kind,
                      enum sheaf_type type) {
    if (kind->from[type] > 0) return kind->from[type];
    return kind <= &kern->panels[LAST_EXACT] ? MOST_BY_ROWS + 1 : MIN_COLUMNS;
}

/* Where rows round, the table says how many columns go by rows. Not of experts, whose columns are converted once
 * for all, whatever number of them each gets. */
bool sheaf__mul_mat_by_panels(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst,
                              int64_t columns) {
    const enum sheaf_type type = dst->src[0]->type;
    if (kern->panels[SHEAF__PANELS_FLOATS].rows == 0 || dst->src[0]->ne[0] == 0) return false;
    const struct sheaf__cpu_panels *kind = kind_of(kern, dst);
    if (dst->op == SHEAF_OP_MUL_MAT && sheaf__mul_mat_rounds_rows(kern, dst) && !kind->from[type])
        return columns > (sheaf_is_quantized(type) ? kern->rounded_cols : kern->bf16_cols);
    return columns >= fewest(kern, kind, type);
}

static bool by_tiles(const struct sheaf__cpu_panels *kind, enum sheaf_type type, int64_t columns) {
    const bool plain = !sheaf_is_quantized(type) && kind->unit <= TILE_PASS;
    return kind->whole_rows || (plain && columns <= kind->cols);
}

static struct product product_of(const struct sheaf__cpu_kernels *kern,
                                 const struct sheaf_tensor *dst, int64_t columns, int nth) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    struct product p = {.kern = kern, .a = a, .b = b, .dst = dst};
    p.k = a->ne[0];
    p.m = a->ne[1];
    p.batches = a->ne[2] * a->ne[3];
    p.columns = columns;
    p.kind = kind_of(kern, dst);
    p.repacked = sheaf__cpu_repacked(a);
    p.rows = p.kind->rows;
    p.cols = p.kind->cols;
    if (columns <= MOST_IN_PLACE && p.k % 32 == 0) p.in_place = p.kind->tile_in_place[a->type];
    p.by_tiles = by_tiles(p.kind, a->type, columns);
    p.pass = p.kind->whole_rows ? p.k : p.by_tiles ? TILE_PASS : PASS;
    p.piece = min_i64(p.pass, PASS);
    p.stride = row_bytes(p.kind, p.pass);
    if (p.rows > 16)
        p.stride += 64; /* a power of two would put 32 rows in few sets of the first cache */
    p.panel_size = panel_bytes(p.kind, p.k);
    const int64_t share = p.m * p.batches / ((int64_t)nth * CHUNKS_PER_THREAD);
    const int64_t most = columns <= p.cols && !p.by_tiles ? CHUNK_ONE : chunk_of(p.kind);
    const int64_t together = p.in_place ? p.kind->rows_in_place : p.rows;
    p.chunk = round_up(min_i64(share > 0 ? share : 1, most), together);
    return p;
}

static int64_t panels_of(const struct product *p, int64_t columns) {
    return (columns + p->cols - 1) / p->cols;
}

static struct matrix matrix_of(const struct product *p, int64_t batch, char *packed) {
    struct matrix m = {.a2 = batch % p->a->ne[2], .a3 = batch / p->a->ne[2]};
    m.w = (const char *)p->a->data + (size_t)m.a2 * p->a->nb[2] + (size_t)m.a3 * p->a->nb[3];
    m.n = sheaf__mul_mat_columns(p->a, p->b);
    m.panels = panels_of(p, m.n);
    m.packed = packed + (size_t)(batch * m.panels) * p->panel_size;
    return m;
}

/* Where column j of a matrix lies in src1, and where its results go. */
static const char *source(const struct product *p, const struct matrix *m, int64_t j) {
    if (!m->pairs) return sheaf__mul_mat_ptr(p->b, sheaf__mul_mat_at(p->a, p->b, m->a2, m->a3, j));
    const int64_t u = m->pairs[j] % p->dst->ne[1], n = m->pairs[j] / p->dst->ne[1];
    return sheaf__mul_mat_ptr(p->b, (struct sheaf__mul_mat_at){u % p->b->ne[1], n, 0});
}
static char *result(const struct product *p, const struct matrix *m, int64_t j) {
    if (!m->pairs)
        return sheaf__mul_mat_ptr(p->dst, sheaf__mul_mat_at(p->a, p->b, m->a2, m->a3, j));
    const int64_t u = m->pairs[j] % p->dst->ne[1], n = m->pairs[j] / p->dst->ne[1];
    return sheaf__mul_mat_ptr(p->dst, (struct sheaf__mul_mat_at){u, n, 0});
}

/* Panel q of a matrix, from element i on. */
static char *panel(const struct product *p, const struct matrix *m, int64_t q, int64_t i) {
    return m->packed + (size_t)q * p->panel_size + panel_bytes(p->kind, i);
}

/* What a thread has of its own: a pass of a chunk, and the sums of a chunk for a block of columns
 * as [panels of the block][chunk][cols]. */
static size_t pass_size(const struct product *p) {
    return sheaf__align_up((size_t)min_i64(p->chunk, chunk_of(p->kind)) * p->stride, 64);
}
static size_t scratch_size(const struct product *p, int64_t columns) {
    const int64_t block = min_i64(panels_of(p, columns) * p->cols, BLOCK);
    return pass_size(p) + sheaf__align_up((size_t)(p->chunk * block) * sizeof(float), 64);
}

static size_t packed_size(const struct product *p, int64_t panels) {
    return sheaf__align_up((size_t)panels * p->panel_size, 64);
}

size_t sheaf__mul_mat_panels_size(const struct sheaf__cpu_kernels *kern,
                                  const struct sheaf_tensor *dst, int nth) {
    const int64_t n = sheaf__mul_mat_columns(dst->src[0], dst->src[1]);
    const struct product p = product_of(kern, dst, n, nth);
    return packed_size(&p, p.batches * panels_of(&p, n)) + (size_t)nth * scratch_size(&p, n);
}

/* Columns of panel q. */
static int used_of(const struct product *p, const struct matrix *m, int64_t q) {
    return (int)min_i64(p->cols, m->n - q * p->cols);
}

/* Piece s of k of panel q. */
static void pack(const struct product *p, const struct matrix *m, int64_t q, int64_t s) {
    static const float zeros[SHEAF__SEGMENT];
    float tmp[MAX_PANEL_COLS][SHEAF__SEGMENT];
    const float *x[MAX_PANEL_COLS];
    const int64_t i = s * p->piece, n = min_i64(p->piece, p->k - i);
    const int used = used_of(p, m, q);
    for (int c = 0; c < p->cols; c++) {
        x[c] = zeros;
        if (c >= used) continue;
        x[c] = sheaf__mul_mat_gather(p->kern, p->b, source(p, m, q * p->cols + c), i, n, tmp[c]);
    }
    p->kind->pack(x, n, used, panel(p, m, q, i));
}

/* Weights that are unpacked soon, of rows as far apart as those of a. They are fetched to the second
 * cache (see fetch.h of the kernels): the hardware does not see where they come from. */
struct next {
    const char *w;
    size_t bytes; /* of a row */
};

static void to_floats(const struct product *p, const char *w, int64_t n, float *to) {
    const struct sheaf__cpu_panels *floats = &p->kern->panels[SHEAF__PANELS_FLOATS];
    if (floats->unpack[p->a->type])
        floats->unpack[p->a->type](w, to, n);
    else
        sheaf_to_float(p->a->type, w, to, n);
}

/* Part q of nq of what `rows` rows meet next. Always inline: to GCC a function that only fetches has no effect, and a
 * call of it may go, which made 16 columns of Q8_0 take 2.5 times as long (GCC 12, a branch more here). */
static inline __attribute__((always_inline)) void fetch(const struct product *p, struct next next,
                                                        int64_t rows, int64_t q, int64_t nq) {
    for (int64_t r = 0; r < rows && next.bytes; r++, next.w += p->a->nb[1]) {
        const size_t before = (uintptr_t)next.w % 64;
        const int64_t lines = (int64_t)(before + next.bytes + 63) / 64;
        for (int64_t i = lines * q / nq; i < lines * (q + 1) / nq; i++)
            __builtin_prefetch(next.w - before + 64 * i, 0, 2);
    }
}

/* n weights of `rows` rows at w, unpacked, while the next ones are fetched; zeros up to whole tiles. */
static void unpack(const struct product *p, const char *w, int64_t rows, int64_t n,
                   struct next next, char *pass) {
    const enum sheaf_type type = p->a->type;
    const size_t stride = p->a->nb[1];
    const int kind = (int)(p->kind - p->kern->panels);
    float floats[PASS];
    char restored[SHEAF__REPACKED_BYTES];
    for (int64_t r = 0; r < rows; r++, w += stride, next.w += stride, pass += p->stride) {
        const char *from = w;
        fetch(p, next, 1, 0, 1);
        if (p->repacked && p->repacked->unpack[kind]) {
            p->repacked->unpack[kind](w, pass, n);
            continue;
        }
        if (p->repacked) {
            p->repacked->restore(w, restored, n);
            from = restored;
        }
        if (p->kind->unpack[type]) {
            p->kind->unpack[type](from, pass, n);
        } else if (p->kind->from_floats) {
            to_floats(p, from, n, floats);
            p->kind->from_floats(floats, pass, n);
        } else {
            to_floats(p, from, n, (float *)(void *)pass);
        }
    }
    for (int64_t r = rows; r < round_up(rows, p->rows); r++, pass += p->stride)
        memset(pass, 0, row_bytes(p->kind, n));
}

/* Sums [panels][chunk][cols] of columns j0.. to rows first.. of dst: rows and columns trade places,
 * which is what packing does. */
static void store(const struct product *p, const struct matrix *m, const float *sums, int64_t first,
                  int64_t rows, int64_t j0, int64_t n) {
    const struct sheaf__cpu_panels *floats = &p->kern->panels[SHEAF__PANELS_FLOATS];
    const int64_t wide = floats->cols;
    float turned[MAX_PANEL_COLS * MAX_PANEL_COLS]; /* [cols][wide] */
    for (int64_t j = 0; j < n; j += p->cols, sums += p->chunk * p->cols) {
        const int64_t cols = min_i64(p->cols, n - j);
        for (int64_t r = 0; r < rows; r += wide) {
            const int64_t len = min_i64(wide, rows - r);
            const float *x[MAX_PANEL_COLS];
            for (int64_t i = 0; i < wide; i++) x[i] = sums + (r + min_i64(i, len - 1)) * p->cols;
            floats->pack(x, round_up(cols, 4), (int)wide, turned);
            for (int64_t c = 0; c < cols; c++) {
                memcpy(result(p, m, j0 + j + c) + (size_t)(first + r) * sizeof *sums,
                       turned + c * wide, (size_t)len * sizeof *sums);
            }
        }
    }
}

/* n weights of `rows` rows at w, from element i on, by nq panels from q0 on: for several they are
 * unpacked once, and the next ones fetched bit by bit, since unpacking would wait for them, or with AMX meanwhile; for
 * one a tile at a time, which stays in the first cache. */
static void multiply_pass(const struct product *p, const struct matrix *m, const char *w,
                          int64_t rows, int64_t i, struct next next, int64_t q0, int64_t nq,
                          char *pass, float *sums) {
    const int64_t n = min_i64(p->pass, p->k - i);
    /* Between tiles of AMX requests were slower: prompts of 256 tokens, F16 410 and 480 tokens/s,
     * BF16 570 and 630, Q4_0 535 and 555 (Granite Rapids, November 2026). */
    const bool at_once = p->kind->begin != NULL;
    if (nq > 1) unpack(p, w, rows, n, at_once ? next : (struct next){w, 0}, pass);
    for (int64_t q = 0; q < nq; q++) {
        const char *columns = panel(p, m, q0 + q, i), *unpacked = pass;
        const int used = used_of(p, m, q0 + q);
        for (int64_t r = 0; r < rows; r += p->rows) {
            const size_t at = (size_t)r * p->a->nb[1];
            const int64_t some = min_i64(rows - r, p->rows);
            const struct next their = {next.w + at, next.bytes};
            if (nq > 1) {
                unpacked = pass + (size_t)r * p->stride;
                if (!at_once) fetch(p, their, some, q, nq);
            } else {
                unpack(p, w + at, some, n, their, pass);
            }
            p->kind->tile(n, unpacked, p->stride, columns, used,
                          sums + (q * p->chunk + r) * p->cols, i > 0);
        }
    }
}

/* All passes of `rows` rows at w by nq panels from q0 on. The last ones fetch the first of the rows `ahead` after
 * them, if not 0. */
static void multiply_rows(const struct product *p, const struct matrix *m, const char *w,
                          int64_t rows, int64_t ahead, int64_t q0, int64_t nq, char *pass,
                          float *sums) {
    const enum sheaf_type type = p->a->type;
    for (int64_t i = 0; i < p->k; i += p->pass) {
        struct next next = {w, 0};
        int64_t at = i + (p->by_tiles ? TILE_AHEAD : p->pass);
        if (at >= p->k && ahead > 0) {
            next.w += (size_t)ahead * p->a->nb[1];
            at -= round_up(p->k, p->pass);
        }
        if (at < p->k) {
            next.w += sheaf_row_size(type, at);
            next.bytes = sheaf_row_size(type, min_i64(p->pass, p->k - at));
        }
        multiply_pass(p, m, w + sheaf_row_size(type, i), rows, i, next, q0, nq, pass, sums);
    }
}

/* The first of `rows` rows at w by nq panels from q0 on, where the kind reads them in memory; the hardware sees where
 * the next ones come from. Returns how many. */
static int64_t multiply_in_place(const struct product *p, const struct matrix *m, const char *w,
                                 int64_t rows, int64_t q0, int64_t nq, float *sums) {
    const int64_t step = p->kind->rows_in_place;
    int64_t r = 0;
    for (; p->in_place && r + step <= rows; r += step, w += (size_t)step * p->a->nb[1]) {
        for (int64_t q = 0; q < nq; q++)
            p->in_place(p->k, w, p->a->nb[1], panel(p, m, q0 + q, 0), used_of(p, m, q0 + q),
                        sums + (q * p->chunk + r) * p->cols, false);
    }
    return r;
}

/* A chunk from row `first` on; `ahead` rows after it begins the one that this thread probably takes
 * next. */
static void multiply(const struct product *p, const struct matrix *m, int64_t first, int64_t ahead,
                     char *pass) {
    float *sums = (float *)(void *)(pass + pass_size(p));
    const int64_t rows = min_i64(p->chunk, p->m - first), per_block = BLOCK / p->cols;
    const int64_t step = p->by_tiles ? p->rows : rows;
    const char *w = m->w + (size_t)first * p->a->nb[1];
    struct sheaf__cpu_kept kept;
    if (first + ahead >= p->m) ahead = 0;
    if (p->kind->begin) p->kind->begin(&kept);
    for (int64_t q0 = 0; q0 < m->panels; q0 += per_block) {
        const int64_t nq = min_i64(per_block, m->panels - q0);
        for (int64_t r = multiply_in_place(p, m, w, rows, q0, nq, sums); r < rows; r += step) {
            int64_t next = r + step < rows                     ? step
                           : q0 + nq == m->panels && ahead > 0 ? ahead - r
                                                               : 0;
            multiply_rows(p, m, w + (size_t)r * p->a->nb[1], min_i64(step, rows - r), next, q0, nq,
                          pass, sums + r * p->cols);
        }
        store(p, m, sums, first, rows, q0 * p->cols, min_i64(nq * p->cols, m->n - q0 * p->cols));
    }
    if (p->kind->end) p->kind->end(&kept);
}

/* The columns that another product has packed are those of this one. */
static bool packed_alike(const struct product *p, const struct sheaf_tensor *other) {
    if (!other || other->src[1] != p->b) return false;
    const struct sheaf_tensor *a = other->src[0];
    return kind_of(p->kern, other) == p->kind && a->ne[2] == p->a->ne[2] &&
           a->ne[3] == p->a->ne[3] &&
           by_tiles(p->kind, a->type, sheaf__mul_mat_columns(a, p->b)) == p->by_tiles;
}

enum sheaf_status sheaf__mul_mat_panels(const struct sheaf__cpu_kernels *kern,
                                        const struct sheaf_tensor *dst, int ith, int nth,
                                        void *work, struct sheaf__cpu_sync *sync) {
    const int64_t n = sheaf__mul_mat_columns(dst->src[0], dst->src[1]);
    const struct product p = product_of(kern, dst, n, nth);
    const int64_t panels = panels_of(&p, n);
    const int64_t of_k = (p.k + p.piece - 1) / p.piece;
    const int64_t pieces = p.batches * panels * of_k;
    char *pass =
        (char *)work + packed_size(&p, p.batches * panels) + scratch_size(&p, n) * (size_t)ith;
    const bool again = packed_alike(&p, sync->packed);
    for (int64_t t = pieces * ith / nth; t < pieces * (ith + 1) / nth && !again; t++) {
        const struct matrix m = matrix_of(&p, t / of_k / panels, work);
        pack(&p, &m, t / of_k % panels, t % of_k);
    }
    sheaf__mul_mat_start(sync, ith, nth);
    if (ith == 0) sync->packed = dst;
    const int64_t chunks = (p.m + p.chunk - 1) / p.chunk;
    for (int64_t t = sheaf__mul_mat_take(sync); t < chunks * p.batches;
         t = sheaf__mul_mat_take(sync)) {
        const struct matrix m = matrix_of(&p, t / chunks, work);
        multiply(&p, &m, t % chunks * p.chunk, p.chunk * nth, pass);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- experts ---- */

/* Panels of u n pairs, however they lie over the experts: only those that have enough pairs have some. */
static int64_t most_panels(const struct product *p) {
    const int64_t pairs = p->dst->ne[1] * p->dst->ne[2];
    return pairs / p->cols + min_i64(p->a->ne[2], pairs / fewest(p->kern, p->kind, p->a->type));
}

size_t sheaf__mul_mat_id_panels_size(const struct sheaf__cpu_kernels *kern,
                                     const struct sheaf_tensor *dst, int nth) {
    const struct product p = product_of(kern, dst, dst->ne[1] * dst->ne[2], nth);
    return packed_size(&p, most_panels(&p)) +
           (size_t)nth * scratch_size(&p, p.dst->ne[1] * p.dst->ne[2]);
}

static struct matrix expert_of(const struct product *p, const struct sheaf__mul_mat_group *group,
                               int64_t first_panel, char *packed) {
    struct matrix m = {.a2 = group->expert, .pairs = group->pairs, .n = group->n};
    m.w = (const char *)p->a->data + (size_t)group->expert * p->a->nb[2];
    m.panels = panels_of(p, m.n);
    m.packed = packed + (size_t)first_panel * p->panel_size;
    return m;
}

void sheaf__mul_mat_id_panels(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst,
                              const struct sheaf__mul_mat_group *groups, int64_t n_groups, int ith,
                              int nth, void *work, struct sheaf__cpu_sync *sync) {
    const struct product p = product_of(kern, dst, dst->ne[1] * dst->ne[2], nth);
    const int64_t of_k = (p.k + p.piece - 1) / p.piece;
    const int64_t chunks = (p.m + p.chunk - 1) / p.chunk;
    char *pass = (char *)work + packed_size(&p, most_panels(&p)) +
                 scratch_size(&p, dst->ne[1] * dst->ne[2]) * (size_t)ith;
    int64_t at = 0, piece = 0;
    for (int64_t g = 0; g < n_groups; g++) {
        const struct matrix m = expert_of(&p, &groups[g], at, work);
        for (int64_t i = 0; i < m.panels * of_k; i++, piece++) {
            if (piece % nth == ith) pack(&p, &m, i / of_k, i % of_k);
        }
        at += m.panels;
    }
    sheaf__mul_mat_start(sync, ith, nth);
    int64_t g = 0; /* numbers only grow, so each thread goes over the groups once */
    at = 0;
    for (int64_t t = sheaf__mul_mat_take(sync); t < chunks * n_groups;
         t = sheaf__mul_mat_take(sync)) {
        for (; g < t / chunks; g++) at += panels_of(&p, groups[g].n);
        const struct matrix m = expert_of(&p, &groups[g], at, work);
        multiply(&p, &m, t % chunks * p.chunk, p.chunk * nth, pass);
    }
}
