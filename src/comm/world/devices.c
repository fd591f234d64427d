/* All devices of the job in one list: this rank's own objects, and remote devices.
 *
 * A remote device answers questions (name, type, memory, what it supports) and refuses work. It
 * judges ops as the first local device of its type does, so that ranks with the same build decide
 * alike. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/registry.h"
#include "base/locale.h"
#include "base/settings.h"
#include "comm/world/world.h"
#include "sheaf/backend-impl.h"

/* a device on the wire: type 4, caps 4, free 8, total 8, name 64, description 128 */
enum {
    D_TYPE = 0,
    D_CAPS = 4,
    D_FREE = 8,
    D_TOTAL = 16,
    D_NAME = 24,
    NAME_BYTES = 64,
    D_TEXT = D_NAME + NAME_BYTES,
    TEXT_BYTES = 128,
    DEVICE_BYTES = D_TEXT + TEXT_BYTES,
    MAX_DEVICES = 65536, /* of the job */
};

struct remote_device {
    struct sheaf_backend_device base;
    struct sheaf_backend_dev_props props;
    char name[NAME_BYTES + 16];
    char description[TEXT_BYTES];
    sheaf_backend_dev_t model; /* a local device of the same type; NULL if there is none */
};

static struct {
    sheaf_backend_dev_t *devices;
    struct remote_device *remote;
    size_t n;
} list;

static const struct remote_device *remote(sheaf_backend_dev_t dev) { return dev->context; }

static const char *remote_name(sheaf_backend_dev_t dev) { return remote(dev)->name; }
static const char *remote_description(sheaf_backend_dev_t dev) { return remote(dev)->description; }
static void remote_memory(sheaf_backend_dev_t dev, size_t *avail, size_t *total) {
    *avail = remote(dev)->props.memory_free;
    *total = remote(dev)->props.memory_total;
}
static enum sheaf_backend_dev_type remote_type(sheaf_backend_dev_t dev) {
    return remote(dev)->props.type;
}
static void remote_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    *props = remote(dev)->props;
}
static enum sheaf_status remote_init(sheaf_backend_dev_t dev, const char *params,
                                     sheaf_backend_t *out) {
    (void)params;
    *out = NULL;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "device %s belongs to %s; only that rank can start it",
                           remote(dev)->name, sheaf__rank_text(remote(dev)->props.rank));
}
static sheaf_backend_buffer_type_t remote_buffer_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return NULL;
}
static bool remote_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    sheaf_backend_dev_t model = remote(dev)->model;
    return !model || sheaf_backend_dev_supports_op(model, op);
}
static bool remote_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    (void)dev;
    (void)buft;
    return false;
}

static const struct sheaf_backend_device_i remote_iface = {
    .get_name = remote_name,
    .get_description = remote_description,
    .get_memory = remote_memory,
    .get_type = remote_type,
    .get_props = remote_props,
    .init_backend = remote_init,
    .get_buffer_type = remote_buffer_type,
    .supports_op = remote_supports_op,
    .supports_buft = remote_supports_buft,
};

static const char *remote_reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return "remote";
}
static size_t remote_reg_count(sheaf_backend_reg_t reg) {
    (void)reg;
    return 0;
}
static sheaf_backend_dev_t remote_reg_get(sheaf_backend_reg_t reg, size_t index) {
    (void)reg;
    (void)index;
    return NULL;
}
static const struct sheaf_backend_reg_i remote_reg_iface = {
    .get_name = remote_reg_name,
    .get_device_count = remote_reg_count,
    .get_device = remote_reg_get,
};
static struct sheaf_backend_reg remote_reg = {SHEAF_BACKEND_API_VERSION, &remote_reg_iface, NULL};

static void pack(sheaf_backend_dev_t dev, uint8_t *out) {
    struct sheaf_backend_dev_props p;
    sheaf_backend_dev_get_props(dev, &p);
    const unsigned caps = (unsigned)p.caps.async | (unsigned)p.caps.host_buffer << 1 |
                          (unsigned)p.caps.buffer_from_host_ptr << 2 | (unsigned)p.caps.events << 3;
    memset(out, 0, DEVICE_BYTES);
    sheaf__put_le(out + D_TYPE, (uint64_t)p.type, 4);
    sheaf__put_le(out + D_CAPS, caps, 4);
    sheaf__put_le(out + D_FREE, p.memory_free, 8);
    sheaf__put_le(out + D_TOTAL, p.memory_total, 8);
    snprintf((char *)out + D_NAME, NAME_BYTES, "%s", p.name ? p.name : "?");
    snprintf((char *)out + D_TEXT, TEXT_BYTES, "%s", p.description ? p.description : "");
}

static enum sheaf_status unpack(const uint8_t *in, int rank, struct remote_device *d) {
    const uint64_t type = sheaf__get_le(in + D_TYPE, 4);
    const unsigned caps = (unsigned)sheaf__get_le(in + D_CAPS, 4);
    snprintf(d->name, sizeof d->name, "%.*s@%d", NAME_BYTES - 1, (const char *)in + D_NAME, rank);
    snprintf(d->description, sizeof d->description, "%.*s", TEXT_BYTES - 1,
             (const char *)in + D_TEXT);
    d->props = (struct sheaf_backend_dev_props){
        .name = d->name,
        .description = d->description,
        .memory_free = (size_t)sheaf__get_le(in + D_FREE, 8),
        .memory_total = (size_t)sheaf__get_le(in + D_TOTAL, 8),
        .type = (enum sheaf_backend_dev_type)type,
        .remote = true,
        .rank = rank,
        .caps = {.async = caps & 1,
                 .host_buffer = caps >> 1 & 1,
                 .buffer_from_host_ptr = caps >> 2 & 1,
                 .events = caps >> 3 & 1},
    };
    d->base = (struct sheaf_backend_device){&remote_iface, &remote_reg, d};
    if (type > SHEAF_BACKEND_DEVICE_TYPE_META)
        return sheaf_set_error(SHEAF_STATUS_PEER, "list devices: %s has a device %s of type %llu",
                               sheaf__rank_text(rank), d->name, (unsigned long long)type);
    d->model = sheaf_backend_dev_by_type(d->props.type);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- SHEAF_DEVICES ---- */

bool sheaf_world_device_matches(const char *entry, size_t n, sheaf_backend_dev_t dev) {
    const char *name = sheaf_backend_dev_name(dev), *at = memchr(entry, '@', n);
    const int rank = sheaf_world_device_rank(dev);
    const size_t len = strcspn(name, "@");
    size_t own = at ? (size_t)(at - entry) : n;
    char *end = NULL;
    if (at &&
        (!isdigit((unsigned char)at[1]) || strtol(at + 1, &end, 10) != rank || end != entry + n))
        return false;
    const bool any = own && entry[own - 1] == '*';
    own -= any;
    return (any ? own <= len : own == len) && !sheaf__strncasecmp(entry, name, own);
}

static bool is_listed(const char *names, sheaf_backend_dev_t dev) {
    for (const char *p = names; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (sheaf_world_device_matches(p, strcspn(p, ","), dev)) return true;
    return false;
}

static const char *wanted_devices(void) {
    const char *names = sheaf__setting_text(SHEAF__SET_DEVICES);
    return names && strcmp(names, "all") ? names : NULL;
}

/* This rank's devices in the list; in `own`, which has room for all. */
static size_t choose_own(const char *names, size_t n, sheaf_backend_dev_t *own) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        sheaf_backend_dev_t dev = sheaf_backend_dev_get(i);
        if (!names || is_listed(names, dev)) own[used++] = dev;
    }
    return used;
}

/* An entry that means no device of the job is misspelt. */
static enum sheaf_status check_entries(const char *names) {
    for (const char *p = names; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        const size_t n = strcspn(p, ",");
        bool found = false;
        for (size_t i = 0; i < list.n && !found; i++)
            found = sheaf_world_device_matches(p, n, list.devices[i]);
        if (!found)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "SHEAF_DEVICES: no rank has a device '%.*s' (sheaf-info lists "
                                   "them)",
                                   (int)n, p);
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "list devices: out of memory");
}

/* Bytes of each rank's devices on the wire, and how many devices there are. st: of this rank so
 * far. */
static enum sheaf_status count_all(enum sheaf_status st, size_t n_own, size_t *sizes,
                                   size_t *total) {
    const int size = sheaf_world_size();
    uint8_t own[4], *counts = calloc((size_t)size, sizeof own);
    sheaf__put_le(own, n_own, sizeof own);
    if (!st && !counts) st = no_memory();
    st = sheaf_world_agree(st, "list devices");
    if (!st) st = sheaf_world_all_gather(own, sizeof own, counts, "list devices");
    *total = 0;
    for (int r = 0; r < size && !st; r++) {
        const size_t n = (size_t)sheaf__get_le(counts + sizeof own * (size_t)r, sizeof own);
        sizes[r] = n * DEVICE_BYTES;
        if ((*total += n) > MAX_DEVICES)
            st = sheaf_set_error(SHEAF_STATUS_INVALID, "list devices: more than %d in the job",
                                 MAX_DEVICES);
    }
    free(counts);
    return st;
}

/* Makes the list, in the order of ranks, of this rank's devices and of what all have told. */
static enum sheaf_status fill_list(const sheaf_backend_dev_t *own, const uint8_t *all,
                                   const size_t *sizes) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int r = 0; r < sheaf_world_size(); r++)
        for (size_t i = 0; i < sizes[r] / DEVICE_BYTES; i++) {
            const size_t at = list.n++;
            if (r == sheaf_world_rank()) {
                list.devices[at] = own[i];
                sheaf__registry_retain(own[i]->reg);
                continue;
            }
            if (!st) st = unpack(all + at * DEVICE_BYTES, r, &list.remote[at]);
            list.devices[at] = &list.remote[at].base;
        }
    return st;
}

/* own [n_own]: this rank's devices. sizes: room for a number of each rank. */
static enum sheaf_status exchange_all(enum sheaf_status st, const sheaf_backend_dev_t *own,
                                      size_t n_own, size_t *sizes, const char *wanted) {
    size_t total = 0;
    if ((st = count_all(st, n_own, sizes, &total))) return st;
    uint8_t *packed = calloc(n_own + 1, DEVICE_BYTES), *all = calloc(total + 1, DEVICE_BYTES);
    list.devices = calloc(total + 1, sizeof(sheaf_backend_dev_t));
    list.remote = calloc(total + 1, sizeof *list.remote);
    if (!packed || !all || !list.devices || !list.remote) st = no_memory();
    st = sheaf_world_agree(st, "list devices");
    for (size_t i = 0; i < n_own && !st; i++) pack(own[i], packed + i * DEVICE_BYTES);
    if (!st) st = sheaf_world_all_gather_v(packed, all, sizes, "list devices");
    if (!st) {
        st = fill_list(own, all, sizes);
        st = sheaf_world_agree(st ? st : check_entries(wanted), "list devices");
    }
    free(packed);
    free(all);
    return st;
}

static enum sheaf_status build(void) {
    const char *wanted = wanted_devices();
    sheaf_clear_error();
    const size_t n_all = sheaf_backend_dev_count(); /* says why through the error text alone */
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (*sheaf_last_error())
        st = sheaf_set_error(SHEAF_STATUS_INVALID, "list devices: %s", sheaf_last_error());
    sheaf_backend_dev_t *own = calloc(n_all + 1, sizeof(sheaf_backend_dev_t));
    size_t *sizes = calloc((size_t)sheaf_world_size(), sizeof *sizes);
    if (!own || !sizes) st = no_memory();
    const size_t n_own = own ? choose_own(wanted, n_all, own) : 0;
    st = exchange_all(st, own, n_own, sizes, wanted);
    if (st) sheaf__devices_free();
    free(own);
    free(sizes);
    return st;
}

void sheaf__devices_free(void) {
    for (size_t i = 0; i < list.n; i++) sheaf__registry_release(list.devices[i]->reg);
    free(list.devices);
    free(list.remote);
    memset(&list, 0, sizeof list);
}

enum sheaf_status sheaf_world_devices(const sheaf_backend_dev_t **devices, size_t *n) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!list.devices && !sheaf__world()->started && sheaf__launched())
        st = sheaf_set_error(SHEAF_STATUS_INVALID,
                             "list devices: call sheaf_world_init first; a launcher started this "
                             "process, and without it each rank would be alone");
    else if (!list.devices)
        st = build();
    *devices = list.devices;
    *n = list.n;
    return st;
}

void sheaf_world_device_name(sheaf_backend_dev_t dev, char *name, size_t size) {
    if (dev->iface == &remote_iface) /* its name has the rank */
        snprintf(name, size, "%s", remote(dev)->name);
    else
        snprintf(name, size, "%s@%d", sheaf_backend_dev_name(dev), sheaf_world_rank());
}

int sheaf_world_device_rank(sheaf_backend_dev_t dev) {
    return dev && dev->iface == &remote_iface ? remote(dev)->props.rank : sheaf_world_rank();
}
