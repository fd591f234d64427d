/* T0: the rule table. Every op has a rule or says why not, every expression parses and binds, and
 * the generated rows are those of tests/golden/split-rows.txt. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden_text.h"
#include "op_example.h"
#include "sheaf/sheaf.h"
#include "split/match.h"
#include "split/rule.h"

typedef struct sheaf_tensor T;

static struct sheaf_context *ctx;
static T *f32(int64_t a, int64_t b, int64_t c, int64_t d) {
    return sheaf_new_tensor(ctx, SHEAF_TYPE_F32, 4, (int64_t[]){a, b, c, d});
}
static T *i32(int64_t a, int64_t b) {
    return sheaf_new_tensor(ctx, SHEAF_TYPE_I32, 2, (int64_t[]){a, b});
}

struct example {
    const char *what;
    T *t;
};

/* A node for every op and every alternative of its rule. */
static int examples(struct example *e) {
    int n = 0;
    T *a = f32(6, 4, 2, 3), *row = f32(6, 1, 1, 1);
#define EXAMPLE(text, node) e[n++] = (struct example){text, node}
    EXAMPLE("DUP", sheaf_dup(ctx, a));
    EXAMPLE("ADD", sheaf_add(ctx, a, row));
    EXAMPLE("SUB", sheaf_sub(ctx, a, a));
    EXAMPLE("MUL", sheaf_mul(ctx, a, row));
    EXAMPLE("DIV", sheaf_div(ctx, a, row));
    EXAMPLE("SCALE", sheaf_scale(ctx, a, 2));
    EXAMPLE("SCALE with a bias", sheaf_scale_bias(ctx, a, 2, 1));
    EXAMPLE("SUM_ROWS", sheaf_sum_rows(ctx, a));
    EXAMPLE("ARGMAX", sheaf_argmax(ctx, f32(6, 4, 1, 1)));
    EXAMPLE("TOP_K", sheaf_top_k(ctx, a, 2));
    EXAMPLE("CONCAT along 0", sheaf_concat(ctx, a, a, 0));
    EXAMPLE("CONCAT along 2", sheaf_concat(ctx, a, a, 2));
    EXAMPLE("RMS_NORM", sheaf_rms_norm(ctx, a, 1e-5f));
    EXAMPLE("RMS_NORM without epsilon", sheaf_rms_norm(ctx, a, 0));
    EXAMPLE("MUL_MAT", sheaf_mul_mat(ctx, f32(6, 4, 2, 1), f32(6, 5, 4, 3)));
    EXAMPLE("MUL_MAT_ID", sheaf_mul_mat_id(ctx, f32(6, 4, 8, 1), f32(6, 2, 5, 1), i32(2, 5)));
    EXAMPLE("MUL_MAT_ID, one row for all experts",
            sheaf_mul_mat_id(ctx, f32(6, 4, 8, 1), f32(6, 1, 5, 1), i32(2, 5)));
    EXAMPLE("CPY", sheaf_cpy(ctx, a, f32(24, 6, 1, 1)));
    EXAMPLE("CONT", sheaf_cont(ctx, a));
    EXAMPLE("RESHAPE", sheaf_reshape_2d(ctx, a, 24, 6));
    EXAMPLE("VIEW", sheaf_view_1d(ctx, a, 6, 0));
    EXAMPLE("PERMUTE", sheaf_permute(ctx, a, 0, 2, 1, 3));
    EXAMPLE("TRANSPOSE", sheaf_transpose(ctx, a));
    EXAMPLE("GET_ROWS", sheaf_get_rows(ctx, f32(6, 8, 1, 1), i32(5, 1)));
    EXAMPLE("SET_ROWS", sheaf_set_rows(ctx, f32(6, 8, 1, 1), f32(6, 5, 1, 1), i32(5, 1)));
    EXAMPLE("SOFT_MAX", sheaf_soft_max(ctx, a));
    EXAMPLE("SOFT_MAX with a mask", sheaf_soft_max_ext(ctx, a, f32(6, 4, 1, 1), 1, 0));
    EXAMPLE("SOFT_MAX with a padded mask", sheaf_soft_max_ext(ctx, a, f32(6, 9, 1, 1), 1, 0));
    EXAMPLE("SOFT_MAX with ALiBi", sheaf_soft_max_ext(ctx, a, f32(6, 4, 1, 1), 1, 8));
    EXAMPLE("SOFT_MAX with ALiBi and a padded mask",
            sheaf_soft_max_ext(ctx, a, f32(6, 9, 1, 1), 1, 8));
    EXAMPLE("SOFT_MAX with sinks", sheaf_soft_max_sinks(ctx, a, NULL, f32(2, 1, 1, 1), 1, 0));
    EXAMPLE("SOFT_MAX with a mask and sinks",
            sheaf_soft_max_sinks(ctx, a, f32(6, 4, 1, 3), f32(2, 1, 1, 1), 1, 0));
    T *x = f32(6, 8, 5, 1);
    EXAMPLE("ROPE", sheaf_rope_ext(ctx, x, i32(5, 1), NULL, 6, 0, 0, 1e4f, 1, 0, 1, 32, 1));
    EXAMPLE("ROPE with frequency factors",
            sheaf_rope_ext(ctx, x, i32(5, 1), f32(3, 1, 1, 1), 6, 0, 0, 1e4f, 1, 0, 1, 32, 1));
    EXAMPLE("ROPE_BACK", sheaf_rope_back(sheaf_rope_ext(ctx, x, i32(5, 1), NULL, 6, 0, 0, 1e4f, 1,
                                                        0, 1, 32, 1)));
    const int sections[] = {1, 1, 1, 0};
    EXAMPLE("ROPE with sections",
            sheaf_rope_multi(ctx, x, i32(20, 1), NULL, 6, sections, 8, 0, 1e4f, 1, 0, 1, 32, 1));
    T *q = f32(6, 5, 8, 1), *k = f32(6, 9, 2, 1);
    EXAMPLE("FLASH_ATTN_EXT", sheaf_flash_attn_ext(ctx, q, k, k, NULL, 1, 0, 0));
    EXAMPLE("FLASH_ATTN_EXT with a mask",
            sheaf_flash_attn_ext(ctx, q, k, k, f32(9, 5, 1, 1), 1, 0, 0));
    EXAMPLE("FLASH_ATTN_EXT with a mask for each head",
            sheaf_flash_attn_ext(ctx, q, k, k, f32(9, 5, 8, 1), 1, 0, 0));
    EXAMPLE("FLASH_ATTN_EXT with a padded mask",
            sheaf_flash_attn_ext(ctx, q, k, k, f32(9, 32, 1, 1), 1, 0, 0));
    EXAMPLE("FLASH_ATTN_EXT with ALiBi",
            sheaf_flash_attn_ext(ctx, q, k, k, f32(9, 5, 1, 1), 1, 8, 0));
    EXAMPLE("FLASH_ATTN_EXT with ALiBi and a padded mask",
            sheaf_flash_attn_ext(ctx, q, k, k, f32(9, 32, 1, 1), 1, 8, 0));
    EXAMPLE("FLASH_ATTN_EXT with sinks",
            sheaf_flash_attn_sinks(ctx, q, k, k, NULL, f32(8, 1, 1, 1), 1, 0, 0));
    EXAMPLE("FLASH_ATTN_EXT with ALiBi and sinks",
            sheaf_flash_attn_sinks(ctx, q, k, k, f32(9, 5, 1, 1), f32(8, 1, 1, 1), 1, 8, 0));
    T *qs = f32(6, 5, 8, 4), *ks = f32(6, 9, 2, 4);
    EXAMPLE("FLASH_ATTN_EXT, sequences take turns with masks",
            sheaf_flash_attn_ext(ctx, qs, ks, ks, f32(9, 5, 1, 2), 1, 0, 0));
    EXAMPLE("FLASH_ATTN_EXT, heads take turns with masks",
            sheaf_flash_attn_ext(ctx, q, k, k, f32(9, 5, 2, 1), 1, 0, 0));
    EXAMPLE("FLASH_ATTN_EXT, heads take turns with padded masks",
            sheaf_flash_attn_ext(ctx, q, k, k, f32(9, 6, 2, 1), 1, 0, 0));
    EXAMPLE("UNARY, 0 of 0", sheaf_silu(ctx, a));
    EXAMPLE("UNARY, other", sheaf_unary(ctx, a, SHEAF_UNARY_OP_EXP));
    EXAMPLE("UNARY NEG", sheaf_unary(ctx, a, SHEAF_UNARY_OP_NEG));
    EXAMPLE("GLU fused", sheaf_swiglu(ctx, a));
    EXAMPLE("GLU of two", sheaf_swiglu_split(ctx, a, a));
    EXAMPLE("GLU SWIGLU_OAI", sheaf_swiglu_oai(ctx, a, a, 1.7f, 7));
    EXAMPLE("GLU SWIGLU_CLAMP", sheaf_swiglu_clamp(ctx, a, a, 7));
    EXAMPLE("SQRT", sheaf_sqrt(ctx, a));
    EXAMPLE("COS", sheaf_cos(ctx, a));
    EXAMPLE("CLAMP with 0", sheaf_clamp(ctx, a, 0, INFINITY));
    EXAMPLE("CLAMP without 0", sheaf_clamp(ctx, a, 1, 2));
    EXAMPLE("LEAKY_RELU", sheaf_leaky_relu(ctx, a, 0.1f));
    EXAMPLE("FILL", sheaf_fill(ctx, a, 1));
    EXAMPLE("NORM", sheaf_norm(ctx, a, 1e-5f));
    EXAMPLE("NORM without epsilon", sheaf_norm(ctx, a, 0));
    EXAMPLE("L2_NORM", sheaf_l2_norm(ctx, a, 1e-5f));
    EXAMPLE("GROUP_NORM", sheaf_group_norm(ctx, f32(6, 4, 6, 3), 3, 1e-5f));
    EXAMPLE("GROUP_NORM of uneven groups", sheaf_group_norm(ctx, f32(6, 4, 5, 3), 3, 1e-5f));
    EXAMPLE("SUM", sheaf_sum(ctx, a));
    EXAMPLE("MEAN", sheaf_mean(ctx, a));
    EXAMPLE("ARGSORT", sheaf_argsort(ctx, a, SHEAF_SORT_ORDER_DESC));
    EXAMPLE("ADD_ID", sheaf_add_id(ctx, f32(6, 2, 5, 1), f32(6, 8, 1, 1), i32(2, 5)));
    EXAMPLE("REPEAT", sheaf_repeat_4d(ctx, a, 12, 4, 2, 6));
    EXAMPLE("SET", sheaf_set(ctx, a, f32(3, 4, 2, 3), (const int64_t[]){2, 0, 0, 0}));
    EXAMPLE("ACC", sheaf_acc(ctx, a, f32(6, 2, 2, 3), (const int64_t[]){0, 1, 0, 0}));
    EXAMPLE("CUMSUM", sheaf_cumsum(ctx, a));
    EXAMPLE("TRI", sheaf_tri(ctx, f32(6, 6, 2, 3), SHEAF_TRI_TYPE_LOWER));
    EXAMPLE("DIAG", sheaf_diag(ctx, f32(6, 1, 2, 3)));
    EXAMPLE("DIAG_MASK_INF", sheaf_diag_mask_inf(ctx, a, 0));
    EXAMPLE("DIAG_MASK_ZERO", sheaf_diag_mask_zero(ctx, a, 0));
    EXAMPLE("SOLVE_TRI", sheaf_solve_tri(ctx, f32(4, 4, 2, 3), a));
    EXAMPLE("ARANGE", sheaf_arange(ctx, 0, 5, 1));
    EXAMPLE("LIGHTNING_INDEXER", sheaf_lightning_indexer(ctx, f32(6, 4, 2, 3), f32(6, 1, 9, 3),
                                                         f32(4, 2, 1, 3), f32(9, 2, 1, 1)));
    EXAMPLE("DSV4_HC_COMB",
            sheaf_dsv4_hc_comb(ctx, f32(24, 5, 1, 1), f32(3, 1, 1, 1), f32(24, 1, 1, 1), 0, 3));
    T *stream = f32(6, 4, 5, 1), *post = f32(4, 5, 1, 1), *block = f32(6, 5, 1, 1);
    EXAMPLE("DSV4_HC_PRE", sheaf_dsv4_hc_pre(ctx, stream, post));
    EXAMPLE("DSV4_HC_PRE with a gate", sheaf_dsv4_hc_pre_gated(ctx, stream, stream, 1));
    EXAMPLE("DSV4_HC_POST", sheaf_dsv4_hc_post(ctx, block, stream, post, f32(4, 4, 5, 1)));
    EXAMPLE("DSV4_HC_POST without a mixture", sheaf_dsv4_hc_post(ctx, block, stream, post, NULL));
    const struct sheaf_window around = {{2, 2}, {1, 1}, {1, 1}, {1, 1}};
    T *image = f32(4, 3, 6, 2);
    EXAMPLE("IM2COL", sheaf_im2col(ctx, image, &around, SHEAF_TYPE_F32));
    EXAMPLE("CONV_2D", sheaf_conv_2d(ctx, f32(2, 2, 6, 5), image, &around));
    EXAMPLE("CONV_2D_DW", sheaf_conv_2d_dw(ctx, f32(2, 2, 1, 6), image, &around));
    EXAMPLE("CONV_TRANSPOSE_1D", sheaf_conv_transpose_1d(ctx, f32(3, 5, 6, 1), f32(4, 6, 1, 1), 2));
    EXAMPLE("POOL_1D, maximum", sheaf_pool_1d(ctx, image, SHEAF_POOL_MAX, 2, 2, 0));
    EXAMPLE("POOL_1D, mean", sheaf_pool_1d(ctx, image, SHEAF_POOL_AVG, 2, 2, 0));
    EXAMPLE("POOL_2D, maximum", sheaf_pool_2d(ctx, image, SHEAF_POOL_MAX, &around));
    EXAMPLE("POOL_2D, mean", sheaf_pool_2d(ctx, image, SHEAF_POOL_AVG, &around));
    EXAMPLE("UPSCALE", sheaf_upscale(ctx, image, (const int64_t[]){8, 6, 6, 2},
                                     SHEAF_SCALE_MODE_NEAREST, false));
    EXAMPLE("PAD_REFLECT_1D", sheaf_pad_reflect_1d(ctx, image, 1, 2));
    EXAMPLE("ROLL", sheaf_roll(ctx, image, (const int[]){0, 1, 0, 0}));
    EXAMPLE("ROLL of rows", sheaf_roll(ctx, image, (const int[]){1, 0, 0, 0}));
    EXAMPLE("TIMESTEP_EMBEDDING", sheaf_timestep_embedding(ctx, f32(6, 1, 1, 1), 8, 100));
    const struct sheaf_window_3d within = {{2, 2, 2}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}};
    T *volume = f32(4, 3, 5, 12), *rel = f32(3, 5, 4, 2);
    EXAMPLE("IM2COL_3D", sheaf_im2col_3d(ctx, volume, 6, &within, SHEAF_TYPE_F32));
    EXAMPLE("CONV_3D", sheaf_conv_3d(ctx, f32(2, 2, 2, 18), volume, 6, &within));
    EXAMPLE("CONV_TRANSPOSE_2D", sheaf_conv_transpose_2d(ctx, f32(3, 2, 5, 6), image, 2));
    EXAMPLE("COL2IM_1D", sheaf_col2im_1d(ctx, f32(12, 5, 1, 1), 4, 2, 1));
    EXAMPLE("WIN_PART", sheaf_win_part(ctx, f32(6, 4, 8, 1), 2));
    EXAMPLE("WIN_PART over the end", sheaf_win_part(ctx, f32(6, 5, 8, 1), 2));
    EXAMPLE("WIN_UNPART", sheaf_win_unpart(ctx, f32(6, 2, 2, 8), 4, 8, 2));
    EXAMPLE("GET_REL_POS", sheaf_get_rel_pos(ctx, f32(6, 7, 1, 1), 4));
    EXAMPLE("ADD_REL_POS", sheaf_add_rel_pos(ctx, f32(9, 20, 2, 1), rel, rel));
    EXAMPLE("COUNT_EQUAL", sheaf_count_equal(ctx, i32(6, 4), i32(6, 4)));
    EXAMPLE("POOL_1D, maximum of empty places", sheaf_pool_1d(ctx, image, SHEAF_POOL_MAX, 1, 1, 1));
    EXAMPLE("PAD", sheaf_pad(ctx, a, (const int[]){0, 0, 1, 0}, (const int[]){2, 0, 0, 0}, false));
    T *dt = f32(4, 5, 2, 1), *bc = f32(3, 2, 5, 2), *heads = f32(2, 4, 5, 2);
    EXAMPLE("SSM_CONV", sheaf_ssm_conv(ctx, f32(8, 4, 2, 1), f32(4, 4, 1, 1)));
    EXAMPLE("SSM_SCAN",
            sheaf_ssm_scan(ctx, f32(3, 2, 4, 6), heads, dt, f32(1, 4, 1, 1), bc, bc, i32(2, 1), 2));
    T *q2 = f32(2, 2, 5, 2), *beta = f32(1, 4, 5, 2);
    EXAMPLE("GATED_DELTA_NET",
            sheaf_gated_delta_net(ctx, q2, q2, heads, beta, beta, f32(2, 2, 4, 2), 1));
    T *w = f32(2, 4, 6, 1), *state = f32(16, 2, 1, 1);
    EXAMPLE("RWKV_WKV6", sheaf_rwkv_wkv6(ctx, w, w, w, f32(2, 4, 1, 1), w, state));
    EXAMPLE("RWKV_WKV7", sheaf_rwkv_wkv7(ctx, w, w, w, w, w, w, state));
    EXAMPLE("GATED_LINEAR_ATTN", sheaf_gated_linear_attn(ctx, w, w, w, w, state, 1));
#undef EXAMPLE
    return n;
}
enum { MAX_EXAMPLES = 96 + SHEAF_OP_COUNT };

static void open_ctx(void) {
    ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20, .no_alloc = true});
    cr_assert_not_null(ctx);
}

Test(rules, every_op_has_a_rule_or_a_reason) {
    for (int op = 0; op < SHEAF_OP_COUNT; op++) {
        const struct sheaf__rule *r = sheaf__rule_row((enum sheaf_op)op);
        const bool has = r->expr || r->build || r->form != SHEAF__FORM_EXPR;
        cr_expect(has != (r->none != NULL), "%s", sheaf_op_name((enum sheaf_op)op));
    }
}

/* Examples that follow from the table of ops, for those that have none here. */
static int all_examples(struct example *e) {
    int n = examples(e);
    bool seen[SHEAF_OP_COUNT] = {false};
    T *a = f32(6, 4, 2, 3), *operands[] = {a, a, a, a, a, a, a};
    for (int i = 0; i < n; i++) seen[e[i].t ? e[i].t->op : SHEAF_OP_NONE] = true;
    for (int op = 1; op < SHEAF_OP_COUNT; op++) {
        if (seen[op] || !op_example_operands((enum sheaf_op)op)) continue;
        T *t = op_example(ctx, (enum sheaf_op)op, operands);
        if (t) e[n++] = (struct example){sheaf_op_name((enum sheaf_op)op), t};
    }
    return n;
}

Test(rules, every_string_parses_and_binds) {
    open_ctx();
    struct example e[MAX_EXAMPLES];
    const int n = all_examples(e);
    bool seen[SHEAF_OP_COUNT] = {false};
    for (int i = 0; i < n; i++) {
        cr_assert_not_null(e[i].t, "%s: %s", e[i].what, sheaf_last_error());
        seen[e[i].t->op] = true;
        const struct sheaf__rule *r = sheaf__rule_of(e[i].t);
        if (r->form != SHEAF__FORM_EXPR || r->none) continue;
        struct sheaf__expr x;
        char text[SHEAF__MAX_EXPR];
        cr_expect(sheaf__expr_of(e[i].t, r, &x, text), "%s: '%s'", e[i].what, text);
        cr_expect_eq(x.n_operands, sheaf__n_operands(e[i].t), "%s: '%s'", e[i].what, text);
    }
    for (int op = 1; op < SHEAF_OP_COUNT; op++)
        cr_expect(seen[op], "no example of %s", sheaf_op_name((enum sheaf_op)op));
    /* every alternative is some example's rule */
    for (int op = 0; op < SHEAF_OP_COUNT; op++) {
        const struct sheaf__rule *r = sheaf__rule_row((enum sheaf_op)op);
        for (const struct sheaf__rule *a = r->alt; a && a->when; a++) {
            bool used = false;
            for (int i = 0; i < n; i++) used = used || sheaf__rule_of(e[i].t) == a;
            cr_expect(used, "an alternative of %s has no example",
                      sheaf_op_name((enum sheaf_op)op));
        }
    }
    sheaf_free(ctx);
}

/* Letters that a rule names must be in its expression; a typing error would be silent. */
Test(rules, kinds_name_factors_that_exist) {
    open_ctx();
    struct example e[MAX_EXAMPLES];
    const int n = all_examples(e);
    for (int i = 0; i < n; i++) {
        const struct sheaf__rule *r = sheaf__rule_of(e[i].t);
        struct sheaf__expr x;
        if (r->form != SHEAF__FORM_EXPR || !sheaf__expr_of(e[i].t, r, &x, NULL)) continue;
        const char *sets[] = {r->sum, r->whole, r->index, r->slope, r->group, r->joint};
        for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
            for (const char *p = sets[s]; p && *p; p++) {
                /* factors of masks and frequencies that this node may lack */
                if (strchr("Nf", *p)) continue;
                cr_expect(sheaf__expr_factor(&x, *p) >= 0, "%s: no factor '%c'", e[i].what, *p);
            }
        }
        for (int l = 0; l < SHEAF__MAX_LINEAR; l++)
            cr_expect(r->linear[l] < 1u << x.n_operands, "%s: linear set %d", e[i].what, l);
    }
    sheaf_free(ctx);
}

Test(rules, bad_strings_do_not_parse) {
    const char *bad[] = {"",
                         "i j",
                         "i ->",
                         "-> i",
                         "i, -> i",
                         "i j h s t -> i",
                         "i -> j -> k",
                         "i? -> i",
                         "i. -> i",
                         "i+ -> i",
                         "a.b.c.d.e.f.h -> a",
                         "a+b+c+d+e+f -> a",
                         "i -> ",
                         "a b c d, e f g h, i j k l -> m",
                         "a b c d, e f g h, i j k l -> 5",
                         "99999999999999999999 -> i",
                         "i= -> i",
                         "i=j -> i",
                         "i=99999999999999999999 -> i"};
    const struct sheaf__rule none = {.expr = NULL};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sheaf__expr e;
        cr_expect_not(sheaf__expr_parse(&none, bad[i], &e), "'%s' parsed", bad[i]);
    }
}

Test(rules, sizes_come_from_shapes) {
    struct sheaf__expr e;
    const struct sheaf__rule r = {.expr = NULL};
    cr_assert(sheaf__expr_parse(&r, "k m g, k n g.r -> m n g.r", &e));
    const int64_t a[] = {6, 8, 2, 1}, b[] = {6, 5, 8, 1}, c[] = {8, 5, 8, 1};
    cr_assert(sheaf__expr_bind(&e, (const int64_t *const[]){a, b, c}));
    cr_expect_eq(e.size[sheaf__expr_factor(&e, 'g')], 2);
    cr_expect_eq(e.size[sheaf__expr_factor(&e, 'r')], 4);
    const int64_t odd[] = {6, 5, 7, 1};
    cr_expect_not(sheaf__expr_bind(&e, (const int64_t *const[]){a, odd, c}));
    cr_assert(sheaf__expr_parse(&r, "12 g.2 1 -> 10 g.2 1", &e));
    const int64_t wide[] = {12, 6, 1, 1}, narrow[] = {10, 6, 1, 1}, other[] = {11, 6, 1, 1};
    cr_assert(sheaf__expr_bind(&e, (const int64_t *const[]){wide, narrow}));
    cr_expect_eq(e.size[sheaf__expr_factor(&e, 'g')], 3);
    cr_expect_not(sheaf__expr_bind(&e, (const int64_t *const[]){wide, other}));
    cr_assert(sheaf__expr_parse(&r, "m.k=4, n.k -> n.m", &e));
    const int64_t mk[] = {12, 1, 1, 1}, nk[] = {20, 1, 1, 1}, nm[] = {15, 1, 1, 1};
    cr_assert(sheaf__expr_bind(&e, (const int64_t *const[]){mk, nk, nm}));
    cr_expect_eq(e.size[sheaf__expr_factor(&e, 'n')], 5);
    cr_expect_not(sheaf__expr_bind(&e, (const int64_t *const[]){mk, nk, mk}));
    cr_assert(sheaf__expr_parse(&r, "f+f n -> f n", &e));
    const int64_t two[] = {12, 3, 1, 1}, one[] = {6, 3, 1, 1};
    cr_assert(sheaf__expr_bind(&e, (const int64_t *const[]){two, one}));
    cr_expect_eq(e.size[0], 6);
}

Test(rules, rows_are_the_golden_ones) {
    open_ctx();
    struct example e[MAX_EXAMPLES];
    const int n = examples(e);
    enum { CAP = 1 << 16 };
    char *made = malloc(CAP);
    cr_assert_not_null(made);
    size_t at = (size_t)snprintf(
        made, CAP,
        "# Rows that the rules generate. M mirrored, P partial, Si axis i. Kinds: + summed, ! "
        "whole,"
        "\n# @ indexed (summed, with a base), ~ sloped (free, with a base). Made by "
        "test-split-rules\n# with SHEAF_TEST_UPDATE_GOLDEN=1.\n");
    for (int i = 0; i < n; i++) {
        const struct sheaf__rule *r = sheaf__rule_of(e[i].t);
        struct sheaf__expr x;
        char text[SHEAF__MAX_EXPR] = "";
        if (r->form == SHEAF__FORM_EXPR && !r->none) cr_assert(sheaf__expr_of(e[i].t, r, &x, text));
        at += (size_t)snprintf(made + at, CAP - at, "\n%s\n", e[i].what);
        at += sheaf__rows_print(r, text, made + at, CAP - at);
        cr_assert_lt(at, (size_t)CAP);
    }
    expect_golden_text(GOLDEN_FILE("split-rows.txt"), made);
    free(made);
    sheaf_free(ctx);
}
