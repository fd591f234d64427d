/* What a link costs, and how long a collective over it takes: one struct and one formula for the
 * group that measures its links, the device that overlaps sums with computing, and tools that
 * predict. Integers, so that all ranks get the same numbers from the same link.
 *
 * A collective of B bytes (of the whole tensor) between n sides takes at least
 *   all-reduce               min(a + (n-1) B b,  2 (a + (n-1)/n B b))   whole, or in parts
 *   gather, reduce-scatter   a + (n-1)/n B b
 * with a latency and b time of a byte, while all sides exchange with all. */
#ifndef SHEAF_LINK_H
#define SHEAF_LINK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_link {
    int n;              /* sides: members of the largest host, or hosts. Below 2: no link */
    int64_t latency_ns; /* a; 0: not measured */
    int64_t byte_ps;    /* b, picoseconds; 0: not measured */
};

/* Nanoseconds; 0 if n is below 2. At most INT64_MAX / 1024, so that times can be added up. */
int64_t sheaf_link_all_reduce_ns(const struct sheaf_link *link, int64_t bytes);
int64_t sheaf_link_gather_ns(const struct sheaf_link *link, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
