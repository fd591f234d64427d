/* Owns the scratch of a selection. Invariant: every row of the vocabulary is seen by exactly one
 * rank, so that the normaliser counts it once. */
#include "model/run/logits.h"

#include <stdlib.h>
#include <string.h>

#include "sheaf/backend.h"
#include "sheaf/meta.h"
#include "sheaf/world.h"

struct sheaf__logits {
    int64_t n_vocab;
    float *rows; /* [n_vocab] of a device whose memory is not host memory; in `pinned`, or malloc */
    sheaf_backend_buffer_t pinned; /* memory that the device copies to by itself */
    int64_t *pairs;                /* [2 * max_pairs] intervals of a member */
    struct sheaf_candidates *part, *mine, *all;
    size_t block;  /* bytes of a rank's message: packed candidates, then one byte: stop */
    uint8_t *send; /* [block] */
    uint8_t *recv; /* [ranks * block] */
};

enum { MAX_PAIRS = 4096 };

void sheaf__logits_free(struct sheaf__logits *l) {
    if (!l) return;
    sheaf_candidates_free(l->part);
    sheaf_candidates_free(l->mine);
    sheaf_candidates_free(l->all);
    if (!l->pinned) free(l->rows);
    sheaf_backend_buffer_free(l->pinned);
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

/* Memory for a row, of the kind that the device of the logits reads into fastest. */
static enum sheaf_status make_rows(struct sheaf__logits *l, const struct sheaf_tensor *t) {
    const size_t size = (size_t)l->n_vocab * sizeof *l->rows;
    sheaf_backend_dev_t dev =
        sheaf_backend_buft_get_device(sheaf_backend_buffer_get_type(t->buffer));
    sheaf_backend_buffer_type_t host = dev ? sheaf_backend_dev_host_buffer_type(dev) : NULL;
    if (host && !sheaf_backend_buft_alloc_buffer(host, size, &l->pinned)) {
        l->rows = sheaf_backend_buffer_get_base(l->pinned);
        return SHEAF_STATUS_SUCCESS;
    }
    l->pinned = NULL;
    l->rows = malloc(size);
    return l->rows ? SHEAF_STATUS_SUCCESS
                   : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a row of logits");
}

/* A row of a tensor that lies on one device, in host memory. */
static enum sheaf_status on_host(struct sheaf__logits *l, const struct sheaf_tensor *t, int64_t row,
                                 const float **rows) {
    const size_t size = (size_t)t->ne[0] * sizeof(float), offset = (size_t)row * t->nb[1];
    if (sheaf_backend_buffer_is_host(t->buffer)) {
        *rows = (const float *)(const void *)((const char *)t->data + offset);
        return SHEAF_STATUS_SUCCESS;
    }
    enum sheaf_status status = l->rows ? SHEAF_STATUS_SUCCESS : make_rows(l, t);
    *rows = l->rows;
    return status ? status : sheaf_backend_tensor_get(t, l->rows, offset, size);
}

/* The result that is selected from. */
struct result {
    const struct sheaf_tensor *logits;
    int64_t row;
    bool with_sum;
};

static enum sheaf_status select_slice(struct sheaf__logits *l, const struct result *of,
                                      const struct sheaf_split_state *state, size_t local,
                                      int member) {
    struct sheaf_tensor *slice = sheaf_backend_meta_get_slice(of->logits, local);
    const float *rows;
    if (!slice)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "member %d has no slice of the logits", member);
    if (sheaf_is_empty(slice)) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status status = on_host(l, slice, of->row, &rows);
    if (status) return status;
    if (state->axis == SHEAF_SPLIT_AXIS_MIRRORED)
        return member ? SHEAF_STATUS_SUCCESS
                      : sheaf_candidates_select(l->mine, rows, (size_t)l->n_vocab, 0, of->with_sum);
    int64_t n = sheaf_split_state_intervals(state, member, l->pairs, MAX_PAIRS), at = 0;
    if (state->axis != SHEAF_SPLIT_AXIS_0 || n > MAX_PAIRS)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "the logits are not cut over the vocabulary");
    for (int64_t i = 0; !status && i < n; i++) {
        int64_t first = l->pairs[2 * i], count = l->pairs[2 * i + 1];
        status = sheaf_candidates_select(l->part, rows + at, (size_t)count, (int32_t)first,
                                         of->with_sum);
        if (!status) sheaf_candidates_merge(l->mine, l->part);
        at += count;
    }
    return status;
}

static enum sheaf_status select_mine(struct sheaf__logits *l, const struct result *of) {
    const struct sheaf_tensor *logits = of->logits;
    sheaf_candidates_clear(l->mine);
    sheaf_backend_dev_t dev =
        sheaf_backend_buft_get_device(sheaf_backend_buffer_get_type(logits->buffer));
    if (!sheaf_backend_dev_is_meta(dev)) {
        const float *rows;
        enum sheaf_status status = on_host(l, logits, of->row, &rows);
        return status ? status
                      : sheaf_candidates_select(l->mine, rows, (size_t)l->n_vocab, 0, of->with_sum);
    }
    const struct sheaf_split_state *state = sheaf_backend_meta_get_state(logits);
    if (!state) return sheaf_set_error(SHEAF_STATUS_FAILED, "the logits have no split state");
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; !status && i < sheaf_backend_meta_dev_n_local(dev); i++)
        status = select_slice(l, of, state, i, (int)sheaf_backend_meta_dev_local_member(dev, i));
    return status;
}

enum sheaf_status sheaf__logits_select(struct sheaf__logits *l, const struct sheaf_tensor *logits,
                                       int64_t row, bool with_sum, bool *stop,
                                       const struct sheaf_candidates **out) {
    const struct result of = {logits, row, with_sum};
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
