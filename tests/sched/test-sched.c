/* The scheduler over islands (islands.h), the CPU and meta devices. Results are compared with those
 * of one CPU backend. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "islands.h"
#include "mpirun.h"
#include "sched_scenario.h"

/* ---- counting allocations ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTS_MALLOC 0
#endif
#endif
#ifndef COUNTS_MALLOC
#define COUNTS_MALLOC 1
#endif

static size_t n_mallocs;
#if COUNTS_MALLOC
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
void *malloc(size_t size) {
    __atomic_fetch_add(&n_mallocs, 1, __ATOMIC_RELAXED);
    return __libc_malloc(size);
}
void *calloc(size_t n, size_t size) {
    __atomic_fetch_add(&n_mallocs, 1, __ATOMIC_RELAXED);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t size) {
    __atomic_fetch_add(&n_mallocs, 1, __ATOMIC_RELAXED);
    return __libc_realloc(p, size);
}
#endif

/* ---- the rig: two islands and the CPU ---- */

static struct island a, b;
static sheaf_backend_t cpu, all[3];
static struct tf_result want[TF_STEPS];

static void up(void) {
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &cpu), "%s",
              sheaf_last_error());
    island_up(&a, "A", cpu);
    island_up(&b, "B", cpu);
    all[0] = &a.backend;
    all[1] = &b.backend;
    all[2] = cpu;
    cr_assert(tf_reference(want));
}

static void down(void) { sheaf_backend_free(cpu); }

TestSuite(sched, .init = up, .fini = down);

static sheaf_backend_sched_t make(bool parallel, bool op_offload) {
    sheaf_backend_sched_t s = sheaf_backend_sched_new(all, NULL, 3, 256, parallel, op_offload);
    cr_assert(s, "%s", sheaf_last_error());
    return s;
}

static void check_run(sheaf_backend_sched_t s, sheaf_backend_t first, sheaf_backend_t second,
                      struct tf_forced f) {
    cr_assert(tf_run(s, first, second, &f, want), "op %d, lot %u", (int)f.op, f.seed);
}

Test(sched, one_backend_is_one_split) {
    sheaf_backend_sched_t s = sheaf_backend_sched_new(&cpu, NULL, 1, 256, false, false);
    check_run(s, cpu, cpu, (struct tf_forced){SHEAF_OP_COUNT, 0, 1, NULL});
    cr_assert_eq(sheaf_backend_sched_get_n_splits(s), 1);
    sheaf_backend_sched_free(s);
}

Test(sched, weights_draw_the_nodes) {
    sheaf_backend_sched_t s = make(false, false);
    struct tf_model m;
    struct tf_graph g;
    cr_assert(tf_load(&m, &a.backend, &b.backend));
    cr_assert(tf_graph(&g, &m, 2));
    cr_assert_eq(sheaf_backend_sched_split_graph(s, g.graph), SHEAF_STATUS_SUCCESS);
    /* layer 0 on A, layer 1 on B, the logits on A again with what comes after them; inputs are the
     * CPU's, and views follow */
    cr_assert_eq(sheaf_backend_sched_get_n_splits(s), 3);
    cr_assert_eq(sheaf_backend_sched_get_tensor_backend(s, g.mid), &a.backend);
    cr_assert_eq(sheaf_backend_sched_get_tensor_backend(s, g.logits), &a.backend);
    cr_assert_eq(sheaf_backend_sched_get_tensor_backend(s, g.top), &a.backend);
    cr_assert_eq(sheaf_backend_sched_get_tensor_backend(s, g.x), cpu);
    cr_assert_str_eq(sheaf_backend_sched_get_tensor_cause(s, g.logits), "weights");
    cr_assert_str_eq(sheaf_backend_sched_get_tensor_cause(s, g.top), "follows");
    cr_assert_str_eq(sheaf_backend_sched_get_tensor_cause(s, g.x), "input");
    cr_assert_null(g.logits->buffer, "split_graph places nothing");
    sheaf_free(g.ctx);
    tf_unload(&m);
    check_run(s, &a.backend, &b.backend, (struct tf_forced){SHEAF_OP_COUNT, 0, 3, NULL});
    cr_assert_gt(a.n_graphs, 0);
    cr_assert_gt(b.n_graphs, 0);
    sheaf_backend_sched_free(s);
}

Test(sched, refused_ops_go_elsewhere) {
    const enum sheaf_op ops[] = {SHEAF_OP_FLASH_ATTN_EXT, SHEAF_OP_GLU, SHEAF_OP_SET_ROWS,
                                 SHEAF_OP_MUL_MAT, SHEAF_OP_ROPE};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        sheaf_backend_sched_t s = make(false, false);
        a.refuses = b.refuses = ops[i];
        check_run(s, &a.backend, &b.backend, (struct tf_forced){SHEAF_OP_COUNT, 0, 4, NULL});
        sheaf_backend_sched_free(s);
    }
}

Test(sched, assigned_by_the_user) {
    sheaf_backend_sched_t s = make(false, false);
    const enum sheaf_op ops[] = {SHEAF_OP_ADD, SHEAF_OP_SET_ROWS, SHEAF_OP_RMS_NORM};
    for (size_t i = 0; i < 3; i++)
        check_run(s, &a.backend, &a.backend, (struct tf_forced){ops[i], 0, 6, NULL});
    sheaf_backend_sched_free(s);
}

/* Operands with memory that are no weights, and nothing beside the node that has a backend. */
Test(sched, where_most_operands_lie) {
    sheaf_backend_sched_t s = make(false, false);
    const struct sheaf_init_params params = {
        .mem_size = 8 * sheaf_tensor_overhead() + sheaf_graph_overhead(), .no_alloc = true};
    struct sheaf_context *on[2] = {sheaf_init(params), sheaf_init(params)};
    struct sheaf_tensor *x[2][2];
    sheaf_backend_buffer_t buffer[2];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) x[i][k] = sheaf_new_tensor_1d(on[i], SHEAF_TYPE_F32, 4);
        cr_assert(!sheaf_backend_alloc_ctx_tensors(on[i], all[i], &buffer[i]));
    }
    for (int i = 0; i < 4; i++) { /* both on A, on B and A, on A and B, both on B */
        struct sheaf_context *c = sheaf_init(params);
        struct sheaf_cgraph *g = sheaf_new_graph(c);
        struct sheaf_tensor *y = sheaf_add(c, x[i & 1][0], x[i >> 1][1]);
        cr_assert(!sheaf_build_forward_expand(g, y));
        cr_assert(!sheaf_backend_sched_reset(s));
        cr_assert(!sheaf_backend_sched_split_graph(s, g), "%s", sheaf_last_error());
        cr_expect_eq(sheaf_backend_sched_get_tensor_backend(s, y), all[i == 3], "case %d", i);
        cr_expect_str_eq(sheaf_backend_sched_get_tensor_cause(s, y), "most operands usable");
        sheaf_free(c);
    }
    sheaf_backend_sched_free(s);
    for (int i = 0; i < 2; i++) {
        sheaf_backend_buffer_free(buffer[i]);
        sheaf_free(on[i]);
    }
}

/* The backend of lowest priority, too, has what comes after its nodes and before them: alone, these
 * nodes would be A's, which can use as many of their operands. */
Test(sched, the_last_backend_keeps_its_neighbours) {
    sheaf_backend_sched_t s = make(false, false);
    const struct sheaf_init_params params = {
        .mem_size = 16 * sheaf_tensor_overhead() + sheaf_graph_overhead(), .no_alloc = true};
    struct sheaf_context *leaves = sheaf_init(params), *c = sheaf_init(params);
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *p = sheaf_new_tensor_1d(leaves, SHEAF_TYPE_F32, 4); /* on A, no weight */
    cr_assert(!sheaf_backend_alloc_ctx_tensors(leaves, &a.backend, &buffer));
    struct sheaf_tensor *x = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, 4);
    sheaf_set_input(x);
    struct sheaf_tensor *before = sheaf_add(c, p, x), *own = sheaf_sqr(c, before);
    struct sheaf_tensor *after = sheaf_add(c, p, own);
    struct sheaf_cgraph *g = sheaf_new_graph(c);
    cr_assert(!sheaf_build_forward_expand(g, after));
    cr_assert(!sheaf_backend_sched_set_tensor_backend(s, own, cpu));
    cr_assert(!sheaf_backend_sched_split_graph(s, g), "%s", sheaf_last_error());
    cr_expect_eq(sheaf_backend_sched_get_tensor_backend(s, before), cpu);
    cr_expect_str_eq(sheaf_backend_sched_get_tensor_cause(s, before), "comes before");
    cr_expect_eq(sheaf_backend_sched_get_tensor_backend(s, after), cpu);
    cr_expect_str_eq(sheaf_backend_sched_get_tensor_cause(s, after), "follows");
    sheaf_backend_sched_free(s);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(leaves);
    sheaf_free(c);
}

static bool takes_any_memory(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    (void)dev;
    (void)buft;
    return true;
}

/* B computes in A's memory and reads its own, too. A node that comes after one of B's goes to A, the
 * better of the two, unless A cannot use one of its operands, whichever that is. */
Test(sched, a_better_backend_with_the_same_memory) {
    struct sheaf_backend_device_i takes_all = *b.dev.iface;
    takes_all.supports_buft = takes_any_memory;
    b.dev.iface = &takes_all;
    sheaf_backend_buffer_type_t bufts[] = {&a.buft, &a.buft,
                                           sheaf_backend_get_default_buffer_type(cpu)};
    sheaf_backend_sched_t s = sheaf_backend_sched_new(all, bufts, 3, 64, false, false);
    const struct sheaf_init_params params = {
        .mem_size = 16 * sheaf_tensor_overhead() + sheaf_graph_overhead(), .no_alloc = true};
    struct sheaf_context *leaves = sheaf_init(params), *c = sheaf_init(params);
    sheaf_backend_buffer_t buffer;
    cr_assert(s, "%s", sheaf_last_error());
    struct sheaf_tensor *w = sheaf_new_tensor_1d(leaves, SHEAF_TYPE_F32, 4);
    cr_assert(!sheaf_backend_alloc_ctx_tensors(leaves, &b.backend, &buffer));
    struct sheaf_tensor *x = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, 4);
    struct sheaf_tensor *first = sheaf_sqr(c, x), *moved = sheaf_sqr(c, first);
    struct sheaf_tensor *left = sheaf_add(c, w, moved), *right = sheaf_add(c, left, w);
    struct sheaf_cgraph *g = sheaf_new_graph(c);
    cr_assert(!sheaf_build_forward_expand(g, right));
    cr_assert(!sheaf_backend_sched_set_tensor_backend(s, first, &b.backend));
    cr_assert(!sheaf_backend_sched_split_graph(s, g), "%s", sheaf_last_error());
    cr_expect_eq(sheaf_backend_sched_get_tensor_backend(s, first), &b.backend);
    cr_expect_eq(sheaf_backend_sched_get_tensor_backend(s, moved), &a.backend);
    cr_expect_str_eq(sheaf_backend_sched_get_tensor_cause(s, moved),
                     "a better backend with the same memory");
    cr_expect_eq(sheaf_backend_sched_get_tensor_backend(s, left), &b.backend);
    cr_expect_eq(sheaf_backend_sched_get_tensor_backend(s, right), &b.backend);
    cr_expect_str_eq(sheaf_backend_sched_get_tensor_cause(s, right), "follows");
    sheaf_backend_sched_free(s);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(leaves);
    sheaf_free(c);
}

static void lots(bool parallel) {
    sheaf_backend_sched_t s = make(parallel, false);
    for (unsigned seed = 1; seed <= 24; seed++)
        check_run(s, all[seed % 3], all[seed / 3 % 3],
                  (struct tf_forced){SHEAF_OP_COUNT, seed, 10, seed % 5 ? NULL : tf_watch});
    sheaf_backend_sched_free(s);
}
Test(sched, assigned_by_lot) { lots(false); }
Test(sched, assigned_by_lot_parallel) { lots(true); }

Test(sched, errors) {
    sheaf_backend_sched_t s = make(false, false);
    struct tf_model m;
    struct tf_graph g;
    cr_assert(tf_load(&m, &a.backend, &a.backend));
    cr_assert(tf_graph(&g, &m, 2));
    cr_assert_eq(sheaf_backend_sched_set_tensor_backend(s, g.top, NULL), SHEAF_STATUS_INVALID);
    a.refuses = SHEAF_OP_ARGMAX;
    cr_assert_eq(sheaf_backend_sched_set_tensor_backend(s, g.top, &a.backend),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_sched_alloc_graph(s, g.graph), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "'top'"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_sched_reset(s), SHEAF_STATUS_SUCCESS);
    sheaf_backend_sched_t alone = sheaf_backend_sched_new(all, NULL, 1, 16, false, false);
    cr_assert_eq(sheaf_backend_sched_alloc_graph(alone, g.graph), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "ARGMAX"), "%s", sheaf_last_error());
    sheaf_backend_sched_free(alone);
    a.fails = true;
    cr_assert_eq(sheaf_backend_sched_graph_compute(s, g.graph), SHEAF_STATUS_FAILED);
    cr_assert(strstr(sheaf_last_error(), "under water"), "%s", sheaf_last_error());
    cr_assert_null(sheaf_backend_sched_new(all, NULL, 0, 16, false, false));
    cr_assert_null(sheaf_backend_sched_new((sheaf_backend_t[]){cpu, NULL}, NULL, 2, 1, 0, 0));
    setenv("SHEAF_SCHED_DEBUG", "3", 1);
    cr_assert_null(sheaf_backend_sched_new(all, NULL, 3, 16, false, false));
    cr_assert(strstr(sheaf_last_error(), "SHEAF_SCHED_DEBUG"), "%s", sheaf_last_error());
    sheaf_backend_sched_free(s);
    sheaf_free(g.ctx);
    tf_unload(&m);
}

Test(sched, counts) {
    sheaf_backend_sched_t s = make(true, false), one = make(false, false);
    cr_assert_eq(sheaf_backend_sched_get_n_backends(s), 3);
    cr_assert_eq(sheaf_backend_sched_get_backend(s, 1), &b.backend);
    cr_assert_null(sheaf_backend_sched_get_backend(s, 3));
    cr_assert_eq(sheaf_backend_sched_get_n_copies(s), SHEAF_SCHED_MAX_COPIES);
    cr_assert_eq(sheaf_backend_sched_get_n_copies(one), 1);
    cr_assert_eq(sheaf_backend_sched_get_buffer_type(s, &a.backend), &a.buft);
    cr_assert_eq(sheaf_backend_sched_get_buffer_size(s, &a.backend), 0);
    sheaf_backend_sched_free(s);
    sheaf_backend_sched_free(one);
}

/* ---- the limit on copies ---- */

/* A sum on A of 2 x n tensors that lie on the CPU, through a chain of n additions each of which
 * reads two of them. */
Test(sched, splits_that_need_too_many_copies) {
    enum { N = 40 };
    struct sheaf_context *c = sheaf_init((struct sheaf_init_params){
        .mem_size = 4 * N * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(4 * N),
        .no_alloc = true});
    struct sheaf_cgraph *g = sheaf_new_graph_custom(c, 4 * N);
    struct sheaf_tensor *in[2 * N], *sum = NULL;
    sheaf_backend_sched_t s = make(false, false);
    for (int i = 0; i < 2 * N; i++)
        sheaf_set_input(in[i] = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, 4));
    for (int i = 0; i < N; i++) {
        struct sheaf_tensor *two = sheaf_add(c, in[2 * i], in[2 * i + 1]);
        cr_assert(!sheaf_backend_sched_set_tensor_backend(s, two, &a.backend));
        sum = sum ? sheaf_add(c, sum, two) : two;
    }
    sheaf_set_output(sum);
    cr_assert(!sheaf_build_forward_expand(g, sum));
    cr_assert_eq(sheaf_backend_sched_alloc_graph(s, g), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_sched_get_n_splits(s), 3, "80 copies, 30 a split");
    for (int i = 0; i < 2 * N; i++) {
        const float v[4] = {(float)i, 1, 2, 3};
        cr_assert(!sheaf_backend_tensor_set(in[i], v, 0, sizeof v));
    }
    cr_assert_eq(sheaf_backend_sched_graph_compute(s, g), SHEAF_STATUS_SUCCESS);
    float v[4];
    cr_assert(!sheaf_backend_tensor_get(sum, v, 0, sizeof v));
    cr_assert_eq(v[0], 2 * N * (2 * N - 1) / 2);
    cr_assert_eq(v[3], 3 * 2 * N);
    cr_assert_eq(a.n_graphs, 3);
    sheaf_backend_sched_free(s);
    sheaf_free(c);
}

/* ---- offload ---- */

Test(sched, offload) {
    for (int on = 0; on < 2; on++) {
        sheaf_backend_sched_t s = make(false, on);
        struct tf_model m;
        struct tf_graph g;
        a.offloads = SHEAF_OP_MUL_MAT;
        cr_assert(tf_load(&m, cpu, cpu));
        cr_assert(tf_graph(&g, &m, 2));
        cr_assert_eq(sheaf_backend_sched_split_graph(s, g.graph), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_sched_get_tensor_backend(s, g.logits), on ? &a.backend : cpu);
        cr_assert_str_eq(sheaf_backend_sched_get_tensor_cause(s, g.logits),
                         on ? "offloaded from its weights" : "weights");
        sheaf_free(g.ctx);
        tf_unload(&m);
        check_run(s, cpu, cpu, (struct tf_forced){SHEAF_OP_COUNT, 0, on ? 5 : 1, NULL});
        sheaf_backend_sched_free(s);
    }
}

/* ---- the callback ---- */

struct watch {
    int asked, seen, stop_at;
    bool wants_all;
    struct sheaf_tensor *pending;
};

static bool watch(struct sheaf_tensor *t, bool ask, void *user) {
    struct watch *w = user;
    if (ask) {
        w->asked++;
        const bool wanted = w->wants_all || t->op == SHEAF_OP_ADD;
        if (wanted) w->pending = t;
        return wanted;
    }
    cr_assert_eq(t, w->pending, "observed what was asked for last");
    float v;
    cr_assert(!sheaf_backend_tensor_get(t, &v, 0, sizeof v));
    cr_assert(isfinite(v) || t->type != SHEAF_TYPE_F32);
    return ++w->seen != w->stop_at;
}

Test(sched, callback_asks_observes_cancels) {
    sheaf_backend_sched_t s = make(false, false);
    struct tf_model m;
    struct tf_graph g;
    cr_assert(tf_load(&m, &a.backend, &b.backend));
    cr_assert(tf_graph(&g, &m, 2));
    cr_assert(!sheaf_backend_sched_alloc_graph(s, g.graph));
    int n_nodes = 0, n_adds = 0;
    for (int i = 0; i < sheaf_graph_n_nodes(g.graph); i++) {
        const enum sheaf_op op = sheaf_graph_node(g.graph, i)->op;
        n_nodes += !(op == SHEAF_OP_VIEW || op == SHEAF_OP_RESHAPE || op == SHEAF_OP_PERMUTE);
        n_adds += op == SHEAF_OP_ADD;
    }
    struct watch w = {0};
    sheaf_backend_sched_set_eval_callback(s, watch, &w);
    cr_assert(tf_set_inputs(&g, 0, 1000));
    cr_assert_eq(sheaf_backend_sched_graph_compute(s, g.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(w.asked, n_nodes);
    cr_assert_eq(w.seen, n_adds);
    w = (struct watch){.stop_at = 5, .wants_all = true};
    cr_assert_eq(sheaf_backend_sched_graph_compute(s, g.graph), SHEAF_STATUS_ABORTED);
    cr_assert_eq(w.seen, 5);
    sheaf_backend_sched_set_eval_callback(s, NULL, NULL);
    cr_assert_eq(sheaf_backend_sched_graph_compute(s, g.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(w.seen, 5);
    sheaf_backend_sched_free(s);
    sheaf_free(g.ctx);
    tf_unload(&m);
}

/* ---- measure once, compute many ---- */

static void measured(bool parallel) {
    sheaf_backend_sched_t s = make(parallel, false);
    struct tf_model m;
    struct tf_graph g;
    cr_assert(tf_load(&m, &a.backend, &b.backend));
    b.refuses = SHEAF_OP_GLU;
    cr_assert(tf_graph(&g, &m, TF_TOKENS));
    cr_assert_eq(sheaf_backend_sched_reserve(s, g.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_null(g.logits->buffer, "a measure graph gets no memory");
    sheaf_free(g.ctx);
    size_t size[3];
    for (int i = 0; i < 3; i++) {
        size[i] = sheaf_backend_sched_get_buffer_size(s, all[i]);
        cr_assert_gt(size[i], 0);
    }
    const int buffers = a.n_buffers + b.n_buffers;
    struct tf_graph graphs[12];
    for (int i = 0; i < 12; i++) cr_assert(tf_graph(&graphs[i], &m, 1 + i % TF_TOKENS));
    for (int round = 0; round < 2; round++) { /* the first: the backends' own working memory */
        const size_t before = n_mallocs;
        for (int i = 0; i < 12; i++) {
            cr_assert(!sheaf_backend_sched_reset(s));
            cr_assert(!sheaf_backend_sched_alloc_graph(s, graphs[i].graph));
            cr_assert(tf_set_inputs(&graphs[i], i, 5));
            cr_assert(!sheaf_backend_sched_graph_compute(s, graphs[i].graph));
            if (round == 1) cr_assert_eq(n_mallocs, before, "graph %d", i);
        }
        if (round == 1 && !COUNTS_MALLOC)
            printf("only buffers are counted: a sanitizer has malloc\n");
    }
    cr_assert_eq(a.n_buffers + b.n_buffers, buffers);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf_backend_sched_get_buffer_size(s, all[i]), size[i]);
    for (int i = 0; i < 12; i++) sheaf_free(graphs[i].ctx);
    sheaf_backend_sched_free(s);
    tf_unload(&m);
}
Test(sched, no_allocation_after_reserve) { measured(false); }
Test(sched, no_allocation_after_reserve_parallel) { measured(true); }

/* ---- memory that a graph reads, writes and reads again ---- */

/* x: an input, written in place by one node; before: read by another backend before that, too. */
static void written_between(bool parallel, bool before) {
    enum { N = 8 };
    sheaf_backend_sched_t s = make(parallel, false);
    struct sheaf_context *c = sheaf_init((struct sheaf_init_params){
        .mem_size = 16 * sheaf_tensor_overhead() + sheaf_graph_overhead(), .no_alloc = true});
    struct sheaf_tensor *x = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, N);
    sheaf_set_input(x);
    struct sheaf_tensor *first = before ? sheaf_sqr(c, x) : NULL;
    struct sheaf_tensor *y = sheaf_in_place(sheaf_scale(c, x, 2.0f), 0);
    struct sheaf_tensor *last = sheaf_sqr(c, y);
    struct sheaf_cgraph *g = sheaf_new_graph(c);
    struct sheaf_tensor *const order[] = {first, y, last};
    for (int i = 0; i < 3; i++) {
        if (!order[i]) continue;
        if (i != 1) sheaf_set_output(order[i]);
        cr_assert(!sheaf_build_forward_expand(g, order[i]));
        cr_assert(!sheaf_backend_sched_set_tensor_backend(s, order[i],
                                                          before && i != 1 ? &a.backend : cpu));
    }
    for (int turn = 0; turn < 3; turn++) {
        const float set[N] = {3, 3, 3, 3, 3, 3, 3, 3};
        float got[N];
        cr_assert(!sheaf_backend_sched_alloc_graph(s, g), "%s", sheaf_last_error());
        cr_assert(!sheaf_backend_tensor_set(x, set, 0, sizeof set));
        cr_assert(!sheaf_backend_sched_graph_compute(s, g), "%s", sheaf_last_error());
        cr_assert(!sheaf_backend_tensor_get(last, got, 0, sizeof got));
        cr_expect_eq(got[N - 1], 36.0f, "turn %d: %g", turn, (double)got[N - 1]);
        if (!first) continue;
        cr_assert(!sheaf_backend_tensor_get(first, got, 0, sizeof got));
        cr_expect_eq(got[N - 1], 9.0f, "turn %d: %g", turn, (double)got[N - 1]);
    }
    sheaf_backend_sched_free(s);
    sheaf_free(c);
}
Test(sched, an_input_that_is_written) { written_between(false, false); }
Test(sched, an_input_that_is_written_parallel) { written_between(true, false); }
Test(sched, copies_of_what_is_written_between) { written_between(false, true); }
Test(sched, copies_of_what_is_written_between_parallel) { written_between(true, true); }

/* ---- several CPU backends with queues, several graphs in flight ---- */

Test(sched, graphs_in_flight) {
    enum { GRAPHS = 9 };
    sheaf_backend_t cpus[2];
    struct tf_model m;
    struct tf_graph g[GRAPHS];
    struct tf_result r;
    cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &cpus[0]));
    cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &cpus[1]));
    for (int mode = 0; mode < 3; mode++) { /* two queues; an island between; one slot */
        sheaf_backend_t three[] = {cpus[0], mode == 1 ? &a.backend : cpus[1], cpu};
        sheaf_backend_sched_t s = sheaf_backend_sched_new(three, NULL, 3, 64, mode < 2, false);
        cr_assert(tf_load(&m, three[0], three[1]));
        for (int i = 0; i < GRAPHS; i++) {
            cr_assert(tf_graph(&g[i], &m, TF_TOKENS));
            cr_assert(!sheaf_backend_sched_reset(s));
            for (int k = 0; k < sheaf_graph_n_nodes(g[i].graph); k++) {
                struct sheaf_tensor *t = sheaf_graph_node(g[i].graph, k);
                cr_assert(!sheaf_backend_sched_set_tensor_backend(s, t, three[k / 10 % 2]));
            }
            cr_assert(!sheaf_backend_sched_alloc_graph(s, g[i].graph), "%s", sheaf_last_error());
            cr_assert(tf_set_inputs(&g[i], 0, 1000));
            cr_assert(!sheaf_backend_sched_graph_compute_async(s, g[i].graph), "%s",
                      sheaf_last_error());
        }
        cr_assert(!sheaf_backend_sched_synchronize(s), "%s", sheaf_last_error());
        cr_assert(tf_results(&g[GRAPHS - 1], &r));
        cr_assert(tf_equal(&r, &want[0]), "mode %d", mode);
        for (int i = 0; i < GRAPHS; i++) sheaf_free(g[i].ctx);
        sheaf_backend_sched_free(s);
        tf_unload(&m);
    }
    sheaf_backend_free(cpus[0]);
    sheaf_backend_free(cpus[1]);
}

/* Two backends on one kind of memory: nothing is copied, and the user's assignment holds. */
Test(sched, shared_memory_needs_no_copies) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    sheaf_backend_t two[2];
    for (int i = 0; i < 2; i++)
        cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &two[i]));
    sheaf_backend_sched_t s = sheaf_backend_sched_new(two, NULL, 2, 64, false, false);
    check_run(s, two[0], two[1], (struct tf_forced){SHEAF_OP_MUL_MAT, 0, 8, NULL});
    for (unsigned seed = 1; seed < 6; seed++)
        check_run(s, two[0], two[1], (struct tf_forced){SHEAF_OP_COUNT, seed, 8, NULL});
    sheaf_backend_sched_free(s);
    sheaf_backend_free(two[0]);
    sheaf_backend_free(two[1]);
}

/* ---- when memory may be used again ---- */

enum { REUSE_N = 4096, REUSE_WORK = 384, REUSE_STEPS = 6 };

struct reuse {
    struct sheaf_context *ctx, *weights;
    struct sheaf_tensor *w; /* on A: 3 */
    struct sheaf_cgraph *graph;
    sheaf_backend_buffer_t buffer;
    sheaf_backend_sched_t sched;
};

static void reuse_up(struct reuse *u, sheaf_backend_t *backends) {
    static float three[REUSE_N];
    for (int i = 0; i < REUSE_N; i++) three[i] = 3;
    u->ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = 32 * sheaf_tensor_overhead() + sheaf_graph_overhead(), .no_alloc = true});
    u->weights = sheaf_init(
        (struct sheaf_init_params){.mem_size = 2 * sheaf_tensor_overhead(), .no_alloc = true});
    u->w = sheaf_new_tensor_1d(u->weights, SHEAF_TYPE_F32, REUSE_N);
    cr_assert(!sheaf_backend_alloc_ctx_tensors(u->weights, &a.backend, &u->buffer));
    sheaf_backend_buffer_set_usage(u->buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    cr_assert(!sheaf_backend_tensor_set(u->w, three, 0, sizeof three));
    u->graph = sheaf_new_graph(u->ctx);
    u->sched = sheaf_backend_sched_new(backends, NULL, 3, 64, false, false);
    cr_assert(u->sched, "%s", sheaf_last_error());
}

static void reuse_down(struct reuse *u) {
    sheaf_backend_sched_free(u->sched);
    sheaf_backend_buffer_free(u->buffer);
    sheaf_free(u->weights);
    sheaf_free(u->ctx);
}

static struct sheaf_tensor *reuse_node(struct reuse *u, struct sheaf_tensor *t, sheaf_backend_t on,
                                       bool output) {
    if (output) sheaf_set_output(t);
    cr_assert(!sheaf_build_forward_expand(u->graph, t));
    cr_assert(!sheaf_backend_sched_set_tensor_backend(u->sched, t, on));
    return t;
}

static void reuse_check(const struct sheaf_tensor *t, float value) {
    float got[2];
    cr_assert(!sheaf_backend_tensor_get(t, &got[0], 0, sizeof got[0]));
    cr_assert(
        !sheaf_backend_tensor_get(t, &got[1], sheaf_nbytes(t) - sizeof got[1], sizeof got[1]));
    cr_expect(got[0] == value && got[1] == value, "'%s': %g ... %g, not %g", t->name,
              (double)got[0], (double)got[1], (double)value);
}

/* o is looked at by two views. The first is copied to B with what comes before it in B's split, so
 * it is read before it is listed; that ends one view of o, not two. */
Test(sched, a_view_copied_early_ends_once) {
    struct reuse u;
    reuse_up(&u, all);
    struct sheaf_context *c = u.ctx;
    struct sheaf_tensor *o = reuse_node(&u, sheaf_scale(c, u.w, 2), &a.backend, false);
    struct sheaf_tensor *n = reuse_node(&u, sheaf_scale(c, u.w, 1), &b.backend, false);
    struct sheaf_tensor *early = sheaf_view_1d(c, o, REUSE_N, 0);
    struct sheaf_tensor *sum = reuse_node(&u, sheaf_add(c, n, early), &b.backend, true);
    struct sheaf_tensor *late = reuse_node(&u, sheaf_view_1d(c, o, REUSE_N, 0), &a.backend, false);
    struct sheaf_tensor *other = reuse_node(&u, sheaf_scale(c, u.w, 5), &a.backend, true);
    struct sheaf_tensor *last = reuse_node(&u, sheaf_scale(c, late, 1), &a.backend, true);
    cr_assert(!sheaf_backend_sched_graph_compute(u.sched, u.graph), "%s", sheaf_last_error());
    reuse_check(sheaf_set_name(sum, "sum"), 9);
    reuse_check(sheaf_set_name(other, "other"), 15);
    reuse_check(sheaf_set_name(last, "last"), 6);
    reuse_down(&u);
}

/* `reader` has much to do before it reads x, an input that lies in memory of the CPU, or a result
 * of its own. After that the memory is free, and a copy for the CPU comes to lie there: it must not
 * be filled before x has been read. */
static void filled_after_reader(sheaf_backend_t reader, bool input) {
    static float ones[REUSE_N], zeros[REUSE_WORK * REUSE_WORK];
    sheaf_backend_t three[] = {reader, &a.backend, cpu};
    struct reuse u;
    for (int i = 0; i < REUSE_N; i++) ones[i] = 1;
    reuse_up(&u, three);
    struct sheaf_context *c = u.ctx;
    struct sheaf_tensor *in = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, REUSE_N), *x = in;
    struct sheaf_tensor *work = sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, REUSE_WORK, REUSE_WORK);
    sheaf_set_input(in);
    sheaf_set_input(work);
    sheaf_set_output(work); /* its memory and that of `in` shall not become one */
    cr_assert(!sheaf_build_forward_expand(u.graph, in));
    struct sheaf_tensor *y = reuse_node(&u, sheaf_scale(c, u.w, 2), &a.backend, false), *p = work;
    if (!input) x = reuse_node(&u, sheaf_scale(c, in, 1), reader, false);
    for (int i = 0; i < REUSE_STEPS; i++)
        p = reuse_node(&u, sheaf_mul_mat(c, work, p), reader, i + 1 == REUSE_STEPS);
    struct sheaf_tensor *r = reuse_node(&u, sheaf_concat(c, x, x, 0), reader, true);
    struct sheaf_tensor *z = reuse_node(&u, sheaf_scale(c, y, 2), cpu, true);
    cr_assert(!sheaf_backend_sched_alloc_graph(u.sched, u.graph), "%s", sheaf_last_error());
    cr_assert_eq(z->data, x->data, "the copy lies elsewhere: the test shows nothing");
    cr_assert(!sheaf_backend_tensor_set(in, ones, 0, sizeof ones));
    cr_assert(!sheaf_backend_tensor_set(work, zeros, 0, sizeof zeros));
    cr_assert(!sheaf_backend_sched_graph_compute(u.sched, u.graph), "%s", sheaf_last_error());
    reuse_check(sheaf_set_name(r, "r"), 1);
    reuse_check(sheaf_set_name(z, "z"), 12);
    reuse_down(&u);
}

Test(sched, copies_wait_for_readers_in_shared_memory) {
    sheaf_backend_t reader;
    cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &reader));
    filled_after_reader(reader, true);
    filled_after_reader(reader, false);
    sheaf_backend_free(reader);
}

static void up_two_devices(void) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    up();
}

TestSuite(sched_devices, .init = up_two_devices, .fini = down);
Test(sched_devices, copies_wait_for_readers_of_inputs) {
    sheaf_backend_t reader;
    if (sheaf_backend_init_by_name("CPU1", NULL, &reader))
        cr_skip_test("one CPU device: %s", sheaf_last_error());
    filled_after_reader(reader, true);
    sheaf_backend_free(reader);
}

/* ---- writes into memory of another backend ---- */

enum { SW_0 = 12, SW_1 = 10, SW_2 = 2, SW_N = SW_0 * SW_1 * SW_2 };

/* A part of `w`, which is SW_0 x SW_1 x SW_2: rows with gaps, planes with gaps, elements apart, all
 * three, both with four dimensions, and one that is dense. */
static struct sheaf_tensor *part(struct sheaf_context *c, struct sheaf_tensor *w, int kind) {
    const size_t e = w->nb[0], r = w->nb[1], p = w->nb[2];
    switch (kind) {
    case 0:
        return sheaf_view_2d(c, w, 5, 4, r, 2 * r + 3 * e);
    case 1:
        return sheaf_view_3d(c, w, 5, 4, 2, r, p, 1 * r + 2 * e);
    case 2:
        return sheaf_transpose(c, sheaf_view_2d(c, w, 5, 4, r, 2 * e));
    case 3:
        return sheaf_permute(c, sheaf_view_3d(c, w, 4, 3, 2, 2 * r, p, 1 * e), 2, 1, 0, 3);
    case 4:
        return sheaf_view_4d(c, w, 5, 2, 2, 2, r, 3 * r, p, 2 * e);
    case 5:
        return sheaf_transpose(c, sheaf_view_4d(c, w, 5, 2, 2, 2, r, 3 * r, p, 2 * e));
    default:
        return sheaf_view_2d(c, w, SW_0, 4, r, 3 * r);
    }
}

/* x goes into a part of w on `writer`, what was written is read where it lies. The same by hand. */
static void strided_write(sheaf_backend_t home, sheaf_backend_t writer, enum sheaf_type type,
                          int kind, sheaf_backend_sched_t s) {
    struct sheaf_init_params params = {.mem_size = 32 * sheaf_tensor_overhead() +
                                                   sheaf_graph_overhead_custom(32),
                                       .no_alloc = true};
    struct sheaf_context *cw = sheaf_init(params), *c = sheaf_init(params);
    struct sheaf_tensor *w = sheaf_new_tensor_3d(cw, type, SW_0, SW_1, SW_2);
    sheaf_backend_buffer_t buffer;
    cr_assert(!sheaf_backend_alloc_ctx_tensors(cw, home, &buffer));
    sheaf_backend_buffer_set_usage(buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    float start[SW_N], in[SW_N], got[SW_N];
    uint8_t raw[SW_N * sizeof(float)];
    for (int i = 0; i < SW_N; i++) start[i] = (float)i;
    cr_assert(!sheaf_from_float(type, start, raw, SW_N));
    cr_assert(!sheaf_backend_tensor_set(w, raw, 0, sheaf_nbytes(w)));

    struct sheaf_cgraph *g = sheaf_new_graph_custom(c, 32);
    struct sheaf_tensor *into = part(c, w, kind);
    struct sheaf_tensor *x = sheaf_new_tensor(c, SHEAF_TYPE_F32, 4, into->ne);
    sheaf_set_input(sheaf_set_name(x, "x"));
    struct sheaf_tensor *write = sheaf_set_name(sheaf_cpy(c, x, into), "write");
    struct sheaf_tensor *after = sheaf_cont(c, write);
    sheaf_set_output(after);
    cr_assert(!sheaf_build_forward_expand(g, after), "%s", sheaf_last_error());
    cr_assert(!sheaf_backend_sched_reset(s));
    cr_assert(!sheaf_backend_sched_set_tensor_backend(s, write, writer));
    cr_assert(!sheaf_backend_sched_set_tensor_backend(s, after, home));
    cr_assert(!sheaf_backend_sched_alloc_graph(s, g), "kind %d: %s", kind, sheaf_last_error());
    cr_assert_eq(sheaf_backend_sched_get_tensor_backend(s, write), writer);
    const int64_t n = sheaf_nelements(x);
    for (int64_t i = 0; i < n; i++) in[i] = (float)(1000 + i);
    for (int round = 0; round < 2; round++) { /* the second finds what the first wrote */
        for (int64_t i = 0; i < n; i++) in[i] += (float)(8 * round);
        cr_assert(!sheaf_backend_tensor_set(x, in, 0, sheaf_nbytes(x)));
        cr_assert(!sheaf_backend_sched_graph_compute(s, g), "%s", sheaf_last_error());
        for (int64_t i = 0; i < n; i++) {
            const int64_t i0 = i % x->ne[0], i1 = i / x->ne[0] % x->ne[1],
                          i2 = i / x->ne[0] / x->ne[1] % x->ne[2],
                          i3 = i / x->ne[0] / x->ne[1] / x->ne[2];
            const size_t at = into->view_offs + (size_t)i0 * into->nb[0] +
                              (size_t)i1 * into->nb[1] + (size_t)i2 * into->nb[2] +
                              (size_t)i3 * into->nb[3];
            start[at / w->nb[0]] = in[i];
        }
        cr_assert(!sheaf_backend_tensor_get(w, raw, 0, sheaf_nbytes(w)));
        cr_assert(!sheaf_to_float(type, raw, got, SW_N));
        for (int i = 0; i < SW_N; i++)
            cr_assert_eq(got[i], start[i], "kind %d, type %s, element %d: %g, not %g", kind,
                         sheaf_type_name(type), i, (double)got[i], (double)start[i]);
        cr_assert(!sheaf_backend_tensor_get(after, raw, 0, sheaf_nbytes(after)));
        cr_assert(!sheaf_to_float(type, raw, got, n));
        for (int64_t i = 0; i < n; i++) cr_assert_eq(got[i], in[i], "kind %d, read back", kind);
    }
    sheaf_free(c);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(cw);
}

static void strided_writes(bool parallel) {
    sheaf_backend_sched_t s = make(parallel, false);
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16};
    for (int kind = 0; kind < 7; kind++) {
        for (int t = 0; t < 2; t++) {
            strided_write(all[0], all[1], types[t], kind, s);
            strided_write(all[0], all[2], types[t], kind, s);
            strided_write(all[2], all[0], types[t], kind, s);
        }
    }
    sheaf_backend_sched_free(s);
}
Test(sched, strided_writes_into_memory_of_another) { strided_writes(false); }
Test(sched, strided_writes_into_memory_of_another_parallel) { strided_writes(true); }

/* ---- the dump ---- */

Test(sched, dump) {
    char path[] = "/tmp/sheaf-sched-XXXXXX", text[32768] = "";
    const int fd = mkstemp(path), saved = dup(2);
    setenv("SHEAF_SCHED_DEBUG", "2", 1);
    sheaf_backend_sched_t s = make(false, false);
    struct tf_model m;
    struct tf_graph g;
    cr_assert(tf_load(&m, &a.backend, &b.backend));
    cr_assert(tf_graph(&g, &m, 2));
    cr_assert(!sheaf_backend_sched_set_tensor_backend(s, g.top, cpu));
    fflush(stderr);
    dup2(fd, 2);
    const enum sheaf_status st = sheaf_backend_sched_alloc_graph(s, g.graph);
    fflush(stderr);
    dup2(saved, 2);
    cr_assert_eq(st, SHEAF_STATUS_SUCCESS);
    cr_assert_gt(pread(fd, text, sizeof text - 1, 0), 0);
    unlink(path);
    const char *const wanted[] = {"4 splits",
                                  "split 1: B, ",
                                  "'mid'",
                                  "'logits' on A: weights 'out0'",
                                  "'top' on CPU0: by the user",
                                  "reads 'x' on CPU0: input"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        cr_assert(strstr(text, wanted[i]), "wanted \"%s\":\n%s", wanted[i], text);
    sheaf_backend_sched_free(s);
    sheaf_free(g.ctx);
    tf_unload(&m);
}

/* ---- the usage example of ggml's scheduler header, line by line ---- */

static struct sheaf_cgraph *build_graph(struct sheaf_context *c, struct sheaf_tensor *weight,
                                        int64_t n_tokens, struct sheaf_tensor **input,
                                        struct sheaf_tensor **node) {
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(c, 16);
    *input = sheaf_set_name(sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, 4, n_tokens), "input_tensor");
    sheaf_set_input(*input);
    *node = sheaf_set_name(sheaf_mul_mat(c, weight, *input), "node");
    struct sheaf_tensor *result = sheaf_set_name(sheaf_scale(c, *node, 2.0f), "result");
    sheaf_set_output(result);
    cr_assert(!sheaf_build_forward_expand(graph, result));
    return graph;
}

Test(sched, usage_example) {
    enum { MAX_BATCH = 8 };
    const float identity[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    const size_t mem = 8 * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(16);
    struct sheaf_context *cw = sheaf_init((struct sheaf_init_params){mem, NULL, true});
    struct sheaf_context *c = sheaf_init((struct sheaf_init_params){mem, NULL, true});
    struct sheaf_tensor *weight = sheaf_new_tensor_2d(cw, SHEAF_TYPE_F32, 4, 4), *input, *node;
    sheaf_backend_t backend_gpu = &a.backend, backend_gpu2 = &b.backend, backend_cpu = cpu;

    /* operations that use tensors allocated in a buffer with usage WEIGHTS run on its backend */
    sheaf_backend_buffer_t buf_weights;
    cr_assert(!sheaf_backend_alloc_ctx_tensors(cw, backend_gpu2, &buf_weights));
    sheaf_backend_buffer_set_usage(buf_weights, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    cr_assert(!sheaf_backend_tensor_set(weight, identity, 0, sizeof identity));

    sheaf_backend_sched_t sched =
        sheaf_backend_sched_new((sheaf_backend_t[]){backend_gpu, backend_gpu2, backend_cpu}, NULL,
                                3, SHEAF_DEFAULT_GRAPH_SIZE, false, true);

    /* initialize buffers from a max size graph */
    struct sheaf_cgraph *reserve_graph = build_graph(c, weight, MAX_BATCH, &input, &node);
    cr_assert(!sheaf_backend_sched_reserve(sched, reserve_graph));

    /* manually assign nodes to a backend */
    sheaf_reset(c);
    struct sheaf_cgraph *graph = build_graph(c, weight, MAX_BATCH, &input, &node);
    cr_assert(!sheaf_backend_sched_set_tensor_backend(sched, node, backend_gpu));

    /* compute */
    const int before = a.n_buffers + b.n_buffers;
    for (int i = 0; i < 10; i++) {
        cr_assert(!sheaf_backend_sched_graph_compute(sched, graph));
        cr_assert_eq(sheaf_backend_sched_get_tensor_backend(sched, node), backend_gpu);
        float x[4 * MAX_BATCH], y[4 * MAX_BATCH];
        for (int k = 0; k < 4 * MAX_BATCH; k++) x[k] = (float)(k + i);
        cr_assert(!sheaf_backend_tensor_set(input, x, 0, sizeof x));
        cr_assert(!sheaf_backend_sched_graph_compute(sched, graph));
        cr_assert(!sheaf_backend_tensor_get(sheaf_graph_node(graph, -1), y, 0, sizeof y));
        for (int k = 0; k < 4 * MAX_BATCH; k++) cr_assert_eq(y[k], 2 * x[k]);
    }
    cr_assert_geq(a.n_buffers + b.n_buffers, before);

    /* if there are graph inputs: a new graph, with inputs set before the compute */
    sheaf_reset(c);
    graph = build_graph(c, weight, 2, &input, &node);
    cr_assert(!sheaf_backend_sched_reset(sched));
    cr_assert(!sheaf_backend_sched_alloc_graph(sched, graph));
    const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    cr_assert(!sheaf_backend_tensor_set(input, x, 0, sizeof x));
    cr_assert(!sheaf_backend_sched_graph_compute(sched, graph));
    cr_assert_eq(sheaf_backend_sched_get_tensor_backend(sched, node), backend_gpu2);
    float y[8];
    cr_assert(!sheaf_backend_tensor_get(sheaf_graph_node(graph, -1), y, 0, sizeof y));
    for (int k = 0; k < 8; k++) cr_assert_eq(y[k], 2 * x[k]);

    sheaf_backend_sched_free(sched);
    sheaf_backend_buffer_free(buf_weights);
    sheaf_free(c);
    sheaf_free(cw);
}

/* ---- the meta device among the backends ---- */

static void on_meta(size_t n) {
    char text[16];
    snprintf(text, sizeof text, "%zu", n);
    setenv("SHEAF_CPU_DEVICES", text, 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    const sheaf_backend_dev_t *devices;
    size_t have;
    cr_assert(!sheaf_world_init(NULL) && !sheaf_world_devices(&devices, &have), "%s",
              sheaf_last_error());
    cr_assert_geq(have, n);
    cr_assert(run_sched_scenario(devices, n, 12));
}
Test(sched_meta, one_member) { on_meta(1); }
Test(sched_meta, two_members) { on_meta(2); }
Test(sched_meta, three_members_one_without_heads) { on_meta(3); }

/* gate x and up relu(x), the relu on the CPU: the second split on the meta device reads the product
 * that the first one made, in slices, and only the sum after `down` needs a collective. */
Test(sched_meta, results_stay_in_slices) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    int n = 2;
    size_t have;
    const sheaf_backend_dev_t *devices;
    sheaf_backend_dev_t meta;
    sheaf_backend_t two[2];
    cr_assert(!sheaf_world_init(NULL) && !sheaf_world_devices(&devices, &have));
    cr_assert(!sheaf_backend_meta_device(devices, 2, tf_state, &n, NULL, &meta));
    cr_assert(!sheaf_backend_dev_init(meta, NULL, &two[0]));
    cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &two[1]));
    struct tf_model m;
    cr_assert(tf_load(&m, two[0], two[0]));
    struct sheaf_context *c = sheaf_init((struct sheaf_init_params){
        .mem_size = 16 * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(16),
        .no_alloc = true});
    struct sheaf_cgraph *g = sheaf_new_graph_custom(c, 16);
    struct sheaf_tensor *x = sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, N_EMBD, 2);
    sheaf_set_input(x);
    struct sheaf_tensor *gate = sheaf_set_name(sheaf_mul_mat(c, m.layer[0].gate, x), "product");
    struct sheaf_tensor *relu = sheaf_relu(c, x);
    struct sheaf_tensor *up = sheaf_mul_mat(c, m.layer[0].up, relu);
    struct sheaf_tensor *y = sheaf_mul_mat(c, m.layer[0].down, sheaf_swiglu_split(c, gate, up));
    sheaf_set_output(y);
    cr_assert(!sheaf_build_forward_expand(g, y));
    sheaf_backend_sched_t s = sheaf_backend_sched_new(two, NULL, 2, 16, false, false);
    cr_assert(!sheaf_backend_sched_set_tensor_backend(s, relu, two[1]));
    cr_assert(!sheaf_backend_sched_alloc_graph(s, g));
    cr_assert_eq(sheaf_backend_sched_get_n_splits(s), 3);
    float v[N_EMBD * 2];
    for (size_t i = 0; i < N_EMBD * 2; i++) v[i] = scenario_value(i, 9);
    cr_assert(!sheaf_backend_tensor_set(x, v, 0, sizeof v));
    for (int i = 0; i < 3; i++) {
        sheaf_backend_meta_reset_stats(two[0]);
        cr_assert(!sheaf_backend_sched_graph_compute(s, g), "%s", sheaf_last_error());
        struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
        sheaf_backend_meta_get_stats(two[0], &stats);
        cr_assert_eq(stats.n_collectives, 1);
        cr_assert_eq(stats.n_computes, 2);
        cr_assert_eq(stats.n_plans, i ? 0 : 2);
        cr_assert_eq(sheaf_backend_meta_get_state(gate)->axis, SHEAF_SPLIT_AXIS_0);
    }
    sheaf_backend_sched_free(s);
    sheaf_free(c);
    tf_unload(&m);
    sheaf_backend_free(two[0]);
    sheaf_backend_free(two[1]);
    sheaf_backend_meta_device_free(meta);
}

static enum sheaf_status rows_cut(const struct sheaf_tensor *t, const void *user,
                                  struct sheaf_split_state **out) {
    const int64_t counts[2] = {7, 5};
    (void)t;
    *out = sheaf_split_state_cut(*(const enum sheaf_split_axis *)user, 2,
                                 *(const enum sheaf_split_axis *)user == SHEAF_SPLIT_AXIS_0
                                     ? counts
                                     : (const int64_t[]){4, 6},
                                 1);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* The CPU writes strided parts of tensors that are cut, across the cut. */
Test(sched_meta, strided_writes) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    size_t have;
    const sheaf_backend_dev_t *devices;
    cr_assert(!sheaf_world_init(NULL) && !sheaf_world_devices(&devices, &have));
    for (int axis = 0; axis < 2; axis++) {
        enum sheaf_split_axis cut = axis ? SHEAF_SPLIT_AXIS_1 : SHEAF_SPLIT_AXIS_0;
        sheaf_backend_dev_t meta;
        sheaf_backend_t two[2];
        cr_assert(!sheaf_backend_meta_device(devices, 2, rows_cut, &cut, NULL, &meta));
        cr_assert(!sheaf_backend_dev_init(meta, NULL, &two[0]));
        cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &two[1]));
        sheaf_backend_sched_t s = sheaf_backend_sched_new(two, NULL, 2, 16, false, false);
        for (int kind = 0; kind < 7; kind++)
            for (int type = 0; type < 2; type++)
                strided_write(two[0], two[1], type ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32, kind, s);
        sheaf_backend_sched_free(s);
        sheaf_backend_free(two[0]);
        sheaf_backend_free(two[1]);
        sheaf_backend_meta_device_free(meta);
    }
}

static void under_mpirun(int np, const char *env, const char *want_text) {
    char out[8192];
    const int status = run_mpirun(np, env, 120, out, sizeof out, "helper-sched 6");
    cr_assert_eq(status, 0, "status %d:\n%s", status, out);
    cr_assert(strstr(out, want_text), "wanted '%s':\n%s", want_text, out);
}
Test(sched_mpirun, two_ranks) { under_mpirun(2, "SHEAF_CPU_THREADS=1", "ok 2 members on 2 ranks"); }
Test(sched_mpirun, ranks_as_hosts) {
    under_mpirun(2, "SHEAF_COMM_TRANSPORT=mpi SHEAF_CPU_THREADS=1", "ok 2 members on 2 ranks");
}
