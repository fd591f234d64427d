/* The meta backend: finds or compiles the program of a graph, runs it on this rank's members, and
 * counts.
 *
 * Member 0 of the rank runs on the calling thread, each further one on a thread of its own; they
 * meet only inside collectives. Invariant: every rank finds or compiles the same program in the
 * same call, because the key of a program depends on nothing that differs between ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/optional.h"
#include "comm/device/devcomm.h"
#include "comm/diag/events.h"
#include "comm/world/board.h"
#include "meta/backend.h"
#include "meta/overlap.h"

/* 64 programs of any size; more if they are small, as those of scheduler splits are. */
enum { MAX_LARGE_PROGRAMS = 64, MAX_PROGRAM_NODES = 1 << 16, SPIN = 2000 };

/* ---- programs ---- */

/* Every rank must have planned the same graph before the first of its data move. */
static enum sheaf_status compare_fingerprints(const struct sheaf_cgraph *graph,
                                              const struct meta_program *p) {
    const int n = sheaf_world_size();
    if (n == 1) return SHEAF_STATUS_SUCCESS;
    const uint64_t mine = sheaf__split_plan_fingerprint(p->plan, graph);
    uint64_t *all = malloc((size_t)n * sizeof *all);
    if (!all) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta: out of memory");
    enum sheaf_status st = sheaf_world_all_gather(&mine, sizeof mine, all, "graph fingerprint");
    for (int r = 1; r < n && !st; r++) {
        if (all[r] == all[0]) continue;
        st = sheaf_set_error(
            SHEAF_STATUS_PEER,
            "graph: rank %d (%s) has another graph than rank 0 (%s): %d nodes here, fingerprints "
            "%016llx and %016llx; start the same program with the same model and options "
            "everywhere",
            r, sheaf_world_host_name(r), sheaf_world_host_name(0), graph->n_nodes,
            (unsigned long long)all[r], (unsigned long long)all[0]);
    }
    free(all);
    return st;
}

/* Makes room for a program of n_nodes. One whose results are kept stays. */
static enum sheaf_status make_room(struct meta_backend *b, int n_nodes) {
    for (;;) {
        long total = n_nodes;
        int oldest = -1;
        for (int i = 0; i < b->n_programs; i++) {
            total += b->programs[i]->n_nodes;
            if (b->programs[i]->n_carried) continue;
            if (oldest < 0 || b->programs[i]->last_use < b->programs[oldest]->last_use) oldest = i;
        }
        const bool too_many = b->n_programs == META_MAX_PROGRAMS;
        if (!too_many && (b->n_programs < MAX_LARGE_PROGRAMS || total <= MAX_PROGRAM_NODES))
            return SHEAF_STATUS_SUCCESS;
        if (oldest < 0) {
            return !too_many ? SHEAF_STATUS_SUCCESS
                             : sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                               "meta: a graph of more than %d scheduler splits on "
                                               "this device; assign more of its ops here",
                                               META_MAX_PROGRAMS);
        }
        sheaf__meta_program_free(b->programs[oldest], b->dev->n_local);
        b->programs[oldest] = b->programs[--b->n_programs];
    }
}

static enum sheaf_status find_program(struct meta_backend *b, const struct sheaf_cgraph *graph,
                                      struct meta_program **out) {
    for (int i = 0; i < b->n_programs; i++) {
        if (b->programs[i]->uid == graph->uid) {
            *out = b->programs[i];
            return SHEAF_STATUS_SUCCESS;
        }
    }
    uint64_t key = 0;
    enum sheaf_status st = sheaf__meta_graph_key(b, graph, &key);
    for (int i = 0; i < b->n_programs && !st; i++) {
        if (b->programs[i]->key == key && b->programs[i]->n_nodes == graph->n_nodes) {
            *out = b->programs[i];
            return SHEAF_STATUS_SUCCESS;
        }
    }
    struct meta_program *p = NULL;
    sheaf_world_enter(SHEAF_PHASE_PLAN,
                      graph->n_nodes ? graph->nodes[graph->n_nodes - 1]->name : "");
    if (!st) st = sheaf__meta_program_new(b->dev, graph, &p);
    st = sheaf_world_agree(st, "graph planning");
    if (!st) st = compare_fingerprints(graph, p);
    sheaf_world_enter(SHEAF_PHASE_IDLE, NULL);
    if (st) {
        sheaf__meta_program_free(p, b->dev->n_local);
        return st;
    }
    st = make_room(b, graph->n_nodes); /* the same on every rank */
    if (st) {
        sheaf__meta_program_free(p, b->dev->n_local);
        return st;
    }
    p->key = key;
    b->programs[b->n_programs++] = p;
    b->n_plans++;
    *out = p;
    return st;
}

/* Places the program's tensors in the members' compute buffers, which all programs share. */
static enum sheaf_status allocate(struct meta_backend *b, struct meta_program *p) {
    if (p->generation == b->generation) return SHEAF_STATUS_SUCCESS;
    bool grown = false;
    for (int m = 0; m < b->dev->n_local; m++) {
        struct sheaf_cgraph *g = &p->parts[m].graph;
        for (int i = 0; i < g->n_nodes; i++) g->nodes[i]->data = NULL, g->nodes[i]->buffer = NULL;
        const size_t before = sheaf_gallocr_get_buffer_size(b->members[m].galloc);
        enum sheaf_status st = sheaf_gallocr_alloc_graph(b->members[m].galloc, g);
        if (st) return st;
        if (!b->devcomm && !b->members[m].staged)
            sheaf__meta_place_waits(b->dev, &p->parts[m], b->members[m].galloc);
        grown = grown || sheaf_gallocr_get_buffer_size(b->members[m].galloc) != before;
    }
    if (grown) b->generation++; /* the other programs' addresses are gone */
    p->generation = b->generation;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- one member ---- */

static int member_of(const struct meta_member *me) { return me->backend->dev->local[me->local]; }

/* Until the member's queue is empty. */
static enum sheaf_status drain(struct meta_member *me) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (me->backend->devcomm) st = sheaf__devcomm_wait(me->backend->devcomm, me->local);
    return st ? st : sheaf_backend_synchronize(me->device_backend);
}

/* The value of `t` in host memory: its own, or a copy in `staging`. Waits until it is there. */
static enum sheaf_status host_copy(struct meta_member *me, const struct sheaf_tensor *t,
                                   struct meta_staging *staging, void **out) {
    const size_t n = sheaf_nbytes(t);
    *out = t->data;
    if (!me->staged) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (n > staging->size) st = drain(me); /* it moves */
    if (!st) st = sheaf__meta_stage(staging, n, out);
    if (!st) st = sheaf_backend_tensor_get_async(me->device_backend, t, *out, 0, n);
    const enum sheaf_status waited = drain(me);
    return st ? st : waited;
}

/* Where a collective writes the value of `t`. */
static enum sheaf_status host_target(struct meta_member *me, const struct sheaf_tensor *t,
                                     void **out) {
    *out = t->data;
    return me->staged ? sheaf__meta_stage(&me->out, sheaf_nbytes(t), out) : SHEAF_STATUS_SUCCESS;
}

/* What a collective wrote goes where later spans look for it. The copy is queued: `host` is next
 * touched after host_copy has waited. */
static enum sheaf_status write_back(struct meta_member *me, struct sheaf_tensor *t,
                                    const void *host) {
    return me->staged
               ? sheaf_backend_tensor_set_async(me->device_backend, t, host, 0, sheaf_nbytes(t))
               : SHEAF_STATUS_SUCCESS;
}

/* The instruction's call, with the memory that it reads and writes. */
static struct sheaf_comm_call call_on(const struct meta_instr *instr, const void *in, void *out) {
    struct sheaf_comm_call call = instr->call;
    call.send = in;
    call.recv = out;
    return call;
}

static struct sheaf_comm_call call_on_slices(const struct meta_instr *instr) {
    return call_on(instr, instr->in ? instr->in->data : NULL, instr->out->data);
}

/* ---- the routes of a collective ---- */

/* On the devices' own memory, in their queues. */
static enum sheaf_status submit_collective(struct meta_member *me, struct meta_instr *instr) {
    const struct sheaf_comm_call call = call_on_slices(instr);
    return sheaf__devcomm_run(me->backend->devcomm, me->local, &call);
}

/* To be waited for before an instruction that touches its memory. */
static enum sheaf_status start_collective(struct meta_member *me, struct meta_instr *instr) {
    const struct sheaf_comm_call call = call_on_slices(instr);
    const enum sheaf_status st =
        sheaf_comm_start(me->backend->dev->comm, member_of(me), &call, &instr->ticket);
    if (st) return st;
    me->ticket = instr->ticket;
    me->n_started++;
    return st;
}

static enum sheaf_status await_collective(struct meta_member *me, uint64_t ticket) {
    return ticket ? sheaf_comm_wait(me->backend->dev->comm, member_of(me), ticket)
                  : SHEAF_STATUS_SUCCESS;
}

/* Through host memory, at once. */
static enum sheaf_status make_collective(struct meta_member *me, struct meta_instr *instr) {
    void *in = NULL, *out = NULL;
    const uint64_t begin = sheaf__time_ns();
    enum sheaf_status st = instr->in ? host_copy(me, instr->in, &me->in, &in)
                                     : host_copy(me, instr->out, &me->out, &out);
    if (!st && instr->in) st = host_target(me, instr->out, &out);
    if (me->staged) me->compute_ns += sheaf__time_ns() - begin; /* mostly the span before it */
    if (st) return st;
    const struct sheaf_comm_call call = call_on(instr, in, out);
    st = sheaf_comm_run(me->backend->dev->comm, member_of(me), &call);
    return st ? st : write_back(me, instr->out, out);
}

static bool can_start(const struct meta_member *me, const struct meta_instr *instr) {
    return instr->started && !me->backend->check; /* check mode looks at the result at once */
}
static bool can_submit(const struct meta_member *me, const struct meta_instr *instr) {
    (void)instr;
    return me->backend->devcomm;
}
static bool always(const struct meta_member *me, const struct meta_instr *instr) {
    (void)me, (void)instr;
    return true;
}

/* The first that is open takes the collective. */
static const struct route {
    bool (*is_open)(const struct meta_member *me, const struct meta_instr *instr);
    enum sheaf_status (*take)(struct meta_member *me, struct meta_instr *instr);
} routes[] = {
    {can_start, start_collective},
    {can_submit, submit_collective},
    {always, make_collective},
};

static enum sheaf_status run_collective(struct meta_member *me, struct meta_instr *instr) {
    const struct route *route = routes;
    instr->ticket = 0;
    while (!route->is_open(me, instr)) route++;
    return route->take(me, instr);
}

static enum sheaf_status run_zero(struct meta_member *me, const struct meta_instr *instr) {
    enum sheaf_status st = me->staged ? drain(me) : SHEAF_STATUS_SUCCESS; /* it may still be read */
    return st ? st : sheaf_backend_tensor_memset(instr->out, 0, 0, sheaf_nbytes(instr->out));
}

static enum sheaf_status check_value(struct meta_member *me, const struct sheaf_tensor *t,
                                     int flag) {
    if (!(t->flags & flag)) return SHEAF_STATUS_SUCCESS;
    void *value;
    const enum sheaf_status st = host_copy(me, t, &me->in, &value);
    return st ? st : sheaf__meta_add_hash(me, t, value, flag);
}

/* Check mode: node by node, so that every result is seen before its memory is used again. */
static enum sheaf_status run_span_checked(struct meta_member *me, struct meta_instr *instr) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < instr->span.n_nodes && !st; i++) {
        struct sheaf_cgraph one = instr->span;
        one.size = one.n_nodes = 1;
        one.nodes = instr->span.nodes + i;
        one.uid = instr->span.uid + (uint64_t)i + 1;
        st = sheaf_backend_graph_compute(me->device_backend, &one);
        if (!st) st = check_value(me, one.nodes[0], META_FLAG_CHECK_NODE);
    }
    return st;
}

/* A device with memory of its own has a queue, too: it goes on while the host prepares what
 * follows. The CPU computes at once, on this thread. */
static enum sheaf_status run_span(struct meta_member *me, struct meta_instr *instr) {
    const uint64_t begin = sheaf__time_ns();
    const char *name = instr->span.nodes[instr->span.n_nodes - 1]->name;
    sheaf__enter(SHEAF_PHASE_COMPUTE, name, begin);
    enum sheaf_status st = me->backend->check ? run_span_checked(me, instr)
                           : me->staged
                               ? sheaf_backend_graph_compute_async(me->device_backend, &instr->span)
                               : sheaf_backend_graph_compute(me->device_backend, &instr->span);
    const uint64_t took = sheaf__time_ns() - begin;
    me->compute_ns += took;
    sheaf__leave();
    sheaf__trace(SHEAF__TRACE_COMPUTE, name, begin, took);
    return st;
}

static enum sheaf_status run_instrs(struct meta_member *me, struct meta_part *part) {
    me->n_hashes = 0;
    me->ticket = 0;
    for (int i = 0; i < part->n_instrs; i++) {
        struct meta_instr *instr = &part->instrs[i];
        enum sheaf_status st =
            instr->after ? await_collective(me, instr->after->ticket) : SHEAF_STATUS_SUCCESS;
        if (st) return st;
        if (instr->kind == INSTR_SPAN) {
            st = run_span(me, instr);
        } else if (instr->kind == INSTR_ZERO) {
            st = run_zero(me, instr);
        } else {
            st = run_collective(me, instr);
            if (!st && me->backend->check)
                st = check_value(me, instr->out, META_FLAG_CHECK_COLLECTIVE);
        }
        if (st) return st;
    }
    return await_collective(me, me->ticket);
}

static enum sheaf_status run_part(struct meta_member *me, struct meta_part *part) {
    enum sheaf_status st = run_instrs(me, part);
    if (!me->staged) return st;
    const uint64_t begin = sheaf__time_ns();
    const enum sheaf_status waited = drain(me);
    me->compute_ns += sheaf__time_ns() - begin;
    return st ? st : waited;
}

static void run_member(struct meta_member *me) {
    me->status = run_part(me, &me->backend->job->parts[me->local]);
    if (!me->status) return;
    snprintf(me->error, sizeof me->error, "%s", sheaf_last_error());
    /* the other members wait for this one in their next collective: end their waits */
    sheaf_world_abort(me->error);
    await_collective(me, me->ticket); /* its memory may go */
}

/* The thread is the first of the device's team: its place is on the device's cores. */
static void bind_to_device(sheaf_backend_dev_t device) {
    sheaf_backend_reg_t reg = sheaf_backend_dev_backend_reg(device);
    void *found = reg ? sheaf_backend_reg_get_proc_address(reg, SHEAF__BIND_THREAD_PROC) : NULL;
    void (*bind)(sheaf_backend_dev_t);
    memcpy(&bind, &found, sizeof bind); /* ISO C has no cast from object to function pointers */
    if (found) bind(device);
}

static void *member_thread(void *arg) {
    struct meta_member *me = arg;
    struct meta_backend *b = me->backend;
    bind_to_device(b->dev->members[b->dev->local[me->local]]);
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0;
             i < SPIN && atomic_load_explicit(&b->job_number, memory_order_acquire) == seen; i++) {
        }
        pthread_mutex_lock(&b->lock);
        while (atomic_load(&b->job_number) == seen && !atomic_load(&b->quit))
            pthread_cond_wait(&b->start, &b->lock);
        pthread_mutex_unlock(&b->lock);
        if (atomic_load(&b->quit)) return NULL;
        seen = atomic_load(&b->job_number);
        run_member(me);
        if (atomic_fetch_sub(&b->n_running, 1) == 1) {
            pthread_mutex_lock(&b->lock);
            pthread_cond_signal(&b->done);
            pthread_mutex_unlock(&b->lock);
        }
    }
}

/* ---- the whole rank ---- */

static enum sheaf_status run_program(struct meta_backend *b, struct meta_program *p) {
    const int n = b->dev->n_local;
    b->job = p;
    if (n > 1) {
        atomic_store(&b->n_running, n - 1);
        pthread_mutex_lock(&b->lock);
        atomic_fetch_add(&b->job_number, 1);
        pthread_cond_broadcast(&b->start);
        pthread_mutex_unlock(&b->lock);
    }
    if (n > 0) run_member(&b->members[0]);
    if (n > 1) {
        pthread_mutex_lock(&b->lock);
        while (atomic_load(&b->n_running)) pthread_cond_wait(&b->done, &b->lock);
        pthread_mutex_unlock(&b->lock);
    }
    /* the cause rather than its consequence: PEER only if no member has better to say */
    const struct meta_member *failed = NULL;
    for (int m = 0; m < n; m++) {
        const struct meta_member *me = &b->members[m];
        if (me->status &&
            (!failed || (failed->status == SHEAF_STATUS_PEER && me->status != SHEAF_STATUS_PEER)))
            failed = me;
    }
    return failed ? sheaf_set_error(failed->status, "%s", failed->error) : SHEAF_STATUS_SUCCESS;
}

/* Host memory for the collectives of members that have other memory. */
static enum sheaf_status reserve_staging(struct meta_backend *b, const struct meta_program *p) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int m = 0; m < b->dev->n_local; m++) {
        struct meta_member *me = &b->members[m];
        for (int i = 0; me->staged && i < p->parts[m].n_instrs && !st; i++) {
            const struct meta_instr *instr = &p->parts[m].instrs[i];
            void *host;
            if (instr->kind != INSTR_COLLECTIVE) continue;
            if (instr->in) st = sheaf__meta_stage(&me->in, sheaf_nbytes(instr->in), &host);
            if (!st) st = sheaf__meta_stage(&me->out, sheaf_nbytes(instr->out), &host);
        }
    }
    return st;
}

/* dry: everything but the numbers. */
static enum sheaf_status run_graph(struct meta_backend *b, struct sheaf_cgraph *graph, bool dry) {
    struct meta_program *p = NULL;
    sheaf__next_step();
    enum sheaf_status st = find_program(b, graph, &p);
    if (!st) st = allocate(b, p);
    if (!st) st = sheaf__meta_program_bind(b->dev, p, graph);
    if (st) return st;
    p->uid = graph->uid;
    p->last_use = ++b->clock;
    st = dry ? reserve_staging(b, p) : run_program(b, p);
    if (!dry && !st && b->check) st = sheaf__meta_compare_hashes(b, p);
    if (st) return st;
    for (int i = 0; i < graph->n_nodes; i++) {
        struct sheaf_tensor *t = graph->nodes[i];
        if (t->buffer && t->buffer->buft == &b->dev->buft) t->extra = &p->node_record[i];
    }
    for (int i = 0; i < graph->n_nodes && !st; i++) {
        if (graph->nodes[i]->flags & SHEAF_BACKEND_TENSOR_CARRIED)
            st = sheaf__meta_carry(b, p, graph->nodes[i], &p->node_record[i], dry);
    }
    if (st) return st;
    for (int i = 0; i < graph->n_nodes; i++) { /* read through the owner, which outlives this */
        struct sheaf_tensor *t = graph->nodes[i];
        if (sheaf__meta_is_carried(t->view_src)) t->extra = NULL;
    }
    b->n_computes += !dry;
    return SHEAF_STATUS_SUCCESS;
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

static void free_backend(sheaf_backend_t backend) {
    struct meta_backend *b = backend->context;
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
        free(me->hashed_names);
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
    .release_tensor = sheaf__meta_release,
    .graph_reserve = graph_reserve,
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
    return st;
}

/* NULL, with a text, if it is the backend of another device. */
static struct meta_backend *meta_of(sheaf_backend_t backend) {
    if (backend && backend->iface == &backend_iface) return backend->context;
    sheaf_set_error(SHEAF_STATUS_INVALID, "%s is no backend of a meta device",
                    backend ? sheaf_backend_name(backend) : "NULL");
    return NULL;
}

const char *sheaf_backend_meta_transport(sheaf_backend_t backend) {
    const struct meta_backend *b = meta_of(backend);
    return b ? b->transport : NULL;
}

enum sheaf_status sheaf__meta_backend_new(struct meta_device *dev, sheaf_backend_t *out) {
    struct meta_backend *b = calloc(1, sizeof *b);
    if (!b) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta backend: out of memory");
    b->base = (struct sheaf_backend){.iface = &backend_iface, .device = &dev->base, .context = b};
    b->dev = dev;
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
        me->galloc = sheaf_gallocr_new(
            sheaf__meta_shared_buft(&me->shared, dev->comm, dev->local[m], device));
        if (!me->galloc) st = SHEAF_STATUS_ALLOC_FAILED;
        if (m == 0 || st) continue;
        me->has_thread = pthread_create(&me->thread, NULL, member_thread, me) == 0;
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

enum sheaf_status sheaf_backend_meta_set_check(sheaf_backend_t backend, bool check) {
    struct meta_backend *b = meta_of(backend);
    if (!b) return SHEAF_STATUS_INVALID;
    b->check = check;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- statistics ---- */

static struct sheaf_comm_stats since_reset(const struct meta_backend *b,
                                           enum sheaf_comm_kind kind) {
    struct sheaf_comm_stats s = {0};
    if (!b->dev->n_local) return s;
    sheaf_comm_get_stats(b->dev->comm, b->dev->local[0], kind, &s);
    s.count -= b->baseline[kind].count;
    s.bytes -= b->baseline[kind].bytes;
    s.time_ns -= b->baseline[kind].time_ns;
    s.wait_ns -= b->baseline[kind].wait_ns;
    s.hidden_ns -= b->baseline[kind].hidden_ns;
    return s;
}

enum sheaf_status sheaf_backend_meta_get_stats(sheaf_backend_t backend,
                                               struct sheaf_backend_meta_stats *stats) {
    const struct meta_backend *b = meta_of(backend);
    if (!b) return SHEAF_STATUS_INVALID;
    struct sheaf_backend_meta_stats s = {
        .size = sizeof s, .n_computes = b->n_computes, .n_plans = b->n_plans};
    for (int kind = 0; kind < SHEAF_COMM_KIND_COUNT; kind++) {
        const struct sheaf_comm_stats c = since_reset(b, (enum sheaf_comm_kind)kind);
        s.n_collectives += c.count;
        s.collective_bytes += c.bytes;
        s.collective_ns += c.time_ns;
        s.wait_ns += c.wait_ns;
        s.hidden_ns += c.hidden_ns;
    }
    if (b->dev->n_local) {
        s.compute_ns = b->members[0].compute_ns;
        s.n_started = b->members[0].n_started;
    }
    for (int m = 0; m < b->dev->n_local; m++)
        s.compute_bytes += sheaf_gallocr_get_buffer_size(b->members[m].galloc);
    s.static_bytes = b->dev->static_bytes;
    const size_t size = stats->size;
    memcpy(stats, &s, size && size < sizeof s ? size : sizeof s);
    stats->size = size;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_backend_meta_reset_stats(sheaf_backend_t backend) {
    struct meta_backend *b = meta_of(backend);
    if (!b) return SHEAF_STATUS_INVALID;
    b->n_computes = b->n_plans = 0;
    for (int kind = 0; kind < SHEAF_COMM_KIND_COUNT && b->dev->n_local; kind++) {
        sheaf_comm_get_stats(b->dev->comm, b->dev->local[0], (enum sheaf_comm_kind)kind,
                             &b->baseline[kind]);
    }
    for (int m = 0; m < b->dev->n_local; m++) {
        struct meta_member *me = &b->members[m];
        me->compute_ns = me->n_started = 0;
    }
    return SHEAF_STATUS_SUCCESS;
}
