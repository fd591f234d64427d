/* Parses a command line by a table. Every value is checked here, so that the tool never sees a
 * number out of range. */
#include "options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

static const struct option *find(const struct option *options, size_t n, const char *arg) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(arg, options[i].name) == 0 ||
            (options[i].alias && strcmp(arg, options[i].alias) == 0))
            return &options[i];
    }
    return NULL;
}

/* Whole numbers with commas between them, at most `most`. Returns how many, 0 if there is anything
 * else. */
static int parse_numbers(const struct option *o, const char *text, int most, int64_t *out) {
    for (int n = 0; n < most; n++) {
        char *end;
        errno = 0;
        const long long v = strtoll(text, &end, 10);
        if (errno || end == text || (double)v < o->min || (double)v > o->max) return 0;
        out[n] = v;
        if (!*end) return n + 1;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

static enum sheaf_status set_value(const struct option *o, const char *text, void *out) {
    void *field = (char *)out + o->offset;
    int *count = (int *)(void *)((char *)out + o->also);
    int64_t number;
    char *end;
    double d;
    errno = 0;
    switch (o->kind) {
    case OPTION_INT:
    case OPTION_INT32:
        if (!parse_numbers(o, text, 1, &number))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s wants a whole number from %.0f to %.0f, not '%.60s'",
                                   o->name, o->min, o->max, text);
        if (o->kind == OPTION_INT32)
            *(int32_t *)field = (int32_t)number;
        else
            *(int64_t *)field = number;
        return SHEAF_STATUS_SUCCESS;
    case OPTION_LIST:
        *count = parse_numbers(o, text, OPTION_MAX_LIST, field);
        if (*count) return SHEAF_STATUS_SUCCESS;
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s wants at most %d whole numbers from %.0f to %.0f with commas "
                               "between them, not '%.60s'",
                               o->name, OPTION_MAX_LIST, o->min, o->max, text);
    case OPTION_UINT:
        *(uint64_t *)field = strtoull(text, &end, 10);
        if (errno || end == text || *end || *text == '-')
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s wants a whole number >= 0, not '%.60s'", o->name, text);
        return SHEAF_STATUS_SUCCESS;
    case OPTION_REAL:
        d = strtod(text, &end);
        if (end == text || *end || !(d >= o->min && d <= o->max))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s wants a number from %g to %g, not '%.60s'", o->name, o->min,
                                   o->max, text);
        *(float *)field = (float)d;
        return SHEAF_STATUS_SUCCESS;
    case OPTION_KV_TYPE: {
        const enum sheaf_type type = sheaf_type_from_name(text);
        if (type != SHEAF_TYPE_F16 && type != SHEAF_TYPE_F32 && type != SHEAF_TYPE_Q8_0)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "%s is f16, q8_0 or f32, not '%.60s'",
                                   o->name, text);
        *(enum sheaf_type *)field = type;
        return SHEAF_STATUS_SUCCESS;
    }
    case OPTION_FLAG:
    case OPTION_TEXT:
    case OPTION_OPTIONAL_TEXT:
    default:
        *(const char **)field = text;
        return SHEAF_STATUS_SUCCESS;
    }
}

/* With the option that is spelled most like it, if one is. */
static enum sheaf_status unknown(const struct option *options, size_t n, const char *given) {
    const char *best = NULL;
    int least = strlen(given) < 6 ? 2 : 3; /* typing errors fewer than this */
    for (size_t i = 0; i < n; i++) {
        const int d = sheaf__word_distance(given, options[i].name);
        if (d < least) best = options[i].name;
        if (d < least) least = d;
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID, "unknown option '%.60s' (%s%s%ssee --help)", given,
                           best ? "is it " : "", best ? best : "", best ? "? " : "");
}

enum sheaf_status options_parse(const struct option *options, size_t n, int argc, char **argv,
                                void *out) {
    for (int i = 1; i < argc; i++) {
        const struct option *o = find(options, n, argv[i]);
        if (!o) return unknown(options, n, argv[i]);
        if (o->kind == OPTION_FLAG) {
            *(bool *)((char *)out + o->offset) = true;
            continue;
        }
        if (o->kind == OPTION_OPTIONAL_TEXT) {
            *(bool *)((char *)out + o->also) = true;
            if (i + 1 == argc || argv[i + 1][0] == '-') continue;
        } else if (i + 1 == argc) {
            return sheaf_set_error(SHEAF_STATUS_INVALID, "a value is missing after %s", argv[i]);
        }
        const enum sheaf_status status = set_value(o, argv[++i], out);
        if (status) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}
