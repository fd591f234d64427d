/* Cuts in the public form: intervals from segments, and segments from intervals.
 *
 * A public state says a cut in segments, `outer x units x inner`, in which a member owns one run of
 * units. The segments that a caller wrote are kept for its cut, others are found: as few as there
 * are, those alike joined. */
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/sort.h"
#include "split/cut.h"

const struct sheaf__cut *sheaf__cut_from_state(struct sheaf__pool *pool,
                                               const struct sheaf_split_state *state) {
    int64_t extent = 0;
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        int64_t base = 0;
        for (int s = 0; s < state->n_segments; s++) {
            const struct sheaf_split_segment *seg = &state->segments[s];
            const int64_t run = seg->units * seg->inner;
            for (int64_t o = 0; o < seg->outer && seg->count[j] > 0 && !pool->build_refused; o++) {
                const int64_t lo = base + o * run + seg->first[j] * seg->inner;
                sheaf__cut_add(pool, lo, lo + seg->count[j] * seg->inner);
            }
            base += seg->outer * run;
        }
        extent = base;
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, extent);
}

/* Segments under construction: seg[s] = {outer, length}, and per segment and member {first, count}
 * in elements. */
struct segments {
    int n_members, n, cap;
    int64_t *outer, *length, *first, *count;
};

struct edges {     /* where intervals of a cut begin or end */
    int64_t *edge; /* [2 intervals + 2] */
    size_t n;
    int32_t *at; /* [n_members] the interval of the member that is not passed yet */
};

static bool grow(struct segments *g) {
    if (g->n < g->cap) return true;
    const size_t cap = g->cap ? 2 * (size_t)g->cap : 8, d = (size_t)g->n_members;
    int64_t *outer = realloc(g->outer, cap * sizeof *outer);
    if (outer) g->outer = outer;
    int64_t *length = realloc(g->length, cap * sizeof *length);
    if (length) g->length = length;
    int64_t *first = realloc(g->first, cap * d * sizeof *first);
    if (first) g->first = first;
    int64_t *count = realloc(g->count, cap * d * sizeof *count);
    if (count) g->count = count;
    if (!outer || !length || !first || !count) return false;
    g->cap = (int)cap;
    return true;
}

/* Ends the open segment g->n; joins it with the one before if it repeats it. */
static void close_segment(struct segments *g) {
    const size_t d = (size_t)g->n_members, s = (size_t)g->n;
    if (s > 0 && g->length[s] == g->length[s - 1] &&
        !memcmp(g->first + s * d, g->first + (s - 1) * d, d * sizeof(int64_t)) &&
        !memcmp(g->count + s * d, g->count + (s - 1) * d, d * sizeof(int64_t))) {
        g->outer[s - 1]++;
        return;
    }
    g->n++;
}

static bool open_segment(struct segments *g) {
    if (!grow(g)) return false;
    const size_t d = (size_t)g->n_members, s = (size_t)g->n;
    g->outer[s] = 1;
    g->length[s] = 0;
    memset(g->first + s * d, 0, d * sizeof(int64_t));
    memset(g->count + s * d, 0, d * sizeof(int64_t));
    return true;
}

/* All members own at most one interval: one segment holds them. */
static bool collect_contiguous(const struct sheaf__cut *cut, struct segments *g) {
    if (!open_segment(g)) return false;
    for (int j = 0; j < cut->n_members; j++) {
        if (cut->begin[j] == cut->begin[j + 1]) continue;
        const struct sheaf__interval *v = &cut->interval[cut->begin[j]];
        g->first[j] = v->lo;
        g->count[j] = v->hi - v->lo;
    }
    g->length[0] = cut->extent;
    close_segment(g);
    return true;
}

/* The boundaries of all intervals, ascending, some several times. */
static void find_edges(const struct sheaf__cut *cut, struct edges *e) {
    e->n = 0;
    e->edge[e->n++] = 0;
    e->edge[e->n++] = cut->extent;
    for (int i = 0; i < cut->begin[cut->n_members]; i++) {
        e->edge[e->n++] = cut->interval[i].lo;
        e->edge[e->n++] = cut->interval[i].hi;
    }
    qsort(e->edge, e->n, sizeof *e->edge, sheaf__by_i64);
    memcpy(e->at, cut->begin, (size_t)cut->n_members * sizeof *e->at);
}

/* Gives [lo, hi) to its owners in the open segment, which begins at `start`. False: a member would
 * own two separate pieces of the segment. */
static bool add_run(const struct sheaf__cut *cut, struct segments *g, int32_t *at, int64_t start,
                    int64_t lo, int64_t hi) {
    int64_t *first = g->first + (size_t)g->n * (size_t)g->n_members;
    int64_t *count = g->count + (size_t)g->n * (size_t)g->n_members;
    for (int j = 0; j < cut->n_members; j++) {
        while (at[j] < cut->begin[j + 1] && cut->interval[at[j]].hi <= lo) at[j]++;
        if (at[j] == cut->begin[j + 1] || cut->interval[at[j]].lo > lo) continue;
        if (count[j] == 0) {
            first[j] = lo - start;
        } else if (first[j] + count[j] != lo - start) {
            return false;
        }
        count[j] += hi - lo;
    }
    return true;
}

/* The open segment ends at `end`: takes back what was added behind it. */
static void take_back(struct segments *g, int64_t start, int64_t end) {
    int64_t *first = g->first + (size_t)g->n * (size_t)g->n_members;
    int64_t *count = g->count + (size_t)g->n * (size_t)g->n_members;
    for (int j = 0; j < g->n_members; j++) {
        if (count[j] && first[j] + count[j] > end - start) count[j] = end - start - first[j];
        if (!count[j]) first[j] = 0;
    }
}

/* Walks the runs between boundaries of intervals; a segment ends where a member would own two
 * separate pieces of it. */
static bool collect(const struct sheaf__cut *cut, struct segments *g, struct edges *e) {
    if (cut->contiguous) return collect_contiguous(cut, g);
    find_edges(cut, e);
    if (!open_segment(g)) return false;
    int64_t start = 0;
    for (size_t i = 0; i + 1 < e->n; i++) {
        const int64_t lo = e->edge[i], hi = e->edge[i + 1];
        if (lo == hi) continue;
        if (!add_run(cut, g, e->at, start, lo, hi)) {
            take_back(g, start, lo);
            close_segment(g);
            if (!open_segment(g)) return false;
            start = lo;
            add_run(cut, g, e->at, start, lo, hi); /* fits an empty segment */
        }
        g->length[g->n] = hi - start;
    }
    close_segment(g);
    return true;
}

static struct sheaf_split_state *to_state(const struct sheaf__cut *cut, int axis) {
    struct segments g = {.n_members = cut->n_members};
    struct sheaf_split_state *state = NULL;
    const size_t d = (size_t)cut->n_members, n = (size_t)cut->begin[d];
    struct edges e = {.edge = malloc((2 * n + 2) * sizeof *e.edge), .at = malloc(d * sizeof *e.at)};
    if (!e.edge || !e.at || !collect(cut, &g, &e)) goto out;
    state = sheaf_split_state_new((enum sheaf_split_axis)axis, cut->n_members, g.n);
    if (!state) goto out;
    for (size_t s = 0; s < (size_t)g.n; s++) {
        struct sheaf_split_segment *seg = &state->segments[s];
        int64_t inner = g.length[s];
        for (size_t j = 0; j < d; j++)
            inner = sheaf__gcd(sheaf__gcd(inner, g.first[s * d + j]), g.count[s * d + j]);
        if (inner == 0) inner = 1;
        seg->outer = g.outer[s];
        seg->inner = inner;
        seg->units = g.length[s] / inner;
        for (size_t j = 0; j < d; j++) {
            seg->first[j] = g.first[s * d + j] / inner;
            seg->count[j] = g.count[s * d + j] / inner;
        }
    }
out:
    free(e.edge);
    free(e.at);
    free(g.outer);
    free(g.length);
    free(g.first);
    free(g.count);
    return state;
}

/* The public states of a pool live in its chunks: one copy, no frees. */
static const struct sheaf_split_state *keep(struct sheaf__pool *pool,
                                            const struct sheaf_split_state *from, int axis) {
    const size_t d = (size_t)from->n_members, n = (size_t)from->n_segments;
    struct sheaf_split_state *to = sheaf__pool_alloc(pool, sizeof *to);
    struct sheaf_split_segment *seg = sheaf__pool_alloc(pool, n * sizeof *seg + 1);
    int64_t *nums = sheaf__pool_alloc(pool, 2 * n * d * sizeof *nums + 1);
    if (!to || !seg || !nums) return NULL;
    *to = *from;
    to->axis = (enum sheaf_split_axis)axis;
    to->segments = seg;
    for (size_t s = 0; s < n; s++) {
        seg[s] = from->segments[s];
        seg[s].first = nums + 2 * s * d;
        seg[s].count = seg[s].first + d;
        memcpy(seg[s].first, from->segments[s].first, d * sizeof *nums);
        memcpy(seg[s].count, from->segments[s].count, d * sizeof *nums);
    }
    return to;
}

void sheaf__cut_show_as(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                        const struct sheaf_split_state *state) {
    struct sheaf__cut *c = (struct sheaf__cut *)(uintptr_t)cut;
    const int axis = (int)state->axis;
    if (!c->shown[axis]) c->shown[axis] = keep(pool, state, axis);
}

const struct sheaf_split_state *sheaf__st_show(struct sheaf__pool *pool, struct sheaf__st st) {
    if (st.kind == SHEAF__M) return pool->mirrored;
    if (st.kind == SHEAF__P) return pool->partial;
    struct sheaf__cut *cut = (struct sheaf__cut *)(uintptr_t)st.cut;
    if (cut->shown[st.axis]) return cut->shown[st.axis];
    for (int a = 0; a < SHEAF_MAX_DIMS; a++) { /* the same cut of another axis: the same words */
        if (cut->shown[a]) return cut->shown[st.axis] = keep(pool, cut->shown[a], st.axis);
    }
    struct sheaf_split_state *made = to_state(cut, st.axis);
    if (!made) {
        pool->failed = true;
        return NULL;
    }
    cut->shown[st.axis] = keep(pool, made, st.axis);
    sheaf_split_state_free(made);
    return cut->shown[st.axis];
}
