/* Layers as llama.cpp builds them, of random weights: a prompt and a token behind it.
 *     helper-ggml-layers LIBRARY PLUGIN API KIND
 * mamba, mamba2, plamo2: a scan of heads of one element, of heads in two groups, and with a gate in each head. rounds,
 * repeats: a delta net whose heads read the queries in turn, and each query for two heads that follow each other. kda:
 * one with projections of their own. rwkv6, rwkv7: time mix, of which llama.cpp asks with operands that do not fit, and
 * with a channel mix. linear: attention with a state and a norm over all heads. short: a short convolution. latent:
 * products of attention whose keys and values come from one vector. transposed: attention that keeps values transposed;
 * again: and a second context. runs: query heads of which three read one K/V head; rotated: with keys that are times a
 * matrix; norms: with norms over all heads; picked: with rows of the caches by number; repeated: used twice, with caches
 * for each time; values: with those of an expert added. decoder: attention with a cache, attention to what an encoder
 * gave, and a feed-forward, named as T5's and as the first of a conformer. shared: two layers with one cache, of keys
 * that are the values, too. groups: heads of one key, which is the value, and a matrix for each group of heads before the output
 * matrix. expert: an expert of fewer dimensions than the layer has, and a shared one. gated: a feed-forward with gate and
 * up in one matrix. joined: one behind the matrix that a head for further tokens has for a token and a state. unnamed: a
 * layer as whisper.cpp's, whose weights have numbers for names and whose caches are one row for all layers.
 * Prints the results, and "done". */
#include <stddef.h>

#include "ggml_nodes.h"

enum {
    EMBD = 32,
    HEADS = 4,
    GROUPS = 2,
    HEAD = 8,
    STATE = 16,
    INNER = HEADS * HEAD,
    TAPS = 4,
    LATENT = 16,
    ROPED = 4,
    CELLS = 3,
    CELLS_KV = 8,
    MOST = 512 * 1024
};

static int64_t n_tokens;

/* ---- states and caches ---- */

/* The state of the only sequence, which is in cell 1, and copies of no others, as llama.cpp makes them. */
static struct gg_tensor *state_of(struct gg_tensor *c) {
    const int32_t cell = 1;
    const size_t row = c->nb[1];
    struct gg_tensor *state = node("GET_ROWS", c->ne[0], 1, 1, c, numbers(&cell, 1));
    struct gg_tensor *none = node("GET_ROWS", c->ne[0], 0, 1, c, numbers(&cell, 0));
    struct gg_tensor *to = shown("VIEW", c, c->ne[0], 0, 1, row, 0, 2 * row);
    struct gg_tensor *copy = shown("CPY", to, c->ne[0], 0, 1, row, 0, 0);
    expand(state);
    copy->src[0] = none;
    copy->src[1] = to;
    expand(copy);
    return state;
}
static void store(struct gg_tensor *x, struct gg_tensor *c) {
    struct gg_tensor *to = shown("VIEW", c, c->ne[0], 1, 1, c->nb[1], c->nb[1], c->nb[1]);
    struct gg_tensor *copy = shown("CPY", to, c->ne[0], 1, 1, c->nb[1], c->nb[1], 0);
    copy->src[0] = x;
    copy->src[1] = to;
    expand(copy);
}

/* A convolution of x [channels, tokens] and of the taps before, which are part `index` of the row `state` of
 * the cache c. */
static struct gg_tensor *convolve(struct gg_tensor *x, struct gg_tensor *kernel,
                                  struct gg_tensor *state, struct gg_tensor *c, int index) {
    const int64_t n = x->ne[0], before = kernel->ne[0] - 1;
    const size_t one = sizeof(float), first = (size_t)(index * n * before) * one;
    struct gg_tensor *old =
        shown("VIEW", state, before, n, 1, (size_t)before * one, (size_t)(n * before) * one, first);
    struct gg_tensor *all = node("CONCAT", before + n_tokens, n, 1, old, permute(x, 1, 0, 2)),
                     *last, *to, *copy;
    last = shown("VIEW", all, before, n, 1, all->nb[1], all->nb[2], (size_t)n_tokens * one);
    to = shown("VIEW", c, before, n, 1, (size_t)before * one, c->nb[1], c->nb[1] + first);
    copy = shown("CPY", to, before, n, 1, to->nb[1], to->nb[2], 0);
    copy->src[0] = last;
    copy->src[1] = to;
    expand(copy);
    return node("SSM_CONV", n, n_tokens, 1, all,
                kernel->ne[1] == 1 ? reshape(kernel, kernel->ne[0], n, 1) : kernel);
}

/* ---- layers: the result for x [EMBD, tokens] ---- */

struct layer {
    struct gg_tensor *in, *qkv, *q, *k, *v, *gate, *conv[3], *x, *dt, *dt_bias, *a, *d, *alpha,
        *beta, *f, *out, *r, *s, *k_b, *v_b;
    int64_t used; /* cells of a cache of keys and values */
};

static struct gg_tensor *scan(struct layer *l, struct gg_tensor *x, struct gg_tensor *dt,
                              struct gg_tensor *b, struct gg_tensor *c) {
    const int32_t cell = 1;
    const int64_t head = x->ne[0], heads = x->ne[1];
    struct gg_tensor *y = node("SSM_SCAN", INNER * n_tokens + STATE * INNER, 1, 1,
                               shown("RESHAPE", l->s, STATE, head, heads, STATE * sizeof(float),
                                     (size_t)(STATE * head) * sizeof(float), 0),
                               x);
    y->src[0]->ne[3] = CELLS;
    y->src[0]->nb[3] = l->s->nb[1];
    y->src[2] = dt;
    y->src[3] = l->a;
    y->src[4] = b;
    y->src[5] = c;
    y->src[6] = numbers(&cell, 1);
    y->op_params[0] = 1;
    store(shown("VIEW", y, STATE * INNER, 1, 1, 0, 0, (size_t)(INNER * n_tokens) * sizeof(float)),
          l->s);
    return shown("VIEW", y, head, heads, n_tokens, (size_t)head * sizeof(float),
                 INNER * sizeof(float), 0);
}

static struct gg_tensor *mamba2(struct layer *l, struct gg_tensor *x) {
    enum { BC = GROUPS * STATE, CHANNELS = INNER + 2 * BC };
    struct gg_tensor *all = product(l->in, x), *z = part(all, HEAD, HEADS, 0, HEAD);
    struct gg_tensor *xbc =
        convolve(rows_of(all, CHANNELS, INNER), l->conv[0], state_of(l->r), l->r, 0);
    struct gg_tensor *dt =
        plus(cont(rows_of(all, HEADS, INNER + CHANNELS), HEADS, n_tokens, 1), l->dt_bias);
    xbc = plus(xbc, l->conv[1]);
    struct gg_tensor *u = part(xbc, HEAD, HEADS, 0, HEAD);
    struct gg_tensor *y = scan(l, u, dt, part(xbc, STATE, GROUPS, INNER, STATE),
                               part(xbc, STATE, GROUPS, INNER + BC, STATE));
    y = mul(plus(y, mul(u, l->d)), cont(z, HEAD, HEADS, n_tokens));
    return product(l->out, reshape(y, INNER, n_tokens, 1));
}

static struct gg_tensor *mamba(struct layer *l, struct gg_tensor *x) {
    enum { RANK = 2 };
    struct gg_tensor *all = product(l->in, x);
    struct gg_tensor *u =
        plus(convolve(rows_of(all, INNER, 0), l->conv[0], state_of(l->r), l->r, 0), l->conv[1]);
    struct gg_tensor *some = product(l->x, u); /* dt, B, C */
    struct gg_tensor *dt =
        plus(product(l->dt, cont(rows_of(some, RANK, 0), RANK, n_tokens, 1)), l->dt_bias);
    struct gg_tensor *y =
        scan(l, reshape(u, 1, INNER, n_tokens), dt, part(some, STATE, 1, RANK, STATE),
             part(some, STATE, 1, RANK + STATE, STATE));
    y = plus(reshape(y, INNER, n_tokens, 1), mul(u, l->d));
    return product(l->out, mul(cont(rows_of(all, INNER, INNER), INNER, n_tokens, 1), y));
}

static struct gg_tensor *plamo2(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *all = reshape(product(l->in, x), 2 * HEAD, HEADS, n_tokens);
    struct gg_tensor *z = shown("VIEW", all, HEAD, HEADS, n_tokens, all->nb[1], all->nb[2], 0);
    struct gg_tensor *u =
        shown("VIEW", all, HEAD, HEADS, n_tokens, all->nb[1], all->nb[2], HEAD * sizeof(float));
    u = convolve(cont(u, INNER, n_tokens, 1), l->conv[0], state_of(l->r), l->r, 0);
    struct gg_tensor *some = product(l->x, u); /* B, C, dt */
    struct gg_tensor *dt = product(l->dt, cont(rows_of(some, 2, 2 * STATE), 2, n_tokens, 1));
    struct gg_tensor *y = scan(l, reshape(u, HEAD, HEADS, n_tokens), plus(dt, l->dt_bias),
                               part(some, STATE, 1, 0, STATE), part(some, STATE, 1, STATE, STATE));
    return product(l->out, reshape(mul(cont(z, HEAD, HEADS, n_tokens), y), INNER, n_tokens, 1));
}

static struct gg_tensor *delta_net(struct layer *l, struct gg_tensor *q, struct gg_tensor *k,
                                   struct gg_tensor *v, struct gg_tensor *g, struct gg_tensor *b) {
    struct gg_tensor *y = node("GATED_DELTA_NET", INNER, n_tokens + HEAD, 1, q, k);
    y->src[2] = v;
    y->src[3] = g;
    y->src[4] = b;
    y->src[5] = reshape(state_of(l->s), HEAD, HEAD, HEADS);
    y->op_params[0] = 1;
    store(shown("VIEW", y, HEAD * INNER, 1, 1, 0, 0, (size_t)(INNER * n_tokens) * sizeof(float)),
          l->s);
    return shown("VIEW", y, HEAD, HEADS, n_tokens, HEAD * sizeof(float), INNER * sizeof(float), 0);
}

static struct gg_tensor *for_two_heads(struct gg_tensor *x) {
    struct gg_tensor *each = cont(x, HEAD, GROUPS, n_tokens);
    struct gg_tensor *t = make(F32, HEAD, HEADS / GROUPS, GROUPS);
    each = shown("RESHAPE", each, HEAD, 1, GROUPS, HEAD * sizeof(float), HEAD * sizeof(float), 0);
    each->ne[3] = t->ne[3] = n_tokens;
    each->nb[3] = GROUPS * HEAD * sizeof(float);
    t->nb[3] = INNER * sizeof(float);
    t->op = op_number("REPEAT");
    t->src[0] = each;
    put_at(work, t, &at_work);
    return reshape(t, HEAD, HEADS, n_tokens);
}

static struct gg_tensor *fused_delta(struct layer *l, struct gg_tensor *x, bool repeats) {
    enum { KEYS = GROUPS * HEAD };
    struct gg_tensor *z = product(l->gate, x);
    struct gg_tensor *g = reshape(plus(product(l->alpha, x), l->dt_bias), 1, HEADS, n_tokens);
    struct gg_tensor *b = reshape(product(l->beta, x), 1, HEADS, n_tokens);
    struct gg_tensor *y = convolve(product(l->qkv, x), l->conv[0], state_of(l->r), l->r, 0);
    struct gg_tensor *q = part(y, HEAD, GROUPS, 0, HEAD), *k = part(y, HEAD, GROUPS, KEYS, HEAD);
    if (repeats) {
        q = for_two_heads(q);
        k = for_two_heads(k);
    }
    y = delta_net(l, q, k, part(y, HEAD, HEADS, 2 * KEYS, HEAD), g, b);
    y = mul(y, reshape(z, HEAD, HEADS, n_tokens));
    return product(l->out, reshape(y, INNER, n_tokens, 1));
}
static struct gg_tensor *rounds(struct layer *l, struct gg_tensor *x) {
    return fused_delta(l, x, false);
}
static struct gg_tensor *repeats(struct layer *l, struct gg_tensor *x) {
    return fused_delta(l, x, true);
}

static struct gg_tensor *kda(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *w[] = {l->q, l->k, l->v}, *heads[3], *state = state_of(l->r);
    for (int i = 0; i < 3; i++)
        heads[i] =
            reshape(convolve(product(w[i], x), l->conv[i], state, l->r, i), HEAD, HEADS, n_tokens);
    struct gg_tensor *g = reshape(product(l->f, x), HEAD, HEADS, n_tokens);
    struct gg_tensor *b = reshape(product(l->beta, x), 1, HEADS, n_tokens);
    struct gg_tensor *y = delta_net(l, heads[0], heads[1], heads[2], g, b);
    y = mul(cont(y, INNER, n_tokens, 1), product(l->gate, x));
    return product(l->out, y);
}

/* What the scan of RWKV leaves: rows of the tokens, behind which the state lies. */
static struct gg_tensor *end_scan(struct layer *l, struct gg_tensor *y) {
    const size_t at = (size_t)(INNER * n_tokens) * sizeof(float);
    store(shown("VIEW", y, HEAD * INNER, 1, 1, 0, 0, at), l->s);
    return shown("VIEW", y, INNER, n_tokens, 1, INNER * sizeof(float), at, 0);
}

/* The question of llama.cpp's loader, whose sizes are those of no model. */
static void ask_with_other_sizes(const struct layer *l) {
    enum { SIZE = 5 };
    struct gg_tensor *t = make(F32, SIZE * SIZE, SIZE + SIZE * SIZE, 1);
    t->op = op_number("RWKV_WKV6");
    for (int i = 0; i < 6; i++) t->src[i] = i == 3 ? l->a : make(F32, SIZE, SIZE, SIZE);
    t->src[5]->ne[3] = SIZE;
    expect(dev->iface.supports_op(dev, t), "RWKV_WKV6 with operands of other sizes");
}
static struct gg_tensor *rwkv6(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *w[] = {l->k, l->v, l->q, NULL, l->f};
    struct gg_tensor *y = node("RWKV_WKV6", INNER, n_tokens + HEAD, 1, NULL, NULL);
    ask_with_other_sizes(l);
    for (int i = 0; i < 5; i++)
        y->src[i] = w[i] ? reshape(product(w[i], x), HEAD, HEADS, n_tokens) : l->a;
    y->src[5] = state_of(l->s);
    return product(l->out, end_scan(l, y));
}

static struct gg_tensor *rwkv7(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *w[] = {l->q, l->gate, l->k, l->v, l->a, l->beta};
    struct gg_tensor *y = node("RWKV_WKV7", INNER, n_tokens + HEAD, 1, NULL, NULL);
    for (int i = 0; i < 6; i++) y->src[i] = reshape(product(w[i], x), HEAD, HEADS, n_tokens);
    y->src[6] = state_of(l->s);
    return product(l->f, silu(product(l->in, product(l->out, end_scan(l, y)))));
}

static struct gg_tensor *short_layer(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *all = product(l->in, x), *b = rows_of(all, EMBD, 0);
    struct gg_tensor *c = rows_of(all, EMBD, EMBD), *y = rows_of(all, EMBD, 2 * EMBD);
    y = convolve(mul(b, y), l->conv[0], state_of(l->r), l->r, 0);
    return product(l->out, mul(c, y));
}

static struct gg_tensor *latent(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *q = product(l->q, x);
    struct gg_tensor *y = part(q, HEAD, HEADS, 0, HEAD + ROPED);
    y = product(l->k_b, permute(y, 0, 2, 1));
    y = product(l->v_b, y); /* of each head, [HEAD, tokens, HEADS] */
    return product(l->out, cont(permute(y, 0, 2, 1), INNER, n_tokens, 1));
}

/* Attention without a softmax, whose cache of values is transposed: each of a token's values is a row of
 * one element, CELLS_KV elements behind the one before. */
static struct gg_tensor *written(struct gg_tensor *c, struct gg_tensor *x, int64_t row,
                                 struct gg_tensor *ids) {
    struct gg_tensor *flat = shown("RESHAPE", c, row, c->ne[0] * c->ne[1] / row, 1,
                                   (size_t)row * sizeof(float), c->nb[2], 0);
    struct gg_tensor *t = shown("SET_ROWS", flat, row, flat->ne[1], 1, flat->nb[1], flat->nb[2], 0);
    t->src[0] = reshape(x, row, x->ne[0] * x->ne[1] / row, 1);
    t->src[1] = ids;
    t->src[2] = flat;
    expand(t);
    return c;
}
static struct gg_tensor *transposed(struct layer *l, struct gg_tensor *x) {
    const size_t one = sizeof(float);
    int64_t cells[8], elements[8 * INNER];
    for (int64_t t = 0; t < n_tokens; t++) {
        cells[t] = l->used + t;
        for (int64_t i = 0; i < INNER; i++) elements[t * INNER + i] = i * CELLS_KV + cells[t];
    }
    l->used += n_tokens;
    struct gg_tensor *q = reshape(product(l->q, x), HEAD, HEADS, n_tokens);
    struct gg_tensor *k = reshape(product(l->k, x), HEAD, HEADS, n_tokens);
    struct gg_tensor *v = reshape(product(l->v, x), HEAD, HEADS, n_tokens);
    k = written(l->s, reshape(k, INNER, n_tokens, 1), INNER, longs(cells, n_tokens));
    v = written(l->r, reshape(v, INNER, n_tokens, 1), 1, longs(elements, n_tokens * INNER));
    k = shown("VIEW", k, HEAD, CELLS_KV, HEADS, INNER * one, HEAD * one, 0);
    v = shown("VIEW", v, CELLS_KV, HEAD, HEADS, CELLS_KV * one, HEAD * CELLS_KV * one, 0);
    struct gg_tensor *y = product(v, product(k, permute(q, 0, 2, 1)));
    return product(l->out, cont(permute(y, 0, 2, 1), INNER, n_tokens, 1));
}

/* Three K/V heads, which three query heads each read. */
static struct gg_tensor *attend(struct gg_tensor *q, struct gg_tensor *k, struct gg_tensor *v,
                                struct gg_tensor *out) {
    const size_t one = sizeof(float);
    q = permute(reshape(q, HEAD, 9, n_tokens), 0, 2, 1);
    k = shown("VIEW", k, HEAD, CELLS_KV, 3, k->nb[1], HEAD * one, 0);
    v = shown("VIEW", v, HEAD, CELLS_KV, 3, v->nb[1], HEAD * one, 0);
    return product(out, reshape(flash(q, k, v), 9 * HEAD, n_tokens, 1));
}
/* Puts k and v, [3 * HEAD, tokens], into the next cells of the caches l->s and l->r. */
static void put_keys_and_values(struct layer *l, struct gg_tensor *k, struct gg_tensor *v) {
    int64_t cells[8];
    for (int64_t t = 0; t < n_tokens; t++) cells[t] = l->used + t;
    l->used += n_tokens;
    struct gg_tensor *ids = longs(cells, n_tokens);
    k = reshape(k, HEAD, 3, n_tokens);
    v = reshape(v, HEAD, 3, n_tokens);
    written(l->s, reshape(k, 3 * HEAD, n_tokens, 1), 3 * HEAD, ids);
    written(l->r, reshape(v, 3 * HEAD, n_tokens, 1), 3 * HEAD, ids);
}
static struct gg_tensor *grouped(struct layer *l, struct gg_tensor *q, struct gg_tensor *k,
                                 struct gg_tensor *v) {
    put_keys_and_values(l, k, v);
    return attend(q, l->s, l->r, l->out);
}
static struct gg_tensor *runs(struct layer *l, struct gg_tensor *x) {
    return grouped(l, product(l->q, x), product(l->k, x), product(l->v, x));
}
/* The heads of all tokens are the columns of one product, as llama.cpp rotates keys for a quantized cache. */
static struct gg_tensor *rotated(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *k = reshape(product(l->k, x), HEAD, 3, n_tokens);
    k = product(l->in, reshape(k, HEAD, 3 * n_tokens, 1));
    return grouped(l, product(l->q, x), k, product(l->v, x));
}
/* Values of an expert beside the others. */
static struct gg_tensor *values(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *v = plus(product(l->f, x), product(l->v, x));
    return grouped(l, product(l->q, x), product(l->k, x), v);
}
/* Rows of a cache of 3 heads, by the numbers 3 * cell + head: [HEAD, cells, heads]. */
static struct gg_tensor *pick(struct gg_tensor *c) {
    int32_t ids[3 * CELLS_KV];
    for (int i = 0; i < 3 * CELLS_KV; i++) ids[i] = i % CELLS_KV * 3 + i / CELLS_KV;
    const size_t row = HEAD * sizeof(float);
    struct gg_tensor *rows = shown("VIEW", c, HEAD, 3 * CELLS_KV, 1, row, 3 * CELLS_KV * row, 0);
    rows = node("GET_ROWS", HEAD, 3 * CELLS_KV, 1, rows, numbers(ids, 3 * CELLS_KV));
    return reshape(rows, HEAD, CELLS_KV, 3);
}
static struct gg_tensor *picked(struct layer *l, struct gg_tensor *x) {
    put_keys_and_values(l, product(l->k, x), product(l->v, x));
    struct gg_tensor *y = permute(reshape(product(l->q, x), HEAD, 9, n_tokens), 0, 2, 1);
    y = flash(y, pick(l->s), pick(l->r));
    y = product(l->out, reshape(y, 9 * HEAD, n_tokens, 1));
    expand(product(l->in, x));
    return plus(y, product(l->x, x));
}
/* The same with norms over all query heads, and over all K/V heads. */
static struct gg_tensor *norm(struct gg_tensor *x, struct gg_tensor *w) {
    struct gg_tensor *t = node("RMS_NORM", x->ne[0], x->ne[1], x->ne[2], x, NULL);
    memcpy(t->op_params, &(float){1e-3f}, sizeof(float));
    return mul(t, w);
}
static struct gg_tensor *norms(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *k = product(l->k, x), *q = plus(product(l->q, x), l->dt_bias);
    return grouped(l, norm(q, l->a), norm(k, l->d), product(l->v, x));
}

static struct gg_tensor *decoder(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *q = reshape(product(l->x, runs(l, x)), HEAD, 9, n_tokens);
    struct gg_tensor *k = reshape(product(l->k_b, x), HEAD, 3, n_tokens);
    struct gg_tensor *v = reshape(product(l->v_b, x), HEAD, 3, n_tokens);
    struct gg_tensor *y = flash(permute(q, 0, 2, 1), permute(k, 0, 2, 1), permute(v, 0, 2, 1));
    y = product(l->in, product(l->alpha, reshape(y, 9 * HEAD, n_tokens, 1)));
    return product(l->f, silu(y));
}

/* Linear attention: what a state [HEAD, HEAD] of each head gives, and what the tokens give. */
static struct gg_tensor *linear(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *part_of[3];
    struct gg_tensor *y = reshape(silu(product(l->qkv, x)), 3 * HEAD, HEADS, n_tokens);
    for (int i = 0; i < 3; i++)
        part_of[i] = shown("VIEW", y, HEAD, HEADS, n_tokens, y->nb[1], y->nb[2],
                           (size_t)(i * HEAD) * sizeof(float));
    struct gg_tensor *q = permute(part_of[0], 0, 2, 1), *k = permute(part_of[1], 0, 2, 1);
    struct gg_tensor *old = reshape(state_of(l->s), HEAD, HEAD, HEADS);
    struct gg_tensor *k_turned = cont(permute(part_of[1], 1, 2, 0), n_tokens, HEAD, HEADS);
    struct gg_tensor *v = cont(permute(part_of[2], 1, 2, 0), n_tokens, HEAD, HEADS);
    y = plus(product(old, q), product(v, product(k, q)));
    store(plus(old, product(k_turned, v)), l->s);
    y = reshape(cont(permute(y, 0, 2, 1), HEAD, HEADS, n_tokens), INNER, n_tokens, 1);
    return product(l->out, mul(product(l->gate, x), norm(y, l->a)));
}

/* Values are keys, and a second layer reads the cache of the first. */
static struct gg_tensor *shared(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *k = product(l->k, x), *y = grouped(l, product(l->q, x), k, k);
    return attend(product(l->x, y), l->s, l->r, l->f);
}

/* The second of two layers whose cells lie behind each other in a cache, which is one row. */
/* One expert of fewer dimensions, and the shared one. */
static struct gg_tensor *expert(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *y = product(l->v, silu(product(l->k, product(l->q, x))));
    return plus(product(l->out, norm(y, l->a)), product(l->f, silu(product(l->in, x))));
}

/* Gate and up are one matrix. */
static struct gg_tensor *gated(struct layer *l, struct gg_tensor *x) {
    enum { SWIGLU = 2, ROWS = 2 * EMBD };
    struct gg_tensor *y = node("GLU", ROWS, n_tokens, 1, product(l->in, x), NULL);
    y->op_params[0] = SWIGLU;
    return product(l->f, y);
}

static struct gg_tensor *joined(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *both = node("CONCAT", 2 * EMBD, n_tokens, 1, x, mul(x, x));
    struct gg_tensor *y = product(l->x, both);
    return plus(y, product(l->f, silu(product(l->in, y))));
}

/* Heads of one key, which is the value, and a matrix for each group of heads. */
static struct gg_tensor *groups_out(struct layer *l, struct gg_tensor *x) {
    enum { EACH = HEAD * HEADS / GROUPS };
    struct gg_tensor *y = make(F32, HEAD, HEADS, n_tokens), *k = product(l->k, x);
    y->op = op_number("FLASH_ATTN_EXT");
    y->src[0] = permute(reshape(product(l->q, x), HEAD, HEADS, n_tokens), 0, 2, 1);
    y->src[1] = y->src[2] = permute(reshape(k, HEAD, 1, n_tokens), 0, 2, 1);
    y->src[4] = l->a;
    memcpy(y->op_params, &(float){0.5f}, sizeof(float));
    put_at(work, y, &at_work);
    y = product(l->in, permute(reshape(y, EACH, GROUPS, n_tokens), 0, 2, 1));
    return product(l->out, cont(permute(y, 0, 2, 1), LATENT * GROUPS, n_tokens, 1));
}

/* The layer twice, each time with caches of its own. */
static struct gg_tensor *repeated(struct layer *l, struct gg_tensor *x) {
    struct layer second = *l;
    x = runs(l, x);
    second.r = l->conv[0];
    second.s = l->conv[1];
    return runs(&second, x);
}

enum { WIDE = 512, WIDE_HEADS = WIDE / HEAD, LAYER_1 = CELLS_KV * WIDE * sizeof(float) };

static struct gg_tensor *copied(struct layer *l, struct gg_tensor *c, struct gg_tensor *x) {
    const size_t one = sizeof(float), at = LAYER_1 + (size_t)l->used * WIDE * one;
    const int64_t n = WIDE * n_tokens;
    struct gg_tensor *to = shown("VIEW", c, n, 1, 1, (size_t)n * one, (size_t)n * one, at);
    struct gg_tensor *copy = shown("CPY", to, n, 1, 1, to->nb[1], to->nb[2], 0);
    copy->src[0] = x;
    copy->src[1] = to;
    expand(copy);
    return shown("VIEW", c, HEAD, CELLS_KV, WIDE_HEADS, WIDE * one, HEAD * one, LAYER_1);
}
static struct gg_tensor *unnamed(struct layer *l, struct gg_tensor *x) {
    struct gg_tensor *q = reshape(plus(product(l->q, x), l->conv[0]), HEAD, WIDE_HEADS, n_tokens);
    struct gg_tensor *k = copied(l, l->s, product(l->k, x));
    struct gg_tensor *v = copied(l, l->r, plus(product(l->v, x), l->conv[1]));
    struct gg_tensor *y = flash(permute(q, 0, 2, 1), k, v);
    l->used += n_tokens;
    x = plus(x, product(l->out, reshape(y, WIDE, n_tokens, 1)));
    return plus(x, product(l->f, silu(plus(product(l->in, x), l->conv[2]))));
}

/* ---- weights and caches of each kind of layer ---- */

struct leaf {
    size_t field; /* of struct layer */
    const char *name;
    int64_t a, b, c; /* a cache: b cells, which are a row [a] of zeros each */
    float shift;     /* of random values between -0.5 and 0.5 */
    bool is_cache;
};

#define LEAF(field, name, a, b, c, shift)                                                          \
    { offsetof(struct layer, field), name, a, b, c, shift, false }
#define W(field, name, ...) LEAF(field, "blk.0." name, __VA_ARGS__)
#define CACHE(field, name, row, cells)                                                             \
    { offsetof(struct layer, field), name, row, cells, 1, 0, true }
#define END                                                                                        \
    { 0, NULL, 0, 0, 0, 0, false }

/* Attention: rows of queries, rows of keys and of values each, and the product behind it. */
#define ATTENTION(prefix, queries, keys, output)                                                   \
    LEAF(q, prefix "attn_q.weight", EMBD, queries, 1, 0),                                          \
        LEAF(k, prefix "attn_k.weight", EMBD, keys, 1, 0),                                         \
        LEAF(v, prefix "attn_v.weight", EMBD, keys, 1, 0),                                         \
        LEAF(out, prefix output, queries, EMBD, 1, 0)
#define KV_CACHES(row) CACHE(r, "cache_v_l0", row, CELLS_KV), CACHE(s, "cache_k_l0", row, CELLS_KV)

enum {
    DT = 2,                           /* the rank of time steps */
    QKV = 2 * GROUPS * HEAD + INNER,  /* queries, keys and values of a delta net */
    XBC = INNER + 2 * GROUPS * STATE, /* x, B and C of Mamba 2 */
    SCAN_STATE = STATE * INNER,       /* of a sequence */
    HEAD_STATES = HEAD * INNER,       /* [HEAD, HEAD] of each head */
    Q_ROWS = 9 * HEAD,
    KV_ROWS = 3 * HEAD
};

static const struct leaf mamba_leaves[] = {
    W(in, "ssm_in.weight", EMBD, 2 * INNER, 1, 0),
    W(conv[0], "ssm_conv1d.weight", TAPS, INNER, 1, 0),
    W(conv[1], "ssm_conv1d.bias", INNER, 1, 1, 0),
    W(x, "ssm_x.weight", INNER, DT + 2 * STATE, 1, 0),
    W(dt, "ssm_dt.weight", DT, INNER, 1, 0),
    W(dt_bias, "ssm_dt.bias", INNER, 1, 1, 0),
    W(a, "ssm_a", STATE, INNER, 1, -1),
    W(d, "ssm_d", INNER, 1, 1, 0),
    W(out, "ssm_out.weight", INNER, EMBD, 1, 0),
    CACHE(r, "cache_r_l0", (TAPS - 1) * INNER, CELLS),
    CACHE(s, "cache_s_l0", SCAN_STATE, CELLS),
    END,
};
static const struct leaf mamba2_leaves[] = {
    W(in, "ssm_in.weight", EMBD, INNER + XBC + HEADS, 1, 0),
    W(conv[0], "ssm_conv1d.weight", TAPS, XBC, 1, 0),
    W(conv[1], "ssm_conv1d.bias", XBC, 1, 1, 0),
    W(dt_bias, "ssm_dt.bias", HEADS, 1, 1, 0),
    W(a, "ssm_a", 1, HEADS, 1, -1),
    W(d, "ssm_d", 1, HEADS, 1, 0),
    W(out, "ssm_out.weight", INNER, EMBD, 1, 0),
    CACHE(r, "cache_r_l0", (TAPS - 1) * XBC, CELLS),
    CACHE(s, "cache_s_l0", SCAN_STATE, CELLS),
    END,
};
static const struct leaf plamo2_leaves[] = {
    W(in, "ssm_in.weight", EMBD, 2 * INNER, 1, 0),
    W(conv[0], "ssm_conv1d.weight", TAPS, INNER, 1, 0),
    W(x, "ssm_x.weight", INNER, DT + 2 * STATE, 1, 0),
    W(dt, "ssm_dt.weight", DT, HEADS, 1, 0),
    W(dt_bias, "ssm_dt.bias", HEADS, 1, 1, 0),
    W(a, "ssm_a", 1, HEADS, 1, -1),
    W(out, "ssm_out.weight", INNER, EMBD, 1, 0),
    CACHE(r, "mamba_conv1d_state-0", (TAPS - 1) * INNER, CELLS),
    CACHE(s, "mamba_ssm_states-0", SCAN_STATE, CELLS),
    END,
};
static const struct leaf delta_leaves[] = {
    W(qkv, "attn_qkv.weight", EMBD, QKV, 1, 0),
    W(gate, "attn_gate.weight", EMBD, INNER, 1, 0),
    W(conv[0], "ssm_conv1d.weight", TAPS, QKV, 1, 0),
    W(alpha, "ssm_alpha.weight", EMBD, HEADS, 1, 0),
    W(beta, "ssm_beta.weight", EMBD, HEADS, 1, 0),
    W(dt_bias, "ssm_dt.bias", HEADS, 1, 1, -1),
    W(out, "ssm_out.weight", INNER, EMBD, 1, 0),
    CACHE(r, "cache_r_l0", (TAPS - 1) * QKV, CELLS),
    CACHE(s, "cache_s_l0", HEAD_STATES, CELLS),
    END,
};
static const struct leaf kda_leaves[] = {
    ATTENTION("blk.0.", INNER, INNER, "attn_output.weight"),
    W(conv[0], "ssm_conv1d_q.weight", TAPS, 1, INNER, 0),
    W(conv[1], "ssm_conv1d_k.weight", TAPS, 1, INNER, 0),
    W(conv[2], "ssm_conv1d_v.weight", TAPS, 1, INNER, 0),
    W(f, "ssm_f_b.weight", EMBD, INNER, 1, 0),
    W(gate, "ssm_g_a.weight", EMBD, INNER, 1, 0),
    W(beta, "ssm_beta.weight", EMBD, HEADS, 1, 0),
    CACHE(r, "conv_states_all-0", 3 * (TAPS - 1) * INNER, CELLS),
    CACHE(s, "cache_s_l0", HEAD_STATES, CELLS),
    END,
};
static const struct leaf rwkv6_leaves[] = {
    W(q, "time_mix_receptance.weight", EMBD, INNER, 1, 0),
    W(k, "time_mix_key.weight", EMBD, INNER, 1, 0),
    W(v, "time_mix_value.weight", EMBD, INNER, 1, 0),
    W(a, "time_mix_first.weight", HEAD, HEADS, 1, 0),
    W(f, "time_mix_decay_w2.weight", EMBD, INNER, 1, 0),
    W(out, "time_mix_output.weight", INNER, EMBD, 1, 0),
    CACHE(s, "cache_s_l0", HEAD_STATES, CELLS),
    END,
};
static const struct leaf rwkv7_leaves[] = {
    W(q, "time_mix_receptance.weight", EMBD, INNER, 1, 0),
    W(gate, "time_mix_w2.weight", EMBD, INNER, 1, 0),
    W(k, "time_mix_key.weight", EMBD, INNER, 1, 0),
    W(v, "time_mix_value.weight", EMBD, INNER, 1, 0),
    W(a, "time_mix_a2.weight", EMBD, INNER, 1, 0),
    W(beta, "time_mix_v2.weight", EMBD, INNER, 1, 0),
    W(out, "time_mix_output.weight", INNER, EMBD, 1, 0),
    W(in, "channel_mix_key.weight", EMBD, 2 * EMBD, 1, 0),
    W(f, "channel_mix_value.weight", 2 * EMBD, EMBD, 1, 0),
    CACHE(s, "cache_s_l0", HEAD_STATES, CELLS),
    END,
};
static const struct leaf linear_leaves[] = {
    W(qkv, "attn_qkv.weight", EMBD, 3 * INNER, 1, 0),
    W(gate, "attn_gate.weight", EMBD, INNER, 1, 0),
    W(a, "attn_norm_2.weight", INNER, 1, 1, 1),
    W(out, "attn_output.weight", INNER, EMBD, 1, 0),
    CACHE(s, "cache_s_l0", HEAD_STATES, CELLS),
    END,
};
static const struct leaf short_leaves[] = {
    W(in, "shortconv.in_proj.weight", EMBD, 3 * EMBD, 1, 0),
    W(conv[0], "shortconv.conv.weight", TAPS, EMBD, 1, 0),
    W(out, "shortconv.out_proj.weight", EMBD, EMBD, 1, 0),
    CACHE(r, "cache_r_l0", (TAPS - 1) * EMBD, CELLS),
    END,
};
static const struct leaf latent_leaves[] = {
    W(q, "attn_q_b.weight", EMBD, (HEAD + ROPED) * HEADS, 1, 0),
    W(k_b, "attn_k_b.weight", HEAD, LATENT, HEADS, 0),
    W(v_b, "attn_v_b.weight", LATENT, HEAD, HEADS, 0),
    W(out, "attn_output.weight", INNER, EMBD, 1, 0),
    END,
};
static const struct leaf transposed_leaves[] = {
    ATTENTION("blk.0.", INNER, INNER, "attn_output.weight"),
    KV_CACHES(INNER),
    END,
};
static const struct leaf runs_leaves[] = {
    ATTENTION("blk.0.", Q_ROWS, KV_ROWS, "attn_output.weight"),
    KV_CACHES(KV_ROWS),
    END,
};
static const struct leaf rotated_leaves[] = {
    ATTENTION("blk.0.", Q_ROWS, KV_ROWS, "attn_output.weight"),
    W(in, "attn_rot.weight", HEAD, HEAD, 1, 0),
    KV_CACHES(KV_ROWS),
    END,
};
static const struct leaf norms_leaves[] = {
    ATTENTION("blk.0.", Q_ROWS, KV_ROWS, "attn_output.weight"),
    W(dt_bias, "attn_q.bias", Q_ROWS, 1, 1, 0),
    W(a, "attn_q_norm.weight", Q_ROWS, 1, 1, 1),
    W(d, "attn_k_norm.weight", KV_ROWS, 1, 1, 1),
    KV_CACHES(KV_ROWS),
    END,
};
static const struct leaf picked_leaves[] = {
    ATTENTION("blk.0.", Q_ROWS, KV_ROWS, "attn_output.weight"),
    W(in, "indexer.q_proj.weight", EMBD, 3 * EMBD, 1, 0),
    W(x, "indexer.k_proj.weight", EMBD, EMBD, 1, 0),
    KV_CACHES(KV_ROWS),
    END,
};
static const struct leaf repeated_leaves[] = {
    ATTENTION("blk.0.", Q_ROWS, KV_ROWS, "attn_output.weight"),
    KV_CACHES(KV_ROWS),
    CACHE(conv[0], "cache_v_l7", KV_ROWS, CELLS_KV),
    CACHE(conv[1], "cache_k_l7", KV_ROWS, CELLS_KV),
    END,
};
static const struct leaf values_leaves[] = {
    ATTENTION("blk.0.", Q_ROWS, KV_ROWS, "attn_output.weight"),
    W(f, "attn_v_exps.weight", EMBD, KV_ROWS, 1, 0),
    KV_CACHES(KV_ROWS),
    END,
};
static const struct leaf groups_leaves[] = {
    W(q, "attn_q_b.weight", EMBD, INNER, 1, 0),
    W(k, "attn_kv.weight", EMBD, HEAD, 1, 0),
    W(a, "attn_sinks.weight", HEADS, 1, 1, 0),
    W(in, "attn_output_a.weight", INNER / GROUPS, LATENT, GROUPS, 0),
    W(out, "attn_output_b.weight", LATENT *GROUPS, EMBD, 1, 0),
    END,
};
static const struct leaf expert_leaves[] = {
    W(q, "ffn_routed_down.weight", EMBD, LATENT, 1, 0),
    W(k, "ffn_up_exps.weight", LATENT, INNER, 1, 0),
    W(v, "ffn_down_exps.weight", INNER, LATENT, 1, 0),
    W(a, "ffn_routed_norm.weight", LATENT, 1, 1, 1),
    W(out, "ffn_routed_up.weight", LATENT, EMBD, 1, 0),
    W(in, "ffn_up_shexp.weight", EMBD, INNER, 1, 0),
    W(f, "ffn_down_shexp.weight", INNER, EMBD, 1, 0),
    END,
};
static const struct leaf gated_leaves[] = {
    W(in, "ffn_up.weight", EMBD, 4 * EMBD, 1, 0),
    W(f, "ffn_down.weight", 2 * EMBD, EMBD, 1, 0),
    END,
};
static const struct leaf joined_leaves[] = {
    W(x, "nextn.eh_proj.weight", 2 * EMBD, EMBD, 1, 0),
    W(in, "ffn_up.weight", EMBD, 2 * EMBD, 1, 0),
    W(f, "ffn_down.weight", 2 * EMBD, EMBD, 1, 0),
    END,
};
static const struct leaf decoder_leaves[] = {
    ATTENTION("dec.blk.0.", Q_ROWS, KV_ROWS, "attn_o.weight"),
    LEAF(x, "dec.blk.0.cross_attn_q.weight", EMBD, Q_ROWS, 1, 0),
    LEAF(k_b, "dec.blk.0.cross_attn_k.weight", EMBD, KV_ROWS, 1, 0),
    LEAF(v_b, "dec.blk.0.cross_attn_v.weight", EMBD, KV_ROWS, 1, 0),
    LEAF(alpha, "dec.blk.0.cross_attn_o.weight", Q_ROWS, EMBD, 1, 0),
    LEAF(in, "dec.blk.0.ffn_up_1.weight", EMBD, 2 * EMBD, 1, 0),
    LEAF(f, "dec.blk.0.ffn_down_1.weight", 2 * EMBD, EMBD, 1, 0),
    KV_CACHES(KV_ROWS),
    END,
};
static const struct leaf shared_leaves[] = {
    W(q, "attn_q.weight", EMBD, Q_ROWS, 1, 0),
    W(k, "attn_k.weight", EMBD, KV_ROWS, 1, 0),
    W(out, "attn_output.weight", Q_ROWS, EMBD, 1, 0),
    LEAF(x, "blk.1.attn_q.weight", EMBD, Q_ROWS, 1, 0),
    LEAF(f, "blk.1.attn_output.weight", Q_ROWS, EMBD, 1, 0),
    KV_CACHES(KV_ROWS),
    END,
};
static const struct leaf unnamed_leaves[] = {
    LEAF(q, "leaf_0", EMBD, WIDE, 1, 0),         LEAF(conv[0], "leaf_1", WIDE, 1, 1, 0),
    LEAF(k, "leaf_2", EMBD, WIDE, 1, 0),         LEAF(v, "leaf_3", EMBD, WIDE, 1, 0),
    LEAF(conv[1], "leaf_4", WIDE, 1, 1, 0),      LEAF(out, "leaf_5", WIDE, EMBD, 1, 0),
    LEAF(in, "leaf_6", EMBD, WIDE, 1, 0),        LEAF(conv[2], "leaf_7", WIDE, 1, 1, 0),
    LEAF(f, "leaf_8", WIDE, EMBD, 1, 0),         CACHE(s, "leaf_9", 2 * CELLS_KV * WIDE, 1),
    CACHE(r, "leaf_10", 2 * CELLS_KV * WIDE, 1), END,
};

static const struct kind {
    const char *name;
    struct gg_tensor *(*build)(struct layer *l, struct gg_tensor *x);
    const struct leaf *leaves; /* up to END */
} kinds[] = {
    {"mamba", mamba, mamba_leaves},
    {"mamba2", mamba2, mamba2_leaves},
    {"plamo2", plamo2, plamo2_leaves},
    {"rounds", rounds, delta_leaves},
    {"repeats", repeats, delta_leaves},
    {"kda", kda, kda_leaves},
    {"rwkv6", rwkv6, rwkv6_leaves},
    {"rwkv7", rwkv7, rwkv7_leaves},
    {"linear", linear, linear_leaves},
    {"short", short_layer, short_leaves},
    {"latent", latent, latent_leaves},
    {"transposed", transposed, transposed_leaves},
    {"runs", runs, runs_leaves},
    {"rotated", rotated, rotated_leaves},
    {"norms", norms, norms_leaves},
    {"picked", picked, picked_leaves},
    {"decoder", decoder, decoder_leaves},
    {"shared", shared, shared_leaves},
    {"unnamed", unnamed, unnamed_leaves},
    {"again", transposed, transposed_leaves},
    {"repeated", repeated, repeated_leaves},
    {"values", values, values_leaves},
    {"groups", groups_out, groups_leaves},
    {"expert", expert, expert_leaves},
    {"gated", gated, gated_leaves},
    {"joined", joined, joined_leaves},
};

static void make_leaves(const struct leaf *leaf, struct layer *l) {
    for (; leaf->name; leaf++) {
        struct gg_tensor **field = (struct gg_tensor **)(void *)((char *)l + leaf->field);
        *field = leaf->is_cache ? cache(leaf->name, leaf->a, leaf->b)
                                : weight(leaf->name, leaf->a, leaf->b, leaf->c, leaf->shift);
    }
}

/* Computes for n tokens behind those of the call before. */
static void run(const struct kind *kind, struct layer *l, int64_t n, bool shows) {
    static float values[EMBD * 8], got[EMBD * 8];
    at_work = 0;
    n_tokens = n;
    graph = CALL(struct gg_cgraph * (*)(void *), "ggml_new_graph")(ctx);
    struct gg_tensor *x = make(F32, EMBD, n, 1);
    put_at(work, x, &at_work);
    for (int64_t i = 0; i < EMBD * n; i++) values[i] = random_value();
    set(x, values, 0, (size_t)(EMBD * n) * sizeof *values);
    struct gg_tensor *y = kind->build(l, x);
    expand(y);
    graph->uid = (uint64_t)n;
    expect(compute(graph) == GG_STATUS_SUCCESS, "status of a layer");
    get(y, got, (size_t)(EMBD * n) * sizeof *got);
    for (int64_t i = 0; shows && i < EMBD * n; i++) printf("v %.9g\n", (double)got[i]);
}

int main(int argc, char **argv) {
    struct layer l = {0};
    if (argc != 5) return 2;
    void *plugin = load(argv);
    struct gg_reg *reg = plugin ? registry(plugin) : NULL;
    if (!reg) return 1;
    n_devices = reg->iface.get_device_count(reg);
    expect(n_devices == 1, "one device");
    dev = reg->iface.get_device(reg, 0);
    backend = dev->iface.init_backend(dev, NULL);
    ctx = CALL(void *(*)(struct gg_init_params),
               "ggml_init")((struct gg_init_params){.mem_size = 1 << 20});
    weights = alloc(MOST);
    work = alloc(MOST);
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
    (weights, GG_USAGE_WEIGHTS);
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
    (work, GG_USAGE_COMPUTE);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, argv[4])) continue;
        make_leaves(kinds[i].leaves, &l);
        run(&kinds[i], &l, 6, true);
        run(&kinds[i], &l, 1, true);
        if (!strcmp(argv[4], "again")) {
            l = (struct layer){0};
            make_leaves(kinds[i].leaves, &l);
            run(&kinds[i], &l, 6, false);
        }
        puts(failures ? "failed" : "done");
        fflush(stdout); /* in one piece, before the plugin's last line */
    }
    weights->iface.free_buffer(weights);
    work->iface.free_buffer(work);
    backend->iface.free(backend);
    CALL(void (*)(void *), "ggml_free")(ctx);
    return failures != 0;
}
