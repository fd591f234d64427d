/* How helper programs join the job: after a failure the library may end them. */
#ifndef SHEAF_TESTS_START_JOB_H
#define SHEAF_TESTS_START_JOB_H

#include "sheaf/world.h"

static inline enum sheaf_status start_job(void) {
    const struct sheaf_world_params params = {.size = sizeof params, .may_exit = true};
    return sheaf_world_init(&params);
}

#endif
