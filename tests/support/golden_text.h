/* Texts that a person has read: what a test makes, against a file of tests/golden.
 * SHEAF_TEST_UPDATE_GOLDEN=1 writes the file anew; review the diff. */
#ifndef SHEAF_TESTS_GOLDEN_TEXT_H
#define SHEAF_TESTS_GOLDEN_TEXT_H

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_FILE(name) SHEAF_SOURCE_DIR "/tests/golden/" name

/* The file's text, for free(); `made` is written to it before if the setting says so. */
static inline char *golden_text(const char *path, const char *made) {
    const bool update = getenv("SHEAF_TEST_UPDATE_GOLDEN") != NULL;
    FILE *f = fopen(path, update ? "w+" : "r");
    cr_assert_not_null(f, "cannot open %s", path);
    if (update) cr_assert(fputs(made, f) >= 0);
    cr_assert_eq(fseek(f, 0, SEEK_END), 0);
    const long n = ftell(f);
    rewind(f);
    char *text = calloc(1, (size_t)n + 2);
    cr_assert(text && fread(text, 1, (size_t)n, f) == (size_t)n);
    fclose(f);
    return text;
}

/* Shows the first line that differs. */
static inline void expect_golden_text(const char *path, const char *made) {
    char *golden = golden_text(path, made);
    const char *m = made, *g = golden;
    while (*m && *m == *g) m++, g++;
    const bool same = *m == *g;
    while (m > made && m[-1] != '\n') m--, g--; /* both are alike up to here */
    cr_expect(same, "differs from %s:\n  file: %.*s\n  now:  %.*s", path, (int)strcspn(g, "\n"), g,
              (int)strcspn(m, "\n"), m);
    free(golden);
}

#endif
