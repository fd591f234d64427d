/* What a group is: its members, hosts and memory, and the steps that collectives are made of.
 *
 * A collective is a sequence of steps; all members count them alike. In a step every member may
 * fill its slot, then arrives, and continues when all members of its host have arrived. Slots and
 * results exist twice, used in turn (step & 1): a member that has seen all others arrive at step s
 * knows that all have left step s - 1, so the memory of step s - 1 is free again in step s + 1, and
 * no step needs a second barrier.
 *
 * The first member of a host is its leader; only leaders talk to other hosts. */
#ifndef SHEAF_COMM_COMM_H
#define SHEAF_COMM_COMM_H

#include "base/arith.h"
#include "comm/world/world.h"
#include "sheaf/comm.h"

struct sheaf__pending;

enum {
    SHEAF__LINE = 128, /* the unit that two cores exchange: a pair of cache lines */
    SHEAF__FRAME_HEADER = 64,
    SHEAF__FRAME_PAYLOAD = 63 * 1024, /* the most that travels with a header: MPI sends up to 64 KiB
                                         at once and asks before it sends more */
    SHEAF__EAGER =
        60 * 1024, /* what MPI sends without asking, with room for its own headers, and for those
                      of its segments in a burst of 64 KiB that tbf lets pass */
    SHEAF__PIECES = 8, /* a message travels in, at most */
    SHEAF__DEPTH = 8,  /* chunks in flight, at most */
    /* messages to a host that are sent before one is waited for */
    SHEAF__MIN_AHEAD = 3,
    SHEAF__MAX_AHEAD = 5,
    SHEAF__GATHER_LANE = SHEAF__DEPTH, /* the first of as many */
    SHEAF__FRAME_LANE = 2 * SHEAF__DEPTH,
    SHEAF__LANES,
    SHEAF__REGIONS = 16, /* of a member at a time */
    SHEAF__ALIGN = 32,   /* floats; parts of a chunk begin on cache lines and on blocks of Q8_0 */
};
static_assert(SHEAF__LINE % (SHEAF__ALIGN * sizeof(float)) == 0,
              "a slot, of lines, has whole blocks");

/* What a member says it is doing; compared with what its peers say. */
struct sheaf__head {
    uint64_t sequence, bytes, extra; /* extra: root, or a hash of all counts */
    uint32_t kind, node;
};

/* State of a member in shared memory. Values are step numbers + 1 and only grow; the numbers wrap,
 * so they are compared by their difference. */
struct sheaf__cell {
    struct {
        _Alignas(SHEAF__LINE) _Atomic uint64_t ready;
        struct sheaf__head head; /* beside ready: one cache line brings both */
        uint64_t region, offset; /* where the data are: number + 1 of the member's region and bytes
                                    in it; 0: the slot */
    } line[2];
    _Alignas(SHEAF__LINE) _Atomic uint64_t done;   /* its part of the host's sum is written */
    _Alignas(SHEAF__LINE) _Atomic uint64_t result; /* of the leader: the result is written */
    uint64_t hosts_ns[2]; /* of the leader, by step & 1: its wait for other hosts; near `result` */
};

/* Memory of a member that the others of its host may map, as the member tells them. */
struct sheaf__region {
    _Atomic uint64_t serial; /* of the group: another memory has another; 0 none */
    uint64_t pid, fd, address, bytes;
};

struct sheaf__probe { /* of the first two members of a host, for measure.c */
    _Alignas(SHEAF__LINE) _Atomic uint64_t turn[2];
    int64_t latency_ns, byte_ps;
};

struct sheaf__view { /* a region, as one process sees it */
    uint64_t serial;
    uint8_t *base;
    size_t bytes;
    bool mapped; /* by this view */
};

/* State of a local member, private to its thread except the counters. */
struct sheaf__member {
    _Alignas(SHEAF__LINE) uint64_t step, sequence;
    const float **sources; /* [max(n_here, n_hosts)] */
    float **targets;       /* [n_here] */
    int own_fd[SHEAF__REGIONS];
    struct sheaf__view own[SHEAF__REGIONS];
    struct sheaf__view *views; /* [n_here][SHEAF__REGIONS] */
    uint64_t n_regions;
    struct sheaf__pending *pending; /* NULL until something was started */
    struct {
        _Atomic uint64_t count, bytes, time_ns, wait_ns, hidden_ns, stalled_ns;
    } stats[SHEAF_COMM_KIND_COUNT];
};

struct sheaf__host {
    int leader_rank;
    int first, n; /* its members are order[first .. first + n) */
};

/* Requests of one direction of work between hosts. */
struct sheaf__lane {
    MPI_Request *requests; /* [2 n_hosts SHEAF__PIECES] */
    MPI_Status *statuses;
    int *peers;
    int n, code;
    uint64_t posted;
};

struct sheaf_comm {
    int n, n_local, n_hosts, n_here;
    int here;     /* this rank's host in `hosts`, -1 if it drives no member */
    bool direct;  /* several hosts of one member each: data are sent from where they lie */
    int *rank_of; /* [n] */
    int *local;   /* [n_local] member numbers */
    int *order;   /* [n] members by host, then by number */
    int *host_of; /* [n] */
    int *place;   /* [n] number among the members of its host */
    struct sheaf__host *hosts;
    struct sheaf__member *members; /* [n_local] */

    size_t slot_bytes, map_bytes;
    size_t part_bytes, max_part_bytes; /* bytes that a host sends to another at a time: as measured,
                                          and as memory allows */
    uint64_t ahead;                    /* SHEAF__MIN_AHEAD to SHEAF__MAX_AHEAD, as measured */
    size_t chunk_bytes;                /* of a sum between hosts, at most */
    void *map;
    struct sheaf__cell *cells;     /* [n_here] */
    struct sheaf__region *regions; /* [n_here][SHEAF__REGIONS] */
    struct sheaf__probe *probe;
    uint64_t n_measured; /* calls of sheaf_comm_measure */
    uint8_t *slots;   /* [n_here][2][slot_bytes] */
    uint8_t *sums;    /* [2][slot_bytes] sums of this host, if there are others */
    uint8_t *results; /* [2][slot_bytes] */

    /* of the leader only, if there are other hosts */
    uint8_t *frames_out, *frames_in; /* [n_hosts] of header + payload */
    size_t *give, *take;             /* [n_hosts] payload bytes that are sent, and to expect */
    struct sheaf__lane lane[SHEAF__LANES];
    float *stage; /* [SHEAF__DEPTH][n_hosts][stage_floats] addends of other hosts */
    size_t stage_floats;
    uint8_t *coded; /* [SHEAF__DEPTH][chunk_bytes] what this host sends, if it is not F32 */
    float *decoded; /* [n_hosts][decoded_floats] */
    size_t decoded_floats;
    uint8_t **parts; /* [n_hosts] */

    enum sheaf_type wire_type; /* of sums between hosts */
    struct sheaf_comm_level levels[SHEAF_COMM_LEVEL_COUNT];

    uint64_t timeout_ns, delay_ns;
    unsigned spins; /* before the core is offered to others */
    bool crowded;   /* members of a host share cores; said of any host, known on all */
    uint32_t id;
    char text[64];
};

static inline uint8_t *sheaf__slot(const struct sheaf_comm *comm, int place, uint64_t step) {
    return comm->slots + ((size_t)place * 2 + (step & 1)) * comm->slot_bytes;
}
static inline uint8_t *sheaf__result(const struct sheaf_comm *comm, uint64_t step) {
    return comm->results + (step & 1) * comm->slot_bytes;
}

/* The member at a place of this host, and the rank that drives it. */
static inline int sheaf__member_at(const struct sheaf_comm *comm, int place) {
    return comm->order[comm->hosts[comm->here].first + place];
}
static inline int sheaf__rank_at(const struct sheaf_comm *comm, int place) {
    return comm->rank_of[sheaf__member_at(comm, place)];
}

/* Largest message that may be exchanged whole between hosts. */
static inline size_t sheaf__frame_limit(const struct sheaf_comm *comm) {
    return sheaf__min_size(SHEAF__FRAME_PAYLOAD, comm->slot_bytes);
}

static inline float *sheaf__floats(uint8_t *bytes) { return (float *)(void *)bytes; }

#endif
