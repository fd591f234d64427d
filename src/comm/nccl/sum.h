/* The one kernel of the NCCL module: sums in the order of the group. */
#ifndef SHEAF_COMM_NCCL_SUM_H
#define SHEAF_COMM_NCCL_SUM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHEAF__NCCL_MAX_MEMBERS = 64 };

struct sheaf__nccl_order { /* passed to the kernel by value */
    int n;
    short member[SHEAF__NCCL_MAX_MEMBERS]; /* in the order of summation */
    char ends_host[SHEAF__NCCL_MAX_MEMBERS];
};

/* out [n] = the sum over members m of blocks [m * stride + i]; out is none of the blocks. Submits
 * to `stream`, a cudaStream_t; 0, or the cudaError_t of the launch. */
int sheaf__nccl_sum(const struct sheaf__nccl_order *order, const float *blocks, size_t stride,
                    float *out, size_t n, void *stream);
/* Loads the kernel onto the current device; 0, or a cudaError_t. Otherwise its first launch would,
 * and loading may wait for the device, which may be waiting in a collective for another thread. */
int sheaf__nccl_load_sum(void);

#ifdef __cplusplus
}
#endif
#endif
