/* The CUDA backend with its kernels on the CPU (tests/emulators/cuda): every op of the table against the
 * portable reference, and the host's side of it: memory, queues, plans, what is refused and how.
 * What no emulation shows is listed in docs/cuda.md. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attention_part.h"
#include "backend-ops.h"
#include "backend/sum.h"
#include "rig.h"
#include "sheaf/sheaf.h"

/* ---- the op table ---- */

Test(cuda_emu, op_table, .timeout = DEADLINE) {
    static char out[CAP];
    cr_assert_eq(ops(ENV, "test -b CUDA0", out), 0, "%s", out);
    cr_assert_leq(none_wrong(out, "CUDA0", 4500), 600, "%s", out); /* the ops of the host, below */
}

/* Ops that are left to the host, and no others: those whose first type, F32, has no kernel. */
Test(cuda_emu, ops_of_the_host, .timeout = DEADLINE) {
    static const char expected[] = "SET ACC CUMSUM TRI DIAG DIAG_MASK_INF DIAG_MASK_ZERO "
                                   "SOLVE_TRI ARANGE LIGHTNING_INDEXER DSV4_HC_COMB DSV4_HC_PRE "
                                   "DSV4_HC_POST IM2COL CONV_2D CONV_2D_DW CONV_TRANSPOSE_1D "
                                   "POOL_1D POOL_2D UPSCALE PAD_REFLECT_1D ROLL "
                                   "TIMESTEP_EMBEDDING CONV_TRANSPOSE_2D COL2IM_1D IM2COL_3D "
                                   "CONV_3D WIN_PART WIN_UNPART GET_REL_POS ADD_REL_POS ";
    static char out[CAP];
    char found[sizeof expected + 256] = "";
    cr_assert_eq(ops(ENV, "support -b CUDA0", out), 0, "%s", out);
    char *rest =
        strstr(strstr(out, "|op|") + 1, "|op|"); /* types without kernels, if listed apart */
    if (rest) *rest = 0;
    for (const char *line = strstr(out, "\n| "); line; line = strstr(line + 1, "\n| ")) {
        char name[40], cell[8];
        if (sscanf(line, " | %39s | %7s", name, cell) != 2 || strcmp(cell, "no")) continue;
        cr_assert_lt(strlen(found) + strlen(name) + 2, sizeof found);
        strcat(strcat(found, name), " ");
    }
    cr_assert_str_eq(found, expected);
}

Test(cuda_emu, op_table_without_cublaslt, .timeout = DEADLINE) {
    static char out[CAP];
    unsigned runs = 0;
    cr_assert_eq(ops(ENV "SHEAF_TEST_CUDA_EMU=blas=0", "test -b CUDA0 -o MUL_MAT", out), 0, "%s",
                 out);
    const char *line = strstr(out, " runs: 0 wrong, 0 refused, ");
    while (line && line > out && line[-1] != ',') line--;
    cr_assert(line && sscanf(line, "%u", &runs) == 1 && runs > 200, "%s", out);
    cr_assert(strstr(out, "(it does not start)") && strstr(out, "the driver supports"), "%s", out);
}

Test(cuda_emu, cublaslt_without_memory, .timeout = DEADLINE) {
    static char out[CAP];
    cr_assert_eq(ops(ENV "SHEAF_TEST_CUDA_EMU=fail=cudaMalloc:1", "test -b CUDA0 -o ADD", out), 0,
                 "%s", out);
    cr_assert(strstr(out, "no 32 MiB free") && !strstr(out, "install cuBLAS"), "%s", out);
}

Test(cuda_emu, spoiled_results_fail, .timeout = DEADLINE) {
    static char out[CAP];
    cr_assert_eq(ops(ENV, "test --tamper -b CUDA0 -o ADD", out), 1, "%s", out);
    cr_assert(strstr(out, "wrong: error"), "%s", out);
}

/* A CPU and two GPUs in one meta device. Blocks of types that the GPU takes by elements are moved, where a
 * split makes a part of a matrix contiguous. */
Test(cuda_emu, mixed_group, .timeout = DEADLINE) {
    static char out[CAP];
    static const char *const args[] = {"test -b META3 -r 1 -o RMS_NORM",
                                       "test -b META3 -r 1 -o SOFT_MAX",
                                       "test -b META3 -r 1 -o MUL_MAT -t nvfp4"};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(ops(ENV "SHEAF_CPU_DEVICES=1 SHEAF_CUDA_DEVICES=2", args[i], out), 0, "%s",
                     out);
        cr_assert(strstr(out, "META3") && strstr(out, " 0 wrong, 0 refused, 0 unsupported"), "%s",
                  out);
    }
}

/* ---- devices ---- */

static const char *no_device(sheaf_backend_reg_t reg) {
    const char *(*fn)(void);
    void *p = sheaf_backend_reg_get_proc_address(reg, "sheaf_backend_cuda_no_device");
    memcpy(&fn, &p, sizeof fn);
    return fn();
}

Test(cuda_emu, which_devices_are_listed) {
    static const struct {
        const char *machine, *rank, *size;
        size_t n;
        const char *first, *why;
    } cases[] = {
        {"devices=2", NULL, NULL, 2, "CUDA0", ""},
        {"devices=-1", NULL, NULL, 0, NULL, "no driver is installed"},
        {"devices=0", NULL, NULL, 0, NULL, "no CUDA-capable device"},
        {"cc=80", NULL, NULL, 1, "CUDA0", ""},
        {"cc=86", NULL, NULL, 1, "CUDA0", ""},  /* runs the code of 80 */
        {"cc=120", NULL, NULL, 1, "CUDA0", ""}, /* PTX */
        {"cc=75", NULL, NULL, 0, NULL, "SHEAF_CUDA_ARCHITECTURES=75"},
        {"devices=4", "1", "2", 2, "CUDA2", ""},
        {"devices=3", "0", "2", 1, "CUDA0", ""},
        {"devices=3", "1", "2", 2, "CUDA1", ""},
        {"devices=1", "3", "4", 1, "CUDA0", ""},
        {"devices=2", "3", "4", 1, "CUDA1", ""},
        {"devices=2", "2", "4", 1, "CUDA0", ""},
        {"devices=4", "3", "2", 4, "CUDA0", ""},
        {"devices=17", NULL, NULL, 16, "CUDA0", ""},
        {"devices=2", "x", "4", 2, "CUDA0", ""},
        {"devices=2,fail=cudaGetDeviceProperties:1", NULL, NULL, 1, "CUDA1", ""},
    };
    unsetenv("SLURM_NODEID");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
        unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
        if (cases[i].rank) setenv("OMPI_COMM_WORLD_LOCAL_RANK", cases[i].rank, 1);
        if (cases[i].size) setenv("OMPI_COMM_WORLD_LOCAL_SIZE", cases[i].size, 1);
        sheaf_backend_reg_t reg = load(cases[i].machine);
        cr_assert_eq(sheaf_backend_reg_dev_count(reg), cases[i].n, "%s", cases[i].machine);
        if (cases[i].first)
            cr_assert_str_eq(sheaf_backend_dev_name(sheaf_backend_reg_dev_get(reg, 0)),
                             cases[i].first);
        cr_assert(*cases[i].why ? !!strstr(no_device(reg), cases[i].why) : !*no_device(reg),
                  "%s: %s", cases[i].machine, no_device(reg));
        cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    }
}

/* Slurm gives the number of tasks of all nodes in one text. */
Test(cuda_emu, shares_of_slurm) {
    static const struct {
        const char *tasks, *node, *local;
        const char *first;
        size_t n;
    } cases[] = {
        {"2(x2),4", "0", "1", "CUDA2", 2}, {"2(x2),4", "1", "0", "CUDA0", 2},
        {"2(x2),4", "2", "3", "CUDA3", 1}, {"4", "0", "1", "CUDA1", 1},
        {"2(x2),4", "3", "0", "CUDA0", 4}, {"many", "0", "0", "CUDA0", 4},
        {"2(x2", "1", "0", "CUDA0", 4},    {"2000000", "0", "1", "CUDA0", 4},
        {"2;4", "1", "0", "CUDA0", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("SLURM_STEP_TASKS_PER_NODE", cases[i].tasks, 1);
        setenv("SLURM_NODEID", cases[i].node, 1);
        setenv("SLURM_LOCALID", cases[i].local, 1);
        sheaf_backend_reg_t reg = load("devices=4");
        cr_assert_eq(sheaf_backend_reg_dev_count(reg), cases[i].n, "%s", cases[i].tasks);
        cr_assert_str_eq(sheaf_backend_dev_name(sheaf_backend_reg_dev_get(reg, 0)), cases[i].first);
        cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    }
}

/* Each launcher has names of its own; Slurm another one for its tasks. */
Test(cuda_emu, shares_of_launchers) {
    static const char *const names[][2] = {
        {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
        {"PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"},
        {"PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"},
        {"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        setenv(names[i][0], "1", 1);
        setenv(names[i][1], "2", 1);
        sheaf_backend_reg_t reg = load("devices=4");
        cr_expect_eq(sheaf_backend_reg_dev_count(reg), 2, "%s", names[i][0]);
        cr_expect_str_eq(sheaf_backend_dev_name(sheaf_backend_reg_dev_get(reg, 0)), "CUDA2", "%s",
                         names[i][0]);
        cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        unsetenv(names[i][0]);
        unsetenv(names[i][1]);
    }
}

/* A list of devices asks none of them for its free memory, which would make a context there. */
Test(cuda_emu, listing_uses_no_device) {
    unsetenv("CUDA_MODULE_LOADING");
    sheaf_backend_reg_t reg = load("cc=100,memory=1000000,fail=cudaMemGetInfo:1");
    sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(reg, 0);
    struct sheaf_backend_dev_props props;
    sheaf_backend_buffer_t buffer;
    cr_assert_str_eq(getenv("CUDA_MODULE_LOADING"), "EAGER"); /* no kernel is loaded later */
    sheaf_backend_dev_get_props(dev, &props);
    cr_assert_eq(props.memory_free, 1000000);
    cr_assert_eq(props.memory_total, 1000000);
    cr_assert(strstr(props.description, "capability 10.0") &&
                  strstr(props.description, "runs code for 9.0"),
              "%s", props.description);
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(sheaf_backend_dev_buffer_type(dev), 1000, &buffer),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    sheaf_backend_dev_get_props(dev, &props); /* in use: the driver is asked, and fails */
    cr_assert_eq(props.memory_free, 0);
    sheaf_backend_dev_get_props(dev, &props);
    cr_assert(props.memory_free > 0 && props.memory_free < 1000000);
    sheaf_backend_buffer_free(buffer);
    cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}

/* One GPU as several devices, each with queue and memory objects of its own. */
Test(cuda_emu, one_gpu_twice) {
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {{"2", 2}, {"5", 5}, {"", 1}, {"0", 0}, {"17", 0}, {"two", 0}, {"2x", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("SHEAF_CUDA_DEVICES", cases[i].text, 1);
        sheaf_backend_reg_t reg = load("");
        cr_assert_eq(sheaf_backend_reg_dev_count(reg), cases[i].n, "%s", cases[i].text);
        if (!cases[i].n)
            cr_assert(strstr(no_device(reg), "it takes 1 to 16"), "%s", no_device(reg));
        for (size_t j = 0; j < cases[i].n; j++) {
            char name[32];
            sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(reg, j);
            snprintf(name, sizeof name, "CUDA%zu", j);
            cr_assert_str_eq(sheaf_backend_dev_name(dev), name);
            cr_assert(sheaf_backend_dev_supports_buft(dev, sheaf_backend_dev_buffer_type(dev)));
            cr_assert_not(
                j && sheaf_backend_dev_supports_buft(
                         dev, sheaf_backend_dev_buffer_type(sheaf_backend_reg_dev_get(reg, 0))));
        }
        cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS);
    }
}

Test(cuda_emu, two_gpus_thrice) {
    setenv("SHEAF_CUDA_DEVICES", "3", 1);
    sheaf_backend_reg_t reg = load("devices=2");
    cr_assert_eq(sheaf_backend_reg_dev_count(reg), 3);
    for (size_t i = 0; i < 3; i++) {
        const char *text = sheaf_backend_dev_description(sheaf_backend_reg_dev_get(reg, i));
        cr_expect(strstr(text, i == 1 ? "GPU 1" : "GPU 0"), "CUDA%zu: %s", i, text);
    }
    cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}

Test(cuda_emu, props_and_memory) {
    sheaf_backend_reg_t reg = load("devices=1,memory=8388608");
    sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(reg, 0);
    struct sheaf_backend_dev_props props;
    sheaf_backend_buffer_t buffer, more;
    sheaf_backend_dev_get_props(dev, &props);
    cr_assert_str_eq(props.name, "CUDA0");
    cr_assert(strstr(props.description, "capability 9.0"), "%s", props.description);
    cr_assert_eq(props.memory_total, 8u << 20);
    cr_assert(props.caps.async && props.caps.events && props.caps.host_buffer);
    cr_assert_not(props.caps.buffer_from_host_ptr);
    sheaf_backend_buffer_type_t buft = sheaf_backend_dev_buffer_type(dev);
    sheaf_backend_buffer_type_t host = sheaf_backend_dev_host_buffer_type(dev);
    cr_assert_not(sheaf_backend_buft_is_host(buft));
    cr_assert(sheaf_backend_buft_is_host(host));
    cr_assert(sheaf_backend_dev_supports_buft(dev, buft));
    cr_assert_not(sheaf_backend_dev_supports_buft(dev, host));
    cr_assert_not(sheaf_backend_dev_supports_buft(dev, sheaf_backend_cpu_buffer_type()));
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, 6u << 20, &buffer), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, 6u << 20, &more), SHEAF_STATUS_ALLOC_FAILED);
    cr_assert(strstr(sheaf_last_error(),
                     "CUDA0: a buffer of 6291456 bytes (1 MiB of 8 MiB are free): out of memory"),
              "%s", sheaf_last_error());
    sheaf_backend_buffer_free(buffer);
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, SIZE_MAX, &buffer),
                 SHEAF_STATUS_ALLOC_FAILED);
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, 0, &buffer), SHEAF_STATUS_SUCCESS);
    sheaf_backend_buffer_free(buffer);
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(host, 100, &buffer), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_buffer_clear(buffer, 7), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(((char *)sheaf_backend_buffer_get_base(buffer))[99], 7);
    sheaf_backend_buffer_free(buffer);
}

/* ---- transfers ---- */

Test(cuda_emu, transfers) {
    struct rig r = rig_up("devices=2,peers=1", NULL);
    struct sheaf_tensor *t = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, 8, 4);
    rig_alloc(&r);
    float x[32], y[32], part[8];
    for (int i = 0; i < 32; i++) x[i] = (float)i;
    cr_assert_eq(sheaf_backend_tensor_set_async(r.backend, t, x, 0, sizeof x),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_get_async(r.backend, t, y, 0, sizeof y),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_synchronize(r.backend), SHEAF_STATUS_SUCCESS);
    cr_assert(!memcmp(x, y, sizeof x));
    /* column 2 and 3 of each row */
    cr_assert_eq(sheaf_backend_tensor_get_2d(t, part, 8, 8, 4, 32, 8), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 8; i++) cr_assert_float_eq(part[i], (float)(i / 2 * 8 + 2 + i % 2), 0);
    for (int i = 0; i < 8; i++) part[i] = -1;
    cr_assert_eq(sheaf_backend_tensor_set_2d(t, part, 8, 8, 4, 32, 8), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set_2d(t, x, 0, 4, 4, 32, 0),
                 SHEAF_STATUS_SUCCESS); /* one value */
    cr_assert_eq(sheaf_backend_tensor_memset(t, 0, 124, 4), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_get(t, y, 0, sizeof y), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 32; i++) {
        const float want = i % 8 == 0 ? 0 : i % 8 == 2 || i % 8 == 3 ? -1 : i == 31 ? 0 : (float)i;
        cr_assert_float_eq(y[i], want, 0, "%d: %g", i, (double)y[i]);
    }

    /* steps that a copy of the runtime does not take: more than 2^31 - 1 bytes */
    const size_t far = (size_t)1 << 31, all = far + 64;
    char *wide =
        mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(wide, MAP_FAILED);
    memset(wide, 1, 32);
    memset(wide + far, 2, 32);
    for (size_t n = 1; n <= 2; n++)
        cr_assert_eq(sheaf_backend_tensor_set_2d(t, wide, 0, 32, n, n == 1 ? far : 64, far),
                     SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_tensor_get_2d(t, wide + 32, 0, 32, 2, 64, far), SHEAF_STATUS_SUCCESS,
                 "%s", sheaf_last_error());
    cr_assert(!memcmp(wide, wide + 32, 32) && !memcmp(wide + far, wide + far + 32, 32));
    cr_assert_eq(munmap(wide, all), 0);
    cr_assert_eq(sheaf_backend_tensor_set(t, y, 0, sizeof y), SHEAF_STATUS_SUCCESS);

    /* to another device, at once and in the queue; to the CPU */
    sheaf_backend_t other, cpu;
    cr_assert_eq(sheaf_backend_dev_init(sheaf_backend_reg_dev_get(r.reg, 1), NULL, &other),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &cpu), SHEAF_STATUS_SUCCESS);
    const sheaf_backend_t targets[] = {other, cpu};
    for (int i = 0; i < 2; i++) {
        struct sheaf_context *ctx =
            sheaf_init((struct sheaf_init_params){.mem_size = 4096, .no_alloc = true});
        struct sheaf_tensor *u = sheaf_dup_tensor(ctx, t);
        sheaf_backend_buffer_t buffer;
        cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, targets[i], &buffer),
                     SHEAF_STATUS_SUCCESS);
        for (int async = 0; async < 2; async++) {
            float back[32] = {0};
            cr_assert_eq(sheaf_backend_buffer_clear(buffer, 0), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(async ? sheaf_backend_tensor_copy_async(r.backend, targets[i], t, u)
                               : sheaf_backend_tensor_copy(t, u),
                         SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
            cr_assert_eq(sheaf_backend_synchronize(targets[i]), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_backend_tensor_get(u, back, 0, sizeof back), SHEAF_STATUS_SUCCESS);
            cr_assert(!memcmp(back, y, sizeof y));
        }
        sheaf_backend_buffer_free(buffer);
        sheaf_free(ctx);
    }
    sheaf_backend_event_t event;
    cr_assert_eq(sheaf_backend_event_new(sheaf_backend_reg_dev_get(r.reg, 0), &event),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_event_record(event, r.backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_event_record(event, other), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "it is of device CUDA0, the backend of CUDA1"));
    cr_assert_eq(sheaf_backend_event_wait(other, event), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_event_wait(cpu, event), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_event_synchronize(event), SHEAF_STATUS_SUCCESS);
    sheaf_backend_event_free(event);
    sheaf_backend_free(other);
    sheaf_backend_free(cpu);
    rig_down(&r);
}

/* An op without a kernel here is left to the scheduler; a graph that has one all the same is refused. */
Test(cuda_emu, an_op_without_a_kernel) {
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *x = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, 30);
    struct sheaf_tensor *y = sheaf_set_name(sheaf_cumsum(r.ctx, x), "sums");
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    cr_assert_not(sheaf_backend_dev_supports_op(sheaf_backend_get_device(r.backend), y));
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "cannot compute CUMSUM 'sums'"), "%s", sheaf_last_error());
    rig_down(&r);
}

/* Copying weights pays from 32 columns on, of experts from 32 tokens. */
Test(cuda_emu, offloads_products_of_many_columns) {
    struct rig r = rig_up("", NULL);
    sheaf_backend_dev_t dev = sheaf_backend_get_device(r.backend);
    struct sheaf_tensor *w = sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F32, 8, 8, 4);
    for (int64_t n = 31; n <= 32; n++) {
        struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, 8, n);
        struct sheaf_tensor *ids = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_I32, 2, n);
        struct sheaf_tensor *y = sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F32, 8, 2, n);
        struct sheaf_tensor *of_one = sheaf_view_2d(r.ctx, w, 8, 8, w->nb[1], 0);
        cr_expect_eq(sheaf_backend_dev_offload_op(dev, sheaf_mul_mat(r.ctx, of_one, x)), n == 32);
        cr_expect_eq(sheaf_backend_dev_offload_op(dev, sheaf_mul_mat_id(r.ctx, w, y, ids)),
                     n == 32);
        cr_expect_not(sheaf_backend_dev_offload_op(dev, sheaf_add(r.ctx, x, x)));
    }
    rig_down(&r);
}

/* A backend that starts beside another one takes its memory on its own device. */
Test(cuda_emu, memory_of_a_second_device) {
    struct rig r = rig_up("devices=2", NULL);
    sheaf_backend_dev_t second = sheaf_backend_reg_dev_get(r.reg, 1);
    sheaf_backend_t other;
    size_t before, behind, total;
    sheaf_backend_dev_memory(sheaf_backend_get_device(r.backend), &before, &total);
    cr_assert_eq(sheaf_backend_dev_init(second, NULL, &other), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    sheaf_backend_dev_memory(sheaf_backend_get_device(r.backend), &behind, &total);
    cr_expect_eq(before, behind);
    sheaf_backend_dev_memory(second, &behind, &total);
    cr_expect_lt(behind, total);
    sheaf_backend_free(other);
    rig_down(&r);
}

/* ---- replayed graphs ---- */

Test(cuda_emu, graphs_are_replayed_until_they_change) {
    FILE *trace = rig_trace();
    for (int way = 0; way < 4; way++) { /* graphs, a plan, both switched off */
        struct rig r = rig_up("", way < 2 ? NULL : "graphs=0,blas=1");
        struct sheaf_tensor *x, *y = five_nodes(&r, &x);
        sheaf_backend_graph_plan_t plan = NULL;
        rig_trace_clear(trace);
        if (way % 2)
            cr_assert_eq(sheaf_backend_graph_plan_create(r.backend, r.graph, &plan),
                         SHEAF_STATUS_SUCCESS);
        for (int i = 0; i < 10; i++) {
            set_all(x, (float)i, 0);
            if (i == 5) memcpy(y->op_params, &(float){1.5f}, sizeof(float)); /* 3 times as much */
            cr_assert_eq(plan ? sheaf_backend_graph_plan_compute(r.backend, plan)
                              : sheaf_backend_graph_compute(r.backend, r.graph),
                         SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
            cr_assert_float_eq(first_of(y), (float)i * (i < 5 ? 10 : 30), 0, "%d: %g", i,
                               (double)first_of(y));
        }
        /* each version is run once as it is; the second time it is captured and replayed */
        cr_assert_eq(replays_of(trace, 5), way < 2 ? 8 : 0, "way %d: %d", way,
                     replays_of(trace, 5));
        sheaf_backend_graph_plan_free(r.backend, plan);
        rig_down(&r);
    }
    fclose(trace);
}

/* A program that builds its graph anew for each token gets the same addresses, and a graph of another
 * uid: what was captured serves it at once. */
Test(cuda_emu, a_graph_is_found_by_what_it_holds) {
    FILE *trace = rig_trace();
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *x, *y = five_nodes(&r, &x);
    struct sheaf_cgraph *again = sheaf_new_graph(r.ctx);
    cr_assert_eq(sheaf_build_forward_expand(again, y), SHEAF_STATUS_SUCCESS);
    cr_assert_neq(sheaf_graph_uid(again), sheaf_graph_uid(r.graph));
    for (int i = 0; i < 6; i++) {
        set_all(x, (float)i, 0);
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, i < 2 ? r.graph : again),
                     SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        cr_assert_float_eq(first_of(y), (float)i * 10, 0, "%d: %g", i, (double)first_of(y));
    }
    cr_assert_eq(replays_of(trace, 5), 5, "%d", replays_of(trace, 5));
    rig_down(&r);
    fclose(trace);
}

/* The same tensors are another graph once a shape, a step or an address has changed. */
Test(cuda_emu, shapes_steps_and_addresses_are_of_the_graph) {
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *x, *y = five_nodes(&r, &x);
    const int64_t n = x->ne[0] / 3;
    set_all(x, 0, 1);
    for (int run = 0; run < 12; run++) {
        float got[300];
        if (run == 3) /* a third of the elements; the others stay */
            for (int i = -1; i < 5; i++) (i < 0 ? x : sheaf_graph_node(r.graph, i))->ne[0] = n;
        if (run == 6) x->nb[0] *= 2; /* every other one */
        if (run == 9) x->data = (float *)x->data + 1;
        cr_assert_eq(sheaf_backend_tensor_memset(y, 0, 0, (size_t)n * sizeof(float)),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        y->ne[0] = 3 * n;
        cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        if (run == 2)
            cr_assert_eq(sheaf_backend_tensor_memset(y, 0, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        if (run > 2) y->ne[0] = n;
        for (int i = 0; i < 300; i++) {
            const float want = (float)(run < 3  ? 10 * i
                                       : i >= n ? 0
                                                : (run < 6 ? 10 : 20) * i + (run < 9 ? 0 : 10));
            cr_assert_float_eq(got[i], want, 1e-3, "run %d: element %d is %g", run, i,
                               (double)got[i]);
        }
    }
    rig_down(&r);
}

static void fails_with(enum sheaf_status got, enum sheaf_status want, const char *text) {
    cr_assert_eq(got, want, "%d: %s", got, sheaf_last_error());
    cr_assert(strstr(sheaf_last_error(), text), "'%s' is not in '%s'", text, sheaf_last_error());
}

/* Rows of `a` and four more nodes. */
static struct sheaf_cgraph *rows_named(struct rig *r, struct sheaf_tensor *a,
                                       struct sheaf_tensor *ids, const char *name) {
    struct sheaf_cgraph *graph = sheaf_new_graph(r->ctx);
    struct sheaf_tensor *y = sheaf_set_name(sheaf_get_rows(r->ctx, a, ids), name);
    for (int i = 0; i < 4; i++) y = sheaf_scale(r->ctx, y, 2);
    cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
    return graph;
}

/* A bad id is reported by the node that was asked for, though one of an earlier graph with the same addresses was
 * captured, whose tensors may be gone. */
Test(cuda_emu, a_bad_id_is_of_the_graph_that_ran) {
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *a = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, 8, 4);
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I32, 2);
    struct sheaf_cgraph *first = rows_named(&r, a, ids, "old rows");
    rig_alloc(&r);
    struct sheaf_cgraph *second = rows_named(&r, a, ids, "new rows");
    for (int i = 0; i < 5; i++)
        cr_assert_eq(sheaf_backend_tensor_alloc(r.buffer, sheaf_graph_node(second, i),
                                                sheaf_graph_node(first, i)->data),
                     SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    set_all(a, 1, 1);
    const int32_t good[] = {0, 3}, bad[] = {0, 4};
    cr_assert_eq(sheaf_backend_tensor_set(ids, good, 0, sizeof good), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, first), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(ids, bad, 0, sizeof bad), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 3; i++)
        fails_with(sheaf_backend_graph_compute(r.backend, second), SHEAF_STATUS_INVALID,
                   "'new rows': row 4 is outside [0, 4)");
    rig_down(&r);
}

/* Nodes in one kernel give the bits of nodes one by one, their intermediate results too. */
struct fused {
    bool add, norm, rope, set;
    int64_t d, h, n;
    int n_dims;
    enum sheaf_rope_mode mode;
    enum sheaf_type cache;
    int launches;
};

/* All results of the nodes, one behind another, after three computes; *size bytes. */
static char *results_of(const struct fused *f, const char *params, size_t *size) {
    struct rig r = rig_up("", params);
    struct sheaf_tensor *x = sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F32, f->d, f->h, f->n);
    struct sheaf_tensor *b = sheaf_dup_tensor(r.ctx, x), *y = x;
    struct sheaf_tensor *w = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, f->d);
    struct sheaf_tensor *pos = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I32, f->n);
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I64, f->n);
    struct sheaf_tensor *cache = sheaf_new_tensor_2d(r.ctx, f->cache, f->d * f->h, f->n + 3);
    if (f->add) y = sheaf_add(r.ctx, y, b);
    if (f->norm) y = sheaf_mul(r.ctx, sheaf_rms_norm(r.ctx, y, 1e-5f), w);
    if (f->rope)
        y = sheaf_rope_ext(r.ctx, y, pos, NULL, f->n_dims, (int)f->mode, 4096, 1e4f, 1, 0, 1, 32,
                           1);
    if (f->set)
        y = sheaf_set_rows(r.ctx, cache, sheaf_reshape_2d(r.ctx, y, f->d * f->h, f->n), ids);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    y = sheaf_scale(r.ctx, sheaf_scale(r.ctx, sheaf_cont(r.ctx, b), 2), 2); /* to be captured */
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    int32_t at[64];
    int64_t id[64];
    for (int i = 0; i < f->n; i++) {
        at[i] = 3 * i + 1;
        id[i] = i == 1 ? f->n : (i + 2) % (f->n + 3); /* i == 1 may be written over */
    }
    fill(x, 1);
    fill(b, 2);
    fill(w, 3);
    cr_assert_eq(sheaf_backend_tensor_memset(cache, 0, 0, sheaf_nbytes(cache)),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(pos, at, 0, sheaf_nbytes(pos)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(ids, id, 0, sheaf_nbytes(ids)), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
    char *all = malloc(1 << 22);
    *size = 0;
    for (int i = 0; i < sheaf_graph_n_nodes(r.graph); i++) {
        const struct sheaf_tensor *t = sheaf_graph_node(r.graph, i);
        if (!sheaf_is_contiguous(t)) continue;
        cr_assert_eq(sheaf_backend_tensor_get(t, all + *size, 0, sheaf_nbytes(t)),
                     SHEAF_STATUS_SUCCESS);
        *size += sheaf_nbytes(t);
    }
    rig_down(&r);
    return all;
}

Test(cuda_emu, fused_nodes_are_the_nodes) {
    static const struct fused cases[] = {
        {true, true, false, false, 300, 3, 5, 0, 0, 0, 1},
        {true, true, false, false, 301, 3, 2, 0, 0, 0, 1},
        {true, true, false, false, 5006, 1, 2, 0, 0, 0, 1},
        {true, true, false, false, 8260, 1, 3, 0, 0, 0, 1},
        {false, true, false, false, 64, 3, 5, 0, 0, 0, 1},
        {false, true, true, false, 64, 6, 5, 64, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_F16, 1},
        {false, true, true, true, 256, 1, 3, 256, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_F16, 1},
        {false, true, true, true, 1030, 2, 2, 100, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F32, 1},
        {true, true, true, true, 128, 9, 7, 128, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_BF16, 2},
        {false, false, true, true, 64, 5, 40, 64, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F16, 1},
        {false, false, true, true, 64, 4, 1, 20, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_F16, 1},
        {false, false, true, true, 64, 4, 3, 64, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_Q8_0, 2},
    };
    FILE *trace = rig_trace();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct fused *f = &cases[i];
        const int nodes = f->add + 2 * f->norm + f->rope + f->set;
        size_t size[2];
        char *all[2];
        for (int on = 0; on < 2; on++) {
            rig_trace_clear(trace);
            all[on] = results_of(f, on ? "" : "fuse=0", &size[on]);
            cr_assert_eq(replays_of(trace, (on ? f->launches : nodes) + 3), 2, "case %zu", i);
        }
        cr_assert(size[0] == size[1] && size[0] > 1000 && !memcmp(all[0], all[1], size[0]),
                  "case %zu: other bits", i);
        free(all[0]);
        free(all[1]);
    }
    fclose(trace);
}

/* Heads of q and k turned, k and v written into their caches: one launch, unless memory overlaps. */
enum overlap { APART, IN_PLACE, K_OVER_Q, K_OVER_V, NORM_OVER_NORM, IDS_OF_ITS_OWN };
struct heads {
    bool norm, factors;
    int64_t d, h, g, n;
    int n_dims;
    enum sheaf_rope_mode mode;
    enum sheaf_type k, v;
    enum overlap overlap;
    int launches;
};

/* ROPE of x, in memory of its own or, if `in_place`, in that of x; *norm: its norm. */
static struct sheaf_tensor *turned(struct rig *r, const struct heads *f, struct sheaf_tensor *x,
                                   struct sheaf_tensor *w, struct sheaf_tensor *pos,
                                   struct sheaf_tensor *factors, struct sheaf_tensor **norm) {
    *norm = NULL;
    if (f->norm) {
        *norm = sheaf_rms_norm(r->ctx, x, 1e-5f);
        x = sheaf_mul(r->ctx, *norm, w);
    }
    x = sheaf_rope_ext(r->ctx, x, pos, factors, f->n_dims, (int)f->mode, 4096, 1e4f, 0.25f, 1, 1,
                       32, 1);
    cr_assert_eq(sheaf_build_forward_expand(r->graph, x), SHEAF_STATUS_SUCCESS);
    return x;
}

/* All results of the nodes after three computes; bad: an id that is out of range, or -1. */
static char *heads_of(const struct heads *f, const char *params, int64_t bad, size_t *size) {
    struct rig r = rig_up("", params);
    struct sheaf_tensor *q = sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F32, f->d, f->h, f->n);
    struct sheaf_tensor *k = sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F32, f->d, f->g, f->n);
    struct sheaf_tensor *v = sheaf_dup_tensor(r.ctx, k), *norm[2], *turn[2];
    struct sheaf_tensor *w = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, f->d);
    struct sheaf_tensor *factors = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, f->n_dims / 2);
    struct sheaf_tensor *pos = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I32, f->n);
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I64, f->n), *ids_v = ids;
    struct sheaf_tensor *cache[] = {
        sheaf_new_tensor_2d(r.ctx, f->k, f->d * f->g, f->n + 3),
        sheaf_new_tensor_2d(r.ctx, f->v, f->d * f->g, f->n + 3),
    };
    if (f->overlap == IDS_OF_ITS_OWN) ids_v = sheaf_dup_tensor(r.ctx, ids);
    turn[0] = turned(&r, f, q, w, pos, f->factors ? factors : NULL, &norm[0]);
    turn[1] = turned(&r, f, k, w, pos, f->factors ? factors : NULL, &norm[1]);
    struct sheaf_tensor *const rows[] = {turn[1], v};
    for (int i = 0; i < 2; i++) {
        struct sheaf_tensor *b = sheaf_reshape_2d(r.ctx, rows[i], f->d * f->g, f->n);
        b = sheaf_set_rows(r.ctx, cache[i], b, i ? ids_v : ids);
        sheaf_format_name(b, "cache %d", i);
        cr_assert_eq(sheaf_build_forward_expand(r.graph, b), SHEAF_STATUS_SUCCESS);
    }
    rig_alloc(&r);
    if (f->overlap == IN_PLACE) {
        turn[0]->data = q->data;
        turn[1]->data = k->data;
    }
    if (f->overlap == K_OVER_Q) turn[1]->data = q->data;
    if (f->overlap == K_OVER_V) turn[1]->data = v->data;
    if (f->overlap == NORM_OVER_NORM) norm[1]->data = norm[0]->data;
    for (int i = 0; i < sheaf_graph_n_nodes(r.graph); i++) { /* views of what has moved */
        struct sheaf_tensor *t = sheaf_graph_node(r.graph, i);
        if (t->view_src == turn[1]) t->data = turn[1]->data;
    }
    int32_t at[64];
    int64_t id[64];
    for (int i = 0; i < f->n; i++) {
        at[i] = 3 * i + 1;
        id[i] = i == 1 ? f->n : (i + 2) % (f->n + 3); /* i == 1 may be written over */
    }
    if (bad >= 0) id[f->n - 1] = bad;
    fill(w, 3);
    fill(factors, 4);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(sheaf_backend_tensor_memset(cache[i], 0, 0, sheaf_nbytes(cache[i])),
                     SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(pos, at, 0, sheaf_nbytes(pos)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(ids, id, 0, sheaf_nbytes(ids)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(ids_v, id, 0, sheaf_nbytes(ids)), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 3; i++) { /* as it is, captured and replayed: twice */
        fill(q, 1);
        fill(k, 2);
        fill(v, 5);
        const enum sheaf_status st = sheaf_backend_graph_compute(r.backend, r.graph);
        if (bad >= 0)
            fails_with(st, SHEAF_STATUS_INVALID, "SET_ROWS 'cache 0': row");
        else
            cr_assert_eq(st, SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    }
    return rig_results(&r, size);
}

Test(cuda_emu, heads_in_one_launch) {
    static const struct heads cases[] = {
        {false, false, 64, 4, 2, 1, 64, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F16, SHEAF_TYPE_F16,
         APART, 1},
        {false, true, 32, 7, 3, 5, 32, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F32, SHEAF_TYPE_F32,
         IN_PLACE, 1},
        {true, false, 64, 4, 2, 1, 64, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_F16, SHEAF_TYPE_F16, APART,
         1},
        {true, true, 40, 5, 5, 3, 20, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_BF16, SHEAF_TYPE_F32,
         IN_PLACE, 1},
        {false, false, 300, 2, 2, 2, 280, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_F16, SHEAF_TYPE_F16,
         APART, 1},
        {false, false, 64, 2, 2, 3, 64, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0,
         APART, 2},
        {false, false, 64, 2, 2, 3, 64, SHEAF_ROPE_TYPE_NEOX, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q8_0,
         APART, 3},
        {false, false, 32, 3, 3, 2, 32, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F16, SHEAF_TYPE_F16,
         K_OVER_Q, 2},
        {true, false, 32, 3, 3, 2, 32, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F16, SHEAF_TYPE_F16,
         K_OVER_Q, 2},
        {false, false, 32, 3, 3, 2, 32, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F16, SHEAF_TYPE_F16,
         K_OVER_V, 2},
        {true, false, 32, 3, 3, 2, 32, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F16, SHEAF_TYPE_F16,
         NORM_OVER_NORM, 2},
        {false, false, 32, 3, 3, 2, 32, SHEAF_ROPE_TYPE_NORMAL, SHEAF_TYPE_F16, SHEAF_TYPE_F16,
         IDS_OF_ITS_OWN, 2},
    };
    FILE *trace = rig_trace();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct heads *f = &cases[i];
        size_t size[2];
        char *all[2];
        for (int on = 0; on < 2; on++) {
            rig_trace_clear(trace);
            all[on] = heads_of(f, on ? "" : "fuse=0", -1, &size[on]);
            cr_assert_eq(replays_of(trace, on ? f->launches : f->norm ? 8 : 4), 2, "case %zu", i);
        }
        cr_assert(size[0] == size[1] && size[0] > 1000 && !memcmp(all[0], all[1], size[0]),
                  "case %zu: other bits", i);
        free(all[0]);
        free(all[1]);
        free(heads_of(f, "", f->n + 3, &size[0]));
    }
    fclose(trace);
}

/* The products of a layer: those of one x in one launch, or by cuBLASLt; their columns made integers or halves by the
 * kernel that makes x, with the bits of the separate nodes. */
static char *layer_of(enum sheaf_type type, int k, int n_columns, bool askew, const char *params,
                      size_t *size) {
    enum { MOST = 8224, F = 64 };
    const int rows[] = {24, 8, 7, F, F, k};
    struct rig r = rig_up("", params);
    struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, k, n_columns), *y, *z[6];
    sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, 1); /* room behind x */
    struct sheaf_tensor *b = sheaf_dup_tensor(r.ctx, x), *w[6];
    struct sheaf_tensor *scale = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, k);
    y = sheaf_mul(r.ctx, sheaf_rms_norm(r.ctx, sheaf_add(r.ctx, x, b), 1e-5f), scale);
    for (int i = 0; i < 6; i++) {
        w[i] = sheaf_new_tensor_2d(r.ctx, type, i < 5 ? k : F, rows[i]);
        if (i == 5) y = sheaf_glu_split(r.ctx, z[3], z[4], SHEAF_GLU_OP_SWIGLU);
        z[i] = sheaf_mul_mat(r.ctx, w[i], y);
        sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, 1); /* room behind it */
        cr_assert_eq(sheaf_build_forward_expand(r.graph, z[i]), SHEAF_STATUS_SUCCESS);
    }
    rig_alloc(&r);
    if (askew) {
        x->data = (char *)x->data + 4;
        z[4]->data = (char *)z[4]->data + 4;
    }
    fill(x, 1);
    fill(b, 2);
    fill(scale, 3);
    for (int i = 0; i < 6; i++) {
        static float f[MOST * F];
        static uint8_t bytes[MOST * F * 4];
        const int64_t n = sheaf_nelements(w[i]);
        cr_assert_leq(n, MOST * F);
        for (int64_t j = 0; j < n; j++) f[j] = (float)((j * 7 + i) % 23 - 11);
        cr_assert_eq(sheaf_from_float(type, f, bytes, n), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_set(w[i], bytes, 0, sheaf_nbytes(w[i])),
                     SHEAF_STATUS_SUCCESS);
    }
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
    return rig_results(&r, size);
}

/* The threads of a norm keep rows of 4096 or 8192 in registers. askew: x and a half of the GLU do not lie at multiples
 * of 16 bytes, as the results of the separate nodes do. */
Test(cuda_emu, launches_of_a_layer) {
    static const struct {
        enum sheaf_type type;
        int k, n;
        bool askew;
        int launches[2];
    } cases[] = {
        {SHEAF_TYPE_Q4_0, 96, 1, false, {16, 5}},   {SHEAF_TYPE_Q8_0, 96, 7, false, {16, 5}},
        {SHEAF_TYPE_Q8_0, 1024, 1, false, {16, 5}}, {SHEAF_TYPE_Q4_0, 6144, 1, false, {16, 5}},
        {SHEAF_TYPE_Q8_0, 4480, 2, false, {16, 5}}, {SHEAF_TYPE_Q8_0, 8224, 1, false, {16, 5}},
        {SHEAF_TYPE_Q8_0, 4480, 2, true, {16, 5}},  {SHEAF_TYPE_Q8_0, 96, 3, true, {16, 5}},
        {SHEAF_TYPE_F16, 96, 3, false, {10, 5}},    {SHEAF_TYPE_BF16, 96, 1, false, {10, 5}},
        {SHEAF_TYPE_F16, 96, 12, false, {16, 8}},   {SHEAF_TYPE_BF16, 104, 9, true, {16, 8}},
        {SHEAF_TYPE_Q8_0, 96, 12, false, {22, 14}}, {SHEAF_TYPE_F16, 4480, 9, false, {16, 8}},
        {SHEAF_TYPE_F16, 4480, 9, true, {16, 8}},   {SHEAF_TYPE_F32, 96, 9, false, {10, 8}}};
    FILE *trace = rig_trace();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size[2];
        char *all[2];
        for (int on = 0; on < 2; on++) {
            rig_trace_clear(trace);
            all[on] = layer_of(cases[i].type, cases[i].k, cases[i].n, cases[i].askew,
                               on ? "" : "fuse=0", &size[on]);
            cr_assert_eq(replays_of(trace, cases[i].launches[on]), 2, "case %zu", i);
        }
        cr_assert(size[0] == size[1] && !memcmp(all[0], all[1], size[0]), "case %zu: other bits",
                  i);
        free(all[0]);
        free(all[1]);
    }
    fclose(trace);
}

/* A product of what attention gives takes its columns as integers from the kernel that joins the parts
 * of the keys, or the one that has them all, if heads are whole blocks of them. */
struct seen {
    int d, h, kv, n, seqs, t;
    enum sheaf_type cache, type; /* of the keys and values, of the weights */
    int launches[2];
    int base, group; /* of heads that divide a group; 0: groups of one size */
};

static char *seen_of(const struct seen *f, const char *params, size_t *size) {
    struct rig r = rig_up("", params);
    struct sheaf_tensor *q = sheaf_new_tensor_4d(r.ctx, SHEAF_TYPE_F32, f->d, f->n, f->h, f->seqs);
    struct sheaf_tensor *k = sheaf_new_tensor_4d(r.ctx, f->cache, f->d, f->t, f->kv, f->seqs);
    struct sheaf_tensor *v = sheaf_dup_tensor(r.ctx, k), *w[2], *y;
    struct sheaf_tensor *const src[5] = {q, k, v};
    const float scale_alone[3] = {0.125f};
    y = f->group ? attention_part(r.ctx, src, scale_alone, f->base, 2 * f->h, f->group)
                 : sheaf_flash_attn_ext(r.ctx, q, k, v, NULL, 0.125f, 0, 0);
    y = sheaf_reshape_2d(r.ctx, y, f->d * f->h, f->n * f->seqs);
    for (int i = 0; i < 2; i++) {
        w[i] = sheaf_new_tensor_2d(r.ctx, f->type, f->d * f->h, 5);
        struct sheaf_tensor *z = sheaf_scale(r.ctx, sheaf_mul_mat(r.ctx, w[i], y), 2);
        cr_assert_eq(sheaf_build_forward_expand(r.graph, z), SHEAF_STATUS_SUCCESS);
    }
    rig_alloc(&r);
    fill(q, 1);
    struct sheaf_tensor *const filled[] = {k, v, w[0], w[1]};
    for (int i = 0; i < 4; i++) {
        static float x[1 << 16];
        static uint8_t bytes[1 << 18];
        const int64_t n = sheaf_nelements(filled[i]);
        cr_assert_leq(n, 1 << 16);
        for (int64_t j = 0; j < n; j++) x[j] = (float)((j * 37 + i) % 101 - 50) / 25;
        cr_assert_eq(sheaf_from_float(filled[i]->type, x, bytes, n), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_set(filled[i], bytes, 0, sheaf_nbytes(filled[i])),
                     SHEAF_STATUS_SUCCESS);
    }
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
    return rig_results(&r, size);
}

Test(cuda_emu, attention_makes_columns_integers) {
    /* attention, joined, its columns, and twice a product with a scale; with fuse=0 the columns are
     * made for each product */
    static const struct seen cases[] = {
        {64, 3, 1, 1, 1, 400, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {8, 6}, 0, 0},
        {128, 8, 1, 2, 1, 400, SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0, {8, 6}, 0, 0},
        {32, 33, 1, 1, 1, 400, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {8, 6}, 0, 0},
        {96, 5, 1, 3, 1, 400, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {8, 6}, 0, 0},
        {48, 2, 1, 1, 1, 400, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {8, 7}, 0, 0},
        {64, 3, 1, 1, 1, 400, SHEAF_TYPE_F16, SHEAF_TYPE_F16, {6, 6}, 0, 0},
        /* one part: rows of one block, of two, groups of several sizes, the last the smallest */
        {64, 3, 1, 1, 1, 30, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {7, 5}, 0, 0},
        {128, 8, 1, 2, 1, 256, SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0, {7, 5}, 0, 0},
        {32, 33, 11, 1, 1, 90, SHEAF_TYPE_BF16, SHEAF_TYPE_Q4_0, {7, 5}, 0, 0},
        {256, 5, 2, 3, 1, 40, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {7, 5}, 0, 3},
        {256, 7, 3, 3, 1, 40, SHEAF_TYPE_BF16, SHEAF_TYPE_Q8_0, {7, 5}, 2, 4},
        {64, 7, 3, 3, 2, 100, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {7, 5}, 2, 4},
        {48, 2, 1, 1, 1, 30, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {7, 6}, 0, 0},
        {64, 3, 1, 1, 1, 30, SHEAF_TYPE_F16, SHEAF_TYPE_F16, {5, 5}, 0, 0},
        /* a cache of blocks, heads that only attention_split.cu has; any type, where no kernel rounds */
        {64, 2, 2, 1, 1, 50, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_0, {7, 5}, 0, 0},
        {128, 12, 2, 2, 1, 60, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q8_0, {7, 5}, 0, 0},
        {64, 7, 3, 5, 1, 64, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, {7, 5}, 2, 4},
        {512, 3, 1, 1, 1, 33, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, {7, 5}, 0, 0},
        {64, 3, 1, 1, 1, 30, SHEAF_TYPE_F32, SHEAF_TYPE_Q4_0, {7, 6}, 0, 0},
    };
    FILE *trace = rig_trace();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size[2];
        char *all[2];
        for (int on = 0; on < 2; on++) {
            rig_trace_clear(trace);
            all[on] = seen_of(&cases[i], on ? "" : "fuse=0", &size[on]);
            cr_assert_eq(replays_of(trace, cases[i].launches[on]), 2, "case %zu", i);
        }
        cr_assert(size[0] == size[1] && !memcmp(all[0], all[1], size[0]), "case %zu: other bits",
                  i);
        free(all[0]);
        free(all[1]);
    }
    fclose(trace);
}

/* A sum of blocks is kept for the nodes that come next, and is in one kernel with a residual and a
 * norm; whatever else comes next, it is there before. Five blocks on two hosts. */
enum { SUM_K = 260, SUM_ROWS = 3, SUM_N = SUM_K * SUM_ROWS, SUM_BLOCKS = 5 };
enum next {
    SUM_THEN_ADD,
    SUM_THEN_ADD_RIGHT,
    SUM_THEN_NORM,
    SUM_IS_WEIGHTS,
    SUM_THEN_SCALE,
    SUM_THEN_GET,
    NEXT
};

static const float *block_at(const void *user, int member) {
    return (const float *)user + member * SUM_N;
}

static char *sums_of(enum next next, const char *machine, const char *params, size_t *size) {
    static const int order[] = {3, 0, 4, 1, 2}, host[] = {0, 1, 1, 0, 0};
    struct rig r = rig_up(machine, params);
    struct sheaf_tensor *blocks = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, SUM_N, SUM_BLOCKS);
    struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, SUM_K, SUM_ROWS), *y = x;
    struct sheaf_tensor *rest = sheaf_dup_tensor(r.ctx, x);
    struct sheaf_tensor *w = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, SUM_K);
    if (next == SUM_THEN_ADD) y = sheaf_add(r.ctx, x, rest);
    if (next == SUM_THEN_ADD_RIGHT) y = sheaf_add(r.ctx, rest, x);
    if (next == SUM_THEN_SCALE) y = sheaf_scale(r.ctx, x, 3);
    if (next == SUM_IS_WEIGHTS) w = sheaf_view_1d(r.ctx, x, SUM_K, 0);
    y = sheaf_mul(r.ctx, sheaf_rms_norm(r.ctx, y, 1e-5f), w);
    y = sheaf_scale(r.ctx, sheaf_scale(r.ctx, y, 2), 2);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    fill(blocks, 1);
    fill(rest, 2);
    if (next != SUM_IS_WEIGHTS) fill(w, 3);
    sheaf__sum_fn *add;
    void *p = sheaf_backend_reg_get_proc_address(r.reg, SHEAF__SUM_PROC);
    memcpy(&add, &p, sizeof add);
    const struct sheaf__sum sum =
        sheaf__sum_of(SUM_BLOCKS, order, host, block_at, blocks->data, x->data, SUM_N);
    static float got[SUM_N], b[SUM_BLOCKS * SUM_N];
    for (int i = 0; i < 4; i++) { /* the blocks change, the sum is part of what is replayed */
        fill(blocks, (uint64_t)i);
        cr_assert_eq(sheaf_backend_tensor_memset(x, 0xff, 0, sheaf_nbytes(x)),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq(add(r.backend, &sum), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        if (next == SUM_THEN_GET) {
            cr_assert_eq(sheaf_backend_tensor_get_async(r.backend, x, got, 0, sizeof got),
                         SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_backend_synchronize(r.backend), SHEAF_STATUS_SUCCESS);
        }
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_eq(sheaf_backend_tensor_get(blocks, b, 0, sizeof b), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_get(x, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        for (int j = 0; j < SUM_N; j++) {
            const float want =
                ((b[3 * SUM_N + j] + b[j]) + b[4 * SUM_N + j]) + (b[SUM_N + j] + b[2 * SUM_N + j]);
            cr_assert(got[j] == want, "%d: element %d is %.9g, not %.9g", next, j, (double)got[j],
                      (double)want);
        }
    }
    return rig_results(&r, size);
}

Test(cuda_emu, sums_go_with_what_follows) {
    /* launches of a replay: the nodes one by one, and fused; the sum is one, or part of one */
    static const int launches[NEXT][2] = {
        [SUM_THEN_ADD] = {6, 3},   [SUM_THEN_ADD_RIGHT] = {6, 3}, [SUM_THEN_NORM] = {5, 3},
        [SUM_IS_WEIGHTS] = {5, 4}, [SUM_THEN_SCALE] = {6, 5},     [SUM_THEN_GET] = {4, 3}};
    FILE *trace = rig_trace();
    for (int next = 0; next < NEXT; next++) {
        size_t size[2];
        char *all[2];
        for (int on = 0; on < 2; on++) {
            rig_trace_clear(trace);
            all[on] = sums_of((enum next)next, "", on ? "" : "fuse=0", &size[on]);
            cr_assert_eq(replays_of(trace, launches[next][on]), 3, "case %d", next);
        }
        cr_assert(size[0] == size[1] && !memcmp(all[0], all[1], size[0]), "case %d: other bits",
                  next);
        free(all[0]);
        free(all[1]);
    }
    rig_trace_clear(trace); /* a capture that fails at its end has submitted the sum to nothing */
    size_t size;
    free(sums_of(SUM_THEN_ADD, "fail=cudaGraphInstantiate:1", "", &size));
    cr_assert_eq(replays_of(trace, 0), 0);
    fclose(trace);
}

/* Whatever is asked of the queue behind a sum finds it done. */
enum behind {
    BEHIND_GET,
    BEHIND_INPUTS,
    BEHIND_COPY,
    BEHIND_COPY_HERE,
    BEHIND_RECORD,
    BEHIND_WAIT,
    BEHIND
};

static void sum_before(enum behind behind) {
    enum { N = 100 };
    static const int order[] = {0}, host[] = {0};
    struct rig r = rig_up("devices=2", NULL);
    struct sheaf_tensor *blocks = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, N);
    struct sheaf_tensor *x = sheaf_dup_tensor(r.ctx, blocks);
    rig_alloc(&r);
    const sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(r.reg, 0);
    sheaf_backend_t other;
    sheaf_backend_event_t event;
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(sheaf_backend_dev_init(sheaf_backend_reg_dev_get(r.reg, 1), NULL, &other),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_event_new(dev, &event), SHEAF_STATUS_SUCCESS);
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 4096, .no_alloc = true});
    struct sheaf_tensor *there = sheaf_dup_tensor(ctx, x);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, other, &buffer), SHEAF_STATUS_SUCCESS);
    set_all(blocks, 3, 0);
    set_all(x, -1, 0);
    set_all(there, 5, 0);
    sheaf__sum_fn *add;
    void *p = sheaf_backend_reg_get_proc_address(r.reg, SHEAF__SUM_PROC);
    memcpy(&add, &p, sizeof add);
    const struct sheaf__sum sum = sheaf__sum_of(1, order, host, block_at, blocks->data, x->data, N);
    cr_assert_eq(add(r.backend, &sum), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    float want = 3, given[N], got[N];
    for (int i = 0; i < N; i++) given[i] = 7;
    const struct sheaf_tensor_write write = {x, given};
    const struct sheaf_tensor *from = x;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    switch (behind) {
    case BEHIND_GET:
        st = sheaf_backend_tensor_get_async(r.backend, x, got, 0, sizeof got);
        from = NULL;
        break;
    case BEHIND_INPUTS:
        st = sheaf_backend_tensors_set(r.backend, &write, 1);
        want = 7;
        break;
    case BEHIND_COPY:
        st = sheaf_backend_tensor_copy_async(r.backend, other, x, there);
        from = there;
        break;
    case BEHIND_COPY_HERE:
        st = sheaf_backend_tensor_copy_async(other, r.backend, there, x);
        want = 5;
        break;
    case BEHIND_RECORD:
        st = sheaf_backend_event_record(event, r.backend);
        break;
    default: /* of an event that another queue has recorded, or none */
        st = sheaf_backend_event_wait(r.backend, event);
        break;
    }
    cr_assert_eq(st, SHEAF_STATUS_SUCCESS, "%d: %s", behind, sheaf_last_error());
    const bool at_once = behind == BEHIND_RECORD || behind == BEHIND_WAIT;
    if (!at_once) cr_assert_eq(sheaf_backend_synchronize(r.backend), SHEAF_STATUS_SUCCESS);
    if (from)
        cr_assert_eq(sheaf_backend_tensor_get(from, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < N; i++)
        cr_assert_float_eq(got[i], want, 0, "%d: element %d is %g", behind, i, (double)got[i]);
    sheaf_backend_event_free(event);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_free(other);
    rig_down(&r);
}

Test(cuda_emu, sums_come_before_what_is_asked) {
    for (int behind = 0; behind < BEHIND; behind++) sum_before((enum behind)behind);
}

/* A graph that computes nothing, which comes again and again, takes no sum away: it is there behind the wait. */
Test(cuda_emu, a_sum_outlives_a_graph_of_views) {
    static const int order[] = {0, 1}, host[] = {0, 0};
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *blocks = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, SUM_N, 2);
    struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, SUM_K, SUM_ROWS), *y = x;
    for (int i = 0; i < 5; i++) y = sheaf_transpose(r.ctx, y);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_graph_n_nodes(r.graph), 5);
    rig_alloc(&r);
    sheaf__sum_fn *add;
    void *p = sheaf_backend_reg_get_proc_address(r.reg, SHEAF__SUM_PROC);
    memcpy(&add, &p, sizeof add);
    const struct sheaf__sum sum =
        sheaf__sum_of(2, order, host, block_at, blocks->data, x->data, SUM_N);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(sheaf_backend_tensor_memset(x, 0xff, 0, sheaf_nbytes(x)),
                     SHEAF_STATUS_SUCCESS);
        fill(blocks, (uint64_t)i);
        cr_assert_eq(add(r.backend, &sum), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        static float b[2 * SUM_N], got[SUM_N];
        cr_assert_eq(sheaf_backend_tensor_get(blocks, b, 0, sizeof b), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_get(x, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        for (int j = 0; j < SUM_N; j++)
            cr_assert(got[j] == b[j] + b[SUM_N + j], "run %d: element %d is %g", i, j,
                      (double)got[j]);
    }
    rig_down(&r);
}

/* Products of one x convert it once, as long as it stays what it was. */
Test(cuda_emu, columns_are_rounded_once) {
    enum { K = 64, M = 8, N = 12 };
    FILE *trace = rig_trace();
    static float got[2][4 * M * N];
    for (int way = 0; way < 4; way++) { /* one column: integers; twelve: halves, by cuBLASLt */
        const int on = way % 2, n_columns = way < 2 ? 1 : N, n_y = M * n_columns;
        struct rig r = rig_up("", on ? "" : "fuse=0");
        struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, n_columns), *w[4],
                            *y[4];
        struct sheaf_tensor *twice = sheaf_scale(r.ctx, x, 2);   /* between products: no harm */
        struct sheaf_tensor *other = sheaf_cpy(r.ctx, twice, x); /* writes x */
        for (int i = 0; i < 4; i++) {
            w[i] = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_Q8_0, K, M);
            y[i] = sheaf_mul_mat(r.ctx, w[i], i == 3 ? twice : x);
        }
        struct sheaf_tensor *const order[] = {y[0], twice, y[1], other, y[2], y[3]};
        for (size_t i = 0; i < 6; i++)
            cr_assert_eq(sheaf_build_forward_expand(r.graph, order[i]), SHEAF_STATUS_SUCCESS);
        rig_alloc(&r);
        rig_trace_clear(trace);
        for (int n = 0; n < 3; n++) {
            fill(x, 5);
            for (int i = 0; i < 4; i++) {
                uint8_t bytes[K / 32 * M * 34];
                float f[K * M];
                for (int j = 0; j < K * M; j++) f[j] = (float)((j * 7 + i) % 23 - 11);
                cr_assert_eq(sheaf_from_float(SHEAF_TYPE_Q8_0, f, bytes, K * M),
                             SHEAF_STATUS_SUCCESS);
                cr_assert_eq(sheaf_backend_tensor_set(w[i], bytes, 0, sizeof bytes),
                             SHEAF_STATUS_SUCCESS);
            }
            cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS,
                         "%s", sheaf_last_error());
        }
        for (int i = 0; i < 4; i++)
            cr_assert_eq(
                sheaf_backend_tensor_get(y[i], got[on] + i * n_y, 0, (size_t)n_y * sizeof(float)),
                SHEAF_STATUS_SUCCESS);
        cr_assert_eq(replays_of(trace, (way < 2 ? 10 : 14) - on), 2);
        rig_down(&r);
        if (!on) continue;
        cr_assert(!memcmp(got[0], got[1], 4 * (size_t)n_y * sizeof(float)), "way %d", way);
        cr_assert(memcmp(got[0], got[0] + 2 * n_y, (size_t)n_y * sizeof(float)) != 0);
    }
    fclose(trace);
}

/* Two of twelve columns go the way of all, as a member that has some of the columns computes them. */
Test(cuda_emu, a_slice_of_columns_has_the_bits_of_the_whole) {
    enum { K = 64, M = 8, N = 12, FIRST = 3, SOME = 2 };
    for (int told = 0; told < 2; told++) {
        struct rig r = rig_up("", NULL);
        struct sheaf_tensor *w = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F16, K, M);
        struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, N);
        struct sheaf_tensor *some = sheaf_view_2d(r.ctx, x, K, SOME, x->nb[1], FIRST * x->nb[1]);
        struct sheaf_tensor *whole = sheaf_mul_mat(r.ctx, w, x), *y = sheaf_mul_mat(r.ctx, w, some);
        uint16_t halves[K * M];
        float want[M * N], got[M * SOME];
        if (told) y->op_params[SHEAF_OP_PARAM_NE1] = y->op_params[SHEAF_OP_PARAM_COLUMNS] = N;
        cr_assert_eq(sheaf_build_forward_expand(r.graph, whole), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
        rig_alloc(&r);
        fill(x, 5);
        for (int i = 0; i < K * M; i++) halves[i] = sheaf_fp32_to_fp16(1.0f / (float)(3 + i % 23));
        cr_assert_eq(sheaf_backend_tensor_set(w, halves, 0, sizeof halves), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_eq(sheaf_backend_tensor_get(whole, want, 0, sizeof want), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(memcmp(got, want + FIRST * M, sizeof got) == 0, told != 0, "told %d", told);
        rig_down(&r);
    }
}

/* Nodes that could be one launch by their shapes, if the second did not read what the first writes: a product whose
 * matrix is a product of the same x, a norm that is its own weights, a sum that is them. */
Test(cuda_emu, nodes_that_depend_are_launches_of_their_own) {
    enum { K = 64, N = 2 };
    float got[2][N * N + 4 * K];
    for (int seed = 1; seed <= 6; seed++) {
        char machine[16];
        snprintf(machine, sizeof machine, "order=%d", seed);
        for (int on = 0; on < 2; on++) {
            struct rig r = rig_up(machine, on ? "" : "fuse=0");
            struct sheaf_tensor *a = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, K);
            struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, N);
            struct sheaf_tensor *h = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, K);
            struct sheaf_tensor *y = sheaf_mul_mat(r.ctx, a, x), *z = sheaf_mul_mat(r.ctx, y, x);
            struct sheaf_tensor *n = sheaf_rms_norm(r.ctx, h, 1e-5f), *m = sheaf_mul(r.ctx, n, n);
            struct sheaf_tensor *sum = sheaf_add(r.ctx, h, m);
            struct sheaf_tensor *norm = sheaf_rms_norm(r.ctx, sum, 1e-5f);
            struct sheaf_tensor *out = sheaf_mul(r.ctx, norm, sum);
            const struct sheaf_tensor *const results[] = {z, m, norm, out};
            cr_assert_eq(sheaf_build_forward_expand(r.graph, z), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_build_forward_expand(r.graph, out), SHEAF_STATUS_SUCCESS);
            rig_alloc(&r);
            fill(a, 1);
            fill(x, 2);
            fill(h, 3);
            cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS,
                         "%s", sheaf_last_error());
            size_t at = 0;
            for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
                const size_t size = sheaf_nbytes(results[i]);
                cr_assert_eq(sheaf_backend_tensor_get(results[i], got[on] + at, 0, size),
                             SHEAF_STATUS_SUCCESS);
                at += size / sizeof(float);
            }
            rig_down(&r);
        }
        cr_expect(!memcmp(got[0], got[1], (N * N + 3 * K) * sizeof(float)), "%s", machine);
    }
}

/* Without an algorithm tiles take over, also where the columns are there from the product before.
 */
Test(cuda_emu, products_without_an_algorithm) {
    enum { K = 64, M = 8, N = 12 };
    float got[2][2 * M * N];
    for (int on = 0; on < 2; on++) {
        struct rig r = rig_up("algorithms=0", on ? "" : "fuse=0");
        struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F16, K, N), *w[2], *y[2];
        for (int i = 0; i < 2; i++) {
            w[i] = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F16, K, M);
            y[i] = sheaf_mul_mat(r.ctx, w[i], x);
            cr_assert_eq(sheaf_build_forward_expand(r.graph, y[i]), SHEAF_STATUS_SUCCESS);
        }
        rig_alloc(&r);
        struct sheaf_tensor *const all[] = {x, w[0], w[1]};
        for (int i = 0; i < 3; i++) {
            uint16_t h[K * N];
            const int64_t n = sheaf_nelements(all[i]);
            for (int64_t j = 0; j < n; j++)
                h[j] = sheaf_fp32_to_fp16((float)((j * 7 + i) % 23 - 11));
            cr_assert_eq(sheaf_backend_tensor_set(all[i], h, 0, (size_t)n * sizeof *h),
                         SHEAF_STATUS_SUCCESS);
        }
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        for (int i = 0; i < 2; i++)
            cr_assert_eq(
                sheaf_backend_tensor_get(y[i], got[on] + i * M * N, 0, M * N * sizeof(float)),
                SHEAF_STATUS_SUCCESS);
        rig_down(&r);
    }
    cr_assert(!memcmp(got[0], got[1], sizeof got[0]));
}

/* A capture that fails leaves the graph running node by node. */
Test(cuda_emu, without_captures) {
    struct rig r = rig_up("fail=cudaStreamBeginCapture:1", NULL);
    struct sheaf_tensor *x, *y = five_nodes(&r, &x);
    for (int i = 0; i < 4; i++) {
        set_all(x, (float)i, 0);
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_float_eq(first_of(y), (float)i * 10, 0);
    }
    rig_down(&r);
}

/* ---- against the CPU ---- */

/* The values of masked keys belong to no query: NaN here. Key j is seen by query i if j <= i + 5.
 */
Test(cuda_emu, attention_reads_no_masked_key) {
    enum { D = 64, N = 40, T = 96, HEADS = 4, KV = 2 };
    struct rig r = rig_up("", NULL);
    sheaf_backend_t cpu;
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &cpu), SHEAF_STATUS_SUCCESS);
    float *result[2];
    for (int on = 0; on < 2; on++) {
        struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){
            .mem_size = 16 * sheaf_tensor_overhead() + sheaf_graph_overhead(), .no_alloc = true});
        struct sheaf_tensor *q = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, D, N, HEADS);
        struct sheaf_tensor *kv[2] = {sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F16, D, T, KV),
                                      sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F16, D, T, KV)};
        struct sheaf_tensor *mask = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F16, T, N);
        struct sheaf_tensor *y = sheaf_flash_attn_ext(ctx, q, kv[0], kv[1], mask, 0.125f, 0, 0);
        struct sheaf_cgraph *graph = sheaf_new_graph(ctx);
        sheaf_backend_buffer_t buffer;
        sheaf_backend_t backend = on ? r.backend : cpu;
        cr_assert_eq(sheaf_build_forward_expand(graph, y), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer), SHEAF_STATUS_SUCCESS);
        uint64_t seed = 1;
        float *f = malloc(sizeof(float) * D * N * HEADS);
        uint16_t *h = malloc(sizeof(uint16_t) * D * T * KV);
        for (int i = 0; i < D * N * HEADS; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            f[i] = (float)(seed >> 40) / (float)(1 << 23) - 1;
        }
        cr_assert_eq(sheaf_backend_tensor_set(q, f, 0, sheaf_nbytes(q)), SHEAF_STATUS_SUCCESS);
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < D * T * KV; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                const float x = (float)(seed >> 40) / (float)(1 << 23) - 1;
                h[i] = i / D % T > N + 4 ? 0x7e01 : sheaf_fp32_to_fp16(x);
            }
            cr_assert_eq(sheaf_backend_tensor_set(kv[k], h, 0, sheaf_nbytes(kv[k])),
                         SHEAF_STATUS_SUCCESS);
        }
        for (int i = 0; i < N * T; i++) h[i] = i % T > i / T + 5 ? 0xfc00 : 0;
        cr_assert_eq(sheaf_backend_tensor_set(mask, h, 0, sheaf_nbytes(mask)),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_eq(sheaf_backend_tensor_get(y, f, 0, sheaf_nbytes(y)), SHEAF_STATUS_SUCCESS);
        result[on] = f;
        free(h);
        sheaf_backend_buffer_free(buffer);
        sheaf_free(ctx);
    }
    for (int i = 0; i < D * N * HEADS; i++)
        cr_assert_float_eq(result[0][i], result[1][i], 2e-3, "%d: %g, %g", i, (double)result[0][i],
                           (double)result[1][i]);
    free(result[0]);
    free(result[1]);
    sheaf_backend_free(cpu);
    rig_down(&r);
}

/* Copies to every block type give the bytes that the host gives, and rows of them its floats. */
Test(cuda_emu, blocks_are_the_hosts) {
    enum { N = 256, ROWS = 3 };
    static const enum sheaf_type types[] = {
        SHEAF_TYPE_Q4_0,   SHEAF_TYPE_Q4_1,   SHEAF_TYPE_Q5_0, SHEAF_TYPE_Q5_1, SHEAF_TYPE_Q8_0,
        SHEAF_TYPE_Q4_K,   SHEAF_TYPE_Q5_K,   SHEAF_TYPE_Q6_K, SHEAF_TYPE_Q2_K, SHEAF_TYPE_Q3_K,
        SHEAF_TYPE_IQ4_NL, SHEAF_TYPE_IQ4_XS, SHEAF_TYPE_MXFP4};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct rig r = rig_up("", NULL);
        struct sheaf_tensor *x = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, N, ROWS);
        struct sheaf_tensor *b = sheaf_new_tensor_2d(r.ctx, types[i], N, ROWS);
        struct sheaf_tensor *ids = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I32, ROWS);
        struct sheaf_tensor *y = sheaf_get_rows(r.ctx, sheaf_cpy(r.ctx, x, b), ids);
        static const int32_t id[ROWS] = {0, 1, 2};
        static float f[N * ROWS], back[N * ROWS];
        static uint8_t want[N * ROWS * 4], got[N * ROWS * 4];
        cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
        rig_alloc(&r);
        uint64_t seed = 7;
        for (int j = 0; j < N * ROWS; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            f[j] = ((float)(seed >> 40) / (float)(1 << 23) - 1) * (j < N ? 1e-6f : 3);
        }
        memset(f + 2 * N, 0, 64 * sizeof *f);
        cr_assert_eq(sheaf_backend_tensor_set(x, f, 0, sizeof f), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_tensor_set(ids, id, 0, sizeof id), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        const size_t bytes = sheaf_nbytes(b);
        cr_assert_eq(sheaf_backend_tensor_get(b, got, 0, bytes), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_from_float(types[i], f, want, N * ROWS), SHEAF_STATUS_SUCCESS);
        cr_assert(!memcmp(got, want, bytes), "%s: other bytes", sheaf_type_name(types[i]));
        cr_assert_eq(sheaf_backend_tensor_get(y, back, 0, sizeof back), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_to_float(types[i], want, f, N * ROWS), SHEAF_STATUS_SUCCESS);
        for (int j = 0; j < N * ROWS; j++)
            cr_assert(!memcmp(&back[j], &f[j], sizeof *f), "%s: element %d is %g, not %g",
                      sheaf_type_name(types[i]), j, (double)back[j], (double)f[j]);
        rig_down(&r);
    }
}

/* Of rows with the same number the last is kept. */
Test(cuda_emu, set_rows_keeps_the_last) {
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *a = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, 8, 3);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, 8, 4);
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I32, 4);
    struct sheaf_tensor *y = sheaf_set_rows(r.ctx, a, b, ids);
    static const int32_t id[] = {1, 2, 1, 1};
    float got[24];
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    set_all(a, -1, 0);
    set_all(b, 0, 1);
    cr_assert_eq(sheaf_backend_tensor_set(ids, id, 0, sizeof id), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_get(a, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 24; i++)
        cr_assert_float_eq(got[i],
                           (float)(i < 8    ? -1
                                   : i < 16 ? 24 + i - 8
                                            : i - 8),
                           0, "%d: %g", i, (double)got[i]);
    rig_down(&r);
}

/* Whole models: fused nodes, which give the bits of separate ones, memory that the graph allocator gives
 * out again, replayed graphs. */
Test(cuda_emu, models, .timeout = DEADLINE) {
    static const struct {
        const char *options;
        double error;      /* mean square, against that of the logits */
        const char *cache; /* its type */
    } cases[] = {
        {"--arch llama --type f32 --embd 128 --head-dim 64 --heads 4 --kv-heads 2", 1e-5, "f32"},
        {"--arch qwen2 --type q8_0 --embd 128 --ff 256 --heads 8", 1e-3, "f16"},
        {"--arch gemma3 --type q4_K --embd 256 --ff 256 --head-dim 64", 5e-3, "f16"},
        {"--arch qwen3 --type q4_0 --embd 128 --ff 256 --head-dim 64", 5e-3, "q8_0"},
    };
    static char out[CAP];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[] = "/tmp/cuda-emu-XXXXXX", cmd[1500];
        cr_assert_not_null(mkdtemp(dir));
        snprintf(
            cmd, sizeof cmd,
            "cd %s && B='" SHEAF_BUILD_DIR "/bin' && $B/sheaf-make-model -o m.gguf %s >&2 && "
            "export SHEAF_CPU_THREADS=1 SHEAF_CPU_DEVICES=1 " ENV " && for d in CPU0@0 CUDA0@0 "
            "fuse=0; do p=; [ $d != fuse=0 ] || p=$d d=CUDA0@0; SHEAF_CUDA_PARAMS=$p "
            "$B/sheaf-run -m m.gguf --devices $d --logits $d$p.bin --temp 0 -n 6 -ctk %s "
            "--ignore-eos -p "
            "'aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk llll mmmm nnnn' || exit 1; "
            "done; cmp CUDA0@0.bin CUDA0@0fuse=0.bin",
            dir, cases[i].options, cases[i].cache);
        cr_assert_eq(run_command(cmd, DEADLINE, out, CAP), 0, "%s: %s", cases[i].options, out);
        float *x[2];
        size_t n[2];
        for (int on = 0; on < 2; on++) {
            snprintf(cmd, sizeof cmd, "%s/%s@0.bin", dir, on ? "CUDA0" : "CPU0");
            FILE *file = fopen(cmd, "rb");
            cr_assert_not_null(file, "%s: %s", cmd, out);
            x[on] = malloc(1 << 20);
            n[on] = fread(x[on], sizeof(float), (1 << 20) / sizeof(float), file);
            fclose(file);
        }
        double difference = 0, size = 0;
        cr_assert_eq(n[0], n[1]);
        cr_assert_gt(n[0], 500);
        for (size_t j = 0; j < n[0]; j++) {
            difference += (double)(x[0][j] - x[1][j]) * (double)(x[0][j] - x[1][j]);
            size += (double)x[0][j] * (double)x[0][j];
        }
        cr_assert(size > 0 && difference / size <= cases[i].error, "%s: %g", cases[i].options,
                  difference / size);
        free(x[0]);
        free(x[1]);
        snprintf(cmd, sizeof cmd, "rm -r %s", dir);
        cr_assert_eq(run_command(cmd, 20, out, CAP), 0, "%s", out);
    }
}

/* ---- what is refused, and how ---- */

Test(cuda_emu, ids_out_of_range) {
    static const int32_t bad[] = {-1, 7, 1 << 30};
    for (int kind = 0; kind < 3; kind++) {
        static const char *const text[] = {"GET_ROWS 'y': row", "SET_ROWS 'y': row",
                                           "MUL_MAT_ID 'y': expert"};
        struct rig r = rig_up("", NULL);
        struct sheaf_tensor *a =
            sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F32, 8, kind == 2 ? 3 : 7, kind == 2 ? 7 : 1);
        struct sheaf_tensor *ids =
            sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_I32, kind == 2 ? 2 : 4, kind == 2 ? 2 : 1);
        struct sheaf_tensor *b =
            sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F32, 8, kind == 2 ? 2 : 4, kind == 2 ? 2 : 1);
        struct sheaf_tensor *y = kind == 0   ? sheaf_get_rows(r.ctx, a, ids)
                                 : kind == 1 ? sheaf_set_rows(r.ctx, a, b, ids)
                                             : sheaf_mul_mat_id(r.ctx, a, b, ids);
        sheaf_set_name(y, "y");
        cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        rig_alloc(&r);
        set_all(a, 0, 1);
        set_all(b, 0, 1);
        for (int i = 0; i < 3; i++) {
            int32_t id[4] = {0, 3, bad[i], 6};
            char wanted[80];
            cr_assert_eq(sheaf_backend_tensor_set(ids, id, 0, sizeof id), SHEAF_STATUS_SUCCESS);
            snprintf(wanted, sizeof wanted, "CUDA0: %s %d is outside [0, 7)", text[kind], bad[i]);
            fails_with(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_INVALID,
                       wanted);
            id[2] = 2; /* and it is forgotten */
            cr_assert_eq(sheaf_backend_tensor_set(ids, id, 0, sizeof id), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS);
        }
        rig_down(&r);
    }
}

Test(cuda_emu, bad_graphs) {
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *x, *y = five_nodes(&r, &x);
    void *data = x->data;
    sheaf_set_name(x, "x");
    x->data = NULL;
    fails_with(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_INVALID,
               "CUDA0: 'x' of");
    x->data = data;
    y->type = SHEAF_TYPE_I32;
    fails_with(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_UNSUPPORTED,
               "cannot compute SCALE");
    y->type = SHEAF_TYPE_F32;

    sheaf_backend_buffer_t host;
    sheaf_backend_buffer_t own = x->buffer;
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(sheaf_backend_cpu_buffer_type(), 4096, &host),
                 SHEAF_STATUS_SUCCESS);
    x->buffer = host;
    fails_with(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_INVALID,
               "lies in CPU0, not on this device");
    x->buffer = own;
    sheaf_backend_buffer_free(host);
    set_all(x, 1, 0);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    rig_down(&r);
}

/* Every call of the runtime that can fail, failing. */
Test(cuda_emu, failing_calls) {
    static const struct {
        const char *fail, *text;
        enum sheaf_status status;
        bool at_start;
    } cases[] = {
        {"cudaStreamCreateWithFlags:1", "CUDA0: starting the device: out of memory",
         SHEAF_STATUS_ALLOC_FAILED, true},
        {"cudaEventCreateWithFlags:1", "CUDA0: starting the device", SHEAF_STATUS_ALLOC_FAILED,
         true},
        {"cudaHostAlloc:1", "CUDA0: starting the device", SHEAF_STATUS_ALLOC_FAILED, true},
        {"launch:3", "CUDA0: starting ADD", SHEAF_STATUS_FAILED, false},
        {"cudaGraphLaunch:1", "CUDA0: starting a captured graph of 5 nodes", SHEAF_STATUS_FAILED,
         false},
        {"cudaStreamSynchronize:3", "the device is lost to this process", SHEAF_STATUS_FAILED,
         false},
        {"cudaMemcpyAsync:2", "CUDA0: writing 'x' (1200 bytes): an illegal memory access",
         SHEAF_STATUS_FAILED, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char machine[80];
        snprintf(machine, sizeof machine, "fail=%s", cases[i].fail);
        sheaf_backend_reg_t reg = load(machine);
        sheaf_backend_t backend;
        enum sheaf_status st =
            sheaf_backend_dev_init(sheaf_backend_reg_dev_get(reg, 0), NULL, &backend);
        if (cases[i].at_start) {
            fails_with(st, cases[i].status, cases[i].text);
            cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS);
            continue;
        }
        struct rig r = {.reg = reg, .backend = backend};
        r.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 64 * sheaf_tensor_overhead() +
                                                                  4 * sheaf_graph_overhead(),
                                                      .no_alloc = true});
        r.graph = sheaf_new_graph(r.ctx);
        struct sheaf_tensor *x;
        float values[300] = {0};
        five_nodes(&r, &x);
        sheaf_set_name(x, "x");
        st = SHEAF_STATUS_SUCCESS;
        for (int n = 0; n < 3 && !st; n++) {
            st = sheaf_backend_tensor_set(x, values, 0, sizeof values);
            if (!st) st = sheaf_backend_graph_compute(r.backend, r.graph);
        }
        fails_with(st, cases[i].status, cases[i].text);
        rig_down(&r);
    }
}

/* A call that failed and was reported is not found again behind the next launch. */
Test(cuda_emu, a_failed_call_is_forgotten) {
    struct rig r = rig_up("fail=cudaMemcpyAsync:1", "graphs=0");
    struct sheaf_tensor *x, *y = five_nodes(&r, &x);
    float values[300] = {0};
    fails_with(sheaf_backend_tensor_set_async(r.backend, x, values, 0, sizeof values),
               SHEAF_STATUS_FAILED, "writing");
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    set_all(x, 3, 0);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS);
    cr_assert_float_eq(first_of(y), 30, 0);
    rig_down(&r);
}

Test(cuda_emu, parameters) {
    static const struct {
        const char *params;
        bool good;
    } cases[] = {{"", true},           {"graphs=0", true},   {"blas=0,graphs=1", true},
                 {"graphs=2", false},  {"graphs=", false},   {"graphs=0;", false},
                 {"nothing=1", false}, {"blas=0,", true},    {"fuse=0,graphs=0", true},
                 {"fuse", false},      {"graphs=00", false}, {"counts=1,times=0", true}};
    sheaf_backend_reg_t reg = load("");
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const char *params = cases[i / 2].params;
        sheaf_backend_t backend;
        if (i % 2) setenv("SHEAF_CUDA_PARAMS", params, 1); /* for a caller that gives none */
        const enum sheaf_status st = sheaf_backend_dev_init(sheaf_backend_reg_dev_get(reg, 0),
                                                            i % 2 ? NULL : params, &backend);
        cr_assert_eq(st, cases[i / 2].good ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_INVALID, "%s",
                     params);
        if (st) cr_assert(strstr(sheaf_last_error(), "graphs=0|1"), "%s", sheaf_last_error());
        sheaf_backend_free(backend);
        unsetenv("SHEAF_CUDA_PARAMS");
    }
}
