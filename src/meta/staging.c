/* Owns a block of host memory: pinned if the device offers such a buffer type, since a transfer to
 * other memory waits for a copy inside the driver, else ordinary. */
#include "meta/staging.h"

#include <stdlib.h>

#include "sheaf/backend-impl.h"

enum { STAGE_STEP = 64 * 1024 };

void sheaf__meta_staging_free(struct meta_staging *s) {
    if (s->buffer) {
        sheaf_backend_buffer_free(s->buffer);
    } else {
        free(s->data);
    }
    s->buffer = NULL;
    s->data = NULL;
    s->size = 0;
}

enum sheaf_status sheaf__meta_stage(struct meta_staging *s, size_t want, void **out) {
    *out = s->data;
    if (s->data && want <= s->size) return SHEAF_STATUS_SUCCESS;
    sheaf__meta_staging_free(s);
    if (want > SIZE_MAX - STAGE_STEP) goto full;
    const size_t size = (want / STAGE_STEP + 1) * STAGE_STEP;
    sheaf_backend_buffer_type_t buft =
        s->device ? sheaf_backend_dev_host_buffer_type(s->device) : NULL;
    if (buft && sheaf_backend_buft_is_host(buft) &&
        sheaf_backend_buft_alloc_buffer(buft, size, &s->buffer) == SHEAF_STATUS_SUCCESS)
        s->data = sheaf_backend_buffer_get_base(s->buffer);
    if (!s->data) { /* pinned memory is limited: slower is better than not at all */
        sheaf_backend_buffer_free(s->buffer);
        s->buffer = NULL;
        s->data = malloc(size);
    }
    if (!s->data) goto full;
    s->size = size;
    *out = s->data;
    return SHEAF_STATUS_SUCCESS;
full:
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta: no staging memory of %zu bytes", want);
}
