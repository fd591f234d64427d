/* Started collectives: a queue of calls (transport/pending.h, with its invariant), and one thread a
 * member that makes them, with the code of direct calls. While the member computes, the thread
 * sleeps between looks at the wire; once the member waits for it, it looks all the time, as a
 * direct call does. */
#include "comm/group/comm_thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"
#include "comm/diag/events.h"
#include "comm/diag/recorder.h"
#include "comm/transport/call.h"
#include "comm/transport/pending.h"

static const uint64_t ENDED = UINT64_MAX; /* ticket of a call that was run at once */

enum {
    /* A nap is a part of the expected time, within limits: sockets hold what a fast link brings in
     * the longest, and a look costs some microseconds of a core that may have other work. */
    NAPS = 64,
    SHORTEST_NAP_NS = 50000,
    LONGEST_NAP_NS = 200000,
    SLACK_NS = 1000,
    SLICE_NS = 100000, /* slice of the scheduler; the least that it accepts */
};

/* ---- the thread ---- */

static enum sheaf_status run(struct sheaf__pending *pending, const struct sheaf__pending_op *op) {
    const int64_t expected = sheaf_comm_bound_ns(pending->comm, op->call.kind, op->bytes) / NAPS;
    pending->nap_ns = expected <= SHORTEST_NAP_NS  ? SHORTEST_NAP_NS
                      : expected >= LONGEST_NAP_NS ? LONGEST_NAP_NS
                                                   : (uint64_t)expected;
    sheaf__set_recording(op->records);
    sheaf__trace_beside(op->traces);
    return sheaf_comm_run(pending->comm, pending->member, &op->call);
}

/* Lets the thread run on any core of the process, and soon after its naps. Where the kernel
 * refuses, it wakes later. */
static void reduce_wakeup_latency(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = sizeof attr};
    cpu_set_t set;
    if (!sched_getaffinity(getpid(), sizeof set, &set)) sched_setaffinity(0, sizeof set, &set);
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0)) return;
    if (attr.policy == SCHED_OTHER)
        attr.runtime = SLICE_NS; /* Linux 6.12: a short slice preempts a long one */
    else if (attr.priority && attr.priority < (uint32_t)sched_get_priority_max((int)attr.policy))
        attr.priority++; /* real time: a thread of the same priority that computes would keep the
                            core */
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *thread_main(void *arg) {
    struct sheaf__pending *pending = arg;
    sheaf__pending_set_here(pending);
    reduce_wakeup_latency();
    pthread_mutex_lock(&pending->lock);
    for (;;) {
        while (pending->finished == pending->started && !pending->stop)
            pthread_cond_wait(&pending->more, &pending->lock);
        if (pending->finished == pending->started) break;
        const struct sheaf__pending_op *op = &pending->ops[pending->finished % SHEAF__PENDING];
        enum sheaf_status st = pending->status;
        pthread_mutex_unlock(&pending->lock);
        const bool first = !st && (st = run(pending, op)) != SHEAF_STATUS_SUCCESS;
        pthread_mutex_lock(&pending->lock);
        if (first) {
            pending->status = st;
            snprintf(pending->error, sizeof pending->error, "%s", sheaf_last_error());
        }
        pending->finished++;
        pthread_cond_signal(&pending->ended);
    }
    pthread_mutex_unlock(&pending->lock);
    return NULL;
}

/* ---- the member's side ---- */

static enum sheaf_status make(struct sheaf_comm *comm, struct sheaf__member *self, int member) {
    struct sheaf__pending *pending = calloc(1, sizeof *pending);
    pthread_condattr_t monotonic;
    if (!pending)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start collective: out of memory");
    sheaf__pending_init(pending);
    pending->comm = comm;
    pending->member = member;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&pending->lock, NULL);
    pthread_cond_init(&pending->more, NULL);
    pthread_cond_init(&pending->ended, NULL);
    pthread_cond_init(&pending->hurry, &monotonic);
    pthread_condattr_destroy(&monotonic);
    const int code = sheaf__thread_start(&pending->thread, thread_main, pending);
    pending->runs = code == 0;
    if (!pending->runs) {
        sheaf__comm_thread_free(pending);
        return sheaf_set_error(SHEAF_STATUS_FAILED, "start collective: cannot start a thread: %s",
                               strerror(code));
    }
    self->pending = pending;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__comm_thread_free(struct sheaf__pending *pending) {
    if (!pending) return;
    pthread_mutex_lock(&pending->lock);
    pending->stop = true;
    pending->awaited_since = sheaf__time_ns();
    pthread_cond_signal(&pending->more);
    pthread_cond_signal(&pending->hurry);
    pthread_mutex_unlock(&pending->lock);
    if (pending->runs) pthread_join(pending->thread, NULL);
    pthread_mutex_destroy(&pending->lock);
    pthread_cond_destroy(&pending->more);
    pthread_cond_destroy(&pending->ended);
    pthread_cond_destroy(&pending->hurry);
    free(pending);
}

enum sheaf_status sheaf_comm_start(struct sheaf_comm *comm, int member,
                                   const struct sheaf_comm_call *call, uint64_t *ticket) {
    struct sheaf__member *self = sheaf__find_member(comm, member);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    *ticket = 0;
    if (!self)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "start collective: member %d is not driven by rank %d", member,
                               sheaf_world_rank());
    struct sheaf_comm_call room;
    size_t bytes;
    if ((st = sheaf__comm_check(comm, &call, &room, &bytes))) return st;
    if (!sheaf__comm_may_start(call->kind))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "start collective: a %s cannot be started, only run",
                               sheaf_comm_kind_name(call->kind));
    if (comm->n_hosts > 1 && sheaf__world()->one_thread) {
        *ticket = ENDED; /* no other thread may do it */
        return sheaf_comm_run(comm, member, call);
    }
    if (!self->pending && (st = make(comm, self, member))) return st;
    struct sheaf__pending *pending = self->pending;
    if (pending->started >= SHEAF__PENDING &&
        (st = sheaf__pending_await(pending, pending->started - SHEAF__PENDING + 1)))
        return st;
    pthread_mutex_lock(&pending->lock);
    struct sheaf__pending_op *op = &pending->ops[pending->started % SHEAF__PENDING];
    op->call = *call;
    op->bytes = bytes;
    op->sequence = pending->finished == pending->started
                       ? self->sequence + 1
                       : pending->ops[(pending->started - 1) % SHEAF__PENDING].sequence + 1;
    op->records = sheaf__recording();
    op->traces = sheaf__tracing();
    snprintf(op->tensor, sizeof op->tensor, "%s", call->what.tensor ? call->what.tensor : "");
    op->call.what.tensor = op->tensor;
    *ticket = ++pending->started;
    st = pending->status;
    pthread_cond_signal(&pending->more);
    pthread_mutex_unlock(&pending->lock);
    return st ? sheaf_set_error(st, "%s", pending->error) : st;
}

enum sheaf_status sheaf_comm_wait(struct sheaf_comm *comm, int member, uint64_t ticket) {
    struct sheaf__member *self = sheaf__find_member(comm, member);
    if (self && ticket == ENDED) return SHEAF_STATUS_SUCCESS;
    if (!self || !self->pending || !ticket || ticket > self->pending->started)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "wait for collective: member %d has started none with ticket %llu",
                               member, (unsigned long long)ticket);
    return sheaf__pending_await(self->pending, ticket);
}
