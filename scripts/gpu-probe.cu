// The limits of the GPU, for scripts/gpu-check: the rate at which a kernel reads memory, and
// the time that cuBLAS takes for the products of one layer. Prints "NAME NUMBER" lines.
//
//   nvcc -O3 scripts/gpu-probe.cu -lcublas -o gpu-probe
//   gpu-probe EMBD FF KV_WIDTH TOKENS
#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void must(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "gpu-probe: %s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
static void must(cublasStatus_t s, const char *what) {
    if (s == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "gpu-probe: %s: cuBLAS status %d\n", what, (int)s);
    exit(1);
}

__global__ void read_all(const uint4 *data, size_t n, unsigned *out) {
    unsigned sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint4 v = data[i];
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678u) *out = sum; // keeps the loads
}

// Halves of -1 to 1 by chance: on data that are all the same, products draw less power and run faster.
__global__ void fill(__half *x, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        x[i] = __float2half((float)(h >> 8) * (1.0f / (1 << 23)) - 1);
    }
}

// Median milliseconds of a launch.
template <typename F> static float median_ms(F launch, int repeats) {
    cudaEvent_t begin, end;
    std::vector<float> times;
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    for (int i = -2; i < repeats; i++) {
        float ms = 0;
        must(cudaEventRecord(begin), "event");
        launch();
        must(cudaEventRecord(end), "event");
        must(cudaEventSynchronize(end), "run");
        must(cudaEventElapsedTime(&ms, begin, end), "time");
        if (i >= 0) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main(int argc, char **argv) {
    const int embd = argc > 1 ? atoi(argv[1]) : 4096, ff = argc > 2 ? atoi(argv[2]) : 14336;
    const int kv = argc > 3 ? atoi(argv[3]) : 1024, tokens = argc > 4 ? atoi(argv[4]) : 512;
    if (embd < 1 || ff < 1 || kv < 1 || tokens < 1) return 2;
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices < 1) {
        fprintf(stderr, "gpu-probe: no CUDA device\n");
        return 3;
    }
    cudaDeviceProp prop;
    must(cudaGetDeviceProperties(&prop, 0), "properties");
    printf("name %s\n", prop.name);

    const size_t bytes = (size_t)4 << 30;
    char *data;
    unsigned *out;
    must(cudaMalloc(&data, bytes), "allocate 4 GiB");
    must(cudaMalloc(&out, sizeof *out), "allocate");
    fill<<<1024, 512>>>((__half *)data, bytes / sizeof(__half));
    const float read_ms = median_ms(
        [&] {
            read_all<<<prop.multiProcessorCount * 16, 512>>>((const uint4 *)data,
                                                             bytes / sizeof(uint4), out);
        },
        9);
    printf("read_gbps %.1f\n", (double)bytes / read_ms * 1e-6);

    // q, k, v, o, gate, up, down of one layer: [m, k] x [k, tokens], F16 with F32 sums, on weights
    // that lie one after another, so that none waits in the cache.
    const struct {
        int m, k;
    } products[] = {{embd, embd}, {kv, embd}, {kv, embd}, {embd, embd},
                    {ff, embd},   {ff, embd}, {embd, ff}};
    size_t weights = 0;
    for (const auto &p : products) weights += (size_t)p.m * p.k;
    __half *x, *y;
    if (weights * sizeof(__half) > bytes) return 2;
    must(cudaMalloc(&x, (size_t)std::max(ff, embd) * tokens * sizeof *x), "allocate");
    must(cudaMalloc(&y, (size_t)std::max(ff, embd) * tokens * sizeof *y), "allocate");
    fill<<<1024, 512>>>(x, (size_t)std::max(ff, embd) * tokens);
    must(cudaGetLastError(), "fill");
    cublasHandle_t blas;
    must(cublasCreate(&blas), "cublasCreate");
    const float one = 1, zero = 0;
    const float layer_ms = median_ms(
        [&] {
            const __half *w = (const __half *)data;
            for (const auto &p : products) {
                must(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, p.m, tokens, p.k, &one, w,
                                  CUDA_R_16F, p.k, x, CUDA_R_16F, p.k, &zero, y, CUDA_R_16F, p.m,
                                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                     "cublasGemmEx");
                w += (size_t)p.m * p.k;
            }
        },
        15);
    printf("layer_ms %.4f\n", layer_ms);
    printf("layer_tflops %.1f\n", 2.0 * (double)weights * tokens / layer_ms * 1e-9);
    return 0;
}
