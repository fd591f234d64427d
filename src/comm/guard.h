/* The guard: a thread of each rank of a job that needs neither MPI nor a device. It sees ranks of
 * this host die (pidfd), hears the others (heartbeat.h), notices when the main thread stays in a
 * phase beyond its limit, tells other hosts of a failure, and ends the process if the main thread
 * cannot. */
#ifndef SHEAF_COMM_GUARD_H
#define SHEAF_COMM_GUARD_H

#include "core/internal.h"

enum sheaf_status sheaf__guard_start(void); /* before MPI starts */
/* Collective, main thread: from here on the other ranks are watched. */
enum sheaf_status sheaf__guard_watch(void);
void sheaf__guard_stop(void); /* waits for its thread; may be called without a start */
/* Main thread, at the very end: tells the others that this rank need not be missed, and waits until
 * they have said so too, have failed, or the time to finalize is over. */
void sheaf__guard_farewell(void);
/* After this rank took the failure record: tells other hosts, and returns when a lower rank that
 * reports a failure of its own has been heard. Any thread. */
void sheaf__guard_spread(void);
/* Main thread, after a failure: it is on its way out. */
void sheaf__guard_leaving(void);
/* Main thread, after a failure: removes what the job would leave, and ends ranks that cannot end
 * themselves. */
void sheaf__guard_end_job(void);
/* True if this process, and no other, is to print the failure: the first to ask. Before the watch
 * it takes a quarter of a second, and up to ten if the launcher does not answer. `last`: whoever
 * was to do it on another host has had his time. */
bool sheaf__guard_claim(bool last);
bool sheaf__guard_speaks(void); /* the guard noticed it and prints it itself */

/* For heartbeat.c, on the guard's thread. */
void sheaf__guard_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same about a rank that is gone: "has died (...)" and such. */
void sheaf__guard_lost(int rank, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sheaf__hear_failure(int origin, const char *text);
void sheaf__hear_told(int rank); /* another host's rank has printed the failure */
/* On rank 0's host: may `origin`'s speak? The first to ask may. */
bool sheaf__guard_permits(int origin);
void sheaf__hear_permit(bool speak); /* what it answers */

#endif
