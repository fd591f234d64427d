/* all_gather, broadcast, barrier: data moves, nothing is computed. */
#include "comm/collectives/collectives.h"

enum { ALIGN = 64 };

struct gather {
    struct sheaf__call *c;
    struct sheaf_comm *comm;
    const uint8_t *send;
    uint8_t *recv;
    const size_t *bytes;
    size_t total, chunk; /* chunk: of a block, a step */
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

/* Every host has one member: blocks go from where they lie to where they belong, in pieces, the
 * first with the header. The others follow at once: a peer in another call fails by its header. */
static enum sheaf_status gather_direct(const struct gather *g) {
    struct sheaf__call *c = g->c;
    struct sheaf_comm *comm = g->comm;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int h = 0; h < comm->n_hosts; h++)
        comm->take[h] = sheaf__piece_size(g->bytes[h], 0, g->chunk);
    const size_t first = comm->take[comm->here];
    if (first) memcpy(sheaf__payload_out(comm, comm->here), g->send, first);
    sheaf__wire_frames_post(c, first);
    copy_own(g);
    const uint8_t *own = g->recv + block_offset(g, c->member);
    for (uint64_t k = 0; k < g->steps + comm->ahead && !st; k++) {
        const size_t from = (size_t)k * g->chunk;
        const int lane = SHEAF__GATHER_LANE + (int)(k % SHEAF__DEPTH);
        if (k && k < g->steps) {
            sheaf__wire_begin(comm, lane);
            for (int i = 1; i < comm->n_hosts; i++) {
                const int h = (comm->here + i) % comm->n_hosts; /* = member */
                sheaf__wire_recv(comm, lane, h, g->recv + block_offset(g, h) + from,
                                 sheaf__piece_size(g->bytes[h], k, g->chunk));
                sheaf__wire_send(comm, lane, h, own + from,
                                 sheaf__piece_size(g->bytes[c->member], k, g->chunk));
            }
            sheaf__wire_end();
        }
        if (k == comm->ahead) {
            st = sheaf__wire_frames_wait(c);
            for (int h = 0; h < comm->n_hosts && !st; h++)
                if (h != comm->here && comm->take[h])
                    memcpy(g->recv + block_offset(g, h), sheaf__payload_in(comm, h), comm->take[h]);
        } else if (k > comm->ahead) {
            st = sheaf__wire_wait(c, SHEAF__GATHER_LANE + (int)((k - comm->ahead) % SHEAF__DEPTH));
        }
    }
    return st;
}

/* Where a host's pieces lie in the packed step k. */
static void host_range(const struct gather *g, uint64_t k, int host, size_t *lo, size_t *len) {
    const struct sheaf__host *h = &g->comm->hosts[host];
    *lo = sheaf__pieces_size(g->comm, g->bytes, k, g->chunk, 0, h->first);
    *len = sheaf__pieces_size(g->comm, g->bytes, k, g->chunk, h->first, h->first + h->n);
}

/* The leader's part of a step: collects its host's pieces, exchanges, leaves all in the result. */
static enum sheaf_status exchange_step(const struct gather *g, uint64_t k, bool frames) {
    struct sheaf_comm *comm = g->comm;
    struct sheaf__call *c = g->c;
    const uint64_t step = c->self->step;
    uint8_t *result = sheaf__result(comm, step);
    const int lane = SHEAF__GATHER_LANE;
    enum sheaf_status st;
    size_t my_lo, my_len, lo, len;
    host_range(g, k, comm->here, &my_lo, &my_len);
    uint8_t *to = result + my_lo;
    for (int p = 0; p < comm->n_here; p++) {
        const int m = sheaf__member_at(comm, p);
        len = sheaf__piece_size(g->bytes[m], k, g->chunk);
        if (len) memcpy(to, sheaf__slot(comm, p, step), len);
        to += len;
    }
    if (frames) {
        for (int h = 0; h < comm->n_hosts; h++) host_range(g, k, h, &lo, &comm->take[h]);
        if (my_len) memcpy(sheaf__payload_out(comm, comm->here), result + my_lo, my_len);
        if ((st = sheaf__wire_frames(c, my_len))) return st;
        for (int h = 0; h < comm->n_hosts; h++) {
            host_range(g, k, h, &lo, &len);
            if (len && h != comm->here) memcpy(result + lo, sheaf__payload_in(comm, h), len);
        }
        return SHEAF_STATUS_SUCCESS;
    }
    if (k == 0) {
        for (int h = 0; h < comm->n_hosts; h++) comm->take[h] = 0;
        if ((st = sheaf__wire_frames(c, 0))) return st;
    }
    sheaf__wire_begin(comm, lane);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        host_range(g, k, h, &lo, &len);
        sheaf__wire_recv(comm, lane, h, result + lo, len);
        sheaf__wire_send(comm, lane, h, result + my_lo, my_len);
    }
    sheaf__wire_end();
    return sheaf__wire_wait(c, lane);
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

enum sheaf_status sheaf__all_gather(struct sheaf__call *c, const uint8_t *send, uint8_t *recv,
                                    const size_t *bytes) {
    struct sheaf_comm *comm = c->comm;
    struct gather g = {.c = c, .comm = comm, .send = send, .recv = recv, .bytes = bytes};
    size_t longest = 0;
    for (int m = 0; m < comm->n; m++) {
        g.total += bytes[m];
        longest = bytes[m] > longest ? bytes[m] : longest;
    }
    const bool one_host = comm->n_hosts == 1, frames = g.total <= sheaf__frame_limit(comm);
    /* All pieces of a packed step fit the result; the pieces of small ones are the blocks. */
    g.chunk = comm->direct         ? comm->part_bytes
              : one_host || frames ? comm->slot_bytes
                                   : comm->slot_bytes / (size_t)comm->n / ALIGN * ALIGN;
    g.steps = longest ? (longest + g.chunk - 1) / g.chunk : 1;
    return comm->direct ? gather_direct(&g)
           : one_host   ? gather_here(&g)
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

enum sheaf_status sheaf__broadcast(struct sheaf__call *c, uint8_t *data, size_t size, int root) {
    struct sheaf_comm *comm = c->comm;
    const int root_host = comm->host_of[root], root_place = comm->place[root];
    const bool source = comm->here == root_host; /* of the chunks between hosts */
    const bool frames = size <= sheaf__frame_limit(comm), hosts = comm->n_hosts > 1;
    const size_t chunk = comm->slot_bytes;
    const uint64_t steps = size ? (size + chunk - 1) / chunk : 1;
    const int lane = SHEAF__GATHER_LANE;
    enum sheaf_status st;
    for (uint64_t k = 0; k < steps; k++, c->self->step++) {
        const uint64_t step = c->self->step;
        const size_t len = sheaf__piece_size(size, k, chunk);
        const size_t from = (size_t)k * chunk;
        /* where this host finds the chunk */
        uint8_t *here = source ? sheaf__slot(comm, root_place, step) : sheaf__result(comm, step);
        if (c->member == root && len) memcpy(here, data + from, len);
        if ((st = sheaf__arrive(c))) return st;
        if (c->leader && hosts) {
            if (!size) {
                if ((st = meet(c))) return st;
            } else if (k == 0) {
                const size_t out = frames && source ? len : 0;
                for (int h = 0; h < comm->n_hosts; h++)
                    comm->take[h] = frames && h == root_host ? len : 0;
                if (out) memcpy(sheaf__payload_out(comm, comm->here), here, out);
                if ((st = sheaf__wire_frames(c, out))) return st;
                if (frames && !source && len) memcpy(here, sheaf__payload_in(comm, root_host), len);
            }
            if (!frames) {
                sheaf__wire_begin(comm, lane);
                if (!source) sheaf__wire_recv(comm, lane, root_host, here, len);
                for (int i = 1; i < comm->n_hosts && source; i++)
                    sheaf__wire_send(comm, lane, (comm->here + i) % comm->n_hosts, here, len);
                sheaf__wire_end();
                if ((st = sheaf__wire_wait(c, lane))) return st;
            }
            sheaf__publish_result(c, step);
        } else if (hosts && (st = sheaf__await_result(c, step))) {
            return st;
        }
        if (c->member != root && len) memcpy(data + from, here, len);
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__barrier(struct sheaf__call *c) { return sheaf__broadcast(c, NULL, 0, 0); }
