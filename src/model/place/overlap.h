/* Whether prompts go in two chunks, so that one computes while the sums of the other travel. */
#ifndef SHEAF_MODEL_OVERLAP_H
#define SHEAF_MODEL_OVERLAP_H

#include "sheaf/meta.h"

#include "model/file/weights.h"
#include "model/place/policy.h"

/* "auto" (or NULL), "on", "off". INVALID with a text that names the option. */
enum sheaf_status sheaf__overlap_parse(const char *text, enum sheaf_backend_meta_overlap *out);

/* *min_tokens: the least size of a batch that is faster in two chunks, up to n_batch; 0: none is.
 * With CHEAPER it follows from the links that the meta device has measured and from products timed
 * here on each device, some 20 ms; ALWAYS and NEVER measure nothing. The same on every rank.
 * Collective. */
enum sheaf_status sheaf__overlap_choose(enum sheaf_backend_meta_overlap overlap,
                                        const struct sheaf__weights *model,
                                        const struct sheaf__policy *policy,
                                        sheaf_backend_dev_t meta, int64_t n_batch,
                                        int64_t *min_tokens);

/* ---- the arithmetic, for tests ---- */

struct sheaf__overlap_times {
    int64_t n_layer;
    double attention, ffn; /* seconds of the slowest member: half a layer */
    double sum, busy;      /* seconds of the sum behind each half, and of a core for it */
};
/* Share of the time that two chunks save: `whole` is of a batch, `half` of one of its halves. */
double sheaf__overlap_gain(const struct sheaf__overlap_times *whole,
                           const struct sheaf__overlap_times *half);

#endif
