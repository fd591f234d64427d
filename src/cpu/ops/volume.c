/* IM2COL_3D, CONV_3D: windows over dimensions 0, 1 and 2; images and channels share dimension 3. */
#include "tensor/volume.h"
#include "cpu/ops/by_rows.h"

/* x [i, j, l, n.c] -> row [c.u.w.v] of a place: to.i1, to.i2, and the last factor of to.i3 */
static void im2col_3d_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *x = dst->src[0];
    const int64_t v = dst->op_params[0], w = dst->op_params[1], u = dst->op_params[2];
    const int64_t channels = dst->ne[0] / (v * w * u), places = dst->ne[3] / (x->ne[3] / channels);
    const int64_t first = to.i3 / places * channels;
    for (int64_t i = 0; i < dst->ne[0]; i++) {
        const int64_t x0 = in_image(dst, 3, 0, to.i1, i % v);
        const int64_t x1 = in_image(dst, 3, 1, to.i2, i / v % w);
        const int64_t x2 = in_image(dst, 3, 2, to.i3 % places, i / v / w % u);
        d[i] = inside(x, 0, x0) && inside(x, 1, x1) && inside(x, 2, x2)
                   ? element(x, x0, x1, x2, first + i / v / w / u)
                   : 0.0f;
    }
}

/* a [v, w, u, m.k], b [i, j, l, n.k] -> row (J, L, n.m) */
static void conv_3d_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const int64_t channels = sheaf__summed_channels(a->ne[3], b->ne[3], dst->ne[3]);
    memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
    for (int64_t k = 0; k < channels; k++) {
        const int64_t made = a->ne[3] / channels;
        const int64_t from = to.i3 % made * channels + k, n = to.i3 / made * channels + k;
        for (int64_t u = 0; u < a->ne[2]; u++) {
            const int64_t x2 = in_image(dst, 3, 2, to.i2, u);
            for (int64_t w = 0; w < a->ne[1] && inside(b, 2, x2); w++) {
                const int64_t x1 = in_image(dst, 3, 1, to.i1, w);
                for (int64_t v = 0; v < a->ne[0] && inside(b, 1, x1); v++)
                    add_line(dst, 3, element(a, v, w, u, from), v,
                             (struct sheaf__cpu_row){x1, x2, n}, d);
            }
        }
    }
}

BY_ROWS(im2col_3d, im2col_3d_row)
BY_ROWS(conv_3d, conv_3d_row)

SHEAF__CPU_OP(IM2COL_3D) = {.fn = op_im2col_3d, .work_size = rows_work};
SHEAF__CPU_OP(CONV_3D) = {.fn = op_conv_3d, .heavy = true};
