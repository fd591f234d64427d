/* The table of avx2.c with the VNNI products of 32 bytes (AVX-VNNI): Intel's CPUs of 2021 and later that have no
 * AVX-512. The integers are those of avx2.c, in fewer instructions; only IQ4 and, in the fast mode, types of 8 bits have
 * other forms. */
#define KERNELS_VNNI_256
#include "cpu/kernels/x86/avx2.h"

#include "cpu/kernels/x86/kernels.h"
