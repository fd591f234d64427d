/* Writes down the plan that the search has decided. Node by node, the conversions that a row needs
 * become steps; the result of a step is a value. No cost is compared here.
 *
 * Invariant: the result depends on the graph, the leaf states and the member count alone. */
#include "split/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "split/decide.h"
#include "split/planner.h"
#include "tensor/access.h"
#include "tensor/graph.h"

/* ---- leaves ---- */

/* Layers are alike, so most leaves have a state that another one had. */
static struct seen_state *seen_slot(struct planner *p, const struct sheaf_split_state *given,
                                    const struct sheaf_tensor *t) {
    uint64_t h =
        sheaf__mix((uint64_t)given->axis << 8 | (uint64_t)t->type, (uint64_t)given->n_segments);
    for (int i = 0; i < given->n_segments; i++) {
        const struct sheaf_split_segment *g = &given->segments[i];
        h = sheaf__mix(h, (uint64_t)g->units << 32 ^ (uint64_t)g->outer << 16 ^ (uint64_t)g->inner);
        h = sheaf__mix(h, (uint64_t)g->count[0]);
    }
    return &p->seen[h % SEEN_STATES];
}

/* Was the state checked and cut before, for a dimension of this extent and type? */
static bool is_seen(const struct planner *p, const struct seen_state *seen,
                    const struct sheaf_split_state *given, const struct sheaf_tensor *t) {
    const struct sheaf_split_state *a = seen->given;
    if (!a || a->axis != given->axis || a->n_segments != given->n_segments ||
        seen->leaf->type != t->type || seen->leaf->ne[a->axis] != t->ne[a->axis])
        return false;
    const size_t bytes = (size_t)p->n_members * sizeof(int64_t);
    for (int i = 0; i < a->n_segments; i++) {
        const struct sheaf_split_segment *x = &a->segments[i], *y = &given->segments[i];
        if (x->outer != y->outer || x->units != y->units || x->inner != y->inner ||
            memcmp(x->first, y->first, bytes) != 0 || memcmp(x->count, y->count, bytes) != 0)
            return false;
    }
    return true;
}

/* The state of a leaf as the planner has it. */
static enum sheaf_status take_state(struct planner *p, const struct sheaf_split_state *given,
                                    const struct sheaf_tensor *t, struct sheaf__st *st) {
    *st = sheaf__st_m();
    if (given->n_members != p->n_members) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "split: leaf '%s' has a state for %d members, the plan is for %d",
                               t->name, given->n_members, p->n_members);
    }
    struct seen_state *seen = NULL;
    if ((unsigned)given->axis < SHEAF_MAX_DIMS) {
        seen = seen_slot(p, given, t);
        if (is_seen(p, seen, given, t)) {
            *st = seen->st;
            return SHEAF_STATUS_SUCCESS;
        }
    }
    const enum sheaf_status status = sheaf_split_state_check(given, t);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    if (p->n_members == 1) {
        /* one member has everything in any state: no conversions */
    } else if (given->axis == SHEAF_SPLIT_AXIS_PARTIAL) {
        *st = sheaf__st_p();
    } else if (given->axis != SHEAF_SPLIT_AXIS_MIRRORED) {
        const struct sheaf__cut *cut = sheaf__cut_from_state(p->pool, given);
        if (!cut && p->pool->failed) return sheaf__plan_no_memory();
        if (!cut) {
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "split: the cut of leaf '%s' has too many intervals; cut a "
                                   "slower dimension",
                                   t->name);
        }
        sheaf__cut_show_as(p->pool, cut, given);
        if (!cut->everywhere) *st = sheaf__st_s((int)given->axis, cut);
    }
    if (seen) *seen = (struct seen_state){given, t, *st};
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status leaf_value(struct planner *p, int e) {
    if (p->entry[e].values != NONE) return SHEAF_STATUS_SUCCESS;
    const struct sheaf_tensor *t = p->entry[e].tensor;
    if (t == &p->lacking) return SHEAF_STATUS_SUCCESS; /* nothing is made of it */
    const struct sheaf_split_state *given = p->leaf_state(t, p->user);
    if (!given) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "split: leaf '%s' %s [%lld %lld %lld %lld] has no state; have the "
                               "split function return one for it (MIRRORED if every member is to "
                               "hold all of it)",
                               t->name, sheaf_type_name(t->type), (long long)t->ne[0],
                               (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3]);
    }
    struct sheaf__st st;
    const enum sheaf_status status = take_state(p, given, t, &st);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    p->entry[e].st = st;
    return sheaf__plan_value(p, e, st, true) == NONE ? sheaf__plan_no_memory()
                                                     : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status plan_node(struct planner *p, int node);

static bool is_up_to_date(struct planner *p, int entry) {
    for (int v = p->entry[entry].values; v != NONE; v = p->value[v].older) {
        if (sheaf__plan_usable(p, v)) return true;
    }
    return false;
}

enum sheaf_status sheaf__plan_refresh(struct planner *p, struct sheaf_tensor *t, int *entry) {
    for (;;) {
        const int e = *entry = sheaf__plan_entry(p, t);
        if (e == NONE) return sheaf__plan_no_memory();
        if (is_up_to_date(p, e)) return SHEAF_STATUS_SUCCESS;
        if (p->entry[e].node == NONE || p->entry[e].values == NONE) return leaf_value(p, e);
        const int written = sheaf__op_written(t);
        if (!written) return plan_node(p, p->entry[e].node); /* a view of an outdated copy */
        t = t->src[written - 1];
    }
}

/* ---- one node ---- */

/* A node while its step is made. */
struct planned_node {
    int node, self; /* index in the graph; entry */
    struct sheaf_tensor *tensor;
    const struct sheaf__rule *rule;
    bool is_view;
    int n, written; /* operands; 1 + the one that is written over, 0: none */
    struct planned_operand operand[SHEAF__MAX_OPERANDS];
    bool has_row; /* only an in-place write can be without one */
    struct sheaf__row row;
    int in[SHEAF__MAX_OPERANDS]; /* values that the step reads; NONE: the operand is missing */
};

/* Every operand gets a value that is up to date, and the list of them. */
static enum sheaf_status list_operands(struct planner *p, struct planned_node *x) {
    for (int i = 0; i < x->n; i++) {
        struct sheaf_tensor *src = x->tensor->src[i];
        struct planned_operand *o = &x->operand[i];
        if (!src) {
            *o = (struct planned_operand){.n = 1, .st = {sheaf__st_m()}, .native = NONE};
            continue;
        }
        o->entry = p->operand[x->node * SHEAF__MAX_OPERANDS + i];
        if (is_up_to_date(p, o->entry)) continue;
        const enum sheaf_status status = sheaf__plan_refresh(p, src, &o->entry);
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    for (int i = 0; i < x->n; i++)
        if (x->tensor->src[i]) sheaf__plan_list(p, &x->operand[i], x->is_view);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status take_row(struct planner *p, struct planned_node *x) {
    struct sheaf__at_hand at_hand[SHEAF__MAX_OPERANDS];
    for (int i = 0; i < x->n; i++) {
        const struct planned_operand *o = &x->operand[i];
        at_hand[i] = (struct sheaf__at_hand){
            o->n, o->st, o->native == NONE ? NULL : &p->value[o->native].st, o->bytes};
    }
    const struct sheaf__asked asked = {x->tensor, x->rule, x->written,
                                       p->whole && p->whole[x->node], p->whole_sums};
    x->has_row =
        sheaf__decide_row(p->pool, &asked, sheaf__search_row(p->search, x->node), at_hand, &x->row);
    if (!x->has_row) x->row = (struct sheaf__row){.name = "write back", .n_operands = x->n};
    return p->pool->failed ? sheaf__plan_no_memory() : SHEAF_STATUS_SUCCESS;
}

/* x->in[i]: the value of operand i that meets the row's need, or a MIRRORED one that the node can
 * write into if it has no row. */
static enum sheaf_status obtain_operand(struct planner *p, struct planned_node *x, int i) {
    const struct planned_operand *o = &x->operand[i];
    const struct sheaf__need *need = &x->row.need[i];
    const bool is_target = i + 1 == x->written;
    if (is_target && x->has_row) {
        x->in[i] = o->native;
    } else if (is_target || (x->is_view && need->st.kind == SHEAF__M)) {
        return sheaf__plan_mirror(p, o->entry, x->written ? FOR_WRITE : FOR_VIEW, x->node,
                                  &x->in[i]);
    } else {
        x->in[i] = sheaf__plan_obtain(p, o, need, x->node);
    }
    return x->in[i] == NONE ? sheaf__plan_no_memory() : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status obtain_operands(struct planner *p, struct planned_node *x) {
    const int n_listed = p->n_values;
    for (int i = 0; i < x->n; i++) {
        x->in[i] = NONE;
        if (!x->tensor->src[i]) continue;
        if (p->n_values != n_listed) /* a conversion of another operand may have changed it */
            sheaf__plan_list(p, &x->operand[i], x->is_view);
        const enum sheaf_status status = obtain_operand(p, x, i);
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* The step, and the value that it makes: in the tensor's own memory, unless the node shows or
 * writes a copy. */
static enum sheaf_status add_step(struct planner *p, const struct planned_node *x) {
    const int s = sheaf__plan_step(p, SHEAF_SPLIT_STEP_NODE, x->node);
    if (s == NONE) return sheaf__plan_no_memory();
    const int source = x->is_view ? x->in[0] : x->written ? x->in[x->written - 1] : NONE;
    if (x->written) ++*sheaf__plan_epoch(p, x->self);
    const int v = sheaf__plan_value(p, x->self, sheaf__lasting(&p->input, x->node, x->row.out),
                                    source == NONE || p->value[source].native);
    if (v == NONE) return sheaf__plan_no_memory();
    if (source != NONE && !p->value[source].native) {
        p->value[v].copy = p->value[source].copy;
        if (!x->written) p->value[v].epoch = p->value[source].epoch;
    }
    for (int i = 0; i < x->n; i++) p->step[s].in[i] = x->in[i];
    p->step[s].out = v;
    p->step[s].add_once = x->row.add_once;
    p->step[s].once = x->row.once;
    p->node_value[x->node] = v;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status plan_node(struct planner *p, int node) {
    struct sheaf_tensor *t = p->graph->nodes[node];
    const int self = p->self[node];
    if (t->op == SHEAF_OP_NONE) {
        const enum sheaf_status status = leaf_value(p, self);
        p->node_value[node] = p->entry[self].values;
        return status;
    }
    struct planned_node x; /* not cleared: it is large, and a graph has many nodes */
    x.node = node;
    x.self = self;
    x.tensor = t;
    x.rule = sheaf__rule_of(t);
    x.is_view = sheaf__is_view_form(x.rule);
    x.n = p->entry[self].n_operands;
    x.written = p->entry[self].writes;
    enum sheaf_status status = list_operands(p, &x);
    if (!status) status = take_row(p, &x);
    if (!status) status = obtain_operands(p, &x);
    if (!status) status = add_step(p, &x);
    if (status) return status;
    const int v = p->node_value[node];
    return !x.has_row && !p->value[v].native ? sheaf__plan_write_back(p, v, node)
                                             : SHEAF_STATUS_SUCCESS;
}

/* ---- the whole graph ---- */

/* Room for nearly all tensors, values and steps at once: growing moves what is there. */
static bool make_room(struct planner *p) {
    const struct sheaf_cgraph *g = p->graph;
    const size_t nodes = (size_t)g->n_nodes + 1;
    const size_t values = (size_t)(g->n_nodes + g->n_leafs) + (size_t)g->n_nodes / 8;
    p->n_slots = 64;
    while (p->n_slots <= 2 * (size_t)(g->n_nodes + g->n_leafs)) p->n_slots *= 2;
    p->slot = calloc(p->n_slots, sizeof *p->slot);
    p->node_value = malloc(nodes * sizeof *p->node_value);
    p->self = malloc(nodes * sizeof *p->self);
    p->operand = calloc(nodes, SHEAF__MAX_OPERANDS * sizeof *p->operand);
    return p->slot && p->node_value && p->self && p->operand &&
           sheaf__grow(&p->entry, &p->cap_entries, values, sizeof *p->entry) &&
           sheaf__grow(&p->value, &p->cap_values, values, sizeof *p->value) &&
           sheaf__grow(&p->step, &p->cap_steps, values, sizeof *p->step);
}

/* The entries of a node and of its operands. */
static bool number_node(struct planner *p, int node) {
    struct sheaf_tensor *t = p->graph->nodes[node];
    const int e = p->self[node] = sheaf__plan_entry(p, t);
    if (e == NONE) return false;
    if (t->op != SHEAF_OP_NONE) p->entry[e].node = node;
    p->node_value[node] = NONE;
    const int n = sheaf__n_operands(t), written = sheaf__op_written(t);
    p->entry[e].n_operands = (int8_t)n;
    p->entry[e].writes = (int8_t)written;
    for (int k = 0; k < n; k++) {
        const int used = sheaf__plan_entry(p, t->src[k] ? t->src[k] : &p->lacking);
        if (used == NONE) return false;
        p->operand[node * SHEAF__MAX_OPERANDS + k] = used;
        p->entry[used].uses++;
        if (written == k + 1) p->entry[p->entry[used].owner].written = true;
    }
    return true;
}

enum sheaf_status sheaf__plan_prepare(struct planner *p) {
    const struct sheaf_cgraph *g = p->graph;
    p->lacking = (struct sheaf_tensor){.ne = {1, 1, 1, 1}};
    sheaf__set_dense_strides(&p->lacking);
    if (!make_room(p)) return sheaf__plan_no_memory();
    for (int i = 0; i < g->n_nodes; i++)
        if (!number_node(p, i)) return sheaf__plan_no_memory();
    for (int e = 0; e < p->n_entries; e++) {
        if (p->entry[e].node != NONE || p->entry[e].uses == 0) continue;
        const enum sheaf_status status = leaf_value(p, e);
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    p->input = (struct sheaf__search_input){.graph = g,
                                            .pool = p->pool,
                                            .entry = p->entry,
                                            .n_entries = p->n_entries,
                                            .self = p->self,
                                            .operand = p->operand,
                                            .whole = p->whole,
                                            .whole_sums = p->whole_sums,
                                            .watch = p->input.watch};
    return sheaf__search_new(&p->input, &p->search);
}

void sheaf__plan_end(struct planner *p) {
    sheaf__search_free(p->search);
    free(p->self);
    free(p->operand);
    free(p->entry);
    free(p->slot);
    free(p->value);
    free(p->step);
    free(p->node_value);
}

/* A view of a copy does not show later writes: such views are made again. */
static enum sheaf_status renew_views(struct planner *p) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < p->graph->n_nodes && !status; i++) {
        int entry;
        if (sheaf__is_view_form(sheaf__rule_of(p->graph->nodes[i])) &&
            !is_up_to_date(p, p->self[i]))
            status = sheaf__plan_refresh(p, p->graph->nodes[i], &entry);
    }
    return status;
}

/* Is the node's result read after the compute? */
static bool is_result(const struct planner *p, int node) {
    const struct sheaf__entry *e = &p->entry[p->self[node]];
    return (p->graph->nodes[node]->flags & SHEAF_TENSOR_FLAG_OUTPUT) || (!e->uses && !e->writes);
}

/* Sums the addends of results, unless a value of theirs is whole already. */
static enum sheaf_status sum_results(struct planner *p) {
    for (int i = 0; i < p->graph->n_nodes; i++) {
        if (!is_result(p, i) || p->value[p->node_value[i]].st.kind != SHEAF__P) continue;
        struct planned_operand o = {.entry = p->self[i]};
        sheaf__plan_list(p, &o, false);
        bool whole = o.n == 0;
        for (int k = 0; k < o.n; k++) whole = whole || o.st[k].kind != SHEAF__P;
        const struct sheaf__need m = {.st = sheaf__st_m()};
        if (!whole && sheaf__plan_obtain(p, &o, &m, i) == NONE) return sheaf__plan_no_memory();
    }
    return SHEAF_STATUS_SUCCESS;
}

/* The entry through which a value is read after the compute: a node that wrote into a copy, out of
 * date by now, is read through the tensor that it wrote over. NONE: there is none up to date. */
static int final_entry(struct planner *p, int value) {
    int e = p->value[value].entry;
    while (!sheaf__plan_usable(p, value) && !is_up_to_date(p, e)) {
        const struct sheaf_tensor *t = p->entry[e].tensor;
        const int written = sheaf__op_written(t);
        if (!written) return NONE;
        e = sheaf__plan_entry(p, t->src[written - 1]);
    }
    return e;
}

/* The value to read after the compute: mirrored if there is one, and no addend if there is another. */
static int final_value(struct planner *p, int own) {
    const int e = final_entry(p, own);
    if (e == NONE) return own;
    int final = sheaf__plan_usable(p, own) ? own : p->entry[e].values;
    while (!sheaf__plan_usable(p, final)) final = p->value[final].older;
    for (int v = p->entry[e].values; v != NONE; v = p->value[v].older) {
        const enum sheaf__state_kind kind = p->value[v].st.kind;
        if (sheaf__plan_usable(p, v) &&
            (kind == SHEAF__M || (kind == SHEAF__S && p->value[final].st.kind == SHEAF__P)))
            final = v;
    }
    return final;
}

/* Copies what the planner found into the plan, steps in order. */
static enum sheaf_status publish(struct planner *p, struct sheaf__plan_impl *impl) {
    struct sheaf__split_plan *plan = &impl->plan;
    const size_t n_nodes = (size_t)p->graph->n_nodes, n_values = (size_t)p->n_values;
    struct sheaf__pool *pool = &impl->pool;
    plan->values = sheaf__pool_alloc(pool, (n_values + 1) * sizeof *plan->values);
    impl->st = sheaf__pool_alloc(pool, (n_values + 1) * sizeof *impl->st);
    plan->steps = sheaf__pool_alloc(pool, ((size_t)p->n_steps + 1) * sizeof *plan->steps);
    plan->node_final = sheaf__pool_alloc(pool, (n_nodes + 1) * sizeof(int));
    if (pool->failed) return sheaf__plan_no_memory();
    impl->whole_sums = p->whole_sums;
    plan->n_members = p->n_members;
    plan->n_values = p->n_values;
    plan->n_steps = p->n_steps;
    for (int v = 0; v < p->n_values; v++) {
        const struct sheaf_split_state *shown = sheaf__st_show(pool, p->value[v].st);
        if (!shown) return sheaf__plan_no_memory();
        plan->values[v].tensor = p->value[v].tensor;
        plan->values[v].state = (struct sheaf_split_state *)(uintptr_t)shown;
        impl->st[v] = p->value[v].st;
    }
    if (p->n_steps) memcpy(plan->steps, p->step, (size_t)p->n_steps * sizeof *plan->steps);
    for (int i = 0; i < p->graph->n_nodes; i++)
        plan->node_final[i] = final_value(p, p->node_value[i]);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__split_plan_new_with(const struct sheaf_cgraph *graph, int n_members,
                                             sheaf__leaf_state_fn leaf_state, void *user,
                                             const uint8_t *whole, bool whole_sums,
                                             struct sheaf__split_plan **out) {
    *out = NULL;
    if (n_members < 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "split: a plan for %d members; it wants at least one", n_members);
    struct sheaf__plan_impl *impl = calloc(1, sizeof *impl);
    if (!impl) return sheaf__plan_no_memory();
    enum sheaf_status status = sheaf__pool_init(&impl->pool, n_members);
    if (status != SHEAF_STATUS_SUCCESS) {
        free(impl);
        return status;
    }
    struct planner p = {.graph = graph,
                        .n_members = n_members,
                        .leaf_state = leaf_state,
                        .user = user,
                        .whole = whole,
                        .whole_sums = whole_sums,
                        .pool = &impl->pool};
    status = sheaf__plan_prepare(&p);
    for (int i = 0; i < graph->n_nodes && status == SHEAF_STATUS_SUCCESS; i++)
        status = plan_node(&p, i);
    if (status == SHEAF_STATUS_SUCCESS) status = renew_views(&p);
    if (status == SHEAF_STATUS_SUCCESS) status = sum_results(&p);
    if (status == SHEAF_STATUS_SUCCESS) status = publish(&p, impl);
    sheaf__plan_end(&p);
    if (status == SHEAF_STATUS_SUCCESS) {
        *out = &impl->plan;
    } else {
        sheaf__split_plan_free(&impl->plan);
    }
    return status;
}

enum sheaf_status sheaf__split_plan_new(const struct sheaf_cgraph *graph, int n_members,
                                        sheaf__leaf_state_fn leaf_state, void *user,
                                        struct sheaf__split_plan **out) {
    return sheaf__split_plan_new_with(graph, n_members, leaf_state, user, NULL, false, out);
}

void sheaf__split_plan_free(struct sheaf__split_plan *plan) {
    if (!plan) return;
    struct sheaf__plan_impl *impl = (struct sheaf__plan_impl *)(void *)plan;
    sheaf__pool_free(&impl->pool);
    free(impl);
}
