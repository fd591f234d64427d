/* Masks that a device makes of numbers for cells and tokens: prompts have the same bits as with masks that the host
 * makes, and these are made where the numbers do not reach. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/world.h"

#include "model/file/load.h"
#include "model/random_model.h"
#include "model/run/evaluator.h"
#include "temp_dir.h"

enum { VOCAB = 512, N_CTX = 2600, N_BATCH = 1200, MOST_TOKENS = 1100 };

TestSuite(masks, .init = setup, .fini = teardown, .timeout = 300);

static struct sheaf__weights *open_weights(const char *arch, sheaf_backend_t backend) {
    struct sheaf__random_model_params r = sheaf__random_model_default_params();
    struct sheaf__weights *model;
    const char *path = in_dir("random.gguf");
    r.arch = arch;
    if (strcmp(arch, "gemma3"))
        r.n_layer = 1;
    else
        r.n_layer = 7; /* one with full attention */
    r.swa_window = 40;
    r.n_ctx = N_CTX;
    cr_assert_eq(sheaf__random_model_write(&r, path), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf__weights_open(path, &model), 0, "%s", sheaf_last_error());
    cr_assert_eq(
        sheaf__weights_load(model, sheaf_backend_get_default_buffer_type(backend), NULL, NULL), 0,
        "%s", sheaf_last_error());
    return model;
}

/* One batch: n tokens of sequence `seq`, those from `jump` on `by` positions behind where they would be; and how many
 * `others` of sequence 9 follow. */
struct batch {
    int n, seq, jump, by, others;
    bool by_device;
};

static void eval(struct sheaf__evaluator *e, const struct batch *b, int32_t *next, float *logits) {
    static int32_t ids[MOST_TOKENS], pos[MOST_TOKENS], seq[MOST_TOKENS];
    const int n = b->n + b->others;
    cr_assert_leq(n, MOST_TOKENS);
    for (int i = 0; i < n; i++) {
        seq[i] = i < b->n ? b->seq : 9;
        pos[i] = next[seq[i]]++;
        if (i == b->jump && b->by) next[b->seq] = (pos[i] += b->by) + 1;
        ids[i] = (pos[i] * 37 + seq[i] * 101 + 11) % VOCAB;
    }
    const struct sheaf_model_batch batch = {
        .size = sizeof batch, .n_tokens = n, .token = ids, .pos = pos, .seq = seq};
    cr_assert_eq(sheaf__evaluator_eval_batch(e, &batch), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf__evaluator_get_logits(e, logits), 0, "%s", sheaf_last_error());
}

static void same_bits(const char *arch, int64_t min_chunked) {
    static const struct batch batches[] = {
        {.n = 31},                              /* too few */
        {.n = 70, .by_device = true},           /* behind others */
        {.n = 33, .seq = 2, .by_device = true}, /* cells of another sequence before */
        {.n = 40, .seq = 2, .jump = 20, .by = 300, .by_device = true}, /* a gap */
        {.n = 40, .seq = 2, .jump = 20, .by = 1023},                   /* out of reach */
        {.n = 40, .others = 5},                                        /* of two sequences */
        {.n = 1024, .by_device = true},                                /* as far as numbers reach */
        {.n = 1025},
        {.n = 1},
    };
    static float want[VOCAB], got[VOCAB];
    sheaf_backend_t backend;
    struct sheaf__evaluator *e[2];
    setenv("SHEAF_CPU_DEVICES", "1", 1);
    setenv("SHEAF_CPU_THREADS", "2", 1);
    cr_assert_eq(sheaf_world_init(NULL), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), 0, "%s", sheaf_last_error());
    struct sheaf__weights *model = open_weights(arch, backend);
    for (int i = 0; i < 2; i++) {
        const struct sheaf__evaluator_params p = {.n_ctx = N_CTX,
                                                  .n_batch = N_BATCH,
                                                  .type = SHEAF_TYPE_F16,
                                                  .min_chunked = min_chunked,
                                                  .device_masks = i == 1};
        cr_assert_eq(sheaf__evaluator_new(model, backend, &p, &e[i]), 0, "%s", sheaf_last_error());
    }
    int32_t next[2][16] = {{0}};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        eval(e[0], &batches[i], next[0], want);
        eval(e[1], &batches[i], next[1], got);
        cr_assert_not(sheaf__evaluator_made_masks(e[0]));
        if (!min_chunked)
            cr_assert_eq(sheaf__evaluator_made_masks(e[1]), batches[i].by_device, "batch %zu", i);
        cr_assert_arr_eq(got, want, sizeof want, "batch %zu", i);
        if (i == 2) /* cells in the middle are free, and are taken again */
            for (int j = 0; j < 2; j++)
                sheaf__cells_remove(sheaf__evaluator_cells(e[j]), 0, 20, 60);
    }
    for (int i = 0; i < 2; i++) sheaf__evaluator_free(e[i]);
    sheaf__weights_free(model);
    sheaf_backend_free(backend);
}

Test(masks, same_bits) { same_bits("llama", 0); }
Test(masks, same_bits_with_windows) { same_bits("gemma3", 0); }
Test(masks, same_bits_in_two_chunks) { same_bits("gemma3", 64); }
