/* Allocators: a bump allocator inside one buffer, a graph allocator that reuses memory by liveness,
 * and helpers that allocate all tensors of a context. Threads: one at a time per allocator. */
#ifndef SHEAF_ALLOC_H
#define SHEAF_ALLOC_H

#include "sheaf/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bump allocator over a buffer, from its beginning on. Plain struct, no clean-up needed. */
struct sheaf_tallocr {
    sheaf_backend_buffer_t buffer;
    void *base;
    size_t alignment;
    size_t offset;
};
void sheaf_tallocr_init(struct sheaf_tallocr *talloc, sheaf_backend_buffer_t buffer);
enum sheaf_status sheaf_tallocr_alloc(struct sheaf_tallocr *talloc, struct sheaf_tensor *tensor);

/* Graph allocator.
 *   sheaf_gallocr_t g = sheaf_gallocr_new(buft);
 *   sheaf_gallocr_reserve(g, worst_case_graph);   optional: no allocation later
 *   sheaf_gallocr_alloc_graph(g, graph);          places every node and unallocated leaf
 * Inputs are placed in memory that nothing else uses before their last use; outputs are never
 * overwritten. Ops that allow it run in place on an operand that has no other use. */
typedef struct sheaf_gallocr *sheaf_gallocr_t;
sheaf_gallocr_t sheaf_gallocr_new(sheaf_backend_buffer_type_t buft);
void sheaf_gallocr_free(sheaf_gallocr_t galloc); /* accepts NULL; frees the buffers */
enum sheaf_status sheaf_gallocr_reserve(sheaf_gallocr_t galloc, struct sheaf_cgraph *graph);
enum sheaf_status sheaf_gallocr_alloc_graph(sheaf_gallocr_t galloc, struct sheaf_cgraph *graph);
size_t sheaf_gallocr_get_buffer_size(sheaf_gallocr_t galloc); /* of all buffers together */

/* The same over several buffer types: a buffer each (types given twice share one). The id of node i
 * is node_buffer_ids[i], of leaf i leaf_buffer_ids[i], an index into bufts; NULL: all 0. INVALID if
 * an id is outside. Views lie where their owners do, whatever their ids. */
sheaf_gallocr_t sheaf_gallocr_new_n(const sheaf_backend_buffer_type_t *bufts, int n_bufts);
enum sheaf_status sheaf_gallocr_reserve_n(sheaf_gallocr_t galloc, struct sheaf_cgraph *graph,
                                          const int *node_buffer_ids, const int *leaf_buffer_ids);
enum sheaf_status sheaf_gallocr_alloc_graph_n(sheaf_gallocr_t galloc, struct sheaf_cgraph *graph,
                                              const int *node_buffer_ids,
                                              const int *leaf_buffer_ids);
size_t sheaf_gallocr_get_buffer_size_n(sheaf_gallocr_t galloc, int buffer_id);

/* One buffer for all tensors of ctx that have no memory and are not views; views are initialised.
 * *out owned by the caller; NULL with success if there was nothing to do. */
enum sheaf_status sheaf_backend_alloc_ctx_tensors_from_buft(struct sheaf_context *ctx,
                                                            sheaf_backend_buffer_type_t buft,
                                                            sheaf_backend_buffer_t *out);
enum sheaf_status sheaf_backend_alloc_ctx_tensors(struct sheaf_context *ctx,
                                                  sheaf_backend_t backend,
                                                  sheaf_backend_buffer_t *out);

#ifdef __cplusplus
}
#endif
#endif
