/* Plans as users see them: described through the public header, printed and drawn by sheaf-info,
 * the same on every rank, affordable for many members. */
#include <criterion/criterion.h>

#include "cpu_members.h"
#include "golden_text.h"
#include "meta_scenario.h"
#include "mpirun.h"
#include "sanitizer.h"

enum { OUT = 1 << 18 };
static char out[OUT];

/* ---- describing ---- */

struct seen {
    int steps, nodes, conversions, collectives, last_span, stop_after, made[4096];
    int64_t bytes;
    char why[1024];
    bool good;
};

static bool see(const struct sheaf_backend_meta_step *step, void *user) {
    struct seen *s = user;
    s->good = s->good && step->size == sizeof *step && step->index == s->steps;
    s->good = s->good && step->span >= s->last_span && step->span <= s->last_span + 1;
    s->good = s->good && step->out.number >= 0 && step->out.tensor && step->out.state;
    s->good = s->good && step->out.number < 4096 && step->node >= 0;
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        const struct sheaf_backend_meta_value *v = &step->in[i];
        const bool leaf = v->number >= 0 && v->tensor->op == SHEAF_OP_NONE;
        if (v->number >= 0 && !leaf)
            s->good = s->good && s->made[v->number]; /* before it is read */
    }
    if (s->good) s->made[step->out.number] = 1;
    if (step->kind == SHEAF_SPLIT_STEP_NODE) {
        s->good = s->good && step->bytes == 0;
        s->nodes++;
    } else {
        s->good = s->good && step->bytes > 0 && step->in[0].number >= 0;
        s->conversions++;
    }
    if (step->kind == SHEAF_SPLIT_STEP_COLLECTIVE) {
        s->collectives++;
        s->bytes += step->bytes;
    }
    if (step->why) snprintf(s->why, sizeof s->why, "%s", step->why);
    s->last_span = step->span;
    s->steps++;
    return s->steps != s->stop_after;
}

/* Three products over 2 members, cut so that one of them needs a gather. */
struct small {
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *x;
};

static struct small small_graph(void) {
    struct small g;
    g.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
    g.graph = sheaf_new_graph_custom(g.ctx, 16);
    g.x = sheaf_set_name(sheaf_new_tensor_2d(g.ctx, SHEAF_TYPE_F32, 8, 3), "x");
    sheaf_set_input(g.x);
    struct sheaf_tensor *up =
        sheaf_set_name(sheaf_new_tensor_2d(g.ctx, SHEAF_TYPE_F32, 8, 12), "up");
    struct sheaf_tensor *down =
        sheaf_set_name(sheaf_new_tensor_2d(g.ctx, SHEAF_TYPE_F32, 12, 8), "down");
    struct sheaf_tensor *y = sheaf_set_name(sheaf_mul_mat(g.ctx, up, g.x), "y");
    y = sheaf_set_name(sheaf_mul_mat(g.ctx, down, sheaf_silu(g.ctx, y)), "z");
    sheaf_set_output(y);
    cr_assert_eq(sheaf_build_forward_expand(g.graph, y), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    return g;
}

struct cuts {
    int64_t up[2], down[2];
};

static enum sheaf_status small_state(const struct sheaf_tensor *t, const void *user,
                                     struct sheaf_split_state **state) {
    const struct cuts *c = user;
    cr_assert(strcmp(t->name, "x") != 0, "inputs are mirrored without being asked for");
    *state = strcmp(t->name, "up") == 0 ? sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, 2, c->up, 1)
                                        : sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, c->down, 1);
    return SHEAF_STATUS_SUCCESS;
}

Test(plan_description, steps_come_in_order) {
    struct small g = small_graph();
    struct seen s = {.good = true};
    struct cuts cuts = {{4, 8}, {4, 8}};
    cr_assert_eq(sheaf_backend_meta_describe_plan(g.graph, 2, small_state, &cuts, see, &s),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect(s.good);
    cr_expect_eq(s.nodes, 3);
    cr_expect_eq(s.collectives, 1);
    cr_expect_eq(s.bytes, 8 * 3 * 4);
    cr_expect_str_empty(s.why);
    struct seen some = {.good = true, .stop_after = 2};
    cr_assert_eq(sheaf_backend_meta_describe_plan(g.graph, 2, small_state, &cuts, see, &some), 0);
    cr_expect_eq(some.steps, 2);
    sheaf_free(g.ctx);
}

Test(plan_description, a_gather_says_why) {
    struct small g = small_graph();
    struct seen s = {.good = true};
    struct cuts cuts = {{4, 8}, {6, 6}};
    cr_assert_eq(sheaf_backend_meta_describe_plan(g.graph, 2, small_state, &cuts, see, &s), 0);
    cr_expect(s.good);
    cr_expect(strstr(s.why, "give 'up' the cut of 'down'"), "%s", s.why);
    sheaf_free(g.ctx);
}

static enum sheaf_status refuse(const struct sheaf_tensor *t, const void *user,
                                struct sheaf_split_state **state) {
    (void)user;
    *state = NULL;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "no words for %s", t->name);
}

Test(plan_description, failures) {
    struct small g = small_graph();
    struct seen s = {.good = true};
    struct cuts bad = {{4, 7}, {4, 8}};
    cr_expect_eq(sheaf_backend_meta_describe_plan(g.graph, 2, refuse, NULL, see, &s),
                 SHEAF_STATUS_UNSUPPORTED);
    cr_expect_eq(strncmp(sheaf_last_error(), "no words for ", 13), 0, "%s", sheaf_last_error());
    cr_expect_eq(sheaf_backend_meta_describe_plan(g.graph, 2, small_state, &bad, see, &s),
                 SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "'up'"), "%s", sheaf_last_error());
    cr_expect_eq(sheaf_backend_meta_describe_plan(NULL, 2, refuse, NULL, see, &s),
                 SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_backend_meta_describe_plan(g.graph, 0, refuse, NULL, see, &s),
                 SHEAF_STATUS_INVALID);
    cr_expect_eq(s.steps, 0);
    const struct sheaf_backend_meta_step step = {.kind = SHEAF_SPLIT_STEP_COLLECTIVE,
                                                 .collective = SHEAF_COMM_ALL_REDUCE};
    cr_expect_str_eq(sheaf_backend_meta_step_name(&step), "all-reduce");
    sheaf_free(g.ctx);
}

/* ---- many members ---- */

/* 64 members of one process: most own nothing of the small cuts. What the device runs is what was
 * described. */
Test(plan_many, sixty_four_members_compute_what_one_does, .timeout = 300) {
    const sheaf_backend_dev_t *members = cpu_members(64);
    cr_assert(run_meta_scenario(members, 64, SHEAF_TYPE_F32, false));
    cr_assert(run_meta_scenario(members, 64, SHEAF_TYPE_F16, true));
}

Test(plan_many, what_is_described_is_what_runs) {
    const sheaf_backend_dev_t *members = cpu_members(4);
    for (size_t n = 1; n <= 4; n++) {
        struct scenario_policy policy = {(int)n, false};
        sheaf_backend_dev_t meta;
        sheaf_backend_t backend;
        struct scenario_model model = {0};
        struct scenario_graph g;
        struct scenario_result result;
        struct seen s = {.good = true};
        struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
        cr_assert_eq(sheaf_backend_meta_device(members, n, scenario_state, &policy, NULL, &meta),
                     0);
        cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), 0);
        cr_assert(scenario_load(&model, backend, SHEAF_TYPE_F32));
        cr_assert(scenario_graph(&g, &model, N_TOKENS));
        cr_assert_eq(
            sheaf_backend_meta_describe_plan(g.graph, (int)n, scenario_state, &policy, see, &s),
            SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
        sheaf_backend_meta_reset_stats(backend);
        cr_assert(scenario_compute(&g, backend, galloc, 1, &result));
        sheaf_backend_meta_get_stats(backend, &stats);
        cr_expect(s.good);
        if (n > 1) cr_expect_gt(s.collectives, 0);
        cr_expect_eq(stats.n_plans, 1);
        /* reading results gathers too, at most once for each of the four */
        cr_expect_geq(stats.n_collectives, (uint64_t)s.collectives);
        cr_expect_leq(stats.n_collectives, (uint64_t)s.collectives + 4);
        sheaf_gallocr_free(galloc);
        sheaf_free(g.ctx);
        scenario_unload(&model);
        sheaf_backend_free(backend);
        sheaf_backend_meta_device_free(meta);
    }
}

/* Noise of a busy machine may spoil one measurement, not three. */
Test(plan_many, planning_is_linear_in_the_members, .timeout = 300) {
    int status = 1;
    for (int i = 0; i < 3 && status; i++)
        status = run_command(SHEAF_BUILD_DIR "/bin/bench-plan-cost --check", 90, out, OUT);
    cr_assert_eq(status, 0, "%s", out);
    cr_assert(strstr(out, "| 1024 |"), "%s", out);
    cr_assert_eq(run_command(SHEAF_BUILD_DIR "/bin/bench-plan-cost --nonsense", 9, out, OUT), 2);
}

/* ---- the same plan on all ranks ---- */

Test(plan_ranks, another_graph_is_refused_with_a_message) {
    const char *const cases[] = {"shape", "op", "cut", "nodes"};
    for (int i = 0; i < 4; i++) {
        const int status =
            run_mpirun(2, "SHEAF_CPU_THREADS=1", 60, out, OUT, "helper-diverge %s", cases[i]);
        cr_expect_gt(status, 0, "%s: status %d\n%s", cases[i], status, out);
        cr_expect(strstr(out, "graph: rank 1 ("), "%s:\n%s", cases[i], out);
        cr_expect(strstr(out, "has another graph than rank 0"), "%s:\n%s", cases[i], out);
        cr_expect(strstr(out, "start the same program with the same model and options everywhere"),
                  "%s:\n%s", cases[i], out);
        cr_expect(!strstr(out, "computed"), "%s:\n%s", cases[i], out);
    }
    cr_expect_eq(run_mpirun(2, "SHEAF_CPU_THREADS=1", 60, out, OUT, "helper-diverge same"), 0, "%s",
                 out);
    cr_expect(strstr(out, "computed"), "%s", out);
}

/* ---- sheaf-info --plan ---- */

#define MODEL SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf"

static int info(const char *args) {
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "SHEAF_CPU_DEVICES=2 SHEAF_CPU_THREADS=1 '%s'/bin/sheaf-info %s",
             SHEAF_BUILD_DIR, args);
    return run_command(cmd, 60, out, OUT);
}

static int count(const char *text) {
    int n = 0;
    for (const char *p = out; (p = strstr(p, text)); p += strlen(text)) n++;
    return n;
}

Test(plan_info, prints_cuts_spans_collectives_and_time) {
    cr_assert_eq(info("-m " MODEL " --plan --layer 2"), 0, "%s", out);
    cr_expect(strstr(out, "plan of 1 token over a cache of 256, 2 members"), "%s", out);
    cr_expect(strstr(out, "layers 1..3, each"), "%s", out);
    cr_expect(strstr(out, "all-reduce      layer  P -> M  1024 bytes"), "%s", out);
    cr_expect(strstr(out, "9 all-reduce of 9216 bytes together"), "%s", out);
    cr_expect(strstr(out, "attn-2 "), "%s", out);
    cr_expect(!strstr(out, "attn-1 "), "%s", out);
    cr_expect(strstr(out, "tokens a second"), "%s", out);
    const char *rate = strstr(out, "MiB of weights and cache on member ");
    double gb_s = 0;
    cr_assert(rate && sscanf(rate, "MiB of weights and cache on member %*d at %lf GB/s (measured",
                             &gb_s) == 1,
              "%s", out);
    cr_expect(gb_s > 1e-3 && gb_s < 1e5, "%s", out);
    cr_expect(strstr(out, "shm: 1 us a message, 5 GB/s, assumed"), "%s", out);
}

Test(plan_info, members_that_the_job_does_not_have) {
    cr_assert_eq(info("-m " MODEL " --plan --members 3 --split 2,1,1 --tokens 16 --past 48 "
                      "--link 15,1.17 --bandwidth 60"),
                 0, "%s", out);
    cr_expect(strstr(out, "plan of 16 tokens over a cache of 64, 3 members"), "%s", out);
    cr_expect(strstr(out, "link: 15 us a message, 1.17 GB/s, as given"), "%s", out);
    cr_expect(strstr(out, "60.00 GB/s (as given)"), "%s", out);
    cr_expect(strstr(out, "S0 {4,2,2}x32"), "%s", out);
    /* 64 members on 8 heads: some have no head, and the plan still has only reductions */
    cr_assert_eq(info("-m " MODEL " --plan --members 64 --link roce"), 0, "%s", out);
    cr_expect_eq(count("all-gather"), 0, "%s", out);
    cr_expect_eq(count("9 all-reduce"), 1, "%s", out);
}

Test(plan_info, one_member_talks_to_nobody) {
    cr_assert_eq(info("-m " MODEL " --plan --members 1"), 0, "%s", out);
    cr_expect(strstr(out, "collectives    none\nspans          1\n"), "%s", out);
}

Test(plan_info, links_are_measured_between_ranks) {
    cr_assert_eq(
        run_mpirun(2, "SHEAF_CPU_THREADS=1", 60, out, OUT, "sheaf-info -m " MODEL " --plan"), 0,
        "%s", out);
    cr_expect(strstr(out, "measured over shm(2)"), "%s", out);
    cr_expect_eq(count("predicted time"), 1, "%s", out);
}

/* A product whose operands fit, a sum that is put off, a write into the cache, and a product cut
 * against its weight: the text is what a person reads, so it is compared whole. */
Test(plan_info, explains_what_was_considered) {
    static const char *const args[] = {"--members 3 --explain attn_out-1",
                                       "--members 3 --explain layer-1", "--members 3 --explain 50",
                                       "--members 2 --tokens 16 --explain ffn_out-0",
                                       "--members 2 --explain 66"};
    static char all[1 << 14];
    size_t at = 0;
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        char cmd[256];
        snprintf(cmd, sizeof cmd, "-m " MODEL " --plan %s", args[i]);
        cr_assert_eq(info(cmd), 0, "%s", out);
        const char *text = strstr(out, "\nnode ");
        cr_assert_not_null(text, "%s", out);
        at += (size_t)snprintf(all + at, sizeof all - at, "%s\n%s\n", args[i], text + 1);
        cr_assert_lt(at, sizeof all);
    }
    expect_golden_text(GOLDEN_FILE("explain.txt"), all);
}

/* The whole graph moves what the plan's totals say. */
Test(plan_info, the_explanation_counts_what_the_plan_moves) {
    cr_assert_eq(info("-m " MODEL " --plan --members 2 --explain attn_out-1"), 0, "%s", out);
    cr_expect(strstr(out, "9216 bytes in 9 "), "%s", out);
    cr_assert_eq(info("-m " MODEL " --plan --members 2"), 0, "%s", out);
    cr_expect(strstr(out, "9 all-reduce of 9216 bytes together"), "%s", out);
}

/* A gather before each of the four products of a layer, and none of a weight in a long prompt. */
Test(plan_info, whole_sums) {
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(info(i ? "-m " MODEL " --plan --members 2 --split-sums whole --tokens 250"
                            : "-m " MODEL " --plan --members 2 --split-sums whole"),
                     0, "%s", out);
        cr_expect(strstr(out, i ? "1 all-reduce of 256000 bytes together, 16 all-gather of "
                                  "4614144 bytes together"
                                : "1 all-reduce of 1024 bytes together, 16 all-gather of 24576 "
                                  "bytes together"),
                  "%s", out);
    }
    cr_expect(strstr(out, "src1 is cut along k, and sums are whole (SHEAF_SPLIT_SUMS)"), "%s", out);
    cr_expect_null(strstr(out, "\n  try: "), "%s", out);
    cr_assert_eq(info("-m " MODEL " --plan --members 2 --split-sums whole --tokens 250 --explain "
                      "ffn_out-1"),
                 0, "%s", out);
    cr_expect(strstr(out, "left out: gathers a weight, and another row gathers none"), "%s", out);
}

Test(plan_info, explains_only_what_is_computed) {
    static const struct {
        const char *tensor, *want;
    } cases[] = {
        {"atn_out-1", "--explain: the graph has no tensor 'atn_out-1'; did you mean 'attn_out-1'"},
        {"99999", "--explain: the graph has no tensor '99999'"},
        {"blk.1.attn_q.weight", "'blk.1.attn_q.weight' is not computed; --tensors prints its cut. "
                                "Ask for node "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[256];
        snprintf(args, sizeof args, "-m " MODEL " --plan --members 3 --explain %s",
                 cases[i].tensor);
        cr_expect_gt(info(args), 0, "%s", out);
        cr_expect(strstr(out, cases[i].want), "%s: %s", cases[i].tensor, out);
    }
    cr_expect_gt(info("-m " MODEL " --explain attn_out-1"), 0, "%s", out);
    cr_expect(strstr(out, "want --plan"), "%s", out);
}

/* Collectives and bytes of the architectures, so that a change of the planner shows its effect on
 * them. */
Test(plan_info, models_need_no_more_than_they_did, .timeout = 300) {
    static const char *const models[] = {
        "llama",
        "llama --fused-qkv",
        "qwen2",
        "gemma3",
        "gemma3 --tied --kv-heads 1 --heads 6",
        "qwen3moe --experts 8 --experts-used 2",
        "llama --experts 8 --experts-used 2",
        "phi3",
        "granite",
        "granitemoe --experts 8 --experts-used 2 --shared-ff 256",
        "olmo2",
        "gpt-oss --experts 8 --experts-used 2",
        "deepseek2 --experts 8 --experts-used 2",
        "bert",
        "mamba2",
        "mamba2 --kv-heads 1",
        "granitehybrid --experts 8 --experts-used 2 --shared-ff 256",
    };
    const int n_models = sizeof models / sizeof *models;
    static const int members[] = {2, 3, 4, 7, 64}, tokens[] = {1, 64};
    static char all[1 << 16];
    char file[] = "/tmp/sheaf-test-plans-XXXXXX", cmd[512];
    size_t at = 0;
    const int fd = mkstemp(file);
    cr_assert_geq(fd, 0);
    close(fd);
    for (int i = 0; i < n_models * 5 * 2; i++) {
        const int m = i / 10, d = members[i / 2 % 5], n = tokens[i % 2];
        if (SANITIZED && i % 10 != 0 && i % 10 != 9) continue;
        if (i % 10 == 0) {
            snprintf(cmd, sizeof cmd,
                     SHEAF_BUILD_DIR "/bin/sheaf-make-model -o %s --layers 4 --embd 256 --ff 512 "
                                     "--vocab 1024 --heads 8 --kv-heads 4 --arch %s",
                     file, models[m]);
            cr_assert_eq(run_command(cmd, 30, out, OUT), 0, "%s", out);
        }
        snprintf(cmd, sizeof cmd, "-m %s --plan --members %d --tokens %d", file, d, n);
        cr_assert_eq(info(cmd), 0, "%s", out);
        const char *line = strstr(out, "\ncollectives");
        cr_assert_not_null(line, "%s", out);
        line += strlen("\ncollectives") + strspn(line + strlen("\ncollectives"), " ");
        at += (size_t)snprintf(all + at, sizeof all - at, "%s, %d members, %d tokens: %.*s\n",
                               models[m], d, n, (int)strcspn(line, "\n"), line);
        cr_assert_lt(at, sizeof all);
    }
    unlink(file);
    char *golden = golden_text(GOLDEN_FILE("plans.txt"), all);
    const char *a = all; /* under a sanitizer some lines of the file, otherwise each */
    for (const char *b = golden; *b; b += strcspn(b, "\n") + 1) {
        const size_t n = strcspn(a, "\n"), k = strcspn(b, "\n");
        const bool same = n == k && !memcmp(a, b, n);
        cr_assert(same || SANITIZED, "file: %.*s\nnow:  %.*s", (int)k, b, (int)n, a);
        if (same) a += n + 1;
    }
    cr_assert_eq(*a, 0, "not in the file: %s", a);
    free(golden);
}

/* A drawing of a layer, in a temporary file whose name it completes. */
static void draw_layer(int members, char *file) {
    char cmd[256];
    const int fd = mkstemp(file);
    cr_assert_geq(fd, 0);
    close(fd);
    snprintf(cmd, sizeof cmd, "-m " MODEL " --members %d --layer 1 --plan-dot %s", members, file);
    cr_assert_eq(info(cmd), 0, "%s", out);
}

Test(plan_info, draws_a_layer) {
    char file[] = "/tmp/sheaf-test-plan-XXXXXX", cmd[256];
    draw_layer(4, file);
    snprintf(cmd, sizeof cmd, "cat %s", file);
    cr_assert_eq(run_command(cmd, 9, out, OUT), 0);
    cr_expect_eq(count("digraph plan {"), 1);
    cr_expect_eq(count("all-reduce"), 2, "%s", out);
    cr_expect_eq(count("subgraph cluster_"), 2, "%s", out);
    cr_expect_eq(count("MUL_MAT"), 7, "%s", out);
    cr_expect(strstr(out, "attn_q.weight\\n[256 256] S1 64,64,64,64"), "%s", out);
    int open = 0;
    for (const char *p = out; *p; p++) open += (*p == '{') - (*p == '}');
    cr_expect_eq(open, 0, "braces");
    unlink(file);
}

/* Heads that two members hold show as such, and not as a partition. */
Test(plan_info, draws_shared_heads) {
    char file[] = "/tmp/sheaf-test-plan-XXXXXX", cmd[256];
    draw_layer(8, file);
    snprintf(cmd, sizeof cmd,
             "grep -F 'attn_k.weight\\n[256 128] S1 {0:1,0:1,1:1,1:1,2:1,2:1,3:1,3:1}x32' %s",
             file);
    cr_expect_eq(run_command(cmd, 9, out, OUT), 0, "%s", out);
    unlink(file);
}

Test(plan_info, dot_reads_the_drawing) {
    char file[] = "/tmp/sheaf-test-plan-XXXXXX", cmd[256];
    if (run_command("command -v dot", 9, NULL, 0)) cr_skip("no dot here (package graphviz)");
    draw_layer(4, file);
    snprintf(cmd, sizeof cmd, "dot -Tsvg %s | grep -c '<g id=\"node'", file);
    cr_expect_eq(run_command(cmd, 30, out, OUT), 0, "%s", out);
    cr_expect_gt(atoi(out), 40, "%s", out);
    unlink(file);
}

Test(plan_info, bad_options) {
    const struct {
        const char *args, *want;
    } cases[] = {
        {"--plan", "--plan wants a model"},
        {"-m " MODEL " --layer 2", "want --plan"},
        {"-m " MODEL " --plan --layer 4", "the model's layers are 0..3"},
        {"-m " MODEL " --plan --layer x", "--layer wants a whole number"},
        {"-m " MODEL " --plan --tokens 0", "--tokens wants a whole number from 1"},
        {"-m " MODEL " --plan --members 99999",
         "--members wants at most 32 whole numbers from 1 to 4096"},
        {"-m " MODEL " --plan --members 2 --devices all", "cannot be used together"},
        {"-m " MODEL " --plan --members 2 --split auto", "--split auto measures devices"},
        {"-m " MODEL " --plan --members 2 --split 1,2,3", "there are 2 members"},
        {"-m " MODEL " --plan --members 2 --link carrier-pigeon", "--link is shm, 1gbe"},
        {"-m " MODEL " --plan --members 2 --link 1,0", "--link is shm, 1gbe"},
        {"-m " MODEL " --plan --bandwidth -1", "--bandwidth wants GB/s above 0"},
        {"-m " MODEL " --plan-dot /nonexistent/x.dot", "cannot write /nonexistent/x.dot"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_gt(info(cases[i].args), 0, "%s", cases[i].args);
        cr_expect(strstr(out, cases[i].want), "%s:\n%s", cases[i].args, out);
        cr_expect_eq(count("sheaf-info: "), 1, "%s:\n%s", cases[i].args, out);
    }
}
