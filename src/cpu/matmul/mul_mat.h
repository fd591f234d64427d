/* Matrix products of the CPU device: what a thread team calls for MUL_MAT and MUL_MAT_ID nodes.
 *
 * Every thread of the team calls the same function with its own ith; the functions share the work
 * out among themselves. Bits of a result depend on its own row of weights and its own activation
 * column, never on nth, on ith, or on the rows computed together; and on the columns computed
 * together only in so far as many are multiplied by panels and few by rows (panels.c),
 * which agree to rounding. A slice of a MUL_MAT's columns goes the way of the whole.
 */
#ifndef SHEAF_CPU_MATMUL_MUL_MAT_H
#define SHEAF_CPU_MATMUL_MUL_MAT_H

#include <stdatomic.h>

#include "cpu/kernels/kernels.h"
#include "sheaf/tensor.h"
#include "tensor/mul_mat.h"

/* What the products need of the team. One per team, shared by its threads. */
struct sheaf__cpu_sync {
    /* Returns when all nth threads have called it, with the meaning of a full fence. Not called if
     * nth == 1. */
    void (*barrier)(void *team);
    void *team;
    /* Scratch of the node that runs; any value on entry. The team must not start a node before all
     * its threads have left the node before. */
    _Atomic int64_t next;
    /* The MUL_MAT whose columns lie packed in the products' work memory, NULL if none do. Another
     * product of the same src1 uses them again: q, k and v, or gate and up, pack once. Thread 0
     * writes it, apart by barriers from the start of a product, where all read it. The thread that
     * runs nodes that change src1 makes it NULL. */
    const struct sheaf_tensor *packed;
};

static inline void sheaf__cpu_barrier(struct sheaf__cpu_sync *sync, int nth) {
    if (nth > 1) sync->barrier(sync->team);
}

/* Bytes of `work` (64-byte aligned) that the functions below need for this node and team, the
 * reference included. 0 if none. */
size_t sheaf__mul_mat_work_size(const struct sheaf_tensor *dst, int nth);

/* dst F32 [m, n, g.r, s.t] = src0 [k, m, g, s] . src1 [k, n, g.r, s.t]; src1 F32 or F16 of any
 * strides. INVALID if there are no kernels. */
enum sheaf_status sheaf__mul_mat(const struct sheaf_tensor *dst, int ith, int nth, void *work,
                                 struct sheaf__cpu_sync *sync);

/* dst F32 [m, u, n], src0 [k, m, x], src1 [k, 1|u, n], ids I32 [u, n]. With op_params extent != 0,
 * src0 holds the experts [base, base + x) of extent, and an id of another expert gives zeros. An id
 * outside [0, extent) (or [0, x)) is INVALID: every thread returns it with the text set. */
enum sheaf_status sheaf__mul_mat_id(const struct sheaf_tensor *dst, int ith, int nth, void *work,
                                    struct sheaf__cpu_sync *sync);

/* The same products as their specification: rows of src0 dequantized exactly, activations not
 * rounded, summed in double in index order. Slow. No barrier inside. */
enum sheaf_status sheaf__mul_mat_ref(const struct sheaf_tensor *dst, int ith, int nth, void *work);
enum sheaf_status sheaf__mul_mat_id_ref(const struct sheaf_tensor *dst, int ith, int nth,
                                        void *work);

/* ---- shared by the files of this folder and by attention ---- */

enum { SHEAF__SEGMENT = 256 }; /* elements converted at a time; a multiple of every block */

/* n elements of the column of b at src, from element i on, as floats: where they lie, or in tmp. */
const float *sheaf__mul_mat_gather(const struct sheaf__cpu_kernels *kern,
                                   const struct sheaf_tensor *b, const char *src, int64_t i,
                                   int64_t n, float *tmp);

/* All columns that meet the same matrix (a2, a3) of a are done together: with g K/V heads and g.r
 * query heads a row of a is read once for r heads. Column number j of them lies at .. in b or dst.
 */
struct sheaf__mul_mat_at {
    int64_t i1, i2, i3;
};
static inline struct sheaf__mul_mat_at sheaf__mul_mat_at(const struct sheaf_tensor *a,
                                                         const struct sheaf_tensor *b, int64_t a2,
                                                         int64_t a3, int64_t j) {
    const int64_t r2 = b->ne[2] / a->ne[2], r3 = b->ne[3] / a->ne[3], i = j / b->ne[1];
    return (struct sheaf__mul_mat_at){j % b->ne[1], a2 * r2 + i % r2, a3 * r3 + i / r2};
}
static inline char *sheaf__mul_mat_ptr(const struct sheaf_tensor *t, struct sheaf__mul_mat_at at) {
    return (char *)t->data + (size_t)at.i1 * t->nb[1] + (size_t)at.i2 * t->nb[2] +
           (size_t)at.i3 * t->nb[3];
}

/* Sharing out a phase: thread 0 starts it before a barrier, all threads take numbers after it. */
static inline void sheaf__mul_mat_start(struct sheaf__cpu_sync *sync, int ith, int nth) {
    if (ith == 0) atomic_store_explicit(&sync->next, 0, memory_order_relaxed);
    sheaf__cpu_barrier(sync, nth);
}
static inline int64_t sheaf__mul_mat_take(struct sheaf__cpu_sync *sync) {
    return atomic_fetch_add_explicit(&sync->next, 1, memory_order_relaxed);
}

/* True if a matrix of this product is multiplied by panels: `columns` decides, of MUL_MAT those of the whole, else those
 * of an expert. */
bool sheaf__mul_mat_by_panels(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst,
                              int64_t columns);
/* True if columns that meet rows, not panels, are rounded. */
bool sheaf__mul_mat_rounds_rows(const struct sheaf__cpu_kernels *kern,
                                const struct sheaf_tensor *dst);
/* Bytes of work, and the product, as sheaf__mul_mat has them. dst is not empty. */
size_t sheaf__mul_mat_panels_size(const struct sheaf__cpu_kernels *kern,
                                  const struct sheaf_tensor *dst, int nth);
enum sheaf_status sheaf__mul_mat_panels(const struct sheaf__cpu_kernels *kern,
                                        const struct sheaf_tensor *dst, int ith, int nth,
                                        void *work, struct sheaf__cpu_sync *sync);

/* The pairs (choice u of token n, number n * choices + u) that use an expert held here. */
struct sheaf__mul_mat_group {
    int64_t expert, n;
    const int64_t *pairs;
};
/* The same for those experts of a MUL_MAT_ID that have enough pairs. */
size_t sheaf__mul_mat_id_panels_size(const struct sheaf__cpu_kernels *kern,
                                     const struct sheaf_tensor *dst, int nth);
void sheaf__mul_mat_id_panels(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst,
                              const struct sheaf__mul_mat_group *groups, int64_t n_groups, int ith,
                              int nth, void *work, struct sheaf__cpu_sync *sync);

#endif
