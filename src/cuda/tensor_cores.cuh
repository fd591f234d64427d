/* Products of small matrices by tensor cores whose operands lie in known registers of a warp, so that code may work on
 * single elements between two products (which wmma's fragments do not allow).
 *
 * The layouts are those of PTX (ISA 9.0, "Matrix fragments for mma.m16n8k16"). Lane l has g = l / 4 and t = l % 4:
 *   a, 16 x 16, halves by rows   a[0] row g, columns 2t and 2t+1; a[1] row g+8; a[2], a[3] the same, columns 8 on
 *   b, 16 x 8                    b[0] column g, rows 2t and 2t+1; b[1] the same, rows 8 on
 *   d, 16 x 8, floats            d[0], d[1] row g, columns 2t and 2t+1; d[2], d[3] row g+8
 * So d, rounded to halves, is the part of an a with the same rows: two d side by side make one a. */
#ifndef SHEAF_CUDA_TENSOR_CORES_CUH
#define SHEAF_CUDA_TENSOR_CORES_CUH

#include "cuda/kernel.cuh"

/* d += a b; TYPE: F16 or BF16, of a and b. All lanes of the warp call it. */
template <int TYPE>
static __device__ __forceinline__ void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4],
                                                        const uint32_t (&b)[2]) {
#ifdef SHEAF_CUDA_EMULATED
    emu_multiply_16x8x16(d, a, b, TYPE == SHEAF_TYPE_F16 ? sheaf__f16_to_f32 : sheaf__bf16_to_f32);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 /* 7.5 has half of it, and no BF16 */
    if (TYPE == SHEAF_TYPE_F16) {
        for (int i = 0; i < 2; i++)
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, "
                         "{%6}, {%0,%1,%2,%3};"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                         : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
    }
#else
    if (TYPE == SHEAF_TYPE_F16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#endif
}

/* Four matrices of 8 x 8 halves from shared memory. Lane l gives row l % 8 of matrix l / 8, 16 bytes at a multiple of
 * 16; it gets, in r[i], elements 2t and 2t+1 of row g of matrix i. */
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *row) {
#ifdef SHEAF_CUDA_EMULATED
    emu_load_matrices(r, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}
/* The same; it gets rows 2t and 2t+1 of column g. */
static __device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const void *row) {
#ifdef SHEAF_CUDA_EMULATED
    emu_load_matrices(r, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

/* Two floats as halves of one word, the first in the low bits. */
HD uint32_t two_halves(float low, float high) {
    return (uint32_t)f32_to_f16(low) | (uint32_t)f32_to_f16(high) << 16;
}

#endif
