/* Memory of the far device.
 *
 * The addresses of a buffer are reserved and inaccessible, so that code that takes a tensor's data
 * for host memory crashes at once. The bytes lie in a buffer of the CPU device. The host buffer
 * type is ordinary memory that is remembered, so that transfers can be told apart. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/host_memory.h"
#include "far.h"
#include "sheaf/cpu.h"

enum { ALIGNMENT = 256 }; /* as cudaMalloc's, and other than the CPU's */

struct memory {
    struct memory *next; /* of all that live */
    char *addresses;
    size_t reserved;
    sheaf_backend_buffer_t store;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;

static char *bytes_of(const struct memory *m) { return sheaf_backend_buffer_get_base(m->store); }

static sheaf_backend_buffer_t buffer_of(const struct sheaf_tensor *t) {
    return t->view_src ? t->view_src->buffer : t->buffer;
}

bool far_map(const struct sheaf_tensor *tensor, const struct far_device *device,
             struct sheaf_tensor *out) {
    const sheaf_backend_buffer_t buffer = buffer_of(tensor);
    *out = *tensor;
    out->op = SHEAF_OP_NONE;
    out->view_src = NULL;
    memset(out->src, 0, sizeof out->src);
    if (sheaf_is_empty(tensor)) {
        out->data = NULL;
        return true;
    }
    if (!buffer || buffer->buft != &device->buft) {
        sheaf_set_error(SHEAF_STATUS_INVALID, "%s: '%s' lies in %s", device->name, tensor->name,
                        buffer ? sheaf_backend_buffer_name(buffer) : "no buffer");
        return false;
    }
    const struct memory *m = buffer->context;
    const size_t at = (size_t)((char *)tensor->data - m->addresses);
    if ((char *)tensor->data < m->addresses || at + sheaf_nbytes(tensor) > buffer->size) {
        sheaf_set_error(SHEAF_STATUS_INVALID, "%s: '%s' is outside its buffer", device->name,
                        tensor->name);
        return false;
    }
    out->data = bytes_of(m) + at;
    out->buffer = m->store;
    return true;
}

/* ---- buffers ---- */

char *far_reach(const struct far_device *device, const void *address) {
    char *found = NULL;
    (void)device;
    pthread_mutex_lock(&lock);
    for (const struct memory *m = memories; m && !found; m = m->next) {
        if ((const char *)address >= m->addresses &&
            (const char *)address < m->addresses + m->reserved)
            found = bytes_of(m) + ((const char *)address - m->addresses);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void memory_free(struct memory *m) {
    if (!m) return;
    pthread_mutex_lock(&lock);
    for (struct memory **p = &memories; *p; p = &(*p)->next) {
        if (*p != m) continue;
        *p = m->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    if (m->addresses) munmap(m->addresses, m->reserved);
    sheaf_backend_buffer_free(m->store);
    free(m);
}

static char *address(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *t, size_t offset) {
    const struct memory *m = buffer->context;
    return bytes_of(m) + ((char *)t->data - m->addresses) + offset;
}

static void buffer_free(sheaf_backend_buffer_t buffer) { memory_free(buffer->context); }
static void *buffer_base(sheaf_backend_buffer_t buffer) {
    return ((struct memory *)buffer->context)->addresses;
}
static enum sheaf_status buffer_memset(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                       uint8_t value, size_t offset, size_t size) {
    memset(address(buffer, t, offset), value, size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status buffer_set(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                    const void *data, size_t offset, size_t size) {
    far_count_transfer(data);
    memcpy(address(buffer, t, offset), data, size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status buffer_get(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *t,
                                    void *data, size_t offset, size_t size) {
    far_count_transfer(data);
    memcpy(data, address(buffer, t, offset), size);
    return SHEAF_STATUS_SUCCESS;
}
static bool buffer_copy(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *src,
                        struct sheaf_tensor *dst) {
    const sheaf_backend_buffer_t from = buffer_of(src);
    if (from->buft->iface != buffer->buft->iface || !sheaf_is_contiguous(src) ||
        !sheaf_is_contiguous(dst))
        return false;
    memmove(address(buffer, dst, 0), address(from, src, 0), sheaf_nbytes(src));
    return true;
}
static enum sheaf_status buffer_clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    memset(bytes_of(buffer->context), value, buffer->size);
    return SHEAF_STATUS_SUCCESS;
}
static const struct sheaf_backend_buffer_i buffer_i = {
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .memset_tensor = buffer_memset,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .cpy_tensor = buffer_copy,
    .clear = buffer_clear,
};

static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    return ((struct far_device *)buft->context)->name;
}
static enum sheaf_status buft_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    struct memory *m = calloc(1, sizeof *m);
    enum sheaf_status st = SHEAF_STATUS_ALLOC_FAILED;
    *out = NULL;
    if (!m) return sheaf_set_error(st, "far: out of memory");
    m->reserved = size ? size : 1;
    st = sheaf_backend_buft_alloc_buffer(sheaf_backend_cpu_buffer_type(), m->reserved, &m->store);
    void *range =
        mmap(NULL, m->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range != MAP_FAILED) m->addresses = range;
    if (!st && m->addresses) {
        memset(bytes_of(m), 0xA5, m->reserved); /* a reader before the first write shall notice */
        *out = sheaf_backend_buffer_init(buft, &buffer_i, m, size);
    }
    if (*out) {
        pthread_mutex_lock(&lock);
        m->next = memories;
        memories = m;
        pthread_mutex_unlock(&lock);
        return SHEAF_STATUS_SUCCESS;
    }
    memory_free(m);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "far: no memory for %zu bytes", size);
}
static size_t buft_alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return ALIGNMENT;
}
const struct sheaf_backend_buffer_type_i far_buft_i = {
    .get_name = buft_name, .alloc_buffer = buft_alloc, .get_alignment = buft_alignment};

/* ---- host buffers ---- */

_Atomic long far_counts[FAR_EVENT_COUNT];

struct block {
    struct block *next;
    char *data;
    size_t size;
};
static struct block *blocks; /* under the same lock */

void far_count_transfer(const void *host) {
    bool pinned = false;
    pthread_mutex_lock(&lock);
    for (const struct block *b = blocks; b && !pinned; b = b->next)
        pinned = (const char *)host >= b->data && (const char *)host < b->data + b->size;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&far_counts[pinned ? FAR_PINNED : FAR_PAGEABLE], 1);
}

static void host_free(sheaf_backend_buffer_t buffer) {
    struct block *mine = buffer->context;
    pthread_mutex_lock(&lock);
    for (struct block **p = &blocks; *p; p = &(*p)->next) {
        if (*p != mine) continue;
        *p = mine->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    free(mine->data);
    free(mine);
}
static void *host_base(sheaf_backend_buffer_t buffer) {
    return ((struct block *)buffer->context)->data;
}
static enum sheaf_status host_clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    memset(host_base(buffer), value, buffer->size);
    return SHEAF_STATUS_SUCCESS;
}
static const struct sheaf_backend_buffer_i host_i = {
    .free_buffer = host_free,
    .get_base = host_base,
    .memset_tensor = sheaf__host_memset_tensor,
    .set_tensor = sheaf__host_set_tensor,
    .get_tensor = sheaf__host_get_tensor,
    .clear = host_clear,
};

static const char *host_name(sheaf_backend_buffer_type_t buft) {
    return ((struct far_device *)buft->context)->host_name;
}
static enum sheaf_status host_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    struct block *b = calloc(1, sizeof *b);
    *out = NULL;
    if (b) b->data = aligned_alloc(ALIGNMENT, (size / ALIGNMENT + 1) * ALIGNMENT);
    if (b && b->data) *out = sheaf_backend_buffer_init(buft, &host_i, b, size);
    if (!*out) {
        if (b) free(b->data);
        free(b);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "far: no host memory");
    }
    b->size = size;
    pthread_mutex_lock(&lock);
    b->next = blocks;
    blocks = b;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&far_counts[FAR_HOST_BUFFERS], 1);
    return SHEAF_STATUS_SUCCESS;
}
static bool host_is_host(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return true;
}
const struct sheaf_backend_buffer_type_i far_host_buft_i = {.get_name = host_name,
                                                            .alloc_buffer = host_alloc,
                                                            .get_alignment = buft_alignment,
                                                            .is_host = host_is_host};
