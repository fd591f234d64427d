/* Cuts of one axis of a weight or cache. NULL from a function that makes a state: out of memory. */
#ifndef SHEAF_GGML_CUT_AXIS_H
#define SHEAF_GGML_CUT_AXIS_H

#include "ggml/cut.h"

/* Units of `inner` elements along an axis, by shares. */
struct sheaf_split_state *gg_cut_axis(const struct gg_cutter *c, int axis, int64_t units,
                                      int64_t inner);

/* The same; member j has units first[j] to first[j] + count[j] - 1. */
struct sheaf_split_state *gg_by_units(const struct gg_cutter *c, int axis, int64_t units,
                                      int64_t inner, const int64_t *first, const int64_t *count);
/* n rows of a matrix, or elements of its bias. */
struct sheaf_split_state *gg_by_rows(const struct gg_cutter *c, int axis, int64_t n);
/* n elements, `times` times in a row. */
struct sheaf_split_state *gg_by_inner(const struct gg_cutter *c, int axis, int64_t n, int64_t inner,
                                      int times);
/* The elements that lie together where columns of the weight are cut: a block of its type. */
int64_t gg_block_of(const struct gg_cutter *c, const struct gg_tensor *weight);
/* How many units of `inner` elements have whole blocks. */
int64_t gg_units_of_block(int64_t inner, int64_t block);
/* Do the region's shape and type allow the state? */
bool gg_suits(const struct gg_region *r, const struct sheaf_split_state *state);
/* NULL and a reason instead of a state that the region's shape or type forbids. */
struct sheaf_split_state *gg_checked(const struct gg_region *r, struct sheaf_split_state *state,
                                     const char **why);

#endif
