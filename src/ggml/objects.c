/* Objects: weights and caches of rank 0's program as tensors of the meta device, by number. */
#include <stdlib.h>
#include <string.h>

#include "ggml/engine_impl.h"

enum { MAX_OBJECTS = 1 << 20 };

struct sheaf_tensor *gg_object_tensor(void *engine, uint32_t object) {
    const struct gg_engine *e = engine;
    return object < e->n_objects ? e->objects[object].tensor : NULL;
}

/* ---- objects and their memory ---- */

void gg_batch_free(struct gg_batch *batch) {
    sheaf_backend_buffer_free(batch->memory);
    sheaf_free(batch->ctx);
}

/* Tensors of the message's shapes, as e->binding. */
static enum sheaf_status take_shapes(struct gg_engine *e, struct gg_reader *r,
                                     struct sheaf_context *ctx) {
    for (size_t i = 0; i < e->n_binding; i++) {
        struct gg_object_shape s;
        const uint8_t *p = gg_take(r, sizeof s);
        if (!p) break;
        memcpy(&s, p, sizeof s);
        int64_t ne[SHEAF_MAX_DIMS];
        for (int k = 0; k < SHEAF_MAX_DIMS; k++) ne[k] = (int64_t)s.ne[k];
        if (s.object >= MAX_OBJECTS)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "objects: more than %d weights and caches at a time",
                                   MAX_OBJECTS);
        struct sheaf_tensor *t = sheaf_new_tensor(ctx, (enum sheaf_type)s.type, SHEAF_MAX_DIMS, ne);
        if (!t) return SHEAF_STATUS_INVALID;
        sheaf_format_name(t, "object_%llu", (unsigned long long)s.object);
        e->binding[i] = (struct gg_binding){(size_t)s.object, t, NULL};
    }
    return r->bad ? sheaf_set_error(SHEAF_STATUS_INVALID, "objects: the message is cut off")
                  : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status take_states(struct gg_engine *e, struct gg_reader *r, int n_members) {
    for (size_t i = 0; i < e->n_binding; i++) {
        struct gg_binding *b = &e->binding[i];
        b->state = gg_take_state(r, n_members);
        if (!b->state)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "objects: a split state is malformed");
        const enum sheaf_status st = sheaf_split_state_check(b->state, b->tensor);
        if (st) return st;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Memory for the batch's tensors, cut as e->binding says, and filled with 0. */
static enum sheaf_status allocate(const struct gg_ranks *on, struct gg_batch *batch) {
    enum sheaf_status st = sheaf_backend_alloc_ctx_tensors(batch->ctx, on->backend, &batch->memory);
    if (!st && batch->memory) st = sheaf_backend_buffer_clear(batch->memory, 0);
    return sheaf_world_agree(st, "memory of weights and caches");
}

/* Gives the tensors their numbers. */
static enum sheaf_status note_objects(struct gg_engine *e, const struct gg_command *c,
                                      const struct sheaf_context *ctx) {
    size_t want = e->n_objects;
    for (size_t i = 0; i < e->n_binding; i++)
        if (e->binding[i].object >= want) want = e->binding[i].object + 1;
    if (!sheaf__grow(&e->objects, &e->cap_objects, want, sizeof *e->objects))
        return gg_no_memory("objects");
    while (e->n_objects < want) e->objects[e->n_objects++] = (struct gg_object){0};
    for (size_t i = 0; i < e->n_binding; i++)
        e->objects[e->binding[i].object] = (struct gg_object){
            .tensor = e->binding[i].tensor, .buffer = c->buffer, .device = c->device, .ctx = ctx};
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status bind(struct gg_engine *e, const struct gg_command *c, struct gg_reader *r,
                              struct gg_batch *batch) {
    const struct gg_ranks *on = &e->devices[c->device];
    enum sheaf_status st = take_shapes(e, r, batch->ctx);
    if (!st) st = take_states(e, r, on->n_members);
    st = sheaf_world_agree(st, "objects");
    if (!st) st = allocate(on, batch);
    return st ? st : gg_or_end(note_objects(e, c, batch->ctx));
}

enum sheaf_status gg_execute_bind(struct gg_engine *e, const struct gg_command *c,
                                  const uint8_t *payload) {
    struct gg_reader r = {payload, payload + c->size, false};
    const uint64_t n = gg_take_u64(&r);
    if (n > c->size / sizeof(struct gg_object_shape)) /* before memory for so many is taken */
        return sheaf_set_error(SHEAF_STATUS_INVALID, "objects: the message is cut off");
    struct gg_batch batch = {.buffer = c->buffer};
    e->binding = calloc((size_t)n + 1, sizeof *e->binding);
    e->n_binding = e->binding ? (size_t)n : 0;
    batch.ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = (e->n_binding + 1) * sheaf_tensor_overhead(), .no_alloc = true});
    const bool ok = e->binding && batch.ctx &&
                    sheaf__grow(&e->batches, &e->cap_batches, e->n_batches + 1, sizeof *e->batches);
    enum sheaf_status st =
        sheaf_world_agree(ok ? SHEAF_STATUS_SUCCESS : gg_no_memory("objects"), "objects");
    if (!st) st = bind(e, c, &r, &batch);
    for (size_t i = 0; i < e->n_binding; i++) sheaf_split_state_free(e->binding[i].state);
    free(e->binding);
    e->binding = NULL;
    e->n_binding = 0;
    if (st)
        gg_batch_free(&batch);
    else
        e->batches[e->n_batches++] = batch;
    return st;
}

/* ---- the end of objects ---- */

static void let_go(struct gg_engine *e) {
    gg_programs_let_go(e);
    for (size_t i = 0; i < e->n_objects; i++)
        if (e->objects[i].goes) e->objects[i] = (struct gg_object){0};
}

enum sheaf_status gg_execute_free(struct gg_engine *e, const struct gg_command *c) {
    for (size_t i = 0; i < e->n_objects; i++)
        e->objects[i].goes = e->objects[i].buffer == c->buffer;
    let_go(e);
    size_t kept = 0;
    for (size_t i = 0; i < e->n_batches; i++) {
        if (e->batches[i].buffer == c->buffer)
            gg_batch_free(&e->batches[i]);
        else
            e->batches[kept++] = e->batches[i];
    }
    e->n_batches = kept;
    return SHEAF_STATUS_SUCCESS;
}

/* One that was never bound is no error: what a failed BIND has left behind is released like
 * this. */
enum sheaf_status gg_execute_release(struct gg_engine *e, const struct gg_command *c) {
    if (c->object >= e->n_objects || !e->objects[c->object].tensor) return SHEAF_STATUS_SUCCESS;
    const struct sheaf_context *ctx = e->objects[c->object].ctx;
    bool others = false;
    e->objects[c->object].goes = true;
    let_go(e);
    for (size_t i = 0; i < e->n_objects; i++) others = others || e->objects[i].ctx == ctx;
    for (size_t i = 0; i < e->n_batches && !others; i++) {
        if (e->batches[i].ctx != ctx) continue;
        gg_batch_free(&e->batches[i]);
        e->batches[i] = e->batches[--e->n_batches];
        break;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- data ---- */

/* A local failure here (a device that refuses a copy) would leave ranks apart. */
enum sheaf_status gg_or_end(enum sheaf_status st) {
    if (st && sheaf_world_size() > 1) sheaf_world_abort(sheaf_last_error());
    return st;
}

enum sheaf_status gg_execute_transfer(struct gg_engine *e, const struct gg_command *c,
                                      const uint8_t *payload, void *result) {
    struct sheaf_tensor *t =
        c->object < e->n_objects ? gg_object_tensor(e, (uint32_t)c->object) : NULL;
    const size_t size = c->kind == GG_COMMAND_SET ? (size_t)c->size : (size_t)c->bytes;
    if (!t || c->offset > sheaf_nbytes(t) || size > sheaf_nbytes(t) - c->offset)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "object %llu: a range outside of it",
                               (unsigned long long)c->object);
    if (c->kind == GG_COMMAND_SET && !payload) return SHEAF_STATUS_SUCCESS;
    if (c->kind == GG_COMMAND_SET)
        return gg_or_end(sheaf_backend_tensor_set(t, payload, (size_t)c->offset, size));
    if (c->kind == GG_COMMAND_FILL)
        return gg_or_end(
            sheaf_backend_tensor_memset(t, (uint8_t)c->value, (size_t)c->offset, size));
    return gg_or_end(sheaf_backend_meta_tensor_get_at(t, 0, result, (size_t)c->offset, size));
}
