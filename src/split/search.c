/* See search.h: the pass over the graph. A partial plan (`path`) is the cost so far, and a row of
 * numbers: for each tensor still to be read, the set of states in which it is available. The rows
 * of all paths are a table, in which such a tensor has a column from its node (or the first that
 * reads it) to its last reader; then another tensor gets the column. */
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
    int collectives, record;            /* the record of the node before */
    const struct sheaf__option *option; /* of the node just passed */
    uint64_t hash;                      /* of its row; not kept while it is the only path */
};

struct record { /* what a path did at a node */
    int before; /* its record of the node before */
    const struct sheaf__option *option;
};

struct paths {
    int n, cap;
    struct path *path;
    int *column; /* [cap][n_columns] sets */
};

struct present {        /* the node that the pass is at */
    int node, self;     /* index in the graph; entry */
    int n;              /* operands */
    const int *operand; /* entries */
    int column;         /* of its result; NONE */
    bool written;       /* over an operand */
};

struct sheaf__search {
    const struct sheaf__search_input *input;
    int n_members;
    struct sheaf__sets sets;
    struct sheaf__options *options;
    int *initial;   /* [entries] set of a leaf before the first node */
    int *column_of; /* [entries] NONE: of a leaf that is read once, whose set is `initial` */
    int *last_use;  /* [entries] the last node that reads it or a view of it */
    int *dead;      /* [nodes] first entry whose last use it is, the others by next_dead */
    int *next_dead; /* [entries] */
    int n_columns;
    int *column_entry; /* [n_columns] whose column it is at the present node; NONE */
    struct present at;
    struct paths now;  /* before the present node */
    struct paths then; /* behind it */
    struct record *record;
    int n_records;
    size_t cap_records;
    const struct sheaf__row **row; /* [nodes] */
};

enum sheaf_status sheaf__plan_no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split: out of memory while planning");
}

/* ---- partial plans ---- */

/* The path's sets, by column. */
static int *columns_of(const struct sheaf__search *s, const struct paths *paths, int path) {
    return paths->column + (size_t)path * (size_t)s->n_columns;
}

static int set_at(const struct sheaf__search *s, const int *column, int entry) {
    return s->column_of[entry] != NONE ? column[s->column_of[entry]] : s->initial[entry];
}

static void pay(struct path *path, int64_t cost) {
    path->cost = cost < DEAREST - path->cost ? path->cost + cost : DEAREST;
}

/* Addends that are read after the compute are summed. */
static void pay_sum(const struct sheaf__search *s, struct path *path, int entry, int set) {
    const struct sheaf__set *x = &s->sets.set[set];
    if (x->n == 0 || sheaf__set_holds(x, SHEAF__M) || sheaf__set_holds(x, SHEAF__S)) return;
    pay(path, sheaf__convert_cost(sheaf__st_p(), sheaf__st_m(),
                                  sheaf__dense_bytes(s->input->entry[entry].tensor), s->n_members));
    path->collectives++;
}

/* Mirrors the tensor that a chain of views begins with. False: out of memory. */
static bool pay_mirror(struct sheaf__search *s, struct path *path, int *column, int entry) {
    const struct sheaf__search_input *input = s->input;
    while (input->entry[entry].node >= 0 &&
           sheaf__is_view_form(sheaf__rule_of(input->entry[entry].tensor)) &&
           !sheaf_is_contiguous(input->entry[entry].tensor))
        entry = input->operand[input->entry[entry].node * SHEAF__MAX_OPERANDS];
    struct sheaf__set x = s->sets.set[set_at(s, column, entry)];
    if (x.n == 0 || sheaf__set_holds(&x, SHEAF__M)) return true;
    pay(path, sheaf__convert_cost(x.st[0], sheaf__st_m(),
                                  sheaf__dense_bytes(input->entry[entry].tensor), s->n_members));
    path->collectives++;
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
        if (e == NONE || s->input->entry[e].owner != owner || column[k] == SHEAF__EMPTY_SET)
            continue;
        const struct sheaf__set x = s->sets.set[column[k]];
        column[k] = x.native ? sheaf__set_of_one(&s->sets, x.st[0], true) : SHEAF__EMPTY_SET;
        if (column[k] == SHEAF__NO_SET) return false;
    }
    return true;
}

static bool room(struct paths *paths, int n, int n_columns) {
    if (n <= paths->cap) return true;
    int cap = paths->cap ? paths->cap : 16;
    while (cap < n) cap *= 2;
    struct path *path = realloc(paths->path, (size_t)cap * sizeof *path);
    if (path) paths->path = path;
    int *column =
        path ? realloc(paths->column, (size_t)cap * ((size_t)n_columns + 1) * sizeof *column)
             : NULL;
    if (column) paths->column = column;
    if (!column) return false;
    paths->cap = cap;
    return true;
}

static bool cheaper(const struct path *a, const struct path *b) {
    return a->cost < b->cost || (a->cost == b->cost && a->collectives < b->collectives);
}

static uint64_t hash_of(const struct sheaf__search *s, int path) {
    const int *column = columns_of(s, &s->then, path);
    uint64_t even = 0, odd = 1; /* two products at a time */
    for (int k = 0; k + 1 < s->n_columns; k += 2) {
        even = sheaf__mix(even, (uint64_t)column[k]);
        odd = sheaf__mix(odd, (uint64_t)column[k + 1]);
    }
    if (s->n_columns % 2) even = sheaf__mix(even, (uint64_t)column[s->n_columns - 1]);
    return sheaf__mix(even, odd);
}

/* The path made last joins the others; of two that reach the same sets, the cheaper stays. A path
 * that stays alone is compared with none. */
static void join(struct sheaf__search *s) {
    struct paths *then = &s->then;
    const size_t bytes = (size_t)s->n_columns * sizeof *then->column;
    struct path *mine = &then->path[then->n];
    const int *column = columns_of(s, then, then->n);
    if (then->n == 1) then->path[0].hash = hash_of(s, 0);
    if (then->n > 0) mine->hash = hash_of(s, then->n);
    for (int i = 0; i < then->n; i++) {
        if (then->path[i].hash != mine->hash || memcmp(columns_of(s, then, i), column, bytes) != 0)
            continue;
        if (cheaper(mine, &then->path[i])) then->path[i] = *mine;
        return;
    }
    then->n++;
}

/* Writes down what the path did last. */
static bool keep(struct sheaf__search *s, struct path *path) {
    if (!sheaf__grow(&s->record, &s->cap_records, (size_t)s->n_records + 1, sizeof *s->record))
        return false;
    s->record[s->n_records] = (struct record){path->record, path->option};
    path->record = s->n_records++;
    return true;
}

/* Keeps the cheapest paths, of equals those made first. */
static bool select_paths(struct sheaf__search *s) {
    struct paths *from = &s->then, *to = &s->now;
    int most = PATHS_NODES / (s->input->graph->n_nodes + 1);
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
        struct path *path = &from->path[best];
        if (!keep(s, path)) return false;
        to->path[to->n] = *path;
        memcpy(columns_of(s, to, to->n++), columns_of(s, from, best),
               (size_t)s->n_columns * sizeof *to->column);
        path->option = NULL; /* taken */
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
    struct sheaf__watch *w = s->input->watch;
    if (!w || w->node != node) return sheaf__options_of(s->options, set);
    const struct sheaf__option *all;
    const int n = sheaf__options_all(s->options, set, &all);
    if (n < 0) return NULL;
    struct sheaf__known *one = NULL;
    for (int i = 0; i < sheaf__n_operands(s->input->graph->nodes[node]) && !w->n; i++)
        w->operand[i] = s->sets.set[set[i]];
    if (w->only >= 0) one = sheaf__pool_alloc(s->input->pool, sizeof *one + sizeof *one->option);
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

/* ---- one node ---- */

/* Makes the node the present one; its operands and its result get their columns. */
static void enter(struct sheaf__search *s, int node) {
    const struct sheaf__search_input *input = s->input;
    const int self = input->self[node];
    s->at = (struct present){.node = node,
                             .self = self,
                             .n = input->entry[self].n_operands,
                             .operand = input->operand + (size_t)node * SHEAF__MAX_OPERANDS,
                             .column = s->column_of[self],
                             .written = input->entry[self].writes != 0};
    for (int i = 0; i < s->at.n; i++) {
        const int e = s->at.operand[i], k = s->column_of[e];
        if (k == NONE || s->column_entry[k] == e) continue;
        s->column_entry[k] = e; /* a leaf, read for the first time */
        for (int a = 0; a < s->now.n; a++) columns_of(s, &s->now, a)[k] = s->initial[e];
    }
    if (s->at.column != NONE) s->column_entry[s->at.column] = self;
}

/* Frees the columns of tensors that no later node reads. */
static void leave(struct sheaf__search *s) {
    for (int e = s->dead[s->at.node]; e != NONE; e = s->next_dead[e]) {
        if (s->column_of[e] != NONE) s->column_entry[s->column_of[e]] = NONE;
    }
}

/* Tensors that no later node reads: those read after the compute are summed. */
static void pay_dead(struct sheaf__search *s, struct path *path, int *column) {
    for (int e = s->dead[s->at.node]; e != NONE; e = s->next_dead[e]) {
        const struct sheaf__entry *entry = &s->input->entry[e];
        const bool is_self = e == s->at.self;
        const bool output = entry->node >= 0 && (entry->tensor->flags & SHEAF_TENSOR_FLAG_OUTPUT);
        const int last = is_self ? path->option->out : set_at(s, column, e);
        if (output || (is_self && !s->at.written)) pay_sum(s, path, e, last);
        if (s->column_of[e] != NONE) column[s->column_of[e]] = SHEAF__EMPTY_SET;
    }
}

/* Path `a`, continued by what the node can do, joins those behind it. There is room. False: out of
 * memory. */
static bool advance(struct sheaf__search *s, int a, const struct sheaf__option *option) {
    struct path *path = &s->then.path[s->then.n];
    int *column = columns_of(s, &s->then, s->then.n);
    *path = s->now.path[a];
    path->option = option;
    path->collectives += option->collectives;
    pay(path, option->cost);
    memcpy(column, columns_of(s, &s->now, a), (size_t)s->n_columns * sizeof *column);
    for (int i = 0; i < s->at.n; i++) {
        const int k = s->column_of[s->at.operand[i]];
        if (k != NONE) column[k] = option->set[i];
    }
    if (option->mirror && !pay_mirror(s, path, column, s->at.operand[0])) return false;
    if (s->at.written && !forget_copies(s, column, s->input->entry[s->at.self].owner)) return false;
    if (s->at.column != NONE) column[s->at.column] = option->out;
    pay_dead(s, path, column);
    join(s);
    return true;
}

/* Every path, continued by everything that the node can do. */
static bool pass(struct sheaf__search *s, int node) {
    if (!sheaf__options_begin(s->options, node)) return false;
    enter(s, node);
    s->then.n = 0;
    for (int a = 0; a < s->now.n; a++) {
        const int *column = columns_of(s, &s->now, a);
        int set[SHEAF__MAX_OPERANDS];
        for (int i = 0; i < s->at.n; i++) set[i] = set_at(s, column, s->at.operand[i]);
        const struct sheaf__known *k = choices(s, node, set);
        if (!k || !room(&s->then, s->then.n + k->n + 1, s->n_columns)) return false;
        for (int o = 0; o < k->n; o++) {
            if (!advance(s, a, &k->option[o])) return false;
        }
    }
    leave(s);
    return select_paths(s);
}

/* ---- the whole graph ---- */

/* When each tensor is read last: a tensor is needed as long as views of it. */
static void find_last_uses(struct sheaf__search *s) {
    const struct sheaf__search_input *input = s->input;
    const int n_nodes = input->graph->n_nodes, n = input->n_entries;
    for (int e = 0; e < n; e++) s->last_use[e] = NONE;
    for (int i = n_nodes - 1; i >= 0; i--) {
        const int *operand = input->operand + (size_t)i * SHEAF__MAX_OPERANDS;
        const struct sheaf_tensor *t = input->graph->nodes[i];
        const int self = input->self[i];
        s->dead[i] = NONE;
        if (s->last_use[self] == NONE) s->last_use[self] = i;
        for (int k = 0, m = input->entry[self].n_operands; k < m; k++) {
            const int until = sheaf__is_view_form(sheaf__rule_of(t)) ? s->last_use[self] : i;
            if (s->last_use[operand[k]] < until) s->last_use[operand[k]] = until;
        }
    }
    for (int e = n - 1; e >= 0; e--) {
        if (s->last_use[e] == NONE) continue;
        s->next_dead[e] = s->dead[s->last_use[e]];
        s->dead[s->last_use[e]] = e;
    }
}

/* A column for each tensor that is still to be read behind its node: results, and leaves that are
 * read more than once. */
static void give_columns(struct sheaf__search *s) {
    const struct sheaf__search_input *input = s->input;
    int *unused = s->column_entry, n_unused = 0; /* a stack, until the pass begins */
    for (int e = 0; e < input->n_entries; e++) s->column_of[e] = NONE;
    for (int i = 0; i < input->graph->n_nodes; i++) {
        const int *operand = input->operand + (size_t)i * SHEAF__MAX_OPERANDS;
        const int m = input->entry[input->self[i]].n_operands;
        for (int k = 0; k <= m; k++) {
            const int e = k < m ? operand[k] : input->self[i];
            if (s->column_of[e] == NONE && s->last_use[e] > i)
                s->column_of[e] = n_unused ? unused[--n_unused] : s->n_columns++;
        }
        for (int e = s->dead[i]; e != NONE; e = s->next_dead[e]) {
            if (s->column_of[e] != NONE) unused[n_unused++] = s->column_of[e];
        }
    }
    for (int k = 0; k < input->n_entries; k++) s->column_entry[k] = NONE;
}

static bool find_initial_sets(struct sheaf__search *s) {
    const struct sheaf__search_input *input = s->input;
    const struct sheaf__set empty = {.n = 0};
    if (sheaf__set_number(&s->sets, &empty) != SHEAF__EMPTY_SET) return false;
    for (int e = 0; e < input->n_entries; e++) {
        s->initial[e] = input->entry[e].node < 0 && input->entry[e].uses > 0
                            ? sheaf__set_of_one(&s->sets, input->entry[e].st, true)
                            : SHEAF__EMPTY_SET;
        if (s->initial[e] == SHEAF__NO_SET) return false;
    }
    return true;
}

/* Everything that the pass needs, and the one path before the first node. */
static bool prepare(struct sheaf__search *s) {
    const size_t n = (size_t)s->input->n_entries + 1, nodes = (size_t)s->input->graph->n_nodes + 1;
    s->options = sheaf__options_new(s->input, &s->sets);
    s->initial = malloc(n * sizeof *s->initial);
    s->column_of = malloc(n * sizeof *s->column_of);
    s->last_use = malloc(n * sizeof *s->last_use);
    s->next_dead = malloc(n * sizeof *s->next_dead);
    s->column_entry = malloc(n * sizeof *s->column_entry);
    s->dead = malloc(nodes * sizeof *s->dead);
    s->row = calloc(nodes, sizeof(const struct sheaf__row *));
    if (!s->options || !s->initial || !s->column_of || !s->last_use || !s->next_dead ||
        !s->column_entry || !s->dead || !s->row)
        return false;
    find_last_uses(s);
    give_columns(s);
    if (!find_initial_sets(s) || !room(&s->now, 1, s->n_columns)) return false;
    s->now.n = 1;
    s->now.path[0] = (struct path){.record = NONE};
    for (int k = 0; k < s->n_columns; k++) s->now.column[k] = SHEAF__EMPTY_SET;
    return true;
}

/* The rows that the cheapest path took, from its last record back. */
static void take_rows(struct sheaf__search *s) {
    int at = s->now.n ? s->now.path[0].record : NONE;
    for (int i = s->input->graph->n_nodes - 1; i >= 0 && at != NONE; i--) {
        if (s->input->graph->nodes[i]->op == SHEAF_OP_NONE) continue;
        if (!s->record[at].option->none) s->row[i] = &s->record[at].option->row;
        at = s->record[at].before;
    }
}

static bool search(struct sheaf__search *s) {
    if (!prepare(s)) return false;
    for (int i = 0; i < s->input->graph->n_nodes; i++) {
        if (s->input->graph->nodes[i]->op == SHEAF_OP_NONE) continue;
        if (!pass(s, i)) return false;
    }
    take_rows(s);
    return true;
}

enum sheaf_status sheaf__search_new(const struct sheaf__search_input *input,
                                    struct sheaf__search **out) {
    *out = NULL;
    struct sheaf__search *s = calloc(1, sizeof *s);
    if (!s) return sheaf__plan_no_memory();
    s->input = input;
    s->n_members = input->pool->n_members;
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
    free(s->initial);
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
