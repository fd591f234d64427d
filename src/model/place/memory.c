/* Counts bytes by split states. Pure: nothing is allocated on a device. */
#include "model/place/memory.h"

#include <stdlib.h>

#include "sheaf/meta.h"

#include "model/arch/tag.h"

/* ---- caches ---- */

/* Bytes of a member's part of the states of one layer. */
static enum sheaf_status state_bytes(const struct sheaf__hparams *hp,
                                     const struct sheaf__policy *policy, int j, size_t *bytes) {
    const int64_t conv = (hp->n_taps - 1) * sheaf__hparams_channels(hp);
    struct sheaf_tensor t[2] = {
        {.type = SHEAF_TYPE_F32, .ne = {conv, 1, 1, 1}},
        {.type = SHEAF_TYPE_F32, .ne = {hp->d_state * hp->d_inner, 1, 1, 1}}};
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int i = 0; !status && i < 2; i++) {
        size_t part = 0;
        sheaf__tag_set(&t[i], i ? SHEAF__CACHE_STATE : SHEAF__CACHE_CONV, 0);
        status = sheaf__policy_tensor_bytes(policy, &t[i], j, &part);
        *bytes += part;
    }
    return status;
}

/* Bytes of a member's part of the K/V cache of one layer. */
static enum sheaf_status layer_bytes(const struct sheaf__hparams *hp,
                                     const struct sheaf__policy *policy, int j, int64_t n_ctx,
                                     enum sheaf_type kv, size_t *bytes) {
    *bytes = 0;
    if (hp->arch->encoder) return SHEAF_STATUS_SUCCESS;
    struct sheaf_tensor k = {.type = kv, .ne = {sheaf__hparams_cache_k(hp), n_ctx, 1, 1}};
    struct sheaf_tensor v = {.type = kv, .ne = {sheaf__hparams_cache_v(hp), n_ctx, 1, 1}};
    size_t k_bytes = 0, v_bytes = 0;
    sheaf__tag_set(&k, SHEAF__CACHE_K, 0);
    sheaf__tag_set(&v, SHEAF__CACHE_V, 0);
    enum sheaf_status status = sheaf__policy_tensor_bytes(policy, &k, j, &k_bytes);
    if (!status && v.ne[0]) status = sheaf__policy_tensor_bytes(policy, &v, j, &v_bytes);
    *bytes = k_bytes + v_bytes;
    return status;
}

enum sheaf_status sheaf__memory_cache(const struct sheaf__weights *model,
                                      const struct sheaf__policy *policy, int member, int64_t n_ctx,
                                      enum sheaf_type kv, double *tokens, double *states) {
    const struct sheaf__hparams *hp = &model->hp;
    const int64_t n = sheaf__hparams_n_recurrent(hp);
    size_t layer = 0, state = 0;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (n < hp->n_layer) status = layer_bytes(hp, policy, member, n_ctx, kv, &layer);
    if (!status && n) status = state_bytes(hp, policy, member, &state);
    *tokens = (double)layer * (double)(hp->n_layer - n);
    *states = (double)state * (double)n;
    return status;
}

/* ---- results ---- */

/* Values that a plan computes, by their numbers. */
struct value {
    int owner;    /* the value whose memory it lies in; itself unless it is a view */
    int last_use; /* the step that reads the owner last */
    bool computed;
};

struct count {
    int n_members, n_values, cap;
    struct value *values;
    double *live, *peak; /* [n_members] bytes; live NULL: uses are collected */
    double *sizes;       /* [n_values][n_members] */
    enum sheaf_status status;
};

double sheaf__memory_value(const struct sheaf_backend_meta_value *v, int member) {
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(v->state, v->tensor->ne, member, ne);
    if (ne[0] == 0) return 0;
    return (double)sheaf_row_size(v->tensor->type, ne[0]) * (double)(ne[1] * ne[2] * ne[3]);
}

static struct value *value_at(struct count *c, int number) {
    while (number >= c->cap) {
        const int cap = c->cap ? 2 * c->cap : 1024;
        struct value *grown = realloc(c->values, (size_t)cap * sizeof *grown);
        if (!grown) {
            c->status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to count results");
            return NULL;
        }
        for (int i = c->cap; i < cap; i++) grown[i] = (struct value){.owner = i, .last_use = -1};
        c->values = grown;
        c->cap = cap;
    }
    if (number >= c->n_values) c->n_values = number + 1;
    return &c->values[number];
}

/* Fits sheaf_backend_meta_step_fn: notes views and last uses. */
static bool note_uses(const struct sheaf_backend_meta_step *step, void *user) {
    struct count *c = user;
    const bool node = step->kind == SHEAF_SPLIT_STEP_NODE;
    struct value *out = value_at(c, step->out.number);
    if (!out) return false;
    const bool view =
        node && (sheaf_op_is_view(step->out.tensor->op) || step->out.tensor->view_src);
    out->computed = true;
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        if (step->in[i].number < 0) continue;
        struct value *in = value_at(c, step->in[i].number);
        if (!in) return false;
        if (view && i == 0) c->values[step->out.number].owner = in->owner;
        c->values[in->owner].last_use = step->index;
    }
    return true;
}

/* Fits sheaf_backend_meta_step_fn: follows what is alive. An op that writes rows may write over an
 * operand that dies with it. */
static bool follow(const struct sheaf_backend_meta_step *step, void *user) {
    struct count *c = user;
    const int number = step->out.number;
    const bool own = c->values[number].owner == number;
    const bool rows = step->kind == SHEAF_SPLIT_STEP_NODE &&
                      sheaf_op_get_cost(step->out.tensor->op) == SHEAF_OP_COST_ROWS;
    for (int j = 0; j < c->n_members; j++) {
        double dying = 0;
        const double size = own ? sheaf__memory_value(&step->out, j) : 0;
        c->sizes[(size_t)number * (size_t)c->n_members + (size_t)j] = size;
        for (int i = 0; i < SHEAF_MAX_SRC; i++) {
            if (step->in[i].number < 0) continue;
            const int owner = c->values[step->in[i].number].owner;
            double *held = &c->sizes[(size_t)owner * (size_t)c->n_members + (size_t)j];
            if (!c->values[owner].computed || c->values[owner].last_use != step->index) continue;
            dying += *held;
            *held = 0;
        }
        const double over = rows && dying >= size ? 0 : size;
        if (c->live[j] + over > c->peak[j]) c->peak[j] = c->live[j] + over;
        c->live[j] += size - dying;
    }
    return true;
}

enum sheaf_status sheaf__memory_compute(const struct sheaf_cgraph *graph,
                                        const struct sheaf__policy *policy, double *bytes) {
    struct count c = {.n_members = sheaf__policy_n_members(policy), .peak = bytes};
    const size_t n = (size_t)c.n_members;
    enum sheaf_status status = sheaf_backend_meta_describe_plan(
        graph, c.n_members, sheaf__policy_get_state, policy, note_uses, &c);
    if (!status) status = c.status;
    for (size_t j = 0; j < n; j++) bytes[j] = 0;
    c.live = calloc(n, sizeof *c.live);
    c.sizes = calloc(((size_t)c.n_values + 1) * n, sizeof *c.sizes);
    if (!status && (!c.live || !c.sizes))
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to count results");
    if (!status)
        status = sheaf_backend_meta_describe_plan(graph, c.n_members, sheaf__policy_get_state,
                                                  policy, follow, &c);
    free(c.values);
    free(c.live);
    free(c.sizes);
    return status;
}
