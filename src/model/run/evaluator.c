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
    CHUNK_STEP = 32,  /* tokens; columns that products take together */
    MASK_TOKENS = 32, /* from which on a device makes masks; smaller ones are uploaded as fast */
};

struct sheaf__evaluator {
    const struct sheaf__weights *model;
    sheaf_backend_t backend;
    struct sheaf__kv_cache *cache;
    struct sheaf__cells cells;
    sheaf_gallocr_t galloc;
    struct sheaf_context *arena;                     /* of the graph */
    struct sheaf__builder chunks[SHEAF__MAX_CHUNKS]; /* of the graph that is built */
    int n_chunks;                                    /* 0: none */
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *logits; /* of that graph */
    bool have_logits;
    int64_t n_ctx, n_batch;
    int64_t min_chunked; /* tokens of an evaluation in two chunks; 0: none is */
    bool device_masks;
    uint16_t *masks;     /* [n_batch * n_ctx], twice with windows */
    int32_t *positions;  /* [n_ctx] of the cells of a sequence, while its masks are made */
    int32_t last[SHEAF__MAX_CHUNKS];
    /* of the batch that is evaluated, [n_batch] each */
    int32_t *pos, *seq, *rows, *wanted; /* rows: cells; wanted: [n_wanted] tokens with logits */
    int32_t *prompt_seq;                /* the sequence of each token of a prompt's batch */
    int64_t n_wanted;
};

void sheaf__evaluator_free(struct sheaf__evaluator *ctx) {
    if (!ctx) return;
    sheaf_gallocr_free(ctx->galloc);
    sheaf__kv_cache_free(ctx->cache);
    sheaf_free(ctx->arena);
    sheaf__cells_free(&ctx->cells);
    free(ctx->pos);
    free(ctx->masks);
    free(ctx->positions);
    free(ctx);
}

static size_t max_nodes(const struct sheaf__evaluator *ctx) {
    return sheaf__builder_max_nodes(&ctx->model->hp, SHEAF__MAX_CHUNKS);
}

/* Has the device the ops that make masks? */
static enum sheaf_status ask_for_masks(struct sheaf__evaluator *ctx) {
    struct sheaf__builder b = {.model = ctx->model,
                               .hp = &ctx->model->hp,
                               .ctx = ctx->arena,
                               .n_tokens = MASK_TOKENS,
                               .n_kv = MASK_TOKENS,
                               .n_wanted = 1,
                               .makes_masks = true};
    sheaf_reset(ctx->arena);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx->arena, max_nodes(ctx));
    if (!graph) return SHEAF_STATUS_ALLOC_FAILED;
    sheaf__build_inputs(&b);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (b.mask) status = sheaf_build_forward_expand(graph, b.mask);
    if (!status && b.mask_swa) status = sheaf_build_forward_expand(graph, b.mask_swa);
    for (int i = 0; !status && i < sheaf_graph_n_nodes(graph); i++)
        if (!sheaf_backend_supports_op(ctx->backend, sheaf_graph_node(graph, i)))
            ctx->device_masks = false;
    return status;
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
    ctx->device_masks =
        params->device_masks && params->n_batch >= MASK_TOKENS && params->n_ctx >= MASK_TOKENS;
    ctx->n_batch = params->n_batch < params->n_ctx ? params->n_batch : params->n_ctx;
    size_t nodes = max_nodes(ctx);
    ctx->arena = sheaf_init((struct sheaf_init_params){
        .mem_size = nodes * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(nodes),
        .no_alloc = true});
    sheaf_backend_buffer_type_t buft = sheaf_backend_get_default_buffer_type(backend);
    ctx->galloc = sheaf_gallocr_new(buft);
    ctx->pos = calloc(5 * (size_t)ctx->n_batch, sizeof *ctx->pos);
    const size_t mask_sets = model->hp.swa_window > 0 ? 2 : 1;
    ctx->masks = calloc(mask_sets * (size_t)ctx->n_batch * (size_t)ctx->n_ctx, sizeof *ctx->masks);
    ctx->positions = malloc((size_t)ctx->n_ctx * sizeof *ctx->positions);
    if (!ctx->arena || !ctx->galloc || !ctx->pos || !ctx->masks || !ctx->positions) goto no_memory;
    ctx->seq = ctx->pos + ctx->n_batch;
    ctx->rows = ctx->seq + ctx->n_batch;
    ctx->wanted = ctx->rows + ctx->n_batch;
    ctx->prompt_seq = ctx->wanted + ctx->n_batch;
    enum sheaf_status status = sheaf__cells_init(&ctx->cells, ctx->n_ctx);
    if (!status)
        status = sheaf__kv_cache_new(&model->hp, ctx->n_ctx, params->type, buft, &ctx->cache);
    if (!status && ctx->device_masks) status = ask_for_masks(ctx);
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

void sheaf__evaluator_clear(struct sheaf__evaluator *ctx) { sheaf__cells_clear(&ctx->cells); }
int64_t sheaf__evaluator_n_past(const struct sheaf__evaluator *ctx) { return ctx->cells.next[0]; }
struct sheaf__cells *sheaf__evaluator_cells(struct sheaf__evaluator *ctx) {
    return &ctx->cells;
}

const struct sheaf_tensor *sheaf__evaluator_logits(const struct sheaf__evaluator *ctx) {
    return ctx->have_logits ? ctx->logits : NULL;
}

bool sheaf__evaluator_made_masks(const struct sheaf__evaluator *ctx) {
    bool made = ctx->n_chunks > 0;
    for (int c = 0; c < ctx->n_chunks; c++) made = made && ctx->chunks[c].makes_masks;
    return made;
}

enum sheaf_status sheaf__evaluator_get_logits(struct sheaf__evaluator *ctx, float *dst) {
    if (!ctx->have_logits)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "there are no logits before an evaluation");
    return sheaf_backend_tensor_get(ctx->logits, dst, 0, sheaf_nbytes(ctx->logits));
}

/* ---- graphs ---- */

/* The least position of n tokens of the batch, from `first` on. */
static int32_t first_position(const struct sheaf__evaluator *ctx, int64_t first, int64_t n) {
    int32_t least = ctx->pos[first];
    for (int64_t i = first + 1; i < first + n; i++)
        if (ctx->pos[i] < least) least = ctx->pos[i];
    return least;
}

/* Does the device make the masks of these tokens? They are of one sequence, and in reach of the
 * first. */
static bool makes_masks(const struct sheaf__evaluator *ctx, int64_t first, int64_t n) {
    if (!ctx->device_masks || n < MASK_TOKENS) return false;
    const int64_t least = first_position(ctx, first, n);
    for (int64_t i = first; i < first + n; i++)
        if (ctx->seq[i] != ctx->seq[first] || ctx->pos[i] > least + SHEAF__MASK_REACH) return false;
    return true;
}

/* What the graph of a chunk depends on. */
struct chunk {
    int64_t n_tokens, n_kv;
    bool makes_masks;
};

/* The chunks of a batch of n tokens: each sees the cells of the cache as if it were evaluated
 * alone. `end`: of the cells before. Returns how many there are. */
static int cut(const struct sheaf__evaluator *ctx, int64_t n, int64_t end, struct chunk *chunks) {
    const int64_t half = (n + 1) / 2, rounded = (half + CHUNK_STEP - 1) / CHUNK_STEP * CHUNK_STEP;
    const bool last_alone = ctx->n_wanted == 1 && ctx->wanted[0] == n - 1;
    const bool two = last_alone && ctx->min_chunked && n >= ctx->min_chunked && n > 1;
    const int64_t first = !two ? n : n - rounded >= rounded / 2 ? rounded : half;
    for (int64_t c = 0, begin = 0; c <= two; c++) {
        struct chunk *at = &chunks[c];
        at->n_tokens = c ? n - first : first;
        for (int64_t i = begin; i < begin + at->n_tokens; i++)
            end = ctx->rows[i] < end ? end : ctx->rows[i] + 1;
        at->n_kv = (end + KV_STEP - 1) / KV_STEP * KV_STEP;
        if (at->n_kv > ctx->n_ctx) at->n_kv = ctx->n_ctx;
        at->makes_masks = makes_masks(ctx, begin, at->n_tokens);
        begin += at->n_tokens;
    }
    return two ? 2 : 1;
}

static bool is_built(const struct sheaf__evaluator *ctx, int n_chunks, const struct chunk *chunks) {
    bool same = n_chunks == ctx->n_chunks;
    for (int c = 0; c < n_chunks && same; c++) {
        const struct sheaf__builder *b = &ctx->chunks[c];
        same = b->n_tokens == chunks[c].n_tokens && b->n_kv == chunks[c].n_kv &&
               b->n_wanted == ctx->n_wanted && b->makes_masks == chunks[c].makes_masks;
    }
    return same;
}

static enum sheaf_status build(struct sheaf__evaluator *ctx, int64_t n, int64_t end) {
    struct chunk chunks[SHEAF__MAX_CHUNKS];
    const int n_chunks = cut(ctx, n, end, chunks);
    ctx->have_logits = false;
    if (is_built(ctx, n_chunks, chunks)) return SHEAF_STATUS_SUCCESS;
    ctx->n_chunks = 0;
    sheaf_reset(ctx->arena);
    ctx->graph = sheaf_new_graph_custom(ctx->arena, max_nodes(ctx));
    if (!ctx->graph) return SHEAF_STATUS_ALLOC_FAILED;
    for (int c = 0; c < n_chunks; c++) {
        ctx->chunks[c] = (struct sheaf__builder){.model = ctx->model,
                                                 .hp = &ctx->model->hp,
                                                 .cache = ctx->cache,
                                                 .ctx = ctx->arena,
                                                 .n_tokens = chunks[c].n_tokens,
                                                 .n_kv = chunks[c].n_kv,
                                                 .n_wanted = ctx->n_wanted,
                                                 .makes_masks = chunks[c].makes_masks,
                                                 .before = c ? &ctx->chunks[c - 1] : NULL,
                                                 .graph = ctx->graph,
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

/* Those of a graph, which a device takes in one upload. */
struct inputs {
    struct sheaf_tensor_write write[SHEAF__MAX_CHUNKS * 9];
    size_t n;
    uint16_t *masks; /* where the next one begins, or what it is made of */
};

static void add_input(struct inputs *in, struct sheaf_tensor *t, const void *values) {
    if (t && t->buffer) in->write[in->n++] = (struct sheaf_tensor_write){t, values};
}

/* Of tokens first, first + 1, ... of the batch: which cells each sees. */
static void add_mask(struct sheaf__evaluator *ctx, struct inputs *in, struct sheaf_tensor *t,
                     int64_t first, int64_t window) {
    if (!t || !t->buffer) return;
    const int64_t n_kv = t->ne[0];
    int of = -1; /* the sequence whose positions are there */
    add_input(in, t, in->masks);
    for (int64_t i = 0; i < t->ne[1]; i++, in->masks += n_kv) {
        const int seq = ctx->seq[first + i];
        if (seq != of) sheaf__cells_positions(&ctx->cells, seq, ctx->positions, n_kv);
        of = seq;
        sheaf__cells_mask(ctx->positions, n_kv, ctx->pos[first + i], window, in->masks);
    }
}

/* What the device makes the masks of chunk b of, whose tokens begin with `first` of the batch. */
static void add_mask_numbers(struct sheaf__evaluator *ctx, struct inputs *in,
                             const struct sheaf__builder *b, int64_t first) {
    const int64_t from = first_position(ctx, first, b->n_tokens),
                  window = ctx->model->hp.swa_window;
    uint16_t *tokens = in->masks, *cells = tokens + b->n_tokens, *until = cells + b->n_kv,
             *far = until + b->n_kv;
    sheaf__cells_positions(&ctx->cells, ctx->seq[first], ctx->positions, b->n_kv);
    for (int64_t i = 0; i < b->n_tokens; i++)
        tokens[i] = sheaf__mask_number(ctx->pos[first + i] - from);
    for (int64_t i = 0; i < b->n_kv; i++) {
        cells[i] = sheaf__mask_number(ctx->positions[i] - from);
        if (b->mask_until) until[i] = sheaf__mask_number(ctx->positions[i] + window - 1 - from);
    }
    *far = sheaf_fp32_to_fp16(SHEAF__MASK_FAR);
    add_input(in, b->mask_tokens, tokens);
    add_input(in, b->mask_cells, cells);
    add_input(in, b->mask_until, until);
    add_input(in, b->mask_far, far);
    in->masks = far + 1;
}

/* Inputs of chunk c, which begins with token `first` of the batch. Two chunks want the last token
 * alone, which is the last of either. */
static void add_inputs(struct sheaf__evaluator *ctx, struct inputs *in, int c, const int32_t *ids,
                       int64_t first) {
    static const int32_t zero = 0;
    const struct sheaf__builder *b = &ctx->chunks[c];
    ctx->last[c] = (int32_t)b->n_tokens - 1;
    add_input(in, b->ids, ids + first);
    add_input(in, b->pos, ctx->pos + first);
    add_input(in, b->slot, &zero);
    add_input(in, b->rows, ctx->rows + first);
    add_input(in, b->out_ids, ctx->n_chunks > 1 ? &ctx->last[c] : ctx->wanted);
    if (b->makes_masks) {
        add_mask_numbers(ctx, in, b, first);
        return;
    }
    add_mask(ctx, in, b->mask, first, 0);
    add_mask(ctx, in, b->mask_swa, first, ctx->model->hp.swa_window);
}

static enum sheaf_status set_inputs(struct sheaf__evaluator *ctx, const int32_t *ids) {
    struct inputs in = {.masks = ctx->masks};
    int64_t first = 0;
    for (int c = 0; c < ctx->n_chunks; c++) {
        add_inputs(ctx, &in, c, ids, first);
        first += ctx->chunks[c].n_tokens;
    }
    return sheaf_backend_tensors_set(ctx->backend, in.write, in.n);
}

/* ---- batches ---- */

static enum sheaf_status check_token(const struct sheaf__evaluator *ctx, int32_t id) {
    if (id >= 0 && id < ctx->model->hp.n_vocab) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "token id %" PRId32 " is not in the vocabulary of %" PRId64, id,
                           ctx->model->hp.n_vocab);
}

enum sheaf_status sheaf__evaluator_check_decoder(const struct sheaf__evaluator *ctx) {
    const struct sheaf__arch *arch = ctx->model->hp.arch;
    if (!arch->encoder) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "a model of architecture %s writes no text; it makes embeddings "
                           "(sheaf_model_embed, sheaf-run --embedding)",
                           arch->name);
}

static enum sheaf_status check(const struct sheaf__evaluator *ctx,
                               const struct sheaf_model_batch *batch) {
    const int64_t n = batch->n_tokens, n_used = ctx->cells.n_used;
    const enum sheaf_status decoder = sheaf__evaluator_check_decoder(ctx);
    if (decoder) return decoder;
    if (n < 1 || n > ctx->n_batch)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "a batch of %" PRId64 " tokens; 1 to %" PRId64
                               " are possible, the --batch of this model",
                               n, ctx->n_batch);
    if (n > ctx->n_ctx - n_used)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%" PRId64 " tokens after %" PRId64 " do not fit the context of "
                               "%" PRId64 ": give a larger --ctx",
                               n, n_used, ctx->n_ctx);
    for (int64_t i = 0; i < n; i++) {
        const int32_t seq = batch->seq ? batch->seq[i] : 0;
        const enum sheaf_status status = check_token(ctx, batch->token[i]);
        if (!status && seq != 0 && ctx->model->hp.arch->scans)
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                   "sequence %" PRId32 ": a model of architecture %s has the state "
                                   "of one sequence, 0",
                                   seq, ctx->model->hp.arch->name);
        if (status) return status;
        if (seq < 0 || seq >= SHEAF__MAX_SEQUENCES)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "sequence %" PRId32 " is not one of 0..%d",
                                   seq, SHEAF__MAX_SEQUENCES - 1);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Gives back the cells of the batch's first n tokens. */
static void release(struct sheaf__evaluator *ctx, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        sheaf__cells_remove(&ctx->cells, ctx->seq[i], ctx->pos[i], ctx->pos[i] + 1);
}

/* Positions, cells and wanted tokens of the batch. */
static enum sheaf_status place(struct sheaf__evaluator *ctx,
                               const struct sheaf_model_batch *batch) {
    ctx->n_wanted = 0;
    for (int64_t i = 0; i < batch->n_tokens; i++) {
        const int32_t seq = batch->seq ? batch->seq[i] : 0, next = ctx->cells.next[seq];
        const int32_t pos = batch->pos ? batch->pos[i] : next;
        if (pos < next || pos == INT32_MAX) {
            release(ctx, i);
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "token %" PRId64 " is for position %" PRId32
                                   " of sequence %" PRId32 ", which goes on at %" PRId32,
                                   i, pos, seq, next);
        }
        ctx->seq[i] = seq;
        ctx->pos[i] = pos;
        ctx->rows[i] = (int32_t)sheaf__cells_take(&ctx->cells, seq, pos); /* there is one: check */
        if (batch->logits ? batch->logits[i] : i == batch->n_tokens - 1)
            ctx->wanted[ctx->n_wanted++] = (int32_t)i;
    }
    if (ctx->n_wanted == 0) ctx->wanted[ctx->n_wanted++] = (int32_t)batch->n_tokens - 1;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__evaluator_eval_batch(struct sheaf__evaluator *ctx,
                                              const struct sheaf_model_batch *batch) {
    const int64_t end = ctx->cells.end;
    const bool begins = ctx->cells.n_used == 0, has_state = ctx->model->hp.arch->scans;
    enum sheaf_status status = check(ctx, batch);
    if (!status) status = place(ctx, batch);
    if (status) return status;
    status = build(ctx, batch->n_tokens, end);
    if (!status) status = set_inputs(ctx, batch->token);
    if (!status && has_state && begins) status = sheaf__kv_cache_restart(ctx->cache);
    if (!status) {
        status = sheaf_backend_graph_compute(ctx->backend, ctx->graph);
        if (status && has_state) { /* the state may be that of some of its tokens */
            sheaf__cells_clear(&ctx->cells);
            return status;
        }
    }
    if (status) release(ctx, batch->n_tokens);
    if (status) return status;
    ctx->have_logits = true;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- encoders ---- */

static enum sheaf_status check_text(const struct sheaf__evaluator *ctx, const int32_t *ids,
                                    int64_t n) {
    const struct sheaf__hparams *hp = &ctx->model->hp;
    const int64_t most = hp->n_ctx_train < ctx->n_batch ? hp->n_ctx_train : ctx->n_batch;
    if (!hp->arch->encoder)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "a model of architecture %s writes text: embeddings are those of an "
                               "encoder (bert)",
                               hp->arch->name);
    if (n < 1 || n > most)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "a text of %" PRId64 " tokens has no embedding: 1 to %" PRId64
                               " are possible (the model's context is %" PRId64
                               ", the batch %" PRId64 ")",
                               n, most, hp->n_ctx_train, ctx->n_batch);
    for (int64_t i = 0; i < n; i++) {
        const enum sheaf_status status = check_token(ctx, ids[i]);
        if (status) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__evaluator_embed(struct sheaf__evaluator *ctx, const int32_t *ids,
                                         int64_t n, enum sheaf__pooling pooling, float *dst) {
    enum sheaf_status status = check_text(ctx, ids, n);
    if (status) return status;
    ctx->n_chunks = 0;
    ctx->have_logits = false;
    sheaf_reset(ctx->arena);
    ctx->graph = sheaf_new_graph_custom(ctx->arena, max_nodes(ctx));
    if (!ctx->graph) return SHEAF_STATUS_ALLOC_FAILED;
    struct sheaf__builder b = {.model = ctx->model,
                               .hp = &ctx->model->hp,
                               .cache = ctx->cache,
                               .ctx = ctx->arena,
                               .n_tokens = n,
                               .n_wanted = n,
                               .order = ctx->graph};
    sheaf__build_inputs(&b);
    struct sheaf_tensor *result = sheaf__build_pooled(&b, sheaf__build_model(&b, 1), pooling);
    if (result) sheaf_set_output(result);
    status = sheaf_build_forward_expand(ctx->graph, result);
    if (!status) status = sheaf_gallocr_alloc_graph(ctx->galloc, ctx->graph);
    for (int64_t i = 0; i < n; i++) ctx->pos[i] = (int32_t)i;
    struct inputs in = {.n = 0};
    add_input(&in, b.ids, ids);
    add_input(&in, b.pos, ctx->pos);
    if (!status) status = sheaf_backend_tensors_set(ctx->backend, in.write, in.n);
    if (!status) status = sheaf_backend_graph_compute(ctx->backend, ctx->graph);
    if (status) return status;
    return sheaf_backend_tensor_get(result, dst, 0, sheaf_nbytes(result));
}

enum sheaf_status sheaf__evaluator_eval(struct sheaf__evaluator *ctx, const int32_t *ids, int64_t n,
                                        bool all) {
    const bool mark = all && n > 0 && n <= ctx->n_batch;
    bool *wanted = mark ? malloc((size_t)n) : NULL;
    if (mark && !wanted) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a batch");
    if (wanted) memset(wanted, 1, (size_t)n);
    const struct sheaf_model_batch batch = {
        .size = sizeof batch, .n_tokens = n, .token = ids, .logits = wanted};
    const enum sheaf_status status = sheaf__evaluator_eval_batch(ctx, &batch);
    free(wanted);
    return status;
}

enum sheaf_status sheaf__evaluator_prompt(struct sheaf__evaluator *ctx, int seq, const int32_t *ids,
                                          int64_t n, enum sheaf_status (*before)(void *user),
                                          void *user) {
    const int64_t room = ctx->n_ctx - ctx->cells.n_used;
    if (n > room)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "the prompt has %" PRId64 " tokens, but the context of %" PRId64
                               " has room for %" PRId64 ": give a larger --ctx",
                               n, ctx->n_ctx, room);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int64_t i = 0; i < ctx->n_batch; i++) ctx->prompt_seq[i] = seq;
    for (int64_t at = 0; !status && at < n; at += ctx->n_batch) {
        const struct sheaf_model_batch batch = {.size = sizeof batch,
                                                .n_tokens =
                                                    n - at < ctx->n_batch ? n - at : ctx->n_batch,
                                                .token = ids + at,
                                                .seq = ctx->prompt_seq};
        if (before) status = before(user);
        if (!status) status = sheaf__evaluator_eval_batch(ctx, &batch);
    }
    return status;
}
