/* See search.h. A `set` is the states in which a tensor is available; sets are interned, so that a
 * way is a row of numbers: one for each tensor still to be read. What a node can do with the sets
 * of its operands is worked out once and remembered by the node's shape, since the layers of a
 * model repeat. */
#include "split/search.h"

#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "split/convert.h"

enum { NONE = -1, EMPTY = 0, MAX_STATES = 8, MAX_ROWS = 64 };
/* of a shape: five of the node's own, its parameters, ten for it and for each operand */
enum { MAX_WORDS = 5 + SHEAF_MAX_OP_PARAMS / 2 + 10 * (SHEAF__MAX_OPERANDS + 1) };
/* Ways kept: all of them for graphs that a person would write down, fewer for large ones, in which
 * choices are rarely that entangled. */
enum { WAYS_LEAST = 8, WAYS_MOST = 128, WAYS_NODES = 4096 };
static const int64_t DEAREST = INT64_MAX / 4;

struct set {
    int n;
    bool native;    /* st[0] lies in the tensor's own memory */
    uint8_t packed; /* bits: a dense copy of a tensor that is not dense */
    struct sheaf__st st[MAX_STATES];
};

struct option {
    struct sheaf__row row;
    bool none;   /* no row: an in-place write that goes through a copy, or an unknown */
    bool mirror; /* a view of a mirrored copy of what its operand is a view of */
    int64_t cost;
    int collectives, out, set[SHEAF__MAX_OPERANDS];
};

struct known { /* what a node of this shape can do with these sets */
    struct known *next;
    uint64_t hash;
    int shape, set[SHEAF__MAX_OPERANDS], n;
    struct option option[];
};

struct shape { /* all of a node that its rows and their costs depend on */
    struct shape *next;
    uint64_t hash;
    int number, n;
    uint64_t word[];
};

struct way {
    int64_t cost;
    int collectives, record;
    const struct option *option; /* of the node just passed */
    uint64_t hash;
};

struct record {
    int before;
    const struct option *option;
};

struct ways {
    int n, cap;
    struct way *way;
    int *slot; /* [cap][n_slots] sets */
};

struct sheaf__search {
    const struct sheaf__search_of *of;
    int n_members;
    struct set *set;
    int n_sets, cap_sets;
    int *set_slot; /* hash: set + 1 */
    int n_set_slots;
    struct known **known;
    struct shape **shape;
    int n_shapes;
    int *slot_of, *last_use, *next_dead, *dead; /* by entry; dead by node */
    int n_slots;
    int *slot_entry; /* [n_slots] at the present node */
    struct ways now, then;
    struct record *record;
    int n_records, cap_records;
    const struct sheaf__row **row; /* [nodes] */
};
enum { KNOWN_SLOTS = 512 };

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split: out of memory while planning");
}

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

/* ---- sets ---- */

static uint64_t hash_set(const struct set *s) {
    uint64_t h = mix((uint64_t)s->n, (uint64_t)s->native << 8 | s->packed);
    for (int i = 0; i < s->n; i++) {
        h = mix(h, (uint64_t)s->st[i].lie << 8 | (uint64_t)s->st[i].axis);
        h = mix(h, (uint64_t)(uintptr_t)s->st[i].cut ^ (uint64_t)(uintptr_t)s->st[i].mask << 1);
    }
    return h;
}

static bool same_set(const struct set *a, const struct set *b) {
    if (a->n != b->n || a->native != b->native || a->packed != b->packed) return false;
    for (int i = 0; i < a->n; i++) {
        if (!sheaf__st_equal(a->st[i], b->st[i])) return false;
    }
    return true;
}

/* The set's number; NONE: out of memory. */
static int intern(struct sheaf__search *s, const struct set *x) {
    if (2 * (s->n_sets + 1) > s->n_set_slots) {
        const int n = s->n_set_slots ? 2 * s->n_set_slots : 256;
        int *slot = calloc((size_t)n, sizeof *slot);
        if (!slot) return NONE;
        for (int i = 0; i < s->n_sets; i++) {
            size_t at = hash_set(&s->set[i]) & (size_t)(n - 1);
            while (slot[at]) at = (at + 1) & (size_t)(n - 1);
            slot[at] = i + 1;
        }
        free(s->set_slot);
        s->set_slot = slot;
        s->n_set_slots = n;
    }
    size_t at = hash_set(x) & (size_t)(s->n_set_slots - 1);
    for (; s->set_slot[at]; at = (at + 1) & (size_t)(s->n_set_slots - 1)) {
        if (same_set(&s->set[s->set_slot[at] - 1], x)) return s->set_slot[at] - 1;
    }
    if (s->n_sets == s->cap_sets) {
        const int cap = s->cap_sets ? 2 * s->cap_sets : 64;
        struct set *grown = realloc(s->set, (size_t)cap * sizeof *grown);
        if (!grown) return NONE;
        s->set = grown;
        s->cap_sets = cap;
    }
    s->set[s->n_sets] = *x;
    s->set_slot[at] = s->n_sets + 1;
    return s->n_sets++;
}

static int set_of_one(struct sheaf__search *s, struct sheaf__st st, bool native) {
    const struct set x = {.n = 1, .native = native, .st = {st}};
    return intern(s, &x);
}

static bool holds(const struct set *x, enum sheaf__lie lie) {
    for (int i = 0; i < x->n; i++) {
        if (x->st[i].lie == lie) return true;
    }
    return false;
}

static void learn(struct set *x, struct sheaf__st st, bool packed) {
    for (int i = 0; i < x->n; i++) {
        if (sheaf__st_equal(x->st[i], st)) return;
    }
    if (x->n == MAX_STATES) x->n--; /* the newest but one: the first is the tensor's own */
    x->packed = (uint8_t)(x->packed & ~(1u << x->n));
    if (packed) x->packed = (uint8_t)(x->packed | 1u << x->n);
    x->st[x->n++] = st;
}

/* ---- what a node can do ---- */

struct work { /* for one node and the sets of its operands */
    struct sheaf__search *s;
    const struct sheaf_tensor *node;
    const struct sheaf__rule *rule;
    int n, index, same[SHEAF__MAX_OPERANDS]; /* first operand that is the same tensor */
    struct set set[SHEAF__MAX_OPERANDS];
    int64_t bytes[SHEAF__MAX_OPERANDS];
    bool dense[SHEAF__MAX_OPERANDS];
    int n_options;
    bool fits; /* a row takes what is cut as it lies */
    bool failed;
    struct option option[MAX_ROWS];
    bool is_free[MAX_ROWS], dominated[MAX_ROWS];
};

static bool is_view_form(const struct sheaf__rule *rule) {
    return rule->form == SHEAF__FORM_VIEW || rule->form == SHEAF__FORM_PERMUTE;
}

/* Is the state there for the node at no cost? */
static bool met(const struct work *w, int operand, const struct sheaf__need *need) {
    const struct set *x = &w->set[operand];
    for (int i = 0; i < x->n; i++) {
        if (is_view_form(w->rule) && x->packed >> i & 1) continue;
        if (sheaf__need_met(need, x->st[i])) return true;
    }
    return false;
}

/* Adds to the option what it costs to have operand i as needed; x becomes what it is had in then.
 */
static void acquire(const struct work *w, int i, struct set *x, const struct sheaf__need *need,
                    struct option *o) {
    for (int k = 0; k < x->n; k++) {
        if (sheaf__need_met(need, x->st[k])) return;
    }
    int64_t least = INT64_MAX;
    int from = 0;
    for (int k = 0; k < x->n; k++) {
        const int64_t cost = sheaf__convert_cost(x->st[k], need->st, w->bytes[i], w->s->n_members);
        if (cost < least) {
            least = cost;
            from = k;
        }
    }
    o->cost += least;
    /* a slice of what is whole is learnt too: rows of other nodes may follow its cut */
    for (struct sheaf__st at = x->st[from], next; !sheaf__st_equal(at, need->st); at = next) {
        o->collectives += at.lie != SHEAF__M;
        sheaf__convert_step(at, need->st, &next);
        if (next.lie != SHEAF__P) learn(x, next, !w->dense[i]);
    }
}

static bool note(void *user, const struct sheaf__row *row) {
    struct work *w = user;
    struct sheaf__search *s = w->s;
    struct option o = {.row = *row};
    bool is_free = true, cut = false, native = true;
    struct set after[SHEAF__MAX_OPERANDS];
    for (int i = 0; i < w->n; i++) after[i] = w->set[i];
    for (int i = 0; i < w->n; i++) {
        const struct sheaf__need *need = &row->need[i];
        if (i + 1 == w->rule->written) { /* written where it is, never converted */
            if (!w->set[i].native || !sheaf__need_met(need, w->set[i].st[0])) return true;
            continue;
        }
        cut = cut || need->st.lie == SHEAF__S;
        const bool there = met(w, i, need);
        is_free = is_free && (there || holds(&w->set[i], SHEAF__M));
        if (is_view_form(w->rule)) {
            native = w->set[i].native && sheaf__need_met(need, w->set[i].st[0]);
            if (there) continue;
            if (need->st.lie != SHEAF__M) return true;
            if (!w->dense[i]) {
                o.mirror = true;
                is_free = false;
                continue;
            }
        }
        acquire(w, i, &after[w->same[i]], need, &o);
    }
    o.out = set_of_one(s, sheaf__lasting(s->of, w->index, row->out), native);
    for (int i = 0; i < w->n; i++) {
        o.set[i] = intern(s, &after[w->same[i]]);
        w->failed = w->failed || o.set[i] == NONE;
    }
    w->failed = w->failed || o.out == NONE;
    w->fits = w->fits || (is_free && cut);
    w->is_free[w->n_options] = is_free;
    w->option[w->n_options++] = o;
    return w->n_options < MAX_ROWS && !w->failed;
}

/* All that the node can do, the dominated left out. */
static void find_options(struct work *w) {
    struct sheaf__search *s = w->s;
    struct sheaf__have have[SHEAF__MAX_OPERANDS];
    struct sheaf__st st[SHEAF__MAX_OPERANDS][MAX_STATES];
    bool unknown = false;
    for (int i = 0; i < w->n; i++) {
        int n = 0;
        for (int k = 0; k < w->set[i].n; k++) {
            if (is_view_form(w->rule) && w->set[i].packed >> k & 1) continue;
            st[i][n++] = w->set[i].st[k];
        }
        unknown = unknown || n == 0;
        have[i] = (struct sheaf__have){n, st[i]};
    }
    if (!unknown) sheaf__rows_visit(s->of->pool, w->node, have, note, w);
    if (w->n_options == 0) { /* written through a mirrored copy, or out of date */
        struct option *o = &w->option[w->n_options++];
        *o = (struct option){.none = true};
        const struct sheaf__need m = {.st = sheaf__st_m()};
        for (int i = 0; i < w->n; i++) {
            struct set after = w->set[i];
            if (!unknown) acquire(w, i, &after, &m, o);
            o->set[i] = intern(s, &after);
            w->failed = w->failed || o->set[i] == NONE;
        }
        o->out = set_of_one(s, sheaf__st_m(), false);
        w->failed = w->failed || o->out == NONE;
        return;
    }
    int n = 0;
    for (int a = 0; a < w->n_options; a++) {
        if (w->fits && !w->is_free[a]) continue;
        w->option[n++] = w->option[a];
    }
    w->n_options = n;
    n = 0;
    for (int a = 0; a < w->n_options; a++) {
        bool worse = false;
        for (int b = 0; b < w->n_options && !worse; b++) {
            const struct option *x = &w->option[a], *y = &w->option[b];
            if (a == b || x->out != y->out || x->mirror || y->mirror ||
                memcmp(x->set, y->set, (size_t)w->n * sizeof *x->set) != 0)
                continue;
            worse = y->cost < x->cost || (y->cost == x->cost && b < a);
        }
        w->dominated[a] = worse;
    }
    for (int a = 0; a < w->n_options; a++) {
        if (!w->dominated[a]) w->option[n++] = w->option[a];
    }
    w->n_options = n;
}

/* ---- shapes of nodes ---- */

static uint64_t *put_tensor(uint64_t *w, const struct sheaf_tensor *t) {
    *w++ = (uint64_t)t->type;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) *w++ = (uint64_t)t->ne[i];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) *w++ = (uint64_t)t->nb[i];
    return w;
}

/* Number of the node's shape; NONE: out of memory. */
static int shape_of(struct sheaf__search *s, const struct work *work) {
    const struct sheaf_tensor *t = work->node;
    uint64_t word[MAX_WORDS], *w = word;
    *w++ = (uint64_t)t->op;
    for (int i = 0; i < SHEAF_MAX_OP_PARAMS; i += 2)
        *w++ = (uint32_t)t->op_params[i] | (uint64_t)(uint32_t)t->op_params[i + 1] << 32;
    w = put_tensor(w, t);
    *w++ = work->n ? t->view_offs - t->src[0]->view_offs : 0;
    /* masked results name the mask, and are none if it or they are written over */
    const int mask = work->rule->mask;
    *w++ = mask ? (uint64_t)(uintptr_t)t->src[mask - 1] : 0;
    *w++ = !sheaf__lasting(s->of, work->index, sheaf__st_masked(NULL, mask ? t->src[mask - 1] : t))
                .mask;
    for (int i = 0; i < work->n; i++) {
        *w++ = (uint64_t)work->same[i];
        w = put_tensor(w, t->src[i]);
    }
    const int n = (int)(w - word);
    uint64_t h = 0;
    for (int i = 0; i < n; i++) h = mix(h, word[i]);
    struct shape **at = &s->shape[h & (KNOWN_SLOTS - 1)];
    for (const struct shape *x = *at; x; x = x->next) {
        if (x->hash == h && x->n == n && !memcmp(x->word, word, (size_t)n * sizeof *word))
            return x->number;
    }
    struct shape *x = malloc(sizeof *x + (size_t)n * sizeof *word);
    if (!x) return NONE;
    *x = (struct shape){.next = *at, .hash = h, .number = s->n_shapes++, .n = n};
    memcpy(x->word, word, (size_t)n * sizeof *word);
    *at = x;
    return x->number;
}

/* What a node of the shape can do with these sets; NULL: out of memory. */
static const struct known *options_of(struct sheaf__search *s, struct work *w, int shape,
                                      const int *set) {
    uint64_t h = (uint64_t)shape;
    for (int i = 0; i < w->n; i++) h = mix(h, (uint64_t)set[i]);
    struct known **at = &s->known[h & (KNOWN_SLOTS - 1)];
    for (struct known *k = *at; k; k = k->next) {
        if (k->hash == h && k->shape == shape && !memcmp(k->set, set, (size_t)w->n * sizeof *set))
            return k;
    }
    for (int i = 0; i < w->n; i++) {
        w->set[i] = s->set[set[i]];
        w->bytes[i] = sheaf__dense_bytes(w->node->src[i]);
        w->dense[i] = sheaf_is_contiguous(w->node->src[i]);
    }
    w->n_options = 0;
    w->fits = w->failed = false;
    find_options(w);
    if (w->failed || s->of->pool->failed) return NULL;
    struct known *k = malloc(sizeof *k + (size_t)w->n_options * sizeof *k->option);
    if (!k) return NULL;
    *k = (struct known){.next = *at, .hash = h, .shape = shape, .n = w->n_options};
    memcpy(k->set, set, (size_t)w->n * sizeof *set);
    memcpy(k->option, w->option, (size_t)w->n_options * sizeof *k->option);
    *at = k;
    return k;
}

struct sheaf__st sheaf__lasting(const struct sheaf__search_of *of, int node, struct sheaf__st st) {
    if (!st.mask) return st;
    const struct sheaf_tensor *t = of->graph->nodes[node];
    const int mask = sheaf__rule_of(t)->mask;
    bool written = of->entry[of->entry[of->self[node]].owner].written;
    if (mask && t->src[mask - 1] == st.mask) {
        const int e = of->operand[node * SHEAF__MAX_OPERANDS + mask - 1];
        written = written || of->entry[of->entry[e].owner].written;
    }
    return written ? sheaf__st_p() : st;
}

/* ---- ways ---- */

static int set_at(const struct sheaf__search *s, const int *slot, const int *initial, int entry) {
    return s->slot_of[entry] != NONE ? slot[s->slot_of[entry]] : initial[entry];
}

static void pay(struct way *w, int64_t cost) {
    w->cost = cost < DEAREST - w->cost ? w->cost + cost : DEAREST;
}

/* Addends that are read after the compute are summed. */
static void pay_sum(const struct sheaf__search *s, struct way *w, int entry, int set) {
    const struct set *x = &s->set[set];
    if (x->n == 0 || holds(x, SHEAF__M) || holds(x, SHEAF__S)) return;
    pay(w, sheaf__convert_cost(sheaf__st_p(), sheaf__st_m(),
                               sheaf__dense_bytes(s->of->entry[entry].tensor), s->n_members));
    w->collectives++;
}

/* Has whole what a chain of views begins with. NONE: out of memory. */
static int pay_mirror(struct sheaf__search *s, struct way *w, int *slot, const int *initial,
                      int entry) {
    const struct sheaf__search_of *of = s->of;
    while (of->entry[entry].node >= 0 && is_view_form(sheaf__rule_of(of->entry[entry].tensor)) &&
           !sheaf_is_contiguous(of->entry[entry].tensor))
        entry = of->operand[of->entry[entry].node * SHEAF__MAX_OPERANDS];
    struct set x = s->set[set_at(s, slot, initial, entry)];
    if (x.n == 0 || holds(&x, SHEAF__M)) return 0;
    pay(w, sheaf__convert_cost(x.st[0], sheaf__st_m(), sheaf__dense_bytes(of->entry[entry].tensor),
                               s->n_members));
    w->collectives++;
    learn(&x, sheaf__st_m(), false);
    const int set = intern(s, &x);
    if (set != NONE && s->slot_of[entry] != NONE) slot[s->slot_of[entry]] = set;
    return set;
}

/* After a write, copies of what was written to are out of date. */
static bool forget_copies(struct sheaf__search *s, int *slot, int owner) {
    for (int k = 0; k < s->n_slots; k++) {
        const int e = s->slot_entry[k];
        if (e == NONE || s->of->entry[e].owner != owner || slot[k] == EMPTY) continue;
        const struct set x = s->set[slot[k]];
        slot[k] = x.native ? set_of_one(s, x.st[0], true) : EMPTY;
        if (slot[k] == NONE) return false;
    }
    return true;
}

static bool room(struct ways *w, int n, int n_slots) {
    if (n <= w->cap) return true;
    int cap = w->cap ? w->cap : 16;
    while (cap < n) cap *= 2;
    struct way *way = realloc(w->way, (size_t)cap * sizeof *way);
    if (way) w->way = way;
    int *slot = way ? realloc(w->slot, (size_t)cap * ((size_t)n_slots + 1) * sizeof *slot) : NULL;
    if (slot) w->slot = slot;
    if (!slot) return false;
    w->cap = cap;
    return true;
}

static bool cheaper(const struct way *a, const struct way *b) {
    return a->cost < b->cost || (a->cost == b->cost && a->collectives < b->collectives);
}

/* The way that was made last joins the others, or replaces or yields to one that leaves the same.
 */
static void join(struct sheaf__search *s) {
    struct ways *t = &s->then;
    const size_t bytes = (size_t)s->n_slots * sizeof *t->slot;
    struct way *mine = &t->way[t->n];
    int *slot = t->slot + (size_t)t->n * (size_t)s->n_slots;
    mine->hash = 0;
    for (int k = 0; k < s->n_slots; k++) mine->hash = mix(mine->hash, (uint64_t)slot[k]);
    for (int i = 0; i < t->n; i++) {
        if (t->way[i].hash != mine->hash ||
            memcmp(t->slot + (size_t)i * (size_t)s->n_slots, slot, bytes) != 0)
            continue;
        if (cheaper(mine, &t->way[i])) t->way[i] = *mine;
        return;
    }
    t->n++;
}

/* The cheapest first, in the order that they were made; no more than are kept. */
static bool select_ways(struct sheaf__search *s) {
    struct ways *from = &s->then, *to = &s->now;
    int most = WAYS_NODES / (s->of->graph->n_nodes + 1);
    most = most < WAYS_LEAST ? WAYS_LEAST : most > WAYS_MOST ? WAYS_MOST : most;
    if (!room(to, from->n, s->n_slots)) return false;
    to->n = 0;
    while (to->n < most) {
        int best = NONE;
        for (int i = 0; i < from->n; i++) {
            if (from->way[i].option && (best == NONE || cheaper(&from->way[i], &from->way[best])))
                best = i;
        }
        if (best == NONE) break;
        if (s->n_records == s->cap_records) {
            const int cap = s->cap_records ? 2 * s->cap_records : 1024;
            struct record *grown = realloc(s->record, (size_t)cap * sizeof *grown);
            if (!grown) return false;
            s->record = grown;
            s->cap_records = cap;
        }
        struct way *w = &from->way[best];
        s->record[s->n_records] = (struct record){w->record, w->option};
        to->way[to->n] = *w;
        to->way[to->n].record = s->n_records++;
        memcpy(to->slot + (size_t)to->n++ * (size_t)s->n_slots,
               from->slot + (size_t)best * (size_t)s->n_slots,
               (size_t)s->n_slots * sizeof *to->slot);
        w->option = NULL; /* taken */
    }
    return true;
}

/* Every way, continued by everything that the node can do. */
static bool pass(struct sheaf__search *s, int node, int *initial, struct work *w) {
    const struct sheaf__search_of *of = s->of;
    const int *operand = of->operand + (size_t)node * SHEAF__MAX_OPERANDS;
    const int self = of->self[node];
    w->s = s;
    w->node = of->graph->nodes[node];
    w->index = node;
    w->rule = sheaf__rule_of(w->node);
    w->n = sheaf__n_operands(w->node);
    for (int i = 0; i < w->n; i++) {
        w->same[i] = 0;
        while (operand[w->same[i]] != operand[i]) w->same[i]++;
        const int k = s->slot_of[operand[i]];
        if (k == NONE || s->slot_entry[k] == operand[i]) continue;
        s->slot_entry[k] = operand[i]; /* a leaf, read for the first time */
        for (int a = 0; a < s->now.n; a++)
            s->now.slot[(size_t)a * (size_t)s->n_slots + (size_t)k] = initial[operand[i]];
    }
    const int shape = shape_of(s, w), mine = s->slot_of[self];
    if (shape == NONE) return false;
    if (mine != NONE) s->slot_entry[mine] = self;
    s->then.n = 0;
    for (int a = 0; a < s->now.n; a++) {
        const int *slot = s->now.slot + (size_t)a * (size_t)s->n_slots;
        int set[SHEAF__MAX_OPERANDS];
        for (int i = 0; i < w->n; i++) set[i] = set_at(s, slot, initial, operand[i]);
        const struct known *k = options_of(s, w, shape, set);
        if (!k || !room(&s->then, s->then.n + k->n + 1, s->n_slots)) return false;
        for (int o = 0; o < k->n; o++) {
            const struct option *option = &k->option[o];
            struct way *way = &s->then.way[s->then.n];
            int *next = s->then.slot + (size_t)s->then.n * (size_t)s->n_slots;
            *way = s->now.way[a];
            way->option = option;
            way->collectives += option->collectives;
            pay(way, option->cost);
            memcpy(next, slot, (size_t)s->n_slots * sizeof *next);
            for (int i = 0; i < w->n; i++) {
                if (s->slot_of[operand[i]] != NONE) next[s->slot_of[operand[i]]] = option->set[i];
            }
            if (option->mirror && pay_mirror(s, way, next, initial, operand[0]) == NONE)
                return false;
            if (mine != NONE) next[mine] = EMPTY;
            if (w->rule->written && !forget_copies(s, next, of->entry[self].owner)) return false;
            if (mine != NONE) next[mine] = option->out;
            for (int e = s->dead[node]; e != NONE; e = s->next_dead[e]) {
                const bool read = of->entry[e].node >= 0 &&
                                  (of->entry[e].tensor->flags & SHEAF_TENSOR_FLAG_OUTPUT);
                const int last = e == self ? option->out : set_at(s, next, initial, e);
                if (read || (e == self && !w->rule->written)) pay_sum(s, way, e, last);
                if (s->slot_of[e] != NONE) next[s->slot_of[e]] = EMPTY;
            }
            join(s);
        }
    }
    for (int e = s->dead[node]; e != NONE; e = s->next_dead[e]) {
        if (s->slot_of[e] != NONE) s->slot_entry[s->slot_of[e]] = NONE;
    }
    return select_ways(s);
}

/* ---- the whole graph ---- */

/* When each tensor is read last, and a slot for each that is still to be read: results, and leaves
 * that are read more than once. A tensor is needed as long as views of it. */
static bool arrange(struct sheaf__search *s) {
    const struct sheaf__search_of *of = s->of;
    const int n_nodes = of->graph->n_nodes, n = of->n_entries;
    s->slot_of = malloc(((size_t)n + 1) * sizeof *s->slot_of);
    s->last_use = malloc(((size_t)n + 1) * sizeof *s->last_use);
    s->next_dead = malloc(((size_t)n + 1) * sizeof *s->next_dead);
    s->dead = malloc(((size_t)n_nodes + 1) * sizeof *s->dead);
    s->slot_entry = malloc(((size_t)n + 1) * sizeof *s->slot_entry);
    if (!s->slot_of || !s->last_use || !s->next_dead || !s->dead || !s->slot_entry) return false;
    for (int e = 0; e < n; e++) s->slot_of[e] = s->last_use[e] = NONE;
    for (int i = n_nodes - 1; i >= 0; i--) {
        const int *operand = of->operand + (size_t)i * SHEAF__MAX_OPERANDS;
        const struct sheaf_tensor *t = of->graph->nodes[i];
        s->dead[i] = NONE;
        if (s->last_use[of->self[i]] == NONE) s->last_use[of->self[i]] = i;
        for (int k = 0, m = sheaf__n_operands(t); k < m; k++) {
            const int until = is_view_form(sheaf__rule_of(t)) ? s->last_use[of->self[i]] : i;
            if (s->last_use[operand[k]] < until) s->last_use[operand[k]] = until;
        }
    }
    for (int e = n - 1; e >= 0; e--) {
        if (s->last_use[e] == NONE) continue;
        s->next_dead[e] = s->dead[s->last_use[e]];
        s->dead[s->last_use[e]] = e;
    }
    int *unused = s->slot_entry, n_unused = 0; /* a stack, until the pass begins */
    for (int i = 0; i < n_nodes; i++) {
        const int *operand = of->operand + (size_t)i * SHEAF__MAX_OPERANDS;
        const int m = sheaf__n_operands(of->graph->nodes[i]);
        for (int k = 0; k <= m; k++) {
            const int e = k < m ? operand[k] : of->self[i];
            if (s->slot_of[e] == NONE && s->last_use[e] > i)
                s->slot_of[e] = n_unused ? unused[--n_unused] : s->n_slots++;
        }
        for (int e = s->dead[i]; e != NONE; e = s->next_dead[e]) {
            if (s->slot_of[e] != NONE) unused[n_unused++] = s->slot_of[e];
        }
    }
    for (int k = 0; k < n; k++) s->slot_entry[k] = NONE;
    return true;
}

static bool search(struct sheaf__search *s) {
    const struct sheaf__search_of *of = s->of;
    const int n_nodes = of->graph->n_nodes;
    const struct set empty = {.n = 0};
    bool good = false;
    int *initial = malloc(((size_t)of->n_entries + 1) * sizeof *initial);
    struct work *work = malloc(sizeof *work);
    s->known = calloc(KNOWN_SLOTS, sizeof(struct known *));
    s->shape = calloc(KNOWN_SLOTS, sizeof(struct shape *));
    s->row = calloc((size_t)n_nodes + 1, sizeof(const struct sheaf__row *));
    if (!initial || !work || !s->known || !s->shape || !s->row || !arrange(s) ||
        intern(s, &empty) != EMPTY || !room(&s->now, 1, s->n_slots))
        goto out;
    for (int e = 0; e < of->n_entries; e++) {
        initial[e] = of->entry[e].node < 0 && of->entry[e].uses > 0
                         ? set_of_one(s, of->entry[e].st, true)
                         : EMPTY;
        if (initial[e] == NONE) goto out;
    }
    s->now.n = 1;
    s->now.way[0] = (struct way){.record = NONE};
    for (int k = 0; k < s->n_slots; k++) s->now.slot[k] = EMPTY;
    for (int i = 0; i < n_nodes; i++) {
        if (of->graph->nodes[i]->op == SHEAF_OP_NONE) continue;
        if (!pass(s, i, initial, work)) goto out;
    }
    int at = s->now.way[0].record;
    for (int i = n_nodes - 1; i >= 0; i--) {
        if (of->graph->nodes[i]->op == SHEAF_OP_NONE) continue;
        if (!s->record[at].option->none) s->row[i] = &s->record[at].option->row;
        at = s->record[at].before;
    }
    good = true;
out:
    free(initial);
    free(work);
    return good;
}

enum sheaf_status sheaf__search_new(const struct sheaf__search_of *of, struct sheaf__search **out) {
    *out = NULL;
    struct sheaf__search *s = calloc(1, sizeof *s);
    if (!s) return no_memory();
    s->of = of;
    s->n_members = of->pool->n_members;
    if (!search(s)) {
        sheaf__search_free(s);
        return no_memory();
    }
    *out = s;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__search_free(struct sheaf__search *s) {
    if (!s) return;
    for (int i = 0; i < KNOWN_SLOTS; i++) {
        for (struct known *k = s->known ? s->known[i] : NULL, *next; k; k = next) {
            next = k->next;
            free(k);
        }
        for (struct shape *x = s->shape ? s->shape[i] : NULL, *next; x; x = next) {
            next = x->next;
            free(x);
        }
    }
    free(s->known);
    free(s->shape);
    free(s->set);
    free(s->set_slot);
    free(s->slot_of);
    free(s->last_use);
    free(s->next_dead);
    free(s->dead);
    free(s->slot_entry);
    free(s->now.way);
    free(s->now.slot);
    free(s->then.way);
    free(s->then.slot);
    free(s->record);
    free(s->row);
    free(s);
}

const struct sheaf__row *sheaf__search_row(const struct sheaf__search *s, int node) {
    return s->row[node];
}
