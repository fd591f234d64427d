/* Candidates and sampler: selection against a full sort, merging against the undivided vocabulary,
 * exact sets, distributions, and the same draws everywhere. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/candidates.h"
#include "sheaf/sampler.h"

#include "model/text/exp.h"

#define N_OF(array) (sizeof(array) / sizeof *(array))

static void ok(enum sheaf_status st) {
    cr_assert_eq(st, SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}

static struct sheaf_candidates *new_list(size_t cap) {
    struct sheaf_candidates *c;
    ok(sheaf_candidates_new(cap, &c));
    return c;
}

static struct sheaf_sampler *new_sampler(float temperature, int32_t top_k, float top_p, float min_p,
                                         uint64_t seed, int32_t n_vocab) {
    struct sheaf_sampler_params p = sheaf_sampler_default_params();
    struct sheaf_sampler *s;
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.min_p = min_p;
    p.seed = seed;
    ok(sheaf_sampler_new(&p, n_vocab, &s));
    return s;
}

/* Random logits with many ties, sometimes impossible tokens. */
static void random_logits(float *l, size_t n) {
    int kind = rand() % 3;
    for (size_t i = 0; i < n; i++) {
        l[i] = (float)(rand() % 2000 - 1000) / 100.0f;
        if (kind == 1) l[i] = (float)(rand() % 5);
        if (kind == 2 && rand() % 10 == 0) l[i] = -INFINITY;
    }
}

static int by_rank(const void *a, const void *b) {
    const struct sheaf_candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* ---- exp ---- */

Test(exp, close_to_the_library) {
    double worst = 0;
    for (double x = 0; x > -708; x -= 0.00371) {
        double error = fabs(sheaf__exp_negative(x) / exp(x) - 1);
        if (error > worst) worst = error;
    }
    cr_expect_lt(worst, 1e-14, "relative error %g", worst);
    cr_expect_eq(sheaf__exp_negative(0), 1.0);
    cr_expect_eq(sheaf__exp_negative(-INFINITY), 0.0);
    cr_expect_eq(sheaf__exp_negative(-1e300), 0.0);
    for (double x = -1e-17; x > -1; x *= 1.7) cr_expect_leq(sheaf__exp_negative(x), 1.0);
}

/* The same bits on every machine: taken from one of them. */
Test(exp, golden_bits) {
    static const struct {
        double x, y;
    } golden[] = {
        {-0.1, 0x1.cf46d99d52b3ap-1},       {-1, 0x1.78b56362cef2bp-2},
        {-2.5, 0x1.50385c094f423p-4},       {-20.25, 0x1.b93de1e27ca3bp-30},
        {-300.125, 0x1.01fc80984719dp-433},
    };
    for (size_t i = 0; i < N_OF(golden); i++)
        cr_expect_eq(sheaf__exp_negative(golden[i].x), golden[i].y, "exp(%g) is %a", golden[i].x,
                     sheaf__exp_negative(golden[i].x));
}

/* ---- candidates ---- */

Test(candidates, equal_a_full_sort) {
    srand(1);
    for (int round = 0; round < 3000; round++) {
        float logits[400];
        struct sheaf_candidate sorted[400];
        size_t n = (size_t)rand() % 400, cap = (size_t)rand() % (rand() % 2 ? 10 : 450);
        int32_t first = rand() % 1000;
        random_logits(logits, n);
        for (size_t i = 0; i < n; i++)
            sorted[i] = (struct sheaf_candidate){first + (int32_t)i, logits[i]};
        qsort(sorted, n, sizeof *sorted, by_rank);
        struct sheaf_candidates *c = new_list(cap);
        ok(sheaf_candidates_select(c, logits, n, first, true));
        cr_assert_eq(c->n, n < cap ? n : cap);
        cr_assert_eq(c->n_seen, n);
        cr_assert_eq(c->max, n ? sorted[0].logit : -INFINITY);
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)c->max);
        if (n && isfinite(c->max)) cr_assert(fabs(c->sum_exp / sum - 1) < 1e-13);
        for (size_t i = 0; i < c->n; i++)
            cr_assert(c->data[i].id == sorted[i].id && c->data[i].logit == sorted[i].logit,
                      "n %zu, cap %zu, place %zu", n, cap, i);
        sheaf_candidates_free(c);
    }
}

Test(candidates, without_sum) {
    const float logits[] = {1, 3, 3, 2};
    struct sheaf_candidates *c = new_list(1);
    ok(sheaf_candidates_select(c, logits, 4, 10, false));
    cr_expect_eq(c->sum_exp, 0);
    cr_expect_eq(c->data[0].id, 11, "of equal logits the lower id");
    sheaf_candidates_free(c);
}

Test(candidates, broken_logits) {
    struct sheaf_candidates *c = new_list(4);
    const float nan_at_2[] = {0, 1, NAN, 2}, infinite[] = {0, INFINITY},
                none[] = {-INFINITY, -INFINITY};
    cr_expect_eq(sheaf_candidates_select(c, nan_at_2, 4, 100, true), SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "token 102 is not a number"));
    cr_expect_eq(c->n, 0);
    /* also where a full list lets whole stretches of lower logits be passed over */
    for (size_t at = 4; at < 200; at += 13) {
        float many[200];
        for (size_t i = 0; i < 200; i++) many[i] = 9 - (float)i;
        many[at] = NAN;
        cr_expect_eq(sheaf_candidates_select(c, many, 200, 0, true), SHEAF_STATUS_INVALID, "%zu",
                     at);
    }
    cr_expect_eq(sheaf_candidates_select(c, infinite, 2, 0, true), SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "token 1 is infinite"));
    cr_expect_eq(sheaf_candidates_select(c, infinite, 1, INT32_MAX, true), SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_candidates_select(c, infinite, 1, -1, true), SHEAF_STATUS_INVALID);
    ok(sheaf_candidates_select(c, none, 2, 0, true));
    cr_expect_eq(c->sum_exp, 0);
    struct sheaf_sampler *s = new_sampler(1, 0, 0.9f, 0, 0, 2);
    int32_t id;
    cr_expect_eq(sheaf_sampler_sample(s, c, &id), SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "none of the 2 logits"));
    sheaf_candidates_clear(c);
    cr_expect_eq(sheaf_sampler_sample(s, c, &id), SHEAF_STATUS_INVALID);
    sheaf_sampler_free(s);
    sheaf_candidates_free(c);
    cr_expect_eq(sheaf_candidates_new(SIZE_MAX / 4, &c), SHEAF_STATUS_ALLOC_FAILED);
    cr_expect_null(c);
}

/* The vocabulary cut into 1..5 parts, some empty, merged in any order, by memory and by wire. */
Test(candidates, merged_parts_equal_the_whole) {
    srand(2);
    for (int round = 0; round < 3000; round++) {
        float logits[300];
        size_t n = (size_t)rand() % 300, cap = (size_t)rand() % 50, parts = 1 + (size_t)rand() % 5;
        random_logits(logits, n);
        struct sheaf_candidates *whole = new_list(cap), *merged = new_list(cap),
                                *wired = new_list(cap), *part[5];
        ok(sheaf_candidates_select(whole, logits, n, 0, true));
        size_t from = 0;
        for (size_t p = 0; p < parts; p++) {
            size_t len = p + 1 == parts ? n - from : (size_t)rand() % (n - from + 1);
            part[p] = new_list(cap);
            ok(sheaf_candidates_select(part[p], logits + from, len, (int32_t)from, true));
            from += len;
        }
        size_t size = sheaf_candidates_packed_size(cap);
        void *block = malloc(size);
        for (size_t p = 0, start = (size_t)rand() % parts; p < parts; p++) {
            const struct sheaf_candidates *next = part[(start + p) % parts];
            sheaf_candidates_merge(merged, next);
            sheaf_candidates_pack(next, block);
            ok(sheaf_candidates_merge_packed(wired, block, size));
        }
        free(block);
        struct sheaf_candidates *const results[] = {merged, wired};
        for (size_t r = 0; r < 2; r++) {
            const struct sheaf_candidates *c = results[r];
            cr_assert(c->n == whole->n && c->n_seen == n && c->max == whole->max);
            cr_assert(fabs(c->sum_exp - whole->sum_exp) <= 1e-12 * whole->sum_exp);
            cr_assert(memcmp(c->data, whole->data, c->n * sizeof *c->data) == 0, "round %d", round);
        }
        for (size_t p = 0; p < parts; p++) sheaf_candidates_free(part[p]);
        sheaf_candidates_free(whole);
        sheaf_candidates_free(merged);
        sheaf_candidates_free(wired);
    }
}

Test(candidates, damaged_blocks) {
    const float logits[] = {1, 2, 3, 4, 5};
    struct sheaf_candidates *c = new_list(3), *into = new_list(3);
    ok(sheaf_candidates_select(c, logits, 5, 0, true));
    unsigned char good[64], bad[64];
    size_t size = sheaf_candidates_packed_size(3);
    cr_assert_leq(size, sizeof good);
    sheaf_candidates_pack(c, good);
    static const struct {
        size_t at;
        unsigned char value;
        const char *words;
    } cases[] = {
        {0, 0, "does not begin"},
        {4, 4, "more candidates than fit"},
        {7, 0x80, "more candidates than fit"},
        {8, 2, "totals are impossible"},         /* fewer seen than kept */
        {15, 1, "totals are impossible"},        /* absurdly many seen */
        {23, 0xFF, "totals are impossible"},     /* a negative sum */
        {27, 0x7F, "totals are impossible"},     /* the maximum is not a number */
        {35, 0xFF, "a candidate is impossible"}, /* a negative id */
        {38, 0xFF, "a candidate is impossible"}, /* above the maximum */
        {46, 0, "out of order"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        memcpy(bad, good, size);
        bad[cases[i].at] = cases[i].value;
        if (cases[i].at == 27) bad[26] = 0xC0;
        cr_expect_eq(sheaf_candidates_merge_packed(into, bad, size), SHEAF_STATUS_INVALID,
                     "case %zu", i);
        cr_expect_not_null(strstr(sheaf_last_error(), cases[i].words), "case %zu: %s", i,
                           sheaf_last_error());
        cr_expect(into->n == 0 && into->n_seen == 0, "nothing of a damaged list is taken");
    }
    cr_expect_eq(sheaf_candidates_merge_packed(into, good, 31), SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_candidates_merge_packed(into, good, size - 1), SHEAF_STATUS_INVALID);
    srand(3);
    for (int round = 0; round < 20000; round++) {
        memcpy(bad, good, size);
        for (int k = rand() % 4; k >= 0; k--) bad[(size_t)rand() % size] = (unsigned char)rand();
        sheaf_candidates_clear(into);
        if (!sheaf_candidates_merge_packed(into, bad, size)) cr_assert_leq(into->n, 3);
    }
    sheaf_candidates_free(c);
    sheaf_candidates_free(into);
}

/* ---- sampler ---- */

Test(sampler, parameters) {
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k, n_vocab;
        const char *words;
    } cases[] = {
        {-0.1f, 1, 0, 0, 10, "temperature is -0.1"},
        {NAN, 1, 0, 0, 10, "temperature is nan"},
        {1001, 1, 0, 0, 10, "temperature is 1001"},
        {1, 1.5f, 0, 0, 10, "top-p is 1.5"},
        {1, -1, 0, 0, 10, "top-p is -1"},
        {1, 1, 2, 0, 10, "min-p is 2"},
        {1, 1, 0, -1, 10, "top-k is -1"},
        {1, 1, 0, 0, 0, "vocabulary is 0"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct sheaf_sampler_params p = sheaf_sampler_default_params();
        struct sheaf_sampler *s;
        p.temperature = cases[i].temperature;
        p.top_p = cases[i].top_p;
        p.min_p = cases[i].min_p;
        p.top_k = cases[i].top_k;
        cr_expect_eq(sheaf_sampler_new(&p, cases[i].n_vocab, &s), SHEAF_STATUS_INVALID);
        cr_expect_null(s);
        cr_expect_not_null(strstr(sheaf_last_error(), cases[i].words), "%s", sheaf_last_error());
    }
    struct sheaf_sampler_params p = {0};
    struct sheaf_sampler *s;
    cr_expect_eq(sheaf_sampler_new(&p, 10, &s), SHEAF_STATUS_INVALID);
    p.size = sizeof p + 8;
    cr_expect_eq(sheaf_sampler_new(&p, 10, &s), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "sheaf_sampler_params: size is"), "%s",
              sheaf_last_error());
}

/* Members that an earlier version did not have are 0, which switches them off. */
Test(sampler, parameters_may_be_shorter) {
    struct sheaf_sampler_params p = sheaf_sampler_default_params();
    struct sheaf_sampler *s;
    p.top_p = 1;
    p.min_p = 0;
    p.top_k = 1; /* greedy, if it counts */
    p.size = offsetof(struct sheaf_sampler_params, top_k);
    cr_assert_eq(sheaf_sampler_new(&p, 10, &s), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect_eq(sheaf_sampler_n_candidates(s), 10);
    sheaf_sampler_free(s);
    p.size = sizeof p;
    cr_assert_eq(sheaf_sampler_new(&p, 10, &s), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_sampler_n_candidates(s), 1);
    sheaf_sampler_free(s);
}

Test(sampler, what_it_needs) {
    static const struct {
        float temperature, top_p;
        int32_t top_k;
        size_t n;
        bool sum;
    } cases[] = {
        {0, 0.9f, 40, 1, false}, {1, 0.9f, 1, 1, false}, {1, 0.9f, 40, 40, false},
        {1, 0.9f, 0, 100, true}, {1, 1, 0, 100, false},  {1, 0.9f, 500, 100, false},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct sheaf_sampler *s =
            new_sampler(cases[i].temperature, cases[i].top_k, cases[i].top_p, 0, 0, 100);
        cr_expect_eq(sheaf_sampler_n_candidates(s), cases[i].n, "case %zu", i);
        cr_expect_eq(sheaf_sampler_needs_sum(s), cases[i].sum, "case %zu", i);
        sheaf_sampler_free(s);
    }
    /* Without the sum top-p cannot work, and says so. */
    const float logits[] = {1, 2};
    struct sheaf_candidates *c = new_list(2);
    ok(sheaf_candidates_select(c, logits, 2, 0, false));
    struct sheaf_sampler *s = new_sampler(1, 0, 0.9f, 0, 0, 2);
    int32_t id;
    cr_expect_eq(sheaf_sampler_sample(s, c, &id), SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "needs the sum"));
    sheaf_sampler_free(s);
    sheaf_candidates_free(c);
}

Test(sampler, exact_sets) {
    /* probabilities 1/2 1/4 1/8 1/16 1/16, not in order */
    const double p[] = {0.0625, 0.5, 0.125, 0.25, 0.0625};
    static const int32_t order[] = {1, 3, 2, 0, 4};
    static const struct {
        int32_t top_k;
        float top_p, min_p;
        size_t kept;
    } cases[] = {
        {0, 1, 0, 5},       {1, 1, 0, 1},         {3, 1, 0, 3},     {99, 1, 0, 5},
        {0, 0.49f, 0, 1},   {0, 0.51f, 0, 2},     {0, 0.74f, 0, 2}, {0, 0.76f, 0, 3},
        {0, 0.93f, 0, 4},   {0, 0, 0, 1},         {0, 1, 0.51f, 1}, {0, 1, 0.49f, 2},
        {0, 1, 0.24f, 3},   {0, 1, 0.1f, 5},      {0, 1, 1, 1},     {2, 0.66f, 0, 1},
        {2, 0.67f, 0, 2},   {3, 0.57f, 0, 1},     {3, 0.58f, 0, 2}, {3, 0.86f, 0, 3},
        {4, 0.9f, 0.3f, 2}, {0, 0.76f, 0.49f, 2},
    };
    float logits[5];
    for (size_t i = 0; i < 5; i++) logits[i] = (float)log(p[i]);
    struct sheaf_candidates *c = new_list(5);
    ok(sheaf_candidates_select(c, logits, 5, 0, true));
    for (size_t i = 0; i < N_OF(cases); i++) {
        /* the filters work at temperature 1, whatever the temperature of the draw */
        struct sheaf_sampler *s =
            new_sampler(5, cases[i].top_k, cases[i].top_p, cases[i].min_p, 7, 5);
        cr_expect_eq(sheaf_sampler_n_kept(s, c), cases[i].kept, "case %zu keeps %zu", i,
                     sheaf_sampler_n_kept(s, c));
        bool seen[5] = {false};
        for (int draw = 0; draw < 2000; draw++) {
            int32_t id;
            ok(sheaf_sampler_sample(s, c, &id));
            cr_assert(id >= 0 && id < 5);
            seen[id] = true;
        }
        for (size_t k = 0; k < 5; k++)
            cr_expect_eq(seen[order[k]], k < cases[i].kept, "case %zu, token %d", i, (int)order[k]);
        sheaf_sampler_free(s);
    }
    sheaf_candidates_free(c);
}

/* What reaches the bound exactly is enough: equal logits have equal parts of the whole. */
Test(sampler, bounds_count) {
    const float logits[] = {3, -INFINITY, 3, 3, -INFINITY, 3};
    static const struct {
        float top_p, min_p;
        size_t kept;
    } cases[] = {{0.5f, 0, 2}, {0.75f, 0, 3}, {0.25f, 0, 1}, {1, 1, 4}, {0.5f, 1, 2}};
    struct sheaf_candidates *c = new_list(6);
    ok(sheaf_candidates_select(c, logits, 6, 0, true));
    for (size_t i = 0; i < N_OF(cases); i++)
        for (int32_t top_k = 0; top_k <= 6; top_k += 6) {
            struct sheaf_sampler *s = new_sampler(1, top_k, cases[i].top_p, cases[i].min_p, 0, 6);
            cr_expect_eq(sheaf_sampler_n_kept(s, c), cases[i].kept, "case %zu keeps %zu", i,
                         sheaf_sampler_n_kept(s, c));
            sheaf_sampler_free(s);
        }
    sheaf_candidates_free(c);
}

/* 100 kept of 10000: the list's share of the whole decides, not its share of itself. */
Test(sampler, top_p_of_the_whole_vocabulary) {
    enum { N = 10000, KEEP = 100 };
    static float logits[N];
    for (size_t i = 0; i < N; i++) logits[i] = i < 10 ? 9.0f : 0.0f;
    double top = 10 * exp(9) / (10 * exp(9) + (N - 10)); /* the best ten have 0.89 of it */
    struct sheaf_candidates *cut = new_list(KEEP), *whole = new_list(N);
    ok(sheaf_candidates_select(cut, logits, N, 0, true));
    ok(sheaf_candidates_select(whole, logits, N, 0, true));
    for (int i = 1; i <= 10; i++) {
        float share = (float)(top * (i - 0.5) / 10);
        struct sheaf_sampler *s = new_sampler(1, 0, share, 0, 0, N);
        cr_expect_eq(sheaf_sampler_n_kept(s, whole), (size_t)i);
        cr_expect_eq(sheaf_sampler_n_kept(s, cut), (size_t)i);
        sheaf_sampler_free(s);
    }
    sheaf_candidates_free(cut);
    sheaf_candidates_free(whole);
}

Test(sampler, greedy) {
    const float logits[] = {1, 7, 3, 7, -2};
    struct sheaf_candidates *c = new_list(5);
    ok(sheaf_candidates_select(c, logits, 5, 0, false));
    struct sheaf_sampler *s = new_sampler(0, 0, 0.9f, 0, 0, 5);
    for (int i = 0; i < 20; i++) {
        int32_t id;
        ok(sheaf_sampler_sample(s, c, &id));
        cr_expect_eq(id, 1);
    }
    sheaf_sampler_free(s);
    sheaf_candidates_free(c);
}

/* Pearson's chi-square over 200000 draws; seeds are fixed, so this is not a game of chance. */
Test(sampler, distribution) {
    enum { N = 8, DRAWS = 200000 };
    const float logits[N] = {0, 1, 2, -1, 0.5f, 2.5f, -3, 1};
    static const float temperatures[] = {0.5f, 1, 2, 10};
    struct sheaf_candidates *c = new_list(N);
    ok(sheaf_candidates_select(c, logits, N, 0, true));
    for (size_t t = 0; t < N_OF(temperatures); t++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct sheaf_sampler *s = new_sampler(temperatures[t], 0, 1, 0, seed, N);
            int count[N] = {0};
            double total = 0, chi = 0;
            for (int i = 0; i < DRAWS; i++) {
                int32_t id;
                ok(sheaf_sampler_sample(s, c, &id));
                count[id]++;
            }
            for (size_t i = 0; i < N; i++)
                total += exp((double)logits[i] / (double)temperatures[t]);
            for (size_t i = 0; i < N; i++) {
                double want = exp((double)logits[i] / (double)temperatures[t]) / total * DRAWS;
                chi += (count[i] - want) * (count[i] - want) / want;
            }
            cr_expect_lt(chi, 29.9,
                         "temperature %g, seed %d: chi-square %g (7 degrees of freedom; "
                         "29.9 is passed once in 10000)",
                         (double)temperatures[t], (int)seed, chi);
            sheaf_sampler_free(s);
        }
    sheaf_candidates_free(c);
}

/* Equal logits draw floor(1000 u): the generator's numbers, from another implementation. */
Test(sampler, the_same_everywhere) {
    static const struct {
        uint64_t seed;
        int32_t ids[10];
    } golden[] = {
        {0, {601, 747, 103, 416, 732, 999, 422, 535, 855, 918}},
        {42, {83, 378, 680, 924, 991, 769, 719, 850, 761, 583}},
        {UINT64_MAX, {559, 767, 507, 747, 567, 731, 370, 767, 626, 614}},
    };
    static float logits[1000];
    struct sheaf_candidates *c = new_list(1000);
    ok(sheaf_candidates_select(c, logits, 1000, 0, true));
    struct sheaf_sampler *s = new_sampler(1, 0, 1, 0, 0, 1000);
    for (size_t g = 0; g < N_OF(golden); g++) {
        sheaf_sampler_reset(s, golden[g].seed);
        for (size_t i = 0; i < 10; i++) {
            int32_t id;
            ok(sheaf_sampler_sample(s, c, &id));
            cr_expect_eq(id, golden[g].ids[i], "seed %zu, draw %zu: %d", g, i, (int)id);
        }
    }
    sheaf_sampler_free(s);
    sheaf_candidates_free(c);
}

/* The same tokens from three ranks' lists as from the undivided vocabulary. */
Test(sampler, merged_equals_whole) {
    enum { N = 3000 };
    static float logits[N];
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k;
    } cases[] = {{0, 1, 0, 0}, {0.8f, 0.95f, 0.05f, 40}, {1, 0.9f, 0, 0}, {1.3f, 1, 0.02f, 0},
                 {2, 1, 0, 0}, {1, 0.5f, 0, 100}};
    srand(4);
    for (size_t k = 0; k < N_OF(cases); k++) {
        struct sheaf_sampler *a = new_sampler(cases[k].temperature, cases[k].top_k, cases[k].top_p,
                                              cases[k].min_p, 11, N);
        struct sheaf_sampler *b = new_sampler(cases[k].temperature, cases[k].top_k, cases[k].top_p,
                                              cases[k].min_p, 11, N);
        size_t cap = sheaf_sampler_n_candidates(a);
        bool sum = sheaf_sampler_needs_sum(a);
        struct sheaf_candidates *whole = new_list(cap), *merged = new_list(cap),
                                *part = new_list(cap);
        const size_t cut[] = {0, 700, 700, 2100, N};
        int distinct = 0, last = -1;
        for (int step = 0; step < 200; step++) {
            for (size_t i = 0; i < N; i++) logits[i] = (float)(rand() % 1000) / 70.0f;
            int32_t x, y;
            ok(sheaf_candidates_select(whole, logits, N, 0, sum));
            ok(sheaf_sampler_sample(a, whole, &x));
            sheaf_candidates_clear(merged);
            for (size_t p = 0; p + 1 < N_OF(cut); p++) {
                ok(sheaf_candidates_select(part, logits + cut[p], cut[p + 1] - cut[p],
                                           (int32_t)cut[p], sum));
                sheaf_candidates_merge(merged, part);
            }
            ok(sheaf_sampler_sample(b, merged, &y));
            cr_assert_eq(x, y, "case %zu, step %d", k, step);
            distinct += x != last;
            last = x;
        }
        cr_expect_gt(distinct, 100);
        sheaf_sampler_free(a);
        sheaf_sampler_free(b);
        sheaf_candidates_free(whole);
        sheaf_candidates_free(merged);
        sheaf_candidates_free(part);
    }
}
