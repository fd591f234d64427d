/* Arrays that grow. The owner holds a pointer and a capacity, and frees the pointer with free(). */
#ifndef SHEAF_BASE_ARRAY_H
#define SHEAF_BASE_ARRAY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for `want` items of `item` bytes: `array` is the address of the owner's pointer, *cap
 * its capacity in items. At least doubles, so appending is linear on the whole. false: out of
 * memory, and nothing has changed. */
static inline bool sheaf__grow(void *array, size_t *cap, size_t want, size_t item) {
    if (want <= *cap) return true;
    size_t n = *cap < 8 ? 8 : *cap, bytes;
    while (n < want) n = n <= SIZE_MAX / 2 ? 2 * n : want;
    if (__builtin_mul_overflow(n, item, &bytes)) return false;
    void *old, *grown;
    memcpy(&old, array, sizeof old); /* the owner's pointer may have any type */
    if (!(grown = realloc(old, bytes))) return false;
    memcpy(array, &grown, sizeof grown);
    *cap = n;
    return true;
}

#endif
