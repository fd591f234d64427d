/* Copies for conversions that a member's device does not make, of types or layouts that it has no
 * kernel for: the host makes them.
 *
 * Invariant: no bytes but those of elements are written, since what lies between the rows of a view
 * belongs to others. */
#include "meta/backend.h"

/* The elements of a row lie in n runs of so many bytes, nb[0] apart. */
struct runs {
    size_t n, bytes;
};
static struct runs runs_of(const struct sheaf_tensor *t, bool rows_are_dense) {
    return rows_are_dense ? (struct runs){1, sheaf_row_size(t->type, t->ne[0])}
                          : (struct runs){(size_t)(t->ne[0] / sheaf_blck_size(t->type)),
                                          sheaf_type_size(t->type)};
}
static bool has_dense_rows(const struct sheaf_tensor *t) {
    return t->nb[0] == sheaf_type_size(t->type);
}

/* From and to memory of the host in which the values have the tensors' strides. */
static void copy_on_host(const struct sheaf_tensor *from, const char *in,
                         const struct sheaf_tensor *to, char *out) {
    const struct runs r = runs_of(to, has_dense_rows(from) && has_dense_rows(to));
    for (int64_t row = 0; row < sheaf_nrows(to); row++) {
        const char *src = in + sheaf__row_offset(from, row);
        char *dst = out + sheaf__row_offset(to, row);
        for (size_t i = 0; i < r.n; i++)
            memcpy(dst + i * to->nb[0], src + i * from->nb[0], r.bytes);
    }
}

static enum sheaf_status upload(struct meta_member *me, struct sheaf_tensor *t, const char *host) {
    const struct runs r = runs_of(t, has_dense_rows(t));
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (sheaf_is_contiguous(t))
        return sheaf_backend_tensor_set_async(me->device_backend, t, host, 0, sheaf_nbytes(t));
    for (int64_t row = 0; row < sheaf_nrows(t) && !st; row++) {
        const size_t at = sheaf__row_offset(t, row);
        st = sheaf_backend_tensor_set_2d_async(me->device_backend, t, host + at, at, r.bytes, r.n,
                                               t->nb[0], t->nb[0]);
    }
    return st;
}

enum sheaf_status sheaf__meta_copy(struct meta_member *me, const struct meta_instr *instr,
                                   const void *in, void *out) {
    copy_on_host(instr->in, in, instr->out, out);
    return me->staged ? upload(me, instr->out, out) : SHEAF_STATUS_SUCCESS;
}
