/* The public interface: opening, evaluation, the cache. Owns struct sheaf_model. The work is done
 * by the session and its evaluator. */
#include "model/model.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "sheaf/world.h"

static_assert((int)SHEAF_MODEL_MAX_SEQUENCES == (int)SHEAF__MAX_SEQUENCES, "a bit a sequence");

struct sheaf_model_params sheaf_model_default_params(void) {
    return (struct sheaf_model_params){.size = sizeof(struct sheaf_model_params),
                                       .kv_type = SHEAF_TYPE_F16};
}

/* ---- life ---- */

void sheaf_model_free(struct sheaf_model *model) {
    if (!model) return;
    sheaf__logits_free(model->logits);
    sheaf_tokenizer_free(model->tokenizer);
    sheaf__session_free(model->session);
    free(model);
}

enum sheaf_status sheaf_model_open(const struct sheaf_model_params *params,
                                   struct sheaf_model **out) {
    struct sheaf_model_params own = sheaf_model_default_params();
    *out = NULL;
    enum sheaf_status status = sheaf__sized_take(params, &own, sizeof own, "sheaf_model_params");
    if (!status && !own.path)
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "sheaf_model_params: path is NULL");
    struct sheaf_model *model = status ? NULL : calloc(1, sizeof *model);
    if (!status && !model)
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a model");
    status = sheaf_world_agree(status, "opening a model");
    if (!status) status = sheaf__session_new(&own, &model->session);
    if (status) {
        sheaf_model_free(model);
        return status;
    }
    model->kv_type = own.kv_type;
    *out = model;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- what it is ---- */

enum sheaf_status sheaf_model_get_info(const struct sheaf_model *model,
                                       struct sheaf_model_info *out) {
    const struct sheaf__session *s = model->session;
    const struct sheaf__hparams *hp = &s->model->hp;
    const struct sheaf_model_info info = {.size = sizeof info,
                                          .path = sheaf_gguf_path(s->model->gguf),
                                          .arch = hp->arch->name,
                                          .n_vocab = hp->n_vocab,
                                          .n_embd = hp->n_embd,
                                          .n_layer = hp->n_layer,
                                          .n_ctx_train = hp->n_ctx_train,
                                          .n_ctx = s->n_ctx,
                                          .n_batch = s->n_batch,
                                          .n_members = s->n_members,
                                          .min_chunked = s->min_chunked,
                                          .total_bytes = s->model->total_bytes,
                                          .weight_bytes = s->weight_bytes,
                                          .share_bytes = s->share_bytes,
                                          .bytes_read = s->model->bytes_read,
                                          .kv_type = model->kv_type,
                                          .bytes_sent = s->model->bytes_sent};
    return sheaf__sized_give(&info, sizeof info, out, "sheaf_model_info");
}

const struct sheaf_gguf *sheaf_model_gguf(const struct sheaf_model *model) {
    return model->session->model->gguf;
}

static bool is_member(const struct sheaf_model *model, int i) {
    return i >= 0 && i < model->session->n_members;
}

sheaf_backend_dev_t sheaf_model_member(const struct sheaf_model *model, int i) {
    return is_member(model, i) ? model->session->members[i] : NULL;
}

double sheaf_model_share(const struct sheaf_model *model, int i) {
    return is_member(model, i) ? model->session->shares[i] : 0;
}

const char *sheaf_model_device_name(sheaf_backend_dev_t dev) {
    static _Thread_local char name[96];
    sheaf_world_device_name(dev, name, sizeof name);
    return name;
}

sheaf_backend_t sheaf_model_backend(const struct sheaf_model *model) {
    return model->session->backend;
}

sheaf_backend_dev_t sheaf_model_meta(const struct sheaf_model *model) {
    return model->session->meta;
}

char *sheaf_model_print_split(const struct sheaf_model *model, char *buf, size_t n) {
    return sheaf__policy_print(model->session->policy, buf, n);
}

enum sheaf_status sheaf_model_token_bytes(const struct sheaf_model *model, int i, double n_past,
                                          double *bytes) {
    if (!is_member(model, i))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "the model has no member %d", i);
    return sheaf__session_token_bytes(model->session, i, model->kv_type, n_past, bytes);
}

/* ---- evaluation ---- */

enum sheaf_status sheaf_model_eval(struct sheaf_model *model,
                                   const struct sheaf_model_batch *batch) {
    struct sheaf_model_batch own = {.size = sizeof own};
    enum sheaf_status status = sheaf__sized_take(batch, &own, sizeof own, "sheaf_model_batch");
    if (!status && !own.token)
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "sheaf_model_batch: token is NULL");
    return status ? status : sheaf__evaluator_eval_batch(model->session->context, &own);
}

static enum sheaf_status check_sequence(int seq, int lowest) {
    if (seq >= lowest && seq < SHEAF__MAX_SEQUENCES) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID, "sequence %d is not one of 0..%d", seq,
                           SHEAF__MAX_SEQUENCES - 1);
}

enum sheaf_status sheaf_model_prompt(struct sheaf_model *model, int seq, const int32_t *tokens,
                                     int64_t n, sheaf_model_before_fn before, void *user) {
    const enum sheaf_status status = check_sequence(seq, 0);
    if (status) return status;
    return sheaf__evaluator_prompt(model->session->context, seq, tokens, n, before, user);
}

int64_t sheaf_model_n_rows(const struct sheaf_model *model) {
    const struct sheaf_tensor *logits = sheaf__evaluator_logits(model->session->context);
    return logits ? logits->ne[1] : 0;
}

enum sheaf_status sheaf_model_get_logits(struct sheaf_model *model, float *dst) {
    return sheaf__evaluator_get_logits(model->session->context, dst);
}

static enum sheaf_status make_scratch(struct sheaf_model *model, size_t k) {
    if (model->logits && model->n_candidates == k) return SHEAF_STATUS_SUCCESS;
    sheaf__logits_free(model->logits);
    model->n_candidates = k;
    enum sheaf_status status =
        sheaf__logits_new(model->session->model->hp.n_vocab, k, &model->logits);
    status = sheaf_world_agree(status, "preparing a selection of tokens");
    if (status) { /* on all ranks, or the next call would agree on some only */
        sheaf__logits_free(model->logits);
        model->logits = NULL;
    }
    return status;
}

enum sheaf_status sheaf_model_get_candidates(struct sheaf_model *model, int64_t row, size_t k,
                                             bool with_sum, bool *stop,
                                             const struct sheaf_candidates **out) {
    *out = NULL;
    if (k < 1 || row < 0 || row >= sheaf_model_n_rows(model))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "there is no row %" PRId64 " of logits to take %zu candidates from",
                               row, k);
    enum sheaf_status status = make_scratch(model, k);
    if (status) return status;
    return sheaf__logits_select(model->logits, model->session->backend,
                                sheaf__evaluator_logits(model->session->context), row, with_sum,
                                stop, out);
}

/* ---- embeddings ---- */

static enum sheaf__pooling choose_pooling(const struct sheaf_model *model,
                                          enum sheaf_model_pooling pooling) {
    const enum sheaf__pooling own = model->session->model->hp.pooling;
    switch (pooling) {
    case SHEAF_MODEL_POOLING_MEAN:
        return SHEAF__POOLING_MEAN;
    case SHEAF_MODEL_POOLING_CLS:
        return SHEAF__POOLING_CLS;
    case SHEAF_MODEL_POOLING_LAST:
        return SHEAF__POOLING_LAST;
    default:
        return own == SHEAF__POOLING_NONE ? SHEAF__POOLING_MEAN : own;
    }
}

enum sheaf_status sheaf_model_embed(struct sheaf_model *model, const int32_t *tokens, int64_t n,
                                    enum sheaf_model_pooling pooling, float *dst) {
    const int64_t n_embd = model->session->model->hp.n_embd;
    const enum sheaf_status status = sheaf__evaluator_embed(model->session->context, tokens, n,
                                                            choose_pooling(model, pooling), dst);
    double sum = 0;
    if (status) return status;
    for (int64_t i = 0; i < n_embd; i++) sum += (double)dst[i] * (double)dst[i];
    if (!isfinite(sum))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "the embedding has an infinity or NaN; the model's weights or its "
                               "activations are broken");
    for (int64_t i = 0; i < n_embd && sum > 0; i++) dst[i] = (float)((double)dst[i] / sqrt(sum));
    return SHEAF_STATUS_SUCCESS;
}

/* ---- the cache ---- */

static struct sheaf__cells *cells_of(const struct sheaf_model *model) {
    return sheaf__evaluator_cells(model->session->context);
}

static int32_t position(int64_t pos) {
    return pos < 0 || pos > INT32_MAX ? INT32_MAX : (int32_t)pos;
}

static enum sheaf_status check_range(int64_t from, int64_t to) {
    if (from >= 0 && (to == -1 || to >= from)) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "positions [%" PRId64 ", %" PRId64 ") are no range", from, to);
}

void sheaf_model_cache_clear(struct sheaf_model *model) { sheaf__cells_clear(cells_of(model)); }

/* A state has no parts: only a whole sequence can be forgotten, and none copied. */
static enum sheaf_status check_state(const struct sheaf_model *model, bool whole) {
    const struct sheaf__arch *arch = model->session->model->hp.arch;
    if (!arch->scans || whole) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "a model of architecture %s keeps a state instead of its tokens: a "
                           "sequence can be forgotten as a whole, but not in part, nor copied",
                           arch->name);
}

enum sheaf_status sheaf_model_cache_remove(struct sheaf_model *model, int seq, int64_t from,
                                           int64_t to) {
    enum sheaf_status status = check_sequence(seq, -1);
    if (!status) status = check_range(from, to);
    if (!status)
        status = check_state(model, from == 0 && (to == -1 || to >= cells_of(model)->next[0]));
    if (!status) sheaf__cells_remove(cells_of(model), seq, position(from), position(to));
    return status;
}

enum sheaf_status sheaf_model_cache_copy(struct sheaf_model *model, int seq, int to_seq,
                                         int64_t from, int64_t to) {
    enum sheaf_status status = check_sequence(seq, 0);
    if (!status) status = check_sequence(to_seq, 0);
    if (!status) status = check_range(from, to);
    if (!status) status = check_state(model, false);
    if (status) return status;
    return sheaf__cells_copy(cells_of(model), seq, to_seq, position(from), position(to));
}

int64_t sheaf_model_cache_end(const struct sheaf_model *model, int seq) {
    return seq < 0 || seq >= SHEAF__MAX_SEQUENCES ? -1 : cells_of(model)->next[seq];
}

int64_t sheaf_model_cache_room(const struct sheaf_model *model) {
    const struct sheaf__cells *cells = cells_of(model);
    return cells->n - cells->n_used;
}

/* ---- text ---- */

enum sheaf_status sheaf_model_tokenizer(struct sheaf_model *model,
                                        const struct sheaf_tokenizer **out) {
    const struct sheaf__weights *w = model->session->model;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    *out = NULL;
    if (!model->tokenizer) status = sheaf_tokenizer_new(w->gguf, &model->tokenizer);
    if (!status && sheaf_tokenizer_n_vocab(model->tokenizer) > w->hp.n_vocab)
        status = sheaf_set_error(
            SHEAF_STATUS_INVALID, "%s: the tokenizer has %d tokens, the embeddings only %" PRId64,
            sheaf_gguf_path(w->gguf), sheaf_tokenizer_n_vocab(model->tokenizer), w->hp.n_vocab);
    if (!status) *out = model->tokenizer;
    return status;
}
