/* What the links of a group cost: latency a and time of a byte b of each level, and the bound that
 * follows. Between hosts: between_hosts.c. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/sort.h"
#include "base/thread.h"
#include "comm/transport/transport.h"

enum {
    SHARED_BYTES = 64 * 1024,
    SHARED_ROUNDS = 15,
    PHASES = 2,              /* without and with data */
    PATIENCE_NS = 100000000, /* for a step of the measurement in shared memory */
};
static const char WHAT[] = "measure links";

/* ---- in shared memory: the first two members of a host ---- */

struct actor {
    struct sheaf_comm *comm;
    int place;
    uint64_t turn; /* the last one taken; fewer may have been, if a measurement timed out */
    bool ok;
};

static bool wait_for(const _Atomic uint64_t *flag, uint64_t value) {
    const uint64_t end = sheaf__time_ns() + PATIENCE_NS;
    for (unsigned spins = 1; atomic_load_explicit(flag, memory_order_acquire) < value; spins++) {
        sheaf__relax();
        if (spins % 1024) continue;
        sched_yield();
        if (sheaf__time_ns() > end) return false;
    }
    return true;
}

/* Place 0, in a round: writes the bytes, sets its flag and waits for the other's. *ns: the way there
 * and back. */
static bool ask(struct sheaf__probe *probe, uint64_t turn, uint8_t *mine, size_t bytes,
                uint64_t *ns) {
    if (bytes) memset(mine, (int)turn, bytes);
    const uint64_t begin = sheaf__time_ns();
    atomic_store_explicit(&probe->turn[0], turn, memory_order_release);
    const bool ok = wait_for(&probe->turn[1], turn);
    *ns = sheaf__time_ns() - begin;
    return ok;
}

/* Place 1: waits for the flag, reads the bytes and sets its own. *ns: the reading. */
static bool answer(struct sheaf__probe *probe, uint64_t turn, const uint8_t *other, uint8_t *mine,
                   size_t bytes, uint64_t *ns) {
    if (!wait_for(&probe->turn[0], turn)) return false;
    const uint64_t begin = sheaf__time_ns();
    if (bytes) memcpy(mine, other, bytes);
    *ns = sheaf__time_ns() - begin;
    atomic_store_explicit(&probe->turn[1], turn, memory_order_release);
    return true;
}

/* First without bytes: half the way there and back is a. Then with 64 KiB: their reading gives b. */
static void *act(void *arg) {
    struct actor *me = arg;
    struct sheaf_comm *comm = me->comm;
    const size_t most = sheaf__min_size(SHARED_BYTES, comm->slot_bytes);
    uint8_t *mine = sheaf__slot(comm, me->place, 0);
    const uint8_t *other = sheaf__slot(comm, 0, 0);
    uint64_t times[SHARED_ROUNDS];
    me->ok = true;
    for (uint64_t phase = 0; phase < PHASES; phase++) {
        const size_t bytes = phase ? most : 0;
        for (uint64_t i = 0; i < SHARED_ROUNDS && me->ok; i++) {
            const uint64_t turn = ++me->turn;
            me->ok = me->place == 0 ? ask(comm->probe, turn, mine, bytes, &times[i])
                                    : answer(comm->probe, turn, other, mine, bytes, &times[i]);
        }
        if (!me->ok) return NULL;
        const int64_t ns = (int64_t)sheaf__median(times, SHARED_ROUNDS);
        if (me->place == 0 && phase == 0) comm->probe->latency_ns = ns / 2 + 1;
        if (me->place == 1 && phase == 1) comm->probe->byte_ps = ns * 1000 / (int64_t)most + 1;
    }
    return NULL;
}

static enum sheaf_status measure_shared(struct sheaf_comm *comm) {
    const uint64_t turn = comm->n_measured++ * PHASES * SHARED_ROUNDS;
    struct actor actors[2];
    pthread_t thread;
    int n = 0;
    for (int i = 0; i < comm->n_local && comm->n_here > 1; i++) {
        const int place = comm->place[comm->local[i]];
        if (place < 2) actors[n++] = (struct actor){comm, place, turn, false};
    }
    if (n == 0) return SHEAF_STATUS_SUCCESS;
    if (n == 2 && sheaf__thread_start(&thread, act, &actors[1]))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: cannot start a thread", WHAT);
    act(&actors[0]);
    if (n == 2) pthread_join(thread, NULL);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_comm_measure(struct sheaf_comm *comm) {
    struct sheaf_link *link = &comm->levels[SHEAF_COMM_LEVEL_SHARED].link;
    enum sheaf_status st = sheaf_world_barrier(WHAT);
    if (st) return st;
    if ((st = sheaf_world_agree(measure_shared(comm), WHAT))) return st;
    int64_t figures[2] = {0};
    if (comm->probe) figures[0] = comm->probe->latency_ns, figures[1] = comm->probe->byte_ps;
    int64_t(*all)[2] = calloc((size_t)sheaf_world_size(), sizeof *all);
    if (!all) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    st = sheaf_world_agree(st, WHAT);
    if (!st) st = sheaf_world_all_gather(figures, sizeof figures, all, WHAT);
    for (int r = 0; r < sheaf_world_size() && !st; r++) {
        if (all[r][0] > link->latency_ns) link->latency_ns = all[r][0];
        if (all[r][1] > link->byte_ps) link->byte_ps = all[r][1];
    }
    free(all);
    return st;
}

void sheaf_comm_get_level(const struct sheaf_comm *comm, enum sheaf_comm_level_kind kind,
                          struct sheaf_comm_level *out) {
    *out = (struct sheaf_comm_level){0};
    if ((unsigned)kind < SHEAF_COMM_LEVEL_COUNT) *out = comm->levels[kind];
}

int64_t sheaf_comm_bound_ns(const struct sheaf_comm *comm, enum sheaf_comm_kind kind,
                            size_t bytes) {
    int64_t total = 0;
    for (int i = 0; i < SHEAF_COMM_LEVEL_COUNT; i++) {
        const struct sheaf_comm_level *l = &comm->levels[i];
        if (l->link.byte_ps <= 0) continue;
        const bool sum = kind == SHEAF_COMM_ALL_REDUCE;
        const size_t wire = sum ? sheaf__codec_bytes(l->wire_type, bytes / sizeof(float)) : bytes;
        total += sum ? sheaf_link_all_reduce_ns(&l->link, (int64_t)wire)
                     : sheaf_link_gather_ns(&l->link, (int64_t)wire);
    }
    return total;
}
