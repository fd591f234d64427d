/* Plans without a device, for describe.c and measure.c.
 *
 * Invariant: such a plan is what a meta device of as many members would run if their devices took
 * every slice, because both take it from sheaf__split_plan_new_with, as SHEAF_SPLIT_SUMS says. */
#ifndef SHEAF_META_LEAVES_H
#define SHEAF_META_LEAVES_H

#include "sheaf/meta.h"
#include "split/plan.h"
#include "tensor/graph.h"

/* States of a graph's leaves. */
struct meta_leaves {
    const struct sheaf_cgraph *graph;
    struct sheaf_split_state **state; /* [graph leafs] */
    int next;                         /* leaves are asked for in about the graph's order */
};

/* l->graph is set. Freed also after a failure. */
enum sheaf_status sheaf__meta_ask_leaves(struct meta_leaves *l, int n_members,
                                         sheaf_backend_meta_get_split_state_fn get_split_state,
                                         const void *user);
void sheaf__meta_free_leaves(struct meta_leaves *l);
/* As sheaf__leaf_state_fn; `leaves` is a struct meta_leaves. */
const struct sheaf_split_state *sheaf__meta_leaf_state(const struct sheaf_tensor *leaf,
                                                       void *leaves);
enum sheaf_status sheaf__meta_plan_leaves(struct meta_leaves *l, int n_members,
                                          struct sheaf__split_plan **out);

#endif
