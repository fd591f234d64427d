/* The table of ops, and the checks in it: what types, shapes, layouts and parameters a node and its
 * operands may have, for every backend's supports_op. Graphs may come from elsewhere than the
 * constructors of ops.c, and a node may have been changed since.
 *
 * Invariant: a backend that computes exactly the nodes that pass here reads and writes nothing
 * outside the tensors. */
#include "tensor/op_info.h"

#include <assert.h>

#include "sheaf/backend-impl.h"
#include "tensor/access.h"
#include "tensor/rope.h"
#include "tensor/volume.h"

/* F32, F16 or BF16: an element can be read and written on its own. */
static bool is_plain(const struct sheaf_tensor *t) {
    return t->type == SHEAF_TYPE_F32 || t->type == SHEAF_TYPE_F16 || t->type == SHEAF_TYPE_BF16;
}
static bool is_f32(const struct sheaf_tensor *t) { return t->type == SHEAF_TYPE_F32; }
static bool is_int(const struct sheaf_tensor *t) {
    return t->type == SHEAF_TYPE_I32 || t->type == SHEAF_TYPE_I64;
}
/* Elements (blocks) of a row lie side by side. */
static bool is_dense(const struct sheaf_tensor *t) {
    return t->ne[0] <= sheaf_blck_size(t->type) || t->nb[0] == sheaf_type_size(t->type);
}
static bool has_dense_rows(const struct sheaf_tensor *t) {
    return t->nb[0] == sheaf_type_size(t->type);
}
/* Rows can be read as floats. */
static bool is_float(const struct sheaf_tensor *t) {
    return is_plain(t) || (sheaf_is_quantized(t->type) && is_dense(t));
}
static bool is_dense_f32(const struct sheaf_tensor *t) { return is_f32(t) && is_dense(t); }

/* Dimensions first .. 3 are equal. */
static bool same_from(int first, const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    for (int i = first; i < SHEAF_MAX_DIMS; i++)
        if (a->ne[i] != b->ne[i]) return false;
    return true;
}
/* Dimension i of t is one, or that of `of`. */
static bool repeats(const struct sheaf_tensor *t, const struct sheaf_tensor *of, int i) {
    return t->ne[i] == 1 || t->ne[i] == of->ne[i];
}

/* The product of n factors; -1 if it is too large. */
static int64_t product(int n, const int64_t *factor) {
    int64_t all = 1;
    for (int i = 0; i < n; i++) {
        if (__builtin_mul_overflow(all, factor[i], &all)) return -1;
    }
    return all;
}

/* ---- elementwise ---- */

static bool check_map(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    return is_plain(dst) && is_plain(a) && sheaf_are_same_shape(dst, a);
}

static bool check_unary(const struct sheaf_tensor *dst) {
    return (uint32_t)dst->op_params[0] < SHEAF_UNARY_OP_COUNT && check_map(dst);
}

static bool check_binary(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    return check_map(dst) && is_plain(b) && sheaf_can_repeat(b, a);
}

static bool check_clamp(const struct sheaf_tensor *dst) {
    return sheaf__param_f32(dst, 0) <= sheaf__param_f32(dst, 1) && check_map(dst);
}

static bool check_glu(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const int32_t op = dst->op_params[0];
    if ((uint32_t)op >= SHEAF_GLU_OP_COUNT) return false;
    if ((op == (int32_t)SHEAF_GLU_OP_SWIGLU_OAI || op == (int32_t)SHEAF_GLU_OP_SWIGLU_CLAMP) &&
        !(sheaf__param_f32(dst, 3) >= 0))
        return false;
    if (b) return check_map(dst) && is_plain(b) && sheaf_are_same_shape(dst, b);
    return is_plain(dst) && is_plain(a) && a->ne[0] == 2 * dst->ne[0] && same_from(1, a, dst);
}

/* ---- rows ---- */

static bool check_rms_norm(const struct sheaf_tensor *dst) {
    return is_dense_f32(dst) && check_map(dst);
}

static bool check_sum_rows(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    return is_f32(dst) && is_plain(a) && dst->ne[0] == 1 && same_from(1, dst, a);
}

static bool check_argmax(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    return dst->type == SHEAF_TYPE_I32 && is_plain(a) && a->ne[0] > 0 && a->ne[0] <= INT32_MAX &&
           a->ne[2] == 1 && a->ne[3] == 1 && dst->ne[0] == a->ne[1] && sheaf_nrows(dst) == 1;
}

static bool check_top_k(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    return dst->type == SHEAF_TYPE_I32 && is_dense(dst) && is_plain(a) && a->ne[0] <= INT32_MAX &&
           dst->ne[0] <= a->ne[0] && same_from(1, dst, a);
}

static bool check_count_equal(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    return dst->type == SHEAF_TYPE_I64 && sheaf_nelements(dst) == 1 && a->type == SHEAF_TYPE_I32 &&
           b->type == SHEAF_TYPE_I32 && sheaf_are_same_shape(a, b);
}

static bool check_sum(const struct sheaf_tensor *dst) {
    return is_f32(dst) && sheaf_nelements(dst) == 1 && is_plain(dst->src[0]);
}

static bool check_group_norm(const struct sheaf_tensor *dst) {
    return dst->op_params[2] > 0 && check_rms_norm(dst);
}

static bool check_argsort(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    return dst->type == SHEAF_TYPE_I32 && is_dense(dst) && is_plain(a) && a->ne[0] <= INT32_MAX &&
           sheaf_are_same_shape(dst, a) && (uint32_t)dst->op_params[0] <= 1;
}

static bool check_add_id(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1], *ids = dst->src[2];
    return is_dense_f32(dst) && is_dense_f32(a) && is_dense_f32(b) &&
           sheaf_are_same_shape(dst, a) && dst->ne[3] == 1 && b->ne[0] == dst->ne[0] &&
           b->ne[2] == 1 && b->ne[3] == 1 && ids->type == SHEAF_TYPE_I32 &&
           ids->ne[0] == dst->ne[1] && ids->ne[1] == dst->ne[2] && ids->ne[2] == 1 &&
           ids->ne[3] == 1;
}

/* ---- places ---- */

static bool check_fill(const struct sheaf_tensor *dst) { return is_plain(dst) && is_dense(dst); }

static bool check_repeat(const struct sheaf_tensor *dst) {
    return dst->type == dst->src[0]->type && !sheaf_is_quantized(dst->type) &&
           sheaf_can_repeat(dst->src[0], dst);
}

static bool check_pad(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    const int32_t *p = dst->op_params;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        const int64_t more = (int64_t)p[2 * i] + p[2 * i + 1];
        if (p[2 * i] < 0 || p[2 * i + 1] < 0 || dst->ne[i] - more != a->ne[i]) return false;
        if (p[8] && more > 0 && a->ne[i] == 0) return false;
    }
    return is_dense_f32(dst) && is_f32(a);
}

/* ---- windows, triangles, lists ---- */

static bool check_window(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (dst->op_params[i] < 0 || b->ne[i] > dst->ne[i] - dst->op_params[i]) return false;
    }
    return is_dense_f32(dst) && is_f32(a) && is_f32(b) && sheaf_are_same_shape(dst, a);
}

static bool check_matrix(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    if (dst->op == SHEAF_OP_TRI && (uint32_t)dst->op_params[0] > SHEAF_TRI_TYPE_LOWER) return false;
    if (dst->op != SHEAF_OP_CUMSUM && dst->op_params[0] < 0) return false;
    return is_dense_f32(dst) && is_f32(a) && sheaf_are_same_shape(dst, a);
}

static bool check_diag(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    return is_dense_f32(dst) && is_f32(a) && a->ne[1] == 1 && dst->ne[0] == a->ne[0] &&
           dst->ne[1] == a->ne[0] && same_from(2, dst, a);
}

static bool check_solve(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    return is_dense_f32(dst) && is_f32(a) && is_f32(b) && sheaf_are_same_shape(dst, b) &&
           a->ne[0] == a->ne[1] && same_from(1, a, b);
}

static bool check_arange(const struct sheaf_tensor *dst) {
    return is_dense_f32(dst) && sheaf_nrows(dst) == 1;
}

/* ---- DeepSeek ---- */

static bool has_shape(const struct sheaf_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
    return t->ne[0] == a && t->ne[1] == b && t->ne[2] == c && t->ne[3] == d;
}

static bool check_indexer(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *q = dst->src[0], *k = dst->src[1], *w = dst->src[2];
    const struct sheaf_tensor *mask = dst->src[3];
    const int64_t d = q->ne[0], h = q->ne[1], n = q->ne[2], s = q->ne[3], t = k->ne[2];
    return is_f32(dst) && has_shape(dst, t, n, 1, s) && is_dense_f32(q) &&
           q->nb[1] % sizeof(float) == 0 && is_float(k) && has_shape(k, d, 1, t, s) && is_f32(w) &&
           has_shape(w, h, n, 1, s) && is_plain(mask) &&
           (has_shape(mask, t, n, 1, s) || has_shape(mask, t, n, 1, 1));
}

static bool check_hc_comb(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *mixes = dst->src[0], *scale = dst->src[1], *base = dst->src[2];
    const int64_t c = dst->ne[0];
    return is_dense_f32(dst) && c >= 1 && c <= SHEAF_HC_MAX &&
           has_shape(dst, c, c, mixes->ne[1], 1) && is_f32(mixes) &&
           has_shape(mixes, (2 + c) * c, mixes->ne[1], 1, 1) && is_f32(scale) &&
           scale->ne[0] >= 3 && is_f32(base) && base->ne[0] == mixes->ne[0];
}

static bool check_hc_pre(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *x = dst->src[0], *w = dst->src[1];
    const bool weighted =
        dst->op_params[1] ? sheaf_are_same_shape(w, x) : has_shape(w, x->ne[1], x->ne[2], 1, 1);
    return is_dense_f32(dst) && is_f32(x) && is_f32(w) && weighted && x->ne[3] == 1 &&
           has_shape(dst, x->ne[0], x->ne[2], 1, 1);
}

static bool check_hc_post(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *x = dst->src[0], *res = dst->src[1], *post = dst->src[2];
    const struct sheaf_tensor *comb = dst->src[3];
    const int64_t e = dst->ne[0], d = dst->ne[1], n = dst->ne[2], c = res->ne[1];
    return is_dense_f32(dst) && is_f32(x) && is_f32(res) && is_f32(post) && dst->ne[3] == 1 &&
           has_shape(x, e, n, 1, 1) && has_shape(res, e, c, n, 1) && has_shape(post, d, n, 1, 1) &&
           (comb ? is_f32(comb) && has_shape(comb, d, c, n, 1) : d == c);
}

/* ---- images and signals ---- */

/* The places of a window over the first n dimensions of x; false: the window's words allow none. */
static bool places(const struct sheaf_tensor *dst, const struct sheaf_tensor *x, int n,
                   int64_t out[]) {
    const int32_t *p = dst->op_params;
    for (int i = 0; i < n; i++) {
        const int64_t size = p[i], stride = p[n + i], pad = p[2 * n + i], apart = p[3 * n + i];
        if (size < 1 || stride < 1 || pad < 0 || apart < 1) return false;
        const int64_t left = x->ne[i] + 2 * pad - apart * (size - 1) - 1;
        out[i] = x->ne[i] + 2 * pad == 0 ? 0 : left / stride + 1; /* an empty slice has none */
        if (out[i] && left < 0) return false;
    }
    return true;
}
/* The places of a window over x are dimensions `first` and the next of dst. */
static bool check_places(const struct sheaf_tensor *dst, const struct sheaf_tensor *x, int first) {
    int64_t out[2];
    return places(dst, x, 2, out) && dst->ne[first] == out[0] && dst->ne[first + 1] == out[1];
}

static bool check_im2col(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *x = dst->src[0];
    const int32_t *p = dst->op_params;
    return is_plain(dst) && is_dense(dst) && is_plain(x) && check_places(dst, x, 1) &&
           dst->ne[0] == product(3, (const int64_t[]){p[0], p[1], x->ne[2]}) &&
           dst->ne[3] == x->ne[3];
}

static bool check_conv(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const bool deep = dst->op == SHEAF_OP_CONV_2D_DW;
    return is_dense_f32(dst) && is_plain(a) && is_f32(b) && check_places(dst, b, 0) &&
           a->ne[0] == dst->op_params[0] && a->ne[1] == dst->op_params[1] &&
           dst->ne[2] == a->ne[3] && dst->ne[3] == b->ne[3] &&
           (deep ? a->ne[2] == 1 && a->ne[3] == b->ne[2] : a->ne[2] == b->ne[2]);
}

static bool check_im2col_3d(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *x = dst->src[0];
    const int32_t *p = dst->op_params;
    int64_t out[3];
    if (!is_plain(dst) || !is_dense(dst) || !is_plain(x) || !places(dst, x, 3, out)) return false;
    const int64_t size = product(3, (const int64_t[]){p[0], p[1], p[2]});
    if (size < 0 || dst->ne[0] % size || dst->ne[1] != out[0] || dst->ne[2] != out[1]) return false;
    const int64_t channels = dst->ne[0] / size;
    if (channels == 0) return x->ne[3] == 0;
    return x->ne[3] % channels == 0 &&
           dst->ne[3] == product(2, (const int64_t[]){x->ne[3] / channels, out[2]});
}

static bool check_conv_3d(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    int64_t out[3];
    if (!is_dense_f32(dst) || !is_plain(a) || !is_f32(b) || !places(dst, b, 3, out)) return false;
    for (int i = 0; i < 3; i++) {
        if (a->ne[i] != dst->op_params[i] || dst->ne[i] != out[i]) return false;
    }
    return sheaf__summed_channels(a->ne[3], b->ne[3], dst->ne[3]) >= 0;
}

/* n is what i elements, `stride` apart, become when each is spread over w. */
static bool is_spread(int64_t n, int64_t i, int64_t w, int64_t stride) {
    return stride > 0 && w > 0 && i > 0 && i <= INT32_MAX && n == (i - 1) * stride + w;
}

static bool check_transposed(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    return is_dense_f32(dst) && is_plain(a) && is_f32(b) &&
           is_spread(dst->ne[0], b->ne[0], a->ne[0], dst->op_params[0]) &&
           has_shape(dst, dst->ne[0], a->ne[1], 1, 1) && has_shape(b, b->ne[0], a->ne[2], 1, 1) &&
           a->ne[3] == 1;
}

static bool check_transposed_2d(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    return is_dense_f32(dst) && is_plain(a) && is_f32(b) &&
           is_spread(dst->ne[0], b->ne[0], a->ne[0], dst->op_params[0]) &&
           is_spread(dst->ne[1], b->ne[1], a->ne[1], dst->op_params[0]) && dst->ne[2] == a->ne[2] &&
           dst->ne[3] == b->ne[3] && a->ne[3] == b->ne[2];
}

static bool check_col2im(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t size = dst->op_params[0], pad = dst->op_params[2];
    return is_plain(dst) && is_dense(dst) && a->type == dst->type && size > 0 && pad >= 0 &&
           is_spread(dst->ne[0] + 2 * pad, a->ne[1], size, dst->op_params[1]) &&
           a->ne[0] % size == 0 && has_shape(dst, dst->ne[0], a->ne[0] / size, 1, 1) &&
           has_shape(a, a->ne[0], a->ne[1], 1, 1);
}

/* A last window may end outside: ggml's pad of half an element (YOLO) counts in the number of
 * places, and is 0 in the window. */
static bool check_pool(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    int64_t out[2];
    if (!places(dst, a, 2, out)) return false;
    for (int i = 0; i < 2; i++)
        if (dst->ne[i] != out[i] && dst->ne[i] != out[i] + 1) return false;
    return is_dense_f32(dst) && is_plain(a) && same_from(2, dst, a) &&
           (uint32_t)dst->op_params[8] <= SHEAF_POOL_AVG;
}

static bool check_upscale(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if ((a->ne[i] == 0) != (dst->ne[i] == 0)) return false;
    }
    return is_dense_f32(dst) && is_f32(a) && (uint32_t)dst->op_params[0] < SHEAF_SCALE_MODE_COUNT;
}

static bool check_reflect(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t left = dst->op_params[0], right = dst->op_params[1];
    return is_dense_f32(dst) && is_f32(a) && left >= 0 && right >= 0 && left < a->ne[0] &&
           right < a->ne[0] && dst->ne[0] == left + a->ne[0] + right && same_from(1, dst, a);
}

static bool check_roll(const struct sheaf_tensor *dst) {
    return is_dense_f32(dst) && is_f32(dst->src[0]) && sheaf_are_same_shape(dst, dst->src[0]);
}

static bool check_timestep(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    return is_dense_f32(dst) && is_f32(a) && dst->op_params[0] > 0 && dst->op_params[1] > 0 &&
           has_shape(dst, dst->op_params[0], a->ne[0], 1, 1) && sheaf_nrows(a) == 1;
}

/* Windows of w that cover i and j, in as many as dimension 3 of `windows` has. */
static bool are_windows(const struct sheaf_tensor *windows, const struct sheaf_tensor *image,
                        int64_t w) {
    if (w < 1 || image->ne[1] > INT64_MAX - w || image->ne[2] > INT64_MAX - w) return false;
    const int64_t n[] = {(image->ne[1] + w - 1) / w, (image->ne[2] + w - 1) / w};
    return is_f32(windows) && is_f32(image) && image->ne[3] == 1 &&
           has_shape(windows, image->ne[0], w, w, product(2, n));
}
static bool check_win_part(const struct sheaf_tensor *dst) {
    return is_dense(dst) && are_windows(dst, dst->src[0], dst->op_params[0]);
}
static bool check_win_unpart(const struct sheaf_tensor *dst) {
    return is_dense(dst) && are_windows(dst->src[0], dst, dst->op_params[0]);
}

static bool check_get_rel_pos(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t n = dst->ne[1];
    return is_plain(dst) && is_dense(dst) && a->type == dst->type && n > 0 && n <= INT32_MAX &&
           has_shape(a, dst->ne[0], 2 * n - 1, 1, 1) && has_shape(dst, dst->ne[0], n, n, 1);
}

static bool check_add_rel_pos(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *pw = dst->src[1], *ph = dst->src[2];
    return is_dense_f32(dst) && is_f32(a) && is_f32(pw) && is_f32(ph) &&
           sheaf_are_same_shape(dst, a) && sheaf_are_same_shape(pw, ph) && a->ne[3] == 1 &&
           pw->ne[3] == a->ne[2] &&
           a->ne[0] == product(2, (const int64_t[]){pw->ne[0], pw->ne[0]}) &&
           a->ne[1] == product(2, (const int64_t[]){pw->ne[1], pw->ne[2]});
}

/* Masks have at least the rows of what they are added to, and repeat over dimensions 2 and 3. */
static bool check_mask(const struct sheaf_tensor *mask, int64_t width, int64_t rows, int64_t n2,
                       int64_t n3) {
    return !mask || (is_plain(mask) && mask->ne[0] == width && mask->ne[1] >= rows &&
                     sheaf__divides(mask->ne[2], n2) && sheaf__divides(mask->ne[3], n3));
}

static bool check_sinks(const struct sheaf_tensor *sinks, int64_t heads) {
    return !sinks || (is_f32(sinks) && sinks->ne[0] == heads && sheaf_nelements(sinks) == heads);
}

static bool check_soft_max(const struct sheaf_tensor *dst) {
    const int64_t *ne = dst->ne;
    return is_dense_f32(dst) && check_map(dst) && check_sinks(dst->src[2], ne[2]) &&
           check_mask(dst->src[1], ne[0], ne[1], ne[2], ne[3]);
}

/* Sections are not negative, and some pairs are in them. */
static bool check_sections(const struct sheaf_tensor *dst) {
    int64_t round = 0;
    for (int i = 0; i < SHEAF__ROPE_SECTIONS; i++) {
        if (dst->op_params[9 + i] < 0) return false;
        round += dst->op_params[9 + i];
    }
    return round > 0 && round <= dst->ne[0];
}

static bool check_rope(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *pos = dst->src[1], *factors = dst->src[2];
    const int n_dims = dst->op_params[0], mode = dst->op_params[1], offset = dst->op_params[13];
    if (!check_map(dst) || n_dims < 2 || n_dims % 2 || n_dims > dst->ne[0]) return false;
    if (offset < 0 || offset > dst->ne[0] - n_dims) return false;
    const bool vision = mode == SHEAF_ROPE_TYPE_VISION;
    int64_t n = a->ne[2];
    if (mode == SHEAF_ROPE_TYPE_MROPE || mode == SHEAF_ROPE_TYPE_IMROPE || vision) {
        if (!check_sections(dst) || n > INT64_MAX / 4) return false;
        n *= SHEAF__ROPE_SECTIONS;
    } else if (mode != SHEAF_ROPE_TYPE_NORMAL && mode != SHEAF_ROPE_TYPE_NEOX) {
        return false;
    }
    if (vision && (offset || dst->ne[0] != 2 * (int64_t)n_dims)) return false;
    if (pos->type != SHEAF_TYPE_I32 || pos->ne[0] < n) return false;
    return !factors || (is_f32(factors) && factors->ne[0] >= (vision ? n_dims : n_dims / 2));
}

/* ---- products ---- */

/* MUL_MAT and MUL_MAT_ID: a [k, m, ..], b [k, n, ..] -> dst [m, n, ..]. */
static bool check_product(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    return is_f32(dst) && has_dense_rows(dst) && is_float(a) && has_dense_rows(a) &&
           (is_f32(b) || b->type == SHEAF_TYPE_F16) && a->ne[0] == b->ne[0] &&
           a->ne[1] == dst->ne[0];
}

static bool check_mul_mat(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    return check_product(dst) && same_from(1, b, dst) && sheaf__divides(a->ne[2], b->ne[2]) &&
           sheaf__divides(a->ne[3], b->ne[3]);
}

static bool check_mul_mat_id(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1], *ids = dst->src[2];
    return check_product(dst) && ids->type == SHEAF_TYPE_I32 && ids->ne[0] == dst->ne[1] &&
           ids->ne[1] == dst->ne[2] && b->ne[2] == dst->ne[2] && repeats(b, dst, 1) &&
           a->ne[3] == 1 && b->ne[3] == 1 && dst->ne[3] == 1;
}

/* h query heads read h_kv K/V heads, in groups of one size or as the slice says. */
static bool check_head_groups(const struct sheaf_tensor *dst, int64_t h, int64_t h_kv) {
    const int64_t each = dst->op_params[SHEAF_OP_PARAM_GROUP];
    if (!each) return sheaf__divides(h_kv, h);
    if (each < 0 || dst->op_params[SHEAF_OP_PARAM_BASE] < 0 || h < 1) return false;
    const struct sheaf__head_groups g = sheaf__head_groups(dst);
    return (g.skip + h + g.each - 1) / g.each == h_kv;
}

/* q [d, n, h, s], k [d, m, h_kv, s], v [dv, m, h_kv, s] -> dst [dv, h, n, s] */
static bool check_flash_attn(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    if (!is_dense_f32(dst) || !is_f32(q)) return false;
    if (!is_float(k) || !is_dense(k) || !is_float(v) || !is_dense(v)) return false;
    if (q->ne[0] != k->ne[0] || q->ne[3] != k->ne[3] || !same_from(1, k, v)) return false;
    if (!check_head_groups(dst, q->ne[2], k->ne[2]) || dst->ne[0] != v->ne[0] ||
        dst->ne[1] != q->ne[2] || dst->ne[2] != q->ne[1] || dst->ne[3] != q->ne[3])
        return false;
    return check_sinks(dst->src[4], q->ne[2]) &&
           check_mask(dst->src[3], k->ne[1], q->ne[1], q->ne[2], q->ne[3]);
}

/* ---- copies ---- */

static bool check_copy(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *src = dst->src[0];
    if (!sheaf_type_is_known(src->type) || sheaf_nelements(dst) != sheaf_nelements(src))
        return false;
    if (dst->type == src->type) return true;
    if (is_int(dst)) return is_int(src) || is_plain(src);
    return is_int(src) ? is_plain(dst) : is_float(dst) && is_float(src);
}

static bool check_concat(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const int dim = dst->op_params[0];
    if (dim < 0 || dim >= SHEAF_MAX_DIMS) return false;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (i == dim ? dst->ne[i] != a->ne[i] + b->ne[i]
                     : dst->ne[i] != a->ne[i] || dst->ne[i] != b->ne[i])
            return false;
    }
    return dst->type == a->type && dst->type == b->type;
}

static bool check_get_rows(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const bool types = a->type == SHEAF_TYPE_I32 ? dst->type == SHEAF_TYPE_I32 && is_dense(dst)
                                                 : is_dense_f32(dst) && is_float(a);
    return types && is_int(b) && dst->ne[0] == a->ne[0] && dst->ne[1] == b->ne[0] &&
           same_from(2, dst, a) && a->ne[2] == b->ne[1] && a->ne[3] == b->ne[2] && b->ne[3] == 1;
}

static bool check_set_rows(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *b = dst->src[1], *c = dst->src[2];
    return is_float(dst) && is_plain(b) && is_int(c) && dst->ne[0] == b->ne[0] &&
           same_from(2, dst, b) && c->ne[0] == b->ne[1] && c->ne[3] == 1 &&
           sheaf__divides(c->ne[1], b->ne[2]) && sheaf__divides(c->ne[2], b->ne[3]);
}

/* ---- layers with a state ---- */

static bool is_shape(const struct sheaf_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
    return is_f32(t) && is_dense(t) && t->ne[0] == a && t->ne[1] == b && t->ne[2] == c &&
           t->ne[3] == d;
}
/* Dimensions 0 to 2 without gaps; one of a single index has any stride. */
static bool has_dense_cubes(const struct sheaf_tensor *t) {
    size_t next = sizeof(float) * (size_t)t->ne[0];
    if (t->ne[1] > 1 && t->nb[1] != next) return false;
    next *= (size_t)t->ne[1];
    return t->ne[2] <= 1 || t->nb[2] == next;
}
/* y ++ states, one after another. */
static bool is_flat(const struct sheaf_tensor *dst, int64_t y, int64_t states) {
    int64_t n;
    return is_f32(dst) && is_dense(dst) && sheaf_nrows(dst) == 1 && states >= 0 &&
           !__builtin_add_overflow(y, states, &n) && dst->ne[0] == n;
}

static bool check_ssm_conv(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *x = dst->src[0], *w = dst->src[1];
    const int64_t k = w->ne[0], c = w->ne[1];
    return k > 0 && is_shape(w, k, c, 1, 1) && is_shape(x, dst->ne[1] + k - 1, c, dst->ne[2], 1) &&
           is_f32(dst) && has_dense_rows(dst) && dst->ne[0] == c && dst->ne[3] == 1;
}

static bool check_ssm_scan(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *s = dst->src[0], *x = dst->src[1], *dt = dst->src[2],
                              *a = dst->src[3], *b = dst->src[4], *c = dst->src[5],
                              *ids = dst->src[6];
    const int64_t k = s->ne[0], d = x->ne[0], h = x->ne[1], t = x->ne[2], n = x->ne[3];
    const int64_t kept = dst->op_params[0];
    if (!is_shape(s, k, d, h, s->ne[3]) || !has_dense_cubes(s) || !is_shape(x, d, h, t, n))
        return false;
    if (!is_shape(dt, h, t, n, 1) || !(a->ne[0] == 1 || a->ne[0] == k)) return false;
    if (!is_shape(a, a->ne[0], h, 1, 1) || !is_shape(b, k, b->ne[1], t, n) ||
        !is_shape(c, k, b->ne[1], t, n) || !sheaf__divides(b->ne[1], h))
        return false;
    if (ids->type != SHEAF_TYPE_I32 || ids->ne[0] != n || sheaf_nrows(ids) != 1) return false;
    return kept >= 1 && (kept == 1 || a->ne[0] == 1) &&
           is_flat(dst, sheaf_nelements(x), product(5, (const int64_t[]){kept, k, d, h, n}));
}

static bool check_gated_delta_net(const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2],
                              *gate = dst->src[3], *beta = dst->src[4], *state = dst->src[5];
    const int64_t n = v->ne[0], h = v->ne[1], t = v->ne[2], s = v->ne[3], g = k->ne[1];
    const int64_t kept = dst->op_params[0];
    return is_shape(q, n, g, t, s) && is_shape(k, n, g, t, s) && is_shape(v, n, h, t, s) &&
           sheaf__divides(g, h) && (gate->ne[0] == 1 || gate->ne[0] == n) &&
           is_shape(gate, gate->ne[0], h, t, s) && is_shape(beta, 1, h, t, s) &&
           is_shape(state, n, n, h, s) && has_dense_cubes(state) && kept >= 1 &&
           is_flat(dst, sheaf_nelements(v), product(5, (const int64_t[]){kept, n, n, h, s}));
}

/* The first n_inputs operands are [n, h, s.t] (number `but` only [n, h]), the state is
 * [h.n.n, s]. */
static bool check_heads(const struct sheaf_tensor *dst, int n_inputs, int but,
                        const struct sheaf_tensor *state) {
    const int64_t *ne = dst->src[0]->ne;
    for (int i = 0; i < n_inputs; i++) {
        const int64_t tokens = i == but ? 1 : ne[2];
        if (!is_shape(dst->src[i], ne[0], ne[1], tokens, 1)) return false;
    }
    const int64_t s = state->ne[1];
    return is_shape(state, product(3, (const int64_t[]){ne[1], ne[0], ne[0]}), s, 1, 1) &&
           sheaf__divides(s, ne[2]) &&
           is_flat(dst, sheaf_nelements(dst->src[0]), sheaf_nelements(state));
}
enum { NO_OPERAND = -1 };
static bool check_rwkv_wkv6(const struct sheaf_tensor *dst) {
    return check_heads(dst, 5, 3, dst->src[5]);
}
static bool check_rwkv_wkv7(const struct sheaf_tensor *dst) {
    return check_heads(dst, 6, NO_OPERAND, dst->src[6]);
}
static bool check_gated_linear_attn(const struct sheaf_tensor *dst) {
    return check_heads(dst, 4, NO_OPERAND, dst->src[4]);
}

#define ROW(op, ...) [SHEAF_OP_##op] = {.name = #op, __VA_ARGS__},
static const struct sheaf__op_info rows[] = {SHEAF__OPS(ROW)};
#undef ROW

#define ROW(op, ...)                                                                               \
    static_assert((int)SHEAF__OP_ROW_##op == (int)SHEAF_OP_##op,                                   \
                  "the rows of tensor/op_info.h are in the order of enum sheaf_op");
SHEAF__OPS(ROW)
#undef ROW
static_assert((int)SHEAF__OP_ROW_COUNT == (int)SHEAF_OP_COUNT,
              "an op has no row in tensor/op_info.h");

const struct sheaf__op_info *sheaf__op_info(enum sheaf_op op) {
    static const struct sheaf__op_info unknown = {.name = "?"};
    return (unsigned)op < SHEAF_OP_COUNT ? &rows[op] : &unknown;
}

int sheaf__op_written(const struct sheaf_tensor *node) {
    const struct sheaf__op_info *info = sheaf__op_info(node->op);
    if (!node->view_src || info->writes_into || info->is_view) return info->writes_into;
    for (int i = 0; i < info->in_place; i++) {
        const struct sheaf_tensor *a = node->src[i];
        if (a && (a == node->view_src || a->view_src == node->view_src) &&
            a->view_offs == node->view_offs && sheaf_are_same_layout(a, node))
            return i + 1;
    }
    return 0;
}

struct sheaf_tensor *sheaf__op_target(const struct sheaf_tensor *node) {
    const int written = sheaf__op_written(node);
    return written ? node->src[written - 1] : sheaf_op_is_view(node->op) ? node->src[0] : NULL;
}

const char *sheaf_op_name(enum sheaf_op op) { return sheaf__op_info(op)->name; }
enum sheaf_op_cost sheaf_op_get_cost(enum sheaf_op op) { return sheaf__op_info(op)->cost; }
bool sheaf_op_is_view(enum sheaf_op op) { return sheaf__op_info(op)->is_view; }

bool sheaf_backend_op_is_valid(const struct sheaf_tensor *op) {
    if ((unsigned)op->op >= SHEAF_OP_COUNT || !sheaf_type_is_known(op->type)) return false;
    const struct sheaf__op_info *info = &rows[op->op];
    for (int i = 0; i < info->required; i++)
        if (!op->src[i] || !sheaf_type_is_known(op->src[i]->type)) return false;
    /* a result in memory that is not its own: over an operand that the op may write over */
    if (op->view_src && op->op != SHEAF_OP_NONE && !info->is_view && !sheaf__op_written(op))
        return false;
    return !info->check || info->check(op);
}
