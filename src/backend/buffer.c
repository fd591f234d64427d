/* Buffer types and buffers: dispatch to the backend's vtable, with the checks and fall-backs that
 * all backends share.
 *
 * Tensor data access goes to the buffer that owns the memory (a view's buffer is its owner's).
 * Every range is checked here, so that backends need not. */
#include <stdlib.h>

#include "backend/buffer.h"
#include "backend/registry.h"
#include "base/arith.h"
#include "sheaf/backend-impl.h"
#include "tensor/access.h"

/* ---- buffer types ---- */

const char *sheaf_backend_buft_name(sheaf_backend_buffer_type_t buft) {
    return buft->iface->get_name(buft);
}

enum sheaf_status sheaf_backend_buft_alloc_buffer(sheaf_backend_buffer_type_t buft, size_t size,
                                                  sheaf_backend_buffer_t *out) {
    *out = NULL;
    if (size > sheaf_backend_buft_get_max_size(buft)) {
        return sheaf_set_error(
            SHEAF_STATUS_ALLOC_FAILED, "buffer of %zu bytes: %s takes at most %zu", size,
            sheaf_backend_buft_name(buft), sheaf_backend_buft_get_max_size(buft));
    }
    return buft->iface->alloc_buffer(buft, size, out);
}

size_t sheaf_backend_buft_get_alignment(sheaf_backend_buffer_type_t buft) {
    return buft->iface->get_alignment(buft);
}

size_t sheaf_backend_buft_get_max_size(sheaf_backend_buffer_type_t buft) {
    return buft->iface->get_max_size ? buft->iface->get_max_size(buft) : SIZE_MAX;
}

size_t sheaf_backend_buft_get_alloc_size(sheaf_backend_buffer_type_t buft,
                                         const struct sheaf_tensor *tensor) {
    return buft->iface->get_alloc_size ? buft->iface->get_alloc_size(buft, tensor)
                                       : sheaf_nbytes(tensor);
}

bool sheaf_backend_buft_is_host(sheaf_backend_buffer_type_t buft) {
    return buft->iface->is_host && buft->iface->is_host(buft);
}

sheaf_backend_dev_t sheaf_backend_buft_get_device(sheaf_backend_buffer_type_t buft) {
    return buft->device;
}

/* ---- buffers ---- */

struct counted { /* what every buffer object really is */
    struct sheaf_backend_buffer base;
    sheaf_backend_reg_t reg; /* retained; NULL if its device has no registry entry */
};

sheaf_backend_buffer_t sheaf_backend_buffer_init(sheaf_backend_buffer_type_t buft,
                                                 const struct sheaf_backend_buffer_i *iface,
                                                 void *context, size_t size) {
    struct counted *b = malloc(sizeof *b);
    if (!b) {
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "buffer: out of memory");
        return NULL;
    }
    b->base = (struct sheaf_backend_buffer){.iface = iface,
                                            .buft = buft,
                                            .context = context,
                                            .size = size,
                                            .usage = SHEAF_BACKEND_BUFFER_USAGE_ANY};
    b->reg = buft->device ? buft->device->reg : NULL;
    sheaf__registry_retain(b->reg);
    return &b->base;
}

static const struct sheaf_backend_buffer_i released = {0};

void sheaf__buffer_release(sheaf_backend_buffer_t b) {
    if (b->iface->free_buffer) b->iface->free_buffer(b);
    b->iface = &released;
    b->context = NULL;
    b->size = 0;
}

void sheaf_backend_buffer_free(sheaf_backend_buffer_t b) {
    if (!b) return;
    sheaf_backend_reg_t reg = ((struct counted *)b)->reg;
    sheaf__buffer_release(b);
    free(b);
    sheaf__registry_release(reg);
}

void *sheaf_backend_buffer_get_base(sheaf_backend_buffer_t b) {
    return b->iface->get_base ? b->iface->get_base(b) : NULL;
}
const char *sheaf_backend_buffer_name(sheaf_backend_buffer_t b) {
    return sheaf_backend_buft_name(b->buft);
}
size_t sheaf_backend_buffer_get_max_size(sheaf_backend_buffer_t b) {
    return sheaf_backend_buft_get_max_size(b->buft);
}
size_t sheaf_backend_buffer_get_size(sheaf_backend_buffer_t b) { return b->size; }
size_t sheaf_backend_buffer_get_alignment(sheaf_backend_buffer_t b) {
    return sheaf_backend_buft_get_alignment(b->buft);
}
size_t sheaf_backend_buffer_get_alloc_size(sheaf_backend_buffer_t b,
                                           const struct sheaf_tensor *tensor) {
    return sheaf_backend_buft_get_alloc_size(b->buft, tensor);
}
enum sheaf_status sheaf_backend_buffer_init_tensor(sheaf_backend_buffer_t b,
                                                   struct sheaf_tensor *tensor) {
    return b->iface->init_tensor ? b->iface->init_tensor(b, tensor) : SHEAF_STATUS_SUCCESS;
}
enum sheaf_status sheaf_backend_buffer_clear(sheaf_backend_buffer_t b, uint8_t value) {
    return b->iface->clear(b, value);
}
enum sheaf_status sheaf_backend_buffer_reset(sheaf_backend_buffer_t b) {
    return b->iface->reset ? b->iface->reset(b) : SHEAF_STATUS_SUCCESS;
}
bool sheaf_backend_buffer_is_host(sheaf_backend_buffer_t b) {
    return sheaf_backend_buft_is_host(b->buft);
}
void sheaf_backend_buffer_set_usage(sheaf_backend_buffer_t b,
                                    enum sheaf_backend_buffer_usage usage) {
    b->usage = usage;
    if (b->iface->set_usage) b->iface->set_usage(b, usage);
}
enum sheaf_backend_buffer_usage sheaf_backend_buffer_get_usage(sheaf_backend_buffer_t b) {
    return b->usage;
}
sheaf_backend_buffer_type_t sheaf_backend_buffer_get_type(sheaf_backend_buffer_t b) {
    return b->buft;
}

/* ---- tensor data ---- */

enum sheaf_status sheaf__tensor_locate(const struct sheaf_tensor *t, const char *what,
                                       size_t offset, size_t size, size_t n_copies, size_t stride,
                                       sheaf_backend_buffer_t *out) {
    *out = NULL;
    sheaf_backend_buffer_t b = sheaf__memory_owner(t)->buffer;
    if (!b || !t->data) {
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s '%s': the tensor has no memory yet", what,
                               t->name);
    }
    if (b->iface == &released) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s '%s': the graph allocator has moved to a larger buffer since; "
                               "allocate the graph again",
                               what, t->name);
    }
    size_t span = 0, end = 0;
    const bool fits =
        n_copies == 0 || (sheaf__mul_size(n_copies - 1, stride, &span) &&
                          sheaf__add_size(span, offset, &end) && sheaf__add_size(end, size, &end));
    if (!fits || end > sheaf_nbytes(t)) {
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s '%s': bytes %zu to %zu of %zu", what,
                               t->name, offset, end, sheaf_nbytes(t));
    }
    *out = b;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_backend_tensor_set(struct sheaf_tensor *t, const void *data, size_t offset,
                                           size_t size) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st = sheaf__tensor_locate(t, "set tensor", offset, size, 1, 0, &b);
    return st || !size ? st : b->iface->set_tensor(b, t, data, offset, size);
}

enum sheaf_status sheaf_backend_tensor_get(const struct sheaf_tensor *t, void *data, size_t offset,
                                           size_t size) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st = sheaf__tensor_locate(t, "get tensor", offset, size, 1, 0, &b);
    return st || !size ? st : b->iface->get_tensor(b, t, data, offset, size);
}

enum sheaf_status sheaf_backend_tensor_memset(struct sheaf_tensor *t, uint8_t value, size_t offset,
                                              size_t size) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st = sheaf__tensor_locate(t, "fill tensor", offset, size, 1, 0, &b);
    return st || !size ? st : b->iface->memset_tensor(b, t, value, offset, size);
}

enum sheaf_status sheaf_backend_tensor_set_2d(struct sheaf_tensor *t, const void *data,
                                              size_t offset, size_t size, size_t n_copies,
                                              size_t stride_tensor, size_t stride_data) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st =
        sheaf__tensor_locate(t, "set tensor", offset, size, n_copies, stride_tensor, &b);
    if (st || !size || !n_copies) return st;
    if (b->iface->set_tensor_2d) {
        return b->iface->set_tensor_2d(b, t, data, offset, size, n_copies, stride_tensor,
                                       stride_data);
    }
    for (size_t i = 0; i < n_copies && !st; i++) {
        st = b->iface->set_tensor(b, t, (const char *)data + i * stride_data,
                                  offset + i * stride_tensor, size);
    }
    return st;
}

enum sheaf_status sheaf_backend_tensor_get_2d(const struct sheaf_tensor *t, void *data,
                                              size_t offset, size_t size, size_t n_copies,
                                              size_t stride_tensor, size_t stride_data) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st =
        sheaf__tensor_locate(t, "get tensor", offset, size, n_copies, stride_tensor, &b);
    if (st || !size || !n_copies) return st;
    if (b->iface->get_tensor_2d) {
        return b->iface->get_tensor_2d(b, t, data, offset, size, n_copies, stride_tensor,
                                       stride_data);
    }
    for (size_t i = 0; i < n_copies && !st; i++) {
        st = b->iface->get_tensor(b, t, (char *)data + i * stride_data, offset + i * stride_tensor,
                                  size);
    }
    return st;
}

enum sheaf_status sheaf_backend_tensor_set_from(struct sheaf_tensor *t, sheaf_tensor_read_fn read,
                                                void *user) {
    const size_t size = sheaf_nbytes(t);
    sheaf_backend_buffer_t b;
    enum sheaf_status st = sheaf__tensor_locate(t, "load tensor", 0, size, 1, 0, &b);
    if (st || !size) return st;
    if (b->iface->set_tensor_from) return b->iface->set_tensor_from(b, t, read, user);
    if (sheaf_backend_buffer_is_host(b)) return read(user, 0, t->data, size);
    const size_t chunk = size < ((size_t)4 << 20) ? size : (size_t)4 << 20;
    void *staging = malloc(chunk);
    if (!staging)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "load '%s': no staging memory", t->name);
    for (size_t done = 0; done < size && !st; done += chunk) {
        const size_t n = size - done < chunk ? size - done : chunk;
        st = read(user, done, staging, n);
        if (!st) st = b->iface->set_tensor(b, t, staging, done, n);
    }
    free(staging);
    return st;
}

/* Bytes [offset, offset + size) of src to the same place of dst; staging [size] is for neither
 * being host memory. */
static enum sheaf_status copy_range(const struct sheaf_tensor *src, struct sheaf_tensor *dst,
                                    size_t offset, size_t size, bool from_host, bool to_host,
                                    void *staging) {
    if (from_host)
        return sheaf_backend_tensor_set(dst, (const char *)src->data + offset, offset, size);
    if (to_host) return sheaf_backend_tensor_get(src, (char *)dst->data + offset, offset, size);
    enum sheaf_status st = sheaf_backend_tensor_get(src, staging, offset, size);
    return st ? st : sheaf_backend_tensor_set(dst, staging, offset, size);
}

enum sheaf_status sheaf__copy_locate(const struct sheaf_tensor *src, const struct sheaf_tensor *dst,
                                     sheaf_backend_buffer_t *from, sheaf_backend_buffer_t *to) {
    if (!sheaf_are_same_layout(src, dst)) {
        return sheaf_set_error(SHEAF_STATUS_INVALID, "copy '%s' to '%s': the layouts differ",
                               src->name, dst->name);
    }
    const size_t size = sheaf_nbytes(src);
    const enum sheaf_status st = sheaf__tensor_locate(src, "copy tensor", 0, size, 1, 0, from);
    return st ? st : sheaf__tensor_locate(dst, "copy tensor", 0, size, 1, 0, to);
}

enum sheaf_status sheaf_backend_tensor_copy(struct sheaf_tensor *src, struct sheaf_tensor *dst) {
    if (src == dst) return SHEAF_STATUS_SUCCESS;
    const size_t size = sheaf_nbytes(src), element = sheaf_type_size(src->type);
    sheaf_backend_buffer_t from, to;
    enum sheaf_status st = sheaf__copy_locate(src, dst, &from, &to);
    if (st || !size) return st;
    const bool from_host = sheaf_backend_buffer_is_host(from);
    const bool to_host = sheaf_backend_buffer_is_host(to);

    /* Bytes between the rows of a strided view belong to others: piece by piece then. */
    const size_t row = sheaf_row_size(src->type, src->ne[0]);
    const bool gaps = size > row * (size_t)sheaf_nrows(src), dense_rows = src->nb[0] == element;
    if (!gaps && !from_host && !to_host && to->iface->cpy_tensor &&
        to->iface->cpy_tensor(to, src, dst))
        return SHEAF_STATUS_SUCCESS;
    const size_t piece = !gaps ? size : dense_rows ? row : element;
    void *staging = from_host || to_host ? NULL : malloc(piece);
    if (!from_host && !to_host && !staging)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "copy '%s': no staging memory",
                               src->name);
    if (!gaps) {
        st = copy_range(src, dst, 0, size, from_host, to_host, staging);
        goto out;
    }
    const int64_t n0 = dense_rows ? 1 : src->ne[0];
    for (int64_t r = 0; r < sheaf_nrows(src) && !st; r++) {
        const size_t at = sheaf__row_offset(src, r);
        for (int64_t i0 = 0; i0 < n0 && !st; i0++) {
            st = copy_range(src, dst, at + (size_t)i0 * src->nb[0], piece, from_host, to_host,
                            staging);
        }
    }
out:
    free(staging);
    return st;
}

enum sheaf_status sheaf_backend_tensor_alloc(sheaf_backend_buffer_t b, struct sheaf_tensor *t,
                                             void *addr) {
    const size_t base = (size_t)sheaf_backend_buffer_get_base(b), at = (size_t)addr;
    size_t end;
    if (sheaf_backend_buffer_is_multi_buffer(b)) {
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "place '%s': a multi-buffer has no memory of its own; place it in one "
            "of its parts",
            t->name);
    }
    if (at < base || !sheaf__add_size(at - base, sheaf_backend_buffer_get_alloc_size(b, t), &end) ||
        end > b->size) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "place '%s': its %zu bytes do not fit the buffer there", t->name,
                               sheaf_backend_buffer_get_alloc_size(b, t));
    }
    t->buffer = b;
    t->data = addr;
    return sheaf_backend_buffer_init_tensor(b, t);
}

enum sheaf_status sheaf_backend_view_init(struct sheaf_tensor *t) {
    if (!t->view_src || !t->view_src->buffer || !t->view_src->data) {
        return sheaf_set_error(SHEAF_STATUS_INVALID, "view '%s': its owner has no memory yet",
                               t->name);
    }
    t->buffer = t->view_src->buffer;
    t->data = (char *)t->view_src->data + t->view_offs;
    return sheaf_backend_buffer_init_tensor(t->buffer, t);
}
