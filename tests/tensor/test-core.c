/* Contexts, tensors, graphs, errors, the environment: what src/core does without a device. Op
 * constructors have test-core-ops.c, memory has test-core-alloc.c. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings.h"
#include "sheaf/ops.h"
#include "sheaf/version.h"
#include "tensor/graph.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

static C *arena(size_t size, bool no_alloc) {
    C *ctx = sheaf_init((struct sheaf_init_params){.mem_size = size, .no_alloc = no_alloc});
    cr_assert_not_null(ctx);
    return ctx;
}

static uint32_t rnd(uint32_t *s) { return *s = *s * 1664525u + 1013904223u, *s >> 8; }

/* ---- errors ---- */

static void *other_thread(void *arg) {
    (void)arg;
    cr_assert_str_empty(sheaf_last_error(), "a thread starts without an error");
    sheaf_set_error(SHEAF_STATUS_IO, "of the other thread");
    return NULL;
}

Test(core_error, text_is_per_thread_and_may_wrap_itself) {
    cr_assert_eq(sheaf_set_error(SHEAF_STATUS_IO, "disk %d", 7), SHEAF_STATUS_IO);
    cr_assert_eq(sheaf_set_error(SHEAF_STATUS_INVALID, "loading: %s", sheaf_last_error()),
                 SHEAF_STATUS_INVALID);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    cr_assert_str_eq(sheaf_last_error(), "loading: disk 7");
    sheaf_clear_error();
    cr_assert_str_empty(sheaf_last_error());
}

Test(core_error, a_long_text_is_cut_not_overrun) {
    static char text[10000];
    memset(text, 'x', sizeof text - 1);
    sheaf_set_error(SHEAF_STATUS_FAILED, "%s", text);
    const size_t n = strlen(sheaf_last_error());
    cr_assert(n > 100 && n < sizeof text);
    for (int s = -8; s <= 2; s++) {
        cr_assert_str_not_empty(sheaf_status_to_string((enum sheaf_status)s));
    }
}

Test(core_env, only_whole_numbers_in_range) {
    static const struct {
        const char *text;
        long value; /* 0: refused */
    } cases[] = {{"7", 7},
                 {"1", 1},
                 {"64", 64},
                 {"65", 0},
                 {"0", 0},
                 {"-1", 0},
                 {"", 0},
                 {"x", 0},
                 {"7x", 0},
                 {"7.5", 0},
                 {"0x7", 0},
                 {"7 ", 0},
                 {"99999999999999999999", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        long v = 42;
        const enum sheaf_status st =
            sheaf__setting_parse_int("SHEAF_TEST_NUMBER", cases[i].text, 1, 64, &v);
        if (cases[i].value) {
            cr_expect_eq(st, SHEAF_STATUS_SUCCESS, "'%s'", cases[i].text);
            cr_expect_eq(v, cases[i].value);
        } else {
            cr_expect_eq(st, SHEAF_STATUS_INVALID, "'%s'", cases[i].text);
            cr_expect_eq(v, 42, "'%s' changed the value", cases[i].text);
            cr_expect(strstr(sheaf_last_error(), "SHEAF_TEST_NUMBER"));
            cr_expect(strstr(sheaf_last_error(), "1 to 64"));
        }
    }
    long v = 42;
    unsetenv("SHEAF_CPU_DEVICES");
    cr_assert_eq(sheaf__setting_int(SHEAF__SET_CPU_DEVICES, &v), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(v, 42);
}

Test(core_version, is_that_of_the_build) {
    cr_assert_str_not_empty(sheaf_version());
    cr_assert(strstr(sheaf_build_info(), "commit "));
}

/* ---- contexts and tensors ---- */

Test(core_tensor, shapes_strides_and_bytes) {
    static const struct {
        enum sheaf_type type;
        int n;
        int64_t ne[4];
        size_t nb[4], bytes;
    } cases[] = {
        {SHEAF_TYPE_F32, 1, {5}, {4, 20, 20, 20}, 20},
        {SHEAF_TYPE_F16, 3, {5, 3, 2}, {2, 10, 30, 60}, 60},
        {SHEAF_TYPE_I64, 4, {1, 2, 3, 4}, {8, 8, 16, 48}, 192},
        {SHEAF_TYPE_Q4_0, 2, {64, 3}, {18, 36, 108, 108}, 108},
        {SHEAF_TYPE_Q6_K, 2, {512, 2}, {210, 420, 840, 840}, 840},
        {SHEAF_TYPE_F32, 2, {0, 3}, {4, 0, 0, 0}, 0},
        {SHEAF_TYPE_F32, 2, {3, 0}, {4, 12, 0, 0}, 0},
    };
    C *ctx = arena(1 << 16, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        T *t = sheaf_new_tensor(ctx, cases[i].type, cases[i].n, cases[i].ne);
        cr_assert_not_null(t, "%s", sheaf_last_error());
        cr_expect_arr_eq(t->nb, cases[i].nb, sizeof t->nb, "case %zu", i);
        cr_expect_eq(sheaf_nbytes(t), cases[i].bytes, "case %zu: %zu bytes", i, sheaf_nbytes(t));
        cr_expect(sheaf_is_contiguous(t));
        cr_expect_eq((uintptr_t)t->data % 64, 0);
        memset(t->data, 1, sheaf_nbytes(t));
        cr_expect_eq(sheaf_is_empty(t), cases[i].bytes == 0);
        for (int d = cases[i].n; d < 4; d++) cr_expect_eq(t->ne[d], 1);
    }
    cr_expect_eq(sheaf_n_dims(sheaf_new_tensor_4d(ctx, SHEAF_TYPE_F32, 1, 1, 1, 1)), 1);
    cr_expect_eq(sheaf_n_dims(sheaf_new_tensor_4d(ctx, SHEAF_TYPE_F32, 2, 1, 3, 1)), 3);
    sheaf_free(ctx);
}

Test(core_tensor, bad_shapes_are_refused) {
    static const struct {
        int type, n;
        int64_t ne[4];
        const char *words;
    } cases[] = {
        {SHEAF_TYPE_F32, 0, {1}, "0 dimensions"},
        {SHEAF_TYPE_F32, 5, {1}, "5 dimensions"},
        {SHEAF_TYPE_F32, 2, {2, -1}, "dimension 1 is -1"},
        {SHEAF_TYPE_Q8_0, 1, {33}, "whole blocks of 32"},
        {SHEAF_TYPE_COUNT, 1, {1}, "not known"},
        {-1, 1, {1}, "not known"},
        {9, 1, {32}, "not known"},
        {SHEAF_TYPE_F32, 1, {INT64_MAX}, "too large"},
        {SHEAF_TYPE_F32, 2, {(int64_t)1 << 31, (int64_t)1 << 31}, "too large"},
        {SHEAF_TYPE_Q8_0, 4, {1 << 16, 1 << 16, 1 << 16, 1 << 16}, "too large"},
        /* an empty tensor whose other dimensions overflow a count of rows */
        {SHEAF_TYPE_F32, 4, {0, (int64_t)1 << 40, (int64_t)1 << 40, 1}, "too large"},
        {SHEAF_TYPE_F32, 4, {(int64_t)1 << 40, (int64_t)1 << 40, 0, 1}, "too large"},
    };
    C *ctx = arena(1 << 16, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sheaf_clear_error();
        cr_expect_null(
            sheaf_new_tensor(ctx, (enum sheaf_type)cases[i].type, cases[i].n, cases[i].ne),
            "case %zu", i);
        cr_expect(strstr(sheaf_last_error(), cases[i].words), "case %zu says: %s", i,
                  sheaf_last_error());
    }
    cr_expect_eq(sheaf_used_mem(ctx), 0, "a refused tensor takes no memory");
    sheaf_free(ctx);
}

Test(core_tensor, names_and_lookup) {
    C *ctx = arena(1 << 16, true);
    char longer[100];
    memset(longer, 'n', sizeof longer);
    longer[99] = '\0';
    T *a = sheaf_set_name(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 1), longer);
    T *b = sheaf_format_name(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 1), "blk.%d.w", 3);
    cr_assert_eq(strlen(sheaf_get_name(a)), SHEAF_MAX_NAME - 1);
    cr_assert_eq(sheaf_get_tensor(ctx, "blk.3.w"), b);
    cr_assert_null(sheaf_get_tensor(ctx, "blk.3"));
    cr_assert_null(sheaf_set_name(NULL, "x"));
    cr_assert_str_eq(sheaf_get_name(sheaf_set_name(b, sheaf_get_name(b))), "blk.3.w");
    sheaf_format_name(b, "%s.%s", "x", sheaf_get_name(b));
    cr_assert_str_eq(sheaf_get_name(b), "x.blk.3.w");
    sheaf_set_name(b, sheaf_get_name(b) + 2);
    sheaf_set_input(NULL);
    sheaf_new_graph_custom(ctx, 4); /* an object that is no tensor */
    T *c = sheaf_dup_tensor(ctx, b);
    cr_assert_eq(sheaf_get_first_tensor(ctx), a);
    cr_assert_eq(sheaf_get_next_tensor(ctx, a), b);
    cr_assert_eq(sheaf_get_next_tensor(ctx, b), c);
    cr_assert_null(sheaf_get_next_tensor(ctx, c));
    sheaf_reset(ctx);
    cr_assert_null(sheaf_get_first_tensor(ctx));
    cr_assert_eq(sheaf_used_mem(ctx), 0);
    sheaf_free(ctx);
}

/* overhead() is exact: n tensors fit where it says, and not one byte fewer. */
Test(core_tensor, overhead_is_exact) {
    const size_t one = sheaf_tensor_overhead(), graph = sheaf_graph_overhead_custom(10);
    C *ctx = arena(5 * one + graph, true);
    for (int i = 0; i < 5; i++) cr_assert_not_null(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 1));
    cr_assert_null(sheaf_new_graph_custom(ctx, 11));
    cr_assert(strstr(sheaf_last_error(), "larger mem_size"));
    cr_assert_not_null(sheaf_new_graph_custom(ctx, 10));
    cr_assert_null(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 1));
    cr_assert_eq(sheaf_used_mem(ctx), sheaf_get_mem_size(ctx));
    sheaf_free(ctx);
}

Test(core_tensor, a_context_can_live_in_the_callers_memory) {
    static _Alignas(64) char memory[1 << 14];
    C *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = sizeof memory, .mem_buffer = memory});
    T *t = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 10);
    cr_assert((char *)t >= memory && (char *)t->data + 40 <= memory + sizeof memory);
    sheaf_free(ctx);
    sheaf_free(NULL);
}

Test(core_tensor, repeat_and_layout) {
    C *ctx = arena(1 << 16, true);
    T *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 6, 4);
    T *b = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 3, 2);
    T *e = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 6, 0);
    cr_assert(sheaf_can_repeat(b, a));
    cr_assert_not(sheaf_can_repeat(a, b));
    cr_assert_not(sheaf_can_repeat(e, a));
    cr_assert(sheaf_can_repeat(a, e), "zero times is a repeat");
    cr_assert(sheaf_are_same_shape(a, sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F16, 6, 4)));
    cr_assert_not(sheaf_are_same_layout(a, sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F16, 6, 4)));
    sheaf_free(ctx);
}

/* ---- graphs ---- */

/* Random graphs: every operand and view owner stands before its reader, everything once, leaves
 * apart. */
Test(core_graph, order_is_an_order_of_execution) {
    for (uint32_t seed = 1; seed <= 200; seed++) {
        uint32_t s = seed;
        C *ctx = arena(1 << 18, true);
        T *all[120];
        int n = 0;
        for (; n < 5; n++) all[n] = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 4, 4);
        for (; n < 100; n++) {
            T *a = all[rnd(&s) % (uint32_t)n], *b = all[rnd(&s) % (uint32_t)n];
            switch (rnd(&s) % 4) {
            case 0:
                all[n] = sheaf_add(ctx, a, b);
                break;
            case 1:
                all[n] = sheaf_scale(ctx, a, 2);
                break;
            case 2:
                all[n] = sheaf_view_2d(ctx, a, 4, 4, 16, 0);
                break;
            default:
                all[n] = sheaf_cpy(ctx, a, b);
                break;
            }
            cr_assert_not_null(all[n], "%s", sheaf_last_error());
        }
        struct sheaf_cgraph *g = sheaf_new_graph_custom(ctx, 100);
        for (int i = 0; i < 3; i++) {
            cr_assert_eq(sheaf_build_forward_expand(g, all[99 - 7 * i]), SHEAF_STATUS_SUCCESS);
        }
        const int n_nodes = sheaf_graph_n_nodes(g), n_leafs = sheaf_graph_n_leafs(g);
        cr_assert_eq(sheaf_build_forward_expand(g, all[99]), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_graph_n_nodes(g), n_nodes, "a second expand adds nothing");
        for (int i = 0; i < n_nodes; i++) {
            T *t = sheaf_graph_node(g, i);
            cr_assert_neq(t->op, SHEAF_OP_NONE);
            for (int j = 0; j <= SHEAF_MAX_SRC; j++) {
                T *p = j < SHEAF_MAX_SRC ? t->src[j] : t->view_src;
                bool before = !p;
                for (int k = 0; k < i && !before; k++) before = sheaf_graph_node(g, k) == p;
                for (int k = 0; k < n_leafs && !before; k++) before = sheaf_graph_leaf(g, k) == p;
                cr_assert(before, "seed %u: node %d reads what comes later", seed, i);
            }
            for (int k = 0; k < i; k++) cr_assert_neq(sheaf_graph_node(g, k), t);
        }
        for (int i = 0; i < n_leafs; i++) {
            cr_assert_eq(sheaf_graph_leaf(g, i)->op, SHEAF_OP_NONE);
            for (int k = 0; k < i; k++)
                cr_assert_neq(sheaf_graph_leaf(g, k), sheaf_graph_leaf(g, i));
        }
        sheaf_free(ctx);
    }
}

Test(core_graph, a_long_chain_needs_no_stack) {
    enum { N = 200000 };
    C *ctx =
        arena((size_t)(N + 1) * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(N), true);
    T *first = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 1), *t = first;
    for (int i = 0; i < N; i++) t = sheaf_scale(ctx, t, 1);
    struct sheaf_cgraph *g = sheaf_new_graph_custom(ctx, N);
    cr_assert_eq(sheaf_build_forward_expand(g, t), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_graph_n_nodes(g), N);
    cr_assert_eq(sheaf_graph_node(g, -1), t);
    cr_assert_eq(sheaf_graph_node(g, 0)->src[0], first);
    sheaf_free(ctx);
}

/* A graph that lost a node must not pass for whole: after "full" every expand fails, until it is
 * cleared. Many failing calls in a row must end too. */
Test(core_graph, full_stays_an_error_until_cleared, .timeout = 20) {
    C *ctx = arena(1 << 18, true);
    T *leaf = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 4), *t[200];
    for (int i = 0; i < 200; i++) t[i] = sheaf_scale(ctx, leaf, (float)i);
    struct sheaf_cgraph *g = sheaf_new_graph_custom(ctx, 8);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(sheaf_build_forward_expand(g, t[i]), SHEAF_STATUS_SUCCESS);
    for (int round = 0; round < 2; round++) {
        for (int i = 8; i < 200; i++) {
            cr_assert_eq(sheaf_build_forward_expand(g, t[i]), SHEAF_STATUS_ALLOC_FAILED,
                         "round %d, node %d", round, i);
            cr_assert(strstr(sheaf_last_error(), "8 nodes"), "%s", sheaf_last_error());
        }
    }
    cr_assert_eq(sheaf_graph_n_nodes(g), 8);
    sheaf_graph_clear(g);
    cr_assert_eq(sheaf_build_forward_expand(g, t[100]), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_graph_n_nodes(g), 1);
    sheaf_free(ctx);
}

Test(core_graph, views_lookup_and_identity) {
    C *ctx = arena(1 << 18, true);
    T *a = sheaf_set_name(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 4), "a");
    T *b = sheaf_set_name(sheaf_scale(ctx, a, 2), "b");
    T *c = sheaf_set_name(sheaf_scale(ctx, b, 2), "c");
    struct sheaf_cgraph *g = sheaf_new_graph(ctx);
    cr_assert_eq(sheaf_graph_size(g), SHEAF_DEFAULT_GRAPH_SIZE);
    const uint64_t empty = sheaf_graph_uid(g);
    cr_assert_eq(sheaf_build_forward_expand(g, c), SHEAF_STATUS_SUCCESS);
    const uint64_t built = sheaf_graph_uid(g);
    cr_assert_neq(built, empty);
    cr_assert_eq(sheaf_graph_get_tensor(g, "a"), a);
    cr_assert_eq(sheaf_graph_get_tensor(g, "c"), c);
    cr_assert_null(sheaf_graph_get_tensor(g, "d"));
    cr_assert_null(sheaf_graph_node(g, 2));
    cr_assert_null(sheaf_graph_node(g, -3));
    cr_assert_null(sheaf_graph_leaf(g, 1));
    struct sheaf_cgraph *v = sheaf_graph_view(ctx, g, 1, 2);
    cr_assert_eq(sheaf_graph_n_nodes(v), 1);
    cr_assert_eq(sheaf_graph_node(v, 0), c);
    cr_assert_neq(sheaf_graph_uid(v), built);
    cr_assert_eq(sheaf_build_forward_expand(v, b), SHEAF_STATUS_INVALID);
    cr_assert_null(sheaf_graph_view(ctx, g, 1, 3));
    cr_assert_null(sheaf_graph_view(ctx, g, -1, 1));
    cr_assert_null(sheaf_graph_view(ctx, g, 2, 1));
    sheaf_graph_clear(g);
    cr_assert_neq(sheaf_graph_uid(g), built);
    cr_assert_null(sheaf_new_graph_custom(ctx, 0));
    cr_assert_null(sheaf_new_graph_custom(ctx, SIZE_MAX));
    sheaf_free(ctx);
}

/* Memory of an arena holds anything; a version that is not 0 would promise that nothing changed. */
Test(core_graph, promises_nothing) {
    static char memory[1 << 18];
    memset(memory, 0xff, sizeof memory);
    C *ctx = sheaf_init((struct sheaf_init_params){
        .mem_buffer = memory, .mem_size = sizeof memory, .no_alloc = true});
    struct sheaf_cgraph *g = sheaf_new_graph_custom(ctx, 8);
    cr_assert_not_null(g);
    cr_assert_eq(g->version, 0);
    g->version = 7;
    sheaf_graph_clear(g);
    cr_assert_eq(g->version, 0);
    sheaf_free(ctx);
}

Test(core_graph, a_failed_constructor_is_reported_by_expand) {
    C *ctx = arena(1 << 18, true);
    struct sheaf_cgraph *g = sheaf_new_graph(ctx);
    T *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 4, 3), *b = sheaf_new_tensor_1d(ctx, 0, 5);
    T *r = sheaf_rms_norm(ctx, sheaf_mul_mat(ctx, a, sheaf_add(ctx, a, b)), 0);
    cr_assert_eq(sheaf_build_forward_expand(g, r), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "ADD"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_graph_n_nodes(g), 0);
    sheaf_free(ctx);
}

/* ---- what tensors and contexts say of themselves ---- */

Test(core_tensor, sizes_names_and_ops) {
    C *ctx = arena(64 * sheaf_tensor_overhead(), true);
    cr_assert(sheaf_get_no_alloc(ctx));
    T *q = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_Q4_0, 64, 3, 5);
    cr_assert_eq(sheaf_nrows(q), 15);
    cr_assert_eq(sheaf_element_size(q), 18);
    T *x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 6, 4);
    T *like = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F16, 2, 3, 4);
    T *shaped = sheaf_reshape(ctx, x, like);
    cr_assert(sheaf_are_same_shape(shaped, like) && shaped->type == SHEAF_TYPE_F32);
    cr_assert(sheaf_is_view(shaped));
    T *u = sheaf_unary(ctx, x, SHEAF_UNARY_OP_TANH);
    cr_assert_eq(sheaf_get_unary_op(u), SHEAF_UNARY_OP_TANH);
    cr_assert_str_eq(sheaf_unary_op_name(SHEAF_UNARY_OP_TANH), "TANH");
    T *g = sheaf_glu_split(ctx, x, u, SHEAF_GLU_OP_REGLU);
    cr_assert_eq(sheaf_get_glu_op(g), SHEAF_GLU_OP_REGLU);
    cr_assert(sheaf_are_same_shape(g, x) && g->src[1] == u);
    cr_assert_str_eq(sheaf_glu_op_name(SHEAF_GLU_OP_REGLU), "REGLU");
    sheaf_free(ctx);
}
