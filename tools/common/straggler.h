/* Which rank the others of a job waited for, from the times that each rank waited in collectives. */
#ifndef SHEAF_TOOLS_STRAGGLER_H
#define SHEAF_TOOLS_STRAGGLER_H

/* The others waited wait_s seconds longer for this rank than it did for them, on average: `share` of
 * the time of the work. rank -1: no rank held the others up for a fifth of it. */
struct straggler {
    int rank;
    double wait_s, share;
};

/* wait_s [n]: seconds in which each rank waited for the slowest; below 0: a rank without devices,
 * which is left out. seconds: of the work. */
struct straggler straggler_find(const double *wait_s, int n, double seconds);

#endif
