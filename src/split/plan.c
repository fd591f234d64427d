/* The planner: one forward pass over the nodes. Each node takes the row that search.c advises; the
 * conversions that the row needs become steps; what each step makes is a value.
 *
 * Memory and time: a tensor's own value is `native`, it lies in the tensor's memory. A conversion
 * makes a copy. When an op writes in place, copies of what it wrote to are out of date: `epoch`
 * counts the writes to an owner of memory, and a copy is usable only in the epoch it was made in.
 *
 * Invariant: the result depends on the graph, the leaf states and the member count alone. */
#include "split/plan.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "split/convert.h"
#include "split/plan-impl.h"
#include "split/search.h"

enum { NONE = -1, MAX_STATES = 8 };

struct value {
    struct sheaf_tensor *tensor;
    struct sheaf__st st;
    int entry, older;
    int step;    /* that makes it; NONE: given */
    bool native; /* lies in the tensor's own memory */
    bool packed; /* a dense copy of a tensor that is not dense */
    int epoch;   /* of the owner, when a copy was made */
    int copy;    /* of a copy or a view of one: the value that holds the memory */
    int origin;  /* of a copy: the value that it is a copy of */
};

struct step {
    struct sheaf__split_step s;
    int next;
    int addend; /* see struct sheaf__row */
};

struct planner {
    const struct sheaf_cgraph *graph;
    int n_members;
    sheaf__leaf_state_fn leaf_state;
    void *user;
    struct sheaf__pool *pool;
    struct sheaf__entry *entry;
    int n_entries, cap_entries;
    int *slot; /* hash of tensors: entry + 1 */
    size_t n_slots;
    struct value *value;
    int n_values, cap_values;
    struct step *step;
    int n_steps, cap_steps, first_step, last_step;
    int *node_value;
    int *self, *operand; /* entries of nodes and of their operands, see struct sheaf__search_of */
    struct sheaf__search_of of;
    struct sheaf__search *search;
};

static enum sheaf_status out_of_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split: out of memory while planning");
}

/* Room for one more element. */
static bool reserve(void **array, int n, int *cap, size_t size) {
    if (n < *cap) return true;
    const int grown_cap = *cap ? 2 * *cap : 64;
    void *grown = realloc(*array, (size_t)grown_cap * size);
    if (!grown) return false;
    *array = grown;
    *cap = grown_cap;
    return true;
}

/* ---- tensors ---- */

static size_t hash_of(const struct sheaf_tensor *t) {
    return (size_t)((uint64_t)(uintptr_t)t / 16 * 0x9E3779B97F4A7C15u >> 24);
}

/* Entry of a tensor, made if there is none. NONE: out of memory. */
static int entry_of(struct planner *p, struct sheaf_tensor *t) {
    size_t i = hash_of(t) & (p->n_slots - 1);
    for (; p->slot[i]; i = (i + 1) & (p->n_slots - 1)) {
        if (p->entry[p->slot[i] - 1].tensor == t) return p->slot[i] - 1;
    }
    if ((size_t)p->n_entries * 2 >= p->n_slots) {
        const size_t n = p->n_slots * 2;
        int *slot = calloc(n, sizeof *slot);
        if (!slot) return NONE;
        for (int e = 0; e < p->n_entries; e++) {
            size_t k = hash_of(p->entry[e].tensor) & (n - 1);
            while (slot[k]) k = (k + 1) & (n - 1);
            slot[k] = e + 1;
        }
        free(p->slot);
        p->slot = slot;
        p->n_slots = n;
        i = hash_of(t) & (n - 1);
        while (slot[i]) i = (i + 1) & (n - 1);
    }
    if (!reserve((void **)&p->entry, p->n_entries, &p->cap_entries, sizeof *p->entry)) return NONE;
    const int e = p->n_entries++;
    p->entry[e] = (struct sheaf__entry){.tensor = t, .node = NONE, .owner = e, .values = NONE};
    p->slot[i] = e + 1;
    if (t->view_src && t->view_src != t) {
        const int owner = entry_of(p, t->view_src);
        if (owner == NONE) return NONE;
        p->entry[e].owner = p->entry[owner].owner;
    }
    return e;
}

static int *epoch_of(struct planner *p, int entry) {
    return &p->entry[p->entry[entry].owner].epoch;
}

/* ---- values and steps ---- */

static int new_value(struct planner *p, int entry, struct sheaf__st st, int step, bool native) {
    if (!reserve((void **)&p->value, p->n_values, &p->cap_values, sizeof *p->value)) return NONE;
    const int v = p->n_values++;
    p->value[v] = (struct value){.tensor = p->entry[entry].tensor,
                                 .st = st,
                                 .entry = entry,
                                 .older = p->entry[entry].values,
                                 .step = step,
                                 .native = native,
                                 .epoch = *epoch_of(p, entry),
                                 .copy = native ? NONE : v,
                                 .origin = NONE};
    p->entry[entry].values = v;
    return v;
}

static bool usable(struct planner *p, int v) {
    return p->value[v].native || p->value[v].epoch == *epoch_of(p, p->value[v].entry);
}

/* Appends a step, or puts it before step `before`. */
static int new_step(struct planner *p, enum sheaf_split_step_kind kind, int node, int before) {
    if (!reserve((void **)&p->step, p->n_steps, &p->cap_steps, sizeof *p->step)) return NONE;
    const int i = p->n_steps++;
    struct step *s = &p->step[i];
    *s =
        (struct step){.s = {.kind = kind, .node = node, .out = NONE}, .next = before, .addend = -1};
    for (int k = 0; k < SHEAF_MAX_SRC; k++) s->s.in[k] = NONE;
    if (before == NONE) {
        if (p->last_step == NONE) {
            p->first_step = i;
        } else {
            p->step[p->last_step].next = i;
        }
        p->last_step = i;
        return i;
    }
    int *link = &p->first_step;
    while (*link != before) link = &p->step[*link].next;
    *link = i;
    return i;
}

/* The value of `from`'s tensor in state `to` by one conversion step after another. */
static int convert(struct planner *p, int from, struct sheaf__st to, int node, int before) {
    while (!sheaf__st_equal(p->value[from].st, to)) {
        struct sheaf__st reached;
        const struct sheaf__conversion c = sheaf__convert_step(p->value[from].st, to, &reached);
        const int s = new_step(p, c.kind, node, before);
        const int v = s == NONE ? NONE : new_value(p, p->value[from].entry, reached, s, false);
        if (v == NONE) return NONE;
        p->step[s].s.collective = c.collective;
        p->step[s].s.in[0] = from;
        p->step[s].s.out = v;
        p->step[s].s.bytes = sheaf__dense_bytes(p->value[v].tensor);
        p->value[v].origin = from;
        p->value[v].packed = !sheaf_is_contiguous(p->value[v].tensor);
        from = v;
    }
    return from;
}

/* ---- sliding a reduction back ---- */

/* True if the value is PARTIAL only because one of its operands is, and no other node has read it,
 * so that it may as well be MIRRORED. */
static bool retractable(struct planner *p, int v) {
    const struct value *x = &p->value[v];
    const struct sheaf__entry *e = &p->entry[x->entry];
    if (x->st.lie != SHEAF__P || x->step == NONE || !x->native || x->older != NONE) return false;
    if (e->values != v || e->uses != 1 || (e->tensor->flags & SHEAF_TENSOR_FLAG_OUTPUT))
        return false;
    const struct step *s = &p->step[x->step];
    return s->s.kind == SHEAF_SPLIT_STEP_NODE && s->addend >= 0 && *epoch_of(p, x->entry) == 0 &&
           !sheaf__rule_of(e->tensor)->written;
}

/* The reduction of `v` to MIRRORED, done on the smallest tensor of the single-use linear chain that
 * ends in v. */
static int reduce(struct planner *p, int v, int node) {
    int best = v, at = v;
    int64_t least = sheaf__dense_bytes(p->value[v].tensor);
    while (retractable(p, at)) {
        const struct step *s = &p->step[p->value[at].step];
        at = s->s.in[s->addend];
        const int64_t bytes = sheaf__dense_bytes(p->value[at].tensor);
        if (bytes < least) {
            least = bytes;
            best = at;
        }
    }
    if (best == v) return convert(p, v, sheaf__st_m(), node, NONE);
    /* from v back to best, each node becomes a MIRRORED one */
    for (at = v; at != best;) {
        struct step *s = &p->step[p->value[at].step];
        const int operand = s->addend, source = s->s.in[operand];
        p->value[at].st = sheaf__st_m();
        s->addend = -1;
        s->s.add_once = false;
        s->s.once = 0;
        if (source == best) {
            const int step = p->value[at].step;
            const int m = convert(p, best, sheaf__st_m(), p->step[step].s.node, step);
            if (m == NONE) return NONE;
            p->step[step].s.in[operand] = m;
        }
        at = source;
    }
    return v;
}

/* ---- leaves ---- */

static enum sheaf_status leaf_value(struct planner *p, int e) {
    if (p->entry[e].values != NONE) return SHEAF_STATUS_SUCCESS;
    const struct sheaf_tensor *t = p->entry[e].tensor;
    const struct sheaf_split_state *given = p->leaf_state(t, p->user);
    if (!given) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "split: leaf '%s' %s [%lld %lld %lld %lld] has no state; have the "
                               "split function return one for it (MIRRORED if every member is to "
                               "hold all of it)",
                               t->name, sheaf_type_name(t->type), (long long)t->ne[0],
                               (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3]);
    }
    if (given->n_members != p->n_members) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "split: leaf '%s' has a state for %d members, the plan is for %d",
                               t->name, given->n_members, p->n_members);
    }
    const enum sheaf_status status = sheaf_split_state_check(given, t);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    struct sheaf__st st = sheaf__st_m();
    if (p->n_members == 1) {
        /* one member has everything, whatever it is called: no conversions */
    } else if (given->axis == SHEAF_SPLIT_AXIS_PARTIAL) {
        st = sheaf__st_p();
    } else if (given->axis != SHEAF_SPLIT_AXIS_MIRRORED) {
        const struct sheaf__cut *cut = sheaf__cut_from_state(p->pool, given);
        if (!cut && p->pool->failed) return out_of_memory();
        if (!cut) {
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "split: the cut of leaf '%s' has too many intervals; cut a "
                                   "slower dimension",
                                   t->name);
        }
        sheaf__cut_show_as(p->pool, cut, given);
        if (!cut->everywhere) st = sheaf__st_s((int)given->axis, cut);
    }
    p->entry[e].st = st;
    return new_value(p, e, st, NONE, true) == NONE ? out_of_memory() : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status plan_node(struct planner *p, int node);

/* Makes sure that the operand has a usable value, and returns the entry to take it from: the
 * operand's own, or that of the tensor that it is a view of after an in-place write. */
static enum sheaf_status refresh(struct planner *p, struct sheaf_tensor *t, int *entry) {
    for (;;) {
        const int e = *entry = entry_of(p, t);
        if (e == NONE) return out_of_memory();
        for (int v = p->entry[e].values; v != NONE; v = p->value[v].older) {
            if (usable(p, v)) return SHEAF_STATUS_SUCCESS;
        }
        if (p->entry[e].node == NONE || p->entry[e].values == NONE) return leaf_value(p, e);
        const int written = sheaf__rule_of(t)->written;
        if (!written) return plan_node(p, p->entry[e].node); /* a view of an outdated copy */
        t = t->src[written - 1];
    }
}

/* ---- one node ---- */

struct operand {
    int entry, n;
    int value[MAX_STATES];
    struct sheaf__st st[MAX_STATES];
    int64_t bytes;
    int native; /* the native value; NONE */
};

struct choice {
    struct planner *p;
    const struct operand *operand;
    int written;   /* operand + 1 */
    int64_t bytes; /* of the result */
    int64_t cost;
    bool found;
    struct sheaf__row row;
};

static int64_t need_cost(const struct choice *c, const struct operand *o,
                         const struct sheaf__need *need) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < o->n && least; i++) {
        const int64_t cost =
            sheaf__need_met(need, o->st[i])
                ? 0
                : sheaf__convert_cost(o->st[i], need->st, o->bytes, c->p->n_members);
        if (cost < least) least = cost;
    }
    return least;
}

/* A row that passes addends on leaves a sum to be made later, of the result instead of the operand:
 * worth it unless the result is larger. A little less than the sum itself, so that of equals the
 * later is preferred. A cut that becomes addends is not charged: the other way would gather what
 * was cut on purpose, and do the work on every member. */
static int64_t debt(const struct choice *c, const struct sheaf__row *row) {
    bool passes = false;
    for (int i = 0; i < row->n_operands; i++)
        passes = passes || (row->need[i].st.lie == SHEAF__P && !row->need[i].st.mask);
    if (!passes || row->out.lie != SHEAF__P) return 0;
    return sheaf__convert_cost(row->out, sheaf__st_m(), c->bytes, c->p->n_members) / 64 * 63;
}

static bool consider(void *user, const struct sheaf__row *row) {
    struct choice *c = user;
    int64_t cost = 0;
    for (int i = 0; i < row->n_operands; i++) {
        const struct operand *o = &c->operand[i];
        if (i + 1 == c->written) { /* written where it is, never converted */
            if (o->native == NONE) return true;
            if (!sheaf__need_met(&row->need[i], c->p->value[o->native].st)) return true;
            continue;
        }
        cost += need_cost(c, o, &row->need[i]);
    }
    cost += debt(c, row);
    if (!c->found || cost < c->cost) {
        c->found = true;
        c->cost = cost;
        c->row = *row;
    }
    return !(c->found && c->cost == 0);
}

/* A value of the operand that meets the need, converted if it must be. */
static int obtain(struct planner *p, const struct operand *o, const struct sheaf__need *need,
                  int node) {
    int best = NONE;
    int64_t least = INT64_MAX;
    for (int i = 0; i < o->n; i++) {
        if (sheaf__need_met(need, o->st[i])) return o->value[i];
        const int64_t cost = sheaf__convert_cost(o->st[i], need->st, o->bytes, p->n_members);
        if (cost < least) {
            least = cost;
            best = o->value[i];
        }
    }
    if (p->value[best].st.lie == SHEAF__P && need->st.lie == SHEAF__M) return reduce(p, best, node);
    return convert(p, best, need->st, node, NONE);
}

static bool is_view_form(const struct sheaf__rule *rule) {
    return rule->form == SHEAF__FORM_VIEW || rule->form == SHEAF__FORM_PERMUTE;
}

/* Usable values of an operand, oldest first. A view needs its operand's layout, so a dense copy of
 * a tensor that is not dense does not serve it. */
static void list_values(struct planner *p, struct operand *o, bool for_view) {
    o->n = 0;
    o->native = NONE;
    o->bytes = sheaf__dense_bytes(p->entry[o->entry].tensor);
    for (int v = p->entry[o->entry].values; v != NONE; v = p->value[v].older) {
        if (!usable(p, v) || (for_view && p->value[v].packed)) continue;
        /* the newest few are enough; the native one is always among them */
        if (o->n < MAX_STATES) {
            o->value[o->n++] = v;
        } else if (p->value[v].native) {
            o->value[o->n - 1] = v;
        }
        if (p->value[v].native) o->native = v;
    }
    for (int i = 0; i < o->n / 2; i++) {
        const int t = o->value[i];
        o->value[i] = o->value[o->n - 1 - i];
        o->value[o->n - 1 - i] = t;
    }
    for (int i = 0; i < o->n; i++) o->st[i] = p->value[o->value[i]].st;
}

/* The value in the tensor's own memory of which v is a copy; NONE: v is a copy of a view of one, so
 * that a write into it cannot be carried back. */
static int home_of(const struct planner *p, int v) {
    if (p->value[v].copy != NONE) v = p->value[v].copy;
    while (v != NONE && !p->value[v].native) v = p->value[v].origin;
    return v;
}

/* A MIRRORED value of a tensor by copying what the tensor is a view of, and viewing the copy: for
 * views, which need the tensor's layout (a converted copy has it only if the tensor is dense), and
 * for writes, which must be carried back into the tensor's memory. */
enum mirror_for { FOR_VIEW, FOR_WRITE };
static enum sheaf_status mirror(struct planner *p, int e, enum mirror_for what, int node,
                                int *out) {
    struct sheaf_tensor *t = p->entry[e].tensor;
    struct operand o = {.entry = e};
    list_values(p, &o, true);
    for (int i = 0; i < o.n; i++) {
        if (o.st[i].lie == SHEAF__M && (what == FOR_VIEW || home_of(p, o.value[i]) != NONE)) {
            *out = o.value[i];
            return SHEAF_STATUS_SUCCESS;
        }
    }
    const bool view = p->entry[e].node != NONE && is_view_form(sheaf__rule_of(t));
    if (!view || (what == FOR_VIEW && sheaf_is_contiguous(t))) {
        const struct sheaf__need m = {.st = sheaf__st_m()};
        list_values(p, &o, false);
        *out = obtain(p, &o, &m, node);
        return *out == NONE ? out_of_memory() : SHEAF_STATUS_SUCCESS;
    }
    int below, source;
    enum sheaf_status status = refresh(p, t->src[0], &below);
    if (status == SHEAF_STATUS_SUCCESS) status = mirror(p, below, what, node, &source);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    const int s = new_step(p, SHEAF_SPLIT_STEP_NODE, p->entry[e].node, NONE);
    const int v = s == NONE ? NONE : new_value(p, e, sheaf__st_m(), s, p->value[source].native);
    if (v == NONE) return out_of_memory();
    p->step[s].s.in[0] = source;
    p->step[s].s.out = v;
    p->value[v].copy = p->value[source].copy;
    p->value[v].epoch = p->value[source].epoch;
    *out = v;
    return SHEAF_STATUS_SUCCESS;
}

/* An in-place write found no row for its target as it lies: the node wrote into a MIRRORED copy,
 * which goes back into the target. */
static enum sheaf_status write_back(struct planner *p, int written, int node) {
    const int copy = p->value[written].copy, target = home_of(p, written);
    if (copy == NONE || target == NONE) { /* not known to happen; a wrong plan must not run */
        return sheaf_set_error(
            SHEAF_STATUS_FAILED,
            "split: node %d writes into a copy of '%s' whose own memory the plan "
            "has lost; please report this graph",
            node, p->value[written].tensor->name);
    }
    const enum sheaf_split_step_kind kind =
        p->value[target].st.lie == SHEAF__P ? SHEAF_SPLIT_STEP_KEEP_ONE : SHEAF_SPLIT_STEP_SLICE;
    const int s = new_step(p, kind, node, NONE);
    if (s == NONE) return out_of_memory();
    p->step[s].s.in[0] = copy;
    p->step[s].s.out = target;
    p->step[s].s.bytes = sheaf__dense_bytes(p->value[target].tensor);
    p->value[copy].epoch = *epoch_of(p, p->value[copy].entry);
    return SHEAF_STATUS_SUCCESS;
}

/* Can the operands be had as the row needs them, without a conversion where none is possible? */
static bool follows(const struct planner *p, const struct operand *operand,
                    const struct sheaf__rule *rule, const struct sheaf__row *row) {
    for (int i = 0; i < row->n_operands; i++) {
        const struct sheaf__need *need = &row->need[i];
        const struct operand *o = &operand[i];
        bool met = false;
        for (int k = 0; k < o->n; k++) met = met || sheaf__need_met(need, o->st[k]);
        if (i + 1 == rule->written) {
            if (o->native == NONE || !sheaf__need_met(need, p->value[o->native].st)) return false;
        } else if ((need->st.mask || (is_view_form(rule) && need->st.lie == SHEAF__S)) && !met) {
            return false;
        }
    }
    return true;
}

static enum sheaf_status plan_node(struct planner *p, int node) {
    struct sheaf_tensor *t = p->graph->nodes[node];
    const struct sheaf__rule *rule = sheaf__rule_of(t);
    const int self = entry_of(p, t);
    if (self == NONE) return out_of_memory();
    if (t->op == SHEAF_OP_NONE) {
        const enum sheaf_status status = leaf_value(p, self);
        p->node_value[node] = p->entry[self].values;
        return status;
    }
    const int n = sheaf__n_operands(t);
    struct operand operand[SHEAF__MAX_OPERANDS];
    for (int i = 0; i < n; i++) {
        const enum sheaf_status status = refresh(p, t->src[i], &operand[i].entry);
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    for (int i = 0; i < n; i++) list_values(p, &operand[i], is_view_form(rule));
    struct choice best = {
        .p = p, .operand = operand, .written = rule->written, .bytes = sheaf__dense_bytes(t)};
    const struct sheaf__row *advice = sheaf__search_row(p->search, node);
    if (advice && follows(p, operand, rule, advice)) {
        best.row = *advice;
        best.found = true;
    } else { /* what the search does not follow: the cheapest for this node alone */
        struct sheaf__have have[SHEAF__MAX_OPERANDS];
        for (int i = 0; i < n; i++) have[i] = (struct sheaf__have){operand[i].n, operand[i].st};
        sheaf__rows_visit(p->pool, t, have, consider, &best);
        if (p->pool->failed) return out_of_memory();
    }
    const bool back = !best.found; /* only an in-place write can be without a row */
    if (back) best.row = (struct sheaf__row){.name = "write back", .n_operands = n, .addend = -1};

    int in[SHEAF__MAX_OPERANDS];
    for (int i = 0; i < n; i++) {
        const struct sheaf__need *need = &best.row.need[i];
        list_values(p, &operand[i], is_view_form(rule)); /* a conversion may have moved under us */
        if (i + 1 == rule->written && !back) {
            in[i] = operand[i].native;
        } else if (i + 1 == rule->written || (is_view_form(rule) && need->st.lie == SHEAF__M)) {
            const enum sheaf_status status =
                mirror(p, operand[i].entry, rule->written ? FOR_WRITE : FOR_VIEW, node, &in[i]);
            if (status != SHEAF_STATUS_SUCCESS) return status;
        } else {
            in[i] = obtain(p, &operand[i], need, node);
        }
        if (in[i] == NONE) return out_of_memory();
    }
    const int s = new_step(p, SHEAF_SPLIT_STEP_NODE, node, NONE);
    if (s == NONE) return out_of_memory();
    const int source = is_view_form(rule) ? in[0] : rule->written ? in[rule->written - 1] : NONE;
    if (rule->written) ++*epoch_of(p, self);
    const int v = new_value(p, self, sheaf__lasting(&p->of, node, best.row.out), s,
                            source == NONE || p->value[source].native);
    if (v == NONE) return out_of_memory();
    if (source != NONE && !p->value[source].native) {
        p->value[v].copy = p->value[source].copy;
        if (!rule->written) p->value[v].epoch = p->value[source].epoch;
    }
    for (int i = 0; i < n; i++) p->step[s].s.in[i] = in[i];
    p->step[s].s.out = v;
    p->step[s].s.add_once = best.row.add_once;
    p->step[s].s.once = best.row.once;
    p->step[s].addend = best.row.addend;
    p->node_value[node] = v;
    return back && !p->value[v].native ? write_back(p, v, node) : SHEAF_STATUS_SUCCESS;
}

/* ---- the whole graph ---- */

static enum sheaf_status prepare(struct planner *p) {
    const struct sheaf_cgraph *g = p->graph;
    p->first_step = p->last_step = NONE;
    p->n_slots = 64;
    while (p->n_slots < 4 * (size_t)(g->n_nodes + g->n_leafs)) p->n_slots *= 2;
    p->slot = calloc(p->n_slots, sizeof *p->slot);
    p->node_value = malloc(((size_t)g->n_nodes + 1) * sizeof *p->node_value);
    p->self = malloc(((size_t)g->n_nodes + 1) * sizeof *p->self);
    p->operand = calloc((size_t)g->n_nodes + 1, SHEAF__MAX_OPERANDS * sizeof *p->operand);
    if (!p->slot || !p->node_value || !p->self || !p->operand) return out_of_memory();
    for (int i = 0; i < g->n_nodes; i++) {
        struct sheaf_tensor *t = g->nodes[i];
        const int e = p->self[i] = entry_of(p, t);
        if (e == NONE) return out_of_memory();
        if (t->op != SHEAF_OP_NONE) p->entry[e].node = i;
        p->node_value[i] = NONE;
        for (int k = 0; k < SHEAF__MAX_OPERANDS && t->src[k]; k++) {
            const int used = entry_of(p, t->src[k]);
            if (used == NONE) return out_of_memory();
            p->operand[i * SHEAF__MAX_OPERANDS + k] = used;
            p->entry[used].uses++;
            if (sheaf__rule_of(t)->written == k + 1) p->entry[p->entry[used].owner].written = true;
        }
    }
    for (int e = 0; e < p->n_entries; e++) {
        if (p->entry[e].node != NONE || p->entry[e].uses == 0) continue;
        const enum sheaf_status status = leaf_value(p, e);
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    p->of = (struct sheaf__search_of){.graph = g,
                                      .pool = p->pool,
                                      .entry = p->entry,
                                      .n_entries = p->n_entries,
                                      .self = p->self,
                                      .operand = p->operand};
    return sheaf__search_new(&p->of, &p->search);
}

/* A reader of a result after the compute wants it whole or in slices, not in addends. That holds
 * for outputs and for nodes that no other node reads. A view of a copy does not show what was
 * written since: such views are made again. */
static enum sheaf_status finish(struct planner *p) {
    for (int i = 0; i < p->graph->n_nodes; i++) {
        int entry;
        const bool view = is_view_form(sheaf__rule_of(p->graph->nodes[i]));
        const enum sheaf_status status =
            view ? refresh(p, p->graph->nodes[i], &entry) : SHEAF_STATUS_SUCCESS;
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    for (int i = 0; i < p->graph->n_nodes; i++) {
        const struct sheaf_tensor *t = p->graph->nodes[i];
        const int e = entry_of(p, p->graph->nodes[i]);
        const bool read = (t->flags & SHEAF_TENSOR_FLAG_OUTPUT) ||
                          (p->entry[e].uses == 0 && !sheaf__rule_of(t)->written);
        if (!read || p->value[p->node_value[i]].st.lie != SHEAF__P) continue;
        struct operand o = {.entry = e};
        list_values(p, &o, false);
        bool whole = false;
        for (int k = 0; k < o.n; k++) whole = whole || o.st[k].lie != SHEAF__P;
        if (whole) continue;
        const struct sheaf__need m = {.st = sheaf__st_m()};
        const int v = o.n ? obtain(p, &o, &m, i) : NONE;
        if (o.n && v == NONE) return out_of_memory();
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Copies what the planner found into the plan, steps in order. */
static enum sheaf_status publish(struct planner *p, struct sheaf__plan_impl *impl) {
    struct sheaf__split_plan *plan = &impl->plan;
    const size_t n_nodes = (size_t)p->graph->n_nodes, n_values = (size_t)p->n_values;
    struct sheaf__pool *pool = &impl->pool;
    plan->values = sheaf__pool_alloc(pool, (n_values + 1) * sizeof *plan->values);
    impl->st = sheaf__pool_alloc(pool, (n_values + 1) * sizeof *impl->st);
    plan->steps = sheaf__pool_alloc(pool, ((size_t)p->n_steps + 1) * sizeof *plan->steps);
    plan->node_value = sheaf__pool_alloc(pool, (n_nodes + 1) * sizeof(int));
    plan->node_final = sheaf__pool_alloc(pool, (n_nodes + 1) * sizeof(int));
    if (pool->failed) return out_of_memory();
    plan->n_members = p->n_members;
    plan->n_values = p->n_values;
    plan->n_steps = p->n_steps;
    for (int v = 0; v < p->n_values; v++) {
        const struct sheaf_split_state *shown = sheaf__st_show(pool, p->value[v].st);
        if (!shown) return out_of_memory();
        plan->values[v].tensor = p->value[v].tensor;
        plan->values[v].state = (struct sheaf_split_state *)(uintptr_t)shown;
        impl->st[v] = p->value[v].st;
    }
    for (int s = p->first_step, i = 0; s != NONE; s = p->step[s].next)
        plan->steps[i++] = p->step[s].s;
    for (int i = 0; i < p->graph->n_nodes; i++) {
        const int own = p->node_value[i];
        int final = own;
        for (int v = p->entry[p->value[own].entry].values; v != NONE; v = p->value[v].older) {
            if (!usable(p, v)) continue;
            if (p->value[v].st.lie == SHEAF__M) {
                final = v;
            } else if (p->value[v].st.lie == SHEAF__S && p->value[final].st.lie == SHEAF__P) {
                final = v;
            }
        }
        plan->node_value[i] = own;
        plan->node_final[i] = final;
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__split_plan_new(const struct sheaf_cgraph *graph, int n_members,
                                        sheaf__leaf_state_fn leaf_state, void *user,
                                        struct sheaf__split_plan **out) {
    *out = NULL;
    if (n_members < 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "split: a plan for %d members; it wants at least one", n_members);
    struct sheaf__plan_impl *impl = calloc(1, sizeof *impl);
    if (!impl) return out_of_memory();
    enum sheaf_status status = sheaf__pool_init(&impl->pool, n_members);
    if (status != SHEAF_STATUS_SUCCESS) {
        free(impl);
        return status;
    }
    struct planner p = {.graph = graph,
                        .n_members = n_members,
                        .leaf_state = leaf_state,
                        .user = user,
                        .pool = &impl->pool};
    status = prepare(&p);
    for (int i = 0; i < graph->n_nodes && status == SHEAF_STATUS_SUCCESS; i++)
        status = plan_node(&p, i);
    if (status == SHEAF_STATUS_SUCCESS) status = finish(&p);
    if (status == SHEAF_STATUS_SUCCESS) status = publish(&p, impl);
    sheaf__search_free(p.search);
    free(p.self);
    free(p.operand);
    free(p.entry);
    free(p.slot);
    free(p.value);
    free(p.step);
    free(p.node_value);
    if (status == SHEAF_STATUS_SUCCESS) {
        *out = &impl->plan;
    } else {
        sheaf__split_plan_free(&impl->plan);
    }
    return status;
}

void sheaf__split_plan_free(struct sheaf__split_plan *plan) {
    if (!plan) return;
    struct sheaf__plan_impl *impl = (struct sheaf__plan_impl *)(void *)plan;
    sheaf__pool_free(&impl->pool);
    free(impl);
}
