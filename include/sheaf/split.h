/* Split states: how a tensor lies over the members of a meta device.
 *
 *   MIRRORED   every member has all of it
 *   PARTIAL    every member has an F32 addend of the same shape; the sum is the value
 *   AXIS_0..3  that dimension is cut: member j owns an ordered list of index intervals
 *
 * A cut dimension is a sum of segments; each segment is outer x units x inner elements, major to
 * minor, and is divided in whole units. Member j owns units [first[j], first[j] + count[j]) of
 * every one of the `outer` repeats:
 *
 *   ne[axis] = sum over segments of  outer * U * inner,   U = units of the segment
 *   interval of (segment, repeat o, member j):
 *     start = base + (o * U + first[j]) * inner
 *     length = count[j] * inner
 *
 * A partition has first[j] = count[0] + ... + count[j-1] and leaves nothing out. An overlapping cut
 * (more members than K/V heads) repeats units: its owners hold equal copies. count[j] may be 0: an
 * empty slice. Example: a fused qkv of 8 query and 2 + 2 K/V heads of 64 elements over 2 members is
 * three segments with outer 1, inner 64 and counts {4,4}, {1,1}, {1,1}.
 *
 * ggml's form {axis, ne[n_segments * n_members], nr[n_segments]} is this with `inner` folded into
 * ne (ne = count * inner) and nr = outer.
 *
 * Ownership: states are made by sheaf_split_state_new and relatives, freed by
 * sheaf_split_state_free; immutable once shared, so readable from any thread. */
#ifndef SHEAF_SPLIT_H
#define SHEAF_SPLIT_H

#include "sheaf/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sheaf_split_axis {
    SHEAF_SPLIT_AXIS_0 = 0,
    SHEAF_SPLIT_AXIS_1 = 1,
    SHEAF_SPLIT_AXIS_2 = 2,
    SHEAF_SPLIT_AXIS_3 = 3,
    SHEAF_SPLIT_AXIS_MIRRORED = 10,
    SHEAF_SPLIT_AXIS_PARTIAL = 11,
};
/* "0" to "3", "MIRRORED", "PARTIAL"; "UNKNOWN" for anything else. */
const char *sheaf_split_axis_name(enum sheaf_split_axis axis);

/* What a step of a plan does. */
enum sheaf_split_step_kind {
    SHEAF_SPLIT_STEP_NODE, /* every member computes its slice of a node */
    /* all_reduce: PARTIAL to MIRRORED; reduce_scatter: PARTIAL to a cut, block j of the sum is
     * member j's slice; all_gather: a cut to MIRRORED */
    SHEAF_SPLIT_STEP_COLLECTIVE,
    SHEAF_SPLIT_STEP_SLICE,    /* local: MIRRORED to a cut */
    SHEAF_SPLIT_STEP_KEEP_ONE, /* local: MIRRORED to PARTIAL; member 0 keeps it, others zero */
    SHEAF_SPLIT_STEP_KIND_COUNT,
};

struct sheaf_split_segment {
    int64_t outer;  /* repeats of the whole run of units, >= 1 */
    int64_t inner;  /* elements of one unit, >= 1 */
    int64_t units;  /* U: units in the segment, over all members */
    int64_t *first; /* [n_members] first unit of each member */
    int64_t *count; /* [n_members] units of each member, may be 0 */
};

struct sheaf_split_state {
    enum sheaf_split_axis axis;
    int n_members;
    int n_segments; /* 0 unless axis is 0..3 */
    struct sheaf_split_segment *segments;
};

/* All zero counts; the caller fills the segments. One allocation. NULL if out of memory. */
struct sheaf_split_state *sheaf_split_state_new(enum sheaf_split_axis axis, int n_members,
                                                int n_segments);
struct sheaf_split_state *sheaf_split_state_mirrored(int n_members);
struct sheaf_split_state *sheaf_split_state_partial(int n_members);
/* One segment, outer 1: units of `inner` elements, a partition with these counts. NULL also if their
 * sum overflows. */
struct sheaf_split_state *sheaf_split_state_cut(enum sheaf_split_axis axis, int n_members,
                                                const int64_t *counts, int64_t inner);
struct sheaf_split_state *sheaf_split_state_copy(const struct sheaf_split_state *state);
void sheaf_split_state_free(struct sheaf_split_state *state); /* accepts NULL */

/* From and to ggml's form. ne [n_segments][n_members] in elements, nr [n_segments] repeats; inner
 * is taken as the greatest common divisor of a segment's ne. */
enum sheaf_status sheaf_split_state_from_ne(enum sheaf_split_axis axis, int n_members,
                                            int n_segments, const int64_t *ne, const uint32_t *nr,
                                            struct sheaf_split_state **out);
enum sheaf_status sheaf_split_state_to_ne(const struct sheaf_split_state *state, int64_t *ne,
                                          uint32_t *nr);

/* Same axis and the same intervals for every member, however they are written. False, too, if a
 * segment's numbers are wrong: below their least, too large, or a member's units outside of it. */
bool sheaf_split_state_equal(const struct sheaf_split_state *a, const struct sheaf_split_state *b);
/* Does the state fit a tensor of this shape and type: sums, bounds, whole blocks on axis 0. Sets
 * the error text. */
enum sheaf_status sheaf_split_state_check(const struct sheaf_split_state *state,
                                          const struct sheaf_tensor *tensor);
/* Has every index exactly one owner? False also for what sheaf_split_state_equal calls wrong. */
bool sheaf_split_state_is_partition(const struct sheaf_split_state *state);
/* The next three are for states that sheaf_split_state_check has found right.
 *
 * Extent of the cut dimension on a member; for MIRRORED and PARTIAL the whole `ne`. */
int64_t sheaf_split_state_extent(const struct sheaf_split_state *state, int member, int64_t ne);
/* Shape of the slice of `member`. */
void sheaf_split_state_local_ne(const struct sheaf_split_state *state,
                                const int64_t ne[SHEAF_MAX_DIMS], int member,
                                int64_t local[SHEAF_MAX_DIMS]);
/* Index intervals of a member along the cut axis, in order: writes at most cap pairs {start,
 * length} and returns how many there are (adjacent ones are joined, empty ones left out). 0 for
 * MIRRORED and PARTIAL. */
int64_t sheaf_split_state_intervals(const struct sheaf_split_state *state, int member,
                                    int64_t *pairs, int64_t cap);
/* "M", "P", "S0 {2048,2048}", "S0 {4,4}x64+{1,1}x64+{1,1}x64"; five and more members with the same
 * in a row are one, "S0 {96(x16)}". Cut to n bytes, always terminated. Returns buf. */
char *sheaf_split_state_print(const struct sheaf_split_state *state, char *buf, size_t n);

#ifdef __cplusplus
}
#endif
#endif
