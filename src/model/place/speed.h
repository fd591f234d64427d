/* How fast the members are, for --split auto, and what the links between them cost. */
#ifndef SHEAF_MODEL_SPEED_H
#define SHEAF_MODEL_SPEED_H

#include "sheaf/backend.h"
#include "sheaf/comm.h"

#include "model/file/weights.h"

/* Times products of one token with a matrix of the model's own type and width on each local device
 * and exchanges the results: speeds [n] in 10^9 matrix bytes a second, the same on every rank.
 * Collective. */
enum sheaf_status sheaf__speed_measure(const struct sheaf__weights *model,
                                       const sheaf_backend_dev_t *members, int n, double *speeds);

/* A group of the members for asking what their links cost (sheaf_comm_get_level,
 * sheaf_comm_bound_ns): shared memory and hosts are measured. Collective; the caller frees it with
 * sheaf_comm_free. */
enum sheaf_status sheaf__speed_links(const sheaf_backend_dev_t *members, int n,
                                     struct sheaf_comm **out);

#endif
