/* libggml-sheaf.so as ggml sees it: a registry entry, its devices, their buffer types, buffers and
 * backends. Every function in ggml's tables is here, and calls driver.h for what it does.
 *
 * The entry has one device over all ranks of the job, SHEAF, or one for each group of ranks,
 * SHEAF0, SHEAF1 and so on. Groups are asynchronous devices with events, so that a program computes
 * on all of them at once. The device SHEAF is synchronous, so that the call that computes a graph
 * returns its failure.
 *
 * ggml_backend_init may be called several times, and by a program that refuses the plugin
 * afterwards: nothing is started before all checks, everything is started once, and the library is
 * never unloaded (-z nodelete), since its thread owns MPI. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/claim.h"
#include "ggml/driver.h"
#include "ggml/groups.h"

#define SHEAF_PUBLIC __attribute__((visibility("default")))

static struct gg_host host;
static struct gg_reg reg;
static size_t n_devices;
static struct gg_device devices[GG_MAX_GROUPS];
static char names[GG_MAX_GROUPS][32];
static union {
    struct gg_buft_2 v2;
    struct gg_buft_3 v3;
} bufts[GG_MAX_GROUPS];

static bool has_events(void) { return n_devices > 1; }

static size_t number_of(const struct gg_device *dev) { return (size_t)(dev - devices); }
static struct gg_device *device_of_buft(const struct gg_buft *b) {
    const struct gg_buft_2 *v2 = (const struct gg_buft_2 *)b;
    const struct gg_buft_3 *v3 = (const struct gg_buft_3 *)b;
    return host.api_version == 2 ? v2->device : v3->device;
}
static struct gg_buft *buft_of(size_t device) { return (struct gg_buft *)&bufts[device]; }

static const char *name_of_reg(struct gg_reg *r) {
    (void)r;
    return "SHEAF";
}
static const char *name_of_device(struct gg_device *dev) { return names[number_of(dev)]; }
static const char *name_of_buft(struct gg_buft *b) { return name_of_device(device_of_buft(b)); }
static struct gg_device *device_of(struct gg_backend *b) {
    return host.is_0_9 ? ((struct gg_backend_0_9 *)b)->device : b->device;
}
static const char *name_of_backend(struct gg_backend *b) { return name_of_device(device_of(b)); }

/* ---- buffers ---- */

static struct gg_memory *memory_of(struct gg_buffer *b) { return gg_host_rest(&host, b)->context; }
static void free_buffer(struct gg_buffer *b) { gg_driver_free(memory_of(b)); }
static void *get_base(struct gg_buffer *b) { return memory_of(b)->base; }
static void memset_tensor(struct gg_buffer *b, struct gg_tensor *t, uint8_t value, size_t offset,
                          size_t size) {
    gg_driver_fill(memory_of(b), t, value, offset, size);
}
static void set_tensor(struct gg_buffer *b, struct gg_tensor *t, const void *data, size_t offset,
                       size_t size) {
    gg_driver_set(memory_of(b), t, data, offset, size);
}
static void get_tensor(struct gg_buffer *b, const struct gg_tensor *t, void *data, size_t offset,
                       size_t size) {
    gg_driver_get(memory_of(b), t, data, offset, size);
}
static void clear(struct gg_buffer *b, uint8_t value) { gg_driver_clear(memory_of(b), value); }

static const struct gg_buffer_i buffer_iface = {
    .free_buffer = free_buffer,
    .get_base = get_base,
    .memset_tensor = memset_tensor,
    .set_tensor = set_tensor,
    .get_tensor = get_tensor,
    .clear = clear,
};

struct gg_memory *gg_plugin_memory_of(const struct gg_tensor *t) {
    return t->buffer && t->buffer->iface.free_buffer == free_buffer ? memory_of(t->buffer) : NULL;
}

/* ggml plans with buffers that have this type and no memory: alloc_buffer has not made those. */
bool gg_plugin_is_for_us(const struct gg_tensor *t, size_t device) {
    struct gg_buft *buft = gg_host_rest(&host, t->buffer)->buft;
    struct gg_device *of = device_of_buft(buft);
    return buft == buft_of(device) || (of && of->iface.get_type(of) == GG_DEVICE_TYPE_META);
}

static struct gg_buffer *alloc_buffer(struct gg_buft *b, size_t size) {
    struct gg_memory *m = gg_driver_alloc(number_of(device_of_buft(b)), size);
    if (!m) {
        sheaf_log(SHEAF_LOG_ERROR, "cannot reserve %zu bytes of addresses", size);
        return NULL;
    }
    struct gg_buffer *buffer = gg_host_new_buffer(&host, b, &buffer_iface, m, size);
    gg_driver_keep(m, buffer);
    return buffer;
}

static size_t get_alignment(struct gg_buft *b) {
    (void)b;
    return 128;
}

/* These fields are in both layouts. */
#define BUFT(of)                                                                                   \
    {                                                                                              \
        .get_name = name_of_buft, .alloc_buffer = alloc_buffer, .get_alignment = get_alignment,    \
        .device = (of)                                                                             \
    }
static void fill_buft(size_t i) {
    if (host.api_version == 2)
        bufts[i].v2 = (struct gg_buft_2)BUFT(&devices[i]);
    else
        bufts[i].v3 = (struct gg_buft_3)BUFT(&devices[i]);
}

/* ---- backends ---- */

static void free_backend(struct gg_backend *b) { free(b); }

static int32_t graph_compute(struct gg_backend *b, struct gg_cgraph *graph) {
    switch (gg_driver_compute(number_of(device_of(b)), graph)) {
    case SHEAF_STATUS_SUCCESS:
        return GG_STATUS_SUCCESS;
    case SHEAF_STATUS_ALLOC_FAILED:
        return GG_STATUS_ALLOC_FAILED;
    default:
        return GG_STATUS_FAILED;
    }
}

/* ---- runs of a group that go on while the program does other work: waits and events ---- */

struct event {
    struct gg_event base;
    uint64_t run; /* of the device */
};

static void synchronize(struct gg_backend *b) {
    const size_t i = number_of(device_of(b));
    gg_driver_wait(i, gg_driver_last_run(i));
}
static struct gg_event *event_new(struct gg_device *dev) {
    struct event *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->base.device = dev;
    return &e->base;
}
static void event_free(struct gg_device *dev, struct gg_event *event) {
    (void)dev;
    free(event);
}
static void event_record(struct gg_backend *b, struct gg_event *event) {
    ((struct event *)event)->run = gg_driver_last_run(number_of(device_of(b)));
}
static void event_synchronize(struct gg_device *dev, struct gg_event *event) {
    gg_driver_wait(number_of(dev), ((const struct event *)event)->run);
}
/* Commands reach a device in their order, and inputs are read when they are sent. */
static void event_wait(struct gg_backend *b, struct gg_event *event) {
    if (event->device != device_of(b)) event_synchronize(event->device, event);
}

static bool copy_async(struct gg_backend *from, struct gg_backend *to, const struct gg_tensor *src,
                       struct gg_tensor *dst) {
    (void)from;
    (void)to;
    return gg_driver_copy_later(src, dst);
}

/* These fields are in both layouts. */
#define BACKEND(of)                                                                                \
    {                                                                                              \
        .guid = guid, .device = (of), .iface = {                                                   \
            .get_name = name_of_backend,                                                           \
            .free = free_backend,                                                                  \
            .graph_compute = graph_compute,                                                        \
            .cpy_tensor_async = has_events() ? copy_async : NULL,                                  \
            .synchronize = has_events() ? synchronize : NULL,                                      \
            .event_record = has_events() ? event_record : NULL,                                    \
            .event_wait = has_events() ? event_wait : NULL                                         \
        }                                                                                          \
    }
static struct gg_backend *init_backend(struct gg_device *dev, const char *params) {
    static uint8_t guid[16] = {0x5a, 0x1c, 0x88, 0x3f, 0x21, 0x7d, 0x4e, 0x0b,
                               0x9c, 0x46, 0xd2, 0x77, 0x13, 0xe8, 0xf0, 0xa5};
    union {
        struct gg_backend now;
        struct gg_backend_0_9 then;
    } *b = calloc(1, sizeof *b);
    (void)params;
    if (!b) return NULL;
    if (host.is_0_9)
        b->then = (struct gg_backend_0_9)BACKEND(dev);
    else
        b->now = (struct gg_backend)BACKEND(dev);
    return (struct gg_backend *)b;
}

/* ---- devices ---- */

static const char *get_description(struct gg_device *dev) {
    return gg_driver_description(number_of(dev));
}
static void get_memory(struct gg_device *dev, size_t *free_bytes, size_t *total) {
    gg_driver_memory(number_of(dev), free_bytes, total);
}
static int32_t get_type(struct gg_device *dev) {
    (void)dev;
    return GG_DEVICE_TYPE_GPU;
}
/* Hosts that have mmap_support cannot be told from those that lack it, whose structure has a byte without
 * a use there. Without it llama.cpp reads all weights into the memory of rank 0 before they are sent. */
static_assert(offsetof(struct gg_props, caps.mmap_support) / _Alignof(struct gg_props) ==
                  offsetof(struct gg_props, caps.events) / _Alignof(struct gg_props),
              "a structure without it has padding there");
static void get_props(struct gg_device *dev, struct gg_props *props) {
    props->name = name_of_device(dev);
    props->description = get_description(dev);
    get_memory(dev, &props->memory_free, &props->memory_total);
    props->type = GG_DEVICE_TYPE_GPU;
    props->device_id = NULL;
    props->caps.async = props->caps.events = has_events();
    props->caps.host_buffer = props->caps.buffer_from_host_ptr = false;
    props->caps.mmap_support = true;
}
static struct gg_buft *get_buffer_type(struct gg_device *dev) { return buft_of(number_of(dev)); }
static bool supports_op(struct gg_device *dev, const struct gg_tensor *op) {
    return gg_driver_supports(number_of(dev), op);
}
static bool supports_buft(struct gg_device *dev, struct gg_buft *b) {
    return b == buft_of(number_of(dev));
}

static void fill_device(size_t i) {
    devices[i] = (struct gg_device){.iface = {.get_name = name_of_device,
                                              .get_description = get_description,
                                              .get_memory = get_memory,
                                              .get_type = get_type,
                                              .get_props = get_props,
                                              .init_backend = init_backend,
                                              .get_buffer_type = get_buffer_type,
                                              .supports_op = supports_op,
                                              .supports_buft = supports_buft},
                                    .reg = &reg};
    if (has_events()) {
        devices[i].iface.event_new = event_new;
        devices[i].iface.event_free = event_free;
        devices[i].iface.event_synchronize = event_synchronize;
        snprintf(names[i], sizeof names[i], "SHEAF%zu", i);
    } else {
        snprintf(names[i], sizeof names[i], "SHEAF");
    }
}

/* ---- the registry entry ---- */

static size_t get_device_count(struct gg_reg *r) {
    (void)r;
    return n_devices;
}
static struct gg_device *get_device(struct gg_reg *r, size_t index) {
    (void)r;
    return index < n_devices ? &devices[index] : NULL;
}
static void *get_proc_address(struct gg_reg *r, const char *name) {
    (void)r;
    (void)name;
    return NULL;
}

static void fill_reg(void) {
    reg = (struct gg_reg){.api_version = host.api_version,
                          .iface = {.get_name = name_of_reg,
                                    .get_device_count = get_device_count,
                                    .get_device = get_device,
                                    .get_proc_address = get_proc_address}};
}

static void log_host(void) {
    if (gg_logs_details())
        sheaf_log(SHEAF_LOG_DEBUG, "SHEAF: ggml %s, backend API %d; not known here: %s",
                  host.version, host.api_version, host.unknown[0] ? host.unknown : "nothing");
}

static bool fits(const void *caller) {
    if (!gg_host_find(caller, &host)) return true;
    sheaf_log(SHEAF_LOG_WARN,
              "SHEAF stays out of this program: %s (ggml %s, plugin for backend API 2 and 3)",
              sheaf_last_error(), host.version);
    return false;
}

static bool start(void) {
    log_host();
    if (gg_claim_take()) {
        sheaf_log(SHEAF_LOG_WARN, "SHEAF stays out of this program: %s", sheaf_last_error());
        return false;
    }
    fill_reg();
    if (gg_driver_start(&host)) return false;
    n_devices = gg_driver_n_devices();
    for (size_t i = 0; i < n_devices; i++) {
        fill_buft(i);
        fill_device(i);
    }
    atexit(gg_driver_stop);
    return true;
}

/* Numbers, layouts and the uids of graphs are those of the ggml that came first and fits: another one in the
 * same process (Python's packages bring their own) would have its ops taken for others. */
static bool serves(const void *caller) {
    if (!gg_host_is_of(&host, caller)) return true;
    sheaf_log(SHEAF_LOG_WARN, "SHEAF serves one ggml: %s", sheaf_last_error());
    return false;
}

SHEAF_PUBLIC struct gg_reg *ggml_backend_init(void);
SHEAF_PUBLIC struct gg_reg *ggml_backend_init(void) {
    static bool settled, usable;
    const void *caller = __builtin_return_address(0);
    /* A rank whose members are devices of ggml opens that library, which may load the plugin in
     * turn: there it gives no device. */
    if (sheaf_backend_reg_by_name("ggml")) settled = true;
    if (!settled && !fits(caller)) return NULL;
    if (!settled) usable = start();
    settled = true;
    return usable && serves(caller) ? &reg : NULL;
}
