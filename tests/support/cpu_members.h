/* Members for a meta device inside one process. Criterion forks, so each test has a registry of its
 * own. */
#ifndef SHEAF_TESTS_CPU_MEMBERS_H
#define SHEAF_TESTS_CPU_MEMBERS_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "sheaf/world.h"

/* The first n CPU devices of this process, owned by the world. Several threads each need more
 * devices than cores. */
static inline const sheaf_backend_dev_t *cpu_members_of(size_t n, const char *threads) {
    char text[16];
    snprintf(text, sizeof text, "%zu", n);
    setenv("SHEAF_CPU_DEVICES", text, 1);
    setenv("SHEAF_CPU_THREADS", threads, 1);
    cr_assert_eq(sheaf_world_init(NULL), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    const sheaf_backend_dev_t *devices;
    size_t have;
    cr_assert_eq(sheaf_world_devices(&devices, &have), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_geq(have, n);
    return devices;
}
static inline const sheaf_backend_dev_t *cpu_members(size_t n) { return cpu_members_of(n, "1"); }

#endif
