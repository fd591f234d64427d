/* Attention of many queries. A tile is as many rows of one K/V head as the kernels have lanes; it
 * meets the keys block by block with the softmax taken online. Blocks begin at multiples of
 * BLOCK whatever else is computed, so tiles are shared out freely. */
#include <math.h>

#include "cpu/matmul/mul_mat.h"
#include "cpu/ops/attention.h"

enum {
    BLOCK = SHEAF__ATTN_BLOCK,
    MAX_LANES = 48,
    /* Queries from which on lanes are better than parts of the keys. Not rows: the heads of a K/V
     * head may be split over devices, and all are to take the same way. */
    QUERIES_FROM = 8,
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

bool sheaf__attn_by_lanes(const struct sheaf__attn *at) {
    return at->kern->attention.lanes > 0 && at->n >= QUERIES_FROM && at->d > 0 && at->e > 0;
}

struct scratch {
    float *q;      /* [d][lanes] */
    float *k;      /* [BLOCK][d] */
    float *v;      /* [BLOCK][wide] */
    float *scores; /* [BLOCK][lanes] */
    float *mask;   /* [BLOCK][lanes] */
    float *acc;    /* [wide][lanes] */
    float *rows;   /* [lanes][max(d, e, BLOCK)]: of q, of masks, of values that are not finite */
    int64_t wide;  /* e in whole tiles */
};

static int64_t longest(const struct sheaf__attn *at) {
    const int64_t n = at->d > at->e ? at->d : at->e;
    return n > BLOCK ? n : BLOCK;
}

static size_t take(float **p, float *base, size_t at, int64_t n) {
    *p = base ? base + at : NULL;
    return at + (size_t)round_up(n, 64 / (int64_t)sizeof(float));
}

static size_t scratch_at(const struct sheaf__attn *at, float *base, struct scratch *w) {
    const int64_t lanes = at->kern->attention.lanes;
    size_t n = 0;
    w->wide = round_up(at->e, at->kern->attention.rows);
    n = take(&w->q, base, n, at->d * lanes);
    n = take(&w->k, base, n, BLOCK * at->d);
    n = take(&w->v, base, n, BLOCK * w->wide);
    n = take(&w->scores, base, n, BLOCK * lanes);
    n = take(&w->mask, base, n, BLOCK * lanes);
    n = take(&w->acc, base, n, w->wide * lanes);
    return take(&w->rows, base, n, lanes * longest(at));
}

size_t sheaf__attn_lanes_size(const struct sheaf__attn *at) {
    struct scratch w;
    return scratch_at(at, NULL, &w) * sizeof(float);
}

struct tile {
    struct sheaf__attn_row rows[MAX_LANES];
    int n_rows;
    int64_t s, hk;
    float max[MAX_LANES], sum[MAX_LANES], shrink[MAX_LANES], slope[MAX_LANES];
};

/* The masks of a block, turned to [n][lanes] if any is mixed: then *mask is theirs, else NULL.
 * False if no row sees any key of the block. */
static bool load_masks(const struct sheaf__attn *at, const struct tile *t, int64_t t0, int64_t n,
                       const struct scratch *w, const float **mask) {
    const float *x[MAX_LANES];
    bool any = false, plain = true;
    *mask = NULL;
    if (!at->mask) return true;
    for (int i = 0; i < t->n_rows; i++) {
        if (i > 0 &&
            sheaf__attn_mask_id(at, t->rows[i]) == sheaf__attn_mask_id(at, t->rows[i - 1])) {
            x[i] = x[i - 1];
            continue;
        }
        float *row = w->rows + i * longest(at);
        const enum sheaf__attn_mask kind = sheaf__attn_mask(at, t->rows[i], t0, n, row);
        any = any || kind != SHEAF__ATTN_CLOSED;
        plain = plain && kind == SHEAF__ATTN_PLAIN;
        for (int64_t j = 0; j < n && kind != SHEAF__ATTN_MIXED; j++)
            row[j] = kind == SHEAF__ATTN_PLAIN ? 0.0f : -INFINITY;
        x[i] = row;
    }
    if (!any || plain) return any;
    for (int i = t->n_rows; i < at->kern->attention.lanes; i++) x[i] = x[0];
    at->kern->attention.pack(x, n, w->mask);
    *mask = w->mask;
    return true;
}

static void add_values(const struct sheaf__attn *at, const struct tile *t, int64_t t0, int64_t n,
                       const struct scratch *w) {
    const struct sheaf__cpu_attention *kern = &at->kern->attention;
    const int64_t lanes = kern->lanes;
    if (sheaf__attn_load(at, at->v, t->s, t->hk, t0, n, w->v, w->wide)) {
        kern->values(n, w->v, w->wide, w->wide, w->scores, t->n_rows, w->acc);
        return;
    }
    float weights[BLOCK];
    for (int l = 0; l < t->n_rows; l++) {
        for (int64_t j = 0; j < n; j++) weights[j] = w->scores[j * lanes + l];
        for (int64_t i = 0; i < at->e; i++) w->rows[i] = w->acc[i * lanes + l];
        sheaf__attn_mix_carefully(at, w->v, w->wide, n, weights, 0, 1, w->rows, 0);
        for (int64_t i = 0; i < at->e; i++) w->acc[i * lanes + l] = w->rows[i];
    }
}

static void add_keys(const struct sheaf__attn *at, struct tile *t, int64_t t0, int64_t n,
                     const struct scratch *w) {
    const struct sheaf__cpu_attention *kern = &at->kern->attention;
    const int64_t lanes = kern->lanes, whole = round_up(n, kern->rows);
    const float *mask;
    float scale = at->scale;
    if (!load_masks(at, t, t0, n, w, &mask)) return;
    sheaf__attn_load(at, at->k, t->s, t->hk, t0, n, w->k, at->d);
    memset(w->k + n * at->d, 0, (size_t)((whole - n) * at->d) * sizeof *w->k);
    kern->scores(at->d, w->k, at->d, whole, w->q, t->n_rows, w->scores);
    if (at->softcap != 0.0f) {
        at->kern->scale_f32(n * lanes, scale, w->scores, w->scores);
        at->kern->softcap_f32(n * lanes, at->softcap, w->scores, w->scores);
        scale = 1.0f;
    }
    kern->soften(n, t->n_rows, scale, mask, t->slope, w->scores, t->max, t->sum, t->shrink);
    bool shrinks = false;
    for (int l = 0; l < t->n_rows; l++) shrinks = shrinks || t->shrink[l] != 1.0f;
    if (shrinks) kern->scale(at->e, t->n_rows, t->shrink, w->acc);
    add_values(at, t, t0, n, w);
}

static void run_tile(const struct sheaf__attn *at, struct tile *t, const struct scratch *w) {
    const struct sheaf__cpu_attention *kern = &at->kern->attention;
    const float *q[MAX_LANES];
    float *y[MAX_LANES];
    for (int l = 0; l < kern->lanes; l++) { /* a lane without a row is row 0 again, and not used */
        const struct sheaf__attn_row r = t->rows[l < t->n_rows ? l : 0];
        q[l] = l < t->n_rows ? sheaf__attn_q(at, r, w->rows + l * longest(at)) : q[0];
        y[l] = sheaf__attn_dst(at, r);
        t->slope[l] = sheaf__attn_slope(at, r);
        t->max[l] = -INFINITY;
        t->sum[l] = 0.0f;
    }
    kern->pack(q, at->d, w->q);
    memset(w->acc, 0, (size_t)(w->wide * kern->lanes) * sizeof *w->acc);
    if (w->wide > at->e) memset(w->v, 0, (size_t)(BLOCK * w->wide) * sizeof *w->v);
    for (int64_t t0 = 0; t0 < at->t; t0 += BLOCK)
        add_keys(at, t, t0, at->t - t0 < BLOCK ? at->t - t0 : BLOCK, w);
    float by[MAX_LANES + 4] = {0}; /* read in fours */
    for (int l = 0; l < t->n_rows; l++)
        by[l] = sheaf__attn_factor(at, t->rows[l], t->max[l], t->sum[l]);
    kern->unpack(w->acc, at->e, by, t->n_rows, y);
}

void sheaf__attn_lanes(const struct sheaf__attn *at, struct sheaf__cpu_sync *sync, int ith, int nth,
                       void *work) {
    const int64_t lanes = at->kern->attention.lanes, per_head = (at->rows + lanes - 1) / lanes;
    const int64_t n = per_head * at->heads_kv * at->n_s;
    struct scratch w;
    scratch_at(at, (float *)work + (size_t)ith * sheaf__attn_lanes_size(at) / sizeof(float), &w);
    sheaf__mul_mat_start(sync, ith, nth);
    for (int64_t i = sheaf__mul_mat_take(sync); i < n; i = sheaf__mul_mat_take(sync)) {
        /* the last queries, which see most, first: what is left at the end is small */
        const int64_t of = at->heads_kv * at->n_s, first = (per_head - 1 - i / of) * lanes;
        struct tile t = {.s = i % of / at->heads_kv, .hk = i % at->heads_kv};
        const int64_t left = sheaf__attn_rows(at, t.hk) - first;
        if (left < 1) continue;
        t.n_rows = (int)(left < lanes ? left : lanes);
        for (int l = 0; l < t.n_rows; l++) t.rows[l] = sheaf__attn_row(at, t.s, t.hk, first + l);
        run_tile(at, &t, &w);
    }
}
