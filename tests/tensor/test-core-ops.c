/* Op constructors: the result's type and shape for good operands, and the words for bad ones.
 *
 * A case is text: operands "type ne0 ne1 ...", separated by ";", the letter T after one makes it
 * the transposed view of a tensor of that shape; the result in the same form, or "!" and words that
 * the error must hold. Further tests run over the same cases: missing operands, a full arena. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/op_info.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

/* ---- constructors by name; p are a case's numbers ---- */

#define ONE(name)                                                                                  \
    static T *c_##name(C *c, T **t, const int *p) {                                                \
        (void)p;                                                                                   \
        return sheaf_##name(c, t[0]);                                                              \
    }
#define TWO(name)                                                                                  \
    static T *c_##name(C *c, T **t, const int *p) {                                                \
        (void)p;                                                                                   \
        return sheaf_##name(c, t[0], t[1]);                                                        \
    }
#define THREE(name)                                                                                \
    static T *c_##name(C *c, T **t, const int *p) {                                                \
        (void)p;                                                                                   \
        return sheaf_##name(c, t[0], t[1], t[2]);                                                  \
    }
/* any other argument list */
#define FORM(name, ...)                                                                            \
    static T *c_##name(C *c, T **t, const int *p) {                                                \
        (void)p;                                                                                   \
        return sheaf_##name(c, __VA_ARGS__);                                                       \
    }
ONE(silu)
ONE(gelu)
ONE(relu)
ONE(tanh)
ONE(sigmoid)
ONE(swiglu)
ONE(geglu)
ONE(sum_rows)
ONE(argmax)
ONE(cont)
ONE(dup)
ONE(transpose)
ONE(soft_max)
ONE(view_tensor)
TWO(add)
TWO(sub)
TWO(mul)
TWO(div)
TWO(swiglu_split)
TWO(geglu_split)
TWO(mul_mat)
TWO(cpy)
TWO(reshape)
TWO(get_rows)
THREE(mul_mat_id)
THREE(set_rows)
FORM(scale, t[0], 2.0f)
FORM(scale_bias, t[0], 2.0f, 1.0f)
FORM(unary, t[0], (enum sheaf_unary_op)p[0])
FORM(glu, t[0], (enum sheaf_glu_op)p[0], p[1] != 0)
FORM(glu_split, t[0], t[1], (enum sheaf_glu_op)p[0])
FORM(top_k, t[0], p[0])
FORM(concat, t[0], t[1], p[0])
FORM(rms_norm, t[0], (float)p[0])
FORM(cast, t[0], (enum sheaf_type)p[0])
FORM(reshape_1d, t[0], p[0])
FORM(reshape_2d, t[0], p[0], p[1])
FORM(reshape_3d, t[0], p[0], p[1], p[2])
FORM(reshape_4d, t[0], p[0], p[1], p[2], p[3])
FORM(permute, t[0], p[0], p[1], p[2], p[3])
FORM(view_1d, t[0], p[0], (size_t)p[1])
FORM(view_2d, t[0], p[0], p[1], (size_t)p[2], (size_t)p[3])
FORM(view_3d, t[0], p[0], p[1], p[2], (size_t)p[3], (size_t)p[4], 0)
FORM(soft_max_ext, t[0], t[1], 1.0f, (float)p[0])
FORM(rope_ext, t[0], t[1], t[2], p[0], p[1], 0, p[2] ? 0.0f : 1e4f, 1, 0, 1, 0, 0)
ONE(sqr)
ONE(sqrt)
ONE(sin)
ONE(cos)
ONE(ln)
ONE(sum)
ONE(mean)
TWO(repeat)
THREE(add_id)
FORM(clamp, t[0], (float)p[0], (float)p[1])
FORM(leaky_relu, t[0], 0.1f)
FORM(fill, t[0], 1.0f)
FORM(xielu, t[0], 1, 1, 1, 0)
FORM(swiglu_oai, t[0], t[1], 1.7f, (float)p[0])
FORM(swiglu_clamp, t[0], t[1], (float)p[0])
FORM(norm, t[0], (float)p[0])
FORM(l2_norm, t[0], (float)p[0])
FORM(group_norm, t[0], p[0], (float)p[1])
FORM(argsort, t[0], (enum sheaf_sort_order)p[0])
FORM(repeat_4d, t[0], p[0], p[1], p[2], p[3])
ONE(cumsum)
ONE(diag)
TWO(add1)
TWO(solve_tri)
TWO(dsv4_hc_pre)
FORM(set, t[0], t[1], (const int64_t[]){p[0], p[1], p[2], p[3]})
FORM(acc, t[0], t[1], (const int64_t[]){p[0], p[1], p[2], p[3]})
FORM(tri, t[0], (enum sheaf_tri_type)p[0])
FORM(diag_mask_inf, t[0], p[0])
FORM(diag_mask_zero, t[0], p[0])
FORM(lightning_indexer, t[0], t[1], t[2], t[3])
FORM(dsv4_hc_comb, t[0], t[1], t[2], (float)p[0], p[1])
FORM(dsv4_hc_pre_gated, t[0], t[1], 2.0f)
FORM(dsv4_hc_post, t[0], t[1], t[2], t[3])
static const struct sheaf_window *window_of(const int *p) {
    static struct sheaf_window w;
    w = (struct sheaf_window){{p[0], p[0]}, {p[1], p[1]}, {p[2], p[2]}, {p[3], p[3]}};
    return &w;
}
FORM(im2col, t[0], window_of(p), (enum sheaf_type)p[4])
FORM(conv_2d, t[0], t[1], window_of(p))
FORM(conv_2d_dw, t[0], t[1], window_of(p))
FORM(conv_transpose_1d, t[0], t[1], p[0])
FORM(pool_1d, t[0], (enum sheaf_pool)p[0], p[1], p[2], p[3])
FORM(pool_2d, t[0], (enum sheaf_pool)p[4], window_of(p))
static const struct sheaf_window_3d *volume_of(const int *p) {
    static struct sheaf_window_3d w;
    w = (struct sheaf_window_3d){
        {p[1], p[1], p[1]}, {p[2], p[2], p[2]}, {p[3], p[3], p[3]}, {1, 1, 1}};
    return &w;
}
FORM(im2col_3d, t[0], p[0], volume_of(p), (enum sheaf_type)p[4])
FORM(conv_3d, t[0], t[1], p[0], volume_of(p))
FORM(conv_transpose_2d, t[0], t[1], p[0])
FORM(col2im_1d, t[0], p[0], p[1], p[2])
FORM(win_part, t[0], p[0])
FORM(win_unpart, t[0], p[0], p[1], p[2])
FORM(get_rel_pos, t[0], p[0])
THREE(add_rel_pos)
TWO(count_equal)
FORM(upscale, t[0], (const int64_t[]){p[0], p[1], p[2], p[3]}, (enum sheaf_scale_mode)p[4], false)
FORM(pad_reflect_1d, t[0], p[0], p[1])
FORM(roll, t[0], p)
FORM(timestep_embedding, t[0], p[0], p[1])
FORM(pad, t[0], (const int[]){p[0], 0, p[1], 0}, (const int[]){0, p[2], 0, p[3]}, p[4] != 0)
FORM(flash_attn_ext, t[0], t[1], t[2], t[3], 1.0f, (float)p[0], 0)
FORM(rope_multi, t[0], t[1], t[2], p[0], (const int[4]){2, 1, 1, 0}, p[1], 0, 1e4f, 1, 0, 1, 0, 0)
FORM(soft_max_sinks, t[0], t[1], t[2], 1.0f, (float)p[0])
FORM(flash_attn_sinks, t[0], t[1], t[2], t[3], t[4], 1.0f, (float)p[0], 0)

#define NAME(name)                                                                                 \
    { #name, c_##name }
static const struct ctor {
    const char *name;
    T *(*make)(C *c, T **t, const int *p);
} ctors[] = {
    NAME(silu),
    NAME(gelu),
    NAME(relu),
    NAME(tanh),
    NAME(sigmoid),
    NAME(swiglu),
    NAME(geglu),
    NAME(sum_rows),
    NAME(argmax),
    NAME(cont),
    NAME(dup),
    NAME(transpose),
    NAME(soft_max),
    NAME(view_tensor),
    NAME(add),
    NAME(sub),
    NAME(mul),
    NAME(div),
    NAME(swiglu_split),
    NAME(geglu_split),
    NAME(mul_mat),
    NAME(cpy),
    NAME(reshape),
    NAME(get_rows),
    NAME(mul_mat_id),
    NAME(set_rows),
    NAME(scale),
    NAME(scale_bias),
    NAME(unary),
    NAME(glu),
    NAME(glu_split),
    NAME(top_k),
    NAME(concat),
    NAME(rms_norm),
    NAME(cast),
    NAME(reshape_1d),
    NAME(reshape_2d),
    NAME(reshape_3d),
    NAME(reshape_4d),
    NAME(permute),
    NAME(view_1d),
    NAME(view_2d),
    NAME(view_3d),
    NAME(soft_max_ext),
    NAME(rope_ext),
    NAME(flash_attn_ext),
    NAME(rope_multi),
    NAME(soft_max_sinks),
    NAME(flash_attn_sinks),
    NAME(sqr),
    NAME(sqrt),
    NAME(sin),
    NAME(cos),
    NAME(ln),
    NAME(sum),
    NAME(mean),
    NAME(repeat),
    NAME(add_id),
    NAME(clamp),
    NAME(leaky_relu),
    NAME(fill),
    NAME(xielu),
    NAME(swiglu_oai),
    NAME(swiglu_clamp),
    NAME(norm),
    NAME(l2_norm),
    NAME(group_norm),
    NAME(argsort),
    NAME(repeat_4d),
    NAME(pad),
    NAME(cumsum),
    NAME(diag),
    NAME(add1),
    NAME(solve_tri),
    NAME(dsv4_hc_pre),
    NAME(set),
    NAME(acc),
    NAME(tri),
    NAME(diag_mask_inf),
    NAME(diag_mask_zero),
    NAME(lightning_indexer),
    NAME(dsv4_hc_comb),
    NAME(dsv4_hc_pre_gated),
    NAME(dsv4_hc_post),
    NAME(im2col),
    NAME(conv_2d),
    NAME(conv_2d_dw),
    NAME(conv_transpose_1d),
    NAME(pool_1d),
    NAME(pool_2d),
    NAME(upscale),
    NAME(pad_reflect_1d),
    NAME(roll),
    NAME(timestep_embedding),
    NAME(im2col_3d),
    NAME(conv_3d),
    NAME(conv_transpose_2d),
    NAME(col2im_1d),
    NAME(win_part),
    NAME(win_unpart),
    NAME(get_rel_pos),
    NAME(add_rel_pos),
    NAME(count_equal),
};

#include "image_shapes.h"

static const struct test_case {
    const char *op, *operands;
    int p[5];
    const char *result;
} cases[] = {
    /* elementwise */
    {"add", "f32 4 3; f32 4 3", {0}, "f32 4 3 1 1"},
    {"add", "f32 4 3 2; f32 4", {0}, "f32 4 3 2 1"},
    {"add", "f32 4 6; f32 4 3", {0}, "f32 4 6 1 1"},
    {"add", "f16 4; f32 4", {0}, "f16 4 1 1 1"},
    {"add", "f32 0; f32 0", {0}, "f32 0 1 1 1"},
    {"add",
     "f32 4 3; f32 3 4",
     {0},
     "!ADD: '' f32 [4 3 1 1] and '' f32 [3 4 1 1]: the second "
     "operand does not repeat"},
    {"add", "f32 4; f32 4 3", {0}, "!does not repeat"},
    {"add", "i32 4; i32 4", {0}, "!must be f32, f16 or bf16"},
    {"add", "f32 4; f16 4", {0}, "!must be f32 or of the first one's type"},
    {"add", "q8_0 32; f32 32", {0}, "!must be f32, f16 or bf16"},
    {"sub", "f32 4; f32 1", {0}, "f32 4 1 1 1"},
    {"mul", "f32 4 3; f32 1 3", {0}, "f32 4 3 1 1"},
    {"mul", "f32 4 3; f32 0 3", {0}, "!MUL: "},
    {"div", "bf16 4; bf16 4", {0}, "bf16 4 1 1 1"},
    {"div", "f32 4; i32 4", {0}, "!DIV: "},
    {"scale", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"scale", "f16 4", {0}, "!SCALE: '' f16 [4 1 1 1]: the operand must be f32"},
    {"scale_bias", "f32 4", {0}, "f32 4 1 1 1"},
    {"unary", "f32 4", {SHEAF_UNARY_OP_EXP}, "f32 4 1 1 1"},
    {"unary", "f32 4", {SHEAF_UNARY_OP_COUNT}, "!the unary op's number is unknown"},
    {"unary", "f32 4", {-1}, "!the unary op's number is unknown"},
    {"silu", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"gelu", "f32 4", {0}, "f32 4 1 1 1"},
    {"relu", "f32 4", {0}, "f32 4 1 1 1"},
    {"tanh", "f32 4", {0}, "f32 4 1 1 1"},
    {"sigmoid", "i32 4", {0}, "!UNARY: "},
    {"glu", "f32 8 3", {SHEAF_GLU_OP_REGLU, 1}, "f32 4 3 1 1"},
    {"glu", "f32 7 3", {0}, "!dimension 0 must be even"},
    {"glu", "f32 8 3", {SHEAF_GLU_OP_COUNT}, "!the glu op's number is unknown"},
    {"swiglu", "f32 8", {0}, "f32 4 1 1 1"},
    {"swiglu", "i32 8", {0}, "!SWIGLU: "},
    {"swiglu", "f16 8", {0}, "f16 4 1 1 1"},
    {"swiglu_split", "f32 8 3; f16 8 3", {0}, "!both of one type"},
    {"glu", "f32 8 3", {SHEAF_GLU_OP_SWIGLU_OAI}, "!use sheaf_swiglu_oai"},
    {"glu_split", "f32 8; f32 8", {SHEAF_GLU_OP_SWIGLU_CLAMP}, "!use sheaf_swiglu_oai"},
    {"swiglu_oai", "f32 8 3; f32 8 3", {7}, "f32 8 3 1 1"},
    {"swiglu_oai", "f32 8 3; f32 8 3", {-1}, "!the limit must not be negative"},
    {"swiglu_clamp", "f32 8 3; f32 8 3", {0}, "f32 8 3 1 1"},
    {"swiglu_clamp", "f32 8 3; f32 8 3", {-1}, "!the limit must not be negative"},
    {"unary", "bf16 4 3", {SHEAF_UNARY_OP_GELU_ERF}, "bf16 4 3 1 1"},
    {"unary", "f32 4", {SHEAF_UNARY_OP_XIELU}, "!use sheaf_xielu"},
    {"xielu", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"sqr", "f16 4 3", {0}, "f16 4 3 1 1"},
    {"sqrt", "q8_0 32", {0}, "!SQRT: '' q8_0 [32 1 1 1]: the operand must be f32, f16 or bf16"},
    {"sin", "f32 4", {0}, "f32 4 1 1 1"},
    {"cos", "f32 4", {0}, "f32 4 1 1 1"},
    {"ln", "i32 4", {0}, "!LOG: "},
    {"clamp", "bf16 4", {-1, 1}, "bf16 4 1 1 1"},
    {"clamp", "f32 4", {1, -1}, "!min must not be above max"},
    {"leaky_relu", "f32 4", {0}, "f32 4 1 1 1"},
    {"fill", "f16 4 3 2", {0}, "f16 4 3 2 1"},
    {"fill", "i64 4 3 2", {0}, "!must be f32, f16 or bf16"},
    {"geglu", "f32 8", {0}, "f32 4 1 1 1"},
    {"glu_split", "f32 8 3; f32 8 3", {0}, "f32 8 3 1 1"},
    {"swiglu_split", "f32 8 3; f32 8 2", {0}, "!the operands must have the same shape"},
    {"geglu_split", "f32 8; f32 8", {0}, "f32 8 1 1 1"},
    /* rows */
    {"sum_rows", "f32 4 3 2 5", {0}, "f32 1 3 2 5"},
    {"sum_rows", "i32 4", {0}, "!SUM_ROWS: "},
    {"argmax", "f32 4 3", {0}, "i32 3 1 1 1"},
    {"argmax", "f32 4 3 2", {0}, "!f32 [i, j]"},
    {"argmax", "f32 0 3", {0}, "!with i > 0"},
    {"top_k", "f32 9 3", {4}, "i32 4 3 1 1"},
    {"top_k", "f32 9 3", {9}, "i32 9 3 1 1"},
    {"top_k", "f32 9 3", {10}, "!k must be from 1"},
    {"top_k", "f32 9 3", {0}, "!k must be from 1"},
    {"top_k", "f16 9 3", {1}, "!TOP_K: "},
    {"concat", "f32 4 3; f32 5 3", {0}, "f32 9 3 1 1"},
    {"concat", "f32 4 3; f32 4 5", {1}, "f32 4 8 1 1"},
    {"concat", "i32 4; i32 4", {3}, "i32 4 1 1 2"},
    {"concat", "f32 4 3; f32 4 5", {0}, "!other dimensions must be equal"},
    {"concat", "f32 4; f16 4", {0}, "!the same type"},
    {"concat", "f32 4; f32 4", {4}, "!0 to 3"},
    {"concat", "f32 4; f32 4", {-1}, "!0 to 3"},
    {"rms_norm", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"rms_norm", "f32 4 3", {-1}, "!eps must not be negative"},
    {"rms_norm", "f16 4 3", {0}, "!RMS_NORM: "},
    {"norm", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"norm", "f32 4 3", {-1}, "!NORM: '' f32 [4 3 1 1]: eps must not be negative"},
    {"l2_norm", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"l2_norm", "i32 4 3", {0}, "!L2_NORM: "},
    {"group_norm", "f32 4 3 7", {3, 0}, "f32 4 3 7 1"},
    {"group_norm", "f32 4 3 0", {3, 0}, "f32 4 3 0 1"},
    {"group_norm", "f32 4 3 7", {0, 0}, "!a group or more"},
    {"group_norm", "f32 4 3 7", {3, -1}, "!eps must not be negative"},
    {"sum", "f16 4 3", {0}, "f32 1 1 1 1"},
    {"sum", "i32 4 3", {0}, "!SUM: "},
    {"mean", "f32 4 3 2", {0}, "f32 1 3 2 1"},
    {"mean", "f16 4 3 2", {0}, "!MEAN: "},
    {"argsort", "f32 9 3", {1}, "i32 9 3 1 1"},
    {"argsort", "f32 9 3", {2}, "!ascending or descending"},
    {"argsort", "i32 9 3", {0}, "!ARGSORT: "},
    {"repeat", "f32 4 3; i32 8 3 2", {0}, "f32 8 3 2 1"},
    {"repeat", "f32 4 3; f32 6 3", {0}, "!must be multiples"},
    {"repeat_4d", "i64 4 3", {4, 9, 1, 2}, "i64 4 9 1 2"},
    {"repeat_4d", "f32 4 3", {4, -3, 1, 1}, "!must be multiples"},
    {"repeat_4d", "f32 0 3", {4, 3, 1, 1}, "!must be multiples"},
    {"repeat_4d", "q8_0 32", {64, 1, 1, 1}, "!must not be of a block type"},
    {"pad", "f32 4 3 2", {1, 2, 5, 1}, "f32 5 8 4 2"},
    {"pad", "f32 4 3", {-1}, "!must not be negative"},
    {"pad", "f32 0 3", {1, 0, 0, 0, 1}, "!no elements to repeat"},
    {"pad", "f16 4 3", {1}, "!PAD: "},
    {"cumsum", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"cumsum", "f16 4 3", {0}, "!CUMSUM: "},
    {"add1", "f32 4 3; f32 1", {0}, "f32 4 3 1 1"},
    {"add1", "f32 4 3; f32 2", {0}, "!must have one element"},
    {"set", "f32 4 3; f32 2 2", {2, 1}, "f32 4 3 1 1"},
    {"set", "f32 4 3; f32 2 2", {3, 1}, "!does not lie inside the first"},
    {"set", "f32 4 3; f32 2 2", {-1, 1}, "!does not lie inside the first"},
    {"set", "f16 4 3; f16 2 2", {0}, "!SET: "},
    {"acc", "f32 4 3; f32 0 3", {4}, "f32 4 3 1 1"},
    {"acc", "f32 4 3; f32 4 4", {0}, "!ACC: "},
    {"tri", "f32 4 4 3", {3}, "f32 4 4 3 1"},
    {"tri", "f32 4 4 3", {4}, "!the number of the triangle is unknown"},
    {"tri", "f32 4 3", {0}, "!must be square"},
    {"diag", "f32 4 1 3 2", {0}, "f32 4 4 3 2"},
    {"diag", "f32 4 2 3 2", {0}, "!f32 [n, 1, h, s]"},
    {"diag_mask_inf", "f32 4 3", {2}, "f32 4 3 1 1"},
    {"diag_mask_inf", "f32 4 3", {-2}, "!DIAG_MASK_INF: '' f32 [4 3 1 1]: n_past"},
    {"diag_mask_zero", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"diag_mask_zero", "i32 4 3", {0}, "!DIAG_MASK_ZERO: "},
    {"solve_tri", "f32 4 4 2; f32 9 4 2", {0}, "f32 9 4 2 1"},
    {"solve_tri", "f32 4 3 2; f32 9 3 2", {0}, "![n, n, h, s] and [m, n, h, s]"},
    {"solve_tri", "f32 4 4; f16 9 4", {0}, "!must be f32"},
    {"lightning_indexer", "f32 8 4 5 2; q8_0 8 1 9 2", {0}, "!operands"},
    {"lightning_indexer", "f32 32 4 5 2; q8_0 32 1 9 2; f32 4 5 1 2; f16 9 5", {0}, "f32 9 5 1 2"},
    {"lightning_indexer", "f32 8 4 5; f32 8 2 9; f32 4 5; f32 9 5", {0}, "!is [d, 1, t, s]"},
    {"lightning_indexer", "f32 8 4 5; f32 8 1 9; f32 5 4; f32 9 5", {0}, "!are [h, n, 1, s]"},
    {"lightning_indexer", "f32 8 4 5; f32 8 1 9; f32 4 5; f32 9 4", {0}, "!is [t, n, 1, 1|s]"},
    {"lightning_indexer", "f32 8 4 5; f32 8 1 9; f32 4 5; i32 9 5", {0}, "!must be f16 or f32"},
    {"lightning_indexer", "f16 8 4 5; f32 8 1 9; f32 4 5; f32 9 5", {0}, "!must be f32, k of"},
    {"dsv4_hc_comb", "f32 24 7; f32 3; f32 24", {0, 20}, "f32 4 4 7 1"},
    {"dsv4_hc_comb", "f32 3 7; f32 3; f32 3", {0, 1}, "f32 1 1 7 1"},
    {"dsv4_hc_comb", "f32 25 7; f32 3; f32 25", {0, 1}, "!1 to 8 streams"},
    {"dsv4_hc_comb", "f32 99 7; f32 3; f32 99", {0, 1}, "!1 to 8 streams"},
    {"dsv4_hc_comb", "f32 24 7; f32 3; f32 8", {0, 1}, "!base of mixes"},
    {"dsv4_hc_comb", "f32 24 7; f32 2; f32 24", {0, 1}, "!scale has 3 elements"},
    {"dsv4_hc_comb", "f32 24 7; f32 3; f32 24", {0, 0}, "!an iteration or more"},
    {"dsv4_hc_comb", "f16 24 7; f32 3; f32 24", {0, 1}, "!must be f32"},
    {"dsv4_hc_pre", "f32 9 4 7; f32 4 7", {0}, "f32 9 7 1 1"},
    {"dsv4_hc_pre", "f32 9 4 7; f32 7 4", {0}, "!weights [c, n]"},
    {"dsv4_hc_pre_gated", "f32 9 4 7; f32 9 4 7", {0}, "f32 9 7 1 1"},
    {"dsv4_hc_pre_gated", "f32 9 4 7; f32 4 7", {0}, "!and so is the gate"},
    {"dsv4_hc_post", "f32 9 7; f32 9 4 7; f32 4 7; f32 4 4 7", {0}, "f32 9 4 7 1"},
    {"dsv4_hc_post", "f32 9 7; f32 9 4 7; f32 4 7", {0}, "f32 9 4 7 1"},
    {"dsv4_hc_post", "f32 9 7; f32 9 4 7; f32 2 7; f32 2 4 7", {0}, "f32 9 2 7 1"},
    {"dsv4_hc_post", "f32 9 7; f32 9 4 7; f32 3 7", {0}, "!d is c without comb"},
    {"dsv4_hc_post", "f32 8 7; f32 9 4 7; f32 4 7", {0}, "!x is [e, n]"},
    {"dsv4_hc_post", "f32 9 7; f32 9 4 7; f32 7 4", {0}, "!post is [d, n]"},
    {"dsv4_hc_post", "f32 9 7; f32 9 4 7; f32 4 7; f32 4 7", {0}, "!comb is [d, c, n]"},
    {"dsv4_hc_post", "f32 9 7; f32 9 4 7; f16 4 7", {0}, "!must be f32"},
    IMAGE_SHAPES{"add_id", "f32 4 2 5; f32 4 8; i32 2 5", {0}, "f32 4 2 5 1"},
    {"add_id", "f32 4 2 5; f32 5 8; i32 2 5", {0}, "!operands are [m, u, n], [m, x]"},
    {"add_id", "f32 4 2 5; f32 4 8; i32 2 4", {0}, "!ids [u, n]"},
    {"add_id", "f32 4 2 5; f32 4 8; i64 2 5", {0}, "!ids must be i32"},
    {"add_id", "f32 4 2 5; f16 4 8; i32 2 5", {0}, "!must be f32"},
    /* products */
    {"mul_mat", "f32 4 3; f32 4 5", {0}, "f32 3 5 1 1"},
    {"mul_mat", "q4_0 32 3; f32 32 5", {0}, "f32 3 5 1 1"},
    {"mul_mat", "q6_K 256 3; f32 256", {0}, "f32 3 1 1 1"},
    {"mul_mat", "f16 4 3; f16 4 5", {0}, "f32 3 5 1 1"},
    {"mul_mat", "f32 4 3 2; f32 4 5 6 7", {0}, "f32 3 5 6 7"},
    {"mul_mat", "f32 4 0; f32 4 5", {0}, "f32 0 5 1 1"},
    {"mul_mat", "f32 0 3; f32 0 5", {0}, "f32 3 5 1 1"},
    {"mul_mat", "f32 4 3; f32 5 3", {0}, "!dimension 0 (the summed one) must be equal"},
    {"mul_mat", "f32 4 3 2; f32 4 5 3", {0}, "!must be multiples"},
    {"mul_mat", "f32 4 3 1 2; f32 4 5 1 3", {0}, "!must be multiples"},
    {"mul_mat", "f32 4 3 0; f32 4 5 3", {0}, "!must be multiples"},
    {"mul_mat", "i32 4 3; f32 4 5", {0}, "!of a float type"},
    {"mul_mat", "f32 4 3; f16 4 5", {0}, "!the second operand must be f32"},
    {"mul_mat", "f32 4 3; q8_0 4 5", {0}, "!operands"},
    {"mul_mat", "f32 3 4 T; f32 4 5", {0}, "!must not be transposed"},
    {"mul_mat", "f32 4 3; f32 5 4 T", {0}, "f32 3 5 1 1"},
    {"mul_mat_id", "f32 4 3 8; f32 4 1 5; i32 2 5", {0}, "f32 3 2 5 1"},
    {"mul_mat_id", "q8_0 32 3 8; f32 32 2 5; i32 2 5", {0}, "f32 3 2 5 1"},
    {"mul_mat_id", "f32 4 3 8; f32 4 3 5; i32 2 5", {0}, "!dimension 1 of b"},
    {"mul_mat_id", "f32 4 3 8; f32 4 1 5; f32 2 5", {0}, "!ids must be i32"},
    {"mul_mat_id", "f32 4 3 8; f32 4 1 5; i32 2 4", {0}, "!one column a token"},
    {"mul_mat_id", "f32 4 3 8; f32 5 1 5; i32 2 5", {0}, "!dimension 0"},
    {"mul_mat_id", "f32 4 3 8 2; f32 4 1 5; i32 2 5", {0}, "!operands are [k, m, x]"},
    {"mul_mat_id", "i32 4 3 8; f32 4 1 5; i32 2 5", {0}, "!of a float type"},
    /* copies */
    {"cpy", "f32 4 3; f16 12", {0}, "f16 12 1 1 1"},
    {"cpy", "f32 4 3; f16 11", {0}, "!the numbers of elements must be equal"},
    {"cont", "f32 4 3 T", {0}, "f32 3 4 1 1"},
    {"dup", "q4_K 256", {0}, "q4_K 256 1 1 1"},
    {"cast", "f32 64", {SHEAF_TYPE_Q8_0}, "q8_0 64 1 1 1"},
    {"cast", "f32 48", {SHEAF_TYPE_Q8_0}, "!whole blocks of 32"},
    {"cast", "f32 4", {9}, "!type number 9 is not known"},
    /* views */
    {"view_tensor", "f32 4 3", {0}, "f32 4 3 1 1"},
    {"reshape_1d", "f32 4 3", {12}, "f32 12 1 1 1"},
    {"reshape_2d", "f32 4 3", {2, 6}, "f32 2 6 1 1"},
    {"reshape_3d", "f32 4 3", {2, 3, 2}, "f32 2 3 2 1"},
    {"reshape_4d", "f32 4 3", {2, 3, 1, 2}, "f32 2 3 1 2"},
    {"reshape", "f32 4 3; i32 6 2", {0}, "f32 6 2 1 1"},
    {"reshape_2d", "q8_0 64 3", {32, 6}, "q8_0 32 6 1 1"},
    {"reshape_2d", "q8_0 64 3", {48, 4}, "!whole blocks"},
    {"reshape_1d", "f32 4 3", {13}, "!another number of elements"},
    {"reshape_2d", "f32 4 3", {-4, -3}, "!negative or too large"},
    {"reshape_1d", "f32 4 3 T", {12}, "!must be contiguous"},
    {"permute", "f32 2 3 4 5", {2, 0, 3, 1}, "f32 3 5 2 4"},
    {"permute", "f32 2 3", {0, 0, 2, 3}, "!in some order"},
    {"permute", "f32 2 3", {0, 1, 2, 4}, "!in some order"},
    {"permute", "f32 2 3", {-1, 1, 2, 3}, "!in some order"},
    {"permute", "q8_0 32 3 4", {0, 2, 1, 3}, "q8_0 32 4 3 1"},
    {"permute", "q8_0 32 3 4", {1, 0, 2, 3}, "!axis 0 must be 0"},
    {"transpose", "f32 2 3 4", {0}, "f32 3 2 4 1"},
    {"transpose", "q8_0 32 3", {0}, "!axis 0 must be 0"},
    {"view_1d", "f32 4 3", {5, 28}, "f32 5 1 1 1"},
    {"view_1d", "f32 4 3", {6, 28}, "!ends outside its 48 bytes"},
    {"view_1d", "f32 4 3", {0, 48}, "f32 0 1 1 1"},
    {"view_1d", "f32 4 3", {0, 52}, "!ends outside"},
    {"view_1d", "f32 4 3", {1, 2}, "!cuts an element"},
    {"view_1d", "f32 4 3", {-1, 0}, "!negative"},
    {"view_1d", "f32 4 3", {1, -4}, "!ends outside"},
    {"view_1d", "q8_0 64", {32, 34}, "q8_0 32 1 1 1"},
    {"view_1d", "q8_0 64", {16, 0}, "!whole blocks"},
    {"view_2d", "f32 4 3", {2, 3, 16, 8}, "f32 2 3 1 1"},
    {"view_2d", "f32 4 3", {2, 3, 16, 12}, "!ends outside"},
    {"view_2d", "f32 4 3", {2, 2, -16, 0}, "!too large"},
    {"view_3d", "f32 4 3 2", {4, 1, 2, 16, 48}, "f32 4 1 2 1"},
    {"view_3d", "f32 4 3 2", {4, 1, 3, 16, 48}, "!ends outside"},
    {"view_3d", "f32 4 0 2", {4, 0, 2, 16, 48}, "f32 4 0 2 1"},
    /* gather and scatter */
    {"get_rows", "q4_K 256 9; i32 5", {0}, "f32 256 5 1 1"},
    {"get_rows", "f16 4 9 2 3; i32 5 2 3", {0}, "f32 4 5 2 3"},
    {"get_rows", "f32 4 9; i64 5", {0}, "!the ids must be i32"},
    {"get_rows", "i32 4 9; i32 5", {0}, "i32 4 5 1 1"},
    {"get_rows", "i64 4 9; i32 5", {0}, "!of a float type"},
    {"get_rows", "f32 4 9 2; i32 5 3", {0}, "!ids [n, h, s]"},
    {"set_rows", "f16 4 9; f32 4 5; i64 5", {0}, "f16 4 9 1 1"},
    {"set_rows", "q8_0 32 9 2; f32 32 5 2; i32 5", {0}, "q8_0 32 9 2 1"},
    {"set_rows", "q4_0 32 9 6 2; f16 32 5 6 2; i32 5 3", {0}, "q4_0 32 9 6 2"},
    {"set_rows", "f16 4 9; bf16 4 5; i64 5", {0}, "!must be f32"},
    {"set_rows", "f16 4 9 4; f32 4 5 4; i64 5 3", {0}, "!divisor of h"},
    {"set_rows", "f16 4 9; f32 4 5; f32 5", {0}, "!i64 or i32"},
    {"set_rows", "f16 4 9; f32 5 5; i64 5", {0}, "!must agree"},
    {"set_rows", "f16 4 9; f32 4 5; i64 4", {0}, "!ids [n, divisor of h"},
    {"set_rows", "f16 4 9 2; f32 4 5 2; i64 5 3", {0}, "!ids [n, divisor of h"},
    /* attention */
    {"soft_max", "f32 4 3 2", {0}, "f32 4 3 2 1"},
    {"soft_max", "f16 4 3 2", {0}, "!SOFT_MAX: "},
    {"soft_max_ext", "f32 4 3 2; f16 4 8", {0}, "f32 4 3 2 1"},
    {"soft_max_ext", "f32 4 3 2; f32 4 3 2", {8}, "f32 4 3 2 1"},
    {"soft_max_ext", "f32 4 3 2; f32 4 2", {0}, "!the mask of [k, n, h, s]"},
    {"soft_max_ext", "f32 4 3 2; f32 5 3", {0}, "!the mask of [k, n, h, s]"},
    {"soft_max_ext", "f32 4 3 2; f32 4 3 3", {0}, "!the mask of [k, n, h, s]"},
    {"soft_max_ext", "f32 4 3 2; i32 4 3", {0}, "!must be f16 or f32"},
    {"soft_max_ext", "f32 4 3 6 4; f32 4 3 3 2", {8}, "f32 4 3 6 4"},
    {"soft_max_ext", "f32 4 3 6 4; f32 4 3 4 2", {8}, "!divisor of h"},
    {"soft_max_ext", "f32 4 3 6 4; f32 4 3 0 2", {8}, "!divisor of h"},
    {"soft_max_sinks", "f32 4 3 2; f16 4 8; f32 2", {8}, "f32 4 3 2 1"},
    {"soft_max_sinks", "f32 4 3 2; f16 4 8; f32 3", {8}, "!sinks are f32, one for each head"},
    {"soft_max_sinks", "f32 4 3 2; f16 4 8; f16 2", {8}, "!sinks are f32, one for each head"},
    {"soft_max_sinks", "f32 4 3 2; f16 4 8; f32 2 2", {8}, "!sinks are f32, one for each head"},
    {"rope_ext", "f32 8 2 5; i32 5", {8, SHEAF_ROPE_TYPE_NEOX}, "f32 8 2 5 1"},
    {"rope_ext", "f32 8 2 5; i32 5; f32 4", {8}, "f32 8 2 5 1"},
    {"rope_ext", "f32 8 2 5; i32 5; f32 3", {8}, "!frequency factors"},
    {"rope_ext", "f32 8 2 5; i32 4", {8}, "!positions are i32 [n]"},
    {"rope_ext", "f32 8 2 5; f32 5", {8}, "!positions are i32 [n]"},
    {"rope_ext", "f32 8 2 5; i32 5", {10}, "!n_dims must be even"},
    {"rope_ext", "f32 8 2 5; i32 5", {3}, "!n_dims must be even"},
    {"rope_ext", "f32 8 2 5; i32 5", {0}, "!n_dims must be even"},
    {"rope_ext", "f32 8 2 5; i32 5", {8, 1}, "!NORMAL or NEOX"},
    {"rope_ext", "f32 8 2 5; i32 5", {8, 0, 1}, "!freq_base must be positive"},
    {"rope_ext", "f16 8 2 5; i32 5", {8}, "f16 8 2 5 1"},
    {"rope_ext", "bf16 8 2 5; i32 5", {8}, "!the operand must be f32 or f16"},
    {"rope_multi", "f32 8 2 5; i32 20", {8, SHEAF_ROPE_TYPE_MROPE}, "f32 8 2 5 1"},
    {"rope_multi", "f32 8 2 5; i32 20; f32 4", {8, SHEAF_ROPE_TYPE_IMROPE}, "f32 8 2 5 1"},
    {"rope_multi", "f32 8 2 5; i32 5", {8, SHEAF_ROPE_TYPE_MROPE}, "!positions are i32 [4 n]"},
    {"flash_attn_ext", "f32 8 3 4; f16 8 9 2; f16 6 9 2", {0}, "f32 6 4 3 1"},
    {"flash_attn_ext", "f32 32 3 4; q8_0 32 9 2; q8_0 32 9 2; f16 9 8", {8}, "f32 32 4 3 1"},
    {"flash_attn_ext", "f32 8 3 4; f16 8 0 2; f16 6 0 2", {0}, "f32 6 4 3 1"},
    {"flash_attn_ext", "f32 8 3 0; f16 8 9 0; f16 6 9 0", {0}, "f32 6 0 3 1"},
    {"flash_attn_ext", "f32 8 3 5; f16 8 9 2; f16 6 9 2", {0}, "!multiple of the K/V heads"},
    {"flash_attn_ext", "f32 8 3 5; f16 8 9 0; f16 6 9 0", {0}, "!multiple of the K/V heads"},
    {"flash_attn_ext", "f32 8 3 4; f16 7 9 2; f16 6 9 2", {0}, "!the same head size"},
    {"flash_attn_ext", "f32 8 3 4; f16 8 9 2; f16 6 8 2", {0}, "!must agree in t, g, s"},
    {"flash_attn_ext", "f32 8 3 4 2; f16 8 9 2; f16 6 9 2", {0}, "!dimension 3"},
    {"flash_attn_ext", "f32 8 3 4; f16 8 9 2; f16 6 9 2; f16 9 2", {0}, "!the mask is [t, >=n"},
    {"flash_attn_ext", "f32 8 3 4; f16 8 9 2; f16 6 9 2; f16 8 3", {0}, "!the mask is [t, >=n"},
    {"flash_attn_ext", "f32 8 3 4; f16 8 9 2; f16 6 9 2; i32 9 3", {0}, "!must be f16 or f32"},
    {"flash_attn_ext", "f32 8 3 4; f16 8 9 2; f16 6 9 2", {8}, "!need a mask"},
    {"flash_attn_ext", "f16 8 3 4; f16 8 9 2; f16 6 9 2", {0}, "!q must be f32"},
    {"flash_attn_ext",
     "f32 32 3 6 4; q4_0 32 9 3 4; iq4_nl 64 9 3 4; f16 9 3 2 2",
     {8},
     "f32 64 6 3 4"},
    {"flash_attn_ext", "f32 8 3 6; f16 8 9 2; f16 6 9 2; f16 9 3 4", {0}, "!divisor of the heads"},
    {"flash_attn_sinks", "f32 8 3 4; f16 8 9 2; f16 6 9 2; f16 9 3; f32 4", {0}, "f32 6 4 3 1"},
    {"flash_attn_sinks",
     "f32 8 3 4; f16 8 9 2; f16 6 9 2; f16 9 3; f32 2",
     {0},
     "!sinks are f32, one for each head"},
    {"flash_attn_sinks",
     "f32 8 3 4; f16 8 9 2; f16 6 9 2; f16 9 3; i32 4",
     {0},
     "!sinks are f32, one for each head"},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* ---- running a case ---- */

/* Makes the operands; returns how many there are. */
static int make_operands(C *ctx, const char *text, T *t[5]) {
    int n = 0;
    t[0] = t[1] = t[2] = t[3] = t[4] = NULL;
    while (*text) {
        char type[16];
        int used = 0, dims = 0;
        int64_t ne[4] = {1, 1, 1, 1};
        text += strspn(text, " ;");
        cr_assert_eq(sscanf(text, "%15[^ ]%n", type, &used), 1);
        text += used;
        for (long long v; dims < 4 && sscanf(text, " %lld%n", &v, &used) == 1; text += used)
            ne[dims++] = v;
        t[n] = sheaf_new_tensor(ctx, sheaf_type_from_name(type), 4, ne);
        text += strspn(text, " ");
        if (*text == 'T') {
            t[n] = sheaf_transpose(ctx, t[n]);
            text++;
        }
        if (!t[n++]) break;
    }
    return n;
}

static char *describe(const T *t, char buf[static 128]) {
    snprintf(buf, 128, "%s %lld %lld %lld %lld", sheaf_type_name(t->type), (long long)t->ne[0],
             (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3]);
    return buf;
}

static const struct ctor *find(const char *name) {
    for (size_t i = 0; i < sizeof ctors / sizeof *ctors; i++) {
        if (!strcmp(ctors[i].name, name)) return &ctors[i];
    }
    cr_assert_fail("no constructor %s in the table", name);
    return NULL;
}

static C *arena(size_t size, bool no_alloc) {
    C *ctx = sheaf_init((struct sheaf_init_params){.mem_size = size, .no_alloc = no_alloc});
    cr_assert_not_null(ctx);
    return ctx;
}

Test(core_ops, types_shapes_and_errors) {
    for (int i = 0; i < N_CASES; i++) {
        const struct test_case *k = &cases[i];
        C *ctx = arena(1 << 16, true);
        T *t[5];
        char got[128];
        const int n = make_operands(ctx, k->operands, t);
        sheaf_clear_error();
        if (!t[n - 1]) { /* a case about an operand that cannot exist */
            cr_expect_str_eq(k->result, "!operands", "case %d: %s", i, k->operands);
            sheaf_free(ctx);
            continue;
        }
        T *r = find(k->op)->make(ctx, t, k->p);
        if (k->result[0] == '!') {
            cr_expect_null(r, "case %d: %s(%s) is accepted", i, k->op, k->operands);
            cr_expect(strstr(sheaf_last_error(), k->result + 1), "case %d: %s(%s) says: %s", i,
                      k->op, k->operands, sheaf_last_error());
        } else if (!r) {
            cr_expect_fail("case %d: %s(%s): %s", i, k->op, k->operands, sheaf_last_error());
        } else {
            cr_expect_str_eq(describe(r, got), k->result, "case %d: %s(%s) is %s", i, k->op,
                             k->operands, got);
            cr_expect_str_empty(sheaf_last_error());
            cr_expect(r->view_src ? !r->view_src->view_src : sheaf_is_contiguous(r), "case %d", i);
            bool reads_all = true; /* every operand is a source, unless only its shape is asked */
            for (int j = 0; j < n; j++) {
                bool found = r->view_src == t[j];
                for (int s = 0; s < SHEAF_MAX_SRC; s++) found = found || r->src[s] == t[j];
                reads_all = reads_all && found;
            }
            const bool of_shapes =
                !strcmp(k->op, "reshape") || !strcmp(k->op, "repeat") || !strcmp(k->op, "fill");
            cr_expect(reads_all || of_shapes, "case %d: an operand is lost", i);
        }
        sheaf_free(ctx);
    }
}

/* Every constructor has a case that is accepted and, where operands can be wrong, one that is not.
 */
Test(core_ops, every_constructor_is_tried) {
    for (size_t i = 0; i < sizeof ctors / sizeof *ctors; i++) {
        bool tried = false;
        for (int j = 0; j < N_CASES; j++) tried = tried || !strcmp(cases[j].op, ctors[i].name);
        cr_expect(tried, "%s", ctors[i].name);
    }
}

/* The optional operands: masks, sinks, rope's factors. */
static bool optional(const char *op, int operand) {
    return (!strcmp(op, "soft_max_ext") && operand == 1) ||
           (!strncmp(op, "rope", 4) && operand == 2) ||
           (!strcmp(op, "dsv4_hc_post") && operand == 3) ||
           (!strcmp(op, "flash_attn_ext") && operand == 3) ||
           (!strcmp(op, "soft_max_sinks") && operand >= 1) ||
           (!strcmp(op, "flash_attn_sinks") && operand >= 3);
}

Test(core_ops, a_missing_operand_keeps_the_first_error) {
    for (int i = 0; i < N_CASES; i++) {
        const struct test_case *k = &cases[i];
        C *ctx = arena(1 << 16, true);
        T *t[5];
        const int n = make_operands(ctx, k->operands, t);
        for (int j = 0; j < n && t[n - 1] && k->result[0] != '!'; j++) {
            if (optional(k->op, j)) continue;
            T *with_hole[5] = {t[0], t[1], t[2], t[3], t[4]};
            with_hole[j] = NULL;
            sheaf_set_error(SHEAF_STATUS_FAILED, "the first error");
            cr_expect_null(find(k->op)->make(ctx, with_hole, k->p), "case %d: %s", i, k->op);
            cr_expect_str_eq(sheaf_last_error(), "the first error", "case %d: %s", i, k->op);
            sheaf_clear_error();
            cr_expect_null(find(k->op)->make(ctx, with_hole, k->p), "case %d: %s", i, k->op);
            cr_expect_str_not_empty(sheaf_last_error(), "case %d: %s", i, k->op);
        }
        sheaf_free(ctx);
    }
}

Test(core_ops, a_full_arena_is_an_error) {
    for (int i = 0; i < N_CASES; i++) {
        const struct test_case *k = &cases[i];
        if (k->result[0] == '!') continue;
        T *t[5];
        C *probe = arena(1 << 16, true);
        make_operands(probe, k->operands, t);
        const size_t used = sheaf_used_mem(probe);
        sheaf_free(probe);
        for (size_t room = 0; room < sheaf_tensor_overhead(); room += 16) {
            C *ctx = arena(used + room, true);
            make_operands(ctx, k->operands, t);
            sheaf_clear_error();
            cr_expect_null(find(k->op)->make(ctx, t, k->p), "case %d: %s fits %zu bytes", i, k->op,
                           room);
            cr_expect(strstr(sheaf_last_error(), "arena"), "case %d: %s says: %s", i, k->op,
                      sheaf_last_error());
            sheaf_free(ctx);
        }
        C *ctx = arena(used + sheaf_tensor_overhead(), true);
        make_operands(ctx, k->operands, t);
        cr_expect_not_null(find(k->op)->make(ctx, t, k->p), "case %d: %s", i, k->op);
        sheaf_free(ctx);
    }
}

Test(core_ops, arange_counts_its_numbers) {
    static const struct {
        float start, stop, step;
        int64_t n; /* -1: refused */
    } cases_[] = {{0, 5, 1, 5},  {0, 5, 2, 3},  {5, 0, -2, 3},     {1, 1, 1, 0},   {0, 5, -1, -1},
                  {0, 5, 0, -1}, {0, 0, 0, -1}, {0, 1e30f, 1, -1}, {NAN, 1, 1, -1}};
    C *ctx = arena(1 << 16, true);
    for (size_t i = 0; i < sizeof cases_ / sizeof *cases_; i++) {
        sheaf_clear_error();
        const T *t = sheaf_arange(ctx, cases_[i].start, cases_[i].stop, cases_[i].step);
        cr_expect_eq(t ? t->ne[0] : -1, cases_[i].n, "case %zu", i);
        cr_expect(t || strstr(sheaf_last_error(), "ARANGE: "), "%s", sheaf_last_error());
    }
    sheaf_free(ctx);
}

/* The first k of the sorted rows are a view of these. */
Test(core_ops, argsort_top_k_is_a_view) {
    C *ctx = arena(1 << 16, true);
    T *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 9, 3), *v = sheaf_argsort_top_k(ctx, a, 4);
    cr_assert(v && v->op == SHEAF_OP_VIEW && v->src[0]->op == SHEAF_OP_ARGSORT);
    cr_expect_eq(v->src[0]->op_params[0], (int32_t)SHEAF_SORT_ORDER_DESC);
    cr_expect(v->ne[0] == 4 && v->ne[1] == 3 && v->nb[1] == 36 && v->type == SHEAF_TYPE_I32);
    cr_expect_null(sheaf_argsort_top_k(ctx, a, 10));
    cr_expect(strstr(sheaf_last_error(), "k must be from 1"), "%s", sheaf_last_error());
    cr_expect_null(sheaf_argsort_top_k(ctx, a, 0));
    cr_expect_null(sheaf_argsort_top_k(ctx, NULL, 1));
    sheaf_free(ctx);
}

/* Strides and places of views: bytes, and the chain of owners is always one link long. */
Test(core_ops, views_point_into_their_owner) {
    C *ctx = arena(1 << 16, false);
    T *a = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, 4, 3, 2);
    float *data = a->data;
    for (int i = 0; i < 24; i++) data[i] = (float)i;

    T *v = sheaf_view_2d(ctx, a, 2, 3, a->nb[1], 2 * sizeof(float)); /* columns 2 and 3 */
    cr_assert_eq(v->view_src, a);
    cr_assert_eq(v->view_offs, 8);
    cr_assert_eq((float *)v->data - data, 2);
    T *w = sheaf_view_1d(ctx, v, 2, v->nb[1]); /* row 1 of the columns */
    cr_assert_eq(w->view_src, a, "a view of a view belongs to the owner");
    cr_assert_eq(w->src[0], v);
    cr_assert_eq(w->view_offs, 24);
    cr_assert_eq(*(float *)w->data, 6.0f);
    cr_assert_not(sheaf_is_contiguous(v));
    cr_assert(sheaf_is_contiguous_rows(v));

    T *p = sheaf_permute(ctx, a, 2, 0, 1, 3); /* [4 3 2] -> [3 2 4] */
    cr_assert_eq(p->nb[0], a->nb[1]);
    cr_assert_eq(p->nb[1], a->nb[2]);
    cr_assert_eq(p->nb[2], a->nb[0]);
    cr_assert_eq(*(float *)((char *)p->data + 2 * p->nb[0] + p->nb[1] + 3 * p->nb[2]), 23.0f);
    cr_assert(sheaf_is_permuted(p));

    T *tr = sheaf_transpose(ctx, a);
    cr_assert(sheaf_is_transposed(tr));
    cr_assert_not(sheaf_is_contiguous(tr));
    T *back = sheaf_transpose(ctx, tr);
    cr_assert(sheaf_are_same_layout(back, a));

    T *q = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_Q8_0, 64, 3);
    T *row = sheaf_view_1d(ctx, q, 32, q->nb[1] + 34); /* the second block of row 1 */
    cr_assert_eq((char *)row->data - (char *)q->data, 68 + 34);
    cr_assert_eq(sheaf_nbytes(row), 34);
    sheaf_free(ctx);
}

/* As of new tensors: rows and elements are countable. */
Test(core_ops, views_have_no_more_elements_than_can_be_counted) {
    C *ctx = arena(1 << 14, true);
    const int64_t many = (int64_t)1 << 22, most = (int64_t)1 << 62;
    T *a = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 4 * many);
    cr_expect_null(sheaf_view_4d(ctx, a, 1, many, many, many, 1, 1, 1, 0)); /* overlapping */
    cr_expect(strstr(sheaf_last_error(), "too large"), "%s", sheaf_last_error());
    cr_expect_not_null(sheaf_view_4d(ctx, a, 1, many, many, 1, 1, 1, 1, 0));
    T *empty = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 0, 5);
    cr_expect_null(sheaf_reshape_4d(ctx, empty, 0, most, most, 4));
    cr_expect_not_null(sheaf_reshape_4d(ctx, empty, 0, most, 1, 1));
    sheaf_free(ctx);
}

/* Parameters land where sheaf/ops.h says. */
Test(core_ops, parameters_lie_as_documented) {
    C *ctx = arena(1 << 16, true);
    T *x = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, 8, 2, 5);
    T *pos = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, 5);
    T *r = sheaf_rope_ext(ctx, x, pos, NULL, 8, SHEAF_ROPE_TYPE_NEOX, 4096, 1e4f, 2, 3, 4, 5, 6);
    const float want[] = {1e4f, 2, 3, 4, 5, 6};
    cr_assert_eq(r->op_params[0], 8);
    cr_assert_eq(r->op_params[1], SHEAF_ROPE_TYPE_NEOX);
    cr_assert_eq(r->op_params[2], 4096);
    cr_assert_arr_eq(&r->op_params[3], want, sizeof want);
    T *g = sheaf_glu(ctx, x, SHEAF_GLU_OP_GEGLU, true);
    cr_assert_eq(sheaf_get_glu_op(g), SHEAF_GLU_OP_GEGLU);
    cr_assert_eq(g->op_params[1], 1);
    cr_assert_str_eq(sheaf_op_desc(g), "GEGLU");
    T *s = sheaf_scale_bias(ctx, x, 0.5f, -1);
    cr_assert_arr_eq(s->op_params, ((float[]){0.5f, -1}), 8);
    T *e = sheaf_unary(ctx, x, SHEAF_UNARY_OP_NEG);
    cr_assert_str_eq(sheaf_op_desc(e), "NEG");
    T *k = sheaf_top_k(ctx, x, 3);
    cr_assert_eq(k->op_params[0], 3);
    sheaf_free(ctx);
}

/* The words of the table in sheaf/ops.h, "   NAME   0 f scale, ..." with its further lines, and what
 * tensor/op_info.h says are the same. Notes in brackets are left out. */
static void documented_params(const char *header, const char *name, char *out, size_t size) {
    char start[64];
    snprintf(start, sizeof start, "\n *   %s  ", name);
    const char *p = strstr(header, start);
    size_t n = 0;
    out[0] = 0;
    if (!p) return;
    for (p += strlen(start); n + 1 < size;) {
        const size_t line = strcspn(p, "\n("), before = n;
        for (size_t i = strspn(p, " "); i < line && n + 2 < size; i++) out[n++] = p[i];
        while (n > before && out[n - 1] == ' ') n--;
        p += strcspn(p, "\n");
        if (strncmp(p, "\n *                 ", 20)) break; /* a line that goes on is indented */
        p += 3;
        out[n++] = ' ';
    }
    out[n] = 0;
}

Test(core_ops, parameters_are_those_of_the_table) {
    static char header[1 << 16];
    FILE *f = fopen(SHEAF_SOURCE_DIR "/include/sheaf/ops.h", "r");
    cr_assert_not_null(f);
    header[fread(header, 1, sizeof header - 1, f)] = 0;
    fclose(f);
    *strstr(header, "Words 14 and 15") = 0;
    int n = 0;
    for (int op = 0; op < SHEAF_OP_COUNT; op++) {
        const struct sheaf__op_info *info = sheaf__op_info((enum sheaf_op)op);
        char text[512];
        documented_params(header, info->name, text, sizeof text);
        cr_expect_str_eq(text, info->params ? info->params : "", "%s", info->name);
        n += info->params != NULL;
    }
    cr_expect_gt(n, 8);
}

/* What the fields of a row promise to the passes that ask. */
Test(core_ops, rows_of_the_table_agree_with_themselves) {
    for (int op = 0; op < SHEAF_OP_COUNT; op++) {
        const struct sheaf__op_info *info = sheaf__op_info((enum sheaf_op)op);
        int n = 0;
        while (n < SHEAF__OP_MAX_SRC && info->operands[n]) n++;
        cr_expect_leq(info->required, n, "%s", info->name);
        cr_expect_leq(info->in_place, n, "%s", info->name);
        cr_expect_leq(info->writes_into, n, "%s", info->name);
        cr_expect(!info->writes_into || !info->in_place, "%s", info->name);
        cr_expect_eq(info->cost == SHEAF_OP_COST_FREE, op == SHEAF_OP_NONE || info->is_view, "%s",
                     info->name);
        cr_expect_eq(info->check == NULL, info->cost == SHEAF_OP_COST_FREE, "%s", info->name);
        cr_expect_str_eq(sheaf_op_name((enum sheaf_op)op), info->name);
    }
    cr_expect_str_eq(sheaf_op_name(SHEAF_OP_COUNT), "?");
    cr_expect_not(sheaf_op_is_view((enum sheaf_op) - 1));
}
