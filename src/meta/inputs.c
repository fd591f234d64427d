/* Inputs of a graph, written to all members at once. */
#include "meta/backend.h"

enum { AT_ONCE = 16 };

/* The slices of an input that every member has whole; NULL: it is not one. */
static struct sheaf_tensor **whole_slices(const struct sheaf_tensor *t) {
    const struct meta_tensor *record = t->extra;
    const bool own = !t->view_src && t->buffer && sheaf__meta_is_buffer(t->buffer) && record;
    return own && record->state->axis == SHEAF_SPLIT_AXIS_MIRRORED ? record->slices : NULL;
}

static enum sheaf_status write_whole(struct meta_member *me,
                                     const struct sheaf_tensor_write *writes, size_t n) {
    struct sheaf_tensor_write own[AT_ONCE];
    size_t n_own = 0;
    for (size_t i = 0; i < n; i++) {
        struct sheaf_tensor **slices = whole_slices(writes[i].tensor);
        if (slices) own[n_own++] = (struct sheaf_tensor_write){slices[me->local], writes[i].data};
    }
    return sheaf_backend_tensors_set(me->device_backend, own, n_own);
}

enum sheaf_status sheaf__meta_set_tensors(sheaf_backend_t backend,
                                          const struct sheaf_tensor_write *writes, size_t n) {
    struct meta_backend *b = backend->context;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < n && !st; i++)
        if (!whole_slices(writes[i].tensor))
            st = sheaf_backend_tensor_set(writes[i].tensor, writes[i].data, 0,
                                          sheaf_nbytes(writes[i].tensor));
    for (size_t at = 0; at < n && !st; at += AT_ONCE)
        for (int m = 0; m < b->dev->n_local && !st; m++)
            st = write_whole(&b->members[m], writes + at, n - at < AT_ONCE ? n - at : AT_ONCE);
    return st;
}
