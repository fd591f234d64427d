/* The place of this process among the ranks of its host. */
#ifndef SHEAF_BACKEND_LOCALITY_H
#define SHEAF_BACKEND_LOCALITY_H

#include "sheaf/backend.h"

/* Where this process stands among the ranks of its host; set by the world before devices are
 * listed, read by the CPU backend to share cores. 0 of 1 by default. */
void sheaf__set_locality(int local_rank, int local_size);
void sheaf__get_locality(int *local_rank, int *local_size);

#endif
