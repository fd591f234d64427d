/* Chains: consecutive nodes whose rows depend on the same rows of their operands only, so that all
 * of them can be computed for some rows before the next rows are touched.
 *
 * Between a device's own nodes this saves passes over memory and barriers. After a collective it
 * lets a device go on with the rows that are there while others travel: the meta device asks a
 * registry entry for this interface under SHEAF__CHAIN_PROC. Every node of a chain is written as if
 * it had been computed alone, with the same bits. */
#ifndef SHEAF_BACKEND_CHAIN_H
#define SHEAF_BACKEND_CHAIN_H

#include "backend/optional.h"
#include "sheaf/backend.h"

/* SHEAF_FUSE: nothing, nodes of a device, also nodes with the all_reduce before them (default). */
enum { SHEAF__FUSE_OFF, SHEAF__FUSE_NODES, SHEAF__FUSE_COLLECTIVES };

struct sheaf__chain_i {
    /* How many of nodes [n], from the first on, make a chain on rows of `source` (an F32 tensor
     * that comes into being row by row; not NULL). Looks at types and shapes only. */
    int (*length)(const struct sheaf_tensor *source, struct sheaf_tensor *const *nodes, int n);
    /* Before the rows of a chain: does its memory allow it (what one row writes, no other row may
     * use), and does it pay on this backend's threads? false: compute the nodes one by one. */
    bool (*begin)(sheaf_backend_t backend, const struct sheaf_tensor *source,
                  struct sheaf_tensor *const *nodes, int n);
    /* Rows [first, last) of all nodes, on the calling thread and the backend's team. */
    enum sheaf_status (*rows)(sheaf_backend_t backend, struct sheaf_tensor *const *nodes, int n,
                              int64_t first, int64_t last);
};

#endif
