/* The table of ops as ggml lays them out. Source: ggml.h and ggml.c of ggml 0.25.3, the functions
 * that make nodes. */
#include "ggml/translate.h"

#include <string.h>

enum { MAX_WORDS = 16 };

/* What a node needs beyond its words. */
enum special {
    PLAIN,
    K_OF_NE0,   /* TOP_K: k is the width of the result */
    CAST,       /* CPY: a second operand that is the node itself makes it a conversion */
    UNARY_OP,   /* word 0 is a number of unary ops */
    GLU_OP,     /* word 0 is a number of GLU ops */
    GROUPS,     /* GROUP_NORM: word 2 is the channels of a group */
    NO_OPERAND, /* FILL: the operand gives its shape only */
    SAME_SHAPE, /* the result has the operand's shape here, another one of as many elements in ggml */
    FLAT,       /* two results one behind the other: of two dimensions in ggml, of one here */
    ROWS_DENSE, /* SUM: ggml reads rows as if they were dense, and gives another sum if not */
    PART,       /* SET, ACC: strides and an offset are a start for each dimension */
    KERNEL,     /* CONV_2D: the size of the window is the kernel's */
    VOLUME,     /* CONV_3D, IM2COL_3D: so it is, in three dimensions */
    CHANNELS,   /* COL2IM_1D: word 1 is their number; here the size of the window */
    COLUMNS,    /* IM2COL: so it is, and the kernel is no operand; signals are images of height 1 */
    POOL,       /* no dilation; POOL_1D: a window of height 1 */
    RESIZE,     /* UPSCALE: flags are in word 0 */
    WINDOWS,    /* WIN_PART: words 0 and 1 are how many windows there are */
};
enum { SCALE_MODE = 255, ALIGN_CORNERS = 256, ANTIALIAS = 512 }; /* of word 0 of UPSCALE */

struct op_row {
    const char *name;          /* in ggml and here; ADD1 is an ADD of one element */
    int8_t src[SHEAF_MAX_SRC]; /* 1 + operand of ggml for each operand here; 0: the list ends */
    enum special special;
    /* 1 + word of ggml, 1 + word here; the list ends with 0 */
    int8_t words[MAX_WORDS][2];
};

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
static const struct op_row rows[] = {
    {"NONE", {0}, PLAIN, {{0}}},
    {"DUP", {1}, PLAIN, {{0}}},
    {"ADD", {1, 2}, PLAIN, {{0}}},
    {"SUB", {1, 2}, PLAIN, {{0}}},
    {"MUL", {1, 2}, PLAIN, {{0}}},
    {"DIV", {1, 2}, PLAIN, {{0}}},
    {"SCALE", {1}, PLAIN, {W(0, 0), W(1, 1)}},
    {"SQR", {1}, PLAIN, {{0}}},
    {"SUM_ROWS", {1}, PLAIN, {{0}}},
    {"ARGMAX", {1}, PLAIN, {{0}}},
    {"TOP_K", {1}, K_OF_NE0, {{0}}},
    {"CONCAT", {1, 2}, PLAIN, {W(0, 0)}},
    {"RMS_NORM", {1}, PLAIN, {W(0, 0)}},
    {"MUL_MAT", {1, 2}, PLAIN, {{0}}},
    {"MUL_MAT_ID", {1, 2, 3}, PLAIN, {{0}}},
    {"CPY", {1, 2}, CAST, {{0}}},
    {"CONT", {1}, SAME_SHAPE, {{0}}},
    {"RESHAPE", {1}, PLAIN, {{0}}},
    {"VIEW", {1}, PLAIN, {{0}}},
    {"PERMUTE", {1}, PLAIN, {W(0, 0), W(1, 1), W(2, 2), W(3, 3)}},
    {"TRANSPOSE", {1}, PLAIN, {{0}}},
    {"GET_ROWS", {1, 2}, PLAIN, {{0}}},
    {"SET_ROWS", {3, 1, 2}, PLAIN, {{0}}},
    {"SOFT_MAX", {1, 2, 3}, PLAIN, {W(0, 0), W(1, 1)}},
    {"ROPE", {1, 2, 3}, PLAIN, ROPE_WORDS},
    {"ROPE_BACK", {1, 2, 3}, PLAIN, ROPE_WORDS},
    {"FLASH_ATTN_EXT", {1, 2, 3, 4, 5}, PLAIN, {W(0, 0), W(1, 1), W(2, 2)}},
    {"UNARY", {1}, UNARY_OP, {W(1, 1), W(2, 2), W(3, 3), W(4, 4)}},
    {"SSM_CONV", {1, 2}, PLAIN, {{0}}},
    {"SSM_SCAN", {1, 2, 3, 4, 5, 6, 7}, PLAIN, {W(0, 0)}},
    {"GATED_DELTA_NET", {1, 2, 3, 4, 5, 6}, FLAT, {W(0, 0)}},
    {"RWKV_WKV6", {1, 2, 3, 4, 5, 6}, FLAT, {{0}}},
    {"RWKV_WKV7", {1, 2, 3, 4, 5, 6, 7}, FLAT, {{0}}},
    {"GATED_LINEAR_ATTN", {1, 2, 3, 4, 5}, FLAT, {W(0, 0)}},
    {"SQRT", {1}, PLAIN, {{0}}},
    {"SIN", {1}, PLAIN, {{0}}},
    {"COS", {1}, PLAIN, {{0}}},
    {"LOG", {1}, PLAIN, {{0}}},
    {"CLAMP", {1}, PLAIN, {W(0, 0), W(1, 1)}},
    {"LEAKY_RELU", {1}, PLAIN, {W(0, 0)}},
    {"FILL", {0}, NO_OPERAND, {W(0, 0)}},
    {"NORM", {1}, PLAIN, {W(0, 0)}},
    {"L2_NORM", {1}, PLAIN, {W(0, 0)}},
    {"GROUP_NORM", {1}, GROUPS, {W(0, 0), W(1, 1)}},
    {"SUM", {1}, ROWS_DENSE, {{0}}},
    {"MEAN", {1}, PLAIN, {{0}}},
    {"ARGSORT", {1}, PLAIN, {W(0, 0)}},
    {"ADD_ID", {1, 2, 3}, PLAIN, {{0}}},
    {"REPEAT", {1}, PLAIN, {{0}}},
    {"PAD",
     {1},
     PLAIN,
     {W(0, 0), W(1, 1), W(2, 2), W(3, 3), W(4, 4), W(5, 5), W(6, 6), W(7, 7), W(8, 8)}},
    {"GLU", {1, 2}, GLU_OP, {W(1, 1), W(2, 2), W(3, 3)}},
    {"ADD1", {1, 2}, PLAIN, {{0}}},
    {"SET", {1, 2}, PART, {{0}}},
    {"ACC", {1, 2}, PART, {{0}}},
    {"CUMSUM", {1}, PLAIN, {{0}}},
    {"TRI", {1}, PLAIN, {W(0, 0)}},
    {"DIAG", {1}, PLAIN, {{0}}},
    {"DIAG_MASK_INF", {1}, PLAIN, {W(0, 0)}},
    {"DIAG_MASK_ZERO", {1}, PLAIN, {W(0, 0)}},
    {"SOLVE_TRI", {1, 2}, PLAIN, {{0}}},
    {"ARANGE", {0}, PLAIN, {W(0, 0), W(1, 1), W(2, 2)}},
    {"LIGHTNING_INDEXER", {1, 2, 3, 4}, PLAIN, {{0}}},
    {"DSV4_HC_COMB", {1, 2, 3}, PLAIN, {W(0, 0), W(1, 1)}},
    {"DSV4_HC_PRE", {1, 2}, PLAIN, {W(0, 0), W(1, 1)}},
    {"DSV4_HC_POST", {1, 2, 3, 4}, PLAIN, {{0}}},
    {"IM2COL", {2}, COLUMNS, WINDOW_WORDS},
    {"CONV_2D", {1, 2}, KERNEL, WINDOW_WORDS},
    {"CONV_2D_DW", {1, 2}, KERNEL, WINDOW_WORDS},
    {"CONV_TRANSPOSE_1D", {1, 2}, PLAIN, {W(0, 0)}},
    {"POOL_1D", {1}, POOL, {W(0, 8), W(1, 0), W(2, 2), W(3, 4)}},
    {"POOL_2D", {1}, POOL, {W(0, 8), W(1, 0), W(2, 1), W(3, 2), W(4, 3), W(5, 4), W(6, 5)}},
    {"UPSCALE", {1}, RESIZE, {{0}}},
    {"PAD_REFLECT_1D", {1}, PLAIN, {W(0, 0), W(1, 1)}},
    {"ROLL", {1}, PLAIN, {W(0, 0), W(1, 1), W(2, 2), W(3, 3)}},
    {"TIMESTEP_EMBEDDING", {1}, PLAIN, {W(0, 0), W(1, 1)}},
    {"COUNT_EQUAL", {1, 2}, PLAIN, {{0}}},
    {"CONV_TRANSPOSE_2D", {1, 2}, PLAIN, {W(0, 0)}},
    {"COL2IM_1D", {1}, CHANNELS, {W(0, 1), W(2, 2)}},
    {"IM2COL_3D", {2}, VOLUME, VOLUME_WORDS},
    {"CONV_3D", {1, 2}, VOLUME, VOLUME_WORDS},
    {"WIN_PART", {1}, WINDOWS, {W(2, 0)}},
    {"WIN_UNPART", {1}, PLAIN, {W(0, 0)}},
    {"GET_REL_POS", {1}, PLAIN, {{0}}},
    {"ADD_REL_POS", {1, 2, 3}, PLAIN, {{0}}},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* The library's number of each row that the host's names have led to. */
static enum sheaf_op op_of_row[N_ROWS];

static enum sheaf_op find_op(const char *name) {
    for (int i = 0; i < SHEAF_OP_COUNT; i++)
        if (!strcmp(sheaf_op_name((enum sheaf_op)i), name)) return (enum sheaf_op)i;
    return SHEAF_OP_COUNT;
}

int gg_op_row(const char *name) {
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name)) continue;
        op_of_row[i] = find_op(strcmp(name, "ADD1") ? name : "ADD");
        return op_of_row[i] == SHEAF_OP_COUNT ? -1 : i;
    }
    return -1;
}

static int mapped(const int8_t *map, int room, int32_t number) {
    return number >= 0 && number < room ? map[number] : -1;
}
enum sheaf_op gg_op_of(const struct gg_host *host, int32_t number) {
    const int row = mapped(host->op, GG_MAX_OPS, number);
    return row < 0 ? SHEAF_OP_COUNT : op_of_row[row];
}
int gg_type_of(const struct gg_host *host, int32_t number) {
    return mapped(host->type, GG_MAX_TYPES, number);
}

/* ---- what a row's words do not say ---- */

static bool flatten(struct sheaf_tensor *out) {
    out->ne[0] *= out->ne[1] * out->ne[2] * out->ne[3];
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) {
        out->ne[i] = 1;
        out->nb[i] = out->nb[0] * (size_t)out->ne[0];
    }
    return true;
}

static bool take_shape(const struct gg_tensor *src, struct sheaf_tensor *out) {
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        out->ne[i] = src->ne[i];
        if (i) out->nb[i] = out->nb[i - 1] * (size_t)out->ne[i - 1];
    }
    return true;
}

/* The part begins `offset` bytes into a, which is dense, and lies in it with a's strides. */
static bool find_start(const struct gg_tensor *t, struct sheaf_tensor *out) {
    const struct gg_tensor *a = t->src[0], *b = t->src[1];
    size_t rest = (uint32_t)t->op_params[3];
    for (int i = SHEAF_MAX_DIMS; i-- > 0;) {
        if (i && b->ne[i] > 1 && (uint32_t)t->op_params[i - 1] != a->nb[i]) return false;
        if (a->nb[i] == 0) return false;
        out->op_params[i] = (int32_t)(rest / a->nb[i]);
        rest %= a->nb[i];
    }
    return rest == 0;
}

static bool set_size(struct sheaf_tensor *out, int64_t width, int64_t height) {
    out->op_params[0] = (int32_t)width;
    out->op_params[1] = (int32_t)height;
    return width <= INT32_MAX && height <= INT32_MAX;
}

/* Words of dimension 1: stride 1, no pad, dilation 1. */
static void set_flat_window(struct sheaf_tensor *out) {
    out->op_params[3] = out->op_params[7] = 1;
    out->op_params[5] = 0;
}

/* Columns of signals are [c.w, I, n] in ggml, and [c.w, I, 1, n] here. */
static bool set_columns(const struct gg_tensor *t, struct sheaf_tensor *out,
                        struct gg_operands *operands) {
    const struct gg_tensor *kernel = t->src[0];
    if (t->op_params[6]) return set_size(out, kernel->ne[0], kernel->ne[1]);
    set_flat_window(out);
    operands->signals = true;
    out->ne[3] = out->ne[2];
    out->ne[2] = 1;
    out->nb[3] = out->nb[2];
    return t->ne[3] == 1 && set_size(out, kernel->ne[0], 1);
}

static bool set_pool(struct sheaf_tensor *out) {
    out->op_params[6] = 1;
    if (out->op == SHEAF_OP_POOL_1D) {
        set_flat_window(out);
        out->op_params[1] = 1;
    }
    out->op_params[7] = 1;
    return true;
}

static bool set_resize(const struct gg_tensor *t, struct sheaf_tensor *out) {
    const int mode = t->op_params[0] & SCALE_MODE, flags = t->op_params[0] & ~SCALE_MODE;
    out->op_params[0] = flags & ANTIALIAS ? (int)SHEAF_SCALE_MODE_ANTIALIAS : mode;
    out->op_params[1] = (flags & ALIGN_CORNERS) != 0;
    return !(flags & ~(ALIGN_CORNERS | ANTIALIAS)) && mode <= SHEAF_SCALE_MODE_BICUBIC &&
           (!(flags & ANTIALIAS) || mode == SHEAF_SCALE_MODE_BILINEAR);
}

static bool translate_special(const struct gg_host *host, const struct op_row *row,
                              const struct gg_tensor *t, struct sheaf_tensor *out,
                              struct gg_operands *operands) {
    int number;
    switch (row->special) {
    case PLAIN:
    case NO_OPERAND:
    case WINDOWS:
        return true;
    case K_OF_NE0:
        out->op_params[0] = (int32_t)t->ne[0];
        return t->ne[0] <= INT32_MAX;
    case CAST:
        if (t->src[1] != t) return true;
        out->op = SHEAF_OP_DUP;
        operands->order[1] = -1;
        return true;
    case UNARY_OP:
        number = mapped(host->unary, GG_MAX_UNARY, t->op_params[0]);
        out->op_params[0] = number;
        return number >= 0;
    case GLU_OP:
        number = mapped(host->glu, GG_MAX_GLU, t->op_params[0]);
        out->op_params[0] = number;
        return number >= 0;
    case GROUPS:
        out->op_params[2] =
            t->op_params[0] > 0 ? (int32_t)((t->ne[2] - 1) / t->op_params[0] + 1) : 0;
        return t->op_params[0] > 0;
    case SAME_SHAPE:
        return take_shape(t->src[0], out);
    case FLAT:
        return flatten(out);
    case ROWS_DENSE:
        number = gg_type_of(host, t->src[0]->type);
        return number >= 0 && (t->src[0]->ne[0] <= 1 ||
                               t->src[0]->nb[0] == sheaf_type_size((enum sheaf_type)number));
    case PART:
        return find_start(t, out);
    case KERNEL:
        return set_size(out, t->src[0]->ne[0], t->src[0]->ne[1]);
    case VOLUME:
        out->op_params[2] = (int32_t)t->src[0]->ne[2];
        return t->src[0]->ne[2] <= INT32_MAX && set_size(out, t->src[0]->ne[0], t->src[0]->ne[1]);
    case CHANNELS:
        number = t->op_params[1];
        out->op_params[0] = number > 0 ? (int32_t)(t->src[0]->ne[0] / number) : 0;
        return number > 0 && t->src[0]->ne[0] <= INT32_MAX;
    case COLUMNS:
        return set_columns(t, out, operands);
    case POOL:
        return set_pool(out);
    case RESIZE:
        return set_resize(t, out);
    }
    return false;
}

/* ggml searches for the scales of K-quants and their like; the library takes the nearest, so a copy
 * into such a type would be another one. */
static bool is_search_type(enum sheaf_type type) {
    static const enum sheaf_type simple[] = {SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_1, SHEAF_TYPE_Q5_0,
                                             SHEAF_TYPE_Q5_1, SHEAF_TYPE_Q8_0, SHEAF_TYPE_IQ4_NL};
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (simple[i] == type) return false;
    return sheaf_is_quantized(type);
}

/* Have the operands gone into the node, all that ggml's node has? */
static bool takes_all(const struct op_row *row, const struct gg_tensor *t,
                      struct gg_operands *operands) {
    int left = 0;
    for (int i = 0; i < GG_MAX_SRC && t->op != 0; i++) left += t->src[i] != NULL;
    for (int i = 0; i < SHEAF_MAX_SRC && row->src[i]; i++) {
        operands->order[i] = (int8_t)(row->src[i] - 1);
        left -= t->src[operands->order[i]] != NULL;
    }
    const bool has_shape_only = row->special == NO_OPERAND || row->special == COLUMNS ||
                                (row->special == VOLUME && row->src[0] == 2);
    return left == 0 || has_shape_only;
}

bool gg_is_dense(const struct gg_host *host, const struct gg_tensor *t) {
    const int type = gg_type_of(host, t->type);
    if (type < 0) return false;
    size_t next = sheaf_type_size((enum sheaf_type)type);
    for (int i = 0; i < GG_MAX_DIMS; i++) {
        if (t->ne[i] == 0) return true;
        if (t->ne[i] > 1 && t->nb[i] != next) return false;
        next = i ? next * (size_t)t->ne[i] : sheaf_row_size((enum sheaf_type)type, t->ne[0]);
    }
    return true;
}

bool gg_translate(const struct gg_host *host, const struct gg_tensor *t, struct sheaf_tensor *out,
                  struct gg_operands *operands) {
    const int n = mapped(host->op, GG_MAX_OPS, t->op);
    const int type = gg_type_of(host, t->type);
    memset(out, 0, sizeof *out);
    memset(operands->order, -1, sizeof operands->order);
    operands->signals = false;
    if (n < 0 || type < 0) return false;
    const struct op_row *row = &rows[n];
    out->op = op_of_row[n];
    out->type = (enum sheaf_type)type;
    memcpy(out->ne, t->ne, sizeof out->ne);
    memcpy(out->nb, t->nb, sizeof out->nb);
    for (int i = 0; i < MAX_WORDS && row->words[i][0]; i++)
        out->op_params[row->words[i][1] - 1] = t->op_params[row->words[i][0] - 1];
    if (!takes_all(row, t, operands)) return false;
    if (!t->view_src && !gg_is_dense(host, t)) return false;
    if (is_search_type(out->type) && !sheaf_op_is_view(out->op) && out->op != SHEAF_OP_NONE &&
        t->src[0] && t->src[0]->type != t->type)
        return false;
    return translate_special(host, row, t, out, operands);
}

bool gg_operand(const struct gg_host *host, const struct gg_operands *operands, int i,
                const struct gg_tensor *src, struct sheaf_tensor *out) {
    static const int8_t of_signals[SHEAF_MAX_DIMS] = {0, 3, 1, 2};
    const int type = gg_type_of(host, src->type);
    *out = (struct sheaf_tensor){.type = (enum sheaf_type)type};
    if (type < 0) return false;
    for (int k = 0; k < SHEAF_MAX_DIMS; k++) {
        const int from = operands->signals && i == 0 ? of_signals[k] : k;
        out->ne[k] = src->ne[from];
        out->nb[k] = src->nb[from];
    }
    return true;
}

bool gg_is_view(const struct sheaf_tensor *node) { return sheaf_op_is_view(node->op); }

bool gg_writes_operand(const struct sheaf_tensor *node) {
    return node->op == SHEAF_OP_CPY || node->op == SHEAF_OP_SET_ROWS;
}

/* ---- the other direction ---- */

static int number_of(const int8_t *map, int room, int ours) {
    for (int i = 0; i < room && ours >= 0; i++)
        if (map[i] == ours) return i;
    return -1;
}

/* The row of an op, and ggml's number of it; -1: the table or ggml lacks it. */
static int find_row(const struct gg_host *host, enum sheaf_op op, int *number) {
    for (int r = 0; r < N_ROWS; r++) {
        *number = op_of_row[r] == op ? number_of(host->op, GG_MAX_OPS, r) : -1;
        if (*number >= 0) return r;
    }
    return -1;
}

int gg_type_number(const struct gg_host *host, enum sheaf_type type) {
    return number_of(host->type, GG_MAX_TYPES, (int)type);
}

/* ggml's results of two dimensions that are flat here: the first is a row of the values. */
static bool unflatten(const struct sheaf_tensor *t, struct gg_tensor *out) {
    const struct sheaf_tensor *values = t->src[t->op == SHEAF_OP_GATED_DELTA_NET ? 2 : 0];
    const int64_t row = values ? values->ne[0] * values->ne[1] : 0;
    if (row <= 0 || t->ne[0] % row) return false;
    out->ne[0] = row;
    out->ne[1] = t->ne[0] / row;
    out->nb[1] = out->nb[0] * (size_t)row;
    out->nb[2] = out->nb[3] = out->nb[1] * (size_t)out->ne[1];
    return true;
}

/* The strides of a, which is dense, and where the part begins in it, in bytes; a is copied
 * first. */
static bool part_back(const struct sheaf_tensor *t, struct gg_tensor *out) {
    const struct sheaf_tensor *a = t->src[0];
    uint64_t offset = 0;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        offset += (uint64_t)t->op_params[i] * a->nb[i];
        if (i && a->nb[i] > INT32_MAX) return false;
        if (i) out->op_params[i - 1] = (int32_t)a->nb[i];
    }
    out->op_params[3] = (int32_t)offset;
    return offset <= INT32_MAX;
}

/* Words 0 and 1 are the kernel's own. */
static bool is_of_kernel(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *kernel = t->src[0];
    return t->op_params[0] == kernel->ne[0] && t->op_params[1] == kernel->ne[1];
}

static bool is_plain_window(const struct sheaf_tensor *t) {
    const bool flat = t->op_params[1] == 1 && t->op_params[3] == 1 && t->op_params[5] == 0;
    return t->op_params[6] == 1 && t->op_params[7] == 1 && (t->op == SHEAF_OP_POOL_2D || flat);
}

static bool resize_back(const struct sheaf_tensor *t, struct gg_tensor *out) {
    const bool antialias = t->op_params[0] == (int32_t)SHEAF_SCALE_MODE_ANTIALIAS;
    out->op_params[0] =
        (antialias ? (int32_t)SHEAF_SCALE_MODE_BILINEAR | ANTIALIAS : t->op_params[0]) |
        (t->op_params[1] ? ALIGN_CORNERS : 0);
    return true;
}

static bool windows_back(const struct sheaf_tensor *t, struct gg_tensor *out) {
    const int32_t w = t->op_params[0];
    if (w < 1) return false;
    for (int i = 0; i < 2; i++) out->op_params[i] = (int32_t)((t->src[0]->ne[i + 1] + w - 1) / w);
    return true;
}

static bool special_back(const struct gg_host *host, enum special special,
                         const struct sheaf_tensor *t, struct gg_tensor *out) {
    switch (special) {
    case UNARY_OP:
        out->op_params[0] = number_of(host->unary, GG_MAX_UNARY, t->op_params[0]);
        return out->op_params[0] >= 0;
    case GLU_OP:
        out->op_params[0] = number_of(host->glu, GG_MAX_GLU, t->op_params[0]);
        return out->op_params[0] >= 0;
    case GROUPS: { /* a slice has fewer groups, of as many channels */
        const int64_t n = t->op_params[2];
        if (n <= 0) return false;
        out->op_params[0] = (int32_t)((t->ne[2] + n - 1) / n);
        return out->op_params[0] && (t->ne[2] + out->op_params[0] - 1) / out->op_params[0] == n;
    }
    case FLAT:
        return unflatten(t, out);
    case PART:
        return part_back(t, out);
    case KERNEL:
        return is_of_kernel(t);
    case POOL:
        return is_plain_window(t);
    case RESIZE:
        return resize_back(t, out);
    case WINDOWS:
        return windows_back(t, out);
    case CHANNELS:
        if (t->op_params[0] < 1) return false;
        out->op_params[1] = (int32_t)(t->src[0]->ne[0] / t->op_params[0]);
        return true;
    default:
        return true;
    }
}

/* DUP and CONT of another type are conversions, which ggml makes by a CPY to itself. */
static bool is_conversion(const struct sheaf_tensor *t) {
    return (t->op == SHEAF_OP_DUP || t->op == SHEAF_OP_CONT) && t->src[0] &&
           t->src[0]->type != t->type;
}

/* The words of ours that a special deals with, or that only slices have. */
static bool is_known_word(enum special special, int word) {
    if (word == SHEAF_OP_PARAM_BASE || word == SHEAF_OP_PARAM_EXTENT) return true;
    switch (special) {
    case UNARY_OP:
    case GLU_OP:
    case CHANNELS:
        return word == 0;
    case GROUPS:
        return word == 2;
    case PART:
        return word < SHEAF_MAX_DIMS;
    case KERNEL:
    case RESIZE:
        return word < 2;
    case POOL:
        return word < 8;
    default:
        return false;
    }
}

/* Does the row, or its special, know every word that is not 0? */
static bool knows_words(const struct op_row *row, const struct sheaf_tensor *t) {
    for (int w = 0; w < SHEAF_MAX_OP_PARAMS && !sheaf_op_is_view(t->op); w++) {
        bool known = !t->op_params[w] || is_known_word(row->special, w);
        for (int i = 0; i < MAX_WORDS && row->words[i][0] && !known; i++)
            known = row->words[i][1] == w + 1;
        if (!known) return false;
    }
    return true;
}

/* As in the other direction: a conversion that ggml makes by another rule. */
static bool is_search(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *rows_of = t->src[t->op == SHEAF_OP_SET_ROWS];
    return is_search_type(t->type) && !sheaf_op_is_view(t->op) && rows_of &&
           rows_of->type != t->type;
}

bool gg_translate_back(const struct gg_host *host, const struct sheaf_tensor *t,
                       struct gg_tensor *out, int8_t order[GG_MAX_SRC]) {
    int number;
    const bool conversion = is_conversion(t);
    const int r = find_row(host, conversion ? SHEAF_OP_CPY : t->op, &number);
    memset(out, 0, sizeof *out);
    memset(order, GG_NO_SRC, GG_MAX_SRC);
    out->type = gg_type_number(host, t->type);
    memcpy(out->ne, t->ne, sizeof out->ne);
    memcpy(out->nb, t->nb, sizeof out->nb);
    memcpy(out->name, t->name, sizeof out->name - 1);
    if (r < 0 || out->type < 0 || is_search(t) || !knows_words(&rows[r], t)) return false;
    const struct op_row *row = &rows[r];
    out->op = number;
    for (int i = 0; i < MAX_WORDS && row->words[i][0]; i++)
        out->op_params[row->words[i][0] - 1] = t->op_params[row->words[i][1] - 1];
    for (int i = 0; i < SHEAF_MAX_SRC && row->src[i]; i++) order[row->src[i] - 1] = (int8_t)i;
    for (int i = 0; i < SHEAF_MAX_SRC; i++) /* an operand that the row does not know */
        if (t->src[i] && t->op != SHEAF_OP_NONE && !row->src[i]) return false;
    if (conversion) order[1] = GG_SELF_SRC;
    if (row->special == NO_OPERAND) order[0] = GG_SELF_SRC; /* for its shape only */
    return special_back(host, row->special, t, out);
}
