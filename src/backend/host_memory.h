/* Data of tensors in memory that the host addresses, as struct sheaf_backend_buffer_i moves them: for
 * devices whose buffers are such memory. The range was checked before (backend/buffer.c). */
#ifndef SHEAF_BACKEND_HOST_MEMORY_H
#define SHEAF_BACKEND_HOST_MEMORY_H

#include <string.h>

#include "sheaf/backend-impl.h"

static inline enum sheaf_status sheaf__host_memset_tensor(sheaf_backend_buffer_t buffer,
                                                          struct sheaf_tensor *t, uint8_t value,
                                                          size_t offset, size_t size) {
    (void)buffer;
    memset((char *)t->data + offset, value, size);
    return SHEAF_STATUS_SUCCESS;
}

static inline enum sheaf_status sheaf__host_set_tensor(sheaf_backend_buffer_t buffer,
                                                       struct sheaf_tensor *t, const void *data,
                                                       size_t offset, size_t size) {
    (void)buffer;
    memcpy((char *)t->data + offset, data, size);
    return SHEAF_STATUS_SUCCESS;
}

static inline enum sheaf_status sheaf__host_get_tensor(sheaf_backend_buffer_t buffer,
                                                       const struct sheaf_tensor *t, void *data,
                                                       size_t offset, size_t size) {
    (void)buffer;
    memcpy(data, (const char *)t->data + offset, size);
    return SHEAF_STATUS_SUCCESS;
}

/* These two for buffers whose context is their memory. */
static inline void *sheaf__host_get_base(sheaf_backend_buffer_t buffer) { return buffer->context; }

static inline enum sheaf_status sheaf__host_clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    if (buffer->size) memset(buffer->context, value, buffer->size);
    return SHEAF_STATUS_SUCCESS;
}

#endif
