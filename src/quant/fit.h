/* Rows of floats to blocks with small errors: the scales, mins and codes of a block are searched
 * for, where sheaf_from_float takes the scales from the largest elements. For files, which are
 * written once; caches and copies want the speed of sheaf_from_float, and its bits on a GPU.
 *
 * The result depends on the block's elements and weights only. */
#ifndef SHEAF_QUANT_FIT_H
#define SHEAF_QUANT_FIT_H

#include <stdbool.h>

#include "quant/quants.h"

/* x [n] to blocks of the type, n a multiple of its block size, with a small sum of weights [n] times
 * squares of errors; NULL: all weights are 1. A block whose squares are no floats gets the bits of
 * sheaf_from_float. False if there is no search for the type: those that sheaf-quantize does not
 * write, and F32, F16, BF16. */
bool sheaf__fit_row(enum sheaf_type type, const float *x, const float *weights, void *dst,
                    int64_t n);

#endif
