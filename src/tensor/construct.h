/* What constructors of ops share: the check of missing operands, the words of a refusal, a node
 * over operands, a view of one. The files ops*.c define the constructors and include this.
 *
 * Invariant: a function that returns NULL has set the error's text, or an earlier text stands. */
#ifndef SHEAF_TENSOR_CONSTRUCT_H
#define SHEAF_TENSOR_CONSTRUCT_H

#include <stdio.h>

#include "base/arith.h"
#include "sheaf/ops.h"
#include "tensor/access.h"
#include "tensor/context.h"

/* True if an operand is NULL: an earlier constructor failed and its text stands. */
static inline bool missing(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    if (a && b) return false;
    if (!*sheaf_last_error()) sheaf_set_error(SHEAF_STATUS_INVALID, "op: an operand is NULL");
    return true;
}

static inline char *shape(const struct sheaf_tensor *t, char buf[static 160]) {
    snprintf(buf, 160, "'%.40s' %s [%lld %lld %lld %lld]", t->name, sheaf_type_name(t->type),
             (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3]);
    return buf;
}

/* Returns NULL; the text names the op, its operands, and what it wants. */
static inline struct sheaf_tensor *refuse(const char *op, const struct sheaf_tensor *a,
                                          const struct sheaf_tensor *b, const char *want) {
    char sa[160], sb[160];
    sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %s%s%s: %s", op, shape(a, sa), b ? " and " : "",
                    b ? shape(b, sb) : "", want);
    return NULL;
}

static inline struct sheaf_tensor *make(struct sheaf_context *ctx, enum sheaf_op op,
                                        enum sheaf_type type, const int64_t *ne,
                                        struct sheaf_tensor *a, struct sheaf_tensor *b) {
    struct sheaf_tensor *t = sheaf_new_tensor(ctx, type, SHEAF_MAX_DIMS, ne);
    if (!t) return NULL;
    t->op = op;
    t->src[0] = a;
    t->src[1] = b;
    return t;
}

/* A tensor over the memory of a, `offset` bytes after a's first element, shaped by the caller. */
static inline struct sheaf_tensor *make_view(struct sheaf_context *ctx, enum sheaf_op op,
                                             struct sheaf_tensor *a, size_t offset) {
    struct sheaf_tensor *t = sheaf__new_tensor_raw(ctx);
    if (!t) return NULL;
    t->type = a->type;
    t->op = op;
    t->src[0] = a;
    t->view_src = sheaf__memory_owner(a);
    t->view_offs = a->view_offs + offset;
    memcpy(t->ne, a->ne, sizeof t->ne);
    memcpy(t->nb, a->nb, sizeof t->nb);
    if (t->view_src->data) t->data = (char *)t->view_src->data + t->view_offs;
    if (a->name[0]) sheaf_format_name(t, "%.50s (view)", a->name);
    return t;
}

/* Rows and elements can be counted, also where a dimension is 0. */
static inline bool is_countable(const int64_t ne[SHEAF_MAX_DIMS]) {
    int64_t n = 1;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (__builtin_mul_overflow(n, ne[i] ? ne[i] : 1, &n)) return false;
    }
    return true;
}

static inline bool is_float_type(enum sheaf_type type) {
    return type != SHEAF_TYPE_I32 && type != SHEAF_TYPE_I64;
}

/* An element can be read and written on its own. */
static inline bool is_plain_type(enum sheaf_type type) {
    return type == SHEAF_TYPE_F32 || type == SHEAF_TYPE_F16 || type == SHEAF_TYPE_BF16;
}

/* Ops that map F32 to F32 of the same shape. */
static inline struct sheaf_tensor *map_f32(struct sheaf_context *ctx, enum sheaf_op op,
                                           struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32)
        return refuse(sheaf_op_name(op), a, NULL, "the operand must be f32");
    return make(ctx, op, SHEAF_TYPE_F32, a->ne, a, NULL);
}

/* Ops that map F32, F16 or BF16 to the same type and shape. */
static inline struct sheaf_tensor *map_plain(struct sheaf_context *ctx, enum sheaf_op op,
                                             struct sheaf_tensor *a) {
    if (missing(a, a)) return NULL;
    if (!is_plain_type(a->type))
        return refuse(sheaf_op_name(op), a, NULL, "the operand must be f32, f16 or bf16");
    return make(ctx, op, a->type, a->ne, a, NULL);
}

#endif
