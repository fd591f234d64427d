/* Divides units and heads over members: arithmetic of proportions, without models and tensors. */
#include "model/place/heads.h"

#include <inttypes.h>
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

/* The part of a unit that a share has beyond whole ones. */
static double rest_of(int64_t n, double share, double total) {
    const double ideal = (double)n * (share / total);
    return ideal - floor(ideal);
}

/* Members with a share whose rest is `least` or more. */
static int64_t count_rests(int64_t n, const double *shares, int n_members, double total,
                           double least) {
    int64_t found = 0;
    for (int j = 0; j < n_members; j++)
        found += shares[j] > 0 && rest_of(n, shares[j], total) >= least;
    return found;
}

/* One more for each of the `left` largest rests, of equal ones the first; there are more than that.
 * More rests than `left` are `low` or more, not as many are `high` or more. */
static void add_largest_rests(int64_t n, const double *shares, int n_members, double total,
                              int64_t left, int64_t *counts) {
    double low = 0, high = 1;
    int64_t found = 0;
    while (found != left) {
        const double middle = low + (high - low) / 2;
        if (!(low < middle && middle < high)) break;
        found = count_rests(n, shares, n_members, total, middle);
        if (found > left)
            low = middle;
        else
            high = middle;
    }
    int64_t ties = left - count_rests(n, shares, n_members, total, high);
    for (int j = 0; j < n_members; j++) {
        const double rest = rest_of(n, shares[j], total);
        if (shares[j] > 0 && (rest >= high || (rest >= low && ties-- > 0))) counts[j]++;
    }
}

/* See sheaf__split_units. total: of the shares, and of others whose part is less than a unit and
 * that get none. */
static void split_by(double total, int64_t n, const double *shares, int n_members,
                     int64_t *counts) {
    int64_t left = n;
    for (int j = 0; j < n_members; j++) {
        counts[j] = total > 0 ? (int64_t)floor((double)n * (shares[j] / total)) : 0;
        if (counts[j] > left) counts[j] = left; /* rounding of the quotient */
        left -= counts[j];
    }
    const int64_t takers = left > 0 && total > 0 ? count_rests(n, shares, n_members, total, 0) : 0;
    /* at most one unit a member is left; more only after rounding trouble */
    for (int j = 0; j < n_members && takers; j++)
        if (shares[j] > 0) counts[j] += left / takers;
    if (takers) left %= takers;
    if (takers && all_equal(shares, n_members)) { /* the first members, without a search */
        for (int j = 0; left > 0; j++, left--) counts[j]++;
    } else if (takers && left) {
        add_largest_rests(n, shares, n_members, total, left, counts);
        left = 0;
    }
    counts[0] += left; /* no shares at all: excluded by sheaf__policy_new */
}

void sheaf__split_units(int64_t n, const double *shares, int n_members, int64_t *counts) {
    split_by(sheaf__sum_of_shares(shares, n_members), n, shares, n_members, counts);
}

/* ---- cuts into whole groups, and members that divide one ---- */

/* Distances from the shares are integers, in parts of a head: so ways that are as good compare as
 * equal, whatever the order of the members. */
enum { FRACTION_BITS = 20, MOST_HEADS = 1 << 21 };

/* `members` members in a row divide one group. */
struct window {
    int members;
    double slowest;   /* heads by share */
    int64_t distance; /* see distance_of */
};

struct step {
    int members;    /* that it covers: one, or those that divide a group */
    int64_t groups; /* that they get */
};

/* The best ways to give groups [gi, g) to members [j, n), by j and gi. */
struct ways {
    int64_t g, r;
    const double *shares;
    int n;
    int64_t *ideal;        /* [n] heads by share, in parts of a head */
    double *slowest;       /* [n + 1][g + 1] of the fastest way; INFINITY: there is none */
    int64_t *distance;     /* [n + 1][g + 1] of the nearest way that is fast enough; NO_WAY */
    struct step *step;     /* [n][g + 1] its first */
    struct window *window; /* [n] from the member that is looked at */
    /* of a window the members with the largest shares, in order: others get nothing */
    double *top;         /* [r] shares */
    int64_t *top_ideal;  /* [r] */
    int64_t *count;      /* [r] heads */
    int64_t n_top, last; /* the last of them to get something */
};
static const int64_t NO_WAY = INT64_MAX;

static void ways_free(struct ways *w) {
    free(w->ideal);
    free(w->slowest);
    free(w->distance);
    free(w->step);
    free(w->window);
    free(w->top);
    free(w->top_ideal);
    free(w->count);
}

static enum sheaf_status ways_init(struct ways *w) {
    const size_t n = (size_t)w->n, width = (size_t)w->g + 1, r = (size_t)w->r;
    const double sum = sheaf__sum_of_shares(w->shares, w->n);
    w->ideal = calloc(n, sizeof *w->ideal);
    w->slowest = calloc((n + 1) * width, sizeof *w->slowest);
    w->distance = calloc((n + 1) * width, sizeof *w->distance);
    w->step = calloc(n * width, sizeof *w->step);
    w->window = calloc(n, sizeof *w->window);
    w->top = calloc(r, sizeof *w->top);
    w->top_ideal = calloc(r, sizeof *w->top_ideal);
    w->count = calloc(r, sizeof *w->count);
    if (!w->ideal || !w->slowest || !w->distance || !w->step || !w->window || !w->top ||
        !w->top_ideal || !w->count)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to divide the heads");
    for (int j = 0; j < w->n; j++)
        w->ideal[j] =
            llround(w->shares[j] / sum * (double)(w->g * w->r) * (double)(1 << FRACTION_BITS));
    return SHEAF_STATUS_SUCCESS;
}

static size_t way(const struct ways *w, int j, int64_t gi) {
    return (size_t)j * ((size_t)w->g + 1) + (size_t)gi;
}

static double time_of(int64_t heads, double share) {
    return heads == 0 ? 0 : share > 0 ? (double)heads / share : INFINITY;
}

/* The square of the distance from the ideal, less that of no heads. */
static int64_t distance_of(int64_t heads, int64_t ideal) {
    return heads * ((heads << FRACTION_BITS) - 2 * ideal);
}

/* Member i is in the window, too. Is its share one of the r largest? */
static bool enters_top(struct ways *w, int i) {
    if (w->n_top == w->r) {
        if (!(w->shares[i] > w->top[w->last])) return false;
        const size_t behind = (size_t)(--w->n_top - w->last);
        memmove(w->top + w->last, w->top + w->last + 1, behind * sizeof *w->top);
        memmove(w->top_ideal + w->last, w->top_ideal + w->last + 1, behind * sizeof *w->top_ideal);
    }
    w->top[w->n_top] = w->shares[i];
    w->top_ideal[w->n_top++] = w->ideal[i];
    w->last = 0;
    for (int64_t k = 1; k < w->n_top; k++)
        if (w->top[k] <= w->top[w->last]) w->last = k;
    return true;
}

/* settled: the largest r shares have a head each. */
static struct window window_of(struct ways *w, int members, double total, bool settled) {
    struct window made = {.members = members};
    if (settled)
        for (int64_t k = 0; k < w->n_top; k++) w->count[k] = 1;
    else
        split_by(total, w->r, w->top, (int)w->n_top, w->count);
    for (int64_t k = 0; k < w->n_top; k++) {
        made.slowest = fmax(made.slowest, time_of(w->count[k], w->top[k]));
        made.distance += distance_of(w->count[k], w->top_ideal[k]);
    }
    return made;
}

/* The windows from member j on that are worth a look, into w->window. Returns how many. A member
 * gets a head or more only if its share is one of the r largest; when each of those has one head, a
 * window is worth a look only if its last member is one of them. `limit`: the slowest member's
 * time that is slow enough to leave the window out. */
static int list_windows(struct ways *w, int j, double limit) {
    double total = w->shares[j], largest = total;
    bool settled = false; /* see window_of */
    int n = 0;
    w->n_top = 0;
    enters_top(w, j);
    for (int i = j + 1; i < w->n && w->r > 1; i++) {
        const bool entered = enters_top(w, i);
        total += w->shares[i];
        largest = fmax(largest, w->shares[i]);
        if (!(total > 0) || (settled && !entered)) continue;
        settled = (double)w->r * (largest / total) < 1;
        if ((double)w->r / total > limit * (1 + 1e-9)) continue;
        w->window[n++] = window_of(w, i - j + 1, total, settled);
    }
    return n;
}

/* Fills slowest[j]. */
static void find_fastest(struct ways *w, int j) {
    const int n_windows = list_windows(w, j, INFINITY);
    for (int64_t gi = 0; gi <= w->g; gi++) {
        /* with more groups this member is slower and the others are faster: where do they meet? */
        int64_t low = 0, high = w->g - gi;
        while (low < high) {
            const int64_t k = low + (high - low) / 2;
            if (w->slowest[way(w, j + 1, gi + k)] <= time_of(k * w->r, w->shares[j]))
                high = k;
            else
                low = k + 1;
        }
        double best = INFINITY;
        for (int64_t k = low ? low - 1 : 0; k <= low; k++)
            best = fmin(best,
                        fmax(w->slowest[way(w, j + 1, gi + k)], time_of(k * w->r, w->shares[j])));
        for (int i = 0; gi < w->g && i < n_windows; i++)
            best = fmin(best, fmax(w->slowest[way(w, j + w->window[i].members, gi + 1)],
                                   w->window[i].slowest));
        w->slowest[way(w, j, gi)] = best;
    }
}

static void take_nearer(struct ways *w, int j, int64_t gi, struct step first, int64_t distance) {
    const int64_t rest = w->distance[way(w, j + first.members, gi + first.groups)];
    const size_t at = way(w, j, gi);
    if (rest == NO_WAY || w->distance[at] <= rest + distance) return;
    w->distance[at] = rest + distance;
    w->step[at] = first;
}

/* Fills distance[j] and step[j], of ways in which no member takes longer than `limit`. Of ways that
 * are as near, the first: the lower member gets more groups, but none rather than a part of one. */
static void find_nearest(struct ways *w, int j, double limit) {
    const int n_windows = list_windows(w, j, limit);
    const double groups = limit * w->shares[j] / (double)w->r + 1; /* one more: rounding */
    for (int64_t gi = 0; gi <= w->g; gi++) {
        int64_t k = groups < (double)(w->g - gi) ? (int64_t)groups : w->g - gi;
        w->distance[way(w, j, gi)] = NO_WAY;
        if (w->slowest[way(w, j, gi)] > limit) continue;
        for (; k >= 0 && w->slowest[way(w, j + 1, gi + k)] <= limit; k--)
            if (time_of(k * w->r, w->shares[j]) <= limit)
                take_nearer(w, j, gi, (struct step){1, k}, distance_of(k * w->r, w->ideal[j]));
        for (int i = 0; gi < w->g && i < n_windows; i++)
            if (w->window[i].slowest <= limit)
                take_nearer(w, j, gi, (struct step){w->window[i].members, 1},
                            w->window[i].distance);
    }
}

/* Writes down the nearest way of all. */
static void take_steps(const struct ways *w, int64_t *q_first, int64_t *q_count, int64_t *kv_first,
                       int64_t *kv_count) {
    int64_t gi = 0;
    for (int j = 0; j < w->n;) {
        const struct step s = w->step[way(w, j, gi)];
        if (s.members == 1)
            q_count[j] = s.groups * w->r;
        else
            sheaf__split_units(w->r, w->shares + j, s.members, q_count + j);
        int64_t at = gi * w->r;
        for (int i = j; i < j + s.members; i++) {
            q_first[i] = at;
            at += q_count[i];
            kv_first[i] = gi;
            kv_count[i] = q_count[i] ? s.groups : 0;
        }
        j += s.members;
        gi += s.groups;
    }
}

enum sheaf_status sheaf__split_heads(int64_t g, int64_t r, const double *shares, int n_members,
                                     int64_t *q_first, int64_t *q_count, int64_t *kv_first,
                                     int64_t *kv_count) {
    struct ways w = {.g = g, .r = r, .shares = shares, .n = n_members};
    if (g < 1 || r < 1 || g > MOST_HEADS / r)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "%" PRId64 " times %" PRId64
                               " heads cannot be divided: there may be "
                               "1 to %d",
                               g, r, (int)MOST_HEADS);
    enum sheaf_status status = ways_init(&w);
    for (int64_t gi = 0; !status && gi < g; gi++) {
        w.slowest[way(&w, n_members, gi)] = INFINITY;
        w.distance[way(&w, n_members, gi)] = NO_WAY;
    }
    for (int j = n_members - 1; !status && j >= 0; j--) find_fastest(&w, j);
    if (!status && !(w.slowest[0] < INFINITY))
        status = sheaf_set_error(SHEAF_STATUS_FAILED, "the heads cannot be divided");
    for (int j = n_members - 1; !status && j >= 0; j--) find_nearest(&w, j, w.slowest[0]);
    if (!status) take_steps(&w, q_first, q_count, kv_first, kv_count);
    ways_free(&w);
    return status;
}

/* ---- cuts that divide groups ---- */

/* Of the slowest member's time: what several members compute costs memory, so a cut must gain. */
#define WORTH (15.0 / 16)
/* So many times the K/V heads by share: shares that were measured are never quite equal. */
#define MORE_KV (9.0 / 8)
/* Units that such a cut is looked for in: that takes a time of about their square. */
enum { MOST_UNITS = 4096 };

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
 * member's time; more than `limit`: there is none as fast as that. */
static enum sheaf_status best_runs(int64_t heads, int64_t r, int64_t unit, double most,
                                   double limit, const double *shares, int n_members,
                                   int64_t *first, int64_t *count, double *slowest) {
    const int64_t n = heads / unit, width = n + 1;
    struct runs *best = calloc((size_t)width * ((size_t)n_members + 1), sizeof *best);
    if (!best) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to divide the heads");
    const double per_share = (double)heads / sheaf__sum_of_shares(shares, n_members);
#define BEST(j, at) best[(int64_t)(j)*width + (at)]
    for (int64_t at = 0; at < n; at++) BEST(n_members, at).slowest = INFINITY;
    for (int j = n_members - 1; j >= 0; j--) {
        const double units = limit * shares[j] / (double)unit + 1; /* more would take too long */
        for (int64_t at = 0; at <= n; at++) {
            int64_t k = units < (double)(n - at) ? (int64_t)units : n - at;
            BEST(j, at) = (struct runs){.slowest = INFINITY};
            for (; k >= 0; k--) { /* a tie: the lower member gets more */
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
    if (status || unit >= r || (g * r) % unit || g * r / unit > MOST_UNITS ||
        bound > slowest * WORTH)
        return status;
    int64_t *first = calloc(2 * (size_t)n_members, sizeof *first), *count = first + n_members;
    if (!first) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to divide the heads");
    status =
        best_runs(g * r, r, unit, most, slowest * WORTH, shares, n_members, first, count, &runs);
    for (int j = 0; !status && j < n_members && runs <= slowest * WORTH; j++) {
        q_first[j] = first[j];
        q_count[j] = count[j];
        kv_first[j] = first[j] / r;
        kv_count[j] = groups_touched(first[j], count[j], r);
    }
    free(first);
    return status;
}
