/* The collectives of a group with more than one member.
 *
 * A sum is cut into steps. all_reduce: a step is a chunk of the vector. reduce_scatter: a step is a
 * piece of every block, packed by host and member, so that all members have work. */
#ifndef SHEAF_COMM_COLLECTIVES_H
#define SHEAF_COMM_COLLECTIVES_H

#include "comm/transport/transport.h"

struct sheaf__sum_steps { /* a sum, and how it is cut */
    struct sheaf__call *c;
    struct sheaf_comm *comm;
    const float *src;
    float *dst;
    const size_t *counts; /* NULL: all_reduce */
    size_t n, chunk;      /* floats of a step; of a piece if there are counts */
    uint64_t steps, base; /* base: self->step at the begin */
};

/* How much of `size` moves in step k of pieces of `chunk`. */
static inline size_t sheaf__piece_size(size_t size, uint64_t k, size_t chunk) {
    const size_t from = (size_t)k * chunk;
    return size > from ? sheaf__min_size(size - from, chunk) : 0;
}
/* The same of the members order[first .. end) together: their pieces lie packed in that order. */
static inline size_t sheaf__pieces_size(const struct sheaf_comm *comm, const size_t *sizes,
                                        uint64_t k, size_t chunk, int first, int end) {
    size_t sum = 0;
    for (int i = first; i < end; i++) sum += sheaf__piece_size(sizes[comm->order[i]], k, chunk);
    return sum;
}
/* The lane of step k of a gather. */
static inline int sheaf__gather_lane(uint64_t k) {
    return SHEAF__GATHER_LANE + (int)(k % SHEAF__DEPTH);
}
/* counts: of a reduce_scatter; NULL: all_reduce. */
struct sheaf__sum_steps sheaf__sum_steps(struct sheaf__call *c, const float *src, float *dst,
                                         size_t n, const size_t *counts);
/* Part i of n of a step of `len` floats. */
static inline void sheaf__even_range(size_t len, int n, int i, size_t *lo, size_t *part) {
    const size_t lines = (len + SHEAF__ALIGN - 1) / SHEAF__ALIGN;
    *lo = sheaf__min_size(lines * (size_t)i / (size_t)n * SHEAF__ALIGN, len);
    *part = sheaf__min_size(lines * ((size_t)i + 1) / (size_t)n * SHEAF__ALIGN, len) - *lo;
}
/* Where the pieces of order[first ..  first + n) lie in the packed step k. */
void sheaf__packed_range(const struct sheaf__sum_steps *s, uint64_t k, int first, int n, size_t *lo,
                         size_t *len);
static inline size_t sheaf__step_floats(const struct sheaf__sum_steps *s, uint64_t k) {
    return s->counts ? sheaf__pieces_size(s->comm, s->counts, k, s->chunk, 0, s->comm->n)
                     : sheaf__piece_size(s->n, k, s->chunk);
}
/* The part that a host sums. */
void sheaf__host_range(const struct sheaf__sum_steps *s, uint64_t k, int host, size_t *lo,
                       size_t *len);
/* Makes this member's data of a step visible to its host: in its slot, or where they are. */
void sheaf__load(const struct sheaf__sum_steps *s, uint64_t k);
/* Copies this member's part of a step's result to where it belongs. */
void sheaf__store(const struct sheaf__sum_steps *s, uint64_t k, const float *result);
/* Floats [lo, lo + len) of all members of this host at self->step, summed to dst. */
enum sheaf_status sheaf__sum_members(const struct sheaf__sum_steps *s, size_t lo, size_t len,
                                     float *dst);

/* All members on one host. */
enum sheaf_status sheaf__all_reduce_here(const struct sheaf__sum_steps *s);
enum sheaf_status sheaf__reduce_scatter_here(const struct sheaf__sum_steps *s);
/* Several hosts. */
enum sheaf_status sheaf__reduce_hosts(const struct sheaf__sum_steps *s);

/* ---- additions (sum.c) ---- */
/* dst [n] = ((src[0] + src[1]) + src[2]) + ..., of two sources or more; dst may be one of them. */
void sheaf__sum(float *dst, const float *const *src, int n_src, size_t n);
/* own [n] = theirs [n] = src[0] + src[1]; theirs was written by another core. Each of the two may
 * be a source. */
void sheaf__sum_both(float *own, float *theirs, const float *const *src, size_t n);
/* memcpy between caches. */
void sheaf__copy(void *dst, const void *src, size_t bytes);

/* ---- data moves (gather.c) ---- */
enum sheaf_status sheaf__all_gather(struct sheaf__call *c, const uint8_t *send, uint8_t *recv,
                                    const size_t *bytes);
/* Bytes of a block that move in a step. Between hosts with several members all pieces of a step fit
 * the result; the pieces of a small gather (frames) are the blocks. */
size_t sheaf__gather_chunk(const struct sheaf_comm *comm, bool frames);
enum sheaf_status sheaf__broadcast(struct sheaf__call *c, uint8_t *data, size_t size, int root);
enum sheaf_status sheaf__barrier(struct sheaf__call *c);

#endif
