/* Sets a model up over the devices of the job. Owns everything in struct sheaf__session. */
#include "model/run/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/log.h"
#include "sheaf/meta.h"
#include "sheaf/settings.h"
#include "sheaf/world.h"

#include "base/arith.h"
#include "base/settings.h"
#include "base/shares.h"
#include "model/arch/tag.h"
#include "model/file/load.h"
#include "model/file/share.h"
#include "model/place/memory.h"
#include "model/place/overlap.h"
#include "model/place/runnable.h"
#include "model/place/speed.h"
#include "model/run/host_room.h"

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 512 };

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the session");
}

void sheaf__session_free(struct sheaf__session *s) {
    if (!s) return;
    sheaf__evaluator_free(s->context);
    sheaf_backend_buffer_t weights = s->model ? s->model->buffer : NULL;
    sheaf_backend_buffer_free(weights); /* before the device that it lies on */
    if (s->model) s->model->buffer = NULL;
    sheaf_backend_free(s->backend);
    sheaf_backend_meta_device_free(s->meta);
    sheaf__policy_free(s->policy);
    sheaf__weights_free(s->model);
    free(s->members);
    free(s->shares);
    free(s);
}

/* ---- devices ---- */

static enum sheaf_status add_entry(struct sheaf__session *s, const char *entry, size_t n,
                                   const sheaf_backend_dev_t *devices, size_t n_devices) {
    bool found = false;
    for (size_t i = 0; i < n_devices; i++) {
        if (!sheaf_world_device_matches(entry, n, devices[i])) continue;
        found = true;
        for (int j = 0; j < s->n_members; j++) {
            if (s->members[j] == devices[i])
                return sheaf_set_error(SHEAF_STATUS_INVALID, "--devices names %s twice",
                                       sheaf_model_device_name(devices[i]));
        }
        s->members[s->n_members++] = devices[i];
    }
    if (!found)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "--devices: there is no device '%.*s' (sheaf-info lists them)",
                               (int)n, entry);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__session_name_devices(const char *list) {
    const bool of_library = list && strchr(list, ':'); /* "ggml:CPU" */
    return of_library && !sheaf_setting_value("SHEAF_DEVICES")
               ? sheaf_setting_set("SHEAF_DEVICES", list)
               : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status choose_members(struct sheaf__session *s, const char *list,
                                        const sheaf_backend_dev_t *devices, size_t n) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (n == 0) return sheaf_set_error(SHEAF_STATUS_FAILED, "the job has no devices");
    s->members = calloc(n, sizeof(*s->members));
    s->shares = calloc(n, sizeof *s->shares);
    if (!s->members || !s->shares) return no_memory();
    if (!list || strcmp(list, "all") == 0) {
        memcpy(s->members, devices, n * sizeof(*devices));
        s->n_members = (int)n;
        return SHEAF_STATUS_SUCCESS;
    }
    for (const char *p = list; !status && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        status = add_entry(s, p, strcspn(p, ","), devices, n);
    for (int j = 1; !status && j < s->n_members; j++) {
        if (sheaf_world_device_rank(s->members[j]) < sheaf_world_device_rank(s->members[j - 1]))
            status = sheaf_set_error(SHEAF_STATUS_INVALID, "--devices: list the devices by rank, "
                                                           "lower ranks first");
    }
    return status;
}

static enum sheaf_status choose_devices(struct sheaf__session *s, const char *list) {
    const sheaf_backend_dev_t *devices = NULL;
    size_t n = 0;
    const enum sheaf_status status = sheaf_world_devices(&devices, &n);
    return status ? status
                  : sheaf_world_agree(choose_members(s, list, devices, n), "choosing the devices");
}

/* ---- shares ---- */

enum sheaf_status sheaf__session_parse_shares(const char *text, int n, double *shares) {
    const int count = sheaf__read_shares(text, shares, n);
    if (count == n) return SHEAF_STATUS_SUCCESS;
    if (!count) return sheaf__refuse_split(text);
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "--split %.60s has %d number%s, but there %s %d member%s", text, count,
                           count == 1 ? "" : "s", n == 1 ? "is" : "are", n, n == 1 ? "" : "s");
}

static enum sheaf_status choose_shares(struct sheaf__session *s, const char *split) {
    for (int j = 0; j < s->n_members; j++) s->shares[j] = 1;
    if (!split || strcmp(split, "even") == 0) return SHEAF_STATUS_SUCCESS;
    if (strcmp(split, "auto") == 0)
        return sheaf__speed_measure(s->model, s->members, s->n_members, s->shares);
    return sheaf__session_parse_shares(split, s->n_members, s->shares);
}

/* ---- checks before loading ---- */

static bool has_files(const struct sheaf__weights *model, int rank) {
    return !model->reads || model->reads[rank];
}

/* Samples of ranks that have the files only; metadata of the others are those of the sender. */
static enum sheaf_status compare_fingerprints(const struct sheaf__weights *model) {
    const int n = sheaf_world_size(), from = model->sender;
    if (n == 1) return SHEAF_STATUS_SUCCESS;
    const struct sheaf__fingerprint mine = sheaf__weights_fingerprint(model);
    struct sheaf__fingerprint *all = calloc((size_t)n, sizeof *all);
    enum sheaf_status status =
        sheaf_world_agree(all ? SHEAF_STATUS_SUCCESS : no_memory(), "the model's fingerprint");
    if (!status)
        status = sheaf_world_all_gather(&mine, sizeof mine, all, "the model's fingerprint");
    for (int r = 0; !status && r < n; r++) {
        if (all[r].header != all[from].header ||
            (has_files(model, r) && all[r].samples != all[from].samples))
            status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                     "rank %d (%s) and rank %d (%s) opened different models as %s",
                                     r, sheaf_world_host_name(r), from, sheaf_world_host_name(from),
                                     sheaf_gguf_path(model->gguf));
    }
    free(all);
    return status;
}

/* Bytes of weights and cache of each member, [members]. */
static enum sheaf_status member_bytes(const struct sheaf__session *s, enum sheaf_type kv,
                                      size_t *bytes) {
    const size_t n = (size_t)s->n_members;
    size_t *tokens = calloc(2 * n, sizeof *tokens), *states = tokens + n;
    enum sheaf_status status = tokens ? sheaf__policy_weight_bytes(s->policy, bytes) : no_memory();
    if (!status) status = sheaf__memory_cache(s->model, s->policy, s->n_ctx, kv, tokens, states);
    for (size_t j = 0; !status && j < n; j++) bytes[j] += tokens[j] + states[j];
    free(tokens);
    return status;
}

enum sheaf_status sheaf__session_token_bytes(const struct sheaf__session *s, int j,
                                             enum sheaf_type kv_type, double n_past,
                                             double *bytes) {
    const bool tied = !s->model->w[SHEAF__W_OUTPUT];
    size_t part = 0;
    *bytes = 0;
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(s->model->ctx); t;
         t = sheaf_get_next_tensor(s->model->ctx, t)) {
        int64_t layer;
        const enum sheaf__weight w = (enum sheaf__weight)sheaf__tag_get(t, &layer);
        if (w == SHEAF__W_TOKEN_EMBD && !tied) continue; /* one row is read */
        enum sheaf_status status = sheaf__policy_tensor_bytes(s->policy, t, j, &part);
        if (status) return status;
        *bytes += (double)part * sheaf__weights_read_share(s->model, w);
    }
    const size_t n = (size_t)s->n_members;
    size_t *tokens = calloc(2 * n, sizeof *tokens), *states = tokens + n;
    enum sheaf_status status =
        tokens ? sheaf__memory_cache(s->model, s->policy, s->n_ctx, kv_type, tokens, states)
               : no_memory();
    if (!status) *bytes += (double)tokens[j] / (double)s->n_ctx * n_past + (double)states[j];
    free(tokens);
    return status;
}

/* CPU members take their host's memory together; other devices have memory of their own. */
static enum sheaf_status check_memory(const struct sheaf__session *s, enum sheaf_type kv) {
    int n_hosts = sheaf_world_n_hosts();
    size_t *needs = calloc((size_t)n_hosts, sizeof *needs);
    size_t *frees = calloc((size_t)n_hosts, sizeof *frees);
    size_t *bytes = calloc((size_t)s->n_members, sizeof *bytes);
    const sheaf_backend_dev_t *devices = NULL;
    size_t n_devices = 0;
    enum sheaf_status status =
        needs && frees && bytes ? sheaf_world_devices(&devices, &n_devices) : no_memory();
    if (!status) status = member_bytes(s, kv, bytes);
    for (int host = 0; !status && host < n_hosts; host++) {
        size_t total;
        sheaf__host_room(devices, n_devices, host, &frees[host], &total);
    }
    for (int j = 0; !status && j < s->n_members; j++) {
        int host = sheaf_world_host_index(sheaf_world_device_rank(s->members[j]));
        size_t need = bytes[j], free_bytes = 0, total = 0;
        sheaf_backend_dev_memory(s->members[j], &free_bytes, &total);
        if (sheaf_backend_dev_type(s->members[j]) == SHEAF_BACKEND_DEVICE_TYPE_CPU && host >= 0) {
            needs[host] += need;
        } else if (free_bytes && need > free_bytes) {
            status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                                     "%s: the share of %s needs %.2f GiB, but it has %.2f GiB free:"
                                     " use more devices or give it less with --split",
                                     sheaf_gguf_path(s->model->gguf),
                                     sheaf_model_device_name(s->members[j]),
                                     sheaf__gib_needed(need), sheaf__gib_free(free_bytes));
        }
    }
    for (int j = 0; !status && j < s->n_members; j++) {
        int rank = sheaf_world_device_rank(s->members[j]), host = sheaf_world_host_index(rank);
        if (host >= 0 && frees[host] && needs[host] > frees[host])
            status =
                sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                                "%s: weights and K/V cache need %.2f GiB on host %s, which has "
                                "%.2f GiB free: use more hosts, a smaller model or a smaller "
                                "--ctx",
                                sheaf_gguf_path(s->model->gguf), sheaf__gib_needed(needs[host]),
                                sheaf_world_host_name(rank), sheaf__gib_free(frees[host]));
    }
    free(needs);
    free(frees);
    free(bytes);
    return status;
}

static enum sheaf_status count_bytes(struct sheaf__session *s) {
    double sum = 0, mine = 0;
    size_t *bytes = calloc((size_t)s->n_members, sizeof *bytes);
    enum sheaf_status status = bytes ? sheaf__policy_weight_bytes(s->policy, bytes) : no_memory();
    for (int j = 0; !status && j < s->n_members; j++) {
        sum += s->shares[j];
        if (sheaf_world_device_rank(s->members[j]) != sheaf_world_rank()) continue;
        s->weight_bytes += bytes[j];
        mine += s->shares[j];
    }
    if (!status) s->share_bytes = (size_t)((double)s->model->total_bytes * (mine / sum));
    free(bytes);
    return status;
}

/* ---- set-up ---- */

/* Said before the weights are read, since that may take minutes. */
static int64_t choose_ctx(const struct sheaf__hparams *hp, int64_t wanted) {
    const int64_t trained = hp->n_ctx_train;
    if (wanted > trained && sheaf_world_rank() == 0)
        sheaf_log(SHEAF_LOG_WARN,
                  "the context has %" PRId64 " tokens, but the model was trained on %" PRId64
                  ": what it writes behind those may make no sense",
                  wanted, trained);
    if (wanted > 0) return wanted;
    return wanted < 0 || trained < DEFAULT_CTX ? trained : DEFAULT_CTX;
}

static enum sheaf_status check_ctx(const struct sheaf__session *s) {
    const struct sheaf__hparams *hp = &s->model->hp;
    if (!hp->n_ctx_plain || s->n_ctx <= hp->n_ctx_plain) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(
        SHEAF_STATUS_UNSUPPORTED,
        "%s: behind %" PRId64 " tokens this model scales its queries (key "
        "'%s.attention.temperature_scale'), which is not supported: give a --ctx "
        "of at most %" PRId64 ", not %" PRId64,
        sheaf_gguf_path(s->model->gguf), hp->n_ctx_plain, hp->arch->name, hp->n_ctx_plain,
        s->n_ctx);
}

/* s: NULL if this rank has no memory for it. */
static enum sheaf_status plan(struct sheaf__session *s, const struct sheaf_model_params *p) {
    const char *devices = p->single ? NULL : p->devices;
    sheaf_world_enter(SHEAF_PHASE_LOAD, "model file");
    enum sheaf_status status = s ? sheaf__session_name_devices(devices) : no_memory();
    status = sheaf_world_agree(status, "opening the model");
    if (!status) status = sheaf__weights_open_on_ranks(p->path, &s->model);
    if (!status) status = compare_fingerprints(s->model);
    if (!status) status = choose_devices(s, devices);
    if (!status && p->single && sheaf_world_size() > 1)
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "--single works with one rank only");
    if (status) return status;
    if (p->single) s->n_members = 1;
    s->n_ctx = choose_ctx(&s->model->hp, p->n_ctx);
    s->n_batch = p->n_batch ? p->n_batch : DEFAULT_BATCH;
    status = check_ctx(s); /* the same on all ranks */
    if (!status) status = choose_shares(s, p->single ? NULL : p->split);
    if (status) return status;
    status = sheaf__policy_new(s->model, s->shares, s->n_members, &s->policy);
    if (!status && p->experts) status = sheaf__policy_cut_experts(s->policy, p->experts);
    if (!status) status = count_bytes(s);
    return sheaf_world_agree(status, "planning the session");
}

static enum sheaf_status make_backend(struct sheaf__session *s,
                                      const struct sheaf_model_params *p) {
    if (p->single) return sheaf_backend_dev_init(s->members[0], NULL, &s->backend);
    if (p->wire) {
        const enum sheaf_status set = sheaf_setting_set("SHEAF_COMM_WIRE", p->wire);
        if (set) return set;
    }
    struct sheaf_backend_meta_params mp = {.size = sizeof mp};
    enum sheaf_status status = sheaf__overlap_parse(p->overlap, &mp.overlap);
    if (sheaf__whole_sums() && mp.overlap == SHEAF_BACKEND_META_OVERLAP_CHEAPER)
        mp.overlap = SHEAF_BACKEND_META_OVERLAP_NEVER; /* one host computes a prompt in one chunk */
    if (!status)
        status = sheaf_backend_meta_device(s->members, (size_t)s->n_members,
                                           sheaf__policy_get_state, s->policy, &mp, &s->meta);
    if (!status)
        status = sheaf__overlap_choose(mp.overlap, s->model, s->policy, s->meta, s->n_batch,
                                       &s->min_chunked);
    if (!status) status = sheaf_backend_dev_init(s->meta, NULL, &s->backend);
    if (!status && p->check) status = sheaf_backend_meta_set_check(s->backend, true);
    return status;
}

static enum sheaf_status load(struct sheaf__session *s, const struct sheaf_model_params *p) {
    enum sheaf_status status = sheaf_world_agree(make_backend(s, p), "making the meta device");
    if (status) return status;
    status = sheaf__runnable_check(s->model, p->single ? s->members[0] : s->meta, s->members,
                                   s->n_members, p->kv_type);
    status = sheaf_world_agree(status, "asking the devices for the model's ops");
    if (status) return status;
    status = sheaf__weights_load(s->model, sheaf_backend_get_default_buffer_type(s->backend),
                                 p->progress, p->user);
    status = sheaf_world_agree(status, "loading the weights");
    if (status) return status;
    bool device_masks = true;
    for (int i = 0; i < s->n_members; i++)
        device_masks =
            device_masks && sheaf_backend_dev_type(s->members[i]) == SHEAF_BACKEND_DEVICE_TYPE_GPU;
    const struct sheaf__evaluator_params cp = {.n_ctx = s->n_ctx,
                                               .n_batch = s->n_batch,
                                               .type = p->kv_type,
                                               .min_chunked =
                                                   s->model->hp.arch->scans ? 0 : s->min_chunked,
                                               .device_masks = device_masks};
    status = sheaf__evaluator_new(s->model, s->backend, &cp, &s->context);
    return sheaf_world_agree(status, "making the K/V cache");
}

static enum sheaf_status set_up(const struct sheaf_model_params *params, bool whole,
                                struct sheaf__session **out) {
    *out = NULL;
    struct sheaf__session *s = calloc(1, sizeof *s);
    enum sheaf_status status = plan(s, params);
    if (!status && whole) {
        status = sheaf_world_agree(check_memory(s, params->kv_type), "checking the memory");
        if (!status) status = load(s, params);
    }
    sheaf_world_enter(SHEAF_PHASE_IDLE, NULL);
    if (status)
        sheaf__session_free(s);
    else
        *out = s;
    return status;
}

enum sheaf_status sheaf__session_new(const struct sheaf_model_params *params,
                                     struct sheaf__session **out) {
    return set_up(params, true, out);
}

enum sheaf_status sheaf__session_plan(const struct sheaf_model_params *params,
                                      struct sheaf__session **out) {
    return set_up(params, false, out);
}
