/* A directory of a test's own: made by `setup`, removed with all that is in it by `teardown`. */
#ifndef SHEAF_TESTS_TEMP_DIR_H
#define SHEAF_TESTS_TEMP_DIR_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[64];

static void setup(void) {
    strcpy(dir, "/tmp/sheaf-test-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}
static void teardown(void) {
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    cr_assert_eq(system(cmd), 0);
}

/* The path of a file in it; until the next call. */
static inline const char *in_dir(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

#endif
