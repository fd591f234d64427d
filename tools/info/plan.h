/* sheaf-info --plan: the plan of a model's graph, in words, numbers and a picture. */
#ifndef SHEAF_TOOLS_INFO_PLAN_H
#define SHEAF_TOOLS_INFO_PLAN_H

#include <stdio.h>

#include "sheaf/sheaf.h"

#include "model/run/session.h"

struct plan_options {
    const char *explain; /* name of a tensor or number of a node: only what was considered for it;
                            NULL: the plan */
    const char *dot;     /* file of the picture; NULL: none */
    int64_t layer;       /* shown step by step and drawn */
    int64_t n_tokens;    /* evaluated at once */
    int64_t n_kv;        /* rows of the cache that attention reads */
    enum sheaf_type kv_type; /* of the cache */
    double bandwidth;  /* bytes a second that a member reads; 0: measured on the job's devices */
    double flops;      /* operations a second of a member; 0: assumed */
    const char *link;  /* name of a link, "us,GB/s", or NULL: measured if the job has ranks */
    bool hypothetical; /* the members are not the job's devices */
};

/* Times of messages and spans, and the source of each. */
struct plan_costs {
    struct sheaf_comm *links; /* measured, owned; NULL: `link` is assumed */
    struct sheaf_link link;   /* between all members */
    double bandwidth;         /* of a member, bytes a second */
    double flops;             /* of a member, operations a second */
    double span;              /* to begin and end a span, seconds */
    char link_text[160], bandwidth_text[160], flops_text[64];
};

/* Collective: measures where options ask for it. The same on every rank. */
enum sheaf_status plan_costs_find(const struct sheaf__session *s, const struct plan_options *o,
                                  int n_members, struct plan_costs *out);
void plan_costs_free(struct plan_costs *c);
/* INVALID if it is no name of a link and no pair of latency and rate. */
enum sheaf_status plan_costs_check_link(const char *name);
/* Seconds of one collective of `bytes` (the whole tensor). */
double plan_costs_collective(const struct plan_costs *c, enum sheaf_comm_kind kind, int64_t bytes);

/* Prints the plan of `policy` and writes the picture. Rank 0 alone. */
enum sheaf_status plan_print(const struct sheaf__weights *model, struct sheaf__policy *policy,
                             const struct plan_options *o, const struct plan_costs *costs);

/* The rows considered for the nodes of that name, or with that number. Rank 0 alone. */
enum sheaf_status plan_explain(const struct sheaf_cgraph *graph, struct sheaf__policy *policy,
                               const char *name);

/* ---- the picture: begin, a step at a time, end ---- */

struct plan_dot;
enum sheaf_status plan_dot_begin(const char *path, const char *title, struct plan_dot **out);
void plan_dot_step(struct plan_dot *dot, const struct sheaf_backend_meta_step *step);
/* Closes and frees; accepts NULL. Returns IO if a write failed. */
enum sheaf_status plan_dot_end(struct plan_dot *dot);

#endif
