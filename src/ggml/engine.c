/* The engine's start and end with its devices, and the channel: how a command reaches all ranks,
 * and the function that executes it. */
#include "ggml/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "ggml/engine_impl.h"
#include "ggml/groups.h"

enum { MAGIC = 0x53474732, CHUNK = 64 << 20 };

/* ---- start and end ---- */

/* The state of an object that is being bound; all others are mirrored. */
static enum sheaf_status state_of(const struct sheaf_tensor *t, const void *user,
                                  struct sheaf_split_state **out) {
    const struct gg_ranks *on = user;
    const struct gg_engine *e = on->engine;
    const struct sheaf_split_state *state = NULL;
    for (size_t i = 0; i < e->n_binding && !state; i++)
        if (e->binding[i].tensor == t) state = e->binding[i].state;
    *out = state ? sheaf_split_state_copy(state) : sheaf_split_state_mirrored(on->n_members);
    return *out ? SHEAF_STATUS_SUCCESS : gg_no_memory("split states");
}

/* Members are the CPU devices unless SHEAF_DEVICES names others, which modules may have. A module
 * that cannot be loaded is no error here: if a device of it is wanted, the world reports that as
 * missing. */
static void load_modules(void) {
    if (sheaf_setting_value("SHEAF_DEVICES") && sheaf_backend_load_all())
        sheaf_log(SHEAF_LOG_WARN, "%s", sheaf_last_error());
}

/* All devices of the job, and the group that each rank is in. */
struct groups {
    const sheaf_backend_dev_t *devices; /* [n_devices] */
    size_t n_devices;
    int *of_rank; /* [ranks] */
    int n;
};

/* Members and ranks of group g. */
static enum sheaf_status gather_group(struct gg_ranks *on, const struct groups *groups, int g,
                                      sheaf_backend_dev_t *members) {
    on->member = calloc(groups->n_devices + 1, sizeof *on->member);
    on->part = calloc((size_t)sheaf_world_size(), sizeof *on->part);
    on->report = calloc((size_t)sheaf_world_size(), sizeof *on->report);
    if (!on->member || !on->part || !on->report) return gg_no_memory("start");
    for (size_t i = 0; i < groups->n_devices; i++) {
        const int rank = sheaf_world_device_rank(groups->devices[i]);
        if (groups->of_rank[rank] != g) continue;
        on->part[rank] = true;
        on->report[rank] = sizeof(struct gg_report);
        on->member[on->n_members] = i;
        members[on->n_members++] = groups->devices[i];
    }
    return on->n_members ? SHEAF_STATUS_SUCCESS
                         : sheaf_set_error(SHEAF_STATUS_INVALID,
                                           "setting SHEAF_GROUPS: group %d has no device", g);
}

static enum sheaf_status start_device(struct gg_ranks *on, const struct groups *groups, int g) {
    sheaf_backend_dev_t *members = calloc(groups->n_devices + 1, sizeof(sheaf_backend_dev_t));
    enum sheaf_status st = members ? gather_group(on, groups, g, members) : gg_no_memory("start");
    st = sheaf_world_agree(st, "groups");
    if (!st)
        st = sheaf_backend_meta_device(members, (size_t)on->n_members, state_of, on, NULL,
                                       &on->device);
    if (!st) st = sheaf_backend_dev_init(on->device, NULL, &on->backend);
    if (!st) st = sheaf_backend_meta_set_lives_on(on->backend, true);
    free((void *)members);
    return st;
}

/* By the setting of rank 0: a launcher need not pass the environment on to other ranks. */
static enum sheaf_status read_groups(struct groups *groups) {
    char text[512] = "";
    const char *mine = sheaf_world_rank() == 0 ? sheaf_setting_value("SHEAF_GROUPS") : NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (mine && strlen(mine) >= sizeof text)
        st = sheaf_set_error(SHEAF_STATUS_INVALID, "setting SHEAF_GROUPS is too long");
    else if (mine)
        memcpy(text, mine, strlen(mine));
    st = sheaf_world_agree(st, "groups");
    if (!st) st = sheaf_world_broadcast(text, sizeof text, 0, "groups");
    if (!st)
        st = sheaf_world_agree(gg_groups_parse(text, sheaf_world_size(), sheaf_world_host_index,
                                               groups->of_rank, &groups->n),
                               "groups");
    return st;
}

static enum sheaf_status start_devices(struct gg_engine *e) {
    const size_t n_ranks = (size_t)sheaf_world_size();
    struct groups groups = {.of_rank = calloc(n_ranks, sizeof(int))};
    enum sheaf_status st = sheaf_world_devices(&groups.devices, &groups.n_devices);
    e->n_members = groups.n_devices;
    e->reports = calloc(n_ranks, sizeof *e->reports);
    e->own = calloc(e->n_members + 1, sizeof *e->own);
    e->own_bytes = calloc(n_ranks, sizeof *e->own_bytes);
    e->devices = calloc(GG_MAX_GROUPS, sizeof *e->devices);
    if (!st && (!groups.of_rank || !e->reports || !e->own || !e->own_bytes || !e->devices))
        st = gg_no_memory("start");
    st = sheaf_world_agree(st, "groups");
    if (!st) st = read_groups(&groups);
    for (int g = 0; g < groups.n && !st; g++) {
        e->devices[g].engine = e;
        e->n_devices++;
        st = start_device(&e->devices[g], &groups, g);
    }
    free(groups.of_rank);
    return st;
}

bool gg_program_lives_on(void) {
    const char *on_failure = sheaf_setting_value("SHEAF_GGML_ON_FAILURE");
    return on_failure && !strcmp(on_failure, "error");
}

enum sheaf_status gg_engine_start(const struct gg_start *start, struct gg_engine **out) {
    const struct sheaf_world_params params = {
        .size = sizeof params, .may_exit = start->may_exit, .on_failure = start->on_failure};
    struct gg_engine *e = calloc(1, sizeof *e);
    if (!e) return gg_no_memory("start");
    enum sheaf_status st = sheaf_world_init(&params);
    if (!st) load_modules();
    if (!st) st = start_devices(e);
    if (!st)
        st = sheaf_world_agree(start->check ? start->check(e) : SHEAF_STATUS_SUCCESS, "settings");
    if (st) {
        if (start->tell) start->tell(sheaf_last_error());
        gg_engine_stop(e);
        return st;
    }
    *out = e;
    return st;
}

static void stop_device(struct gg_ranks *on) {
    sheaf_backend_free(on->backend);
    sheaf_backend_meta_device_free(on->device);
    free(on->member);
    free(on->part);
    free(on->report);
}

void gg_engine_stop(struct gg_engine *e) {
    if (!e) return;
    for (size_t i = 0; i < e->n_programs; i++) gg_program_free(e->programs[i]);
    for (size_t i = 0; i < e->n_batches; i++) gg_batch_free(&e->batches[i]);
    for (size_t i = 0; i < e->n_devices; i++) stop_device(&e->devices[i]);
    free(e->devices);
    free(e->reports);
    free(e->own);
    free(e->own_bytes);
    free(e->programs);
    free(e->batches);
    free(e->objects);
    free(e->payload);
    free(e);
    sheaf_world_finalize();
}

size_t gg_engine_n_devices(const struct gg_engine *e) { return e->n_devices; }
sheaf_backend_dev_t gg_engine_device(const struct gg_engine *e, size_t device) {
    return e->devices[device].device;
}
bool gg_engine_asks_all(const struct gg_engine *e, size_t device) {
    return sheaf_backend_meta_dev_asks_all(e->devices[device].device);
}
bool gg_engine_has_rank(const struct gg_engine *e, size_t device, int rank) {
    return e->devices[device].part[rank];
}
size_t gg_engine_member(const struct gg_engine *e, size_t device, size_t member) {
    return e->devices[device].member[member];
}
size_t gg_engine_n_members(const struct gg_engine *e) { return e->n_members; }
size_t gg_engine_n_members_of(const struct gg_engine *e, size_t device) {
    return (size_t)e->devices[device].n_members;
}

void gg_engine_log(const struct gg_engine *e) {
    struct sheaf_backend_meta_stats m = {.size = sizeof m}, sum = m;
    if (!gg_logs_details()) return;
    for (size_t i = 0; i < e->n_devices; i++) {
        if (sheaf_backend_meta_get_stats(e->devices[i].backend, &m)) return;
        sum.n_plans += m.n_plans;
        sum.n_collectives += m.n_collectives;
        sum.collective_bytes += m.collective_bytes;
    }
    sheaf_log(
        SHEAF_LOG_DEBUG,
        "SHEAF: %llu runs of %llu programs, %llu inputs of %llu bytes sent, %llu views moved, "
        "%llu plans, %llu collectives of %llu bytes, %zu objects at most, %llu bytes of weights "
        "sent",
        (unsigned long long)e->n_runs, (unsigned long long)e->n_graphs,
        (unsigned long long)e->n_inputs, (unsigned long long)e->input_bytes,
        (unsigned long long)e->n_moves, (unsigned long long)sum.n_plans,
        (unsigned long long)sum.n_collectives, (unsigned long long)sum.collective_bytes,
        e->n_objects, (unsigned long long)e->sent_bytes);
}

/* ---- execution ---- */

/* Of devices that other ranks drive the world knows what they had when the job began. */
static enum sheaf_status measure(struct gg_engine *e, struct gg_memory_now *result) {
    const sheaf_backend_dev_t *devices;
    size_t n, n_own = 0;
    enum sheaf_status st = sheaf_world_devices(&devices, &n);
    if (st) return st;
    memset(e->own_bytes, 0, (size_t)sheaf_world_size() * sizeof *e->own_bytes);
    for (size_t i = 0; i < n; i++) {
        const int rank = sheaf_world_device_rank(devices[i]);
        size_t available = 0, all = 0;
        e->own_bytes[rank] += sizeof *e->own;
        if (rank != sheaf_world_rank()) continue;
        sheaf_backend_dev_memory(devices[i], &available, &all);
        e->own[n_own++] = (struct gg_memory_now){available, all};
    }
    return sheaf_world_gather_v(e->own, result, e->own_bytes, 0, "memory of devices");
}

static enum sheaf_status execute(struct gg_engine *e, const struct gg_command *c,
                                 const uint8_t *payload, void *result) {
    if (c->device >= e->n_devices)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "command: there is no device %u", c->device);
    switch ((enum gg_command_kind)c->kind) {
    case GG_COMMAND_BIND:
        return gg_execute_bind(e, c, payload);
    case GG_COMMAND_SET:
    case GG_COMMAND_FILL:
    case GG_COMMAND_GET:
        return gg_execute_transfer(e, c, payload, result);
    case GG_COMMAND_LOAD:
        return gg_execute_load(e, c, payload, result);
    case GG_COMMAND_FREE:
        return gg_execute_free(e, c);
    case GG_COMMAND_RELEASE:
        return gg_execute_release(e, c);
    case GG_COMMAND_GRAPH:
        return gg_execute_graph(e, c, payload);
    case GG_COMMAND_DROP:
        return gg_execute_drop(e, c);
    case GG_COMMAND_RUN:
        return gg_execute_run(e, c, payload, result);
    case GG_COMMAND_FETCH:
        return gg_execute_fetch(e, c, result);
    case GG_COMMAND_ASK:
        return gg_execute_ask(e, c, payload);
    case GG_COMMAND_MEASURE:
        return measure(e, result);
    case GG_COMMAND_END:
    case GG_COMMAND_KIND_COUNT:
        break;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- the channel ---- */

/* The ranks that a payload is for; NULL: all. Where views move all may have to plan again. */
static const bool *ranks_of_payload(const struct gg_engine *e, const struct gg_command *c) {
    const struct gg_program *p =
        c->kind == GG_COMMAND_RUN && !c->n_moves ? gg_program_find(e, c->program, NULL) : NULL;
    if (p) return e->devices[p->device].part;
    return c->kind == GG_COMMAND_SET && c->object < e->n_objects
               ? e->devices[e->objects[c->object].device].part
               : NULL;
}

static enum sheaf_status broadcast(const bool *part, void *data, size_t size) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0, n; at < size && !st; at += n) {
        n = sheaf__min_size(size - at, CHUNK);
        st = sheaf_world_broadcast_to(part, (char *)data + at, n, 0, "payload");
    }
    return st;
}

enum sheaf_status gg_engine_do(struct gg_engine *e, struct gg_command *c, const void *payload,
                               void *result) {
    c->magic = MAGIC;
    c->sequence = e->sequence++;
    if (c->size <= GG_INLINE_BYTES && c->size) memcpy(c->data, payload, c->size);
    enum sheaf_status st = sheaf_world_call(c, sizeof *c, 0, "command");
    if (!st && c->size > GG_INLINE_BYTES)
        st = broadcast(ranks_of_payload(e, c), (void *)(uintptr_t)payload, c->size);
    if (!st) st = execute(e, c, payload, result);
    if (st && result && (c->kind == GG_COMMAND_RUN || c->kind == GG_COMMAND_FETCH))
        gg_spoil_results(e, c->program, result);
    return st;
}

static enum sheaf_status receive_payload(struct gg_engine *e, const struct gg_command *c,
                                         const uint8_t **payload) {
    const bool *part = ranks_of_payload(e, c);
    const bool is_mine = !part || part[sheaf_world_rank()];
    if (is_mine && c->size > e->payload_cap) {
        uint8_t *p = realloc(e->payload, c->size);
        if (!p)
            return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "a command of %llu bytes: no memory",
                                   (unsigned long long)c->size);
        e->payload = p;
        e->payload_cap = c->size;
    }
    *payload = is_mine ? e->payload : NULL;
    return broadcast(part, e->payload, c->size);
}

static enum sheaf_status receive(struct gg_engine *e, struct gg_command *c,
                                 const uint8_t **payload) {
    sheaf_world_enter(SHEAF_PHASE_IDLE, NULL);
    enum sheaf_status st = sheaf_world_call(c, sizeof *c, 0, "command");
    if (st) return st;
    if (c->magic != MAGIC || c->sequence != e->sequence || c->kind >= GG_COMMAND_KIND_COUNT)
        return sheaf_set_error(SHEAF_STATUS_PEER,
                               "rank 0 sent something that is no command; ranks of one job must "
                               "run one build of the plugin and of sheaf-worker");
    e->sequence++;
    *payload = c->data;
    return c->size <= GG_INLINE_BYTES ? st : receive_payload(e, c, payload);
}

enum sheaf_status gg_engine_serve(struct gg_engine *e) {
    for (;;) {
        struct gg_command c;
        const uint8_t *payload = NULL;
        enum sheaf_status st = receive(e, &c, &payload);
        if (st) return st;
        if (c.kind == GG_COMMAND_END) return SHEAF_STATUS_SUCCESS;
        st = execute(e, &c, payload, NULL);
        if (st && sheaf_world_failed()) return st; /* otherwise rank 0 has the same status */
    }
}
