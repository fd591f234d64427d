/* The start and the end of a tool. Owns nothing; the world is the library's. */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

#include "base/launcher.h"
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
