/* Running sheaf-backend-ops from a suite and reading what it says of a device. */
#ifndef SHEAF_TESTS_BACKEND_OPS_H
#define SHEAF_TESTS_BACKEND_OPS_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "mpirun.h"
#include "sanitizer.h"

enum { CAP = 1 << 16, DEADLINE = 900 };

static inline int ops(const char *env, const char *args, char *out) {
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "exec env SHEAF_CPU_THREADS=1 %s '%s'/bin/sheaf-backend-ops %s", env,
             SHEAF_BUILD_DIR, args);
    return run_command(cmd, DEADLINE, out, CAP);
}

/* What `sheaf-backend-ops test` has at least; a device alone runs each case once. */
enum { ALL_CASES = 1901, FEW_CASES = 4 };

/* The line of a device: "CPU0   1991 cases, 1991 runs: 0 wrong, 0 refused, 0 unsupported", with at least so many
 * cases and runs. Returns how many are unsupported. */
static inline unsigned none_wrong_of(const char *out, const char *device, unsigned least_cases,
                                     unsigned least_runs) {
    unsigned cases = 0, runs = 0, wrong = 1, refused = 1, unsupported = 1;
    const char *line = strstr(out, " runs: ");
    while (line && line > out && line[-1] != '\n') line--;
    cr_assert(line && !strncmp(line, device, strlen(device)), "%s", out);
    cr_assert_eq(sscanf(line + strlen(device),
                        "%u cases, %u runs: %u wrong, %u refused, %u unsupported", &cases, &runs,
                        &wrong, &refused, &unsupported),
                 5, "%s", out);
    cr_assert(cases >= least_cases && runs >= least_runs, "%s", out);
    cr_assert(wrong + refused == 0, "%s", out);
    return unsupported;
}
static inline unsigned none_wrong(const char *out, const char *device, unsigned least_runs) {
    return none_wrong_of(out, device, ALL_CASES, least_runs);
}
/* Tests ops on the members that `where` chooses, on np ranks or, with 0, in one process; they are of the meta device
 * `device`. All ops, but under a sanitizer, where that takes half an hour, a few in which members meet; a group that
 * runs a case with several cuts does so there too. */
static inline void on_members(int np, const char *env, const char *where, const char *device,
                              unsigned least_runs) {
    static char out[CAP];
    static const char *const few[] = {"-o MUL_MAT -t f16", "-o GET_ROWS -t f32", "-o SOFT_MAX",
                                      "-o SET_ROWS -t f16"};
    const unsigned few_runs = least_runs > ALL_CASES ? 2 * FEW_CASES : FEW_CASES;
    for (size_t i = 0; i < (SANITIZED ? sizeof few / sizeof *few : 1); i++) {
        char args[256];
        snprintf(args, sizeof args, "test %s %s", where, SANITIZED ? few[i] : "");
        const int status =
            np ? run_mpirun(np, env, DEADLINE, out, sizeof out, "sheaf-backend-ops %s", args)
               : ops(env, args, out);
        cr_assert_eq(status, 0, "%s: status %d\n%s", args, status, out);
        const unsigned unsupported =
            SANITIZED ? none_wrong_of(out, device, FEW_CASES, few_runs)
                      : none_wrong(out, device, least_runs);
        cr_assert_eq(unsupported, 0, "%s: %s", args, out);
    }
}

static inline void on_device(const char *env, const char *device, unsigned least_runs) {
    static char out[CAP];
    char args[64];
    snprintf(args, sizeof args, "test -b %s", device);
    const int status = ops(env, args, out);
    cr_assert_eq(status, 0, "%s: status %d\n%s", device, status, out);
    cr_assert_eq(none_wrong(out, device, least_runs), 0, "%s", out);
}

#endif
