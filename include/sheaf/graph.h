/* Compute graphs: nodes in an order in which they can run, and the leaves that they read.
 * Ownership: a graph lives in its context. One thread at a time builds it. */
#ifndef SHEAF_GRAPH_H
#define SHEAF_GRAPH_H

#include "sheaf/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHEAF_DEFAULT_GRAPH_SIZE = 2048 };

struct sheaf_cgraph;

/* Room for `size` nodes and as many leaves. NULL if the arena is too small. */
struct sheaf_cgraph *sheaf_new_graph(struct sheaf_context *ctx);
struct sheaf_cgraph *sheaf_new_graph_custom(struct sheaf_context *ctx, size_t size);
/* Arena bytes of a graph. */
size_t sheaf_graph_overhead(void);
size_t sheaf_graph_overhead_custom(size_t size);

/* Appends everything that `tensor` needs and that the graph does not hold yet, in dependency order,
 * `tensor` last. Fails if tensor is NULL (a constructor failed before; its error text is kept) or
 * the graph is full: then it is computed by none (INVALID) until it is cleared. */
enum sheaf_status sheaf_build_forward_expand(struct sheaf_cgraph *graph,
                                             struct sheaf_tensor *tensor);
void sheaf_graph_clear(struct sheaf_cgraph *graph);

int sheaf_graph_size(const struct sheaf_cgraph *graph);
int sheaf_graph_n_nodes(const struct sheaf_cgraph *graph);
int sheaf_graph_n_leafs(const struct sheaf_cgraph *graph);
/* Node i; negative i counts from the end (-1 is the last). NULL outside. */
struct sheaf_tensor *sheaf_graph_node(const struct sheaf_cgraph *graph, int i);
struct sheaf_tensor *sheaf_graph_leaf(const struct sheaf_cgraph *graph, int i);
struct sheaf_tensor *sheaf_graph_get_tensor(const struct sheaf_cgraph *graph, const char *name);
/* Changes whenever the graph is built on or cleared; never repeats inside a process. */
uint64_t sheaf_graph_uid(const struct sheaf_cgraph *graph);
/* Nodes [first, last) of `graph` as a graph of their own (shares the arrays; valid while `graph` is
 * unchanged). Lives in ctx. */
struct sheaf_cgraph *sheaf_graph_view(struct sheaf_context *ctx, struct sheaf_cgraph *graph,
                                      int first, int last);

#ifdef __cplusplus
}
#endif
#endif
