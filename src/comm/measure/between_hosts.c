/* How fast the links between hosts are: latency a and time of a byte b, and the choice
 * of algorithms that follows.
 *
 * Hosts exchange as collectives do: all with all, at the same time, so a and b hold what the
 * collectives will see. b is of a stream, a the least-squares fit of a + (N-1) n b to messages of
 * up to 32 KiB. With three hosts or more the schemes of small sums are measured, too. Rank 0 takes
 * the slowest host's figures, decides, and tells all ranks. */
#include <stdlib.h>

#include "base/settings.h"
#include "base/sort.h"
#include "comm/measure/measure.h"
#include "comm/transport/transport.h"

enum {
    SIZES = 5,
    STREAMS = 3, /* kinds of them */
    SCHEMES = 4, /* of small sums */
    MAX_ROUNDS = 15,
    PILOT_PARTS = 4, /* of the first streams, which warm the connections */
    MAX_PARTS = 16,  /* of a stream; fewer where they take longer than this: */
    STREAM_NS = 1000000,
    LIMIT_NS = 4000000, /* after which host 0 ends each of the three measurements */
    LEAST_ROUNDS = 3,
    STEP = 256, /* bytes; sizes at which schemes are compared */
};
static const char WHAT[] = "measure links";

static const size_t sizes[SIZES] = {SHEAF__FRAME_HEADER, 1024, 4096, 16384, 32768};

/* How a stream goes: in messages as long as MPI sends without asking, or short ones, which pass a
 * token bucket; so many ahead. */
enum { SHORT_BYTES = 24 * 1024 };
static const struct {
    bool shorter;
    uint64_t ahead;
} streams[STREAMS] = {
    {false, SHEAF__MIN_AHEAD}, {true, SHEAF__MIN_AHEAD}, {false, SHEAF__MAX_AHEAD}};
static size_t part_bytes(const struct sheaf_comm *comm, uint64_t which) {
    const size_t most = comm->max_part_bytes;
    return streams[which].shorter ? sheaf__min_size(SHORT_BYTES, most / 2) : most;
}
static uint64_t n_parts(const struct sheaf_comm *comm, uint64_t which, uint64_t long_parts) {
    return long_parts * comm->max_part_bytes / part_bytes(comm, which);
}

enum { WHOLE, ONE_OWNER, TWO_OWNERS, IN_PARTS };
static_assert(SHEAF_COMM_OWNERS == IN_PARTS - ONE_OWNER, "a scheme for each number of owners");

enum { SMALL, LARGE, ENDS }; /* sizes at which schemes are measured: the others lie on a line */
static const size_t ends[ENDS] = {SHEAF__FRAME_HEADER, 32768};

/* Nanoseconds: medians; of schemes, which are only compared, the lower quartile, as disturbances
 * only add. */
struct figures {
    uint64_t exchange[SIZES], stream[STREAMS], scheme[SCHEMES][ENDS];
    uint64_t parts;   /* of a stream */
    uint64_t crowded; /* 1: ranks of a host share cores */
};
enum { FIGURES = sizeof(struct figures) / sizeof(uint64_t) };

enum { MOST_TIMES = SCHEMES * ENDS }; /* of a round */
static_assert((int)SIZES <= (int)MOST_TIMES && (int)STREAMS <= (int)MOST_TIMES, "a row for each");

struct probe {
    struct sheaf__call c;
    struct sheaf_comm *comm;
    uint64_t begin;
    uint64_t times[MOST_TIMES][MAX_ROUNDS]; /* of the measurement that is made */
};

/* ---- exchanges ---- */

static void begin(struct probe *p) {
    p->c.start = sheaf__time_ns();
    p->c.away = (struct sheaf__absence){.looked = p->c.start};
}

/* Part k of a stream. Parts are other memory each, as those of a long message are. */
static void post_part(struct probe *p, uint64_t k, size_t bytes) {
    struct sheaf_comm *comm = p->comm;
    const int slot = (int)(k % SHEAF__DEPTH), lane = SHEAF__GATHER_LANE + slot;
    const int first = slot * comm->n_hosts;
    const uint8_t *from = comm->results + k % (2 * comm->slot_bytes / bytes) * bytes;
    sheaf__wire_begin(comm, lane);
    for (int h = 0; h < comm->n_hosts; h++)
        sheaf__wire_recv(comm, lane, h, comm->stage + (size_t)(first + h) * comm->stage_floats,
                         bytes);
    for (int i = 1; i < comm->n_hosts; i++)
        sheaf__wire_send(comm, lane, (comm->here + i) % comm->n_hosts, from, bytes);
    sheaf__wire_end();
}

/* Every host sends `parts` messages of `bytes` to every other, `ahead` before it waits for one. */
static enum sheaf_status stream(struct probe *p, uint64_t parts, uint64_t ahead, size_t bytes,
                                uint64_t *took) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    begin(p);
    for (uint64_t k = 0; k < parts + ahead && !st; k++) {
        if (k < parts) post_part(p, k, bytes);
        if (k >= ahead)
            st = sheaf__wire_wait(&p->c, SHEAF__GATHER_LANE + (int)((k - ahead) % SHEAF__DEPTH));
    }
    *took = sheaf__time_ns() - p->c.start;
    return st;
}

/* Host 0 tells the others a number below 256. */
static enum sheaf_status tell(struct probe *p, uint64_t *value) {
    uint64_t took;
    p->comm->results[0] = (uint8_t)*value;
    const enum sheaf_status st = stream(p, 1, 0, SHEAF__FRAME_HEADER, &took);
    if (p->comm->here) *value = *(const uint8_t *)p->comm->stage;
    return st;
}

/* Another round? Round -1 warms up. */
static enum sheaf_status go_on(struct probe *p, int round, bool *more) {
    if (round < 0) p->begin = sheaf__time_ns();
    uint64_t yes = round + 1 < LEAST_ROUNDS || sheaf__time_ns() - p->begin < LIMIT_NS;
    const enum sheaf_status st = tell(p, &yes);
    *more = yes && round + 1 < MAX_ROUNDS;
    return st;
}

static enum sheaf_status measure_sizes(struct probe *p, struct figures *f) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    int round = -1;
    for (bool more = true; more && !st; round++) {
        for (int i = 0; i < SIZES && !st; i++)
            st = stream(p, 1, 0, sheaf__min_size(sizes[i], p->comm->max_part_bytes),
                        &p->times[i][round < 0 ? 0 : round]);
        if (!st) st = go_on(p, round, &more);
    }
    for (int i = 0; i < SIZES && !st; i++)
        f->exchange[i] = sheaf__median(p->times[i], (size_t)round);
    return st;
}

static enum sheaf_status measure_streams(struct probe *p, struct figures *f) {
    struct sheaf_comm *comm = p->comm;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    uint64_t took = 0;
    int round = -1;
    comm->part_bytes = comm->max_part_bytes; /* one message a part */
    for (int i = 0; i < 3 && !st; i++)
        st = stream(p, PILOT_PARTS, SHEAF__MIN_AHEAD, comm->part_bytes, &took);
    f->parts = STREAM_NS * PILOT_PARTS / (took + 1);
    f->parts = f->parts < PILOT_PARTS ? PILOT_PARTS : f->parts > MAX_PARTS ? MAX_PARTS : f->parts;
    if (!st) st = tell(p, &f->parts);
    for (bool more = true; more && !st; round++) {
        for (int i = 0; i < STREAMS && !st; i++)
            st = stream(p, n_parts(comm, (uint64_t)i, f->parts), streams[i].ahead,
                        part_bytes(comm, (uint64_t)i), &p->times[i][round < 0 ? 0 : round]);
        if (!st) st = go_on(p, round, &more);
    }
    for (int i = 0; i < STREAMS && !st; i++)
        f->stream[i] = sheaf__median(p->times[i], (size_t)round);
    return st;
}

/* A sum of `bytes` without the adding. */
static enum sheaf_status run_scheme(struct probe *p, int scheme, size_t bytes, uint64_t *took) {
    struct sheaf_comm *comm = p->comm;
    const int n = scheme == IN_PARTS ? comm->n_hosts : scheme - ONE_OWNER + 1;
    enum sheaf_status st;
    begin(p);
    if (scheme == WHOLE) {
        for (int h = 0; h < comm->n_hosts; h++) comm->take[h] = bytes;
        st = sheaf__wire_frames(&p->c, bytes);
    } else {
        for (int i = 0; i < n; i++) comm->take[sheaf__owner(comm, n, i)] = bytes / (size_t)n;
        st = sheaf__wire_to_owners(&p->c, n);
        if (!st) st = sheaf__wire_from_owners(&p->c, n);
    }
    *took = sheaf__time_ns() - p->c.start;
    return st;
}

static enum sheaf_status measure_schemes(struct probe *p, struct figures *f) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    int round = -1;
    for (bool more = p->comm->n_hosts > 2; more && !st; round++) {
        for (int i = 0; i < SCHEMES * ENDS && !st; i++)
            st = run_scheme(p, i / ENDS, ends[i % ENDS], &p->times[i][round < 0 ? 0 : round]);
        if (!st) st = go_on(p, round, &more);
    }
    for (int i = 0; i < SCHEMES * ENDS && !st && round > 0; i++)
        f->scheme[i / ENDS][i % ENDS] = sheaf__quantile(p->times[i], (size_t)round, 1, 4);
    return st;
}

static enum sheaf_status measure(struct sheaf_comm *comm, struct probe *p, struct figures *f) {
    p->comm = comm;
    p->c = (struct sheaf__call){.comm = comm,
                                .self = &comm->members[0],
                                .member = comm->local[0],
                                .leader = true,
                                .head = {.kind = SHEAF_COMM_BARRIER},
                                .tensor = WHAT};
    enum sheaf_status st = measure_streams(p, f);
    if (!st) st = measure_sizes(p, f);
    return st ? st : measure_schemes(p, f);
}

/* ---- what follows ---- */

/* Short messages cost more calls, so they must gain a tenth. With more in flight, two hosts that
 * are limited by their cores wait less (over veth 256 KiB to 4 MiB take 4 to 10 % less), but where
 * tbf limits the rate they take 2 to 7 % more (2026-11-21): they do it if it gains 3 %. */
static int choose_stream(const struct figures *f, int hosts, bool direct) {
    const uint64_t *t = f->stream;
    const int which = t[1] < t[0] - t[0] / 10;
    return hosts == 2 && direct && t[2] < t[which] - t[which] / 32 ? 2 : which;
}

/* Between the ends on a line, and beyond. */
static double scheme_time(const struct figures *f, int scheme, size_t bytes) {
    const double small = (double)f->scheme[scheme][SMALL], large = (double)f->scheme[scheme][LARGE];
    const double x = ((double)bytes - (double)ends[SMALL]) / (double)(ends[LARGE] - ends[SMALL]);
    const double t = small + (large - small) * x;
    /* owners must gain a twentieth, as measurements differ */
    return scheme == WHOLE || scheme == IN_PARTS ? t : t * 1.05;
}
static size_t most_bytes(int scheme) {
    return scheme == WHOLE      ? SHEAF__FRAME_PAYLOAD
           : scheme == IN_PARTS ? SIZE_MAX
                                : (size_t)(scheme - ONE_OWNER + 1) * SHEAF__OWNER_BYTES;
}
/* Of `first` and those behind it. */
static int fastest(const struct figures *f, int first, size_t bytes) {
    int best = IN_PARTS;
    for (int s = first; s < IN_PARTS; s++)
        if (bytes <= most_bytes(s) && scheme_time(f, s, bytes) < scheme_time(f, best, bytes))
            best = s;
    return best;
}

/* The size up to which each scheme is the fastest of those not yet left behind; 0: nowhere. */
static void choose_schemes(const struct figures *f, int hosts, size_t limit[IN_PARTS]) {
    memset(limit, 0, IN_PARTS * sizeof *limit);
    if (hosts == 2) { /* whole is never worse */
        limit[WHOLE] = SHEAF__FRAME_PAYLOAD;
        return;
    }
    size_t bytes = 0;
    for (int s = WHOLE; s < IN_PARTS; s++)
        while (bytes + STEP <= most_bytes(s) && fastest(f, s, bytes + STEP) == s)
            limit[s] = bytes += STEP;
}

/* At least 1, as 0 says that nothing was measured. */
static int64_t rounded(double x) {
    return x > 1e15 ? (int64_t)1e15 : x > 1 ? (int64_t)(x + 0.5) : 1;
}

/* Rank 0, from the slowest host's figures. */
static void decide(const struct figures *f, const struct sheaf_comm *comm, long one_shot,
                   long owners, struct sheaf_comm_level *out, int *which) {
    const double others = comm->n_hosts - 1;
    double sum = 0;
    size_t limit[IN_PARTS];
    *which = choose_stream(f, comm->n_hosts, comm->direct);
    double streamed = (double)f->stream[*which] - (double)f->exchange[0];
    if (streamed < 1) streamed = 1;
    const double sent = (double)n_parts(comm, (uint64_t)*which, f->parts) *
                        (double)part_bytes(comm, (uint64_t)*which);
    const double byte_ns = streamed / (others * sent);
    for (int i = 0; i < SIZES; i++) {
        const double bytes = (double)sheaf__min_size(sizes[i], comm->max_part_bytes);
        const double rest = (double)f->exchange[i] - others * bytes * byte_ns;
        /* where a token bucket lets bursts pass, a long one may be faster than b */
        sum += rest > (double)f->exchange[0] ? rest : (double)f->exchange[0];
    }
    out->link.latency_ns = rounded(sum / SIZES);
    out->link.byte_ps = rounded(byte_ns * 1e3);
    choose_schemes(f, comm->n_hosts, limit);
    if (one_shot) {
        limit[WHOLE] = sheaf__min_size(limit[WHOLE], (size_t)one_shot);
        limit[ONE_OWNER] = limit[TWO_OWNERS] = 0;
    }
    out->one_shot_bytes = limit[WHOLE];
    for (int i = 0; i < SHEAF_COMM_OWNERS; i++)
        out->owners[i] = (struct sheaf_comm_owners){i + 1, limit[ONE_OWNER + i]};
    if (owners) {
        const int n = owners < comm->n_hosts ? (int)owners : comm->n_hosts;
        out->one_shot_bytes = 0;
        out->owners[0] = (struct sheaf_comm_owners){n, (size_t)n * SHEAF__OWNER_BYTES};
    }
}

/* Fields of the messages between ranks. */
static void put_all(uint8_t *at, const uint64_t *values, int n) {
    for (int i = 0; i < n; i++) sheaf__put_le(at + 8 * i, values[i], 8);
}
static void get_all(const uint8_t *at, uint64_t *values, int n) {
    for (int i = 0; i < n; i++) values[i] = sheaf__get_le(at + 8 * i, 8);
}

/* What rank 0 tells the others. */
enum { A, B, STREAM, CROWDED, ONE_SHOT, OWNERS, RESULTS = OWNERS + 2 * SHEAF_COMM_OWNERS };

/* Rank 0 decides by the slowest figures. all: those of each rank. */
static void choose(const struct sheaf_comm *comm, const uint8_t *all, long one_shot, long owners,
                   uint64_t results[static RESULTS]) {
    struct sheaf_comm_level chosen = comm->levels[SHEAF_COMM_LEVEL_HOSTS];
    struct figures f;
    int which = 0;
    uint64_t slowest[FIGURES] = {0};
    for (int r = 0; r < sheaf_world_size(); r++) {
        uint64_t values[FIGURES];
        get_all(all + (size_t)r * 8 * FIGURES, values, FIGURES);
        for (int i = 0; i < FIGURES; i++)
            slowest[i] = values[i] > slowest[i] ? values[i] : slowest[i];
    }
    memcpy(&f, slowest, sizeof f);
    decide(&f, comm, one_shot, owners, &chosen, &which);
    results[A] = (uint64_t)chosen.link.latency_ns;
    results[B] = (uint64_t)chosen.link.byte_ps;
    results[STREAM] = (uint64_t)which;
    results[CROWDED] = f.crowded;
    results[ONE_SHOT] = chosen.one_shot_bytes;
    for (int i = 0; i < SHEAF_COMM_OWNERS; i++) {
        results[OWNERS + 2 * i] = (uint64_t)chosen.owners[i].n;
        results[OWNERS + 2 * i + 1] = chosen.owners[i].bytes;
    }
}

static enum sheaf_status take_results(struct sheaf_comm *comm,
                                      const uint64_t results[static RESULTS]) {
    struct sheaf_comm_level *level = &comm->levels[SHEAF_COMM_LEVEL_HOSTS];
    if (results[STREAM] >= STREAMS)
        return sheaf__fail(SHEAF_STATUS_PEER, "%s: %s chose way %llu of %d to stream", WHAT,
                           sheaf__rank_text(0), (unsigned long long)results[STREAM], STREAMS);
    level->link.latency_ns = (int64_t)results[A];
    level->link.byte_ps = (int64_t)results[B];
    level->one_shot_bytes = (size_t)results[ONE_SHOT];
    for (int i = 0; i < SHEAF_COMM_OWNERS; i++)
        level->owners[i] = (struct sheaf_comm_owners){(int)results[OWNERS + 2 * i],
                                                      (size_t)results[OWNERS + 2 * i + 1]};
    comm->part_bytes = part_bytes(comm, results[STREAM]);
    comm->ahead = streams[results[STREAM]].ahead;
    comm->crowded = results[CROWDED];
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__measure_hosts(struct sheaf_comm *comm) {
    const struct sheaf__world *w = sheaf__world();
    const bool leads = comm->n_local && comm->place[comm->local[0]] == 0;
    struct figures f = {.crowded = w->crowded};
    struct probe *probe = calloc(1, sizeof *probe);
    uint64_t values[FIGURES], results[RESULTS] = {0};
    uint8_t mine[8 * FIGURES], told[8 * RESULTS] = {0};
    uint8_t *all = malloc((size_t)w->size * sizeof mine);
    long one_shot = 0, owners = 0;
    enum sheaf_status st = sheaf__setting_int(SHEAF__SET_COMM_ONE_SHOT, &one_shot);
    if (!st) st = sheaf__setting_int(SHEAF__SET_COMM_OWNERS, &owners);
    if (!st && !(all && probe))
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    if ((st = sheaf_world_agree(st, WHAT))) goto out;
    if (leads && (st = measure(comm, probe, &f))) goto out;
    memcpy(values, &f, sizeof values);
    put_all(mine, values, FIGURES);
    if ((st = sheaf_world_all_gather(mine, sizeof mine, all, WHAT))) goto out;
    if (w->rank == 0) choose(comm, all, one_shot, owners, results);
    put_all(told, results, RESULTS);
    if ((st = sheaf_world_broadcast(told, sizeof told, 0, WHAT))) goto out;
    get_all(told, results, RESULTS);
    st = take_results(comm, results);
out:
    free(probe);
    free(all);
    return st;
}
