/* Check mode: do all members have the same value of what they share? */
#include <stdlib.h>

#include "meta/backend.h"

enum sheaf_status sheaf__meta_add_hash(struct meta_member *me, const struct sheaf_tensor *t,
                                       const void *value, int flag) {
    if (me->n_hashes == me->cap_hashes) {
        const int cap = me->cap_hashes ? me->cap_hashes * 2 : 256;
        uint64_t *h = realloc(me->hashes, (size_t)cap * sizeof *h);
        if (h) me->hashes = h;
        const char **n = realloc(me->hashed_names, (size_t)cap * sizeof *n);
        if (n) me->hashed_names = n;
        if (!h || !n) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "check: out of memory");
        me->cap_hashes = cap;
    }
    const size_t n = sheaf_nbytes(t);
    uint64_t h = n;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t v;
        memcpy(&v, (const char *)value + i, 8);
        h = sheaf__meta_mix(h, v);
    }
    for (size_t i = n / 8 * 8; i < n; i++) h = sheaf__meta_mix(h, ((const uint8_t *)value)[i]);
    /* the lowest bit tells what devices computed, each its own, from what a collective wrote */
    me->hashes[me->n_hashes] = (h & ~(uint64_t)1) | (flag == META_FLAG_CHECK_COLLECTIVE);
    me->hashed_names[me->n_hashes++] = t->name;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__meta_compare_hashes(struct meta_backend *b, const struct meta_program *p) {
    const struct meta_device *dev = b->dev;
    const size_t n = (size_t)p->n_checked;
    const int n_ranks = sheaf_world_size();
    size_t *sizes = calloc((size_t)n_ranks, sizeof *sizes);
    uint64_t *all = malloc((n * (size_t)dev->n_members + 1) * sizeof *all);
    uint64_t *mine = malloc((n * (size_t)dev->n_local + 1) * sizeof *mine);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!sizes || !all || !mine) {
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "check: out of memory");
        goto out;
    }
    for (int j = 0; j < dev->n_members; j++) sizes[dev->member_rank[j]] += n * sizeof *all;
    for (int m = 0; m < dev->n_local; m++) {
        if ((size_t)b->members[m].n_hashes != n) {
            st = sheaf_set_error(SHEAF_STATUS_FAILED,
                                 "check: member %d made %d results that all members share, not %zu",
                                 dev->local[m], b->members[m].n_hashes, n);
            goto out;
        }
        memcpy(mine + (size_t)m * n, b->members[m].hashes, n * sizeof *mine);
    }
    st = sheaf_world_all_gather_v(mine, all, sizes, "check of mirrored tensors");
    for (int j = 1; j < dev->n_members && !st; j++) {
        int like = 0; /* unlike devices round differently; only what they were given is the same */
        while (!sheaf__meta_same_kind(dev->members[like], dev->members[j])) like++;
        for (size_t i = 0; i < n && !st; i++) {
            const int with = all[i] & 1 ? 0 : like;
            if (all[(size_t)j * n + i] == all[(size_t)with * n + i]) continue;
            st =
                sheaf_set_error(SHEAF_STATUS_FAILED,
                                "check: tensor '%s' (number %zu) differs between members %d and %d",
                                dev->n_local ? b->members[0].hashed_names[i] : "?", i, with, j);
        }
    }
out:
    free(sizes);
    free(all);
    free(mine);
    return st;
}
