/* Host memory that a device copies from and to by itself (pinned), or malloc's where it has
 * none. */
#ifndef SHEAF_MODEL_HOST_MEMORY_H
#define SHEAF_MODEL_HOST_MEMORY_H

#include "sheaf/backend.h"

struct sheaf__host_memory {
    void *data;                    /* NULL: none */
    sheaf_backend_buffer_t pinned; /* NULL: `data` is malloc's */
};

/* *memory is overwritten. dev may be NULL. */
enum sheaf_status sheaf__host_memory_new(sheaf_backend_dev_t dev, size_t size,
                                         struct sheaf__host_memory *memory);
/* Leaves it without memory; it may be so before. */
void sheaf__host_memory_free(struct sheaf__host_memory *memory);

#endif
