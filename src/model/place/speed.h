/* How fast the members are, for --split auto, and the links between them. */
#ifndef SHEAF_MODEL_SPEED_H
#define SHEAF_MODEL_SPEED_H

#include "sheaf/backend.h"

#include "model/file/weights.h"

/* Times products of one token with a matrix of the model's own type and width on each local device
 * and exchanges the results: speeds [n] in matrix bytes a second, the same on every rank.
 * Collective. */
enum sheaf_status sheaf__speed_measure(const struct sheaf__weights *model,
                                       const sheaf_backend_dev_t *members, int n, double *speeds);

/* A collective of n bytes takes latency + n * per_byte seconds. */
struct sheaf__link_speed {
    double latency, per_byte; /* of an all-reduce, n in bytes of the whole tensor */
    char transport[64];
};
/* Does every rank drive exactly one of the members, and are there at least two? */
bool sheaf__speed_has_links(const sheaf_backend_dev_t *members, int n);
/* A line through the median times of a small and a large all-reduce over the members, for which
 * sheaf__speed_has_links holds. The same on every rank. Collective. */
enum sheaf_status sheaf__speed_measure_link(const sheaf_backend_dev_t *members, int n,
                                            struct sheaf__link_speed *out);

#endif
