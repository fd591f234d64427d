/* LIGHTNING_INDEXER and the hyper-connections DSV4_HC_COMB, _PRE, _POST: all results F32. */
#include <math.h>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"
#include "cpu/ops/ops.h"

/* Element i of a row of F32. */
static float at(const char *row, size_t nb0, int64_t i) {
    float f;
    memcpy(&f, row + (size_t)i * nb0, sizeof f);
    return f;
}

/* ---- the indexer ---- */

/* A member's row of k as floats, and the products of all heads with it. */
static size_t indexer_work(const struct sheaf_tensor *dst, int nth) {
    const int64_t *q = dst->src[0]->ne;
    return (size_t)nth * (size_t)(q[0] + q[1]) * sizeof(float);
}

/* One row of k and one token: sum over heads h of w[h] relu(q[h] . k), products in dot */
static float score(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst,
                   const float *k, int64_t token, int64_t s, float *dot) {
    const struct sheaf_tensor *q = dst->src[0], *w = dst->src[2];
    const struct sheaf__cpu_row heads = {0, token, s}, weights = {token, 0, s};
    const char *wp = sheaf__cpu_row_data(w, weights);
    kern->dots(q->ne[0], (const float *)(const void *)sheaf__cpu_row_data(q, heads),
               (int64_t)(q->nb[1] / sizeof(float)), q->ne[1], &k, 1, dot, q->ne[1]);
    double sum = 0.0;
    for (int64_t h = 0; h < q->ne[1]; h++)
        sum += (double)(dot[h] <= 0.0f ? 0.0f : dot[h]) * (double)at(wp, w->nb[0], h);
    return (float)sum;
}

/* q [d, h, n, s], k [d, 1, t, s], w [h, n, 1, s], mask [t, n, 1, 1|s] -> dst [t, n, 1, s] */
static enum sheaf_status op_indexer(struct sheaf_tensor *dst, int ith, int nth,
                                    struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const struct sheaf_tensor *q = dst->src[0], *k = dst->src[1], *mask = dst->src[3];
    float *own = (float *)work + (size_t)ith * (size_t)(q->ne[0] + q->ne[1]);
    int64_t first, last;
    sheaf__cpu_share(dst->ne[0] * dst->ne[3], ith, nth, &first, &last);
    (void)sync;
    for (int64_t item = first; item < last; item++) {
        const int64_t t = item % dst->ne[0], s = item / dst->ne[0];
        const struct sheaf__cpu_row from = {0, t, s};
        const float *row =
            sheaf__cpu_load(k->type, sheaf__cpu_row_data(k, from), k->nb[0], k->ne[0], own);
        for (int64_t n = 0; n < dst->ne[1]; n++) {
            const struct sheaf__cpu_row to = {n, 0, s}, allowed = {n, 0, s % mask->ne[3]};
            float one;
            const char *m = sheaf__cpu_row_data(mask, allowed) + (size_t)t * mask->nb[0];
            const float v = score(kern, dst, row, n, s, own + q->ne[0]) +
                            *sheaf__cpu_load(mask->type, m, mask->nb[0], 1, &one);
            memcpy(sheaf__cpu_row_data(dst, to) + (size_t)t * dst->nb[0], &v, sizeof v);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- hyper-connections ---- */

/* Each line of c elements, `step` apart, divided by its sum and eps. */
static void normalize(float *x, int64_t c, int64_t line, int64_t step, float eps) {
    for (int64_t l = 0; l < c; l++) {
        float sum = eps;
        for (int64_t i = 0; i < c; i++) sum += x[l * line + i * step];
        for (int64_t i = 0; i < c; i++) x[l * line + i * step] /= sum;
    }
}

/* exp of each row of c over its sum, and eps */
static void soften(float *x, int64_t c, float eps) {
    for (int64_t r = 0; r < c; r++, x += c) {
        float max = x[0], sum = 0.0f;
        for (int64_t i = 1; i < c; i++) max = x[i] > max ? x[i] : max;
        for (int64_t i = 0; i < c; i++) {
            x[i] = sheaf__expf(x[i] - max);
            sum += x[i];
        }
        for (int64_t i = 0; i < c; i++) x[i] = x[i] / sum + eps;
    }
}

/* mixes [(2 + c) c, n], scale [3], base [(2 + c) c] -> dst [c, c, n] */
static enum sheaf_status op_hc_comb(struct sheaf_tensor *dst, int ith, int nth,
                                    struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *mixes = dst->src[0], *scale = dst->src[1], *base = dst->src[2];
    const float eps = sheaf__param_f32(dst, 0), by = at(scale->data, scale->nb[0], 2);
    const int64_t c = dst->ne[0];
    float x[SHEAF_HC_MAX * SHEAF_HC_MAX];
    int64_t first, last;
    sheaf__cpu_share(dst->ne[2], ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t n = first; n < last; n++) {
        const char *mix = (const char *)mixes->data + (size_t)n * mixes->nb[1];
        for (int64_t i = 0; i < c * c; i++)
            x[i] = at(mix, mixes->nb[0], 2 * c + i) * by + at(base->data, base->nb[0], 2 * c + i);
        soften(x, c, eps);
        normalize(x, c, 1, c, eps);
        for (int32_t i = 1; i < dst->op_params[1]; i++) {
            normalize(x, c, c, 1, eps);
            normalize(x, c, 1, c, eps);
        }
        for (int64_t r = 0; r < c; r++) {
            const struct sheaf__cpu_row to = {r, n, 0};
            memcpy(sheaf__cpu_row_data(dst, to), x + r * c, (size_t)c * sizeof *x);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* x [e, c, n], weights [c, n], or a gate [e, c, n] -> dst [e, n] */
static enum sheaf_status op_hc_pre(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *x = dst->src[0], *w = dst->src[1];
    const float scale = sheaf__param_f32(dst, 0);
    const bool gated = dst->op_params[1] != 0;
    int64_t first, last;
    sheaf__cpu_share(dst->ne[1], ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t n = first; n < last; n++) {
        float *d = (float *)(void *)((char *)dst->data + (size_t)n * dst->nb[1]);
        memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
        for (int64_t c = 0; c < x->ne[1]; c++) {
            const struct sheaf__cpu_row stream = {c, n, 0};
            const char *xp = sheaf__cpu_row_data(x, stream);
            const char *wp = gated ? sheaf__cpu_row_data(w, stream)
                                   : (const char *)w->data + (size_t)n * w->nb[1];
            const float weight = gated ? 0.0f : at(wp, w->nb[0], c);
            for (int64_t i = 0; i < dst->ne[0]; i++)
                d[i] +=
                    at(xp, x->nb[0], i) * (gated ? sheaf__sigmoidf(at(wp, w->nb[0], i)) : weight);
        }
        for (int64_t i = 0; i < dst->ne[0]; i++) d[i] *= scale;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* x [e, n], residual [e, c, n], post [d, n], comb [d, c, n] or NULL -> dst [e, d, n] */
static enum sheaf_status op_hc_post(struct sheaf_tensor *dst, int ith, int nth,
                                    struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *x = dst->src[0], *res = dst->src[1], *post = dst->src[2],
                              *comb = dst->src[3];
    int64_t first, last;
    sheaf__cpu_share(dst->ne[1] * dst->ne[2], ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t item = first; item < last; item++) {
        const int64_t to_stream = item % dst->ne[1], n = item / dst->ne[1], e = dst->ne[0];
        const struct sheaf__cpu_row to = {to_stream, n, 0};
        const char *xp = (const char *)x->data + (size_t)n * x->nb[1];
        const float by =
            at((const char *)post->data + (size_t)n * post->nb[1], post->nb[0], to_stream);
        const int64_t first_from = comb ? 0 : to_stream;
        const int64_t last_from = comb ? res->ne[1] : to_stream + 1;
        float *d = (float *)(void *)sheaf__cpu_row_data(dst, to);
        for (int64_t i = 0; i < e; i++) d[i] = at(xp, x->nb[0], i) * by;
        for (int64_t from = first_from; from < last_from; from++) {
            const struct sheaf__cpu_row stream = {from, n, 0};
            const char *rp = sheaf__cpu_row_data(res, stream);
            const float weight =
                comb ? at(sheaf__cpu_row_data(comb, stream), comb->nb[0], to_stream) : 1.0f;
            for (int64_t i = 0; i < e; i++) d[i] += at(rp, res->nb[0], i) * weight;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(LIGHTNING_INDEXER) = {.fn = op_indexer, .work_size = indexer_work, .heavy = true};
SHEAF__CPU_OP(DSV4_HC_COMB) = {.fn = op_hc_comb};
SHEAF__CPU_OP(DSV4_HC_PRE) = {.fn = op_hc_pre};
SHEAF__CPU_OP(DSV4_HC_POST) = {.fn = op_hc_post};
