/* ROPE and ROPE_BACK: pairs of a row turned by an angle that grows with the position, or back; also
 * together with the norm of the heads before it and the write into the K cache behind it.
 *
 * As on the CPU the angle is kept in double until it is reduced. A thread turns the same pair of
 * HEADS heads, so that sine and cosine are taken once for all of them. dst may be a's memory: a
 * thread reads a pair before it writes it. YaRN: Peng et al., arXiv 2309.00071. */
#include "cuda/device.h"
#include "tensor/rope.h"

enum { THREADS = 128, HEADS = 4 };
static_assert(THREADS == 32 * HEADS, "turn_kernel has a warp for each head");

struct Rope {
    struct sheaf__rope_shape shape;
    double log2_step; /* power of a pair: 2^(exponent * log2_step) */
    double freq_scale, ext_factor, low, high;
    float magnitude, sign; /* of the angle */
};

/* Angle of pair i per position. */
HD double frequency(const Rope &r, int64_t i, int64_t exponent, float factor) {
    const double extrapolated = exp2((double)exponent * r.log2_step) / (double)factor;
    const double interpolated = r.freq_scale * extrapolated;
    if (r.ext_factor == 0.0) return interpolated;
    const double ramp = ((double)i - r.low) / fmax(0.001, r.high - r.low);
    const double mix = (1.0 - fmin(1.0, fmax(0.0, ramp))) * r.ext_factor;
    return interpolated * (1.0 - mix) + extrapolated * mix;
}

/* sine and cosine of an angle that was reduced in double */
HD void sine_cosine(double t, float *s, float *c) {
    const double turns = rint(t * 0.15915494309189533577);
    const float r = (float)((t - turns * 6.28318530717958623200) - turns * 2.4492935982947064e-16);
    *s = sinf(r);
    *c = cosf(r);
}

HD float factor_at(const View &factors, int64_t i) {
    return factors.data ? *(const float *)(void *)(factors.data + (size_t)i * factors.nb[0]) : 1.0f;
}

/* Sine and cosine of pair i at token i2 of n. */
HD void turn_of(const Rope &r, const View &pos, const View &factors, int64_t i, int64_t i2,
                int64_t n, float *s, float *c) {
    int64_t exponent;
    const int64_t at = i2 + sheaf__rope_position(&r.shape, i, &exponent) * n;
    const int p = *(const int *)(void *)(pos.data + (size_t)at * pos.nb[0]);
    sine_cosine((double)p * frequency(r, i, exponent, factor_at(factors, i)), s, c);
    *s *= r.sign * r.magnitude;
    *c *= r.magnitude;
}

/* dst, a [d, h, n, s], pos I32 [n] or [4 n], factors F32 [pairs] or data NULL. grid: x pairs and what is
 * not turned, y groups of heads, z positions and sequences */
static __global__ void rope_kernel(View dst, View a, View pos, View factors, Rope r) {
    previous_done();
    next_may_start();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= dst.ne[0] - r.shape.n_pairs) return;
    const bool turn = i < r.shape.n_pairs;
    const struct sheaf__rope_pair e = sheaf__rope_pair(&r.shape, i);
    const int64_t e0 = e.e0, e1 = e.e1;
    for (int64_t z = blockIdx.z; z < dst.ne[2] * dst.ne[3]; z += gridDim.z) {
        const int64_t i2 = z % dst.ne[2], i3 = z / dst.ne[2];
        float s = 0.0f, c = 0.0f;
        if (turn) turn_of(r, pos, factors, i, i2, dst.ne[2], &s, &c);
        for (int64_t h0 = (int64_t)blockIdx.y * HEADS; h0 < dst.ne[1];
             h0 += (int64_t)gridDim.y * HEADS) {
            for (int64_t h = h0; h < h0 + HEADS && h < dst.ne[1]; h++) {
                const Row at = {h, i2, i3};
                const char *x = row_data(a, at);
                char *y = row_data(dst, at);
                const float x0 = load_plain(a.type, x + (size_t)e0 * a.nb[0]);
                const float x1 = load_plain(a.type, x + (size_t)e1 * a.nb[0]);
                store_plain(dst.type, turn ? x0 * c - x1 * s : x0, y + (size_t)e0 * dst.nb[0]);
                if (turn) store_plain(dst.type, x0 * s + x1 * c, y + (size_t)e1 * dst.nb[0]);
            }
        }
    }
}

/* The dimension whose wave turns n_rot times over n_ctx_orig positions. */
static double correction_dim(int n_dims, int n_ctx_orig, double n_rot, double base) {
    return n_dims * log(n_ctx_orig / (n_rot * 6.28318530717958647693)) / (2.0 * log(base));
}

static Rope rope_of(const struct sheaf_tensor *dst) {
    const int n_dims = dst->op_params[0], n_ctx_orig = dst->op_params[2];
    const double base = (double)sheaf__param_f32(dst, 3);
    Rope r;
    memset(&r, 0, sizeof r);
    r.shape = sheaf__rope_shape(dst);
    r.sign = dst->op == SHEAF_OP_ROPE_BACK ? -1.0f : 1.0f;
    r.log2_step = -log2(base) / (double)r.shape.half;
    r.freq_scale = (double)sheaf__param_f32(dst, 4);
    r.ext_factor = (double)sheaf__param_f32(dst, 5);
    double magnitude = (double)sheaf__param_f32(dst, 6);
    if (r.ext_factor != 0.0) {
        const double fast = (double)sheaf__param_f32(dst, 7),
                     slow = (double)sheaf__param_f32(dst, 8);
        r.low = fmax(0.0, floor(correction_dim(n_dims, n_ctx_orig, fast, base)));
        r.high = fmin(n_dims - 1.0, ceil(correction_dim(n_dims, n_ctx_orig, slow, base)));
        magnitude *= 1.0 + 0.1 * log(1.0 / r.freq_scale);
    }
    r.magnitude = (float)magnitude;
    return r;
}

static enum sheaf_status launch_rope(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *factors = dst->src[2];
    const Rope r = rope_of(dst);
    View f = sheaf__cuda_view(factors ? factors : a);
    if (!factors) f.data = NULL;
    const dim3 grid(sheaf__cuda_blocks(dst->ne[0] - r.shape.n_pairs, THREADS),
                    sheaf__cuda_blocks_y((dst->ne[1] + HEADS - 1) / HEADS),
                    sheaf__cuda_blocks_y(dst->ne[2] * dst->ne[3]));
    CUDA_LAUNCH_AHEAD(q->ahead, rope_kernel, grid, THREADS, 0, q->stream, sheaf__cuda_view(dst),
                      sheaf__cuda_view(a), sheaf__cuda_view(dst->src[1]), f, r);
    return sheaf__cuda_launched(q, dst);
}

/* ---- norm, rotation and cache in one ---- */

struct Turn {
    View a;         /* F32 [d, h, n], dense rows, as are norm, mul and dst */
    View norm, mul; /* data NULL: a is turned as it is */
    const float *w;
    float eps;
    unsigned norm_threads; /* of the kernel of RMS_NORM alone */
    View dst, pos, factors;
    Rope rope;
    View cache, ids; /* data NULL: only dst */
    uint64_t node;   /* the SET_ROWS */
    Fault *fault;
};

/* The sum of squares of a row by one warp, in the order of rms_norm_kernel: warps of that take
 * elements 32 apart, and their sums are added in a tree. */
static __device__ __forceinline__ float sum_of_squares(const float *x, int64_t n,
                                                       unsigned threads) {
    const unsigned lane = threadIdx.x % 32;
    float of_warp = 0.0f;
    for (unsigned w = 0; w < threads / 32; w++) {
        float sum = 0.0f;
        for (int64_t i = w * 32 + lane; i < n; i += threads) sum = fmaf(x[i], x[i], sum);
        sum = warp_sum(sum);
        if (lane == w) of_warp = sum;
    }
    return warp_sum(of_warp);
}

/* grid: x positions, y groups of heads; shared: sine and cosine of the pairs */
static __global__ void turn_kernel(Turn t) {
    CUDA_DYNAMIC_SHARED(float2, angle);
    __shared__ int superseded;
    previous_done();
    next_may_start();
    const Rope &r = t.rope;
    const int64_t lane = threadIdx.x % 32, d = t.a.ne[0], n = t.a.ne[2], i2 = blockIdx.x;
    int64_t id = -1;
    for (int64_t i = threadIdx.x; i < r.shape.n_pairs; i += THREADS) {
        float2 x;
        turn_of(r, t.pos, t.factors, i, i2, n, &x.x, &x.y);
        angle[i] = x;
    }
    if (t.cache.data) { /* of two rows with the same number the later is written */
        id = load_id(t.ids, i2, 0, 0);
        const bool bad = id < 0 || id >= t.cache.ne[1];
        if (threadIdx.x == 0) {
            superseded = bad;
            if (bad) report(t.fault, t.node, id);
        }
        __syncthreads(); /* `superseded` is set */
        for (int64_t j = i2 + 1 + threadIdx.x; j < n; j += THREADS) {
            if (load_id(t.ids, j, 0, 0) == id) superseded = 1;
        }
    }
    __syncthreads(); /* the angles are there, and later rows were seen */
    const bool keep = t.cache.data && !superseded;
    const int64_t h = (int64_t)blockIdx.y * HEADS + threadIdx.x / 32;
    if (h >= t.a.ne[1]) return;
    const Row at = {h, i2, 0};
    const float *x = (const float *)(const void *)row_data(t.a, at);
    float *y = (float *)(void *)row_data(t.dst, at), *norm = NULL, *mul = NULL, scale = 0.0f;
    char *row =
        keep ? t.cache.data + (size_t)id * t.cache.nb[1] + (size_t)(h * d) * t.cache.nb[0] : NULL;
    if (t.norm.data) {
        norm = (float *)(void *)row_data(t.norm, at);
        mul = (float *)(void *)row_data(t.mul, at);
        scale = 1.0f / sqrtf(sum_of_squares(x, d, t.norm_threads) / (float)d + t.eps);
    }
    for (int64_t i = lane; i < d - r.shape.n_pairs; i += 32) {
        const bool turn = i < r.shape.n_pairs;
        const struct sheaf__rope_pair e = sheaf__rope_pair(&r.shape, i);
        float x0 = x[e.e0], x1 = x[e.e1];
        if (norm) {
            x0 *= scale;
            x1 *= scale;
            norm[e.e0] = x0;
            if (turn) norm[e.e1] = x1;
            x0 *= t.w[e.e0];
            x1 *= t.w[e.e1];
            mul[e.e0] = x0;
            if (turn) mul[e.e1] = x1;
        }
        const float s = turn ? angle[i].x : 0.0f, c = turn ? angle[i].y : 0.0f;
        const float y0 = turn ? x0 * c - x1 * s : x0, y1 = x0 * s + x1 * c;
        y[e.e0] = y0;
        if (turn) y[e.e1] = y1;
        if (keep) store_plain(t.cache.type, y0, row + (size_t)e.e0 * t.cache.nb[0]);
        if (keep && turn) store_plain(t.cache.type, y1, row + (size_t)e.e1 * t.cache.nb[0]);
    }
}

/* The SET_ROWS that writes all heads of a position as one row. */
static bool caches(const struct sheaf_tensor *set, const struct sheaf_tensor *rope) {
    if (set->op != SHEAF_OP_SET_ROWS || !sheaf__cuda_is_plain(set)) return false;
    const struct sheaf_tensor *b = set->src[1];
    return (b == rope || b->view_src == rope) && b->data == rope->data && b->type == rope->type &&
           sheaf_is_contiguous(b) && sheaf_is_contiguous(rope) &&
           b->ne[0] == rope->ne[0] * rope->ne[1] && b->ne[1] == rope->ne[2] && b->ne[2] == 1 &&
           b->ne[3] == 1;
}

int sheaf__cuda_launch_turn(struct sheaf__cuda_queue *q, const struct sheaf_tensor *const *next,
                            int n, enum sheaf_status *st) {
    const bool normed = n > 2 && next[0]->op == SHEAF_OP_RMS_NORM &&
                        sheaf__cuda_is_weighted(next[1], next[0]) && next[2]->src[0] == next[1];
    const int first = normed ? 2 : 0;
    const struct sheaf_tensor *rope = next[first];
    if (rope->op != SHEAF_OP_ROPE) return 0;
    const struct sheaf_tensor *a = (normed ? next[0] : rope)->src[0], *factors = rope->src[2];
    const struct sheaf_tensor *set =
        first + 1 < n && caches(next[first + 1], rope) ? next[first + 1] : NULL;
    if (!normed && !set) return 0;
    if (!sheaf__cuda_plain_rows(rope, a) || !sheaf__cuda_plain_rows(a, a) || rope->ne[3] != 1 ||
        rope->ne[2] > 0x7fffffff || rope->ne[1] > 65535 * HEADS)
        return 0;
    if (normed && !sheaf__cuda_plain_rows(next[0], a)) return 0;
    const struct sheaf_tensor *in[] = {a, rope->src[1], factors, normed ? next[1]->src[1] : NULL,
                                       set ? set->src[2] : NULL};
    const struct sheaf_tensor *out[] = {normed ? next[0] : NULL, normed ? next[1] : NULL, rope,
                                        set};
    for (int j = 0; j < 4; j++) {
        for (int i = 0; i < 5 && out[j]; i++)
            if (in[i] && !sheaf__cuda_apart(out[j], in[i])) return 0;
        for (int i = 0; i < j && out[j]; i++)
            if (out[i] && !sheaf__cuda_apart(out[j], out[i])) return 0;
    }
    Turn t;
    memset(&t, 0, sizeof t);
    t.rope = rope_of(rope);
    if (t.rope.shape.n_pairs * (int64_t)sizeof(float2) > 32 * 1024) return 0;
    t.a = sheaf__cuda_view(a);
    if (normed) {
        t.norm = sheaf__cuda_view(next[0]);
        t.mul = sheaf__cuda_view(next[1]);
        t.w = (const float *)next[1]->src[1]->data;
        t.eps = sheaf__param_f32(next[0], 0);
        t.norm_threads = sheaf__cuda_row_threads(a->ne[0]);
    }
    t.dst = sheaf__cuda_view(rope);
    t.pos = sheaf__cuda_view(rope->src[1]);
    if (factors) t.factors = sheaf__cuda_view(factors);
    if (set) {
        t.cache = sheaf__cuda_view(set);
        t.ids = sheaf__cuda_view(set->src[2]);
        t.node = (uint64_t)(uintptr_t)set;
        t.fault = q->fault;
    }
    const dim3 grid((unsigned)rope->ne[2], (unsigned)((rope->ne[1] + HEADS - 1) / HEADS));
    CUDA_LAUNCH_AHEAD(q->ahead, turn_kernel, grid, THREADS,
                      (size_t)t.rope.shape.n_pairs * sizeof(float2), q->stream, t);
    *st = sheaf__cuda_launched(q, rope);
    return first + 1 + (set ? 1 : 0);
}

SHEAF__CUDA_OP(ROPE) = {launch_rope, NULL};
SHEAF__CUDA_OP(ROPE_BACK) = {launch_rope, NULL};
