/* The CPU backend: its functions for callers. The walk over nodes is in walk.c.
 *
 * Synchronous calls run on the caller's thread. The first submission makes a queue whose thread
 * then leads the team; a synchronous call waits for the queue first, so the two never meet. Without
 * submissions none of this costs anything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/matmul/repacked.h"
#include "cpu/run/walk.h"

enum {
    MAX_THREADS = 1024,
    /* Bytes that an idle backend moves at once: waking the queue takes longer. */
    SMALL_TRANSFER = 1 << 16,
};

static const struct sheaf_backend_i backend_iface;

static struct cpu_backend *backend_of(sheaf_backend_t base) { return base->context; }

static enum sheaf_status run_graph(struct cpu_backend *b, const struct sheaf_cgraph *graph) {
    struct cpu_demand demand;
    enum sheaf_status status =
        sheaf__cpu_check_graph(b, graph, sheaf__cpu_team_size(b->team), &demand);
    return status ? status : sheaf__cpu_run_checked(b, graph, &demand);
}

static enum sheaf_status synchronize(sheaf_backend_t base) {
    struct cpu_backend *b = backend_of(base);
    return b->queue ? sheaf__cpu_queue_drain(b->queue) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status graph_compute(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    enum sheaf_status status = synchronize(base);
    return status ? status : run_graph(backend_of(base), graph);
}

/* ---- plans: a graph checked once ---- */

struct plan {
    struct sheaf_cgraph *graph;
    struct cpu_demand demand;
    int nth;
    bool reference;
};

static enum sheaf_status plan_update(sheaf_backend_t base, sheaf_backend_graph_plan_t opaque,
                                     const struct sheaf_cgraph *graph) {
    struct cpu_backend *b = backend_of(base);
    struct plan *plan = (struct plan *)(void *)opaque;
    const int nth = sheaf__cpu_team_size(b->team);
    struct cpu_demand demand;
    enum sheaf_status status = sheaf__cpu_check_graph(b, graph, nth, &demand);
    struct sheaf_cgraph *copy = status ? NULL : sheaf__graph_shallow_copy(graph);
    if (!status && !copy) status = SHEAF_STATUS_ALLOC_FAILED;
    if (status) return status;
    free(plan->graph);
    *plan = (struct plan){copy, demand, nth, b->reference};
    return SHEAF_STATUS_SUCCESS;
}

static void plan_free(sheaf_backend_t base, sheaf_backend_graph_plan_t opaque) {
    struct plan *plan = (struct plan *)(void *)opaque;
    (void)base;
    free(plan->graph);
    free(plan);
}

static enum sheaf_status plan_create(sheaf_backend_t base, const struct sheaf_cgraph *graph,
                                     sheaf_backend_graph_plan_t *out) {
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "plan: out of memory");
    sheaf_backend_graph_plan_t opaque = (sheaf_backend_graph_plan_t)(void *)plan;
    enum sheaf_status status = plan_update(base, opaque, graph);
    if (status) {
        plan_free(base, opaque);
    } else {
        *out = opaque;
    }
    return status;
}

static enum sheaf_status plan_compute(sheaf_backend_t base, sheaf_backend_graph_plan_t opaque) {
    struct cpu_backend *b = backend_of(base);
    struct plan *plan = (struct plan *)(void *)opaque;
    enum sheaf_status status = synchronize(base);
    const int nth = sheaf__cpu_team_size(b->team);
    if (!status && (nth != plan->nth || b->reference != plan->reference)) {
        status = sheaf__cpu_check_graph(b, plan->graph, nth, &plan->demand);
        if (!status) plan->nth = nth;
        plan->reference = b->reference;
    }
    return status ? status : sheaf__cpu_run_checked(b, plan->graph, &plan->demand);
}

/* ---- the queue ---- */

static void bind_queue(void *user) {
    const struct cpu_backend *b = user;
    sheaf__cpu_place_bind_thread(b->device->place, 0);
}

static bool have_queue(struct cpu_backend *b) {
    return b->queue || sheaf__cpu_queue_new(bind_queue, b, &b->queue) == SHEAF_STATUS_SUCCESS;
}

static bool busy(const struct cpu_backend *b) {
    return b->queue && !sheaf__cpu_queue_is_idle(b->queue);
}

static enum sheaf_status task_graph(const struct sheaf__cpu_task *task) {
    return run_graph(task->a, task->b);
}
static enum sheaf_status task_move(const struct sheaf__cpu_task *task) {
    memcpy(task->a, task->from, task->size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status task_copy(const struct sheaf__cpu_task *task) {
    return sheaf_backend_tensor_copy(task->a, task->b);
}

/* A system without a thread to spare: late, but done. */
static enum sheaf_status graph_compute_async(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    struct cpu_backend *b = backend_of(base);
    if (!have_queue(b)) return run_graph(b, graph);
    sheaf__cpu_queue_submit(b->queue,
                            &(struct sheaf__cpu_task){.run = task_graph, .a = b, .b = graph});
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status move_async(struct cpu_backend *b, void *to, const void *from,
                                    size_t size) {
    const struct sheaf__cpu_task task = {.run = task_move, .a = to, .from = from, .size = size};
    if ((size <= SMALL_TRANSFER && !busy(b)) || !have_queue(b)) return task_move(&task);
    sheaf__cpu_queue_submit(b->queue, &task);
    return SHEAF_STATUS_SUCCESS;
}

/* A graph in the queue may repack a weight before bytes of it move. */
static bool in_host_memory(const struct sheaf_tensor *t) {
    return sheaf_backend_buffer_is_host(sheaf__memory_owner(t)->buffer) &&
           !sheaf__cpu_may_be_repacked(t);
}

static enum sheaf_status set_tensor_async(sheaf_backend_t base, struct sheaf_tensor *t,
                                          const void *data, size_t offset, size_t size) {
    if (in_host_memory(t))
        return move_async(backend_of(base), (char *)t->data + offset, data, size);
    enum sheaf_status status = synchronize(base);
    return status ? status : sheaf_backend_tensor_set(t, data, offset, size);
}

static enum sheaf_status get_tensor_async(sheaf_backend_t base, const struct sheaf_tensor *t,
                                          void *data, size_t offset, size_t size) {
    if (in_host_memory(t))
        return move_async(backend_of(base), data, (const char *)t->data + offset, size);
    enum sheaf_status status = synchronize(base);
    return status ? status : sheaf_backend_tensor_get(t, data, offset, size);
}

/* In the queue of the source; the destination's waits for it. */
static enum sheaf_status cpy_tensor_async(sheaf_backend_t from, sheaf_backend_t to,
                                          struct sheaf_tensor *src, struct sheaf_tensor *dst,
                                          bool *done) {
    *done = false;
    if (!sheaf_backend_is_cpu(from) || !in_host_memory(src) || !in_host_memory(dst))
        return SHEAF_STATUS_SUCCESS;
    struct cpu_backend *a = backend_of(from), *b = backend_of(to);
    if (!have_queue(a) || !have_queue(b)) return SHEAF_STATUS_SUCCESS;
    const uint64_t number = sheaf__cpu_queue_submit(
        a->queue, &(struct sheaf__cpu_task){.run = task_copy, .a = src, .b = dst});
    if (a != b) sheaf__cpu_queue_submit_wait(b->queue, a->queue, number);
    *done = true;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- events: points in queues ---- */

struct event {
    struct sheaf_backend_event base;
    pthread_mutex_t lock;
    struct sheaf__cpu_queue *queue; /* held; NULL: passed */
    uint64_t number;
};

enum sheaf_status sheaf__cpu_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out) {
    (void)dev;
    struct event *e = calloc(1, sizeof *e);
    if (!e) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "event: out of memory");
    pthread_mutex_init(&e->lock, NULL);
    *out = &e->base;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__cpu_event_free(sheaf_backend_dev_t dev, sheaf_backend_event_t base) {
    struct event *e = (struct event *)base;
    (void)dev;
    sheaf__cpu_queue_drop(e->queue);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* The point as it is now, its queue held for the caller. */
static struct sheaf__cpu_queue *event_point(struct event *e, uint64_t *number) {
    pthread_mutex_lock(&e->lock);
    struct sheaf__cpu_queue *queue = sheaf__cpu_queue_hold(e->queue);
    *number = e->number;
    pthread_mutex_unlock(&e->lock);
    return queue;
}

enum sheaf_status sheaf__cpu_event_synchronize(sheaf_backend_dev_t dev,
                                               sheaf_backend_event_t base) {
    uint64_t number;
    (void)dev;
    struct sheaf__cpu_queue *queue = event_point((struct event *)base, &number);
    if (queue) sheaf__cpu_queue_wait(queue, number);
    sheaf__cpu_queue_drop(queue);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status event_record(sheaf_backend_t backend, sheaf_backend_event_t base) {
    struct event *e = (struct event *)base;
    struct cpu_backend *b = backend_of(backend);
    pthread_mutex_lock(&e->lock);
    sheaf__cpu_queue_drop(e->queue);
    e->queue = sheaf__cpu_queue_hold(b->queue);
    e->number = b->queue ? sheaf__cpu_queue_last(b->queue) : 0;
    pthread_mutex_unlock(&e->lock);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status event_wait(sheaf_backend_t backend, sheaf_backend_event_t base) {
    struct cpu_backend *b = backend_of(backend);
    uint64_t number;
    struct sheaf__cpu_queue *queue = event_point((struct event *)base, &number);
    if (queue && queue != b->queue) { /* its own earlier work is waited for anyway */
        if (have_queue(b)) {
            sheaf__cpu_queue_submit_wait(b->queue, queue, number);
        } else {
            sheaf__cpu_queue_wait(queue, number);
        }
    }
    sheaf__cpu_queue_drop(queue);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- life ---- */

static const char *backend_name(sheaf_backend_t base) { return backend_of(base)->device->name; }

static const uint8_t *backend_guid(sheaf_backend_t base) {
    static const uint8_t guid[16] = {0x73, 0x68, 0x65, 0x61, 0x66, 0x2d, 0x43, 0x50,
                                     0x55, 0x9b, 0x1e, 0x6a, 0xd4, 0x07, 0xc2, 0x58};
    (void)base;
    return guid;
}

static void backend_free(sheaf_backend_t base) {
    struct cpu_backend *b = backend_of(base);
    sheaf__cpu_queue_stop(b->queue);
    sheaf__cpu_team_free(b->team);
    sheaf__cpu_profile_free(b->profile);
    pthread_mutex_destroy(&b->failure.lock);
    free(b->work);
    free(b);
}

static const struct sheaf_backend_i backend_iface = {
    .get_name = backend_name,
    .free = backend_free,
    .graph_compute = graph_compute,
    .synchronize = synchronize,
    .get_guid = backend_guid,
    .graph_compute_async = graph_compute_async,
    .set_tensor_async = set_tensor_async,
    .get_tensor_async = get_tensor_async,
    .cpy_tensor_async = cpy_tensor_async,
    .graph_plan_create = plan_create,
    .graph_plan_free = plan_free,
    .graph_plan_update = plan_update,
    .graph_plan_compute = plan_compute,
    .event_record = event_record,
    .event_wait = event_wait,
};

static void bind_worker(void *user, int ith) {
    const struct cpu_backend *b = user;
    sheaf__cpu_place_bind_thread(b->device->place, ith);
}

enum sheaf_status sheaf_backend_cpu_set_n_threads(sheaf_backend_t base, int n) {
    if (!sheaf_backend_is_cpu(base)) {
        return sheaf_set_error(SHEAF_STATUS_INVALID, "set_n_threads: '%s' is not a CPU backend",
                               base ? sheaf_backend_name(base) : "NULL");
    }
    struct cpu_backend *b = backend_of(base);
    const struct sheaf__cpu_place *place = b->device->place;
    if (n < 1 || n > MAX_THREADS) {
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %d threads; it takes 1 to %d",
                               b->device->name, n, MAX_THREADS);
    }
    if (b->team && n == sheaf__cpu_team_size(b->team)) return SHEAF_STATUS_SUCCESS;
    if (b->queue) sheaf__cpu_queue_wait(b->queue, sheaf__cpu_queue_last(b->queue));
    const struct sheaf__cpu_team_params params = {
        .n_threads = n,
        .shared = place->shared || n > place->n_cores,
        .bind = bind_worker,
        .bind_user = b,
    };
    struct sheaf__cpu_team *team;
    enum sheaf_status status = sheaf__cpu_team_new(&params, &team);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    sheaf__cpu_team_free(b->team);
    b->team = team;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status parse_params(const char *params, int *threads) {
    if (!params || !*params) return SHEAF_STATUS_SUCCESS;
    char rest;
    if (sscanf(params, "threads=%4d%c", threads, &rest) != 1 || *threads < 1) {
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "CPU device: parameters '%s'; they are \"threads=N\", N from 1 to %d", params,
            MAX_THREADS);
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cpu_backend_new(struct sheaf__cpu_device *device, const char *params,
                                         sheaf_backend_t *out) {
    int threads = device->place->n_threads;
    *out = NULL;
    enum sheaf_status status = parse_params(params, &threads);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    struct cpu_backend *b = calloc(1, sizeof *b);
    if (!b) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory", device->name);
    b->base.iface = &backend_iface;
    b->base.device = &device->base;
    b->base.context = b;
    b->device = device;
    b->profile = sheaf__cpu_profile_new(device->name);
    pthread_mutex_init(&b->failure.lock, NULL);
    status = sheaf_backend_cpu_set_n_threads(&b->base, threads);
    if (status != SHEAF_STATUS_SUCCESS) {
        backend_free(&b->base);
        return status;
    }
    *out = &b->base;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- sheaf/cpu.h ---- */

bool sheaf_backend_is_cpu(sheaf_backend_t base) { return base && base->iface == &backend_iface; }

int sheaf_backend_cpu_get_n_threads(sheaf_backend_t base) {
    return sheaf_backend_is_cpu(base) ? sheaf__cpu_team_size(backend_of(base)->team) : 0;
}

void sheaf_backend_cpu_set_abort_callback(sheaf_backend_t base, sheaf_abort_fn callback,
                                          void *data) {
    if (!sheaf_backend_is_cpu(base)) return;
    backend_of(base)->abort = callback;
    backend_of(base)->abort_data = data;
}

void sheaf_backend_cpu_set_reference(sheaf_backend_t base, bool reference) {
    if (sheaf_backend_is_cpu(base)) backend_of(base)->reference = reference;
}
