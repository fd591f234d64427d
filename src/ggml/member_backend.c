/* A stream of a ggml device: graphs, transfers, events.
 *
 * Graphs are translated once and kept, by the address of their first node and its number, until
 * there are too many; one that has changed is translated anew, except where its views have
 * moved. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ggml/member.h"
#include "sheaf/cpu.h"

enum { BUCKETS = 512, MAX_KEPT_TENSORS = 1 << 18 };

struct kept {
    struct kept *next;
    uint64_t key, last_use;
    struct gg_member_graph *graph;
};

struct backend {
    struct sheaf_backend base;
    struct gg_member *m;
    struct gg_backend *gg;
    struct kept *buckets[BUCKETS];
    size_t n_tensors;
    uint64_t n_uses;
    struct gg_event *reached; /* for copies to other streams; NULL: none was made */
};

static struct backend *backend_of(sheaf_backend_t base) { return (struct backend *)(void *)base; }
static const char *backend_name(sheaf_backend_t base) { return backend_of(base)->m->name; }

/* ---- kept graphs ---- */

static void drop(struct backend *b, struct kept **at) {
    struct kept *k = *at;
    *at = k->next;
    b->n_tensors -= k->graph ? gg_member_graph_n_tensors(k->graph) : 0;
    gg_member_graph_free(k->graph);
    free(k);
}

static void drop_oldest(struct backend *b) {
    struct kept **oldest = NULL;
    for (int i = 0; i < BUCKETS; i++)
        for (struct kept **at = &b->buckets[i]; *at; at = &(*at)->next)
            if (!oldest || (*at)->last_use < (*oldest)->last_use) oldest = at;
    if (oldest) drop(b, oldest);
}

static void drop_all(struct backend *b) {
    for (int i = 0; i < BUCKETS; i++)
        while (b->buckets[i]) drop(b, &b->buckets[i]);
}

static struct kept **find(struct backend *b, uint64_t key) {
    struct kept **at = &b->buckets[key % BUCKETS];
    while (*at && (*at)->key != key) at = &(*at)->next;
    return at;
}

static enum sheaf_status translate(struct backend *b, const struct sheaf_cgraph *graph,
                                   uint64_t key, struct kept **out) {
    struct kept *k = calloc(1, sizeof *k);
    if (!k)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for a graph", b->m->name);
    const enum sheaf_status st = gg_member_graph_new(b->m, graph, &k->graph);
    if (st) {
        free(k);
        return st;
    }
    b->n_tensors += gg_member_graph_n_tensors(k->graph);
    if (b->n_tensors > MAX_KEPT_TENSORS) b->m->lib->synchronize(b->gg);
    while (b->n_tensors > MAX_KEPT_TENSORS && b->n_tensors > gg_member_graph_n_tensors(k->graph))
        drop_oldest(b);
    k->key = key;
    k->next = b->buckets[key % BUCKETS];
    *out = b->buckets[key % BUCKETS] = k;
    return st;
}

/* The graph of ggml, from before or made now. */
static enum sheaf_status graph_of(struct backend *b, const struct sheaf_cgraph *graph,
                                  struct gg_cgraph **out) {
    const struct sheaf_tensor *first = sheaf_graph_node(graph, 0);
    const uint64_t key = sheaf__mix((uint64_t)(uintptr_t)first, sheaf_graph_uid(graph));
    struct kept **at = find(b, key), *k = *at;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const enum gg_fit fit = k ? gg_member_graph_fit(k->graph, graph) : GG_FITS;
    if (fit != GG_FITS) b->m->lib->synchronize(b->gg); /* it may be at work still */
    if (fit == GG_FITS_NOT || (fit == GG_FITS_MOVED && !gg_member_graph_move(k->graph))) {
        drop(b, at);
        k = NULL;
    }
    if (!k) st = translate(b, graph, key, &k);
    if (st) return st;
    k->last_use = ++b->n_uses;
    *out = gg_member_graph_get(k->graph);
    return st;
}

/* ---- compute ---- */

static enum sheaf_status failed(const struct backend *b, const struct sheaf_cgraph *graph,
                                int status) {
    const struct sheaf_tensor *last = sheaf_graph_node(graph, sheaf_graph_n_nodes(graph) - 1);
    const char *said = gg_library_last_error();
    return sheaf_set_error(
        status == GG_STATUS_ALLOC_FAILED ? SHEAF_STATUS_ALLOC_FAILED : SHEAF_STATUS_FAILED,
        "%s: computing the graph of '%s' failed with status %d (%s)%s%s", b->m->name, last->name,
        status, gg_library_text(b->m->lib), *said ? ": " : "", said);
}

static enum sheaf_status graph_compute_async(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    struct backend *b = backend_of(base);
    struct gg_cgraph *gg = NULL;
    if (!sheaf_graph_n_nodes(graph)) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = graph_of(b, graph, &gg);
    if (st || !gg) return st;
    const int status = b->m->lib->graph_compute_async(b->gg, gg);
    return status ? failed(b, graph, status) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status synchronize(sheaf_backend_t base) {
    const struct backend *b = backend_of(base);
    b->m->lib->synchronize(b->gg);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status graph_compute(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    const enum sheaf_status st = graph_compute_async(base, graph);
    synchronize(base);
    return st;
}

/* ---- transfers ---- */

static enum sheaf_status set_async(sheaf_backend_t base, struct sheaf_tensor *t, const void *data,
                                   size_t offset, size_t size) {
    const struct backend *b = backend_of(base);
    struct gg_tensor gg = gg_member_describe(b->m, t);
    bool done;
    const enum sheaf_status st = gg_write_packed(t, data, offset, size, &done);
    if (!st && !done) b->m->lib->tensor_set_async(b->gg, &gg, data, offset, size);
    return st;
}
static enum sheaf_status get_async(sheaf_backend_t base, const struct sheaf_tensor *t, void *data,
                                   size_t offset, size_t size) {
    const struct backend *b = backend_of(base);
    const struct gg_tensor gg = gg_member_describe(b->m, t);
    const enum sheaf_status st = gg_read_as_written(t, "read");
    if (!st) b->m->lib->tensor_get_async(b->gg, &gg, data, offset, size);
    return st;
}

/* Later work of b waits for the work that is in the queue of `other`: by an event where the devices
 * make them, else now. */
static void wait_for(struct backend *b, struct backend *other) {
    const struct gg_library *lib = b->m->lib;
    if (b == other) return;
    if (!other->reached && other->m->caps.events && b->m->caps.events)
        other->reached = lib->event_new(other->m->dev);
    if (!other->reached || b->m != other->m) {
        lib->synchronize(other->gg);
        return;
    }
    lib->event_record(other->reached, other->gg);
    lib->event_wait(b->gg, other->reached);
}

/* In a queue of the two. ggml's devices do not all wait for the source by themselves. */
static enum sheaf_status cpy_async(sheaf_backend_t base_src, sheaf_backend_t base_dst,
                                   struct sheaf_tensor *src, struct sheaf_tensor *dst, bool *done) {
    struct backend *to = backend_of(base_dst), *from;
    const struct gg_member_buffer *a = gg_member_buffer_of(src), *b = gg_member_buffer_of(dst);
    *done = base_src->iface == base_dst->iface && a && b && sheaf_is_contiguous(src) &&
            !gg_is_packed(dst);
    if (!*done) return SHEAF_STATUS_SUCCESS;
    from = backend_of(base_src);
    const struct gg_tensor gg_src = gg_member_describe(a->member, src);
    struct gg_tensor gg_dst = gg_member_describe(b->member, dst);
    const enum sheaf_status st = gg_read_as_written(src, "copy");
    if (st) return st;
    wait_for(to, from);
    to->m->lib->tensor_copy_async(from->gg, to->gg, &gg_src, &gg_dst);
    wait_for(from, to);
    return st;
}

/* ---- events ---- */

struct event {
    struct sheaf_backend_event base;
    struct gg_event *gg;
};
static struct gg_event *gg_event_of(sheaf_backend_event_t event) {
    return ((struct event *)(void *)event)->gg;
}

enum sheaf_status gg_member_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out) {
    const struct gg_member *m = gg_member_of(dev);
    struct event *e = calloc(1, sizeof *e);
    if (e) e->gg = m->lib->event_new(m->dev);
    if (!e || !e->gg) {
        free(e);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no event (%s)", m->name,
                               gg_library_text(m->lib));
    }
    *out = &e->base;
    return SHEAF_STATUS_SUCCESS;
}
void gg_member_event_free(sheaf_backend_dev_t dev, sheaf_backend_event_t event) {
    gg_member_of(dev)->lib->event_free(gg_event_of(event));
    free(event);
}
enum sheaf_status gg_member_event_synchronize(sheaf_backend_dev_t dev,
                                              sheaf_backend_event_t event) {
    gg_member_of(dev)->lib->event_synchronize(gg_event_of(event));
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status event_record(sheaf_backend_t base, sheaf_backend_event_t event) {
    const struct backend *b = backend_of(base);
    b->m->lib->event_record(gg_event_of(event), b->gg);
    return SHEAF_STATUS_SUCCESS;
}
/* ggml takes an event for one of the stream's own device: for another's, this thread waits. */
static enum sheaf_status event_wait(sheaf_backend_t base, sheaf_backend_event_t event) {
    const struct backend *b = backend_of(base);
    if (event->device != &b->m->base) return gg_member_event_synchronize(event->device, event);
    b->m->lib->event_wait(b->gg, gg_event_of(event));
    return SHEAF_STATUS_SUCCESS;
}

/* ---- start and end ---- */

static void backend_free(sheaf_backend_t base) {
    struct backend *b = backend_of(base);
    b->m->lib->synchronize(b->gg);
    drop_all(b);
    if (b->reached) b->m->lib->event_free(b->reached);
    b->m->lib->backend_free(b->gg);
    free(b);
}

/* Threads of the CPU devices of this process together: there is one CPU device of ggml. */
static int cpu_threads(void) {
    int n = 0;
    for (size_t i = 0; i < sheaf_backend_dev_count(); i++) {
        sheaf_backend_dev_t dev = sheaf_backend_dev_get(i);
        sheaf_backend_t backend = NULL;
        if (!sheaf_backend_dev_is_cpu(dev) || sheaf_backend_dev_init(dev, NULL, &backend)) continue;
        n += sheaf_backend_cpu_get_n_threads(backend);
        sheaf_backend_free(backend);
    }
    return n;
}

static void set_threads(const struct backend *b, int n) {
    void (*set)(struct gg_backend * backend, int n_threads);
    struct gg_reg *reg = b->m->lib->dev_backend_reg(b->m->dev);
    void *f = b->m->lib->reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    memcpy(&set, &f, sizeof set);
    if (f && n > 0) set(b->gg, n);
}

static const struct sheaf_backend_i backend_i = {
    .get_name = backend_name,
    .free = backend_free,
    .graph_compute = graph_compute,
    .synchronize = synchronize,
    .graph_compute_async = graph_compute_async,
    .set_tensor_async = set_async,
    .get_tensor_async = get_async,
    .cpy_tensor_async = cpy_async,
    .event_record = event_record,
    .event_wait = event_wait,
};

enum sheaf_status gg_member_backend_new(struct gg_member *m, const char *params,
                                        sheaf_backend_t *out) {
    struct backend *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", m->name);
    b->gg = m->lib->dev_init(m->dev, params && *params ? params : NULL);
    if (!b->gg) {
        const char *said = gg_library_last_error();
        free(b);
        return sheaf_set_error(SHEAF_STATUS_FAILED, "%s: the device does not start (%s)%s%s",
                               m->name, gg_library_text(m->lib), *said ? ": " : "", said);
    }
    b->base = (struct sheaf_backend){.iface = &backend_i, .device = &m->base};
    b->m = m;
    if (m->type == GG_DEVICE_TYPE_CPU || m->type == GG_DEVICE_TYPE_ACCEL)
        set_threads(b, cpu_threads());
    *out = &b->base;
    return SHEAF_STATUS_SUCCESS;
}
