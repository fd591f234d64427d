/* A locale of another language, which a test makes, as a machine may have none but C. */
#ifndef SHEAF_TESTS_LANGUAGES_H
#define SHEAF_TESTS_LANGUAGES_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Makes the locale in the folder; this process and those that it starts speak it from the next
 * setlocale(LC_ALL, "") on. */
static inline void speak_turkish(const char *folder) {
    char cmd[256];
    if (access("/usr/share/i18n/locales/tr_TR", R_OK))
        cr_skip_test("no /usr/share/i18n/locales/tr_TR (Debian's package locales)");
    snprintf(cmd, sizeof cmd, "localedef -i tr_TR -f UTF-8 %s/tr_TR.UTF-8", folder);
    cr_assert_eq(system(cmd), 0, "%s", cmd);
    setenv("LOCPATH", folder, 1);
    setenv("LC_ALL", "tr_TR.UTF-8", 1);
}

#endif
