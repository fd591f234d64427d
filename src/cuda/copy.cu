/* DUP, CONT, CPY, CONCAT, GET_ROWS, SET_ROWS: elements moved, and converted where the types differ.
 *
 * Elements are numbered in the logical order of their tensor; a copy keeps the number, the shapes
 * may differ. A thread makes one element of the result, or one block of a block type. */
#include "cuda/device.h"

enum { THREADS = 256 };

/* Elements of a block of dst and its bytes. */
struct Unit {
    int64_t elements;
    size_t bytes;
};

static Unit unit_of(const struct sheaf_tensor *t) {
    Unit u;
    u.elements = sheaf_blck_size(t->type);
    u.bytes = sheaf_type_size(t->type);
    return u;
}

/* The block (element) that element number e lies in. nb0: bytes between blocks. */
HD char *locate(const View &v, int64_t e, int64_t block, size_t nb0) {
    const Divided at = divided(e, v.ne[0]);
    return row_data(v, row_at(v.ne, at.quotient)) + (size_t)(at.rest / block) * nb0;
}

static __device__ __forceinline__ float load_number(const View &v, int64_t e) {
    const Divided at = divided(e, v.ne[0]);
    return load_any(v.type, row_data(v, row_at(v.ne, at.quotient)), v.nb[0], at.rest);
}

/* x: one block of 32 floats to p, as the host does it. Functions of their own, because nvcc needs 10 s
 * for their loops wherever they are inlined. */
#define BLOCK(TYPE, name)                                                                          \
    case SHEAF_TYPE_##TYPE:                                                                        \
        sheaf__quantize_block_##name(x, (struct sheaf__block_##name *)p);                          \
        break
HD_CALLED void store_32(int type, const float *x, void *p) {
    switch (type) {
        BLOCK(Q4_0, q4_0);
        BLOCK(Q4_1, q4_1);
        BLOCK(Q5_0, q5_0);
        BLOCK(Q5_1, q5_1);
        BLOCK(Q8_0, q8_0);
        BLOCK(IQ4_NL, iq4_nl);
        BLOCK(MXFP4, mxfp4);
    default:
        break;
    }
}
HD_CALLED void store_256(int type, const float *x, void *p) {
    switch (type) {
        BLOCK(Q4_K, q4_k);
        BLOCK(Q5_K, q5_k);
        BLOCK(Q6_K, q6_k);
        BLOCK(Q2_K, q2_k);
        BLOCK(Q3_K, q3_k);
        BLOCK(IQ4_XS, iq4_xs);
    default:
        break;
    }
}
#undef BLOCK

/* The floats of a thread's block lie in shared memory: an array of its own would be local memory,
 * which the driver reserves for every thread that the device can hold. ELEMENTS: 1, 32, 256. */
template <int ELEMENTS> HD void store_block(int type, const float *x, void *p) {
    if (ELEMENTS == 1)
        store_plain(type, *x, p);
    else if (ELEMENTS == SHEAF__QK)
        store_32(type, x, p);
    else
        store_256(type, x, p);
}
constexpr unsigned threads_of(int64_t elements) {
    return elements == 1 ? THREADS : elements == SHEAF__QK ? 128 : 32;
}
/* One more than a block has: the threads meet in fewer banks. */
static size_t shared_of(int64_t elements) {
    return elements == 1 ? 0 : threads_of(elements) * (size_t)(elements + 1) * sizeof(float);
}
template <int ELEMENTS>
static __device__ __forceinline__ float *own_block(float *shared, float *one) {
    return ELEMENTS == 1 ? one : shared + threadIdx.x * (ELEMENTS + 1);
}

HD bool is_int_type(int type) { return type == SHEAF_TYPE_I32 || type == SHEAF_TYPE_I64; }

/* ---- copies ---- */

/* Blocks of the same type: n of them, moved as they are. */
static __global__ void move_kernel(View dst, View src, Unit unit, int64_t n) {
    next_may_start();
    previous_done();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        char *d = locate(dst, i * unit.elements, unit.elements, dst.nb[0]);
        const char *s = locate(src, i * unit.elements, unit.elements, src.nb[0]);
        if (unit.bytes == 4) {
            *(uint32_t *)(void *)d = *(const uint32_t *)(const void *)s;
        } else if (unit.bytes == 8) {
            *(uint64_t *)(void *)d = *(const uint64_t *)(const void *)s;
        } else if (unit.bytes % 2 == 0) {
            for (size_t b = 0; b < unit.bytes; b += 2)
                *(uint16_t *)(void *)(d + b) = *(const uint16_t *)(const void *)(s + b);
        } else { /* MXFP4: 17 */
            for (size_t b = 0; b < unit.bytes; b++) d[b] = s[b];
        }
    }
}

/* Floats of any types; n: blocks of dst. */
template <int ELEMENTS>
static __global__ void __launch_bounds__(threads_of(ELEMENTS))
    convert_kernel(View dst, View src, int64_t n) {
    CUDA_DYNAMIC_SHARED(float, shared);
    float one, *x = own_block<ELEMENTS>(shared, &one);
    next_may_start();
    previous_done();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t first = i * ELEMENTS;
#pragma unroll 1
        for (int j = 0; j < ELEMENTS; j++) x[j] = load_number(src, first + j);
        store_block<ELEMENTS>(dst.type, x, locate(dst, first, ELEMENTS, dst.nb[0]));
    }
}

/* Towards zero; what does not fit is clamped, NaN is 0. */
HD int64_t int_of(float f) {
    if (f != f) return 0;
    if (f >= 9223372036854775808.0f) return INT64_MAX;
    if (f < -9223372036854775808.0f) return INT64_MIN;
    return (int64_t)f;
}

/* One side is I32 or I64, the other plain. */
static __global__ void integer_kernel(View dst, View src, int64_t n) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        const void *s = locate(src, i, 1, src.nb[0]);
        void *d = locate(dst, i, 1, dst.nb[0]);
        const int64_t v = src.type == SHEAF_TYPE_I32   ? *(const int32_t *)s
                          : src.type == SHEAF_TYPE_I64 ? *(const int64_t *)s
                                                       : int_of(load_plain(src.type, s));
        if (dst.type == SHEAF_TYPE_I64) {
            *(int64_t *)d = v;
        } else if (dst.type == SHEAF_TYPE_I32) {
            *(int32_t *)d = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
        } else {
            store_plain(dst.type, (float)v, d);
        }
    }
}

/* With the step between blocks in nb[0], also where a row is a single block. */
static View stepped(const struct sheaf_tensor *t) {
    View v = sheaf__cuda_view(t);
    if (sheaf__cuda_is_dense(t)) v.nb[0] = sheaf_type_size(t->type);
    return v;
}

static void launch_convert(struct sheaf__cuda_queue *q, int64_t elements, const View &d,
                           const View &s, int64_t n) {
    const unsigned threads = threads_of(elements), blocks = sheaf__cuda_blocks(n, threads);
    const size_t shared = shared_of(elements);
    if (elements == 1) {
        CUDA_LAUNCH_AHEAD(q->ahead, convert_kernel<1>, blocks, threads, shared, q->stream, d, s, n);
    } else if (elements == SHEAF__QK) {
        CUDA_LAUNCH_AHEAD(q->ahead, convert_kernel<SHEAF__QK>, blocks, threads, shared, q->stream,
                          d, s, n);
    } else {
        CUDA_LAUNCH_AHEAD(q->ahead, convert_kernel<SHEAF__QK_K>, blocks, threads, shared, q->stream,
                          d, s, n);
    }
}

static enum sheaf_status launch_copy(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *src = dst->src[0];
    const Unit unit = unit_of(dst);
    const int64_t n = sheaf_nelements(dst) / unit.elements;
    const View d = stepped(dst), s = stepped(src);
    const unsigned blocks = sheaf__cuda_blocks(n, THREADS);
    if (dst->type == src->type) {
        if (sheaf_is_contiguous(dst) && sheaf_is_contiguous(src)) {
            const cudaError_t e = cudaMemcpyAsync(dst->data, src->data, sheaf_nbytes(dst),
                                                  cudaMemcpyDeviceToDevice, q->stream);
            return e ? sheaf__cuda_error(q->device->name, e, "copying '%s'", dst->name)
                     : SHEAF_STATUS_SUCCESS;
        }
        CUDA_LAUNCH_AHEAD_PLAIN(q->ahead, move_kernel, blocks, THREADS, 0, q->stream, d, s, unit,
                                n);
    } else if (is_int_type(dst->type) || is_int_type(src->type)) {
        CUDA_LAUNCH_PLAIN(integer_kernel, blocks, THREADS, 0, q->stream, d, s, n);
    } else {
        launch_convert(q, unit.elements, d, s, n);
    }
    return sheaf__cuda_launched(q, dst);
}

/* ---- concat: each operand is moved to its part of dst ---- */

static enum sheaf_status launch_concat(struct sheaf__cuda_queue *q,
                                       const struct sheaf_tensor *dst) {
    const int dim = dst->op_params[0];
    const Unit unit = unit_of(dst);
    int64_t offset = 0;
    for (int i = 0; i < 2; i++) {
        const struct sheaf_tensor *src = dst->src[i];
        View d = stepped(dst);
        d.data += (size_t)(dim == 0 ? offset / unit.elements : offset) * d.nb[dim];
        memcpy(d.ne, src->ne, sizeof d.ne);
        offset += src->ne[dim];
        if (sheaf_is_empty(src)) continue;
        const int64_t n = sheaf_nelements(src) / unit.elements;
        CUDA_LAUNCH_AHEAD_PLAIN(q->ahead, move_kernel, sheaf__cuda_blocks(n, THREADS), THREADS, 0,
                                q->stream, d, stepped(src), unit, n);
    }
    return sheaf__cuda_launched(q, dst);
}

/* ---- rows by number ---- */

struct Rows {
    int64_t base, limit; /* ids are in [0, limit); the tensor holds rows [base, base + ne[1]) */
    uint64_t node;
};

/* a [e, v, h, s], ids [n, h, s] -> dst F32, or I32 if a is, [e, n, h, s]; rows that others hold are zeros. grid: x
 * rows of dst, y pieces of a row */
static __global__ void get_rows_kernel(View dst, View a, View ids, Rows rows, Fault *fault) {
    next_may_start();
    previous_done();
    for (int64_t row = blockIdx.x; row < n_rows(dst); row += gridDim.x) {
        const Row at = row_at(dst.ne, row);
        const int64_t of = held_row(load_id(ids, at.i1, at.i2, at.i3), rows.limit, rows.base,
                                    a.ne[1], fault, rows.node);
        const bool zero = of < 0;
        const Row from = {zero ? 0 : of, at.i2, at.i3};
        const char *x = row_data(a, from);
        float *d = (float *)(void *)row_data(dst, at);
        for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < dst.ne[0];
             i += (int64_t)gridDim.y * THREADS) {
            if (a.type == SHEAF_TYPE_I32 && !zero) {
                ((int *)(void *)d)[i] = *(const int *)(const void *)(x + (size_t)i * a.nb[0]);
            } else {
                d[i] = zero ? 0.0f : load_any(a.type, x, a.nb[0], i);
            }
        }
    }
}

static enum sheaf_status launch_get_rows(struct sheaf__cuda_queue *q,
                                         const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const Rows rows = {dst->op_params[SHEAF_OP_PARAM_BASE], extent ? extent : a->ne[1],
                       (uint64_t)(uintptr_t)dst};
    const dim3 grid(sheaf__cuda_blocks(sheaf_nrows(dst), 1),
                    sheaf__cuda_blocks_y((dst->ne[0] + THREADS - 1) / THREADS));
    CUDA_LAUNCH_AHEAD_PLAIN(q->ahead, get_rows_kernel, grid, THREADS, 0, q->stream,
                            sheaf__cuda_view(dst), sheaf__cuda_view(a),
                            sheaf__cuda_view(dst->src[1]), rows, q->fault);
    return sheaf__cuda_launched(q, dst);
}

/* a F32 [m, u, n], b F32 [m, x], ids [u, n] -> dst F32 [m, u, n]; 0 where the row is another's */
static __global__ void add_id_kernel(View dst, View a, View b, View ids, Rows rows, Fault *fault) {
    next_may_start();
    previous_done();
    for (int64_t row = blockIdx.x; row < n_rows(dst); row += gridDim.x) {
        const Row at = row_at(dst.ne, row);
        const int64_t of = held_row(load_id(ids, at.i1, at.i2, 0), rows.limit, rows.base, b.ne[1],
                                    fault, rows.node);
        const bool zero = of < 0;
        const Row from = {zero ? 0 : of, 0, 0};
        const float *x = (const float *)(const void *)row_data(a, at);
        const float *y = (const float *)(const void *)row_data(b, from);
        float *d = (float *)(void *)row_data(dst, at);
        for (int64_t i = threadIdx.x; i < dst.ne[0]; i += THREADS) d[i] = zero ? 0.0f : x[i] + y[i];
    }
}

static enum sheaf_status launch_add_id(struct sheaf__cuda_queue *q,
                                       const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *b = dst->src[1];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const Rows rows = {dst->op_params[SHEAF_OP_PARAM_BASE], extent ? extent : b->ne[1],
                       (uint64_t)(uintptr_t)dst};
    CUDA_LAUNCH_AHEAD_PLAIN(q->ahead, add_id_kernel, sheaf__cuda_blocks(sheaf_nrows(dst), 1),
                            THREADS, 0, q->stream, sheaf__cuda_view(dst),
                            sheaf__cuda_view(dst->src[0]), sheaf__cuda_view(b),
                            sheaf__cuda_view(dst->src[2]), rows, q->fault);
    return sheaf__cuda_launched(q, dst);
}

/* b [e, n, h, s], ids [n, h, s] repeated -> rows of dst [e, L, h, s]. Of two rows with the same number
 * the later is written: a block gives its row up if a later one has its number. grid: n, h, s, the last
 * two from `first` on: no division of 64 bits, whose call costs registers */
template <int ELEMENTS>
static __global__ void __launch_bounds__(threads_of(ELEMENTS), 1)
    set_rows_kernel(View dst, View b, View ids, Rows rows, Row first, Fault *fault) {
    CUDA_DYNAMIC_SHARED(float, shared);
    float one, *x = own_block<ELEMENTS>(shared, &one);
    next_may_start();
    previous_done();
    const Row at = {blockIdx.x, first.i2 + blockIdx.y, first.i3 + blockIdx.z};
    const Row of = {at.i1, (uint32_t)at.i2 % (uint32_t)ids.ne[1], (uint32_t)at.i3 % (uint32_t)ids.ne[2]};
    const int64_t id = load_id(ids, of.i1, of.i2, of.i3);
    const bool given_up = is_given_up(ids, of, b.ne[1], id, rows.limit, fault, rows.node);
    if (__syncthreads_or(given_up)) return; /* later rows were seen */
    const Row to = {id, at.i2, at.i3};
    const char *from = row_data(b, at) + (size_t)threadIdx.x * ELEMENTS * b.nb[0];
    char *d = row_data(dst, to) + (size_t)threadIdx.x * dst.nb[0];
    const unsigned n = (unsigned)(b.ne[0] / ELEMENTS);
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
#pragma unroll 1
        for (int j = 0; j < ELEMENTS; j++) x[j] = load_plain(b.type, from + (size_t)j * b.nb[0]);
        store_block<ELEMENTS>(dst.type, x, d);
        from += (size_t)blockDim.x * ELEMENTS * b.nb[0];
        d += (size_t)blockDim.x * dst.nb[0];
    }
}

template <int ELEMENTS>
static void launch_set(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *b = dst->src[1];
    const Rows rows = {0, dst->ne[1], (uint64_t)(uintptr_t)dst};
    for (int64_t i3 = 0; i3 < b->ne[3]; i3 += sheaf__cuda_blocks_y(b->ne[3])) {
        for (int64_t i2 = 0; i2 < b->ne[2]; i2 += sheaf__cuda_blocks_y(b->ne[2])) {
            const Row first = {0, i2, i3};
            const dim3 grid((unsigned)b->ne[1], sheaf__cuda_blocks_y(b->ne[2] - i2),
                            sheaf__cuda_blocks_y(b->ne[3] - i3));
            CUDA_LAUNCH_AHEAD(q->ahead, set_rows_kernel<ELEMENTS>, grid, threads_of(ELEMENTS),
                              shared_of(ELEMENTS), q->stream, stepped(dst), sheaf__cuda_view(b),
                              sheaf__cuda_view(dst->src[2]), rows, first, q->fault);
        }
    }
}

static enum sheaf_status launch_set_rows(struct sheaf__cuda_queue *q,
                                         const struct sheaf_tensor *dst) {
    const int64_t elements = unit_of(dst).elements;
    if (sheaf_is_empty(dst->src[1])) return SHEAF_STATUS_SUCCESS;
    if (elements == 1) {
        launch_set<1>(q, dst);
    } else if (elements == SHEAF__QK) {
        launch_set<SHEAF__QK>(q, dst);
    } else {
        launch_set<SHEAF__QK_K>(q, dst);
    }
    return sheaf__cuda_launched(q, dst);
}

SHEAF__CUDA_OP(DUP) = {launch_copy, NULL};
SHEAF__CUDA_OP(CPY) = {launch_copy, NULL};
SHEAF__CUDA_OP(CONT) = {launch_copy, NULL};
SHEAF__CUDA_OP(CONCAT) = {launch_concat, NULL};
SHEAF__CUDA_OP(GET_ROWS) = {launch_get_rows, NULL};
SHEAF__CUDA_OP(ADD_ID) = {launch_add_id, NULL};
SHEAF__CUDA_OP(SET_ROWS) = {launch_set_rows, NULL};
