/* Several sequences in one K/V cache: the bookkeeping of its cells, and models whose sequences must
 * not see each other, on one device and on three members. */
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/model.h"
#include "sheaf/world.h"

#include "model/random_model.h"
#include "model/run/cells.h"
#include "temp_dir.h"

enum { VOCAB = 512, N = 24 };

TestSuite(sequences, .init = setup, .fini = teardown, .timeout = 300);

/* ---- cells ---- */

static void take(struct sheaf__cells *c, int seq, int n, int64_t first) {
    for (int i = 0; i < n; i++)
        cr_assert_eq(sheaf__cells_take(c, seq, c->next[seq]), first + i, "token %d", i);
}

static bool sees(const struct sheaf__cells *c, int cell, int seq, int32_t pos, int64_t window) {
    int32_t positions[8];
    uint16_t row[8];
    cr_assert_leq(c->n, 8);
    sheaf__cells_positions(c, seq, positions, c->n);
    sheaf__cells_mask(positions, c->n, pos, window, row);
    cr_assert(row[cell] == 0 || row[cell] == 0xfc00);
    return row[cell] == 0;
}

Test(sequences, one_sequence_has_position_i_in_cell_i) {
    struct sheaf__cells c;
    cr_assert_eq(sheaf__cells_init(&c, 8), 0);
    take(&c, 0, 8, 0);
    cr_assert_eq(sheaf__cells_take(&c, 0, 8), -1, "all cells are in use");
    cr_assert(c.n_used == 8 && c.end == 8 && c.next[0] == 8);
    for (int i = 0; i < 8; i++)
        for (int pos = 0; pos < 8; pos++) {
            cr_assert_eq(sees(&c, i, 0, pos, 0), i <= pos);
            cr_assert_eq(sees(&c, i, 0, pos, 3), i <= pos && pos - i < 3);
            cr_assert_eq(sees(&c, i, 0, pos, (int64_t)1 << 40), i <= pos);
            cr_assert_not(sees(&c, i, 1, pos, 0));
        }
    sheaf__cells_clear(&c);
    cr_assert(c.n_used == 0 && c.end == 0 && c.next[0] == 0);
    take(&c, 5, 2, 0);
    sheaf__cells_free(&c);
}

Test(sequences, cells_are_removed_copied_and_taken_again) {
    struct sheaf__cells c;
    cr_assert_eq(sheaf__cells_init(&c, 8), 0);
    take(&c, 0, 3, 0);
    take(&c, 1, 3, 3);
    sheaf__cells_remove(&c, 0, 1, INT32_MAX); /* cells 1, 2 */
    cr_assert(c.n_used == 4 && c.end == 6 && c.low == 1 && c.next[0] == 1 && c.next[1] == 3);
    take(&c, 2, 2, 1);
    take(&c, 2, 1, 6);
    cr_assert_eq(sheaf__cells_copy(&c, 1, 3, 0, 2), 0); /* positions 0, 1 of cells 3, 4 */
    cr_assert(c.n_used == 7 && c.next[3] == 2);
    cr_assert(sees(&c, 3, 3, 1, 0) && sees(&c, 4, 3, 1, 0));
    cr_assert_not(sees(&c, 5, 3, 7, 0));
    cr_assert_eq(sheaf__cells_copy(&c, 2, 3, 0, 9), SHEAF_STATUS_INVALID);
    sheaf__cells_remove(&c, 1, 0, INT32_MAX); /* its cells 3, 4 still belong to sequence 3 */
    cr_assert(c.n_used == 6 && c.low == 5 && c.next[1] == 0 && c.next[3] == 2);
    sheaf__cells_remove(&c, -1, 0, INT32_MAX);
    cr_assert(c.n_used == 0 && c.end == 0 && c.low == 0);
    sheaf__cells_free(&c);
}

/* ---- models ---- */

static struct sheaf_model *open_model(const char *arch, int members) {
    static bool started;
    struct sheaf__random_model_params r = sheaf__random_model_default_params();
    struct sheaf_model_params p = sheaf_model_default_params();
    struct sheaf_model *model;
    r.arch = arch;
    r.n_layer = 7; /* gemma3: one with full attention */
    r.swa_window = 8;
    p.path = in_dir("random.gguf");
    cr_assert_eq(sheaf__random_model_write(&r, p.path), 0, "%s", sheaf_last_error());
    setenv("SHEAF_CPU_DEVICES", members == 3 ? "3" : "1", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    if (!started) cr_assert_eq(sheaf_world_init(NULL), 0, "%s", sheaf_last_error());
    started = true;
    p.kv_type = SHEAF_TYPE_F32;
    p.n_ctx = 3 * N + 5;
    p.n_batch = 32;
    cr_assert_eq(sheaf_model_open(&p, &model), 0, "%s", sheaf_last_error());
    return model;
}

static int32_t token(int seq, int pos) { return (int32_t)((pos * 37 + seq * 101 + 11) % VOCAB); }

/* Evaluates n tokens, of sequences and with logits as given, into rows. */
static void eval(struct sheaf_model *model, int n, const int32_t *ids, const int32_t *seq,
                 const bool *wanted, float *rows) {
    const struct sheaf_model_batch batch = {
        .size = sizeof batch, .n_tokens = n, .token = ids, .seq = seq, .logits = wanted};
    cr_assert_eq(sheaf_model_eval(model, &batch), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_get_logits(model, rows), 0, "%s", sheaf_last_error());
}

static void is_near(const float *got, const float *want, const char *what) {
    double e = 0, r = 0;
    for (int i = 0; i < VOCAB; i++) {
        const double d = (double)got[i] - (double)want[i];
        e += d * d;
        r += (double)want[i] * (double)want[i];
    }
    cr_assert(r > 0 && e / r < 1e-10, "%s: %g", what, e / r);
}

/* Logits of each of N tokens of a sequence alone. */
static void alone(struct sheaf_model *model, int seq, float rows[N][VOCAB]) {
    int32_t ids[N];
    bool all[N];
    for (int i = 0; i < N; i++) ids[i] = token(seq, i);
    memset(all, 1, sizeof all);
    sheaf_model_cache_clear(model);
    eval(model, N, ids, NULL, all, rows[0]);
    cr_assert_eq(sheaf_model_cache_end(model, 0), N);
}

static void interleave(const char *arch, int members) {
    static float want[2][N][VOCAB], got[8][VOCAB];
    static const int seqs[2] = {3, 60};
    struct sheaf_model *model = open_model(arch, members);
    alone(model, 0, want[0]);
    alone(model, 1, want[1]);
    sheaf_model_cache_clear(model);
    /* uneven turns in one batch: 1 + 3 of one, 2 + 2 of the other; of each turn the last is wanted
     */
    for (int round = 0; round < N / 4; round++) {
        static const int turn[4][3] = {{0, 0, 1}, {1, 0, 2}, {0, 1, 4}, {1, 2, 4}};
        int32_t ids[8], seq[8];
        bool wanted[8];
        int n = 0;
        for (int t = 0; t < 4; t++)
            for (int i = turn[t][1]; i < turn[t][2]; i++, n++) {
                ids[n] = token(turn[t][0], 4 * round + i);
                seq[n] = seqs[turn[t][0]];
                wanted[n] = i == turn[t][2] - 1;
            }
        cr_assert_eq(n, 8);
        eval(model, n, ids, seq, wanted, got[0]);
        cr_assert_eq(sheaf_model_n_rows(model), 4);
        for (int t = 0; t < 4; t++)
            is_near(got[t], want[turn[t][0]][4 * round + turn[t][2] - 1], "interleaved");
        /* the candidates of a row are those of its logits */
        const struct sheaf_candidates *best;
        bool stop = false;
        cr_assert_eq(sheaf_model_get_candidates(model, 3, 1, false, &stop, &best), 0);
        for (int i = 0; i < VOCAB; i++) cr_assert_leq(got[3][i], best->data[0].logit);
        cr_assert_eq(got[3][best->data[0].id], best->data[0].logit);
    }
    cr_assert_eq(sheaf_model_cache_end(model, 3), N);
    cr_assert_eq(sheaf_model_cache_end(model, 60), N);
    cr_assert_eq(sheaf_model_cache_room(model), N + 5);
    sheaf_model_free(model);
}

Test(sequences, interleaved_as_alone) { interleave("llama", 1); }
Test(sequences, interleaved_as_alone_three_members) { interleave("llama", 3); }
Test(sequences, interleaved_as_alone_with_windows) { interleave("gemma3", 3); }

/* A prompt is evaluated once, and two answers go on from it; then one answer is taken back. */
Test(sequences, a_copy_goes_on_by_itself) {
    static float want[2][N][VOCAB], got[1][VOCAB];
    struct sheaf_model *model = open_model("llama", 1);
    int32_t ids[N];
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < N; i++) ids[i] = token(i < N / 2 ? 0 : s, i);
        bool all[N];
        memset(all, 1, sizeof all);
        sheaf_model_cache_clear(model);
        eval(model, N, ids, NULL, all, want[s][0]);
    }
    sheaf_model_cache_clear(model);
    for (int i = 0; i < N; i++) ids[i] = token(0, i);
    cr_assert_eq(sheaf_model_prompt(model, 7, ids, N / 2, NULL, NULL), 0);
    cr_assert_eq(sheaf_model_cache_copy(model, 7, 8, 0, -1), 0);
    cr_assert_eq(sheaf_model_cache_room(model), 3 * N + 5 - N / 2, "a copy takes no cells");
    for (int again = 0; again < 2; again++) {
        for (int i = N / 2; i < N; i++)
            for (int s = 0; s < 2; s++) {
                const int32_t id = token(s, i), seq = 7 + s;
                if (again && s == 0) continue;
                eval(model, 1, &id, &seq, NULL, got[0]);
                is_near(got[0], want[s][i], again ? "again" : "a copy");
            }
        cr_assert_eq(sheaf_model_cache_end(model, 8), N);
        cr_assert_eq(sheaf_model_cache_remove(model, 8, N / 2, -1), 0);
        cr_assert_eq(sheaf_model_cache_end(model, 8), N / 2);
    }
    sheaf_model_free(model);
}

static void refuses(struct sheaf_model *model, struct sheaf_model_batch batch, const char *text) {
    const int64_t room = sheaf_model_cache_room(model);
    batch.size = sizeof batch;
    cr_assert_eq(sheaf_model_eval(model, &batch), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), text), "'%s' is not in: %s", text, sheaf_last_error());
    cr_assert_eq(sheaf_model_cache_room(model), room, "a refused batch took cells");
}

Test(sequences, wrong_batches_are_refused) {
    struct sheaf_model *model = open_model("llama", 1);
    const int32_t ids[2] = {1, 2}, twice[2] = {4, 4}, seq[2] = {0, 64}, bad[2] = {1, VOCAB};
    float row[VOCAB];
    const struct sheaf_candidates *best;
    bool stop = false;
    cr_assert_eq(sheaf_model_get_candidates(model, 0, 1, false, &stop, &best),
                 SHEAF_STATUS_INVALID);
    eval(model, 2, ids, NULL, NULL, row);
    refuses(model, (struct sheaf_model_batch){.n_tokens = 2, .token = ids, .pos = twice},
            "position 4 of sequence 0, which goes on at 5");
    refuses(model, (struct sheaf_model_batch){.n_tokens = 2, .token = ids, .seq = seq},
            "sequence 64 is not one of 0..63");
    refuses(model, (struct sheaf_model_batch){.n_tokens = 2, .token = bad}, "vocabulary");
    refuses(model, (struct sheaf_model_batch){.n_tokens = 33, .token = ids},
            "a batch of 33 tokens; 1 to 32 are possible");
    cr_assert_eq(sheaf_model_cache_end(model, 0), 2);
    cr_assert_eq(sheaf_model_cache_remove(model, 64, 0, -1), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_model_cache_copy(model, 0, 1, 2, 1), SHEAF_STATUS_INVALID);
    struct sheaf_model_info info = {.size = 4096};
    cr_assert_eq(sheaf_model_get_info(model, &info), SHEAF_STATUS_INVALID);
    sheaf_model_free(model);
}

/* A batch in which no token's logits are wanted has those of the last. */
Test(sequences, logits_of_none_are_those_of_the_last) {
    static float want[VOCAB], got[VOCAB];
    struct sheaf_model *model = open_model("llama", 1);
    const int32_t ids[3] = {1, 2, 3};
    const bool none[3] = {false, false, false};
    eval(model, 3, ids, NULL, NULL, want);
    sheaf_model_cache_clear(model);
    eval(model, 3, ids, NULL, none, got);
    cr_assert_eq(sheaf_model_n_rows(model), 1);
    cr_assert_arr_eq(got, want, sizeof want);
    sheaf_model_free(model);
}

/* A caller of an earlier version, whose struct ends earlier, gets and gives as much. */
Test(sequences, structs_may_be_shorter) {
    struct sheaf_model *model = open_model("llama", 1);
    struct sheaf_model_info info;
    memset(&info, 0x55, sizeof info);
    info.size = offsetof(struct sheaf_model_info, n_ctx);
    cr_assert_eq(sheaf_model_get_info(model, &info), 0);
    cr_assert_eq(info.n_vocab, VOCAB);
    cr_assert_eq(info.n_ctx, 0x5555555555555555);
    sheaf_model_free(model);
}

/* A caller of an earlier version, whose struct ends earlier, gets the defaults of what it lacks. */
Test(sequences, params_may_be_shorter) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    struct sheaf_model_params mp = sheaf_model_default_params();
    struct sheaf_model_info info = {.size = sizeof info};
    struct sheaf_model *model;
    cr_assert_eq(sheaf__random_model_write(&p, in_dir("short.gguf")), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_world_init(NULL), 0, "%s", sheaf_last_error());
    mp.path = in_dir("short.gguf");
    mp.size = offsetof(struct sheaf_model_params, kv_type);
    mp.kv_type = SHEAF_TYPE_Q8_0;
    cr_assert_eq(sheaf_model_open(&mp, &model), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_get_info(model, &info), 0, "%s", sheaf_last_error());
    cr_expect_eq(info.kv_type, SHEAF_TYPE_F16);
    sheaf_model_free(model);
    sheaf_world_finalize();
}

/* A model with states: the same logits in one batch, token by token, and again after it forgot; other
 * sequences, parts of one and copies are refused. */
Test(sequences, of_a_model_with_states) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    struct sheaf_model_params mp = sheaf_model_default_params();
    static float want[512], got[512];
    int32_t ids[20], seqs[1] = {1};
    struct sheaf_model *model;
    p.arch = "mamba2";
    for (int i = 0; i < 20; i++) ids[i] = (37 * i + 11) % 512;
    cr_assert_eq(sheaf__random_model_write(&p, in_dir("state.gguf")), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_world_init(NULL), 0, "%s", sheaf_last_error());
    mp.path = in_dir("state.gguf");
    cr_assert_eq(sheaf_model_open(&mp, &model), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_prompt(model, 0, ids, 20, NULL, NULL), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_get_logits(model, want), 0);
    for (int round = 0; round < 2; round++) {
        if (round)
            sheaf_model_cache_clear(model);
        else
            cr_assert_eq(sheaf_model_cache_remove(model, 0, 0, -1), 0, "%s", sheaf_last_error());
        for (int i = 0; i < 20; i++) {
            const struct sheaf_model_batch b = {.size = sizeof b, .n_tokens = 1, .token = &ids[i]};
            cr_assert_eq(sheaf_model_eval(model, &b), 0, "%s", sheaf_last_error());
        }
        cr_assert_eq(sheaf_model_get_logits(model, got), 0);
        for (int k = 0; k < 512; k++)
            cr_assert_float_eq((double)got[k], (double)want[k], 1e-4, "round %d", round);
    }
    const struct sheaf_model_batch other = {
        .size = sizeof other, .n_tokens = 1, .token = ids, .seq = seqs};
    cr_assert_eq(sheaf_model_eval(model, &other), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "the state of one sequence"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_cache_remove(model, 0, 5, -1), SHEAF_STATUS_UNSUPPORTED);
    cr_assert_eq(sheaf_model_cache_copy(model, 0, 1, 0, -1), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "keeps a state"), "%s", sheaf_last_error());
    sheaf_model_free(model);
    sheaf_world_finalize();
}

/* A hole is filled first, and the cells behind it stay in use: what is read of the cache ends behind
 * the last of them. */
Test(sequences, a_hole_is_filled_and_the_end_stays) {
    struct sheaf__cells c;
    cr_assert_eq(sheaf__cells_init(&c, 8), 0);
    for (int32_t i = 0; i < 3; i++) cr_assert_eq(sheaf__cells_take(&c, 0, i), i);
    for (int32_t i = 0; i < 2; i++) cr_assert_eq(sheaf__cells_take(&c, 1, i), 3 + i);
    sheaf__cells_remove(&c, 0, 0, 3);
    cr_expect_eq(c.end, 5);
    cr_expect_eq(sheaf__cells_take(&c, 2, 0), 0);
    cr_expect_eq(c.end, 5, "the cells of sequence 1 count");
    sheaf__cells_remove(&c, -1, 0, INT32_MAX);
    cr_expect_eq(c.end, 0);
    cr_expect_eq(sheaf__cells_take(&c, 3, 0), 0, "the first cell is free again");
    cr_expect_eq(c.end, 1);
    sheaf__cells_free(&c);
}
