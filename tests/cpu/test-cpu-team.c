/* Thread teams and how a backend uses one: barriers, two teams at once, changing the number of
 * threads, stopping by the abort callback, errors of workers. The profile of a backend. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cpu/device/profile.h"
#include "cpu/device/team.h"
#include "sheaf/sheaf.h"

/* ---- the team alone ---- */

enum { ROUNDS = 300, MAX_THREADS = 5 };

struct counters {
    _Atomic int visits;
    int slots[MAX_THREADS]; /* plain: the barrier must order them */
    _Atomic int wrong;
};

/* Everyone writes its slot, and after the barrier everyone must see all of them. */
static void count(void *user, int ith, int nth, struct sheaf__cpu_sync *sync) {
    struct counters *c = user;
    atomic_fetch_add(&c->visits, 1);
    for (int round = 1; round <= 5; round++) {
        c->slots[ith] = round;
        sheaf__cpu_barrier(sync, nth);
        for (int i = 0; i < nth; i++) {
            if (c->slots[i] != round) atomic_fetch_add(&c->wrong, 1);
        }
        sheaf__cpu_barrier(sync, nth);
    }
}

static struct sheaf__cpu_team *new_team(int n, bool shared) {
    struct sheaf__cpu_team *team;
    const struct sheaf__cpu_team_params params = {.n_threads = n, .shared = shared};
    cr_assert_eq(sheaf__cpu_team_new(&params, &team), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf__cpu_team_size(team), n);
    return team;
}

static void hammer(struct sheaf__cpu_team *team, int rounds) {
    struct counters c;
    int n = sheaf__cpu_team_size(team);
    memset(&c, 0, sizeof c);
    for (int i = 1; i <= rounds; i++) {
        sheaf__cpu_team_run(team, count, &c);
        cr_assert_eq(atomic_load(&c.visits), i * n);
    }
    cr_assert_eq(atomic_load(&c.wrong), 0);
}

Test(cpu_team, barriers_order_memory) {
    for (int n = 1; n <= MAX_THREADS; n++) {
        for (int shared = 0; shared < 2; shared++) {
            if (!shared && n > 2)
                continue; /* spinning teams larger than the machine only waste it */
            struct sheaf__cpu_team *team = new_team(n, shared);
            hammer(team, ROUNDS);
            sheaf__cpu_team_free(team);
        }
    }
}

Test(cpu_team, made_and_freed_without_a_run) {
    for (int i = 0; i < 50; i++) sheaf__cpu_team_free(new_team(4, i % 2));
    sheaf__cpu_team_free(NULL);
}

static void *hammer_main(void *team) {
    hammer(team, ROUNDS);
    return NULL;
}

Test(cpu_team, two_at_once) {
    struct sheaf__cpu_team *a = new_team(2, true), *b = new_team(3, true);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, hammer_main, a), 0);
    hammer(b, ROUNDS);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    hammer(a, 20); /* by another thread than before */
    sheaf__cpu_team_free(a);
    sheaf__cpu_team_free(b);
}

/* Sleeping workers take no processor time. */
Test(cpu_team, idle_workers_sleep) {
    struct sheaf__cpu_team *team = new_team(2, false);
    struct timespec before, after, pause = {.tv_nsec = 300 * 1000 * 1000};
    hammer(team, 3);
    nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL); /* ends the spinning */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    cr_assert_lt(used, 0.05, "%g s of processor time while idle", used);
    hammer(team, 3); /* and wake again */
    sheaf__cpu_team_free(team);
}

static void look_at_signals(void *user, int ith, int nth, struct sheaf__cpu_sync *sync) {
    sigset_t mask;
    (void)nth;
    (void)sync;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    ((int *)user)[ith] = sigismember(&mask, SIGINT);
}
Test(cpu_team, signals_are_for_the_caller) {
    int blocked[3] = {-1, -1, -1};
    struct sheaf__cpu_team *team = new_team(3, true);
    sheaf__cpu_team_run(team, look_at_signals, blocked);
    cr_assert_eq(blocked[0], 0);
    cr_assert_eq(blocked[1], 1);
    cr_assert_eq(blocked[2], 1);
    sheaf__cpu_team_free(team);
}

static void note_ith(void *user, int ith) { atomic_fetch_add((_Atomic int *)user, 1 << (8 * ith)); }
Test(cpu_team, binds_each_worker_once) {
    _Atomic int bound = 0;
    struct sheaf__cpu_team *team;
    struct counters c;
    const struct sheaf__cpu_team_params params = {
        .n_threads = 3, .shared = true, .bind = note_ith, .bind_user = &bound};
    cr_assert_eq(sheaf__cpu_team_new(&params, &team), SHEAF_STATUS_SUCCESS);
    memset(&c, 0, sizeof c);
    sheaf__cpu_team_run(team, count, &c);
    sheaf__cpu_team_run(team, count, &c);
    cr_assert_eq(atomic_load(&bound), 0x010100); /* not the caller */
    sheaf__cpu_team_free(team);
}

/* ---- a backend with a team ---- */

struct work {
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *x, *ids, *out;
    sheaf_backend_buffer_t buffer;
    sheaf_backend_t backend;
};

/* Small nodes (done by the caller alone), large ones and products, alternating. */
static struct work new_work(int threads) {
    struct work w = {0};
    w.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20, .no_alloc = true});
    w.x = sheaf_new_tensor_2d(w.ctx, SHEAF_TYPE_F32, 64, 200);
    w.ids = sheaf_new_tensor_1d(w.ctx, SHEAF_TYPE_I32, 100);
    struct sheaf_tensor *y = w.x;
    for (int i = 0; i < 10; i++) {
        struct sheaf_tensor *small = sheaf_view_2d(w.ctx, y, 64, 3, y->nb[1], 0);
        small = sheaf_scale(w.ctx, sheaf_rms_norm(w.ctx, small, 1e-5f), 0.5f);
        y = sheaf_add(
            w.ctx, y,
            sheaf_sum_rows(
                w.ctx,
                sheaf_transpose(w.ctx,
                                sheaf_cont(w.ctx, sheaf_transpose(w.ctx, sheaf_silu(w.ctx, y))))));
        y = sheaf_concat(w.ctx, small, sheaf_view_2d(w.ctx, y, 64, 197, y->nb[1], 3 * y->nb[1]), 1);
        y = sheaf_rms_norm(w.ctx, sheaf_get_rows(w.ctx, y, w.ids), 1e-5f);
        y = sheaf_concat(w.ctx, y, y, 1);
    }
    w.out = sheaf_mul_mat(w.ctx, w.x, y);
    w.graph = sheaf_new_graph(w.ctx);
    cr_assert_eq(sheaf_build_forward_expand(w.graph, w.out), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &w.backend), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_cpu_set_n_threads(w.backend, threads), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(w.ctx, w.backend, &w.buffer),
                 SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 64 * 200; i++)
        ((float *)w.x->data)[i] =
            (float)(((unsigned)i * 2654435761u) >> 8 & 0xFFFF) / 65536.0f - 0.5f;
    for (int i = 0; i < 100; i++) ((int32_t *)w.ids->data)[i] = i * 37 % 200;
    return w;
}

static void free_work(struct work *w) {
    sheaf_backend_buffer_free(w->buffer);
    sheaf_backend_free(w->backend);
    sheaf_free(w->ctx);
}

Test(cpu_team, same_bits_for_any_number_of_threads) {
    struct work w = new_work(1);
    size_t bytes = sheaf_nbytes(w.out);
    void *first = malloc(bytes);
    cr_assert_eq(sheaf_backend_graph_compute(w.backend, w.graph), SHEAF_STATUS_SUCCESS);
    memcpy(first, w.out->data, bytes);
    for (int threads = 2; threads <= 5; threads++) {
        cr_assert_eq(sheaf_backend_cpu_set_n_threads(w.backend, threads), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_cpu_get_n_threads(w.backend), threads);
        for (int i = 0; i < 5; i++) {
            memset(w.out->data, 0xFF, bytes);
            cr_assert_eq(sheaf_backend_graph_compute(w.backend, w.graph), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(memcmp(first, w.out->data, bytes), 0, "%d threads", threads);
        }
    }
    free(first);
    free_work(&w);
}

Test(cpu_team, bad_numbers_of_threads) {
    sheaf_backend_t backend;
    static const int bad[] = {0, -1, 1025, 1 << 30};
    cr_assert_eq(sheaf_backend_init_by_name("cpu0", "threads=2", &backend), SHEAF_STATUS_SUCCESS);
    cr_assert(sheaf_backend_is_cpu(backend));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(sheaf_backend_cpu_set_n_threads(backend, bad[i]), SHEAF_STATUS_INVALID);
        cr_assert_eq(sheaf_backend_cpu_get_n_threads(backend), 2);
    }
    sheaf_backend_free(backend);
    static const char *const params[] = {"threads=0",   "threads=-3", "threads=two",
                                         "threads=2,x", "speed=2",    "threads=99999"};
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        sheaf_clear_error();
        cr_assert_eq(sheaf_backend_init_by_name("CPU0", params[i], &backend), SHEAF_STATUS_INVALID,
                     "%s", params[i]);
        cr_assert_null(backend);
        cr_assert(strlen(sheaf_last_error()) > 0);
    }
}

struct countdown {
    int calls, stop_at;
};
static bool count_down(void *data) {
    struct countdown *c = data;
    return ++c->calls == c->stop_at;
}

/* Wherever the callback says stop, the compute ends at once, and the backend works afterwards. */
Test(cpu_team, abort_callback) {
    for (int threads = 1; threads <= 3; threads++) {
        struct work w = new_work(threads);
        struct countdown c = {0, -1};
        sheaf_backend_cpu_set_abort_callback(w.backend, count_down, &c);
        cr_assert_eq(sheaf_backend_graph_compute(w.backend, w.graph), SHEAF_STATUS_SUCCESS);
        const int all = c.calls;
        cr_assert_geq(all, 80);
        for (int at = 1; at <= all; at++) {
            c = (struct countdown){0, at};
            cr_assert_eq(sheaf_backend_graph_compute(w.backend, w.graph), SHEAF_STATUS_ABORTED);
            cr_assert_eq(c.calls, at);
        }
        sheaf_backend_cpu_set_abort_callback(w.backend, NULL, NULL);
        cr_assert_eq(sheaf_backend_graph_compute(w.backend, w.graph), SHEAF_STATUS_SUCCESS);
        free_work(&w);
    }
}

/* An error found by any member reaches the caller with its text. */
Test(cpu_team, errors_of_workers) {
    struct work w = new_work(3);
    for (int i = 0; i < 100; i += 9) {
        int32_t *ids = w.ids->data, was = ids[i];
        ids[i] = 4711;
        sheaf_clear_error();
        cr_assert_eq(sheaf_backend_graph_compute(w.backend, w.graph), SHEAF_STATUS_INVALID);
        cr_assert(strstr(sheaf_last_error(), "4711"), "'%s'", sheaf_last_error());
        ids[i] = was;
        cr_assert_eq(sheaf_backend_graph_compute(w.backend, w.graph), SHEAF_STATUS_SUCCESS);
    }
    free_work(&w);
}

/* Of several members that fail, the first gives the text, however fast the others are. */
Test(cpu_team, the_first_error_of_several) {
    struct work w = new_work(3);
    int32_t *ids = w.ids->data;
    for (int i = 0; i < 100; i++) ids[i] = 1000 + i;
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(sheaf_backend_graph_compute(w.backend, w.graph), SHEAF_STATUS_INVALID);
        cr_assert(strstr(sheaf_last_error(), "1000"), "'%s'", sheaf_last_error());
    }
    free_work(&w);
}

static void *compute_main(void *user) {
    struct work *w = user;
    for (int i = 0; i < 30; i++) {
        if (sheaf_backend_graph_compute(w->backend, w->graph) != SHEAF_STATUS_SUCCESS) return w;
    }
    return NULL;
}
Test(cpu_team, two_backends_at_once) {
    struct work a = new_work(2), b = new_work(3);
    pthread_t thread;
    void *failed;
    cr_assert_eq(pthread_create(&thread, NULL, compute_main, &a), 0);
    cr_assert_null(compute_main(&b));
    cr_assert_eq(pthread_join(thread, &failed), 0);
    cr_assert_null(failed);
    cr_assert_eq(memcmp(a.out->data, b.out->data, sheaf_nbytes(a.out)), 0);
    free_work(&a);
    free_work(&b);
}

/* ---- the profile ---- */

static char logged[16384];
static void keep_log(enum sheaf_log_level level, const char *text, void *user) {
    (void)level, (void)user;
    snprintf(logged, sizeof logged, "%s", text);
}

/* Every op in every type of weights, more than the table has lines for: none is lost, and the text is whole. */
Test(profile, has_the_time_of_all_ops) {
    struct sheaf_tensor weight = {0}, node = {.src = {&weight}};
    uint64_t calls = 0, sum = 0;
    sheaf_log_set(keep_log, NULL);
    setenv("SHEAF_CPU_PROFILE", "1", 1);
    struct sheaf__cpu_profile *p = sheaf__cpu_profile_new("CPU0");
    cr_assert(p);
    sheaf__cpu_profile_start(p);
    for (int op = 0; op < SHEAF_OP_COUNT; op++)
        for (int type = 0; type < SHEAF_TYPE_COUNT; type++) {
            node.op = (enum sheaf_op)op;
            weight.type = (enum sheaf_type)type;
            sheaf__cpu_profile_node(p, &node);
            calls++;
        }
    sheaf__cpu_profile_free(p);
    sheaf_log_set(NULL, NULL);
    cr_assert_lt(strlen(logged), 8191);
    int lines = 0;
    for (const char *line = strchr(logged, '\n'); line; line = strchr(line + 1, '\n')) {
        unsigned long long n;
        double ms, us, share;
        char last[8] = "";
        if (!lines++) continue; /* the head */
        cr_assert(strlen(line) > 22 &&
                      sscanf(line + 23, "%llu %lf %lf %lf %7s", &n, &ms, &us, &share, last) == 5,
                  "%.64s", line);
        cr_expect_str_eq(last, "%");
        sum += n;
    }
    cr_expect_eq(sum, calls, "%llu of %llu calls in %d lines", (unsigned long long)sum,
                 (unsigned long long)calls, lines);
    cr_expect(strstr(logged, "\nothers"), "%s", logged);
}

/* Two graphs; the first node of each takes 20 ms. */
Test(profile, says_where_the_time_goes) {
    static const struct {
        enum sheaf_op op;
        enum sheaf_type weights;
    } nodes[] = {{SHEAF_OP_MUL_MAT_ID, SHEAF_TYPE_Q8_0},
                 {SHEAF_OP_MUL_MAT_ID, SHEAF_TYPE_Q4_0},
                 {SHEAF_OP_GET_ROWS, SHEAF_TYPE_Q4_0},
                 {SHEAF_OP_ADD, SHEAF_TYPE_F32}};
    const char *const names[] = {"MUL_MAT_ID     q8_0 ", "MUL_MAT_ID     q4_0 ",
                                 "GET_ROWS       q4_0 ", "ADD "};
    sheaf_log_set(keep_log, NULL);
    setenv("SHEAF_CPU_PROFILE", "1", 1);
    sheaf__cpu_profile_free(sheaf__cpu_profile_new("CPU0"));
    cr_expect_str_empty(logged, "without a graph there is nothing to say");
    struct sheaf__cpu_profile *p = sheaf__cpu_profile_new("CPU0");
    uint64_t began = 0, took = 0;
    for (int graph = 0; graph < 2; graph++) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* of no node */
        began = sheaf__time_ns();
        sheaf__cpu_profile_start(p);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        for (int i = 0; i < 4; i++) {
            struct sheaf_tensor weight = {.type = nodes[i].weights};
            sheaf__cpu_profile_node(p, &(struct sheaf_tensor){.op = nodes[i].op, .src = {&weight}});
        }
        took += sheaf__time_ns() - began;
    }
    sheaf__cpu_profile_free(p);
    sheaf_log_set(NULL, NULL);
    const char *line = strstr(logged, ": ");
    double all, before = 1e9, sum = 0.0, shares = 0.0;
    unsigned graphs;
    cr_assert(line && sscanf(line, ": %u graphs, %lf ms", &graphs, &all) == 2, "%s", logged);
    cr_expect_eq(graphs, 2);
    cr_expect(all > 39.9 && all <= 1e-6 * (double)took + 0.1, "%s", logged);
    for (int i = 0; i < 4; i++) cr_expect(strstr(logged, names[i]), "%s in %s", names[i], logged);
    line = strchr(logged, '\n');
    for (int i = 0; i < 4; i++) {
        unsigned calls;
        double ms, us, share;
        line = strchr(line + 1, '\n');
        cr_assert(line && sscanf(line + 23, "%u %lf %lf %lf", &calls, &ms, &us, &share) == 4, "%s",
                  logged);
        cr_expect_eq(calls, 2);
        cr_expect_leq(ms, before, "the longest first: %s", logged);
        cr_expect_float_eq(us, 500.0 * ms, 2.6, "of two calls: %s", logged);
        before = ms;
        sum += ms;
        shares += share;
    }
    cr_expect_float_eq(sum, all, 0.1, "%s", logged);
    cr_expect_float_eq(shares, 100.0, 0.3, "%s", logged);
}
