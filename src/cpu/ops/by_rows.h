/* Ops that make each element of a row from a few elements of their operands, which may lie in any
 * way: portable forms, for what is not on the path of a token. A member writes whole rows of dst,
 * F32, or of another plain type by way of a row of its own. */
#ifndef SHEAF_CPU_OPS_BY_ROWS_H
#define SHEAF_CPU_OPS_BY_ROWS_H

#include "cpu/ops/ops.h"

/* An element of a plain type. */
static inline float element(const struct sheaf_tensor *t, int64_t i0, int64_t i1, int64_t i2,
                            int64_t i3) {
    const struct sheaf__cpu_row row = {i1, i2, i3};
    float one;
    const char *p = sheaf__cpu_row_data(t, row) + (size_t)i0 * t->nb[0];
    return *sheaf__cpu_load(t->type, p, t->nb[0], 1, &one);
}

/* Where element k of a window over n dimensions lies at place o, along one of them; and whether
 * that is inside of the image. */
static inline int64_t in_image(const struct sheaf_tensor *dst, int n, int axis, int64_t o,
                               int64_t k) {
    const int32_t *p = dst->op_params;
    return o * p[n + axis] + k * p[3 * n + axis] - p[2 * n + axis];
}
static inline bool inside(const struct sheaf_tensor *t, int axis, int64_t i) {
    return i >= 0 && i < t->ne[axis];
}

/* Adds element v of a window's line to a row of places: `weight` times what lies under it in row
 * `from` of the image, operand 1. */
static inline void add_line(const struct sheaf_tensor *dst, int n, float weight, int64_t v,
                            struct sheaf__cpu_row from, float *d) {
    const struct sheaf_tensor *b = dst->src[1];
    const int64_t step = dst->op_params[n], at = in_image(dst, n, 0, 0, v);
    const int64_t first = at < 0 ? (step - 1 - at) / step : 0;
    int64_t last = at < b->ne[0] ? (b->ne[0] - 1 - at) / step + 1 : 0;
    if (last > dst->ne[0]) last = dst->ne[0];
    if (b->type != SHEAF_TYPE_F32 || b->nb[0] != sizeof(float)) {
        for (int64_t i = first; i < last; i++)
            d[i] += weight * element(b, at + i * step, from.i1, from.i2, from.i3);
        return;
    }
    const float *x = (const float *)(const void *)sheaf__cpu_row_data(b, from);
    if (step == 1) {
        for (int64_t i = first; i < last; i++) d[i] += weight * x[at + i];
    } else {
        for (int64_t i = first; i < last; i++) d[i] += weight * x[at + i * step];
    }
}

typedef void (*row_fn)(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d);

/* Work memory of rows(). */
static inline size_t rows_work(const struct sheaf_tensor *dst, int nth) {
    return dst->type == SHEAF_TYPE_F32 ? 0 : (size_t)nth * (size_t)dst->ne[0] * sizeof(float);
}

static inline enum sheaf_status rows(struct sheaf_tensor *dst, int ith, int nth, void *work,
                                     row_fn fn) {
    const bool plain = dst->type == SHEAF_TYPE_F32;
    float *own = plain ? NULL : (float *)work + (size_t)ith * (size_t)dst->ne[0];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    for (int64_t row = first; row < last && dst->ne[0] > 0; row++) {
        const struct sheaf__cpu_row to = sheaf__cpu_row_at(dst->ne, row);
        char *d = sheaf__cpu_row_data(dst, to);
        fn(dst, to, plain ? (float *)(void *)d : own);
        if (!plain) sheaf__cpu_store(dst->type, own, d, dst->nb[0], dst->ne[0]);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* op_NAME: rows made by fn */
#define BY_ROWS(name, fn)                                                                          \
    static enum sheaf_status op_##name(struct sheaf_tensor *dst, int ith, int nth,                 \
                                       struct sheaf__cpu_sync *sync, void *work) {                 \
        (void)sync;                                                                                \
        return rows(dst, ith, nth, work, fn);                                                      \
    }

#endif
