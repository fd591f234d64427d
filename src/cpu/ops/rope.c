/* ROPE: pairs of a row turned by an angle that grows with the position.
 *
 * Angles are kept in double until they are reduced: position times frequency in F32 loses a
 * thousandth of a turn at a position of 100,000. The sines of a position are computed once for all
 * of its heads. dst may be a's memory. YaRN: Peng et al., arXiv 2309.00071. */
#include <math.h>

#include "base/arith.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"
#include "cpu/ops/ops.h"

struct rope {
    int64_t n_pairs;
    bool neox;
    double freq_scale, ext_factor, low, high;
    float magnitude;
};

/* The dimension whose wave turns n_rot times over n_ctx_orig positions. */
static double correction_dim(int n_dims, int n_ctx_orig, double n_rot, double base) {
    const double two_pi = 6.28318530717958647693;
    return n_dims * log(n_ctx_orig / (n_rot * two_pi)) / (2.0 * log(base));
}

static struct rope rope_of(const struct sheaf_tensor *dst) {
    const int n_dims = dst->op_params[0], n_ctx_orig = dst->op_params[2];
    const double base = (double)sheaf__param_f32(dst, 3);
    struct rope r = {0};
    r.n_pairs = n_dims / 2;
    r.neox = dst->op_params[1] == SHEAF_ROPE_TYPE_NEOX;
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

/* freq[i] = angle of pair i per position */
static void frequencies(const struct sheaf_tensor *dst, const struct rope *r, double *freq) {
    const struct sheaf_tensor *factors = dst->src[2];
    const double step = pow((double)sheaf__param_f32(dst, 3), -1.0 / (double)r->n_pairs);
    double power = 1.0;
    for (int64_t i = 0; i < r->n_pairs; i++) {
        float factor = 1.0f;
        if (factors) {
            memcpy(&factor, (const char *)factors->data + (size_t)i * factors->nb[0],
                   sizeof factor);
        }
        double extrapolated = power / (double)factor;
        double interpolated = r->freq_scale * extrapolated;
        freq[i] = interpolated;
        if (r->ext_factor != 0.0) {
            double ramp = ((double)i - r->low) / fmax(0.001, r->high - r->low);
            double mix = (1.0 - fmin(1.0, fmax(0.0, ramp))) * r->ext_factor;
            freq[i] = interpolated * (1.0 - mix) + extrapolated * mix;
        }
        power *= step;
    }
}

struct scratch {
    double *freq;     /* [pairs] */
    float *sin, *cos; /* [pairs] */
    float *row;       /* [d], where a row is not dense F32 */
};

static size_t scratch_size(const struct sheaf_tensor *dst) {
    size_t pairs = (size_t)dst->op_params[0] / 2;
    size_t bytes =
        pairs * (sizeof(double) + 2 * sizeof(float)) + (size_t)dst->ne[0] * sizeof(float);
    return sheaf__align_up(bytes, 64);
}

static size_t rope_work(const struct sheaf_tensor *dst, int nth) {
    return scratch_size(dst) * (size_t)nth;
}

/* dst, a [d, h, n, s], pos I32 [n], factors F32 [n_dims/2] or NULL */
static enum sheaf_status op_rope(struct sheaf_tensor *dst, int ith, int nth,
                                 struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *pos = dst->src[1];
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const struct rope r = rope_of(dst);
    const int64_t d = dst->ne[0], pairs = r.n_pairs;
    const bool dense = dst->type == SHEAF_TYPE_F32 && sheaf__cpu_is_dense(dst);
    struct scratch w;
    int64_t first, last, done = -1;
    (void)sync;
    w.freq = (double *)(void *)((char *)work + scratch_size(dst) * (size_t)ith);
    w.sin = (float *)(w.freq + pairs);
    w.cos = w.sin + pairs;
    w.row = w.cos + pairs;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    if (first >= last) return SHEAF_STATUS_SUCCESS;
    frequencies(dst, &r, w.freq);
    for (int64_t row = first; row < last; row++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        if (at.i2 != done) {
            int32_t p;
            memcpy(&p, (const char *)pos->data + (size_t)at.i2 * pos->nb[0], sizeof p);
            for (int64_t i = 0; i < pairs; i++) {
                float s, c;
                sheaf__sincosf((double)p * w.freq[i], &s, &c);
                w.sin[i] = s * r.magnitude;
                w.cos[i] = c * r.magnitude;
            }
            done = at.i2;
        }
        char *dp = sheaf__cpu_row_data(dst, at);
        float *y = dense ? (float *)(void *)dp : w.row;
        const float *x = sheaf__cpu_load(a->type, sheaf__cpu_row_data(a, at), a->nb[0], d, w.row);
        kern->rotate(pairs, !r.neox, x, w.cos, w.sin, y);
        if (y != x) {
            memcpy(y + 2 * pairs, x + 2 * pairs, (size_t)(d - 2 * pairs) * sizeof *y);
        }
        sheaf__cpu_store(dst->type, y, dp, dst->nb[0], d);
    }
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(ROPE) = {.fn = op_rope, .work_size = rope_work};
