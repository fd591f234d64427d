/* Memory of the devices, and pinned host memory that transfers do best with.
 *
 * The library has checked sizes, offsets and layouts. A synchronous call runs in the calling thread's own stream
 * and is waited for: backends have streams that do not wait for others. */
#include <stdlib.h>

#include "backend/host_memory.h"
#include "cuda/device.h"

/* Behind the last tensor: kernels read rows in whole pieces of 16 bytes (mul_vec.cu). */
enum { ALIGNMENT = 256, ROOM_BEHIND = 256 };

static struct sheaf__cuda_device *device_of(sheaf_backend_buffer_t buffer) {
    return (struct sheaf__cuda_device *)buffer->buft->context;
}

struct sheaf__cuda_device *sheaf__cuda_device_of_buft(sheaf_backend_buffer_type_t buft) {
    return buft && buft->iface == &sheaf__cuda_buft_i ? (struct sheaf__cuda_device *)buft->context
                                                      : NULL;
}

struct sheaf__cuda_device *sheaf__cuda_device_of_tensor(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *owner = sheaf__memory_owner(t);
    return owner->buffer ? sheaf__cuda_device_of_buft(owner->buffer->buft) : NULL;
}

/* What a call left in this thread's stream is done, or the call's error. */
static enum sheaf_status finish(const struct sheaf__cuda_device *d, cudaError_t e, const char *what,
                                const char *name, size_t size) {
    if (!e) e = cudaStreamSynchronize(cudaStreamPerThread);
    return e ? sheaf__cuda_error(d->name, e, "%s '%s' (%zu bytes)", what, name, size)
             : SHEAF_STATUS_SUCCESS;
}

/* ---- buffers on a device ---- */

static void buffer_free(sheaf_backend_buffer_t buffer) {
    cudaSetDevice(device_of(buffer)->ordinal);
    cudaFree(buffer->context);
}

static void *buffer_base(sheaf_backend_buffer_t buffer) { return buffer->context; }

static enum sheaf_status buffer_memset(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                       uint8_t value, size_t offset, size_t size) {
    const struct sheaf__cuda_device *d = device_of(buffer);
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (!e) e = cudaMemsetAsync((char *)t->data + offset, value, size, cudaStreamPerThread);
    return finish(d, e, "filling", t->name, size);
}

static enum sheaf_status buffer_set(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                    const void *data, size_t offset, size_t size) {
    const struct sheaf__cuda_device *d = device_of(buffer);
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (!e)
        e = cudaMemcpyAsync((char *)t->data + offset, data, size, cudaMemcpyHostToDevice,
                            cudaStreamPerThread);
    return finish(d, e, "writing", t->name, size);
}

static enum sheaf_status buffer_get(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *t,
                                    void *data, size_t offset, size_t size) {
    const struct sheaf__cuda_device *d = device_of(buffer);
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (!e)
        e = cudaMemcpyAsync(data, (const char *)t->data + offset, size, cudaMemcpyDeviceToHost,
                            cudaStreamPerThread);
    return finish(d, e, "reading", t->name, size);
}

/* Pieces `size` bytes wide. The runtime wants strides from the width to 2^31 - 1; others go piece by piece: shorter
 * ones, which read or write one place again and again, and those of a matrix of 2 GiB, also of one piece. */
static enum sheaf_status move_2d(sheaf_backend_buffer_t buffer, const char *name, char *to,
                                 size_t step_to, const char *from, size_t step_from, size_t size,
                                 size_t n, cudaMemcpyKind kind) {
    const struct sheaf__cuda_device *d = device_of(buffer);
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (step_to >= size && step_from >= size && step_to <= INT32_MAX && step_from <= INT32_MAX) {
        if (!e)
            e = cudaMemcpy2DAsync(to, step_to, from, step_from, size, n, kind, cudaStreamPerThread);
    } else {
        for (size_t i = 0; i < n && !e; i++)
            e = cudaMemcpyAsync(to + i * step_to, from + i * step_from, size, kind,
                                cudaStreamPerThread);
    }
    return finish(d, e, kind == cudaMemcpyHostToDevice ? "writing" : "reading", name, size * n);
}

static enum sheaf_status buffer_set_2d(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                       const void *data, size_t offset, size_t size,
                                       size_t n_copies, size_t stride_tensor, size_t stride_data) {
    return move_2d(buffer, t->name, (char *)t->data + offset, stride_tensor, (const char *)data,
                   stride_data, size, n_copies, cudaMemcpyHostToDevice);
}

static enum sheaf_status buffer_get_2d(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *t,
                                       void *data, size_t offset, size_t size, size_t n_copies,
                                       size_t stride_tensor, size_t stride_data) {
    return move_2d(buffer, t->name, (char *)data, stride_data, (const char *)t->data + offset,
                   stride_tensor, size, n_copies, cudaMemcpyDeviceToHost);
}

/* Between devices, also such that cannot see each other: the driver goes over the host then. */
static bool buffer_copy(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *src,
                        struct sheaf_tensor *dst) {
    const struct sheaf__cuda_device *to = device_of(buffer);
    const struct sheaf__cuda_device *from = sheaf__cuda_device_of_tensor(src);
    if (!from) return false;
    const size_t size = sheaf_nbytes(src);
    cudaError_t e = cudaSetDevice(to->ordinal);
    if (!e)
        e = from->ordinal == to->ordinal
                ? cudaMemcpyAsync(dst->data, src->data, size, cudaMemcpyDeviceToDevice,
                                  cudaStreamPerThread)
                : cudaMemcpyPeerAsync(dst->data, to->ordinal, src->data, from->ordinal, size,
                                      cudaStreamPerThread);
    return finish(to, e, "copying", src->name, size) == SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status buffer_clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    const struct sheaf__cuda_device *d = device_of(buffer);
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (!e) e = cudaMemsetAsync(buffer->context, value, buffer->size, cudaStreamPerThread);
    return finish(d, e, "clearing", "a buffer", buffer->size);
}

static struct sheaf_backend_buffer_i device_buffer_i() {
    struct sheaf_backend_buffer_i i;
    memset(&i, 0, sizeof i);
    i.free_buffer = buffer_free;
    i.get_base = buffer_base;
    i.memset_tensor = buffer_memset;
    i.set_tensor = buffer_set;
    i.get_tensor = buffer_get;
    i.set_tensor_2d = buffer_set_2d;
    i.get_tensor_2d = buffer_get_2d;
    i.cpy_tensor = buffer_copy;
    i.clear = buffer_clear;
    return i;
}
static const struct sheaf_backend_buffer_i buffer_i = device_buffer_i();

static enum sheaf_status buft_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    struct sheaf__cuda_device *d = (struct sheaf__cuda_device *)buft->context;
    void *p = NULL;
    size_t bytes;
    *out = NULL;
    if (!sheaf__add_size(size, ROOM_BEHIND, &bytes))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: a buffer of %zu bytes", d->name,
                               size);
    cudaError_t e = sheaf__cuda_use(d);
    if (!e) e = cudaMalloc(&p, bytes);
    if (e) {
        size_t available = 0, total = 0;
        sheaf_backend_dev_memory(&d->base, &available, &total);
        return sheaf__cuda_error(d->name, e, "a buffer of %zu bytes (%zu MiB of %zu MiB are free)",
                                 size, available >> 20, total >> 20);
    }
    *out = sheaf_backend_buffer_init(buft, &buffer_i, p, size);
    if (*out) return SHEAF_STATUS_SUCCESS;
    cudaFree(p);
    return SHEAF_STATUS_ALLOC_FAILED;
}

static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    return ((struct sheaf__cuda_device *)buft->context)->buft_name;
}
static size_t buft_alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return ALIGNMENT;
}

static struct sheaf_backend_buffer_type_i device_buft_i() {
    struct sheaf_backend_buffer_type_i i;
    memset(&i, 0, sizeof i);
    i.get_name = buft_name;
    i.alloc_buffer = buft_alloc;
    i.get_alignment = buft_alignment;
    return i;
}
const struct sheaf_backend_buffer_type_i sheaf__cuda_buft_i = device_buft_i();

/* ---- pinned host memory ---- */

static void host_free(sheaf_backend_buffer_t buffer) { cudaFreeHost(buffer->context); }

static struct sheaf_backend_buffer_i pinned_buffer_i() {
    struct sheaf_backend_buffer_i i;
    memset(&i, 0, sizeof i);
    i.free_buffer = host_free;
    i.get_base = buffer_base;
    i.memset_tensor = sheaf__host_memset_tensor;
    i.set_tensor = sheaf__host_set_tensor;
    i.get_tensor = sheaf__host_get_tensor;
    i.clear = sheaf__host_clear;
    return i;
}
static const struct sheaf_backend_buffer_i host_buffer_i = pinned_buffer_i();

static enum sheaf_status host_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    struct sheaf__cuda_device *d = (struct sheaf__cuda_device *)buft->context;
    void *p = NULL;
    *out = NULL;
    cudaError_t e = sheaf__cuda_use(d);
    if (!e) e = cudaHostAlloc(&p, size ? size : 1, cudaHostAllocPortable);
    if (e) return sheaf__cuda_error(d->name, e, "%zu bytes of pinned host memory", size);
    *out = sheaf_backend_buffer_init(buft, &host_buffer_i, p, size);
    if (*out) return SHEAF_STATUS_SUCCESS;
    cudaFreeHost(p);
    return SHEAF_STATUS_ALLOC_FAILED;
}

static const char *host_name(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return "CUDA_Host";
}
static size_t host_alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return 64;
}
static bool host_is_host(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return true;
}

static struct sheaf_backend_buffer_type_i pinned_buft_i() {
    struct sheaf_backend_buffer_type_i i;
    memset(&i, 0, sizeof i);
    i.get_name = host_name;
    i.alloc_buffer = host_alloc;
    i.get_alignment = host_alignment;
    i.is_host = host_is_host;
    return i;
}
const struct sheaf_backend_buffer_type_i sheaf__cuda_host_buft_i = pinned_buft_i();
