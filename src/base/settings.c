/* The table of settings, and what is in force.
 *
 * Invariant: no other file of the library reads an environment variable of its own; those of
 * launchers and other libraries (OMPI_..., SLURM_...) are read where they are understood, and the
 * plugin for ggml reads what its parent process tells it (GGML_SHEAF_CLAIM, ggml/claim.c). */
#include "base/settings.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "base/text.h"

extern char **environ;

enum { MS_MAX = 24 * 3600 * 1000, GIB = 1 << 30 };

struct setting {
    const char *name;
    enum sheaf_setting_type type;
    long min, max;
    const char *choices, *default_value, *help;
    bool guarded; /* not taken from the environment of a program with raised privileges */
};

#define INTEGER(lo, hi) .type = SHEAF_SETTING_INTEGER, .min = (lo), .max = (hi)
#define CHOICE(list)    .type = SHEAF_SETTING_CHOICE, .choices = (list)
#define TEXT            .type = SHEAF_SETTING_TEXT

static const struct setting settings[] = {
    [SHEAF__SET_TIMEOUT] = {"SHEAF_TIMEOUT_MS", INTEGER(1, MS_MAX), .default_value = "60000",
                            .help = "A rank that makes no progress for so many milliseconds ends "
                                    "the job; the phases' own limits come before it."},
    [SHEAF__SET_TIMEOUT_START] = {"SHEAF_TIMEOUT_START_MS", INTEGER(1, MS_MAX),
                                  .default_value = "120000",
                                  .help = "Limit of the start, in which the ranks meet."},
    [SHEAF__SET_TIMEOUT_LOAD] = {"SHEAF_TIMEOUT_LOAD_MS", INTEGER(1, MS_MAX),
                                 .default_value = "300000",
                                 .help = "Limit of loading without progress."},
    [SHEAF__SET_TIMEOUT_PLAN] = {"SHEAF_TIMEOUT_PLAN_MS", INTEGER(1, MS_MAX),
                                 .default_value = "as SHEAF_TIMEOUT_MS",
                                 .help = "Limit of planning a graph."},
    [SHEAF__SET_TIMEOUT_COMPUTE] = {"SHEAF_TIMEOUT_COMPUTE_MS", INTEGER(1, MS_MAX),
                                    .default_value = "as SHEAF_TIMEOUT_MS",
                                    .help = "Limit of computing one span."},
    [SHEAF__SET_TIMEOUT_COLLECTIVE] = {"SHEAF_TIMEOUT_COLLECTIVE_MS", INTEGER(1, MS_MAX),
                                       .default_value = "as SHEAF_TIMEOUT_MS",
                                       .help = "Limit of one collective."},
    [SHEAF__SET_TIMEOUT_FINALIZE] = {"SHEAF_TIMEOUT_FINALIZE_MS", INTEGER(1, MS_MAX),
                                     .default_value = "as SHEAF_TIMEOUT_MS",
                                     .help = "Limit of the end, in which the ranks part."},
    /* several times what lies between two signs of life (comm/watch/guard.c) */
    [SHEAF__SET_TIMEOUT_HEARTBEAT] = {"SHEAF_TIMEOUT_HEARTBEAT_MS", INTEGER(1000, MS_MAX),
                                      .default_value = "20000",
                                      .help = "A host that is silent for so many milliseconds "
                                              "counts as lost."},

    [SHEAF__SET_COMM_WIRE] = {"SHEAF_COMM_WIRE", CHOICE("f32|bf16|q8_0"), .default_value = "f32",
                              .help = "Number format of sums between hosts; bf16 and q8_0 lose "
                                      "precision."},
    [SHEAF__SET_COMM_DEVICE] = {"SHEAF_COMM_DEVICE", TEXT, .default_value = "auto",
                                .help = "Collectives on the memory of devices: auto, off, require, "
                                        "or the name of a module (nccl)."},
    [SHEAF__SET_COMM_TRANSPORT] = {"SHEAF_COMM_TRANSPORT", TEXT, .default_value = "auto",
                                   .help = "auto; mpi makes every rank a host of its own; "
                                           "hosts:0,1,0,1 groups ranks by the numbers. For tests."},
    [SHEAF__SET_COMM_DELAY] = {"SHEAF_COMM_DELAY_US", INTEGER(0, 10000000), .default_value = "0",
                               .help = "Delays messages between hosts by so many microseconds. For "
                                       "tests."},
    [SHEAF__SET_COMM_ONE_SHOT] = {"SHEAF_COMM_ONE_SHOT", INTEGER(1, GIB),
                                  .default_value = "as measured",
                                  .help = "Sums of more bytes travel between hosts in parts."},
    [SHEAF__SET_COMM_OWNERS] = {"SHEAF_COMM_OWNERS", INTEGER(1, GIB),
                                .default_value = "as measured",
                                .help = "Number of hosts that add when sums travel through few."},
    [SHEAF__SET_CONTROL_ADDRESS] = {"SHEAF_CONTROL_ADDRESS", TEXT,
                                    .default_value = "the launcher's network",
                                    .help = "IPv4 address, or network such as 10.0.0.0/24, of the "
                                            "control connections between hosts."},
    [SHEAF__SET_NCCL_LIBRARY] = {"SHEAF_NCCL_LIBRARY", TEXT, .default_value = "libnccl.so.2",
                                 .guarded = true, .help = "File of the NCCL library."},
    [SHEAF__SET_NCCL_SUMS] = {"SHEAF_NCCL_SUMS", CHOICE("ordered|nccl"), .default_value = "ordered",
                              .help =
                                  "ordered adds in member order, with the same bits everywhere; "
                                  "nccl leaves the order to NCCL."},

    [SHEAF__SET_CPU_DEVICES] = {"SHEAF_CPU_DEVICES", INTEGER(1, 1024), .default_value = "1",
                                .help = "Cuts the process's cores in each NUMA domain into so many "
                                        "CPU devices."},
    [SHEAF__SET_CPU_THREADS] = {"SHEAF_CPU_THREADS", INTEGER(1, 1024),
                                .default_value = "one a core",
                                .help =
                                    "Threads of each CPU device; by default no more than a control "
                                    "group's limit of CPU time leaves it processors."},
    [SHEAF__SET_CPU_ISA] = {"SHEAF_CPU_ISA", TEXT, .default_value = "the best",
                            .help = "CPU kernels to use: portable, sse41, avx2, avxvnni, avx512, "
                                    "avx512vbmi, avx512bf16, amx; on ARM portable, neon, dotprod."},
    [SHEAF__SET_CPU_ACTIVATIONS] = {"SHEAF_CPU_ACTIVATIONS", CHOICE("f32|bf16|q8"),
                                    .default_value = "f32",
                                    .help = "What CPU products round activations to; bf16 (BF16 "
                                            "and F16 weights; with AMX all) and q8 (--fast) are "
                                            "faster and lose precision."},
    [SHEAF__SET_CPU_REPACK] = {"SHEAF_CPU_REPACK", INTEGER(0, 1), .default_value = "1",
                               .help = "0: quantized weights stay in memory as the file has them, "
                                       "also where another order is faster; results are the same."},
    [SHEAF__SET_CUDA_DEVICES] = {"SHEAF_CUDA_DEVICES", INTEGER(1, 16),
                                 .default_value = "one a GPU of this rank",
                                 .help = "Lists so many CUDA devices, GPUs more than once if there "
                                         "are fewer. For tests."},
    [SHEAF__SET_CUDA_PARAMS] = {"SHEAF_CUDA_PARAMS", TEXT, .default_value = "all on",
                                .help = "Switches of CUDA backends: graphs=0|1,blas=0|1,fuse=0|1,"
                                        "ahead=0|1; times=1 and counts=1 print what ran."},
    [SHEAF__SET_BACKEND_PATH] = {"SHEAF_BACKEND_PATH", TEXT, .default_value = "unset",
                                 .guarded = true,
                                 .help = "Directories with modules (libsheaf-*.so), joined by "
                                         "colons, searched first."},
    [SHEAF__SET_DEVICES] = {"SHEAF_DEVICES", TEXT, .default_value = "all, and none of ggml's",
                            .help = "Devices of the job, joined by commas: CPU0, CUDA0@1 (of rank "
                                    "1), ggml:CPU, ggml:*. Devices of a ggml library are there "
                                    "only if they are named."},
    [SHEAF__SET_GGML_LIB] = {"SHEAF_GGML_LIB", TEXT, .default_value = "libggml.so.0",
                             .guarded = true,
                             .help = "File of the ggml library whose devices are named ggml:..."},
    [SHEAF__SET_GGML_BACKENDS] = {"SHEAF_GGML_BACKENDS", TEXT,
                                  .default_value = "where the library looks", .guarded = true,
                                  .help = "Folder of that library's backends (libggml-cpu-*.so)."},
    [SHEAF__SET_GGML_REPACK] = {"SHEAF_GGML_REPACK", INTEGER(0, 1), .default_value = "1",
                                .help = "0: weights stay as the file has them on ggml's devices, "
                                        "also where a layout of the device is faster."},

    [SHEAF__SET_SPLIT_SUMS] = {"SHEAF_SPLIT_SUMS", CHOICE("partial|whole"),
                               .default_value = "partial",
                               .help = "partial: members add their parts of a product's sums; "
                                       "whole: they gather what the product reads, so that results "
                                       "have the same bits on any number of members, for twice "
                                       "the collectives."},

    [SHEAF__SET_GGML_SPLIT] = {"SHEAF_GGML_SPLIT", TEXT, .default_value = "auto",
                               .help = "How the plugin for ggml cuts weights and caches: auto, "
                                       "mirror, random:SEED or file:PATH."},
    [SHEAF__SET_SPLIT] = {"SHEAF_SPLIT", TEXT, .default_value = "even",
                          .help = "Shares of the members for the plugin for ggml: 3,1."},
    [SHEAF__SET_GROUPS] = {"SHEAF_GROUPS", TEXT, .default_value = "all",
                           .help = "Ranks that are one device each in the plugin for ggml: all, "
                                   "host, or ranges of ranks: 0-1,2-3. Read by rank 0."},
    [SHEAF__SET_GGML_ON_FAILURE] = {"SHEAF_GGML_ON_FAILURE", CHOICE("exit|error"),
                                    .default_value = "exit",
                                    .help = "After the loss of a rank the plugin for ggml ends "
                                            "the program, or every later graph is an error."},

    [SHEAF__SET_BACKEND_DEBUG] =
        {"SHEAF_BACKEND_DEBUG", INTEGER(0, 1), .default_value = "0",
         .help = "Logs which modules are found, taken and refused, which weights "
                 "ggml's devices leave as they are, and, in programs of ggml, at "
                 "the end how many programs ran and what was sent."},
    [SHEAF__SET_SCHED_DEBUG] = {"SHEAF_SCHED_DEBUG", INTEGER(0, 2), .default_value = "0",
                                .help = "Logs the scheduler's splits; 2: also every node."},
    [SHEAF__SET_CPU_PROFILE] = {"SHEAF_CPU_PROFILE", INTEGER(0, 1), .default_value = "0",
                                .help = "Logs the time of each op when a CPU backend is freed."},
    [SHEAF__SET_FLIGHT_DIR] = {"SHEAF_FLIGHT_DIR", TEXT, .default_value = "unset", .guarded = true,
                               .help = "Directory in which ranks leave their flight records when "
                                       "the job fails."},
    [SHEAF__SET_CACHE] = {"SHEAF_CACHE", TEXT, .default_value = "~/.cache/sheaf",
                          .help = "Directory in which the scripts keep fetched models."},
    [SHEAF__SET_GGML_SUITE] = {"SHEAF_GGML_SUITE", TEXT, .default_value = "forky",
                               .help = "Suite of Debian whose llama.cpp scripts/ggml-tree "
                                       "fetches."},
};
static_assert(sizeof settings / sizeof *settings == SHEAF__SETTING_COUNT, "one row a setting");

static char *set_by_program[SHEAF__SETTING_COUNT];

static int find(const char *name) {
    for (int i = 0; name && i < SHEAF__SETTING_COUNT; i++)
        if (!strcmp(settings[i].name, name)) return i;
    return -1;
}

static const char *from_environment(int i) {
    return settings[i].guarded ? secure_getenv(settings[i].name) : getenv(settings[i].name);
}

const char *sheaf__setting_name(enum sheaf__setting setting) { return settings[setting].name; }

static const char *value_of(int i) {
    const char *text = set_by_program[i] ? set_by_program[i] : from_environment(i);
    return text && !*text && settings[i].type != SHEAF_SETTING_INTEGER ? NULL : text;
}

const char *sheaf__setting_text(enum sheaf__setting setting) { return value_of((int)setting); }

bool sheaf__setting_on(enum sheaf__setting setting) {
    const char *text = value_of((int)setting);
    return text && *text && strcmp(text, "0") != 0;
}

const char *sheaf_setting_value(const char *name) {
    const int i = find(name);
    return i < 0 ? NULL : value_of(i);
}

enum sheaf_status sheaf__setting_parse_int(const char *name, const char *text, long min, long max,
                                           long *out) {
    char *end;
    errno = 0;
    const bool digits = (*text >= '0' && *text <= '9') || *text == '-'; /* strtol skips blanks */
    const long v = strtol(text, &end, 10);
    if (!digits || end == text || *end || errno || v < min || v > max)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "setting %s is '%s'; it takes a whole number from %ld "
                               "to %ld",
                               name, text, min, max);
    *out = v;
    return SHEAF_STATUS_SUCCESS;
}

/* Number of the choice, -1 if the list "a|b|c" has none of that name. */
static int choice_of(const char *choices, const char *text) {
    const size_t n = strlen(text);
    for (int i = 0; choices; i++) {
        const char *end = strchr(choices, '|');
        const size_t len = end ? (size_t)(end - choices) : strlen(choices);
        if (len == n && !memcmp(choices, text, n)) return i;
        choices = end ? end + 1 : NULL;
    }
    return -1;
}

/* "a|b|c" as "a, b or c". */
static void put_choices(struct sheaf__text *text, const char *choices) {
    while (choices) {
        const char *end = strchr(choices, '|');
        const int len = end ? (int)(end - choices) : (int)strlen(choices);
        const bool last_but_one = end && !strchr(end + 1, '|');
        sheaf__put(text, "%.*s%s", len, choices, !end ? "" : last_but_one ? " or " : ", ");
        choices = end ? end + 1 : NULL;
    }
}

static enum sheaf_status parse_choice(const struct setting *s, const char *text, int *out) {
    const int i = choice_of(s->choices, text);
    if (i < 0) {
        char list[256];
        struct sheaf__text names = {list, sizeof list, 0};
        put_choices(&names, s->choices);
        return sheaf_set_error(SHEAF_STATUS_INVALID, "setting %s is '%s'; it takes %s", s->name,
                               text, list);
    }
    *out = i;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status check(const struct setting *s, const char *text) {
    long number;
    int choice;
    if (s->type == SHEAF_SETTING_INTEGER)
        return sheaf__setting_parse_int(s->name, text, s->min, s->max, &number);
    if (s->type == SHEAF_SETTING_CHOICE && *text) return parse_choice(s, text, &choice);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__settings_check(void) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < SHEAF__SETTING_COUNT && !status; i++)
        if (value_of(i)) status = check(&settings[i], value_of(i));
    return status;
}

enum sheaf_status sheaf__setting_int(enum sheaf__setting setting, long *out) {
    const struct setting *s = &settings[setting];
    const char *text = value_of((int)setting);
    assert(s->type == SHEAF_SETTING_INTEGER);
    return text ? sheaf__setting_parse_int(s->name, text, s->min, s->max, out)
                : SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__setting_choice(enum sheaf__setting setting, int *out) {
    const char *text = value_of((int)setting);
    assert(settings[setting].type == SHEAF_SETTING_CHOICE);
    return text ? parse_choice(&settings[setting], text, out) : SHEAF_STATUS_SUCCESS;
}

void sheaf__setting_choice_name(enum sheaf__setting setting, int i,
                                char name[static SHEAF__CHOICE_BYTES]) {
    const char *choices = settings[setting].choices;
    assert(settings[setting].type == SHEAF_SETTING_CHOICE);
    while (choices && i-- > 0)
        if ((choices = strchr(choices, '|'))) choices++;
    const int len = choices ? (int)strcspn(choices, "|") : 0;
    snprintf(name, SHEAF__CHOICE_BYTES, "%.*s", len, choices ? choices : "");
}

int sheaf_setting_count(void) { return SHEAF__SETTING_COUNT; }

enum sheaf_status sheaf_setting_get(int i, struct sheaf_setting_info *out) {
    static _Thread_local char error[512];
    if (i < 0 || i >= SHEAF__SETTING_COUNT || !out)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "settings: there is no setting %d, or no room "
                               "for what it says",
                               i);
    const struct setting *s = &settings[i];
    const char *value = value_of(i);
    struct sheaf_setting_info info = {
        .size = sizeof info,
        .name = s->name,
        .type = s->type,
        .min = s->min,
        .max = s->max,
        .choices = s->choices,
        .default_value = s->default_value,
        .help = s->help,
        .value = value,
        .source = !value              ? SHEAF_SETTING_DEFAULT
                  : set_by_program[i] ? SHEAF_SETTING_PROGRAM
                                      : SHEAF_SETTING_ENVIRONMENT,
    };
    if (value && check(s, value)) {
        snprintf(error, sizeof error, "%s", sheaf_last_error());
        sheaf_clear_error();
        info.error = error;
    }
    return sheaf__sized_give(&info, sizeof info, out, "sheaf_setting_info");
}

/* The setting with the most similar name; NULL if more than a third of the name would change. */
static const char *nearest_to(const char *name) {
    const char *nearest = NULL;
    int least = (int)strlen(name) / 3;
    for (int i = 0; i < SHEAF__SETTING_COUNT; i++) {
        const int distance = sheaf__word_distance(name, settings[i].name);
        if (distance > least || (nearest && distance == least)) continue;
        least = distance;
        nearest = settings[i].name;
    }
    return nearest;
}

enum sheaf_status sheaf_setting_set(const char *name, const char *value) {
    const int i = find(name);
    if (i < 0) {
        const char *nearest = name ? nearest_to(name) : NULL;
        return sheaf_set_error(SHEAF_STATUS_INVALID, "settings: there is no '%s'%s%s%s",
                               name ? name : "", nearest ? "; did you mean " : "",
                               nearest ? nearest : "", nearest ? "?" : "");
    }
    if (value) {
        const enum sheaf_status st = check(&settings[i], value);
        if (st) return st;
    }
    char *copy = value ? strdup(value) : NULL;
    if (value && !copy)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "settings: out of memory");
    free(set_by_program[i]);
    set_by_program[i] = copy;
    return SHEAF_STATUS_SUCCESS;
}

const char *sheaf_setting_unknown(int i, const char **nearest) {
    static _Thread_local char name[64];
    static const char ours[] = "SHEAF_", tests[] = "SHEAF_TEST_";
    for (char **v = environ; v && *v; v++) {
        const size_t n = strcspn(*v, "=");
        if (strncmp(*v, ours, sizeof ours - 1) || !strncmp(*v, tests, sizeof tests - 1)) continue;
        snprintf(name, sizeof name, "%.*s", (int)n, *v);
        if (find(name) >= 0 || i-- > 0) continue;
        if (nearest) *nearest = nearest_to(name);
        return name;
    }
    return NULL;
}
