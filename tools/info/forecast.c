/* Forecasts from the plans of two graphs, one token and a prompt. Only times are estimated; the
 * numbers behind them are printed. */
#include "forecast.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/place/memory.h"
#include "model/place/outline.h"

static const double mib = 1024.0 * 1024, gib = 1024.0 * 1024 * 1024;

/* ---- counting ---- */

struct visit {
    const struct plan_costs *costs;
    struct plan_sum *sum;
};

static bool add(const struct sheaf_backend_meta_step *step, void *user) {
    const struct visit *v = user;
    plan_sum_add(v->sum, v->costs, step);
    return true;
}

static void price(struct forecast_graph *g, const struct plan_costs *costs) {
    const struct plan_sum *s = &g->sum;
    g->read_s = s->read[plan_sum_largest(s->read, s->n_members)] / costs->bandwidth;
    g->flops_s = s->flops[plan_sum_largest(s->flops, s->n_members)] / costs->flops;
    g->spans_s = s->n_spans * costs->span;
    g->seconds = (g->read_s > g->flops_s ? g->read_s : g->flops_s) + s->collective_s + g->spans_s;
}

/* The graph of n_tokens behind n_past. */
static enum sheaf_status count(const struct sheaf__weights *model, struct sheaf__policy *policy,
                               int64_t n_past, enum sheaf_type kv, const struct plan_costs *costs,
                               struct forecast_graph *g) {
    static const struct plan_costs none = {.bandwidth = 1, .flops = 1};
    const int n = sheaf__policy_n_members(policy);
    struct sheaf__outline *outline = NULL;
    struct visit v = {costs ? costs : &none, &g->sum};
    enum sheaf_status status = plan_sum_new(n, &g->sum);
    if (!status)
        status = sheaf__outline_new(model, g->n_tokens, n_past + g->n_tokens, kv, &outline);
    if (!status)
        status = sheaf_backend_meta_describe_plan(outline->graph, n, sheaf__policy_get_state,
                                                  policy, add, &v);
    sheaf__outline_free(outline);
    if (!status && costs) price(g, costs);
    return status;
}

/* The largest graph of a run: a batch at the end of the context, whose mask has a row of the whole
 * context for each token. compute [members]. */
static enum sheaf_status count_compute(const struct sheaf__weights *model,
                                       struct sheaf__policy *policy, enum sheaf_type kv,
                                       const struct forecast *f, size_t *compute) {
    struct sheaf__outline *outline = NULL;
    enum sheaf_status status = sheaf__outline_new(model, f->n_batch, f->n_ctx, kv, &outline);
    if (!status)
        status = sheaf_backend_meta_measure_graph(outline->graph, f->n_members,
                                                  sheaf__policy_get_state, policy, compute);
    sheaf__outline_free(outline);
    return status;
}

static enum sheaf_status count_memory(const struct sheaf__weights *model,
                                      struct sheaf__policy *policy, enum sheaf_type kv,
                                      struct forecast *f) {
    const size_t n = (size_t)f->n_members;
    size_t *compute = calloc(4 * n, sizeof *compute), *weights = compute + n;
    size_t *tokens = weights + n, *states = tokens + n;
    enum sheaf_status status =
        compute ? count_compute(model, policy, kv, f, compute)
                : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a forecast");
    if (!status) status = sheaf__policy_weight_bytes(policy, weights);
    if (!status) status = sheaf__memory_cache(model, policy, f->n_ctx, kv, tokens, states);
    for (size_t j = 0; !status && j < n; j++)
        f->member[j] = (struct forecast_member){(double)weights[j], (double)(tokens[j] + states[j]),
                                                (double)compute[j]};
    free(compute);
    return status;
}

enum sheaf_status forecast_new(const struct sheaf__weights *model, struct sheaf__policy *policy,
                               const struct options *o, const struct plan_costs *costs,
                               struct forecast *f) {
    const int64_t past = o->past >= 0 ? o->past : 255;
    const enum sheaf_type kv = o->params.kv_type;
    const int n = sheaf__policy_n_members(policy);
    const int64_t n_batch = o->n_batch < o->n_ctx ? o->n_batch : o->n_ctx; /* as when it is run */
    *f = (struct forecast){.n_members = n,
                           .n_ctx = o->n_ctx,
                           .n_batch = n_batch,
                           .n_masks = model->hp.arch->encoder    ? 0
                                      : model->hp.swa_window > 0 ? 2
                                                                 : 1,
                           .token.n_tokens = 1,
                           .encoder = model->hp.arch->encoder,
                           .priced = costs != NULL};
    f->prompt.n_tokens = n_batch;
    f->member = calloc((size_t)n, sizeof *f->member);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!f->member) status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a forecast");
    if (!status && !f->encoder) status = count(model, policy, past, kv, costs, &f->token);
    if (!status) status = count(model, policy, 0, kv, costs, &f->prompt);
    if (!status) status = count_memory(model, policy, kv, f);
    return status;
}

void forecast_free(struct forecast *f) {
    plan_sum_free(&f->token.sum);
    plan_sum_free(&f->prompt.sum);
    free(f->member);
    f->member = NULL;
}

double forecast_member_bytes(const struct forecast_member *m) {
    return m->weights + m->cache + m->compute;
}

const struct forecast_member *forecast_largest(const struct forecast *f) {
    const struct forecast_member *best = &f->member[0];
    for (int j = 1; j < f->n_members; j++)
        if (forecast_member_bytes(&f->member[j]) > forecast_member_bytes(best))
            best = &f->member[j];
    return best;
}

int64_t forecast_bytes(const struct forecast_graph *g) {
    int64_t n = 0;
    for (int k = 0; k < SHEAF_COMM_KIND_COUNT; k++) n += g->sum.bytes[k];
    return n;
}

int64_t forecast_count(const struct forecast_graph *g) {
    int64_t n = 0;
    for (int k = 0; k < SHEAF_COMM_KIND_COUNT; k++) n += g->sum.count[k];
    return n;
}

/* ---- words ---- */

/* CPU devices of a host share its memory, so one of them may take more than its part of what is
 * free. */
static void print_free(sheaf_backend_dev_t dev, double need) {
    size_t free_bytes = 0, total = 0;
    sheaf_backend_dev_memory(dev, &free_bytes, &total);
    printf(" %12.2f%s", (double)free_bytes / mib,
           free_bytes && need > (double)free_bytes && !sheaf_backend_dev_is_cpu(dev) ? "  TOO MUCH"
                                                                                     : "");
}

/* Of a process, not of its members: its libraries and MPI, and the masks of a batch on their
 * way. */
static double process_mib(const struct forecast *f) {
    return 60 + 2.0 * f->n_masks * (double)f->n_batch * (double)f->n_ctx / mib;
}

static bool alike(const struct forecast_member *a, const struct forecast_member *b) {
    return !memcmp(a, b, sizeof *a); /* three numbers */
}

/* Members from j on that have the same numbers. Five and more imagined ones in a row are a row,
 * as in the cuts of a plan; devices have a row each. */
static int row_of(const struct forecast *f, int j, bool imagined) {
    int n = 1;
    while (imagined && j + n < f->n_members && alike(&f->member[j], &f->member[j + n])) n++;
    return n < 5 ? 1 : n;
}

static void print_members(const struct forecast *f, const sheaf_backend_dev_t *devices) {
    printf("\nmemory, MiB, with a context of %" PRId64 " and batches of %" PRId64
           " tokens; a process takes some %.0f more\n%-8s %-14s %12s %12s %12s %12s%s\n",
           f->n_ctx, f->n_batch, process_mib(f), "member", "device", "weights", "cache", "compute",
           "sum", devices ? "         free" : "");
    for (int j = 0, n; j < f->n_members; j += n) {
        const struct forecast_member *m = &f->member[j];
        char name[32];
        n = row_of(f, j, !devices);
        snprintf(name, sizeof name, n > 1 ? "%d..%d" : "%d", j, j + n - 1);
        printf("%-8s %-14s %12.2f %12.2f %12.2f %12.2f", name,
               devices ? sheaf_model_device_name(devices[j]) : "-", m->weights / mib,
               m->cache / mib, m->compute / mib, forecast_member_bytes(m) / mib);
        if (devices) print_free(devices[j], forecast_member_bytes(m));
        putchar('\n');
    }
}

static void print_graph(const char *name, const struct forecast_graph *g, bool priced) {
    printf("%-14s %" PRId64 " token%s: %" PRId64 " collectives, %.1f KiB", name, g->n_tokens,
           g->n_tokens == 1 ? "" : "s", forecast_count(g), (double)forecast_bytes(g) / 1024);
    if (priced)
        printf("; %.2f ms: reading %.2f, arithmetic %.2f (the longer counts), collectives %.2f, "
               "%d spans %.2f; %.2f tokens/s",
               g->seconds * 1e3, g->read_s * 1e3, g->flops_s * 1e3, g->sum.collective_s * 1e3,
               g->sum.n_spans, g->spans_s * 1e3, (double)g->n_tokens / g->seconds);
    putchar('\n');
}

static void print_costs(const struct plan_costs *c, int n_members) {
    printf("predicted by   %.2f GB/s a member (%s); %.0f GFLOP/s a member (%s)%s%s\n",
           c->bandwidth * 1e-9, c->bandwidth_text, c->flops * 1e-9, c->flops_text,
           n_members > 1 ? "; " : "", n_members > 1 ? c->link_text : "");
}

void forecast_print(const struct forecast *f, const sheaf_backend_dev_t *devices,
                    const struct plan_costs *costs) {
    print_members(f, devices);
    putchar('\n');
    if (!f->encoder) print_graph("generation", &f->token, f->priced);
    print_graph("prompt", &f->prompt, f->priced);
    if (costs) print_costs(costs, f->n_members);
}

void forecast_print_head(const struct plan_costs *costs, bool encoder) {
    print_costs(costs, 2);
    printf("\n%8s %14s %14s %14s %12s %12s %14s %14s\n", "members", "largest, GiB", "weights, GiB",
           "cache, GiB", encoder ? "sums/batch" : "sums/token", encoder ? "KiB/batch" : "KiB/token",
           "prompt t/s", "generation t/s");
}

void forecast_print_row(const struct forecast *f) {
    const struct forecast_member *m = forecast_largest(f);
    const struct forecast_graph *g = f->encoder ? &f->prompt : &f->token;
    printf("%8d %14.2f %14.2f %14.2f %12" PRId64 " %12.1f %14.2f", f->n_members,
           forecast_member_bytes(m) / gib, m->weights / gib, m->cache / gib, forecast_count(g),
           (double)forecast_bytes(g) / 1024, (double)f->prompt.n_tokens / f->prompt.seconds);
    if (f->encoder)
        printf(" %14s\n", "-");
    else
        printf(" %14.2f\n", 1 / f->token.seconds);
}

/* ---- JSON ---- */

static void json_graph(const char *name, const struct forecast_graph *g, bool priced, FILE *out) {
    fprintf(out,
            ", \"%s\": {\"tokens\": %" PRId64 ", \"collectives\": %" PRId64
            ", \"collective_bytes\": %" PRId64,
            name, g->n_tokens, forecast_count(g), forecast_bytes(g));
    if (priced)
        fprintf(out,
                ", \"read_s\": %.9f, \"arithmetic_s\": %.9f, \"collective_s\": %.9f, "
                "\"spans_s\": %.9f, \"seconds\": %.9f, \"tokens_per_s\": %.4f",
                g->read_s, g->flops_s, g->sum.collective_s, g->spans_s, g->seconds,
                (double)g->n_tokens / g->seconds);
    fputc('}', out);
}

void forecast_json(const struct forecast *f, FILE *out) {
    fprintf(out, "\"context\": %" PRId64 ", \"batch\": %" PRId64 ", \"members\": [", f->n_ctx,
            f->n_batch);
    for (int j = 0; j < f->n_members; j++)
        fprintf(out, "%s{\"weight_bytes\": %.0f, \"cache_bytes\": %.0f, \"compute_bytes\": %.0f}",
                j ? ", " : "", f->member[j].weights, f->member[j].cache, f->member[j].compute);
    fputc(']', out);
    if (!f->encoder) json_graph("generation", &f->token, f->priced, out);
    json_graph("prompt", &f->prompt, f->priced, out);
}
