/* Divides units and heads over members: arithmetic of proportions, without models and tensors. */
#include "model/place/heads.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

double sheaf__sum_of_shares(const double *shares, int n) {
    double sum = 0;
    for (int j = 0; j < n; j++) sum += shares[j];
    return sum;
}

static bool all_equal(const double *shares, int n) {
    return n > 0 && memcmp(shares, shares + 1, (size_t)(n - 1) * sizeof *shares) == 0;
}

void sheaf__split_units(int64_t n, const double *shares, int n_members, int64_t *counts) {
    double total = sheaf__sum_of_shares(shares, n_members);
    int64_t left = n;
    for (int j = 0; j < n_members; j++) {
        counts[j] = total > 0 ? (int64_t)floor((double)n * (shares[j] / total)) : 0;
        if (counts[j] > left) counts[j] = left; /* rounding of the quotient */
        left -= counts[j];
    }
    /* equal remainders: the first members, without a search for each unit */
    const int equal = left > 0 && total > 0 && all_equal(shares, n_members) ? n_members : 0;
    for (int j = 0; j < equal && left > 0; j++, left--) counts[j]++;
    /* at most one unit a member is left; a second round only after rounding trouble */
    while (left > 0) {
        int best = -1;
        double best_rest = -INFINITY;
        for (int j = 0; j < n_members; j++) {
            double rest = (double)n * (shares[j] / total) - (double)counts[j];
            if (shares[j] > 0 && rest > best_rest) {
                best = j;
                best_rest = rest;
            }
        }
        if (best < 0) best = 0; /* no shares at all: excluded by sheaf__policy_new */
        counts[best]++;
        left--;
    }
}

/* How good a partial assignment is: the slowest member, then the distance from the shares. */
struct cost {
    double slowest, distance;
};

static bool less(struct cost a, struct cost b) {
    return a.slowest < b.slowest || (a.slowest <= b.slowest && a.distance < b.distance);
}

static struct cost add_member(struct cost c, int64_t heads, double share, double ideal) {
    double time = heads == 0 ? 0 : share > 0 ? (double)heads / share : INFINITY;
    double d = (double)heads - ideal;
    if (time > c.slowest) c.slowest = time;
    c.distance += d * d;
    return c;
}

/* The best way to give groups [gi, g) to members [j, n): a step covers either one member with
 * `groups` whole groups, or `members` >= 2 members that divide one group. */
struct step {
    struct cost cost;
    int members;
    int64_t groups;
};

enum sheaf_status sheaf__split_heads(int64_t g, int64_t r, const double *shares, int n_members,
                                     int64_t *q_first, int64_t *q_count, int64_t *kv_first,
                                     int64_t *kv_count) {
    size_t width = (size_t)g + 1, rows = (size_t)n_members + 1;
    struct step *steps = calloc(width * rows, sizeof *steps);
    if (!steps) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to divide the heads");
    double per_share = (double)(g * r) / sheaf__sum_of_shares(shares, n_members);
#define STEP(j, gi) steps[(size_t)(j)*width + (size_t)(gi)]
    for (int64_t gi = 0; gi <= g; gi++)
        STEP(n_members, gi).cost = (struct cost){gi == g ? 0 : INFINITY, 0};
    for (int j = n_members - 1; j >= 0; j--) {
        for (int64_t gi = g; gi >= 0; gi--) {
            struct step best = {.cost = {INFINITY, INFINITY}, .members = 1};
            for (int64_t k = g - gi; k >= 0; k--) { /* a tie: the lower member gets more */
                struct cost c =
                    add_member(STEP(j + 1, gi + k).cost, k * r, shares[j], shares[j] * per_share);
                if (less(c, best.cost)) best = (struct step){c, 1, k};
            }
            for (int m = 2; gi < g && m <= n_members - j; m++) {
                struct cost c = STEP(j + m, gi + 1).cost;
                if (sheaf__sum_of_shares(shares + j, m) <= 0) continue;
                sheaf__split_units(r, shares + j, m, q_count); /* scratch until the end */
                for (int i = 0; i < m; i++)
                    c = add_member(c, q_count[i], shares[j + i], shares[j + i] * per_share);
                if (less(c, best.cost)) best = (struct step){c, m, 1};
            }
            STEP(j, gi) = best;
        }
    }
    int64_t gi = 0;
    for (int j = 0; j < n_members;) {
        struct step s = STEP(j, gi);
        if (s.members == 1)
            q_count[j] = s.groups * r;
        else
            sheaf__split_units(r, shares + j, s.members, q_count + j);
        int64_t at = gi * r;
        for (int i = j; i < j + s.members; i++) {
            q_first[i] = at;
            at += q_count[i];
            kv_first[i] = gi;
            kv_count[i] = q_count[i] ? s.groups : 0;
        }
        j += s.members;
        gi += s.groups;
    }
#undef STEP
    free(steps);
    return gi == g ? SHEAF_STATUS_SUCCESS
                   : sheaf_set_error(SHEAF_STATUS_FAILED, "the heads cannot be divided");
}

/* ---- cuts that divide groups ---- */

/* Of the slowest member's time: what several members compute costs memory, so a cut must gain. */
#define WORTH (15.0 / 16)
/* So many times the K/V heads by share: shares that were measured are never quite equal. */
#define MORE_KV (9.0 / 8)

/* A cut of query heads in runs. A query head costs a member its columns of Q and of the output, and
 * its scores; a K/V head costs as many columns, of K and V, and its part of the cache. So the heads
 * of a member, query and K/V, are its time. */
struct runs {
    double slowest;  /* time by share of the slowest member */
    int64_t heads;   /* of all members: those that several have count for each */
    double distance; /* from the shares */
    int64_t n;       /* units of the first member */
};

static bool better(const struct runs *a, const struct runs *b) {
    if (a->slowest < b->slowest || a->slowest > b->slowest) return a->slowest < b->slowest;
    if (a->heads != b->heads) return a->heads < b->heads;
    return a->distance < b->distance;
}

static int64_t groups_touched(int64_t first, int64_t n, int64_t r) {
    return n ? (first + n - 1) / r - first / r + 1 : 0;
}

/* What a member adds that takes heads [first, first + n). A member may have no more K/V heads by
 * its share than `most`: where contexts are long, reading them is its time. */
static struct runs with_member(struct runs rest, int64_t first, int64_t n, int64_t r, double share,
                               double ideal, double most) {
    const int64_t kv = groups_touched(first, n, r);
    const double time = n == 0 ? 0 : share > 0 ? (double)(n + kv) / share : INFINITY;
    const bool fits = n == 0 || (share > 0 && (double)kv / share <= most);
    if (time > rest.slowest) rest.slowest = time;
    if (!fits) rest.slowest = INFINITY;
    rest.heads += n + kv;
    rest.distance += ((double)n - ideal) * ((double)n - ideal);
    return rest;
}

/* The best cut in runs of whole units of `unit` heads, into first and count (of heads). Its slowest
 * member's time; INFINITY: there is none. */
static enum sheaf_status best_runs(int64_t heads, int64_t r, int64_t unit, double most,
                                   const double *shares, int n_members, int64_t *first,
                                   int64_t *count, double *slowest) {
    const int64_t n = heads / unit, width = n + 1;
    struct runs *best = calloc((size_t)width * ((size_t)n_members + 1), sizeof *best);
    if (!best) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to divide the heads");
    const double per_share = (double)heads / sheaf__sum_of_shares(shares, n_members);
#define BEST(j, at) best[(int64_t)(j)*width + (at)]
    for (int64_t at = 0; at < n; at++) BEST(n_members, at).slowest = INFINITY;
    for (int j = n_members - 1; j >= 0; j--) {
        for (int64_t at = 0; at <= n; at++) {
            BEST(j, at) = (struct runs){.slowest = INFINITY};
            for (int64_t k = n - at; k >= 0; k--) { /* a tie: the lower member gets more */
                struct runs c = with_member(BEST(j + 1, at + k), at * unit, k * unit, r, shares[j],
                                            shares[j] * per_share, most);
                c.n = k;
                if (better(&c, &BEST(j, at))) BEST(j, at) = c;
            }
        }
    }
    *slowest = BEST(0, 0).slowest;
    for (int64_t j = 0, at = 0; j < n_members && *slowest < INFINITY; at += BEST(j, at).n, j++) {
        first[j] = at * unit;
        count[j] = BEST(j, at).n * unit;
    }
#undef BEST
    free(best);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__split_heads_in_runs(int64_t g, int64_t r, int64_t unit,
                                             const double *shares, int n_members, int64_t *q_first,
                                             int64_t *q_count, int64_t *kv_first,
                                             int64_t *kv_count) {
    enum sheaf_status status =
        sheaf__split_heads(g, r, shares, n_members, q_first, q_count, kv_first, kv_count);
    double slowest = 0, most = 0, runs = INFINITY;
    for (int j = 0; !status && j < n_members; j++) {
        if (!q_count[j]) continue;
        slowest = fmax(slowest, (double)(q_count[j] + kv_count[j]) / shares[j]);
        most = fmax(most, MORE_KV * (double)kv_count[j] / shares[j]);
    }
    const double bound = (double)(g * r + g) / sheaf__sum_of_shares(shares, n_members);
    if (status || unit >= r || (g * r) % unit || bound > slowest * WORTH) return status;
    int64_t *first = calloc(2 * (size_t)n_members, sizeof *first), *count = first + n_members;
    if (!first) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to divide the heads");
    status = best_runs(g * r, r, unit, most, shares, n_members, first, count, &runs);
    for (int j = 0; !status && j < n_members && runs <= slowest * WORTH; j++) {
        q_first[j] = first[j];
        q_count[j] = count[j];
        kv_first[j] = first[j] / r;
        kv_count[j] = groups_touched(first[j], count[j], r);
    }
    free(first);
    return status;
}
