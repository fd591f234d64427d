/* Comparisons for qsort: numbers, the smallest first; and quantiles of measured times. */
#ifndef SHEAF_BASE_SORT_H
#define SHEAF_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

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

/* Of n > 0 numbers the one that k of `of` parts are below; sorts them. */
static inline uint64_t sheaf__quantile(uint64_t *x, size_t n, size_t k, size_t of) {
    qsort(x, n, sizeof *x, sheaf__by_u64);
    return x[n * k / of];
}
static inline uint64_t sheaf__median(uint64_t *x, size_t n) { return sheaf__quantile(x, n, 1, 2); }

static inline double sheaf__median_of_reals(double *x, size_t n) {
    qsort(x, n, sizeof *x, sheaf__by_double);
    return x[n / 2];
}

#endif
