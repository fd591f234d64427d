/* Operands of ops over images, signals, volumes and windows with the shapes that they give, or with a
 * part of the refusal. Included by test-core-ops alone, behind its struct test_case. */
#ifndef SHEAF_TESTS_IMAGE_SHAPES_H
#define SHEAF_TESTS_IMAGE_SHAPES_H

/* clang-format off */
#define IMAGE_SHAPES                                                                               \
    {"im2col", "f32 9 7 4 2", {3, 2, 1, 1, SHEAF_TYPE_F16}, "f16 36 5 4 2"},                       \
    {"im2col", "f32 9 7 4 2", {8, 1, 0, 1, SHEAF_TYPE_F32}, "!the window has no place"},           \
    {"im2col", "f32 9 7 4 2", {3, 0, 0, 1, SHEAF_TYPE_F32}, "!the window has no place"},           \
    {"im2col", "f32 9 7 4 2", {3, 1, -1, 1, SHEAF_TYPE_F32}, "!the window has no place"},          \
    {"im2col", "i32 9 7 4 2", {3, 1, 0, 1, SHEAF_TYPE_F32}, "!IM2COL: "},                          \
    {"conv_2d", "f16 3 3 4 6; f32 9 7 4 2", {0, 2, 1, 1}, "f32 5 4 6 2"},                          \
    {"conv_2d", "f16 3 3 5 6; f32 9 7 4 2", {0, 2, 1, 1}, "!the kernel is [v, w, k, m]"},          \
    {"conv_2d", "f16 3 3 4 6; f16 9 7 4 2", {0, 2, 1, 1}, "!the image f32"},                       \
    {"conv_2d", "f16 10 3 4 6; f32 9 7 4 2", {0, 1, 0, 1}, "!the window has no place"},            \
    {"conv_2d_dw", "f32 3 3 1 6; f32 9 7 6", {0, 1, 1, 1}, "f32 9 7 6 1"},                         \
    {"conv_2d_dw", "f32 3 3 6; f32 9 7 6", {0, 1, 1, 1}, "!the kernel is [v, w, 1, c]"},           \
    {"conv_transpose_1d", "f16 5 4 6; f32 9 6", {3}, "f32 29 4 1 1"},                              \
    {"conv_transpose_1d", "f16 5 4 6; f32 9 5", {3}, "!the signal [i, k]"},                        \
    {"conv_transpose_1d", "f16 5 4 6; f32 9 6", {0}, "!are from 1 on"},                            \
    {"conv_transpose_1d", "i32 5 4 6; f32 9 6", {1}, "!the signal f32"},                           \
    {"pool_1d", "f32 9 7", {SHEAF_POOL_AVG, 2, 2, 0}, "f32 4 7 1 1"},                              \
    {"pool_1d", "f32 9 7", {2, 2, 2, 0}, "!the maximum or the mean"},                              \
    {"pool_1d", "f32 9 7", {0, 2, 2, 2}, "f32 6 7 1 1"},                                           \
    {"pool_1d", "f32 9 7", {0, 2, 2, -1}, "!the window has no place"},                             \
    {"pool_1d", "i64 9 7", {0, 2, 2, 0}, "!POOL_1D: "},                                            \
    {"pool_2d", "f16 9 7 3", {3, 2, 1, 0, 0}, "f32 5 4 3 1"},                                      \
    {"pool_2d", "f16 9 7 3", {8, 2, 0, 0, 0}, "!the window has no place"},                         \
    {"upscale", "f32 4 3 2", {8, 9, 2, 1, 0}, "f32 8 9 2 1"},                                      \
    {"upscale", "f32 4 3 2", {8, 9, 2, 1, 3}, "f32 8 9 2 1"},                                      \
    {"upscale", "f32 4 3 2", {8, 9, 2, 1, 4}, "!NEAREST, BILINEAR, BICUBIC or ANTIALIAS"},         \
    {"upscale", "f32 4 3 2", {8, 0, 2, 1, 0}, "!both before and after"},                           \
    {"upscale", "f16 4 3 2", {8, 9, 2, 1, 0}, "!UPSCALE: "},                                       \
    {"pad_reflect_1d", "f32 4 3", {3, 2}, "f32 9 3 1 1"},                                          \
    {"pad_reflect_1d", "f32 4 3", {4, 2}, "!below dimension 0"},                                   \
    {"pad_reflect_1d", "f16 4 3", {1, 2}, "!PAD_REFLECT_1D: "},                                    \
    {"roll", "f32 4 3", {9, -9}, "f32 4 3 1 1"},                                                   \
    {"roll", "f16 4 3", {1}, "!ROLL: "},                                                           \
    {"timestep_embedding", "f32 5", {8, 100}, "f32 8 5 1 1"},                                      \
    {"timestep_embedding", "f32 5 2", {8, 100}, "!must be f32 [n]"},                               \
    {"timestep_embedding", "f32 5", {0, 100}, "!from 1 on"},                                       \
    {"im2col_3d", "f32 9 7 5 6", {3, 2, 1, 0, SHEAF_TYPE_F16}, "f16 24 8 6 8"},                    \
    {"im2col_3d", "f32 9 7 5 6", {4, 2, 1, 0, SHEAF_TYPE_F16}, "!whole times the channels"},       \
    {"im2col_3d", "f32 9 7 5 6", {3, 6, 1, 0, SHEAF_TYPE_F16}, "!the window has no place"},        \
    {"im2col_3d", "i32 9 7 5 6", {3, 2, 1, 0, SHEAF_TYPE_F16}, "!IM2COL_3D: "},                    \
    {"conv_3d", "f16 3 3 3 12; f32 9 7 5 6", {3, 0, 2, 1}, "f32 5 4 3 8"},                         \
    {"conv_3d", "f16 3 3 3 12; f32 9 7 5 6", {5, 0, 2, 1}, "!with k channels"},                    \
    {"conv_3d", "f16 3 3 3 12; f32 9 7 5 6", {0, 0, 2, 1}, "!with k channels"},                    \
    {"conv_3d", "f16 3 3 3 12; f16 9 7 5 6", {3, 0, 2, 1}, "!the image f32"},                      \
    {"conv_3d", "f16 3 3 6 12; f32 9 7 5 6", {3, 0, 1, 0}, "!the window has no place"},            \
    {"conv_transpose_2d", "f16 3 2 4 5; f32 9 7 5 2", {2}, "f32 19 14 4 2"},                       \
    {"conv_transpose_2d", "f16 3 2 4 5; f32 9 7 4 2", {2}, "!the image [i, j, k, n]"},             \
    {"conv_transpose_2d", "f16 3 2 4 5; f32 9 7 5 2", {0}, "!are from 1 on"},                      \
    {"conv_transpose_2d", "i32 3 2 4 5; f32 9 7 5 2", {1}, "!CONV_TRANSPOSE_2D: "},                \
    {"col2im_1d", "bf16 12 9", {4, 3, 1}, "bf16 26 3 1 1"},                                        \
    {"col2im_1d", "f32 12 9", {5, 3, 1}, "!columns are [m.w, i]"},                                 \
    {"col2im_1d", "f32 12 9 2", {4, 3, 1}, "!columns are [m.w, i]"},                               \
    {"col2im_1d", "f32 12 9", {4, 3, 14}, "!pads leave an element"},                               \
    {"col2im_1d", "i32 12 9", {4, 3, 1}, "!COL2IM_1D: "},                                          \
    {"win_part", "f32 4 7 6", {3}, "f32 4 3 3 6"},                                                 \
    {"win_part", "f32 4 7 6", {0}, "!from 1 on"},                                                  \
    {"win_part", "f32 4 7 6 2", {3}, "!must be f32 [e, i, j]"},                                    \
    {"win_unpart", "f32 4 3 3 6", {7, 6, 3}, "f32 4 7 6 1"},                                       \
    {"win_unpart", "f32 4 3 3 6", {7, 7, 3}, "!the windows that cover"},                           \
    {"win_unpart", "f32 4 3 3 6", {-7, 7, 3}, "!the windows that cover"},                          \
    {"win_unpart", "f32 4 3 2 6", {7, 6, 3}, "!must be f32 [e, w, w, windows]"},                   \
    {"get_rel_pos", "f16 4 9", {5}, "f16 4 5 5 1"},                                                \
    {"get_rel_pos", "f16 4 9", {4}, "!must be [e, 2 n - 1]"},                                      \
    {"get_rel_pos", "i32 4 9", {5}, "!GET_REL_POS: "},                                             \
    {"add_rel_pos", "f32 9 20 2; f32 3 5 4 2; f32 3 5 4 2", {0}, "f32 9 20 2 1"},                  \
    {"add_rel_pos", "f32 9 20 2; f32 3 5 3 2; f32 3 5 3 2", {0}, "!a is [n.n, u.t, b]"},           \
    {"add_rel_pos", "f32 9 20 2; f32 3 5 4 2; f32 3 4 5 2", {0}, "!a is [n.n, u.t, b]"},           \
    {"add_rel_pos", "f32 9 20 2; f32 3 5 4 2; f16 3 5 4 2", {0}, "!must be f32"},                  \
    {"count_equal", "i32 9 4; i32 9 4", {0}, "i64 1 1 1 1"},                                       \
    {"count_equal", "i32 9 4; i32 4 9", {0}, "!must be i32 of one shape"},                         \
    {"count_equal", "f32 9 4; f32 9 4", {0}, "!must be i32 of one shape"},
/* clang-format on */

#endif
