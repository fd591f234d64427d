/* The command line of sheaf-run. */
#ifndef SHEAF_RUN_OPTIONS_H
#define SHEAF_RUN_OPTIONS_H

#include "sheaf/type.h"

#include "sheaf/sampler.h"

struct run_options {
    const char *model, *prompt, *file;
    const char *split, *devices, *overlap, *experts, *wire;
    const char *logits, *perplexity, *trace;
    const char *pooling; /* with embedding; NULL: the file's */
    const char *system;  /* with chat; "" : the model's own */
    int64_t n_predict, n_ctx, n_batch, ppl_tokens;
    struct sheaf_sampler_params sampler;
    enum sheaf_type kv_type;
    bool embedding, chat, ids, json, check, single, verbose, ppl_lines, ignore_eos, help, version;
};

/* Strings stay those of argv. INVALID with a text that names the option. */
enum sheaf_status run_options_parse(int argc, char **argv, struct run_options *out);
extern const char run_usage[];

#endif
