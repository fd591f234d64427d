/* The op table of the CPU backend: the entries that the files of the op families define. */
#include "cpu/ops/ops.h"

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

#define PRODUCT(name)                                                                              \
    .fn = name, .reference = name##_ref, .work_size = sheaf__mul_mat_work_size, .product = true,   \
    .heavy = true
SHEAF__CPU_OP(MUL_MAT) = {PRODUCT(mul_mat)};
SHEAF__CPU_OP(MUL_MAT_ID) = {PRODUCT(mul_mat_id)};
#undef PRODUCT

/* Leaves and views: nothing to compute. */
SHEAF__CPU_OP(NONE) = {.fn = NULL};
SHEAF__CPU_OP(RESHAPE) = {.fn = NULL};
SHEAF__CPU_OP(VIEW) = {.fn = NULL};
SHEAF__CPU_OP(PERMUTE) = {.fn = NULL};
SHEAF__CPU_OP(TRANSPOSE) = {.fn = NULL};

#define ENTRY(op, ...) [SHEAF_OP_##op] = &sheaf__cpu_op_##op,
const struct sheaf__cpu_op *const sheaf__cpu_ops[] = {SHEAF__OPS(ENTRY)};
#undef ENTRY
