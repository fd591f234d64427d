/* Ops that only place elements: FILL, REPEAT, PAD. */
#include "cuda/device.h"

enum { THREADS = 256, PER_THREAD = 4, PIECE = THREADS * PER_THREAD };

/* Element number i of v, dimension 0 first. */
HD char *element_at(const View &v, int64_t i, int64_t at[4]) {
    size_t offset = 0;
    for (int d = 0; d < 4; d++) {
        at[d] = i % v.ne[d];
        i /= v.ne[d];
        offset += (size_t)at[d] * v.nb[d];
    }
    return v.data + offset;
}

/* dst of elements of `size` bytes: 4, or 2, whose bits are the lower ones */
static __global__ void fill_kernel(View dst, uint32_t bits, int size, int64_t n) {
    int64_t at[4];
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        void *y = element_at(dst, i, at);
        if (size == 2) {
            *(uint16_t *)y = (uint16_t)bits;
        } else {
            *(uint32_t *)y = bits;
        }
    }
}

static enum sheaf_status launch_fill(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const int64_t n = sheaf_nelements(dst);
    const float value = sheaf__param_f32(dst, 0);
    uint32_t bits = 0; /* a CPU of CUDA has the lowest byte first */
    const enum sheaf_status st = sheaf_from_float(dst->type, &value, &bits, 1);
    if (st) return st;
    CUDA_LAUNCH_PLAIN(fill_kernel, sheaf__cuda_blocks(n, THREADS), THREADS, 0, q->stream,
                      sheaf__cuda_view(dst), bits, (int)sheaf_type_size(dst->type), n);
    return sheaf__cuda_launched(q, dst);
}

/* a -> dst of multiples of its dimensions, elements of `size` bytes: 2, 4 or 8 */
static __global__ void repeat_kernel(View dst, View a, int size, Pieces pieces) {
    for (int64_t piece = blockIdx.x; piece < pieces.n; piece += gridDim.x) {
        const Piece at = piece_at(dst, pieces, PIECE, piece);
        char *to = row_data(dst, at.row);
        const char *from = row_repeat(a, at.row);
        for (int k = 0; k < PER_THREAD; k++) {
            const int64_t i = at.first + k * THREADS;
            if (i >= dst.ne[0]) break;
            void *y = to + (size_t)i * dst.nb[0];
            const void *x = from + (size_t)divided(i, a.ne[0]).rest * a.nb[0];
            if (size == 2) {
                *(uint16_t *)y = *(const uint16_t *)x;
            } else if (size == 4) {
                *(uint32_t *)y = *(const uint32_t *)x;
            } else {
                *(uint64_t *)y = *(const uint64_t *)x;
            }
        }
    }
}

static enum sheaf_status launch_repeat(struct sheaf__cuda_queue *q,
                                       const struct sheaf_tensor *dst) {
    const View d = sheaf__cuda_view(dst);
    const Pieces p = pieces_of(d, PIECE);
    CUDA_LAUNCH_PLAIN(repeat_kernel, sheaf__cuda_blocks(p.n, 1), THREADS, 0, q->stream, d,
                      sheaf__cuda_view(dst->src[0]), (int)sheaf_type_size(dst->type), p);
    return sheaf__cuda_launched(q, dst);
}

struct Pads {
    int64_t left[4];
    bool circular;
};

/* a F32 -> dst F32 with more elements on both sides of each dimension */
static __global__ void pad_kernel(View dst, View a, Pads pads, int64_t n) {
    int64_t at[4];
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float *to = (float *)(void *)element_at(dst, i, at);
        const char *p = a.data;
        bool added = false;
        for (int d = 0; d < 4; d++) {
            int64_t j = at[d] - pads.left[d];
            const bool outside = j < 0 || j >= a.ne[d];
            if (outside) j = pads.circular ? (j % a.ne[d] + a.ne[d]) % a.ne[d] : 0;
            added = added || (outside && !pads.circular);
            p += (size_t)j * a.nb[d];
        }
        *to = added ? 0.0f : *(const float *)(const void *)p;
    }
}

static enum sheaf_status launch_pad(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const int64_t n = sheaf_nelements(dst);
    Pads pads;
    for (int d = 0; d < 4; d++) pads.left[d] = dst->op_params[2 * d];
    pads.circular = dst->op_params[8] != 0;
    CUDA_LAUNCH_PLAIN(pad_kernel, sheaf__cuda_blocks(n, THREADS), THREADS, 0, q->stream,
                      sheaf__cuda_view(dst), sheaf__cuda_view(dst->src[0]), pads, n);
    return sheaf__cuda_launched(q, dst);
}

SHEAF__CUDA_OP(FILL) = {launch_fill, NULL};
SHEAF__CUDA_OP(REPEAT) = {launch_repeat, NULL};
SHEAF__CUDA_OP(PAD) = {launch_pad, NULL};
