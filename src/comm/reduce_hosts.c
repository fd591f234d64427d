/* all_reduce and reduce_scatter between hosts: the leaders exchange the sums of their hosts.
 *
 * Small sums travel whole, with the header: one latency. Large ones go in chunks, SHEAF__DEPTH (or,
 * if members have to meet, two) of them in flight: each host gets its part of all others, sums it,
 * and passes the sum around. Every byte leaves a host once for each other host that needs it, and
 * comes in once.
 *
 * A wire type other than F32 rounds the sum of each host, also of the own one, and the total. Both
 * ways do it at the same places, so the size changes no bit. */
#include "comm/reduce.h"

static enum sheaf_type wire_type(const struct sheaf__job *j) {
    return j->counts ? SHEAF_TYPE_F32 : j->comm->wire_type;
}

/* Takes the parts of all hosts as they came, and puts their sum into dst [len]. */
static void sum_hosts(const struct sheaf__job *j, uint8_t *const *part, float *dst, size_t len,
                      uint8_t *scratch) {
    struct sheaf_comm *comm = j->comm;
    const float **src = j->c->self->sources;
    const enum sheaf_type type = wire_type(j);
    for (int h = 0; h < comm->n_hosts; h++) {
        src[h] = sheaf__floats(part[h]);
        if (type == SHEAF_TYPE_F32) continue;
        float *decoded = comm->decoded + (size_t)h * (comm->chunk_bytes / sizeof(float));
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
    uint8_t *out = sheaf__payload_out(comm);
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

/* One step; blocks stay in member order. */
static enum sheaf_status reduce_frames(const struct sheaf__job *j) {
    struct sheaf__call *c = j->c;
    struct sheaf_comm *comm = j->comm;
    const uint64_t step = c->self->step;
    float *result = sheaf__floats(sheaf__result(comm, step));
    enum sheaf_status st;
    if (comm->n_here == 1 && !j->counts) {
        st = exchange_frames(j, j->dst);
        c->self->step++;
        return st;
    }
    if (comm->n_here > 1) {
        float *slot = sheaf__floats(sheaf__slot(comm, c->place, step));
        if (!c->region && j->n) memcpy(slot, j->src, j->n * sizeof *slot);
        if ((st = sheaf__arrive(c))) return st;
    }
    if (c->leader) {
        if ((st = exchange_frames(j, result))) return st;
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

/* A host with one member works in place: its sum is its data, and the result goes there. */
static bool in_place(const struct sheaf__job *j) { return j->comm->n_here == 1 && !j->counts; }

/* Slots, sums and results exist twice, the stage for messages SHEAF__DEPTH times. */
static uint64_t depth(const struct sheaf__job *j) { return in_place(j) ? SHEAF__DEPTH : 2; }

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

static int lane_of(uint64_t k) { return (int)(k % SHEAF__DEPTH); }

static uint8_t *stage(const struct sheaf__job *j, uint64_t k, int host) {
    const size_t at = (size_t)lane_of(k) * (size_t)j->comm->n_hosts + (size_t)host;
    return (uint8_t *)(j->comm->stage + at * j->comm->stage_floats);
}
static uint8_t *coded(const struct sheaf__job *j, uint64_t k) {
    return j->comm->coded + (size_t)lane_of(k) * j->comm->chunk_bytes;
}

/* Sends this host's sum of step k: to each host its part. */
static void start_scatter(const struct sheaf__job *j, uint64_t k) {
    struct sheaf_comm *comm = j->comm;
    const enum sheaf_type type = wire_type(j);
    const int lane = lane_of(k);
    const uint8_t *mine = (const uint8_t *)host_sum(j, k);
    size_t lo, len, my_lo, my_len;
    if (type != SHEAF_TYPE_F32) {
        sheaf__wire_encode(type, host_sum(j, k), coded(j, k), sheaf__step_floats(j, k));
        mine = coded(j, k);
    }
    sheaf__host_range(j, k, comm->here, &my_lo, &my_len);
    if (exchange_whole(j)) my_len = sheaf__step_floats(j, k);
    sheaf__wire_begin(comm, lane);
    for (int h = 0; h < comm->n_hosts; h++)
        sheaf__wire_recv(comm, lane, h, stage(j, k, h), sheaf__wire_bytes(type, my_len));
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        sheaf__host_range(j, k, h, &lo, &len);
        if (exchange_whole(j)) lo = 0, len = sheaf__step_floats(j, k);
        sheaf__wire_send(comm, lane, h, mine + sheaf__wire_bytes(type, lo),
                         sheaf__wire_bytes(type, len));
    }
    sheaf__wire_end(comm, lane);
}

/* Passes the sums of the parts around. */
static enum sheaf_status gather_sums(const struct sheaf__job *j, uint64_t k, float *result,
                                     size_t my_lo, size_t my_len) {
    struct sheaf_comm *comm = j->comm;
    const enum sheaf_type type = wire_type(j);
    const bool lossy = type != SHEAF_TYPE_F32;
    const int lane = SHEAF__GATHER_LANE;
    /* sum_hosts has left it coded */
    const uint8_t *mine = lossy ? coded(j, k) : (const uint8_t *)(result + my_lo);
    size_t lo, len;
    sheaf__wire_begin(comm, lane);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        sheaf__host_range(j, k, h, &lo, &len);
        sheaf__wire_recv(comm, lane, h, lossy ? stage(j, k, h) : (uint8_t *)(result + lo),
                         sheaf__wire_bytes(type, len));
        sheaf__wire_send(comm, lane, h, mine, sheaf__wire_bytes(type, my_len));
    }
    sheaf__wire_end(comm, lane);
    enum sheaf_status st = sheaf__wire_wait(j->c, lane);
    for (int h = 0; h < comm->n_hosts && lossy && !st; h++) {
        sheaf__host_range(j, k, h, &lo, &len);
        if (h != comm->here) sheaf__wire_decode(type, stage(j, k, h), result + lo, len);
    }
    return st;
}

/* Waits for the parts of the others, sums, and (all_reduce) passes the sums around. */
static enum sheaf_status finish(const struct sheaf__job *j, uint64_t k) {
    struct sheaf_comm *comm = j->comm;
    const enum sheaf_type type = wire_type(j);
    const bool lossy = type != SHEAF_TYPE_F32;
    float *result = step_result(j, k);
    size_t my_lo, my_len;
    enum sheaf_status st = sheaf__wire_wait(j->c, lane_of(k));
    if (st) return st;
    sheaf__host_range(j, k, comm->here, &my_lo, &my_len);
    if (exchange_whole(j)) my_lo = 0, my_len = sheaf__step_floats(j, k);
    for (int h = 0; h < comm->n_hosts; h++) comm->parts[h] = stage(j, k, h);
    comm->parts[comm->here] =
        lossy ? coded(j, k) + sheaf__wire_bytes(type, my_lo) : (uint8_t *)(host_sum(j, k) + my_lo);
    sum_hosts(j, comm->parts, result + my_lo, my_len, lossy ? coded(j, k) : NULL);
    if (j->counts || exchange_whole(j)) return SHEAF_STATUS_SUCCESS;
    return gather_sums(j, k, result, my_lo, my_len);
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
    if (!c->leader) return SHEAF_STATUS_SUCCESS;
    if (k == 0) { /* the first chunks follow at once: a peer elsewhere fails by its frame */
        for (int h = 0; h < comm->n_hosts; h++) comm->take[h] = 0;
        sheaf__wire_frames_post(c, 0);
    }
    start_scatter(j, k);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status reduce_chunks(const struct sheaf__job *j) {
    struct sheaf__call *c = j->c;
    const uint64_t ahead = depth(j) - 1;
    enum sheaf_status st;
    for (uint64_t k = 0; k < j->steps + ahead; k++) {
        c->self->step = j->base + k;
        if (k < j->steps && (st = start(j, k))) return st;
        if (k < ahead) continue;
        const uint64_t done = k - ahead;
        if (c->leader) {
            if (done == 0 && (st = sheaf__wire_frames_wait(c))) return st;
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
    const bool small = j->n * sizeof(float) <= j->comm->slot_bytes &&
                       sheaf__wire_bytes(wire_type(j), j->n) <= j->comm->one_shot_bytes;
    return small ? reduce_frames(j) : reduce_chunks(j);
}
