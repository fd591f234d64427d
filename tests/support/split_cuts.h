/* Families of cuts and the candidate states of a tensor, for the exhaustive tests of src/split. */
#ifndef SHEAF_TESTS_SPLIT_CUTS_H
#define SHEAF_TESTS_SPLIT_CUTS_H

#include "split/match.h"
#include "split_exec.h"

enum { MAX_CANDIDATES = 32, MAX_MEMBERS = 4 };

enum kind { EVEN, UNEVEN, REVERSED, HOLE, OVERLAP, N_KINDS };
static const char *const kind_names[] = {"even", "uneven", "reversed", "hole", "overlap"};

/* A cut of n indices in units, repeated `outer` times. NULL if this family has none, or if one
 * member would own all and the others nothing: then every claim about slices is true. */
static inline const struct sheaf__cut *make_cut(struct sheaf__pool *pool, enum kind kind, int64_t n,
                                                int64_t unit, int64_t outer) {
    const int d = pool->n_members;
    if (n % (unit * outer) || (kind == HOLE && d < 3)) return NULL;
    const int64_t units = n / unit / outer;
    int64_t weight[MAX_MEMBERS], sum = 0, lo[MAX_MEMBERS], hi[MAX_MEMBERS];
    for (int j = 0; j < d; j++) {
        weight[j] = kind == EVEN || kind == OVERLAP ? 1 : j + 1;
        if (kind == HOLE && j == 1) weight[j] = 0;
        sum += weight[j];
    }
    int64_t done = 0;
    for (int j = 0; j < d; j++) {
        const int to = kind == REVERSED ? d - 1 - j : j;
        lo[to] = units * done / sum;
        done += weight[j];
        hi[to] = units * done / sum;
        if (kind == OVERLAP && hi[to] < units) hi[to]++;
    }
    sheaf__cut_begin(pool);
    int owners = 0;
    for (int j = 0; j < d; j++) {
        for (int64_t o = 0; o < outer; o++)
            sheaf__cut_add(pool, (o * units + lo[j]) * unit, (o * units + hi[j]) * unit);
        owners += hi[j] > lo[j];
        sheaf__cut_next_member(pool);
    }
    const struct sheaf__cut *cut = sheaf__cut_end(pool, n);
    return owners > 1 && !cut->everywhere ? cut : NULL;
}

static inline int candidates(struct sheaf__pool *pool, const struct sheaf_tensor *t, enum kind kind,
                             struct sheaf__st *out) {
    int n = 0;
    out[n++] = sheaf__st_m();
    if (t->type == SHEAF_TYPE_F32) out[n++] = sheaf__st_p();
    for (int a = 0; a < SHEAF_MAX_DIMS; a++) {
        const int64_t form[][2] = {{1, 1}, {2, 1}, {1, 2}, {3, 1}, {32, 1}};
        for (int f = 0; f < 5; f++) {
            const struct sheaf__cut *cut =
                t->ne[a] > 1 ? make_cut(pool, kind, t->ne[a], form[f][0], form[f][1]) : NULL;
            if (!cut || (f == 3 && t->ne[a] < 9)) continue;
            bool known = false;
            for (int i = 0; i < n; i++) known = known || (out[i].cut == cut && out[i].axis == a);
            if (!known && sheaf__st_fits(sheaf__st_s(a, cut), t->type))
                out[n++] = sheaf__st_s(a, cut);
        }
    }
    return n;
}

/* Fewer than candidates() has: units of one, rounds of half, the state of a head of 2. */
static inline int few_candidates(struct sheaf__pool *pool, const struct sheaf_tensor *t,
                                 enum kind kind, struct sheaf__st *out) {
    static const int64_t form[][2] = {{1, 1}, {1, 2}, {4, 1}};
    int n = 0;
    out[n++] = sheaf__st_m();
    if (t->type == SHEAF_TYPE_F32) out[n++] = sheaf__st_p();
    for (int a = 0; a < SHEAF_MAX_DIMS; a++) {
        for (int f = 0; f < 3; f++) {
            const struct sheaf__cut *cut = make_cut(pool, kind, t->ne[a], form[f][0], form[f][1]);
            bool known = !cut;
            for (int i = 0; i < n && cut; i++)
                known = known || (out[i].cut == cut && out[i].axis == a);
            if (!known) out[n++] = sheaf__st_s(a, cut);
        }
    }
    return n;
}

#endif
