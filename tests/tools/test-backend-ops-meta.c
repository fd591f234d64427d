/* sheaf-backend-ops on the meta device: over one, three and four members of this process, and over
 * two ranks. Tens of thousands of graphs: a suite of its own, not run under sanitizers. */
#include "backend-ops.h"

Test(backend_ops, meta_of_1, .timeout = DEADLINE) { on_device("", "META1", 1900); }
Test(backend_ops, meta_of_3, .timeout = DEADLINE) { on_device("", "META3", 15000); }
Test(backend_ops, meta_of_4, .timeout = DEADLINE) { on_device("", "META4", 15000); }

Test(backend_ops, meta_over_two_ranks, .timeout = DEADLINE) {
    static char out[CAP];
    const int status =
        run_mpirun(2, "SHEAF_CPU_THREADS=1", DEADLINE, out, sizeof out, "sheaf-backend-ops test");
    cr_assert_eq(status, 0, "status %d\n%s", status, out);
    all_right(out, "META2", 15000);
}
