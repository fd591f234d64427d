/* Host buffers of the CPU devices.
 *
 * Large buffers are mapped and their pages stay untouched until they are used, so that weights are
 * resident once they are read and not before; on machines of several NUMA domains they are placed
 * in the device's domain. Small ones come from the heap. Every buffer is 64-byte aligned. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/host_memory.h"
#include "base/arith.h"
#include "base/pages.h"
#include "cpu/device/device.h"
#include "cpu/matmul/repacked.h"

enum { ALIGNMENT = 64 };
static const size_t MAP_FROM = (size_t)1 << 20;

struct memory {
    char *data;
    size_t mapped; /* bytes to unmap; 0: heap */
    bool cleared;  /* once */
    struct sheaf__cpu_weights weights;
};

static void release(struct memory *m) {
    if (m->mapped) {
        munmap(m->data, m->mapped);
    } else {
        free(m->data);
    }
    free(m->weights.list);
    free(m);
}

static void buffer_free(sheaf_backend_buffer_t buffer) { release(buffer->context); }

static void *buffer_base(sheaf_backend_buffer_t buffer) {
    return ((struct memory *)buffer->context)->data;
}

/* The pages of a new mapping are zero when they are touched, and a cache for 100,000 tokens must
 * not be touched for ten. Later clears write: what was used is used again. */
static enum sheaf_status buffer_clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    struct memory *m = buffer->context;
    const bool first = !m->cleared && m->mapped && !value;
    m->cleared = true;
    sheaf__cpu_weights_forget(&m->weights);
    sheaf__cpu_buffer_set_repacked(buffer, false);
    if (!first || madvise(m->data, m->mapped, MADV_DONTNEED)) memset(m->data, value, buffer->size);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- data of tensors, of which some are repacked ---- */

static const struct sheaf__cpu_weight *repacked_at(sheaf_backend_buffer_t buffer,
                                                   const struct sheaf_tensor *t, size_t *offset) {
    const struct memory *m = buffer->context;
    const struct sheaf__cpu_weight *w = sheaf__cpu_weight_at(&m->weights, t->data);
    if (w) *offset += (size_t)((char *)t->data - w->data);
    return w;
}

static enum sheaf_status memset_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                       uint8_t value, size_t offset, size_t size) {
    const struct sheaf__cpu_weight *w = repacked_at(buffer, t, &offset);
    if (!w) return sheaf__host_memset_tensor(buffer, t, value, offset, size);
    sheaf__cpu_weight_write(w, offset, NULL, value, size);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status set_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                    const void *data, size_t offset, size_t size) {
    const struct sheaf__cpu_weight *w = repacked_at(buffer, t, &offset);
    if (!w) return sheaf__host_set_tensor(buffer, t, data, offset, size);
    sheaf__cpu_weight_write(w, offset, data, 0, size);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status get_tensor(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *t,
                                    void *data, size_t offset, size_t size) {
    const struct sheaf__cpu_weight *w = repacked_at(buffer, t, &offset);
    if (!w) return sheaf__host_get_tensor(buffer, t, data, offset, size);
    sheaf__cpu_weight_read(w, offset, data, size);
    return SHEAF_STATUS_SUCCESS;
}

/* Other tensors are placed in it. */
static enum sheaf_status buffer_reset(sheaf_backend_buffer_t buffer) {
    struct memory *m = buffer->context;
    m->weights.n = m->weights.n_repacked = 0;
    sheaf__cpu_buffer_set_repacked(buffer, false);
    return SHEAF_STATUS_SUCCESS;
}

static const struct sheaf_backend_buffer_i buffer_iface = {
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .memset_tensor = memset_tensor,
    .set_tensor = set_tensor,
    .get_tensor = get_tensor,
    .clear = buffer_clear,
    .reset = buffer_reset,
};

struct sheaf__cpu_weights *sheaf__cpu_buffer_weights(sheaf_backend_buffer_t buffer) {
    return buffer->iface == &buffer_iface ? &((struct memory *)buffer->context)->weights : NULL;
}

void sheaf__cpu_buffer_set_repacked(sheaf_backend_buffer_t buffer, bool some) {
    struct sheaf__cpu_memory *memory = buffer->buft->context;
    buffer->buft = some ? &memory->repacked : &memory->buft;
}

/* The same on memory of the caller's, which is not freed. */
static const struct sheaf_backend_buffer_i foreign_iface = {
    .get_base = sheaf__host_get_base,
    .memset_tensor = sheaf__host_memset_tensor,
    .set_tensor = sheaf__host_set_tensor,
    .get_tensor = sheaf__host_get_tensor,
    .clear = sheaf__host_clear,
};

enum sheaf_status sheaf__cpu_buffer_from_ptr(sheaf_backend_dev_t dev, void *ptr, size_t size,
                                             size_t max_tensor_size, sheaf_backend_buffer_t *out) {
    (void)max_tensor_size; /* of no consequence in one address space */
    *out = sheaf_backend_buffer_init(sheaf_backend_dev_buffer_type(dev), &foreign_iface, ptr, size);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    return ((struct sheaf__cpu_memory *)buft->context)->name;
}

static enum sheaf_status buft_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    const struct sheaf__cpu_memory *memory = buft->context;
    *out = NULL;
    struct memory *m = calloc(1, sizeof *m);
    if (!m) goto full;
    if (size >= MAP_FROM) {
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) goto full;
        m->data = p;
        m->mapped = size;
        sheaf__pages_large(p, size);
        sheaf__cpu_place_bind_memory(memory->device->place, memory->numa, p, size);
    } else {
        m->data = aligned_alloc(ALIGNMENT, sheaf__align_up(size > 0 ? size : 1, ALIGNMENT));
        if (!m->data) goto full;
    }
    *out = sheaf_backend_buffer_init(buft, &buffer_iface, m, size);
    if (*out) return SHEAF_STATUS_SUCCESS;
    release(m);
    return SHEAF_STATUS_ALLOC_FAILED;
full:
    free(m);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                           "%s: the system has no memory for a buffer of %zu bytes", memory->name,
                           size);
}

static size_t buft_alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return ALIGNMENT;
}

static bool buft_is_host(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return true;
}

const struct sheaf_backend_buffer_type_i sheaf__cpu_buft_iface = {
    .get_name = buft_name,
    .alloc_buffer = buft_alloc,
    .get_alignment = buft_alignment,
    .is_host = buft_is_host,
};
const struct sheaf_backend_buffer_type_i sheaf__cpu_repacked_iface = {
    .get_name = buft_name,
    .alloc_buffer = buft_alloc,
    .get_alignment = buft_alignment,
};
