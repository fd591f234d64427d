/* Cuts of layers with a state, by heads, and of short convolutions, by channels. Heads, groups of
 * heads and their sizes are those of the layer's scan (SSM_SCAN: Mamba, arXiv 2312.00752 and
 * 2405.21060) or delta net (GATED_DELTA_NET: arXiv 2412.06464, 2510.26692). Heads of a group read
 * the same B and C, or query and key. */
#include <string.h>

#include "ggml/cut_axis.h"
#include "ggml/cut_layer.h"
#include "model/place/heads.h"
#include "model/place/policy.h"

struct state { /* of a layer */
    bool delta;
    bool shifted; /* cache_r has a layer's inputs, which all heads read (RWKV) */
    bool rounds;  /* head h is of group h modulo groups, not of group h / (heads / groups) */
    bool fused;   /* what groups have comes from the same matrix and convolution as the heads */
    int64_t heads, groups, size_head, size_group;
    struct gg_division members;
};

/* ---- the graph ---- */

/* -1: the op is no scan. */
static int state_operand(int op) {
    if (op == SHEAF_OP_SSM_SCAN) return 0;
    if (op == SHEAF_OP_GATED_LINEAR_ATTN) return 4;
    if (op == SHEAF_OP_GATED_DELTA_NET || op == SHEAF_OP_RWKV_WKV6) return 5;
    return op == SHEAF_OP_RWKV_WKV7 ? 6 : -1;
}

static const struct gg_known *find_scan(const struct gg_whole *g, const char *layer) {
    const struct gg_tensor *cache = gg_find(g, layer, GG_ROLE_CACHE_S, "");
    for (size_t i = 0; cache && i < g->n; i++) {
        const int op = g->all[i].op;
        const int at = state_operand(op);
        if (at >= 0 && gg_comes_from(g->all[i].tensor->src[at], cache)) return &g->all[i];
    }
    return NULL;
}

/* The REPEAT behind which queries of groups become those of heads; NULL: they are read as they are. */
static const struct gg_tensor *repeat_of(const struct gg_whole *g, const struct gg_tensor *q) {
    for (int i = 0; q && i < 4; i++, q = q->src[0])
        if (gg_op_in(g, q) == SHEAF_OP_REPEAT) return q;
    return NULL;
}

static void read_delta_net(const struct gg_whole *g, const struct gg_tensor *t, struct state *s) {
    const struct gg_tensor *q = t->src[0], *v = t->src[2], *repeat = repeat_of(g, q);
    s->delta = true;
    s->heads = v->ne[1];
    s->size_head = v->ne[0];
    s->groups = q->ne[1];
    s->size_group = q->ne[0];
    s->rounds = s->groups < s->heads;
    if (!repeat) return;
    const struct gg_tensor *before = repeat->src[0]; /* [k, groups, ..], or [k, 1, groups, ..] */
    s->rounds = before->ne[1] > 1;
    s->groups = s->rounds ? before->ne[1] : before->ne[2];
}

/* A head is a group of its own (RWKV: arXiv 2404.05892, 2503.14456). */
static void read_time_mix(const struct gg_tensor *t, struct state *s) {
    s->delta = s->shifted = true;
    s->heads = s->groups = t->src[0]->ne[1];
    s->size_head = s->size_group = t->src[0]->ne[0];
}

static void read_scan(const struct gg_tensor *t, struct state *s) {
    const struct gg_tensor *x = t->src[1], *b = t->src[4];
    s->heads = x->ne[1];
    s->size_head = x->ne[0];
    s->groups = b->ne[1];
    s->size_group = b->ne[0];
}

static bool find_state(const struct gg_whole *g, const char *layer, struct state *s) {
    const struct gg_known *scan = find_scan(g, layer);
    if (!scan) return false;
    if (scan->op == SHEAF_OP_SSM_SCAN)
        read_scan(scan->tensor, s);
    else if (scan->op != SHEAF_OP_GATED_DELTA_NET)
        read_time_mix(scan->tensor, s);
    else
        read_delta_net(g, scan->tensor, s);
    s->fused = !gg_find(g, layer, GG_ROLE_STATE_COLUMNS, "");
    return s->groups > 0 && s->heads % s->groups == 0;
}

bool gg_has_scan(const struct gg_whole *g, const char *layer) {
    return find_scan(g, layer) != NULL;
}

bool gg_is_delta_net(const struct gg_whole *g, const char *layer) {
    const struct gg_known *scan = find_scan(g, layer);
    return scan && scan->op == SHEAF_OP_GATED_DELTA_NET;
}

/* ---- the members' heads ---- */

/* The largest block of the weights whose columns are heads. */
static int64_t block_of_columns(const struct gg_cutter *c, const struct gg_whole *g,
                                const char *layer) {
    static const enum gg_role roles[] = {GG_ROLE_STATE_OUT, GG_ROLE_STATE_COLUMNS, GG_ROLE_O};
    int64_t block = 1;
    for (size_t i = 0; i < sizeof roles / sizeof *roles && !c->whole_sums; i++) {
        const int64_t one = gg_block_of(c, gg_find(g, layer, roles[i], ""));
        block = one > block ? one : block;
    }
    return block;
}

/* Whole groups for a delta net, whose queries are repeated for all heads of a group. Members with heads
 * of one group of a scan share it. */
static enum sheaf_status divide(const struct gg_cutter *c, int64_t block, struct state *s) {
    const int n = c->n_members;
    const int64_t each = s->heads / s->groups;
    int64_t together =
        gg_units_of_block(s->delta && !s->rounds ? each * s->size_head : s->size_head, block);
    if (s->delta) {
        if (s->groups % together) together = 1;
        sheaf__split_units(s->groups / together, c->shares, n, s->members.group_count);
        for (int j = 0; j < n; j++) {
            s->members.group_count[j] *= together;
            s->members.group_first[j] =
                j ? s->members.group_first[j - 1] + s->members.group_count[j - 1] : 0;
            s->members.head_first[j] = s->members.group_first[j] * each;
            s->members.head_count[j] = s->members.group_count[j] * each;
        }
        return SHEAF_STATUS_SUCCESS;
    }
    if (each % together) together = 1;
    enum sheaf_status st =
        sheaf__split_heads(s->groups, each / together, c->shares, n, s->members.head_first,
                           s->members.head_count, s->members.group_first, s->members.group_count);
    for (int j = 0; j < n && !st; j++) {
        s->members.head_first[j] *= together;
        s->members.head_count[j] *= together;
    }
    return st;
}

/* ---- states ---- */

static void fill_groups(const struct gg_cutter *c, const struct state *s,
                        struct sheaf_split_segment *to, int64_t inner) {
    sheaf__segment_fill(to, c->n_members, s->groups, inner, s->members.group_first,
                        s->members.group_count);
}

static void fill_heads(const struct gg_cutter *c, const struct state *s,
                       struct sheaf_split_segment *to, int64_t inner) {
    if (s->rounds) {
        fill_groups(c, s, to, inner);
        to->outer = s->heads / s->groups;
    } else {
        sheaf__segment_fill(to, c->n_members, s->heads, inner, s->members.head_first,
                            s->members.head_count);
    }
}

static struct sheaf_split_state *new_state(const struct gg_cutter *c, int axis, int n) {
    return sheaf_split_state_new((enum sheaf_split_axis)axis, c->n_members, n);
}

static struct sheaf_split_state *by_heads(const struct gg_cutter *c, const struct state *s,
                                          int axis, int64_t n) {
    struct sheaf_split_state *state = n % s->heads ? NULL : new_state(c, axis, 1);
    if (state) fill_heads(c, s, &state->segments[0], n / s->heads);
    return state;
}

static struct sheaf_split_state *by_groups(const struct gg_cutter *c, const struct state *s,
                                           int axis, int64_t n) {
    struct sheaf_split_state *state = n % s->groups ? NULL : new_state(c, axis, 1);
    if (state) fill_groups(c, s, &state->segments[0], n / s->groups);
    return state;
}

/* Each channel `times` times: of a scan x, B, C, of a delta net query, key, value. Where these have
 * weights and convolutions of their own, the cache has all three; x is alone where B and C are made
 * behind the convolution. */
static struct sheaf_split_state *by_channels(const struct gg_cutter *c, const struct state *s,
                                             int axis, int64_t n) {
    const int64_t heads = s->heads * s->size_head, groups = s->groups * s->size_group;
    const int64_t all = s->fused ? heads + 2 * groups : heads, times = n / all;
    struct sheaf_split_state *state = n % all ? NULL : new_state(c, axis, s->fused ? 3 : 1);
    if (!state) return NULL;
    fill_heads(c, s, &state->segments[s->delta ? 2 : 0], s->size_head * times);
    for (int i = 0; i < 2 && s->fused; i++)
        fill_groups(c, s, &state->segments[s->delta ? i : i + 1], s->size_group * times);
    return state;
}

/* Of Mamba 2 z, x, B, C and dt, of Mamba x and z, of PLaMo 2 z and x of each head; of a delta net query,
 * key, value and gate, group by group. */
static struct sheaf_split_state *by_all_inputs(const struct gg_cutter *c, const struct state *s,
                                               int axis, int64_t n) {
    const int64_t heads = s->heads * s->size_head, groups = s->groups * s->size_group;
    if (s->delta) return by_groups(c, s, axis, n);
    if (!s->fused && s->size_head > 1) return by_heads(c, s, axis, n);
    if (n != 2 * heads + (s->fused ? 2 * groups + s->heads : 0)) return NULL;
    struct sheaf_split_state *state = new_state(c, axis, s->fused ? 5 : 2);
    if (!state) return NULL;
    for (int i = 0; i < 2; i++) fill_heads(c, s, &state->segments[i], s->size_head);
    for (int i = 2; i < 4 && s->fused; i++) fill_groups(c, s, &state->segments[i], s->size_group);
    if (s->fused) fill_heads(c, s, &state->segments[4], 1);
    return state;
}

/* Whole groups on every member. */
static bool has_whole_groups(const struct gg_cutter *c, const struct state *s) {
    const int64_t each = s->heads / s->groups;
    for (int j = 0; j < c->n_members; j++)
        if (s->members.head_first[j] % each) return false;
    return true;
}

/* The axis of rows: [n], [1, n] and [taps, 1, n] have n. */
static int axis_of_rows(const struct gg_region *r) {
    for (int i = SHEAF_MAX_DIMS - 1; i > 0; i--)
        if (r->ne[i] > 1) return i;
    return 0;
}

static struct sheaf_split_state *state_of(const struct gg_cutter *c, const struct gg_leaf *l,
                                          const struct gg_region *r, const void *layer,
                                          const char **why) {
    const struct state *s = layer;
    const int rows = axis_of_rows(r);
    const int64_t n = r->ne[rows];
    *why = "its dimensions are not those of the layer's heads";
    switch (l->role) {
    case GG_ROLE_STATE_IN:
        return by_all_inputs(c, s, rows, n);
    case GG_ROLE_QKV:
    case GG_ROLE_CHANNELS:
        return by_channels(c, s, rows, n);
    case GG_ROLE_CACHE_R:
        if (s->shifted) *why = "all heads read the token before";
        if (s->shifted) return NULL;
        return by_channels(c, s, 0, r->ne[0]);
    case GG_ROLE_CACHE_S:
        return by_heads(c, s, 0, r->ne[0]);
    case GG_ROLE_STATE_GROUPS:
        return by_groups(c, s, rows, n);
    case GG_ROLE_STATE_FIRST:
        if (n == s->heads * s->size_head) return by_heads(c, s, rows, n);
        *why = "all heads have it";
        return NULL;
    case GG_ROLE_STATE_NORM:
        *why = "all heads have it";
        return s->delta || rows == 0 || !has_whole_groups(c, s) ? NULL : by_groups(c, s, rows, n);
    case GG_ROLE_STATE_COLUMNS:
        if (c->whole_sums) *why = "sums are whole";
        return c->whole_sums ? NULL : by_heads(c, s, 0, r->ne[0]);
    case GG_ROLE_O:
    case GG_ROLE_STATE_OUT: /* its bias is added once */
        if (l->bias) return NULL;
        return c->whole_sums ? gg_by_rows(c, 1, r->ne[1]) : by_heads(c, s, 0, r->ne[0]);
    default:
        return by_heads(c, s, rows, n);
    }
}

static bool has_role(enum gg_role role, const void *layer) {
    const struct state *s = layer;
    return (role >= GG_ROLE_STATE_IN && role <= GG_ROLE_CACHE_S) ||
           (s->delta && role >= GG_ROLE_Q && role <= GG_ROLE_O);
}

enum sheaf_status gg_cut_state_layer(const struct gg_cutter *c, const struct gg_whole *g,
                                     const char *layer, struct sheaf_split_state **states,
                                     const char **why) {
    struct state s = {0};
    struct gg_layer_cut cut = {has_role, state_of, &s, NULL};
    if (!gg_division_init(&s.members, c->n_members)) return SHEAF_STATUS_ALLOC_FAILED;
    const bool known = find_state(g, layer, &s);
    if (!known)
        cut.why_whole = "the graph has no scan that reads the layer's state";
    else if (s.heads == 1)
        cut.why_whole = "it has one head";
    const enum sheaf_status st =
        known ? divide(c, block_of_columns(c, g, layer), &s) : SHEAF_STATUS_SUCCESS;
    if (!st) gg_cut_layer(c, g, layer, &cut, states, why);
    gg_division_fini(&s.members);
    return st;
}

/* ---- short convolutions (LFM2, arXiv 2511.23404) ---- */

struct channels { /* of a layer */
    int64_t n, unit;
};

static struct sheaf_split_state *short_state(const struct gg_cutter *c, const struct gg_leaf *l,
                                             const struct gg_region *r, const void *layer,
                                             const char **why) {
    const struct channels *s = layer;
    const int rows = axis_of_rows(r);
    *why = "its rows are not the columns of out_proj";
    if (l->role == GG_ROLE_SHORT_OUT) {
        if (l->bias) return NULL;
        return c->whole_sums ? gg_by_rows(c, 1, r->ne[1]) : gg_by_inner(c, 0, s->n, s->unit, 1);
    }
    if (l->role == GG_ROLE_SHORT_IN && r->ne[rows] == 3 * s->n)
        return gg_by_inner(c, rows, s->n, s->unit, 3);
    if (l->role == GG_ROLE_SHORT && r->ne[rows] == s->n)
        return gg_by_inner(c, rows, s->n, s->unit, 1);
    if (l->role == GG_ROLE_CACHE_R && r->ne[0] % s->n == 0)
        return gg_by_inner(c, 0, r->ne[0], s->unit * (r->ne[0] / s->n), 1);
    return NULL;
}

static bool has_short_role(enum gg_role role, const void *layer) {
    (void)layer;
    return role == GG_ROLE_CACHE_R || (role >= GG_ROLE_SHORT_IN && role <= GG_ROLE_SHORT_OUT);
}

enum sheaf_status gg_cut_short_layer(const struct gg_cutter *c, const struct gg_whole *g,
                                     const char *layer, struct sheaf_split_state **states,
                                     const char **why) {
    const struct gg_tensor *out = gg_find(g, layer, GG_ROLE_SHORT_OUT, "");
    const struct channels s = {out ? out->ne[0] : 0, gg_block_of(c, out)};
    const struct gg_layer_cut cut = {has_short_role, short_state, &s,
                                     out ? NULL : "the layer has no out_proj"};
    gg_cut_layer(c, g, layer, &cut, states, why);
    return SHEAF_STATUS_SUCCESS;
}
