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
    if (block <= 0 || hp->head_k % block || hp->head_v % block)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "a K/V cache of type %s needs heads of whole blocks of %" PRId64
                               "; this model's have %" PRId64 " and %" PRId64 ": use --kv-type f16",
                               sheaf_type_name(type), block, hp->head_k, hp->head_v);
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
    for (int64_t il = 0; il < hp->n_layer; il++) {
        cache->k[il] = sheaf_new_tensor_2d(cache->ctx, type, hp->n_head_kv * hp->head_k, n_ctx);
        cache->v[il] = sheaf_new_tensor_2d(cache->ctx, type, hp->n_head_kv * hp->head_v, n_ctx);
        sheaf_format_name(cache->k[il], "cache_k-%d", (int)il);
        sheaf_format_name(cache->v[il], "cache_v-%d", (int)il);
        if (cache->k[il]) sheaf__tag_set(cache->k[il], SHEAF__CACHE_K, il);
        if (cache->v[il]) sheaf__tag_set(cache->v[il], SHEAF__CACHE_V, il);
        if (!cache->k[il] || !cache->v[il]) status = SHEAF_STATUS_ALLOC_FAILED;
    }
    if (!status && buft)
        status = sheaf_backend_alloc_ctx_tensors_from_buft(cache->ctx, buft, &cache->buffer);
    if (!status && buft) status = sheaf_backend_buffer_clear(cache->buffer, 0);
    if (status)
        sheaf__kv_cache_free(cache);
    else
        *out = cache;
    return status;
}
