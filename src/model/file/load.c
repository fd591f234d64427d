/* Reads the weights of a model into its tensors. Owns nothing; which ranks read is known before. */
#include "model/file/load.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/alloc.h"
#include "sheaf/meta.h"
#include "sheaf/world.h"

#include "base/arith.h"

enum {
    WINDOW_BYTES = 256 * 1024, /* less than a second cache has */
    NEAR_BYTES = 4096,         /* bytes between two parts that cost less than a call does */
};

struct reader {
    struct sheaf__weights *model;
    const struct sheaf_gguf *gguf;
    const struct sheaf_gguf_tensor *tensor;
    size_t end;            /* of the last part of this tensor */
    unsigned char *window; /* [WINDOW_BYTES]; NULL: there is no memory for one */
    size_t from, to;       /* bytes of the tensor in it */
    int64_t first;         /* of the tensors that are loaded together */
};

static void begin_tensor(struct reader *r, const struct sheaf_gguf_tensor *tensor) {
    r->tensor = tensor;
    r->end = r->from = r->to = 0;
}

/* A weight that is cut along its rows is read in thousands of short parts with short gaps: a window
 * of the file that moves over them takes one call where they would take hundreds. Parts that are
 * further apart are read alone, so that what lies between them is not. */
static enum sheaf_status read_range(void *user, size_t offset, void *dst, size_t size) {
    struct reader *r = user;
    const bool near = offset >= r->end && offset - r->end < NEAR_BYTES && r->end;
    r->model->bytes_read += size;
    r->end = offset + size;
    if (r->to && offset >= r->from && r->end <= r->to) {
        memcpy(dst, r->window + (offset - r->from), size);
        return SHEAF_STATUS_SUCCESS;
    }
    if (!near || !r->window || size > WINDOW_BYTES / 4 || r->end > r->tensor->size)
        return sheaf_gguf_read(r->gguf, r->tensor, offset, dst, size);
    const size_t n = sheaf__min_size(WINDOW_BYTES, r->tensor->size - offset);
    r->from = r->to = offset;
    const enum sheaf_status status = sheaf_gguf_read(r->gguf, r->tensor, offset, r->window, n);
    if (status) return status;
    r->to = offset + n;
    memcpy(dst, r->window, size);
    return status;
}

static struct sheaf_tensor *descriptor_of(const struct sheaf__weights *model,
                                          const struct sheaf_gguf_tensor *t) {
    struct sheaf_tensor *found = sheaf_get_tensor(model->ctx, t->name);
    assert(found);
    return found;
}

static enum sheaf_status stopped(const struct sheaf_gguf *gguf) {
    return sheaf_set_error(SHEAF_STATUS_ABORTED, "%s: loading was stopped", sheaf_gguf_path(gguf));
}

/* ---- every rank reads ---- */

struct progress {
    sheaf_model_progress_fn fn;
    void *user;
    size_t done, total;
};

static bool goes_on(struct progress *p, size_t bytes) {
    p->done += bytes;
    return !p->fn || p->fn(p->user, p->done, p->total);
}

static enum sheaf_status load_file(struct reader *r, struct progress *progress) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int64_t k = 0; !status && k < sheaf_gguf_n_tensors(r->gguf); k++) {
        begin_tensor(r, sheaf_gguf_tensor(r->gguf, k));
        sheaf_world_enter(SHEAF_PHASE_LOAD, r->tensor->name);
        status = sheaf_backend_tensor_set_from(descriptor_of(r->model, r->tensor), read_range, r);
        if (!status && !goes_on(progress, r->tensor->size)) status = stopped(r->gguf);
    }
    return status ? status : sheaf_gguf_check_unchanged(r->gguf);
}

/* ---- some ranks are sent what they hold ---- */

/* The i-th of the tensors that are loaded together. */
static enum sheaf_status read_listed(void *user, size_t i, size_t offset, void *dst, size_t size) {
    struct reader *r = user;
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(r->gguf, r->first + (int64_t)i);
    if (t != r->tensor) {
        begin_tensor(r, t);
        sheaf_world_enter(SHEAF_PHASE_LOAD, t->name);
    }
    return read_range(r, offset, dst, size);
}

/* In parts, at whose ends a failure of one rank, or its wish to stop, becomes one of all. */
static enum sheaf_status load_file_together(struct reader *r, struct sheaf_tensor **list,
                                            struct progress *progress) {
    enum { PART_BYTES = 64 << 20 };
    struct sheaf__weights *model = r->model;
    const int64_t n = sheaf_gguf_n_tensors(r->gguf);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int64_t k = 0; k < n; k++) list[k] = descriptor_of(model, sheaf_gguf_tensor(r->gguf, k));
    for (int64_t end; !status && r->first < n; r->first = end) {
        size_t bytes = 0;
        for (end = r->first; end < n && bytes < PART_BYTES; end++)
            bytes += sheaf_gguf_tensor(r->gguf, end)->size;
        r->tensor = NULL;
        sheaf_world_enter(SHEAF_PHASE_LOAD, sheaf_gguf_tensor(r->gguf, r->first)->name);
        status =
            sheaf_backend_meta_tensors_load(list + r->first, (size_t)(end - r->first), model->reads,
                                            model->sender, read_listed, r, &model->bytes_sent);
        if (!status && !goes_on(progress, bytes)) status = stopped(r->gguf);
        status = sheaf_world_agree(status, "loading the weights");
    }
    if (!status) status = sheaf_gguf_check_unchanged(r->gguf);
    return sheaf_world_agree(status, "loading the weights");
}

/* ---- all files ---- */

static enum sheaf_status load_together(struct reader *r, struct progress *progress) {
    const size_t n = (size_t)sheaf_gguf_n_tensors(r->gguf);
    struct sheaf_tensor **list = calloc(n + 1, sizeof(*list));
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!list)
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory to load it",
                                 sheaf_gguf_path(r->gguf));
    status = sheaf_world_agree(status, "loading the weights");
    if (!status) status = load_file_together(r, list, progress);
    free(list);
    return status;
}

enum sheaf_status sheaf__weights_load(struct sheaf__weights *model,
                                      sheaf_backend_buffer_type_t buft,
                                      sheaf_model_progress_fn progress, void *user) {
    struct progress p = {progress, user, 0, model->total_bytes};
    struct reader r = {.model = model, .window = malloc(WINDOW_BYTES)};
    sheaf_world_enter(SHEAF_PHASE_LOAD, "memory for the weights");
    enum sheaf_status status =
        sheaf_backend_alloc_ctx_tensors_from_buft(model->ctx, buft, &model->buffer);
    if (model->reads) status = sheaf_world_agree(status, "memory for the weights");
    if (!status) sheaf_backend_buffer_set_usage(model->buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (int i = 0; !status && i < model->n_files; i++) {
        r.gguf = model->files[i];
        r.first = 0;
        status = model->reads ? load_together(&r, &p) : load_file(&r, &p);
    }
    free(r.window);
    return status;
}
