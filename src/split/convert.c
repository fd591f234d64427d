/* Conversions, as a table over (from, to). An exchange between two cuts goes through MIRRORED:
 * there is no all-to-all. */
#include "split/convert.h"

#include <limits.h>

struct conversion {
    struct sheaf__conversion step;
    int cost;                    /* in units of bytes (D - 1) / D, of all its steps */
    enum sheaf__state_kind next; /* state that the first step reaches */
};

#define COLLECTIVE(kind, cost, next)                                                               \
    { {SHEAF_SPLIT_STEP_COLLECTIVE, SHEAF_COMM_##kind}, cost, next }
#define LOCAL(what, next)                                                                          \
    { {.kind = SHEAF_SPLIT_STEP_##what}, 0, next }

static const struct conversion conversions[3][3] = {
    [SHEAF__M] = {[SHEAF__P] = LOCAL(KEEP_ONE, SHEAF__P), [SHEAF__S] = LOCAL(SLICE, SHEAF__S)},
    [SHEAF__P] = {[SHEAF__M] = COLLECTIVE(ALL_REDUCE, 2, SHEAF__M),
                  [SHEAF__S] = COLLECTIVE(REDUCE_SCATTER, 1, SHEAF__S)},
    [SHEAF__S] = {[SHEAF__M] = COLLECTIVE(ALL_GATHER, 1, SHEAF__M),
                  [SHEAF__P] = COLLECTIVE(ALL_GATHER, 1, SHEAF__M),
                  [SHEAF__S] = COLLECTIVE(ALL_GATHER, 1, SHEAF__M)},
};
/* The blocks of a reduce-scatter go to one member each; an overlapping cut is reduced, then sliced.
 */
static const struct conversion overlapping = COLLECTIVE(ALL_REDUCE, 2, SHEAF__M);

static const struct conversion *conversion_of(struct sheaf__st from, struct sheaf__st to) {
    if (from.kind == SHEAF__P && to.kind == SHEAF__S && !to.cut->partition) return &overlapping;
    return &conversions[from.kind][to.kind];
}

int64_t sheaf__dense_bytes(const struct sheaf_tensor *t) {
    return (int64_t)(sheaf_row_size(t->type, t->ne[0]) * (size_t)sheaf_nrows(t));
}

int64_t sheaf__convert_cost(struct sheaf__st from, struct sheaf__st to, int64_t bytes,
                            int members) {
    int64_t cost = 0;
    if (sheaf__st_equal(from, to)) return 0;
    if (__builtin_mul_overflow(bytes, (int64_t)(members - 1) * conversion_of(from, to)->cost,
                               &cost))
        return INT64_MAX / 16;
    return cost < INT64_MAX / 16 ? cost : INT64_MAX / 16; /* sums of a row's costs stay in range */
}

struct sheaf__conversion sheaf__convert_step(struct sheaf__st from, struct sheaf__st to,
                                             struct sheaf__st *reached) {
    const struct conversion *w = conversion_of(from, to);
    *reached = w->next == SHEAF__M ? sheaf__st_m() : to;
    return w->step;
}
