/* Products with few columns, where reading the weights is all the time.
 *
 * Block types: the columns are rounded to 8-bit integers once. A warp takes ROWS rows of weights, two or, of
 * small matrices, one, so that there are enough warps; a row's result has the same bits with either. It goes
 * along them in chunks of 32 sub-blocks of 32 elements, one a lane: the bytes of a chunk
 * come from memory as they lie, in whole 16-byte pieces, into shared memory, those of the next
 * chunks being on their way meanwhile; a lane takes its sub-block apart there and multiplies it
 * with four-way integer products. The bytes of a block may start at any even address, MXFP4's at
 * any; one column of rows that are whole chunks at multiples of 16 bytes, the usual case of decode, has a loop of
 * its own.
 *
 * Plain types: 16 bytes of a row a lane, times floats.
 *
 * Up to 15 bytes before and behind a row are read and thrown away: buffers have that much room
 * behind their last tensor (memory.cu), and no row starts in the first 15 bytes of one by itself.
 */
#include "cuda/product.h"
#include "cuda/sub_blocks.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, COLUMNS = SHEAF__CUDA_VEC_COLUMNS };

/* ---- columns as integers ---- */

/* A warp makes a block; blocks behind the last are zeros. */
static __global__ void quantize_columns_kernel(View b, int8_t *q, float2 *ds, int64_t chunks) {
    const int lane = threadIdx.x % 32;
    next_may_start();
    previous_done();
    const int64_t n = n_rows(b) * chunks * 32;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < n;
         i += (int64_t)gridDim.x * blockDim.x / 32) {
        const int64_t column = i / (chunks * 32), block = i % (chunks * 32);
        const int64_t e = block * 32 + lane;
        const char *x = row_data(b, row_at(b.ne, column));
        const float v = e < b.ne[0] ? load_plain(b.type, x + (size_t)e * b.nb[0]) : 0.0f;
        quantize_lane(q, ds, chunks, column, block, v);
    }
}

static int64_t chunks_of(int64_t k) { return (k / 32 + 31) / 32; }

size_t sheaf__cuda_columns_size(int64_t k, int64_t n_columns) {
    return (size_t)(n_columns * chunks_of(k)) * 32 * (32 + sizeof(float2));
}

void sheaf__cuda_place_columns(struct Product *p, char *work) {
    p->chunks = chunks_of(p->b.ne[0]);
    p->q = (int8_t *)work;
    p->ds = (float2 *)(void *)(work + (size_t)(n_rows(p->b) * p->chunks) * 32 * 32);
}

void sheaf__cuda_quantize_columns(struct sheaf__cuda_queue *q, const struct Product *p) {
    CUDA_LAUNCH_AHEAD(q->ahead, quantize_columns_kernel,
                      sheaf__cuda_blocks(n_rows(p->b) * p->chunks * 32, 8), 256, 0, q->stream, p->b,
                      p->q, p->ds, p->chunks);
}

/* ---- a sub-block of weights times a block of a column ---- */

/* A block of a column: halves as two words of four quads each, its scale, and the scale times the sum. */
struct Column {
    uint4 lo, hi;
    float2 ds;
    int sum_lo, sum_hi; /* of the integers; made for types with two scales */
};

static __device__ __forceinline__ int four_products(const uint32_t *q, const uint4 &y, int sum) {
    sum = __dp4a((int)q[0], (int)y.x, sum);
    sum = __dp4a((int)q[1], (int)y.y, sum);
    sum = __dp4a((int)q[2], (int)y.z, sum);
    return __dp4a((int)q[3], (int)y.w, sum);
}

/* The same of bytes without a sign. */
static __device__ __forceinline__ int four_products_of_bytes(const uint32_t *q, const uint4 &y,
                                                             int sum) {
    sum = dp4a_of_bytes(q[0], (int)y.x, sum);
    sum = dp4a_of_bytes(q[1], (int)y.y, sum);
    sum = dp4a_of_bytes(q[2], (int)y.z, sum);
    return dp4a_of_bytes(q[3], (int)y.w, sum);
}
/* All integers of a sub-block that lie where they were times those of a column; what is shifted out is 0. */
template <int TYPE>
static __device__ __forceinline__ int all_products(const Sub &x, const Column &y) {
    if (in_high_halves(TYPE)) {
        const int high = four_products_of_bytes(x.q + 4, y.hi, 0);
        return four_products(x.q, y.lo, high >> 4);
    }
    if (in_a_half(TYPE))
        return four_products_of_bytes(x.q + 4, y.hi, four_products_of_bytes(x.q, y.lo, 0)) >>
               x.shift;
    return four_products(x.q + 4, y.hi, four_products(x.q, y.lo, 0));
}

/* Block `lane` of a chunk of a column, whose first half q points to. */
static __device__ __forceinline__ Column load_column(const int8_t *q, const float2 *ds) {
    Column y;
    y.lo = *(const uint4 *)(const void *)q;
    y.hi = *(const uint4 *)(const void *)(q + 32 * 16);
    y.ds = *ds;
    return y;
}

template <int TYPE> static __device__ __forceinline__ void sum_halves(Column *y) {
    const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
    if (Format<TYPE>::scales != 2) return;
    y->sum_lo = four_products(ones, y->lo, 0);
    y->sum_hi = four_products(ones, y->hi, 0);
}

/* sum and a sub-block of weights times a block of a column */
template <int TYPE>
static __device__ __forceinline__ float add_product(const Sub &x, const Column &y, float sum) {
    typedef Format<TYPE> F;
    const int minus = F::MINUS;
    if (F::scales == 2) {
        const int first = four_products(x.q, y.lo, -minus * y.sum_lo);
        const int second = four_products(x.q + 4, y.hi, -minus * y.sum_hi);
        float t = fmaf(x.d0, (float)first, x.d1 * (float)second);
        if (F::mins == 2) t -= fmaf(x.m, (float)y.sum_lo, x.m1 * (float)y.sum_hi);
        return fmaf(y.ds.x, t, sum);
    }
    const float all = (float)all_products<TYPE>(x, y);
    if (F::mins) return fmaf(-x.m, y.ds.y, fmaf(y.ds.x, x.d0 * all, sum));
    if (!minus) return fmaf(y.ds.x, x.d0 * all, sum);
    return fmaf(x.d0, fmaf(y.ds.x, all, -(float)minus * y.ds.y), sum);
}

/* ---- block types ---- */

/* Which matrix of a launch a block is of, and which block of it. */
struct Which {
    const char *a; /* NULL: the task's */
    size_t nb1, step;
    int64_t m, block;
    char *dst;
};
static __device__ __forceinline__ Which which_of(const Product &p, unsigned block) {
    Which w = {NULL, p.a.nb[1], 0, p.a.ne[1], block, NULL};
    for (int k = 0; k < p.n_more; k++) {
        if (block < p.more[k].first) break;
        w.block = block - p.more[k].first;
        w.a = p.more[k].a;
        w.nb1 = p.more[k].nb1;
        w.m = p.more[k].m;
        w.dst = p.more[k].dst;
        w.step = p.more[k].step;
    }
    return w;
}
static __device__ __forceinline__ Task task_of(const Product &p, const Which &which, int64_t y,
                                               int64_t z, int width) {
    Task t = task_at(p, y, z, width);
    if (!which.a) return t;
    t.a = which.a;
    t.step = which.step;
    t.out = (float *)(void *)(which.dst + (size_t)(y * width) * which.step);
    return t;
}

/* Blocks that an SM shall hold: eight, or as many as have registers without a spill, of which code before 9.0 takes
 * a few more. */
constexpr int blocks_of(int type, int n, int rows, bool whole) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    const int eight = 7;
#else
    const int eight = 8;
#endif
    if (n > 1) return 1;
    const bool two = rows > 1;
    switch (type) {
    case SHEAF_TYPE_Q5_K:
        return whole ? eight - 2 * two : two ? 4 : eight - 3;
    case SHEAF_TYPE_Q3_K:
        return whole && !two ? eight : eight - 2;
    case SHEAF_TYPE_Q4_K:
        return whole ? eight : two ? 5 : eight - 2;
    case SHEAF_TYPE_IQ4_XS:
        return whole ? eight : eight - 2;
    case SHEAF_TYPE_Q6_K:
        return whole && !two ? eight : eight - 1;
    case SHEAF_TYPE_Q2_K:
    case SHEAF_TYPE_IQ4_NL:
    case SHEAF_TYPE_MXFP4:
    case SHEAF_TYPE_Q5_0:
    case SHEAF_TYPE_Q5_1:
        return whole ? eight : eight - 1;
    default:
        return eight;
    }
}

/* The shared memory of a warp. WHOLE: rows are whole chunks, and begin at multiples of 16 bytes; a chunk is SPAN times
 * 32 sub-blocks, so that each begins at such a multiple. */
template <int TYPE, int ROWS, bool WHOLE> struct Stage {
    typedef Format<TYPE> F;
    enum {
        PART = 32 / F::SUBS * F::BYTES, /* bytes of 32 sub-blocks */
        SPAN = WHOLE && PART % 16 ? 2 : 1,
        CHUNK = SPAN * PART,
        PIECES = (CHUNK + (WHOLE ? 0 : 15) + 15) / 16, /* of 16 bytes, wherever the chunk starts */
        PER_LANE = (PIECES + 31) / 32,
        WORDS = PIECES * 4 + 4, /* word_at looks at one more */
        ROW_BYTES = WORDS * 4,
        SLOT_BYTES = ROWS * ROW_BYTES,
        /* Chunks on their way at once, and the one that is computed with. An SM of an H200 wants
         * 25 KiB under way (36 GB/s of 4.8 TB/s for 700 ns); of a matrix of 4096 rows it has 31,
         * whose chunks have 576 bytes (Q4_0). */
        SLOTS = CHUNK < 800 ? 4 : CHUNK < 1200 ? 3 : 2,
        BYTES = SLOTS * SLOT_BYTES,
    };
    static_assert(!WHOLE || CHUNK % 16 == 0, "a chunk is whole pieces");
};

/* What lane 0 writes of one row and column, the sum of what all lanes have. */
static __device__ __forceinline__ void write_sum(float sum, bool there, float *out) {
    const float total = warp_sum(sum);
    if (threadIdx.x % 32 == 0 && there) *out = total;
}

/* The first n_rows of ROWS rows from t.a on times the columns of t, by a warp. */
template <int TYPE, int N, int ROWS>
static __device__ __forceinline__ void multiply_rows(const Product &p, const Task &t, size_t nb1,
                                                     int n_rows, char *stage) {
    typedef Format<TYPE> F;
    typedef Stage<TYPE, ROWS, false> S;
    enum { CHUNK = S::CHUNK };
    const int lane = threadIdx.x % 32, subs = (int)(p.a.ne[0] / 32);
    float sum[ROWS][N];
    const char *next[ROWS]; /* this lane's first piece of the chunk to fetch */
    int skew[ROWS], at[ROWS], pieces[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const char *w = t.a + (r < n_rows ? r * nb1 : 0);
        skew[r] = (int)((uintptr_t)w & 15); /* of a chunk, behind a multiple of 16 */
        next[r] = w - skew[r] + lane * 16;
        pieces[r] = (skew[r] + CHUNK + 15) / 16;
        at[r] = skew[r] + lane / F::SUBS * F::BYTES;
#pragma unroll
        for (int c = 0; c < N; c++) sum[r][c] = 0.0f;
    }
    const SharedAt begin = shared_at(stage + lane * 16);
    int left = t.zero ? 0 : subs, fill = 0; /* sub-blocks to fetch, and to which slot */
/* The pieces of the next chunk; nothing behind the last. Most chunks are whole, and begin as the first of
 * the row did. */
#define FETCH()                                                                                    \
    _Pragma("unroll") for (int r = 0; r < ROWS; r++) {                                             \
        const SharedAt to = begin + fill + r * S::ROW_BYTES;                                       \
        int n = pieces[r];                                                                         \
        if (CHUNK % 16) n = (skew[r] + CHUNK + 15) / 16;                                           \
        if (left < 32) n = left > 0 ? (skew[r] + left / F::SUBS * F::BYTES + 15) / 16 : 0;         \
        _Pragma("unroll") for (int i = 0; i < S::PER_LANE; i++) if (lane + 32 * i < n)             \
            copy_ahead<16>(to + 512 * i, next[r] + 512 * i);                                       \
        if (CHUNK % 16) {                                                                          \
            next[r] += (skew[r] + CHUNK) / 16 * 16;                                                \
            skew[r] = (skew[r] + CHUNK) % 16;                                                      \
        } else {                                                                                   \
            next[r] += CHUNK;                                                                      \
        }                                                                                          \
    }                                                                                              \
    left -= 32;                                                                                    \
    fill = fill + S::SLOT_BYTES < S::BYTES ? fill + S::SLOT_BYTES : 0;                             \
    copies_begun();
#pragma unroll
    for (int d = 0; d < S::SLOTS - 1; d++) {
        FETCH()
    }
    if (p.early) previous_done();
    const int8_t *columns = p.q + column_half(p.chunks, t.column, lane, 0);
    const float2 *scales = p.ds + t.column * p.chunks * 32 + lane;
    const size_t chunks = (size_t)p.chunks;
    const char *slot = stage;
    for (int n = t.zero ? 0 : subs; n > 0; n -= 32) {
        FETCH()
        Column column[N]; /* columns have whole chunks */
#pragma unroll
        for (int c = 0; c < N; c++) {
            if (N > 1 && c >= t.n) break;
            column[c] = load_column(columns + (size_t)c * chunks * 1024,
                                    scales + (size_t)c * chunks * 32);
        }
        columns += 1024;
        scales += 32;
        copies_done<S::SLOTS - 1>();
        __syncwarp(); /* the chunk is there */
        if (lane < n) {
#pragma unroll
            for (int c = 0; c < N; c++) {
                if (N == 1 || c < t.n) sum_halves<TYPE>(&column[c]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const Sub x =
                    take_apart<TYPE, true>((const uint32_t *)(const void *)(slot + r * S::ROW_BYTES),
                                           at[r], lane % F::SUBS);
#pragma unroll
                for (int c = 0; c < N; c++) {
                    if (N == 1 || c < t.n) sum[r][c] = add_product<TYPE>(x, column[c], sum[r][c]);
                }
            }
        }
        if (CHUNK % 16) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int before = lane / F::SUBS * F::BYTES;
                at[r] = before + (at[r] - before + CHUNK) % 16;
            }
        }
        __syncwarp(); /* the slot is the next to be filled */
        slot += S::SLOT_BYTES;
        if (slot == stage + S::BYTES) slot = stage;
    }
#undef FETCH
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < N; c++)
            write_sum(sum[r][c], c < t.n && r < n_rows,
                      (float *)(void *)((char *)(t.out + r) + (size_t)c * t.step));
    }
}

/* The same for one column of whole rows, with the same bits in half of the instructions: nothing is skewed, and the
 * slots are known in the code, which has a round of them in its loop. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void multiply_whole(const Product &p, const char *a, size_t nb1,
                                                      int n_rows, char *stage, float *out) {
    typedef Format<TYPE> F;
    typedef Stage<TYPE, ROWS, true> S;
    enum { AHEAD = S::SLOTS - 1 }; /* chunks on their way */
    const int lane = threadIdx.x % 32, chunks = (int)p.chunks / S::SPAN;
    const int at = lane / F::SUBS * F::BYTES;
    const bool last = lane + 32 * (S::PER_LANE - 1) < S::PIECES; /* the lane has as many pieces as any */
    const SharedAt to = shared_at(stage + lane * 16);
    float sum[ROWS];
    const char *next[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        next[r] = a + (r < n_rows ? r * nb1 : 0) + lane * 16;
        sum[r] = 0.0f;
    }
/* The chunk that is `ahead` of next, to a slot. */
#define FETCH(slot, ahead, there)                                                                  \
    _Pragma("unroll") for (int r = 0; r < ROWS; r++) {                                             \
        _Pragma("unroll") for (int i = 0; i < S::PER_LANE; i++)                                    \
            copy_ahead_if((there) && (i + 1 < S::PER_LANE || last),                                \
                          to + (slot)*S::SLOT_BYTES + r * S::ROW_BYTES + 512 * i,                  \
                          next[r] + (ahead)*S::CHUNK + 512 * i);                                   \
    }                                                                                              \
    copies_begun();
#pragma unroll
    for (int d = 0; d < AHEAD; d++) {
        FETCH(d, d, d < chunks)
    }
    if (p.early) previous_done();
    const int8_t *q = p.q + lane * 16;
    const float2 *ds = p.ds + lane;
    for (int c = 0; c < chunks; c += S::SLOTS) {
#pragma unroll
        for (int j = 0; j < S::SLOTS; j++) {
            if (c + j >= chunks) break;
            FETCH((j + AHEAD) % S::SLOTS, j + AHEAD, c + j + AHEAD < chunks)
            Column column[S::SPAN];
#pragma unroll
            for (int k = 0; k < S::SPAN; k++)
                column[k] =
                    load_column(q + (j * S::SPAN + k) * 1024, ds + (j * S::SPAN + k) * 32);
            copies_done<AHEAD>();
            __syncwarp(); /* the whole chunk is there */
#pragma unroll
            for (int k = 0; k < S::SPAN; k++) {
                sum_halves<TYPE>(&column[k]);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const char *chunk = stage + j * S::SLOT_BYTES + r * S::ROW_BYTES;
                    const Sub x = take_apart<TYPE, true>((const uint32_t *)(const void *)chunk,
                                                         at + k * S::PART, lane % F::SUBS);
                    sum[r] = add_product<TYPE>(x, column[k], sum[r]);
                }
            }
            __syncwarp(); /* the next whole chunk takes its place */
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) next[r] += S::SLOTS * S::CHUNK;
        q += S::SLOTS * S::SPAN * 1024;
        ds += S::SLOTS * S::SPAN * 32;
    }
#undef FETCH
#pragma unroll
    for (int r = 0; r < ROWS; r++) write_sum(sum[r], r < n_rows, out + r);
}

/* WHOLE: one column, and rows as multiply_whole wants them. grid: x groups of WARPS * ROWS rows, y groups of N columns
 * or pairs, z matrices */
template <int TYPE, int N, int ROWS, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, blocks_of(TYPE, N, ROWS, WHOLE))
    mul_vec_blocks_kernel(Product p, int64_t n_y, int64_t n_z) {
    __shared__ __align__(16) char staged[WARPS][Stage<TYPE, ROWS, WHOLE>::BYTES];
    char *stage = staged[threadIdx.x / 32];
    next_may_start();
    if (!p.early) previous_done();
    const Which which = which_of(p, blockIdx.x);
    const int64_t row = (which.block * WARPS + threadIdx.x / 32) * ROWS;
    if (row >= which.m) return;
    const int n_rows = which.m - row < ROWS ? (int)(which.m - row) : (int)ROWS;
    if constexpr (WHOLE) {
        const char *a = which.a ? which.a : p.a.data;
        float *out = (float *)(void *)(which.a ? which.dst : p.dst.data);
        multiply_whole<TYPE, ROWS>(p, a + (size_t)row * which.nb1, which.nb1, n_rows, stage,
                                   out + row);
    } else {
        for (int64_t z = blockIdx.z; z < n_z; z += gridDim.z) {
            for (int64_t y = blockIdx.y; y < n_y; y += gridDim.y) {
                Task t = task_of(p, which, y, z, N);
                t.a += (size_t)row * which.nb1;
                t.out += row;
                multiply_rows<TYPE, N, ROWS>(p, t, which.nb1, n_rows, stage);
            }
        }
    }
}

/* ---- plain types ---- */

/* 16 bytes of a row of F32, F16 or BF16, the i-th, as floats. */
template <int TYPE, int WIDTH>
static __device__ __forceinline__ void load_wide(const char *row, int64_t i, float (&x)[WIDTH]) {
    const uint4 v = ((const uint4 *)(const void *)row)[i];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        const uint16_t h = (uint16_t)(words[j * 4 / WIDTH] >> (j % 2 * 16));
        x[j] = TYPE == SHEAF_TYPE_F32   ? sheaf__bits_f32(words[j % 4])
               : TYPE == SHEAF_TYPE_F16 ? f16_to_f32(h)
                                        : sheaf__bf16_to_f32(h);
    }
}
/* sum += the lane's products, 16 bytes of each row of a at a time. */
template <int TYPE, int WIDTH, int N, int ROWS>
static __device__ __forceinline__ void add_wide(float (&sum)[ROWS][N], const char *const (&w)[ROWS],
                                                const Task &t, int64_t k) {
#pragma unroll 4
    for (int64_t i = threadIdx.x % 32; i < k / WIDTH; i += 32) {
        float x[ROWS][WIDTH];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_wide<TYPE>(w[r], i, x[r]);
#pragma unroll
        for (int c = 0; c < N; c++) {
            if (c >= t.n) break;
            const float4 *b =
                (const float4 *)(const void *)(t.b + (size_t)c * t.b_step) + i * (WIDTH / 4);
#pragma unroll
            for (int j = 0; j < WIDTH; j += 4) {
                const float4 v = b[j / 4];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float s = fmaf(x[r][j], v.x, sum[r][c]);
                    s = fmaf(x[r][j + 1], v.y, s);
                    s = fmaf(x[r][j + 2], v.z, s);
                    sum[r][c] = fmaf(x[r][j + 3], v.w, s);
                }
            }
        }
    }
}
/* The same, an element at a time. */
template <int N, int ROWS>
static __device__ __forceinline__ void add_each(float (&sum)[ROWS][N], const char *const (&w)[ROWS],
                                                int type, const Task &t, int64_t k) {
    for (int64_t i = threadIdx.x % 32; i < k; i += 32) {
        for (int c = 0; c < N && c < t.n; c++) {
            const float b = ((const float *)(const void *)(t.b + (size_t)c * t.b_step))[i];
            for (int r = 0; r < ROWS; r++)
                sum[r][c] = fmaf(load_dense(type, w[r], i), b, sum[r][c]);
        }
    }
}
/* The first KiB of each row, if it is wide: all that stand ready ask for some 16 MB, which the L2 cache keeps while a
 * product before them streams through it. */
template <int ROWS>
static __device__ __forceinline__ void prefetch_first(const char *const (&w)[ROWS], bool wide,
                                                      int64_t bytes) {
    const int lane = threadIdx.x % 32;
    const int64_t left = bytes - (int64_t)lane * 128;
    for (int r = 0; r < ROWS && wide && left > 0 && lane < 8; r++)
        prefetch(w[r] + (size_t)lane * 128, left < 128 ? (unsigned)left : 128u);
}

/* TYPE: COUNT is any type, an element at a time. wide: rows of a and b begin at multiples of 16 bytes and
 * have whole groups of 8 elements */
template <int TYPE, int N, int ROWS>
static __global__ void mul_vec_plain_kernel(Product p, int64_t n_y, int64_t n_z, bool wide) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    next_may_start();
    if (!p.early) previous_done();
    const Which which = which_of(p, blockIdx.x);
    const int64_t k = p.a.ne[0], m = which.m;
    const int64_t row = (which.block * WARPS + warp) * ROWS;
    enum { WIDTH = TYPE == SHEAF_TYPE_F32 ? 4 : 8 }; /* elements of 16 bytes */
    if (row >= m) return;
    for (int64_t z = blockIdx.z; z < n_z; z += gridDim.z) {
        for (int64_t y = blockIdx.y; y < n_y; y += gridDim.y) {
            const Task t = task_of(p, which, y, z, N);
            float sum[ROWS][N];
            const char *w[ROWS];
            for (int r = 0; r < ROWS; r++) {
                w[r] = t.a + (size_t)(row + r < m ? row + r : row) * which.nb1;
                for (int c = 0; c < N; c++) sum[r][c] = 0.0f;
            }
            if (p.early) {
                if (TYPE != SHEAF_TYPE_COUNT ) prefetch_first(w, wide, k * (16 / WIDTH));
                previous_done();
            }
            if (wide && !t.zero) {
                add_wide<TYPE, WIDTH>(sum, w, t, k);
            } else if (!t.zero) {
                add_each(sum, w, TYPE == SHEAF_TYPE_COUNT ? p.a.type : TYPE, t, k);
            }
            for (int r = 0; r < ROWS; r++) {
                for (int c = 0; c < N; c++) {
                    const float total = warp_sum(sum[r][c]);
                    if (lane == 0 && c < t.n && row + r < m)
                        *(float *)(void *)((char *)(t.out + row + r) + (size_t)c * t.step) = total;
                }
            }
        }
    }
}

/* ---- launch ---- */

/* How a launch divides the work. */
struct Grid {
    dim3 blocks;
    int64_t n_y, n_z;
};

/* One column of rows that are whole chunks, each of `span` times 32 sub-blocks? */
static bool is_whole(const struct Product *p, const Grid &g, int span) {
    uintptr_t bits = (uintptr_t)p->a.data | p->a.nb[1];
    for (int k = 0; k < p->n_more; k++) bits |= (uintptr_t)p->more[k].a | p->more[k].nb1;
    return !p->ids.data && g.n_y * g.n_z == 1 && p->a.ne[0] % (1024 * span) == 0 && bits % 16 == 0;
}

template <int TYPE, int N, int ROWS>
static void launch_blocks(struct sheaf__cuda_queue *q, const struct Product *p, const Grid &g) {
    auto kernel = mul_vec_blocks_kernel<TYPE, N, ROWS, false>;
    if (N == 1 && is_whole(p, g, Stage<TYPE, ROWS, true>::SPAN))
        kernel = mul_vec_blocks_kernel<TYPE, N, ROWS, N == 1>;
    CUDA_LAUNCH_AHEAD(q->ahead, kernel, g.blocks, THREADS, 0, q->stream, *p, g.n_y, g.n_z);
}
template <int TYPE, int N, int ROWS>
static void launch_plain(struct sheaf__cuda_queue *q, const struct Product *p, const Grid &g) {
    const bool wide =
        TYPE != SHEAF_TYPE_COUNT && p->a.ne[0] % 8 == 0 && in_sixteens(p->a) && in_sixteens(p->b);
    CUDA_LAUNCH_AHEAD(q->ahead, (mul_vec_plain_kernel<TYPE, N, ROWS>), g.blocks, THREADS, 0,
                      q->stream, *p, g.n_y, g.n_z, wide);
}

template <int N, int ROWS>
static void launch(struct sheaf__cuda_queue *q, struct Product *p) {
    const bool pairs = p->ids.data != NULL;
    Grid g;
    g.n_y = pairs ? p->dst.ne[1] * p->dst.ne[2] : (p->dst.ne[1] + N - 1) / N;
    g.n_z = pairs ? 1 : p->dst.ne[2] * p->dst.ne[3];
    unsigned blocks = sheaf__cuda_blocks(p->a.ne[1], WARPS * ROWS);
    for (int k = 0; k < p->n_more; k++) {
        p->more[k].first = blocks;
        blocks += sheaf__cuda_blocks(p->more[k].m, WARPS * ROWS);
    }
    g.blocks = dim3(blocks, sheaf__cuda_blocks_y(g.n_y), sheaf__cuda_blocks_y(g.n_z));
    switch (p->a.type) {
#define BLOCKS(type, ...)                                                                          \
    case SHEAF_TYPE_##type:                                                                        \
        launch_blocks<SHEAF_TYPE_##type, N, ROWS>(q, p, g);                                        \
        break;
#define PLAIN(type)                                                                                \
    case SHEAF_TYPE_##type:                                                                        \
        launch_plain<SHEAF_TYPE_##type, N, ROWS>(q, p, g);                                         \
        break
        SUB_BLOCK_TYPES(BLOCKS)
        PLAIN(F32);
        PLAIN(F16);
        PLAIN(BF16);
#undef BLOCKS
#undef PLAIN
    default: /* by elements */
        launch_plain<SHEAF_TYPE_COUNT, N, ROWS>(q, p, g);
        break;
    }
}

/* Up to so many rows for each SM have a warp of their own, or there are too few warps. */
enum { SMALL = 32 };

void sheaf__cuda_mul_vec(struct sheaf__cuda_queue *q, struct Product *p) {
    int64_t rows = p->a.ne[1];
    for (int k = 0; k < p->n_more; k++) rows += p->more[k].m;
    if (!p->ids.data && p->dst.ne[1] > 1) {
        launch<COLUMNS, 2>(q, p);
    } else if (rows <= (int64_t)q->device->n_sm * SMALL) {
        launch<1, 1>(q, p);
    } else {
        launch<1, 2>(q, p);
    }
}
