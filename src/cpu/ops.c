/* The op table: which function computes each op on the CPU, and what it needs. */
#include "cpu/ops.h"

static enum sheaf_status mul_mat(struct sheaf_tensor *dst, int ith, int nth,
                                 struct sheaf__cpu_sync *sync, void *work) {
    return sheaf__mul_mat(dst, ith, nth, work, sync);
}
static enum sheaf_status mul_mat_ref(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    return sheaf__mul_mat_ref(dst, ith, nth, work);
}
static enum sheaf_status mul_mat_id(struct sheaf_tensor *dst, int ith, int nth,
                                    struct sheaf__cpu_sync *sync, void *work) {
    return sheaf__mul_mat_id(dst, ith, nth, work, sync);
}
static enum sheaf_status mul_mat_id_ref(struct sheaf_tensor *dst, int ith, int nth,
                                        struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    return sheaf__mul_mat_id_ref(dst, ith, nth, work);
}

#define OP(name)        .fn = sheaf__cpu_op_##name
#define REFERENCE(name) .reference = sheaf__cpu_op_##name##_ref
#define PRODUCT(name)                                                                              \
    .fn = name, .reference = name##_ref, .work_size = sheaf__mul_mat_work_size, .product = true,   \
    .heavy = true

const struct sheaf__cpu_op sheaf__cpu_ops[] = {
    [SHEAF_OP_NONE] = {0},
    [SHEAF_OP_DUP] = {OP(copy)},
    [SHEAF_OP_ADD] = {OP(binary)},
    [SHEAF_OP_SUB] = {OP(binary)},
    [SHEAF_OP_MUL] = {OP(binary)},
    [SHEAF_OP_DIV] = {OP(binary)},
    [SHEAF_OP_SCALE] = {OP(scale)},
    [SHEAF_OP_SUM_ROWS] = {OP(sum_rows), .measure = 1},
    [SHEAF_OP_ARGMAX] = {OP(argmax), .measure = 1},
    [SHEAF_OP_TOP_K] = {OP(top_k), .measure = 1},
    [SHEAF_OP_CONCAT] = {OP(concat)},
    [SHEAF_OP_RMS_NORM] = {OP(rms_norm)},
    [SHEAF_OP_MUL_MAT] = {PRODUCT(mul_mat)},
    [SHEAF_OP_MUL_MAT_ID] = {PRODUCT(mul_mat_id)},
    [SHEAF_OP_CPY] = {OP(copy)},
    [SHEAF_OP_CONT] = {OP(copy)},
    [SHEAF_OP_RESHAPE] = {0},
    [SHEAF_OP_VIEW] = {0},
    [SHEAF_OP_PERMUTE] = {0},
    [SHEAF_OP_TRANSPOSE] = {0},
    [SHEAF_OP_GET_ROWS] = {OP(get_rows)},
    [SHEAF_OP_SET_ROWS] = {OP(set_rows), .measure = 2},
    [SHEAF_OP_SOFT_MAX] = {OP(soft_max), REFERENCE(soft_max)},
    [SHEAF_OP_ROPE] = {OP(rope), .work_size = sheaf__cpu_work_rope},
    [SHEAF_OP_FLASH_ATTN_EXT] = {OP(flash_attn), REFERENCE(flash_attn),
                                 .work_size = sheaf__cpu_work_flash_attn, .heavy = true},
    [SHEAF_OP_UNARY] = {OP(unary), REFERENCE(unary)},
    [SHEAF_OP_GLU] = {OP(glu), REFERENCE(glu)},
};
_Static_assert(sizeof sheaf__cpu_ops / sizeof *sheaf__cpu_ops == SHEAF_OP_COUNT,
               "an op is missing from the CPU's table; GLU must be its last");
