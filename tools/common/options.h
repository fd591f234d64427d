/* The command lines of tools that take many options: one table of options each, one parser. */
#ifndef SHEAF_TOOLS_OPTIONS_H
#define SHEAF_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sheaf/status.h"
#include "sheaf/type.h"

enum { OPTION_MAX_LIST = 16 };

/* The kind of an option's value, and the field that it sets. */
enum option_kind {
    OPTION_FLAG,          /* nothing; bool */
    OPTION_TEXT,          /* const char *, which stays that of argv */
    OPTION_OPTIONAL_TEXT, /* as TEXT, unless the next argument is an option; sets a bool, too */
    OPTION_INT,           /* int64_t */
    OPTION_INT32,         /* int32_t */
    OPTION_UINT,          /* uint64_t, any */
    OPTION_REAL,          /* float */
    OPTION_LIST,          /* whole numbers with commas; int64_t [OPTION_MAX_LIST] and an int */
    OPTION_KV_TYPE,       /* enum sheaf_type: f16, q8_0, f32 */
};

struct option {
    const char *name, *alias; /* alias may be NULL */
    enum option_kind kind;
    size_t offset;   /* of the field in the struct that the tool fills */
    size_t also;     /* OPTIONAL_TEXT: of the bool; LIST: of the number of entries */
    double min, max; /* INT, INT32, LIST, REAL */
};

/* Sets the fields of *out that the command line names. INVALID with a text that names the option
 * and what it wants. */
enum sheaf_status options_parse(const struct option *options, size_t n, int argc, char **argv,
                                void *out);

#endif
