/* The settings of the library: environment variables SHEAF_NAME, all in one table.
 *
 * A setting's value is, in this order: what the program set with sheaf_setting_set, the environment
 * variable, the default. Parameter structs (sheaf_world_params, ...) come before all three. Values
 * are read when what they configure is made (the world, a device, a group), and checked then: a
 * wrong one fails that call with a text that names the variable and its range. */
#ifndef SHEAF_SETTINGS_H
#define SHEAF_SETTINGS_H

#include <stddef.h>

#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sheaf_setting_type {
    SHEAF_SETTING_INTEGER, /* of [min, max] */
    SHEAF_SETTING_CHOICE,  /* one of `choices` */
    SHEAF_SETTING_TEXT,    /* as `help` says */
};
enum sheaf_setting_source {
    SHEAF_SETTING_DEFAULT,
    SHEAF_SETTING_ENVIRONMENT,
    SHEAF_SETTING_PROGRAM, /* sheaf_setting_set */
};

struct sheaf_setting_info {
    size_t size;      /* sizeof, set by the caller */
    const char *name; /* "SHEAF_TIMEOUT_MS" */
    enum sheaf_setting_type type;
    long min, max;             /* of INTEGER */
    const char *choices;       /* of CHOICE: "f32|bf16|q8_0" */
    const char *default_value; /* for people: "60000", "as SHEAF_TIMEOUT_MS", "unset" */
    const char *help;          /* one sentence */
    const char *value;         /* in force; NULL: the default. Valid until the setting changes */
    enum sheaf_setting_source source;
    const char *error; /* what is wrong with `value`; NULL: nothing */
};

/* Settings 0 .. count - 1, by group and name. */
int sheaf_setting_count(void);
/* INVALID if there is no setting i. */
enum sheaf_status sheaf_setting_get(int i, struct sheaf_setting_info *out);
/* The text in force; NULL if neither the program nor the environment gives one, or if no setting
 * has that name. */
const char *sheaf_setting_value(const char *name);
/* For this process, from now on; NULL: the environment's again. INVALID, with a text, for an
 * unknown name or a value outside the range. Before other threads use the library. */
enum sheaf_status sheaf_setting_set(const char *name, const char *value);

/* Variable i of the environment whose name begins with SHEAF_ and is no setting (names that begin
 * with SHEAF_TEST_ are the tests' own). NULL: there are no more. *nearest (may be NULL) is the
 * setting with the most similar name, or NULL if none is similar. sheaf_world_init logs them. */
const char *sheaf_setting_unknown(int i, const char **nearest);

#ifdef __cplusplus
}
#endif
#endif
