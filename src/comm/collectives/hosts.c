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

static enum sheaf_type wire_type(const struct sheaf__sum_steps *s) {
    return s->counts ? SHEAF_TYPE_F32 : s->comm->wire_type;
}

/* Puts the sum of the parts of all hosts, as they arrived, into dst [len], and what travels of it
 * into scratch; NULL if F32 travels from dst or not at all. */
static void sum_hosts(const struct sheaf__sum_steps *s, uint8_t *const *part, float *dst,
                      size_t len, uint8_t *scratch) {
    struct sheaf_comm *comm = s->comm;
    const float **src = s->c->self->sources;
    const enum sheaf_type type = wire_type(s);
    for (int h = 0; h < comm->n_hosts; h++) {
        src[h] = sheaf__floats(part[h]);
        if (type == SHEAF_TYPE_F32) continue;
        float *decoded = comm->decoded + (size_t)h * comm->decoded_floats;
        sheaf__codec_decode(type, part[h], decoded, len);
        src[h] = decoded;
    }
    sheaf__sum(dst, src, comm->n_hosts, len);
    if (scratch) sheaf__codec_round(type, dst, scratch, len);
}

/* ---- small ---- */

/* The sum of this host's members: in room, or, of one member, where its data lie. */
static enum sheaf_status sum_here(const struct sheaf__sum_steps *s, float *room,
                                  const float **sum) {
    *sum = s->comm->n_here > 1 ? room : s->src;
    return s->comm->n_here > 1 ? sheaf__sum_members(s, 0, s->n, room) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status exchange_frames(const struct sheaf__sum_steps *s, float *result) {
    struct sheaf_comm *comm = s->comm;
    const enum sheaf_type type = wire_type(s);
    const size_t bytes = sheaf__codec_bytes(type, s->n);
    const bool lossy = type != SHEAF_TYPE_F32;
    uint8_t *out = sheaf__payload_out(comm, comm->here);
    const float *sum;
    enum sheaf_status st = sum_here(s, sheaf__floats(lossy ? comm->sums : out), &sum);
    if (st) return st;
    if (sum != sheaf__floats(out)) sheaf__codec_encode(type, sum, out, s->n);
    for (int h = 0; h < comm->n_hosts; h++) comm->take[h] = bytes;
    if ((st = sheaf__wire_frames(s->c, bytes))) return st;
    for (int h = 0; h < comm->n_hosts; h++)
        comm->parts[h] = h == comm->here ? out : sheaf__payload_in(comm, h);
    sum_hosts(s, comm->parts, result, s->n, lossy ? out : NULL);
    return st;
}

/* This host's addends for the parts of all owners, as they travel. */
static void pack_parts(const struct sheaf__sum_steps *s, int n_owners, const float *sum) {
    struct sheaf_comm *comm = s->comm;
    const enum sheaf_type type = wire_type(s);
    for (int i = 0; i < n_owners; i++) {
        const int h = sheaf__owner(comm, n_owners, i);
        size_t lo, len;
        sheaf__even_range(s->n, n_owners, i, &lo, &len);
        comm->take[h] = sheaf__codec_bytes(type, len);
        sheaf__codec_encode(type, sum + lo, sheaf__payload_out(comm, h), len);
    }
}

/* As owner i: adds what all hosts have for the part. */
static void sum_own_part(const struct sheaf__sum_steps *s, int n_owners, int i, float *result) {
    struct sheaf_comm *comm = s->comm;
    uint8_t *mine = sheaf__payload_out(comm, comm->here);
    size_t lo, len;
    sheaf__even_range(s->n, n_owners, i, &lo, &len);
    for (int h = 0; h < comm->n_hosts; h++)
        comm->parts[h] = h == comm->here ? mine : sheaf__payload_in(comm, h);
    sum_hosts(s, comm->parts, result + lo, len, mine);
}

/* The sums of the other owners. */
static void unpack_parts(const struct sheaf__sum_steps *s, int n_owners, float *result) {
    const struct sheaf_comm *comm = s->comm;
    for (int i = 0; i < n_owners; i++) {
        const int h = sheaf__owner(comm, n_owners, i);
        size_t lo, len;
        sheaf__even_range(s->n, n_owners, i, &lo, &len);
        if (h != comm->here)
            sheaf__codec_decode(wire_type(s), sheaf__payload_in(comm, h), result + lo, len);
    }
}

static enum sheaf_status exchange_through_owners(const struct sheaf__sum_steps *s, int n_owners,
                                                 float *result) {
    const float *sum;
    enum sheaf_status st = sum_here(s, sheaf__floats(s->comm->sums), &sum);
    if (st) return st;
    pack_parts(s, n_owners, sum);
    if ((st = sheaf__wire_to_owners(s->c, n_owners))) return st;
    for (int i = 0; i < n_owners; i++)
        if (sheaf__owner(s->comm, n_owners, i) == s->comm->here)
            sum_own_part(s, n_owners, i, result);
    if ((st = sheaf__wire_from_owners(s->c, n_owners))) return st;
    unpack_parts(s, n_owners, result);
    return st;
}

static enum sheaf_status exchange(const struct sheaf__sum_steps *s, int n_owners, float *result) {
    return n_owners ? exchange_through_owners(s, n_owners, result) : exchange_frames(s, result);
}

/* One step; blocks stay in member order. n_owners 0: every host adds everything. */
static enum sheaf_status reduce_frames(const struct sheaf__sum_steps *s, int n_owners) {
    struct sheaf__call *c = s->c;
    struct sheaf_comm *comm = s->comm;
    const uint64_t step = c->self->step;
    float *result = sheaf__floats(sheaf__result(comm, step));
    enum sheaf_status st;
    if (comm->n_here == 1 && !s->counts) {
        st = exchange(s, n_owners, s->dst);
        c->self->step++;
        return st;
    }
    if (comm->n_here > 1) {
        float *slot = sheaf__floats(sheaf__slot(comm, c->place, step));
        if (!c->region && s->n) memcpy(slot, s->src, s->n * sizeof *slot);
        if ((st = sheaf__arrive(c))) return st;
    }
    if (c->leader) {
        if ((st = exchange(s, n_owners, result))) return st;
        sheaf__publish_result(c, step);
    } else if ((st = sheaf__await_result(c, step))) {
        return st;
    }
    size_t at = 0;
    for (int m = 0; s->counts && m < c->member; m++) at += s->counts[m];
    const size_t len = s->counts ? s->counts[c->member] : s->n;
    if (len) memcpy(s->dst, result + at, len * sizeof(float));
    c->self->step++;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- large ---- */

/* A host with one member needs no slot: its sum is its data, and the result goes where it belongs.
 */
static bool in_place(const struct sheaf__sum_steps *s) {
    return s->comm->direct || (s->comm->n_here == 1 && !s->counts);
}

static float *host_sum(const struct sheaf__sum_steps *s, uint64_t k) {
    if (in_place(s)) return s->dst + (size_t)k * s->chunk;
    if (s->comm->n_here == 1) return sheaf__floats(sheaf__slot(s->comm, 0, s->base + k));
    return sheaf__floats(s->comm->sums + ((s->base + k) & 1) * s->comm->slot_bytes);
}
static float *step_result(const struct sheaf__sum_steps *s, uint64_t k) {
    return in_place(s) ? host_sum(s, k) : sheaf__floats(sheaf__result(s->comm, s->base + k));
}
/* Two hosts exchange whole chunks: the same bytes in one latency instead of two. (Halves would
 * halve the additions, but over veth with and without tbf, 1 and 4 MiB, they took 1.1 to 1.9 times
 * as long: 2026-11-21.) */
static bool exchange_whole(const struct sheaf__sum_steps *s) {
    return s->comm->n_hosts == 2 && !s->counts;
}
static bool gathers(const struct sheaf__sum_steps *s) { return !s->counts && !exchange_whole(s); }

/* Steps between the start of one and its sum, and from there to the sums of the others. Slots, sums
 * and results exist twice. */
enum { SCATTERS_AHEAD = 2, GATHERS_AHEAD = 2 };
static_assert(SCATTERS_AHEAD + GATHERS_AHEAD < (int)SHEAF__DEPTH, "a lane for each step in flight");
static uint64_t scatters_ahead(const struct sheaf__sum_steps *s) {
    return !s->comm->direct ? 1 : gathers(s) ? SCATTERS_AHEAD : s->comm->ahead;
}
static uint64_t gathers_ahead(const struct sheaf__sum_steps *s) {
    return s->comm->direct && gathers(s) ? GATHERS_AHEAD : 0;
}

static int lane_of(uint64_t k) { return (int)(k % SHEAF__DEPTH); }

static uint8_t *stage(const struct sheaf__sum_steps *s, uint64_t k, int host) {
    const size_t at = (size_t)lane_of(k) * (size_t)s->comm->n_hosts + (size_t)host;
    return (uint8_t *)(s->comm->stage + at * s->comm->stage_floats);
}
static uint8_t *coded(const struct sheaf__sum_steps *s, uint64_t k) {
    return s->comm->coded + (size_t)lane_of(k) * s->comm->chunk_bytes;
}

/* The floats of step k that a host sums; its piece if there are counts and no slots. */
static void range_of(const struct sheaf__sum_steps *s, uint64_t k, int host, size_t *lo,
                     size_t *len) {
    sheaf__host_range(s, k, host, lo, len);
    if (exchange_whole(s)) *len = sheaf__step_floats(s, k);
    if (exchange_whole(s) || (s->counts && s->comm->direct)) *lo = 0;
}

/* This host's addends for what `host` sums of step k, as they travel. */
static const uint8_t *addends_for(const struct sheaf__sum_steps *s, uint64_t k, int host,
                                  size_t *bytes) {
    const enum sheaf_type type = wire_type(s);
    const float *from = host_sum(s, k);
    size_t lo, len;
    range_of(s, k, host, &lo, &len);
    *bytes = sheaf__codec_bytes(type, len);
    if (type != SHEAF_TYPE_F32) return coded(s, k) + sheaf__codec_bytes(type, lo);
    if (s->counts && s->comm->direct) {
        from = s->src + (size_t)k * s->chunk;
        for (int m = 0; m < host; m++) from += s->counts[m]; /* host = member */
    }
    return (const uint8_t *)(from + lo);
}

/* Does a part travel in a frame, behind the header? Those of the first step, if they are short. */
static bool fits_frame(uint64_t k, size_t bytes) { return k == 0 && bytes <= SHEAF__FRAME_PAYLOAD; }

/* Headers, with the parts that fit. */
static void start_frames(const struct sheaf__sum_steps *s, size_t my_bytes) {
    struct sheaf_comm *comm = s->comm;
    for (int h = 0; h < comm->n_hosts; h++) {
        size_t bytes;
        const uint8_t *part = addends_for(s, 0, h, &bytes);
        comm->give[h] = fits_frame(0, bytes) ? bytes : 0;
        comm->take[h] = fits_frame(0, my_bytes) ? my_bytes : 0;
        if (comm->give[h] && h != comm->here) memcpy(sheaf__payload_out(comm, h), part, bytes);
    }
    sheaf__wire_frames_post_each(s->c);
}

/* Sends this host's sum of step k: to each host its part. Parts that do not fit a frame follow the
 * headers at once: a peer in another call fails by its header. */
static void start_scatter(const struct sheaf__sum_steps *s, uint64_t k) {
    struct sheaf_comm *comm = s->comm;
    const enum sheaf_type type = wire_type(s);
    const int lane = lane_of(k);
    size_t my_bytes, bytes;
    if (type != SHEAF_TYPE_F32)
        sheaf__codec_encode(type, host_sum(s, k), coded(s, k), sheaf__step_floats(s, k));
    addends_for(s, k, comm->here, &my_bytes);
    if (k == 0) start_frames(s, my_bytes);
    sheaf__wire_begin(comm, lane);
    for (int h = 0; h < comm->n_hosts && !fits_frame(k, my_bytes); h++)
        sheaf__wire_recv(comm, lane, h, stage(s, k, h), my_bytes);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        const uint8_t *part = addends_for(s, k, h, &bytes);
        if (!fits_frame(k, bytes)) sheaf__wire_send(comm, lane, h, part, bytes);
    }
    sheaf__wire_end();
}

/* Passes the own part's sum around, for the parts of the others. */
static void start_gather(const struct sheaf__sum_steps *s, uint64_t k) {
    struct sheaf_comm *comm = s->comm;
    const enum sheaf_type type = wire_type(s);
    const bool lossy = type != SHEAF_TYPE_F32;
    const int lane = sheaf__gather_lane(k);
    float *result = step_result(s, k);
    size_t lo, len, my_lo, my_len;
    range_of(s, k, comm->here, &my_lo, &my_len);
    /* sum_hosts has left it coded */
    const uint8_t *mine = lossy ? coded(s, k) : (const uint8_t *)(result + my_lo);
    sheaf__wire_begin(comm, lane);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        range_of(s, k, h, &lo, &len);
        sheaf__wire_recv(comm, lane, h, lossy ? stage(s, k, h) : (uint8_t *)(result + lo),
                         sheaf__codec_bytes(type, len));
        sheaf__wire_send(comm, lane, h, mine, sheaf__codec_bytes(type, my_len));
    }
    sheaf__wire_end();
}

/* Waits for the addends of the others for the own part, and sums it. */
static enum sheaf_status sum_part(const struct sheaf__sum_steps *s, uint64_t k) {
    struct sheaf_comm *comm = s->comm;
    const bool lossy = wire_type(s) != SHEAF_TYPE_F32;
    size_t bytes, lo, len;
    enum sheaf_status st = k == 0 ? sheaf__wire_frames_wait(s->c) : SHEAF_STATUS_SUCCESS;
    if (!st) st = sheaf__wire_wait(s->c, lane_of(k));
    if (st) return st;
    uint8_t *own = (uint8_t *)addends_for(s, k, comm->here, &bytes);
    for (int h = 0; h < comm->n_hosts; h++)
        comm->parts[h] = h == comm->here        ? own
                         : fits_frame(k, bytes) ? sheaf__payload_in(comm, h)
                                                : stage(s, k, h);
    range_of(s, k, comm->here, &lo, &len);
    sum_hosts(s, comm->parts, step_result(s, k) + lo, len, lossy ? coded(s, k) : NULL);
    if (gathers(s)) start_gather(s, k);
    return st;
}

/* Waits for the sums of the other parts. */
static enum sheaf_status finish(const struct sheaf__sum_steps *s, uint64_t k) {
    struct sheaf_comm *comm = s->comm;
    const enum sheaf_type type = wire_type(s);
    if (!gathers(s)) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status st = sheaf__wire_wait(s->c, sheaf__gather_lane(k));
    for (int h = 0; h < comm->n_hosts && type != SHEAF_TYPE_F32 && !st; h++) {
        size_t lo, len;
        range_of(s, k, h, &lo, &len);
        if (h != comm->here) sheaf__codec_decode(type, stage(s, k, h), step_result(s, k) + lo, len);
    }
    return st;
}

/* The host's sum of step k, on its way to the others. */
static enum sheaf_status start(const struct sheaf__sum_steps *s, uint64_t k) {
    struct sheaf__call *c = s->c;
    struct sheaf_comm *comm = s->comm;
    enum sheaf_status st;
    if (!in_place(s)) sheaf__load(s, k);
    if ((st = sheaf__arrive(c))) return st;
    if (comm->n_here > 1) {
        size_t lo, len;
        sheaf__even_range(sheaf__step_floats(s, k), comm->n_here, c->place, &lo, &len);
        if ((st = sheaf__sum_members(s, lo, len, host_sum(s, k) + lo))) return st;
        sheaf__publish_done(c);
        if ((st = sheaf__await_done(c))) return st;
    }
    if (c->leader) start_scatter(s, k);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status reduce_chunks(const struct sheaf__sum_steps *s) {
    struct sheaf__call *c = s->c;
    const uint64_t to_sum = scatters_ahead(s), to_end = to_sum + gathers_ahead(s);
    enum sheaf_status st;
    for (uint64_t k = 0; k < s->steps + to_end; k++) {
        c->self->step = s->base + k;
        if (k < s->steps && (st = start(s, k))) return st;
        if (c->leader && k >= to_sum && k - to_sum < s->steps && (st = sum_part(s, k - to_sum)))
            return st;
        if (k < to_end) continue;
        const uint64_t done = k - to_end;
        if (c->leader) {
            if ((st = finish(s, done))) return st;
            sheaf__publish_result(c, s->base + done);
        } else if ((st = sheaf__await_result(c, s->base + done))) {
            return st;
        }
        if (!in_place(s)) sheaf__store(s, done, step_result(s, done));
    }
    c->self->step = s->base + s->steps;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__reduce_hosts(const struct sheaf__sum_steps *s) {
    const struct sheaf_comm *comm = s->comm;
    const size_t bytes = sheaf__codec_bytes(wire_type(s), s->n);
    if (s->n * sizeof(float) > comm->slot_bytes || (s->counts && comm->direct))
        return reduce_chunks(s);
    const int n_owners = sheaf__n_owners(comm, bytes);
    return n_owners < 0 ? reduce_chunks(s) : reduce_frames(s, n_owners);
}
