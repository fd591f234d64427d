/* A member's node of FLASH_ATTN_EXT whose query heads divide a group: no constructor makes it. */
#ifndef SHEAF_TESTS_ATTENTION_PART_H
#define SHEAF_TESTS_ATTENTION_PART_H

#include <string.h>

#include "sheaf/sheaf.h"

/* src: q, k, v, mask, sinks. The node has heads [base, ..) of `extent`, `group` to a K/V head. */
static inline struct sheaf_tensor *attention_part(struct sheaf_context *ctx,
                                                  struct sheaf_tensor *const src[5],
                                                  const float params[3], int base, int extent,
                                                  int group) {
    const struct sheaf_tensor *q = src[0], *v = src[2];
    struct sheaf_tensor *t =
        sheaf_new_tensor_4d(ctx, SHEAF_TYPE_F32, v->ne[0], q->ne[2], q->ne[1], q->ne[3]);
    t->op = SHEAF_OP_FLASH_ATTN_EXT;
    memcpy(t->src, src, 5 * sizeof *src);
    memcpy(t->op_params, params, 3 * sizeof *params);
    t->op_params[SHEAF_OP_PARAM_GROUP] = group;
    t->op_params[SHEAF_OP_PARAM_BASE] = base;
    t->op_params[SHEAF_OP_PARAM_EXTENT] = extent;
    return t;
}

#endif
