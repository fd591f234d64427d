/* Groups of members and their collectives.
 *
 * A group is an ordered list of members; each is driven by one rank. Members of one rank and of
 * ranks on one host meet in shared memory; hosts meet through MPI point-to-point
 * (SHEAF_COMM_TRANSPORT=mpi makes every rank a host of its own, and hosts:0,1,0,1 groups ranks by
 * the given numbers; SHEAF_COMM_DELAY_US=n delays messages between hosts; SHEAF_COMM_ONE_SHOT=n
 * sends sums of more than n bytes in parts instead of what was measured, and SHEAF_COMM_OWNERS=n
 * all that fit through n hosts that add; all for tests). Every local member calls each collective,
 * from a thread of its own if a rank has several.
 *
 * Between hosts, SHEAF_COMM_WIRE=bf16 or q8_0 halves or quarters the bytes of an all_reduce: the
 * sum of each host (the own one too) and the total are rounded to that type. On one host nothing is
 * rounded; other collectives move what they are given.
 *
 * Same bits everywhere: sums are F32 in one canonical order (members of a host in member order,
 * then hosts in order of their first member), whatever the size, the transport, or the timing.
 *
 * Every wait has a deadline; sequence number, kind, plan node and size are compared with the
 * peers'. On failure the call returns SHEAF_STATUS_TIMEOUT or SHEAF_STATUS_PEER with a text that
 * names rank, host, collective, tensor and step, the group is dead, and sheaf_world_abort has been
 * called. */
#ifndef SHEAF_COMM_H
#define SHEAF_COMM_H

#include "sheaf/type.h"
#include "sheaf/world.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_comm;

struct sheaf_comm_params {
    size_t size;
    int timeout_ms;    /* 0: the world's */
    size_t slot_bytes; /* shared-memory slot of a member; 0: default. Larger messages go through it
                          in chunks. */
    enum sheaf_type wire_type; /* how sums travel between hosts: F32, BF16 or Q8_0; F32 (0): as
                                  SHEAF_COMM_WIRE says, f32 without it */
};

enum sheaf_comm_kind {
    SHEAF_COMM_ALL_REDUCE,
    SHEAF_COMM_ALL_GATHER,
    SHEAF_COMM_REDUCE_SCATTER,
    SHEAF_COMM_BROADCAST,
    SHEAF_COMM_BARRIER,
    SHEAF_COMM_KIND_COUNT,
};

/* What a collective is about, for checks and messages. */
struct sheaf_comm_what {
    uint32_t node;      /* plan step; must agree on all members */
    const char *tensor; /* for messages; may be NULL */
};

/* Collective over all ranks of the world (also those that drive no member). member_rank[i] is the
 * rank of member i; ranks appear in non-decreasing order. params may be NULL. */
enum sheaf_status sheaf_comm_new(const int *member_rank, int n_members,
                                 const struct sheaf_comm_params *params, struct sheaf_comm **out);
/* Accepts NULL; local; waits for nobody but what was started on its own members. */
void sheaf_comm_free(struct sheaf_comm *comm);

int sheaf_comm_n_members(const struct sheaf_comm *comm);
int sheaf_comm_n_local(const struct sheaf_comm *comm);
int sheaf_comm_local_member(const struct sheaf_comm *comm,
                            int i); /* member number of local member i */
/* "shm(2)+mpi(2 hosts)" */
const char *sheaf_comm_describe(const struct sheaf_comm *comm);

/* `member` is the caller's member number. */
/* data [n] on every member: the sum, in place. */
enum sheaf_status sheaf_comm_all_reduce(struct sheaf_comm *comm, int member, float *data, size_t n,
                                        const struct sheaf_comm_what *what);
/* Blocks of bytes[j] bytes, in member order, into recv (sum of bytes) on every member; send is this
 * member's block and may be its place in recv. bytes agrees on all members. */
enum sheaf_status sheaf_comm_all_gather(struct sheaf_comm *comm, int member, const void *send,
                                        void *recv, const size_t *bytes,
                                        const struct sheaf_comm_what *what);
/* send [sum of counts] on every member; member j receives block j of the sum, counts[j] floats, into
 * recv, which does not overlap send. */
enum sheaf_status sheaf_comm_reduce_scatter(struct sheaf_comm *comm, int member, const float *send,
                                            float *recv, const size_t *counts,
                                            const struct sheaf_comm_what *what);
enum sheaf_status sheaf_comm_broadcast(struct sheaf_comm *comm, int member, void *data, size_t size,
                                       int root, const struct sheaf_comm_what *what);
enum sheaf_status sheaf_comm_barrier(struct sheaf_comm *comm, int member,
                                     const struct sheaf_comm_what *what);

/* ---- while the member does something else ---- */
/* A collective to be run by the member's communication thread, which the first start makes. */
struct sheaf_comm_call {
    size_t size;               /* sizeof */
    enum sheaf_comm_kind kind; /* ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER */
    const void *send;          /* of the last two */
    void *recv;                /* of an all_reduce: its data */
    size_t n;                  /* of an all_reduce: floats */
    const size_t *sizes;       /* of the others: bytes or counts */
    struct sheaf_comm_what what;
};
/* Starts a collective: the same call, the same checks and deadlines, the same bits as the direct
 * one; on some members it may be started and on others direct. A member's collectives run one after
 * the other in the order of its calls; a direct one waits for those started before. What the call
 * points to is the collective's until it was waited for. When many are under way already, waits for
 * the eldest. *ticket: for the wait. From the thread that drives the member. */
enum sheaf_status sheaf_comm_start(struct sheaf_comm *comm, int member,
                                   const struct sheaf_comm_call *call, uint64_t *ticket);
/* Until this one, and so all that were started before it, has ended. After a failure, its status
 * and text. */
enum sheaf_status sheaf_comm_wait(struct sheaf_comm *comm, int member, uint64_t ticket);

/* ---- memory that is read where it lies ---- */
/* *out: memory of `member`, whole pages of zeros. all_reduce of data in it copies nothing on this
 * host (more than 4 KiB; of less, copies are faster): the others add from there, each sums a part
 * and writes it into the data of all. Local, at any time between two collectives; 16 a member.
 * sheaf_comm_free frees what is left. */
enum sheaf_status sheaf_comm_alloc(struct sheaf_comm *comm, int member, size_t bytes, void **out);
/* Accepts NULL. The other processes give the memory back when the group ends or the member has
 * allocated anew. */
void sheaf_comm_dealloc(struct sheaf_comm *comm, int member, void *memory);

/* ---- links ---- */
enum sheaf_comm_level_kind {
    SHEAF_COMM_LEVEL_SHARED, /* members of a host, in shared memory */
    SHEAF_COMM_LEVEL_HOSTS,  /* hosts, through MPI */
    SHEAF_COMM_LEVEL_COUNT,
};
enum { SHEAF_COMM_OWNERS = 2 };
struct sheaf_comm_owners { /* sums of up to `bytes` go through n hosts, which add a part each */
    int n;
    size_t bytes; /* 0: none do */
};
struct sheaf_comm_level {
    int n;                 /* members of the largest host; hosts. Below 2 the level does nothing */
    double latency;        /* a, seconds; the slowest host's. 0: not measured */
    double byte_time;      /* b, seconds a byte, all exchanging with all */
    size_t one_shot_bytes; /* between hosts: up to here sums travel whole */
    enum sheaf_type wire_type;
    struct sheaf_comm_owners owners[SHEAF_COMM_OWNERS]; /* above; and what is larger in parts */
};
/* Collective over the world, while no member is in a collective: measures all levels (some
 * milliseconds). sheaf_comm_new has measured the hosts, which its choice of algorithm needs. */
enum sheaf_status sheaf_comm_measure(struct sheaf_comm *comm);
void sheaf_comm_get_level(const struct sheaf_comm *comm, enum sheaf_comm_level_kind kind,
                          struct sheaf_comm_level *out);
/* Seconds that an all_reduce of `bytes` takes at least by the measured a and b: over the levels,
 * the sum of the lesser of one-shot a + (N-1) n b and parts 2 a + 2 (N-1)/N n b. */
double sheaf_comm_all_reduce_bound(const struct sheaf_comm *comm, size_t bytes);

struct sheaf_comm_stats {
    uint64_t count;     /* collectives done */
    uint64_t bytes;     /* payload bytes of this member */
    uint64_t time_ns;   /* inside the collective */
    uint64_t wait_ns;   /* of that: waiting for the slowest to arrive */
    uint64_t hidden_ns; /* of time_ns: while the member did something else (sheaf_comm_start) */
};
/* Of one local member; may be read while it works (values may be a collective old). */
void sheaf_comm_get_stats(const struct sheaf_comm *comm, int member, enum sheaf_comm_kind kind,
                          struct sheaf_comm_stats *stats);
const char *sheaf_comm_kind_name(enum sheaf_comm_kind kind);

#ifdef __cplusplus
}
#endif
#endif
