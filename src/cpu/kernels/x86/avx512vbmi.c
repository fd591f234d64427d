/* The AVX-512 table for CPUs with VBMI, without products of BF16 or where these are slow: Intel's from Ice Lake on. */
#pragma GCC diagnostic ignored "-Wunused-function" /* of the parts not all are needed */
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#define KERNELS_NO_TABLE
#include "cpu/kernels/x86/avx512.h"

#include "cpu/kernels/x86/kernels.h"

#include "cpu/kernels/x86/panels_words.h"

void sheaf__cpu_kernels_extend(struct sheaf__cpu_kernels *table) {
    sheaf__cpu_kernels_use_vbmi(table);
    use_panels_words(table);
}
