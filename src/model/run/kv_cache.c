/* Owns the caches. Rows beyond the last token stay zero or old; attention masks them, so they need
 * not be cleared again, only never hold NaN: hence zeroed once. */
#include "model/run/kv_cache.h"

#include <inttypes.h>
#include <stdlib.h>

#include "sheaf/alloc.h"

#include "model/arch/arch.h"
#include "model/arch/tag.h"

void sheaf__kv_cache_free(struct sheaf__kv_cache *cache) {
    if (!cache) return;
    sheaf_backend_buffer_free(cache->buffer);
    sheaf_free(cache->ctx);
    free(cache->k);
    free(cache->v);
    free(cache->conv);
    free(cache->state);
    free(cache);
}

static struct sheaf_tensor *add_state(struct sheaf__kv_cache *cache, int64_t n, int kind,
                                      const char *name, int64_t il) {
    struct sheaf_tensor *t = sheaf_new_tensor_2d(cache->ctx, SHEAF_TYPE_F32, n, 1);
    sheaf_format_name(t, "%s-%d", name, (int)il);
    if (t) sheaf__tag_set(t, kind, il);
    return t;
}

static enum sheaf_status add_states(struct sheaf__kv_cache *cache,
                                    const struct sheaf__hparams *hp) {
    const int64_t conv = (hp->n_taps - 1) * sheaf__hparams_channels(hp);
    for (int64_t il = 0; il < hp->n_layer; il++) {
        if (!sheaf__hparams_is_recurrent(hp, il)) continue;
        cache->conv[il] = add_state(cache, conv, SHEAF__CACHE_CONV, "cache_conv", il);
        cache->state[il] =
            add_state(cache, hp->d_state * hp->d_inner, SHEAF__CACHE_STATE, "cache_state", il);
        if (!cache->conv[il] || !cache->state[il]) return SHEAF_STATUS_ALLOC_FAILED;
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__kv_cache_restart(struct sheaf__kv_cache *cache) {
    return cache->buffer ? sheaf_backend_buffer_clear(cache->buffer, 0) : SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__kv_cache_new(const struct sheaf__hparams *hp, int64_t n_ctx,
                                      enum sheaf_type type, sheaf_backend_buffer_type_t buft,
                                      struct sheaf__kv_cache **out) {
    *out = NULL;
    int64_t block = sheaf_blck_size(type);
    const int64_t k = hp->n_lora_kv ? hp->n_lora_kv + hp->n_rot : hp->head_k;
    const int64_t v = hp->n_lora_kv ? hp->n_lora_kv : hp->head_v;
    const bool attends = !hp->arch->encoder && (!hp->arch->scans || hp->arch->attends);
    if (attends && (block <= 0 || k % block || v % block))
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "a K/V cache of type %s needs heads of whole blocks of %" PRId64
                               "; this model's have %" PRId64 " and %" PRId64 ": use --kv-type f16",
                               sheaf_type_name(type), block, k, v);
    size_t n = (size_t)hp->n_layer;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    struct sheaf__kv_cache *cache = calloc(1, sizeof *cache);
    if (cache) {
        cache->n_ctx = n_ctx;
        cache->k = calloc(n, sizeof(*cache->k));
        cache->v = calloc(n, sizeof(*cache->v));
        cache->conv = calloc(n, sizeof(*cache->conv));
        cache->state = calloc(n, sizeof(*cache->state));
        cache->ctx = sheaf_init((struct sheaf_init_params){
            .mem_size = (2 * n + 1) * sheaf_tensor_overhead(), .no_alloc = true});
    }
    if (!cache || !cache->k || !cache->v || !cache->conv || !cache->state || !cache->ctx) {
        sheaf__kv_cache_free(cache);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to describe the K/V cache");
    }
    for (int64_t il = 0; il < hp->n_layer && attends; il++) {
        if (sheaf__hparams_is_recurrent(hp, il)) continue;
        const int64_t v_row = sheaf__hparams_cache_v(hp);
        cache->k[il] = sheaf_new_tensor_2d(cache->ctx, type, sheaf__hparams_cache_k(hp), n_ctx);
        if (v_row) cache->v[il] = sheaf_new_tensor_2d(cache->ctx, type, v_row, n_ctx);
        sheaf_format_name(cache->k[il], "cache_k-%d", (int)il);
        sheaf_format_name(cache->v[il], "cache_v-%d", (int)il);
        if (cache->k[il]) sheaf__tag_set(cache->k[il], SHEAF__CACHE_K, il);
        if (cache->v[il]) sheaf__tag_set(cache->v[il], SHEAF__CACHE_V, il);
        if (!cache->k[il] || (v_row && !cache->v[il])) status = SHEAF_STATUS_ALLOC_FAILED;
    }
    if (!status && hp->arch->scans) status = add_states(cache, hp);
    const bool allocate = buft && !hp->arch->encoder;
    if (!status && allocate)
        status = sheaf_backend_alloc_ctx_tensors_from_buft(cache->ctx, buft, &cache->buffer);
    if (!status && allocate) status = sheaf_backend_buffer_clear(cache->buffer, 0);
    if (status)
        sheaf__kv_cache_free(cache);
    else
        *out = cache;
    return status;
}
