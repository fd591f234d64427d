/* Host memory through which values of devices that are not host memory pass. */
#ifndef SHEAF_META_STAGING_H
#define SHEAF_META_STAGING_H

#include "sheaf/backend.h"

struct meta_staging {
    sheaf_backend_dev_t device;    /* whose values; set by the owner before first use */
    sheaf_backend_buffer_t buffer; /* of the device's host buffer type, where it has one */
    void *data;
    size_t size;
};

/* At least `want` bytes that stay until the next call. Grows, never shrinks. Data there are
 * lost, so nothing that was submitted may still use it. */
enum sheaf_status sheaf__meta_stage(struct meta_staging *s, size_t want, void **out);
void sheaf__meta_staging_free(struct meta_staging *s); /* safe on zeroes, and twice */

#endif
