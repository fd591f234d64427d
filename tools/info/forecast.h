/* What a model would need and reach on so many members: memory of each, collectives, speeds. */
#ifndef SHEAF_TOOLS_INFO_FORECAST_H
#define SHEAF_TOOLS_INFO_FORECAST_H

#include "options.h"
#include "sum.h"

/* Bytes; compute: results and inputs of the largest graph, a batch at the end of the context. */
struct forecast_member {
    double weights, cache, compute;
};

/* Of a graph of n_tokens. */
struct forecast_graph {
    int64_t n_tokens;
    struct plan_sum sum;
    double read_s, flops_s, spans_s; /* spans_s: to begin and end them */
    double seconds;                  /* reading or arithmetic, whichever is longer, and the rest */
};

struct forecast {
    int n_members, n_masks; /* masks of a batch: one more with windows */
    int64_t n_ctx, n_batch;
    struct forecast_member *member; /* [n_members] */
    /* One token behind --past others, and a prompt of n_batch tokens. An encoder has no token. */
    struct forecast_graph token, prompt;
    bool encoder, priced; /* priced: with times */
};

/* costs NULL: memory and counts only. Freed by forecast_free also after a failure. */
enum sheaf_status forecast_new(const struct sheaf__weights *model, struct sheaf__policy *policy,
                               const struct options *o, const struct plan_costs *costs,
                               struct forecast *out);
void forecast_free(struct forecast *f);

/* ---- output, by rank 0 ---- */

double forecast_member_bytes(const struct forecast_member *m);
/* The largest member. */
const struct forecast_member *forecast_largest(const struct forecast *f);
/* Bytes of collectives and their number. */
int64_t forecast_bytes(const struct forecast_graph *g);
int64_t forecast_count(const struct forecast_graph *g);
/* A table of members, with the memory that is free where `devices` [n_members] are those of the job
 * (NULL: imagined), and what collectives and speeds are to be expected. */
void forecast_print(const struct forecast *f, const sheaf_backend_dev_t *devices,
                    const struct plan_costs *costs);
/* The same as members of a JSON object. */
void forecast_json(const struct forecast *f, FILE *out);
/* A row for each number of members; of an encoder, sums and bytes are those of a whole batch. */
void forecast_print_head(const struct plan_costs *costs, bool encoder);
void forecast_print_row(const struct forecast *f);

#endif
