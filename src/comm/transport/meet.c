/* Members of one host meet: arrival, partial sums done, result there.
 *
 * Every wait looks for the failure mark and its deadline. The deadlines are staggered: a wait for
 * an arrival ends first, a wait for a leader last, so that the member that knows the culprit
 * reports it. */
#include <stdio.h>

#include "base/thread.h"
#include "comm/transport/pending.h"
#include "comm/transport/transport.h"

enum { TIMED_LOOKS = 32 }; /* with the clock between them: about a microsecond */
enum wait_for { ARRIVAL, PART, RESULT };
static const struct {
    const char *what;
    unsigned extra_eighths; /* of the time limit */
} waits[] = {
    [ARRIVAL] = {"which has not arrived", 0},
    [PART] = {"which has not summed its part", 1},
    [RESULT] = {"which has not brought the result of the other hosts", 2},
};

/* The rare part of a wait. */
static __attribute__((noinline)) enum sheaf_status
look_around(struct sheaf__call *c, enum wait_for why, int place, uint64_t spins) {
    const struct sheaf_comm *comm = c->comm;
    if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
    struct sheaf__idle *idle = sheaf__pending_idle(c->pending);
    const uint64_t now = sheaf__time_ns(), waited = now - c->start - sheaf__away(&c->away, now);
    const uint64_t limit = comm->timeout_ns + comm->timeout_ns / 8 * waits[why].extra_eighths;
    if (waited >= limit && sheaf__forgive_load(&c->away, sheaf__group_loads(c, now), waited - limit,
                                               comm->timeout_ns)) {
        sheaf__touch_idle(idle, now);
    } else if (waited >= limit) {
        char doing[256], where[256];
        const int member = sheaf__member_at(comm, place);
        sheaf__describe_call(c, doing, sizeof doing);
        sheaf__where(comm->rank_of[member], where, sizeof where);
        return sheaf__fail(SHEAF_STATUS_TIMEOUT,
                           "%s: waited %.1f s for member %d of %s, %s; if it is only slow, raise "
                           "SHEAF_TIMEOUT_MS",
                           doing, (double)waited * 1e-9, member, where, waits[why].what);
    }
    if (idle && idle->nap(idle)) return SHEAF_STATUS_SUCCESS;
    if (spins < comm->spins) return SHEAF_STATUS_SUCCESS;
    sheaf__back_off(waited);
    return SHEAF_STATUS_SUCCESS;
}

static inline bool reached(const _Atomic uint64_t *flag, uint64_t value) {
    return (int64_t)(atomic_load_explicit(flag, memory_order_acquire) - value) >= 0;
}

static inline enum sheaf_status await(struct sheaf__call *c, const _Atomic uint64_t *flag,
                                      uint64_t value, enum wait_for why, int place) {
    for (uint64_t spins = 1; !reached(flag, value); spins++) {
        sheaf__relax();
        if (spins % 256 == 0 || spins > c->comm->spins || c->pending) {
            enum sheaf_status st = look_around(c, why, place, spins);
            if (st) return st;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__arrive(struct sheaf__call *c) {
    const struct sheaf_comm *comm = c->comm;
    const uint64_t step = c->self->step;
    if (comm->n_here == 1) return SHEAF_STATUS_SUCCESS;
    struct sheaf__cell *own = &comm->cells[c->place];
    own->line[step & 1].head = c->head;
    own->line[step & 1].region = c->region;
    own->line[step & 1].offset = c->offset;
    atomic_store_explicit(&own->line[step & 1].ready, step + 1, memory_order_release);
    uint64_t now = c->start;
    if (!now) {
        sheaf__note_call(c);
        now = c->start;
    } else if (!c->checked) {
        now = sheaf__time_ns();
    }
    const uint64_t before = now;
    for (int i = 1; i < comm->n_here; i++) {
        const int p = (c->place + i) % comm->n_here;
        const _Atomic uint64_t *ready = &comm->cells[p].line[step & 1].ready;
        /* a member that arrives soon is timed while it is awaited, not after it is here */
        for (int look = 0; !c->checked && look < TIMED_LOOKS && !reached(ready, step + 1); look++)
            now = sheaf__time_ns();
        if (reached(ready, step + 1)) continue;
        enum sheaf_status st = await(c, ready, step + 1, ARRIVAL, p);
        if (st) return st;
        if (!c->checked) now = sheaf__time_ns();
    }
    if (c->checked) return SHEAF_STATUS_SUCCESS;
    c->checked = true;
    c->wait_ns += now - before;
    for (int p = 0; p < comm->n_here; p++) {
        const struct sheaf__head *theirs = &comm->cells[p].line[step & 1].head;
        if (!sheaf__same_head(theirs, &c->head))
            return sheaf__diverged(c, sheaf__rank_at(comm, p), theirs);
    }
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__publish_done(struct sheaf__call *c) {
    atomic_store_explicit(&c->comm->cells[c->place].done, c->self->step + 1, memory_order_release);
}

enum sheaf_status sheaf__await_done(struct sheaf__call *c) {
    const struct sheaf_comm *comm = c->comm;
    for (int i = 1; i < comm->n_here; i++) {
        const int p = (c->place + i) % comm->n_here;
        enum sheaf_status st = await(c, &comm->cells[p].done, c->self->step + 1, PART, p);
        if (st) return st;
    }
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__publish_result(struct sheaf__call *c, uint64_t step) {
    c->comm->cells[0].hosts_ns[step & 1] = c->hosts_ns;
    c->hosts_ns = 0;
    atomic_store_explicit(&c->comm->cells[c->place].result, step + 1, memory_order_release);
}

/* The leader waits for other hosts, and the others of its host for it: of their wait, as much
 * counts as it has waited. The rest is the exchange itself. */
enum sheaf_status sheaf__await_result(struct sheaf__call *c, uint64_t step) {
    const struct sheaf__cell *leader = &c->comm->cells[0];
    if (reached(&leader->result, step + 1)) return SHEAF_STATUS_SUCCESS;
    const uint64_t before = sheaf__time_ns();
    const enum sheaf_status st = await(c, &leader->result, step + 1, RESULT, 0);
    if (st) return st;
    const uint64_t took = sheaf__time_ns() - before, hosts = leader->hosts_ns[step & 1];
    c->wait_ns += took < hosts ? took : hosts;
    return st;
}
