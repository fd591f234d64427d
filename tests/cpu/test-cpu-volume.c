/* Ops of the CPU backend over volumes and windows, and those that undo a convolution or resize with
 * more than two elements, each element from its definition in double (cpu_cases.h). */
#include <float.h>

#include "cpu_cases.h"

/* ---- what each op means ---- */

/* Element of a volume under place k of the window at place o; 0 outside. */
static double voxel(const T *t, const T *x, const int64_t o[3], const int64_t k[3], int64_t n) {
    int64_t at[3];
    for (int d = 0; d < 3; d++) {
        at[d] = o[d] * t->op_params[3 + d] - t->op_params[6 + d] + k[d] * t->op_params[9 + d];
        if (at[d] < 0 || at[d] >= x->ne[d]) return 0;
    }
    return value(x, at[0], at[1], at[2], n);
}

enum { CHANNELS = 3 }; /* of every volume here */

static double volume_column(const T *t, const int64_t i[4]) {
    const T *x = t->src[0];
    const int32_t *p = t->op_params;
    const int64_t depth = t->ne[3] / (x->ne[3] / CHANNELS);
    const int64_t o[] = {i[1], i[2], i[3] % depth};
    const int64_t k[] = {i[0] % p[0], i[0] / p[0] % p[1], i[0] / p[0] / p[1] % p[2]};
    return voxel(t, x, o, k, i[3] / depth * CHANNELS + i[0] / p[0] / p[1] / p[2]);
}

static double volume_sum(const T *t, const int64_t i[4]) {
    const T *a = t->src[0], *b = t->src[1];
    const int64_t made = a->ne[3] / CHANNELS;
    double sum = 0;
    for (int64_t c = 0; c < CHANNELS; c++) {
        for (int64_t e = 0; e < a->ne[0] * a->ne[1] * a->ne[2]; e++) {
            const int64_t k[] = {e % a->ne[0], e / a->ne[0] % a->ne[1], e / a->ne[0] / a->ne[1]};
            sum += value(a, k[0], k[1], k[2], i[3] % made * CHANNELS + c) *
                   voxel(t, b, i, k, i[3] / made * CHANNELS + c);
        }
    }
    return sum;
}

/* Each element of the image adds the kernel, at its stride. */
static double spread(const T *t, const int64_t i[4]) {
    const T *a = t->src[0], *b = t->src[1];
    double sum = 0;
    for (int64_t y = 0; y < b->ne[1]; y++) {
        for (int64_t x = 0; x < b->ne[0]; x++) {
            const int64_t v = i[0] - x * t->op_params[0], w = i[1] - y * t->op_params[0];
            if (v < 0 || w < 0 || v >= a->ne[0] || w >= a->ne[1]) continue;
            for (int64_t k = 0; k < b->ne[2]; k++)
                sum += value(a, v, w, i[2], k) * value(b, x, y, k, i[3]);
        }
    }
    return sum;
}

static double folded(const T *t, const int64_t i[4]) {
    const T *a = t->src[0];
    double sum = 0;
    for (int64_t c = 0; c < a->ne[1]; c++) {
        const int64_t w = i[0] + t->op_params[2] - c * t->op_params[1];
        if (w >= 0 && w < t->op_params[0]) sum += value(a, i[1] * t->op_params[0] + w, c, 0, 0);
    }
    return sum;
}

/* Keys' kernel of cubic convolution with a = -3/4, from the polynomials of his paper. */
static double keys(double x) {
    const double a = -0.75;
    x = fabs(x);
    if (x < 1) return (a + 2) * pow(x, 3) - (a + 3) * pow(x, 2) + 1;
    return x < 2 ? a * pow(x, 3) - 5 * a * pow(x, 2) + 8 * a * x - 4 * a : 0;
}

/* Over all elements, and a few beyond the ends, which are like the last. */
static double resized(const T *t, const int64_t i[4]) {
    const T *a = t->src[0];
    const bool cubic = t->op_params[0] == SHEAF_SCALE_MODE_BICUBIC, corners = t->op_params[1] != 0;
    double at[2], wide[2], sum = 0, total = 0;
    for (int d = 0; d < 2; d++) {
        const double to = (double)t->ne[d], from = (double)a->ne[d], o = (double)i[d];
        at[d] = corners ? o * (from - 1) / (to - 1) : (o + 0.5) * from / to - 0.5;
        wide[d] = cubic ? 1 : fmax(1, from / to);
    }
    const int64_t beyond = cubic ? 3 : 0;
    for (int64_t y = -beyond; y < a->ne[1] + beyond; y++) {
        for (int64_t x = -beyond; x < a->ne[0] + beyond; x++) {
            const double dx = fabs((double)x - at[0]) / wide[0];
            const double dy = fabs((double)y - at[1]) / wide[1];
            const double w = cubic ? keys(dx) * keys(dy) : fmax(0, 1 - dx) * fmax(0, 1 - dy);
            const int64_t hx = x < 0 ? 0 : x < a->ne[0] ? x : a->ne[0] - 1;
            const int64_t hy = y < 0 ? 0 : y < a->ne[1] ? y : a->ne[1] - 1;
            sum += w * value(a, hx, hy, i[2] * a->ne[2] / t->ne[2], i[3] * a->ne[3] / t->ne[3]);
            total += w;
        }
    }
    return sum / total;
}

/* Where element (i, j) of an image lies in windows: which window, and where inside. */
static double of_window(const T *t, const int64_t i[4]) {
    const T *a = t->src[0];
    const int64_t w = t->op_params[0], n = (t->ne[1] + w - 1) / w;
    return value(a, i[0], i[1] % w, i[2] % w, i[1] / w + i[2] / w * n);
}
static double in_windows(const T *t, const int64_t i[4]) {
    const T *a = t->src[0];
    const int64_t w = t->op_params[0];
    int64_t x = i[1], y = i[2];
    for (int64_t k = 0; k < i[3]; k++) { /* the next window, or the first of the next row */
        x += w;
        if (x - i[1] >= a->ne[1]) {
            x = i[1];
            y += w;
        }
    }
    return x < a->ne[1] && y < a->ne[2] ? value(a, i[0], x, y, 0) : 0;
}

static double relative(const T *t, const int64_t i[4]) {
    const T *pw = t->src[1], *ph = t->src[2];
    const int64_t n = pw->ne[0], x = i[0] % n, y = i[0] / n;
    const int64_t r = i[1] % pw->ne[1], u = i[1] / pw->ne[1];
    return value(t->src[0], i[0], i[1], i[2], 0) + value(pw, x, r, u, i[2]) +
           value(ph, y, r, u, i[2]);
}

static double meaning(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const int64_t i[] = {i0, i1, i2, i3};
    switch (t->op) {
    case SHEAF_OP_IM2COL_3D:
        return volume_column(t, i);
    case SHEAF_OP_CONV_3D:
        return volume_sum(t, i);
    case SHEAF_OP_CONV_TRANSPOSE_2D:
        return spread(t, i);
    case SHEAF_OP_COL2IM_1D:
        return folded(t, i);
    case SHEAF_OP_UPSCALE:
        return resized(t, i);
    case SHEAF_OP_WIN_PART:
        return in_windows(t, i);
    case SHEAF_OP_WIN_UNPART:
        return of_window(t, i);
    case SHEAF_OP_GET_REL_POS: /* key and query as far apart as the row says */
        return value(t->src[0], i0, i2 - i1 + t->src[0]->ne[1] / 2, 0, 0);
    case SHEAF_OP_ADD_REL_POS:
        return relative(t, i);
    case SHEAF_OP_POOL_1D: /* of one element each, beside an empty place */
    case SHEAF_OP_POOL_2D: {
        const bool none = i0 == 0 || i0 == t->ne[0] - 1;
        const double empty = t->op_params[8] == SHEAF_POOL_MAX ? -(double)FLT_MAX : 0;
        return none ? empty : value(t->src[0], i0 - 1, i1, i2, i3);
    }
    default:
        cr_assert_fail("no meaning for %s", sheaf_op_name(t->op));
        return 0;
    }
}

/* ---- cases ---- */

#define WINDOW(...)                                                                                \
    &(const struct sheaf_window_3d) { __VA_ARGS__ }
#define PLAIN WINDOW({2, 3, 2}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1})
#define WIDE  WINDOW({3, 2, 2}, {2, 1, 2}, {1, 0, 1}, {1, 2, 1})
#define POINT                                                                                      \
    &(const struct sheaf_window) {                                                                 \
        {1, 1}, {1, 1}, {1, 0}, { 1, 1 }                                                           \
    }
#define NE(...)                                                                                    \
    (const int64_t[]) { __VA_ARGS__ }
/* clang-format off */
#define CASES(K)                                                                                   \
    K(im2col_3d, 0, sheaf_im2col_3d(c, X(F32, 5, 4, 3, 6), CHANNELS, PLAIN, SHEAF_TYPE_F32))       \
    K(im2col_3d_wide, 0, sheaf_im2col_3d(c, TURNED(F16, 7, 5, 4, 6), CHANNELS, WIDE, SHEAF_TYPE_F32))\
    K(im2col_3d_f16, 1e-3, sheaf_im2col_3d(c, X(F32, 5, 4, 3, 3), CHANNELS, WIDE, SHEAF_TYPE_F16)) \
    K(conv_3d, 1e-5, sheaf_conv_3d(c, X(F32, 2, 3, 2, 12), X(F32, 5, 4, 3, 6), CHANNELS, PLAIN))   \
    K(conv_3d_wide, 1e-5, sheaf_conv_3d(c, X(F16, 3, 2, 2, 15), TURNED(F32, 7, 5, 4, 6), CHANNELS, WIDE))\
    K(transposed, 1e-5, sheaf_conv_transpose_2d(c, X(F32, 3, 2, 4, 5), X(F32, 6, 5, 5, 2), 2))     \
    K(transposed_f16, 1e-5, sheaf_conv_transpose_2d(c, X(F16, 2, 4, 3, 2), TURNED(F32, 4, 3, 2, 1), 3))\
    K(col2im, 1e-5, sheaf_col2im_1d(c, X(F32, 20, 9, 1, 1), 5, 3, 0))                              \
    K(col2im_padded, 1e-5, sheaf_col2im_1d(c, TURNED(F32, 12, 7, 1, 1), 4, 2, 3))                  \
    K(col2im_apart, 1e-3, sheaf_col2im_1d(c, X(F16, 6, 4, 1, 1), 2, 5, 1))                         \
    K(bicubic, 1e-5, sheaf_upscale(c, X(F32, 5, 4, 3, 2), NE(13, 9, 6, 2), SHEAF_SCALE_MODE_BICUBIC, false))\
    K(bicubic_corners, 1e-5, sheaf_upscale(c, TURNED(F32, 5, 4, 3, 2), NE(8, 9, 3, 4), SHEAF_SCALE_MODE_BICUBIC, true))\
    K(bicubic_down, 1e-5, sheaf_upscale(c, X(F32, 12, 9, 2, 1), NE(5, 4, 2, 1), SHEAF_SCALE_MODE_BICUBIC, false))\
    K(antialias, 1e-5, sheaf_upscale(c, X(F32, 17, 11, 2, 2), NE(5, 4, 2, 2), SHEAF_SCALE_MODE_ANTIALIAS, false))\
    K(antialias_up, 1e-5, sheaf_upscale(c, TURNED(F32, 5, 12, 2, 1), NE(9, 3, 2, 1), SHEAF_SCALE_MODE_ANTIALIAS, false))\
    K(win_part, 0, sheaf_win_part(c, X(F32, 9, 6, 4, 1), 2))                                       \
    K(win_part_over, 0, sheaf_win_part(c, TURNED(F32, 9, 7, 5, 1), 3))                             \
    K(win_unpart, 0, sheaf_win_unpart(c, X(F32, 9, 2, 2, 6), 6, 4, 2))                             \
    K(win_unpart_over, 0, sheaf_win_unpart(c, X(F32, 9, 3, 3, 6), 7, 5, 3))                        \
    K(get_rel_pos, 0, sheaf_get_rel_pos(c, X(F32, 9, 13, 1, 1), 7))                                \
    K(get_rel_pos_f16, 0, sheaf_get_rel_pos(c, X(F16, 9, 5, 1, 1), 3))                             \
    K(get_rel_pos_bf16, 0, sheaf_get_rel_pos(c, TURNED(BF16, 8, 1, 1, 1), 1))                      \
    K(add_rel_pos, 1e-6, sheaf_add_rel_pos(c, X(F32, 16, 15, 2, 1), X(F32, 4, 5, 3, 2), X(F32, 4, 5, 3, 2)))\
    K(pool_1d_max_empty, 0, sheaf_pool_1d(c, X(F32, 9, 4, 1, 1), SHEAF_POOL_MAX, 1, 1, 1))         \
    K(pool_1d_avg_empty, 0, sheaf_pool_1d(c, X(F32, 9, 4, 1, 1), SHEAF_POOL_AVG, 1, 1, 1))         \
    K(pool_2d_max_empty, 0, sheaf_pool_2d(c, X(F16, 9, 4, 3, 1), SHEAF_POOL_MAX, POINT))           \
    K(pool_2d_avg_empty, 0, sheaf_pool_2d(c, X(F32, 9, 4, 3, 1), SHEAF_POOL_AVG, POINT))
/* clang-format on */

MAKE_CASES

Test(cpu_volume, every_case) { run_cpu_cases(cases, N_CASES, meaning); }

static T *roundtrip(C *c) {
    return sheaf_win_unpart(c, sheaf_win_part(c, X(F32, 5, 7, 8, 1), 3), 7, 8, 3);
}
static double same(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return value(t->src[0]->src[0], i0, i1, i2, i3);
}
/* Windows put together are the image again. */
Test(cpu_volume, windows_undo_themselves) {
    static const double exact = 0;
    const struct cpu_case c = {"roundtrip", roundtrip, &exact};
    run_cpu_cases(&c, 1, same);
}
