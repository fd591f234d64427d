/* Tensor cores on the CPU: a fragment is a whole 16 x 16 matrix that lane 0 of the warp holds and
 * works on; what the others hold is nothing. So code must not touch single elements of a fragment,
 * and must let the warp meet before it reads what was stored, as on the device. Addresses and
 * strides that the device refuses end the process. */
#ifndef SHEAF_CUDA_EMU_MMA_H
#define SHEAF_CUDA_EMU_MMA_H

#include <stdlib.h>

#include "cuda_runtime.h"
#include "quant/quants.h"

struct half {
    uint16_t bits;
};

namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
    float at[16][16];
};

inline float number(half h) { return sheaf__f16_to_f32(h.bits); }
inline float number(float f) { return f; }
inline void check(const void *p, unsigned ld, size_t size) {
    if ((uintptr_t)p % 32 || ld * size % 16) abort();
}

template <class F> void fill_fragment(F &f, float value) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) f.at[i][j] = value;
}
template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &f, const T *p, unsigned ld) {
    check(p, ld, sizeof *p);
    if (emu_lane()) return;
    const bool cols = std::is_same<Layout, col_major>::value;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) f.at[i][j] = number(cols ? p[j * ld + i] : p[i * ld + j]);
}
template <class F> void load_matrix_sync(F &f, const float *p, unsigned ld, layout_t) {
    check(p, ld, sizeof *p);
    if (emu_lane()) return;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) f.at[i][j] = p[i * ld + j];
}
template <class F> void store_matrix_sync(float *p, const F &f, unsigned ld, layout_t) {
    check(p, ld, sizeof *p);
    if (emu_lane()) return;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) p[i * ld + j] = f.at[i][j];
}
template <class D, class A, class B, class C>
void mma_sync(D &d, const A &a, const B &b, const C &c) {
    if (emu_lane()) return;
    float sum[16][16];
    memcpy(sum, c.at, sizeof sum);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 16; j++) sum[i][j] += a.at[i][k] * b.at[k][j];
    memcpy(d.at, sum, sizeof sum);
}
} // namespace wmma
} // namespace nvcuda

#endif
