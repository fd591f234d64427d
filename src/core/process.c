/* Facts about this process: clock, settings from the environment, its place among the ranks of the
 * host. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "core/internal.h"

static int local_rank = 0, local_size = 1;

void sheaf__set_locality(int rank, int size) {
    local_rank = rank;
    local_size = size;
}

void sheaf__get_locality(int *rank, int *size) {
    *rank = local_rank;
    *size = local_size;
}

uint64_t sheaf__time_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

enum sheaf_status sheaf__env_int(const char *name, long min, long max, long *out) {
    const char *text = getenv(name);
    if (!text) return SHEAF_STATUS_SUCCESS;
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (end == text || *end || errno || v < min || v > max) {
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "environment variable %s is '%s'; it takes a whole number from %ld to %ld", name, text,
            min, max);
    }
    *out = v;
    return SHEAF_STATUS_SUCCESS;
}
