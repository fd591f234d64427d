/* The table for x86 with SSE4.1, for CPUs without AVX2. Compiled with its own flags; nothing
 * here runs before the score of its module (cpu/kernels/module.c) was asked. */
#include "cpu/kernels/v128/table.h"
