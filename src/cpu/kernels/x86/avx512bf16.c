/* The AVX-512 table with products of BF16 (VDPBF16PS): otherwise that of avx512.c. */
#define KERNELS_BF16
#include "cpu/kernels/x86/avx512.c"
