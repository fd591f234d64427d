/* Counts allocations of the whole process, and lets one fail: malloc and its kin of the program stand before those of the
 * C library. For one file of a program. Sanitizers have their own, so that nothing is counted then
 * (sanitizer.h). */
#ifndef SHEAF_TESTS_COUNT_ALLOCATIONS_H
#define SHEAF_TESTS_COUNT_ALLOCATIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

static atomic_bool counts_allocations __attribute__((unused));
static atomic_long n_allocations __attribute__((unused)); /* while that was set */
/* While it is set, the allocation of this number from now fails; 0: none. */
static atomic_long failing __attribute__((unused));

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
/* False: it fails. */
static bool count_allocation(void) {
    if (!counts_allocations) return true;
    n_allocations++;
    return !failing || --failing;
}
void *malloc(size_t n) { return count_allocation() ? __libc_malloc(n) : NULL; }
void *calloc(size_t n, size_t size) { return count_allocation() ? __libc_calloc(n, size) : NULL; }
void *realloc(void *p, size_t n) { return count_allocation() ? __libc_realloc(p, n) : NULL; }
void *aligned_alloc(size_t alignment, size_t n) {
    return count_allocation() ? __libc_memalign(alignment, n) : NULL;
}
#endif

#endif
