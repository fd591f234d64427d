/* The command line of sheaf-info. */
#include "options.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static const char synopsis[] =
    "usage: [mpirun -np N] sheaf-info [--links] [-m MODEL.gguf [--split S] [--devices LIST] "
    "[--plan]]\n"
    "Lists hosts, ranks and devices; with a model, how its tensors would be cut.\n\n";

#define AT(field) offsetof(struct options, field)
static const struct option option_table[] = {
    {"--model", "-m", OPTION_TEXT, AT(params.path), 0, 0, 0, "FILE", "GGUF model", NULL},
    {"--split", "-ts --tensor-split", OPTION_TEXT, AT(params.split), 0, 0, 0, "S",
     "even, auto, or shares: 3,1 (even)", NULL},
    {"--devices", "-dev --device", OPTION_TEXT, AT(params.devices), 0, 0, 0, "LIST",
     "all, or names as printed here: CPU0@0,CPU0@1; CPU0 is that of every rank (all)", NULL},
    {"--links", NULL, OPTION_FLAG, AT(links), 0, 0, 0, NULL,
     "latency and rate of the links between members, as measured now, the least time of an "
     "all-reduce by them, and the algorithms chosen",
     NULL},
    {"--plan", NULL, OPTION_FLAG, AT(plan), 0, 0, 0, NULL,
     "the plan: spans, collectives and their bytes, predicted time", NULL},
    {"--explain", NULL, OPTION_TEXT, AT(plan_options.explain), 0, 0, 0, "TENSOR",
     "of the plan: which rows of states were considered for this tensor, what each moves and "
     "computes, and why the one taken won",
     NULL},
    {"--plan-dot", NULL, OPTION_TEXT, AT(plan_options.dot), 0, 0, 0, "FILE",
     "the plan of one layer as a Graphviz file (dot -Tsvg FILE)", NULL},
    {"--members", NULL, OPTION_INT, AT(members), 0, 1, 4096, "N",
     "plan for N members that the job need not have", NULL},
    {"--layer", NULL, OPTION_INT, AT(layer), 0, 0, 1 << 20, "N",
     "layer that is shown step by step and drawn (0)", NULL},
    {"--tokens", NULL, OPTION_INT, AT(n_tokens), 0, 1, 1 << 20, "N",
     "tokens evaluated at once: 1 is decode, 512 a prompt (1)", NULL},
    {"--past", NULL, OPTION_INT, AT(past), 0, 0, 1 << 22, "N",
     "tokens in the cache before them (255)", NULL},
    {"--link", NULL, OPTION_TEXT, AT(plan_options.link), 0, 0, 0, "L",
     "shm, 1gbe, 10gbe, 100gbe, roce, hdr, or US,GB/S (measured if the job has ranks, else shm)",
     NULL},
    {"--bandwidth", NULL, OPTION_REAL, AT(bandwidth), 0, -1e6, 1e6, "G",
     "GB/s that a member reads its weights with (measured; 60 with --members)", NULL},
    {"--check", NULL, OPTION_FLAG, AT(check), 0, 0, 0, NULL,
     "is every host fit for the job? With -m also: has each the same file?", NULL},
    {"--postmortem", NULL, OPTION_TEXT, AT(postmortem), 0, 0, 0, "DIR",
     "reads the dumps of a failed job (SHEAF_FLIGHT_DIR): where ranks differ, which was late",
     NULL},
    {"--settings", NULL, OPTION_FLAG, AT(settings), 0, 0, 0, NULL,
     "the settings (SHEAF_... variables): values in force, where they came from, ranges; alone, "
     "and before the ranks meet",
     NULL},
    {"--help", "-h", OPTION_FLAG, AT(help), 0, 0, 0, NULL, "this text", NULL},
    {"--version", NULL, OPTION_FLAG, AT(version), 0, 0, 0, NULL,
     "version, commit and compiler of the library, kernels of this CPU", NULL},
};
#undef AT

const struct tool info_tool = {"sheaf-info", synopsis, NULL, option_table,
                               sizeof option_table / sizeof *option_table};

static enum sheaf_status check_plan(struct options *o) {
    struct plan_options *p = &o->plan_options;
    const bool more = o->layer >= 0 || o->members || o->n_tokens >= 0 || o->past >= 0 ||
                      !isnan(o->bandwidth) || p->link || p->explain;
    if (!isnan(o->bandwidth) && !(o->bandwidth > 0))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--bandwidth wants GB/s above 0, not '%g'",
                               (double)o->bandwidth);
    o->plan = o->plan || p->dot;
    p->layer = o->layer >= 0 ? o->layer : 0;
    p->n_tokens = o->n_tokens >= 0 ? o->n_tokens : 1;
    p->n_kv = (o->past >= 0 ? o->past : 255) + p->n_tokens;
    p->bandwidth = isnan(o->bandwidth) ? 0 : (double)o->bandwidth * 1e9;
    p->hypothetical = o->members > 0;
    if (more && !o->plan)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--layer, --members, --tokens, --past, --link, --explain and "
                               "--bandwidth want --plan");
    if (o->plan && !o->params.path)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--plan wants a model (-m)");
    if (o->members && o->params.devices)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--members and --devices cannot be used together");
    if (o->members && o->params.split && strcmp(o->params.split, "auto") == 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--split auto measures devices, and --members are none: give "
                               "shares");
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status info_options_parse(int argc, char **argv, struct options *o) {
    *o = (struct options){.params = {.size = sizeof o->params},
                          .bandwidth = NAN,
                          .past = -1,
                          .n_tokens = -1,
                          .layer = -1};
    const enum sheaf_status status = options_parse(&info_tool, argc, argv, o);
    if (status || o->help || o->version) return status;
    if (o->settings && argc > 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--settings takes no other options");
    if (!o->params.path && (o->params.split || o->params.devices))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--split and --devices want a model (-m)");
    return check_plan(o);
}
