/* Embeddings by encoders: a random BERT against an independent evaluation in float64
 * (tests/golden/evaluate.py wrote arch-bert.txt), on one device, split over members, and under
 * mpirun; what is refused; WordPiece against an independent tokenizer. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/meta.h"
#include "sheaf/model.h"
#include "sheaf/world.h"

#include "model/random_model.h"
#include "mpirun.h"
#include "temp_dir.h"

enum { VOCAB = 512, EMBD = 64, N = 20, MAX_MEMBERS = 5 };

TestSuite(embedding, .init = setup, .fini = teardown, .timeout = 300);

static const char *write_bert(void) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    const char *path = in_dir("bert.gguf");
    p.arch = "bert";
    p.n_layer = 7;
    p.n_head_kv = p.n_head;
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
    return path;
}

static void start_world(void) {
    setenv("SHEAF_CPU_DEVICES", "5", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert_eq(sheaf_world_init(NULL), 0, "%s", sheaf_last_error());
}

static struct sheaf_model *open_bert(const char *path, int members, const char *split) {
    struct sheaf_model_params p = sheaf_model_default_params();
    struct sheaf_model *model;
    char list[MAX_MEMBERS * 8] = "CPU0@0";
    p.path = path;
    p.single = members == 0;
    p.check = members > 0;
    p.split = split;
    for (int j = 1; j < members; j++) sprintf(list + strlen(list), ",CPU%d@0", j);
    if (members) p.devices = list;
    cr_assert_eq(sheaf_model_open(&p, &model), 0, "%s", sheaf_last_error());
    return model;
}

static void fill_ids(int32_t ids[N]) {
    for (int i = 0; i < N; i++) ids[i] = (37 * i + 11) % VOCAB;
}

static void embed(struct sheaf_model *model, int64_t n, enum sheaf_model_pooling pooling,
                  float got[EMBD]) {
    int32_t ids[N];
    double length = 0;
    fill_ids(ids);
    cr_assert_eq(sheaf_model_embed(model, ids, n, pooling, got), 0, "%s", sheaf_last_error());
    for (int i = 0; i < EMBD; i++) length += (double)got[i] * (double)got[i];
    cr_assert_float_eq(length, 1, 1e-6);
}

static void check_split(const char *path, int members, const char *split, const double *want) {
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    struct sheaf_model *model = open_bert(path, members, split);
    float got[EMBD];
    embed(model, N, SHEAF_MODEL_POOLING_DEFAULT, got);
    for (int i = 0; i < EMBD; i++)
        cr_assert_float_eq((double)got[i], want[i], 1e-6, "%d members, %s: %d is %f, not %f",
                           members, split, i, (double)got[i], want[i]);
    if (members > 1 && !split) {
        sheaf_backend_meta_get_stats(sheaf_model_backend(model), &stats);
        cr_assert_eq(stats.n_collectives, 1 + 7 * 2, "%d members: %d collectives", members,
                     (int)stats.n_collectives);
    }
    sheaf_model_free(model);
}

Test(embedding, is_that_of_an_independent_evaluation) {
    static const char *const uneven[] = {NULL, NULL, "3,1", "1,0,2", "1,4,1,2", "2,1,3,0,1"};
    double want[EMBD];
    const char *path = write_bert();
    FILE *f = fopen(SHEAF_SOURCE_DIR "/tests/golden/arch-bert.txt", "r");
    cr_assert_not_null(f);
    for (int i = 0; i < EMBD; i++) cr_assert_eq(fscanf(f, "%lf", &want[i]), 1);
    fclose(f);
    start_world();
    for (int members = 0; members <= MAX_MEMBERS; members++) {
        check_split(path, members, NULL, want);
        if (members > 1) check_split(path, members, uneven[members], want);
    }
    sheaf_world_finalize();
}

/* CLS and LAST are results of other tokens; a text is not changed by the one before it. */
Test(embedding, pooling) {
    float mean[EMBD], cls[EMBD], last[EMBD], again[EMBD], one[3][EMBD];
    const enum sheaf_model_pooling kinds[] = {SHEAF_MODEL_POOLING_MEAN, SHEAF_MODEL_POOLING_CLS,
                                              SHEAF_MODEL_POOLING_LAST};
    const char *path = write_bert();
    start_world();
    struct sheaf_model *model = open_bert(path, 2, NULL);
    embed(model, N, SHEAF_MODEL_POOLING_MEAN, mean);
    embed(model, N, SHEAF_MODEL_POOLING_CLS, cls);
    embed(model, N, SHEAF_MODEL_POOLING_LAST, last);
    cr_assert_neq(memcmp(mean, cls, sizeof cls), 0);
    cr_assert_neq(memcmp(last, cls, sizeof cls), 0);
    for (int i = 0; i < 3; i++) embed(model, 1, kinds[i], one[i]);
    for (int i = 1; i < 3; i++)
        for (int k = 0; k < EMBD; k++)
            cr_assert_float_eq((double)one[i][k], (double)one[0][k], 1e-6);
    embed(model, N, SHEAF_MODEL_POOLING_MEAN, again);
    cr_assert_eq(memcmp(mean, again, sizeof mean), 0);
    sheaf_model_free(model);
    sheaf_world_finalize();
}

Test(embedding, what_is_refused) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    static int32_t ids[300];
    float v[EMBD];
    const char *path = write_bert();
    start_world();
    struct sheaf_model *model = open_bert(path, 1, NULL);
    cr_assert_eq(sheaf_model_embed(model, ids, 257, SHEAF_MODEL_POOLING_MEAN, v),
                 SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "1 to 256 are possible"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_embed(model, ids, 0, SHEAF_MODEL_POOLING_MEAN, v),
                 SHEAF_STATUS_INVALID);
    ids[0] = VOCAB;
    cr_assert_eq(sheaf_model_embed(model, ids, 1, SHEAF_MODEL_POOLING_MEAN, v),
                 SHEAF_STATUS_INVALID);
    ids[0] = 0;
    cr_assert_eq(sheaf_model_prompt(model, 0, ids, 1, NULL, NULL), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "bert writes no text"), "%s", sheaf_last_error());
    sheaf_model_free(model);
    cr_assert_eq(sheaf__random_model_write(&p, in_dir("llama.gguf")), 0);
    model = open_bert(in_dir("llama.gguf"), 1, NULL);
    cr_assert_eq(sheaf_model_embed(model, ids, 1, SHEAF_MODEL_POOLING_MEAN, v),
                 SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "llama writes text"), "%s", sheaf_last_error());
    sheaf_model_free(model);
    sheaf_world_finalize();
}

/* JSON has no NaN, and an embedding is of length 1. */
Test(embedding, of_broken_weights_is_refused) {
    const float nan = NAN;
    char out[4096], cmd[512];
    const char *path = write_bert();
    struct sheaf_gguf *g;
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
    const struct sheaf_gguf_tensor *t =
        sheaf_gguf_tensor(g, sheaf_gguf_find_tensor(g, "blk.6.layer_output_norm.weight"));
    cr_assert(t && t->type == SHEAF_TYPE_F32);
    FILE *f = fopen(path, "r+b");
    cr_assert(f && fseek(f, (long)t->offset, SEEK_SET) == 0);
    cr_assert_eq(fwrite(&nan, sizeof nan, 1, f), 1);
    cr_assert_eq(fclose(f), 0);
    sheaf_gguf_free(g);
    snprintf(cmd, sizeof cmd,
             SHEAF_BUILD_DIR "/bin/sheaf-run -m %s -p 'once upon' --embedding --json 2>&1", path);
    cr_expect_eq(run_command(cmd, 30, out, sizeof out), 1, "%s", out);
    cr_expect(strstr(out, "the embedding has an infinity or NaN"), "%s", out);
    cr_expect_not(strstr(out, "{\"embedding\""), "%s", out);
}

Test(embedding, of_several_ranks_and_the_program) {
    char alone[8192], out[8192];
    const char *path = write_bert();
    for (int np = 1; np <= 5; np += 2) {
        char *got = np == 1 ? alone : out;
        cr_assert_eq(run_mpirun(np, "SHEAF_CPU_DEVICES=1 SHEAF_CPU_THREADS=1", 60, got, 8192,
                                "sheaf-run -m %s -p 'Once upon a Time, 2x!' --embedding --ids "
                                "2> /dev/null",
                                path),
                     0, "%d ranks: %s", np, got);
        cr_assert(strstr(got, "\nids: 2 "), "%s", got);
        const char *a = alone, *b = got;
        for (int i = 0; i < EMBD; i++) {
            char *ea, *eb;
            const double va = strtod(a, &ea), vb = strtod(b, &eb);
            cr_assert(ea > a && eb > b && fabs(va - vb) < 1e-6, "%d ranks: %s", np, got);
            a = ea;
            b = eb;
        }
    }
    snprintf(alone, sizeof alone, SHEAF_BUILD_DIR "/bin/sheaf-run -m %s -p 'once upon' 2>&1", path);
    cr_assert_eq(run_command(alone, 30, out, sizeof out), 1);
    cr_assert_eq(strncmp(out, "sheaf-run: a model of architecture bert writes no text", 54), 0,
                 "the prompt stands before the message: %s", out);
    cr_assert_neq(run_command(SHEAF_BUILD_DIR "/bin/sheaf-run -m x -p y --embedding --chat 2>&1",
                              30, out, sizeof out),
                  0);
    cr_assert(strstr(out, "--embedding writes no text"), "%s", out);
    cr_assert_neq(run_command(SHEAF_BUILD_DIR "/bin/sheaf-run -m x -p y --pooling mean 2>&1", 30,
                              out, sizeof out),
                  0);
    cr_assert(strstr(out, "wants --embedding"), "%s", out);
}
