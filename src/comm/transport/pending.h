/* The collectives that a member has started and that have not ended (group/comm_thread.c runs
 * them).
 *
 * Invariant: a member's collectives run one at a time, in the order of its calls: started ones on
 * its communication thread, a direct one after the queue is empty. So steps, slots and messages
 * need no locks of their own. */
#ifndef SHEAF_COMM_PENDING_H
#define SHEAF_COMM_PENDING_H

#include <pthread.h>

#include "comm/transport/comm.h"

enum { SHEAF__PENDING = 16 /* calls of a member at a time */ };

struct sheaf__pending_op {
    struct sheaf_comm_call call;
    size_t bytes; /* of the whole collective */
    uint64_t sequence;
    char tensor[SHEAF__NAME_BYTES + 1];
    bool records, traces; /* as the thread that started it */
};

struct sheaf__pending {
    struct sheaf__idle idle;
    struct sheaf_comm *comm;
    int member;
    pthread_t thread;
    bool runs;
    uint64_t nap_ns; /* of the thread */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more, ended, hurry;
    struct sheaf__pending_op ops[SHEAF__PENDING];
    uint64_t started, finished; /* operation i is in ops[i % SHEAF__PENDING] */
    uint64_t awaited_since;     /* the member waits, by the clock; 0: it does something else */
    bool stop;
    enum sheaf_status status; /* the first failure, and its text */
    char error[1024];
};

/* From the member's own thread: waits until `want` calls have ended, or all; the first failure's
 * status and text. The board shows the one under way: each has the time of a collective. */
enum sheaf_status sheaf__pending_await(struct sheaf__pending *pending, uint64_t want);
enum sheaf_status sheaf__pending_settle(struct sheaf__pending *pending);

/* ---- on a communication thread ---- */
void sheaf__pending_init(struct sheaf__pending *pending);
/* Whose thread the caller is; NULL: no communication thread. */
struct sheaf__pending *sheaf__pending_here(void);
void sheaf__pending_set_here(struct sheaf__pending *pending);
/* Its naps are a part of what the collective is expected to take; as long as the collective has
 * reason to go on, the member's wait for it has. NULL for NULL. */
struct sheaf__idle *sheaf__pending_idle(struct sheaf__pending *pending);
/* Of a collective that began at `start` and took `took`: the time before the member waited. */
uint64_t sheaf__pending_hidden(uint64_t start, uint64_t took);

#endif
