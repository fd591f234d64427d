/* Groups of unlike members: CPU devices beside far ones (tests/emulators/far), whose memory is out
 * of the host's reach, in one process and, through helper-mixed, on several ranks. A process that
 * follows a far address crashes. */
#include <criterion/criterion.h>
#include <signal.h>
#include <unistd.h>

#include "backend-ops.h"
#include "meta_random.h"
#include "mixed_members.h"
#include "sched_scenario.h"

enum { MOST = 8 };

struct group {
    sheaf_backend_dev_t members[MOST];
    size_t n;
};

static struct group up(const char *order) {
    struct group g = {{NULL}, 0};
    cr_assert(mixed_devices(2, 3));
    cr_assert_eq(sheaf_world_init(NULL), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    g.n = mixed_pick(order, g.members, MOST);
    cr_assert_gt(g.n, 0, "%s", sheaf_last_error());
    return g;
}

/* ---- the device by itself ---- */

Test(far, computes_what_the_cpu_computes) {
    const struct group g = up("Far0");
    sheaf_backend_t far;
    static struct tf_result want[TF_STEPS];
    cr_assert(tf_reference(want));
    cr_assert_eq(sheaf_backend_dev_init(g.members[0], NULL, &far), SHEAF_STATUS_SUCCESS);
    sheaf_backend_t cpu;
    cr_assert_eq(sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &cpu),
                 SHEAF_STATUS_SUCCESS);
    const sheaf_backend_t both[] = {far, cpu};
    sheaf_backend_sched_t sched = sheaf_backend_sched_new(both, NULL, 2, 64, false, false);
    const struct tf_forced forced[] = {{SHEAF_OP_COUNT, 0, 1, NULL}, {SHEAF_OP_GLU, 0, 3, NULL}};
    for (int i = 0; i < 2; i++) cr_assert(tf_run(sched, far, far, &forced[i], want));
    cr_assert_gt(far_counted("nodes"), 100);
    sheaf_backend_sched_free(sched);
    sheaf_backend_free(far);
    sheaf_backend_free(cpu);
}

Test(far, its_memory_is_out_of_reach, .signal = SIGSEGV) {
    signal(SIGSEGV, SIG_DFL); /* a sanitizer would report it in its own way */
    const struct group g = up("Far0");
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(
        sheaf_backend_buft_alloc_buffer(sheaf_backend_dev_buffer_type(g.members[0]), 64, &buffer),
        SHEAF_STATUS_SUCCESS);
    *(volatile char *)sheaf_backend_buffer_get_base(buffer) = 1;
}

/* ---- groups ---- */

static const char *const orders[] = {
    "Far0",      "CPU0 Far0",           "Far0 CPU0",
    "Far0 Far1", "CPU0 Far0 CPU1 Far1", "Far2 CPU1 Far0 CPU0 Far1"};

static void scenario(const char *order) {
    const struct group g = up(order);
    const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0};
    for (int i = 0; i < 3; i++) {
        for (int hole = 0; hole < 2; hole++)
            cr_assert(run_meta_scenario(g.members, g.n, types[i], hole), "%s, %s, hole %d", order,
                      sheaf_type_name(types[i]), hole);
    }
    cr_assert_gt(far_counted("nodes"), 0);
    if (g.n == 1) return; /* a group of one has no collectives */
    cr_assert_gt(far_counted("pinned"), 0, "collectives go through the device's host buffers");
}
Test(mixed, meta_far_alone) { scenario(orders[0]); }
Test(mixed, meta_cpu_far) { scenario(orders[1]); }
Test(mixed, meta_far_cpu) { scenario(orders[2]); }
Test(mixed, meta_two_far) { scenario(orders[3]); }
Test(mixed, meta_four) { scenario(orders[4]); }
Test(mixed, meta_five) { scenario(orders[5]); }

static void random_graphs(const char *order, uint64_t n) {
    const struct group g = up(order);
    cr_assert(run_meta_random(g.members, g.n, 1, n), "%s", order);
    cr_assert_gt(far_counted("pinned"), 10);
}
Test(mixed, random_graphs_cpu_far) { random_graphs(orders[1], SANITIZED ? 60 : 300); }
Test(mixed, random_graphs_two_far) { random_graphs(orders[3], SANITIZED ? 60 : 300); }
Test(mixed, random_graphs_five) { random_graphs(orders[5], SANITIZED ? 30 : 150); }

/* A device that has every op, but not for every slice, and not every copy that a conversion needs:
 * such nodes are planned otherwise before anything is computed. */
static void some_slices(const char *order, const char *chosen, uint64_t n) {
    setenv("SHEAF_TEST_FAR_SLICES", chosen, 1);
    sheaf_log_set(mixed_leave_out_info, NULL);
    const struct group g = up(order);
    cr_assert(run_meta_random(g.members, g.n, 1, n), "%s", order);
    cr_assert_gt(far_counted("refused"), (long)n / 2);
}
Test(mixed, some_slices_cpu_far) { some_slices(orders[1], "1", 150); }
Test(mixed, some_slices_two_far) { some_slices(orders[3], "2", 150); }
Test(mixed, some_slices_five) { some_slices(orders[5], "3", 60); }

Test(mixed, scheduler_over_a_mixed_group) {
    const struct group g = up("CPU0 Far0 Far1");
    cr_assert(run_sched_scenario(g.members, g.n, 4));
}

/* ---- reading into a view ---- */

enum { ROWS = 6, ROW = 8, FIRST = 2, SEEN = 3 }; /* the view shows rows [FIRST, FIRST + SEEN) */

static enum sheaf_status given_axis(const struct sheaf_tensor *t, const void *user,
                                    struct sheaf_split_state **out) {
    const enum sheaf_split_axis axis = *(const enum sheaf_split_axis *)user;
    const int64_t counts[] = {t->ne[axis % SHEAF_MAX_DIMS] / 2, t->ne[axis % SHEAF_MAX_DIMS] / 2};
    *out = axis > SHEAF_SPLIT_AXIS_3 ? sheaf_split_state_new(axis, 2, 0)
                                     : sheaf_split_state_cut(axis, 2, counts, 1);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status read_view(void *user, size_t offset, void *dst, size_t size) {
    const size_t all = SEEN * ROW * sizeof(float);
    if (offset > all || size > all - offset)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%zu bytes at %zu of the view", size, offset);
    memcpy(dst, (const char *)user + offset, size);
    return SHEAF_STATUS_SUCCESS;
}

/* `read` is asked for bytes of the view, and nothing beside the view is written. */
static void read_into_a_view(struct group g, enum sheaf_split_axis axis) {
    float before[ROWS * ROW], data[SEEN * ROW], got[ROWS * ROW];
    sheaf_backend_dev_t meta;
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(sheaf_backend_meta_device(g.members, g.n, given_axis, &axis, NULL, &meta),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 13, .no_alloc = true});
    struct sheaf_tensor *t = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, ROW, ROWS);
    struct sheaf_tensor *view = sheaf_view_2d(ctx, t, ROW, SEEN, t->nb[1], FIRST * t->nb[1]);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, sheaf_backend_dev_buffer_type(meta),
                                                           &buffer),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    for (int i = 0; i < ROWS * ROW; i++) before[i] = (float)i;
    for (int i = 0; i < SEEN * ROW; i++) data[i] = (float)(1000 + i);
    cr_assert_eq(sheaf_backend_tensor_set(t, before, 0, sizeof before), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_backend_tensor_set_from(view, read_view, data), SHEAF_STATUS_SUCCESS,
                 "axis %s: %s", sheaf_split_axis_name(axis), sheaf_last_error());
    cr_assert_eq(sheaf_backend_tensor_get(t, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
    memcpy(before + FIRST * ROW, data, sizeof data);
    for (int i = 0; i < ROWS * ROW; i++)
        cr_expect_eq(got[i], before[i], "axis %s, element %d: %g, not %g",
                     sheaf_split_axis_name(axis), i, (double)got[i], (double)before[i]);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_meta_device_free(meta);
}
Test(mixed, reads_into_a_view) {
    const struct group g = up("CPU0 Far0");
    read_into_a_view(g, SHEAF_SPLIT_AXIS_0);
    read_into_a_view(g, SHEAF_SPLIT_AXIS_1);
    read_into_a_view(g, SHEAF_SPLIT_AXIS_MIRRORED);
    read_into_a_view(g, SHEAF_SPLIT_AXIS_PARTIAL);
}

/* ---- every op ---- */

#define FAR_PATH "SHEAF_BACKEND_PATH=" FAR_MODULE_DIR
Test(mixed_ops, far, .timeout = DEADLINE) { on_members(0, FAR_PATH, "-b Far0", "Far0", 1900); }
Test(mixed_ops, cpu_far, .timeout = DEADLINE) {
    on_members(0, FAR_PATH " SHEAF_CPU_DEVICES=1 SHEAF_TEST_FAR_DEVICES=1", "-r 1 -m CPU,Far",
               "META2", 15000);
}
Test(mixed_ops, far_far, .timeout = DEADLINE) {
    on_members(0, FAR_PATH, "-r 1 -m Far", "META2", 15000);
}

/* ---- the CUDA backend, its kernels run by the emulator ---- */

static void beside_cuda(int np, const char *env, const char *list, const char *want) {
    char out[8192], all_env[512];
    const char *dir = SHEAF_BUILD_DIR "/lib/cuda-emu";
    if (access(dir, F_OK)) cr_skip_test("the emulated CUDA module is not built (sanitizers)");
    snprintf(all_env, sizeof all_env,
             "SHEAF_CPU_THREADS=1 SHEAF_CPU_DEVICES=1 SHEAF_BACKEND_PATH=%s %s", dir, env);
    const int status = run_mpirun(np, all_env, 300, out, sizeof out, "helper-mixed -m %s", list);
    cr_assert_eq(status, 0, "status %d:\n%s", status, out);
    cr_assert(strstr(out, want), "wanted '%s':\n%s", want, out);
}
Test(mixed_cuda, beside_a_cpu, .timeout = 300) {
    beside_cuda(1, "A=1", "CPU0,CUDA0", "ok 2 members on 1");
}
Test(mixed_cuda, two_members_on_one_gpu, .timeout = 300) {
    beside_cuda(1, "SHEAF_CUDA_DEVICES=2", "CUDA", "ok 2 members on 1");
}

/* ---- ranks ---- */

static void on_ranks(int np, const char *env, const char *args, const char *want) {
    char out[8192];
    const int status = run_mpirun(np, env, 180, out, sizeof out, "helper-mixed %s", args);
    cr_assert_eq(status, 0, "status %d:\n%s", status, out);
    cr_assert(strstr(out, want), "wanted '%s':\n%s", want, out);
}
/* Far devices refuse an op that CPUs run: ranks without one must hear of it, or they would cut the
 * graph elsewhere. */
Test(mixed_mpirun, an_op_that_one_rank_refuses) {
    on_ranks(2, "SHEAF_TEST_FAR_REFUSES=GLU", "1,0 0,1", "ok 2 members on 2");
}
/* All ranks plan anew if the device of one refuses a slice. */
Test(mixed_mpirun, slices_that_one_rank_refuses) {
    on_ranks(2, "SHEAF_TEST_FAR_SLICES=4", "1,0 0,1", "ok 2 members on 2");
}
Test(mixed_mpirun, both_kinds_on_two_ranks) { on_ranks(2, "A=1", "1,1 1,1", "ok 4 members on 2"); }
Test(mixed_mpirun, far_here_cpu_there) { on_ranks(2, "A=1", "0,2 1,0", "ok 3 members on 2"); }
Test(mixed_mpirun, between_hosts) {
    on_ranks(3, "SHEAF_COMM_TRANSPORT=mpi", "1,1 0,1 1,0", "ok 4 members on 3");
}
Test(mixed_mpirun, hosts_of_two) {
    on_ranks(3, "SHEAF_COMM_TRANSPORT=hosts:0,0,1", "0,1 1,0 0,2", "ok 4 members on 3");
}
