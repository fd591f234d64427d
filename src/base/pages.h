/* Advice to the system about the pages of a range of memory. It may be refused, and no result depends on it. */
#ifndef SHEAF_BASE_PAGES_H
#define SHEAF_BASE_PAGES_H

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arith.h"

/* madvise of the pages that lie in the range as a whole. */
static inline void sheaf__pages_advise(void *data, size_t size, int advice) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), at = (size_t)(uintptr_t)data;
    const size_t first = sheaf__align_up(at, page), end = (at + size) / page * page;
    if (first < end) madvise((char *)data + (first - at), end - first, advice);
}

/* Asks for large pages under memory that nothing has touched: a first touch costs a twentieth of what small pages
 * cost, and streams are read faster. Wherever it begins, a range of two large pages (2 MiB) has a whole one. */
static inline void sheaf__pages_large(void *data, size_t size) {
    enum { FROM = 4 << 20 };
    if (size >= FROM) sheaf__pages_advise(data, size, MADV_HUGEPAGE);
}

#endif
