/* The entry and the end of every collective: its check, its number, the comparison with the peers',
 * the board, the records and the counters. */
#include "comm/transport/call.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/sized.h"
#include "comm/diag/events.h"
#include "comm/diag/recorder.h"
#include "comm/transport/pending.h"

enum { LATE_NOTE_BYTES = 16 * 1024 /* are copied into a slot within a microsecond */ };

/* What a kind of collective moves. */
static const struct kind {
    size_t unit; /* bytes of what n and sizes count */
    bool has_sizes, may_start;
} kinds[] = {
    [SHEAF_COMM_ALL_REDUCE] = {sizeof(float), false, true},
    [SHEAF_COMM_ALL_GATHER] = {1, true, true},
    [SHEAF_COMM_REDUCE_SCATTER] = {sizeof(float), true, true},
    [SHEAF_COMM_BROADCAST] = {1, false, false},
    [SHEAF_COMM_BARRIER] = {0, false, false},
};
static_assert(sizeof kinds / sizeof *kinds == SHEAF_COMM_KIND_COUNT, "describe every kind");

enum sheaf_status sheaf__comm_check(const struct sheaf_comm *comm,
                                    const struct sheaf_comm_call **given,
                                    struct sheaf_comm_call *room, size_t *bytes) {
    *bytes = 0;
    if (*given && (*given)->size != sizeof *room) {
        *room = (struct sheaf_comm_call){0};
        const enum sheaf_status st =
            sheaf__sized_take(*given, room, sizeof *room, "sheaf_comm_call");
        if (st) return st;
        *given = room;
    }
    const struct sheaf_comm_call *call = *given;
    if (!call || (unsigned)call->kind >= SHEAF_COMM_KIND_COUNT)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "collective: a call has a kind below %d",
                               SHEAF_COMM_KIND_COUNT);
    const struct kind *k = &kinds[call->kind];
    const char *name = sheaf_comm_kind_name(call->kind);
    if (k->has_sizes && !call->sizes)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: the sizes of the blocks are missing",
                               name);
    if (call->kind == SHEAF_COMM_BROADCAST && comm && (call->root < 0 || call->root >= comm->n))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: there is no member %d", name, call->root);
    bool fits = k->has_sizes || sheaf__mul_size(call->n, k->unit, bytes);
    for (int m = 0; k->has_sizes && comm && m < comm->n && fits; m++) {
        size_t block;
        fits = sheaf__mul_size(call->sizes[m], k->unit, &block) &&
               sheaf__add_size(*bytes, block, bytes);
    }
    if (!fits) return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: the sizes overflow", name);
    /* send of a gather and recv of a scatter may be NULL where the member's own block is empty */
    const void *data = call->kind == SHEAF_COMM_REDUCE_SCATTER ? call->send : call->recv;
    if (*bytes && !data)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %zu bytes, but the data are missing",
                               name, *bytes);
    return SHEAF_STATUS_SUCCESS;
}

bool sheaf__comm_may_start(enum sheaf_comm_kind kind) { return kinds[kind].may_start; }

void sheaf__describe_call(const void *call, char *text, size_t size) {
    const struct sheaf__call *c = call;
    snprintf(text, size, "%s '%s' (node %u, %llu bytes, collective %llu)",
             sheaf_comm_kind_name((enum sheaf_comm_kind)c->head.kind), c->tensor, c->head.node,
             (unsigned long long)c->head.bytes, (unsigned long long)c->head.sequence);
}

bool sheaf__group_loads(const void *call, uint64_t now) {
    const struct sheaf_comm *comm = ((const struct sheaf__call *)call)->comm;
    bool any = false;
    for (int m = 0; m < comm->n && !any; m++) any = sheaf__loads(comm->rank_of[m], now);
    return any;
}

enum sheaf_status sheaf__diverged(const struct sheaf__call *c, int rank,
                                  const struct sheaf__head *theirs) {
    char mine[256];
    sheaf__describe_call(c, mine, sizeof mine);
    const char *kind = theirs->kind < SHEAF_COMM_KIND_COUNT
                           ? sheaf_comm_kind_name((enum sheaf_comm_kind)theirs->kind)
                           : "something unknown";
    return sheaf__fail(
        SHEAF_STATUS_PEER,
        "%s is in %s (node %u, %llu bytes, collective %llu) while %s is in %s%s; all "
        "members must make the same calls in the same order",
        sheaf__rank_text(rank), kind, theirs->node, (unsigned long long)theirs->bytes,
        (unsigned long long)theirs->sequence, sheaf__rank_text(c->comm->rank_of[c->member]), mine,
        theirs->extra != c->head.extra ? " with another root or other counts" : "");
}

struct sheaf__member *sheaf__find_member(const struct sheaf_comm *comm, int member) {
    if (!comm || member < 0 || member >= comm->n || !comm->n_local) return NULL;
    const int i = member - comm->local[0]; /* ranks do not decrease: local members are a run */
    return i >= 0 && i < comm->n_local ? &comm->members[i] : NULL;
}

void sheaf__note_call(struct sheaf__call *c) {
    const struct sheaf__head *h = &c->head;
    c->start = sheaf__time_ns();
    c->away = (struct sheaf__absence){.looked = c->start};
    sheaf__enter_collective(h->kind, h->node, h->bytes, h->sequence, c->tensor, c->start);
    sheaf__record_begin(c->comm->id, h->kind, h->node, h->bytes, h->sequence, c->tensor, c->start);
}

/* What members compare beside the size: the root, or a hash of all sizes. */
static uint64_t extra_of(const struct sheaf_comm *comm, const struct sheaf_comm_call *call) {
    if (kinds[call->kind].has_sizes)
        return sheaf__hash_bytes(0, call->sizes, (size_t)comm->n * sizeof *call->sizes);
    return call->kind == SHEAF_COMM_BROADCAST ? (uint64_t)call->root : 0;
}

enum sheaf_status sheaf__begin_call(struct sheaf__call *c, struct sheaf_comm *comm, int member,
                                    const struct sheaf_comm_call *call, uint64_t bytes) {
    struct sheaf__member *self = sheaf__find_member(comm, member);
    if (!self)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: member %d is not driven by rank %d",
                               sheaf_comm_kind_name(call->kind), member, sheaf_world_rank());
    if (comm->n_hosts > 1 && comm->place[member] == 0) {
        const enum sheaf_status st = sheaf__mpi_allowed(sheaf_comm_kind_name(call->kind));
        if (st) return st;
    }
    struct sheaf__pending *pending = sheaf__pending_here();
    if (self->pending && !pending) {
        const enum sheaf_status st = sheaf__pending_settle(self->pending);
        if (st) return st;
    }
    if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
    *c = (struct sheaf__call){
        .comm = comm,
        .self = self,
        .member = member,
        .place = comm->place[member],
        .leader = comm->place[member] == 0,
        .head = {.sequence = ++self->sequence,
                 .bytes = bytes,
                 .extra = extra_of(comm, call),
                 .kind = (uint32_t)call->kind,
                 .node = call->what.node},
        .tensor = call->what.tensor ? call->what.tensor : "",
        .pending = pending,
    };
    if (comm->n_here < 2 || comm->n_hosts > 1 || bytes > LATE_NOTE_BYTES) sheaf__note_call(c);
    return SHEAF_STATUS_SUCCESS;
}

static void add(_Atomic uint64_t *counter, uint64_t value) {
    /* one writer: no need for a locked addition */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + value,
                          memory_order_relaxed);
}

enum sheaf_status sheaf__end_call(const struct sheaf__call *c, enum sheaf_status st,
                                  uint64_t bytes) {
    if (st) return st;
    const uint64_t took = sheaf__time_ns() - c->start;
    const char *name =
        c->tensor[0] ? c->tensor : sheaf_comm_kind_name((enum sheaf_comm_kind)c->head.kind);
    add(&c->self->stats[c->head.kind].count, 1);
    add(&c->self->stats[c->head.kind].bytes, bytes);
    add(&c->self->stats[c->head.kind].time_ns, took);
    add(&c->self->stats[c->head.kind].wait_ns, c->wait_ns);
    const uint64_t hidden = c->pending ? sheaf__pending_hidden(c->start, took) : 0;
    add(&c->self->stats[c->head.kind].hidden_ns, hidden);
    /* a call begins with its wait */
    add(&c->self->stats[c->head.kind].stalled_ns, c->wait_ns > hidden ? c->wait_ns - hidden : 0);
    sheaf__record_end(c->wait_ns, took);
    sheaf__trace(SHEAF__TRACE_WAIT, name, c->start, c->wait_ns < took ? c->wait_ns : took);
    sheaf__trace(SHEAF__TRACE_WIRE, name, c->start + c->wait_ns,
                 took > c->wait_ns ? took - c->wait_ns : 0);
    sheaf__leave();
    return st;
}
