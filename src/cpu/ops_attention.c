/* FLASH_ATTN_EXT: softmax(q.k) v with the softmax taken online, block by block of keys.
 *
 * A result row (one query of one head) meets the keys in blocks of BLOCK from the first, whatever
 * else is computed beside it; so rows can be grouped in tiles and shared out freely, and the result
 * does not depend on the number of threads. A tile is rows of one K/V head: the keys and values of
 * a block are converted to F32 once for all of them. A masked key (-inf) is never read into a
 * result: the cells behind it may hold anything. */
#include <math.h>

#include "cpu/kernels.h"
#include "cpu/ops.h"

enum {
    TILE = 48,  /* rows; whole tiles of every table's panels */
    BLOCK = 64, /* keys */
    /* Rows of a K/V head from which on packing its keys and values pays: one head's tokens, or the
     * heads that share it. The way is chosen by the node alone, so it is the same for any team. */
    PANEL_ROWS_FROM = 16,
    MAX_PANEL_COLS = 32,
};

struct scratch {
    float *q;      /* [TILE, d], where q is not dense */
    float *k;      /* [BLOCK, d] */
    float *v;      /* [BLOCK, e] */
    float *mask;   /* [TILE, BLOCK] */
    float *scores; /* [TILE_COLS, BLOCK], or all of a tile */
    float *acc;    /* [TILE, e]; by panels [e / cols, TILE, cols] */
    float *packed; /* by panels: keys, then values, then dot products */
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static size_t scratch_floats(int64_t d, int64_t e) {
    const int64_t wide = round_up(e, MAX_PANEL_COLS);
    size_t n = (size_t)((TILE + BLOCK) * d + BLOCK * e + TILE * wide + 2 * TILE * BLOCK);
    n += (size_t)(BLOCK * d + BLOCK * wide + TILE * BLOCK);
    return sheaf__align_up(n, 64 / sizeof(float));
}

size_t sheaf__cpu_work_flash_attn(const struct sheaf_tensor *dst, int nth) {
    return scratch_floats(dst->src[0]->ne[0], dst->src[2]->ne[0]) * sizeof(float) * (size_t)nth;
}

static struct scratch scratch_at(float *p, int64_t d, int64_t e) {
    struct scratch w;
    w.acc = p;
    w.q = w.acc + TILE * round_up(e, MAX_PANEL_COLS);
    w.k = w.q + TILE * d;
    w.v = w.k + BLOCK * d;
    w.mask = w.v + BLOCK * e;
    w.scores = w.mask + TILE * BLOCK;
    w.packed = w.scores + TILE * BLOCK;
    return w;
}

struct attn {
    const struct sheaf__cpu_kernels *kernels;
    const struct sheaf_tensor *q, *k, *v, *mask;
    int64_t d, e, t, group; /* group: query heads of one K/V head */
    float scale, softcap, max_bias;
    int64_t base, n_head;
    bool by_panels;
};

struct result_row {
    int64_t head, query;
    const float *q;
    float slope, max, sum;
    const float *mask; /* of the current block; NULL: none */
    bool open;         /* some key of the current block is not masked */
};

/* Rows [t0, t0 + n) of a K or V head as dense F32. */
static const float *load_block(const struct attn *at, const struct sheaf_tensor *x, int64_t hk,
                               int64_t s, int64_t t0, int64_t n, float *buf) {
    const int64_t width = x->ne[0];
    const char *p = (const char *)x->data + (size_t)t0 * x->nb[1] + (size_t)hk * x->nb[2] +
                    (size_t)s * x->nb[3];
    for (int64_t j = 0; j < n; j++, p += x->nb[1]) {
        float *row = buf + j * width;
        if (x->type == SHEAF_TYPE_F32) {
            memcpy(row, p, (size_t)width * sizeof *row);
        } else if (at->kernels->to_float[x->type]) {
            at->kernels->to_float[x->type](p, row, width);
        } else {
            sheaf_to_float(x->type, p, row, width);
        }
    }
    return buf;
}

/* The mask of each row for keys [t0, t0 + n); false if no row sees any of them. */
static bool load_masks(const struct attn *at, struct result_row *rows, int n_rows, int64_t s,
                       int64_t t0, int64_t n, float *buf) {
    const struct sheaf_tensor *mask = at->mask;
    bool any = false;
    for (int i = 0; i < n_rows; i++) {
        struct result_row *row = &rows[i];
        row->mask = NULL;
        row->open = true;
        if (mask && i > 0 && rows[i - 1].query == row->query && mask->ne[2] == 1) {
            row->mask = rows[i - 1].mask;
            row->open = rows[i - 1].open;
        } else if (mask) {
            struct sheaf__cpu_row from = {row->query, row->head % mask->ne[2], s % mask->ne[3]};
            const char *p = sheaf__cpu_row_data(mask, from) + (size_t)t0 * mask->nb[0];
            if (sheaf__cpu_is_dense(mask) && at->kernels->to_float[mask->type]) {
                at->kernels->to_float[mask->type](p, buf + i * BLOCK, n);
                row->mask = buf + i * BLOCK;
            } else {
                row->mask = sheaf__cpu_load(mask->type, p, mask->nb[0], n, buf + i * BLOCK);
            }
            row->open = false;
            for (int64_t j = 0; j < n; j++) row->open |= row->mask[j] != -INFINITY;
        }
        any |= row->open;
    }
    return any;
}

/* Dot products to scores, in place. */
static void finish_scores(const struct attn *at, const struct result_row *row, int64_t n,
                          float *scores) {
    for (int64_t j = 0; j < n; j++) scores[j] *= at->scale;
    if (at->softcap != 0.0f) {
        for (int64_t j = 0; j < n; j++) scores[j] = at->softcap * tanhf(scores[j] / at->softcap);
    }
    if (!row->mask) return;
    for (int64_t j = 0; j < n; j++) {
        scores[j] = row->mask[j] == -INFINITY ? -INFINITY : scores[j] + row->slope * row->mask[j];
    }
}

/* Takes the scores [n] of a block into the softmax of a row and makes them weights; what was summed
 * before is to be multiplied by the result. */
static float weigh(const struct attn *at, struct result_row *row, int64_t n, float *scores) {
    float max = at->kernels->max_f32(n, scores), shrink = 1.0f;
    if (max > row->max) {
        shrink = expf(row->max - max);
        row->sum *= shrink;
        row->max = max;
    }
    /* All -inf so far: exp(-inf - 0) is 0, and a NaN stays one. */
    row->sum += at->kernels->exp_f32(n, scores, row->max == -INFINITY ? 0.0f : row->max, scores);
    return shrink;
}

/* acc += weights [n] . v [n, e]; a weight of 0 reads nothing. acc [e] in pieces of `piece`
 * elements, `stride` apart. */
static void add_values(const struct attn *at, const float *v, int64_t n, const float *weights,
                       float *acc, int64_t piece, int64_t stride) {
    for (int64_t j = 0; j < n; j++) {
        if (weights[j] == 0.0f) continue;
        for (int64_t i = 0; i < at->e; i += piece) {
            const int64_t len = at->e - i < piece ? at->e - i : piece;
            at->kernels->axpy[SHEAF_TYPE_F32](len, weights[j], v + j * at->e + i,
                                              acc + i / piece * stride);
        }
    }
}

/* Adds keys [t0, t0 + n) of a K/V head to the rows that see some of them. */
static void add_keys(const struct attn *at, struct result_row *rows, int n_rows, int64_t s,
                     int64_t hk, int64_t t0, int64_t n, const struct scratch *w) {
    enum sheaf_type type = at->k->type;
    const void *k = (const char *)at->k->data + (size_t)t0 * at->k->nb[1] +
                    (size_t)hk * at->k->nb[2] + (size_t)s * at->k->nb[3];
    size_t stride = at->k->nb[1];
    if (sheaf_is_quantized(type)) { /* the products of block types would round q */
        k = load_block(at, at->k, hk, s, t0, n, w->k);
        stride = (size_t)at->d * sizeof(float);
        type = SHEAF_TYPE_F32;
    }
    const float *v = load_block(at, at->v, hk, s, t0, n, w->v);
    for (int i = 0; i < n_rows;) {
        int of[SHEAF__TILE_COLS], cols = 0;
        const void *q[SHEAF__TILE_COLS];
        float *out[SHEAF__TILE_COLS];
        for (; i < n_rows && cols < SHEAF__TILE_COLS; i++) {
            if (!rows[i].open) continue;
            of[cols] = i;
            q[cols] = rows[i].q;
            out[cols] = w->scores + cols * BLOCK;
            cols++;
        }
        if (cols == 0) break;
        at->kernels->rows_dot[type](at->d, k, stride, n, q, cols, out);
        for (int c = 0; c < cols; c++) {
            struct result_row *row = &rows[of[c]];
            finish_scores(at, row, n, out[c]);
            float *acc = w->acc + of[c] * at->e, shrink = weigh(at, row, n, out[c]);
            if (shrink != 1.0f) at->kernels->scale_f32(at->e, shrink, acc, acc);
            add_values(at, v, n, out[c], acc, at->e, at->e);
        }
    }
}

static bool all_finite(const float *x, int64_t n) {
    uint32_t max = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= 0x7fffffffu;
        max = u > max ? u : max;
    }
    return max < 0x7f800000u;
}

/* The same for many rows, as two products by panels (kernels.h): rows of q by keys, then weights by
 * values. */
static void add_keys_by_panels(const struct attn *at, struct result_row *rows, int n_rows,
                               int64_t s, int64_t hk, int64_t t0, int64_t n,
                               const struct scratch *w) {
    const struct sheaf__cpu_panels *kern = &at->kernels->panels;
    const int64_t cols = kern->cols, whole = round_up(n_rows, kern->rows);
    float *keys = w->packed, *values = keys + BLOCK * at->d;
    float *dots = values + BLOCK * round_up(at->e, MAX_PANEL_COLS);
    const float *k = load_block(at, at->k, hk, s, t0, n, w->k);
    const float *v = load_block(at, at->v, hk, s, t0, n, w->v);
    for (int64_t j0 = 0; j0 < n; j0 += cols) {
        const float *x[MAX_PANEL_COLS];
        /* a column that is not there is computed from another and not used */
        for (int64_t c = 0; c < cols; c++) x[c] = k + (j0 + c < n ? j0 + c : j0) * at->d;
        kern->pack(x, at->d, keys);
        for (int64_t r = 0; r < whole; r += kern->rows)
            kern->tile(at->d, w->q + r * at->d, (size_t)at->d, keys, dots + r * cols, false);
        const int64_t len = n - j0 < cols ? n - j0 : cols;
        for (int64_t r = 0; r < n_rows; r++)
            memcpy(w->scores + r * BLOCK + j0, dots + r * cols, (size_t)len * sizeof *dots);
    }
    for (int64_t r = 0; r < whole; r++) {
        float *scores = w->scores + r * BLOCK, *acc = w->acc + r * cols, shrink = 1.0f;
        if (r < n_rows && rows[r].open) {
            finish_scores(at, &rows[r], n, scores);
            shrink = weigh(at, &rows[r], n, scores);
        } else {
            memset(scores, 0, (size_t)n * sizeof *scores);
        }
        for (int64_t i = 0; i < at->e && shrink != 1.0f; i += cols, acc += TILE * cols)
            at->kernels->scale_f32(cols, shrink, acc, acc);
    }
    if (!all_finite(v, n * at->e)) { /* a weight of 0 would not hide them */
        for (int r = 0; r < n_rows; r++)
            add_values(at, v, n, w->scores + r * BLOCK, w->acc + r * cols, cols, TILE * cols);
        return;
    }
    for (int64_t i = 0; i < at->e; i += cols) {
        const int64_t len = at->e - i < cols ? at->e - i : cols;
        for (int64_t j = 0; j < n; j++) {
            memcpy(values + j * cols, v + j * at->e + i, (size_t)len * sizeof *v);
            if (len < cols)
                memset(values + j * cols + len, 0, (size_t)(cols - len) * sizeof *values);
        }
        for (int64_t r = 0; r < whole; r += kern->rows)
            kern->tile(n, w->scores + r * BLOCK, BLOCK, values,
                       w->acc + (i / cols * TILE + r) * cols, true);
    }
}

/* Rows [first, first + n_rows) of K/V head hk: row m is head hk * group + m % group, query
 * m / group. */
static void tile(const struct attn *at, const struct sheaf_tensor *dst, int64_t s, int64_t hk,
                 int64_t first, int n_rows, const struct scratch *w) {
    struct result_row rows[TILE];
    for (int i = 0; i < n_rows; i++) {
        struct result_row *row = &rows[i];
        row->head = hk * at->group + (first + i) % at->group;
        row->query = (first + i) / at->group;
        struct sheaf__cpu_row from = {row->query, row->head, s};
        row->q = sheaf__cpu_load(SHEAF_TYPE_F32, sheaf__cpu_row_data(at->q, from), at->q->nb[0],
                                 at->d, w->q + i * at->d);
        if (at->by_panels && row->q != w->q + i * at->d)
            memcpy(w->q + i * at->d, row->q, (size_t)at->d * sizeof *row->q);
        row->slope = sheaf__cpu_alibi_slope(at->max_bias, at->base + row->head, at->n_head);
        row->max = -INFINITY;
        row->sum = 0.0f;
    }
    const int64_t cols = at->by_panels ? at->kernels->panels.cols : at->e;
    const int64_t stride = at->by_panels ? TILE * cols : at->e; /* between pieces of a row of acc */
    memset(w->acc, 0, (size_t)(TILE * round_up(at->e, MAX_PANEL_COLS)) * sizeof *w->acc);
    for (int i = n_rows; at->by_panels && i < TILE; i++)
        memset(w->q + i * at->d, 0, (size_t)at->d * sizeof *w->q);
    for (int64_t t0 = 0; t0 < at->t; t0 += BLOCK) {
        int64_t n = at->t - t0 < BLOCK ? at->t - t0 : BLOCK;
        if (!load_masks(at, rows, n_rows, s, t0, n, w->mask)) continue;
        (at->by_panels ? add_keys_by_panels : add_keys)(at, rows, n_rows, s, hk, t0, n, w);
    }
    for (int i = 0; i < n_rows; i++) {
        struct sheaf__cpu_row to = {rows[i].head, rows[i].query, s};
        float *y = (float *)(void *)sheaf__cpu_row_data(dst, to);
        float inv = rows[i].sum == 0.0f ? 0.0f : 1.0f / rows[i].sum;
        const float *acc = w->acc + i * cols;
        for (int64_t j = 0; j < at->e; j += cols, acc += stride)
            at->kernels->scale_f32(at->e - j < cols ? at->e - j : cols, inv, acc, y + j);
    }
}

/* q F32 [d, n, g.r, s], k [d, t, g, s], v [e, t, g, s], mask [t, >=n, 1|g.r, 1|s] -> dst F32
 * [e, g.r, n, s] */
static void attention(struct sheaf_tensor *dst, int ith, int nth, void *work,
                      const struct sheaf__cpu_kernels *kernels) {
    const struct sheaf_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    struct attn at = {
        .kernels = kernels,
        .q = q,
        .k = k,
        .v = v,
        .mask = dst->src[3],
        .d = q->ne[0],
        .e = v->ne[0],
        .t = k->ne[1],
        .group = q->ne[2] / k->ne[2],
        .scale = sheaf__param_f32(dst, 0),
        .max_bias = sheaf__param_f32(dst, 1),
        .softcap = sheaf__param_f32(dst, 2),
        .base = dst->op_params[SHEAF_OP_PARAM_BASE],
        .n_head = extent != 0 ? extent : q->ne[2],
    };
    float *mine = (float *)work + scratch_floats(at.d, at.e) * (size_t)ith;
    const struct scratch w = scratch_at(mine, at.d, at.e);
    const int64_t per_head = at.group * q->ne[1];
    at.by_panels = kernels->panels.rows > 0 && at.d > 0 && at.e > 0 && per_head >= PANEL_ROWS_FROM;
    int64_t first, last;
    sheaf__cpu_share(per_head * k->ne[2] * q->ne[3], ith, nth, &first, &last);
    while (first < last) {
        int64_t hk = first / per_head % k->ne[2], s = first / per_head / k->ne[2];
        int64_t m = first % per_head;
        int64_t n = last - first < TILE ? last - first : TILE;
        if (n > per_head - m) n = per_head - m;
        tile(&at, dst, s, hk, m, (int)n, &w);
        first += n;
    }
}

enum sheaf_status sheaf__cpu_op_flash_attn(struct sheaf_tensor *dst, int ith, int nth,
                                           struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    attention(dst, ith, nth, work, sheaf__cpu_kernels());
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cpu_op_flash_attn_ref(struct sheaf_tensor *dst, int ith, int nth,
                                               struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    attention(dst, ith, nth, work, &sheaf__cpu_kernels_portable);
    return SHEAF_STATUS_SUCCESS;
}

