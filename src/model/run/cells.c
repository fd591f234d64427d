/* Owns the arrays of struct sheaf__cells. Invariant: end, low, n_used and next follow from pos and
 * owners; a position of a sequence is in one cell at most. */
#include "model/run/cells.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void sheaf__cells_free(struct sheaf__cells *c) {
    free(c->pos);
    free(c->owners);
    *c = (struct sheaf__cells){0};
}

enum sheaf_status sheaf__cells_init(struct sheaf__cells *c, int64_t n) {
    *c = (struct sheaf__cells){.n = n};
    c->pos = calloc((size_t)n, sizeof *c->pos);
    c->owners = calloc((size_t)n, sizeof *c->owners);
    if (c->pos && c->owners) return SHEAF_STATUS_SUCCESS;
    sheaf__cells_free(c);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a cache of %" PRId64 " cells",
                           n);
}

int64_t sheaf__cells_take(struct sheaf__cells *c, int seq, int32_t pos) {
    int64_t cell = c->low;
    while (cell < c->n && c->owners[cell]) cell++;
    if (cell == c->n) return -1;
    c->pos[cell] = pos;
    c->owners[cell] = (uint64_t)1 << (unsigned)seq;
    c->low = cell + 1;
    if (c->end < c->low) c->end = c->low;
    c->n_used++;
    c->next[seq] = pos + 1;
    return cell;
}

void sheaf__cells_clear(struct sheaf__cells *c) {
    memset(c->owners, 0, (size_t)c->end * sizeof *c->owners);
    memset(c->next, 0, sizeof c->next);
    c->n_used = c->end = c->low = 0;
}

/* end, low, n_used and next from what the cells hold. */
static void count(struct sheaf__cells *c) {
    const int64_t end = c->end;
    memset(c->next, 0, sizeof c->next);
    c->n_used = c->end = 0;
    c->low = end;
    for (int64_t i = end - 1; i >= 0; i--) {
        const uint64_t owners = c->owners[i];
        if (!owners) c->low = i;
        if (!owners) continue;
        c->n_used++;
        if (!c->end) c->end = i + 1;
        for (unsigned s = 0; s < SHEAF__MAX_SEQUENCES; s++)
            if (owners >> s & 1 && c->next[s] <= c->pos[i]) c->next[s] = c->pos[i] + 1;
    }
    if (c->low > c->end) c->low = c->end;
}

void sheaf__cells_remove(struct sheaf__cells *c, int seq, int32_t from, int32_t to) {
    const uint64_t mask = seq < 0 ? UINT64_MAX : (uint64_t)1 << (unsigned)seq;
    for (int64_t i = 0; i < c->end; i++)
        if (c->pos[i] >= from && c->pos[i] < to) c->owners[i] &= ~mask;
    count(c);
}

enum sheaf_status sheaf__cells_copy(struct sheaf__cells *c, int a, int b, int32_t from,
                                    int32_t to) {
    const uint64_t bit_a = (uint64_t)1 << (unsigned)a, bit_b = (uint64_t)1 << (unsigned)b;
    if (a == b) return SHEAF_STATUS_SUCCESS;
    for (int64_t i = 0; i < c->end; i++) {
        if (c->owners[i] & bit_b && c->pos[i] >= from && c->pos[i] < to)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "sequence %d holds position %" PRId32
                                   " already: remove it before a copy of sequence %d",
                                   b, c->pos[i], a);
    }
    for (int64_t i = 0; i < c->end; i++)
        if (c->owners[i] & bit_a && c->pos[i] >= from && c->pos[i] < to) c->owners[i] |= bit_b;
    count(c);
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__cells_positions(const struct sheaf__cells *c, int seq, int32_t *positions, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        positions[i] = c->owners[i] >> (unsigned)seq & 1 ? c->pos[i] : INT32_MAX;
}

/* A prompt behind a long context has millions of elements: no branch and nothing wider than 32
 * bits, so that the compiler takes many at a time. */
void sheaf__cells_mask(const int32_t *positions, int64_t n, int32_t pos, int64_t window,
                       uint16_t *row) {
    const int32_t hidden = window > 0 && window <= pos ? pos - (int32_t)window : -1;
    for (int64_t i = 0; i < n; i++)
        row[i] = (uint16_t)(((positions[i] <= hidden) | (positions[i] > pos)) ? 0xfc00 : 0);
}
