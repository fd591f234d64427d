/* sheaf-info --settings as its users see it. What the library makes of settings: test-base.c. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "mpirun.h"
#include "sheaf/settings.h"

enum { OUT = 1 << 16, TIMEOUT = 60 };
static char out[OUT];

/* sheaf-info `args` in an environment without settings but those of `env`. */
static int info(const char *env, const char *args) {
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "exec env -i PATH=\"$PATH\" HOME=/ %s '%s'/bin/sheaf-info %s 2>&1",
             env, SHEAF_BUILD_DIR, args);
    return run_command(cmd, TIMEOUT, out, OUT);
}

static void shows(const char *text) { cr_expect(strstr(out, text), "no '%s' in: %s", text, out); }

Test(settings, all_of_them_with_default_range_and_help) {
    cr_assert_eq(info("", "--settings"), 0, "%s", out);
    for (int i = 0; i < sheaf_setting_count(); i++) {
        struct sheaf_setting_info s = {.size = sizeof s};
        char line[512];
        cr_assert_eq(sheaf_setting_get(i, &s), SHEAF_STATUS_SUCCESS);
        snprintf(line, sizeof line, "\n%-29s %-22s default      ", s.name, s.default_value);
        shows(line);
        shows(s.help);
    }
    shows("SHEAF_CPU_THREADS             one a core             default      1 to 1024\n");
    shows("default      f32, bf16, q8_0\n");
    cr_expect(!strstr(out, "error: ") && !strstr(out, "warning: "), "%s", out);
}

Test(settings, values_of_the_environment) {
    cr_assert_eq(info("SHEAF_CPU_THREADS=3 SHEAF_COMM_WIRE=bf16", "--settings"), 0, "%s", out);
    shows("SHEAF_CPU_THREADS             3                      environment  1 to 1024\n");
    shows("SHEAF_COMM_WIRE               bf16                   environment  f32, bf16, q8_0\n");
    shows("SHEAF_SCHED_DEBUG             0                      default      0 to 2\n");
}

/* A wrong value fails the call although no world starts, and all others are shown. */
Test(settings, wrong_values_and_misspelt_names) {
    cr_assert_eq(
        info("SHEAF_COMM_WIRE=f8 SHEAF_SCHED_DEBUG=3 SHEAF_CPU_TREADS=2 SHEAF_X=1", "--settings"),
        1, "%s", out);
    shows("SHEAF_COMM_WIRE               f8                     environment  f32, bf16, q8_0\n");
    shows("error: setting SHEAF_COMM_WIRE is 'f8'; it takes f32, bf16 or q8_0\n");
    shows("error: setting SHEAF_SCHED_DEBUG is '3'; it takes a whole number from 0 to 2\n");
    shows("warning: SHEAF_CPU_TREADS is no setting; did you mean SHEAF_CPU_THREADS?\n");
    shows("warning: SHEAF_X is no setting\n");
    shows("SHEAF_CACHE ");
    shows("sheaf-info: 2 settings have a wrong value (above)\n");
}

Test(settings, printed_by_one_rank_only) {
    cr_assert_eq(info("OMPI_COMM_WORLD_RANK=1", "--settings"), 0);
    cr_expect_str_eq(out, "");
}

Test(settings, alone) {
    cr_expect_eq(info("", "--settings --links"), 2, "%s", out);
    shows("--settings takes no other options");
}

/* docs/settings.md is what scripts/settings-page writes. */
Test(settings, the_page_in_the_documents, .timeout = 60) {
    static char doc[1 << 16];
    const char *const page =
        "'" SHEAF_SOURCE_DIR "/scripts/settings-page' --bin '" SHEAF_BUILD_DIR "/bin'";
    char cmd[2048];
    snprintf(cmd, sizeof cmd, "exec %s", page);
    cr_assert_eq(run_command(cmd, TIMEOUT, out, OUT), 0, "%s", out);
    FILE *f = fopen(SHEAF_SOURCE_DIR "/docs/settings.md", "r");
    cr_assert_not_null(f);
    doc[fread(doc, 1, sizeof doc - 1, f)] = 0;
    fclose(f);
    cr_expect(strstr(doc, out), "docs/settings.md is old: run scripts/settings-page --write");
    snprintf(cmd, sizeof cmd, "%s | true", page);
    cr_assert_eq(run_command(cmd, TIMEOUT, out, OUT), 0);
    cr_expect_str_eq(out, "", "a reader that has left: %s", out);
}
