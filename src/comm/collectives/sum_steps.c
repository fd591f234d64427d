/* A sum cut into steps: which floats a step has, which of them a member or a host sums, and where
 * the addends of a host lie. Used by one_host.c and hosts.c. */
#include "comm/collectives/collectives.h"

enum {
    FEW_CHUNKS = 4, /* up to here steps between hosts are as short as messages, so that the wire
                       works while members add: not if they share cores */
};

/* Bytes of a chunk between hosts. Two hosts exchange whole chunks, more exchange parts of them. */
static size_t host_chunk(const struct sheaf_comm *comm, size_t bytes) {
    const size_t chunk = (comm->n_hosts > 2 ? (size_t)comm->n_hosts : 1) * comm->part_bytes;
    const bool few = !comm->crowded && bytes <= FEW_CHUNKS * chunk;
    return comm->direct || few ? sheaf__min_size(chunk, comm->chunk_bytes) : comm->chunk_bytes;
}

struct sheaf__sum_steps sheaf__sum_steps(struct sheaf__call *c, const float *src, float *dst,
                                         size_t n, const size_t *counts) {
    const size_t slot = c->comm->slot_bytes / sizeof(float);
    size_t longest = n;
    struct sheaf__sum_steps s = {
        .c = c,
        .comm = c->comm,
        .src = src,
        .dst = dst,
        .counts = counts,
        .n = n,
        .chunk = c->comm->n_hosts > 1 ? host_chunk(c->comm, n * sizeof(float)) / sizeof(float)
                                      : slot, /* both of whole blocks */
        .base = c->self->step,
    };
    if (counts) {
        const size_t part =
            c->comm->direct ? c->comm->part_bytes / sizeof(float) : slot / (size_t)c->comm->n;
        s.chunk = part / SHEAF__ALIGN * SHEAF__ALIGN;
        longest = 0;
        for (int m = 0; m < c->comm->n; m++) longest = counts[m] > longest ? counts[m] : longest;
    }
    s.steps = longest ? (longest + s.chunk - 1) / s.chunk : 1;
    return s;
}

void sheaf__packed_range(const struct sheaf__sum_steps *s, uint64_t k, int first, int n, size_t *lo,
                         size_t *len) {
    *lo = sheaf__pieces_size(s->comm, s->counts, k, s->chunk, 0, first);
    *len = sheaf__pieces_size(s->comm, s->counts, k, s->chunk, first, first + n);
}

void sheaf__host_range(const struct sheaf__sum_steps *s, uint64_t k, int host, size_t *lo,
                       size_t *len) {
    const struct sheaf__host *h = &s->comm->hosts[host];
    if (s->counts)
        sheaf__packed_range(s, k, h->first, h->n, lo, len);
    else
        sheaf__even_range(sheaf__step_floats(s, k), s->comm->n_hosts, host, lo, len);
}

void sheaf__load(const struct sheaf__sum_steps *s, uint64_t k) {
    struct sheaf__call *c = s->c;
    const size_t from = (size_t)k * s->chunk;
    float *slot = sheaf__floats(sheaf__slot(s->comm, c->place, c->self->step));
    if (!s->counts) {
        const size_t bytes = sheaf__step_floats(s, k) * sizeof *slot;
        if (c->region)
            c->offset += k ? s->chunk * sizeof *slot : 0;
        else if (bytes)
            memcpy(slot, s->src + from, bytes);
        return;
    }
    for (int i = 0; i < s->comm->n; i++) {
        const int m = s->comm->order[i];
        const size_t len = sheaf__piece_size(s->counts[m], k, s->chunk);
        const float *block = s->src;
        for (int b = 0; b < m && len; b++) block += s->counts[b];
        if (len) memcpy(slot, block + from, len * sizeof *slot);
        slot += len;
    }
}

void sheaf__store(const struct sheaf__sum_steps *s, uint64_t k, const float *result) {
    const size_t from = (size_t)k * s->chunk;
    size_t lo = 0, len = 0;
    if (s->counts)
        sheaf__packed_range(
            s, k, s->comm->hosts[s->comm->host_of[s->c->member]].first + s->c->place, 1, &lo, &len);
    else
        len = sheaf__step_floats(s, k);
    if (len) memmove(s->dst + from, result + lo, len * sizeof *result);
}
