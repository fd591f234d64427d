/* The command line of sheaf-bench: one table of options, names as llama-bench has them where it
 * has them. */
#include <stddef.h>
#include <string.h>

#include "bench.h"

const char bench_usage[] =
    "usage: sheaf-bench -m MODEL.gguf [options]\n"
    "       mpirun -np 4 sheaf-bench -m MODEL.gguf [options]\n"
    "Measures prompt processing (pp) and generation (tg) as llama-bench does, and says where the\n"
    "time goes: computing, collectives, waiting; beside the bound that memory and links set.\n"
    "\n"
    "  -m, --model FILE       GGUF model (of split files: the first)\n"
    "  -p, --n-prompt N,..    tokens of a prompt, 0: no such test (512)\n"
    "  -n, --n-gen N,..       tokens to generate, greedily, 0: no such test (128)\n"
    "  -d, --n-depth N,..     tokens in the cache before each (0)\n"
    "  -r, --repetitions N    timed repeats of each test, 1 to 1000 (5)\n"
    "  -t, --threads N        of each device (its cores)\n"
    "  -b, --batch N          prompt tokens evaluated at once (512)\n"
    "  -o, --output FORMAT    md, csv or json (md)\n"
    "      --split S          even, auto, or shares: 3,1 (even)\n"
    "      --devices LIST     as sheaf-info prints them: CPU0@0,CPU0@1 (all)\n"
    "      --overlap O        auto, on, off: two chunks of a prompt, computing while sums travel\n"
    "                         (auto: where measured links and products promise a gain)\n"
    "      --single           the first device alone, without the meta device (one rank)\n"
    "      --kv-type TYPE     f16, q8_0 or f32 (f16)\n"
    "      --no-warmup        time the first run too\n"
    "  -h, --help             this text\n"
    "      --version          version of the library\n"
    "\n"
    "Columns: compute, comm and wait are shares of the time (wait is a part of comm); hidden is\n"
    "the share of the collectives' time that went by beside computing (--overlap); us/coll is\n"
    "the mean time in a collective, skew how long a rank waits in it for the slowest one; bound "
    "is\n"
    "the speed at which reading the weights and the cache at the measured bandwidth and the\n"
    "measured cost of the collectives would be all.\n";

#define AT(field) offsetof(struct bench_options, field)
enum { MOST_TOKENS = 1 << 20 };
static const struct option options[] = {
    {"--model", "-m", OPTION_TEXT, AT(model), 0, 0, 0},
    {"--n-prompt", "-p", OPTION_LIST, AT(n_prompt), AT(n_prompts), 0, MOST_TOKENS},
    {"--n-gen", "-n", OPTION_LIST, AT(n_gen), AT(n_gens), 0, MOST_TOKENS},
    {"--n-depth", "-d", OPTION_LIST, AT(depth), AT(n_depths), 0, MOST_TOKENS},
    {"--repetitions", "-r", OPTION_INT, AT(repeats), 0, 1, BENCH_MAX_REPEATS},
    {"--threads", "-t", OPTION_INT, AT(threads), 0, 1, 4096},
    {"--batch", "-b", OPTION_INT, AT(n_batch), 0, 1, 1 << 16},
    {"--output", "-o", OPTION_TEXT, AT(output), 0, 0, 0},
    {"--split", NULL, OPTION_TEXT, AT(split), 0, 0, 0},
    {"--devices", NULL, OPTION_TEXT, AT(devices), 0, 0, 0},
    {"--overlap", NULL, OPTION_TEXT, AT(overlap), 0, 0, 0},
    {"--single", NULL, OPTION_FLAG, AT(single), 0, 0, 0},
    {"--kv-type", NULL, OPTION_KV_TYPE, AT(kv_type), 0, 0, 0},
    {"--no-warmup", NULL, OPTION_FLAG, AT(no_warmup), 0, 0, 0},
    {"--help", "-h", OPTION_FLAG, AT(help), 0, 0, 0},
    {"--version", NULL, OPTION_FLAG, AT(version), 0, 0, 0},
};

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
    if (o->help || o->version) return SHEAF_STATUS_SUCCESS;
    if (!o->model) return sheaf_set_error(SHEAF_STATUS_INVALID, "give a model with -m FILE");
    for (int i = 0; i < o->n_prompts; i++) any = any || o->n_prompt[i];
    for (int i = 0; i < o->n_gens; i++) any = any || o->n_gen[i];
    if (!any)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "nothing to measure: -p and -n are both 0");
    if (o->single && (o->devices || o->split || o->overlap))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--single has no members: leave out --split, --devices, --overlap");
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status bench_options_parse(int argc, char **argv, struct bench_options *out) {
    *out = (struct bench_options){.n_prompt = {512},
                                  .n_gen = {128},
                                  .n_prompts = 1,
                                  .n_gens = 1,
                                  .n_depths = 1,
                                  .repeats = 5,
                                  .n_batch = 512,
                                  .output = "md",
                                  .kv_type = SHEAF_TYPE_F16};
    enum sheaf_status status =
        options_parse(options, sizeof options / sizeof *options, argc, argv, out);
    if (!status) status = set_format(out);
    return status ? status : check(out);
}
