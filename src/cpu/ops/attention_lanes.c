/* Attention of many queries. A tile is as many rows of one K/V head as the kernels have lanes; it
 * meets the keys block by block with the softmax taken online. Blocks begin at multiples of
 * BLOCK whatever else is computed, so tiles are shared out freely. Tiles of one head go over the
 * keys together, so that a block is read and becomes floats once for all of them. */
#include <math.h>

#include "cpu/matmul/mul_mat.h"
#include "cpu/ops/attention.h"

enum {
    BLOCK = SHEAF__ATTN_BLOCK,
    MAX_LANES = 48,
    /* Queries from which on lanes are better than parts of the keys. Not rows: the heads of a K/V
     * head may be split over devices, and all are to take the same way. */
    QUERIES_FROM = 8,
    MAX_TOGETHER = 16,          /* tiles */
    TOGETHER_BYTES = 512 << 10, /* of their queries and sums: they stay in a second cache */
    MASKS_AHEAD = 16,           /* blocks, whose masks are looked at row by row as they lie */
    ITEMS_PER_THREAD = 8, /* at least, if need be of fewer tiles, so that threads end together */
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

bool sheaf__attn_by_lanes(const struct sheaf__attn *at) {
    return at->by_lanes->lanes > 0 && at->n >= QUERIES_FROM && !at->sees && at->d > 0 && at->e > 0;
}

struct tile {
    float *q;   /* [d][lanes], see pack_queries */
    float *acc; /* [wide][lanes] */
    struct sheaf__attn_row rows[MAX_LANES];
    int n_rows;
    uint8_t kinds[MASKS_AHEAD]; /* of the masks of blocks: bits 1 << enum sheaf__attn_mask */
    float max[MAX_LANES], sum[MAX_LANES], shrink[MAX_LANES], slope[MAX_LANES];
};

struct scratch {
    struct tile *tiles; /* [tiles_together] */
    float *k;           /* [BLOCK][d] */
    float *v;           /* [BLOCK][wide] */
    float *scores;      /* [BLOCK][lanes] */
    /* As the tiles take them; the above if they take floats */
    float *keys, *values, *weights;
    float *mask;  /* [BLOCK][lanes] */
    float *rows;  /* [lanes][longest]: of q, of masks, a row of values */
    int64_t wide; /* e in whole tiles */
};

static int64_t longest(const struct sheaf__attn *at) {
    const int64_t n = at->d > at->e ? at->d : at->e;
    return n > BLOCK ? n : BLOCK;
}

static int64_t wide_of(const struct sheaf__attn *at) { return round_up(at->e, at->by_lanes->rows); }

static int64_t tiles_of_head(const struct sheaf__attn *at) {
    const int64_t lanes = at->by_lanes->lanes;
    return (at->rows + lanes - 1) / lanes;
}

/* Tiles that go over the keys together, at most. */
static int64_t tiles_together(const struct sheaf__attn *at) {
    const int64_t lanes = at->by_lanes->lanes;
    const int64_t each = (at->d + wide_of(at)) * lanes * (int64_t)sizeof(float);
    int64_t n = TOGETHER_BYTES / each;
    n = n < MAX_TOGETHER ? n : MAX_TOGETHER;
    n = n < tiles_of_head(at) ? n : tiles_of_head(at);
    return n > 1 ? n : 1;
}

static size_t take(float **p, float *base, size_t at, int64_t n) {
    *p = base ? base + at : NULL;
    return at + (size_t)round_up(n, 64 / (int64_t)sizeof(float));
}

static size_t scratch_at(const struct sheaf__attn *at, float *base, struct scratch *w) {
    const int64_t lanes = at->by_lanes->lanes, together = tiles_together(at);
    float *tiles;
    size_t n = 0;
    w->wide = wide_of(at);
    n = take(&tiles, base, n, together * (int64_t)(sizeof *w->tiles / sizeof *tiles));
    w->tiles = (void *)tiles;
    for (int64_t i = 0; i < together; i++) {
        float *q, *acc;
        n = take(&q, base, n, at->d * lanes);
        n = take(&acc, base, n, w->wide * lanes);
        if (base) w->tiles[i].q = q;
        if (base) w->tiles[i].acc = acc;
    }
    n = take(&w->k, base, n, BLOCK * at->d);
    n = take(&w->v, base, n, BLOCK * w->wide);
    n = take(&w->scores, base, n, BLOCK * lanes);
    w->keys = w->k;
    w->values = w->v;
    w->weights = w->scores;
    if (at->by_lanes->pack_keys || at->by_lanes->take_keys) {
        n = take(&w->keys, base, n, BLOCK * at->d);
        n = take(&w->values, base, n, BLOCK * w->wide);
        n = take(&w->weights, base, n, BLOCK * lanes);
    }
    n = take(&w->mask, base, n, BLOCK * lanes);
    return take(&w->rows, base, n, lanes * longest(at));
}

size_t sheaf__attn_lanes_size(const struct sheaf__attn *at) {
    struct scratch w;
    return scratch_at(at, NULL, &w) * sizeof(float);
}

static int64_t keys_of_block(const struct sheaf__attn *at, int64_t t0) {
    return at->t - t0 < BLOCK ? at->t - t0 : BLOCK;
}

static bool same_mask(const struct sheaf__attn *at, const struct tile *t, int i) {
    return i > 0 && sheaf__attn_mask_id(at, t->rows[i]) == sheaf__attn_mask_id(at, t->rows[i - 1]);
}

/* What masks the blocks from t0 on have. A row of a mask is long, and the next one lies as far
 * apart: block by block each would come from memory on its own. */
static void look_at_masks(const struct sheaf__attn *at, struct tile *t, int64_t t0) {
    memset(t->kinds, 0, sizeof t->kinds);
    for (int i = 0; i < t->n_rows && at->mask; i++) {
        if (same_mask(at, t, i)) continue;
        for (int64_t b = 0, from = t0; b < MASKS_AHEAD && from < at->t; b++, from += BLOCK)
            t->kinds[b] |= (uint8_t)(1 << sheaf__attn_mask_kind(at, t->rows[i], from,
                                                                keys_of_block(at, from)));
    }
}

/* The masks of a block, turned to [n][lanes] if any is mixed: then *mask is theirs, else NULL.
 * False if no row sees any key of the block. */
static bool load_masks(const struct sheaf__attn *at, const struct tile *t, int64_t t0, int64_t n,
                       const struct scratch *w, const float **mask) {
    const uint8_t kinds = t->kinds[t0 / BLOCK % MASKS_AHEAD];
    const float *x[MAX_LANES];
    bool any = false;
    *mask = NULL;
    if (!at->mask || kinds == 1 << SHEAF__ATTN_PLAIN) return true;
    if (kinds == 1 << SHEAF__ATTN_CLOSED) return false;
    for (int i = 0; i < t->n_rows; i++) {
        if (same_mask(at, t, i)) {
            x[i] = x[i - 1];
            continue;
        }
        float *row = w->rows + i * longest(at);
        const enum sheaf__attn_mask kind = sheaf__attn_mask(at, t->rows[i], t0, n, row);
        any = any || kind != SHEAF__ATTN_CLOSED;
        for (int64_t j = 0; j < n && kind != SHEAF__ATTN_MIXED; j++)
            row[j] = kind == SHEAF__ATTN_PLAIN ? 0.0f : -INFINITY;
        x[i] = row;
    }
    if (!any) return false;
    for (int i = t->n_rows; i < at->by_lanes->lanes; i++) x[i] = x[0];
    at->by_lanes->pack(x, n, w->mask);
    *mask = w->mask;
    return true;
}

/* Keys [t0, t0 + n) of a head. Blocks are loaded for the first tile that sees them. */
struct block {
    int64_t s, hk, t0, n;
    bool loaded;
    uint64_t not_finite; /* keys, by bits, of which some values are not finite */
};
static_assert(BLOCK == 64, "bits of `not_finite`");

/* A row that does not see them must not meet values that are not finite: they are zeros for all,
 * and add_not_finite adds them to the rows that do. */
static void clear_not_finite(struct block *b, const struct scratch *w) {
    for (int64_t i = 0; i < b->n * w->wide; i++) {
        if (isfinite(w->v[i])) continue;
        b->not_finite |= (uint64_t)1 << (i / w->wide);
        w->v[i] = 0.0f;
    }
}
static void add_not_finite(const struct sheaf__attn *at, const struct tile *t,
                           const struct block *b, const float *mask, const struct scratch *w) {
    const int64_t lanes = at->by_lanes->lanes;
    for (int64_t j = 0; j < b->n; j++) {
        if (!(b->not_finite >> j & 1)) continue;
        sheaf__attn_load(at, at->v, b->s, b->hk, b->t0 + j, 1, w->rows, w->wide);
        for (int l = 0; l < t->n_rows; l++) {
            if (mask && mask[j * lanes + l] == -INFINITY) continue;
            for (int64_t i = 0; i < at->e; i++)
                if (!isfinite(w->rows[i])) t->acc[i * lanes + l] += w->rows[i];
        }
    }
}

static void load_block(const struct sheaf__attn *at, struct block *b, const struct scratch *w) {
    const struct sheaf__cpu_attention *kern = at->by_lanes;
    const struct sheaf_tensor *k = at->k, *v = at->v;
    b->loaded = true;
    if (kern->take_keys) {
        kern->take_keys(at->d, b->n, sheaf__attn_cache(k, b->s, b->hk, b->t0), k->nb[1], w->keys);
        if (kern->take_values(w->wide, b->n, sheaf__attn_cache(v, b->s, b->hk, b->t0), v->nb[1],
                              w->values))
            return;
    } else {
        const int64_t whole = round_up(b->n, kern->rows);
        sheaf__attn_load(at, k, b->s, b->hk, b->t0, b->n, w->k, at->d);
        memset(w->k + b->n * at->d, 0, (size_t)((whole - b->n) * at->d) * sizeof *w->k);
        if (kern->pack_keys) kern->pack_keys(at->d, whole, w->k, w->keys);
    }
    if (!sheaf__attn_load(at, v, b->s, b->hk, b->t0, b->n, w->v, w->wide)) clear_not_finite(b, w);
    if (kern->pack_values) {
        memset(w->v + b->n * w->wide, 0, (size_t)((BLOCK - b->n) * w->wide) * sizeof *w->v);
        kern->pack_values(w->wide, w->v, w->values);
    }
}

static void add_block(const struct sheaf__attn *at, struct tile *t, struct block *b,
                      const struct scratch *w) {
    const struct sheaf__cpu_attention *kern = at->by_lanes;
    const int64_t lanes = kern->lanes, n = b->n;
    const float *mask;
    float scale = at->scale;
    if (!load_masks(at, t, b->t0, n, w, &mask)) return;
    if (!b->loaded) load_block(at, b, w);
    kern->scores(at->d, w->keys, round_up(n, kern->rows), t->q, t->n_rows, w->scores);
    if (at->softcap != 0.0f) {
        at->kern->scale_f32(n * lanes, scale, w->scores, w->scores);
        at->kern->softcap_f32(n * lanes, at->softcap, w->scores, w->scores);
        scale = 1.0f;
    }
    kern->soften(n, t->n_rows, scale, mask, t->slope, w->scores, w->weights, t->max, t->sum,
                 t->shrink);
    bool shrinks = false;
    for (int l = 0; l < t->n_rows; l++) shrinks = shrinks || t->shrink[l] != 1.0f;
    if (shrinks) kern->scale(at->e, t->n_rows, t->shrink, t->acc);
    kern->values(n, w->values, w->wide, w->weights, t->n_rows, t->acc);
    if (b->not_finite) add_not_finite(at, t, b, mask, w);
}

/* Rows [first, first + lanes) of a head, as far as there are. */
static void start_tile(const struct sheaf__attn *at, struct tile *t, int64_t s, int64_t hk,
                       int64_t first, const struct scratch *w) {
    const struct sheaf__cpu_attention *kern = at->by_lanes;
    const int64_t left = sheaf__attn_rows(at, hk) - first;
    const float *q[MAX_LANES];
    t->n_rows = (int)(left < kern->lanes ? left : kern->lanes);
    for (int l = 0; l < kern->lanes; l++) {
        t->max[l] = -INFINITY;
        t->sum[l] = t->slope[l] = 0.0f;
        if (l < t->n_rows) {
            t->rows[l] = sheaf__attn_row(at, s, hk, first + l);
            t->slope[l] = sheaf__attn_slope(at, t->rows[l]);
            q[l] = sheaf__attn_q(at, t->rows[l], w->rows + l * longest(at));
        } else {
            q[l] = q[0]; /* not used */
        }
    }
    kern->pack_queries(q, at->d, t->q);
    memset(t->acc, 0, (size_t)(w->wide * kern->lanes) * sizeof *t->acc);
}

static void finish_tile(const struct sheaf__attn *at, const struct tile *t) {
    float by[MAX_LANES + 4] = {0}; /* read in fours */
    float *y[MAX_LANES];
    for (int l = 0; l < t->n_rows; l++) {
        by[l] = sheaf__attn_factor(at, t->rows[l], t->max[l], t->sum[l]);
        y[l] = sheaf__attn_dst(at, t->rows[l]);
    }
    at->by_lanes->unpack(t->acc, at->e, by, t->n_rows, y);
}

/* Tiles of a head, from row `first` on. */
static void run_tiles(const struct sheaf__attn *at, int64_t s, int64_t hk, int64_t first,
                      int64_t together, const struct scratch *w) {
    const int64_t lanes = at->by_lanes->lanes, left = sheaf__attn_rows(at, hk) - first;
    if (left < 1) return;
    const int64_t there = (left + lanes - 1) / lanes, tiles = there < together ? there : together;
    for (int64_t i = 0; i < tiles; i++) start_tile(at, w->tiles + i, s, hk, first + i * lanes, w);
    if (w->wide > at->e) memset(w->v, 0, (size_t)(BLOCK * w->wide) * sizeof *w->v);
    for (int64_t t0 = 0; t0 < at->t; t0 += BLOCK) {
        struct block b = {.s = s, .hk = hk, .t0 = t0, .n = keys_of_block(at, t0)};
        for (int64_t i = 0; i < tiles; i++) {
            if (t0 % (MASKS_AHEAD * BLOCK) == 0) look_at_masks(at, w->tiles + i, t0);
            add_block(at, w->tiles + i, &b, w);
        }
    }
    for (int64_t i = 0; i < tiles; i++) finish_tile(at, w->tiles + i);
}

/* Tiles that go together when so many threads share the node. */
static int64_t tiles_of_item(const struct sheaf__attn *at, int nth) {
    const int64_t all = tiles_of_head(at) * at->heads_kv * at->n_s, most = tiles_together(at);
    const int64_t each = nth > 1 ? all / ((int64_t)nth * ITEMS_PER_THREAD) : most;
    return each < 1 ? 1 : each < most ? each : most;
}

void sheaf__attn_lanes(const struct sheaf__attn *at, struct sheaf__cpu_sync *sync, int ith, int nth,
                       void *work) {
    const int64_t together = tiles_of_item(at, nth);
    const int64_t rows = together * at->by_lanes->lanes;
    const int64_t items = (at->rows + rows - 1) / rows, of = at->heads_kv * at->n_s; /* of a head */
    struct sheaf__cpu_kept kept;
    struct scratch w;
    scratch_at(at, (float *)work + (size_t)ith * sheaf__attn_lanes_size(at) / sizeof(float), &w);
    if (at->by_lanes->begin) at->by_lanes->begin(&kept);
    sheaf__mul_mat_start(sync, ith, nth);
    for (int64_t i = sheaf__mul_mat_take(sync); i < items * of; i = sheaf__mul_mat_take(sync)) {
        /* the last queries, which see most, first: what is left at the end is small */
        run_tiles(at, i % of / at->heads_kv, i % at->heads_kv, (items - 1 - i / of) * rows,
                  together, &w);
    }
    if (at->by_lanes->end) at->by_lanes->end(&kept);
}
