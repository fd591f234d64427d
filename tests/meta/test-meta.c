/* The meta device over in-process members, and under mpirun through helper-meta and helper-load. */
#include <criterion/criterion.h>

#include "backend/optional.h"
#include "cpu_members.h"
#include "meta/backend.h"
#include "meta/buffer.h"
#include "meta_scenario.h"
#include "mpirun.h"

static void in_process(size_t n) {
    const sheaf_backend_dev_t *members = cpu_members(n);
    const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0};
    for (int i = 0; i < 3; i++) {
        for (int hole = 0; hole < 2; hole++) {
            cr_assert(run_meta_scenario(members, n, types[i], hole), "%zu members, %s, hole %d", n,
                      sheaf_type_name(types[i]), hole);
        }
    }
}

Test(meta, one_member) { in_process(1); }
Test(meta, two_members) { in_process(2); }
Test(meta, three_members) { in_process(3); }
Test(meta, five_members) { in_process(5); }

/* One thread a rank; want: what is printed. */
static void run_helper(const char *helper, int np, const char *env, const char *args,
                       const char *want) {
    char all[128], out[8192];
    snprintf(all, sizeof all, "SHEAF_CPU_THREADS=1 %s", env);
    const int status = run_mpirun(np, all, 120, out, sizeof out, "%s %s", helper, args);
    cr_assert_eq(status, 0, "status %d:\n%s", status, out);
    cr_assert(strstr(out, want), "wanted '%s':\n%s", want, out);
}

#define HOSTS      "SHEAF_COMM_TRANSPORT=mpi"
#define TWO_A_RANK "SHEAF_CPU_DEVICES=2"

static void computes(int np, const char *env, const char *args, const char *want) {
    run_helper("helper-meta", np, env, args, want);
}
Test(meta_mpirun, two_ranks) { computes(2, "", "", "ok 2 members on 2 ranks"); }
Test(meta_mpirun, three_ranks) { computes(3, "", "", "ok 3 members on 3 ranks"); }
Test(meta_mpirun, two_members_a_rank) { computes(2, TWO_A_RANK, "", "ok 4 members on 2 ranks"); }
Test(meta_mpirun, ranks_as_hosts) { computes(3, HOSTS, "", "ok 3 members on 3 ranks"); }
Test(meta_mpirun, rank_without_member) { computes(3, "", "leave", "ok 2 members on 3 ranks"); }

/* The meta device lists the devices of the job itself then, and says why it cannot. */
Test(meta_mpirun, a_wrong_list_of_devices_is_named) {
    char out[8192];
    const int status = run_mpirun(2, "SHEAF_CPU_THREADS=1 SHEAF_DEVICES=CPU7", 60, out, sizeof out,
                                  "helper-meta unlisted");
    cr_assert_gt(status, 0, "status %d:\n%s", status, out);
    cr_assert(strstr(out, "SHEAF_DEVICES: no rank has a device 'CPU7'"), "%s", out);
}

/* Loading where only some ranks can read. The bytes are what the ranks that cannot hold. */
static void loads(int np, const char *env, const char *args, const char *want) {
    run_helper("helper-load", np, env, args, want);
}
Test(meta_load, one_rank) { loads(1, "", "", "ok 1 members on 1 ranks, 0 bytes"); }
Test(meta_load, two_ranks) { loads(2, "", "", "ok 2 members on 2 ranks, 85504000 bytes sent"); }
Test(meta_load, three_ranks_as_hosts) {
    loads(3, HOSTS, "", "ok 3 members on 3 ranks, 147456000 bytes sent");
}
Test(meta_load, two_members_a_rank) {
    loads(2, TWO_A_RANK, "", "ok 4 members on 2 ranks, 78336000 bytes sent");
}
Test(meta_load, rank_without_member) {
    loads(3, "", "leave", "ok 2 members on 3 ranks, 122880000 bytes sent");
}

/* ---- what must fail, and how ---- */

struct rig {
    struct scenario_policy policy;
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend;
    struct scenario_model model;
    sheaf_gallocr_t galloc;
};

static void rig_up(struct rig *r, size_t n) {
    memset(r, 0, sizeof *r);
    r->policy = (struct scenario_policy){(int)n, false};
    const sheaf_backend_dev_t *members = cpu_members(n);
    cr_assert_eq(sheaf_backend_meta_device(members, n, scenario_state, &r->policy, NULL, &r->meta),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_dev_init(r->meta, NULL, &r->backend), SHEAF_STATUS_SUCCESS);
    cr_assert(scenario_load(&r->model, r->backend, SHEAF_TYPE_F32));
    r->galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(r->backend));
}

static void rig_down(struct rig *r) {
    sheaf_gallocr_free(r->galloc);
    scenario_unload(&r->model);
    sheaf_backend_free(r->backend);
    sheaf_backend_meta_device_free(r->meta);
}

Test(meta_errors, check_mode_finds_a_diverged_member) {
    struct rig r;
    rig_up(&r, 2);
    sheaf_backend_meta_set_check(r.backend, true);
    struct scenario_graph g;
    struct scenario_result result;
    cr_assert(scenario_graph(&g, &r.model, N_TOKENS));
    cr_assert(scenario_compute(&g, r.backend, r.galloc, 1, &result));
    float wrong = 2.0f;
    struct sheaf_tensor *slice = sheaf_backend_meta_get_slice(r.model.norm, 1);
    cr_assert_not_null(slice);
    cr_assert_eq(sheaf_backend_tensor_set(slice, &wrong, 0, sizeof wrong), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, g.graph), SHEAF_STATUS_FAILED);
    cr_assert(strstr(sheaf_last_error(), "differs between members 0 and 1"), "%s",
              sheaf_last_error());
    sheaf_free(g.ctx);
    rig_down(&r);
}

/* A row that does not exist, of a matrix that is cut by rows: the members meet in the sum behind it. */
Test(meta_errors, an_op_that_fails_without_the_end_of_the_job) {
    struct rig r;
    rig_up(&r, 2);
    cr_assert_eq(sheaf_backend_meta_set_lives_on(r.backend, true), SHEAF_STATUS_SUCCESS);
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, 2);
    sheaf_set_input(ids);
    struct sheaf_tensor *y = sheaf_get_rows(ctx, r.model.out, ids);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, graph), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 4; i++) {
        const int32_t rows[] = {1, i % 2 ? 0 : N_VOCAB};
        float got[2 * N_EMBD], want[N_EMBD];
        cr_assert_eq(sheaf_backend_tensor_set(ids, rows, 0, sizeof rows), SHEAF_STATUS_SUCCESS);
        const enum sheaf_status st = sheaf_backend_graph_compute(r.backend, graph);
        cr_expect_eq(st, i % 2 ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_INVALID);
        cr_expect(!st || strstr(sheaf_last_error(), "is outside [0,"), "%s", sheaf_last_error());
        cr_assert(!sheaf_world_failed());
        cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        if (st) continue;
        cr_assert_eq(sheaf_backend_tensor_get(r.model.out, want, sizeof want, sizeof want),
                     SHEAF_STATUS_SUCCESS);
        cr_expect(!memcmp(got, want, sizeof want));
    }
    sheaf_free(ctx);
    rig_down(&r);
}

/* One member has a wrong id, the other waits in the sum behind its rows. */
Test(meta_errors, a_member_that_fails_alone) {
    struct rig r;
    sheaf_backend_buffer_t buffer = NULL;
    rig_up(&r, 2);
    cr_assert_eq(sheaf_backend_meta_set_lives_on(r.backend, true), SHEAF_STATUS_SUCCESS);
    struct sheaf_context *leaves =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 12, .no_alloc = true});
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(leaves, SHEAF_TYPE_I32, 1);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(leaves, r.backend, &buffer), SHEAF_STATUS_SUCCESS);
    struct sheaf_tensor *y = sheaf_get_rows(ctx, r.model.out, ids);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, graph), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 6; i++) { /* member 0 fails, member 1, none, ... */
        const int32_t row = 1, outside = N_VOCAB;
        float got[N_EMBD], want[N_EMBD];
        cr_assert_eq(sheaf_backend_tensor_set(ids, &row, 0, sizeof row), SHEAF_STATUS_SUCCESS);
        struct sheaf_tensor *one = sheaf_backend_meta_get_slice(ids, (size_t)(i % 3 % 2));
        if (i % 3 < 2)
            cr_assert_eq(sheaf_backend_tensor_set(one, &outside, 0, sizeof outside),
                         SHEAF_STATUS_SUCCESS);
        const enum sheaf_status st = sheaf_backend_graph_compute(r.backend, graph);
        cr_assert_eq(st, i % 3 < 2 ? SHEAF_STATUS_INVALID : SHEAF_STATUS_SUCCESS);
        cr_assert(!sheaf_world_failed());
        if (st) continue;
        cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_get(r.model.out, want, sizeof want, sizeof want),
                     SHEAF_STATUS_SUCCESS);
        cr_expect(!memcmp(got, want, sizeof want));
    }
    sheaf_free(ctx);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(leaves);
    rig_down(&r);
}

Test(meta_errors, check_mode_needs_ranks_that_go_together) {
    struct rig r;
    rig_up(&r, 2);
    cr_expect_eq(sheaf_backend_meta_set_check(r.backend, true), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_backend_meta_set_lives_on(r.backend, true), SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_backend_meta_set_check(r.backend, false), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_backend_meta_set_lives_on(r.backend, true), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_backend_meta_set_check(r.backend, true), SHEAF_STATUS_INVALID);
    rig_down(&r);
}

static uint64_t first_version(sheaf_backend_t backend) {
    const struct meta_backend *b = sheaf__meta_backend_of(backend);
    const struct meta_program *p = b->programs[0];
    for (int i = 0; i < p->parts[0].n_instrs; i++)
        if (p->parts[0].instrs[i].kind == INSTR_SPAN) return p->parts[0].instrs[i].span.version;
    return 0;
}

/* Devices compare nothing as long as a version stands, so it must not outlive an address. */
Test(meta, spans_keep_their_version_until_memory_moves) {
    struct rig r;
    rig_up(&r, 2);
    struct scenario_graph a, b;
    struct scenario_result result;
    uint64_t versions[5];
    cr_assert(scenario_graph(&a, &r.model, 1) && scenario_graph(&b, &r.model, N_TOKENS));
    for (int i = 0; i < 3; i++) {
        cr_assert(scenario_compute(&a, r.backend, r.galloc, (unsigned)i, &result));
        versions[i] = first_version(r.backend);
    }
    cr_assert(scenario_compute(&b, r.backend, r.galloc, 1, &result)); /* takes larger inputs */
    for (int i = 3; i < 5; i++) {
        cr_assert(scenario_compute(&a, r.backend, r.galloc, (unsigned)i, &result));
        versions[i] = first_version(r.backend);
    }
    cr_assert_neq(versions[0], 0);
    cr_assert(versions[1] == versions[0] && versions[2] == versions[0]);
    cr_assert(versions[3] != versions[0] && versions[4] == versions[3]);
    sheaf_free(a.ctx);
    sheaf_free(b.ctx);
    rig_down(&r);
}

Test(meta_errors, an_input_whose_memory_went_to_another_graph) {
    struct rig r;
    rig_up(&r, 2);
    struct scenario_graph a, b;
    cr_assert(scenario_graph(&a, &r.model, N_TOKENS) && scenario_graph(&b, &r.model, 1));
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, a.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, b.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, a.graph), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "allocate this graph again"), "%s", sheaf_last_error());
    /* its record has the slices of the other, which are larger than its data */
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, b.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, a.graph), SHEAF_STATUS_SUCCESS);
    void *data = calloc(1, sheaf_nbytes(b.x));
    const struct sheaf_tensor_write stale = {b.x, data};
    cr_assert_eq(sheaf_backend_tensors_set(r.backend, &stale, 1), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "allocate this graph again"), "%s", sheaf_last_error());
    free(data);
    sheaf_free(a.ctx);
    sheaf_free(b.ctx);
    rig_down(&r);
}

/* The other way round the allocator lets go of the first buffer. */
Test(meta_errors, an_input_whose_memory_the_allocator_has_left) {
    struct rig r;
    rig_up(&r, 2);
    struct scenario_graph a, b;
    struct scenario_result result;
    cr_assert(scenario_graph(&a, &r.model, 1) && scenario_graph(&b, &r.model, N_TOKENS));
    cr_assert(scenario_compute(&a, r.backend, r.galloc, 1, &result));
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, b.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, a.graph), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "allocate this graph again"), "%s", sheaf_last_error());
    cr_assert(!sheaf_world_failed());
    cr_assert(scenario_compute(&b, r.backend, r.galloc, 1, &result));
    sheaf_free(a.ctx);
    sheaf_free(b.ctx);
    rig_down(&r);
}

/* A view of an input, computed with memory of its own. */
static void compute_view(struct rig *r, int64_t n) {
    float values[512], got = 0;
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct sheaf_tensor *x = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, n);
    struct sheaf_tensor *y = sheaf_scale(ctx, sheaf_view_1d(ctx, x, n - 1, sizeof(float)), 4.0f);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(r->backend));
    sheaf_set_input(x);
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, graph), SHEAF_STATUS_SUCCESS);
    for (int64_t i = 0; i < n; i++) values[i] = (float)i;
    cr_assert_eq(sheaf_backend_tensor_set(x, values, 0, (size_t)n * sizeof *values),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r->backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    const size_t last = (size_t)(n - 2) * sizeof got;
    cr_assert_eq(sheaf_backend_tensor_get(y, &got, last, sizeof got), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(got, 4.0f * (float)(n - 1), "%g", (double)got);
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}

/* The program of the first graph is found again, when its input's buffer is gone and the compute
 * buffers have moved. */
Test(meta, an_input_in_a_new_buffer_after_memory_moved) {
    struct rig r;
    void *used[64];
    rig_up(&r, 2);
    compute_view(&r, 16);
    compute_view(&r, 512);
    for (int i = 0; i < 64; i++) { /* freed memory holds something else by now */
        used[i] = malloc(sizeof(struct sheaf_backend_buffer));
        memset(used[i], 0xff, sizeof(struct sheaf_backend_buffer));
    }
    compute_view(&r, 16);
    for (int i = 0; i < 64; i++) free(used[i]);
    rig_down(&r);
}

/* A graph that writes over its operand and one that does not have programs of their own, whichever comes first. */
static void in_place_or_not(bool in_place_first) {
    struct rig r;
    sheaf_backend_buffer_t buffer = NULL;
    rig_up(&r, 2);
    struct sheaf_context *leaves =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 12, .no_alloc = true});
    struct sheaf_tensor *x = sheaf_new_tensor_1d(leaves, SHEAF_TYPE_F32, 8);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(leaves, r.backend, &buffer), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 4; i++) {
        const bool in_place = (i % 2 == 0) == in_place_first;
        const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        float got[8], left[8];
        struct sheaf_context *ctx =
            sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
        struct sheaf_tensor *y = sheaf_scale(ctx, x, 4.0f);
        if (in_place) cr_assert_not_null(sheaf_in_place(y, 0));
        struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
        cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, graph), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_set(x, ones, 0, sizeof ones), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_get(x, left, 0, sizeof left), SHEAF_STATUS_SUCCESS);
        cr_expect_eq(got[7], 4.0f, "%d: %g", i, (double)got[7]);
        cr_expect_eq(left[7], in_place ? 4.0f : 1.0f, "%d: %g", i, (double)left[7]);
        sheaf_free(ctx);
    }
    sheaf_backend_buffer_free(buffer);
    sheaf_free(leaves);
    rig_down(&r);
}
Test(meta, results_in_place_behind_others) { in_place_or_not(false); }
Test(meta, results_behind_those_in_place) { in_place_or_not(true); }

/* No other member waits for a single one, so its failure ends nothing. */
Test(meta_errors, a_single_member_that_fails_goes_on) {
    struct rig r;
    rig_up(&r, 1);
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, 1);
    sheaf_set_input(ids);
    struct sheaf_tensor *y = sheaf_get_rows(ctx, r.model.out, ids);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, graph), SHEAF_STATUS_SUCCESS);
    const int32_t outside = N_VOCAB;
    cr_assert_eq(sheaf_backend_tensor_set(ids, &outside, 0, sizeof outside), SHEAF_STATUS_SUCCESS);
    cr_assert_neq(sheaf_backend_graph_compute(r.backend, graph), SHEAF_STATUS_SUCCESS);
    cr_assert(strstr(sheaf_last_error(), "is outside [0,"), "%s", sheaf_last_error());
    cr_assert(!sheaf_world_failed());
    struct scenario_graph g;
    struct scenario_result result;
    cr_assert(scenario_graph(&g, &r.model, N_TOKENS));
    cr_assert(scenario_compute(&g, r.backend, r.galloc, 1, &result));
    sheaf_free(g.ctx);
    sheaf_free(ctx);
    rig_down(&r);
}

static int n_waits;
static enum sheaf_status count_wait(sheaf_backend_t backend) {
    (void)backend;
    n_waits++;
    return SHEAF_STATUS_SUCCESS;
}

static struct sheaf_backend_meta_stats stats_of(sheaf_backend_t backend) {
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    cr_assert_eq(sheaf_backend_meta_get_stats(backend, &stats), SHEAF_STATUS_SUCCESS);
    return stats;
}

/* Members may queue them; a run leaves nothing in their queues. */
Test(meta, uploads_of_inputs_are_waited_for) {
    struct rig r;
    rig_up(&r, 3);
    struct scenario_graph g;
    struct scenario_result result;
    cr_assert(scenario_graph(&g, &r.model, 1));
    cr_assert(scenario_compute(&g, r.backend, r.galloc, 1, &result));
    for (size_t i = 0; i < 3; i++)
        cr_expect_eq(sheaf_backend_meta_get_slice(g.x, i)->buffer->usage,
                     SHEAF_BACKEND_BUFFER_USAGE_COMPUTE);
    void *data = calloc(1, sheaf_nbytes(g.x));
    const struct sheaf_tensor_write input = {g.x, data};
    cr_assert_eq(sheaf_backend_tensors_set(r.backend, &input, 1), SHEAF_STATUS_SUCCESS);
    struct sheaf_backend_i counts[3];
    const struct sheaf_backend_i *own[3];
    for (size_t i = 0; i < 3; i++) {
        sheaf_backend_t member = sheaf_backend_meta_member_backend(r.backend, i);
        own[i] = member->iface;
        counts[i] = *own[i];
        counts[i].synchronize = count_wait;
        member->iface = &counts[i];
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(sheaf_backend_synchronize(r.backend), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(n_waits, 3, "%d", n_waits); /* not again */
    }
    for (size_t i = 0; i < 3; i++) sheaf_backend_meta_member_backend(r.backend, i)->iface = own[i];
    cr_expect_geq(stats_of(r.backend).input_bytes, 3 * sheaf_nbytes(g.x));
    sheaf_gallocr_free(r.galloc);
    r.galloc = NULL;
    cr_expect_eq(stats_of(r.backend).input_bytes, 0);
    free(data);
    sheaf_free(g.ctx);
    rig_down(&r);
}

Test(meta_errors, a_leaf_outside_the_device) {
    struct rig r;
    rig_up(&r, 1);
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20, .no_alloc = false});
    struct sheaf_tensor *host =
        sheaf_set_name(sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, N_EMBD, 1), "elsewhere");
    sheaf_set_no_alloc(ctx, true);
    struct sheaf_tensor *y = sheaf_mul_mat(ctx, r.model.out, host);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(r.galloc, graph), SHEAF_STATUS_SUCCESS);
    cr_assert_neq(sheaf_backend_graph_compute(r.backend, graph), SHEAF_STATUS_SUCCESS);
    cr_assert(strstr(sheaf_last_error(), "'elsewhere' is not in a buffer of the meta device"), "%s",
              sheaf_last_error());
    sheaf_free(ctx);
    rig_down(&r);
}

/* Two weights in one buffer, the second so many bytes behind the first. */
static enum sheaf_status add_two(struct rig *r, size_t offset) {
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct sheaf_tensor *a = sheaf_set_name(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 16), "below");
    struct sheaf_tensor *b = sheaf_set_name(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 16), "above");
    struct sheaf_tensor *y = sheaf_add(ctx, a, b);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    sheaf_backend_buffer_t buffer;
    const size_t before = stats_of(r->backend).static_bytes;
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(sheaf_backend_get_default_buffer_type(r->backend),
                                                 256, &buffer),
                 SHEAF_STATUS_SUCCESS);
    char *base = sheaf_backend_buffer_get_base(buffer);
    cr_assert_eq(sheaf_backend_tensor_alloc(buffer, b, base + offset), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_alloc(buffer, a, base), SHEAF_STATUS_SUCCESS);
    size_t bytes = 0;
    for (size_t i = 0; sheaf_backend_meta_get_slice(a, i); i++)
        bytes += sheaf_nbytes(sheaf_backend_meta_get_slice(a, i)) +
                 sheaf_nbytes(sheaf_backend_meta_get_slice(b, i));
    cr_expect_eq(stats_of(r->backend).static_bytes, before + bytes);
    cr_expect(sheaf_backend_meta_get_slice(a, 0)->flags & SHEAF__TENSOR_PRIVATE);
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(r->galloc, graph), SHEAF_STATUS_SUCCESS);
    const enum sheaf_status st = sheaf_backend_graph_compute(r->backend, graph);
    sheaf_backend_buffer_free(buffer);
    cr_expect_eq(stats_of(r->backend).static_bytes, before);
    sheaf_free(ctx);
    return st;
}

Test(meta_errors, weights_that_lie_over_each_other) {
    struct rig r;
    rig_up(&r, 2);
    cr_assert_eq(add_two(&r, 64), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_eq(add_two(&r, 60), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "'below' and 'above' lie over each other"), "%s",
              sheaf_last_error());
    rig_down(&r);
}

static enum sheaf_status state_for_three(const struct sheaf_tensor *t, const void *user,
                                         struct sheaf_split_state **out) {
    (void)t;
    (void)user;
    *out = sheaf_split_state_mirrored(3);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status no_state(const struct sheaf_tensor *t, const void *user,
                                  struct sheaf_split_state **out) {
    (void)t;
    (void)user;
    (void)out;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status state_that_does_not_fit(const struct sheaf_tensor *t, const void *user,
                                                 struct sheaf_split_state **out) {
    (void)t;
    (void)user;
    *out = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){3, 4}, 1);
    return SHEAF_STATUS_SUCCESS;
}

Test(meta_errors, a_state_that_does_not_fit) {
    const sheaf_backend_dev_t *members = cpu_members(2);
    const struct {
        sheaf_backend_meta_get_split_state_fn fn;
        const char *want;
    } cases[] = {{state_for_three, "a state for 3 members, the device has 2"},
                 {no_state, "'weight': the caller's function gave no state"},
                 {state_that_does_not_fit, "its segments have 7 indices, the dimension has 10"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sheaf_backend_dev_t meta;
        cr_assert_eq(sheaf_backend_meta_device(members, 2, cases[i].fn, NULL, NULL, &meta),
                     SHEAF_STATUS_SUCCESS);
        struct sheaf_context *ctx =
            sheaf_init((struct sheaf_init_params){.mem_size = 1 << 12, .no_alloc = true});
        sheaf_set_name(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 10), "weight");
        sheaf_backend_buffer_t buffer;
        cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(
                         ctx, sheaf_backend_dev_buffer_type(meta), &buffer),
                     SHEAF_STATUS_INVALID);
        cr_assert(strstr(sheaf_last_error(), cases[i].want), "%s", sheaf_last_error());
        cr_assert_null(buffer);
        sheaf_free(ctx);
        sheaf_backend_meta_device_free(meta);
    }
}

Test(meta_errors, members_out_of_order_or_twice) {
    const sheaf_backend_dev_t *members = cpu_members(2);
    const sheaf_backend_dev_t twice[] = {members[0], members[0]};
    sheaf_backend_dev_t meta;
    cr_assert_eq(sheaf_backend_meta_device(twice, 2, scenario_state, NULL, NULL, &meta),
                 SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "listed twice"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_meta_device(NULL, 0, scenario_state, NULL, NULL, &meta),
                 SHEAF_STATUS_INVALID);
}

/* ---- writing into a cache whose cut no row of the op keeps ---- */

static enum sheaf_status cache_by_rows(const struct sheaf_tensor *t, const void *user,
                                       struct sheaf_split_state **out) {
    (void)t;
    const int n = *(const int *)user;
    int64_t counts[8];
    scenario_counts(12, n, false, counts);
    *out = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, n, counts, 1);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* Writes rows into a cache [8, 12], reads two of them back in the same graph; cache and rows to
 * `got`. */
static void write_cache(sheaf_backend_t backend, float got[8 * 12 + 8 * 2]) {
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = 32 * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(16),
        .no_alloc = true});
    struct sheaf_tensor *cache =
        sheaf_set_name(sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 8, 12), "cache");
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_buffer_clear(buffer, 0), SHEAF_STATUS_SUCCESS);
    struct sheaf_tensor *rows = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 8, 3);
    struct sheaf_tensor *at = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, 3);
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, 2);
    struct sheaf_tensor *back = sheaf_get_rows(ctx, sheaf_set_rows(ctx, cache, rows, at), ids);
    sheaf_set_output(back);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 16);
    cr_assert_eq(sheaf_build_forward_expand(graph, back), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    for (int round = 0; round < 2; round++) {
        float values[8 * 3];
        const int32_t where[3] = {(int32_t)(11 - round), (int32_t)round, 5},
                      read[2] = {5, (int32_t)(11 - round)};
        for (size_t i = 0; i < 24; i++) values[i] = scenario_value(i, (unsigned)round);
        cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, graph), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_set(rows, values, 0, sizeof values),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_set(at, where, 0, sizeof where), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_set(ids, read, 0, sizeof read), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
    }
    cr_assert_eq(sheaf_backend_tensor_get(cache, got, 0, sheaf_nbytes(cache)),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_get(back, got + 8 * 12, 0, sheaf_nbytes(back)),
                 SHEAF_STATUS_SUCCESS);
    sheaf_gallocr_free(galloc);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
}

Test(meta, a_cache_cut_by_rows_is_written_back) {
    const sheaf_backend_dev_t *members = cpu_members(3);
    sheaf_backend_t cpu;
    float want[8 * 12 + 8 * 2], got[8 * 12 + 8 * 2];
    cr_assert_eq(sheaf_backend_dev_init(members[0], NULL, &cpu), SHEAF_STATUS_SUCCESS);
    write_cache(cpu, want);
    cr_assert_neq(want[5 * 8], 0);
    for (int n = 1; n <= 3; n++) {
        sheaf_backend_dev_t meta;
        sheaf_backend_t backend;
        cr_assert_eq(sheaf_backend_meta_device(members, (size_t)n, cache_by_rows, &n, NULL, &meta),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), SHEAF_STATUS_SUCCESS);
        memset(got, 0x55, sizeof got);
        write_cache(backend, got);
        cr_assert(!memcmp(got, want, sizeof got), "%d members", n);
        sheaf_backend_free(backend);
        sheaf_backend_meta_device_free(meta);
    }
    sheaf_backend_free(cpu);
}

/* ---- a weight that a member's device keeps in an order of its own ---- */

enum { LONG = 512, FEW = 8 };

static enum sheaf_status halves_of_k(const struct sheaf_tensor *t, const void *user,
                                     struct sheaf_split_state **out) {
    const int64_t counts[2] = {LONG / 2, LONG / 2};
    (void)t, (void)user;
    *out = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, counts, 1);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* y = w . ones, in `backend`; w is allocated. */
static void multiply_by_ones(sheaf_backend_t backend, struct sheaf_tensor *w, float y[FEW]) {
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 15, .no_alloc = true});
    struct sheaf_tensor *x = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, w->ne[0]);
    struct sheaf_tensor *product = sheaf_mul_mat(ctx, w, x);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    float ones[LONG];
    for (int i = 0; i < LONG; i++) ones[i] = 1;
    sheaf_set_output(product);
    cr_assert_eq(sheaf_build_forward_expand(graph, product), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, graph), SHEAF_STATUS_SUCCESS);
    sheaf_backend_tensor_set(x, ones, 0, sheaf_nbytes(x));
    cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    sheaf_backend_tensor_get(product, y, 0, FEW * sizeof *y);
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}

/* A weight of the backend with the same values, and its buffer. */
static struct sheaf_tensor *weight_in(sheaf_backend_t backend, struct sheaf_context *ctx,
                                      sheaf_backend_buffer_t *buffer) {
    struct sheaf_tensor *w = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_Q4_0, LONG, FEW);
    float values[LONG * FEW];
    char bytes[LONG * FEW];
    for (size_t i = 0; i < LONG * FEW; i++) values[i] = scenario_value(i, 1);
    cr_assert_eq(sheaf_from_float(w->type, values, bytes, LONG * FEW), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, backend, buffer), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(w, bytes, 0, sheaf_nbytes(w)), SHEAF_STATUS_SUCCESS);
    return w;
}

/* Sums that are whole gather a weight that is cut along them, or a view of it, in the order in which it was written. */
static void gather_what_lies_otherwise(bool view) {
    setenv("SHEAF_SPLIT_SUMS", "whole", 1);
    const sheaf_backend_dev_t *members = cpu_members(2);
    const struct sheaf_init_params room = {.mem_size = 1 << 14, .no_alloc = true};
    struct sheaf_context *ctx[2] = {sheaf_init(room), sheaf_init(room)};
    sheaf_backend_buffer_t buffer[2];
    sheaf_backend_dev_t meta;
    sheaf_backend_t cpu, backend;
    float want[FEW], got[FEW], part[FEW];
    cr_assert_eq(sheaf_backend_dev_init(members[0], NULL, &cpu), SHEAF_STATUS_SUCCESS);
    multiply_by_ones(cpu, weight_in(cpu, ctx[0], &buffer[0]), want);
    cr_assert_eq(sheaf_backend_meta_device(members, 2, halves_of_k, NULL, NULL, &meta),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), SHEAF_STATUS_SUCCESS);
    struct sheaf_tensor *w = sheaf_set_name(weight_in(backend, ctx[1], &buffer[1]), "weight");
    const struct sheaf_tensor *slice = sheaf_backend_meta_get_slice(w, 0);
    cr_expect(slice->flags & SHEAF__TENSOR_PRIVATE, "the device may keep it in another order");
    for (size_t i = 0; i < 2; i++)
        multiply_by_ones(sheaf_backend_meta_member_backend(backend, i),
                         sheaf_backend_meta_get_slice(w, i), part);
    if (sheaf_backend_buffer_is_host(slice->buffer))
        cr_skip("the kernels for this CPU leave weights as they were written");
    struct sheaf_tensor *shown = view ? sheaf_view_2d(ctx[1], w, LONG, FEW, w->nb[1], 0) : w;
    if (view) sheaf_set_name(shown, "");
    multiply_by_ones(backend, shown, got);
    for (int i = 0; i < FEW; i++) cr_expect_eq(got[i], want[i], "row %d", i);
    cr_expect(sheaf_backend_buffer_is_host(slice->buffer));
    const struct meta_part *steps = sheaf__meta_backend_of(backend)->program->parts;
    for (int i = 0; i < steps->n_instrs; i++) /* a view without a name has that of what it shows */
        if (steps->instrs[i].kind == INSTR_COLLECTIVE)
            cr_expect_str_eq(steps->instrs[i].call.what.tensor, "weight");
    for (int i = 0; i < 2; i++) sheaf_backend_buffer_free(buffer[i]), sheaf_free(ctx[i]);
    sheaf_backend_free(cpu);
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
}
Test(meta, a_weight_that_lies_otherwise_is_gathered) { gather_what_lies_otherwise(false); }
Test(meta, a_view_of_a_weight_that_lies_otherwise_is_gathered) { gather_what_lies_otherwise(true); }

/* ---- a cache of three heads of four, whose middle one two members have ---- */

static enum sheaf_status overlapping_heads(const struct sheaf_tensor *t, const void *user,
                                           struct sheaf_split_state **out) {
    (void)t, (void)user;
    *out = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 2, 1);
    if (!*out) return SHEAF_STATUS_ALLOC_FAILED;
    struct sheaf_split_segment *s = (*out)->segments;
    s->outer = 1;
    s->inner = 4;
    s->units = 3;
    s->first[1] = 1;
    s->count[0] = s->count[1] = 2;
    return SHEAF_STATUS_SUCCESS;
}

/* Both copies of the middle head are written, whole and in parts, and it is read once. */
Test(meta, a_head_on_two_members_is_saved_and_restored) {
    enum { WIDTH = 12, ROWS = 5, LOCAL = 8 };
    float want[ROWS * WIDTH], got[ROWS * WIDTH], part[9];
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend;
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(sheaf_backend_meta_device(cpu_members(2), 2, overlapping_heads, NULL, NULL, &meta),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), SHEAF_STATUS_SUCCESS);
    struct sheaf_context *ctx = sheaf_init(
        (struct sheaf_init_params){.mem_size = 4 * sheaf_tensor_overhead(), .no_alloc = true});
    struct sheaf_tensor *cache =
        sheaf_set_name(sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, WIDTH, ROWS), "cache");
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    for (size_t i = 0; i < ROWS * WIDTH; i++) want[i] = scenario_value(i, 1);
    cr_assert_eq(sheaf_backend_tensor_set(cache, want, 0, sizeof want), SHEAF_STATUS_SUCCESS);
    for (size_t first = 2; first + 9 < ROWS * WIDTH;
         first += 13) { /* over ends of heads and rows */
        for (size_t i = 0; i < 9; i++) part[i] = want[first + i] = scenario_value(i, 2);
        cr_assert_eq(sheaf_backend_tensor_set(cache, part, first * sizeof *part, sizeof part),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_get(cache, got, first * sizeof *got, sizeof part),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_arr_eq(got, part, sizeof part);
    }
    cr_assert_eq(sheaf_backend_tensor_get(cache, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
    cr_assert_arr_eq(got, want, sizeof want);
    const struct meta_tensor *record = cache->extra;
    for (size_t m = 0; m < 2; m++) {
        cr_assert_eq(record->slices[m]->ne[0], LOCAL);
        for (size_t row = 0; row < ROWS; row++)
            cr_assert_arr_eq((const float *)record->slices[m]->data + row * LOCAL,
                             want + row * WIDTH + m * 4, LOCAL * sizeof *want, "member %zu", m);
    }
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
}

/* ---- a whole tensor whose rows lie across, cut to meet a cut one ---- */

static enum sheaf_status plain_cut(const struct sheaf_tensor *t, const void *user,
                                   struct sheaf_split_state **out) {
    (void)user;
    *out = strcmp(t->name, "cut")
               ? sheaf_split_state_mirrored(2)
               : sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){3, 7}, 1);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* The slice of a transposed tensor along dimension 0 began at element 3 of memory, not of the row;
 * b repeats, so the planner cannot cut it before the transposition. */
Test(meta, a_transposed_operand_is_cut_by_its_strides) {
    const sheaf_backend_dev_t *members = cpu_members(2);
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend;
    cr_assert_eq(sheaf_backend_meta_device(members, 2, plain_cut, NULL, NULL, &meta),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), SHEAF_STATUS_SUCCESS);
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = 16 * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(8),
        .no_alloc = true});
    struct sheaf_tensor *a =
        sheaf_set_name(sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, 10, 4, 6), "cut");
    struct sheaf_tensor *b = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, 4, 10, 3);
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer), SHEAF_STATUS_SUCCESS);
    struct sheaf_tensor *y = sheaf_add(ctx, a, sheaf_transpose(ctx, b));
    sheaf_set_output(y);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, graph), SHEAF_STATUS_SUCCESS);
    float va[240], vb[120], got[240];
    for (int i = 0; i < 240; i++) va[i] = (float)i;
    for (int i = 0; i < 120; i++) vb[i] = (float)(1000 * i);
    cr_assert_eq(sheaf_backend_tensor_set(a, va, 0, sizeof va), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(b, vb, 0, sizeof vb), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
    for (int h = 0; h < 6; h++) {
        for (int j = 0; j < 4; j++) {
            for (int i = 0; i < 10; i++) {
                const int at = (h * 4 + j) * 10 + i;
                cr_assert_eq(got[at], va[at] + vb[((h % 3) * 10 + i) * 4 + j], "%d %d %d", i, j, h);
            }
        }
    }
    sheaf_gallocr_free(galloc);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
}

/* A device may fetch weights early, and only those, so each member's memory is marked as well. */
Test(meta, usage_reaches_the_members) {
    struct rig r;
    rig_up(&r, 3);
    const struct meta_buffer *mb = r.model.buffer->context;
    for (int i = 0; i < 3; i++)
        cr_assert_eq(mb->bulk[i]->usage, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS, "member %d", i);
    rig_down(&r);
}

/* ---- what a meta device says of itself ---- */

static enum sheaf_status mirror_all(const struct sheaf_tensor *t, const void *user,
                                    struct sheaf_split_state **out) {
    (void)t, (void)user;
    *out = sheaf_split_state_mirrored(3);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

Test(meta, names_its_members) {
    const sheaf_backend_dev_t *members = cpu_members(3);
    sheaf_backend_dev_t meta;
    cr_assert_eq(sheaf_backend_meta_device(members, 3, mirror_all, NULL, NULL, &meta),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert(sheaf_backend_dev_is_meta(meta) && !sheaf_backend_dev_is_meta(members[0]));
    cr_assert_eq(sheaf_backend_meta_dev_n_members(meta), 3);
    cr_assert_eq(sheaf_backend_meta_dev_n_local(meta), 3);
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(sheaf_backend_meta_dev_member(meta, i), members[i]);
        cr_assert_eq(sheaf_backend_meta_dev_local_member(meta, i), i);
    }
    cr_assert_not_null(sheaf_backend_meta_dev_comm(meta));
    sheaf_backend_meta_device_free(meta);
}

Test(meta, params_are_checked) {
    const sheaf_backend_dev_t *members = cpu_members(2);
    struct scenario_policy policy = {.n_members = 2};
    struct sheaf_backend_meta_params p = {0};
    sheaf_backend_dev_t meta;
    cr_assert_eq(sheaf_backend_meta_device(members, 2, scenario_state, &policy, &p, &meta),
                 SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "size"), "%s", sheaf_last_error());
    p.size = sizeof p;
    p.overlap = (enum sheaf_backend_meta_overlap)3;
    cr_assert_eq(sheaf_backend_meta_device(members, 2, scenario_state, &policy, &p, &meta),
                 SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "overlap 3"), "%s", sheaf_last_error());
    p.overlap = SHEAF_BACKEND_META_OVERLAP_NEVER;
    p.wire_type = SHEAF_TYPE_Q4_0;
    cr_assert_eq(sheaf_backend_meta_device(members, 2, scenario_state, &policy, &p, &meta),
                 SHEAF_STATUS_INVALID);
    cr_assert_null(meta);
}

/* Calls for the meta device that are given a CPU's backend or device. */
Test(meta, other_backends_are_refused) {
    const sheaf_backend_dev_t cpu = cpu_members(1)[0];
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats, .n_plans = 7};
    sheaf_backend_t backend;
    cr_assert_eq(sheaf_backend_dev_init(cpu, NULL, &backend), SHEAF_STATUS_SUCCESS);
    const sheaf_backend_t wrong[] = {backend, NULL};
    for (int i = 0; i < 2; i++) {
        cr_expect_null(sheaf_backend_meta_transport(wrong[i]));
        cr_expect(strstr(sheaf_last_error(), i ? "NULL is no" : "CPU0 is no"), "%s",
                  sheaf_last_error());
        cr_expect_eq(sheaf_backend_meta_set_check(wrong[i], true), SHEAF_STATUS_INVALID);
        cr_expect_eq(sheaf_backend_meta_set_lives_on(wrong[i], true), SHEAF_STATUS_INVALID);
        cr_expect_eq(sheaf_backend_meta_get_stats(wrong[i], &stats), SHEAF_STATUS_INVALID);
        cr_expect_eq(sheaf_backend_meta_reset_stats(wrong[i]), SHEAF_STATUS_INVALID);
    }
    cr_expect_eq(stats.n_plans, 7);
    cr_expect_eq(sheaf_backend_meta_dev_n_members(cpu), 0);
    cr_expect_eq(sheaf_backend_meta_dev_n_local(cpu), 0);
    cr_expect_eq(sheaf_backend_meta_dev_local_member(cpu, 0), SIZE_MAX);
    cr_expect_null(sheaf_backend_meta_dev_member(cpu, 0));
    cr_expect_null(sheaf_backend_meta_dev_comm(cpu));
    sheaf_backend_free(backend);
}

/* ---- weights that come and go ---- */

struct weights {
    struct sheaf_context *ctx;
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *w;
};

static enum sheaf_status cut_or_not(const struct sheaf_tensor *t, const void *user,
                                    struct sheaf_split_state **out) {
    (void)t;
    *out = *(const bool *)user ? sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){3, 7}, 1)
                               : sheaf_split_state_mirrored(2);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* Ten elements, 1 to 10 times the value, in a buffer of their own. */
static void place_weights(struct weights *w, sheaf_backend_t backend, float value) {
    float values[10];
    if (!w->ctx) {
        w->ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 12, .no_alloc = true});
        w->w = sheaf_new_tensor_1d(w->ctx, SHEAF_TYPE_F32, 10);
    }
    w->w->data = w->w->extra = NULL;
    w->w->buffer = NULL;
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(w->ctx, backend, &w->buffer), SHEAF_STATUS_SUCCESS,
                 "%s", sheaf_last_error());
    for (int i = 0; i < 10; i++) values[i] = value * (float)(i + 1);
    cr_assert_eq(sheaf_backend_tensor_set(w->w, values, 0, sizeof values), SHEAF_STATUS_SUCCESS);
}

struct doubled { /* y = 2 w */
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *y;
};

static void double_weights(struct doubled *d, const struct weights *w) {
    d->ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 14, .no_alloc = true});
    d->y = sheaf_scale(d->ctx, w->w, 2.0f);
    sheaf_set_output(d->y);
    d->graph = sheaf_new_graph_custom(d->ctx, 8);
    cr_assert_eq(sheaf_build_forward_expand(d->graph, d->y), SHEAF_STATUS_SUCCESS);
}

static void expect_multiples(const struct sheaf_tensor *y, float want) {
    float got[10];
    cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    for (int i = 0; i < 10; i++)
        cr_expect_eq(got[i], want * (float)(i + 1), "%d: %g", i, (double)got[i]);
}

static void compute_doubled(struct doubled *d, sheaf_backend_t backend, sheaf_gallocr_t galloc,
                            float want) {
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, d->graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(backend, d->graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    expect_multiples(d->y, want);
}

struct two { /* members, and whether weights are cut */
    bool cut;
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend;
    sheaf_gallocr_t galloc;
};

static void two_up(struct two *t) {
    *t = (struct two){.cut = true};
    cr_assert_eq(sheaf_backend_meta_device(cpu_members(2), 2, cut_or_not, &t->cut, NULL, &t->meta),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_dev_init(t->meta, NULL, &t->backend), SHEAF_STATUS_SUCCESS);
    t->galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(t->backend));
}

static void two_down(struct two *t) {
    sheaf_gallocr_free(t->galloc);
    sheaf_backend_free(t->backend);
    sheaf_backend_meta_device_free(t->meta);
}

/* The same graph of the same tensors, which lie elsewhere now, and in another state. */
Test(meta, a_graph_whose_weights_have_moved) {
    struct two t;
    struct weights w = {0};
    struct doubled d;
    sheaf_backend_buffer_t before[3];
    two_up(&t);
    for (int i = 0; i < 3; i++) {
        t.cut = i != 1;
        place_weights(&w, t.backend, (float)(i + 1));
        before[i] = w.buffer;
        if (!i) double_weights(&d, &w);
        for (int k = 0; k < 2; k++) compute_doubled(&d, t.backend, t.galloc, 2.0f * (float)(i + 1));
    }
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    sheaf_backend_meta_get_stats(t.backend, &stats);
    cr_expect_eq(stats.n_plans, 3);
    for (int i = 0; i < 3; i++) sheaf_backend_buffer_free(before[i]);
    sheaf_free(d.ctx);
    sheaf_free(w.ctx);
    two_down(&t);
}

static int n_filled(sheaf_backend_t backend) {
    const struct meta_backend *b = sheaf__meta_backend_of(backend);
    int n = 0;
    for (int i = 0; i < b->n_programs; i++) n += b->programs[i]->plan != NULL;
    return n;
}

/* Their results are there until something else is computed. */
Test(meta, programs_of_freed_weights_go) {
    struct two t;
    two_up(&t);
    struct weights stays = {0};
    struct doubled d, old = {0};
    place_weights(&stays, t.backend, 1);
    double_weights(&d, &stays);
    compute_doubled(&d, t.backend, t.galloc, 2);
    for (int i = 0; i < 5; i++) {
        struct weights w = {0};
        sheaf_free(old.ctx);
        place_weights(&w, t.backend, (float)i);
        double_weights(&old, &w);
        compute_doubled(&old, t.backend, t.galloc, 2.0f * (float)i);
        cr_expect_eq(n_filled(t.backend), 2, "%d", n_filled(t.backend));
        sheaf_backend_buffer_free(w.buffer);
        sheaf_free(w.ctx);
        expect_multiples(old.y, 2.0f * (float)i);
        cr_expect_not_null(sheaf_backend_meta_get_state(old.y));
        compute_doubled(&d, t.backend, t.galloc, 2);
        cr_expect_eq(n_filled(t.backend), 1, "%d", n_filled(t.backend));
    }
    float got[10];
    cr_expect_null(sheaf_backend_meta_get_state(old.y));
    cr_expect_null(sheaf_backend_meta_get_slice(old.y, 0));
    cr_expect_eq(sheaf_backend_tensor_get(old.y, got, 0, sizeof got), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "it has no value"), "%s", sheaf_last_error());
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    sheaf_backend_meta_get_stats(t.backend, &stats);
    cr_expect_eq(stats.n_plans, 6);
    sheaf_free(old.ctx);
    sheaf_backend_buffer_free(stays.buffer);
    sheaf_free(d.ctx);
    sheaf_free(stays.ctx);
    two_down(&t);
}

static size_t compute_bytes(sheaf_backend_t backend) {
    const struct meta_backend *b = sheaf__meta_backend_of(backend);
    size_t n = 0;
    for (int m = 0; m < b->dev->n_local; m++)
        n += sheaf_gallocr_get_buffer_size(b->members[m].galloc);
    return n;
}

/* w many times: 48 MiB on each member. */
static void repeat_weights(struct two *t, const struct weights *w) {
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 14, .no_alloc = true});
    struct sheaf_tensor *many = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 10, (48 << 20) / 40);
    struct sheaf_tensor *y = sheaf_repeat(ctx, w->w, many);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    sheaf_set_output(y);
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(t->galloc, graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(t->backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    sheaf_free(ctx);
}

/* Of a member's own result, which lies in memory that the other members read. */
Test(meta, a_compute_buffer_is_cleared) {
    struct two t;
    two_up(&t);
    struct weights w = {0};
    struct doubled d;
    place_weights(&w, t.backend, 1);
    double_weights(&d, &w);
    compute_doubled(&d, t.backend, t.galloc, 2);
    const struct meta_backend *b = sheaf__meta_backend_of(t.backend);
    for (size_t i = 0; i < 2; i++) {
        float got = 1;
        struct sheaf_tensor *slice = sheaf_backend_meta_get_slice(d.y, i);
        cr_assert_eq(slice->buffer->buft, &b->members[i].shared.buft);
        cr_assert_eq(sheaf_backend_buffer_clear(slice->buffer, 0), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_get(slice, &got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        cr_expect_eq(got, 0);
    }
    sheaf_backend_buffer_free(w.buffer);
    sheaf_free(d.ctx);
    sheaf_free(w.ctx);
    two_down(&t);
}

/* Memory that one program alone needs is there as long as the program is. */
Test(meta, memory_of_a_program_goes_with_it) {
    struct two t;
    two_up(&t);
    t.cut = false;
    struct weights stays = {0}, goes = {0};
    struct doubled before, after;
    place_weights(&stays, t.backend, 1);
    place_weights(&goes, t.backend, 1);
    double_weights(&before, &stays);
    double_weights(&after, &goes);
    compute_doubled(&before, t.backend, t.galloc, 2);
    const size_t small = compute_bytes(t.backend);
    repeat_weights(&t, &goes);
    compute_doubled(&after, t.backend, t.galloc, 2);
    compute_doubled(&before, t.backend, t.galloc, 2);
    cr_expect_gt(compute_bytes(t.backend), 64 << 20);
    sheaf_backend_buffer_free(goes.buffer);
    compute_doubled(&before, t.backend, t.galloc, 2); /* it lies where it lay */
    place_weights(&goes, t.backend, 3);
    compute_doubled(&after, t.backend, t.galloc, 6);
    cr_expect_eq(compute_bytes(t.backend), small);
    compute_doubled(&before, t.backend, t.galloc, 2);
    sheaf_backend_buffer_free(stays.buffer);
    sheaf_backend_buffer_free(goes.buffer);
    sheaf_free(before.ctx);
    sheaf_free(after.ctx);
    sheaf_free(stays.ctx);
    sheaf_free(goes.ctx);
    two_down(&t);
}

/* z = 3 y, where y was kept by the graph before. */
static void compute_with_kept(struct two *t, struct doubled *d, uint64_t uid, float want) {
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 14, .no_alloc = true});
    struct sheaf_tensor *z = sheaf_scale(ctx, d->y, 3.0f);
    sheaf_set_output(z);
    struct sheaf_cgraph graph = {
        .size = 1, .n_nodes = 1, .n_leafs = 1, .nodes = &z, .leafs = &d->y, .uid = uid};
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(t->backend));
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, &graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(t->backend, &graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    expect_multiples(z, want);
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}

/* A result that later graphs read keeps the state that its program has for it. */
Test(meta, a_kept_result_outlives_its_weights) {
    struct two t;
    struct weights w = {0};
    struct doubled d;
    two_up(&t);
    place_weights(&w, t.backend, 4);
    double_weights(&d, &w);
    d.y->flags |= SHEAF_BACKEND_TENSOR_CARRIED;
    compute_doubled(&d, t.backend, t.galloc, 8);
    sheaf_backend_buffer_free(w.buffer);
    sheaf_free(w.ctx);
    for (int i = 0; i < 2; i++) {
        compute_with_kept(&t, &d, sheaf__graph_next_uid(), 24);
        cr_expect_eq(n_filled(t.backend), 2, "%d", n_filled(t.backend));
    }
    t.backend->iface->release_tensor(t.backend, d.y);
    struct weights other = {0};
    struct doubled e;
    place_weights(&other, t.backend, 1);
    double_weights(&e, &other);
    compute_doubled(&e, t.backend, t.galloc, 2);
    cr_expect_eq(n_filled(t.backend), 2, "%d", n_filled(t.backend));
    sheaf_backend_buffer_free(other.buffer);
    sheaf_free(other.ctx);
    sheaf_free(e.ctx);
    sheaf_free(d.ctx);
    two_down(&t);
}

/* The graph that reads it is the same, the state is not. */
Test(meta, a_result_is_kept_in_another_state) {
    struct two t;
    struct weights w = {0};
    struct doubled d;
    const uint64_t uid = sheaf__graph_next_uid();
    two_up(&t);
    for (int i = 0; i < 3; i++) {
        t.cut = i != 1;
        place_weights(&w, t.backend, (float)(i + 1));
        if (!i) double_weights(&d, &w);
        d.y->flags |= SHEAF_BACKEND_TENSOR_CARRIED;
        compute_doubled(&d, t.backend, t.galloc, 2.0f * (float)(i + 1));
        compute_with_kept(&t, &d, uid, 6.0f * (float)(i + 1));
        t.backend->iface->release_tensor(t.backend, d.y);
        sheaf_backend_buffer_free(w.buffer);
    }
    sheaf_free(w.ctx);
    sheaf_free(d.ctx);
    two_down(&t);
}

/* ---- gathers ---- */

/* Ten elements on two members: in order, in the other order, of two segments, of two halves each, some on both. */
static enum sheaf_status gathered_state(const struct sheaf_tensor *t, const void *user,
                                        struct sheaf_split_state **out) {
    static const struct {
        int n;
        struct {
            int64_t outer, units, first[2], count[2];
        } segment[2];
    } cases[] = {
        {1, {{1, 10, {0, 3}, {3, 7}}}},
        {1, {{1, 10, {7, 0}, {3, 7}}}},
        {2, {{1, 4, {0, 1}, {1, 3}}, {1, 6, {0, 4}, {4, 2}}}},
        {1, {{2, 5, {0, 2}, {2, 3}}}},
        {1, {{1, 10, {0, 3}, {4, 7}}}},
    };
    const int c = *(const int *)user;
    (void)t;
    *out = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 2, cases[c].n);
    for (int s = 0; *out && s < cases[c].n; s++) {
        struct sheaf_split_segment *seg = &(*out)->segments[s];
        seg->outer = cases[c].segment[s].outer;
        seg->inner = 1;
        seg->units = cases[c].segment[s].units;
        for (int j = 0; j < 2; j++) {
            seg->first[j] = cases[c].segment[s].first[j];
            seg->count[j] = cases[c].segment[s].count[j];
        }
    }
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* A sum along rows whose elements differ tells the order in which they were put together. */
Test(meta, slices_are_gathered_in_their_places) {
    const sheaf_backend_dev_t *members = cpu_members(2);
    for (int c = 0; c < 5; c++) {
        sheaf_backend_dev_t meta;
        sheaf_backend_t backend;
        struct weights w = {0};
        float got[10], sum = 0;
        cr_assert_eq(sheaf_backend_meta_device(members, 2, gathered_state, &c, NULL, &meta),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), SHEAF_STATUS_SUCCESS);
        sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
        place_weights(&w, backend, 1);
        struct sheaf_context *ctx =
            sheaf_init((struct sheaf_init_params){.mem_size = 1 << 14, .no_alloc = true});
        struct sheaf_tensor *y = sheaf_cumsum(ctx, sheaf_scale(ctx, w.w, 1));
        struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
        sheaf_set_output(y);
        cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, graph), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        for (int i = 0; i < 10; i++) cr_expect_eq(got[i], sum += (float)(i + 1), "case %d", c);
        sheaf_free(ctx);
        sheaf_gallocr_free(galloc);
        sheaf_backend_buffer_free(w.buffer);
        sheaf_free(w.ctx);
        sheaf_backend_free(backend);
        sheaf_backend_meta_device_free(meta);
    }
}

/* ---- check mode looks at every element, and at nothing between them ---- */

static enum sheaf_status mirror_two(const struct sheaf_tensor *t, const void *user,
                                    struct sheaf_split_state **out) {
    (void)t, (void)user;
    *out = sheaf_split_state_mirrored(2);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* Writes x [3, 2] over a part of a cache [5, 4], whose rows or columns it becomes, after element
 * `at` of one of them was changed on the second member; the status of the compute. */
static enum sheaf_status write_apart(const sheaf_backend_dev_t *members, bool transposed,
                                     bool in_cache, int at) {
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend;
    sheaf_backend_buffer_t buffer;
    const float zeros[20] = {0}, one = 1;
    cr_assert_eq(sheaf_backend_meta_device(members, 2, mirror_two, NULL, NULL, &meta),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_meta_set_check(backend, true), SHEAF_STATUS_SUCCESS);
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 15, .no_alloc = true});
    struct sheaf_tensor *cache = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 5, 4);
    struct sheaf_tensor *x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 3, 2);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(cache, zeros, 0, sizeof zeros), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(x, zeros, 0, sheaf_nbytes(x)), SHEAF_STATUS_SUCCESS);
    struct sheaf_tensor *slice = sheaf_backend_meta_get_slice(in_cache ? cache : x, 1);
    cr_assert_eq(sheaf_backend_tensor_set(slice, &one, (size_t)at * sizeof one, sizeof one),
                 SHEAF_STATUS_SUCCESS);
    struct sheaf_tensor *part =
        sheaf_view_2d(ctx, cache, transposed ? 2 : 3, transposed ? 3 : 2, 5 * sizeof(float), 0);
    struct sheaf_tensor *y = sheaf_cpy(ctx, x, transposed ? sheaf_transpose(ctx, part) : part);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, graph), SHEAF_STATUS_SUCCESS);
    const enum sheaf_status st = sheaf_backend_graph_compute(backend, graph);
    sheaf_gallocr_free(galloc);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
    return st;
}

Test(meta_errors, check_mode_sees_every_element) {
    const sheaf_backend_dev_t *members = cpu_members(2);
    for (int transposed = 0; transposed < 2; transposed++) {
        for (int at = 0; at < 6; at++)
            cr_expect_eq(write_apart(members, transposed, false, at), SHEAF_STATUS_FAILED,
                         "%d: element %d", transposed, at);
        for (int at = 0; at < 20; at++) {
            const bool written = at % 5 < (transposed ? 2 : 3) && at / 5 < (transposed ? 3 : 2);
            if (!written)
                cr_expect_eq(write_apart(members, transposed, true, at), SHEAF_STATUS_SUCCESS,
                             "%d: element %d of the cache: %s", transposed, at, sheaf_last_error());
        }
    }
}

/* ---- inputs whose memory another graph has taken ---- */

struct sums { /* of inputs: their sum, or of none a constant */
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *x[2], *y;
};

static void sum_inputs(struct sums *s, sheaf_gallocr_t galloc, int64_t first, int64_t second) {
    const int64_t n[2] = {first, second};
    *s = (struct sums){
        .ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 14, .no_alloc = true})};
    s->y = sheaf_arange(s->ctx, 1, 2, 1);
    for (int i = 0; i < 2 && n[i]; i++) {
        s->x[i] = sheaf_new_tensor_1d(s->ctx, SHEAF_TYPE_F32, n[i]);
        sheaf_set_input(s->x[i]);
        s->y = sheaf_add(s->ctx, s->y, sheaf_sum(s->ctx, s->x[i]));
    }
    s->graph = sheaf_new_graph_custom(s->ctx, 16);
    cr_assert_eq(sheaf_build_forward_expand(s->graph, s->y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, s->graph), SHEAF_STATUS_SUCCESS);
}

/* A graph of two inputs is placed, then another of fewer, of the same in other places, or of another
 * size in the same place. */
static void take_memory(int64_t first, int64_t second) {
    struct two t;
    struct sums a, b;
    two_up(&t);
    sum_inputs(&a, t.galloc, 64, 256);
    sum_inputs(&b, t.galloc, first, second);
    cr_expect_eq(sheaf_backend_graph_compute(t.backend, a.graph), SHEAF_STATUS_INVALID,
                 "%lld, %lld", (long long)first, (long long)second);
    cr_expect(strstr(sheaf_last_error(), "allocate this graph again"), "%s", sheaf_last_error());
    sheaf_free(a.ctx);
    sheaf_free(b.ctx);
    two_down(&t);
}
Test(meta_errors, inputs_whose_memory_is_free) { take_memory(0, 0); }
Test(meta_errors, inputs_that_have_changed_places) { take_memory(256, 64); }
Test(meta_errors, inputs_of_another_size_in_their_place) { take_memory(63, 255); }

/* ---- what shows the memory of an output can be read as long as it ---- */

/* x = 2 w is an output; y, over it or a view of it, is none, and is gathered for a norm, which writes
 * over the gathered copy. */
static void read_beside_output(bool in_place) {
    struct two t;
    struct weights w = {0};
    two_up(&t);
    place_weights(&w, t.backend, 1);
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 14, .no_alloc = true});
    struct sheaf_tensor *x = sheaf_scale(ctx, w.w, 2.0f);
    struct sheaf_tensor *y =
        in_place ? sheaf_in_place(sheaf_scale(ctx, x, 3.0f), 0) : sheaf_view_1d(ctx, x, 10, 0);
    struct sheaf_tensor *z = sheaf_rms_norm(ctx, y, 0.1f);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    sheaf_set_output(x);
    sheaf_set_output(z);
    cr_assert_eq(sheaf_build_forward_expand(graph, z), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_gallocr_alloc_graph(t.galloc, graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(t.backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    expect_multiples(x, in_place ? 6 : 2);
    expect_multiples(y, in_place ? 6 : 2);
    sheaf_free(ctx);
    sheaf_backend_buffer_free(w.buffer);
    sheaf_free(w.ctx);
    two_down(&t);
}
Test(meta, a_result_over_an_output) { read_beside_output(true); }
Test(meta, a_view_of_an_output) { read_beside_output(false); }
