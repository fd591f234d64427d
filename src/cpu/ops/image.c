/* IM2COL, CONV_2D, CONV_2D_DW, CONV_TRANSPOSE_1D, POOL_1D, POOL_2D, UPSCALE, PAD_REFLECT_1D, ROLL,
 * TIMESTEP_EMBEDDING: a member writes whole rows of dst, element by element. */
#include <math.h>

#include "cpu/ops/ops.h"

static float at(const struct sheaf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const struct sheaf__cpu_row row = {i1, i2, i3};
    float one;
    const char *p = sheaf__cpu_row_data(t, row) + (size_t)i0 * t->nb[0];
    return *sheaf__cpu_load(t->type, p, t->nb[0], 1, &one);
}

/* Where element k of a window at place o lies, along axis 0 or 1. */
static int64_t in_image(const struct sheaf_tensor *dst, int axis, int64_t o, int64_t k) {
    const int32_t *p = dst->op_params;
    return o * p[2 + axis] + k * p[6 + axis] - p[4 + axis];
}
static bool inside(const struct sheaf_tensor *t, int axis, int64_t i) {
    return i >= 0 && i < t->ne[axis];
}

/* ---- rows by a function ---- */

typedef void (*row_fn)(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d);

/* x [i, j, c, n] -> row [c.w.v] of a place: to.i1, to.i2 */
static void im2col_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *x = dst->src[0];
    const int64_t v = dst->op_params[0], w = dst->op_params[1];
    for (int64_t i = 0; i < dst->ne[0]; i++) {
        const int64_t x0 = in_image(dst, 0, to.i1, i % v), x1 = in_image(dst, 1, to.i2, i / v % w);
        d[i] = inside(x, 0, x0) && inside(x, 1, x1) ? at(x, x0, x1, i / v / w, to.i3) : 0.0f;
    }
}

/* a [v, w, k, m], b [i, j, k, n] -> row of channel to.i2; depthwise: a [v, w, 1, c], that of b alone */
static void conv_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const int64_t first = dst->op == SHEAF_OP_CONV_2D ? 0 : to.i2;
    memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
    for (int64_t k = 0; k < a->ne[2]; k++) {
        for (int64_t w = 0; w < a->ne[1]; w++) {
            const int64_t x1 = in_image(dst, 1, to.i1, w);
            if (!inside(b, 1, x1)) continue;
            for (int64_t v = 0; v < a->ne[0]; v++) {
                const float weight = at(a, v, w, k, to.i2);
                for (int64_t i = 0; i < dst->ne[0]; i++) {
                    const int64_t x0 = in_image(dst, 0, i, v);
                    if (inside(b, 0, x0)) d[i] += weight * at(b, x0, x1, first + k, to.i3);
                }
            }
        }
    }
}

/* a [w, m, k], b [i, k] -> row m */
static void transposed_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const int64_t stride = dst->op_params[0];
    memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
    for (int64_t k = 0; k < b->ne[1]; k++) {
        for (int64_t i = 0; i < b->ne[0]; i++) {
            const float x = at(b, i, k, 0, 0);
            for (int64_t w = 0; w < a->ne[0]; w++) d[i * stride + w] += x * at(a, w, to.i1, k, 0);
        }
    }
}

/* a [i, j, c, n]; POOL_1D divides by what lies inside, POOL_2D by the window */
static void pool_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0];
    const int32_t *p = dst->op_params;
    const bool max = p[8] == (int32_t)SHEAF_POOL_MAX;
    for (int64_t i = 0; i < dst->ne[0]; i++) {
        float best = -INFINITY;
        double sum = 0.0;
        int64_t count = 0;
        for (int64_t w = 0; w < p[1]; w++) {
            for (int64_t v = 0; v < p[0]; v++) {
                const int64_t x0 = in_image(dst, 0, i, v), x1 = in_image(dst, 1, to.i1, w);
                if (!inside(a, 0, x0) || !inside(a, 1, x1)) continue;
                const float x = at(a, x0, x1, to.i2, to.i3);
                best = x > best || x != x ? x : best;
                sum += (double)x;
                count++;
            }
        }
        if (dst->op == SHEAF_OP_POOL_2D) count = (int64_t)p[0] * p[1];
        d[i] = max ? best : (float)(sum / (double)count);
    }
}

/* Elements of a line of n that meet place i of m: two neighbours and the weight of the second. */
struct between {
    int64_t low, high;
    float weight;
};
static struct between between(int64_t i, int64_t m, int64_t n, bool corners) {
    const bool ends = corners && m > 1 && n > 1;
    const float factor = ends ? (float)(m - 1) / (float)(n - 1) : (float)m / (float)n;
    const float half = corners ? 0.0f : 0.5f;
    const float x = ((float)i + half) / factor - half;
    struct between b = {(int64_t)floorf(x), 0, 0.0f};
    b.high = b.low + 1;
    b.low = b.low < 0 ? 0 : b.low > n - 1 ? n - 1 : b.low;
    b.high = b.high < 0 ? 0 : b.high > n - 1 ? n - 1 : b.high;
    b.weight = x - (float)b.low;
    b.weight = b.weight < 0.0f ? 0.0f : b.weight > 1.0f ? 1.0f : b.weight;
    return b;
}
/* The element of a line of n that is nearest to place i of m. */
static int64_t nearest(int64_t i, int64_t m, int64_t n, bool corners) {
    const bool ends = corners && m > 1 && n > 1;
    const float factor = ends ? (float)(m - 1) / (float)(n - 1) : (float)m / (float)n;
    const int64_t at_ = (int64_t)((float)i / factor);
    return at_ > n - 1 ? n - 1 : at_;
}

static void upscale_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0];
    const bool corners = dst->op_params[1] != 0;
    const int64_t i2 = nearest(to.i2, dst->ne[2], a->ne[2], false);
    const int64_t i3 = nearest(to.i3, dst->ne[3], a->ne[3], false);
    for (int64_t i = 0; i < dst->ne[0]; i++) {
        if (dst->op_params[0] == (int32_t)SHEAF_SCALE_MODE_NEAREST) {
            d[i] = at(a, nearest(i, dst->ne[0], a->ne[0], corners),
                      nearest(to.i1, dst->ne[1], a->ne[1], corners), i2, i3);
            continue;
        }
        const struct between x = between(i, dst->ne[0], a->ne[0], corners);
        const struct between y = between(to.i1, dst->ne[1], a->ne[1], corners);
        const float top = at(a, x.low, y.low, i2, i3) * (1.0f - x.weight) +
                          at(a, x.high, y.low, i2, i3) * x.weight;
        const float bottom = at(a, x.low, y.high, i2, i3) * (1.0f - x.weight) +
                             at(a, x.high, y.high, i2, i3) * x.weight;
        d[i] = top * (1.0f - y.weight) + bottom * y.weight;
    }
}

static void reflect_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t last = a->ne[0] - 1;
    for (int64_t i = 0; i < dst->ne[0]; i++) {
        int64_t x = i - dst->op_params[0];
        if (x < 0) x = -x;
        if (x > last) x = 2 * last - x;
        d[i] = at(a, x, to.i1, to.i2, to.i3);
    }
}

static int64_t rolled(const struct sheaf_tensor *dst, int axis, int64_t i) {
    const int64_t n = dst->ne[axis], x = (i - dst->op_params[axis]) % n;
    return x < 0 ? x + n : x;
}
static void roll_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const int64_t i1 = rolled(dst, 1, to.i1), i2 = rolled(dst, 2, to.i2),
                  i3 = rolled(dst, 3, to.i3);
    for (int64_t i = 0; i < dst->ne[0]; i++) d[i] = at(dst->src[0], rolled(dst, 0, i), i1, i2, i3);
}

/* Cosines, then sines; 0 in the middle's place of an odd dimension, which is last. */
static void timestep_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const int64_t half = dst->op_params[0] / 2;
    const double period = log((double)dst->op_params[1]);
    const double t = (double)at(dst->src[0], to.i1, 0, 0, 0);
    d[dst->ne[0] - 1] = 0.0f;
    for (int64_t i = 0; i < half; i++) {
        const double angle = t * exp(-period * (double)i / (double)half);
        d[i] = (float)cos(angle);
        d[half + i] = (float)sin(angle);
    }
}

/* ---- the ops ---- */

static enum sheaf_status rows(struct sheaf_tensor *dst, int ith, int nth, row_fn fn) {
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    for (int64_t row = first; row < last && dst->ne[0] > 0; row++) {
        const struct sheaf__cpu_row to = sheaf__cpu_row_at(dst->ne, row);
        fn(dst, to, (float *)(void *)sheaf__cpu_row_data(dst, to));
    }
    return SHEAF_STATUS_SUCCESS;
}

static size_t im2col_work(const struct sheaf_tensor *dst, int nth) {
    return dst->type == SHEAF_TYPE_F32 ? 0 : (size_t)nth * (size_t)dst->ne[0] * sizeof(float);
}
static enum sheaf_status op_im2col(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    if (dst->type == SHEAF_TYPE_F32) return rows(dst, ith, nth, im2col_row);
    float *own = (float *)work + (size_t)ith * (size_t)dst->ne[0];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    for (int64_t row = first; row < last; row++) {
        const struct sheaf__cpu_row to = sheaf__cpu_row_at(dst->ne, row);
        im2col_row(dst, to, own);
        sheaf__cpu_store(dst->type, own, sheaf__cpu_row_data(dst, to), dst->nb[0], dst->ne[0]);
    }
    return SHEAF_STATUS_SUCCESS;
}

#define BY_ROWS(name, fn)                                                                          \
    static enum sheaf_status op_##name(struct sheaf_tensor *dst, int ith, int nth,                 \
                                       struct sheaf__cpu_sync *sync, void *work) {                 \
        (void)sync;                                                                                \
        (void)work;                                                                                \
        return rows(dst, ith, nth, fn);                                                            \
    }
BY_ROWS(conv, conv_row)
BY_ROWS(transposed, transposed_row)
BY_ROWS(pool, pool_row)
BY_ROWS(upscale, upscale_row)
BY_ROWS(reflect, reflect_row)
BY_ROWS(roll, roll_row)
BY_ROWS(timestep, timestep_row)

SHEAF__CPU_OP(IM2COL) = {.fn = op_im2col, .work_size = im2col_work};
SHEAF__CPU_OP(CONV_2D) = {.fn = op_conv, .heavy = true};
SHEAF__CPU_OP(CONV_2D_DW) = {.fn = op_conv, .heavy = true};
SHEAF__CPU_OP(CONV_TRANSPOSE_1D) = {.fn = op_transposed, .heavy = true};
SHEAF__CPU_OP(POOL_1D) = {.fn = op_pool, .measure = 1};
SHEAF__CPU_OP(POOL_2D) = {.fn = op_pool, .measure = 1};
SHEAF__CPU_OP(UPSCALE) = {.fn = op_upscale};
SHEAF__CPU_OP(PAD_REFLECT_1D) = {.fn = op_reflect};
SHEAF__CPU_OP(ROLL) = {.fn = op_roll};
SHEAF__CPU_OP(TIMESTEP_EMBEDDING) = {.fn = op_timestep};
