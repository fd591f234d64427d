/* The command lines of all tools: help, version, errors; the display of a load; which rank a report names
 * as the straggler. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpirun.h"

#include "common/json.c"
#include "common/progress.c"
#include "common/straggler.c"

static char out[1 << 15];

static int tool(const char *args) {
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "exec '%s'/bin/%s", SHEAF_BUILD_DIR, args);
    return run_command(cmd, 60, out, sizeof out);
}

static void fails(const char *args, const char *text) {
    cr_expect_eq(tool(args), 2, "%s: %s", args, out);
    cr_expect(strstr(out, text), "%s lacks '%s': %s", args, text, out);
    cr_expect(strchr(out, '\n') == out + strlen(out) - 1, "%s: not one line: %s", args, out);
}

static const char *const tools[] = {"sheaf-run",         "sheaf-bench",    "sheaf-comm-bench",
                                    "sheaf-info",        "sheaf-quantize", "sheaf-make-model",
                                    "sheaf-backend-ops", "sheaf-worker"};

/* To standard output, with status 0, also without a world. */
Test(options, help_and_version_of_every_tool, .timeout = 120) {
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++) {
        char args[128], want[64];
        snprintf(args, sizeof args, "%s --help 2> /dev/null", tools[i]);
        cr_expect_eq(tool(args), 0, "%s: %s", args, out);
        snprintf(want, sizeof want, "%s", tools[i]);
        cr_expect(strstr(out, "usage: ") == out && strstr(out, want), "%s: %s", args, out);
        cr_expect(strstr(out, "--version"), "%s: %s", args, out);
        snprintf(args, sizeof args, "%s --version 2> /dev/null", tools[i]);
        cr_expect_eq(tool(args), 0, "%s: %s", args, out);
        cr_expect(strstr(out, "sheaf 0.") == out && strstr(out, ", commit "), "%s: %s", args, out);
        snprintf(args, sizeof args, "%s --versoin", tools[i]);
        fails(args, "unknown option '--versoin' (is it --version? see --help)");
    }
}

/* The scripts that build and run answer before they build. */
Test(options, help_of_the_scripts, .timeout = 60) {
    static const char *const scripts[] = {"run", "run-llama"};
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        char cmd[512];
        snprintf(cmd, sizeof cmd, "exec '" SHEAF_SOURCE_DIR "/scripts/%s' -np 3 --help",
                 scripts[i]);
        cr_expect_eq(run_command(cmd, 10, out, sizeof out), 0, "%s: %s", scripts[i], out);
        cr_expect(strstr(out, "Installs what is missing") == out, "%s: %s", scripts[i], out);
    }
}

/* Tasks of srun without PMI or PMIx may be programs of one: each answers. Of ranks, the first does. */
Test(options, tasks_of_srun_answer_each, .timeout = 60) {
    setenv("SLURM_PROCID", "1", 1);
    cr_expect_eq(tool("sheaf-info --help"), 0);
    cr_expect(strstr(out, "usage: ") == out, "%s", out);
    fails("sheaf-worker --versoin", "unknown option '--versoin'");
    setenv("PMI_RANK", "1", 1);
    cr_expect_eq(tool("sheaf-info --help"), 0);
    cr_expect_str_eq(out, "", "%s", out);
    unsetenv("PMI_RANK");
    unsetenv("SLURM_PROCID");
}

/* Status 2: no machine and no file could make the command line right; 1: this job lacks what it names. */
Test(options, values_that_are_wrong_everywhere, .timeout = 120) {
#define KJV "'" SHEAF_SOURCE_DIR "/models/kjv-f32.gguf'"
    static const char *const wrong[][2] = {
        {"sheaf-run -m x -p y --split nonsense",
         "--split nonsense: give even, auto, or a share for each member"},
        {"sheaf-bench -m x --split 3,x",
         "--split 3,x: give even, auto, or a share for each member"},
        {"sheaf-info -m x --split 0,0", "--split 0,0: give even, auto, or a share for each member"},
        {"sheaf-info -m x --split ''", "--split : give even, auto, or a share for each member"},
        {"sheaf-run -m x -p y --devices ''", "--devices '' has an empty name: give all, or names"},
        {"sheaf-bench -m x --devices CPU0,", "--devices 'CPU0,' has an empty name"},
        {"sheaf-info -m x --devices ,CPU0", "--devices ',CPU0' has an empty name"},
        {"sheaf-info -m x --devices CPU0,CPU1,CPU0", "--devices names CPU0 twice"},
        {"sheaf-run -m x -p y --devices CPU0@1,CPU1,CPU0@0",
         "list the devices by rank, lower ranks first: CPU0@0 stands behind one of rank 1"},
        {"sheaf-info -m x --members 2 --split 1",
         "--split 1 has 1 number, but there are 2 members"},
        {"sheaf-info --preset llama-8b --members 2,3 --split 3,1",
         "--split 3,1 has 2 numbers, but there are 3 members"},
        {"sheaf-info --preset nothing", "there is no preset 'nothing'"},
        {"sheaf-info --preset llama-8b --mix nothing", "there is no type or mix 'nothing'"},
        {"sheaf-make-model", "give a file with -o FILE"},
        {"sheaf-make-model -o /tmp/unwritten --arch nothing",
         "architecture 'nothing' is not supported"},
        {"sheaf-make-model -o /tmp/unwritten --heads 3 --kv-heads 2", "multiple of kv-heads"},
        {"sheaf-make-model -o /tmp/unwritten --arch qwen2 --experts 4 --experts-used 2",
         "architecture qwen2 has no experts"},
        {"sheaf-make-model -o /tmp/unwritten --arch gpt-oss", "has experts in every layer"},
        {"sheaf-make-model -o /tmp/unwritten --experts 4", "experts-used is 0; allowed are 1..4"},
        {"sheaf-make-model -o /tmp/unwritten --experts-used 2", "want a number of experts"},
        {"sheaf-make-model -o /tmp/unwritten --mix nothing", "there is no type or mix 'nothing'"},
        {"sheaf-backend-ops test -o nothing", "no op is named 'nothing'"},
    };
    static const char *const lacking[][2] = {
        {"sheaf-run -m /nowhere -p y", "cannot open /nowhere"},
        {"sheaf-run -m " KJV " -p y --devices CPU0 --split 3,1",
         "2 numbers, but there is 1 member"},
        {"sheaf-run -m " KJV " -p y --devices CPU77", "there is no device 'CPU77'"},
        {"sheaf-make-model -o /nowhere/x", "cannot create /nowhere/x"},
        {"sheaf-make-model -o /tmp", "/tmp is a folder"},
        {"sheaf-backend-ops test -b nothing", "no device is named 'nothing'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) fails(wrong[i][0], wrong[i][1]);
    for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++) {
        cr_expect_eq(tool(lacking[i][0]), 1, "%s: %s", lacking[i][0], out);
        cr_expect(strstr(out, lacking[i][1]), "%s: %s", lacking[i][0], out);
    }
}

Test(options, values_in_the_same_argument, .timeout = 60) {
    fails("sheaf-run -m x --predict=ten", "--predict wants a whole number");
    fails("sheaf-run -m x -n1x", "-n, --predict wants a whole number");
    fails("sheaf-run -m x --ids=3", "--ids takes no value");
    fails("sheaf-run -m x --temp=", "--temp wants a number");
    fails("sheaf-run --model=x -n12 --temperature=2000", "--temperature, --temp wants a number");
    fails("sheaf-run -m x -p y -s -2", "-s, --seed wants a whole number >= 0, or -1");
}

/* Without effect, or refused later with the name of a setting that was not given. */
Test(options, that_do_not_fit, .timeout = 60) {
    fails("sheaf-run -m x -p y --ppl-tokens 10", "want --perplexity FILE");
    fails("sheaf-run -m x -p y --ppl-lines", "want --perplexity FILE");
    fails("sheaf-run -m x --perplexity y --logits z", "--perplexity chooses no tokens");
    fails("sheaf-run -m x --perplexity y -c 1", "give a --ctx of 2 or more");
    fails("sheaf-run -m x -p y -t 2000", "-t, --threads wants a whole number from 1 to 1024");
    fails("sheaf-bench -m x -t 2000", "-t, --threads wants a whole number from 1 to 1024");
    fails("sheaf-run -m x -p y --experts z", "--experts is auto, columns, rows or whole, not 'z'");
    fails("sheaf-run -m x -p y --overlap z", "--overlap is auto, on or off, not 'z'");
    fails("sheaf-bench -m x --overlap z", "--overlap is auto, on or off, not 'z'");
}

/* Names and habits of other programs: taken, explained, or refused with a reason. */
Test(options, of_other_programs, .timeout = 60) {
    fails("sheaf-run -m x -p y --grammar z", "--grammar: answers are not constrained here");
    fails("sheaf-run -m x -p y --repeat-penalty 1.1", "--repeat-penalty: tokens are chosen by");
    fails("sheaf-run -m x -p y --mirostat=2", "--mirostat: tokens are chosen by --temp, --top-k");
    fails("sheaf-run -m x -np 4", "-np: one sequence only");
    fails("sheaf-run -m x -p y -ctk q8_0 -ctv f16", "keys and values have one type");
    fails("sheaf-run -m x -p y word", "unexpected argument 'word' (see --help)");
    fails("sheaf-run -m x predict", "unexpected argument 'predict' (is it --predict? see --help)");
    fails("sheaf-quantize a b Q8_0 d", "unexpected argument 'd' (see --help)");
    fails("sheaf-run -m x -p y --no-chat --system z", "--no-chat has no messages");
    fails("sheaf-run -m x -cnv --json", "-cnv has many answers");
    fails("sheaf-bench -m x -m y", "one model a run");
    fails("sheaf-worker llama-cli",
          "the program stands behind --: sheaf-worker [OPTIONS] -- PROGRAM");
    fails("sheaf-worker --fast llama-cli -m x", "the program stands behind --");
    fails("sheaf-worker --", "no program stands behind --");
    fails("sheaf-worker --fast --", "no program stands behind --");
    fails("sheaf-worker --threads 0 -- true", "--threads");
    fails("sheaf-worker --split-sums half -- true", "--split-sums");
    fails("sheaf-worker --fats -- true", "unknown option '--fats' (is it --fast? see --help)");
    cr_expect_neq(tool("sheaf-run -m /nowhere -p y -ngl 99 -t 1"), 0);
    cr_expect(strstr(out, "-ngl, --gpu-layers: all layers lie on the devices"), "%s", out);
    cr_expect_eq(tool("sheaf-run --list-devices"), 0);
    cr_expect(strstr(out, "CPU0@0"), "%s", out);
}

Test(options, sizes_of_comm_bench, .timeout = 120) {
    fails("sheaf-comm-bench -s 1K,2Q", "-s, --sizes wants at most 32 sizes like 4, 8K, 1M");
    fails("sheaf-comm-bench -s 3", "--sizes wants");
    fails("sheaf-comm-bench -c foo", "no collective begins with 'foo'");
    fails("sheaf-comm-bench -b 1M -e 1K", "-b is more than -e");
    fails("sheaf-comm-bench -s 8 -b 4", "leave out -b and -e");
    cr_assert_eq(tool("sheaf-comm-bench -b 8 -e 1K -f 4 -n 5 -c all_reduce --format csv"), 0, "%s",
                 out);
    static const char *const rows[] = {"all_reduce,8,", "all_reduce,32,", "all_reduce,128,",
                                       "all_reduce,512,"};
    for (size_t i = 0; i < 4; i++) cr_expect(strstr(out, rows[i]), "%s: %s", rows[i], out);
    cr_expect_not(strstr(out, "all_reduce,1024,"), "%s", out);
}

/* The command line is wrong on all ranks: the job says so once. */
Test(options, errors_are_told_once_a_job, .timeout = 120) {
    static const char *const args[] = {"sheaf-comm-bench -c foo", "sheaf-info --frobnicate",
                                       "sheaf-bench --frobnicate", "sheaf-run --frobnicate"};
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        cr_expect_gt(run_mpirun(2, NULL, 60, out, sizeof out, "%s", args[i]), 0);
        char head[64];
        snprintf(head, sizeof head, "%.*s: ", (int)strcspn(args[i], " "), args[i]);
        const char *p = strstr(out, head);
        cr_expect(p && !strstr(p + 1, head), "%s: %s", args[i], out);
    }
}

/* Every reader of JSON takes UTF-8 alone: what is none, of byte tokens, must not be written. */
Test(options, json_is_utf8) {
    static const char *const cases[][2] = {
        {"a\"b\\\n", "\"a\\\"b\\\\\\u000a\""},
        {"\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80 \xed\x9f\xbf \xf4\x8f\xbf\xbf",
         "\"\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80 \xed\x9f\xbf \xf4\x8f\xbf\xbf\""},
        {"\xc3(", "\"\\ufffd(\""},
        {"\xe2\x82", "\"\\ufffd\""},
        {"\xc0\x80", "\"\\ufffd\\ufffd\""},                       /* spelled too long */
        {"\xe0\x80\x80", "\"\\ufffd\\ufffd\\ufffd\""},            /* the same */
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},            /* a surrogate */
        {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""}, /* behind U+10FFFF */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = NULL;
        size_t len = 0;
        FILE *f = open_memstream(&text, &len);
        json_string(f, cases[i][0], strlen(cases[i][0]));
        fclose(f);
        cr_expect_str_eq(text, cases[i][1], "%zu: %s", i, text);
        free(text);
    }
}

/* ---- the display of a load ---- */

Test(options, a_load_is_shown) {
    struct progress bar = {.terminal = true}, lines = {.terminal = false};
    const size_t gib = (size_t)1 << 30;
    char text[PROGRESS_LINE];
    progress_text(&lines, 100, 0, 8 * gib, text);
    cr_expect_str_eq(text, "");
    progress_text(&lines, 109.9, gib, 8 * gib, text);
    cr_expect_str_eq(text, "", "before ten seconds: %s", text);
    progress_text(&lines, 110, 2 * gib, 8 * gib, text);
    cr_expect_str_eq(text, "loaded 25 % of 8.00 GiB, 0.20 GiB/s\n");
    progress_text(&lines, 111, 3 * gib, 8 * gib, text);
    cr_expect_str_eq(text, "");
    progress_text(&lines, 130, 8 * gib, 8 * gib, text);
    cr_expect_str_eq(text, "", "the end needs no line: %s", text);
    progress_text(&bar, 1, 0, gib, text);
    cr_expect(strstr(text, "\rloading [") && strstr(text, "  0 %"), "%s", text);
    progress_text(&bar, 2, gib / 2, gib, text);
    cr_expect(strstr(text, "[============ ") && strstr(text, " 50 %, 0.50 GiB/s"), "%s", text);
    progress_text(&bar, 3, gib / 2 + 1, gib, text);
    cr_expect_str_eq(text, "", "the same percent is shown once: %s", text);
    progress_text(&bar, 4, gib, gib, text);
    cr_expect_str_eq(text, "\r\033[K");
}

/* In milliseconds, of three ranks: computing, in collectives, of that waiting, standing still. */
Test(options, straggler_is_the_rank_that_stood_still_least) {
    static const struct {
        const char *what;
        int rank;
        double share;
        struct {
            uint64_t compute, collective, stalled, n;
        } ranks[3];
    } cases[] = {
        {"the last", 2, 0.5, {{500, 500, 500, 9}, {500, 500, 500, 9}, {1000, 0, 0, 9}}},
        {"waits that cost nothing", -1, 0, {{950, 50, 50, 9}, {950, 50, 0, 9}, {1000, 0, 0, 9}}},
        {"all wait for the link",
         -1,
         0,
         {{500, 500, 450, 9}, {500, 500, 450, 9}, {500, 500, 400, 9}}},
        {"a rank without devices", 1, 0.4, {{0, 0, 0, 0}, {1000, 100, 100, 9}, {500, 540, 540, 9}}},
        {"one that takes part", -1, 0, {{0, 0, 0, 0}, {0, 0, 0, 0}, {1000, 0, 0, 9}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rank_times t[3] = {0};
        for (int r = 0; r < 3; r++)
            t[r] = (struct rank_times){.compute_ns = cases[i].ranks[r].compute * 1000000,
                                       .collective_ns = cases[i].ranks[r].collective * 1000000 + 7,
                                       .hidden_ns = 7,
                                       .wait_ns = 2000000000,
                                       .stalled_ns = cases[i].ranks[r].stalled * 1000000,
                                       .n_collectives = cases[i].ranks[r].n};
        const struct straggler s = straggler_find(t, sizeof *t, 3);
        cr_expect_eq(s.rank, cases[i].rank, "%s: rank %d", cases[i].what, s.rank);
        cr_expect_float_eq(s.share, cases[i].share, 1e-3, "%s: %f", cases[i].what, s.share);
    }
}
