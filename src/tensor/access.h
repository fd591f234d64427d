/* Small questions to a tensor: its parameters, its memory. */
#ifndef SHEAF_TENSOR_ACCESS_H
#define SHEAF_TENSOR_ACCESS_H

#include <string.h>

#include "sheaf/tensor.h"

/* A parameter as a float: word i of op_params (sheaf/ops.h). */
static inline float sheaf__param_f32(const struct sheaf_tensor *t, int i) {
    float f;
    memcpy(&f, &t->op_params[i], sizeof f);
    return f;
}
static inline void sheaf__set_param_f32(struct sheaf_tensor *t, int i, float f) {
    memcpy(&t->op_params[i], &f, sizeof f);
}

/* Which K/V heads the query heads of a FLASH_ATTN_EXT read: head h reads K/V head
 * (skip + h) / each. */
struct sheaf__head_groups {
    int64_t each, skip;
};
static inline struct sheaf__head_groups sheaf__head_groups(const struct sheaf_tensor *t) {
    const int64_t heads = t->src[0]->ne[2], kv = t->src[1]->ne[2];
    const int64_t each = t->op_params[SHEAF_OP_PARAM_GROUP];
    const struct sheaf__head_groups by_shape = {kv ? heads / kv : 0, 0};
    const struct sheaf__head_groups told = {each,
                                            each ? t->op_params[SHEAF_OP_PARAM_BASE] % each : 0};
    return each ? told : by_shape;
}
/* The first of `heads` query heads that reads K/V head hk; the next K/V head's ends its group. */
static inline int64_t sheaf__first_head(struct sheaf__head_groups g, int64_t heads, int64_t hk) {
    const int64_t head = hk * g.each - g.skip;
    return head < 0 ? 0 : head < heads ? head : heads;
}

/* Strides of a tensor without gaps, from its type and shape. ne[0] is whole blocks of the type. */
static inline void sheaf__set_dense_strides(struct sheaf_tensor *t) {
    t->nb[0] = sheaf_type_size(t->type);
    t->nb[1] = sheaf_row_size(t->type, t->ne[0]);
    for (int i = 2; i < SHEAF_MAX_DIMS; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
}

/* The tensor that has the memory: the one that is viewed, or itself. */
static inline struct sheaf_tensor *sheaf__memory_owner(const struct sheaf_tensor *t) {
    return t->view_src ? t->view_src : (struct sheaf_tensor *)(uintptr_t)t;
}

/* Bytes from the tensor's first element to that of row number `row`, of sheaf_nrows. */
static inline size_t sheaf__row_offset(const struct sheaf_tensor *t, int64_t row) {
    const int64_t i1 = row % t->ne[1], i2 = row / t->ne[1] % t->ne[2];
    const int64_t i3 = row / t->ne[1] / t->ne[2];
    return (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
}

/* b is whole times a: a dimension of a repeats to one of b. 0 divides 0 only. */
static inline bool sheaf__divides(int64_t a, int64_t b) { return a == 0 ? b == 0 : b % a == 0; }

/* Is there a byte of memory that both have? Tensors without data have none. */
static inline bool sheaf__overlaps(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    const uintptr_t p = (uintptr_t)a->data, q = (uintptr_t)b->data;
    return p && q && p < q + sheaf_nbytes(b) && q < p + sheaf_nbytes(a);
}

#endif
