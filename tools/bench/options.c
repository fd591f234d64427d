/* The command line of sheaf-bench: one table of options, names as llama-bench has them where it
 * has them. */
#include <stddef.h>
#include <string.h>

#include "bench.h"

static const char synopsis[] =
    "usage: sheaf-bench -m MODEL.gguf [options]\n"
    "       mpirun -np 4 sheaf-bench -m MODEL.gguf [options]\n"
    "Measures prompt processing (pp) and generation (tg) as llama-bench does, and says where the\n"
    "time goes: computing, collectives, waiting; beside the bound that memory and links set.\n"
    "Rows appear as the tests end.\n\n";

static const char notes[] =
    "Columns: compute, comm and wait are shares of the time (wait is a part of comm); hidden is\n"
    "the share of the collectives' time that went by beside computing (--overlap); us/coll is\n"
    "the mean time in a collective, skew how long a rank waits in it for the slowest one; bound "
    "is\n"
    "the speed at which reading the weights and the cache at the bandwidth (measured, or given "
    "with\n"
    "--bandwidth) and the measured cost of the collectives would be all.\n";

#define AT(field) offsetof(struct bench_options, field)
enum { MOST_TOKENS = 1 << 20 };
static const struct option options[] = {
    {"--model", "-m", OPTION_TEXTS, AT(models), AT(n_models), 0, 0, "FILE",
     "GGUF model (of split files: the first)", NULL},
    {"--n-prompt", "-p", OPTION_LIST, AT(n_prompt), AT(n_prompts), 0, MOST_TOKENS, "N,..",
     "tokens of a prompt, 0: no such test (512)", NULL},
    {"--n-gen", "-n", OPTION_LIST, AT(n_gen), AT(n_gens), 0, MOST_TOKENS, "N,..",
     "tokens to generate, greedily, 0: no such test (128)", NULL},
    {"--n-depth", "-d", OPTION_LIST, AT(depth), AT(n_depths), 0, MOST_TOKENS, "N,..",
     "tokens in the cache before each (0)", NULL},
    {"--sequences", "-npl", OPTION_LIST, AT(sequences), AT(n_sequences), 1,
     SHEAF_MODEL_MAX_SEQUENCES, "N,..",
     "sequences that generate together; speeds are of all tokens (1)", NULL},
    {"--repetitions", "-r", OPTION_INT, AT(repeats), 0, 1, BENCH_MAX_REPEATS, "N",
     "timed repeats of each test, 1 to 1000 (5)", NULL},
    {"--threads", "-t", OPTION_INT, AT(threads), 0, 1, TOOL_MAX_THREADS, "N",
     "of each device (its cores)", NULL},
    {"--batch", "-b --batch-size", OPTION_INT, AT(n_batch), 0, 1, 1 << 16, "N",
     "prompt tokens evaluated at once (512)", NULL},
    {"--output", "-o", OPTION_TEXT, AT(output), 0, 0, 0, "FORMAT", "md, csv or json (md)", NULL},
    {"--split", "-ts --tensor-split", OPTION_TEXT, AT(split), 0, 0, 0, "S",
     "even, auto, or shares: 3,1 (even)", NULL},
    TOOL_SPLIT_SUMS(AT(split_sums)),
    {"--devices", "-dev --device", OPTION_TEXT, AT(devices), 0, 0, 0, "LIST",
     "as sheaf-info prints them: CPU0@0,CPU0@1 (all)", NULL},
    {"--overlap", NULL, OPTION_CHOICE, AT(overlap), 0, 0, 0, "O",
     "auto, on, off: two chunks of a prompt, computing while sums travel (auto: where measured "
     "links and products promise a gain)",
     "auto|on|off"},
    TOOL_SINGLE(AT(single)),
    TOOL_FAST(AT(fast)),
    {"--bandwidth", NULL, OPTION_REAL, AT(bandwidth), 0, 1e-3, 1e6, "G",
     "GB/s that each rank reads with, for the bound (measured)", NULL},
    {"--kv-type", "-ctk --cache-type-k", OPTION_TYPE, AT(kv_type), 0, 0, 0, "TYPE",
     "f16, q8_0 or f32 (f16)", "f16|q8_0|f32"},
    {"--no-warmup", NULL, OPTION_FLAG, AT(no_warmup), 0, 0, 0, NULL, "time the first run too",
     NULL},
    TOOL_HELP(AT(help)),
    TOOL_VERSION(AT(version)),
    {"--n-gpu-layers", "-ngl", OPTION_IGNORED, 0, 0, 0, 0, "N",
     "all layers lie on the devices that --devices names", NULL},
};
#undef AT

const struct tool bench_tool = {"sheaf-bench", synopsis, notes, options,
                                sizeof options / sizeof *options};

static enum sheaf_status set_format(struct bench_options *o) {
    static const char *const formats[] = {
        [BENCH_MD] = "md", [BENCH_CSV] = "csv", [BENCH_JSON] = "json"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(o->output, formats[i]) != 0) continue;
        o->format = (enum bench_format)i;
        return SHEAF_STATUS_SUCCESS;
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID, "--output is md, csv or json, not '%.60s'",
                           o->output);
}

static enum sheaf_status check(const struct bench_options *o) {
    bool any = false;
    if (!o->n_models) return sheaf_set_error(SHEAF_STATUS_INVALID, "give a model with -m FILE");
    if (o->n_models > 1) return sheaf_set_error(SHEAF_STATUS_INVALID, "-m: one model a run");
    for (int i = 0; i < o->n_prompts; i++) any = any || o->n_prompt[i];
    for (int i = 0; i < o->n_gens; i++) any = any || o->n_gen[i];
    if (!any)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "nothing to measure: -p and -n are both 0");
    for (int i = 0; i < o->n_sequences; i++)
        if (o->sequences[i] > o->n_batch)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "-npl %lld: a token of each sequence is a batch: give a --batch "
                                   "of as many, not %lld",
                                   (long long)o->sequences[i], (long long)o->n_batch);
    if (o->single && (o->devices || o->split || o->split_sums || o->overlap))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--single has no members: leave out --split, "
                                                     "--split-sums, --devices, --overlap");
    const enum sheaf_status status = tool_check_devices(o->devices);
    return status ? status : tool_check_split(o->split);
}

enum sheaf_status bench_options_parse(int argc, char **argv, struct bench_options *out) {
    *out = (struct bench_options){.n_prompt = {512},
                                  .n_gen = {128},
                                  .n_prompts = 1,
                                  .n_gens = 1,
                                  .n_depths = 1,
                                  .sequences = {1},
                                  .n_sequences = 1,
                                  .repeats = 5,
                                  .n_batch = 512,
                                  .output = "md",
                                  .kv_type = SHEAF_TYPE_F16};
    enum sheaf_status status = options_parse(&bench_tool, argc, argv, out);
    if (status || out->help || out->version) return status;
    status = set_format(out);
    if (!status) status = check(out);
    if (!status) status = tool_set_sums(out->split_sums);
    return status ? status : tool_set_cpus(out->threads, out->fast);
}
