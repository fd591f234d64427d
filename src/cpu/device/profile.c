/* Time by op. See profile.h. */
#include "cpu/device/profile.h"
#include "base/clock.h"
#include "base/settings.h"
#include "base/text.h"
#include "sheaf/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_LINES = SHEAF_OP_COUNT + 3 * SHEAF_TYPE_COUNT, /* one for each that there can be */
    MOST_SHOWN = 100,                                  /* what a message of the log has room for */
};

/* An op, and for products and looked up rows the type of the weights. */
struct line {
    enum sheaf_op op;
    enum sheaf_type type; /* SHEAF_TYPE_COUNT: any */
    uint64_t calls, ns;
};

struct sheaf__cpu_profile {
    char device[16];
    uint64_t last, graphs;
    int n_lines;
    struct line lines[MAX_LINES];
};

struct sheaf__cpu_profile *sheaf__cpu_profile_new(const char *device) {
    if (!sheaf__setting_on(SHEAF__SET_CPU_PROFILE)) return NULL;
    struct sheaf__cpu_profile *p = calloc(1, sizeof *p);
    if (p) snprintf(p->device, sizeof p->device, "%s", device);
    return p;
}

static int by_time(const void *a, const void *b) {
    const struct line *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

static void put_line(struct sheaf__text *t, const char *op, const char *type, const struct line *l,
                     uint64_t all) {
    sheaf__put(t, "\n%-14s %-7s %9" PRIu64 " %10.2f %8.2f %5.1f %%", op, type, l->calls,
               1e-6 * (double)l->ns, 1e-3 * (double)l->ns / (double)l->calls,
               all ? 100.0 * (double)l->ns / (double)all : 0.0);
}

static void print(struct sheaf__cpu_profile *p) {
    char text[8192];
    struct sheaf__text t = {text, sizeof text, 0};
    struct line others = {.calls = 0};
    uint64_t all = 0;
    for (int i = 0; i < p->n_lines; i++) all += p->lines[i].ns;
    qsort(p->lines, (size_t)p->n_lines, sizeof *p->lines, by_time);
    sheaf__put(&t, "%s (process %d): %" PRIu64 " graphs, %.1f ms\n%-22s %9s %10s %8s %7s",
               p->device, (int)getpid(), p->graphs, 1e-6 * (double)all, "op", "calls", "ms",
               "us each", "share");
    for (int i = 0; i < p->n_lines; i++) {
        const struct line *l = &p->lines[i];
        if (i < MOST_SHOWN) {
            put_line(&t, sheaf_op_name(l->op),
                     l->type != SHEAF_TYPE_COUNT ? sheaf_type_name(l->type) : "", l, all);
        } else {
            others.calls += l->calls;
            others.ns += l->ns;
        }
    }
    if (others.calls) put_line(&t, "others", "", &others, all);
    sheaf_log(SHEAF_LOG_DEBUG, "%s", text);
}

void sheaf__cpu_profile_free(struct sheaf__cpu_profile *p) {
    if (p && p->graphs) print(p);
    free(p);
}

void sheaf__cpu_profile_start(struct sheaf__cpu_profile *p) {
    p->graphs++;
    p->last = sheaf__time_ns();
}

static struct line *line_of(struct sheaf__cpu_profile *p, const struct sheaf_tensor *node) {
    const bool typed = node->op == SHEAF_OP_MUL_MAT || node->op == SHEAF_OP_MUL_MAT_ID ||
                       node->op == SHEAF_OP_GET_ROWS;
    const enum sheaf_type type = typed ? node->src[0]->type : SHEAF_TYPE_COUNT;
    for (int i = 0; i < p->n_lines; i++)
        if (p->lines[i].op == node->op && p->lines[i].type == type) return &p->lines[i];
    p->lines[p->n_lines] = (struct line){.op = node->op, .type = type};
    return &p->lines[p->n_lines++];
}

void sheaf__cpu_profile_node(struct sheaf__cpu_profile *p, const struct sheaf_tensor *node) {
    const uint64_t t = sheaf__time_ns();
    struct line *line = line_of(p, node);
    line->calls++;
    line->ns += t - p->last;
    p->last = t;
}
