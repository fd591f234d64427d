/* Products of any number of columns in plain F32, for what cuBLASLt does not take or where it is
 * not installed: a block makes 64 x 64 elements from slices of 16 in shared memory. */
#include "cuda/product.h"

enum { TILE = 64, DEPTH = 16, THREADS = 256, EACH = TILE * DEPTH / THREADS };

/* grid: x tiles of rows, y tiles of columns, z matrices of dst */
static __global__ void mul_tile_kernel(Product p, int64_t n_y, int64_t n_z) {
    __shared__ float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    const int64_t k = p.a.ne[0], m = p.a.ne[1], row0 = (int64_t)blockIdx.x * TILE;
    const int tr = threadIdx.x % 16, tc = threadIdx.x / 16; /* its elements: 16 apart */
    for (int64_t z = blockIdx.z; z < n_z; z += gridDim.z) {
        for (int64_t y = blockIdx.y; y < n_y; y += gridDim.y) {
            const Task t = task_at(p, y, z, TILE);
            float sum[4][4];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] = 0.0f;
            for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
                for (int e = 0; e < EACH; e++) {
                    const int i = (int)threadIdx.x + e * THREADS, kk = i % DEPTH, r = i / DEPTH;
                    const bool inside = k0 + kk < k;
                    a[kk][r] =
                        inside && row0 + r < m
                            ? load_dense(p.a.type, t.a + (size_t)(row0 + r) * p.a.nb[1], k0 + kk)
                            : 0.0f;
                    b[kk][r] =
                        inside && r < t.n
                            ? ((const float *)(const void *)(t.b + (size_t)r * t.b_step))[k0 + kk]
                            : 0.0f;
                }
                __syncthreads(); /* the tiles are there */
#pragma unroll
                for (int kk = 0; kk < DEPTH; kk++) {
                    float x[4], v[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) x[i] = a[kk][tr + 16 * i];
#pragma unroll
                    for (int j = 0; j < 4; j++) v[j] = b[kk][tc + 16 * j];
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int j = 0; j < 4; j++) sum[i][j] = fmaf(x[i], v[j], sum[i][j]);
                }
                __syncthreads(); /* they have been used */
            }
            for (int i = 0; i < 4; i++) {
                for (int j = 0; j < 4; j++) {
                    const int64_t r = row0 + tr + 16 * i;
                    const int c = tc + 16 * j;
                    if (r < m && c < t.n)
                        *(float *)(void *)((char *)(t.out + r) + (size_t)c * t.step) = sum[i][j];
                }
            }
        }
    }
}

void sheaf__cuda_mul_tile(struct sheaf__cuda_queue *q, const struct Product *p) {
    const int64_t n_y = (p->dst.ne[1] + TILE - 1) / TILE, n_z = p->dst.ne[2] * p->dst.ne[3];
    const dim3 grid(sheaf__cuda_blocks(p->a.ne[1], TILE), sheaf__cuda_blocks_y(n_y),
                    sheaf__cuda_blocks_y(n_z));
    CUDA_LAUNCH(mul_tile_kernel, grid, THREADS, 0, q->stream, *p, n_y, n_z);
}
