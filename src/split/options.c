/* See options.h. The rows come from match.c; what they cost from convert.c. */
#include "split/options.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "split/convert.h"
#include "split/decide.h"
#include "tensor/graph.h"

enum { MAX_ROWS = 64, SLOTS = 512 };
/* of a shape: five of the node's own, its parameters, ten for it and for each operand */
enum { MAX_WORDS = 5 + SHEAF_MAX_OP_PARAMS / 2 + 10 * (SHEAF__MAX_OPERANDS + 1) };

struct shape { /* all of a node that its rows and their costs depend on */
    struct shape *next;
    uint64_t hash;
    int number, n;
    uint64_t word[];
};

struct sheaf__options {
    const struct sheaf__search_input *input;
    struct sheaf__sets *sets;
    struct sheaf__known *known[SLOTS];
    struct shape *shapes[SLOTS];
    int n_shapes;
    /* the node that is asked about, and the sets of its operands */
    int shape;
    const struct sheaf_tensor *node;
    const struct sheaf__rule *rule;
    int n, index, written;         /* written: 1 + the operand that takes the result; 0: none */
    bool whole;                    /* nothing may be cut */
    const int *operand;            /* entries */
    int same[SHEAF__MAX_OPERANDS]; /* first operand that is the same tensor */
    struct sheaf__set set[SHEAF__MAX_OPERANDS];
    int64_t bytes[SHEAF__MAX_OPERANDS];
    bool dense[SHEAF__MAX_OPERANDS];
    int n_options;
    bool fits; /* a row takes what is cut as it lies */
    bool failed;
    struct sheaf__option option[MAX_ROWS];
    bool is_free[MAX_ROWS];
    bool takes_weight[MAX_ROWS]; /* gathers a leaf that the graph only reads */
};

/* Is the state there for the node at no cost? */
static bool met(const struct sheaf__options *w, int operand, const struct sheaf__need *need) {
    const struct sheaf__set *x = &w->set[operand];
    for (int i = 0; i < x->n; i++) {
        if (sheaf__is_view_form(w->rule) && x->packed >> i & 1) continue;
        if (sheaf__need_met(need, x->st[i])) return true;
    }
    return false;
}

/* Adds the cost of having operand i as needed to the option; x becomes the states that it then has.
 */
static void acquire(const struct sheaf__options *w, int i, struct sheaf__set *x,
                    const struct sheaf__need *need, struct sheaf__option *o) {
    int64_t least;
    const int from =
        sheaf__cheapest_source(x->st, x->n, need, w->bytes[i], w->input->pool->n_members, &least);
    if (least == SHEAF__MET) return;
    o->cost += least;
    /* the slice of a whole tensor is a state, too: rows of other nodes may follow its cut */
    for (struct sheaf__st at = x->st[from], next; !sheaf__st_equal(at, need->st); at = next) {
        o->collectives += at.kind != SHEAF__M;
        sheaf__convert_step(at, need->st, &next);
        if (next.kind != SHEAF__P) sheaf__set_add(x, next, !w->dense[i]);
    }
}

/* A leaf or a view of one, which no node of the graph writes to. */
static bool is_weight(const struct sheaf__options *w, int i) {
    const struct sheaf__entry *owner = &w->input->entry[w->input->entry[w->operand[i]].owner];
    return owner->node < 0 && !owner->written;
}

static bool note(void *user, const struct sheaf__row *row) {
    struct sheaf__options *w = user;
    if (w->whole && sheaf__row_cuts(row)) return true;
    if (w->input->whole_sums && row->adds) return true;
    struct sheaf__option o = {.row = *row};
    bool is_free = true, cut = false, native = true, takes_weight = false;
    struct sheaf__set after[SHEAF__MAX_OPERANDS];
    for (int i = 0; i < w->n; i++) after[i] = w->set[i];
    for (int i = 0; i < w->n; i++) {
        const struct sheaf__need *need = &row->need[i];
        if (i + 1 == w->written) { /* written where it is, never converted */
            if (!w->set[i].native || !sheaf__row_writes(row, i, w->set[i].st[0])) return true;
            continue;
        }
        cut = cut || need->st.kind == SHEAF__S;
        const bool there = met(w, i, need);
        is_free = is_free && (there || sheaf__set_holds(&w->set[i], SHEAF__M));
        if (sheaf__is_view_form(w->rule)) {
            native = w->set[i].native && sheaf__need_met(need, w->set[i].st[0]);
            if (there) continue;
            if (need->st.kind != SHEAF__M) return true;
            if (!w->dense[i]) {
                o.mirror = true;
                is_free = false;
                continue;
            }
        }
        const int before = o.collectives;
        acquire(w, i, &after[w->same[i]], need, &o);
        takes_weight = takes_weight || (o.collectives > before && is_weight(w, i));
    }
    o.out = sheaf__set_of_one(w->sets, sheaf__lasting(w->input, w->index, row->out), native);
    for (int i = 0; i < w->n; i++) {
        o.set[i] = sheaf__set_number(w->sets, &after[w->same[i]]);
        w->failed = w->failed || o.set[i] == SHEAF__NO_SET;
    }
    w->failed = w->failed || o.out == SHEAF__NO_SET;
    w->fits = w->fits || (is_free && cut);
    w->is_free[w->n_options] = is_free;
    w->takes_weight[w->n_options] = takes_weight;
    w->option[w->n_options++] = o;
    return w->n_options < MAX_ROWS && !w->failed;
}

/* The states that rows may use. False: an operand has none. */
static bool find_states(const struct sheaf__options *w,
                        struct sheaf__st st[SHEAF__MAX_OPERANDS][SHEAF__SET_STATES],
                        struct sheaf__have have[SHEAF__MAX_OPERANDS]) {
    bool known = true;
    for (int i = 0; i < w->n; i++) {
        int n = 0;
        for (int k = 0; k < w->set[i].n; k++) {
            if (sheaf__is_view_form(w->rule) && w->set[i].packed >> k & 1) continue;
            st[i][n++] = w->set[i].st[k];
        }
        known = known && n > 0;
        have[i] = (struct sheaf__have){n, st[i]};
    }
    return known;
}

/* No row: the node writes through mirrored copies, or its operands are out of date. */
static void note_none(struct sheaf__options *w, bool known) {
    struct sheaf__option *o = &w->option[w->n_options++];
    *o = (struct sheaf__option){.none = true};
    const struct sheaf__need m = {.st = sheaf__st_m()};
    for (int i = 0; i < w->n; i++) {
        struct sheaf__set after = w->set[i];
        if (known) acquire(w, i, &after, &m, o);
        o->set[i] = sheaf__set_number(w->sets, &after);
        w->failed = w->failed || o->set[i] == SHEAF__NO_SET;
    }
    o->out = sheaf__set_of_one(w->sets, sheaf__st_m(), false);
    w->failed = w->failed || o->out == SHEAF__NO_SET;
}

static void leave_out_gathers(struct sheaf__options *w) {
    bool weights_stay = false; /* in one row at least */
    for (int a = 0; a < w->n_options; a++) weights_stay = weights_stay || !w->takes_weight[a];
    for (int a = 0; a < w->n_options; a++) {
        if (w->fits && !w->is_free[a])
            w->option[a].left_out = SHEAF__GATHERS;
        else if (w->input->whole_sums && weights_stay && w->takes_weight[a])
            w->option[a].left_out = SHEAF__GATHERS_WEIGHT;
    }
}

/* Does y leave the same sets behind as x, and cost no more? Of equals the first stays. */
static bool dominates(const struct sheaf__options *w, int y_at, int x_at) {
    const struct sheaf__option *x = &w->option[x_at], *y = &w->option[y_at];
    if (y_at == x_at || (y->left_out && y->left_out != SHEAF__DOMINATED) || x->out != y->out ||
        x->mirror || y->mirror || memcmp(x->set, y->set, (size_t)w->n * sizeof *x->set) != 0)
        return false;
    return y->cost < x->cost || (y->cost == x->cost && y_at < x_at);
}

static void leave_out_dominated(struct sheaf__options *w) {
    for (int a = 0; a < w->n_options; a++) {
        struct sheaf__option *x = &w->option[a];
        for (int b = 0; b < w->n_options && !x->left_out; b++)
            if (dominates(w, b, a)) x->left_out = SHEAF__DOMINATED;
    }
}

/* All that the node can do; the options left out are marked. */
static void find_options(struct sheaf__options *w) {
    struct sheaf__have have[SHEAF__MAX_OPERANDS];
    struct sheaf__st st[SHEAF__MAX_OPERANDS][SHEAF__SET_STATES];
    const bool known = find_states(w, st, have);
    if (known) sheaf__rows_visit(w->input->pool, w->node, have, note, w);
    if (w->n_options == 0) {
        note_none(w, known);
        return;
    }
    leave_out_gathers(w);
    leave_out_dominated(w);
}

/* ---- shapes of nodes ---- */

static uint64_t *put_tensor(uint64_t *w, const struct sheaf_tensor *t) {
    *w++ = (uint64_t)t->type;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) *w++ = (uint64_t)t->ne[i];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) *w++ = (uint64_t)t->nb[i];
    return w;
}

static const struct sheaf_tensor *operand_of(const struct sheaf__options *w, int i) {
    return w->input->entry[w->operand[i]].tensor;
}

/* Number of the node's shape; SHEAF__NO_SET: out of memory. */
static int shape_of(struct sheaf__options *work) {
    const struct sheaf_tensor *t = work->node;
    uint64_t word[MAX_WORDS], *w = word;
    int n_params = SHEAF_MAX_OP_PARAMS; /* to the last that is not 0 */
    while (n_params > 0 && !t->op_params[n_params - 1]) n_params--;
    *w++ = (uint64_t)t->op | (uint64_t)n_params << 32;
    for (int i = 0; i < n_params; i += 2)
        *w++ = (uint32_t)t->op_params[i] | (uint64_t)(uint32_t)t->op_params[i + 1] << 32;
    w = put_tensor(w, t);
    *w++ = work->n ? t->view_offs - operand_of(work, 0)->view_offs : 0;
    /* masked results name the mask, and are none if it or they are written over */
    const int mask = work->rule->mask;
    *w++ = mask ? (uint64_t)(uintptr_t)t->src[mask - 1] : 0;
    const bool lasts = sheaf__lasting(work->input, work->index,
                                      sheaf__st_masked(NULL, mask ? t->src[mask - 1] : t))
                           .mask;
    *w++ = (uint64_t)lasts | (uint64_t)work->whole << 1 | (uint64_t)work->written << 2;
    for (int i = 0; i < work->n; i++) {
        *w++ = (uint64_t)work->same[i] | (uint64_t)is_weight(work, i) << 8;
        w = put_tensor(w, operand_of(work, i));
    }
    const int n = (int)(w - word);
    const uint64_t h = sheaf__hash_words(0, word, n);
    struct shape **at = &work->shapes[h & (SLOTS - 1)];
    for (const struct shape *x = *at; x; x = x->next) {
        if (x->hash == h && x->n == n && !memcmp(x->word, word, (size_t)n * sizeof *word))
            return x->number;
    }
    struct shape *x = malloc(sizeof *x + (size_t)n * sizeof *word);
    if (!x) return SHEAF__NO_SET;
    *x = (struct shape){.next = *at, .hash = h, .number = work->n_shapes++, .n = n};
    memcpy(x->word, word, (size_t)n * sizeof *word);
    *at = x;
    return x->number;
}

const struct sheaf__rule *sheaf__options_begin(struct sheaf__options *w, int node) {
    const int *operand = w->input->operand + (size_t)node * SHEAF__MAX_OPERANDS;
    w->node = w->input->graph->nodes[node];
    w->operand = operand;
    w->index = node;
    const struct sheaf__entry *self = &w->input->entry[w->input->self[node]];
    w->written = self->writes;
    w->whole = w->input->whole && w->input->whole[node];
    w->rule = sheaf__rule_of(w->node);
    w->n = self->n_operands;
    for (int i = 0; i < w->n; i++) {
        w->same[i] = 0;
        while (operand[w->same[i]] != operand[i]) w->same[i]++;
    }
    w->shape = shape_of(w);
    return w->shape != SHEAF__NO_SET ? w->rule : NULL;
}

int sheaf__options_all(struct sheaf__options *w, const int *set,
                       const struct sheaf__option **option) {
    for (int i = 0; i < w->n; i++) {
        w->set[i] = w->sets->set[set[i]];
        w->bytes[i] = sheaf__dense_bytes(operand_of(w, i));
        w->dense[i] = sheaf_is_contiguous(operand_of(w, i));
    }
    w->n_options = 0;
    w->fits = w->failed = false;
    find_options(w);
    *option = w->option;
    return w->failed || w->input->pool->failed ? -1 : w->n_options;
}

const struct sheaf__known *sheaf__options_of(struct sheaf__options *w, const int *set) {
    uint64_t h = (uint64_t)w->shape;
    for (int i = 0; i < w->n; i++) h = sheaf__mix(h, (uint64_t)set[i]);
    struct sheaf__known **at = &w->known[h & (SLOTS - 1)];
    for (struct sheaf__known *k = *at; k; k = k->next) {
        if (k->hash == h && k->shape == w->shape &&
            !memcmp(k->set, set, (size_t)w->n * sizeof *set))
            return k;
    }
    const struct sheaf__option *all;
    const int n = sheaf__options_all(w, set, &all);
    if (n < 0) return NULL;
    size_t kept = 0;
    for (int a = 0; a < n; a++) kept += !all[a].left_out;
    struct sheaf__known *k = malloc(sizeof *k + kept * sizeof *k->option);
    if (!k) return NULL;
    *k = (struct sheaf__known){.next = *at, .hash = h, .shape = w->shape};
    memcpy(k->set, set, (size_t)w->n * sizeof *set);
    for (int a = 0; a < n; a++) {
        if (!all[a].left_out) k->option[k->n++] = all[a];
    }
    *at = k;
    return k;
}

struct sheaf__options *sheaf__options_new(const struct sheaf__search_input *input,
                                          struct sheaf__sets *sets) {
    struct sheaf__options *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->input = input;
    o->sets = sets;
    return o;
}

void sheaf__options_free(struct sheaf__options *o) {
    for (int i = 0; o && i < SLOTS; i++) {
        for (struct sheaf__known *k = o->known[i], *next; k; k = next) {
            next = k->next;
            free(k);
        }
        for (struct shape *x = o->shapes[i], *next; x; x = next) {
            next = x->next;
            free(x);
        }
    }
    free(o);
}

struct sheaf__st sheaf__lasting(const struct sheaf__search_input *input, int node,
                                struct sheaf__st st) {
    if (!st.mask) return st;
    const struct sheaf_tensor *t = input->graph->nodes[node];
    const int mask = sheaf__rule_of(t)->mask;
    bool written = input->entry[input->entry[input->self[node]].owner].written;
    if (mask && t->src[mask - 1] == st.mask) {
        const int e = input->operand[node * SHEAF__MAX_OPERANDS + mask - 1];
        written = written || input->entry[input->entry[e].owner].written;
    }
    return written ? sheaf__st_p() : st;
}
