/* Generates the concrete rows of a node from its rule and from the cuts that its operands have. */
#include "split/match.h"

#include <string.h>

#include "split/view.h"

struct matcher {
    struct sheaf__pool *pool;
    const struct sheaf_tensor *node;
    const struct sheaf__rule *rule;
    const struct sheaf__have *have;
    int n; /* operands */
    sheaf__row_fn visit;
    void *user;
    struct sheaf__expr e;
};

int sheaf__n_operands(const struct sheaf_tensor *node) {
    int n = SHEAF__MAX_OPERANDS;
    while (n > 0 && !node->src[n - 1]) n--;
    return n;
}

/* Has the member all of the tensor? */
static bool has_all(struct sheaf__st st, int member) {
    return st.kind == SHEAF__M ||
           (st.kind == SHEAF__S && sheaf__cut_count(st.cut, member) == st.cut->extent);
}
/* A cut whose members all own everything is MIRRORED by another name. */
static bool is_everywhere(struct sheaf__st st) {
    return st.kind == SHEAF__M || (st.kind == SHEAF__S && st.cut->everywhere);
}

bool sheaf__need_met(const struct sheaf__need *need, struct sheaf__st st) {
    if (sheaf__st_equal(need->st, st)) return true;
    if (st.kind == SHEAF__P) return need->st.kind == SHEAF__P && !need->st.mask;
    if (is_everywhere(need->st)) return is_everywhere(st);
    if (!need->readers || need->st.kind != SHEAF__S) return false;
    if (st.kind == SHEAF__S && st.axis == need->st.axis &&
        sheaf__cut_serves(st.cut, need->st.cut, need->readers))
        return true;
    /* all or nothing, whatever the axis is that says so */
    for (int j = 0; j < need->readers->n_members; j++) {
        if (sheaf__cut_count(need->readers, j) && (!has_all(need->st, j) || !has_all(st, j)))
            return false;
    }
    return true;
}

bool sheaf__row_writes(const struct sheaf__row *row, int operand, struct sheaf__st native) {
    const struct sheaf__need out = {.st = row->out};
    return sheaf__need_met(&row->need[operand], native) && sheaf__need_met(&out, native);
}

bool sheaf__st_fits(struct sheaf__st st, enum sheaf_type type) {
    if (st.kind == SHEAF__P) return type == SHEAF_TYPE_F32;
    return st.kind != SHEAF__S || st.axis != 0 || sheaf__cut_aligned(st.cut, sheaf_blck_size(type));
}

bool sheaf__row_same(const struct sheaf__row *a, const struct sheaf__row *b) {
    bool same = !strcmp(a->name, b->name) && !strcmp(a->factor, b->factor) &&
                a->n_operands == b->n_operands && sheaf__st_equal(a->out, b->out);
    for (int i = 0; i < a->n_operands && same; i++)
        same = sheaf__st_equal(a->need[i].st, b->need[i].st);
    return same;
}

static struct sheaf__row row_of(const struct matcher *m, const char *name) {
    struct sheaf__row row = {.name = name, .n_operands = m->n};
    return row;
}

/* Every visited row fits the types: blocks whole, addends f32. */
static bool offer(const struct matcher *m, const struct sheaf__row *row) {
    if (!sheaf__st_fits(row->out, m->node->type)) return true;
    for (int i = 0; i < m->n; i++) {
        const struct sheaf_tensor *a = m->node->src[i];
        if (a && !sheaf__st_fits(row->need[i].st, a->type)) return true;
    }
    return m->visit(m->user, row);
}

/* ---- factor rows ---- */

/* Sizes of what lies left and right of factors [at, at + n) of a term. */
static void around(const struct sheaf__expr *e, const struct sheaf__term *t, int at, int n,
                   int64_t *left, int64_t *right) {
    *left = *right = 1;
    for (int k = 0; k < t->n; k++) {
        if (k < at) *left *= e->size[t->factor[k]];
        if (k >= at + n) *right *= e->size[t->factor[k]];
    }
}

/* Cut of a dimension when the factors with a cut (cuts[f] != NULL) are split. *split says whether
 * any is in it. NULL with *split: the dimension cannot be cut this way. */
static const struct sheaf__cut *dim_cut(const struct matcher *m, const struct sheaf__dim *d,
                                        const struct sheaf__cut *const cuts[], bool *split) {
    const struct sheaf__expr *e = &m->e;
    const struct sheaf__cut *all = NULL;
    int n_cut = 0;
    *split = false;
    for (int i = 0; i < d->n; i++) {
        const struct sheaf__term *t = &d->term[i];
        int at = -1, found = 0;
        for (int k = 0; k < t->n; k++) {
            if (cuts[t->factor[k]]) {
                at = k;
                found++;
            }
        }
        if (found == 0) continue;
        *split = true;
        if (found > 1 || n_cut != i) return NULL;
        int64_t left, right;
        around(e, t, at, 1, &left, &right);
        const struct sheaf__cut *c = sheaf__cut_embed(m->pool, cuts[t->factor[at]], left, right);
        if (c && all) c = sheaf__cut_concat(m->pool, all, c);
        if (!c) return NULL;
        all = c;
        n_cut++;
    }
    return n_cut == d->n ? all : NULL;
}

/* The inverse for the factors of `set`: false if the dimension's cut is not of that form. */
static bool factor_cuts(const struct matcher *m, const struct sheaf__dim *d,
                        const struct sheaf__cut *cut, uint32_t set,
                        const struct sheaf__cut *cuts[]) {
    const struct sheaf__expr *e = &m->e;
    int64_t base = 0;
    for (int i = 0; i < d->n; i++) {
        const struct sheaf__term *t = &d->term[i];
        const int64_t size = sheaf__expr_term_size(e, t);
        int at = -1;
        for (int k = 0; k < t->n; k++) {
            if (set >> t->factor[k] & 1) at = k;
        }
        if (at < 0) return false;
        const int f = t->factor[at];
        int64_t left, right;
        around(e, t, at, 1, &left, &right);
        const struct sheaf__cut *c = sheaf__cut_sub(m->pool, cut, base, size);
        if (c) c = sheaf__cut_extract(m->pool, c, left, e->size[f], right);
        if (!c || (cuts[f] && cuts[f] != c)) return false;
        cuts[f] = c;
        base += size;
    }
    return true;
}

/* May the factors of the set be split by these cuts? *kind: that of the last of them. */
static bool may_split(const struct sheaf__expr *e, const struct sheaf__cut *const cuts[],
                      uint32_t set, enum sheaf__factor_kind *kind) {
    *kind = SHEAF__FREE;
    for (int f = 0; f < e->n_factors; f++) {
        if (!(set >> f & 1)) continue;
        *kind = e->kind[f];
        if (!cuts[f] || *kind == SHEAF__WHOLE) return false;
        if ((*kind == SHEAF__SUM || *kind == SHEAF__INDEX) && !cuts[f]->partition) return false;
        if (*kind == SHEAF__INDEX && !cuts[f]->contiguous) return false;
    }
    return true;
}

/* What the state of operand i is then; of the result, if i is their number. False: it has none,
 * because two of its dimensions would be cut, or one in a way that is no cut. */
static bool split_state(const struct matcher *m, int i, const struct sheaf__cut *const cuts[],
                        struct sheaf__st *st) {
    *st = sheaf__st_m();
    for (int a = 0; a < SHEAF_MAX_DIMS; a++) {
        bool split = false;
        const struct sheaf__cut *c = dim_cut(m, &m->e.dim[i][a], cuts, &split);
        if (!split) continue;
        if (!c || st->kind == SHEAF__S) return false;
        *st = sheaf__st_s(a, c);
    }
    return true;
}

/* The result of a row that splits a SUM or INDEX factor, which the result does not have. */
static struct sheaf__st sum_state(const struct matcher *m, const struct sheaf__cut *const cuts[],
                                  uint32_t set, enum sheaf__factor_kind kind) {
    struct sheaf__st st = sheaf__st_p();
    for (int f = 0; f < m->e.n_factors && kind == SHEAF__INDEX && m->rule->mask; f++)
        if (set >> f & 1) st = sheaf__st_masked(cuts[f], m->node->src[m->rule->mask - 1]);
    return st;
}

/* The row that splits the factors with cuts, if it is one. */
static bool offer_factors(const struct matcher *m, const struct sheaf__cut *const cuts[],
                          uint32_t set) {
    const struct sheaf__expr *e = &m->e;
    struct sheaf__row row = row_of(m, "factor");
    enum sheaf__factor_kind kind;
    if (!may_split(e, cuts, set, &kind)) return true;
    for (int f = 0, n = 0; f < e->n_factors && n < (int)sizeof row.factor - 1; f++)
        if (set >> f & 1) row.factor[n++] = e->letter[f];
    for (int i = 0; i < m->n; i++)
        if (!split_state(m, i, cuts, &row.need[i].st)) return true;
    if (!split_state(m, m->n, cuts, &row.out)) return true;
    if (row.out.kind == SHEAF__S) {
        if (kind == SHEAF__SLOPE && !row.out.cut->contiguous) return true;
    } else if (kind == SHEAF__SUM || kind == SHEAF__INDEX) {
        row.out = sum_state(m, cuts, set, kind);
        row.adds = kind == SHEAF__SUM;
    } else {
        return true;
    }
    return offer(m, &row);
}

/* Cuts whose rows were offered, so that operands with the same cut give them once. */
struct offered {
    const struct sheaf__cut *cut[8];
    int n;
};

/* Is the cut a new one? It is noted. */
static bool is_new(struct offered *o, const struct sheaf__cut *cut) {
    for (int i = 0; i < o->n; i++)
        if (o->cut[i] == cut) return false;
    if (o->n < (int)(sizeof o->cut / sizeof *o->cut)) o->cut[o->n++] = cut;
    return true;
}

/* The cut of a factor that the operand with state st does not hold: that of another operand, or, for
 * an equal extent, the same. NULL: none. */
static const struct sheaf__cut *joint_cut(const struct matcher *m, int factor,
                                          struct sheaf__st st) {
    for (int o = 0; o < m->n; o++) {
        const int axis = sheaf__expr_axis(&m->e, o, factor);
        if (axis < 0) continue;
        for (int h = 0; h < m->have[o].n; h++) {
            const struct sheaf__st other = m->have[o].st[h];
            if (other.kind == SHEAF__S && other.axis == axis) return other.cut;
        }
        if (st.cut->extent == m->e.size[factor]) return st.cut;
    }
    return NULL;
}

/* Rows of one factor (or of factors that are split together), one for each cut that some operand
 * suggests. */
static bool visit_factors(const struct matcher *m, uint32_t set) {
    const struct sheaf__expr *e = &m->e;
    struct offered offered = {.n = 0};
    int first = 0;
    while (!(set >> first & 1)) first++;
    if (e->kind[first] == SHEAF__WHOLE) return true;
    for (int i = 0; i < m->n; i++) {
        for (int h = 0; h < m->have[i].n; h++) {
            const struct sheaf__st st = m->have[i].st[h];
            if (st.kind != SHEAF__S) continue;
            const struct sheaf__cut *cuts[SHEAF__MAX_FACTORS] = {NULL};
            if (!factor_cuts(m, &e->dim[i][st.axis], st.cut, set, cuts)) continue;
            for (int f = 0; f < e->n_factors; f++)
                if ((set >> f & 1) && !cuts[f]) cuts[f] = joint_cut(m, f, st);
            if (is_new(&offered, cuts[first]) && !offer_factors(m, cuts, set)) return false;
        }
    }
    return true;
}

/* A pair of factors whose product is cut: "gr", or "rg" of a minor group. */
struct pair {
    int first, second; /* the product, major to minor */
    int group;         /* that operands hold alone */
    bool is_minor;
};

/* Where the pair is in the term: factors [*at, *at + n), which are both or the group alone. Returns
 * n; 0: it is not there. */
static int find_pair(const struct sheaf__term *t, const struct pair *p, int *at) {
    for (*at = 0; *at < t->n; ++*at) {
        const bool product =
            *at + 1 < t->n && t->factor[*at] == p->first && t->factor[*at + 1] == p->second;
        if (product) return 2;
        if (t->factor[*at] == p->group) return 1;
    }
    return 0;
}

/* The cut of the product that a cut of the dimension means; NULL: none. */
static const struct sheaf__cut *pair_cut(const struct matcher *m, const struct sheaf__dim *d,
                                         const struct pair *p, const struct sheaf__cut *cut) {
    const struct sheaf__cut *all = NULL;
    int64_t base = 0;
    for (int i = 0; i < d->n; i++) {
        const struct sheaf__term *t = &d->term[i];
        const int64_t size = sheaf__expr_term_size(&m->e, t);
        const int64_t first = m->e.size[p->first], second = m->e.size[p->second];
        int at;
        int64_t left, right;
        const int n = find_pair(t, p, &at);
        if (!n) return NULL;
        around(&m->e, t, at, n, &left, &right);
        const struct sheaf__cut *c = sheaf__cut_sub(m->pool, cut, base, size);
        if (c)
            c = sheaf__cut_extract(m->pool, c, left, n == 2 ? first * second : m->e.size[p->group],
                                   right);
        if (c && n == 1)
            c = p->is_minor ? sheaf__cut_embed(m->pool, c, first, 1)
                            : sheaf__cut_embed(m->pool, c, 1, second);
        if (!c || (all && all != c)) return NULL;
        all = c;
        base += size;
    }
    return all;
}

/* What a row of the pair needs of a dimension: product is cut, the group alone follows. */
static bool pair_need(const struct matcher *m, const struct sheaf__dim *d, int axis,
                      const struct pair *p, const struct sheaf__cut *product,
                      const struct sheaf__cut *groups, struct sheaf__need *need) {
    const struct sheaf__cut *all = NULL;
    int n_cut = 0, at;
    for (int i = 0; i < d->n; i++) {
        int64_t left, right;
        const int n = find_pair(&d->term[i], p, &at);
        if (!n) continue;
        if (n_cut++ != i || need->st.kind == SHEAF__S) return false;
        around(&m->e, &d->term[i], at, n, &left, &right);
        const struct sheaf__cut *c =
            sheaf__cut_embed(m->pool, n == 2 ? product : groups, left, right);
        if (c && all) c = sheaf__cut_concat(m->pool, all, c);
        if (!c) return false;
        all = c;
        if (n == 1) need->readers = product;
    }
    if (n_cut != 0 && n_cut != d->n) return false;
    if (n_cut) need->st = sheaf__st_s(axis, all);
    return true;
}

static bool offer_pair(const struct matcher *m, const struct pair *p, const struct sheaf__cut *c) {
    const struct sheaf__expr *e = &m->e;
    const struct sheaf__cut *groups =
        p->is_minor ? sheaf__cut_residues(m->pool, c, e->size[p->group])
                    : sheaf__cut_groups(m->pool, c, e->size[p->second], m->rule->parts);
    if (!groups) return true;
    struct sheaf__row row = row_of(m, "group");
    row.factor[0] = e->letter[p->first];
    row.factor[1] = '.';
    row.factor[2] = e->letter[p->second];
    for (int o = 0; o <= m->n; o++) {
        struct sheaf__need need = {.st = sheaf__st_m()};
        for (int a = 0; a < SHEAF_MAX_DIMS; a++) {
            if (!pair_need(m, &e->dim[o][a], a, p, c, groups, &need)) return true;
        }
        if (o < m->n) {
            row.need[o] = need;
        } else {
            row.out = need.st;
        }
    }
    return offer(m, &row);
}

/* The rows of a pair: a cut of the product, as some operand suggests it; operands with the group
 * alone follow. */
static bool visit_pair(const struct matcher *m, const struct pair *p) {
    const bool sloped = m->e.kind[p->group] == SHEAF__SLOPE;
    struct offered offered = {.n = 0};
    for (int i = 0; i < m->n; i++) {
        for (int h = 0; h < m->have[i].n; h++) {
            const struct sheaf__st st = m->have[i].st[h];
            if (st.kind != SHEAF__S) continue;
            const struct sheaf__cut *c = pair_cut(m, &m->e.dim[i][st.axis], p, st.cut);
            if (!c || (sloped && !c->contiguous)) continue;
            if (is_new(&offered, c) && !offer_pair(m, p, c)) return false;
        }
    }
    return true;
}

static bool visit_expr(struct matcher *m) {
    const struct sheaf__expr *e = &m->e;
    uint32_t joint = 0;
    for (int f = 0; f < e->n_factors; f++) {
        if (sheaf__has_letter(m->rule->joint, e->letter[f])) joint |= 1u << f;
    }
    for (int f = 0; f < e->n_factors; f++) {
        const char *pairs =
            sheaf__has_letter(m->rule->minor, e->letter[f]) ? m->rule->minor : m->rule->group;
        const char *pair = pairs ? strchr(pairs, e->letter[f]) : NULL;
        if (pair) {
            if ((pair - pairs) % 2) continue; /* the row of the first covers it */
            const int second = sheaf__expr_factor(e, pair[1]);
            const bool is_minor = pairs == m->rule->minor;
            const struct pair p = {f, second, is_minor ? second : f, is_minor};
            if (!visit_pair(m, &p)) return false;
            continue;
        }
        if (joint >> f & 1) {
            if (joint & ((1u << f) - 1)) continue;
            if (!visit_factors(m, joint)) return false;
            continue;
        }
        if (!visit_factors(m, 1u << f)) return false;
    }
    return true;
}

/* ---- views and copies ---- */

static bool visit_view(const struct matcher *m) {
    const struct sheaf_tensor *t = m->node, *a = t->src[0];
    const struct sheaf__layout from = sheaf__layout_of(a), to = sheaf__layout_of(t);
    const int64_t offset = (int64_t)t->view_offs - (int64_t)a->view_offs;
    for (int h = 0; h < m->have[0].n; h++) {
        const struct sheaf__st st = m->have[0].st[h];
        if (st.kind != SHEAF__S) continue;
        struct sheaf__row row = row_of(m, "view");
        row.need[0].st = st;
        if (!sheaf__view_transfer(m->pool, &from, &to, offset, st.axis, st.cut, &row.out)) continue;
        if (!offer(m, &row)) return false;
    }
    return true;
}

static bool visit_permute(const struct matcher *m) {
    for (int h = 0; h < m->have[0].n; h++) {
        struct sheaf__st st = m->have[0].st[h];
        if (st.kind != SHEAF__S) continue;
        struct sheaf__row row = row_of(m, "permute");
        row.need[0].st = st;
        if (m->node->op == SHEAF_OP_PERMUTE) {
            st.axis = m->node->op_params[st.axis];
        } else if (st.axis < 2) {
            st.axis = 1 - st.axis;
        }
        row.out = st;
        if (!offer(m, &row)) return false;
    }
    return true;
}

static bool visit_copy(const struct matcher *m) {
    const struct sheaf_tensor *a = m->node->src[0], *b = m->node->src[1];
    const struct sheaf__layout la = sheaf__layout_dense(a), lb = sheaf__layout_dense(b);
    for (int h = 0; h < m->have[1].n; h++) { /* the target decides: it is written in its place */
        const struct sheaf__st st = m->have[1].st[h];
        if (st.kind != SHEAF__S) continue;
        struct sheaf__row row = row_of(m, "copy");
        row.need[1].st = row.out = st;
        if (sheaf__view_transfer(m->pool, &lb, &la, 0, st.axis, st.cut, &row.need[0].st)) {
            if (!offer(m, &row)) return false;
        }
        /* a cut can have two names where the other shape is all or nothing: try the source's */
        for (int k = 0; k < m->have[0].n; k++) {
            const struct sheaf__st from = m->have[0].st[k];
            struct sheaf__st arrives;
            if (from.kind != SHEAF__S || sheaf__st_equal(from, row.need[0].st) ||
                !sheaf__view_transfer(m->pool, &la, &lb, 0, from.axis, from.cut, &arrives) ||
                !sheaf__st_equal(arrives, st))
                continue;
            row.need[0].st = from;
            if (!offer(m, &row)) return false;
        }
    }
    return true;
}

/* ---- PARTIAL ---- */

static bool any_partial(const struct matcher *m) {
    for (int i = 0; i < m->n; i++) {
        for (int h = 0; h < m->have[i].n; h++) {
            if (m->have[i].st[h].kind == SHEAF__P) return true;
        }
    }
    return false;
}

static bool visit_partial(const struct matcher *m) {
    if (m->rule->add_once) {
        for (int once = 1; once >= 0; once--) {
            if (!(m->rule->add_once >> once & 1)) continue;
            struct sheaf__row row = row_of(m, "add once");
            row.need[1 - once].st = row.out = sheaf__st_p();
            row.adds = row.add_once = true;
            row.once = once;
            /* the other members' result is their addend as it lies: it must have the result's shape
             * (a broadcast one would have to be repeated) and be dense */
            const struct sheaf_tensor *addend = m->node->src[1 - once];
            if (!sheaf_are_same_shape(addend, m->node) || !sheaf_is_contiguous(addend)) continue;
            if (!offer(m, &row)) return false;
        }
    }
    for (int l = 0; l < SHEAF__MAX_LINEAR && m->rule->linear[l]; l++) {
        struct sheaf__row row = row_of(m, "linear");
        row.out = sheaf__st_p();
        row.adds = true;
        for (int i = 0; i < m->n; i++) {
            if (m->rule->linear[l] >> i & 1) row.need[i].st = sheaf__st_p();
        }
        if (!offer(m, &row)) return false;
    }
    return true;
}

/* ---- masked PARTIAL ---- */

/* Is column c of the operand the only one of it that column c of the result is made from? */
static bool same_columns(const struct matcher *m, int operand) {
    const struct sheaf_tensor *t = m->node, *a = t->src[operand];
    for (int d = 1; d < SHEAF_MAX_DIMS; d++) {
        if (!a || t->ne[d] != a->ne[d]) return false;
        if (m->rule->form == SHEAF__FORM_VIEW && t->nb[d] != a->nb[d]) return false;
    }
    if (m->rule->form != SHEAF__FORM_VIEW) return true;
    const size_t offset = t->view_offs - a->view_offs;
    return t->nb[0] == a->nb[0] && offset % t->nb[0] == 0 &&
           offset / t->nb[0] + (size_t)t->ne[0] <= (size_t)a->ne[0];
}

static bool has(const struct sheaf__have *have, struct sheaf__st st) {
    for (int h = 0; h < have->n; h++) {
        if (sheaf__st_equal(have->st[h], st)) return true;
    }
    return false;
}

/* Rows in which all operands of a set that keeps zeros are masked alike, offered from the first of
 * the set. */
static bool offer_masked_sets(const struct matcher *m, int operand, struct sheaf__st st) {
    for (int l = 0; l < SHEAF__MAX_LINEAR && m->rule->zero[l]; l++) {
        struct sheaf__row row = row_of(m, "mask");
        bool good = m->rule->zero[l] >> operand & 1;
        row.out = st;
        for (int o = 0; o < m->n; o++) {
            if (!(m->rule->zero[l] >> o & 1)) continue;
            good = good && o >= operand && same_columns(m, o) && has(&m->have[o], st);
            row.need[o].st = st;
        }
        if (good && !offer(m, &row)) return false;
    }
    return true;
}

/* Weights cut as the mask was, and chosen by the same ids: what a member lacks is 0. */
static bool offer_masked_weights(const struct matcher *m, int operand, struct sheaf__st st) {
    const int weights = m->rule->base_operand;
    if (!m->rule->mask || operand != 1 - weights || m->node->src[m->rule->mask - 1] != st.mask)
        return true;
    struct sheaf__row row = row_of(m, "mask");
    row.need[weights].st = sheaf__st_s(m->rule->base_axis, st.cut);
    row.need[operand].st = row.out = st;
    return offer(m, &row);
}

static bool visit_masked(const struct matcher *m) {
    for (int i = 0; i < m->n; i++) {
        for (int h = 0; h < m->have[i].n; h++) {
            const struct sheaf__st st = m->have[i].st[h];
            if (st.kind != SHEAF__P || !st.mask || !same_columns(m, i)) continue;
            if (!offer_masked_sets(m, i, st) || !offer_masked_weights(m, i, st)) return false;
        }
    }
    return true;
}

void sheaf__rows_visit(struct sheaf__pool *pool, const struct sheaf_tensor *node,
                       const struct sheaf__have have[SHEAF__MAX_OPERANDS], sheaf__row_fn visit,
                       void *user) {
    sheaf__rows_visit_by(pool, node, sheaf__rule_of(node), have, visit, user);
}

void sheaf__rows_visit_by(struct sheaf__pool *pool, const struct sheaf_tensor *node,
                          const struct sheaf__rule *rule,
                          const struct sheaf__have have[SHEAF__MAX_OPERANDS], sheaf__row_fn visit,
                          void *user) {
    struct matcher m = {.pool = pool,
                        .node = node,
                        .rule = rule,
                        .have = have,
                        .n = sheaf__n_operands(node),
                        .visit = visit,
                        .user = user};
    const struct sheaf__row all = row_of(&m, "all M");
    if (!visit(user, &all)) return;
    bool more = true;
    if (m.rule->form == SHEAF__FORM_VIEW) {
        more = visit_view(&m);
    } else if (m.rule->form == SHEAF__FORM_PERMUTE) {
        more = visit_permute(&m);
    } else if (m.rule->form == SHEAF__FORM_COPY) {
        more = visit_copy(&m);
    } else if (sheaf__expr_of(node, m.rule, &m.e, NULL) && m.e.n_operands == m.n) {
        more = visit_expr(&m);
    }
    if (more && any_partial(&m) && visit_masked(&m)) visit_partial(&m);
}
