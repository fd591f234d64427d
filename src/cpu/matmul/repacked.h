/* Weights in the order of the kernels (kernels.h), in place of the order in which they were written.
 *
 * Products by few columns are bound by instructions where memory is fast, and a fifth to a third of these move nibbles
 * and scales to where a vector wants them. So the first product by a weight rearranges it, in its own memory; nodes,
 * and what is written to and read from the buffer, see no difference, nor do the bits of a product.
 *
 * Only tensors that are reached through the device alone are repacked (SHEAF__TENSOR_PRIVATE). What reads or writes
 * one otherwise than products and GET_ROWS do has it restored first, for good.
 *
 * Threads: as those of the buffer. */
#ifndef SHEAF_CPU_MATMUL_REPACKED_H
#define SHEAF_CPU_MATMUL_REPACKED_H

#include "cpu/kernels/kernels.h"
#include "sheaf/backend-impl.h"

enum {
    SHEAF__REPACKED_UNIT = 256, /* weights that are rearranged among themselves */
    SHEAF__REPACKED_BYTES =
        320, /* more than they take in any type, and what vectors store beyond */
};

/* A tensor of a buffer that products asked for, or that is to stay as it was written. */
struct sheaf__cpu_weight {
    char *data;
    size_t size;
    enum sheaf_type type;
    bool repacked;
};

/* Those of a buffer, sorted by address. */
struct sheaf__cpu_weights {
    struct sheaf__cpu_weight *list;
    size_t n, cap, n_repacked;
};

/* ---- tensors ---- */

/* Could the memory of t, which may be a view, be that of a repacked weight, now or later? */
bool sheaf__cpu_may_be_repacked(const struct sheaf_tensor *t);
/* Does it consist of whole units of its weight? Then products and GET_ROWS read it repacked, too. */
bool sheaf__cpu_is_of_units(const struct sheaf_tensor *t);
/* How kernels read it; NULL: as it was written. */
const struct sheaf__cpu_repacked *sheaf__cpu_repacked(const struct sheaf_tensor *t);

/* How the weight of t lies: not decided, as it was written for good, or repacked until something wants the other. */
enum sheaf__cpu_order { SHEAF__ORDER_OPEN, SHEAF__ORDER_WRITTEN, SHEAF__ORDER_REPACKED };
enum sheaf__cpu_order sheaf__cpu_order_of(const struct sheaf_tensor *t);
/* Says that weight t counts as repacked from now on; the caller repacks all its units. False if there is nothing to
 * do: it is, or is to stay as it was written, or memory is lacking. */
bool sheaf__cpu_repack_begin(const struct sheaf_tensor *t);
/* The share of member ith of nth. */
void sheaf__cpu_repack_share(const struct sheaf_tensor *t, int ith, int nth);
/* Restores the weight of t, which is not repacked again. */
enum sheaf_status sheaf__cpu_keep_as_written(const struct sheaf_tensor *t);

/* ---- buffers ---- */

/* The repacked weight at an address; NULL: bytes lie there as they were written. */
const struct sheaf__cpu_weight *sheaf__cpu_weight_at(const struct sheaf__cpu_weights *weights,
                                                     const void *data);
/* Bytes [offset, offset + size) of a repacked weight, as they were written; data NULL: each becomes `value`. */
void sheaf__cpu_weight_read(const struct sheaf__cpu_weight *w, size_t offset, void *data,
                            size_t size);
void sheaf__cpu_weight_write(const struct sheaf__cpu_weight *w, size_t offset, const void *data,
                             uint8_t value, size_t size);
/* All bytes of the buffer were written past these functions. */
void sheaf__cpu_weights_forget(struct sheaf__cpu_weights *weights);

#endif
