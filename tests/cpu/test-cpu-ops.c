/* Ops of the CPU backend against a naive computation in double, element by element (cpu_cases.h).
 * Further tests: errors, in-place reuse, what is not supported. */
#include "cpu_cases.h"

/* ---- what each op means ---- */

static double act(int op, double x) {
    switch (op) {
    case SHEAF_UNARY_OP_SILU:
        return x / (1 + exp(-x));
    case SHEAF_UNARY_OP_GELU:
        return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case SHEAF_UNARY_OP_RELU:
        return x > 0 ? x : 0;
    case SHEAF_UNARY_OP_TANH:
        return tanh(x);
    case SHEAF_UNARY_OP_SIGMOID:
        return 1 / (1 + exp(-x));
    case SHEAF_UNARY_OP_NEG:
        return -x;
    default:
        return exp(x);
    }
}

static double slope(const T *t, int64_t h, int64_t heads, double max_bias) {
    if (t->op_params[15] != 0) {
        h += t->op_params[14];
        heads = t->op_params[15];
    }
    if (max_bias <= 0) return 1;
    double n = pow(2, floor(log2((double)heads)));
    return (double)h < n ? pow(2, -max_bias * (double)(h + 1) / n)
                         : pow(2, -max_bias / 2 * (2 * ((double)h - n) + 1) / n);
}

static double soft_max(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0], *m = t->src[1];
    double sum = 0, mine = 0, max = -INFINITY, s[600];
    for (int64_t i = 0; i < a->ne[0]; i++) {
        s[i] = value(a, i, i1, i2, i3) * param(t, 0);
        if (m)
            s[i] +=
                slope(t, i2, a->ne[2], param(t, 1)) * value(m, i, i1, i2 % m->ne[2], i3 % m->ne[3]);
        max = fmax(max, s[i]);
    }
    if (max == -INFINITY) return 0;
    for (int64_t i = 0; i < a->ne[0]; i++) {
        sum += exp(s[i] - max);
        if (i == i0) mine = exp(s[i] - max);
    }
    return mine / sum;
}

static double attention(const T *t, int64_t i0, int64_t h, int64_t n, int64_t s) {
    const T *q = t->src[0], *k = t->src[1], *v = t->src[2], *m = t->src[3];
    int64_t hk = h / (q->ne[2] / k->ne[2]);
    double sum = 0, out = 0, max = -INFINITY, w[512];
    for (int64_t j = 0; j < k->ne[1]; j++) {
        double dot = 0;
        for (int64_t c = 0; c < q->ne[0]; c++) dot += value(q, c, n, h, s) * value(k, c, j, hk, s);
        w[j] = dot * param(t, 0);
        if (param(t, 2) != 0) w[j] = param(t, 2) * tanh(w[j] / param(t, 2));
        if (m)
            w[j] += slope(t, h, q->ne[2], param(t, 1)) * value(m, j, n, h % m->ne[2], s % m->ne[3]);
        max = fmax(max, w[j]);
    }
    if (max == -INFINITY) return 0;
    for (int64_t j = 0; j < k->ne[1]; j++) {
        sum += exp(w[j] - max);
        if (w[j] != -INFINITY) out += exp(w[j] - max) * value(v, i0, j, hk, s);
    }
    return out / sum;
}

static double rope(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0], *ff = t->src[2];
    int nd = t->op_params[0];
    bool neox = t->op_params[1] == SHEAF_ROPE_TYPE_NEOX;
    if (i0 >= nd) return value(a, i0, i1, i2, i3);
    int64_t pair = neox ? i0 % (nd / 2) : i0 / 2;
    bool second = neox ? i0 >= nd / 2 : i0 % 2 == 1;
    double theta = value(t->src[1], i2, 0, 0, 0) * pow(param(t, 3), -2.0 * (double)pair / nd);
    if (ff) theta /= value(ff, pair, 0, 0, 0);
    double inner = theta * param(t, 4), magnitude = param(t, 6), angle = inner;
    if (param(t, 5) != 0) {
        double lo = nd * log(t->op_params[2] / (param(t, 7) * 2 * M_PI)) / (2 * log(param(t, 3)));
        double hi = nd * log(t->op_params[2] / (param(t, 8) * 2 * M_PI)) / (2 * log(param(t, 3)));
        lo = fmax(0, floor(lo));
        hi = fmin(nd - 1, ceil(hi));
        double y = ((double)pair - lo) / fmax(0.001, hi - lo);
        double mix = (1 - fmin(1, fmax(0, y))) * param(t, 5);
        angle = inner * (1 - mix) + theta * mix;
        magnitude *= 1 + 0.1 * log(1 / param(t, 4));
    }
    double x0 = value(a, neox ? pair : 2 * pair, i1, i2, i3);
    double x1 = value(a, neox ? pair + nd / 2 : 2 * pair + 1, i1, i2, i3);
    double c = cos(angle) * magnitude, s = sin(angle) * magnitude;
    return second ? x0 * s + x1 * c : x0 * c - x1 * s;
}

/* Rank order of positions: how many come before i. */
static int64_t rank_of(const T *a, int64_t i, int64_t i1, int64_t i2, int64_t i3) {
    int64_t rank = 0;
    double x = value(a, i, i1, i2, i3);
    for (int64_t j = 0; j < a->ne[0]; j++) {
        double y = value(a, j, i1, i2, i3);
        if (isnan(x) ? (!isnan(y) || j < i) : (y > x || (y == x && j < i))) rank += j != i;
    }
    return rank;
}

/* As a conversion to t's type would leave element i of values v(0..). */
static double converted(const T *t, int64_t i0, double (*source)(const T *, int64_t, int64_t),
                        const T *src, int64_t row) {
    float f[256];
    char bytes[1024];
    int64_t block = sheaf_blck_size(t->type);
    for (int64_t j = 0; j < block; j++) f[j] = (float)source(src, row, i0 / block * block + j);
    sheaf_from_float(t->type, f, bytes, block);
    sheaf_to_float(t->type, bytes, f, block);
    return (double)f[i0 % block];
}

static double flat_source(const T *src, int64_t row, int64_t i) { return flat(src, row + i); }

static double copy(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    int64_t row = ((i3 * t->ne[2] + i2) * t->ne[1] + i1) * t->ne[0];
    if (t->type == SHEAF_TYPE_I32 || t->type == SHEAF_TYPE_I64)
        return trunc(flat(t->src[0], row + i0));
    if (t->type == t->src[0]->type) return flat(t->src[0], row + i0);
    return converted(t, i0, flat_source, t->src[0], row);
}

static double row_source(const T *b, int64_t row, int64_t i) {
    return value(b, i, row % b->ne[1], row / b->ne[1] % b->ne[2], row / b->ne[1] / b->ne[2]);
}

static double set_rows(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *b = t->src[1], *c = t->src[2];
    for (int64_t n = b->ne[1] - 1; n >= 0; n--) { /* the last of equal numbers stays */
        if (value(c, n, i2 % c->ne[1], i3 % c->ne[2], 0) == (double)i1)
            return converted(t, i0, row_source, b, (i3 * b->ne[2] + i2) * b->ne[1] + n);
    }
    return value_in(t, before + t->view_offs, i0, i1, i2, i3);
}

static double get_rows(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    double id = value(t->src[1], i1, i2, i3, 0) - t->op_params[14];
    if (id < 0 || id >= (double)t->src[0]->ne[1]) return 0;
    return value(t->src[0], i0, (int64_t)id, i2, i3);
}

static double concat(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    int64_t i[4] = {i0, i1, i2, i3};
    int dim = t->op_params[0];
    const T *s = t->src[0];
    if (i[dim] >= s->ne[dim]) {
        i[dim] -= s->ne[dim];
        s = t->src[1];
    }
    return value(s, i[0], i[1], i[2], i[3]);
}

static double mul_mat(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0], *b = t->src[1], *ids = t->src[2];
    double sum = 0;
    if (ids) {
        double id = value(ids, i1, i2, 0, 0) - t->op_params[14];
        if (id < 0 || id >= (double)a->ne[2]) return 0;
        for (int64_t k = 0; k < a->ne[0]; k++)
            sum += value(a, k, i0, (int64_t)id, 0) * value(b, k, i1 % b->ne[1], i2, 0);
        return sum;
    }
    for (int64_t k = 0; k < a->ne[0]; k++)
        sum += value(a, k, i0, i2 / (b->ne[2] / a->ne[2]), i3 / (b->ne[3] / a->ne[3])) *
               value(b, k, i1, i2, i3);
    return sum;
}

static double expect(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const T *a = t->src[0], *b = t->src[1];
    double sum = 0, y = 0;
    switch (t->op) {
    case SHEAF_OP_ADD:
    case SHEAF_OP_SUB:
    case SHEAF_OP_MUL:
    case SHEAF_OP_DIV:
        y = value(b, i0 % b->ne[0], i1 % b->ne[1], i2 % b->ne[2], i3 % b->ne[3]);
        sum = value(a, i0, i1, i2, i3);
        return t->op == SHEAF_OP_ADD   ? sum + y
               : t->op == SHEAF_OP_SUB ? sum - y
               : t->op == SHEAF_OP_MUL ? sum * y
                                       : sum / y;
    case SHEAF_OP_SCALE:
        return value(a, i0, i1, i2, i3) * param(t, 0) + param(t, 1);
    case SHEAF_OP_SQR:
        return value(a, i0, i1, i2, i3) * value(a, i0, i1, i2, i3);
    case SHEAF_OP_UNARY:
        return act(t->op_params[0], value(a, i0, i1, i2, i3));
    case SHEAF_OP_GLU:
        sum = value(a, i0 + (t->op_params[1] ? t->ne[0] : 0), i1, i2, i3);
        y = b ? value(b, i0, i1, i2, i3)
              : value(a, i0 + (t->op_params[1] ? 0 : t->ne[0]), i1, i2, i3);
        return act((int[]){SHEAF_UNARY_OP_SILU, SHEAF_UNARY_OP_GELU,
                           SHEAF_UNARY_OP_RELU}[t->op_params[0]],
                   sum) *
               y;
    case SHEAF_OP_SUM_ROWS:
        for (int64_t i = 0; i < a->ne[0]; i++) sum += value(a, i, i1, i2, i3);
        return sum;
    case SHEAF_OP_RMS_NORM:
        for (int64_t i = 0; i < a->ne[0]; i++)
            sum += value(a, i, i1, i2, i3) * value(a, i, i1, i2, i3);
        return value(a, i0, i1, i2, i3) / sqrt(sum / (double)a->ne[0] + param(t, 0));
    case SHEAF_OP_ARGMAX:
        for (int64_t i = 0; i < a->ne[0]; i++)
            if (rank_of(a, i, i0, 0, 0) == 0) return (double)i;
        return -1;
    case SHEAF_OP_TOP_K:
        for (int64_t i = 0; i < a->ne[0]; i++)
            if (rank_of(a, i, i1, i2, i3) == i0) return (double)i;
        return -1;
    case SHEAF_OP_CONCAT:
        return concat(t, i0, i1, i2, i3);
    case SHEAF_OP_DUP:
    case SHEAF_OP_CONT:
    case SHEAF_OP_CPY:
        return copy(t, i0, i1, i2, i3);
    case SHEAF_OP_GET_ROWS:
        return get_rows(t, i0, i1, i2, i3);
    case SHEAF_OP_SET_ROWS:
        return set_rows(t, i0, i1, i2, i3);
    case SHEAF_OP_SOFT_MAX:
        return soft_max(t, i0, i1, i2, i3);
    case SHEAF_OP_ROPE:
        return rope(t, i0, i1, i2, i3);
    case SHEAF_OP_FLASH_ATTN_EXT:
        return attention(t, i0, i1, i2, i3);
    case SHEAF_OP_MUL_MAT:
    case SHEAF_OP_MUL_MAT_ID:
        return mul_mat(t, i0, i1, i2, i3);
    default:
        cr_assert_fail("no meaning for %s", sheaf_op_name(t->op));
        return 0;
    }
}

/* ---- cases ---- */

/* The second element of each row of a matrix, as a vector. */
static T *column(C *c, T *a) {
    return sheaf_transpose(c, sheaf_view_2d(c, a, 1, a->ne[1], a->nb[1], a->nb[0]));
}

static T *to_f16(C *c, T *a) { /* an F16 node over F16 operands */
    return sheaf_add(c, a, X(F16, 1, 1, 1, 1));
}

/* clang-format off */
#define CASES(K)                                                                                   \
    K(add, 1e-7, sheaf_add(c, X(F32, 7, 5, 3, 2), X(F32, 7, 5, 3, 2)))                             \
    K(add_row, 1e-7, sheaf_add(c, X(F32, 700, 5, 3, 1), X(F32, 700, 1, 1, 1)))                     \
    K(add_scalar, 1e-7, sheaf_add(c, X(F32, 7, 5, 3, 2), X(F32, 1, 1, 1, 1)))                      \
    K(add_repeat, 1e-7, sheaf_add(c, X(F32, 12, 6, 3, 2), X(F32, 4, 2, 1, 2)))                     \
    K(add_column, 1e-7, sheaf_add(c, X(F32, 1030, 6, 1, 1), X(F32, 1, 6, 1, 1)))                   \
    K(add_turned, 1e-7, sheaf_add(c, TURNED(F32, 6, 5, 4, 2), SWAPPED(F32, 6, 5, 4, 2)))           \
    K(add_long_turned, 1e-7, sheaf_add(c, TURNED(F32, 1100, 3, 2, 1), X(F32, 1100, 3, 2, 1)))      \
    K(add_long_by_turned, 1e-7, sheaf_add(c, X(F32, 1100, 3, 2, 1), TURNED(F32, 1100, 3, 2, 1)))   \
    K(add_big, 1e-7, sheaf_add(c, X(F32, 5000, 3, 1, 1), X(F32, 5000, 3, 1, 1)))                   \
    K(add_f16, 2e-3, sheaf_add(c, X(F16, 9, 5, 3, 2), X(F32, 9, 5, 3, 2)))                         \
    K(add_f16_f16, 2e-3, to_f16(c, X(F16, 9, 5, 3, 2)))                                            \
    K(add_bf16, 1e-2, sheaf_add(c, X(BF16, 9, 5, 3, 2), X(BF16, 9, 5, 3, 2)))                      \
    K(add_empty, 0, sheaf_add(c, X(F32, 7, 0, 3, 2), X(F32, 7, 1, 1, 1)))                          \
    K(sub, 1e-7, sheaf_sub(c, X(F32, 7, 5, 3, 2), X(F32, 7, 1, 3, 1)))                             \
    K(mul, 1e-7, sheaf_mul(c, X(F32, 7, 5, 3, 2), X(F32, 7, 5, 1, 1)))                             \
    K(div, 1e-7, sheaf_div(c, X(F32, 7, 5, 3, 2), L(F32, "one+", 7, 5, 3, 2)))                     \
    K(scale, 1e-7, sheaf_scale(c, X(F32, 7, 5, 3, 2), 2.5f))                                       \
    K(scale_bias, 2e-7, sheaf_scale_bias(c, TURNED(F32, 7, 5, 3, 2), -0.5f, 3.0f))                 \
    K(scale_big, 1e-7, sheaf_scale(c, X(F32, 3000, 4, 1, 1), 2.5f))                                \
    K(sqr, 1e-7, sheaf_sqr(c, TURNED(F32, 130, 7, 2, 1)))                                          \
    K(silu, 4e-7, sheaf_silu(c, L(F32, "wide", 130, 7, 1, 1)))                                     \
    K(gelu, 4e-7, sheaf_gelu(c, L(F32, "wide", 130, 7, 1, 1)))                                     \
    K(relu, 0, sheaf_relu(c, L(F32, "wide", 13, 7, 1, 1)))                                         \
    K(tanh, 2e-7, sheaf_tanh(c, L(F32, "wide", 130, 7, 1, 1)))                                     \
    K(sigmoid, 3e-7, sheaf_sigmoid(c, L(F32, "wide", 130, 7, 1, 1)))                               \
    K(neg, 0, sheaf_unary(c, TURNED(F32, 13, 7, 2, 1), SHEAF_UNARY_OP_NEG))                        \
    K(exp, 3e-7, sheaf_unary(c, L(F32, "wide", 130, 7, 1, 1), SHEAF_UNARY_OP_EXP))                 \
    K(swiglu, 6e-7, sheaf_swiglu(c, L(F32, "wide", 26, 7, 2, 1)))                                  \
    K(swiglu_swapped, 6e-7, sheaf_glu(c, L(F32, "wide", 1200, 7, 1, 1), SHEAF_GLU_OP_SWIGLU, true))\
    K(swiglu_split, 6e-7, sheaf_swiglu_split(c, L(F32, "wide", 600, 9, 1, 1), X(F32, 600, 9, 1, 1)))\
    K(geglu, 6e-7, sheaf_geglu(c, TURNED(F32, 26, 7, 2, 1)))                                       \
    K(geglu_split, 6e-7, sheaf_geglu_split(c, TURNED(F32, 26, 7, 2, 1), SWAPPED(F32, 26, 7, 2, 1)))\
    K(geglu_long, 6e-7, sheaf_geglu_split(c, X(F32, 1100, 3, 1, 1), X(F32, 1100, 3, 1, 1)))        \
    K(swiglu_long_turned, 6e-7, sheaf_swiglu_split(c, TURNED(F32, 1100, 3, 2, 1), X(F32, 1100, 3, 2, 1)))\
    K(swiglu_long_by_turned, 6e-7, sheaf_swiglu_split(c, X(F32, 1100, 3, 2, 1), TURNED(F32, 1100, 3, 2, 1)))\
    K(reglu, 1e-7, sheaf_glu(c, X(F32, 26, 7, 2, 1), SHEAF_GLU_OP_REGLU, false))                   \
    K(glu_empty, 0, sheaf_swiglu(c, X(F32, 0, 7, 2, 1)))                                           \
    K(sum_rows, 1e-6, sheaf_sum_rows(c, X(F32, 1111, 7, 2, 3)))                                    \
    K(sum_rows_turned, 1e-6, sheaf_sum_rows(c, TURNED(F32, 11, 7, 2, 3)))                          \
    K(sum_rows_long_turned, 1e-6, sheaf_sum_rows(c, TURNED(F32, 1100, 3, 2, 1)))                   \
    K(sum_rows_of_nothing, 0, sheaf_sum_rows(c, X(F32, 0, 7, 2, 3)))                               \
    K(rms_norm, 1e-6, sheaf_rms_norm(c, X(F32, 77, 9, 2, 3), 1e-5f))                               \
    K(rms_norm_big, 1e-6, sheaf_rms_norm(c, X(F32, 576, 40, 1, 1), 1e-5f))                         \
    K(rms_norm_turned, 1e-6, sheaf_rms_norm(c, TURNED(F32, 33, 9, 2, 3), 0.1f))                    \
    K(argmax, 0, sheaf_argmax(c, X(F32, 500, 9, 1, 1)))                                           \
    K(argmax_ties, 0, sheaf_argmax(c, L(F32, "ties", 40, 9, 1, 1)))                                \
    K(argmax_turned, 0, sheaf_argmax(c, sheaf_transpose(c, X(F32, 9, 40, 1, 1))))                  \
    K(argmax_closed, 0, sheaf_argmax(c, L(F32, "closed", 40, 9, 1, 1)))                            \
    K(top_k, 0, sheaf_top_k(c, X(F32, 300, 7, 2, 1), 20))                                         \
    K(top_k_ties, 0, sheaf_top_k(c, L(F32, "ties", 50, 7, 2, 1), 17))                              \
    K(top_k_all, 0, sheaf_top_k(c, L(F32, "ties", 50, 3, 1, 1), 50))                               \
    K(top_k_one, 0, sheaf_top_k(c, TURNED(F32, 50, 3, 2, 1), 1))                                   \
    K(concat0, 0, sheaf_concat(c, X(F32, 5, 4, 3, 2), X(F32, 7, 4, 3, 2), 0))                      \
    K(concat1, 0, sheaf_concat(c, TURNED(F32, 5, 4, 3, 2), X(F32, 5, 6, 3, 2), 1))                 \
    K(concat2, 0, sheaf_concat(c, X(F16, 500, 4, 3, 2), SWAPPED(F16, 500, 4, 1, 2), 2))            \
    K(concat3, 0, sheaf_concat(c, X(F32, 5, 4, 3, 2), X(F32, 5, 4, 3, 1), 3))                      \
    K(concat_blocks, 0, sheaf_concat(c, X(Q8, 64, 4, 3, 1), X(Q8, 32, 4, 3, 1), 0))                \
    K(concat_i32, 0, sheaf_concat(c, L(I32, "ids 9", 6, 4, 3, 1), L(I32, "ids 9", 2, 4, 3, 1), 0)) \
    K(concat_empty, 0, sheaf_concat(c, X(F32, 5, 4, 3, 2), X(F32, 5, 0, 3, 2), 1))                 \
    K(cont_turned, 0, sheaf_cont(c, TURNED(F32, 11, 7, 5, 2)))                                     \
    K(cont_transposed, 0, sheaf_cont(c, sheaf_transpose(c, X(F32, 130, 70, 2, 1))))                \
    K(cont_column, 0, sheaf_cont(c, column(c, X(F32, 3, 700, 1, 1))))\
    K(cont_apart, 0, sheaf_cont(c, sheaf_view_4d(c, X(F32, 5, 4, 3, 2), 5, 4, 2, 2, 20, 80, 240, 80)))\
    K(cont_f16, 0, sheaf_cont(c, TURNED(F16, 11, 7, 5, 2)))                                        \
    K(cont_i64, 0, sheaf_cont(c, turned(c, I64, "ids 1000", 11, 7, 5, 2)))                         \
    K(cont_blocks, 0, sheaf_cont(c, SWAPPED(Q4K, 512, 3, 5, 2)))                                   \
    K(dup, 0, sheaf_dup(c, X(BF16, 11, 7, 5, 2)))                                                  \
    K(dup_big, 0, sheaf_dup(c, X(F32, 1000, 7, 5, 2)))                                             \
    K(cast_f16, 0, sheaf_cast(c, TURNED(F32, 11, 7, 5, 2), SHEAF_TYPE_F16))                        \
    K(cast_bf16, 0, sheaf_cast(c, X(F32, 1100, 7, 1, 2), SHEAF_TYPE_BF16))                         \
    K(cast_f16_bf16, 0, sheaf_cast(c, X(F16, 11, 7, 5, 2), SHEAF_TYPE_BF16))                       \
    K(cast_f32, 0, sheaf_cast(c, X(BF16, 1100, 7, 1, 2), SHEAF_TYPE_F32))                          \
    K(cast_from_q8, 0, sheaf_cast(c, SWAPPED(Q8, 64, 7, 3, 2), SHEAF_TYPE_F32))                    \
    K(cast_from_q4k, 0, sheaf_cast(c, X(Q4K, 768, 7, 1, 1), SHEAF_TYPE_F32))                       \
    K(cast_from_q6k, 0, sheaf_cast(c, X(Q6K, 256, 7, 2, 1), SHEAF_TYPE_F16))                       \
    K(cast_to_q8, 0, sheaf_cast(c, TURNED(F32, 64, 7, 3, 2), SHEAF_TYPE_Q8_0))                     \
    K(cast_to_q4, 0, sheaf_cast(c, X(F32, 1056, 7, 1, 1), SHEAF_TYPE_Q4_0))                        \
    K(cast_to_q4_1, 0, sheaf_cast(c, X(F16, 96, 7, 3, 1), SHEAF_TYPE_Q4_1))                        \
    K(cast_q8_q4, 0, sheaf_cast(c, X(Q8, 96, 7, 3, 1), SHEAF_TYPE_Q4_0))                           \
    K(cast_q6k_q8, 0, sheaf_cast(c, X(Q6K, 512, 7, 3, 1), SHEAF_TYPE_Q8_0))                        \
    K(cast_i32_f32, 0, sheaf_cast(c, L(I32, "ids 99", 9, 7, 3, 1), SHEAF_TYPE_F32))                \
    K(cast_f32_i32, 0, sheaf_cast(c, turned(c, F32, "wide", 9, 7, 3, 1), SHEAF_TYPE_I32))          \
    K(cast_i64_i32, 0, sheaf_cast(c, L(I64, "ids 99", 9, 7, 3, 1), SHEAF_TYPE_I32))                \
    K(cast_i32_i64, 0, sheaf_cast(c, L(I32, "ids 99", 900, 7, 3, 1), SHEAF_TYPE_I64))              \
    K(cpy_same, 0, sheaf_cpy(c, X(F32, 9, 7, 3, 2), X(F32, 9, 7, 3, 2)))                           \
    K(cpy_shape, 0, sheaf_cpy(c, X(F32, 12, 7, 3, 2), X(F32, 7, 18, 2, 2)))                        \
    K(cpy_turned, 0, sheaf_cpy(c, TURNED(F32, 12, 7, 3, 2), TURNED(F32, 7, 18, 2, 2)))             \
    K(cpy_q8_rows, 0, sheaf_cpy(c, X(Q8, 96, 2, 1, 1), X(F32, 12, 16, 1, 1)))                      \
    K(cpy_q6k_odd, 0, sheaf_cpy(c, X(Q6K, 256, 6, 1, 1), X(F32, 3, 512, 1, 1)))                    \
    K(cpy_into_q8, 0, sheaf_cpy(c, TURNED(F32, 12, 16, 3, 1), X(Q8, 96, 2, 3, 1)))                 \
    K(cpy_view, 0, sheaf_cpy(c, X(F32, 8, 4, 1, 1),                                                \
                             sheaf_view_2d(c, X(F16, 20, 9, 1, 1), 8, 4, 80, 6)))                  \
    K(cpy_into_view, 0, sheaf_cpy(c, X(F32, 8, 4, 1, 1),                                           \
                                  sheaf_view_2d(c, X(F32, 20, 9, 1, 1), 8, 4, 80, 8)))             \
    K(cpy_empty, 0, sheaf_cpy(c, X(F32, 0, 7, 3, 2), X(F32, 5, 0, 1, 1)))                          \
    K(get_rows, 0, sheaf_get_rows(c, X(F32, 33, 20, 1, 1), L(I32, "ids 20", 9, 1, 1, 1)))          \
    K(get_rows_heads, 0, sheaf_get_rows(c, X(F32, 33, 20, 3, 2), L(I32, "ids 20", 9, 3, 2, 1)))    \
    K(get_rows_turned, 0, sheaf_get_rows(c, TURNED(F16, 33, 20, 3, 1), L(I32, "ids 20", 9, 3, 1, 1)))\
    K(get_rows_bf16, 0, sheaf_get_rows(c, X(BF16, 3300, 20, 1, 1), L(I32, "ids 20", 9, 1, 1, 1)))  \
    K(get_rows_q8, 0, sheaf_get_rows(c, X(Q8, 96, 20, 1, 1), L(I32, "ids 20", 9, 1, 1, 1)))        \
    K(get_rows_q4_1, 0, sheaf_get_rows(c, X(Q41, 96, 20, 1, 1), L(I32, "ids 20", 9, 1, 1, 1)))     \
    K(get_rows_q4k, 0, sheaf_get_rows(c, X(Q4K, 512, 20, 1, 1), L(I32, "ids 20", 9, 1, 1, 1)))     \
    K(get_rows_q6k, 0, sheaf_get_rows(c, X(Q6K, 512, 20, 1, 1), L(I32, "ids 20", 9, 1, 1, 1)))     \
    K(get_rows_slice, 0, slice(sheaf_get_rows(c, X(F32, 33, 8, 1, 1), L(I32, "ids 20", 19, 1, 1, 1)), 7, 20))\
    K(get_rows_first, 0, slice(sheaf_get_rows(c, X(Q8, 64, 8, 1, 1), L(I32, "ids 20", 19, 1, 1, 1)), 0, 20))\
    K(get_rows_nothing, 0, slice(sheaf_get_rows(c, X(F32, 33, 0, 1, 1), L(I32, "ids 20", 19, 1, 1, 1)), 20, 20))\
    K(get_rows_none, 0, sheaf_get_rows(c, X(F32, 33, 8, 1, 1), L(I32, "ids 8", 0, 1, 1, 1)))       \
    K(set_rows, 0, sheaf_set_rows(c, X(F32, 33, 20, 3, 2), X(F32, 33, 9, 3, 2), L(I64, "perm", 9, 1, 1, 1)))\
    K(set_rows_heads, 0, sheaf_set_rows(c, X(F32, 33, 20, 3, 2), X(F32, 33, 9, 3, 2), L(I32, "perm", 9, 3, 2, 1)))\
    K(set_rows_sequences, 0, sheaf_set_rows(c, X(F32, 33, 20, 3, 2), X(F32, 33, 9, 3, 2), L(I32, "ids 20", 9, 3, 2, 1)))\
    K(set_rows_twice, 0, sheaf_set_rows(c, X(F32, 1033, 20, 3, 1), TURNED(F32, 1033, 9, 3, 1), L(I32, "ids 4", 9, 3, 1, 1)))\
    K(set_rows_f16, 0, sheaf_set_rows(c, X(F16, 1033, 20, 1, 1), X(F32, 1033, 9, 1, 1), L(I64, "ids 20", 9, 1, 1, 1)))\
    K(set_rows_bf16, 0, sheaf_set_rows(c, X(BF16, 33, 20, 1, 1), X(F32, 33, 9, 1, 1), L(I64, "ids 20", 9, 1, 1, 1)))\
    K(set_rows_q8, 0, sheaf_set_rows(c, X(Q8, 1056, 20, 1, 1), X(F32, 1056, 9, 1, 1), L(I64, "ids 20", 9, 1, 1, 1)))\
    K(set_rows_q4, 0, sheaf_set_rows(c, X(Q4, 64, 20, 3, 1), SWAPPED(F32, 64, 9, 3, 1), L(I64, "ids 20", 9, 1, 1, 1)))\
    K(set_rows_view, 0, sheaf_set_rows(c, sheaf_view_2d(c, X(F32, 40, 20, 1, 1), 33, 10, 160, 164), X(F32, 33, 9, 1, 1), L(I64, "ids 10", 9, 1, 1, 1)))\
    K(set_rows_none, 0, sheaf_set_rows(c, X(F32, 33, 20, 1, 1), X(F32, 33, 0, 1, 1), L(I64, "ids 20", 0, 1, 1, 1)))\
    K(soft_max, 1e-6, sheaf_soft_max(c, L(F32, "wide", 300, 7, 3, 2)))                             \
    K(soft_max_mask, 1e-6, sheaf_soft_max_ext(c, X(F32, 65, 7, 3, 2), L(F32, "mask", 65, 7, 1, 1), 0.3f, 0))\
    K(soft_max_f16, 1e-6, sheaf_soft_max_ext(c, X(F32, 65, 7, 3, 2), L(F16, "mask", 65, 9, 3, 2), 2.0f, 0))\
    K(soft_max_turned_mask, 1e-6, sheaf_soft_max_ext(c, X(F32, 600, 7, 3, 1), turned(c, F16, "mask", 600, 7, 1, 1), 0.3f, 0))\
    K(soft_max_alibi, 1e-6, sheaf_soft_max_ext(c, X(F32, 65, 7, 6, 2), L(F16, "mask", 65, 7, 1, 2), 1.0f, 8.0f))\
    K(soft_max_slice, 1e-6, slice(sheaf_soft_max_ext(c, X(F32, 65, 7, 2, 1), L(F32, "mask", 65, 7, 1, 1), 1.0f, 8.0f), 3, 6))\
    K(soft_max_closed, 0, sheaf_soft_max_ext(c, X(F32, 65, 7, 2, 1), L(F16, "closed", 65, 7, 1, 1), 1.0f, 0))\
    K(soft_max_turned, 1e-6, sheaf_soft_max(c, TURNED(F32, 50, 7, 3, 2)))                          \
    K(soft_max_big, 1e-6, sheaf_soft_max(c, L(F32, "wide", 500, 30, 1, 1)))                        \
    K(rope, 2e-6, sheaf_rope_ext(c, X(F32, 64, 3, 5, 2), L(I32, "pos", 5, 1, 1, 1), NULL, 64, SHEAF_ROPE_TYPE_NORMAL, 0, 1e4f, 1, 0, 1, 0, 0))\
    K(rope_neox, 2e-6, sheaf_rope_ext(c, X(F32, 64, 3, 5, 2), L(I32, "pos", 5, 1, 1, 1), NULL, 64, SHEAF_ROPE_TYPE_NEOX, 0, 1e6f, 1, 0, 1, 0, 0))\
    K(rope_part, 2e-6, sheaf_rope_ext(c, TURNED(F32, 40, 3, 5, 1), L(I32, "pos", 5, 1, 1, 1), NULL, 22, SHEAF_ROPE_TYPE_NEOX, 0, 1e4f, 1, 0, 1, 0, 0))\
    K(rope_part_normal, 2e-6, sheaf_rope_ext(c, SWAPPED(F32, 40, 3, 5, 1), L(I32, "pos", 5, 1, 1, 1), NULL, 22, SHEAF_ROPE_TYPE_NORMAL, 0, 1e4f, 0.25f, 0, 1.5f, 0, 0))\
    K(rope_factors, 2e-6, sheaf_rope_ext(c, X(F32, 64, 9, 15, 1), L(I32, "pos", 15, 1, 1, 1), L(F32, "one+", 32, 1, 1, 1), 64, SHEAF_ROPE_TYPE_NORMAL, 0, 5e5f, 1, 0, 1, 0, 0))\
    K(rope_yarn, 3e-6, sheaf_rope_ext(c, X(F32, 64, 3, 5, 1), L(I32, "pos", 5, 1, 1, 1), NULL, 64, SHEAF_ROPE_TYPE_NEOX, 4096, 1e4f, 0.25f, 1, 1, 32, 1))\
    K(rope_yarn_half, 3e-6, sheaf_rope_ext(c, X(F32, 64, 3, 5, 1), L(I32, "pos", 5, 1, 1, 1), L(F32, "one+", 24, 1, 1, 1), 48, SHEAF_ROPE_TYPE_NORMAL, 2048, 1e4f, 0.125f, 0.5f, 1.1f, 32, 1))\
    K(rope_yarn_slow, 3e-6, sheaf_rope_ext(c, X(F32, 64, 3, 5, 1), L(I32, "pos", 5, 1, 1, 1), NULL, 64, SHEAF_ROPE_TYPE_NEOX, 4096, 10, 0.25f, 1, 1, 300, 1))\
    K(rope_yarn_turned, 3e-6, sheaf_rope_ext(c, X(F32, 64, 3, 5, 1), L(I32, "pos", 5, 1, 1, 1), NULL, 64, SHEAF_ROPE_TYPE_NEOX, 4096, 2, 0.25f, 1, 1, 32, 1))\
    K(rope_apart, 2e-6, sheaf_rope_ext(c, X(F32, 64, 3, 5, 1), column(c, L(I32, "pos", 2, 5, 1, 1)), column(c, L(F32, "one+", 2, 32, 1, 1)), 64, SHEAF_ROPE_TYPE_NORMAL, 0, 1e4f, 1, 0, 1, 0, 0))\
    K(rope_empty, 0, sheaf_rope_ext(c, X(F32, 64, 0, 5, 1), L(I32, "pos", 5, 1, 1, 1), NULL, 64, SHEAF_ROPE_TYPE_NORMAL, 0, 1e4f, 1, 0, 1, 0, 0))\
    K(attn, 1e-6, sheaf_flash_attn_ext(c, X(F32, 32, 5, 4, 2), X(F32, 32, 70, 4, 2), X(F32, 32, 70, 4, 2), NULL, 0.2f, 0, 0))\
    K(attn_gqa, 1e-6, sheaf_flash_attn_ext(c, SWAPPED(F32, 32, 5, 9, 1), X(F16, 32, 130, 3, 1), X(F16, 16, 130, 3, 1), L(F16, "mask", 130, 5, 1, 1), 0.2f, 0, 0))\
    K(attn_mqa_bf16, 1e-6, sheaf_flash_attn_ext(c, TURNED(F32, 32, 15, 9, 1), X(BF16, 32, 200, 1, 1), X(BF16, 48, 200, 1, 1), L(F32, "mask", 200, 16, 1, 1), 0.2f, 0, 0))\
    K(attn_q8, 5e-5, sheaf_flash_attn_ext(c, X(F32, 64, 5, 4, 2), X(Q8, 64, 70, 2, 2), X(Q8, 64, 70, 2, 2), L(F16, "mask", 70, 8, 1, 2), 0.2f, 0, 0))\
    K(attn_q4_k_view, 1e-6, sheaf_flash_attn_ext(c, X(F32, 64, 2, 4, 1), SWAPPED(Q4, 64, 70, 2, 1), SWAPPED(F16, 64, 70, 2, 1), NULL, 0.2f, 0, 0))\
    K(attn_head_mask, 1e-6, sheaf_flash_attn_ext(c, X(F32, 32, 5, 4, 2), X(F32, 32, 70, 2, 2), X(F32, 32, 70, 2, 2), L(F16, "mask", 70, 5, 4, 1), 1.0f, 0, 0))\
    K(attn_softcap, 2e-6, sheaf_flash_attn_ext(c, L(F32, "wide", 32, 5, 4, 1), X(F16, 32, 70, 2, 1), X(F16, 32, 70, 2, 1), L(F16, "mask", 70, 5, 1, 1), 0.3f, 0, 20.0f))\
    K(attn_alibi, 1e-6, sheaf_flash_attn_ext(c, X(F32, 32, 5, 6, 1), X(F16, 32, 70, 2, 1), X(F16, 32, 70, 2, 1), L(F16, "mask", 70, 5, 1, 1), 0.3f, 8.0f, 0))\
    K(attn_alibi_slice, 1e-6, slice(sheaf_flash_attn_ext(c, X(F32, 32, 5, 2, 1), X(F16, 32, 70, 1, 1), X(F16, 32, 70, 1, 1), L(F16, "mask", 70, 5, 1, 1), 0.3f, 8.0f, 0), 4, 6))\
    K(attn_decode, 1e-6, sheaf_flash_attn_ext(c, X(F32, 64, 1, 9, 1), SWAPPED(F16, 64, 300, 3, 1), SWAPPED(F16, 64, 300, 3, 1), L(F16, "mask", 300, 1, 1, 1), 0.125f, 0, 0))\
    K(attn_many, 1e-6, sheaf_flash_attn_ext(c, X(F32, 16, 70, 3, 1), X(F16, 16, 70, 1, 1), X(F16, 16, 70, 1, 1), L(F16, "mask", 70, 70, 1, 1), 0.25f, 0, 0))\
    K(attn_lanes_gqa, 1e-6, sheaf_flash_attn_ext(c, SWAPPED(F32, 20, 11, 6, 1), SWAPPED(F16, 20, 90, 2, 1), SWAPPED(F16, 13, 90, 2, 1), L(F16, "mask", 90, 11, 1, 1), 0.2f, 0, 0))\
    K(attn_lanes_softcap, 2e-6, sheaf_flash_attn_ext(c, L(F32, "wide", 16, 40, 1, 1), X(F16, 16, 70, 1, 1), X(BF16, 8, 70, 1, 1), L(F32, "mask", 70, 40, 1, 1), 0.3f, 0, 20.0f))\
    K(attn_lanes_alibi, 5e-5, sheaf_flash_attn_ext(c, X(F32, 32, 9, 10, 1), X(Q8, 32, 70, 2, 1), X(Q8, 32, 70, 2, 1), L(F16, "mask", 70, 9, 1, 1), 0.3f, 8.0f, 0))\
    K(attn_lanes_head_mask, 1e-6, sheaf_flash_attn_ext(c, X(F32, 8, 50, 2, 2), X(F32, 8, 70, 1, 2), X(Q4, 32, 70, 1, 2), L(F16, "mask", 70, 50, 2, 1), 1.0f, 0, 0))\
    K(attn_parts, 1e-6, sheaf_flash_attn_ext(c, X(F32, 16, 2, 9, 1), SWAPPED(F16, 16, 500, 1, 1), SWAPPED(F32, 8, 500, 1, 1), L(F16, "mask", 500, 2, 1, 1), 0.125f, 0, 0))\
    K(attn_parts_alibi, 1e-6, sheaf_flash_attn_ext(c, X(F32, 12, 3, 4, 2), X(BF16, 12, 300, 2, 2), X(F32, 5, 300, 2, 2), L(F32, "mask", 300, 3, 4, 1), 0.3f, 8.0f, 0))\
    K(attn_closed, 0, sheaf_flash_attn_ext(c, X(F32, 32, 5, 4, 1), X(F32, 32, 70, 4, 1), X(F32, 32, 70, 4, 1), L(F16, "closed", 70, 5, 1, 1), 0.2f, 0, 0))\
    K(attn_no_keys, 0, sheaf_flash_attn_ext(c, X(F32, 32, 5, 4, 1), X(F32, 32, 0, 4, 1), X(F32, 32, 0, 4, 1), NULL, 0.2f, 0, 0))\
    K(attn_no_heads, 0, sheaf_flash_attn_ext(c, X(F32, 32, 5, 0, 1), X(F32, 32, 7, 0, 1), X(F32, 32, 7, 0, 1), NULL, 0.2f, 0, 0))\
    K(mul_mat, 1e-5, sheaf_mul_mat(c, X(F32, 64, 9, 2, 1), X(F32, 64, 5, 4, 1)))                   \
    K(mul_mat_f16, 1e-5, sheaf_mul_mat(c, X(F16, 64, 40, 1, 1), X(F32, 64, 5, 1, 1)))              \
    K(mul_mat_k0, 0, sheaf_mul_mat(c, X(F32, 0, 9, 1, 1), X(F32, 0, 5, 1, 1)))                     \
    K(mul_mat_id, 1e-5, sheaf_mul_mat_id(c, X(F32, 64, 9, 4, 1), X(F32, 64, 1, 5, 1), L(I32, "ids 4", 2, 5, 1, 1)))\
    K(mul_mat_id_slice, 1e-5, slice(sheaf_mul_mat_id(c, X(F16, 64, 9, 2, 1), X(F32, 64, 2, 5, 1), L(I32, "ids 4", 2, 5, 1, 1)), 1, 4))
/* clang-format on */

MAKE_CASES

Test(cpu_ops, every_case) { run_cpu_cases(cases, N_CASES, expect); }

/* Rows that move down within their tensor are all there afterwards, on any number of threads. */
Test(cpu_ops, rows_move_down) {
    enum { N = 512, ROWS = 200, BY = 3 };
    for (int threads = 1; threads <= 3; threads++) {
        sheaf_backend_t backend = new_backend(threads);
        C *c = sheaf_init((struct sheaf_init_params){.mem_size = 4 << 20});
        T *x = sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, N, ROWS);
        T *from = sheaf_view_2d(c, x, N, ROWS - BY, x->nb[1], BY * x->nb[1]);
        struct sheaf_cgraph *g = sheaf_new_graph(c);
        cr_assert_eq(sheaf_build_forward_expand(
                         g, sheaf_cpy(c, from, sheaf_view_2d(c, x, N, ROWS - BY, x->nb[1], 0))),
                     SHEAF_STATUS_SUCCESS);
        for (int turn = 0; turn < 50; turn++) {
            float *f = x->data;
            for (int i = 0; i < N * ROWS; i++) f[i] = (float)i;
            cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_SUCCESS);
            for (int i = 0; i < N * (ROWS - BY); i++)
                cr_assert_eq(f[i], (float)(i + BY * N), "%d threads, turn %d: element %d", threads,
                             turn, i);
        }
        sheaf_free(c);
        sheaf_backend_free(backend);
    }
}

/* Products of one src1 pack it once, but never take what was packed before it changed. */
Test(cpu_ops, products_of_the_same_columns) {
    enum { K = 64, N = 40, M = 30 };
    for (int threads = 1; threads <= 3; threads++) {
        sheaf_backend_t backend = new_backend(threads);
        C *c = sheaf_init((struct sheaf_init_params){.mem_size = 4 << 20});
        T *x = X(F32, K, N, 1, 1), *z = X(F32, K, N, 1, 1), *w[5], *y[5];
        T *pos = L(I32, "pos", N, 1, 1, 1);
        const int types[] = {Q4, Q41, F16, F32, Q4};
        struct sheaf_cgraph *all = sheaf_new_graph(c);
        for (int i = 0; i < 5; i++) {
            w[i] = X(types[i], K, M, 1, 1);
            y[i] = sheaf_mul_mat(c, w[i], x);
            cr_assert_eq(sheaf_build_forward_expand(all, y[i]), SHEAF_STATUS_SUCCESS);
            if (i == 0) /* has work memory of its own */
                sheaf_build_forward_expand(
                    all, sheaf_rope_ext(c, sheaf_reshape_3d(c, z, 32, 2, N), pos, NULL, 32,
                                        SHEAF_ROPE_TYPE_NORMAL, 0, 1e4f, 1, 0, 1, 0, 0));
            if (i == 2) sheaf_build_forward_expand(all, sheaf_cpy(c, z, x));
        }
        for (T *t = sheaf_get_first_tensor(c); t; t = sheaf_get_next_tensor(c, t))
            if (t->op == SHEAF_OP_NONE) fill(t);
        float *old = malloc(sheaf_nbytes(x)), *got[5];
        memcpy(old, x->data, sheaf_nbytes(x));
        cr_assert_eq(sheaf_backend_graph_compute(backend, all), SHEAF_STATUS_SUCCESS);
        for (int i = 0; i < 5; i++) {
            got[i] = malloc(sheaf_nbytes(y[i]));
            memcpy(got[i], y[i]->data, sheaf_nbytes(y[i]));
        }
        for (int i = 0; i < 5; i++) { /* alone, by columns as they were then */
            struct sheaf_cgraph *one = sheaf_new_graph(c);
            sheaf_build_forward_expand(one, y[i]);
            memcpy(x->data, i <= 2 ? (void *)old : z->data, sheaf_nbytes(x));
            cr_assert_eq(sheaf_backend_graph_compute(backend, one), SHEAF_STATUS_SUCCESS);
            cr_assert_arr_eq(got[i], y[i]->data, sheaf_nbytes(y[i]), "%d of %d", i, threads);
            free(got[i]);
        }
        free(old);
        sheaf_free(c);
        sheaf_backend_free(backend);
    }
}

/* The same, where a product between the two has its own columns in the memory of the packed ones, or has packed
 * the same ones for two matrices. */
Test(cpu_ops, products_between_those_of_the_same_columns) {
    enum { K = 64, N = 20, M = 30, BETWEEN = 4 };
    for (int threads = 1; threads <= 2; threads++) {
        sheaf_backend_t backend = new_backend(threads);
        for (int i = 0; i < BETWEEN; i++) {
            C *c = sheaf_init((struct sheaf_init_params){.mem_size = 4 << 20});
            T *x = i == 3 ? X(F32, K, N, 1, 2) : X(F32, K, N, 2, 1), *w = X(Q4, K, M, 1, 1);
            T *ids = L(I32, "ids 2", 1, 3, 1, 1);
            T *const between[BETWEEN] = {
                sheaf_mul_mat(c, w, X(F32, K, 2, 1, 1)),
                sheaf_mul_mat_id(c, X(Q4, K, M, 2, 1), X(F32, K, 1, 3, 1), ids),
                sheaf_mul_mat(c, X(Q4, K, M, 2, 1), x), sheaf_mul_mat(c, X(Q4, K, M, 1, 2), x)};
            T *const y[] = {sheaf_mul_mat(c, w, x), between[i], sheaf_mul_mat(c, w, x)};
            struct sheaf_cgraph *g = sheaf_new_graph(c), *alone = sheaf_new_graph(c);
            float among[2 * 2 * N * M];
            for (int j = 0; j < 3; j++)
                cr_assert_eq(sheaf_build_forward_expand(g, y[j]), SHEAF_STATUS_SUCCESS);
            for (T *t = sheaf_get_first_tensor(c); t; t = sheaf_get_next_tensor(c, t))
                if (t->op == SHEAF_OP_NONE) fill(t);
            cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_SUCCESS);
            cr_assert_arr_eq(y[0]->data, y[2]->data, sheaf_nbytes(y[0]), "%d, %d threads", i,
                             threads);
            memcpy(among, y[1]->data, sheaf_nbytes(y[1]));
            sheaf_build_forward_expand(alone, y[1]);
            cr_assert_eq(sheaf_backend_graph_compute(backend, alone), SHEAF_STATUS_SUCCESS);
            cr_assert_arr_eq(y[1]->data, among, sheaf_nbytes(y[1]), "%d alone", i);
            sheaf_free(c);
        }
        sheaf_backend_free(backend);
    }
}

/* More columns than a chunk of rows keeps sums of: each has the bits that it has among fewer. */
Test(cpu_ops, products_of_very_many_columns) {
    enum { K = 64, N = 1100, M = 30, SOME = 100 };
    sheaf_backend_t backend = new_backend(2);
    C *c = sheaf_init((struct sheaf_init_params){.mem_size = 4 << 20});
    T *x = X(F32, K, N, 1, 1), *w = X(Q4, K, M, 1, 1), *all = sheaf_mul_mat(c, w, x);
    struct sheaf_cgraph *g = sheaf_new_graph(c);
    T *some[N / SOME];
    sheaf_build_forward_expand(g, all);
    for (int i = 0; i < N / SOME; i++) {
        some[i] = sheaf_mul_mat(
            c, w, sheaf_view_2d(c, x, K, SOME, x->nb[1], (size_t)i * SOME * x->nb[1]));
        sheaf_build_forward_expand(g, some[i]);
    }
    fill(x);
    fill(w);
    cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < N / SOME; i++)
        cr_assert_arr_eq(some[i]->data, (float *)all->data + i * SOME * M, sheaf_nbytes(some[i]),
                         "part %d", i);
    sheaf_free(c);
    sheaf_backend_free(backend);
}

/* NaN and infinities are not lost, and what lies behind a mask does not matter. */
static T *build_nan_attn(C *c) {
    return sheaf_flash_attn_ext(c, X(F32, 32, 1, 2, 1), X(F32, 32, 70, 2, 1), X(F32, 32, 70, 2, 1),
                                L(F32, "zero-mask", 70, 1, 1, 1), 0.2f, 0, 0);
}
static T *build_nan_attn_many(C *c) {
    return sheaf_flash_attn_ext(c, X(F32, 32, 40, 2, 1), X(F32, 32, 70, 2, 1), X(F32, 32, 70, 2, 1),
                                L(F32, "zero-mask", 70, 40, 1, 1), 0.2f, 0, 0);
}
static void attention_ignores_what_is_masked(T *(*build)(C *)) {
    sheaf_backend_t backend = new_backend(2);
    struct run r = prepare(backend, build);
    float *k = r.node->src[1]->data, *v = r.node->src[2]->data, *mask = r.node->src[3]->data;
    const int n = (int)r.node->src[0]->ne[1];
    for (int j = 0; j < 70 * n; j++) mask[j] = j % 70 % 3 == 1 ? -INFINITY : 0;
    for (int j = 1; j < 70; j += 3) {
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 32; i++) k[(h * 70 + j) * 32 + i] = v[(h * 70 + j) * 32 + i] = NAN;
        }
    }
    cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 64 * n; i++) cr_assert(isfinite(((float *)r.node->data)[i]));
    k[0] = NAN; /* an open one shows in its head, and only there */
    cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 64 * n; i++)
        cr_assert_eq(isnan(((float *)r.node->data)[i]) != 0, i % 64 < 32, "element %d", i);
    finish(&r);
    sheaf_backend_free(backend);
}
Test(cpu_ops, attention_ignores_what_is_masked) {
    attention_ignores_what_is_masked(build_nan_attn);
    attention_ignores_what_is_masked(build_nan_attn_many);
}

static T *build_seen_few(C *c) {
    return sheaf_flash_attn_ext(c, X(F32, 16, 2, 1, 1), X(F16, 16, 70, 1, 1), X(F16, 16, 70, 1, 1),
                                NULL, 0.25f, 0, 0);
}
static T *build_seen_many(C *c) {
    return sheaf_flash_attn_ext(c, X(F32, 16, 50, 1, 1), X(F16, 16, 70, 1, 1), X(F16, 16, 70, 1, 1),
                                NULL, 0.25f, 0, 0);
}
/* An infinite value that is seen is one of the result, and no other element changes. */
Test(cpu_ops, attention_shows_what_is_infinite) {
    T *(*const build[])(C *) = {build_seen_few, build_seen_many};
    sheaf_backend_t backend = new_backend(2);
    for (int k = 0; k < 2; k++) {
        struct run zero = prepare(backend, build[k]), infinite = prepare(backend, build[k]);
        const uint16_t values[] = {0, sheaf_fp32_to_fp16(INFINITY)};
        struct run *const runs[] = {&zero, &infinite};
        for (int i = 0; i < 2; i++) {
            memcpy((char *)runs[i]->node->src[2]->data + 66 * 32, &values[i], sizeof values[i]);
            cr_assert_eq(sheaf_backend_graph_compute(backend, runs[i]->graph),
                         SHEAF_STATUS_SUCCESS);
        }
        const float *x = zero.node->data, *y = infinite.node->data;
        for (int64_t i = 0; i < sheaf_nelements(zero.node); i++)
            cr_assert(i % 16 == 0 ? isinf(y[i]) && y[i] > 0 : y[i] == x[i], "%d: element %d is %g",
                      k, (int)i, (double)y[i]);
        finish(&zero);
        finish(&infinite);
    }
    sheaf_backend_free(backend);
}

static T *build_nan_soft_max(C *c) { return sheaf_soft_max(c, X(F32, 40, 2, 1, 1)); }
static T *build_nan_top_k(C *c) { return sheaf_top_k(c, X(F32, 40, 2, 1, 1), 40); }
static T *build_exp8(C *c) { return sheaf_unary(c, X(F32, 8, 1, 1, 1), SHEAF_UNARY_OP_EXP); }
Test(cpu_ops, nan_and_infinity) {
    sheaf_backend_t backend = new_backend(1);
    struct run r = prepare(backend, build_nan_soft_max);
    ((float *)r.node->src[0]->data)[5] = NAN;
    cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
    cr_assert(isnan(((float *)r.node->data)[0]));
    cr_assert(isfinite(((float *)r.node->data)[40]));
    finish(&r);

    r = prepare(backend, build_nan_top_k);
    ((float *)r.node->src[0]->data)[5] = NAN;
    ((float *)r.node->src[0]->data)[2] = NAN;
    cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(((int32_t *)r.node->data)[38], 2);
    cr_assert_eq(((int32_t *)r.node->data)[39], 5);
    finish(&r);

    r = prepare(backend, build_exp8);
    const float in[8] = {-INFINITY, -1000, -87, 0, 88.7f, 89, INFINITY, NAN};
    memcpy(r.node->src[0]->data, in, sizeof in);
    cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
    const float *out = r.node->data;
    cr_assert(out[0] == 0 && out[1] == 0 && out[3] == 1 && isinf(out[5]) && isinf(out[6]));
    cr_assert(isnan(out[7]));
    cr_assert_float_eq(out[2] / expf(-87), 1, 1e-6);
    cr_assert_float_eq(out[4] / expf(88.7f), 1, 1e-6);
    finish(&r);
    sheaf_backend_free(backend);
}

static T *build_f32_i64(C *c) { return sheaf_cast(c, X(F32, 9, 1, 1, 1), SHEAF_TYPE_I64); }
static T *build_f32_i32(C *c) { return sheaf_cast(c, X(F32, 9, 1, 1, 1), SHEAF_TYPE_I32); }
static T *build_i64_i32(C *c) { return sheaf_cast(c, X(I64, 9, 1, 1, 1), SHEAF_TYPE_I32); }
/* Whole numbers are the nearest that there is, and 0 for what is no number. */
Test(cpu_ops, numbers_that_do_not_fit) {
    const float in[9] = {
        NAN,  INFINITY, -INFINITY, 3e9f, -3e9f, 9223372036854775808.0f, -9223372036854775808.0f,
        2.9f, -2.9f};
    const int64_t want[9] = {0,         INT64_MAX, INT64_MIN, 3000000000, -3000000000,
                             INT64_MAX, INT64_MIN, 2,         -2};
    sheaf_backend_t backend = new_backend(1);
    T *(*const build[])(C *) = {build_f32_i64, build_f32_i32, build_i64_i32};
    for (int k = 0; k < 3; k++) {
        struct run r = prepare(backend, build[k]);
        memcpy(r.node->src[0]->data, k < 2 ? (const void *)in : want,
               k < 2 ? sizeof in : sizeof want);
        cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
        for (int i = 0; i < 9; i++) {
            const int64_t least = k ? INT32_MIN : INT64_MIN, most = k ? INT32_MAX : INT64_MAX;
            const int64_t x = want[i] < least ? least : want[i] > most ? most : want[i];
            const int64_t got =
                k ? ((const int32_t *)r.node->data)[i] : ((const int64_t *)r.node->data)[i];
            cr_expect_eq(got, x, "%s of element %d: %lld", k < 2 ? "f32" : "i64", i,
                         (long long)got);
        }
        finish(&r);
    }
    sheaf_backend_free(backend);
}

/* ---- errors ---- */

static T *build_bad_get(C *c) {
    T *ids = leaf(c, I32, "ids 20", 40, 1, 1, 1);
    return sheaf_set_name(sheaf_get_rows(c, X(F32, 1000, 20, 1, 1), ids), "tokens");
}
static T *build_bad_get_slice(C *c) { return slice(build_bad_get(c), 5, 30); }
static T *build_bad_set(C *c) {
    T *ids = leaf(c, I64, "ids 20", 40, 1, 1, 1);
    return sheaf_set_name(sheaf_set_rows(c, X(F32, 1000, 20, 1, 1), X(F32, 1000, 40, 1, 1), ids),
                          "tokens");
}
static T *build_bad_experts(C *c) {
    T *ids = leaf(c, I32, "ids 4", 2, 5, 1, 1);
    return sheaf_set_name(sheaf_mul_mat_id(c, X(F32, 64, 9, 4, 1), X(F32, 64, 1, 5, 1), ids),
                          "tokens");
}

Test(cpu_ops, bad_row_numbers) {
    static const struct {
        T *(*build)(C *);
        int ids;
        int64_t bad, good;
    } rows[] = {
        {build_bad_get, 1, 20, 19},       {build_bad_get, 1, -1, 0},
        {build_bad_get_slice, 1, 30, 29}, {build_bad_get_slice, 1, -1, 0},
        {build_bad_set, 2, 20, 19},       {build_bad_set, 2, -1, 0},
        {build_bad_experts, 2, 4, 3},     {build_bad_experts, 2, -1, 0},
    };
    for (int threads = 1; threads <= 3; threads++) {
        sheaf_backend_t backend = new_backend(threads);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct run r = prepare(backend, rows[i].build);
            T *ids = r.node->src[rows[i].ids];
            const int64_t at[2] = {0, sheaf_nelements(ids) - 1};
            for (int j = 0; j < 2; j++) {
                char text[32];
                int64_t v = rows[i].bad;
                void *p = (char *)ids->data + (size_t)at[j] * sheaf_type_size(ids->type);
                char was[8];
                memcpy(was, p, sheaf_type_size(ids->type));
                if (ids->type == SHEAF_TYPE_I32) {
                    memcpy(p, &(int32_t){(int32_t)v}, 4);
                } else {
                    memcpy(p, &v, 8);
                }
                sheaf_clear_error();
                cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_INVALID,
                             "case %zu", i);
                snprintf(text, sizeof text, "%d", (int)v);
                cr_assert(strstr(sheaf_last_error(), text), "%s", sheaf_last_error());
                cr_assert(strstr(sheaf_last_error(), "tokens"), "%s", sheaf_last_error());
                v = rows[i].good;
                memcpy(p, &v, sheaf_type_size(ids->type)); /* little-endian */
                cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
                memcpy(p, was, sheaf_type_size(ids->type));
            }
            finish(&r);
        }
        sheaf_backend_free(backend);
    }
}

Test(cpu_ops, refuses_what_it_cannot_compute) {
    sheaf_backend_t backend = new_backend(1);
    C *c = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20, .no_alloc = true});
    struct sheaf_cgraph *g = sheaf_new_graph(c);
    T *blocks = X(Q8, 64, 64, 1, 1), *ints = L(I32, "x", 64, 1, 1, 1);

    T *to_int = sheaf_cast(c, blocks, SHEAF_TYPE_I32);
    cr_assert_not(sheaf_backend_supports_op(backend, to_int));
    T *from_int = sheaf_cast(c, ints, SHEAF_TYPE_Q8_0);
    cr_assert_not(sheaf_backend_supports_op(backend, from_int));

    sheaf_set_name(to_int, "whole");
    cr_assert_eq(sheaf_build_forward_expand(g, to_int), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "'whole'"), "%s", sheaf_last_error());

    sheaf_graph_clear(g); /* no memory */
    T *fine = sheaf_set_name(sheaf_cast(c, blocks, SHEAF_TYPE_F32), "homeless");
    cr_assert_eq(sheaf_build_forward_expand(g, fine), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "'homeless' ("), "%s", sheaf_last_error());
    float floats[64 * 64];
    fine->data = floats;
    cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "operand 0 of 'homeless'"), "%s", sheaf_last_error());
    sheaf_free(c);
    sheaf_backend_free(backend);
}

/* ---- reuse of memory by the graph allocator ---- */

static T *build_chain(C *c) {
    T *x = leaf(c, F32, "x", 64, 5, 3, 1), *pos = leaf(c, I32, "pos", 3, 1, 1, 1);
    T *w = leaf(c, F32, "one+", 64, 1, 1, 1);
    sheaf_set_input(x);
    T *y = sheaf_mul(c, sheaf_rms_norm(c, sheaf_scale(c, x, 3), 1e-5f), w);
    y = sheaf_rope_ext(c, y, pos, NULL, 64, SHEAF_ROPE_TYPE_NEOX, 0, 1e4f, 1, 0, 1, 0, 0);
    y = sheaf_add(c, x, y);
    y = sheaf_sub(c, y, sheaf_silu(c, sheaf_scale(c, y, 2)));
    y = sheaf_rope_ext(c, y, pos, NULL, 32, SHEAF_ROPE_TYPE_NORMAL, 0, 1e4f, 1, 0, 1, 0, 0);
    return sheaf_soft_max(c, sheaf_swiglu_split(c, sheaf_gelu(c, y), sheaf_div(c, y, w)));
}

Test(cpu_ops, memory_reuse_changes_nothing) {
    sheaf_backend_t backend = new_backend(2);
    struct run apart = prepare(backend, build_chain);
    cr_assert_eq(sheaf_backend_graph_compute(backend, apart.graph), SHEAF_STATUS_SUCCESS);

    struct run r = {0};
    r.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20, .no_alloc = true});
    r.node = build_chain(r.ctx);
    r.graph = sheaf_new_graph(r.ctx);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, r.node), SHEAF_STATUS_SUCCESS);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, r.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_lt(sheaf_gallocr_get_buffer_size(galloc),
                 sheaf_backend_buffer_get_size(apart.buffer));
    seed = 12345;
    for (int i = 0; i < sheaf_graph_n_leafs(r.graph); i++) fill(sheaf_graph_leaf(r.graph, i));
    cr_assert_eq(sheaf_backend_graph_compute(backend, r.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(memcmp(r.node->data, apart.node->data, sheaf_nbytes(r.node)), 0);
    sheaf_gallocr_free(galloc);
    sheaf_free(r.ctx);
    finish(&apart);
    sheaf_backend_free(backend);
}
