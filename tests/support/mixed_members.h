/* Members of several kinds: the CPU devices of this process and far devices (tests/emulators/far), whose
 * memory is out of the host's reach. */
#ifndef SHEAF_TESTS_MIXED_MEMBERS_H
#define SHEAF_TESTS_MIXED_MEMBERS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/log.h"
#include "sheaf/module.h"
#include "sheaf/world.h"

#define FAR_MODULE_DIR SHEAF_BUILD_DIR "/lib/modules/far"

/* Before the world: how many devices of each kind this process has. False, with a text on standard
 * error, if the far module cannot be loaded. */
static inline bool mixed_devices(int n_cpu, int n_far) {
    char text[16];
    snprintf(text, sizeof text, "%d", n_cpu);
    setenv("SHEAF_CPU_DEVICES", text, 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    snprintf(text, sizeof text, "%d", n_far);
    setenv("SHEAF_TEST_FAR_DEVICES", text, 1);
    if (!sheaf_backend_load(FAR_MODULE_DIR "/libsheaf-far.so", NULL)) return true;
    fprintf(stderr, "%s\n", sheaf_last_error());
    return false;
}

/* The devices of the job whose names begin with the words of `order`, as "Far0 CPU0 Far1" in one
 * process; all if it is NULL. [n] pointers of the caller; returns how many. */
static inline size_t mixed_pick(const char *order, sheaf_backend_dev_t *out, size_t cap) {
    const sheaf_backend_dev_t *devices;
    size_t n, used = 0;
    if (sheaf_world_devices(&devices, &n)) return 0;
    for (const char *p = order; p && *p; p += strcspn(p, " "), p += strspn(p, " ")) {
        const size_t len = strcspn(p, " ");
        for (size_t i = 0; i < n && used < cap; i++) {
            const char *name = sheaf_backend_dev_name(devices[i]);
            if (strlen(name) == len && !strncmp(name, p, len)) out[used++] = devices[i];
        }
    }
    for (size_t i = 0; !order && i < n && used < cap; i++) out[used++] = devices[i];
    return used;
}

/* For sheaf_log_set: graphs of which a device refuses slices have a line each. */
static inline void mixed_leave_out_info(enum sheaf_log_level level, const char *text, void *user) {
    (void)user;
    if (level > SHEAF_LOG_INFO) fprintf(stderr, "sheaf: %s\n", text);
}

static inline long far_counted(const char *what) {
    sheaf_backend_reg_t reg = sheaf_backend_reg_by_name("Far");
    void *address = reg ? sheaf_backend_reg_get_proc_address(reg, "far_count") : NULL;
    long (*count)(const char *);
    memcpy(&count, &address, sizeof count);
    return address ? count(what) : -1;
}

#endif
