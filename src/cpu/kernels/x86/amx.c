/* The AVX-512 table with products by AMX tiles, of bytes and of BF16: otherwise that of
 * avx512.c. */
#define KERNELS_BF16
#define KERNELS_AMX
#include "cpu/kernels/x86/avx512.c"
