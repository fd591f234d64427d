/* How fast the links of a group are: a (latency, seconds) and b (seconds a byte) of each level, and
 * the choice of algorithm that follows.
 *
 * Hosts exchange as collectives do: all with all, at the same time, so a and b hold what the
 * collectives will see. Rank 0 takes the slowest host's figures, decides, and tells everybody. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "comm/group.h"

enum {
    LATENCY_ROUNDS = 25,
    RATE_ROUNDS = 16, /* with each length of parts, at most; host 0 ends it when time is over */
    RATE_PARTS = 4,   /* in flight, as in a sum */
    LENGTHS = 2,      /* of parts: as long as MPI sends without asking, and half of it */
    SHARED_BYTES = 64 * 1024,
    SHARED_ROUNDS = 15,
    PATIENCE_NS = 10000000, /* for a step of the measurement in shared memory */
    RATE_NS = 12000000,     /* after which host 0 ends the measurement of the rate */
    MIN_ONE_SHOT = 256,
};
static_assert(RATE_PARTS <= (int)SHEAF__DEPTH && RATE_PARTS * LENGTHS <= (int)SHEAF__PIECES,
              "there is room for what arrives, and requests for what is sent");
static const char WHAT[] = "measure links";

static int by_time(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}
static double median_seconds(uint64_t *times, int n) {
    qsort(times, (size_t)n, sizeof *times, by_time);
    return n ? (double)times[n / 2] * 1e-9 : 0;
}

/* ---- between hosts ---- */

/* Every host sends `n` times `bytes` to every other. */
static enum sheaf_status exchange(struct sheaf__call *c, int n, size_t bytes, uint64_t *took) {
    struct sheaf_comm *comm = c->comm;
    const int lane = SHEAF__GATHER_LANE;
    c->start = sheaf__time_ns();
    sheaf__wire_begin(comm, lane);
    for (int i = 0; i < n * comm->n_hosts; i++)
        sheaf__wire_recv(comm, lane, i % comm->n_hosts,
                         comm->stage + (size_t)i * comm->stage_floats, bytes);
    for (int i = 0; i < n * comm->n_hosts; i++)
        sheaf__wire_send(comm, lane, (comm->here + i) % comm->n_hosts, comm->results, bytes);
    sheaf__wire_end(comm, lane);
    const enum sheaf_status st = sheaf__wire_wait(c, lane);
    *took = sheaf__time_ns() - c->start;
    return st;
}

/* byte_time[i]: with messages of 1/(i + 1) of what a host sends to another at a time. */
static enum sheaf_status measure_wire(struct sheaf_comm *comm, double *latency,
                                      double byte_time[LENGTHS]) {
    struct sheaf__call c = {.comm = comm,
                            .self = &comm->members[0],
                            .member = comm->local[0],
                            .leader = true,
                            .head = {.kind = SHEAF_COMM_BARRIER},
                            .tensor = WHAT};
    uint64_t times[LATENCY_ROUNDS], rates[LENGTHS][RATE_ROUNDS], warm;
    const size_t bytes = comm->max_part_bytes;
    enum sheaf_status st = exchange(&c, 1, SHEAF__FRAME_HEADER, &warm);
    for (int i = 0; i < LATENCY_ROUNDS && !st; i++)
        st = exchange(&c, 1, SHEAF__FRAME_HEADER, &times[i]);
    if (st) return st;
    *latency = median_seconds(times, LATENCY_ROUNDS);
    const uint64_t begin = sheaf__time_ns();
    int n = 0;
    for (bool more = true; more && n < RATE_ROUNDS; n++) {
        for (int i = 0; i < LENGTHS; i++) {
            comm->part_bytes = bytes / (size_t)(i + 1);
            comm->results[0] = sheaf__time_ns() - begin < RATE_NS;
            if ((st = exchange(&c, RATE_PARTS, bytes, &rates[i][n]))) return st;
        }
        more = comm->here == 0 ? comm->results[0]
                               : *(const uint8_t *)comm->stage; /* as host 0 has said last */
    }
    for (int i = 0; i < LENGTHS; i++) {
        const double t = median_seconds(rates[i], n) - *latency;
        byte_time[i] = (t > 1e-9 ? t : 1e-9) / ((double)bytes * RATE_PARTS * (comm->n_hosts - 1));
    }
    return st;
}

/* n* of a + (N-1) n b = 2 a + 2 (N-1)/N n b; for two hosts the one-shot is never worse. */
static size_t crossover(int hosts, double a, double b) {
    const size_t most = SHEAF__FRAME_PAYLOAD;
    if (hosts < 3) return most;
    const double n = a / (b * (hosts - 1) * (1 - 2.0 / hosts));
    if (n >= (double)most) return most;
    return n < MIN_ONE_SHOT ? MIN_ONE_SHOT : (size_t)n;
}

/* Shorter parts cost more calls, so they must gain a tenth. */
static int choose_length(const uint64_t byte_time[LENGTHS]) {
    return byte_time[1] < byte_time[0] - byte_time[0] / 10;
}
/* Where long parts gain as much, cores limit the rate, not the link, and they wait less if more is
 * in flight: over veth 256 KiB take 78 us instead of 88, 4 MiB 4 % less. Where tbf limits it, 4 MiB
 * take 2 to 7 % more. (2026-11-21.) */
static int choose_ahead(int hosts, const uint64_t byte_time[LENGTHS]) {
    const bool cores = byte_time[0] < byte_time[1] - byte_time[1] / 10;
    return hosts == 2 && cores ? SHEAF__MAX_AHEAD : SHEAF__MIN_AHEAD;
}

enum sheaf_status sheaf__measure_hosts(struct sheaf_comm *comm) {
    enum {
        A = 0,
        B = 8,
        LIMIT = B + 8 * LENGTHS,
        PART = LIMIT + 8,
        AHEAD = PART + 8,
        BYTES = AHEAD + 8
    };
    const struct sheaf__world *w = sheaf__world();
    struct sheaf_comm_level *level = &comm->levels[SHEAF_COMM_LEVEL_HOSTS];
    const bool leads = comm->n_local && comm->place[comm->local[0]] == 0;
    uint8_t mine[BYTES] = {0}, *all = malloc((size_t)w->size * BYTES);
    double a = 0, b[LENGTHS] = {0};
    long forced = 0;
    enum sheaf_status st = sheaf__env_int("SHEAF_COMM_ONE_SHOT", 1, 1 << 30, &forced);
    if (!st && !all) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    if ((st = sheaf_world_agree(st, WHAT))) goto out;
    if (leads && (st = measure_wire(comm, &a, b))) goto out;
    sheaf__put_le(mine + A, (uint64_t)(a * 1e15), 8); /* femtoseconds */
    for (int i = 0; i < LENGTHS; i++) sheaf__put_le(mine + B + 8 * i, (uint64_t)(b[i] * 1e15), 8);
    if ((st = sheaf_world_all_gather(mine, BYTES, all, WHAT))) goto out;
    if (w->rank == 0) {
        uint64_t slowest[1 + LENGTHS] = {1, 1, 1};
        for (int r = 0; r < w->size; r++)
            for (int i = 0; i < 1 + LENGTHS; i++) {
                const uint64_t v = sheaf__get_le(all + (size_t)r * BYTES + 8 * i, 8);
                if (v > slowest[i]) slowest[i] = v;
            }
        const int length = choose_length(slowest + 1);
        const uint64_t rate = slowest[1 + length];
        const size_t limit = crossover(comm->n_hosts, (double)slowest[0], (double)rate);
        sheaf__put_le(mine + A, slowest[0], 8);
        sheaf__put_le(mine + B, rate, 8);
        sheaf__put_le(mine + LIMIT, forced ? sheaf__min_size((size_t)forced, limit) : limit, 8);
        sheaf__put_le(mine + PART, comm->max_part_bytes / (size_t)(length + 1), 8);
        sheaf__put_le(mine + AHEAD, (uint64_t)choose_ahead(comm->n_hosts, slowest + 1), 8);
    }
    if ((st = sheaf_world_broadcast(mine, BYTES, 0, WHAT))) goto out;
    level->latency = (double)sheaf__get_le(mine + A, 8) * 1e-15;
    level->byte_time = (double)sheaf__get_le(mine + B, 8) * 1e-15;
    level->one_shot_bytes = comm->one_shot_bytes = (size_t)sheaf__get_le(mine + LIMIT, 8);
    comm->part_bytes = (size_t)sheaf__get_le(mine + PART, 8);
    comm->ahead = sheaf__get_le(mine + AHEAD, 8);
out:
    free(all);
    return st;
}

/* ---- in shared memory: the first two members of a host ---- */

struct actor {
    struct sheaf_comm *comm;
    int place;
    bool ok;
};

static bool wait_for(const _Atomic uint64_t *flag, uint64_t value) {
    const uint64_t end = sheaf__time_ns() + PATIENCE_NS;
    for (unsigned spins = 1; atomic_load_explicit(flag, memory_order_acquire) < value; spins++) {
        sheaf__pause();
        if (spins % 1024) continue;
        sched_yield();
        if (sheaf__time_ns() > end) return false;
    }
    return true;
}

/* Place 0 writes 64 KiB and says so; place 1 reads them and answers: the answer's way is a, the
 * reading b. */
static void *act(void *arg) {
    struct actor *me = arg;
    struct sheaf_comm *comm = me->comm;
    struct sheaf__probe *probe = comm->probe;
    const size_t bytes = sheaf__min_size(SHARED_BYTES, comm->slot_bytes);
    uint8_t *mine = sheaf__slot(comm, me->place, 0);
    const uint8_t *other = sheaf__slot(comm, 0, 0);
    uint64_t times[SHARED_ROUNDS], base = atomic_load(&probe->turn[me->place]);
    me->ok = true;
    for (uint64_t phase = 0; phase < 2; phase++) {
        for (uint64_t i = 0; i < SHARED_ROUNDS && me->ok; i++) {
            const uint64_t turn = ++base;
            if (me->place == 0) {
                if (phase) memset(mine, (int)i, bytes);
                times[i] = sheaf__time_ns();
                atomic_store_explicit(&probe->turn[0], turn, memory_order_release);
                me->ok = wait_for(&probe->turn[1], turn);
                times[i] = sheaf__time_ns() - times[i];
            } else {
                if (!(me->ok = wait_for(&probe->turn[0], turn))) break;
                const uint64_t begin = sheaf__time_ns();
                if (phase) memcpy(mine, other, bytes);
                times[i] = sheaf__time_ns() - begin;
                atomic_store_explicit(&probe->turn[1], turn, memory_order_release);
            }
        }
        if (!me->ok) return NULL;
        const double t = median_seconds(times, SHARED_ROUNDS);
        if (me->place == 0 && phase == 0) probe->latency = t / 2;
        if (me->place == 1 && phase == 1) probe->byte_time = t / (double)bytes;
    }
    return NULL;
}

static enum sheaf_status measure_shared(struct sheaf_comm *comm) {
    struct actor actors[2];
    pthread_t thread;
    int n = 0;
    for (int i = 0; i < comm->n_local && comm->n_here > 1; i++) {
        const int place = comm->place[comm->local[i]];
        if (place < 2) actors[n++] = (struct actor){comm, place, false};
    }
    if (n == 0) return SHEAF_STATUS_SUCCESS;
    if (n == 2 && pthread_create(&thread, NULL, act, &actors[1]))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: cannot start a thread", WHAT);
    act(&actors[0]);
    if (n == 2) pthread_join(thread, NULL);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_comm_measure(struct sheaf_comm *comm) {
    struct sheaf_comm_level *level = &comm->levels[SHEAF_COMM_LEVEL_SHARED];
    enum sheaf_status st = sheaf_world_barrier(WHAT);
    if (st) return st;
    if ((st = sheaf_world_agree(measure_shared(comm), WHAT))) return st;
    double figures[2] = {0};
    if (comm->probe) figures[0] = comm->probe->latency, figures[1] = comm->probe->byte_time;
    double(*all)[2] = calloc((size_t)sheaf_world_size(), sizeof *all);
    if (!all) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    st = sheaf_world_agree(st, WHAT);
    if (!st) st = sheaf_world_all_gather(figures, sizeof figures, all, WHAT);
    for (int r = 0; r < sheaf_world_size() && !st; r++) {
        if (all[r][0] > level->latency) level->latency = all[r][0];
        if (all[r][1] > level->byte_time) level->byte_time = all[r][1];
    }
    free(all);
    return st || comm->n_hosts < 2 ? st : sheaf__measure_hosts(comm);
}

void sheaf_comm_get_level(const struct sheaf_comm *comm, enum sheaf_comm_level_kind kind,
                          struct sheaf_comm_level *out) {
    *out = (struct sheaf_comm_level){0};
    if ((unsigned)kind < SHEAF_COMM_LEVEL_COUNT) *out = comm->levels[kind];
}

double sheaf_comm_all_reduce_bound(const struct sheaf_comm *comm, size_t bytes) {
    double total = 0;
    for (int i = 0; i < SHEAF_COMM_LEVEL_COUNT; i++) {
        const struct sheaf_comm_level *l = &comm->levels[i];
        if (l->n < 2 || l->byte_time <= 0) continue;
        const double wire =
            (double)sheaf__wire_bytes(l->wire_type, bytes / sizeof(float)) * l->byte_time;
        const double whole = l->latency + (l->n - 1) * wire;
        const double parts = 2 * l->latency + 2.0 * (l->n - 1) / l->n * wire;
        total += whole < parts ? whole : parts;
    }
    return total;
}
