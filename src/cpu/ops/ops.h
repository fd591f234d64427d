/* The op table of the CPU backend, and what the op files share.
 *
 * An op function is called by every member of a team with the same arguments except ith; all
 * members return before one of them goes on to the next node. It writes its share of dst, chosen so
 * that the result does not depend on nth. `work` is work_size(dst, nth) bytes, 64-byte aligned,
 * shared by the members. The portable function of an op is its specification.
 *
 * Errors: sheaf_set_error in the member that finds it, and its status returned; the backend carries
 * the text to the caller's thread. A member that fails still passes all barriers of its op. */
#ifndef SHEAF_CPU_OPS_OPS_H
#define SHEAF_CPU_OPS_OPS_H

#include "base/arith.h"
#include "cpu/device/team.h"
#include "sheaf/tensor.h"
#include "tensor/access.h"
#include "tensor/graph.h"
#include "tensor/op_info.h"

typedef enum sheaf_status (*sheaf__cpu_op_fn)(struct sheaf_tensor *dst, int ith, int nth,
                                              struct sheaf__cpu_sync *sync, void *work);

struct sheaf__cpu_op {
    sheaf__cpu_op_fn fn;        /* NULL: nothing to compute (leaves, views) */
    sheaf__cpu_op_fn reference; /* where it is another function than fn, else NULL */
    size_t (*work_size)(const struct sheaf_tensor *dst, int nth); /* NULL: none */
    bool product; /* has the work memory of products, which other ops leave alone */
    bool heavy;   /* costs more than its elements suggest: always run by the whole team */
    int measure;  /* whose elements tell the work: 0 dst, i + 1 src[i] */
};

/* Defines the entry of one op in its family's file: SHEAF__CPU_OP(ADD) = {.fn = binary}; an op of
 * tensor/op_info.h without one does not link. */
#define SHEAF__CPU_OP(op) const struct sheaf__cpu_op sheaf__cpu_op_##op

#define DECLARE(op, ...) extern SHEAF__CPU_OP(op);
SHEAF__OPS(DECLARE)
#undef DECLARE

/* Indexed by enum sheaf_op. */
extern const struct sheaf__cpu_op *const sheaf__cpu_ops[];

/* ---- shared by the op files ---- */

/* Items [*first, *last) of n belong to member ith of nth. */
static inline void sheaf__cpu_share(int64_t n, int ith, int nth, int64_t *first, int64_t *last) {
    *first = ith == 0 ? 0 : n * ith / nth;
    *last = ith + 1 == nth ? n : n * (ith + 1) / nth;
}

/* Row number -> indices of dimensions 1, 2, 3 of a tensor of shape ne. Divisions are what small
 * nodes cost, so the first rows go without. */
struct sheaf__cpu_row {
    int64_t i1, i2, i3;
};
static inline struct sheaf__cpu_row sheaf__cpu_row_at(const int64_t *ne, int64_t row) {
    struct sheaf__cpu_row at = {row, 0, 0};
    if (row < ne[1]) return at;
    at.i1 = row % ne[1];
    at.i2 = row / ne[1] % ne[2];
    at.i3 = row / ne[1] / ne[2];
    return at;
}
static inline char *sheaf__cpu_row_data(const struct sheaf_tensor *t, struct sheaf__cpu_row at) {
    return (char *)t->data + (size_t)at.i1 * t->nb[1] + (size_t)at.i2 * t->nb[2] +
           (size_t)at.i3 * t->nb[3];
}
/* Index i of a dimension that repeats after n. */
static inline int64_t sheaf__cpu_wrap(int64_t i, int64_t n) { return i < n ? i : i % n; }
/* The row of t that repeats onto row `at` of a larger tensor. */
static inline char *sheaf__cpu_row_repeat(const struct sheaf_tensor *t, struct sheaf__cpu_row at) {
    at.i1 = sheaf__cpu_wrap(at.i1, t->ne[1]);
    at.i2 = sheaf__cpu_wrap(at.i2, t->ne[2]);
    at.i3 = sheaf__cpu_wrap(at.i3, t->ne[3]);
    return sheaf__cpu_row_data(t, at);
}

/* Elements (blocks) of a row lie side by side. */
static inline bool sheaf__cpu_is_dense(const struct sheaf_tensor *t) {
    return t->ne[0] <= sheaf_blck_size(t->type) || t->nb[0] == sheaf_type_size(t->type);
}

/* n elements at p, nb0 bytes apart, as F32: either p itself or converted into buf. Block types must
 * be dense and n whole blocks. */
const float *sheaf__cpu_load(enum sheaf_type type, const void *p, size_t nb0, int64_t n,
                             float *buf);
/* Writes n floats as `type`, nb0 bytes apart; nothing to do if src is p. */
void sheaf__cpu_store(enum sheaf_type type, const float *src, void *p, size_t nb0, int64_t n);

/* Rows of n floats, as the ops compute them: the same bits for every team and instruction set. y
 * may be an operand. */
void sheaf__cpu_rms_norm_row(int64_t n, const float *x, float eps, float *y);
void sheaf__cpu_add_row(int64_t n, float *y, const float *a, const float *b);

/* ALiBi slope of head h (of the whole tensor, op_params BASE and EXTENT applied by the caller). */
float sheaf__cpu_alibi_slope(float max_bias, int64_t h, int64_t n_head);

#endif
