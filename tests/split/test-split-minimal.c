/* How good is the planner's choice? On small random graphs every combination of rows is tried, and
 * the conversions of the cheapest are compared with those that the planner inserted: once with all
 * combinations, once with those that leave work cut where it fits as it lies. (Gathering a small
 * operand in order to mirror what follows can save bytes, and makes every member do all the work;
 * the planner does not do that.) Of the second the planner must find the best, except for what its
 * bounded search may drop; how far it misses the first is printed and bounded.
 * SHEAF_TEST_SPLIT_SEED=n shows one graph, SHEAF_TEST_SPLIT_GRAPHS=n tries that many. */
#include <criterion/criterion.h>

#include "split/convert.h"
#include "split/match.h"
#include "split_random.h"

enum { MAX_NODES = 6, MAX_TENSORS = 64, STATES = 8, ROWS = 64 };

struct known { /* a tensor and the states in which it is available at no cost */
    const T *tensor;
    int n;
    struct sheaf__st st[STATES];
};

struct search {
    struct sheaf__pool pool;
    const struct sheaf_cgraph *graph;
    int n_members, n_known;
    int64_t best;
    long visits;
    bool keep_cuts;
    struct known known[MAX_TENSORS];
};

static int find(const struct search *s, const T *t) {
    for (int i = 0; i < s->n_known; i++) {
        if (s->known[i].tensor == t) return i;
    }
    return -1;
}

static void learn(struct known *k, struct sheaf__st st) {
    for (int i = 0; i < k->n; i++) {
        if (sheaf__st_equal(k->st[i], st)) return;
    }
    if (k->n < STATES) k->st[k->n++] = st;
}

/* What it costs to have the tensor as needed; learns what the conversion makes on its way. */
static int64_t acquire(struct search *s, struct known *k, const struct sheaf__need *need) {
    int64_t least = INT64_MAX;
    int from = -1;
    for (int i = 0; i < k->n; i++) {
        if (sheaf__need_met(need, k->st[i])) return 0;
        const int64_t cost =
            sheaf__convert_cost(k->st[i], need->st, sheaf__dense_bytes(k->tensor), s->n_members);
        if (cost < least) {
            least = cost;
            from = i;
        }
    }
    for (struct sheaf__st at = k->st[from], next; !sheaf__st_equal(at, need->st); at = next) {
        sheaf__convert_step(at, need->st, &next);
        learn(k, next);
    }
    return least;
}

struct list {
    int n;
    struct sheaf__row row[ROWS];
};
static bool note_row(void *user, const struct sheaf__row *row) {
    struct list *l = user;
    if (l->n < ROWS) l->row[l->n++] = *row;
    return l->n < ROWS;
}

/* As sheaf__split_plan_new ends: a reader of a result must not find addends. */
static int64_t finish(struct search *s) {
    int64_t cost = 0;
    for (int i = 0; i < s->graph->n_nodes; i++) {
        const T *t = s->graph->nodes[i];
        bool used = false, whole = false;
        for (int k = 0; k < s->graph->n_nodes; k++) {
            for (int j = 0; j < SHEAF_MAX_SRC; j++) used = used || s->graph->nodes[k]->src[j] == t;
        }
        if (used && !(t->flags & SHEAF_TENSOR_FLAG_OUTPUT)) continue;
        const struct known *k = &s->known[find(s, t)];
        for (int j = 0; j < k->n; j++) whole = whole || k->st[j].kind != SHEAF__P;
        if (!whole)
            cost += sheaf__convert_cost(sheaf__st_p(), sheaf__st_m(), sheaf__dense_bytes(t),
                                        s->n_members);
    }
    return cost;
}

static bool is_free(const struct known *operand, const struct sheaf__row *row) {
    for (int i = 0; i < row->n_operands; i++) {
        bool met = false;
        for (int k = 0; k < operand[i].n; k++)
            met = met || sheaf__need_met(&row->need[i], operand[i].st[k]) ||
                  operand[i].st[k].kind == SHEAF__M;
        if (!met) return false;
    }
    return true;
}

static bool is_cut_row(const struct sheaf__row *row) {
    for (int i = 0; i < row->n_operands; i++) {
        if (row->need[i].st.kind == SHEAF__S) return true;
    }
    return false;
}

static void descend(struct search *s, int node, int64_t cost) {
    s->visits++;
    if (cost >= s->best) return;
    if (node == s->graph->n_nodes) {
        cost += finish(s);
        if (cost < s->best) s->best = cost;
        return;
    }
    const T *t = s->graph->nodes[node];
    const int n = sheaf__n_operands(t);
    struct sheaf__have have[SHEAF__MAX_OPERANDS];
    struct known kept[SHEAF__MAX_OPERANDS];
    int index[SHEAF__MAX_OPERANDS];
    for (int i = 0; i < n; i++) {
        index[i] = find(s, t->src[i]);
        kept[i] = s->known[index[i]];
        have[i] = (struct sheaf__have){kept[i].n, kept[i].st};
    }
    struct list *rows = malloc(sizeof *rows);
    rows->n = 0;
    sheaf__rows_visit(&s->pool, t, have, note_row, rows);
    bool fits = false; /* a row takes the operands as they are, and something of it is cut */
    for (int r = 0; r < rows->n && s->keep_cuts; r++)
        fits = fits || (is_free(kept, &rows->row[r]) && is_cut_row(&rows->row[r]));
    for (int r = 0; r < rows->n; r++) {
        int64_t more = 0;
        if (fits && !is_free(kept, &rows->row[r])) continue;
        for (int i = 0; i < n; i++) more += acquire(s, &s->known[index[i]], &rows->row[r].need[i]);
        const int self = s->n_known++;
        s->known[self] = (struct known){t, 1, {rows->row[r].out}};
        descend(s, node + 1, cost + more);
        s->n_known--;
        for (int i = 0; i < n; i++) s->known[index[i]] = kept[i];
    }
    free(rows);
}

static struct sheaf__st state_of_leaf(struct search *s, const struct sheaf_split_state *given) {
    if (given->axis == SHEAF_SPLIT_AXIS_PARTIAL) return sheaf__st_p();
    if (given->axis == SHEAF_SPLIT_AXIS_MIRRORED) return sheaf__st_m();
    const struct sheaf__cut *cut = sheaf__cut_from_state(&s->pool, given);
    if (!cut) abort();
    return cut->everywhere ? sheaf__st_m() : sheaf__st_s((int)given->axis, cut);
}

/* Conversions of the cheapest combination of rows, found among those cheaper than `bound`; `bound`
 * if there is none. */
static int64_t cheapest(struct split_model *m, int64_t bound, bool keep_cuts, long *visits) {
    static struct search s;
    memset(&s, 0, sizeof s);
    if (sheaf__pool_init(&s.pool, m->n_members)) abort();
    s.graph = m->graph;
    s.n_members = m->n_members;
    s.best = bound;
    s.keep_cuts = keep_cuts;
    for (int i = 0; i < m->graph->n_leafs; i++) {
        const T *t = m->graph->leafs[i];
        s.known[s.n_known++] = (struct known){t, 1, {state_of_leaf(&s, split_model_state(t, m))}};
    }
    descend(&s, 0, 0);
    *visits += s.visits;
    sheaf__pool_free(&s.pool);
    return s.best;
}

/* In the unit of sheaf__convert_cost. */
static int64_t cost_of(const struct sheaf__split_plan *plan) {
    static const int weight[SHEAF_COMM_KIND_COUNT] = {
        [SHEAF_COMM_ALL_REDUCE] = 2, [SHEAF_COMM_REDUCE_SCATTER] = 1, [SHEAF_COMM_ALL_GATHER] = 1};
    int64_t cost = 0;
    for (int s = 0; s < plan->n_steps; s++)
        if (plan->steps[s].kind == SHEAF_SPLIT_STEP_COLLECTIVE)
            cost +=
                weight[plan->steps[s].collective] * plan->steps[s].bytes * (plan->n_members - 1);
    return cost;
}

/* The search knows neither writes in place nor views of what is not dense. */
static bool searchable(const struct sheaf_cgraph *g) {
    if (g->n_nodes > MAX_NODES || g->n_leafs + g->n_nodes > MAX_TENSORS) return false;
    for (int i = 0; i < g->n_nodes; i++) {
        const T *t = g->nodes[i];
        if (sheaf__op_written(t)) return false;
        if (sheaf_op_is_view(t->op) && !sheaf_is_contiguous(t->src[0])) return false;
    }
    return true;
}

struct gap {
    long graphs, dearer, visits;
    int64_t planned, least;
    double worst;
    uint64_t worst_seed;
};

static void add(struct gap *gap, uint64_t seed, int64_t planned, int64_t least) {
    gap->graphs++;
    gap->planned += planned;
    gap->least += least;
    gap->dearer += least < planned;
    const double ratio = least ? (double)planned / (double)least : planned ? INFINITY : 1;
    if (ratio > gap->worst) {
        gap->worst = ratio;
        gap->worst_seed = seed;
    }
}

static void compare(uint64_t seed, struct gap gap[2]) {
    struct maker k;
    make_graph(&k, seed, 4);
    struct sheaf__split_plan *plan = NULL;
    if (!searchable(k.m.graph)) goto out;
    if (sheaf__split_plan_new(k.m.graph, k.m.n_members, split_model_state, &k.m, &plan)) {
        cr_expect(false, "seed %llu: %s", (unsigned long long)seed, sheaf_last_error());
        goto out;
    }
    const int64_t planned = cost_of(plan);
    /* one more than the planner's: the search must find that plan at least, or it is no bound */
    const int64_t least = cheapest(&k.m, planned + 1, false, &gap[0].visits);
    cr_expect(least <= planned, "seed %llu: the search does not find the plan of cost %lld",
              (unsigned long long)seed, (long long)planned);
    const int64_t keeping = cheapest(&k.m, planned + 1, true, &gap[1].visits);
    cr_expect(keeping <= planned, "seed %llu: the search that keeps cuts does not find the plan of cost %lld",
              (unsigned long long)seed, (long long)planned);
    add(&gap[0], seed, planned, least);
    add(&gap[1], seed, planned, keeping);
    if (keeping < planned && getenv("SHEAF_TEST_SPLIT_SEED")) {
        printf("planner %lld, least %lld, %lld with cuts kept\n", (long long)planned,
               (long long)least, (long long)keeping);
        split_print_plan(plan, k.m.graph);
    }
out:
    sheaf__split_plan_free(plan);
    split_model_free(&k.m);
    split_free_all();
}

Test(minimal, conversions_against_brute_force) {
    static const char *const what[] = {"all ways", "ways that keep what is cut"};
    const char *one = getenv("SHEAF_TEST_SPLIT_SEED"), *many = getenv("SHEAF_TEST_SPLIT_GRAPHS");
    const uint64_t first = one ? strtoull(one, NULL, 10) : 1;
    const uint64_t n = one ? 1 : many ? strtoull(many, NULL, 10) : 10000;
    struct gap gap[2] = {{0}, {0}};
    for (uint64_t s = first; s < first + n; s++) compare(s, gap);
    for (int i = 0; i < 2; i++) {
        const struct gap *g = &gap[i];
        printf("seeds %llu..%llu: %ld graphs of at most %d nodes against %s (%ld tried): dearer in "
               "%.2f %%, by %.2f %% of all bytes; worst x%.2f (seed %llu)\n",
               (unsigned long long)first, (unsigned long long)(first + n - 1), g->graphs, MAX_NODES,
               what[i], g->visits, 100.0 * (double)g->dearer / fmax(1, (double)g->graphs),
               100.0 * (double)(g->planned - g->least) / fmax(1, (double)g->least), g->worst,
               (unsigned long long)g->worst_seed);
    }
    if (one) return;
    cr_expect(gap[0].graphs * 4 > (long)n);
    /* measured 2026-11: 10.9 % and 6.1 %; none; a planner that gets worse fails */
    cr_expect(gap[0].dearer * 100 <= gap[0].graphs * 12);
    cr_expect((gap[0].planned - gap[0].least) * 100 <= gap[0].least * 7);
    cr_expect(gap[1].dearer * 1000 <= gap[1].graphs);
    cr_expect((gap[1].planned - gap[1].least) * 1000 <= gap[1].least);
}
