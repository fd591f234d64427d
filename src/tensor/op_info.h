/* The table of ops: one row an op, with all that code outside of its kernels knows about it. Graph,
 * allocator, scheduler, planner, devices and tools ask this table. Kernels and split rules are
 * tables of their own (cpu/ops/ops.h, cuda/ops.cu, split/rule.c); the build fails where one lacks
 * an op that is listed here.
 *
 * A row is ROW(name, fields...), in the order of enum sheaf_op. Fields that a row leaves out are 0.
 * The check of an op (op_info.c) says which nodes a backend may be asked to compute. */
#ifndef SHEAF_TENSOR_OP_INFO_H
#define SHEAF_TENSOR_OP_INFO_H

#include "sheaf/tensor.h"

enum { SHEAF__OP_MAX_SRC = 7 };

struct sheaf__op_info {
    const char *name;
    /* Names of the operands, as in sheaf/ops.h. The first `required` are there in every node, the
     * others may be NULL. Devices never look at views, so these require none. */
    const char *operands[SHEAF__OP_MAX_SRC];
    int required;
    const char *params; /* layout of op_params, as the table in sheaf/ops.h has it; NULL: none */
    bool (*check)(const struct sheaf_tensor *node); /* NULL: nothing to check */
    enum sheaf_op_cost cost;
    bool is_view; /* the result is operand 0's memory, nothing is computed */
    /* 1 + the operand whose memory takes the result; 0: a result has memory of its own, or the op
     * is a view */
    int writes_into;
    /* How many operands, counted from the first, may lie in the memory of the result: the op reads
     * an element of them for the last time before it writes the same element of the result. A node
     * whose view_src is the owner of such an operand writes over it (sheaf_in_place). */
    int in_place;
    /* Weights among its operands are too small to decide on which device it runs. */
    bool small_weights;
};

#define SHEAF__ROPE_PARAMS                                                                         \
    "0 i n_dims, 1 i mode, 2 i n_ctx_orig, 3 f freq_base, 4 f freq_scale, 5 f ext_factor, "        \
    "6 f attn_factor, 7 f beta_fast, 8 f beta_slow, 9 i section0, 10 i section1, "                 \
    "11 i section2, 12 i section3, 13 i offset"

#define SHEAF__VOLUME_PARAMS                                                                       \
    "0 i, 1 i, 2 i size, 3 i, 4 i, 5 i stride, 6 i, 7 i, 8 i pad, 9 i, 10 i, 11 i dilation"

#define SHEAF__OPS(ROW)                                                                            \
    ROW(NONE, .cost = SHEAF_OP_COST_FREE)                                                          \
    ROW(DUP, .operands = {"a"}, .required = 1, .check = check_copy, .cost = SHEAF_OP_COST_ROWS)    \
    ROW(ADD, .operands = {"a", "b"}, .required = 2, .check = check_binary,                         \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 2)                                                 \
    ROW(SUB, .operands = {"a", "b"}, .required = 2, .check = check_binary,                         \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 2)                                                 \
    ROW(MUL, .operands = {"a", "b"}, .required = 2, .check = check_binary,                         \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 2)                                                 \
    ROW(DIV, .operands = {"a", "b"}, .required = 2, .check = check_binary,                         \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 2)                                                 \
    ROW(SCALE, .operands = {"a"}, .required = 1, .params = "0 f scale, 1 f bias",                  \
        .check = check_map, .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                             \
    ROW(SUM_ROWS, .operands = {"a"}, .required = 1, .check = check_sum_rows,                       \
        .cost = SHEAF_OP_COST_ROWS)                                                                \
    ROW(ARGMAX, .operands = {"a"}, .required = 1, .check = check_argmax,                           \
        .cost = SHEAF_OP_COST_ROWS)                                                                \
    ROW(TOP_K, .operands = {"a"}, .required = 1, .params = "0 i k", .check = check_top_k,          \
        .cost = SHEAF_OP_COST_ROWS)                                                                \
    ROW(CONCAT, .operands = {"a", "b"}, .required = 2, .params = "0 i dim", .check = check_concat, \
        .cost = SHEAF_OP_COST_ROWS)                                                                \
    ROW(RMS_NORM, .operands = {"a"}, .required = 1, .params = "0 f eps", .check = check_rms_norm,  \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                                                 \
    ROW(MUL_MAT, .operands = {"a", "b"}, .required = 2, .check = check_mul_mat,                    \
        .cost = SHEAF_OP_COST_PRODUCT)                                                             \
    ROW(MUL_MAT_ID, .operands = {"as", "b", "ids"}, .required = 3, .check = check_mul_mat_id,      \
        .cost = SHEAF_OP_COST_PRODUCT)                                                             \
    ROW(CPY, .operands = {"a", "b"}, .required = 1, .check = check_copy,                           \
        .cost = SHEAF_OP_COST_MOVE, .writes_into = 2)                                              \
    ROW(CONT, .operands = {"a"}, .required = 1, .check = check_copy, .cost = SHEAF_OP_COST_ROWS)   \
    ROW(RESHAPE, .operands = {"a"}, .cost = SHEAF_OP_COST_FREE, .is_view = true)                   \
    ROW(VIEW, .operands = {"a"}, .params = "0 u offset, 1 u offset", .cost = SHEAF_OP_COST_FREE,   \
        .is_view = true)                                                                           \
    ROW(PERMUTE, .operands = {"a"}, .params = "0 i axis0, 1 i axis1, 2 i axis2, 3 i axis3",        \
        .cost = SHEAF_OP_COST_FREE, .is_view = true)                                               \
    ROW(TRANSPOSE, .operands = {"a"}, .cost = SHEAF_OP_COST_FREE, .is_view = true)                 \
    ROW(GET_ROWS, .operands = {"a", "b"}, .required = 2, .check = check_get_rows,                  \
        .cost = SHEAF_OP_COST_MOVE)                                                                \
    ROW(SET_ROWS, .operands = {"a", "b", "c"}, .required = 3, .check = check_set_rows,             \
        .cost = SHEAF_OP_COST_MOVE, .writes_into = 1)                                              \
    ROW(SOFT_MAX, .operands = {"a", "mask", "sinks"}, .required = 1,                               \
        .params = "0 f scale, 1 f max_bias", .check = check_soft_max, .cost = SHEAF_OP_COST_ROWS,  \
        .in_place = 1)                                                                             \
    ROW(ROPE, .operands = {"a", "pos", "freq_factors"}, .required = 2,                             \
        .params = SHEAF__ROPE_PARAMS, .check = check_rope, .cost = SHEAF_OP_COST_ROWS,             \
        .in_place = 1, .small_weights = true)                                                      \
    ROW(FLASH_ATTN_EXT, .operands = {"q", "k", "v", "mask", "sinks"}, .required = 3,               \
        .params = "0 f scale, 1 f max_bias, 2 f logit_softcap", .check = check_flash_attn,         \
        .cost = SHEAF_OP_COST_ATTENTION)                                                           \
    ROW(UNARY, .operands = {"a"}, .required = 1,                                                   \
        .params = "0 i op; XIELU: 1 f alpha_n, 2 f alpha_p, 3 f beta, 4 f eps",                    \
        .check = check_unary, .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                           \
    ROW(GLU, .operands = {"a", "b"}, .required = 1,                                                \
        .params = "0 i op, 1 i swapped; SWIGLU_OAI: 2 f alpha; it and SWIGLU_CLAMP: 3 f limit",    \
        .check = check_glu, .cost = SHEAF_OP_COST_ROWS)                                            \
    ROW(SQR, .operands = {"a"}, .required = 1, .check = check_map, .cost = SHEAF_OP_COST_ROWS,     \
        .in_place = 1)                                                                             \
    ROW(SQRT, .operands = {"a"}, .required = 1, .check = check_map, .cost = SHEAF_OP_COST_ROWS,    \
        .in_place = 1)                                                                             \
    ROW(SIN, .operands = {"a"}, .required = 1, .check = check_map, .cost = SHEAF_OP_COST_ROWS,     \
        .in_place = 1)                                                                             \
    ROW(COS, .operands = {"a"}, .required = 1, .check = check_map, .cost = SHEAF_OP_COST_ROWS,     \
        .in_place = 1)                                                                             \
    ROW(LOG, .operands = {"a"}, .required = 1, .check = check_map, .cost = SHEAF_OP_COST_ROWS,     \
        .in_place = 1)                                                                             \
    ROW(CLAMP, .operands = {"a"}, .required = 1, .params = "0 f min, 1 f max",                     \
        .check = check_clamp, .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                           \
    ROW(LEAKY_RELU, .operands = {"a"}, .required = 1, .params = "0 f slope", .check = check_map,   \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                                                 \
    ROW(FILL, .params = "0 f value", .check = check_fill, .cost = SHEAF_OP_COST_MOVE)              \
    ROW(NORM, .operands = {"a"}, .required = 1, .params = "0 f eps", .check = check_rms_norm,      \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                                                 \
    ROW(L2_NORM, .operands = {"a"}, .required = 1, .params = "0 f eps", .check = check_rms_norm,   \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                                                 \
    ROW(GROUP_NORM, .operands = {"a"}, .required = 1,                                              \
        .params = "0 i groups, 1 f eps, 2 i channels of a group", .check = check_group_norm,       \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                                                 \
    ROW(SUM, .operands = {"a"}, .required = 1, .check = check_sum, .cost = SHEAF_OP_COST_ROWS)     \
    ROW(MEAN, .operands = {"a"}, .required = 1, .check = check_sum_rows,                           \
        .cost = SHEAF_OP_COST_ROWS)                                                                \
    ROW(ARGSORT, .operands = {"a"}, .required = 1, .params = "0 i order", .check = check_argsort,  \
        .cost = SHEAF_OP_COST_ROWS)                                                                \
    ROW(ADD_ID, .operands = {"a", "b", "ids"}, .required = 3, .check = check_add_id,               \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                                                 \
    ROW(REPEAT, .operands = {"a"}, .required = 1, .check = check_repeat,                           \
        .cost = SHEAF_OP_COST_MOVE)                                                                \
    ROW(PAD, .operands = {"a"}, .required = 1,                                                     \
        .params = "0 i left, 1 i right of dimension 0, 2 i, 3 i of dimension 1, 4 i, 5 i of "      \
                  "dimension 2, 6 i, 7 i of dimension 3, 8 i circular",                            \
        .check = check_pad, .cost = SHEAF_OP_COST_MOVE)                                            \
    ROW(ROPE_BACK, .operands = {"a", "pos", "freq_factors"}, .required = 2,                        \
        .params = SHEAF__ROPE_PARAMS, .check = check_rope, .cost = SHEAF_OP_COST_ROWS,             \
        .in_place = 1, .small_weights = true)                                                      \
    ROW(SSM_CONV, .operands = {"sx", "w"}, .required = 2, .check = check_ssm_conv,                 \
        .cost = SHEAF_OP_COST_ROWS)                                                                \
    ROW(SSM_SCAN, .operands = {"s", "x", "dt", "a", "b", "c", "ids"}, .required = 7,               \
        .params = "0 i kept", .check = check_ssm_scan, .cost = SHEAF_OP_COST_ROWS)                 \
    ROW(GATED_DELTA_NET, .operands = {"q", "k", "v", "gate", "beta", "state"}, .required = 6,      \
        .params = "0 i kept", .check = check_gated_delta_net, .cost = SHEAF_OP_COST_ROWS)          \
    ROW(RWKV_WKV6, .operands = {"k", "v", "r", "tf", "td", "state"}, .required = 6,                \
        .check = check_rwkv_wkv6, .cost = SHEAF_OP_COST_ROWS)                                      \
    ROW(RWKV_WKV7, .operands = {"r", "w", "k", "v", "a", "b", "state"}, .required = 7,             \
        .check = check_rwkv_wkv7, .cost = SHEAF_OP_COST_ROWS)                                      \
    ROW(GATED_LINEAR_ATTN, .operands = {"k", "v", "q", "g", "state"}, .required = 5,               \
        .params = "0 f scale", .check = check_gated_linear_attn, .cost = SHEAF_OP_COST_ROWS)       \
    ROW(SET, .operands = {"a", "b"}, .required = 2, .params = "0 i, 1 i, 2 i, 3 i start",          \
        .check = check_window, .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                          \
    ROW(ACC, .operands = {"a", "b"}, .required = 2, .params = "0 i, 1 i, 2 i, 3 i start",          \
        .check = check_window, .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                          \
    ROW(CUMSUM, .operands = {"a"}, .required = 1, .check = check_matrix,                           \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                                                 \
    ROW(TRI, .operands = {"a"}, .required = 1, .params = "0 i type", .check = check_matrix,        \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                                                 \
    ROW(DIAG, .operands = {"a"}, .required = 1, .check = check_diag, .cost = SHEAF_OP_COST_MOVE)   \
    ROW(DIAG_MASK_INF, .operands = {"a"}, .required = 1, .params = "0 i n_past",                   \
        .check = check_matrix, .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                          \
    ROW(DIAG_MASK_ZERO, .operands = {"a"}, .required = 1, .params = "0 i n_past",                  \
        .check = check_matrix, .cost = SHEAF_OP_COST_ROWS, .in_place = 1)                          \
    ROW(SOLVE_TRI, .operands = {"a", "b"}, .required = 2, .check = check_solve,                    \
        .cost = SHEAF_OP_COST_PRODUCT)                                                             \
    ROW(ARANGE, .params = "0 f start, 1 f stop, 2 f step", .check = check_arange,                  \
        .cost = SHEAF_OP_COST_MOVE)                                                                \
    ROW(LIGHTNING_INDEXER, .operands = {"q", "k", "w", "mask"}, .required = 4,                     \
        .check = check_indexer, .cost = SHEAF_OP_COST_PRODUCT)                                     \
    ROW(DSV4_HC_COMB, .operands = {"mixes", "scale", "base"}, .required = 3,                       \
        .params = "0 f eps, 1 i n_iter", .check = check_hc_comb, .cost = SHEAF_OP_COST_ROWS)       \
    ROW(DSV4_HC_PRE, .operands = {"x", "weights"}, .required = 2,                                  \
        .params = "0 f scale, 1 i gated", .check = check_hc_pre, .cost = SHEAF_OP_COST_ROWS)       \
    ROW(DSV4_HC_POST, .operands = {"x", "residual", "post", "comb"}, .required = 3,                \
        .check = check_hc_post, .cost = SHEAF_OP_COST_ROWS)                                        \
    ROW(IM2COL, .operands = {"x"}, .required = 1,                                                  \
        .params = "0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation",               \
        .check = check_im2col, .cost = SHEAF_OP_COST_MOVE)                                         \
    ROW(CONV_2D, .operands = {"a", "b"}, .required = 2,                                            \
        .params = "0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation",               \
        .check = check_conv, .cost = SHEAF_OP_COST_PRODUCT)                                        \
    ROW(CONV_2D_DW, .operands = {"a", "b"}, .required = 2,                                         \
        .params = "0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation",               \
        .check = check_conv, .cost = SHEAF_OP_COST_ROWS)                                           \
    ROW(CONV_TRANSPOSE_1D, .operands = {"a", "b"}, .required = 2, .params = "0 i stride",          \
        .check = check_transposed, .cost = SHEAF_OP_COST_PRODUCT)                                  \
    ROW(POOL_1D, .operands = {"a"}, .required = 1,                                                 \
        .params = "0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation, 8 i kind",     \
        .check = check_pool, .cost = SHEAF_OP_COST_ROWS)                                           \
    ROW(POOL_2D, .operands = {"a"}, .required = 1,                                                 \
        .params = "0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation, 8 i kind",     \
        .check = check_pool, .cost = SHEAF_OP_COST_ROWS)                                           \
    ROW(UPSCALE, .operands = {"a"}, .required = 1, .params = "0 i mode, 1 i align_corners",        \
        .check = check_upscale, .cost = SHEAF_OP_COST_MOVE)                                        \
    ROW(PAD_REFLECT_1D, .operands = {"a"}, .required = 1, .params = "0 i left, 1 i right",         \
        .check = check_reflect, .cost = SHEAF_OP_COST_MOVE)                                        \
    ROW(ROLL, .operands = {"a"}, .required = 1, .params = "0 i, 1 i, 2 i, 3 i shift",              \
        .check = check_roll, .cost = SHEAF_OP_COST_MOVE)                                           \
    ROW(TIMESTEP_EMBEDDING, .operands = {"a"}, .required = 1, .params = "0 i dim, 1 i max_period", \
        .check = check_timestep, .cost = SHEAF_OP_COST_MOVE)                                       \
    ROW(COUNT_EQUAL, .operands = {"a", "b"}, .required = 2, .check = check_count_equal,            \
        .cost = SHEAF_OP_COST_ROWS)                                                                \
    ROW(CONV_TRANSPOSE_2D, .operands = {"a", "b"}, .required = 2, .params = "0 i stride",          \
        .check = check_transposed_2d, .cost = SHEAF_OP_COST_PRODUCT)                               \
    ROW(COL2IM_1D, .operands = {"a"}, .required = 1, .params = "0 i size, 1 i stride, 2 i pad",    \
        .check = check_col2im, .cost = SHEAF_OP_COST_ROWS)                                         \
    ROW(IM2COL_3D, .operands = {"x"}, .required = 1, .params = SHEAF__VOLUME_PARAMS,               \
        .check = check_im2col_3d, .cost = SHEAF_OP_COST_MOVE)                                      \
    ROW(CONV_3D, .operands = {"a", "b"}, .required = 2, .params = SHEAF__VOLUME_PARAMS,            \
        .check = check_conv_3d, .cost = SHEAF_OP_COST_PRODUCT)                                     \
    ROW(WIN_PART, .operands = {"a"}, .required = 1, .params = "0 i size", .check = check_win_part, \
        .cost = SHEAF_OP_COST_MOVE)                                                                \
    ROW(WIN_UNPART, .operands = {"a"}, .required = 1, .params = "0 i size",                        \
        .check = check_win_unpart, .cost = SHEAF_OP_COST_MOVE)                                     \
    ROW(GET_REL_POS, .operands = {"a"}, .required = 1, .check = check_get_rel_pos,                 \
        .cost = SHEAF_OP_COST_MOVE)                                                                \
    ROW(ADD_REL_POS, .operands = {"a", "pw", "ph"}, .required = 3, .check = check_add_rel_pos,     \
        .cost = SHEAF_OP_COST_ROWS, .in_place = 1)

/* Counts the rows; an op that is not listed, or listed in another place, breaks the build. */
#define SHEAF__OP_ROW_NUMBER(op, ...) SHEAF__OP_ROW_##op,
enum { SHEAF__OPS(SHEAF__OP_ROW_NUMBER) SHEAF__OP_ROW_COUNT };
#undef SHEAF__OP_ROW_NUMBER

/* A number outside of the table has the row of NONE, with the name "?". */
const struct sheaf__op_info *sheaf__op_info(enum sheaf_op op);

/* 1 + the operand over which the node writes its result: as the op always does, or because the node
 * was made so (sheaf_in_place). 0: none. */
int sheaf__op_written(const struct sheaf_tensor *node);
/* The operand whose memory takes the result of a node: one that is written, or viewed. NULL:
 * none. */
struct sheaf_tensor *sheaf__op_target(const struct sheaf_tensor *node);

#endif
