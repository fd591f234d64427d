/* Started collectives: a queue of calls, and one thread a member that makes them, with the code of
 * direct calls.
 *
 * Invariants. A member's collectives run one at a time, in the order of its calls: started ones on
 * this thread, a direct one after the queue is empty. So steps, slots and messages need no locks of
 * their own. While the member computes, the thread sleeps between looks at the wire; once the
 * member waits for it, it polls, as a direct call does. */
#include "comm/async.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/group.h"
#include "comm/recorder.h"
#include "comm/trace.h"

enum {
    DEPTH = 16,
    /* A nap is a part of the expected time, within limits: sockets hold what a fast link brings in
     * the longest, and a look costs some microseconds of a core that may have other work. */
    NAPS = 64,
    SHORTEST_NAP_NS = 50000,
    LONGEST_NAP_NS = 200000,
    SLACK_NS = 1000,
    SLICE_NS = 100000, /* of the scheduler; the least it takes */
};

struct op {
    struct sheaf_comm_call call;
    size_t bytes; /* of the whole collective */
    uint64_t sequence;
    char tensor[SHEAF__NAME_BYTES + 1];
    bool records, traces; /* as the thread that started it */
};

struct sheaf__async {
    struct sheaf__idle idle;
    struct sheaf_comm *comm;
    struct sheaf__member *self;
    int member;
    pthread_t thread;
    bool runs;
    uint64_t nap_ns; /* of the thread */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more, ended, hurry;
    struct op ops[DEPTH];
    uint64_t started, finished; /* operation i is in ops[i % DEPTH] */
    uint64_t awaited_since;     /* the member waits, by the clock; 0: it does something else */
    bool stop;
    enum sheaf_status status; /* the first failure, and its text */
    char error[1024];
};

static _Thread_local struct sheaf__async *here;

struct sheaf__async *sheaf__async_here(void) {
    return here;
}

static struct sheaf__async *of(struct sheaf__idle *idle) {
    return (struct sheaf__async *)(void *)((char *)idle - offsetof(struct sheaf__async, idle));
}

static bool nap(struct sheaf__idle *idle) {
    struct sheaf__async *a = of(idle);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + a->nap_ns;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&a->lock);
    const bool may = !a->awaited_since;
    if (may) pthread_cond_timedwait(&a->hurry, &a->lock, &until);
    pthread_mutex_unlock(&a->lock);
    return may;
}

static void touch(struct sheaf__idle *idle, uint64_t now) {
    struct sheaf__async *a = of(idle);
    pthread_mutex_lock(&a->lock);
    if (a->awaited_since) sheaf__touch_main(now);
    pthread_mutex_unlock(&a->lock);
}

struct sheaf__idle *sheaf__async_idle(struct sheaf__async *a) {
    return a ? &a->idle : NULL;
}

uint64_t sheaf__async_hidden(uint64_t start, uint64_t took) {
    pthread_mutex_lock(&here->lock);
    const uint64_t since = here->awaited_since;
    pthread_mutex_unlock(&here->lock);
    if (!since || since >= start + took) return took;
    return since > start ? since - start : 0;
}

/* ---- the thread ---- */

static enum sheaf_status run(struct sheaf__async *a, const struct op *op) {
    const int64_t expected = sheaf_comm_bound_ns(a->comm, op->call.kind, op->bytes) / NAPS;
    a->nap_ns = expected <= SHORTEST_NAP_NS  ? SHORTEST_NAP_NS
                : expected >= LONGEST_NAP_NS ? LONGEST_NAP_NS
                                             : (uint64_t)expected;
    sheaf__set_recording(op->records);
    sheaf__trace_beside(op->traces);
    return sheaf_comm_run(a->comm, a->member, &op->call);
}

/* On any core of the process, and soon after its naps. Where the kernel refuses, it may be later.
 */
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
        attr.priority++; /* real time: among equals, a computing thread would keep the core */
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *thread_main(void *arg) {
    struct sheaf__async *a = arg;
    here = a;
    reduce_wakeup_latency();
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (a->finished == a->started && !a->stop) pthread_cond_wait(&a->more, &a->lock);
        if (a->finished == a->started) break;
        const struct op *op = &a->ops[a->finished % DEPTH];
        enum sheaf_status st = a->status;
        pthread_mutex_unlock(&a->lock);
        const bool first = !st && (st = run(a, op)) != SHEAF_STATUS_SUCCESS;
        pthread_mutex_lock(&a->lock);
        if (first) {
            a->status = st;
            snprintf(a->error, sizeof a->error, "%s", sheaf_last_error());
        }
        a->finished++;
        pthread_cond_signal(&a->ended);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- the member's side ---- */

static enum sheaf_status make(struct sheaf_comm *comm, struct sheaf__member *self, int member) {
    struct sheaf__async *a = calloc(1, sizeof *a);
    pthread_condattr_t monotonic;
    sigset_t all, before;
    if (!a) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start collective: out of memory");
    a->idle = (struct sheaf__idle){nap, touch};
    a->comm = comm;
    a->self = self;
    a->member = member;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->more, NULL);
    pthread_cond_init(&a->ended, NULL);
    pthread_cond_init(&a->hurry, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&a->thread, NULL, thread_main, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    a->runs = code == 0;
    if (!a->runs) {
        sheaf__async_free(a);
        return sheaf_set_error(SHEAF_STATUS_FAILED, "start collective: cannot start a thread: %s",
                               strerror(code));
    }
    self->async = a;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__async_free(struct sheaf__async *a) {
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    a->awaited_since = sheaf__time_ns();
    pthread_cond_signal(&a->more);
    pthread_cond_signal(&a->hurry);
    pthread_mutex_unlock(&a->lock);
    if (a->runs) pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->more);
    pthread_cond_destroy(&a->ended);
    pthread_cond_destroy(&a->hurry);
    free(a);
}

/* Waits until `want` operations have ended. The board shows the one under way: each has the time
 * of a collective. */
static enum sheaf_status await(struct sheaf__async *a, uint64_t want) {
    pthread_mutex_lock(&a->lock);
    if (a->finished < want) {
        a->awaited_since = sheaf__time_ns();
        pthread_cond_signal(&a->hurry);
        while (a->finished < want) {
            const uint64_t now = a->finished;
            const struct op *op = &a->ops[now % DEPTH];
            if (!a->status)
                sheaf__enter_collective((uint32_t)op->call.kind, op->call.what.node, op->bytes,
                                        op->sequence, op->tensor, sheaf__time_ns());
            while (a->finished == now) pthread_cond_wait(&a->ended, &a->lock);
        }
        a->awaited_since = 0;
        if (!a->status) sheaf__leave(); /* else it stays visible where the job ended */
    }
    const enum sheaf_status st = a->status;
    pthread_mutex_unlock(&a->lock);
    return st ? sheaf_set_error(st, "%s", a->error) : st;
}

enum sheaf_status sheaf__async_settle(struct sheaf__async *a) {
    return await(a, a->started); /* only the member's own thread changes that */
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
    size_t bytes;
    if ((st = sheaf__comm_check(comm, call, &bytes))) return st;
    if (!sheaf__comm_may_start(call->kind))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "start collective: a %s cannot be started, only run",
                               sheaf_comm_kind_name(call->kind));
    if (!self->async && (st = make(comm, self, member))) return st;
    struct sheaf__async *a = self->async;
    if (a->started >= DEPTH && (st = await(a, a->started - DEPTH + 1))) return st;
    pthread_mutex_lock(&a->lock);
    struct op *op = &a->ops[a->started % DEPTH];
    op->call = *call;
    op->bytes = bytes;
    op->sequence = a->finished == a->started ? self->sequence + 1
                                             : a->ops[(a->started - 1) % DEPTH].sequence + 1;
    op->records = sheaf__recording();
    op->traces = sheaf__tracing();
    snprintf(op->tensor, sizeof op->tensor, "%s", call->what.tensor ? call->what.tensor : "");
    op->call.what.tensor = op->tensor;
    *ticket = ++a->started;
    st = a->status;
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&a->lock);
    return st ? sheaf_set_error(st, "%s", a->error) : st;
}

enum sheaf_status sheaf_comm_wait(struct sheaf_comm *comm, int member, uint64_t ticket) {
    struct sheaf__member *self = sheaf__find_member(comm, member);
    if (!self || !self->async || !ticket || ticket > self->async->started)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "wait for collective: member %d has started none with ticket %llu",
                               member, (unsigned long long)ticket);
    return await(self->async, ticket);
}
