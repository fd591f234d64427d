/* Views of cut tensors.
 *
 * The operand's dimensions, sorted by stride, are the digits of an address. Each dimension of the
 * view steps along one digit; if it runs over the digit's end and the next one follows without a
 * gap, the two digits become one. Then digits are independent, and only the one that holds the cut
 * needs thought: its positions, the view's walk over them, and the owner of each. */
#include "split/view.h"

#include <string.h>

struct walk {
    int dim;
    int64_t step, n; /* n > 1 */
};

struct digit {
    int n_src, src[SHEAF_MAX_DIMS]; /* dimensions of the operand, ascending */
    int64_t stride;                 /* bytes */
    int64_t extent, offset;
    int n;
    struct walk walk[SHEAF_MAX_DIMS]; /* ascending step */
};

struct map {
    int n;
    struct digit digit[SHEAF_MAX_DIMS];
};

struct sheaf__layout sheaf__layout_of(const struct sheaf_tensor *t) {
    struct sheaf__layout l = {.block = sheaf_blck_size(t->type)};
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        l.ne[i] = i ? t->ne[i] : t->ne[i] / l.block;
        l.nb[i] = (int64_t)t->nb[i];
    }
    return l;
}

struct sheaf__layout sheaf__layout_dense(const struct sheaf_tensor *t) {
    struct sheaf__layout l = {.block = 1};
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        l.ne[i] = t->ne[i];
        l.nb[i] = i ? l.nb[i - 1] * l.ne[i - 1] : 1;
    }
    return l;
}

/* Digit k takes in digit k + 1, which follows it without a gap. */
static bool merge(struct map *m, int k) {
    if (k + 1 >= m->n) return false;
    struct digit *a = &m->digit[k], *b = &m->digit[k + 1];
    if (b->stride != a->extent * a->stride) return false;
    for (int i = 0; i < b->n_src; i++) a->src[a->n_src++] = b->src[i];
    for (int i = 0; i < b->n; i++) {
        a->walk[a->n] = b->walk[i];
        a->walk[a->n++].step *= a->extent;
    }
    a->offset += b->offset * a->extent;
    a->extent *= b->extent;
    m->n--;
    memmove(b, b + 1, (size_t)(m->n - k - 1) * sizeof *b);
    return true;
}

static void sort_walks(struct digit *d) {
    for (int i = 1; i < d->n; i++) {
        for (int j = i; j > 0 && d->walk[j].step < d->walk[j - 1].step; j--) {
            const struct walk t = d->walk[j];
            d->walk[j] = d->walk[j - 1];
            d->walk[j - 1] = t;
        }
    }
}

static int64_t reach(const struct digit *d) {
    int64_t last = d->offset;
    for (int i = 0; i < d->n; i++) last += d->walk[i].step * (d->walk[i].n - 1);
    return last;
}

static bool build(struct map *m, const struct sheaf__layout *from, const struct sheaf__layout *to,
                  int64_t offset) {
    memset(m, 0, sizeof *m);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (from->ne[i] < 1 || to->ne[i] < 1) return false;
        if (from->ne[i] == 1) continue;
        int at = m->n++;
        for (; at > 0 && m->digit[at - 1].stride > from->nb[i]; at--)
            m->digit[at] = m->digit[at - 1];
        m->digit[at] =
            (struct digit){.n_src = 1, .src = {i}, .stride = from->nb[i], .extent = from->ne[i]};
    }
    if (m->n == 0) { /* one element */
        m->n = 1;
        m->digit[0] = (struct digit){.stride = from->nb[0], .extent = 1};
    }
    for (int k = 0; k < m->n; k++) {
        if (m->digit[k].stride < 1) return false;
        if (k && m->digit[k].stride < m->digit[k - 1].stride * m->digit[k - 1].extent) return false;
    }
    for (int k = m->n - 1; k >= 0; k--) {
        m->digit[k].offset = offset / m->digit[k].stride;
        offset %= m->digit[k].stride;
    }
    if (offset) return false;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (to->ne[i] == 1) continue;
        int k = m->n - 1;
        while (k >= 0 && (m->digit[k].stride > to->nb[i] || to->nb[i] % m->digit[k].stride)) k--;
        if (k < 0) return false;
        struct digit *d = &m->digit[k];
        d->walk[d->n++] = (struct walk){i, to->nb[i] / d->stride, to->ne[i]};
        if (d->walk[d->n - 1].step < 1) return false;
    }
    for (int k = 0; k < m->n;) {
        if (reach(&m->digit[k]) < m->digit[k].extent) {
            k++;
        } else if (!merge(m, k)) {
            return false;
        }
    }
    for (int k = 0; k < m->n; k++) sort_walks(&m->digit[k]);
    return true;
}

/* The owner of each position of a digit: the cut of one of its dimensions, times `right` faster
 * positions, repeated. */
struct owners {
    const struct sheaf__cut *cut;
    int64_t scale; /* indices of the cut in one position of its dimension: the block size */
    int64_t right, period, extent;
};

static struct owners owners_of(const struct digit *d, const struct sheaf__layout *from, int axis,
                               const struct sheaf__cut *cut) {
    struct owners o = {.cut = cut, .scale = axis == 0 ? from->block : 1, .right = 1};
    for (int i = 0; i < d->n_src && d->src[i] != axis; i++) o.right *= from->ne[d->src[i]];
    o.period = from->ne[axis] * o.right;
    o.extent = d->extent;
    return o;
}

/* How many positions below p the member owns. */
static int64_t rank(const struct owners *o, int member, int64_t p) {
    const int64_t lap = p / o->period, q = p % o->period, i = q / o->right, rest = q % o->right;
    const int64_t below = sheaf__cut_rank(o->cut, member, i * o->scale) / o->scale;
    int64_t r = lap * (sheaf__cut_count(o->cut, member) / o->scale) * o->right + below * o->right;
    if (rest && sheaf__cut_rank(o->cut, member, (i + 1) * o->scale) / o->scale > below) r += rest;
    return r;
}

enum share { NONE, ALL, SOME };
static enum share share(const struct owners *o, int member, int64_t lo, int64_t hi) {
    const int64_t n = rank(o, member, hi) - rank(o, member, lo);
    return n == 0 ? NONE : n == hi - lo ? ALL : SOME;
}

/* One candidate: walk b of the digit carries the cut; faster walks lie inside one step of it,
 * slower walks repeat it. */
struct candidate {
    const struct digit *d;
    int b;
    int64_t span; /* positions from the first to the last of the faster walks, + 1 */
    bool dense;   /* the faster walks fill a whole step of b */
    int64_t slow; /* combinations of the slower walks */
};

static struct candidate candidate_of(const struct digit *d, int b) {
    struct candidate c = {.d = d, .b = b, .span = 1, .slow = 1};
    int64_t filled = 1;
    bool tight = true;
    for (int i = 0; i < b; i++) {
        c.span += d->walk[i].step * (d->walk[i].n - 1);
        tight = tight && d->walk[i].step == filled;
        filled *= d->walk[i].n;
    }
    c.dense = tight && filled == d->walk[b].step;
    for (int i = b + 1; i < d->n; i++) c.slow *= d->walk[i].n;
    return c;
}

/* Position of the first element of slow combination s. */
static int64_t slow_base(const struct candidate *c, int64_t s) {
    int64_t p = c->d->offset;
    for (int i = c->b + 1; i < c->d->n; i++) {
        p += s % c->d->walk[i].n * c->d->walk[i].step;
        s /= c->d->walk[i].n;
    }
    return p;
}

/* Positions [lo, hi) in whole steps of walk w from `start`. */
static bool add_run(struct sheaf__pool *pool, const struct walk *w, int64_t start, int64_t lo,
                    int64_t hi, int64_t scale) {
    if (lo == hi) return true;
    if ((lo - start) % w->step || (hi - start) % w->step) return false;
    sheaf__cut_add(pool, (lo - start) / w->step * scale, (hi - start) / w->step * scale);
    return true;
}

/* Indices of walk b that the member owns, judged by the first slow combination. */
static bool add_owned(struct sheaf__pool *pool, const struct candidate *c, const struct owners *o,
                      int member, int64_t scale) {
    const struct walk *w = &c->d->walk[c->b];
    const int64_t start = c->d->offset;
    if (!c->dense) {
        for (int64_t i = 0; i < w->n; i++) {
            const int64_t p = start + i * w->step;
            const enum share s = share(o, member, p, p + c->span);
            if (s == SOME) return false;
            if (s == ALL) sheaf__cut_add(pool, i * scale, (i + 1) * scale);
        }
        return true;
    }
    const int64_t end = start + w->n * w->step;
    int64_t from = 0, upto = 0; /* open run; the end of one lap can join the start of the next */
    for (int64_t lap = start / o->period; lap * o->period < end; lap++) {
        for (int k = o->cut->begin[member]; k < o->cut->begin[member + 1]; k++) {
            const struct sheaf__interval *v = &o->cut->interval[k];
            int64_t lo = lap * o->period + v->lo / o->scale * o->right;
            int64_t hi = lap * o->period + v->hi / o->scale * o->right;
            if (lo < start) lo = start;
            if (hi > end) hi = end;
            if (lo >= hi) continue;
            if (lo != upto || from == upto) {
                if (!add_run(pool, w, start, from, upto, scale)) return false;
                from = lo;
            }
            upto = hi;
        }
        if (o->cut->begin[member] == o->cut->begin[member + 1]) break;
    }
    return add_run(pool, w, start, from, upto, scale);
}

/* Local steps of the digit's walks for a member. False if they are not uniform, or if some slow
 * combination does not own the same indices. C: the member's indices of walk b. */
static bool local_steps(const struct candidate *c, const struct owners *o, int member,
                        const struct sheaf__cut *cut, int64_t scale, int64_t step[SHEAF_MAX_DIMS],
                        int64_t *offset) {
    const struct digit *d = c->d;
    const struct walk *w = &d->walk[c->b];
    for (int i = 0; i < d->n; i++) step[i] = d->walk[i].step;
    *offset = 0;
    const int first = cut->begin[member], last = cut->begin[member + 1];
    if (first == last) {
        for (int64_t s = 0; s < c->slow; s++) {
            const int64_t p = slow_base(c, s);
            if (c->dense) {
                if (share(o, member, p, p + w->n * w->step) != NONE) return false;
            } else {
                for (int64_t i = 0; i < w->n; i++) {
                    if (share(o, member, p + i * w->step, p + i * w->step + c->span) != NONE)
                        return false;
                }
            }
        }
        return true;
    }
    const int64_t i0 = cut->interval[first].lo / scale;
    const int64_t mine = sheaf__cut_count(cut, member) / scale;
    const int64_t p0 = d->offset + i0 * w->step, r0 = rank(o, member, p0);
    *offset = r0;
    /* the step along b: between the first two that the member owns */
    if (mine > 1) {
        const bool joined = cut->interval[first].hi / scale > i0 + 1;
        const int64_t i1 = joined ? i0 + 1 : cut->interval[first + 1].lo / scale;
        step[c->b] = rank(o, member, d->offset + i1 * w->step) - r0;
    }
    for (int i = c->b + 1; i < d->n; i++) step[i] = rank(o, member, p0 + d->walk[i].step) - r0;
    for (int64_t s = 0; s < c->slow; s++) {
        int64_t rest = s, expect = r0;
        for (int i = c->b + 1; i < d->n; i++) {
            expect += rest % d->walk[i].n * step[i];
            rest /= d->walk[i].n;
        }
        const int64_t base = slow_base(c, s);
        int64_t owned = 0; /* positions inside b's steps */
        for (int k = first; k < last; k++) {
            const int64_t lo = cut->interval[k].lo / scale, hi = cut->interval[k].hi / scale;
            if (c->dense) {
                if (rank(o, member, base + lo * w->step) != expect ||
                    share(o, member, base + lo * w->step, base + hi * w->step) != ALL)
                    return false;
                expect += (hi - lo) * step[c->b];
                if (hi - lo > 1 && step[c->b] != w->step) return false;
                owned += (hi - lo) * w->step;
                continue;
            }
            for (int64_t i = lo; i < hi; i++, expect += step[c->b]) {
                const int64_t p = base + i * w->step;
                if (rank(o, member, p) != expect || share(o, member, p, p + c->span) != ALL)
                    return false;
                owned++;
            }
        }
        if (c->dense) {
            if (rank(o, member, base + w->n * w->step) - rank(o, member, base) != owned)
                return false;
            continue;
        }
        int64_t all = 0;
        for (int64_t i = 0; i < w->n; i++) {
            const int64_t p = base + i * w->step;
            if (share(o, member, p, p + c->span) != NONE) all++;
        }
        if (all != owned) return false;
    }
    return true;
}

/* The dimension that stands for "one member has all of it". */
static int slowest(const struct sheaf__layout *to) {
    int b = 0;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (to->ne[i] > 1) b = i;
    }
    return b;
}

static const struct digit *digit_of(const struct map *m, int axis) {
    for (int k = 0; k < m->n; k++) {
        for (int i = 0; i < m->digit[k].n_src; i++) {
            if (m->digit[k].src[i] == axis) return &m->digit[k];
        }
    }
    return NULL; /* a dimension of extent 1 */
}

bool sheaf__view_transfer(struct sheaf__pool *pool, const struct sheaf__layout *from,
                          const struct sheaf__layout *to, int64_t offset, int axis,
                          const struct sheaf__cut *cut, struct sheaf__st *out) {
    struct map m;
    if (!build(&m, from, to, offset)) return false;
    if (axis == 0 && !sheaf__cut_aligned(cut, from->block)) return false;
    const struct digit *d = digit_of(&m, axis);
    struct owners o = {0};
    if (d) o = owners_of(d, from, axis, cut);
    for (int b = d ? d->n - 1 : -1; b >= 0; b--) {
        const struct candidate c = candidate_of(d, b);
        const int64_t scale = d->walk[b].dim == 0 ? to->block : 1;
        bool fits = true;
        sheaf__cut_begin(pool);
        for (int j = 0; j < pool->n_members && fits; j++) {
            fits = add_owned(pool, &c, &o, j, scale);
            sheaf__cut_next_member(pool);
        }
        if (!fits) continue;
        const struct sheaf__cut *made = sheaf__cut_end(pool, d->walk[b].n * scale);
        if (!made) return false;
        int64_t step[SHEAF_MAX_DIMS], at = 0;
        for (int j = 0; j < pool->n_members && fits; j++)
            fits = local_steps(&c, &o, j, made, scale, step, &at);
        if (!fits) continue;
        *out = sheaf__st_s(d->walk[b].dim, made);
        return true;
    }
    /* all or nothing of the part that the view sees: then any dimension will do */
    const int b = slowest(to);
    const int64_t n = to->ne[b] * (b == 0 ? to->block : 1);
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        const enum share s =
            d ? share(&o, j, d->offset, reach(d) + 1) : (sheaf__cut_count(cut, j) ? ALL : NONE);
        if (s == SOME) return false;
        if (s == ALL) sheaf__cut_add(pool, 0, n);
        sheaf__cut_next_member(pool);
    }
    const struct sheaf__cut *made = sheaf__cut_end(pool, n);
    if (!made) return false;
    *out = sheaf__st_s(b, made);
    return true;
}

bool sheaf__view_local(const struct sheaf__layout *from, const struct sheaf__layout *to,
                       int64_t offset, struct sheaf__st from_st, struct sheaf__st to_st, int member,
                       const size_t from_local[SHEAF_MAX_DIMS],
                       const int64_t to_ne_local[SHEAF_MAX_DIMS], size_t to_local[SHEAF_MAX_DIMS],
                       int64_t *local_offset) {
    *local_offset = 0;
    bool same = from_st.kind != SHEAF__S, known[SHEAF_MAX_DIMS] = {false};
    for (int i = 0; i < SHEAF_MAX_DIMS; i++)
        same = same && (from->ne[i] == 1 || from->nb[i] == (int64_t)from_local[i]);
    if (same) { /* the whole, laid out as the whole: nothing to translate */
        for (int i = 0; i < SHEAF_MAX_DIMS; i++) to_local[i] = (size_t)to->nb[i];
        *local_offset = offset;
        return true;
    }
    struct map m;
    bool empty = false;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) empty = empty || to_ne_local[i] == 0;
    if (!empty) {
        if (!build(&m, from, to, offset)) return false;
        const struct digit *cut_digit =
            from_st.kind == SHEAF__S ? digit_of(&m, from_st.axis) : NULL;
        for (int k = 0; k < m.n; k++) {
            const struct digit *d = &m.digit[k];
            const int64_t unit = (int64_t)from_local[d->n_src ? d->src[0] : 0];
            int64_t step[SHEAF_MAX_DIMS], at = d->offset;
            for (int i = 0; i < d->n; i++) step[i] = d->walk[i].step;
            if (d == cut_digit) {
                const struct owners o = owners_of(d, from, from_st.axis, from_st.cut);
                int b = d->n - 1;
                while (b >= 0 && d->walk[b].dim != to_st.axis) b--;
                at = rank(&o, member, d->offset);
                if (b >= 0) {
                    const struct candidate c = candidate_of(d, b);
                    if (!local_steps(&c, &o, member, to_st.cut, to_st.axis == 0 ? to->block : 1,
                                     step, &at))
                        return false;
                }
            }
            *local_offset += at * unit;
            for (int i = 0; i < d->n; i++) {
                to_local[d->walk[i].dim] = (size_t)(step[i] * unit);
                known[d->walk[i].dim] = to_ne_local[d->walk[i].dim] > 1;
            }
        }
    }
    /* dimensions of extent 1, and everything in an empty slice, have no stride of their own */
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (i == 0) {
            if (!known[0]) to_local[0] = (size_t)to->nb[0];
            continue;
        }
        const int64_t below = i == 1 ? to_ne_local[0] / to->block : to_ne_local[i - 1];
        if (!known[i]) to_local[i] = to_local[i - 1] * (size_t)below;
    }
    return true;
}

/* ---- views that move ---- */

static bool is_dense(const struct sheaf__layout *l) {
    int64_t nb = l->nb[0];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (l->ne[i] != 1 && l->nb[i] != nb) return false;
        nb *= l->ne[i];
    }
    return true;
}

/* Do the views step along the same digits, whatever their offsets? */
static bool same_walks(const struct map *a, const struct map *b) {
    if (a->n != b->n) return false;
    for (int k = 0; k < a->n; k++) {
        const struct digit *x = &a->digit[k], *y = &b->digit[k];
        if (x->n_src != y->n_src || x->extent != y->extent || x->n != y->n) return false;
        for (int i = 0; i < x->n; i++)
            if (x->walk[i].dim != y->walk[i].dim || x->walk[i].step != y->walk[i].step)
                return false;
    }
    return true;
}

/* The view sees one position of the digit that holds the cut, and so all or nothing of it. */
static bool same_owners(const struct digit *d, const struct owners *o, const struct sheaf__cut *cut,
                        int n_members) {
    for (int j = 0; j < n_members; j++) {
        const int64_t n = sheaf__cut_count(cut, j);
        const enum share s = share(o, j, d->offset, reach(d) + 1);
        if (s != (n ? ALL : NONE) || (n && n != cut->extent)) return false;
    }
    return true;
}

static bool same_steps(const struct candidate *was, const struct candidate *now,
                       const struct owners *o, const struct sheaf__cut *cut, int64_t scale,
                       int n_members) {
    for (int j = 0; j < n_members; j++) {
        int64_t a[SHEAF_MAX_DIMS], b[SHEAF_MAX_DIMS], at;
        if (!local_steps(was, o, j, cut, scale, a, &at) ||
            !local_steps(now, o, j, cut, scale, b, &at) ||
            memcmp(a, b, (size_t)now->d->n * sizeof *a))
            return false;
    }
    return true;
}

bool sheaf__view_moves(const struct sheaf__layout *from, const struct sheaf__layout *to,
                       int64_t was, int64_t now, struct sheaf__st from_st, struct sheaf__st to_st,
                       int n_members) {
    struct map a, b;
    if (from_st.kind != SHEAF__S) {
        if (from_st.mask) return false;  /* which columns are 0 depends on the place */
        if (is_dense(from)) return true; /* every member's operand is laid out as the whole */
    }
    if (!build(&a, from, to, was) || !build(&b, from, to, now) || !same_walks(&a, &b)) return false;
    if (from_st.kind != SHEAF__S) return true;
    const struct digit *d = digit_of(&b, from_st.axis), *d_was = digit_of(&a, from_st.axis);
    if (!d) return true;
    const struct owners o = owners_of(d, from, from_st.axis, from_st.cut);
    if (d->n == 0) return same_owners(d, &o, to_st.cut, n_members);
    int w = d->n - 1;
    while (w >= 0 && d->walk[w].dim != to_st.axis) w--;
    if (w < 0) return false;
    const struct candidate c_was = candidate_of(d_was, w), c_now = candidate_of(d, w);
    return same_steps(&c_was, &c_now, &o, to_st.cut, to_st.axis == 0 ? to->block : 1, n_members);
}
