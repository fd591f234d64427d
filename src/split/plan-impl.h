/* What the planner keeps beside the plan that others read: the compact state of every value, and
 * the pool that owns all cuts. */
#ifndef SHEAF_SPLIT_PLAN_IMPL_H
#define SHEAF_SPLIT_PLAN_IMPL_H

#include "split/cut.h"
#include "split/match.h"
#include "split/plan.h"

struct sheaf__plan_impl {
    struct sheaf__split_plan plan; /* first: the handle */
    struct sheaf__pool pool;
    struct sheaf__st *st; /* [n_values] */
    bool whole_sums;
};

static inline const struct sheaf__plan_impl *sheaf__plan_impl(const struct sheaf__split_plan *p) {
    return (const struct sheaf__plan_impl *)(const void *)p;
}

#endif
