/* Owns the graph and its inputs. Invariant: a graph serves any evaluation of the same chunks
 * (n_tokens, n_kv) and `all`; only the contents of the inputs change, so that a device that
 * compiles graphs compiles one for each shape. n_kv grows in steps of KV_STEP. */
#include "model/run/evaluator.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/alloc.h"

#include "model/arch/builder.h"

enum {
    KV_STEP = 256,
    NODES_PER_LAYER = 64, /* an upper bound; the builders use less than half */
    NODES_OUTSIDE = 64,
    CHUNK_STEP = 32, /* tokens; columns that products take together */
};

struct sheaf__evaluator {
    const struct sheaf__weights *model;
    sheaf_backend_t backend;
    struct sheaf__kv_cache *cache;
    sheaf_gallocr_t galloc;
    struct sheaf_context *arena;                     /* of the graph */
    struct sheaf__builder chunks[SHEAF__MAX_CHUNKS]; /* of the graph that is built */
    int n_chunks;                                    /* 0: none */
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *logits; /* of that graph */
    bool have_logits;
    int64_t n_ctx, n_batch, n_past;
    int64_t min_chunked; /* tokens of an evaluation in two chunks; 0: none is */
    int32_t *ints;       /* [n_batch] */
    uint16_t *masks;     /* [n_batch * n_ctx] */
};

void sheaf__evaluator_free(struct sheaf__evaluator *ctx) {
    if (!ctx) return;
    sheaf_gallocr_free(ctx->galloc);
    sheaf__kv_cache_free(ctx->cache);
    sheaf_free(ctx->arena);
    free(ctx->ints);
    free(ctx->masks);
    free(ctx);
}

static size_t max_nodes(const struct sheaf__evaluator *ctx) {
    return SHEAF__MAX_CHUNKS * ((size_t)ctx->model->hp.n_layer * NODES_PER_LAYER + NODES_OUTSIDE);
}

enum sheaf_status sheaf__evaluator_new(const struct sheaf__weights *model, sheaf_backend_t backend,
                                       const struct sheaf__evaluator_params *params,
                                       struct sheaf__evaluator **out) {
    *out = NULL;
    if (params->n_ctx < 1 || params->n_ctx > 1 << 24 || params->n_batch < 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "a context of %" PRId64 " tokens in batches of %" PRId64
                               " is not possible",
                               params->n_ctx, params->n_batch);
    struct sheaf__evaluator *ctx = calloc(1, sizeof *ctx);
    if (!ctx) goto no_memory;
    ctx->model = model;
    ctx->backend = backend;
    ctx->n_ctx = params->n_ctx;
    ctx->min_chunked = params->min_chunked;
    ctx->n_batch = params->n_batch < params->n_ctx ? params->n_batch : params->n_ctx;
    size_t nodes = max_nodes(ctx);
    ctx->arena = sheaf_init((struct sheaf_init_params){
        .mem_size = nodes * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(nodes),
        .no_alloc = true});
    sheaf_backend_buffer_type_t buft = sheaf_backend_get_default_buffer_type(backend);
    ctx->galloc = sheaf_gallocr_new(buft);
    ctx->ints = calloc((size_t)ctx->n_batch, sizeof *ctx->ints);
    ctx->masks = calloc((size_t)ctx->n_batch * (size_t)ctx->n_ctx, sizeof *ctx->masks);
    if (!ctx->arena || !ctx->galloc || !ctx->ints || !ctx->masks) goto no_memory;
    enum sheaf_status status =
        sheaf__kv_cache_new(&model->hp, ctx->n_ctx, params->type, buft, &ctx->cache);
    if (status)
        sheaf__evaluator_free(ctx);
    else
        *out = ctx;
    return status;
no_memory:
    sheaf__evaluator_free(ctx);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                           "no memory for a context of %" PRId64 " tokens", params->n_ctx);
}

void sheaf__evaluator_clear(struct sheaf__evaluator *ctx) { ctx->n_past = 0; }
int64_t sheaf__evaluator_n_past(const struct sheaf__evaluator *ctx) { return ctx->n_past; }
int64_t sheaf__evaluator_n_ctx(const struct sheaf__evaluator *ctx) { return ctx->n_ctx; }
int64_t sheaf__evaluator_n_batch(const struct sheaf__evaluator *ctx) { return ctx->n_batch; }

const struct sheaf_tensor *sheaf__evaluator_logits(const struct sheaf__evaluator *ctx) {
    return ctx->have_logits ? ctx->logits : NULL;
}

enum sheaf_status sheaf__evaluator_get_logits(struct sheaf__evaluator *ctx, float *dst) {
    if (!ctx->have_logits)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "there are no logits before an evaluation");
    return sheaf_backend_tensor_get(ctx->logits, dst, 0, sheaf_nbytes(ctx->logits));
}

/* ---- graphs ---- */

/* Tokens of each chunk, and rows of the cache that it sees, as if it were evaluated alone. Returns
 * the number of chunks. */
static int cut(const struct sheaf__evaluator *ctx, int64_t n, bool all, int64_t *tokens,
               int64_t *n_kv) {
    const int64_t half = (n + 1) / 2, rounded = (half + CHUNK_STEP - 1) / CHUNK_STEP * CHUNK_STEP;
    const bool two = !all && ctx->min_chunked && n >= ctx->min_chunked && n > 1;
    tokens[0] = !two ? n : n - rounded >= rounded / 2 ? rounded : half;
    tokens[1] = n - tokens[0];
    for (int64_t c = 0, end = ctx->n_past; c <= two; c++) {
        end += tokens[c];
        n_kv[c] = (end + KV_STEP - 1) / KV_STEP * KV_STEP;
        if (n_kv[c] > ctx->n_ctx) n_kv[c] = ctx->n_ctx;
    }
    return two ? 2 : 1;
}

static bool is_built(const struct sheaf__evaluator *ctx, int n_chunks, const int64_t *tokens,
                     const int64_t *n_kv, bool all) {
    bool same = n_chunks == ctx->n_chunks;
    for (int c = 0; c < n_chunks && same; c++) {
        const struct sheaf__builder *b = &ctx->chunks[c];
        same = b->n_tokens == tokens[c] && b->n_kv == n_kv[c] && b->all == all;
    }
    return same;
}

static enum sheaf_status build(struct sheaf__evaluator *ctx, int64_t n, bool all) {
    int64_t tokens[SHEAF__MAX_CHUNKS], n_kv[SHEAF__MAX_CHUNKS];
    const int n_chunks = cut(ctx, n, all, tokens, n_kv);
    ctx->have_logits = false;
    if (is_built(ctx, n_chunks, tokens, n_kv, all)) return SHEAF_STATUS_SUCCESS;
    ctx->n_chunks = 0;
    sheaf_reset(ctx->arena);
    ctx->graph = sheaf_new_graph_custom(ctx->arena, max_nodes(ctx));
    if (!ctx->graph) return SHEAF_STATUS_ALLOC_FAILED;
    for (int c = 0; c < n_chunks; c++) {
        ctx->chunks[c] = (struct sheaf__builder){.model = ctx->model,
                                                 .hp = &ctx->model->hp,
                                                 .cache = ctx->cache,
                                                 .ctx = ctx->arena,
                                                 .n_tokens = tokens[c],
                                                 .n_kv = n_kv[c],
                                                 .all = all,
                                                 .before = c ? &ctx->chunks[c - 1] : NULL,
                                                 .order = ctx->graph};
        sheaf__build_inputs(&ctx->chunks[c]);
    }
    ctx->logits = sheaf__build_model(ctx->chunks, n_chunks);
    if (ctx->logits) sheaf_set_output(ctx->logits);
    enum sheaf_status status = sheaf_build_forward_expand(ctx->graph, ctx->logits);
    if (!status) status = sheaf_gallocr_alloc_graph(ctx->galloc, ctx->graph);
    if (!status) ctx->n_chunks = n_chunks;
    return status;
}

/* ---- inputs; one that no layer reads has no memory (few layers may all have windows) ---- */

static enum sheaf_status set_ints(struct sheaf__evaluator *ctx, struct sheaf_tensor *t,
                                  const int32_t *values, int64_t first) {
    if (!t || !t->buffer) return SHEAF_STATUS_SUCCESS;
    for (int64_t i = 0; i < t->ne[0]; i++) ctx->ints[i] = values ? values[i] : (int32_t)(first + i);
    return sheaf_backend_tensor_set(t, ctx->ints, 0, (size_t)t->ne[0] * sizeof *ctx->ints);
}

/* Token i, at position first + i, sees row j of the cache if j <= position and, with a window,
 * position - j < window. */
static enum sheaf_status set_mask(struct sheaf__evaluator *ctx, struct sheaf_tensor *t,
                                  int64_t first, int64_t window) {
    if (!t || !t->buffer) return SHEAF_STATUS_SUCCESS;
    const uint16_t minus_inf = 0xfc00; /* F16 */
    int64_t n_kv = t->ne[0];
    for (int64_t i = 0; i < t->ne[1]; i++) {
        int64_t pos = first + i;
        uint16_t *row = ctx->masks + i * n_kv;
        for (int64_t j = 0; j < n_kv; j++)
            row[j] = j <= pos && (window == 0 || pos - j < window) ? 0 : minus_inf;
    }
    return sheaf_backend_tensor_set(t, ctx->masks, 0, sheaf_nbytes(t));
}

static enum sheaf_status set_inputs(struct sheaf__evaluator *ctx, const struct sheaf__builder *b,
                                    const int32_t *ids, int64_t first) {
    enum sheaf_status status = set_ints(ctx, b->ids, ids, 0);
    if (!status) status = set_ints(ctx, b->pos, NULL, first);
    if (!status) status = set_ints(ctx, b->rows, NULL, first);
    if (!status) status = set_ints(ctx, b->out_ids, NULL, b->n_tokens - 1);
    if (!status) status = set_mask(ctx, b->mask, first, 0);
    if (!status) status = set_mask(ctx, b->mask_swa, first, ctx->model->hp.swa_window);
    return status;
}

static enum sheaf_status check(const struct sheaf__evaluator *ctx, const int32_t *ids, int64_t n) {
    if (n < 1 || n > ctx->n_batch || n > ctx->n_ctx - ctx->n_past)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%" PRId64 " tokens after %" PRId64 " do not fit the context of "
                               "%" PRId64 " (batch %" PRId64 "): give a larger --ctx",
                               n, ctx->n_past, ctx->n_ctx, ctx->n_batch);
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= ctx->model->hp.n_vocab)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "token id %" PRId32 " is not in the vocabulary of %" PRId64,
                                   ids[i], ctx->model->hp.n_vocab);
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__evaluator_eval(struct sheaf__evaluator *ctx, const int32_t *ids, int64_t n,
                                        bool all) {
    enum sheaf_status status = check(ctx, ids, n);
    if (status) return status;
    status = build(ctx, n, all);
    int64_t first = ctx->n_past;
    for (int c = 0; c < ctx->n_chunks && !status; c++) {
        status = set_inputs(ctx, &ctx->chunks[c], ids + (first - ctx->n_past), first);
        first += ctx->chunks[c].n_tokens;
    }
    if (!status) status = sheaf_backend_graph_compute(ctx->backend, ctx->graph);
    if (status) return status;
    ctx->n_past += n;
    ctx->have_logits = true;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__evaluator_prompt(struct sheaf__evaluator *ctx, const int32_t *ids,
                                          int64_t n, enum sheaf_status (*before)(void *user),
                                          void *user) {
    if (n > ctx->n_ctx - ctx->n_past)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "the prompt has %" PRId64 " tokens, but the context of %" PRId64
                               " has room for %" PRId64 ": give a larger --ctx",
                               n, ctx->n_ctx, ctx->n_ctx - ctx->n_past);
    for (int64_t at = 0; at < n; at += ctx->n_batch) {
        enum sheaf_status status = before ? before(user) : SHEAF_STATUS_SUCCESS;
        int64_t m = n - at < ctx->n_batch ? n - at : ctx->n_batch;
        if (!status) status = sheaf__evaluator_eval(ctx, ids + at, m, false);
        if (status) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}
