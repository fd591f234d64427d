/* The graph that a model would compute, without memory: shapes to plan with, nothing to run. */
#ifndef SHEAF_MODEL_OUTLINE_H
#define SHEAF_MODEL_OUTLINE_H

#include "sheaf/graph.h"

#include "model/file/weights.h"
#include "model/run/kv_cache.h"

struct sheaf__outline {
    struct sheaf_context *ctx;
    struct sheaf__kv_cache *cache; /* without memory */
    struct sheaf_cgraph *graph;    /* logits of the last token */
    int64_t n_tokens, n_kv;
    int64_t n_layer;
    int64_t *layer; /* [nodes] -1: before the first layer, n_layer: after the last */
};

/* n_tokens evaluated at once, the last of which sees n_kv >= n_tokens rows of the cache. The model
 * need not be loaded, and must outlive the outline. */
enum sheaf_status sheaf__outline_new(const struct sheaf__weights *model, int64_t n_tokens,
                                     int64_t n_kv, enum sheaf_type kv_type,
                                     struct sheaf__outline **out);
void sheaf__outline_free(struct sheaf__outline *outline); /* accepts NULL */

#endif
