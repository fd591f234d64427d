/* Inputs of a graph, written to all members at once. */
#include "meta/backend.h"

enum { AT_ONCE = 16 };

static bool is_leaf(const struct sheaf_tensor *t) {
    return t->op == SHEAF_OP_NONE && !t->view_src && sheaf__meta_is_buffer(t->buffer);
}

/* The record of a stale input has the slices of another one, which may be larger than the data. */
static enum sheaf_status check_leaves(const struct meta_device *dev,
                                      const struct sheaf_tensor_write *writes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (is_leaf(writes[i].tensor) && !sheaf__meta_leaf(dev, writes[i].tensor))
            return SHEAF_STATUS_INVALID;
    return SHEAF_STATUS_SUCCESS;
}

/* The slices of an input that every member has whole; NULL: it is not one. */
static struct sheaf_tensor **whole_slices(const struct sheaf_tensor *t) {
    const struct meta_tensor *record = is_leaf(t) ? t->extra : NULL;
    return record && record->state->axis == SHEAF_SPLIT_AXIS_MIRRORED ? record->slices : NULL;
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
    enum sheaf_status st = check_leaves(b->dev, writes, n);
    b->uploads = true;
    for (size_t i = 0; i < n && !st; i++)
        if (!whole_slices(writes[i].tensor))
            st = sheaf_backend_tensor_set(writes[i].tensor, writes[i].data, 0,
                                          sheaf_nbytes(writes[i].tensor));
    for (size_t at = 0; at < n && !st; at += AT_ONCE)
        for (int m = 0; m < b->dev->n_local && !st; m++)
            st = write_whole(&b->members[m], writes + at, n - at < AT_ONCE ? n - at : AT_ONCE);
    return st;
}

enum sheaf_status sheaf__meta_synchronize(sheaf_backend_t backend) {
    struct meta_backend *b = backend->context;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int m = 0; m < b->dev->n_local && b->uploads && !st; m++)
        st = sheaf__meta_drain(&b->members[m]);
    if (!st) b->uploads = false;
    return st;
}
