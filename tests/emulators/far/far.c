/* Devices and streams of the far device: see far.h.
 *
 * A compute builds a graph of mapped tensors for a CPU backend, whose queue is the stream: what is
 * submitted runs later, and touching a result before sheaf_backend_synchronize shows. The mapped
 * graphs live until then. */
#include "far.h"
#include "backend/optional.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct far_device devices[FAR_MAX_DEVICES];
static size_t n_devices;
static double slowdown, late;
static const double LATEST = 3; /* seconds */

static bool is_refused(const struct sheaf_tensor *op) {
    const char *refused = getenv("SHEAF_TEST_FAR_REFUSES");
    return refused && !strcmp(refused, sheaf_op_name(op->op));
}

/* ---- streams ---- */

struct mapped { /* a graph under way */
    struct mapped *next;
    struct sheaf_context *ctx;
};

struct stream {
    struct sheaf_backend base;
    struct far_device *device;
    sheaf_backend_t cpu;
    struct mapped *under_way;
    double ended; /* the last compute; 0: none has */
};

static struct stream *stream_of(sheaf_backend_t backend) { return backend->context; }

static const char *backend_name(sheaf_backend_t backend) {
    return stream_of(backend)->device->name;
}

static void release(struct stream *s) {
    for (struct mapped *m = s->under_way, *next; m; m = next) {
        next = m->next;
        sheaf_free(m->ctx);
        free(m);
    }
    s->under_way = NULL;
}

static enum sheaf_status synchronize(sheaf_backend_t backend) {
    struct stream *s = stream_of(backend);
    enum sheaf_status st = sheaf_backend_synchronize(s->cpu);
    release(s);
    return st;
}

static void backend_free(sheaf_backend_t backend) {
    struct stream *s = stream_of(backend);
    synchronize(backend);
    sheaf_backend_free(s->cpu);
    free(s);
}

/* Original -> mapped, open addressed. */
struct pair {
    const struct sheaf_tensor *from;
    struct sheaf_tensor *to;
    bool node;
};
struct map {
    struct pair *pairs;
    size_t mask;
};

static struct pair *find(const struct map *m, const struct sheaf_tensor *t) {
    size_t i = ((uintptr_t)t >> 4) * 0x9E3779B97F4A7C15u >> 20 & m->mask;
    while (m->pairs[i].from && m->pairs[i].from != t) i = (i + 1) & m->mask;
    return &m->pairs[i];
}

static struct sheaf_tensor *mapped_tensor(const struct far_device *d, struct sheaf_context *ctx,
                                          const struct map *m, const struct sheaf_tensor *t) {
    struct pair *p = find(m, t);
    if (p->to) return p->to;
    p->from = t;
    struct sheaf_tensor *to = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 0);
    if (!to || !far_map(t, d, to)) return NULL;
    p->to = to;
    if (t->view_src && !(to->view_src = mapped_tensor(d, ctx, m, t->view_src))) return NULL;
    if (!p->node) return to; /* computed before this graph: a leaf of it */
    to->op = t->op;
    for (int i = 0; i < SHEAF_MAX_SRC && t->op != SHEAF_OP_NONE; i++) {
        if (t->src[i] && !(to->src[i] = mapped_tensor(d, ctx, m, t->src[i]))) return NULL;
    }
    return to;
}

static enum sheaf_status map_graph(struct stream *s, const struct sheaf_cgraph *graph,
                                   struct sheaf_cgraph **out) {
    const int n = sheaf_graph_n_nodes(graph);
    const size_t most = (size_t)n * (SHEAF_MAX_SRC + 1) * 2 + 1;
    struct map m = {.mask = 63};
    while (m.mask < 2 * most) m.mask = m.mask * 2 + 1;
    m.pairs = calloc(m.mask + 1, sizeof *m.pairs);
    struct mapped *g = calloc(1, sizeof *g);
    enum sheaf_status st = SHEAF_STATUS_ALLOC_FAILED;
    if (g) {
        g->ctx = sheaf_init((struct sheaf_init_params){
            .mem_size = most * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(most),
            .no_alloc = true});
        g->next = s->under_way;
        s->under_way = g;
    }
    struct sheaf_cgraph *copy = g && g->ctx ? sheaf_new_graph_custom(g->ctx, most) : NULL;
    if (!m.pairs || !copy) goto out;
    for (int i = 0; i < n; i++) {
        struct pair *p = find(&m, sheaf_graph_node(graph, i));
        *p = (struct pair){.from = sheaf_graph_node(graph, i), .node = true};
    }
    st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < n && !st; i++) {
        struct sheaf_tensor *t = mapped_tensor(s->device, g->ctx, &m, sheaf_graph_node(graph, i));
        st = t ? sheaf_build_forward_expand(copy, t) : SHEAF_STATUS_INVALID;
    }
    *out = copy;
out:
    free(m.pairs);
    return st;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void rest(double seconds) {
    const struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static enum sheaf_status check_slices(const struct stream *s, const struct sheaf_cgraph *graph) {
    for (int i = 0; i < sheaf_graph_n_nodes(graph) && far_takes_some(); i++) {
        const struct sheaf_tensor *t = sheaf_graph_node((struct sheaf_cgraph *)(uintptr_t)graph, i);
        if (!far_takes(&s->device->base, t))
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                   "%s was given %s '%s', which it refuses", s->device->name,
                                   sheaf_op_desc(t), t->name);
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status graph_compute_async(sheaf_backend_t backend, struct sheaf_cgraph *graph) {
    struct stream *s = stream_of(backend);
    struct sheaf_cgraph *copy = NULL;
    enum sheaf_status st = check_slices(s, graph);
    if (!st) st = map_graph(s, graph, &copy);
    if (st) return st;
    atomic_fetch_add(&far_counts[FAR_COMPUTES], 1);
    atomic_fetch_add(&far_counts[FAR_NODES], sheaf_graph_n_nodes(copy));
    if (slowdown <= 1 && late <= 0) return sheaf_backend_graph_compute_async(s->cpu, copy);
    st = sheaf_backend_synchronize(s->cpu);
    if (s->ended > 0) rest(fmin(late * (now() - s->ended), LATEST));
    const double begin = now();
    if (!st) st = sheaf_backend_graph_compute(s->cpu, copy);
    rest((now() - begin) * (slowdown - 1));
    s->ended = now();
    return st;
}

static enum sheaf_status graph_compute(sheaf_backend_t backend, struct sheaf_cgraph *graph) {
    enum sheaf_status st = graph_compute_async(backend, graph);
    return st ? st : synchronize(backend);
}

static enum sheaf_status set_tensor_async(sheaf_backend_t backend, struct sheaf_tensor *t,
                                          const void *data, size_t offset, size_t size) {
    struct stream *s = stream_of(backend);
    struct sheaf_tensor to;
    if (!far_map(t, s->device, &to)) return SHEAF_STATUS_INVALID;
    far_count_transfer(data);
    return sheaf_backend_tensor_set_async(s->cpu, &to, data, offset, size);
}

static enum sheaf_status get_tensor_async(sheaf_backend_t backend, const struct sheaf_tensor *t,
                                          void *data, size_t offset, size_t size) {
    struct stream *s = stream_of(backend);
    struct sheaf_tensor from;
    if (!far_map(t, s->device, &from)) return SHEAF_STATUS_INVALID;
    far_count_transfer(data);
    return sheaf_backend_tensor_get_async(s->cpu, &from, data, offset, size);
}

static const struct sheaf_backend_i backend_i = {
    .get_name = backend_name,
    .free = backend_free,
    .graph_compute = graph_compute,
    .synchronize = synchronize,
    .graph_compute_async = graph_compute_async,
    .set_tensor_async = set_tensor_async,
    .get_tensor_async = get_tensor_async,
};

/* ---- devices ---- */

static struct far_device *device_of(sheaf_backend_dev_t dev) { return dev->context; }
static sheaf_backend_dev_t cpu(void) {
    return sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU);
}

static const char *dev_name(sheaf_backend_dev_t dev) { return device_of(dev)->name; }
static const char *dev_description(sheaf_backend_dev_t dev) {
    (void)dev;
    return "memory out of reach";
}
static void dev_memory(sheaf_backend_dev_t dev, size_t *avail, size_t *total) {
    (void)dev;
    *avail = *total = (size_t)4 << 30;
}
static enum sheaf_backend_dev_type dev_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return SHEAF_BACKEND_DEVICE_TYPE_GPU;
}
static void dev_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    props->name = dev_name(dev);
    props->description = dev_description(dev);
    dev_memory(dev, &props->memory_free, &props->memory_total);
    props->type = SHEAF_BACKEND_DEVICE_TYPE_GPU;
    props->caps = (struct sheaf_backend_dev_caps){.async = true, .host_buffer = true};
}
static enum sheaf_status dev_init(sheaf_backend_dev_t dev, const char *params,
                                  sheaf_backend_t *out) {
    (void)params;
    struct stream *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "far: out of memory");
    enum sheaf_status st = sheaf_backend_dev_init(cpu(), "threads=1", &s->cpu);
    if (st) {
        free(s);
        return st;
    }
    s->device = device_of(dev);
    s->base = (struct sheaf_backend){.iface = &backend_i, .device = dev, .context = s};
    *out = &s->base;
    return st;
}
static sheaf_backend_buffer_type_t dev_buft(sheaf_backend_dev_t dev) {
    return &device_of(dev)->buft;
}
static sheaf_backend_buffer_type_t dev_host_buft(sheaf_backend_dev_t dev) {
    return &device_of(dev)->host_buft;
}
static bool dev_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    (void)dev;
    const bool yes = !is_refused(op) && sheaf_backend_dev_supports_op(cpu(), op);
    if (yes && far_takes_some()) far_knows(op);
    return yes;
}
static bool dev_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    return buft == &device_of(dev)->buft;
}
static const struct sheaf_backend_device_i device_i = {
    .get_name = dev_name,
    .get_description = dev_description,
    .get_memory = dev_memory,
    .get_type = dev_type,
    .get_props = dev_props,
    .init_backend = dev_init,
    .get_buffer_type = dev_buft,
    .get_host_buffer_type = dev_host_buft,
    .supports_op = dev_supports_op,
    .supports_buft = dev_supports_buft,
};

/* ---- the module ---- */

static const char *reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return "Far";
}
static size_t reg_count(sheaf_backend_reg_t reg) {
    (void)reg;
    return n_devices;
}
static sheaf_backend_dev_t reg_get(sheaf_backend_reg_t reg, size_t index) {
    (void)reg;
    return index < n_devices ? &devices[index].base : NULL;
}

static long far_count(const char *what) {
    static const char *const names[] = {
        [FAR_COMPUTES] = "computes",
        [FAR_NODES] = "nodes",
        [FAR_PINNED] = "pinned",
        [FAR_PAGEABLE] = "pageable",
        [FAR_HOST_BUFFERS] = "host buffers",
        [FAR_REFUSED] = "refused",
    };
    for (int i = 0; i < FAR_EVENT_COUNT; i++)
        if (!strcmp(what, names[i])) return atomic_load(&far_counts[i]);
    return -1;
}

static void *reg_proc(sheaf_backend_reg_t reg, const char *name) {
    long (*fn)(const char *) = far_count;
    bool (*takes)(sheaf_backend_dev_t, const struct sheaf_tensor *) = far_takes;
    void *address = NULL;
    (void)reg;
    if (!strcmp(name, SHEAF__TAKES_SLICE_PROC) && far_takes_some())
        memcpy(&address, &takes, sizeof address);
    if (!strcmp(name, "far_count")) memcpy(&address, &fn, sizeof address);
    if (!strcmp(name, SHEAF__DEVCOMM_PROC) && getenv("SHEAF_TEST_FAR_COMM"))
        return (void *)(uintptr_t)&far_devcomm;
    return address;
}
static const struct sheaf_backend_reg_i reg_i = {.get_name = reg_name,
                                                 .get_device_count = reg_count,
                                                 .get_device = reg_get,
                                                 .get_proc_address = reg_proc};
static struct sheaf_backend_reg entry = {SHEAF_BACKEND_API_VERSION, &reg_i, NULL};

sheaf_backend_reg_t sheaf_backend_init(void) {
    const char *count = getenv("SHEAF_TEST_FAR_DEVICES"), *slow = getenv("SHEAF_TEST_FAR_SLOWDOWN");
    const char *rests = getenv("SHEAF_TEST_FAR_LATE");
    n_devices = count ? (size_t)atoi(count) : 2;
    if (n_devices > FAR_MAX_DEVICES) n_devices = FAR_MAX_DEVICES;
    slowdown = slow ? fmax(atof(slow), 1) : 1;
    late = rests ? atof(rests) : 0;
    for (size_t i = 0; i < n_devices; i++) {
        struct far_device *d = &devices[i];
        snprintf(d->name, sizeof d->name, "Far%zu", i);
        snprintf(d->host_name, sizeof d->host_name, "Far%zu host", i);
        d->base = (struct sheaf_backend_device){&device_i, &entry, d};
        d->buft = (struct sheaf_backend_buffer_type){&far_buft_i, &d->base, d};
        d->host_buft = (struct sheaf_backend_buffer_type){&far_host_buft_i, &d->base, d};
    }
    return &entry;
}
