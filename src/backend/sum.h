/* Sums of blocks in a device's memory, in a given order: the last step of a collective that brings
 * the addends of all members to each of them (backend/devcomm.h).
 *
 * A registry entry offers it under SHEAF__SUM_PROC, so that a module that moves data needs no
 * kernel, and the device can go on with the sums where they come into being: a
 * sum that is handed over is kept until the backend is given more to do, and computed in one kernel
 * with the residual and the norm if these come next. */
#ifndef SHEAF_BACKEND_SUM_H
#define SHEAF_BACKEND_SUM_H

#include <string.h>

#include "backend/optional.h"
#include "sheaf/backend.h"

enum { SHEAF__SUM_BLOCKS = 64 };

struct sheaf__sum {
    int n_blocks; /* 0: no sum */
    float *out;   /* [n] none of the blocks */
    size_t n;
    /* In the order of summation: blocks of a host from the left, then the hosts' sums from the
     * left. The bits are those of comm/collectives for every size. */
    const float *block[SHEAF__SUM_BLOCKS];
    uint8_t ends_host[SHEAF__SUM_BLOCKS];
};

/* After all that the backend was given before. The blocks stay as they are until what is submitted
 * next has been waited for. NULL: what was kept is submitted now. A sum with n = 0 is submitted at
 * once and adds nothing: the device's code for it is there from then on (loading code may wait for
 * the device, which may be waiting in a collective of another thread). */
typedef enum sheaf_status sheaf__sum_fn(sheaf_backend_t backend, const struct sheaf__sum *sum);

/* The order of a group: block[i] of a member comes from block_of(user, member). */
static inline struct sheaf__sum sheaf__sum_of(int n, const int *order, const int *host,
                                              const float *(*block_of)(const void *user,
                                                                       int member),
                                              const void *user, float *out, size_t count) {
    struct sheaf__sum s;
    memset(&s, 0, sizeof s); /* compared by its bytes */
    s.n_blocks = n;
    s.out = out;
    s.n = count;
    for (int i = 0; i < n; i++) {
        s.block[i] = block_of(user, order[i]);
        s.ends_host[i] = i + 1 == n || host[order[i + 1]] != host[order[i]];
    }
    return s;
}

#endif
