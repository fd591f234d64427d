/* Rows of any type as F16 or BF16, which is what cuBLASLt multiplies.
 *
 * Block types become BF16. A warp takes 32 sub-blocks of a row apart, one a lane, and leaves their integers in shared
 * memory; then each lane makes 16 bytes of the result at a time, so that the warp writes 512 bytes in order. The
 * values are those of `element` (kernel.cuh), bit by bit. */
#include "cuda/product.h"
#include "cuda/sub_blocks.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- block types ---- */

/* Byte j of the word, signed, less `minus`: it becomes the low end of a float of 2^23 and more, so
 * nothing is rounded. */
HD float integer_at(uint32_t word, int j, int minus) {
#ifdef __CUDA_ARCH__
    const uint32_t bits = __byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7540u | (unsigned)j);
    return __uint_as_float(bits) - (float)(8388608 + 128 + minus);
#else
    return (float)((int)(int8_t)(word >> 8 * j) - minus);
#endif
}

static __device__ __forceinline__ uint32_t two_bf16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    return (uint32_t)sheaf__f32_to_bf16(low) | (uint32_t)sheaf__f32_to_bf16(high) << 16;
#endif
}

/* x: n rows of k elements, nb1 bytes apart; out: dense. grid: x groups of WARPS * 32 sub-blocks of a row, y rows */
template <int TYPE>
static __global__ void __launch_bounds__(THREADS)
    blocks_to_halves_kernel(const char *x, size_t nb1, uint16_t *out, int64_t k, int64_t n) {
    typedef Format<TYPE> F;
    __shared__ uint32_t words[WARPS][32][9]; /* nine: lanes meet in no bank */
    __shared__ float4 scales[WARPS][32];     /* d0, d1, m, m1 */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int subs = (int)(k / 32), first = (int)(blockIdx.x * WARPS + warp) * 32;
    for (int64_t row = blockIdx.y; row < n; row += gridDim.y) {
        if (first + lane < subs) {
            const char *from =
                x + (size_t)row * nb1 + (size_t)((first + lane) / F::SUBS) * F::BYTES;
            const int at = (int)((uintptr_t)from & 15);
            const Sub s = take_apart<TYPE>((const uint32_t *)(const void *)(from - at), at,
                                           (first + lane) % F::SUBS);
            float4 d;
            d.x = s.d0;
            d.y = F::scales == 2 ? s.d1 : s.d0;
            d.z = F::mins ? s.m : 0.0f;
            d.w = F::mins == 2 ? s.m1 : d.z;
            scales[warp][lane] = d;
#pragma unroll
            for (int i = 0; i < 8; i++) words[warp][lane][i] = s.q[i];
        }
        __syncwarp(); /* the sub-blocks are there */
#pragma unroll
        for (int i = 0; i < 4; i++) { /* 8 elements of a sub-block */
            const int sub = (lane + 32 * i) / 4, part = lane % 4;
            if (first + sub >= subs) break;
            const float4 d = scales[warp][sub];
            const float scale = part < 2 ? d.x : d.y, min = part < 2 ? d.z : d.w;
            uint32_t pairs[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t word = words[warp][sub][2 * part + j / 2];
                float a = scale * integer_at(word, j % 2 * 2, F::MINUS);
                float b = scale * integer_at(word, j % 2 * 2 + 1, F::MINUS);
                if (F::mins) {
                    a -= min;
                    b -= min;
                }
                pairs[j] = two_bf16(a, b);
            }
            uint4 y;
            y.x = pairs[0];
            y.y = pairs[1];
            y.z = pairs[2];
            y.w = pairs[3];
            *(uint4 *)(void *)(out + (size_t)row * (size_t)k + (size_t)(first + sub) * 32 +
                               part * 8) = y;
        }
        __syncwarp(); /* their place is free */
    }
}

template <int TYPE>
static void blocks_to_halves(struct sheaf__cuda_queue *q, const char *x, size_t nb1, uint16_t *out,
                             int64_t k, int64_t n) {
    const dim3 grid(sheaf__cuda_blocks(k, WARPS * 1024), sheaf__cuda_blocks_y(n));
    CUDA_LAUNCH((blocks_to_halves_kernel<TYPE>), grid, THREADS, 0, q->stream, x, nb1, out, k, n);
}

/* ---- any type ---- */

/* Rows of a matrix, nb1 bytes apart, to F16 or BF16 [k, n], dense; k a multiple of 4. wide: F32
 * rows at multiples of 16 bytes. grid: x pieces of a row, y rows */
static __global__ void to_half_kernel(const char *x, size_t nb1, int from, int to, uint16_t *out,
                                      int64_t k, int64_t n, bool wide) {
    for (int64_t row = blockIdx.y; row < n; row += gridDim.y) {
        const char *in = x + (size_t)row * nb1;
        for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4; i < k;
             i += (int64_t)gridDim.x * THREADS * 4) {
            Four f;
            if (wide) {
                f = load_four((const float *)(const void *)in + i, 0, 4, true);
            } else {
                for (int j = 0; j < 4; j++) f.v[j] = load_dense(from, in, i + j);
            }
            *(uint64_t *)(void *)(out + row * k + i) = four_halves(to, f);
        }
    }
}

void sheaf__cuda_to_halves(struct sheaf__cuda_queue *q, const char *x, size_t nb1, int from, int to,
                           char *out, int64_t k, int64_t n) {
    switch (from) {
#define BLOCKS(type, ...)                                                                          \
    case SHEAF_TYPE_##type:                                                                        \
        return blocks_to_halves<SHEAF_TYPE_##type>(q, x, nb1, (uint16_t *)(void *)out, k, n);
        SUB_BLOCK_TYPES(BLOCKS)
#undef BLOCKS
    default:
        break;
    }
    const bool wide = from == SHEAF_TYPE_F32 && ((uintptr_t)x | nb1) % 16 == 0;
    const dim3 grid(sheaf__cuda_blocks(k, 4 * THREADS), sheaf__cuda_blocks_y(n));
    CUDA_LAUNCH_PLAIN(to_half_kernel, grid, THREADS, 0, q->stream, x, nb1, from, to,
                      (uint16_t *)(void *)out, k, n, wide);
}
