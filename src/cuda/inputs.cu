/* Inputs of a graph in one upload: they are copied to pinned memory, from which one kernel of the queue
 * fetches them all; only long ones have a copy each. Nothing waits, unless the block is still read
 * for the inputs before. */
#include <stdlib.h>

#include "cuda/device.h"

enum {
    BLOCK = 1 << 20, /* bytes of pinned memory; more is written the ordinary way */
    LONG = 1 << 16,  /* a copy of its own is faster than a kernel that reads over the bus */
    MOST = 16,       /* inputs of a kernel */
    THREADS = 256,
};

struct sheaf__cuda_inputs {
    char *host, *device; /* the block, as either side sees it */
    cudaEvent_t read;    /* the device is done with it */
    bool recorded;
};

struct Input {
    char *to;
    unsigned at, size; /* in the block; the start of both sides is a multiple of 4 */
};
struct Inputs {
    const char *block;
    Input input[MOST];
};

/* A row of the grid has an input. */
static __global__ void inputs_kernel(Inputs all) {
    const Input in = all.input[blockIdx.y];
    const char *from = all.block + in.at;
    const unsigned words = in.size / 4, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned i = first; i < words; i += gridDim.x * blockDim.x)
        ((uint32_t *)(void *)in.to)[i] = ((const uint32_t *)(const void *)from)[i];
    const unsigned rest = words * 4 + first;
    if (rest < in.size) in.to[rest] = from[rest]; /* at most three bytes */
}

void sheaf__cuda_inputs_free(struct sheaf__cuda_inputs *in) {
    if (!in) return;
    if (in->read) cudaEventDestroy(in->read);
    if (in->host) cudaFreeHost(in->host);
    free(in);
}

static struct sheaf__cuda_inputs *new_block() {
    struct sheaf__cuda_inputs *in = (struct sheaf__cuda_inputs *)calloc(1, sizeof *in);
    void *host = NULL, *device = NULL;
    if (!in) return NULL;
    cudaError_t e = cudaHostAlloc(&host, BLOCK, cudaHostAllocMapped | cudaHostAllocPortable);
    in->host = (char *)host;
    if (!e) e = cudaHostGetDevicePointer(&device, host, 0);
    in->device = (char *)device;
    if (!e) e = cudaEventCreateWithFlags(&in->read, cudaEventDisableTiming);
    if (!e) return in;
    cudaGetLastError(); /* the ordinary way remains */
    sheaf__cuda_inputs_free(in);
    return NULL;
}

/* Are they here, do they fit, and is the block free? A query, since a wait would have no deadline. */
static bool is_possible(const struct sheaf__cuda_inputs *in, const struct sheaf__cuda_device *own,
                        const struct sheaf_tensor_write *writes, size_t n) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (sheaf__cuda_device_of_tensor(writes[i].tensor) != own) return false;
        if ((uintptr_t)writes[i].tensor->data % 4) return false;
        const size_t size = sheaf_nbytes(writes[i].tensor);
        if (size > BLOCK) return false;
        total += sheaf__align_up(size, 16);
    }
    if (total > BLOCK) return false;
    const bool free_again = !in->recorded || cudaEventQuery(in->read) == cudaSuccess;
    if (!free_again) cudaGetLastError(); /* or the next launch would find it */
    return free_again;
}

/* The short ones, at most MOST. */
static void launch(cudaStream_t stream, const Inputs &all, unsigned n, unsigned longest) {
    if (!n) return;
    const dim3 grid(sheaf__cuda_blocks(longest, 4 * THREADS), n);
    CUDA_LAUNCH_PLAIN(inputs_kernel, grid, THREADS, 0, stream, all);
}

static cudaError_t submit(struct sheaf__cuda_inputs *in, cudaStream_t stream,
                          const struct sheaf_tensor_write *writes, size_t n) {
    cudaError_t e = cudaSuccess;
    unsigned at = 0, n_short = 0, longest = 0;
    Inputs all;
    all.block = in->device;
    for (size_t i = 0; i < n && !e; i++) {
        const unsigned size = (unsigned)sheaf_nbytes(writes[i].tensor);
        char *to = (char *)writes[i].tensor->data;
        memcpy(in->host + at, writes[i].data, size);
        if (size > LONG) {
            e = cudaMemcpyAsync(to, in->host + at, size, cudaMemcpyHostToDevice, stream);
        } else {
            const Input input = {to, at, size};
            all.input[n_short++] = input;
            if (size > longest) longest = size;
        }
        if (n_short == MOST) {
            launch(stream, all, n_short, longest);
            n_short = longest = 0;
        }
        at += (unsigned)sheaf__align_up(size, 16);
    }
    launch(stream, all, n_short, longest);
    if (!e) e = cudaGetLastError();
    const cudaError_t recorded = cudaEventRecord(in->read, stream); /* others may be under way */
    in->recorded = true;
    return e ? e : recorded;
}

enum sheaf_status sheaf__cuda_inputs_write(struct sheaf__cuda_inputs **block,
                                           const struct sheaf__cuda_queue *q,
                                           const struct sheaf_tensor_write *writes, size_t n,
                                           bool *done) {
    *done = false;
    if (!*block) *block = new_block();
    if (!*block || !is_possible(*block, q->device, writes, n)) return SHEAF_STATUS_SUCCESS;
    *done = true;
    const cudaError_t e = submit(*block, q->stream, writes, n);
    return e ? sheaf__cuda_error(q->device->name, e, "writing '%s' and %zu more",
                                 writes[0].tensor->name, n - 1)
             : SHEAF_STATUS_SUCCESS;
}
