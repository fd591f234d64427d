/* Inside a group: who meets whom, in which memory, and the steps that collectives are made of.
 *
 * A collective is a sequence of steps; all members count them alike. In a step every member may
 * fill its slot, then arrives, and goes on when all members of its host have arrived. Slots and
 * results exist twice, used in turn (step & 1): who has seen everybody arrive at step s knows that
 * everybody has left step s - 1, so what step s - 1 used is free again in step s + 1, and no step
 * needs a second barrier.
 *
 * The first member of a host is its leader; only leaders talk to other hosts. */
#ifndef SHEAF_COMM_GROUP_H
#define SHEAF_COMM_GROUP_H

#include "comm/world.h"

enum {
    SHEAF__LINE = 128, /* what two cores may exchange at once: a pair of cache lines */
    SHEAF__FRAME_HEADER = 64,
    SHEAF__FRAME_PAYLOAD = 64 * 1024, /* the most that travels with a header */
    SHEAF__LANES = 3,                 /* two scatters in flight, and a gather */
    SHEAF__GATHER_LANE = 2,
};

/* What a member says it is doing; compared with what its peers say. */
struct sheaf__head {
    uint64_t sequence, bytes, extra; /* extra: root, or a hash of all counts */
    uint32_t kind, node;
};

/* State of a member in shared memory. Values are step numbers + 1 and only grow. */
struct sheaf__cell {
    struct {
        _Alignas(SHEAF__LINE) _Atomic uint64_t ready;
        struct sheaf__head head; /* beside ready: one cache line brings both */
    } line[2];
    _Alignas(SHEAF__LINE) _Atomic uint64_t done;   /* its part of the host's sum is written */
    _Alignas(SHEAF__LINE) _Atomic uint64_t result; /* of the leader: the result is written */
};

/* State of a local member, private to its thread but for the counters. */
struct sheaf__member {
    _Alignas(SHEAF__LINE) uint64_t step, sequence;
    const float **sources; /* [max(n_here, n_hosts)] */
    struct {
        _Atomic uint64_t count, bytes, time_ns, wait_ns;
    } stats[SHEAF_COMM_KIND_COUNT];
};

struct sheaf__host {
    int leader_rank;
    int first, n; /* its members are order[first .. first + n) */
};

/* Requests of one direction of work between hosts. */
struct sheaf__lane {
    MPI_Request *requests; /* [2 n_hosts] */
    MPI_Status *statuses;
    int *peers;
    int n, code;
    uint64_t posted;
};

struct sheaf_comm {
    int n, n_local, n_hosts, n_here;
    int here;     /* this rank's host in `hosts`, -1 if it drives no member */
    int *rank_of; /* [n] */
    int *local;   /* [n_local] member numbers */
    int *order;   /* [n] members by host, then by number */
    int *host_of; /* [n] */
    int *place;   /* [n] number among the members of its host */
    struct sheaf__host *hosts;
    struct sheaf__member *members; /* [n_local] */

    size_t slot_bytes, map_bytes;
    void *map;
    struct sheaf__cell *cells; /* [n_here] */
    uint8_t *slots;            /* [n_here][2][slot_bytes] */
    uint8_t *sums;             /* [2][slot_bytes] sums of this host, if there are others */
    uint8_t *results;          /* [2][slot_bytes] */

    /* of the leader only, if there are other hosts */
    uint8_t *frame_out, *frames_in; /* header + payload; [n_hosts] of those */
    size_t *take;                   /* [n_hosts] payload bytes to expect */
    struct sheaf__lane lane[SHEAF__LANES];
    float *stage; /* [2][n_hosts][stage_floats] addends of other hosts */
    size_t stage_floats;

    uint64_t timeout_ns, delay_ns;
    unsigned spins; /* before the core is offered to others */
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
    uint64_t start, wait_ns;
};

static inline uint8_t *sheaf__slot(const struct sheaf_comm *comm, int place, uint64_t step) {
    return comm->slots + ((size_t)place * 2 + (step & 1)) * comm->slot_bytes;
}
static inline uint8_t *sheaf__result(const struct sheaf_comm *comm, uint64_t step) {
    return comm->results + (step & 1) * comm->slot_bytes;
}
static inline size_t sheaf__min_size(size_t a, size_t b) { return a < b ? a : b; }

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
static inline uint8_t *sheaf__payload_out(const struct sheaf_comm *comm) {
    return comm->frame_out + SHEAF__FRAME_HEADER;
}
static inline uint8_t *sheaf__payload_in(const struct sheaf_comm *comm, int host) {
    return comm->frames_in + (size_t)host * (SHEAF__FRAME_HEADER + SHEAF__FRAME_PAYLOAD) +
           SHEAF__FRAME_HEADER;
}
/* Sends header and the first `bytes` of payload_out to every other host, receives theirs:
 * comm->take[h] bytes into payload_in(h). Checks every header. */
enum sheaf_status sheaf__wire_frames(struct sheaf__call *c, size_t bytes);
/* Bare payloads, after frames have proved that sizes agree. begin ... recv/send ... end, wait. */
void sheaf__wire_begin(struct sheaf_comm *comm, int lane);
void sheaf__wire_recv(struct sheaf_comm *comm, int lane, int host, void *data, size_t bytes);
void sheaf__wire_send(struct sheaf_comm *comm, int lane, int host, const void *data, size_t bytes);
void sheaf__wire_end(struct sheaf_comm *comm, int lane);
enum sheaf_status sheaf__wire_wait(struct sheaf__call *c, int lane);

/* ---- the collectives (reduce.c, gather.c); more than one member ---- */
enum sheaf_status sheaf__all_reduce(struct sheaf__call *c, float *data, size_t n);
enum sheaf_status sheaf__reduce_scatter(struct sheaf__call *c, const float *send, float *recv,
                                        size_t n, const size_t *counts);
enum sheaf_status sheaf__all_gather(struct sheaf__call *c, const uint8_t *send, uint8_t *recv,
                                    const size_t *bytes);
enum sheaf_status sheaf__broadcast(struct sheaf__call *c, uint8_t *data, size_t size, int root);
enum sheaf_status sheaf__barrier(struct sheaf__call *c);

/* Largest message that is exchanged whole between hosts; above, scatter and gather send less. */
static inline size_t sheaf__frame_limit(const struct sheaf_comm *comm) {
    const size_t others = (size_t)comm->n_hosts - 1;
    return sheaf__min_size(SHEAF__FRAME_PAYLOAD / (others ? others : 1), comm->slot_bytes);
}

#endif
