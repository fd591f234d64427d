/* Comparisons for qsort: numbers, the smallest first. */
#ifndef SHEAF_BASE_SORT_H
#define SHEAF_BASE_SORT_H

#include <stdint.h>

static inline int sheaf__by_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static inline int sheaf__by_i64(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static inline int sheaf__by_double(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
