/* The monotonic clock: the time that all deadlines and statistics are measured in. */
#ifndef SHEAF_BASE_CLOCK_H
#define SHEAF_BASE_CLOCK_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

/* Nanoseconds since some moment before the process; the same moment for all processes of a host. */
static inline uint64_t sheaf__time_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The same in seconds. */
static inline double sheaf__seconds(void) { return 1e-9 * (double)sheaf__time_ns(); }

/* Sleeps for about so long; a signal ends it early. */
static inline void sheaf__nap(uint64_t ns) {
    const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&time, NULL);
}

/* Between two looks of a thread that has waited for so long: the longer, the more it sleeps. */
static inline void sheaf__back_off(uint64_t waited_ns) {
    if (waited_ns > 1000000000u)
        sheaf__nap(500000);
    else if (waited_ns > 20000000u)
        sheaf__nap(50000);
    else
        sched_yield();
}

#endif
