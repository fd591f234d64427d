/* CUMSUM, TRI, DIAG, DIAG_MASK_INF and _ZERO, SOLVE_TRI, SET, ACC, ARANGE: all F32. Where dst has
 * the shape of operand 0 it may be its memory: an element is read before it is written. */
#include <math.h>

#include "cpu/ops/ops.h"

static float *row_of(struct sheaf_tensor *dst, struct sheaf__cpu_row at) {
    return (float *)(void *)sheaf__cpu_row_data(dst, at);
}
/* A row of a as dense floats: itself, or in buf. */
static const float *load_row(const struct sheaf_tensor *a, struct sheaf__cpu_row at, float *buf) {
    return sheaf__cpu_load(a->type, sheaf__cpu_row_data(a, at), a->nb[0], a->ne[0], buf);
}

/* dst, a [i, j, h, s] */
static enum sheaf_status op_cumsum(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        const struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        float *d = row_of(dst, at);
        const float *x = load_row(dst->src[0], at, d);
        double sum = 0.0;
        for (int64_t i = 0; i < dst->ne[0]; i++) {
            sum += (double)x[i];
            d[i] = (float)sum;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Elements [*first, *last) of row j stay, the others become the value that is returned. */
static float kept(const struct sheaf_tensor *dst, int64_t j, int64_t *first, int64_t *last) {
    const int32_t p = dst->op_params[0];
    *first = 0;
    *last = dst->ne[0];
    if (dst->op != SHEAF_OP_TRI) {
        if (p + j + 1 < *last) *last = p + j + 1;
        return dst->op == SHEAF_OP_DIAG_MASK_INF ? -INFINITY : 0.0f;
    }
    if (p == (int32_t)SHEAF_TRI_TYPE_LOWER) *last = j;
    if (p == (int32_t)SHEAF_TRI_TYPE_LOWER_DIAG) *last = j + 1;
    if (p == (int32_t)SHEAF_TRI_TYPE_UPPER) *first = j + 1;
    if (p == (int32_t)SHEAF_TRI_TYPE_UPPER_DIAG) *first = j;
    return 0.0f;
}

/* dst, a [i, j, h, s] */
static enum sheaf_status op_triangle(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        const struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        float *d = row_of(dst, at);
        const float *x = load_row(dst->src[0], at, d);
        int64_t from, to;
        const float value = kept(dst, at.i1, &from, &to);
        for (int64_t i = 0; i < dst->ne[0]; i++) d[i] = i >= from && i < to ? x[i] : value;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* a [n, 1, h, s] -> dst [n, n, h, s] */
static enum sheaf_status op_diag(struct sheaf_tensor *dst, int ith, int nth,
                                 struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        const struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        const struct sheaf__cpu_row from = {0, at.i2, at.i3};
        float *d = row_of(dst, at);
        memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
        memcpy(&d[at.i1], sheaf__cpu_row_data(a, from) + (size_t)at.i1 * a->nb[0], sizeof *d);
    }
    return SHEAF_STATUS_SUCCESS;
}

enum { COLUMNS = 64 };

/* Columns [at, at + m) of one system: a [n, n], b, dst [m, n] */
static void solve(struct sheaf_tensor *dst, struct sheaf__cpu_row system, int64_t at, int64_t m) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    double sum[COLUMNS];
    float buf[COLUMNS];
    for (int64_t r = 0; r < a->ne[0]; r++) {
        struct sheaf__cpu_row row = {r, system.i2, system.i3};
        const char *ar = sheaf__cpu_row_data(a, row);
        const char *bp = sheaf__cpu_row_data(b, row) + (size_t)at * b->nb[0];
        const float *x = sheaf__cpu_load(b->type, bp, b->nb[0], m, buf);
        float *d = row_of(dst, row) + at, factor;
        for (int64_t i = 0; i < m; i++) sum[i] = (double)x[i];
        for (int64_t t = 0; t < r; t++) {
            row.i1 = t;
            const float *solved = row_of(dst, row) + at;
            memcpy(&factor, ar + (size_t)t * a->nb[0], sizeof factor);
            for (int64_t i = 0; i < m; i++) sum[i] -= (double)factor * (double)solved[i];
        }
        memcpy(&factor, ar + (size_t)r * a->nb[0], sizeof factor);
        for (int64_t i = 0; i < m; i++) d[i] = (float)(sum[i] / (double)factor);
    }
}

/* a [n, n, h, s], lower triangles; b, dst [m, n, h, s] */
static enum sheaf_status op_solve_tri(struct sheaf_tensor *dst, int ith, int nth,
                                      struct sheaf__cpu_sync *sync, void *work) {
    const int64_t pieces = (dst->ne[0] + COLUMNS - 1) / COLUMNS;
    int64_t first, last;
    sheaf__cpu_share(pieces * dst->ne[2] * dst->ne[3], ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t item = first; item < last; item++) {
        const struct sheaf__cpu_row system = {0, item / pieces % dst->ne[2],
                                              item / pieces / dst->ne[2]};
        const int64_t at = item % pieces * COLUMNS, left = dst->ne[0] - at;
        solve(dst, system, at, left < COLUMNS ? left : COLUMNS);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Row `at` of dst lies in the window, whose row is *from. */
static bool in_window(const struct sheaf_tensor *dst, struct sheaf__cpu_row at,
                      struct sheaf__cpu_row *from) {
    const struct sheaf_tensor *b = dst->src[1];
    const int32_t *start = dst->op_params;
    *from = (struct sheaf__cpu_row){at.i1 - start[1], at.i2 - start[2], at.i3 - start[3]};
    return from->i1 >= 0 && from->i1 < b->ne[1] && from->i2 >= 0 && from->i2 < b->ne[2] &&
           from->i3 >= 0 && from->i3 < b->ne[3];
}

/* dst, a [..], b a window of it from the parameters on */
static enum sheaf_status op_window(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *b = dst->src[1];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        const struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        struct sheaf__cpu_row from;
        float *d = row_of(dst, at);
        sheaf__cpu_store(SHEAF_TYPE_F32, load_row(dst->src[0], at, d), d, sizeof *d, dst->ne[0]);
        if (!in_window(dst, at, &from)) continue;
        const char *x = sheaf__cpu_row_data(b, from);
        d += dst->op_params[0];
        for (int64_t i = 0; i < b->ne[0]; i++) {
            float v;
            memcpy(&v, x + (size_t)i * b->nb[0], sizeof v);
            d[i] = dst->op == SHEAF_OP_ACC ? d[i] + v : v;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status op_arange(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const float start = sheaf__param_f32(dst, 0), step = sheaf__param_f32(dst, 2);
    float *d = dst->data;
    int64_t first, last;
    sheaf__cpu_share(dst->ne[0], ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t i = first; i < last; i++) d[i] = start + step * (float)i;
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(CUMSUM) = {.fn = op_cumsum};
SHEAF__CPU_OP(TRI) = {.fn = op_triangle};
SHEAF__CPU_OP(DIAG) = {.fn = op_diag};
SHEAF__CPU_OP(DIAG_MASK_INF) = {.fn = op_triangle};
SHEAF__CPU_OP(DIAG_MASK_ZERO) = {.fn = op_triangle};
SHEAF__CPU_OP(SOLVE_TRI) = {.fn = op_solve_tri, .heavy = true};
SHEAF__CPU_OP(SET) = {.fn = op_window};
SHEAF__CPU_OP(ACC) = {.fn = op_window};
SHEAF__CPU_OP(ARANGE) = {.fn = op_arange};
