/* Which rank the others of a job waited for, from the times that each rank counted. */
#ifndef SHEAF_TOOLS_STRAGGLER_H
#define SHEAF_TOOLS_STRAGGLER_H

#include "sheaf/meta.h"

/* What a rank counted over the work, as sheaf_backend_meta_stats has it. A rank without devices
 * takes part in no collective. */
struct rank_times {
    uint64_t compute_ns, collective_ns, wait_ns, hidden_ns, stalled_ns;
    uint64_t n_collectives, collective_bytes;
};
void rank_times_add(struct rank_times *sum, const struct rank_times *t);
struct rank_times rank_times_of(const struct sheaf_backend_meta_stats *stats);
/* Seconds in collectives while the rank did nothing else. */
double rank_times_communication(const struct rank_times *t);
/* The same, and computing. */
double rank_times_busy(const struct rank_times *t);

/* The others stood still wait_s seconds longer for this rank than it did for them, on average:
 * `share` of the time of the work. rank -1: no rank held the others up for a fifth of it. */
struct straggler {
    int rank;
    double wait_s, share;
};

/* first: the times of rank 0; those of the next of n ranks lie `stride` bytes behind. */
struct straggler straggler_find(const struct rank_times *first, size_t stride, int n);

#endif
