/* What tests may do to the inside of comm: functions, which only the files that hold them and tests
 * include, and settings.
 *
 *   SHEAF_COMM_TRANSPORT  mpi: every rank is a host of its own; hosts:0,1,0,1: ranks with the same
 *                         number share memory
 *   SHEAF_COMM_DELAY_US   delays messages between hosts
 *   SHEAF_COMM_ONE_SHOT   sums of more bytes go in parts, whatever was measured
 *   SHEAF_COMM_OWNERS     all sums that fit go through so many hosts that add */
#ifndef SHEAF_COMM_TESTING_H
#define SHEAF_COMM_TESTING_H

#include "sheaf/comm.h"

/* Called at each entry of a phase on the main thread, if set: breaks a rank at a certain place. */
extern void (*sheaf__phase_hook)(enum sheaf_phase phase, const char *what);
/* The next step and collective have the numbers after `number`, which is even. All ranks, with a
 * barrier of the world before the next collective. */
void sheaf__comm_start_at(struct sheaf_comm *comm, uint64_t number);

#endif
