/* What the files of sheaf-run share. */
#ifndef SHEAF_RUN_H
#define SHEAF_RUN_H

#include <stdio.h>

#include "sheaf/model.h"

#include "options.h"

struct run_result {
    struct sheaf_model_result made;
    const int32_t *prompt, *ids; /* [made.n_prompt], [made.n_ids] */
    const char *text;            /* of ids; for JSON */
    size_t text_len;
    /* perplexity */
    size_t ppl_tokens;
    double nll;
    double ppl_s;
};

/* Reads a whole file: *text is zero-terminated and owned by the caller. */
enum sheaf_status run_read_file(const char *path, char **text, size_t *len);
/* ids of rank 0 to all ranks: *ids is rank 0's, and allocated on the others. Collective. */
enum sheaf_status run_share_ids(int32_t **ids, size_t *n);
/* Perplexity by o->perplexity into r, the same on all ranks. */
enum sheaf_status run_perplexity(const struct run_options *o, struct sheaf_model *model,
                                 enum sheaf_status (*before)(void *), void *user,
                                 struct run_result *r);
/* Prints the embedding of text [len] (of o->prompt if NULL) on rank 0. Collective. */
enum sheaf_status run_embedding(const struct run_options *o, struct sheaf_model *model,
                                const char *text, size_t len);
/* Summary (stderr) or JSON (stdout) by rank 0. Collective. */
enum sheaf_status run_report(const struct run_options *o, const struct sheaf_model *model,
                             const struct run_result *r);
/* Bar on stderr if that is a terminal; fits sheaf_model_progress_fn. */
bool run_progress(void *user, size_t done, size_t total);
#endif
