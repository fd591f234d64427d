/* Counts bytes by split states. Pure: nothing is allocated on a device. */
#include "model/place/memory.h"

#include <string.h>

#include "sheaf/meta.h"

#include "model/arch/tag.h"

/* ---- caches ---- */

/* Adds the members' parts of the states of one layer. */
static enum sheaf_status add_states(const struct sheaf__hparams *hp,
                                    const struct sheaf__policy *policy, size_t *bytes) {
    const int64_t conv = (hp->n_taps - 1) * sheaf__hparams_channels(hp);
    struct sheaf_tensor t[2] = {
        {.type = SHEAF_TYPE_F32, .ne = {conv, 1, 1, 1}},
        {.type = SHEAF_TYPE_F32, .ne = {hp->d_state * hp->d_inner, 1, 1, 1}}};
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int i = 0; !status && i < 2; i++) {
        sheaf__tag_set(&t[i], i ? SHEAF__CACHE_STATE : SHEAF__CACHE_CONV, 0);
        status = sheaf__policy_add_bytes(policy, &t[i], bytes);
    }
    return status;
}

/* Adds the members' parts of the K/V cache of one layer. */
static enum sheaf_status add_layer(const struct sheaf__hparams *hp,
                                   const struct sheaf__policy *policy, int64_t n_ctx,
                                   enum sheaf_type kv, size_t *bytes) {
    if (hp->arch->encoder) return SHEAF_STATUS_SUCCESS;
    struct sheaf_tensor k = {.type = kv, .ne = {sheaf__hparams_cache_k(hp), n_ctx, 1, 1}};
    struct sheaf_tensor v = {.type = kv, .ne = {sheaf__hparams_cache_v(hp), n_ctx, 1, 1}};
    sheaf__tag_set(&k, SHEAF__CACHE_K, 0);
    sheaf__tag_set(&v, SHEAF__CACHE_V, 0);
    enum sheaf_status status = sheaf__policy_add_bytes(policy, &k, bytes);
    if (!status) status = sheaf__policy_add_bytes(policy, &v, bytes);
    return status;
}

enum sheaf_status sheaf__memory_cache(const struct sheaf__weights *model,
                                      const struct sheaf__policy *policy, int64_t n_ctx,
                                      enum sheaf_type kv, size_t *tokens, size_t *states) {
    const struct sheaf__hparams *hp = &model->hp;
    const int64_t n = sheaf__hparams_n_recurrent(hp);
    const size_t members = (size_t)sheaf__policy_n_members(policy);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    memset(tokens, 0, members * sizeof *tokens);
    memset(states, 0, members * sizeof *states);
    if (n < hp->n_layer) status = add_layer(hp, policy, n_ctx, kv, tokens);
    if (!status && n) status = add_states(hp, policy, states);
    for (size_t j = 0; j < members; j++) {
        tokens[j] *= (size_t)(hp->n_layer - n);
        states[j] *= (size_t)n;
    }
    return status;
}

/* ---- values ---- */

double sheaf__memory_value(const struct sheaf_backend_meta_value *v, int member) {
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(v->state, v->tensor->ne, member, ne);
    if (ne[0] == 0) return 0;
    return (double)sheaf_row_size(v->tensor->type, ne[0]) * (double)(ne[1] * ne[2] * ne[3]);
}
