/* Cases of ops over elements and rows that have a generator for themselves or share build_map. */
#include "cases.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

/* By the op that is the family's number. */
T *build_map(C *ctx, const struct op_case *c, T **x) {
    T *a = x[0];
    switch ((enum sheaf_op)c->family->number) {
    case SHEAF_OP_SQR:
        return sheaf_sqr(ctx, a);
    case SHEAF_OP_SQRT:
        return sheaf_sqrt(ctx, a);
    case SHEAF_OP_SIN:
        return sheaf_sin(ctx, a);
    case SHEAF_OP_COS:
        return sheaf_cos(ctx, a);
    case SHEAF_OP_LOG:
        return sheaf_ln(ctx, a);
    case SHEAF_OP_CLAMP:
        return sheaf_clamp(ctx, a, -0.5f, c->f[0] > 0 ? c->f[0] : 0.25f);
    case SHEAF_OP_LEAKY_RELU:
        return sheaf_leaky_relu(ctx, a, 0.1f);
    case SHEAF_OP_FILL:
        return sheaf_fill(ctx, a, c->f[0]);
    case SHEAF_OP_NORM:
        return sheaf_norm(ctx, a, 1e-5f);
    case SHEAF_OP_L2_NORM:
        return sheaf_l2_norm(ctx, a, 1e-6f);
    case SHEAF_OP_GROUP_NORM:
        return sheaf_group_norm(ctx, a, c->i[0], 1e-6f);
    case SHEAF_OP_SUM:
        return sheaf_sum(ctx, a);
    case SHEAF_OP_MEAN:
        return sheaf_mean(ctx, a);
    case SHEAF_OP_ARGSORT:
        return sheaf_argsort(ctx, a, c->i[0] ? SHEAF_SORT_ORDER_DESC : SHEAF_SORT_ORDER_ASC);
    default:
        return sheaf_repeat_4d(ctx, a, a->ne[0] * c->i[0], a->ne[1] * c->i[1], a->ne[2] * c->i[2],
                               a->ne[3] * c->i[3]);
    }
}

T *build_xielu(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_xielu(ctx, x[0], 0.8f, 0.3f, 0.5f, -1e-6f);
}

/* Of F32, and a few of F16 and BF16. */
void gen_types(struct op_list *l, const struct op_family *f) {
    gen_map(l, f);
    for (size_t t = 1; t < COUNT(floats); t++) {
        for (int layout = 0; layout <= LAYOUT_TRANSPOSED; layout++)
            one(l, f, laid(shape(floats[t], 12, 5, 4, 3), (enum layout)layout), 0.7f, 0);
    }
}

void gen_positive(struct op_list *l, const struct op_family *f) {
    const size_t first = l->n;
    gen_types(l, f);
    for (size_t i = first; i < l->n; i++) l->cases[i].in[0].fill = FILL_POSITIVE;
}

/* Without empty rows, which have no mean. */
void gen_mean(struct op_list *l, const struct op_family *f) {
    const size_t first = l->n;
    gen_map(l, f);
    for (size_t i = first; i < l->n; i++) {
        if (l->cases[i].in[0].ne[0] == 0) l->cases[i].in[0].ne[0] = 2;
    }
}

void gen_limited(struct op_list *l, const struct op_family *f) {
    const size_t first = l->n;
    gen_map(l, f);
    for (size_t i = first; i < l->n; i++) {
        struct op_case *c = &l->cases[i];
        const bool empty = c->in[0].ne[0] == 0 || c->in[0].ne[1] == 0;
        c->n_in = 2;
        c->in[1] = laid(c->in[0], empty ? LAYOUT_PLAIN : (enum layout)(i % 3));
        c->f[1] = i % 2 ? 0.5f : 7.0f;
    }
}
T *build_limited(C *ctx, const struct op_case *c, T **x) {
    return c->family->number == SHEAF_GLU_OP_SWIGLU_OAI
               ? sheaf_swiglu_oai(ctx, x[0], x[1], 1.702f, c->f[1])
               : sheaf_swiglu_clamp(ctx, x[0], x[1], c->f[1]);
}

void gen_argsort(struct op_list *l, const struct op_family *f) {
    static const int64_t n[] = {1, 12, 128, 512};
    for (size_t i = 0; i < COUNT(n); i++) {
        for (int down = 0; down < 2; down++) {
            one(l, f, laid(shape(SHEAF_TYPE_F32, n[i], 6, 4, 2), (enum layout)(i % 4)), 0, 0);
            l->cases[l->n - 1].i[0] = down;
        }
    }
    one(l, f, shape(SHEAF_TYPE_F32, 4, 0, 1, 1), 0, 0);
    one(l, f, shape(SHEAF_TYPE_F32, 512, 64, 1, 1), 0, 0);
    l->cases[l->n - 1].large = true;
}

void gen_add_id(struct op_list *l, const struct op_family *f) {
    static const int64_t n[] = {0, 1, 12, 40};
    for (size_t i = 0; i < COUNT(n); i++) {
        struct op_case *c = add(l, f, 3);
        c->in[0] = laid(shape(SHEAF_TYPE_F32, 60, 4, n[i], 1), i == 3 ? LAYOUT_GAP : LAYOUT_PLAIN);
        c->in[1] = shape(SHEAF_TYPE_F32, 60, 12, 1, 1);
        c->in[2] = filled(shape(SHEAF_TYPE_I32, 4, n[i], 1, 1), FILL_DISTINCT, 12);
    }
    struct op_case *c = add(l, f, 3);
    c->in[0] = shape(SHEAF_TYPE_F32, 2880, 4, 64, 1);
    c->in[1] = shape(SHEAF_TYPE_F32, 2880, 32, 1, 1);
    c->in[2] = filled(shape(SHEAF_TYPE_I32, 4, 64, 1, 1), FILL_DISTINCT, 32);
    c->large = true;
}
T *build_add_id(C *ctx, const struct op_case *c, T **x) {
    (void)c;
    return sheaf_add_id(ctx, x[0], x[1], x[2]);
}

void gen_repeat(struct op_list *l, const struct op_family *f) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_BF16,
                                            SHEAF_TYPE_I32, SHEAF_TYPE_I64};
    static const int times[][4] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 3, 1, 2}, {3, 2, 2, 1}};
    for (size_t t = 0; t < COUNT(types); t++) {
        for (size_t i = 0; i < COUNT(times); i++) {
            struct operand o = laid(shape(types[t], 6, 4, 12, 1), (enum layout)(t < 3 ? i : 0));
            if (t > 2) o = filled(o, FILL_INDEX, 99);
            one(l, f, o, 0, 0);
            memcpy(l->cases[l->n - 1].i, times[i], sizeof times[i]);
        }
    }
    one(l, f, shape(SHEAF_TYPE_F16, 700, 2, 1, 1), 0, 0); /* rows of several pieces */
    memcpy(l->cases[l->n - 1].i, (int[]){2, 1, 1, 1}, sizeof l->cases->i);
    one(l, f, shape(SHEAF_TYPE_F32, 64, 1, 512, 1), 0, 0);
    memcpy(l->cases[l->n - 1].i, (int[]){1, 128, 1, 1}, sizeof l->cases->i);
    l->cases[l->n - 1].large = true;
}

/* i[0]: which sides */
void gen_pad(struct op_list *l, const struct op_family *f) {
    for (int i = 0; i < 7; i++) {
        one(l, f, laid(shape(SHEAF_TYPE_F32, 12, 4, 6, 2), (enum layout)(i % 4)), 0, 0);
        l->cases[l->n - 1].i[0] = i;
    }
    one(l, f, shape(SHEAF_TYPE_F32, 0, 4, 2, 1), 0, 0);
    one(l, f, shape(SHEAF_TYPE_F32, 1024, 64, 1, 1), 0, 0);
    l->cases[l->n - 1].large = true;
}
T *build_pad(C *ctx, const struct op_case *c, T **x) {
    static const int left[7][4] = {{0},          {3, 0, 0, 0}, {0, 1, 2, 0}, {0, 0, 0, 1},
                                   {2, 1, 0, 0}, {0},          {0, 9, 13, 5}};
    static const int right[7][4] = {{4, 0, 0, 0}, {0}, {0, 3, 0, 0}, {0},
                                    {5, 6, 0, 0}, {0}, {25, 0, 0, 0}};
    const bool circular = c->i[0] == 4 || c->i[0] == 6; /* around once, and several times */
    return sheaf_pad(ctx, x[0], left[c->i[0]], right[c->i[0]], circular);
}

void gen_group_norm(struct op_list *l, const struct op_family *f) {
    for (int i = 0; i < 5; i++) {
        static const int64_t channels[] = {12, 12, 7, 24, 0};
        one(l, f, laid(shape(SHEAF_TYPE_F32, 12, 5, channels[i], 3), i < 3 ? (enum layout)i : 0), 0,
            0);
        l->cases[l->n - 1].i[0] = i == 1 ? 6 : 4;
    }
}
