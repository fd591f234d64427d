/* A model ready to run on the devices of the job: what every tool sets up in the same way.
 *
 * SPMD: all ranks call these functions with the same arguments. A step that can fail on one rank
 * (opening its file, reading, allocating) is agreed on, so that all ranks fail with one text that
 * names the rank. */
#ifndef SHEAF_MODEL_SESSION_H
#define SHEAF_MODEL_SESSION_H

#include "sheaf/meta.h"

#include "model/file/weights.h"
#include "model/place/policy.h"
#include "model/run/evaluator.h"

struct sheaf__session_params {
    size_t size;                 /* sizeof */
    const char *path;            /* of the model */
    const char *devices;         /* "all" or NULL, or a list "CPU0@0,CPU0@1" */
    const char *split;           /* "even" or NULL, "auto", or a list "3,1" */
    const char *overlap;         /* "auto" or NULL, "on", "off": see overlap.h */
    bool single;                 /* the first local device without the meta device; one rank only */
    bool check;                  /* compare mirrored results over members */
    bool plan_only;              /* model, devices and policy, but no weights */
    int64_t n_ctx;               /* 0: what the model was trained on, at most 4096 */
    int64_t n_batch;             /* 0: 512 */
    enum sheaf_type kv_type;     /* of the K/V cache */
    sheaf__progress_fn progress; /* may be NULL */
    void *user;
};

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

enum sheaf_status sheaf__session_new(const struct sheaf__session_params *params,
                                     struct sheaf__session **out);
void sheaf__session_free(struct sheaf__session *session); /* accepts NULL */

/* "CPU0@1" of any world device; valid until the thread's next call. */
const char *sheaf__session_device_name(sheaf_backend_dev_t dev);
/* Parses "3,1": exactly n numbers >= 0. INVALID with a text that names the option. */
enum sheaf_status sheaf__session_parse_shares(const char *text, int n, double *shares);

#endif
