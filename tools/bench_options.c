/* The command line of sheaf-bench: one table of options, names as llama-bench has them where it
 * has them. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
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
    "      --sequence S       never, always, cheaper (never)\n"
    "      --single           the first device alone, without the meta device (one rank)\n"
    "      --kv-type TYPE     f16, q8_0 or f32 (f16)\n"
    "      --no-warmup        time the first run too\n"
    "  -h, --help             this text\n"
    "      --version          version of the library\n"
    "\n"
    "Columns: compute, comm and wait are shares of the time (wait is a part of comm); us/coll is\n"
    "the mean time in a collective, skew how long a rank waits in it for the slowest one; bound "
    "is\n"
    "the speed at which reading the weights and the cache at the measured bandwidth and the\n"
    "measured cost of the collectives would be all.\n";

enum kind { FLAG, TEXT, INT, LIST, TYPE, FORMAT };

struct option {
    const char *name, *alias;
    enum kind kind;
    size_t offset; /* of the value in struct bench_options */
    size_t count;  /* LIST: of its number of entries */
    int64_t min, max;
};

#define AT(field) offsetof(struct bench_options, field)
enum { MOST_TOKENS = 1 << 20 };
static const struct option options[] = {
    {"--model", "-m", TEXT, AT(model), 0, 0, 0},
    {"--n-prompt", "-p", LIST, AT(n_prompt), AT(n_prompts), 0, MOST_TOKENS},
    {"--n-gen", "-n", LIST, AT(n_gen), AT(n_gens), 0, MOST_TOKENS},
    {"--n-depth", "-d", LIST, AT(depth), AT(n_depths), 0, MOST_TOKENS},
    {"--repetitions", "-r", INT, AT(repeats), 0, 1, BENCH_MAX_REPEATS},
    {"--threads", "-t", INT, AT(threads), 0, 1, 4096},
    {"--batch", "-b", INT, AT(n_batch), 0, 1, 1 << 16},
    {"--output", "-o", FORMAT, AT(format), 0, 0, 0},
    {"--split", NULL, TEXT, AT(split), 0, 0, 0},
    {"--devices", NULL, TEXT, AT(devices), 0, 0, 0},
    {"--sequence", NULL, TEXT, AT(sequence), 0, 0, 0},
    {"--single", NULL, FLAG, AT(single), 0, 0, 0},
    {"--kv-type", NULL, TYPE, AT(kv_type), 0, 0, 0},
    {"--no-warmup", NULL, FLAG, AT(no_warmup), 0, 0, 0},
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

/* Whole numbers with commas between them, at most `most`. Returns how many, 0 if there is anything
 * else. */
static int parse_numbers(const struct option *o, const char *text, int most, int64_t *out) {
    for (int n = 0; n < most; n++) {
        char *end;
        errno = 0;
        const long long v = strtoll(text, &end, 10);
        if (errno || end == text || v < o->min || v > o->max) return 0;
        out[n] = v;
        if (!*end) return n + 1;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

static enum sheaf_status set_value(const struct option *o, const char *text,
                                   struct bench_options *out) {
    static const char *const formats[] = {
        [BENCH_MD] = "md", [BENCH_CSV] = "csv", [BENCH_JSON] = "json"};
    void *field = (char *)out + o->offset;
    switch (o->kind) {
    case INT:
        if (parse_numbers(o, text, 1, field)) return SHEAF_STATUS_SUCCESS;
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s wants a whole number from %lld to %lld, not '%.60s'", o->name,
                               (long long)o->min, (long long)o->max, text);
    case LIST:
        *(int *)((char *)out + o->count) = parse_numbers(o, text, BENCH_MAX_LIST, field);
        if (*(int *)((char *)out + o->count)) return SHEAF_STATUS_SUCCESS;
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s wants at most %d whole numbers from %lld to %lld with commas "
                               "between them, not '%.60s'",
                               o->name, BENCH_MAX_LIST, (long long)o->min, (long long)o->max, text);
    case TYPE: {
        const enum sheaf_type type = sheaf_type_from_name(text);
        if (type != SHEAF_TYPE_F16 && type != SHEAF_TYPE_F32 && type != SHEAF_TYPE_Q8_0)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "%s is f16, q8_0 or f32, not '%.60s'",
                                   o->name, text);
        *(enum sheaf_type *)field = type;
        return SHEAF_STATUS_SUCCESS;
    }
    case FORMAT:
        for (int i = 0; i < 3; i++) {
            if (strcmp(text, formats[i]) != 0) continue;
            *(enum bench_format *)field = (enum bench_format)i;
            return SHEAF_STATUS_SUCCESS;
        }
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s is md, csv or json, not '%.60s'", o->name,
                               text);
    case TEXT:
    case FLAG:
    default:
        *(const char **)field = text;
        return SHEAF_STATUS_SUCCESS;
    }
}

static enum sheaf_status check(const struct bench_options *o) {
    bool any = false;
    if (o->help || o->version) return SHEAF_STATUS_SUCCESS;
    if (!o->model) return sheaf_set_error(SHEAF_STATUS_INVALID, "give a model with -m FILE");
    for (int i = 0; i < o->n_prompts; i++) any = any || o->n_prompt[i];
    for (int i = 0; i < o->n_gens; i++) any = any || o->n_gen[i];
    if (!any)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "nothing to measure: -p and -n are both 0");
    if (o->single && (o->devices || o->split || o->sequence))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--single has no members: leave out --split, --devices, --sequence");
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
                                  .kv_type = SHEAF_TYPE_F16};
    for (int i = 1; i < argc; i++) {
        const struct option *o = find(argv[i]);
        if (!o)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "unknown option '%.60s' (see --help)",
                                   argv[i]);
        if (o->kind == FLAG) {
            *(bool *)((char *)out + o->offset) = true;
            continue;
        }
        if (i + 1 == argc)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "a value is missing after %s", argv[i]);
        enum sheaf_status status = set_value(o, argv[++i], out);
        if (status) return status;
    }
    return check(out);
}
