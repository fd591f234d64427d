/* The device's memory: a buffer type that is not host memory, as on a GPU.
 *
 * A tensor's `data` is an address of the device, which no one may follow: the addresses of a buffer
 * are a range that is reserved and not accessible, so a program that takes them for host memory
 * dies on the spot. The bytes themselves lie elsewhere. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "example.h"

enum { ALIGNMENT = 64 };

struct memory {
    char *addresses; /* reserved range, `size` bytes at least */
    size_t reserved;
    char *bytes;
};

char *example_memory(const struct sheaf_tensor *tensor) {
    const struct sheaf_tensor *owner = tensor->view_src ? tensor->view_src : tensor;
    const struct memory *m = owner->buffer->context;
    return m->bytes + ((char *)tensor->data - m->addresses);
}

static void memory_free(struct memory *m) {
    if (!m) return;
    if (m->addresses) munmap(m->addresses, m->reserved);
    free(m->bytes);
    free(m);
}

/* ---- buffer. Offsets and sizes were checked by sheaf. ---- */

static void buffer_free(sheaf_backend_buffer_t buffer) { memory_free(buffer->context); }

static void *buffer_base(sheaf_backend_buffer_t buffer) {
    return ((struct memory *)buffer->context)->addresses;
}

static enum sheaf_status buffer_memset(sheaf_backend_buffer_t buffer, struct sheaf_tensor *tensor,
                                       uint8_t value, size_t offset, size_t size) {
    (void)buffer;
    memset(example_memory(tensor) + offset, value, size);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status buffer_set(sheaf_backend_buffer_t buffer, struct sheaf_tensor *tensor,
                                    const void *data, size_t offset, size_t size) {
    (void)buffer;
    memcpy(example_memory(tensor) + offset, data, size);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status buffer_get(sheaf_backend_buffer_t buffer,
                                    const struct sheaf_tensor *tensor, void *data, size_t offset,
                                    size_t size) {
    (void)buffer;
    memcpy(data, example_memory(tensor) + offset, size);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status buffer_clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    memset(((struct memory *)buffer->context)->bytes, value, buffer->size);
    return SHEAF_STATUS_SUCCESS;
}

static const struct sheaf_backend_buffer_i buffer_i = {
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .memset_tensor = buffer_memset,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .clear = buffer_clear,
};

/* ---- buffer type ---- */

static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return "Example";
}

static enum sheaf_status buft_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    struct memory *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) goto fail;
    m->reserved = size ? size : 1;
    m->bytes = malloc(m->reserved);
    void *range =
        mmap(NULL, m->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range != MAP_FAILED) m->addresses = range;
    if (!m->bytes || !m->addresses) goto fail;
    *out = sheaf_backend_buffer_init(buft, &buffer_i, m, size);
    if (*out) return SHEAF_STATUS_SUCCESS;
fail:
    memory_free(m);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "Example0: no memory for %zu bytes", size);
}

static size_t buft_alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return ALIGNMENT;
}

static const struct sheaf_backend_buffer_type_i buft_i = {
    .get_name = buft_name,
    .alloc_buffer = buft_alloc,
    .get_alignment = buft_alignment,
};

struct sheaf_backend_buffer_type example_buft = {&buft_i, &example_device, NULL};
