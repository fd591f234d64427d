/* The sum of blocks (backend/sum.h) by itself; with the nodes behind it, it is part of their kernel
 * (rows.cu). */
#include "cuda/device.h"

enum { THREADS = 256 };

static __global__ void sum_kernel(sheaf__sum s) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < s.n;
         i += (size_t)gridDim.x * THREADS)
        s.out[i] = sum_at(s, i);
}

enum sheaf_status sheaf__cuda_launch_sum(struct sheaf__cuda_queue *q) {
    const size_t n = q->sum.n;
    CUDA_LAUNCH_PLAIN(sum_kernel, sheaf__cuda_blocks((int64_t)n, THREADS), THREADS, 0, q->stream,
                      q->sum);
    memset(&q->sum, 0, sizeof q->sum);
    const cudaError_t e = cudaGetLastError();
    return e ? sheaf__cuda_error(q->device->name, e, "starting a sum of %zu elements", n)
             : SHEAF_STATUS_SUCCESS;
}
