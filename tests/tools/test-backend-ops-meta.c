/* sheaf-backend-ops on the meta device: over one, three and four members of this process, and over
 * two ranks. Tens of thousands of graphs: a suite of its own, of a few ops under a sanitizer. */
#include "backend-ops.h"

Test(backend_ops, meta_of_1, .timeout = DEADLINE) { on_members(0, "", "-b META1", "META1", 1900); }
Test(backend_ops, meta_of_3, .timeout = DEADLINE) { on_members(0, "", "-b META3", "META3", 15000); }
Test(backend_ops, meta_of_4, .timeout = DEADLINE) { on_members(0, "", "-b META4", "META4", 15000); }
Test(backend_ops, meta_over_two_ranks, .timeout = DEADLINE) {
    on_members(2, "SHEAF_CPU_THREADS=1", "", "META2", 15000);
}
