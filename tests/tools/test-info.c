/* sheaf-info's forecasts: memory against what a run takes, models without a file, JSON, order. Plans and
 * pictures: test-plan.c. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpirun.h"

#include "info/check.c"
#include "info/copies.c"

#define MODEL SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf"

static char out[1 << 16];

static int command(const char *cmd) { return run_command(cmd, 120, out, sizeof out); }

static int info(const char *args) {
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "exec '%s'/bin/sheaf-info %s", SHEAF_BUILD_DIR, args);
    return command(cmd);
}

/* Weights, caches, results and inputs are those of a run that fills the context: never less than it
 * allocates, and at most a hundredth more. */
static void memory_is_what_a_run_takes(int n_ctx, int n_batch) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd,
             "cd '%s/bin' && export SHEAF_CPU_DEVICES=2 SHEAF_CPU_THREADS=1 && "
             "./sheaf-bench -m " MODEL
             " -p %d -n 0 -r 1 -b %d --bandwidth 10 --no-warmup -o json > /tmp/$$.run "
             "2> /dev/null && ./sheaf-info -m " MODEL " --members 2 --ctx %d --batch %d --json > "
             "/tmp/$$.info 2> /dev/null && python3 -c 'import json, sys; "
             "r = json.load(open(sys.argv[1]))[\"ranks\"][0]; "
             "m = json.load(open(sys.argv[2]))[\"forecasts\"][0][\"members\"]; "
             "w = sum(x[\"weight_bytes\"] for x in m); c = sum(x[\"compute_bytes\"] for x in m); "
             "assert len(m) == 2 and w == r[\"weight_bytes\"], (w, r); "
             "assert 1 <= c / r[\"compute_bytes\"] < 1.01, (c, r); "
             "assert sum(x[\"cache_bytes\"] for x in m) == 4 * 2 * 4 * 32 * 2 * %d, m' "
             "/tmp/$$.run /tmp/$$.info; s=$?; rm -f /tmp/$$.run /tmp/$$.info; exit $s",
             SHEAF_BUILD_DIR, n_ctx, n_batch, n_ctx, n_batch, n_ctx);
    cr_assert_eq(command(cmd), 0, "%d, %d: %s", n_ctx, n_batch, out);
}

Test(info, memory_is_what_a_run_takes, .timeout = 120) {
    memory_is_what_a_run_takes(200, 128);
    memory_is_what_a_run_takes(1536, 512); /* most of it is the mask */
}

/* The parts of a predicted time, as printed, add up to it. */
Test(info, parts_of_a_time_are_the_whole, .timeout = 60) {
    cr_assert_eq(info("-m " MODEL " --members 4 --link 10gbe"), 0, "%s", out);
    for (int i = 0; i < 2; i++) {
        double ms = 0, reading = 0, arithmetic = 0, collectives = 0, spans = 0;
        const char *line = strstr(out, i ? "\nprompt " : "\ngeneration ");
        cr_assert(line, "%s", out);
        const int n = sscanf(strchr(line, ';'),
                             "; %lf ms: reading %lf, arithmetic %lf (the longer counts), "
                             "collectives %lf, %*d spans %lf;",
                             &ms, &reading, &arithmetic, &collectives, &spans);
        cr_assert_eq(n, 5, "%s", line);
        const double sum = (reading > arithmetic ? reading : arithmetic) + collectives + spans;
        cr_expect(ms > sum - 0.025 && ms < sum + 0.025, "%g, not %g: %s", ms, sum, line);
        cr_expect(spans > 0, "%s", line);
    }
}

/* Sizes of known models, and what more members give. Q4_K_M files of these models have 42.5, 243, 142
 * and 404 GB. */
Test(info, presets, .timeout = 600) {
    static const struct {
        const char *name;
        double gb;
    } models[] = {
        {"llama-70b", 42.5}, {"llama-405b", 243}, {"qwen3-235b-a22b", 142}, {"deepseek-v3", 404}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char cmd[1024];
        snprintf(cmd, sizeof cmd,
                 "'%s/bin/sheaf-info' --preset %s --members 1,2,8 --link 100gbe --json | python3 "
                 "-c 'import json, sys; d = json.load(sys.stdin); f = d[\"forecasts\"]; "
                 "assert abs(d[\"weight_bytes\"] / 1e9 / %g - 1) < 0.02, d[\"weight_bytes\"]; "
                 "assert [x[\"n_members\"] for x in f] == [1, 2, 8]; "
                 "t = [x[\"generation\"][\"tokens_per_s\"] for x in f]; assert t == sorted(t), t; "
                 "assert all(abs(max(g[\"read_s\"], g[\"arithmetic_s\"]) + g[\"collective_s\"] + "
                 "g[\"spans_s\"] - g[\"seconds\"]) < 1e-8 for x in f for g in "
                 "(x[\"generation\"], x[\"prompt\"])), f; "
                 "b = [max(m[\"weight_bytes\"] for m in x[\"members\"]) for x in f]; "
                 "assert b == sorted(b, reverse=True) and b[1] < 0.55 * b[0], b; "
                 "assert f[0][\"generation\"][\"collectives\"] == 0'",
                 SHEAF_BUILD_DIR, models[i].name, models[i].gb);
        cr_expect_eq(command(cmd), 0, "%s: %s", models[i].name, out);
    }
    cr_expect_eq(info("--preset nothing"), 2);
    cr_expect(strstr(out, "there is no preset 'nothing': give one of ") &&
                  strstr(out, "deepseek-v3"),
              "%s", out);
    /* weights that a product gathers */
    cr_expect_eq(info("--preset phi3-mini --mix Q4_K_M --members 3,8 --link 10gbe"), 0, "%s", out);
    /* more members than heads */
    cr_expect_eq(info("--preset llama-405b --members 512 --plan --link 10gbe"), 0, "%s", out);
    cr_expect(strstr(out, "S1 {32(x512)}   as given\n") && strstr(out, "\n  try: "),
              "a reason is not cut short by many members");
    cr_expect_eq(info("--preset llama-8b --members 3,300 --link 10gbe --bandwidth 200"), 0);
    cr_expect(strstr(out, "\n     300 "), "%s", out);
    cr_expect(strstr(out, "model          llama-8b\n"), "%s", out);
}

/* Members with the same numbers are a row, if they are many. */
Test(info, rows_of_many_members, .timeout = 60) {
    cr_assert_eq(info("--preset llama-8b --members 64"), 0, "%s", out);
    cr_expect(strstr(out, "\n0        - ") && strstr(out, "\n1..19    - "), "%s", out);
    cr_expect_not(strstr(out, "\n2  "), "%s", out);
    cr_assert_eq(info("--preset llama-8b --members 4"), 0, "%s", out);
    cr_expect(strstr(out, "\n2        - ") && strstr(out, "\n3        - "), "%s", out);
}

/* Text stands before the message that ends a tool. */
Test(info, a_message_behind_the_text, .timeout = 60) {
    cr_assert_eq(info("-m " MODEL " --members 2 --plan --plan-dot /dev/full"), 1, "%s", out);
    const char *message = strstr(out, "\nsheaf-info: --plan-dot: cannot write /dev/full");
    cr_expect(message && !strchr(message + 1, '\n')[1], "%s", out);
    cr_assert_eq(info("--preset bge-base --members 1,2"), 0, "%s", out);
    cr_expect(strstr(out, " KiB/batch "), "an encoder has no single tokens: %s", out);
}

/* What a model does not have is not printed. */
Test(info, what_models_are_made_of, .timeout = 60) {
    static const struct {
        const char *preset, *has, *lacks;
    } cases[] = {
        {"bge-base", "12 on 12 key/value heads", "rotary"},
        {"bge-base", "vocabulary     30522\n", "tied"},
        {"mamba2-2.7b", "states         in 64 layers: 80 heads in 1 group, 64 x 128", "\nheads"},
        {"mamba2-2.7b", "n_embd         2560", "n_ff"},
        {"granite-4-tiny", "states         in 27 layers: 24 heads in 4 groups", NULL},
        {"granite-4-tiny", "heads          12 on 4 key/value heads", NULL},
        {"deepseek-v3", "heads          128, keys and values latent: 512 elements", "on 1 key"},
        {"deepseek-v3", "n_ff           18432\nexperts        256, 8 for a token, n_ff 2048", NULL},
        {"qwen3-30b-a3b", "experts        128, 8 for a token, n_ff 768", "\nn_ff"},
        {"gpt-oss-20b", "window         128 tokens; 1 layer in 2 attends to all", "2th"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[64];
        snprintf(args, sizeof args, "--preset %s --members 1", cases[i].preset);
        cr_assert_eq(info(args), 0, "%s", out);
        cr_expect(strstr(out, cases[i].has), "%s lacks %s: %s", args, cases[i].has, out);
        cr_expect(!cases[i].lacks || !strstr(out, cases[i].lacks), "%s has %s: %s", args,
                  cases[i].lacks, out);
    }
}

/* The summary comes first; tensors only if asked for, blk.2 before blk.10. */
Test(info, summary_first, .timeout = 120) {
    char cmd[1024];
    cr_assert_eq(info("-m " MODEL), 0, "%s", out);
    cr_expect(strstr(out, "\nmember   device ") && strstr(out, " free\n0        CPU0@0"), "%s",
              out);
    cr_expect_not(strstr(out, "blk.0."), "%s", out);
    snprintf(
        cmd, sizeof cmd,
        "m=/tmp/$$.gguf; cd '%s/bin' && ./sheaf-make-model -o $m --layers 11 && ./sheaf-info -m "
        "$m --members 2 --tensors | grep -n attn_q.weight | head -3; s=$?; rm $m; exit $s",
        SHEAF_BUILD_DIR);
    cr_assert_eq(command(cmd), 0, "%s", out);
    const char *a = strstr(out, "blk.0."), *b = strstr(out, "blk.1."), *c = strstr(out, "blk.2.");
    cr_expect(a && a < b && b < c, "%s", out);
}

/* One process plans for as many members as --split has shares. */
Test(info, members_of_the_shares, .timeout = 60) {
    cr_assert_eq(info("-m " MODEL " --split 3,1 --plan"), 0, "%s", out);
    cr_expect(strstr(out, "over a cache of 256, 2 members"), "%s", out);
    cr_assert_eq(info("-m " MODEL " --split 3,1,0,2"), 0, "%s", out);
    cr_expect(strstr(out, "\n3        - ") && !strstr(out, "\n4        - "), "%s", out);
    cr_assert_eq(info("--preset llama-8b --split 3,1"), 0, "%s", out);
    cr_expect(strstr(out, "\n1        - ") && !strstr(out, "\n2        - "), "%s", out);
    cr_expect_eq(info("-m " MODEL " --devices CPU0 --split 3,1"), 1, "%s", out);
    cr_expect(strstr(out, "2 numbers, but there is 1 member"), "%s", out);
    cr_expect_eq(info("-m " MODEL " --split 3,x"), 2, "%s", out);
}

/* It looks at one host only, and nothing is missing that mpirun would have. */
Test(info, check_without_mpirun, .timeout = 60) {
    cr_assert_eq(info("--check"), 0, "%s", out);
    cr_expect(strstr(out, "\none process without mpirun: "), "%s", out);
    cr_expect(strstr(out, "\nfit: 1 rank on 1 host\n"), "%s", out);
    cr_expect_not(strstr(out, "\nwithout "), "%s", out);
}

/* Also of the last of many hosts, which had none beyond 64 links. */
/* mpirun binds one rank, or two, to a core each. */
static void bind_to(const char *to, const char *env) {
    char cmd[512];
    snprintf(cmd, sizeof cmd,
             "exec env %s mpirun --allow-run-as-root --oversubscribe --bind-to %s -np 1 "
             "'" SHEAF_BUILD_DIR "/bin/sheaf-info'",
             env, to);
    cr_expect_eq(run_command(cmd, 30, out, sizeof out), 0, "%s", out);
}
Test(info, cores_that_the_launcher_leaves_idle, .timeout = 60) {
    static const char text[] = "the 1 rank of this host is bound to 1 of its ";
    if (run_by_mpich()) cr_skip_test("MPICH binds no ranks");
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) cr_skip_test("a machine of one processor");
    bind_to("core", "");
    cr_expect(strstr(out, text), "%s", out);
    bind_to("core", "SHEAF_CPU_THREADS=1");
    cr_expect(!strstr(out, text), "%s", out);
    bind_to("none", "");
    cr_expect(!strstr(out, text), "%s", out);
}

Test(info, links_of_every_host_are_checked) {
    static struct link links[1 << 13];
    static const int counts[][2] = {{1, 0}, {2, 1}, {11, 55}, {12, 21}, {40, 77}, {1000, 1997}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int hosts = counts[i][0], n = choose_links(hosts, NULL);
        cr_assert_eq(n, counts[i][1], "%d hosts: %d", hosts, n);
        cr_assert_eq(choose_links(hosts, links), n);
        for (int h = 0; h + 1 < hosts; h++) {
            bool next = false, first = false;
            for (int k = 0; k < n; k++) {
                next = next || (links[k].a == h && links[k].b == h + 1);
                first = first || (links[k].a == 0 && links[k].b == h + 1);
            }
            cr_expect(next && first, "host %d of %d", h, hosts);
        }
    }
}

/* A host with many bridges shares a network that is not among the first of its interfaces. */
Test(info, networks_beyond_the_first_count) {
    static struct facts a, b, none;
    for (uint32_t i = 0; i < 20; i++) add_net(&a, "br", 0xc0a80001 + (i << 8), 0xffffff00);
    add_net(&a, "ib0", 0x0a000001, 0xff000000);
    add_net(&b, "ib0", 0x0a000002, 0xff000000);
    add_net(&none, "eth0", 0xac100001, 0xffff0000);
    cr_expect(shares_a_net(&a, &b) && shares_a_net(&b, &a));
    cr_expect_not(shares_a_net(&a, &none));
    for (uint32_t i = 0; i < 100; i++) add_net(&a, "br", 0xc0a90001 + (i << 8), 0xffffff00);
    cr_expect(shares_a_net(&a, &none), "more than are kept: it may");
}

/* As sheaf-run has it. */
Test(info, a_context_of_0_is_the_whole, .timeout = 60) {
    cr_assert_eq(info("-m " MODEL " --members 2 --ctx 0 --json"), 0, "%s", out);
    cr_expect(strstr(out, "\"context\": 256,"), "%s", out);
    cr_assert_eq(info("--preset llama-8b --members 2 --ctx 0 --json"), 0, "%s", out);
    cr_expect(strstr(out, "\"context\": 131072,"), "%s", out);
    cr_assert_eq(info("--preset llama-8b --members 2 --json"), 0, "%s", out);
    cr_expect(strstr(out, "\"context\": 4096,"), "%s", out);
}

Test(info, what_does_not_go_together, .timeout = 60) {
    static const char *const cases[][2] = {
        {"--members 2", "want a model (-m) or --preset"},
        {"--json", "want a model (-m) or --preset"},
        {"-m " MODEL " --preset llama-8b", "one of -m and --preset"},
        {"-m " MODEL " --members 1,2 --plan", "want one number of --members"},
        {"-m " MODEL " --json --plan", "leave out --plan"},
        {"-m " MODEL " --members 2 --gflops 0", "--gflops wants a number"},
        {"-m " MODEL " --members 1,x", "--members wants at most"},
        {"-m " MODEL " --link foo", "--link is shm, 1gbe"},
        {"--past 9", "--link, --bandwidth, --gflops and --past want a model"},
        {"--link 10gbe", "--link, --bandwidth, --gflops and --past want a model"},
        {"--bandwidth 10", "--link, --bandwidth, --gflops and --past want a model"},
        {"-m " MODEL " --mix Q8_0", "--mix wants --preset"},
        {"--check -m " MODEL " --members 3", "--check looks at the hosts"},
        {"--check -m " MODEL " --split 3,1", "--check looks at the hosts"},
        {"--check -m " MODEL " --ctx 8192", "--check looks at the hosts"},
        {"--postmortem /nowhere -m " MODEL, "--postmortem reads dumps only"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(info(cases[i][0]), 2, "%s: %s", cases[i][0], out);
        cr_expect(strstr(out, cases[i][1]), "%s: %s", cases[i][0], out);
    }
}

/* A picture in the place of the model would be the end of the model. */
Test(info, the_picture_is_not_the_model, .timeout = 60) {
    cr_expect_eq(command("m=/tmp/$$.gguf; cp " MODEL " $m; '" SHEAF_BUILD_DIR
                         "/bin/sheaf-info' -m $m --plan-dot $m; s=$?; cmp $m " MODEL
                         " || s=9; rm $m; exit $s"),
                 1, "%s", out);
    cr_expect(strstr(out, "are the same file: give --plan-dot another name"), "%s", out);
}

/* A mistake is not looked for under what the devices print. */
Test(info, says_nothing_before_a_wrong_name, .timeout = 60) {
    static const char error[] = "sheaf-info: --layer 99: the model's layers are 0..3\n";
    cr_expect_eq(info("-m " MODEL " --plan --layer 99"), 1);
    cr_expect_str_eq(out, error, "%s", out);
    cr_expect_eq(info("-m " MODEL " --split 3,1 --members 2,3"), 2);
    cr_expect(strstr(out, "sheaf-info: --split 3,1 has 2 numbers, but there are 3 members") == out,
              "%s", out);
    cr_expect_eq(info("-m /nowhere.gguf"), 1);
    cr_expect(strstr(out, "sheaf-info: cannot open /nowhere.gguf") == out, "%s", out);
}

/* A row of docs/scaling.md is what scripts/scaling-table writes. */
Test(info, the_tables_in_the_documents, .timeout = 120) {
    static char doc[1 << 16];
    cr_assert_eq(command("exec '" SHEAF_SOURCE_DIR "/scripts/scaling-table' llama-8b 10gbe"), 0,
                 "%s", out);
    FILE *f = fopen(SHEAF_SOURCE_DIR "/docs/scaling.md", "r");
    cr_assert_not_null(f);
    doc[fread(doc, 1, sizeof doc - 1, f)] = 0;
    fclose(f);
    cr_expect(strstr(doc, out), "docs/scaling.md is old: run scripts/scaling-table; now: %s", out);
}
