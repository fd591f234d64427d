/* Public split states: making, checking, measuring and printing them. A state is plain data in one
 * allocation; nothing here knows about graphs. */
#include "sheaf/split.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/text.h"

const char *sheaf_split_axis_name(enum sheaf_split_axis axis) {
    static const char *const names[] = {
        [SHEAF_SPLIT_AXIS_0] = "0",
        [SHEAF_SPLIT_AXIS_1] = "1",
        [SHEAF_SPLIT_AXIS_2] = "2",
        [SHEAF_SPLIT_AXIS_3] = "3",
        [SHEAF_SPLIT_AXIS_MIRRORED] = "MIRRORED",
        [SHEAF_SPLIT_AXIS_PARTIAL] = "PARTIAL",
    };
    const size_t i = (size_t)axis;
    return i < sizeof names / sizeof *names && names[i] ? names[i] : "UNKNOWN";
}

static bool is_cut(const struct sheaf_split_state *s) { return (unsigned)s->axis < SHEAF_MAX_DIMS; }

/* Elements of one repeat and of all. False: the segment's numbers are wrong or too large. */
static bool measure(const struct sheaf_split_segment *g, int64_t *run, int64_t *all) {
    return g->outer >= 1 && g->inner >= 1 && g->units >= 0 &&
           !__builtin_mul_overflow(g->units, g->inner, run) &&
           !__builtin_mul_overflow(*run, g->outer, all);
}

/* Do the member's units lie in the segment? */
static bool is_inside(const struct sheaf_split_segment *g, int member) {
    const int64_t first = g->first[member], count = g->count[member];
    return count >= 0 && first >= 0 && count <= g->units && first <= g->units - count;
}

/* The elements of all segments; -1: the cut is none. */
static int64_t total(const struct sheaf_split_state *s) {
    int64_t n = 0, run, all;
    for (int i = 0; i < s->n_segments; i++) {
        const struct sheaf_split_segment *g = &s->segments[i];
        if (!measure(g, &run, &all) || __builtin_add_overflow(n, all, &n)) return -1;
        for (int j = 0; j < s->n_members; j++)
            if (!is_inside(g, j)) return -1;
    }
    return n;
}

static enum sheaf_status make_state(enum sheaf_split_axis axis, int n_members, int n_segments,
                                    struct sheaf_split_state **out) {
    *out = NULL;
    if (n_members < 1 || n_segments < 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "split state: %d members and %d segments",
                               n_members, n_segments);
    const size_t d = (size_t)n_members, n = (size_t)n_segments;
    size_t numbers = 0, bytes = 0;
    if (__builtin_mul_overflow(2 * n, d, &numbers) ||
        __builtin_mul_overflow(numbers, sizeof(int64_t), &bytes) || bytes > SIZE_MAX / 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "split state: %d members times %d segments overflow", n_members,
                               n_segments);
    struct sheaf_split_state *s =
        calloc(1, sizeof *s + n * sizeof(struct sheaf_split_segment) + bytes);
    if (!s) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split state: out of memory");
    s->axis = axis;
    s->n_members = n_members;
    s->n_segments = n_segments;
    s->segments = (struct sheaf_split_segment *)(s + 1);
    int64_t *p = (int64_t *)(s->segments + n);
    for (size_t i = 0; i < n; i++) {
        s->segments[i].outer = s->segments[i].inner = 1;
        s->segments[i].first = p + 2 * i * d;
        s->segments[i].count = p + (2 * i + 1) * d;
    }
    *out = s;
    return SHEAF_STATUS_SUCCESS;
}

struct sheaf_split_state *sheaf_split_state_new(enum sheaf_split_axis axis, int n_members,
                                                int n_segments) {
    struct sheaf_split_state *s;
    make_state(axis, n_members, n_segments, &s);
    return s;
}

struct sheaf_split_state *sheaf_split_state_mirrored(int n_members) {
    return sheaf_split_state_new(SHEAF_SPLIT_AXIS_MIRRORED, n_members, 0);
}

struct sheaf_split_state *sheaf_split_state_partial(int n_members) {
    return sheaf_split_state_new(SHEAF_SPLIT_AXIS_PARTIAL, n_members, 0);
}

struct sheaf_split_state *sheaf_split_state_cut(enum sheaf_split_axis axis, int n_members,
                                                const int64_t *counts, int64_t inner) {
    struct sheaf_split_state *s = sheaf_split_state_new(axis, n_members, 1);
    if (!s) return NULL;
    struct sheaf_split_segment *seg = s->segments;
    seg->inner = inner;
    for (int j = 0; j < n_members; j++) {
        seg->first[j] = seg->units;
        seg->count[j] = counts[j];
        if (!__builtin_add_overflow(seg->units, counts[j], &seg->units)) continue;
        sheaf_split_state_free(s);
        sheaf_set_error(SHEAF_STATUS_INVALID, "split state: the counts overflow");
        return NULL;
    }
    return s;
}

struct sheaf_split_state *sheaf_split_state_copy(const struct sheaf_split_state *state) {
    struct sheaf_split_state *s =
        sheaf_split_state_new(state->axis, state->n_members, state->n_segments);
    if (!s) return NULL;
    const size_t bytes = (size_t)s->n_members * sizeof(int64_t);
    for (int i = 0; i < s->n_segments; i++) {
        const struct sheaf_split_segment *from = &state->segments[i];
        struct sheaf_split_segment *to = &s->segments[i];
        to->outer = from->outer;
        to->inner = from->inner;
        to->units = from->units;
        memcpy(to->first, from->first, bytes);
        memcpy(to->count, from->count, bytes);
    }
    return s;
}

void sheaf_split_state_free(struct sheaf_split_state *state) { free(state); }

enum sheaf_status sheaf_split_state_from_ne(enum sheaf_split_axis axis, int n_members,
                                            int n_segments, const int64_t *ne, const uint32_t *nr,
                                            struct sheaf_split_state **out) {
    *out = NULL;
    const bool cut = (unsigned)axis < SHEAF_MAX_DIMS;
    if (!cut && axis != SHEAF_SPLIT_AXIS_MIRRORED && axis != SHEAF_SPLIT_AXIS_PARTIAL)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "split state: axis %d is unknown", (int)axis);
    if (cut && n_segments < 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "split state: a cut needs a segment");
    struct sheaf_split_state *s;
    int64_t extent = 0;
    bool fits = true;
    const enum sheaf_status st = make_state(axis, n_members, cut ? n_segments : 0, &s);
    if (st) return st;
    for (int i = 0; i < s->n_segments; i++) {
        struct sheaf_split_segment *seg = &s->segments[i];
        const int64_t *row = ne + (size_t)i * (size_t)n_members;
        int64_t inner = 0;
        for (int j = 0; j < n_members; j++) {
            if (row[j] < 0 || !nr[i]) {
                sheaf_split_state_free(s);
                return sheaf_set_error(SHEAF_STATUS_INVALID,
                                       "split state: segment %d of member %d has %" PRId64
                                       " elements, %" PRIu32 " times",
                                       i, j, row[j], nr[i]);
            }
            inner = sheaf__gcd(inner, row[j]);
        }
        seg->outer = (int64_t)nr[i];
        seg->inner = inner ? inner : 1;
        for (int j = 0; j < n_members; j++) {
            seg->first[j] = seg->units;
            seg->count[j] = row[j] / seg->inner;
            fits = fits && !__builtin_add_overflow(seg->units, seg->count[j], &seg->units);
        }
        int64_t run, all;
        if (fits && measure(seg, &run, &all) && !__builtin_add_overflow(extent, all, &extent))
            continue;
        sheaf_split_state_free(s);
        return sheaf_set_error(SHEAF_STATUS_INVALID, "split state: segment %d overflows", i);
    }
    *out = s;
    return SHEAF_STATUS_SUCCESS;
}

/* ggml's form has no place for overlaps or for an order of members other than ascending. States
 * that were refused are printed, too, so a count may be any number. */
static bool is_ascending(const struct sheaf_split_segment *seg, int n_members) {
    int64_t at = 0;
    for (int j = 0; j < n_members; j++) {
        const int64_t n = seg->count[j];
        if (n && (seg->first[j] != at || n < 0 || n > seg->units - at)) return false;
        at += n;
    }
    return at == seg->units;
}

enum sheaf_status sheaf_split_state_to_ne(const struct sheaf_split_state *state, int64_t *ne,
                                          uint32_t *nr) {
    int64_t run, all;
    for (int i = 0; i < state->n_segments; i++) {
        const struct sheaf_split_segment *seg = &state->segments[i];
        if (!measure(seg, &run, &all))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "split state: segment %d wants outer >= 1, inner >= 1, units >= "
                                   "0, and a product of them below 2^63",
                                   i);
        if (!is_ascending(seg, state->n_members) || seg->outer > UINT32_MAX)
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                   "split state: segment %d is not a partition in member order, "
                                   "which this form cannot say",
                                   i);
        for (int j = 0; j < state->n_members; j++)
            ne[(size_t)i * (size_t)state->n_members + (size_t)j] = seg->count[j] * seg->inner;
        nr[i] = (uint32_t)seg->outer;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- intervals of one member, joined, in order ---- */

struct walk {
    const struct sheaf_split_state *s;
    int member, seg;
    int64_t repeat, base;
};

/* The next raw interval, empty ones skipped; false at the end. */
static bool raw_next(struct walk *w, int64_t *lo, int64_t *hi) {
    while (w->seg < w->s->n_segments) {
        const struct sheaf_split_segment *g = &w->s->segments[w->seg];
        const int64_t run = g->units * g->inner;
        if (w->repeat == g->outer || g->count[w->member] == 0) {
            w->base += g->outer * run;
            w->repeat = 0;
            w->seg++;
            continue;
        }
        *lo = w->base + w->repeat * run + g->first[w->member] * g->inner;
        *hi = *lo + g->count[w->member] * g->inner;
        w->repeat++;
        return true;
    }
    return false;
}

struct stream {
    struct walk w;
    int64_t lo, hi;
    bool more;
};

static struct stream stream_of(const struct sheaf_split_state *s, int member) {
    struct stream t = {.w = {.s = s, .member = member}};
    t.more = raw_next(&t.w, &t.lo, &t.hi);
    return t;
}

static bool stream_next(struct stream *t, int64_t *lo, int64_t *hi) {
    if (!t->more) return false;
    *lo = t->lo;
    *hi = t->hi;
    while ((t->more = raw_next(&t->w, &t->lo, &t->hi)) && t->lo == *hi) *hi = t->hi;
    return true;
}

bool sheaf_split_state_equal(const struct sheaf_split_state *a, const struct sheaf_split_state *b) {
    if (a->axis != b->axis || a->n_members != b->n_members) return false;
    if (!is_cut(a)) return true;
    const int64_t extent = total(a);
    if (extent < 0 || extent != total(b)) return false;
    for (int j = 0; j < a->n_members; j++) {
        struct stream x = stream_of(a, j), y = stream_of(b, j);
        int64_t xl = 0, xh = 0, yl = 0, yh = 0;
        for (;;) {
            const bool p = stream_next(&x, &xl, &xh), q = stream_next(&y, &yl, &yh);
            if (p != q) return false;
            if (!p) break;
            if (xl != yl || xh != yh) return false;
        }
    }
    return true;
}

static enum sheaf_status misfit(const struct sheaf_tensor *t, const struct sheaf_split_state *s,
                                const char *what) {
    char text[256];
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "split: '%s' %s [%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                           "] cannot be %s: %s",
                           t->name, sheaf_type_name(t->type), t->ne[0], t->ne[1], t->ne[2],
                           t->ne[3], sheaf_split_state_print(s, text, sizeof text), what);
}

/* Units from the first on that have an owner, without a hole. Members mostly stand in the order of
 * their units or in the opposite one, so one or two passes over them suffice. */
static int64_t owned_from_start(const struct sheaf_split_segment *g, int n_members) {
    int64_t at = 0;
    for (int pass = 0;; pass++) {
        const int64_t before = at;
        for (int i = 0; i < n_members; i++) {
            const int j = pass % 2 ? n_members - 1 - i : i;
            if (g->count[j] && g->first[j] <= at && g->first[j] + g->count[j] > at)
                at = g->first[j] + g->count[j];
        }
        if (at >= g->units || (pass && at == before)) return at;
    }
}

enum sheaf_status sheaf_split_state_check(const struct sheaf_split_state *state,
                                          const struct sheaf_tensor *tensor) {
    if (state->axis == SHEAF_SPLIT_AXIS_MIRRORED) return SHEAF_STATUS_SUCCESS;
    if (state->axis == SHEAF_SPLIT_AXIS_PARTIAL)
        return tensor->type == SHEAF_TYPE_F32
                   ? SHEAF_STATUS_SUCCESS
                   : misfit(tensor, state, "addends are f32; give it the type f32 or mirror it");
    if (!is_cut(state) || state->n_segments < 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "split: '%s': axis %d with %d segments",
                               tensor->name, (int)state->axis, state->n_segments);
    int64_t sum = 0;
    const int64_t block = state->axis == SHEAF_SPLIT_AXIS_0 ? sheaf_blck_size(tensor->type) : 1;
    for (int i = 0; i < state->n_segments; i++) {
        const struct sheaf_split_segment *g = &state->segments[i];
        int64_t run = 0, all = 0;
        if (!measure(g, &run, &all) || __builtin_add_overflow(sum, all, &sum))
            return misfit(tensor, state, "a segment is outer >= 1, inner >= 1, units >= 0");
        for (int j = 0; j < state->n_members; j++) {
            if (!is_inside(g, j))
                return misfit(tensor, state, "a member's units lie outside their segment");
            if (g->count[j] && (g->first[j] * g->inner % block || g->count[j] * g->inner % block))
                return misfit(tensor, state,
                              "a slice of dimension 0 must be whole quantization blocks; take "
                              "units of the block size");
        }
        if (owned_from_start(g, state->n_members) < g->units)
            return misfit(tensor, state, "some units have no owner");
        if (run % block) return misfit(tensor, state, "a segment must be whole blocks");
    }
    if (sum == tensor->ne[state->axis]) return SHEAF_STATUS_SUCCESS;
    char what[96];
    snprintf(what, sizeof what, "its segments have %" PRId64 " indices, the dimension has %" PRId64,
             sum, tensor->ne[state->axis]);
    return misfit(tensor, state, what);
}

bool sheaf_split_state_is_partition(const struct sheaf_split_state *state) {
    if (!is_cut(state) || total(state) < 0) return false;
    for (int i = 0; i < state->n_segments; i++) {
        const struct sheaf_split_segment *g = &state->segments[i];
        int64_t owned = 0, end = 0;
        bool ordered = true; /* then neighbours alone can overlap */
        for (int j = 0; j < state->n_members; j++) {
            if (!g->count[j]) continue;
            if (__builtin_add_overflow(owned, g->count[j], &owned)) return false;
            ordered = ordered && g->first[j] >= end;
            end = g->first[j] + g->count[j];
        }
        for (int j = 0; j < state->n_members && !ordered; j++) {
            for (int k = 0; k < j && g->count[j]; k++) {
                if (g->count[k] && g->first[k] < g->first[j] + g->count[j] &&
                    g->first[j] < g->first[k] + g->count[k])
                    return false;
            }
        }
        if (owned != g->units) return false;
    }
    return true;
}

int64_t sheaf_split_state_extent(const struct sheaf_split_state *state, int member, int64_t ne) {
    if (!is_cut(state)) return ne;
    int64_t n = 0;
    for (int i = 0; i < state->n_segments; i++) {
        const struct sheaf_split_segment *g = &state->segments[i];
        n += g->outer * g->count[member] * g->inner;
    }
    return n;
}

void sheaf_split_state_local_ne(const struct sheaf_split_state *state,
                                const int64_t ne[SHEAF_MAX_DIMS], int member,
                                int64_t local[SHEAF_MAX_DIMS]) {
    memcpy(local, ne, SHEAF_MAX_DIMS * sizeof *local);
    if (is_cut(state)) local[state->axis] = sheaf_split_state_extent(state, member, 0);
}

int64_t sheaf_split_state_intervals(const struct sheaf_split_state *state, int member,
                                    int64_t *pairs, int64_t cap) {
    if (!is_cut(state)) return 0;
    struct stream t = stream_of(state, member);
    int64_t n = 0, lo = 0, hi = 0;
    while (stream_next(&t, &lo, &hi)) {
        if (n < cap) {
            pairs[2 * n] = lo;
            pairs[2 * n + 1] = hi - lo;
        }
        n++;
    }
    return n;
}

static void put_units(struct sheaf__text *t, const struct sheaf_split_segment *g, int n_members) {
    const bool plain = is_ascending(g, n_members);
    for (int j = 0, alike = 1; j < n_members; j += alike) {
        for (alike = 1; j + alike < n_members && g->count[j + alike] == g->count[j] &&
                        (plain || g->first[j + alike] == g->first[j]);)
            alike++;
        if (j) sheaf__put(t, ",");
        if (!plain) sheaf__put(t, "%" PRId64 ":", g->first[j]); /* overlaps name their place */
        sheaf__put(t, "%" PRId64, g->count[j]);
        alike = sheaf__put_alike(t, alike);
    }
}

char *sheaf_split_state_print(const struct sheaf_split_state *state, char *buf, size_t n) {
    struct sheaf__text text = {buf, n, 0};
    if (state->axis == SHEAF_SPLIT_AXIS_MIRRORED) {
        sheaf__put(&text, "M");
    } else if (state->axis == SHEAF_SPLIT_AXIS_PARTIAL) {
        sheaf__put(&text, "P");
    } else {
        sheaf__put(&text, "S%d ", (int)state->axis);
        for (int i = 0; i < state->n_segments; i++) {
            const struct sheaf_split_segment *g = &state->segments[i];
            if (i) sheaf__put(&text, "+");
            if (g->outer > 1) sheaf__put(&text, "%" PRId64 "*", g->outer);
            sheaf__put(&text, "{");
            put_units(&text, g, state->n_members);
            sheaf__put(&text, "}");
            if (g->inner > 1) sheaf__put(&text, "x%" PRId64, g->inner);
        }
    }
    return buf;
}
