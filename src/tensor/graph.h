/* The fields of a graph, for the folders that walk it, and what graphs are made of and told by. */
#ifndef SHEAF_TENSOR_GRAPH_H
#define SHEAF_TENSOR_GRAPH_H

#include "sheaf/graph.h"

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
    /* A promise of the folder that owns the graph and all its tensors: while uid and version are
     * the same, so are nodes, shapes, parameters and addresses. Never given twice; 0: no
     * promise. */
    uint64_t version;
    bool overflowed; /* a node did not fit: the graph is not whole until it is cleared */
};

/* INVALID (text set) if the graph lacks a tensor that did not fit: computing what it has would pass
 * for the whole. */
enum sheaf_status sheaf__graph_check_whole(const struct sheaf_cgraph *graph);

/* A number for a new or changed graph. */
uint64_t sheaf__graph_next_uid(void);

/* A graph that lists the same tensors in arrays of its own, one allocation: what plans hold. NULL
 * (text set) if out of memory; freed with free(). */
struct sheaf_cgraph *sheaf__graph_shallow_copy(const struct sheaf_cgraph *graph);

#endif
