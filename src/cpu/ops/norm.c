/* RMS_NORM and SUM_ROWS: reductions over a row. Sums run in double in fixed lanes, so neither the
 * number of threads nor the vector width shows in the result. dst of RMS_NORM may be a's memory. */
#include <math.h>

#include "cpu/kernels/kernels.h"
#include "cpu/ops/ops.h"

void sheaf__cpu_rms_norm_row(int64_t n, const float *x, float eps, float *y) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const double mean = kern->sum_sq(n, x) / (double)n;
    kern->scale_f32(n, (float)(1.0 / sqrt(mean + (double)eps)), x, y);
}

/* dst, a [i, j, h, s]; dst F32 */
static enum sheaf_status op_rms_norm(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    const float eps = sheaf__param_f32(dst, 0);
    const int64_t n = dst->ne[0];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        float *d = (float *)(void *)sheaf__cpu_row_data(dst, at);
        const float *x = sheaf__cpu_load(a->type, sheaf__cpu_row_data(a, at), a->nb[0], n, d);
        sheaf__cpu_rms_norm_row(n, x, eps, d);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* a [i, j, h, s] -> dst F32 [1, j, h, s] */
static enum sheaf_status op_sum_rows(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    enum { CHUNK = 512 }; /* a multiple of the lanes: chunks do not change the order of a lane */
    const struct sheaf_tensor *a = dst->src[0];
    float buf[CHUNK];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        const char *ap = sheaf__cpu_row_data(a, at);
        double sum = 0.0;
        for (int64_t i0 = 0; i0 < a->ne[0]; i0 += CHUNK) {
            int64_t n = a->ne[0] - i0 < CHUNK ? a->ne[0] - i0 : CHUNK;
            const char *p = ap + (size_t)i0 * a->nb[0];
            sum += sheaf__cpu_kernels()->sum(n, sheaf__cpu_load(a->type, p, a->nb[0], n, buf));
        }
        float f = (float)sum;
        memcpy(sheaf__cpu_row_data(dst, at), &f, sizeof f);
    }
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(RMS_NORM) = {.fn = op_rms_norm};
SHEAF__CPU_OP(SUM_ROWS) = {.fn = op_sum_rows, .measure = 1};
