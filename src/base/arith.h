/* Checked arithmetic on sizes and counts, which may come from files, peers or arguments. */
#ifndef SHEAF_BASE_ARITH_H
#define SHEAF_BASE_ARITH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *out = a * b, *out = a + b; false on overflow. */
static inline bool sheaf__mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool sheaf__add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* n rounded up to a multiple of a > 0. The caller knows that the result fits. */
static inline size_t sheaf__align_up(size_t n, size_t a) { return (n + a - 1) / a * a; }

static inline size_t sheaf__min_size(size_t a, size_t b) { return a < b ? a : b; }

/* GiB for messages with two decimals: what is needed is rounded up and what is free down, so a need that is greater
 * reads as greater. */
static inline double sheaf__gib_needed(size_t bytes) {
    const size_t gib = (size_t)1 << 30;
    return (double)(bytes / gib) + (double)((bytes % gib * 100 + gib - 1) / gib) / 100;
}
static inline double sheaf__gib_free(size_t bytes) {
    const size_t gib = (size_t)1 << 30;
    return (double)(bytes / gib) + (double)(bytes % gib * 100 / gib) / 100;
}

/* Greatest common divisor of two numbers >= 0; gcd(0, n) = n. */
static inline int64_t sheaf__gcd(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
