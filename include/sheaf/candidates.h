/* The best tokens of a slice of the vocabulary, and what a sampler must know of the rest.
 *
 * Each rank holds the logits of its part of the vocabulary, selects its best K, and sends them; the
 * merge of all parts' lists is exactly the selection that the whole vocabulary would have given,
 * with the whole normaliser: sum over all v of exp(logit_v - max) . Order: higher logit first, of
 * equal logits the lower id. exp is our own, so that a machine's math library does not matter.
 *
 * No function here allocates, except sheaf_candidates_new. */
#ifndef SHEAF_CANDIDATES_H
#define SHEAF_CANDIDATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_candidate {
    int32_t id;
    float logit;
};

struct sheaf_candidates {
    size_t cap; /* K: how many are kept */
    size_t n;   /* how many there are */
    /* Of all logits seen, kept or not. */
    size_t n_seen;
    float max;                    /* -INFINITY if none was seen */
    double sum_exp;               /* of exp(logit - max); 0 if it was not asked for */
    struct sheaf_candidate *data; /* [cap], best first */
};

enum sheaf_status sheaf_candidates_new(size_t cap, struct sheaf_candidates **out);
void sheaf_candidates_free(struct sheaf_candidates *c); /* accepts NULL */
void sheaf_candidates_clear(struct sheaf_candidates *c);

/* The best of logits [n], whose ids are first_id, first_id + 1, ... n may be 0. with_sum: also the
 * normaliser (greedy needs none). INVALID if a logit is not a number or is +infinity; -infinity is
 * a token that cannot be. */
enum sheaf_status sheaf_candidates_select(struct sheaf_candidates *c, const float *logits, size_t n,
                                          int32_t first_id, bool with_sum);

/* Adds another part's list; any order of parts gives the same list. */
void sheaf_candidates_merge(struct sheaf_candidates *c, const struct sheaf_candidates *part);

/* For the wire, little-endian: a list of at most `cap` in a block of fixed size. */
size_t sheaf_candidates_packed_size(size_t cap);
void sheaf_candidates_pack(const struct sheaf_candidates *c, void *block);
/* Merges a packed list of a peer into c. INVALID if the block is not such a list. */
enum sheaf_status sheaf_candidates_merge_packed(struct sheaf_candidates *c, const void *block,
                                                size_t size);
#ifdef __cplusplus
}
#endif
#endif
