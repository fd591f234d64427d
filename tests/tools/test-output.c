/* Results that cannot be written are an error of every tool. */
#include <criterion/criterion.h>
#include <string.h>

#include "mpirun.h"

static void fails_on_a_full_disk(const char *tool, const char *args) {
    char cmd[1024], out[4096];
    snprintf(cmd, sizeof cmd, "exec '%s'/bin/%s %s > /dev/full", SHEAF_BUILD_DIR, tool, args);
    const int status = run_command(cmd, 60, out, sizeof out);
    cr_expect_eq(status, 1, "%s %s: status %d: %s", tool, args, status, out);
    cr_expect(strstr(out, "cannot be written to the standard output: "), "%s %s: %s", tool, args,
              out);
}

Test(output, a_full_disk, .timeout = 120) {
    fails_on_a_full_disk("sheaf-info", "--settings");
    fails_on_a_full_disk("sheaf-info", "");
    fails_on_a_full_disk("sheaf-run", "--help");
    fails_on_a_full_disk("sheaf-bench", "--help");
    fails_on_a_full_disk("sheaf-quantize", "--help");
    fails_on_a_full_disk("sheaf-make-model", "--help");
    fails_on_a_full_disk("sheaf-comm-bench", "-s 4 -n 8 -c all_reduce");
    fails_on_a_full_disk("sheaf-backend-ops", "support -o ADD");
}
