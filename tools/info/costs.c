/* The cost model of sheaf-info --plan: docs/split.md states the formulas. Every number is either
 * measured here or said to be assumed. */
#include <stdlib.h>
#include <string.h>

#include "model/place/speed.h"
#include "plan.h"

/* Assumed before measuring: latency of a message and bandwidth of one link, one way. */
static const struct {
    const char *name;
    double us, gb_s;
} links[] = {
    {"shm", 1, 5},      {"1gbe", 40, 0.117}, {"10gbe", 15, 1.17},
    {"100gbe", 10, 10}, {"roce", 3, 11.7},   {"hdr", 1.7, 24},
};
enum { N_LINKS = sizeof links / sizeof *links };
static const double assumed_bandwidth = 60e9, assumed_span = 5e-6;

static enum sheaf_status measure_link(const struct sheaf__session *s, struct plan_costs *c) {
    struct sheaf__link_speed link;
    enum sheaf_status st = sheaf__speed_measure_link(s->members, s->n_members, &link);
    if (st) return st;
    c->latency = link.latency;
    c->per_byte = link.per_byte;
    c->is_measured = true;
    c->is_network = sheaf_world_n_hosts() > 1;
    snprintf(c->link_text, sizeof c->link_text, "all-reduce %.2f us + %.2f us/MB, measured over %s",
             c->latency * 1e6, c->per_byte * 1e12, link.transport);
    return SHEAF_STATUS_SUCCESS;
}

static void assume_link(struct plan_costs *c, const char *name, double us, double gb_s,
                        const char *source) {
    c->is_network = strcmp(name, "shm") != 0;
    c->latency = us * 1e-6;
    c->per_byte = 1 / (gb_s * 1e9);
    snprintf(c->link_text, sizeof c->link_text, "%s: %g us a message, %g GB/s, %s", name, us, gb_s,
             source);
}

static enum sheaf_status find_link(const struct sheaf__session *s, const struct plan_options *o,
                                   struct plan_costs *c) {
    if (!o->link && !o->hypothetical && sheaf__speed_has_links(s->members, s->n_members))
        return measure_link(s, c);
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

double plan_costs_collective(const struct plan_costs *c, enum sheaf_comm_kind kind, int n_members,
                             int64_t bytes) {
    const double n = n_members, all = (double)bytes * c->per_byte, share = (n - 1) / n;
    const bool reduce = kind == SHEAF_COMM_ALL_REDUCE;
    if (n_members < 2) return 0;
    if (c->is_measured) return c->latency + (reduce ? all : all / 2);
    if (!reduce) return c->latency + share * all;
    const double one_shot = c->latency + (n - 1) * all, halves = 2 * (c->latency + share * all);
    return one_shot < halves ? one_shot : halves;
}
