/* Hashes for tables and for comparing what ranks have; not for security.
 *
 * sheaf__hash_bytes is FNV-1a with 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/). sheaf__mix
 * is a multiplication by 2^64 / golden ratio and a shift that brings the high bits down. */
#ifndef SHEAF_BASE_HASH_H
#define SHEAF_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* h with one more number in it. The order of the numbers counts. */
static inline uint64_t sheaf__mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

/* h with more bytes in it; h 0 begins a new hash. */
static inline uint64_t sheaf__hash_bytes(uint64_t h, const void *data, size_t size) {
    const uint8_t *p = (const uint8_t *)data;
    if (!h) h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < size; i++) h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

/* h with n more words in it, in four lanes: their products do not wait for each other. */
static inline uint64_t sheaf__hash_words(uint64_t h, const uint64_t *word, int n) {
    uint64_t lane[4] = {h, 1, 2, 3};
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int k = 0; k < 4; k++) lane[k] = sheaf__mix(lane[k], word[i + k]);
    }
    for (int k = 0; i < n; i++, k++) lane[k] = sheaf__mix(lane[k], word[i]);
    return sheaf__mix(sheaf__mix(lane[0], lane[1]), sheaf__mix(lane[2], lane[3]));
}

/* The place of an object's address in a table of n_slots, a power of two. */
static inline size_t sheaf__hash_address(const void *address, size_t n_slots) {
    return (size_t)(((uint64_t)(uintptr_t)address >> 4) * 0x9E3779B97F4A7C15u >> 20) &
           (n_slots - 1);
}

/* The next of a sequence of pseudo-random numbers (splitmix64, Steele, Lea and Flood 2014). Any
 * first state will do. */
static inline uint64_t sheaf__random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

#endif
