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
#include "cpu/device/device.h"

enum { ALIGNMENT = 64 };
static const size_t MAP_FROM = (size_t)1 << 20;
/* With 2 MiB pages a first touch costs a twentieth of what small pages do. */
static const size_t HUGE_FROM = (size_t)8 << 20;

struct memory {
    char *data;
    size_t mapped; /* bytes to unmap; 0: heap */
    bool cleared;  /* once */
};

static void release(struct memory *m) {
    if (m->mapped) {
        munmap(m->data, m->mapped);
    } else {
        free(m->data);
    }
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
    if (!first || madvise(m->data, m->mapped, MADV_DONTNEED)) memset(m->data, value, buffer->size);
    return SHEAF_STATUS_SUCCESS;
}

static const struct sheaf_backend_buffer_i buffer_iface = {
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .memset_tensor = sheaf__host_memset_tensor,
    .set_tensor = sheaf__host_set_tensor,
    .get_tensor = sheaf__host_get_tensor,
    .clear = buffer_clear,
};

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
        if (size >= HUGE_FROM) madvise(p, size, MADV_HUGEPAGE); /* advice: may be refused */
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
