/* The local members of a rank at work: member 0 on the calling thread, each further one on a thread
 * of its own. They meet only inside collectives. */
#include <stdio.h>

#include "backend/registry.h"
#include "meta/backend.h"

enum { SPIN = 2000 };

static enum sheaf_status reserve_instr(struct meta_member *me, struct meta_instr *instr) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    void *host;
    if (instr->kind == INSTR_SPAN) {
        sheaf_backend_t device = me->device_backend;
        if (device->iface->graph_reserve && device->iface->graph_reserve(device, &instr->span))
            sheaf_clear_error(); /* its compute says so again */
        return st;
    }
    if (instr->kind != INSTR_COPY && (instr->kind != INSTR_COLLECTIVE || me->backend->devcomm))
        return st;
    if (instr->in) st = sheaf__meta_stage(&me->in, sheaf_nbytes(instr->in), &host);
    return st ? st : sheaf__meta_stage(&me->out, sheaf_nbytes(instr->out), &host);
}

enum sheaf_status sheaf__meta_reserve(struct meta_backend *b, struct meta_program *p) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int m = 0; m < b->dev->n_local; m++) {
        struct meta_member *me = &b->members[m];
        const struct meta_part *part = &p->parts[m];
        void *host;
        for (int i = 0; me->staged && i < part->n_instrs && !st; i++)
            st = reserve_instr(me, &part->instrs[i]);
        for (int i = 0; me->staged && b->check && i < part->graph.n_nodes && !st; i++)
            st = sheaf__meta_stage(&me->in, sheaf_nbytes(part->graph.nodes[i]), &host);
    }
    p->reserved = !st;
    return st;
}

static void run_member(struct meta_member *me) {
    me->failure = SHEAF_STATUS_SUCCESS;
    me->status = sheaf__meta_run_part(me, &me->backend->program->parts[me->local]);
    if (!me->status) {
        me->status = me->failure;
        return;
    }
    snprintf(me->error, sizeof me->error, "%s", sheaf_last_error());
    /* the other members, if there are any, wait for this one in their next collective: end their
     * waits */
    if (me->backend->dev->n_members > 1) sheaf_world_abort(me->error);
    sheaf__meta_await_collective(me, me->ticket); /* its memory may go */
}

enum sheaf_status sheaf__meta_end_apart(enum sheaf_status st) {
    if (sheaf_world_size() > 1) sheaf_world_abort(sheaf_last_error());
    return st;
}

/* The thread is the first of the device's team: its place is on the device's cores. */
static void bind_to_device(sheaf_backend_dev_t device) {
    void (*bind)(sheaf_backend_dev_t);
    sheaf__dev_find_proc(device, SHEAF__BIND_THREAD_PROC, &bind);
    if (bind) bind(device);
}

void *sheaf__meta_member_thread(void *arg) {
    struct meta_member *me = arg;
    struct meta_backend *b = me->backend;
    bind_to_device(b->dev->members[b->dev->local[me->local]]);
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0;
             i < SPIN && atomic_load_explicit(&b->run_number, memory_order_acquire) == seen; i++) {
        }
        pthread_mutex_lock(&b->lock);
        while (atomic_load(&b->run_number) == seen && !atomic_load(&b->quit))
            pthread_cond_wait(&b->start, &b->lock);
        pthread_mutex_unlock(&b->lock);
        if (atomic_load(&b->quit)) return NULL;
        seen = atomic_load(&b->run_number);
        run_member(me);
        if (atomic_fetch_sub(&b->n_running, 1) == 1) {
            pthread_mutex_lock(&b->lock);
            pthread_cond_signal(&b->done);
            pthread_mutex_unlock(&b->lock);
        }
    }
}

/* Between runs: no member is in a collective. */
static void capture_graphs(struct meta_backend *b, bool now) {
    for (int m = 0; m < b->dev->n_local; m++) {
        const struct meta_member *me = &b->members[m];
        if (me->capture) me->capture(me->device_backend, now);
    }
}

enum sheaf_status sheaf__meta_run_program(struct meta_backend *b, struct meta_program *p) {
    const int n = b->dev->n_local;
    b->program = p;
    capture_graphs(b, false); /* others may have computed here since, on graphs that are gone */
    if (n > 1) {
        atomic_store(&b->n_running, n - 1);
        pthread_mutex_lock(&b->lock);
        atomic_fetch_add(&b->run_number, 1);
        pthread_cond_broadcast(&b->start);
        pthread_mutex_unlock(&b->lock);
    }
    if (n > 0) run_member(&b->members[0]);
    if (n > 1) {
        pthread_mutex_lock(&b->lock);
        while (atomic_load(&b->n_running)) pthread_cond_wait(&b->done, &b->lock);
        pthread_mutex_unlock(&b->lock);
    }
    /* report the cause, not its consequence: PEER only if no member has another status */
    const struct meta_member *failed = NULL;
    for (int m = 0; m < n; m++) {
        const struct meta_member *me = &b->members[m];
        if (me->status &&
            (!failed || (failed->status == SHEAF_STATUS_PEER && me->status != SHEAF_STATUS_PEER)))
            failed = me;
    }
    capture_graphs(b, !failed);
    return failed ? sheaf_set_error(failed->status, "%s", failed->error) : SHEAF_STATUS_SUCCESS;
}
