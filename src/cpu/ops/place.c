/* Ops that only place elements: FILL, REPEAT, PAD. A member writes whole rows of dst. */
#include "cpu/ops/ops.h"

/* dst F32, F16 or BF16 */
static enum sheaf_status op_fill(struct sheaf_tensor *dst, int ith, int nth,
                                 struct sheaf__cpu_sync *sync, void *work) {
    const float value = sheaf__param_f32(dst, 0);
    const size_t size = sheaf_type_size(dst->type);
    char bits[sizeof value];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    const enum sheaf_status st = sheaf_from_float(dst->type, &value, bits, 1);
    for (int64_t row = first; row < last && !st; row++) {
        char *d = sheaf__cpu_row_data(dst, sheaf__cpu_row_at(dst->ne, row));
        for (int64_t i = 0; i < dst->ne[0]; i++) memcpy(d + (size_t)i * size, bits, size);
    }
    return st;
}

/* a [i, j, h, s] -> dst [I.i, J.j, H.h, S.s] of the same type */
static enum sheaf_status op_repeat(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    const size_t size = sheaf_type_size(dst->type);
    const bool dense = a->nb[0] == size && dst->nb[0] == size;
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        const struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        char *d = sheaf__cpu_row_data(dst, at);
        const char *x = sheaf__cpu_row_repeat(a, at);
        const int64_t step = dense ? a->ne[0] : 1;
        for (int64_t i = 0; i < dst->ne[0]; i += step)
            memcpy(d + (size_t)i * dst->nb[0], x + (size_t)(i % a->ne[0]) * a->nb[0],
                   (size_t)step * size);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* The place in n elements of place i behind `left` added ones; -1: an added one that is 0. */
static int64_t unpadded(int64_t i, int64_t left, int64_t n, bool circular) {
    i -= left;
    if (i >= 0 && i < n) return i;
    return circular ? ((i % n) + n) % n : -1;
}

/* a F32 -> dst F32 with more elements on both sides of each dimension */
static enum sheaf_status op_pad(struct sheaf_tensor *dst, int ith, int nth,
                                struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    const int32_t *p = dst->op_params;
    const bool circular = p[8] != 0;
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        const struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        float *d = (float *)(void *)sheaf__cpu_row_data(dst, at);
        const struct sheaf__cpu_row from = {unpadded(at.i1, p[2], a->ne[1], circular),
                                            unpadded(at.i2, p[4], a->ne[2], circular),
                                            unpadded(at.i3, p[6], a->ne[3], circular)};
        const bool added = from.i1 < 0 || from.i2 < 0 || from.i3 < 0;
        const char *x = added ? NULL : sheaf__cpu_row_data(a, from);
        if (x && !circular && sheaf__cpu_is_dense(a)) { /* zeros, the row, zeros */
            memset(d, 0, (size_t)p[0] * sizeof *d);
            memcpy(d + p[0], x, (size_t)a->ne[0] * sizeof *d);
            memset(d + p[0] + a->ne[0], 0, (size_t)p[1] * sizeof *d);
            continue;
        }
        if (!x) {
            memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
            continue;
        }
        for (int64_t i = 0; i < dst->ne[0]; i++) {
            const int64_t j = unpadded(i, p[0], a->ne[0], circular);
            d[i] = 0.0f;
            if (j >= 0) memcpy(&d[i], x + (size_t)j * a->nb[0], sizeof d[i]);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(FILL) = {.fn = op_fill};
SHEAF__CPU_OP(REPEAT) = {.fn = op_repeat};
SHEAF__CPU_OP(PAD) = {.fn = op_pad};
