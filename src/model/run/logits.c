/* Owns the scratch of a selection. A row in memory of a device is selected from there, where the
 * device can and the list is short (best.h); the others are read. Invariant: every row of the
 * vocabulary is seen by exactly one rank, so that the normaliser counts it once. */
#include "model/run/logits.h"

#include <stdlib.h>
#include <string.h>

#include "sheaf/backend.h"
#include "sheaf/meta.h"
#include "sheaf/world.h"

#include "model/run/best.h"
#include "model/run/host_memory.h"

struct sheaf__logits {
    int64_t n_vocab;
    struct sheaf__host_memory row; /* floats [n_vocab] of a device whose memory is not the host's */
    int64_t *pairs;                /* [2 * max_pairs] intervals of a member */
    struct sheaf_candidates *part, *mine, *all;
    struct sheaf__best **best; /* [n_best] of this rank's members, for those that are no CPUs */
    size_t n_best;
    sheaf_backend_t followed; /* of a meta device, whose members go on to the selection */
    size_t block;  /* bytes of a rank's message: packed candidates, then one byte: stop */
    uint8_t *send; /* [block] */
    uint8_t *recv; /* [ranks * block] */
};

enum { MAX_PAIRS = 4096 };

void sheaf__logits_free(struct sheaf__logits *l) {
    if (!l) return;
    if (l->followed) sheaf_backend_meta_follow(l->followed, NULL, NULL, NULL);
    for (size_t i = 0; i < l->n_best; i++) sheaf__best_free(l->best[i]);
    free((void *)l->best);
    sheaf_candidates_free(l->part);
    sheaf_candidates_free(l->mine);
    sheaf_candidates_free(l->all);
    sheaf__host_memory_free(&l->row);
    free(l->pairs);
    free(l->send);
    free(l->recv);
    free(l);
}

enum sheaf_status sheaf__logits_new(int64_t n_vocab, size_t k, struct sheaf__logits **out) {
    *out = NULL;
    struct sheaf__logits *l = calloc(1, sizeof *l);
    if (!l) goto no_memory;
    l->n_vocab = n_vocab;
    if (k > (size_t)n_vocab) k = (size_t)n_vocab;
    l->block = sheaf_candidates_packed_size(k) + 1;
    l->pairs = malloc(2 * MAX_PAIRS * sizeof *l->pairs);
    l->send = malloc(l->block);
    l->recv = malloc(l->block * (size_t)sheaf_world_size());
    if (!l->pairs || !l->send || !l->recv) goto no_memory;
    enum sheaf_status status = sheaf_candidates_new(k, &l->mine);
    if (!status) status = sheaf_candidates_new(k, &l->part);
    if (!status) status = sheaf_candidates_new(k, &l->all);
    if (status)
        sheaf__logits_free(l);
    else
        *out = l;
    return status;
no_memory:
    sheaf__logits_free(l);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the selection of tokens");
}

/* A row of a tensor that lies on one device, in host memory. */
static enum sheaf_status on_host(struct sheaf__logits *l, const struct sheaf_tensor *t, int64_t row,
                                 const float **rows) {
    const size_t size = (size_t)t->ne[0] * sizeof(float), offset = (size_t)row * t->nb[1];
    if (sheaf_backend_buffer_is_host(t->buffer)) {
        *rows = (const float *)(const void *)((const char *)t->data + offset);
        return SHEAF_STATUS_SUCCESS;
    }
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!l->row.data)
        status = sheaf__host_memory_new(
            sheaf_backend_buft_get_device(sheaf_backend_buffer_get_type(t->buffer)),
            (size_t)l->n_vocab * sizeof **rows, &l->row);
    *rows = l->row.data;
    return status ? status : sheaf_backend_tensor_get(t, l->row.data, offset, size);
}

/* The result that is selected from. */
struct result {
    sheaf_backend_t backend; /* that computed it */
    const struct sheaf_tensor *logits;
    int64_t row;
    bool with_sum;
};

static bool is_meta(const struct result *of) {
    return sheaf_backend_dev_is_meta(sheaf_backend_get_device(of->backend));
}

/* The best of a member's row, with the row's positions as ids, into `part`: found by the device, or
 * the row is brought here. */
static enum sheaf_status select_row(struct sheaf__logits *l, const struct result *of,
                                    const struct sheaf_tensor *t, size_t local) {
    bool done = false;
    const float *rows;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!of->with_sum && local < l->n_best && !sheaf_backend_buffer_is_host(t->buffer)) {
        sheaf_backend_t own =
            is_meta(of) ? sheaf_backend_meta_member_backend(of->backend, local) : of->backend;
        status = sheaf__best_select(&l->best[local], own, t, of->row, l->part, &done);
    }
    if (status || done) return status;
    status = on_host(l, t, of->row, &rows);
    return status ? status
                  : sheaf_candidates_select(l->part, rows, (size_t)t->ne[0], 0, of->with_sum);
}

/* Turns positions in a slice into ids: interval i of the slice begins at id pairs[2 * i] and is
 * pairs[2 * i + 1] long. Ascending, so the order stays. */
static void name_candidates(struct sheaf_candidates *c, const int64_t *pairs, int64_t n) {
    for (size_t j = 0; j < c->n; j++) {
        int64_t at = c->data[j].id, i = 0;
        for (; i < n - 1 && at >= pairs[2 * i + 1]; i++) at -= pairs[2 * i + 1];
        c->data[j].id = (int32_t)(pairs[2 * i] + at);
    }
}

static enum sheaf_status select_slice(struct sheaf__logits *l, const struct result *of,
                                      const struct sheaf_split_state *state, size_t local,
                                      int member) {
    const struct sheaf_tensor *slice = sheaf_backend_meta_get_slice(of->logits, local);
    const bool whole = state->axis == SHEAF_SPLIT_AXIS_MIRRORED;
    if (!slice)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "member %d has no slice of the logits", member);
    if (sheaf_is_empty(slice) || (whole && member)) return SHEAF_STATUS_SUCCESS;
    const int64_t n = whole ? 0 : sheaf_split_state_intervals(state, member, l->pairs, MAX_PAIRS);
    if ((!whole && state->axis != SHEAF_SPLIT_AXIS_0) || n > MAX_PAIRS)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "the logits are not cut over the vocabulary");
    const enum sheaf_status status = select_row(l, of, slice, local);
    if (status) return status;
    if (n) name_candidates(l->part, l->pairs, n);
    sheaf_candidates_merge(l->mine, l->part);
    return status;
}

/* The next token's selection is submitted behind its graph, without a wait between them. */
static void follow(void *user, size_t local, sheaf_backend_t member_backend,
                   const struct sheaf_tensor *slice) {
    const struct sheaf__logits *l = user;
    (void)member_backend; /* the one that the selection was made for */
    if (local < l->n_best) sheaf__best_follow(l->best[local], slice);
}

static enum sheaf_status make_best(struct sheaf__logits *l, size_t n) {
    if (l->best) return SHEAF_STATUS_SUCCESS;
    l->best = calloc(n + 1, sizeof(struct sheaf__best *));
    l->n_best = l->best ? n : 0;
    return l->best ? SHEAF_STATUS_SUCCESS
                   : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for candidates");
}

static enum sheaf_status select_mine(struct sheaf__logits *l, const struct result *of) {
    sheaf_backend_dev_t dev = sheaf_backend_get_device(of->backend);
    const size_t n = is_meta(of) ? sheaf_backend_meta_dev_n_local(dev) : 1;
    sheaf_candidates_clear(l->mine);
    enum sheaf_status status = make_best(l, n);
    if (status) return status;
    if (!is_meta(of)) {
        status = select_row(l, of, of->logits, 0);
        if (!status) sheaf_candidates_merge(l->mine, l->part);
        return status;
    }
    l->followed = of->backend;
    sheaf_backend_meta_follow(of->backend, of->logits, follow, l);
    const struct sheaf_split_state *state = sheaf_backend_meta_get_state(of->logits);
    if (!state) return sheaf_set_error(SHEAF_STATUS_FAILED, "the logits have no split state");
    for (size_t i = 0; !status && i < n; i++)
        status = select_slice(l, of, state, i, (int)sheaf_backend_meta_dev_local_member(dev, i));
    return status;
}

enum sheaf_status sheaf__logits_select(struct sheaf__logits *l, sheaf_backend_t backend,
                                       const struct sheaf_tensor *logits, int64_t row,
                                       bool with_sum, bool *stop,
                                       const struct sheaf_candidates **out) {
    const struct result of = {backend, logits, row, with_sum};
    enum sheaf_status mine = select_mine(l, &of), status;
    *out = l->mine;
    if (sheaf_world_size() == 1) return mine;
    /* A rank that fails here sends an empty list with a mark, so that its peers need not wait. */
    if (mine) sheaf_candidates_clear(l->mine);
    sheaf_candidates_pack(l->mine, l->send);
    l->send[l->block - 1] = (uint8_t)((*stop ? 1 : 0) | (mine ? 2 : 0));
    status = sheaf_world_all_gather(l->send, l->block, l->recv, "candidates for the next token");
    if (status) return mine ? mine : status;
    sheaf_candidates_clear(l->all);
    for (int r = 0; r < sheaf_world_size(); r++) {
        const uint8_t *block = l->recv + (size_t)r * l->block;
        if (block[l->block - 1] & 2) return sheaf_world_agree(mine, "candidates");
        if (block[l->block - 1] & 1) *stop = true;
    }
    for (int r = 0; !status && r < sheaf_world_size(); r++)
        status =
            sheaf_candidates_merge_packed(l->all, l->recv + (size_t)r * l->block, l->block - 1);
    *out = l->all;
    return status;
}
