/* The CPU's registry entry and devices.
 *
 * Devices are listed by the first call that asks for them, after the world has said how many ranks
 * share the host; the list then stays for the life of the process. While a setting is bad there are
 * no devices, and sheaf_last_error names the variable; the next call looks again. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/optional.h"
#include "backend/registry.h"
#include "cpu/device/device.h"
#include "cpu/kernels/kernels.h"
#include "cpu/matmul/repacked.h"

static struct sheaf_backend_reg reg;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sheaf__cpu_topology *topology;
static struct sheaf__cpu_device *devices;

static struct sheaf__cpu_device *device_of(sheaf_backend_dev_t dev) { return dev->context; }

static const char *dev_name(sheaf_backend_dev_t dev) { return device_of(dev)->name; }

static const char *dev_description(sheaf_backend_dev_t dev) {
    return device_of(dev)->place->description;
}

static void dev_memory(sheaf_backend_dev_t dev, size_t *avail, size_t *total) {
    sheaf__cpu_place_memory(device_of(dev)->place, avail, total);
}

static enum sheaf_backend_dev_type dev_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return SHEAF_BACKEND_DEVICE_TYPE_CPU;
}

static void dev_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    props->name = dev_name(dev);
    props->description = dev_description(dev);
    dev_memory(dev, &props->memory_free, &props->memory_total);
    props->type = SHEAF_BACKEND_DEVICE_TYPE_CPU;
    props->caps = (struct sheaf_backend_dev_caps){
        .async = true, .buffer_from_host_ptr = true, .events = true};
}

static enum sheaf_status dev_init(sheaf_backend_dev_t dev, const char *params,
                                  sheaf_backend_t *out) {
    return sheaf__cpu_backend_new(device_of(dev), params, out);
}

static sheaf_backend_buffer_type_t dev_buft(sheaf_backend_dev_t dev) {
    return &device_of(dev)->memories[0].buft;
}

static bool dev_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    (void)dev;
    return sheaf_backend_op_is_valid(op);
}

static bool dev_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    (void)dev;
    return sheaf_backend_buft_is_host(buft) || buft->iface == &sheaf__cpu_repacked_iface;
}

static const struct sheaf_backend_device_i device_iface = {
    .get_name = dev_name,
    .get_description = dev_description,
    .get_memory = dev_memory,
    .get_type = dev_type,
    .get_props = dev_props,
    .init_backend = dev_init,
    .get_buffer_type = dev_buft,
    .supports_op = dev_supports_op,
    .supports_buft = dev_supports_buft,
    .event_new = sheaf__cpu_event_new,
    .event_free = sheaf__cpu_event_free,
    .event_synchronize = sheaf__cpu_event_synchronize,
    .buffer_from_host_ptr = sheaf__cpu_buffer_from_ptr,
};

/* The default one has the device's name alone. */
static void list_memories(struct sheaf__cpu_device *d) {
    struct sheaf__cpu_place_memory_kind kinds[SHEAF__CPU_MAX_MEMORIES];
    d->n_memories = sheaf__cpu_place_memory_kinds(d->place, kinds, SHEAF__CPU_MAX_MEMORIES);
    for (int i = 0; i < d->n_memories; i++) {
        struct sheaf__cpu_memory *m = &d->memories[i];
        m->device = d;
        m->numa = kinds[i].numa;
        snprintf(m->name, sizeof m->name, "%s%s%s", d->name, i ? ":" : "", i ? kinds[i].name : "");
        m->buft = (struct sheaf_backend_buffer_type){
            .iface = &sheaf__cpu_buft_iface, .device = &d->base, .context = m};
        m->repacked = m->buft;
        m->repacked.iface = &sheaf__cpu_repacked_iface;
    }
}

/* Called with the lock held. */
static enum sheaf_status list_devices(void) {
    struct sheaf__cpu_topology *t;
    if (devices) return SHEAF_STATUS_SUCCESS;
    if (!sheaf__cpu_kernels()) return SHEAF_STATUS_INVALID; /* SHEAF_CPU_ISA; text is set */
    enum sheaf_status status = sheaf__cpu_topology_load(&t);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    int n = sheaf__cpu_topology_n_places(t);
    struct sheaf__cpu_device *list = calloc((size_t)n, sizeof *list);
    if (!list) {
        sheaf__cpu_topology_free(t);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "cpu: no memory for %d devices", n);
    }
    for (int i = 0; i < n; i++) {
        struct sheaf__cpu_device *d = &list[i];
        snprintf(d->name, sizeof d->name, "CPU%d", i);
        d->place = sheaf__cpu_topology_place(t, i);
        d->base.iface = &device_iface;
        d->base.reg = &reg;
        d->base.context = d;
        list_memories(d);
    }
    topology = t;
    devices = list;
    return SHEAF_STATUS_SUCCESS;
}

static const char *reg_name(sheaf_backend_reg_t r) {
    (void)r;
    return "CPU";
}

static size_t reg_device_count(sheaf_backend_reg_t r) {
    size_t n = 0;
    (void)r;
    sheaf__cpu_kernels(); /* maps a file the first time: before the lock */
    pthread_mutex_lock(&lock);
    if (list_devices() == SHEAF_STATUS_SUCCESS) n = (size_t)sheaf__cpu_topology_n_places(topology);
    pthread_mutex_unlock(&lock);
    return n;
}

static sheaf_backend_dev_t reg_device(sheaf_backend_reg_t r, size_t index) {
    return index < reg_device_count(r) ? &devices[index].base : NULL;
}

/* For SHEAF__BIND_THREAD_PROC. */
static void bind_thread(sheaf_backend_dev_t dev) {
    sheaf__cpu_place_bind_thread(device_of(dev)->place, 0);
}

static void *reg_proc(sheaf_backend_reg_t r, const char *name) {
    static const struct {
        const char *name;
        void (*fn)(void);
    } procs[] = {
        {SHEAF__BIND_THREAD_PROC, (void (*)(void))bind_thread},
        {SHEAF__ROUNDING_PROC, (void (*)(void))sheaf__rounding_name},
        {SHEAF__AS_WRITTEN_PROC, (void (*)(void))sheaf__cpu_keep_as_written},
        {"sheaf_backend_cpu_get_n_threads", (void (*)(void))sheaf_backend_cpu_get_n_threads},
        {"sheaf_backend_cpu_set_n_threads", (void (*)(void))sheaf_backend_cpu_set_n_threads},
        {"sheaf_backend_cpu_set_abort_callback",
         (void (*)(void))sheaf_backend_cpu_set_abort_callback},
        {"sheaf_backend_cpu_set_reference", (void (*)(void))sheaf_backend_cpu_set_reference},
    };
    void *p = NULL;
    (void)r;
    for (size_t i = 0; i < sizeof procs / sizeof *procs; i++) {
        if (strcmp(name, procs[i].name) == 0) memcpy(&p, &procs[i].fn, sizeof p);
    }
    return p;
}

static const struct sheaf_backend_reg_i reg_iface = {
    .get_name = reg_name,
    .get_device_count = reg_device_count,
    .get_device = reg_device,
    .get_proc_address = reg_proc,
};

static struct sheaf_backend_reg reg = {
    .api_version = SHEAF_BACKEND_API_VERSION,
    .iface = &reg_iface,
};

sheaf_backend_reg_t sheaf_backend_cpu_reg(void) { return &reg; }

bool sheaf_backend_dev_is_cpu(sheaf_backend_dev_t dev) {
    return dev && dev->iface == &device_iface;
}

size_t sheaf_backend_cpu_n_memories(sheaf_backend_dev_t dev) {
    return sheaf_backend_dev_is_cpu(dev) ? (size_t)device_of(dev)->n_memories : 0;
}

sheaf_backend_buffer_type_t sheaf_backend_cpu_memory_buffer_type(sheaf_backend_dev_t dev,
                                                                 size_t i) {
    return i < sheaf_backend_cpu_n_memories(dev) ? &device_of(dev)->memories[i].buft : NULL;
}

sheaf_backend_buffer_type_t sheaf_backend_cpu_buffer_type(void) {
    sheaf_backend_dev_t dev = reg_device(&reg, 0);
    return dev ? dev_buft(dev) : NULL;
}

enum sheaf_status sheaf_backend_cpu_buffer_from_ptr(void *ptr, size_t size,
                                                    sheaf_backend_buffer_t *out) {
    *out = NULL;
    sheaf_backend_dev_t dev = reg_device(&reg, 0);
    return dev ? sheaf_backend_dev_buffer_from_host_ptr(dev, ptr, size, size, out)
               : SHEAF_STATUS_INVALID; /* the text is list_devices's */
}

static void choose_kernels(void) { sheaf__cpu_kernels(); }

/* Core includes nothing of this folder, so the CPU brings itself. Nothing is looked at yet. */
__attribute__((constructor)) static void register_cpu(void) {
    sheaf__registry_before_walks(choose_kernels);
    sheaf_backend_register(&reg);
}
