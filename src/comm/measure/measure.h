/* How fast the links of a group are, and the choice of algorithms that follows. */
#ifndef SHEAF_COMM_MEASURE_H
#define SHEAF_COMM_MEASURE_H

#include "comm/transport/comm.h"

/* Collective over the world: latency and rate between the hosts, and what follows for the choice of
 * algorithm, the same on every rank. */
enum sheaf_status sheaf__measure_hosts(struct sheaf_comm *comm);

#endif
