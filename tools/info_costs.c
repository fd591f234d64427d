/* The cost model of sheaf-info --plan: docs/split.md states the formulas. Every number is either
 * measured here or said to be assumed. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "info_plan.h"
#include "speed.h"

/* Assumed before measuring: latency of a message and bandwidth of one link, one way. */
static const struct {
    const char *name;
    double us, gb_s;
} links[] = {
    {"shm", 1, 5},      {"1gbe", 40, 0.117}, {"10gbe", 15, 1.17},
    {"100gbe", 10, 10}, {"roce", 3, 11.7},   {"hdr", 1.7, 24},
};
enum { N_LINKS = sizeof links / sizeof *links, ROUNDS = 40, SMALL = 1024, LARGE = 65536 };
static const double assumed_bandwidth = 60e9, assumed_span = 5e-6;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median time of an all-reduce of n floats. */
static enum sheaf_status time_all_reduce(struct sheaf_comm *comm, float *data, size_t n,
                                         double *median) {
    const struct sheaf_comm_what what = {0, "measurement"};
    double times[ROUNDS];
    for (int i = -4; i < ROUNDS; i++) { /* some to warm up */
        const double begin = now();
        enum sheaf_status st =
            sheaf_comm_all_reduce(comm, sheaf_comm_local_member(comm, 0), data, n, &what);
        if (st) return st;
        if (i >= 0) times[i] = now() - begin;
    }
    qsort(times, ROUNDS, sizeof *times, by_value);
    *median = times[ROUNDS / 2];
    return SHEAF_STATUS_SUCCESS;
}

/* With one member a rank, a line through two sizes. */
static enum sheaf_status measure_link(const struct sheaf__session *s, struct plan_costs *c) {
    struct sheaf_comm *comm = NULL;
    int *rank = calloc((size_t)s->n_members, sizeof *rank);
    float *data = calloc(LARGE, sizeof *data);
    double small = 0, large = 0;
    enum sheaf_status st =
        rank && data ? SHEAF_STATUS_SUCCESS
                     : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the links");
    st = sheaf_world_agree(st, "measuring the links");
    for (int j = 0; !st && j < s->n_members; j++) rank[j] = sheaf_world_device_rank(s->members[j]);
    if (!st) st = sheaf_comm_new(rank, s->n_members, NULL, &comm);
    if (!st) st = time_all_reduce(comm, data, SMALL, &small);
    if (!st) st = time_all_reduce(comm, data, LARGE, &large);
    if (!st) {
        c->per_byte = (large - small) / ((LARGE - SMALL) * sizeof *data);
        if (c->per_byte < 0) c->per_byte = 0;
        c->latency = small - c->per_byte * SMALL * sizeof *data;
        if (c->latency < 0) c->latency = 0;
        c->is_measured = true;
        snprintf(c->link_text, sizeof c->link_text,
                 "all-reduce %.2f us + %.2f us/MB, measured over %s", c->latency * 1e6,
                 c->per_byte * 1e12, sheaf_comm_describe(comm));
    }
    sheaf_comm_free(comm);
    free(rank);
    free(data);
    return st;
}

static bool one_member_a_rank(const struct sheaf__session *s) {
    if (s->n_members != sheaf_world_size() || s->n_members < 2) return false;
    for (int j = 0; j < s->n_members; j++) {
        if (sheaf_world_device_rank(s->members[j]) != j) return false;
    }
    return true;
}

static void assume_link(struct plan_costs *c, const char *name, double us, double gb_s,
                        const char *whence) {
    c->latency = us * 1e-6;
    c->per_byte = 1 / (gb_s * 1e9);
    snprintf(c->link_text, sizeof c->link_text, "%s: %g us a message, %g GB/s, %s", name, us, gb_s,
             whence);
}

static enum sheaf_status find_link(const struct sheaf__session *s, const struct plan_options *o,
                                   struct plan_costs *c) {
    if (!o->link && !o->hypothetical && one_member_a_rank(s)) return measure_link(s, c);
    const char *name = o->link ? o->link : sheaf_world_n_hosts() > 1 ? "10gbe" : "shm";
    for (int i = 0; i < N_LINKS; i++) {
        if (strcmp(name, links[i].name) != 0) continue;
        assume_link(c, name, links[i].us, links[i].gb_s, "assumed");
        return SHEAF_STATUS_SUCCESS;
    }
    char *end;
    const double us = strtod(name, &end);
    if (end != name && *end == ',' && us >= 0 && us < 1e9) {
        const char *p = end + 1;
        const double gb_s = strtod(p, &end);
        if (end != p && !*end && gb_s > 0 && gb_s < 1e9) {
            assume_link(c, "link", us, gb_s, "as given");
            return SHEAF_STATUS_SUCCESS;
        }
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "--link is shm, 1gbe, 10gbe, 100gbe, roce, hdr, or US,GB/S like 15,1.17,"
                           " not '%.60s'",
                           name);
}

static enum sheaf_status find_bandwidth(const struct sheaf__session *s,
                                        const struct plan_options *o, struct plan_costs *c) {
    if (o->bandwidth > 0 || o->hypothetical) {
        c->bandwidth = o->bandwidth > 0 ? o->bandwidth : assumed_bandwidth;
        snprintf(c->bandwidth_text, sizeof c->bandwidth_text, "%s",
                 o->bandwidth > 0 ? "as given" : "assumed; --bandwidth gives another");
        return SHEAF_STATUS_SUCCESS;
    }
    double *speeds = calloc((size_t)s->n_members, sizeof *speeds);
    if (!speeds)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the devices");
    enum sheaf_status st = sheaf__speed_measure(s->model, s->members, s->n_members, speeds);
    c->bandwidth = st ? 0 : speeds[0];
    for (int j = 1; !st && j < s->n_members; j++) {
        if (speeds[j] < c->bandwidth) c->bandwidth = speeds[j];
    }
    free(speeds);
    if (!st && !(c->bandwidth > 0)) c->bandwidth = assumed_bandwidth;
    snprintf(c->bandwidth_text, sizeof c->bandwidth_text,
             "measured, the slowest device, one device of a rank at a time");
    return st;
}

enum sheaf_status plan_costs_find(const struct sheaf__session *s, const struct plan_options *o,
                                  int n_members, struct plan_costs *out) {
    memset(out, 0, sizeof *out);
    out->span = assumed_span;
    enum sheaf_status st = find_bandwidth(s, o, out);
    if (!st && n_members > 1) st = find_link(s, o, out);
    return st;
}

double plan_costs_collective(const struct plan_costs *c, enum sheaf_backend_meta_step_kind kind,
                             int n_members, int64_t bytes) {
    const double n = n_members, all = (double)bytes * c->per_byte, share = (n - 1) / n;
    const bool reduce = kind == SHEAF_BACKEND_META_STEP_ALL_REDUCE;
    if (n_members < 2) return 0;
    if (c->is_measured) return c->latency + (reduce ? all : all / 2);
    if (!reduce) return c->latency + share * all;
    const double one_shot = c->latency + (n - 1) * all, halves = 2 * (c->latency + share * all);
    return one_shot < halves ? one_shot : halves;
}
