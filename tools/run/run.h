/* What the files of sheaf-run share. */
#ifndef SHEAF_RUN_H
#define SHEAF_RUN_H

#include <stdio.h>

#include "model/run/session.h"
#include "options.h"
#include "sheaf/tokenizer.h"

enum run_stop { RUN_LENGTH, RUN_EOG, RUN_CONTEXT, RUN_INTERRUPTED, RUN_FAILED, RUN_STOP_COUNT };

struct run_result {
    const int32_t *prompt, *ids;
    size_t n_prompt, n_ids;
    enum run_stop stop;
    double prompt_s, generate_s; /* seconds; generate_s covers n_evals evaluations */
    size_t n_evals;
    const char *text; /* of ids; for JSON */
    size_t text_len;
    /* perplexity */
    size_t ppl_tokens;
    double nll;
    double ppl_s;
};

/* Rank 0 reads a whole file: *text owned by the caller. */
enum sheaf_status run_read_file(const char *path, char **text, size_t *len);
/* ids of rank 0 to all ranks: *ids is rank 0's, and allocated on the others. Collective. */
enum sheaf_status run_share_ids(int32_t **ids, size_t *n);
/* Perplexity by o->perplexity into r, the same on all ranks. tok is NULL on other ranks than 0. */
enum sheaf_status run_perplexity(const struct run_options *o, struct sheaf__session *s,
                                 const struct sheaf_tokenizer *tok,
                                 enum sheaf_status (*before)(void *), void *user,
                                 struct run_result *r);
/* Summary (stderr) or JSON (stdout) by rank 0. Collective. */
enum sheaf_status run_report(const struct run_options *o, const struct sheaf__session *s,
                             const struct run_result *r);
/* Bar on stderr if that is a terminal; fits sheaf__progress_fn. */
bool run_progress(void *user, size_t done, size_t total);
/* Seconds, monotonic. */
double run_now(void);

#endif
