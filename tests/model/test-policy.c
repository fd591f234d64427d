/* The split policy: cuts of heads, and of every tensor of models with odd shapes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sheaf/settings.h"

#include "model/arch/tag.h"
#include "model/place/policy.h"
#include "model/random_model.h"

enum { MAX_MEMBERS = 8 };

/* ---- arithmetic ---- */

static void units(int64_t n, int members, const double *shares, const int64_t *want) {
    int64_t counts[MAX_MEMBERS];
    sheaf__split_units(n, shares, members, counts);
    for (int j = 0; j < members; j++)
        cr_assert_eq(counts[j], want[j], "member %d of %d has %ld of %ld", j, members, counts[j],
                     n);
}

Test(policy, largest_remainders) {
    units(10, 3, (double[]){1, 1, 1}, (int64_t[]){4, 3, 3});
    units(6, 2, (double[]){3, 1}, (int64_t[]){5, 1}); /* 4.5 and 1.5: a tie goes to the lower */
    units(7, 3, (double[]){1, 2, 1}, (int64_t[]){2, 3, 2});
    units(5, 3, (double[]){1, 0, 1}, (int64_t[]){3, 0, 2});
    units(1, 4, (double[]){1, 1, 1, 1}, (int64_t[]){1, 0, 0, 0});
    units(0, 2, (double[]){1, 1}, (int64_t[]){0, 0});
    units(49152, 2, (double[]){2, 1}, (int64_t[]){32768, 16384});
}

/* Checks the laws of a cut of heads; with `want`, the counts of query heads too. */
static void heads(int64_t g, int64_t r, int members, const double *shares, const int64_t *want) {
    int64_t qf[MAX_MEMBERS], qc[MAX_MEMBERS], kf[MAX_MEMBERS], kc[MAX_MEMBERS], at = 0;
    cr_assert_eq(sheaf__split_heads(g, r, shares, members, qf, qc, kf, kc), 0);
    for (int j = 0; j < members; j++) {
        if (want)
            cr_assert_eq(qc[j], want[j], "%ld x %ld heads: member %d has %ld, not %ld", g, r, j,
                         qc[j], want[j]);
        cr_assert_eq(qc[j] > 0, kc[j] > 0);
        if (!(shares[j] > 0)) cr_assert_eq(qc[j], 0);
        if (!qc[j]) continue;
        cr_assert_eq(qf[j], at, "the heads are not in order");
        at += qc[j];
        bool whole = qf[j] % r == 0 && qc[j] % r == 0;
        bool inside = qf[j] / r == (qf[j] + qc[j] - 1) / r;
        cr_assert(whole || inside, "member %d straddles groups", j);
        cr_assert_eq(kf[j], qf[j] / r);
        cr_assert_eq(kf[j] + kc[j], (qf[j] + qc[j] - 1) / r + 1);
    }
    cr_assert_eq(at, g * r, "heads are missing");
}

Test(policy, heads_of_known_models) {
    heads(3, 3, 1, (double[]){1}, (int64_t[]){9});
    heads(3, 3, 2, (double[]){1, 1}, (int64_t[]){6, 3}); /* SmolLM2 on 2 */
    heads(3, 3, 2, (double[]){1, 2}, (int64_t[]){3, 6});
    heads(3, 3, 3, (double[]){1, 1, 1}, (int64_t[]){3, 3, 3});
    heads(3, 3, 4, (double[]){1, 1, 1, 1}, NULL);
    heads(1, 4, 4, (double[]){1, 1, 1, 1}, (int64_t[]){1, 1, 1, 1}); /* one K/V head on 4 */
    heads(1, 4, 2, (double[]){3, 1}, (int64_t[]){3, 1});
    heads(2, 4, 4, (double[]){1, 1, 1, 1}, (int64_t[]){2, 2, 2, 2});
    heads(5, 1, 3, (double[]){1, 1, 1}, NULL); /* 5 heads on 3 */
    heads(4, 2, 3, (double[]){1, 1, 1}, NULL);
    heads(8, 4, 2, (double[]){1, 1}, (int64_t[]){16, 16});
    heads(2, 4, 3, (double[]){1, 0, 1}, (int64_t[]){4, 0, 4}); /* an empty member */
    heads(2, 4, 3, (double[]){0, 0, 1}, (int64_t[]){0, 0, 8});
    heads(4, 2, 2, (double[]){3, 1}, (int64_t[]){6, 2});
    heads(1, 2, 4, (double[]){1, 1, 1, 1}, NULL); /* more members than heads */
}

Test(policy, heads_of_all_small_models) {
    const double sets[][4] = {{1, 1, 1, 1}, {3, 1, 1, 2}, {1, 0, 2, 1}, {5, 1, 0, 0}, {0, 1, 1, 9}};
    for (int64_t g = 1; g <= 6; g++)
        for (int64_t r = 1; r <= 6; r++)
            for (int members = 1; members <= 4; members++)
                for (int s = 0; s < 5; s++) {
                    double sum = 0;
                    for (int j = 0; j < members; j++) sum += sets[s][j];
                    if (sum > 0) heads(g, r, members, sets[s], NULL);
                }
}

/* A search through all cuts in which members have whole groups, or divide one in proportion. */
struct every_cut {
    int64_t g, r;
    int members;
    const double *shares;
    double sum, slowest, distance; /* of the best */
    int64_t best[MAX_MEMBERS], counts[MAX_MEMBERS];
};

static void judge(struct every_cut *e) {
    double slowest = 0, distance = 0;
    for (int j = 0; j < e->members; j++) {
        const double n = (double)e->counts[j],
                     ideal = e->shares[j] / e->sum * (double)(e->g * e->r);
        if (n > 0) slowest = fmax(slowest, n / e->shares[j]);
        distance += (n - ideal) * (n - ideal);
    }
    if (slowest > e->slowest || (!(slowest < e->slowest) && distance > e->distance - 1e-6)) return;
    e->slowest = slowest;
    e->distance = distance;
    memcpy(e->best, e->counts, sizeof e->best);
}

static void cut_from(struct every_cut *e, int j, int64_t gi) {
    if (j == e->members) {
        if (gi == e->g) judge(e);
        return;
    }
    for (int64_t k = e->shares[j] > 0 ? e->g - gi : 0; k >= 0; k--) {
        e->counts[j] = k * e->r;
        cut_from(e, j + 1, gi + k);
    }
    for (int m = 2; gi < e->g && m <= e->members - j; m++) {
        if (!(sheaf__sum_of_shares(e->shares + j, m) > 0)) continue;
        sheaf__split_units(e->r, e->shares + j, m, e->counts + j);
        cut_from(e, j + m, gi + 1);
    }
}

static void best_of_all(int64_t g, int64_t r, int members, const double *shares) {
    struct every_cut e = {.g = g,
                          .r = r,
                          .members = members,
                          .shares = shares,
                          .sum = sheaf__sum_of_shares(shares, members),
                          .slowest = INFINITY,
                          .distance = INFINITY};
    int64_t first[MAX_MEMBERS], kv_first[MAX_MEMBERS], kv_count[MAX_MEMBERS];
    cut_from(&e, 0, 0);
    cr_assert_eq(sheaf__split_heads(g, r, shares, members, first, e.counts, kv_first, kv_count), 0);
    const double slowest = e.slowest, distance = e.distance;
    e.slowest = e.distance = INFINITY;
    judge(&e);
    cr_assert_float_eq(e.slowest, slowest, 1e-12, "%ld x %ld heads on %d: %g, best %g", g, r,
                       members, e.slowest, slowest);
    cr_assert_float_eq(e.distance, distance, 1e-4, "%ld x %ld heads on %d: %g, best %g", g, r,
                       members, e.distance, distance);
    heads(g, r, members, shares, NULL);
}

/* Shares that are even, whole numbers, tenths, and any: 4,000 cases, of which some have members
 * that get nothing in the middle of a group. */
Test(policy, heads_are_cut_as_well_as_they_can) {
    srand(1);
    for (int i = 0; i < 4000; i++) {
        const int64_t g = 1 + rand() % 4, r = 1 + rand() % 5;
        const int members = 1 + rand() % 6;
        double shares[MAX_MEMBERS], sum = 0;
        for (int j = 0; j < members; j++) {
            shares[j] = i % 4 == 0   ? 1.0 / members
                        : i % 4 == 1 ? rand() % 4
                        : i % 4 == 2 ? rand() % 10 / 10.0
                                     : 0.5 + rand() / (double)RAND_MAX;
            sum += shares[j];
        }
        if (sum > 0) best_of_all(g, r, members, shares);
    }
}

/* The fastest cut for the last members alone is not always nearest when the first are slower. */
Test(policy, the_nearest_of_the_fastest) {
    best_of_all(4, 1, 6, (double[]){1, 1, 2, 1, 3, 1});
    heads(4, 1, 6, (double[]){1, 1, 2, 1, 3, 1}, (int64_t[]){1, 1, 1, 0, 1, 0});
}

/* Rounding must not decide between cuts that are as good. */
Test(policy, lower_members_get_more_groups) {
    for (int k = 1; k <= 7; k++) {
        double even[MAX_MEMBERS];
        for (int j = 0; j < MAX_MEMBERS; j++) even[j] = 1.0 / k;
        heads(8, 4, 6, even, (int64_t[]){8, 8, 4, 4, 4, 4});
        heads(8, 4, 7, even, (int64_t[]){8, 4, 4, 4, 4, 4, 4});
        heads(32, 1, 5, even, (int64_t[]){7, 7, 6, 6, 6});
        heads(1, 4, 6, even, (int64_t[]){0, 0, 1, 1, 1, 1});
        heads(3, 1, 8, even, (int64_t[]){1, 1, 1, 0, 0, 0, 0, 0});
    }
}

/* As many as sheaf-info imagines: the time must grow with them, not with their cube. */
Test(policy, thousands_of_members, .timeout = 60) {
    enum { N = 4096 };
    static double shares[N];
    static int64_t first[N], count[N], kv_first[N], kv_count[N];
    for (int uneven = 0; uneven < 2; uneven++) {
        int64_t at = 0;
        for (int j = 0; j < N; j++) shares[j] = uneven ? 1 + 0.37 * ((j * 7919) % 1000) / 1000 : 1;
        cr_assert_eq(
            sheaf__split_heads_in_runs(8, 16, 1, shares, N, first, count, kv_first, kv_count), 0);
        for (int j = 0; j < N; j++) {
            cr_assert(count[j] == 0 || (count[j] == 1 && first[j] == at && kv_first[j] == at / 16));
            at += count[j];
        }
        cr_assert_eq(at, 128);
        sheaf__split_units(1 << 20, shares, N, count);
        for (int j = 0; j < N; j++) at += count[j];
        cr_assert_eq(at, 128 + (1 << 20));
    }
}

/* Checks the laws of a cut in runs: all heads in order, on members with a share; K/V heads are those
 * touched; no member has many more of them by its share than in the cut of whole groups, and where groups
 * are divided, the slowest member gains. */
static bool runs(int64_t g, int64_t r, int64_t unit, int members, const double *shares,
                 const int64_t *want) {
    int64_t cut[2][4][MAX_MEMBERS], at = 0;
    double slowest[2] = {0}, most[2] = {0};
    bool divided = false;
    cr_assert_eq(
        sheaf__split_heads(g, r, shares, members, cut[0][0], cut[0][1], cut[0][2], cut[0][3]), 0);
    cr_assert_eq(sheaf__split_heads_in_runs(g, r, unit, shares, members, cut[1][0], cut[1][1],
                                            cut[1][2], cut[1][3]),
                 0);
    for (int j = 0; j < members; j++) {
        const int64_t first = cut[1][0][j], n = cut[1][1][j], kf = cut[1][2][j], kn = cut[1][3][j];
        for (int k = 0; k < 2 && shares[j] > 0; k++) {
            slowest[k] = fmax(slowest[k], (double)(cut[k][1][j] + cut[k][3][j]) / shares[j]);
            most[k] = fmax(most[k], (double)cut[k][3][j] / shares[j]);
        }
        if (want) cr_assert_eq(n, want[j], "member %d has %ld heads, not %ld", j, n, want[j]);
        if (!n) cr_assert_eq(kn, 0);
        if (!n) continue;
        cr_assert_gt(shares[j], 0);
        cr_assert_eq(first, at);
        cr_assert_eq(kf, first / r);
        cr_assert_eq(kf + kn, (first + n - 1) / r + 1);
        const bool whole = first % r == 0 && n % r == 0, inside = kn == 1;
        divided = divided || !(whole || inside);
        if (!whole && !inside) cr_assert_eq(first % unit + n % unit, 0);
        at += n;
    }
    cr_assert_eq(at, g * r);
    cr_assert_leq(most[1], most[0] * 9 / 8);
    cr_assert_leq(slowest[1], divided ? slowest[0] * 15 / 16 : slowest[0]);
    return divided;
}

Test(policy, heads_in_runs) {
    cr_assert(runs(3, 3, 1, 2, (double[]){1, 1}, (int64_t[]){5, 4})); /* SmolLM2 on 2 */
    cr_assert(runs(3, 3, 1, 2, (double[]){1, 1.1}, (int64_t[]){4, 5}));
    cr_assert(!runs(3, 3, 3, 2, (double[]){1, 1}, (int64_t[]){6, 3})); /* blocks of three heads */
    cr_assert(!runs(3, 3, 1, 3, (double[]){1, 1, 1}, (int64_t[]){3, 3, 3}));
    cr_assert(!runs(8, 4, 1, 2, (double[]){1, 1}, (int64_t[]){16, 16}));
    /* so many heads that a file may name: the search would take seconds */
    cr_assert(runs(3, 1365, 1, 2, (double[]){1, 1}, NULL));
    cr_assert(!runs(3, 1367, 1, 2, (double[]){1, 1}, NULL));
    /* two K/V heads where whole groups have one: a long context would cost twice as much */
    cr_assert(!runs(2, 7, 1, 3, (double[]){1, 1, 1}, NULL));
    cr_assert(!runs(1, 8, 1, 3, (double[]){1, 1, 1}, (int64_t[]){3, 3, 2}));
}

Test(policy, runs_of_all_small_models) {
    const double sets[][4] = {{1, 1, 1, 1}, {3, 1, 1, 2}, {1, 0, 2, 1}, {5, 1, 0, 0}, {0, 1, 1, 9}};
    int divided = 0;
    for (int64_t g = 1; g <= 6; g++)
        for (int64_t r = 1; r <= 6; r++)
            for (int members = 2; members <= 4; members++)
                for (int s = 0; s < 5; s++)
                    for (int64_t unit = 1; unit <= 2; unit++)
                        divided += runs(g, r, unit, members, sets[s], NULL);
    cr_assert_gt(divided, 20);
}

/* ---- models ---- */

static char path[64];

static struct sheaf__weights *open_random(struct sheaf__random_model_params p) {
    struct sheaf__weights *model;
    strcpy(path, "/tmp/sheaf-test-policy-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf__weights_open(path, &model), 0, "%s", sheaf_last_error());
    unlink(path);
    return model;
}

static struct sheaf_split_state *state_of(struct sheaf__policy *policy,
                                          const struct sheaf_tensor *t) {
    struct sheaf_split_state *s;
    cr_assert_eq(sheaf__policy_get_state(t, policy, &s), 0, "%s", sheaf_last_error());
    return s;
}

static struct sheaf_split_state *
weight_state(struct sheaf__policy *policy, const struct sheaf__weights *model, const char *name) {
    const struct sheaf_tensor *t = sheaf_get_tensor(model->ctx, name);
    cr_assert(t, "%s", name);
    return state_of(policy, t);
}

/* Every tensor's state fits it; every element is somewhere; members without a share hold nothing
 * that is cut; members' parts stay near their shares. */
static void check_model(const struct sheaf__weights *model, const double *shares, int members) {
    struct sheaf__policy *policy;
    cr_assert_eq(sheaf__policy_new(model, shares, members, &policy), 0, "%s", sheaf_last_error());
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(model->ctx); t;
         t = sheaf_get_next_tensor(model->ctx, t)) {
        struct sheaf_split_state *s = state_of(policy, t);
        cr_assert_eq(sheaf_split_state_check(s, t), 0, "%s: %s", t->name, sheaf_last_error());
        bool kv =
            strstr(t->name, "attn_k.") || strstr(t->name, "attn_v.") || strstr(t->name, "attn_qkv");
        bool cut = s->axis != SHEAF_SPLIT_AXIS_MIRRORED;
        cr_assert(!cut || kv || sheaf_split_state_is_partition(s), "%s", t->name);
        cr_assert_eq(cut, t->ne[1] > 1 || strstr(t->name, ".bias"), "%s is cut: %d", t->name, cut);
        for (int j = 0; cut && j < members; j++) {
            size_t bytes = 0;
            cr_assert_eq(sheaf__policy_tensor_bytes(policy, t, j, &bytes), 0);
            if (!(shares[j] > 0)) cr_assert_eq(bytes, 0, "%s on member %d", t->name, j);
        }
        sheaf_split_state_free(s);
    }
    sheaf__policy_free(policy);
}

static void check_shares(const struct sheaf__weights *model) {
    check_model(model, (double[]){1}, 1);
    check_model(model, (double[]){1, 1}, 2);
    check_model(model, (double[]){3, 1}, 2);
    check_model(model, (double[]){1, 2, 1}, 3);
    check_model(model, (double[]){1, 0, 1}, 3);
    check_model(model, (double[]){1, 1, 1, 1}, 4);
    check_model(model, (double[]){0, 0, 1, 0}, 4);
}

static void set_sums(const char *sums) {
    cr_assert_eq(sheaf_setting_set("SHEAF_SPLIT_SUMS", sums), 0, "%s", sheaf_last_error());
}

static void check_all(struct sheaf__random_model_params p) {
    struct sheaf__weights *model = open_random(p);
    check_shares(model);
    set_sums("whole");
    check_shares(model);
    set_sums(NULL);
    sheaf__weights_free(model);
}

static struct sheaf__random_model_params shape(int64_t n_head, int64_t n_head_kv) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    p.n_head = n_head;
    p.n_head_kv = n_head_kv;
    p.n_layer = 1;
    return p;
}

Test(policy, three_kv_heads) { check_all(shape(9, 3)); }
Test(policy, one_kv_head) { check_all(shape(4, 1)); }
Test(policy, five_heads) { check_all(shape(5, 5)); }

Test(policy, qwen_biases) {
    struct sheaf__random_model_params p = shape(6, 2);
    p.arch = "qwen2";
    check_all(p);
}

Test(policy, gemma_tied) {
    struct sheaf__random_model_params p = shape(4, 1);
    p.arch = "gemma3";
    p.tied = true;
    check_all(p);
}

Test(policy, block_types) {
    const enum sheaf_type types[] = {SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_1, SHEAF_TYPE_Q4_K};
    for (int i = 0; i < 3; i++) {
        struct sheaf__random_model_params p = shape(8, 4);
        p.type = types[i];
        p.n_embd = 512;
        p.head_dim = 64;
        p.n_ff = 768;
        check_all(p);
    }
}

Test(policy, fused_qkv_has_three_segments) {
    struct sheaf__random_model_params p = shape(4, 2);
    p.fused_qkv = true;
    check_all(p);
    struct sheaf__weights *model = open_random(p);
    struct sheaf__policy *policy;
    char text[128];
    cr_assert_eq(sheaf__policy_new(model, (double[]){1, 1}, 2, &policy), 0);
    struct sheaf_split_state *s = weight_state(policy, model, "blk.0.attn_qkv.weight");
    int64_t pairs[12];
    cr_assert_eq(s->axis, SHEAF_SPLIT_AXIS_1);
    cr_assert_eq(s->n_segments, 3, "%s", sheaf_split_state_print(s, text, sizeof text));
    /* heads of 16: q 0..63, k 64..95, v 96..127; member 1 has the second half of each */
    cr_assert_eq(sheaf_split_state_intervals(s, 1, pairs, 6), 3);
    const int64_t want[] = {32, 32, 80, 16, 112, 16};
    for (int i = 0; i < 6; i++) cr_assert_eq(pairs[i], want[i]);
    sheaf_split_state_free(s);
    sheaf__policy_free(policy);
    sheaf__weights_free(model);
}

Test(policy, one_kv_head_overlaps) {
    struct sheaf__weights *model = open_random(shape(4, 1));
    struct sheaf__policy *policy;
    cr_assert_eq(sheaf__policy_new(model, (double[]){1, 1, 1, 1}, 4, &policy), 0);
    struct sheaf_split_state *k = weight_state(policy, model, "blk.0.attn_k.weight");
    struct sheaf_split_state *q = weight_state(policy, model, "blk.0.attn_q.weight");
    for (int j = 0; j < 4; j++) {
        cr_assert_eq(sheaf_split_state_extent(k, j, 16), 16);
        cr_assert_eq(sheaf_split_state_extent(q, j, 64), 16);
    }
    sheaf_split_state_free(k);
    sheaf_split_state_free(q);
    sheaf__policy_free(policy);
    sheaf__weights_free(model);
}

/* Q4_K has blocks of 256: heads of 64 do not fit, except where they come in fours. */
Test(policy, blocks_that_straddle_heads_turn_the_cut) {
    struct sheaf__random_model_params p = shape(8, 8);
    struct sheaf__policy *policy;
    p.type = SHEAF_TYPE_Q4_K;
    p.n_embd = 512;
    p.head_dim = 64;
    struct sheaf__weights *model = open_random(p);
    cr_assert_eq(sheaf__policy_new(model, (double[]){1, 1}, 2, &policy), 0);
    struct sheaf_split_state *s = weight_state(policy, model, "blk.0.attn_output.weight");
    cr_assert_eq(s->axis, SHEAF_SPLIT_AXIS_0, "4 heads of 64 are whole blocks");
    cr_assert_eq(s->segments[0].inner % 256, 0);
    sheaf_split_state_free(s);
    sheaf__policy_free(policy);
    cr_assert_eq(sheaf__policy_new(model, (double[]){3, 1}, 2, &policy), 0);
    s = weight_state(policy, model, "blk.0.attn_output.weight");
    cr_assert_eq(s->axis, SHEAF_SPLIT_AXIS_1, "6 and 2 heads are not");
    sheaf_split_state_free(s);
    sheaf__policy_free(policy);
    sheaf__weights_free(model);
}

/* With whole sums rows are cut, in groups, and blocks of columns do not matter. */
Test(policy, whole_sums_cut_rows) {
    static const char *const rows[] = {"blk.0.attn_output.weight", "blk.0.ffn_down.weight"};
    struct sheaf__random_model_params p = shape(8, 8);
    struct sheaf__policy *policy;
    p.type = SHEAF_TYPE_Q4_K;
    p.n_embd = 256;
    p.head_dim = 64;
    p.n_ff = 768;
    struct sheaf__weights *model = open_random(p);
    set_sums("whole");
    cr_assert_eq(sheaf__policy_new(model, (double[]){1, 1}, 2, &policy), 0);
    for (int i = 0; i < 2; i++) {
        struct sheaf_split_state *s = weight_state(policy, model, rows[i]);
        cr_expect_eq(s->axis, SHEAF_SPLIT_AXIS_1, "%s", rows[i]);
        cr_expect_eq(s->segments[0].inner % SHEAF__ROW_GROUP, 0, "%s", rows[i]);
        cr_expect_eq(sheaf_split_state_extent(s, 0, 256), 128, "%s", rows[i]);
        sheaf_split_state_free(s);
    }
    struct sheaf_split_state *up = weight_state(policy, model, "blk.0.ffn_up.weight");
    cr_expect_eq(sheaf_split_state_extent(up, 0, 768), 384, "half, where blocks of down are 512");
    sheaf_split_state_free(up);
    sheaf__policy_free(policy);
    sheaf__weights_free(model);
}

Test(policy, ffn_moves_in_blocks_of_down) {
    struct sheaf__random_model_params p = shape(4, 2);
    struct sheaf__policy *policy;
    p.type = SHEAF_TYPE_Q4_K;
    p.n_embd = 256;
    p.n_ff = 768;
    struct sheaf__weights *model = open_random(p);
    cr_assert_eq(sheaf__policy_new(model, (double[]){1, 1}, 2, &policy), 0);
    struct sheaf_split_state *down = weight_state(policy, model, "blk.0.ffn_down.weight");
    struct sheaf_split_state *up = weight_state(policy, model, "blk.0.ffn_up.weight");
    cr_assert(down->axis == SHEAF_SPLIT_AXIS_0 && up->axis == SHEAF_SPLIT_AXIS_1);
    cr_assert_eq(sheaf_split_state_extent(down, 0, 768), 512);
    cr_assert_eq(sheaf_split_state_extent(up, 0, 768), 512);
    sheaf_split_state_free(down);
    sheaf_split_state_free(up);
    sheaf__policy_free(policy);
    sheaf__weights_free(model);
}

/* The memory promise: share + 10 %. */
Test(policy, members_hold_their_share) {
    const char *files[] = {SHEAF_SOURCE_DIR "/models/kjv-f32.gguf",
                           SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf"};
    for (int f = 0; f < 2; f++) {
        struct sheaf__weights *model;
        cr_assert_eq(sheaf__weights_open(files[f], &model), 0, "%s", sheaf_last_error());
        for (int members = 1; members <= 4; members++) {
            double shares[4] = {1, 1, 1, 1}, total = (double)model->total_bytes;
            if (members == 3) shares[1] = 2;
            double sum = members == 3 ? 4 : members;
            struct sheaf__policy *policy;
            cr_assert_eq(sheaf__policy_new(model, shares, members, &policy), 0);
            size_t bytes[4], part, of_tensors[4] = {0};
            cr_assert_eq(sheaf__policy_weight_bytes(policy, bytes), 0);
            for (int j = 0; j < members; j++) {
                cr_assert_leq((double)bytes[j], 1.1 * total * shares[j] / sum);
                for (struct sheaf_tensor *t = sheaf_get_first_tensor(model->ctx); t;
                     t = sheaf_get_next_tensor(model->ctx, t)) {
                    cr_assert_eq(sheaf__policy_tensor_bytes(policy, t, j, &part), 0);
                    of_tensors[j] += part;
                }
                cr_assert_eq(bytes[j], of_tensors[j]);
            }
            sheaf__policy_free(policy);
        }
        sheaf__weights_free(model);
    }
}

Test(policy, refuses_bad_shares_and_strangers) {
    struct sheaf__weights *model = open_random(shape(4, 2));
    struct sheaf__policy *policy;
    struct sheaf_split_state *state;
    cr_assert_eq(sheaf__policy_new(model, (double[]){0, 0}, 2, &policy), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf__policy_new(model, (double[]){1, -1}, 2, &policy), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf__policy_new(model, (double[]){1, 1}, 0, &policy), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf__policy_new(model, (double[]){1, 1}, 2, &policy), 0);
    struct sheaf_tensor t = {.name = "blk.0.stranger.weight", .ne = {8, 8, 1, 1}};
    cr_assert_eq(sheaf__policy_get_state(&t, policy, &state), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "stranger"));
    struct sheaf_tensor far = {.name = "blk.9.attn_q.weight", .ne = {8, 8, 1, 1}};
    sheaf__tag_set(&far, SHEAF__W_Q, 9);
    cr_assert_eq(sheaf__policy_get_state(&far, policy, &state), SHEAF_STATUS_INVALID);
    sheaf__policy_free(policy);
    sheaf__weights_free(model);
}
