/* SDOT, the product of bytes of 64-bit ARM, in plain C: included before the sources of the table `dotprod`
 * (cpu/kernels/v128) where they are compiled for another CPU. */
#ifndef DOTPROD_EMU_DOT_H
#define DOTPROD_EMU_DOT_H

#include <stdint.h>

#define KERNELS_EMULATED_DOT

typedef int32_t emulated_i32 __attribute__((vector_size(16)));
typedef int8_t emulated_i8 __attribute__((vector_size(16)));

/* Compiled once: kernels are unrolled around them. */
#define EMULATED __attribute__((noinline)) static

EMULATED emulated_i32 emulated_dot_16(emulated_i32 sum, emulated_i8 a, emulated_i8 b) {
    for (int i = 0; i < 16; i++) sum[i / 4] += a[i] * b[i];
    return sum;
}

/* By element `lane` of b. */
EMULATED emulated_i32 emulated_dot_4(emulated_i32 sum, emulated_i8 a, emulated_i8 b, int lane) {
    for (int i = 0; i < 16; i++) sum[i / 4] += a[i] * b[4 * lane + i % 4];
    return sum;
}

#endif
