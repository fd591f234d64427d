/* What the folders of sheaf share beyond the public headers: the graph's fields and small checked
 * helpers. */
#ifndef SHEAF_TENSOR_INTERNAL_H
#define SHEAF_TENSOR_INTERNAL_H

#include <string.h>

#include "base/arith.h"
#include "base/clock.h"
#include "sheaf/graph.h"
#include "tensor/op_info.h"

struct sheaf__graph_frame { /* of the walk over operands */
    struct sheaf_tensor *tensor;
    int next; /* operand to visit next */
};

struct sheaf_cgraph {
    int size; /* capacity of nodes and of leafs */
    int n_nodes, n_leafs;
    struct sheaf_tensor **nodes;
    struct sheaf_tensor **leafs;
    const struct sheaf_tensor **visited; /* open-addressed set, NULL in graph views */
    size_t n_visited;                    /* slots, a power of two */
    struct sheaf__graph_frame *stack;    /* [2 * size], NULL in graph views */
    uint64_t uid;
    bool overflowed; /* a node did not fit: the graph is not whole until it is cleared */
};

/* op_params accessors */
static inline float sheaf__param_f32(const struct sheaf_tensor *t, int i) {
    float f;
    memcpy(&f, &t->op_params[i], sizeof f);
    return f;
}
static inline void sheaf__set_param_f32(struct sheaf_tensor *t, int i, float f) {
    memcpy(&t->op_params[i], &f, sizeof f);
}

/* Is there a byte of memory that both have? Tensors without data have none. */
static inline bool sheaf__overlaps(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    const uintptr_t p = (uintptr_t)a->data, q = (uintptr_t)b->data;
    return p && q && p < q + sheaf_nbytes(b) && q < p + sheaf_nbytes(a);
}

/* Frees a buffer's memory and keeps the object, so that tensors which lay there can be told from
 * all others until sheaf_backend_buffer_free. */
struct sheaf_backend_buffer;
void sheaf__buffer_release(struct sheaf_backend_buffer *buffer);

/* Is it a buffer of this graph allocator, in use or outgrown? */
struct sheaf_gallocr;
bool sheaf__gallocr_owns(const struct sheaf_gallocr *galloc, const struct sheaf_backend_buffer *b);

/* Does the graph fit the allocator's buffers as they are? */
struct sheaf_cgraph;
enum sheaf_status sheaf__gallocr_fits(struct sheaf_gallocr *galloc,
                                      const struct sheaf_cgraph *graph, const int *node_buffer_ids,
                                      const int *leaf_buffer_ids, bool *fits);

/* A number for a new or changed graph. */
uint64_t sheaf__graph_next_uid(void);

/* The buffer of an allocated tensor, after checking [offset, offset + n_copies strides) against its
 * bytes. `what` begins the error text. */
enum sheaf_status sheaf__tensor_locate(const struct sheaf_tensor *tensor, const char *what,
                                       size_t offset, size_t size, size_t n_copies, size_t stride,
                                       struct sheaf_backend_buffer **out);

/* A graph that lists the same tensors in arrays of its own, one allocation: what plans hold. NULL
 * (text set) if out of memory; freed with free(). */
struct sheaf_cgraph *sheaf__graph_shallow_copy(const struct sheaf_cgraph *graph);

/* Where this process stands among the ranks of its host; set by the world before devices are
 * listed, read by the CPU backend to share cores. 0 of 1 by default. */
void sheaf__set_locality(int local_rank, int local_size);
void sheaf__get_locality(int *local_rank, int *local_size);

#endif
