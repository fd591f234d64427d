/* sheaf-run on unlike devices: CPUs and far ones (tests/emulators/far), fast and slowed, cut by
 * shares and by measured speed. Its text and its perplexity are those of one CPU. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "mpirun.h"

#define FAR     "SHEAF_CPU_THREADS=1 SHEAF_BACKEND_PATH=" SHEAF_BUILD_DIR "/lib/modules/far "
#define TEXT    "-p 'the old man and the sea' -n 48 --temp 0 --ignore-eos --ids --kv-type f32 "
#define HELDOUT SHEAF_SOURCE_DIR "/tests/golden/heldout.txt"
#define PPL     "--perplexity " HELDOUT " --ppl-lines --ppl-tokens 512 --kv-type f32 "

static char out[1 << 16];

static const char *models[] = {SHEAF_SOURCE_DIR "/models/kjv-f32.gguf",
                               SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf"};

/* Standard error is left out, since mpirun mixes the streams. */
static void run(int np, const char *env, const char *model, const char *args) {
    char cmd[4096];
    int status;
    if (np) {
        status = run_mpirun(np, env, 120, out, sizeof out, "sheaf-run -m %s %s 2>/dev/null", model,
                            args);
    } else {
        snprintf(cmd, sizeof cmd, "exec env %s '%s'/bin/sheaf-run -m %s %s 2>&1", env,
                 SHEAF_BUILD_DIR, model, args);
        status = run_command(cmd, 120, out, sizeof out);
    }
    cr_assert_eq(status, 0, "%s: status %d\n%s", args, status, out);
}

static void line_of(const char *head, char *line, size_t cap) {
    cr_assert(run_line_of(out, head, line, cap), "no line '%s': %s", head, out);
}

static const struct {
    int np;
    const char *env, *args;
} worlds[] = {
    {0, FAR "SHEAF_TEST_FAR_DEVICES=1", "--devices Far0 --check"},
    {0, FAR "SHEAF_TEST_FAR_DEVICES=1", "--check"},
    {0, FAR "SHEAF_TEST_FAR_DEVICES=2", "--split 1,3,2 --check"},
    {0, FAR "SHEAF_TEST_FAR_DEVICES=2", "--split auto"},
    {0, FAR "SHEAF_TEST_FAR_DEVICES=1 SHEAF_TEST_FAR_SLOWDOWN=5", "--split auto"},
    {2, FAR "SHEAF_TEST_FAR_DEVICES=1", "--split auto"},
    {2, FAR "SHEAF_TEST_FAR_DEVICES=1 SHEAF_COMM_TRANSPORT=mpi", "--split 1,4,0,2 --check"},
};
enum { N_WORLDS = sizeof worlds / sizeof *worlds };

Test(mixed_run, the_same_tokens, .timeout = 300) {
    for (int m = 0; m < 2; m++) {
        char want[4096], got[4096];
        run(0, "SHEAF_CPU_THREADS=1", models[m], TEXT "--single");
        line_of("ids: ", want, sizeof want);
        for (int i = 0; i < N_WORLDS; i++) {
            char args[512];
            snprintf(args, sizeof args, TEXT "%s", worlds[i].args);
            run(worlds[i].np, worlds[i].env, models[m], args);
            line_of("ids: ", got, sizeof got);
            cr_assert_str_eq(got, want, "%d ranks, %s, %s", worlds[i].np, worlds[i].env, args);
        }
    }
}

static double perplexity(int np, const char *env, const char *more) {
    char args[512], line[512];
    double p = 0;
    snprintf(args, sizeof args, PPL "%s", more);
    run(np, env, models[0], args);
    line_of("perplexity_tokens ", line, sizeof line);
    cr_assert_eq(sscanf(line, "perplexity_tokens %*d nll %*f perplexity %lf", &p), 1, "%s", line);
    return p;
}

Test(mixed_run, the_same_perplexity, .timeout = 300) {
    const double want = perplexity(0, "SHEAF_CPU_THREADS=1", "--single");
    cr_assert_gt(want, 1);
    for (int i = 0; i < N_WORLDS; i++)
        cr_assert_float_eq(perplexity(worlds[i].np, worlds[i].env, worlds[i].args) / want, 1, 1e-5,
                           "%s %s", worlds[i].env, worlds[i].args);
}

/* The slowed device gets less than the other: its own measured speed counts, not its kind. */
Test(mixed_run, auto_gives_the_slow_one_less, .timeout = 300) {
    double cpu = 0, far = 0;
    char line[512];
    for (int tries = 0; tries < 3 && !(far > 0 && 2 * far < cpu);
         tries++) { /* others use the cores */
        run(0, FAR "SHEAF_TEST_FAR_DEVICES=1 SHEAF_TEST_FAR_SLOWDOWN=8", models[0],
            TEXT "--split auto");
        line_of("split       auto: ", line, sizeof line);
        cr_assert_eq(sscanf(line, "split       auto: %lf : %lf %%", &cpu, &far), 2, "%s", line);
    }
    cr_assert(far > 0 && 2 * far < cpu, "CPU %f, slowed %f", cpu, far);
}

/* A rank whose device is late is the one that the others wait for: also the second of its host, and one
 * whose first device has as little to do as those of the others. */
Test(mixed_run, names_the_rank_of_a_late_device, .timeout = 300) {
    static const struct {
        int np, late;
        const char *hosts, *devices;
    } cases[] = {
        {4, 3, "hosts:0,0,1,1", "Far0@0,Far0@1,Far0@2,Far0@3"},
        {4, 1, "hosts:0,0,1,1", "Far0@0,Far0@1,Far0@2,Far0@3"},
        {2, 0, "auto", "CPU0@0,Far0@0,CPU0@1,Far0@1"},
    };
    static const char *const tools[][2] = {{"sheaf-run", "-p 'And' -n 1 --ignore-eos --temp 0"},
                                           {"sheaf-bench", "-p 0 -n 1 -r 1"}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const int k = (int)(i / 2), tool = (int)(i % 2);
        char cmd[2048], want[32];
        snprintf(cmd, sizeof cmd,
                 "exec env " FAR "SHEAF_TEST_FAR_DEVICES=1 SHEAF_COMM_TRANSPORT=%s mpirun "
                 "--allow-run-as-root --oversubscribe -np %d sh -c "
                 "'[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = %d ] && export "
                 "SHEAF_TEST_FAR_LATE=10; exec %s/bin/%s -m %s --devices %s %s'",
                 cases[k].hosts, cases[k].np, cases[k].late, SHEAF_BUILD_DIR, tools[tool][0],
                 models[1], cases[k].devices, tools[tool][1]);
        snprintf(want, sizeof want, "rank %d (", cases[k].late);
        bool named = false;
        /* other jobs use the cores and may hold up another rank */
        for (int tries = 0; tries < 3 && !named; tries++) {
            cr_assert_eq(run_command(cmd, 120, out, sizeof out), 0, "%s\n%s", cmd, out);
            const char *line = strstr(out, "straggler ");
            named = line && strstr(line, want);
        }
        cr_expect(named, "%s\n%s", cmd, out);
    }
}

/* A device that lacks an op: the message names the node, the op, the weight with its type, and the
 * devices, before anything is loaded. */
Test(mixed_run, an_op_that_no_device_has) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd,
             "exec env " FAR "SHEAF_TEST_FAR_REFUSES=MUL_MAT '%s'/bin/sheaf-run -m %s -p x 2>&1",
             SHEAF_BUILD_DIR, models[1]);
    cr_assert_neq(run_command(cmd, 60, out, sizeof out), 0, "%s", out);
    cr_expect(strstr(out, "kjv-q8_0.gguf: MUL_MAT '"), "%s", out);
    cr_expect(
        strstr(out, "with 'blk.0.attn_q.weight' of type q8_0 is not computed by every device"),
        "%s", out);
    cr_expect(strstr(out, "asked: CPU0@0"), "%s", out);
    cr_expect(strstr(out, "@0. Leave devices out with --devices"), "%s", out);
}
