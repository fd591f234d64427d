/* A node of an op that has no example of its own: all of its operands are alike, and so is its
 * result. That suits ops that compute each element, or each row, from the same one of their
 * operands and have no parameters; for them a row of tensor/op_info.h is enough to be tested. */
#ifndef SHEAF_TESTS_OP_EXAMPLE_H
#define SHEAF_TESTS_OP_EXAMPLE_H

#include "sheaf/backend-impl.h"
#include "tensor/op_info.h"

/* Operands that an example needs; 0: the op takes parameters or computes nothing, so it needs
 * examples of its own. */
static inline int op_example_operands(enum sheaf_op op) {
    const struct sheaf__op_info *info = sheaf__op_info(op);
    return info->params ? 0 : info->required;
}

/* NULL if the op does not take such operands. */
static inline struct sheaf_tensor *op_example(struct sheaf_context *ctx, enum sheaf_op op,
                                              struct sheaf_tensor **a) {
    struct sheaf_tensor *t = sheaf_new_tensor(ctx, a[0]->type, SHEAF_MAX_DIMS, a[0]->ne);
    if (!t) return NULL;
    t->op = op;
    for (int i = 0; i < op_example_operands(op); i++) t->src[i] = a[i];
    return sheaf_backend_op_is_valid(t) ? t : NULL;
}

#endif
