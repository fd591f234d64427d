/* Faults planted in kernels, a barrier left out, an index off by one, a tail that is missing, fail the checks
 * of scripts/cuda-mutants. All of its files take minutes; here are two. */
#include <criterion/criterion.h>

#include "mpirun.h"

Test(cuda_mutants, are_caught, .timeout = 600) {
    static char out[1 << 14];
    cr_assert_eq(run_command("'" SHEAF_SOURCE_DIR "/scripts/cuda-mutants' '" SHEAF_BUILD_DIR
                             "' --only '^(attention_split|inputs)[.]'",
                             600, out, sizeof out),
                 0, "%s", out);
    cr_assert(strstr(out, "attention_split.cu: 10 faults") && strstr(out, "inputs.cu: 5 faults"),
              "%s", out);
}
