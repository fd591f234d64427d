/* Constructors of ops over images and signals: convolutions, pooling, resizing, places along an
 * axis. Dimensions 0 and 1 are space, 2 the channels. */
#include "tensor/construct.h"

/* Places that a window of k elements, d apart, has in n with p more on both sides, s apart; -1:
 * none is possible. */
static int64_t places(int64_t n, int64_t k, int64_t s, int64_t p, int64_t d) {
    if (k < 1 || s < 1 || p < 0 || d < 1) return -1;
    const int64_t left = n + 2 * p - d * (k - 1) - 1;
    if (n + 2 * p == 0) return 0; /* an empty slice has none */
    return left < 0 ? -1 : left / s + 1;
}

static const char no_place[] =
    "the window has no place: sizes, strides and dilations are from 1 on, pads from 0 on";

/* The first words: the numbers of a window over n dimensions. */
static void set_words(struct sheaf_tensor *t, int n, const int *size, const int *stride,
                      const int *pad, const int *dilation) {
    for (int i = 0; i < n && t; i++) {
        t->op_params[i] = size[i];
        t->op_params[n + i] = stride[i];
        t->op_params[2 * n + i] = pad[i];
        t->op_params[3 * n + i] = dilation[i];
    }
}
static void set_window(struct sheaf_tensor *t, const struct sheaf_window *w) {
    set_words(t, 2, w->size, w->stride, w->pad, w->dilation);
}

static bool placed(const struct sheaf_tensor *x, const struct sheaf_window *w, int64_t out[2]) {
    for (int i = 0; i < 2; i++)
        out[i] = places(x->ne[i], w->size[i], w->stride[i], w->pad[i], w->dilation[i]);
    return out[0] >= 0 && out[1] >= 0;
}
static bool placed_3d(const struct sheaf_tensor *x, const struct sheaf_window_3d *w,
                      int64_t out[3]) {
    for (int i = 0; i < 3; i++)
        out[i] = places(x->ne[i], w->size[i], w->stride[i], w->pad[i], w->dilation[i]);
    return out[0] >= 0 && out[1] >= 0 && out[2] >= 0;
}

struct sheaf_tensor *sheaf_im2col(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                  const struct sheaf_window *window, enum sheaf_type type) {
    if (missing(x, x)) return NULL;
    int64_t out[2], n;
    if (!is_plain_type(x->type) || (type != SHEAF_TYPE_F32 && type != SHEAF_TYPE_F16))
        return refuse("IM2COL", x, NULL, "images are f32, f16 or bf16, columns f32 or f16");
    if (!placed(x, window, out)) return refuse("IM2COL", x, NULL, no_place);
    if (__builtin_mul_overflow((int64_t)window->size[0] * window->size[1], x->ne[2], &n))
        return refuse("IM2COL", x, NULL, "a column is too long");
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_IM2COL, type, (int64_t[]){n, out[0], out[1], x->ne[3]}, x, NULL);
    set_window(t, window);
    return t;
}

static struct sheaf_tensor *conv(struct sheaf_context *ctx, enum sheaf_op op,
                                 struct sheaf_tensor *a, struct sheaf_tensor *b,
                                 const struct sheaf_window *window, const char *shapes) {
    const char *name = sheaf_op_name(op);
    int64_t out[2];
    if (a->ne[0] > INT32_MAX || a->ne[1] > INT32_MAX)
        return refuse(name, a, b, "the kernel is too large");
    struct sheaf_window w = *window;
    w.size[0] = (int)a->ne[0];
    w.size[1] = (int)a->ne[1];
    if (!is_plain_type(a->type) || b->type != SHEAF_TYPE_F32)
        return refuse(name, a, b, "the kernel is f32, f16 or bf16, the image f32");
    const int64_t channels = op == SHEAF_OP_CONV_2D ? a->ne[2] : a->ne[3];
    if (channels != b->ne[2] || (op == SHEAF_OP_CONV_2D_DW && a->ne[2] != 1))
        return refuse(name, a, b, shapes);
    if (!placed(b, &w, out)) return refuse(name, a, b, no_place);
    struct sheaf_tensor *t =
        make(ctx, op, SHEAF_TYPE_F32, (int64_t[]){out[0], out[1], a->ne[3], b->ne[3]}, a, b);
    set_window(t, &w);
    return t;
}

struct sheaf_tensor *sheaf_conv_2d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   struct sheaf_tensor *b, const struct sheaf_window *window) {
    if (missing(a, b)) return NULL;
    return conv(ctx, SHEAF_OP_CONV_2D, a, b, window,
                "the kernel is [v, w, k, m] and the image [i, j, k, n]");
}
struct sheaf_tensor *sheaf_conv_2d_dw(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      struct sheaf_tensor *b, const struct sheaf_window *window) {
    if (missing(a, b)) return NULL;
    return conv(ctx, SHEAF_OP_CONV_2D_DW, a, b, window,
                "the kernel is [v, w, 1, c] and the image [i, j, c, n]");
}

/* ---- volumes ---- */

struct sheaf_tensor *sheaf_im2col_3d(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                     int64_t channels, const struct sheaf_window_3d *window,
                                     enum sheaf_type type) {
    if (missing(x, x)) return NULL;
    const char *name = "IM2COL_3D";
    int64_t out[3], n = channels;
    if (!is_plain_type(x->type) || (type != SHEAF_TYPE_F32 && type != SHEAF_TYPE_F16))
        return refuse(name, x, NULL, "images are f32, f16 or bf16, columns f32 or f16");
    if (channels < 1 || x->ne[3] % channels)
        return refuse(name, x, NULL,
                      "dimension 3 is whole times the channels, which are from 1 on");
    if (!placed_3d(x, window, out)) return refuse(name, x, NULL, no_place);
    for (int i = 0; i < 3; i++) {
        if (__builtin_mul_overflow(n, (int64_t)window->size[i], &n))
            return refuse(name, x, NULL, "a column is too long");
    }
    if (__builtin_mul_overflow(out[2], x->ne[3] / channels, &out[2]))
        return refuse(name, x, NULL, "there are too many places");
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_IM2COL_3D, type, (int64_t[]){n, out[0], out[1], out[2]}, x, NULL);
    set_words(t, 3, window->size, window->stride, window->pad, window->dilation);
    return t;
}

struct sheaf_tensor *sheaf_conv_3d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   struct sheaf_tensor *b, int64_t channels,
                                   const struct sheaf_window_3d *window) {
    if (missing(a, b)) return NULL;
    const char *name = "CONV_3D";
    int64_t out[3];
    struct sheaf_window_3d w = *window;
    for (int i = 0; i < 3; i++) {
        if (a->ne[i] > INT32_MAX) return refuse(name, a, b, "the kernel is too large");
        w.size[i] = (int)a->ne[i];
    }
    if (!is_plain_type(a->type) || b->type != SHEAF_TYPE_F32)
        return refuse(name, a, b, "the kernel is f32, f16 or bf16, the image f32");
    if (a->ne[3] > INT32_MAX || b->ne[3] > INT32_MAX || channels < 1 || a->ne[3] % channels ||
        b->ne[3] % channels)
        return refuse(name, a, b,
                      "the kernel is [v, w, u, m.k] and the image [i, j, l, n.k] with k channels");
    if (!placed_3d(b, &w, out)) return refuse(name, a, b, no_place);
    const int64_t nm = a->ne[3] / channels * (b->ne[3] / channels);
    if (nm > INT32_MAX) return refuse(name, a, b, "there are too many channels and images");
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_CONV_3D, SHEAF_TYPE_F32, (int64_t[]){out[0], out[1], out[2], nm}, a, b);
    set_words(t, 3, w.size, w.stride, w.pad, w.dilation);
    return t;
}

/* ---- transposed convolutions ---- */

/* (i - 1) stride + w; false: an extent or the stride is below 1, or the result too long. */
static bool spread(int64_t i, int64_t w, int stride, int64_t *n) {
    return stride >= 1 && w >= 1 && i >= 1 && i <= INT32_MAX &&
           !__builtin_mul_overflow(i - 1, (int64_t)stride, n) && !__builtin_add_overflow(*n, w, n);
}
static const char no_spread[] = "stride, kernel and signal are from 1 on";

struct sheaf_tensor *sheaf_conv_transpose_2d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                             struct sheaf_tensor *b, int stride) {
    if (missing(a, b)) return NULL;
    const char *name = "CONV_TRANSPOSE_2D";
    if (!is_plain_type(a->type) || b->type != SHEAF_TYPE_F32)
        return refuse(name, a, b, "the kernel is f32, f16 or bf16, the image f32");
    if (a->ne[3] != b->ne[2])
        return refuse(name, a, b, "the kernel is [v, w, m, k] and the image [i, j, k, n]");
    int64_t out[2];
    for (int i = 0; i < 2; i++) {
        if (!spread(b->ne[i], a->ne[i], stride, &out[i])) return refuse(name, a, b, no_spread);
    }
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_CONV_TRANSPOSE_2D, SHEAF_TYPE_F32,
                                  (int64_t[]){out[0], out[1], a->ne[2], b->ne[3]}, a, b);
    if (t) t->op_params[0] = stride;
    return t;
}

struct sheaf_tensor *sheaf_col2im_1d(struct sheaf_context *ctx, struct sheaf_tensor *a, int size,
                                     int stride, int pad) {
    if (missing(a, a)) return NULL;
    const char *name = "COL2IM_1D";
    int64_t n;
    if (!is_plain_type(a->type))
        return refuse(name, a, NULL, "the operand must be f32, f16 or bf16");
    if (a->ne[2] != 1 || a->ne[3] != 1 || size < 1 || a->ne[0] % size)
        return refuse(name, a, NULL, "columns are [m.w, i] with w, the size, from 1 on");
    if (pad < 0 || !spread(a->ne[1], size, stride, &n) || n <= 2 * (int64_t)pad)
        return refuse(name, a, NULL, "stride and columns are from 1 on, pads leave an element");
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_COL2IM_1D, a->type,
             (int64_t[]){n - 2 * (int64_t)pad, a->ne[0] / size, 1, 1}, a, NULL);
    if (!t) return NULL;
    t->op_params[0] = size;
    t->op_params[1] = stride;
    t->op_params[2] = pad;
    return t;
}

struct sheaf_tensor *sheaf_conv_transpose_1d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                             struct sheaf_tensor *b, int stride) {
    if (missing(a, b)) return NULL;
    const char *name = "CONV_TRANSPOSE_1D";
    if (!is_plain_type(a->type) || b->type != SHEAF_TYPE_F32)
        return refuse(name, a, b, "the kernel is f32, f16 or bf16, the signal f32");
    if (a->ne[2] != b->ne[1] || a->ne[3] != 1 || b->ne[2] != 1 || b->ne[3] != 1)
        return refuse(name, a, b, "the kernel is [w, m, k] and the signal [i, k]");
    int64_t n;
    if (!spread(b->ne[0], a->ne[0], stride, &n)) return refuse(name, a, b, no_spread);
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_CONV_TRANSPOSE_1D, SHEAF_TYPE_F32, (int64_t[]){n, a->ne[1], 1, 1}, a, b);
    if (t) t->op_params[0] = stride;
    return t;
}

static struct sheaf_tensor *pool(struct sheaf_context *ctx, enum sheaf_op op,
                                 struct sheaf_tensor *a, enum sheaf_pool kind,
                                 struct sheaf_window w) {
    int64_t out[2];
    const char *name = sheaf_op_name(op);
    w.dilation[0] = w.dilation[1] = 1;
    if (!is_plain_type(a->type))
        return refuse(name, a, NULL, "the operand must be f32, f16 or bf16");
    if (kind != SHEAF_POOL_MAX && kind != SHEAF_POOL_AVG)
        return refuse(name, a, NULL, "the kind must be the maximum or the mean");
    if (!placed(a, &w, out)) return refuse(name, a, NULL, no_place);
    struct sheaf_tensor *t =
        make(ctx, op, SHEAF_TYPE_F32, (int64_t[]){out[0], out[1], a->ne[2], a->ne[3]}, a, NULL);
    set_window(t, &w);
    if (t) t->op_params[8] = (int32_t)kind;
    return t;
}

struct sheaf_tensor *sheaf_pool_1d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   enum sheaf_pool kind, int size, int stride, int pad) {
    if (missing(a, a)) return NULL;
    return pool(ctx, SHEAF_OP_POOL_1D, a, kind,
                (struct sheaf_window){.size = {size, 1}, .stride = {stride, 1}, .pad = {pad, 0}});
}
struct sheaf_tensor *sheaf_pool_2d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   enum sheaf_pool kind, const struct sheaf_window *window) {
    return missing(a, a) ? NULL : pool(ctx, SHEAF_OP_POOL_2D, a, kind, *window);
}

struct sheaf_tensor *sheaf_upscale(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   const int64_t ne[4], enum sheaf_scale_mode mode,
                                   bool align_corners) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32) return refuse("UPSCALE", a, NULL, "the operand must be f32");
    if ((unsigned)mode >= SHEAF_SCALE_MODE_COUNT)
        return refuse("UPSCALE", a, NULL,
                      "the mode must be NEAREST, BILINEAR, BICUBIC or ANTIALIAS");
    if (mode == SHEAF_SCALE_MODE_ANTIALIAS && align_corners)
        return refuse("UPSCALE", a, NULL, "ANTIALIAS has no aligned corners");
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (ne[i] < 0 || (ne[i] == 0) != (a->ne[i] == 0))
            return refuse("UPSCALE", a, NULL,
                          "a dimension is 0 both before and after, or from 1 on");
    }
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_UPSCALE, SHEAF_TYPE_F32, ne, a, NULL);
    if (!t) return NULL;
    t->op_params[0] = (int32_t)mode;
    t->op_params[1] = align_corners;
    return t;
}

struct sheaf_tensor *sheaf_pad_reflect_1d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                          int left, int right) {
    if (missing(a, a)) return NULL;
    if (a->type != SHEAF_TYPE_F32)
        return refuse("PAD_REFLECT_1D", a, NULL, "the operand must be f32");
    if (left < 0 || right < 0 || left >= a->ne[0] || right >= a->ne[0])
        return refuse("PAD_REFLECT_1D", a, NULL, "pads are from 0 to below dimension 0");
    struct sheaf_tensor *t =
        make(ctx, SHEAF_OP_PAD_REFLECT_1D, SHEAF_TYPE_F32,
             (int64_t[]){a->ne[0] + left + right, a->ne[1], a->ne[2], a->ne[3]}, a, NULL);
    if (!t) return NULL;
    t->op_params[0] = left;
    t->op_params[1] = right;
    return t;
}

struct sheaf_tensor *sheaf_roll(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                const int shift[4]) {
    struct sheaf_tensor *t = map_f32(ctx, SHEAF_OP_ROLL, a);
    for (int i = 0; i < SHEAF_MAX_DIMS && t; i++) t->op_params[i] = shift[i];
    return t;
}

struct sheaf_tensor *sheaf_timestep_embedding(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                              int dim, int max_period) {
    if (missing(a, a)) return NULL;
    const char *name = "TIMESTEP_EMBEDDING";
    if (a->type != SHEAF_TYPE_F32 || sheaf_nrows(a) != 1)
        return refuse(name, a, NULL, "the operand must be f32 [n]");
    if (dim < 1 || max_period < 1)
        return refuse(name, a, NULL, "the dimension and the period are from 1 on");
    struct sheaf_tensor *t = make(ctx, SHEAF_OP_TIMESTEP_EMBEDDING, SHEAF_TYPE_F32,
                                  (int64_t[]){dim, a->ne[0], 1, 1}, a, NULL);
    if (!t) return NULL;
    t->op_params[0] = dim;
    t->op_params[1] = max_period;
    return t;
}
