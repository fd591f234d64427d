/* Ops of the CPU backend over images and signals, each element from its definition in double
 * (cpu_cases.h). */
#include "cpu_cases.h"

/* ---- what each op means ---- */

/* The element under place k of the window at place o, 0 outside; *in says whether it is inside. */
static int64_t under(const T *t, int axis, int64_t o, int64_t k) {
    return o * t->op_params[2 + axis] - t->op_params[4 + axis] + k * t->op_params[6 + axis];
}
static double pixel(const T *x, int64_t i, int64_t j, int64_t c, int64_t n) {
    return i < 0 || j < 0 || i >= x->ne[0] || j >= x->ne[1] ? 0 : value(x, i, j, c, n);
}

static double convolved(const T *t, int64_t i, int64_t j, int64_t m, int64_t n) {
    const T *a = t->src[0], *b = t->src[1];
    const bool deep = t->op == SHEAF_OP_CONV_2D_DW;
    double sum = 0;
    for (int64_t v = 0; v < a->ne[0]; v++) {
        for (int64_t w = 0; w < a->ne[1]; w++) {
            for (int64_t k = 0; k < a->ne[2]; k++)
                sum += value(a, v, w, k, m) *
                       pixel(b, under(t, 0, i, v), under(t, 1, j, w), deep ? m : k, n);
        }
    }
    return sum;
}

/* Which elements of the signal reach place i: those w steps before it. */
static double transposed(const T *t, int64_t i, int64_t m) {
    const T *a = t->src[0], *b = t->src[1];
    double sum = 0;
    for (int64_t w = 0; w < a->ne[0]; w++) {
        const int64_t from = i - w;
        if (from < 0 || from % t->op_params[0] || from / t->op_params[0] >= b->ne[0]) continue;
        for (int64_t k = 0; k < b->ne[1]; k++)
            sum += value(a, w, m, k, 0) * value(b, from / t->op_params[0], k, 0, 0);
    }
    return sum;
}

static double pooled(const T *t, int64_t i, int64_t j, int64_t c, int64_t n) {
    const T *a = t->src[0];
    double sum = 0, most = -INFINITY, count = 0;
    for (int64_t v = 0; v < t->op_params[0]; v++) {
        for (int64_t w = 0; w < t->op_params[1]; w++) {
            const int64_t x = under(t, 0, i, v), y = under(t, 1, j, w);
            if (x < 0 || y < 0 || x >= a->ne[0] || y >= a->ne[1]) continue;
            sum += value(a, x, y, c, n);
            most = fmax(most, value(a, x, y, c, n));
            count++;
        }
    }
    if (t->op_params[8] == SHEAF_POOL_MAX) return most;
    return sum / (t->op == SHEAF_OP_POOL_1D ? count : t->op_params[0] * t->op_params[1]);
}

/* Linear interpolation of a line at x, whose ends go on. */
static double line(const T *a, double x, int64_t j, int64_t c, int64_t n) {
    const double last = (double)a->ne[0] - 1;
    x = fmin(fmax(x, 0), last);
    const double low = floor(x), high = fmin(low + 1, last);
    return value(a, (int64_t)low, j, c, n) * (1 - (x - low)) +
           value(a, (int64_t)high, j, c, n) * (x - low);
}
static double interpolated(const T *t, int64_t i, int64_t j, int64_t c, int64_t n) {
    const T *a = t->src[0];
    const bool corners = t->op_params[1] != 0;
    double at[2];
    for (int d = 0; d < 2; d++) {
        const double to = (double)t->ne[d], from = (double)a->ne[d], o = (double)(d ? j : i);
        at[d] = corners ? o * (from - 1) / (to - 1) : (o + 0.5) * from / to - 0.5;
    }
    c = c * a->ne[2] / t->ne[2];
    n = n * a->ne[3] / t->ne[3];
    const double last = (double)a->ne[1] - 1, y = fmin(fmax(at[1], 0), last), low = floor(y);
    return line(a, at[0], (int64_t)low, c, n) * (1 - (y - low)) +
           line(a, at[0], (int64_t)fmin(low + 1, last), c, n) * (y - low);
}

static double meaning(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0];
    const int32_t *p = t->op_params;
    const int64_t ne[4] = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]};
    switch (t->op) {
    case SHEAF_OP_IM2COL:
        return pixel(a, under(t, 0, i1, i0 % p[0]), under(t, 1, i2, i0 / p[0] % p[1]),
                     i0 / p[0] / p[1], i3);
    case SHEAF_OP_CONV_2D:
    case SHEAF_OP_CONV_2D_DW:
        return convolved(t, i0, i1, i2, i3);
    case SHEAF_OP_CONV_TRANSPOSE_1D:
        return transposed(t, i0, i1);
    case SHEAF_OP_POOL_1D:
    case SHEAF_OP_POOL_2D:
        return pooled(t, i0, i1, i2, i3);
    case SHEAF_OP_UPSCALE:
        if (p[0] == SHEAF_SCALE_MODE_BILINEAR) return interpolated(t, i0, i1, i2, i3);
        return value(a, i0 * a->ne[0] / ne[0], i1 * a->ne[1] / ne[1], i2 * a->ne[2] / ne[2],
                     i3 * a->ne[3] / ne[3]);
    case SHEAF_OP_PAD_REFLECT_1D:
        i0 = llabs(i0 - p[0]);
        return value(a, i0 < a->ne[0] ? i0 : 2 * a->ne[0] - 2 - i0, i1, i2, i3);
    case SHEAF_OP_ROLL:
        return value(a, (i0 - p[0] + 100 * ne[0]) % ne[0], (i1 - p[1] + 100 * ne[1]) % ne[1],
                     (i2 - p[2] + 100 * ne[2]) % ne[2], (i3 - p[3] + 100 * ne[3]) % ne[3]);
    case SHEAF_OP_TIMESTEP_EMBEDDING: {
        const int64_t half = p[0] / 2;
        if (i0 >= 2 * half) return 0;
        const double angle =
            value(a, i1, 0, 0, 0) * pow((double)p[1], -(double)(i0 % half) / (double)half);
        return i0 < half ? cos(angle) : sin(angle);
    }
    default:
        cr_assert_fail("no meaning for %s", sheaf_op_name(t->op));
        return 0;
    }
}

/* ---- cases ---- */

#define WINDOW(k0, k1, s0, s1, p0, p1, d0, d1)                                                     \
    &(const struct sheaf_window) {                                                                 \
        {k0, k1}, {s0, s1}, {p0, p1}, { d0, d1 }                                                   \
    }
#define NE(...)                                                                                    \
    (const int64_t[]) { __VA_ARGS__ }
#define SHIFT(...)                                                                                 \
    (const int[]) { __VA_ARGS__ }
/* With a last row and column of windows that end outside. */
static struct sheaf_tensor *one_more(struct sheaf_tensor *t) {
    t->ne[0]++;
    t->ne[1]++;
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
    return t;
}
/* clang-format off */
#define CASES(K)                                                                                   \
    K(im2col, 0, sheaf_im2col(c, X(F32, 9, 7, 4, 2), WINDOW(3, 2, 2, 1, 1, 1, 1, 2), SHEAF_TYPE_F32))\
    K(im2col_f16, 1e-3, sheaf_im2col(c, TURNED(F32, 9, 7, 4, 2), WINDOW(3, 3, 1, 1, 1, 1, 1, 1), SHEAF_TYPE_F16))\
    K(im2col_line, 0, sheaf_im2col(c, X(F16, 30, 1, 5, 2), WINDOW(3, 1, 1, 1, 1, 0, 1, 1), SHEAF_TYPE_F32))\
    K(conv_2d, 1e-5, sheaf_conv_2d(c, X(F16, 3, 2, 4, 6), X(F32, 9, 7, 4, 2), WINDOW(0, 0, 2, 1, 1, 1, 1, 2)))\
    K(conv_2d_beyond, 1e-5, sheaf_conv_2d(c, X(F32, 5, 1, 2, 3), X(F32, 3, 4, 2, 1), WINDOW(0, 0, 2, 1, 5, 0, 2, 1)))\
    K(conv_2d_points, 1e-5, sheaf_conv_2d(c, X(F32, 1, 1, 8, 6), TURNED(F32, 5, 4, 8, 2), WINDOW(0, 0, 1, 1, 0, 0, 1, 1)))\
    K(conv_2d_dw, 1e-5, sheaf_conv_2d_dw(c, X(F32, 3, 3, 1, 6), X(F32, 9, 7, 6, 2), WINDOW(0, 0, 1, 2, 1, 1, 2, 1)))\
    K(conv_transpose_1d, 1e-5, sheaf_conv_transpose_1d(c, X(F16, 5, 4, 6, 1), X(F32, 9, 6, 1, 1), 3))\
    K(pool_1d_max, 0, sheaf_pool_1d(c, X(F32, 20, 7, 3, 2), SHEAF_POOL_MAX, 3, 2, 1))              \
    K(pool_1d_avg, 1e-6, sheaf_pool_1d(c, TURNED(F32, 20, 7, 3, 1), SHEAF_POOL_AVG, 3, 1, 1))      \
    K(pool_2d_max, 0, sheaf_pool_2d(c, X(F16, 9, 7, 3, 2), SHEAF_POOL_MAX, WINDOW(2, 3, 2, 1, 0, 1, 0, 0)))\
    K(pool_2d_avg, 1e-6, sheaf_pool_2d(c, X(F32, 9, 7, 3, 2), SHEAF_POOL_AVG, WINDOW(3, 3, 1, 2, 1, 1, 0, 0)))\
    K(pool_2d_max_beyond, 0, one_more(sheaf_pool_2d(c, X(F32, 9, 7, 3, 2), SHEAF_POOL_MAX, WINDOW(2, 2, 1, 1, 0, 0, 0, 0))))\
    K(pool_2d_avg_beyond, 1e-6, one_more(sheaf_pool_2d(c, X(F32, 9, 7, 3, 2), SHEAF_POOL_AVG, WINDOW(3, 2, 2, 1, 1, 0, 0, 0))))\
    K(upscale, 0, sheaf_upscale(c, X(F32, 5, 4, 3, 2), NE(10, 12, 6, 2), SHEAF_SCALE_MODE_NEAREST, false))\
    K(upscale_bilinear, 1e-5, sheaf_upscale(c, TURNED(F32, 5, 4, 3, 2), NE(13, 9, 3, 4), SHEAF_SCALE_MODE_BILINEAR, false))\
    K(upscale_corners, 1e-5, sheaf_upscale(c, X(F32, 5, 4, 3, 2), NE(13, 9, 3, 2), SHEAF_SCALE_MODE_BILINEAR, true))\
    K(upscale_channels, 1e-5, sheaf_upscale(c, X(F32, 5, 4, 3, 2), NE(13, 9, 6, 2), SHEAF_SCALE_MODE_BILINEAR, true))\
    K(upscale_to_one, 1e-5, sheaf_upscale(c, X(F32, 5, 4, 3, 2), NE(1, 1, 3, 2), SHEAF_SCALE_MODE_BILINEAR, true))\
    K(downscale, 1e-5, sheaf_upscale(c, X(F32, 12, 9, 3, 2), NE(6, 4, 3, 2), SHEAF_SCALE_MODE_BILINEAR, false))\
    K(pad_reflect, 0, sheaf_pad_reflect_1d(c, X(F32, 9, 7, 3, 2), 4, 8))                           \
    K(roll, 0, sheaf_roll(c, TURNED(F32, 9, 7, 3, 2), SHIFT(4, -3, 1, -2)))                        \
    K(roll_far, 0, sheaf_roll(c, X(F32, 9, 7, 3, 2), SHIFT(31, -30, 0, 5)))                        \
    K(timestep, 1e-5, sheaf_timestep_embedding(c, L(F32, "ids 900", 7, 1, 1, 1), 32, 10000))       \
    K(timestep_apart, 1e-5, sheaf_timestep_embedding(c, sheaf_transpose(c, sheaf_view_2d(c, L(F32, "ids 900", 3, 7, 1, 1), 1, 7, 12, 4)), 32, 10000))\
    K(timestep_odd, 1e-5, sheaf_timestep_embedding(c, L(F32, "wide", 7, 1, 1, 1), 15, 100))
/* clang-format on */

MAKE_CASES

Test(cpu_image, every_case) { run_cpu_cases(cases, N_CASES, meaning); }

/* A convolution is the product of its kernel, as a matrix, with the columns. */
Test(cpu_image, columns_make_a_convolution) {
    sheaf_backend_t backend = new_backend(2);
    C *c = sheaf_init((struct sheaf_init_params){.mem_size = 4 << 20});
    T *a = X(F32, 3, 2, 4, 6), *b = X(F32, 9, 7, 4, 2);
    T *direct = sheaf_conv_2d(c, a, b, WINDOW(0, 0, 2, 1, 1, 1, 1, 2));
    T *columns = sheaf_im2col(c, b, WINDOW(3, 2, 2, 1, 1, 1, 1, 2), SHEAF_TYPE_F32);
    T *product = sheaf_mul_mat(c, columns, sheaf_reshape_2d(c, a, 24, 6)); /* for all images */
    struct sheaf_cgraph *g = sheaf_new_graph(c);
    cr_assert_null(product, "columns have dimensions 2 and 3, which the kernel lacks");
    sheaf_clear_error();
    const int64_t places = columns->ne[1] * columns->ne[2] * columns->ne[3];
    product =
        sheaf_mul_mat(c, sheaf_reshape_2d(c, columns, 24, places), sheaf_reshape_2d(c, a, 24, 6));
    cr_assert_eq(sheaf_build_forward_expand(g, direct), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_build_forward_expand(g, product), SHEAF_STATUS_SUCCESS);
    fill(a);
    fill(b);
    cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_SUCCESS);
    for (int64_t m = 0; m < 6; m++) {
        for (int64_t i = 0; i < places; i++) {
            const int64_t plane = direct->ne[0] * direct->ne[1];
            const double x = value(product, i, m, 0, 0);
            const double y =
                value(direct, i % direct->ne[0], i % plane / direct->ne[0], m, i / plane);
            cr_assert(fabs(x - y) < 1e-5, "%g, %g", x, y);
        }
    }
    sheaf_free(c);
    sheaf_backend_free(backend);
}
