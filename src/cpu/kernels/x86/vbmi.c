/* A part of the modules that extend the table of avx512.c for CPUs that permute bytes in 512 bits (AVX-512 VBMI): rows
 * of the types of levels, MXFP4 and IQ4, by one column and by few, which compute the same bits as those of that table;
 * and quantized weights unpacked for the tiles of AMX. */
#pragma GCC diagnostic ignored "-Wunused-function" /* of the parts not all are needed */
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#define KERNELS_VBMI
#define KERNELS_NO_TABLE
#include "cpu/kernels/x86/avx512.h"

#include "cpu/kernels/x86/table.h"

#include "cpu/kernels/x86/bf16_integers.h"
#include "cpu/kernels/x86/scaled_rows.h"

void sheaf__cpu_kernels_use_vbmi(struct sheaf__cpu_kernels *table) {
#define USE_VBMI(TYPE)                                                                             \
    table->rows_dot_digits[SHEAF_TYPE_##TYPE] = rows_signed_##TYPE;                                \
    table->rows_dot_few[SHEAF_TYPE_##TYPE] = few_signed_##TYPE;                                    \
    table->rows_dot_rounded[SHEAF_TYPE_##TYPE] = rounded_##TYPE;
    USE_VBMI(IQ4_NL)
    USE_VBMI(IQ4_XS)
    USE_VBMI(MXFP4)
}
