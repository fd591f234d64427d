/* Plans for people and tools that want to know what a split will cost before they load a model: the
 * steps of a plan, and why a node takes its row. Without a device. */
#include <assert.h>

#include "base/settings.h"
#include "meta/leaves.h"

static const char *const kind_names[] = {
    [SHEAF_SPLIT_STEP_NODE] = "node",
    [SHEAF_SPLIT_STEP_COLLECTIVE] = "collective",
    [SHEAF_SPLIT_STEP_SLICE] = "slice",
    [SHEAF_SPLIT_STEP_KEEP_ONE] = "keep one",
};
static_assert(sizeof kind_names / sizeof *kind_names == SHEAF_SPLIT_STEP_KIND_COUNT,
              "every kind of step has a name");
static const char *const collective_names[] = {
    [SHEAF_COMM_ALL_REDUCE] = "all-reduce",
    [SHEAF_COMM_ALL_GATHER] = "all-gather",
    [SHEAF_COMM_REDUCE_SCATTER] = "reduce-scatter",
};

const char *sheaf_backend_meta_step_name(const struct sheaf_backend_meta_step *step) {
    if ((unsigned)step->kind >= SHEAF_SPLIT_STEP_KIND_COUNT) return "?";
    return step->kind == SHEAF_SPLIT_STEP_COLLECTIVE &&
                   (unsigned)step->collective <= SHEAF_COMM_REDUCE_SCATTER
               ? collective_names[step->collective]
               : kind_names[step->kind];
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
            .kind = step->kind,
            .collective = step->collective,
            .index = s,
            .node = step->node,
            .out = value_of(plan, step->out),
            .add_once = step->add_once,
            .bytes = step->kind == SHEAF_SPLIT_STEP_NODE ? 0 : step->bytes,
        };
        for (int i = 0; i < SHEAF_MAX_SRC; i++) d.in[i] = value_of(plan, step->in[i]);
        if (d.kind != SHEAF_SPLIT_STEP_COLLECTIVE) {
            open = true;
        } else if (open) {
            open = false;
            span++;
        }
        d.span = open ? span : span > 0 ? span - 1 : 0;
        if (sheaf__step_is(step, SHEAF_COMM_ALL_GATHER) && step->node != explained &&
            sheaf__split_explain(plan, graph, step->node, why, sizeof why)) {
            explained = step->node;
            d.why = why;
        }
        if (!visit(&d, user)) return;
    }
}

enum sheaf_status
sheaf_backend_meta_describe_plan(const struct sheaf_cgraph *graph, int n_members,
                                 sheaf_backend_meta_get_split_state_fn get_split_state,
                                 const void *user, sheaf_backend_meta_step_fn visit,
                                 void *visit_user) {
    if (!graph || n_members < 1 || !get_split_state || !visit) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "describe plan: it wants a graph, at least one member, a function "
                               "that gives split states and one that takes steps");
    }
    struct meta_leaves leaves = {.graph = graph};
    struct sheaf__split_plan *plan = NULL;
    enum sheaf_status st = sheaf__meta_ask_leaves(&leaves, n_members, get_split_state, user);
    if (!st) st = sheaf__meta_plan_leaves(&leaves, n_members, &plan);
    if (!st) visit_steps(plan, graph, visit, visit_user);
    sheaf__split_plan_free(plan);
    sheaf__meta_free_leaves(&leaves);
    return st;
}

enum sheaf_status
sheaf_backend_meta_explain_node(const struct sheaf_cgraph *graph, int n_members,
                                sheaf_backend_meta_get_split_state_fn get_split_state,
                                const void *user, int node, char *buf, size_t n) {
    if (!graph || n_members < 1 || !get_split_state || node < 0 || node >= graph->n_nodes)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "explain node: it takes a graph and one of its nodes, at least one "
                               "member, and a function that gives split states");
    struct meta_leaves leaves = {.graph = graph};
    enum sheaf_status st = sheaf__meta_ask_leaves(&leaves, n_members, get_split_state, user);
    if (!st)
        st = sheaf__split_considered(graph, n_members, sheaf__meta_leaf_state, &leaves,
                                     sheaf__whole_sums(), node, buf, n);
    sheaf__meta_free_leaves(&leaves);
    return st;
}
