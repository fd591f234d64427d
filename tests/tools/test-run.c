/* sheaf-run as its users start it: alone and under mpirun, with good and with bad input. */
#include <criterion/criterion.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sheaf/cpu.h"
#include "sheaf/gguf.h"

#include "model/random_model.h"
#include "mpirun.h"
#include "sanitizer.h"
#include "temp_dir.h"

#define F32     SHEAF_SOURCE_DIR "/models/kjv-f32.gguf"
#define Q8_0    SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf"
#define HELDOUT SHEAF_SOURCE_DIR "/tests/golden/heldout.txt"
#define PPL     "--perplexity " HELDOUT " --ppl-lines --ppl-tokens 2048 --kv-type f32"

enum { OUT = 1 << 16 };
static char out[OUT];

TestSuite(run, .init = setup, .fini = teardown, .timeout = 400);

/* np 0: without mpirun. Standard output and error together in `out`. */
static int sheaf_run(int np, const char *env, const char *args) {
    char cmd[4096];
    if (np) return run_mpirun(np, env, 120, out, OUT, "sheaf-run %s", args);
    snprintf(cmd, sizeof cmd, "exec env %s '%s'/bin/sheaf-run %s", env ? env : "", SHEAF_BUILD_DIR,
             args);
    return run_command(cmd, 120, out, OUT);
}

/* The line that begins with `head`, copied; "" if there is none. */
static char *line_of(const char *head) {
    static char lines[8][8192];
    static int next;
    char *line = lines[next++ % 8];
    const char *p = out;
    line[0] = 0;
    while (p && strncmp(p, head, strlen(head)) != 0)
        p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL;
    if (p) snprintf(line, 8192, "%.*s", (int)strcspn(p, "\n"), p);
    return line;
}

static int count(const char *text) {
    int n = 0;
    for (const char *p = out; (p = strstr(p, text)); p += strlen(text)) n++;
    return n;
}

/* ---- results; with standard error elsewhere, since mpirun mixes the streams ---- */

static void random_model(const char *path, struct sheaf__random_model_params p) {
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
}

/* Greedy tokens of the model, and bytes of its logits, on one device without the meta device. */
static void reference(const char *model, char *ids, size_t cap) {
    char args[1024];
    snprintf(args, sizeof args,
             "-m %s -p 'the old man and the sea' -n 128 --temp 0 --ignore-eos --ids --kv-type f32 "
             "--single --logits %s/want.bin 2>%s/err",
             model, dir, dir);
    cr_assert_eq(sheaf_run(0, NULL, args), 0, "%s", out);
    snprintf(ids, cap, "%s", line_of("ids: "));
    cr_assert_neq(ids[0], 0);
}

/* Of one row of 512 logits for each token, at least n of them. */
static double logits_nmse(size_t tokens) {
    char path[2][128];
    FILE *f[2];
    double e = 0, r = 0;
    float a, b;
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s.bin", dir, i ? "got" : "want");
        f[i] = fopen(path[i], "rb");
        cr_assert_not_null(f[i]);
    }
    size_t n = 0;
    while (fread(&a, sizeof a, 1, f[0]) == 1) {
        cr_assert_eq(fread(&b, sizeof b, 1, f[1]), 1, "fewer logits than the reference");
        e += ((double)a - (double)b) * ((double)a - (double)b);
        r += (double)a * (double)a;
        n++;
    }
    cr_assert_eq(fread(&b, sizeof b, 1, f[1]), 0, "more logits than the reference");
    cr_assert_geq(n, tokens * 512);
    fclose(f[0]);
    fclose(f[1]);
    return e / r;
}

struct world {
    int np, devices;
    const char *split;
};

static void same_as(const char *model, const char *ids, struct world w) {
    char args[1024], env[64];
    snprintf(args, sizeof args,
             "-m %s -p 'the old man and the sea' -n 128 --temp 0 --ignore-eos --ids --kv-type f32 "
             "--check --split %s --logits %s/got.bin 2>%s/err",
             model, w.split, dir, dir);
    snprintf(env, sizeof env, "SHEAF_CPU_THREADS=1 SHEAF_CPU_DEVICES=%d", w.devices);
    cr_assert_eq(sheaf_run(w.np, env, args), 0, "%s", out);
    cr_assert_str_eq(line_of("ids: "), ids, "%d ranks x %d, split %s: %s", w.np, w.devices, w.split,
                     out);
    double e = logits_nmse(128);
    cr_assert_leq(e, 1e-10, "%d ranks x %d, split %s: NMSE %g", w.np, w.devices, w.split, e);
}

/* Sanitizers make a run five times slower, and look for what shows in any world: every fourth will
 * do. */
enum { WORLD_STEP = SANITIZED ? 4 : 1 };

static void same_everywhere(const char *model, const struct world *worlds, int n) {
    char ids[8192];
    reference(model, ids, sizeof ids);
    for (int i = 0; i < n; i += WORLD_STEP) same_as(model, ids, worlds[i]);
}

static const struct world all_worlds[] = {
    {0, 1, "even"}, {0, 2, "even"},    {0, 3, "1,2,1"}, {1, 1, "even"},
    {2, 1, "even"}, {2, 1, "3,1"},     {2, 2, "even"},  {2, 1, "0,1"},
    {3, 1, "even"}, {3, 1, "1,2,1"},   {3, 1, "1,0,1"}, {3, 2, "3,1,2,1,1,1"},
    {4, 1, "even"}, {4, 1, "1,2,3,4"}, {4, 2, "even"},  {2, 1, "auto"},
};

Test(run, split_equals_unsplit) {
    same_everywhere(F32, all_worlds, sizeof all_worlds / sizeof *all_worlds);
}

static const struct world some_worlds[] = {
    {0, 2, "even"}, {2, 1, "3,1"}, {3, 1, "even"}, {4, 1, "even"}};

static void odd_model(struct sheaf__random_model_params p) {
    char path[128];
    snprintf(path, sizeof path, "%s/odd.gguf", dir);
    random_model(path, p);
    same_everywhere(path, some_worlds, sizeof some_worlds / sizeof *some_worlds);
}

/* Are the logits of a run, of a prompt and 15 tokens, the bytes of want.bin? As want.bin itself with
 * `first`. */
static bool same_bits(const char *model, const char *more, struct world w, bool first) {
    char args[1024], env[64];
    snprintf(args, sizeof args,
             "-m %s -p 'the old man and the sea, and the multitude' -n 16 --temp 0 --ignore-eos "
             "--split %s %s --logits %s/%s.bin 2>%s/err",
             model, w.split, more, dir, first ? "want" : "got", dir);
    snprintf(env, sizeof env, "SHEAF_CPU_THREADS=1 SHEAF_CPU_DEVICES=%d", w.devices);
    cr_assert_eq(sheaf_run(w.np, env, args), 0, "%s", out);
    if (first) return true;
    snprintf(args, sizeof args, "cmp -s %s/want.bin %s/got.bin", dir, dir);
    return system(args) == 0;
}

/* Whole sums: the bits of the logits do not depend on ranks, devices and shares. Parts of sums show
 * that they could. */
Test(run, whole_sums_have_the_same_bits) {
    static const char *const models[] = {F32, Q8_0, Q8_0 " --fast"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        same_bits(models[m], "", all_worlds[0], true);
        for (size_t i = 1; i < sizeof all_worlds / sizeof *all_worlds; i += WORLD_STEP)
            cr_expect(same_bits(models[m], "--split-sums whole", all_worlds[i], false),
                      "%s on %d ranks x %d, split %s", models[m], all_worlds[i].np,
                      all_worlds[i].devices, all_worlds[i].split);
        cr_expect(!same_bits(models[m], "", (struct world){2, 1, "even"}, false), "%s", models[m]);
    }
}

Test(run, three_kv_heads) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    p.n_head = 9;
    p.n_head_kv = 3;
    odd_model(p);
}

Test(run, one_kv_head_gemma3) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    p.arch = "gemma3";
    p.n_head_kv = 1;
    p.n_layer = 7;
    p.tied = true;
    odd_model(p);
}

Test(run, five_heads_qwen2) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    p.arch = "qwen2";
    p.n_head = p.n_head_kv = 5;
    odd_model(p);
}

Test(run, fused_qkv) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    p.fused_qkv = true;
    odd_model(p);
}

static void perplexity(const char *model, int np, const char *split, double want, double limit) {
    char args[1024];
    double ppl = 0;
    snprintf(args, sizeof args, "-m %s " PPL " --split %s 2>%s/err", model, split, dir);
    cr_assert_eq(sheaf_run(np, "SHEAF_CPU_THREADS=1", args), 0, "%s", out);
    cr_assert_eq(sscanf(line_of("perplexity_tokens 2040 "),
                        "perplexity_tokens 2040 nll %*f perplexity %lf", &ppl),
                 1, "%s", out);
    cr_assert_float_eq(ppl / want, 1, limit, "perplexity %f is not %f", ppl, want);
}

Test(run, perplexity_f32) {
    if (!SANITIZED) perplexity(F32, 0, "even", 24.135845, 1e-5);
    perplexity(F32, 2, "3,1", 24.135845, 1e-5);
}

Test(run, perplexity_q8_0) {
    perplexity(Q8_0, 0, "even", 24.116918, 1e-4);
    if (!SANITIZED) perplexity(Q8_0, 3, "even", 24.116918, 1e-4);
}

/* Two windows of one text, each of a bos and seven times the same word. */
Test(run, perplexity_of_windows_that_begin_with_bos) {
    double nll[2];
    for (int windows = 1; windows <= 2; windows++) {
        char args[1024], head[64];
        snprintf(args, sizeof args, "%s/words", dir);
        FILE *f = fopen(args, "w");
        cr_assert(f);
        for (int i = 0; i < 8 * windows - 1; i++) fputs(i ? " the" : "the", f);
        cr_assert_eq(fclose(f), 0);
        snprintf(args, sizeof args, "-m " F32 " --perplexity %s/words --ctx 8 2>%s/err", dir, dir);
        cr_assert_eq(sheaf_run(0, "SHEAF_CPU_THREADS=1", args), 0, "%s", out);
        snprintf(head, sizeof head, "perplexity_tokens %d ", 7 * windows);
        cr_assert_eq(sscanf(line_of(head), "perplexity_tokens %*d nll %lf", &nll[windows - 1]), 1,
                     "%s", out);
    }
    cr_assert_eq(nll[0], nll[1], "%.9f and %.9f", nll[0], nll[1]);
}

/* A copy of the model in which the first element of the last norm has this value. */
static void model_with_norm(const char *path, float value) {
    struct sheaf_gguf *g;
    char cmd[512];
    snprintf(cmd, sizeof cmd, "cp %s %s && chmod u+w %s", F32, path, path);
    cr_assert_eq(run_command(cmd, 30, out, OUT), 0, "%s", out);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
    const struct sheaf_gguf_tensor *t =
        sheaf_gguf_tensor(g, sheaf_gguf_find_tensor(g, "output_norm.weight"));
    cr_assert(t && t->type == SHEAF_TYPE_F32);
    FILE *f = fopen(path, "r+b");
    cr_assert(f && fseek(f, (long)t->offset, SEEK_SET) == 0);
    cr_assert_eq(fwrite(&value, sizeof value, 1, f), 1);
    cr_assert_eq(fclose(f), 0);
    sheaf_gguf_free(g);
}

/* Logits that are none end with an error, and JSON has no number for what exceeds a double. */
Test(run, perplexity_of_broken_weights) {
    static const struct {
        float value;
        int np, code;
        const char *want;
    } cases[] = {
        {NAN, 0, 1, "is not a number; the model's weights or its activations are broken"},
        {NAN, 2, 1, "is not a number; the model's weights or its activations are broken"},
        {INFINITY, 0, 1, "; the model's weights or its activations are broken"},
        {1e8f, 0, 0, ", \"perplexity\": null, "},
    };
    char path[128], args[512];
    snprintf(path, sizeof path, "%s/broken.gguf", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_with_norm(path, cases[i].value);
        snprintf(args, sizeof args, "-m %s --perplexity " HELDOUT " --ppl-tokens 16 --json", path);
        cr_expect_eq(sheaf_run(cases[i].np, "SHEAF_CPU_THREADS=1", args), cases[i].code, "%zu: %s",
                     i, out);
        cr_expect(strstr(out, cases[i].want), "%zu: %s", i, out);
        cr_expect_eq(strstr(out, "{\"model\"") != NULL, cases[i].code == 0, "%zu: %s", i, out);
    }
}

Test(run, sampling_is_the_same_on_any_number_of_ranks) {
    const char *args = "-m " F32 " -p 'And the LORD' -n 40 --temp 0.9 --seed 7 --ids 2>/dev/null";
    cr_assert_eq(sheaf_run(0, NULL, args), 0, "%s", out);
    char *want = line_of("ids: ");
    cr_assert_eq(sheaf_run(3, "SHEAF_CPU_THREADS=1", args), 0, "%s", out);
    cr_assert_str_eq(line_of("ids: "), want);
    /* without top-k the candidates are the whole vocabulary */
    args = "-m " F32 " -p 'And the LORD' -n 40 --temp 0.9 --seed 7 --top-k 0 --ids 2>/dev/null";
    cr_assert_eq(sheaf_run(0, NULL, args), 0, "%s", out);
    want = line_of("ids: ");
    cr_assert_eq(sheaf_run(2, "SHEAF_CPU_THREADS=1", args), 0, "%s", out);
    cr_assert_str_eq(line_of("ids: "), want);
}

Test(run, json_and_summary) {
    cr_assert_eq(
        sheaf_run(2, "SHEAF_CPU_THREADS=1",
                  "-m " F32 " -p 'In the beginning' -n 8 --temp 0 --json 2>/dev/null | "
                  "python3 -c 'import json, sys; o = json.load(sys.stdin); "
                  "print(o[\"ids\"][0], len(o[\"ids\"]), len(o[\"ranks\"]), o[\"text\"])'"),
        0, "%s", out);
    cr_assert(strstr(out, "271 8 2  of the world"), "%s", out);
    cr_assert_eq(sheaf_run(2, "SHEAF_CPU_THREADS=1", "-m " F32 " -p 'In the beginning' -n 8"), 0);
    const char *words[] = {
        "2 ranks on 1 host, 2 devices", "CPU0@1", "share", "read", "tokens/s", "in communication"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        cr_assert(strstr(out, words[i]), "the summary lacks '%s': %s", words[i], out);
}

/* The one with most of the work; of one rank there is none. The text is long: other tests use the cores,
 * and a rank that they hold up for some 50 ms must not be the slowest by that. */
Test(run, names_the_straggler) {
    char path[256], args[1024];
    snprintf(path, sizeof path, "%s/long", dir);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    for (int i = 0; i < (SANITIZED ? 300 : 900); i++) fputs("And the LORD said.\n", f);
    cr_assert_eq(fclose(f), 0);
    snprintf(args, sizeof args, "-m " F32 " -f %s -c 16384 -n 0 --split 7,1", path);
    cr_assert_eq(sheaf_run(2, "SHEAF_CPU_THREADS=1", args), 0, "%s", out);
    cr_assert(strstr(out, "\nstraggler   rank 0 ("), "%s", out);
    snprintf(args, sizeof args,
             "-m " F32 " -f %s -c 16384 -n 0 --split 1,7 --json 2>/dev/null | python3 -c 'import "
             "json, sys; o = json.load(sys.stdin); r = o[\"ranks\"]; print(\"ok\" if "
             "o[\"straggler\"][\"rank\"] == 1 and r[0][\"stalled_s\"] > r[1][\"stalled_s\"] and "
             "r[1][\"compute_s\"] > r[0][\"compute_s\"] > 0 else o)'",
             path);
    cr_assert_eq(sheaf_run(2, "SHEAF_CPU_THREADS=1", args), 0, "%s", out);
    cr_assert(strstr(out, "ok"), "%s", out);
    cr_assert_eq(sheaf_run(0, NULL, "-m " F32 " -p x -n 1"), 0, "%s", out);
    cr_assert_not(strstr(out, "straggler"), "%s", out);
}

/* Each rank reads its share of the file and a little more for what is mirrored. */
Test(run, ranks_read_their_share) {
    cr_assert_eq(sheaf_run(4, "SHEAF_CPU_THREADS=1",
                           "-m " F32
                           " -p x -n 1 --json 2>/dev/null | python3 -c 'import json, sys; "
                           "o = json.load(sys.stdin); print(\"ok\" if all(0 < r[\"bytes_read\"] <= "
                           "1.1 * r[\"share_bytes\"] and r[\"weight_bytes\"] <= 1.1 * "
                           "r[\"share_bytes\"] for r in o[\"ranks\"]) else o)'"),
                 0, "%s", out);
    cr_assert(strstr(out, "ok"), "%s", out);
}

/* ---- habits ---- */

Test(run, options_are_suggested_and_standard_input_is_read) {
    static char piped[4096], given[4096];
    const char *args = "-m " F32 " --temp 0 --n-predict 8 2> /dev/null";
    char cmd[600];
    snprintf(cmd, sizeof cmd,
             "printf 'In the beginning' | '" SHEAF_BUILD_DIR "/bin/sheaf-run' -f - %s", args);
    cr_assert_eq(run_command(cmd, 60, piped, sizeof piped), 0, "%s", piped);
    snprintf(cmd, sizeof cmd, "'" SHEAF_BUILD_DIR "/bin/sheaf-run' -p 'In the beginning' %s", args);
    cr_assert_eq(run_command(cmd, 60, given, sizeof given), 0, "%s", given);
    cr_assert(strlen(given) > 20 && !strcmp(piped, given), "%s is not %s", piped, given);
    cr_assert_neq(sheaf_run(0, NULL, "-m " F32 " -p x --tempp 0"), 0);
    cr_assert(strstr(out, "'--tempp' (is it --temp? see --help)"), "%s", out);
}

/* A copy of a model with another metadata text. */
static void copy_with(const char *from, const char *key, const char *value, const char *to) {
    struct sheaf_gguf *in, *g = sheaf_gguf_new();
    void *data[256] = {0};
    cr_assert_eq(sheaf_gguf_open(from, &in), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_copy_kv(g, in), 0);
    cr_assert_eq(sheaf_gguf_set_str(g, key, value), 0);
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(in); i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(in, i);
        data[i] = malloc(t->size);
        cr_assert_eq(sheaf_gguf_read(in, t, 0, data[i], t->size), 0);
        cr_assert_eq(sheaf_gguf_add_tensor(g, t->name, t->type, t->n_dims, t->ne, data[i]), 0);
    }
    cr_assert_eq(sheaf_gguf_write(g, to), 0, "%s", sheaf_last_error());
    for (size_t i = 0; i < 256; i++) free(data[i]);
    sheaf_gguf_free(g);
    sheaf_gguf_free(in);
}

/* A model with a chat template is chatted with; the prompt then is longer, and not shown. */
Test(run, chat_is_the_default_of_a_model_with_a_template) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    char path[128], chat[128], args[512], prompt[8192];
    p.arch = "qwen2";
    snprintf(path, sizeof path, "%s/plain.gguf", dir);
    snprintf(chat, sizeof chat, "%s/chat.gguf", dir);
    random_model(path, p);
    copy_with(path, "tokenizer.chat_template", "{{ '<|im_start|>' + message['role'] }}", chat);
    snprintf(args, sizeof args, "-m %s -p hello -n 4 --temp 0 --ids", path);
    cr_assert_eq(sheaf_run(0, NULL, args), 0, "%s", out);
    snprintf(prompt, sizeof prompt, "%s", line_of("prompt_ids: "));
    cr_expect_not(strstr(out, "as messages"), "%s", out);
    snprintf(args, sizeof args, "-m %s -p hello -n 4 --temp 0 --ids", chat);
    cr_assert_eq(sheaf_run(2, NULL, args), 0, "%s", out);
    cr_expect_gt(strlen(line_of("prompt_ids: ")), strlen(prompt), "%s", out);
    cr_expect(strstr(out, "as messages (ChatML; --no-chat: raw text)"), "%s", out);
    snprintf(args, sizeof args, "-m %s -p hello -n 4 --temp 0 --ids --no-chat", chat);
    cr_assert_eq(sheaf_run(0, NULL, args), 0, "%s", out);
    cr_expect_str_eq(line_of("prompt_ids: "), prompt, "%s", out);
    copy_with(path, "tokenizer.chat_template", "no known format", chat);
    snprintf(args, sizeof args, "-m %s -p hello -n 4 --temp 0 --ids", chat);
    cr_assert_eq(sheaf_run(0, NULL, args), 0, "%s", out);
    cr_expect_str_eq(line_of("prompt_ids: "), prompt, "%s", out);
    cr_expect(strstr(out, "none of the known formats; the prompt is taken as raw text"), "%s", out);
}

/* The path of a model that can be talked to. */
static const char *talk_model(void) {
    static char path[128];
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    p.arch = "qwen2";
    snprintf(path, sizeof path, "%s/talk.gguf", dir);
    random_model(path, p);
    return path;
}

/* What stands behind the prompts of a conversation: mpirun of Open MPI 5.0.7 passes on whole lines, and takes what has
 * no end of one, on the standard error, for the head of the next one on any of the two. */
static char *behind_prompts(char *line) {
    while (line && (!strncmp(line, "> ", 2) || !strncmp(line, ". ", 2))) line += 2;
    return line;
}

/* Messages come from the standard input, on one process and on ranks that wait meanwhile; the same
 * answers come out. */
Test(run, conversation) {
    char cmd[1024];
    const char *path = talk_model();
    static char want[OUT];
    for (int np = 0; np <= 2; np += 2) {
        char launch[128] = "";
        if (np)
            snprintf(launch, sizeof launch,
                     "mpirun --allow-run-as-root --oversubscribe -np %d env SHEAF_CPU_THREADS=1",
                     np);
        snprintf(cmd, sizeof cmd,
                 "printf 'one \\\\\nmore\n\ntwo\n/clear\none \\\\\nmore\n/exit\nnever\n' | %s "
                 "'%s'/bin/sheaf-run -m %s -cnv -n 12 --temp 0 --ignore-eos 2> %s/err",
                 launch, SHEAF_BUILD_DIR, path, dir);
        cr_assert_eq(run_command(cmd, 60, out, OUT), 0, "%s", out);
        char *line[3], *at = out;
        for (int i = 0; i < 3; i++) line[i] = behind_prompts(strsep(&at, "\n"));
        cr_assert(at && !*at, "not three answers: %s", out);
        cr_expect_str_eq(line[0], line[2], "/clear has not forgotten");
        cr_expect_str_neq(line[0], line[1]);
        if (np) cr_expect_str_eq(line[1], want);
        snprintf(want, sizeof want, "%s", line[1]);
    }
}

/* Lines of Windows, in a conversation and in a file: the same tokens. */
Test(run, lines_that_end_with_cr_lf) {
    char cmd[1024], args[256];
    static char want[OUT];
    const char *path = talk_model();
    for (int k = 0; k < 2; k++) {
        const char *end = k ? "\\r\\n" : "\\n";
        snprintf(cmd, sizeof cmd,
                 "printf 'one \\\\%smore%s%stwo%s/clear%sone%s/exit%snever%s' | "
                 "'%s'/bin/sheaf-run -m %s -cnv -n 12 --temp 0 --ignore-eos 2> %s/err",
                 end, end, end, end, end, end, end, end, SHEAF_BUILD_DIR, path, dir);
        cr_assert_eq(run_command(cmd, 60, out, OUT), 0, "%s", out);
        cr_expect_eq(count("\n"), 3, "not three answers: %s", out);
        if (k) cr_expect_str_eq(out, want);
        snprintf(want, sizeof want, "%s", out);
    }
    for (int k = 0; k < 2; k++) {
        FILE *f = fopen(in_dir("prompt"), "wb");
        cr_assert(f && fputs(k ? "In the\r\n" : "In the\n", f) >= 0 && !fclose(f));
        snprintf(args, sizeof args, "-m " F32 " -f %s -n 0 --ids", in_dir("prompt"));
        cr_assert_eq(sheaf_run(0, NULL, args), 0, "%s", out);
        if (k) cr_expect_str_eq(line_of("prompt_ids:"), want);
        snprintf(want, sizeof want, "%s", line_of("prompt_ids:"));
    }
}

/* So is one with a zero byte, which was cut there, and nothing is forgotten. */
Test(run, a_message_with_a_zero_byte) {
    char cmd[1024];
    const char *path = talk_model();
    snprintf(cmd, sizeof cmd,
             "printf 'one\ntw\\0o\nthree\n' | '%s'/bin/sheaf-run -m %s -cnv -n 4 --temp 0 "
             "--ignore-eos 2> %s/err; s=$?; cat %s/err; exit $s",
             SHEAF_BUILD_DIR, path, dir, dir);
    cr_assert_eq(run_command(cmd, 60, out, OUT), 0, "%s", out);
    cr_expect_eq(count("a message with a zero byte is left out\n"), 1, "%s", out);
    cr_expect(strstr(out, "generation  8 tokens"), "%s", out);
    cr_expect_not(strstr(out, "is forgotten"), "%s", out);
}

/* A message that is longer than the context is left out, and the conversation goes on. */
Test(run, a_message_that_does_not_fit) {
    char cmd[1024];
    const char *path = talk_model();
    snprintf(
        cmd, sizeof cmd,
        "{ echo one; seq 1000 | tr '\\n' ' '; echo; echo two; } | '%s'/bin/sheaf-run -m %s -cnv "
        "-c 64 -n 4 --temp 0 --ignore-eos 2> %s/err; s=$?; cat %s/err; exit $s",
        SHEAF_BUILD_DIR, path, dir, dir);
    cr_assert_eq(run_command(cmd, 60, out, OUT), 0, "%s", out);
    cr_expect(strstr(out, "more than the context of 64") &&
                  strstr(out, ". The message is left out\n"),
              "%s", out);
    cr_expect(strstr(out, "generation  8 tokens"), "%s", out);
}

/* One for which the context has no room left, though it is not longer: all before it is forgotten. */
Test(run, a_message_behind_a_full_context) {
    char cmd[1024];
    const char *path = talk_model();
    snprintf(cmd, sizeof cmd,
             "printf 'one\ntwo\n' | '%s'/bin/sheaf-run -m %s -cnv -c 64 -n -1 --temp 0 "
             "--ignore-eos 2> %s/err; s=$?; cat %s/err; exit $s",
             SHEAF_BUILD_DIR, path, dir, dir);
    cr_assert_eq(run_command(cmd, 60, out, OUT), 0, "%s", out);
    cr_expect(strstr(out, ", but the context of 64 has room for 0 more: "), "%s", out);
    cr_expect_eq(count("The conversation so far is forgotten\n"), 1, "%s", out);
}

/* A text that the program never writes: the prompt is missing, or the answer. */
Test(run, nothing_is_explained) {
    cr_assert_eq(sheaf_run(0, NULL, "-m " F32), 1, "%s", out);
    cr_expect(strstr(out, "there is no prompt: give one with -p TEXT"), "%s", out);
    char cmd[600];
    snprintf(cmd, sizeof cmd,
             "printf 'In the beginning\n' | '%s'/bin/sheaf-run -m " F32 " --temp 0 -n 8 --json "
             "--stop world 2> /dev/null",
             SHEAF_BUILD_DIR);
    cr_assert_eq(run_command(cmd, 60, out, OUT), 0, "%s", out);
    cr_expect(strstr(out, "\"text\": \" of the \", \"stop\": \"stop text\""), "%s", out);
    cr_assert_eq(sheaf_run(2, "SHEAF_CPU_THREADS=1",
                           "-m " F32 " -p 'In the beginning' --temp 0 -n 3 --json --stop world"),
                 0, "%s", out);
    cr_expect(strstr(out, "\"text\": \" of the \", \"stop\": \"stop text\""), "%s", out);
    cr_assert_eq(sheaf_run(0, NULL, "-m " F32 " -p x -n 2 -s -1 -c 0"), 0, "%s", out);
    cr_expect(strstr(out, "sampling    --seed "), "%s", out);
    cr_expect(strstr(out, "loading     ") && strstr(out, "first token "), "%s", out);
}

/* A context beyond what the model was trained on is said. */
Test(run, long_contexts_are_noticed) {
    cr_assert_eq(sheaf_run(0, NULL, "-m " F32 " -p x -n 1 -c 257"), 0, "%s", out);
    cr_assert(strstr(out, "the context has 257 tokens, but the model was trained on 256"), "%s",
              out);
    cr_assert_eq(sheaf_run(0, NULL, "-m " F32 " -p x -n 1 -c 256"), 0, "%s", out);
    cr_assert_not(strstr(out, "trained on"), "%s", out);
}

/* ---- bad input ---- */

/* Ends within 10 s, not with 0, with one message that holds `text`. */
static void fails(int np, const char *args, const char *text) {
    double start = run_seconds();
    int status = sheaf_run(np, "SHEAF_CPU_THREADS=1", args);
    double took = run_seconds() - start;
    cr_assert(status > 0, "'%s' ended with %d: %s", args, status, out);
    cr_assert_lt(took, 10, "'%s' took %f s", args, took);
    cr_assert(strstr(out, text), "'%s' lacks '%s': %s", args, text, out);
    cr_assert_eq(count("sheaf-run: "), 1, "'%s' has not one message: %s", args, out);
}

static void fails_everywhere(const char *args, const char *text) {
    fails(0, args, text);
    if (!SANITIZED) fails(2, args, text);
    fails(3, args, text);
}

Test(run, bad_command_lines) {
    const int np = SANITIZED ? 0 : 2; /* for what is refused before the ranks meet */
    fails_everywhere("", "-m FILE");
    fails(np, "-m " F32, "-p TEXT");
    fails(np, "-m " F32 " -p x -f y", "one of");
    fails(np, "-m " F32 " -p x --frobnicate", "unknown option '--frobnicate'");
    fails(np, "-m " F32 " -p x -n", "value is missing after -n");
    fails(np, "-m " F32 " -p x -n ten", "--predict wants a whole number");
    fails(np, "-m " F32 " -p x --temp hot", "--temp wants a number");
    fails(np, "-m " F32 " -p x --top-p 2", "--top-p wants a number from 0 to 1");
    fails(np, "-m " F32 " -p x --kv-type q4_0", "--kv-type is f16, q8_0 or f32");
    fails(2, "-m " F32 " -p x --split 1", "1 number, but there are 2 members");
    fails(2, "-m " F32 " -p x --split 1,2,3", "3 numbers, but there are 2 members");
    fails(2, "-m " F32 " -p x --split 0,0", "--split 0,0");
    fails(2, "-m " F32 " -p x --split 1,-1", "--split 1,-1");
    fails(2, "-m " F32 " -p x --split 1,nan", "--split 1,nan");
    fails(2, "-m " F32 " -p x --split fast", "--split fast");
    fails(2, "-m " F32 " -p x --devices CPU9", "no device 'CPU9'");
    fails(2, "-m " F32 " -p x --devices CPU0@0,CPU0", "names CPU0@0 twice");
    fails(2, "-m " F32 " -p x --devices 'CPU0@0,cpu*'", "names CPU0@0 twice");
    fails(2, "-m " F32 " -p x --devices CPU0@1,CPU0@0", "lower ranks first");
    fails(2, "-m " F32 " -p x --single", "one rank only");
    fails(np, "-m " F32 " -p x --split-sums all", "--split-sums is partial or whole");
    fails(2, "-m " F32 " -p x --split-sums whole --experts columns", "--experts columns makes");
}

/* --fast is the setting, rounds prompts, and is near what it rounds. */
Test(run, fast) {
    static const char *const ways[][2] = {
        {"SHEAF_CPU_ACTIVATIONS=f32", "want"},
        {"SHEAF_CPU_ACTIVATIONS=q8", "q8"},
        {"SHEAF_CPU_ACTIVATIONS=f32", "got"},
    };
    char args[512];
    for (int i = 0; i < 3; i++) {
        snprintf(args, sizeof args,
                 "-m " Q8_0 " -p 'in the beginning was the word' -n 0 --logits %s/%s.bin%s", dir,
                 ways[i][1], i == 2 ? " --fast" : "");
        cr_assert_eq(sheaf_run(0, ways[i][0], args), 0, "%s", out);
    }
    snprintf(args, sizeof args, "cmp %s/q8.bin %s/got.bin", dir, dir);
    cr_assert_eq(system(args), 0, "--fast is not SHEAF_CPU_ACTIVATIONS=q8");
    const double e = logits_nmse(1);
    const bool rounds = strcmp(sheaf_cpu_isa_name(), "portable") != 0;
    cr_assert(rounds ? e > 1e-8 && e < 1e-2 : e == 0, "NMSE %g", e);
}

/* A setting that leaves no device ends every rank with its own text. */
Test(run, bad_settings) {
    const char *settings[] = {"SHEAF_CPU_ISA=mmx", "SHEAF_CPU_ACTIVATIONS=f8",
                              "SHEAF_CPU_DEVICES=0", "SHEAF_CPU_THREADS=none",
                              "SHEAF_SPLIT_SUMS=half"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        for (int np = 0; np <= 2; np += 2) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(settings[i], "="), settings[i]);
            cr_assert_gt(sheaf_run(np, settings[i], "-m " F32 " -p x -n 1"), 0, "%s: %s",
                         settings[i], out);
            cr_assert(strstr(out, name), "'%s' is not named: %s", name, out);
            cr_assert_eq(count("sheaf-run: "), 1, "%s", out);
        }
    }
}

Test(run, bad_files) {
    char args[512], path[128], other[128];
    fails_everywhere("-m /nonexistent/x.gguf -p x", "cannot open /nonexistent/x.gguf");
    fails(2, "-m " HELDOUT " -p x", "not a GGUF file");
    snprintf(path, sizeof path, "%s/cut.gguf", dir);
    snprintf(args, sizeof args, "head -c 1000000 " F32 " > %s", path);
    cr_assert_eq(system(args), 0);
    snprintf(args, sizeof args, "-m %s -p x", path);
    fails_everywhere(args, "truncated");
    fails(2, "-m " F32 " -f /nonexistent/prompt", "cannot open /nonexistent/prompt");
    /* before the model is looked for, which may take long to load */
    fails(2, "-m nowhere.gguf --perplexity /nonexistent/text", "cannot open /nonexistent/text");
    fails(2, "-m nowhere.gguf -p x --logits /nonexistent/l", "cannot create /nonexistent/l");
    fails(2, "-m nowhere.gguf -p x --trace /nonexistent/t", "cannot create /nonexistent/t");
    struct sheaf_gguf *in, *g = sheaf_gguf_new();
    cr_assert_eq(sheaf_gguf_open(F32, &in), 0);
    cr_assert_eq(sheaf_gguf_copy_kv(g, in), 0);
    cr_assert_eq(sheaf_gguf_set_str(g, "general.architecture", "mamba"), 0);
    snprintf(other, sizeof other, "%s/mamba.gguf", dir);
    cr_assert_eq(sheaf_gguf_write(g, other), 0);
    sheaf_gguf_free(in);
    sheaf_gguf_free(g);
    snprintf(args, sizeof args, "-m %s -p x", other);
    fails_everywhere(args, "architecture 'mamba' is not supported; supported are llama");
}

/* The message begins a line of its own, behind the text that is there. */
Test(run, a_full_device_behind_some_text) {
    if (access("/dev/full", W_OK)) return;
    cr_assert_eq(sheaf_run(0, NULL, "-m " F32 " -p 'In the' -n 4 --no-chat --logits /dev/full"), 1);
    cr_expect(strstr(out, "In the\nsheaf-run: cannot write /dev/full"), "%s", out);
}

static long size_of(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    const long n = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    fclose(f);
    return n;
}

/* No output may be a file that is read, or another output. */
Test(run, outputs_that_are_inputs) {
    char model[128], link[128], text[128], args[1024], cmd[512];
    snprintf(model, sizeof model, "%s/m.gguf", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(text, sizeof text, "%s/text", dir);
    snprintf(cmd, sizeof cmd, "cp " Q8_0 " %s && ln -s m.gguf %s && echo In the beginning > %s",
             model, link, text);
    cr_assert_eq(system(cmd), 0);
    const long bytes = size_of(model);
    snprintf(args, sizeof args, "-m %s -p x -n 1 --logits %s", model, model);
    fails(SANITIZED ? 0 : 2, args, "are the same file: give --logits another name");
    snprintf(args, sizeof args, "-m %s -p x -n 1 --trace %s", model, link);
    fails(0, args, "are the same file: give --trace another name");
    cr_expect_eq(size_of(model), bytes, "the model was written over");
    snprintf(args, sizeof args, "-m %s -f %s -n 1 --logits %s", model, text, text);
    fails(0, args, "--file ");
    snprintf(args, sizeof args, "-m %s --perplexity %s --trace %s", model, text, text);
    fails(0, args, "--perplexity ");
    cr_expect_eq(size_of(text), 17, "the prompt was written over");
    snprintf(args, sizeof args, "-m %s -p x -n 1 --logits %s/new --trace %s/./new", model, dir,
             dir);
    fails(0, args, "are the same file");
    cr_assert_eq(sheaf_run(0, NULL, "-m " Q8_0 " -p x -n 1 --logits /dev/null --trace /dev/null"),
                 0, "%s", out);
}

/* A run that cannot begin leaves the logits of the last one. */
Test(run, a_bad_prompt_leaves_the_logits) {
    char args[512], path[128];
    snprintf(path, sizeof path, "%s/logits", dir);
    snprintf(args, sizeof args, "-m " Q8_0 " -p x -n 1 --logits %s", path);
    cr_assert_eq(sheaf_run(0, NULL, args), 0, "%s", out);
    const long bytes = size_of(path);
    cr_assert_gt(bytes, 0);
    snprintf(args, sizeof args, "-m " Q8_0 " -c 2 -p 'In the beginning God' -n 1 --logits %s",
             path);
    fails(0, args, "more than the context of 2");
    cr_expect_eq(size_of(path), bytes, "the logits were emptied");
}

Test(run, context_is_checked) {
    fails(2, "-m " F32 " -c 8 -p 'In the beginning God created the heaven and the earth'",
          "more than the context of 8");
    fails(2, "-m " F32 " -c 16000000 -p x --kv-type f32", "GiB free");
    /* generation that fills the context ends there, without an error */
    cr_assert_eq(sheaf_run(2, "SHEAF_CPU_THREADS=1",
                           "-m " F32 " -c 16 -p 'In the beginning' -n -1 --ignore-eos --temp 0"),
                 0, "%s", out);
    cr_assert(strstr(out, "ended by: context full"), "%s", out);
}

static int on_ranks(int np, const char *script) {
    return run_on_ranks(np, "SHEAF_CPU_THREADS=1", 60, out, OUT, script);
}

/* The first rank that has the model sends the others what they hold, and the text is the same. */
Test(run, a_model_that_some_ranks_lack) {
    static const struct {
        const char *without, *told; /* ranks */
    } cases[] = {{"3", ""}, {"1", "rank 1 ("}, {"[12]", "rank 1 ("}, {"0", "rank 0 ("}};
    char want[256] = "";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[1024];
        snprintf(cmd, sizeof cmd,
                 "M=" Q8_0
                 "; case $R in %s) M=/nonexistent/m.gguf;; esac; exec $B/sheaf-run -m $M -p \"In "
                 "the beginning\" -n 12 --temp 0 --json",
                 cases[i].without);
        cr_assert_eq(on_ranks(3, cmd), 0, "%s", out);
        const char *ids = strstr(out, "\"ids\": ");
        cr_assert(ids, "%s", out);
        if (!i) snprintf(want, sizeof want, "%.*s", (int)strcspn(ids, "]"), ids);
        cr_expect(!strncmp(ids, want, strlen(want)), "%s in %s", want, out);
        cr_expect_eq(strstr(out, "cannot open /nonexistent/m.gguf: No such file") != NULL, i > 0);
        cr_expect(strstr(out, cases[i].told), "%s", out);
        cr_expect_eq(strstr(out, "\"bytes_sent\": 0") != NULL, i == 0, "%s", out);
    }
}

Test(run, a_model_that_no_rank_has) {
    double start = run_seconds();
    cr_assert_gt(on_ranks(3, "exec $B/sheaf-run -m /nonexistent/m$R.gguf -p x"), 0);
    cr_assert_lt(run_seconds() - start, 10);
    cr_assert(strstr(out, "rank 0") && strstr(out, "cannot open /nonexistent/m0.gguf"), "%s", out);
    cr_assert_eq(count("sheaf-run: "), 1, "%s", out);
}

/* A copy that is there and damaged is an error, whether other ranks have none or not. */
Test(run, a_damaged_copy_on_one_rank) {
    char cmd[1024];
    for (int i = 0; i < 2; i++) {
        snprintf(cmd, sizeof cmd,
                 "M=" F32 "; [ $R = 2 ] && M=%s && head -c 100000 " F32 " > $M; [ $R = %d ] && "
                 "M=/nonexistent; exec $B/sheaf-run -m $M -p x",
                 in_dir("m.gguf"), i);
        cr_assert_gt(on_ranks(3, cmd), 0);
        cr_expect(strstr(out, "rank 2") && strstr(out, "truncated or damaged"), "%s", out);
        cr_expect_eq(count("sheaf-run: "), 1, "%s", out);
    }
}

Test(run, different_files_on_two_ranks) {
    cr_assert_gt(on_ranks(2, "M=" F32 "; [ $R = 1 ] && M=" Q8_0 "; exec $B/sheaf-run -m $M -p x"),
                 0);
    cr_assert(strstr(out, "different models"), "%s", out);
    cr_assert_eq(count("sheaf-run: "), 1, "%s", out);
}

/* The other ranks wait for a prompt that comes late longer than for one another. */
Test(run, a_prompt_that_comes_late) {
    char cmd[700];
    snprintf(cmd, sizeof cmd,
             "(sleep 4; echo In the beginning) | SHEAF_TIMEOUT_MS=2000 SHEAF_CPU_THREADS=1 mpirun "
             "--allow-run-as-root --oversubscribe -np 2 '" SHEAF_BUILD_DIR "/bin/sheaf-run' -m " F32
             " -f - -n 4 --temp 0 2>&1");
    cr_assert_eq(run_command(cmd, 60, out, sizeof out), 0, "%s", out);
    cr_assert(strstr(out, "of the world") || strstr(out, "generation  4 tokens"), "%s", out);
}

/* mpirun hands an environment to the ranks of its own host only. */
Test(run, different_settings_on_two_ranks) {
    static const char *const cases[][2] = {
        {"SHEAF_SPLIT_SUMS=whole", "SHEAF_SPLIT_SUMS is 'partial' on rank 0 (*) and 'whole' on "
                                   "rank 1 (*or the option --split-sums"},
        {"SHEAF_COMM_DEVICE=off",
         "SHEAF_COMM_DEVICE is 'auto' on rank 0 (*) and 'off' on rank 1 ("},
        {"SHEAF_CPU_ACTIVATIONS=q8", "SHEAF_CPU_ACTIVATIONS is 'f32' on rank 0 (*) and 'q8' on "
                                     "rank 1 (*or the option --fast"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[512];
        snprintf(command, sizeof command,
                 "[ $R = 1 ] && export %s; exec $B/sheaf-run -m " F32 " -p x", cases[i][0]);
        cr_assert_gt(on_ranks(2, command), 0);
        char pattern[256];
        snprintf(pattern, sizeof pattern, "*%s*", cases[i][1]);
        cr_assert_eq(fnmatch(pattern, out, 0), 0, "%s", out);
        cr_assert_eq(count("sheaf-run: "), 1, "%s", out);
    }
    /* of a rank without a CPU member the setting does not count */
    cr_assert_eq(on_ranks(2,
                          "[ $R = 1 ] && export SHEAF_CPU_ACTIVATIONS=q8; exec $B/sheaf-run -m " F32
                          " -p x -n 1 --devices CPU0@0"),
                 0, "%s", out);
}

/* A rank with other options would leave the others in a collective until their deadline. */
Test(run, different_options_on_two_ranks) {
    static const char *const cases[][3] = {
        {"-p x -n 3", "-p x -n 5", "option --predict is 3 on rank 0 (*) and 5 on rank 1 ("},
        {"-p x", "-p y", "option --prompt is 'x' on rank 0 (*) and 'y' on rank 1 ("},
        {"-p x --temp 0", "-p x", "option --temp is 0 on rank 0 (*) and 0.8"},
        {"-p x -s 1", "-p x -s -1", "option --seed is 1 on rank 0 (*) and -1 on rank 1 ("},
        {"-p x", "-p x --json", "option --json is not given on rank 0 (*) and given on rank 1 ("},
        {"-p x", "-p x --stop a --stop b",
         "--stop is not given on rank 0 (*) and 'a,b' on rank 1 ("},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[512], pattern[256];
        const double start = run_seconds();
        snprintf(command, sizeof command,
                 "A=\"%s\"; [ $R = 1 ] && A=\"%s\"; exec $B/sheaf-run -m " F32 " $A", cases[i][0],
                 cases[i][1]);
        cr_assert_gt(on_ranks(2, command), 0, "%s", out);
        snprintf(pattern, sizeof pattern, "*%s*", cases[i][2]);
        cr_expect_eq(fnmatch(pattern, out, 0), 0, "%s: %s", pattern, out);
        cr_expect_eq(count("sheaf-run: "), 1, "%s", out);
        cr_expect_lt(run_seconds() - start, 20);
    }
    cr_expect_eq(on_ranks(2, "[ $R = 0 ] || V=-v; exec $B/sheaf-run -m " F32 " -p x -n 1 $V"), 0,
                 "%s", out);
    cr_expect_gt(on_ranks(2, "exec $B/sheaf-bench -m " F32 " -p $((4 * R + 4)) -n 0 -r 1"), 0, "%s",
                 out);
    cr_expect(strstr(out, "option --n-prompt is '4' on rank 0 ("), "%s", out);
}

Test(run, interrupts_end_all_ranks) {
    const char *args = "-m " F32 " -c 100000 -n -1 --ignore-eos -p 'In the beginning'";
    char cmd[2048];
    double start = run_seconds();
    /* the signal comes twice, as from timeout(1), which signals its command and their group; the
     * text goes elsewhere, or a quick machine would fill `out` with it */
    snprintf(cmd, sizeof cmd,
             "'%s'/bin/sheaf-run %s >/dev/null & p=$!; sleep 2; kill -INT $p; "
             "kill -INT $p; wait $p",
             SHEAF_BUILD_DIR, args);
    cr_assert_eq(run_command(cmd, 60, out, OUT), 130, "%s", out);
    cr_assert(strstr(out, "ended by: interrupted"), "%s", out);
    snprintf(cmd, sizeof cmd,
             "exec timeout --foreground --preserve-status -s INT 3 mpirun --allow-run-as-root "
             "--oversubscribe "
             "--mca odls_base_sigkill_timeout 3 "
             "-np 2 env SHEAF_CPU_THREADS=1 '%s'/bin/sheaf-run %s >/dev/null",
             SHEAF_BUILD_DIR, args);
    const int rc = run_command(cmd, 60, out, OUT); /* by chance mpiexec of MPICH returns 0 */
    cr_assert(run_by_mpich() ? rc >= 0 : rc > 0, "status %d\n%s", rc, out);
    /* One signal (--foreground): at a second one mpirun kills its ranks at once. It ends them without serving
     * MPI_Finalize; that is no failure. */
    cr_assert_not(strstr(out, "has died"), "%s", out);
    /* that of Open MPI 5.0.7 kills them at once, with any limit */
    cr_assert(run_by("Open MPI v5") || strstr(out, "ended by: interrupted"), "%s", out);
    cr_assert_lt(run_seconds() - start, 40);
}

/* A signal to one rank ends the job with its report and with status 130. */
Test(run, an_interrupted_rank_ends_the_job) {
    cr_assert_eq(on_ranks(2, "$B/sheaf-run -m " F32
                             " -c 100000 -n -1 --ignore-eos -p x > /dev/null & p=$!; "
                             "sleep 3; [ $R = 0 ] || kill -INT $p; wait $p"),
                 130, "%s", out);
    cr_expect(strstr(out, "ended by: interrupted"), "%s", out);
    cr_expect_not(strstr(out, "has died"), "%s", out);
}

Test(run, help_and_version) {
    cr_assert_eq(sheaf_run(2, NULL, "--help"), 0);
    cr_assert_eq(count("usage: sheaf-run"), 1);
    cr_assert_eq(sheaf_run(2, NULL, "--version"), 0);
    cr_assert_eq(count("sheaf 0."), 1, "%s", out);
}

/* ---- the other tools ---- */

Test(run, info_shows_the_job_and_the_cuts) {
    cr_assert_eq(run_mpirun(2, NULL, 60, out, OUT, "sheaf-info -m " Q8_0 " --split 3,1 --tensors"),
                 0, "%s", out);
    cr_assert(strstr(out, "2 ranks on 1 host"), "%s", out);
    cr_assert(strstr(out, "CPU0@1"));
    cr_assert(strstr(out, "8 on 4 key/value heads"));
    cr_assert(strstr(line_of("blk.0.attn_output.weight"), "S0 {6,2}x32"), "%s", out);
    cr_assert(strstr(line_of("blk.3.ffn_norm.weight"), " M"), "%s", out);
    cr_assert_gt(run_mpirun(2, NULL, 60, out, OUT, "sheaf-info -m /nonexistent/x.gguf"), 0);
    cr_assert_eq(count("sheaf-info: "), 1, "%s", out);
}

Test(run, make_model) {
    char cmd[512];
    snprintf(cmd, sizeof cmd,
             "'%s'/bin/sheaf-make-model -o %s/r.gguf --arch qwen2 --type q8_0 --fused-qkv "
             "--kv-heads 1 && exec '%s'/bin/sheaf-run -m %s/r.gguf -p 'any text' -n 4",
             SHEAF_BUILD_DIR, dir, SHEAF_BUILD_DIR, dir);
    cr_assert_eq(run_command(cmd, 60, out, OUT), 0, "%s", out);
    snprintf(cmd, sizeof cmd, "'%s'/bin/sheaf-make-model -o %s/r.gguf --heads 5", SHEAF_BUILD_DIR,
             dir);
    cr_assert_gt(run_command(cmd, 60, out, OUT), 0);
    cr_assert(strstr(out, "multiple of kv-heads"), "%s", out);
}
