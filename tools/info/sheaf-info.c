/* sheaf-info: the hosts, ranks and devices of a job; with a model, its hyperparameters and the cut
 * of every tensor. Reads no weights. Rank 0 prints. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

#include "check.h"
#include "common/output.h"
#include "plan.h"
#include "postmortem.h"
#include "settings.h"

static const char usage[] =
    "usage: [mpirun -np N] sheaf-info [--links] [-m MODEL.gguf [--split S] [--devices LIST] "
    "[--plan]]\n"
    "Lists hosts, ranks and devices; with a model, how its tensors would be cut.\n"
    "  -m FILE          GGUF model\n"
    "  --split S        even, auto, or shares: 3,1 (even)\n"
    "  --devices LIST   all, or names as printed here: CPU0@0,CPU0@1 (all)\n"
    "  --links          latency and rate of the links between members, as measured now, the\n"
    "                   least time of an all-reduce by them, and the algorithms chosen\n"
    "  --plan           the plan: spans, collectives and their bytes, predicted time\n"
    "  --explain TENSOR of the plan: which rows of states were considered for this tensor, what\n"
    "                   each moves and computes, and why the one taken won\n"
    "  --plan-dot FILE  the plan of one layer as a Graphviz file (dot -Tsvg FILE)\n"
    "  --members N      plan for N members that the job need not have\n"
    "  --layer N        layer that is shown step by step and drawn (0)\n"
    "  --tokens N       tokens evaluated at once: 1 is decode, 512 a prompt (1)\n"
    "  --past N         tokens in the cache before them (255)\n"
    "  --link L         shm, 1gbe, 10gbe, 100gbe, roce, hdr, or US,GB/S (measured if the job has\n"
    "                   ranks, else shm)\n"
    "  --bandwidth G    GB/s that a member reads its weights with (measured; 60 with --members)\n"
    "  --check          is every host fit for the job? With -m also: has each the same file?\n"
    "  --postmortem DIR reads the dumps of a failed job (SHEAF_FLIGHT_DIR): where ranks differ, "
    "which was late\n"
    "  --settings       the settings (SHEAF_... variables): values in force, where they came "
    "from,\n"
    "                   ranges; alone, and before the ranks meet\n"
    "  -h, --help       this text\n"
    "  --version        version of the library\n";

enum { EXIT_BAD_USAGE = 2 };
static const double mib = 1024.0 * 1024;

static const char *const type_names[] = {
    [SHEAF_BACKEND_DEVICE_TYPE_CPU] = "CPU",
    [SHEAF_BACKEND_DEVICE_TYPE_GPU] = "GPU",
    [SHEAF_BACKEND_DEVICE_TYPE_ACCEL] = "accelerator",
    [SHEAF_BACKEND_DEVICE_TYPE_META] = "meta",
};

static enum sheaf_status print_job(void) {
    const sheaf_backend_dev_t *devices = NULL;
    size_t n = 0;
    enum sheaf_status status = sheaf_world_devices(&devices, &n);
    if (status || sheaf_world_rank() != 0) return status;
    printf("sheaf %s\n%d rank%s on %d host%s, %zu device%s\n", sheaf_version(), sheaf_world_size(),
           sheaf_world_size() == 1 ? "" : "s", sheaf_world_n_hosts(),
           sheaf_world_n_hosts() == 1 ? "" : "s", n, n == 1 ? "" : "s");
    for (int r = 0; r < sheaf_world_size(); r++) {
        printf("rank %d on %s (host %d)\n", r, sheaf_world_host_name(r), sheaf_world_host_index(r));
        for (size_t i = 0; i < n; i++) {
            size_t free_bytes = 0, total = 0;
            if (sheaf_world_device_rank(devices[i]) != r) continue;
            sheaf_backend_dev_memory(devices[i], &free_bytes, &total);
            printf("  %-12s %s, %s, %.0f of %.0f MiB free\n",
                   sheaf__session_device_name(devices[i]),
                   type_names[sheaf_backend_dev_type(devices[i])],
                   sheaf_backend_dev_description(devices[i]), (double)free_bytes / mib,
                   (double)total / mib);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

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

struct options {
    struct sheaf_model_params params;
    struct plan_options plan_options;
    int64_t members, past;
    const char *layer_text, *members_text, *tokens_text, *past_text, *bandwidth_text;
    const char *postmortem;
    bool links, plan, check, help, version;
};

static enum sheaf_status parse_number(const char *name, const char *text, int64_t min, int64_t max,
                                      int64_t *out) {
    char *end;
    if (!text) return SHEAF_STATUS_SUCCESS;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v < min || v > max)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s wants a whole number from %" PRId64 " to %" PRId64
                               ", not '%.60s'",
                               name, min, max, text);
    *out = v;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status parse_plan(struct options *o) {
    struct plan_options *p = &o->plan_options;
    p->n_tokens = 1;
    o->past = 255;
    enum sheaf_status st = parse_number("--layer", o->layer_text, 0, 1 << 20, &p->layer);
    if (!st) st = parse_number("--members", o->members_text, 1, 4096, &o->members);
    if (!st) st = parse_number("--tokens", o->tokens_text, 1, 1 << 20, &p->n_tokens);
    if (!st) st = parse_number("--past", o->past_text, 0, 1 << 22, &o->past);
    if (st) return st;
    if (o->bandwidth_text) {
        char *end;
        const double v = strtod(o->bandwidth_text, &end);
        if (end == o->bandwidth_text || *end || !(v > 0 && v < 1e6))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "--bandwidth wants GB/s above 0, not '%.60s'",
                                   o->bandwidth_text);
        p->bandwidth = v * 1e9;
    }
    p->n_kv = o->past + p->n_tokens;
    p->hypothetical = o->members > 0;
    o->plan = o->plan || p->dot;
    const bool more = o->layer_text || o->members_text || o->tokens_text || o->past_text ||
                      o->bandwidth_text || p->link || p->explain;
    if (more && !o->plan)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--layer, --members, --tokens, --past, --link, --explain and "
                               "--bandwidth want --plan");
    if (o->plan && !o->params.path)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--plan wants a model (-m)");
    if (o->members && o->params.devices)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--members and --devices cannot be used together");
    if (o->members && o->params.split && strcmp(o->params.split, "auto") == 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--split auto measures devices, and --members are none: give "
                               "shares");
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status parse(int argc, char **argv, struct options *o) {
    const struct {
        const char *name, *alias;
        const char **text;
        bool *flag;
    } table[] = {
        {"--model", "-m", &o->params.path, NULL},
        {"--split", "--split", &o->params.split, NULL},
        {"--devices", "--devices", &o->params.devices, NULL},
        {"--links", "--links", NULL, &o->links},
        {"--plan", "--plan", NULL, &o->plan},
        {"--explain", "--explain", &o->plan_options.explain, NULL},
        {"--plan-dot", "--plan-dot", &o->plan_options.dot, NULL},
        {"--layer", "--layer", &o->layer_text, NULL},
        {"--members", "--members", &o->members_text, NULL},
        {"--tokens", "--tokens", &o->tokens_text, NULL},
        {"--past", "--past", &o->past_text, NULL},
        {"--link", "--link", &o->plan_options.link, NULL},
        {"--bandwidth", "--bandwidth", &o->bandwidth_text, NULL},
        {"--check", "--check", NULL, &o->check},
        {"--postmortem", "--postmortem", &o->postmortem, NULL},
        {"--help", "-h", NULL, &o->help},
        {"--version", "--version", NULL, &o->version},
    };
    for (int i = 1; i < argc; i++) {
        size_t k = 0, n = sizeof table / sizeof *table;
        while (k < n && strcmp(argv[i], table[k].name) != 0 && strcmp(argv[i], table[k].alias) != 0)
            k++;
        if (!strcmp(argv[i], "--settings"))
            return sheaf_set_error(SHEAF_STATUS_INVALID, "--settings takes no other options");
        if (k == n)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "unknown option '%.60s' (see --help)",
                                   argv[i]);
        if (table[k].flag)
            *table[k].flag = true;
        else if (i + 1 == argc)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "a value is missing after %s", argv[i]);
        else
            *table[k].text = argv[++i];
    }
    if (!o->params.path && (o->params.split || o->params.devices))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "--split and --devices want a model (-m)");
    return parse_plan(o);
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
    enum sheaf_status status = print_job();
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

/* Rank that the launcher gave this process, 0 without a launcher. */
static int launched_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return atoi(getenv(names[i]));
    return 0;
}

/* Before the world, which a wrong setting can keep from starting. */
static int show_settings(void) {
    if (launched_rank() || !settings_print()) return EXIT_SUCCESS;
    fprintf(stderr, "sheaf-info: %s\n", sheaf_last_error());
    return EXIT_FAILURE;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--settings")) return output_end(show_settings());
    struct options o = {.params = {.size = sizeof o.params}};
    int code = EXIT_SUCCESS;
    enum sheaf_status status = sheaf_world_init(
        &(struct sheaf_world_params){.size = sizeof(struct sheaf_world_params), .may_exit = true});
    const bool root = sheaf_world_rank() == 0;
    if (!status) {
        if (sheaf_backend_load_all() && sheaf_world_local_rank() == 0)
            fprintf(stderr, "sheaf-info: %s\n", sheaf_last_error());
        status = parse(argc, argv, &o);
        if (status)
            code = EXIT_BAD_USAGE;
        else if (o.help && root)
            fputs(usage, stdout);
        else if (o.version && root)
            printf("sheaf %s\n", sheaf_version());
        else if (o.postmortem && root)
            status = postmortem_print(o.postmortem);
        else if (o.check)
            status = check_job(o.params.path);
        else if (!o.help && !o.version && !o.postmortem)
            status = run(&o);
    }
    if (status) {
        if (!code) code = EXIT_FAILURE;
        char text[1024];
        snprintf(text, sizeof text, "%s", sheaf_last_error());
        sheaf_world_abort(text);
        if (sheaf_world_reports_error()) fprintf(stderr, "sheaf-info: %s\n", text);
    }
    sheaf_world_finalize();
    return output_end(code || !sheaf_world_failed() ? code : EXIT_FAILURE);
}
