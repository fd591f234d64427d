/* ROPE and ROPE_BACK: pairs of a row turned by an angle that grows with the position, or back.
 *
 * Angles are kept in double until they are reduced: position times frequency in F32 loses a
 * thousandth of a turn at a position of 100,000. The sines of a position are computed once for all
 * of its heads. dst may be a's memory. YaRN: Peng et al., arXiv 2309.00071. */
#include <math.h>

#include "base/arith.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"
#include "cpu/ops/ops.h"
#include "tensor/rope.h"

struct rope {
    struct sheaf__rope_shape shape;
    double freq_scale, ext_factor, low, high;
    float magnitude;
    bool back; /* by the negative angle */
};

/* The dimension whose wave turns n_rot times over n_ctx_orig positions. */
static double correction_dim(int n_dims, int n_ctx_orig, double n_rot, double base) {
    const double two_pi = 6.28318530717958647693;
    return n_dims * log(n_ctx_orig / (n_rot * two_pi)) / (2.0 * log(base));
}

static struct rope rope_of(const struct sheaf_tensor *dst) {
    const int n_dims = dst->op_params[0], n_ctx_orig = dst->op_params[2];
    const double base = (double)sheaf__param_f32(dst, 3);
    struct rope r = {.shape = sheaf__rope_shape(dst), .back = dst->op == SHEAF_OP_ROPE_BACK};
    r.freq_scale = (double)sheaf__param_f32(dst, 4);
    r.ext_factor = (double)sheaf__param_f32(dst, 5);
    double magnitude = (double)sheaf__param_f32(dst, 6);
    if (r.ext_factor != 0.0) {
        double low =
            floor(correction_dim(n_dims, n_ctx_orig, (double)sheaf__param_f32(dst, 7), base));
        double high =
            ceil(correction_dim(n_dims, n_ctx_orig, (double)sheaf__param_f32(dst, 8), base));
        r.low = fmax(0.0, low);
        r.high = fmin(n_dims - 1.0, high);
        magnitude *= 1.0 + 0.1 * log(1.0 / r.freq_scale);
    }
    r.magnitude = (float)magnitude;
    return r;
}

struct scratch {
    double *freq;      /* [pairs]: angle per position */
    float *sin, *cos;  /* [pairs] */
    int32_t *position; /* [pairs]: which of the token's it is turned by */
    float *row;        /* [d], where a row is not dense F32 */
};

static void frequencies(const struct sheaf_tensor *dst, const struct rope *r,
                        const struct scratch *w) {
    const struct sheaf_tensor *factors = dst->src[2];
    const double step = pow((double)sheaf__param_f32(dst, 3), -1.0 / (double)r->shape.half);
    double power = 1.0;
    for (int64_t i = 0; i < r->shape.n_pairs; i++) {
        int64_t exponent;
        float factor = 1.0f;
        w->position[i] = sheaf__rope_position(&r->shape, i, &exponent);
        if (exponent == 0) power = 1.0;
        if (factors) {
            memcpy(&factor, (const char *)factors->data + (size_t)i * factors->nb[0],
                   sizeof factor);
        }
        double extrapolated = power / (double)factor;
        double interpolated = r->freq_scale * extrapolated;
        w->freq[i] = interpolated;
        if (r->ext_factor != 0.0) {
            double ramp = ((double)i - r->low) / fmax(0.001, r->high - r->low);
            double mix = (1.0 - fmin(1.0, fmax(0.0, ramp))) * r->ext_factor;
            w->freq[i] = interpolated * (1.0 - mix) + extrapolated * mix;
        }
        power *= step;
    }
}

static size_t scratch_size(const struct sheaf_tensor *dst) {
    size_t pairs = (size_t)sheaf__rope_shape(dst).n_pairs;
    size_t bytes = pairs * (sizeof(double) + 2 * sizeof(float) + sizeof(int32_t)) +
                   (size_t)dst->ne[0] * sizeof(float);
    return sheaf__align_up(bytes, 64);
}

static size_t rope_work(const struct sheaf_tensor *dst, int nth) {
    return scratch_size(dst) * (size_t)nth;
}

/* Sines and cosines of token i2 of n. */
static void angles(const struct rope *r, const struct sheaf_tensor *pos, int64_t i2, int64_t n,
                   const struct scratch *w) {
    for (int64_t i = 0; i < r->shape.n_pairs; i++) {
        const int64_t at = i2 + w->position[i] * n;
        int32_t p;
        float s, c;
        memcpy(&p, (const char *)pos->data + (size_t)at * pos->nb[0], sizeof p);
        sheaf__sincosf((double)p * w->freq[i], &s, &c);
        w->sin[i] = (r->back ? -s : s) * r->magnitude;
        w->cos[i] = c * r->magnitude;
    }
}

/* dst, a [d, h, n, s], pos I32 [n] or [4 n], factors F32 [pairs] or NULL */
static enum sheaf_status op_rope(struct sheaf_tensor *dst, int ith, int nth,
                                 struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *pos = dst->src[1];
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const struct rope r = rope_of(dst);
    const int64_t d = dst->ne[0], pairs = r.shape.n_pairs, from = r.shape.offset;
    const int64_t to = from + 2 * pairs;
    const bool dense = dst->type == SHEAF_TYPE_F32 && sheaf__cpu_is_dense(dst);
    struct scratch w;
    int64_t first, last, done = -1;
    (void)sync;
    w.freq = (double *)(void *)((char *)work + scratch_size(dst) * (size_t)ith);
    w.sin = (float *)(w.freq + pairs);
    w.cos = w.sin + pairs;
    w.position = (int32_t *)(void *)(w.cos + pairs);
    w.row = (float *)(void *)(w.position + pairs);
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    if (first >= last) return SHEAF_STATUS_SUCCESS;
    frequencies(dst, &r, &w);
    for (int64_t row = first; row < last; row++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        if (at.i2 != done) angles(&r, pos, at.i2, dst->ne[2], &w);
        done = at.i2;
        char *dp = sheaf__cpu_row_data(dst, at);
        float *y = dense ? (float *)(void *)dp : w.row;
        const float *x = sheaf__cpu_load(a->type, sheaf__cpu_row_data(a, at), a->nb[0], d, w.row);
        kern->rotate(pairs, r.shape.side_by_side, x + from, w.cos, w.sin, y + from);
        if (y != x) {
            memcpy(y, x, (size_t)from * sizeof *y);
            memcpy(y + to, x + to, (size_t)(d - to) * sizeof *y);
        }
        sheaf__cpu_store(dst->type, y, dp, dst->nb[0], d);
    }
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(ROPE) = {.fn = op_rope, .work_size = rope_work};
SHEAF__CPU_OP(ROPE_BACK) = {.fn = op_rope, .work_size = rope_work};
