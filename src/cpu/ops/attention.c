/* FLASH_ATTN_EXT: softmax(q.k) v. Many queries go by lanes (attention_lanes.c), few by parts of
 * the keys, here.
 *
 * A row (one query of one head) meets the keys in parts of PART from the first. A part gives its
 * largest score, the sum of its weights and the sum of its values, and parts are folded in order at
 * the end, so heads may be fewer than threads. (Where that would take much memory, as in a prompt
 * with the portable kernels, the thread that computes a row folds its parts as they come.) Rows
 * that share a K/V head are computed together, and heads take turns every few keys: heads of a
 * position lie together in a cache, so that it is read in the order of memory. Nothing of this
 * shows in the result: it depends neither on the number of threads nor on what else is computed. A
 * masked key (-inf) is never read into a result: the cells behind it may hold anything. */
#include <math.h>

#include "cpu/matmul/mul_mat.h"
#include "cpu/ops/attention.h"

enum {
    BLOCK = SHEAF__ATTN_BLOCK,
    PART = 256,       /* keys */
    QUERY_BLOCK = 32, /* of struct sheaf__query_digits */
    MAX_ROWS = 16,    /* of a K/V head, that are computed together */
    ITEM_ROWS = 64,   /* of all heads that take turns: their scores stay in a second cache */
    /* Keys and values of a head, then those of the next one. One core of a Zen 4 reads 8 heads of
     * 128 in F16 at 15 GB/s, where it goes over 256 keys of each at 10 (26 of plain memory;
     * 2026-11-23). Sums of values are stored after each turn. */
    TURN = 32,
    VALUE_TURN = SHEAF__VALUES_TOGETHER,
    BLOCK_FLOATS = 4096, /* of keys or values that are read several times: half of a first cache */
    ITEMS_PER_THREAD =
        2,              /* at least, if need be by reading keys and values for fewer rows at once */
    MAX_APART = 64,     /* queries that may be apart: more are prompts */
    MAX_KEPT = 4 << 20, /* floats of states that are folded later */
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- what both ways share ---- */

const float *sheaf__attn_q(const struct sheaf__attn *at, struct sheaf__attn_row r, float *buf) {
    const struct sheaf__cpu_row from = {r.query, r.head, r.s};
    return sheaf__cpu_load(SHEAF_TYPE_F32, sheaf__cpu_row_data(at->q, from), at->q->nb[0], at->d,
                           buf);
}

float *sheaf__attn_dst(const struct sheaf__attn *at, struct sheaf__attn_row r) {
    const struct sheaf__cpu_row to = {r.head, r.query, r.s};
    return (float *)(void *)sheaf__cpu_row_data(at->dst, to);
}

float sheaf__attn_slope(const struct sheaf__attn *at, struct sheaf__attn_row r) {
    return sheaf__cpu_alibi_slope(at->max_bias, at->base + r.head, at->n_head);
}

float sheaf__attn_factor(const struct sheaf__attn *at, struct sheaf__attn_row r, float max,
                         float sum) {
    float keep = 1.0f;
    if (at->sinks) {
        const float sink = *(const float *)(const void *)((const char *)at->sinks->data +
                                                          (size_t)r.head * at->sinks->nb[0]);
        if (sink == -INFINITY) return sum == 0.0f ? 0.0f : 1.0f / sum;
        const float most = sink > max ? sink : max;
        keep = expf(max - most); /* 0 where no key is seen */
        sum = sum * keep + expf(sink - most);
    }
    return sum == 0.0f ? 0.0f : keep / sum;
}

bool sheaf__attn_load(const struct sheaf__attn *at, const struct sheaf_tensor *x, int64_t s,
                      int64_t hk, int64_t t0, int64_t n, float *buf, int64_t stride) {
    const int64_t width = x->ne[0];
    const char *p = sheaf__attn_cache(x, s, hk, t0);
    if (at->kern->load_rows[x->type])
        return at->kern->load_rows[x->type](p, x->nb[1], n, width, buf, stride);
    for (int64_t j = 0; j < n; j++)
        sheaf_to_float(x->type, p + (size_t)j * x->nb[1], buf + j * stride, width);
    return false; /* not known */
}

int64_t sheaf__attn_mask_id(const struct sheaf__attn *at, struct sheaf__attn_row r) {
    return r.query * at->mask->ne[2] + r.head % at->mask->ne[2];
}

/* All n elements of 2 or 4 bytes at p have these bits. */
static bool all_are(const char *p, size_t size, int64_t n, uint32_t bits) {
    const uint64_t want = bits * (size == 2 ? 0x0001000100010001u : 0x0000000100000001u);
    size_t bytes = (size_t)n * size;
    uint64_t differ = 0, word = want;
    memcpy(&word, p, size);
    if (word != want) return false; /* most that differ do so from the first on */
    for (; bytes >= 8; bytes -= 8, p += 8) {
        memcpy(&word, p, 8);
        differ |= word ^ want;
    }
    word = want;
    memcpy(&word, p, bytes);
    return (differ | (word ^ want)) == 0;
}

static const char *mask_row(const struct sheaf__attn *at, struct sheaf__attn_row r, int64_t t0) {
    const struct sheaf_tensor *mask = at->mask;
    const struct sheaf__cpu_row from = {r.query, r.head % mask->ne[2], r.s % mask->ne[3]};
    return sheaf__cpu_row_data(mask, from) + (size_t)t0 * mask->nb[0];
}

/* -inf */
static uint32_t closed_bits(enum sheaf_type type) {
    return type == SHEAF_TYPE_F16 ? 0xfc00 : type == SHEAF_TYPE_BF16 ? 0xff80 : 0xff800000;
}

enum sheaf__attn_mask sheaf__attn_mask_kind(const struct sheaf__attn *at, struct sheaf__attn_row r,
                                            int64_t t0, int64_t n) {
    const struct sheaf_tensor *mask = at->mask;
    const uint32_t closed = closed_bits(mask->type);
    const size_t size = sheaf_type_size(mask->type);
    if (!sheaf__cpu_is_dense(mask)) return SHEAF__ATTN_MIXED;
    if (all_are(mask_row(at, r, t0), size, n, 0)) return SHEAF__ATTN_PLAIN;
    return all_are(mask_row(at, r, t0), size, n, closed) ? SHEAF__ATTN_CLOSED : SHEAF__ATTN_MIXED;
}

enum sheaf__attn_mask sheaf__attn_mask(const struct sheaf__attn *at, struct sheaf__attn_row r,
                                       int64_t t0, int64_t n, float *buf) {
    const struct sheaf_tensor *mask = at->mask;
    const char *p = mask_row(at, r, t0);
    const enum sheaf__attn_mask kind = sheaf__attn_mask_kind(at, r, t0, n);
    if (kind != SHEAF__ATTN_MIXED) return kind;
    if (sheaf__cpu_is_dense(mask) && at->kern->to_float[mask->type]) {
        at->kern->to_float[mask->type](p, buf, n);
    } else {
        sheaf__cpu_store(SHEAF_TYPE_F32, sheaf__cpu_load(mask->type, p, mask->nb[0], n, buf), buf,
                         sizeof *buf, n);
    }
    bool open = false;
    for (int64_t j = 0; j < n; j++) open |= buf[j] != -INFINITY;
    return open ? SHEAF__ATTN_MIXED : SHEAF__ATTN_CLOSED;
}

/* ---- by parts ---- */

/* Of rows of some heads: values [e], largest score, sum of weights. */
struct states {
    float *first;
    int64_t head, row; /* floats from one to the next */
};
static float *state_of(const struct states *s, int64_t head, int64_t row) {
    return s->first + head * s->head + row * s->row;
}
static int64_t state_size(const struct sheaf__attn *at) { return round_up(at->e + 2, 16); }

/* Rows [first, first + rows) of K/V heads [hk, hk + heads), and a part of their keys. Row i of them
 * all is that of head i / rows. */
struct item {
    int64_t s, hk, first, part, heads, rows;
};
static int64_t rows_of(const struct item *item) { return item->heads * item->rows; }
static struct sheaf__attn_row row_of(const struct sheaf__attn *at, const struct item *item,
                                     int64_t i) {
    return sheaf__attn_row(at, item->s, item->hk + i / item->rows, item->first + i % item->rows);
}

/* An item's rows. All parts of the keys share them, so consecutive parts take them once. */
struct rows {
    int64_t s, hk, first; /* of the item; hk: -1 before any */
    const float *q[ITEM_ROWS];
    float slope[ITEM_ROWS];
    struct sheaf__attn_row of[ITEM_ROWS];
    bool same_mask[ITEM_ROWS]; /* as the row before */
};

struct scratch {
    float *block;                       /* [BLOCK][max(d, e)] */
    float *q;                           /* [rows][d], where q is not dense */
    struct sheaf__query_digits *digits; /* [rows][d / 32], of keys in Q8_0 */
    float *scores;                      /* [rows][PART] */
    float *mask;                        /* [rows][PART] */
    float *part, *of;                   /* [rows][state_size] */
    struct rows rows;
};

/* Keys that are floats at a time, whole vectors; the bits do not depend on it. */
static int64_t keys_of(int64_t width) {
    const int64_t n = width > 0 ? BLOCK_FLOATS / width / 16 * 16 : BLOCK;
    return n < 16 ? 16 : n < BLOCK ? n : BLOCK;
}

static size_t take(float **p, float *base, size_t at, int64_t n) {
    *p = base ? base + at : NULL;
    return at + (size_t)round_up(n, 64 / (int64_t)sizeof(float));
}

/* Floats of one thread, whose items have at most so many rows. */
static size_t scratch_at(const struct sheaf__attn *at, int64_t rows, float *base,
                         struct scratch *w) {
    size_t n = 0;
    n = take(&w->block, base, n, BLOCK * (at->d > at->e ? at->d : at->e));
    n = take(&w->q, base, n, rows * at->d);
    float *digits;
    n = take(&digits, base, n,
             rows * (at->d / QUERY_BLOCK) * (int64_t)(sizeof *w->digits / sizeof *digits));
    w->digits = (void *)digits;
    n = take(&w->scores, base, n, rows * PART);
    n = take(&w->mask, base, n, rows * PART);
    n = take(&w->part, base, n, rows * state_size(at));
    return take(&w->of, base, n, rows * state_size(at));
}

/* How a node is shared out; nothing of it shows in the result. */
struct shares {
    int64_t parts;          /* of the keys */
    int64_t heads, group;   /* K/V heads of an item, rows of each */
    int64_t ranges, groups; /* of heads, of the rows of a head */
    int64_t all;            /* items of a part */
    bool apart;             /* parts are items of their own, kept in memory until all are done */
};

static int64_t parts_of(const struct sheaf__attn *at) { return (at->t + PART - 1) / PART; }

static int64_t all_rows(const struct sheaf__attn *at) { return at->rows * at->heads_kv * at->n_s; }

static struct shares shares_of(const struct sheaf__attn *at, int nth) {
    /* rows of one query at most where queries see different keys: what none of an item sees is left
     * out */
    const int64_t rows = at->sees ? at->rows / at->n : at->rows;
    struct shares s = {.parts = parts_of(at), .group = min_i64(rows, MAX_ROWS)};
    const int64_t wanted = (int64_t)nth * ITEMS_PER_THREAD;
    s.apart = s.parts > 1 && all_rows(at) * s.parts <= MAX_KEPT / state_size(at);
    if (s.group < 1) s.group = 1;
    s.heads = min_i64(at->heads_kv, ITEM_ROWS / s.group);
    /* where a slice divides a group, heads have unlike numbers of rows, and take no turns */
    if (s.heads < 1 || at->rows * at->heads_kv != at->q->ne[2] * at->n) s.heads = 1;
    for (;;) {
        s.groups = (at->rows + s.group - 1) / s.group;
        s.ranges = (at->heads_kv + s.heads - 1) / s.heads;
        s.all = s.ranges * s.groups * at->n_s;
        if (nth == 1 || s.all * (s.apart ? s.parts : 1) >= wanted) return s;
        if (s.heads == 1 && s.group <= 2) return s;
        if (s.heads > 1) {
            s.heads = (s.heads + 1) / 2;
        } else {
            s.group = (s.group + 1) / 2;
        }
    }
}

static size_t kept_floats(const struct sheaf__attn *at, const struct shares *s) {
    return s->apart ? (size_t)(all_rows(at) * s->parts * state_size(at)) : 0;
}

static bool sees(const struct sheaf__attn *at, int64_t query, int64_t part) {
    return !at->sees || at->sees[query * parts_of(at) + part];
}
static bool some_row_sees(const struct sheaf__attn *at, const struct item *item) {
    const int64_t last = row_of(at, item, item->rows - 1).query;
    for (int64_t query = row_of(at, item, 0).query; query <= last; query++) {
        if (sees(at, query, item->part)) return true;
    }
    return false;
}

/* True if the kernel, which is there or not, takes rows as they lie. */
static bool direct(const struct sheaf_tensor *x, bool there) {
    const int64_t of = sheaf_is_quantized(x->type) ? 32 : 16;
    return there && x->ne[0] > 0 && x->ne[0] % of == 0 && x->ne[0] <= SHEAF__DIRECT_WIDTH;
}

/* True if keys, or values, meet the queries as integers. */
static bool as_integers(const struct sheaf__attn *at, const struct sheaf_tensor *x) {
    return x->type == SHEAF_TYPE_Q8_0 && direct(x, at->kern->attention_q8.query != NULL);
}

static bool as_they_lie(const struct sheaf__attn *at, const struct sheaf_tensor *x) {
    return as_integers(at, x) || direct(x, at->kern->dots_of[x->type] != NULL);
}

/* Looks up the rows of an item, unless those of the part before are the same. */
static void take_rows(const struct sheaf__attn *at, const struct item *item, struct scratch *w) {
    struct rows *rows = &w->rows;
    if (rows->hk == item->hk && rows->s == item->s && rows->first == item->first) return;
    rows->hk = item->hk;
    rows->s = item->s;
    rows->first = item->first;
    for (int64_t i = 0; i < rows_of(item); i++) {
        const struct sheaf__attn_row r = row_of(at, item, i);
        rows->of[i] = r;
        rows->q[i] = sheaf__attn_q(at, r, w->q + i * at->d);
        rows->slope[i] = sheaf__attn_slope(at, r);
        rows->same_mask[i] = at->mask && i > 0 &&
                             sheaf__attn_mask_id(at, r) == sheaf__attn_mask_id(at, rows->of[i - 1]);
        if (as_integers(at, at->k))
            at->kern->attention_q8.query(at->d, rows->q[i], w->digits + i * (at->d / QUERY_BLOCK));
    }
}

/* Loads the masks of the rows: mask[i] is that of row i, NULL if it is zeros. Shortens the part
 * [*t0, *t0 + *n) to the keys that some row sees; it still begins at a whole turn of values, since
 * the place of a key decides which sums it enters. */
static void load_masks(const struct sheaf__attn *at, const struct item *item, int64_t *t0,
                       int64_t *n, const struct scratch *w, const float **mask) {
    int64_t first = at->mask ? *n : 0, last = at->mask ? 0 : *n;
    for (int64_t i = 0; i < rows_of(item); i++) {
        mask[i] = NULL;
        if (!at->mask) continue;
        if (w->rows.same_mask[i]) {
            mask[i] = mask[i - 1];
            continue;
        }
        float *buf = w->mask + i * PART;
        const enum sheaf__attn_mask kind = sheaf__attn_mask(at, w->rows.of[i], *t0, *n, buf);
        if (kind == SHEAF__ATTN_PLAIN) first = 0, last = *n;
        if (kind == SHEAF__ATTN_PLAIN) continue;
        mask[i] = buf;
        for (int64_t j = 0; j < *n && kind == SHEAF__ATTN_CLOSED; j++) buf[j] = -INFINITY;
        if (kind == SHEAF__ATTN_CLOSED) continue;
        int64_t from = 0, to = *n;
        while (buf[from] == -INFINITY) from++;
        while (buf[to - 1] == -INFINITY) to--;
        first = min_i64(first, from / VALUE_TURN * VALUE_TURN);
        last = last > to ? last : to;
    }
    for (int64_t i = 0; i < rows_of(item); i++) mask[i] = mask[i] ? mask[i] + first : NULL;
    *t0 += first;
    *n = last > first ? last - first : 0;
}

/* Dot products to scores, in place. */
static void finish_scores(const struct sheaf__attn *at, float slope, const float *mask, int64_t n,
                          float *scores) {
    at->kern->scale_f32(n, at->scale, scores, scores);
    if (at->softcap != 0.0f) at->kern->softcap_f32(n, at->softcap, scores, scores);
    if (!mask) return;
    for (int64_t j = 0; j < n; j++) {
        const float x = scores[j] + slope * mask[j];
        scores[j] = mask[j] == -INFINITY ? -INFINITY : x;
    }
}

/* Dot products of keys [t0, t0 + n) of a head with the queries of its rows. */
static void score_keys(const struct sheaf__attn *at, const struct item *item, int64_t hk,
                       const struct scratch *w, int64_t t0, int64_t n, const float *const *q,
                       float *scores) {
    const struct sheaf__cpu_kernels *kern = at->kern;
    const int rows = (int)item->rows;
    if (as_integers(at, at->k)) {
        const struct sheaf__query_digits *digits[MAX_ROWS];
        for (int i = 0; i < rows; i++)
            digits[i] = w->digits + ((hk - item->hk) * rows + i) * (at->d / QUERY_BLOCK);
        kern->attention_q8.dots(at->d, sheaf__attn_cache(at->k, item->s, hk, t0), at->k->nb[1], n,
                                digits, rows, scores, PART);
        return;
    }
    if (as_they_lie(at, at->k)) {
        kern->dots_of[at->k->type](at->d, sheaf__attn_cache(at->k, item->s, hk, t0), at->k->nb[1],
                                   n, q, rows, scores, PART);
        return;
    }
    for (int64_t j = 0; j < n; j += keys_of(at->d)) {
        const int64_t len = min_i64(keys_of(at->d), n - j);
        sheaf__attn_load(at, at->k, item->s, hk, t0 + j, len, w->block, at->d);
        kern->dots(at->d, w->block, at->d, len, q, rows, scores + j, PART);
    }
}

static void score_heads(const struct sheaf__attn *at, const struct item *item,
                        const struct scratch *w, int64_t t0, int64_t n) {
    /* all keys of one head alone, and where rows become floats in memory */
    const int64_t some = as_they_lie(at, at->k) && item->heads > 1 ? TURN : n;
    for (int64_t j = 0; j < n; j += some) {
        for (int64_t h = 0; h < item->heads; h++)
            score_keys(at, item, item->hk + h, w, t0 + j, min_i64(some, n - j),
                       w->rows.q + h * item->rows, w->scores + h * item->rows * PART + j);
    }
}

/* Weights by values of which some are not finite, key by key: y[r] += w[r][j] * v[j] where the
 * weight is not 0. A masked key is never read into a result. */
static void mix_carefully(const struct sheaf__attn *at, const float *v, int64_t stride, int64_t n,
                          const float *w, int64_t w_stride, int64_t n_rows, float *y,
                          int64_t y_stride) {
    for (int64_t r = 0; r < n_rows; r++, w += w_stride, y += y_stride) {
        for (int64_t j = 0; j < n; j++) {
            if (w[j] != 0.0f) at->kern->mix(1, v + j * stride, stride, at->e, w + j, 0, 1, y, 0);
        }
    }
}

/* y += weights of rows . values, through floats in memory, without values of weight 0 if some are
 * not finite. */
static void mix_floats(const struct sheaf__attn *at, int64_t s, int64_t hk, const struct scratch *w,
                       int64_t t0, int64_t n, const float *weights, int64_t rows, float *y,
                       int64_t y_stride) {
    for (int64_t j = 0; j < n; j += keys_of(at->e)) {
        const int64_t len = min_i64(keys_of(at->e), n - j);
        if (sheaf__attn_load(at, at->v, s, hk, t0 + j, len, w->block, at->e)) {
            at->kern->mix(len, w->block, at->e, at->e, weights + j, PART, rows, y, y_stride);
        } else {
            mix_carefully(at, w->block, at->e, len, weights + j, PART, rows, y, y_stride);
        }
    }
}

/* Values of the states, zeros, += weights of rows . values [t0, t0 + n). As they lie, a value that
 * is not finite may show in every sum that it enters, with a weight of 0 too: then the row is done
 * again. */
static void mix_heads(const struct sheaf__attn *at, const struct item *item,
                      const struct scratch *w, int64_t t0, int64_t n, const struct states *to) {
    const struct sheaf__cpu_kernels *kern = at->kern;
    const bool direct = as_they_lie(at, at->v);
    sheaf__mix_rows_fn mix =
        as_integers(at, at->v) ? kern->attention_q8.mix : kern->mix_of[at->v->type];
    for (int64_t j = 0; direct && j < n; j += VALUE_TURN) {
        for (int64_t h = 0; h < item->heads; h++)
            mix(min_i64(VALUE_TURN, n - j), sheaf__attn_cache(at->v, item->s, item->hk + h, t0 + j),
                at->v->nb[1], at->e, w->scores + h * item->rows * PART + j, PART, item->rows,
                state_of(to, h, 0), to->row);
    }
    const int64_t rows = direct ? 1 : item->rows;
    for (int64_t i = 0; i < rows_of(item); i += rows) {
        float *y = state_of(to, i / item->rows, i % item->rows);
        if (direct && kern->finite_f32(at->e, y)) continue;
        if (direct) memset(y, 0, (size_t)at->e * sizeof *y);
        mix_floats(at, item->s, item->hk + i / item->rows, w, t0, n, w->scores + i * PART, rows, y,
                   to->row);
    }
}

/* The rows' states after this part of the keys alone. */
static void run_part(const struct sheaf__attn *at, const struct item *item, struct scratch *w,
                     const struct states *to) {
    const struct sheaf__cpu_kernels *kern = at->kern;
    const float *mask[ITEM_ROWS];
    int64_t t0 = item->part * PART, n = min_i64(PART, at->t - t0);
    take_rows(at, item, w);
    load_masks(at, item, &t0, &n, w, mask);
    for (int64_t i = 0; i < rows_of(item); i++) {
        float *state = state_of(to, i / item->rows, i % item->rows);
        state[at->e] = -INFINITY;
        state[at->e + 1] = 0.0f;
        if (n > 0) memset(state, 0, (size_t)at->e * sizeof *state); /* else it is not read */
    }
    if (n == 0) return;
    score_heads(at, item, w, t0, n);
    for (int64_t i = 0; i < rows_of(item); i++) {
        float *scores = w->scores + i * PART;
        float *state = state_of(to, i / item->rows, i % item->rows) + at->e;
        finish_scores(at, w->rows.slope[i], mask[i], n, scores);
        state[0] = kern->max_f32(n, scores);
        /* all -inf: exp(-inf - 0) is 0, and a NaN stays one */
        state[1] = kern->exp_f32(n, scores, state[0] == -INFINITY ? 0.0f : state[0], scores);
    }
    mix_heads(at, item, w, t0, n, to);
}

/* Takes the state of the next part into that of those before it. */
static void fold(const struct sheaf__attn *at, const float *part, float *of) {
    const float *p = part + at->e;
    float *f = of + at->e;
    if (p[0] == -INFINITY && p[1] == 0.0f) return; /* no key, and no NaN */
    const float max = p[0] > f[0] ? p[0] : f[0];
    const float keep = expf(f[0] - max), join = expf(p[0] - max);
    f[0] = max;
    f[1] = f[1] * keep + p[1] * join;
    for (int64_t i = 0; i < at->e; i++) of[i] = of[i] * keep + part[i] * join;
}

static struct item item_of(const struct sheaf__attn *at, const struct shares *s, int64_t i,
                           int64_t part) {
    struct item item = {.part = part, .first = i % s->groups * s->group};
    item.hk = i / s->groups % s->ranges * s->heads;
    item.s = i / s->groups / s->ranges;
    item.heads = min_i64(s->heads, at->heads_kv - item.hk);
    item.rows = min_i64(s->group, sheaf__attn_rows(at, item.hk) - item.first); /* may be < 1 */
    return item;
}

static void empty(const struct sheaf__attn *at, float *of) {
    memset(of, 0, (size_t)state_size(at) * sizeof *of);
    of[at->e] = -INFINITY;
}

static void finish(const struct sheaf__attn *at, struct sheaf__attn_row r, const float *of) {
    at->kern->scale_f32(at->e, sheaf__attn_factor(at, r, of[at->e], of[at->e + 1]), of,
                        sheaf__attn_dst(at, r));
}

/* All parts of an item's rows, one after the other. */
static void run_parts(const struct sheaf__attn *at, const struct shares *s, int64_t i,
                      struct scratch *w) {
    const int64_t size = state_size(at);
    struct item item = item_of(at, s, i, 0);
    if (item.rows < 1) return;
    const struct states to = {w->part, item.rows * size, size};
    for (int64_t r = 0; r < rows_of(&item); r++) empty(at, w->of + r * size);
    for (; item.part < s->parts; item.part++) {
        if (!some_row_sees(at, &item)) continue;
        run_part(at, &item, w, &to);
        for (int64_t r = 0; r < rows_of(&item); r++) fold(at, w->part + r * size, w->of + r * size);
    }
    for (int64_t r = 0; r < rows_of(&item); r++) finish(at, row_of(at, &item, r), w->of + r * size);
}

static void by_parts(const struct sheaf__attn *at, struct sheaf__cpu_sync *sync, int ith, int nth,
                     float *work) {
    const struct shares s = shares_of(at, nth);
    const int64_t size = state_size(at), stride = s.parts * size; /* kept: [row][part][size] */
    float *kept = work;
    struct scratch w;
    const size_t each = scratch_at(at, s.heads * s.group, NULL, &w);
    scratch_at(at, s.heads * s.group, work + kept_floats(at, &s) + (size_t)ith * each, &w);
    w.rows.hk = -1;
    sheaf__mul_mat_start(sync, ith, nth);
    const int64_t each_part = s.apart ? (s.parts + nth - 1) / nth : 0;
    const int64_t n = s.all * (s.apart ? each_part * nth : 1);
    for (int64_t i = sheaf__mul_mat_take(sync); i < n; i = sheaf__mul_mat_take(sync)) {
        if (s.apart) {
            /* a thread goes on where it was: what it has fetched ahead is for itself */
            const int64_t turn = i / s.all, part = turn % nth * each_part + turn / nth;
            if (part >= s.parts) continue;
            const struct item item = item_of(at, &s, i % s.all, part);
            if (item.rows < 1 || !some_row_sees(at, &item)) continue;
            const int64_t row = (item.s * at->heads_kv + item.hk) * at->rows + item.first;
            const struct states to = {kept + row * stride + item.part * size, at->rows * stride,
                                      stride};
            run_part(at, &item, &w, &to);
        } else {
            run_parts(at, &s, i, &w);
        }
    }
    if (!s.apart) return;
    sheaf__cpu_barrier(sync, nth);
    int64_t first, last;
    sheaf__cpu_share(all_rows(at), ith, nth, &first, &last);
    for (int64_t row = first; row < last; row++) {
        const int64_t head = row / at->rows, hk = head % at->heads_kv;
        if (row % at->rows >= sheaf__attn_rows(at, hk)) continue;
        const struct sheaf__attn_row r =
            sheaf__attn_row(at, head / at->heads_kv, hk, row % at->rows);
        empty(at, w.of);
        for (int64_t part = 0; part < s.parts; part++) {
            if (sees(at, r.query, part)) fold(at, kept + row * stride + part * size, w.of);
        }
        finish(at, r, w.of);
    }
}

/* ---- the op ---- */

static bool serves(const struct sheaf__cpu_attention *kind, const struct sheaf_tensor *k,
                   const struct sheaf_tensor *v) {
    const bool of = kind->of == SHEAF_TYPE_F32 || (k->type == kind->of && v->type == kind->of);
    return kind->lanes > 0 && of && k->ne[0] % kind->unit == 0;
}
/* Floats are for all caches, and heads of any size. */
static const struct sheaf__cpu_attention *by_lanes(const struct sheaf__cpu_kernels *kern,
                                                   const struct sheaf_tensor *k,
                                                   const struct sheaf_tensor *v) {
    const bool exact = sheaf__rounding() == SHEAF__ROUND_NONE;
    const struct sheaf__cpu_attention *kind =
        &kern->attention[exact ? SHEAF__ATTENTION_BF16_BOTH : SHEAF__ATTENTION_BF16];
    while (kind > &kern->attention[SHEAF__ATTENTION_FLOATS] && !serves(kind, k, v)) kind--;
    return kind;
}

static struct sheaf__attn attn_of(const struct sheaf__cpu_kernels *kern,
                                  const struct sheaf_tensor *node) {
    const struct sheaf_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
    const int64_t extent = node->op_params[SHEAF_OP_PARAM_EXTENT];
    struct sheaf__attn at = {
        .kern = kern,
        .by_lanes = by_lanes(kern, k, v),
        .q = q,
        .k = k,
        .v = v,
        .mask = node->src[3],
        .sinks = node->src[4],
        .dst = node,
        .d = q->ne[0],
        .e = v->ne[0],
        .t = k->ne[1],
        .n = q->ne[1],
        .heads_kv = k->ne[2],
        .n_s = q->ne[3],
        .groups = sheaf__head_groups(node),
        .scale = sheaf__param_f32(node, 0),
        .max_bias = sheaf__param_f32(node, 1),
        .softcap = sheaf__param_f32(node, 2),
        .base = node->op_params[SHEAF_OP_PARAM_BASE],
        .n_head = extent != 0 ? extent : q->ne[2],
    };
    at.rows = min_i64(at.groups.each, q->ne[2]) * at.n;
    return at;
}

/* ---- queries that see different keys ---- */

static bool may_be_apart(const struct sheaf__attn *at) {
    return at->mask && at->mask->ne[2] * at->mask->ne[3] == 1 && at->n > 1 && at->n <= MAX_APART;
}
static size_t sees_size(const struct sheaf__attn *at) {
    return may_be_apart(at) ? (size_t)round_up(at->n * parts_of(at), 64) : 0;
}

/* Keys of a part that a query sees; those of a mixed mask become 1 in `any`. Most parts are seen by
 * all of the queries or by none. */
static int64_t keys_seen(const struct sheaf__attn *at, int64_t query, int64_t t0, int64_t n,
                         enum sheaf__attn_mask kind, uint16_t *any) {
    const struct sheaf__attn_row r = {.query = query};
    const uint32_t closed = closed_bits(at->mask->type);
    const size_t size = sheaf_type_size(at->mask->type);
    uint16_t open = 0; /* all as wide as an element of F16: compilers vectorise it */
    if (kind != SHEAF__ATTN_MIXED) return kind == SHEAF__ATTN_PLAIN ? n : 0;
    if (size == 2 && sheaf__cpu_is_dense(at->mask)) {
        const char *p = mask_row(at, r, t0);
        for (int64_t i = 0; i < n; i++) {
            uint16_t bits;
            memcpy(&bits, p + 2 * i, sizeof bits);
            const uint16_t is = bits != closed;
            any[i] |= is;
            open = (uint16_t)(open + is);
        }
        return open;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint16_t is = !all_are(mask_row(at, r, t0 + i), size, 1, closed);
        any[i] |= is;
        open = (uint16_t)(open + is);
    }
    return open;
}

/* Notes the parts that each query sees. True if the queries have little in common: if they see less
 * than a quarter of the keys that some query sees, where tiles of many queries would compute mostly
 * what is masked (queries of one prompt see half of them at least); less than three quarters of the
 * parts, where the rows of several queries would share what is read. */
static bool are_apart(const struct sheaf__attn *at, bool *to) {
    const int64_t parts = parts_of(at), n = at->n;
    int64_t keys = 0, keys_of_some = 0;  /* seen by each query, summed, and by some query */
    int64_t seen = 0, parts_of_some = 0; /* the same of parts */
    for (int64_t p = 0; p < parts; p++) {
        const int64_t t0 = p * PART, len = min_i64(PART, at->t - t0);
        uint16_t any[PART] = {0};
        int64_t queries = 0, most = 0, mixed = 0;
        for (int64_t query = 0; query < n; query++) {
            const struct sheaf__attn_row r = {.query = query};
            const enum sheaf__attn_mask kind = sheaf__attn_mask_kind(at, r, t0, len);
            const int64_t its = keys_seen(at, query, t0, len, kind, any);
            to[query * parts + p] = its > 0;
            queries += its > 0;
            keys += its;
            most = its > most ? its : most;
        }
        for (int64_t i = 0; i < len; i++) mixed += any[i];
        keys_of_some += most == len ? len : mixed;
        seen += queries;
        parts_of_some += queries > 0;
    }
    return sheaf__attn_by_lanes(at) ? keys * 4 < keys_of_some * n
                                    : seen * 4 < parts_of_some * n * 3;
}

static size_t by_parts_size(const struct sheaf__attn *at, int nth) {
    const struct shares s = shares_of(at, nth);
    struct scratch w;
    const size_t each = scratch_at(at, s.heads * s.group, NULL, &w);
    return (kept_floats(at, &s) + each * (size_t)nth) * sizeof(float);
}

static size_t work_size(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst,
                        int nth) {
    struct sheaf__attn at = attn_of(kern, dst);
    const size_t together = sheaf__attn_by_lanes(&at) ? sheaf__attn_lanes_size(&at) * (size_t)nth
                                                      : by_parts_size(&at, nth);
    if (!may_be_apart(&at)) return together;
    const bool any = true; /* what queries see is not known before the mask is */
    at.sees = &any;
    const size_t apart = by_parts_size(&at, nth);
    return sees_size(&at) * (size_t)nth + (together > apart ? together : apart);
}

static size_t flash_attn_work(const struct sheaf_tensor *dst, int nth) {
    const size_t size = work_size(sheaf__cpu_kernels(), dst, nth);
    const size_t reference = work_size(&sheaf__cpu_kernels_portable, dst, nth);
    return size > reference ? size : reference;
}

static void attention(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst,
                      struct sheaf__cpu_sync *sync, int ith, int nth, void *work) {
    struct sheaf__attn at = attn_of(kern, dst);
    const size_t each = sees_size(&at);
    bool *noted = (bool *)work + (size_t)ith * each;
    if (each && are_apart(&at, noted)) at.sees = noted;
    work = (char *)work + (size_t)nth * each;
    if (sheaf__attn_by_lanes(&at)) {
        sheaf__attn_lanes(&at, sync, ith, nth, work);
    } else {
        by_parts(&at, sync, ith, nth, work);
    }
}

static enum sheaf_status op_flash_attn(struct sheaf_tensor *dst, int ith, int nth,
                                       struct sheaf__cpu_sync *sync, void *work) {
    attention(sheaf__cpu_kernels(), dst, sync, ith, nth, work);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status op_flash_attn_ref(struct sheaf_tensor *dst, int ith, int nth,
                                           struct sheaf__cpu_sync *sync, void *work) {
    attention(&sheaf__cpu_kernels_portable, dst, sync, ith, nth, work);
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(FLASH_ATTN_EXT) = {.fn = op_flash_attn,
                                 .reference = op_flash_attn_ref,
                                 .work_size = flash_attn_work,
                                 .heavy = true};
