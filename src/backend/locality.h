/* The place of this process among the ranks of its host. */
#ifndef SHEAF_BACKEND_LOCALITY_H
#define SHEAF_BACKEND_LOCALITY_H

#include "sheaf/backend.h"

/* Where this process stands among the ranks of its host; set by the world before devices are
 * listed, read by the CPU backend to share cores. */
void sheaf__set_locality(int local_rank, int local_size);
/* Has it been set, which a launcher's ranks do? 0 of 1 otherwise. */
bool sheaf__get_locality(int *local_rank, int *local_size);

#endif
