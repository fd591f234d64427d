/* What the attention kernels share. */
#ifndef SHEAF_CUDA_ATTENTION_H
#define SHEAF_CUDA_ATTENTION_H

#include "cuda/product.h"

/* q F32 [d, n, g.r, s], k [d, t, g, s], v [e, t, g, s], mask [t, >=n, 1|g.r, 1|s] or data NULL ->
 * dst F32 [e, g.r, n, s]; sinks F32 [g.r] or data NULL */
struct Attention {
    View dst, q, k, v, mask, sinks;
    float scale, max_bias, softcap;
    int64_t base, n_head; /* head h of the slice is head base + h of n_head (ALiBi) */
    struct sheaf__head_groups groups;
    int64_t group; /* most query heads that a K/V head has */
    /* where all heads of a query are a column of integers, if anywhere: made by join_kernel, or with one part by the
     * kernels for few queries */
    struct Rounded columns;
};

static const int64_t MOST_PARTS = 256; /* of the keys of a node */

/* The first query head that reads K/V head hk; up to that of hk + 1 they are its group. */
HD int64_t first_head(const Attention &at, int64_t hk) {
    const int64_t head = hk * at.groups.each - at.groups.skip;
    return head < 0 ? 0 : head < at.q.ne[2] ? head : at.q.ne[2];
}

/* The mask of a row of q; NULL: there is none. Heads and sequences may share masks. Few enough for 32 bits, whose
 * remainders take a third of the instructions. */
static __device__ __forceinline__ const char *mask_row(const Attention &at, const Row &of) {
    if (!at.mask.data) return NULL;
    const Row from = {of.i1, (unsigned)of.i2 % (unsigned)at.mask.ne[2],
                      (unsigned)of.i3 % (unsigned)at.mask.ne[3]};
    return row_data(at.mask, from);
}

/* The weight of a part with the largest score `max` and this sum of weights, where `best` is the largest of all parts:
 * 0 of one that saw no key, but not if its sum is not a number. */
static __device__ __forceinline__ float part_weight(float max, float sum, float best) {
    return max == -INFINITY ? (sum != 0.0f) : expf(max - best);
}

/* What a row's sum of values is multiplied by: the softmax's largest score and sum, and the sink of
 * the head, which has no value. */
static __device__ __forceinline__ float attention_factor(const Attention &at, int64_t head,
                                                         float max, float sum) {
    float keep = 1.0f;
    if (at.sinks.data) {
        const float sink =
            *(const float *)(const void *)(at.sinks.data + (size_t)head * at.sinks.nb[0]);
        const float most = fmaxf(sink, max);
        if (sink != -INFINITY) {
            keep = expf(max - most); /* 0 where no key is seen */
            sum = fmaf(sum, keep, expf(sink - most));
        }
    }
    return sum == 0.0f ? 0.0f : keep / sum;
}

/* Element i of row `to` of dst, which is v, as an integer. A warp has a block of them: heads are whole
 * blocks where there are columns. */
static __device__ __forceinline__ void round_lane(const Attention &at, const Row &to, int64_t i,
                                                  float v) {
    const Rounded &c = at.columns;
    if (c.q)
        quantize_lane(c.q, c.ds, c.chunks, to.i3 * at.q.ne[1] + to.i2,
                      (to.i1 * at.v.ne[0] + i) / 32, v);
}
/* The blocks behind the last head are zeros: row `to`, if it is of that head, makes them, in steps of
 * `threads` elements of which the thread has number `thread`. */
static __device__ __forceinline__ void round_rest(const Attention &at, const Row &to, int thread,
                                                  int threads) {
    if (!at.columns.q || to.i1 + 1 < at.q.ne[2]) return;
    for (int64_t i = at.v.ne[0] + thread; to.i1 * at.v.ne[0] + i < at.columns.chunks * 1024;
         i += threads)
        round_lane(at, to, i, 0.0f);
}

/* A warp writes a row of a block, the query and the head of `from`, of what n_warps <= MOST warps
 * found in keys of their own: to dst and its columns, or, as a part of the keys, to F32 [e + 2,
 * parts, rows] for join_kernel. of_row gives of warp w the largest score most(w), the sum(w) of the
 * weights, and value(w, i), the weighted sum of elements i. */
template <int MOST, class OfRow>
static __device__ __forceinline__ void write_row(const Attention &at, const Row &from,
                                                 const OfRow &of_row, int n_warps, float *partial) {
    const int e = (int)at.v.ne[0], lane = threadIdx.x % 32;
    float best = -INFINITY, total = 0.0f, weight[MOST], sum[MOST];
#pragma unroll
    for (int w = 0; w < MOST; w++) {
        weight[w] = w < n_warps ? of_row.most(w) : -INFINITY;
        sum[w] = w < n_warps ? of_row.sum(w) : 0.0f;
        best = fmaxf(best, weight[w]);
    }
#pragma unroll
    for (int w = 0; w < MOST; w++) {
        weight[w] = part_weight(weight[w], sum[w], best);
        total = fmaf(weight[w], sum[w], total);
    }
    const int64_t row = (from.i3 * at.q.ne[1] + from.i1) * at.q.ne[2] + from.i2;
    const Row to = {from.i2, from.i1, from.i3};
    float *out = partial ? partial + (row * gridDim.y + blockIdx.y) * (e + 2)
                         : (float *)(void *)row_data(at.dst, to);
    const float scale = partial ? 1.0f : attention_factor(at, from.i2, best, total);
    for (int i = lane; i < e; i += 32) {
        float y = 0.0f;
#pragma unroll
        for (int w = 0; w < MOST; w++)
            if (weight[w] != 0.0f) y = fmaf(weight[w], of_row.value(w, i), y);
        out[i] = y * scale;
        if (!partial) round_lane(at, to, i, y * scale);
    }
    if (!partial) {
        round_rest(at, to, lane, 32);
    } else if (lane == 0) {
        out[e] = best;
        out[e + 1] = total;
    }
}

/* With tensor cores, for many queries of F16 keys and values; false: not for this one. */
bool sheaf__cuda_attention_tiles(struct sheaf__cuda_queue *q, const struct Attention *at);
/* Scratch bytes that it may need; the addresses need not be known yet. */
size_t sheaf__cuda_attention_tiles_work(const struct Attention *at);

/* For few queries, the keys in parts. How many parts there are, 0: not for this one. With more than one
 * part it leaves F32 [e + 2, parts, rows] in partial, for join_kernel (attention.cu); with one it writes
 * dst and the columns. The functions of a node give the parts by its types and shapes, if it is for this
 * kernel.
 *
 * This one, with tensor cores: F16 or BF16 keys and values. */
int64_t sheaf__cuda_attention_few(struct sheaf__cuda_queue *q, const struct Attention *at,
                                  float *partial);
int64_t sheaf__cuda_attention_few_parts(const struct sheaf__cuda_queue *q,
                                        const struct sheaf_tensor *dst);
/* Without tensor cores: also block types. */
int64_t sheaf__cuda_attention_split(struct sheaf__cuda_queue *q, const struct Attention *at,
                                    float *partial);
int64_t sheaf__cuda_attention_split_parts(const struct sheaf__cuda_queue *q,
                                          const struct sheaf_tensor *dst);

#endif
