/* How fast each member is, for --split auto. */
#ifndef SHEAF_MODEL_SPEED_H
#define SHEAF_MODEL_SPEED_H

#include "sheaf/backend.h"

#include "weights.h"

/* Times products of one token with a matrix of the model's own type and width on each local device
 * and exchanges the results: speeds [n] in matrix bytes a second, the same on every rank.
 * Collective. */
enum sheaf_status sheaf__speed_measure(const struct sheaf__model *model,
                                       const sheaf_backend_dev_t *members, int n, double *speeds);

#endif
