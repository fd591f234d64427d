/* The table of ops: what computes each, and whether a node is one that it computes. The files of the
 * op families define the entries. */
#include "cuda/device.h"

/* Leaves and views: nothing to compute. */
SHEAF__CUDA_OP(NONE) = {NULL, NULL};
SHEAF__CUDA_OP(RESHAPE) = {NULL, NULL};
SHEAF__CUDA_OP(VIEW) = {NULL, NULL};
SHEAF__CUDA_OP(PERMUTE) = {NULL, NULL};
SHEAF__CUDA_OP(TRANSPOSE) = {NULL, NULL};

/* Left to the host: few graphs have them, and none on the path of a token. */
SHEAF__CUDA_OP(SET) = {NULL, NULL};
SHEAF__CUDA_OP(ACC) = {NULL, NULL};
SHEAF__CUDA_OP(CUMSUM) = {NULL, NULL};
SHEAF__CUDA_OP(TRI) = {NULL, NULL};
SHEAF__CUDA_OP(DIAG) = {NULL, NULL};
SHEAF__CUDA_OP(DIAG_MASK_INF) = {NULL, NULL};
SHEAF__CUDA_OP(DIAG_MASK_ZERO) = {NULL, NULL};
SHEAF__CUDA_OP(SOLVE_TRI) = {NULL, NULL};
SHEAF__CUDA_OP(ARANGE) = {NULL, NULL};
SHEAF__CUDA_OP(LIGHTNING_INDEXER) = {NULL, NULL};
SHEAF__CUDA_OP(DSV4_HC_COMB) = {NULL, NULL};
SHEAF__CUDA_OP(DSV4_HC_PRE) = {NULL, NULL};
SHEAF__CUDA_OP(DSV4_HC_POST) = {NULL, NULL};
SHEAF__CUDA_OP(IM2COL) = {NULL, NULL};
SHEAF__CUDA_OP(CONV_2D) = {NULL, NULL};
SHEAF__CUDA_OP(CONV_2D_DW) = {NULL, NULL};
SHEAF__CUDA_OP(CONV_TRANSPOSE_1D) = {NULL, NULL};
SHEAF__CUDA_OP(POOL_1D) = {NULL, NULL};
SHEAF__CUDA_OP(POOL_2D) = {NULL, NULL};
SHEAF__CUDA_OP(UPSCALE) = {NULL, NULL};
SHEAF__CUDA_OP(PAD_REFLECT_1D) = {NULL, NULL};
SHEAF__CUDA_OP(ROLL) = {NULL, NULL};
SHEAF__CUDA_OP(TIMESTEP_EMBEDDING) = {NULL, NULL};
SHEAF__CUDA_OP(COUNT_EQUAL) = {NULL, NULL};
SHEAF__CUDA_OP(CONV_TRANSPOSE_2D) = {NULL, NULL};
SHEAF__CUDA_OP(COL2IM_1D) = {NULL, NULL};
SHEAF__CUDA_OP(IM2COL_3D) = {NULL, NULL};
SHEAF__CUDA_OP(CONV_3D) = {NULL, NULL};
SHEAF__CUDA_OP(WIN_PART) = {NULL, NULL};
SHEAF__CUDA_OP(WIN_UNPART) = {NULL, NULL};
SHEAF__CUDA_OP(GET_REL_POS) = {NULL, NULL};
SHEAF__CUDA_OP(ADD_REL_POS) = {NULL, NULL};

/* In the order of enum sheaf_op, which tensor/op_info.c holds the rows to. */
#define ENTRY(op, ...) &sheaf__cuda_op_##op,
static const struct sheaf__cuda_op *const table[] = {SHEAF__OPS(ENTRY)};
#undef ENTRY
static_assert(sizeof table / sizeof *table == SHEAF_OP_COUNT, "an op is missing from the table");

const struct sheaf__cuda_op *sheaf__cuda_op(enum sheaf_op op) {
    return (unsigned)op < SHEAF_OP_COUNT && table[op]->launch ? table[op] : NULL;
}

bool sheaf__cuda_by_elements(enum sheaf_type type) {
    switch (type) {
    case SHEAF_TYPE_IQ2_XXS:
    case SHEAF_TYPE_IQ2_XS:
    case SHEAF_TYPE_IQ2_S:
    case SHEAF_TYPE_IQ3_XXS:
    case SHEAF_TYPE_IQ3_S:
    case SHEAF_TYPE_IQ1_S:
    case SHEAF_TYPE_IQ1_M:
    case SHEAF_TYPE_TQ1_0:
    case SHEAF_TYPE_TQ2_0:
    case SHEAF_TYPE_NVFP4:
    case SHEAF_TYPE_Q1_0:
    case SHEAF_TYPE_Q2_0:
        return true;
    default:
        return false;
    }
}

/* Blocks that are moved as they are. */
static bool is_move(const struct sheaf_tensor *op) {
    return (op->op == SHEAF_OP_DUP || op->op == SHEAF_OP_CONT || op->op == SHEAF_OP_CPY) &&
           op->src[0]->type == op->type;
}

bool sheaf__cuda_supports_op(const struct sheaf_tensor *op) {
    if (!sheaf_backend_op_is_valid(op)) return false;
    if (!table[op->op]->launch) return sheaf_op_get_cost(op->op) == SHEAF_OP_COST_FREE;
    if (sheaf__cuda_by_elements(op->type) && !is_move(op)) return false; /* none is written */
    if (op->op == SHEAF_OP_ARGSORT) return sheaf__cuda_sort_fits(op);
    return (op->op != SHEAF_OP_FLASH_ATTN_EXT || sheaf__cuda_attention_fits(op)) &&
           sheaf__cuda_state_fits(op);
}

static enum sheaf_status check_place(const struct sheaf__cuda_device *device, const struct sheaf_tensor *t,
                                     const struct sheaf_tensor *node) {
    if (sheaf_is_empty(t)) return SHEAF_STATUS_SUCCESS;
    if (!t->data)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: '%s' of '%s' (%s) has no memory; allocate the graph",
                               device->name, t->name, node->name, sheaf_op_name(node->op));
    if (sheaf__cuda_device_of_tensor(t) != device) {
        const struct sheaf_tensor *owner = sheaf__memory_owner(t);
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: '%s' of '%s' (%s) lies in %s, not on this device; copy it, or "
                               "let the scheduler do so",
                               device->name, t->name, node->name, sheaf_op_name(node->op),
                               owner->buffer ? sheaf_backend_buffer_name(owner->buffer)
                                             : "no buffer");
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cuda_check_node(const struct sheaf__cuda_device *device, const struct sheaf_tensor *node) {
    if (!sheaf__cuda_supports_op(node)) {
        const struct sheaf_tensor *x = node->src[0], *y = node->src[1];
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "%s: cannot compute %s '%s' (%s from %s%s%s): types or strides that "
                               "this device does not handle",
                               device->name, sheaf_op_name(node->op), node->name,
                               sheaf_type_name(node->type), x ? sheaf_type_name(x->type) : "-",
                               y ? ", " : "", y ? sheaf_type_name(y->type) : "");
    }
    enum sheaf_status st = check_place(device, node, node);
    for (int i = 0; i < SHEAF_MAX_SRC && !st; i++)
        if (node->src[i]) st = check_place(device, node->src[i], node);
    return st;
}

enum sheaf_status sheaf__cuda_launched(const struct sheaf__cuda_queue *q,
                                       const struct sheaf_tensor *dst) {
    const cudaError_t e = cudaGetLastError();
    return e ? sheaf__cuda_error(q->device->name, e, "starting %s '%s'", sheaf_op_desc(dst),
                                 dst->name)
             : SHEAF_STATUS_SUCCESS;
}
