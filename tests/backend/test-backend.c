/* The backend interface on CPU devices: the queue (submitted graphs, transfers, events, failures),
 * and graph plans. Buffers are in test-backend-buffer.c.
 *
 * Order is proved with a gate, not with time: the abort callback of a backend holds its compute at
 * a node until the test opens the gate, so what has happened before is certain. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "count_allocations.h"
#include "sanitizer.h"
#include "sheaf/backend-impl.h"
#include "sheaf/sheaf.h"

#define OK(call) cr_assert_eq((call), SHEAF_STATUS_SUCCESS, "%s: %s", #call, sheaf_last_error())

enum { N = 64 };

/* y = 2 x on a backend of its own. */
struct rig {
    sheaf_backend_t backend;
    struct sheaf_context *ctx;
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *x, *y, *big;
    struct sheaf_cgraph *graph;
    _Atomic bool closed, stop; /* of the gate: hold; end the compute */
    atomic_int held;
};

static bool gate(void *user) {
    struct rig *r = user;
    if (atomic_load(&r->closed)) atomic_fetch_add(&r->held, 1);
    while (atomic_load(&r->closed)) usleep(100);
    return atomic_load(&r->stop);
}

static void up(struct rig *r) {
    memset(r, 0, sizeof *r);
    OK(sheaf_backend_dev_init(sheaf_backend_dev_get(0), "threads=2", &r->backend));
    r->ctx = sheaf_init((struct sheaf_init_params){.mem_size = 16 * sheaf_tensor_overhead() +
                                                               sheaf_graph_overhead_custom(8),
                                                   .no_alloc = true});
    r->x = sheaf_set_name(sheaf_new_tensor_1d(r->ctx, SHEAF_TYPE_F32, N), "x");
    r->y = sheaf_set_name(sheaf_scale(r->ctx, r->x, 2), "y");
    r->big = sheaf_new_tensor_1d(r->ctx, SHEAF_TYPE_F32, 1 << 20); /* too large to move at once */
    r->graph = sheaf_new_graph_custom(r->ctx, 8);
    OK(sheaf_build_forward_expand(r->graph, r->y));
    OK(sheaf_backend_alloc_ctx_tensors(r->ctx, r->backend, &r->buffer));
    OK(sheaf_backend_buffer_clear(r->buffer, 0));
    sheaf_backend_cpu_set_abort_callback(r->backend, gate, r);
}

static void down(struct rig *r) {
    atomic_store(&r->closed, false);
    sheaf_backend_free(r->backend);
    sheaf_backend_buffer_free(r->buffer);
    sheaf_free(r->ctx);
}

static void fill(float *v, float value) {
    for (int i = 0; i < N; i++) v[i] = value + (float)i;
}

static bool is(const float *v, float value, float factor) {
    for (int i = 0; i < N; i++) {
        if (v[i] != factor * (value + (float)i)) return false;
    }
    return true;
}

static void wait_held(struct rig *r, int n) {
    while (atomic_load(&r->held) < n) usleep(100);
}

Test(backend_async, a_submitted_graph_runs_behind_the_callers_back) {
    struct rig r;
    float in[N], out[N] = {0};
    up(&r);
    fill(in, 1);
    OK(sheaf_backend_tensor_set(r.x, in, 0, sizeof in));
    atomic_store(&r.closed, true);
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph)); /* would hang if it waited */
    wait_held(&r, 1);
    OK(sheaf_backend_tensor_get(r.y, out, 0, sizeof out));
    cr_assert_eq(out[5], 0);
    atomic_store(&r.closed, false);
    OK(sheaf_backend_synchronize(r.backend));
    OK(sheaf_backend_tensor_get(r.y, out, 0, sizeof out));
    cr_assert(is(out, 1, 2));
    down(&r);
}

Test(backend_async, a_submitted_graph_leaves_the_caller_alone_while_idle) {
    struct rig r;
    up(&r);
    sheaf_backend_t backend = r.backend;
    OK(sheaf_backend_synchronize(backend));
    OK(sheaf_backend_graph_compute(backend, r.graph));
    OK(sheaf_backend_synchronize(backend));
    struct sheaf_backend_dev_props props;
    sheaf_backend_dev_get_props(sheaf_backend_get_device(backend), &props);
    cr_assert(props.caps.async && props.caps.events);
    down(&r);
}

/* set, compute, get, all submitted; twice, so that each must wait for what is before it. */
Test(backend_async, transfers_keep_the_order_of_submission) {
    struct rig r;
    float a[N], b[N], ya[N] = {0}, yb[N] = {0}, piece[N] = {0};
    up(&r);
    fill(a, 1);
    fill(b, 100);
    atomic_store(&r.closed, true);
    OK(sheaf_backend_tensor_set_async(r.backend, r.x, a, 0, sizeof a));
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_tensor_get_async(r.backend, r.y, ya, 0, sizeof ya));
    OK(sheaf_backend_tensor_set_async(r.backend, r.x, b, 0, sizeof b));
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_tensor_get_2d_async(r.backend, r.y, yb, 0, sizeof(float) * N / 4, 4,
                                         sizeof(float) * N / 4, sizeof(float) * N / 4));
    OK(sheaf_backend_tensor_get_async(r.backend, r.y, piece, 3 * sizeof(float), sizeof(float)));
    wait_held(&r, 1);
    cr_assert_eq(ya[1], 0);
    atomic_store(&r.closed, false);
    OK(sheaf_backend_synchronize(r.backend));
    cr_assert(is(ya, 1, 2));
    cr_assert(is(yb, 100, 2));
    cr_assert_eq(piece[0], 206);
    cr_assert_eq(sheaf_backend_tensor_set_async(r.backend, r.x, a, 4, sizeof a),
                 SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_backend_tensor_get_async(r.backend, r.y, ya, SIZE_MAX, 2),
                 SHEAF_STATUS_INVALID);
    down(&r);
}

Test(backend_async, inputs_are_written_behind_the_queue) {
    struct rig r;
    float a[N], b[N], y[N] = {0};
    up(&r);
    fill(a, 1);
    fill(b, 100);
    char *large = calloc(1, sheaf_nbytes(r.big));
    OK(sheaf_backend_tensor_set_async(r.backend, r.x, a, 0, sizeof a));
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_tensor_get_async(r.backend, r.y, y, 0, sizeof y));
    const struct sheaf_tensor_write w[] = {{r.x, b}, {r.big, large}};
    OK(sheaf_backend_tensors_set(r.backend, w, 2));
    fill(b, 7); /* it is the caller's again */
    OK(sheaf_backend_synchronize(r.backend));
    cr_assert(is(y, 1, 2));
    OK(sheaf_backend_graph_compute(r.backend, r.graph));
    OK(sheaf_backend_tensor_get(r.y, y, 0, sizeof y));
    cr_assert(is(y, 100, 2));
    struct sheaf_tensor nowhere = *r.x;
    nowhere.buffer = NULL;
    nowhere.data = NULL;
    const struct sheaf_tensor_write bad[] = {{&nowhere, b}};
    cr_assert_eq(sheaf_backend_tensors_set(r.backend, bad, 1), SHEAF_STATUS_INVALID);
    OK(sheaf_backend_tensors_set(r.backend, NULL, 0));
    free(large);
    down(&r);
}

Test(backend_async, large_transfers_of_an_idle_backend) {
    struct rig r;
    up(&r);
    const size_t bytes = sheaf_nbytes(r.big);
    char *in = malloc(bytes), *out = calloc(1, bytes);
    for (size_t i = 0; i < bytes; i++) in[i] = (char)(i * 7 + i / 1000);
    OK(sheaf_backend_tensor_set_async(r.backend, r.big, in, 0, bytes));
    OK(sheaf_backend_tensor_get_async(r.backend, r.big, out, 0, bytes));
    OK(sheaf_backend_synchronize(r.backend));
    cr_assert(!memcmp(in, out, bytes));
    free(in);
    free(out);
    down(&r);
}

Test(backend_async, a_synchronous_call_comes_after_what_was_submitted) {
    struct rig r;
    float in[N], out[N];
    up(&r);
    fill(in, 3);
    for (int i = 0; i < 600; i++) { /* more than the queue holds */
        OK(sheaf_backend_tensor_set_async(r.backend, r.x, in, 0, sizeof in));
        OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    }
    OK(sheaf_backend_graph_compute(r.backend, r.graph));
    OK(sheaf_backend_tensor_get(r.y, out, 0, sizeof out));
    cr_assert(is(out, 3, 2));
    OK(sheaf_backend_cpu_set_n_threads(r.backend, 1));
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_synchronize(r.backend));
    down(&r);
}

static void *open_soon(void *user) {
    struct rig *r = user;
    wait_held(r, 1);
    usleep(20000); /* time for the caller to go wrong */
    atomic_store(&r->closed, false);
    return NULL;
}

Test(backend_async, a_full_queue_holds_its_submitter_back) {
    enum { MANY = 600 };
    struct rig r;
    pthread_t thread;
    float in[N], out[MANY] = {0};
    up(&r);
    fill(in, 3);
    atomic_store(&r.closed, true);
    OK(sheaf_backend_tensor_set(r.x, in, 0, sizeof in));
    cr_assert_eq(pthread_create(&thread, NULL, open_soon, &r), 0);
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    for (int i = 0; i < MANY; i++)
        OK(sheaf_backend_tensor_get_async(r.backend, r.x, out + i, 0, sizeof *out));
    OK(sheaf_backend_synchronize(r.backend));
    for (int i = 0; i < MANY; i++) cr_assert_eq(out[i], 3, "number %d is lost", i);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    down(&r);
}

Test(backend_async, threads_change_after_what_was_submitted) {
    struct rig r;
    pthread_t thread;
    up(&r);
    atomic_store(&r.closed, true);
    cr_assert_eq(pthread_create(&thread, NULL, open_soon, &r), 0);
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_cpu_set_n_threads(r.backend, 3));
    cr_assert_not(atomic_load(&r.closed), "a team was replaced under a graph");
    cr_assert_eq(pthread_join(thread, NULL), 0);
    OK(sheaf_backend_synchronize(r.backend));
    down(&r);
}

Test(backend_async, a_failure_is_told_once_and_leaves_out_what_follows) {
    struct rig r;
    float in[N], out[N] = {0};
    up(&r);
    fill(in, 1);
    OK(sheaf_backend_tensor_set(r.x, in, 0, sizeof in));
    sheaf_backend_event_t event;
    OK(sheaf_backend_event_new(sheaf_backend_get_device(r.backend), &event));
    atomic_store(&r.stop, true);
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_tensor_get_async(r.backend, r.x, out, 0, sizeof out));
    OK(sheaf_backend_event_record(event, r.backend));
    OK(sheaf_backend_event_synchronize(event)); /* passes all the same */
    OK(sheaf_backend_tensor_get_async(r.backend, r.x, out, 0,
                                      sizeof out)); /* nothing else is under way */
    cr_assert_eq(sheaf_backend_synchronize(r.backend), SHEAF_STATUS_ABORTED);
    cr_assert(strstr(sheaf_last_error(), "abort callback"), "%s", sheaf_last_error());
    cr_assert_eq(out[0], 0, "what follows a failure is not run");
    OK(sheaf_backend_synchronize(r.backend));
    atomic_store(&r.stop, false);
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_synchronize(r.backend));
    sheaf_backend_event_free(event);
    down(&r);
}

Test(backend_async, freeing_a_backend_finishes_its_queue) {
    struct rig r;
    float in[N], out[N] = {0};
    up(&r);
    fill(in, 1);
    OK(sheaf_backend_tensor_set(r.x, in, 0, sizeof in));
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_tensor_get_async(r.backend, r.y, out, 0, sizeof out));
    sheaf_backend_free(r.backend);
    r.backend = NULL;
    cr_assert(is(out, 1, 2));
    down(&r);
}

/* ---- events ---- */

Test(backend_events, one_backend_waits_for_another) {
    struct rig a, b;
    float in[N], out[N] = {0};
    up(&a);
    up(&b);
    fill(in, 5);
    OK(sheaf_backend_tensor_set(a.x, in, 0, sizeof in));
    sheaf_backend_event_t event;
    OK(sheaf_backend_event_new(sheaf_backend_get_device(a.backend), &event));
    OK(sheaf_backend_event_synchronize(event)); /* never recorded: has passed */
    OK(sheaf_backend_event_wait(b.backend, event));
    atomic_store(&a.closed, true);
    OK(sheaf_backend_graph_compute_async(a.backend, a.graph));
    OK(sheaf_backend_event_record(event, a.backend));
    OK(sheaf_backend_event_wait(b.backend, event));
    OK(sheaf_backend_graph_compute_async(b.backend, b.graph));
    OK(sheaf_backend_tensor_get_async(b.backend, a.y, out, 0, sizeof out));
    wait_held(&a, 1);
    usleep(2000); /* time for b to go wrong */
    cr_assert_eq(out[0], 0);
    /* the wait took the point, not the event: recording again or freeing changes nothing */
    OK(sheaf_backend_event_record(event, b.backend));
    sheaf_backend_event_free(event);
    atomic_store(&a.closed, false);
    OK(sheaf_backend_synchronize(b.backend));
    cr_assert(is(out, 5, 2));
    OK(sheaf_backend_synchronize(a.backend));
    down(&a);
    down(&b);
}

static void *synchronize_event(void *event) {
    return (void *)(intptr_t)sheaf_backend_event_synchronize(event);
}

Test(backend_events, any_thread_may_wait) {
    struct rig r;
    pthread_t threads[3];
    up(&r);
    sheaf_backend_event_t event;
    OK(sheaf_backend_event_new(sheaf_backend_get_device(r.backend), &event));
    atomic_store(&r.closed, true);
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_event_record(event, r.backend));
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, synchronize_event, event);
    wait_held(&r, 1);
    atomic_store(&r.closed, false);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    OK(sheaf_backend_synchronize(r.backend));
    sheaf_backend_event_free(event);
    sheaf_backend_event_free(NULL);
    down(&r);
}

Test(backend_events, outlive_the_backend_they_were_recorded_on) {
    struct rig r;
    up(&r);
    sheaf_backend_event_t event;
    OK(sheaf_backend_event_new(sheaf_backend_get_device(r.backend), &event));
    OK(sheaf_backend_graph_compute_async(r.backend, r.graph));
    OK(sheaf_backend_event_record(event, r.backend));
    down(&r);
    OK(sheaf_backend_event_synchronize(event));
    sheaf_backend_event_free(event);
}

Test(backend_events, copies_between_backends) {
    struct rig a, b;
    float in[N], out[N];
    up(&a);
    up(&b);
    fill(in, 7);
    OK(sheaf_backend_tensor_set(a.x, in, 0, sizeof in));
    atomic_store(&a.closed, true);
    OK(sheaf_backend_graph_compute_async(a.backend, a.graph));
    OK(sheaf_backend_tensor_copy_async(a.backend, b.backend, a.y, b.x)); /* after a's graph */
    OK(sheaf_backend_graph_compute_async(b.backend, b.graph));           /* after the copy */
    wait_held(&a, 1);
    usleep(2000);
    OK(sheaf_backend_tensor_get(b.x, out, 0, sizeof out));
    cr_assert_eq(out[0], 0);
    atomic_store(&a.closed, false);
    OK(sheaf_backend_synchronize(b.backend));
    OK(sheaf_backend_tensor_get(b.y, out, 0, sizeof out));
    cr_assert(is(out, 7, 4));
    for (int i = 1; i <= 5; i++) { /* what follows waits for the whole copy, also for a long one */
        const float last = (float)i;
        const size_t at = sheaf_nbytes(a.big) - sizeof last;
        OK(sheaf_backend_tensor_set(a.big, &last, at, sizeof last));
        OK(sheaf_backend_tensor_copy_async(a.backend, b.backend, a.big, b.big));
        OK(sheaf_backend_tensor_get_async(b.backend, b.big, out, at, sizeof last));
        OK(sheaf_backend_synchronize(b.backend));
        cr_assert_eq(out[0], last, "copy %d", i);
    }
    cr_assert_eq(sheaf_backend_tensor_copy_async(a.backend, b.backend, a.y, b.big),
                 SHEAF_STATUS_INVALID);
    down(&a);
    down(&b);
}

static enum sheaf_status whole(const struct sheaf_tensor *t, const void *user,
                               struct sheaf_split_state **out) {
    (void)t;
    (void)user;
    *out = sheaf_split_state_mirrored(1);
    return SHEAF_STATUS_SUCCESS;
}

Test(backend_events, devices_without_events_say_so) {
    sheaf_backend_dev_t cpu = sheaf_backend_dev_get(0), meta;
    sheaf_backend_event_t event;
    OK(sheaf_backend_meta_device(&cpu, 1, whole, NULL, NULL, &meta));
    cr_assert_eq(sheaf_backend_event_new(meta, &event), SHEAF_STATUS_UNSUPPORTED);
    cr_assert_null(event);
    cr_assert(strstr(sheaf_last_error(), "META1 has no events"), "%s", sheaf_last_error());
    sheaf_backend_meta_device_free(meta);
}

/* ---- plans ---- */

Test(backend_plan, computes_again_and_again) {
    struct rig r;
    float in[N], out[N];
    up(&r);
    sheaf_backend_graph_plan_t plan;
    OK(sheaf_backend_graph_plan_create(r.backend, r.graph, &plan));
    for (int i = 0; i < 3; i++) {
        fill(in, (float)i);
        OK(sheaf_backend_tensor_set(r.x, in, 0, sizeof in));
        OK(sheaf_backend_graph_plan_compute(r.backend, plan));
        OK(sheaf_backend_tensor_get(r.y, out, 0, sizeof out));
        cr_assert(is(out, (float)i, 2));
        OK(sheaf_backend_cpu_set_n_threads(r.backend, 1 + i));
    }
    sheaf_backend_graph_plan_free(r.backend, plan);
    sheaf_backend_graph_plan_free(r.backend, NULL);
    down(&r);
}

Test(backend_plan, holds_its_own_list_and_takes_another_graph) {
    struct rig r;
    float in[N], out[N];
    up(&r);
    sheaf_backend_graph_plan_t plan;
    OK(sheaf_backend_graph_plan_create(r.backend, r.graph, &plan));
    sheaf_graph_clear(r.graph); /* the plan has its list */
    fill(in, 4);
    OK(sheaf_backend_tensor_set(r.x, in, 0, sizeof in));
    OK(sheaf_backend_graph_plan_compute(r.backend, plan));
    OK(sheaf_backend_tensor_get(r.y, out, 0, sizeof out));
    cr_assert(is(out, 4, 2));

    struct sheaf_tensor *z = sheaf_scale(r.ctx, r.y, 3);
    OK(sheaf_build_forward_expand(r.graph, z));
    cr_assert_eq(sheaf_backend_graph_plan_update(r.backend, plan, r.graph), SHEAF_STATUS_INVALID);
    OK(sheaf_backend_graph_plan_compute(r.backend, plan)); /* as before */
    sheaf_backend_buffer_t more;
    OK(sheaf_backend_alloc_ctx_tensors(r.ctx, r.backend, &more));
    OK(sheaf_backend_graph_plan_update(r.backend, plan, r.graph));
    OK(sheaf_backend_graph_plan_compute(r.backend, plan));
    OK(sheaf_backend_tensor_get(z, out, 0, sizeof out));
    cr_assert(is(out, 4, 6));
    sheaf_backend_graph_plan_free(r.backend, plan);
    sheaf_backend_buffer_free(more);
    down(&r);
}

/* Positions in rows of numbers that grow, by as many threads as there are: each has work memory of its own. */
enum { LONG = 300, ROWS = 20 };
struct sorting {
    struct sheaf_context *ctx;
    struct sheaf_tensor *y;
    struct sheaf_cgraph *graph;
};
static struct sorting new_sorting(void) {
    struct sorting s = {.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20})};
    struct sheaf_tensor *x = sheaf_new_tensor_2d(s.ctx, SHEAF_TYPE_F32, LONG, ROWS);
    for (int i = 0; i < LONG * ROWS; i++) ((float *)x->data)[i] = (float)i;
    s.y = sheaf_argsort(s.ctx, x, SHEAF_SORT_ORDER_DESC);
    s.graph = sheaf_new_graph_custom(s.ctx, 8);
    OK(sheaf_build_forward_expand(s.graph, s.y));
    return s;
}
static void expect_sorted(const struct sorting *s) {
    for (int i = 0; i < LONG * ROWS; i++)
        cr_assert_eq(((int32_t *)s->y->data)[i], LONG - 1 - i % LONG, "element %d", i);
    memset(s->y->data, 0, sheaf_nbytes(s->y));
}

/* AddressSanitizer sees the end of the work memory. */
Test(backend_plan, for_more_threads_than_when_it_was_made) {
    struct rig r;
    up(&r);
    struct sorting s = new_sorting();
    sheaf_backend_graph_plan_t plan;
    OK(sheaf_backend_cpu_set_n_threads(r.backend, 1));
    OK(sheaf_backend_graph_plan_create(r.backend, s.graph, &plan));
    for (int threads = 1; threads <= 8; threads += 7) {
        OK(sheaf_backend_cpu_set_n_threads(r.backend, threads));
        OK(sheaf_backend_graph_plan_compute(r.backend, plan));
        expect_sorted(&s);
    }
    sheaf_backend_graph_plan_free(r.backend, plan);
    sheaf_free(s.ctx);
    down(&r);
}

/* A backend that got no more work memory has none, and gets some for the next graph. */
Test(backend, work_memory_that_is_refused) {
    if (SANITIZED) cr_skip("a sanitizer has allocations of its own, which cannot be made to fail");
    struct rig r;
    up(&r);
    struct sorting s = new_sorting();
    for (int threads = 1; threads <= 2; threads++) {
        OK(sheaf_backend_cpu_set_n_threads(r.backend, threads));
        failing = 1;
        counts_allocations = true;
        const enum sheaf_status status = sheaf_backend_graph_compute(r.backend, s.graph);
        counts_allocations = false;
        cr_assert_eq(status, SHEAF_STATUS_ALLOC_FAILED);
        cr_expect(strstr(sheaf_last_error(), "bytes of work"), "%s", sheaf_last_error());
        OK(sheaf_backend_cpu_set_n_threads(r.backend, 1));
        OK(sheaf_backend_graph_compute(r.backend, s.graph));
        expect_sorted(&s);
    }
    sheaf_free(s.ctx);
    down(&r);
}

Test(backend_plan, refuses_a_graph_without_memory) {
    struct rig r;
    up(&r);
    struct sheaf_tensor *z = sheaf_scale(r.ctx, r.y, 3);
    OK(sheaf_build_forward_expand(r.graph, z));
    sheaf_backend_graph_plan_t plan;
    cr_assert_eq(sheaf_backend_graph_plan_create(r.backend, r.graph, &plan), SHEAF_STATUS_INVALID);
    cr_assert_null(plan);
    down(&r);
}

/* ---- small things ---- */

/* It lacks a node: what it has must not pass for the whole. */
Test(backend, a_graph_that_was_too_small_is_refused) {
    struct rig r;
    up(&r);
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct sheaf_tensor *t = r.x;
    for (int i = 0; i < 6; i++) t = sheaf_scale(ctx, t, 2);
    struct sheaf_cgraph *g = sheaf_new_graph_custom(ctx, 4);
    cr_assert_eq(sheaf_build_forward_expand(g, t), SHEAF_STATUS_ALLOC_FAILED);
    sheaf_backend_buffer_t buffer;
    OK(sheaf_backend_alloc_ctx_tensors(ctx, r.backend, &buffer));
    sheaf_backend_graph_plan_t plan = NULL;
    struct sheaf_cgraph *part = sheaf_graph_view(ctx, g, 0, 2);
    const enum sheaf_status refused[] = {sheaf_backend_graph_compute(r.backend, g),
                                         sheaf_backend_graph_compute_async(r.backend, g),
                                         sheaf_backend_graph_plan_create(r.backend, g, &plan),
                                         sheaf_backend_graph_compute(r.backend, part)};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        cr_expect_eq(refused[i], SHEAF_STATUS_INVALID, "%zu: %d", i, refused[i]);
    cr_expect(strstr(sheaf_last_error(), "not whole"), "%s", sheaf_last_error());
    sheaf_backend_graph_plan_free(r.backend, plan);
    sheaf_graph_clear(g);
    OK(sheaf_build_forward_expand(g, r.y));
    OK(sheaf_backend_graph_compute(r.backend, g));
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    down(&r);
}

Test(backend, guid_alignment_offload) {
    struct rig a, b;
    up(&a);
    up(&b);
    cr_assert_not_null(sheaf_backend_guid(a.backend));
    cr_assert(!memcmp(sheaf_backend_guid(a.backend), sheaf_backend_guid(b.backend), 16));
    cr_assert_eq(
        sheaf_backend_get_alignment(a.backend),
        sheaf_backend_buft_get_alignment(sheaf_backend_get_default_buffer_type(a.backend)));
    cr_assert_eq(sheaf_backend_get_max_size(a.backend), SIZE_MAX);
    cr_assert(!sheaf_backend_offload_op(a.backend, a.y));
    /* whole nodes, in memory of the host */
    static const struct sheaf_backend_buffer_type_i elsewhere;
    struct sheaf_backend_buffer_type far = {.iface = &elsewhere};
    struct sheaf_tensor part = *a.y;
    part.src[0] = NULL;
    cr_expect(sheaf_backend_supports_op(a.backend, a.y));
    cr_expect_not(sheaf_backend_supports_op(a.backend, &part));
    cr_expect(sheaf_backend_supports_buft(a.backend, a.buffer->buft));
    cr_expect_not(sheaf_backend_supports_buft(a.backend, &far));
    down(&a);
    down(&b);
}
