/* FLASH_ATTN_EXT with tensor cores: F16 keys and values, heads of 64 or 128, many queries.
 *
 * A block takes ROWS rows of one K/V head: row m is head m % group of its group, query m / group,
 * so that the heads of a group share what is loaded. It goes through the keys in tiles of KEYS.
 * While it computes with one tile, the next one is copied to shared memory. A warp has 16 rows; it
 * keeps them, their scores, probabilities and sums of values in registers, in the layouts of
 * tensor_cores.cuh: scores that have become probabilities are the left operand of the product with
 * the values as they are. A multiprocessor has registers for two blocks: one's softmax runs beside
 * the other's products.
 *
 * The softmax is computed while keys come (Milakov and Gimelshein, arXiv 1805.02867; Dao, arXiv
 * 2307.08691), with powers of two: scores are multiplied by log2(e). A row's sums are scaled down
 * only when a score exceeds the row's reference by more than SLACK: probabilities are then at most
 * 2^SLACK, which halves hold with the same relative precision.
 *
 * Before, seen_kernel reads the mask once and writes, for each block of rows and each tile, which
 * keys are seen by any row, and whether the mask is zero in the whole tile. Tiles of which nothing
 * is seen are skipped; in tiles whose mask is zero no mask is read. A key that no row of the block
 * sees has its key and value set to zero: the cell behind it may hold anything, also NaN. */
#include "cuda/attention.h"
#include "cuda/tensor_cores.cuh"

enum {
    WARPS = 4,
    THREADS = 32 * WARPS,
    ROWS = 16 * WARPS,
    AT_ONCE = 2, /* blocks that a multiprocessor has registers for */
    KEYS = 64,
    SLACK = 8,
    LEAST_ROWS = 32,
    MANY_QUERIES = 16,
    SEEN_WARPS = 4
};
#define LOG2_E 1.44269504088896341f
#define LN_2   0.69314718055994531f

/* In shared memory: keys and values of a tile. There are two, and q lies in the second at first. */
template <int D> struct Stage { uint16_t k[KEYS * D], v[KEYS * D]; };

/* Where piece `piece` of 16 bytes of row `row` lies: the eight rows that tensor cores read together
 * have it in different banks. */
template <int D> HD int place(int row, int piece) { return row * D + (piece ^ row % 8) * 8; }

/* Piece 2 i + p of a row of `from`, where `at` is the byte offset of its piece p, 0 or 1: place() combines
 * numbers of pieces by XOR, and so does this. */
static __device__ __forceinline__ const char *further(const uint16_t *from, int at, int i) {
    return (const char *)from + (at ^ 32 * i);
}

/* What the rows of a block see of a tile. */
struct Seen {
    uint64_t keys; /* bit j: key j is there and seen by some row */
    bool plain;    /* every key is there and every row's mask is zero */
};
/* In memory: x and y are the bits of the keys, z is 1 if plain. Heads and sequences with one mask
 * have a step of 0. */
struct Table {
    uint4 *at; /* [tiles, blocks of rows, 1|K/V heads, 1|sequences], NULL without a mask */
    int tiles;
    int64_t head_step, seq_step;
};

/* 2^x; x of -INFINITY gives 0. */
static __device__ __forceinline__ float power_of_two(float x) {
#ifdef SHEAF_CUDA_EMULATED
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* Row m of a K/V head, whose query heads are `group` from `first` on. */
HD Row row_of_group(int first, int group, int s, int m) {
    const Row row = {m / group, first + m % group, s};
    return row;
}
/* Element `key` of its mask; TYPE: F16 or F32. */
template <int TYPE> HD float mask_at(const char *mask, int key) {
    return load_plain(TYPE, mask + (size_t)key * (TYPE == SHEAF_TYPE_F32 ? 4 : 2));
}

/* grid: x tiles in groups of SEEN_WARPS, y blocks of `rows` rows, z heads times sequences of the
 * table. A warp takes a tile; its lane has keys `lane` and `lane + 32`. TYPE: of the mask. */
template <int TYPE>
static __global__ void seen_kernel(Attention at, Table table, int rows, int heads) {
    next_may_start();
    previous_done();
    const int lane = threadIdx.x % 32, tile = blockIdx.x * SEEN_WARPS + threadIdx.x / 32;
    const int hk = blockIdx.z % heads, s = blockIdx.z / heads, t = (int)at.k.ne[1];
    const int first = (int)first_head(at, hk), group = (int)first_head(at, hk + 1) - first;
    const int n_rows = (int)at.q.ne[1] * group, m0 = blockIdx.y * rows;
    if (tile >= table.tiles || m0 >= n_rows) return;
    const int end = m0 + rows < n_rows ? m0 + rows : n_rows;
    /* rows of one query have the same mask unless heads differ in it */
    const bool by_query = at.mask.ne[2] == 1;
    const int n = by_query ? (end - 1) / group - m0 / group + 1 : end - m0;
    const char *first_mask = mask_row(at, row_of_group(first, group, s, m0));
    bool seen[2] = {false, false}, plain = true;
#pragma unroll 8
    for (int r = 0; r < n; r++) {
        const char *mask = by_query ? first_mask + (size_t)r * at.mask.nb[1]
                                    : mask_row(at, row_of_group(first, group, s, m0 + r));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int key = tile * KEYS + lane + 32 * i;
            const float x = key < t ? mask_at<TYPE>(mask, key) : -INFINITY;
            seen[i] = seen[i] || x != -INFINITY;
            plain = plain && x == 0.0f;
        }
    }
    const uint32_t low = __ballot_sync(FULL_WARP, seen[0]);
    const uint32_t high = __ballot_sync(FULL_WARP, seen[1]);
    const uint32_t all_plain = __ballot_sync(FULL_WARP, plain);
    if (lane == 0) {
        const uint4 x = {low, high, all_plain == FULL_WARP, 0};
        table.at[((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * table.tiles + tile] = x;
    }
}

/* The tiles that a block takes, one after another. A warp looks up 32 at once. */
struct Tiles {
    int number; /* the tile; from `n` on there is none */
    Seen seen;
    int n;
    int window;      /* tiles 32 window to 32 window + 31 are known: */
    uint32_t wanted; /* bit i: of tile i some key is seen */
    uint4 mine;      /* of tile `lane` */
};

/* Of tile `tile` of t keys, without a mask. */
static __device__ __forceinline__ uint4 all_seen(int tile, int64_t t) {
    const int64_t there = t - (int64_t)tile * KEYS;
    const uint64_t keys = there >= KEYS ? ~0ull : there > 0 ? (1ull << there) - 1 : 0;
    const uint4 x = {(uint32_t)keys, (uint32_t)(keys >> 32), there >= KEYS, 0};
    return x;
}

/* Moves x to the first tile from x.number on of which a key is seen. All lanes of a warp call it. */
static __device__ __forceinline__ void find_tile(Tiles &x, const uint4 *table, int64_t t,
                                                 int lane) {
    for (; x.number < x.n; x.number = x.number / 32 * 32 + 32) {
        if (x.window != x.number / 32) {
            x.window = x.number / 32;
            const int tile = x.window * 32 + lane;
            x.mine = table && tile < x.n ? table[tile] : all_seen(tile, table ? 0 : t);
            x.wanted = __ballot_sync(FULL_WARP, (x.mine.x | x.mine.y) != 0);
        }
        const uint32_t rest = x.wanted >> x.number % 32;
        if (!rest) continue;
        x.number += __ffs((int)rest) - 1;
        const int of = x.number % 32;
        const uint32_t low = __shfl_sync(FULL_WARP, x.mine.x, of);
        x.seen.keys = (uint64_t)__shfl_sync(FULL_WARP, x.mine.y, of) << 32 | low;
        x.seen.plain = __shfl_sync(FULL_WARP, x.mine.z, of) != 0;
        return;
    }
}

/* Begins to copy keys and values of a tile; those that no row sees become zero. k, v: of the first key
 * of the head. */
template <int D>
static __device__ __forceinline__ void copy_tile(Stage<D> &stage, const Attention &at,
                                                 const char *k, const char *v, const Tiles &which) {
    enum { PIECES = D / 8, STEP = THREADS / PIECES, N = KEYS / STEP };
    const int thread = (int)threadIdx.x;
    const int row = thread / PIECES, piece = thread % PIECES;
    const int begin = which.number * KEYS + row;
    const char *k_from = k + (size_t)begin * at.k.nb[1] + piece * 16;
    const char *v_from = v + (size_t)begin * at.v.nb[1] + piece * 16;
    static_assert(STEP % 8 == 0, "rows STEP on have their pieces in the same places");
    const int to = place<D>(row, piece);
    uint16_t *k_to = stage.k + to, *v_to = stage.v + to;
    const bool all = which.seen.keys == ~0ull;
    const uint4 zero = {0, 0, 0, 0};
    if (all) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            copy_ahead<16>(k_to + i * STEP * D, k_from + (size_t)(i * STEP) * at.k.nb[1]);
            copy_ahead<16>(v_to + i * STEP * D, v_from + (size_t)(i * STEP) * at.v.nb[1]);
        }
        return;
    }
    for (int i = 0; i < N; i++) {
        if (which.seen.keys >> (row + i * STEP) & 1) {
            copy_ahead<16>(k_to + i * STEP * D, k_from + (size_t)(i * STEP) * at.k.nb[1]);
            copy_ahead<16>(v_to + i * STEP * D, v_from + (size_t)(i * STEP) * at.v.nb[1]);
        } else {
            *(uint4 *)(void *)(k_to + i * STEP * D) = zero;
            *(uint4 *)(void *)(v_to + i * STEP * D) = zero;
        }
    }
}

/* The block's rows of q as halves; rows that are not there become zero. */
template <int D>
static __device__ __forceinline__ void load_q(uint16_t *q, const Attention &at, int first,
                                              int group, int64_t s, int m0, int n_rows) {
    enum { PIECES = D / 8 };
    const bool whole =
        at.q.nb[0] == 4 &&
        ((uintptr_t)at.q.data | at.q.nb[1] | at.q.nb[2] | at.q.nb[3]) % sizeof(float4) == 0;
    for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES, m = m0 + row;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (m < n_rows) {
            const Row from = {m / group, first + m % group, s}; /* by row_of_group 13 registers more */
            const char *p = row_data(at.q, from) + (size_t)(piece * 8) * at.q.nb[0];
            if (whole) {
                const float4 a = ((const float4 *)(const void *)p)[0];
                const float4 b = ((const float4 *)(const void *)p)[1];
                x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
                x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
            } else {
                for (int j = 0; j < 8; j++)
                    x[j] = *(const float *)(const void *)(p + (size_t)j * at.q.nb[0]);
            }
        }
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            w[j] = (uint32_t)clamped_half(x[2 * j]) | (uint32_t)clamped_half(x[2 * j + 1]) << 16;
        const uint4 y = {w[0], w[1], w[2], w[3]};
        *(uint4 *)(void *)(q + place<D>(row, piece)) = y;
    }
}

/* d += a times two right operands side by side, as load_matrices gives them. */
static __device__ __forceinline__ void
multiply_two(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
    multiply_16x8x16<SHEAF_TYPE_F16>(d0, a, b0);
    multiply_16x8x16<SHEAF_TYPE_F16>(d1, a, b1);
}

/* What a lane has of its warp's rows. Its row h is row 8 h + lane / 4; the four lanes of a row have other
 * columns. */
template <int D> struct Rows {
    float out[D / 8][4]; /* sums of values */
    float max[2];        /* the reference, in powers of two: the same in all four */
    float sum[2];        /* of the lane's probabilities */
};

/* Of keys from `key` on, the mask of a row in the places of the lane's scores; keys from t on are
 * not seen. TYPE: F16 or F32. */
template <int TYPE>
static __device__ __forceinline__ void load_mask(float (&b)[KEYS / 8][2], const char *mask, int key,
                                                 int t) {
#pragma unroll
    for (int j = 0; j < KEYS / 4; j++) {
        const int of = key + j / 2 * 8 + j % 2;
        const float x = mask_at<TYPE>(mask, of < t ? of : t - 1);
        b[j / 2][j % 2] = of < t ? x : -INFINITY;
    }
}

/* Scores of keys from `key` on become powers of two, as scale, softcap and mask make them; m0: row of
 * the lane, of the K/V head. */
static __device__ __forceinline__ void finish_scores(float (&x)[KEYS / 8][4], const Attention &at,
                                                     bool plain, int first, int group, int s,
                                                     int m0, int n_rows, int key) {
    const float unit = (at.softcap == 0.0f ? at.scale : at.softcap) * LOG2_E;
    if (at.softcap != 0.0f) {
        const float part = at.scale / at.softcap;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) x[i / 4][i % 4] = tanhf(x[i / 4][i % 4] * part);
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) x[i / 4][i % 4] *= unit;
    if (plain) return;
    const int t = (int)at.k.ne[1];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int m = m0 + 8 * h;
        float b[KEYS / 8][2], slope = LOG2_E;
        if (m < n_rows && at.mask.data) {
            const char *mask = mask_row(at, row_of_group(first, group, s, m));
            if (at.mask.type == SHEAF_TYPE_F16) {
                load_mask<SHEAF_TYPE_F16>(b, mask, key, t);
            } else {
                load_mask<SHEAF_TYPE_F32>(b, mask, key, t);
            }
            if (at.max_bias > 0.0f)
                slope *= alibi_slope(at.max_bias, at.base + first + m % group, at.n_head);
        } else {
            const int end = m < n_rows ? t : 0;
#pragma unroll
            for (int j = 0; j < KEYS / 4; j++)
                b[j / 2][j % 2] = key + j / 2 * 8 + j % 2 < end ? 0.0f : -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < KEYS / 4; j++) {
            float &v = x[j / 2][h * 2 + j % 2];
            v = b[j / 2][j % 2] == -INFINITY ? -INFINITY : fmaf(slope, b[j / 2][j % 2], v);
        }
    }
}

/* Scores become probabilities; unit: what one of the scores is in powers of two. */
template <int D>
static __device__ __forceinline__ void softmax(float (&x)[KEYS / 8][4], Rows<D> &rows, float unit) {
    float best[2];
    bool grows = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float y = fmaxf(x[0][2 * h], x[0][2 * h + 1]);
#pragma unroll
        for (int j = 1; j < KEYS / 8; j++) y = fmaxf(y, fmaxf(x[j][2 * h], x[j][2 * h + 1]));
        y = fmaxf(y, __shfl_xor_sync(FULL_WARP, y, 1));
        best[h] = fmaxf(y, __shfl_xor_sync(FULL_WARP, y, 2)) * unit;
        grows = grows || best[h] > rows.max[h] + SLACK;
    }
    if (grows) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (!(best[h] > rows.max[h] + SLACK)) continue;
            const float shrink = power_of_two(rows.max[h] - best[h]); /* 0 at first */
            rows.max[h] = best[h];
            rows.sum[h] *= shrink;
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                rows.out[j][2 * h] *= shrink;
                rows.out[j][2 * h + 1] *= shrink;
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float max = rows.max[h], from = max == -INFINITY ? 0.0f : max;
        float add = 0.0f;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
            for (int c = 2 * h; c < 2 * h + 2; c++) {
                const float e = power_of_two(fmaf(x[j][c], unit, -from));
                add += e;
                x[j][c] = e;
            }
        }
        rows.sum[h] += add;
    }
}

/* grid: x K/V heads, y blocks of rows, the last first, as these see the most keys under a causal
 * mask; z sequences. */
template <int D>
static __global__ void __launch_bounds__(THREADS, AT_ONCE)
    attention_tile_kernel(Attention at, Table table) {
    static_assert(ROWS <= 2 * KEYS, "q fits into a stage");
    next_may_start();
    previous_done();
    CUDA_DYNAMIC_SHARED(Stage<D>, stages);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t hk = blockIdx.x, s = blockIdx.z;
    const int first = (int)first_head(at, hk), group = (int)first_head(at, hk + 1) - first;
    const int block = gridDim.y - 1 - blockIdx.y, n_rows = (int)at.q.ne[1] * group;
    const int m0 = block * ROWS, row0 = warp * 16;
    if (m0 >= n_rows) return; /* the group has fewer heads than another */
    const Row kv = {0, hk, s};
    const char *k_head = row_data(at.k, kv), *v_head = row_data(at.v, kv);
    const uint4 *seen = table.at;
    if (seen) seen += hk * table.head_step + s * table.seq_step + (int64_t)block * table.tiles;

    Tiles now = {0, {0, false}, table.tiles, -1, 0, {0, 0, 0, 0}};
    find_tile(now, seen, at.k.ne[1], lane);
    if (now.number < now.n) copy_tile<D>(stages[0], at, k_head, v_head, now);
    copies_begun();

    uint16_t *q = stages[1].k; /* until it is in registers */
    load_q<D>(q, at, first, group, s, m0, n_rows);
    __syncthreads(); /* q is there */
    const int q_at = 2 * place<D>(row0 + lane % 16, lane / 16);
    uint32_t a[D / 16][4];
#pragma unroll
    for (int i = 0; i < D / 16; i++) load_matrices(a[i], further(q, q_at, i));

    Rows<D> rows;
    for (int h = 0; h < 2; h++) rows.max[h] = -INFINITY, rows.sum[h] = 0.0f;
#pragma unroll
    for (int j = 0; j < D / 8 * 4; j++) rows.out[j / 4][j % 4] = 0.0f;
    const int k_at = 2 * place<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const int v_at = 2 * place<D>(lane % 16, lane / 16);
    enum { SIXTEEN_ROWS = 16 * D * 2 }; /* bytes */

    for (int stage = 0; now.number < now.n; stage ^= 1) {
        copies_done<0>();
        __syncthreads(); /* the tile is there, and the one before has been used */
        Tiles next = now;
        next.number++;
        find_tile(next, seen, at.k.ne[1], lane);
        if (next.number < next.n) copy_tile<D>(stages[stage ^ 1], at, k_head, v_head, next);
        copies_begun();
        const uint16_t *k = stages[stage].k, *v = stages[stage].v;

        float x[KEYS / 8][4];
#pragma unroll
        for (int j = 0; j < KEYS / 2; j++) x[j / 4][j % 4] = 0.0f;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                uint32_t b[4];
                load_matrices(b, further(k, k_at, i) + j * SIXTEEN_ROWS);
                multiply_two(x[2 * j], x[2 * j + 1], a[i], b);
            }
        }

        float unit = at.scale * LOG2_E;
        if (!now.seen.plain || at.softcap != 0.0f || at.scale < 0.0f) {
            const int key = now.number * KEYS + lane % 4 * 2;
            finish_scores(x, at, now.seen.plain, first, group, (int)s, m0 + row0 + lane / 4, n_rows,
                          key);
            unit = 1.0f;
        }
        softmax<D>(x, rows, unit);

#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t p[4];
#pragma unroll
            for (int c = 0; c < 4; c++)
                p[c] = two_halves(x[2 * j + c / 2][c % 2 * 2], x[2 * j + c / 2][c % 2 * 2 + 1]);
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                uint32_t b[4];
                load_transposed(b, further(v, v_at, i) + j * SIXTEEN_ROWS);
                multiply_two(rows.out[2 * i], rows.out[2 * i + 1], p, b);
            }
        }
        now = next;
    }

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = rows.sum[h];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        const int m = m0 + row0 + 8 * h + lane / 4;
        if (m >= n_rows) continue;
        const Row to = {first + m % group, m / group, s};
        const float factor = attention_factor(at, to.i1, rows.max[h] * LN_2, sum);
        float2 *y = (float2 *)(void *)row_data(at.dst, to);
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            const float2 two = {rows.out[j][2 * h] * factor, rows.out[j][2 * h + 1] * factor};
            y[4 * j + lane % 4] = two;
        }
    }
}

/* ---- launch ---- */

static int64_t over(int64_t n, int64_t part) { return (n + part - 1) / part; }

/* Do K/V heads see the same keys in rows of the same number? */
static bool one_mask(const View &q, const View &k, const View &mask,
                     const struct sheaf__head_groups &groups) {
    return mask.ne[2] == 1 && groups.skip == 0 && groups.each * k.ne[2] == q.ne[2];
}

template <int D> static bool launch(struct sheaf__cuda_queue *q, const struct Attention *at) {
    const int64_t blocks = over(at->q.ne[1] * at->group, ROWS), kv = at->k.ne[2],
                  seqs = at->q.ne[3];
    const size_t bytes = 2 * sizeof(Stage<D>);
    if (blocks > 65535 || !sheaf__cuda_allows_shared(q, attention_tile_kernel<D>, bytes)) return false;
    Table table = {NULL, (int)over(at->k.ne[1], KEYS), 0, 0};
    if (at->mask.data) {
        const int64_t heads = one_mask(at->q, at->k, at->mask, at->groups) ? 1 : kv;
        const int64_t masks = at->mask.ne[3] == 1 ? 1 : seqs;
        if (heads * masks > 65535) return false;
        table.at = (uint4 *)(void *)q->work;
        table.head_step = heads == 1 ? 0 : blocks * table.tiles;
        table.seq_step = masks == 1 ? 0 : heads * blocks * table.tiles;
        const dim3 grid(sheaf__cuda_blocks(table.tiles, SEEN_WARPS), (unsigned)blocks,
                        (unsigned)(heads * masks));
        if (at->mask.type == SHEAF_TYPE_F16) {
            CUDA_LAUNCH_AHEAD(q->ahead, seen_kernel<SHEAF_TYPE_F16>, grid, 32 * SEEN_WARPS, 0,
                              q->stream, *at, table, (int)ROWS, (int)heads);
        } else {
            CUDA_LAUNCH_AHEAD(q->ahead, seen_kernel<SHEAF_TYPE_F32>, grid, 32 * SEEN_WARPS, 0,
                              q->stream, *at, table, (int)ROWS, (int)heads);
        }
    }
    const dim3 grid((unsigned)kv, (unsigned)blocks, (unsigned)seqs);
    CUDA_LAUNCH_AHEAD(q->ahead, attention_tile_kernel<D>, grid, THREADS, bytes, q->stream, *at,
                      table);
    return true;
}

/* Shapes that the kernel takes, as far as they are known before the addresses. */
static bool takes_shape(const View &q, const View &k, const View &v, int64_t group) {
    return k.type == SHEAF_TYPE_F16 && v.type == SHEAF_TYPE_F16 && k.ne[0] == v.ne[0] &&
           (k.ne[0] == 64 || k.ne[0] == 128) && k.ne[2] >= 1 && k.ne[1] < 1 << 30 &&
           q.ne[3] <= 65535 && q.ne[1] < 1 << 30 && q.ne[1] * group >= LEAST_ROWS &&
           q.ne[1] * group < 1 << 30;
}

size_t sheaf__cuda_attention_tiles_work(const struct Attention *at) {
    if (at->mask.ne[0] == 0 || !takes_shape(at->q, at->k, at->v, at->group)) return 0;
    const int64_t heads = one_mask(at->q, at->k, at->mask, at->groups) ? 1 : at->k.ne[2];
    const int64_t masks = at->mask.ne[3] == 1 ? 1 : at->q.ne[3];
    return (size_t)(over(at->k.ne[1], KEYS) * over(at->q.ne[1] * at->group, ROWS) * heads * masks) *
           sizeof(uint4);
}

bool sheaf__cuda_attention_tiles(struct sheaf__cuda_queue *q, const struct Attention *at) {
    const View &k = at->k, &v = at->v, &dst = at->dst;
    if (!takes_shape(at->q, k, v, at->group)) return false;
    const int64_t blocks = over(at->q.ne[1] * at->group, ROWS) * k.ne[2] * at->q.ne[3];
    /* a block has all keys: with fewer blocks than the device wants, parts of the keys are faster */
    if (at->q.ne[1] < MANY_QUERIES && blocks * 2 < q->device->n_sm) return false;
    if (!in_sixteens(k) || !in_sixteens(v)) return false;
    if (at->mask.data && !is_dense(at->mask)) return false;
    if (at->mask.data && at->mask.type != SHEAF_TYPE_F16 && at->mask.type != SHEAF_TYPE_F32)
        return false;
    if (((uintptr_t)dst.data | dst.nb[1] | dst.nb[2] | dst.nb[3]) % sizeof(float2)) return false;
    return k.ne[0] == 64 ? launch<64>(q, at) : launch<128>(q, at);
}
