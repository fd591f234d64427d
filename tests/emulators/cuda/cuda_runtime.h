/* The CUDA runtime on the CPU, as far as src/cuda uses it: what its sources are compiled against in
 * tests, in place of NVIDIA's header of this name.
 *
 * A launch runs the kernel's blocks one after another on the caller's thread. Threads of a block
 * are fibers when the kernel has barriers or shuffles: each runs until its next one, and a barrier
 * that not all reach, or a shuffle that a lane of its warp misses, ends the process with a text.
 * Asynchronous copies to shared memory arrive when they are waited for. Device memory is host memory
 * with an inaccessible page right behind it. Streams do everything at once, except while a graph is
 * captured.
 *
 * What this shows: index arithmetic, shapes, strides, barriers, supports_op, the host's logic; with
 * "order=SEED", which takes blocks in any order, warps in any order from shuffle to shuffle, and
 * bytes of copies early or late, also barriers that are missing; built with races.cc, races. What it
 * cannot show: speed, and anything of the real driver.
 *
 * SHEAF_TEST_CUDA_EMU sets up the machine: "devices=2,cc=90,memory=N,fail=NAME:COUNT" (the COUNTth call
 * of the runtime function NAME fails; never=N: from the Nth cudaStreamQuery on, nothing is done;
 * peers=0: no GPU reaches another's memory; peers=1: copies between GPUs that do not reach each
 * other fail; order=SEED: an order by chance, above; busy=1: an event is done after a later wait;
 * home=1: memory, and graphs that were captured, are made and freed on the process's first thread
 * alone). */
#ifndef SHEAF_CUDA_EMU_RUNTIME_H
#define SHEAF_CUDA_EMU_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#define SHEAF_CUDA_EMULATED 1
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__      static thread_local
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* ---- types ---- */

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint4 {
    uint32_t x, y, z, w;
} __attribute__((aligned(16)));
struct float2 {
    float x, y;
} __attribute__((aligned(8)));
struct float4 {
    float x, y, z, w;
} __attribute__((aligned(16)));

/* ---- kernels ---- */

struct emu_thread {
    dim3 thread, block, block_dim, grid_dim;
};
#define EMU_NEAR __attribute__((visibility("default"), tls_model("initial-exec"))) /* near.cc */
extern EMU_NEAR __thread emu_thread emu_now;
extern EMU_NEAR __thread struct emu_machine *emu_here;
#define threadIdx (emu_now.thread)
#define blockIdx  (emu_now.block)
#define blockDim  (emu_now.block_dim)
#define gridDim   (emu_now.grid_dim)

/* What a capture has seen, to be run again. */
struct emu_graph {
    std::vector<std::function<void()>> work;
};
struct emu_stream {
    emu_graph *capture;     /* NULL: things run at once */
    std::atomic<bool> busy; /* the host does not know yet that they are done */
};
typedef struct emu_stream *cudaStream_t;
struct emu_kernel {
    const char *name;
    const void *function;
    bool cooperative; /* it has barriers, shuffles or shared memory */
    bool ahead;       /* it may start while those before it run */
    std::function<void()> call;
};
void emu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                const emu_kernel &kernel);
/* The kernels before this one are done, for the calling thread. */
void emu_previous_done(void);
/* Reads of memory that a kernel before this one may write. */
void emu_prefetch(const void *p, unsigned bytes);
int emu_guess(const int *p);
void *emu_dynamic_shared(void);
/* Lanes of a warp meet and exchange 32 bits. */
uint32_t emu_shuffle(uint32_t value, int from_lane);
int emu_syncthreads(int vote); /* what all threads of the block give, joined by or */
void emu_syncwarp(void);
/* Lanes of a warp meet; what each has shown, until they meet again. */
const void *const *emu_show(const void *mine);
/* Tensor cores, as src/cuda/tensor_cores.cuh describes them. */
void emu_multiply_16x8x16(float *d, const uint32_t *a, const uint32_t *b,
                          float (*number)(uint16_t));
void emu_load_matrices(uint32_t *r, const void *row, bool transposed);
void emu_copy_ahead(void *to, const void *from, size_t size);
void emu_copies_begun(void);
void emu_copies_done(int running);

#define EMU_LAUNCH(cooperative, ahead, kernel, grid, block, shared, stream, ...)                   \
    do {                                                                                           \
        auto fn_ = kernel;                                                                         \
        emu_launch(grid, block, shared, stream,                                                    \
                   emu_kernel{#kernel, (const void *)fn_, cooperative, ahead,                      \
                              std::bind(fn_, __VA_ARGS__)});                                       \
    } while (0)
#define CUDA_LAUNCH(...)                    EMU_LAUNCH(true, false, __VA_ARGS__)
#define CUDA_LAUNCH_PLAIN(...)              EMU_LAUNCH(false, false, __VA_ARGS__)
#define CUDA_LAUNCH_AHEAD(ahead, ...)       EMU_LAUNCH(true, ahead, __VA_ARGS__)
#define CUDA_LAUNCH_AHEAD_PLAIN(ahead, ...) EMU_LAUNCH(false, ahead, __VA_ARGS__)
#define CUDA_DYNAMIC_SHARED(type, name) type *name = (type *)emu_dynamic_shared()

static inline void __syncthreads(void) { (void)emu_syncthreads(0); }
static inline int __syncthreads_or(int given) { return emu_syncthreads(given); }
static inline void __syncwarp(unsigned = 0xffffffffu) { emu_syncwarp(); }
static inline int emu_lane(void) { return (int)(threadIdx.x % 32); }
static inline int __shfl_xor_sync(unsigned, int v, int d) {
    return (int)emu_shuffle((uint32_t)v, emu_lane() ^ d);
}
static inline float __shfl_xor_sync(unsigned, float v, int d) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    u = emu_shuffle(u, emu_lane() ^ d);
    memcpy(&v, &u, sizeof v);
    return v;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int from) {
    static_assert(sizeof v == 4, "32 bits");
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    u = emu_shuffle(u, from % 32);
    memcpy(&v, &u, sizeof v);
    return v;
}
/* Bit i: lane i has given something other than 0. */
static inline unsigned __ballot_sync(unsigned, int given) {
    unsigned bits = (given ? 1u : 0u) << emu_lane();
    for (int d = 16; d > 0; d /= 2) bits |= emu_shuffle(bits, emu_lane() ^ d);
    return bits;
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
/* Of the eight bytes of b:a those that the nibbles of the selector name; bit 3 of a nibble, the
 * byte's sign, is not used. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t both = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
unsigned long long atomicCAS(unsigned long long *p, unsigned long long compare,
                             unsigned long long value);

/* ---- runtime ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorECCUncorrectable = 214,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorIllegalInstruction = 715,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorHardwareStackError = 714,
    cudaErrorMisalignedAddress = 716,
    cudaErrorInvalidAddressSpace = 717,
    cudaErrorInvalidPc = 718,
    cudaErrorLaunchFailure = 719,
    cudaErrorMpsClientTerminated = 807,
    cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice
};
enum {
    cudaStreamNonBlocking = 1,
    cudaEventDisableTiming = 2,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2,
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph *cudaGraphExec_t;
struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount;
};
#define cudaStreamPerThread ((cudaStream_t)0x2)

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaMalloc(void **p, size_t size);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
/* Of what cudaMalloc gave; from then on it is memory that other processes can map. The handle of
 * the own process cannot be opened, as with the real driver. */
struct cudaIpcMemHandle_t {
    char reserved[64];
};
enum { cudaIpcMemLazyEnablePeerAccess = 1 };
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p);
cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *p);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t size, cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_step, const void *from, size_t from_step,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s); /* not done on every other call */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to); /* always 2 us */
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t emu_give_shared(const void *function, int bytes);
template <class F> cudaError_t cudaFuncSetAttribute(F *f, cudaFuncAttribute, int value) {
    return emu_give_shared((const void *)f, value);
}
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e);
const char *cudaGetErrorName(cudaError_t e);

#endif
