/* FLASH_ATTN_EXT: softmax(q.k) v with the softmax taken online, and which kernel computes it.
 *
 *   many queries, F16 keys and values          attention_tile.cu
 *   F16, BF16, heads up to 256                 attention_few.cu
 *   F16, BF16, Q8_0, Q4_0, heads up to 576     attention_split.cu
 *   any types and shapes                       attention_kernel, here
 *
 * Here a block takes one query of one head and, when there are few of these, a part of the keys; its
 * warps take keys in turn. A second kernel puts the results of the parts together, in their order. If a
 * product of block types comes next (product.h), it makes them integers, too; where the keys are one part,
 * the kernels for few queries do.
 * A masked key (-inf) is never read into a result: the cells behind it may hold anything. */
#include "cuda/attention.h"

enum { WARPS = 4, THREADS = 32 * WARPS, JOIN_THREADS = 512, JOIN_BATCH = 12 };

static size_t shared_bytes(int64_t d, int64_t e) {
    return (size_t)(d + WARPS * e + 2 * WARPS) * sizeof(float);
}

/* part: what a warp or a part has seen: acc [e] = sum of exp(score - max) v, with max and sum */

/* grid: x queries and heads and sequences, y parts. partial F32 [e + 2, parts, rows], or NULL: dst
 */
static __global__ void __launch_bounds__(THREADS, 8)
    attention_kernel(Attention at, float *partial) {
    CUDA_DYNAMIC_SHARED(float, shared);
    next_may_start();
    previous_done();
    const int64_t d = at.q.ne[0], e = at.v.ne[0], t = at.k.ne[1], n = at.q.ne[1], h = at.q.ne[2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *q = shared, *acc = q + d + warp * e, *max_of = q + d + WARPS * e,
          *sum_of = max_of + WARPS;
    const int64_t per_part = (t + gridDim.y - 1) / gridDim.y;
    const int64_t first = blockIdx.y * per_part, last = first + per_part < t ? first + per_part : t;
    for (int64_t row = blockIdx.x; row < n * h * at.q.ne[3]; row += gridDim.x) {
        const int64_t head = row % h, query = row / h % n, s = row / h / n,
                      hk = (at.groups.skip + head) / at.groups.each;
        const Row from = {query, head, s}, kv = {0, hk, s};
        const char *qp = row_data(at.q, from), *kp = row_data(at.k, kv), *vp = row_data(at.v, kv);
        const char *mp = mask_row(at, from);
        const float slope = alibi_slope(at.max_bias, at.base + head, at.n_head);
        float max = -INFINITY, sum = 0.0f;
        __syncthreads(); /* the row before has been written */
        for (int64_t i = threadIdx.x; i < d; i += THREADS)
            q[i] = *(const float *)(const void *)(qp + (size_t)i * at.q.nb[0]);
        for (int64_t i = lane; i < e; i += 32) acc[i] = 0.0f;
        __syncthreads(); /* q is there */
        for (int64_t j = first + warp; j < last; j += WARPS) {
            const float m = mp ? load_plain(at.mask.type, mp + (size_t)j * at.mask.nb[0]) : 0.0f;
            if (m == -INFINITY) continue;
            const char *k = kp + (size_t)j * at.k.nb[1], *v = vp + (size_t)j * at.v.nb[1];
            float score = 0.0f;
            for (int64_t i = lane; i < d; i += 32)
                score = fmaf(q[i], load_dense(at.k.type, k, i), score);
            score = warp_sum(score) * at.scale;
            if (at.softcap != 0.0f) score = at.softcap * tanhf(score / at.softcap);
            if (mp) score += slope * m;
            float shrink = 1.0f;
            if (score > max) {
                shrink = expf(max - score);
                max = score;
                sum *= shrink;
            }
            const float p = expf(score - (max == -INFINITY ? 0.0f : max));
            sum += p;
            if (p == 0.0f) continue;
            for (int64_t i = lane; i < e; i += 32)
                acc[i] = fmaf(p, load_dense(at.v.type, v, i), acc[i] * shrink);
        }
        if (lane == 0) {
            max_of[warp] = max;
            sum_of[warp] = sum;
        }
        __syncthreads(); /* what all warps found is there */
        float best = -INFINITY, total = 0.0f, weight[WARPS];
        for (int w = 0; w < WARPS; w++) best = fmaxf(best, max_of[w]);
        for (int w = 0; w < WARPS; w++) {
            weight[w] = part_weight(max_of[w], sum_of[w], best);
            total += weight[w] * sum_of[w];
        }
        const Row to = {head, query, s};
        float *out = partial ? partial + (row * gridDim.y + blockIdx.y) * (e + 2)
                             : (float *)(void *)row_data(at.dst, to);
        const float scale = partial ? 1.0f : attention_factor(at, head, best, total);
        for (int64_t i = threadIdx.x; i < e; i += THREADS) {
            float y = 0.0f;
            for (int w = 0; w < WARPS; w++) {
                if (weight[w] != 0.0f) y = fmaf(weight[w], q[d + w * e + i], y);
            }
            out[i] = y * scale;
        }
        if (partial && threadIdx.x == 0) {
            out[e] = best;
            out[e + 1] = total;
        }
    }
}

/* An element of parts j, j + ways and so on, all loads at once. */
static __device__ __forceinline__ void load_batch(float (&x)[JOIN_BATCH], const float *p, int step,
                                                  int j, int ways, int parts, int i) {
#pragma unroll
    for (int k = 0; k < JOIN_BATCH; k++)
        x[k] = j + k * ways < parts ? p[(j + k * ways) * step + i] : 0.0f;
}

/* partial [e + 2, parts, rows] -> dst. grid: heads, queries, sequences, the last two from `first` on.
 * A warp finds the weights of all parts for itself. A thread has an element of every ways-th part, and
 * loads several at once. */
static __global__ void __launch_bounds__(JOIN_THREADS)
    join_kernel(Attention at, const float *partial, int parts, Row first) {
    __shared__ float weights[JOIN_THREADS / 32][MOST_PARTS], found[JOIN_THREADS];
    next_may_start();
    previous_done();
    const Row to = {blockIdx.x, first.i2 + blockIdx.y, first.i3 + blockIdx.z};
    const int64_t row = (to.i3 * at.q.ne[1] + to.i2) * at.q.ne[2] + to.i1;
    const int e = (int)at.v.ne[0], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *p = partial + row * parts * (e + 2);
    float *out = (float *)(void *)row_data(at.dst, to), *weight = weights[warp];

    const int width = e < JOIN_THREADS ? e : JOIN_THREADS, ways = JOIN_THREADS / width;
    const int way = (int)threadIdx.x / width, column = (int)threadIdx.x % width;
    float values[JOIN_BATCH];
    load_batch(values, p, e + 2, way < ways ? way : parts, ways, parts, column);

    float max[MOST_PARTS / 32], sum[MOST_PARTS / 32], best = -INFINITY, total = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_PARTS / 32; i++) {
        const int j = i * 32 + lane;
        max[i] = j < parts ? p[j * (e + 2) + e] : -INFINITY;
        sum[i] = j < parts ? p[j * (e + 2) + e + 1] : 0.0f;
        best = fmaxf(best, max[i]);
    }
    best = warp_max(best);
    const float from = best == -INFINITY ? 0.0f : best;
#pragma unroll
    for (int i = 0; i < MOST_PARTS / 32; i++) {
        if (i * 32 >= parts) break;
        const float w = expf(max[i] - from);
        weight[i * 32 + lane] = w;
        total += w * sum[i];
    }
    total = warp_sum(total);
    __syncwarp(); /* the weights are there */
    const float scale = attention_factor(at, to.i1, best, total);

    for (int i = column; i - column < e; i += width) {
        float y = 0.0f;
        for (int j = way < ways ? way : parts; j < parts; j += JOIN_BATCH * ways) {
            if (j != way || i != column)
                load_batch(values, p, e + 2, j, ways, parts, i < e ? i : 0);
#pragma unroll
            for (int k = 0; k < JOIN_BATCH; k++) {
                const float w = j + k * ways < parts ? weight[j + k * ways] : 0.0f;
                if (w != 0.0f) y = fmaf(w, values[k], y);
            }
        }
        if (i != column) __syncthreads(); /* the sums before have been used */
        found[threadIdx.x] = y;
        __syncthreads(); /* the sums of all ways are there */
        if (way != 0 || i >= e) continue;
        for (int w = 1; w < ways; w++) y += found[w * width + column];
        out[i] = y * scale;
        round_lane(at, to, i, y * scale); /* of whole warps: e is a multiple of 32 then */
    }
    round_rest(at, to, (int)threadIdx.x, JOIN_THREADS);
}

static void launch_join(struct sheaf__cuda_queue *q, const Attention &at, const float *partial,
                        int parts) {
    const int64_t n = at.q.ne[1], n_s = at.q.ne[3];
    for (int64_t s = 0; s < n_s; s += sheaf__cuda_blocks_y(n_s)) {
        for (int64_t i = 0; i < n; i += sheaf__cuda_blocks_y(n)) {
            const Row first = {0, i, s};
            const dim3 grid((unsigned)at.q.ne[2], sheaf__cuda_blocks_y(n - i),
                            sheaf__cuda_blocks_y(n_s - s));
            CUDA_LAUNCH_AHEAD(q->ahead, join_kernel, grid, JOIN_THREADS, 0, q->stream, at, partial,
                              parts, first);
        }
    }
}

/* ---- launch ---- */

/* Parts of the keys: enough blocks for the device, at least 64 keys each. */
static int64_t parts_of(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const int64_t rows = dst->ne[1] * dst->ne[2] * dst->ne[3], t = dst->src[1]->ne[1];
    const int64_t wanted = rows > 0 ? (int64_t)q->device->n_sm * 4 / rows : 1, most = (t + 63) / 64;
    const int64_t parts = wanted < most ? wanted : most;
    return parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
}

/* Of the result as columns of integers: they come first in the scratch, where products look for them,
 * and the parts behind them. */
static size_t columns_size(const struct sheaf_tensor *dst) {
    return sheaf__align_up(
        sheaf__cuda_columns_size(dst->ne[0] * dst->ne[1], dst->ne[2] * dst->ne[3]), 256);
}

static Attention attention_of(const struct sheaf_tensor *dst) {
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const struct sheaf_tensor *mask = dst->src[3], *sinks = dst->src[4];
    Attention at;
    memset(&at, 0, sizeof at);
    at.dst = sheaf__cuda_view(dst);
    at.q = sheaf__cuda_view(dst->src[0]);
    at.k = sheaf__cuda_view(dst->src[1]);
    at.v = sheaf__cuda_view(dst->src[2]);
    if (mask) at.mask = sheaf__cuda_view(mask);
    if (sinks) at.sinks = sheaf__cuda_view(sinks);
    at.scale = sheaf__param_f32(dst, 0);
    at.max_bias = sheaf__param_f32(dst, 1);
    at.softcap = sheaf__param_f32(dst, 2);
    at.base = dst->op_params[SHEAF_OP_PARAM_BASE];
    at.n_head = extent ? extent : dst->src[0]->ne[2];
    at.groups = sheaf__head_groups(dst);
    at.group = at.groups.each < at.q.ne[2] ? at.groups.each : at.q.ne[2];
    return at;
}

static size_t work_flash_attn(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const Attention at = attention_of(dst);
    const int64_t rows = dst->ne[1] * dst->ne[2] * dst->ne[3];
    const int64_t few = sheaf__cuda_attention_few_parts(q, dst),
                  split = sheaf__cuda_attention_split_parts(q, dst), any = parts_of(q, dst);
    /* a plan may come before the addresses, which decide between them */
    int64_t parts = split > any ? split : any;
    if (few > parts) parts = few;
    const size_t partial = parts == 1 ? 0 : (size_t)(rows * parts * (dst->ne[0] + 2)) * sizeof(float);
    const size_t others = columns_size(dst) + partial;
    const size_t tiles = sheaf__cuda_attention_tiles_work(&at);
    return tiles > others ? tiles : others;
}

/* The columns that `user`, the node to come, has of all heads together, as integers, if it wants them. */
static Rounded columns_of(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst,
                          const struct sheaf_tensor *user) {
    Rounded c;
    memset(&c, 0, sizeof c);
    const struct sheaf_tensor *x = user ? user->src[1] : NULL;
    if (!x || (x != dst && x->view_src != dst) || x->data != dst->data || dst->ne[0] % 32 ||
        !sheaf_is_contiguous(dst) || !sheaf_is_contiguous(x) ||
        x->ne[0] != dst->ne[0] * dst->ne[1] || sheaf_nrows(x) != dst->ne[2] * dst->ne[3])
        return c;
    sheaf__cuda_rounds(q, x, user, false, &c);
    return c;
}

static enum sheaf_status launch_attention(struct sheaf__cuda_queue *q,
                                          const struct sheaf_tensor *dst,
                                          const struct sheaf_tensor *user) {
    Attention at = attention_of(dst);
    const int64_t rows = dst->ne[1] * dst->ne[2] * dst->ne[3];
    float *work = q->work ? (float *)(void *)(q->work + columns_size(dst)) : NULL;
    if (sheaf__cuda_attention_tiles(q, &at)) return sheaf__cuda_launched(q, dst);
    at.columns = columns_of(q, dst, user);
    int64_t parts = sheaf__cuda_attention_few(q, &at, work);
    if (!parts) parts = sheaf__cuda_attention_split(q, &at, work);
    if (!parts) {
        parts = parts_of(q, dst);
        const dim3 grid(sheaf__cuda_blocks(rows, 1), (unsigned)parts);
        CUDA_LAUNCH_AHEAD(q->ahead, attention_kernel, grid, THREADS,
                          shared_bytes(at.q.ne[0], at.v.ne[0]), q->stream, at,
                          parts > 1 ? work : NULL);
        if (parts == 1) q->rounds = NULL; /* attention_kernel makes no columns */
    }
    if (parts > 1) launch_join(q, at, work, (int)parts);
    return sheaf__cuda_launched(q, dst);
}

static enum sheaf_status launch_flash_attn(struct sheaf__cuda_queue *q,
                                           const struct sheaf_tensor *dst) {
    return launch_attention(q, dst, NULL);
}

int sheaf__cuda_launch_attention(struct sheaf__cuda_queue *q,
                                 const struct sheaf_tensor *const *next, int n,
                                 enum sheaf_status *st) {
    if (next[0]->op != SHEAF_OP_FLASH_ATTN_EXT) return 0;
    *st = launch_attention(q, next[0], n > 1 ? next[1] : NULL);
    return 1;
}

/* Heads of some 2400 elements do not. */
bool sheaf__cuda_attention_fits(const struct sheaf_tensor *dst) {
    return shared_bytes(dst->src[0]->ne[0], dst->src[2]->ne[0]) <= 48 * 1024;
}

SHEAF__CUDA_OP(FLASH_ATTN_EXT) = {launch_flash_attn, work_flash_attn};
