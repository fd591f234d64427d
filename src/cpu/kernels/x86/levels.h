/* The numbers that 16 nibbles stand for. */
#ifndef SHEAF_CPU_KERNELS_X86_LEVELS_H
#define SHEAF_CPU_KERNELS_X86_LEVELS_H

#include <stdint.h>

#include "quant/quants.h"

static const int8_t q4_levels[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
static const int8_t iq4_levels[16] = SHEAF__IQ4_LEVELS, fp4_levels[16] = SHEAF__FP4_LEVELS;
static const int8_t from_0[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

#endif
