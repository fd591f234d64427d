/* One collective from its entry to its end, as all kinds and routes have it. */
#ifndef SHEAF_COMM_CALL_H
#define SHEAF_COMM_CALL_H

#include "comm/transport/comm.h"

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
    struct sheaf__absence away; /* since `start` */
    uint64_t hosts_ns; /* of wait_ns: for other hosts, since the last result was published */
    struct sheaf__pending *pending; /* whose thread this is; NULL: the member's own */
};

/* A local member; NULL if this rank does not drive it. */
struct sheaf__member *sheaf__find_member(const struct sheaf_comm *comm, int member);
/* Starts the clock of the call, shows it on the board and in the flight recorder. A short one of
 * members of one host does so when it has told them that it is here: they need not wait for that.
 * c->start is 0 before. */
void sheaf__note_call(struct sheaf__call *c);
/* "all_reduce 'ffn_out' (node 7, 8192 bytes, collective 12)" */
void sheaf__describe_call(const void *call, char *text, size_t size);
/* Does a rank of the group load? Each wait of its collectives may be one for that rank. */
bool sheaf__group_loads(const void *call, uint64_t now);
/* Ends the job because a peer (of that rank) is elsewhere. */
enum sheaf_status sheaf__diverged(const struct sheaf__call *c, int rank,
                                  const struct sheaf__head *theirs);
static inline bool sheaf__same_head(const struct sheaf__head *a, const struct sheaf__head *b) {
    return a->sequence == b->sequence && a->bytes == b->bytes && a->extra == b->extra &&
           a->kind == b->kind && a->node == b->node;
}

/* Is the call well formed? *bytes: what all its blocks have together. comm may be NULL. *call may
 * be of an earlier version: it is in *room then. */
enum sheaf_status sheaf__comm_check(const struct sheaf_comm *comm,
                                    const struct sheaf_comm_call **call,
                                    struct sheaf_comm_call *room, size_t *bytes);
/* Can a communication thread run it? */
bool sheaf__comm_may_start(enum sheaf_comm_kind kind);

/* Waits for what the member has started, numbers the call, and shows it. */
enum sheaf_status sheaf__begin_call(struct sheaf__call *c, struct sheaf_comm *comm, int member,
                                    const struct sheaf_comm_call *call, uint64_t bytes);
/* Counts it if it has succeeded. Returns st. */
enum sheaf_status sheaf__end_call(const struct sheaf__call *c, enum sheaf_status st,
                                  uint64_t bytes);

#endif
