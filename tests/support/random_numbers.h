/* The same random numbers in every run: a generator of 64 bits by shifts (xorshift, Marsaglia 2003). */
#ifndef SHEAF_TESTS_RANDOM_NUMBERS_H
#define SHEAF_TESTS_RANDOM_NUMBERS_H

#include <stdint.h>

static uint64_t rng = 0x9e3779b97f4a7c15u;
static inline uint32_t random_u32(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 32);
}
/* From -1 to 1. */
static inline float random_float(void) { return (float)random_u32() / 2147483648.0f - 1.0f; }

#endif
