/* The arena of a context, for the rest of src/tensor. */
#ifndef SHEAF_TENSOR_CONTEXT_H
#define SHEAF_TENSOR_CONTEXT_H

#include <assert.h>

#include "sheaf/tensor.h"

/* A zeroed descriptor; NULL and an error text if the arena is full. */
struct sheaf_tensor *sheaf__new_tensor_raw(struct sheaf_context *ctx);
/* Raw arena bytes, 16-byte aligned, not zeroed. */
void *sheaf__context_alloc(struct sheaf_context *ctx, size_t size);
/* Arena bytes that an object of `size` bytes takes. */
size_t sheaf__object_overhead(size_t size);

#endif
