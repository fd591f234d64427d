/* Matrix products of the CPU device: what a thread team calls for MUL_MAT and MUL_MAT_ID nodes.
 *
 * Every thread of the team calls the same function with its own ith; the functions share the work
 * out among themselves. Bits of a result depend on its own row of weights and its own activation
 * column, never on nth, on ith, or on the rows computed together; and on the columns computed
 * together only in so far as many are multiplied by panels and few by rows (panels.c),
 * which agree to rounding.
 */
#ifndef SHEAF_CPU_MATMUL_MUL_MAT_H
#define SHEAF_CPU_MATMUL_MUL_MAT_H

#include <stdatomic.h>

#include "sheaf/tensor.h"

/* What the products need of the team. One per team, shared by its threads. */
struct sheaf__cpu_sync {
    /* Returns when all nth threads have called it, with the meaning of a full fence. Not called if
     * nth == 1. */
    void (*barrier)(void *team, int ith);
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

/* Bytes of `work` (64-byte aligned) that the functions below need for this node and team, the
 * reference included. 0 if none. */
size_t sheaf__mul_mat_work_size(const struct sheaf_tensor *dst, int nth);

/* dst F32 [m, n, g.r, s.t] = src0 [k, m, g, s] . src1 [k, n, g.r, s.t]; src1 F32 or F16 of any
 * strides. Always SUCCESS today. */
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

#endif
