/* From ggml to the library: a node's words and operands by its row of the table of ops, then what
 * the row's special asks for. */
#include "ggml/translate.h"

#include <string.h>

/* ---- specials ---- */

/* A node that has its type, shape and words, and is to get what they do not say. */
struct translation {
    const struct gg_host *host;
    const struct gg_tensor *from;
    struct sheaf_tensor *to;
    struct gg_operands *operands;
};

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

static bool k_of_ne0(const struct translation *x) {
    x->to->op_params[0] = (int32_t)x->from->ne[0];
    return x->from->ne[0] <= INT32_MAX;
}

static bool cast(const struct translation *x) {
    if (x->from->src[1] != x->from) return true;
    x->to->op = SHEAF_OP_DUP;
    x->operands->order[1] = -1;
    return true;
}

static bool unary_op(const struct translation *x) {
    const int number = gg_mapped(x->host->unary, GG_MAX_UNARY, x->from->op_params[0]);
    x->to->op_params[0] = number;
    return number >= 0;
}

static bool glu_op(const struct translation *x) {
    const int number = gg_mapped(x->host->glu, GG_MAX_GLU, x->from->op_params[0]);
    x->to->op_params[0] = number;
    return number >= 0;
}

static bool channels(const struct translation *x) {
    const int32_t groups = x->from->op_params[0];
    x->to->op_params[2] = groups > 0 ? (int32_t)((x->from->ne[2] - 1) / groups + 1) : 0;
    return groups > 0;
}

static bool same_shape(const struct translation *x) {
    struct sheaf_tensor *out = x->to;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        out->ne[i] = x->from->src[0]->ne[i];
        if (i) out->nb[i] = out->nb[i - 1] * (size_t)out->ne[i - 1];
    }
    return true;
}

static bool flat(const struct translation *x) {
    struct sheaf_tensor *out = x->to;
    out->ne[0] *= out->ne[1] * out->ne[2] * out->ne[3];
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) {
        out->ne[i] = 1;
        out->nb[i] = out->nb[0] * (size_t)out->ne[0];
    }
    return true;
}

static bool dense_rows(const struct translation *x) {
    const struct gg_tensor *a = x->from->src[0];
    const int type = gg_type_of(x->host, a->type);
    return type >= 0 && (a->ne[0] <= 1 || a->nb[0] == sheaf_type_size((enum sheaf_type)type));
}

/* The part begins `offset` bytes into a, which is dense, and lies in it with a's strides. */
static bool part(const struct translation *x) {
    const struct gg_tensor *t = x->from, *a = t->src[0], *b = t->src[1];
    size_t rest = (uint32_t)t->op_params[3];
    for (int i = SHEAF_MAX_DIMS; i-- > 0;) {
        if (i && b->ne[i] > 1 && (uint32_t)t->op_params[i - 1] != a->nb[i]) return false;
        if (a->nb[i] == 0) return false;
        x->to->op_params[i] = (int32_t)(rest / a->nb[i]);
        rest %= a->nb[i];
    }
    return rest == 0;
}

static bool kernel(const struct translation *x) {
    const struct gg_tensor *k = x->from->src[0];
    return set_size(x->to, k->ne[0], k->ne[1]);
}

static bool kernel_3d(const struct translation *x) {
    const struct gg_tensor *k = x->from->src[0];
    x->to->op_params[2] = (int32_t)k->ne[2];
    return k->ne[2] <= INT32_MAX && kernel(x);
}

/* Columns of signals are [c.w, I, n] in ggml, and [c.w, I, 1, n] here. */
static bool columns(const struct translation *x) {
    struct sheaf_tensor *out = x->to;
    if (x->from->op_params[6]) return kernel(x);
    set_flat_window(out);
    x->operands->signals = true;
    out->ne[3] = out->ne[2];
    out->ne[2] = 1;
    out->nb[3] = out->nb[2];
    return x->from->ne[3] == 1 && set_size(out, x->from->src[0]->ne[0], 1);
}

static bool signals(const struct translation *x) {
    const int32_t n = x->from->op_params[1];
    const int64_t rows = x->from->src[0]->ne[0];
    x->to->op_params[0] = n > 0 ? (int32_t)(rows / n) : 0;
    return n > 0 && rows <= INT32_MAX;
}

static bool pool(const struct translation *x) {
    struct sheaf_tensor *out = x->to;
    out->op_params[6] = 1;
    if (out->op == SHEAF_OP_POOL_1D) {
        set_flat_window(out);
        out->op_params[1] = 1;
    }
    out->op_params[7] = 1;
    return true;
}

/* llama.cpp's loader asks by a node of no dimensions whether frequency factors may lie on a device. */
static bool rotation(const struct translation *x) {
    const int dims = x->to->op_params[0], mode = x->to->op_params[1];
    if (!gg_has_angles(x->to)) return false;
    if (dims || (mode != SHEAF_ROPE_TYPE_NORMAL && mode != SHEAF_ROPE_TYPE_NEOX)) return true;
    x->to->op = SHEAF_OP_DUP;
    memset(x->to->op_params, 0, sizeof x->to->op_params);
    memset(x->operands->order + 1, -1, sizeof x->operands->order - 1);
    return true;
}

static bool resize(const struct translation *x) {
    struct sheaf_tensor *out = x->to;
    const int word = x->from->op_params[0], mode = word & GG_SCALE_MODE;
    const int flags = word & ~GG_SCALE_MODE;
    out->op_params[0] = flags & GG_ANTIALIAS ? (int)SHEAF_SCALE_MODE_ANTIALIAS : mode;
    out->op_params[1] = (flags & GG_ALIGN_CORNERS) != 0;
    return !(flags & ~(GG_ALIGN_CORNERS | GG_ANTIALIAS)) && mode <= SHEAF_SCALE_MODE_BICUBIC &&
           (!(flags & GG_ANTIALIAS) || mode == SHEAF_SCALE_MODE_BILINEAR);
}

/* False: the node uses something that the library lacks. NULL: there is nothing to do. */
static bool (*const specials[GG_SPECIAL_COUNT])(const struct translation *x) = {
    [GG_K_OF_NE0] = k_of_ne0,   [GG_CAST] = cast,
    [GG_UNARY_OP] = unary_op,   [GG_GLU_OP] = glu_op,
    [GG_CHANNELS] = channels,   [GG_SAME_SHAPE] = same_shape,
    [GG_FLAT] = flat,           [GG_DENSE_ROWS] = dense_rows,
    [GG_PART] = part,           [GG_KERNEL] = kernel,
    [GG_KERNEL_3D] = kernel_3d, [GG_COLUMNS] = columns,
    [GG_SIGNALS] = signals,     [GG_POOL] = pool,
    [GG_RESIZE] = resize,       [GG_ROTATION] = rotation,
};

/* ---- nodes ---- */

/* Fills the order of operands. Have all that ggml's node has gone into it? */
static bool takes_all(const struct gg_op_row *row, const struct gg_tensor *t,
                      struct gg_operands *operands) {
    int left = 0;
    for (int i = 0; i < GG_MAX_SRC && t->op != 0; i++) left += t->src[i] != NULL;
    for (int i = 0; i < SHEAF_MAX_SRC && row->src[i]; i++) {
        operands->order[i] = (int8_t)(row->src[i] - 1);
        left -= t->src[operands->order[i]] != NULL;
    }
    const bool has_shape_only = row->special == GG_SHAPE_ONLY || row->special == GG_COLUMNS ||
                                (row->special == GG_KERNEL_3D && row->src[0] == 2);
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

/* A conversion into a type whose scales ggml searches for. */
static bool converts_by_search(const struct gg_tensor *t, const struct sheaf_tensor *to) {
    return gg_searches_scales(to->type) && !sheaf_op_is_view(to->op) && to->op != SHEAF_OP_NONE &&
           t->src[0] && t->src[0]->type != t->type;
}

bool gg_translate(const struct gg_host *host, const struct gg_tensor *t, struct sheaf_tensor *out,
                  struct gg_operands *operands) {
    const int n = gg_mapped(host->op, GG_MAX_OPS, t->op);
    const int type = gg_type_of(host, t->type);
    memset(out, 0, sizeof *out);
    memset(operands->order, -1, sizeof operands->order);
    operands->signals = false;
    if (n < 0 || type < 0) return false;
    const struct gg_op_row *row = gg_op_row(n);
    out->op = gg_op_of_row(n);
    out->type = (enum sheaf_type)type;
    memcpy(out->ne, t->ne, sizeof out->ne);
    memcpy(out->nb, t->nb, sizeof out->nb);
    for (int i = 0; i < GG_MAX_WORDS && row->words[i][0]; i++)
        out->op_params[row->words[i][1] - 1] = t->op_params[row->words[i][0] - 1];
    if (!takes_all(row, t, operands)) return false;
    if (!t->view_src && !gg_is_dense(host, t)) return false;
    if (converts_by_search(t, out)) return false;
    const struct translation x = {host, t, out, operands};
    return !specials[row->special] || specials[row->special](&x);
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
