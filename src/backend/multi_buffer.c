/* Several buffers behind one handle, to be freed, filled, reset and marked together. Tensors lie in
 * the parts and never name the whole, so it has no base and moves no tensor data. */
#include <stdlib.h>

#include "base/arith.h"
#include "sheaf/backend-impl.h"

struct parts {
    size_t n;
    sheaf_backend_buffer_t buffers[];
};

static void free_parts(sheaf_backend_buffer_t buffer) {
    struct parts *p = buffer->context;
    for (size_t i = 0; i < p->n; i++) sheaf_backend_buffer_free(p->buffers[i]);
    free(p);
}

static enum sheaf_status clear_parts(sheaf_backend_buffer_t buffer, uint8_t value) {
    struct parts *p = buffer->context;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < p->n && !st; i++) st = sheaf_backend_buffer_clear(p->buffers[i], value);
    return st;
}

static enum sheaf_status reset_parts(sheaf_backend_buffer_t buffer) {
    struct parts *p = buffer->context;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < p->n && !st; i++) st = sheaf_backend_buffer_reset(p->buffers[i]);
    return st;
}

static void set_usage_of_parts(sheaf_backend_buffer_t buffer,
                               enum sheaf_backend_buffer_usage usage) {
    struct parts *p = buffer->context;
    for (size_t i = 0; i < p->n; i++) sheaf_backend_buffer_set_usage(p->buffers[i], usage);
}

static const struct sheaf_backend_buffer_i multi_iface = {
    .free_buffer = free_parts,
    .clear = clear_parts,
    .reset = reset_parts,
    .set_usage = set_usage_of_parts,
};

bool sheaf_backend_buffer_is_multi_buffer(sheaf_backend_buffer_t buffer) {
    return buffer && buffer->iface == &multi_iface;
}

enum sheaf_status sheaf_backend_multi_buffer_alloc_buffer(const sheaf_backend_buffer_t *buffers,
                                                          size_t n, sheaf_backend_buffer_t *out) {
    *out = NULL;
    if (!n) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "multi-buffer: it wants at least one buffer to hold");
    }
    struct parts *p = malloc(sizeof *p + n * sizeof *buffers);
    size_t size = 0;
    if (!p) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "multi-buffer: no memory for %zu", n);
    p->n = n;
    for (size_t i = 0; i < n; i++) {
        if (!buffers[i] ||
            !sheaf__add_size(size, sheaf_backend_buffer_get_size(buffers[i]), &size)) {
            free(p);
            return sheaf_set_error(SHEAF_STATUS_INVALID, "multi-buffer: buffer %zu is %s", i,
                                   buffers[i] ? "too large" : "NULL");
        }
        p->buffers[i] = buffers[i];
    }
    *out =
        sheaf_backend_buffer_init(sheaf_backend_buffer_get_type(buffers[0]), &multi_iface, p, size);
    if (!*out) free(p);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}
