/* Ops of the CPU backend over rows, and those that only place elements, against a second way to
 * compute them in double (cpu_cases.h): norms, sums, sorting, a bias for each expert, REPEAT, PAD,
 * FILL. */
#include "cpu_cases.h"

/* ---- what each op means ---- */

/* Of elements [first, last) of dimension 2 and rows [j0, j1) of each: mean, and mean square of what
 * is left without it. */
static void moments(const T *a, int64_t j0, int64_t j1, int64_t first, int64_t last, int64_t i3,
                    double *mean, double *square) {
    double n = 0;
    *mean = *square = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i2 = first; i2 < last; i2++) {
            for (int64_t i1 = j0; i1 < j1; i1++) {
                for (int64_t i = 0; i < a->ne[0]; i++) {
                    const double x = value(a, i, i1, i2, i3);
                    if (pass == 0) {
                        *mean += x;
                        n++;
                    } else {
                        *square += (x - *mean) * (x - *mean);
                    }
                }
            }
        }
        if (pass == 0) *mean /= n;
    }
    *square /= n;
}

static double normed(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0];
    const double x = value(a, i0, i1, i2, i3);
    double mean, square;
    if (t->op == SHEAF_OP_GROUP_NORM) {
        const int64_t each = (a->ne[2] + t->op_params[0] - 1) / t->op_params[0];
        const int64_t first = i2 / each * each;
        const int64_t last = first + each < a->ne[2] ? first + each : a->ne[2];
        moments(a, 0, a->ne[1], first, last, i3, &mean, &square);
        return (x - mean) / sqrt(square + param(t, 1));
    }
    moments(a, i1, i1 + 1, i2, i2 + 1, i3, &mean, &square);
    if (t->op == SHEAF_OP_NORM) return (x - mean) / sqrt(square + param(t, 0));
    return x / fmax(sqrt((square + mean * mean) * (double)a->ne[0]), param(t, 0));
}

static double summed(const T *t, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0];
    double sum = 0;
    if (t->op == SHEAF_OP_SUM) {
        for (int64_t i = 0; i < sheaf_nelements(a); i++) sum += flat(a, i);
        return sum;
    }
    for (int64_t i = 0; i < a->ne[0]; i++) sum += value(a, i, i1, i2, i3);
    return sum / (double)(t->op_params[15] ? t->op_params[15] : a->ne[0]);
}

/* The position that has i0 positions before it; all of a row are found with its first. */
static double sorted(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    static int64_t place[4096];
    const T *a = t->src[0];
    const double sign = t->op_params[0] == SHEAF_SORT_ORDER_DESC ? -1 : 1;
    for (int64_t i = 0; i < a->ne[0] && i0 == 0; i++) {
        const double x = sign * value(a, i, i1, i2, i3);
        int64_t rank = 0;
        for (int64_t j = 0; j < a->ne[0]; j++) {
            const double y = sign * value(a, j, i1, i2, i3);
            rank += isnan(x) ? !isnan(y) || j < i : y < x || (y == x && j < i);
        }
        place[rank] = i;
    }
    return (double)place[i0];
}

static double padded(const T *t, const int64_t at[4]) {
    const T *a = t->src[0];
    int64_t i[4];
    for (int d = 0; d < 4; d++) {
        i[d] = at[d] - t->op_params[2 * d];
        if (t->op_params[8]) {
            while (i[d] < 0) i[d] += a->ne[d];
            while (i[d] >= a->ne[d]) i[d] -= a->ne[d];
        } else if (i[d] < 0 || i[d] >= a->ne[d]) {
            return 0;
        }
    }
    return value(a, i[0], i[1], i[2], i[3]);
}

static double meaning(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0], *b = t->src[1];
    double id;
    switch (t->op) {
    case SHEAF_OP_NORM:
    case SHEAF_OP_L2_NORM:
    case SHEAF_OP_GROUP_NORM:
        return normed(t, i0, i1, i2, i3);
    case SHEAF_OP_MEAN:
    case SHEAF_OP_SUM:
        return summed(t, i1, i2, i3);
    case SHEAF_OP_ARGSORT:
    case SHEAF_OP_VIEW: /* of the sorted rows */
        return sorted(t->op == SHEAF_OP_VIEW ? a : t, i0, i1, i2, i3);
    case SHEAF_OP_ADD_ID:
        id = value(t->src[2], i1, i2, 0, 0) - t->op_params[14];
        return id < 0 || id >= (double)b->ne[1]
                   ? 0
                   : value(a, i0, i1, i2, 0) + value(b, i0, (int64_t)id, 0, 0);
    case SHEAF_OP_GET_ROWS:
        id = value(b, i1, i2, i3, 0) - t->op_params[14];
        return id < 0 || id >= (double)a->ne[1] ? 0 : value(a, i0, (int64_t)id, i2, i3);
    case SHEAF_OP_REPEAT:
        return value(a, i0 % a->ne[0], i1 % a->ne[1], i2 % a->ne[2], i3 % a->ne[3]);
    case SHEAF_OP_PAD:
        return padded(t, (int64_t[]){i0, i1, i2, i3});
    case SHEAF_OP_FILL:
        return param(t, 0);
    case SHEAF_OP_COUNT_EQUAL:
        for (int64_t i = 0, n = 0; i <= sheaf_nelements(a); i++) {
            if (i == sheaf_nelements(a)) return (double)n;
            n += flat(a, i) == flat(b, i);
        }
        return 0;
    default:
        cr_assert_fail("no meaning for %s", sheaf_op_name(t->op));
        return 0;
    }
}

/* ---- cases ---- */

#define PADS(...)                                                                                  \
    (const int[]) { __VA_ARGS__ }
static T *sort(C *c, T *a, bool down) {
    return sheaf_argsort(c, a, down ? SHEAF_SORT_ORDER_DESC : SHEAF_SORT_ORDER_ASC);
}

/* clang-format off */
#define CASES(K)                                                                                   \
    K(count_equal, 0, sheaf_count_equal(c, L(I32, "ids 3", 77, 9, 2, 3), L(I32, "ids 3", 77, 9, 2, 3)))\
    K(count_equal_turned, 0, sheaf_count_equal(c, turned(c, I32, "ids 2", 7, 9, 2, 1), L(I32, "ids 2", 7, 9, 2, 1)))\
    K(count_equal_none, 0, sheaf_count_equal(c, L(I32, "ids 2", 0, 9, 2, 1), L(I32, "ids 2", 0, 9, 2, 1)))\
    K(norm, 2e-6, sheaf_norm(c, X(F32, 77, 9, 2, 3), 1e-5f))                                       \
    K(norm_off_center, 2e-6, sheaf_norm(c, L(F32, "one+", 576, 40, 1, 1), 1e-5f))                  \
    K(norm_turned, 2e-6, sheaf_norm(c, TURNED(F32, 33, 9, 2, 3), 0.1f))                            \
    K(norm_empty, 0, sheaf_norm(c, X(F32, 0, 9, 2, 3), 0.1f))                                      \
    K(l2_norm, 2e-6, sheaf_l2_norm(c, X(F32, 128, 9, 2, 3), 1e-6f))                                \
    K(l2_norm_small, 2e-6, sheaf_l2_norm(c, TURNED(F32, 3, 9, 2, 1), 1.5f))                        \
    K(group_norm, 3e-6, sheaf_group_norm(c, X(F32, 17, 3, 12, 2), 4, 1e-6f))                       \
    K(group_norm_uneven, 3e-6, sheaf_group_norm(c, TURNED(F32, 17, 3, 11, 2), 4, 1e-6f))           \
    K(group_norm_one, 3e-6, sheaf_group_norm(c, X(F32, 5, 3, 7, 1), 1, 0.5f))                      \
    K(sum, 1e-6, sheaf_sum(c, TURNED(F32, 111, 7, 2, 3)))                                          \
    K(sum_f16, 1e-6, sheaf_sum(c, X(F16, 1111, 7, 2, 1)))                                          \
    K(sum_of_nothing, 0, sheaf_sum(c, X(F32, 0, 7, 2, 1)))                                         \
    K(mean, 1e-6, sheaf_mean(c, X(F32, 1111, 7, 2, 3)))                                            \
    K(mean_slice, 1e-6, slice(sheaf_mean(c, TURNED(F32, 11, 7, 2, 3)), 0, 40))                     \
    K(argsort_few, 0, sort(c, X(F32, 8, 9, 2, 1), true))                                           \
    K(argsort_router, 0, sort(c, X(F32, 128, 19, 1, 1), true))                                     \
    K(argsort_up, 0, sort(c, TURNED(F32, 512, 3, 2, 1), false))                                    \
    K(argsort_long, 0, sort(c, L(F32, "wide", 1500, 2, 1, 1), true))                               \
    K(argsort_ties, 0, sort(c, L(F32, "ties", 100, 7, 1, 1), true))                                \
    K(argsort_ties_up, 0, sort(c, L(F32, "ties", 20, 7, 1, 1), false))                             \
    K(argsort_closed, 0, sort(c, L(F32, "mask", 70, 7, 1, 1), true))                               \
    K(argsort_one, 0, sort(c, X(F32, 1, 7, 1, 1), false))                                          \
    K(argsort_empty, 0, sort(c, X(F32, 0, 7, 1, 1), false))                                        \
    K(add_id, 1e-7, sheaf_add_id(c, X(F32, 600, 4, 9, 1), X(F32, 600, 6, 1, 1), L(I32, "ids 6", 4, 9, 1, 1)))\
    K(add_id_slice, 1e-7, slice(sheaf_add_id(c, X(F32, 60, 4, 9, 1), X(F32, 60, 3, 1, 1), L(I32, "ids 6", 4, 9, 1, 1)), 2, 6))\
    K(add_id_view, 1e-7, sheaf_add_id(c, X(F32, 60, 4, 9, 1), X(F32, 60, 16, 1, 1), sheaf_argsort_top_k(c, X(F32, 16, 9, 1, 1), 4)))\
    K(get_rows_i32, 0, sheaf_get_rows(c, L(I32, "ids 999", 33, 20, 3, 2), L(I32, "ids 20", 9, 3, 2, 1)))\
    K(get_rows_i32_turned, 0, sheaf_get_rows(c, turned(c, I32, "ids 999", 33, 20, 3, 1), L(I32, "ids 20", 9, 3, 1, 1)))\
    K(repeat, 0, sheaf_repeat_4d(c, X(F32, 5, 3, 2, 1), 15, 3, 8, 2))                              \
    K(repeat_column, 0, sheaf_repeat_4d(c, TURNED(F32, 1, 7, 3, 1), 600, 7, 3, 1))                 \
    K(repeat_f16, 0, sheaf_repeat(c, turned(c, F16, "x", 5, 3, 2, 2), X(F32, 5, 6, 2, 4)))         \
    K(repeat_i32, 0, sheaf_repeat_4d(c, L(I32, "ids 99", 5, 3, 1, 1), 10, 9, 1, 2))                \
    K(repeat_i64, 0, sheaf_repeat_4d(c, L(I64, "ids 99", 5, 3, 1, 1), 5, 3, 7, 2))                 \
    K(repeat_nothing, 0, sheaf_repeat_4d(c, X(F32, 5, 0, 2, 1), 5, 0, 2, 1))                       \
    K(pad_right, 0, sheaf_pad(c, X(F32, 5, 3, 2, 1), PADS(0, 0, 0, 0), PADS(3, 1, 0, 2), false))   \
    K(pad_both, 0, sheaf_pad(c, TURNED(F32, 5, 3, 2, 2), PADS(2, 1, 3, 1), PADS(600, 1, 0, 2), false))\
    K(pad_circular, 0, sheaf_pad(c, X(F32, 5, 3, 2, 2), PADS(7, 1, 3, 0), PADS(12, 4, 0, 2), true))\
    K(pad_empty, 0, sheaf_pad(c, X(F32, 0, 3, 2, 1), PADS(0, 1, 0, 0), PADS(3, 1, 0, 2), false))   \
    K(fill, 0, sheaf_fill(c, X(F32, 700, 3, 2, 1), -2.5f))                                         \
    K(fill_infinite, 0, sheaf_fill(c, X(F16, 7, 3, 2, 1), -INFINITY))                             \
    K(fill_bf16, 0, sheaf_fill(c, X(BF16, 33, 3, 1, 2), 1.5f))
/* clang-format on */

MAKE_CASES

Test(cpu_rows, every_case) { run_cpu_cases(cases, N_CASES, meaning); }

/* NaN comes last in either order, and the two zeros are one value. */
static T *build_down(C *c) { return sort(c, X(F32, 40, 1, 1, 1), true); }
static T *build_up(C *c) { return sort(c, X(F32, 40, 1, 1, 1), false); }
Test(cpu_rows, sorting_nan_and_zeros) {
    sheaf_backend_t backend = new_backend(1);
    for (int down = 0; down < 2; down++) {
        struct run r = prepare(backend, down ? build_down : build_up);
        float *x = r.node->src[0]->data;
        for (int i = 0; i < 40; i++) x[i] = i % 2 ? 0.0f : -0.0f;
        x[7] = x[3] = NAN;
        x[11] = -NAN;
        x[20] = -INFINITY;
        x[21] = INFINITY;
        cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
        const int32_t *at = r.node->data;
        cr_assert_eq(at[0], down ? 21 : 20);
        cr_assert_eq(at[36], down ? 20 : 21);
        cr_assert(at[37] == 3 && at[38] == 7 && at[39] == 11);
        for (int i = 2; i < 36; i++) cr_assert_lt(at[i - 1], at[i]);
        finish(&r);
    }
    sheaf_backend_free(backend);
}

/* Experts chosen by sorting are those of TOP_K: MUL_MAT_ID, GET_ROWS read ids that are a view. */
Test(cpu_rows, ids_may_be_a_strided_view) {
    sheaf_backend_t backend = new_backend(2);
    C *c = sheaf_init((struct sheaf_init_params){.mem_size = 4 << 20});
    T *logits = X(F32, 16, 9, 1, 1), *experts = X(F32, 32, 5, 16, 1), *x = X(F32, 32, 1, 9, 1);
    T *bias = X(F32, 5, 16, 1, 1), *probabilities = X(F32, 1, 16, 9, 1), *y[2], *w[2];
    struct sheaf_cgraph *g = sheaf_new_graph(c);
    for (int i = 0; i < 2; i++) {
        T *ids = i ? sheaf_argsort_top_k(c, logits, 4) : sheaf_top_k(c, logits, 4);
        y[i] = sheaf_add_id(c, sheaf_mul_mat_id(c, experts, x, ids), bias, ids);
        w[i] = sheaf_get_rows(c, probabilities, ids);
        cr_assert_eq(sheaf_build_forward_expand(g, y[i]), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_eq(sheaf_build_forward_expand(g, w[i]), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
    }
    for (T *t = sheaf_get_first_tensor(c); t; t = sheaf_get_next_tensor(c, t))
        if (t->op == SHEAF_OP_NONE) fill(t);
    cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_arr_eq(y[0]->data, y[1]->data, sheaf_nbytes(y[0]));
    cr_assert_arr_eq(w[0]->data, w[1]->data, sheaf_nbytes(w[0]));
    sheaf_free(c);
    sheaf_backend_free(backend);
}

static T *build_bad_bias(C *c) {
    T *ids = L(I32, "ids 4", 2, 5, 1, 1);
    return sheaf_set_name(sheaf_add_id(c, X(F32, 9, 2, 5, 1), X(F32, 9, 4, 1, 1), ids), "biased");
}
Test(cpu_rows, bad_row_numbers) {
    sheaf_backend_t backend = new_backend(3);
    struct run r = prepare(backend, build_bad_bias);
    int32_t *ids = r.node->src[2]->data;
    for (int at = 0; at < 10; at += 9) {
        for (int bad = 0; bad < 2; bad++) {
            const int32_t was = ids[at];
            ids[at] = bad ? 4 : -1;
            sheaf_clear_error();
            cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_INVALID);
            cr_assert(strstr(sheaf_last_error(), "'biased'"), "%s", sheaf_last_error());
            ids[at] = was;
        }
    }
    cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
    finish(&r);
    sheaf_backend_free(backend);
}
