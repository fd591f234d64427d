/* MUL_MAT with many columns: blocked for the caches as BLIS does it.
 *
 * First the threads pack the columns of src1 in panels, once, in the work buffer. Then they take
 * chunks of weight rows. A chunk is unpacked, to floats or to integers, PASS elements of k at a
 * time; those, and the sums of the chunk, stay in the second cache, while the piece of one panel
 * that they meet stays in the first. Sums are kept as the tiles leave them and written to dst at
 * the end.
 *
 * Invariant: a sum runs over k in order (see the tiles), so threads, chunks and blocks of columns
 * do not show in its bits. */
#include "core/internal.h"
#include "cpu/mul_mat_impl.h"

enum {
    /* Below it unpacking weights costs more than rows_dot loses by going over them again. */
    MIN_COLUMNS = 8,
    PASS = SHEAF__SEGMENT, /* elements of k; 32 columns of them are 32 KiB */
    CHUNK = 48,  /* rows at most, whole tiles of every table: 48 KiB as floats of a pass */
    BLOCK = 512, /* columns: sums of a chunk are 96 KiB */
    CHUNKS_PER_THREAD = 4, /* at least, where there are as many tiles */
    MAX_PANEL_COLS = 32,
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

bool sheaf__mul_mat_by_panels(const struct sheaf__cpu_kernels *kern,
                              const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    const enum sheaf__act act = sheaf__act_of(a->type);
    return dst->op == SHEAF_OP_MUL_MAT && kern->panels.rows > 0 && act != SHEAF__ACT_Q8 &&
           act != SHEAF__ACT_Q8K && a->ne[0] > 0 &&
           sheaf__mul_mat_columns(a, dst->src[1]) >= MIN_COLUMNS;
}

struct product {
    const struct sheaf__cpu_kernels *kern;
    const struct sheaf_tensor *a, *b, *dst;
    int64_t k, m, n, batches; /* n columns for each of the matrices of a */
    bool by_16;               /* by integers of 16 bits, else by floats */
    int64_t rows;             /* of a tile */
    int64_t cols, panels;     /* columns of a panel, panels of a matrix */
    int64_t chunk;            /* rows */
    size_t panel_size;        /* bytes */
    char *packed;             /* [batches][panels] of them */
};

/* Bytes of k elements of a panel. */
static size_t panel_bytes(const struct product *p, int64_t k) {
    return p->by_16 ? (size_t)(k / 32) * SHEAF__PANEL16_BYTES
                    : (size_t)(k * p->cols) * sizeof(float);
}

static struct product product_of(const struct sheaf__cpu_kernels *kern,
                                 const struct sheaf_tensor *dst, int nth, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    struct product p = {.kern = kern, .a = a, .b = b, .dst = dst, .packed = work};
    p.k = a->ne[0];
    p.m = a->ne[1];
    p.n = sheaf__mul_mat_columns(a, b);
    p.batches = a->ne[2] * a->ne[3];
    p.by_16 = kern->panels16.blocks[a->type] != NULL;
    p.rows = p.by_16 ? kern->panels16.rows : kern->panels.rows;
    p.cols = p.by_16 ? SHEAF__PANEL16_COLS : kern->panels.cols;
    p.panel_size = panel_bytes(&p, p.k);
    p.panels = (p.n + p.cols - 1) / p.cols;
    const int64_t share = p.m * p.batches / ((int64_t)nth * CHUNKS_PER_THREAD);
    p.chunk = min_i64(round_up(share > 0 ? share : 1, p.rows), CHUNK);
    return p;
}

/* Panel q of a matrix, from element i on. */
static char *panel(const struct product *p, int64_t batch, int64_t q, int64_t i) {
    return p->packed + (size_t)(batch * p->panels + q) * p->panel_size + panel_bytes(p, i);
}

/* What a thread has of its own: a pass of a chunk, and the sums of a chunk for a block of columns
 * as [panels of the block][chunk][cols]. */
static size_t scratch_floats(const struct product *p) {
    const int64_t block = min_i64(p->panels * p->cols, BLOCK);
    return (size_t)(CHUNK * PASS + CHUNK * block);
}
static_assert(sizeof(struct sheaf__panel_block) <= 32 * sizeof(float),
              "a pass fits in either form");

static size_t packed_size(const struct product *p) {
    return sheaf__align_up((size_t)(p->batches * p->panels) * p->panel_size, 64);
}

size_t sheaf__mul_mat_panels_size(const struct sheaf__cpu_kernels *kern,
                                  const struct sheaf_tensor *dst, int nth) {
    const struct product p = product_of(kern, dst, nth, NULL);
    return packed_size(&p) + (size_t)nth * scratch_floats(&p) * sizeof(float);
}

/* A segment of k of one panel. */
static void pack(const struct product *p, int64_t batch, int64_t q, int64_t i) {
    float tmp[MAX_PANEL_COLS][SHEAF__SEGMENT];
    const float *x[MAX_PANEL_COLS];
    const int64_t n = min_i64(SHEAF__SEGMENT, p->k - i);
    for (int64_t c = 0; c < p->cols; c++) {
        const int64_t j = q * p->cols + c;
        if (j < p->n) {
            struct sheaf__mul_mat_at at =
                sheaf__mul_mat_at(p->a, p->b, batch % p->a->ne[2], batch / p->a->ne[2], j);
            x[c] = sheaf__mul_mat_gather(p->kern, p->b, sheaf__mul_mat_ptr(p->b, at), i, n, tmp[c]);
        } else {
            memset(tmp[c], 0, (size_t)n * sizeof **tmp);
            x[c] = tmp[c];
        }
    }
    char *to = panel(p, batch, q, i);
    if (p->by_16) {
        p->kern->panels16.pack(x, n, to);
    } else {
        p->kern->panels.pack(x, n, (float *)(void *)to);
    }
}

/* Where row r of a pass lies. */
static float *row_of(float *pass, int64_t r) { return pass + r * PASS; }
static struct sheaf__panel_block *blocks_of(float *pass, int64_t r) {
    return (struct sheaf__panel_block *)(void *)pass + r * (PASS / 32);
}

/* n weights of `rows` rows at w, unpacked; zeros up to whole tiles. */
static void unpack(const struct product *p, const char *w, int64_t rows, int64_t n, float *pass) {
    const struct sheaf__cpu_kernels *kern = p->kern;
    const enum sheaf_type type = p->a->type;
    for (int64_t r = 0; r < rows; r++, w += p->a->nb[1]) {
        if (p->by_16) {
            kern->panels16.blocks[type](w, blocks_of(pass, r), n);
        } else if (kern->panels.floats[type]) {
            kern->panels.floats[type](w, row_of(pass, r), n);
        } else {
            sheaf_to_float(type, w, row_of(pass, r), n);
        }
    }
    for (int64_t r = rows; r < round_up(rows, p->rows); r++) {
        if (p->by_16) {
            memset(blocks_of(pass, r), 0, (size_t)(n / 32) * sizeof(struct sheaf__panel_block));
        } else {
            memset(row_of(pass, r), 0, (size_t)n * sizeof *pass);
        }
    }
}

/* Sums [panels][chunk][cols] of columns j0.. to rows first.. of dst: rows and columns trade places,
 * which is what packing does. */
static void store(const struct product *p, const float *sums, int64_t batch, int64_t first,
                  int64_t rows, int64_t j0, int64_t n) {
    const int64_t wide = p->kern->panels.cols;
    float turned[MAX_PANEL_COLS * MAX_PANEL_COLS]; /* [cols][wide] */
    for (int64_t j = 0; j < n; j += p->cols, sums += p->chunk * p->cols) {
        for (int64_t r = 0; r < rows; r += wide) {
            const int64_t len = min_i64(wide, rows - r);
            const float *x[MAX_PANEL_COLS];
            for (int64_t i = 0; i < wide; i++) x[i] = sums + (r + min_i64(i, len - 1)) * p->cols;
            p->kern->panels.pack(x, p->cols, turned);
            for (int64_t c = 0; c < p->cols && j + c < n; c++) {
                struct sheaf__mul_mat_at at = sheaf__mul_mat_at(p->a, p->b, batch % p->a->ne[2],
                                                                batch / p->a->ne[2], j0 + j + c);
                memcpy(sheaf__mul_mat_ptr(p->dst, at) + (size_t)(first + r) * sizeof *sums,
                       turned + c * wide, (size_t)len * sizeof *sums);
            }
        }
    }
}

static void multiply(const struct product *p, int64_t batch, int64_t first, float *pass,
                     float *sums) {
    const int64_t rows = min_i64(p->chunk, p->m - first), per_block = BLOCK / p->cols;
    const size_t size = sheaf_type_size(p->a->type), blck = (size_t)sheaf_blck_size(p->a->type);
    const char *w = (const char *)p->a->data + (size_t)first * p->a->nb[1] +
                    (size_t)(batch % p->a->ne[2]) * p->a->nb[2] +
                    (size_t)(batch / p->a->ne[2]) * p->a->nb[3];
    for (int64_t q0 = 0; q0 < p->panels; q0 += per_block) {
        const int64_t nq = min_i64(per_block, p->panels - q0);
        for (int64_t i = 0; i < p->k; i += PASS) {
            const int64_t n = min_i64(PASS, p->k - i);
            unpack(p, w + (size_t)i / blck * size, rows, n, pass);
            for (int64_t q = 0; q < nq; q++) {
                const char *columns = panel(p, batch, q0 + q, i);
                for (int64_t r = 0; r < rows; r += p->rows) {
                    float *c = sums + (q * p->chunk + r) * p->cols;
                    if (p->by_16) {
                        p->kern->panels16.tile(n, blocks_of(pass, r), PASS / 32, columns, c, i > 0);
                    } else {
                        p->kern->panels.tile(n, row_of(pass, r), PASS,
                                             (const float *)(const void *)columns, c, i > 0);
                    }
                }
            }
        }
        store(p, sums, batch, first, rows, q0 * p->cols,
              min_i64(nq * p->cols, p->n - q0 * p->cols));
    }
}

enum sheaf_status sheaf__mul_mat_panels(const struct sheaf__cpu_kernels *kern,
                                        const struct sheaf_tensor *dst, int ith, int nth,
                                        void *work, struct sheaf__cpu_sync *sync) {
    const struct product p = product_of(kern, dst, nth, work);
    const int64_t segments = (p.k + SHEAF__SEGMENT - 1) / SHEAF__SEGMENT;
    const int64_t pieces = p.batches * p.panels * segments;
    float *pass =
        (float *)(void *)((char *)work + packed_size(&p)) + scratch_floats(&p) * (size_t)ith;
    for (int64_t t = pieces * ith / nth; t < pieces * (ith + 1) / nth; t++) {
        pack(&p, t / segments / p.panels, t / segments % p.panels, t % segments * SHEAF__SEGMENT);
    }
    sheaf__mul_mat_start(sync, ith, nth);
    const int64_t chunks = (p.m + p.chunk - 1) / p.chunk;
    for (int64_t t = sheaf__mul_mat_take(sync); t < chunks * p.batches;
         t = sheaf__mul_mat_take(sync)) {
        multiply(&p, t / chunks, t % chunks * p.chunk, pass, pass + CHUNK * PASS);
    }
    return SHEAF_STATUS_SUCCESS;
}
