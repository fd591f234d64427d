/* The command line of sheaf-info. */
#ifndef SHEAF_TOOLS_INFO_OPTIONS_H
#define SHEAF_TOOLS_INFO_OPTIONS_H

#include "common/tool.h"
#include "plan.h"

struct options {
    struct sheaf_model_params params;
    struct plan_options plan_options;
    int64_t members, past, n_tokens, layer; /* past, n_tokens, layer -1: not given */
    float bandwidth;                        /* GB/s */
    const char *postmortem;
    bool links, plan, check, settings, help, version;
};

extern const struct tool info_tool;

/* Strings stay those of argv. INVALID with a text that names the option. */
enum sheaf_status info_options_parse(int argc, char **argv, struct options *out);

#endif
