/* See decide.h. */
#include "split/decide.h"

#include "split/convert.h"

int sheaf__cheapest_source(const struct sheaf__st *st, int n, const struct sheaf__need *need,
                           int64_t bytes, int members, int64_t *cost) {
    int best = 0;
    int64_t least = INT64_MAX;
    for (int i = 0; i < n; i++) {
        if (!sheaf__need_met(need, st[i])) continue;
        *cost = SHEAF__MET;
        return i;
    }
    for (int i = 0; i < n && least; i++) {
        const int64_t c = sheaf__convert_cost(st[i], need->st, bytes, members);
        if (c < least) best = i, least = c;
    }
    *cost = least;
    return best;
}

/* ---- one node alone ---- */

bool sheaf__row_cuts(const struct sheaf__row *row) {
    bool cut = row->out.kind != SHEAF__M;
    for (int i = 0; i < row->n_operands; i++) cut = cut || row->need[i].st.kind != SHEAF__M;
    return cut;
}

struct choice {
    const struct sheaf__asked *asked;
    int n_members;
    const struct sheaf__at_hand *operand;
    int64_t cost;
    bool found;
    struct sheaf__row *row;
};

static bool consider(void *user, const struct sheaf__row *row) {
    struct choice *c = user;
    int64_t cost = 0;
    if (c->asked->whole && sheaf__row_cuts(row)) return true;
    if (c->asked->whole_sums && row->adds) return true;
    for (int i = 0; i < row->n_operands; i++) {
        const struct sheaf__at_hand *o = &c->operand[i];
        if (i + 1 == c->asked->written) { /* written where it is, never converted */
            if (!o->native || !sheaf__row_writes(row, i, *o->native)) return true;
            continue;
        }
        int64_t one;
        sheaf__cheapest_source(o->st, o->n, &row->need[i], o->bytes, c->n_members, &one);
        cost += one > 0 ? one : 0;
    }
    if (!c->found || cost < c->cost) {
        c->found = true;
        c->cost = cost;
        *c->row = *row;
    }
    return c->cost != 0;
}

/* Can the operands be had as the row needs them, without a conversion where none is possible? */
static bool follows(const struct sheaf__at_hand *operand, const struct sheaf__asked *asked,
                    const struct sheaf__row *row) {
    for (int i = 0; i < row->n_operands; i++) {
        const struct sheaf__need *need = &row->need[i];
        const struct sheaf__at_hand *o = &operand[i];
        bool met = false;
        for (int k = 0; k < o->n; k++) met = met || sheaf__need_met(need, o->st[k]);
        if (i + 1 == asked->written) {
            if (!o->native || !sheaf__row_writes(row, i, *o->native)) return false;
        } else if ((need->st.mask ||
                    (sheaf__is_view_form(asked->rule) && need->st.kind == SHEAF__S)) &&
                   !met) {
            return false;
        }
    }
    return true;
}

bool sheaf__decide_row(struct sheaf__pool *pool, const struct sheaf__asked *asked,
                       const struct sheaf__row *of_search, const struct sheaf__at_hand *operand,
                       struct sheaf__row *out) {
    const struct sheaf_tensor *node = asked->node;
    if (of_search && follows(operand, asked, of_search)) {
        *out = *of_search;
        return true;
    }
    struct choice best = {
        .asked = asked, .n_members = pool->n_members, .operand = operand, .row = out};
    struct sheaf__have have[SHEAF__MAX_OPERANDS];
    for (int i = 0, n = sheaf__n_operands(node); i < n; i++)
        have[i] = (struct sheaf__have){operand[i].n, operand[i].st};
    sheaf__rows_visit(pool, node, have, consider, &best);
    return best.found && !pool->failed;
}
