/* The text of sheaf-info --plan. Takes the plan of an outline of the model's graph step by step;
 * layers that are alike are printed once.
 *
 * Invariant: only time is estimated here, and the numbers behind it are printed with it. */
#include "sum.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/place/outline.h"

enum { MAX_WHY = 4, LINE = 160 };

/* The steps of one layer, as text without the layer's number. */
struct section {
    char *text;
    size_t n;
    FILE *file;
};

struct report {
    const struct plan_options *o;
    const struct plan_costs *costs;
    const struct sheaf__outline *outline;
    int n_members;
    struct plan_dot *dot;
    enum sheaf_status status;
    struct section last, now; /* the printed layer and the one being taken */
    int64_t layer, first_alike, last_alike;
    int span, span_nodes; /* open: nodes so far */
    bool span_open;
    struct section detail;
    struct plan_sum sum;
    int n_why;
    char why[MAX_WHY][1024];
};

static bool section_open(struct section *s) {
    s->file = open_memstream(&s->text, &s->n);
    return s->file != NULL;
}
static void section_close(struct section *s) {
    if (s->file) fclose(s->file);
    s->file = NULL;
}
static void section_free(struct section *s) {
    section_close(s);
    free(s->text);
    s->text = NULL;
    s->n = 0;
}

/* ---- layers ---- */

static void end_span_line(struct report *r) {
    if (r->span_open) fprintf(r->now.file, "    span            %d nodes\n", r->span_nodes);
    r->span_open = false;
    r->span_nodes = 0;
}

static void print_range(const struct report *r) {
    const int64_t a = r->first_alike, b = r->last_alike;
    if (a < 0)
        printf("  before the layers\n");
    else if (a == r->outline->n_layer)
        printf("  after the layers\n");
    else if (a == b)
        printf("  layer %" PRId64 "\n", a);
    else
        printf("  layers %" PRId64 "..%" PRId64 ", each\n", a, b);
    fputs(r->last.text, stdout);
}

/* The current layer is complete: print the one before it if they differ. */
static void end_layer(struct report *r) {
    end_span_line(r);
    section_close(&r->now);
    const bool layer = r->layer >= 0 && r->layer < r->outline->n_layer;
    if (r->last.text && layer && r->first_alike >= 0 && !strcmp(r->last.text, r->now.text)) {
        r->last_alike = r->layer;
        section_free(&r->now);
        return;
    }
    if (r->last.text) print_range(r);
    section_free(&r->last);
    r->last = r->now;
    r->now = (struct section){NULL, 0, NULL};
    r->first_alike = r->last_alike = r->layer;
}

static bool begin_layer(struct report *r, int64_t layer) {
    if (r->now.file) end_layer(r);
    r->layer = layer;
    return section_open(&r->now);
}

/* "attn_out-3" without "-3", so that layers compare equal. */
static void put_plain_name(FILE *f, const char *name) {
    const char *dash = strrchr(name, '-');
    const size_t n =
        dash && dash[1] >= '0' && dash[1] <= '9' ? (size_t)(dash - name) : strlen(name);
    fprintf(f, "%.*s", (int)n, name);
}

static char *shape_text(const struct sheaf_tensor *t, char *buf, size_t n) {
    size_t at = 0;
    for (int d = 0, dims = sheaf_n_dims(t); d < dims && at < n; d++)
        at += (size_t)snprintf(buf + at, n - at, "%s%" PRId64, d ? " " : "[", t->ne[d]);
    if (at < n) snprintf(buf + at, n - at, "]");
    return buf;
}

static void put_detail(struct report *r, const struct sheaf_backend_meta_step *step) {
    FILE *f = r->detail.file;
    char state[256], shape[64];
    const bool node = step->kind == SHEAF_SPLIT_STEP_NODE;
    const bool collective = step->kind == SHEAF_SPLIT_STEP_COLLECTIVE;
    fprintf(f, "  %4d %5s %-14s %-22.22s %-18s %s%s", step->index,
            collective ? "--" : (char[]){(char)('a' + step->span % 26), 0},
            node ? sheaf_op_desc(step->out.tensor) : sheaf_backend_meta_step_name(step),
            step->out.tensor->name, shape_text(step->out.tensor, shape, sizeof shape),
            sheaf_split_state_print(step->out.state, state, sizeof state),
            step->add_once ? "  (added once)" : "");
    if (!node) fprintf(f, "  %" PRId64 " bytes", step->bytes);
    fputc('\n', f);
}

static bool take(const struct sheaf_backend_meta_step *step, void *user) {
    struct report *r = user;
    const int64_t layer = r->outline->layer[step->node];
    const bool collective = step->kind == SHEAF_SPLIT_STEP_COLLECTIVE;
    char from[256], to[256];
    if ((!r->now.file || layer > r->layer) && !begin_layer(r, layer)) goto no_memory;
    if (collective) {
        end_span_line(r);
        fprintf(r->now.file, "    %-15s ", sheaf_backend_meta_step_name(step));
        put_plain_name(r->now.file, *step->out.tensor->name ? step->out.tensor->name
                                                            : sheaf_op_desc(step->out.tensor));
        fprintf(r->now.file, "  %s -> %s  %" PRId64 " bytes\n",
                sheaf_split_state_print(step->in[0].state, from, sizeof from),
                sheaf_split_state_print(step->out.state, to, sizeof to), step->bytes);
    } else {
        r->span_open = true;
        r->span_nodes += step->kind == SHEAF_SPLIT_STEP_NODE;
    }
    plan_sum_add(&r->sum, r->costs, step);
    if (step->why && r->n_why++ < MAX_WHY)
        snprintf(r->why[r->n_why - 1], sizeof r->why[0], "%s", step->why);
    if (layer == r->o->layer) {
        put_detail(r, step);
        if (r->dot) plan_dot_step(r->dot, step);
    }
    return true;
no_memory:
    r->status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to describe the plan");
    return false;
}

/* ---- the report ---- */

static void print_totals(const struct report *r) {
    printf("\ncollectives    ");
    bool any = false;
    for (int k = 0; k < SHEAF_COMM_KIND_COUNT; k++) {
        const struct sheaf_backend_meta_step step = {.kind = SHEAF_SPLIT_STEP_COLLECTIVE,
                                                     .collective = (enum sheaf_comm_kind)k};
        if (!r->sum.count[k]) continue;
        printf("%s%" PRId64 " %s of %" PRId64 " bytes together", any ? ", " : "", r->sum.count[k],
               sheaf_backend_meta_step_name(&step), r->sum.bytes[k]);
        any = true;
    }
    printf("%s\n", any ? "" : "none");
    printf("spans          %d\n", r->sum.n_spans);
    for (int i = 0; i < r->n_why && i < MAX_WHY; i++) printf("\n%s", r->why[i]);
    if (r->n_why > MAX_WHY) printf("and %d more gathers\n", r->n_why - MAX_WHY);
}

static void print_time(const struct report *r) {
    const int slowest = plan_sum_largest(r->sum.read, r->n_members);
    const int64_t n = r->outline->n_tokens;
    const double read_s = r->sum.read[slowest] / r->costs->bandwidth;
    const double span_s = r->sum.n_spans * r->costs->span;
    const double sum = read_s + span_s + r->sum.collective_s;
    printf("\npredicted time of a graph of %" PRId64 " token%s\n", n, n == 1 ? "" : "s");
    printf("  reading      %10.3f ms   %.2f MiB of weights and cache on member %d at %.2f GB/s "
           "(%s)\n",
           read_s * 1e3, r->sum.read[slowest] / (1024.0 * 1024), slowest,
           r->costs->bandwidth * 1e-9, r->costs->bandwidth_text);
    if (r->n_members > 1)
        printf("  collectives  %10.3f ms   %s\n", r->sum.collective_s * 1e3, r->costs->link_text);
    printf("  spans        %10.3f ms   %d at %.0f us (assumed)\n", span_s * 1e3, r->sum.n_spans,
           r->costs->span * 1e6);
    printf("  sum          %10.3f ms   %.1f tokens a second; sampling, arithmetic and waiting for "
           "the slowest are not in it\n",
           sum * 1e3, (double)n / sum);
    if (n > 1)
        printf("  with many tokens arithmetic outweighs reading: take it as a lower bound\n");
}

enum sheaf_status plan_print(const struct sheaf__weights *model, struct sheaf__policy *policy,
                             const struct plan_options *o, const struct plan_costs *costs) {
    struct sheaf__outline *outline = NULL;
    struct report r = {
        .o = o, .costs = costs, .n_members = sheaf__policy_n_members(policy), .first_alike = -1};
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    st = sheaf__outline_new(model, o->n_tokens, o->n_kv, o->kv_type, &outline);
    if (st) return st;
    if (o->explain) {
        st = plan_explain(outline->graph, policy, o->explain);
        sheaf__outline_free(outline);
        return st;
    }
    r.outline = outline;
    st = plan_sum_new(r.n_members, &r.sum);
    if (st) goto out;
    if (!section_open(&r.detail)) {
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to describe the plan");
        goto out;
    }
    if (o->dot) {
        char title[LINE];
        snprintf(title, sizeof title, "layer %" PRId64 ", %" PRId64 " token%s, %d members",
                 o->layer, o->n_tokens, o->n_tokens == 1 ? "" : "s", r.n_members);
        st = plan_dot_begin(o->dot, title, &r.dot);
        if (st) goto out;
    }
    printf("\nplan of %" PRId64 " token%s over a cache of %" PRId64 ", %d member%s, %d nodes\n",
           o->n_tokens, o->n_tokens == 1 ? "" : "s", o->n_kv, r.n_members,
           r.n_members == 1 ? "" : "s", sheaf_graph_n_nodes(outline->graph));
    st = sheaf_backend_meta_describe_plan(outline->graph, r.n_members, sheaf__policy_get_state,
                                          policy, take, &r);
    if (!st) st = r.status;
    if (st) goto out;
    if (r.now.file) end_layer(&r);
    if (r.last.text) print_range(&r);
    section_close(&r.detail);
    printf("\nlayer %" PRId64
           ": M mirrored, P partial, Sn dimension n cut; letters count spans, -- "
           "is between two\n  %4s %5s %-14s %-22s %-18s %s\n%s",
           o->layer, "step", "span", "op", "name", "shape", "state", r.detail.text);
    print_totals(&r);
    print_time(&r);
out:;
    const enum sheaf_status written = plan_dot_end(r.dot);
    section_free(&r.detail);
    section_free(&r.now);
    section_free(&r.last);
    plan_sum_free(&r.sum);
    sheaf__outline_free(outline);
    return st ? st : written;
}
