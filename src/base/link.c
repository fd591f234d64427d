/* Times of collectives over a link. All products and sums are checked: a time that leaves the range
 * counts as the longest. */
#include "sheaf/link.h"

enum { PS_PER_NS = 1000 };
static const int64_t LONGEST = INT64_MAX / 1024;

static int64_t add(int64_t a, int64_t b) {
    return a >= LONGEST || b >= LONGEST - a ? LONGEST : a + b;
}

static int64_t times(int64_t n, int64_t ns) {
    int64_t product;
    return __builtin_mul_overflow(n, ns, &product) || product > LONGEST ? LONGEST : product;
}

/* Time of so many bytes. Bytes and picoseconds are multiplied in two parts, as their product leaves
 * 64 bits for gigabytes over slow links. */
static int64_t bytes_ns(const struct sheaf_link *link, int64_t bytes) {
    const int64_t rest = times(bytes % PS_PER_NS, link->byte_ps) / PS_PER_NS;
    return add(times(bytes / PS_PER_NS, link->byte_ps), rest);
}

/* The share of them that a side sends, or receives, if each side has an nth. */
static int64_t part_ns(const struct sheaf_link *link, int64_t bytes) {
    const int64_t all = bytes_ns(link, bytes), n = link->n;
    return add(link->latency_ns, all / n * (n - 1) + all % n * (n - 1) / n);
}

int64_t sheaf_link_gather_ns(const struct sheaf_link *link, int64_t bytes) {
    return link->n < 2 ? 0 : part_ns(link, bytes);
}

int64_t sheaf_link_all_reduce_ns(const struct sheaf_link *link, int64_t bytes) {
    if (link->n < 2) return 0;
    const int64_t whole = add(link->latency_ns, times(link->n - 1, bytes_ns(link, bytes)));
    const int64_t parts = times(2, part_ns(link, bytes));
    return whole < parts ? whole : parts;
}
