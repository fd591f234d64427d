/* What tests may do to the inside of this folder. Nothing else includes it but the files that hold
 * the functions. */
#ifndef SHEAF_COMM_TESTING_H
#define SHEAF_COMM_TESTING_H

#include "sheaf/comm.h"

/* Called at each entry of a phase on the main thread, if set: breaks a rank at a certain place. */
extern void (*sheaf__phase_hook)(enum sheaf_phase phase, const char *what);
/* The next step and collective have the numbers after `number`, which is even. All ranks, with a
 * barrier of the world before the next collective. */
void sheaf__comm_start_at(struct sheaf_comm *comm, uint64_t number);

#endif
