/* Rows of floats by loops that compilers turn into vector code: entries of struct sheaf__cpu_kernels that the portable
 * table and those with vectors of 16 bytes (v128/table.h) have in common. */
#ifndef SHEAF_CPU_KERNELS_ROWS_H
#define SHEAF_CPU_KERNELS_ROWS_H

#include "cpu/kernels/vec.h"
#include "quant/quants.h"

static void f32_to_bf16(const float *x, void *py, int64_t n) {
    uint16_t *y = py;
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__f32_to_bf16(x[i]);
}

static void rotate(int64_t n, bool side_by_side, const float *x, const float *cos, const float *sin,
                   float *y) {
    if (side_by_side)
        sheaf__rotate(0, n, true, x, cos, sin, y);
    else
        sheaf__rotate(0, n, false, x, cos, sin, y);
}

static void scale_f32(int64_t n, float a, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = a * x[i];
}

static void silu_f32(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__siluf(x[i]);
}

static void gelu_f32(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__geluf(x[i]);
}

static void swiglu_f32(int64_t n, const float *a, const float *b, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__siluf(a[i]) * b[i];
}

#endif
