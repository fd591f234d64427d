/* The table of ops. Source: ggml.h and ggml.c of ggml 0.25.3, the functions that make nodes. */
#include "ggml/op_table.h"

#include <string.h>

/* A word of ggml, and the word here. */
#define W(from, to)                                                                                \
    { (from) + 1, (to) + 1 }
#define ROPE_WORDS                                                                                 \
    {                                                                                              \
        W(1, 0), W(2, 1), W(4, 2), W(5, 3), W(6, 4), W(7, 5), W(8, 6), W(9, 7), W(10, 8),          \
            W(11, 9), W(12, 10), W(13, 11), W(14, 12), W(15, 13)                                   \
    }
#define WINDOW_WORDS                                                                               \
    { W(0, 2), W(1, 3), W(2, 4), W(3, 5), W(4, 6), W(5, 7) }
#define VOLUME_WORDS                                                                               \
    { W(0, 3), W(1, 4), W(2, 5), W(3, 6), W(4, 7), W(5, 8), W(6, 9), W(7, 10), W(8, 11) }
static const struct gg_op_row rows[] = {
    {"NONE", {0}, GG_PLAIN, {{0}}},
    {"DUP", {1}, GG_PLAIN, {{0}}},
    {"ADD", {1, 2}, GG_PLAIN, {{0}}},
    {"SUB", {1, 2}, GG_PLAIN, {{0}}},
    {"MUL", {1, 2}, GG_PLAIN, {{0}}},
    {"DIV", {1, 2}, GG_PLAIN, {{0}}},
    {"SCALE", {1}, GG_PLAIN, {W(0, 0), W(1, 1)}},
    {"SQR", {1}, GG_PLAIN, {{0}}},
    {"SUM_ROWS", {1}, GG_PLAIN, {{0}}},
    {"ARGMAX", {1}, GG_PLAIN, {{0}}},
    {"TOP_K", {1}, GG_K_OF_NE0, {{0}}},
    {"CONCAT", {1, 2}, GG_PLAIN, {W(0, 0)}},
    {"RMS_NORM", {1}, GG_PLAIN, {W(0, 0)}},
    {"MUL_MAT", {1, 2}, GG_PLAIN, {{0}}},
    {"MUL_MAT_ID", {1, 2, 3}, GG_PLAIN, {{0}}},
    {"CPY", {1, 2}, GG_CAST, {{0}}},
    {"CONT", {1}, GG_SAME_SHAPE, {{0}}},
    {"RESHAPE", {1}, GG_PLAIN, {{0}}},
    {"VIEW", {1}, GG_PLAIN, {{0}}},
    {"PERMUTE", {1}, GG_PLAIN, {W(0, 0), W(1, 1), W(2, 2), W(3, 3)}},
    {"TRANSPOSE", {1}, GG_PLAIN, {{0}}},
    {"GET_ROWS", {1, 2}, GG_PLAIN, {{0}}},
    {"SET_ROWS", {3, 1, 2}, GG_PLAIN, {{0}}},
    {"SOFT_MAX", {1, 2, 3}, GG_PLAIN, {W(0, 0), W(1, 1)}},
    {"ROPE", {1, 2, 3}, GG_ROTATION, ROPE_WORDS},
    {"ROPE_BACK", {1, 2, 3}, GG_ROTATION, ROPE_WORDS},
    {"FLASH_ATTN_EXT", {1, 2, 3, 4, 5}, GG_PLAIN, {W(0, 0), W(1, 1), W(2, 2)}},
    {"UNARY", {1}, GG_UNARY_OP, {W(1, 1), W(2, 2), W(3, 3), W(4, 4)}},
    {"SSM_CONV", {1, 2}, GG_PLAIN, {{0}}},
    {"SSM_SCAN", {1, 2, 3, 4, 5, 6, 7}, GG_PLAIN, {W(0, 0)}},
    {"GATED_DELTA_NET", {1, 2, 3, 4, 5, 6}, GG_FLAT, {W(0, 0)}},
    {"RWKV_WKV6", {1, 2, 3, 4, 5, 6}, GG_FLAT, {{0}}},
    {"RWKV_WKV7", {1, 2, 3, 4, 5, 6, 7}, GG_FLAT, {{0}}},
    {"GATED_LINEAR_ATTN", {1, 2, 3, 4, 5}, GG_FLAT, {W(0, 0)}},
    {"SQRT", {1}, GG_PLAIN, {{0}}},
    {"SIN", {1}, GG_PLAIN, {{0}}},
    {"COS", {1}, GG_PLAIN, {{0}}},
    {"LOG", {1}, GG_PLAIN, {{0}}},
    {"CLAMP", {1}, GG_PLAIN, {W(0, 0), W(1, 1)}},
    {"LEAKY_RELU", {1}, GG_PLAIN, {W(0, 0)}},
    {"FILL", {0}, GG_SHAPE_ONLY, {W(0, 0)}},
    {"NORM", {1}, GG_PLAIN, {W(0, 0)}},
    {"L2_NORM", {1}, GG_PLAIN, {W(0, 0)}},
    {"GROUP_NORM", {1}, GG_CHANNELS, {W(0, 0), W(1, 1)}},
    {"SUM", {1}, GG_DENSE_ROWS, {{0}}},
    {"MEAN", {1}, GG_PLAIN, {{0}}},
    {"ARGSORT", {1}, GG_PLAIN, {W(0, 0)}},
    {"ADD_ID", {1, 2, 3}, GG_PLAIN, {{0}}},
    {"REPEAT", {1}, GG_PLAIN, {{0}}},
    {"PAD",
     {1},
     GG_PLAIN,
     {W(0, 0), W(1, 1), W(2, 2), W(3, 3), W(4, 4), W(5, 5), W(6, 6), W(7, 7), W(8, 8)}},
    {"GLU", {1, 2}, GG_GLU_OP, {W(1, 1), W(2, 2), W(3, 3)}},
    {"ADD1", {1, 2}, GG_PLAIN, {{0}}},
    {"SET", {1, 2}, GG_PART, {{0}}},
    {"ACC", {1, 2}, GG_PART, {{0}}},
    {"CUMSUM", {1}, GG_PLAIN, {{0}}},
    {"TRI", {1}, GG_PLAIN, {W(0, 0)}},
    {"DIAG", {1}, GG_PLAIN, {{0}}},
    {"DIAG_MASK_INF", {1}, GG_PLAIN, {W(0, 0)}},
    {"DIAG_MASK_ZERO", {1}, GG_PLAIN, {W(0, 0)}},
    {"SOLVE_TRI", {1, 2}, GG_PLAIN, {{0}}},
    {"ARANGE", {0}, GG_PLAIN, {W(0, 0), W(1, 1), W(2, 2)}},
    {"LIGHTNING_INDEXER", {1, 2, 3, 4}, GG_PLAIN, {{0}}},
    {"DSV4_HC_COMB", {1, 2, 3}, GG_PLAIN, {W(0, 0), W(1, 1)}},
    {"DSV4_HC_PRE", {1, 2}, GG_PLAIN, {W(0, 0), W(1, 1)}},
    {"DSV4_HC_POST", {1, 2, 3, 4}, GG_PLAIN, {{0}}},
    {"IM2COL", {2}, GG_COLUMNS, WINDOW_WORDS},
    {"CONV_2D", {1, 2}, GG_KERNEL, WINDOW_WORDS},
    {"CONV_2D_DW", {1, 2}, GG_KERNEL, WINDOW_WORDS},
    {"CONV_TRANSPOSE_1D", {1, 2}, GG_PLAIN, {W(0, 0)}},
    {"POOL_1D", {1}, GG_POOL, {W(0, 8), W(1, 0), W(2, 2), W(3, 4)}},
    {"POOL_2D", {1}, GG_POOL, {W(0, 8), W(1, 0), W(2, 1), W(3, 2), W(4, 3), W(5, 4), W(6, 5)}},
    {"UPSCALE", {1}, GG_RESIZE, {{0}}},
    {"PAD_REFLECT_1D", {1}, GG_PLAIN, {W(0, 0), W(1, 1)}},
    {"ROLL", {1}, GG_PLAIN, {W(0, 0), W(1, 1), W(2, 2), W(3, 3)}},
    {"TIMESTEP_EMBEDDING", {1}, GG_PLAIN, {W(0, 0), W(1, 1)}},
    {"COUNT_EQUAL", {1, 2}, GG_PLAIN, {{0}}},
    {"CONV_TRANSPOSE_2D", {1, 2}, GG_PLAIN, {W(0, 0)}},
    {"COL2IM_1D", {1}, GG_SIGNALS, {W(0, 1), W(2, 2)}},
    {"IM2COL_3D", {2}, GG_KERNEL_3D, VOLUME_WORDS},
    {"CONV_3D", {1, 2}, GG_KERNEL_3D, VOLUME_WORDS},
    {"WIN_PART", {1}, GG_WINDOWS, {W(2, 0)}},
    {"WIN_UNPART", {1}, GG_PLAIN, {W(0, 0)}},
    {"GET_REL_POS", {1}, GG_PLAIN, {{0}}},
    {"ADD_REL_POS", {1, 2, 3}, GG_PLAIN, {{0}}},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* The library's op of each row that a name of the host has led to. */
static enum sheaf_op op_of_row[N_ROWS];

static enum sheaf_op find_op(const char *name) {
    for (int i = 0; i < SHEAF_OP_COUNT; i++)
        if (!strcmp(sheaf_op_name((enum sheaf_op)i), name)) return (enum sheaf_op)i;
    return SHEAF_OP_COUNT;
}

int gg_find_op_row(const char *name) {
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name)) continue;
        op_of_row[i] = find_op(strcmp(name, "ADD1") ? name : "ADD");
        return op_of_row[i] == SHEAF_OP_COUNT ? -1 : i;
    }
    return -1;
}

const struct gg_op_row *gg_op_row(int row) { return &rows[row]; }
enum sheaf_op gg_op_of_row(int row) { return op_of_row[row]; }
int gg_n_op_rows(void) { return N_ROWS; }

/* ---- the host's numbers ---- */

enum sheaf_op gg_op_of(const struct gg_host *host, int32_t number) {
    const int row = gg_mapped(host->op, GG_MAX_OPS, number);
    return row < 0 ? SHEAF_OP_COUNT : op_of_row[row];
}
int gg_type_of(const struct gg_host *host, int32_t number) {
    return gg_mapped(host->type, GG_MAX_TYPES, number);
}

bool gg_searches_scales(enum sheaf_type type) {
    static const enum sheaf_type simple[] = {SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_1, SHEAF_TYPE_Q5_0,
                                             SHEAF_TYPE_Q5_1, SHEAF_TYPE_Q8_0, SHEAF_TYPE_IQ4_NL};
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (simple[i] == type) return false;
    return sheaf_is_quantized(type);
}

bool gg_has_angles(const struct sheaf_tensor *rope) {
    enum { MODE = 1, FIRST_SECTION = 9 }; /* words (sheaf/ops.h) */
    const int32_t *sections = &rope->op_params[FIRST_SECTION];
    for (int i = 0; rope->op_params[MODE] == SHEAF_ROPE_TYPE_VISION && i < 3; i++)
        if (sections[i] == 0 && sections[i + 1] > 0) return false;
    return true;
}
