/* Which weights of a buffer lie in the kernels' order, and their bytes in the order in which they were written. */
#include "cpu/matmul/repacked.h"

#include <stdlib.h>
#include <string.h>

#include "backend/optional.h"
#include "base/array.h"
#include "cpu/device/device.h"
#include "sheaf/tensor.h"
#include "tensor/access.h"

static size_t unit_size(enum sheaf_type type) { return sheaf_row_size(type, SHEAF__REPACKED_UNIT); }

/* NULL: the type is not repacked. */
static const struct sheaf__cpu_repacked *kernels_of(enum sheaf_type type) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    return kern && kern->repacked[type].repack && sheaf__repacks() ? &kern->repacked[type] : NULL;
}

/* ---- tensors ---- */

static struct sheaf__cpu_weights *weights_of(const struct sheaf_tensor *t) {
    sheaf_backend_buffer_t buffer = sheaf__memory_owner(t)->buffer;
    return buffer ? sheaf__cpu_buffer_weights(buffer) : NULL;
}

bool sheaf__cpu_may_be_repacked(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *owner = sheaf__memory_owner(t);
    return owner->flags & SHEAF__TENSOR_PRIVATE && owner->ne[0] % SHEAF__REPACKED_UNIT == 0 &&
           !sheaf_is_empty(owner) && kernels_of(owner->type) && weights_of(t);
}

bool sheaf__cpu_is_of_units(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *owner = sheaf__memory_owner(t);
    const size_t unit = unit_size(owner->type);
    bool whole = t->ne[0] % SHEAF__REPACKED_UNIT == 0 &&
                 (size_t)((const char *)t->data - (const char *)owner->data) % unit == 0;
    for (int i = 1; i < SHEAF_MAX_DIMS; i++)
        whole = whole && (t->ne[i] == 1 || t->nb[i] % unit == 0);
    return whole;
}

/* The number of the first that ends behind `data`. */
static size_t find(const struct sheaf__cpu_weights *weights, const void *data) {
    size_t from = 0, to = weights->n;
    while (from < to) {
        const size_t middle = (from + to) / 2;
        const struct sheaf__cpu_weight *w = &weights->list[middle];
        if (w->data + w->size <= (const char *)data)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

const struct sheaf__cpu_weight *sheaf__cpu_weight_at(const struct sheaf__cpu_weights *weights,
                                                     const void *data) {
    if (!weights->n_repacked) return NULL;
    const size_t i = find(weights, data);
    const struct sheaf__cpu_weight *w = &weights->list[i];
    return i < weights->n && w->data <= (const char *)data && w->repacked ? w : NULL;
}

const struct sheaf__cpu_repacked *sheaf__cpu_repacked(const struct sheaf_tensor *t) {
    if (!(sheaf__memory_owner(t)->flags & SHEAF__TENSOR_PRIVATE)) return NULL;
    const struct sheaf__cpu_weights *weights = weights_of(t);
    return weights && sheaf__cpu_weight_at(weights, t->data) ? kernels_of(t->type) : NULL;
}

/* That of a tensor, a new one if it has none; NULL: no memory. */
static struct sheaf__cpu_weight *entry_of(struct sheaf__cpu_weights *weights,
                                          const struct sheaf_tensor *owner, bool *is_new) {
    const size_t i = find(weights, owner->data);
    *is_new = i == weights->n || weights->list[i].data != owner->data;
    if (!*is_new) return &weights->list[i];
    if (!sheaf__grow(&weights->list, &weights->cap, weights->n + 1, sizeof *weights->list))
        return NULL;
    struct sheaf__cpu_weight *w = &weights->list[i];
    memmove(w + 1, w, (weights->n - i) * sizeof *w);
    weights->n++;
    *w = (struct sheaf__cpu_weight){owner->data, sheaf_nbytes(owner), owner->type, false};
    return w;
}

static void set_repacked(const struct sheaf_tensor *owner, struct sheaf__cpu_weights *weights,
                         struct sheaf__cpu_weight *w, bool repacked) {
    w->repacked = repacked;
    weights->n_repacked += repacked ? 1 : (size_t)-1;
    sheaf__cpu_buffer_set_repacked(owner->buffer, weights->n_repacked > 0);
}

enum sheaf__cpu_order sheaf__cpu_order_of(const struct sheaf_tensor *t) {
    const struct sheaf__cpu_weights *weights = weights_of(t);
    const char *data = sheaf__memory_owner(t)->data;
    const size_t i = find(weights, data);
    if (i == weights->n || weights->list[i].data != data) return SHEAF__ORDER_OPEN;
    return weights->list[i].repacked ? SHEAF__ORDER_REPACKED : SHEAF__ORDER_WRITTEN;
}

bool sheaf__cpu_repack_begin(const struct sheaf_tensor *t) {
    bool is_new;
    if (!sheaf__cpu_may_be_repacked(t) || t->view_src || !sheaf_is_contiguous(t)) return false;
    struct sheaf__cpu_weights *weights = weights_of(t);
    struct sheaf__cpu_weight *w = entry_of(weights, t, &is_new);
    if (!w || !is_new) return false;
    set_repacked(t, weights, w, true);
    return true;
}

void sheaf__cpu_repack_share(const struct sheaf_tensor *t, int ith, int nth) {
    const int64_t units = sheaf_nelements(t) / SHEAF__REPACKED_UNIT;
    const int64_t first = units * ith / nth, last = units * (ith + 1) / nth;
    char *w = (char *)t->data + (size_t)first * unit_size(t->type);
    kernels_of(t->type)->repack(w, w, (last - first) * SHEAF__REPACKED_UNIT);
}

enum sheaf_status sheaf__cpu_keep_as_written(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *owner = sheaf__memory_owner(t);
    bool is_new;
    if (!owner->data || !sheaf__cpu_may_be_repacked(t)) return SHEAF_STATUS_SUCCESS;
    struct sheaf__cpu_weights *weights = weights_of(t);
    struct sheaf__cpu_weight *w = entry_of(weights, owner, &is_new);
    if (!w)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "'%s': no memory to note its layout",
                               owner->name);
    if (!w->repacked) return SHEAF_STATUS_SUCCESS;
    kernels_of(w->type)->restore(w->data, w->data, sheaf_nelements(owner));
    set_repacked(owner, weights, w, false);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- buffers ---- */

/* A part of unit number `unit`: n bytes from `first` on. */
static void read_unit(const struct sheaf__cpu_weight *w, size_t unit, size_t first, char *to,
                      size_t n) {
    char plain[SHEAF__REPACKED_BYTES];
    const size_t size = unit_size(w->type);
    kernels_of(w->type)->restore(w->data + unit * size, plain, SHEAF__REPACKED_UNIT);
    memcpy(to, plain + first, n);
}

static void write_unit(const struct sheaf__cpu_weight *w, size_t unit, size_t first,
                       const char *from, uint8_t value, size_t n) {
    char plain[SHEAF__REPACKED_BYTES];
    const size_t size = unit_size(w->type);
    const struct sheaf__cpu_repacked *kernels = kernels_of(w->type);
    if (n < size) kernels->restore(w->data + unit * size, plain, SHEAF__REPACKED_UNIT);
    if (from)
        memcpy(plain + first, from, n);
    else
        memset(plain + first, value, n);
    kernels->repack(plain, w->data + unit * size, SHEAF__REPACKED_UNIT);
}

/* Bytes of the unit that holds byte `at`, of `left` bytes from there on. */
static size_t in_unit(enum sheaf_type type, size_t at, size_t left) {
    const size_t rest = unit_size(type) - at % unit_size(type);
    return rest < left ? rest : left;
}

void sheaf__cpu_weight_read(const struct sheaf__cpu_weight *w, size_t offset, void *data,
                            size_t size) {
    const size_t unit = unit_size(w->type);
    char *to = data;
    for (size_t n; size > 0; offset += n, to += n, size -= n) {
        n = in_unit(w->type, offset, size);
        read_unit(w, offset / unit, offset % unit, to, n);
    }
}

void sheaf__cpu_weight_write(const struct sheaf__cpu_weight *w, size_t offset, const void *data,
                             uint8_t value, size_t size) {
    const size_t unit = unit_size(w->type);
    const char *from = data;
    for (size_t n; size > 0; offset += n, size -= n) {
        n = in_unit(w->type, offset, size);
        write_unit(w, offset / unit, offset % unit, from, value, n);
        if (from) from += n;
    }
}

void sheaf__cpu_weights_forget(struct sheaf__cpu_weights *weights) {
    size_t kept = 0;
    for (size_t i = 0; i < weights->n; i++)
        if (!weights->list[i].repacked) weights->list[kept++] = weights->list[i];
    weights->n = kept;
    weights->n_repacked = 0;
}
