/* Allocators over buffers: the bump allocator, and helpers for all tensors of a context. The graph
 * allocator is in gallocr.c. */
#include "sheaf/alloc.h"

#include <stdlib.h>

#include "base/arith.h"
#include "sheaf/backend-impl.h"

void sheaf_tallocr_init(struct sheaf_tallocr *talloc, sheaf_backend_buffer_t buffer) {
    const size_t alignment = sheaf_backend_buffer_get_alignment(buffer);
    void *base = sheaf_backend_buffer_get_base(buffer);
    *talloc = (struct sheaf_tallocr){
        .buffer = buffer,
        .base = base,
        .alignment = alignment,
        .offset = sheaf__align_up((size_t)base, alignment) - (size_t)base,
    };
}

enum sheaf_status sheaf_tallocr_alloc(struct sheaf_tallocr *talloc, struct sheaf_tensor *tensor) {
    const size_t size = sheaf__align_up(sheaf_backend_buffer_get_alloc_size(talloc->buffer, tensor),
                                        talloc->alignment);
    const size_t total = sheaf_backend_buffer_get_size(talloc->buffer);
    const size_t left = talloc->offset < total ? total - talloc->offset : 0; /* it may be tiny */
    if (size > left)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                               "'%s' needs %zu bytes, the buffer has %zu left", tensor->name, size,
                               left);
    enum sheaf_status st =
        sheaf_backend_tensor_alloc(talloc->buffer, tensor, (char *)talloc->base + talloc->offset);
    if (!st) talloc->offset += size;
    return st;
}

static bool wants_memory(const struct sheaf_tensor *t) { return !t->data && !t->view_src; }

/* One buffer of the type, tensors packed in context order. */
static enum sheaf_status alloc_packed(sheaf_backend_buffer_type_t buft,
                                      struct sheaf_tensor **tensors, size_t n,
                                      sheaf_backend_buffer_t *out) {
    const size_t alignment = sheaf_backend_buft_get_alignment(buft);
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t need = sheaf_backend_buft_get_alloc_size(buft, tensors[i]);
        if (!sheaf__add_size(size, sheaf__align_up(need, alignment), &size)) {
            return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                                   "the tensors of the context do not fit any memory");
        }
    }
    sheaf_backend_buffer_t buffer;
    enum sheaf_status st = sheaf_backend_buft_alloc_buffer(buft, size + alignment, &buffer);
    if (st) return st;
    struct sheaf_tallocr talloc;
    sheaf_tallocr_init(&talloc, buffer);
    for (size_t i = 0; i < n && !st; i++) st = sheaf_tallocr_alloc(&talloc, tensors[i]);
    if (!st) {
        *out = buffer;
        return st;
    }
    for (size_t i = 0; i < n; i++) tensors[i]->buffer = NULL, tensors[i]->data = NULL;
    sheaf_backend_buffer_free(buffer);
    return st;
}

enum sheaf_status sheaf_backend_alloc_ctx_tensors_from_buft(struct sheaf_context *ctx,
                                                            sheaf_backend_buffer_type_t buft,
                                                            sheaf_backend_buffer_t *out) {
    *out = NULL;
    size_t n = 0;
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(ctx); t;
         t = sheaf_get_next_tensor(ctx, t)) {
        n += wants_memory(t);
    }
    struct sheaf_tensor **tensors = malloc((n ? n : 1) * sizeof *tensors);
    if (!tensors)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                               "context: no memory for a list of %zu tensors", n);
    n = 0;
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(ctx); t;
         t = sheaf_get_next_tensor(ctx, t)) {
        if (wants_memory(t)) tensors[n++] = t;
    }
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (n) {
        st = buft->iface->alloc_tensors ? buft->iface->alloc_tensors(buft, tensors, n, out)
                                        : alloc_packed(buft, tensors, n, out);
    }
    free(tensors);
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(ctx); t && !st;
         t = sheaf_get_next_tensor(ctx, t)) {
        if (t->view_src && !t->buffer && t->view_src->buffer) st = sheaf_backend_view_init(t);
    }
    if (st && *out) {
        for (struct sheaf_tensor *t = sheaf_get_first_tensor(ctx); t;
             t = sheaf_get_next_tensor(ctx, t)) {
            if (t->buffer == *out) t->buffer = NULL, t->data = NULL;
        }
        sheaf_backend_buffer_free(*out);
        *out = NULL;
    }
    return st;
}

enum sheaf_status sheaf_backend_alloc_ctx_tensors(struct sheaf_context *ctx,
                                                  sheaf_backend_t backend,
                                                  sheaf_backend_buffer_t *out) {
    return sheaf_backend_alloc_ctx_tensors_from_buft(
        ctx, sheaf_backend_get_default_buffer_type(backend), out);
}
