/* A real model, odd on purpose (9 heads, 3 K/V heads, Q4_1), says the same on any number of ranks.
 *
 * scripts/test fetches SmolLM2-135M-Instruct and names its file in SHEAF_TEST_SMOLLM2. Where it cannot
 * be had the tests are skipped and say so. Splits differ in the order of sums only, so a token can
 * differ only where two candidates are tied to about six digits; the prompts are not chosen for
 * that. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpirun.h"
#include "sanitizer.h"

static const struct {
    int np;
    const char *split;
} worlds[] = {{1, "even"}, {2, "even"}, {3, "even"}, {4, "even"}, {2, "2,1"}};
enum { WORLDS = sizeof worlds / sizeof *worlds };
/* Under a sanitizer, with which a token takes twenty times as long: fewer worlds, prompts and tokens. */
enum {
    STEP = SANITIZED ? 2 : 1,
    PROMPTS = SANITIZED ? 1 : 3,
    TOKENS = SANITIZED ? 6 : 64,
    SCORED = SANITIZED ? 65 : 2056, /* tokens of a perplexity */
    CONTEXTS = SANITIZED ? 1 : 2
};

static const char *const prompts[3] = {
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue.",
};

static const char *model(void) {
    const char *path = getenv("SHEAF_TEST_SMOLLM2");
    if (!path) cr_skip("SHEAF_TEST_SMOLLM2 does not name the file of SmolLM2-135M-Instruct");
    return path;
}

/* The line of the output that begins with `head`. */
static void run_line(int world, const char *args, const char *head, char *line, size_t cap) {
    static char out[1 << 16];
    const int status =
        run_mpirun(worlds[world].np, "SHEAF_CPU_THREADS=1", 300, out, sizeof out,
                   "sheaf-run -m '%s' --split %s %s 2>&1", model(), worlds[world].split, args);
    cr_assert_eq(status, 0, "%d ranks, split %s: status %d: %s", worlds[world].np,
                 worlds[world].split, status, out);
    cr_assert(run_line_of(out, head, line, cap), "no line '%s': %s", head, out);
}

TestSuite(smollm2, .timeout = 600);

Test(smollm2, same_tokens_on_any_number_of_ranks) {
    for (size_t i = 0; i < PROMPTS; i++) {
        char args[512], want[4096], got[4096];
        snprintf(args, sizeof args, "--chat -p '%s' -n %d --ignore-eos --temp 0 --ids", prompts[i],
                 TOKENS);
        run_line(0, args, "\nids: ", want, sizeof want);
        for (int w = STEP; w < WORLDS; w += STEP) {
            run_line(w, args, "\nids: ", got, sizeof got);
            cr_expect_str_eq(got, want, "'%s' on %d ranks, split %s", prompts[i], worlds[w].np,
                             worlds[w].split);
        }
    }
}

/* With whole sums the logits of all worlds have the bits of one rank's without. */
Test(smollm2, same_bits_with_whole_sums) {
    char args[512], line[4096], files[2][64], cmd[256];
    for (int i = 0; i < 2; i++)
        snprintf(files[i], sizeof *files, "/tmp/sheaf-test-%d-%d.bin", (int)getpid(), i);
    snprintf(cmd, sizeof cmd, "cmp %s %s", files[0], files[1]);
    for (int w = 0; w < WORLDS; w += STEP) {
        snprintf(args, sizeof args, "--chat -p '%s' -n %d --temp 0 --ids --logits %s %s",
                 prompts[2], TOKENS / 2, files[w > 0], w ? "--split-sums whole" : "");
        run_line(w, args, "\nids: ", line, sizeof line);
        if (w) cr_expect_eq(system(cmd), 0, "%d ranks, split %s", worlds[w].np, worlds[w].split);
    }
    for (int i = 0; i < 2; i++) unlink(files[i]);
}

Test(smollm2, answers_a_question) {
    char line[4096];
    run_line(1, "--chat -p 'What is the capital of France?' -n 32 --temp 0", "Paris", line,
             sizeof line);
}

/* Equal to 4 digits over 2048 predictions. (Activations round to 16 bits: over 1024 that is half the limit.) */
Test(smollm2, same_perplexity_on_any_number_of_ranks) {
    double first = 0;
    for (int w = 0; w < WORLDS; w += STEP) {
        char args[256], line[4096];
        double nll = 0, perplexity = 0;
        snprintf(args, sizeof args,
                 "--perplexity '" SHEAF_SOURCE_DIR
                 "/tests/golden/heldout.txt' --ppl-tokens %d -c 257",
                 SCORED);
        run_line(w, args, "perplexity_tokens ", line, sizeof line);
        fprintf(stderr, "%d ranks, split %s: %s\n", worlds[w].np, worlds[w].split, line);
        cr_assert_eq(
            sscanf(line, "perplexity_tokens %*d nll %lf perplexity %lf", &nll, &perplexity), 2,
            "%s", line);
        if (w == 0) first = perplexity;
        cr_expect_float_eq(perplexity / first, 1, 5e-5, "%s, one rank: %f", line, first);
    }
}

/* sheaf-info's forecast for two members, of which the first has 6 heads and the second 3, against
 * what the ranks of a job allocate. */
Test(smollm2, memory_is_what_was_forecast) {
    static const int contexts[] = {256, 1024};
    static char out[1 << 16];
    for (int i = 0; i < CONTEXTS; i++) {
        char cmd[2048];
        snprintf(cmd, sizeof cmd,
                 "cd '%s/bin' && m='%s' && export SHEAF_CPU_THREADS=1 && mpirun "
                 "--allow-run-as-root --oversubscribe -np 2 ./sheaf-bench -m $m -p %d -n 0 -r 1 "
                 "--bandwidth 10 --no-warmup -o json > /tmp/$$.run 2> /dev/null && ./sheaf-info -m "
                 "$m --members 2 "
                 "--ctx %d --json > /tmp/$$.info 2> /dev/null && python3 -c 'import json, sys; "
                 "r = json.load(open(sys.argv[1]))[\"ranks\"]; "
                 "m = json.load(open(sys.argv[2]))[\"forecasts\"][0][\"members\"]; "
                 "q = [(x[\"compute_bytes\"], y[\"compute_bytes\"]) for x, y in zip(m, r)]; "
                 "assert len(q) == 2 and all(1 <= x / y < 1.01 for x, y in q), q' /tmp/$$.run "
                 "/tmp/$$.info; s=$?; rm -f /tmp/$$.run /tmp/$$.info; exit $s",
                 SHEAF_BUILD_DIR, model(), contexts[i], contexts[i]);
        cr_expect_eq(run_command(cmd, 200, out, sizeof out), 0, "%d: %s", contexts[i], out);
    }
}
