/* Ops of the CPU backend over windows, triangles and lists, and DeepSeek's, against their definitions
 * in double (cpu_cases.h). */
#include "cpu_cases.h"

/* ---- what each op means ---- */

static double in_window(const T *t, const int64_t at[4]) {
    const T *a = t->src[0], *b = t->src[1];
    int64_t i[4];
    bool inside = true;
    for (int d = 0; d < 4; d++) {
        i[d] = at[d] - t->op_params[d];
        inside = inside && i[d] >= 0 && i[d] < b->ne[d];
    }
    const double x = value(a, at[0], at[1], at[2], at[3]);
    if (!inside) return x;
    const double y = value(b, i[0], i[1], i[2], i[3]);
    return t->op == SHEAF_OP_ACC ? x + y : y;
}

static bool stays(const T *t, int64_t column, int64_t row) {
    if (t->op != SHEAF_OP_TRI) return column <= t->op_params[0] + row;
    switch ((enum sheaf_tri_type)t->op_params[0]) {
    case SHEAF_TRI_TYPE_UPPER_DIAG:
        return column >= row;
    case SHEAF_TRI_TYPE_UPPER:
        return column > row;
    case SHEAF_TRI_TYPE_LOWER_DIAG:
        return column <= row;
    default:
        return column < row;
    }
}

/* Element (i0, i1) of a^-1 b by Cramer's way for triangles: the rows before it, again and again. */
static double solved(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0];
    double x[64];
    for (int64_t r = 0; r <= i1; r++) {
        x[r] = value(t->src[1], i0, r, i2, i3);
        for (int64_t k = 0; k < r; k++) x[r] -= value(a, k, r, i2, i3) * x[k];
        x[r] /= value(a, r, r, i2, i3);
    }
    return x[i1];
}

static double indexed(const T *t, int64_t i0, int64_t i1, int64_t i3) {
    const T *q = t->src[0], *k = t->src[1], *w = t->src[2], *m = t->src[3];
    double sum = 0;
    for (int64_t h = 0; h < q->ne[1]; h++) {
        double dot = 0;
        for (int64_t d = 0; d < q->ne[0]; d++)
            dot += value(q, d, h, i1, i3) * value(k, d, 0, i0, i3);
        sum += fmax(dot, 0) * value(w, h, i1, 0, i3);
    }
    return sum + value(m, i0, i1, 0, i3 % m->ne[3]);
}

/* Element (to, from) of the streams' mixture of a token, as the paper's doubly stochastic matrix. */
static double combined(const T *t, int64_t to, int64_t from, int64_t n) {
    const T *mixes = t->src[0], *base = t->src[2];
    const int64_t c = t->ne[0];
    const double by = value(t->src[1], 2, 0, 0, 0), eps = param(t, 0);
    double x[8][8], sum;
    for (int64_t r = 0; r < c; r++) {
        sum = 0;
        for (int64_t i = 0; i < c; i++) {
            const int64_t at = 2 * c + r * c + i;
            x[r][i] = exp(value(mixes, at, n, 0, 0) * by + value(base, at, 0, 0, 0));
            sum += x[r][i];
        }
        for (int64_t i = 0; i < c; i++) x[r][i] = x[r][i] / sum + eps;
    }
    for (int k = 0; k < 2 * t->op_params[1] - 1; k++) { /* columns, rows, columns, .. */
        for (int64_t l = 0; l < c; l++) {
            sum = eps;
            for (int64_t i = 0; i < c; i++) sum += k % 2 ? x[l][i] : x[i][l];
            for (int64_t i = 0; i < c; i++) {
                if (k % 2) x[l][i] /= sum;
                if (k % 2 == 0) x[i][l] /= sum;
            }
        }
    }
    return x[from][to];
}

static double streams(const T *t, int64_t i0, int64_t i1, int64_t i2) {
    const T *a = t->src[0], *b = t->src[1];
    double sum = 0;
    if (t->op == SHEAF_OP_DSV4_HC_PRE) {
        for (int64_t c = 0; c < a->ne[1]; c++) {
            const double w =
                t->op_params[1] ? 1 / (1 + exp(-value(b, i0, c, i1, 0))) : value(b, c, i1, 0, 0);
            sum += value(a, i0, c, i1, 0) * w;
        }
        return sum * param(t, 0);
    }
    sum = value(a, i0, i2, 0, 0) * value(t->src[2], i1, i2, 0, 0);
    if (!t->src[3]) return sum + value(b, i0, i1, i2, 0);
    for (int64_t c = 0; c < b->ne[1]; c++)
        sum += value(b, i0, c, i2, 0) * value(t->src[3], i1, c, i2, 0);
    return sum;
}

static double meaning(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0];
    double sum = 0;
    switch (t->op) {
    case SHEAF_OP_SET:
    case SHEAF_OP_ACC:
        return in_window(t, (int64_t[]){i0, i1, i2, i3});
    case SHEAF_OP_CUMSUM:
        for (int64_t i = 0; i <= i0; i++) sum += value(a, i, i1, i2, i3);
        return sum;
    case SHEAF_OP_TRI:
    case SHEAF_OP_DIAG_MASK_ZERO:
        return stays(t, i0, i1) ? value(a, i0, i1, i2, i3) : 0;
    case SHEAF_OP_DIAG_MASK_INF:
        return stays(t, i0, i1) ? value(a, i0, i1, i2, i3) : -INFINITY;
    case SHEAF_OP_DIAG:
        return i0 == i1 ? value(a, i0, 0, i2, i3) : 0;
    case SHEAF_OP_SOLVE_TRI:
        return solved(t, i0, i1, i2, i3);
    case SHEAF_OP_ARANGE:
        return param(t, 0) + (double)i0 * param(t, 2);
    case SHEAF_OP_LIGHTNING_INDEXER:
        return indexed(t, i0, i1, i3);
    case SHEAF_OP_DSV4_HC_COMB:
        return combined(t, i0, i1, i2);
    case SHEAF_OP_DSV4_HC_PRE:
    case SHEAF_OP_DSV4_HC_POST:
        return streams(t, i0, i1, i2);
    default:
        cr_assert_fail("no meaning for %s", sheaf_op_name(t->op));
        return 0;
    }
}

/* ---- cases ---- */

#define AT(...)                                                                                    \
    (const int64_t[]) { __VA_ARGS__ }
static T *comb(C *c, int streams_, int tokens, int n_iter) {
    const int m = (2 + streams_) * streams_;
    return sheaf_dsv4_hc_comb(c, X(F32, m, tokens, 1, 1), X(F32, 3, 1, 1, 1), X(F32, m, 1, 1, 1),
                              1e-6f, n_iter);
}

/* clang-format off */
#define CASES(K)                                                                                   \
    K(set, 0, sheaf_set(c, X(F32, 9, 7, 3, 2), X(F32, 4, 3, 2, 1), AT(2, 4, 1, 1)))                \
    K(set_row, 0, sheaf_set(c, TURNED(F32, 900, 7, 3, 2), TURNED(F32, 700, 7, 3, 2), AT(200, 0, 0, 0)))\
    K(set_nothing, 0, sheaf_set(c, X(F32, 9, 7, 1, 1), X(F32, 0, 7, 1, 1), AT(9, 0, 0, 0)))        \
    K(acc, 1e-7, sheaf_acc(c, X(F32, 9, 7, 3, 2), TURNED(F32, 4, 3, 2, 1), AT(2, 4, 1, 0)))        \
    K(acc_all, 1e-7, sheaf_acc(c, X(F32, 9, 7, 3, 2), X(F32, 9, 7, 3, 2), AT(0, 0, 0, 0)))         \
    K(add1, 1e-7, sheaf_sub(c, sheaf_add1(c, X(F32, 9, 7, 1, 1), X(F32, 1, 1, 1, 1)), X(F32, 9, 7, 1, 1)))\
    K(cumsum, 1e-6, sheaf_cumsum(c, X(F32, 900, 7, 3, 1)))                                         \
    K(cumsum_turned, 1e-6, sheaf_cumsum(c, TURNED(F32, 33, 7, 3, 2)))                              \
    K(tri_upper_diag, 0, sheaf_tri(c, X(F32, 9, 9, 3, 2), SHEAF_TRI_TYPE_UPPER_DIAG))              \
    K(tri_upper, 0, sheaf_tri(c, TURNED(F32, 9, 9, 3, 2), SHEAF_TRI_TYPE_UPPER))                   \
    K(tri_lower_diag, 0, sheaf_tri(c, X(F32, 9, 9, 3, 2), SHEAF_TRI_TYPE_LOWER_DIAG))              \
    K(tri_lower, 0, sheaf_tri(c, X(F32, 1, 1, 3, 2), SHEAF_TRI_TYPE_LOWER))                        \
    K(diag, 0, sheaf_diag(c, turned(c, F32, "x", 9, 1, 3, 2)))                                     \
    K(diag_mask_inf, 0, sheaf_diag_mask_inf(c, X(F32, 20, 9, 3, 2), 4))                            \
    K(diag_mask_zero, 0, sheaf_diag_mask_zero(c, TURNED(F32, 9, 20, 3, 1), 0))                     \
    K(solve_tri, 1e-4, sheaf_solve_tri(c, L(F32, "one+", 8, 8, 3, 2), X(F32, 5, 8, 3, 2)))         \
    K(solve_tri_wide, 1e-4, sheaf_solve_tri(c, turned(c, F32, "one+", 6, 6, 2, 1), TURNED(F32, 200, 6, 2, 1)))\
    K(arange, 1e-6, sheaf_arange(c, -3, 700.5f, 0.5f))                                             \
    K(arange_tenths, 1e-6, sheaf_arange(c, 0, 500, 0.1f))                                          \
    K(arange_down, 0, sheaf_arange(c, 5, -5, -3))                                                  \
    K(arange_empty, 0, sheaf_arange(c, 5, 5, 1))                                                   \
    K(indexer, 2e-5, sheaf_lightning_indexer(c, X(F32, 64, 8, 5, 2), X(F16, 64, 1, 70, 2), X(F32, 8, 5, 1, 2), L(F16, "mask", 70, 5, 1, 1)))\
    K(indexer_q8, 2e-5, sheaf_lightning_indexer(c, SWAPPED(F32, 128, 4, 3, 1), X(Q8, 128, 1, 33, 1), TURNED(F32, 4, 3, 1, 1), X(F32, 33, 3, 1, 1)))\
    K(hc_comb, 2e-6, comb(c, 4, 9, 20))                                                            \
    K(hc_comb_once, 2e-6, comb(c, 4, 3, 1))                                                        \
    K(hc_comb_of_eight, 2e-6, comb(c, 8, 3, 4))                                                    \
    K(hc_pre, 1e-6, sheaf_dsv4_hc_pre(c, TURNED(F32, 300, 4, 9, 1), X(F32, 4, 9, 1, 1)))           \
    K(hc_pre_gated, 1e-6, sheaf_dsv4_hc_pre_gated(c, X(F32, 300, 4, 9, 1), TURNED(F32, 300, 4, 9, 1), 0.5f))\
    K(hc_post, 2e-6, sheaf_dsv4_hc_post(c, X(F32, 300, 9, 1, 1), TURNED(F32, 300, 4, 9, 1), X(F32, 4, 9, 1, 1), X(F32, 4, 4, 9, 1)))\
    K(hc_post_apart, 2e-6, sheaf_dsv4_hc_post(c, X(F32, 30, 9, 1, 1), X(F32, 30, 4, 9, 1), X(F32, 4, 9, 1, 1), NULL))
/* clang-format on */

MAKE_CASES

/* a + b - c of the same leaves: the nodes of ADD1 */
static double meaning_or_sum(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    if (t->op != SHEAF_OP_SUB) return meaning(t, i0, i1, i2, i3);
    const T *a = t->src[0]->src[0], *b = t->src[0]->src[1];
    return (double)(float)(value(a, i0, i1, i2, i3) + value(b, 0, 0, 0, 0)) -
           value(t->src[1], i0, i1, i2, i3);
}

Test(cpu_matrix, every_case) { run_cpu_cases(cases, N_CASES, meaning_or_sum); }

/* Over operand 0, as ggml's forms in place have it. */
static T *build_set_in_place(C *c) {
    return sheaf_in_place(sheaf_set(c, X(F32, 9, 7, 3, 1), X(F32, 4, 3, 2, 1), AT(2, 4, 1, 0)), 0);
}
static T *build_set_apart(C *c) {
    return sheaf_set(c, X(F32, 9, 7, 3, 1), X(F32, 4, 3, 2, 1), AT(2, 4, 1, 0));
}
Test(cpu_matrix, set_in_place) {
    sheaf_backend_t backend = new_backend(2);
    struct run a = prepare(backend, build_set_apart), b = prepare(backend, build_set_in_place);
    cr_assert_eq(sheaf_backend_graph_compute(backend, a.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(backend, b.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_arr_eq(a.node->data, b.node->data, sheaf_nbytes(a.node));
    cr_assert_arr_eq(a.node->data, b.node->src[0]->data, sheaf_nbytes(a.node));
    finish(&a);
    finish(&b);
    sheaf_backend_free(backend);
}
