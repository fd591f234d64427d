/* sheaf-info: the hosts, ranks and devices of a job; with a model, the memory that each member
 * needs, collectives and speeds to expect, and the cut of every tensor. Reads no weights. Rank 0
 * prints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

#include "check.h"
#include "common/devices.h"
#include "common/files.h"
#include "common/json.h"
#include "common/output.h"
#include "forecast.h"
#include "model.h"
#include "postmortem.h"
#include "settings.h"

/* ---- members ---- */

/* A policy for n members that the job does not have. */
static enum sheaf_status imagine(const struct sheaf__weights *model, const char *split, int n,
                                 struct sheaf__policy **out) {
    double *shares = calloc((size_t)n, sizeof *shares);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    *out = NULL;
    if (!shares) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the shares");
    for (int j = 0; j < n; j++) shares[j] = 1;
    if (split && strcmp(split, "even") != 0) status = sheaf__session_parse_shares(split, n, shares);
    if (!status) status = sheaf__policy_new(model, shares, n, out);
    free(shares);
    return status;
}

/* ---- forecasts ---- */

static void json_head(const struct sheaf__weights *m, const char *name,
                      const struct plan_costs *c) {
    printf("{\"sheaf\": \"%s\", \"build\": \"%s\", \"model\": ", sheaf_version(),
           sheaf_build_info());
    json_string(stdout, name, strlen(name));
    printf(", \"architecture\": \"%s\", \"weight_bytes\": %zu, \"trained_context\": %lld",
           m->hp.arch->name, m->total_bytes, (long long)m->hp.n_ctx_train);
    if (c)
        printf(", \"bandwidth\": %.0f, \"flops\": %.0f, \"link\": \"%s\"", c->bandwidth, c->flops,
               c->link_text);
    fputs(", \"forecasts\": [", stdout);
}

/* Each of the numbers of members that were asked for: a row, or an object of JSON. */
static enum sheaf_status many(const struct options *o, const struct sheaf__weights *model,
                              struct plan_costs *costs) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!o->json) forecast_print_head(costs, model->hp.arch->encoder);
    for (int i = 0; !status && i < o->n_members; i++) {
        const int n = (int)o->members[i];
        struct sheaf__policy *policy = NULL;
        struct forecast f = {0};
        costs->link.n = n;
        status = imagine(model, o->params.split, n, &policy);
        if (!status) status = forecast_new(model, policy, o, costs, &f);
        if (!status && o->json) {
            printf("%s{\"n_members\": %d, ", i ? ", " : "", n);
            forecast_json(&f, stdout);
            putchar('}');
        } else if (!status) {
            forecast_print_row(&f);
        }
        fflush(stdout);
        forecast_free(&f);
        sheaf__policy_free(policy);
    }
    return status;
}

/* Of the job's devices, or of one number of imagined members. */
static enum sheaf_status one(const struct options *o, const struct sheaf__weights *model,
                             struct sheaf__policy *policy, const sheaf_backend_dev_t *devices,
                             const struct plan_costs *costs) {
    struct forecast f = {0};
    enum sheaf_status status = forecast_new(model, policy, o, costs, &f);
    if (!status && o->json) {
        printf("{\"n_members\": %d, ", sheaf__policy_n_members(policy));
        forecast_json(&f, stdout);
        putchar('}');
    } else if (!status) {
        forecast_print(&f, devices, costs);
    }
    forecast_free(&f);
    if (!status && o->tensors) status = model_print_tensors(model, policy);
    if (!status && o->plan) status = plan_print(model, policy, &o->plan_options, costs);
    return status;
}

/* ---- the whole ---- */

/* The file over the job's devices, or a model without either. */
static enum sheaf_status open_session(const struct options *o, struct sheaf__session **out) {
    struct sheaf_model_params params = o->params;
    if (o->n_members) params.split = NULL; /* its shares are those of the imagined members */
    if (!o->preset) return sheaf__session_plan(&params, out);
    struct sheaf__session *s = calloc(1, sizeof *s);
    if (!s) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a model");
    const enum sheaf_status status = model_preset(o->preset, o->mix, &s->model);
    if (status)
        sheaf__session_free(s);
    else
        *out = s;
    return status;
}

/* Shares are of one number of members: said before the first row. */
static enum sheaf_status check_shares(const struct options *o) {
    double shares[MAX_MEMBERS];
    const char *split = o->params.split;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int i = 0; !status && split && strcmp(split, "even") && i < o->n_members; i++)
        status = sheaf__session_parse_shares(split, (int)o->members[i], shares);
    return status;
}

static enum sheaf_status forecasts(struct options *o, const struct sheaf__session *s,
                                   struct plan_costs *costs, bool priced) {
    const char *name = o->preset ? o->preset : sheaf_gguf_path(s->model->gguf);
    struct sheaf__policy *imagined = NULL;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (o->n_ctx <= 0)
        o->n_ctx = s->n_ctx ? s->n_ctx : o->n_ctx == 0 ? s->model->hp.n_ctx_train : 4096;
    if (o->json)
        json_head(s->model, name, priced ? costs : NULL);
    else
        model_print(s->model, name);
    if (o->n_members == 1)
        status = imagine(s->model, o->params.split, (int)o->members[0], &imagined);
    if (!status && o->n_members > 1)
        status = many(o, s->model, costs);
    else if (!status)
        status = one(o, s->model, imagined ? imagined : s->policy, imagined ? NULL : s->members,
                     priced ? costs : NULL);
    sheaf__policy_free(imagined);
    if (!status && o->json) puts("]}");
    return status;
}

/* Shares for other than the devices of a single process are those of imagined members. */
static enum sheaf_status count_shares(struct options *o) {
    const sheaf_backend_dev_t *devices;
    size_t n = 0;
    int64_t shares = 1;
    if (!o->params.split || !strchr(o->params.split, ',') || o->n_members || o->params.devices ||
        sheaf_world_size() > 1)
        return SHEAF_STATUS_SUCCESS;
    for (const char *c = o->params.split; *c; c++) shares += *c == ',';
    const enum sheaf_status status = sheaf_world_devices(&devices, &n);
    if (status || shares == (int64_t)n || shares > MAX_MEMBERS) return status;
    o->members[o->n_members++] = shares;
    o->plan_options.hypothetical = true;
    return status;
}

/* The picture must not be the model. */
static enum sheaf_status check_files(const struct options *o) {
    const struct tool_file files[] = {{"--model", o->params.path, false},
                                      {"--plan-dot", o->plan_options.dot, true}};
    return sheaf_world_rank() ? SHEAF_STATUS_SUCCESS : tool_check_files(files, 2);
}

/* Hosts and devices, the links between them, and a model; nothing is printed if a name is wrong. */
static enum sheaf_status run(struct options *o) {
    struct sheaf__session *s = NULL;
    struct plan_costs costs = {0};
    const bool model = o->params.path || o->preset;
    enum sheaf_status status = sheaf_world_agree(check_files(o), "reading the options");
    if (!status) status = count_shares(o);
    if (!status) status = check_shares(o);
    if (!status && !o->preset) status = sheaf__session_name_devices(o->params.devices);
    if (!status && model) status = open_session(o, &s);
    if (!status && o->plan && o->plan_options.layer >= s->model->hp.n_layer)
        status =
            sheaf_set_error(SHEAF_STATUS_INVALID, "--layer %lld: the model's layers are 0..%lld",
                            (long long)o->plan_options.layer, (long long)s->model->hp.n_layer - 1);
    if (!status && !o->preset && !o->json) status = devices_print();
    if (!status && o->links) status = links_print();
    const int n = !s ? 0 : o->n_members ? (int)o->members[0] : s->n_members;
    const struct plan_options *p = &o->plan_options;
    const bool priced = o->plan || o->n_members || p->link || p->bandwidth > 0 || p->flops > 0;
    if (!status && model && priced)
        status = plan_costs_find(s, p, o->n_members > 1 ? 2 : n, &costs);
    if (!status && model && sheaf_world_rank() == 0) status = forecasts(o, s, &costs, priced);
    plan_costs_free(&costs);
    sheaf__session_free(s);
    return status;
}

/* Before the world, which a wrong setting can keep from starting. */
static int show_settings(void) {
    if (!tool_is_first() || !settings_print()) return 0;
    fprintf(stderr, "sheaf-info: %s\n", sheaf_last_error());
    return TOOL_FAILED;
}

static enum sheaf_status work(struct options *o) {
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
    enum sheaf_status status = tool_same_options(&info_tool, &o, "--model --split-sums");
    if (!status) status = work(&o);
    if (status) tool_complain(&info_tool);
    return tool_end(status ? TOOL_FAILED : 0);
}
