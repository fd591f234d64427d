/* What the files of sheaf-run share.
 *
 *   options.c     the command line
 *   input.c       texts from files and standard input
 *   generate.c    one answer
 *   talk.c        a conversation of several
 *   perplexity.c, embedding.c   in place of an answer
 *   report.c      the summary, JSON
 *   sheaf-run.c   the order of things */
#ifndef SHEAF_RUN_H
#define SHEAF_RUN_H

#include <stdio.h>

#include "sheaf/model.h"

#include "common/interrupt.h"
#include "options.h"

/* Zeroed at first; freed by run_result_free. */
struct run_result {
    double load_s;
    struct sheaf_model_result
        made; /* of all answers together; times of the first token: the first's */
    int n_turns;
    const char *chat;      /* name of the chat's format; NULL: raw text */
    int32_t *prompt, *ids; /* of the last answer: [n_prompt], [n_ids] */
    size_t n_prompt, n_ids, cap_ids;
    char *text; /* of the answer, with --json */
    size_t text_len, cap_text;
    /* perplexity */
    size_t ppl_tokens;
    double nll;
    double ppl_s;
};
void run_result_free(struct run_result *r);

/* ---- texts ---- */

/* Reads a whole file, "-": the standard input. *text is zero-terminated and owned by the caller. */
enum sheaf_status run_read_file(const char *path, char **text, size_t *len);
/* The length of text [len] without its last newline, be that LF or CR LF. */
size_t run_without_newline(const char *text, size_t len);
/* The text that the command line asks for on rank 0, NULL elsewhere; owned by the caller. Without
 * one, *talk becomes true if standard input is a terminal. */
enum sheaf_status run_read_prompt(const struct run_options *o, char **text, size_t *len,
                                  bool *talk);
/* ids of rank 0 to all ranks: *ids is rank 0's, and allocated on the others. Collective. */
enum sheaf_status run_share_ids(int32_t **ids, size_t *n);

/* ---- the work ---- */

/* One answer to `text` [len] behind what the cache holds; first [n_first] goes before it. Prints
 * it, and adds to *r. Collective; text is rank 0's. */
enum sheaf_status run_generate(const struct run_options *o, struct sheaf_model *model,
                               const char *text, size_t len, const int32_t *first, size_t n_first,
                               struct run_result *r);
/* Answers until the input ends; text, if any, is the first message. Collective. */
enum sheaf_status run_talk(const struct run_options *o, struct sheaf_model *model, const char *text,
                           size_t len, struct run_result *r);
/* Perplexity of text [len], that of o->perplexity, into r, the same on all ranks. */
enum sheaf_status run_perplexity(const struct run_options *o, struct sheaf_model *model,
                                 const char *text, size_t len, struct run_result *r);
/* Prints the embedding of text [len] on rank 0. Collective. */
enum sheaf_status run_embedding(const struct run_options *o, struct sheaf_model *model,
                                const char *text, size_t len);
/* Summary (stderr) or JSON (stdout) by rank 0. Collective. */
enum sheaf_status run_report(const struct run_options *o, const struct sheaf_model *model,
                             const struct run_result *r);

#endif
