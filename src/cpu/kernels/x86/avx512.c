/* The AVX-512 (F, BW, VL, DQ, VNNI) kernel table: in 16 floats, with the VNNI forms of the integer
 * products. Compiled with its own flags; nothing here runs before the score of its module
 * (cpu/kernels/module.c) was asked. */
#include "cpu/kernels/x86/avx512.h"

#include "cpu/kernels/x86/table.h"
