/* The command line of sheaf-info. */
#include "options.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/shares.h"
#include "model/file/mix.h"
#include "model/random_model.h"

static const char synopsis[] =
    "usage: [mpirun -np N] sheaf-info [--links] [-m MODEL.gguf [options]]\n"
    "       sheaf-info --preset llama-70b --members 1,2,4,8 --link 10gbe\n"
    "Lists hosts, ranks and devices; with a model, the memory that each member needs, and the\n"
    "collectives; with members or links that are imagined, the speeds to expect.\n\n";

#define AT(field) offsetof(struct options, field)
static const struct option option_table[] = {
    {"--model", "-m", OPTION_TEXT, AT(params.path), 0, 0, 0, "FILE", "GGUF model", NULL},
    {"--split", "-ts --tensor-split", OPTION_TEXT, AT(params.split), 0, 0, 0, "S",
     "even, auto, or shares: 3,1 (even)", NULL},
    TOOL_SPLIT_SUMS(AT(split_sums)),
    {"--devices", "-dev --device", OPTION_TEXT, AT(params.devices), 0, 0, 0, "LIST",
     "all, or names as printed here: CPU0@0,CPU0@1; CPU0 is that of every rank (all)", NULL},
    {"--preset", NULL, OPTION_TEXT, AT(preset), 0, 0, 0, "NAME",
     "the shape of a known model instead of a file: llama-8b, llama-70b, llama-405b, mixtral-8x7b, "
     "qwen3-30b-a3b, qwen3-235b-a22b, deepseek-v3, ... (another name lists all)",
     NULL},
    {"--mix", NULL, OPTION_TEXT, AT(mix), 0, 0, 0, "TYPE",
     "types of the preset's matrices, as sheaf-quantize names them (Q4_K_M)", NULL},
    {"--members", NULL, OPTION_LIST, AT(members), AT(n_members), 1, MAX_MEMBERS, "N,..",
     "for N members that the job need not have (one process with --split 3,1: 2); several: a row "
     "each (with --preset as many as --split has shares, else 1,2,..1024)",
     NULL},
    {"--ctx", "-c --ctx-size", OPTION_INT, AT(n_ctx), 0, 0, 1 << 24, "N",
     "tokens of context that the cache is made for, 0: all that the model was trained on (the "
     "model's, at most 4096)",
     NULL},
    {"--batch", "-b --batch-size", OPTION_INT, AT(n_batch), 0, 1, 1 << 16, "N",
     "prompt tokens evaluated at once (512)", NULL},
    {"--kv-type", "-ctk --cache-type-k", OPTION_TYPE, AT(params.kv_type), 0, 0, 0, "TYPE",
     "f16, q8_0 or f32, of keys and values (f16)", "f16|q8_0|f32"},
    {"--tensors", NULL, OPTION_FLAG, AT(tensors), 0, 0, 0, NULL, "the cut of every tensor", NULL},
    {"--json", NULL, OPTION_FLAG, AT(json), 0, 0, 0, NULL,
     "memory, collectives and speeds as one JSON object", NULL},
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
    {"--layer", NULL, OPTION_INT, AT(layer), 0, 0, 1 << 20, "N",
     "layer that is shown step by step and drawn (0)", NULL},
    {"--tokens", NULL, OPTION_INT, AT(n_tokens), 0, 1, 1 << 20, "N",
     "tokens evaluated at once: 1 is decode, 512 a prompt (1)", NULL},
    {"--past", NULL, OPTION_INT, AT(past), 0, 0, 1 << 22, "N",
     "tokens in the cache before them (255)", NULL},
    {"--link", NULL, OPTION_TEXT, AT(plan_options.link), 0, 0, 0, "L",
     "shm, 1gbe, 10gbe, 100gbe, 400gbe, roce, hdr, or US,GB/S (measured if the job has ranks, else "
     "shm)",
     NULL},
    {"--bandwidth", NULL, OPTION_REAL, AT(bandwidth), 0, -1e6, 1e6, "G",
     "GB/s that a member reads its weights with (measured; 60 with --members)", NULL},
    {"--gflops", NULL, OPTION_REAL, AT(gflops), 0, 1e-3, 1e9, "G",
     "GFLOP/s of a member's products (1000)", NULL},
    {"--check", NULL, OPTION_FLAG, AT(check), 0, 0, 0, NULL,
     "is every host fit for the job? With -m also: has each the same file, to the last byte? "
     "(reads it whole on each host)",
     NULL},
    {"--postmortem", NULL, OPTION_TEXT, AT(postmortem), 0, 0, 0, "DIR",
     "reads the dumps of a failed job (SHEAF_FLIGHT_DIR): where ranks differ, which was late",
     NULL},
    {"--settings", NULL, OPTION_FLAG, AT(settings), 0, 0, 0, NULL,
     "the settings (SHEAF_... variables): values in force, where they came from, ranges; alone, "
     "and before the ranks meet",
     NULL},
    TOOL_HELP(AT(help)),
    TOOL_VERSION(AT(version)),
};
#undef AT

const struct tool info_tool = {"sheaf-info", synopsis, NULL, option_table,
                               sizeof option_table / sizeof *option_table};

static enum sheaf_status check_model(const struct options *o) {
    const bool model = o->params.path || o->preset;
    if (!o->params.path && o->params.devices)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--devices wants a model (-m)");
    if (!model && (o->params.split || o->split_sums || o->n_members || o->tensors || o->json ||
                   o->n_ctx >= 0))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--split, --split-sums, --members, --tensors, --json and --ctx want "
                               "a model (-m) or --preset");
    if (!model &&
        (o->plan_options.link || !isnan(o->bandwidth) || !isnan(o->gflops) || o->past >= 0))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--link, --bandwidth, --gflops and --past want a model (-m) or "
                               "--preset; --links measures the links of the job");
    if (o->mix && !o->preset)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--mix wants --preset: a file has its own types");
    if (o->params.path && o->preset)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "give one of -m and --preset");
    if (o->n_members > 1 && (o->plan || o->plan_options.dot || o->tensors))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--plan and --tensors want one number of --members");
    if (o->json &&
        (o->plan || o->plan_options.dot || o->links || o->tensors || o->check || o->postmortem))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--json has memory, collectives and speeds: leave out --plan, "
                               "--links, --tensors, --check, --postmortem");
    return SHEAF_STATUS_SUCCESS;
}

/* --members and a list of shares have the same number. A preset has no members but these. */
static enum sheaf_status check_shares(struct options *o) {
    const int n = o->params.split ? sheaf__read_shares(o->params.split, NULL, 0) : 0;
    if (n > MAX_MEMBERS && (o->preset || o->n_members))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--split has %d numbers: at most %d", n,
                               (int)MAX_MEMBERS);
    if (n && o->preset && !o->n_members) o->members[o->n_members++] = n;
    for (int i = 0; n && i < o->n_members; i++)
        if (o->members[i] != n)
            return sheaf_set_error(
                SHEAF_STATUS_INVALID,
                "--split %.60s has %d number%s, but there %s %" PRId64 " member%s", o->params.split,
                n, n == 1 ? "" : "s", o->members[i] == 1 ? "is" : "are", o->members[i],
                o->members[i] == 1 ? "" : "s");
    return SHEAF_STATUS_SUCCESS;
}

/* A preset is of the tool's own list, and so are the types of its matrices. */
static enum sheaf_status check_names(const struct options *o) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    enum sheaf_status status = tool_check_devices(o->params.devices);
    if (!status) status = tool_check_split(o->params.split);
    if (!status && o->preset) status = sheaf__random_model_preset(o->preset, &p);
    if (!status && o->mix && !sheaf__mix_find(o->mix))
        status =
            sheaf_set_error(SHEAF_STATUS_INVALID, "--mix: there is no type or mix '%.40s'", o->mix);
    return status;
}

/* What looks at something else than a model's cut takes no options about that. */
static enum sheaf_status check_alone(const struct options *o) {
    const bool more = o->preset || o->params.split || o->split_sums || o->params.devices ||
                      o->n_members || o->tensors || o->links || o->plan || o->plan_options.dot ||
                      o->plan_options.link || o->n_ctx >= 0 || o->past >= 0 ||
                      !isnan(o->bandwidth) || !isnan(o->gflops);
    if (o->check && (more || o->postmortem))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--check looks at the hosts, and at the file of -m: leave out all "
                               "other options");
    if (o->postmortem && (more || o->params.path))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--postmortem reads dumps only: leave out all other options");
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status check_plan(struct options *o) {
    struct plan_options *p = &o->plan_options;
    const bool more = o->layer >= 0 || o->n_tokens >= 0 || p->explain;
    if (!isnan(o->bandwidth) && !(o->bandwidth > 0))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--bandwidth wants GB/s above 0, not '%g'",
                               (double)o->bandwidth);
    if (p->link && plan_costs_check_link(p->link)) return SHEAF_STATUS_INVALID;
    o->plan = o->plan || p->dot;
    p->layer = o->layer >= 0 ? o->layer : 0;
    p->n_tokens = o->n_tokens >= 0 ? o->n_tokens : 1;
    p->n_kv = (o->past >= 0 ? o->past : 255) + p->n_tokens;
    p->bandwidth = isnan(o->bandwidth) ? 0 : (double)o->bandwidth * 1e9;
    p->flops = isnan(o->gflops) ? 0 : (double)o->gflops * 1e9;
    p->kv_type = o->params.kv_type;
    p->hypothetical = o->n_members > 0;
    if (more && !o->plan)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--layer, --tokens and --explain want --plan");
    if (o->plan && !o->params.path && !o->preset)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--plan wants a model (-m)");
    if (o->n_members && o->params.devices)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--members and --devices cannot be used together");
    if (o->n_members && o->params.split && strcmp(o->params.split, "auto") == 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--split auto measures devices, and --members are none: give "
                               "shares");
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status info_options_parse(int argc, char **argv, struct options *o) {
    *o = (struct options){.params = sheaf_model_default_params(),
                          .bandwidth = NAN,
                          .gflops = NAN,
                          .n_batch = 512,
                          .n_ctx = -1,
                          .past = -1,
                          .n_tokens = -1,
                          .layer = -1};
    const enum sheaf_status status = options_parse(&info_tool, argc, argv, o);
    if (status || o->help || o->version) return status;
    if (o->settings && argc > 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--settings takes no other options");
    o->params.n_ctx = o->n_ctx < 0 ? 0 : o->n_ctx ? o->n_ctx : -1;
    enum sheaf_status checked = check_shares(o);
    if (o->preset && !o->n_members)
        for (int64_t n = 1; n <= 1024; n *= 2) o->members[o->n_members++] = n;
    if (!checked) checked = check_model(o);
    if (!checked) checked = check_names(o);
    if (!checked) checked = check_alone(o);
    if (!checked) checked = check_plan(o);
    if (!o->mix) o->mix = "Q4_K_M";
    return checked ? checked : tool_set_sums(o->split_sums);
}
