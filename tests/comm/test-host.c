/* Host programs: they own MPI, give a part of its ranks to sheaf, and live on after a failed job.
 */
#include <criterion/criterion.h>

#include "mpirun.h"
#include "sanitizer.h"

static char out[1 << 16];

static int count(const char *what) {
    int n = 0;
    for (const char *p = out; (p = strstr(p, what)); p++) n++;
    return n;
}

static void expect_ok(const char *env, int np, const char *args) {
    const int rc = run_mpirun(np, env, 60, out, sizeof out, "helper-host %s", args);
    cr_expect_eq(rc, 0, "%s: status %d\n%s", args, rc, out);
    cr_expect_eq(count("ok rank"), np, "%s\n%s", args, out);
}

Test(host, may_own_mpi_at_any_thread_level, .timeout = 240) {
    static const char *const levels[] = {"plain", "single", "funneled", "serialized", "multiple"};
    static const char *const envs[] = {"SHEAF_COMM_TRANSPORT=auto", "SHEAF_COMM_TRANSPORT=mpi"};
    for (size_t i = 0; i < 5; i++) {
        char args[64];
        snprintf(args, sizeof args, "own %s", levels[i]);
        expect_ok(envs[i % 2], 2, args);
        if (!SANITIZED || i % 2 == 0) expect_ok(envs[1], 3, args);
    }
}

Test(host, may_give_a_part_of_its_ranks, .timeout = 120) {
    expect_ok("SHEAF_COMM_TRANSPORT=auto", 5, "split");
    expect_ok("SHEAF_COMM_TRANSPORT=mpi", 4, "split serialized");
    expect_ok(NULL, 2, "split"); /* two worlds of one rank each */
}

Test(host, hears_what_a_thread_level_forbids, .timeout = 60) {
    expect_ok("SHEAF_COMM_TRANSPORT=mpi", 2, "threads single");
}

Test(host, hears_of_calls_in_the_wrong_order, .timeout = 60) {
    expect_ok(NULL, 2, "order plain");
    expect_ok(NULL, 2, "order funneled");
}

Test(host, may_finalize_mpi_too_early, .timeout = 60) {
    expect_ok(NULL, 2, "late");
    cr_expect_eq(count(", 1 logged"), 2, "%s", out);
}

/* Nothing is printed but what the program prints itself: the log function is set. */
Test(host, lives_on_after_a_failed_job, .timeout = 240) {
    static const struct {
        const char *how, *words;
    } cases[] = {
        {"gives up", "1: rank 1 gives up"},
        {"other call", "all_gather 'one thing'"},
        {"stuck", "compute 'a long node'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int hosts = 1; hosts <= 2; hosts++) {
            if (SANITIZED && (i + (size_t)hosts) % 2) continue; /* in turns */
            char env[160];
            snprintf(env, sizeof env, "SHEAF_TIMEOUT_MS=1000 SHEAF_COMM_TRANSPORT=%s",
                     hosts == 1 ? "auto" : "mpi");
            const int rc = run_mpirun(3, env, 60, out, sizeof out, "helper-host broken plain '%s'",
                                      cases[i].how);
            cr_expect_eq(rc, 7, "%s: status %d\n%s", cases[i].how, rc, out);
            cr_expect_eq(count("ok rank"), 3, "%s\n%s", cases[i].how, out);
            cr_expect_eq(count(cases[i].words), 3, "%s\n%s", cases[i].how, out);
            cr_expect_eq(count("sheaf: "), 0, "%s\n%s", cases[i].how, out);
            cr_expect_leq(count("and reports"), 1, "%s\n%s", cases[i].how, out);
        }
}

/* mpiexec of MPICH kills all ranks when it sees one die: a shell hides the death from it. */
Test(host, lives_on_after_a_death, .timeout = 60) {
    char cmd[512];
    snprintf(cmd, sizeof cmd,
             "mpirun --allow-run-as-root --oversubscribe --enable-recovery -np 2 %s"
             "'" SHEAF_BUILD_DIR "/bin/helper-host' killed",
             run_by_mpich() ? "sh -c '\"$@\"; exit 0' sh " : "");
    const int rc = run_command(cmd, 40, out, sizeof out);
    (void)rc; /* of mpirun's own making */
    cr_assert_not_null(strstr(out, "ok rank 0 lives, 1 heard 0: rank 1 ("), "%s", out);
    cr_assert_not_null(strstr(out, "has died"), "%s", out);
}
