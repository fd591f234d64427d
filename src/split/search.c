/* See search.h: the pass over the graph. A partial plan (`path`) is a row of numbers, the set of
 * states of each tensor still to be read, beside the cost so far. */
#include "split/search.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "split/convert.h"
#include "split/options.h"
#include "tensor/graph.h"

enum { NONE = -1 };
/* Partial plans kept: all of them for small graphs, fewer for large ones, in which few choices
 * depend on each other. */
enum { PATHS_LEAST = 8, PATHS_MOST = 128, PATHS_NODES = 4096 };
static const int64_t DEAREST = INT64_MAX / 4;

struct path {
    int64_t cost;
    int collectives, record;
    const struct sheaf__option *option; /* of the node just passed */
    uint64_t hash;
};

struct record {
    int before;
    const struct sheaf__option *option;
};

struct paths {
    int n, cap;
    struct path *path;
    int *column; /* [cap][n_columns] sets */
};

struct sheaf__search {
    const struct sheaf__search_of *of;
    int n_members;
    struct sheaf__sets sets;
    struct sheaf__options *options;
    int *column_of, *last_use, *next_dead, *dead; /* by entry; dead by node */
    int n_columns;
    int *column_entry; /* [n_columns] at the present node */
    struct paths now, then;
    struct record *record;
    int n_records;
    size_t cap_records;
    const struct sheaf__row **row; /* [nodes] */
};

enum sheaf_status sheaf__plan_no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split: out of memory while planning");
}

/* ---- partial plans ---- */

static int set_at(const struct sheaf__search *s, const int *column, const int *initial, int entry) {
    return s->column_of[entry] != NONE ? column[s->column_of[entry]] : initial[entry];
}

static void pay(struct path *w, int64_t cost) {
    w->cost = cost < DEAREST - w->cost ? w->cost + cost : DEAREST;
}

/* Addends that are read after the compute are summed. */
static void pay_sum(const struct sheaf__search *s, struct path *w, int entry, int set) {
    const struct sheaf__set *x = &s->sets.set[set];
    if (x->n == 0 || sheaf__set_holds(x, SHEAF__M) || sheaf__set_holds(x, SHEAF__S)) return;
    pay(w, sheaf__convert_cost(sheaf__st_p(), sheaf__st_m(),
                               sheaf__dense_bytes(s->of->entry[entry].tensor), s->n_members));
    w->collectives++;
}

/* Mirrors the tensor that a chain of views begins with. False: out of memory. */
static bool pay_mirror(struct sheaf__search *s, struct path *w, int *column, const int *initial,
                       int entry) {
    const struct sheaf__search_of *of = s->of;
    while (of->entry[entry].node >= 0 &&
           sheaf__is_view_form(sheaf__rule_of(of->entry[entry].tensor)) &&
           !sheaf_is_contiguous(of->entry[entry].tensor))
        entry = of->operand[of->entry[entry].node * SHEAF__MAX_OPERANDS];
    struct sheaf__set x = s->sets.set[set_at(s, column, initial, entry)];
    if (x.n == 0 || sheaf__set_holds(&x, SHEAF__M)) return true;
    pay(w, sheaf__convert_cost(x.st[0], sheaf__st_m(), sheaf__dense_bytes(of->entry[entry].tensor),
                               s->n_members));
    w->collectives++;
    sheaf__set_add(&x, sheaf__st_m(), false);
    const int set = sheaf__set_number(&s->sets, &x);
    if (set == SHEAF__NO_SET) return false;
    if (s->column_of[entry] != NONE) column[s->column_of[entry]] = set;
    return true;
}

/* After a write, copies of what was written to are out of date. */
static bool forget_copies(struct sheaf__search *s, int *column, int owner) {
    for (int k = 0; k < s->n_columns; k++) {
        const int e = s->column_entry[k];
        if (e == NONE || s->of->entry[e].owner != owner || column[k] == SHEAF__EMPTY_SET) continue;
        const struct sheaf__set x = s->sets.set[column[k]];
        column[k] = x.native ? sheaf__set_of_one(&s->sets, x.st[0], true) : SHEAF__EMPTY_SET;
        if (column[k] == SHEAF__NO_SET) return false;
    }
    return true;
}

static bool room(struct paths *w, int n, int n_columns) {
    if (n <= w->cap) return true;
    int cap = w->cap ? w->cap : 16;
    while (cap < n) cap *= 2;
    struct path *path = realloc(w->path, (size_t)cap * sizeof *path);
    if (path) w->path = path;
    int *column =
        path ? realloc(w->column, (size_t)cap * ((size_t)n_columns + 1) * sizeof *column) : NULL;
    if (column) w->column = column;
    if (!column) return false;
    w->cap = cap;
    return true;
}

static bool cheaper(const struct path *a, const struct path *b) {
    return a->cost < b->cost || (a->cost == b->cost && a->collectives < b->collectives);
}

static uint64_t hash_of(const struct sheaf__search *s, int path) {
    const int *column = s->then.column + (size_t)path * (size_t)s->n_columns;
    uint64_t even = 0, odd = 1; /* two products at a time */
    for (int k = 0; k + 1 < s->n_columns; k += 2) {
        even = sheaf__mix(even, (uint64_t)column[k]);
        odd = sheaf__mix(odd, (uint64_t)column[k + 1]);
    }
    if (s->n_columns % 2) even = sheaf__mix(even, (uint64_t)column[s->n_columns - 1]);
    return sheaf__mix(even, odd);
}

/* The path made last joins the others; of two that reach the same sets, the cheaper stays. A path that
 * stays alone is compared with none. */
static void join(struct sheaf__search *s) {
    struct paths *t = &s->then;
    const size_t bytes = (size_t)s->n_columns * sizeof *t->column;
    struct path *mine = &t->path[t->n];
    const int *column = t->column + (size_t)t->n * (size_t)s->n_columns;
    if (t->n == 1) t->path[0].hash = hash_of(s, 0);
    if (t->n > 0) mine->hash = hash_of(s, t->n);
    for (int i = 0; i < t->n; i++) {
        if (t->path[i].hash != mine->hash ||
            memcmp(t->column + (size_t)i * (size_t)s->n_columns, column, bytes) != 0)
            continue;
        if (cheaper(mine, &t->path[i])) t->path[i] = *mine;
        return;
    }
    t->n++;
}

/* Writes down what the path did last. */
static bool keep(struct sheaf__search *s, struct path *w) {
    if (!sheaf__grow(&s->record, &s->cap_records, (size_t)s->n_records + 1, sizeof *s->record))
        return false;
    s->record[s->n_records] = (struct record){w->record, w->option};
    w->record = s->n_records++;
    return true;
}

/* Keeps the cheapest paths, of equals those made first. */
static bool select_paths(struct sheaf__search *s) {
    struct paths *from = &s->then, *to = &s->now;
    int most = PATHS_NODES / (s->of->graph->n_nodes + 1);
    most = most < PATHS_LEAST ? PATHS_LEAST : most > PATHS_MOST ? PATHS_MOST : most;
    if (from->n == 1) { /* the common case: nothing to choose, and nothing to copy */
        if (!keep(s, &from->path[0])) return false;
        const struct paths swap = *to;
        *to = *from;
        *from = swap;
        return true;
    }
    if (!room(to, from->n, s->n_columns)) return false;
    to->n = 0;
    while (to->n < most) {
        int best = NONE;
        for (int i = 0; i < from->n; i++) {
            if (from->path[i].option &&
                (best == NONE || cheaper(&from->path[i], &from->path[best])))
                best = i;
        }
        if (best == NONE) break;
        struct path *w = &from->path[best];
        if (!keep(s, w)) return false;
        to->path[to->n] = *w;
        memcpy(to->column + (size_t)to->n++ * (size_t)s->n_columns,
               from->column + (size_t)best * (size_t)s->n_columns,
               (size_t)s->n_columns * sizeof *to->column);
        w->option = NULL; /* taken */
    }
    return true;
}

/* ---- a node that a person asks about ---- */

static bool same_row(const struct sheaf__considered *c, const struct sheaf__option *o) {
    return c->none == o->none && (o->none || sheaf__row_same(&c->row, &o->row));
}

static void note(struct sheaf__watch *w, const struct sheaf__option *o) {
    for (int i = 0; i < w->n; i++) {
        if (same_row(&w->row[i], o)) return;
    }
    if (w->n == SHEAF__MAX_CONSIDERED) return;
    w->row[w->n++] = (struct sheaf__considered){.row = o->row,
                                                .none = o->none,
                                                .left_out = o->left_out,
                                                .cost = o->cost,
                                                .collectives = o->collectives};
}

/* What the node can do with these sets; of the node that is watched, all of it is noted, and the
 * row that is asked for is the only one. NULL: out of memory. */
static const struct sheaf__known *choices(struct sheaf__search *s, int node, const int *set) {
    struct sheaf__watch *w = s->of->watch;
    if (!w || w->node != node) return sheaf__options_of(s->options, set);
    const struct sheaf__option *all;
    const int n = sheaf__options_all(s->options, set, &all);
    if (n < 0) return NULL;
    struct sheaf__known *one = NULL;
    for (int i = 0; i < sheaf__n_operands(s->of->graph->nodes[node]) && !w->n; i++)
        w->operand[i] = s->sets.set[set[i]];
    if (w->only >= 0) one = sheaf__pool_alloc(s->of->pool, sizeof *one + sizeof *one->option);
    for (int i = 0; i < n; i++) {
        if (w->only < 0) {
            note(w, &all[i]);
        } else if (one && same_row(&w->row[w->only], &all[i])) {
            one->option[0] = all[i];
            one->n = 1;
        }
    }
    return w->only < 0 ? sheaf__options_of(s->options, set) : one;
}

/* Every path, continued by everything that the node can do. */
static bool pass(struct sheaf__search *s, int node, int *initial) {
    const struct sheaf__search_of *of = s->of;
    const int *operand = of->operand + (size_t)node * SHEAF__MAX_OPERANDS;
    const int self = of->self[node];
    const int n = of->entry[self].n_operands;
    const bool written = of->entry[self].writes != 0;
    if (!sheaf__options_begin(s->options, node)) return false;
    for (int i = 0; i < n; i++) {
        const int k = s->column_of[operand[i]];
        if (k == NONE || s->column_entry[k] == operand[i]) continue;
        s->column_entry[k] = operand[i]; /* a leaf, read for the first time */
        for (int a = 0; a < s->now.n; a++)
            s->now.column[(size_t)a * (size_t)s->n_columns + (size_t)k] = initial[operand[i]];
    }
    const int mine = s->column_of[self];
    if (mine != NONE) s->column_entry[mine] = self;
    s->then.n = 0;
    for (int a = 0; a < s->now.n; a++) {
        const int *column = s->now.column + (size_t)a * (size_t)s->n_columns;
        int set[SHEAF__MAX_OPERANDS];
        for (int i = 0; i < n; i++) set[i] = set_at(s, column, initial, operand[i]);
        const struct sheaf__known *k = choices(s, node, set);
        if (!k || !room(&s->then, s->then.n + k->n + 1, s->n_columns)) return false;
        for (int o = 0; o < k->n; o++) {
            const struct sheaf__option *option = &k->option[o];
            struct path *path = &s->then.path[s->then.n];
            int *next = s->then.column + (size_t)s->then.n * (size_t)s->n_columns;
            *path = s->now.path[a];
            path->option = option;
            path->collectives += option->collectives;
            pay(path, option->cost);
            memcpy(next, column, (size_t)s->n_columns * sizeof *next);
            for (int i = 0; i < n; i++) {
                if (s->column_of[operand[i]] != NONE)
                    next[s->column_of[operand[i]]] = option->set[i];
            }
            if (option->mirror && !pay_mirror(s, path, next, initial, operand[0])) return false;
            if (mine != NONE) next[mine] = SHEAF__EMPTY_SET;
            if (written && !forget_copies(s, next, of->entry[self].owner)) return false;
            if (mine != NONE) next[mine] = option->out;
            for (int e = s->dead[node]; e != NONE; e = s->next_dead[e]) {
                const bool read = of->entry[e].node >= 0 &&
                                  (of->entry[e].tensor->flags & SHEAF_TENSOR_FLAG_OUTPUT);
                const int last = e == self ? option->out : set_at(s, next, initial, e);
                if (read || (e == self && !written)) pay_sum(s, path, e, last);
                if (s->column_of[e] != NONE) next[s->column_of[e]] = SHEAF__EMPTY_SET;
            }
            join(s);
        }
    }
    for (int e = s->dead[node]; e != NONE; e = s->next_dead[e]) {
        if (s->column_of[e] != NONE) s->column_entry[s->column_of[e]] = NONE;
    }
    return select_paths(s);
}

/* ---- the whole graph ---- */

/* When each tensor is read last, and a column for each that is still to be read: results, and
 * leaves that are read more than once. A tensor is needed as long as views of it. */
static bool arrange(struct sheaf__search *s) {
    const struct sheaf__search_of *of = s->of;
    const int n_nodes = of->graph->n_nodes, n = of->n_entries;
    s->column_of = malloc(((size_t)n + 1) * sizeof *s->column_of);
    s->last_use = malloc(((size_t)n + 1) * sizeof *s->last_use);
    s->next_dead = malloc(((size_t)n + 1) * sizeof *s->next_dead);
    s->dead = malloc(((size_t)n_nodes + 1) * sizeof *s->dead);
    s->column_entry = malloc(((size_t)n + 1) * sizeof *s->column_entry);
    if (!s->column_of || !s->last_use || !s->next_dead || !s->dead || !s->column_entry)
        return false;
    for (int e = 0; e < n; e++) s->column_of[e] = s->last_use[e] = NONE;
    for (int i = n_nodes - 1; i >= 0; i--) {
        const int *operand = of->operand + (size_t)i * SHEAF__MAX_OPERANDS;
        const struct sheaf_tensor *t = of->graph->nodes[i];
        s->dead[i] = NONE;
        if (s->last_use[of->self[i]] == NONE) s->last_use[of->self[i]] = i;
        for (int k = 0, m = of->entry[of->self[i]].n_operands; k < m; k++) {
            const int until = sheaf__is_view_form(sheaf__rule_of(t)) ? s->last_use[of->self[i]] : i;
            if (s->last_use[operand[k]] < until) s->last_use[operand[k]] = until;
        }
    }
    for (int e = n - 1; e >= 0; e--) {
        if (s->last_use[e] == NONE) continue;
        s->next_dead[e] = s->dead[s->last_use[e]];
        s->dead[s->last_use[e]] = e;
    }
    int *unused = s->column_entry, n_unused = 0; /* a stack, until the pass begins */
    for (int i = 0; i < n_nodes; i++) {
        const int *operand = of->operand + (size_t)i * SHEAF__MAX_OPERANDS;
        const int m = of->entry[of->self[i]].n_operands;
        for (int k = 0; k <= m; k++) {
            const int e = k < m ? operand[k] : of->self[i];
            if (s->column_of[e] == NONE && s->last_use[e] > i)
                s->column_of[e] = n_unused ? unused[--n_unused] : s->n_columns++;
        }
        for (int e = s->dead[i]; e != NONE; e = s->next_dead[e]) {
            if (s->column_of[e] != NONE) unused[n_unused++] = s->column_of[e];
        }
    }
    for (int k = 0; k < n; k++) s->column_entry[k] = NONE;
    return true;
}

static bool search(struct sheaf__search *s) {
    const struct sheaf__search_of *of = s->of;
    const int n_nodes = of->graph->n_nodes;
    const struct sheaf__set empty = {.n = 0};
    bool good = false;
    int *initial = malloc(((size_t)of->n_entries + 1) * sizeof *initial);
    s->options = sheaf__options_new(of, &s->sets);
    s->row = calloc((size_t)n_nodes + 1, sizeof(const struct sheaf__row *));
    if (!initial || !s->options || !s->row || !arrange(s) ||
        sheaf__set_number(&s->sets, &empty) != SHEAF__EMPTY_SET || !room(&s->now, 1, s->n_columns))
        goto out;
    for (int e = 0; e < of->n_entries; e++) {
        initial[e] = of->entry[e].node < 0 && of->entry[e].uses > 0
                         ? sheaf__set_of_one(&s->sets, of->entry[e].st, true)
                         : SHEAF__EMPTY_SET;
        if (initial[e] == SHEAF__NO_SET) goto out;
    }
    s->now.n = 1;
    s->now.path[0] = (struct path){.record = NONE};
    for (int k = 0; k < s->n_columns; k++) s->now.column[k] = SHEAF__EMPTY_SET;
    for (int i = 0; i < n_nodes; i++) {
        if (of->graph->nodes[i]->op == SHEAF_OP_NONE) continue;
        if (!pass(s, i, initial)) goto out;
    }
    int at = s->now.n ? s->now.path[0].record : NONE;
    for (int i = n_nodes - 1; i >= 0 && at != NONE; i--) {
        if (of->graph->nodes[i]->op == SHEAF_OP_NONE) continue;
        if (!s->record[at].option->none) s->row[i] = &s->record[at].option->row;
        at = s->record[at].before;
    }
    good = true;
out:
    free(initial);
    return good;
}

enum sheaf_status sheaf__search_new(const struct sheaf__search_of *of, struct sheaf__search **out) {
    *out = NULL;
    struct sheaf__search *s = calloc(1, sizeof *s);
    if (!s) return sheaf__plan_no_memory();
    s->of = of;
    s->n_members = of->pool->n_members;
    if (!search(s)) {
        sheaf__search_free(s);
        return sheaf__plan_no_memory();
    }
    *out = s;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__search_free(struct sheaf__search *s) {
    if (!s) return;
    sheaf__options_free(s->options);
    sheaf__sets_free(&s->sets);
    free(s->column_of);
    free(s->last_use);
    free(s->next_dead);
    free(s->dead);
    free(s->column_entry);
    free(s->now.path);
    free(s->now.column);
    free(s->then.path);
    free(s->then.column);
    free(s->record);
    free(s->row);
    free(s);
}

const struct sheaf__row *sheaf__search_row(const struct sheaf__search *s, int node) {
    return s->row[node];
}

bool sheaf__search_total(const struct sheaf__search *s, int64_t *cost, int *collectives) {
    if (s->now.n == 0) return false;
    *cost = s->now.path[0].cost;
    *collectives = s->now.path[0].collectives;
    return true;
}
