/* The closed set of conversions between states, and what each costs. */
#ifndef SHEAF_SPLIT_CONVERT_H
#define SHEAF_SPLIT_CONVERT_H

#include "split/cut.h"
#include "split/plan.h"

/* Bytes of the whole tensor, dense. */
int64_t sheaf__dense_bytes(const struct sheaf_tensor *t);
/* Bytes a rank receives, times D / (D - 1): the common factor is left out so that costs stay
 * integers and compare exactly. 0 for one member. */
int64_t sheaf__convert_cost(struct sheaf__st from, struct sheaf__st to, int64_t bytes, int members);
struct sheaf__conversion {
    enum sheaf_split_step_kind kind;
    enum sheaf_comm_kind collective; /* of a COLLECTIVE */
};
/* The first step on the way from one state to another and the state that it reaches. */
struct sheaf__conversion sheaf__convert_step(struct sheaf__st from, struct sheaf__st to,
                                             struct sheaf__st *reached);

#endif
