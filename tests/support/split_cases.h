/* Cases of test-split-exhaustive by theme: ops of each element, of rows, and of places. Included by
 * that suite alone, behind its struct xcase. */
#ifndef SHEAF_TESTS_SPLIT_CASES_H
#define SHEAF_TESTS_SPLIT_CASES_H

static T *b_add_in_place(C *c, T **a) { return sheaf_in_place(sheaf_add(c, a[0], a[1]), 0); }
static T *b_sub_into_b(C *c, T **a) { return sheaf_in_place(sheaf_sub(c, a[0], a[1]), 1); }
static T *b_scale_in_place(C *c, T **a) { return sheaf_in_place(b_scale(c, a), 0); }
static T *b_rope_in_place(C *c, T **a) { return sheaf_in_place(b_rope(c, a), 0); }

#define MAP(name, call)                                                                            \
    static T *b_##name(C *c, T **a) { return sheaf_##call; }
MAP(sqr, sqr(c, a[0]))
MAP(sqrt, sqrt(c, a[0]))
MAP(sin, sin(c, a[0]))
MAP(cos, cos(c, a[0]))
MAP(log, ln(c, a[0]))
MAP(clamp, clamp(c, a[0], -0.5f, 0.6f))
MAP(clamp_out, clamp(c, a[0], 0.3f, 0.6f))
MAP(leaky_relu, leaky_relu(c, a[0], 0.1f))
MAP(abs, unary(c, a[0], SHEAF_UNARY_OP_ABS))
MAP(sgn, unary(c, a[0], SHEAF_UNARY_OP_SGN))
MAP(step, unary(c, a[0], SHEAF_UNARY_OP_STEP))
MAP(elu, unary(c, a[0], SHEAF_UNARY_OP_ELU))
MAP(gelu_quick, unary(c, a[0], SHEAF_UNARY_OP_GELU_QUICK))
MAP(gelu_erf, unary(c, a[0], SHEAF_UNARY_OP_GELU_ERF))
MAP(hardswish, unary(c, a[0], SHEAF_UNARY_OP_HARDSWISH))
MAP(hardsigmoid, unary(c, a[0], SHEAF_UNARY_OP_HARDSIGMOID))
MAP(expm1, unary(c, a[0], SHEAF_UNARY_OP_EXPM1))
MAP(softplus, unary(c, a[0], SHEAF_UNARY_OP_SOFTPLUS))
MAP(xielu, xielu(c, a[0], 0.8f, 0.3f, 0.5f, -0.1f))
MAP(xielu_of_zero, xielu(c, a[0], 0.8f, 0.3f, 0.5f, 0))
MAP(floor, unary(c, a[0], SHEAF_UNARY_OP_FLOOR))
MAP(ceil, unary(c, a[0], SHEAF_UNARY_OP_CEIL))
MAP(round, unary(c, a[0], SHEAF_UNARY_OP_ROUND))
MAP(trunc, unary(c, a[0], SHEAF_UNARY_OP_TRUNC))
MAP(geglu_erf, glu_split(c, a[0], a[1], SHEAF_GLU_OP_GEGLU_ERF))
MAP(geglu_quick, glu(c, a[0], SHEAF_GLU_OP_GEGLU_QUICK, false))
MAP(swiglu_oai, swiglu_oai(c, a[0], a[1], 1.7f, 0.8f))
MAP(swiglu_clamp, swiglu_clamp(c, a[0], a[1], 0.8f))
MAP(norm, norm(c, a[0], 1e-5f))
MAP(l2_norm, l2_norm(c, a[0], 1e-5f))
MAP(sum, sum(c, a[0]))
MAP(mean, mean(c, a[0]))
MAP(argsort, argsort(c, a[0], SHEAF_SORT_ORDER_ASC))
MAP(add_id, add_id(c, a[0], a[1], a[2]))
MAP(repeat, repeat_4d(c, a[0], a[0]->ne[0] * 2, a[0]->ne[1] * 3, a[0]->ne[2], a[0]->ne[3] * 2))
MAP(pad, pad(c, a[0], (const int[]){1, 0, 0, 0}, (const int[]){2, 0, 1, 0}, false))
MAP(pad_round, pad(c, a[0], (const int[]){0, 3, 0, 0}, (const int[]){0, 2, 0, 0}, true))
MAP(cumsum, cumsum(c, a[0]))
MAP(tri, tri(c, a[0], SHEAF_TRI_TYPE_LOWER_DIAG))
MAP(diag, diag(c, a[0]))
MAP(diag_mask_inf, diag_mask_inf(c, a[0], 1))
MAP(diag_mask_zero, diag_mask_zero(c, a[0], 1))
MAP(solve_tri, solve_tri(c, a[0], a[1]))
MAP(indexer, lightning_indexer(c, a[0], a[1], a[2], a[3]))
MAP(hc_comb, dsv4_hc_comb(c, a[0], a[1], a[2], 1e-3f, 3))
MAP(hc_pre, dsv4_hc_pre(c, a[0], a[1]))
MAP(hc_pre_gated, dsv4_hc_pre_gated(c, a[0], a[1], 0.5f))
MAP(hc_post, dsv4_hc_post(c, a[0], a[1], a[2], a[3]))
MAP(hc_post_apart, dsv4_hc_post(c, a[0], a[1], a[2], NULL))
#undef MAP

#define IMAGE_WINDOW                                                                               \
    &(const struct sheaf_window) {                                                                 \
        {2, 2}, {1, 1}, {1, 0}, { 1, 1 }                                                           \
    }
#define POOL_WINDOW                                                                                \
    &(const struct sheaf_window) {                                                                 \
        {3, 3}, {1, 1}, {1, 1}, { 1, 1 }                                                           \
    }
#define IMAGE(name, call)                                                                          \
    static T *b_##name(C *c, T **a) { return sheaf_##call; }
IMAGE(im2col, im2col(c, a[0], IMAGE_WINDOW, SHEAF_TYPE_F32))
IMAGE(im2col_f16, im2col(c, a[0], IMAGE_WINDOW, SHEAF_TYPE_F16))
IMAGE(conv_2d, conv_2d(c, a[0], a[1], IMAGE_WINDOW))
IMAGE(conv_2d_dw, conv_2d_dw(c, a[0], a[1], IMAGE_WINDOW))
IMAGE(conv_transpose_1d, conv_transpose_1d(c, a[0], a[1], 2))
IMAGE(pool_1d_max, pool_1d(c, a[0], SHEAF_POOL_MAX, 2, 1, 1))
IMAGE(pool_1d_avg, pool_1d(c, a[0], SHEAF_POOL_AVG, 2, 2, 0))
IMAGE(pool_2d_max, pool_2d(c, a[0], SHEAF_POOL_MAX, POOL_WINDOW))
IMAGE(pool_2d_avg, pool_2d(c, a[0], SHEAF_POOL_AVG, POOL_WINDOW))
IMAGE(pad_reflect_1d, pad_reflect_1d(c, a[0], 1, 2))
IMAGE(roll, roll(c, a[0], (const int[]){1, 0, 2, 0}))
IMAGE(roll_rows, roll(c, a[0], (const int[]){-1, 0, 0, 0}))
IMAGE(timestep_embedding, timestep_embedding(c, a[0], 7, 100))
#undef IMAGE
static T *upscaled(C *c, T *a, enum sheaf_scale_mode mode) {
    const int64_t ne[] = {a->ne[0] * 2, a->ne[1], a->ne[2], a->ne[3] * 2};
    return sheaf_upscale(c, a, ne, mode, false);
}
static T *b_upscale(C *c, T **a) { return upscaled(c, a[0], SHEAF_SCALE_MODE_NEAREST); }
static T *b_upscale_bilinear(C *c, T **a) { return upscaled(c, a[0], SHEAF_SCALE_MODE_BILINEAR); }

static T *b_upscale_bicubic(C *c, T **a) { return upscaled(c, a[0], SHEAF_SCALE_MODE_BICUBIC); }
static T *b_upscale_antialias(C *c, T **a) {
    const int64_t ne[] = {a[0]->ne[0], 2, a[0]->ne[2], a[0]->ne[3]};
    return sheaf_upscale(c, a[0], ne, SHEAF_SCALE_MODE_ANTIALIAS, false);
}

/* ---- volumes and windows: a slice has fewer of one factor, which its extents tell ---- */

#define VOLUME_WINDOW                                                                              \
    &(const struct sheaf_window_3d) {                                                              \
        {2, 2, 2}, {1, 1, 1}, {1, 0, 0}, { 1, 1, 1 }                                               \
    }
/* 3 images of 4 channels. */
static T *b_im2col_3d(C *c, T **a) {
    const int64_t n = a[0]->ne[3], channels = n % 4 ? n / 3 : 4;
    return n % 4 && n % 3 ? NULL
                          : sheaf_im2col_3d(c, a[0], channels, VOLUME_WINDOW, SHEAF_TYPE_F32);
}
/* 4 summed channels; 2 results of 2 images. */
static T *b_conv_3d(C *c, T **a) {
    const int64_t mk = a[0]->ne[3], nk = a[1]->ne[3];
    return sheaf_conv_3d(c, a[0], a[1],
                         mk == 8 || nk == 8 ? 4
                         : mk == nk         ? mk / 2
                                            : 0,
                         VOLUME_WINDOW);
}
static T *b_conv_transpose_2d(C *c, T **a) { return sheaf_conv_transpose_2d(c, a[0], a[1], 1); }
static T *b_col2im_1d(C *c, T **a) { return sheaf_col2im_1d(c, a[0], 3, 2, 0); }
static T *b_win_part(C *c, T **a) { return sheaf_win_part(c, a[0], 2); }
/* 3 columns and 2 rows of windows; those of a slice. */
static T *b_win_unpart(C *c, T **a) {
    const int64_t n = a[0]->ne[3];
    return n % 3 ? sheaf_win_unpart(c, a[0], n, 4, 2) : sheaf_win_unpart(c, a[0], 6, n / 3 * 2, 2);
}
/* An image that its windows exceed. */
static T *b_win_unpart_over(C *c, T **a) { return sheaf_win_unpart(c, a[0], 5, 3, 2); }
static T *b_get_rel_pos(C *c, T **a) { return sheaf_get_rel_pos(c, a[0], 3); }
static T *b_add_rel_pos(C *c, T **a) { return sheaf_add_rel_pos(c, a[0], a[1], a[2]); }
static T *b_count_equal(C *c, T **a) { return sheaf_count_equal(c, a[0], a[1]); }

/* A window at the place that it has in the whole: none where it covers a dimension. */
static T *window_at(C *c, T **a, bool add) {
    int64_t at[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4; i++) at[i] = a[0]->ne[i] > a[1]->ne[i];
    return add ? sheaf_acc(c, a[0], a[1], at) : sheaf_set(c, a[0], a[1], at);
}
static T *b_set(C *c, T **a) { return window_at(c, a, false); }
static T *b_acc(C *c, T **a) { return window_at(c, a, true); }

/* Groups of two channels, as the slices of a node have them. */
static T *b_group_norm(C *c, T **a) {
    T *t = sheaf_group_norm(c, a[0], 1, 1e-5f);
    if (t) t->op_params[2] = 2;
    return t;
}
static T *b_arange(C *c, T **a) {
    (void)a;
    return sheaf_arange(c, 1, 7, 1);
}
static T *b_fill(C *c, T **a) {
    (void)a;
    return sheaf_fill(c, sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, 6, 4), 2.5f);
}

#define ONE(name, type)                                                                            \
    { #name, 1, {{6, 4, 3, 5 } }, type, 0, 3, b_##name }
#define MAP_AND_ROW_CASES                                                                          \
    ONE(sqr, "f"), ONE(sqrt, "p"), ONE(sin, "f"), ONE(cos, "f"), ONE(log, "p"), ONE(clamp, "f"),   \
        ONE(clamp_out, "f"), ONE(leaky_relu, "f"), ONE(abs, "f"), ONE(sgn, "f"), ONE(step, "f"),   \
        ONE(elu, "f"), ONE(gelu_quick, "f"), ONE(gelu_erf, "f"), ONE(hardswish, "f"),              \
        ONE(hardsigmoid, "f"), ONE(expm1, "f"), ONE(softplus, "f"), ONE(xielu, "f"),               \
        ONE(xielu_of_zero, "f"), ONE(floor, "f"), ONE(ceil, "f"), ONE(round, "f"),                 \
        ONE(trunc, "f"), {"silu f16", 1, {{6, 4, 3, 5}}, "h", 0, 3, b_silu},                       \
        {"geglu_erf", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 3, b_geglu_erf},                   \
        {"geglu_quick fused", 1, {{12, 4, 3, 1}}, "f", 0, 3, b_geglu_quick},                       \
        {"swiglu_oai", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_swiglu_oai},                 \
        {"swiglu_clamp", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_swiglu_clamp},             \
        {"fill", 0, {{0}}, "", 0, 3, b_fill}, ONE(norm, "f"), ONE(l2_norm, "f"),                   \
        {"group_norm", 1, {{3, 4, 8, 6}}, "f", 0, 4, b_group_norm},                                \
        {"group_norm uneven", 1, {{3, 4, 7, 6}}, "f", 0, 3, b_group_norm}, ONE(sum, "f"),          \
        {"sum of a vector", 1, {{6, 1, 1, 1}}, "f", 0, 4, b_sum},                                  \
        {"mean", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_mean}, ONE(argsort, "f"),                         \
        {"add_id", 3, {{6, 4, 3, 1}, {6, 6, 1, 1}, {4, 3, 1, 1}}, "ffi", 6, 4, b_add_id},          \
        {"repeat", 1, {{4, 2, 3, 6}}, "f", 0, 4, b_repeat},                                        \
        {"repeat f16", 1, {{4, 1, 3, 1}}, "h", 0, 3, b_repeat},                                    \
        {"pad", 1, {{6, 4, 6, 2}}, "f", 0, 4, b_pad},                                              \
        {"pad circular", 1, {{6, 4, 6, 2}}, "f", 0, 3, b_pad_round},                               \
        {"get_rows i32", 2, {{6, 8, 1, 1}, {9, 1, 1, 1}}, "ii", 8, 4, b_get_rows}, {               \
        "add_id square", 3, {{4, 6, 1, 1}, {4, 6, 1, 1}, {6, 1, 1, 1}}, "ffi", 6, 3, b_add_id      \
    }

#define MATRIX_CASES                                                                               \
    {"set", 2, {{6, 4, 3, 2}, {3, 4, 3, 2}}, "ff", 0, 3, b_set},                                   \
        {"set rows", 2, {{6, 4, 6, 1}, {6, 2, 6, 1}}, "ff", 0, 3, b_set},                          \
        {"acc", 2, {{6, 4, 3, 2}, {3, 4, 3, 2}}, "ff", 0, 3, b_acc},                               \
        {"acc all", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 3, b_acc}, ONE(cumsum, "f"),         \
        {"tri", 1, {{6, 6, 4, 3}}, "f", 0, 3, b_tri},                                              \
        {"diag", 1, {{6, 1, 4, 3}}, "f", 0, 3, b_diag}, ONE(diag_mask_inf, "f"),                   \
        ONE(diag_mask_zero, "f"),                                                                  \
        {"solve_tri", 2, {{4, 4, 3, 2}, {6, 4, 3, 2}}, "pf", 0, 3, b_solve_tri},                   \
        {"arange", 0, {{0}}, "", 0, 3, b_arange},                                                  \
        {"indexer", 4,        {{4, 3, 4, 2}, {4, 1, 6, 2}, {3, 4, 1, 2}, {6, 4, 1, 2}}, "ffff", 0, \
         2,         b_indexer},                                                                    \
        {"indexer one mask",                                                                       \
         4,                                                                                        \
         {{4, 3, 4, 2}, {4, 1, 6, 2}, {3, 4, 1, 2}, {6, 4, 1, 1}},                                 \
         "fhfh",                                                                                   \
         0,                                                                                        \
         2,                                                                                        \
         b_indexer},                                                                               \
        {"hc_comb", 3, {{24, 6, 1, 1}, {3, 1, 1, 1}, {24, 1, 1, 1}}, "fff", 0, 3, b_hc_comb},      \
        {"hc_pre", 2, {{6, 4, 3, 1}, {4, 3, 1, 1}}, "ff", 0, 4, b_hc_pre},                         \
        {"hc_pre gated", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_hc_pre_gated},             \
        {"hc_post", 4,        {{6, 3, 1, 1}, {6, 4, 3, 1}, {4, 3, 1, 1}, {4, 4, 3, 1}}, "ffff", 0, \
         2,         b_hc_post},                                                                    \
    {                                                                                              \
        "hc_post apart", 3, {{6, 3, 1, 1}, {6, 4, 3, 1}, {4, 3, 1, 1}}, "fff", 0, 3,               \
            b_hc_post_apart                                                                        \
    }

#define IMAGE_CASES                                                                                  \
    {"im2col", 1, {{4, 3, 6, 4}}, "f", 0, 3, b_im2col},                                              \
        {"im2col f16", 1, {{4, 3, 6, 1}}, "h", 0, 3, b_im2col_f16},                                  \
        {"conv_2d", 2, {{2, 2, 4, 6}, {4, 3, 4, 3}}, "ff", 0, 3, b_conv_2d},                         \
        {"conv_2d f16", 2, {{2, 2, 4, 6}, {4, 3, 4, 1}}, "hf", 0, 3, b_conv_2d},                     \
        {"conv_2d_dw", 2, {{2, 2, 1, 6}, {4, 3, 6, 3}}, "ff", 0, 3, b_conv_2d_dw},                   \
        {"conv_transpose_1d", 2, {{3, 6, 4, 1}, {5, 4, 1, 1}}, "ff", 0, 3, b_conv_transpose_1d},     \
        {"conv_transpose_1d of one", 2, {{3, 6, 1, 1}, {5, 1, 1, 1}}, "ff", 0, 3,                    \
         b_conv_transpose_1d},                                                                       \
        {"pool_1d max", 1, {{6, 4, 3, 2}}, "f", 0, 3, b_pool_1d_max},                                \
        {"pool_1d avg", 1, {{6, 4, 3, 2}}, "f", 0, 3, b_pool_1d_avg},                                \
        {"pool_2d max", 1, {{5, 4, 6, 2}}, "f", 0, 3, b_pool_2d_max},                                \
        {"pool_2d avg", 1, {{5, 4, 6, 2}}, "f", 0, 3, b_pool_2d_avg},                                \
        {"upscale", 1, {{4, 3, 6, 2}}, "f", 0, 3, b_upscale},                                        \
        {"upscale bilinear", 1, {{4, 3, 6, 2}}, "f", 0, 3, b_upscale_bilinear},                      \
        {"pad_reflect_1d", 1, {{5, 4, 6, 2}}, "f", 0, 3, b_pad_reflect_1d},                          \
        {"roll", 1, {{6, 4, 6, 2}}, "f", 0, 3, b_roll},                                              \
        {"roll rows", 1, {{6, 4, 6, 2}}, "f", 0, 3, b_roll_rows},                                    \
        {"timestep_embedding", 1, {{6, 1, 1, 1}}, "f", 0, 4, b_timestep_embedding},                  \
        {"upscale bicubic", 1, {{4, 3, 6, 2}}, "f", 0, 3, b_upscale_bicubic},                        \
        {"upscale antialias", 1, {{4, 5, 6, 2}}, "f", 0, 3, b_upscale_antialias},                    \
        {"im2col_3d", 1, {{3, 4, 3, 12}}, "f", 0, 2, b_im2col_3d},                                   \
        {"conv_3d", 2, {{2, 2, 2, 8}, {3, 3, 3, 8}}, "ff", 0, 2, b_conv_3d},                         \
        {"conv_3d f16", 2, {{2, 2, 2, 8}, {3, 3, 3, 8}}, "hf", 0, 2, b_conv_3d},                     \
        {"conv_transpose_2d", 2, {{2, 2, 6, 4}, {3, 4, 4, 3}}, "ff", 0, 3, b_conv_transpose_2d},     \
        {"col2im_1d", 1, {{18, 4, 1, 1}}, "f", 0, 3, b_col2im_1d},                                   \
        {"col2im_1d f16", 1, {{18, 4, 1, 1}}, "h", 0, 3, b_col2im_1d},                               \
        {"win_part", 1, {{6, 8, 4, 1}}, "f", 0, 3, b_win_part},                                      \
        {"win_part over", 1, {{6, 5, 8, 1}}, "f", 0, 3, b_win_part},                                 \
        {"win_part of one", 1, {{6, 2, 2, 1}}, "f", 0, 3, b_win_part},                               \
        {"win_unpart", 1, {{6, 2, 2, 6}}, "f", 0, 2, b_win_unpart},                                  \
        {"win_unpart over", 1, {{6, 2, 2, 6}}, "f", 0, 2, b_win_unpart_over},                        \
        {"get_rel_pos", 1, {{6, 5, 1, 1}}, "f", 0, 3, b_get_rel_pos},                                \
        {"get_rel_pos f16", 1, {{6, 5, 1, 1}}, "h", 0, 3, b_get_rel_pos},                            \
        {"add_rel_pos", 3, {{9, 12, 4, 1}, {3, 4, 3, 4}, {3, 4, 3, 4}}, "fff", 0, 2, b_add_rel_pos}, \
        {"add_rel_pos of one", 3, {{9, 6, 1, 1}, {3, 6, 1, 1}, {3, 6, 1, 1}}, "fff", 0, 3,           \
         b_add_rel_pos},                                                                             \
    {                                                                                                \
        "count_equal", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ii", 5, 3, b_count_equal                    \
    }

#define IMAGE_MUTANTS                                                                              \
    {"channels lie apart in a column",                                                             \
     "im2col",                                                                                     \
     {.expr = "i j c n -> 4.c I J n", .whole = "ijIJ"}},                                           \
        {"each channel makes its own result",                                                      \
         "conv_2d",                                                                                \
         {.expr = "v w k m, i j k n -> I J m n", .whole = "vwijIJk", .linear = {3}}},              \
        {"a pool's rows may be cut", "pool_2d max", {.expr = "i j h s -> i j h s", .whole = "i"}}, \
        {"a maximum of P is P", "pool_1d max", {.expr = "6 j h s -> 7 j h s", .linear = {1}}},     \
        {"what rolls may be cut", "roll", {.expr = "i j h s -> i j h s", .whole = "i"}},           \
        {"a mask rolls along",                                                                     \
         "roll",                                                                                   \
         {.expr = "i j h s -> i j h s", .whole = "ih", .zero = {1}}},                              \
        {"a kernel's channels are its minor factor",                                               \
         "conv_3d",                                                                                \
         {.expr = "v w u k=4.m, i j l n.k -> I J L n.m", .whole = "vwuijlIJL", .sum = "k"}},       \
        {"images are the minor factor",                                                            \
         "im2col_3d",                                                                              \
         {.expr = "i j l c=4.n -> c.8 I J n.L", .whole = "ijlIJL"}},                               \
        {"kernels of many channels are alike",                                                     \
         "conv_transpose_2d",                                                                      \
         {.expr = "v w m k, i j k n -> I J m n", .whole = "vwijIJk", .linear = {3}}},              \
        {"columns are added where they lie",                                                       \
         "col2im_1d",                                                                              \
         {.expr = "m.3 i -> I m", .whole = "I", .sum = "i"}},                                      \
        {"rows of windows are the minor factor", "win_part", {.expr = "e p.2 q.2 -> e 2 2 p.q"}},  \
        {"relative places are rows",                                                               \
         "get_rel_pos",                                                                            \
         {.expr = "e p -> e k q", .whole = "kq", .sum = "p"}},                                     \
        {"a place is added by each member",                                                        \
         "add_rel_pos",                                                                            \
         {.expr = "N u.t b, n t u b, n t u b -> N u.t b", .whole = "Nn", .linear = {1}}},          \
    {                                                                                              \
        "an angle's sine is linear", "timestep_embedding", {                                       \
            .expr = "n -> d n", .linear = { 1 }                                                    \
        }                                                                                          \
    }

#define MATRIX_MUTANTS                                                                             \
    {"a window may be cut", "set rows", {.expr = "i j h s, i J h s -> i j h s", .linear = {3}}},   \
        {"what is replaced is an addend",                                                          \
         "set",                                                                                    \
         {.expr = "6 j h s, 3 j h s -> 6 j h s", .linear = {1}}},                                  \
        {"sums along a row start anew", "cumsum", {.expr = "i j h s -> i j h s"}},                 \
        {"a triangle's rows are alike", "tri", {.expr = "i j h s -> i j h s", .whole = "i"}},      \
        {"a mask outlives -inf",                                                                   \
         "diag_mask_inf",                                                                          \
         {.expr = "i j h s -> i j h s", .whole = "ij", .zero = {1}}},                              \
        {"a system is linear in its matrix",                                                       \
         "solve_tri",                                                                              \
         {.expr = "k n h s, m n h s -> m n h s", .whole = "kn", .linear = {1}}},                   \
        {"the indexer adds its mask on each member",                                               \
         "indexer",                                                                                \
         {.expr = "d h n s, d 1 t s, h n 1 s, t n 1 s -> t n 1 s", .whole = "d", .sum = "h"}},     \
        {"the indexer is linear in q",                                                             \
         "indexer",                                                                                \
         {.expr = "d h n s, d 1 t s, h n 1 s, t n 1 s -> t n 1 s", .whole = "dh", .linear = {9}}}, \
        {"a gate is linear",                                                                       \
         "hc_pre gated",                                                                           \
         {.expr = "e c n, e c n -> e n", .sum = "c", .linear = {2}}},                              \
    {                                                                                              \
        "streams are summed beside an addend", "hc_post", {                                        \
            .expr = "e n, e c n, d n, d c n -> e d n", .sum = "c"                                  \
        }                                                                                          \
    }

#define MAP_AND_ROW_MUTANTS                                                                        \
    {"the row of a mean-free norm may be cut", "norm", {.expr = "i j h s -> i j h s"}},            \
        {"a length is taken of parts", "l2_norm", {.expr = "i j h s -> i j h s"}},                 \
        {"channels of a group may part",                                                           \
         "group_norm",                                                                             \
         {.expr = "i j h s -> i j h s", .whole = "ij"}},                                           \
        {"a group outlives a mask",                                                                \
         "group_norm",                                                                             \
         {.expr = "i j h s -> i j h s", .whole = "ijh", .zero = {1}}},                             \
        {"means of parts are summed", "mean", {.expr = "k j h s -> 1 j h s", .sum = "k"}},         \
        {"a sorted row may be cut", "argsort", {.expr = "i j h s -> i j h s"}},                    \
        {"a clamp of 0 is always 0", "clamp_out", {.expr = "i j h s -> i j h s", .zero = {1}}},    \
        {"a cosine of 0 is 0", "cos", {.expr = "i j h s -> i j h s", .zero = {1}}},                \
        {"a softplus of 0 is 0", "softplus", {.expr = "i j h s -> i j h s", .zero = {1}}},         \
        {"abs of P is P", "abs", {.expr = "i j h s -> i j h s", .linear = {1}}},                   \
        {"gpt-oss's unit is 0 where its value is",                                                 \
         "swiglu_oai",                                                                             \
         {.expr = "f j h s, f j h s -> f j h s", .zero = {2}}},                                    \
        {"a clamped value is a factor",                                                            \
         "swiglu_clamp",                                                                           \
         {.expr = "f j h s, f j h s -> f j h s", .linear = {2}}},                                  \
        {"biases of experts need no base",                                                         \
         "add_id",                                                                                 \
         {.expr = "m u n, m x, u n -> m u n", .sum = "x"}},                                        \
        {"a bias is linear alone",                                                                 \
         "add_id",                                                                                 \
         {.expr = "m u n, m x, u n -> m u n", .whole = "x", .linear = {2}}},                       \
        {"a table of biases is an addend",                                                         \
         "add_id square",                                                                          \
         {.expr = "m u n, m x, u n -> m u n", .whole = "x", .add_once = 1}},                       \
        {"repeats lie side by side", "repeat", {.expr = "i j h s -> i.I j.J h.H s.S"}}, {          \
        "a padded dimension is summed", "pad", { .expr = "i j h s -> 9 j 7 s", .sum = "ih" }       \
    }

#endif
