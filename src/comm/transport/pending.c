/* What a member has started: what waits for it, and how its thread waits meanwhile. */
#include "comm/transport/pending.h"

#include <stddef.h>
#include <time.h>

static _Thread_local struct sheaf__pending *here;

struct sheaf__pending *sheaf__pending_here(void) {
    return here;
}
void sheaf__pending_set_here(struct sheaf__pending *pending) { here = pending; }

static struct sheaf__pending *of(struct sheaf__idle *idle) {
    return (struct sheaf__pending *)(void *)((char *)idle - offsetof(struct sheaf__pending, idle));
}

static bool nap(struct sheaf__idle *idle) {
    struct sheaf__pending *pending = of(idle);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + pending->nap_ns;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&pending->lock);
    const bool may = !pending->awaited_since;
    if (may) pthread_cond_timedwait(&pending->hurry, &pending->lock, &until);
    pthread_mutex_unlock(&pending->lock);
    return may;
}

static void touch(struct sheaf__idle *idle, uint64_t now) {
    struct sheaf__pending *pending = of(idle);
    pthread_mutex_lock(&pending->lock);
    if (pending->awaited_since) sheaf__touch_main(now);
    pthread_mutex_unlock(&pending->lock);
}

struct sheaf__idle *sheaf__pending_idle(struct sheaf__pending *pending) {
    return pending ? &pending->idle : NULL;
}

uint64_t sheaf__pending_hidden(uint64_t start, uint64_t took) {
    pthread_mutex_lock(&here->lock);
    const uint64_t since = here->awaited_since;
    pthread_mutex_unlock(&here->lock);
    if (!since || since >= start + took) return took;
    return since > start ? since - start : 0;
}

void sheaf__pending_init(struct sheaf__pending *pending) {
    pending->idle = (struct sheaf__idle){nap, touch};
}

enum sheaf_status sheaf__pending_await(struct sheaf__pending *pending, uint64_t want) {
    pthread_mutex_lock(&pending->lock);
    if (pending->finished < want) {
        pending->awaited_since = sheaf__time_ns();
        pthread_cond_signal(&pending->hurry);
        while (pending->finished < want) {
            const uint64_t now = pending->finished;
            const struct sheaf__pending_op *op = &pending->ops[now % SHEAF__PENDING];
            if (!pending->status)
                sheaf__enter_collective((uint32_t)op->call.kind, op->call.what.node, op->bytes,
                                        op->sequence, op->tensor, sheaf__time_ns());
            while (pending->finished == now) pthread_cond_wait(&pending->ended, &pending->lock);
        }
        pending->awaited_since = 0;
        if (!pending->status) sheaf__leave(); /* else it stays visible where the job ended */
    }
    const enum sheaf_status st = pending->status;
    pthread_mutex_unlock(&pending->lock);
    return st ? sheaf_set_error(st, "%s", pending->error) : st;
}

enum sheaf_status sheaf__pending_settle(struct sheaf__pending *pending) {
    return sheaf__pending_await(pending,
                                pending->started); /* only the member's own thread changes that */
}
