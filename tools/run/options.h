/* The command line of sheaf-run. */
#ifndef SHEAF_RUN_OPTIONS_H
#define SHEAF_RUN_OPTIONS_H

#include "sheaf/type.h"

#include "sheaf/sampler.h"

#include "common/tool.h"

enum { RUN_CTX_DEFAULT = -1 };

struct run_options {
    const char *model, *prompt, *file;
    const char *split, *split_sums, *devices, *overlap, *experts, *wire;
    const char *logits, *perplexity, *trace;
    const char *pooling;               /* with embedding; NULL: the file's */
    const char *system;                /* with chat; "" : the model's own */
    const char *stop[OPTION_MAX_LIST]; /* texts that end an answer */
    int n_stop;
    int64_t n_predict, n_batch, ppl_tokens;
    int64_t n_ctx;   /* RUN_CTX_DEFAULT: not given; 0: all that the model was trained on */
    int64_t threads; /* of each device; 0: the setting */
    struct sheaf_sampler_params sampler;
    bool any_seed;                   /* a new one each run */
    enum sheaf_type kv_type, v_type; /* v_type COUNT: not given */
    bool chat, no_chat; /* asked for; neither: a chat if the model has a format for it */
    bool conversation;  /* asked for, or because the prompt comes from a terminal */
    bool asked_conversation;
    bool embedding, ids, json, check, single, fast, verbose, ppl_lines, ignore_eos;
    bool list_devices, help, version;
};

extern const struct tool run_tool;

/* Strings stay those of argv. INVALID with a text that names the option. */
enum sheaf_status run_options_parse(int argc, char **argv, struct run_options *out);

#endif
