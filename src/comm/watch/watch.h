/* The watch over the other ranks, as start.c uses it. A thread of each rank (guard.c) sees ranks of
 * this host die, hears those of others (links.c), ends waits that have no end of their own, and
 * tells all ranks of a failure. The data plane does not know it: it learns of failures from the
 * record (world.h). All calls from the main thread. */
#ifndef SHEAF_COMM_WATCH_H
#define SHEAF_COMM_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "sheaf/status.h"

/* Starts the thread; before MPI starts, which may take as long as SHEAF_PHASE_START. */
enum sheaf_status sheaf__watch_start(void);
/* Collective: from here on the other ranks are watched. */
enum sheaf_status sheaf__watch_connect(void);
/* At the very end: tells the others that this rank need not be missed, and waits until they have
 * said so too, have failed, or the time to finalize is over. */
void sheaf__watch_farewell(void);
/* The way out after a failure: one rank prints it, the others give it the time; what the job would
 * leave is removed, ranks that cannot end themselves are ended. */
void sheaf__watch_leave_failed(void);
/* Ends the thread and the connections; may be called without a start. False: the thread does not
 * end, and what it uses must stay: the connections, the board, the names of hosts. */
bool sheaf__watch_stop(void);

/* Around an MPI_Init of ours. Signals of a crash for which it has installed handlers: the rank is
 * named before they run, and ends within 3 s, whatever they do. sheaf__watch_stop and
 * sheaf__watch_leave_failed put MPI's handlers back. */
void sheaf__crash_before_mpi(void);
void sheaf__crash_after_mpi(void);

/* After MPI_Init: which names MPI would leave in /dev/shm, for the watch, which removes them. */
void sheaf__launcher_note_names(void);

/* The job that the launcher has started, as its variables say. */
struct sheaf__launch {
    int size, rank;     /* 1 and 0 if they say nothing; both of the same launcher */
    const char *missed; /* why an MPI library may not have joined it, and what to do, as the end of
                           a sentence */
};
struct sheaf__launch sheaf__launcher_job(void);

/* Before MPI_Finalize: returns when the launcher answers, at the latest after limit_ns, or when the
 * job fails or is told to end. PMIx gives a launcher 2 s to hear that a rank has finalized; one
 * that does not run in that time reports the rank as lost, with status 1 for the job. */
void sheaf__launcher_await(uint64_t limit_ns);

#endif
