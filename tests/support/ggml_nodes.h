/* Nodes as ggml's constructors make them, by the names of ops: in `ctx`, their data in the buffer `work`, weights and
 * caches in `weights`. Included by programs of one file, which make these three. */
#ifndef SHEAF_TESTS_GGML_NODES_H
#define SHEAF_TESTS_GGML_NODES_H

#include "ggml_host.h"

enum { F32 = 0, I32 = 26, I64 = 27 }; /* ggml's numbers of types */

static void *ctx;
static struct gg_buffer *weights, *work;
static size_t at_weights, at_work;
static uint64_t seed = 1;

/* ---- tensors ---- */

static inline float random_value(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) / (float)(1 << 24) - 0.5f;
}

static inline int op_number(const char *name) {
    const char *(*name_of)(int) = CALL(const char *(*)(int), "ggml_op_name");
    int i = 0;
    while (strcmp(name_of(i), name)) i++;
    return i;
}

static inline struct gg_tensor *make(int type, int64_t a, int64_t b, int64_t c) {
    typedef struct gg_tensor *(*make_fn)(void *, int, int64_t, int64_t, int64_t, int64_t);
    return CALL(make_fn, "ggml_new_tensor_4d")(ctx, type, a, b, c, 1);
}

/* A weight [a, b, c] of random values between shift - 0.5 and shift + 0.5, at most 16384. */
static inline struct gg_tensor *weight(const char *name, int64_t a, int64_t b, int64_t c,
                                       float shift) {
    static float values[16384];
    struct gg_tensor *t = make(F32, a, b, c);
    strncpy(t->name, name, sizeof t->name - 1);
    put_at(weights, t, &at_weights);
    for (int64_t i = 0; i < a * b * c; i++) values[i] = random_value() + shift;
    set(t, values, 0, (size_t)(a * b * c) * sizeof *values);
    return t;
}
/* A cache of zeros, [row, cells]. */
static inline struct gg_tensor *cache(const char *name, int64_t row, int64_t cells) {
    struct gg_tensor *t = make(F32, row, cells, 1);
    strncpy(t->name, name, sizeof t->name - 1);
    put_at(weights, t, &at_weights);
    fill_bytes(t, 0, 0, (size_t)(row * cells) * sizeof(float));
    return t;
}

/* A node [a, b, c] with memory of its own. */
static inline struct gg_tensor *node(const char *op, int64_t a, int64_t b, int64_t c,
                                     struct gg_tensor *x, struct gg_tensor *y) {
    struct gg_tensor *t = make(F32, a, b, c);
    t->op = op_number(op);
    t->src[0] = x;
    t->src[1] = y;
    put_at(work, t, &at_work);
    return t;
}
/* A node in x's memory: [a, b, c] from byte `offset` on, with b units `step` and c units `column` bytes apart. */
static inline struct gg_tensor *shown(const char *op, struct gg_tensor *x, int64_t a, int64_t b,
                                      int64_t c, size_t step, size_t column, size_t offset) {
    struct gg_tensor *t = make(F32, a, b, c);
    t->op = op_number(op);
    t->src[0] = x;
    t->view_src = x->view_src ? x->view_src : x;
    t->view_offs = x->view_offs + offset;
    t->data = (char *)x->data + offset;
    t->buffer = x->buffer;
    t->nb[1] = step;
    t->nb[2] = column;
    t->nb[3] = column * (size_t)c;
    return t;
}
/* [a, b, c] of each row of x, from element `first` on, b units `step` elements apart. */
static inline struct gg_tensor *part(struct gg_tensor *x, int64_t a, int64_t b, int64_t first,
                                     int64_t step) {
    return shown("VIEW", x, a, b, x->ne[1], (size_t)step * sizeof(float), x->nb[1],
                 (size_t)first * sizeof(float));
}
static inline struct gg_tensor *rows_of(struct gg_tensor *x, int64_t a, int64_t first) {
    return shown("VIEW", x, a, x->ne[1], 1, x->nb[1], x->nb[1] * (size_t)x->ne[1],
                 (size_t)first * sizeof(float));
}
static inline struct gg_tensor *reshape(struct gg_tensor *x, int64_t a, int64_t b, int64_t c) {
    const size_t one = sizeof(float);
    return shown("RESHAPE", x, a, b, c, (size_t)a * one, (size_t)(a * b) * one, 0);
}
/* As ggml_permute: dimension 0 of x becomes i0, and so on; dimension 3 stays. */
static inline struct gg_tensor *permute(struct gg_tensor *x, int i0, int i1, int i2) {
    const int to[] = {i0, i1, i2};
    struct gg_tensor *t = shown("PERMUTE", x, 1, 1, 1, 0, 0, 0);
    for (int i = 0; i < 3; i++) {
        t->ne[to[i]] = x->ne[i];
        t->nb[to[i]] = x->nb[i];
        t->op_params[i] = to[i];
    }
    t->op_params[3] = 3;
    t->nb[3] = x->nb[3];
    return t;
}
/* [rows of w, tokens, heads] of w [n, rows, heads] and x [n, tokens, heads]. */
static inline struct gg_tensor *product(struct gg_tensor *w, struct gg_tensor *x) {
    return node("MUL_MAT", w->ne[1], x->ne[1], x->ne[2], w, x);
}
static inline struct gg_tensor *mul(struct gg_tensor *x, struct gg_tensor *y) {
    return node("MUL", x->ne[0], x->ne[1], x->ne[2], x, y);
}
static inline struct gg_tensor *plus(struct gg_tensor *x, struct gg_tensor *y) {
    return node("ADD", x->ne[0], x->ne[1], x->ne[2], x, y);
}
static inline struct gg_tensor *cont(struct gg_tensor *x, int64_t a, int64_t b, int64_t c) {
    return node("CONT", a, b, c, x, NULL);
}

/* Flash attention of query heads [n, tokens, heads] to K/V heads [n, cells, heads]. */
static inline struct gg_tensor *flash(struct gg_tensor *q, struct gg_tensor *k,
                                      struct gg_tensor *v) {
    struct gg_tensor *t = node("FLASH_ATTN_EXT", v->ne[0], q->ne[2], q->ne[1], q, k);
    t->src[2] = v;
    memcpy(t->op_params, &(float){0.5f}, sizeof(float)); /* the scale */
    return t;
}
static inline struct gg_tensor *silu(struct gg_tensor *x) {
    struct gg_tensor *t = node("UNARY", x->ne[0], x->ne[1], x->ne[2], x, NULL);
    t->op_params[0] = 1;
    return t;
}

/* ---- graphs: of which `graph` is the one that is made ---- */

static struct gg_cgraph *graph;

static inline void expand(struct gg_tensor *t) { add_node(graph, t); }

static inline struct gg_tensor *numbers(const int32_t *values, int64_t n) {
    struct gg_tensor *t = make(I32, n, 1, 1);
    put_at(work, t, &at_work);
    if (n) set(t, values, 0, (size_t)n * sizeof *values);
    return t;
}

static inline struct gg_tensor *longs(const int64_t *values, int64_t n) {
    struct gg_tensor *t = make(I64, n, 1, 1);
    put_at(work, t, &at_work);
    set(t, values, 0, (size_t)n * sizeof *values);
    return t;
}

#endif
