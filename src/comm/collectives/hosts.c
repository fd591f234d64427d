/* all_reduce and reduce_scatter between hosts: the leaders exchange the sums of their hosts.
 *
 * Small sums travel whole, with the header: one latency. Where hosts share cores, a few of them own
 * the sum instead, and each adds its part and hands it out, with headers both ways: two latencies,
 * fewer messages. Large sums go in chunks, several of them in flight: each host gets its part of
 * all others, sums it, and (all_reduce) passes the sum around. Every byte leaves a host once for
 * each other host that needs it, and comes in once.
 *
 * A wire type other than F32 rounds the sum of each host, also of the own one, and the total. All
 * schemes round at the same places, so the size changes no bit. */
#include "comm/collectives/collectives.h"

static enum sheaf_type wire_type(const struct sheaf__job *j) {
    return j->counts ? SHEAF_TYPE_F32 : j->comm->wire_type;
}

/* Puts the sum of the parts of all hosts, as they arrived, into dst [len]. */
static void sum_hosts(const struct sheaf__job *j, uint8_t *const *part, float *dst, size_t len,
                      uint8_t *scratch) {
    struct sheaf_comm *comm = j->comm;
    const float **src = j->c->self->sources;
    const enum sheaf_type type = wire_type(j);
    for (int h = 0; h < comm->n_hosts; h++) {
        src[h] = sheaf__floats(part[h]);
        if (type == SHEAF_TYPE_F32) continue;
        float *decoded = comm->decoded + (size_t)h * comm->decoded_floats;
        sheaf__wire_decode(type, part[h], decoded, len);
        src[h] = decoded;
    }
    sheaf__sum(dst, src, comm->n_hosts, len);
    if (scratch) sheaf__wire_round(type, dst, scratch, len);
}

/* ---- small ---- */

static enum sheaf_status exchange_frames(const struct sheaf__job *j, float *result) {
    struct sheaf__call *c = j->c;
    struct sheaf_comm *comm = j->comm;
    const enum sheaf_type type = wire_type(j);
    const size_t bytes = sheaf__wire_bytes(type, j->n);
    const bool alone = comm->n_here == 1, lossy = type != SHEAF_TYPE_F32;
    uint8_t *out = sheaf__payload_out(comm, comm->here);
    float *own = sheaf__floats(lossy ? comm->sums : out);
    const float *sum = own;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!alone) {
        if ((st = sheaf__sum_members(j, 0, j->n, own))) return st;
    } else if (lossy) {
        sum = j->src;
    } else if (bytes) {
        memcpy(own, j->src, bytes);
    }
    if (lossy) sheaf__wire_encode(type, sum, out, j->n);
    for (int h = 0; h < comm->n_hosts; h++) comm->take[h] = bytes;
    if ((st = sheaf__wire_frames(c, bytes))) return st;
    for (int h = 0; h < comm->n_hosts; h++)
        comm->parts[h] = h == comm->here ? out : sheaf__payload_in(comm, h);
    sum_hosts(j, comm->parts, result, j->n, lossy ? out : NULL);
    return st;
}

static enum sheaf_status exchange_through_owners(const struct sheaf__job *j, int n_owners,
                                                 float *result) {
    struct sheaf__call *c = j->c;
    struct sheaf_comm *comm = j->comm;
    const enum sheaf_type type = wire_type(j);
    const bool lossy = type != SHEAF_TYPE_F32;
    const float *sum = j->src;
    size_t lo, len, my_lo = 0, my_len = 0;
    bool own = false;
    enum sheaf_status st;
    if (comm->n_here > 1) {
        sum = sheaf__floats(comm->sums);
        if ((st = sheaf__sum_members(j, 0, j->n, sheaf__floats(comm->sums)))) return st;
    }
    memset(comm->take, 0, (size_t)comm->n_hosts * sizeof *comm->take);
    for (int i = 0; i < n_owners; i++) {
        const int h = sheaf__owner(comm, n_owners, i);
        uint8_t *out = sheaf__payload_out(comm, h);
        sheaf__even_range(j->n, n_owners, i, &lo, &len);
        comm->take[h] = sheaf__wire_bytes(type, len);
        if (h == comm->here) own = true, my_lo = lo, my_len = len;
        if (lossy)
            sheaf__wire_encode(type, sum + lo, out, len);
        else if (len)
            memcpy(out, sum + lo, comm->take[h]);
    }
    uint8_t *mine = sheaf__payload_out(comm, comm->here);
    if ((st = sheaf__wire_to_owners(c, n_owners))) return st;
    if (own) {
        for (int h = 0; h < comm->n_hosts; h++)
            comm->parts[h] = h == comm->here ? mine : sheaf__payload_in(comm, h);
        sum_hosts(j, comm->parts, result + my_lo, my_len, lossy ? mine : NULL);
        if (!lossy && my_len) memcpy(mine, result + my_lo, comm->take[comm->here]);
    }
    if ((st = sheaf__wire_from_owners(c, n_owners))) return st;
    for (int i = 0; i < n_owners; i++) {
        const int h = sheaf__owner(comm, n_owners, i);
        sheaf__even_range(j->n, n_owners, i, &lo, &len);
        if (h == comm->here) continue;
        if (lossy)
            sheaf__wire_decode(type, sheaf__payload_in(comm, h), result + lo, len);
        else if (len)
            memcpy(result + lo, sheaf__payload_in(comm, h), comm->take[h]);
    }
    return st;
}

static enum sheaf_status exchange(const struct sheaf__job *j, int n_owners, float *result) {
    return n_owners ? exchange_through_owners(j, n_owners, result) : exchange_frames(j, result);
}

/* One step; blocks stay in member order. n_owners 0: every host adds everything. */
static enum sheaf_status reduce_frames(const struct sheaf__job *j, int n_owners) {
    struct sheaf__call *c = j->c;
    struct sheaf_comm *comm = j->comm;
    const uint64_t step = c->self->step;
    float *result = sheaf__floats(sheaf__result(comm, step));
    enum sheaf_status st;
    if (comm->n_here == 1 && !j->counts) {
        st = exchange(j, n_owners, j->dst);
        c->self->step++;
        return st;
    }
    if (comm->n_here > 1) {
        float *slot = sheaf__floats(sheaf__slot(comm, c->place, step));
        if (!c->region && j->n) memcpy(slot, j->src, j->n * sizeof *slot);
        if ((st = sheaf__arrive(c))) return st;
    }
    if (c->leader) {
        if ((st = exchange(j, n_owners, result))) return st;
        sheaf__publish_result(c, step);
    } else if ((st = sheaf__await_result(c, step))) {
        return st;
    }
    size_t at = 0;
    for (int m = 0; j->counts && m < c->member; m++) at += j->counts[m];
    const size_t len = j->counts ? j->counts[c->member] : j->n;
    if (len) memcpy(j->dst, result + at, len * sizeof(float));
    c->self->step++;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- large ---- */

/* A host with one member needs no slot: its sum is its data, and the result goes where it belongs.
 */
static bool in_place(const struct sheaf__job *j) {
    return j->comm->direct || (j->comm->n_here == 1 && !j->counts);
}

static float *host_sum(const struct sheaf__job *j, uint64_t k) {
    if (in_place(j)) return j->dst + (size_t)k * j->chunk;
    if (j->comm->n_here == 1) return sheaf__floats(sheaf__slot(j->comm, 0, j->base + k));
    return sheaf__floats(j->comm->sums + ((j->base + k) & 1) * j->comm->slot_bytes);
}
static float *step_result(const struct sheaf__job *j, uint64_t k) {
    return in_place(j) ? host_sum(j, k) : sheaf__floats(sheaf__result(j->comm, j->base + k));
}
/* Two hosts exchange whole chunks: the same bytes in one latency instead of two. (Halves would
 * halve the additions, but over veth with and without tbf, 1 and 4 MiB, they took 1.1 to 1.9 times
 * as long: 2026-11-21.) */
static bool exchange_whole(const struct sheaf__job *j) {
    return j->comm->n_hosts == 2 && !j->counts;
}
static bool gathers(const struct sheaf__job *j) { return !j->counts && !exchange_whole(j); }

/* Steps between the start of one and its sum, and from there to the sums of the others. Slots, sums
 * and results exist twice. */
enum { SCATTERS_AHEAD = 2, GATHERS_AHEAD = 2 };
static_assert(SCATTERS_AHEAD + GATHERS_AHEAD < (int)SHEAF__DEPTH, "a lane for each step in flight");
static uint64_t scatters_ahead(const struct sheaf__job *j) {
    return !j->comm->direct ? 1 : gathers(j) ? SCATTERS_AHEAD : j->comm->ahead;
}
static uint64_t gathers_ahead(const struct sheaf__job *j) {
    return j->comm->direct && gathers(j) ? GATHERS_AHEAD : 0;
}

static int lane_of(uint64_t k) { return (int)(k % SHEAF__DEPTH); }
static int gather_lane_of(uint64_t k) { return SHEAF__GATHER_LANE + lane_of(k); }

static uint8_t *stage(const struct sheaf__job *j, uint64_t k, int host) {
    const size_t at = (size_t)lane_of(k) * (size_t)j->comm->n_hosts + (size_t)host;
    return (uint8_t *)(j->comm->stage + at * j->comm->stage_floats);
}
static uint8_t *coded(const struct sheaf__job *j, uint64_t k) {
    return j->comm->coded + (size_t)lane_of(k) * j->comm->chunk_bytes;
}

/* The floats of step k that a host sums; its piece if there are counts and no slots. */
static void range_of(const struct sheaf__job *j, uint64_t k, int host, size_t *lo, size_t *len) {
    sheaf__host_range(j, k, host, lo, len);
    if (exchange_whole(j)) *len = sheaf__step_floats(j, k);
    if (exchange_whole(j) || (j->counts && j->comm->direct)) *lo = 0;
}

/* This host's addends for what `host` sums of step k, as they travel. */
static const uint8_t *addends_for(const struct sheaf__job *j, uint64_t k, int host, size_t *bytes) {
    const enum sheaf_type type = wire_type(j);
    const float *from = host_sum(j, k);
    size_t lo, len;
    range_of(j, k, host, &lo, &len);
    *bytes = sheaf__wire_bytes(type, len);
    if (type != SHEAF_TYPE_F32) return coded(j, k) + sheaf__wire_bytes(type, lo);
    if (j->counts && j->comm->direct) {
        from = j->src + (size_t)k * j->chunk;
        for (int m = 0; m < host; m++) from += j->counts[m]; /* host = member */
    }
    return (const uint8_t *)(from + lo);
}

/* Parts of the first step travel with the headers if they are short enough. */
static bool rides(uint64_t k, size_t bytes) { return k == 0 && bytes <= SHEAF__FRAME_PAYLOAD; }

/* Headers, with what rides. */
static void start_frames(const struct sheaf__job *j, size_t my_bytes) {
    struct sheaf_comm *comm = j->comm;
    for (int h = 0; h < comm->n_hosts; h++) {
        size_t bytes;
        const uint8_t *part = addends_for(j, 0, h, &bytes);
        comm->give[h] = rides(0, bytes) ? bytes : 0;
        comm->take[h] = rides(0, my_bytes) ? my_bytes : 0;
        if (comm->give[h] && h != comm->here) memcpy(sheaf__payload_out(comm, h), part, bytes);
    }
    sheaf__wire_frames_post_each(j->c);
}

/* Sends this host's sum of step k: to each host its part. Parts that do not ride follow the headers
 * at once: a peer in another call fails by its header. */
static void start_scatter(const struct sheaf__job *j, uint64_t k) {
    struct sheaf_comm *comm = j->comm;
    const enum sheaf_type type = wire_type(j);
    const int lane = lane_of(k);
    size_t my_bytes, bytes;
    if (type != SHEAF_TYPE_F32)
        sheaf__wire_encode(type, host_sum(j, k), coded(j, k), sheaf__step_floats(j, k));
    addends_for(j, k, comm->here, &my_bytes);
    if (k == 0) start_frames(j, my_bytes);
    sheaf__wire_begin(comm, lane);
    for (int h = 0; h < comm->n_hosts && !rides(k, my_bytes); h++)
        sheaf__wire_recv(comm, lane, h, stage(j, k, h), my_bytes);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        const uint8_t *part = addends_for(j, k, h, &bytes);
        if (!rides(k, bytes)) sheaf__wire_send(comm, lane, h, part, bytes);
    }
    sheaf__wire_end();
}

/* Passes the own part's sum around, for the parts of the others. */
static void start_gather(const struct sheaf__job *j, uint64_t k) {
    struct sheaf_comm *comm = j->comm;
    const enum sheaf_type type = wire_type(j);
    const bool lossy = type != SHEAF_TYPE_F32;
    const int lane = gather_lane_of(k);
    float *result = step_result(j, k);
    size_t lo, len, my_lo, my_len;
    range_of(j, k, comm->here, &my_lo, &my_len);
    /* sum_hosts has left it coded */
    const uint8_t *mine = lossy ? coded(j, k) : (const uint8_t *)(result + my_lo);
    sheaf__wire_begin(comm, lane);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        range_of(j, k, h, &lo, &len);
        sheaf__wire_recv(comm, lane, h, lossy ? stage(j, k, h) : (uint8_t *)(result + lo),
                         sheaf__wire_bytes(type, len));
        sheaf__wire_send(comm, lane, h, mine, sheaf__wire_bytes(type, my_len));
    }
    sheaf__wire_end();
}

/* Waits for the addends of the others for the own part, and sums it. */
static enum sheaf_status sum_part(const struct sheaf__job *j, uint64_t k) {
    struct sheaf_comm *comm = j->comm;
    const bool lossy = wire_type(j) != SHEAF_TYPE_F32;
    size_t bytes, lo, len;
    enum sheaf_status st = k == 0 ? sheaf__wire_frames_wait(j->c) : SHEAF_STATUS_SUCCESS;
    if (!st) st = sheaf__wire_wait(j->c, lane_of(k));
    if (st) return st;
    uint8_t *own = (uint8_t *)addends_for(j, k, comm->here, &bytes);
    for (int h = 0; h < comm->n_hosts; h++)
        comm->parts[h] = h == comm->here   ? own
                         : rides(k, bytes) ? sheaf__payload_in(comm, h)
                                           : stage(j, k, h);
    range_of(j, k, comm->here, &lo, &len);
    sum_hosts(j, comm->parts, step_result(j, k) + lo, len, lossy ? coded(j, k) : NULL);
    if (gathers(j)) start_gather(j, k);
    return st;
}

/* Waits for the sums of the other parts. */
static enum sheaf_status finish(const struct sheaf__job *j, uint64_t k) {
    struct sheaf_comm *comm = j->comm;
    const enum sheaf_type type = wire_type(j);
    if (!gathers(j)) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status st = sheaf__wire_wait(j->c, gather_lane_of(k));
    for (int h = 0; h < comm->n_hosts && type != SHEAF_TYPE_F32 && !st; h++) {
        size_t lo, len;
        range_of(j, k, h, &lo, &len);
        if (h != comm->here) sheaf__wire_decode(type, stage(j, k, h), step_result(j, k) + lo, len);
    }
    return st;
}

/* The host's sum of step k, on its way to the others. */
static enum sheaf_status start(const struct sheaf__job *j, uint64_t k) {
    struct sheaf__call *c = j->c;
    struct sheaf_comm *comm = j->comm;
    enum sheaf_status st;
    if (!in_place(j)) sheaf__load(j, k);
    if ((st = sheaf__arrive(c))) return st;
    if (comm->n_here > 1) {
        size_t lo, len;
        sheaf__even_range(sheaf__step_floats(j, k), comm->n_here, c->place, &lo, &len);
        if ((st = sheaf__sum_members(j, lo, len, host_sum(j, k) + lo))) return st;
        sheaf__publish_done(c);
        if ((st = sheaf__await_done(c))) return st;
    }
    if (c->leader) start_scatter(j, k);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status reduce_chunks(const struct sheaf__job *j) {
    struct sheaf__call *c = j->c;
    const uint64_t to_sum = scatters_ahead(j), to_end = to_sum + gathers_ahead(j);
    enum sheaf_status st;
    for (uint64_t k = 0; k < j->steps + to_end; k++) {
        c->self->step = j->base + k;
        if (k < j->steps && (st = start(j, k))) return st;
        if (c->leader && k >= to_sum && k - to_sum < j->steps && (st = sum_part(j, k - to_sum)))
            return st;
        if (k < to_end) continue;
        const uint64_t done = k - to_end;
        if (c->leader) {
            if ((st = finish(j, done))) return st;
            sheaf__publish_result(c, j->base + done);
        } else if ((st = sheaf__await_result(c, j->base + done))) {
            return st;
        }
        if (!in_place(j)) sheaf__store(j, done, step_result(j, done));
    }
    c->self->step = j->base + j->steps;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__reduce_hosts(const struct sheaf__job *j) {
    const struct sheaf_comm *comm = j->comm;
    const size_t bytes = sheaf__wire_bytes(wire_type(j), j->n);
    if (j->n * sizeof(float) > comm->slot_bytes || (j->counts && comm->direct))
        return reduce_chunks(j);
    const int n_owners = sheaf__n_owners(comm, bytes);
    return n_owners < 0 ? reduce_chunks(j) : reduce_frames(j, n_owners);
}
