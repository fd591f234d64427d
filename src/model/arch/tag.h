/* What a tensor of a model is: a weight (enum sheaf__weight) or a cache, and of which layer.
 *
 * Said when the tensor is made, so that nothing has to be read out of its name. The words of
 * op_params are free in a tensor that no op computes. */
#ifndef SHEAF_MODEL_TAG_H
#define SHEAF_MODEL_TAG_H

#include "sheaf/tensor.h"

enum { SHEAF__TAG = 0x7a61, SHEAF__NO_TAG = -1 };

/* kind: enum sheaf__weight. layer -1: of the whole model. */
static inline void sheaf__tag_set(struct sheaf_tensor *t, int kind, int64_t layer) {
    t->op_params[0] = SHEAF__TAG;
    t->op_params[1] = kind;
    t->op_params[2] = (int32_t)layer;
}

/* SHEAF__NO_TAG if the tensor is neither a weight nor a cache of a model. */
static inline int sheaf__tag_get(const struct sheaf_tensor *t, int64_t *layer) {
    const bool tagged = t->op == SHEAF_OP_NONE && !t->view_src && t->op_params[0] == SHEAF__TAG;
    *layer = tagged ? t->op_params[2] : -1;
    return tagged ? t->op_params[1] : SHEAF__NO_TAG;
}

#endif
