/* SOFT_MAX over rows. A row is scaled and masked into dst, then turned into probabilities there, so
 * dst may be a's memory. A row that is -inf everywhere yields zeros, not NaN. */
#include <math.h>

#include "cpu/kernels/kernels.h"
#include "cpu/ops/ops.h"

enum { CHUNK = 512 };

/* d += slope * mask row */
static void add_mask(const struct sheaf_tensor *mask, struct sheaf__cpu_row at, float slope,
                     float *d, int64_t k) {
    float buf[CHUNK];
    at.i2 %= mask->ne[2];
    at.i3 %= mask->ne[3];
    const char *row = sheaf__cpu_row_data(mask, at);
    for (int64_t i0 = 0; i0 < k; i0 += CHUNK) {
        int64_t n = k - i0 < CHUNK ? k - i0 : CHUNK;
        const char *p = row + (size_t)i0 * mask->nb[0];
        const float *m = sheaf__cpu_load(mask->type, p, mask->nb[0], n, buf);
        for (int64_t i = 0; i < n; i++) d[i0 + i] += slope * m[i];
    }
}

/* dst, a F32 [k, n, h, s], mask [k, >=n, h, s] repeated, sinks F32 [h] or NULL */
static void soft_max(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst, int ith,
                     int nth) {
    const struct sheaf_tensor *a = dst->src[0], *mask = dst->src[1], *sinks = dst->src[2];
    const float scale = sheaf__param_f32(dst, 0), max_bias = sheaf__param_f32(dst, 1);
    const int64_t base = dst->op_params[SHEAF_OP_PARAM_BASE];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const int64_t n_head = extent != 0 ? extent : dst->ne[2], k = dst->ne[0];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    for (int64_t row = first; row < last; row++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        float *d = (float *)(void *)sheaf__cpu_row_data(dst, at);
        const float *x = sheaf__cpu_load(a->type, sheaf__cpu_row_data(a, at), a->nb[0], k, d);
        kern->scale_f32(k, scale, x, d);
        if (mask) add_mask(mask, at, sheaf__cpu_alibi_slope(max_bias, base + at.i2, n_head), d, k);
        float sink = -INFINITY, max = kern->max_f32(k, d);
        if (sinks)
            memcpy(&sink, (const char *)sinks->data + (size_t)at.i2 * sinks->nb[0], sizeof sink);
        if (sink > max) max = sink;
        if (max == -INFINITY) max = 0.0f;
        kern->exp_f32(k, d, max, d);
        double sum =
            kern->sum(k, d); /* a row may be a vocabulary: the sum of exp_f32 is of floats */
        if (sinks) sum += (double)expf(sink - max);
        if (sum == 0.0) continue;
        kern->scale_f32(k, (float)(1.0 / sum), d, d);
    }
}

static enum sheaf_status op_soft_max(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    (void)work;
    soft_max(sheaf__cpu_kernels(), dst, ith, nth);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status op_soft_max_ref(struct sheaf_tensor *dst, int ith, int nth,
                                         struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    (void)work;
    soft_max(&sheaf__cpu_kernels_portable, dst, ith, nth);
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(SOFT_MAX) = {.fn = op_soft_max, .reference = op_soft_max_ref};
