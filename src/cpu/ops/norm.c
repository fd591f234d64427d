/* Norms of rows and of groups of channels, and sums of rows: reductions in double in fixed lanes,
 * so neither the number of threads nor the vector width shows in the result. dst of a norm may be
 * a's memory. */
#include <math.h>

#include "cpu/kernels/kernels.h"
#include "cpu/ops/ops.h"

/* ---- norms ---- */

void sheaf__cpu_rms_norm_row(int64_t n, const float *x, float eps, float *y) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const double mean = kern->sum_sq(n, x) / (double)n;
    kern->scale_f32(n, (float)(1.0 / sqrt(mean + (double)eps)), x, y);
}

static void center(int64_t n, const float *x, float mean, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;
}

static void norm_row(int64_t n, const float *x, float eps, float *y) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    center(n, x, (float)(kern->sum(n, x) / (double)n), y);
    sheaf__cpu_rms_norm_row(n, y, eps, y);
}

static void l2_norm_row(int64_t n, const float *x, float eps, float *y) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const double length = sqrt(kern->sum_sq(n, x));
    kern->scale_f32(n, (float)(1.0 / fmax(length, (double)eps)), x, y);
}

/* dst, a [i, j, h, s]; dst F32 */
static enum sheaf_status op_norm(struct sheaf_tensor *dst, int ith, int nth,
                                 struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    const float eps = sheaf__param_f32(dst, 0);
    const int64_t n = dst->ne[0];
    void (*const fn)(int64_t, const float *, float, float *) = dst->op == SHEAF_OP_NORM ? norm_row
                                                               : dst->op == SHEAF_OP_L2_NORM
                                                                   ? l2_norm_row
                                                                   : sheaf__cpu_rms_norm_row;
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        float *d = (float *)(void *)sheaf__cpu_row_data(dst, at);
        const float *x = sheaf__cpu_load(a->type, sheaf__cpu_row_data(a, at), a->nb[0], n, d);
        fn(n, x, eps, d);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Rows [0, n_rows) of a group of dst from channel `at.i2` on. */
static void group_norm(struct sheaf_tensor *dst, struct sheaf__cpu_row at, int64_t n_rows,
                       float eps) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t n = dst->ne[0], channel = at.i2;
    const double count = (double)n * (double)n_rows;
    double sum = 0.0, squares = 0.0;
    for (int pass = 0; pass < 3; pass++) {
        const float mean = (float)(sum / count);
        const float scale = (float)(1.0 / sqrt(squares / count + (double)eps));
        for (int64_t row = 0; row < n_rows; row++) {
            at.i1 = row % dst->ne[1];
            at.i2 = channel + row / dst->ne[1];
            float *d = (float *)(void *)sheaf__cpu_row_data(dst, at);
            if (pass == 2) {
                kern->scale_f32(n, scale, d, d);
                continue;
            }
            const float *x = sheaf__cpu_load(a->type, sheaf__cpu_row_data(a, at), a->nb[0], n, d);
            if (pass == 0) {
                sum += kern->sum(n, x);
            } else {
                center(n, x, mean, d);
                squares += kern->sum_sq(n, d);
            }
        }
    }
}

/* dst, a [w, h, c, s]; dst F32 */
static enum sheaf_status op_group_norm(struct sheaf_tensor *dst, int ith, int nth,
                                       struct sheaf__cpu_sync *sync, void *work) {
    const int64_t each = dst->op_params[2], channels = dst->ne[2];
    const int64_t groups = (channels + each - 1) / each;
    int64_t first, last;
    sheaf__cpu_share(groups * dst->ne[3], ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t item = first; item < last; item++) {
        const int64_t channel = item % groups * each;
        const int64_t left = channels - channel;
        const struct sheaf__cpu_row at = {0, channel, item / groups};
        group_norm(dst, at, (left < each ? left : each) * dst->ne[1], sheaf__param_f32(dst, 1));
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- sums ---- */

static double sum_of_row(const struct sheaf_tensor *a, struct sheaf__cpu_row at) {
    enum { CHUNK = 512 }; /* a multiple of the lanes: chunks do not change the order of a lane */
    const char *ap = sheaf__cpu_row_data(a, at);
    float buf[CHUNK];
    double sum = 0.0;
    for (int64_t i0 = 0; i0 < a->ne[0]; i0 += CHUNK) {
        int64_t n = a->ne[0] - i0 < CHUNK ? a->ne[0] - i0 : CHUNK;
        const char *p = ap + (size_t)i0 * a->nb[0];
        sum += sheaf__cpu_kernels()->sum(n, sheaf__cpu_load(a->type, p, a->nb[0], n, buf));
    }
    return sum;
}

/* a [i, j, h, s] -> dst F32 [1, j, h, s]. MEAN of a slice: a holds part of EXTENT elements. */
static enum sheaf_status op_sum_rows(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const double count = dst->op != SHEAF_OP_MEAN ? 1.0 : (double)(extent ? extent : a->ne[0]);
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        float f = (float)(sum_of_row(a, at) / count);
        memcpy(sheaf__cpu_row_data(dst, at), &f, sizeof f);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* a [i, j, h, s] -> dst F32 [1]: one member adds the rows, so that their order is one. */
static enum sheaf_status op_sum(struct sheaf_tensor *dst, int ith, int nth,
                                struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t rows = sheaf_nrows(a);
    double sum = 0.0;
    (void)nth;
    (void)sync;
    (void)work;
    if (ith != 0) return SHEAF_STATUS_SUCCESS;
    for (int64_t row = 0; row < rows; row++) sum += sum_of_row(a, sheaf__cpu_row_at(a->ne, row));
    const float f = (float)sum;
    memcpy(dst->data, &f, sizeof f);
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(RMS_NORM) = {.fn = op_norm};
SHEAF__CPU_OP(NORM) = {.fn = op_norm};
SHEAF__CPU_OP(L2_NORM) = {.fn = op_norm};
SHEAF__CPU_OP(GROUP_NORM) = {.fn = op_group_norm};
SHEAF__CPU_OP(SUM_ROWS) = {.fn = op_sum_rows, .measure = 1};
SHEAF__CPU_OP(MEAN) = {.fn = op_sum_rows, .measure = 1};
SHEAF__CPU_OP(SUM) = {.fn = op_sum, .measure = 1};
