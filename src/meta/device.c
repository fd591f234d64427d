/* The meta device: what it wraps, its properties, and its life. Buffers, programs and execution are
 * in other files. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/optional.h"
#include "backend/registry.h"
#include "base/settings.h"
#include "base/sized.h"
#include "comm/world/same_setting.h"
#include "meta/meta_impl.h"

static const char *get_name(sheaf_backend_dev_t dev) {
    return ((struct meta_device *)dev->context)->name;
}
static const char *get_description(sheaf_backend_dev_t dev) {
    return ((struct meta_device *)dev->context)->description;
}

static void get_memory(sheaf_backend_dev_t dev, size_t *free_bytes, size_t *total) {
    const struct meta_device *m = dev->context;
    *free_bytes = *total = 0;
    for (int i = 0; i < m->n_members; i++) {
        size_t f, t;
        sheaf_backend_dev_memory(m->members[i], &f, &t);
        *free_bytes += f;
        *total += t;
    }
}

static enum sheaf_backend_dev_type get_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return SHEAF_BACKEND_DEVICE_TYPE_META;
}

static void get_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    props->name = get_name(dev);
    props->description = get_description(dev);
    get_memory(dev, &props->memory_free, &props->memory_total);
    props->type = SHEAF_BACKEND_DEVICE_TYPE_META;
    props->rank = sheaf_world_rank();
}

static enum sheaf_status init_backend(sheaf_backend_dev_t dev, const char *params,
                                      sheaf_backend_t *out) {
    if (params && *params) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "meta device: it takes no parameters, got '%s'", params);
    }
    return sheaf__meta_backend_new(dev->context, out);
}

static sheaf_backend_buffer_type_t get_buffer_type(sheaf_backend_dev_t dev) {
    return &((struct meta_device *)dev->context)->buft;
}

static bool supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    return sheaf__meta_supports(((struct meta_device *)dev->context)->support, op);
}

static bool supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    return buft->device == dev;
}

static const struct sheaf_backend_device_i device_iface = {
    .get_name = get_name,
    .get_description = get_description,
    .get_memory = get_memory,
    .get_type = get_type,
    .get_props = get_props,
    .init_backend = init_backend,
    .get_buffer_type = get_buffer_type,
    .supports_op = supports_op,
    .supports_buft = supports_buft,
};

bool sheaf_backend_dev_is_meta(sheaf_backend_dev_t dev) {
    return dev && dev->iface == &device_iface;
}

/* The checks that need no other rank. */
static enum sheaf_status check_members(const sheaf_backend_dev_t *devs, size_t n_devs,
                                       sheaf_backend_meta_get_split_state_fn get_split_state) {
    if (n_devs < 1 || n_devs > INT32_MAX || !get_split_state) {
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "meta device: it wants at least one member and a function that gives split states");
    }
    for (size_t i = 0; i < n_devs; i++) {
        if (!devs[i])
            return sheaf_set_error(SHEAF_STATUS_INVALID, "meta device: member %zu is NULL", i);
        const int rank = sheaf_world_device_rank(devs[i]);
        if (sheaf_backend_dev_is_meta(devs[i])) {
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "meta device: member %zu is itself a meta device", i);
        }
        if (i && rank < sheaf_world_device_rank(devs[i - 1])) {
            return sheaf_set_error(
                SHEAF_STATUS_INVALID,
                "meta device: member %zu (%s) is of rank %d, the one before it of a later rank; "
                "list members in order of their ranks",
                i, sheaf_backend_dev_name(devs[i]), rank);
        }
        for (size_t j = 0; j < i; j++) {
            if (devs[i] == devs[j]) {
                return sheaf_set_error(SHEAF_STATUS_INVALID, "meta device: %s is listed twice",
                                       sheaf_backend_dev_name(devs[i]));
            }
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status take_params(const struct sheaf_backend_meta_params *params,
                                     struct sheaf_backend_meta_params *out) {
    *out = (struct sheaf_backend_meta_params){.size = sizeof *out};
    if (!params) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st =
        sheaf__sized_take(params, out, sizeof *out, "sheaf_backend_meta_params");
    if (st) return st;
    if ((unsigned)out->overlap > SHEAF_BACKEND_META_OVERLAP_ALWAYS)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "meta device: there is no overlap %d",
                               (int)out->overlap);
    return SHEAF_STATUS_SUCCESS;
}

/* Plans are made on every rank, so the setting must be the same there. */
static enum sheaf_status agree_on_sums(bool *whole_sums) {
    int choice = 0;
    enum sheaf_status st = sheaf__setting_choice(SHEAF__SET_SPLIT_SUMS, &choice);
    st = sheaf_world_agree(st, "meta device");
    *whole_sums = sheaf__whole_sums();
    return st ? st
              : sheaf__same_setting("SHEAF_SPLIT_SUMS", *whole_sums ? "whole" : "partial",
                                    "--split-sums");
}

/* What this rank's CPU members round activations to; "" if it has none. */
static const char *rounding_here(const sheaf_backend_dev_t *devs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *(*rounding)(void);
        if (sheaf_world_device_rank(devs[i]) != sheaf_world_rank()) continue;
        sheaf__dev_find_proc(devs[i], SHEAF__ROUNDING_PROC, &rounding);
        if (rounding) return rounding();
    }
    return "";
}

/* Members that round otherwise than others make results that are neither mode's. */
static enum sheaf_status agree_on_rounding(const sheaf_backend_dev_t *devs, size_t n) {
    return sheaf__same_setting("SHEAF_CPU_ACTIVATIONS", rounding_here(devs, n),
                               "--fast, which is q8");
}

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta device: out of memory");
}

/* With room for the members, but none of them. *out also after a failure; NULL possible. */
static enum sheaf_status new_device(size_t n_devs, struct meta_device **out) {
    struct meta_device *m = *out = calloc(1, sizeof *m);
    if (!m) return no_memory();
    m->members = malloc(n_devs * sizeof(sheaf_backend_dev_t));
    m->member_rank = malloc(n_devs * sizeof *m->member_rank);
    m->local = malloc(n_devs * sizeof *m->local);
    m->loading = calloc(n_devs, sizeof *m->loading);
    m->reading.sizes = calloc((size_t)sheaf_world_size(), sizeof *m->reading.sizes);
    m->mirrored = sheaf_split_state_mirrored((int)n_devs);
    const bool ok =
        m->members && m->member_rank && m->local && m->loading && m->reading.sizes && m->mirrored;
    return ok ? SHEAF_STATUS_SUCCESS : no_memory();
}

static void take_members(struct meta_device *m, const sheaf_backend_dev_t *devs, size_t n_devs) {
    m->n_members = (int)n_devs;
    for (int i = 0; i < m->n_members; i++) {
        m->members[i] = devs[i];
        sheaf__registry_retain(devs[i]->reg);
        m->member_rank[i] = sheaf_world_device_rank(devs[i]);
        if (m->member_rank[i] != sheaf_world_rank()) continue;
        m->loading[m->n_local].device = devs[i];
        m->local[m->n_local++] = i;
    }
}

static int count_ranks(const struct meta_device *m) {
    int n = 0;
    for (int i = 0; i < m->n_members; i++)
        n += i == 0 || m->member_rank[i] != m->member_rank[i - 1];
    return n;
}

/* The group of the members, which is the last to be made: the ranks measure their links. */
static enum sheaf_status make_group(struct meta_device *m, enum sheaf_type wire_type) {
    const struct sheaf_comm_params params = {.size = sizeof params, .wire_type = wire_type};
    const enum sheaf_status st = sheaf_comm_new(m->member_rank, m->n_members, &params, &m->comm);
    if (st) return st;
    snprintf(m->description, sizeof m->description, "%d members on %d ranks, %s", m->n_members,
             count_ranks(m), sheaf_comm_describe(m->comm));
    return st;
}

enum sheaf_status sheaf_backend_meta_device(const sheaf_backend_dev_t *devs, size_t n_devs,
                                            sheaf_backend_meta_get_split_state_fn get_split_state,
                                            const void *user,
                                            const struct sheaf_backend_meta_params *params,
                                            sheaf_backend_dev_t *out) {
    struct sheaf_backend_meta_params p = {0};
    struct meta_device *m = NULL;
    bool whole_sums = false;
    *out = NULL;
    enum sheaf_status st = check_members(devs, n_devs, get_split_state);
    if (!st) st = take_params(params, &p);
    st = sheaf_world_agree(st, "meta device");
    if (!st) st = agree_on_sums(&whole_sums);
    if (!st) st = agree_on_rounding(devs, n_devs);
    if (st) return st;
    st = sheaf_world_agree(new_device(n_devs, &m), "meta device");
    if (st) goto out;
    take_members(m, devs, n_devs);
    st = sheaf__meta_support_new(m->members, m->member_rank, m->n_members, &m->support);
    st = sheaf_world_agree(st, "meta device");
    if (st) goto out;
    m->base = (struct sheaf_backend_device){.iface = &device_iface, .context = m};
    m->buft = (struct sheaf_backend_buffer_type){
        .iface = &sheaf__meta_buft_iface, .device = &m->base, .context = m};
    snprintf(m->name, sizeof m->name, "META%d", m->n_members);
    m->everywhere = count_ranks(m) == sheaf_world_size();
    m->get_split_state = get_split_state;
    m->user = user;
    m->overlap = p.overlap;
    m->whole_sums = whole_sums;
    st = make_group(m, p.wire_type);
out:
    if (!st)
        *out = &m->base;
    else if (m)
        sheaf_backend_meta_device_free(&m->base);
    return st;
}

void sheaf_backend_meta_device_free(sheaf_backend_dev_t dev) {
    if (!dev) return;
    struct meta_device *m = (struct meta_device *)dev; /* base is the first member */
    sheaf_comm_free(m->comm);
    sheaf__meta_support_free(m->support);
    sheaf_split_state_free(m->mirrored);
    for (int i = 0; m->loading && i < m->n_local; i++) sheaf__meta_staging_free(&m->loading[i]);
    for (int i = 0; i < m->n_members; i++) sheaf__registry_release(m->members[i]->reg);
    sheaf__meta_staging_free(&m->reading.own);
    sheaf__meta_staging_free(&m->reading.all);
    sheaf__meta_staging_free(&m->reading.whole);
    free(m->reading.sizes);
    free(m->loading);
    free(m->members);
    free(m->member_rank);
    free(m->local);
    free(m);
}

static const struct meta_device *meta_of(sheaf_backend_dev_t dev) {
    return sheaf_backend_dev_is_meta(dev) ? dev->context : NULL;
}

size_t sheaf_backend_meta_dev_n_members(sheaf_backend_dev_t dev) {
    const struct meta_device *m = meta_of(dev);
    return m ? (size_t)m->n_members : 0;
}
sheaf_backend_dev_t sheaf_backend_meta_dev_member(sheaf_backend_dev_t dev, size_t i) {
    const struct meta_device *m = meta_of(dev);
    return m && i < (size_t)m->n_members ? m->members[i] : NULL;
}
size_t sheaf_backend_meta_dev_n_local(sheaf_backend_dev_t dev) {
    const struct meta_device *m = meta_of(dev);
    return m ? (size_t)m->n_local : 0;
}
size_t sheaf_backend_meta_dev_local_member(sheaf_backend_dev_t dev, size_t i) {
    const struct meta_device *m = meta_of(dev);
    return m && i < (size_t)m->n_local ? (size_t)m->local[i] : SIZE_MAX;
}
bool sheaf_backend_meta_dev_asks_all(sheaf_backend_dev_t dev) {
    const struct meta_device *m = meta_of(dev);
    return m && sheaf__meta_asks_all(m->support);
}
struct sheaf_comm *sheaf_backend_meta_dev_comm(sheaf_backend_dev_t dev) {
    const struct meta_device *m = meta_of(dev);
    return m ? m->comm : NULL;
}

static const struct meta_tensor *record_of(const struct sheaf_tensor *tensor) {
    const sheaf_backend_buffer_t buffer = sheaf__memory_owner(tensor)->buffer;
    const struct meta_tensor *record =
        buffer && sheaf__meta_is_buffer(buffer) ? tensor->extra : NULL;
    return record && record->state ? record : NULL;
}

const struct sheaf_split_state *sheaf_backend_meta_get_state(const struct sheaf_tensor *tensor) {
    const struct meta_tensor *record = record_of(tensor);
    return record ? record->state : NULL;
}

struct sheaf_tensor *sheaf_backend_meta_get_slice(const struct sheaf_tensor *tensor, size_t i) {
    const struct meta_tensor *record = record_of(tensor);
    const struct meta_device *m =
        record ? sheaf__memory_owner(tensor)->buffer->buft->context : NULL;
    return record && i < (size_t)m->n_local ? record->slices[i] : NULL;
}
