/* Control connections between ranks that share no memory: signs of life, what a rank does, alarms,
 * farewells. TCP, served by the guard's thread, without MPI.
 *
 * Two ranks of different share groups are connected if one of them is the first of its group, so
 * every group hears of every rank, also when its first rank or the other group's has died. Sockets
 * listen only while connections are made, on private addresses that the launcher uses, and take
 * only who knows the job's secret. */
#ifndef SHEAF_COMM_HEARTBEAT_H
#define SHEAF_COMM_HEARTBEAT_H

#include <poll.h>

#include "core/internal.h"

/* Collective; main thread, before the guard serves the connections. */
enum sheaf_status sheaf__heartbeat_start(void);
void sheaf__heartbeat_stop(void);

/* The rest is the guard's. */
int sheaf__heartbeat_fds(struct pollfd *fds); /* fds NULL: how many */
void sheaf__heartbeat_serve(const struct pollfd *fds, uint64_t now);
void sheaf__heartbeat_beat(void);
void sheaf__heartbeat_alarm(int origin, const char *text);
/* The same again to rank 0's host, for its answer. False if none of its ranks can be reached. */
bool sheaf__heartbeat_ask(int origin, const char *text);
void sheaf__heartbeat_told(void); /* this host has printed the failure */
void sheaf__heartbeat_farewell(void);
bool sheaf__heartbeat_all_left(void); /* any thread */
/* Silent for `limit`: ends the job. `forgive`: this process itself was away; start again. */
void sheaf__heartbeat_check(uint64_t now, uint64_t limit, bool forgive);
/* Has a rank been lost (its connection broke, or it is silent for longer than `limit`)? */
bool sheaf__heartbeat_lost(uint64_t now, uint64_t limit);

#endif
