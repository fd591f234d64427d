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
static bool met(const struct sheaf__options *o, int operand, const struct sheaf__need *need) {
    const struct sheaf__set *states = &o->set[operand];
    for (int i = 0; i < states->n; i++) {
        if (sheaf__is_view_form(o->rule) && states->packed >> i & 1) continue;
        if (sheaf__need_met(need, states->st[i])) return true;
    }
    return false;
}

/* Adds the cost of having operand i as needed to the option; *states becomes what it then has. */
static void acquire(const struct sheaf__options *o, int i, struct sheaf__set *states,
                    const struct sheaf__need *need, struct sheaf__option *option) {
    int64_t least;
    const int from = sheaf__cheapest_source(states->st, states->n, need, o->bytes[i],
                                            o->input->pool->n_members, &least);
    if (least == SHEAF__MET) return;
    option->cost += least;
    /* the slice of a whole tensor is a state, too: rows of other nodes may follow its cut */
    for (struct sheaf__st at = states->st[from], next; !sheaf__st_equal(at, need->st); at = next) {
        option->collectives += at.kind != SHEAF__M;
        sheaf__convert_step(at, need->st, &next);
        if (next.kind != SHEAF__P) sheaf__set_add(states, next, !o->dense[i]);
    }
}

/* A leaf or a view of one, which no node of the graph writes to. */
static bool is_weight(const struct sheaf__options *o, int i) {
    const struct sheaf__entry *owner = &o->input->entry[o->input->entry[o->operand[i]].owner];
    return owner->node < 0 && !owner->written;
}

static bool note(void *user, const struct sheaf__row *row) {
    struct sheaf__options *o = user;
    if (o->whole && sheaf__row_cuts(row)) return true;
    if (o->input->whole_sums && row->adds) return true;
    struct sheaf__option option = {.row = *row};
    bool is_free = true, cut = false, native = true, takes_weight = false;
    struct sheaf__set after[SHEAF__MAX_OPERANDS];
    for (int i = 0; i < o->n; i++) after[i] = o->set[i];
    for (int i = 0; i < o->n; i++) {
        const struct sheaf__need *need = &row->need[i];
        if (i + 1 == o->written) { /* written where it is, never converted */
            if (!o->set[i].native || !sheaf__row_writes(row, i, o->set[i].st[0])) return true;
            continue;
        }
        cut = cut || need->st.kind == SHEAF__S;
        const bool there = met(o, i, need);
        is_free = is_free && (there || sheaf__set_holds(&o->set[i], SHEAF__M));
        if (sheaf__is_view_form(o->rule)) {
            native = o->set[i].native && sheaf__need_met(need, o->set[i].st[0]);
            if (there) continue;
            if (need->st.kind != SHEAF__M) return true;
            if (!o->dense[i]) {
                option.mirror = true;
                is_free = false;
                continue;
            }
        }
        const int before = option.collectives;
        acquire(o, i, &after[o->same[i]], need, &option);
        takes_weight = takes_weight || (option.collectives > before && is_weight(o, i));
    }
    option.out = sheaf__set_of_one(o->sets, sheaf__lasting(o->input, o->index, row->out), native);
    for (int i = 0; i < o->n; i++) {
        option.set[i] = sheaf__set_number(o->sets, &after[o->same[i]]);
        o->failed = o->failed || option.set[i] == SHEAF__NO_SET;
    }
    o->failed = o->failed || option.out == SHEAF__NO_SET;
    o->fits = o->fits || (is_free && cut);
    o->is_free[o->n_options] = is_free;
    o->takes_weight[o->n_options] = takes_weight;
    o->option[o->n_options++] = option;
    return o->n_options < MAX_ROWS && !o->failed;
}

/* The states that rows may use. False: an operand has none. */
static bool find_states(const struct sheaf__options *o,
                        struct sheaf__st st[SHEAF__MAX_OPERANDS][SHEAF__SET_STATES],
                        struct sheaf__have have[SHEAF__MAX_OPERANDS]) {
    bool known = true;
    for (int i = 0; i < o->n; i++) {
        int n = 0;
        for (int k = 0; k < o->set[i].n; k++) {
            if (sheaf__is_view_form(o->rule) && o->set[i].packed >> k & 1) continue;
            st[i][n++] = o->set[i].st[k];
        }
        known = known && n > 0;
        have[i] = (struct sheaf__have){n, st[i]};
    }
    return known;
}

/* No row: the node writes through mirrored copies, or its operands are out of date. */
static void note_none(struct sheaf__options *o, bool known) {
    struct sheaf__option *option = &o->option[o->n_options++];
    *option = (struct sheaf__option){.none = true};
    const struct sheaf__need m = {.st = sheaf__st_m()};
    for (int i = 0; i < o->n; i++) {
        struct sheaf__set after = o->set[i];
        if (known) acquire(o, i, &after, &m, option);
        option->set[i] = sheaf__set_number(o->sets, &after);
        o->failed = o->failed || option->set[i] == SHEAF__NO_SET;
    }
    option->out = sheaf__set_of_one(o->sets, sheaf__st_m(), false);
    o->failed = o->failed || option->out == SHEAF__NO_SET;
}

static void leave_out_gathers(struct sheaf__options *o) {
    bool weights_stay = false; /* in one row at least */
    for (int a = 0; a < o->n_options; a++) weights_stay = weights_stay || !o->takes_weight[a];
    for (int a = 0; a < o->n_options; a++) {
        if (o->fits && !o->is_free[a])
            o->option[a].left_out = SHEAF__GATHERS;
        else if (o->input->whole_sums && weights_stay && o->takes_weight[a])
            o->option[a].left_out = SHEAF__GATHERS_WEIGHT;
    }
}

/* Does y leave the same sets behind as x, and cost no more? Of equals the first stays. */
static bool dominates(const struct sheaf__options *o, int y_at, int x_at) {
    const struct sheaf__option *x = &o->option[x_at], *y = &o->option[y_at];
    if (y_at == x_at || (y->left_out && y->left_out != SHEAF__DOMINATED) || x->out != y->out ||
        x->mirror || y->mirror || memcmp(x->set, y->set, (size_t)o->n * sizeof *x->set) != 0)
        return false;
    return y->cost < x->cost || (y->cost == x->cost && y_at < x_at);
}

static void leave_out_dominated(struct sheaf__options *o) {
    for (int a = 0; a < o->n_options; a++) {
        struct sheaf__option *x = &o->option[a];
        for (int b = 0; b < o->n_options && !x->left_out; b++)
            if (dominates(o, b, a)) x->left_out = SHEAF__DOMINATED;
    }
}

/* All that the node can do; the options left out are marked. */
static void find_options(struct sheaf__options *o) {
    struct sheaf__have have[SHEAF__MAX_OPERANDS];
    struct sheaf__st st[SHEAF__MAX_OPERANDS][SHEAF__SET_STATES];
    const bool known = find_states(o, st, have);
    if (known) sheaf__rows_visit(o->input->pool, o->node, have, note, o);
    if (o->n_options == 0) {
        note_none(o, known);
        return;
    }
    leave_out_gathers(o);
    leave_out_dominated(o);
}

/* ---- shapes of nodes ---- */

static uint64_t *put_tensor(uint64_t *out, const struct sheaf_tensor *t) {
    *out++ = (uint64_t)t->type;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) *out++ = (uint64_t)t->ne[i];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) *out++ = (uint64_t)t->nb[i];
    return out;
}

static const struct sheaf_tensor *operand_of(const struct sheaf__options *o, int i) {
    return o->input->entry[o->operand[i]].tensor;
}

/* Number of the node's shape; SHEAF__NO_SET: out of memory. */
static int shape_of(struct sheaf__options *o) {
    const struct sheaf_tensor *t = o->node;
    uint64_t word[MAX_WORDS], *out = word;
    int n_params = SHEAF_MAX_OP_PARAMS; /* to the last that is not 0 */
    while (n_params > 0 && !t->op_params[n_params - 1]) n_params--;
    *out++ = (uint64_t)t->op | (uint64_t)n_params << 32;
    for (int i = 0; i < n_params; i += 2)
        *out++ = (uint32_t)t->op_params[i] | (uint64_t)(uint32_t)t->op_params[i + 1] << 32;
    out = put_tensor(out, t);
    *out++ = o->n ? t->view_offs - operand_of(o, 0)->view_offs : 0;
    /* masked results name the mask, and are none if it or they are written over */
    const int mask = o->rule->mask;
    *out++ = mask ? (uint64_t)(uintptr_t)t->src[mask - 1] : 0;
    const bool lasts =
        sheaf__lasting(o->input, o->index, sheaf__st_masked(NULL, mask ? t->src[mask - 1] : t))
            .mask;
    *out++ = (uint64_t)lasts | (uint64_t)o->whole << 1 | (uint64_t)o->written << 2;
    for (int i = 0; i < o->n; i++) {
        *out++ = (uint64_t)o->same[i] | (uint64_t)is_weight(o, i) << 8;
        out = put_tensor(out, operand_of(o, i));
    }
    const int n = (int)(out - word);
    const uint64_t h = sheaf__hash_words(0, word, n);
    struct shape **at = &o->shapes[h & (SLOTS - 1)];
    for (const struct shape *x = *at; x; x = x->next) {
        if (x->hash == h && x->n == n && !memcmp(x->word, word, (size_t)n * sizeof *word))
            return x->number;
    }
    struct shape *x = malloc(sizeof *x + (size_t)n * sizeof *word);
    if (!x) return SHEAF__NO_SET;
    *x = (struct shape){.next = *at, .hash = h, .number = o->n_shapes++, .n = n};
    memcpy(x->word, word, (size_t)n * sizeof *word);
    *at = x;
    return x->number;
}

const struct sheaf__rule *sheaf__options_begin(struct sheaf__options *o, int node) {
    const int *operand = o->input->operand + (size_t)node * SHEAF__MAX_OPERANDS;
    o->node = o->input->graph->nodes[node];
    o->operand = operand;
    o->index = node;
    const struct sheaf__entry *self = &o->input->entry[o->input->self[node]];
    o->written = self->writes;
    o->whole = o->input->whole && o->input->whole[node];
    o->rule = sheaf__rule_of(o->node);
    o->n = self->n_operands;
    for (int i = 0; i < o->n; i++) {
        o->same[i] = 0;
        while (operand[o->same[i]] != operand[i]) o->same[i]++;
    }
    o->shape = shape_of(o);
    return o->shape != SHEAF__NO_SET ? o->rule : NULL;
}

int sheaf__options_all(struct sheaf__options *o, const int *set,
                       const struct sheaf__option **option) {
    for (int i = 0; i < o->n; i++) {
        o->set[i] = o->sets->set[set[i]];
        o->bytes[i] = sheaf__dense_bytes(operand_of(o, i));
        o->dense[i] = sheaf_is_contiguous(operand_of(o, i));
    }
    o->n_options = 0;
    o->fits = o->failed = false;
    find_options(o);
    *option = o->option;
    return o->failed || o->input->pool->failed ? -1 : o->n_options;
}

const struct sheaf__known *sheaf__options_of(struct sheaf__options *o, const int *set) {
    uint64_t h = (uint64_t)o->shape;
    for (int i = 0; i < o->n; i++) h = sheaf__mix(h, (uint64_t)set[i]);
    struct sheaf__known **at = &o->known[h & (SLOTS - 1)];
    for (struct sheaf__known *k = *at; k; k = k->next) {
        if (k->hash == h && k->shape == o->shape &&
            !memcmp(k->set, set, (size_t)o->n * sizeof *set))
            return k;
    }
    const struct sheaf__option *all;
    const int n = sheaf__options_all(o, set, &all);
    if (n < 0) return NULL;
    size_t kept = 0;
    for (int a = 0; a < n; a++) kept += !all[a].left_out;
    struct sheaf__known *k = malloc(sizeof *k + kept * sizeof *k->option);
    if (!k) return NULL;
    *k = (struct sheaf__known){.next = *at, .hash = h, .shape = o->shape};
    memcpy(k->set, set, (size_t)o->n * sizeof *set);
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
