/* Nodes that ggml has no op or no parameters for, as several nodes that it has.
 *
 * A slice of an indexed dimension holds rows, experts or heads [base, base + n) of more (words 14
 * and 15, sheaf/ops.h). ggml takes an index for one of the whole, so a slice that ran as it is
 * would be wrong in silence: ids become local ones, what belongs to another member is multiplied by
 * 0, and slopes of ALiBi, which ggml derives from the number of a head, become a mask for each
 * head. Heads that divide a group (word 13) become up to three nodes, whose groups are of one size.
 * Other nodes are refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/member.h"
#include "sheaf/ops.h"

static float param(const struct sheaf_tensor *t, int word) {
    float f;
    memcpy(&f, &t->op_params[word], sizeof f);
    return f;
}
static void set_param(struct sheaf_tensor *t, int word, float f) {
    memcpy(&t->op_params[word], &f, sizeof f);
}

static void lay_out(struct sheaf_tensor *t) {
    t->nb[0] = sheaf_type_size(t->type);
    t->nb[1] = sheaf_row_size(t->type, t->ne[0]);
    for (int i = 2; i < SHEAF_MAX_DIMS; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
}

static struct sheaf_tensor *add(struct gg_lowered *l, enum sheaf_op op, enum sheaf_type type,
                                const int64_t ne[SHEAF_MAX_DIMS]) {
    struct sheaf_tensor *t = &l->t[l->n++];
    memset(t, 0, sizeof *t);
    t->op = op;
    t->type = type;
    memcpy(t->ne, ne, sizeof t->ne);
    lay_out(t);
    return t;
}

/* A node whose result lies where the original's does. */
static struct sheaf_tensor *add_in_place(struct gg_lowered *l, const struct sheaf_tensor *node,
                                         enum sheaf_op op) {
    struct sheaf_tensor *t = &l->t[l->n];
    l->takes[l->n++] = true;
    *t = *node;
    t->op = op;
    memset(t->src, 0, sizeof t->src);
    memset(t->op_params, 0, sizeof t->op_params);
    return t;
}

/* A view of t from its first byte on, dense unless the caller sets other strides. */
static struct sheaf_tensor *add_view(struct gg_lowered *l, struct sheaf_tensor *t,
                                     enum sheaf_type type, const int64_t ne[SHEAF_MAX_DIMS]) {
    struct sheaf_tensor *v = add(l, SHEAF_OP_VIEW, type, ne);
    v->src[0] = t;
    v->view_src = t->view_src ? t->view_src : t;
    v->view_offs = t->view_offs;
    return v;
}

/* SCALE and CLAMP with parameters x and y, or UNARY: the step, which has none. */
static struct sheaf_tensor *map1(struct gg_lowered *l, enum sheaf_op op, struct sheaf_tensor *a,
                                 float x, float y) {
    struct sheaf_tensor *t = add(l, op, SHEAF_TYPE_F32, a->ne);
    t->src[0] = a;
    if (op == SHEAF_OP_UNARY) {
        t->op_params[0] = SHEAF_UNARY_OP_STEP;
    } else {
        set_param(t, 0, x);
        set_param(t, 1, y);
    }
    return t;
}

static struct sheaf_tensor *converted(struct gg_lowered *l, struct sheaf_tensor *a,
                                      enum sheaf_type type) {
    struct sheaf_tensor *t = add(l, SHEAF_OP_DUP, type, a->ne);
    t->src[0] = a;
    return t;
}

static struct sheaf_tensor *reshaped(struct gg_lowered *l, struct sheaf_tensor *a, int64_t ne0,
                                     int64_t ne1, int64_t ne2, int64_t ne3) {
    const int64_t ne[] = {ne0, ne1, ne2, ne3};
    struct sheaf_tensor *t = add(l, SHEAF_OP_RESHAPE, a->type, ne);
    t->src[0] = t->view_src = a;
    return t;
}

/* ids - base, in floats: whole numbers below 2^24 are exact. */
static struct sheaf_tensor *shifted(struct gg_lowered *l, struct sheaf_tensor *ids, int64_t base) {
    return map1(l, SHEAF_OP_SCALE, converted(l, ids, SHEAF_TYPE_F32), 1, -(float)base);
}
/* 1 where 0 <= s < n, else 0. */
static struct sheaf_tensor *inside(struct gg_lowered *l, struct sheaf_tensor *s, int64_t n) {
    struct sheaf_tensor *low = map1(l, SHEAF_OP_UNARY, map1(l, SHEAF_OP_SCALE, s, 1, 0.5f), 0, 0);
    struct sheaf_tensor *high =
        map1(l, SHEAF_OP_UNARY, map1(l, SHEAF_OP_SCALE, s, -1, (float)n - 0.5f), 0, 0);
    struct sheaf_tensor *both = add(l, SHEAF_OP_MUL, SHEAF_TYPE_F32, s->ne);
    both->src[0] = low;
    both->src[1] = high;
    return both;
}
static struct sheaf_tensor *clamped(struct gg_lowered *l, struct sheaf_tensor *s, int64_t n) {
    return converted(l, map1(l, SHEAF_OP_CLAMP, s, 0, (float)(n - 1)), SHEAF_TYPE_I32);
}

static bool is_slice(const struct sheaf_tensor *node) {
    return node->op_params[SHEAF_OP_PARAM_EXTENT] != 0;
}

/* The node with ids of what this member holds, and zeros where another member has what an id
 * means. */
static bool lower_ids(struct gg_lowered *l, const struct sheaf_tensor *node, int ids_at,
                      int64_t held) {
    if (node->op_params[SHEAF_OP_PARAM_EXTENT] >= 1 << 24) return false;
    if (!held) {
        add_in_place(l, node, SHEAF_OP_FILL);
        return true;
    }
    struct sheaf_tensor *s = shifted(l, node->src[ids_at], node->op_params[SHEAF_OP_PARAM_BASE]);
    struct sheaf_tensor *in = inside(l, s, held), *local = clamped(l, s, held);
    struct sheaf_tensor *result = add_in_place(l, node, node->op);
    memcpy(result->src, node->src, sizeof result->src);
    result->src[ids_at] = local;
    struct sheaf_tensor *column =
        reshaped(l, in, 1, in->ne[0], in->ne[1], in->ne[2]); /* ids have 3 dimensions at most */
    struct sheaf_tensor *masked = add_in_place(l, node, SHEAF_OP_MUL);
    masked->src[0] = result;
    masked->src[1] = column;
    return true;
}

/* Rows, or experts, by their ids. */
static bool lower_index(struct gg_lowered *l, const struct sheaf_tensor *node, int ids_at,
                        int64_t held) {
    return node->type == SHEAF_TYPE_F32 && node->src[ids_at]->type == SHEAF_TYPE_I32 &&
           lower_ids(l, node, ids_at, held);
}

/* ---- copies of blocks ---- */

/* t as numbers of two bytes, which a copy of blocks may take for what they are. */
static struct sheaf_tensor *as_halves(struct gg_lowered *l, struct sheaf_tensor *t) {
    struct sheaf_tensor *v = add_view(l, t, SHEAF_TYPE_F16, t->ne);
    v->ne[0] = (int64_t)(sheaf_row_size(t->type, t->ne[0]) / 2);
    memcpy(v->nb, t->nb, sizeof v->nb);
    v->nb[0] = 2;
    return v;
}

/* Copies of types that ggml's devices do not copy. The result is looked at with its own type. */
static bool lower_block_copy(struct gg_lowered *l, const struct sheaf_tensor *node) {
    struct sheaf_tensor *from = as_halves(l, node->src[0]);
    struct sheaf_tensor *to = node->op == SHEAF_OP_CPY ? as_halves(l, node->src[1]) : NULL;
    struct sheaf_tensor *copy = add_in_place(l, node, node->op);
    copy->type = SHEAF_TYPE_F16;
    copy->ne[0] = (int64_t)(sheaf_row_size(node->type, node->ne[0]) / 2);
    copy->nb[0] = 2;
    copy->src[0] = from;
    copy->src[1] = to;
    struct sheaf_tensor *result = add_view(l, copy, node->type, node->ne);
    memcpy(result->nb, node->nb, sizeof result->nb);
    return true;
}

static bool is_block_copy(const struct sheaf_tensor *node) {
    const struct sheaf_tensor *a = node->src[0];
    return (node->op == SHEAF_OP_CPY || node->op == SHEAF_OP_CONT || node->op == SHEAF_OP_DUP) &&
           sheaf_is_quantized(node->type) && a->type == node->type &&
           a->nb[0] == sheaf_type_size(a->type) && sheaf_type_size(a->type) % 2 == 0;
}

/* ---- means, orders and rolls ---- */

/* A mean over a slice is divided by the whole number. */
static bool lower_mean(struct gg_lowered *l, const struct sheaf_tensor *node) {
    struct sheaf_tensor *sum = add_in_place(l, node, SHEAF_OP_SUM_ROWS);
    sum->src[0] = node->src[0];
    struct sheaf_tensor *mean = add_in_place(l, node, SHEAF_OP_SCALE);
    mean->src[0] = sum;
    set_param(mean, 0, 1.0f / (float)node->op_params[SHEAF_OP_PARAM_EXTENT]);
    return true;
}

/* The k largest in falling order; ggml's TOP_K has no order. */
static bool lower_top_k(struct gg_lowered *l, const struct sheaf_tensor *node) {
    struct sheaf_tensor *order = add(l, SHEAF_OP_ARGSORT, SHEAF_TYPE_I32, node->src[0]->ne);
    order->src[0] = node->src[0];
    order->op_params[0] = SHEAF_SORT_ORDER_DESC;
    struct sheaf_tensor *first = add_view(l, order, SHEAF_TYPE_I32, node->ne);
    memcpy(first->nb, order->nb, sizeof first->nb);
    add_in_place(l, node, SHEAF_OP_CONT)->src[0] = first;
    return true;
}

/* ggml wraps an index once, so a shift must be less than the extent. */
static bool is_far_roll(const struct sheaf_tensor *node) {
    bool far = false;
    for (int i = 0; i < SHEAF_MAX_DIMS && node->op == SHEAF_OP_ROLL; i++)
        far = far || llabs(node->op_params[i]) >= node->ne[i];
    return far;
}

static bool lower_roll(struct gg_lowered *l, const struct sheaf_tensor *node) {
    struct sheaf_tensor *near = add_in_place(l, node, SHEAF_OP_ROLL);
    near->src[0] = node->src[0];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++)
        near->op_params[i] = node->ne[i] ? (int32_t)(node->op_params[i] % node->ne[i]) : 0;
    return true;
}

/* ---- attention ---- */

/* The slope of head h of n (Press, Smith and Lewis 2022): 2^(-max_bias * (h + 1) / p) for h < p,
 * the largest power of 2 that is at most n; the odd powers of twice that between them. */
static float slope(float max_bias, int64_t h, int64_t n) {
    int64_t p = 1;
    while (p * 2 <= n) p *= 2;
    return h < p ? exp2f(-max_bias * (float)(h + 1) / (float)p)
                 : exp2f(-max_bias / 2 * (float)(2 * (h - p) + 1) / (float)p);
}

/* The slopes of heads [base, base + n) of more times the mask: a mask a head. NULL: cannot be. */
static struct sheaf_tensor *masks_of_slopes(struct gg_lowered *l, const struct sheaf_tensor *node,
                                            int mask_at, int64_t heads) {
    struct sheaf_tensor *mask = node->src[mask_at];
    if (!mask || heads % mask->ne[2]) return NULL;
    const int64_t ne[] = {mask->ne[0], mask->ne[1], heads, mask->ne[3]};
    const int64_t per_head[] = {1, 1, heads, 1};
    l->values = malloc((size_t)heads * sizeof *l->values);
    if (!l->values) return NULL;
    for (int64_t h = 0; h < heads; h++)
        l->values[h] = slope(param(node, 1), node->op_params[SHEAF_OP_PARAM_BASE] + h,
                             node->op_params[SHEAF_OP_PARAM_EXTENT]);
    struct sheaf_tensor *slopes = add(l, SHEAF_OP_NONE, SHEAF_TYPE_F32, per_head);
    struct sheaf_tensor *all = add(l, SHEAF_OP_REPEAT, mask->type, ne);
    all->src[0] = mask;
    struct sheaf_tensor *bias = add(l, SHEAF_OP_MUL, mask->type, ne);
    bias->src[0] = all;
    bias->src[1] = slopes;
    return bias;
}

static bool lower_slopes(struct gg_lowered *l, const struct sheaf_tensor *node, int mask_at,
                         int64_t heads) {
    struct sheaf_tensor *bias = masks_of_slopes(l, node, mask_at, heads);
    if (!bias) return false;
    struct sheaf_tensor *result = add_in_place(l, node, node->op);
    memcpy(result->src, node->src, sizeof result->src);
    memcpy(result->op_params, node->op_params, sizeof result->op_params);
    result->op_params[SHEAF_OP_PARAM_BASE] = result->op_params[SHEAF_OP_PARAM_EXTENT] = 0;
    result->src[mask_at] = bias;
    set_param(result, 1, 0);
    return true;
}

/* Indices [first, first + n) of dimension `axis`. */
static struct sheaf_tensor *part(struct gg_lowered *l, struct sheaf_tensor *t, int axis,
                                 int64_t first, int64_t n) {
    if (!t || t->ne[axis] == n) return t;
    struct sheaf_tensor *v = add_view(l, t, t->type, t->ne);
    v->ne[axis] = n;
    memcpy(v->nb, t->nb, sizeof v->nb);
    v->view_offs += (size_t)first * t->nb[axis];
    return v;
}

/* Heads [first, first + n), which read K/V heads [kv, kv + n_kv) in groups of one size. */
struct heads {
    int64_t first, n, kv, n_kv;
};

/* GPUs bind operands of attention where their memory allows it: a part that begins elsewhere is
 * copied. */
static struct sheaf_tensor *bound_part(const struct gg_member *m, struct gg_lowered *l,
                                       struct sheaf_tensor *t, int axis, int64_t first, int64_t n) {
    struct sheaf_tensor *v = part(l, t, axis, first, n);
    if (v == t || gg_member_binds(m, v)) return v;
    if (!sheaf_is_quantized(v->type)) return converted(l, v, v->type);
    struct sheaf_tensor *halves = as_halves(l, v);
    struct sheaf_tensor *copy = converted(l, halves, SHEAF_TYPE_F16);
    return add_view(l, copy, v->type, v->ne);
}

static struct sheaf_tensor *attend(const struct gg_member *gg, struct gg_lowered *l,
                                   const struct sheaf_tensor *node, struct sheaf_tensor *mask,
                                   struct heads h) {
    struct sheaf_tensor *q = bound_part(gg, l, node->src[0], 2, h.first, h.n);
    struct sheaf_tensor *k = bound_part(gg, l, node->src[1], 2, h.kv, h.n_kv);
    struct sheaf_tensor *v = bound_part(gg, l, node->src[2], 2, h.kv, h.n_kv);
    struct sheaf_tensor *m =
        mask && mask->ne[2] > 1 ? bound_part(gg, l, mask, 2, h.first, h.n) : mask;
    struct sheaf_tensor *sinks = bound_part(gg, l, node->src[4], 0, h.first, h.n);
    const int64_t ne[] = {node->ne[0], h.n, node->ne[2], node->ne[3]};
    struct sheaf_tensor *t = add(l, SHEAF_OP_FLASH_ATTN_EXT, SHEAF_TYPE_F32, ne);
    struct sheaf_tensor *const src[] = {q, k, v, m, sinks};
    memcpy(t->src, src, sizeof src);
    set_param(t, 0, param(node, 0));
    set_param(t, 2, param(node, 2));
    return t;
}

/* Heads that begin or end inside of a group of r: those of the first K/V head, of whole groups and
 * of the last one each by a node, side by side. */
static bool lower_groups(const struct gg_member *m, struct gg_lowered *l,
                         const struct sheaf_tensor *node) {
    const int64_t heads = node->src[0]->ne[2], n_kv = node->src[1]->ne[2];
    const int64_t r = node->op_params[SHEAF_OP_PARAM_GROUP];
    const int64_t skip = node->op_params[SHEAF_OP_PARAM_BASE] % r, begin = skip ? r - skip : 0;
    const int64_t end = (skip + heads) % r, whole = heads - begin - end;
    struct sheaf_tensor *mask = node->src[3], *all = NULL;
    if (mask && mask->ne[2] != 1 && (mask->ne[2] != heads || mask->ne[3] != 1)) return false;
    if (param(node, 1) > 0 && !(mask = masks_of_slopes(l, node, 3, heads))) return false;
    const struct heads parts[] = {
        {0, begin, 0, 1}, {begin, whole, begin > 0, whole / r}, {begin + whole, end, n_kv - 1, 1}};
    for (int i = 0, left = (begin > 0) + (whole > 0) + (end > 0); i < 3; i++) {
        if (!parts[i].n) continue;
        struct sheaf_tensor *t = attend(m, l, node, mask, parts[i]);
        left--;
        if (all) {
            struct sheaf_tensor *a = all;
            const int64_t ne[] = {t->ne[0], a->ne[1] + t->ne[1], t->ne[2], t->ne[3]};
            all = left ? add(l, SHEAF_OP_CONCAT, SHEAF_TYPE_F32, ne)
                       : add_in_place(l, node, SHEAF_OP_CONCAT);
            all->op_params[0] = 1;
            all->src[0] = a;
            all->src[1] = t;
        } else {
            all = t;
        }
    }
    return true;
}

/* ---- slices without elements ---- */

/* A member that holds nothing of an operand adds nothing; GPUs want memory behind every operand. */
static bool lower_empty(struct gg_lowered *l, const struct sheaf_tensor *node) {
    if (node->op == SHEAF_OP_SET_ROWS) { /* what it writes into */
        struct sheaf_tensor *t = add(l, SHEAF_OP_VIEW, node->type, node->ne);
        memcpy(t->nb, node->nb, sizeof t->nb);
        t->src[0] = node->src[0];
        t->view_src = node->view_src ? node->view_src : node->src[0];
        t->view_offs = node->view_offs;
        return true;
    }
    if (node->op != SHEAF_OP_CONCAT) {
        add_in_place(l, node, SHEAF_OP_FILL);
        return true;
    }
    add_in_place(l, node, SHEAF_OP_CONT)->src[0] = node->src[sheaf_is_empty(node->src[0])];
    return true;
}

static bool reads_nothing(const struct gg_member *m, const struct sheaf_tensor *node) {
    const struct sheaf_tensor *a = node->src[0], *b = node->src[1];
    const bool both = node->op == SHEAF_OP_MUL_MAT || node->op == SHEAF_OP_MUL_MAT_ID ||
                      node->op == SHEAF_OP_CONCAT || node->op == SHEAF_OP_SET_ROWS;
    return m->type != GG_DEVICE_TYPE_CPU && a &&
           (sheaf_is_empty(a) || (both && b && sheaf_is_empty(b)));
}

/* ---- which op is lowered how ---- */

static bool lower(const struct gg_member *m, const struct sheaf_tensor *node,
                  struct gg_lowered *out) {
    if (reads_nothing(m, node)) return lower_empty(out, node);
    switch (node->op) {
    case SHEAF_OP_GET_ROWS:
        return lower_index(out, node, 1, node->src[0]->ne[1]);
    case SHEAF_OP_MUL_MAT_ID: /* GPUs take the ids of a token for distinct; clamped ones are not */
        return m->type == GG_DEVICE_TYPE_CPU && lower_index(out, node, 2, node->src[0]->ne[2]);
    case SHEAF_OP_ADD_ID:
        return lower_ids(out, node, 2, node->src[1]->ne[1]);
    case SHEAF_OP_CPY:
    case SHEAF_OP_CONT:
    case SHEAF_OP_DUP:
        return lower_block_copy(out, node);
    case SHEAF_OP_MEAN:
        return lower_mean(out, node);
    case SHEAF_OP_SOFT_MAX:
        return lower_slopes(out, node, 1, node->ne[2]);
    case SHEAF_OP_FLASH_ATTN_EXT:
        return node->op_params[SHEAF_OP_PARAM_GROUP]
                   ? lower_groups(m, out, node)
                   : lower_slopes(out, node, 3, node->src[0]->ne[2]);
    case SHEAF_OP_TOP_K:
        return lower_top_k(out, node);
    case SHEAF_OP_ROLL:
        return lower_roll(out, node);
    default:
        return false;
    }
}

/* Of the ops that count heads only those with slopes care which heads they have; ggml's MUL_MAT has no place for the
 * columns of the whole. */
static bool needs_lowering(const struct gg_member *m, const struct sheaf_tensor *node) {
    if (reads_nothing(m, node)) return true;
    if (node->op == SHEAF_OP_TOP_K || is_block_copy(node) || is_far_roll(node)) return true;
    if (node->op == SHEAF_OP_FLASH_ATTN_EXT && node->op_params[SHEAF_OP_PARAM_GROUP]) return true;
    if (node->op == SHEAF_OP_SOFT_MAX || node->op == SHEAF_OP_FLASH_ATTN_EXT)
        return is_slice(node) && param(node, 1) > 0;
    return node->op != SHEAF_OP_MUL_MAT && is_slice(node);
}

bool gg_lower(const struct gg_member *m, const struct sheaf_tensor *node, struct gg_lowered *out) {
    memset(out->takes, 0, sizeof out->takes);
    out->n = 0;
    out->values = NULL;
    if (!needs_lowering(m, node)) return false;
    if (lower(m, node, out)) return true;
    out->n = -1;
    return false;
}

void gg_lowered_free(struct gg_lowered *l) {
    free(l->values);
    l->values = NULL;
}
