/* Products with few columns, where reading the weights is all the time.
 *
 * Block types: the columns are rounded to 8-bit integers once. A warp takes ROWS rows of weights
 * and goes along them in chunks of 32 sub-blocks of 32 elements, one a lane: the bytes of a chunk
 * come from memory as they lie, in whole 16-byte pieces, into shared memory, those of the next
 * chunks being on their way meanwhile; a lane takes its sub-block apart there and multiplies it
 * with four-way integer products. The bytes of a block may start at any even address, MXFP4's at
 * any.
 *
 * Plain types: 16 bytes of a row a lane, times floats.
 *
 * Up to 15 bytes before and behind a row are read and thrown away: buffers have that much room
 * behind their last tensor (memory.cu), and no row starts in the first 15 bytes of one by itself.
 */
#include "cuda/product.h"

enum { WARPS = 4, THREADS = 32 * WARPS, ROWS = 2, COLUMNS = SHEAF__CUDA_VEC_COLUMNS };

/* ---- columns as integers ---- */

/* A warp makes a block; blocks behind the last are zeros. */
static __global__ void quantize_columns_kernel(View b, int8_t *q, float2 *ds, int64_t chunks) {
    const int lane = threadIdx.x % 32;
    previous_done();
    next_may_start();
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

/* ---- sub-blocks of 32 elements ---- */

HD uint32_t word_at_any(const uint32_t *w, int offset) { /* also an odd one */
    const uint64_t two = (uint64_t)w[offset / 4 + 1] << 32 | w[offset / 4];
    return (uint32_t)(two >> (offset % 4 * 8));
}
/* Byte j of three words, which so stay in registers. */
HD int byte_of(const uint32_t *w, int j) {
    const uint32_t word = j < 4 ? w[0] : j < 8 ? w[1] : w[2];
    return (int)(word >> (j % 4 * 8) & 255u);
}

/* Bits 0..3 of h to bit 4 of each byte. */
HD uint32_t spread(uint32_t h) {
    return (h & 1) << 4 | (h & 2) << 11 | (h & 4) << 18 | (h & 8) << 25;
}

/* Elements as d0 * q - m, q four a word in order. Elements 16..31 have a scale d1 of their own
 * where scales is 2, and also a min m1 where mins is. */
struct Sub {
    uint32_t q[8];
    float d0, d1, m, m1;
};

template <int TYPE> struct Format;
#define FORMAT(TYPE, name, block_elements, n_scales, n_mins)                                       \
    template <> struct Format<TYPE> {                                                              \
        enum { BYTES = sizeof(struct sheaf__block_##name), SUBS = block_elements / 32 };           \
        static constexpr int scales = n_scales, mins = n_mins;                                     \
    }
FORMAT(SHEAF_TYPE_Q4_0, q4_0, SHEAF__QK, 1, 1);
FORMAT(SHEAF_TYPE_Q4_1, q4_1, SHEAF__QK, 1, 1);
FORMAT(SHEAF_TYPE_Q5_0, q5_0, SHEAF__QK, 1, 1);
FORMAT(SHEAF_TYPE_Q5_1, q5_1, SHEAF__QK, 1, 1);
FORMAT(SHEAF_TYPE_Q8_0, q8_0, SHEAF__QK, 1, 1);
FORMAT(SHEAF_TYPE_Q4_K, q4_k, SHEAF__QK_K, 1, 1);
FORMAT(SHEAF_TYPE_Q5_K, q5_k, SHEAF__QK_K, 1, 1);
FORMAT(SHEAF_TYPE_Q6_K, q6_k, SHEAF__QK_K, 2, 1);
FORMAT(SHEAF_TYPE_Q2_K, q2_k, SHEAF__QK_K, 2, 2);
FORMAT(SHEAF_TYPE_Q3_K, q3_k, SHEAF__QK_K, 2, 1);
FORMAT(SHEAF_TYPE_IQ4_NL, iq4_nl, SHEAF__QK, 1, 1);
FORMAT(SHEAF_TYPE_IQ4_XS, iq4_xs, SHEAF__QK_K, 1, 1);
FORMAT(SHEAF_TYPE_MXFP4, mxfp4, SHEAF__QK, 1, 1);

HD void nibbles(const uint32_t *w, int at, uint32_t *q) {
    for (int i = 0; i < 4; i++) {
        const uint32_t v = word_at(w, at + 4 * i);
        q[i] = v & 0x0f0f0f0fu;
        q[i + 4] = v >> 4 & 0x0f0f0f0fu;
    }
}
HD void fifths(uint32_t h, uint32_t *q) {
    for (int i = 0; i < 8; i++) q[i] |= spread(h >> 4 * i);
}
/* The levels of eight nibbles: low ones as a word, high ones as another. A selector of
 * __byte_perm is three bits, so each half of the levels is asked, and the fourth bits choose. */
static __device__ __forceinline__ void look_up(const Levels &l, uint32_t v, uint32_t *low,
                                               uint32_t *high) {
    uint32_t pair[2]; /* of bytes 0 and 1, of bytes 2 and 3: low, high, low, high */
    for (int i = 0; i < 2; i++, v >>= 16) {
        const uint32_t at = v & 0x7777u, half = (v & 0x8888u) >> 1 | 0x3210u;
        pair[i] = __byte_perm(__byte_perm(l.word[0], l.word[1], at),
                              __byte_perm(l.word[2], l.word[3], at), half);
    }
    *low = __byte_perm(pair[0], pair[1], 0x6420u);
    *high = __byte_perm(pair[0], pair[1], 0x7531u);
}
/* Scale and min of sub-block s of a K block at `at`. */
HD void k_scales(const uint32_t *w, int at, int s, Sub *x) {
    uint32_t packed[3];
    int scale, min;
    for (int i = 0; i < 3; i++) packed[i] = word_at(w, at + 4 + 4 * i);
    if (s < 4) {
        scale = byte_of(packed, s) & 63;
        min = byte_of(packed, s + 4) & 63;
    } else {
        scale = (byte_of(packed, s + 4) & 15) | (byte_of(packed, s - 4) >> 6) << 4;
        min = byte_of(packed, s + 4) >> 4 | (byte_of(packed, s) >> 6) << 4;
    }
    x->d0 = x->d1 = half_at(w, at) * (float)scale;
    x->m = half_at(w, at + 2) * (float)min;
}

/* Scale i of a block of Q3_K, packed as sheaf__q3_k_scale has it. */
HD int q3_scale(const uint32_t *packed, int i) {
    const int low = byte_of(packed, i % 8) >> (i / 8 * 4) & 15;
    return (low | (byte_of(packed, 8 + i % 4) >> (i / 4 * 2) & 3) << 4) - 32;
}

/* Sub-block s of the block at byte offset `at` (even except for MXFP4) of w. */
template <int TYPE>
static __device__ __forceinline__ Sub take_apart(const uint32_t *w, int at, int s) {
    Sub x;
    if (TYPE == SHEAF_TYPE_Q4_0) {
        nibbles(w, at + 2, x.q);
        x.d0 = x.d1 = half_at(w, at);
        x.m = 8.0f * x.d0;
    } else if (TYPE == SHEAF_TYPE_Q4_1) {
        nibbles(w, at + 4, x.q);
        x.d0 = x.d1 = half_at(w, at);
        x.m = -half_at(w, at + 2);
    } else if (TYPE == SHEAF_TYPE_Q5_0) {
        nibbles(w, at + 6, x.q);
        fifths(word_at(w, at + 2), x.q);
        x.d0 = x.d1 = half_at(w, at);
        x.m = 16.0f * x.d0;
    } else if (TYPE == SHEAF_TYPE_Q5_1) {
        nibbles(w, at + 8, x.q);
        fifths(word_at(w, at + 4), x.q);
        x.d0 = x.d1 = half_at(w, at);
        x.m = -half_at(w, at + 2);
    } else if (TYPE == SHEAF_TYPE_Q8_0) {
        for (int i = 0; i < 8; i++) x.q[i] = word_at(w, at + 2 + 4 * i);
        x.d0 = x.d1 = half_at(w, at);
        x.m = 0.0f;
    } else if (TYPE == SHEAF_TYPE_Q4_K) {
        for (int i = 0; i < 8; i++)
            x.q[i] = word_at(w, at + 16 + s / 2 * 32 + 4 * i) >> (s % 2 * 4) & 0x0f0f0f0fu;
        k_scales(w, at, s, &x);
    } else if (TYPE == SHEAF_TYPE_Q5_K) {
        for (int i = 0; i < 8; i++) {
            x.q[i] = word_at(w, at + 48 + s / 2 * 32 + 4 * i) >> (s % 2 * 4) & 0x0f0f0f0fu;
            x.q[i] |= (word_at(w, at + 16 + 4 * i) >> s & 0x01010101u) << 4;
        }
        k_scales(w, at, s, &x);
    } else if (TYPE == SHEAF_TYPE_Q6_K) {
        const int lo = s % 4 / 2 * 4, hi = s % 4 * 2;
        for (int i = 0; i < 8; i++) {
            const uint32_t l = word_at(w, at + s / 4 * 64 + s % 2 * 32 + 4 * i) >> lo & 0x0f0f0f0fu;
            const uint32_t h = word_at(w, at + 128 + s / 4 * 32 + 4 * i) >> hi & 0x03030303u;
            /* q - 32 as signed bytes: q + 96 never carries, and its top bit turns */
            x.q[i] = ((l | h << 4) + 0x60606060u) ^ 0x80808080u;
        }
        const uint32_t scales = word_at(w, at + 192 + s / 2 * 4); /* of sub-blocks s & ~1, s | 1 */
        const int shift = s % 2 * 16;
        const float d = half_at(w, at + 208);
        x.d0 = d * (float)(int8_t)(scales >> shift & 255u);
        x.d1 = d * (float)(int8_t)(scales >> (shift + 8) & 255u);
        x.m = 0.0f;
    } else if (TYPE == SHEAF_TYPE_Q2_K) {
        const uint32_t scales = word_at(w, at + s / 2 * 4) >> (s % 2 * 16);
        const float d = half_at(w, at + 80), dmin = half_at(w, at + 82);
        for (int i = 0; i < 8; i++)
            x.q[i] = word_at(w, at + 16 + s / 4 * 32 + 4 * i) >> (s % 4 * 2) & 0x03030303u;
        x.d0 = d * (float)(scales & 15);
        x.d1 = d * (float)(scales >> 8 & 15);
        x.m = dmin * (float)(scales >> 4 & 15);
        x.m1 = dmin * (float)(scales >> 12 & 15);
    } else if (TYPE == SHEAF_TYPE_Q3_K) {
        uint32_t packed[3];
        for (int i = 0; i < 3; i++) packed[i] = word_at(w, at + 96 + 4 * i);
        const float d = half_at(w, at + 108);
        for (int i = 0; i < 8; i++) {
            const uint32_t l = word_at(w, at + 32 + s / 4 * 32 + 4 * i) >> (s % 4 * 2);
            const uint32_t h = word_at(w, at + 4 * i) >> s & 0x01010101u;
            /* q - 4 as signed bytes, as in Q6_K */
            x.q[i] = (((l & 0x03030303u) | h << 2) + 0x7c7c7c7cu) ^ 0x80808080u;
        }
        x.d0 = d * (float)q3_scale(packed, 2 * s);
        x.d1 = d * (float)q3_scale(packed, 2 * s + 1);
        x.m = 0.0f;
    } else if (TYPE == SHEAF_TYPE_MXFP4) {
        for (int i = 0; i < 4; i++)
            look_up(levels_of(true), word_at_any(w, at + 1 + 4 * i), &x.q[i], &x.q[i + 4]);
        x.d0 = x.d1 = sheaf__mxfp4_scale((uint8_t)word_at_any(w, at));
        x.m = 0.0f;
    } else { /* IQ4_NL, IQ4_XS */
        const bool nl = TYPE == SHEAF_TYPE_IQ4_NL;
        for (int i = 0; i < 4; i++)
            look_up(levels_of(false), word_at(w, at + (nl ? 2 : 8 + 16 * s) + 4 * i), &x.q[i],
                    &x.q[i + 4]);
        x.d0 = half_at(w, at);
        if (!nl) {
            const uint32_t high = word_at(w, at + 2) >> 2 * s; /* scales_h, in the low half */
            const uint32_t low = word_at(w, at + 4) >> 4 * s;  /* scales_l: nibble s */
            x.d0 *= (float)((int)((low & 15) | (high & 3) << 4) - 32);
        }
        x.d1 = x.d0;
        x.m = 0.0f;
    }
    return x;
}

/* Sub-block of weights times block of a column: halves as two words of four quads each. */
template <int TYPE>
static __device__ __forceinline__ float dot(const Sub &x, const uint4 &lo, const uint4 &hi,
                                            float2 ds) {
    int first = __dp4a((int)x.q[0], (int)lo.x, 0);
    first = __dp4a((int)x.q[1], (int)lo.y, first);
    first = __dp4a((int)x.q[2], (int)lo.z, first);
    first = __dp4a((int)x.q[3], (int)lo.w, first);
    int second = __dp4a((int)x.q[4], (int)hi.x, Format<TYPE>::scales == 2 ? 0 : first);
    second = __dp4a((int)x.q[5], (int)hi.y, second);
    second = __dp4a((int)x.q[6], (int)hi.z, second);
    second = __dp4a((int)x.q[7], (int)hi.w, second);
    float sum = x.d1 * (float)second;
    if (Format<TYPE>::scales == 2) sum = fmaf(x.d0, (float)first, sum);
    if (Format<TYPE>::mins == 2) { /* ds.y is of both halves */
        const int ones = 0x01010101;
        int s0 = __dp4a(ones, (int)lo.x, 0), s1 = __dp4a(ones, (int)hi.x, 0);
        s0 = __dp4a(ones, (int)lo.w, __dp4a(ones, (int)lo.z, __dp4a(ones, (int)lo.y, s0)));
        s1 = __dp4a(ones, (int)hi.w, __dp4a(ones, (int)hi.z, __dp4a(ones, (int)hi.y, s1)));
        return ds.x * (sum - fmaf(x.m, (float)s0, x.m1 * (float)s1));
    }
    return fmaf(ds.x, sum, -x.m * ds.y);
}

/* ---- block types ---- */

/* Which matrix of a launch a block is of, and which block of it. */
struct Which {
    const char *a; /* NULL: the task's */
    size_t nb1, step;
    int64_t m, block;
    char *dst;
};
static __device__ __forceinline__ Which which_of(const Product &p, int64_t block) {
    Which w = {NULL, p.a.nb[1], 0, p.a.ne[1], block, NULL};
    for (int k = 0; k < p.n_more; k++) {
        const int64_t blocks = (w.m + WARPS * ROWS - 1) / (WARPS * ROWS);
        if (w.block < blocks) break;
        w.block -= blocks;
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

/* Blocks that an SM shall hold; those whose scales take more registers would spill with eight. */
constexpr int blocks_of(int type, int n) {
    return n > 1                                                                           ? 1
           : type == SHEAF_TYPE_Q3_K || type == SHEAF_TYPE_Q4_K || type == SHEAF_TYPE_Q5_K ? 6
           : type == SHEAF_TYPE_Q6_K                                                       ? 7
                                                                                           : 8;
}

/* grid: x groups of WARPS * ROWS rows, y groups of N columns or pairs, z matrices */
template <int TYPE, int N>
static __global__ void __launch_bounds__(THREADS, blocks_of(TYPE, N))
    mul_vec_blocks_kernel(Product p, int64_t n_y, int64_t n_z) {
    typedef Format<TYPE> F;
    enum {
        CHUNK = 32 / F::SUBS * F::BYTES, /* bytes */
        PIECES = (CHUNK + 15 + 15) / 16, /* of 16 bytes, wherever the chunk starts */
        PER_LANE = (PIECES + 31) / 32,
        WORDS = PIECES * 4 + 4, /* word_at looks at one more */
        /* Chunks on their way at once, and the one that is computed with. An SM of an H200 wants
         * 25 KiB under way (36 GB/s of 4.8 TB/s for 700 ns); of a matrix of 4096 rows it has 31,
         * whose chunks have 576 bytes (Q4_0). */
        SLOTS = CHUNK < 800 ? 4 : 3,
    };
    __shared__ __align__(16) uint32_t staged[WARPS][SLOTS][ROWS][WORDS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (!p.early) previous_done();
    next_may_start();
    const Which which = which_of(p, blockIdx.x);
    const int subs = (int)(p.a.ne[0] / 32);
    const int64_t m = which.m, row = (which.block * WARPS + warp) * ROWS;
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
/* the pieces of the chunk that begins with sub-block `first`, to a slot; nothing behind the last */
#define FETCH(slot, first)                                                                         \
    for (int r = 0; r < ROWS; r++) {                                                               \
        const int left = subs - (first) < 32 ? subs - (first) : 32;                                \
        const char *from = w[r] + (size_t)((first) / F::SUBS) * F::BYTES;                          \
        const int skew = (int)((uintptr_t)from & 15);                                              \
        const int pieces = (skew + left / F::SUBS * F::BYTES + 15) / 16;                           \
        const uint4 *piece = (const uint4 *)(const void *)(from - skew);                           \
        _Pragma("unroll") for (int i = 0; i < PER_LANE;                                            \
                               i++) if (left > 0 && lane + 32 * i < pieces)                        \
            copy_ahead<16>(&staged[warp][slot][r][(lane + 32 * i) * 4], piece + lane + 32 * i);    \
    }                                                                                              \
    copies_begun();
            for (int d = 0; d < SLOTS - 1 && !t.zero; d++) { /* a may be empty */
                FETCH(d, 32 * d)
            }
            if (p.early) previous_done();
            const int8_t *columns = p.q + column_half(p.chunks, t.column, lane, 0);
            const float2 *scales = p.ds + t.column * p.chunks * 32 + lane;
            int slot = 0, free = SLOTS - 1;
            for (int first = 0; first < subs && !t.zero; first += 32) {
                FETCH(free, first + 32 * (SLOTS - 1))
                copies_done<SLOTS - 1>();
                __syncwarp(); /* the chunk is there */
                if (first + lane < subs) {
                    uint4 lo[N], hi[N];
                    float2 ds[N];
#pragma unroll
                    for (int c = 0; c < N; c++) {
                        if (c >= t.n) break;
                        const int8_t *q =
                            columns + (size_t)c * (size_t)p.chunks * 1024 + first * 32;
                        lo[c] = *(const uint4 *)(const void *)q;
                        hi[c] = *(const uint4 *)(const void *)(q + 32 * 16);
                        ds[c] = scales[(size_t)c * (size_t)p.chunks * 32 + (size_t)first];
                    }
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        const char *from = w[r] + (size_t)(first / F::SUBS) * F::BYTES;
                        const int at = (int)((uintptr_t)from & 15) + lane / F::SUBS * F::BYTES;
                        const Sub x = take_apart<TYPE>(staged[warp][slot][r], at, lane % F::SUBS);
#pragma unroll
                        for (int c = 0; c < N; c++) {
                            if (c < t.n) sum[r][c] += dot<TYPE>(x, lo[c], hi[c], ds[c]);
                        }
                    }
                }
                __syncwarp(); /* the slot is the next to be filled */
                free = slot;
                slot = slot + 1 < SLOTS ? slot + 1 : 0;
            }
#undef FETCH
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

/* ---- plain types ---- */

/* TYPE: COUNT is any type, an element at a time. wide: rows of a and b begin at multiples of 16 bytes and
 * have whole groups of 8 elements */
template <int TYPE, int N>
static __global__ void mul_vec_plain_kernel(Product p, int64_t n_y, int64_t n_z, bool wide) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (!p.early) previous_done();
    next_may_start();
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
            if (p.early && TYPE == SHEAF_TYPE_COUNT) {
                previous_done();
            } else if (p.early) { /* the first 4 KiB of each row */
                const int64_t bytes = k * (int64_t)(WIDTH == 4 ? sizeof(float) : sizeof(short));
                const int64_t left = bytes - (int64_t)lane * 128;
                for (int r = 0; r < ROWS && wide && left > 0; r++)
                    prefetch(w[r] + (size_t)lane * 128, left < 128 ? (unsigned)left : 128u);
                previous_done();
            }
            if (wide && !t.zero) {
#pragma unroll 4
                for (int64_t i = lane; i < k / WIDTH; i += 32) {
                    float x[ROWS][WIDTH];
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        const uint4 v = ((const uint4 *)(const void *)w[r])[i];
                        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                        for (int j = 0; j < WIDTH; j++) {
                            const uint16_t h = (uint16_t)(words[j * 4 / WIDTH] >> (j % 2 * 16));
                            x[r][j] = TYPE == SHEAF_TYPE_F32   ? sheaf__bits_f32(words[j % 4])
                                      : TYPE == SHEAF_TYPE_F16 ? f16_to_f32(h)
                                                               : sheaf__bf16_to_f32(h);
                        }
                    }
#pragma unroll
                    for (int c = 0; c < N; c++) {
                        if (c >= t.n) break;
                        const float4 *b =
                            (const float4 *)(const void *)(t.b + (size_t)c * t.b_step) +
                            i * (WIDTH / 4);
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
            } else if (!t.zero) {
                for (int64_t i = lane; i < k; i += 32) {
                    for (int c = 0; c < N && c < t.n; c++) {
                        const float b =
                            ((const float *)(const void *)(t.b + (size_t)c * t.b_step))[i];
                        for (int r = 0; r < ROWS; r++)
                            sum[r][c] = fmaf(
                                load_dense(TYPE == SHEAF_TYPE_COUNT ? p.a.type : TYPE, w[r], i), b,
                                sum[r][c]);
                    }
                }
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

static bool in_sixteens(const View &v) {
    uintptr_t bits = (uintptr_t)v.data | v.nb[1] | v.nb[2] | v.nb[3];
    return bits % 16 == 0;
}

template <int TYPE, int N>
static void launch_blocks(struct sheaf__cuda_queue *q, const struct Product *p, dim3 grid,
                          int64_t n_y, int64_t n_z) {
    CUDA_LAUNCH_AHEAD(q->ahead, (mul_vec_blocks_kernel<TYPE, N>), grid, THREADS, 0, q->stream, *p,
                      n_y, n_z);
}
template <int TYPE, int N>
static void launch_plain(struct sheaf__cuda_queue *q, const struct Product *p, dim3 grid,
                         int64_t n_y, int64_t n_z) {
    const bool wide =
        TYPE != SHEAF_TYPE_COUNT && p->a.ne[0] % 8 == 0 && in_sixteens(p->a) && in_sixteens(p->b);
    CUDA_LAUNCH_AHEAD(q->ahead, (mul_vec_plain_kernel<TYPE, N>), grid, THREADS, 0, q->stream, *p,
                      n_y, n_z, wide);
}

template <int N> static void launch(struct sheaf__cuda_queue *q, const struct Product *p) {
    const bool pairs = p->ids.data != NULL;
    const int64_t n_y = pairs ? p->dst.ne[1] * p->dst.ne[2] : (p->dst.ne[1] + N - 1) / N;
    const int64_t n_z = pairs ? 1 : p->dst.ne[2] * p->dst.ne[3];
    unsigned blocks = sheaf__cuda_blocks(p->a.ne[1], WARPS * ROWS);
    for (int k = 0; k < p->n_more; k++) blocks += sheaf__cuda_blocks(p->more[k].m, WARPS * ROWS);
    const dim3 grid(blocks, sheaf__cuda_blocks_y(n_y), sheaf__cuda_blocks_y(n_z));
    switch (p->a.type) {
#define BLOCKS(type)                                                                               \
    case SHEAF_TYPE_##type:                                                                        \
        launch_blocks<SHEAF_TYPE_##type, N>(q, p, grid, n_y, n_z);                                 \
        break
#define PLAIN(type)                                                                                \
    case SHEAF_TYPE_##type:                                                                        \
        launch_plain<SHEAF_TYPE_##type, N>(q, p, grid, n_y, n_z);                                  \
        break
        BLOCKS(Q4_0);
        BLOCKS(Q4_1);
        BLOCKS(Q5_0);
        BLOCKS(Q5_1);
        BLOCKS(Q8_0);
        BLOCKS(Q4_K);
        BLOCKS(Q5_K);
        BLOCKS(Q6_K);
        BLOCKS(Q2_K);
        BLOCKS(Q3_K);
        BLOCKS(IQ4_NL);
        BLOCKS(IQ4_XS);
        BLOCKS(MXFP4);
        PLAIN(F32);
        PLAIN(F16);
        PLAIN(BF16);
#undef BLOCKS
#undef PLAIN
    default: /* of the plain form */
        launch_plain<SHEAF_TYPE_COUNT, N>(q, p, grid, n_y, n_z);
        break;
    }
}

void sheaf__cuda_mul_vec(struct sheaf__cuda_queue *q, const struct Product *p) {
    if (p->ids.data || p->dst.ne[1] == 1) {
        launch<1>(q, p);
    } else {
        launch<COLUMNS>(q, p);
    }
}
