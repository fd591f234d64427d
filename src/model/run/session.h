/* A model ready to run on the devices of the job: what every tool sets up in the same way.
 *
 * SPMD: all ranks call these functions with the same arguments. A step that can fail on one rank
 * (opening its file, reading, allocating) is agreed on, so that all ranks fail with one text that
 * names the rank. */
#ifndef SHEAF_MODEL_SESSION_H
#define SHEAF_MODEL_SESSION_H

#include "sheaf/meta.h"
#include "sheaf/model.h"

#include "model/file/weights.h"
#include "model/place/policy.h"
#include "model/run/evaluator.h"

struct sheaf__session {
    struct sheaf__weights *model;
    struct sheaf__policy *policy;
    sheaf_backend_dev_t *members; /* [n_members] */
    double *shares;               /* [n_members] as asked for or measured */
    int n_members;
    sheaf_backend_dev_t meta; /* NULL with params.single */
    sheaf_backend_t backend;
    struct sheaf__evaluator *context;
    int64_t n_ctx, n_batch;
    int64_t min_chunked; /* tokens of a prompt's batch that goes in two chunks; 0: none does */
    size_t weight_bytes; /* that this rank holds */
    size_t share_bytes;  /* its exact proportion of all weight bytes */
};

/* params of this version, their fields all set. */
enum sheaf_status sheaf__session_new(const struct sheaf_model_params *params,
                                     struct sheaf__session **out);
/* Model, devices, shares and policy, but no weights, backend or cache. */
enum sheaf_status sheaf__session_plan(const struct sheaf_model_params *params,
                                      struct sheaf__session **out);
void sheaf__session_free(struct sheaf__session *session); /* accepts NULL */

/* Bytes of weights and K/V cache that member j reads to evaluate one token behind n_past others. */
enum sheaf_status sheaf__session_token_bytes(const struct sheaf__session *session, int j,
                                             enum sheaf_type kv_type, double n_past, double *bytes);

/* Has the devices of libraries that the list names (ggml:CPU) listed with the others, which must
 * not have been listed yet. */
enum sheaf_status sheaf__session_name_devices(const char *list);
/* Parses "3,1": n numbers >= 0, not all 0. INVALID with a text that names the option. */
enum sheaf_status sheaf__session_parse_shares(const char *text, int n, double *shares);

#endif
