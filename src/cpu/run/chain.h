/* Chains on the CPU (backend/chain.h): ADD, MUL and RMS_NORM of contiguous F32 rows, by the functions
 * that compute a row of those ops, some rows at a time. Pure: no team, no globals. */
#ifndef SHEAF_CPU_RUN_CHAIN_H
#define SHEAF_CPU_RUN_CHAIN_H

#include "backend/chain.h"
#include "cpu/ops/ops.h"

enum { SHEAF__CHAIN_MAX = 8 }; /* nodes */

/* As in sheaf__chain_i; source may be NULL. */
int sheaf__cpu_chain_length(const struct sheaf_tensor *source, struct sheaf_tensor *const *nodes,
                            int n);
/* May the rows be computed in any partition? By memory; source may be NULL. */
bool sheaf__cpu_chain_is_safe(const struct sheaf_tensor *source, struct sheaf_tensor *const *nodes,
                              int n);
/* Rows [first, last), on this thread. Different rows: any threads at the same time. */
void sheaf__cpu_chain_rows(struct sheaf_tensor *const *nodes, int n, int64_t first, int64_t last);

#endif
