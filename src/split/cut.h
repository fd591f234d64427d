/* Cuts as sets: which indices of a dimension (or of one factor of it) each member owns.
 *
 * A cut is, for every member, a sorted list of disjoint, maximal intervals. That form is unique for
 * a set, so cuts are interned in a pool and compared by address: the same slices are the same cut,
 * in whatever segments a user wrote them. Local order is ascending global order. The pool owns the
 * cuts, their public states and the scratch; it is freed as a whole. */
#ifndef SHEAF_SPLIT_CUT_H
#define SHEAF_SPLIT_CUT_H

#include "sheaf/split.h"

/* A cut repeated over tokens can have many intervals. Above this number there is no such cut: a
 * tensor that needs it is gathered, a leaf is refused. A plan takes milliseconds because of that.
 */
enum { SHEAF__MAX_INTERVALS = 1 << 17 };

struct sheaf__interval {
    int64_t lo, hi;
    int64_t before; /* indices that the member owns in earlier intervals: the local index of lo */
};

struct sheaf__cut {
    int64_t extent;
    int n_members;
    bool partition;  /* every index has exactly one owner */
    bool everywhere; /* every member owns everything: the same content as MIRRORED */
    bool contiguous; /* at most one interval a member */
    uint64_t hash;
    struct sheaf__cut *next;                               /* hash chain */
    const struct sheaf_split_state *shown[SHEAF_MAX_DIMS]; /* public form by axis, made on demand */
    int32_t *begin;                                        /* [n_members + 1] into interval */
    struct sheaf__interval *interval;
};

struct sheaf__chunk;
struct sheaf__pool {
    int n_members;
    bool failed; /* out of memory: all results since then may be NULL */
    struct sheaf__chunk *chunks;
    struct sheaf__cut **slots;
    size_t n_slots, n_cuts;
    /* the cut under construction */
    struct sheaf__interval *build;
    size_t n_build, cap_build;
    int32_t *build_begin;
    int build_member;
    bool build_refused; /* too many intervals */
    bool any_refused;   /* since the pool was made */
    const struct sheaf_split_state *mirrored, *partial;
};

/* State of a tensor inside the planner.
 *
 * Of a masked P more is known: every column (along dimension 0) is whole on one member and 0 on all
 * others. The member follows from the expert ids, a tensor `mask` with an element per column, and
 * from `cut`, which divides the experts. */
enum sheaf__state_kind { SHEAF__M, SHEAF__P, SHEAF__S };
struct sheaf__st {
    enum sheaf__state_kind kind;
    int axis;                        /* of S */
    const struct sheaf__cut *cut;    /* of S and of a masked P */
    const struct sheaf_tensor *mask; /* of a masked P; NULL */
};
static inline struct sheaf__st sheaf__st_m(void) {
    return (struct sheaf__st){SHEAF__M, 0, NULL, NULL};
}
static inline struct sheaf__st sheaf__st_p(void) {
    return (struct sheaf__st){SHEAF__P, 0, NULL, NULL};
}
static inline struct sheaf__st sheaf__st_s(int axis, const struct sheaf__cut *cut) {
    return (struct sheaf__st){SHEAF__S, axis, cut, NULL};
}
static inline struct sheaf__st sheaf__st_masked(const struct sheaf__cut *cut,
                                                const struct sheaf_tensor *mask) {
    return (struct sheaf__st){SHEAF__P, 0, cut, mask};
}
static inline bool sheaf__st_equal(struct sheaf__st a, struct sheaf__st b) {
    return a.kind == b.kind && a.axis == b.axis && a.cut == b.cut && a.mask == b.mask;
}

enum sheaf_status sheaf__pool_init(struct sheaf__pool *pool, int n_members);
void sheaf__pool_free(struct sheaf__pool *pool);
/* Zeroed; freed with the pool. NULL and pool->failed if out of memory. */
void *sheaf__pool_alloc(struct sheaf__pool *pool, size_t size);

/* Building: begin, then for each member in order its intervals (ascending) and next_member, then
 * end. `end` is NULL if the cut has unreasonably many intervals (then the planner mirrors) or out
 * of memory. */
void sheaf__cut_begin(struct sheaf__pool *pool);
void sheaf__cut_add(struct sheaf__pool *pool, int64_t lo, int64_t hi);
void sheaf__cut_next_member(struct sheaf__pool *pool);
const struct sheaf__cut *sheaf__cut_end(struct sheaf__pool *pool, int64_t extent);

/* ---- cuts from cuts. NULL where there is no such cut, or out of memory (pool->failed) ---- */
/* f -> left.f.right: every index of f stands for `right` indices, the whole repeated `left` times.
 */
const struct sheaf__cut *sheaf__cut_embed(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                          int64_t left, int64_t right);
/* The inverse: the factor of size f whose embedding is the cut. */
const struct sheaf__cut *sheaf__cut_extract(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                            int64_t left, int64_t f, int64_t right);
/* Indices [lo, lo + extent) alone. */
const struct sheaf__cut *sheaf__cut_sub(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                        int64_t lo, int64_t extent);
/* b after a. */
const struct sheaf__cut *sheaf__cut_concat(struct sheaf__pool *pool, const struct sheaf__cut *a,
                                           const struct sheaf__cut *b);
/* For a cut of g.r: the groups that each member needs. Exists if every member takes equally many of
 * each group that it touches, because a kernel finds the group of its local head h as h / (local
 * heads / local groups). With `parts`, a member may have any run of indices too: its kernel is told
 * where in a group the run begins. */
const struct sheaf__cut *sheaf__cut_groups(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                           int64_t r, bool parts);
/* Does the member have one run of indices that divides a group of r, and indices of another
 * group? */
bool sheaf__cut_divides_groups(const struct sheaf__cut *cut, int member, int64_t r);
/* For a cut of r.g: the residues modulo g that each member needs. Exists if every member's indices
 * go through its residues in ascending order, again and again, because a kernel finds the group of
 * its local index i as i modulo its residues. */
const struct sheaf__cut *sheaf__cut_residues(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                             int64_t g);
/* Does a serve where b is needed: do both give the same to each member to which `readers` gives
 * something? */
bool sheaf__cut_serves(const struct sheaf__cut *a, const struct sheaf__cut *b,
                       const struct sheaf__cut *readers);

int64_t sheaf__cut_count(const struct sheaf__cut *cut, int member); /* indices owned */
/* How many indices below i the member owns: the local index of i if it owns i. */
int64_t sheaf__cut_rank(const struct sheaf__cut *cut, int member, int64_t i);
/* Every boundary is a multiple of `unit`. */
bool sheaf__cut_aligned(const struct sheaf__cut *cut, int64_t unit);

/* ---- the public form (segments.c) ---- */
/* The cut of a public state. NULL: it has too many intervals, or out of memory (pool->failed). */
const struct sheaf__cut *sheaf__cut_from_state(struct sheaf__pool *pool,
                                               const struct sheaf_split_state *state);
/* Public form of a state, owned by the pool. NULL if out of memory. */
const struct sheaf_split_state *sheaf__st_show(struct sheaf__pool *pool, struct sheaf__st st);
/* Makes a copy of `state` the public form, if none is known yet: leaves keep the segments given by
 * the caller. */
void sheaf__cut_show_as(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                        const struct sheaf_split_state *state);

#endif
