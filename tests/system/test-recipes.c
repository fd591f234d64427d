/* The recipes for a container image and for Spack, which nothing here builds: tests/system/recipes.py
 * compares them with the tree, and finds each fault that it plants itself. */
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
