/* Collectives on the devices' own memory: the vote, the choice, what is said about it, the results
 * and the end of a job whose peer never comes. Through the module of the far devices
 * (tests/emulators/far/comm.c), which has no GPU behind it, and through that of the CUDA backend on
 * the emulator; NCCL's module goes through the same doors. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/device/devcomm.h"
#include "mpirun.h"
#include "sheaf/sheaf.h"

#define FAR   "SHEAF_CPU_THREADS=1 SHEAF_BACKEND_PATH='" SHEAF_BUILD_DIR "/lib/modules/far' "
#define MODEL SHEAF_SOURCE_DIR "/models/kjv-f32.gguf"
#define TEXT  "-m '" MODEL "' -p 'the old man' -n 8 --temp 0 --ignore-eos --ids --kv-type f32 -v "

/* Seconds for one job: fifteen times what the slowest takes beside other suites on a slow machine. */
enum { DEADLINE = 300 };

static char out[1 << 16];

/* ---- the vote ---- */

static const char *name(const void *user, int member) {
    static const char *const names[] = {"CUDA0", "CUDA1", "CUDA0@1"};
    (void)user;
    return names[member];
}

enum { APART = SHEAF__DEVCOMM_APART, ANY = SHEAF__DEVCOMM_ANY, ONE = SHEAF__DEVCOMM_ONE };

Test(devcomm, vote) {
    const struct {
        struct sheaf__devcomm_ballot b[3];
        bool yes;
        const char *text;
    } cases[] = {
        {{{true, APART, "nccl", {1}, ""},
          {true, APART, "nccl", {2}, ""},
          {true, APART, "nccl", {3}, ""}},
         true,
         "nccl"},
        {{{true, APART, "nccl", {1}, ""},
          {true, APART, "nccl", {2}, ""},
          {false, APART, "", {0}, "no libnccl.so.2"}},
         false,
         "member 2 (CUDA0@1): no libnccl.so.2"},
        {{{true, APART, "nccl", {1}, ""},
          {true, APART, "nccl", {2}, ""},
          {true, APART, "nccl", {1}, ""}},
         false,
         "members 0 (CUDA0) and 2 (CUDA0@1) are one device, which nccl refuses"},
        {{{true, ANY, "nccl", {1}, ""}, {true, ANY, "nccl", {2}, ""}, {true, ANY, "nccl", {1}, ""}},
         true,
         "nccl"},
        {{{true, ANY, "nccl", {1}, ""},
          {true, ANY, "nccl", {2}, ""},
          {true, APART, "nccl", {1}, ""}}, /* an older library on one rank */
         false,
         "members 0 (CUDA0) and 2 (CUDA0@1) are one device, which nccl refuses"},
        {{{true, ANY, "nccl", {1}, ""}, {true, ANY, "rccl", {2}, ""}, {true, ANY, "nccl", {3}, ""}},
         false,
         "member 1 (CUDA1) has rccl, member 0 (CUDA0) nccl"},
        {{{true, ONE, "gpu", {1}, ""}, {true, ONE, "gpu", {1}, ""}, {true, ONE, "gpu", {1}, ""}},
         true,
         "gpu"},
        {{{true, ONE, "gpu", {1}, ""}, {true, ONE, "gpu", {1}, ""}, {true, ONE, "gpu", {2}, ""}},
         false,
         "members 0 (CUDA0) and 2 (CUDA0@1) are two devices, which gpu refuses"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        cr_assert_eq(sheaf__devcomm_decide(cases[i].b, 3, name, NULL, text, sizeof text),
                     cases[i].yes, "case %zu: %s", i, text);
        cr_assert_str_eq(text, cases[i].text);
    }
}

/* ---- the choice ---- */

static int run(int np, const char *env, const char *args) {
    char cmd[4096];
    if (np) return run_mpirun(np, env, DEADLINE, out, sizeof out, "sheaf-run %s", args);
    snprintf(cmd, sizeof cmd, "exec env %s '%s'/bin/sheaf-run %s 2>&1", env, SHEAF_BUILD_DIR, args);
    return run_command(cmd, DEADLINE, out, sizeof out);
}

#define DEVICES "--devices Far0,Far1,Far2 "
#define RANKS   "--devices Far0@0,Far0@1 "

Test(devcomm, choice, .timeout = 600) {
    static const struct {
        int np;
        const char *env, *args;
        int status;
        const char *want;
    } cases[] = {
        {0, FAR "SHEAF_TEST_FAR_DEVICES=3 SHEAF_TEST_FAR_COMM=1", DEVICES, 0, "collectives far\n"},
        {2, FAR "SHEAF_TEST_FAR_COMM=1", RANKS, 0, "collectives far\n"},
        {0, FAR "SHEAF_TEST_FAR_DEVICES=3", DEVICES, 0,
         "host memory: member 0 (Far0): "}, /* no module, or none for such a device */
        {0, FAR "SHEAF_TEST_FAR_COMM=1", "--devices Far0,CPU0", 0,
         "host memory: member 1 (CPU0) is a CPU"},
        {0, FAR "SHEAF_TEST_FAR_DEVICES=3 SHEAF_TEST_FAR_COMM=1 SHEAF_COMM_DEVICE=off", DEVICES, 0,
         "host memory: SHEAF_COMM_DEVICE=off"},
        {0, FAR "SHEAF_TEST_FAR_DEVICES=3 SHEAF_TEST_FAR_COMM=1 SHEAF_COMM_DEVICE=of", DEVICES, 1,
         "SHEAF_COMM_DEVICE is 'of'; it is off, auto, require or the name of a module"},
        {2, FAR "SHEAF_TEST_FAR_COMM=1 SHEAF_COMM_DEVICE=far", RANKS, 0, "collectives far\n"},
        {2, FAR "SHEAF_TEST_FAR_COMM=same SHEAF_COMM_DEVICE=far", RANKS, 1,
         "SHEAF_COMM_DEVICE=far: members 0 (Far0) and 1 (Far0@1) are one device, which far "
         "refuses"},
        {2, FAR "SHEAF_TEST_FAR_COMM=none", RANKS, 0,
         "host memory: member 0 (Far0): libfar.so.2 was not found"},
        {2, FAR "SHEAF_TEST_FAR_COMM=none SHEAF_COMM_DEVICE=require", RANKS, 1,
         "SHEAF_COMM_DEVICE=require: member 0 (Far0): libfar.so.2 was not found"},
        {2, FAR "SHEAF_TEST_FAR_COMM=same", RANKS, 0,
         "host memory: members 0 (Far0) and 1 (Far0@1) are one device, which far refuses"},
        /* one rank fails inside the constructor: the other comes out, and all fall back */
        {2, FAR "SHEAF_TEST_FAR_COMM=broken SHEAF_TIMEOUT_MS=4000", RANKS, 0,
         "the far wire is cut"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[512];
        snprintf(args, sizeof args, TEXT "%s", cases[i].args);
        const int status = run(cases[i].np, cases[i].env, args);
        cr_assert_eq(status != 0, cases[i].status, "case %zu: status %d\n%s", i, status, out);
        cr_assert(strstr(out, cases[i].want), "case %zu: no '%s' in\n%s", i, cases[i].want, out);
    }
}

/* The bits are those of the path through host memory: one order of addition. */
Test(devcomm, the_same_bits, .timeout = 600) {
    static const struct {
        int np;
        const char *env, *args;
    } cases[] = {
        {0, FAR "SHEAF_TEST_FAR_DEVICES=3", DEVICES "--split 1,3,2 "},
        {2, FAR "SHEAF_TEST_FAR_DEVICES=2", "--devices Far0@0,Far1@0,Far0@1,Far1@1 "},
        {2, FAR "SHEAF_TEST_FAR_DEVICES=2 SHEAF_COMM_TRANSPORT=mpi",
         "--devices Far0@0,Far1@0,Far0@1,Far1@1 "},
    };
    char dir[] = "/tmp/sheaf-test-devcomm-XXXXXX", cmd[256];
    cr_assert_not_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int on = 0; on < 2; on++) {
            char env[512], args[512];
            snprintf(env, sizeof env, "%s SHEAF_TEST_FAR_COMM=1 SHEAF_COMM_DEVICE=%s", cases[i].env,
                     on ? "require" : "off");
            snprintf(args, sizeof args, TEXT "%s --check --logits %s/%d", cases[i].args, dir, on);
            cr_assert_eq(run(cases[i].np, env, args), 0, "%s", out);
            cr_assert(strstr(out, on ? "collectives far\n" : "SHEAF_COMM_DEVICE=off"), "%s", out);
        }
        snprintf(cmd, sizeof cmd, "test -s %s/1 && cmp %s/0 %s/1", dir, dir, dir);
        cr_assert_eq(run_command(cmd, 10, out, sizeof out), 0, "case %zu: %s", i, out);
    }
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    cr_assert_eq(run_command(cmd, 10, out, sizeof out), 0, "%s", out);
}

Test(devcomm, scenarios, .timeout = 600) {
    cr_assert_eq(run_mpirun(2, FAR "SHEAF_TEST_FAR_COMM=1 SHEAF_COMM_DEVICE=require", DEADLINE, out,
                            sizeof out, "helper-mixed -m Far"),
                 0, "%s", out);
    cr_assert(strstr(out, "ok 4 members on 2 ranks"), "%s", out);
}

Test(devcomm, every_size, .timeout = 600) {
    cr_assert_eq(
        run_mpirun(2, FAR "SHEAF_TEST_FAR_COMM=1", DEADLINE, out, sizeof out, "helper-devcomm Far"),
        0, "%s", out);
    cr_assert(strstr(out, "ok 4 members through far"), "%s", out);
}

/* A peer that never arrives: the job ends within its deadline, and names the collective. The flight
 * records of both ranks end with it; open are those of the step for which there was no wait. */
static void never_comes(int at, const char *open) {
    const double begin = run_seconds();
    char dir[] = "/tmp/sheaf-test-devcomm-XXXXXX", env[512], cmd[1024];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(env, sizeof env,
             FAR "SHEAF_TEST_FAR_COMM=stuck SHEAF_TEST_FAR_STUCK_AT=%d SHEAF_TIMEOUT_MS=2000 "
                 "SHEAF_FLIGHT_DIR=%s",
             at, dir);
    const int status = run(2, env, TEXT RANKS);
    cr_assert(status > 0, "status %d\n%s", status, out);
    cr_assert_lt(run_seconds() - begin, 30);
    cr_assert(strstr(out, "far: all_"), "%s", out);
    snprintf(cmd, sizeof cmd,
             "cd %s; for r in 0 1; do echo rank $r: $(grep -c ' open ' *rank$r.flight) open of "
             "$(sed -n 's/^records //p' *rank$r.flight); done; '%s/bin/sheaf-info' --postmortem .; "
             "rm -r %s",
             dir, SHEAF_BUILD_DIR, dir);
    run_command(cmd, 10, out, sizeof out);
    for (int r = 0; r < 2; r++) {
        char want[64];
        snprintf(want, sizeof want, "rank %d: %s of %d\n", r, open, at);
        cr_expect(strstr(out, want), "no '%s' in %s", want, out);
    }
    snprintf(cmd, sizeof cmd, "collective %d of group", at);
    cr_expect(strstr(out, "in collective all_") && strstr(out, cmd), "%s", out);
}
Test(devcomm, a_peer_that_never_comes, .timeout = 100) {
    never_comes(3, "3 open");
    never_comes(12, "3 open");
}

/* ---- members on one GPU: the CUDA backend's own, its kernels and IPC by the emulator ---- */

#define ONE  "SHEAF_CPU_THREADS=1 SHEAF_CPU_DEVICES=1 "
#define CUDA ONE "SHEAF_BACKEND_PATH='" SHEAF_BUILD_DIR "/lib/cuda-emu' "

#define NCCL_THERE (!access(SHEAF_BUILD_DIR "/lib/libsheaf-nccl.so", F_OK))

static void need_emulation(void) {
    if (access(SHEAF_BUILD_DIR "/lib/cuda-emu", F_OK))
        cr_skip_test("the emulated CUDA module is not built (sanitizers)");
}

Test(shared_gpu, every_size, .timeout = 600) {
    static const struct {
        int np;
        const char *env, *want;
    } cases[] = {{2, CUDA, "ok 2 members through shared-gpu"},
                 {2, CUDA "SHEAF_CUDA_DEVICES=2", "ok 4 members through shared-gpu"},
                 {1, CUDA "SHEAF_CUDA_DEVICES=3", "ok 3 members through shared-gpu"}};
    need_emulation();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int status =
            run_mpirun(cases[i].np, cases[i].env, DEADLINE, out, sizeof out, "helper-devcomm CUDA");
        cr_assert_eq(status, 0, "case %zu: status %d\n%s", i, status, out);
        cr_assert(strstr(out, cases[i].want), "case %zu: %s", i, out);
    }
}

/* The same bits as through host memory, though sums are in one kernel with what follows. */
Test(shared_gpu, the_same_bits, .timeout = 600) {
    static const struct {
        const char *mode, *devices, *want;
    } cases[] = {
        {"off", "CUDA0@0,CUDA1@0,CUDA0@1", "SHEAF_COMM_DEVICE=off"},
        {"shared-gpu", "CUDA0@0,CUDA1@0,CUDA0@1", "collectives shared-gpu\n"},
    };
    char dir[] = "/tmp/sheaf-test-devcomm-XXXXXX", cmd[256];
    need_emulation();
    cr_assert_not_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char env[512], args[512];
        snprintf(env, sizeof env, CUDA "SHEAF_CUDA_DEVICES=2 SHEAF_COMM_DEVICE=%s", cases[i].mode);
        snprintf(args, sizeof args, TEXT "--split 2,1,3 --devices %s --logits %s/%zu",
                 cases[i].devices, dir, i);
        cr_assert_eq(run(2, env, args), 0, "case %zu: %s", i, out);
        cr_assert(strstr(out, cases[i].want), "case %zu: %s", i, out);
    }
    snprintf(cmd, sizeof cmd, "cd %s && test -s 0 && cmp 0 1; s=$?; rm -r %s; exit $s", dir, dir);
    cr_assert_eq(run_command(cmd, 10, out, sizeof out), 0, "%s", out);
}

/* CUDA may wait for all of a process's work to make or free memory, also that of captured graphs, and then for a
 * collective that another member is still to join: members take theirs before they run or behind it, on the first
 * thread. */
Test(shared_gpu, members_that_run_take_no_memory, .timeout = 600) {
    need_emulation();
    cr_assert_eq(
        run(0, CUDA "SHEAF_CUDA_DEVICES=3 SHEAF_CUDA_PARAMS=counts=1 SHEAF_TEST_CUDA_EMU=home=1",
            "-m '" SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf' -p 'In the beginning was the' -n 12 "
            "--ignore-eos -v --devices CUDA0,CUDA1,CUDA2"),
        0, "%s", out);
    cr_assert(strstr(out, "collectives shared-gpu\n"), "%s", out);
    const char *line = out;
    for (int i = 0; i < 3; i++) { /* captured between runs, and replayed */
        unsigned captured = 0, replayed = 0;
        line = strstr(line, "graphs: ");
        cr_assert(line &&
                      sscanf(line, "graphs: %u captured, %u replayed", &captured, &replayed) == 2,
                  "%s", out);
        cr_assert(captured > 0 && replayed > captured, "%s", out);
        line++;
    }
}

/* Devices that cannot be shared, two GPUs, and calls that fail or never end. */
Test(shared_gpu, failures, .timeout = 600) {
    const struct {
        const char *env;
        int status;
        const char *want;
    } cases[] = {
        {"SHEAF_TEST_CUDA_EMU=devices=2 SHEAF_NCCL_LIBRARY=libnone.so", 0,
         NCCL_THERE
             ? "members 0 (CUDA0) and 1 (CUDA1@1) are two devices, which shared-gpu refuses; "
               "member 0 (CUDA0): libnone.so was not found"
             : "members 0 (CUDA0) and 1 (CUDA1@1) are two devices, which shared-gpu "
               "refuses\n"},
        {"SHEAF_TEST_CUDA_EMU=fail=cudaIpcGetMemHandle:1", 0,
         "CUDA0: sharing memory with other processes: "},
        {"SHEAF_TEST_CUDA_EMU=fail=cudaIpcOpenMemHandle:1", 0,
         "CUDA0: reaching the memory of member "},
        {"SHEAF_TEST_CUDA_EMU=fail=cudaStreamQuery:3", 1, "shared-gpu: all_"},
        {"SHEAF_TEST_CUDA_EMU=never=3 SHEAF_TIMEOUT_MS=2000", 1,
         "CUDA0: its own queue did not come in time"},
    };
    need_emulation();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char env[512], args[512];
        const double begin = run_seconds();
        snprintf(env, sizeof env, CUDA "%s", cases[i].env);
        snprintf(args, sizeof args, "-m '" MODEL "' -p the -n 3 -v --devices CUDA0@0,CUDA%d@1",
                 strstr(cases[i].env, "devices=2") ? 1 : 0);
        const int status = run(2, env, args);
        cr_assert(status >= 0 && (status != 0) == cases[i].status, "case %zu: status %d\n%s", i,
                  status, out);
        cr_assert(strstr(out, cases[i].want), "case %zu: no '%s' in\n%s", i, cases[i].want, out);
        cr_assert_lt(run_seconds() - begin, DEADLINE / 2, "case %zu", i);
    }
    cr_assert_eq(run_command("ls /dev/shm | grep ^sheaf", 10, out, sizeof out), 1, "%s", out);
}

/* ---- the NCCL module: members of one process, through a library that stands in for NCCL ---- */

#define NCCL_EMU "/lib/nccl-emu"
#define NCCL                                                                                       \
    ONE "SHEAF_COMM_DEVICE=nccl SHEAF_TEST_CUDA_EMU=devices=3 "                                    \
        "SHEAF_BACKEND_PATH='" SHEAF_BUILD_DIR "/lib/cuda-emu:" SHEAF_BUILD_DIR NCCL_EMU "' "      \
        "SHEAF_NCCL_LIBRARY='" SHEAF_BUILD_DIR NCCL_EMU "/libnccl_emulated.so' "

/* It ends the process when memory is made or freed between collectives. */
Test(nccl, every_size, .timeout = 600) {
    static const char *const cases[] = {NCCL, NCCL "SHEAF_NCCL_SUMS=nccl "};
    need_emulation();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int status =
            run_mpirun(1, cases[i], DEADLINE, out, sizeof out, "helper-devcomm CUDA");
        cr_expect_eq(status, 0, "case %zu: status %d\n%s", i, status, out);
        cr_expect(strstr(out, "ok 3 members through nccl"), "case %zu: %s", i, out);
    }
}

/* In the communicators and in the first exchange, whose groups of calls end all the same, also of the
 * first member. */
Test(nccl, a_start_that_fails_ends, .timeout = 600) {
    need_emulation();
    for (int call = 4; call <= 7; call += 3) {
        char env[1024];
        snprintf(env, sizeof env, NCCL "SHEAF_TEST_NCCL=fail=cudaSetDevice:%d", call);
        const int status = run_mpirun(1, env, DEADLINE, out, sizeof out, "helper-devcomm CUDA");
        cr_expect(run_returns(status, 1), "call %d: status %d\n%s", call, status, out);
        cr_expect(strstr(out, "make a communicator: unhandled cuda error"), "call %d: %s", call,
                  out);
    }
}

/* ---- the NCCL module, on a machine without a GPU ---- */

Test(nccl, loads_everywhere) {
    const char *path = SHEAF_BUILD_DIR "/lib/libsheaf-nccl.so";
    if (access(path, F_OK)) cr_skip_test("SHEAF_NCCL: the module is not built here");
    sheaf_backend_reg_t reg;
    cr_assert_eq(sheaf_backend_load(path, &reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_str_eq(sheaf_backend_reg_name(reg), "NCCL");
    cr_assert_eq(sheaf_backend_reg_dev_count(reg), 0);
    const void *p = sheaf_backend_reg_get_proc_address(reg, SHEAF__DEVCOMM_PROC);
    const struct sheaf__devcomm_i *i = p;
    cr_assert_not_null(i);
    cr_assert_eq(i->version, SHEAF__DEVCOMM_VERSION);
    uint8_t id[SHEAF__DEVCOMM_ID_BYTES];
    sheaf_backend_dev_t cpu = sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU);
    cr_assert_eq(i->identify(cpu, id), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "no CUDA device"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}

/* A library that is not there is said so, by name; nothing else of the module minds. */
Test(nccl, without_a_library) {
    setenv("SHEAF_NCCL_LIBRARY", "libnccl-that-is-not-there.so.2", 1);
    sheaf_backend_reg_t reg;
    const char *path = SHEAF_BUILD_DIR "/lib/libsheaf-nccl.so";
    if (access(path, F_OK)) cr_skip_test("SHEAF_NCCL: the module is not built here");
    cr_assert_eq(sheaf_backend_load(path, &reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    const void *p = sheaf_backend_reg_get_proc_address(reg, SHEAF__DEVCOMM_PROC);
    const struct sheaf__devcomm_i *i = p;
    cr_assert_eq(i->places(), SHEAF__DEVCOMM_APART);
    void *address = sheaf_backend_reg_get_proc_address(reg, "sheaf_nccl_version");
    int (*version)(void);
    memcpy(&version, &address, sizeof version);
    cr_assert_eq(version(), 0);
}
