/* Views of cut tensors.
 *
 * The operand's dimensions, sorted by stride, are the digits of an address. Each dimension of the
 * view steps along one digit; if it runs over the digit's end and the next one follows without a
 * gap, the two digits become one. Then digits are independent, and only the one that holds the cut
 * needs thought: its positions, the view's walk over them, and the owner of each.
 *
 * An f32 operand [8 6] has two digits: 8 positions of 4 bytes, and 6 of 32. Its view [16 3] makes
 * 16 steps along the first, which are more than 8, so the two become one digit of 48 positions,
 * along which the view walks 16 times by 1 and 3 times by 16. A cut {2,4} of the 6 owns positions 0
 * to 15 and 16 to 47, which are whole steps of the slower walk: the view has the cut {1,2} of its
 * 3. */
#include "split/view.h"

#include <string.h>

struct walk { /* of a dimension of the view along a digit */
    int dim;
    int64_t step, n; /* n > 1 */
};

struct digit {                      /* positions, one stride apart */
    int n_src, src[SHEAF_MAX_DIMS]; /* dimensions of the operand, ascending */
    int64_t stride;                 /* bytes */
    int64_t extent, offset;         /* positions; the one where the view begins */
    int n;
    struct walk walk[SHEAF_MAX_DIMS]; /* ascending step */
};

struct map { /* of all dimensions of the view to digits of the operand */
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

/* A digit for each dimension of the operand, sorted by stride. False: they are none, because an
 * element can be reached in two ways. */
static bool sort_digits(struct map *m, const struct sheaf__layout *from) {
    memset(m, 0, sizeof *m);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
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
    return true;
}

/* False: the offset is inside an element. */
static bool place_offset(struct map *m, int64_t offset) {
    for (int k = m->n - 1; k >= 0; k--) {
        m->digit[k].offset = offset / m->digit[k].stride;
        offset %= m->digit[k].stride;
    }
    return offset == 0;
}

/* Each dimension of the view walks along the slowest digit that its stride is a multiple of. */
static bool place_walks(struct map *m, const struct sheaf__layout *to) {
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (to->ne[i] == 1) continue;
        int k = m->n - 1;
        while (k >= 0 && (m->digit[k].stride > to->nb[i] || to->nb[i] % m->digit[k].stride)) k--;
        if (k < 0) return false;
        struct digit *d = &m->digit[k];
        d->walk[d->n++] = (struct walk){i, to->nb[i] / d->stride, to->ne[i]};
        if (d->walk[d->n - 1].step < 1) return false;
    }
    return true;
}

/* Digits take in slower ones until each holds all of its walks. */
static bool merge_digits(struct map *m) {
    for (int k = 0; k < m->n;) {
        if (reach(&m->digit[k]) < m->digit[k].extent) {
            k++;
        } else if (!merge(m, k)) {
            return false;
        }
    }
    return true;
}

static bool build(struct map *m, const struct sheaf__layout *from, const struct sheaf__layout *to,
                  int64_t offset) {
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (from->ne[i] < 1 || to->ne[i] < 1) return false;
    }
    if (!sort_digits(m, from) || !place_offset(m, offset) || !place_walks(m, to) ||
        !merge_digits(m))
        return false;
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

/* ---- a member's part ---- */

/* What a member owns of a digit, if walk b carries the cut. */
struct part {
    const struct candidate *c;
    const struct owners *o;
    int member;
    const struct sheaf__cut *cut; /* the members' indices of walk b */
    int64_t scale;                /* indices of the cut in one step of walk b: the block size */
};

static int64_t rank_in(const struct part *p, int64_t position) {
    return rank(p->o, p->member, position);
}

/* Has the member nothing of what walk b sees from `base` on? */
static bool owns_nothing(const struct part *p, int64_t base) {
    const struct walk *w = &p->c->d->walk[p->c->b];
    if (p->c->dense) return share(p->o, p->member, base, base + w->n * w->step) == NONE;
    for (int64_t i = 0; i < w->n; i++) {
        const int64_t at = base + i * w->step;
        if (share(p->o, p->member, at, at + p->c->span) != NONE) return false;
    }
    return true;
}

/* Does the member own, of what walk b sees from `base` on, its indices of the cut and nothing else,
 * and does it have them `step` apart from local position `expect` on? Walk b with the faster ones
 * sees every position: whole intervals are compared. */
static bool is_even_dense(const struct part *p, int64_t base, int64_t step, int64_t expect) {
    const struct walk *w = &p->c->d->walk[p->c->b];
    int64_t owned = 0;
    for (int k = p->cut->begin[p->member]; k < p->cut->begin[p->member + 1]; k++) {
        const int64_t lo = p->cut->interval[k].lo / p->scale,
                      hi = p->cut->interval[k].hi / p->scale;
        if (rank_in(p, base + lo * w->step) != expect ||
            share(p->o, p->member, base + lo * w->step, base + hi * w->step) != ALL)
            return false;
        expect += (hi - lo) * step;
        if (hi - lo > 1 && step != w->step) return false;
        owned += (hi - lo) * w->step;
    }
    return rank_in(p, base + w->n * w->step) - rank_in(p, base) == owned;
}

/* The same where walk b leaves positions out: index by index. */
static bool is_even_sparse(const struct part *p, int64_t base, int64_t step, int64_t expect) {
    const struct walk *w = &p->c->d->walk[p->c->b];
    int64_t owned = 0, all = 0;
    for (int k = p->cut->begin[p->member]; k < p->cut->begin[p->member + 1]; k++) {
        const int64_t lo = p->cut->interval[k].lo / p->scale,
                      hi = p->cut->interval[k].hi / p->scale;
        for (int64_t i = lo; i < hi; i++, expect += step) {
            const int64_t at = base + i * w->step;
            if (rank_in(p, at) != expect || share(p->o, p->member, at, at + p->c->span) != ALL)
                return false;
            owned++;
        }
    }
    for (int64_t i = 0; i < w->n; i++) {
        const int64_t at = base + i * w->step;
        if (share(p->o, p->member, at, at + p->c->span) != NONE) all++;
    }
    return all == owned;
}

/* The local step of walk b, between the first two indices that the member owns, and of the slower
 * walks, between their first two positions. Faster walks keep theirs. Returns the local position of
 * the first index. */
static int64_t measure_steps(const struct part *p, int64_t step[SHEAF_MAX_DIMS]) {
    const struct digit *d = p->c->d;
    const struct walk *w = &d->walk[p->c->b];
    const struct sheaf__interval *v = &p->cut->interval[p->cut->begin[p->member]];
    const int64_t i0 = v->lo / p->scale;
    const int64_t p0 = d->offset + i0 * w->step, r0 = rank_in(p, p0);
    if (sheaf__cut_count(p->cut, p->member) / p->scale > 1) {
        const bool joined = v->hi / p->scale > i0 + 1;
        const int64_t i1 = joined ? i0 + 1 : v[1].lo / p->scale;
        step[p->c->b] = rank_in(p, d->offset + i1 * w->step) - r0;
    }
    for (int i = p->c->b + 1; i < d->n; i++) step[i] = rank_in(p, p0 + d->walk[i].step) - r0;
    return r0;
}

/* Local steps of the digit's walks, and the local position of the first element. False if they are
 * not uniform, or if some slow combination does not own the same indices. */
static bool local_steps(const struct part *p, int64_t step[SHEAF_MAX_DIMS], int64_t *offset) {
    const struct candidate *c = p->c;
    const struct digit *d = c->d;
    for (int i = 0; i < d->n; i++) step[i] = d->walk[i].step;
    *offset = 0;
    if (sheaf__cut_count(p->cut, p->member) == 0) {
        for (int64_t s = 0; s < c->slow; s++) {
            if (!owns_nothing(p, slow_base(c, s))) return false;
        }
        return true;
    }
    *offset = measure_steps(p, step);
    for (int64_t s = 0; s < c->slow; s++) {
        int64_t rest = s, expect = *offset;
        for (int i = c->b + 1; i < d->n; i++) {
            expect += rest % d->walk[i].n * step[i];
            rest /= d->walk[i].n;
        }
        const int64_t base = slow_base(c, s);
        if (!(c->dense ? is_even_dense(p, base, step[c->b], expect)
                       : is_even_sparse(p, base, step[c->b], expect)))
            return false;
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

/* Does walk b carry the cut? *out: the view's state if it does. REFUSED: its cut has too many
 * intervals, or memory is out. */
enum fit { MISFIT, FIT, REFUSED };
static enum fit carry_along(struct sheaf__pool *pool, const struct sheaf__layout *to,
                            const struct digit *d, const struct owners *o, int b,
                            struct sheaf__st *out) {
    const struct candidate c = candidate_of(d, b);
    const int64_t scale = d->walk[b].dim == 0 ? to->block : 1;
    bool fits = true;
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members && fits; j++) {
        fits = add_owned(pool, &c, o, j, scale);
        sheaf__cut_next_member(pool);
    }
    if (!fits) return MISFIT;
    const struct sheaf__cut *made = sheaf__cut_end(pool, d->walk[b].n * scale);
    if (!made) return REFUSED;
    for (int j = 0; j < pool->n_members; j++) {
        const struct part p = {&c, o, j, made, scale};
        int64_t step[SHEAF_MAX_DIMS], at;
        if (!local_steps(&p, step, &at)) return MISFIT;
    }
    *out = sheaf__st_s(d->walk[b].dim, made);
    return FIT;
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
        const enum fit fit = carry_along(pool, to, d, &o, b, out);
        if (fit != MISFIT) return fit == FIT;
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

static int walk_of(const struct digit *d, int dim) {
    int b = d->n - 1;
    while (b >= 0 && d->walk[b].dim != dim) b--;
    return b;
}

/* Is the member's operand the whole, laid out as the whole? */
static bool is_whole(const struct sheaf__layout *from, struct sheaf__st st,
                     const size_t from_local[SHEAF_MAX_DIMS]) {
    bool same = st.kind != SHEAF__S;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++)
        same = same && (from->ne[i] == 1 || from->nb[i] == (int64_t)from_local[i]);
    return same;
}

/* Local steps of a digit's walks and its local offset, where the digit holds the cut. */
static bool cut_steps(const struct digit *d, const struct sheaf__layout *from,
                      const struct sheaf__layout *to, struct sheaf__st from_st,
                      struct sheaf__st to_st, int member, int64_t step[SHEAF_MAX_DIMS],
                      int64_t *offset) {
    const struct owners o = owners_of(d, from, from_st.axis, from_st.cut);
    *offset = rank(&o, member, d->offset);
    /* a cut that is everywhere meets rules for whole operands (match.c), whose views are whole */
    if (to_st.kind != SHEAF__S) return from_st.cut->everywhere;
    const int b = walk_of(d, to_st.axis);
    if (b < 0) return true;
    const struct candidate c = candidate_of(d, b);
    const struct part p = {&c, &o, member, to_st.cut, to_st.axis == 0 ? to->block : 1};
    return local_steps(&p, step, offset);
}

/* Dimensions of extent 1, and everything in an empty slice, have no stride of their own. */
static void fill_strides(const struct sheaf__layout *to, const int64_t to_ne_local[SHEAF_MAX_DIMS],
                         const bool known[SHEAF_MAX_DIMS], size_t to_local[SHEAF_MAX_DIMS]) {
    if (!known[0]) to_local[0] = (size_t)to->nb[0];
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) {
        const int64_t below = i == 1 ? to_ne_local[0] / to->block : to_ne_local[i - 1];
        if (!known[i]) to_local[i] = to_local[i - 1] * (size_t)below;
    }
}

bool sheaf__view_local(const struct sheaf__layout *from, const struct sheaf__layout *to,
                       int64_t offset, struct sheaf__st from_st, struct sheaf__st to_st, int member,
                       const size_t from_local[SHEAF_MAX_DIMS],
                       const int64_t to_ne_local[SHEAF_MAX_DIMS], size_t to_local[SHEAF_MAX_DIMS],
                       int64_t *local_offset) {
    if (is_whole(from, from_st, from_local)) { /* nothing to translate */
        for (int i = 0; i < SHEAF_MAX_DIMS; i++) to_local[i] = (size_t)to->nb[i];
        *local_offset = offset;
        return true;
    }
    *local_offset = 0;
    bool known[SHEAF_MAX_DIMS] = {false}, empty = false;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) empty = empty || to_ne_local[i] == 0;
    struct map m = {.n = 0};
    if (!empty && !build(&m, from, to, offset)) return false;
    const struct digit *holds_cut = from_st.kind == SHEAF__S ? digit_of(&m, from_st.axis) : NULL;
    for (int k = 0; k < m.n; k++) {
        const struct digit *d = &m.digit[k];
        const int64_t unit = (int64_t)from_local[d->n_src ? d->src[0] : 0];
        int64_t step[SHEAF_MAX_DIMS], at = d->offset;
        for (int i = 0; i < d->n; i++) step[i] = d->walk[i].step;
        if (d == holds_cut && !cut_steps(d, from, to, from_st, to_st, member, step, &at))
            return false;
        *local_offset += at * unit;
        for (int i = 0; i < d->n; i++) {
            to_local[d->walk[i].dim] = (size_t)(step[i] * unit);
            known[d->walk[i].dim] = to_ne_local[d->walk[i].dim] > 1;
        }
    }
    fill_strides(to, to_ne_local, known, to_local);
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
        const struct part p_was = {was, o, j, cut, scale}, p_now = {now, o, j, cut, scale};
        int64_t a[SHEAF_MAX_DIMS], b[SHEAF_MAX_DIMS], at;
        if (!local_steps(&p_was, a, &at) || !local_steps(&p_now, b, &at) ||
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
    const int w = walk_of(d, to_st.axis);
    if (w < 0) return false;
    const struct candidate c_was = candidate_of(d_was, w), c_now = candidate_of(d, w);
    return same_steps(&c_was, &c_now, &o, to_st.cut, to_st.axis == 0 ? to->block : 1, n_members);
}
