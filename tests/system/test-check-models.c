/* scripts/check-models: the logits of every architecture beside llama.cpp's, and the collectives of
 * a token beside the plan's. Without llama.cpp (scripts/ggml-tree --install) the first is skipped
 * and says so. */
#include <criterion/criterion.h>
#include <string.h>

#include "mpirun.h"

#define SCRIPT                                                                                     \
    "env -u SHEAF_CPU_ACTIVATIONS '" SHEAF_SOURCE_DIR                                              \
    "/scripts/check-models' --bin '" SHEAF_BUILD_DIR                                               \
    "/bin' " /* starts sheaf-make-model, sheaf-info, sheaf-bench, sheaf-quantize */

static char out[1 << 16];

TestSuite(check_models, .timeout = 900);

Test(check_models, logits_are_those_of_llama_cpp) {
    const int status = run_command(SCRIPT "llama --types F32,Q8_0", 800, out, sizeof out);
    if (status == 77) {
        cr_expect(strstr(out, "NOT RUN"), "%s", out);
        cr_skip_test("%s", out);
    }
    cr_expect_eq(status, 0, "%s", out);
    cr_expect(strstr(out, "NMSE against llama.cpp-tools"), "%s", out);
    cr_expect(strstr(out, "\n| llama, experts |"), "%s", out);
    cr_expect_null(strstr(out, "above"), "%s", out);
}

Test(check_models, collectives_are_those_of_the_plan) {
    cr_expect_eq(run_command(SCRIPT "collectives", 800, out, sizeof out), 0, "%s", out);
    cr_expect(strstr(out, "\n| phi3 | 2 | 2 | 7 all-reduce |"), "%s", out);
}

/* A folder without a tree: nothing is compared, and that is no success. */
Test(check_models, says_that_it_did_not_run) {
    cr_expect_eq(run_command("SHEAF_CACHE=/nonexistent " SCRIPT "llama", 60, out, sizeof out), 77,
                 "%s", out);
    cr_expect(strstr(out, "NOT RUN: llama.cpp is not installed"), "%s", out);
}
