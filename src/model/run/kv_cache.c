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
    free(cache);
}

enum sheaf_status sheaf__kv_cache_new(const struct sheaf__hparams *hp, int64_t n_ctx,
                                      enum sheaf_type type, sheaf_backend_buffer_type_t buft,
                                      struct sheaf__kv_cache **out) {
    *out = NULL;
    int64_t block = sheaf_blck_size(type);
    const int64_t k = hp->n_lora_kv ? hp->n_lora_kv + hp->n_rot : hp->head_k;
    const int64_t v = hp->n_lora_kv ? hp->n_lora_kv : hp->head_v;
    if (!hp->arch->encoder && (block <= 0 || k % block || v % block))
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
        cache->ctx = sheaf_init((struct sheaf_init_params){
            .mem_size = (2 * n + 1) * sheaf_tensor_overhead(), .no_alloc = true});
    }
    if (!cache || !cache->k || !cache->v || !cache->ctx) {
        sheaf__kv_cache_free(cache);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to describe the K/V cache");
    }
    for (int64_t il = 0; il < hp->n_layer && !hp->arch->encoder; il++) {
        const int64_t v_row = sheaf__hparams_cache_v(hp);
        cache->k[il] = sheaf_new_tensor_2d(cache->ctx, type, sheaf__hparams_cache_k(hp), n_ctx);
        if (v_row) cache->v[il] = sheaf_new_tensor_2d(cache->ctx, type, v_row, n_ctx);
        sheaf_format_name(cache->k[il], "cache_k-%d", (int)il);
        sheaf_format_name(cache->v[il], "cache_v-%d", (int)il);
        if (cache->k[il]) sheaf__tag_set(cache->k[il], SHEAF__CACHE_K, il);
        if (cache->v[il]) sheaf__tag_set(cache->v[il], SHEAF__CACHE_V, il);
        if (!cache->k[il] || (v_row && !cache->v[il])) status = SHEAF_STATUS_ALLOC_FAILED;
    }
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
