/* The AVX2 + FMA + F16C kernel table, in 8 floats. Compiled with its own flags; nothing here runs
 * before the score of its module (cpu/kernels/module.c) was asked. */
#include "cpu/kernels/x86/avx2.h"

#include "cpu/kernels/x86/table.h"
