/* all_reduce and reduce_scatter.
 *
 * One order of addition, whatever the path: members of a host in member order, then hosts in order,
 * always from the left. Each element is summed either by one owner, who hands the value out, or by
 * everybody in this same order; so all members, sizes and transports get the same bits. */
#include "comm/group.h"

enum {
    ALIGN = 16,             /* floats; parts of a chunk begin on cache lines */
    ONE_SHOT_BYTES = 16384, /* above, and with 3 members or more, each sums only its part */
    SUM_BLOCK = 512,
};

/* dst [n] = ((src[0] + src[1]) + src[2]) + ...; dst may be one of the sources. */
static void sum(float *dst, const float *const *src, int n_src, size_t n) {
    float acc[SUM_BLOCK]; /* cannot alias a source, so that the loops vectorise */
    for (size_t at = 0; at < n; at += SUM_BLOCK) {
        const size_t len = sheaf__min_size(SUM_BLOCK, n - at);
        if (n_src == 1) {
            memmove(dst + at, src[0] + at, len * sizeof *dst);
            continue;
        }
        const float *a = src[0] + at, *b = src[1] + at;
        for (size_t i = 0; i < len; i++) acc[i] = a[i] + b[i];
        for (int s = 2; s < n_src; s++) {
            b = src[s] + at;
            for (size_t i = 0; i < len; i++) acc[i] += b[i];
        }
        memcpy(dst + at, acc, len * sizeof *dst);
    }
}

/* What is to be summed, cut into steps. all_reduce: a step is a chunk of the vector.
 * reduce_scatter: a step is a piece of every block, packed by host and member, so that all members
 * have work. */
struct job {
    struct sheaf__call *c;
    struct sheaf_comm *comm;
    const float *src;
    float *dst;
    const size_t *counts; /* NULL: all_reduce */
    size_t n, chunk;      /* floats of a step; of a piece if there are counts */
    uint64_t steps, base; /* base: self->step at the begin */
};

static struct job make_job(struct sheaf__call *c, const float *src, float *dst, size_t n,
                           const size_t *counts) {
    const size_t slot = c->comm->slot_bytes / sizeof(float);
    size_t longest = n;
    struct job j = {
        .c = c,
        .comm = c->comm,
        .src = src,
        .dst = dst,
        .counts = counts,
        .n = n,
        .chunk = slot,
        .base = c->self->step,
    };
    if (counts) {
        j.chunk = slot / (size_t)c->comm->n / ALIGN * ALIGN;
        longest = 0;
        for (int m = 0; m < c->comm->n; m++) longest = counts[m] > longest ? counts[m] : longest;
    }
    j.steps = longest ? (longest + j.chunk - 1) / j.chunk : 1;
    return j;
}

/* Floats of member m's block in step k. */
static size_t piece(const struct job *j, uint64_t k, int m) {
    const size_t from = (size_t)k * j->chunk;
    return j->counts[m] > from ? sheaf__min_size(j->counts[m] - from, j->chunk) : 0;
}

/* Where the pieces of order[first ..  first + n) lie in the packed step k. */
static void packed_range(const struct job *j, uint64_t k, int first, int n, size_t *lo,
                         size_t *len) {
    *lo = *len = 0;
    for (int i = 0; i < first; i++) *lo += piece(j, k, j->comm->order[i]);
    for (int i = first; i < first + n; i++) *len += piece(j, k, j->comm->order[i]);
}

static size_t step_floats(const struct job *j, uint64_t k) {
    if (j->counts) {
        size_t lo, len;
        packed_range(j, k, 0, j->comm->n, &lo, &len);
        return len;
    }
    const size_t from = (size_t)k * j->chunk;
    return j->n > from ? sheaf__min_size(j->n - from, j->chunk) : 0;
}

/* Part i of n of a step of `len` floats. */
static void even_range(size_t len, int n, int i, size_t *lo, size_t *part) {
    const size_t lines = (len + ALIGN - 1) / ALIGN;
    *lo = sheaf__min_size(lines * (size_t)i / (size_t)n * ALIGN, len);
    *part = sheaf__min_size(lines * ((size_t)i + 1) / (size_t)n * ALIGN, len) - *lo;
}

static void host_range(const struct job *j, uint64_t k, int host, size_t *lo, size_t *len) {
    const struct sheaf__host *h = &j->comm->hosts[host];
    if (j->counts)
        packed_range(j, k, h->first, h->n, lo, len);
    else
        even_range(step_floats(j, k), j->comm->n_hosts, host, lo, len);
}

static void load(const struct job *j, uint64_t k, float *slot) {
    const size_t from = (size_t)k * j->chunk;
    if (!j->counts) {
        memcpy(slot, j->src + from, step_floats(j, k) * sizeof *slot);
        return;
    }
    for (int i = 0; i < j->comm->n; i++) {
        const int m = j->comm->order[i];
        const size_t len = piece(j, k, m);
        const float *block = j->src;
        for (int b = 0; b < m && len; b++) block += j->counts[b];
        if (len) memcpy(slot, block + from, len * sizeof *slot);
        slot += len;
    }
}

static void store(const struct job *j, uint64_t k, const float *result) {
    const size_t from = (size_t)k * j->chunk;
    size_t lo = 0, len = 0;
    if (j->counts)
        packed_range(j, k, j->comm->hosts[j->comm->host_of[j->c->member]].first + j->c->place, 1,
                     &lo, &len);
    else
        len = step_floats(j, k);
    if (len) memmove(j->dst + from, result + lo, len * sizeof *result);
}

/* Floats [lo, lo + len) of all slots of this host at `step`, summed to dst. */
static void sum_slots(const struct job *j, uint64_t step, size_t lo, size_t len, float *dst) {
    const float **src = j->c->self->sources;
    for (int p = 0; p < j->comm->n_here; p++)
        src[p] = (const float *)(const void *)sheaf__slot(j->comm, p, step) + lo;
    sum(dst, src, j->comm->n_here, len);
}

static float *floats(uint8_t *bytes) { return (float *)(void *)bytes; }

/* All members on one host. */
static enum sheaf_status reduce_here(const struct job *j) {
    struct sheaf__call *c = j->c;
    const struct sheaf_comm *comm = j->comm;
    const bool one_shot = comm->n_here <= 2 || j->n * sizeof(float) <= ONE_SHOT_BYTES;
    enum sheaf_status st;
    for (uint64_t k = 0; k < j->steps; k++, c->self->step++) {
        const uint64_t step = c->self->step;
        const size_t from = (size_t)k * j->chunk;
        size_t lo, len;
        load(j, k, floats(sheaf__slot(comm, c->place, step)));
        if ((st = sheaf__arrive(c))) return st;
        if (j->counts) {
            packed_range(j, k, c->place, 1, &lo, &len);
            sum_slots(j, step, lo, len, j->dst + from);
        } else if (one_shot) {
            sum_slots(j, step, 0, step_floats(j, k), j->dst + from);
        } else {
            float *result = floats(sheaf__result(comm, step));
            even_range(step_floats(j, k), comm->n_here, c->place, &lo, &len);
            sum_slots(j, step, lo, len, result + lo);
            sheaf__publish_done(c);
            if ((st = sheaf__await_done(c))) return st;
            store(j, k, result);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Several hosts, small: the sum of each host travels whole, with the header. One step; blocks stay
 * in member order. */
static enum sheaf_status reduce_frames(const struct job *j) {
    struct sheaf__call *c = j->c;
    struct sheaf_comm *comm = j->comm;
    const uint64_t step = c->self->step;
    const size_t bytes = j->n * sizeof(float);
    float *result = floats(sheaf__result(comm, step));
    enum sheaf_status st;
    if (comm->n_here > 1) {
        if (bytes) memcpy(sheaf__slot(comm, c->place, step), j->src, bytes);
        if ((st = sheaf__arrive(c))) return st;
    }
    if (c->leader) {
        const float **src = c->self->sources;
        float *own = floats(sheaf__payload_out(comm));
        if (comm->n_here > 1)
            sum_slots(j, step, 0, j->n, own);
        else if (bytes)
            memcpy(own, j->src, bytes);
        for (int h = 0; h < comm->n_hosts; h++) comm->take[h] = bytes;
        if ((st = sheaf__wire_frames(c, bytes))) return st;
        for (int h = 0; h < comm->n_hosts; h++)
            src[h] = h == comm->here ? own : floats(sheaf__payload_in(comm, h));
        if (comm->n_here == 1 && !j->counts) {
            sum(j->dst, src, comm->n_hosts, j->n);
            c->self->step++;
            return SHEAF_STATUS_SUCCESS;
        }
        sum(result, src, comm->n_hosts, j->n);
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

/* ---- several hosts, large ---- */

/* A host with one member works in place: its sum is its data, and the result goes there. */
static bool in_place(const struct job *j) { return j->comm->n_here == 1 && !j->counts; }

static float *host_sum(const struct job *j, uint64_t k) {
    if (in_place(j)) return j->dst + (size_t)k * j->chunk;
    if (j->comm->n_here == 1) return floats(sheaf__slot(j->comm, 0, j->base + k));
    return floats(j->comm->sums + ((j->base + k) & 1) * j->comm->slot_bytes);
}
static float *step_result(const struct job *j, uint64_t k) {
    return in_place(j) ? host_sum(j, k) : floats(sheaf__result(j->comm, j->base + k));
}
/* Two hosts exchange whole chunks: the same bytes in one latency instead of two. */
static bool exchange_whole(const struct job *j) { return j->comm->n_hosts == 2 && !j->counts; }

static float *stage(const struct job *j, uint64_t k, int host) {
    return j->comm->stage +
           ((size_t)(k & 1) * (size_t)j->comm->n_hosts + (size_t)host) * j->comm->stage_floats;
}

/* Sends this host's sum of step k: to each host its part. */
static void start_scatter(const struct job *j, uint64_t k) {
    struct sheaf_comm *comm = j->comm;
    const int lane = (int)(k & 1);
    const float *mine = host_sum(j, k);
    size_t lo, len, my_lo, my_len;
    host_range(j, k, comm->here, &my_lo, &my_len);
    if (exchange_whole(j)) my_len = step_floats(j, k);
    sheaf__wire_begin(comm, lane);
    for (int h = 0; h < comm->n_hosts; h++)
        sheaf__wire_recv(comm, lane, h, stage(j, k, h), my_len * sizeof(float));
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        host_range(j, k, h, &lo, &len);
        if (exchange_whole(j)) lo = 0, len = step_floats(j, k);
        sheaf__wire_send(comm, lane, h, mine + lo, len * sizeof(float));
    }
    sheaf__wire_end(comm, lane);
}

/* Waits for the parts of the others, sums, and (all_reduce) passes the sums around. */
static enum sheaf_status finish(const struct job *j, uint64_t k) {
    struct sheaf_comm *comm = j->comm;
    const float **src = j->c->self->sources;
    float *result = step_result(j, k);
    size_t lo, len, my_lo, my_len;
    enum sheaf_status st = sheaf__wire_wait(j->c, (int)(k & 1));
    if (st) return st;
    host_range(j, k, comm->here, &my_lo, &my_len);
    if (exchange_whole(j)) my_lo = 0, my_len = step_floats(j, k);
    for (int h = 0; h < comm->n_hosts; h++)
        src[h] = h == comm->here ? host_sum(j, k) + my_lo : stage(j, k, h);
    sum(result + my_lo, src, comm->n_hosts, my_len);
    if (j->counts || exchange_whole(j)) return SHEAF_STATUS_SUCCESS;
    sheaf__wire_begin(comm, SHEAF__GATHER_LANE);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        host_range(j, k, h, &lo, &len);
        sheaf__wire_recv(comm, SHEAF__GATHER_LANE, h, result + lo, len * sizeof(float));
        sheaf__wire_send(comm, SHEAF__GATHER_LANE, h, result + my_lo, my_len * sizeof(float));
    }
    sheaf__wire_end(comm, SHEAF__GATHER_LANE);
    return sheaf__wire_wait(j->c, SHEAF__GATHER_LANE);
}

/* Step k is summed and sent while step k - 1 comes back. */
static enum sheaf_status reduce_chunks(const struct job *j) {
    struct sheaf__call *c = j->c;
    struct sheaf_comm *comm = j->comm;
    enum sheaf_status st;
    for (uint64_t k = 0; k <= j->steps; k++) {
        c->self->step = j->base + k;
        if (k < j->steps) {
            if (!in_place(j)) load(j, k, floats(sheaf__slot(comm, c->place, c->self->step)));
            if ((st = sheaf__arrive(c))) return st;
            if (comm->n_here > 1) {
                size_t lo, len;
                even_range(step_floats(j, k), comm->n_here, c->place, &lo, &len);
                sum_slots(j, c->self->step, lo, len, host_sum(j, k) + lo);
                sheaf__publish_done(c);
                if ((st = sheaf__await_done(c))) return st;
            }
            if (c->leader) {
                for (int h = 0; h < comm->n_hosts && !k; h++) comm->take[h] = 0;
                if (!k && (st = sheaf__wire_frames(c, 0))) return st;
                start_scatter(j, k);
            }
        }
        if (k == 0) continue;
        if (c->leader) {
            if ((st = finish(j, k - 1))) return st;
            sheaf__publish_result(c, j->base + k - 1);
        } else if ((st = sheaf__await_result(c, j->base + k - 1))) {
            return st;
        }
        if (!in_place(j)) store(j, k - 1, step_result(j, k - 1));
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status reduce(const struct job *j) {
    if (j->comm->n_hosts == 1) return reduce_here(j);
    if (j->n * sizeof(float) <= sheaf__frame_limit(j->comm)) return reduce_frames(j);
    return reduce_chunks(j);
}

enum sheaf_status sheaf__all_reduce(struct sheaf__call *c, float *data, size_t n) {
    const struct job j = make_job(c, data, data, n, NULL);
    return reduce(&j);
}

enum sheaf_status sheaf__reduce_scatter(struct sheaf__call *c, const float *send, float *recv,
                                        size_t n, const size_t *counts) {
    const struct job j = make_job(c, send, recv, n, counts);
    return reduce(&j);
}
