/* sheaf-make-model: writes a model with random weights, for tests, experiments with odd shapes, and
 * measuring. The work is in src/model/random_model.c. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "sheaf/sheaf.h"

#include "common/interrupt.h"
#include "common/output.h"
#include "common/tool.h"
#include "model/random_model.h"

struct make_options {
    struct sheaf__random_model_params p;
    const char *path, *preset;
    bool help, version;
};

static const char synopsis[] =
    "usage: sheaf-make-model -o FILE [options]\n"
    "Writes a GGUF model with random weights and a vocabulary that tokenizes any text.\n";

#define AT(field) offsetof(struct make_options, field)
enum { MOST = 1 << 30 };
#define COUNT(name, field, help)                                                                   \
    { name, NULL, OPTION_INT, AT(p.field), 0, 0, MOST, "N", help, NULL }
static const struct option options[] = {
    {"--output", "-o", OPTION_TEXT, AT(path), 0, 0, 0, "FILE", "where to write", NULL},
    {"--arch", NULL, OPTION_TEXT, AT(p.arch), 0, 0, 0, "NAME", "llama, qwen2, gemma3, ... (llama)",
     NULL},
    {"--preset", NULL, OPTION_TEXT, AT(preset), 0, 0, 0, "NAME",
     "shape of a known model, of which other options change parts: tinyllama-1.1b, llama-8b, "
     "llama-70b, llama-405b, mixtral-8x7b, qwen3-30b-a3b, qwen3-235b-a22b, olmo2-7b, phi3-mini, "
     "granite-3b-a800m, gpt-oss-20b, deepseek-v2-lite, deepseek-v3, mamba2-2.7b, granite-4-tiny, "
     "bge-base",
     NULL},
    {"--type", NULL, OPTION_TYPE, AT(p.type), 0, 0, 0, "NAME",
     "of the matrices: f32, q8_0, q4_K, ... (f32)", NULL},
    {"--mix", NULL, OPTION_TEXT, AT(p.mix), 0, 0, 0, "NAME",
     "types as sheaf-quantize chooses them: Q4_K_M, Q8_0, F16, ...", NULL},
    COUNT("--layers", n_layer, "(2)"),
    COUNT("--embd", n_embd, "(64)"),
    COUNT("--ff", n_ff, "(128)"),
    COUNT("--heads", n_head, "(4)"),
    COUNT("--kv-heads", n_head_kv, "(2)"),
    COUNT("--head-dim", head_dim, "(16)"),
    COUNT("--vocab", n_vocab, "(512)"),
    COUNT("--ctx", n_ctx, "(256)"),
    COUNT("--window", swa_window, "gemma3 (64)"),
    COUNT("--experts", n_expert, "experts of each layer (0)"),
    COUNT("--experts-used", n_expert_used, "of them for a token (0)"),
    COUNT("--shared-ff", n_ff_shared, "n_ff of the experts that every token uses (0)"),
    {"--fused-qkv", NULL, OPTION_FLAG, AT(p.fused_qkv), 0, 0, 0, NULL, "q, k and v in one matrix",
     NULL},
    {"--tied", NULL, OPTION_FLAG, AT(p.tied), 0, 0, 0, NULL,
     "the embeddings are the output matrix too", NULL},
    {"--seed", NULL, OPTION_INT, AT(p.seed), 0, 0, 9e18, "N", "(1)", NULL},
    TOOL_HELP(AT(help)),
    TOOL_VERSION(AT(version)),
};
#undef AT
#undef COUNT

static const struct tool tool = {"sheaf-make-model", synopsis, NULL, options,
                                 sizeof options / sizeof *options};

/* Twice: the preset first, wherever it stands, then what changes it. */
static enum sheaf_status parse(int argc, char **argv, struct make_options *o) {
    struct make_options first = {.p = sheaf__random_model_default_params()};
    enum sheaf_status status = options_parse(&tool, argc, argv, &first);
    *o = first;
    if (status || o->help || o->version || !first.preset) goto out;
    o->p = sheaf__random_model_default_params();
    status = sheaf__random_model_preset(first.preset, &o->p);
    if (!status) status = options_parse(&tool, argc, argv, o);
out:
    if (!status && !o->help && !o->version && !o->path)
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "give a file with -o FILE (see --help)");
    return status;
}

int main(int argc, char **argv) {
    struct make_options o;
    if (parse(argc, argv, &o)) return tool_refuse(&tool);
    if (o.help || o.version) return tool_answer(&tool, o.help);
    struct sheaf_gguf *described = NULL;
    enum sheaf_status status = sheaf__random_model_describe(&o.p, &described);
    sheaf_gguf_free(described);
    if (status == SHEAF_STATUS_INVALID || status == SHEAF_STATUS_UNSUPPORTED)
        return tool_refuse(&tool); /* shapes, types and architectures: nothing of this machine */
    tool_catch_signals(false);
    o.p.stopped = tool_interrupted;
    if (!status) status = sheaf__random_model_write(&o.p, o.path);
    if (status) fprintf(stderr, "sheaf-make-model: %s\n", sheaf_last_error());
    return output_end(status == SHEAF_STATUS_ABORTED ? TOOL_INTERRUPTED : status ? TOOL_FAILED : 0);
}
