/* The scheduler: computes one graph on several backends.
 *
 * Every node is assigned to a backend; runs of nodes on the same backend are *scheduler splits*;
 * what a split reads from memory that its backend cannot use is copied first. Backends are listed
 * by priority, the best first; the last one should run every op (the CPU).
 *
 *   sched = sheaf_backend_sched_new((sheaf_backend_t[]){gpu, cpu}, NULL, 2, 2048, false, true);
 *   sheaf_backend_sched_reserve(sched, largest_graph);      optional: no allocation later
 *   sheaf_backend_sched_set_tensor_backend(sched, t, cpu);  optional
 *   for (...) sheaf_backend_sched_graph_compute(sched, graph);       allocates when it must
 *
 *   sheaf_backend_sched_reset(sched);                       before a graph is made of new tensors
 *   sheaf_backend_sched_alloc_graph(sched, graph2);         inputs have memory from here on
 *   sheaf_backend_tensor_set(input, ...);
 *   sheaf_backend_sched_graph_compute(sched, graph2);
 *
 * How a node gets its backend, the first that applies:
 *   by the user   sheaf_backend_sched_set_tensor_backend
 *   by memory     the result lies in a buffer already, or in that of the tensor it is written to
 *   input         a leaf flagged INPUT without memory: the last backend
 *   weights       an operand lies in a buffer of usage WEIGHTS: the backend of that buffer, or,
 *                 with op_offload, a better one whose offload_op wants the op though the weights
 *                 lie on the host
 *   expansion     the backend of the neighbouring nodes, downwards and upwards, first of all
 *                 backends but the last, then of the last; then a better one that can use all
 *                 operands where they lie; then the one that can use the most operands
 *   operands      leaves and results still left: the backend of the node that reads them
 * Views have the backend of the tensor that they look at.
 *
 * Ownership: backends outlive the scheduler. A graph and its tensors stay alive, and are not built
 * on, from alloc_graph to the end of its last compute. The scheduler changes their buffer, data and
 * extra; while a compute runs, also operands and flags, which it puts back.
 * Threads: one at a time. Errors: statuses; sheaf_last_error() names the tensor.
 * SHEAF_SCHED_DEBUG=1 writes the splits and their copies of every graph to standard error, 2 also
 * every node with its backend and the cause.
 *
 * The meta device can be one of the backends. Every rank then makes the same scheduler calls in the
 * same order; what another backend reads from it is gathered on all ranks, what it reads from
 * another backend is given to all members whole. Results that a later split of the meta device
 * reads stay in slices. */
#ifndef SHEAF_SCHED_H
#define SHEAF_SCHED_H

#include "sheaf/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_backend_sched *sheaf_backend_sched_t;

enum {
    SHEAF_SCHED_MAX_SPLIT_INPUTS = 30, /* a split that needs more copies than this is cut in two */
    SHEAF_SCHED_MAX_COPIES = 4,        /* graphs in flight with `parallel` */
};

/* bufts: the buffer type for the results of each backend; NULL, or NULL entries: its default.
 * graph_size: nodes and leaves to expect (a hint; larger graphs work and allocate). parallel: keep
 * up to SHEAF_SCHED_MAX_COPIES graphs in flight, each with its own copies of inputs; worth while if
 * the backends are asynchronous and have events. NULL and sheaf_last_error() on failure. */
sheaf_backend_sched_t sheaf_backend_sched_new(const sheaf_backend_t *backends,
                                              const sheaf_backend_buffer_type_t *bufts,
                                              int n_backends, size_t graph_size, bool parallel,
                                              bool op_offload);
/* Waits for what is in flight. Accepts NULL. */
void sheaf_backend_sched_free(sheaf_backend_sched_t sched);

/* Makes the buffers large enough for `measure_graph`, which gets no memory itself, and for every
 * graph that needs no more: host memory for copies, and the members' memory of a meta device, which
 * also plans the graph (collective), included. Assignments made before it count; it forgets them,
 * as reset does. */
enum sheaf_status sheaf_backend_sched_reserve(sheaf_backend_sched_t sched,
                                              struct sheaf_cgraph *measure_graph);
/* Assigns and splits without giving memory; for looking at the outcome with the functions below. */
enum sheaf_status sheaf_backend_sched_split_graph(sheaf_backend_sched_t sched,
                                                  struct sheaf_cgraph *graph);
/* Assigns, splits and places every tensor that has no memory of its own. */
enum sheaf_status sheaf_backend_sched_alloc_graph(sheaf_backend_sched_t sched,
                                                  struct sheaf_cgraph *graph);
/* Computes; allocates first unless the last alloc_graph or compute was of this very graph. */
enum sheaf_status sheaf_backend_sched_graph_compute(sheaf_backend_sched_t sched,
                                                    struct sheaf_cgraph *graph);
/* Submits. Inputs may be set anew for the next graph when this returns if the scheduler is
 * parallel, else after sheaf_backend_sched_synchronize. */
enum sheaf_status sheaf_backend_sched_graph_compute_async(sheaf_backend_sched_t sched,
                                                          struct sheaf_cgraph *graph);
/* Waits for all backends; the first error of what was submitted. */
enum sheaf_status sheaf_backend_sched_synchronize(sheaf_backend_sched_t sched);
/* Forgets the graph and all assignments by the user; buffers stay. Waits for what is in flight
 * unless the scheduler is parallel. */
enum sheaf_status sheaf_backend_sched_reset(sheaf_backend_sched_t sched);

/* In force until reset. A backend that cannot run the op is an error when the graph is split.
 * INVALID if the backend is none of the scheduler's. */
enum sheaf_status sheaf_backend_sched_set_tensor_backend(sheaf_backend_sched_t sched,
                                                         struct sheaf_tensor *tensor,
                                                         sheaf_backend_t backend);
/* Of the graph split last, or as the user set it; NULL if unknown. */
sheaf_backend_t sheaf_backend_sched_get_tensor_backend(sheaf_backend_sched_t sched,
                                                       const struct sheaf_tensor *tensor);
/* Why, in words; "" if unknown. Valid until the next split. */
const char *sheaf_backend_sched_get_tensor_cause(sheaf_backend_sched_t sched,
                                                 const struct sheaf_tensor *tensor);

int sheaf_backend_sched_get_n_backends(sheaf_backend_sched_t sched);
sheaf_backend_t sheaf_backend_sched_get_backend(sheaf_backend_sched_t sched, int i); /* or NULL */
int sheaf_backend_sched_get_n_splits(sheaf_backend_sched_t sched); /* of the last graph */
int sheaf_backend_sched_get_n_copies(sheaf_backend_sched_t sched); /* graphs in flight at most */
sheaf_backend_buffer_type_t sheaf_backend_sched_get_buffer_type(sheaf_backend_sched_t sched,
                                                                sheaf_backend_t backend);
/* Bytes of the compute buffer; 0 if the backend is none of the scheduler's. Backends with the same
 * buffer type share one. */
size_t sheaf_backend_sched_get_buffer_size(sheaf_backend_sched_t sched, sheaf_backend_t backend);

/* Called with ask true before a node is computed: true wants to see its result. For those, called
 * again with ask false when it is computed and readable: false cancels the compute, which returns
 * SHEAF_STATUS_ABORTED. With a callback, computes are synchronous, and nodes are submitted in
 * groups that end at a wanted one. Views may be left out. NULL: none. */
typedef bool (*sheaf_backend_sched_eval_fn)(struct sheaf_tensor *tensor, bool ask, void *user_data);
void sheaf_backend_sched_set_eval_callback(sheaf_backend_sched_t sched,
                                           sheaf_backend_sched_eval_fn callback, void *user_data);

#ifdef __cplusplus
}
#endif
#endif
