/* Cases of ops over images and signals. */
#include "cases.h"

static const enum sheaf_scale_mode modes[] = {
    SHEAF_SCALE_MODE_NEAREST, SHEAF_SCALE_MODE_BILINEAR,  SHEAF_SCALE_MODE_NEAREST,
    SHEAF_SCALE_MODE_BICUBIC, SHEAF_SCALE_MODE_ANTIALIAS,
};
static const struct sheaf_window windows[] = {
    {{3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {{2, 1}, {2, 1}, {0, 0}, {1, 1}},
    {{3, 2}, {1, 2}, {1, 0}, {2, 1}},
};

static bool has_kernel(enum sheaf_op op) {
    return op == SHEAF_OP_CONV_2D || op == SHEAF_OP_CONV_2D_DW ||
           op == SHEAF_OP_CONV_TRANSPOSE_1D || op == SHEAF_OP_CONV_TRANSPOSE_2D;
}

/* The image, or the kernel and the image. */
void gen_image(struct op_list *l, const struct op_family *f) {
    const enum sheaf_op op = (enum sheaf_op)f->number;
    for (int i = 0; i < (op == SHEAF_OP_UPSCALE ? 5 : 4); i++) {
        struct op_case *c = add(l, f, has_kernel(op) ? 2 : 1);
        const struct sheaf_window *w = &windows[(size_t)i % COUNT(windows)];
        struct operand image = shape(SHEAF_TYPE_F32, 12, 6, 12, 2);
        if (op == SHEAF_OP_CONV_TRANSPOSE_1D) image = shape(SHEAF_TYPE_F32, 12, 12, 1, 1);
        if (op == SHEAF_OP_TIMESTEP_EMBEDDING) image = shape(SHEAF_TYPE_F32, 12, 1, 1, 1);
        if (op != SHEAF_OP_TIMESTEP_EMBEDDING) image.layout = (enum layout)(i % 4);
        c->i[0] = i;
        c->in[has_kernel(op)] = image;
        if (!has_kernel(op)) continue;
        const enum sheaf_type type = i % 2 ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32;
        c->in[0] = op == SHEAF_OP_CONV_2D             ? shape(type, w->size[0], w->size[1], 12, 24)
                   : op == SHEAF_OP_CONV_2D_DW        ? shape(type, w->size[0], w->size[1], 1, 12)
                   : op == SHEAF_OP_CONV_TRANSPOSE_2D ? shape(type, w->size[0], w->size[1], 6, 12)
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
    case SHEAF_OP_CONV_TRANSPOSE_2D:
        return sheaf_conv_transpose_2d(ctx, x[0], x[1], 1 + i);
    case SHEAF_OP_POOL_1D:
        return sheaf_pool_1d(ctx, x[0], (enum sheaf_pool)(i % 2), 3, 2, 1);
    case SHEAF_OP_POOL_2D:
        return sheaf_pool_2d(ctx, x[0], (enum sheaf_pool)(i % 2), w);
    case SHEAF_OP_UPSCALE:
        return sheaf_upscale(ctx, x[0], ne, modes[i % 5], i == 2 || i == 3);
    case SHEAF_OP_PAD_REFLECT_1D:
        return sheaf_pad_reflect_1d(ctx, x[0], i, 5);
    case SHEAF_OP_ROLL:
        return sheaf_roll(ctx, x[0], (const int[]){i, 0, i == 2 ? -1 : 0, i == 3});
    default:
        return sheaf_timestep_embedding(ctx, x[0], 16 + i, 1000);
    }
}

/* ---- volumes and windows ---- */

static const struct sheaf_window_3d boxes[] = {
    {{3, 3, 2}, {1, 1, 1}, {1, 1, 0}, {1, 1, 1}},
    {{2, 1, 2}, {2, 1, 2}, {0, 0, 1}, {1, 2, 1}},
};
enum { CHANNELS = 6 }; /* of volumes */

/* Operands of the plain form of each op; the first or the last one in some other layout, or F16. */
void gen_volume(struct op_list *l, const struct op_family *f) {
    const enum sheaf_op op = (enum sheaf_op)f->number;
    for (int i = 0; i < 4; i++) {
        const enum sheaf_type half = i % 2 ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32;
        const int *size = boxes[i % 2].size;
        struct operand in[3] = {{0}};
        int n = 1;
        if (op == SHEAF_OP_IM2COL_3D) {
            in[0] = laid(shape(half, 8, 6, 4, 12), (enum layout)i);
        } else if (op == SHEAF_OP_CONV_3D) {
            in[0] = shape(half, size[0], size[1], size[2], 4 * CHANNELS);
            in[n++] = laid(shape(SHEAF_TYPE_F32, 8, 6, 4, 12), (enum layout)i);
        } else if (op == SHEAF_OP_COL2IM_1D) {
            in[0] = laid(shape(i == 3 ? SHEAF_TYPE_BF16 : half, 24, 10, 1, 1), (enum layout)i);
        } else if (op == SHEAF_OP_WIN_PART) {
            in[0] = laid(shape(SHEAF_TYPE_F32, 12, 12, 8 + i % 2, 1), (enum layout)i);
        } else if (op == SHEAF_OP_WIN_UNPART) {
            in[0] = laid(shape(SHEAF_TYPE_F32, 12, 4, 4, 6), (enum layout)i);
        } else if (op == SHEAF_OP_GET_REL_POS) {
            in[0] = laid(shape(half, 12, 11, 1, 1), (enum layout)i);
        } else {
            in[0] = laid(shape(SHEAF_TYPE_F32, 16, 24, 4, 1), (enum layout)i);
            in[n++] = shape(SHEAF_TYPE_F32, 4, 6, 4, 4);
            in[n++] = shape(SHEAF_TYPE_F32, 4, 6, 4, 4);
        }
        struct op_case *c = add(l, f, n);
        memcpy(c->in, in, (size_t)n * sizeof *in);
        c->i[0] = i;
    }
}

struct sheaf_tensor *build_volume(struct sheaf_context *ctx, const struct op_case *c,
                                  struct sheaf_tensor **x) {
    const int i = c->i[0];
    const struct sheaf_window_3d *w = &boxes[i % 2];
    switch ((enum sheaf_op)c->family->number) {
    case SHEAF_OP_IM2COL_3D:
        return sheaf_im2col_3d(ctx, x[0], CHANNELS, w, i == 3 ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32);
    case SHEAF_OP_CONV_3D:
        return sheaf_conv_3d(ctx, x[0], x[1], CHANNELS, w);
    case SHEAF_OP_COL2IM_1D:
        return sheaf_col2im_1d(ctx, x[0], 4, 1 + i, i % 2);
    case SHEAF_OP_WIN_PART:
        return sheaf_win_part(ctx, x[0], 4);
    case SHEAF_OP_WIN_UNPART:
        return sheaf_win_unpart(ctx, x[0], 12, 8 - i % 2, 4);
    case SHEAF_OP_GET_REL_POS:
        return sheaf_get_rel_pos(ctx, x[0], 6);
    default:
        return sheaf_add_rel_pos(ctx, x[0], x[1], x[2]);
    }
}

void gen_count(struct op_list *l, const struct op_family *f) {
    for (int i = 0; i < 4; i++) {
        struct op_case *c = add(l, f, 2);
        const struct operand list = filled(shape(SHEAF_TYPE_I32, 40, 6, 3, 2), FILL_INDEX, 2 + i);
        c->in[0] = laid(list, (enum layout)i);
        c->in[1] = list;
    }
}
struct sheaf_tensor *build_count(struct sheaf_context *ctx, const struct op_case *c,
                                 struct sheaf_tensor **x) {
    (void)c;
    return sheaf_count_equal(ctx, x[0], x[1]);
}
