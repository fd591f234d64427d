/* The table for 64-bit ARM with products of bytes (FEAT_DotProd): Neoverse N1, Cortex-A76 and later. Compiled with its own flags; nothing
 * here runs before the score of its module (cpu/kernels/module.c) was asked. */
#include "cpu/kernels/v128/table.h"
