/* Propagation: from a graph and the states of its leaves to a plan of node steps and conversion
 * steps.
 *
 * Pure: no I/O, no globals; the same input gives the same plan on every rank. A tensor of the graph
 * can exist in several states at once (first partial, then mirrored); each is a `value`. Steps are
 * in execution order; a step reads values that earlier steps (or the leaves) made. */
#ifndef SHEAF_SPLIT_PLAN_H
#define SHEAF_SPLIT_PLAN_H

#include "sheaf/comm.h"
#include "sheaf/graph.h"
#include "sheaf/split.h"

struct sheaf__split_value {
    struct sheaf_tensor *tensor;     /* of the graph */
    struct sheaf_split_state *state; /* owned by the plan */
};

struct sheaf__split_step {
    enum sheaf_split_step_kind kind;
    enum sheaf_comm_kind collective; /* of a COLLECTIVE */
    int node; /* index into the graph's nodes for STEP_NODE, else the node whose need caused it */
    int in[SHEAF_MAX_SRC]; /* values read, parallel to tensor->src (-1: none); conversions use in[0]
                            */
    /* Value made. A SLICE or KEEP_ONE whose `out` is a value that exists already (an op wrote into
     * a MIRRORED copy of a target that no row can write where it lies) goes into that value's
     * memory. */
    int out;
    bool add_once; /* STEP_NODE, ADD of a partial and a mirrored operand: only member 0 adds operand
                      `once` */
    int once;
    int64_t bytes; /* conversions: payload bytes of the whole tensor */
};

static inline bool sheaf__step_is(const struct sheaf__split_step *step,
                                  enum sheaf_comm_kind collective) {
    return step->kind == SHEAF_SPLIT_STEP_COLLECTIVE && step->collective == collective;
}

struct sheaf__split_plan {
    int n_members;
    int n_values, n_steps;
    struct sheaf__split_value *values;
    struct sheaf__split_step *steps;
    int *node_final; /* [graph nodes] the value to read after the compute: MIRRORED or S if one
                        exists, else as the node's own step makes it */
};

/* State of a leaf (a tensor of the graph with op NONE that is not a view of another), borrowed. */
typedef const struct sheaf_split_state *(*sheaf__leaf_state_fn)(const struct sheaf_tensor *leaf,
                                                                void *user);

/* Plans `graph` for n_members. Nodes flagged OUTPUT end mirrored or split, never partial. Fails
 * only for a leaf without a state, a leaf whose state does not fit, or out of memory; any valid
 * graph has a plan. */
enum sheaf_status sheaf__split_plan_new(const struct sheaf_cgraph *graph, int n_members,
                                        sheaf__leaf_state_fn leaf_state, void *user,
                                        struct sheaf__split_plan **out);
/* whole [nodes], or NULL: nodes that are not 0 there are computed whole by every member, because a
 * member's device does not take a slice of them. What they write over is gathered first, unless
 * every member has it whole, and each member takes its slice of the result back.
 *
 * whole_sums: no sum is made of members' parts, each is computed by one member (or by all alike);
 * PARTIAL is only what is 0 on all members but one. So results do not depend on how many members
 * there are, if those of the ops do not depend on how many rows or heads they are asked for. */
enum sheaf_status sheaf__split_plan_new_with(const struct sheaf_cgraph *graph, int n_members,
                                             sheaf__leaf_state_fn leaf_state, void *user,
                                             const uint8_t *whole, bool whole_sums,
                                             struct sheaf__split_plan **out);
void sheaf__split_plan_free(struct sheaf__split_plan *plan);
/* 64-bit hash of everything that must agree between ranks: ops, parameters, shapes, types, states,
 * steps. */
uint64_t sheaf__split_plan_fingerprint(const struct sheaf__split_plan *plan,
                                       const struct sheaf_cgraph *graph);

/* Geometry of one member's node. Given the step, fills `local`: op, op_params (with [BASE] and
 * [EXTENT] where an indexed dimension is cut: masked rows or experts, head slopes; with [NE1] and
 * [COLUMNS] where the columns of a product are), ne, nb and view_offs. Of a view, and of a node that
 * writes over an operand (sheaf__op_written), nb and view_offs (bytes from the start of the operand's
 * owner) are where it lies there; all others are dense, at 0. local_src[i] are the member's slices of
 * the operands with ne, nb and view_offs set; type, name, src, view_src are the caller's. */
enum sheaf_status sheaf__split_local_node(const struct sheaf__split_plan *plan,
                                          const struct sheaf__split_step *step,
                                          const struct sheaf_cgraph *graph, int member,
                                          const struct sheaf_tensor *const local_src[SHEAF_MAX_SRC],
                                          struct sheaf_tensor *local);
/* A VIEW node of the graph was at `was`, bytes from its operand's first element, when the plan was
 * made, or at another offset of which this was true: does the plan hold for where it is now, with
 * other offsets from sheaf__split_local_node and nothing else? The same on every rank. */
bool sheaf__split_view_moves(const struct sheaf__split_plan *plan,
                             const struct sheaf__split_step *step, const struct sheaf_tensor *view,
                             int64_t was);
/* True if the member contributes nothing to the step's partial result (its part of the summed
 * dimension is empty): the result must be zeroed instead of computed. */
bool sheaf__split_contributes_zero(const struct sheaf__split_plan *plan,
                                   const struct sheaf__split_step *step,
                                   const struct sheaf_cgraph *graph, int member);

/* Writes the rows that the planner considered for a node: the bytes that each moves, for the node
 * and for the whole graph if the node takes it, the work of a member, and why the taken one won. At
 * most n bytes, always terminated. */
enum sheaf_status sheaf__split_considered(const struct sheaf_cgraph *graph, int n_members,
                                          sheaf__leaf_state_fn leaf_state, void *user,
                                          bool whole_sums, int node, char *buf, size_t n);

/* Says why the operands of a node had to be gathered: the node, its rule, every operand's state and
 * where it comes from, the row that came closest, what was done, and a suggestion. Writes at most n
 * bytes, always terminated. False, and an empty text, if nothing was gathered for the node (sums of
 * PARTIAL operands are in the nature of a plan and are not explained). */
bool sheaf__split_explain(const struct sheaf__split_plan *plan, const struct sheaf_cgraph *graph,
                          int node, char *buf, size_t n);

#endif
