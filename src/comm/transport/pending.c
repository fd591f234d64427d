/* What a member has started: what waits for it, and how its thread waits meanwhile. */
#include "comm/transport/pending.h"

#include <stddef.h>
#include <time.h>

static _Thread_local struct sheaf__pending *here;

struct sheaf__pending *sheaf__pending_here(void) {
    return here;
}
void sheaf__pending_set_here(struct sheaf__pending *a) { here = a; }

static struct sheaf__pending *of(struct sheaf__idle *idle) {
    return (struct sheaf__pending *)(void *)((char *)idle - offsetof(struct sheaf__pending, idle));
}

static bool nap(struct sheaf__idle *idle) {
    struct sheaf__pending *a = of(idle);
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
    struct sheaf__pending *a = of(idle);
    pthread_mutex_lock(&a->lock);
    if (a->awaited_since) sheaf__touch_main(now);
    pthread_mutex_unlock(&a->lock);
}

struct sheaf__idle *sheaf__pending_idle(struct sheaf__pending *a) {
    return a ? &a->idle : NULL;
}

uint64_t sheaf__pending_hidden(uint64_t start, uint64_t took) {
    pthread_mutex_lock(&here->lock);
    const uint64_t since = here->awaited_since;
    pthread_mutex_unlock(&here->lock);
    if (!since || since >= start + took) return took;
    return since > start ? since - start : 0;
}

void sheaf__pending_init(struct sheaf__pending *a) { a->idle = (struct sheaf__idle){nap, touch}; }

enum sheaf_status sheaf__pending_await(struct sheaf__pending *a, uint64_t want) {
    pthread_mutex_lock(&a->lock);
    if (a->finished < want) {
        a->awaited_since = sheaf__time_ns();
        pthread_cond_signal(&a->hurry);
        while (a->finished < want) {
            const uint64_t now = a->finished;
            const struct sheaf__pending_op *op = &a->ops[now % SHEAF__PENDING];
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

enum sheaf_status sheaf__pending_settle(struct sheaf__pending *a) {
    return sheaf__pending_await(a, a->started); /* only the member's own thread changes that */
}
