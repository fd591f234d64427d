/* Public split states: making, checking, measuring, printing; and the sets under them. */
#include <criterion/criterion.h>
#include <string.h>

#include "sheaf/sheaf.h"
#include "split/cut.h"

typedef struct sheaf_split_state S;

static struct sheaf_tensor tensor(enum sheaf_type type, int64_t a, int64_t b) {
    struct sheaf_tensor t = {.type = type, .ne = {a, b, 1, 1}};
    strcpy(t.name, "w");
    return t;
}

/* 8 query heads and 2 + 2 K/V heads of 64, over 2 members: the example of sheaf/split.h. */
static S *fused(void) {
    S *s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 2, 3);
    cr_assert_not_null(s);
    for (int i = 0; i < 3; i++) {
        const int64_t n = i ? 1 : 4;
        s->segments[i].inner = 64;
        s->segments[i].units = 2 * n;
        s->segments[i].count[0] = s->segments[i].count[1] = s->segments[i].first[1] = n;
    }
    return s;
}

static void expect_text(const S *s, const char *text) {
    char buf[200];
    cr_expect_str_eq(sheaf_split_state_print(s, buf, sizeof buf), text);
}

Test(state, prints_members_that_are_alike_once) {
    S *s = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, 12,
                                 (int64_t[]){1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0, 0}, 1);
    expect_text(s, "S1 {1,1,1,1,2(x5),0,0,0}");
    for (int j = 0; j < 12; j++) { /* six share a unit, and five another */
        s->segments[0].first[j] = j == 11 ? 2 : j >= 6;
        s->segments[0].count[j] = j == 11 ? 12 : 1;
    }
    expect_text(s, "S1 {0:1(x6),1:1(x5),2:12}");
    sheaf_split_state_free(s);
}

Test(state, prints_what_it_is) {
    S *m = sheaf_split_state_mirrored(3), *p = sheaf_split_state_partial(3);
    S *c = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){2048, 2048}, 1), *f = fused();
    expect_text(m, "M");
    expect_text(p, "P");
    expect_text(c, "S0 {2048,2048}");
    expect_text(f, "S0 {4,4}x64+{1,1}x64+{1,1}x64");
    c->segments[0].first[1] = 1024;
    c->segments[0].outer = 3;
    expect_text(c, "S0 3*{0:2048,1024:2048}");
    for (size_t n = 1; n < 20; n++) { /* cut short, always terminated, nothing beyond n */
        char buf[24];
        memset(buf, '#', sizeof buf);
        sheaf_split_state_print(f, buf, n);
        cr_expect_eq(strlen(buf), n - 1);
        cr_expect_eq(buf[n], '#');
    }
    sheaf_split_state_free(m);
    sheaf_split_state_free(p);
    sheaf_split_state_free(c);
    sheaf_split_state_free(f);
    sheaf_split_state_free(NULL);
}

Test(state, measures_slices) {
    S *f = fused();
    cr_expect_eq(sheaf_split_state_extent(f, 0, 768), 4 * 64 + 64 + 64);
    int64_t local[4], pairs[8];
    sheaf_split_state_local_ne(f, (int64_t[]){768, 5, 1, 1}, 1, local);
    cr_expect_eq(local[0], 384);
    cr_expect_eq(local[1], 5);
    cr_expect_eq(sheaf_split_state_intervals(f, 1, pairs, 4), 3);
    const int64_t expect[] = {256, 256, 576, 64, 704, 64};
    for (int i = 0; i < 6; i++) cr_expect_eq(pairs[i], expect[i], "pair %d", i);
    cr_expect_eq(sheaf_split_state_intervals(f, 1, pairs, 1), 3); /* says how many there are */
    cr_expect(sheaf_split_state_is_partition(f));
    S *m = sheaf_split_state_mirrored(2);
    cr_expect_eq(sheaf_split_state_extent(m, 1, 768), 768);
    cr_expect_eq(sheaf_split_state_intervals(m, 1, pairs, 4), 0);
    cr_expect_not(sheaf_split_state_is_partition(m));
    sheaf_split_state_free(m);
    sheaf_split_state_free(f);
}

Test(state, adjacent_intervals_join_and_empty_ones_vanish) {
    S *s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_1, 2, 2);
    for (int i = 0; i < 2; i++) {
        s->segments[i].units = 4;
        s->segments[i].count[0] = i ? 1 : 4; /* all of the first, one of the second: [0, 5) */
        s->segments[i].first[1] = s->segments[i].count[0];
        s->segments[i].count[1] = 4 - s->segments[i].count[0];
    }
    int64_t pairs[4];
    cr_expect_eq(sheaf_split_state_intervals(s, 0, pairs, 2), 1);
    cr_expect_eq(pairs[1], 5);
    cr_expect_eq(sheaf_split_state_intervals(s, 1, pairs, 2), 1);
    cr_expect_eq(pairs[0], 5);
    sheaf_split_state_free(s);
}

Test(state, equality_is_of_slices_not_of_words) {
    S *a = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){4, 4}, 1);
    S *b = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){1, 1}, 4);
    S *c = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){2, 6}, 1);
    S *d = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, 2, (int64_t[]){4, 4}, 1);
    S *e = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){4, 4}, 2);
    cr_expect(sheaf_split_state_equal(a, b));
    cr_expect_not(sheaf_split_state_equal(a, c));
    cr_expect_not(sheaf_split_state_equal(a, d));
    cr_expect_not(sheaf_split_state_equal(a, e));
    S *copy = sheaf_split_state_copy(a);
    cr_expect(sheaf_split_state_equal(a, copy));
    copy->segments[0].first[1] = 3; /* a copy, not the same memory; same counts, other places */
    cr_expect_eq(a->segments[0].first[1], 4);
    cr_expect_not(sheaf_split_state_equal(a, copy));
    S *all[] = {a, b, c, d, e, copy};
    for (int i = 0; i < 6; i++) sheaf_split_state_free(all[i]);
}

Test(state, ggml_form_round_trips) {
    const int64_t ne[] = {256, 256, 64, 64, 64, 64};
    const uint32_t nr[] = {1, 1, 1};
    S *s = NULL, *f = fused();
    cr_assert_eq(sheaf_split_state_from_ne(SHEAF_SPLIT_AXIS_0, 2, 3, ne, nr, &s),
                 SHEAF_STATUS_SUCCESS);
    cr_expect(sheaf_split_state_equal(s, f));
    int64_t back[6];
    uint32_t repeats[3];
    cr_assert_eq(sheaf_split_state_to_ne(s, back, repeats), SHEAF_STATUS_SUCCESS);
    cr_expect_arr_eq(back, ne, sizeof ne);
    cr_expect_arr_eq(repeats, nr, sizeof nr);
    sheaf_split_state_free(s);
    f->segments[0].first[1] = 3; /* an overlap cannot be said in that form */
    cr_expect_eq(sheaf_split_state_to_ne(f, back, repeats), SHEAF_STATUS_UNSUPPORTED);
    sheaf_split_state_free(f);
    cr_expect_eq(sheaf_split_state_from_ne(SHEAF_SPLIT_AXIS_0, 2, 1, (int64_t[]){-1, 2}, nr, &s),
                 SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_split_state_from_ne((enum sheaf_split_axis)7, 2, 1, ne, nr, &s),
                 SHEAF_STATUS_INVALID);
    cr_expect_null(s);
    cr_expect_eq(sheaf_split_state_from_ne(SHEAF_SPLIT_AXIS_0, 0, 1, ne, nr, &s),
                 SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_split_state_from_ne(SHEAF_SPLIT_AXIS_0, INT32_MAX, INT32_MAX, ne, nr, &s),
                 SHEAF_STATUS_INVALID);
}

struct misfit {
    const char *name, *words;
    enum sheaf_type type;
    int64_t ne0, inner, first1, count0, count1, units;
};

Test(state, check_refuses_what_does_not_fit) {
    const struct misfit bad[] = {
        {"sum", "its segments have 8 indices, the dimension has 9", SHEAF_TYPE_F32, 9, 1, 4, 4, 4,
         8},
        {"gap", "no owner", SHEAF_TYPE_F32, 8, 1, 5, 4, 3, 8},
        {"outside", "outside", SHEAF_TYPE_F32, 8, 1, 5, 5, 4, 8},
        {"negative", "outside", SHEAF_TYPE_F32, 8, 1, 4, -4, 4, 8},
        {"blocks", "whole quantization blocks", SHEAF_TYPE_Q8_0, 128, 16, 3, 3, 5, 8},
        {"no units", "inner >= 1", SHEAF_TYPE_F32, 8, 0, 4, 4, 4, 8},
        {"sum beyond int64", "outside", SHEAF_TYPE_F32, 8, 1, INT64_C(1) << 62, INT64_C(1) << 62,
         INT64_C(1) << 62, 8},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct sheaf_tensor t = tensor(bad[i].type, bad[i].ne0, 3);
        S *s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 2, 1);
        struct sheaf_split_segment *g = s->segments;
        g->inner = bad[i].inner;
        g->units = bad[i].units;
        g->first[1] = bad[i].first1;
        g->count[0] = bad[i].count0;
        g->count[1] = bad[i].count1;
        cr_expect_eq(sheaf_split_state_check(s, &t), SHEAF_STATUS_INVALID, "%s", bad[i].name);
        cr_expect_not_null(strstr(sheaf_last_error(), bad[i].words), "%s: %s", bad[i].name,
                           sheaf_last_error());
        cr_expect_not_null(strstr(sheaf_last_error(), "'w'"), "%s", sheaf_last_error());
        sheaf_split_state_free(s);
    }
    const struct sheaf_tensor q = tensor(SHEAF_TYPE_Q8_0, 128, 3), f = tensor(SHEAF_TYPE_F32, 8, 3);
    S *blocks = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){1, 3}, 32);
    S *partial = sheaf_split_state_partial(2);
    S *hole = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 3, (int64_t[]){5, 0, 3}, 1);
    cr_expect_eq(sheaf_split_state_check(blocks, &q), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_split_state_check(hole, &f), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_split_state_check(partial, &f), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_split_state_check(partial, &q), SHEAF_STATUS_INVALID);
    sheaf_split_state_free(blocks);
    sheaf_split_state_free(partial);
    sheaf_split_state_free(hole);
    cr_expect_null(sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 0, 1));
    cr_expect_null(sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, INT32_MAX, INT32_MAX));
}

/* Numbers that no cut has, as a program may write them: nothing overflows, and nothing loops. */
Test(state, wrong_numbers_are_found, .timeout = 20) {
    const int64_t big = INT64_MAX / 2 + 1;
    S *s = NULL;
    int64_t ne[4];
    uint32_t nr[2] = {1, 1};
    cr_expect_null(sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, 2, (int64_t[]){big, big}, 1));
    cr_expect(strstr(sheaf_last_error(), "counts overflow"), "%s", sheaf_last_error());
    const struct {
        int n;
        int64_t ne[4];
        uint32_t nr[2];
    } sums[] = {{1, {big, big}, {1}},          /* of a segment: units are 2, a unit is large */
                {1, {big / 4, big / 4}, {8}},  /* its repeats */
                {2, {big, 0, 0, big}, {1, 1}}, /* of the segments */
                {1, {INT64_MAX, INT64_MAX - 1}, {1}}}; /* of the units */
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        cr_expect_eq(
            sheaf_split_state_from_ne(SHEAF_SPLIT_AXIS_1, 2, sums[i].n, sums[i].ne, sums[i].nr, &s),
            SHEAF_STATUS_INVALID, "sum %zu", i);
        cr_expect_null(s);
    }
    const struct {
        int64_t outer, inner, units, count, first;
    } wrong[] = {{-1, 1, 4, 2, 2},       {0, 1, 4, 2, 2},         {1, 0, 4, 2, 2},
                 {1, -1, 4, 2, 2},       {1, 1, 4, 3, 2},         {1, 1, 4, -1, 2},
                 {1, big, 4, 2, 2},      {big, 1, 4, 2, 2},       {1, 1, 4, 2, -2},
                 {1, 1, -4, 2, 2},       {1, 1, 4, INT64_MAX, 2}, {1, 1, 4, 2, INT64_MAX},
                 {INT64_MIN, 1, 4, 2, 2}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sheaf_tensor t = tensor(SHEAF_TYPE_F32, 8, 4);
        char text[80];
        s = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, 2, (int64_t[]){2, 2}, 1);
        s->segments[0] =
            (struct sheaf_split_segment){wrong[i].outer, wrong[i].inner, wrong[i].units,
                                         s->segments[0].first, s->segments[0].count};
        s->segments[0].count[1] = wrong[i].count;
        s->segments[0].first[1] = wrong[i].first;
        cr_expect_eq(sheaf_split_state_check(s, &t), SHEAF_STATUS_INVALID, "segment %zu", i);
        cr_expect_not(sheaf_split_state_is_partition(s), "segment %zu", i);
        cr_expect_not(sheaf_split_state_equal(s, s), "segment %zu", i);
        cr_expect_neq(sheaf_split_state_to_ne(s, ne, nr), SHEAF_STATUS_SUCCESS, "segment %zu", i);
        cr_expect_eq(sheaf_split_state_print(s, text, sizeof text), text);
        sheaf_split_state_free(s);
    }
}

/* ---- sets ---- */

static uint64_t next(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

/* A random cut, and a table of the owner of each index. */
static const struct sheaf__cut *random_cut(struct sheaf__pool *pool, uint64_t *seed, int64_t n,
                                           bool *owns) {
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        bool on = next(seed) % 2;
        for (int64_t i = 0; i < n; i++) {
            if (next(seed) % 3 == 0) on = !on;
            owns[j * n + i] = on;
            if (on) sheaf__cut_add(pool, i, i + 1);
        }
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, n);
}

/* Into how few pieces can the indices be parted so that every member has one run of each? */
static int64_t fewest_pieces(const bool *owns, int n, int members) {
    enum { BEFORE, IN, BEHIND } at[8] = {BEFORE};
    int64_t pieces = 1;
    for (int i = 0; i < n; i++) {
        bool fits = true;
        for (int j = 0; j < members; j++) fits = fits && !(owns[j * n + i] && at[j] == BEHIND);
        pieces += !fits;
        for (int j = 0; j < members; j++) {
            if (!fits) at[j] = BEFORE;
            at[j] = owns[j * n + i] ? IN : at[j] == BEFORE ? BEFORE : BEHIND;
        }
    }
    return pieces;
}

Test(cut, a_set_has_one_address_and_its_public_form_says_the_same) {
    struct sheaf__pool pool;
    cr_assert_eq(sheaf__pool_init(&pool, 3), SHEAF_STATUS_SUCCESS);
    uint64_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        enum { N = 13 };
        bool owns[3 * N];
        const struct sheaf__cut *cut = random_cut(&pool, &seed, N, owns);
        cr_assert_not_null(cut);
        const S *shown = sheaf__st_show(&pool, sheaf__st_s(2, cut));
        cr_assert_not_null(shown);
        cr_expect_eq(sheaf__cut_from_state(&pool, shown), cut);
        int64_t pieces = 0;
        for (int i = 0; i < shown->n_segments; i++) pieces += shown->segments[i].outer;
        cr_expect_eq(pieces, fewest_pieces(owns, N, 3));
        bool partition = true;
        for (int i = 0; i < N; i++) {
            const int owners = owns[i] + owns[N + i] + owns[2 * N + i];
            partition = partition && owners == 1;
        }
        cr_expect_eq(cut->partition, partition);
        if (partition) cr_expect(sheaf_split_state_is_partition(shown));
        for (int j = 0; j < 3; j++) {
            int64_t below = 0;
            for (int i = 0; i < N; i++) {
                cr_expect_eq(sheaf__cut_rank(cut, j, i), below);
                below += owns[j * N + i];
            }
            cr_expect_eq(sheaf__cut_count(cut, j), below);
            cr_expect_eq(sheaf_split_state_extent(shown, j, N), below);
        }
        /* carried through a product of factors and back */
        const int64_t left = 1 + (int64_t)(next(&seed) % 3), right = 1 + (int64_t)(next(&seed) % 3);
        const struct sheaf__cut *wide = sheaf__cut_embed(&pool, cut, left, right);
        cr_expect_eq(wide->extent, left * N * right);
        cr_expect_eq(sheaf__cut_extract(&pool, wide, left, N, right), cut);
        for (int j = 0; j < 3; j++) {
            for (int64_t i = 0; i < wide->extent; i++) {
                const bool mine = sheaf__cut_rank(wide, j, i + 1) > sheaf__cut_rank(wide, j, i);
                cr_expect_eq(mine, owns[j * N + i / right % N]);
            }
        }
        cr_expect_eq(sheaf__cut_sub(&pool, sheaf__cut_concat(&pool, cut, wide), 0, N), cut);
        cr_expect_eq(sheaf__cut_sub(&pool, sheaf__cut_concat(&pool, cut, wide), N, wide->extent),
                     wide);
    }
    sheaf__pool_free(&pool);
}

Test(cut, groups_follow_query_heads) {
    struct sheaf__pool pool;
    cr_assert_eq(sheaf__pool_init(&pool, 3), SHEAF_STATUS_SUCCESS);
    /* 8 query heads on 2 K/V heads (r = 4) over 3 members as 3/3/2: member 1 straddles */
    S *s = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 3, (int64_t[]){3, 3, 2}, 1);
    const struct sheaf__cut *heads = sheaf__cut_from_state(&pool, s);
    cr_expect_null(sheaf__cut_groups(&pool, heads, 4, false));
    const struct sheaf__cut *runs = sheaf__cut_groups(&pool, heads, 4, true);
    cr_assert_not_null(runs);
    for (int j = 0; j < 3; j++) {
        cr_expect_eq(sheaf__cut_divides_groups(heads, j, 4), j == 1);
        cr_expect_eq(runs->interval[j].lo, j == 2);
        cr_expect_eq(sheaf__cut_count(runs, j), j == 1 ? 2 : 1);
    }
    sheaf_split_state_free(s);
    /* 4/2/2: member 0 a whole group, the others halves of the second */
    s = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 3, (int64_t[]){4, 2, 2}, 1);
    const struct sheaf__cut *g =
        sheaf__cut_groups(&pool, sheaf__cut_from_state(&pool, s), 4, false);
    cr_assert_not_null(g);
    cr_expect_eq(g->extent, 2);
    cr_expect_not(g->partition);
    for (int j = 0; j < 3; j++) cr_expect_eq(g->interval[j].lo, j > 0);
    sheaf_split_state_free(s);
    sheaf__pool_free(&pool);
}

Test(cut, too_many_intervals_are_refused_not_worked_out) {
    struct sheaf__pool pool;
    cr_assert_eq(sheaf__pool_init(&pool, 2), SHEAF_STATUS_SUCCESS);
    S *s = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 2, (int64_t[]){1, 1}, 1);
    s->segments[0].outer = INT64_C(1) << 40;
    cr_expect_null(sheaf__cut_from_state(&pool, s));
    cr_expect_not(pool.failed); /* not out of memory */
    sheaf_split_state_free(s);
    sheaf__pool_free(&pool);
}

Test(split_state, axes_have_names) {
    static const struct {
        int axis;
        const char *name;
    } cases[] = {{SHEAF_SPLIT_AXIS_0, "0"},
                 {SHEAF_SPLIT_AXIS_3, "3"},
                 {4, "UNKNOWN"},
                 {SHEAF_SPLIT_AXIS_MIRRORED, "MIRRORED"},
                 {SHEAF_SPLIT_AXIS_PARTIAL, "PARTIAL"},
                 {12, "UNKNOWN"},
                 {-1, "UNKNOWN"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_str_eq(sheaf_split_axis_name((enum sheaf_split_axis)cases[i].axis),
                         cases[i].name);
}
