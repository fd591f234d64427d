/* Conversion steps of a plan: how an operand becomes what a row needs. Which of its values is
 * converted is decided in decide.c. */
#include "split/convert.h"
#include "split/decide.h"
#include "split/planner.h"

/* The value of `from`'s tensor in state `to` by one conversion step after another. */
static int convert(struct planner *p, int from, struct sheaf__st to, int node) {
    while (!sheaf__st_equal(p->value[from].st, to)) {
        struct sheaf__st reached;
        const struct sheaf__conversion c = sheaf__convert_step(p->value[from].st, to, &reached);
        const int s = sheaf__plan_step(p, c.kind, node);
        const int v = s == NONE ? NONE : sheaf__plan_value(p, p->value[from].entry, reached, false);
        if (v == NONE) return NONE;
        p->step[s].collective = c.collective;
        p->step[s].in[0] = from;
        p->step[s].out = v;
        p->step[s].bytes = sheaf__dense_bytes(p->value[v].tensor);
        p->value[v].origin = from;
        p->value[v].packed = !sheaf_is_contiguous(p->value[v].tensor);
        from = v;
    }
    return from;
}

int sheaf__plan_obtain(struct planner *p, const struct planned_operand *o,
                       const struct sheaf__need *need, int node) {
    int64_t cost;
    const int best =
        o->value[sheaf__cheapest_source(o->st, o->n, need, o->bytes, p->n_members, &cost)];
    return cost == SHEAF__MET ? best : convert(p, best, need->st, node);
}

/* The value in the tensor's own memory of which v is a copy; NONE: v is a copy of a view of one, so
 * that a write into it cannot be carried back. */
static int home_of(const struct planner *p, int v) {
    if (p->value[v].copy != NONE) v = p->value[v].copy;
    while (v != NONE && !p->value[v].native) v = p->value[v].origin;
    return v;
}

enum sheaf_status sheaf__plan_mirror(struct planner *p, int e, enum mirror_for what, int node,
                                     int *out) {
    struct sheaf_tensor *t = p->entry[e].tensor;
    struct planned_operand o = {.entry = e};
    sheaf__plan_list(p, &o, true);
    for (int i = 0; i < o.n; i++) {
        if (o.st[i].kind == SHEAF__M && (what == FOR_VIEW || home_of(p, o.value[i]) != NONE)) {
            *out = o.value[i];
            return SHEAF_STATUS_SUCCESS;
        }
    }
    const bool view = p->entry[e].node != NONE && sheaf__is_view_form(sheaf__rule_of(t));
    if (!view || (what == FOR_VIEW && sheaf_is_contiguous(t))) {
        const struct sheaf__need m = {.st = sheaf__st_m()};
        sheaf__plan_list(p, &o, false);
        *out = sheaf__plan_obtain(p, &o, &m, node);
        return *out == NONE ? sheaf__plan_no_memory() : SHEAF_STATUS_SUCCESS;
    }
    int below, source;
    enum sheaf_status status = sheaf__plan_refresh(p, t->src[0], &below);
    if (status == SHEAF_STATUS_SUCCESS) status = sheaf__plan_mirror(p, below, what, node, &source);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    const int s = sheaf__plan_step(p, SHEAF_SPLIT_STEP_NODE, p->entry[e].node);
    const int v =
        s == NONE ? NONE : sheaf__plan_value(p, e, sheaf__st_m(), p->value[source].native);
    if (v == NONE) return sheaf__plan_no_memory();
    p->step[s].in[0] = source;
    p->step[s].out = v;
    p->value[v].copy = p->value[source].copy;
    p->value[v].epoch = p->value[source].epoch;
    *out = v;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__plan_write_back(struct planner *p, int written, int node) {
    const int copy = p->value[written].copy, target = home_of(p, written);
    if (copy == NONE || target == NONE) { /* not known to happen; a wrong plan must not run */
        return sheaf_set_error(
            SHEAF_STATUS_FAILED,
            "split: node %d writes into a copy of '%s' whose own memory the plan "
            "has lost; please report this graph",
            node, p->value[written].tensor->name);
    }
    const enum sheaf_split_step_kind kind =
        p->value[target].st.kind == SHEAF__P ? SHEAF_SPLIT_STEP_KEEP_ONE : SHEAF_SPLIT_STEP_SLICE;
    const int s = sheaf__plan_step(p, kind, node);
    if (s == NONE) return sheaf__plan_no_memory();
    p->step[s].in[0] = copy;
    p->step[s].out = target;
    p->step[s].bytes = sheaf__dense_bytes(p->value[target].tensor);
    p->value[copy].epoch = *sheaf__plan_epoch(p, p->value[copy].entry);
    return SHEAF_STATUS_SUCCESS;
}
