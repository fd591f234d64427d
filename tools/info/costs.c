/* The cost model of sheaf-info --plan: docs/split.md states the formulas. Every number is measured
 * here, or the output says that it is assumed. */
#include <stdlib.h>
#include <string.h>

#include "model/place/speed.h"
#include "plan.h"

/* Assumed before measuring: latency of a message and bandwidth of one link, one way. */
static const struct {
    const char *name;
    double us, gb_s;
} links[] = {
    {"shm", 1, 5},     {"1gbe", 40, 0.117}, {"10gbe", 15, 1.17}, {"100gbe", 10, 10},
    {"roce", 3, 11.7}, {"hdr", 1.7, 24},    {"400gbe", 3, 46},
};
enum { N_LINKS = sizeof links / sizeof *links };
static const double assumed_bandwidth = 60e9, assumed_flops = 1e12, assumed_span = 5e-6;

static enum sheaf_status measure_link(const struct sheaf__session *s, struct plan_costs *c) {
    enum sheaf_status st = sheaf__speed_links(s->members, s->n_members, &c->links);
    if (st) return st;
    snprintf(c->link_text, sizeof c->link_text,
             "an all-reduce of 4 KiB %.2f us, of 1 MiB %.2f us, measured over %s",
             1e-3 * (double)sheaf_comm_bound_ns(c->links, SHEAF_COMM_ALL_REDUCE, 4 << 10),
             1e-3 * (double)sheaf_comm_bound_ns(c->links, SHEAF_COMM_ALL_REDUCE, 1 << 20),
             sheaf_comm_describe(c->links));
    return SHEAF_STATUS_SUCCESS;
}

static void assume_link(struct plan_costs *c, const char *name, double us, double gb_s,
                        const char *source) {
    c->link.latency_ns = (int64_t)(us * 1e3 + 0.5);
    c->link.byte_ps = (int64_t)(1e3 / gb_s + 0.5);
    snprintf(c->link_text, sizeof c->link_text, "%s: %g us a message, %g GB/s, %s", name, us, gb_s,
             source);
}

/* A name of the table, or microseconds and GB/s. */
static bool name_link(const char *name, struct plan_costs *c) {
    for (int i = 0; i < N_LINKS; i++) {
        if (strcmp(name, links[i].name) != 0) continue;
        assume_link(c, name, links[i].us, links[i].gb_s, "assumed");
        return true;
    }
    char *end, *last;
    const double us = strtod(name, &end);
    if (end == name || *end != ',' || !(us >= 0 && us < 1e9)) return false;
    const double gb_s = strtod(end + 1, &last);
    if (last == end + 1 || *last || !(gb_s > 1e-9 && gb_s < 1e9)) return false;
    assume_link(c, "link", us, gb_s, "as given");
    return true;
}

enum sheaf_status plan_costs_check_link(const char *name) {
    struct plan_costs c;
    if (name_link(name, &c)) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(
        SHEAF_STATUS_INVALID,
        "--link is shm, 1gbe, 10gbe, 100gbe, roce, hdr, 400gbe, or US,GB/S like 15,1.17,"
        " not '%.60s'",
        name);
}

static enum sheaf_status find_link(const struct sheaf__session *s, const struct plan_options *o,
                                   struct plan_costs *c) {
    if (!o->link && !o->hypothetical && sheaf_world_size() > 1) return measure_link(s, c);
    const char *name = o->link ? o->link : sheaf_world_n_hosts() > 1 ? "10gbe" : "shm";
    return name_link(name, c) ? SHEAF_STATUS_SUCCESS : plan_costs_check_link(name);
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
    double slowest = st ? 0 : speeds[0];
    for (int j = 1; !st && j < s->n_members; j++) {
        if (speeds[j] < slowest) slowest = speeds[j];
    }
    c->bandwidth = 1e9 * slowest;
    free(speeds);
    if (!st && !(c->bandwidth > 0)) c->bandwidth = assumed_bandwidth;
    snprintf(c->bandwidth_text, sizeof c->bandwidth_text,
             "measured, the slowest device, one device of a rank at a time");
    return st;
}

enum sheaf_status plan_costs_find(const struct sheaf__session *s, const struct plan_options *o,
                                  int n_members, struct plan_costs *out) {
    *out = (struct plan_costs){.span = assumed_span,
                               .link.n = n_members,
                               .flops = o->flops > 0 ? o->flops : assumed_flops};
    snprintf(out->flops_text, sizeof out->flops_text, "%s",
             o->flops > 0 ? "as given" : "assumed; --gflops gives another");
    enum sheaf_status st = find_bandwidth(s, o, out);
    if (!st && n_members > 1) st = find_link(s, o, out);
    return st;
}

void plan_costs_free(struct plan_costs *c) { sheaf_comm_free(c->links); }

double plan_costs_collective(const struct plan_costs *c, enum sheaf_comm_kind kind, int64_t bytes) {
    int64_t ns;
    if (c->links)
        ns = sheaf_comm_bound_ns(c->links, kind, (size_t)bytes);
    else if (kind == SHEAF_COMM_ALL_REDUCE)
        ns = sheaf_link_all_reduce_ns(&c->link, bytes);
    else
        ns = sheaf_link_gather_ns(&c->link, bytes);
    return 1e-9 * (double)ns;
}
