/* The command line of sheaf-run: names as llama.cpp has them where it has them. */
#include "options.h"

#include <stddef.h>
#include <string.h>

static const char synopsis[] =
    "usage: sheaf-run -m MODEL.gguf -p TEXT [options]\n"
    "       mpirun -np 4 sheaf-run -m MODEL.gguf -p TEXT [options]\n"
    "Generates text with a model that is spread over all devices of the job. Without -p and -f "
    "the\n"
    "prompt is read from the standard input; on a terminal that is a conversation.\n\n";

static const char notes[] =
    "Numbers may stand behind short options (-n64), values behind an = (--predict=64).\n"
    "Exit status: 0 done, 1 failed, 2 wrong command line, 130 interrupted.\n";

#define AT(field) offsetof(struct run_options, field)
#define HEAD(text)                                                                                 \
    { NULL, NULL, OPTION_HEAD, 0, 0, 0, 0, NULL, text, NULL }
static const struct option options[] = {
    HEAD("text"),
    {"--model", "-m", OPTION_TEXT, AT(model), 0, 0, 0, "FILE",
     "GGUF model (of split files: the first)", NULL},
    {"--prompt", "-p", OPTION_TEXT, AT(prompt), 0, 0, 0, "TEXT", "prompt", NULL},
    {"--file", "-f", OPTION_TEXT, AT(file), 0, 0, 0, "FILE",
     "prompt from a file without its last newline, - for standard input (read by rank 0)", NULL},
    {"--predict", "-n --n-predict", OPTION_INT, AT(n_predict), 0, -1, 1 << 24, "N",
     "tokens to generate, -1: until the end or a full context (128)", NULL},
    {"--chat", NULL, OPTION_OPTIONAL_TEXT, AT(system), AT(chat), 0, 0, "[SYSTEM]",
     "the prompt is a message of a chat: so it is anyway if the model has a chat template", NULL},
    {"--no-chat", "-no-cnv --no-conversation", OPTION_FLAG, AT(no_chat), 0, 0, 0, NULL,
     "the prompt is raw text, which the model continues", NULL},
    {"--conversation", "-cnv -i --interactive", OPTION_FLAG, AT(conversation), 0, 0, 0, NULL,
     "several turns: each line of the standard input is a message; a \\ at its end joins the next "
     "line; /clear forgets, /exit or the end of input ends",
     NULL},
    {"--system", "-sys --system-prompt", OPTION_TEXT, AT(system), 0, 0, 0, "TEXT",
     "the chat's system message instead of the model's own", NULL},
    {"--stop", "-r --reverse-prompt", OPTION_TEXTS, AT(stop), AT(n_stop), 0, 0, "TEXT",
     "end an answer before this text; may be given several times", NULL},
    {"--ignore-eos", NULL, OPTION_FLAG, AT(ignore_eos), 0, 0, 0, NULL,
     "go on after the end-of-text token", NULL},
    {"--embedding", "--embeddings", OPTION_FLAG, AT(embedding), 0, 0, 0, NULL,
     "print the text's embedding instead, by a model such as BERT", NULL},
    {"--pooling", NULL, OPTION_TEXT, AT(pooling), 0, 0, 0, "P",
     "mean, cls or last: of which tokens it is made (the model's own)", NULL},
    HEAD("sampling"),
    {"--temp", "--temperature", OPTION_REAL, AT(sampler.temperature), 0, 0, 1000, "T",
     "temperature, 0: always the best token (0.8)", NULL},
    {"--top-k", NULL, OPTION_INT32, AT(sampler.top_k), 0, 0, 1 << 24, "K", "0: off (40)", NULL},
    {"--top-p", NULL, OPTION_REAL, AT(sampler.top_p), 0, 0, 1, "P", "1: off (0.95)", NULL},
    {"--min-p", NULL, OPTION_REAL, AT(sampler.min_p), 0, 0, 1, "P", "0: off (0.05)", NULL},
    {"--seed", "-s", OPTION_SEED, AT(sampler.seed), AT(any_seed), 0, 0, "S",
     "-1: another each time (0: the same text each time)", NULL},
    HEAD("devices"),
    {"--split", "-ts --tensor-split", OPTION_TEXT, AT(split), 0, 0, 0, "S",
     "even, auto (by measured speed), or shares: 3,1 (even)", NULL},
    TOOL_SPLIT_SUMS(AT(split_sums)),
    {"--devices", "-dev --device", OPTION_TEXT, AT(devices), 0, 0, 0, "LIST",
     "all, or names as --list-devices prints them: CPU0@0,CPU0@1; CPU0 is that of every rank (all)",
     NULL},
    {"--list-devices", NULL, OPTION_FLAG, AT(list_devices), 0, 0, 0, NULL,
     "print the devices of the job and end", NULL},
    {"--threads", "-t", OPTION_INT, AT(threads), 0, 1, TOOL_MAX_THREADS, "N",
     "of each CPU device (SHEAF_CPU_THREADS, or its cores)", NULL},
    {"--experts", NULL, OPTION_CHOICE, AT(experts), 0, 0, 0, "E",
     "auto, columns, rows, whole: how experts are cut (auto)", "auto|columns|rows|whole"},
    {"--overlap", NULL, OPTION_CHOICE, AT(overlap), 0, 0, 0, "O",
     "auto, on, off: prompts in two chunks, of which one computes while the sums of the other "
     "travel (auto: where that should be faster)",
     "auto|on|off"},
    {"--wire", NULL, OPTION_CHOICE, AT(wire), 0, 0, 0, "TYPE",
     "f32, bf16, q8_0: how sums travel between hosts; bf16 and q8_0 lose precision "
     "(SHEAF_COMM_WIRE, or f32)",
     "f32|bf16|q8_0"},
    TOOL_SINGLE(AT(single)),
    TOOL_FAST(AT(fast)),
    HEAD("memory"),
    {"--ctx", "-c --ctx-size", OPTION_INT, AT(n_ctx), 0, 0, 1 << 24, "N",
     "tokens of context, 0: all that the model was trained on (the model's, at most 4096)", NULL},
    {"--batch", "-b --batch-size", OPTION_INT, AT(n_batch), 0, 1, 1 << 16, "N",
     "prompt tokens evaluated at once (512)", NULL},
    {"--kv-type", "-ctk --cache-type-k", OPTION_TYPE, AT(kv_type), 0, 0, 0, "TYPE",
     "f16, q8_0 or f32, of keys and values (f16)", "f16|q8_0|f32"},
    {"--cache-type-v", "-ctv", OPTION_TYPE, AT(v_type), 0, 0, 0, "TYPE", NULL, "f16|q8_0|f32"},
    HEAD("measuring"),
    {"--perplexity", NULL, OPTION_TEXT, AT(perplexity), 0, 0, 0, "FILE",
     "perplexity of a text, in windows of --ctx tokens, each on its own", NULL},
    {"--ppl-lines", NULL, OPTION_FLAG, AT(ppl_lines), 0, 0, 0, NULL, "encode each line separately",
     NULL},
    {"--ppl-tokens", NULL, OPTION_INT, AT(ppl_tokens), 0, 2, 1e15, "N",
     "use the first N tokens only", NULL},
    {"--logits", NULL, OPTION_TEXT, AT(logits), 0, 0, 0, "FILE",
     "write the logits that each token was chosen from: one row of raw little-endian f32 for the "
     "last prompt token (also with -n 0), then one for each generated token but the last",
     NULL},
    {"--trace", NULL, OPTION_TEXT, AT(trace), 0, 0, 0, "FILE",
     "what each rank did when, for chrome://tracing or ui.perfetto.dev", NULL},
    {"--check", NULL, OPTION_FLAG, AT(check), 0, 0, 0, NULL,
     "compare the results of all members after every evaluation", NULL},
    HEAD("output"),
    {"--ids", NULL, OPTION_FLAG, AT(ids), 0, 0, 0, NULL, "print token ids too", NULL},
    {"--json", NULL, OPTION_FLAG, AT(json), 0, 0, 0, NULL, "print one JSON object instead of text",
     NULL},
    {"--verbose", "-v", OPTION_FLAG, AT(verbose), 0, 0, 0, NULL, "say what happens at start-up",
     NULL},
    TOOL_HELP(AT(help)),
    TOOL_VERSION(AT(version)),
    {"--gpu-layers", "-ngl --n-gpu-layers", OPTION_IGNORED, 0, 0, 0, 0, "N",
     "all layers lie on the devices that --devices names", NULL},
    {"--split-mode", "-sm", OPTION_IGNORED, 0, 0, 0, 0, "MODE",
     "every layer is always divided, as by row", NULL},
    {"--ubatch-size", "-ub", OPTION_IGNORED, 0, 0, 0, 0, "N", "--batch is evaluated in one piece",
     NULL},
    {"--grammar", "--grammar-file --json-schema -j", OPTION_REFUSED, 0, 0, 0, 0, NULL,
     "answers are not constrained here; llama.cpp's own programs do it, and run on all ranks by "
     "sheaf-worker (docs/llamacpp.md)",
     NULL},
    {"--repeat-penalty",
     "--repeat-last-n --presence-penalty --frequency-penalty --dry-multiplier --xtc-probability "
     "--typical --typical-p --mirostat --top-n-sigma --dynatemp-range --samplers",
     OPTION_REFUSED, 0, 0, 0, 0, NULL,
     "tokens are chosen by --temp, --top-k, --top-p and --min-p here; llama.cpp's own programs "
     "have more, and run on all ranks by sheaf-worker (docs/llamacpp.md)",
     NULL},
    {"--parallel", "-np", OPTION_REFUSED, 0, 0, 0, 0, NULL,
     "one sequence only; llama-server on all ranks, by sheaf-worker, has slots (docs/llamacpp.md)",
     NULL},
    {"--lora", "-md --model-draft", OPTION_REFUSED, 0, 0, 0, 0, NULL,
     "one model, as its file is, and no draft", NULL},
};
#undef AT
#undef HEAD

const struct tool run_tool = {"sheaf-run", synopsis, notes, options,
                              sizeof options / sizeof *options};

static enum sheaf_status check_text(const struct run_options *o) {
    if (!o->model) return sheaf_set_error(SHEAF_STATUS_INVALID, "give a model with -m FILE");
    if (!!o->prompt + !!o->file + !!o->perplexity > 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "give one of -p TEXT, -f FILE and --perplexity FILE");
    if (o->perplexity && o->n_ctx == 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--perplexity predicts tokens from those before them in windows of "
                               "--ctx: give a --ctx of 2 or more, not 1");
    if (o->embedding && (o->perplexity || o->logits || o->chat))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--embedding writes no text: leave out "
                                                     "--perplexity, --logits, --chat");
    if (o->no_chat && (o->chat || *o->system || o->conversation))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--no-chat has no messages: leave out --chat, --system, -cnv");
    if (!o->perplexity && (o->ppl_tokens || o->ppl_lines))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--ppl-tokens and --ppl-lines want "
                                                     "--perplexity FILE");
    if (o->perplexity && (o->logits || o->ids))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--perplexity chooses no tokens: leave out --logits, --ids");
    if (o->conversation &&
        (o->perplexity || o->embedding || o->json || o->ids || o->logits || o->file))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "-cnv has many answers: leave out --perplexity, --embedding, "
                               "--json, --ids, --logits, -f");
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status check(const struct run_options *o) {
    if (o->pooling && (!o->embedding || (strcmp(o->pooling, "mean") && strcmp(o->pooling, "cls") &&
                                         strcmp(o->pooling, "last"))))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--pooling is mean, cls or last, and wants --embedding, not '%.60s'",
                               o->pooling);
    if (o->v_type != SHEAF_TYPE_COUNT && o->v_type != o->kv_type)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "-ctk and -ctv: keys and values have one type here");
    if (o->single && (o->devices || o->split || o->split_sums || o->check || o->overlap))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--single has no members: leave out --split, "
                                                     "--split-sums, --devices, --check, --overlap");
    for (int i = 0; i < o->n_stop; i++)
        if (!*o->stop[i])
            return sheaf_set_error(SHEAF_STATUS_INVALID, "--stop wants a text that is not empty");
    const enum sheaf_status status = tool_check_devices(o->devices);
    return status ? status : tool_check_split(o->split);
}

enum sheaf_status run_options_parse(int argc, char **argv, struct run_options *out) {
    *out = (struct run_options){.n_predict = 128,
                                .n_ctx = RUN_CTX_DEFAULT,
                                .kv_type = SHEAF_TYPE_F16,
                                .v_type = SHEAF_TYPE_COUNT,
                                .system = "",
                                .sampler = sheaf_sampler_default_params()};
    enum sheaf_status status = options_parse(&run_tool, argc, argv, out);
    if (status || out->help || out->version) return status;
    if (!out->list_devices) status = check_text(out);
    if (!status) status = check(out);
    if (!status) status = tool_set_sums(out->split_sums);
    return status ? status : tool_set_cpus(out->threads, out->fast);
}
