/* Collectives that run while the members compute. */
#ifndef SHEAF_META_OVERLAP_H
#define SHEAF_META_OVERLAP_H

#include "meta/meta_impl.h"

/* Moves sums that take long to right behind what they sum. The same on every rank. */
void sheaf__meta_hoist(const struct meta_device *dev, struct sheaf__split_plan *plan,
                       const struct sheaf_cgraph *graph);
/* Marks the collectives that a member starts rather than makes, and the instructions that wait for
 * them. After the part's tensors were placed by `galloc`. */
void sheaf__meta_place_waits(const struct meta_device *dev, struct meta_part *part,
                             sheaf_gallocr_t galloc);

#endif
