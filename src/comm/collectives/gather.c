/* all_gather, broadcast, barrier: data moves, nothing is computed. */
#include "comm/collectives/collectives.h"

enum { ALIGN = 64 };

struct gather {
    struct sheaf__call *c;
    struct sheaf_comm *comm;
    const uint8_t *send;
    uint8_t *recv;
    const size_t *bytes;
    size_t chunk; /* of a block, a step */
    uint64_t steps;
};

static size_t block_offset(const struct gather *g, int member) {
    size_t at = 0;
    for (int m = 0; m < member; m++) at += g->bytes[m];
    return at;
}

static void copy_own(const struct gather *g) {
    const size_t size = g->bytes[g->c->member];
    if (size) memmove(g->recv + block_offset(g, g->c->member), g->send, size);
}

static enum sheaf_status gather_here(const struct gather *g) {
    struct sheaf__call *c = g->c;
    const struct sheaf_comm *comm = g->comm;
    for (uint64_t k = 0; k < g->steps; k++, c->self->step++) {
        const size_t from = (size_t)k * g->chunk;
        const size_t mine = sheaf__piece_size(g->bytes[c->member], k, g->chunk);
        if (mine) memcpy(sheaf__slot(comm, c->place, c->self->step), g->send + from, mine);
        enum sheaf_status st = sheaf__arrive(c);
        if (st) return st;
        uint8_t *block = g->recv; /* members of the only host: place = member */
        for (int m = 0; m < comm->n; m++) {
            const size_t len = sheaf__piece_size(g->bytes[m], k, g->chunk);
            if (len && m != c->member)
                memcpy(block + from, sheaf__slot(comm, m, c->self->step), len);
            block += g->bytes[m];
        }
    }
    copy_own(g);
    return SHEAF_STATUS_SUCCESS;
}

/* Of hosts with one member each: the own block's k-th piece to all, theirs from them. */
static void start_pieces(const struct gather *g, uint64_t k) {
    struct sheaf_comm *comm = g->comm;
    const int lane = sheaf__gather_lane(k), me = g->c->member;
    const size_t from = (size_t)k * g->chunk;
    const uint8_t *own = g->recv + block_offset(g, me);
    sheaf__wire_begin(comm, lane);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts; /* = member */
        sheaf__wire_recv(comm, lane, h, g->recv + block_offset(g, h) + from,
                         sheaf__piece_size(g->bytes[h], k, g->chunk));
        sheaf__wire_send(comm, lane, h, own + from, sheaf__piece_size(g->bytes[me], k, g->chunk));
    }
    sheaf__wire_end();
}

/* Waits for the k-th pieces; the first came with the headers. */
static enum sheaf_status finish_pieces(const struct gather *g, uint64_t k) {
    struct sheaf_comm *comm = g->comm;
    if (k) return sheaf__wire_wait(g->c, sheaf__gather_lane(k));
    const enum sheaf_status st = sheaf__wire_frames_wait(g->c);
    for (int h = 0; h < comm->n_hosts && !st; h++)
        if (h != comm->here && comm->take[h])
            memcpy(g->recv + block_offset(g, h), sheaf__payload_in(comm, h), comm->take[h]);
    return st;
}

/* Every host has one member: blocks go from where they lie to where they belong, in pieces, the
 * first with the header. The others follow at once: a peer in another call fails by its header. */
static enum sheaf_status gather_direct(const struct gather *g) {
    struct sheaf_comm *comm = g->comm;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int h = 0; h < comm->n_hosts; h++)
        comm->take[h] = sheaf__piece_size(g->bytes[h], 0, g->chunk);
    const size_t first = comm->take[comm->here];
    if (first) memcpy(sheaf__payload_out(comm, comm->here), g->send, first);
    sheaf__wire_frames_post(g->c, first);
    copy_own(g);
    for (uint64_t k = 0; k < g->steps + comm->ahead && !st; k++) {
        if (k && k < g->steps) start_pieces(g, k);
        if (k >= comm->ahead) st = finish_pieces(g, k - comm->ahead);
    }
    return st;
}

/* Where a host's pieces lie in the packed step k. */
static void host_range(const struct gather *g, uint64_t k, int host, size_t *lo, size_t *len) {
    const struct sheaf__host *h = &g->comm->hosts[host];
    *lo = sheaf__pieces_size(g->comm, g->bytes, k, g->chunk, 0, h->first);
    *len = sheaf__pieces_size(g->comm, g->bytes, k, g->chunk, h->first, h->first + h->n);
}

/* The members' pieces of step k, which are in their slots, one behind the other. */
static void pack_slots(const struct gather *g, uint64_t k, uint8_t *to) {
    const struct sheaf_comm *comm = g->comm;
    for (int p = 0; p < comm->n_here; p++) {
        const size_t len = sheaf__piece_size(g->bytes[sheaf__member_at(comm, p)], k, g->chunk);
        if (len) memcpy(to, sheaf__slot(comm, p, g->c->self->step), len);
        to += len;
    }
}

/* All pieces behind the headers. */
static enum sheaf_status exchange_behind_headers(const struct gather *g, uint64_t k,
                                                 uint8_t *result) {
    struct sheaf_comm *comm = g->comm;
    size_t lo, len;
    for (int h = 0; h < comm->n_hosts; h++) host_range(g, k, h, &lo, &comm->take[h]);
    host_range(g, k, comm->here, &lo, &len);
    if (len) memcpy(sheaf__payload_out(comm, comm->here), result + lo, len);
    const enum sheaf_status st = sheaf__wire_frames(g->c, len);
    for (int h = 0; h < comm->n_hosts && !st; h++) {
        host_range(g, k, h, &lo, &len);
        if (len && h != comm->here) memcpy(result + lo, sheaf__payload_in(comm, h), len);
    }
    return st;
}

/* The pieces alone, between where they lie. */
static enum sheaf_status exchange_pieces(const struct gather *g, uint64_t k, uint8_t *result) {
    struct sheaf_comm *comm = g->comm;
    const int lane = SHEAF__GATHER_LANE;
    size_t my_lo, my_len, lo, len;
    host_range(g, k, comm->here, &my_lo, &my_len);
    sheaf__wire_begin(comm, lane);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        host_range(g, k, h, &lo, &len);
        sheaf__wire_recv(comm, lane, h, result + lo, len);
        sheaf__wire_send(comm, lane, h, result + my_lo, my_len);
    }
    sheaf__wire_end();
    return sheaf__wire_wait(g->c, lane);
}

/* By the leader: step k of this host's members to the other hosts, and theirs from them. */
static enum sheaf_status exchange_step(const struct gather *g, uint64_t k, bool frames) {
    struct sheaf_comm *comm = g->comm;
    uint8_t *result = sheaf__result(comm, g->c->self->step);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    size_t lo, len;
    host_range(g, k, comm->here, &lo, &len);
    pack_slots(g, k, result + lo);
    if (frames) return exchange_behind_headers(g, k, result);
    if (k == 0) {
        memset(comm->take, 0, (size_t)comm->n_hosts * sizeof *comm->take);
        st = sheaf__wire_frames(g->c, 0);
    }
    return st ? st : exchange_pieces(g, k, result);
}

static enum sheaf_status gather_packed(const struct gather *g, bool frames) {
    struct sheaf__call *c = g->c;
    const struct sheaf_comm *comm = g->comm;
    enum sheaf_status st;
    for (uint64_t k = 0; k < g->steps; k++, c->self->step++) {
        const uint64_t step = c->self->step;
        const size_t from = (size_t)k * g->chunk;
        const size_t mine = sheaf__piece_size(g->bytes[c->member], k, g->chunk);
        if (mine) memcpy(sheaf__slot(comm, c->place, step), g->send + from, mine);
        if ((st = sheaf__arrive(c))) return st;
        if (c->leader) {
            if ((st = exchange_step(g, k, frames))) return st;
            sheaf__publish_result(c, step);
        } else if ((st = sheaf__await_result(c, step))) {
            return st;
        }
        const uint8_t *packed = sheaf__result(comm, step);
        for (int i = 0; i < comm->n; i++) {
            const int m = comm->order[i];
            const size_t len = sheaf__piece_size(g->bytes[m], k, g->chunk);
            if (len && m != c->member) memcpy(g->recv + block_offset(g, m) + from, packed, len);
            packed += len;
        }
    }
    copy_own(g);
    return SHEAF_STATUS_SUCCESS;
}

size_t sheaf__gather_chunk(const struct sheaf_comm *comm, bool frames) {
    if (comm->direct) return comm->part_bytes;
    if (comm->n_hosts == 1 || frames) return comm->slot_bytes;
    return comm->slot_bytes / (size_t)comm->n / ALIGN * ALIGN;
}

enum sheaf_status sheaf__all_gather(struct sheaf__call *c, const uint8_t *send, uint8_t *recv,
                                    const size_t *bytes) {
    struct sheaf_comm *comm = c->comm;
    struct gather g = {.c = c, .comm = comm, .send = send, .recv = recv, .bytes = bytes};
    size_t total = 0, longest = 0;
    for (int m = 0; m < comm->n; m++) {
        total += bytes[m];
        longest = bytes[m] > longest ? bytes[m] : longest;
    }
    const bool frames = total <= sheaf__frame_limit(comm);
    g.chunk = sheaf__gather_chunk(comm, frames);
    g.steps = longest ? (longest + g.chunk - 1) / g.chunk : 1;
    return comm->direct         ? gather_direct(&g)
           : comm->n_hosts == 1 ? gather_here(&g)
                                : gather_packed(&g, frames);
}

/* Headers only, as sums of nothing go. */
static enum sheaf_status meet(struct sheaf__call *c) {
    const int n_owners = sheaf__n_owners(c->comm, 0);
    memset(c->comm->take, 0, (size_t)c->comm->n_hosts * sizeof *c->comm->take);
    if (!n_owners) return sheaf__wire_frames(c, 0);
    const enum sheaf_status st = sheaf__wire_to_owners(c, n_owners);
    return st ? st : sheaf__wire_from_owners(c, n_owners);
}

struct cast { /* a broadcast, as the leader of a host sees it */
    struct sheaf__call *c;
    struct sheaf_comm *comm;
    size_t size;
    int root_host;
    bool source; /* of the chunks between hosts */
    bool frames; /* the data fit behind the headers */
};

/* Headers, with the data if they fit. */
static enum sheaf_status cast_frames(const struct cast *b, uint8_t *here, size_t len) {
    struct sheaf_comm *comm = b->comm;
    const size_t out = b->frames && b->source ? len : 0;
    memset(comm->take, 0, (size_t)comm->n_hosts * sizeof *comm->take);
    if (b->frames) comm->take[b->root_host] = len;
    if (out) memcpy(sheaf__payload_out(comm, comm->here), here, out);
    const enum sheaf_status st = sheaf__wire_frames(b->c, out);
    if (!st && b->frames && !b->source) memcpy(here, sheaf__payload_in(comm, b->root_host), len);
    return st;
}

static enum sheaf_status cast_chunk(const struct cast *b, uint8_t *here, size_t len) {
    struct sheaf_comm *comm = b->comm;
    const int lane = SHEAF__GATHER_LANE;
    sheaf__wire_begin(comm, lane);
    if (!b->source) sheaf__wire_recv(comm, lane, b->root_host, here, len);
    for (int i = 1; i < comm->n_hosts && b->source; i++)
        sheaf__wire_send(comm, lane, (comm->here + i) % comm->n_hosts, here, len);
    sheaf__wire_end();
    return sheaf__wire_wait(b->c, lane);
}

/* The k-th chunk, which each host finds at `here`, from the root's host to the others. */
static enum sheaf_status cast_hosts(const struct cast *b, uint64_t k, uint8_t *here, size_t len) {
    if (!b->size) return meet(b->c);
    const enum sheaf_status st = k == 0 ? cast_frames(b, here, len) : SHEAF_STATUS_SUCCESS;
    return st || b->frames ? st : cast_chunk(b, here, len);
}

enum sheaf_status sheaf__broadcast(struct sheaf__call *c, uint8_t *data, size_t size, int root) {
    struct sheaf_comm *comm = c->comm;
    const struct cast b = {.c = c,
                           .comm = comm,
                           .size = size,
                           .root_host = comm->host_of[root],
                           .source = comm->here == comm->host_of[root],
                           .frames = size <= sheaf__frame_limit(comm)};
    const bool hosts = comm->n_hosts > 1;
    const size_t chunk = comm->slot_bytes;
    const uint64_t steps = size ? (size + chunk - 1) / chunk : 1;
    enum sheaf_status st;
    for (uint64_t k = 0; k < steps; k++, c->self->step++) {
        const uint64_t step = c->self->step;
        const size_t len = sheaf__piece_size(size, k, chunk), from = (size_t)k * chunk;
        uint8_t *here =
            b.source ? sheaf__slot(comm, comm->place[root], step) : sheaf__result(comm, step);
        if (c->member == root && len) memcpy(here, data + from, len);
        if ((st = sheaf__arrive(c))) return st;
        if (c->leader && hosts) {
            if ((st = cast_hosts(&b, k, here, len))) return st;
            sheaf__publish_result(c, step);
        } else if (hosts && (st = sheaf__await_result(c, step))) {
            return st;
        }
        if (c->member != root && len) memcpy(data + from, here, len);
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__barrier(struct sheaf__call *c) { return sheaf__broadcast(c, NULL, 0, 0); }
