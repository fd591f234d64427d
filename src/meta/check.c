/* Check mode: do all members have the same value of what they share? */
#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"
#include "meta/backend.h"

static uint64_t hash_bytes(uint64_t h, const char *p, size_t n) {
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t v;
        memcpy(&v, p + i, 8);
        h = sheaf__mix(h, v);
    }
    for (size_t i = n / 8 * 8; i < n; i++) h = sheaf__mix(h, (uint8_t)p[i]);
    return h;
}

/* Of the elements in order: between the rows of a view may lie bytes that members do not share. */
static uint64_t hash_elements(const struct sheaf_tensor *t, const char *value) {
    const size_t size = sheaf_type_size(t->type);
    const bool dense = t->nb[0] == size;
    const int64_t blocks = t->ne[0] / sheaf_blck_size(t->type);
    uint64_t h = (uint64_t)sheaf_nelements(t);
    for (int64_t row = 0; row < sheaf_nrows(t) && blocks; row++) {
        const char *p = value + sheaf__row_offset(t, row);
        if (dense) h = hash_bytes(h, p, (size_t)blocks * size);
        for (int64_t i = 0; i < blocks && !dense; i++)
            h = hash_bytes(h, p + (size_t)i * t->nb[0], size);
    }
    return h;
}

enum sheaf_status sheaf__meta_add_hash(struct meta_member *me, const struct sheaf_tensor *t,
                                       const void *value, int flag) {
    if (!sheaf__grow(&me->hashes, &me->cap_hashes, me->n_hashes + 1, sizeof *me->hashes))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "check: out of memory");
    const uint64_t h = hash_elements(t, value);
    /* the lowest bit tells results of devices from results of collectives */
    me->hashes[me->n_hashes++] =
        (struct meta_hash){(h & ~(uint64_t)1) | (flag == META_FLAG_CHECK_COLLECTIVE), t->name};
    return SHEAF_STATUS_SUCCESS;
}

/* The hashes of this rank's members, n each, in their order. */
static enum sheaf_status list_own(const struct meta_backend *b, size_t n, uint64_t *mine) {
    for (int m = 0; m < b->dev->n_local; m++) {
        const struct meta_member *me = &b->members[m];
        if (me->n_hashes != n)
            return sheaf_set_error(
                SHEAF_STATUS_FAILED,
                "check: member %d made %zu results that all members share, not %zu",
                b->dev->local[m], me->n_hashes, n);
        for (size_t i = 0; i < n; i++) mine[(size_t)m * n + i] = me->hashes[i].hash;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* all: n hashes of each member. Kinds of devices round differently: results of devices are compared
 * with those of the first member of the same kind, results of collectives with member 0's. */
static enum sheaf_status compare_all(const struct meta_backend *b, size_t n, const uint64_t *all) {
    const struct meta_device *dev = b->dev;
    for (int j = 1; j < dev->n_members; j++) {
        int like = 0;
        while (!sheaf__meta_same_kind(dev->members[like], dev->members[j])) like++;
        for (size_t i = 0; i < n; i++) {
            const int with = all[i] & 1 ? 0 : like;
            if (all[(size_t)j * n + i] == all[(size_t)with * n + i]) continue;
            return sheaf_set_error(
                SHEAF_STATUS_FAILED,
                "check: tensor '%s' (number %zu) differs between members %d and %d",
                dev->n_local ? b->members[0].hashes[i].name : "?", i, with, j);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__meta_compare_hashes(struct meta_backend *b, const struct meta_program *p) {
    const struct meta_device *dev = b->dev;
    const size_t n = (size_t)p->n_checked;
    size_t *sizes = calloc((size_t)sheaf_world_size(), sizeof *sizes);
    uint64_t *all = malloc((n * (size_t)dev->n_members + 1) * sizeof *all);
    uint64_t *mine = malloc((n * (size_t)dev->n_local + 1) * sizeof *mine);
    enum sheaf_status st = sizes && all && mine
                               ? list_own(b, n, mine)
                               : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "check: out of memory");
    if (st) { /* the others may be in the gathering below */
        st = sheaf__meta_end_apart(st);
        goto out;
    }
    for (int j = 0; j < dev->n_members; j++) sizes[dev->member_rank[j]] += n * sizeof *all;
    st = sheaf_world_all_gather_v(mine, all, sizes, "check of mirrored tensors");
    if (!st) st = compare_all(b, n, all);
out:
    free(sizes);
    free(all);
    free(mine);
    return st;
}
