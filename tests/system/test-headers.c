/* Every public header stands alone: it compiles as the only include of a file, as C11 and as C++,
 * without a warning. That is what programs in other languages and their generators rely on. And the
 * header that stands for Criterion's under ThreadSanitizer has all that the suites use. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "mpirun.h"

static int compile(const char *compiler, const char *source, char *out, size_t cap) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd,
             "printf '%%s\\n' '%s' | %s -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "
             "'%s/include' -",
             source, compiler, SHEAF_SOURCE_DIR);
    return run_command(cmd, 60, out, cap);
}

static const char *const compilers[] = {"cc -std=c11 -x c", "c++ -std=c++11 -x c++"};

Test(headers, each_compiles_alone) {
    DIR *dir = opendir(SHEAF_SOURCE_DIR "/include/sheaf");
    cr_assert_not_null(dir);
    int n = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        const size_t len = strlen(e->d_name);
        if (len < 3 || strcmp(e->d_name + len - 2, ".h")) continue;
        for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++) {
            char source[300], out[4096];
            snprintf(source, sizeof source, "#include \"sheaf/%s\"", e->d_name);
            const int status = compile(compilers[i], source, out, sizeof out);
            cr_expect_eq(status, 0, "%s: %s: status %d\n%s", compilers[i], e->d_name, status, out);
        }
        n++;
    }
    closedir(dir);
    cr_assert_geq(n, 15, "only %d headers found", n);
}

Test(headers, a_bad_header_is_noticed) {
    for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++) {
        char out[4096];
        cr_expect_neq(compile(compilers[i], "#include \"sheaf/status.h\"\nundeclared_type x;", out,
                              sizeof out),
                      0);
    }
}

/* The command, run in `folder` of the source, prints what is missing. */
static void lacks_nothing(const char *name, const char *folder, const char *command) {
    char cmd[1024], out[8192];
    snprintf(cmd, sizeof cmd, "cd '%s/%s' && %s", SHEAF_SOURCE_DIR, folder, command);
    cr_assert_eq(run_command(cmd, 10, out, sizeof out), 0);
    cr_assert_str_eq(out, "", "%s: missing: %s", name, out);
}

/* sheaf.h is the promise to include all of libsheaf, model.h all of libsheaf-model. */
Test(headers, sheaf_h_includes_every_other) {
    lacks_nothing("sheaf.h and model.h", "include/sheaf",
                  "for h in *.h; do "
                  "case $h in sheaf.h | model.h | backend-impl.h) continue;; esac; "
                  "cat sheaf.h model.h | grep -q \"#include \\\"sheaf/$h\\\"\" || echo $h; done");
}

Test(headers, the_runner_for_tsan_has_every_macro) {
    lacks_nothing("sanitizers/criterion/criterion.h", "tests",
                  "for m in $(grep -rhoE '\\bcr_[a-z_]+' --include='*.[ch]' "
                  "--exclude-dir=sanitizers . | sort -u); do "
                  "grep -q \"#define $m(\" sanitizers/criterion/criterion.h || echo $m; done");
}
