/* Cuts of one axis. */
#include "ggml/cut_axis.h"

#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "ggml/translate.h"
#include "model/place/heads.h"
#include "model/place/policy.h"

struct sheaf_split_state *gg_cut_axis(const struct gg_cutter *c, int axis, int64_t units,
                                      int64_t inner) {
    int64_t *counts = calloc((size_t)c->n_members, sizeof *counts);
    struct sheaf_split_state *state = NULL;
    if (counts) {
        sheaf__split_units(units, c->shares, c->n_members, counts);
        state = sheaf_split_state_cut((enum sheaf_split_axis)axis, c->n_members, counts, inner);
    }
    free(counts);
    return state;
}

int64_t gg_units_of_block(int64_t inner, int64_t block) { return block / sheaf__gcd(inner, block); }

struct sheaf_split_state *gg_by_units(const struct gg_cutter *c, int axis, int64_t units,
                                      int64_t inner, const int64_t *first, const int64_t *count) {
    struct sheaf_split_state *s =
        sheaf_split_state_new((enum sheaf_split_axis)axis, c->n_members, 1);
    if (s) sheaf__segment_fill(&s->segments[0], c->n_members, units, inner, first, count);
    return s;
}

struct sheaf_split_state *gg_by_rows(const struct gg_cutter *c, int axis, int64_t n) {
    const int64_t unit = c->whole_sums ? sheaf__row_group(n) : 1;
    return gg_cut_axis(c, axis, n / unit, unit);
}

struct sheaf_split_state *gg_by_inner(const struct gg_cutter *c, int axis, int64_t n, int64_t inner,
                                      int times) {
    struct sheaf_split_state *one = gg_cut_axis(c, axis, n / inner, inner), *s;
    if (!one || times == 1) return one;
    s = sheaf_split_state_new((enum sheaf_split_axis)axis, c->n_members, times);
    for (int i = 0; s && i < times; i++)
        sheaf__segment_fill(&s->segments[i], c->n_members, n / inner, inner, one->segments[0].first,
                            one->segments[0].count);
    sheaf_split_state_free(one);
    return s;
}

int64_t gg_block_of(const struct gg_cutter *c, const struct gg_tensor *weight) {
    const int type = weight ? gg_type_of(c->e->host, weight->type) : -1;
    return type < 0 ? 1 : sheaf_blck_size((enum sheaf_type)type);
}

bool gg_suits(const struct gg_region *r, const struct sheaf_split_state *state) {
    struct sheaf_tensor t = {.type = r->type};
    memcpy(t.ne, r->ne, sizeof t.ne);
    return !sheaf_split_state_check(state, &t);
}

struct sheaf_split_state *gg_checked(const struct gg_region *r, struct sheaf_split_state *state,
                                     const char **why) {
    if (!state || gg_suits(r, state)) return state;
    sheaf_split_state_free(state);
    *why = "its heads are no whole blocks of its type";
    return NULL;
}
