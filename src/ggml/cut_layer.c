/* Roles by name, the tensors of a graph, and cuts of one axis. */
#include "ggml/cut_layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "ggml/translate.h"
#include "model/place/policy.h"

static const struct {
    const char *part;
    enum gg_role role;
} roles[] = {
    {"attn_q", GG_ROLE_Q},
    {"attn_q_b", GG_ROLE_Q},
    {"attn_k", GG_ROLE_K},
    {"attn_v", GG_ROLE_V},
    {"attn_qkv", GG_ROLE_QKV},
    {"attn_gate", GG_ROLE_GATE},
    {"attn_output", GG_ROLE_O},
    {"attn_out", GG_ROLE_O},
    {"attn_kv_b", GG_ROLE_LATENT_KV},
    {"attn_k_b", GG_ROLE_LATENT_K},
    {"attn_v_b", GG_ROLE_LATENT_V},
    {"attn_sinks", GG_ROLE_SINKS},
    {"attn_q_norm", GG_ROLE_Q_NORM},
    {"attn_k_norm", GG_ROLE_K_NORM},
    {"cache_k", GG_ROLE_CACHE_K},
    {"cache_v", GG_ROLE_CACHE_V},
    {"ffn_up", GG_ROLE_FFN_IN},
    {"ffn_gate", GG_ROLE_FFN_IN},
    {"ffn_down", GG_ROLE_FFN_OUT},
    {"ffn_up_exps", GG_ROLE_FFN_IN},
    {"ffn_gate_exps", GG_ROLE_FFN_IN},
    {"ffn_gate_up_exps", GG_ROLE_FFN_IN},
    {"ffn_down_exps", GG_ROLE_FFN_OUT},
    {"ffn_up_chexps", GG_ROLE_FFN_IN},
    {"ffn_gate_chexps", GG_ROLE_FFN_IN},
    {"ffn_down_chexps", GG_ROLE_FFN_OUT},
    {"ffn_up_shexp", GG_ROLE_FFN_IN},
    {"ffn_gate_shexp", GG_ROLE_FFN_IN},
    {"ffn_down_shexp", GG_ROLE_FFN_OUT},
    {"ssm_in", GG_ROLE_STATE_IN},
    {"ssm_conv1d", GG_ROLE_CHANNELS},
    {"ssm_conv1d_q", GG_ROLE_STATE_HEADS},
    {"ssm_conv1d_k", GG_ROLE_STATE_HEADS},
    {"ssm_conv1d_v", GG_ROLE_STATE_HEADS},
    {"ssm_x", GG_ROLE_STATE_COLUMNS},
    {"ssm_dt", GG_ROLE_STATE_HEADS},
    {"ssm_a", GG_ROLE_STATE_HEADS},
    {"ssm_d", GG_ROLE_STATE_HEADS},
    {"ssm_alpha", GG_ROLE_STATE_HEADS},
    {"ssm_beta", GG_ROLE_STATE_HEADS},
    {"ssm_f_b", GG_ROLE_STATE_HEADS},
    {"ssm_g_b", GG_ROLE_STATE_HEADS},
    {"ssm_g", GG_ROLE_STATE_HEADS},
    {"ssm_ba", GG_ROLE_STATE_GROUPS},
    {"ssm_beta_alpha", GG_ROLE_STATE_GROUPS},
    {"ssm_norm", GG_ROLE_STATE_NORM},
    {"ssm_out", GG_ROLE_STATE_OUT},
    {"cache_r", GG_ROLE_CACHE_R},
    {"conv_states_all", GG_ROLE_CACHE_R},
    {"cache_s", GG_ROLE_CACHE_S},
    {"ssm_states_all", GG_ROLE_CACHE_S},
    {"shortconv.in_proj", GG_ROLE_SHORT_IN},
    {"shortconv.conv", GG_ROLE_SHORT},
    {"shortconv.out_proj", GG_ROLE_SHORT_OUT},
    {"output", GG_ROLE_VOCABULARY},
    {"token_embd", GG_ROLE_VOCABULARY},
};

/* ---- names ---- */

/* "_exps" of "ffn_up_exps": which of a layer's feed-forwards it belongs to. */
static const char *family_of(const char *part) {
    static const char *const families[] = {"_exps", "_chexps", "_shexp"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *found = strstr(part, families[i]);
        if (found && !strcmp(found, families[i])) return families[i];
    }
    return "";
}

/* "cache_k_l7", "conv_states_all-7": the name of a cache, and of one that the program has renamed. */
static bool read_cache(char *text, struct gg_leaf *l) {
    int layer;
    char *number = !strncmp(text, "cache_", 6) ? strstr(text, "_l") : strrchr(text, '-');
    if (!number || (sscanf(number, "_l%d", &layer) != 1 && sscanf(number, "-%d", &layer) != 1) ||
        layer < 0)
        return false;
    snprintf(l->layer, sizeof l->layer, "blk.%d.", layer);
    *number = 0;
    return true;
}

/* The part of "blk.7.ffn_up.weight", of "blk.7.shortconv.conv.weight" and of "blk.7.ssm_a"; l->layer
 * is what comes before. */
static const char *read_weight(char *text, struct gg_leaf *l) {
    char *dot = strrchr(text, '.');
    const char *part;
    int at = 0;
    if (!dot) return NULL;
    l->bias = !strcmp(dot, ".bias");
    if (l->bias || !strcmp(dot, ".weight")) *dot = 0;
    if (sscanf(text, "blk.%*d.%n", &at) == 0 && at)
        part = text + at;
    else if ((dot = strrchr(text, '.')))
        part = dot + 1;
    else
        part = text;
    snprintf(l->layer, sizeof l->layer, "%.*s", (int)(part - text), text);
    return part;
}

void gg_leaf_of(const char *name, struct gg_leaf *l) {
    char text[GG_MAX_NAME];
    memset(l, 0, sizeof *l);
    l->family = "";
    snprintf(text, sizeof text, "%s", name);
    const char *part = read_cache(text, l) ? text : read_weight(text, l);
    for (size_t i = 0; part && i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(part, roles[i].part)) continue;
        l->role = roles[i].role;
        l->family = family_of(part);
    }
}

/* ---- the whole graph ---- */

static void note(struct gg_whole *g, const struct gg_tensor *t) {
    if (t) g->all[g->n++].tensor = t;
}

/* A program makes a graph's tensors one after the other. */
static int by_address(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)((const struct gg_known *)a)->tensor;
    const uintptr_t y = (uintptr_t)((const struct gg_known *)b)->tensor;
    return (x > y) - (x < y);
}

static void describe(const struct gg_host *host, struct gg_known *k) {
    struct sheaf_tensor s;
    struct gg_operands o;
    if (k->tensor->op == 0) gg_leaf_of(k->tensor->name, &k->leaf);
    k->op = k->tensor->op && gg_translate(host, k->tensor, &s, &o) ? (int)s.op : -1;
}

bool gg_whole_of(const struct gg_host *host, const struct gg_cgraph *graph, struct gg_whole *g) {
    const struct gg_hash_set *set = &graph->visited;
    const bool has_table = set->used && set->keys;
    const size_t n = (size_t)graph->n_nodes * (1 + GG_MAX_SRC) + (has_table ? set->size : 0);
    size_t kept = 0;
    g->all = calloc(n + 1, sizeof *g->all);
    if (!g->all) return false;
    for (int i = 0; i < graph->n_nodes; i++) {
        note(g, graph->nodes[i]);
        for (int k = 0; k < GG_MAX_SRC; k++) note(g, graph->nodes[i]->src[k]);
    }
    for (size_t i = 0; has_table && i < set->size; i++)
        if (set->used[i / 32] >> (i % 32) & 1) note(g, set->keys[i]);
    qsort(g->all, g->n, sizeof *g->all, by_address);
    for (size_t i = 0; i < g->n; i++)
        if (!i || g->all[i].tensor != g->all[i - 1].tensor)
            g->all[kept++].tensor = g->all[i].tensor;
    g->n = kept;
    for (size_t i = 0; i < g->n; i++) describe(host, &g->all[i]);
    return true;
}

const struct gg_tensor *gg_find(const struct gg_whole *g, const char *layer, enum gg_role role,
                                const char *family) {
    for (size_t i = 0; i < g->n; i++) {
        const struct gg_leaf *l = &g->all[i].leaf;
        if (l->role == role && !l->bias && !strcmp(l->layer, layer) && !strcmp(l->family, family))
            return g->all[i].tensor;
    }
    return NULL;
}

int gg_op_in(const struct gg_whole *g, const struct gg_tensor *t) {
    const struct gg_known key = {.tensor = t};
    const struct gg_known *found = bsearch(&key, g->all, g->n, sizeof *g->all, by_address);
    return found ? found->op : -1;
}

bool gg_comes_from(const struct gg_tensor *t, const struct gg_tensor *cache) {
    for (int i = 0; cache && t && i < 8; i++, t = t->src[0])
        if (t == cache || t->view_src == cache) return true;
    return false;
}

/* Ops whose result has the rows of a product where the product has them. */
static bool passes_rows_on(int op) {
    return op == SHEAF_OP_ADD || op == SHEAF_OP_SCALE || op == SHEAF_OP_MUL ||
           op == SHEAF_OP_CLAMP || op == SHEAF_OP_RMS_NORM || op == SHEAF_OP_CONT;
}

int gg_views_behind(const struct gg_whole *g, const struct gg_tensor *weight,
                    const struct gg_tensor **out, int room) {
    const struct gg_tensor *now = NULL;    /* the product, then what is added to it */
    const struct gg_tensor *shaped = NULL; /* the same in another shape */
    int n = 0;
    for (size_t i = 0; i < g->n; i++) {
        const struct gg_tensor *t = g->all[i].tensor;
        const int op = g->all[i].op;
        if (op == SHEAF_OP_MUL_MAT && t->src[0] == weight && !now) now = t;
        if (!now || (t->src[0] != now && t->src[1] != now && (!shaped || t->src[0] != shaped)))
            continue;
        if (passes_rows_on(op) && t->ne[0] == now->ne[0] && !n)
            now = t;
        else if ((op == SHEAF_OP_RESHAPE || op == SHEAF_OP_VIEW) && n < room)
            out[n++] = t;
        if (op == SHEAF_OP_RESHAPE && !shaped) shaped = t;
    }
    return n;
}

/* ---- cuts of one axis ---- */

void gg_fill_segment(struct sheaf_split_segment *s, int n_members, int64_t units, int64_t inner,
                     const int64_t *first, const int64_t *count) {
    s->outer = 1;
    s->inner = inner;
    s->units = units;
    memcpy(s->first, first, (size_t)n_members * sizeof *first);
    memcpy(s->count, count, (size_t)n_members * sizeof *count);
}

int64_t gg_units_of_block(int64_t inner, int64_t block) { return block / sheaf__gcd(inner, block); }

struct sheaf_split_state *gg_by_units(const struct gg_cutter *c, int axis, int64_t units,
                                      int64_t inner, const int64_t *first, const int64_t *count) {
    struct sheaf_split_state *s =
        sheaf_split_state_new((enum sheaf_split_axis)axis, c->n_members, 1);
    if (s) gg_fill_segment(&s->segments[0], c->n_members, units, inner, first, count);
    return s;
}

struct sheaf_split_state *gg_by_rows(const struct gg_cutter *c, int axis, int64_t n) {
    const int64_t unit = c->whole_sums ? sheaf__row_group(n) : 1;
    return gg_cut_axis(c, axis, n / unit, unit);
}

struct sheaf_split_state *gg_by_inner(const struct gg_cutter *c, int axis, int64_t n, int64_t inner,
                                      int times) {
    struct sheaf_split_state *one = gg_cut_axis(c, axis, n / inner, inner), *s;
    if (!one || times == 1) return one;
    s = sheaf_split_state_new((enum sheaf_split_axis)axis, c->n_members, times);
    for (int i = 0; s && i < times; i++)
        gg_fill_segment(&s->segments[i], c->n_members, n / inner, inner, one->segments[0].first,
                        one->segments[0].count);
    sheaf_split_state_free(one);
    return s;
}

int64_t gg_block_of(const struct gg_cutter *c, const struct gg_tensor *weight) {
    const int type = weight ? gg_type_of(c->e->host, weight->type) : -1;
    return type < 0 ? 1 : sheaf_blck_size((enum sheaf_type)type);
}

struct sheaf_split_state *gg_checked(const struct gg_region *r, struct sheaf_split_state *state,
                                     const char **why) {
    const struct sheaf_tensor as = {.type = r->type,
                                    .ne = {r->ne[0], r->ne[1], r->ne[2], r->ne[3]}};
    if (!state || !sheaf_split_state_check(state, &as)) return state;
    sheaf_split_state_free(state);
    *why = "its heads are no whole blocks of its type";
    return NULL;
}
