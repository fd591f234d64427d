/* The meta backend: a graph is computed by finding its program and running it on this rank's
 * members. */
#include <stdlib.h>

#include "backend/registry.h"
#include "base/thread.h"
#include "comm/device/devcomm.h"
#include "comm/world/board.h"
#include "meta/backend.h"

/* From the end, where results are. -1: it is not there. */
static int number_of_node(const struct sheaf_cgraph *graph, const struct sheaf_tensor *t) {
    int i = graph->n_nodes - 1;
    while (i >= 0 && graph->nodes[i] != t) i--;
    return i;
}

/* Does its value come from the tensor whose memory it shows? One that is kept for later graphs
 * outlives this. That of an output is there to the end, while what a view of it was gathered for may
 * have overwritten what was gathered. */
static bool is_read_through_owner(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *owner = t->view_src;
    const bool beside_output = owner && owner->op != SHEAF_OP_NONE &&
                               owner->flags & SHEAF_TENSOR_FLAG_OUTPUT &&
                               !(t->flags & SHEAF_TENSOR_FLAG_OUTPUT);
    return beside_output || sheaf__meta_is_carried(owner);
}

/* dry: everything but the numbers. */
static enum sheaf_status run_graph(struct meta_backend *b, struct sheaf_cgraph *graph, bool dry) {
    struct meta_program *p = NULL;
    sheaf__next_step();
    enum sheaf_status st = sheaf__meta_find_program(b, graph, &p);
    if (st) return st;
    st = sheaf__meta_prepare(b, p, graph);
    if (!st && !p->reserved) st = sheaf__meta_reserve(b, p);
    if (st) return dry ? st : sheaf__meta_end_apart(st);
    p->uid = graph->uid;
    p->last_use = ++b->clock;
    b->follow.node = b->follow.fn && !b->check ? number_of_node(graph, b->follow.tensor) : -1;
    if (!dry) st = sheaf__meta_run_program(b, p);
    if (!dry && !st) b->uploads = false;
    const enum sheaf_status failure =
        b->lives_on && !sheaf_world_failed() ? st : SHEAF_STATUS_SUCCESS;
    if (failure)
        st = SHEAF_STATUS_SUCCESS; /* values that mean nothing, on which ranks still meet */
    if (!dry && !st && !failure && b->check) st = sheaf__meta_compare_hashes(b, p);
    if (st) return st;
    for (int i = 0; i < graph->n_nodes; i++) {
        struct sheaf_tensor *t = graph->nodes[i];
        if (t->buffer && t->buffer->buft == &b->dev->buft) t->extra = &p->node_record[i];
    }
    for (int i = 0; i < graph->n_nodes && !st; i++) {
        if (graph->nodes[i]->flags & SHEAF_BACKEND_TENSOR_CARRIED)
            st = sheaf__meta_carry(b, p, graph->nodes[i], &p->node_record[i], dry);
    }
    if (st) return dry ? st : sheaf__meta_end_apart(st);
    for (int i = 0; i < graph->n_nodes; i++)
        if (is_read_through_owner(graph->nodes[i])) graph->nodes[i]->extra = NULL;
    b->n_computes += !dry;
    return failure;
}

static enum sheaf_status graph_compute(sheaf_backend_t backend, struct sheaf_cgraph *graph) {
    return run_graph(backend->context, graph, false);
}
static enum sheaf_status graph_reserve(sheaf_backend_t backend, struct sheaf_cgraph *graph) {
    return run_graph(backend->context, graph, true);
}

/* ---- the backend object ---- */

static const char *get_name(sheaf_backend_t backend) {
    return sheaf_backend_dev_name(((struct meta_backend *)backend->context)->base.device);
}

static void unlink_backend(struct meta_backend *b) {
    struct meta_backend **at = &b->dev->backends;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
}

static void free_backend(sheaf_backend_t backend) {
    struct meta_backend *b = backend->context;
    unlink_backend(b);
    pthread_mutex_lock(&b->lock);
    atomic_store(&b->quit, true);
    pthread_cond_broadcast(&b->start);
    pthread_mutex_unlock(&b->lock);
    for (int m = 0; b->members && m < b->dev->n_local; m++) {
        struct meta_member *me = &b->members[m];
        if (me->has_thread) pthread_join(me->thread, NULL);
    }
    sheaf__devcomm_free(b->devcomm);
    sheaf__meta_free_carries(b);
    for (int i = 0; i < b->n_programs; i++)
        sheaf__meta_program_free(b->programs[i], b->dev->n_local);
    for (int m = 0; b->members && m < b->dev->n_local; m++) {
        struct meta_member *me = &b->members[m];
        sheaf_gallocr_free(me->galloc);
        sheaf_backend_free(me->device_backend);
        sheaf__meta_staging_free(&me->in);
        sheaf__meta_staging_free(&me->out);
        free(me->hashes);
    }
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->start);
    pthread_cond_destroy(&b->done);
    free(b->members);
    free(b->map);
    free(b);
}

static const struct sheaf_backend_i backend_iface = {
    .get_name = get_name,
    .free = free_backend,
    .graph_compute = graph_compute,
    .synchronize = sheaf__meta_synchronize,
    .release_tensor = sheaf__meta_release,
    .graph_reserve = graph_reserve,
    .set_tensors = sheaf__meta_set_tensors,
};

static enum sheaf_status choose_transport(struct meta_backend *b) {
    const struct meta_device *dev = b->dev;
    sheaf_backend_t *backends = calloc((size_t)dev->n_local + 1, sizeof(sheaf_backend_t));
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!backends) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta backend: out of memory");
    st = sheaf_world_agree(st, "meta backend");
    for (int m = 0; m < dev->n_local && !st; m++) backends[m] = b->members[m].device_backend;
    if (dev->n_members > 1 && !st)
        st = sheaf__devcomm_new(dev->comm, dev->members, backends, b->transport,
                                sizeof b->transport, &b->devcomm);
    free((void *)backends);
    for (int m = 0; m < dev->n_local && dev->n_local > 1 && b->devcomm; m++) {
        struct meta_member *me = &b->members[m];
        sheaf__dev_find_proc(dev->members[dev->local[m]], SHEAF__CAPTURE_PROC, &me->capture);
        if (me->capture) me->capture(me->device_backend, false);
    }
    return st;
}

struct meta_backend *sheaf__meta_backend_of(sheaf_backend_t backend) {
    if (backend && backend->iface == &backend_iface) return backend->context;
    sheaf_set_error(SHEAF_STATUS_INVALID, "%s is no backend of a meta device",
                    backend ? sheaf_backend_name(backend) : "NULL");
    return NULL;
}

sheaf_backend_t sheaf_backend_meta_member_backend(sheaf_backend_t backend, size_t i) {
    const struct meta_backend *b = sheaf__meta_backend_of(backend);
    return b && i < (size_t)b->dev->n_local ? b->members[i].device_backend : NULL;
}

void sheaf_backend_meta_follow(sheaf_backend_t backend, const struct sheaf_tensor *tensor,
                               sheaf_backend_meta_follow_fn fn, void *user) {
    struct meta_backend *b = sheaf__meta_backend_of(backend);
    if (!b) return;
    b->follow.tensor = tensor;
    b->follow.fn = fn;
    b->follow.user = user;
}

const char *sheaf_backend_meta_transport(sheaf_backend_t backend) {
    const struct meta_backend *b = sheaf__meta_backend_of(backend);
    return b ? b->transport : NULL;
}

enum sheaf_status sheaf__meta_backend_new(struct meta_device *dev, sheaf_backend_t *out) {
    struct meta_backend *b = calloc(1, sizeof *b);
    if (!b)
        return sheaf_world_agree(
            sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta backend: out of memory"),
            "meta backend");
    b->base = (struct sheaf_backend){.iface = &backend_iface, .device = &dev->base, .context = b};
    b->dev = dev;
    b->next = dev->backends;
    dev->backends = b;
    b->generation = 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->start, NULL);
    pthread_cond_init(&b->done, NULL);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    b->members = calloc((size_t)dev->n_local + 1, sizeof *b->members);
    if (!b->members) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta backend: out of memory");
    for (int m = 0; m < dev->n_local && !st; m++) {
        struct meta_member *me = &b->members[m];
        sheaf_backend_dev_t device = dev->members[dev->local[m]];
        me->backend = b;
        me->local = m;
        me->in.device = me->out.device = device;
        st = sheaf_backend_dev_init(device, NULL, &me->device_backend);
        if (st) break;
        me->staged = !sheaf_backend_buft_is_host(sheaf_backend_dev_buffer_type(device));
        sheaf__dev_find_proc(device, SHEAF__AS_WRITTEN_PROC, &me->as_written);
        me->galloc = sheaf_gallocr_new(
            sheaf__meta_shared_buft(&me->shared, dev->comm, dev->local[m], device));
        if (!me->galloc) st = SHEAF_STATUS_ALLOC_FAILED;
        if (m == 0 || st) continue;
        me->has_thread = sheaf__thread_start(&me->thread, sheaf__meta_member_thread, me) == 0;
        if (!me->has_thread)
            st = sheaf_set_error(SHEAF_STATUS_FAILED, "meta backend: cannot start a thread");
    }
    st = sheaf_world_agree(st, "meta backend");
    if (!st) st = choose_transport(b);
    if (st) {
        free_backend(&b->base);
        return st;
    }
    *out = &b->base;
    return st;
}

static enum sheaf_status refuse_both(void) {
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "meta backend: check mode compares what all ranks have computed, so a "
                           "backend that lives on after a failure has no check mode");
}

enum sheaf_status sheaf_backend_meta_set_lives_on(sheaf_backend_t backend, bool lives_on) {
    struct meta_backend *b = sheaf__meta_backend_of(backend);
    if (!b) return SHEAF_STATUS_INVALID;
    if (lives_on && b->check) return refuse_both();
    b->lives_on = lives_on;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_backend_meta_set_check(sheaf_backend_t backend, bool check) {
    struct meta_backend *b = sheaf__meta_backend_of(backend);
    if (!b) return SHEAF_STATUS_INVALID;
    if (check && b->lives_on) return refuse_both();
    b->check = check;
    return SHEAF_STATUS_SUCCESS;
}
