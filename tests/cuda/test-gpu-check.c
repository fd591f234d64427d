/* scripts/gpu-check without a GPU: what it refuses, its end on a machine that has none, its report, and its steps
 * on the emulation, with what a GPU's machine has beside it from tests/cuda/machine. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpirun.h"

enum { OUT = 1 << 16, TIMEOUT = 400 };
static char out[OUT], report[OUT];

#define EMULATED                                                                                   \
    "export SHEAF_BACKEND_PATH='" SHEAF_BUILD_DIR "/lib/cuda-emu' SHEAF_CPU_THREADS=1; "
#define MACHINE EMULATED "export PATH='" SHEAF_SOURCE_DIR "/tests/cuda/machine':$PATH; "

/* gpu-check with the arguments; its output in `out`. */
static int check(const char *before, const char *arguments) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd, "%s '%s/scripts/gpu-check' %s", before, SHEAF_SOURCE_DIR, arguments);
    return run_command(cmd, TIMEOUT, out, OUT);
}

/* On this build, with a report in `report`. */
static int check_build(const char *before, const char *arguments) {
    char dir[] = "/tmp/gpu-check-XXXXXX", path[64], more[1024], cmd[128];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/report.md", dir);
    snprintf(more, sizeof more, "--build '" SHEAF_BUILD_DIR "' --report %s %s", path, arguments);
    const int status = check(before, more);
    FILE *f = fopen(path, "r");
    cr_assert(f, "no report: %s", out);
    report[fread(report, 1, OUT - 1, f)] = 0;
    fclose(f);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    cr_assert_eq(run_command(cmd, 20, NULL, 0), 0);
    return status;
}

Test(gpu_check, what_it_refuses, .timeout = TIMEOUT) {
    static const struct {
        const char *arguments, *text;
        int status;
    } cases[] = {
        {"--help", "--pack DIR", 0},
        {"--nothing", "no option '--nothing'", 1},
        {"--device", "--device wants a value", 1},
        {"--only ''", "--only wants a value", 1},
        {"--layers 0", "'0' is not a number from 1 to 999", 1},
        {"--minutes many", "'many' is not a number from 1 to 999", 1},
        {"--device 'CUDA 0'", "a kind of devices has letters only", 1},
        {"--only '('", "--only '(' is no regular expression", 1},
        {"--build /nowhere", "there is no /nowhere/bin/helper-gpu", 1},
        {"--report /nowhere/report.md", "cannot write the report /nowhere/report.md", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(check("", cases[i].arguments), cases[i].status, "%s: %s", cases[i].arguments,
                     out);
        cr_expect(strstr(out, cases[i].text), "%s: no '%s' in %s", cases[i].arguments,
                  cases[i].text, out);
    }
}

/* An apt-get that downloads what it is told to, or nothing. */
static int pack(const char *download) {
    char before[512];
    snprintf(before, sizeof before,
             "D=$(mktemp -d) && printf '#!/bin/sh\\nshift\\n%s\\n' >$D/apt-get && chmod +x "
             "$D/apt-get && PATH=$D:$PATH",
             download);
    return check(before, "--pack $D/debs; s=$?; ls $D/debs; rm -r $D; exit $s");
}

Test(gpu_check, packs_what_a_build_needs, .timeout = TIMEOUT) {
    cr_expect_eq(pack("for p; do echo >$p.deb; done"), 0, "%s", out);
    cr_expect(strstr(out, "13 packages, ") && strstr(out, "libopenmpi3.deb") &&
                  strstr(out, "libhwloc-dev.deb"),
              "%s", out);
    cr_expect_eq(pack("exit 100"), 1, "%s", out);
    cr_expect(strstr(out, "could not download the packages"), "%s", out);
}

/* The row of a step: "| NAME | RESULT | S | GPU S | TEXT |". */
struct row {
    char result[24], seconds[8], gpu[8], text[200];
};

static struct row row_of(const char *name) {
    struct row r = {{0}, {0}, {0}, {0}};
    char head[80];
    snprintf(head, sizeof head, "\n| %s | ", name);
    const char *at = strstr(report, head);
    cr_assert(at, "no row of %s: %s", name, report);
    at += strlen(head);
    cr_assert_geq(
        sscanf(at, "%23[^|]|%7[^|]|%7[^|]| %199[^|\n]", r.result, r.seconds, r.gpu, r.text), 3,
        "%s", at);
    r.result[strcspn(r.result, "|")] = 0;
    for (size_t n = strlen(r.result); n && r.result[n - 1] == ' '; n--) r.result[n - 1] = 0;
    return r;
}

/* Every row has five cells, and a result that docs/gpu.md names; how many rows there are. */
static int rows(void) {
    static const char *const results[] = {"ok", "SLOW", "n/a", "not run", "TIME OUT", "FAILED"};
    int n = 0;
    const char *line = strstr(report, "|---|---|---:|---:|---|\n");
    cr_assert(line, "%s", report);
    while ((line = strchr(line, '\n')) && line[1] == '|') {
        int cells = 0;
        bool known = false;
        line++;
        for (const char *p = line; *p && *p != '\n'; p++) cells += *p == '|';
        const char *cell = strstr(line, " | ") + 3;
        for (size_t i = 0; i < sizeof results / sizeof *results; i++)
            known = known || (!strncmp(cell, results[i], strlen(results[i])) &&
                              !strncmp(cell + strlen(results[i]), " |", 2));
        cr_expect(cells == 6 && known, "%.200s", line);
        n++;
    }
    return n;
}

Test(gpu_check, a_machine_without_a_gpu, .timeout = TIMEOUT) {
    cr_expect_eq(check_build(EMULATED "export SHEAF_TEST_CUDA_EMU=devices=-1;", ""), 1, "%s", out);
    cr_expect(!strncmp(report, "# gpu-check: red\n", 17), "%.100s", report);
    cr_expect_gt(rows(), 60);
    cr_expect_str_eq(row_of("2 ranks").result, "ok", "%s", report);
    const struct row devices = row_of("devices");
    cr_expect(!strcmp(devices.result, "FAILED") &&
                  strstr(devices.text, "status 3: no CUDA device: ") &&
                  strstr(devices.text, "no driver is installed"),
              "%s", devices.text);
    static const char *const others[] = {"ops on CUDA0", "bench 8B-F16", "a killed rank", "clocks"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct row r = row_of(others[i]);
        cr_expect(!strcmp(r.result, "not run") && strstr(r.text, "no CUDA device"), "%s: %s, %s",
                  others[i], r.result, r.text);
    }
    cr_expect(strstr(out, "did not run: ") && strstr(out, "failed: devices; ") &&
                  !strcmp(out + strlen(out) - 4, "red\n"),
              "%s", out);
}

static void is_right(const char *name) {
    const struct row r = row_of(name);
    cr_expect(!strcmp(r.result, "ok") || !strcmp(r.result, "SLOW"), "%s: %s, %s\n%s", name,
              r.result, r.text, report);
}

/* Those that take seconds on the emulation; the others have no figures of their own. */
Test(gpu_check, steps_on_the_emulation, .timeout = TIMEOUT) {
    static const char *const steps[] = {
        "probe",         "cuBLASLt",  "counts: 8B-Q4_0", "copies: 2 GPUs", "pipeline: 2 GPUs",
        "a killed rank", "synccheck", "clocks"};
    char only[512] = "--small --only '^(";
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        strcat(strcat(only, i ? "|" : ""), steps[i]);
    strcat(only, ")$'");
    /* the steps that were not asked for are no fault */
    cr_expect_eq(check_build(MACHINE "export SHEAF_TEST_CUDA_EMU=devices=2;", only), 0, "%s\n%s",
                 out, report);
    cr_expect_gt(rows(), 60);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) is_right(steps[i]);
    cr_expect_str_eq(row_of("ops on CUDA0").result, "n/a");
    static const char *const figures[] = {"\n## counts: 8B-Q4_0\n",  " 0 refused, ",
                                          "\n## copies: 2 GPUs\n",   " GB/s, back ",
                                          "\n## pipeline: 2 GPUs\n", "4 in flight"};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        cr_expect(strstr(report, figures[i]), "no %s in %s", figures[i], report);
    cr_expect(strstr(row_of("a killed rank").text, "rank "), "%s", report);
    cr_expect_gt(atoi(row_of("a killed rank").gpu), 0, "both GPUs are half busy: %s", report);
}

/* Runs that are not supported do not count. */
Test(gpu_check, ops_that_are_not_supported, .timeout = TIMEOUT) {
    static const struct {
        const char *line;
        int status;
    } cases[] = {
        {"CUDA0 4516 cases, 4516 runs: 0 wrong, 0 refused, 542 unsupported", 0},
        {"CUDA0 4516 cases, 4516 runs: 0 wrong, 0 refused, 4000 unsupported", 1},
        {"CUDA0 4516 cases, 4516 runs: 1 wrong, 0 refused, 542 unsupported", 1},
        {"CPU0 4516 cases, 4516 runs: 0 wrong, 0 refused, 0 unsupported", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[1024];
        snprintf(cmd, sizeof cmd,
                 "bash -c 'work=$(mktemp -d); . \"%s/scripts/gpu-steps.sh\"; (ops CUDA0 3900 echo "
                 "%s); s=$?; rm -r $work; exit $s'",
                 SHEAF_SOURCE_DIR, cases[i].line);
        cr_expect_eq(run_command(cmd, TIMEOUT, out, OUT), cases[i].status, "%s: %s", cases[i].line,
                     out);
    }
}

/* At its limit a step with processes side by side names those that were not done, and none of them runs on: here an op
 * and a model hang. */
Test(gpu_check, a_sanitizer_that_hangs, .timeout = TIMEOUT) {
    static const char command[] = EMULATED
        "bash -c 'export work=$(mktemp -d) kind=CUDA small=yes beside=2 root=\"" SHEAF_SOURCE_DIR
        "\" bin=\"" SHEAF_BUILD_DIR "/bin\"; export models=$work; mkdir $work/logs; "
        "printf \"#!/bin/sh\\ncase \\$* in *ROPE* | *sheaf-run*) echo \\$\\$ >>$work/pids; exec "
        "sleep "
        "200 ;; esac\\n\" >$work/compute-sanitizer; chmod +x $work/compute-sanitizer; "
        "PATH=$work:$PATH; . \"$root/scripts/gpu-steps.sh\"; export -f sanitize findings; "
        "timeout --kill-after=5 5 bash -c \"sanitize memcheck\"; echo status $?; sleep 1; "
        "for p in $(cat $work/pids); do grep -qs sleep /proc/$p/cmdline || echo $p is gone; done; "
        "rm -r $work'";
    cr_assert_eq(run_command(command, TIMEOUT, out, OUT), 0, "%s", out);
    cr_expect(strstr(out, "not done: ROPE kjv-f32; findings: \nstatus 124\n"), "%s", out);
    const char *gone = strstr(out, " is gone\n");
    cr_expect(gone && strstr(gone + 1, " is gone\n"), "both have begun, and ended: %s", out);
}

/* Without a ggml library there is nothing to compare with; the row says which was looked for. */
Test(gpu_check, without_a_ggml_library, .timeout = TIMEOUT) {
    cr_expect_eq(check_build(MACHINE "export SHEAF_GGML_LIB=/nowhere/libggml.so;",
                             "--small --ggml Other0 --only '^ggml:Other0'"),
                 0, "%s\n%s", out, report);
    static const char *const steps[] = {"ggml:Other0: ops", "ggml:Other0 beside CUDA0",
                                        "ggml:Other0: text", "ggml:Other0: tokens/s"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const struct row r = row_of(steps[i]);
        cr_expect(!strcmp(r.result, "n/a") && strstr(r.text, "/nowhere/libggml.so"), "%s: %s, %s",
                  steps[i], r.result, r.text);
    }
}
