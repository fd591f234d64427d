/* What the scheduler and the meta device ask a graph allocator beyond sheaf/alloc.h. */
#ifndef SHEAF_ALLOC_GALLOCR_H
#define SHEAF_ALLOC_GALLOCR_H

#include "sheaf/alloc.h"

/* Is it a buffer of this graph allocator, in use or outgrown? */
bool sheaf__gallocr_owns(const struct sheaf_gallocr *galloc, const struct sheaf_backend_buffer *b);

/* Does the graph fit the allocator's buffers as they are? */
enum sheaf_status sheaf__gallocr_fits(struct sheaf_gallocr *galloc,
                                      const struct sheaf_cgraph *graph, const int *node_buffer_ids,
                                      const int *leaf_buffer_ids, bool *fits);

/* Bytes of the buffer in which the graph would be placed, the first buffer type's; nothing is
 * allocated in it. */
enum sheaf_status sheaf__gallocr_measure(struct sheaf_gallocr *galloc,
                                         const struct sheaf_cgraph *graph, size_t *bytes);

/* The same of the graph that was placed last. */
size_t sheaf__gallocr_needed(const struct sheaf_gallocr *galloc);

/* Frees the memory of the buffers. Tensors that were placed there have none until their graph is
 * placed again. */
void sheaf__gallocr_give_back(struct sheaf_gallocr *galloc);

#endif
