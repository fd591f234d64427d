/* Inside a group: which members meet, in which memory, and the steps of a collective.
 *
 * A collective is a sequence of steps; all members count them alike. In a step every member may
 * fill its slot, then arrives, and goes on when all members of its host have arrived. Slots and
 * results exist twice, used in turn (step & 1): a member that has seen all arrive at step s knows
 * that all have left step s - 1, so what step s - 1 used is free again in step s + 1, and no step
 * needs a second barrier.
 *
 * The first member of a host is its leader; only leaders talk to other hosts. */
#ifndef SHEAF_COMM_GROUP_H
#define SHEAF_COMM_GROUP_H

#include "base/arith.h"
#include "comm/async.h"
#include "comm/world.h"

enum {
    SHEAF__LINE = 128, /* what two cores may exchange at once: a pair of cache lines */
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

/* State of a local member, private to its thread except for the counters. */
struct sheaf__member {
    _Alignas(SHEAF__LINE) uint64_t step, sequence;
    const float **sources; /* [max(n_here, n_hosts)] */
    float **targets;       /* [n_here] */
    int own_fd[SHEAF__REGIONS];
    struct sheaf__view own[SHEAF__REGIONS];
    struct sheaf__view *views; /* [n_here][SHEAF__REGIONS] */
    uint64_t n_regions;
    struct sheaf__async *async; /* NULL until something was started */
    struct {
        _Atomic uint64_t count, bytes, time_ns, wait_ns, hidden_ns;
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
    size_t part_bytes, max_part_bytes; /* what a host sends to another at a time: as measured, and
                                          as there is room for */
    uint64_t ahead;                    /* SHEAF__MIN_AHEAD to SHEAF__MAX_AHEAD, as measured */
    size_t chunk_bytes;                /* of a sum between hosts, at most */
    void *map;
    struct sheaf__cell *cells;     /* [n_here] */
    struct sheaf__region *regions; /* [n_here][SHEAF__REGIONS] */
    struct sheaf__probe *probe;
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

/* One collective, as one member sees it. */
struct sheaf__call {
    struct sheaf_comm *comm;
    struct sheaf__member *self;
    int member, place;
    bool leader, checked;
    struct sheaf__head head;
    const char *tensor;
    uint64_t region, offset; /* of the data of this step, as in the cell */
    uint64_t start, wait_ns;
    struct sheaf__async *async;   /* whose thread this is; NULL: the member's own */
    struct sheaf__epilogue *then; /* of an all_reduce, or NULL */
};

static inline uint8_t *sheaf__slot(const struct sheaf_comm *comm, int place, uint64_t step) {
    return comm->slots + ((size_t)place * 2 + (step & 1)) * comm->slot_bytes;
}
static inline uint8_t *sheaf__result(const struct sheaf_comm *comm, uint64_t step) {
    return comm->results + (step & 1) * comm->slot_bytes;
}

/* Elements [0, end) of an all_reduce are final on this member: its epilogue. */
enum sheaf_status sheaf__finished(struct sheaf__call *c, size_t end);

/* dst [n] = ((src[0] + src[1]) + src[2]) + ...; dst may be one of the sources. */
void sheaf__sum(float *dst, const float *const *src, int n_src, size_t n);
/* own [n] = theirs [n] = src[0] + src[1]; theirs was written by another core. Each of the two may
 * be a source. */
void sheaf__sum_both(float *own, float *theirs, const float *const *src, size_t n);
/* memcpy between caches. */
void sheaf__copy(void *dst, const void *src, size_t bytes);

/* ---- registered memory (region.c) ---- */
/* Sets c->region and c->offset if `bytes` from data on lie in a region of the member. */
void sheaf__find_region(struct sheaf__call *c, const void *data, size_t bytes);
/* After arrival: did any member of the host name a region? */
bool sheaf__any_region(const struct sheaf__call *c, uint64_t step);
/* The data of the member at `place` in this step; NULL, and the job has failed, if this process
 * cannot map it. */
uint8_t *sheaf__data_of(struct sheaf__call *c, int place, uint64_t step);
void sheaf__regions_free(struct sheaf_comm *comm, struct sheaf__member *self);

/* A local member; NULL if this rank does not drive it. */
struct sheaf__member *sheaf__find_member(const struct sheaf_comm *comm, int member);
/* Starts the clock of the call, shows it on the board and in the flight recorder. A short one of
 * members of one host does so when it has told them that it is here: they need not wait for that.
 * c->start is 0 before. */
void sheaf__note_call(struct sheaf__call *c);
/* "all_reduce 'ffn_out' (node 7, 8192 bytes, collective 12)" */
void sheaf__describe_call(const void *call, char *text, size_t size);
/* Ends the job because a peer (of that rank) is elsewhere. */
enum sheaf_status sheaf__diverged(const struct sheaf__call *c, int rank,
                                  const struct sheaf__head *theirs);
static inline bool sheaf__same_head(const struct sheaf__head *a, const struct sheaf__head *b) {
    return a->sequence == b->sequence && a->bytes == b->bytes && a->extra == b->extra &&
           a->kind == b->kind && a->node == b->node;
}

/* ---- on a host (rendezvous.c); all for the current step, self->step ---- */
/* Publishes what was written to the own slot and waits for all members of the host. The first time
 * in a call it compares heads. */
enum sheaf_status sheaf__arrive(struct sheaf__call *c);
void sheaf__publish_done(struct sheaf__call *c);
enum sheaf_status sheaf__await_done(struct sheaf__call *c);
void sheaf__publish_result(struct sheaf__call *c, uint64_t step);
enum sheaf_status sheaf__await_result(struct sheaf__call *c, uint64_t step);

/* ---- between hosts (wire.c); leaders only ---- */
enum sheaf_status sheaf__wire_new(struct sheaf_comm *comm);
void sheaf__wire_free(struct sheaf_comm *comm);
static inline uint8_t *sheaf__payload_out(const struct sheaf_comm *comm, int host) {
    return comm->frames_out + (size_t)host * (SHEAF__FRAME_HEADER + SHEAF__FRAME_PAYLOAD) +
           SHEAF__FRAME_HEADER;
}
static inline uint8_t *sheaf__payload_in(const struct sheaf_comm *comm, int host) {
    return comm->frames_in + (size_t)host * (SHEAF__FRAME_HEADER + SHEAF__FRAME_PAYLOAD) +
           SHEAF__FRAME_HEADER;
}
/* Sends header and the first `bytes` of the own host's payload_out to every other host, receives
 * theirs: comm->take[h] bytes into payload_in(h). Checks every header. */
enum sheaf_status sheaf__wire_frames(struct sheaf__call *c, size_t bytes);
/* The same in two parts. Messages posted between them must not rely on equal sizes. */
void sheaf__wire_frames_post(struct sheaf__call *c, size_t bytes);
/* To each host its own: comm->give[h] bytes of payload_out(h). */
void sheaf__wire_frames_post_each(struct sheaf__call *c);
enum sheaf_status sheaf__wire_frames_wait(struct sheaf__call *c);
/* `n` hosts, far apart, own a part each, of take[h] bytes; those of others are 0. */
static inline int sheaf__owner(const struct sheaf_comm *comm, int n, int i) {
    return (int)((int64_t)i * comm->n_hosts / n);
}
/* How many own a sum of so many bytes: 0 every host, it travels whole; -1 it goes in chunks. */
static inline int sheaf__n_owners(const struct sheaf_comm *comm, size_t bytes) {
    const struct sheaf_comm_level *l = &comm->levels[SHEAF_COMM_LEVEL_HOSTS];
    const size_t least = bytes ? bytes : 1;
    if (least <= l->one_shot_bytes) return 0;
    for (int i = 0; i < SHEAF_COMM_OWNERS; i++)
        if (least <= l->owners[i].bytes) return l->owners[i].n;
    return bytes ? -1 : 0;
}
/* Sends payload_out(h), with header, to each owner h; an owner receives what all others have for
 * its part at payload_in(). Nothing goes to a host that owns nothing. */
enum sheaf_status sheaf__wire_to_owners(struct sheaf__call *c, int n);
/* And back: an owner sends its own payload_out to all others. A host that receives it knows that
 * all members are in the same call: the owner has seen their headers. */
enum sheaf_status sheaf__wire_from_owners(struct sheaf__call *c, int n);
/* Bare payloads, after frames have proved that sizes agree. begin ... recv/send ... end, wait. */
void sheaf__wire_begin(struct sheaf_comm *comm, int lane);
void sheaf__wire_recv(struct sheaf_comm *comm, int lane, int host, void *data, size_t bytes);
void sheaf__wire_send(struct sheaf_comm *comm, int lane, int host, const void *data, size_t bytes);
void sheaf__wire_end(struct sheaf_comm *comm, int lane);
enum sheaf_status sheaf__wire_wait(struct sheaf__call *c, int lane);

/* ---- types of data between hosts (wire_type.c): F32, BF16, Q8_0 ---- */
/* Bytes of n floats, the last block of Q8_0 filled up. */
size_t sheaf__wire_bytes(enum sheaf_type type, size_t n);
void sheaf__wire_encode(enum sheaf_type type, const float *src, uint8_t *dst, size_t n);
void sheaf__wire_decode(enum sheaf_type type, const uint8_t *src, float *dst, size_t n);
/* data [n]: to the type and back; scratch holds their bytes. */
void sheaf__wire_round(enum sheaf_type type, float *data, uint8_t *scratch, size_t n);
/* The type that params and SHEAF_COMM_WIRE ask for. */
enum sheaf_status sheaf__wire_type(enum sheaf_type wanted, enum sheaf_type *out);

/* ---- links (measure_hosts.c) ---- */
enum { SHEAF__OWNER_BYTES = 62 * 1024 }; /* of an owner's part, at most, without its alignment */
static_assert(SHEAF__OWNER_BYTES + SHEAF__ALIGN * sizeof(float) <= SHEAF__FRAME_PAYLOAD,
              "a part fits a frame");
/* Collective over the world: latency and rate between the hosts, and what follows for the choice of
 * algorithm, the same on every rank. */
enum sheaf_status sheaf__measure_hosts(struct sheaf_comm *comm);

/* ---- calls (comm.c) ---- */
/* Is the call well formed? *bytes: what all its blocks have together. comm may be NULL. */
enum sheaf_status sheaf__comm_check(const struct sheaf_comm *comm,
                                    const struct sheaf_comm_call *call, size_t *bytes);
/* Can a communication thread run it? */
bool sheaf__comm_may_start(enum sheaf_comm_kind kind);

/* ---- the collectives (reduce.c, reduce_hosts.c, gather.c); more than one member ---- */
enum sheaf_status sheaf__all_reduce(struct sheaf__call *c, float *data, size_t n);
enum sheaf_status sheaf__reduce_scatter(struct sheaf__call *c, const float *send, float *recv,
                                        size_t n, const size_t *counts);
enum sheaf_status sheaf__all_gather(struct sheaf__call *c, const uint8_t *send, uint8_t *recv,
                                    const size_t *bytes);
enum sheaf_status sheaf__broadcast(struct sheaf__call *c, uint8_t *data, size_t size, int root);
enum sheaf_status sheaf__barrier(struct sheaf__call *c);

/* Largest message that may be exchanged whole between hosts. */
static inline size_t sheaf__frame_limit(const struct sheaf_comm *comm) {
    return sheaf__min_size(SHEAF__FRAME_PAYLOAD, comm->slot_bytes);
}

#endif
