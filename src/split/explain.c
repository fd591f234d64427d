/* Text for the person that chose the cuts: why the operands of a node had to be gathered, and how
 * to avoid it. Reads a finished plan and changes nothing. */
#include <inttypes.h>
#include <string.h>

#include "split/explain.h"
#include "split/plan-impl.h"
#include "tensor/graph.h"

static const struct sheaf__split_step *maker(const struct sheaf__split_plan *p, int value) {
    for (int s = 0; s < p->n_steps; s++) {
        if (p->steps[s].out == value) return &p->steps[s];
    }
    return NULL;
}

/* The value that conversions made this one from. */
static int before_conversions(const struct sheaf__split_plan *p, int value) {
    const struct sheaf__split_step *s;
    while ((s = maker(p, value)) && s->kind != SHEAF_SPLIT_STEP_NODE) value = s->in[0];
    return value;
}

const char *sheaf__name_of(const struct sheaf_tensor *t) {
    return *t->name ? t->name : sheaf_op_desc(t);
}

/* The leaf that brought the cut of a value into the graph. */
static const struct sheaf_tensor *source_of(const struct sheaf__plan_impl *impl, int value) {
    const struct sheaf__split_plan *p = &impl->plan;
    for (;;) {
        const struct sheaf__split_step *s = maker(p, value);
        if (!s || s->in[0] < 0) return p->values[value].tensor;
        int next = -1;
        for (int i = 0; i < SHEAF_MAX_SRC; i++) {
            if (s->in[i] < 0) continue;
            const struct sheaf__st st = impl->st[s->in[i]];
            if (st.kind != SHEAF__S) continue;
            const bool same = st.cut == impl->st[value].cut;
            if (next < 0 || (same && impl->st[next].cut != impl->st[value].cut)) next = s->in[i];
        }
        if (next < 0) return p->values[value].tensor;
        value = next;
    }
}

/* Does the cut of the value come from a reduce-scatter, not from a leaf? */
static bool is_scattered(const struct sheaf__plan_impl *impl, int value) {
    const struct sheaf__split_step *s;
    while (value >= 0 && (s = maker(&impl->plan, value))) {
        if (sheaf__step_is(s, SHEAF_COMM_REDUCE_SCATTER)) return true;
        value = -1;
        for (int i = 0; i < SHEAF_MAX_SRC && value < 0; i++) {
            if (s->in[i] >= 0 && impl->st[s->in[i]].kind == SHEAF__S) value = s->in[i];
        }
    }
    return false;
}

void sheaf__put_state(struct sheaf__text *t, struct sheaf__st st, int n_members) {
    if (st.kind != SHEAF__S) {
        sheaf__put(t, "%s", st.kind == SHEAF__M ? "M" : "P");
        return;
    }
    sheaf__put(t, "S%d {", st.axis);
    for (int j = 0; j < n_members; j++)
        sheaf__put(t, "%s%" PRId64, j ? "," : "", sheaf__cut_count(st.cut, j));
    sheaf__put(t, "}");
    if (!st.cut->contiguous) sheaf__put(t, " in pieces");
    if (!st.cut->partition) sheaf__put(t, " overlapping");
}

void sheaf__put_tensor(struct sheaf__text *t, const struct sheaf_tensor *x) {
    sheaf__put(t, "%s [", sheaf__name_of(x));
    for (int d = 0, last = sheaf_n_dims(x); d < last; d++)
        sheaf__put(t, "%s%" PRId64, d ? " " : "", x->ne[d]);
    sheaf__put(t, "] ");
}

void sheaf__put_bytes(struct sheaf__text *t, int64_t bytes) {
    const double b = (double)bytes;
    if (bytes < 10240) {
        sheaf__put(t, "%" PRId64 " bytes", bytes);
    } else if (bytes < 10 << 20) {
        sheaf__put(t, "%.1f KiB", b / 1024);
    } else {
        sheaf__put(t, "%.1f MiB", b / (1 << 20));
    }
}

void sheaf__put_rule(struct sheaf__text *t, const struct sheaf__rule *rule, const char *expr) {
    if (rule->form != SHEAF__FORM_EXPR) {
        sheaf__put(t,
                   rule->form == SHEAF__FORM_COPY ? "in the order of elements" : "by its strides");
        return;
    }
    sheaf__put(t, "%s", expr);
    for (const char *p = rule->sum; p && *p; p++) sheaf__put(t, "   (%c is summed)", *p);
    for (const char *p = rule->whole; p && *p; p++) {
        if (strchr(expr, *p)) sheaf__put(t, "   (%c is whole)", *p);
    }
}

struct operands {
    int n, value[SHEAF__MAX_OPERANDS];
    struct sheaf__st st[SHEAF__MAX_OPERANDS];
};

/* The reason in one line: for operand i, which was gathered. */
static void put_reason(struct sheaf__text *t, const struct sheaf__plan_impl *impl,
                       const struct sheaf_tensor *node, const struct sheaf__expr *e,
                       const struct operands *o, int i) {
    const struct sheaf__st st = o->st[i];
    if (!e) {
        sheaf__put(t,
                   "  the cut of src%d is not a cut of '%s': its pieces lie across the dimensions",
                   i, sheaf__name_of(node));
        if (impl->pool.any_refused)
            sheaf__put(t, ", or there are more than %d of them", (int)SHEAF__MAX_INTERVALS);
        sheaf__put(t, "\n");
        return;
    }
    const struct sheaf__dim *d = &e->dim[i][st.axis];
    for (int k = 0; k < d->n; k++) {
        for (int l = 0; l < d->term[k].n; l++) {
            const int f = d->term[k].factor[l];
            if (e->size[f] == 1 && d->term[k].n > 1) continue;
            if (e->kind[f] == SHEAF__WHOLE) {
                sheaf__put(t, "  src%d is cut along %c, which the op needs whole\n", i,
                           e->letter[f]);
                return;
            }
            if (e->kind[f] == SHEAF__SUM && impl->whole_sums) {
                sheaf__put(t, "  src%d is cut along %c, and sums are whole (SHEAF_SPLIT_SUMS)\n", i,
                           e->letter[f]);
                return;
            }
            if (e->kind[f] == SHEAF__SUM && !st.cut->partition) {
                sheaf__put(t, "  row %c is a sum, so its slices must not overlap\n", e->letter[f]);
                return;
            }
            for (int q = 0; q < o->n; q++) {
                if (q == i || o->st[q].kind != SHEAF__S ||
                    sheaf__expr_axis(e, q, f) != o->st[q].axis)
                    continue;
                for (int j = 0; j < impl->plan.n_members; j++) {
                    const int64_t a = sheaf__cut_count(st.cut, j);
                    const int64_t b = sheaf__cut_count(o->st[q].cut, j);
                    if (a * o->st[q].cut->extent == b * st.cut->extent) continue;
                    sheaf__put(t,
                               "  row %c wants matching cuts; member %d has %" PRId64 " of %" PRId64
                               " in src%d and %" PRId64 " of %" PRId64 " in src%d\n",
                               e->letter[f], j, a, st.cut->extent, i, b, o->st[q].cut->extent, q);
                    return;
                }
                sheaf__put(
                    t, "  row %c wants matching cuts; those of src%d and src%d have other pieces\n",
                    e->letter[f], i, q);
                return;
            }
        }
    }
    for (int q = 0; q < o->n; q++) {
        if (q == i || o->st[q].kind != SHEAF__S) continue;
        sheaf__put(t, "  src%d is cut along dimension %d and src%d along %d; no row takes both\n",
                   i, st.axis, q, o->st[q].axis);
        return;
    }
    sheaf__put(t, "  no row takes this cut of src%d\n", i);
}

bool sheaf__split_explain(const struct sheaf__split_plan *plan, const struct sheaf_cgraph *graph,
                          int node, char *buf, size_t n) {
    const struct sheaf__plan_impl *impl = sheaf__plan_impl(plan);
    struct sheaf__text t = {buf, n, 0};
    if (n) *buf = 0;
    const struct sheaf__split_step *run = NULL, *gather = NULL;
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step *st = &plan->steps[s];
        if (st->node != node) continue;
        if (st->kind == SHEAF_SPLIT_STEP_NODE) run = st;
        if (sheaf__step_is(st, SHEAF_COMM_ALL_GATHER) && !gather && !is_scattered(impl, st->in[0]))
            gather = st;
    }
    if (!run || !gather) return false;

    const struct sheaf_tensor *x = graph->nodes[node];
    const struct sheaf__rule *rule = sheaf__rule_of(x);
    struct sheaf__expr e;
    char expr[SHEAF__MAX_EXPR] = "";
    const bool known = rule->form == SHEAF__FORM_EXPR && sheaf__expr_of(x, rule, &e, expr);
    sheaf__put(&t, "split: no rule fits node %d '%s' %s   ", node, sheaf__name_of(x),
               sheaf_op_desc(x));
    sheaf__put_rule(&t, rule, expr);
    sheaf__put(&t, "\n");
    struct operands o = {.n = sheaf__n_operands(x)};
    int gathered = -1;
    for (int i = 0; i < o.n; i++) {
        const struct sheaf_tensor *s = x->src[i];
        o.st[i] = sheaf__st_m();
        if (!s) continue;
        o.value[i] = before_conversions(plan, run->in[i]);
        o.st[i] = impl->st[o.value[i]];
        sheaf__put(&t, "  src%d ", i);
        sheaf__put_tensor(&t, s);
        sheaf__put_state(&t, o.st[i], plan->n_members);
        if (o.st[i].kind == SHEAF__S) {
            const struct sheaf_tensor *source = source_of(impl, o.value[i]);
            if (source == s) {
                sheaf__put(&t, "   as given");
            } else {
                sheaf__put(&t, "   from %s", sheaf__name_of(source));
            }
            if (gathered < 0 && run->in[i] != o.value[i]) gathered = i;
        }
        sheaf__put(&t, "\n");
    }
    if (gathered >= 0) put_reason(&t, impl, x, known ? &e : NULL, &o, gathered);
    sheaf__put(&t, "  done: '%s' is gathered, ",
               sheaf__name_of(plan->values[gather->in[0]].tensor));
    sheaf__put_bytes(&t, gather->bytes);
    sheaf__put(&t, " a compute\n");
    if (gathered < 0 || impl->whole_sums) return true; /* whole sums want gathers */
    const struct sheaf_tensor *mine = source_of(impl, o.value[gathered]);
    for (int q = 0; q < o.n; q++) {
        if (q == gathered || o.st[q].kind != SHEAF__S) continue;
        const struct sheaf_tensor *other = source_of(impl, o.value[q]);
        if (other == mine) continue;
        sheaf__put(&t, "  try: give '%s' the cut of '%s', or mirror one of them\n",
                   sheaf__name_of(mine), sheaf__name_of(other));
        return true;
    }
    sheaf__put(&t, "  try: cut '%s' along another dimension, or mirror it\n", sheaf__name_of(mine));
    return true;
}
