/* Models on ggml's CPU device, where scripts/ggml-tree has put Debian's: their text and their perplexity
 * do not depend on the number of ranks, nor on whether weights lie in the device's own layout. The
 * device rounds activations to 8 bits in blocks; cuts by heads and by blocks of the feed-forward keep
 * the blocks whole, so sums differ in their order only. With whole sums nothing differs. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpirun.h"
#include "temp_dir.h"

enum { OUT = 1 << 16, TIMEOUT = 300 };
static char out[OUT];

static int run(const char *env, int np, const char *program, const char *args) {
    char cmd[2048], start[128] = "";
    if (np > 1)
        snprintf(start, sizeof start, "mpirun --allow-run-as-root --oversubscribe -np %d", np);
    snprintf(cmd, sizeof cmd,
             "export SHEAF_CPU_THREADS=1 SHEAF_CPU_DEVICES=1 SHEAF_DEVICES=ggml:CPU %s; cd '%s'; "
             "%s '" SHEAF_SOURCE_DIR "/scripts/ggml-tree' run %s %s",
             env, SHEAF_BUILD_DIR, start, program, args);
    return run_command(cmd, TIMEOUT, out, OUT);
}

static void need_tree(void) {
    char cmd[512];
    snprintf(cmd, sizeof cmd, "'" SHEAF_SOURCE_DIR "/scripts/ggml-tree' --path");
    if (run_command(cmd, TIMEOUT, out, OUT))
        cr_skip("no tree of Debian's ggml here (scripts/ggml-tree --install)");
}

static void line_of(const char *head, char *line, size_t cap) {
    cr_assert(run_line_of(out, head, line, cap), "no line '%s': %s", head, out);
}

static const struct {
    int np;
    const char *env;
} worlds[] = {{1, ""}, {2, ""}, {1, "SHEAF_GGML_REPACK=0"}, {2, "SHEAF_GGML_REPACK=0"}};
enum { TWO = 2, ALL = sizeof worlds / sizeof *worlds };

static void same_text(const char *model, const char *prompt, int n) {
    char args[1024], want[4096], got[4096];
    snprintf(args, sizeof args, "-m '%s' %s --temp 0 --ignore-eos --ids 2>&1", model, prompt);
    for (int w = 0; w < n; w++) {
        cr_assert_eq(run(worlds[w].env, worlds[w].np, "bin/sheaf-run", args), 0, "%s", out);
        line_of("ids: ", w ? got : want, sizeof want);
        if (w) cr_expect_str_eq(got, want, "%d ranks, %s", worlds[w].np, worlds[w].env);
    }
}

/* Within `share`: sums in another order change what ggml rounds to 8 bits. */
static void same_perplexity(const char *model, const char *more, double share, int n) {
    char args[1024], line[512];
    double first = 0, p = 0;
    snprintf(args, sizeof args,
             "-m '%s' --perplexity '" SHEAF_SOURCE_DIR "/tests/golden/heldout.txt' %s 2>&1", model,
             more);
    for (int w = 0; w < n; w++) {
        cr_assert_eq(run(worlds[w].env, worlds[w].np, "bin/sheaf-run", args), 0, "%s", out);
        line_of("perplexity_tokens ", line, sizeof line);
        fprintf(stderr, "%d ranks, %s: %s\n", worlds[w].np, worlds[w].env, line);
        cr_assert_eq(sscanf(line, "perplexity_tokens %*d nll %*f perplexity %lf", &p), 1, "%s",
                     line);
        if (!w) first = p;
        cr_expect_float_eq(p / first, 1, share, "%d ranks: %s; one rank: %f", worlds[w].np, line,
                           first);
    }
}

#define WHOLE  "--split-sums whole"
#define UNEVEN WHOLE " --split 3,1"

static const struct way {
    int np; /* 1: what the next ones are compared with */
    const char *env, *more;
} any_cpu[] = {{1, "", ""},
               {2, "", WHOLE},
               {3, "", WHOLE},
               {1, "SHEAF_GGML_REPACK=0", ""},
               {2, "SHEAF_GGML_REPACK=0", UNEVEN}},
  no_amx[] = {{1, "", ""}, {2, "", UNEVEN}};
enum { ANY_CPU = sizeof any_cpu / sizeof *any_cpu, NO_AMX = sizeof no_amx / sizeof *no_amx };

/* On a CPU with AMX ggml chooses the layout of weights by the rows of a slice. */
static void need_one_layout(void) {
    if (run_command("grep -qw amx_int8 /proc/cpuinfo", TIMEOUT, out, OUT) == 0)
        cr_skip("uneven shares with ggml's layouts differ on this CPU, which has AMX");
}

/* Logits of one rank's, and of ranks with whole sums. */
static void same_bits(const char *model, const char *prompt, const struct way *ways, int n) {
    char args[1024], cmd[512];
    for (int w = 0; w < n; w++) {
        snprintf(args, sizeof args, "-m '%s' %s --temp 0 --ignore-eos %s --logits '%s/%d.bin' 2>&1",
                 model, prompt, ways[w].more, dir, ways[w].np > 1);
        cr_assert_eq(run(ways[w].env, ways[w].np, "bin/sheaf-run", args), 0, "%s", out);
        if (ways[w].np == 1) continue;
        snprintf(cmd, sizeof cmd, "cmp '%s/0.bin' '%s/1.bin'", dir, dir);
        cr_expect_eq(system(cmd), 0, "%d ranks %s %s", ways[w].np, ways[w].env, ways[w].more);
    }
}

/* The same of llama-results, a program of llama.cpp, with the plugin. */
static void same_bits_by_plugin(const char *model) {
    char args[1024], cmd[512];
    for (int np = 1; np <= 3; np++) {
        snprintf(args, sizeof args,
                 "-- llama-results -m '%s' -p 'the old man and the sea' -o '%s/%d.gguf' -c 128 "
                 "-dev SHEAF -ngl 99 -t 1 -fa on 2>&1",
                 model, dir, np > 1);
        cr_assert_eq(run("SHEAF_SPLIT_SUMS=whole", np, "bin/sheaf-worker", args), 0, "%s", out);
        snprintf(cmd, sizeof cmd, "cmp '%s/0.gguf' '%s/1.gguf'", dir, dir);
        if (np > 1) cr_expect_eq(system(cmd), 0, "%d ranks", np);
    }
}

TestSuite(ggml_model, .init = setup, .fini = teardown, .timeout = 600);

/* The bundled model, in a type whose rows the device interleaves. */
static const char *bundled(void) {
    static char model[128];
    char cmd[512];
    need_tree();
    snprintf(model, sizeof model, "%s", in_dir("q4_0.gguf"));
    snprintf(cmd, sizeof cmd,
             "'" SHEAF_BUILD_DIR "/bin/sheaf-quantize' '" SHEAF_SOURCE_DIR
             "/models/kjv-f32.gguf' '%s' Q4_0",
             model);
    cr_assert_eq(run_command(cmd, TIMEOUT, out, OUT), 0, "%s", out);
    return model;
}
#define OF_BUNDLED "-p 'the old man and the sea' -n 24"

Test(ggml_model, bundled) {
    const char *model = bundled();
    same_text(model, OF_BUNDLED, ALL);
    same_perplexity(model, "--ppl-lines --ppl-tokens 512", 3e-3, ALL);
    same_bits(model, OF_BUNDLED, any_cpu, ANY_CPU);
    same_bits_by_plugin(model);
}
Test(ggml_model, bundled_uneven) {
    need_one_layout();
    same_bits(bundled(), OF_BUNDLED, no_amx, NO_AMX);
}

/* In Q4_1, which has no other layout without AMX. */
static const char *smollm2(void) {
    const char *path = getenv("SHEAF_TEST_SMOLLM2");
    if (!path) cr_skip("SHEAF_TEST_SMOLLM2 does not name the file of SmolLM2-135M-Instruct");
    need_tree();
    return path;
}
#define OF_SMOLLM2 "--chat -p 'Explain why the sky is blue.' -n 32"

Test(ggml_model, smollm2) {
    const char *model = smollm2();
    same_text(model, OF_SMOLLM2, TWO);
    same_perplexity(model, "--ppl-tokens 258 -c 129", 1e-2, TWO);
    same_bits(model, OF_SMOLLM2, any_cpu, ANY_CPU);
}
Test(ggml_model, smollm2_uneven) {
    need_one_layout();
    same_bits(smollm2(), OF_SMOLLM2, no_amx, NO_AMX);
}
