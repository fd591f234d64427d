/* A backend: one stream of a device, what is queued in it, and the graphs that run there (graphs.h).
 *
 * Ids that are out of range are noted by kernels in pinned memory and become the error of the next
 * synchronize. Unlike on the CPU the work submitted behind them still runs: its results are not
 * promised. */
#include <stdlib.h>

#include "cuda/graphs.h"
#include "sheaf/log.h"
#include "sheaf/settings.h"

struct backend {
    struct sheaf_backend base;
    struct sheaf__cuda_device *device;
    struct sheaf__cuda_queue q;
    Fault *fault; /* the host's address of q.fault */
    cudaEvent_t copied;
    bool says_counts;
    struct sheaf__cuda_inputs *inputs; /* NULL: not needed yet */
    struct sheaf__cuda_graphs *graphs;
};

struct event {
    struct sheaf_backend_event base;
    cudaEvent_t event;
};

static struct backend *backend_of(sheaf_backend_t base) { return (struct backend *)base->context; }

static enum sheaf_status use_device(const struct backend *b) {
    const cudaError_t e = cudaSetDevice(b->device->ordinal);
    return e ? sheaf__cuda_error(b->device->name, e, "choosing the device") : SHEAF_STATUS_SUCCESS;
}

static struct sheaf__cuda_nodes nodes_of(const struct sheaf_cgraph *graph, uint64_t version) {
    return {graph->nodes, graph->n_nodes, version};
}

/* ---- graphs ---- */

static enum sheaf_status graph_reserve(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    struct backend *b = backend_of(base);
    const enum sheaf_status st = use_device(b);
    if (st) return st;
    const cudaError_t e = cudaStreamSynchronize(b->q.stream); /* so that old memory goes now */
    return e ? sheaf__cuda_error(b->device->name, e, "waiting for the queue")
             : sheaf__cuda_graphs_reserve(b->graphs, nodes_of(graph, 0));
}

void sheaf__cuda_backend_capture(sheaf_backend_t base, bool now) {
    sheaf__cuda_graphs_capture(backend_of(base)->graphs, now);
}

static enum sheaf_status graph_compute_async(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    struct backend *b = backend_of(base);
    const enum sheaf_status st = use_device(b);
    return st ? st
              : sheaf__cuda_graphs_run(b->graphs, nodes_of(graph, graph->version), graph->uid);
}

/* Before anything but a graph. */
static enum sheaf_status submit_sum(struct backend *b) {
    if (!b->q.sum.n_blocks) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = use_device(b);
    return st ? st : sheaf__cuda_launch_sum(&b->q);
}

enum sheaf_status sheaf__cuda_backend_sum(sheaf_backend_t base, const struct sheaf__sum *sum) {
    struct backend *b = backend_of(base);
    const enum sheaf_status st = submit_sum(b);
    if (st || !sum) return st;
    b->q.sum = *sum;
    return sum->n ? st : submit_sum(b);
}

/* The text of a bad id; forgets it. The node is alive: graphs stay until the queue was waited for.
 */
static enum sheaf_status take_fault(struct backend *b) {
    const Fault f = *b->fault;
    if (!f.node) return SHEAF_STATUS_SUCCESS;
    b->fault->node = 0;
    b->fault->id = 0;
    const struct sheaf_tensor *t = (const struct sheaf_tensor *)(uintptr_t)f.node;
    const int64_t extent = t->op_params[SHEAF_OP_PARAM_EXTENT];
    const char *what = "row";
    int64_t n = t->src[0]->ne[1];
    switch (t->op) {
    case SHEAF_OP_MUL_MAT_ID:
        what = "expert";
        n = extent ? extent : t->src[0]->ne[2];
        break;
    case SHEAF_OP_ADD_ID:
        what = "expert";
        n = extent ? extent : t->src[1]->ne[1];
        break;
    case SHEAF_OP_SSM_SCAN:
        what = "state";
        n = t->src[0]->ne[3];
        break;
    case SHEAF_OP_SET_ROWS:
        n = t->ne[1];
        break;
    default:
        if (extent) n = extent;
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %s '%s': %s %lld is outside [0, %lld)",
                           b->device->name, sheaf_op_name(t->op), t->name, what, f.id,
                           (long long)n);
}

static enum sheaf_status synchronize(sheaf_backend_t base) {
    struct backend *b = backend_of(base);
    const enum sheaf_status st = submit_sum(b);
    if (st) return st;
    const cudaError_t e = cudaStreamSynchronize(b->q.stream);
    if (e) return sheaf__cuda_error(b->device->name, e, "waiting for what was submitted");
    sheaf__cuda_graphs_queue_is_empty(b->graphs);
    return take_fault(b);
}

static enum sheaf_status graph_compute(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    enum sheaf_status st = graph_compute_async(base, graph);
    if (!st) return synchronize(base);
    synchronize(base); /* nothing of it runs on while the caller reads the error */
    return st;
}

/* ---- plans ---- */

static struct sheaf__cuda_plan *plan_of(sheaf_backend_graph_plan_t p) {
    return (struct sheaf__cuda_plan *)(void *)p;
}

static void plan_free(sheaf_backend_t base, sheaf_backend_graph_plan_t plan) {
    sheaf__cuda_plan_free(backend_of(base)->graphs, plan_of(plan));
}

static enum sheaf_status plan_update(sheaf_backend_t base, sheaf_backend_graph_plan_t plan,
                                     const struct sheaf_cgraph *graph) {
    struct backend *b = backend_of(base);
    const enum sheaf_status st = use_device(b);
    return st ? st : sheaf__cuda_plan_update(b->graphs, plan_of(plan), nodes_of(graph, 0));
}

static enum sheaf_status plan_create(sheaf_backend_t base, const struct sheaf_cgraph *graph,
                                     sheaf_backend_graph_plan_t *out) {
    struct backend *b = backend_of(base);
    struct sheaf__cuda_plan *p = sheaf__cuda_plan_new(b->graphs);
    if (!p)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for a plan",
                               b->device->name);
    const sheaf_backend_graph_plan_t plan = (sheaf_backend_graph_plan_t)(void *)p;
    const enum sheaf_status st = plan_update(base, plan, graph);
    if (st) {
        plan_free(base, plan);
    } else {
        *out = plan;
    }
    return st;
}

static enum sheaf_status plan_compute(sheaf_backend_t base, sheaf_backend_graph_plan_t plan) {
    struct backend *b = backend_of(base);
    enum sheaf_status st = use_device(b);
    if (!st) st = sheaf__cuda_plan_run(b->graphs, plan_of(plan));
    if (!st) return synchronize(base);
    synchronize(base);
    return st;
}

/* ---- transfers ---- */

static enum sheaf_status move_async(struct backend *b, void *to, const void *from, size_t size,
                                    cudaMemcpyKind kind, const char *what, const char *name) {
    enum sheaf_status st = use_device(b);
    if (!st) st = submit_sum(b);
    if (st) return st;
    const cudaError_t e = cudaMemcpyAsync(to, from, size, kind, b->q.stream);
    return e ? sheaf__cuda_error(b->device->name, e, "%s '%s' (%zu bytes)", what, name, size)
             : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status set_tensor_async(sheaf_backend_t base, struct sheaf_tensor *t,
                                          const void *data, size_t offset, size_t size) {
    return move_async(backend_of(base), (char *)t->data + offset, data, size,
                      cudaMemcpyHostToDevice, "writing", t->name);
}

static enum sheaf_status get_tensor_async(sheaf_backend_t base, const struct sheaf_tensor *t,
                                          void *data, size_t offset, size_t size) {
    return move_async(backend_of(base), data, (const char *)t->data + offset, size,
                      cudaMemcpyDeviceToHost, "reading", t->name);
}

static enum sheaf_status set_tensors(sheaf_backend_t base, const struct sheaf_tensor_write *writes,
                                     size_t n) {
    struct backend *b = backend_of(base);
    bool done = false;
    enum sheaf_status st = use_device(b);
    if (!st) st = submit_sum(b);
    if (!st) st = sheaf__cuda_inputs_write(&b->inputs, &b->q, writes, n, &done);
    if (st || done) return st;
    st = synchronize(base);
    for (size_t i = 0; i < n && !st; i++)
        st = sheaf_backend_tensor_set(writes[i].tensor, writes[i].data, 0,
                                      sheaf_nbytes(writes[i].tensor));
    return st;
}

static const struct sheaf_backend_i *backend_iface(void);

/* In the queue of the source; that of the target waits for it. */
static enum sheaf_status cpy_tensor_async(sheaf_backend_t base_src, sheaf_backend_t base_dst,
                                          struct sheaf_tensor *src, struct sheaf_tensor *dst,
                                          bool *done) {
    *done = false;
    if (base_src->iface != backend_iface() || !sheaf_is_contiguous(src))
        return SHEAF_STATUS_SUCCESS;
    struct backend *from = backend_of(base_src), *to = backend_of(base_dst);
    if (sheaf__cuda_device_of_tensor(src) != from->device ||
        sheaf__cuda_device_of_tensor(dst) != to->device)
        return SHEAF_STATUS_SUCCESS;
    const size_t size = sheaf_nbytes(src);
    enum sheaf_status st = submit_sum(to);
    if (!st) st = use_device(from);
    if (!st) st = submit_sum(from);
    if (st) return st;
    cudaError_t e =
        from->device->ordinal == to->device->ordinal
            ? cudaMemcpyAsync(dst->data, src->data, size, cudaMemcpyDeviceToDevice, from->q.stream)
            : cudaMemcpyPeerAsync(dst->data, to->device->ordinal, src->data, from->device->ordinal,
                                  size, from->q.stream);
    if (!e && from != to) e = cudaEventRecord(from->copied, from->q.stream);
    if (!e && from != to) e = cudaStreamWaitEvent(to->q.stream, from->copied, 0);
    if (e)
        return sheaf__cuda_error(from->device->name, e, "copying '%s' to %s", src->name,
                                 to->device->name);
    *done = true;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- events ---- */

enum sheaf_status sheaf__cuda_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out) {
    const struct sheaf__cuda_device *d = (const struct sheaf__cuda_device *)dev->context;
    struct event *x = (struct event *)calloc(1, sizeof *x);
    *out = NULL;
    if (!x)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for an event", d->name);
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (!e) e = cudaEventCreateWithFlags(&x->event, cudaEventDisableTiming);
    if (e) {
        free(x);
        return sheaf__cuda_error(d->name, e, "making an event");
    }
    *out = &x->base;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__cuda_event_free(sheaf_backend_dev_t dev, sheaf_backend_event_t event) {
    struct event *x = (struct event *)event;
    (void)dev;
    cudaEventDestroy(x->event); /* what waits for it still does */
    free(x);
}

enum sheaf_status sheaf__cuda_event_synchronize(sheaf_backend_dev_t dev,
                                                sheaf_backend_event_t event) {
    const cudaError_t e = cudaEventSynchronize(((struct event *)event)->event);
    return e ? sheaf__cuda_error(((const struct sheaf__cuda_device *)dev->context)->name, e,
                                 "waiting for an event")
             : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status event_record(sheaf_backend_t base, sheaf_backend_event_t event) {
    struct backend *b = backend_of(base);
    enum sheaf_status st = use_device(b);
    if (!st) st = submit_sum(b);
    if (st) return st;
    const cudaError_t e = cudaEventRecord(((struct event *)event)->event, b->q.stream);
    return e ? sheaf__cuda_error(b->device->name, e, "recording an event") : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status event_wait(sheaf_backend_t base, sheaf_backend_event_t event) {
    struct backend *b = backend_of(base);
    enum sheaf_status st = use_device(b);
    if (!st) st = submit_sum(b);
    if (st) return st;
    const cudaError_t e = cudaStreamWaitEvent(b->q.stream, ((struct event *)event)->event, 0);
    return e ? sheaf__cuda_error(b->device->name, e, "making the queue wait for an event")
             : SHEAF_STATUS_SUCCESS;
}

/* ---- life ---- */

static const char *backend_name(sheaf_backend_t base) { return backend_of(base)->device->name; }

static const uint8_t *backend_guid(sheaf_backend_t base) {
    static const uint8_t guid[16] = {0x73, 0x68, 0x65, 0x61, 0x66, 0x2d, 0x43, 0x55,
                                     0x44, 0x41, 0x8b, 0x52, 0xe0, 0x3d, 0x97, 0x61};
    (void)base;
    return guid;
}

/* A line that scripts/gpu-check reads. Backends that computed nothing print none. */
static void say_counts(const struct backend *b) {
    const struct sheaf__cuda_counts *c = &b->q.counts;
    if (!b->says_counts || !(c->replayed + c->node_by_node)) return;
    sheaf_log(
        SHEAF_LOG_DEBUG,
        "%s: graphs: %llu captured, %llu replayed, %llu refused, %llu node by node; products as "
        "launched: %llu of few columns, %llu with weights ahead, %llu by cuBLASLt, %llu in tiles",
        b->device->name, (unsigned long long)c->captured, (unsigned long long)c->replayed,
        (unsigned long long)c->refused, (unsigned long long)c->node_by_node,
        (unsigned long long)c->few, (unsigned long long)c->early, (unsigned long long)c->blas,
        (unsigned long long)c->tiles);
}

static void backend_free(sheaf_backend_t base) {
    struct backend *b = backend_of(base);
    say_counts(b);
    cudaSetDevice(b->device->ordinal);
    if (b->q.stream) cudaStreamSynchronize(b->q.stream);
    sheaf__cuda_graphs_free(b->graphs);
    sheaf__cuda_blas_free(b->q.blas);
    sheaf__cuda_inputs_free(b->inputs);
    if (b->fault) cudaFreeHost(b->fault);
    if (b->copied) cudaEventDestroy(b->copied);
    if (b->q.stream) cudaStreamDestroy(b->q.stream);
    free(b);
}

static struct sheaf_backend_i make_backend_i() {
    struct sheaf_backend_i i;
    memset(&i, 0, sizeof i);
    i.get_name = backend_name;
    i.free = backend_free;
    i.graph_compute = graph_compute;
    i.synchronize = synchronize;
    i.get_guid = backend_guid;
    i.graph_compute_async = graph_compute_async;
    i.set_tensor_async = set_tensor_async;
    i.get_tensor_async = get_tensor_async;
    i.cpy_tensor_async = cpy_tensor_async;
    i.graph_plan_create = plan_create;
    i.graph_plan_free = plan_free;
    i.graph_plan_update = plan_update;
    i.graph_plan_compute = plan_compute;
    i.event_record = event_record;
    i.event_wait = event_wait;
    i.graph_reserve = graph_reserve;
    i.set_tensors = set_tensors;
    return i;
}
static const struct sheaf_backend_i backend_i = make_backend_i();
static const struct sheaf_backend_i *backend_iface(void) { return &backend_i; }

void *sheaf__cuda_backend_stream(sheaf_backend_t backend) {
    return backend && backend->iface == &backend_i ? (void *)backend_of(backend)->q.stream : NULL;
}

/* Switches for finding where a fault or the time comes from: "graphs=0,blas=0" in any order; those
 * of SHEAF_CUDA_PARAMS where the caller gives none. */
enum { GRAPHS, BLAS, FUSE, AHEAD, TIMES, COUNTS, N_SWITCHES };
static enum sheaf_status parse_params(const char *device, const char *params, bool on[N_SWITCHES]) {
    static const char *const names[N_SWITCHES] = {
        "graphs=", "blas=", "fuse=", "ahead=", "times=", "counts="};
    for (int i = 0; i < N_SWITCHES; i++) on[i] = i != TIMES && i != COUNTS;
    while (params && *params) {
        int which = 0;
        while (which < N_SWITCHES && strncmp(params, names[which], strlen(names[which]))) which++;
        const char *value = which < N_SWITCHES ? params + strlen(names[which]) : "";
        if ((*value != '0' && *value != '1') || (value[1] && value[1] != ','))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s: parameters '%s'; they are \"graphs=0|1\" (replay captured "
                                   "graphs), \"blas=0|1\" (use cuBLASLt), \"fuse=0|1\" (several "
                                   "nodes in a kernel), \"ahead=0|1\" (kernels start while others "
                                   "end), \"times=0|1\" (print the times of launches) and "
                                   "\"counts=0|1\" (print how graphs and products ran), joined by "
                                   "commas",
                                   device, params);
        on[which] = *value == '1';
        params = value + 1 + (value[1] == ',');
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cuda_backend_new(struct sheaf__cuda_device *device, const char *params,
                                          sheaf_backend_t *out) {
    bool on[N_SWITCHES];
    void *fault = NULL, *fault_device = NULL;
    *out = NULL;
    if (!params || !*params) params = sheaf_setting_value("SHEAF_CUDA_PARAMS");
    enum sheaf_status st = parse_params(device->name, params, on);
    if (st) return st;
    struct backend *b = (struct backend *)calloc(1, sizeof *b);
    if (b) b->graphs = sheaf__cuda_graphs_new(&b->q, {on[GRAPHS], on[FUSE], on[TIMES]});
    if (!b || !b->graphs) {
        free(b);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory", device->name);
    }
    b->base.iface = &backend_i;
    b->base.device = &device->base;
    b->base.context = b;
    b->device = device;
    b->says_counts = on[COUNTS];
    b->q.device = device;
    b->q.ahead =
        on[AHEAD] && !on[TIMES] && device->code >= 90; /* older code does not wait (kernel.cuh) */
    cudaError_t e = sheaf__cuda_use(device);
    if (!e) e = cudaStreamCreateWithFlags(&b->q.stream, cudaStreamNonBlocking);
    if (!e) e = cudaEventCreateWithFlags(&b->copied, cudaEventDisableTiming);
    if (!e)
        e = cudaHostAlloc(&fault, sizeof *b->fault, cudaHostAllocMapped | cudaHostAllocPortable);
    if (!e) {
        memset(fault, 0, sizeof *b->fault);
        b->fault = (Fault *)fault;
        e = cudaHostGetDevicePointer(&fault_device, fault, 0);
        b->q.fault = (Fault *)fault_device;
    }
    if (e) {
        st = sheaf__cuda_error(device->name, e, "starting the device");
        backend_free(&b->base);
        return st;
    }
    sheaf__cuda_reach_peers(device);
    if (on[BLAS]) sheaf__cuda_blas_new(device, &b->q.blas);
    *out = &b->base;
    return SHEAF_STATUS_SUCCESS;
}
