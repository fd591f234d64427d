/* The command line of sheaf-info. */
#ifndef SHEAF_TOOLS_INFO_OPTIONS_H
#define SHEAF_TOOLS_INFO_OPTIONS_H

#include "common/tool.h"
#include "plan.h"

enum { MAX_MEMBERS = 4096 }; /* that are imagined */

struct options {
    struct sheaf_model_params params;
    const char *split_sums;
    struct plan_options plan_options;
    int64_t members[OPTION_MAX_LIST]; /* numbers of imagined members */
    int n_members;                    /* 0: the job's devices */
    int64_t past, n_tokens, layer;    /* -1: not given */
    int64_t n_ctx, n_batch;           /* n_ctx -1: not given; 0: all of the model's */
    float bandwidth, gflops;          /* GB/s, GFLOP/s; NAN: not given */
    const char *postmortem, *preset, *mix;
    bool links, plan, check, tensors, json, settings, help, version;
};

extern const struct tool info_tool;

/* Strings stay those of argv. INVALID with a text that names the option. */
enum sheaf_status info_options_parse(int argc, char **argv, struct options *out);

#endif
