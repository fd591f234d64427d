/* Text about one node: the rows that were considered for it. The cost of a row for the whole graph
 * is found by another search in which the node takes the row. */
#include <inttypes.h>
#include <string.h>

#include "split/explain.h"
#include "split/planner.h"
#include "split/search.h"
#include "tensor/graph.h"

struct totals {
    bool possible;
    int64_t cost;
    int collectives;
};

struct account {
    const struct sheaf_tensor *node;
    int n_members, taken;
    struct sheaf__watch watch;
    struct totals total[SHEAF__MAX_CONSIDERED];
};

/* ---- what a row says ---- */

static void put_short_state(struct sheaf__text *t, struct sheaf__st st) {
    if (st.kind == SHEAF__S)
        sheaf__put(t, "S%d", st.axis);
    else
        sheaf__put(t, st.kind == SHEAF__M ? "M" : st.mask ? "P masked" : "P");
}

static const char *row_name(const struct sheaf__considered *c) {
    if (c->none) return "write back";
    return *c->row.factor ? c->row.factor : c->row.name;
}

static void put_row(struct sheaf__text *t, const struct sheaf__considered *c) {
    char states[128];
    struct sheaf__text s = {states, sizeof states, 0};
    for (int i = 0; i < c->row.n_operands && !c->none; i++) {
        if (i) sheaf__put(&s, ", ");
        put_short_state(&s, c->row.need[i].st);
    }
    sheaf__put(&s, " -> ");
    put_short_state(&s, c->none ? sheaf__st_m() : c->row.out);
    sheaf__put(t, "%-10s %-26s", row_name(c), states);
}

/* The largest share of the node's work that a member has, in percent. */
static int64_t work(const struct sheaf__considered *c, int n_members) {
    int64_t least = 100;
    for (int i = 0; i <= c->row.n_operands && !c->none; i++) {
        const struct sheaf__st st = i < c->row.n_operands ? c->row.need[i].st : c->row.out;
        int64_t most = 0;
        if (st.kind != SHEAF__S || st.cut->extent == 0) continue;
        for (int j = 0; j < n_members; j++) {
            const int64_t count = sheaf__cut_count(st.cut, j);
            if (count > most) most = count;
        }
        most = (100 * most + st.cut->extent - 1) / st.cut->extent;
        if (most < least) least = most;
    }
    return least;
}

static void put_cost(struct sheaf__text *t, int64_t cost, int collectives, int n_members) {
    char text[64];
    struct sheaf__text s = {text, sizeof text, 0};
    sheaf__put_bytes(&s, cost / n_members);
    sheaf__put(&s, " in %d", collectives);
    sheaf__put(t, " %20s", text);
}

/* ---- why ---- */

static bool kept(const struct account *a, int i) {
    const struct sheaf__considered *c = &a->watch.row[i];
    return i != a->taken && a->total[i].possible && !c->left_out;
}

static void put_reason(struct sheaf__text *t, const struct account *a) {
    const struct totals *mine = &a->total[a->taken];
    int rivals = 0, as_cheap = 0, as_few = 0;
    bool gathers = false;
    for (int i = 0; i < a->watch.n; i++) {
        const enum sheaf__left_out left_out = a->watch.row[i].left_out;
        gathers = gathers || left_out == SHEAF__GATHERS || left_out == SHEAF__GATHERS_WEIGHT;
        if (!kept(a, i)) continue;
        rivals++;
        as_cheap += a->total[i].cost == mine->cost;
        as_few += a->total[i].cost == mine->cost && a->total[i].collectives == mine->collectives;
    }
    const char *why = "with it the whole graph moves the fewest bytes";
    if (!rivals)
        why = gathers ? "the others gather what it takes as it lies" : "no other row is possible";
    else if (as_few)
        why = "no row costs the whole graph less; of equals, the later sum and the first row win";
    else if (as_cheap)
        why = "of those with the fewest bytes it needs the fewest collectives";
    sheaf__put(t, "  taken: %s, because %s\n", row_name(&a->watch.row[a->taken]), why);
}

static const char *const reasons[] = {
    [SHEAF__GATHERS] = "gathers, and another row takes what is cut as it lies",
    [SHEAF__GATHERS_WEIGHT] = "gathers a weight, and another row gathers none",
    [SHEAF__DOMINATED] = "another row leaves the same behind and costs no more",
};

static void put_account(struct sheaf__text *t, const struct account *a) {
    sheaf__put(t, "  %-10s %-26s %20s %20s %6s\n", "row", "operands -> result", "here",
               "whole graph", "work");
    for (int i = 0; i < a->watch.n; i++) {
        const struct sheaf__considered *c = &a->watch.row[i];
        sheaf__put(t, "%s", i == a->taken ? "* " : "  ");
        put_row(t, c);
        put_cost(t, c->cost, c->collectives, a->n_members);
        if (a->total[i].possible)
            put_cost(t, a->total[i].cost, a->total[i].collectives, a->n_members);
        else
            sheaf__put(t, " %20s", "-");
        sheaf__put(t, " %4" PRId64 " %%", work(c, a->n_members));
        if (c->left_out) sheaf__put(t, "  left out: %s", reasons[c->left_out]);
        sheaf__put(t, "\n");
    }
}

/* ---- the searches ---- */

static enum sheaf_status search_again(struct planner *p, struct totals *total) {
    sheaf__search_free(p->search);
    p->search = NULL;
    const enum sheaf_status st = sheaf__search_new(&p->input, &p->search);
    if (!st) total->possible = sheaf__search_total(p->search, &total->cost, &total->collectives);
    return st;
}

static bool is_taken(const struct sheaf__considered *c, const struct sheaf__row *row) {
    return c->none == !row && (!row || sheaf__row_same(&c->row, row));
}

static enum sheaf_status find_totals(struct planner *p, struct account *a) {
    const struct sheaf__row *row = sheaf__search_row(p->search, a->watch.node);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    while (a->taken < a->watch.n && !is_taken(&a->watch.row[a->taken], row)) a->taken++;
    for (int i = 0; i < a->watch.n && !st; i++) {
        a->watch.only = i;
        st = search_again(p, &a->total[i]);
    }
    return st;
}

static void put_node(struct sheaf__text *t, const struct account *a) {
    const struct sheaf__rule *rule = sheaf__rule_of(a->node);
    struct sheaf__expr e;
    char expr[SHEAF__MAX_EXPR] = "";
    if (rule->form == SHEAF__FORM_EXPR) sheaf__expr_of(a->node, rule, &e, expr);
    sheaf__put(t, "node %d ", a->watch.node);
    sheaf__put_tensor(t, a->node);
    sheaf__put(t, "%s   ", sheaf_op_desc(a->node));
    sheaf__put_rule(t, rule, expr);
    sheaf__put(t, "\n");
    for (int i = 0; i < sheaf__n_operands(a->node); i++) {
        if (!a->node->src[i]) continue;
        sheaf__put(t, "  src%d ", i);
        sheaf__put_tensor(t, a->node->src[i]);
        for (int k = 0; k < a->watch.operand[i].n; k++) {
            sheaf__put(t, "%s", k ? " or " : "");
            sheaf__put_state(t, a->watch.operand[i].st[k], a->n_members);
        }
        sheaf__put(t, "\n");
    }
}

enum sheaf_status sheaf__split_considered(const struct sheaf_cgraph *graph, int n_members,
                                          sheaf__leaf_state_fn leaf_state, void *user,
                                          bool whole_sums, int node, char *buf, size_t n) {
    struct sheaf__pool pool;
    struct sheaf__text t = {buf, n, 0};
    struct account a = {
        .node = graph->nodes[node], .n_members = n_members, .watch = {.node = node, .only = -1}};
    if (n) *buf = 0;
    enum sheaf_status st = sheaf__pool_init(&pool, n_members);
    if (st) return st;
    struct planner p = {.graph = graph,
                        .n_members = n_members,
                        .leaf_state = leaf_state,
                        .user = user,
                        .whole_sums = whole_sums,
                        .pool = &pool,
                        .input = {.watch = &a.watch}};
    st = sheaf__plan_prepare(&p);
    if (!st) st = find_totals(&p, &a);
    if (!st) {
        put_node(&t, &a);
        sheaf__put(&t,
                   "  bytes that a member receives, and collectives, for this node alone and in "
                   "the whole graph; the largest share of the work\n");
        put_account(&t, &a);
        if (a.taken < a.watch.n) put_reason(&t, &a);
    }
    sheaf__plan_end(&p);
    sheaf__pool_free(&pool);
    return st;
}
