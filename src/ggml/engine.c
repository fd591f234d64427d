/* Commands: how they reach the other ranks, and what each does. */
#include "ggml/engine.h"

#include <stdlib.h>
#include <string.h>

#include "ggml/engine_impl.h"

enum { MAGIC = 0x53474731, CHUNK = 64 << 20 };

/* ---- start and end ---- */

/* The state of an object that is being bound; all others are mirrored. */
static enum sheaf_status state_of(const struct sheaf_tensor *t, const void *user,
                                  struct sheaf_split_state **out) {
    const struct gg_engine *e = user;
    const struct sheaf_split_state *state = NULL;
    for (size_t i = 0; i < e->n_binding && !state; i++)
        if (e->binding[i].tensor == t) state = e->binding[i].state;
    *out = state ? sheaf_split_state_copy(state) : sheaf_split_state_mirrored(e->n_members);
    return *out ? SHEAF_STATUS_SUCCESS
                : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split state: out of memory");
}

static bool is_mixed(sheaf_backend_dev_t meta) {
    const size_t n = sheaf_backend_meta_dev_n_members(meta);
    const char *first = sheaf_backend_dev_name(sheaf_backend_meta_dev_member(meta, 0));
    const size_t kind = strcspn(first, "0123456789@");
    for (size_t i = 1; i < n; i++) {
        const char *name = sheaf_backend_dev_name(sheaf_backend_meta_dev_member(meta, i));
        if (strncmp(first, name, kind) || strcspn(name, "0123456789@") != kind) return true;
    }
    return false;
}

/* Members are the CPU devices unless SHEAF_DEVICES names others, which modules may have. One that
 * cannot be loaded is no error: the devices that are wanted are missed then. */
static void load_modules(void) {
    if (sheaf_setting_value("SHEAF_DEVICES") && sheaf_backend_load_all())
        sheaf_log(SHEAF_LOG_WARN, "%s", sheaf_last_error());
}

enum sheaf_status gg_engine_start(bool may_exit, sheaf_failure_fn on_failure,
                                  struct gg_engine **out) {
    const struct sheaf_world_params params = {
        .size = sizeof params, .may_exit = may_exit, .on_failure = on_failure};
    const sheaf_backend_dev_t *devices = NULL;
    size_t n = 0;
    struct gg_engine *e = calloc(1, sizeof *e);
    if (!e) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start: out of memory");
    enum sheaf_status st = sheaf_world_init(&params);
    if (!st) load_modules();
    if (!st) st = sheaf_world_devices(&devices, &n);
    e->n_members = (int)n;
    if (!st) st = sheaf_backend_meta_device(devices, n, state_of, e, NULL, &e->device);
    if (!st) st = sheaf_backend_dev_init(e->device, NULL, &e->backend);
    if (st) {
        gg_engine_stop(e);
        return st;
    }
    e->mixed = is_mixed(e->device);
    *out = e;
    return st;
}

void gg_engine_stop(struct gg_engine *e) {
    if (!e) return;
    for (size_t i = 0; i < e->n_programs; i++) gg_program_free(e->programs[i]);
    for (size_t i = 0; i < e->n_groups; i++) gg_group_free(&e->groups[i]);
    sheaf_backend_free(e->backend);
    sheaf_backend_meta_device_free(e->device);
    free(e->programs);
    free(e->groups);
    free(e->objects);
    free(e->payload);
    free(e);
    sheaf_world_finalize();
}

sheaf_backend_dev_t gg_engine_device(const struct gg_engine *e) { return e->device; }
bool gg_engine_is_mixed(const struct gg_engine *e) { return e->mixed; }

void gg_engine_log(const struct gg_engine *e) {
    const char *debug = sheaf_setting_value("SHEAF_BACKEND_DEBUG");
    struct sheaf_backend_meta_stats m = {.size = sizeof m};
    if (!debug || strcmp(debug, "1") != 0 || sheaf_backend_meta_get_stats(e->backend, &m)) return;
    sheaf_log(SHEAF_LOG_DEBUG,
              "SHEAF: %llu runs of %llu programs, %llu inputs of %llu bytes sent, %llu collectives "
              "of %llu bytes",
              (unsigned long long)e->n_runs, (unsigned long long)e->n_graphs,
              (unsigned long long)e->n_inputs, (unsigned long long)e->input_bytes,
              (unsigned long long)m.n_collectives, (unsigned long long)m.collective_bytes);
}

/* ---- execution ---- */

static enum sheaf_status execute(struct gg_engine *e, const struct gg_command *c,
                                 const uint8_t *payload, void *result) {
    switch ((enum gg_command_kind)c->kind) {
    case GG_COMMAND_BIND:
        return gg_execute_bind(e, c, payload);
    case GG_COMMAND_SET:
    case GG_COMMAND_FILL:
    case GG_COMMAND_GET:
        return gg_execute_transfer(e, c, payload, result);
    case GG_COMMAND_LOAD:
        return gg_execute_load(e, c, payload);
    case GG_COMMAND_FREE:
        return gg_execute_free(e, c);
    case GG_COMMAND_GRAPH:
        return gg_execute_graph(e, c, payload);
    case GG_COMMAND_DROP:
        return gg_execute_drop(e, c);
    case GG_COMMAND_RUN:
        return gg_execute_run(e, c, payload, result);
    case GG_COMMAND_ASK:
        return gg_execute_ask(e, c, payload);
    case GG_COMMAND_END:
    case GG_COMMAND_KIND_COUNT:
        break;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- the channel ---- */

static enum sheaf_status broadcast(void *data, size_t size) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0; at < size && !st; at += CHUNK)
        st = sheaf_world_broadcast((char *)data + at, size - at < CHUNK ? size - at : CHUNK, 0,
                                   "payload");
    return st;
}

enum sheaf_status gg_engine_do(struct gg_engine *e, struct gg_command *c, const void *payload,
                               void *result) {
    c->magic = MAGIC;
    c->sequence = e->sequence++;
    if (c->size <= GG_INLINE_BYTES && c->size) memcpy(c->data, payload, c->size);
    enum sheaf_status st = sheaf_world_call(c, sizeof *c, 0, "command");
    if (!st && c->size > GG_INLINE_BYTES) st = broadcast((void *)(uintptr_t)payload, c->size);
    return st ? st : execute(e, c, payload, result);
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
    if (c->size <= GG_INLINE_BYTES) return st;
    if (c->size > e->payload_cap) {
        uint8_t *p = realloc(e->payload, c->size);
        if (!p)
            return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "a command of %llu bytes: no memory",
                                   (unsigned long long)c->size);
        e->payload = p;
        e->payload_cap = c->size;
    }
    *payload = e->payload;
    return broadcast(e->payload, c->size);
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
