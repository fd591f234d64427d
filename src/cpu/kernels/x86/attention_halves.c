/* A part of the module of avx512bf16.c: attention of few queries for a Zen 4, which computes vectors of 512 bits in two
 * halves, compiled for it (KERNELS_HALVES). The bits are those of the table of avx512.c. */
#pragma GCC diagnostic ignored "-Wunused-function" /* of the parts not all are needed */
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#define KERNELS_HALVES
#define KERNELS_NO_TABLE
#include "cpu/kernels/x86/avx512.h"

#include "cpu/kernels/x86/table.h"

void sheaf__cpu_kernels_use_halves(struct sheaf__cpu_kernels *table) {
    table->attention_q8.dots = dots_digits;
    table->dots_of[SHEAF_TYPE_F16] = dots_f16;
    table->dots_of[SHEAF_TYPE_BF16] = dots_bf16;
    table->mix_of[SHEAF_TYPE_F16] = mix_f16;
    table->mix_of[SHEAF_TYPE_BF16] = mix_bf16;
}
