/* The command line of sheaf-run. */
#include "options.h"

#include <stddef.h>
#include <string.h>

#include "common/options.h"

const char run_usage[] =
    "usage: sheaf-run -m MODEL.gguf -p TEXT [options]\n"
    "       mpirun -np 4 sheaf-run -m MODEL.gguf -p TEXT [options]\n"
    "Generates text with a model that is spread over all devices of the job.\n"
    "\n"
    "text\n"
    "  -m, --model FILE       GGUF model (of split files: the first)\n"
    "  -p, --prompt TEXT      prompt\n"
    "  -f FILE                prompt from a file, - for standard input (read by rank 0)\n"
    "  -n N                   tokens to generate, -1: until the end or a full context (128)\n"
    "      --chat [SYSTEM]    the prompt is a message of a chat; SYSTEM replaces the model's own\n"
    "                         system message\n"
    "      --ignore-eos       go on after the end-of-text token\n"
    "      --embedding        print the text's embedding instead, by a model such as BERT\n"
    "      --pooling P        mean, cls or last: of which tokens it is made (the model's own)\n"
    "sampling\n"
    "      --temp T           temperature, 0: always the best token (0.8)\n"
    "      --top-k K          0: off (40)          --top-p P  1: off (0.95)\n"
    "      --min-p P          0: off (0.05)        --seed S   (0)\n"
    "devices\n"
    "      --split S          even, auto (by measured speed), or shares: 3,1 (even)\n"
    "      --devices LIST     all, or names as sheaf-info prints them: CPU0@0,CPU0@1 (all)\n"
    "      --experts E        auto, columns, rows, whole: how experts are cut (auto)\n"
    "      --overlap O        auto, on, off: prompts in two chunks, of which one computes while\n"
    "                         the sums of the other travel (auto: where that should be faster)\n"
    "      --wire TYPE        f32, bf16, q8_0: how sums travel between hosts; the short ones "
    "round\n"
    "                         (SHEAF_COMM_WIRE, or f32)\n"
    "      --single           the first device alone, without the meta device (one rank)\n"
    "memory\n"
    "  -c, --ctx N            tokens of context (the model's, at most 4096)\n"
    "  -b, --batch N          prompt tokens evaluated at once (512)\n"
    "      --kv-type TYPE     f16, q8_0 or f32 (f16)\n"
    "measuring\n"
    "      --perplexity FILE  perplexity of a text, in windows of --ctx tokens, each on its own\n"
    "      --ppl-lines        encode each line separately\n"
    "      --ppl-tokens N     use the first N tokens only\n"
    "      --logits FILE      write the logits that each token was chosen from: one row of raw\n"
    "                         little-endian f32 for the last prompt token (also with -n 0), then\n"
    "                         one for each generated token but the last\n"
    "      --trace FILE       what each rank did when, for chrome://tracing or ui.perfetto.dev\n"
    "      --check            compare the results of all members after every evaluation\n"
    "output\n"
    "      --ids              print token ids too\n"
    "      --json             print one JSON object instead of text\n"
    "      --verbose          say what happens at start-up\n"
    "  -h, --help             this text\n"
    "      --version          version of the library\n";

#define AT(field) offsetof(struct run_options, field)
static const struct option options[] = {
    {"--model", "-m", OPTION_TEXT, AT(model), 0, 0, 0},
    {"--prompt", "-p", OPTION_TEXT, AT(prompt), 0, 0, 0},
    {"--file", "-f", OPTION_TEXT, AT(file), 0, 0, 0},
    {"--predict", "-n", OPTION_INT, AT(n_predict), 0, -1, 1 << 24},
    {"--n-predict", NULL, OPTION_INT, AT(n_predict), 0, -1, 1 << 24}, /* as llama.cpp calls it */
    {"--chat", NULL, OPTION_OPTIONAL_TEXT, AT(system), AT(chat), 0, 0},
    {"--embedding", NULL, OPTION_FLAG, AT(embedding), 0, 0, 0},
    {"--pooling", NULL, OPTION_TEXT, AT(pooling), 0, 0, 0},
    {"--ignore-eos", NULL, OPTION_FLAG, AT(ignore_eos), 0, 0, 0},
    {"--temp", NULL, OPTION_REAL, AT(sampler.temperature), 0, 0, 1000},
    {"--top-k", NULL, OPTION_INT32, AT(sampler.top_k), 0, 0, 1 << 24},
    {"--top-p", NULL, OPTION_REAL, AT(sampler.top_p), 0, 0, 1},
    {"--min-p", NULL, OPTION_REAL, AT(sampler.min_p), 0, 0, 1},
    {"--seed", NULL, OPTION_UINT, AT(sampler.seed), 0, 0, 0},
    {"--split", NULL, OPTION_TEXT, AT(split), 0, 0, 0},
    {"--devices", NULL, OPTION_TEXT, AT(devices), 0, 0, 0},
    {"--overlap", NULL, OPTION_TEXT, AT(overlap), 0, 0, 0},
    {"--experts", NULL, OPTION_TEXT, AT(experts), 0, 0, 0},
    {"--wire", NULL, OPTION_TEXT, AT(wire), 0, 0, 0},
    {"--single", NULL, OPTION_FLAG, AT(single), 0, 0, 0},
    {"--ctx", "-c", OPTION_INT, AT(n_ctx), 0, 1, 1 << 24},
    {"--batch", "-b", OPTION_INT, AT(n_batch), 0, 1, 1 << 16},
    {"--kv-type", NULL, OPTION_KV_TYPE, AT(kv_type), 0, 0, 0},
    {"--perplexity", NULL, OPTION_TEXT, AT(perplexity), 0, 0, 0},
    {"--ppl-lines", NULL, OPTION_FLAG, AT(ppl_lines), 0, 0, 0},
    {"--ppl-tokens", NULL, OPTION_INT, AT(ppl_tokens), 0, 2, 1e15},
    {"--logits", NULL, OPTION_TEXT, AT(logits), 0, 0, 0},
    {"--trace", NULL, OPTION_TEXT, AT(trace), 0, 0, 0},
    {"--check", NULL, OPTION_FLAG, AT(check), 0, 0, 0},
    {"--ids", NULL, OPTION_FLAG, AT(ids), 0, 0, 0},
    {"--json", NULL, OPTION_FLAG, AT(json), 0, 0, 0},
    {"--verbose", "-v", OPTION_FLAG, AT(verbose), 0, 0, 0},
    {"--help", "-h", OPTION_FLAG, AT(help), 0, 0, 0},
    {"--version", NULL, OPTION_FLAG, AT(version), 0, 0, 0},
};

static enum sheaf_status check(const struct run_options *o) {
    if (o->help || o->version) return SHEAF_STATUS_SUCCESS;
    if (!o->model) return sheaf_set_error(SHEAF_STATUS_INVALID, "give a model with -m FILE");
    if (!o->prompt + !o->file + !o->perplexity != 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "give one of -p TEXT, -f FILE and --perplexity FILE");
    if (o->wire && strcmp(o->wire, "f32") && strcmp(o->wire, "bf16") && strcmp(o->wire, "q8_0"))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--wire is f32, bf16 or q8_0, not '%.60s'",
                               o->wire);
    if (o->embedding && (o->perplexity || o->logits || o->chat))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--embedding writes no text: leave out "
                                                     "--perplexity, --logits, --chat");
    if (o->pooling && (!o->embedding || (strcmp(o->pooling, "mean") && strcmp(o->pooling, "cls") &&
                                         strcmp(o->pooling, "last"))))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--pooling is mean, cls or last, and wants --embedding, not '%.60s'",
                               o->pooling);
    if (o->single && (o->devices || o->split || o->check || o->overlap))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--single has no members: leave out --split, "
                                                     "--devices, --check, --overlap");
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status run_options_parse(int argc, char **argv, struct run_options *out) {
    *out = (struct run_options){.n_predict = 128,
                                .kv_type = SHEAF_TYPE_F16,
                                .system = "",
                                .sampler = sheaf_sampler_default_params()};
    const enum sheaf_status status =
        options_parse(options, sizeof options / sizeof *options, argc, argv, out);
    return status ? status : check(out);
}
