/* all_reduce and reduce_scatter on one host.
 *
 * One order of addition, whatever the path: members of a host in member order, then hosts in order,
 * always from the left. Each element is summed either by one owner, which hands the value out, or
 * by every member in this same order; so all members, sizes and transports get the same bits. */
#include "comm/collectives/collectives.h"

enum {
    ONE_STEP_BYTES = 2048,  /* up to here a second meeting costs more than it saves */
    ONE_SHOT_BYTES = 16384, /* with 3 members or more, unless the data are in registered memory */
    SPREAD_BLOCK = 1024,    /* floats that are summed and handed out at a time */
};

/* self->sources and targets: floats [lo, lo + len) of all members of this host at self->step; the
 * own ones at `own` if it is not NULL, and need not be in the slot then. */
static enum sheaf_status find_sources(const struct sheaf__sum_steps *s, size_t lo, size_t len,
                                      float *own) {
    struct sheaf__member *self = s->c->self;
    for (int p = 0; p < s->comm->n_here; p++) {
        uint8_t *data = sheaf__data_of(s->c, p, self->step, (lo + len) * sizeof(float));
        if (!data) return sheaf__report_failure();
        self->targets[p] = own && p == s->c->place ? own : sheaf__floats(data) + lo;
        self->sources[p] = self->targets[p];
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Their sum of len floats to dst. */
static enum sheaf_status sum_from(const struct sheaf__sum_steps *s, size_t lo, size_t len,
                                  float *own, float *dst) {
    enum sheaf_status st = find_sources(s, lo, len, own);
    if (!st) sheaf__sum(dst, s->c->self->sources, s->comm->n_here, len);
    return st;
}

enum sheaf_status sheaf__sum_members(const struct sheaf__sum_steps *s, size_t lo, size_t len,
                                     float *dst) {
    return sum_from(s, lo, len, NULL, dst);
}

/* Copies n floats except [lo, lo + len), the own part. */
static void copy_around(float *dst, const float *src, size_t n, size_t lo, size_t len) {
    sheaf__copy(dst, src, lo * sizeof *dst);
    sheaf__copy(dst + lo + len, src + lo + len, (n - lo - len) * sizeof *dst);
}

/* Sums this member's part of the data and writes it into the data of all members; no other member
 * touches that part. */
static enum sheaf_status spread_part(const struct sheaf__sum_steps *s, float *data, size_t lo,
                                     size_t len) {
    struct sheaf__member *self = s->c->self;
    const int n = s->comm->n_here, place = s->c->place;
    enum sheaf_status st = find_sources(s, lo, len, data + lo);
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
enum sheaf_status sheaf__all_reduce_here(const struct sheaf__sum_steps *s) {
    struct sheaf__call *c = s->c;
    const struct sheaf_comm *comm = s->comm;
    const bool one_step = s->n * sizeof(float) <= ONE_STEP_BYTES;
    const bool one_shot = one_step || (comm->n_here > 2 && s->n * sizeof(float) <= ONE_SHOT_BYTES);
    enum sheaf_status st;
    for (uint64_t k = 0; k < s->steps; k++, c->self->step++) {
        const uint64_t step = c->self->step;
        float *data = s->dst + (size_t)k * s->chunk;
        float *slot = sheaf__floats(sheaf__slot(comm, c->place, step));
        const size_t n = sheaf__step_floats(s, k);
        size_t lo, len;
        sheaf__even_range(n, comm->n_here, c->place, &lo, &len);
        if (c->region || one_shot)
            sheaf__load(s, k);
        else
            copy_around(slot, data, n, lo, len);
        if ((st = sheaf__arrive(c))) return st;
        if (!one_step && (comm->n_here == 2 || sheaf__any_region(c, step))) {
            if ((st = spread_part(s, data, lo, len))) return st;
            sheaf__publish_done(c);
            if ((st = sheaf__await_done(c))) return st;
            if (!c->region) copy_around(data, slot, n, lo, len);
        } else if (one_shot) {
            if ((st = sum_from(s, 0, n, data, data))) return st;
        } else {
            float *result = sheaf__floats(sheaf__result(comm, step));
            if ((st = sum_from(s, lo, len, data + lo, result + lo))) return st;
            sheaf__publish_done(c);
            if ((st = sheaf__await_done(c))) return st;
            sheaf__store(s, k, result);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* A reduce_scatter, all members on one host. */
enum sheaf_status sheaf__reduce_scatter_here(const struct sheaf__sum_steps *s) {
    struct sheaf__call *c = s->c;
    enum sheaf_status st;
    for (uint64_t k = 0; k < s->steps; k++, c->self->step++) {
        size_t lo, len;
        sheaf__load(s, k);
        if ((st = sheaf__arrive(c))) return st;
        sheaf__packed_range(s, k, c->place, 1, &lo, &len);
        if ((st = sheaf__sum_members(s, lo, len, s->dst + (size_t)k * s->chunk))) return st;
    }
    return SHEAF_STATUS_SUCCESS;
}
