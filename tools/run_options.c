/* Parses the command line of sheaf-run: one table of options. Every value is checked here, so that
 * the rest never sees a number out of range. */
#include "run_options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const char run_usage[] =
    "usage: sheaf-run -m MODEL.gguf -p TEXT [options]\n"
    "       mpirun -np 4 sheaf-run -m MODEL.gguf -p TEXT [options]\n"
    "Generates text with a model that is spread over all devices of the job.\n"
    "\n"
    "text\n"
    "  -m, --model FILE       GGUF model (of split files: the first)\n"
    "  -p, --prompt TEXT      prompt\n"
    "  -f FILE                prompt from a file (read by rank 0)\n"
    "  -n N                   tokens to generate, -1: until the end or a full context (128)\n"
    "      --chat [SYSTEM]    the prompt is a message of a chat; SYSTEM replaces the model's own\n"
    "                         system message\n"
    "      --ignore-eos       go on after the end-of-text token\n"
    "sampling\n"
    "      --temp T           temperature, 0: always the best token (0.8)\n"
    "      --top-k K          0: off (40)          --top-p P  1: off (0.95)\n"
    "      --min-p P          0: off (0.05)        --seed S   (0)\n"
    "devices\n"
    "      --split S          even, auto (by measured speed), or shares: 3,1 (even)\n"
    "      --devices LIST     all, or names as sheaf-info prints them: CPU0@0,CPU0@1 (all)\n"
    "      --sequence S       never, always, cheaper: for long prompts, sums scattered over the\n"
    "                         tokens (never)\n"
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

enum kind { FLAG, TEXT, OPTIONAL_TEXT, INT, UINT, REAL, TYPE };

struct option {
    const char *name, *alias;
    enum kind kind;
    size_t offset;   /* of the value in struct run_options */
    size_t flag;     /* OPTIONAL_TEXT: of the bool to set */
    double min, max; /* INT, REAL */
};

#define AT(field) offsetof(struct run_options, field)
static const struct option options[] = {
    {"--model", "-m", TEXT, AT(model), 0, 0, 0},
    {"--prompt", "-p", TEXT, AT(prompt), 0, 0, 0},
    {"--file", "-f", TEXT, AT(file), 0, 0, 0},
    {"--predict", "-n", INT, AT(n_predict), 0, -1, 1 << 24},
    {"--chat", NULL, OPTIONAL_TEXT, AT(system), AT(chat), 0, 0},
    {"--ignore-eos", NULL, FLAG, AT(ignore_eos), 0, 0, 0},
    {"--temp", NULL, REAL, AT(sampler.temperature), 0, 0, 1000},
    {"--top-k", NULL, INT, AT(sampler.top_k), 0, 0, 1 << 24},
    {"--top-p", NULL, REAL, AT(sampler.top_p), 0, 0, 1},
    {"--min-p", NULL, REAL, AT(sampler.min_p), 0, 0, 1},
    {"--seed", NULL, UINT, AT(sampler.seed), 0, 0, 0},
    {"--split", NULL, TEXT, AT(split), 0, 0, 0},
    {"--devices", NULL, TEXT, AT(devices), 0, 0, 0},
    {"--sequence", NULL, TEXT, AT(sequence), 0, 0, 0},
    {"--wire", NULL, TEXT, AT(wire), 0, 0, 0},
    {"--single", NULL, FLAG, AT(single), 0, 0, 0},
    {"--ctx", "-c", INT, AT(n_ctx), 0, 1, 1 << 24},
    {"--batch", "-b", INT, AT(n_batch), 0, 1, 1 << 16},
    {"--kv-type", NULL, TYPE, AT(kv_type), 0, 0, 0},
    {"--perplexity", NULL, TEXT, AT(perplexity), 0, 0, 0},
    {"--ppl-lines", NULL, FLAG, AT(ppl_lines), 0, 0, 0},
    {"--ppl-tokens", NULL, INT, AT(ppl_tokens), 0, 2, 1e15},
    {"--logits", NULL, TEXT, AT(logits), 0, 0, 0},
    {"--trace", NULL, TEXT, AT(trace), 0, 0, 0},
    {"--check", NULL, FLAG, AT(check), 0, 0, 0},
    {"--ids", NULL, FLAG, AT(ids), 0, 0, 0},
    {"--json", NULL, FLAG, AT(json), 0, 0, 0},
    {"--verbose", "-v", FLAG, AT(verbose), 0, 0, 0},
    {"--help", "-h", FLAG, AT(help), 0, 0, 0},
    {"--version", NULL, FLAG, AT(version), 0, 0, 0},
};

static const struct option *find(const char *arg) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (strcmp(arg, options[i].name) == 0 ||
            (options[i].alias && strcmp(arg, options[i].alias) == 0))
            return &options[i];
    }
    return NULL;
}

static enum sheaf_status set_int(const struct option *o, const char *text, void *field) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || (double)v < o->min || (double)v > o->max)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s wants a whole number from %.0f to %.0f, not '%.60s'", o->name,
                               o->min, o->max, text);
    if (o->offset == AT(sampler.top_k))
        *(int32_t *)field = (int32_t)v;
    else
        *(int64_t *)field = v;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status set_value(const struct option *o, const char *text, void *field) {
    char *end;
    double d;
    errno = 0;
    switch (o->kind) {
    case INT:
        return set_int(o, text, field);
    case UINT:
        *(uint64_t *)field = strtoull(text, &end, 10);
        if (errno || end == text || *end || *text == '-')
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s wants a whole number >= 0, not '%.60s'", o->name, text);
        return SHEAF_STATUS_SUCCESS;
    case REAL:
        d = strtod(text, &end);
        if (end == text || *end || !(d >= o->min && d <= o->max))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s wants a number from %g to %g, not '%.60s'", o->name, o->min,
                                   o->max, text);
        *(float *)field = (float)d;
        return SHEAF_STATUS_SUCCESS;
    case TYPE: {
        enum sheaf_type type = sheaf_type_from_name(text);
        if (type != SHEAF_TYPE_F16 && type != SHEAF_TYPE_F32 && type != SHEAF_TYPE_Q8_0)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "%s is f16, q8_0 or f32, not '%.60s'",
                                   o->name, text);
        *(enum sheaf_type *)field = type;
        return SHEAF_STATUS_SUCCESS;
    }
    default:
        *(const char **)field = text;
        return SHEAF_STATUS_SUCCESS;
    }
}

static enum sheaf_status check(const struct run_options *o) {
    if (o->help || o->version) return SHEAF_STATUS_SUCCESS;
    if (!o->model) return sheaf_set_error(SHEAF_STATUS_INVALID, "give a model with -m FILE");
    if (!o->prompt + !o->file + !o->perplexity != 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "give one of -p TEXT, -f FILE and --perplexity FILE");
    if (o->wire && strcmp(o->wire, "f32") && strcmp(o->wire, "bf16") && strcmp(o->wire, "q8_0"))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--wire is f32, bf16 or q8_0, not '%.60s'",
                               o->wire);
    if (o->single && (o->devices || o->split || o->check || o->sequence))
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "--single has no members: leave out --split, --devices, --check, --sequence");
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status run_options_parse(int argc, char **argv, struct run_options *out) {
    *out = (struct run_options){.n_predict = 128,
                                .kv_type = SHEAF_TYPE_F16,
                                .system = "",
                                .sampler = sheaf_sampler_default_params()};
    for (int i = 1; i < argc; i++) {
        const struct option *o = find(argv[i]);
        if (!o)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "unknown option '%.60s' (see --help)",
                                   argv[i]);
        void *field = (char *)out + o->offset;
        if (o->kind == FLAG) {
            *(bool *)field = true;
            continue;
        }
        if (o->kind == OPTIONAL_TEXT) {
            *(bool *)((char *)out + o->flag) = true;
            if (i + 1 < argc && argv[i + 1][0] != '-') *(const char **)field = argv[++i];
            continue;
        }
        if (i + 1 == argc)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "a value is missing after %s", argv[i]);
        enum sheaf_status status = set_value(o, argv[++i], field);
        if (status) return status;
    }
    return check(out);
}
