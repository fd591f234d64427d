/* Keys and values of the tokens seen so far: per layer two tensors [heads x size, n_ctx]; with
 * latent attention one, [n_lora_kv + n_rot, n_ctx], of which V is the first part. An encoder has
 * none. */
#ifndef SHEAF_MODEL_KV_CACHE_H
#define SHEAF_MODEL_KV_CACHE_H

#include "sheaf/backend.h"

#include "model/file/hparams.h"

struct sheaf__kv_cache {
    struct sheaf_context *ctx;
    struct sheaf_backend_buffer *buffer;
    int64_t n_ctx;
    struct sheaf_tensor **k, **v; /* [n_layer]: "cache_k-3"; v may be NULL */
    /* [n_layer], of layers with a state, F32: "cache_conv-3" [(n_taps - 1) x channels, 1] and
     * "cache_state-3" [d_state x d_inner, 1], of one sequence. */
    struct sheaf_tensor **conv, **state;
};

/* On buft, zeroed; buft NULL: shapes without memory. UNSUPPORTED if a head is not whole blocks of
 * `type`. */
enum sheaf_status sheaf__kv_cache_new(const struct sheaf__hparams *hp, int64_t n_ctx,
                                      enum sheaf_type type, sheaf_backend_buffer_type_t buft,
                                      struct sheaf__kv_cache **out);
/* Zeroes states, keys and values: a sequence begins. */
enum sheaf_status sheaf__kv_cache_restart(struct sheaf__kv_cache *cache);
void sheaf__kv_cache_free(struct sheaf__kv_cache *cache); /* accepts NULL */

#endif
