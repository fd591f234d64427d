/* How helper programs join the job and leave it: after a failure the library may end them. */
#ifndef SHEAF_TESTS_START_JOB_H
#define SHEAF_TESTS_START_JOB_H

#include <stdio.h>

#include "sheaf/world.h"

static inline enum sheaf_status start_job(void) {
    const struct sheaf_world_params params = {.size = sizeof params, .may_exit = true};
    return sheaf_world_init(&params);
}

/* The helper's status: 0 if it went well on all ranks, and rank 0 says so. */
static inline int end_job(bool ok, size_t n_members) {
    const enum sheaf_status mine = ok ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_FAILED;
    const bool all = !sheaf_world_agree(mine, "scenario");
    if (all && sheaf_world_rank() == 0)
        printf("ok %zu members on %d ranks\n", n_members, sheaf_world_size());
    sheaf_world_finalize();
    return all ? 0 : 1;
}

#endif
