/* Numbers of columns of MUL_MAT, by which devices choose kernels and of which the planner tells slices those of the whole
 * (sheaf/ops.h). */
#ifndef SHEAF_TENSOR_MUL_MAT_H
#define SHEAF_TENSOR_MUL_MAT_H

#include "sheaf/ops.h"
#include "sheaf/tensor.h"

/* Columns of b, or of the result, that meet the same matrix (a2, a3) of a. */
static inline int64_t sheaf__mul_mat_columns(const struct sheaf_tensor *a,
                                             const struct sheaf_tensor *b) {
    if (a->ne[2] == 0 || a->ne[3] == 0) return 0;
    return b->ne[1] * (b->ne[2] / a->ne[2]) * (b->ne[3] / a->ne[3]);
}
/* Of a MUL_MAT: of the whole, if it is a slice of one. */
static inline int64_t sheaf__mul_mat_whole_columns(const struct sheaf_tensor *dst) {
    const int64_t told = dst->op_params[SHEAF_OP_PARAM_COLUMNS];
    return told != 0 ? told : sheaf__mul_mat_columns(dst->src[0], dst->src[1]);
}
static inline int64_t sheaf__mul_mat_whole_ne1(const struct sheaf_tensor *dst) {
    const int64_t told = dst->op_params[SHEAF_OP_PARAM_NE1];
    return told != 0 ? told : dst->ne[1];
}

#endif
