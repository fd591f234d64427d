/* FLASH_ATTN_EXT for few queries over many keys, of types and heads that attention_few.cu does not have:
 * split-K, or flash decoding (Dao et al. 2023).
 *
 * The keys are divided into parts. A block takes a part of one K/V head for several rows, where row m
 * is head m % group of the K/V head's group, of query m / group: so K and V are read once for the heads
 * of a group. Its warps are row_warps times key_warps: each has RT rows and, of every tile, KEYS keys.
 *
 * A tile of keys and values is copied to shared memory as it lies, in its own type, while the one
 * before it is computed with. Then a lane has a key, and makes its scores with the warp's rows; the
 * softmax is taken online; and the lanes divide the elements of the values among them. What the
 * key_warps found is put together in shared memory, what the parts found by join_kernel
 * (attention.cu).
 *
 * A masked key (-inf) is never read into a result, nor is one behind the last: what lies in shared
 * memory for it may be anything, also NaN, and has probability 0, which is left out, not multiplied.
 *
 * Rows in shared memory have an odd number of 16-byte units (F16, BF16) or of words (block types), so
 * that the lanes, each reading its own row, meet in no bank. */
#include "cuda/attention.h"

enum { WARPS = 4, THREADS = 32 * WARPS, KEYS = 32 };
static const int64_t LEAST_PART = 64;
static const size_t MOST_SHARED = 96 << 10; /* two blocks in 227 KiB, one in 99 KiB */

struct Side {          /* K or V */
    int bytes, stride; /* of a row, and between rows of a tile */
    int unit;          /* bytes of a copy: 16 or 4 */
};
struct Split {
    Attention at;
    Side k, v;
    bool same; /* the values are the first elements of the keys, as in MLA: copied once */
    int row_warps, key_warps, stages;
    int64_t per_part;
    float *partial; /* F32 [e + 2, parts, rows], or NULL: dst */
};

/* ---- scores: the lane's key times RT rows of q ---- */

HD float half_of(int type, uint32_t word, int i) {
    const uint16_t h = (uint16_t)(word >> 16 * i);
    return type == SHEAF_TYPE_F16 ? f16_to_f32(h) : sheaf__bf16_to_f32(h);
}

template <int RT, int TYPE>
static __device__ __forceinline__ void halves_times(const char *k, const float *q, int d,
                                                    float *x) {
    for (int i = 0; i < d; i += 8) {
        const uint4 v = *(const uint4 *)(const void *)(k + 2 * i);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            const float f0 = half_of(TYPE, w[j / 2], 0), f1 = half_of(TYPE, w[j / 2], 1),
                        f2 = half_of(TYPE, w[j / 2 + 1], 0), f3 = half_of(TYPE, w[j / 2 + 1], 1);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                const float4 a = *(const float4 *)(const void *)(q + r * d + i + j);
                x[r] = fmaf(f3, a.w, fmaf(f2, a.z, fmaf(f1, a.y, fmaf(f0, a.x, x[r]))));
            }
        }
    }
}

/* Four bytes of v as integers, less `minus`, times four elements of each row of q. */
template <int RT>
static __device__ __forceinline__ void bytes_times(uint32_t v, int minus, const float *q, int d,
                                                   float *sum) {
    const float f0 = (float)((int)(int8_t)v - minus), f1 = (float)((int)(int8_t)(v >> 8) - minus),
                f2 = (float)((int)(int8_t)(v >> 16) - minus),
                f3 = (float)((int)(int8_t)(v >> 24) - minus);
#pragma unroll
    for (int r = 0; r < RT; r++) {
        const float4 a = *(const float4 *)(const void *)(q + r * d);
        sum[r] = fmaf(f3, a.w, fmaf(f2, a.z, fmaf(f1, a.y, fmaf(f0, a.x, sum[r]))));
    }
}

template <int RT, int TYPE>
static __device__ __forceinline__ void blocks_times(const char *k, const float *q, int d,
                                                    float *x) {
    const uint32_t *w = (const uint32_t *)(const void *)k;
    const bool q8 = TYPE == SHEAF_TYPE_Q8_0;
    int at = 0;
    for (int b = 0; b < d; b += SHEAF__QK) {
        float sum[RT];
        for (int r = 0; r < RT; r++) sum[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < (q8 ? 8 : 4); i++) {
            const uint32_t v = word_at(w, at + 2 + 4 * i);
            if (q8) {
                bytes_times<RT>(v, 0, q + b + 4 * i, d, sum);
            } else {
                bytes_times<RT>(v & 0x0f0f0f0fu, 8, q + b + 4 * i, d, sum);
                bytes_times<RT>(v >> 4 & 0x0f0f0f0fu, 8, q + b + 16 + 4 * i, d, sum);
            }
        }
        const float scale = half_at(w, at);
        for (int r = 0; r < RT; r++) x[r] = fmaf(scale, sum[r], x[r]);
        at += q8 ? (int)sizeof(sheaf__block_q8_0) : (int)sizeof(sheaf__block_q4_0);
    }
}

template <int RT>
static __device__ __forceinline__ void scores_of(int type, const char *k, const float *q, int d,
                                                 float *x) {
    for (int r = 0; r < RT; r++) x[r] = 0.0f;
    switch (type) {
    case SHEAF_TYPE_F16:
        return halves_times<RT, SHEAF_TYPE_F16>(k, q, d, x);
    case SHEAF_TYPE_BF16:
        return halves_times<RT, SHEAF_TYPE_BF16>(k, q, d, x);
    case SHEAF_TYPE_Q8_0:
        return blocks_times<RT, SHEAF_TYPE_Q8_0>(k, q, d, x);
    default:
        return blocks_times<RT, SHEAF_TYPE_Q4_0>(k, q, d, x);
    }
}

/* ---- values: elements 64 c + 2 lane and the next of each, c < NC ---- */

template <int TYPE> static __device__ __forceinline__ float2 pair_at(const char *v, int i) {
    float2 y;
    if (TYPE == SHEAF_TYPE_F16 || TYPE == SHEAF_TYPE_BF16) {
        const uint32_t w = *(const uint32_t *)(const void *)(v + 2 * i);
        y.x = half_of(TYPE, w, 0);
        y.y = half_of(TYPE, w, 1);
        return y;
    }
    const bool q8 = TYPE == SHEAF_TYPE_Q8_0;
    const char *b =
        v + i / SHEAF__QK * (q8 ? (int)sizeof(sheaf__block_q8_0) : (int)sizeof(sheaf__block_q4_0));
    const int j = i % SHEAF__QK;
    const float d = f16_to_f32(*(const uint16_t *)(const void *)b);
    const uint32_t w = *(const uint16_t *)(const void *)(b + 2 + (q8 ? j : j % 16));
    if (q8) {
        y.x = d * (float)(int8_t)w;
        y.y = d * (float)(int8_t)(w >> 8);
    } else {
        y.x = d * (float)((int)(w >> j / 16 * 4 & 15) - 8);
        y.y = d * (float)((int)(w >> (8 + j / 16 * 4) & 15) - 8);
    }
    return y;
}

/* p: probabilities [RT][KEYS] of the warp; v: its rows of the tile */
template <int RT, int NC, int TYPE>
static __device__ __forceinline__ void add_values(const float *p, const char *v, int stride, int e,
                                                  float (*acc)[2 * NC]) {
    const int lane = threadIdx.x % 32;
    for (int j = 0; j < KEYS; j++, v += stride) {
        float w[RT];
        bool used = false;
#pragma unroll
        for (int r = 0; r < RT; r++) {
            w[r] = p[r * KEYS + j];
            used = used || w[r] != 0.0f;
        }
        if (!used) continue; /* the same for all lanes */
#pragma unroll
        for (int c = 0; c < NC; c++) {
            const int i = 64 * c + 2 * lane;
            if (i >= e) break;
            const float2 y = pair_at<TYPE>(v, i);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                if (w[r] == 0.0f) continue; /* y may be NaN for a row that does not see the key */
                acc[r][2 * c] = fmaf(w[r], y.x, acc[r][2 * c]);
                acc[r][2 * c + 1] = fmaf(w[r], y.y, acc[r][2 * c + 1]);
            }
        }
    }
}

template <int RT, int NC>
static __device__ __forceinline__ void values_of(int type, const float *p, const char *v,
                                                 int stride, int e, float (*acc)[2 * NC]) {
    switch (type) {
    case SHEAF_TYPE_F16:
        return add_values<RT, NC, SHEAF_TYPE_F16>(p, v, stride, e, acc);
    case SHEAF_TYPE_BF16:
        return add_values<RT, NC, SHEAF_TYPE_BF16>(p, v, stride, e, acc);
    case SHEAF_TYPE_Q8_0:
        return add_values<RT, NC, SHEAF_TYPE_Q8_0>(p, v, stride, e, acc);
    default:
        return add_values<RT, NC, SHEAF_TYPE_Q4_0>(p, v, stride, e, acc);
    }
}

/* ---- tiles ---- */

/* n rows, a warp each. */
static __device__ __forceinline__ void fetch_rows(const Side &side, char *to, const char *from,
                                                  size_t step, int n, int n_warps) {
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < n; row += n_warps) {
        const char *x = from + (size_t)row * step;
        char *y = to + row * side.stride;
        if (side.unit == 16) {
            for (int i = lane * 16; i < side.bytes; i += 32 * 16) copy_ahead<16>(y + i, x + i);
        } else {
            for (int i = lane * 4; i < side.bytes; i += 32 * 4) copy_ahead<4>(y + i, x + i);
        }
    }
}

/* What a block has: its K/V head, rows and keys. */
struct Place {
    int64_t hk, s, head, group, n_rows, m0, first, last;
};
static __device__ __forceinline__ Place place_of(const Split &sp, int rows) {
    Place p;
    p.hk = blockIdx.z % sp.at.k.ne[2];
    p.s = blockIdx.z / sp.at.k.ne[2];
    p.head = first_head(sp.at, p.hk);
    p.group = first_head(sp.at, p.hk + 1) - p.head;
    p.n_rows = sp.at.q.ne[1] * p.group;
    p.m0 = (int64_t)blockIdx.x * rows;
    p.first = blockIdx.y * sp.per_part;
    p.last = p.first + sp.per_part < sp.at.k.ne[1] ? p.first + sp.per_part : sp.at.k.ne[1];
    return p;
}
/* The head and the query of row m. */
static __device__ __forceinline__ Row query_of(const Place &p, int64_t m) {
    const Row at = {m / p.group, p.head + m % p.group, p.s};
    return at;
}

/* ---- the steps of a block ---- */

/* Keys of the block's K/V head and, where they are other bytes, its values; `keys` of them are a tile. */
struct Source {
    const char *k, *v;
    int keys, tile; /* tile: in bytes */
};
static __device__ __forceinline__ Source source_of(const Split &sp, const Place &place) {
    const Row kv = {0, place.hk, place.s};
    Source from;
    from.k = row_data(sp.at.k, kv);
    from.v = row_data(sp.at.v, kv);
    from.keys = KEYS * sp.key_warps;
    from.tile = from.keys * (sp.k.stride + (sp.same ? 0 : sp.v.stride));
    return from;
}
/* As copies of this thread: they are waited for, then the barrier shows them to all. */
static __device__ __forceinline__ void fetch_tile(const Split &sp, const Source &from, char *to,
                                                  int64_t key, int64_t last) {
    const int64_t left = last - key;
    const int n = left < from.keys ? (int)left : from.keys, n_warps = blockDim.x / 32;
    const size_t k_step = sp.at.k.nb[1], v_step = sp.at.v.nb[1];
    fetch_rows(sp.k, to, from.k + (size_t)key * k_step, k_step, n, n_warps);
    if (!sp.same)
        fetch_rows(sp.v, to + from.keys * sp.k.stride, from.v + (size_t)key * v_step, v_step, n,
                   n_warps);
}
static __device__ __forceinline__ void load_queries(const Attention &at, const Place &place, int rows,
                                                    float *q) {
    const int d = (int)at.q.ne[0];
    for (int r = threadIdx.x / 32; r < rows; r += blockDim.x / 32) {
        const bool mine = place.m0 + r < place.n_rows;
        const char *x = row_data(at.q, query_of(place, mine ? place.m0 + r : 0));
        for (int i = threadIdx.x % 32; i < d; i += 32)
            q[r * d + i] = mine ? *(const float *)(const void *)(x + (size_t)i * at.q.nb[0]) : 0.0f;
    }
}

/* The rows of a warp: where their masks lie, and the state of their softmax; sums are of the lane. */
template <int RT> struct Rows {
    const char *mask[RT];
    float max[RT], sum[RT], slope[RT];
};
template <int RT>
static __device__ __forceinline__ Rows<RT> begin_rows(const Attention &at, const Place &place,
                                                          int64_t m) {
    Rows<RT> rows;
#pragma unroll
    for (int r = 0; r < RT; r++) {
        const bool mine = m + r < place.n_rows;
        const Row from = query_of(place, mine ? m + r : 0);
        rows.max[r] = -INFINITY;
        rows.sum[r] = 0.0f;
        rows.slope[r] = alibi_slope(at.max_bias, at.base + from.i2, at.n_head);
        rows.mask[r] = mask_row(at, from);
    }
    return rows;
}

/* The biases of the lane's key, -inf where a row does not see it. Does any row see it? */
template <int RT>
static __device__ __forceinline__ bool load_biases(const Attention &at, const Place &place,
                                                   const Rows<RT> &rows, int64_t m, int64_t key,
                                                   float (&bias)[RT]) {
    bool seen = false;
#pragma unroll
    for (int r = 0; r < RT; r++) {
        bias[r] = key < place.last && m + r < place.n_rows ? 0.0f : -INFINITY;
        if (rows.mask[r] && bias[r] == 0.0f)
            bias[r] = load_plain(at.mask.type, rows.mask[r] + (size_t)key * at.mask.nb[0]);
        seen = seen || bias[r] != -INFINITY;
    }
    return seen;
}

/* The softmax goes on with products x of the lane's key; p: the probabilities, up to its sum. */
template <int RT, int NC>
static __device__ __forceinline__ void continue_softmax(const Attention &at, Rows<RT> &rows, float (&acc)[RT][2 * NC],
                                                        const float (&x)[RT],
                                                        const float (&bias)[RT], float *p) {
#pragma unroll
    for (int r = 0; r < RT; r++) {
        float score = x[r] * at.scale;
        if (at.softcap != 0.0f) score = at.softcap * tanhf(score / at.softcap);
        if (rows.mask[r]) score += rows.slope[r] * bias[r];
        if (bias[r] == -INFINITY) score = -INFINITY;
        const float best = fmaxf(rows.max[r], warp_max(score));
        if (best > rows.max[r]) {
            const float shrink = expf(rows.max[r] - best); /* 0 at first */
            rows.sum[r] *= shrink;
#pragma unroll
            for (int i = 0; i < 2 * NC; i++) acc[r][i] *= shrink;
            rows.max[r] = best;
        }
        const float y =
            bias[r] == -INFINITY ? 0.0f : expf(score - (best == -INFINITY ? 0.0f : best));
        rows.sum[r] += y;
        p[r * KEYS + threadIdx.x % 32] = y;
    }
}

/* What the warps found of a row: [key_warps][e + 2]. */
struct OfRow {
    const float *x;
    int e;
    __device__ float most(int w) const { return x[w * (e + 2) + e]; }
    __device__ float sum(int w) const { return x[w * (e + 2) + e + 1]; }
    __device__ float value(int w, int i) const { return x[w * (e + 2) + i]; }
};

/* What the warp found, as OfRow reads it: row r at to + r * n_warps * (e + 2). */
template <int RT, int NC>
static __device__ __forceinline__ void store_found(const Rows<RT> &rows,
                                                   const float (&acc)[RT][2 * NC], float *to, int e,
                                                   int n_warps) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < RT; r++, to += n_warps * (e + 2)) {
        const float total = warp_sum(rows.sum[r]);
#pragma unroll
        for (int c = 0; c < NC; c++) {
            const int i = 64 * c + 2 * lane;
            if (i >= e) break;
            to[i] = acc[r][2 * c];
            to[i + 1] = acc[r][2 * c + 1];
        }
        if (lane == 0) {
            to[e] = rows.max[r];
            to[e + 1] = total;
        }
    }
}

/* ---- the kernel ---- */

/* grid: x groups of rows, y parts of the keys, z K/V heads and sequences. Shared: q F32 [rows][d],
 * probabilities [rows][key_warps][KEYS], the tiles; at the end, in their place, what was found */
template <int RT, int NC>
static __global__ void __launch_bounds__(THREADS, RT > 2 || NC > 4 ? 2 : 4) split_kernel(Split sp) {
    CUDA_DYNAMIC_SHARED(char, shared);
    next_may_start();
    previous_done();
    const Attention &at = sp.at;
    const int d = (int)at.q.ne[0], e = (int)at.v.ne[0], n_rows = RT * sp.row_warps;
    const int lane = threadIdx.x % 32, row_warp = threadIdx.x / 32 % sp.row_warps,
              key_warp = threadIdx.x / 32 / sp.row_warps;
    const Place place = place_of(sp, n_rows);
    const Source source = source_of(sp, place);
    float *q = (float *)(void *)shared, *p = q + n_rows * d;
    char *tiles = (char *)(void *)(p + n_rows * sp.key_warps * KEYS);

    fetch_tile(sp, source, tiles, place.first, place.last);
    copies_begun();
    load_queries(at, place, n_rows, q);
    const int64_t m = place.m0 + row_warp * RT;
    Rows<RT> rows = begin_rows<RT>(at, place, m);
    float acc[RT][2 * NC] = {};
    q += row_warp * RT * d;
    p += (key_warp * sp.row_warps + row_warp) * RT * KEYS;

    int stage = 0;
    for (int64_t first = place.first; first < place.last; first += source.keys) {
        const int64_t next = first + source.keys;
        if (sp.stages == 2) {
            if (next < place.last)
                fetch_tile(sp, source, tiles + (stage ^ 1) * source.tile, next, place.last);
            copies_begun();
        }
        float bias[RT], x[RT];
        const int own = key_warp * KEYS + lane; /* key of the tile */
        const bool seen = load_biases(at, place, rows, m, first + own, bias);
        if (sp.stages == 2) {
            copies_done<1>();
        } else {
            copies_done<0>();
        }
        __syncthreads(); /* the tile is there, and at first q */
        if (warp_max(seen ? 0.0f : -INFINITY) == 0.0f) {
            const char *k_tile = tiles + stage * source.tile, *v_tile = k_tile;
            if (!sp.same) v_tile += source.keys * sp.k.stride;
            const int v_stride = sp.same ? sp.k.stride : sp.v.stride;
            scores_of<RT>(at.k.type, k_tile + own * sp.k.stride, q, d, x);
            continue_softmax<RT, NC>(at, rows, acc, x, bias, p);
            __syncwarp(); /* the lanes read each other's */
            values_of<RT, NC>(at.v.type, p, v_tile + key_warp * KEYS * v_stride, v_stride, e, acc);
        }
        __syncthreads(); /* the tile and the probabilities have been used */
        if (sp.stages == 1) {
            if (next < place.last) fetch_tile(sp, source, tiles, next, place.last);
            copies_begun();
        } else {
            stage ^= 1;
        }
    }

    /* all copies that were begun have been waited for: the tiles' place is free */
    float *found = (float *)(void *)tiles;
    store_found<RT, NC>(rows, acc, found + (row_warp * RT * sp.key_warps + key_warp) * (e + 2), e,
                        sp.key_warps);
    __syncthreads(); /* what all warps found is there */
    for (int r = threadIdx.x / 32; r < n_rows && place.m0 + r < place.n_rows; r += blockDim.x / 32) {
        const OfRow of_row = {found + r * sp.key_warps * (e + 2), e};
        write_row<WARPS>(at, query_of(place, place.m0 + r), of_row, sp.key_warps, sp.partial);
    }
}

/* ---- launch ---- */

/* How rows and keys are divided, by shapes alone: what the work memory is counted by. */
struct Shape {
    int rt, row_warps, key_warps;
    int64_t row_groups, per_part, parts;
};
static Shape shape_of(const struct sheaf__cuda_queue *q, const int64_t *q_ne, const int64_t *k_ne,
                      int64_t group) {
    const int64_t rows = q_ne[1] * group, t = k_ne[1];
    Shape s;
    s.rt = rows > 8 ? 4 : rows > 4 ? 2 : 1;
    s.row_warps = rows > 2 ? 4 : rows > 1 ? 2 : 1;
    s.key_warps = WARPS / s.row_warps;
    s.row_groups = (rows + s.rt * s.row_warps - 1) / (s.rt * s.row_warps);
    const int64_t tile = KEYS * s.key_warps, least = tile > LEAST_PART ? tile : LEAST_PART;
    const int64_t blocks = s.row_groups * k_ne[2] * q_ne[3], most = (t + least - 1) / least;
    int64_t parts = blocks > 0 ? (int64_t)q->device->n_sm * 4 / blocks : 1;
    parts = parts < most ? parts : most;
    parts = parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
    const int64_t each = (t + parts - 1) / parts;
    s.per_part = each < tile ? tile : (each + tile - 1) / tile * tile;
    s.parts = t ? (t + s.per_part - 1) / s.per_part : 1;
    return s;
}

int64_t sheaf__cuda_attention_split_parts(const struct sheaf__cuda_queue *q,
                                          const struct sheaf_tensor *dst) {
    const int64_t each = sheaf__head_groups(dst).each, heads = dst->src[0]->ne[2];
    return shape_of(q, dst->src[0]->ne, dst->src[1]->ne, each < heads ? each : heads).parts;
}

/* false: not a type, an alignment or a length that the tiles have. */
static bool side_of(const View &v, Side *side) {
    const uintptr_t bits = (uintptr_t)v.data | v.nb[1] | v.nb[2] | v.nb[3];
    const int64_t n = v.ne[0];
    int64_t bytes = 2 * n;
    if (n < 1 || n > 576) return false;
    if (v.type == SHEAF_TYPE_F16 || v.type == SHEAF_TYPE_BF16) {
        side->unit = 16;
        side->stride = (int)(((bytes + 15) / 16) | 1) * 16;
    } else if (v.type == SHEAF_TYPE_Q8_0 || v.type == SHEAF_TYPE_Q4_0) {
        bytes = n / SHEAF__QK *
                (int64_t)(v.type == SHEAF_TYPE_Q8_0 ? sizeof(sheaf__block_q8_0)
                                                    : sizeof(sheaf__block_q4_0));
        side->unit = 4;
        side->stride = (int)((bytes / 4 + 1) | 1) * 4; /* word_at looks at one more */
    } else {
        return false;
    }
    side->bytes = (int)bytes;
    return (bits | (uintptr_t)bytes) % (uintptr_t)side->unit == 0;
}

static size_t shared_of(const Split &sp, int rows) {
    const size_t keys = (size_t)(KEYS * sp.key_warps);
    const size_t row = (size_t)(sp.k.stride + (sp.same ? 0 : sp.v.stride));
    const size_t tiles = (size_t)sp.stages * keys * row;
    const size_t found =
        (size_t)(rows * sp.key_warps) * (size_t)(sp.at.v.ne[0] + 2) * sizeof(float);
    return ((size_t)rows * (size_t)sp.at.q.ne[0] + (size_t)rows * keys) * sizeof(float) +
           (tiles > found ? tiles : found);
}

template <int RT, int NC>
static bool launch(struct sheaf__cuda_queue *q, Split sp, const Shape &shape) {
    for (sp.key_warps = shape.key_warps; sp.key_warps; sp.key_warps /= 2) {
        for (sp.stages = 2; sp.stages; sp.stages--) {
            const size_t bytes = shared_of(sp, RT * shape.row_warps);
            if (bytes > MOST_SHARED || !sheaf__cuda_allows_shared(q, split_kernel<RT, NC>, bytes)) continue;
            const dim3 grid((unsigned)shape.row_groups, (unsigned)shape.parts,
                            (unsigned)(sp.at.k.ne[2] * sp.at.q.ne[3]));
            CUDA_LAUNCH_AHEAD(q->ahead, (split_kernel<RT, NC>), grid,
                              32 * shape.row_warps * sp.key_warps, bytes, q->stream, sp);
            return true;
        }
    }
    return false;
}

template <int RT> static bool launch_rows(struct sheaf__cuda_queue *q, Split &sp, const Shape &s) {
    const int64_t e = sp.at.v.ne[0];
    return e <= 64    ? launch<RT, 1>(q, sp, s)
           : e <= 128 ? launch<RT, 2>(q, sp, s)
           : e <= 256 ? launch<RT, 4>(q, sp, s)
                      : launch<RT, 9>(q, sp, s);
}

int64_t sheaf__cuda_attention_split(struct sheaf__cuda_queue *q, const struct Attention *at,
                                    float *partial) {
    const Shape s = shape_of(q, at->q.ne, at->k.ne, at->group);
    Split sp;
    memset(&sp, 0, sizeof sp);
    if (!side_of(at->k, &sp.k) || !side_of(at->v, &sp.v) || at->k.ne[0] % 8 || at->v.ne[0] % 2)
        return 0;
    if (at->k.ne[2] * at->q.ne[3] > 65535 || s.row_groups > 0x7fffffff) return 0;
    sp.at = *at;
    sp.same = at->k.data == at->v.data && at->k.type == at->v.type && at->v.ne[0] <= at->k.ne[0] &&
              !memcmp(at->k.nb, at->v.nb, sizeof at->k.nb);
    sp.row_warps = s.row_warps;
    sp.per_part = s.per_part;
    sp.partial = s.parts > 1 ? partial : NULL;
    const bool launched = s.rt == 4   ? launch_rows<4>(q, sp, s)
                          : s.rt == 2 ? launch_rows<2>(q, sp, s)
                                      : launch_rows<1>(q, sp, s);
    return launched ? s.parts : 0;
}
