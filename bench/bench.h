/* Shared by the benchmarks: clocks, and the end of a program that cannot go on.
 * Header only. */
#ifndef SHEAF_BENCH_BENCH_H
#define SHEAF_BENCH_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "sheaf/status.h"

/* p; if it is NULL, prints the library's last error and ends the program. */
static inline void *must(void *p) {
    if (!p) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        exit(1);
    }
    return p;
}
static inline void check(enum sheaf_status status) {
    if (status) must(NULL);
}

/* Of this process, so that other work on the machine is not counted, except what it takes of the
 * caches. */
static inline double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
