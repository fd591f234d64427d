/* What a meta backend counts, since it was made or reset. */
#include "base/sized.h"
#include "meta/backend.h"

static struct sheaf_comm_stats since_reset(const struct meta_backend *b,
                                           enum sheaf_comm_kind kind) {
    struct sheaf_comm_stats s = {0};
    if (!b->dev->n_local) return s;
    sheaf_comm_get_stats(b->dev->comm, b->dev->local[0], kind, &s);
    s.count -= b->baseline[kind].count;
    s.bytes -= b->baseline[kind].bytes;
    s.time_ns -= b->baseline[kind].time_ns;
    s.wait_ns -= b->baseline[kind].wait_ns;
    s.hidden_ns -= b->baseline[kind].hidden_ns;
    return s;
}

/* In all kinds of collectives, since the group was made. */
static uint64_t stalled_ever(const struct meta_backend *b, int local) {
    struct sheaf_comm_stats s;
    uint64_t sum = 0;
    for (int kind = 0; kind < SHEAF_COMM_KIND_COUNT; kind++) {
        sheaf_comm_get_stats(b->dev->comm, b->dev->local[local], (enum sheaf_comm_kind)kind, &s);
        sum += s.stalled_ns;
    }
    return sum;
}

/* Members of a rank wait for each other, too: the last of them waits for other ranks only. */
static uint64_t least_stalled(const struct meta_backend *b) {
    uint64_t least = 0;
    for (int m = 0; m < b->dev->n_local; m++) {
        const uint64_t ns = stalled_ever(b, m) - b->members[m].stalled_before;
        if (!m || ns < least) least = ns;
    }
    return least;
}

enum sheaf_status sheaf_backend_meta_get_stats(sheaf_backend_t backend,
                                               struct sheaf_backend_meta_stats *stats) {
    const struct meta_backend *b = sheaf__meta_backend_of(backend);
    if (!b) return SHEAF_STATUS_INVALID;
    struct sheaf_backend_meta_stats s = {
        .size = sizeof s, .n_computes = b->n_computes, .n_plans = b->n_plans};
    for (int kind = 0; kind < SHEAF_COMM_KIND_COUNT; kind++) {
        const struct sheaf_comm_stats c = since_reset(b, (enum sheaf_comm_kind)kind);
        s.n_collectives += c.count;
        s.collective_bytes += c.bytes;
        s.collective_ns += c.time_ns;
        s.wait_ns += c.wait_ns;
        s.hidden_ns += c.hidden_ns;
    }
    if (b->dev->n_local) {
        s.compute_ns = b->members[0].compute_ns;
        s.n_started = b->members[0].n_started;
    }
    for (int m = 0; m < b->dev->n_local; m++)
        s.compute_bytes += sheaf_gallocr_get_buffer_size(b->members[m].galloc);
    s.static_bytes = b->dev->static_bytes;
    s.input_bytes = b->dev->input_bytes;
    s.stalled_ns = least_stalled(b);
    return sheaf__sized_give(&s, sizeof s, stats, "sheaf_backend_meta_stats");
}

enum sheaf_status sheaf_backend_meta_reset_stats(sheaf_backend_t backend) {
    struct meta_backend *b = sheaf__meta_backend_of(backend);
    if (!b) return SHEAF_STATUS_INVALID;
    b->n_computes = b->n_plans = 0;
    for (int kind = 0; kind < SHEAF_COMM_KIND_COUNT && b->dev->n_local; kind++) {
        sheaf_comm_get_stats(b->dev->comm, b->dev->local[0], (enum sheaf_comm_kind)kind,
                             &b->baseline[kind]);
    }
    for (int m = 0; m < b->dev->n_local; m++) {
        struct meta_member *me = &b->members[m];
        me->compute_ns = me->n_started = 0;
        me->stalled_before = stalled_ever(b, m);
    }
    return SHEAF_STATUS_SUCCESS;
}
