/* In a collective, all ranks wait for the last one, which itself waits for none. So the rank that
 * stood still for the least time was the last most of the time. Waits beside which a rank computed
 * cost it nothing and do not count. */
#include "common/straggler.h"

/* Ranks with even shares differ by some percent. */
static const double LEAST_SHARE = 0.2;

struct rank_times rank_times_of(const struct sheaf_backend_meta_stats *stats) {
    return (struct rank_times){.compute_ns = stats->compute_ns,
                               .collective_ns = stats->collective_ns,
                               .wait_ns = stats->wait_ns,
                               .hidden_ns = stats->hidden_ns,
                               .stalled_ns = stats->stalled_ns,
                               .n_collectives = stats->n_collectives,
                               .collective_bytes = stats->collective_bytes};
}

void rank_times_add(struct rank_times *sum, const struct rank_times *t) {
    sum->compute_ns += t->compute_ns;
    sum->collective_ns += t->collective_ns;
    sum->wait_ns += t->wait_ns;
    sum->hidden_ns += t->hidden_ns;
    sum->stalled_ns += t->stalled_ns;
    sum->n_collectives += t->n_collectives;
    sum->collective_bytes += t->collective_bytes;
}

double rank_times_communication(const struct rank_times *t) {
    return 1e-9 * ((double)t->collective_ns - (double)t->hidden_ns);
}

double rank_times_busy(const struct rank_times *t) {
    return 1e-9 * (double)t->compute_ns + rank_times_communication(t);
}

static const struct rank_times *of(const struct rank_times *first, size_t stride, int rank) {
    return (const struct rank_times *)(const void *)((const char *)first + (size_t)rank * stride);
}

struct straggler straggler_find(const struct rank_times *first, size_t stride, int n) {
    const struct straggler none = {.rank = -1};
    double sum = 0, least = 0, seconds = 0;
    int taking_part = 0, last = -1;
    for (int i = 0; i < n; i++) {
        const struct rank_times *t = of(first, stride, i);
        const double stalled = 1e-9 * (double)t->stalled_ns, busy = rank_times_busy(t);
        if (!t->n_collectives) continue;
        sum += stalled;
        taking_part++;
        if (last < 0 || stalled < least) least = stalled, last = i;
        if (busy > seconds) seconds = busy;
    }
    if (taking_part < 2 || !(seconds > 0)) return none;
    const double lost = (sum - least) / (taking_part - 1) - least;
    return lost < LEAST_SHARE * seconds ? none : (struct straggler){last, lost, lost / seconds};
}
