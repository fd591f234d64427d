/* FLASH_ATTN_EXT for few queries by tensor cores, over F16 or BF16 keys and values: split-K, or flash
 * decoding (Dao et al. 2023), as in attention_split.cu, which takes what does not fit here.
 *
 * The keys are divided into parts. A block takes one part of one K/V head for up to ROWS rows, where
 * row m is head m % group of the K/V head's group, of query m / group: so K and V are read once for the
 * heads of a group. Its warps take the tiles of KEYS keys in turn, and each copies its tiles into its
 * own ring in shared memory, some tiles ahead of the one it computes with. So no warp waits for
 * another before the end, where what the warps found is put together in shared memory; what the parts
 * found is put together by join_kernel (attention.cu).
 *
 * A tile of scores is q k^T in the registers of the warp. The softmax is taken online there, and the
 * probabilities, as they lie, are the left operand of the product with the values.
 *
 * A tensor core takes halves, but q and the probabilities are floats. Each of them is the sum of two
 * halves, high and low (22 bits of F16, 16 of BF16), and each product is the sum of two. With ROWS = 8,
 * both halves of a row share one product of 16 rows: row g holds the high ones, row g + 8 the low ones,
 * and a lane has both results. With ROWS = 16 there are two products.
 *
 * A masked key (-inf) is never read into a result, nor is one behind the last. The score of such a key is
 * replaced. Where no row sees a key, its values in shared memory become 0, as they may be NaN. A tile in
 * which no row sees a key is left out; it is not copied either, unless it is one of the warp's first. */
#include "cuda/attention.h"
#include "cuda/tensor_cores.cuh"

enum { KEYS = 16, MOST_WARPS = 8, WARPS = 4, MOST_STAGES = 4, LEAST_STAGES = 2 };
/* Keys that one part has if there are no more: the second kernel takes longer than they do. */
static const int64_t ALONE = 256;
static const int64_t LEAST_PART = 64;
static const size_t MOST_SHARED = 113 << 10;       /* two blocks of WARPS in 227 KiB */
static const size_t MOST_SHARED_ALONE = 226 << 10; /* one block of MOST_WARPS */

struct Few {
    Attention at;
    int per_part, stages;
    bool ahead;     /* launched ahead of the end of the kernel before it */
    float *partial; /* F32 [e + 2, parts, rows], or NULL: dst */
};

/* A tile of keys and values in shared memory, heads of up to D and E elements. Rows have an odd number
 * of 16-byte units, so that eight of them begin in different banks. */
template <int D, int E> struct Tile {
    enum { LD_K = 2 * D + 16, LD_V = 2 * E + 16, BYTES = KEYS * (LD_K + LD_V) }; /* bytes */
};
/* q of the block in shared memory, as a lane has it, for heads whose q is too much for the registers. */
template <int D, int ROWS> struct Operand {
    enum { R = ROWS / 8, STEPS = D / 16, SHARED = D > 192, BYTES = SHARED ? STEPS * R * 512 : 0 };
};
/* What a warp found: its rows of sums of values, then a maximum and a sum for each row. */
template <int E, int ROWS> struct Found {
    enum { LD = E + 8, MAX = ROWS * LD, SUM = MAX + ROWS }; /* floats */
};

/* ---- tiles ---- */

/* `rows` of up to KEYS rows of `width` halves, by the warp: a lane has one unit of every so many rows. */
template <int WIDTH>
static __device__ __forceinline__ void copy_rows(char *to, const char *from, unsigned step,
                                                 int rows, int width) {
    enum { UNITS = WIDTH / 8, LANES = UNITS > 16 ? 32 : UNITS > 8 ? 16 : 8, LD = 2 * WIDTH + 16 };
    const int row = threadIdx.x % 32 / LANES, unit = threadIdx.x % LANES;
    if (unit * 8 >= width) return;
    const char *x = from + (size_t)row * step + unit * 16;
    char *y = to + row * LD + unit * 16;
#pragma unroll
    for (int i = 0; i < KEYS; i += 32 / LANES) {
        if (i + row < rows) copy_ahead<16>(y + i * LD, x);
        x += 32 / LANES * step;
    }
}
/* The same to the L2 cache. */
template <int WIDTH>
static __device__ __forceinline__ void prefetch_rows(const char *from, unsigned step, int rows,
                                                     int width) {
    enum { SECTORS = WIDTH / 16, LANES = SECTORS > 8 ? 16 : SECTORS > 4 ? 8 : 4 };
    const int row = threadIdx.x % 32 / LANES, sector = threadIdx.x % LANES;
    if (sector * 16 >= width) return;
    const char *x = from + (size_t)row * step + sector * 32;
#pragma unroll
    for (int i = 0; i < KEYS; i += 32 / LANES) {
        if (i + row < rows) prefetch_sector(x);
        x += 32 / LANES * step;
    }
}

/* All groups of copies but the last `running` are there. */
static __device__ __forceinline__ void wait_for_copies(int running) {
    if (running == 0) {
        copies_done<0>();
    } else if (running == 1) {
        copies_done<1>();
    } else {
        copies_done<2>();
    }
}

/* ---- numbers ---- */

/* The half nearest to f, and what is then left of f. */
template <int TYPE> HD uint32_t take_half(float &f) {
    const uint16_t h = TYPE == SHEAF_TYPE_F16 ? f32_to_f16(f) : sheaf__f32_to_bf16(f);
    f -= TYPE == SHEAF_TYPE_F16 ? f16_to_f32(h) : sheaf__bf16_to_f32(h);
    return h;
}
/* Inside the range of a half, if TYPE is F16. */
template <int TYPE> HD float clamped(float f) {
    const float inside = fmaxf(fminf(f, 65504.0f), -65504.0f);
    return TYPE == SHEAF_TYPE_F16 && f == f ? inside : f;
}
/* Two floats as the sum of two pairs of halves. */
template <int TYPE> HD void high_and_low(float x, float y, uint32_t &high, uint32_t &low) {
    high = take_half<TYPE>(x);
    high |= take_half<TYPE>(y) << 16;
    low = take_half<TYPE>(x);
    low |= take_half<TYPE>(y) << 16;
}

/* A left operand of 16 columns, ROWS rows of floats: the lane has x[r][0 to 3], of its row g + 8 r,
 * columns 2t, 2t + 1, 2t + 8 and 2t + 9. One product per element of a. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void left_of(const float (&x)[ROWS / 8][4],
                                               uint32_t (&a)[ROWS / 8][4]) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (ROWS == 8) {
            high_and_low<TYPE>(x[0][2 * c], x[0][2 * c + 1], a[0][2 * c], a[0][2 * c + 1]);
        } else {
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++)
                high_and_low<TYPE>(x[r][2 * c], x[r][2 * c + 1], a[0][2 * c + r],
                                   a[ROWS / 8 - 1][2 * c + r]);
        }
    }
}

/* ---- what a block has ---- */

struct Place {
    int hk, s, head, group, m0, n_rows, first, last; /* n_rows: from m0 on */
};
static __device__ __forceinline__ Place place_of(const Few &few, int rows) {
    const Attention &at = few.at;
    const unsigned heads = (unsigned)at.k.ne[2];
    const int t = (int)at.k.ne[1];
    Place p;
    p.s = (int)(blockIdx.z / heads);
    p.hk = (int)(blockIdx.z % heads);
    p.head = (int)first_head(at, p.hk);
    p.group = (int)first_head(at, p.hk + 1) - p.head;
    p.m0 = (int)blockIdx.x * rows;
    p.n_rows = (int)at.q.ne[1] * p.group - p.m0;
    p.first = (int)blockIdx.y * few.per_part;
    p.last = p.first + few.per_part < t ? p.first + few.per_part : t;
    return p;
}
/* The query and the head of row r of the block. */
static __device__ __forceinline__ Row query_of(const Place &p, int r) {
    const unsigned m = (unsigned)(p.m0 + r), group = (unsigned)p.group;
    const Row at = {m / group, p.head + (int)(m % group), p.s};
    return at;
}

/* The row's bias of keys first, first + 1, first + 8 and first + 9, as it lies; closed: that of a key
 * which is masked, also of one from `last` on. */
static __device__ __forceinline__ void load_biases(uint32_t (&bias)[4], const Attention &at,
                                                   const char *mask, uint32_t closed, int first,
                                                   int last) {
    const char *from = mask + (size_t)first * at.mask.nb[0];
    const size_t step = at.mask.nb[0];
    const bool there[4] = {first < last, first + 1 < last, first + 8 < last, first + 9 < last};
    const bool half = at.mask.type == SHEAF_TYPE_F16;
#pragma unroll
    for (int i = 0; i < 4; i++) bias[i] = mask || !there[i] ? closed : 0;
    if (!mask) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const char *p = from + (size_t)(i / 2 * 8 + i % 2) * step;
        if (there[i] && half) bias[i] = *(const uint16_t *)(const void *)p;
        if (there[i] && !half) bias[i] = *(const uint32_t *)(const void *)p;
    }
}

/* ---- the steps of a warp; a lane has g = lane / 4, t = lane % 4 and the rows g + 8 r ---- */

/* Keys and values of the block's K/V head. */
template <int D, int E> struct Source {
    const char *k, *v;
    unsigned k_step, v_step; /* bytes */
    int d, e, last;
    __device__ __forceinline__ void prefetch(int key) const {
        prefetch_rows<D>(k + (size_t)key * k_step, k_step, last - key, d);
        prefetch_rows<E>(v + (size_t)key * v_step, v_step, last - key, e);
    }
    __device__ __forceinline__ void copy(char *tile, int key) const {
        copy_rows<D>(tile, k + (size_t)key * k_step, k_step, last - key, d);
        copy_rows<E>(tile + KEYS * Tile<D, E>::LD_K, v + (size_t)key * v_step, v_step, last - key,
                     e);
    }
};
template <int D, int E>
static __device__ __forceinline__ Source<D, E> source_of(const Attention &at, const Place &place) {
    const Row kv = {0, place.hk, place.s};
    Source<D, E> from;
    from.k = row_data(at.k, kv);
    from.v = row_data(at.v, kv);
    from.k_step = (unsigned)at.k.nb[1];
    from.v_step = (unsigned)at.v.nb[1];
    from.d = (int)at.q.ne[0];
    from.e = (int)at.v.ne[0];
    from.last = place.last;
    return from;
}

/* Columns that keys lack, in all tiles of a ring; q is 0 there. */
template <int D, int E>
static __device__ __forceinline__ void clear_columns(char *ring, int stages, int d) {
    typedef Tile<D, E> T;
    for (int i = threadIdx.x % 32; i < stages * KEYS * (D / 8); i += 32) {
        const int row = i / (D / 8), unit = i % (D / 8);
        const uint4 zero = {0, 0, 0, 0};
        if (unit * 8 >= d)
            *(uint4 *)(void *)(ring + row / KEYS * T::BYTES + row % KEYS * T::LD_K + unit * 16) =
                zero;
    }
}
/* Values whose keys are not among `seen`. */
template <int D, int E>
static __device__ __forceinline__ void clear_values(char *tile, uint32_t seen) {
    typedef Tile<D, E> T;
    for (int i = threadIdx.x % 32; i < KEYS * (E / 8); i += 32) {
        const uint4 zero = {0, 0, 0, 0};
        if (!(seen >> i / (E / 8) & 1))
            *(uint4 *)(void *)(tile + KEYS * T::LD_K + i / (E / 8) * T::LD_V + i % (E / 8) * 16) =
                zero;
    }
}

/* The lane's rows: where their masks lie, and the state of their softmax. */
template <int R> struct Rows {
    const char *mask[R];
    int last[R]; /* that of the part, or 0 where the lane has no row */
    float max[R], sum[R], slope[R];
    uint32_t closed; /* the bias -inf, as it lies */
    bool half;       /* a bias is F16 */
};
template <int R>
static __device__ __forceinline__ void load_biases_of(uint32_t (&bias)[R][4], const Attention &at,
                                                      const Rows<R> &rows, int first) {
#pragma unroll
    for (int r = 0; r < R; r++)
        load_biases(bias[r], at, rows.mask[r], rows.closed, first, rows.last[r]);
}
/* The rows, the biases of their first tile, and what the lane has of q. */
template <int R, int STEPS>
static __device__ __forceinline__ Rows<R> begin_rows(const Attention &at, const Place &place,
                                                     int first, uint32_t (&loaded)[R][4],
                                                     float2 (&q)[STEPS][R][2]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, d = (int)at.q.ne[0];
    Rows<R> rows;
    rows.half = at.mask.data && at.mask.type == SHEAF_TYPE_F16;
    rows.closed = rows.half ? 0xfc00u : 0xff800000u;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const bool mine = g + 8 * r < place.n_rows;
        const Row from = query_of(place, mine ? g + 8 * r : 0);
        const float *x = (const float *)(const void *)row_data(at.q, from) + 2 * t;
        rows.mask[r] = mask_row(at, from);
        rows.last[r] = mine ? place.last : 0;
        load_biases(loaded[r], at, rows.mask[r], rows.closed, first + 2 * t, rows.last[r]);
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++)
            q[i / 2][r][i % 2] = *(const float2 *)(const void *)(x + (8 * i < d ? 8 * i : 0));
        rows.slope[r] = alibi_slope(at.max_bias, at.base + from.i2, at.n_head);
        rows.max[r] = -INFINITY;
        rows.sum[r] = 0.0f;
    }
    return rows;
}

/* Columns 16 i to 16 i + 15 of q as a left operand; 0 where the block has no row, or q no column. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void query_operand(const float2 (&q)[ROWS / 8][2], int i, int d,
                                                     int n_rows, uint32_t (&to)[ROWS / 8][4]) {
    const int g = threadIdx.x % 32 / 4;
    float x[ROWS / 8][4];
#pragma unroll
    for (int r = 0; r < ROWS / 8; r++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const bool there = g + 8 * r < n_rows && 16 * i + 8 * c < d;
            x[r][2 * c] = there ? clamped<TYPE>(q[r][c].x) : 0.0f;
            x[r][2 * c + 1] = there ? clamped<TYPE>(q[r][c].y) : 0.0f;
        }
    }
    left_of<TYPE, ROWS>(x, to);
}

enum : uint32_t { OPEN_NEXT = 1u << KEYS }; /* some row sees a key of the tile copied next */
/* The biases of a tile, and a bit for each of its keys that some row sees; OPEN_NEXT by `peek`. */
template <int R>
static __device__ __forceinline__ uint32_t seen_keys(const Rows<R> &rows,
                                                     const uint32_t (&loaded)[R][4],
                                                     const uint32_t (&peek)[R][4],
                                                     float (&bias)[R][4]) {
    const int t = threadIdx.x % 4;
    uint32_t seen = 0;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bias[r][i] =
                rows.half ? f16_to_f32((uint16_t)loaded[r][i]) : sheaf__bits_f32(loaded[r][i]);
            if (bias[r][i] != -INFINITY) seen |= 1u << (i / 2 * 8 + 2 * t + i % 2);
            if (peek[r][i] != rows.closed) seen |= OPEN_NEXT;
        }
    }
    return warp_or(seen);
}

/* q k^T: scores[j] of keys 8 j to 8 j + 7. q is in registers, or where q_shared points to. */
template <int TYPE, int D, int ROWS, int HELD>
static __device__ __forceinline__ void multiply_keys(float (&scores)[2][4], const char *k_row,
                                                     uint32_t (&q)[HELD][ROWS / 8][4],
                                                     const uint4 *q_shared) {
    typedef Operand<D, ROWS> Q;
#pragma unroll
    for (int i = 0; i < 4; i++) scores[0][i] = scores[1][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < Q::STEPS; i++) {
        uint32_t k[4];
        uint32_t(&left)[Q::R][4] = q[Q::SHARED ? 0 : i];
        load_matrices(k, k_row + 32 * i);
        const uint32_t low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
#pragma unroll
        for (int r = 0; r < Q::R; r++) {
            if (Q::SHARED) {
                const uint4 a = q_shared[(i * Q::R + r) * 32];
                left[r][0] = a.x;
                left[r][1] = a.y;
                left[r][2] = a.z;
                left[r][3] = a.w;
            }
            multiply_16x8x16<TYPE>(scores[0], left[r], low);
            multiply_16x8x16<TYPE>(scores[1], left[r], high);
        }
    }
}

/* The scores as the lane has those of its rows, scaled. */
template <int ROWS>
static __device__ __forceinline__ void scale_scores(const Attention &at, const float (&scores)[2][4],
                                                    float (&p)[ROWS / 8][4]) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        float x = scores[i % 4 / 2][i / 4 * 2 + i % 2];
        if (ROWS == 8) x += scores[i % 4 / 2][2 + i % 2];
        p[i / 4][i % 4] = x * at.scale;
    }
    if (at.softcap == 0.0f) return;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        p[i / 4][i % 4] = at.softcap * tanhf(p[i / 4][i % 4] / at.softcap);
}

/* The softmax goes on: p becomes e^(score - max); earlier sums are to be multiplied by `shrink`. */
template <int R>
static __device__ __forceinline__ void continue_softmax(Rows<R> &rows, const float (&bias)[R][4],
                                                        float (&p)[R][4], float (&shrink)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        float best = rows.max[r];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float x = p[r][i] + rows.slope[r] * bias[r][i]; /* without a mask the bias is 0 */
            p[r][i] = bias[r][i] == -INFINITY ? -INFINITY : x;
            best = fmaxf(best, p[r][i]);
        }
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 2));
        shrink[r] = best > rows.max[r] ? expf(rows.max[r] - best) : 1.0f; /* 0 at first */
        rows.max[r] = best;
        const float from = best == -INFINITY ? 0.0f : best;
        rows.sum[r] *= shrink[r];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[r][i] = expf(p[r][i] - from);
            rows.sum[r] += p[r][i];
        }
    }
}

template <int R, int N>
static __device__ __forceinline__ void shrink_sums(float (&acc)[N][4], const float (&shrink)[R]) {
    if (shrink[0] == 1.0f && shrink[R - 1] == 1.0f) return;
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] *= shrink[j / 2 % R];
    }
}
/* acc += p v */
template <int TYPE, int ROWS, int N>
static __device__ __forceinline__ void add_values(float (&acc)[N][4], const float (&p)[ROWS / 8][4],
                                                  const char *v_row) {
    uint32_t left[ROWS / 8][4];
    left_of<TYPE, ROWS>(p, left);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        uint32_t v[4];
        load_transposed(v, v_row + 32 * i);
        const uint32_t low[2] = {v[0], v[1]}, high[2] = {v[2], v[3]};
#pragma unroll
        for (int r = 0; r < ROWS / 8; r++) {
            multiply_16x8x16<TYPE>(acc[2 * i], left[r], low);
            multiply_16x8x16<TYPE>(acc[2 * i + 1], left[r], high);
        }
    }
}

/* What the warps found of row r of the block, each at x + its number times `step` floats. */
template <class F> struct OfRow {
    const float *x;
    int step, r;
    __device__ float most(int w) const { return x[w * step + F::MAX + r]; }
    __device__ float sum(int w) const { return x[w * step + F::SUM + r]; }
    __device__ float value(int w, int i) const { return x[w * step + r * F::LD + i]; }
};
/* What the warp found, as OfRow reads it. */
template <int E, int ROWS>
static __device__ __forceinline__ void store_found(float *found, const float (&acc)[E / 8][4],
                                                   Rows<ROWS / 8> &rows) {
    typedef Found<E, ROWS> F;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < ROWS / 8; r++) {
        float *to = found + (g + 8 * r) * F::LD + 2 * t;
#pragma unroll
        for (int i = 0; i < E / 8; i++) {
            float2 two = {acc[i][2 * r], acc[i][2 * r + 1]};
            if (ROWS == 8) {
                two.x += acc[i][2];
                two.y += acc[i][3];
            }
            *(float2 *)(void *)(to + 8 * i) = two;
        }
        rows.sum[r] += __shfl_xor_sync(FULL_WARP, rows.sum[r], 1);
        rows.sum[r] += __shfl_xor_sync(FULL_WARP, rows.sum[r], 2);
        if (t == 0) {
            found[F::MAX + g + 8 * r] = rows.max[r];
            found[F::SUM + g + 8 * r] = rows.sum[r];
        }
    }
}

/* ---- the kernel ---- */

/* grid: x groups of rows, y parts of the keys, z K/V heads and sequences. Shared: q, if it is there; a
 * ring of `stages` tiles for each warp, at the end what the warp found in its place. */
template <int TYPE, int D, int E, int ROWS>
static __global__ void __launch_bounds__(32 * MOST_WARPS) few_kernel(Few few) {
    typedef Tile<D, E> T;
    typedef Operand<D, ROWS> Q;
    enum { R = Q::R, STEPS = Q::STEPS };
    CUDA_DYNAMIC_SHARED(char, shared);
    const Attention &at = few.at;
    const int d = (int)at.q.ne[0], stages = few.stages;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
    const int n_warps = blockDim.x / 32, step = n_warps * KEYS; /* between tiles of a warp */
    const Place place = place_of(few, ROWS);
    const int first = place.first + warp * KEYS, last = place.last;
    const Source<D, E> source = source_of<D, E>(at, place);
    char *rings = shared + Q::BYTES, *ring = rings + warp * stages * T::BYTES;

    /* All keys but the last were written by kernels that have ended. The last may be written behind this
     * request: the write goes through the L2 cache, so reads that follow see it. */
    if (few.ahead && place.n_rows > 0) {
        for (int i = 0, key = first; i < stages - 1 && key < last; i++, key += step)
            source.prefetch(key);
    }
    if (d < D) clear_columns<D, E>(ring, stages, d);
    next_may_start();
    if (threadIdx.x == 0 && place.n_rows > 0) {
        const Row from = query_of(place, 0), to = {from.i2, from.i1, from.i3};
        look_up(row_data(at.q, from));
        look_up(row_data(at.dst, to));
        if (at.mask.data) look_up(at.mask.data);
    }
    previous_done();
    if (place.n_rows <= 0) return; /* the K/V head's group is smaller than others */

    /* what the registers need is asked for first, then the copies run on */
    uint32_t loaded[R][4]; /* biases of the tile that comes next */
    uint32_t peek[R][4]; /* biases of the tile that is copied next: where none is open, it is not */
    float2 q_row[STEPS][R][2];
    Rows<R> rows = begin_rows<R, STEPS>(at, place, first, loaded, q_row);
    int next = first; /* key of the next tile to be copied */
    for (int i = 0; i < stages - 1; i++, next += step) {
        if (next < last) source.copy(ring + i * T::BYTES, next);
        copies_begun();
    }
    load_biases_of(peek, at, rows, next + 2 * t);
    uint4 *q_shared = (uint4 *)(void *)shared + lane;
    uint32_t q[Q::SHARED ? 1 : STEPS][R][4];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        uint32_t(&to)[R][4] = q[Q::SHARED ? 0 : i];
        if (Q::SHARED && i % n_warps != warp) continue;
        query_operand<TYPE, ROWS>(q_row[i], i, d, place.n_rows, to);
#pragma unroll
        for (int r = 0; r < R && Q::SHARED; r++) {
            const uint4 a = {to[r][0], to[r][1], to[r][2], to[r][3]};
            q_shared[(i * R + r) * 32] = a;
        }
    }
    if (Q::SHARED) __syncthreads(); /* q is there */
    float acc[E / 8][4];
#pragma unroll
    for (int i = 0; i < E / 8; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = 0.0f;
    }
    /* the row of a matrix that this lane gives to load_matrices, and to load_transposed */
    const int k_row = (lane % 8 + lane / 16 * 8) * T::LD_K + lane / 8 % 2 * 16;
    const int v_row = KEYS * T::LD_K + lane % 16 * T::LD_V + lane / 16 * 16;

    int slot = 0;
    for (int key = first; key < last; key += step, next += step) {
        float bias[R][4], scores[2][4], p[R][4], shrink[R];
        uint32_t seen = seen_keys(rows, loaded, peek, bias);
        wait_for_copies(stages - 2);
        __syncwarp(); /* the tile is there, and the one before it has been used */
        if (seen & OPEN_NEXT) source.copy(ring + (slot ? slot - 1 : stages - 1) * T::BYTES, next);
        copies_begun();
        seen &= OPEN_NEXT - 1;
        load_biases_of(loaded, at, rows, key + step + 2 * t);
        load_biases_of(peek, at, rows, next + step + 2 * t);
        char *tile = ring + slot * T::BYTES;
        slot = slot + 1 < stages ? slot + 1 : 0;
        if (!seen) continue; /* the same for all lanes */
        if (seen != OPEN_NEXT - 1) {
            clear_values<D, E>(tile, seen);
            __syncwarp();
        }
        multiply_keys<TYPE, D, ROWS>(scores, tile + k_row, q, q_shared);
        scale_scores<ROWS>(at, scores, p);
        continue_softmax(rows, bias, p, shrink);
        shrink_sums(acc, shrink);
        add_values<TYPE, ROWS>(acc, p, tile + v_row);
    }

    __syncwarp(); /* the last tile has been used */
    store_found<E, ROWS>((float *)(void *)ring, acc, rows);
    __syncthreads(); /* what all warps found is there */
    const int ring_floats = stages * T::BYTES / (int)sizeof(float);
    for (int r = warp; r < ROWS && r < place.n_rows; r += n_warps) {
        const OfRow<Found<E, ROWS> > of_row = {(const float *)(const void *)rings, ring_floats, r};
        write_row<MOST_WARPS>(at, query_of(place, r), of_row, n_warps, few.partial);
    }
}

/* ---- launch ---- */

static bool fits(const int64_t *k_ne, const int64_t *v_ne, int k_type, int v_type) {
    return k_type == v_type && (k_type == SHEAF_TYPE_F16 || k_type == SHEAF_TYPE_BF16) &&
           k_ne[0] % 16 == 0 && v_ne[0] % 16 == 0 && k_ne[0] > 0 && k_ne[0] <= 256 && v_ne[0] > 0 &&
           v_ne[0] <= 256;
}

/* How rows and keys are divided, by shapes alone: what the work memory is counted by. */
struct Shape {
    int rows; /* of a block */
    int64_t row_groups, per_part, parts;
};
static Shape shape_of(const struct sheaf__cuda_queue *q, const int64_t *q_ne, const int64_t *k_ne,
                      const int64_t *v_ne, int64_t group) {
    const int64_t rows = q_ne[1] * group, t = k_ne[1];
    Shape s;
    s.rows = rows > 8 && k_ne[0] <= 128 && v_ne[0] <= 128 ? 16 : 8;
    s.row_groups = (rows + s.rows - 1) / s.rows;
    const int64_t blocks = s.row_groups * k_ne[2] * q_ne[3];
    const int64_t most = (t + LEAST_PART - 1) / LEAST_PART;
    int64_t parts = blocks > 0 && t > ALONE ? (int64_t)q->device->n_sm * 2 / blocks : 1;
    parts = parts < most ? parts : most;
    parts = parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
    s.per_part = ((t + parts - 1) / parts + KEYS - 1) / KEYS * KEYS;
    s.parts = t ? (t + s.per_part - 1) / s.per_part : 1;
    return s;
}

int64_t sheaf__cuda_attention_few_parts(const struct sheaf__cuda_queue *q,
                                        const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *k = dst->src[1], *v = dst->src[2];
    const int64_t each = sheaf__head_groups(dst).each, heads = dst->src[0]->ne[2];
    if (!fits(k->ne, v->ne, k->type, v->type)) return 1;
    return shape_of(q, dst->src[0]->ne, k->ne, v->ne, each < heads ? each : heads).parts;
}

/* The most warps, and then the most stages, that shared memory has room for. */
template <int TYPE, int D, int E, int ROWS>
static bool launch(struct sheaf__cuda_queue *q, Few few, const Shape &s) {
    const dim3 grid((unsigned)s.row_groups, (unsigned)s.parts,
                    (unsigned)(few.at.k.ne[2] * few.at.q.ne[3]));
    const size_t most = s.parts == 1 ? MOST_SHARED_ALONE : MOST_SHARED;
    for (int warps = s.parts == 1 ? MOST_WARPS : WARPS; warps; warps /= 2) {
        for (few.stages = MOST_STAGES; few.stages >= LEAST_STAGES; few.stages--) {
            const size_t bytes =
                Operand<D, ROWS>::BYTES + (size_t)(warps * few.stages) * Tile<D, E>::BYTES;
            if (bytes > most || !sheaf__cuda_allows_shared(q, few_kernel<TYPE, D, E, ROWS>, bytes)) continue;
            CUDA_LAUNCH_AHEAD(q->ahead, (few_kernel<TYPE, D, E, ROWS>), grid, 32 * warps, bytes,
                              q->stream, few);
            return true;
        }
    }
    return false;
}

template <int TYPE> static bool launch_type(struct sheaf__cuda_queue *q, Few &few, const Shape &s) {
    const int64_t d = few.at.k.ne[0], e = few.at.v.ne[0];
    if (d <= 64 && e <= 64)
        return s.rows == 16 ? launch<TYPE, 64, 64, 16>(q, few, s)
                            : launch<TYPE, 64, 64, 8>(q, few, s);
    if (d <= 128 && e <= 128)
        return s.rows == 16 ? launch<TYPE, 128, 128, 16>(q, few, s)
                            : launch<TYPE, 128, 128, 8>(q, few, s);
    return d <= 192 && e <= 128 ? launch<TYPE, 192, 128, 8>(q, few, s)
                                : launch<TYPE, 256, 256, 8>(q, few, s);
}

/* Copies of 16 bytes, and steps between rows that 32 bits hold. */
static bool can_copy(const View &v) {
    return in_sixteens(v) && v.nb[1] < 1u << 29;
}

int64_t sheaf__cuda_attention_few(struct sheaf__cuda_queue *q, const struct Attention *at,
                                  float *partial) {
    if (!fits(at->k.ne, at->v.ne, at->k.type, at->v.type) || !can_copy(at->k) || !can_copy(at->v))
        return 0;
    if (at->k.type == SHEAF_TYPE_BF16 && q->device->code < 80) return 0;
    if (at->q.nb[0] != sizeof(float) ||
        ((uintptr_t)at->q.data | at->q.nb[1] | at->q.nb[2] | at->q.nb[3]) % sizeof(float2))
        return 0;
    if (at->mask.data && at->mask.type != SHEAF_TYPE_F16 && at->mask.type != SHEAF_TYPE_F32)
        return 0;
    const Shape s = shape_of(q, at->q.ne, at->k.ne, at->v.ne, at->group);
    if (at->k.ne[2] * at->q.ne[3] > 65535 || at->k.ne[1] > 1 << 30 ||
        at->q.ne[1] * at->group > 1 << 30)
        return 0;
    Few few;
    memset((void *)&few, 0, sizeof few);
    few.at = *at;
    few.per_part = (int)s.per_part;
    few.ahead = q->ahead;
    few.partial = s.parts > 1 ? partial : NULL;
    const bool launched = at->k.type == SHEAF_TYPE_F16 ? launch_type<SHEAF_TYPE_F16>(q, few, s)
                                                       : launch_type<SHEAF_TYPE_BF16>(q, few, s);
    return launched ? s.parts : 0;
}
