/* The module libsheaf-ggml.so: its registry entry and its devices, ggml:NAME.
 *
 * A library of ggml is opened when the setting SHEAF_DEVICES names one of its devices ("ggml:..."),
 * and not before: its kernels round where ours do not, so a job has them because it asks for them.
 * Devices are listed once and stay. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/optional.h"
#include "base/locale.h"
#include "ggml/member.h"

enum { MAX_DEVICES = 32 };

static struct sheaf_backend_reg entry;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gg_member members[MAX_DEVICES];
static size_t n_members;
static bool listed;

/* ---- device ---- */

static const char *dev_name(sheaf_backend_dev_t dev) { return gg_member_of(dev)->name; }
static const char *dev_description(sheaf_backend_dev_t dev) {
    return gg_member_of(dev)->description;
}
static void dev_memory(sheaf_backend_dev_t dev, size_t *available, size_t *total) {
    const struct gg_member *m = gg_member_of(dev);
    m->lib->dev_memory(m->dev, available, total);
}
static enum sheaf_backend_dev_type dev_type(sheaf_backend_dev_t dev) {
    switch (gg_member_of(dev)->type) {
    case GG_DEVICE_TYPE_CPU:
        return SHEAF_BACKEND_DEVICE_TYPE_CPU;
    case GG_DEVICE_TYPE_GPU:
    case GG_DEVICE_TYPE_IGPU:
        return SHEAF_BACKEND_DEVICE_TYPE_GPU;
    default:
        return SHEAF_BACKEND_DEVICE_TYPE_ACCEL;
    }
}
static void dev_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    props->name = dev_name(dev);
    props->description = dev_description(dev);
    dev_memory(dev, &props->memory_free, &props->memory_total);
    props->type = dev_type(dev);
    props->caps = gg_member_of(dev)->caps;
}
static enum sheaf_status dev_init(sheaf_backend_dev_t dev, const char *params,
                                  sheaf_backend_t *out) {
    return gg_member_backend_new(gg_member_of(dev), params, out);
}
static sheaf_backend_buffer_type_t dev_buft(sheaf_backend_dev_t dev) {
    return &gg_member_of(dev)->buft;
}
static sheaf_backend_buffer_type_t dev_host_buft(sheaf_backend_dev_t dev) {
    struct gg_member *m = gg_member_of(dev);
    return m->gg_host_buft ? &m->host_buft : NULL;
}
static bool dev_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    return gg_member_supports(gg_member_of(dev), op);
}
static bool dev_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    return buft == dev_buft(dev);
}

#define FUNCTIONS                                                                                  \
    .get_name = dev_name, .get_description = dev_description, .get_memory = dev_memory,            \
    .get_type = dev_type, .get_props = dev_props, .init_backend = dev_init,                        \
    .get_buffer_type = dev_buft, .get_host_buffer_type = dev_host_buft,                            \
    .supports_op = dev_supports_op, .supports_buft = dev_supports_buft
static const struct sheaf_backend_device_i device_i = {FUNCTIONS};
/* Of devices whose queues can be waited for at a point. */
static const struct sheaf_backend_device_i device_with_events_i = {
    FUNCTIONS,
    .event_new = gg_member_event_new,
    .event_free = gg_member_event_free,
    .event_synchronize = gg_member_event_synchronize,
};

/* ---- listing ---- */

/* Does an entry of the list begin with "ggml:"? */
static bool is_wanted(const char *list) {
    static const char prefix[] = "ggml:";
    for (const char *p = list; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!sheaf__strncasecmp(p, prefix, sizeof prefix - 1)) return true;
    return false;
}

/* Others than these and those that compute in the host's memory (BLAS) bind memory to their kernels,
 * from an address that suits the device. */
static bool has_addresses(const char *reg) {
    static const char *const names[] = {"CUDA", "ROCm", "MUSA", "SYCL", "CANN"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(reg, names[i])) return true;
    return false;
}

static void add(const struct gg_library *lib, struct gg_device *dev) {
    union gg_any_props props;
    struct gg_member *m = &members[n_members];
    memset(&props, 0, sizeof props);
    lib->dev_get_props(dev, &props);
    m->lib = lib;
    m->dev = dev;
    m->type = props.p.type;
    m->gg_buft = lib->dev_buffer_type(dev);
    m->gg_host_buft = props.p.caps.host_buffer ? lib->dev_host_buffer_type(dev) : NULL;
    m->caps = (struct sheaf_backend_dev_caps){.async = props.p.caps.async,
                                              .host_buffer = m->gg_host_buft != NULL,
                                              .events = props.p.caps.events};
    m->has_addresses =
        lib->buft_is_host(m->gg_buft) || has_addresses(lib->reg_name(lib->dev_backend_reg(dev)));
    snprintf(m->name, sizeof m->name, "ggml:%s", lib->dev_name(dev));
    snprintf(m->description, sizeof m->description, "%s, ggml %s", lib->dev_description(dev),
             lib->host.version);
    gg_find_layouts(m);
    m->base = (struct sheaf_backend_device){m->caps.events ? &device_with_events_i : &device_i,
                                            &entry, m};
    m->buft = (struct sheaf_backend_buffer_type){&gg_member_buft_i, &m->base, m->gg_buft};
    m->host_buft = (struct sheaf_backend_buffer_type){&gg_member_buft_i, &m->base, m->gg_host_buft};
    n_members++;
}

/* All devices of the library but our own plugin's, which stands for this very job. */
static void list_devices(void) {
    if (listed || !is_wanted(sheaf_setting_value("SHEAF_DEVICES"))) return;
    const struct gg_library *lib = gg_library_open();
    if (!lib) {
        char text[1024];
        snprintf(text, sizeof text, "%s", sheaf_last_error());
        sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "SHEAF_DEVICES names a device of ggml: %s", text);
        return;
    }
    for (size_t i = 0; i < lib->dev_count() && n_members < MAX_DEVICES; i++) {
        struct gg_device *dev = lib->dev_get(i);
        if (strcmp(lib->reg_name(lib->dev_backend_reg(dev)), "SHEAF")) add(lib, dev);
    }
    listed = true;
}

/* ---- registry entry ---- */

static const char *reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return "ggml";
}
static size_t reg_device_count(sheaf_backend_reg_t reg) {
    (void)reg;
    pthread_mutex_lock(&lock);
    list_devices();
    const size_t n = n_members;
    pthread_mutex_unlock(&lock);
    return n;
}
static sheaf_backend_dev_t reg_device(sheaf_backend_reg_t reg, size_t index) {
    return index < reg_device_count(reg) ? &members[index].base : NULL;
}

static bool dev_takes(sheaf_backend_dev_t dev, const struct sheaf_tensor *slice) {
    return gg_member_takes(gg_member_of(dev), slice);
}
static void *reg_proc(sheaf_backend_reg_t reg, const char *name) {
    bool (*takes)(sheaf_backend_dev_t, const struct sheaf_tensor *) = dev_takes;
    void *p = NULL;
    (void)reg;
    if (!strcmp(name, SHEAF__TAKES_SLICE_PROC)) memcpy(&p, &takes, sizeof p);
    return p;
}

static const struct sheaf_backend_reg_i reg_i = {
    .get_name = reg_name,
    .get_device_count = reg_device_count,
    .get_device = reg_device,
    .get_proc_address = reg_proc,
};
static struct sheaf_backend_reg entry = {SHEAF_BACKEND_API_VERSION, &reg_i, NULL};

sheaf_backend_reg_t sheaf_backend_init(void) { return &entry; }
int sheaf_backend_score(void) { return 1; } /* runs anywhere */
