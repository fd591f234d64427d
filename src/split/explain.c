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
    for (int j = 0, alike = 1; j < n_members; j += alike) {
        const int64_t count = sheaf__cut_count(st.cut, j);
        for (alike = 1; j + alike < n_members && sheaf__cut_count(st.cut, j + alike) == count;)
            alike++;
        sheaf__put(t, "%s%" PRId64, j ? "," : "", count);
        alike = sheaf__put_alike(t, alike);
    }
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

/* A node whose operands were gathered. */
struct gathered {
    const struct sheaf__plan_impl *impl;
    const struct sheaf_tensor *node;
    const struct sheaf__rule *rule;
    bool has_expr;
    struct sheaf__expr e;
    char expr[SHEAF__MAX_EXPR];
    int n;                          /* operands */
    int value[SHEAF__MAX_OPERANDS]; /* before conversions */
    struct sheaf__st st[SHEAF__MAX_OPERANDS];
    int which; /* the first cut operand that is gathered; -1 */
};

/* ---- the reason in one line ---- */

static bool is_cut(const struct gathered *g, int operand) {
    return g->st[operand].kind == SHEAF__S;
}

static void put_crossed(struct sheaf__text *t, const struct gathered *g) {
    sheaf__put(t, "  the cut of src%d is not a cut of '%s': its pieces lie across the dimensions",
               g->which, sheaf__name_of(g->node));
    if (g->impl->pool.any_refused)
        sheaf__put(t, ", or there are more than %d of them", (int)SHEAF__MAX_INTERVALS);
    sheaf__put(t, "\n");
}

/* Operand q has another cut of factor f: the first member whose shares differ. */
static void put_mismatch(struct sheaf__text *t, const struct gathered *g, int f, int q) {
    const struct sheaf__cut *mine = g->st[g->which].cut, *other = g->st[q].cut;
    for (int j = 0; j < g->impl->plan.n_members; j++) {
        const int64_t a = sheaf__cut_count(mine, j), b = sheaf__cut_count(other, j);
        if (a * other->extent == b * mine->extent) continue;
        sheaf__put(t,
                   "  row %c wants matching cuts; member %d has %" PRId64 " of %" PRId64
                   " in src%d and %" PRId64 " of %" PRId64 " in src%d\n",
                   g->e.letter[f], j, a, mine->extent, g->which, b, other->extent, q);
        return;
    }
    sheaf__put(t, "  row %c wants matching cuts; those of src%d and src%d have other pieces\n",
               g->e.letter[f], g->which, q);
}

/* False: the factor is not why. */
static bool put_factor_reason(struct sheaf__text *t, const struct gathered *g, int f) {
    const struct sheaf__expr *e = &g->e;
    if (e->kind[f] == SHEAF__WHOLE) {
        sheaf__put(t, "  src%d is cut along %c, which the op needs whole\n", g->which,
                   e->letter[f]);
        return true;
    }
    if (e->kind[f] == SHEAF__SUM && g->impl->whole_sums) {
        sheaf__put(t, "  src%d is cut along %c, and sums are whole (SHEAF_SPLIT_SUMS)\n", g->which,
                   e->letter[f]);
        return true;
    }
    if (e->kind[f] == SHEAF__SUM && !g->st[g->which].cut->partition) {
        sheaf__put(t, "  row %c is a sum, so its slices must not overlap\n", e->letter[f]);
        return true;
    }
    for (int q = 0; q < g->n; q++) {
        if (q == g->which || !is_cut(g, q) || sheaf__expr_axis(e, q, f) != g->st[q].axis) continue;
        put_mismatch(t, g, f, q);
        return true;
    }
    return false;
}

static void put_reason(struct sheaf__text *t, const struct gathered *g) {
    if (!g->has_expr) {
        put_crossed(t, g);
        return;
    }
    const int axis = g->st[g->which].axis;
    const struct sheaf__dim *d = &g->e.dim[g->which][axis];
    for (int k = 0; k < d->n; k++) {
        for (int l = 0; l < d->term[k].n; l++) {
            const int f = d->term[k].factor[l];
            if (g->e.size[f] == 1 && d->term[k].n > 1) continue;
            if (put_factor_reason(t, g, f)) return;
        }
    }
    for (int q = 0; q < g->n; q++) {
        if (q == g->which || !is_cut(g, q)) continue;
        sheaf__put(t, "  src%d is cut along dimension %d and src%d along %d; no row takes both\n",
                   g->which, axis, q, g->st[q].axis);
        return;
    }
    sheaf__put(t, "  no row takes this cut of src%d\n", g->which);
}

/* ---- the whole text ---- */

/* The step that computes the node, and the gather made for it that a leaf's cut has caused. */
static bool find_steps(const struct sheaf__plan_impl *impl, int node,
                       const struct sheaf__split_step **run,
                       const struct sheaf__split_step **gather) {
    *run = *gather = NULL;
    for (int s = 0; s < impl->plan.n_steps; s++) {
        const struct sheaf__split_step *st = &impl->plan.steps[s];
        if (st->node != node) continue;
        if (st->kind == SHEAF_SPLIT_STEP_NODE) *run = st;
        if (sheaf__step_is(st, SHEAF_COMM_ALL_GATHER) && !*gather && !is_scattered(impl, st->in[0]))
            *gather = st;
    }
    return *run && *gather;
}

/* A line for each operand: its state, and where that comes from. */
static void put_operands(struct sheaf__text *t, struct gathered *g,
                         const struct sheaf__split_step *run) {
    const struct sheaf__split_plan *plan = &g->impl->plan;
    g->n = sheaf__n_operands(g->node);
    g->which = -1;
    for (int i = 0; i < g->n; i++) {
        const struct sheaf_tensor *s = g->node->src[i];
        g->st[i] = sheaf__st_m();
        if (!s) continue;
        g->value[i] = before_conversions(plan, run->in[i]);
        g->st[i] = g->impl->st[g->value[i]];
        sheaf__put(t, "  src%d ", i);
        sheaf__put_tensor(t, s);
        sheaf__put_state(t, g->st[i], plan->n_members);
        if (is_cut(g, i)) {
            const struct sheaf_tensor *source = source_of(g->impl, g->value[i]);
            if (source == s) {
                sheaf__put(t, "   as given");
            } else {
                sheaf__put(t, "   from %s", sheaf__name_of(source));
            }
            if (g->which < 0 && run->in[i] != g->value[i]) g->which = i;
        }
        sheaf__put(t, "\n");
    }
}

static void put_suggestion(struct sheaf__text *t, const struct gathered *g) {
    const struct sheaf_tensor *mine = source_of(g->impl, g->value[g->which]);
    for (int q = 0; q < g->n; q++) {
        if (q == g->which || !is_cut(g, q)) continue;
        const struct sheaf_tensor *other = source_of(g->impl, g->value[q]);
        if (other == mine) continue;
        sheaf__put(t, "  try: give '%s' the cut of '%s', or mirror one of them\n",
                   sheaf__name_of(mine), sheaf__name_of(other));
        return;
    }
    sheaf__put(t, "  try: cut '%s' along another dimension, or mirror it\n", sheaf__name_of(mine));
}

bool sheaf__split_explain(const struct sheaf__split_plan *plan, const struct sheaf_cgraph *graph,
                          int node, char *buf, size_t n) {
    const struct sheaf__plan_impl *impl = sheaf__plan_impl(plan);
    struct sheaf__text t = {buf, n, 0};
    if (n) *buf = 0;
    const struct sheaf__split_step *run, *gather;
    if (!find_steps(impl, node, &run, &gather)) return false;
    const struct sheaf_tensor *x = graph->nodes[node];
    struct gathered g = {.impl = impl, .node = x, .rule = sheaf__rule_of(x)};
    g.has_expr = g.rule->form == SHEAF__FORM_EXPR && sheaf__expr_of(x, g.rule, &g.e, g.expr);
    sheaf__put(&t, "split: no rule fits node %d '%s' %s   ", node, sheaf__name_of(x),
               sheaf_op_desc(x));
    sheaf__put_rule(&t, g.rule, g.expr);
    sheaf__put(&t, "\n");
    put_operands(&t, &g, run);
    if (g.which >= 0) put_reason(&t, &g);
    sheaf__put(&t, "  done: '%s' is gathered, ",
               sheaf__name_of(plan->values[gather->in[0]].tensor));
    sheaf__put_bytes(&t, gather->bytes);
    sheaf__put(&t, " a compute\n");
    if (g.which >= 0 && !impl->whole_sums) put_suggestion(&t, &g); /* whole sums want gathers */
    return true;
}
