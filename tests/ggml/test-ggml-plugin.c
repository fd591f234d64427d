/* The plugin for ggml in a host that is not ggml: both versions of the interface, hosts that it must
 * refuse, and sheaf-worker with 1 to 3 ranks. No package of llama.cpp is needed. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpirun.h"

enum { OUT = 1 << 16, TIMEOUT = 120 };
static char out[OUT];

/* The helper with the library `fake` and interface `api`, behind `before`. */
static int start(const char *before, const char *helper, const char *fake, int api,
                 const char *mode) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd,
             "SHEAF_CPU_THREADS=1 exec %s '%s/bin/%s' '%s/lib/lib%s.so' "
             "'%s/lib/libggml-sheaf.so' %d %s",
             before, SHEAF_BUILD_DIR, helper, SHEAF_BUILD_DIR, fake, SHEAF_BUILD_DIR, api, mode);
    return run_command(cmd, TIMEOUT, out, OUT);
}
static int start_ranks(int n, const char *helper, const char *fake, int api, const char *mode) {
    char before[512];
    snprintf(before, sizeof before,
             "mpirun --allow-run-as-root --oversubscribe -np %d '%s/bin/sheaf-worker' --", n,
             SHEAF_BUILD_DIR);
    return start(before, helper, fake, api, mode);
}
/* Behind mpirun: rank 0 is the program itself, the other ranks are workers. */
#define BESIDE_A_WORKER(OPTIONS)                                                                   \
    " sh -c '[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] && exec \"$@\"; "                          \
    "exec " SHEAF_BUILD_DIR "/bin/sheaf-worker " OPTIONS "' sh"
static int host(const char *before, const char *fake, int api, const char *mode) {
    return start(before, "helper-ggml-host", fake, api, mode);
}
static int ranks(int n, const char *fake, int api, const char *mode) {
    return start_ranks(n, "helper-ggml-host", fake, api, mode);
}
static void shows(const char *text) { cr_expect(strstr(out, text), "no '%s' in: %s", text, out); }

Test(ggml_plugin, interface_2) {
    cr_expect_eq(host("env", "fake-ggml-2", 2, ""), 0, "%s", out);
    shows("SHEAF: 1 member on 1 host\n");
    shows("\nok\n");
}
/* A program of before 0.10, whose structures are shorter, and whose graphs have no uid. */
Test(ggml_plugin, ggml_0_9) {
    const char *helper = "helper-ggml-host-0-9";
    cr_expect_eq(start("env", helper, "fake-ggml-0-9", 2, ""), 0, "%s", out);
    shows("\nok\n");
    for (int n = 2; n <= 3; n++) {
        cr_expect_eq(start_ranks(n, helper, "fake-ggml-0-9", 2, ""), 0, "%s", out);
        shows("\nok\n");
    }
    setenv("SHEAF_GROUPS", "0,1-2", 1);
    cr_expect_eq(start_ranks(3, helper, "fake-ggml-0-9", 2, ""), 0, "%s", out);
    shows("\nok\n");
}
Test(ggml_plugin, what_is_not_known) {
    setenv("SHEAF_BACKEND_DEBUG", "1", 1);
    cr_expect_eq(host("env", "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("backend API 3; not known here: SQR? q8_0 bf16 new\n");
}
Test(ggml_plugin, interface_3) {
    cr_expect_eq(host("env", "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("\nok\n");
}
Test(ggml_plugin, a_host_without_a_function) {
    cr_expect_eq(host("env", "fake-ggml-lacks", 3, ""), 0, "%s", out);
    shows("SHEAF stays out of this program: this program's ggml has no function ggml_scale");
    shows("\nrefused\n");
}
Test(ggml_plugin, a_host_with_another_layout) {
    cr_expect_eq(host("env", "fake-ggml-shifted", 3, ""), 0, "%s", out);
    shows("op_params of struct ggml_tensor have moved");
    shows("\nrefused\n");
}
/* Modules of Python bring a ggml each, of versions of their own. */
Test(ggml_plugin, two_ggmls_in_a_process) {
    const char *mode = "second '" SHEAF_BUILD_DIR "/lib/libfake-ggml-0-9.so'";
    cr_expect_eq(ranks(2, "fake-ggml-2", 2, mode), 0, "%s", out);
    shows("SHEAF serves one ggml: the ggml of " SHEAF_BUILD_DIR "/lib/libfake-ggml-0-9.so is not ");
    shows("/lib/libfake-ggml-2.so, which loaded SHEAF first in this process");
    shows("\nok\n");
}
Test(ggml_plugin, a_ggml_after_one_that_was_refused) {
    const char *mode = "second '" SHEAF_BUILD_DIR "/lib/libfake-ggml-3.so'";
    cr_expect_eq(ranks(2, "fake-ggml-shifted", 2, mode), 0, "%s", out);
    shows("SHEAF stays out of this program: ");
    shows("\nrefused\n");
}
/* Inside a call of the plugin's, which its end would wait for. */
Test(ggml_plugin, a_handler_that_ends_the_program) {
    cr_expect_eq(host("env", "fake-ggml-3", 3, "exit"), 5, "%s", out);
    cr_expect_eq(ranks(1, "fake-ggml-3", 3, "exit"), 5, "%s", out);
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "exit"), 5, "%s", out);
}
Test(ggml_plugin, graphs_that_are_forgotten) {
    cr_expect_eq(host("env", "fake-ggml-3", 3, "many"), 0, "%s", out);
    shows("bytes are used after thirds of ");
    shows("\nok\n");
}
Test(ggml_plugin, large_inputs_that_are_forgotten) {
    setenv("SHEAF_BACKEND_DEBUG", "1", 1);
    cr_expect_eq(host("env", "fake-ggml-3", 3, "inputs"), 0, "%s", out);
    shows("SHEAF: 6 runs of 4 programs");
    shows("\nok\n");
}
/* Each node is computed as a graph of its own; no weight of the layer is on every member. */
Test(ggml_plugin, cuts_of_a_graph_in_parts) {
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "layer"), 0, "%s", out);
    shows("\nok\n");
    cr_expect(!strstr(out, "blk."), "%s", out);
    cr_expect_eq(ranks(3, "fake-ggml-2", 2, "layer"), 0, "%s", out);
    shows("\nok\n");
}
/* ---- layers ---- */

enum { MOST_VALUES = 256 };

static int read_values(double *values) {
    int n = 0;
    for (const char *p = strstr(out, "\nv "); p && n < MOST_VALUES; p = strstr(p + 1, "\nv "))
        n += sscanf(p, "\nv %lf", &values[n]) == 1;
    return n;
}

static void runs_layer(const char *layer, int n, double *values) {
    setenv("SHEAF_BACKEND_DEBUG", "1", 1);
    cr_expect_eq(start_ranks(n, "helper-ggml-layers", "fake-ggml-3", 3, layer), 0, "%s", out);
    shows("\ndone\n");
    const int found = read_values(values);
    cr_assert_eq(found, 32 * 7, "%s: %d values", layer, found);
}

static void expect_near(const char *layer, int n, const double *one, const double *all) {
    double squares = 0, errors = 0;
    for (int i = 0; i < 32 * 7; i++) {
        squares += one[i] * one[i];
        errors += (one[i] - all[i]) * (one[i] - all[i]);
    }
    cr_expect(errors < 1e-10 * squares, "%s on %d ranks: NMSE %g", layer, n, errors / squares);
}

/* Members have what they need of each other from so many collectives a graph. No weight or cache is on all
 * members, or one, which the log names. */
static void cuts_layer(const char *layer, int collectives, const char *whole) {
    double one[MOST_VALUES], all[MOST_VALUES];
    runs_layer(layer, 1, one);
    for (int n = 2; n <= 3; n++) {
        char line[64];
        runs_layer(layer, n, all);
        snprintf(line, sizeof line, " %d collectives of ", 2 * collectives);
        shows(line);
        const char *named = strstr(out, " on every member: ");
        if (whole)
            cr_expect(named && !strncmp(named + 18, whole, strlen(whole)) &&
                          !strstr(named + 18, " on every member: "),
                      "%s", out);
        else
            cr_expect(!strstr(out, "no rule fits") && !named, "%s", out);
        expect_near(layer, n, one, all);
    }
}
Test(ggml_plugin, cuts_scans) {
    cuts_layer("mamba", 2, NULL);
    cuts_layer("mamba2", 1, NULL);
    cuts_layer("plamo2", 2, NULL);
    cuts_layer("rwkv6", 1, NULL);
    cuts_layer("rwkv7", 2, NULL);
}
Test(ggml_plugin, cuts_delta_nets) {
    cuts_layer("rounds", 1, NULL);
    cuts_layer("repeats", 1, NULL);
    cuts_layer("kda", 1, NULL);
}
/* One of the sums is of one number a token. */
Test(ggml_plugin, cuts_linear_attention) { cuts_layer("linear", 2, NULL); }
Test(ggml_plugin, cuts_short_convolutions) { cuts_layer("short", 1, NULL); }
/* The middle K/V head is on two of two members, and of three none has more. */
Test(ggml_plugin, cuts_query_heads_in_runs) {
    cuts_layer("runs", 1, NULL);
    cr_expect_eq(start_ranks(2, "helper-ggml-layers", "fake-ggml-3", 3, "runs"), 0, "%s", out);
    shows("blk.0.attn_q.weight: S1 {5,4}x8\n");
    shows("cache_k_l0: S0 {0:2,1:2}x8\n");
}
/* New keys and values go to all members, not the cells of a cache that was cut. */
Test(ggml_plugin, keeps_caches_whole_whose_rows_are_picked) {
    double one[MOST_VALUES], two[MOST_VALUES];
    runs_layer("picked", 1, one);
    runs_layer("picked", 2, two);
    expect_near("picked", 2, one, two);
    shows("on every member: its rows are picked by numbers of heads and cells");
    cr_expect(!strstr(out, "' GET_ROWS"), "%s", out);
}
Test(ggml_plugin, cuts_layers_that_share_a_cache) { cuts_layer("shared", 2, NULL); }
Test(ggml_plugin, cuts_caches_of_layers_that_are_used_twice) { cuts_layer("repeated", 2, NULL); }
/* attn_kv, which all heads read, is whole. */
Test(ggml_plugin, cuts_attention_by_groups_of_heads) {
    cuts_layer("groups", 1, "no cut is known");
    shows("blk.0.attn_output_a.weight: S2 {1,1,0}\n");
}
/* ffn_routed_down, which all columns of the expert read, is whole. */
Test(ggml_plugin, cuts_experts_of_fewer_dimensions) {
    cuts_layer("expert", 2, "no cut is known");
    shows("blk.0.ffn_routed_up.weight: S0 {6,5,5}\n");
}
/* Members have rows of both halves of the matrix. */
Test(ggml_plugin, cuts_gate_and_up_in_one_matrix) {
    cuts_layer("gated", 1, NULL);
    shows("blk.0.ffn_up.weight: S1 {22,21,21}+{22,21,21}\n");
}
/* The first of the sums is that of nextn.eh_proj. */
Test(ggml_plugin, cuts_what_joins_a_token_and_a_state) {
    cuts_layer("joined", 2, NULL);
    shows("blk.0.nextn.eh_proj.weight: S0 {22,21,21}\n");
}
Test(ggml_plugin, cuts_values_of_experts) { cuts_layer("values", 1, NULL); }
Test(ggml_plugin, cuts_decoders) { cuts_layer("decoder", 3, NULL); }
/* Two of the sums are of one number a token. */
Test(ggml_plugin, adds_squares_of_norms_over_heads) { cuts_layer("norms", 3, NULL); }
Test(ggml_plugin, keeps_transposed_values) { cuts_layer("transposed", 2, "values are transposed"); }
Test(ggml_plugin, names_once_what_is_whole_in_each_context) {
    double values[MOST_VALUES];
    runs_layer("again", 2, values);
    const char *named = strstr(out, " on every member: ");
    cr_expect(named && !strstr(named + 1, " on every member: "), "%s", out);
}
Test(ggml_plugin, cuts_attention_to_latent_vectors) { cuts_layer("latent", 1, NULL); }

/* Sums of members' parts would depend on how many members there are, and the kernel of a product on how many of the
 * columns a member has. */
Test(ggml_plugin, keeps_bits_with_whole_sums) {
    static const char *const layers[] = {"rwkv6",  "rwkv7",  "plamo2",  "linear", "decoder",
                                         "expert", "groups", "rotated", "joined"};
    double one[MOST_VALUES], all[MOST_VALUES];
    setenv("SHEAF_SPLIT_SUMS", "whole", 1);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        runs_layer(layers[i], 1, one);
        runs_layer(layers[i], 3, all);
        cr_expect(!memcmp(one, all, 32 * 7 * sizeof *one), "%s", layers[i]);
    }
    shows("blk.0.nextn.eh_proj.weight: S1 {1,1,0}x16\n");
}

/* Two pairs of matrices, the first with flash attention between them. */
Test(ggml_plugin, cuts_what_has_no_name) {
    cuts_layer("unnamed", 2, NULL);
    shows("leaf_2: S1 {22,21,21}x8\n");
}

Test(ggml_plugin, cuts_nothing) {
    double values[MOST_VALUES];
    setenv("SHEAF_GGML_SPLIT", "mirror", 1);
    runs_layer("gated", 2, values);
    shows(" 0 collectives of ");
}

/* Said at the start: a server that learns it with its first request has called itself healthy by then. */
Test(ggml_plugin, settings_of_cuts_that_are_none) {
    static char line[600];
    char path[] = "/tmp/sheaf-cuts-XXXXXX", file[64];
    const int fd = mkstemp(path);
    memset(line, 'a', sizeof line);
    memcpy(line + 500, " 0 4 ", 5);
    cr_assert(fd >= 0 && write(fd, line, sizeof line) == sizeof line);
    close(fd);
    snprintf(file, sizeof file, "file:%s", path);
    const struct {
        const char *setting, *value, *why;
    } cases[] = {
        {"SHEAF_SPLIT", "1,",
         "SHEAF_SPLIT is '1,'; it takes 'even' or a share for each of the 1 member"},
        {"SHEAF_SPLIT", "1,1", "SHEAF_SPLIT is '1,1'; it takes"},
        {"SHEAF_SPLIT", "nan", "SHEAF_SPLIT is 'nan'; it takes"},
        {"SHEAF_SPLIT", "0", "SHEAF_SPLIT is '0'; it takes"},
        {"SHEAF_GGML_SPLIT", "file:/nowhere", "cannot read /nowhere: No such file or directory"},
        {"SHEAF_GGML_SPLIT", "file:/tmp", "cannot read /tmp: Is a directory"},
        {"SHEAF_GGML_SPLIT", file, ": line 1 is not 'PATTERN AXIS [UNIT]'"},
        {"SHEAF_GGML_SPLIT", "random:", "is 'random:'; it wants a number there"},
        {"SHEAF_GGML_SPLIT", "file", "is 'file'; it takes auto, mirror, random:SEED or file:PATH"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].setting, cases[i].value, 1);
        host("env", "fake-ggml-3", 3, "");
        shows("SHEAF stays out of this program: ");
        shows(cases[i].why);
        shows("\nrefused\n");
        unsetenv(cases[i].setting);
    }
    unlink(path);
    setenv("SHEAF_SPLIT", "1,1,1", 1);
    cr_expect_neq(ranks(2, "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("SHEAF stays out of this program: rank 0 (");
    shows("SHEAF_SPLIT is '1,1,1'; it takes 'even' or a share for each of the 2 members");
}

/* The model's weight, and three caches of a context. */
Test(ggml_plugin, numbers_of_freed_objects_are_used_again) {
    setenv("SHEAF_BACKEND_DEBUG", "1", 1);
    for (int n = 1; n <= 2; n++) {
        int most = 0;
        cr_expect_eq(ranks(n, "fake-ggml-3", 3, "buffers"), 0, "%s", out);
        shows("\nok\n");
        const char *line = strstr(out, " collectives of ");
        cr_expect(line && sscanf(line, " collectives of %*u bytes, %d objects", &most) == 1);
        cr_expect_eq(most, 4, "%d objects", most);
    }
    setenv("SHEAF_GROUPS", "0,1-2", 1);
    cr_expect_eq(ranks(3, "fake-ggml-3", 3, "buffers"), 0, "%s", out);
    shows("\nok\n");
}
Test(ggml_plugin, files_that_change_places) {
    for (int n = 1; n <= 2; n++) {
        cr_expect_eq(start_ranks(n, "helper-ggml-files", "fake-ggml-3", 3, ""), 0, "%s", out);
        shows("ok\n");
        cr_expect(!strstr(out, "sends the slices"), "each rank reads its own copies: %s", out);
    }
}
Test(ggml_plugin, a_file_that_is_loaded_in_parts) {
    cr_expect_eq(start("env", "helper-ggml-files", "fake-ggml-3", 3, "parts"), 0, "%s", out);
    shows("ok\n");
}
/* A rank without the file is sent its slice and no more: of 2049 rows of 4 KiB, five times. */
Test(ggml_plugin, a_file_of_rank_0_only) {
    static const struct {
        int ranks, rows; /* rows: of other ranks */
        const char *transport, *groups;
    } cases[] = {{1, 0, "auto", "all"},
                 {2, 1024, "mpi", "all"},
                 {3, 2 * 683, "auto", "all"},
                 {3, 1024, "auto", "0-1,2"}}; /* rank 2 wants nothing of it */
    char path[] = "/tmp/sheaf-split-XXXXXX", split[64], sent[64];
    const int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, "alone 1\n", 8) == 8);
    close(fd);
    snprintf(split, sizeof split, "file:%s", path);
    setenv("SHEAF_GGML_SPLIT", split, 1);
    setenv("SHEAF_BACKEND_DEBUG", "1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("SHEAF_COMM_TRANSPORT", cases[i].transport, 1);
        setenv("SHEAF_GROUPS", cases[i].groups, 1);
        cr_expect_eq(start_ranks(cases[i].ranks, "helper-ggml-files", "fake-ggml-3", 3, "alone"), 0,
                     "%s", out);
        shows("ok\n");
        snprintf(sent, sizeof sent, ", %d bytes of weights sent\n", 5 * 4096 * cases[i].rows);
        shows(sent);
        if (cases[i].ranks == 1) continue;
        shows("sheaf: rank 1 (");
        shows(cases[i].rows != 1024 ? " and 1 more rank: cannot open /tmp/sheaf-weights-"
                                    : "): cannot open /tmp/sheaf-weights-");
        shows(": No such file or directory; rank 0 (");
        shows(") sends the slices\n");
        shows(" is not a regular file; ");
        shows(" has another size than on rank 0; ");
        const char *first = strstr(out, " has other bytes than on rank 0; ");
        cr_expect(first && strstr(first + 1, " has other bytes than on rank 0; "), "%s", out);
    }
    unlink(path);
}
/* ggml does so with a plugin of a version that it does not have; MPI must not go with it. */
Test(ggml_plugin, a_host_that_unloads_the_plugin) {
    cr_expect_eq(host("env", "fake-ggml-3", 3, "close"), 0, "%s", out);
    shows("closed\n");
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "close"), 0, "%s", out);
    shows("closed\n");
}
Test(ggml_plugin, ranks) {
    for (int n = 1; n <= 3; n++) {
        char line[64];
        snprintf(line, sizeof line, "SHEAF: %d member%s on 1 host\n", n, n == 1 ? "" : "s");
        cr_expect_eq(ranks(n, "fake-ggml-3", 3, ""), 0, "%s", out);
        shows(line);
        shows("\nok\n");
    }
}
/* A program that serves another one does not know what its buffers are for. */
Test(ggml_plugin, serves_a_program_elsewhere) {
    cr_expect_eq(start("env", "helper-ggml-remote", "fake-ggml-2", 2, ""), 0, "%s", out);
    shows("ok\n");
    for (int seed = 0; seed < 3; seed++) {
        const char *const how[] = {"auto", "random:1", "random:2"};
        setenv("SHEAF_GGML_SPLIT", how[seed], 1);
        cr_expect_eq(start_ranks(2 + seed % 2, "helper-ggml-remote", "fake-ggml-3", 3, ""), 0, "%s",
                     out);
        shows("ok\n");
    }
    setenv("SHEAF_GROUPS", "0,1-2", 1);
    cr_expect_eq(start_ranks(3, "helper-ggml-remote", "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("ok\n");
}
/* Which ops run is then asked of all ranks, by a command. */
Test(ggml_plugin, a_rank_without_a_device) {
    setenv("SHEAF_DEVICES", "CPU0@0,CPU0@1", 1);
    cr_expect_eq(ranks(3, "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("SHEAF: 2 members on 1 host\n");
    shows("\nok\n");
    setenv("SHEAF_GROUPS", "0,1-2", 1);
    cr_expect_eq(ranks(3, "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("SHEAF1: 1 member on 1 host\n");
    shows("\nok\n");
}
/* Rank 1 has a device that stands for one of ggml's; `others` have CPUs. */
static void have_fake_device(const char *others, const char *groups) {
    char devices[64];
    snprintf(devices, sizeof devices, "CPU0@0,ggml:FAKE0@1%s", others);
    setenv("SHEAF_GGML_LIB", SHEAF_BUILD_DIR "/lib/libfake-device-3.so", 1);
    setenv("SHEAF_DEVICES", devices, 1);
    setenv("SHEAF_GROUPS", groups, 1);
}
/* The fake device has no copies. */
Test(ggml_plugin, a_device_of_another_rank_that_copies_nothing) {
    have_fake_device("", "all");
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "copies-not"), 0, "%s", out);
    shows("\nok\n");
}
/* Known at once, and where rank 0 has no part in the graph when its device is waited for. */
Test(ggml_plugin, a_fault_on_one_rank) {
    have_fake_device("", "all");
    for (int groups = 0; groups < 2; groups++) {
        if (groups) setenv("SHEAF_GROUPS", "0,1", 1);
        cr_expect_eq(ranks(2, "fake-ggml-3", 3, "fault"), 0, "%s", out);
        shows(groups ? "SHEAF1: 1 member on 1 host\n" : "SHEAF: 2 members on 1 host\n");
        shows("rank 1 (");
        shows("ggml:FAKE0: computing the graph of");
        shows("\nok\n");
    }
}
Test(ggml_plugin, a_fault_for_which_another_group_waits) {
    have_fake_device(",CPU0@2", "0,1,2");
    cr_expect_eq(ranks(3, "fake-ggml-3", 3, "fault-in-chain"), 0, "%s", out);
    shows("ggml:FAKE0: computing the graph of");
    shows("\nok\n");
}
/* All on rank 1, of whose device rank 0 knew only what it had at the start. */
Test(ggml_plugin, memory_that_a_second_model_takes) {
    char path[] = "/tmp/sheaf-cuts-XXXXXX", how[64];
    const int fd = mkstemp(path);
    cr_assert_eq(write(fd, "second 1 1\n", 11), 11);
    close(fd);
    snprintf(how, sizeof how, "file:%s", path);
    setenv("SHEAF_GGML_SPLIT", how, 1);
    have_fake_device("", "all");
    setenv("SHEAF_SPLIT", "0,1", 1);
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "room"), 0, "%s", out);
    shows("\nok\n");
    setenv("SHEAF_SPLIT", "1,1", 1);
    setenv("SHEAF_GROUPS", "0,1", 1);
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "room"), 0, "%s", out);
    shows("\nok\n");
    unlink(path);
}
/* Ranks of a host use its memory together, however the model is cut. A device with memory of its own is full when
 * its share is: 512 MiB are three quarters. */
static int total_mib(const char *split) {
    int mib = -1;
    setenv("SHEAF_SPLIT", split, 1);
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "total"), 0, "%s", out);
    for (const char *p = out; (p = strchr(p, '\n')) && sscanf(p, "\n%d MiB", &mib) != 1;) p++;
    cr_expect_gt(mib, 0, "%s", out);
    return mib;
}
Test(ggml_plugin, memory_that_members_have_together) {
    cr_expect_eq(total_mib("1,1"), total_mib("1,3"));
    have_fake_device("", "all");
    cr_expect_eq(total_mib("1,3"), 512 * 4 / 3);
}
/* A host with two ranks, which has no 4 TiB, and a device with memory of its own, 256 MiB. */
Test(ggml_plugin, memory_that_members_lack) {
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "lacks 4194304"), 0, "%s", out);
    shows("sheaf: weights and caches need 8192.00 GiB on rank 0 (");
    shows(", CPU0@0) and others of its host, and ");
    shows(" GiB are free there: use more hosts, fewer layers (-ngl), a smaller context or "
          "quantization");
    have_fake_device("", "all");
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "lacks 257"), 0, "%s", out);
    shows("sheaf: weights and caches need 0.26 GiB on rank 1 (");
    shows(", ggml:FAKE0@1), and 0.24 GiB are free there");
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "lacks 255"), 0, "%s", out);
    cr_expect(!strstr(out, "weights and caches need"), "%s", out);
    shows("\nok\n");
    setenv("SHEAF_DEVICES", "ggml:FAKE0@0,CPU0@1", 1); /* the first host's number is 0, too */
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "lacks 257"), 0, "%s", out);
    shows(", ggml:FAKE0@0), and 0.24 GiB are free there");
}
/* Rank 0 waits for the results of another group as long as it takes. */
Test(ggml_plugin, a_slow_group) {
    have_fake_device("", "0,1");
    setenv("SHEAF_TIMEOUT_COLLECTIVE_MS", "1000", 1);
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "slow"), 0, "%s", out);
    shows("\nok\n");
}
/* The one group waits for a file that is made when the other one has its result. */
Test(ggml_plugin, groups_compute_at_the_same_time) {
    char path[] = "/tmp/sheaf-beside-XXXXXX";
    close(mkstemp(path));
    unlink(path);
    setenv("SHEAF_TEST_WAITS_FOR", path, 1);
    have_fake_device("", "0,1");
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "beside"), 0, "%s", out);
    shows("\nok\n");
    unlink(path);
}
/* A question about memory does not wait for the graph that another thread computes. */
Test(ggml_plugin, memory_beside_a_graph) {
    char path[] = "/tmp/sheaf-beside-XXXXXX";
    close(mkstemp(path));
    unlink(path);
    setenv("SHEAF_TEST_WAITS_FOR", path, 1);
    setenv("SHEAF_GGML_LIB", SHEAF_BUILD_DIR "/lib/libfake-device-3.so", 1);
    setenv("SHEAF_DEVICES", "ggml:FAKE0", 1);
    cr_expect_eq(host("env", "fake-ggml-3", 3, "room-beside"), 0, "%s", out);
    shows("\nok\n");
    unlink(path);
}
/* Modules are loaded if devices are named, and why one is not is said. */
Test(ggml_plugin, a_member_whose_library_is_missing) {
    setenv("SHEAF_GGML_LIB", "/nowhere/libggml.so", 1);
    setenv("SHEAF_DEVICES", "ggml:FAKE0", 1);
    cr_expect_eq(host("env", "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("/nowhere/libggml.so");
    shows("SHEAF stays out of this program: ");
    shows("\nrefused\n");
    unsetenv("SHEAF_DEVICES");
    cr_expect_eq(host("env", "fake-ggml-3", 3, ""), 0, "%s", out);
    cr_expect(!strstr(out, "/nowhere"), "%s", out);
    shows("\nok\n");
}
/* The limit of a span holds for the device's queue, too. */
Test(ggml_plugin, a_queue_that_does_not_end) {
    have_fake_device("", "0,1");
    setenv("SHEAF_TIMEOUT_COMPUTE_MS", "1000", 1);
    cr_expect_neq(ranks(2, "fake-ggml-3", 3, "queue"), 0, "%s", out);
    shows("rank 1");
    shows("SHEAF_TIMEOUT_COMPUTE_MS");
    cr_expect(!strstr(out, "\nok\n"), "%s", out);
}
static void shows_one_program(bool with_one_plan) {
    shows("\nok\n");
    shows(" runs of 1 programs, ");
    cr_expect_eq(strstr(out, " views moved, 1 plans, ") != NULL, with_one_plan, "%s", out);
}
/* Views of caches that are at another place for every token, in caches that are whole, cut across their
 * cells (one plan serves all tokens), and by cells (a plan for each owner). */
Test(ggml_plugin, views_that_move) {
    static const struct {
        const char *cuts; /* lines of a file */
        bool by_cells;
    } cases[] = {
        {"", false},
        {"rows 0 4\nrows 1\ncolumns 1 3\n", false}, /* the first line that fits counts */
        {"rows 1\nflat 0 72\ncolumns 0\n", true},
    };
    char path[] = "/tmp/sheaf-cuts-XXXXXX", split[64];
    close(mkstemp(path));
    snprintf(split, sizeof split, "file:%s", path);
    setenv("SHEAF_GGML_SPLIT", split, 1);
    setenv("SHEAF_BACKEND_DEBUG", "1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = fopen(path, "w");
        fputs(cases[i].cuts, f);
        fclose(f);
        for (int n = 1; n <= 3; n++) {
            const char *fake = n == 2 ? "fake-ggml-2" : "fake-ggml-3";
            cr_expect_eq(start_ranks(n, "helper-ggml-moves", fake, n == 2 ? 2 : 3, ""), 0, "%s",
                         out);
            shows_one_program(n == 1 || !cases[i].by_cells);
        }
    }
    for (int members = 1; members <= 2; members++) {
        FILE *f = fopen(path, "w");
        fputs(cases[1].cuts, f);
        fclose(f);
        cr_expect_eq(start(members == 1 ? "env" : "env SHEAF_CPU_DEVICES=2", "helper-ggml-moves",
                           "fake-ggml-3", 3, "count"),
                     0, "%s", out);
        shows_one_program(true);
    }
    unlink(path);
}
Test(ggml_plugin, views_that_move_at_random) {
    char split[64];
    setenv("SHEAF_BACKEND_DEBUG", "1", 1);
    for (int seed = 1; seed <= 4; seed++) {
        snprintf(split, sizeof split, "random:%d", seed);
        setenv("SHEAF_GGML_SPLIT", split, 1);
        cr_expect_eq(start_ranks(2 + seed % 2, "helper-ggml-moves", "fake-ggml-3", 3, ""), 0, "%s",
                     out);
        shows("\nok\n");
        shows(" runs of 1 programs, ");
    }
}
/* What a failure has left unsent is sent again. */
Test(ggml_plugin, allocations_that_fail) {
    cr_expect_eq(start("env", "helper-ggml-moves", "fake-ggml-3", 3, "memory"), 0, "%s", out);
    shows("\nok\n");
}
/* Ranks without a part in a graph plan it, too. */
Test(ggml_plugin, views_that_move_in_groups) {
    setenv("SHEAF_GROUPS", "0,1-2", 1);
    setenv("SHEAF_GGML_SPLIT", "random:5", 1);
    cr_expect_eq(start_ranks(3, "helper-ggml-moves", "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("\nok\n");
}
/* Every way to group the ranks, also without rank 0's in front. */
Test(ggml_plugin, groups) {
    static const struct {
        int n;
        const char *groups, *line[4];
    } cases[] = {
        {2, "0,1", {"SHEAF0: 1 member on 1 host\n", "SHEAF1: 1 member on 1 host\n"}},
        {3, "0-1,2", {"SHEAF0: 2 members on 1 host\n", "SHEAF1: 1 member on 1 host\n"}},
        {3, "1-2,0", {"SHEAF0: 2 members on 1 host\n", "SHEAF1: 1 member on 1 host\n"}},
        {4, "0,1-2,3", {"SHEAF0: 1 member", "SHEAF1: 2 members", "SHEAF2: 1 member"}},
        {4, "0,1,2,3", {"SHEAF0: 1", "SHEAF1: 1", "SHEAF2: 1", "SHEAF3: 1"}},
        {3, "host", {"SHEAF: 3 members on 1 host\n"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("SHEAF_GROUPS", cases[i].groups, 1);
        cr_expect_eq(ranks(cases[i].n, "fake-ggml-3", 3, ""), 0, "%s: %s", cases[i].groups, out);
        for (int k = 0; k < 4; k++)
            if (cases[i].line[k]) shows(cases[i].line[k]);
        shows("\nok\n");
    }
}
/* Texts that are none: test-ggml-engine. */
Test(ggml_plugin, groups_that_are_none) {
    static const struct {
        const char *devices, *groups, *why;
    } cases[] = {
        {"all", "0,1", "a rank is in no group"},
        {"CPU0@0,CPU0@2", "0,1,2", "setting SHEAF_GROUPS: group 1 has no device"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("SHEAF_GROUPS", cases[i].groups, 1);
        setenv("SHEAF_DEVICES", cases[i].devices, 1);
        cr_expect_neq(ranks(3, "fake-ggml-3", 3, ""), 0, "%s", cases[i].groups);
        shows(cases[i].why);
    }
}
/* Starts ranks whose program is idle after its first graph, or `busy`, waits for that, and sends `signal`
 * to the last worker; those are the ranks that have no child. The last line is mpirun's status. */
static void lose_a_worker(int n_ranks, const char *mode, const char *settings, const char *signal) {
    char cmd[4096];
    snprintf(cmd, sizeof cmd,
             "f=$(mktemp); export SHEAF_CPU_THREADS=1 %s\n"
             "mpirun --allow-run-as-root --oversubscribe -np %d '%s/bin/sheaf-worker' -- "
             "'%s/bin/helper-ggml-host' '%s/lib/libfake-ggml-3.so' '%s/lib/libggml-sheaf.so' 3 %s "
             ">$f 2>&1 & m=$!\n"
             "for i in $(seq 300); do grep -q '^idle' $f && break; sleep 0.1; done\n"
             "for p in $(pgrep -P $m); do [ -n \"$(pgrep -P $p)\" ] || last=$p; done\n"
             "kill -%s $last; wait $m; s=$?; cat $f; rm $f; echo status $s",
             settings, n_ranks, SHEAF_BUILD_DIR, SHEAF_BUILD_DIR, SHEAF_BUILD_DIR, SHEAF_BUILD_DIR,
             mode, signal);
    cr_expect_eq(run_command(cmd, TIMEOUT, out, OUT), 0, "%s", out);
}
static void lose_the_worker(const char *mode, const char *settings, const char *signal) {
    lose_a_worker(2, mode, settings, signal);
}
Test(ggml_plugin, a_worker_that_dies_ends_an_idle_program) {
    lose_the_worker("idle", "", "KILL");
    shows("idle\n");
    cr_expect(!strstr(out, "status 0\n") && !strstr(out, "status 4\n"), "%s", out);
}
/* mpirun sees nothing wrong here. */
Test(ggml_plugin, a_worker_that_is_stopped_ends_an_idle_program) {
    static const char *const modes[] = {"idle", "stays"};
    for (int i = 0; i < 2; i++) {
        lose_the_worker(modes[i], "SHEAF_TIMEOUT_HEARTBEAT_MS=1000 SHEAF_TIMEOUT_FINALIZE_MS=1000",
                        "STOP");
        shows("idle\n");
        shows("rank 1");
        cr_expect(!strstr(out, "status 0\n") && !strstr(out, "status 4\n"), "%s", out);
    }
}

/* Rank 0 is told of it in its call, and the thread that watches prints it: one line all the same. */
Test(ggml_plugin, a_worker_that_is_stopped_ends_a_busy_program) {
    lose_the_worker("busy", "SHEAF_TIMEOUT_HEARTBEAT_MS=1000", "STOP");
    const char *line = strstr(out, "so it is stopped");
    cr_expect(line && !strstr(line + 1, "so it is stopped"), "%s", out);
    cr_expect(!strstr(out, "status 0\n") && !strstr(out, "status 4\n"), "%s", out);
}

/* No call waits for the rank that is lost, and no other rank ends, for which mpirun would end the job. */
Test(ggml_plugin, a_program_lives_on_if_it_is_told_to) {
    for (int n = 2; n <= 3; n++) {
        lose_a_worker(n, "lives", "SHEAF_GGML_ON_FAILURE=error SHEAF_TIMEOUT_HEARTBEAT_MS=1000",
                      "STOP");
        shows("\nlives\n");
        shows(n == 2 ? "rank 1" : "rank 2");
        cr_expect(!strstr(out, "wrong"), "%s", out);
    }
}

Test(ggml_plugin, a_stopped_group_ends_an_idle_program) {
    lose_the_worker("idle", "SHEAF_GROUPS=0,1 SHEAF_TIMEOUT_HEARTBEAT_MS=1000", "STOP");
    shows("SHEAF1: 1 member");
    shows("rank 1");
    cr_expect(!strstr(out, "status 0\n") && !strstr(out, "status 4\n"), "%s", out);
}

/* mpirun signals a rank's process group: sheaf-worker and the program. Others signal sheaf-worker. Two
 * signals at nearly the same time may become one, hence three attempts. The worker, which mpirun asks
 * too, waits for the program's end and is not missed. */
Test(ggml_plugin, a_program_gets_a_signal_once) {
    static const char *const whom[] = {
        "$m", "$m", "$m", "$(for p in $(pgrep -P $m); do pgrep -P $p >&2 && echo $p; done)"};
    for (size_t i = run_by_mpich() ? 3 : 0; i < 4; i++) {
        char cmd[4096];
        snprintf(cmd, sizeof cmd,
                 "f=$(mktemp)\n"
                 "SHEAF_CPU_THREADS=1 mpirun --allow-run-as-root --oversubscribe -np 2 "
                 "'%s/bin/sheaf-worker' -- "
                 "'%s/bin/helper-ggml-host' '%s/lib/libfake-ggml-3.so' '%s/lib/libggml-sheaf.so' 3 "
                 "count >$f 2>&1 & m=$!\n"
                 "for i in $(seq 300); do grep -q '^idle' $f && break; sleep 0.1; done\n"
                 "kill -TERM %s; wait $m; cat $f; rm $f",
                 SHEAF_BUILD_DIR, SHEAF_BUILD_DIR, SHEAF_BUILD_DIR, SHEAF_BUILD_DIR, whom[i]);
        cr_expect_eq(run_command(cmd, TIMEOUT, out, OUT), 0, "%s", out);
        shows("\n1 signals\nend");
        cr_expect(!strstr(out, "has died"), "%s", out);
    }
}

Test(ggml_plugin, a_program_that_loads_no_backend) {
    char cmd[512];
    snprintf(cmd, sizeof cmd,
             "mpirun --allow-run-as-root --oversubscribe -np 2 '%s/bin/sheaf-worker' -- sh -c "
             "'exit 5'",
             SHEAF_BUILD_DIR);
    run_command(cmd, TIMEOUT, out, OUT);
    shows("sheaf-worker: sh ended (status 5) without loading a backend; one that has them built "
          "in calls ggml_backend_load_all()\n");
    cr_expect(!strstr(out, "MPI_ABORT") && !strstr(out, "failed"), "%s", out);
}
/* Set for another backend, or to a plugin that is not there: sheaf-worker hands it on as it is. */
Test(ggml_plugin, a_program_whose_backend_is_another) {
    static const char *const paths[] = {"/dev/null", "/nothere/libggml-sheaf.so"};
    for (size_t i = 0; i < 2; i++) {
        char cmd[512], text[256];
        snprintf(cmd, sizeof cmd,
                 "GGML_BACKEND_PATH=%s mpirun --allow-run-as-root --oversubscribe -np 2 "
                 "'%s/bin/sheaf-worker' -- sh -c 'exit 5'",
                 paths[i], SHEAF_BUILD_DIR);
        run_command(cmd, TIMEOUT, out, OUT);
        snprintf(
            text, sizeof text,
            "without loading a backend; GGML_BACKEND_PATH is '%s', not libggml-sheaf.so; unset "
            "it, and sheaf-worker sets it\n",
            paths[i]);
        shows(text);
    }
}
Test(ggml_plugin, a_program_that_cannot_be_run) {
    char cmd[512];
    snprintf(cmd, sizeof cmd,
             "mpirun --allow-run-as-root --oversubscribe -np 2 '%s/bin/sheaf-worker' -- /nothere",
             SHEAF_BUILD_DIR);
    cr_expect_eq(run_command(cmd, TIMEOUT, out, OUT), 127, "%s", out);
    shows("sheaf-worker: cannot run /nothere: No such file or directory\n");
    cr_expect(!strstr(out, "without loading a backend"), "%s", out);
}
/* Options of sheaf-worker are settings of all ranks, and of the program. */
Test(ggml_plugin, options_of_the_ranks) {
    const char *helper = "helper-ggml-host",
               *launcher = "env -u SHEAF_CPU_THREADS mpirun --allow-run-as-root --oversubscribe";
    char before[1024];
    snprintf(before, sizeof before,
             "%s -np 2 '%s/bin/sheaf-worker' --fast --threads 1 --split=3,1 --split-sums whole "
             "--groups all --devices CPU0 -- sh -c 'echo $SHEAF_CPU_ACTIVATIONS "
             "$SHEAF_CPU_THREADS $SHEAF_SPLIT $SHEAF_SPLIT_SUMS $SHEAF_GROUPS $SHEAF_DEVICES; "
             "\"$@\"' sh",
             launcher, SHEAF_BUILD_DIR);
    cr_expect_eq(start(before, helper, "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("q8 1 3,1 whole all CPU0\n");
    shows("\nok\n");
    snprintf(before, sizeof before, "%s -np 2" BESIDE_A_WORKER("--fast"), launcher);
    cr_expect_neq(start(before, helper, "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("SHEAF_CPU_ACTIVATIONS is");
}
/* A server would compute without SHEAF for days: its alarm, after 20 s, comes a second before the backend here. */
Test(ggml_plugin, a_program_that_has_loaded_no_backend_yet) {
    static const char text[] = "has loaded no backend in 20 s and computes without SHEAF until it "
                               "does; one that has them built in calls ggml_backend_load_all()\n";
    char before[512];
    snprintf(before, sizeof before,
             "mpirun --allow-run-as-root --oversubscribe -np 2 '%s/bin/sheaf-worker' -- sh -c "
             "'kill -ALRM $PPID; sleep 1; \"$@\" && kill -ALRM $PPID && sleep 0.1' sh",
             SHEAF_BUILD_DIR);
    cr_expect_eq(start(before, "helper-ggml-host", "fake-ggml-3", 3, ""), 0, "%s", out);
    shows("\nok\n");
    shows("sheaf-worker: sh has loaded");
    const char *first = strstr(out, text);
    cr_expect(first && !strstr(first + 1, text), "%s", out);
}
/* One line, and no text of MPI's. */
static void shows_a_second_program(void) {
    shows("SHEAF stays out of this program: process ");
    shows(" of this rank is or was the job's program");
    shows("\nrefused\n");
    shows("ok\n");
    cr_expect(!strstr(out, "MPI_") && !strstr(out, "wrong"), "%s", out);
}
Test(ggml_plugin, a_second_program_stays_out) {
    for (int n = 1; n <= 2; n++) {
        char before[512];
        snprintf(before, sizeof before,
                 "mpirun --allow-run-as-root --oversubscribe -np %d '%s/bin/sheaf-worker' -- "
                 "sh -c '\"$@\"; \"$@\"' sh",
                 n, SHEAF_BUILD_DIR);
        cr_expect_eq(start(before, "helper-ggml-host", "fake-ggml-3", 3, ""), 0, "%s", out);
        shows_a_second_program();
    }
}
Test(ggml_plugin, a_child_stays_out) {
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "child"), 0, "%s", out);
    shows_a_second_program();
    cr_expect_eq(host("mpirun --allow-run-as-root --oversubscribe -np 2" BESIDE_A_WORKER(""),
                      "fake-ggml-3", 3, "child"),
                 0, "%s", out);
    shows_a_second_program();
}
/* One that frees says nothing, one that computes what to do, and the parent goes on. */
Test(ggml_plugin, a_forked_child_does_not_compute) {
    cr_expect_eq(ranks(2, "fake-ggml-3", 3, "fork"), 0, "%s", out);
    shows("\nok\n");
    const char *freed = strstr(out, "freed\n"),
               *text = strstr(out, "is a forked child of process ");
    cr_expect(freed && text && !strstr(text + 1, "is a forked child of process "), "%s", out);
    cr_expect(!strstr(out, "SHEAF is not there"), "%s", out);
}
/* Without a launcher each is a job of its own. */
Test(ggml_plugin, a_second_program_without_ranks) {
    char before[512];
    snprintf(before, sizeof before, "'%s/bin/sheaf-worker' -- sh -c '\"$@\"; \"$@\"' sh",
             SHEAF_BUILD_DIR);
    cr_expect_eq(start(before, "helper-ggml-host", "fake-ggml-3", 3, ""), 0, "%s", out);
    cr_expect(!strstr(out, "refused"), "%s", out);
    cr_expect_eq(host("env", "fake-ggml-3", 3, "child"), 0, "%s", out);
    shows("closed\n");
}
Test(ggml_plugin, usage) {
    char cmd[512];
    snprintf(cmd, sizeof cmd, "'%s/bin/sheaf-worker' nonsense", SHEAF_BUILD_DIR);
    cr_expect_eq(run_command(cmd, TIMEOUT, out, OUT), 2, "%s", out);
    shows("the program stands behind --");
    snprintf(cmd, sizeof cmd, "'%s/bin/sheaf-worker'", SHEAF_BUILD_DIR);
    cr_expect_eq(run_command(cmd, TIMEOUT, out, OUT), 1, "%s", out);
    shows("rank 0 runs the program");
}
