/* Every architecture of archs.def against an independent evaluation of a random model in float64
 * (tests/golden/evaluate.py wrote arch-NAME.txt), on one device and split over 1 to 4 members, and
 * under mpirun. A new architecture is tested once its file is there. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/meta.h"
#include "sheaf/model.h"
#include "sheaf/world.h"

#include "model/arch/arch.h"
#include "model/random_model.h"
#include "mpirun.h"
#include "temp_dir.h"

enum { VOCAB = 512, N = 20, MAX_MEMBERS = 4 };

TestSuite(arch, .init = setup, .fini = teardown, .timeout = 600);

/* The model that the golden file is about. */
static const char *write_model(const struct sheaf__arch *arch) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    const char *path = in_dir("arch.gguf");
    p.arch = arch->name;
    p.n_layer = 7;
    p.swa_window = 8;
    if (arch->needs & SHEAF__W_BIT(ROUTER)) {
        p.n_expert = 6;
        p.n_expert_used = 3;
    }
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
    return path;
}

static void read_golden(const struct sheaf__arch *arch, double want[VOCAB]) {
    char path[300];
    snprintf(path, sizeof path, SHEAF_SOURCE_DIR "/tests/golden/arch-%s.txt", arch->name);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s: write it with tests/golden/evaluate.py", path);
    for (int i = 0; i < VOCAB; i++) cr_assert_eq(fscanf(f, "%lf", &want[i]), 1, "%s", path);
    fclose(f);
}

/* A sum for the embedding, one for each half of a layer, of experts cut by rows one more. The
 * logits add a gather, which their reader asked for. */
static void count_sums(const struct sheaf_model *model, const char *experts) {
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    const uint64_t halves = strcmp(experts, "rows") == 0 ? 3 : 2;
    sheaf_backend_meta_get_stats(sheaf_model_backend(model), &stats);
    cr_assert_eq(stats.n_collectives, 1 + 7 * halves, "%s: %d collectives", experts,
                 (int)stats.n_collectives);
}

/* Logits after N tokens, which come in batches of n_batch. members 0: without the meta device. */
static void evaluate(const char *path, int members, const char *experts, int64_t n_batch,
                     float got[VOCAB]) {
    struct sheaf_model_params p = sheaf_model_default_params();
    struct sheaf_model *model;
    int32_t ids[N];
    p.path = path;
    p.single = members == 0;
    p.check = members > 0;
    p.kv_type = SHEAF_TYPE_F32;
    p.n_batch = n_batch;
    p.experts = experts;
    for (int i = 0; i < N; i++) ids[i] = (37 * i + 11) % VOCAB;
    char list[MAX_MEMBERS * 8] = "CPU0@0";
    for (int j = 1; j < members; j++) sprintf(list + strlen(list), ",CPU%d@0", j);
    if (members) p.devices = list;
    cr_assert_eq(sheaf_model_open(&p, &model), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_prompt(model, 0, ids, N, NULL, NULL), 0, "%s", sheaf_last_error());
    if (members > 1 && n_batch > N) count_sums(model, experts);
    cr_assert_eq(sheaf_model_get_logits(model, got), 0, "%s", sheaf_last_error());
    sheaf_model_free(model);
}

/* Logits reach 6 or so; float32 leaves 1e-5 of that. */
static void compare(const char *arch, int members, const char *how, const float *got,
                    const double *want) {
    for (int i = 0; i < VOCAB; i++)
        cr_assert_float_eq((double)got[i], want[i], 1e-4,
                           "%s on %d members, %s: logit %d is %f, not %f", arch, members, how, i,
                           (double)got[i], want[i]);
}

static void start_world(void) {
    setenv("SHEAF_CPU_DEVICES", "4", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert_eq(sheaf_world_init(NULL), 0, "%s", sheaf_last_error());
}

Test(arch, logits_are_those_of_an_independent_evaluation) {
    static double want[VOCAB];
    static float got[VOCAB];
    start_world();
    for (size_t i = 0; sheaf__arch_get(i); i++) {
        const struct sheaf__arch *arch = sheaf__arch_get(i);
        const bool mixture = arch->needs & SHEAF__W_BIT(ROUTER);
        static const char *const cuts[] = {"auto", "columns", "rows", "whole"};
        const char *path = write_model(arch);
        double spread = 0;
        read_golden(arch, want);
        for (int k = 0; k < VOCAB; k++) spread = fmax(spread, fabs(want[k]));
        cr_assert_gt(spread, 0.5, "%s: all logits are near zero", arch->name);
        for (int members = 0; members <= MAX_MEMBERS; members++)
            for (int cut = 0; cut < (mixture && members ? 4 : 1); cut++) {
                evaluate(path, members, members ? cuts[cut] : NULL, 512, got);
                compare(arch->name, members, cuts[cut], got, want);
                if (members != 3) continue;
                evaluate(path, members, cuts[cut], 1, got); /* token by token */
                compare(arch->name, members, cuts[cut], got, want);
            }
    }
    sheaf_world_finalize();
}

/* Greedy tokens of a job are those of one process, however many ranks it has. */
Test(arch, ranks_write_what_one_writes) {
    char alone[4096], out[4096];
    for (size_t i = 0; sheaf__arch_get(i); i++) {
        const struct sheaf__arch *arch = sheaf__arch_get(i);
        const char *path = write_model(arch);
        for (int np = 1; np <= 3; np++) {
            char *got = np == 1 ? alone : out;
            cr_assert_eq(run_mpirun(np, "SHEAF_CPU_DEVICES=1 SHEAF_CPU_THREADS=1", 60, got, 4096,
                                    "sheaf-run -m %s -p 'once upon' -n 12 --temp 0 --ignore-eos "
                                    "--kv-type f32 2> /dev/null",
                                    path),
                         0, "%s on %d ranks: %s", arch->name, np, got);
            cr_assert_str_eq(got, alone, "%s on %d ranks", arch->name, np);
        }
        cr_assert_gt(strlen(alone), 12, "%s wrote '%s'", arch->name, alone);
    }
}
