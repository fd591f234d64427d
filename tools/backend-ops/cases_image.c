/* Cases of ops over images and signals. */
#include "cases.h"

static const struct sheaf_window windows[] = {
    {{3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {{2, 1}, {2, 1}, {0, 0}, {1, 1}},
    {{3, 2}, {1, 2}, {1, 0}, {2, 1}},
};

static bool has_kernel(enum sheaf_op op) {
    return op == SHEAF_OP_CONV_2D || op == SHEAF_OP_CONV_2D_DW || op == SHEAF_OP_CONV_TRANSPOSE_1D;
}

/* The image, or the kernel and the image. */
void gen_image(struct op_list *l, const struct op_family *f) {
    const enum sheaf_op op = (enum sheaf_op)f->number;
    for (int i = 0; i < 4; i++) {
        struct op_case *c = add(l, f, has_kernel(op) ? 2 : 1);
        const struct sheaf_window *w = &windows[(size_t)i % COUNT(windows)];
        struct operand image = shape(SHEAF_TYPE_F32, 12, 6, 12, 2);
        if (op == SHEAF_OP_CONV_TRANSPOSE_1D) image = shape(SHEAF_TYPE_F32, 12, 12, 1, 1);
        if (op == SHEAF_OP_TIMESTEP_EMBEDDING) image = shape(SHEAF_TYPE_F32, 12, 1, 1, 1);
        if (op != SHEAF_OP_TIMESTEP_EMBEDDING) image.layout = (enum layout)i;
        c->i[0] = i;
        c->in[has_kernel(op)] = image;
        if (!has_kernel(op)) continue;
        const enum sheaf_type type = i % 2 ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32;
        c->in[0] = op == SHEAF_OP_CONV_2D      ? shape(type, w->size[0], w->size[1], 12, 24)
                   : op == SHEAF_OP_CONV_2D_DW ? shape(type, w->size[0], w->size[1], 1, 12)
                                               : shape(type, 3, 24, 12, 1);
    }
}

struct sheaf_tensor *build_image(struct sheaf_context *ctx, const struct op_case *c,
                                 struct sheaf_tensor **x) {
    const int i = c->i[0];
    const struct sheaf_window *w = &windows[(size_t)i % COUNT(windows)];
    const int64_t ne[] = {24, 9, 12, 2};
    switch ((enum sheaf_op)c->family->number) {
    case SHEAF_OP_IM2COL:
        return sheaf_im2col(ctx, x[0], w, i == 3 ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32);
    case SHEAF_OP_CONV_2D:
        return sheaf_conv_2d(ctx, x[0], x[1], w);
    case SHEAF_OP_CONV_2D_DW:
        return sheaf_conv_2d_dw(ctx, x[0], x[1], w);
    case SHEAF_OP_CONV_TRANSPOSE_1D:
        return sheaf_conv_transpose_1d(ctx, x[0], x[1], 1 + i);
    case SHEAF_OP_POOL_1D:
        return sheaf_pool_1d(ctx, x[0], (enum sheaf_pool)(i % 2), 3, 2, 1);
    case SHEAF_OP_POOL_2D:
        return sheaf_pool_2d(ctx, x[0], (enum sheaf_pool)(i % 2), w);
    case SHEAF_OP_UPSCALE:
        return sheaf_upscale(ctx, x[0], ne, (enum sheaf_scale_mode)(i % 2), i > 1);
    case SHEAF_OP_PAD_REFLECT_1D:
        return sheaf_pad_reflect_1d(ctx, x[0], i, 5);
    case SHEAF_OP_ROLL:
        return sheaf_roll(ctx, x[0], (const int[]){i, 0, i == 2 ? -1 : 0, i == 3});
    default:
        return sheaf_timestep_embedding(ctx, x[0], 16 + i, 1000);
    }
}
