/* Where the time of a CPU backend's graphs goes, by op: SHEAF_CPU_PROFILE=1.
 *
 * Member 0 of a team reads the clock after each node, so a node's time has the wait for its slowest
 * member in it; small nodes that it does alone cost their own time. One writer, no lock. Without
 * the setting there is no object, and a node costs one test of a pointer. */
#ifndef SHEAF_CPU_DEVICE_PROFILE_H
#define SHEAF_CPU_DEVICE_PROFILE_H

#include "sheaf/tensor.h"

struct sheaf__cpu_profile;

/* NULL if SHEAF_CPU_PROFILE is unset, empty or 0, or if there is no memory for it. */
struct sheaf__cpu_profile *sheaf__cpu_profile_new(const char *device);
/* Logs the table, in one piece, if anything was computed. Accepts NULL. */
void sheaf__cpu_profile_free(struct sheaf__cpu_profile *profile);

void sheaf__cpu_profile_start(struct sheaf__cpu_profile *profile);
/* The time since the last call belongs to this node. */
void sheaf__cpu_profile_node(struct sheaf__cpu_profile *profile, const struct sheaf_tensor *node);

#endif
