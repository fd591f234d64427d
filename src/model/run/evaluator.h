/* Evaluates tokens: builds and reuses graphs, keeps the K/V cache and what its cells hold.
 *
 * Works on any backend. On a meta device it is SPMD: every rank makes the same calls with the same
 * arguments. The logits stay where they were computed; a caller takes either the best candidates
 * (small messages) or all of them (a gather). */
#ifndef SHEAF_MODEL_EVALUATOR_H
#define SHEAF_MODEL_EVALUATOR_H

#include "sheaf/model.h"

#include "model/file/weights.h"
#include "model/run/cells.h"

struct sheaf__evaluator;

struct sheaf__evaluator_params {
    int64_t n_ctx;        /* tokens that the cache holds, >= 1 */
    int64_t n_batch;      /* tokens evaluated at once, >= 1 */
    enum sheaf_type type; /* of the K/V cache: F32, F16, Q8_0 */
    /* Evaluations of so many tokens, with the logits of the last alone, go as two chunks in one
     * graph (builder.h): the same bits as one after the other. 0: none */
    int64_t min_chunked;
    /* Masks of prompts are made by the device, of a number for each cell and token, if it has the
     * ops. For devices whose memory is not the host's: behind a long context a mask has millions of
     * elements. */
    bool device_masks;
};

/* The model must be loaded on a buffer type of the backend; both outlive the context. */
enum sheaf_status sheaf__evaluator_new(const struct sheaf__weights *model, sheaf_backend_t backend,
                                       const struct sheaf__evaluator_params *params,
                                       struct sheaf__evaluator **out);
void sheaf__evaluator_free(struct sheaf__evaluator *ctx); /* accepts NULL */
/* Forgets all tokens. */
void sheaf__evaluator_clear(struct sheaf__evaluator *ctx);
/* Tokens of sequence 0. */
int64_t sheaf__evaluator_n_past(const struct sheaf__evaluator *ctx);
/* Which positions of which sequences are held; cells may be removed and copied between
 * evaluations, on every rank alike. */
struct sheaf__cells *sheaf__evaluator_cells(struct sheaf__evaluator *ctx);

/* UNSUPPORTED if the model is an encoder, which has no logits. */
enum sheaf_status sheaf__evaluator_check_decoder(const struct sheaf__evaluator *ctx);
/* Evaluates a batch of at most n_batch tokens. INVALID if the cache is full, a token is not of the
 * vocabulary, or a position is not behind all that its sequence has. */
enum sheaf_status sheaf__evaluator_eval_batch(struct sheaf__evaluator *ctx,
                                              const struct sheaf_model_batch *batch);
/* n <= n_batch tokens behind sequence 0. all: logits of each, else of the last. */
enum sheaf_status sheaf__evaluator_eval(struct sheaf__evaluator *ctx, const int32_t *ids, int64_t n,
                                        bool all);
/* Any number of tokens behind a sequence, in batches; logits of the last. `before` (may be NULL) is
 * called before each batch, and ends the prompt by returning anything but success. */
enum sheaf_status sheaf__evaluator_prompt(struct sheaf__evaluator *ctx, int seq, const int32_t *ids,
                                          int64_t n, enum sheaf_status (*before)(void *user),
                                          void *user);
/* The embedding of a text of n tokens, of an encoder: dst [n_embd]. Independent of what was
 * evaluated before, and of the cache. UNSUPPORTED if the model is no encoder, INVALID if the text
 * is empty or longer than the model's context or n_batch. Collective on a meta device. */
enum sheaf_status sheaf__evaluator_embed(struct sheaf__evaluator *ctx, const int32_t *ids,
                                         int64_t n, enum sheaf__pooling pooling, float *dst);
/* Did the device make the masks of the last evaluation, of all its chunks? */
bool sheaf__evaluator_made_masks(const struct sheaf__evaluator *ctx);
/* The result of the last evaluation: [n_vocab, n_rows], F32; NULL before. A row is a token whose
 * logits were asked for, in the order of the batch. Valid until the next evaluation. */
const struct sheaf_tensor *sheaf__evaluator_logits(const struct sheaf__evaluator *ctx);
/* All of its rows into dst [n_rows * n_vocab]. Collective on a meta device. */
enum sheaf_status sheaf__evaluator_get_logits(struct sheaf__evaluator *ctx, float *dst);

#endif
