/* A device that gives no pinned memory, or no more of it, is no failure: its copies are slower. */
#include "model/run/host_memory.h"

#include <stdlib.h>

enum sheaf_status sheaf__host_memory_new(sheaf_backend_dev_t dev, size_t size,
                                         struct sheaf__host_memory *memory) {
    sheaf_backend_buffer_type_t host = dev ? sheaf_backend_dev_host_buffer_type(dev) : NULL;
    *memory = (struct sheaf__host_memory){0};
    if (host && !sheaf_backend_buft_alloc_buffer(host, size, &memory->pinned)) {
        memory->data = sheaf_backend_buffer_get_base(memory->pinned);
        return SHEAF_STATUS_SUCCESS;
    }
    memory->pinned = NULL;
    memory->data = malloc(size);
    return memory->data ? SHEAF_STATUS_SUCCESS
                        : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                                          "no memory for %zu bytes of results", size);
}

void sheaf__host_memory_free(struct sheaf__host_memory *memory) {
    if (!memory->pinned) free(memory->data);
    sheaf_backend_buffer_free(memory->pinned);
    *memory = (struct sheaf__host_memory){0};
}
