/* The recipes for a container image and for Spack, which nothing here builds: tests/system/recipes.py
 * compares them with the tree, and finds each fault that it plants itself. Scripts that fetch what a
 * first run needs. */
#include <criterion/criterion.h>

#include "mpirun.h"

static char out[1 << 14];

static void recipes(const char *option) {
    char cmd[512];
    snprintf(cmd, sizeof cmd, "exec python3 '" SHEAF_SOURCE_DIR "/tests/system/recipes.py' %s",
             option);
    cr_assert_eq(run_command(cmd, 60, out, sizeof out), 0, "%s", out);
    cr_assert_str_eq(out, "", "%s", out);
}

Test(recipes, agree_with_the_tree, .timeout = 90) { recipes(""); }

Test(recipes, are_checked_by_rules_that_can_fail, .timeout = 90) { recipes("--self-check"); }

/* A model that found no folder was fetched to the folder that the user was in. */
Test(scripts, fetch_nothing_without_a_cache, .timeout = 90) {
    static const char *const commands[] = {"bash -euc '. scripts/lib.sh; (find_model) || exit 7'",
                                           "scripts/ggml-tree --install || exit 7"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char cmd[512];
        snprintf(cmd, sizeof cmd,
                 "cd '" SHEAF_SOURCE_DIR
                 "'; unset SHEAF_CACHE XDG_CACHE_HOME; export HOME=/proc/none; %s",
                 commands[i]);
        cr_assert_eq(run_command(cmd, 60, out, sizeof out), 7, "%s: %s", cmd, out);
        const char *says =
            strstr(out, "cannot write to /proc/none/.cache/sheaf: SHEAF_CACHE=FOLDER");
        cr_assert(says && strchr(says, '\n') == out + strlen(out) - 1, "%s: %s", cmd, out);
    }
}
