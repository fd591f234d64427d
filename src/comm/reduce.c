/* all_reduce and reduce_scatter: the job, and the sum on one host.
 *
 * One order of addition, whatever the path: members of a host in member order, then hosts in order,
 * always from the left. Each element is summed either by one owner, which sends the value to the
 * others, or by every member in this same order; so all members, sizes and transports get the same
 * bits. */
#include "comm/reduce.h"

enum {
    ONE_STEP_BYTES = 2048,  /* up to here a second meeting costs more than it saves */
    IN_SLOTS_BYTES = 4096,  /* up to here also what lies in registered memory: 0.2 us less */
    ONE_SHOT_BYTES = 16384, /* with 3 members or more, unless the data are in registered memory */
    SPREAD_BLOCK = 1024,    /* floats that are summed and handed out at a time */
    FEW_CHUNKS = 4,         /* up to here steps between hosts are as short as messages, so that the
                               wire works while members add: not if they share cores */
};

/* Bytes of a chunk between hosts. Two hosts exchange whole chunks, more exchange parts of them. */
static size_t host_chunk(const struct sheaf_comm *comm, size_t bytes) {
    const size_t chunk = (comm->n_hosts > 2 ? (size_t)comm->n_hosts : 1) * comm->part_bytes;
    const bool few = !comm->crowded && bytes <= FEW_CHUNKS * chunk;
    return comm->direct || few ? sheaf__min_size(chunk, comm->chunk_bytes) : comm->chunk_bytes;
}

static struct sheaf__job make_job(struct sheaf__call *c, const float *src, float *dst, size_t n,
                                  const size_t *counts) {
    const size_t slot = c->comm->slot_bytes / sizeof(float);
    size_t longest = n;
    struct sheaf__job j = {
        .c = c,
        .comm = c->comm,
        .src = src,
        .dst = dst,
        .counts = counts,
        .n = n,
        .chunk = slot / SHEAF__ALIGN * SHEAF__ALIGN,
        .base = c->self->step,
    };
    if (c->comm->n_hosts > 1) {
        const size_t most = host_chunk(c->comm, n * sizeof(float)) / sizeof(float);
        j.chunk = most / SHEAF__ALIGN * SHEAF__ALIGN;
    }
    if (counts) {
        const size_t part =
            c->comm->direct ? c->comm->part_bytes / sizeof(float) : slot / (size_t)c->comm->n;
        j.chunk = part / SHEAF__ALIGN * SHEAF__ALIGN;
        longest = 0;
        for (int m = 0; m < c->comm->n; m++) longest = counts[m] > longest ? counts[m] : longest;
    }
    j.steps = longest ? (longest + j.chunk - 1) / j.chunk : 1;
    return j;
}

/* Floats of member m's block in step k. */
static size_t piece(const struct sheaf__job *j, uint64_t k, int m) {
    const size_t from = (size_t)k * j->chunk;
    return j->counts[m] > from ? sheaf__min_size(j->counts[m] - from, j->chunk) : 0;
}

/* Where the pieces of order[first ..  first + n) lie in the packed step k. */
static void packed_range(const struct sheaf__job *j, uint64_t k, int first, int n, size_t *lo,
                         size_t *len) {
    *lo = *len = 0;
    for (int i = 0; i < first; i++) *lo += piece(j, k, j->comm->order[i]);
    for (int i = first; i < first + n; i++) *len += piece(j, k, j->comm->order[i]);
}

size_t sheaf__step_floats(const struct sheaf__job *j, uint64_t k) {
    if (j->counts) {
        size_t lo, len;
        packed_range(j, k, 0, j->comm->n, &lo, &len);
        return len;
    }
    const size_t from = (size_t)k * j->chunk;
    return j->n > from ? sheaf__min_size(j->n - from, j->chunk) : 0;
}

enum sheaf_status sheaf__step_finished(const struct sheaf__job *j, uint64_t k) {
    if (!j->c->then) return SHEAF_STATUS_SUCCESS;
    return sheaf__finished(j->c, (size_t)k * j->chunk + sheaf__step_floats(j, k));
}

void sheaf__even_range(size_t len, int n, int i, size_t *lo, size_t *part) {
    const size_t lines = (len + SHEAF__ALIGN - 1) / SHEAF__ALIGN;
    *lo = sheaf__min_size(lines * (size_t)i / (size_t)n * SHEAF__ALIGN, len);
    *part = sheaf__min_size(lines * ((size_t)i + 1) / (size_t)n * SHEAF__ALIGN, len) - *lo;
}

void sheaf__host_range(const struct sheaf__job *j, uint64_t k, int host, size_t *lo, size_t *len) {
    const struct sheaf__host *h = &j->comm->hosts[host];
    if (j->counts)
        packed_range(j, k, h->first, h->n, lo, len);
    else
        sheaf__even_range(sheaf__step_floats(j, k), j->comm->n_hosts, host, lo, len);
}

void sheaf__load(const struct sheaf__job *j, uint64_t k) {
    struct sheaf__call *c = j->c;
    const size_t from = (size_t)k * j->chunk;
    float *slot = sheaf__floats(sheaf__slot(j->comm, c->place, c->self->step));
    if (!j->counts) {
        const size_t bytes = sheaf__step_floats(j, k) * sizeof *slot;
        if (c->region)
            c->offset += k ? j->chunk * sizeof *slot : 0;
        else if (bytes)
            memcpy(slot, j->src + from, bytes);
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

void sheaf__store(const struct sheaf__job *j, uint64_t k, const float *result) {
    const size_t from = (size_t)k * j->chunk;
    size_t lo = 0, len = 0;
    if (j->counts)
        packed_range(j, k, j->comm->hosts[j->comm->host_of[j->c->member]].first + j->c->place, 1,
                     &lo, &len);
    else
        len = sheaf__step_floats(j, k);
    if (len) memmove(j->dst + from, result + lo, len * sizeof *result);
}

/* self->sources and targets: floats [lo ..) of all members of this host at self->step; the own ones
 * at `own` if it is not NULL, and need not be in the slot then. */
static enum sheaf_status find_sources(const struct sheaf__job *j, size_t lo, float *own) {
    struct sheaf__member *self = j->c->self;
    for (int p = 0; p < j->comm->n_here; p++) {
        uint8_t *data = sheaf__data_of(j->c, p, self->step);
        if (!data) return sheaf__report_failure();
        self->targets[p] = own && p == j->c->place ? own : sheaf__floats(data) + lo;
        self->sources[p] = self->targets[p];
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status sum_from(const struct sheaf__job *j, size_t lo, size_t len, float *own,
                                  float *dst) {
    enum sheaf_status st = find_sources(j, lo, own);
    if (!st && len) sheaf__sum(dst, j->c->self->sources, j->comm->n_here, len);
    return st;
}

enum sheaf_status sheaf__sum_members(const struct sheaf__job *j, size_t lo, size_t len,
                                     float *dst) {
    return sum_from(j, lo, len, NULL, dst);
}

/* Copies n floats except for [lo, lo + len), the own part. */
static void copy_around(float *dst, const float *src, size_t n, size_t lo, size_t len) {
    sheaf__copy(dst, src, lo * sizeof *dst);
    sheaf__copy(dst + lo + len, src + lo + len, (n - lo - len) * sizeof *dst);
}

/* Sums this member's part of the data and writes it into those of all; no other member writes it.
 */
static enum sheaf_status spread_part(const struct sheaf__job *j, float *data, size_t lo,
                                     size_t len) {
    struct sheaf__member *self = j->c->self;
    const int n = j->comm->n_here, place = j->c->place;
    enum sheaf_status st = find_sources(j, lo, data + lo);
    if (!st && n == 2) {
        sheaf__sum_both(self->targets[place], self->targets[!place], self->sources, len);
        return st;
    }
    for (size_t at = 0, m; at < len && !st; at += m) {
        m = sheaf__min_size(SPREAD_BLOCK, len - at);
        sheaf__sum(self->targets[place], self->sources, n, m);
        for (int p = 0; p < n; p++) {
            if (p != place) memcpy(self->targets[p], self->targets[place], m * sizeof(float));
        }
        for (int p = 0; p < n; p++) {
            self->targets[p] += m;
            self->sources[p] += m;
        }
    }
    return st;
}

/* An all_reduce, all members on one host. Two members exchange lines that each writes after it has
 * read what the other wrote there: such a line takes 2.5 ns. A slot that its owner writes again
 * after the other has read it takes 8 (bench-lines, Zen 5, 2026-11-21). */
static enum sheaf_status all_reduce_here(const struct sheaf__job *j) {
    struct sheaf__call *c = j->c;
    const struct sheaf_comm *comm = j->comm;
    const bool one_step = j->n * sizeof(float) <= ONE_STEP_BYTES;
    const bool one_shot = one_step || (comm->n_here > 2 && j->n * sizeof(float) <= ONE_SHOT_BYTES);
    enum sheaf_status st;
    for (uint64_t k = 0; k < j->steps; k++, c->self->step++) {
        const uint64_t step = c->self->step;
        float *data = j->dst + (size_t)k * j->chunk;
        float *slot = sheaf__floats(sheaf__slot(comm, c->place, step));
        const size_t n = sheaf__step_floats(j, k);
        size_t lo, len;
        sheaf__even_range(n, comm->n_here, c->place, &lo, &len);
        if (c->region || one_shot)
            sheaf__load(j, k);
        else
            copy_around(slot, data, n, lo, len);
        if ((st = sheaf__arrive(c))) return st;
        if (!one_step && (comm->n_here == 2 || sheaf__any_region(c, step))) {
            if ((st = spread_part(j, data, lo, len))) return st;
            sheaf__publish_done(c);
            if ((st = sheaf__await_done(c))) return st;
            if (!c->region) copy_around(data, slot, n, lo, len);
        } else if (one_shot) {
            if ((st = sum_from(j, 0, n, data, data))) return st;
        } else {
            float *result = sheaf__floats(sheaf__result(comm, step));
            if ((st = sum_from(j, lo, len, data + lo, result + lo))) return st;
            sheaf__publish_done(c);
            if ((st = sheaf__await_done(c))) return st;
            sheaf__store(j, k, result);
        }
        if ((st = sheaf__step_finished(j, k))) return st;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* A reduce_scatter, all members on one host. */
static enum sheaf_status reduce_scatter_here(const struct sheaf__job *j) {
    struct sheaf__call *c = j->c;
    enum sheaf_status st;
    for (uint64_t k = 0; k < j->steps; k++, c->self->step++) {
        size_t lo, len;
        sheaf__load(j, k);
        if ((st = sheaf__arrive(c))) return st;
        packed_range(j, k, c->place, 1, &lo, &len);
        if ((st = sheaf__sum_members(j, lo, len, j->dst + (size_t)k * j->chunk))) return st;
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__all_reduce(struct sheaf__call *c, float *data, size_t n) {
    const struct sheaf__job j = make_job(c, data, data, n, NULL);
    const bool one_host = c->comm->n_hosts == 1;
    if (c->comm->n_here > 1 && !(one_host && n * sizeof *data <= IN_SLOTS_BYTES))
        sheaf__find_region(c, data, n * sizeof *data);
    return one_host ? all_reduce_here(&j) : sheaf__reduce_hosts(&j);
}

enum sheaf_status sheaf__reduce_scatter(struct sheaf__call *c, const float *send, float *recv,
                                        size_t n, const size_t *counts) {
    const struct sheaf__job j = make_job(c, send, recv, n, counts);
    return c->comm->n_hosts == 1 ? reduce_scatter_here(&j) : sheaf__reduce_hosts(&j);
}
