/* Can the devices compute the model's graph? Asked before the weights are loaded, because a graph
 * of which one node cannot be computed fails as a whole. */
#ifndef SHEAF_MODEL_RUNNABLE_H
#define SHEAF_MODEL_RUNNABLE_H

#include "sheaf/backend.h"

#include "model/file/weights.h"

/* dev: the meta device of the members, or the only one. UNSUPPORTED names the node, its op, the
 * weight that it reads with its type, and the devices asked. Collective, as
 * sheaf_backend_dev_supports_op of a meta device is. */
enum sheaf_status sheaf__runnable_check(const struct sheaf__weights *model, sheaf_backend_dev_t dev,
                                        const sheaf_backend_dev_t *members, int n_members,
                                        enum sheaf_type kv_type);

#endif
