/* The CUDA runtime as far as src/comm/device/nccl uses it, for C: nccl.c of this folder. */
#ifndef SHEAF_NCCL_EMU_CUDA_RUNTIME_H
#define SHEAF_NCCL_EMU_CUDA_RUNTIME_H

#include <stddef.h>

typedef enum { cudaSuccess = 0, cudaErrorInvalidDevice = 101, cudaErrorNotReady = 600 } cudaError_t;
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 };
typedef void *cudaStream_t;
struct cudaDeviceProp {
    struct {
        char bytes[16];
    } uuid;
};

const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void **p, size_t size);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);

#endif
