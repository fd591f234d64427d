/* From the logits where they lie to candidates for a sampler.
 *
 * The logits of a meta device are cut over the vocabulary: each rank selects the best of its own
 * rows, and only these lists travel. */
#ifndef SHEAF_MODEL_LOGITS_H
#define SHEAF_MODEL_LOGITS_H

#include "sheaf/backend.h"
#include "sheaf/candidates.h"
#include "sheaf/tensor.h"

struct sheaf__logits;

/* Scratch for selections of k candidates out of n_vocab. */
enum sheaf_status sheaf__logits_new(int64_t n_vocab, size_t k, struct sheaf__logits **out);
void sheaf__logits_free(struct sheaf__logits *l); /* accepts NULL */

/* The best of a row of a result [n_vocab, rows] of any backend, on every rank the same list, best
 * first; valid until the next call. `backend`: that computed it, the same in every call. with_sum:
 * also the normaliser. *stop is this rank's wish to stop and becomes that of any rank. Collective
 * if the world has several ranks. Allocates only when the result is another one, on a device with
 * memory of its own. */
enum sheaf_status sheaf__logits_select(struct sheaf__logits *l, sheaf_backend_t backend,
                                       const struct sheaf_tensor *logits, int64_t row,
                                       bool with_sum, bool *stop,
                                       const struct sheaf_candidates **out);

#endif
