/* What the files of the products share: mul_mat.cu chooses and prepares, mul_vec.cu computes few
 * columns, mul_tile.cu any number without cuBLASLt. */
#ifndef SHEAF_CUDA_PRODUCT_H
#define SHEAF_CUDA_PRODUCT_H

#include "cuda/device.h"

/* One node as its kernels see it. MUL_MAT: dst [m, n, g.r, s.t] = a [k, m, g, s] . b [k, n, ..].
 * MUL_MAT_ID: dst [m, u, n], a [k, m, x], b [k, 1|u, n], ids [u, n]. */
struct Product {
    View dst, a;
    View b;                    /* F32, dense rows; not read where the columns were quantized */
    View ids;                  /* data NULL: MUL_MAT */
    int64_t base, limit, held; /* experts: ids in [0, limit); a holds [base, base + held) */
    uint64_t node;
    Fault *fault;
    /* the columns of b in blocks of 32 as 8-bit integers: column c of the order of b's rows */
    int8_t *q;
    float2 *ds;     /* of a block: scale; scale times the sum of its integers */
    int64_t chunks; /* of a column: 32 blocks each, see quantize_lane */
    /* other matrices times the same b, in the same launch (vector kernels, one matrix each) */
    struct {
        const char *a;
        size_t nb1;
        int64_t m;
        char *dst;
        size_t step;    /* bytes between columns of dst */
        unsigned first; /* block of the grid; sheaf__cuda_mul_vec finds it */
    } more[2];
    int n_more;
    bool early; /* all matrices are weights, which no kernel writes */
};

/* Columns that one pass of the vector kernels takes, and up to which they are used at all. */
enum { SHEAF__CUDA_VEC_COLUMNS = 4, SHEAF__CUDA_VEC_MAX = 8 };

/* Do the vector kernels multiply blocks of the type with columns of integers? The types that are taken
 * by elements (iq.cuh) are multiplied with floats, an element at a time. */
static inline bool sheaf__cuda_by_integers(enum sheaf_type type) {
    return sheaf_is_quantized(type) && !sheaf__cuda_by_elements(type);
}

/* What a kernel writes beside its result, for products of it: nothing, if both are NULL; its columns as integers, of
 * which there are less than 2^32 chunks; or its rows as halves, dense, of a multiple of four elements. */
struct Rounded {
    int8_t *q;
    float2 *ds;
    int chunks; /* of a column */
    uint16_t *halves;
    int half; /* their type */
};

/* Does `user`, a node to come, want the columns of x as integers or, if the kernel that makes x can write them, as the
 * halves of a product by cuBLASLt? Then that kernel writes all that *r says, and the queue has noted it (`rounds`). */
bool sheaf__cuda_rounds(struct sheaf__cuda_queue *q, const struct sheaf_tensor *x,
                        const struct sheaf_tensor *user, bool halves, struct Rounded *r);

/* Bytes of the quantized columns (q and ds), where p finds them, and how they are made from rows of
 * b. */
size_t sheaf__cuda_columns_size(int64_t k, int64_t n_columns);
void sheaf__cuda_place_columns(struct Product *p, char *work);
void sheaf__cuda_quantize_columns(struct sheaf__cuda_queue *q, const struct Product *p);

/* n rows of k elements (a multiple of 4), nb1 bytes apart, of any type to F16 or BF16, dense; block types to BF16. */
void sheaf__cuda_to_halves(struct sheaf__cuda_queue *q, const char *x, size_t nb1, int from, int to,
                           char *out, int64_t k, int64_t n);

/* Any type; block types need the quantized columns. */
void sheaf__cuda_mul_vec(struct sheaf__cuda_queue *q, struct Product *p);
/* Any type, MUL_MAT only. */
void sheaf__cuda_mul_tile(struct sheaf__cuda_queue *q, const struct Product *p);

/* Block i of a column is int8 [32] with its scale. 32 blocks make a chunk, in which the first 16
 * bytes of all blocks lie before the second 16: a warp reads both halves in order. */
HD size_t column_half(int64_t chunks, int64_t column, int64_t block, int half) {
    return (size_t)(((column * chunks + block / 32) * 2 + half) * 32 + block % 32) * 16;
}

/* The low byte is v * scale as rintf rounds it, if that is less than 2^22 in size: in its sum with 1.5 * 2^23 the last
 * bit counts one. */
HD uint32_t rounded_bits(float v, float scale) { return sheaf__f32_bits(v * scale + 12582912.0f); }

/* What the elements of a block are multiplied by, of which `most` is the largest in size; what it
 * keeps, with the sum of its integers. */
HD float block_scale(float most) { return most > 0.0f ? 127.0f / most : 0.0f; }
HD float2 block_pair(float most, int sum) {
    float2 pair;
    pair.x = most * (1.0f / 127.0f);
    pair.y = pair.x * (float)sum;
    return pair;
}

/* A warp makes a block, each lane of it having an element. */
static __device__ __forceinline__ void quantize_lane(int8_t *q, float2 *ds, int64_t chunks,
                                                     int64_t column, int64_t block, float v) {
    const unsigned lane = threadIdx.x % 32, n = (unsigned)block;
    const float most = warp_max_of_sizes(fabsf(v));
    const int r = (int8_t)rounded_bits(v, block_scale(most));
    const int sum = warp_sum_of(r);
    q += column_half(chunks, column, 0, 0);
    q[((n / 32 * 2 + lane / 16) * 32 + n % 32) * 16 + lane % 16] = (int8_t)r;
    if (lane == 0) ds[column * chunks * 32 + n] = block_pair(most, sum);
}

/* Elements i to i + 3 of a column: quantize_lane by eight lanes a block, with the same bits. All lanes of the warp
 * take part, each with its own i, multiples of four that follow one another. */
static __device__ __forceinline__ void quantize_four(const Rounded &c, unsigned column, int i,
                                                     const Four &f) {
    const uint32_t size = 0x7fffffffu, at = (uint32_t)i, chunk = column * (uint32_t)c.chunks;
    uint32_t bits = 0, r[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t own = sheaf__f32_bits(f.v[j]) & size;
        bits = own > bits ? own : bits;
    }
#pragma unroll
    for (int d = 4; d > 0; d /= 2) {
        const uint32_t other = (uint32_t)__shfl_xor_sync(FULL_WARP, (int)bits, d);
        bits = other > bits ? other : bits;
    }
    const float most = sheaf__bits_f32(bits), scale = block_scale(most);
#pragma unroll
    for (int j = 0; j < 4; j++) r[j] = rounded_bits(f.v[j], scale);
    const uint32_t four =
        __byte_perm(__byte_perm(r[0], r[1], 0x0040), __byte_perm(r[2], r[3], 0x0040), 0x5410);
    int sum = __dp4a((int)four, 0x01010101, 0);
#pragma unroll
    for (int d = 4; d > 0; d /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, d);
    char *q = (char *)c.q + (size_t)chunk * 1024;
    *(uint32_t *)(void *)(q + ((at & ~1023u) | (at & 16u) << 5 | (at >> 5 & 31u) << 4 |
                               (at & 15u))) = four;
    if (at % 32 == 0) (c.ds + (size_t)chunk * 32)[at / 32] = block_pair(most, sum);
}

/* Four floats as F16, inside its range, or BF16. */
HD uint64_t to_half(int type, float f) {
    return type == SHEAF_TYPE_BF16 ? sheaf__f32_to_bf16(f) : clamped_half(f);
}
HD uint64_t four_halves(int type, const Four &f) {
    return to_half(type, f.v[0]) | to_half(type, f.v[1]) << 16 | to_half(type, f.v[2]) << 32 |
           to_half(type, f.v[3]) << 48;
}

/* Elements i to i + 3 of row `row`, of n, in the form that is asked for; 0 behind the last. Of integers all lanes of a
 * warp take part, up to the end of the last chunk. */
static __device__ __forceinline__ void round_four(const Rounded &c, unsigned row, int i, int n,
                                                  const Four &f) {
    if (c.halves && i < n)
        *(uint64_t *)(void *)(c.halves + (size_t)row * (size_t)n + i) = four_halves(c.half, f);
    if (c.q && i < c.chunks * 1024) quantize_four(c, row, i, f);
}

/* What a thread block works on: a matrix of a, columns of b, where the result goes. */
struct Task {
    const char *a;
    int64_t column; /* of the order of b's rows */
    int n;
    float *out;    /* element 0 of column 0 */
    size_t step;   /* bytes between columns of the result */
    const char *b; /* row of b of column 0 */
    size_t b_step;
    bool zero; /* the expert is another member's, or the id is bad */
};

/* y: group of `width` columns, or pair; z: matrix of dst */
static __device__ __forceinline__ Task task_at(const Product &p, int64_t y, int64_t z, int width) {
    Task t;
    t.zero = false;
    if (p.ids.data) {
        const int64_t u = y % p.dst.ne[1], n = y / p.dst.ne[1], b1 = u % p.b.ne[1];
        const int64_t expert =
            held_row(load_id(p.ids, u, n, 0), p.limit, p.base, p.held, p.fault, p.node);
        t.zero = expert < 0;
        t.a = p.a.data + (t.zero ? 0 : (size_t)expert * p.a.nb[2]);
        t.column = n * p.b.ne[1] + b1;
        t.n = 1;
        t.out = (float *)(void *)(p.dst.data + (size_t)u * p.dst.nb[1] + (size_t)n * p.dst.nb[2]);
        t.b = p.b.data + (size_t)b1 * p.b.nb[1] + (size_t)n * p.b.nb[2];
    } else {
        const int64_t i1 = y * width;
        Row at = {i1, 0, 0};
        t.a = p.a.data;
        if (z) { /* of several: the divisions take longer than a short row */
            at.i2 = z % p.dst.ne[2];
            at.i3 = z / p.dst.ne[2];
            t.a += (size_t)(at.i2 / (p.dst.ne[2] / p.a.ne[2])) * p.a.nb[2] +
                   (size_t)(at.i3 / (p.dst.ne[3] / p.a.ne[3])) * p.a.nb[3];
        }
        t.column = z * p.dst.ne[1] + i1;
        t.n = (int)(p.dst.ne[1] - i1 < width ? p.dst.ne[1] - i1 : width);
        t.out = (float *)(void *)row_data(p.dst, at);
        t.b = row_data(p.b, at);
    }
    t.step = p.dst.nb[1];
    t.b_step = p.b.nb[1];
    return t;
}

#endif
