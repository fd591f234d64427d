/* Sessions over several ranks: what fails on one rank fails on all. */
#include <criterion/criterion.h>

#include "mpirun.h"
#include "sanitizer.h"

static char out[1 << 14];

Test(session, plan_agrees_on_memory_that_one_rank_lacks, .timeout = 180) {
    if (SANITIZED) cr_skip_test("a sanitizer has an allocator of its own");
    const int rc = run_mpirun(2, "SHEAF_CPU_THREADS=1 SHEAF_TIMEOUT_MS=3000", 120, out, sizeof out,
                              "helper-session");
    cr_assert(run_returns(rc, 0) && !strstr(out, "WRONG"), "status %d\n%s", rc, out);
    cr_assert(strstr(out, "ok rank 0, ") && !strstr(out, "ok rank 0, 0 failures"), "%s", out);
}
