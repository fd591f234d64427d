/* The guard's thread (guard.c), as the main thread's side of the watch (watch.c) uses it. */
#ifndef SHEAF_COMM_GUARD_H
#define SHEAF_COMM_GUARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { SHEAF__GUARD_STATUS = 1 /* of a process that the guard ends */ };

/* In place of a descriptor: the kernel gives none, and silence alone tells of that rank's end; the
 * rank was seen to die. */
enum { SHEAF__NO_PIDFD = -1, SHEAF__DEAD = -2 };

/* What the two threads share. The main thread fills in what is not atomic before `watching`. */
struct sheaf__guard {
    pthread_t thread;
    bool runs;
    int wake;
    /* of the other ranks of the share group; the guard closes that of one that has died */
    _Atomic int *pidfds;
    int *ranks, n_pidfds;
    /* watching: connections are served; complete: and processes of the share group watched */
    _Atomic bool watching, complete, stop, leaving, spread, farewell;
    _Atomic bool farewell_arrived, ended;
};
extern struct sheaf__guard sheaf__guard;

/* Are the other ranks watched yet? Those of other hosts are from here on. */
static inline bool sheaf__guard_watches(void) { return atomic_load(&sheaf__guard.watching); }
/* How many of this host are. */
static inline int sheaf__guard_n_neighbours(void) {
    return atomic_load(&sheaf__guard.complete) ? sheaf__guard.n_pidfds : 0;
}
void *sheaf__guard_run(void *arg);
/* Wakes the thread; any thread, and signal handlers. */
void sheaf__guard_kick(void);
/* Ends the ranks of this host that are stopped and cannot exit on their own. */
void sheaf__guard_end_silent(uint64_t now);
/* Is a rank lost that cannot exit on its own, or does the launcher leave ranks running? */
bool sheaf__guard_needs_abort(uint64_t now);

#endif
