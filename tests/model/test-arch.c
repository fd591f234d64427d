/* Every architecture of archs.def against an independent evaluation of a random model in float64
 * (tests/golden/evaluate.py wrote arch-NAME.txt), on one device and split over 1 to 5 members, and
 * under mpirun. A new architecture is tested once its file is there; one that may have experts is
 * tested with and without them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/meta.h"
#include "sheaf/model.h"
#include "sheaf/settings.h"
#include "sheaf/world.h"

#include "model/arch/arch.h"
#include "model/random_model.h"
#include "mpirun.h"
#include "sanitizer.h"
#include "temp_dir.h"

enum { VOCAB = 512, N = 20, MAX_MEMBERS = 5 };

TestSuite(arch, .init = setup, .fini = teardown, .timeout = 900);

/* A model that a golden file is about. */
struct model {
    const struct sheaf__arch *arch;
    bool mixture;
    char name[32]; /* of the file */
};

/* The i-th; false behind the last. */
static bool get_model(size_t i, struct model *m) {
    for (size_t k = 0; (m->arch = sheaf__arch_get(k)); k++) {
        if (m->arch->encoder) continue; /* test-embedding.c */
        const bool kinds[] = {m->arch->dense || !m->arch->mixture, m->arch->mixture};
        for (int mixture = 0; mixture < 2; mixture++) {
            if (!kinds[mixture] || i-- > 0) continue;
            m->mixture = mixture;
            snprintf(m->name, sizeof m->name, "%s%s", m->arch->name,
                     mixture && kinds[0] ? "-experts" : "");
            return true;
        }
    }
    return false;
}

static bool is(const struct model *m, const char *name) { return strcmp(m->name, name) == 0; }

static const char *write_model(const struct model *m) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    const char *path = in_dir("arch.gguf");
    p.arch = m->arch->name;
    p.n_layer = 7;
    p.swa_window = 8;
    if (m->mixture) {
        p.n_expert = is(m, "deepseek2-experts") ? 8 : 6; /* in groups */
        p.n_expert_used = 3;
    }
    if (is(m, "granitemoe") || is(m, "granitehybrid-experts")) p.n_ff_shared = 96;
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
    return path;
}

static void read_golden(const struct model *m, double want[VOCAB]) {
    char path[300];
    snprintf(path, sizeof path, SHEAF_SOURCE_DIR "/tests/golden/arch-%s.txt", m->name);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s: write it with tests/golden/evaluate.py", path);
    for (int i = 0; i < VOCAB; i++) cr_assert_eq(fscanf(f, "%lf", &want[i]), 1, "%s", path);
    fclose(f);
}

/* A sum for the embedding, one for each half of a layer; where experts are cut by rows, one more for
 * them, and for experts that every token uses, whose sum cannot join a gather. The norms of olmo2
 * want the squares of all heads of q and k, and of the 2 heads of k whole ones if more than 2 members
 * share them. The logits add a gather, which their reader asked for. */
static void count_sums(const struct sheaf_model *model, const struct model *m, int members,
                       const char *experts) {
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    const uint64_t mixtures = is(m, "deepseek2-experts") ? 6 : m->mixture ? 7 : 0;
    uint64_t want = 1 + 7 * 2;
    if (strcmp(experts, "rows") == 0) {
        want += mixtures;
        if (is(m, "granitemoe") || is(m, "deepseek2-experts") || is(m, "granitehybrid-experts"))
            want += mixtures;
        /* the sum of the last attention is scattered, then gathered: the same bytes */
        if (is(m, "deepseek2-experts")) want++;
    }
    if (is(m, "mamba2"))
        want = members > 2 ? 1 + 7 * 2 : 1 + 7; /* 2 groups, whose norms are whole */
    if (strncmp(m->name, "granitehybrid", 13) == 0 && members > 2) want += 5; /* such layers */
    if (is(m, "olmo2")) want += members > 2 ? 7 * 2 : 7;
    sheaf_backend_meta_get_stats(sheaf_model_backend(model), &stats);
    cr_assert_eq(stats.n_collectives, want, "%s, %s: %d collectives, not %d", m->name, experts,
                 (int)stats.n_collectives, (int)want);
}

/* Logits after N tokens, which come in batches of n_batch. members 0: without the meta device. */
static void evaluate(const char *path, const struct model *m, int members, const char *split,
                     const char *experts, int64_t n_batch, float got[VOCAB]) {
    struct sheaf_model_params p = sheaf_model_default_params();
    struct sheaf_model *model;
    int32_t ids[N];
    p.path = path;
    p.single = members == 0;
    p.check = members > 0;
    p.kv_type = SHEAF_TYPE_F32;
    p.n_batch = n_batch;
    p.experts = experts;
    p.split = split;
    for (int i = 0; i < N; i++) ids[i] = (37 * i + 11) % VOCAB;
    char list[MAX_MEMBERS * 8] = "CPU0@0";
    for (int j = 1; j < members; j++) sprintf(list + strlen(list), ",CPU%d@0", j);
    if (members) p.devices = list;
    cr_assert_eq(sheaf_model_open(&p, &model), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_prompt(model, 0, ids, N, NULL, NULL), 0, "%s", sheaf_last_error());
    if (members > 1 && n_batch > N && !split) count_sums(model, m, members, experts);
    cr_assert_eq(sheaf_model_get_logits(model, got), 0, "%s", sheaf_last_error());
    sheaf_model_free(model);
}

/* Logits reach 6 or so; float32 leaves 1e-5 of that. */
static void compare(const struct model *m, int members, const char *how, const float *got,
                    const double *want) {
    for (int i = 0; i < VOCAB; i++)
        cr_assert_float_eq((double)got[i], want[i], 1e-4,
                           "%s on %d members, %s: logit %d is %f, not %f", m->name, members, how, i,
                           (double)got[i], want[i]);
}

/* Of one device, by the mean square of its logits. */
static void compare_alone(const struct model *m, int members, const char *how, const float *got,
                          const float *alone) {
    double e = 0, r = 0;
    for (int i = 0; i < VOCAB; i++) {
        e += pow((double)got[i] - (double)alone[i], 2);
        r += pow((double)alone[i], 2);
    }
    cr_assert_leq(e / r, 1e-10, "%s on %d members, %s: %g", m->name, members, how, e / r);
}

static void start_world(void) {
    setenv("SHEAF_CPU_DEVICES", "5", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert_eq(sheaf_world_init(NULL), 0, "%s", sheaf_last_error());
}

Test(arch, logits_are_those_of_an_independent_evaluation) {
    static const char *const cuts[] = {"auto", "columns", "rows", "whole"};
    static const char *const uneven[] = {NULL, NULL, "3,1", "1,0,2", "1,4,1,2", "2,1,3,0,1"};
    static double want[VOCAB];
    static float got[VOCAB], alone[VOCAB];
    struct model m;
    start_world();
    for (size_t i = 0; get_model(i, &m); i++) {
        const char *path = write_model(&m);
        double spread = 0;
        read_golden(&m, want);
        for (int k = 0; k < VOCAB; k++) spread = fmax(spread, fabs(want[k]));
        cr_assert_gt(spread, 0.5, "%s: all logits are near zero", m.name);
        evaluate(path, &m, 0, NULL, NULL, 512, alone);
        compare(&m, 0, "alone", alone, want);
        for (int members = 1; members <= MAX_MEMBERS; members += SANITIZED ? 2 : 1)
            for (int cut = 0; cut < (m.mixture ? 4 : 1); cut++) {
                /* under a sanitizer half of them, others for the next model and number */
                if (SANITIZED && m.mixture && (i + (size_t)(members / 2 + cut)) % 2) continue;
                evaluate(path, &m, members, NULL, cuts[cut], 512, got);
                compare(&m, members, cuts[cut], got, want);
                compare_alone(&m, members, cuts[cut], got, alone);
                if (uneven[members]) {
                    evaluate(path, &m, members, uneven[members], cuts[cut], 512, got);
                    compare(&m, members, uneven[members], got, want);
                    compare_alone(&m, members, uneven[members], got, alone);
                }
                if (members != 3) continue;
                evaluate(path, &m, members, NULL, cuts[cut], 1, got); /* token by token */
                compare(&m, members, cuts[cut], got, want);
            }
    }
    sheaf_world_finalize();
}

/* A copy of a file with one more number. */
static void add_number(const char *from, const char *to, const char *key, float value) {
    struct sheaf_gguf *in, *out = sheaf_gguf_new();
    cr_assert_eq(sheaf_gguf_open(from, &in), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_copy_kv(out, in), 0);
    cr_assert_eq(sheaf_gguf_set_f32(out, key, value), 0);
    char *data = malloc(sheaf_gguf_file_size(in)), *at = data;
    cr_assert_not_null(data);
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(in); i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(in, i);
        cr_assert_eq(sheaf_gguf_read(in, t, 0, at, t->size), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_add_tensor(out, t->name, t->type, t->n_dims, t->ne, at), 0);
        at += t->size;
    }
    cr_assert_eq(sheaf_gguf_write(out, to), 0, "%s", sheaf_last_error());
    free(data);
    sheaf_gguf_free(in);
    sheaf_gguf_free(out);
}

Test(arch, logits_of_gemma3_are_capped) {
    static double want[VOCAB];
    static float got[VOCAB];
    struct model m;
    char path[256];
    start_world();
    for (size_t i = 0; get_model(i, &m) && !is(&m, "gemma3");) i++;
    snprintf(path, sizeof path, "%s", write_model(&m));
    const char *capped = in_dir("capped.gguf");
    add_number(path, capped, "gemma3.final_logit_softcapping", 2);
    read_golden(&m, want);
    for (int k = 0; k < VOCAB; k++) want[k] = 2 * tanh(want[k] / 2);
    for (int members = 0; members <= 3; members++) {
        evaluate(capped, &m, members, NULL, "auto", 512, got);
        compare(&m, members, "capped", got, want);
    }
    sheaf_world_finalize();
}

/* Keys that random models lack: groups of experts, and of layers with a window another base, while
 * the positions of the others are scaled. */
Test(arch, logits_with_other_keys) {
    static const struct {
        const char *name, *keys[2], *golden;
        float values[2];
    } cases[] = {
        {"qwen3moe",
         {"qwen3moe.expert_group_count", "qwen3moe.expert_group_used_count"},
         "qwen3moe-groups",
         {3, 2}},
        {"olmo2", {"olmo2.rope.freq_base_swa", "olmo2.rope.scaling.factor"}, "olmo2-swa", {500, 4}},
    };
    static double want[VOCAB], plain[VOCAB];
    static float got[VOCAB];
    start_world();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct model m;
        char path[256], one[128], both[128];
        double apart = 0;
        for (size_t i = 0; get_model(i, &m) && !is(&m, cases[c].name);) i++;
        read_golden(&m, plain);
        snprintf(path, sizeof path, "%s", write_model(&m));
        snprintf(one, sizeof one, "%s", in_dir("one.gguf"));
        snprintf(both, sizeof both, "%s", in_dir("both.gguf"));
        add_number(path, one, cases[c].keys[0], cases[c].values[0]);
        add_number(one, both, cases[c].keys[1], cases[c].values[1]);
        snprintf(m.name, sizeof m.name, "%s", cases[c].golden);
        read_golden(&m, want);
        for (int k = 0; k < VOCAB; k++) apart = fmax(apart, fabs(want[k] - plain[k]));
        cr_expect_gt(apart, 0.1, "%s: the keys change next to nothing", m.name);
        for (int members = 0; members <= 3; members++) {
            evaluate(both, &m, members, NULL, "auto", 7, got);
            compare(&m, members, "other keys", got, want);
        }
    }
    sheaf_world_finalize();
}

/* Mistral Large 3: queries are scaled from a position on, which is not built here. */
Test(arch, a_context_of_deepseek2_ends_where_queries_are_scaled) {
    struct sheaf_model_params p = sheaf_model_default_params();
    struct sheaf_model *model;
    struct model m;
    char path[256], scaled[128], both[128];
    start_world();
    for (size_t i = 0; get_model(i, &m) && !is(&m, "deepseek2");) i++;
    snprintf(path, sizeof path, "%s", write_model(&m));
    snprintf(scaled, sizeof scaled, "%s", in_dir("scaled.gguf"));
    snprintf(both, sizeof both, "%s", in_dir("both.gguf"));
    add_number(path, scaled, "deepseek2.attention.temperature_scale", 0.1f);
    p.path = scaled;
    cr_expect_eq(sheaf_model_open(&p, &model), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "'deepseek2.attention.temperature_length' is missing"),
              "%s", sheaf_last_error());
    add_number(scaled, both, "deepseek2.attention.temperature_length", 16);
    p.path = both;
    p.n_ctx = 17;
    cr_expect_eq(sheaf_model_open(&p, &model), SHEAF_STATUS_UNSUPPORTED);
    cr_expect(strstr(sheaf_last_error(), "give a --ctx of at most 16, not 17"), "%s",
              sheaf_last_error());
    p.n_ctx = 16;
    cr_assert_eq(sheaf_model_open(&p, &model), 0, "%s", sheaf_last_error());
    sheaf_model_free(model);
    sheaf_world_finalize();
}

/* With whole sums logits are those of one device bit by bit: in batches of 7 tokens, and on three
 * members also token by token, which makes other products. */
Test(arch, whole_sums_have_the_same_bits) {
    static const char *const cuts[] = {"auto", "rows", "whole"};
    static const char *const uneven[] = {NULL, NULL, "3,1", "1,0,2", "1,4,1,2", "2,1,3,0,1"};
    static float got[VOCAB], alone[VOCAB];
    struct model m;
    start_world();
    cr_assert_eq(sheaf_setting_set("SHEAF_SPLIT_SUMS", "whole"), 0, "%s", sheaf_last_error());
    for (size_t i = 0; get_model(i, &m); i++) {
        const char *path = write_model(&m);
        evaluate(path, &m, 0, NULL, NULL, 7, alone);
        for (int members = 1; members <= MAX_MEMBERS; members++) {
            const char *split = (i + (size_t)members) % 2 ? uneven[members] : NULL;
            const char *cut = m.mixture ? cuts[(i + (size_t)members) % 3] : "auto";
            if (SANITIZED && (i + (size_t)members) % 3) continue;
            evaluate(path, &m, members, split, cut, 7, got);
            cr_assert_eq(memcmp(got, alone, sizeof got), 0, "%s on %d members, %s, %s", m.name,
                         members, split ? split : "even", cut);
        }
        evaluate(path, &m, 0, NULL, NULL, 1, alone);
        evaluate(path, &m, 3, NULL, NULL, 1, got);
        cr_assert_eq(memcmp(got, alone, sizeof got), 0, "%s, token by token", m.name);
    }
    sheaf_world_finalize();
}

/* Columns of experts are parts of sums. */
Test(arch, whole_sums_refuse_columns_of_experts) {
    struct sheaf_model_params p = sheaf_model_default_params();
    struct sheaf_model *model;
    struct model m;
    start_world();
    cr_assert_eq(sheaf_setting_set("SHEAF_SPLIT_SUMS", "whole"), 0, "%s", sheaf_last_error());
    for (size_t i = 0; get_model(i, &m) && !m.mixture;) i++;
    p.path = write_model(&m);
    p.experts = "columns";
    cr_assert_eq(sheaf_model_open(&p, &model), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "--experts columns"), "%s", sheaf_last_error());
    sheaf_world_finalize();
}

/* All numbers of ranks: of an architecture of each kind, and of all with SHEAF_TEST_WIDE=1, then also
 * with experts cut in every way (scripts/check-models ranks). */
static bool is_wide(void) { return getenv("SHEAF_TEST_WIDE") != NULL; }
static bool has_all_ranks(const struct model *m) {
    return is_wide() || is(m, "llama") || is(m, "llama-experts") || is(m, "mamba2") ||
           is(m, "granitehybrid-experts");
}

/* Greedy tokens of a job are those of one process, however many ranks it has. */
Test(arch, ranks_write_what_one_writes) {
    static const char *const splits[] = {"even", "even", "even", "2,1,1", "even", "1,3,1,2,2"};
    static const char *const cuts[] = {"auto", "columns", "rows", "whole"};
    char alone[4096], out[4096];
    struct model m;
    for (size_t i = 0; get_model(i, &m); i++) {
        if (SANITIZED && !has_all_ranks(&m)) continue;
        const char *path = write_model(&m);
        const int n_cuts = is_wide() && m.mixture ? 4 : 1;
        for (int k = 0; k < 5 * n_cuts; k++) {
            const int np = k % 5 + 1;
            char *got = k == 0 ? alone : out;
            if (np != 1 && np != 3 && !has_all_ranks(&m)) continue;
            if (SANITIZED && np % 2 == 0) continue;
            cr_assert_eq(run_mpirun(np, "SHEAF_CPU_DEVICES=1 SHEAF_CPU_THREADS=1", 60, got, 4096,
                                    "sheaf-run -m %s -p 'once upon' -n 12 --temp 0 --ignore-eos "
                                    "--kv-type f32 --split %s --experts %s 2> /dev/null",
                                    path, splits[np], cuts[k / 5]),
                         0, "%s on %d ranks: %s", m.name, np, got);
            cr_assert_str_eq(got, alone, "%s on %d ranks, %s", m.name, np, cuts[k / 5]);
        }
        cr_assert_gt(strlen(alone), 12, "%s wrote '%s'", m.name, alone);
    }
}
