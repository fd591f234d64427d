/* Tensors, values and steps of a plan in the making: arrays that only grow. A value belongs to an
 * entry, the newest first; steps are in the order in which members take them. */
#include "base/array.h"
#include "base/hash.h"
#include "split/convert.h"
#include "split/planner.h"

/* ---- tensors ---- */

int sheaf__plan_entry(struct planner *p, struct sheaf_tensor *t) {
    size_t i = sheaf__hash_address(t, p->n_slots);
    for (; p->slot[i]; i = (i + 1) & (p->n_slots - 1)) {
        if (p->entry[p->slot[i] - 1].tensor == t) return p->slot[i] - 1;
    }
    if ((size_t)p->n_entries * 2 >= p->n_slots) {
        const size_t n = p->n_slots * 2;
        int *slot = calloc(n, sizeof *slot);
        if (!slot) return NONE;
        for (int e = 0; e < p->n_entries; e++) {
            size_t k = sheaf__hash_address(p->entry[e].tensor, n);
            while (slot[k]) k = (k + 1) & (n - 1);
            slot[k] = e + 1;
        }
        free(p->slot);
        p->slot = slot;
        p->n_slots = n;
        i = sheaf__hash_address(t, n);
        while (slot[i]) i = (i + 1) & (n - 1);
    }
    if (!sheaf__grow(&p->entry, &p->cap_entries, (size_t)p->n_entries + 1, sizeof *p->entry))
        return NONE;
    const int e = p->n_entries++;
    p->entry[e] = (struct sheaf__entry){.tensor = t, .node = NONE, .owner = e, .values = NONE};
    p->slot[i] = e + 1;
    if (t->view_src && t->view_src != t) {
        const int owner = sheaf__plan_entry(p, t->view_src);
        if (owner == NONE) return NONE;
        p->entry[e].owner = p->entry[owner].owner;
    }
    return e;
}

int *sheaf__plan_epoch(struct planner *p, int entry) {
    return &p->entry[p->entry[entry].owner].epoch;
}

/* ---- values and steps ---- */

int sheaf__plan_value(struct planner *p, int entry, struct sheaf__st st, bool native) {
    if (!sheaf__grow(&p->value, &p->cap_values, (size_t)p->n_values + 1, sizeof *p->value))
        return NONE;
    const int v = p->n_values++;
    p->value[v] = (struct planned_value){.tensor = p->entry[entry].tensor,
                                         .st = st,
                                         .entry = entry,
                                         .older = p->entry[entry].values,
                                         .native = native,
                                         .epoch = *sheaf__plan_epoch(p, entry),
                                         .copy = native ? NONE : v,
                                         .origin = NONE};
    p->entry[entry].values = v;
    return v;
}

bool sheaf__plan_usable(struct planner *p, int v) {
    return p->value[v].native || p->value[v].epoch == *sheaf__plan_epoch(p, p->value[v].entry);
}

int sheaf__plan_step(struct planner *p, enum sheaf_split_step_kind kind, int node) {
    if (!sheaf__grow(&p->step, &p->cap_steps, (size_t)p->n_steps + 1, sizeof *p->step)) return NONE;
    const int i = p->n_steps++;
    p->step[i] = (struct sheaf__split_step){.kind = kind, .node = node, .out = NONE};
    for (int k = 0; k < SHEAF_MAX_SRC; k++) p->step[i].in[k] = NONE;
    return i;
}

void sheaf__plan_list(struct planner *p, struct planned_operand *o, bool for_view) {
    o->n = 0;
    o->native = NONE;
    o->bytes = sheaf__dense_bytes(p->entry[o->entry].tensor);
    for (int v = p->entry[o->entry].values; v != NONE; v = p->value[v].older) {
        if (!sheaf__plan_usable(p, v) || (for_view && p->value[v].packed)) continue;
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
