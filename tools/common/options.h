/* The command lines of the tools: one table of options each, from which one parser reads the
 * arguments and --help is written. */
#ifndef SHEAF_TOOLS_OPTIONS_H
#define SHEAF_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "sheaf/status.h"
#include "sheaf/type.h"

enum { OPTION_MAX_LIST = 32 };

/* The kind of an option's value, and the field that it sets. */
enum option_kind {
    OPTION_FLAG,          /* nothing; bool */
    OPTION_TEXT,          /* const char *, which stays that of argv */
    OPTION_TEXTS,         /* the same, may be given often; const char *[OPTION_MAX_LIST], an int */
    OPTION_OPTIONAL_TEXT, /* as TEXT, unless the next argument is an option; sets a bool, too */
    OPTION_INT,           /* int64_t */
    OPTION_INT32,         /* int32_t */
    OPTION_SEED,          /* uint64_t; -1 sets a bool instead */
    OPTION_REAL,          /* float */
    OPTION_LIST,          /* whole numbers with commas; int64_t [OPTION_MAX_LIST] and an int */
    OPTION_SIZE,          /* bytes: 4, 8K, 1M, 2G (powers of 1024); int64_t */
    OPTION_SIZES,         /* a list of them, as LIST */
    OPTION_CHOICE,        /* const char *: one of `choices` */
    OPTION_TYPE,          /* enum sheaf_type: one of `choices`, or any if that is NULL */
    OPTION_WORDS,         /* arguments that are no options: const char *[max], an int */
    OPTION_IGNORED,       /* a value; nothing is set, and a line on stderr says why */
    OPTION_REFUSED,       /* an error that says why */
    OPTION_HEAD,          /* no option: the head of a section of --help */
};

struct option {
    const char *name;    /* "--predict" */
    const char *aliases; /* other spellings, with a blank between them: "-n --n-predict"; or NULL */
    enum option_kind kind;
    size_t offset;       /* of the field in the struct that the tool fills */
    size_t also;         /* OPTIONAL_TEXT, SEED: of the bool; lists: of the number of entries */
    double min, max;     /* of numbers; WORDS: max */
    const char *value;   /* its name in --help: "FILE"; NULL: none */
    const char *help;    /* NULL: not in --help. IGNORED, REFUSED: the reason. HEAD: the head */
    const char *choices; /* "a|b|c" */
};

struct tool {
    const char *name;     /* "sheaf-run" */
    const char *synopsis; /* the lines of --help before the options */
    const char *notes;    /* the lines after them; may be NULL */
    const struct option *options;
    size_t n_options;
};

/* Sets the fields of *out that the command line names. Takes "--name value", "--name=value" and, of
 * numbers, "-n12". INVALID with a text that names the option and the values that it takes, or, of
 * an unknown one, the option that is spelled most like it. */
enum sheaf_status options_parse(const struct tool *tool, int argc, char **argv, void *out);
enum { OPTION_VALUE_TEXT = 64 };
/* The value of an option in *out, for comparing and for messages: "12", "'3,1'", "not given". Of a
 * long text the beginning and a hash. false if the option has none. */
bool options_value(const struct option *option, const void *out, char text[OPTION_VALUE_TEXT]);
/* Is the name one of the blank-separated `names`? */
bool options_among(const char *names, const char *name);
void options_help(const struct tool *tool, FILE *f);

#endif
