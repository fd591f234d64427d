/* Runs the nodes of graphs in a queue: one by one the first time, then as captured CUDA graphs. It owns the
 * queue's work memory, which the nodes that follow each other use. One thread at a time; the caller has made the
 * device the current one. */
#ifndef SHEAF_CUDA_GRAPHS_H
#define SHEAF_CUDA_GRAPHS_H

#include "cuda/device.h"

/* The nodes to run, in their order. */
struct sheaf__cuda_nodes {
    struct sheaf_tensor *const *node;
    int n;
    uint64_t version; /* not 0: graphs of this uid and version are the same */
};

struct sheaf__cuda_graphs_params {
    bool replays; /* capture graphs that come again */
    bool fuse;    /* several nodes in a kernel where they can be */
    bool times;   /* print the times of launches at the end; nothing is captured then */
};
/* Of that queue, which stays the caller's. NULL: no memory. */
struct sheaf__cuda_graphs *sheaf__cuda_graphs_new(struct sheaf__cuda_queue *q,
                                                  struct sheaf__cuda_graphs_params params);
/* The queue is empty. NULL is none. */
void sheaf__cuda_graphs_free(struct sheaf__cuda_graphs *g);

/* Checks the nodes and makes the work memory that they need. */
enum sheaf_status sheaf__cuda_graphs_reserve(struct sheaf__cuda_graphs *g,
                                             struct sheaf__cuda_nodes nodes);
/* Submits the nodes. uid 0: of a graph that will not come again. */
enum sheaf_status sheaf__cuda_graphs_run(struct sheaf__cuda_graphs *g,
                                         struct sheaf__cuda_nodes nodes, uint64_t uid);
/* Between runs: from the first call on, captured graphs are made and ended in it only. now: those that ran since are
 * captured, which needs the nodes that ran to be as they were; else they are not. */
void sheaf__cuda_graphs_capture(struct sheaf__cuda_graphs *g, bool now);
/* The queue was found empty: work memory that was outgrown is freed. */
void sheaf__cuda_graphs_queue_is_empty(struct sheaf__cuda_graphs *g);

/* Nodes that are kept, with a captured graph of their own. */
struct sheaf__cuda_plan;
struct sheaf__cuda_plan *sheaf__cuda_plan_new(struct sheaf__cuda_graphs *g); /* NULL: no memory */
void sheaf__cuda_plan_free(struct sheaf__cuda_graphs *g, struct sheaf__cuda_plan *p);
/* Keeps a copy of the list. */
enum sheaf_status sheaf__cuda_plan_update(struct sheaf__cuda_graphs *g, struct sheaf__cuda_plan *p,
                                          struct sheaf__cuda_nodes nodes);
enum sheaf_status sheaf__cuda_plan_run(struct sheaf__cuda_graphs *g, struct sheaf__cuda_plan *p);

#endif
