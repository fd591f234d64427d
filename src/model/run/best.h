/* The best of a row of logits, found on the device whose memory it lies in: only these come to the
 * host, not the row. */
#ifndef SHEAF_MODEL_BEST_H
#define SHEAF_MODEL_BEST_H

#include "sheaf/backend.h"
#include "sheaf/candidates.h"

enum { SHEAF__BEST_MOST = 64 }; /* candidates; a longer list takes longer than the row's copy */

struct sheaf__best;
void sheaf__best_free(struct sheaf__best *best); /* accepts NULL; before the backend is freed */

/* t was computed by what the backend has in its queue: if t, its memory and shape are those of the
 * last selection, and that was taken, the same is submitted for it. */
void sheaf__best_follow(struct sheaf__best *best, const struct sheaf_tensor *t); /* accepts NULL */

/* Fills c with its `cap` best of a row of t, F32 [n, rows] in memory of the backend's device, as
 * sheaf_candidates_select without the normaliser does with first_id 0. *best: NULL before the first
 * call; belongs to the backend. *done false: not here, look at the row itself, where cap is larger
 * than SHEAF__BEST_MOST, the device lacks an op or the order of ties (sheaf/backend-impl.h), or the
 * row may hold what is no logit. What follow has submitted must be done, and is taken. Allocates
 * only when t, its memory, its shape, row or cap change. */
enum sheaf_status sheaf__best_select(struct sheaf__best **best, sheaf_backend_t backend,
                                     const struct sheaf_tensor *t, int64_t row,
                                     struct sheaf_candidates *c, bool *done);

#endif
