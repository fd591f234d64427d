/* WIN_PART, WIN_UNPART, GET_REL_POS, ADD_REL_POS: attention inside windows. */
#include "cpu/ops/by_rows.h"

/* How many windows of w lie side by side along dimension 1. */
static int64_t abreast(const struct sheaf_tensor *image, int64_t w) {
    return (image->ne[1] + w - 1) / w;
}

/* a [e, i, j] -> row (i1, i2) of window i3 */
static void part_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t w = dst->op_params[0], n = abreast(a, w);
    const int64_t i = to.i3 % n * w + to.i1, j = to.i3 / n * w + to.i2;
    const bool within = inside(a, 1, i) && inside(a, 2, j);
    for (int64_t e = 0; e < dst->ne[0]; e++) d[e] = within ? element(a, e, i, j, 0) : 0.0f;
}

/* a [e, w, w, windows] -> row (i, j) */
static void unpart_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const int64_t w = dst->op_params[0];
    const int64_t window = to.i2 / w * abreast(dst, w) + to.i1 / w;
    for (int64_t e = 0; e < dst->ne[0]; e++)
        d[e] = element(dst->src[0], e, to.i1 % w, to.i2 % w, window);
}

/* a [e, 2 n - 1] -> row (k, q) */
static void get_rel_pos_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const int64_t row = dst->ne[1] - 1 - to.i1 + to.i2;
    for (int64_t e = 0; e < dst->ne[0]; e++) d[e] = element(dst->src[0], e, row, 0, 0);
}

/* a [n.n, u.t, b], pw and ph [n, t, u, b] -> row (r, b) */
static void add_rel_pos_row(const struct sheaf_tensor *dst, struct sheaf__cpu_row to, float *d) {
    const struct sheaf_tensor *a = dst->src[0], *pw = dst->src[1], *ph = dst->src[2];
    const int64_t n = pw->ne[0], t = to.i1 % pw->ne[1], u = to.i1 / pw->ne[1];
    for (int64_t i = 0; i < dst->ne[0]; i++)
        d[i] = element(a, i, to.i1, to.i2, 0) + element(pw, i % n, t, u, to.i2) +
               element(ph, i / n, t, u, to.i2);
}

BY_ROWS(part, part_row)
BY_ROWS(unpart, unpart_row)
BY_ROWS(get_rel_pos, get_rel_pos_row)
BY_ROWS(add_rel_pos, add_rel_pos_row)

SHEAF__CPU_OP(WIN_PART) = {.fn = op_part};
SHEAF__CPU_OP(WIN_UNPART) = {.fn = op_unpart};
SHEAF__CPU_OP(GET_REL_POS) = {.fn = op_get_rel_pos, .work_size = rows_work};
SHEAF__CPU_OP(ADD_REL_POS) = {.fn = op_add_rel_pos};
