/* The AVX-512 table for CPUs with VBMI, without products of BF16 or where these are slow: Intel's from Ice Lake on. */
#include "cpu/kernels/kernels.h"

void sheaf__cpu_kernels_extend(struct sheaf__cpu_kernels *table) {
    sheaf__cpu_kernels_use_vbmi(table);
}
