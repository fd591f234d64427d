/* Groups of members and their collectives.
 *
 * A group is an ordered list of members; each is driven by one rank. Members of one rank and of
 * ranks on one host meet in shared memory; hosts meet through MPI point-to-point. Every local
 * member calls each collective, from a thread of its own if a rank has several.
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

#include "sheaf/link.h"
#include "sheaf/type.h"
#include "sheaf/world.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_comm;

struct sheaf_comm_params {
    size_t size;       /* sizeof(struct sheaf_comm_params) */
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

/* What a collective is about, for checks and messages. It does not grow, so it has no size. */
struct sheaf_comm_what {
    uint32_t node;      /* plan step; must agree on all members */
    const char *tensor; /* for messages; may be NULL */
};

/* Collective over all ranks of the world (also those that drive no member). member_rank[i] is the
 * rank of member i; ranks appear in non-decreasing order. params may be NULL. */
enum sheaf_status sheaf_comm_new(const int *member_rank, int n_members,
                                 const struct sheaf_comm_params *params, struct sheaf_comm **out);
/* Accepts NULL; local; waits only for calls started on its own members. */
void sheaf_comm_free(struct sheaf_comm *comm);

int sheaf_comm_n_members(const struct sheaf_comm *comm);
int sheaf_comm_n_local(const struct sheaf_comm *comm);
int sheaf_comm_local_member(const struct sheaf_comm *comm,
                            int i); /* member number of local member i */
/* "shm(2)+mpi(2 hosts)" */
const char *sheaf_comm_describe(const struct sheaf_comm *comm);

/* One collective, as every route takes it: run at once, started, or submitted to a device. The
 * fields that a kind has no use for are ignored. */
struct sheaf_comm_call {
    size_t size; /* sizeof */
    enum sheaf_comm_kind kind;
    /* all_gather: the member's own block, which may be its place in recv. reduce_scatter: as many
     * floats as all counts together. */
    const void *send;
    /* all_reduce, broadcast: the data, in place. all_gather: all blocks, in member order.
     * reduce_scatter: block `member` of the sum; it does not overlap send. */
    void *recv;
    size_t n; /* all_reduce: floats; broadcast: bytes */
    /* [members] all_gather: bytes of each block; reduce_scatter: floats. Agree on all members. */
    const size_t *sizes;
    int root; /* broadcast: the member whose data all others receive */
    struct sheaf_comm_what what;
};
/* Runs the collective; `member` is the caller's member number. INVALID (text set, the group lives
 * on) if the call is malformed. */
enum sheaf_status sheaf_comm_run(struct sheaf_comm *comm, int member,
                                 const struct sheaf_comm_call *call);

/* The same by kind; `what` may be NULL. */
enum sheaf_status sheaf_comm_all_reduce(struct sheaf_comm *comm, int member, float *data, size_t n,
                                        const struct sheaf_comm_what *what);
enum sheaf_status sheaf_comm_all_gather(struct sheaf_comm *comm, int member, const void *send,
                                        void *recv, const size_t *bytes,
                                        const struct sheaf_comm_what *what);
enum sheaf_status sheaf_comm_reduce_scatter(struct sheaf_comm *comm, int member, const float *send,
                                            float *recv, const size_t *counts,
                                            const struct sheaf_comm_what *what);
enum sheaf_status sheaf_comm_broadcast(struct sheaf_comm *comm, int member, void *data, size_t size,
                                       int root, const struct sheaf_comm_what *what);
enum sheaf_status sheaf_comm_barrier(struct sheaf_comm *comm, int member,
                                     const struct sheaf_comm_what *what);

/* ---- while the member does something else ---- */
/* Starts an all_reduce, all_gather or reduce_scatter on the member's communication thread, which
 * the first start makes: the same checks, deadlines and bits as sheaf_comm_run. Some members may
 * start a collective that others run. A member's collectives run one after the other in the order
 * of its calls; one that is run waits for those started before. The memory that the call points to
 * belongs to the collective until sheaf_comm_wait. With many under way, the start waits for the
 * oldest one. *ticket: for the wait. From the thread that drives the member. */
enum sheaf_status sheaf_comm_start(struct sheaf_comm *comm, int member,
                                   const struct sheaf_comm_call *call, uint64_t *ticket);
/* Waits for this call and all earlier ones. After a failure, its status and text. */
enum sheaf_status sheaf_comm_wait(struct sheaf_comm *comm, int member, uint64_t ticket);

/* ---- memory that is read where it lies ---- */
/* *out: memory of `member`, whole pages of zeros. all_reduce of data in it copies nothing on this
 * host (more than 4 KiB; of less, copies are faster): the others add from there, each sums a part
 * and writes it into the data of all. Local, at any time between two collectives; 16 a member.
 * sheaf_comm_free frees what is left. */
enum sheaf_status sheaf_comm_alloc(struct sheaf_comm *comm, int member, size_t bytes, void **out);
/* Local, at any time between two collectives, from the thread that drives the member: waits for those
 * that it has started. Accepts NULL, and ignores what is no memory of the member. The other processes
 * give the memory back when the group ends or the member has allocated anew. Once a collective has
 * failed, sheaf_comm_free alone frees: members of this process may still be inside it. */
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
    struct sheaf_link link; /* the slowest host's */
    size_t one_shot_bytes;  /* between hosts: up to here sums travel whole */
    enum sheaf_type wire_type;
    struct sheaf_comm_owners owners[SHEAF_COMM_OWNERS]; /* above; and what is larger in parts */
};
/* Collective over the world, while no member is in a collective: measures shared memory (some
 * milliseconds). sheaf_comm_new has measured the hosts, which its choice of algorithm needs. */
enum sheaf_status sheaf_comm_measure(struct sheaf_comm *comm);
void sheaf_comm_get_level(const struct sheaf_comm *comm, enum sheaf_comm_level_kind kind,
                          struct sheaf_comm_level *out);
/* Nanoseconds that a collective of `bytes` takes at least by the measured links: the sum over the
 * levels of sheaf_link_all_reduce_ns (of the bytes that travel, see SHEAF_COMM_WIRE), of other
 * kinds sheaf_link_gather_ns. */
int64_t sheaf_comm_bound_ns(const struct sheaf_comm *comm, enum sheaf_comm_kind kind, size_t bytes);

struct sheaf_comm_stats {
    uint64_t count;      /* collectives done */
    uint64_t bytes;      /* payload bytes of this member */
    uint64_t time_ns;    /* inside the collective */
    uint64_t wait_ns;    /* of that: waiting for the slowest to arrive */
    uint64_t hidden_ns;  /* of time_ns: while the member did something else (sheaf_comm_start) */
    uint64_t stalled_ns; /* of wait_ns: while the member did nothing else */
};
/* Of one local member; may be read while it works (values may be a collective old). */
void sheaf_comm_get_stats(const struct sheaf_comm *comm, int member, enum sheaf_comm_kind kind,
                          struct sheaf_comm_stats *stats);
const char *sheaf_comm_kind_name(enum sheaf_comm_kind kind);

#ifdef __cplusplus
}
#endif
#endif
