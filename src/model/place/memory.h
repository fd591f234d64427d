/* How much memory a model takes: the caches of a member, and the values of a plan. */
#ifndef SHEAF_MODEL_MEMORY_H
#define SHEAF_MODEL_MEMORY_H

#include "sheaf/graph.h"
#include "sheaf/meta.h"

#include "model/place/policy.h"

/* Bytes of each member's part of the caches of all layers, [members]: tokens of what grows with the
 * tokens that are kept, for n_ctx of them, states of what does not. */
enum sheaf_status sheaf__memory_cache(const struct sheaf__weights *model,
                                      const struct sheaf__policy *policy, int64_t n_ctx,
                                      enum sheaf_type kv, size_t *tokens, size_t *states);

/* Bytes of a member's part of a value of a plan. */
double sheaf__memory_value(const struct sheaf_backend_meta_value *value, int member);

#endif
