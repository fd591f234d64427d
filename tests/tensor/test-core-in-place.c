/* Results that lie in the memory of an operand (sheaf_in_place): their layout, what is refused, and
 * that allocators, devices and plans treat the operand as written. */
#include <criterion/criterion.h>

#include "sheaf/backend-impl.h"
#include "split/rule.h"
#include "split_graphs.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

static C *open_ctx(bool no_alloc) {
    C *ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 18, .no_alloc = no_alloc});
    cr_assert_not_null(ctx);
    return ctx;
}

Test(in_place, the_result_is_the_operands_memory) {
    C *ctx = open_ctx(true);
    T *all = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 8, 6);
    T *row = sheaf_view_2d(ctx, all, 4, 2, all->nb[1], 2 * all->nb[1]);
    T *t = sheaf_in_place(sheaf_scale(ctx, row, 2), 0);
    cr_assert_not_null(t, "%s", sheaf_last_error());
    cr_expect_eq(t->view_src, all);
    cr_expect_eq(t->view_offs, 2 * all->nb[1]);
    cr_expect(sheaf_are_same_layout(t, row));
    cr_expect_eq(sheaf__op_written(t), 1);
    cr_expect_eq(sheaf__op_target(t), row);
    cr_expect(sheaf_backend_op_is_valid(t));
    T *b = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 8, 6);
    cr_expect_eq(sheaf__op_written(sheaf_in_place(sheaf_sub(ctx, all, b), 1)), 2);
    cr_expect_eq(sheaf__op_written(sheaf_add(ctx, all, b)), 0);
    cr_expect_eq(sheaf__op_written(row), 0);
    cr_expect_eq(sheaf__op_written(sheaf_cpy(ctx, b, all)), 2);
    sheaf_free(ctx);
}

Test(in_place, what_cannot_be_is_refused) {
    C *ctx = open_ctx(true);
    T *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 8, 6);
    T *bias = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 8);
    const struct {
        T *node;
        int operand;
    } bad[] = {
        {sheaf_add(ctx, a, bias), 1},      {sheaf_add(ctx, a, bias), 2},
        {sheaf_add(ctx, a, bias), -1},     {sheaf_mul_mat(ctx, a, a), 0},
        {sheaf_sum_rows(ctx, a), 0},       {sheaf_cpy(ctx, a, a), 0},
        {sheaf_reshape_1d(ctx, a, 48), 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sheaf_clear_error();
        cr_expect_null(sheaf_in_place(bad[i].node, bad[i].operand), "case %zu", i);
        cr_expect_str_not_empty(sheaf_last_error(), "case %zu", i);
    }
    cr_expect_null(sheaf_in_place(NULL, 0));
    /* graphs from elsewhere: memory that no operand has, a layout that the operand has not */
    T *t = sheaf_scale(ctx, a, 2);
    t->view_src = bias;
    cr_expect_not(sheaf_backend_op_is_valid(t));
    T *moved = sheaf_in_place(sheaf_scale(ctx, a, 2), 0);
    moved->view_offs = 4;
    cr_expect_not(sheaf_backend_op_is_valid(moved));
    sheaf_free(ctx);
}

Test(in_place, later_readers_see_what_was_written) {
    struct split_model m;
    split_model_init(&m, 1, 5);
    T *x = split_new(&m, "x", 4, 3, 1, 1);
    float before[12];
    memcpy(before, x->data, sizeof before);
    T *first = sheaf_dup(m.ctx, x); /* reads x before the write */
    cr_assert_eq(sheaf_build_forward_expand(m.graph, first), SHEAF_STATUS_SUCCESS);
    T *twice = sheaf_in_place(sheaf_scale(m.ctx, x, 2), 0);
    T *sum = sheaf_in_place(sheaf_add(m.ctx, twice, first), 0);
    cr_assert_eq(sheaf_build_forward_expand(m.graph, sum), SHEAF_STATUS_SUCCESS);
    T *after = sheaf_dup(m.ctx, x);
    cr_assert_eq(sheaf_build_forward_expand(m.graph, after), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < m.graph->n_nodes; i++)
        cr_assert_eq(split_run_node(m.graph->nodes[i]), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 12; i++) {
        cr_expect_float_eq((double)((float *)after->data)[i], 3 * (double)before[i], 1e-6);
        cr_expect_float_eq((double)((float *)first->data)[i], (double)before[i], 0);
    }
    split_model_free(&m);
    split_free_all();
}

/* The owner's memory lives as long as results in it are read, and takes no memory beside it. */
Test(in_place, an_allocator_keeps_the_owner) {
    sheaf_backend_t backend = split_backend();
    C *ctx = open_ctx(true);
    struct sheaf_cgraph *g = sheaf_new_graph_custom(ctx, 32);
    T *x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 64, 4);
    sheaf_set_input(x);
    T *a = sheaf_silu(ctx, x);
    T *b = sheaf_in_place(sheaf_scale(ctx, a, 2), 0);
    T *c = sheaf_mul_mat(ctx, x, x); /* must not take a's place */
    T *d = sheaf_add(ctx, sheaf_mul_mat(ctx, b, x), c);
    sheaf_set_output(d);
    cr_assert_eq(sheaf_build_forward_expand(g, b), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_build_forward_expand(g, c), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_build_forward_expand(g, d), SHEAF_STATUS_SUCCESS);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_expect_eq(b->data, a->data);
    cr_expect_neq(c->data, a->data);
    float values[256];
    for (int i = 0; i < 256; i++) values[i] = (float)(i % 7) - 3;
    sheaf_backend_tensor_set(x, values, 0, sizeof values);
    cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    float got[16];
    sheaf_backend_tensor_get(d, got, 0, sizeof got);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4;
             j++) { /* d[i, j] = sum over k of (2 silu(x[k, i]) + x[k, i]) x[k, j] */
            double sum = 0;
            for (int k = 0; k < 64; k++) {
                const double u = (double)values[i * 64 + k], v = (double)values[j * 64 + k];
                sum += (2 * u / (1 + exp(-u)) + u) * v;
            }
            cr_expect_float_eq((double)got[j * 4 + i], sum, 1e-3 * fabs(sum) + 1e-3);
        }
    }
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}

/* A plan: the result lies as the operand, a cut is kept, and a sum is written where its addends
 * are. A state that the operand has not is written through a mirrored copy and put back. */
Test(in_place, plans_keep_the_state_of_the_operand) {
    const struct {
        bool partial, norm; /* a norm needs the whole row */
        int collectives;
    } cases[] = {{false, false, 0}, {true, false, 1}, {false, true, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct split_model m;
        split_model_init(&m, 3, 21);
        T *x = split_new(&m, "x", 6, 4, 1, 1);
        if (cases[i].partial)
            split_give(&m, x, sheaf_split_state_partial(3));
        else
            split_cut(&m, x, 0, 6, true);
        T *t = cases[i].norm ? sheaf_rms_norm(m.ctx, x, 1e-5f) : sheaf_scale(m.ctx, x, 3);
        t = sheaf_in_place(t, 0);
        cr_assert_eq(sheaf_build_forward_expand(m.graph, t), SHEAF_STATUS_SUCCESS);
        T *after = sheaf_silu(m.ctx, x);
        cr_assert_eq(sheaf_build_forward_expand(m.graph, after), SHEAF_STATUS_SUCCESS);
        struct sheaf__split_plan *plan = NULL;
        cr_assert_eq(sheaf__split_plan_new(m.graph, 3, split_model_state, &m, &plan),
                     SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        int collectives = 0;
        for (int s = 0; s < plan->n_steps; s++)
            collectives += plan->steps[s].kind == SHEAF_SPLIT_STEP_COLLECTIVE;
        cr_expect_eq(collectives, cases[i].collectives, "case %zu: %d", i, collectives);
        struct split_run r = {.graph = m.graph, .plan = plan};
        r.slice = split_alloc((size_t)plan->n_values * 3 * sizeof *r.slice);
        split_run_leaves(&r, 3);
        for (int k = 0; k < m.graph->n_nodes; k++)
            cr_assert_eq(split_run_node(m.graph->nodes[k]), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(split_run_all(&r), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        for (int k = 0; k < m.graph->n_nodes; k++) {
            T *whole = split_run_join(&r, plan->node_final[k]);
            cr_expect_lt(split_nmse(whole, m.graph->nodes[k]), 1e-10, "case %zu, node %d", i, k);
        }
        sheaf__split_plan_free(plan);
        split_model_free(&m);
        split_free_all();
    }
}

/* An operand that is NULL before one that is not has no state and no step reads it. */
Test(in_place, a_plan_passes_over_operands_that_are_null) {
    struct split_model m;
    split_model_init(&m, 2, 3);
    T *x = split_new(&m, "x", 6, 4, 1, 1), *y = split_new(&m, "y", 6, 4, 1, 1);
    split_cut(&m, x, 0, 6, false);
    T *t = sheaf_add(m.ctx, x, y);
    t->src[1] = NULL;
    t->src[2] = y;
    cr_assert_eq(sheaf_build_forward_expand(m.graph, t), SHEAF_STATUS_SUCCESS);
    struct sheaf__split_plan *plan = NULL;
    cr_assert_eq(sheaf__split_plan_new(m.graph, 2, split_model_state, &m, &plan),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    const struct sheaf__split_step *node = &plan->steps[plan->n_steps - 1];
    cr_expect_eq(node->kind, SHEAF_SPLIT_STEP_NODE);
    cr_expect_geq(node->in[0], 0);
    cr_expect_eq(node->in[1], -1);
    cr_expect_geq(node->in[2], 0);
    char text[2048];
    cr_expect_eq(
        sheaf__split_considered(m.graph, 2, split_model_state, &m, false, 0, text, sizeof text),
        SHEAF_STATUS_SUCCESS);
    cr_expect(strstr(text, "src2 y") && !strstr(text, "src1"), "%s", text);
    cr_expect(sheaf__split_explain(plan, m.graph, 0, text, sizeof text));
    sheaf__split_plan_free(plan);

    /* by a rule that names it "1", the others are cut as if it were not there */
    const struct sheaf__rule rule = {.expr = "i j h s, 1, i j h s -> i j h s"};
    struct sheaf__expr e;
    cr_assert(sheaf__expr_of(t, &rule, &e, NULL));
    cr_expect_eq(e.size[sheaf__expr_factor(&e, 'i')], 6);
    split_model_free(&m);
    split_free_all();
}
