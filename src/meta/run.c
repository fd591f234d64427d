/* What one member does with its part of a program: spans on its device, and collectives by the
 * route that fits. */
#include <stdio.h>

#include "comm/device/devcomm.h"
#include "comm/diag/events.h"
#include "comm/world/board.h"
#include "meta/backend.h"
#include "sheaf/ops.h"

static int member_of(const struct meta_member *me) { return me->backend->dev->local[me->local]; }

enum sheaf_status sheaf__meta_drain(struct meta_member *me) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (me->backend->devcomm) st = sheaf__devcomm_wait(me->backend->devcomm, me->local);
    return st ? st : sheaf_backend_synchronize(me->device_backend);
}

/* Shown as phase COMPUTE, so that the guard's limit covers a queue that never empties. */
static enum sheaf_status drain_spans(struct meta_member *me, const char *name) {
    sheaf__enter(SHEAF_PHASE_COMPUTE, name, sheaf__time_ns());
    const enum sheaf_status st = sheaf__meta_drain(me);
    sheaf__leave();
    return st;
}

/* The value of `t` in host memory: its own, or a copy in `staging`. Waits until it is there. */
static enum sheaf_status host_copy(struct meta_member *me, const struct sheaf_tensor *t,
                                   struct meta_staging *staging, void **out) {
    const size_t n = sheaf_nbytes(t);
    *out = t->data;
    if (!me->staged) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (n > staging->size) st = sheaf__meta_drain(me); /* it moves */
    if (!st) st = sheaf__meta_stage(staging, n, out);
    if (!st) st = sheaf_backend_tensor_get_async(me->device_backend, t, *out, 0, n);
    const enum sheaf_status waited = drain_spans(me, t->name);
    return st ? st : waited;
}

/* Where a collective writes the value of `t`. */
static enum sheaf_status host_target(struct meta_member *me, const struct sheaf_tensor *t,
                                     void **out) {
    *out = t->data;
    return me->staged ? sheaf__meta_stage(&me->out, sheaf_nbytes(t), out) : SHEAF_STATUS_SUCCESS;
}

/* Copies the result of a collective to its tensor. The copy is queued; `host` is not touched again
 * before host_copy has waited. */
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

/* Starts it; an instruction that touches its memory waits for it. */
static enum sheaf_status start_collective(struct meta_member *me, struct meta_instr *instr) {
    const struct sheaf_comm_call call = call_on_slices(instr);
    const enum sheaf_status st =
        sheaf_comm_start(me->backend->dev->comm, member_of(me), &call, &instr->ticket);
    if (st) return st;
    me->ticket = instr->ticket;
    me->n_started++;
    return st;
}

enum sheaf_status sheaf__meta_await_collective(struct meta_member *me, uint64_t ticket) {
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

/* Of a weight or cache: the memory that an instruction reads or writes past the device. */
static enum sheaf_status as_written(struct meta_member *me, const struct sheaf_tensor *t) {
    const bool may_differ =
        t && me->as_written && sheaf__memory_owner(t)->flags & SHEAF__TENSOR_PRIVATE;
    return may_differ ? me->as_written(t) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status run_collective(struct meta_member *me, struct meta_instr *instr) {
    const enum sheaf_status st = as_written(me, instr->in); /* it writes results alone */
    if (st) return st;
    instr->ticket = 0;
    if (instr->started && !me->backend->check) /* check mode looks at the result at once */
        return start_collective(me, instr);
    if (me->backend->devcomm) return submit_collective(me, instr);
    return make_collective(me, instr);
}

static enum sheaf_status run_zero(struct meta_member *me, const struct meta_instr *instr) {
    /* its memory may still be read */
    const enum sheaf_status st = me->staged ? sheaf__meta_drain(me) : SHEAF_STATUS_SUCCESS;
    return st ? st : sheaf_backend_tensor_memset(instr->out, 0, 0, sheaf_nbytes(instr->out));
}

/* Another device would have it in its queue: here the host waits for the value. */
static enum sheaf_status run_copy(struct meta_member *me, const struct meta_instr *instr) {
    void *in = NULL, *out = NULL;
    enum sheaf_status st = as_written(me, instr->in);
    if (!st) st = as_written(me, instr->out);
    if (!st) st = host_copy(me, instr->in, &me->in, &in);
    if (!st) st = host_target(me, instr->out, &out);
    return st ? st : sheaf__meta_copy(me, instr, in, out);
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
        one.version = 0;
        st = sheaf_backend_graph_compute(me->device_backend, &one);
        if (!st) st = check_value(me, one.nodes[0], META_FLAG_CHECK_NODE);
    }
    return st;
}

/* A device with its own memory has a queue and works while the host prepares the next instructions.
 * The CPU computes at once, on this thread. */
static enum sheaf_status run_span(struct meta_member *me, struct meta_instr *instr) {
    const uint64_t begin = sheaf__time_ns();
    const struct sheaf_tensor *last = instr->span.nodes[instr->span.n_nodes - 1];
    const char *name = last->name[0] ? last->name : sheaf_op_desc(last);
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

/* The others wait for this member in their collectives, so it comes to them all the same. */
static enum sheaf_status or_live_on(struct meta_member *me, enum sheaf_status st) {
    if (!st || !me->backend->lives_on) return st;
    if (!me->failure) snprintf(me->error, sizeof me->error, "%s", sheaf_last_error());
    if (!me->failure) me->failure = st;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status run_instrs(struct meta_member *me, struct meta_part *part) {
    me->n_hashes = 0;
    me->ticket = 0;
    for (int i = 0; i < part->n_instrs; i++) {
        struct meta_instr *instr = &part->instrs[i];
        enum sheaf_status st = instr->after ? sheaf__meta_await_collective(me, instr->after->ticket)
                                            : SHEAF_STATUS_SUCCESS;
        if (st) return st;
        if (instr->kind == INSTR_SPAN) {
            st = or_live_on(me, run_span(me, instr));
        } else if (instr->kind == INSTR_ZERO) {
            st = or_live_on(me, run_zero(me, instr));
        } else if (instr->kind == INSTR_COPY) {
            st = or_live_on(me, run_copy(me, instr));
        } else {
            st = run_collective(me, instr);
            if (!st && me->backend->check)
                st = check_value(me, instr->out, META_FLAG_CHECK_COLLECTIVE);
        }
        if (st) return st;
    }
    return sheaf__meta_await_collective(me, me->ticket);
}

/* Work that others add goes to the queue before that is waited for. */
static void submit_followers(const struct meta_member *me) {
    const struct meta_backend *b = me->backend;
    if (b->follow.node < 0) return;
    const size_t at = (size_t)b->follow.node * (size_t)b->dev->n_local + (size_t)me->local;
    const struct sheaf_tensor *slice = b->program->slices[at];
    if (slice) b->follow.fn(b->follow.user, (size_t)me->local, me->device_backend, slice);
}

enum sheaf_status sheaf__meta_run_part(struct meta_member *me, struct meta_part *part) {
    enum sheaf_status st = run_instrs(me, part);
    if (!me->staged) return st;
    if (!st && !me->failure) submit_followers(me);
    const struct sheaf_cgraph *g = &part->graph;
    const uint64_t begin = sheaf__time_ns();
    const enum sheaf_status waited =
        drain_spans(me, g->n_nodes ? g->nodes[g->n_nodes - 1]->name : "");
    me->compute_ns += sheaf__time_ns() - begin;
    return st ? st : waited;
}
