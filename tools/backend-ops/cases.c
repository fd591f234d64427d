/* The table: every op with its cases. A case is data, so that it can be built on any backend, cut
 * along any axis, and printed. A new op is a new line of `op_families` and a generator. */
#include "cases.h"

static const enum sheaf_type all_types[] = {
    SHEAF_TYPE_F32,   SHEAF_TYPE_F16,     SHEAF_TYPE_BF16,   SHEAF_TYPE_Q4_0,   SHEAF_TYPE_Q4_1,
    SHEAF_TYPE_Q5_0,  SHEAF_TYPE_Q5_1,    SHEAF_TYPE_Q8_0,   SHEAF_TYPE_Q4_K,   SHEAF_TYPE_Q5_K,
    SHEAF_TYPE_Q6_K,  SHEAF_TYPE_Q2_K,    SHEAF_TYPE_Q3_K,   SHEAF_TYPE_IQ4_NL, SHEAF_TYPE_IQ4_XS,
    SHEAF_TYPE_MXFP4, SHEAF_TYPE_NVFP4,   SHEAF_TYPE_Q1_0,   SHEAF_TYPE_Q2_0,   SHEAF_TYPE_TQ1_0,
    SHEAF_TYPE_TQ2_0, SHEAF_TYPE_IQ2_XXS, SHEAF_TYPE_IQ2_XS, SHEAF_TYPE_IQ2_S,  SHEAF_TYPE_IQ3_XXS,
    SHEAF_TYPE_IQ3_S, SHEAF_TYPE_IQ1_S,   SHEAF_TYPE_IQ1_M};
/* The first so many meet each other in copies; the others F32 and themselves. */
enum { COPIED_ACROSS = 16 };
static bool copied(size_t from, size_t to) {
    return (from < COPIED_ACROSS && to < COPIED_ACROSS) || from == to || !from || !to;
}

/* ---- elementwise ---- */

void gen_map(struct op_list *l, const struct op_family *f) {
    for (int layout = 0; layout <= LAYOUT_TRANSPOSED; layout++)
        one(l, f, laid(shape(SHEAF_TYPE_F32, 12, 5, 4, 3), (enum layout)layout), 0.7f, 0);
    one(l, f, shape(SHEAF_TYPE_F32, 1, 1, 1, 1), -2, 0.25f);
    one(l, f, shape(SHEAF_TYPE_F32, 0, 3, 1, 1), 1, 0);
    one(l, f, shape(SHEAF_TYPE_F32, 6, 0, 2, 1), 1, 0);
    one(l, f, shape(SHEAF_TYPE_F32, 131, 7, 1, 1), 0.5f, -1);
    one(l, f, shape(SHEAF_TYPE_F32, 4096, 65, 1, 1), 0.5f, 1);
    l->cases[l->n - 1].large = true;
}

static void gen_glu(struct op_list *l, const struct op_family *f) {
    for (int swapped = 0; swapped < 2; swapped++) {
        const size_t first = l->n;
        gen_map(l, f);
        for (size_t i = first; i < l->n; i++) {
            l->cases[i].i[0] = swapped;
            l->cases[i].in[0].ne[0] *= 2;
        }
    }
    const size_t first = l->n;
    gen_map(l, f);
    for (size_t i = first; i < l->n; i++) {
        l->cases[i].n_in = 2;
        const int64_t *ne = l->cases[i].in[0].ne;
        l->cases[i].in[1] =
            laid(l->cases[i].in[0], ne[0] && ne[1] ? (enum layout)(i % 3) : LAYOUT_PLAIN);
    }
}

static void gen_binary(struct op_list *l, const struct op_family *f) {
    static const int64_t b[][4] = {{12, 5, 4, 3}, {1, 1, 1, 1}, {12, 1, 1, 1}, {12, 5, 1, 1},
                                   {1, 5, 4, 3},  {6, 5, 2, 3}, {12, 1, 4, 1}, {12, 5, 2, 1}};
    for (size_t t = 0; t < COUNT(floats); t++) {
        for (int same = 0; same <= (t > 0); same++) {
            const enum sheaf_type tb = same ? floats[t] : SHEAF_TYPE_F32;
            for (size_t s = 0; s < COUNT(b); s++) {
                struct op_case *c = add(l, f, 2);
                c->in[0] = shape(floats[t], 12, 5, 4, 3);
                c->in[1] = filled(shape(tb, b[s][0], b[s][1], b[s][2], b[s][3]), FILL_POSITIVE, 0);
            }
            for (int la = 0; la <= LAYOUT_TRANSPOSED; la++) {
                for (int lb = 0; lb <= LAYOUT_TRANSPOSED; lb++) {
                    struct op_case *c = add(l, f, 2);
                    c->in[0] = laid(shape(floats[t], 10, 4, 6, 1), (enum layout)la);
                    c->in[1] =
                        filled(laid(shape(tb, 10, 4, 3, 1), (enum layout)lb), FILL_POSITIVE, 0);
                }
            }
        }
    }
    static const int64_t empty[][4] = {{0, 3, 1, 1}, {4, 0, 2, 1}, {4, 2, 1, 0}};
    for (size_t s = 0; s < COUNT(empty); s++) {
        struct op_case *c = add(l, f, 2);
        c->in[0] = c->in[1] =
            shape(SHEAF_TYPE_F32, empty[s][0], empty[s][1], empty[s][2], empty[s][3]);
    }
    struct op_case *c = add(l, f, 2);
    c->in[0] = shape(SHEAF_TYPE_F32, 4096, 65, 1, 1);
    c->in[1] = filled(shape(SHEAF_TYPE_F32, 4096, 1, 1, 1), FILL_POSITIVE, 0);
    c->large = true;
}

static T *build_add(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_add(ctx, x[0], x[1]);
}
static T *build_sub(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_sub(ctx, x[0], x[1]);
}
static T *build_mul(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_mul(ctx, x[0], x[1]);
}
static T *build_div(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_div(ctx, x[0], x[1]);
}
static T *build_scale(C *ctx, const struct op_case *c, T **x) {
    return sheaf_scale_bias(ctx, x[0], c->f[0], c->f[1]);
}
static T *build_unary(C *ctx, const struct op_case *c, T **x) {
    return sheaf_unary(ctx, x[0], (enum sheaf_unary_op)c->family->number);
}
static T *build_glu(C *ctx, const struct op_case *c, T **x) {
    const enum sheaf_glu_op op = (enum sheaf_glu_op)c->family->number;
    return c->n_in == 2 ? sheaf_glu_split(ctx, x[0], x[1], op)
                        : sheaf_glu(ctx, x[0], op, c->i[0] != 0);
}

/* ---- rows ---- */

static T *build_sum_rows(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_sum_rows(ctx, x[0]);
}
static T *build_rms_norm(C *ctx, const struct op_case *c, T **x) {
    return sheaf_rms_norm(ctx, x[0], c->f[1] < 0 ? 1e-6f : 1e-2f);
}

static void gen_argmax(struct op_list *l, const struct op_family *f) {
    one(l, f, shape(SHEAF_TYPE_F32, 50, 7, 1, 1), 0, 0);
    one(l, f, shape(SHEAF_TYPE_F32, 1, 1, 1, 1), 0, 0);
    one(l, f, shape(SHEAF_TYPE_F32, 5, 0, 1, 1), 0, 0);
    one(l, f, laid(shape(SHEAF_TYPE_F32, 50, 7, 1, 1), LAYOUT_GAP), 0, 0);
    one(l, f, laid(shape(SHEAF_TYPE_F32, 50, 7, 1, 1), LAYOUT_TRANSPOSED), 0, 0);
    one(l, f, shape(SHEAF_TYPE_F32, 32000, 9, 1, 1), 0, 0);
    l->cases[l->n - 1].large = true;
}
static T *build_argmax(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_argmax(ctx, x[0]);
}

static void gen_top_k(struct op_list *l, const struct op_family *f) {
    static const int k[] = {1, 3, 20};
    for (size_t i = 0; i < COUNT(k); i++) {
        for (int layout = 0; layout <= LAYOUT_TRANSPOSED; layout++) {
            one(l, f, laid(shape(SHEAF_TYPE_F32, 20, 6, 2, 2), (enum layout)layout), 0, 0);
            l->cases[l->n - 1].i[0] = k[i];
        }
    }
    one(l, f, shape(SHEAF_TYPE_F32, 32000, 3, 1, 1), 0, 0);
    l->cases[l->n - 1].i[0] = 40;
    l->cases[l->n - 1].large = true;
}
static T *build_top_k(C *ctx, const struct op_case *c, T **x) {
    return sheaf_top_k(ctx, x[0], c->i[0]);
}

static void gen_concat(struct op_list *l, const struct op_family *f) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_BF16,
                                            SHEAF_TYPE_I32, SHEAF_TYPE_I64, SHEAF_TYPE_Q8_0,
                                            SHEAF_TYPE_Q4_K};
    for (size_t t = 0; t < COUNT(types); t++) {
        const int64_t blck = sheaf_blck_size(types[t]);
        const bool whole = types[t] == SHEAF_TYPE_I32 || types[t] == SHEAF_TYPE_I64;
        for (int dim = 0; dim < 4; dim++) {
            for (int layout = 0; layout < (blck == 1 ? 4 : 3); layout++) {
                struct op_case *c = add(l, f, 2);
                c->i[0] = dim;
                for (int k = 0; k < 2; k++) {
                    c->in[k] = laid(shape(types[t], 2 * blck, 3, 4, 2),
                                    k ? LAYOUT_PLAIN : (enum layout)layout);
                    if (k) c->in[k].ne[dim] += dim ? 1 : blck;
                    if (whole) c->in[k] = filled(c->in[k], FILL_INDEX, 1000);
                }
            }
        }
    }
    struct op_case *c = add(l, f, 2);
    c->in[0] = shape(SHEAF_TYPE_F32, 0, 3, 1, 1);
    c->in[1] = shape(SHEAF_TYPE_F32, 4, 3, 1, 1);
}
static T *build_concat(C *ctx, const struct op_case *c, T **x) {
    return sheaf_concat(ctx, x[0], x[1], c->i[0]);
}

/* ---- products ---- */

static void product(struct op_list *l, const struct op_family *f, struct operand a,
                    struct operand b) {
    struct op_case *c = add(l, f, 2);
    c->in[0] = a;
    c->in[1] = b;
}

static void gen_mul_mat(struct op_list *l, const struct op_family *f) {
    static const int64_t n[] = {1, 2, 7, 33};
    for (size_t t = 0; t < COUNT(all_types); t++) {
        const enum sheaf_type ta = all_types[t];
        for (int half = 0; half <= (ta == SHEAF_TYPE_F16); half++) {
            const enum sheaf_type tb = half ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32;
            for (size_t i = 0; i < COUNT(n); i++)
                product(l, f, shape(ta, 512, 16, 1, 1), shape(tb, 512, n[i], 1, 1));
            product(l, f, shape(ta, 256, 5, 2, 2), shape(tb, 256, 3, 2, 2));
            product(l, f, shape(ta, 256, 5, 2, 1), shape(tb, 256, 3, 6, 1));
            product(l, f, shape(ta, 256, 5, 2, 2), shape(tb, 256, 3, 4, 6));
            product(l, f, laid(shape(ta, 256, 6, 4, 1), LAYOUT_PERMUTED),
                    laid(shape(tb, 256, 3, 4, 1), LAYOUT_PERMUTED));
            product(l, f, laid(shape(ta, 256, 6, 4, 1), LAYOUT_GAP),
                    laid(shape(tb, 256, 3, 4, 1), LAYOUT_GAP));
            product(l, f, shape(ta, 256, 6, 4, 1),
                    laid(shape(tb, 256, 3, 4, 1), LAYOUT_TRANSPOSED));
            product(l, f, shape(ta, 256, 4, 1, 1), shape(tb, 256, 0, 1, 1));
            product(l, f, shape(ta, 256, 0, 1, 1), shape(tb, 256, 4, 1, 1));
            product(l, f, shape(ta, 0, 3, 1, 1), shape(tb, 0, 4, 1, 1));
        }
        for (int64_t k = 2048; k <= 6144; k += 4096) /* rows of whole chunks, one column */
            product(l, f, shape(ta, k, 9, 1, 1), shape(SHEAF_TYPE_F32, k, 1, 1, 1));
        for (int large = 0; large < 2 && t < COPIED_ACROSS; large++) {
            product(l, f, shape(ta, 2048, 1024, 1, 1),
                    shape(SHEAF_TYPE_F32, 2048, large ? 32 : 1, 1, 1));
            l->cases[l->n - 1].large = true;
        }
    }
    for (size_t t = 0; t < COUNT(floats); t++)
        product(l, f, shape(floats[t], 67, 9, 1, 3), shape(SHEAF_TYPE_F32, 67, 5, 2, 3));
    static const enum sheaf_type some[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_BF16,
                                           SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_K};
    for (size_t t = 0; t < COUNT(some); t++) { /* several matrices, many columns */
        product(l, f, shape(some[t], 256, 40, 2, 2), shape(SHEAF_TYPE_F32, 256, 12, 4, 6));
        for (int layout = LAYOUT_PLAIN + 1; layout <= LAYOUT_TRANSPOSED; layout++)
            product(l, f,
                    laid(shape(some[t], 256, 40, 3, 1),
                         layout == LAYOUT_TRANSPOSED ? LAYOUT_PLAIN : (enum layout)layout),
                    laid(shape(SHEAF_TYPE_F32, 256, 12, 6, 1), (enum layout)layout));
    }
}
static T *build_mul_mat(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_mul_mat(ctx, x[0], x[1]);
}

static void gen_mul_mat_id(struct op_list *l, const struct op_family *f) {
    static const int64_t n[] = {0, 1, 5, 40};
    for (size_t t = 0; t < COUNT(all_types); t++) {
        for (size_t i = 0; i < COUNT(n); i++) {
            for (int each = 0; each < 2; each++) { /* a column for each expert, or one for all */
                struct op_case *c = add(l, f, 3);
                c->in[0] =
                    laid(shape(all_types[t], 256, 6, 8, 1), each ? LAYOUT_GAP : LAYOUT_PLAIN);
                c->in[1] = shape(SHEAF_TYPE_F32, 256, each ? 3 : 1, n[i], 1);
                c->in[2] = filled(shape(SHEAF_TYPE_I32, 3, n[i], 1, 1), FILL_DISTINCT, 8);
            }
        }
    }
}
static T *build_mul_mat_id(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_mul_mat_id(ctx, x[0], x[1], x[2]);
}

/* ---- copies and views ---- */

static void gen_cpy(struct op_list *l, const struct op_family *f) {
    for (size_t from = 0; from < COUNT(all_types); from++) {
        for (size_t to = 0; to < COUNT(all_types); to++) {
            const bool plain = from < COUNT(floats);
            if (!copied(from, to)) continue;
            for (int layout = 0; layout < (plain ? 4 : 3); layout++) {
                struct op_case *c = add(l, f, 2);
                c->in[0] = laid(shape(all_types[from], 256, 4, 3, 2), (enum layout)layout);
                c->in[1] = laid(shape(all_types[to], 256, 4, 3, 2),
                                layout % 2 ? LAYOUT_PLAIN : LAYOUT_GAP);
            }
            if (to >= COUNT(floats)) continue; /* elements of a row of blocks lie together */
            struct op_case *c = add(l, f, 2);
            c->in[0] = shape(all_types[from], 256, 4, 3, 2);
            c->in[1] = laid(shape(all_types[to], 256, 4, 3, 2), LAYOUT_TRANSPOSED);
        }
    }
    static const enum sheaf_type ints[] = {SHEAF_TYPE_I32, SHEAF_TYPE_I64, SHEAF_TYPE_F32};
    for (size_t from = 0; from < COUNT(ints); from++) {
        for (size_t to = 0; to < COUNT(ints); to++) {
            struct op_case *c = add(l, f, 2);
            c->in[0] = filled(laid(shape(ints[from], 6, 4, 3, 1), LAYOUT_PERMUTED), FILL_INDEX, 99);
            c->in[1] = filled(shape(ints[to], 6, 4, 3, 1), FILL_INDEX, 99);
        }
    }
    for (int empty = 0; empty < 2; empty++) { /* another shape of as many elements */
        struct op_case *c = add(l, f, 2);
        c->in[0] = shape(SHEAF_TYPE_F32, 12, empty ? 0 : 4, 2, 1);
        c->in[1] = shape(SHEAF_TYPE_F16, 8, empty ? 0 : 12, 1, 1);
    }
}
static T *build_cpy(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_cpy(ctx, x[0], x[1]);
}

static void gen_cast(struct op_list *l, const struct op_family *f) {
    for (size_t from = 0; from < COUNT(all_types); from++) {
        for (size_t to = 0; to < COUNT(all_types); to++) {
            if (!copied(from, to)) continue;
            one(l, f, laid(shape(all_types[from], 256, 4, 3, 1), (enum layout)((from + to) % 3)), 0,
                0);
            l->cases[l->n - 1].i[0] = (int)all_types[to];
        }
    }
}
static T *build_cast(C *ctx, const struct op_case *c, T **x) {
    return sheaf_cast(ctx, x[0], (enum sheaf_type)c->i[0]);
}

static void gen_cont(struct op_list *l, const struct op_family *f) {
    for (size_t t = 0; t < COUNT(all_types); t++) {
        for (int layout = 0; layout < (t < COUNT(floats) ? 4 : 3); layout++)
            one(l, f, laid(shape(all_types[t], 512, 4, 3, 2), (enum layout)layout), 0, 0);
    }
    one(l, f, laid(filled(shape(SHEAF_TYPE_I32, 6, 4, 3, 2), FILL_INDEX, 99), LAYOUT_TRANSPOSED), 0,
        0);
    one(l, f, laid(shape(SHEAF_TYPE_F32, 4, 0, 3, 2), LAYOUT_PERMUTED), 0, 0);
    one(l, f, laid(shape(SHEAF_TYPE_F32, 1024, 130, 1, 1), LAYOUT_TRANSPOSED), 0, 0);
    l->cases[l->n - 1].large = true;
}
static T *build_cont(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_cont(ctx, x[0]);
}

/* Views have nothing to compute; a copy of each shows their elements. */
static void gen_view(struct op_list *l, const struct op_family *f) {
    for (size_t t = 0; t < COUNT(all_types); t++) {
        const int n = f->number == 0 ? 4 : f->number == 1 ? 4 : f->number == 2 ? 6 : 1;
        if (f->number == 3 && t >= COUNT(floats)) break;
        for (int i = 0; i < n; i++) {
            one(l, f, shape(all_types[t], 512, 6, 4, 2), 0, 0);
            l->cases[l->n - 1].i[0] = i;
        }
    }
}
static T *build_view(C *ctx, const struct op_case *c, T **x) {
    T *a = x[0], *y = NULL;
    static const int axes[6][4] = {{0, 2, 1, 3}, {0, 3, 2, 1}, {0, 1, 3, 2},
                                   {0, 2, 3, 1}, {0, 3, 1, 2}, {0, 1, 2, 3}};
    switch (c->family->number * 8 + c->i[0]) {
    case 0:
        y = sheaf_reshape_1d(ctx, a, 512 * 48);
        break;
    case 1:
        y = sheaf_reshape_2d(ctx, a, 512 * 6, 8);
        break;
    case 2:
        y = sheaf_reshape_3d(ctx, a, 256, 2, 48);
        break;
    case 3:
        y = sheaf_reshape_4d(ctx, a, 512, 3, 2, 8);
        break;
    case 8:
        y = sheaf_view_1d(ctx, a, 512, 2 * a->nb[1]);
        break;
    case 9:
        y = sheaf_view_2d(ctx, a, 256, 3, a->nb[1], a->nb[2] + sheaf_row_size(a->type, 256));
        break;
    case 10:
        y = sheaf_view_3d(ctx, a, 512, 2, 3, a->nb[1], a->nb[2], a->nb[1]);
        break;
    case 11:
        y = sheaf_view_4d(ctx, a, 512, 6, 2, 2, a->nb[1], 2 * a->nb[2], a->nb[3], 0);
        break;
    case 24:
        y = sheaf_transpose(ctx, a);
        break;
    default:
        y = sheaf_permute(ctx, a, axes[c->i[0]][0], axes[c->i[0]][1], axes[c->i[0]][2],
                          axes[c->i[0]][3]);
        break;
    }
    return sheaf_cont(ctx, y);
}

/* ---- gather and scatter ---- */

static void gen_get_rows(struct op_list *l, const struct op_family *f) {
    struct op_case *whole = add(l, f, 2);
    whole->in[0] = filled(shape(SHEAF_TYPE_I32, 8, 10, 2, 3), FILL_INDEX, 999);
    whole->in[1] = filled(shape(SHEAF_TYPE_I32, 4, 2, 3, 1), FILL_INDEX, 10);
    for (size_t t = 0; t < COUNT(all_types); t++) {
        for (int i = 0; i < 5; i++) {
            struct op_case *c = add(l, f, 2);
            const int64_t h = i >= 2 ? 2 : 1, s = i >= 2 ? 3 : 1, n = i == 1 ? 0 : 4;
            c->in[0] = laid(shape(all_types[t], 256, 10, h, s), i == 3   ? LAYOUT_GAP
                                                                : i == 4 ? LAYOUT_PERMUTED
                                                                         : LAYOUT_PLAIN);
            c->in[1] = filled(shape(SHEAF_TYPE_I32, n, h, s, 1), FILL_INDEX, 10);
        }
    }
    struct op_case *c = add(l, f, 2);
    c->in[0] = shape(SHEAF_TYPE_Q8_0, 2048, 1000, 1, 1);
    c->in[1] = filled(shape(SHEAF_TYPE_I32, 64, 1, 1, 1), FILL_INDEX, 1000);
    c->large = true;
}
static T *build_get_rows(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_get_rows(ctx, x[0], x[1]);
}

static void gen_set_rows(struct op_list *l, const struct op_family *f) {
    for (size_t t = 0; t < COUNT(all_types); t++) {
        for (int i = 0; i < 6; i++) {
            struct op_case *c = add(l, f, 3);
            const int64_t h = i >= 2 ? 2 : 1, s = i >= 2 ? 3 : 1, n = i == 1 ? 0 : 4;
            c->in[0] = laid(shape(all_types[t], 256, 10, h, s), i == 3   ? LAYOUT_GAP
                                                                : i == 4 ? LAYOUT_PERMUTED
                                                                         : LAYOUT_PLAIN);
            c->in[1] =
                laid(shape(SHEAF_TYPE_F32, 256, n, h, s), i == 3 ? LAYOUT_PERMUTED : LAYOUT_PLAIN);
            c->in[2] = filled(shape(i % 2 ? SHEAF_TYPE_I32 : SHEAF_TYPE_I64, n, i == 5 ? 1 : h,
                                    i == 5 ? 1 : s, 1),
                              FILL_DISTINCT, 10);
        }
        struct op_case *c = add(l, f, 3); /* rows of F16, lists that repeat */
        c->in[0] = shape(all_types[t], 256, 10, 4, 6);
        c->in[1] = shape(SHEAF_TYPE_F16, 256, 4, 4, 6);
        c->in[2] = filled(shape(SHEAF_TYPE_I64, 4, 2, 3, 1), FILL_DISTINCT, 10);
    }
}
static T *build_set_rows(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_set_rows(ctx, x[0], x[1], x[2]);
}

/* ---- attention ---- */

static void gen_soft_max(struct op_list *l, const struct op_family *f) {
    gen_map(l, f);
    static const enum sheaf_type masks[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16};
    for (size_t t = 0; t < 2; t++) {
        for (int bias = 0; bias < 2; bias++) {
            for (int i = 0; i < 4; i++) {
                struct op_case *c = add(l, f, 2);
                c->f[0] = 0.5f;
                c->f[2] = bias ? 8.0f : 0.0f;
                c->in[0] = laid(shape(SHEAF_TYPE_F32, 32, 5, 6, 2),
                                i == 3 ? LAYOUT_PERMUTED : LAYOUT_PLAIN);
                c->in[1] =
                    filled(shape(masks[t], 32, i == 2 ? 8 : 5, i == 1 ? 6 : 1, i == 1 ? 2 : 1),
                           FILL_MASK, 0);
            }
        }
    }
    for (int i = 0; i < 4; i++) { /* sinks; masks that repeat */
        struct op_case *c = add(l, f, i == 1 ? 2 : 3);
        c->f[0] = 0.5f;
        c->f[2] = i == 2 ? 8.0f : 0.0f;
        c->i[0] = 1;
        c->in[0] = shape(SHEAF_TYPE_F32, 33, 5, 6, i == 3 ? 4 : 2);
        c->in[1] =
            filled(shape(SHEAF_TYPE_F16, 33, 5, i == 3 ? 3 : 1, i == 3 ? 2 : 1), FILL_MASK, 0);
        c->in[c->n_in - 1] = shape(SHEAF_TYPE_F32, 6, 1, 1, 1);
    }
}
/* The last operand is sinks if the case says so (i[0]); the one before it the mask, if it is
 * there. */
static T *build_soft_max(C *ctx, const struct op_case *c, T **x) {
    T *sinks = c->i[0] ? x[c->n_in - 1] : NULL;
    return sheaf_soft_max_sinks(ctx, x[0], c->n_in > 1 + (sinks != NULL) ? x[1] : NULL, sinks,
                                c->f[0], c->f[2]);
}

static void gen_rope(struct op_list *l, const struct op_family *f) {
    for (int mode = 0; mode <= 2; mode += 2) {
        for (int i = 0; i < 8; i++) {
            struct op_case *c = add(l, f, i == 2 || i == 7 ? 3 : 2);
            static const enum layout layouts[] = {LAYOUT_GAP, LAYOUT_PERMUTED};
            c->in[0] = laid(shape(SHEAF_TYPE_F32, 64, 6, i == 5 ? 0 : 5, i == 6 ? 2 : 1),
                            i == 3 || i == 4 ? layouts[i - 3] : LAYOUT_PLAIN);
            c->in[1] = filled(shape(SHEAF_TYPE_I32, c->in[0].ne[2], 1, 1, 1), FILL_INDEX, 100000);
            c->in[2] = filled(shape(SHEAF_TYPE_F32, i == 7 ? 16 : 32, 1, 1, 1), FILL_POSITIVE, 0);
            c->i[0] = i == 1 || i == 7 ? 32 : 64;
            c->i[1] = mode;
            c->f[0] = i == 6 ? 1.0f : 0.0f; /* YaRN */
        }
        for (int i = 0; i < 3; i++) { /* an offset, halves */
            struct op_case *c = add(l, f, 2);
            c->in[0] = laid(shape(i ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32, 64, 6, 5, 2),
                            i == 2 ? LAYOUT_PERMUTED : LAYOUT_PLAIN);
            c->in[1] = filled(shape(SHEAF_TYPE_I32, 5, 1, 1, 1), FILL_INDEX, 1000);
            c->i[0] = i ? 64 : 24;
            c->i[1] = mode;
            c->i[2] = i ? 0 : 10;
        }
    }
    static const int modes[] = {SHEAF_ROPE_TYPE_MROPE, SHEAF_ROPE_TYPE_VISION,
                                SHEAF_ROPE_TYPE_IMROPE};
    for (int i = 0; i < 9; i++) { /* four positions a token */
        struct op_case *c = add(l, f, i % 3 ? 3 : 2);
        c->in[0] = shape(i / 3 == 1 ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32, 64, 6, 5, 2);
        c->in[1] = filled(shape(SHEAF_TYPE_I32, 20, 1, 1, 1), FILL_INDEX, 1000);
        c->in[2] = filled(shape(SHEAF_TYPE_F32, 32, 1, 1, 1), FILL_POSITIVE, 0);
        c->i[1] = modes[i % 3];
        c->i[0] = c->i[1] == SHEAF_ROPE_TYPE_VISION ? 32 : i / 3 == 2 ? 40 : 64;
        c->i[2] = i == 6 ? 24 : 0;
        c->f[0] = i / 3 == 2 ? 0.5f : 0.0f;
    }
    for (int i = 0; i < 2; i++) { /* an empty section before another */
        struct op_case *c = add(l, f, 2);
        c->in[0] = shape(SHEAF_TYPE_F32, 64, 6, 5, 2);
        c->in[1] = filled(shape(SHEAF_TYPE_I32, 20, 1, 1, 1), FILL_INDEX, 1000);
        c->i[1] = modes[i];
        c->i[0] = c->i[1] == SHEAF_ROPE_TYPE_VISION ? 32 : 64;
        c->i[3] = 1;
    }
}
static T *build_rope(C *ctx, const struct op_case *c, T **x) {
    static const int sections[2][4] = {{7, 6, 5, 2}, {7, 0, 5, 2}};
    const float yarn = c->f[0] != 0 ? 0.25f : 1.0f;
    T *factors = c->n_in > 2 ? x[2] : NULL;
    T *t = c->i[1] & SHEAF_ROPE_TYPE_MROPE
               ? sheaf_rope_multi(ctx, x[0], x[1], factors, c->i[0], sections[c->i[3]], c->i[1],
                                  4096, 10000.0f, yarn, c->f[0], 1.0f, 32.0f, 1.0f)
               : sheaf_rope_ext(ctx, x[0], x[1], factors, c->i[0], c->i[1], 4096, 10000.0f, yarn,
                                c->f[0], 1.0f, 32.0f, 1.0f);
    t = sheaf_rope_set_offset(t, c->i[2]);
    return c->family->number ? sheaf_rope_back(t) : t;
}

static void gen_attention(struct op_list *l, const struct op_family *f) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32,  SHEAF_TYPE_F16,  SHEAF_TYPE_BF16,
                                            SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_1,
                                            SHEAF_TYPE_Q5_0, SHEAF_TYPE_Q5_1, SHEAF_TYPE_IQ4_NL};
    for (size_t t = 0; t < COUNT(types); t++) {
        for (int i = 0; i < 6; i++) { /* sinks, with few queries and many; V unlike K */
            struct op_case *c = add(l, f, i % 3 ? 5 : 4);
            const int64_t n = i < 3 ? 2 : 33, s = i % 3 == 2 ? 4 : 1;
            c->i[0] = 1;
            c->in[0] = shape(SHEAF_TYPE_F32, 64, n, 6, s);
            c->in[1] = laid(shape(types[t], 64, 70, 2, s), i % 3 == 1 ? LAYOUT_PERMUTED : 0);
            c->in[2] = shape(types[i % 2 ? t : (t + 4) % COUNT(types)], 96, 70, 2, s);
            c->in[3] = filled(shape(SHEAF_TYPE_F16, 70, n, 1, i % 3 == 2 ? 2 : 1), FILL_MASK, 0);
            c->in[c->n_in - 1] = shape(SHEAF_TYPE_F32, 6, 1, 1, 1);
            c->f[0] = 0.125f;
            c->f[1] = i % 3 == 1 ? 8.0f : 0.0f;
            c->f[2] = i == 3 ? 10.0f : 0.0f;
        }
        for (int i = 0; i < 10; i++) {
            const int64_t n = i == 1 ? 1 : 7, g = 2, r = i == 2 ? 1 : 3, s = i == 3 ? 2 : 1;
            const int64_t keys = i == 4 ? 1 : 40;
            const bool mask = i != 5;
            struct op_case *c = add(l, f, mask ? 4 : 3);
            const enum layout layout = i == 6 ? LAYOUT_PERMUTED : i == 7 ? LAYOUT_GAP : 0;
            c->in[0] = laid(shape(SHEAF_TYPE_F32, 64, n, g * r, s), layout);
            c->in[1] = laid(shape(types[t], 64, keys, g, s), layout);
            c->in[2] = laid(shape(types[t], i == 8 ? 32 : 64, keys, g, s), layout);
            c->in[3] = filled(
                shape(i % 2 ? SHEAF_TYPE_F32 : SHEAF_TYPE_F16, keys, n, i == 9 ? g * r : 1, 1),
                FILL_MASK, 0);
            c->f[0] = 0.125f;
            c->f[1] = i == 2 || i == 6 ? 8.0f : 0.0f;
            c->f[2] = i == 3 ? 10.0f : 0.0f;
        }
        for (int i = 0; i < 6; i++) { /* heads of a member that divide a group of three */
            struct op_case *c = add(l, f, 5);
            const int64_t n = i % 3 == 0 ? 1 : i % 3 == 1 ? 7 : 33, heads = i < 3 ? 5 : 8;
            c->i[0] = 1;
            c->i[1] = i < 3 ? 0 : 4; /* heads 0 to 4, 4 to 11 */
            c->i[2] = 3;
            c->in[0] = laid(shape(SHEAF_TYPE_F32, 64, n, heads, 1), i ? LAYOUT_PERMUTED : 0);
            c->in[1] = laid(shape(types[t], 64, 70, i < 3 ? 2 : 3, 1), LAYOUT_PERMUTED);
            c->in[2] = c->in[1];
            c->in[3] = filled(shape(SHEAF_TYPE_F16, 70, n, i == 2 ? heads : 1, 1), FILL_MASK, 0);
            c->in[4] = shape(SHEAF_TYPE_F32, heads, 1, 1, 1);
            c->f[0] = 0.125f;
            c->f[1] = i == 4 ? 8.0f : 0.0f;
        }
        for (int i = 0; i < 3; i++) { /* many queries, keys that fill no block */
            struct op_case *c = add(l, f, 4);
            const int64_t d = i == 1 ? 128 : 64;
            c->in[0] = shape(SHEAF_TYPE_F32, d, 37, 6, i == 2 ? 2 : 1);
            c->in[1] = laid(shape(types[t], d, 75, 2, i == 2 ? 2 : 1), i ? 0 : LAYOUT_PERMUTED);
            c->in[2] = c->in[1];
            c->in[3] =
                filled(shape(i == 1 ? SHEAF_TYPE_F32 : SHEAF_TYPE_F16, 75, 40, 1, 1), FILL_MASK, 0);
            c->f[0] = 0.125f;
            c->f[1] = i == 1 ? 8.0f : 0.0f;
            c->f[2] = i == 2 ? 10.0f : 0.0f;
        }
        struct op_case *mla = add(l, f, 4); /* and heads that take turns with masks */
        mla->in[0] = shape(SHEAF_TYPE_F32, 576, 9, 4, 1);
        mla->in[1] = shape(types[t], 576, 40, 1, 1);
        mla->in[2] = shape(types[t], 512, 40, 1, 1);
        mla->in[3] = filled(shape(SHEAF_TYPE_F16, 40, 9, 2, 1), FILL_MASK, 0);
        mla->f[0] = 0.05f;
        if (t > 4) continue;
        struct op_case *c = add(l, f, 3);
        c->in[0] = shape(SHEAF_TYPE_F32, 128, 16, 8, 1);
        c->in[1] = c->in[2] = shape(types[t], 128, 1024, 2, 1);
        c->f[0] = 0.1f;
        c->large = true;
    }
}
/* A member's node, which no constructor makes: heads [base, ..) of more. */
static T *build_part_of_heads(C *ctx, const struct op_case *c, T **x) {
    T *t = sheaf_new_tensor_4d(ctx, SHEAF_TYPE_F32, x[2]->ne[0], x[0]->ne[2], x[0]->ne[1],
                               x[0]->ne[3]);
    if (!t) return NULL;
    t->op = SHEAF_OP_FLASH_ATTN_EXT;
    memcpy(t->src, x, 5 * sizeof *x);
    memcpy(t->op_params, c->f, 3 * sizeof *c->f);
    t->op_params[SHEAF_OP_PARAM_GROUP] = (int32_t)c->i[2];
    t->op_params[SHEAF_OP_PARAM_BASE] = (int32_t)c->i[1];
    t->op_params[SHEAF_OP_PARAM_EXTENT] = (int32_t)(c->i[1] + x[0]->ne[2]);
    return t;
}

static T *build_attention(C *ctx, const struct op_case *c, T **x) {
    T *sinks = c->i[0] ? x[c->n_in - 1] : NULL;
    if (c->i[2]) return build_part_of_heads(ctx, c, x);
    return sheaf_flash_attn_sinks(ctx, x[0], x[1], x[2],
                                  c->n_in > 3 + (sinks != NULL) ? x[3] : NULL, sinks, c->f[0],
                                  c->f[1], c->f[2]);
}

/* Errors: elementwise work is exact to rounding, products quantize their second operand. */
#define UNARY(name)                                                                                \
    { #name, gen_types, build_unary, 1e-10, SHEAF_UNARY_OP_##name, 0 }
#define GLU(name)                                                                                  \
    { #name, gen_glu, build_glu, 1e-10, SHEAF_GLU_OP_##name, 0 }
/* ---- layers with a state ---- */

/* Layouts that a token meets: operand k of the case as a view with gaps. */
static struct op_case *state_case(struct op_list *l, const struct op_family *f, int n_in,
                                  const int64_t (*ne)[SHEAF_MAX_DIMS], int gap, bool large) {
    struct op_case *c = add(l, f, n_in);
    for (int k = 0; k < n_in; k++) {
        c->in[k] = shape(SHEAF_TYPE_F32, ne[k][0], ne[k][1], ne[k][2], ne[k][3]);
        if (k == gap) c->in[k].layout = LAYOUT_GAP;
    }
    c->large = large;
    return c;
}

static void gen_ssm_conv(struct op_list *l, const struct op_family *f) {
    static const int64_t size[][4] = {{4, 12, 1, 1},    {4, 40, 7, 2}, {3, 6, 70, 1},
                                      {1, 5, 2, 3},     {4, 8, 0, 1},  {4, 4096, 1, 1},
                                      {4, 4096, 128, 1}};
    for (size_t i = 0; i < COUNT(size); i++) {
        const int64_t k = size[i][0], c = size[i][1], t = size[i][2], s = size[i][3];
        const int64_t ne[][4] = {{t + k - 1, c, s, 1}, {k, c, 1, 1}};
        state_case(l, f, 2, ne, i == 1 ? 0 : -1, c == 4096);
    }
}
static T *build_ssm_conv(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_ssm_conv(ctx, x[0], x[1]);
}

/* k, d, g, r, t, s, kept; k < 0: Mamba, decays of its own for each of -k */
static void gen_ssm_scan(struct op_list *l, const struct op_family *f) {
    static const int64_t size[][7] = {{16, 6, 2, 2, 1, 1, 1},     {16, 8, 1, 5, 5, 3, 1},
                                      {5, 40, 3, 1, 4, 2, 3},     {7, 3, 2, 4, 2, 2, 4},
                                      {-16, 1, 1, 12, 1, 1, 1},   {-16, 1, 2, 35, 6, 2, 1},
                                      {-5, 3, 1, 4, 3, 1, 1},     {128, 64, 1, 32, 1, 1, 1},
                                      {128, 64, 1, 32, 64, 1, 1}, {-16, 1, 1, 4096, 1, 1, 1}};
    for (size_t i = 0; i < COUNT(size); i++) {
        const int64_t *z = size[i], k = z[0] < 0 ? -z[0] : z[0], h = z[2] * z[3];
        const int64_t ne[][4] = {{k, z[1], h, z[5] + 1}, {z[1], h, z[4], z[5]},
                                 {h, z[4], z[5], 1},     {z[0] < 0 ? k : 1, h, 1, 1},
                                 {k, z[2], z[4], z[5]},  {k, z[2], z[4], z[5]},
                                 {z[5], 1, 1, 1}};
        struct op_case *c = state_case(l, f, 7, ne, i == 1 ? 1 : i == 2 ? 4 : -1, h * z[1] >= 2048);
        c->in[6] = filled(shape(SHEAF_TYPE_I32, z[5], 1, 1, 1), FILL_INDEX, z[5] + 1);
        c->i[0] = (int)z[6];
    }
}
static T *build_ssm_scan(C *ctx, const struct op_case *c, T **x) {
    return sheaf_ssm_scan(ctx, x[0], x[1], x[2], x[3], x[4], x[5], x[6], c->i[0]);
}

/* i, g, r, t, s, kept, size of the gate. Queries and keys have length 1 in models; with long keys a
 * state grows with each token, and with it the errors. */
static void gen_delta_net(struct op_list *l, const struct op_family *f) {
    static const int64_t size[][7] = {{16, 2, 2, 1, 1, 1, 1},   {16, 2, 3, 5, 2, 1, 16},
                                      {5, 4, 1, 3, 2, 2, 1},    {40, 1, 4, 2, 1, 4, 40},
                                      {128, 16, 2, 1, 1, 1, 1}, {128, 16, 2, 64, 1, 1, 1}};
    for (size_t i = 0; i < COUNT(size); i++) {
        const int64_t *z = size[i], h = z[1] * z[2];
        const int64_t ne[][4] = {{z[0], z[1], z[3], z[4]}, {z[0], z[1], z[3], z[4]},
                                 {z[0], h, z[3], z[4]},    {z[6], h, z[3], z[4]},
                                 {1, h, z[3], z[4]},       {z[0], z[0], h, z[4]}};
        struct op_case *c = state_case(l, f, 6, ne, i == 1 ? 2 : -1, z[0] == 128);
        c->in[0].fill = c->in[1].fill = FILL_UNIT;
        c->i[0] = (int)z[5];
    }
}
static T *build_delta_net(C *ctx, const struct op_case *c, T **x) {
    return sheaf_gated_delta_net(ctx, x[0], x[1], x[2], x[3], x[4], x[5], c->i[0]);
}

/* RWKV and gated linear attention: n_in operands, of which `but` has no tokens */
static void heads(struct op_list *l, const struct op_family *f, int n_in, int but) {
    static const int64_t size[][4] = {{8, 3, 1, 1},  {16, 4, 3, 2},  {5, 2, 4, 3},
                                      {40, 2, 1, 2}, {64, 32, 1, 1}, {64, 32, 64, 1}};
    for (size_t i = 0; i < COUNT(size); i++) {
        const int64_t *z = size[i];
        int64_t ne[MAX_OPERANDS][SHEAF_MAX_DIMS];
        for (int k = 0; k < n_in; k++)
            memcpy(ne[k], (int64_t[]){z[0], z[1], k == but ? 1 : z[2] * z[3], 1}, sizeof ne[k]);
        memcpy(ne[n_in - 1], (int64_t[]){z[0] * z[0] * z[1], z[3], 1, 1}, sizeof *ne);
        state_case(l, f, n_in, (const int64_t(*)[SHEAF_MAX_DIMS])ne, i == 1 ? 1 : -1, z[0] == 64)
            ->f[0] = 0.5f;
    }
}
static void gen_wkv6(struct op_list *l, const struct op_family *f) { heads(l, f, 6, 3); }
static void gen_wkv7(struct op_list *l, const struct op_family *f) { heads(l, f, 7, -1); }
static void gen_gla(struct op_list *l, const struct op_family *f) { heads(l, f, 5, -1); }
static T *build_wkv6(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_rwkv_wkv6(ctx, x[0], x[1], x[2], x[3], x[4], x[5]);
}
static T *build_wkv7(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_rwkv_wkv7(ctx, x[0], x[1], x[2], x[3], x[4], x[5], x[6]);
}
static T *build_gla(C *ctx, const struct op_case *c, T **x) {
    return sheaf_gated_linear_attn(ctx, x[0], x[1], x[2], x[3], x[4], c->f[0]);
}

const struct op_family op_families[] = {
    {"ADD", gen_binary, build_add, 1e-10, 0, 0},
    {"SUB", gen_binary, build_sub, 1e-10, 0, 0},
    {"MUL", gen_binary, build_mul, 1e-10, 0, 0},
    {"DIV", gen_binary, build_div, 1e-10, 0, 0},
    {"SCALE", gen_map, build_scale, 1e-10, 0, 0},
    {"SQR", gen_types, build_map, 1e-10, SHEAF_OP_SQR, 0},
    {"SQRT", gen_positive, build_map, 1e-10, SHEAF_OP_SQRT, 0},
    {"SIN", gen_map, build_map, 1e-10, SHEAF_OP_SIN, 0},
    {"COS", gen_map, build_map, 1e-10, SHEAF_OP_COS, 0},
    {"LOG", gen_positive, build_map, 1e-10, SHEAF_OP_LOG, 0},
    {"CLAMP", gen_types, build_map, 1e-10, SHEAF_OP_CLAMP, 0},
    {"LEAKY_RELU", gen_map, build_map, 1e-10, SHEAF_OP_LEAKY_RELU, 0},
    {"FILL", gen_types, build_map, 0, SHEAF_OP_FILL, 0},
    UNARY(SILU),
    UNARY(GELU),
    UNARY(RELU),
    UNARY(TANH),
    UNARY(SIGMOID),
    UNARY(NEG),
    UNARY(EXP),
    UNARY(ABS),
    UNARY(SGN),
    UNARY(STEP),
    UNARY(ELU),
    UNARY(GELU_QUICK),
    UNARY(GELU_ERF),
    UNARY(HARDSWISH),
    UNARY(HARDSIGMOID),
    UNARY(EXPM1),
    UNARY(SOFTPLUS),
    {"XIELU", gen_map, build_xielu, 1e-10, 0, 0},
    UNARY(FLOOR),
    UNARY(CEIL),
    UNARY(ROUND),
    UNARY(TRUNC),
    GLU(SWIGLU),
    GLU(GEGLU),
    GLU(REGLU),
    GLU(GEGLU_ERF),
    GLU(GEGLU_QUICK),
    {"SWIGLU_OAI", gen_limited, build_limited, 1e-10, SHEAF_GLU_OP_SWIGLU_OAI, 0},
    {"SWIGLU_CLAMP", gen_limited, build_limited, 1e-10, SHEAF_GLU_OP_SWIGLU_CLAMP, 0},
    {"SUM_ROWS", gen_map, build_sum_rows, 1e-9, 0, 0},
    {"RMS_NORM", gen_map, build_rms_norm, 1e-9, 0, 0},
    {"NORM", gen_map, build_map, 1e-9, SHEAF_OP_NORM, 0},
    {"L2_NORM", gen_map, build_map, 1e-9, SHEAF_OP_L2_NORM, 0},
    {"GROUP_NORM", gen_group_norm, build_map, 1e-9, SHEAF_OP_GROUP_NORM, 0},
    {"SUM", gen_map, build_map, 1e-9, SHEAF_OP_SUM, 0},
    {"MEAN", gen_mean, build_map, 1e-9, SHEAF_OP_MEAN, 0},
    {"ARGSORT", gen_argsort, build_map, 0, SHEAF_OP_ARGSORT, 0},
    {"ADD_ID", gen_add_id, build_add_id, 1e-10, 0, 0},
    {"REPEAT", gen_repeat, build_map, 0, SHEAF_OP_REPEAT, 0},
    {"PAD", gen_pad, build_pad, 0, 0, 0},
    {"SET", gen_matrix, build_matrix, 0, SHEAF_OP_SET, 0},
    {"ACC", gen_matrix, build_matrix, 1e-10, SHEAF_OP_ACC, 0},
    {"CUMSUM", gen_matrix, build_matrix, 1e-9, SHEAF_OP_CUMSUM, 0},
    {"TRI", gen_matrix, build_matrix, 0, SHEAF_OP_TRI, 0},
    {"DIAG", gen_matrix, build_matrix, 0, SHEAF_OP_DIAG, 0},
    {"DIAG_MASK_INF", gen_matrix, build_matrix, 0, SHEAF_OP_DIAG_MASK_INF, 0},
    {"DIAG_MASK_ZERO", gen_matrix, build_matrix, 0, SHEAF_OP_DIAG_MASK_ZERO, 0},
    {"SOLVE_TRI", gen_matrix, build_matrix, 1e-9, SHEAF_OP_SOLVE_TRI, 0},
    {"ARANGE", gen_matrix, build_matrix, 0, SHEAF_OP_ARANGE, 0},
    {"LIGHTNING_INDEXER", gen_deepseek, build_deepseek, 1e-9, SHEAF_OP_LIGHTNING_INDEXER, 0},
    {"DSV4_HC_COMB", gen_deepseek, build_deepseek, 1e-9, SHEAF_OP_DSV4_HC_COMB, 0},
    {"DSV4_HC_PRE", gen_deepseek, build_deepseek, 1e-9, SHEAF_OP_DSV4_HC_PRE, 0},
    {"DSV4_HC_POST", gen_deepseek, build_deepseek, 1e-9, SHEAF_OP_DSV4_HC_POST, 0},
    {"IM2COL", gen_image, build_image, 1e-9, SHEAF_OP_IM2COL, 0},
    {"CONV_2D", gen_image, build_image, 1e-9, SHEAF_OP_CONV_2D, 0},
    {"CONV_2D_DW", gen_image, build_image, 1e-9, SHEAF_OP_CONV_2D_DW, 0},
    {"CONV_TRANSPOSE_1D", gen_image, build_image, 1e-9, SHEAF_OP_CONV_TRANSPOSE_1D, 0},
    {"POOL_1D", gen_image, build_image, 1e-9, SHEAF_OP_POOL_1D, 0},
    {"POOL_2D", gen_image, build_image, 1e-9, SHEAF_OP_POOL_2D, 0},
    {"UPSCALE", gen_image, build_image, 1e-9, SHEAF_OP_UPSCALE, 0},
    {"PAD_REFLECT_1D", gen_image, build_image, 1e-9, SHEAF_OP_PAD_REFLECT_1D, 0},
    {"ROLL", gen_image, build_image, 1e-9, SHEAF_OP_ROLL, 0},
    {"TIMESTEP_EMBEDDING", gen_image, build_image, 1e-9, SHEAF_OP_TIMESTEP_EMBEDDING, 0},
    {"CONV_TRANSPOSE_2D", gen_image, build_image, 1e-9, SHEAF_OP_CONV_TRANSPOSE_2D, 0},
    {"COL2IM_1D", gen_volume, build_volume, 1e-7, SHEAF_OP_COL2IM_1D, 0},
    {"IM2COL_3D", gen_volume, build_volume, 1e-9, SHEAF_OP_IM2COL_3D, 0},
    {"CONV_3D", gen_volume, build_volume, 1e-9, SHEAF_OP_CONV_3D, 0},
    {"WIN_PART", gen_volume, build_volume, 0, SHEAF_OP_WIN_PART, 0},
    {"WIN_UNPART", gen_volume, build_volume, 0, SHEAF_OP_WIN_UNPART, 0},
    {"GET_REL_POS", gen_volume, build_volume, 0, SHEAF_OP_GET_REL_POS, 0},
    {"ADD_REL_POS", gen_volume, build_volume, 1e-9, SHEAF_OP_ADD_REL_POS, 0},
    {"COUNT_EQUAL", gen_count, build_count, 0, 0, 0},
    {"ARGMAX", gen_argmax, build_argmax, 0, 0, 0},
    {"TOP_K", gen_top_k, build_top_k, 0, 0, 0},
    {"CONCAT", gen_concat, build_concat, 0, 0, 0},
    {"MUL_MAT", gen_mul_mat, build_mul_mat, 5e-4, 0, 0},
    {"MUL_MAT_ID", gen_mul_mat_id, build_mul_mat_id, 5e-4, 0, 0},
    {"CPY", gen_cpy, build_cpy, 1e-7, 0, 0},
    {"DUP", gen_cast, build_cast, 1e-7, 0, 0},
    {"CONT", gen_cont, build_cont, 0, 0, 0},
    {"RESHAPE", gen_view, build_view, 0, 0, 0},
    {"VIEW", gen_view, build_view, 0, 1, 0},
    {"PERMUTE", gen_view, build_view, 0, 2, 0},
    {"TRANSPOSE", gen_view, build_view, 0, 3, 0},
    {"GET_ROWS", gen_get_rows, build_get_rows, 0, 0, 0},
    {"SET_ROWS", gen_set_rows, build_set_rows, 1e-7, 0, 0},
    {"SOFT_MAX", gen_soft_max, build_soft_max, 1e-9, 0, 0},
    {"ROPE", gen_rope, build_rope, 1e-7, 0, 0},
    {"ROPE_BACK", gen_rope, build_rope, 1e-7, 1, 0},
    {"FLASH_ATTN_EXT", gen_attention, build_attention, 5e-4, 0, 1},
    {"SSM_CONV", gen_ssm_conv, build_ssm_conv, 1e-10, 0, 0},
    {"SSM_SCAN", gen_ssm_scan, build_ssm_scan, 1e-10, 0, 0},
    {"GATED_DELTA_NET", gen_delta_net, build_delta_net, 1e-10, 0, 0},
    {"RWKV_WKV6", gen_wkv6, build_wkv6, 1e-10, 0, 0},
    {"RWKV_WKV7", gen_wkv7, build_wkv7, 1e-10, 0, 0},
    {"GATED_LINEAR_ATTN", gen_gla, build_gla, 1e-10, 0, 0},
};
const size_t n_op_families = COUNT(op_families);

bool op_list_all(struct op_list *list) {
    for (size_t i = 0; i < n_op_families; i++) op_families[i].generate(list, &op_families[i]);
    return !list->full;
}
