/* IM2COL, CONV_2D, CONV_2D_DW, CONV_TRANSPOSE_1D and _2D, COL2IM_1D, POOL_1D, POOL_2D, UPSCALE,
 * PAD_REFLECT_1D, ROLL, TIMESTEP_EMBEDDING. */
#include <float.h>
#include <math.h>

#include "cpu/ops/by_rows.h"

/* ---- windows ---- */

/* x [i, j, c, n] -> row [c.w.v] of a place: to.i1, to.i2 */
static void im2col_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *x = dst->src[0];
    const int64_t v = dst->op_params[0], w = dst->op_params[1];
    for (int64_t i = 0; i < dst->ne[0]; i++) {
        const int64_t x0 = in_image(dst, 2, 0, to.i1, i % v),
                      x1 = in_image(dst, 2, 1, to.i2, i / v % w);
        d[i] = inside(x, 0, x0) && inside(x, 1, x1) ? element(x, x0, x1, i / v / w, to.i3) : 0.0f;
    }
}

/* a [v, w, k, m], b [i, j, k, n] -> row of channel to.i2; depthwise: a [v, w, 1, c], that of b
 * alone */
static void conv_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const int64_t first = dst->op == SHEAF_OP_CONV_2D ? 0 : to.i2;
    memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
    for (int64_t k = 0; k < a->ne[2]; k++) {
        for (int64_t w = 0; w < a->ne[1]; w++) {
            const int64_t x1 = in_image(dst, 2, 1, to.i1, w);
            if (!inside(b, 1, x1)) continue;
            const struct sheaf__cpu_row from = {x1, first + k, to.i3};
            for (int64_t v = 0; v < a->ne[0]; v++)
                add_line(dst, 2, element(a, v, w, k, to.i2), v, from, d);
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
            const float x = element(b, i, k, 0, 0);
            for (int64_t w = 0; w < a->ne[0]; w++)
                d[i * stride + w] += x * element(a, w, to.i1, k, 0);
        }
    }
}

/* a [v, w, m, k], b [i, j, k, n] -> row (j, m, n) */
static void transposed_2d_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const int64_t stride = dst->op_params[0];
    memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
    for (int64_t k = 0; k < b->ne[2]; k++) {
        for (int64_t w = 0; w < a->ne[1]; w++) {
            const int64_t j = (to.i1 - w) / stride;
            if (to.i1 < w || (to.i1 - w) % stride || j >= b->ne[1]) continue;
            for (int64_t v = 0; v < a->ne[0]; v++) {
                const float weight = element(a, v, w, to.i2, k);
                for (int64_t i = 0; i < b->ne[0]; i++)
                    d[i * stride + v] += weight * element(b, i, j, k, to.i3);
            }
        }
    }
}

/* a [m.w, i] -> row m */
static void col2im_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t size = dst->op_params[0], stride = dst->op_params[1], pad = dst->op_params[2];
    memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
    for (int64_t i = 0; i < a->ne[1]; i++) {
        for (int64_t w = 0; w < size; w++) {
            const int64_t t = i * stride + w - pad;
            if (inside(dst, 0, t)) d[t] += element(a, to.i1 * size + w, i, 0, 0);
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
                const int64_t x0 = in_image(dst, 2, 0, i, v), x1 = in_image(dst, 2, 1, to.i1, w);
                if (!inside(a, 0, x0) || !inside(a, 1, x1)) continue;
                const float x = element(a, x0, x1, to.i2, to.i3);
                best = x > best || x != x ? x : best;
                sum += (double)x;
                count++;
            }
        }
        if (count == 0) {
            d[i] = max ? -FLT_MAX : 0.0f;
            continue;
        }
        if (dst->op == SHEAF_OP_POOL_2D) count = (int64_t)p[0] * p[1];
        d[i] = max ? best : (float)(sum / (double)count);
    }
}

/* ---- resizing ---- */

/* How many places an element of a line becomes, n elements in m places. */
static float growth(int64_t m, int64_t n, bool corners) {
    const bool ends = corners && m > 1 && n > 1;
    return ends ? (float)(m - 1) / (float)(n - 1) : (float)m / (float)n;
}
static int64_t held(int64_t i, int64_t n) { return i < 0 ? 0 : i > n - 1 ? n - 1 : i; }

/* Where place i of m lies in a line of n. */
static float middle(int64_t i, int64_t m, int64_t n, bool corners) {
    const float half = corners ? 0.0f : 0.5f;
    return ((float)i + half) / growth(m, n, corners) - half;
}
/* The element of a line of n that is nearest to place i of m. */
static int64_t nearest(int64_t i, int64_t m, int64_t n, bool corners) {
    return held((int64_t)((float)i / growth(m, n, corners)), n);
}

/* Elements of a line of n that meet place i of m: two neighbours and the weight of the second. */
struct between {
    int64_t low, high;
    float weight;
};
static struct between between(int64_t i, int64_t m, int64_t n, bool corners) {
    const float x = middle(i, m, n, corners);
    const int64_t low = (int64_t)floorf(x);
    struct between b = {held(low, n), held(low + 1, n), 0.0f};
    b.weight = x - (float)b.low;
    b.weight = b.weight < 0.0f ? 0.0f : b.weight > 1.0f ? 1.0f : b.weight;
    return b;
}

static float bilinear(const struct sheaf_tensor *dst, int64_t i0, int64_t i1, int64_t i2,
                      int64_t i3) {
    const struct sheaf_tensor *a = dst->src[0];
    const bool corners = dst->op_params[1] != 0;
    const struct between x = between(i0, dst->ne[0], a->ne[0], corners);
    const struct between y = between(i1, dst->ne[1], a->ne[1], corners);
    const float top = element(a, x.low, y.low, i2, i3) * (1.0f - x.weight) +
                      element(a, x.high, y.low, i2, i3) * x.weight;
    const float bottom = element(a, x.low, y.high, i2, i3) * (1.0f - x.weight) +
                         element(a, x.high, y.high, i2, i3) * x.weight;
    return top * (1.0f - y.weight) + bottom * y.weight;
}

/* Elements [first, last) of a line that meet a place at `at`: by Keys' convolution, or by a
 * triangle of height 1 and `reach` elements to each side. */
struct span {
    bool cubic;
    int64_t first, last;
    float at, reach;
};
static struct span span_of(const struct sheaf_tensor *dst, int axis, int64_t i) {
    const int64_t n = dst->src[0]->ne[axis], m = dst->ne[axis];
    const bool corners = dst->op_params[1] != 0;
    struct span s = {.cubic = dst->op_params[0] == (int32_t)SHEAF_SCALE_MODE_BICUBIC,
                     .at = middle(i, m, n, corners)};
    if (s.cubic) {
        s.first = (int64_t)floorf(s.at) - 1;
        s.last = s.first + 4;
        return s;
    }
    s.reach = m < n ? 1.0f / growth(m, n, corners) : 1.0f;
    s.first = (int64_t)floorf(s.at - s.reach + 1.0f);
    s.last = (int64_t)floorf(s.at + s.reach + 1.0f);
    s.first = s.first < 0 ? 0 : s.first;
    s.last = s.last > n ? n : s.last;
    return s;
}
static float weight_of(const struct span *s, int64_t i) {
    const float a = -0.75f, x = fabsf((float)i - s->at);
    if (!s->cubic) return x < s->reach ? 1.0f - x / s->reach : 0.0f;
    if (x <= 1.0f) return ((a + 2.0f) * x - (a + 3.0f)) * x * x + 1.0f;
    return x < 2.0f ? ((a * x - 5.0f * a) * x + 8.0f * a) * x - 4.0f * a : 0.0f;
}

/* BICUBIC and ANTIALIAS: the elements under two spans by their weights, whose sum is 1 or is made
 * so. */
static float resampled(const struct sheaf_tensor *a, const struct span *x, const struct span *y,
                       int64_t i2, int64_t i3) {
    float sum = 0.0f, total = 0.0f;
    for (int64_t j = y->first; j < y->last; j++) {
        const float wy = weight_of(y, j);
        for (int64_t i = x->first; i < x->last; i++) {
            const float w = wy * weight_of(x, i);
            if (w == 0.0f) continue;
            sum += w * element(a, held(i, a->ne[0]), held(j, a->ne[1]), i2, i3);
            total += w;
        }
    }
    return x->cubic ? sum : sum / total;
}

static void upscale_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0];
    const enum sheaf_scale_mode mode = (enum sheaf_scale_mode)dst->op_params[0];
    const bool corners = dst->op_params[1] != 0;
    const int64_t i2 = nearest(to.i2, dst->ne[2], a->ne[2], false);
    const int64_t i3 = nearest(to.i3, dst->ne[3], a->ne[3], false);
    const struct span y = span_of(dst, 1, to.i1);
    for (int64_t i = 0; i < dst->ne[0]; i++) {
        const struct span x = span_of(dst, 0, i);
        d[i] = mode == SHEAF_SCALE_MODE_NEAREST
                   ? element(a, nearest(i, dst->ne[0], a->ne[0], corners),
                             nearest(to.i1, dst->ne[1], a->ne[1], corners), i2, i3)
               : mode == SHEAF_SCALE_MODE_BILINEAR ? bilinear(dst, i, to.i1, i2, i3)
                                                   : resampled(a, &x, &y, i2, i3);
    }
}

/* ---- places along an axis ---- */

static void reflect_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t last = a->ne[0] - 1;
    for (int64_t i = 0; i < dst->ne[0]; i++) {
        int64_t x = i - dst->op_params[0];
        if (x < 0) x = -x;
        if (x > last) x = 2 * last - x;
        d[i] = element(a, x, to.i1, to.i2, to.i3);
    }
}

static int64_t rolled(const struct sheaf_tensor *dst, int axis, int64_t i) {
    const int64_t n = dst->ne[axis], x = (i - dst->op_params[axis]) % n;
    return x < 0 ? x + n : x;
}
static void roll_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const int64_t i1 = rolled(dst, 1, to.i1), i2 = rolled(dst, 2, to.i2),
                  i3 = rolled(dst, 3, to.i3);
    for (int64_t i = 0; i < dst->ne[0]; i++)
        d[i] = element(dst->src[0], rolled(dst, 0, i), i1, i2, i3);
}

/* Cosines, then sines; 0 in the middle's place of an odd dimension, which is last. */
static void timestep_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const int64_t half = dst->op_params[0] / 2;
    const double period = log((double)dst->op_params[1]);
    const double t = (double)element(dst->src[0], to.i1, 0, 0, 0);
    d[dst->ne[0] - 1] = 0.0f;
    for (int64_t i = 0; i < half; i++) {
        const double angle = t * exp(-period * (double)i / (double)half);
        d[i] = (float)cos(angle);
        d[half + i] = (float)sin(angle);
    }
}

/* ---- the ops ---- */

BY_ROWS(im2col, im2col_row)
BY_ROWS(conv, conv_row)
BY_ROWS(transposed, transposed_row)
BY_ROWS(transposed_2d, transposed_2d_row)
BY_ROWS(col2im, col2im_row)
BY_ROWS(pool, pool_row)
BY_ROWS(upscale, upscale_row)
BY_ROWS(reflect, reflect_row)
BY_ROWS(roll, roll_row)
BY_ROWS(timestep, timestep_row)

SHEAF__CPU_OP(IM2COL) = {.fn = op_im2col, .work_size = rows_work};
SHEAF__CPU_OP(CONV_2D) = {.fn = op_conv, .heavy = true};
SHEAF__CPU_OP(CONV_2D_DW) = {.fn = op_conv, .heavy = true};
SHEAF__CPU_OP(CONV_TRANSPOSE_1D) = {.fn = op_transposed, .heavy = true};
SHEAF__CPU_OP(CONV_TRANSPOSE_2D) = {.fn = op_transposed_2d, .heavy = true};
SHEAF__CPU_OP(COL2IM_1D) = {.fn = op_col2im, .work_size = rows_work, .measure = 1};
SHEAF__CPU_OP(POOL_1D) = {.fn = op_pool, .measure = 1};
SHEAF__CPU_OP(POOL_2D) = {.fn = op_pool, .measure = 1};
SHEAF__CPU_OP(UPSCALE) = {.fn = op_upscale};
SHEAF__CPU_OP(PAD_REFLECT_1D) = {.fn = op_reflect};
SHEAF__CPU_OP(ROLL) = {.fn = op_roll};
SHEAF__CPU_OP(TIMESTEP_EMBEDDING) = {.fn = op_timestep};
