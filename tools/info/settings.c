/* The table of settings, for people. It needs no world, so that it also prints when a wrong setting
 * keeps the world from starting. */
#include "settings.h"

#include <stdio.h>

#include "sheaf/settings.h"

enum { RANGE_TEXT = 128 };

static const char *const sources[] = {
    [SHEAF_SETTING_DEFAULT] = "default",
    [SHEAF_SETTING_ENVIRONMENT] = "environment",
    [SHEAF_SETTING_PROGRAM] = "program",
};

/* "1 to 1024", "f32, bf16, q8_0", "text". */
static void range_of(const struct sheaf_setting_info *s, char out[RANGE_TEXT]) {
    if (s->type == SHEAF_SETTING_INTEGER) {
        snprintf(out, RANGE_TEXT, "%ld to %ld", s->min, s->max);
    } else if (s->type == SHEAF_SETTING_CHOICE) {
        int used = 0;
        for (const char *p = s->choices; *p && used < RANGE_TEXT - 2; p++)
            used += snprintf(out + used, RANGE_TEXT - (size_t)used, *p == '|' ? ", " : "%c", *p);
    } else {
        snprintf(out, RANGE_TEXT, "text");
    }
}

static void print_setting(const struct sheaf_setting_info *s) {
    char range[RANGE_TEXT];
    range_of(s, range);
    printf("%-29s %-22s %-12s %s\n    %s\n", s->name, s->value ? s->value : s->default_value,
           sources[s->source], range, s->help);
    if (s->error) printf("    error: %s\n", s->error);
}

enum sheaf_status settings_print(void) {
    const char *name, *nearest;
    int wrong = 0;
    printf("%-29s %-22s %-12s %s\n", "setting", "in force", "from", "range");
    for (int i = 0; i < sheaf_setting_count(); i++) {
        struct sheaf_setting_info s = {.size = sizeof s};
        const enum sheaf_status status = sheaf_setting_get(i, &s);
        if (status) return status;
        print_setting(&s);
        wrong += s.error != NULL;
    }
    for (int i = 0; (name = sheaf_setting_unknown(i, &nearest)); i++)
        printf("warning: %s is no setting%s%s%s\n", name, nearest ? "; did you mean " : "",
               nearest ? nearest : "", nearest ? "?" : "");
    if (!wrong) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%d setting%s a wrong value (above)", wrong,
                           wrong == 1 ? " has" : "s have");
}
