/* Cuts by names. Attention is cut by heads, alike in q, k, v, output and the caches; feed-forward by
 * its inner dimension; the output matrix by its vocabulary. With whole sums (SHEAF_SPLIT_SUMS) the
 * last matrix of attention and of feed-forward is cut by rows. */
#include <stdlib.h>
#include <string.h>

#include "ggml/cut_axis.h"
#include "ggml/cut_layer.h"
#include "model/place/heads.h"
#include "model/place/policy.h"

/* ---- attention ---- */

struct heads { /* of a layer */
    int64_t q, kv, size_q, size_k, size_v;
    int64_t size_latent; /* rows of a head in attn_kv_b; 0: none */
    int64_t size_out;    /* rows of a group of heads in attn_output_a; 0: none */
    bool latent;         /* the cache has one head, which all query heads read */
    bool interleaved; /* in a fused product query, key and value of a head are behind each other */
    bool linear;      /* a state instead of caches: linear attention */
    bool transposed;     /* the cache of values: heads lie across its rows */
    bool picked;         /* rows of the caches are read by numbers that count heads and cells */
    struct gg_division members; /* query heads, and K/V heads as their groups */
};

/* Heads and the rows of each in a product; false: the graph does not say. A view may have a part of
 * each head. */
static bool heads_of(const struct gg_whole *g, const struct gg_tensor *weight, int64_t *heads,
                     int64_t *size) {
    const struct gg_tensor *views[8];
    const int n = weight ? gg_views_behind(g, weight, views, 8) : 0;
    for (int i = 0; i < n; i++) {
        const int64_t step = views[i]->nb[0] ? (int64_t)(views[i]->nb[1] / views[i]->nb[0]) : 0;
        if (step == 0 || views[i]->ne[1] * step != weight->ne[1]) continue;
        *size = step;
        *heads = views[i]->ne[1];
        return true;
    }
    return false;
}

/* q, k and v in a fused product: three views of heads, one behind the other, of all heads or in each. */
static bool heads_of_fused(const struct gg_whole *g, const struct gg_tensor *weight,
                           struct heads *h) {
    const struct gg_tensor *views[8], *part[3] = {0};
    const int n = gg_views_behind(g, weight, views, 8);
    for (int i = 0; i < n; i++) {
        if (views[i]->ne[0] * views[i]->ne[1] == weight->ne[1]) continue; /* all three */
        for (int k = 0; k < 3; k++) {
            if (part[k] && views[i]->view_offs == part[k]->view_offs) break;
            if (part[k] && views[i]->view_offs > part[k]->view_offs) continue;
            for (int m = 2; m > k; m--) part[m] = part[m - 1];
            part[k] = views[i];
            break;
        }
    }
    if (!part[2]) return false;
    h->q = part[0]->ne[1];
    h->kv = part[1]->ne[1];
    h->size_q = part[0]->ne[0];
    h->size_k = part[1]->ne[0];
    h->size_v = part[2]->ne[0];
    const int64_t step = (int64_t)(part[0]->nb[1] / part[0]->nb[0]);
    h->interleaved = h->q == h->kv && step == h->size_q + h->size_k + h->size_v;
    return part[2]->ne[1] == part[1]->ne[1] &&
           h->q * h->size_q + h->kv * (h->size_k + h->size_v) == weight->ne[1];
}

/* Heads whose keys and values are made of a latent vector, each of its own (DeepSeek V2,
 * arXiv 2405.04434, section 2.1): by a matrix a head, where the cache has the vector, or before. */
static bool heads_of_latent(const struct gg_whole *g, const char *layer, const struct gg_tensor *o,
                            struct heads *h) {
    const struct gg_tensor *q = gg_find(g, layer, GG_ROLE_Q, "");
    const struct gg_tensor *k_b = gg_find(g, layer, GG_ROLE_LATENT_K, "");
    const struct gg_tensor *v_b = gg_find(g, layer, GG_ROLE_LATENT_V, "");
    const struct gg_tensor *kv_b = gg_find(g, layer, GG_ROLE_LATENT_KV, "");
    if (k_b && v_b) {
        h->latent = true;
        h->q = k_b->ne[2] == v_b->ne[2] ? k_b->ne[2] : 0;
    } else if (!heads_of(g, kv_b, &h->q, &h->size_latent)) {
        return false;
    }
    if (!q || !o || h->q <= 0 || q->ne[1] % h->q || o->ne[0] % h->q) return false;
    h->kv = h->q;
    h->size_q = h->size_k = q->ne[1] / h->q;
    h->size_v = o->ne[0] / h->q;
    return !h->latent || v_b->ne[1] == h->size_v;
}

/* Heads of one key and value, whose results go through a matrix for each group of heads before the output
 * matrix (DeepSeek V4). The groups are what is divided. */
static bool heads_of_groups(const struct gg_whole *g, const char *layer, struct heads *h) {
    const struct gg_tensor *a = gg_find(g, layer, GG_ROLE_OUT_A, "");
    const struct gg_tensor *b = gg_find(g, layer, GG_ROLE_OUT_B, "");
    const struct gg_tensor *q = gg_find(g, layer, GG_ROLE_Q, "");
    if (!a || !b || !heads_of(g, q, &h->q, &h->size_q)) return false;
    h->latent = true;
    h->kv = a->ne[2];
    h->size_out = a->ne[1];
    h->size_v = a->ne[0] * h->kv / h->q;
    return h->q % h->kv == 0 && a->ne[0] == h->size_v * (h->q / h->kv) &&
           b->ne[0] == h->size_out * h->kv;
}

/* A state that no scan reads: linear attention by products (MiniMax-01, arXiv 2501.08313). */
static bool is_linear(const struct gg_whole *g, const char *layer) {
    return gg_find(g, layer, GG_ROLE_QKV, "") && gg_find(g, layer, GG_ROLE_CACHE_S, "") &&
           !gg_has_scan(g, layer);
}

/* The attention behind a product's operand. */
static const struct gg_tensor *flash_before(const struct gg_whole *g,
                                            const struct gg_tensor *product) {
    const struct gg_tensor *t = product->src[1];
    for (int i = 0; t && i < 8; i++, t = t->src[0])
        if (gg_op_in(g, t) == SHEAF_OP_FLASH_ATTN_EXT) return t;
    return NULL;
}

/* The layer's FLASH_ATTN_EXT: it reads the layer's cache, or attn_output multiplies what it gives. */
static const struct gg_tensor *find_flash(const struct gg_whole *g, const char *layer) {
    const struct gg_tensor *cache = gg_find(g, layer, GG_ROLE_CACHE_K, "");
    const struct gg_tensor *o = gg_find(g, layer, GG_ROLE_O, ""), *found = NULL;
    for (size_t i = 0; i < g->n && !found; i++) {
        const struct gg_tensor *t = g->all[i].tensor;
        if (g->all[i].op == SHEAF_OP_FLASH_ATTN_EXT && gg_comes_from(t->src[1], cache)) found = t;
        if (g->all[i].op == SHEAF_OP_MUL_MAT && o && t->src[0] == o) found = flash_before(g, t);
    }
    return found;
}

/* The layer whose attention reads the cache; `layer` if none has weights for it. Weights that are used
 * several times have a cache for each time (HRM, arXiv 2506.21734). */
static const char *weights_of_cache(const struct gg_whole *g, const char *layer) {
    const struct gg_tensor *cache = gg_find(g, layer, GG_ROLE_CACHE_K, "");
    for (size_t i = 0; cache && i < g->n; i++) {
        const struct gg_tensor *t = g->all[i].tensor, *flash;
        if (g->all[i].op != SHEAF_OP_MUL_MAT || !(flash = flash_before(g, t))) continue;
        const struct gg_leaf *o = gg_leaf_in(g, t->src[0]);
        if (gg_comes_from(flash->src[1], cache) && o && o->role == GG_ROLE_O) return o->layer;
    }
    return layer;
}

/* Of a layer that reads the cache of another one (Gemma 3n, Gemma 4). */
static bool heads_of_reader(const struct gg_whole *g, const char *layer, const struct gg_tensor *q,
                            const struct gg_tensor *o, struct heads *h) {
    const struct gg_tensor *flash = find_flash(g, layer);
    if (!flash || !heads_of(g, q, &h->q, &h->size_q) || !o || o->ne[0] % h->q) return false;
    h->kv = flash->src[1]->ne[2];
    h->size_k = flash->src[1]->ne[0];
    h->size_v = o->ne[0] / h->q;
    return true;
}

static bool find_heads(const struct gg_whole *g, const char *layer, struct heads *h) {
    const struct gg_tensor *q = gg_find(g, layer, GG_ROLE_Q, "");
    const struct gg_tensor *k = gg_find(g, layer, GG_ROLE_K, "");
    const struct gg_tensor *v = gg_find(g, layer, GG_ROLE_V, "");
    const struct gg_tensor *qkv = gg_find(g, layer, GG_ROLE_QKV, "");
    const struct gg_tensor *o = gg_find(g, layer, GG_ROLE_O, "");
    int64_t kv_of_v = 0;
    h->linear = is_linear(g, layer);
    if (qkv) {
        if (!heads_of_fused(g, qkv, h)) return false;
    } else if (!k && !v) {
        if (heads_of_latent(g, layer, o, h) || heads_of_groups(g, layer, h)) return true;
        if (!heads_of_reader(g, layer, q, o, h)) return false;
    } else if (!heads_of(g, q, &h->q, &h->size_q) || !heads_of(g, k, &h->kv, &h->size_k) ||
               !heads_of(g, v ? v : k, &kv_of_v, &h->size_v) || kv_of_v != h->kv) {
        return false;
    }
    return h->kv > 0 && h->q % h->kv == 0 && o && o->ne[0] == h->q * h->size_v;
}

/* Without flash attention llama.cpp keeps values transposed and writes them element by element: heads
 * lie across the rows of such a cache. */
static bool is_transposed(const struct gg_whole *g, const struct gg_tensor *cache) {
    for (size_t i = 0; cache && i < g->n; i++) {
        const struct gg_tensor *t = g->all[i].tensor;
        if (g->all[i].op == SHEAF_OP_SET_ROWS && t->ne[0] == 1 && gg_root(t) == gg_root(cache))
            return true;
    }
    return false;
}

/* MiniMax M3 picks cells for each K/V head and reads rows of [size, heads . cells] by number. */
static bool is_picked(const struct gg_whole *g, const char *layer, const struct heads *h) {
    const struct gg_tensor *q = gg_find(g, layer, GG_ROLE_PICK_Q, "");
    const struct gg_tensor *k = gg_find(g, layer, GG_ROLE_PICK_K, "");
    return q && k && q->ne[1] == h->kv * k->ne[1];
}

static struct sheaf_split_state *by_query_heads(const struct gg_cutter *c, int axis, int64_t inner,
                                                const struct heads *h) {
    return gg_by_units(c, axis, h->q, inner, h->members.head_first, h->members.head_count);
}

static struct sheaf_split_state *by_kv_heads(const struct gg_cutter *c, int axis, int64_t inner,
                                             const struct heads *h) {
    return gg_by_units(c, axis, h->kv, inner, h->members.group_first, h->members.group_count);
}

static struct sheaf_split_state *by_fused_heads(const struct gg_cutter *c, int axis,
                                                const struct heads *h) {
    const int n = c->n_members;
    struct sheaf_split_state *s = sheaf_split_state_new((enum sheaf_split_axis)axis, n, 3);
    if (!s) return NULL;
    sheaf__segment_fill(&s->segments[0], n, h->q, h->size_q, h->members.head_first,
                        h->members.head_count);
    sheaf__segment_fill(&s->segments[1], n, h->kv, h->size_k, h->members.group_first,
                        h->members.group_count);
    sheaf__segment_fill(&s->segments[2], n, h->kv, h->size_v, h->members.group_first,
                        h->members.group_count);
    return s;
}

static struct sheaf_split_state *cache_state(const struct gg_cutter *c, const struct gg_leaf *l,
                                             const struct gg_region *r, const struct heads *h,
                                             const char **why) {
    const bool is_v = l->role == GG_ROLE_CACHE_V;
    const int64_t size = is_v ? h->size_v : h->size_k;
    const char *whole = NULL;
    if (h->latent) whole = "all heads read its one latent vector";
    if (is_v && h->transposed) whole = "values are transposed without flash attention (-fa)";
    if (h->picked) whole = "its rows are picked by numbers of heads and cells";
    if (whole) *why = whole;
    return whole || r->ne[0] != h->kv * size ? NULL : by_kv_heads(c, 0, size, h);
}

static struct sheaf_split_state *attention_state(const struct gg_cutter *c, const struct gg_leaf *l,
                                                 const struct gg_region *r, const void *layer,
                                                 const char **why) {
    const struct heads *h = layer;
    const int rows = l->bias ? 0 : 1; /* a bias has one element a row */
    *why = "its dimensions are not those of the layer's heads";
    switch (l->role) {
    case GG_ROLE_Q:
        return by_query_heads(c, rows, h->size_q, h);
    case GG_ROLE_K:
        return by_kv_heads(c, rows, h->size_k, h);
    case GG_ROLE_V:
        return by_kv_heads(c, rows, h->size_v, h);
    case GG_ROLE_QKV:
        return h->interleaved ? by_query_heads(c, rows, h->size_q + h->size_k + h->size_v, h)
                              : by_fused_heads(c, rows, h);
    case GG_ROLE_GATE:
        return r->ne[rows] % h->q ? NULL : by_query_heads(c, rows, r->ne[rows] / h->q, h);
    case GG_ROLE_O: /* its bias is added once */
        if (l->bias) return NULL;
        return c->whole_sums ? gg_by_rows(c, 1, r->ne[1]) : by_query_heads(c, 0, h->size_v, h);
    case GG_ROLE_OUT_A:
        return h->size_out ? by_kv_heads(c, 2, 1, h) : NULL;
    case GG_ROLE_OUT_B:
        if (l->bias || !h->size_out) return NULL;
        return c->whole_sums ? gg_by_rows(c, 1, r->ne[1]) : by_kv_heads(c, 0, h->size_out, h);
    case GG_ROLE_SINKS:
        return by_query_heads(c, 0, 1, h);
    case GG_ROLE_Q_NORM: /* of all heads, or a row a head; or one row, which all heads have */
        if (r->ne[0] == h->q * h->size_q) return by_query_heads(c, 0, h->size_q, h);
        *why = "all heads have it";
        return r->ne[1] == h->q ? by_query_heads(c, 1, 1, h) : NULL;
    case GG_ROLE_K_NORM:
        if (r->ne[0] == h->kv * h->size_k) return by_kv_heads(c, 0, h->size_k, h);
        *why = "all heads have it";
        return r->ne[1] == h->kv ? by_kv_heads(c, 1, 1, h) : NULL;
    case GG_ROLE_NORM_2:
        return r->ne[0] == h->q * h->size_v ? by_query_heads(c, 0, h->size_v, h) : NULL;
    case GG_ROLE_CACHE_S:
        return r->ne[0] % h->q ? NULL : by_query_heads(c, 0, r->ne[0] / h->q, h);
    case GG_ROLE_LATENT_K:
    case GG_ROLE_LATENT_V:
        return h->latent ? by_query_heads(c, 2, 1, h) : NULL;
    case GG_ROLE_LATENT_KV:
        return h->size_latent ? by_query_heads(c, rows, h->size_latent, h) : NULL;
    case GG_ROLE_CACHE_K:
    case GG_ROLE_CACHE_V:
        return cache_state(c, l, r, h, why);
    default:
        return NULL;
    }
}

/* Query heads that stay together if members may have parts of the heads that read one K/V head, which
 * FLASH_ATTN_EXT alone can be told of; 0: whole groups of them. A norm over all K/V heads would be wrong
 * where two members have one of them. */
static int64_t heads_together(const struct gg_cutter *c, const struct gg_whole *g,
                              const char *layer, const struct heads *h) {
    const struct gg_tensor *norm = gg_find(g, layer, GG_ROLE_K_NORM, "");
    if ((norm && norm->ne[0] > h->size_k) || (!h->linear && !find_flash(g, layer))) return 0;
    const int64_t block = gg_block_of(c, gg_find(g, layer, GG_ROLE_O, ""));
    return c->whole_sums ? 1 : gg_units_of_block(h->size_v, block);
}

/* A matrix that all heads of a group go through is on one member. */
static void divide_groups(const struct gg_cutter *c, struct heads *h) {
    const struct gg_division *m = &h->members;
    const int64_t each = h->q / h->kv;
    sheaf__split_units(h->kv, c->shares, c->n_members, m->group_count);
    for (int j = 0; j < c->n_members; j++) {
        m->group_first[j] = j ? m->group_first[j - 1] + m->group_count[j - 1] : 0;
        m->head_first[j] = m->group_first[j] * each;
        m->head_count[j] = m->group_count[j] * each;
    }
}

static enum sheaf_status divide(const struct gg_cutter *c, const struct gg_whole *g,
                                const char *layer, struct heads *h) {
    if (h->size_out) {
        divide_groups(c, h);
        return SHEAF_STATUS_SUCCESS;
    }
    const int64_t each = h->q / h->kv, unit = heads_together(c, g, layer, h);
    return sheaf__split_heads_in_runs(h->kv, each, unit ? unit : each, c->shares, c->n_members,
                                      h->members.head_first, h->members.head_count,
                                      h->members.group_first, h->members.group_count);
}

static bool is_attention(enum gg_role role) {
    return role >= GG_ROLE_Q && role <= GG_ROLE_CACHE_V && role != GG_ROLE_NORM_2 &&
           role != GG_ROLE_PICK_Q && role != GG_ROLE_PICK_K;
}

static bool is_linear_role(enum gg_role role) {
    return role == GG_ROLE_NORM_2 || role == GG_ROLE_CACHE_S;
}

static bool has_role(enum gg_role role, const void *layer) {
    const struct heads *h = layer;
    return is_attention(role) || (h->linear && is_linear_role(role));
}

static enum sheaf_status cut_attention(const struct gg_cutter *c, const struct gg_whole *g,
                                       const char *of, struct sheaf_split_state **states,
                                       const char **why) {
    const bool has_weights = gg_find(g, of, GG_ROLE_Q, "") || gg_find(g, of, GG_ROLE_QKV, "");
    const char *layer = has_weights ? of : weights_of_cache(g, of);
    struct heads h = {0};
    struct gg_layer_cut cut = {has_role, attention_state, &h, NULL};
    if (!gg_division_init(&h.members, c->n_members)) return SHEAF_STATUS_ALLOC_FAILED;
    const bool known = find_heads(g, layer, &h);
    h.picked = is_picked(g, layer, &h);
    h.transposed = is_transposed(g, gg_find(g, of, GG_ROLE_CACHE_V, ""));
    if (!known)
        cut.why_whole = "the graph does not say how many heads it has";
    else if (h.q == 1)
        cut.why_whole = "it has one head";
    const enum sheaf_status st = known ? divide(c, g, layer, &h) : SHEAF_STATUS_SUCCESS;
    if (!st) gg_cut_layer(c, g, of, &cut, states, why);
    gg_division_fini(&h.members);
    return st;
}

/* ---- feed-forward ---- */

static struct sheaf_split_state *feed_forward_state(const struct gg_cutter *c,
                                                    const struct gg_whole *g, size_t i,
                                                    const char **why) {
    const struct gg_leaf *l = &g->unbound[i];
    const struct gg_region *r = c->e->unbound[i];
    const struct gg_tensor *down = gg_find(g, l->layer, GG_ROLE_FFN_OUT, l->family);
    const int rows = l->bias ? 0 : 1;
    if (!down) {
        *why = "its feed-forward has no ffn_down";
        return NULL;
    }
    const int64_t n = down->ne[0];
    const int64_t inner = c->whole_sums ? sheaf__row_group(n) : gg_block_of(c, down);
    if (l->role == GG_ROLE_FFN_OUT) {
        if (l->bias) return NULL;
        return c->whole_sums ? gg_by_rows(c, 1, r->ne[1]) : gg_by_inner(c, 0, n, inner, 1);
    }
    if (r->ne[rows] == n) return gg_by_inner(c, rows, n, inner, 1);
    if (r->ne[rows] == 2 * n) return gg_by_inner(c, rows, n, inner, 2);
    *why = "its rows are not the columns of ffn_down";
    return NULL;
}

static struct sheaf_split_state *by_columns(const struct gg_cutter *c, const struct gg_region *r,
                                            const char **why) {
    const int64_t block = sheaf_blck_size(r->type);
    *why = "its columns are no whole blocks of its type";
    return r->ne[0] % block ? NULL : gg_by_inner(c, 0, r->ne[0], block, 1);
}

/* The matrix behind experts that compute with fewer dimensions than the model has (Kimi K3, Nemotron 3):
 * its results are added to those of the shared expert, of which members have parts, too. */
static struct sheaf_split_state *latent_out_state(const struct gg_cutter *c,
                                                  const struct gg_whole *g, const struct gg_leaf *l,
                                                  const struct gg_region *r, const char **why) {
    *why = "sums are whole";
    if (c->whole_sums || l->bias) return NULL;
    *why = "members would add up its results alone";
    if (!gg_find(g, l->layer, GG_ROLE_FFN_OUT, "_shexp")) return NULL;
    return by_columns(c, r, why);
}

/* ---- all ---- */

static bool is_state(enum gg_role role) {
    return role >= GG_ROLE_STATE_IN && role <= GG_ROLE_CACHE_S;
}

static enum sheaf_status cut_one(const struct gg_cutter *c, const struct gg_whole *g, size_t i,
                                 struct sheaf_split_state **states, const char **why) {
    const struct gg_region *r = c->e->unbound[i];
    const struct gg_leaf *l = &g->unbound[i];
    const enum gg_role role = l->role;
    if (role >= GG_ROLE_SHORT_IN && role <= GG_ROLE_SHORT_OUT)
        return gg_cut_short_layer(c, g, l->layer, states, why);
    if (role == GG_ROLE_CACHE_R && gg_find(g, l->layer, GG_ROLE_SHORT_OUT, ""))
        return gg_cut_short_layer(c, g, l->layer, states, why);
    if (is_attention(role) ? gg_is_delta_net(g, l->layer) && role <= GG_ROLE_O
                           : is_state(role) && !is_linear(g, l->layer))
        return gg_cut_state_layer(c, g, l->layer, states, why);
    if (is_attention(role) || (is_linear_role(role) && is_linear(g, l->layer)))
        return cut_attention(c, g, l->layer, states, why);
    if (role == GG_ROLE_FFN_IN || role == GG_ROLE_FFN_OUT)
        states[i] = feed_forward_state(c, g, i, &why[i]);
    else if (role == GG_ROLE_FFN_LATENT_OUT)
        states[i] = latent_out_state(c, g, l, r, &why[i]);
    else if (role == GG_ROLE_JOINED)
        states[i] = c->whole_sums ? gg_by_rows(c, 1, r->ne[1]) : by_columns(c, r, &why[i]);
    else if (role == GG_ROLE_VOCABULARY)
        states[i] = gg_by_rows(c, l->bias ? 0 : 1, r->ne[l->bias ? 0 : 1]);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_cut_by_names(const struct gg_cutter *c, struct sheaf_split_state **states,
                                  const char **why, bool *is_named) {
    const struct gg_encoder *e = c->e;
    const size_t n = e->n_unbound;
    struct gg_whole g = {.unbound = calloc(n + 1, sizeof *g.unbound)};
    enum sheaf_status st = g.unbound && gg_whole_of(e->host, c->graph, &g)
                               ? SHEAF_STATUS_SUCCESS
                               : SHEAF_STATUS_ALLOC_FAILED;
    *is_named = false;
    for (size_t i = 0; i < g.n; i++) *is_named = *is_named || g.all[i].leaf.role != GG_ROLE_NONE;
    for (size_t i = 0; i < n && !st; i++) gg_leaf_of(e->unbound[i]->name, &g.unbound[i]);
    for (size_t i = 0; i < n && !st; i++)
        if (!states[i] && !why[i]) st = cut_one(c, &g, i, states, why);
    free(g.all);
    free(g.unbound);
    return st;
}
