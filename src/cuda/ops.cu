/* The table of ops: what computes each, and whether a node is one that it computes. */
#include "cuda/cuda.h"

#define OP(name)                                                                                   \
    { sheaf__cuda_launch_##name, NULL }
#define OP_WORK(name)                                                                              \
    { sheaf__cuda_launch_##name, sheaf__cuda_work_##name }
#define VIEW                                                                                       \
    { NULL, NULL }

/* In the order of enum sheaf_op. */
static const struct sheaf__cuda_op table[] = {
    VIEW,                /* NONE */
    OP(copy),            /* DUP */
    OP(binary),          /* ADD */
    OP(binary),          /* SUB */
    OP(binary),          /* MUL */
    OP(binary),          /* DIV */
    OP(unary),           /* SCALE */
    OP(sum_rows),        /* SUM_ROWS */
    OP(argmax),          /* ARGMAX */
    OP(top_k),           /* TOP_K */
    OP(concat),          /* CONCAT */
    OP(rms_norm),        /* RMS_NORM */
    OP_WORK(mul_mat),    /* MUL_MAT */
    OP_WORK(mul_mat),    /* MUL_MAT_ID */
    OP(copy),            /* CPY */
    OP(copy),            /* CONT */
    VIEW,                /* RESHAPE */
    VIEW,                /* VIEW */
    VIEW,                /* PERMUTE */
    VIEW,                /* TRANSPOSE */
    OP(get_rows),        /* GET_ROWS */
    OP(set_rows),        /* SET_ROWS */
    OP(soft_max),        /* SOFT_MAX */
    OP(rope),            /* ROPE */
    OP_WORK(flash_attn), /* FLASH_ATTN_EXT */
    OP(unary),           /* UNARY */
    OP(glu),             /* GLU */
};
static_assert(sizeof table / sizeof *table == SHEAF_OP_COUNT, "an op is missing from the table");
static_assert(SHEAF_OP_SCALE == 6 && SHEAF_OP_MUL_MAT == 12 && SHEAF_OP_RESHAPE == 16 &&
                  SHEAF_OP_SOFT_MAX == 22 && SHEAF_OP_GLU == 26,
              "the ops have another order: bring the table into it");

const struct sheaf__cuda_op *sheaf__cuda_op(enum sheaf_op op) {
    return (unsigned)op < SHEAF_OP_COUNT && table[op].launch ? &table[op] : NULL;
}

bool sheaf__cuda_supports_op(const struct sheaf_tensor *op) {
    if (!sheaf_backend_op_is_valid(op)) return false;
    return op->op != SHEAF_OP_FLASH_ATTN_EXT || sheaf__cuda_attention_fits(op);
}
