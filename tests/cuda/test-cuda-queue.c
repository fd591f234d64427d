/* The queue of a CUDA backend on the CPU: when it waits, what it compares, and how the module for NCCL
 * waits for calls that may not return. */
#include <criterion/criterion.h>

#include "comm/device/nccl/aside.h"
#include "rig.h"
#include "tensor/graph.h"

/* Work memory that grows while a queue is full waits for nothing: it may hold a collective whose peer is
 * dead. The first wait, which fails here, is the caller's. */
Test(cuda_queue, growing_work_memory_waits_for_nothing) {
    enum { K = 1024 };
    struct rig r = rig_up("fail=cudaStreamSynchronize:2", NULL);
    struct sheaf_tensor *w = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_Q8_0, K, 8);
    struct sheaf_tensor *wide = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, 512);
    struct sheaf_cgraph *graphs[3];
    for (int i = 0; i < 3; i++) {
        static const int64_t columns[] = {1, 200, 512};
        graphs[i] = sheaf_new_graph(r.ctx);
        struct sheaf_tensor *x = sheaf_view_2d(r.ctx, wide, K, columns[i], wide->nb[1], 0);
        cr_assert_eq(sheaf_build_forward_expand(graphs[i], sheaf_mul_mat(r.ctx, w, x)),
                     SHEAF_STATUS_SUCCESS);
    }
    rig_alloc(&r);
    cr_assert_eq(sheaf_backend_buffer_clear(r.buffer, 0), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error()); /* the first */
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf_backend_graph_compute_async(r.backend, graphs[i]), SHEAF_STATUS_SUCCESS,
                     "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_synchronize(r.backend), SHEAF_STATUS_FAILED);
    cr_assert_eq(sheaf_backend_synchronize(r.backend), SHEAF_STATUS_SUCCESS);
    rig_down(&r);
}

/* Graphs are replayed with the addresses of the work memory that their captures had. When another graph wants more of
 * it, and it moves, they are captured anew; here the old memory is gone. */
Test(cuda_queue, captures_end_with_the_work_memory) {
    enum { K = 1024, ROWS = 8, WIDE = 512 };
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *w = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_Q8_0, K, ROWS), *wide, *y;
    struct sheaf_cgraph *more = sheaf_new_graph(r.ctx);
    sheaf_backend_graph_plan_t plan;
    wide = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, WIDE);
    y = sheaf_mul_mat(r.ctx, w, sheaf_view_2d(r.ctx, wide, K, 1, wide->nb[1], 0));
    for (int i = 0; i < 4; i++) y = sheaf_scale(r.ctx, y, 2);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_build_forward_expand(more, sheaf_mul_mat(r.ctx, w, wide)),
                 SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    static uint8_t blocks[ROWS * K / 32 * 34];
    for (size_t i = 0; i < sizeof blocks; i++) /* each 1 by 1, with a scale of 1 */
        blocks[i] = i % 34 == 0 ? 0 : i % 34 == 1 ? 0x3c : 1;
    cr_assert_eq(sheaf_backend_tensor_set(w, blocks, 0, sizeof blocks), SHEAF_STATUS_SUCCESS);
    static float ones[K * WIDE];
    for (int i = 0; i < K * WIDE; i++) ones[i] = 1;
    cr_assert_eq(sheaf_backend_tensor_set(wide, ones, 0, sizeof ones), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_plan_create(r.backend, r.graph, &plan), SHEAF_STATUS_SUCCESS);
    FILE *trace = rig_trace();
    for (int run = 0; run < 8; run++) {
        if (run == 4)
            cr_assert_eq(sheaf_backend_graph_compute(r.backend, more), SHEAF_STATUS_SUCCESS, "%s",
                         sheaf_last_error());
        for (int planned = 0; planned < 2; planned++) {
            set_all(y, 0, 0);
            cr_assert_eq(planned ? sheaf_backend_graph_plan_compute(r.backend, plan)
                                 : sheaf_backend_graph_compute(r.backend, r.graph),
                         SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
            cr_assert_float_eq(first_of(y), 16 * K, 1e-3 * K, "run %d: %g", run,
                               (double)first_of(y));
        }
    }
    cr_assert_eq(replays_of(trace, 6), 2 * 6,
                 "all but the first, and the first with the new memory");
    fclose(trace);
    sheaf_backend_graph_plan_free(r.backend, plan);
    rig_down(&r);
}

/* A graph whose owner promises that it is the same is not looked at: here the promise is broken. */
Test(cuda_queue, a_version_saves_the_comparison) {
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *x, *y = five_nodes(&r, &x);
    static const struct {
        uint64_t version;
        float scale, want;
    } runs[] = {{7, 0.5f, 10}, {7, 0.5f, 10}, {7, 0.5f, 10}, {7, 1.5f, 10},
                {0, 1.5f, 30}, {0, 1.5f, 30}, {0, 0.5f, 10}, {8, 0.5f, 10},
                {8, 1.5f, 10}, {9, 1.5f, 30}, {9, 1.5f, 30}, {9, 0.5f, 30}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        r.graph->version = runs[i].version;
        memcpy(y->op_params, &runs[i].scale, sizeof(float));
        set_all(x, 1, 0);
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_float_eq(first_of(y), runs[i].want, 0, "%zu: %g", i, (double)first_of(y));
    }
    rig_down(&r);
}

/* 512 graphs are remembered; those that ran last are replayed without another capture, the first runs as if it were
 * new. */
Test(cuda_queue, the_oldest_captures_go) {
    enum { N = 600, LAST = 100 };
    FILE *trace = tmpfile();
    char line[300] = "";
    cr_assert_not_null(trace);
    cr_assert_geq(dup2(fileno(trace), 2), 0);
    struct rig r = rig_up("", "counts=1");
    struct sheaf_tensor *x, *y = five_nodes(&r, &x);
    set_all(x, 1, 0);
    for (int i = 0; i < N + LAST + 1; i++) {
        const int graph = i < N ? i : i < N + LAST ? i - LAST : 0;
        const float scale = (float)(graph + 1);
        r.graph->uid = (uint64_t)graph + 1000;
        memcpy(y->op_params, &scale, sizeof scale);
        for (int again = 0; again < (i < N ? 2 : 1); again++)
            cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS,
                         "%s", sheaf_last_error());
        cr_assert_float_eq(first_of(y), 20 * scale, 0, "%d: %g", i, (double)first_of(y));
    }
    rig_down(&r);
    rewind(trace);
    static const char want[] =
        "sheaf: CUDA0: graphs: 600 captured, 700 replayed, 0 refused, 601 node by node; ";
    cr_assert(fgets(line, sizeof line, trace) && !strncmp(line, want, strlen(want)), "%s", line);
    fclose(trace);
}

/* Launches that are alike are one line, with their count; the emulated ones take 2 us. */
Test(cuda_queue, times_of_launches) {
    FILE *trace = tmpfile();
    char line[300];
    int adds = 0, scales = 0;
    cr_assert_not_null(trace);
    cr_assert_geq(dup2(fileno(trace), 2), 0);
    struct rig r = rig_up("", "times=1");
    struct sheaf_tensor *x, *y = five_nodes(&r, &x);
    set_all(x, 1, 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_float_eq(first_of(y), 10, 0);
    rig_down(&r);
    rewind(trace);
    while (fgets(line, sizeof line, trace)) {
        double us = 0, gbps = 0, share = 0;
        int count = 0;
        char op[20] = "";
        if (sscanf(line, "%lf %d %lf %lf%% %19s", &us, &count, &gbps, &share, op) != 5) continue;
        cr_assert_float_eq(us, 2, 0.01);
        cr_assert_float_eq(gbps, strcmp(op, "ADD") ? 1.2 : 1.8, 0.51, "%s", line);
        if (!strcmp(op, "ADD")) adds += count;
        if (!strcmp(op, "SCALE")) scales += count;
    }
    cr_assert(adds == 6 && scales == 9, "%d, %d", adds, scales);
    fclose(trace);
}

/* Six runs of a graph: one node by node, then, if the capture is refused, all others too. */
Test(cuda_queue, counts_of_graphs) {
    static const struct {
        const char *machine, *want;
    } cases[] = {{"", "sheaf: CUDA0: graphs: 1 captured, 5 replayed, 0 refused, 1 node by node; "},
                 {"fail=cudaStreamBeginCapture:1",
                  "sheaf: CUDA0: graphs: 0 captured, 0 replayed, 1 refused, 6 node by node; "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *trace = tmpfile();
        char line[300] = "";
        cr_assert_not_null(trace);
        cr_assert_geq(dup2(fileno(trace), 2), 0);
        struct rig r = rig_up(cases[i].machine, "counts=1");
        struct sheaf_tensor *x;
        five_nodes(&r, &x);
        set_all(x, 1, 0);
        for (int run = 0; run < 6; run++)
            cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS);
        rig_down(&r);
        rewind(trace);
        cr_assert(fgets(line, sizeof line, trace) &&
                      !strncmp(line, cases[i].want, strlen(cases[i].want)),
                  "%s", line);
        fclose(trace);
    }
}

/* Of 128 shapes the algorithms are kept; those of more are asked for again. */
Test(cuda_queue, products_of_many_shapes) {
    enum { K = 8, M = 3, FEWEST = 9, MOST = 150 };
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *w = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_BF16, K, M);
    struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, MOST);
    struct sheaf_tensor *y = sheaf_mul_mat(r.ctx, w, x);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    static float f[K * MOST], got[M * MOST];
    uint16_t h[K * M];
    for (int i = 0; i < K * M; i++) f[i] = (float)(i % 5 - 2);
    cr_assert_eq(sheaf_from_float(SHEAF_TYPE_BF16, f, h, K * M), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(w, h, 0, sizeof h), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < K * MOST; i++) f[i] = (float)(i / K);
    cr_assert_eq(sheaf_backend_tensor_set(x, f, 0, sizeof f), SHEAF_STATUS_SUCCESS);
    for (int run = 0; run < 2 * (MOST - FEWEST + 1); run++) {
        const int n = FEWEST + run % (MOST - FEWEST + 1);
        x->ne[1] = y->ne[1] = MOST;
        cr_assert_eq(sheaf_backend_tensor_memset(y, 0xff, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        x->ne[1] = y->ne[1] = n;
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        y->ne[1] = MOST;
        cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        for (int i = 0; i < M * MOST; i++) {
            float sum = 0; /* of the row of w */
            for (int k = 0; k < K; k++) sum += (float)((i % M * K + k) % 5 - 2);
            cr_assert(i < M * n ? got[i] == sum * (float)(i / M) : got[i] != got[i],
                      "%d columns: element %d is %g", n, i, (double)got[i]);
        }
    }
    rig_down(&r);
}

/* ---- inputs ---- */

/* Inputs of any number and size, of which the caller's memory changes at once: all are there before the graph
 * that is submitted next, and behind the one before. */
Test(cuda_queue, inputs_are_written_together) {
    enum { N = 24, FEWER = 11, LARGEST = 300000, LONG = 20000 };
    static const int sizes[] = {1, 3, 256, 4096, 0, 5, 70, 16384, 17, 33};
    static float values[LARGEST + N], got[LARGEST];
    for (int large = 0; large < 2; large++) { /* one that has a copy; that does not fit the block */
        struct rig r = rig_up("", NULL);
        struct sheaf_tensor *t[N], *twice[N];
        struct sheaf_tensor_write w[N];
        const int n = large ? FEWER : N;
        for (int i = 0; i < N; i++) {
            t[i] = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32,
                                       i == 9                 ? (large ? LARGEST : LONG)
                                       : i > 4 && i % 10 == 4 ? 2
                                                              : sizes[i % 10]);
            twice[i] = sheaf_scale(r.ctx, t[i], 2);
            cr_assert_eq(sheaf_build_forward_expand(r.graph, twice[i]), SHEAF_STATUS_SUCCESS);
            w[i] = (struct sheaf_tensor_write){t[i], values + i};
        }
        rig_alloc(&r);
        for (int round = 1; round < 5; round++) {
            for (int i = 0; i < LARGEST + N; i++) values[i] = (float)(i * round);
            cr_assert_eq(sheaf_backend_tensors_set(r.backend, w, (size_t)n), SHEAF_STATUS_SUCCESS,
                         "%s", sheaf_last_error());
            memset(values, 0xff, sizeof values);
            cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS,
                         "%s", sheaf_last_error());
            for (int i = 0; i < n; i++) {
                cr_assert_eq(sheaf_backend_tensor_get(twice[i], got, 0, sheaf_nbytes(t[i])),
                             SHEAF_STATUS_SUCCESS);
                for (int j = 0; j < (int)t[i]->ne[0]; j++)
                    cr_assert_eq(got[j], (float)(2 * (i + j) * round), "%d: %d", i, j);
            }
        }
        rig_down(&r);
    }
}

/* Copies since the call before, on standard error, which is a file meanwhile. */
static int copies_of(FILE *trace) {
    char line[200];
    int copies = 0;
    rewind(trace);
    while (fgets(line, sizeof line, trace)) copies += !!strstr(line, "copies");
    rig_trace_clear(trace);
    return copies;
}

/* They go with one launch and no copy; half words at the end of an odd mask, too. */
Test(cuda_queue, short_inputs_take_no_copy) {
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I32, 7);
    struct sheaf_tensor *mask = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F16, 301, 3);
    uint16_t halves[903], got[903];
    int32_t id[7], got_id[7];
    for (int i = 0; i < 903; i++) halves[i] = (uint16_t)(i * 71);
    for (int i = 0; i < 7; i++) id[i] = -i;
    rig_alloc(&r);
    FILE *trace = rig_trace();
    const struct sheaf_tensor_write w[] = {{ids, id}, {mask, halves}};
    cr_assert_eq(sheaf_backend_tensors_set(r.backend, w, 2), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(copies_of(trace), 0);
    cr_assert_eq(sheaf_backend_synchronize(r.backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_get(ids, got_id, 0, sizeof id), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_get(mask, got, 0, sizeof halves), SHEAF_STATUS_SUCCESS);
    cr_assert(!memcmp(id, got_id, sizeof id) && !memcmp(halves, got, sizeof halves));
    fclose(trace);
    rig_down(&r);
}

/* Not while the device reads it: these go the ordinary way, which waits. */
Test(cuda_queue, a_block_that_is_read_is_left_alone) {
    struct rig r = rig_up("busy=1", NULL);
    struct sheaf_tensor *x = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, 100);
    rig_alloc(&r);
    FILE *trace = rig_trace();
    for (int i = 0; i < 5; i++) {
        float values[100] = {(float)i};
        const struct sheaf_tensor_write w = {x, values};
        copies_of(trace);
        cr_assert_eq(sheaf_backend_tensors_set(r.backend, &w, 1), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_eq(copies_of(trace), i % 2);
        if (i % 2) cr_assert_float_eq(first_of(x), (float)i, 0); /* which waits, too */
    }
    fclose(trace);
    rig_down(&r);
}

/* The queue's kernel may not reach them. */
Test(cuda_queue, inputs_on_another_device_go_the_ordinary_way) {
    struct rig r = rig_up("devices=2", NULL);
    struct sheaf_tensor *x = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, 100);
    float values[100] = {7};
    sheaf_backend_buffer_type_t other =
        sheaf_backend_dev_buffer_type(sheaf_backend_reg_dev_get(r.reg, 1));
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(r.ctx, other, &r.buffer),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    FILE *trace = rig_trace();
    const struct sheaf_tensor_write w = {x, values};
    cr_assert_eq(sheaf_backend_tensors_set(r.backend, &w, 1), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(copies_of(trace), 1);
    cr_assert_float_eq(first_of(x), 7, 0);
    fclose(trace);
    rig_down(&r);
}

/* ---- calls that may not return ---- */

struct call {
    atomic_bool go, done;
};
static void wait_for_go(void *user) {
    struct call *c = user;
    while (!atomic_load(&c->go)) sheaf__nap(100000);
    atomic_store(&c->done, true);
}
static bool is_late(const void *user) { return sheaf__time_ns() > *(const uint64_t *)user; }

Test(cuda_queue, calls_aside_have_a_deadline) {
    static struct call returns = {true, false}, hangs;
    bool begun = false;
    uint64_t end = sheaf__time_ns() + 20 * UINT64_C(1000000000);
    cr_assert(sheaf__aside(wait_for_go, &returns, is_late, &end, &begun));
    cr_assert(begun && returns.done);
    const uint64_t start = sheaf__time_ns();
    end = start + 50000000;
    cr_assert_not(sheaf__aside(wait_for_go, &hangs, is_late, &end, &begun));
    cr_assert(begun && !hangs.done && sheaf__time_ns() - start < 10 * UINT64_C(1000000000));
    atomic_store(&hangs.go, true); /* it returns after all, and frees what is its own */
    while (!atomic_load(&hangs.done)) sheaf__nap(100000);
}
