/* A plan in the making: what plan.c, values.c and conversions.c share.
 *
 * Memory and time: a tensor's own value is `native`, it lies in the tensor's memory. A conversion
 * makes a copy. When an op writes in place, copies of what it wrote to are out of date: `epoch`
 * counts the writes to an owner of memory, and a copy is usable only in the epoch it was made in.
 */
#ifndef SHEAF_SPLIT_PLANNER_H
#define SHEAF_SPLIT_PLANNER_H

#include "split/plan-impl.h"
#include "split/search.h"

enum { NONE = -1, MAX_STATES = 8, SEEN_STATES = 64 };

struct planned_value {
    struct sheaf_tensor *tensor;
    struct sheaf__st st;
    int entry, older;
    bool native; /* lies in the tensor's own memory */
    bool packed; /* a dense copy of a tensor that is not dense */
    int epoch;   /* of the owner, when a copy was made */
    int copy;    /* of a copy or a view of one: the value that holds the memory */
    int origin;  /* of a copy: the value that it is a copy of */
};

/* A cut that was given for a leaf, and what it is to the planner. */
struct seen_state {
    const struct sheaf_split_state *given;
    const struct sheaf_tensor *leaf;
    struct sheaf__st st;
};

struct planner {
    const struct sheaf_cgraph *graph;
    int n_members;
    sheaf__leaf_state_fn leaf_state;
    void *user;
    const uint8_t *whole; /* see struct sheaf__search_input */
    bool whole_sums;
    struct sheaf__pool *pool;
    struct sheaf__entry *entry;
    int n_entries;
    int *slot; /* hash of tensors: entry + 1 */
    size_t n_slots;
    struct planned_value *value;
    int n_values;
    struct sheaf__split_step *step;
    int n_steps;
    size_t cap_entries, cap_values, cap_steps;
    int *node_value;
    int *self, *operand;         /* entries, as in struct sheaf__search_input */
    struct sheaf_tensor lacking; /* stands for operands that are NULL: one element, MIRRORED */
    struct seen_state seen[SEEN_STATES];
    struct sheaf__search_input input;
    struct sheaf__search *search;
};

/* An operand of the node that is planned, with its usable values. */
struct planned_operand {
    int entry, n;
    int value[MAX_STATES];
    struct sheaf__st st[MAX_STATES];
    int64_t bytes;
    int native; /* the native value; NONE */
};

/* ---- values.c: tensors, values and steps. NONE: out of memory ---- */
/* Entry of a tensor, made if there is none. */
int sheaf__plan_entry(struct planner *p, struct sheaf_tensor *t);
int *sheaf__plan_epoch(struct planner *p, int entry);
int sheaf__plan_value(struct planner *p, int entry, struct sheaf__st st, bool native);
bool sheaf__plan_usable(struct planner *p, int v);
int sheaf__plan_step(struct planner *p, enum sheaf_split_step_kind kind, int node);
/* Usable values of an operand, oldest first. A view needs its operand's layout, so a dense copy of
 * a tensor that is not dense does not serve it. */
void sheaf__plan_list(struct planner *p, struct planned_operand *o, bool for_view);

/* ---- conversions.c ---- */
/* A value of the operand that meets the need, converted if it must be. NONE: out of memory. */
int sheaf__plan_obtain(struct planner *p, const struct planned_operand *o,
                       const struct sheaf__need *need, int node);
/* A MIRRORED value of a tensor by copying what the tensor is a view of, and viewing the copy: for
 * views, which need the tensor's layout (a converted copy has it only if the tensor is dense), and
 * for writes, which must be carried back into the tensor's memory. */
enum mirror_for { FOR_VIEW, FOR_WRITE };
enum sheaf_status sheaf__plan_mirror(struct planner *p, int e, enum mirror_for what, int node,
                                     int *out);
/* An in-place write found no row for its target as it lies: the node wrote into a MIRRORED copy,
 * which goes back into the target. */
enum sheaf_status sheaf__plan_write_back(struct planner *p, int written, int node);

/* ---- plan.c ---- */
/* Entries, states of leaves, and the search. sheaf__plan_end frees what a planner holds, in any
 * state. */
enum sheaf_status sheaf__plan_prepare(struct planner *p);
void sheaf__plan_end(struct planner *p);
/* Makes sure that the operand has a usable value, and returns the entry to take it from: the
 * operand's own, or that of the tensor that it is a view of after an in-place write. */
enum sheaf_status sheaf__plan_refresh(struct planner *p, struct sheaf_tensor *t, int *entry);

#endif
