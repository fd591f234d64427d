/* Owns a graph over a row of logits and the memory of its results: the positions of the best
 * (ARGMAX, or TOP_K), their values (GET_ROWS of the row as a column), and sums of the row in pieces
 * of PIECE. A logit that is not a number, which the best would hide, makes its sum no number;
 * +infinity is the best. Results lie one after another, so that they come in one transfer. */
#include "model/run/best.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/backend-impl.h"
#include "sheaf/graph.h"
#include "sheaf/ops.h"

#include "base/arith.h"
#include "model/run/host_memory.h"

enum { PIECE = 1024, N_TENSORS = 12 };

/* What the graph was built for. */
struct key {
    const struct sheaf_tensor *t;
    const void *data;
    sheaf_backend_buffer_t buffer;
    int64_t row, n;
    size_t cap;
};

struct sheaf__best {
    sheaf_backend_t backend;
    struct key key;
    bool possible; /* for this key */
    bool taken;    /* what was found last was asked for */
    bool follows;  /* it was submitted behind what was computed last */
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *positions, *values, *sums, *rest; /* rest: NULL if n is k pieces */
    struct sheaf_tensor *all;                              /* the memory of the results */
    sheaf_backend_buffer_t results;
    struct sheaf__host_memory host;
    size_t size; /* of `results` and `host` */
};

static void free_memory(struct sheaf__best *b) {
    sheaf__host_memory_free(&b->host);
    sheaf_backend_buffer_free(b->results);
    b->results = NULL;
    b->size = 0;
}

void sheaf__best_free(struct sheaf__best *best) {
    if (!best) return;
    free_memory(best);
    sheaf_free(best->ctx);
    free(best);
}

/* Memory for the results, there and here. */
static enum sheaf_status reserve(struct sheaf__best *b, size_t size) {
    if (size <= b->size) return SHEAF_STATUS_SUCCESS;
    free_memory(b);
    enum sheaf_status status = sheaf_backend_alloc_buffer(b->backend, size, &b->results);
    if (!status)
        status = sheaf__host_memory_new(sheaf_backend_get_device(b->backend), size, &b->host);
    if (status)
        free_memory(b);
    else
        b->size = size;
    return status;
}

/* The nodes; false if the device has not the ops, or there is no memory. */
static bool make_nodes(struct sheaf__best *b) {
    struct sheaf_context *ctx = b->ctx;
    const int64_t n = b->key.n, pieces = n / PIECE, rest = n % PIECE;
    struct sheaf_tensor *row = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, n);
    if (!row) return false;
    row->buffer = b->key.buffer;
    row->data = (char *)b->key.t->data + (size_t)b->key.row * b->key.t->nb[1];
    b->positions =
        b->key.cap == 1 ? sheaf_argmax(ctx, row) : sheaf_top_k(ctx, row, (int)b->key.cap);
    if (b->positions) b->positions->flags |= SHEAF_BACKEND_TENSOR_TIES_BY_INDEX;
    b->values = sheaf_get_rows(ctx, sheaf_reshape_2d(ctx, row, 1, n), b->positions);
    b->sums = b->rest = NULL;
    if (pieces)
        b->sums =
            sheaf_sum_rows(ctx, sheaf_view_2d(ctx, row, PIECE, pieces, PIECE * sizeof(float), 0));
    if (rest)
        b->rest =
            sheaf_sum_rows(ctx, sheaf_view_1d(ctx, row, rest, (size_t)(n - rest) * sizeof(float)));
    struct sheaf_tensor *const nodes[] = {b->positions, b->values, b->sums, b->rest};
    const bool wanted[] = {true, true, pieces > 0, rest > 0};
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        if (!wanted[i]) continue;
        if (!nodes[i] || !sheaf_backend_supports_op(b->backend, nodes[i]) ||
            sheaf_build_forward_expand(b->graph, nodes[i]))
            return false;
    }
    return true;
}

static size_t bytes_of(const struct sheaf__best *b, const struct sheaf_tensor *t) {
    return sheaf_backend_buft_get_alloc_size(sheaf_backend_get_default_buffer_type(b->backend), t);
}

/* One result behind another. */
static enum sheaf_status place_results(struct sheaf__best *b) {
    struct sheaf_tensor *const results[] = {b->positions, b->values, b->sums, b->rest};
    const size_t step = sheaf_backend_get_alignment(b->backend);
    size_t at[4], size = 0;
    for (size_t i = 0; i < 4; i++) {
        at[i] = size;
        if (results[i]) size += sheaf__align_up(bytes_of(b, results[i]), step);
    }
    b->all = sheaf_new_tensor_1d(b->ctx, SHEAF_TYPE_I32, (int64_t)(size / sizeof(int32_t)));
    if (!b->all) return SHEAF_STATUS_ALLOC_FAILED;
    enum sheaf_status status = reserve(b, bytes_of(b, b->all));
    char *base = status ? NULL : sheaf_backend_buffer_get_base(b->results);
    for (size_t i = 0; i < 4 && !status; i++)
        if (results[i]) status = sheaf_backend_tensor_alloc(b->results, results[i], base + at[i]);
    return status ? status : sheaf_backend_tensor_alloc(b->results, b->all, base);
}

static enum sheaf_status place_views(struct sheaf__best *b) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < sheaf_graph_n_nodes(b->graph) && !status; i++) {
        struct sheaf_tensor *t = sheaf_graph_node(b->graph, i);
        if (t->view_src) status = sheaf_backend_view_init(t);
    }
    return status;
}

static void build(struct sheaf__best *b, const struct key *key) {
    const size_t size =
        N_TENSORS * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(N_TENSORS);
    if (!b->ctx)
        b->ctx = sheaf_init((struct sheaf_init_params){.mem_size = size, .no_alloc = true});
    else
        sheaf_reset(b->ctx);
    b->key = *key;
    b->follows = b->taken = false;
    b->graph = b->ctx ? sheaf_new_graph_custom(b->ctx, N_TENSORS) : NULL;
    b->possible = b->graph && make_nodes(b) && !place_results(b) && !place_views(b);
    if (!b->possible) sheaf_clear_error(); /* the row itself remains */
}

/* Where a result has come to in host memory. */
static const char *on_host(const struct sheaf__best *b, const struct sheaf_tensor *t) {
    return (const char *)b->host.data + ((const char *)t->data - (const char *)b->all->data);
}

static bool all_are_numbers(const struct sheaf__best *b, const struct sheaf_tensor *sums) {
    float sum = 0;
    for (int64_t i = 0; sums && i < sheaf_nelements(sums); i++) {
        memcpy(&sum, on_host(b, sums) + (size_t)i * sizeof sum, sizeof sum);
        if (sum != sum) return false;
    }
    return true;
}

static bool is_before(const struct sheaf_candidate *a, const struct sheaf_candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* false: a position or a value is impossible, or the list is out of order. */
static bool take(const struct sheaf__best *b, struct sheaf_candidates *c) {
    sheaf_candidates_clear(c);
    for (size_t i = 0; i < b->key.cap; i++) {
        struct sheaf_candidate *e = &c->data[i];
        memcpy(&e->id, on_host(b, b->positions) + 4 * i, sizeof e->id);
        memcpy(&e->logit, on_host(b, b->values) + 4 * i, sizeof e->logit);
        if (!(e->logit <= FLT_MAX) || e->id < 0 || e->id >= b->key.n) return false;
        if (i && !is_before(&e[-1], e)) return false;
    }
    c->n = b->key.cap;
    c->n_seen = (size_t)b->key.n;
    c->max = c->data[0].logit;
    return true;
}

static enum sheaf_status submit(struct sheaf__best *b) {
    const enum sheaf_status status = sheaf_backend_graph_compute_async(b->backend, b->graph);
    return status ? status
                  : sheaf_backend_tensor_get_async(b->backend, b->all, b->host.data, 0,
                                                   sheaf_nbytes(b->all));
}

static enum sheaf_status run(struct sheaf__best *b) {
    if (b->follows) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status status = submit(b), waited = sheaf_backend_synchronize(b->backend);
    return status ? status : waited;
}

static struct key key_of(const struct sheaf_tensor *t, int64_t row, size_t cap) {
    struct key key;
    memset(&key, 0, sizeof key); /* compared by its bytes */
    key.t = t;
    key.data = t->data;
    key.buffer = t->view_src ? t->view_src->buffer : t->buffer;
    key.row = row;
    key.n = t->ne[0];
    key.cap = cap < (size_t)t->ne[0] ? cap : (size_t)t->ne[0];
    return key;
}

void sheaf__best_follow(struct sheaf__best *b, const struct sheaf_tensor *t) {
    if (!b) return;
    const struct key key = key_of(t, b->key.row, b->key.cap);
    b->follows = b->possible && b->taken && memcmp(&b->key, &key, sizeof key) == 0 && !submit(b);
    b->taken = false;
}

enum sheaf_status sheaf__best_select(struct sheaf__best **best, sheaf_backend_t backend,
                                     const struct sheaf_tensor *t, int64_t row,
                                     struct sheaf_candidates *c, bool *done) {
    const struct key key = key_of(t, row, c->cap);
    *done = false;
    if (key.cap < 1 || key.cap > SHEAF__BEST_MOST || t->nb[0] != sizeof(float))
        return SHEAF_STATUS_SUCCESS;
    if (!*best && !(*best = calloc(1, sizeof **best)))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for candidates");
    struct sheaf__best *b = *best;
    b->backend = backend;
    if (memcmp(&b->key, &key, sizeof key) != 0) build(b, &key);
    if (!b->possible) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status status = run(b);
    b->follows = false;
    b->taken = !status;
    if (!status) *done = all_are_numbers(b, b->sums) && all_are_numbers(b, b->rest) && take(b, c);
    return status;
}
