/* Prompts in two chunks, with sums beside spans: the same bits as without, on threads of one
 * process and on ranks; and the arithmetic that chooses. */
#include "cpu_members.h"
#include "model/place/overlap.h"
#include "model/random_model.h"
#include "model/run/session.h"
#include "mpirun.h"
#include "temp_dir.h"

enum { N = 200, CHUNK = 128, VOCAB = 512 };

TestSuite(overlap, .init = setup, .fini = teardown, .timeout = 300);

/* ---- models ---- */

static uint64_t n_started(const struct sheaf__session *s) {
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    sheaf_backend_meta_get_stats(s->backend, &stats);
    return stats.n_started;
}

/* Logits after N tokens, then after three more alone, of which no collective is started. */
static void logits(const char *path, const char *overlap, int64_t n_batch, bool check,
                   float got[2][VOCAB]) {
    const struct sheaf_model_params p = {.size = sizeof p,
                                         .path = path,
                                         .overlap = overlap,
                                         .check = check,
                                         .kv_type = SHEAF_TYPE_F16,
                                         .n_ctx = 256,
                                         .n_batch = n_batch};
    struct sheaf__session *s;
    int32_t ids[N + 3];
    for (int i = 0; i < N + 3; i++) ids[i] = (i * 37 + 11) % VOCAB;
    cr_assert_eq(sheaf__session_new(&p, &s), 0, "%s", sheaf_last_error());
    const bool chunked = s->min_chunked > 0;
    cr_assert_eq(chunked, !strcmp(overlap, "on"));
    cr_assert_eq(sheaf__evaluator_prompt(s->context, 0, ids, N, NULL, NULL), 0, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf__evaluator_get_logits(s->context, got[0]), 0);
    const uint64_t started = n_started(s);
    cr_assert_eq(started > 0, chunked && !check && s->n_members > 1, "%llu collectives started",
                 (unsigned long long)started);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf__evaluator_eval(s->context, ids + N + i, 1, false), 0);
    cr_assert_eq(sheaf__evaluator_get_logits(s->context, got[1]), 0);
    cr_assert_eq(n_started(s), started, "a collective of a single token was started");
    sheaf__session_free(s);
}

/* Two chunks in one graph against one after the other, and against all at once: the same bits. */
static void check_chunks(struct sheaf__random_model_params p, size_t members) {
    static float want[2][VOCAB], got[2][VOCAB];
    const char *path = in_dir("random.gguf");
    cpu_members(members);
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
    logits(path, "off", CHUNK, false, want);
    logits(path, "on", N, false, got);
    cr_assert_eq(memcmp(want, got, sizeof want), 0, "two chunks change bits");
    logits(path, "on", N, true, got); /* every mirrored value, on all members */
    cr_assert_eq(memcmp(want, got, sizeof want), 0);
    logits(path, "on", CHUNK, false, got); /* the second batch begins behind the first */
    cr_assert_eq(memcmp(want, got, sizeof want), 0, "batches in two chunks change bits");
    logits(path, "off", N, false, got);
    cr_assert_eq(memcmp(want, got, sizeof want), 0, "batches change bits");
}

Test(overlap, one_member) { check_chunks(sheaf__random_model_default_params(), 1); }
Test(overlap, llama_two_members) { check_chunks(sheaf__random_model_default_params(), 2); }
Test(overlap, qwen2_fused_three_members) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    p.arch = "qwen2";
    p.fused_qkv = true;
    check_chunks(p, 3);
}
Test(overlap, gemma3_two_members_beyond_its_window) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    p.arch = "gemma3";
    p.n_layer = 7;
    p.n_head_kv = 1;
    p.swa_window = 32;
    p.tied = true;
    check_chunks(p, 2);
}

/* The graph with the most nodes a layer. */
Test(overlap, latent_attention_and_experts) {
    static float want[2][VOCAB], got[2][VOCAB];
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    const char *path = in_dir("random.gguf");
    cpu_members(2);
    p.arch = "deepseek2";
    p.n_layer = 12;
    p.n_expert = 8;
    p.n_expert_used = 3;
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
    logits(path, "off", CHUNK, false, want);
    logits(path, "on", N, false, got);
    cr_assert_eq(memcmp(want, got, sizeof want), 0, "two chunks change bits");
}

/* ---- ranks ---- */

static char out[1 << 16];

/* Logits of a prompt and some tokens, in `file`; standard output otherwise. */
static void run(int np, const char *env, const char *options, const char *file, char *ids) {
    const int rc = run_mpirun(np, env, 120, out, sizeof out,
                              "sheaf-run -m %s/ranks.gguf -f %s/prompt -n 8 --temp 0 --ignore-eos "
                              "--ids --logits %s/%s %s 2>%s/err",
                              dir, dir, dir, file, options, dir);
    cr_assert_eq(rc, 0, "%s %s: status %d\n%s", env, options, rc, out);
    const char *line = strstr(out, "\nids: ");
    cr_assert_not_null(line, "%s", out);
    snprintf(ids, 256, "%.200s", line);
}

static void same_files(const char *a, const char *b, const char *env) {
    char cmd[256];
    snprintf(cmd, sizeof cmd, "cmp %s/%s %s/%s", dir, a, dir, b);
    cr_assert_eq(run_command(cmd, 20, out, sizeof out), 0, "%s: %s", env, out);
}

Test(overlap, ranks_on_hosts_of_their_own) {
    static const struct {
        int np;
        const char *env;
    } cases[] = {
        {2, "SHEAF_COMM_DELAY_US=300 SHEAF_COMM_TRANSPORT=mpi"},
        {3, "SHEAF_COMM_TRANSPORT=mpi"},
        {3, "SHEAF_COMM_TRANSPORT=hosts:0,0,1"},
    };
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    char want[256], got[256];
    cr_assert_eq(sheaf__random_model_write(&p, in_dir("ranks.gguf")), 0);
    FILE *f = fopen(in_dir("prompt"), "w");
    for (int i = 0; i < 25; i++) fprintf(f, "the sea %d ", i);
    fclose(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run(cases[i].np, cases[i].env, "--overlap off", "want", want);
        run(cases[i].np, cases[i].env, "--overlap on", "got", got);
        cr_assert_str_eq(want, got, "%s", cases[i].env);
        same_files("want", "got", cases[i].env);
    }
}

/* ---- the choice ---- */

Test(overlap, gain_follows_the_times) {
    static const struct {
        const char *what;
        struct sheaf__overlap_times whole, half;
        double least, most;
    } cases[] = {
        {"nothing to hide", {8, 1, 3, 0, 0}, {8, 0.5, 1.5, 0, 0}, 0, 0},
        {"all of a sum hidden", {8, 2, 2, 1, 0}, {8, 1, 1, 0.5, 0}, 0.31, 0.34},
        {"none of it: it needs the core", {8, 2, 2, 1, 1}, {8, 1, 1, 0.5, 0.5}, 0, 0},
        {"a sum that takes longer than the work", {8, 1, 1, 4, 0}, {8, 0.5, 0.5, 2, 0}, 0.15, 0.2},
        {"products of fewer columns are slower",
         {8, 2, 2, 0.1, 0},
         {8, 1.2, 1.2, 0.05, 0},
         -0.2,
         -0.1},
        {"latency counts twice", {8, 0.1, 0.1, 1, 0}, {8, 0.05, 0.05, 1, 0}, -1, -0.7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double gain = sheaf__overlap_gain(&cases[i].whole, &cases[i].half);
        cr_expect(gain >= cases[i].least - 1e-9 && gain <= cases[i].most + 1e-9, "%s: %g",
                  cases[i].what, gain);
    }
}

Test(overlap, option) {
    enum sheaf_backend_meta_overlap o;
    cr_assert(!sheaf__overlap_parse(NULL, &o) && o == SHEAF_BACKEND_META_OVERLAP_CHEAPER);
    cr_assert(!sheaf__overlap_parse("auto", &o) && o == SHEAF_BACKEND_META_OVERLAP_CHEAPER);
    cr_assert(!sheaf__overlap_parse("on", &o) && o == SHEAF_BACKEND_META_OVERLAP_ALWAYS);
    cr_assert(!sheaf__overlap_parse("off", &o) && o == SHEAF_BACKEND_META_OVERLAP_NEVER);
    cr_assert_eq(sheaf__overlap_parse("never", &o), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "--overlap is auto, on or off, not 'never'"));
}
