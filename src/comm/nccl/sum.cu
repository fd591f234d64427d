// The sum of the members' blocks, each element by one thread in the group's order: members of a
// host from the left, then the hosts' sums from the left. The bits are those of the path through
// host memory (comm/reduce.c), for every size.
#include "sum.h"

namespace {
enum { THREADS = 256, MAX_BLOCKS = 4096 };

__global__ void sum_blocks(sheaf__nccl_order order, const float *blocks, size_t stride, float *out,
                           size_t n) {
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        float total = 0, host = 0;
        bool first_host = true, first = true;
        for (int k = 0; k < order.n; k++) {
            const float v = blocks[(size_t)order.member[k] * stride + i];
            host = first ? v : __fadd_rn(host, v);
            first = false;
            if (!order.ends_host[k]) continue;
            total = first_host ? host : __fadd_rn(total, host);
            first_host = false;
            first = true;
        }
        out[i] = total;
    }
}
} // namespace

extern "C" int sheaf__nccl_sum(const struct sheaf__nccl_order *order, const float *blocks,
                               size_t stride, float *out, size_t n, void *stream) {
    if (!n) return 0;
    const size_t wanted = (n + THREADS - 1) / THREADS;
    const unsigned grid = (unsigned)(wanted < MAX_BLOCKS ? wanted : MAX_BLOCKS);
    sum_blocks<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*order, blocks, stride, out, n);
    return (int)cudaGetLastError();
}

extern "C" int sheaf__nccl_load_sum(void) {
    cudaFuncAttributes attributes;
    return (int)cudaFuncGetAttributes(&attributes, sum_blocks);
}
