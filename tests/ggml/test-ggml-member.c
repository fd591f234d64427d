/* Devices of a ggml library as members: with a library that stands for ggml, and with Debian's
 * where scripts/ggml-tree has put it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpirun.h"

enum { OUT = 1 << 16, TIMEOUT = 300 };
static char out[OUT];

static int run(const char *format_of_library, const char *devices, const char *command) {
    char cmd[2048], library[512] = "";
    if (format_of_library)
        snprintf(library, sizeof library, "SHEAF_GGML_LIB='%s/lib/lib%s.so'", SHEAF_BUILD_DIR,
                 format_of_library);
    snprintf(cmd, sizeof cmd,
             "export SHEAF_CPU_THREADS=1 SHEAF_CPU_DEVICES=1 %s SHEAF_DEVICES='%s'; cd '%s'; %s",
             library, devices, SHEAF_BUILD_DIR, command);
    return run_command(cmd, TIMEOUT, out, OUT);
}
static void shows(const char *text) { cr_expect(strstr(out, text), "no '%s' in: %s", text, out); }
static int times_shown(const char *text) {
    int n = 0;
    for (const char *p = out; (p = strstr(p, text)); p += strlen(text)) n++;
    return n;
}

Test(ggml_member, is_listed_only_if_it_is_named) {
    cr_expect_eq(run("fake-device-3", "all", "bin/sheaf-info"), 0, "%s", out);
    cr_expect(!strstr(out, "ggml:"), "%s", out);
    cr_expect_eq(run("fake-device-3", "CPU0,ggml:FAKE0", "bin/sheaf-info"), 0, "%s", out);
    shows("CPU0@0");
    shows("ggml:FAKE0@0 GPU, a fake, ggml 0.27.0, 256 of 512 MiB free");
    cr_expect_eq(run("fake-device-3", "ggml:*", "bin/sheaf-info"), 0, "%s", out);
    cr_expect(!strstr(out, "CPU0@0"), "%s", out);
    cr_expect_eq(run("fake-device-two", "ggml:*", "bin/sheaf-info"), 0, "%s", out);
    shows("ggml:FAKE1@0 GPU, "); /* in the processor */
}
Test(ggml_member, computes) {
    cr_expect_eq(run("fake-device-3", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0"), 0, "%s",
                 out);
    shows("right\n");
    shows("adds: 1, softmax: 0, an order of ties: 0\n");
    shows("\n0 allocations\n");
    shows("FAKE0: 5 computes of 1 graphs\n"); /* translated once, with one number */
}
Test(ggml_member, computes_beside_a_cpu) {
    cr_expect_eq(run("fake-device-2", "CPU0,ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 meta"),
                 0, "%s", out);
    shows("members: 2\n");
    shows("\n0 allocations\nright\n");
    shows("FAKE0: 5 computes of 1 graphs\n");
}
/* A library of before 0.10, whose buffers are shorter. */
Test(ggml_member, computes_with_ggml_0_9) {
    cr_expect_eq(
        run("fake-device-0-9", "CPU0,ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 meta"), 0,
        "%s", out);
    shows("members: 2\n");
    shows("\n0 allocations\nright\n");
}
/* The device has the op, but not for the slice of rows that the first plan gives it. */
Test(ggml_member, takes_no_slice) {
    cr_expect_eq(run("fake-device-2", "CPU0,ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 whole"),
                 0, "%s", out);
    shows("members: 2\n");
    shows("right\n");
    cr_expect_eq(times_shown("every member computes"), 1, "%s", out);
    shows(
        "meta: every member computes 1 of 2 nodes whole, for which 0.001 MiB are gathered, since a "
        "device refuses their slices: ggml:FAKE0");
    shows(" refuses that of node 1, SCALE '");
    cr_expect_eq(run("fake-device-2", "CPU0@0,ggml:FAKE0@1",
                     "mpirun --allow-run-as-root --oversubscribe -np 2 "
                     "bin/helper-ggml-member ggml:FAKE0 whole"),
                 0, "%s", out);
    shows("right\n");
    cr_expect_eq(times_shown("every member computes"), 1, "%s", out);
    shows("slices: ggml:FAKE0@1 refuses that of node 1, SCALE '");
}
/* The device has no copies at all, which conversions between cuts need: the host makes its
 * copies. */
Test(ggml_member, takes_no_copies) {
    static const char *const modes[] = {"columns", "slices", "sums"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        for (int np = 1; np <= 2; np++) {
            char cmd[256];
            snprintf(cmd, sizeof cmd, "%s bin/helper-ggml-member ggml:FAKE0 %s",
                     np == 1 ? "" : "mpirun --allow-run-as-root --oversubscribe -np 2", modes[i]);
            cr_expect_eq(
                run("fake-device-3", np == 1 ? "CPU0,ggml:FAKE0" : "CPU0@0,ggml:FAKE0@1", cmd), 0,
                "%s: %s", modes[i], out);
            shows("\n0 allocations\nright\n");
            cr_expect_eq(times_shown("copies of a graph of 2 nodes go through host memory"), 1,
                         "%s: %s", modes[i], out);
        }
    }
}
/* The graph is kept, with another number, since the library may compare graphs by that alone. */
Test(ggml_member, views_move) {
    cr_expect_eq(run("fake-device-3", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 moves"), 0,
                 "%s", out);
    shows("\n0 allocations\nright\n");
    shows("FAKE0: 6 computes of 6 graphs\n");
}
/* The graph that was used longest ago is translated again. */
Test(ggml_member, graphs_that_are_forgotten) {
    cr_expect_eq(run("fake-device-3", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 keeps"), 0,
                 "%s", out);
    shows("right\n");
    shows("FAKE0: 553 computes of 541 graphs\n");
}
Test(ggml_member, tensors_share_an_address) {
    cr_expect_eq(run("fake-device-3", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 share"), 0,
                 "%s", out);
    shows("the first is kept: 1, the second has its own: 1\n");
}
Test(ggml_member, copies_between_streams) {
    cr_expect_eq(run("fake-device-3", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 copy"), 0,
                 "%s", out);
    shows("FAKE0: a copy between streams\n");
    shows("right\n");
}
/* CUDA says yes to any layout of these, and to filters of any width. */
Test(ggml_member, nodes_that_cuda_only_says_it_computes) {
    cr_expect_eq(
        run("fake-device-cuda", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 asks-cuda"), 0,
        "%s", out);
    shows("CLAMP: 1\nCLAMP: 0\nARGMAX: 1\nARGMAX: 0\nSILU: 1\nSILU: 0\nSSM_CONV: 1\nSSM_CONV: 0\n"
          "SSM_CONV: 1\nSSM_CONV: 0\nCPY: 1\nCPY: 0\n");
}
/* ggml's devices take every event for one of their own. */
Test(ggml_member, an_event_of_another_device) {
    cr_expect_eq(run("fake-device-two", "ggml:*", "bin/helper-ggml-member ggml:FAKE0 waits"), 0,
                 "%s", out);
    shows("right\n");
}
/* A device may want more memory for a result than the result has, and write there. */
Test(ggml_member, kernels_work_behind_their_results) {
    cr_expect_eq(run("fake-device-3", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 room"), 0,
                 "%s", out);
    shows("FAKE0: attention in F32\n");
    shows("right\n");
    cr_expect_eq(run("fake-device-3", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 asks"), 1,
                 "%s", out);
    shows("compute: ggml:FAKE0: the device wants 864 bytes for SCALE '");
    shows("' and was asked about 800 (ggml 0.27.0, ");
}
/* A weight lies in the layout of the device once a product has read it: written whole, or in parts one
 * after the other, it goes there, and nothing else can be done with it. */
Test(ggml_member, packs_weights) {
    cr_expect_eq(run("fake-device-packs", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 packs"),
                 0, "%s", out);
    shows("right\n");
    shows("given back: 1\n");
    cr_expect_eq(times_shown("FAKE0: 256 rows are packed\n"), 3, "%s", out);
    cr_expect(!strstr(out, "3 rows are packed"), "%s", out);
    shows("half written: ggml:FAKE0: compute with 'factor': only a part of its new value is "
          "written\n");
    shows("a part: ggml:FAKE0: write a part of 'factor': the device has the weight in a layout of "
          "its own since the first product; SHEAF_GGML_REPACK=0 keeps weights as they are\n");
    shows("through a view: ggml:FAKE0: write a part of 'factor': the device has");
    shows("a view: ggml:FAKE0: compute with 'factor': the device has");
    shows("back: ggml:FAKE0: read 'factor': the device has");
    shows("a copy: ggml:FAKE0: read 'factor': the device has");
    shows("a copy there: ggml:FAKE0: read 'factor': the device has");
    shows("a column: done\n");
    shows("strided columns: ggml:FAKE0: compute with 'factor': the device has");
    shows("clear: ggml:FAKE0: clear: the device has 'factor' in a layout of its own;");
    cr_expect_eq(run("fake-device-packs", "ggml:FAKE0",
                     "export SHEAF_GGML_REPACK=0; bin/helper-ggml-member ggml:FAKE0 packs"),
                 0, "%s", out);
    shows("right\n");
    shows("given back: 0\n");
    shows("half written: done\n");
    cr_expect_eq(times_shown("FAKE0: a product in F32\n"), 1, "%s", out); /* that of the view */
    shows("a part: done\nthrough a view: done\n");
    shows("a view: done\nback: done\na copy: done\na copy there: done\n"
          "a column: done\nstrided columns: done\nclear: done\n");
    cr_expect(!strstr(out, "are packed"), "%s", out);
}
Test(ggml_member, short_rows_stay) {
    cr_expect_eq(run("fake-device-packs", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 short"),
                 0, "%s", out);
    shows("right\n");
    cr_expect(!strstr(out, "are packed"), "%s", out);
}
/* A weight that a copy or a fill writes before its first product is packed by that, and anew by a
 * copy after it. One that is read before it stays as it is. */
Test(ggml_member, packs_what_is_copied) {
    cr_expect_eq(run("fake-device-packs", "ggml:FAKE0",
                     "SHEAF_BACKEND_DEBUG=1 bin/helper-ggml-member ggml:FAKE0 fills"),
                 0, "%s", out);
    shows("right\n");
    cr_expect_eq(times_shown("FAKE0: 256 rows are packed\n"), 4, "%s", out);
    cr_expect_eq(times_shown("stays as the file has it"), 1, "%s", out);
    shows("ggml:FAKE0: 'read' stays as the file has it: before its first product something had to "
          "read it");
}
Test(ggml_member, on_other_ranks) {
    cr_expect_eq(run("fake-device-3", "CPU0@0,ggml:FAKE0@1",
                     "mpirun --allow-run-as-root --oversubscribe -np 2 bin/sheaf-info"),
                 0, "%s", out);
    shows("2 devices");
    shows("ggml:FAKE0@1");
}
Test(ggml_member, a_failure_names_the_library) {
    cr_expect_eq(run("fake-device-3", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0 fail"), 1,
                 "%s", out);
    shows("compute: ggml:FAKE0: computing the graph of");
    shows("status -1 (ggml 0.27.0, ");
    shows("libfake-device-3.so): it has no memory\n");
    shows("ggml: it may be lost\n");
    cr_expect_eq(times_shown("a backend does not load"), 1, "no reason: %s", out);
    cr_expect_eq(times_shown("it has no memory"), 2, "of one failure: %s", out);
    cr_expect(!strstr(out, "it computes") && !strstr(out, "ggml: ..."), "%s", out);
}
/* Every rank learns which rank's device failed, of which library, and all end. */
Test(ggml_member, a_failure_on_another_rank_ends_the_job) {
    static const char start[] = "mpirun --allow-run-as-root --oversubscribe -np 2 "
                                "bin/helper-ggml-member ggml:FAKE0";
    char cmd[256];
    snprintf(cmd, sizeof cmd, "%s fails-on-it", start);
    cr_expect_neq(run("fake-device-3", "CPU0@0,ggml:FAKE0@1", cmd), 0, "%s", out);
    shows("rank 1");
    shows("ggml:FAKE0: computing the graph of");
    shows("status -1 (ggml 0.27.0, ");
    cr_expect(!strstr(out, "right\n"), "%s", out);
    snprintf(cmd, sizeof cmd, "%s gives-up", start);
    cr_expect_neq(run("fake-device-3", "CPU0@0,ggml:FAKE0@1", cmd), 0, "%s", out);
    shows("libfake-device-3.so gave up: fake-device.c:1: GGML_ASSERT(false) failed");
    shows("rank 1");
    shows("rank 1 (");
    shows(" reports: ggml 0.27.0, "); /* rank 0 was told before the process was gone */
    cr_expect(!strstr(out, "right\n"), "%s", out);
}
static void refuses(const char *library) {
    cr_expect_neq(run(library, "ggml:FAKE0", "bin/sheaf-info"), 0, "%s", out);
}
Test(ggml_member, a_library_that_is_not_there) {
    refuses("no-such");
    shows("SHEAF_DEVICES names a device of ggml: ");
    shows("/lib/libno-such.so: cannot open shared object file");
    cr_expect_eq(times_shown("libno-such.so"), 1, "%s", out);
}
Test(ggml_member, a_library_without_a_function) {
    refuses("fake-ggml-lacks");
    shows("has no function ggml_scale");
    refuses("fake-ggml-3");
    shows("ggml 0.27.0, ");
    shows("libfake-ggml-3.so: it has no function ggml_backend_dev_count");
}
/* Under a name and in a scope of its own, as modules of Python have theirs. */
Test(ggml_member, the_library_of_the_program) {
    cr_expect_eq(run("fake-device-2", "ggml:FAKE0",
                     "SHEAF_TEST_HAS=lib/libfake-device-3.so bin/helper-ggml-member ggml:FAKE0"),
                 0, "%s", out);
    shows("ggml:FAKE0: a fake, ggml 0.27.0\n");
    cr_expect_eq(run("fake-device-2", "ggml:FAKE0", "bin/helper-ggml-member ggml:FAKE0"), 0, "%s",
                 out);
    shows("ggml:FAKE0: a fake, ggml 0.21.0\n");
}
Test(ggml_member, a_library_that_is_too_new) {
    refuses("fake-device-new");
    shows("its backends have interface version 9; this build of sheaf knows 2");
}
Test(ggml_member, a_library_that_is_too_old) {
    refuses("fake-device-old");
    shows("SHEAF_DEVICES names a device of ggml: ggml 0.9.4, ");
    shows("libfake-device-old.so: ggml before 0.9.5 lacks names that are looked for");
}
Test(ggml_member, a_library_with_another_layout) {
    refuses("fake-device-shifted");
    shows("ggml 0.27.0, ");
    shows("libfake-device-shifted.so: op_params of struct ggml_tensor have moved");
}
Test(ggml_member, a_device_that_is_not_there) {
    cr_expect_neq(run("fake-device-3", "CPU0,ggml:FAKE1", "bin/sheaf-info"), 0, "%s", out);
    shows("SHEAF_DEVICES: no rank has a device 'ggml:FAKE1'");
}

/* Debian's ggml, by its own C library. */
static bool has_tree(void) {
    return run(NULL, "all", "'" SHEAF_SOURCE_DIR "/scripts/ggml-tree' --path") == 0;
}
#define IN_TREE "'" SHEAF_SOURCE_DIR "/scripts/ggml-tree' run "

Test(ggml_member, debians_cpu_device) {
    if (!has_tree()) cr_skip("no tree of Debian's ggml here (scripts/ggml-tree --install)");
    cr_expect_eq(run(NULL, "ggml:CPU", IN_TREE "bin/helper-ggml-member ggml:CPU run"), 0, "%s",
                 out);
    shows("right\n");
    cr_expect_eq(run(NULL, "CPU0,ggml:CPU", IN_TREE "bin/helper-ggml-member ggml:CPU meta"), 0,
                 "%s", out);
    shows("right\n");
    cr_expect_eq(run(NULL, "ggml:CPU", IN_TREE "bin/helper-ggml-member ggml:CPU copy"), 0, "%s",
                 out);
    cr_expect_eq(run(NULL, "ggml:CPU", IN_TREE "bin/helper-ggml-member ggml:CPU moves"), 0, "%s",
                 out);
    shows("right\n");
    cr_expect_eq(run(NULL, "CPU0,ggml:CPU", IN_TREE "bin/helper-ggml-member ggml:CPU heads"), 0,
                 "%s", out);
    shows("right\n");
    cr_expect_eq(run(NULL, "ggml:CPU", IN_TREE "bin/helper-ggml-member ggml:CPU packs-q4_0"), 0,
                 "%s", out);
    shows("given back: 1\n");
    shows("back: ggml:CPU: read 'factor': the device has the weight in a layout of its own");
    cr_expect_eq(run(NULL, "ggml:CPU", IN_TREE "bin/helper-ggml-member ggml:CPU short-q8_0"), 0,
                 "%s", out);
    shows("right\n");
    cr_expect_eq(run(NULL, "ggml:CPU", IN_TREE "bin/helper-ggml-member ggml:CPU experts"), 0, "%s",
                 out);
    shows("right\n");
    cr_expect_eq(run(NULL, "ggml:CPU",
                     "export SHEAF_GGML_REPACK=0;" IN_TREE
                     "bin/helper-ggml-member ggml:CPU packs-q4_0"),
                 0, "%s", out);
    shows("back: done\n");
    cr_expect_eq(
        run(NULL, "CPU0,ggml:CPU", IN_TREE "bin/sheaf-backend-ops test -e 5e-4 -b ggml:CPU"), 0,
        "%s", out);
    shows(" 0 wrong, 0 refused");
}
/* docs/ggml-devices.md, which scripts/op-table --ggml writes: a device that is given less than it
 * takes is wrong in nothing else. */
static void has_ops_of_the_table(const char *device, const char *before) {
    char devices[64], cmd[2048];
    snprintf(devices, sizeof devices, "CPU0,%s", device);
    snprintf(cmd, sizeof cmd,
             "%s cd '%s'; t=$(scripts/ggml-tree --path); doc=docs/ggml-devices.md;"
             "grep -qF \"Asked: $(grep '^libggml0 ' $t/versions)\" $doc || exit 7; table=$(mktemp);"
             "scripts/ggml-tree run '%s/bin/sheaf-backend-ops' support -b %s |"
             "sed -E '/^\\|/!d;s/ \\| /|/g;s/\\| +\\|/| |/g' >$table; "
             "awk '/^## /{here=$2==\"%s\"} here && /^\\|/' $doc | diff - $table && "
             "[ -s $table ]; st=$?; rm $table; exit $st",
             before, SHEAF_SOURCE_DIR, SHEAF_BUILD_DIR, device, device);
    const int status = run(NULL, devices, cmd);
    if (status == 7) cr_skip("the tree of Debian's ggml has another version than the table");
    cr_expect_eq(status, 0, "%s: %s", device, out);
}
Test(ggml_member, ops_of_the_table) {
    if (!has_tree()) cr_skip("no tree of Debian's ggml here (scripts/ggml-tree --install)");
    has_ops_of_the_table("ggml:CPU", "");
}
Test(ggml_member, ops_of_the_table_of_vulkan) {
    if (!has_tree() ||
        run(NULL, "all", "[ -e $('" SHEAF_SOURCE_DIR "/scripts/ggml-tree' --path)/vulkan ]"))
        cr_skip("no Vulkan in the tree (scripts/ggml-tree --vulkan)");
    has_ops_of_the_table("ggml:Vulkan0", "export SHEAF_GGML_BACKENDS=$(cat $('" SHEAF_SOURCE_DIR
                                         "/scripts/ggml-tree' --path)/vulkan);");
}

/* An assertion of ggml's ends the process where a device says that it takes a slice and does not. */
Test(ggml_member, slices_of_every_op) {
    if (!has_tree()) cr_skip("no tree of Debian's ggml here (scripts/ggml-tree --install)");
    cr_expect_eq(run(NULL, "CPU0,ggml:CPU",
                     IN_TREE "bin/sheaf-backend-ops test -e 5e-4 -m CPU0,ggml:CPU -r 1 2>&1"),
                 0, "%s", out);
    shows(" 0 wrong, 0 refused");
}

/* Graphs by chance, their leaves cut by chance, over members of ggml alone and beside a CPU of
 * ours. */
Test(ggml_member, random_graphs) {
    static const struct {
        const char *devices, *start;
        int members, ranks;
    } cases[] = {
        {"ggml:CPU", "", 1, 1},
        {"ggml:CPU", "mpirun --allow-run-as-root --oversubscribe -np 2 ", 2, 2},
        {"ggml:CPU", "mpirun --allow-run-as-root --oversubscribe -np 3 ", 3, 3},
        {"CPU0,ggml:CPU", "", 2, 1},
    };
    if (!has_tree()) cr_skip("no tree of Debian's ggml here (scripts/ggml-tree --install)");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[512], want[40];
        snprintf(cmd, sizeof cmd, "%s" IN_TREE "bin/helper-mixed -m %s -e 5e-4", cases[i].start,
                 cases[i].devices);
        snprintf(want, sizeof want, "ok %d members on %d ranks", cases[i].members, cases[i].ranks);
        cr_expect_eq(run(NULL, cases[i].devices, cmd), 0, "%s", out);
        shows(want);
    }
}

/* The software Vulkan driver that scripts/ggml-tree --vulkan adds: memory that the host cannot
 * address, a queue, other kernels. */
Test(ggml_member, debians_vulkan_device) {
    const char *with =
        "v=$('" SHEAF_SOURCE_DIR "/scripts/ggml-tree' --path)/vulkan; [ -e $v ] || exit 7;"
        "export SHEAF_GGML_BACKENDS=$(cat $v); ";
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "%s" IN_TREE "bin/helper-ggml-member ggml:Vulkan0 meta", with);
    const bool tree = has_tree();
    const int status = tree ? run(NULL, "CPU0,ggml:Vulkan0", cmd) : 7;
    if (status == 7) cr_skip("no Vulkan in the tree (scripts/ggml-tree --vulkan)");
    cr_expect_eq(status, 0, "%s", out);
    snprintf(cmd, sizeof cmd, "%s" IN_TREE "bin/helper-ggml-member ggml:Vulkan0 copy", with);
    cr_expect_eq(run(NULL, "ggml:Vulkan0", cmd), 0, "%s", out);
    shows("right\n");
    snprintf(cmd, sizeof cmd, "%s" IN_TREE "bin/helper-ggml-member ggml:Vulkan0 heads", with);
    cr_expect_eq(run(NULL, "CPU0,ggml:Vulkan0", cmd), 0, "%s", out);
    shows("right\n");
    snprintf(cmd, sizeof cmd, "%s" IN_TREE "bin/helper-ggml-member ggml:Vulkan0 large", with);
    cr_expect_eq(run(NULL, "ggml:Vulkan0", cmd), 0, "%s", out);
    shows("right\n");
    snprintf(cmd, sizeof cmd, "%s" IN_TREE "bin/helper-ggml-member ggml:Vulkan0 starts", with);
    cr_expect_eq(run(NULL, "CPU0,ggml:Vulkan0", cmd), 0, "%s", out);
    shows("MUL_MAT: refused\nSOFT_MAX: refused\nDUP: refused\nSQR: taken\nDUP: taken\nright\n");
    static const char *const ops[] = {"ADD_ID", "CONT", "ROPE", "SWIGLU", "SUM_ROWS"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        snprintf(cmd, sizeof cmd,
                 "%s" IN_TREE "bin/sheaf-backend-ops test -e 5e-4 -b ggml:Vulkan0 -o %s", with,
                 ops[i]);
        cr_expect_eq(run(NULL, "CPU0,ggml:Vulkan0", cmd), 0, "%s", out);
        shows(" 0 wrong, 0 refused");
    }
    /* slices: parts of positions and masks that begin anywhere, and no rows to set */
    static const char *const cut[] = {"ROPE", "SET_ROWS", "DSV4_HC_POST", "SOFT_MAX"};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        snprintf(cmd, sizeof cmd,
                 "%s" IN_TREE "bin/sheaf-backend-ops test -e 5e-4 -m CPU0,ggml:Vulkan0 -r 1 -o %s",
                 with, cut[i]);
        cr_expect_eq(run(NULL, "CPU0,ggml:Vulkan0", cmd), 0, "%s", out);
        shows(" 0 wrong, 0 refused");
    }
}

/* Members of the plugin's job: in the program its own library's device, in the worker that of a
 * library which finds the plugin and must leave it alone. */
Test(ggml_member, in_a_program_of_ggml) {
    if (!has_tree()) cr_skip("no tree of Debian's ggml here (scripts/ggml-tree --install)");
    cr_expect_eq(run(NULL, "ggml:CPU",
                     "export GGML_BACKEND_PATH=$PWD/lib/libggml-sheaf.so; mpirun "
                     "--allow-run-as-root --oversubscribe "
                     "-x GGML_BACKEND_PATH -np 1 " IN_TREE "llama-bench --list-devices : "
                     "-x GGML_BACKEND_PATH -np 1 " IN_TREE "bin/sheaf-worker"),
                 0, "%s", out);
    shows("SHEAF: 2 members on 1 host");
}
