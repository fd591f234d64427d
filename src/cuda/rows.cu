/* Ops over whole rows: norms, SUM_ROWS, MEAN, SOFT_MAX. A block takes a row; what it sums is summed in
 * an order that only the size of the row decides; it may have 1024 threads, which is the most that the
 * kernels are compiled for. dst of a norm and of SOFT_MAX may be a's memory: a thread writes the
 * elements that it reads. */
#include "cuda/product.h"

/* ---- norm and sum ---- */

/* Elements i to i + 3 of a row of a; WIDE: the rows are in fours. */
template <bool WIDE>
static __device__ __forceinline__ Four load_of(const View &a, const char *x, int64_t i) {
    if (WIDE) return load_four((const float *)(const void *)x, (int)i, (int)a.ne[0], true);
    Four f = {{0.0f, 0.0f, 0.0f, 0.0f}};
    for (int j = 0; j < 4; j++)
        if (i + j < a.ne[0]) f.v[j] = load_plain(a.type, x + (size_t)(i + j) * a.nb[0]);
    return f;
}

/* dst F32, a [i, j, h, s]. A thread keeps its first four elements. */
template <bool WIDE>
static __global__ void __launch_bounds__(1024, 1) rms_norm_kernel(View dst, View a, float eps) {
    __shared__ float scratch[32];
    next_may_start();
    previous_done();
    const int64_t n = dst.ne[0], step = 4 * (int64_t)blockDim.x;
    for (int64_t row = blockIdx.x; row < n_rows(dst); row += gridDim.x) {
        const char *x = (const char *)row_of<WIDE>(a, row);
        float *d = row_of<WIDE>(dst, row), sum = 0.0f;
        int64_t i = 4 * threadIdx.x;
        const Four first = load_of<WIDE>(a, x, i);
        sum = add_squares(sum, first);
        for (i += step; i < n; i += step) sum = add_squares(sum, load_of<WIDE>(a, x, i));
        sum = block_sum(sum, scratch);
        const float scale = 1.0f / sqrtf(sum / (float)n + eps);
        for (i = 4 * threadIdx.x; i < n; i += step) {
            Four v = first;
            if (i >= step) v = load_of<WIDE>(a, x, i);
            for (int j = 0; j < 4; j++) v.v[j] *= scale;
            store_four(d + i, 0, n - i < 4 ? (int)(n - i) : 4, WIDE, v);
        }
    }
}

static enum sheaf_status launch_rms_norm(struct sheaf__cuda_queue *q,
                                         const struct sheaf_tensor *dst) {
    const bool wide = sheaf__cuda_in_fours(dst) && sheaf__cuda_in_fours(dst->src[0]);
    CUDA_LAUNCH_AHEAD(q->ahead, wide ? rms_norm_kernel<true> : rms_norm_kernel<false>,
                      sheaf__cuda_blocks(sheaf_nrows(dst), 1), sheaf__cuda_row_threads(dst->ne[0]),
                      0, q->stream, sheaf__cuda_view(dst), sheaf__cuda_view(dst->src[0]),
                      sheaf__param_f32(dst, 0));
    return sheaf__cuda_launched(q, dst);
}

/* The same; `center`: NORM, else L2_NORM */
static __global__ void __launch_bounds__(1024, 1)
    norm_kernel(View dst, View a, float eps, bool center) {
    __shared__ float scratch[32];
    next_may_start();
    previous_done();
    for (int64_t row = blockIdx.x; row < n_rows(dst); row += gridDim.x) {
        const Row at = row_at(dst.ne, row);
        const char *x = row_data(a, at);
        float *d = (float *)(void *)row_data(dst, at), mean = 0.0f, sum = 0.0f;
        if (center) {
            for (int64_t i = threadIdx.x; i < dst.ne[0]; i += blockDim.x)
                mean += load_plain(a.type, x + (size_t)i * a.nb[0]);
            mean = block_sum(mean, scratch) / (float)dst.ne[0];
        }
        for (int64_t i = threadIdx.x; i < dst.ne[0]; i += blockDim.x) {
            const float v = load_plain(a.type, x + (size_t)i * a.nb[0]) - mean;
            sum = fmaf(v, v, sum);
        }
        sum = block_sum(sum, scratch);
        const float scale =
            center ? 1.0f / sqrtf(sum / (float)dst.ne[0] + eps) : 1.0f / fmaxf(sqrtf(sum), eps);
        for (int64_t i = threadIdx.x; i < dst.ne[0]; i += blockDim.x)
            d[i] = (load_plain(a.type, x + (size_t)i * a.nb[0]) - mean) * scale;
    }
}

static enum sheaf_status launch_norm(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    CUDA_LAUNCH_AHEAD(q->ahead, norm_kernel, sheaf__cuda_blocks(sheaf_nrows(dst), 1),
                      sheaf__cuda_row_threads(dst->ne[0]), 0, q->stream, sheaf__cuda_view(dst),
                      sheaf__cuda_view(dst->src[0]), sheaf__param_f32(dst, 0),
                      dst->op == SHEAF_OP_NORM);
    return sheaf__cuda_launched(q, dst);
}

/* A block has a group: rows and channels of one index of dimension 3. */
static __global__ void __launch_bounds__(1024)
    group_norm_kernel(View dst, View a, int64_t each, float eps) {
    __shared__ float scratch[32];
    const int64_t groups = (dst.ne[2] + each - 1) / each;
    for (int64_t item = blockIdx.x; item < groups * dst.ne[3]; item += gridDim.x) {
        const int64_t first = item % groups * each;
        const int64_t channels = dst.ne[2] - first < each ? dst.ne[2] - first : each;
        const int64_t plane = dst.ne[0] * dst.ne[1], n = plane * channels;
        float mean = 0.0f, square = 0.0f;
        for (int pass = 0; pass < 3; pass++) {
            const float scale = 1.0f / sqrtf(square / (float)n + eps);
            float sum = 0.0f;
            for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
                const Row at = {i % plane / dst.ne[0], first + i / plane, item / groups};
                const size_t column = (size_t)(i % dst.ne[0]);
                const float v = load_plain(a.type, row_data(a, at) + column * a.nb[0]);
                if (pass == 0) sum += v;
                if (pass == 1) sum = fmaf(v - mean, v - mean, sum);
                if (pass == 2) ((float *)(void *)row_data(dst, at))[column] = (v - mean) * scale;
            }
            sum = block_sum(sum, scratch);
            if (pass == 0) mean = sum / (float)n;
            if (pass == 1) square = sum;
        }
    }
}

static enum sheaf_status launch_group_norm(struct sheaf__cuda_queue *q,
                                           const struct sheaf_tensor *dst) {
    const int64_t each = dst->op_params[2];
    CUDA_LAUNCH(
        group_norm_kernel, sheaf__cuda_blocks((dst->ne[2] + each - 1) / each * dst->ne[3], 1),
        sheaf__cuda_row_threads(dst->ne[0] * dst->ne[1] * each), 0, q->stream,
        sheaf__cuda_view(dst), sheaf__cuda_view(dst->src[0]), each, sheaf__param_f32(dst, 1));
    return sheaf__cuda_launched(q, dst);
}

/* ---- (a sum of blocks,) x + y, its norm, and that times w, in one ---- */

struct Chain {      /* all F32 of one shape, dense rows; data NULL: not there */
    View a, b, sum; /* without b: the norm of a */
    View norm, out;
    int n_rows;
    const float *w;
    bool early; /* w is a weight, which no kernel writes, or not there */
    float eps;
    sheaf__sum blocks; /* n_blocks 0: no; else they are added first, to a or, if `to_b`, to b */
    bool to_b;
    Rounded rounded; /* of out */
};

/* One row, elements of 4. */
struct ChainRow {
    float *a, *b, *sum, *norm, *out; /* NULL: not there */
    int row, n;
};
template <bool WIDE> static __device__ __forceinline__ ChainRow chain_row(const Chain &c, int row) {
    ChainRow x;
    x.a = row_of<WIDE>(c.a, row);
    x.norm = row_of<WIDE>(c.norm, row);
    x.b = c.b.data ? row_of<WIDE>(c.b, row) : NULL;
    x.sum = c.b.data ? row_of<WIDE>(c.sum, row) : NULL;
    x.out = c.out.data ? row_of<WIDE>(c.out, row) : NULL;
    x.row = row;
    x.n = (int)c.a.ne[0];
    return x;
}
static __device__ __forceinline__ void add_four(Four &x, const Four &y) {
    for (int j = 0; j < 4; j++) x.v[j] += y.v[j];
}
static __device__ __forceinline__ void scale_four(Four &x, float scale) {
    for (int j = 0; j < 4; j++) x.v[j] *= scale;
}
static __device__ __forceinline__ void multiply_four(Four &x, const Four &y) {
    for (int j = 0; j < 4; j++) x.v[j] *= y.v[j];
}
/* From element i on: x, or x and y added, which are stored. */
template <bool WIDE>
static __device__ __forceinline__ Four load_sum(const ChainRow &r, int i) {
    Four x = load_four(r.a, i, r.n, WIDE);
    if (!r.b) return x;
    add_four(x, load_four(r.b, i, r.n, WIDE));
    store_four(r.sum, i, r.n, WIDE, x);
    return x;
}
/* From element i on: the norm of x, and that times w. */
template <bool WIDE>
static __device__ __forceinline__ void store_norm(const Chain &c, const ChainRow &r, int i, Four x,
                                                  const Four &w, float scale) {
    if (i < r.n) {
        scale_four(x, scale);
        store_four(r.norm, i, r.n, WIDE, x);
        multiply_four(x, w);
        if (r.out) store_four(r.out, i, r.n, WIDE, x);
    }
    round_four(c.rounded, (unsigned)r.row, i, r.n, x);
}

/* A thread takes four elements at a time, in the order of add_squares. Those of the first KEPT times it keeps between
 * the sum of squares and the norm, so that a row of 4096 for each is read once, by loads that do not wait for one
 * another. The rest of a longer row goes through memory. */
template <bool WIDE, int KEPT>
static __global__ void __launch_bounds__(1024, 1) chain_kernel(Chain c) {
    __shared__ float scratch[32];
    const int n = (int)c.a.ne[0], own = 4 * (int)threadIdx.x, step = 4 * (int)blockDim.x;
    const int padded = c.rounded.q ? c.rounded.chunks * 1024 : 0, end = padded > n ? padded : n;
    Four w[KEPT];
    next_may_start();
    if (!c.early) previous_done();
#pragma unroll
    for (int k = 0; k < KEPT; k++) w[k] = load_four(c.w, own + k * step, c.w ? n : 0, WIDE);
    if (threadIdx.x == 0 && c.early) {
        look_up(row_of<WIDE>(c.a, blockIdx.x));
        look_up(row_of<WIDE>(c.norm, blockIdx.x));
        if (c.b.data) look_up(row_of<WIDE>(c.b, blockIdx.x));
        if (c.out.data) look_up(row_of<WIDE>(c.out, blockIdx.x));
    }
    if (c.early) previous_done();
    for (int row = (int)blockIdx.x; row < c.n_rows; row += (int)gridDim.x) {
        const ChainRow r = chain_row<WIDE>(c, row);
        float sum = 0.0f;
#pragma unroll 1
        for (int i = own; c.blocks.n_blocks && i < n; i += step)
            for (int j = i; j < i + 4 && j < n; j++)
                (c.to_b ? r.b : r.a)[j] = sum_at(c.blocks, (size_t)row * (size_t)n + (size_t)j);
        Four v[KEPT];
#pragma unroll
        for (int k = 0; k < KEPT; k++) v[k] = load_four(r.a, own + k * step, n, WIDE);
#pragma unroll
        for (int k = 0; k < KEPT && r.b; k++)
            add_four(v[k], load_four(r.b, own + k * step, n, WIDE));
#pragma unroll
        for (int k = 0; k < KEPT; k++) {
            if (r.b) store_four(r.sum, own + k * step, n, WIDE, v[k]); /* which may be a or b */
            sum = add_squares(sum, v[k]);
        }
#pragma unroll 1
        for (int i = own + KEPT * step; i < n; i += step)
            sum = add_squares(sum, load_sum<WIDE>(r, i));
        sum = block_sum(sum, scratch);
        const float scale = 1.0f / sqrtf(sum / (float)n + c.eps);
#pragma unroll
        for (int k = 0; k < KEPT; k++)
            store_norm<WIDE>(c, r, own + k * step, v[k], w[k], scale);
#pragma unroll 1
        for (int i = own + KEPT * step; i < end; i += step)
            store_norm<WIDE>(c, r, i, load_four(r.b ? r.sum : r.a, i, n, WIDE),
                             load_four(c.w, i, c.w ? n : 0, WIDE), scale);
    }
}

static bool is_sum(const struct sheaf_tensor *t, const struct sheaf__sum *s) {
    return t && t->data == s->out && (size_t)sheaf_nelements(t) == s->n && sheaf_is_contiguous(t);
}

int sheaf__cuda_launch_chain(struct sheaf__cuda_queue *q, const struct sheaf_tensor *const *next,
                             int n, enum sheaf_status *st) {
    const struct sheaf_tensor *add = next[0]->op == SHEAF_OP_ADD ? next[0] : NULL;
    const int first = add ? 1 : 0;
    const struct sheaf_tensor *norm = first < n ? next[first] : NULL, *mul = NULL;
    if (!norm || norm->op != SHEAF_OP_RMS_NORM || !sheaf__cuda_plain_rows(norm, norm->src[0]) ||
        norm->ne[0] > 1 << 30 || sheaf_nrows(norm) > 1 << 30)
        return 0;
    if (add &&
        (norm->src[0] != add || !sheaf__cuda_plain_rows(add, norm) ||
         !sheaf__cuda_plain_rows(add->src[0], norm) || !sheaf__cuda_plain_rows(add->src[1], norm)))
        return 0;
    if (!add && !sheaf__cuda_plain_rows(norm->src[0], norm)) return 0;
    if (first + 1 < n && sheaf__cuda_is_weighted(next[first + 1], norm) &&
        (!add || sheaf__cuda_disjoint(next[first + 1]->src[1], add)))
        mul = next[first + 1];
    const struct sheaf_tensor *in[] = {add ? add->src[0] : norm->src[0], add ? add->src[1] : NULL,
                                       add};
    const struct sheaf_tensor *out[] = {add, norm, mul};
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            if (!in[i] || !out[j] || in[i] == out[j]) continue;
            if (sheaf__cuda_apart(out[j], in[i])) continue;
            if (out[j] != mul) return 0;
            mul = NULL;
        }
    }
    if (mul && !sheaf__cuda_apart(mul, norm)) return 0;
    /* the weights are read before the sum is written */
    for (int i = 0; i < 2 && mul && q->sum.n_blocks; i++)
        if (in[i] && !sheaf__cuda_disjoint(mul->src[1], in[i])) mul = out[2] = NULL;
    const bool to_a = is_sum(in[0], &q->sum), to_b = is_sum(in[1], &q->sum);
    if (q->sum.n_blocks ? to_a == to_b : !add && !mul) return 0;
    Chain c;
    memset(&c, 0, sizeof c);
    c.a = sheaf__cuda_view(in[0]);
    if (add) c.b = sheaf__cuda_view(in[1]);
    if (add) c.sum = sheaf__cuda_view(add);
    c.norm = sheaf__cuda_view(norm);
    if (mul) c.out = sheaf__cuda_view(mul);
    c.n_rows = (int)sheaf_nrows(norm);
    if (mul) c.w = (const float *)mul->src[1]->data;
    c.early = !mul || sheaf__cuda_is_weight(mul->src[1]);
    c.eps = sheaf__param_f32(norm, 0);
    c.blocks = q->sum;
    c.to_b = to_b;
    memset(&q->sum, 0, sizeof q->sum);
    const int nodes = first + 1 + (mul ? 1 : 0);
    if (mul) sheaf__cuda_rounds(q, mul, nodes < n ? next[nodes] : NULL, true, &c.rounded);
    bool wide = !mul || sheaf__cuda_in_fours(mul->src[1]);
    for (int i = 0; i < 3; i++)
        wide = wide && (!in[i] || sheaf__cuda_in_fours(in[i])) &&
               (!out[i] || sheaf__cuda_in_fours(out[i]));
    auto kernel = !wide                 ? chain_kernel<false, 1>
                  : norm->ne[0] <= 4096 ? chain_kernel<true, 1>
                                        : chain_kernel<true, 2>;
    CUDA_LAUNCH_AHEAD(q->ahead, kernel, sheaf__cuda_blocks(sheaf_nrows(norm), 1),
                      sheaf__cuda_row_threads(norm->ne[0]), 0, q->stream, c);
    *st = sheaf__cuda_launched(q, norm);
    return nodes;
}

/* a [i, j, h, s] -> dst F32 [1, j, h, s], divided by count */
static __global__ void __launch_bounds__(1024) sum_rows_kernel(View dst, View a, float count) {
    __shared__ float scratch[32];
    next_may_start();
    previous_done();
    for (int64_t row = blockIdx.x; row < n_rows(dst); row += gridDim.x) {
        const Row at = row_at(dst.ne, row);
        const char *x = row_data(a, at);
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < a.ne[0]; i += blockDim.x)
            sum += load_plain(a.type, x + (size_t)i * a.nb[0]);
        sum = block_sum(sum, scratch);
        if (threadIdx.x == 0) *(float *)(void *)row_data(dst, at) = sum / count;
    }
}

static enum sheaf_status launch_sum_rows(struct sheaf__cuda_queue *q,
                                         const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const float count = dst->op != SHEAF_OP_MEAN ? 1.0f : (float)(extent ? extent : a->ne[0]);
    CUDA_LAUNCH_AHEAD(q->ahead, sum_rows_kernel, sheaf__cuda_blocks(sheaf_nrows(dst), 1),
                      sheaf__cuda_row_threads(a->ne[0]), 0, q->stream, sheaf__cuda_view(dst),
                      sheaf__cuda_view(a), count);
    return sheaf__cuda_launched(q, dst);
}

/* a -> dst F32 [1]: one block has all rows */
static __global__ void __launch_bounds__(1024) sum_all_kernel(View dst, View a) {
    __shared__ float scratch[32];
    float sum = 0.0f;
    for (int64_t row = 0; row < n_rows(a); row++) {
        const char *x = row_data(a, row_at(a.ne, row));
        for (int64_t i = threadIdx.x; i < a.ne[0]; i += blockDim.x)
            sum += load_plain(a.type, x + (size_t)i * a.nb[0]);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) *(float *)(void *)dst.data = sum;
}

static enum sheaf_status launch_sum(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    CUDA_LAUNCH(sum_all_kernel, 1, 1024, 0, q->stream, sheaf__cuda_view(dst),
                sheaf__cuda_view(dst->src[0]));
    return sheaf__cuda_launched(q, dst);
}

/* ---- soft_max ---- */

struct Heads { /* head h of the slice is head base + h of n_head */
    int64_t base, n_head;
};

/* dst F32, a [k, n, h, s], mask [k, >=n, h, s] repeated or data NULL, sinks F32 [h] or data NULL. A
 * row of -inf yields zeros. */
static __global__ void __launch_bounds__(1024)
    soft_max_kernel(View dst, View a, View mask, View sinks, float scale, float max_bias,
                    Heads heads) {
    __shared__ float scratch[32];
    next_may_start();
    previous_done();
    for (int64_t row = blockIdx.x; row < n_rows(dst); row += gridDim.x) {
        const Row at = row_at(dst.ne, row);
        const char *x = row_data(a, at), *m = NULL;
        float *d = (float *)(void *)row_data(dst, at);
        float slope = 0.0f, max = -INFINITY, sum = 0.0f, sink = -INFINITY;
        if (sinks.data) sink = *(const float *)(void *)(sinks.data + (size_t)at.i2 * sinks.nb[0]);
        if (mask.data) {
            const Row from = {at.i1, at.i2 % mask.ne[2], at.i3 % mask.ne[3]};
            m = row_data(mask, from);
            slope = alibi_slope(max_bias, heads.base + at.i2, heads.n_head);
        }
        for (int64_t i = threadIdx.x; i < dst.ne[0]; i += blockDim.x) {
            float v = load_plain(a.type, x + (size_t)i * a.nb[0]) * scale;
            if (m) v += slope * load_plain(mask.type, m + (size_t)i * mask.nb[0]);
            d[i] = v;
            max = fmaxf(max, v);
        }
        max = fmaxf(block_max(max, scratch), sink);
        if (max == -INFINITY) max = 0.0f;
        for (int64_t i = threadIdx.x; i < dst.ne[0]; i += blockDim.x) {
            const float e = expf(d[i] - max);
            d[i] = e;
            sum += e;
        }
        sum = block_sum(sum, scratch) + expf(sink - max); /* 0 without one */
        if (sum == 0.0f) continue;
        const float inv = 1.0f / sum;
        for (int64_t i = threadIdx.x; i < dst.ne[0]; i += blockDim.x) d[i] *= inv;
    }
}

static enum sheaf_status launch_soft_max(struct sheaf__cuda_queue *q,
                                         const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *m = dst->src[1], *s = dst->src[2];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const Heads heads = {dst->op_params[SHEAF_OP_PARAM_BASE], extent ? extent : dst->ne[2]};
    View mask = sheaf__cuda_view(m ? m : a), sinks = sheaf__cuda_view(s ? s : a);
    if (!m) mask.data = NULL;
    if (!s) sinks.data = NULL;
    CUDA_LAUNCH_AHEAD(q->ahead, soft_max_kernel, sheaf__cuda_blocks(sheaf_nrows(dst), 1),
                      sheaf__cuda_row_threads(dst->ne[0]), 0, q->stream, sheaf__cuda_view(dst),
                      sheaf__cuda_view(a), mask, sinks, sheaf__param_f32(dst, 0),
                      sheaf__param_f32(dst, 1), heads);
    return sheaf__cuda_launched(q, dst);
}

SHEAF__CUDA_OP(RMS_NORM) = {launch_rms_norm, NULL};
SHEAF__CUDA_OP(NORM) = {launch_norm, NULL};
SHEAF__CUDA_OP(L2_NORM) = {launch_norm, NULL};
SHEAF__CUDA_OP(GROUP_NORM) = {launch_group_norm, NULL};
SHEAF__CUDA_OP(SUM) = {launch_sum, NULL};
SHEAF__CUDA_OP(SUM_ROWS) = {launch_sum_rows, NULL};
SHEAF__CUDA_OP(MEAN) = {launch_sum_rows, NULL};
SHEAF__CUDA_OP(SOFT_MAX) = {launch_soft_max, NULL};
