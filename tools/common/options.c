/* Parses a command line by a table. Every value is checked here, so that the tool never sees a
 * number out of range. */
#include "options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "common/tool.h"

enum { MAX_NAME = 40, HELP_COLUMN = 25, HELP_WIDTH = 100 };

/* An argument taken apart. */
struct given {
    const struct option *option;
    char name[MAX_NAME]; /* as it was spelled */
    const char *value;   /* in the same argument; NULL: none */
};

/* Is the word [n] one of the blank-separated `words`? */
static bool is_among(const char *words, const char *word, size_t n) {
    for (const char *p = words; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == n && strncmp(p, word, n) == 0) return true;
    return false;
}

static const struct option *find(const struct tool *tool, const char *word, size_t n) {
    for (size_t i = 0; i < tool->n_options; i++) {
        const struct option *o = &tool->options[i];
        if (o->kind == OPTION_HEAD || o->kind == OPTION_WORDS) continue;
        if (is_among(o->name, word, n) || is_among(o->aliases, word, n)) return o;
    }
    return NULL;
}

static bool is_number(enum option_kind kind) {
    return kind == OPTION_INT || kind == OPTION_INT32 || kind == OPTION_REAL ||
           kind == OPTION_LIST || kind == OPTION_SIZE || kind == OPTION_SIZES ||
           kind == OPTION_SEED;
}

/* "--name", "--name=value", "-n12". */
static struct given take_apart(const struct tool *tool, const char *arg) {
    struct given g = {.option = find(tool, arg, strlen(arg))};
    size_t n = strlen(arg);
    const size_t equals = strcspn(arg, "=");
    if (!g.option && arg[0] == '-' && arg[1] == '-' && arg[equals]) {
        g.option = find(tool, arg, n = equals);
        g.value = arg + equals + 1;
    } else if (!g.option && n > 2 && arg[1] != '-' && strchr("0123456789.", arg[2])) {
        g.option = find(tool, arg, n = 2);
        g.value = arg + 2;
        if (g.option && !is_number(g.option->kind)) g.option = NULL;
    }
    snprintf(g.name, sizeof g.name, "%.*s", (int)n, arg);
    return g;
}

/* "-n, --predict" if the option was given by another name than its own. */
static const char *spelled(const struct given *g, char *text, size_t size) {
    const bool own = strcmp(g->name, g->option->name) == 0;
    snprintf(text, size, "%s%s%s", own ? "" : g->name, own ? "" : ", ", g->option->name);
    return text;
}

/* ---- values ---- */

/* Whole numbers with commas between them, at most `most`; `sizes`: K, M, G may follow each. Returns
 * how many, 0 if there is anything else. */
static int parse_numbers(const struct option *o, const char *text, bool sizes, int most,
                         int64_t *out) {
    for (int n = 0; n < most; n++) {
        char *end;
        errno = 0;
        long long v = strtoll(text, &end, 10);
        if (errno || end == text) return 0;
        const char *unit = sizes && *end ? strchr("KkMmGg", *end) : NULL;
        if (unit) {
            const int shift = 10 * (1 + (int)(unit - "KkMmGg") / 2);
            if (v < 0 || v > INT64_MAX >> shift) return 0;
            v <<= shift;
            end++;
        }
        if ((double)v < o->min || (double)v > o->max) return 0;
        out[n] = v;
        if (!*end) return n + 1;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

static enum sheaf_status set_number(const struct option *o, const char *name, const char *text,
                                    void *field) {
    int64_t number;
    const bool size = o->kind == OPTION_SIZE;
    if (!parse_numbers(o, text, size, 1, &number))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s wants %s from %.0f to %.0f, not '%.60s'",
                               name, size ? "a size like 4, 8K, 1M" : "a whole number", o->min,
                               o->max, text);
    if (o->kind == OPTION_INT32)
        *(int32_t *)field = (int32_t)number;
    else
        *(int64_t *)field = number;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status set_list(const struct option *o, const char *name, const char *text,
                                  int *count, void *field) {
    const bool sizes = o->kind == OPTION_SIZES;
    *count = parse_numbers(o, text, sizes, OPTION_MAX_LIST, field);
    if (*count) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(
        SHEAF_STATUS_INVALID,
        "%s wants at most %d %s from %.0f to %.0f with commas between them, not '%.60s'", name,
        OPTION_MAX_LIST, sizes ? "sizes like 4, 8K, 1M" : "whole numbers", o->min, o->max, text);
}

static enum sheaf_status set_seed(const char *name, const char *text, bool *any, void *field) {
    char *end;
    *any = strcmp(text, "-1") == 0;
    if (*any) return SHEAF_STATUS_SUCCESS;
    errno = 0;
    *(uint64_t *)field = strtoull(text, &end, 10);
    if (!errno && end != text && !*end && *text != '-') return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s wants a whole number >= 0, or -1, not '%.60s'",
                           name, text);
}

static enum sheaf_status set_real(const struct option *o, const char *name, const char *text,
                                  void *field) {
    char *end;
    const double d = strtod(text, &end);
    if (end == text || *end || !(d >= o->min && d <= o->max))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s wants a number from %g to %g, not '%.60s'",
                               name, o->min, o->max, text);
    *(float *)field = (float)d;
    return SHEAF_STATUS_SUCCESS;
}

/* "f16|q8_0|f32" as "f16, q8_0 or f32". */
static const char *in_words(const char *choices, char *text, size_t size) {
    struct sheaf__text t = {text, size, 0};
    for (const char *p = choices; *p;) {
        const size_t n = strcspn(p, "|");
        const bool last = !p[n];
        sheaf__put(&t, "%s%.*s", p == choices ? "" : last ? " or " : ", ", (int)n, p);
        p += n + !last;
    }
    return text;
}

static enum sheaf_status check_choice(const struct option *o, const char *name, const char *text) {
    char words[160] = "";
    const size_t len = strlen(text);
    for (const char *p = o->choices; *p;) {
        const size_t n = strcspn(p, "|");
        if (n == len && strncmp(p, text, n) == 0) return SHEAF_STATUS_SUCCESS;
        p += n + (p[n] == '|');
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s is %s, not '%.60s'", name,
                           in_words(o->choices, words, sizeof words), text);
}

static enum sheaf_status set_type(const struct option *o, const char *name, const char *text,
                                  void *field) {
    const enum sheaf_status status =
        o->choices ? check_choice(o, name, text) : SHEAF_STATUS_SUCCESS;
    if (status) return status;
    *(enum sheaf_type *)field = sheaf_type_from_name(text);
    if (*(enum sheaf_type *)field != SHEAF_TYPE_COUNT) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: there is no type '%.60s'", name, text);
}

static enum sheaf_status add_text(const char *name, const char *text, int *count, void *field) {
    if (*count == OPTION_MAX_LIST)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s can be given at most %d times", name,
                               OPTION_MAX_LIST);
    ((const char **)field)[(*count)++] = text;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status set_value(const struct given *g, const char *text, void *out) {
    const struct option *o = g->option;
    void *field = (char *)out + o->offset;
    void *also = (char *)out + o->also;
    char name[2 * MAX_NAME + 4];
    spelled(g, name, sizeof name);
    switch (o->kind) {
    case OPTION_INT:
    case OPTION_INT32:
    case OPTION_SIZE:
        return set_number(o, name, text, field);
    case OPTION_LIST:
    case OPTION_SIZES:
        return set_list(o, name, text, also, field);
    case OPTION_SEED:
        return set_seed(name, text, also, field);
    case OPTION_REAL:
        return set_real(o, name, text, field);
    case OPTION_TYPE:
        return set_type(o, name, text, field);
    case OPTION_TEXTS:
        return add_text(name, text, also, field);
    case OPTION_CHOICE:
        *(const char **)field = text;
        return check_choice(o, name, text);
    case OPTION_IGNORED:
        if (tool_is_first()) fprintf(stderr, "note: %s: %s\n", name, o->help);
        return SHEAF_STATUS_SUCCESS;
    default:
        *(const char **)field = text;
        return SHEAF_STATUS_SUCCESS;
    }
}

/* ---- the command line ---- */

/* The nearer of *best and the names in `words`. */
static void take_nearest(const char *words, const char *given, int *least, char best[MAX_NAME]) {
    const int length = (int)strlen(given);
    for (const char *p = words; p && *p; p += strcspn(p, " "), p += *p == ' ') {
        char name[MAX_NAME];
        const int n = (int)strcspn(p, " ");
        if (abs(n - length) >= *least) continue; /* so many letters are too many or missing */
        snprintf(name, sizeof name, "%.*s", n, p);
        const int d = sheaf__word_distance(given, name);
        if (d >= *least) continue;
        *least = d;
        memcpy(best, name, sizeof name);
    }
}

/* An option, or an argument where none has a place; with the option that is spelled most like it, if
 * one is. */
static enum sheaf_status unknown(const struct tool *tool, const char *given) {
    char best[MAX_NAME] = "";
    int least = strlen(given) < 6 ? 2 : 3; /* typing errors fewer than this */
    for (size_t i = 0; i < tool->n_options; i++) {
        if (tool->options[i].kind == OPTION_HEAD || tool->options[i].kind == OPTION_WORDS) continue;
        take_nearest(tool->options[i].name, given, &least, best);
        take_nearest(tool->options[i].aliases, given, &least, best);
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s '%.60s' (%s%s%ssee --help)",
                           *given == '-' ? "unknown option" : "unexpected argument", given,
                           *best ? "is it " : "", best, *best ? "? " : "");
}

static enum sheaf_status take_word(const struct tool *tool, const char *word, void *out) {
    for (size_t i = 0; i < tool->n_options; i++) {
        const struct option *o = &tool->options[i];
        int *count = (int *)(void *)((char *)out + o->also);
        if (o->kind != OPTION_WORDS) continue;
        if (*count == (int)o->max) break;
        ((const char **)(void *)((char *)out + o->offset))[(*count)++] = word;
        return SHEAF_STATUS_SUCCESS;
    }
    return unknown(tool, word);
}

/* Has the option a value in the argument after it? */
static enum sheaf_status takes_next(const struct given *g, const char *next, void *out,
                                    bool *taken) {
    const struct option *o = g->option;
    *taken = false;
    if (o->kind == OPTION_REFUSED)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %s", g->name, o->help);
    if (o->kind == OPTION_FLAG) {
        *(bool *)((char *)out + o->offset) = true;
        if (!g->value) return SHEAF_STATUS_SUCCESS;
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s takes no value", g->name);
    }
    if (o->kind == OPTION_OPTIONAL_TEXT) *(bool *)((char *)out + o->also) = true;
    if (g->value) return SHEAF_STATUS_SUCCESS;
    if (o->kind == OPTION_OPTIONAL_TEXT && (!next || next[0] == '-')) return SHEAF_STATUS_SUCCESS;
    if (!next) return sheaf_set_error(SHEAF_STATUS_INVALID, "a value is missing after %s", g->name);
    *taken = true;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status options_parse(const struct tool *tool, int argc, char **argv, void *out) {
    for (int i = 1; i < argc; i++) {
        const struct given g = take_apart(tool, argv[i]);
        bool taken;
        enum sheaf_status status;
        if (!g.option) {
            const bool word = argv[i][0] != '-' || !argv[i][1];
            status = word ? take_word(tool, argv[i], out) : unknown(tool, g.name);
            if (status) return status;
            continue;
        }
        status = takes_next(&g, i + 1 < argc ? argv[i + 1] : NULL, out, &taken);
        const char *value = taken ? argv[++i] : g.value;
        if (!status && value) status = set_value(&g, value, out);
        if (status) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- comparing ---- */

bool options_among(const char *names, const char *name) {
    return is_among(names, name, strlen(name));
}

static void put_quoted(struct sheaf__text *t, const char *text) {
    enum { MOST = 32 };
    if (!text)
        sheaf__put(t, "not given");
    else if (strlen(text) <= MOST)
        sheaf__put(t, "'%s'", text);
    else
        sheaf__put(t, "'%.20s...' (hash %08x)", text,
                   (unsigned)sheaf__hash_bytes(0, text, strlen(text)));
}

bool options_value(const struct option *option, const void *out, char text[OPTION_VALUE_TEXT]) {
    const void *field = (const char *)out + option->offset;
    const void *also = (const char *)out + option->also;
    struct sheaf__text t = {text, OPTION_VALUE_TEXT, 0};
    char *whole = NULL; /* of a list */
    size_t len = 0;
    FILE *list;
    memset(text, 0, OPTION_VALUE_TEXT);
    switch (option->kind) {
    case OPTION_FLAG:
        sheaf__put(&t, *(const bool *)field ? "given" : "not given");
        return true;
    case OPTION_OPTIONAL_TEXT:
        if (!*(const bool *)also)
            sheaf__put(&t, "not given");
        else
            put_quoted(&t, *(const char *const *)field);
        return true;
    case OPTION_TEXT:
    case OPTION_CHOICE:
        put_quoted(&t, *(const char *const *)field);
        return true;
    case OPTION_INT:
    case OPTION_SIZE:
        sheaf__put(&t, "%lld", (long long)*(const int64_t *)field);
        return true;
    case OPTION_INT32:
        sheaf__put(&t, "%d", (int)*(const int32_t *)field);
        return true;
    case OPTION_SEED:
        if (*(const bool *)also)
            sheaf__put(&t, "-1");
        else
            sheaf__put(&t, "%llu", (unsigned long long)*(const uint64_t *)field);
        return true;
    case OPTION_REAL:
        sheaf__put(&t, "%.9g", (double)*(const float *)field);
        return true;
    case OPTION_TYPE:
        sheaf__put(&t, "%s", sheaf_type_name(*(const enum sheaf_type *)field));
        return true;
    case OPTION_LIST:
    case OPTION_SIZES:
    case OPTION_TEXTS:
        list = open_memstream(&whole, &len);
        for (int i = 0; list && i < *(const int *)also; i++) {
            if (option->kind == OPTION_TEXTS)
                fprintf(list, "%s%s", i ? "," : "", ((const char *const *)field)[i]);
            else
                fprintf(list, "%s%lld", i ? "," : "", (long long)((const int64_t *)field)[i]);
        }
        if (list) fclose(list);
        put_quoted(&t, len ? whole : NULL);
        free(whole);
        return true;
    default:
        return false;
    }
}

/* ---- help ---- */

/* Writes words from column `at`, in lines that begin at HELP_COLUMN. */
static void put_wrapped(FILE *f, const char *text, int at) {
    while (*text) {
        const int n = (int)strcspn(text, " ");
        if (at > HELP_COLUMN && at + 1 + n > HELP_WIDTH) {
            fprintf(f, "\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        }
        at += fprintf(f, "%s%.*s", at > HELP_COLUMN ? " " : "", n, text);
        text += n + (text[n] == ' ');
    }
    fputc('\n', f);
}

static void option_help(const struct option *o, FILE *f) {
    char left[80];
    struct sheaf__text t = {left, sizeof left, 0};
    const bool letter = o->aliases && o->aliases[0] == '-' && o->aliases[1] != '-';
    if (letter) sheaf__put(&t, "  %.*s, ", (int)strcspn(o->aliases, " "), o->aliases);
    sheaf__put(&t, letter ? "%s" : o->name[1] == '-' ? "      %s" : "  %s", o->name);
    if (o->value) sheaf__put(&t, " %s", o->value);
    fprintf(f, "%-*s", HELP_COLUMN, left);
    if (t.n >= HELP_COLUMN) fprintf(f, "\n%*s", HELP_COLUMN, "");
    put_wrapped(f, o->help, HELP_COLUMN);
}

void options_help(const struct tool *tool, FILE *f) {
    fputs(tool->synopsis, f);
    for (size_t i = 0; i < tool->n_options; i++) {
        const struct option *o = &tool->options[i];
        if (o->kind == OPTION_HEAD)
            fprintf(f, "%s\n", o->help);
        else if (o->help && o->kind != OPTION_REFUSED && o->kind != OPTION_IGNORED)
            option_help(o, f);
    }
    bool head = false;
    for (size_t i = 0; i < tool->n_options; i++) {
        if (tool->options[i].kind != OPTION_IGNORED) continue;
        if (!head) fputs("accepted, without effect\n", f);
        head = true;
        option_help(&tool->options[i], f);
    }
    if (tool->notes) fprintf(f, "\n%s", tool->notes);
}
