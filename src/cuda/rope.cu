/* ROPE: pairs of a row turned by an angle that grows with the position.
 *
 * As on the CPU the angle is kept in double until it is reduced. A thread turns the same pair of
 * HEADS heads, so that sine and cosine are taken once for all of them. dst may be a's memory: a
 * thread reads a pair before it writes it. YaRN: Peng et al., arXiv 2309.00071. */
#include "cuda/cuda.h"

enum { THREADS = 128, HEADS = 4 };

struct Rope {
    int64_t n_pairs;
    int neox;
    double log2_step; /* power of pair i: 2^(i * log2_step) */
    double freq_scale, ext_factor, low, high;
    float magnitude;
};

/* Angle of pair i per position. */
HD double frequency(const Rope &r, int64_t i, float factor) {
    const double extrapolated = exp2((double)i * r.log2_step) / (double)factor;
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

/* dst, a [d, h, n, s], pos I32 [n], factors F32 [n_dims/2] or data NULL. grid: x pairs and what is
 * not turned, y groups of heads, z positions and sequences */
static __global__ void rope_kernel(View dst, View a, View pos, View factors, Rope r) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t rest = dst.ne[0] - 2 * r.n_pairs;
    if (i >= r.n_pairs + rest) return;
    const bool turn = i < r.n_pairs;
    /* the two elements of the pair, or the one that is copied */
    const int64_t e0 = !turn ? i + r.n_pairs : r.neox ? i : 2 * i;
    const int64_t e1 = !turn ? e0 : r.neox ? i + r.n_pairs : 2 * i + 1;
    float factor = 1.0f;
    if (turn && factors.data)
        factor = *(const float *)(void *)(factors.data + (size_t)i * factors.nb[0]);
    const double freq = turn ? frequency(r, i, factor) : 0.0;
    for (int64_t z = blockIdx.z; z < dst.ne[2] * dst.ne[3]; z += gridDim.z) {
        const int64_t i2 = z % dst.ne[2], i3 = z / dst.ne[2];
        float s = 0.0f, c = 0.0f;
        if (turn) {
            const int p = *(const int *)(void *)(pos.data + (size_t)i2 * pos.nb[0]);
            sine_cosine((double)p * freq, &s, &c);
            s *= r.magnitude;
            c *= r.magnitude;
        }
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
    r.n_pairs = n_dims / 2;
    r.neox = dst->op_params[1] == SHEAF_ROPE_TYPE_NEOX;
    r.log2_step = -log2(base) / (double)r.n_pairs;
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

enum sheaf_status sheaf__cuda_launch_rope(struct sheaf__cuda_queue *q,
                                          const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *factors = dst->src[2];
    const Rope r = rope_of(dst);
    View f = sheaf__cuda_view(factors ? factors : a);
    if (!factors) f.data = NULL;
    const dim3 grid(sheaf__cuda_blocks(dst->ne[0] - r.n_pairs, THREADS),
                    sheaf__cuda_blocks_y((dst->ne[1] + HEADS - 1) / HEADS),
                    sheaf__cuda_blocks_y(dst->ne[2] * dst->ne[3]));
    CUDA_LAUNCH_PLAIN(rope_kernel, grid, THREADS, 0, q->stream, sheaf__cuda_view(dst),
                      sheaf__cuda_view(a), sheaf__cuda_view(dst->src[1]), f, r);
    return sheaf__cuda_launched(q, dst);
}

