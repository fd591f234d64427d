/* What a plan costs, added up step by step. */
#ifndef SHEAF_TOOLS_INFO_SUM_H
#define SHEAF_TOOLS_INFO_SUM_H

#include "plan.h"

struct plan_sum {
    int n_members, n_spans;
    double *read;  /* [n_members] bytes of weights and cache */
    double *flops; /* [n_members] of products and attention */
    int64_t count[SHEAF_COMM_KIND_COUNT], bytes[SHEAF_COMM_KIND_COUNT]; /* of collectives */
    double collective_s;
};

enum sheaf_status plan_sum_new(int n_members, struct plan_sum *out);
void plan_sum_free(struct plan_sum *sum);
void plan_sum_add(struct plan_sum *sum, const struct plan_costs *costs,
                  const struct sheaf_backend_meta_step *step);
/* The member with the most; 0 of several. */
int plan_sum_largest(const double *values, int n);

#endif
