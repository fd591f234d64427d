/* Describes the plan of a graph, step by step, without a device: for people and tools that want to
 * know what a split will cost before they load a model.
 *
 * Invariant: what is described is what a meta device of as many members would run, because both
 * take their plan from sheaf__split_plan_new. */
#include <assert.h>
#include <stdlib.h>

#include "meta/meta_impl.h"

static const struct {
    const char *name;
    bool collective;
    enum sheaf__step_kind kind;
} kinds[] = {
    [SHEAF_BACKEND_META_STEP_NODE] = {"node", false, SHEAF__STEP_NODE},
    [SHEAF_BACKEND_META_STEP_ALL_REDUCE] = {"all-reduce", true, SHEAF__STEP_ALL_REDUCE},
    [SHEAF_BACKEND_META_STEP_REDUCE_SCATTER] = {"reduce-scatter", true, SHEAF__STEP_REDUCE_SCATTER},
    [SHEAF_BACKEND_META_STEP_ALL_GATHER] = {"all-gather", true, SHEAF__STEP_ALL_GATHER},
    [SHEAF_BACKEND_META_STEP_SLICE] = {"slice", false, SHEAF__STEP_SLICE},
    [SHEAF_BACKEND_META_STEP_KEEP_ONE] = {"keep one", false, SHEAF__STEP_KEEP_ONE},
};
static_assert(sizeof kinds / sizeof *kinds == SHEAF_BACKEND_META_STEP_KIND_COUNT &&
                  (int)SHEAF_BACKEND_META_STEP_KIND_COUNT == (int)SHEAF__STEP_KIND_COUNT,
              "every kind of step is described");

bool sheaf_backend_meta_step_is_collective(enum sheaf_backend_meta_step_kind kind) {
    return (unsigned)kind < SHEAF_BACKEND_META_STEP_KIND_COUNT && kinds[kind].collective;
}

const char *sheaf_backend_meta_step_name(enum sheaf_backend_meta_step_kind kind) {
    return (unsigned)kind < SHEAF_BACKEND_META_STEP_KIND_COUNT ? kinds[kind].name : "?";
}

static enum sheaf_backend_meta_step_kind public_kind(enum sheaf__step_kind kind) {
    int k = 0;
    while (kinds[k].kind != kind) k++;
    return (enum sheaf_backend_meta_step_kind)k;
}

/* States of the leaves; they must outlive the plan, which keeps pointers to them. */
struct leaves {
    const struct sheaf_cgraph *graph;
    struct sheaf_split_state **state; /* [graph leafs] */
    int next;                         /* leaves are asked for in about the graph's order */
};

static const struct sheaf_split_state *leaf_state(const struct sheaf_tensor *leaf, void *user) {
    struct leaves *l = user;
    for (int k = 0; k < l->graph->n_leafs; k++) {
        const int i = (l->next + k) % l->graph->n_leafs;
        if (l->graph->leafs[i] != leaf) continue;
        l->next = i;
        return l->state[i];
    }
    return NULL;
}

static struct sheaf_backend_meta_value value_of(const struct sheaf__split_plan *plan, int v) {
    if (v < 0) return (struct sheaf_backend_meta_value){.number = -1};
    return (struct sheaf_backend_meta_value){v, plan->values[v].tensor, plan->values[v].state};
}

static void visit_steps(const struct sheaf__split_plan *plan, const struct sheaf_cgraph *graph,
                        sheaf_backend_meta_step_fn visit, void *user) {
    int span = 0, explained = -1;
    bool open = false; /* something was computed since the last collective */
    char why[1536];
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step *step = &plan->steps[s];
        struct sheaf_backend_meta_step d = {
            .size = sizeof d,
            .kind = public_kind(step->kind),
            .index = s,
            .node = step->node,
            .out = value_of(plan, step->out),
            .add_once = step->add_once,
            .bytes = step->kind == SHEAF__STEP_NODE ? 0 : step->bytes,
        };
        for (int i = 0; i < SHEAF_MAX_SRC; i++) d.in[i] = value_of(plan, step->in[i]);
        if (!kinds[d.kind].collective) {
            open = true;
        } else if (open) {
            open = false;
            span++;
        }
        d.span = open ? span : span > 0 ? span - 1 : 0;
        if (step->kind == SHEAF__STEP_ALL_GATHER && step->node != explained &&
            sheaf__split_explain(plan, graph, step->node, why, sizeof why)) {
            explained = step->node;
            d.why = why;
        }
        if (!visit(&d, user)) return;
    }
}

enum sheaf_status
sheaf_backend_meta_describe_plan(const struct sheaf_cgraph *graph, int n_members,
                                 sheaf_backend_meta_get_split_state_t get_split_state, void *user,
                                 sheaf_backend_meta_step_fn visit, void *visit_user) {
    if (!graph || n_members < 1 || !get_split_state || !visit) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "describe plan: it wants a graph, at least one member, a function "
                               "that gives split states and one that takes steps");
    }
    struct leaves leaves = {.graph = graph};
    struct sheaf__split_plan *plan = NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    leaves.state = calloc((size_t)graph->n_leafs + 1, sizeof *leaves.state);
    if (!leaves.state)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "describe plan: out of memory");
    for (int i = 0; i < graph->n_leafs && !st; i++) {
        if (!(graph->leafs[i]->flags & SHEAF_TENSOR_FLAG_INPUT)) {
            st = get_split_state(graph->leafs[i], user, &leaves.state[i]);
        } else if (!(leaves.state[i] = sheaf_split_state_mirrored(n_members))) {
            st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "describe plan: out of memory");
        }
    }
    if (!st) st = sheaf__split_plan_new(graph, n_members, leaf_state, &leaves, &plan);
    if (!st) visit_steps(plan, graph, visit, visit_user);
    sheaf__split_plan_free(plan);
    for (int i = 0; i < graph->n_leafs; i++) sheaf_split_state_free(leaves.state[i]);
    free(leaves.state);
    return st;
}
