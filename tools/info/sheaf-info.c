/* sheaf-info: the hosts, ranks and devices of a job; with a model, its hyperparameters and the cut
 * of every tensor. Reads no weights. Rank 0 prints. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

#include "check.h"
#include "common/devices.h"
#include "common/output.h"
#include "options.h"
#include "postmortem.h"
#include "settings.h"

static const double mib = 1024.0 * 1024;

static enum sheaf_status print_links(void) {
    static const char *const names[SHEAF_COMM_LEVEL_COUNT] = {
        [SHEAF_COMM_LEVEL_SHARED] = "shared memory", [SHEAF_COMM_LEVEL_HOSTS] = "between hosts"};
    static const size_t sizes[] = {8192, 32768, 1 << 20, 16 << 20};
    const sheaf_backend_dev_t *devices = NULL;
    struct sheaf_comm *comm = NULL;
    size_t n = 0;
    enum sheaf_status status = sheaf_world_devices(&devices, &n);
    if (status) return status;
    int *ranks = calloc(n + 1, sizeof *ranks);
    if (!ranks) status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "links: out of memory");
    for (size_t i = 0; i < n && ranks; i++) ranks[i] = sheaf_world_device_rank(devices[i]);
    status = sheaf_world_agree(status, "links");
    if (!status) status = sheaf_comm_new(ranks, (int)n, NULL, &comm);
    if (!status) status = sheaf_comm_measure(comm);
    if (!status && sheaf_world_rank() == 0) {
        printf("\nlinks of %zu members (%s)\n", n, sheaf_comm_describe(comm));
        for (int i = 0; i < SHEAF_COMM_LEVEL_COUNT; i++) {
            struct sheaf_comm_level l;
            sheaf_comm_get_level(comm, (enum sheaf_comm_level_kind)i, &l);
            if (l.link.n < 2) continue;
            printf("  %-14s %d, latency %.2f us, %.2f GB/s, sums as %s", names[i], l.link.n,
                   1e-3 * (double)l.link.latency_ns,
                   l.link.byte_ps > 0 ? 1e3 / (double)l.link.byte_ps : 0.0,
                   sheaf_type_name(l.wire_type));
            if (i == SHEAF_COMM_LEVEL_HOSTS) {
                printf(", whole up to %zu bytes", l.one_shot_bytes);
                for (int k = 0; k < SHEAF_COMM_OWNERS; k++)
                    if (l.owners[k].bytes)
                        printf(", through %d host%s up to %zu", l.owners[k].n,
                               l.owners[k].n > 1 ? "s" : "", l.owners[k].bytes);
                printf(", %s above", l.link.n == 2 ? "in chunks" : "in parts");
            }
            printf("\n");
        }
        printf("  all-reduce     at least");
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && n > 1; i++)
            printf("%s %.1f us for %zu KiB", i ? "," : "",
                   1e-3 * (double)sheaf_comm_bound_ns(comm, SHEAF_COMM_ALL_REDUCE, sizes[i]),
                   sizes[i] / 1024);
        printf(n > 1 ? "\n" : " nothing: one member\n");
    }
    sheaf_comm_free(comm);
    free(ranks);
    return status;
}

static void print_hparams(const struct sheaf__session *s) {
    const struct sheaf__hparams *hp = &s->model->hp;
    printf("\nmodel          %s\narchitecture   %s\nweights        %.2f MiB in %" PRId64
           " tensors\n",
           sheaf_gguf_path(s->model->gguf), hp->arch->name, (double)s->model->total_bytes / mib,
           sheaf_gguf_n_tensors(s->model->gguf));
    printf("layers         %" PRId64 "\nn_embd         %" PRId64 "\nn_ff           %" PRId64
           "\nheads          %" PRId64 " on %" PRId64 " key/value heads, size %" PRId64 "\n",
           hp->n_layer, hp->n_embd, hp->n_ff, hp->n_head, hp->n_head_kv, hp->head_k);
    printf("vocabulary     %" PRId64 "%s\ncontext        %" PRId64 "\n", hp->n_vocab,
           s->model->w[SHEAF__W_OUTPUT] ? "" : " (output tied to the embeddings)", hp->n_ctx_train);
    if (hp->swa_window)
        printf("window         %" PRId64 " tokens, full attention in every %" PRId64 "th layer\n",
               hp->swa_window, hp->swa_period);
    printf("rotary         %" PRId64 " of %" PRId64 " elements, base %g, scale %g\n", hp->n_rot,
           hp->head_k, (double)hp->freq_base, (double)hp->freq_scale);
}

/* members: devices of the job; NULL: the members are hypothetical. */
static enum sheaf_status print_cuts(const struct sheaf__session *s, struct sheaf__policy *policy,
                                    const double *shares, const sheaf_backend_dev_t *members) {
    const int n = sheaf__policy_n_members(policy);
    double sum = 0;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int j = 0; j < n; j++) sum += shares[j];
    printf("\n%-8s %-14s %8s %14s %14s\n", "member", "device", "share", "share, MiB",
           "weights, MiB");
    for (int j = 0; !status && j < n; j++) {
        size_t bytes = 0;
        status = sheaf__policy_weight_bytes(policy, j, &bytes);
        double share = shares[j] / sum;
        printf("%-8d %-14s %7.1f%% %14.2f %14.2f\n", j,
               members ? sheaf__session_device_name(members[j]) : "-", 100 * share,
               share * (double)s->model->total_bytes / mib, (double)bytes / mib);
    }
    printf("\n%-34s %-6s %-16s cut (M: mirrored, Sn: dimension n)\n", "tensor", "type", "shape");
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(s->model->ctx); !status && t;
         t = sheaf_get_next_tensor(s->model->ctx, t)) {
        struct sheaf_split_state *state = NULL;
        char shape[32], cut[512];
        status = sheaf__policy_get_state(t, policy, &state);
        if (status) break;
        snprintf(shape, sizeof shape, "[%" PRId64 ", %" PRId64 "]", t->ne[0], t->ne[1]);
        printf("%-34s %-6s %-16s %s\n", t->name, sheaf_type_name(t->type), shape,
               sheaf_split_state_print(state, cut, sizeof cut));
        sheaf_split_state_free(state);
    }
    return status;
}

/* A policy for members that the job does not have; *shares is the caller's. */
static enum sheaf_status imagine(const struct sheaf__session *s, const struct options *o,
                                 const char *split, double **shares, struct sheaf__policy **out) {
    const int n = (int)o->members;
    *shares = calloc((size_t)n, sizeof **shares);
    if (!*shares) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the shares");
    for (int j = 0; j < n; j++) (*shares)[j] = 1;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (split && strcmp(split, "even") != 0)
        status = sheaf__session_parse_shares(split, n, *shares);
    return status ? status : sheaf__policy_new(s->model, *shares, n, out);
}

static enum sheaf_status run(const struct options *o) {
    struct sheaf__session *s = NULL;
    struct sheaf__policy *imagined = NULL;
    double *shares = NULL;
    struct plan_costs costs = {0};
    struct sheaf_model_params params = o->params;
    enum sheaf_status status = sheaf__session_name_devices(params.devices);
    if (!status) status = devices_print();
    if (!status && o->links) status = print_links();
    if (status || !params.path) return status;
    if (o->members) params.split = NULL; /* its shares are those of the imagined members */
    status = sheaf__session_plan(&params, &s);
    if (!status && o->members) status = imagine(s, o, o->params.split, &shares, &imagined);
    const int n = o->members ? (int)o->members : status ? 0 : s->n_members;
    if (!status && o->plan) status = plan_costs_find(s, &o->plan_options, n, &costs);
    if (!status && sheaf_world_rank() == 0) {
        struct sheaf__policy *policy = imagined ? imagined : s->policy;
        print_hparams(s);
        status = print_cuts(s, policy, imagined ? shares : s->shares, imagined ? NULL : s->members);
        if (!status && o->plan) status = plan_print(s->model, policy, &o->plan_options, &costs);
    }
    plan_costs_free(&costs);
    sheaf__policy_free(imagined);
    free(shares);
    sheaf__session_free(s);
    return status;
}

/* Before the world, which a wrong setting can keep from starting. */
static int show_settings(void) {
    if (!tool_is_first() || !settings_print()) return 0;
    fprintf(stderr, "sheaf-info: %s\n", sheaf_last_error());
    return TOOL_FAILED;
}

static enum sheaf_status work(const struct options *o) {
    if (o->postmortem)
        return sheaf_world_rank() ? SHEAF_STATUS_SUCCESS : postmortem_print(o->postmortem);
    return o->check ? check_job(o->params.path) : run(o);
}

int main(int argc, char **argv) {
    struct options o;
    const enum sheaf_status parsed = info_options_parse(argc, argv, &o);
    if (!parsed && (o.help || o.version)) return tool_answer(&info_tool, o.help);
    if (!parsed && o.settings) return output_end(show_settings());
    const int code = tool_start(&info_tool, parsed);
    if (code) return code;
    const enum sheaf_status status = work(&o);
    if (status) tool_complain(&info_tool);
    return tool_end(status ? TOOL_FAILED : 0);
}
