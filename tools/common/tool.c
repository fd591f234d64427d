/* The start and the end of a tool. Owns nothing; the world is the library's. */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

#include "base/launcher.h"
#include "base/shares.h"
#include "sheaf/cpu.h"
#include "sheaf/module.h"
#include "sheaf/settings.h"
#include "sheaf/version.h"
#include "sheaf/world.h"

#include "common/output.h"

bool tool_is_first(void) {
    const char *rank = sheaf__launcher_mpi_rank();
    return !rank || atoi(rank) == 0;
}

int tool_answer(const struct tool *tool, bool help) {
    if (!tool_is_first()) return 0;
    if (help)
        options_help(tool, stdout);
    else
        printf("sheaf %s, %s\nkernels of this CPU: %s\n", sheaf_version(), sheaf_build_info(),
               sheaf_cpu_isa_name());
    return output_end(0);
}

static void say(const struct tool *tool, const char *text) {
    fprintf(stderr, "%s: %s\n", tool->name, text);
}

int tool_refuse(const struct tool *tool) {
    say(tool, sheaf_last_error());
    return TOOL_BAD_USAGE;
}

void tool_complain(const struct tool *tool) {
    char text[1024];
    snprintf(text, sizeof text, "%s", sheaf_last_error());
    /* first: peers that wait for this rank must not wait for their deadline */
    sheaf_world_abort(text);
    fflush(stdout); /* the message stands behind what was printed before it */
    if (sheaf_world_reports_error()) say(tool, text);
}

enum sheaf_status tool_set_cpus(int64_t threads, bool fast) {
    char number[24];
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (fast) status = sheaf_setting_set("SHEAF_CPU_ACTIVATIONS", "q8");
    if (status || !threads) return status;
    snprintf(number, sizeof number, "%lld", (long long)threads);
    return sheaf_setting_set("SHEAF_CPU_THREADS", number);
}

enum sheaf_status tool_set_sums(const char *sums) {
    return sums ? sheaf_setting_set("SHEAF_SPLIT_SUMS", sums) : SHEAF_STATUS_SUCCESS;
}

enum sheaf_status tool_check_split(const char *split) {
    if (!split || !strcmp(split, "even") || !strcmp(split, "auto")) return SHEAF_STATUS_SUCCESS;
    return sheaf__read_shares(split, NULL, 0) ? SHEAF_STATUS_SUCCESS : sheaf__refuse_split(split);
}

/* The rank that a name of a list ends with ("CPU0@1"); -1: that of every rank. */
static long rank_of_name(const char *name) {
    const char *at = memchr(name, '@', strcspn(name, ","));
    return at ? strtol(at + 1, NULL, 10) : -1;
}

static const char *next_name(const char *p) {
    p = strchr(p, ',');
    return p ? p + 1 : NULL;
}

static bool is_named_before(const char *list, const char *name) {
    const size_t n = strcspn(name, ",");
    for (const char *p = list; p != name; p = next_name(p))
        if (strcspn(p, ",") == n && !memcmp(p, name, n)) return true;
    return false;
}

enum sheaf_status tool_check_devices(const char *list) {
    long highest = -1;
    for (const char *p = list; p; p = next_name(p)) {
        const int n = (int)strcspn(p, ",");
        const long rank = rank_of_name(p);
        if (!n)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "--devices '%.60s' has an empty name: give all, or names with "
                                   "commas between them (CPU0@0,CPU0@1)",
                                   list);
        if (is_named_before(list, p))
            return sheaf_set_error(SHEAF_STATUS_INVALID, "--devices names %.*s twice", n, p);
        if (rank >= 0 && rank < highest)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "--devices: list the devices by rank, lower ranks first: %.*s "
                                   "stands behind one of rank %ld",
                                   n, p, highest);
        if (rank > highest) highest = rank;
    }
    return SHEAF_STATUS_SUCCESS;
}

int tool_start(const struct tool *tool, enum sheaf_status parsed) {
    char *wrong = parsed ? strdup(sheaf_last_error()) : NULL;
    const struct sheaf_world_params params = {.size = sizeof params, .may_exit = true};
    int code = 0;
    if (sheaf_world_init(&params))
        code = TOOL_FAILED;
    else if (parsed)
        code = TOOL_BAD_USAGE;
    if (code == TOOL_BAD_USAGE)
        sheaf_set_error(parsed, "%s", wrong ? wrong : "the command line is wrong");
    free(wrong);
    if (code) {
        tool_complain(tool);
        sheaf_world_finalize();
        return code;
    }
    if (sheaf_backend_load_all() && sheaf_world_local_rank() == 0) say(tool, sheaf_last_error());
    return 0;
}

/* first: the values of rank 0, one after the other. */
static enum sheaf_status compare_options(const struct tool *tool, const void *out,
                                         const char *may_differ,
                                         const char (*first)[OPTION_VALUE_TEXT]) {
    const int me = sheaf_world_rank();
    for (size_t i = 0; i < tool->n_options; i++) {
        char mine[OPTION_VALUE_TEXT];
        if (!options_value(&tool->options[i], out, mine)) continue;
        if (options_among(may_differ, tool->options[i].name)) continue;
        if (!strncmp(mine, first[i], sizeof mine)) continue;
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "option %s is %.63s on rank 0 (%s) and %s on rank %d (%s): give all "
                               "ranks the same command line",
                               tool->options[i].name, first[i], sheaf_world_host_name(0), mine, me,
                               sheaf_world_host_name(me));
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status tool_same_options(const struct tool *tool, const void *out,
                                    const char *may_differ) {
    static const char what[] = "comparing the command lines";
    if (sheaf_world_size() == 1) return SHEAF_STATUS_SUCCESS;
    char(*first)[OPTION_VALUE_TEXT] = calloc(tool->n_options, sizeof *first);
    enum sheaf_status status =
        first ? SHEAF_STATUS_SUCCESS
              : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the options");
    status = sheaf_world_agree(status, what);
    for (size_t i = 0; !status && i < tool->n_options; i++)
        options_value(&tool->options[i], out, first[i]);
    if (!status) status = sheaf_world_broadcast(first, tool->n_options * sizeof *first, 0, what);
    if (!status)
        status = compare_options(tool, out, may_differ, (const char(*)[OPTION_VALUE_TEXT])first);
    free(first);
    return sheaf_world_agree(status, what);
}

enum sheaf_status tool_await_input(enum sheaf_status st, const char *what) {
    unsigned char read = 1;
    if (sheaf_world_size() == 1) return st;
    const enum sheaf_status waited = sheaf_world_call(&read, sizeof read, 0, what);
    return waited ? waited : st;
}

int tool_end(int code) {
    fflush(stdout); /* a launcher that ends the job may leave no time for it later */
    sheaf_world_finalize();
    return output_end(code || !sheaf_world_failed() ? code : TOOL_FAILED);
}
