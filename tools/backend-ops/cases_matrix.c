/* Cases of ops over windows, triangles and lists, and of DeepSeek's. */
#include "cases.h"

/* Square matrices, which all of these take; operand 1 is a part, or right sides. */
void gen_matrix(struct op_list *l, const struct op_family *f) {
    const enum sheaf_op op = (enum sheaf_op)f->number;
    for (int i = 0; i < 5; i++) {
        struct op_case *c = add(l, f, 1);
        c->in[0] = filled(shape(SHEAF_TYPE_F32, 12, 12, i == 4 ? 0 : 6, 2), FILL_POSITIVE, 0);
        c->in[0].layout = i < 4 ? (enum layout)i : LAYOUT_PLAIN;
        c->i[0] = i % 4;
        if (op == SHEAF_OP_DIAG) c->in[0].ne[1] = 1;
        if (op == SHEAF_OP_SET || op == SHEAF_OP_ACC || op == SHEAF_OP_SOLVE_TRI) {
            c->n_in = 2;
            c->in[1] = c->in[0];
            c->in[1].layout = LAYOUT_PLAIN;
            if (op == SHEAF_OP_SOLVE_TRI) c->in[1].ne[0] = 24;
            if (op != SHEAF_OP_SOLVE_TRI) c->in[1].ne[i % 2] -= 3;
        }
    }
    if (op != SHEAF_OP_CUMSUM && op != SHEAF_OP_SOLVE_TRI) return;
    struct op_case *c = add(l, f, op == SHEAF_OP_CUMSUM ? 1 : 2);
    c->in[0] = c->in[1] = filled(shape(SHEAF_TYPE_F32, 64, 64, 32, 1), FILL_POSITIVE, 0);
    c->large = true;
}

struct sheaf_tensor *build_matrix(struct sheaf_context *ctx, const struct op_case *c,
                                  struct sheaf_tensor **x) {
    int64_t at[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4 && c->n_in > 1; i++) at[i] = x[0]->ne[i] > x[1]->ne[i] ? 2 : 0;
    switch ((enum sheaf_op)c->family->number) {
    case SHEAF_OP_SET:
        return sheaf_set(ctx, x[0], x[1], at);
    case SHEAF_OP_ACC:
        return sheaf_acc(ctx, x[0], x[1], at);
    case SHEAF_OP_CUMSUM:
        return sheaf_cumsum(ctx, x[0]);
    case SHEAF_OP_TRI:
        return sheaf_tri(ctx, x[0], (enum sheaf_tri_type)c->i[0]);
    case SHEAF_OP_DIAG:
        return sheaf_diag(ctx, x[0]);
    case SHEAF_OP_DIAG_MASK_INF:
        return sheaf_diag_mask_inf(ctx, x[0], c->i[0]);
    case SHEAF_OP_DIAG_MASK_ZERO:
        return sheaf_diag_mask_zero(ctx, x[0], c->i[0]);
    case SHEAF_OP_SOLVE_TRI: /* what is above the diagonal is not read; the diagonal is large */
        return sheaf_solve_tri(ctx, x[0], x[1]);
    default:
        return sheaf_arange(ctx, (float)c->i[0], 60.0f, 0.5f);
    }
}

static const enum sheaf_type keys[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0};

static void gen_indexer(struct op_list *l, const struct op_family *f) {
    for (int i = 0; i < 7; i++) {
        const int64_t n = i == 4 ? 1 : i == 5 ? 0 : 6, s = i == 3 ? 2 : 1, t = i == 6 ? 300 : 24;
        struct op_case *c = add(l, f, 4);
        c->in[0] = laid(shape(SHEAF_TYPE_F32, 64, 4, n, s), i == 1 ? LAYOUT_GAP : LAYOUT_PLAIN);
        c->in[1] = shape(keys[(size_t)i % COUNT(keys)], 64, 1, t, s);
        c->in[2] = shape(SHEAF_TYPE_F32, 4, n, 1, s);
        c->in[3] = filled(shape(i % 2 ? SHEAF_TYPE_F32 : SHEAF_TYPE_F16, t, n, 1, 1), FILL_MASK, 0);
    }
}

void gen_deepseek(struct op_list *l, const struct op_family *f) {
    const enum sheaf_op op = (enum sheaf_op)f->number;
    if (op == SHEAF_OP_LIGHTNING_INDEXER) {
        gen_indexer(l, f);
        return;
    }
    for (int i = 0; i < 6; i++) {
        const int64_t n = i == 4 ? 0 : i == 3 ? 1 : 12, s = i == 5 ? 3 : 4;
        const struct operand streams = laid(shape(SHEAF_TYPE_F32, 36, s, n, 1),
                                            n > 1 && i < 3 ? (enum layout)i : LAYOUT_PLAIN);
        struct op_case *c = add(l, f, op == SHEAF_OP_DSV4_HC_POST ? (i < 5 ? 4 - i % 2 : 4) : 3);
        c->i[0] = i;
        if (op == SHEAF_OP_DSV4_HC_COMB) {
            c->in[0] = shape(SHEAF_TYPE_F32, (2 + s) * s, n, 1, 1);
            c->in[1] = shape(SHEAF_TYPE_F32, 3, 1, 1, 1);
            c->in[2] = shape(SHEAF_TYPE_F32, (2 + s) * s, 1, 1, 1);
        } else if (op == SHEAF_OP_DSV4_HC_PRE) {
            c->n_in = 2;
            c->in[0] = streams;
            c->in[1] =
                i % 2 ? shape(SHEAF_TYPE_F32, 36, s, n, 1) : shape(SHEAF_TYPE_F32, s, n, 1, 1);
        } else {
            c->in[0] = shape(SHEAF_TYPE_F32, 36, n, 1, 1);
            c->in[1] = streams;
            c->in[2] = shape(SHEAF_TYPE_F32, s, n, 1, 1);
            c->in[3] = shape(SHEAF_TYPE_F32, s, s, n, 1);
        }
    }
}

struct sheaf_tensor *build_deepseek(struct sheaf_context *ctx, const struct op_case *c,
                                    struct sheaf_tensor **x) {
    switch ((enum sheaf_op)c->family->number) {
    case SHEAF_OP_LIGHTNING_INDEXER:
        return sheaf_lightning_indexer(ctx, x[0], x[1], x[2], x[3]);
    case SHEAF_OP_DSV4_HC_COMB:
        return sheaf_dsv4_hc_comb(ctx, x[0], x[1], x[2], 1e-6f, 1 + 5 * c->i[0]);
    case SHEAF_OP_DSV4_HC_PRE:
        return c->i[0] % 2 ? sheaf_dsv4_hc_pre_gated(ctx, x[0], x[1], 0.5f)
                           : sheaf_dsv4_hc_pre(ctx, x[0], x[1]);
    default:
        return sheaf_dsv4_hc_post(ctx, x[0], x[1], x[2], c->n_in > 3 ? x[3] : NULL);
    }
}
