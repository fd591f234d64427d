/* Computes the cut of every tensor of a model. Invariant: cuts of dimensions that meet in a product
 * (query heads and attn_output, n_ff of gate, up and down) come from the same counts. */
#include "model/place/policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/settings.h"
#include "base/text.h"
#include "model/arch/tag.h"

/* How the matrices of experts are cut: see sheaf__policy_cut_experts. */
enum experts { EXPERTS_AUTO, EXPERTS_COLUMNS, EXPERTS_ROWS, EXPERTS_WHOLE, EXPERTS_COUNT };

struct sheaf__policy {
    const struct sheaf__weights *model;
    enum experts experts;
    bool whole_sums; /* SHEAF_SPLIT_SUMS */
    int n;
    double *shares;
    int64_t *q_first, *q_count;         /* query heads */
    int64_t *kv_first, *kv_count;       /* key/value heads; may overlap */
    int64_t *ssm_first, *ssm_count;     /* heads of layers with a state */
    int64_t *group_first, *group_count; /* their groups; may overlap */
    int64_t *numbers;                   /* the block that the eight live in */
};

/* ---- states ---- */

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a split state");
}

void sheaf__segment_fill(struct sheaf_split_segment *s, int n_members, int64_t units, int64_t inner,
                         const int64_t *first, const int64_t *count) {
    s->outer = 1;
    s->inner = inner;
    s->units = units;
    memcpy(s->first, first, (size_t)n_members * sizeof *first);
    memcpy(s->count, count, (size_t)n_members * sizeof *count);
}

/* Elements of a unit so that whole units are whole blocks: `inner` if it is, otherwise the greatest
 * multiple that all boundaries share; 0 if that is not whole blocks either. */
static int64_t unit_of_blocks(const struct sheaf__policy *p, const int64_t *first,
                              const int64_t *count, int64_t units, int64_t inner, int64_t block) {
    if (inner % block == 0) return inner;
    int64_t step = units;
    for (int j = 0; j < p->n; j++) step = sheaf__gcd(sheaf__gcd(step, first[j]), count[j]);
    return step * inner % block == 0 ? step * inner : 0;
}

/* One segment of `units` units of `inner` elements, which members own as first and count say; NULL
 * state and success if blocks forbid it. */
static enum sheaf_status cut_ranges(const struct sheaf__policy *p, enum sheaf_split_axis axis,
                                    const int64_t *first, const int64_t *count, int64_t units,
                                    int64_t inner, int64_t block, struct sheaf_split_state **out) {
    int64_t unit = unit_of_blocks(p, first, count, units, inner, block);
    *out = NULL;
    if (unit == 0) return SHEAF_STATUS_SUCCESS;
    struct sheaf_split_state *state = sheaf_split_state_new(axis, p->n, 1);
    if (!state) return no_memory();
    int64_t k = unit / inner;
    sheaf__segment_fill(&state->segments[0], p->n, units / k, unit, first, count);
    for (int j = 0; j < p->n; j++) {
        state->segments[0].first[j] /= k;
        state->segments[0].count[j] /= k;
    }
    *out = state;
    return SHEAF_STATUS_SUCCESS;
}

/* One segment of heads, `inner` elements each; NULL state and success if blocks forbid it. */
static enum sheaf_status cut_heads(const struct sheaf__policy *p, enum sheaf_split_axis axis,
                                   bool kv, int64_t inner, int64_t block,
                                   struct sheaf_split_state **out) {
    const struct sheaf__hparams *hp = &p->model->hp;
    const int64_t *first = kv ? p->kv_first : p->q_first, *count = kv ? p->kv_count : p->q_count;
    return cut_ranges(p, axis, first, count, kv ? hp->n_head_kv : hp->n_head, inner, block, out);
}

/* n elements in units of `inner`, by the shares. */
static enum sheaf_status cut_units(const struct sheaf__policy *p, enum sheaf_split_axis axis,
                                   int64_t n, int64_t inner, struct sheaf_split_state **out) {
    int64_t *counts = calloc((size_t)p->n, sizeof *counts);
    if (counts) {
        sheaf__split_units(n / inner, p->shares, p->n, counts);
        *out = sheaf_split_state_cut(axis, p->n, counts, inner);
    }
    free(counts);
    return *out ? SHEAF_STATUS_SUCCESS : no_memory();
}

/* Two segments of n elements each, cut alike. */
static enum sheaf_status cut_twice(const struct sheaf__policy *p, enum sheaf_split_axis axis,
                                   int64_t n, int64_t inner, struct sheaf_split_state **out) {
    int64_t *counts = calloc(2 * (size_t)p->n, sizeof *counts);
    *out = counts ? sheaf_split_state_new(axis, p->n, 2) : NULL;
    if (*out) {
        int64_t *first = counts + p->n;
        sheaf__split_units(n / inner, p->shares, p->n, counts);
        for (int j = 1; j < p->n; j++) first[j] = first[j - 1] + counts[j - 1];
        for (int i = 0; i < 2; i++)
            sheaf__segment_fill(&(*out)->segments[i], p->n, n / inner, inner, first, counts);
    }
    free(counts);
    return *out ? SHEAF_STATUS_SUCCESS : no_memory();
}

static enum sheaf_status cut_qkv(const struct sheaf__policy *p, enum sheaf_split_axis axis,
                                 struct sheaf_split_state **out) {
    const struct sheaf__hparams *hp = &p->model->hp;
    *out = sheaf_split_state_new(axis, p->n, 3);
    if (!*out) return no_memory();
    struct sheaf_split_segment *s = (*out)->segments;
    sheaf__segment_fill(&s[0], p->n, hp->n_head, hp->head_k, p->q_first, p->q_count);
    sheaf__segment_fill(&s[1], p->n, hp->n_head_kv, hp->head_k, p->kv_first, p->kv_count);
    sheaf__segment_fill(&s[2], p->n, hp->n_head_kv, hp->head_v, p->kv_first, p->kv_count);
    return SHEAF_STATUS_SUCCESS;
}

/* The largest unit, up to 64, that divides n and still leaves every member some. Vector kernels
 * like whole registers; exactness of the shares matters more where there is little. */
static int64_t soft_unit(int64_t n, int64_t block, int n_members) {
    int64_t unit = block;
    while (unit < 64 && n % (2 * unit) == 0 && n / (2 * unit) >= 16 * n_members) unit *= 2;
    return unit;
}

static int64_t block_of(const struct sheaf_tensor *t) { return t ? sheaf_blck_size(t->type) : 1; }

/* Of n rows of a matrix. With whole sums a slice has the rows in groups as the whole matrix has. */
static int64_t row_unit(const struct sheaf__policy *p, int64_t n) {
    return soft_unit(n, p->whole_sums ? sheaf__row_group(n) : 1, p->n);
}

/* Of n results that the matrix `down` adds up: whole blocks of it where it is cut on axis 0. */
static int64_t inner_unit(const struct sheaf__policy *p, int64_t n,
                          const struct sheaf_tensor *down) {
    return p->whole_sums ? row_unit(p, n) : soft_unit(n, block_of(down), p->n);
}

/* Of n_ff of layer il; of that of the experts that every token uses, likewise. */
static int64_t ffn_unit(const struct sheaf__policy *p, int64_t il) {
    return inner_unit(p, p->model->hp.n_ff, p->model->layers[il].w[SHEAF__W_DOWN]);
}

static int64_t shared_unit(const struct sheaf__policy *p, int64_t il) {
    return inner_unit(p, p->model->hp.n_ff_shared, p->model->layers[il].w[SHEAF__W_DOWN_SHARED]);
}

/* ---- layers with a state ---- */

/* Segments x, B and C, each element `wide` times. */
static void fill_channels(const struct sheaf__policy *p, struct sheaf_split_segment *s,
                          int64_t wide) {
    const struct sheaf__hparams *hp = &p->model->hp;
    sheaf__segment_fill(s, p->n, hp->n_ssm_head, hp->d_inner / hp->n_ssm_head * wide, p->ssm_first,
                        p->ssm_count);
    for (int i = 1; i <= 2; i++)
        sheaf__segment_fill(s + i, p->n, hp->n_ssm_group, hp->d_state * wide, p->group_first,
                            p->group_count);
}

static enum sheaf_status cut_channels(const struct sheaf__policy *p, enum sheaf_split_axis axis,
                                      int64_t wide, struct sheaf_split_state **out) {
    *out = sheaf_split_state_new(axis, p->n, 3);
    if (!*out) return no_memory();
    fill_channels(p, (*out)->segments, wide);
    return SHEAF_STATUS_SUCCESS;
}

/* Rows z, x, B, C, dt. */
static enum sheaf_status cut_ssm_in(const struct sheaf__policy *p, enum sheaf_split_axis axis,
                                    struct sheaf_split_state **out) {
    const struct sheaf__hparams *hp = &p->model->hp;
    *out = sheaf_split_state_new(axis, p->n, 5);
    if (!*out) return no_memory();
    struct sheaf_split_segment *s = (*out)->segments;
    sheaf__segment_fill(&s[0], p->n, hp->n_ssm_head, hp->d_inner / hp->n_ssm_head, p->ssm_first,
                        p->ssm_count);
    fill_channels(p, &s[1], 1);
    sheaf__segment_fill(&s[4], p->n, hp->n_ssm_head, 1, p->ssm_first, p->ssm_count);
    return SHEAF_STATUS_SUCCESS;
}

/* Heads of `inner` elements each; NULL state and success if blocks forbid it. */
static enum sheaf_status cut_ssm_heads(const struct sheaf__policy *p, enum sheaf_split_axis axis,
                                       int64_t inner, int64_t block,
                                       struct sheaf_split_state **out) {
    const int64_t units = p->model->hp.n_ssm_head;
    return cut_ranges(p, axis, p->ssm_first, p->ssm_count, units, inner, block, out);
}

/* A norm's weight [elements of a group, groups]: whole groups, or heads of the only group. */
static enum sheaf_status cut_ssm_groups(const struct sheaf__policy *p, int axis,
                                        struct sheaf_split_state **out) {
    const struct sheaf__hparams *hp = &p->model->hp;
    const int64_t each = hp->n_ssm_head / hp->n_ssm_group;
    if (hp->n_ssm_group == 1 && axis == 0)
        return cut_ssm_heads(p, SHEAF_SPLIT_AXIS_0, hp->d_inner / hp->n_ssm_head, 1, out);
    for (int j = 0; j < p->n; j++)
        if (p->ssm_first[j] % each || p->ssm_count[j] % each) return SHEAF_STATUS_SUCCESS;
    if (hp->n_ssm_group == 1 || axis == 0) return SHEAF_STATUS_SUCCESS;
    return cut_ranges(p, SHEAF_SPLIT_AXIS_1, p->group_first, p->group_count, hp->n_ssm_group, 1, 1,
                      out);
}

/* ---- experts ---- */

/* Elements of n_ff of an expert that stay together; 0 if its blocks do not divide it. */
static int64_t expert_unit(const struct sheaf__policy *p, enum experts how, int64_t il) {
    const struct sheaf_tensor *down = p->model->layers[il].w[SHEAF__W_DOWN_EXPERTS];
    const int64_t n = p->model->hp.n_ff_expert;
    if (how != EXPERTS_COLUMNS) return row_unit(p, n);
    return n % block_of(down) ? 0 : soft_unit(n, block_of(down), p->n);
}

/* Of layer il. Columns keep all members busy with every token; where their blocks do not suffice
 * for all members, whole experts; where there are too few of those, rows. Columns add what members
 * have, and whole experts would have the results of all of a token's added. */
static enum experts experts_of(const struct sheaf__policy *p, int64_t il) {
    const struct sheaf__hparams *hp = &p->model->hp;
    const int64_t unit = expert_unit(p, EXPERTS_COLUMNS, il);
    int64_t wanted = 0;
    if (p->experts != EXPERTS_AUTO) return p->experts;
    if (p->whole_sums) return EXPERTS_ROWS;
    for (int j = 0; j < p->n; j++) wanted += p->shares[j] > 0;
    if (unit && hp->n_ff_expert / unit >= wanted) return EXPERTS_COLUMNS;
    return hp->n_expert >= wanted ? EXPERTS_WHOLE : EXPERTS_ROWS;
}

/* The dimension of a weight that means `dim`; -1: none. */
static int axis_of(enum sheaf__weight w, enum sheaf__dim dim) {
    int axis = SHEAF__MAX_WEIGHT_DIMS - 1;
    while (axis >= 0 && sheaf__weight_infos[w].dims[axis] != dim) axis--;
    return axis;
}

/* The cut of a weight of experts, [k, m, n_expert] or a bias [m, n_expert]. NULL state and success:
 * leave it whole, as the bias on the sum of columns. */
static enum sheaf_status cut_experts(const struct sheaf__policy *p, const struct sheaf_tensor *t,
                                     enum sheaf__weight w, int64_t il,
                                     struct sheaf_split_state **out) {
    const struct sheaf__hparams *hp = &p->model->hp;
    const enum experts how = experts_of(p, il);
    const int experts = axis_of(w, SHEAF__DIM_EXPERT), ff = axis_of(w, SHEAF__DIM_FF_EXPERT);
    if (how == EXPERTS_WHOLE)
        return cut_units(p, (enum sheaf_split_axis)experts, hp->n_expert, 1, out);
    if (how == EXPERTS_ROWS && w == SHEAF__W_DOWN_EXPERTS)
        return cut_units(p, SHEAF_SPLIT_AXIS_1, t->ne[1], row_unit(p, t->ne[1]), out);
    const int64_t unit = expert_unit(p, how, il);
    if (!unit || ff < 0) return SHEAF_STATUS_SUCCESS;
    return cut_units(p, (enum sheaf_split_axis)ff, hp->n_ff_expert, unit, out);
}

enum sheaf_status sheaf__policy_cut_experts(struct sheaf__policy *policy, const char *how) {
    static const char *const names[EXPERTS_COUNT] = {
        [EXPERTS_AUTO] = "auto",
        [EXPERTS_COLUMNS] = "columns",
        [EXPERTS_ROWS] = "rows",
        [EXPERTS_WHOLE] = "whole",
    };
    for (int i = 0; i < EXPERTS_COUNT; i++) {
        if (strcmp(how, names[i]) != 0) continue;
        if (i == EXPERTS_COLUMNS && policy->whole_sums)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "--experts columns makes members add parts of sums, which "
                                   "--split-sums whole (SHEAF_SPLIT_SUMS) forbids: take rows or "
                                   "whole");
        policy->experts = (enum experts)i;
        return SHEAF_STATUS_SUCCESS;
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "--experts is auto, columns, rows or whole, not '%.60s'", how);
}

/* ---- weights and caches ---- */

/* Tries to cut dimension `axis`, which means `dim`. NULL state and success: leave it whole. */
static enum sheaf_status cut_dim(const struct sheaf__policy *p, const struct sheaf_tensor *t,
                                 int axis, enum sheaf__dim dim, int64_t il,
                                 struct sheaf_split_state **out) {
    const struct sheaf__hparams *hp = &p->model->hp;
    enum sheaf_split_axis a = (enum sheaf_split_axis)axis;
    int64_t block = axis == 0 ? sheaf_blck_size(t->type) : 1;
    *out = NULL;
    switch (dim) {
    case SHEAF__DIM_Q:
        return cut_heads(p, a, false, hp->head_k, block, out);
    case SHEAF__DIM_O:
        return cut_heads(p, a, false, hp->head_v, block, out);
    case SHEAF__DIM_K:
        return cut_heads(p, a, true, hp->head_k, block, out);
    case SHEAF__DIM_V:
        return cut_heads(p, a, true, hp->head_v, block, out);
    case SHEAF__DIM_QKV:
        return cut_qkv(p, a, out);
    case SHEAF__DIM_HEADS:
        return cut_heads(p, a, false, 1, block, out);
    case SHEAF__DIM_CHANNELS:
        return cut_channels(p, a, 1, out);
    case SHEAF__DIM_SSM_IN:
        return cut_ssm_in(p, a, out);
    case SHEAF__DIM_SSM_HEADS:
        return cut_ssm_heads(p, a, 1, block, out);
    case SHEAF__DIM_INNER:
        return cut_ssm_heads(p, a, hp->d_inner / hp->n_ssm_head, block, out);
    case SHEAF__DIM_SSM_GROUP:
    case SHEAF__DIM_SSM_GROUPS:
        return cut_ssm_groups(p, axis, out);
    case SHEAF__DIM_FF:
        return cut_units(p, a, hp->n_ff, ffn_unit(p, il), out);
    case SHEAF__DIM_GATE_UP:
        return cut_twice(p, a, hp->n_ff, ffn_unit(p, il), out);
    case SHEAF__DIM_FF_SHARED:
        return cut_units(p, a, hp->n_ff_shared, shared_unit(p, il), out);
    case SHEAF__DIM_VOCAB:
        return cut_units(p, a, hp->n_vocab, row_unit(p, hp->n_vocab), out);
    default:
        return SHEAF_STATUS_SUCCESS;
    }
}

static enum sheaf_status state_of_weight(const struct sheaf__policy *p,
                                         const struct sheaf_tensor *t, enum sheaf__weight w,
                                         int64_t il, struct sheaf_split_state **out) {
    const struct sheaf__weight_info *info = &sheaf__weight_infos[w];
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    /* a product that adds up heads or n_ff */
    const bool rows = p->whole_sums && info->dims[1] == SHEAF__DIM_EMBD;
    if (sheaf__weight_is_of_experts(w)) status = cut_experts(p, t, w, il, out);
    for (int axis = 0; axis < SHEAF__MAX_WEIGHT_DIMS && !rows && !*out && !status; axis++)
        status = cut_dim(p, t, axis, info->dims[axis], il, out);
    if (status) return status;
    /* with whole sums, or where blocks straddle heads: the planner gathers what the rows read */
    if (!*out && (rows || info->dims[0] == SHEAF__DIM_O))
        return cut_units(p, SHEAF_SPLIT_AXIS_1, t->ne[1], row_unit(p, t->ne[1]), out);
    if (!*out) *out = sheaf_split_state_mirrored(p->n);
    return *out ? SHEAF_STATUS_SUCCESS : no_memory();
}

enum sheaf_status sheaf__policy_get_state(const struct sheaf_tensor *tensor, const void *user,
                                          struct sheaf_split_state **out) {
    const struct sheaf__policy *p = user;
    int64_t il;
    const int kind = sheaf__tag_get(tensor, &il);
    *out = NULL;
    if (kind == SHEAF__NO_TAG || il >= p->model->hp.n_layer)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "the split policy does not know the tensor '%s'", tensor->name);
    if (kind < SHEAF__W_COUNT) return state_of_weight(p, tensor, (enum sheaf__weight)kind, il, out);
    if (kind == SHEAF__CACHE_CONV)
        return cut_channels(p, SHEAF_SPLIT_AXIS_0, p->model->hp.n_taps - 1, out);
    if (kind == SHEAF__CACHE_STATE)
        return cut_ssm_heads(
            p, SHEAF_SPLIT_AXIS_0,
            p->model->hp.d_state * (p->model->hp.d_inner / p->model->hp.n_ssm_head), 1, out);
    const enum sheaf__dim dim = kind == SHEAF__CACHE_K ? SHEAF__DIM_K : SHEAF__DIM_V;
    if (p->model->hp.n_lora_kv) { /* all heads read the same */
        *out = sheaf_split_state_mirrored(p->n);
        return *out ? SHEAF_STATUS_SUCCESS : no_memory();
    }
    enum sheaf_status status = cut_dim(p, tensor, 0, dim, 0, out);
    if (!status && !*out)
        status = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                 "%s: blocks of %s straddle heads: use --kv-type f16", tensor->name,
                                 sheaf_type_name(tensor->type));
    return status;
}

static size_t part_bytes(const struct sheaf_split_state *state, const struct sheaf_tensor *t,
                         int member) {
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(state, t->ne, member, ne);
    return sheaf_row_size(t->type, ne[0]) * (size_t)(ne[1] * ne[2] * ne[3]);
}

enum sheaf_status sheaf__policy_tensor_bytes(const struct sheaf__policy *policy,
                                             const struct sheaf_tensor *tensor, int member,
                                             size_t *bytes) {
    struct sheaf_split_state *state = NULL;
    enum sheaf_status status = sheaf__policy_get_state(tensor, policy, &state);
    if (status) return status;
    *bytes = part_bytes(state, tensor, member);
    sheaf_split_state_free(state);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__policy_add_bytes(const struct sheaf__policy *policy,
                                          const struct sheaf_tensor *tensor, size_t *bytes) {
    struct sheaf_split_state *state = NULL;
    enum sheaf_status status = sheaf__policy_get_state(tensor, policy, &state);
    if (status) return status;
    for (int j = 0; j < policy->n; j++) bytes[j] += part_bytes(state, tensor, j);
    sheaf_split_state_free(state);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__policy_weight_bytes(const struct sheaf__policy *policy, size_t *bytes) {
    const struct sheaf_context *ctx = policy->model->ctx;
    memset(bytes, 0, (size_t)policy->n * sizeof *bytes);
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(ctx); t;
         t = sheaf_get_next_tensor(ctx, t)) {
        enum sheaf_status status = sheaf__policy_add_bytes(policy, t, bytes);
        if (status) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- life ---- */

/* Query heads that stay together: whole blocks of every output projection that is cut by heads. 0:
 * members have whole groups, because all heads read one latent cache, or because a norm over all
 * K/V heads is a sum, which K/V heads on two members would enter twice. */
static int64_t unit_of_heads(const struct sheaf__weights *model, bool whole_sums) {
    const struct sheaf__hparams *hp = &model->hp;
    int64_t unit = 1;
    if (hp->n_lora_kv) return 0;
    for (int64_t il = 0; il < hp->n_layer; il++) {
        struct sheaf_tensor *const *w = model->layers[il].w;
        if (w[SHEAF__W_K_NORM_WHOLE]) return 0;
        if (!w[SHEAF__W_O] || hp->head_v < 1 || whole_sums) continue;
        const int64_t block = block_of(w[SHEAF__W_O]), own = block / sheaf__gcd(block, hp->head_v);
        unit *= own / sheaf__gcd(unit, own);
    }
    return unit;
}

static enum sheaf_status divide_heads(struct sheaf__policy *p) {
    const struct sheaf__hparams *hp = &p->model->hp;
    const int64_t g = hp->n_head_kv, r = hp->n_head / g,
                  unit = unit_of_heads(p->model, p->whole_sums);
    return sheaf__split_heads_in_runs(g, r, unit ? unit : r, p->shares, p->n, p->q_first,
                                      p->q_count, p->kv_first, p->kv_count);
}

void sheaf__policy_free(struct sheaf__policy *policy) {
    if (!policy) return;
    free(policy->shares);
    free(policy->numbers);
    free(policy);
}

int sheaf__policy_n_members(const struct sheaf__policy *policy) { return policy->n; }

enum sheaf_status sheaf__policy_new(const struct sheaf__weights *model, const double *shares,
                                    int n_members, struct sheaf__policy **out) {
    *out = NULL;
    for (int j = 0; j < n_members; j++) {
        if (!(shares[j] >= 0 && shares[j] <= 1e12))
            return sheaf_set_error(
                SHEAF_STATUS_INVALID,
                "the share of member %d is %g; shares are numbers from 0 to 1e12", j, shares[j]);
    }
    if (n_members < 1 || sheaf__sum_of_shares(shares, n_members) <= 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "a split needs a member with a share above 0");
    struct sheaf__policy *p = calloc(1, sizeof *p);
    size_t n = (size_t)n_members;
    if (p) {
        p->model = model;
        p->n = n_members;
        p->shares = calloc(n, sizeof *p->shares);
        p->numbers = calloc(8 * n, sizeof *p->numbers);
    }
    if (!p || !p->shares || !p->numbers) {
        sheaf__policy_free(p);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the split policy");
    }
    memcpy(p->shares, shares, n * sizeof *shares);
    p->q_first = p->numbers;
    p->q_count = p->numbers + n;
    p->kv_first = p->numbers + 2 * n;
    p->kv_count = p->numbers + 3 * n;
    p->ssm_first = p->numbers + 4 * n;
    p->ssm_count = p->numbers + 5 * n;
    p->group_first = p->numbers + 6 * n;
    p->group_count = p->numbers + 7 * n;
    p->whole_sums = sheaf__whole_sums();
    enum sheaf_status status = divide_heads(p);
    if (!status && model->hp.n_ssm_head)
        status = sheaf__split_heads(model->hp.n_ssm_group,
                                    model->hp.n_ssm_head / model->hp.n_ssm_group, p->shares, p->n,
                                    p->ssm_first, p->ssm_count, p->group_first, p->group_count);
    if (status)
        sheaf__policy_free(p);
    else
        *out = p;
    return status;
}

static void put_counts(struct sheaf__text *t, const char *what, const int64_t *counts,
                       int n_members) {
    for (int j = 0, alike = 1; j < n_members; j += alike) {
        for (alike = 1; j + alike < n_members && counts[j + alike] == counts[j];) alike++;
        sheaf__put(t, "%s%" PRId64, j ? "," : what, counts[j]);
        alike = sheaf__put_alike(t, alike);
    }
}

/* A dimension and the unit that it is divided in. */
struct printed {
    const char *what;
    int64_t n, unit;
};

/* Of layer 0. */
static struct printed print_ffn(const struct sheaf__policy *p) {
    const struct sheaf__hparams *hp = &p->model->hp;
    if (!hp->n_expert) return (struct printed){", ffn ", hp->n_ff, ffn_unit(p, 0)};
    const enum experts how = experts_of(p, 0);
    if (how == EXPERTS_WHOLE) return (struct printed){", experts ", hp->n_expert, 1};
    const int64_t unit = expert_unit(p, how, 0);
    return (struct printed){", ffn of experts ", hp->n_ff_expert, unit ? unit : 1};
}

char *sheaf__policy_print(const struct sheaf__policy *policy, char *buf, size_t n) {
    int64_t *counts = calloc((size_t)policy->n, sizeof *counts);
    struct sheaf__text t = {buf, n, 0};
    if (n) buf[0] = 0;
    if (!counts) return buf;
    const struct sheaf__hparams *hp = &policy->model->hp;
    put_counts(&t, "q heads ", policy->q_count, policy->n);
    put_counts(&t, ", k/v heads ", policy->kv_count, policy->n);
    const struct printed dims[] = {print_ffn(policy),
                                   {", vocabulary ", hp->n_vocab, row_unit(policy, hp->n_vocab)}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        sheaf__split_units(dims[i].n / dims[i].unit, policy->shares, policy->n, counts);
        for (int j = 0; j < policy->n; j++) counts[j] *= dims[i].unit;
        put_counts(&t, dims[i].what, counts, policy->n);
    }
    free(counts);
    return buf;
}
