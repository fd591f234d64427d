/* T1 for views: for every operand state, is the state that the planner gives the view true, is
 * every true one found, and are its offset and strides right? Truth is found by walking all
 * elements: each member must own exactly its part of the view, at addresses that are linear in the
 * local index. */
#include <criterion/criterion.h>

#include "split/view.h"
#include "split_cuts.h"

typedef struct sheaf_tensor T;

struct count {
    long tuples, claims, offered, is_true, wrong, missing;
};

struct view_case {
    const char *name;
    int64_t from[SHEAF_MAX_DIMS], to[SHEAF_MAX_DIMS];
    int64_t nb[SHEAF_MAX_DIMS];  /* of the view, in elements */
    int64_t offset;              /* in elements */
    int permute[SHEAF_MAX_DIMS]; /* of the operand before the view: where dimension i goes */
};

#define PLAIN_ORDER                                                                                \
    { 0, 1, 2, 3 }
static const struct view_case view_cases[] = {
    {"reshape heads", {24, 5, 1, 1}, {6, 4, 5, 1}, {1, 6, 24, 120}, 0, PLAIN_ORDER},
    {"reshape back", {6, 4, 5, 1}, {24, 5, 1, 1}, {1, 24, 120, 120}, 0, PLAIN_ORDER},
    {"flatten", {6, 8, 1, 1}, {48, 1, 1, 1}, {1, 48, 48, 48}, 0, PLAIN_ORDER},
    {"unflatten", {48, 1, 1, 1}, {6, 8, 1, 1}, {1, 6, 48, 48}, 0, PLAIN_ORDER},
    {"oblique", {6, 8, 1, 1}, {8, 6, 1, 1}, {1, 8, 48, 48}, 0, PLAIN_ORDER},
    {"reshape tokens", {6, 8, 4, 1}, {6, 32, 1, 1}, {1, 6, 192, 192}, 0, PLAIN_ORDER},
    {"insert one", {6, 8, 1, 1}, {6, 1, 8, 1}, {1, 6, 6, 48}, 0, PLAIN_ORDER},
    {"whole", {6, 8, 4, 1}, {6, 8, 4, 1}, {1, 6, 48, 192}, 0, PLAIN_ORDER},
    {"first rows", {6, 8, 1, 1}, {6, 5, 1, 1}, {1, 6, 30, 30}, 0, PLAIN_ORDER},
    {"later rows", {6, 8, 1, 1}, {6, 4, 1, 1}, {1, 6, 24, 24}, 18, PLAIN_ORDER},
    {"one row", {6, 8, 1, 1}, {6, 1, 1, 1}, {1, 6, 6, 6}, 24, PLAIN_ORDER},
    {"every second row", {6, 8, 1, 1}, {6, 4, 1, 1}, {1, 12, 48, 48}, 6, PLAIN_ORDER},
    {"part of the columns", {8, 6, 1, 1}, {4, 6, 1, 1}, {1, 8, 48, 48}, 2, PLAIN_ORDER},
    {"strided columns", {8, 6, 1, 1}, {4, 6, 1, 1}, {2, 8, 48, 48}, 0, PLAIN_ORDER},
    {"cache in heads", {24, 8, 1, 1}, {6, 4, 5, 1}, {1, 6, 24, 120}, 0, PLAIN_ORDER},
    {"cache rows flat", {6, 8, 1, 1}, {24, 1, 1, 1}, {1, 24, 24, 24}, 12, PLAIN_ORDER},
    {"part of each head", {24, 5, 1, 1}, {3, 4, 5, 1}, {1, 6, 24, 120}, 2, PLAIN_ORDER},
    {"fused q", {32, 5, 1, 1}, {4, 4, 5, 1}, {1, 4, 32, 160}, 0, PLAIN_ORDER},
    {"fused k", {32, 5, 1, 1}, {4, 2, 5, 1}, {1, 4, 32, 160}, 16, PLAIN_ORDER},
    {"fused v flat", {32, 5, 1, 1}, {8, 5, 1, 1}, {1, 32, 160, 160}, 24, PLAIN_ORDER},
    {"one expert", {6, 4, 5, 1}, {6, 5, 1, 1}, {1, 24, 120, 120}, 6, PLAIN_ORDER},
    {"rows of a permuted", {6, 4, 5, 1}, {6, 4, 2, 1}, {1, 24, 6, 48}, 6, {0, 2, 1, 3}},
    {"transposed", {6, 8, 1, 1}, {8, 6, 1, 1}, {6, 1, 48, 48}, 0, PLAIN_ORDER},
    {"diagonal", {6, 6, 1, 1}, {6, 1, 1, 1}, {7, 42, 42, 42}, 0, PLAIN_ORDER},
    {"windows", {12, 1, 1, 1}, {4, 5, 1, 1}, {1, 2, 10, 10}, 0, PLAIN_ORDER},
};
enum { N_VIEWS = sizeof view_cases / sizeof *view_cases };

/* Local address of the operand's element at a global address (in elements), or -1 if the member
 * does not own it. from_nb: strides of the operand. */
static int64_t local_address(const struct view_case *v, const int64_t *from_ne,
                             const int64_t *from_nb, const int64_t *local_nb, struct sheaf__st st,
                             int member, int64_t address) {
    int64_t i[SHEAF_MAX_DIMS], order[SHEAF_MAX_DIMS] = {0, 1, 2, 3}, at = 0;
    (void)v;
    for (int a = 0; a < 4; a++) {
        for (int b = a + 1; b < 4; b++) {
            if (from_nb[order[b]] > from_nb[order[a]] ||
                (from_nb[order[b]] == from_nb[order[a]] && from_ne[order[a]] == 1)) {
                const int64_t t = order[a];
                order[a] = order[b];
                order[b] = t;
            }
        }
    }
    for (int k = 0; k < 4; k++) {
        const int64_t d = order[k];
        i[d] = from_ne[d] == 1 ? 0 : address / from_nb[d];
        if (from_ne[d] > 1) address %= from_nb[d];
    }
    if (st.kind == SHEAF__S) {
        const int64_t g = i[st.axis];
        const int64_t r = sheaf__cut_rank(st.cut, member, g);
        if (sheaf__cut_rank(st.cut, member, g + 1) == r) return -1;
        i[st.axis] = r;
    }
    for (int d = 0; d < 4; d++) at += i[d] * local_nb[d];
    return at;
}

/* Does the member's part of the view, if it lies as `to`, have an offset and strides? */
static bool addressable(const struct view_case *v, const int64_t *from_ne, const int64_t *from_nb,
                        const int64_t *local_nb, struct sheaf__st from, struct sheaf__st to,
                        int member, int64_t offset[1], int64_t stride[4]) {
    int64_t ne[4];
    memcpy(ne, v->to, sizeof ne);
    if (to.kind == SHEAF__S) ne[to.axis] = sheaf__cut_count(to.cut, member);
    bool empty = false;
    for (int d = 0; d < 4; d++) {
        stride[d] = 0;
        empty = empty || ne[d] == 0;
    }
    /* a member must not own what its part leaves out, or the cut would not be the view's */
    *offset = -1;
    struct split_index x = {{0}};
    bool known[4] = {false};
    do {
        int64_t g[4], address = v->offset, mine = 0;
        memcpy(g, x.i, sizeof g);
        bool part = !empty;
        for (int d = 0; d < 4; d++) address += g[d] * v->nb[d];
        if (to.kind == SHEAF__S) {
            const int64_t r = sheaf__cut_rank(to.cut, member, g[to.axis]);
            part = sheaf__cut_rank(to.cut, member, g[to.axis] + 1) > r;
            g[to.axis] = r;
        }
        const int64_t at = local_address(v, from_ne, from_nb, local_nb, from, member, address);
        if (part != (at >= 0)) return false;
        if (!part) continue;
        int single = -1, n_nonzero = 0;
        for (int d = 0; d < 4; d++) {
            if (g[d]) {
                single = d;
                n_nonzero++;
            }
        }
        if (n_nonzero == 0) *offset = at;
        if (n_nonzero == 1 && g[single] == 1) {
            stride[single] = at - *offset;
            known[single] = true;
        }
        mine = *offset;
        for (int d = 0; d < 4; d++) mine += g[d] * stride[d];
        if (mine != at) return false;
    } while (split_next(&x, v->to));
    (void)known;
    return true;
}

/* The operand and the view; from_nb: strides of the operand, in elements. */
static void make_tensors(const struct view_case *v, T *from, T *to, int64_t from_nb[4]) {
    T plain = {.type = SHEAF_TYPE_F32};
    *from = *to = plain;
    memcpy(plain.ne, v->from, sizeof plain.ne);
    split_dense(&plain);
    for (int i = 0; i < 4; i++) {
        from->ne[v->permute[i]] = plain.ne[i];
        from->nb[v->permute[i]] = plain.nb[i];
        to->ne[i] = v->to[i];
        to->nb[i] = (size_t)v->nb[i] * 4;
    }
    for (int i = 0; i < 4; i++) from_nb[i] = (int64_t)from->nb[i] / 4;
}

/* Strides of the member's slice of the operand, in bytes and in elements. */
static void slice_strides(const struct view_case *v, struct sheaf__st st, int member, size_t nb[4],
                          int64_t local_nb[4]) {
    T local = {.type = SHEAF_TYPE_F32};
    memcpy(local.ne, v->from, sizeof local.ne);
    for (int a = 0; a < 4; a++)
        if (v->permute[a] == st.axis) local.ne[a] = sheaf__cut_count(st.cut, member);
    split_dense(&local);
    for (int a = 0; a < 4; a++) {
        nb[v->permute[a]] = local.nb[a];
        local_nb[v->permute[a]] = (int64_t)local.nb[a] / 4;
    }
}

Test(exhaustive, views) {
    struct count c = {0};
    for (int n = 0; n < N_VIEWS; n++) {
        const struct view_case *v = &view_cases[n];
        for (int d = 2; d <= MAX_MEMBERS; d++) {
            for (int k = 0; k < N_KINDS; k++) {
                struct sheaf__pool pool;
                cr_assert_eq(sheaf__pool_init(&pool, d), SHEAF_STATUS_SUCCESS);
                T from, to;
                int64_t from_nb[4];
                make_tensors(v, &from, &to, from_nb);
                const struct sheaf__layout lf = sheaf__layout_of(&from), lt = sheaf__layout_of(&to);
                struct sheaf__st st[MAX_CANDIDATES], out[MAX_CANDIDATES + 1];
                const int n_st = candidates(&pool, &from, (enum kind)k, st);
                int n_out = candidates(&pool, &to, (enum kind)k, out);
                /* the three segments of the fused projection, as a splitter would cut them */
                int n_in = n_st;
                if (v->from[0] == 32) {
                    const struct sheaf__cut *q = make_cut(&pool, (enum kind)k, 16, 8, 1);
                    const struct sheaf__cut *kv = make_cut(&pool, (enum kind)k, 8, 4, 1);
                    if (q && kv)
                        st[n_in++] = sheaf__st_s(
                            0, sheaf__cut_concat(&pool, sheaf__cut_concat(&pool, q, kv), kv));
                }
                for (int i = 0; i < n_in; i++) {
                    if (st[i].kind != SHEAF__S) continue;
                    c.tuples++;
                    struct sheaf__st got = {0};
                    const bool offered = sheaf__view_transfer(&pool, &lf, &lt, v->offset * 4,
                                                              st[i].axis, st[i].cut, &got);
                    c.offered += offered;
                    int n_try = n_out;
                    if (offered) out[n_try++] = got;
                    bool any = false, wrong = offered;
                    for (int o = 0; o < n_try; o++) {
                        if (out[o].kind != SHEAF__S) continue;
                        c.claims++;
                        bool fits = true;
                        for (int j = 0; j < d && fits; j++) {
                            int64_t local_nb[4], offset = 0, stride[4];
                            size_t nb[4];
                            slice_strides(v, st[i], j, nb, local_nb);
                            fits = addressable(v, from.ne, from_nb, local_nb, st[i], out[o], j,
                                               &offset, stride);
                            if (!fits || !offered || o != n_try - 1) continue;
                            /* the planner's offset and strides must be these */
                            int64_t ne[4], at = -1;
                            size_t mine[4];
                            memcpy(ne, to.ne, sizeof ne);
                            ne[got.axis] = sheaf__cut_count(got.cut, j);
                            cr_expect(sheaf__view_local(&lf, &lt, v->offset * 4, st[i], got, j, nb,
                                                        ne, mine, &at));
                            if (ne[got.axis] == 0) continue;
                            cr_expect_eq(at, offset * 4, "%s: offset", v->name);
                            for (int a = 0; a < 4; a++) {
                                if (ne[a] > 1)
                                    cr_expect_eq((int64_t)mine[a], stride[a] * 4, "%s: stride %d",
                                                 v->name, a);
                            }
                        }
                        any = any || fits;
                        c.is_true += fits;
                        if (o == n_try - 1 && offered && fits) wrong = false;
                    }
                    if (wrong) {
                        char a[160];
                        c.wrong++;
                        fprintf(stderr, "wrong view: %s %s %s\n", v->name, kind_names[k],
                                sheaf_split_state_print(sheaf__st_show(&pool, st[i]), a, sizeof a));
                    }
                    if (any && !offered) {
                        char a[160];
                        c.missing++;
                        fprintf(stderr, "missing view: %s %s %s\n", v->name, kind_names[k],
                                sheaf_split_state_print(sheaf__st_show(&pool, st[i]), a, sizeof a));
                    }
                }
                sheaf__pool_free(&pool);
            }
        }
    }
    printf("views: %ld operand states, %ld claims; %ld true, %ld offered, %ld wrong, %ld missing\n",
           c.tuples, c.claims, c.is_true, c.offered, c.wrong, c.missing);
    cr_expect_eq(c.wrong, 0);
    cr_expect_eq(c.missing, 0);
}

/* ---- views that move ---- */

/* The last element that the view shows, from its first one. */
static int64_t extent_of(const struct view_case *v) {
    int64_t last = 0;
    for (int d = 0; d < 4; d++) last += (v->to[d] - 1) * v->nb[d];
    return last;
}

/* Does each member own the same part of both views, at the same strides? */
static bool same_parts(const struct view_case *was, const struct view_case *now, const T *from,
                       const int64_t *from_nb, struct sheaf__st st, struct sheaf__st to, int d,
                       int64_t offset[MAX_MEMBERS]) {
    for (int j = 0; j < d; j++) {
        size_t nb[4];
        int64_t local_nb[4], a[4], b[4], at;
        slice_strides(was, st, j, nb, local_nb);
        if (!addressable(was, from->ne, from_nb, local_nb, st, to, j, &at, a) ||
            !addressable(now, from->ne, from_nb, local_nb, st, to, j, &offset[j], b) ||
            memcmp(a, b, sizeof a))
            return false;
    }
    return true;
}

struct moves {
    long all, yes, wrong, possible;
};

static void check_move(const struct view_case *v, const struct view_case *now, struct sheaf__st st,
                       struct sheaf__st to_st, int d, struct moves *c) {
    T from, to;
    int64_t from_nb[4], offset[MAX_MEMBERS];
    make_tensors(v, &from, &to, from_nb);
    const struct sheaf__layout lf = sheaf__layout_of(&from), lt = sheaf__layout_of(&to);
    const bool yes = sheaf__view_moves(&lf, &lt, v->offset * 4, now->offset * 4, st, to_st, d);
    const bool can = same_parts(v, now, &from, from_nb, st, to_st, d, offset);
    c->all++;
    c->yes += yes;
    c->possible += can;
    c->wrong += yes && !can;
    for (int j = 0; j < d && yes && can; j++) {
        size_t nb[4], mine[4];
        int64_t local_nb[4], ne[4], at = -1;
        slice_strides(v, st, j, nb, local_nb);
        memcpy(ne, to.ne, sizeof ne);
        ne[to_st.axis] = sheaf__cut_count(to_st.cut, j);
        cr_expect(sheaf__view_local(&lf, &lt, now->offset * 4, st, to_st, j, nb, ne, mine, &at));
        if (ne[to_st.axis]) cr_expect_eq(at, offset[j] * 4, "%s moved: offset", v->name);
    }
}

/* To every other place in the operand: what is said to be the same must be. Not all that is must be
 * said to be (a row that ends where the next begins has other digits), but most of it. */
Test(exhaustive, moves) {
    struct moves c = {0};
    for (int n = 0; n < N_VIEWS; n++) {
        const struct view_case *v = &view_cases[n];
        const int64_t size = v->from[0] * v->from[1] * v->from[2] * v->from[3];
        for (int d = 2; d <= MAX_MEMBERS; d++) {
            for (int k = 0; k < N_KINDS; k++) {
                struct sheaf__pool pool;
                T from, to;
                int64_t from_nb[4];
                struct sheaf__st st[MAX_CANDIDATES], got = {0};
                cr_assert_eq(sheaf__pool_init(&pool, d), SHEAF_STATUS_SUCCESS);
                make_tensors(v, &from, &to, from_nb);
                const struct sheaf__layout lf = sheaf__layout_of(&from), lt = sheaf__layout_of(&to);
                const int n_in = candidates(&pool, &from, (enum kind)k, st);
                for (int i = 0; i < n_in; i++) {
                    if (st[i].kind != SHEAF__S ||
                        !sheaf__view_transfer(&pool, &lf, &lt, v->offset * 4, st[i].axis, st[i].cut,
                                              &got))
                        continue;
                    struct view_case now = *v;
                    for (now.offset = 0; now.offset + extent_of(v) < size; now.offset++)
                        check_move(v, &now, st[i], got, d, &c);
                }
                sheaf__pool_free(&pool);
            }
        }
    }
    printf("moves: %ld, %ld kept, %ld of these wrong, %ld could be kept\n", c.all, c.yes, c.wrong,
           c.possible);
    cr_expect_eq(c.wrong, 0);
    cr_expect_gt(c.yes * 4, c.possible * 3);
}

/* ---- any views ---- */

static int64_t below(uint64_t *seed, int64_t n) {
    return (int64_t)(split_random(seed) % (uint64_t)n);
}

/* Strides that an operand has, and others; elements of the view may overlap or interleave. */
static struct view_case random_view(uint64_t *seed) {
    struct view_case v = {.name = "random", .permute = PLAIN_ORDER};
    int64_t room = 96, size = 1;
    for (int i = 0; i < 4; i++) {
        v.from[i] = 1 + below(seed, room < 8 ? room : 8);
        room /= v.from[i];
        size *= v.from[i];
    }
    for (int i = below(seed, 3) ? 0 : 3; i > 0; i--) {
        const int j = (int)below(seed, i + 1), t = v.permute[i];
        v.permute[i] = v.permute[j];
        v.permute[j] = t;
    }
    v.offset = below(seed, 3) ? 0 : below(seed, size);
    room = size - 1 - v.offset; /* behind the last element */
    for (int i = 0; i < 4; i++) {
        const int64_t row = v.from[0], plane = row * v.from[1];
        const int64_t steps[] = {1, row, plane, plane * v.from[2], 2, 3, 2 * row};
        v.nb[i] = below(seed, 6) ? steps[below(seed, 7)] : 1 + below(seed, size);
        if (i == 0 && below(seed, 2)) v.nb[0] = 1;
        const int64_t most = room / v.nb[i] + 1;
        v.to[i] = below(seed, 3) || most > 12 ? 1 + below(seed, most < 8 ? most : 8) : most;
        room -= (v.to[i] - 1) * v.nb[i];
    }
    return v;
}

/* Runs, single indices, repeats of these, or runs that overlap. */
static const struct sheaf__cut *random_cut(struct sheaf__pool *pool, uint64_t *seed, int64_t n) {
    const int d = pool->n_members;
    const int64_t form = below(seed, 4);
    int64_t end[MAX_MEMBERS + 1] = {0}, period = form == 2 ? 1 + below(seed, n) : n;
    uint8_t owner[96];
    while (n % period) period--;
    for (int j = 0; j < d; j++) end[j + 1] = j == d - 1 ? n : end[j] + below(seed, n - end[j] + 1);
    for (int64_t i = 0; i < n; i++) owner[i] = (uint8_t)below(seed, d);
    sheaf__cut_begin(pool);
    for (int j = 0; j < d; j++) {
        if (form == 0 || form == 3)
            sheaf__cut_add(pool, end[j], end[j + 1] + (form == 3 && end[j + 1] < n));
        for (int64_t i = 0; i < n && (form == 1 || form == 2); i++)
            if (owner[i % period] == j) sheaf__cut_add(pool, i, i + 1);
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, n);
}

/* Is what the planner says of the view true for the member? */
static bool is_right(const struct view_case *v, const T *from, const int64_t from_nb[4],
                     const T *to, struct sheaf__st st, struct sheaf__st got, int member) {
    const struct sheaf__layout lf = sheaf__layout_of(from), lt = sheaf__layout_of(to);
    int64_t local_nb[4], offset, stride[4], ne[4], at = -1;
    size_t nb[4], mine[4];
    slice_strides(v, st, member, nb, local_nb);
    memcpy(ne, to->ne, sizeof ne);
    ne[got.axis] = sheaf__cut_count(got.cut, member);
    if (!addressable(v, from->ne, from_nb, local_nb, st, got, member, &offset, stride) ||
        !sheaf__view_local(&lf, &lt, v->offset * 4, st, got, member, nb, ne, mine, &at))
        return false;
    bool same = ne[got.axis] == 0 || at == offset * 4;
    for (int a = 0; a < 4 && ne[got.axis]; a++)
        same = same && (ne[a] < 2 || (int64_t)mine[a] == stride[a] * 4);
    return same;
}

Test(random, views) {
    enum { VIEWS = 6000, CUTS = 12 };
    long offered = 0, wrong = 0;
    for (uint64_t n = 0; n < VIEWS; n++) {
        uint64_t seed = n;
        const struct view_case v = random_view(&seed);
        T from, to;
        int64_t from_nb[4];
        struct sheaf__pool pool;
        cr_assert_eq(sheaf__pool_init(&pool, 2 + (int)below(&seed, MAX_MEMBERS - 1)),
                     SHEAF_STATUS_SUCCESS);
        make_tensors(&v, &from, &to, from_nb);
        const struct sheaf__layout lf = sheaf__layout_of(&from), lt = sheaf__layout_of(&to);
        for (int k = 0; k < CUTS; k++) {
            const int axis = (int)below(&seed, 4);
            const struct sheaf__cut *cut = random_cut(&pool, &seed, from.ne[axis]);
            struct sheaf__st got = {0};
            if (!sheaf__view_transfer(&pool, &lf, &lt, v.offset * 4, axis, cut, &got)) continue;
            offered++;
            for (int j = 0; j < pool.n_members; j++) {
                if (is_right(&v, &from, from_nb, &to, sheaf__st_s(axis, cut), got, j)) continue;
                wrong++;
                cr_log_error("view %llu, cut %d, member %d", (unsigned long long)n, k, j);
                break;
            }
        }
        sheaf__pool_free(&pool);
    }
    printf("random views: %ld offered, %ld wrong\n", offered, wrong);
    cr_expect_eq(wrong, 0);
    cr_expect_gt(offered, VIEWS * CUTS / 2);
}

/* One head of keys, which two members have in parts that are all of it, beside queries that are whole. */
Test(view, of_an_operand_that_is_everywhere) {
    struct sheaf__pool pool;
    T from = {.type = SHEAF_TYPE_F32, .ne = {32, 3, 1, 1}},
      to = {.type = SHEAF_TYPE_F32, .ne = {8, 3, 1, 1}};
    int64_t at = -1;
    size_t mine[4];
    split_dense(&from);
    split_dense(&to);
    to.nb[1] = from.nb[1];
    const struct sheaf__layout lf = sheaf__layout_of(&from), lt = sheaf__layout_of(&to);
    cr_assert_eq(sheaf__pool_init(&pool, 2), SHEAF_STATUS_SUCCESS);
    sheaf__cut_begin(&pool);
    for (int j = 0; j < 2; j++) {
        sheaf__cut_add(&pool, 0, 32);
        sheaf__cut_next_member(&pool);
    }
    const struct sheaf__st everywhere = sheaf__st_s(0, sheaf__cut_end(&pool, 32));
    for (int j = 0; j < 2; j++) {
        cr_assert(sheaf__view_local(&lf, &lt, 16 * 4, everywhere, (struct sheaf__st){SHEAF__M}, j,
                                    from.nb, to.ne, mine, &at));
        cr_expect_eq(at, 16 * 4);
        cr_expect(mine[0] == 4 && mine[1] == from.nb[1], "%zu, %zu", mine[0], mine[1]);
    }
    sheaf__pool_free(&pool);
}
