/* What allocators and transfers need of buffers beyond sheaf/backend.h. */
#ifndef SHEAF_BACKEND_BUFFER_H
#define SHEAF_BACKEND_BUFFER_H

#include "sheaf/backend.h"

/* Frees a buffer's memory and keeps the object, so that tensors which lay there can be told from
 * all others until sheaf_backend_buffer_free. */
void sheaf__buffer_release(struct sheaf_backend_buffer *buffer);

/* The buffer of an allocated tensor, after checking [offset, offset + n_copies strides) against its
 * bytes. `what` begins the error text. */
enum sheaf_status sheaf__tensor_locate(const struct sheaf_tensor *tensor, const char *what,
                                       size_t offset, size_t size, size_t n_copies, size_t stride,
                                       struct sheaf_backend_buffer **out);

/* The buffers of two allocated tensors, of which one is to be copied to the other, after checking
 * that their layouts are alike. */
enum sheaf_status sheaf__copy_locate(const struct sheaf_tensor *src, const struct sheaf_tensor *dst,
                                     struct sheaf_backend_buffer **from,
                                     struct sheaf_backend_buffer **to);

#endif
