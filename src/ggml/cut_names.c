/* Cuts by names. A layer is all weights whose names share what comes before the last part but one:
 * "blk.7.". Attention is cut by heads, alike in q, k, v, output and the caches; feed-forward by its
 * inner dimension; the output matrix by its vocabulary. With whole sums (SHEAF_SPLIT_SUMS) the last
 * matrix of attention and of feed-forward is cut by rows.
 *
 * The names are those of GGUF files (gguf-py/gguf/constants.py) and of llama.cpp's caches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/cut.h"
#include "ggml/translate.h"
#include "model/place/policy.h"

enum role {
    ROLE_NONE,
    ROLE_Q,         /* rows are query heads */
    ROLE_K,         /* rows are key heads */
    ROLE_V,         /* rows are value heads */
    ROLE_QKV,       /* all three */
    ROLE_O,         /* columns are query heads; rows are cut with whole sums */
    ROLE_SINKS,     /* an element a query head */
    ROLE_CACHE_K,   /* elements of a row are key heads */
    ROLE_CACHE_V,   /* elements of a row are value heads */
    ROLE_FFN_IN,    /* rows are the inner dimension, once or twice */
    ROLE_FFN_OUT,   /* columns are it; likewise */
    ROLE_VOCABULARY /* rows are tokens */
};

static const struct {
    const char *part;
    enum role role;
} roles[] = {
    {"attn_q", ROLE_Q},
    {"attn_k", ROLE_K},
    {"attn_v", ROLE_V},
    {"attn_qkv", ROLE_QKV},
    {"attn_output", ROLE_O},
    {"attn_out", ROLE_O},
    {"attn_sinks", ROLE_SINKS},
    {"cache_k", ROLE_CACHE_K},
    {"cache_v", ROLE_CACHE_V},
    {"ffn_up", ROLE_FFN_IN},
    {"ffn_gate", ROLE_FFN_IN},
    {"ffn_down", ROLE_FFN_OUT},
    {"ffn_up_exps", ROLE_FFN_IN},
    {"ffn_gate_exps", ROLE_FFN_IN},
    {"ffn_gate_up_exps", ROLE_FFN_IN},
    {"ffn_down_exps", ROLE_FFN_OUT},
    {"ffn_up_shexp", ROLE_FFN_IN},
    {"ffn_gate_shexp", ROLE_FFN_IN},
    {"ffn_down_shexp", ROLE_FFN_OUT},
    {"output", ROLE_VOCABULARY},
    {"token_embd", ROLE_VOCABULARY},
};

struct leaf {
    enum role role;
    bool bias;
    char layer[GG_MAX_NAME]; /* "blk.7." */
    const char *family;      /* "_exps", "_shexp" or "": feed-forwards of one layer */
};

struct known { /* a tensor of the graph */
    const struct gg_tensor *tensor;
    int op; /* enum sheaf_op; -1: none of ours, or it is a leaf */
    struct leaf leaf;
};

struct whole {
    struct known *all; /* [n] in the order in which the program made them */
    size_t n;
    struct leaf *unbound; /* of e->unbound */
};

struct heads { /* of a layer */
    int64_t q, kv, size_q, size_k, size_v;
    int64_t *q_first, *q_count, *kv_first, *kv_count; /* [n_members] */
};

/* ---- names ---- */

static const char *family_of(const char *part) {
    const size_t n = strlen(part);
    if (n > 5 && !strcmp(part + n - 5, "_exps")) return "_exps";
    return n > 6 && !strcmp(part + n - 6, "_shexp") ? "_shexp" : "";
}

static void read_name(const char *name, struct leaf *l) {
    char text[GG_MAX_NAME], *dot, *last;
    int layer = 0;
    memset(l, 0, sizeof *l);
    l->family = "";
    snprintf(text, sizeof text, "%s", name);
    if (!strncmp(text, "cache_", 6) && (last = strstr(text, "_l")) &&
        sscanf(last, "_l%d", &layer)) {
        snprintf(l->layer, sizeof l->layer, "blk.%d.", layer);
        *last = 0;
        last = text;
    } else {
        if (!(dot = strrchr(text, '.'))) return;
        l->bias = !strcmp(dot, ".bias");
        if (!l->bias && strcmp(dot, ".weight") != 0) return;
        *dot = 0;
        dot = strrchr(text, '.');
        last = dot ? dot + 1 : text;
        snprintf(l->layer, sizeof l->layer, "%.*s", (int)(last - text), text);
    }
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(last, roles[i].part)) continue;
        l->role = roles[i].role;
        l->family = family_of(roles[i].part);
    }
}

/* ---- the whole graph ---- */

static void note(struct whole *g, const struct gg_tensor *t) {
    if (t) g->all[g->n++].tensor = t;
}

/* A program makes a graph's tensors one after the other. */
static int by_address(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)((const struct known *)a)->tensor;
    const uintptr_t y = (uintptr_t)((const struct known *)b)->tensor;
    return (x > y) - (x < y);
}

static void describe(const struct gg_host *host, struct known *k) {
    struct sheaf_tensor s;
    struct gg_operands o;
    if (k->tensor->op == 0) read_name(k->tensor->name, &k->leaf);
    k->op = k->tensor->op && gg_translate(host, k->tensor, &s, &o) ? (int)s.op : -1;
}

/* Nodes of the part, what they read, and what is in the table. False: out of memory. */
static bool find_all(const struct gg_host *host, const struct gg_cgraph *graph, struct whole *g) {
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

/* Also one that has its cut already, or is another device's: the caches of a second context follow
 * the weights. */
static const struct gg_tensor *find(const struct whole *g, const char *layer, enum role role,
                                    const char *family) {
    for (size_t i = 0; i < g->n; i++) {
        const struct leaf *l = &g->all[i].leaf;
        if (l->role == role && !l->bias && !strcmp(l->layer, layer) && !strcmp(l->family, family))
            return g->all[i].tensor;
    }
    return NULL;
}

/* ---- the graph ---- */

static bool passes_rows_on(int op) {
    return op == SHEAF_OP_ADD || op == SHEAF_OP_SCALE || op == SHEAF_OP_MUL ||
           op == SHEAF_OP_RMS_NORM || op == SHEAF_OP_CONT;
}

/* The views that take a product's rows apart, in the order of the graph. */
static int views_behind(const struct whole *g, const struct gg_tensor *weight,
                        const struct gg_tensor **out, int room) {
    const struct gg_tensor *now = NULL; /* the product, then what is added to it */
    int n = 0;
    for (size_t i = 0; i < g->n; i++) {
        const struct gg_tensor *t = g->all[i].tensor;
        const int op = g->all[i].op;
        if (op == SHEAF_OP_MUL_MAT && t->src[0] == weight && !now) now = t;
        if (!now || (t->src[0] != now && t->src[1] != now)) continue;
        if (passes_rows_on(op) && t->ne[0] == now->ne[0] && !n)
            now = t;
        else if ((op == SHEAF_OP_RESHAPE || op == SHEAF_OP_VIEW) && n < room)
            out[n++] = t;
    }
    return n;
}

/* Heads and their size in a product's rows; false: the graph does not say. */
static bool heads_of(const struct whole *g, const struct gg_tensor *weight, int64_t *heads,
                     int64_t *size) {
    const struct gg_tensor *views[8];
    const int n = weight ? views_behind(g, weight, views, 8) : 0;
    for (int i = 0; i < n; i++) {
        if (views[i]->ne[0] * views[i]->ne[1] != weight->ne[1] || views[i]->ne[0] == 0) continue;
        *size = views[i]->ne[0];
        *heads = views[i]->ne[1];
        return true;
    }
    return false;
}

/* q, k and v in a fused product: three views of heads, one behind the other. */
static bool heads_of_fused(const struct whole *g, const struct gg_tensor *weight, struct heads *h) {
    const struct gg_tensor *views[8], *part[3] = {0};
    const int n = views_behind(g, weight, views, 8);
    for (int i = 0; i < n; i++) {
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
    return part[2]->ne[1] == part[1]->ne[1] &&
           h->q * h->size_q + h->kv * (h->size_k + h->size_v) == weight->ne[1];
}

/* ---- states ---- */

static void fill(struct sheaf_split_segment *s, int n, int64_t units, int64_t inner,
                 const int64_t *first, const int64_t *count) {
    s->outer = 1;
    s->inner = inner;
    s->units = units;
    memcpy(s->first, first, (size_t)n * sizeof *first);
    memcpy(s->count, count, (size_t)n * sizeof *count);
}

static struct sheaf_split_state *by_heads(const struct gg_cutter *c, int axis, int64_t units,
                                          int64_t inner, const int64_t *first,
                                          const int64_t *count) {
    struct sheaf_split_state *s =
        sheaf_split_state_new((enum sheaf_split_axis)axis, c->n_members, 1);
    if (s) fill(&s->segments[0], c->n_members, units, inner, first, count);
    return s;
}

static struct sheaf_split_state *by_fused_heads(const struct gg_cutter *c, int axis,
                                                const struct heads *h) {
    struct sheaf_split_state *s =
        sheaf_split_state_new((enum sheaf_split_axis)axis, c->n_members, 3);
    if (!s) return NULL;
    fill(&s->segments[0], c->n_members, h->q, h->size_q, h->q_first, h->q_count);
    fill(&s->segments[1], c->n_members, h->kv, h->size_k, h->kv_first, h->kv_count);
    fill(&s->segments[2], c->n_members, h->kv, h->size_v, h->kv_first, h->kv_count);
    return s;
}

/* n rows of a matrix, or elements of its bias. */
static struct sheaf_split_state *by_rows(const struct gg_cutter *c, int axis, int64_t n) {
    const int64_t unit = c->whole_sums ? sheaf__row_group(n) : 1;
    return gg_cut_axis(c, axis, n / unit, unit);
}

/* n elements, once or twice (gate and up in one matrix). */
static struct sheaf_split_state *by_inner(const struct gg_cutter *c, int axis, int64_t n,
                                          int64_t inner, int times) {
    struct sheaf_split_state *one = gg_cut_axis(c, axis, n / inner, inner), *s;
    if (!one || times == 1) return one;
    s = sheaf_split_state_new((enum sheaf_split_axis)axis, c->n_members, times);
    for (int i = 0; s && i < times; i++)
        fill(&s->segments[i], c->n_members, n / inner, inner, one->segments[0].first,
             one->segments[0].count);
    sheaf_split_state_free(one);
    return s;
}

/* ---- layers ---- */

static bool find_heads(const struct whole *g, const char *layer, struct heads *h) {
    const struct gg_tensor *q = find(g, layer, ROLE_Q, "");
    const struct gg_tensor *k = find(g, layer, ROLE_K, "");
    const struct gg_tensor *v = find(g, layer, ROLE_V, "");
    const struct gg_tensor *qkv = find(g, layer, ROLE_QKV, "");
    int64_t kv_of_v = 0;
    if (qkv) {
        if (!heads_of_fused(g, qkv, h)) return false;
    } else if (!heads_of(g, q, &h->q, &h->size_q) || !heads_of(g, k, &h->kv, &h->size_k) ||
               !heads_of(g, v, &kv_of_v, &h->size_v) || kv_of_v != h->kv) {
        return false;
    }
    const struct gg_tensor *o = find(g, layer, ROLE_O, "");
    return h->kv > 0 && h->q % h->kv == 0 && o && o->ne[0] == h->q * h->size_v;
}

static struct sheaf_split_state *attention_state(const struct gg_cutter *c, const struct leaf *l,
                                                 const struct gg_region *r, const struct heads *h) {
    const int rows = l->bias ? 0 : 1; /* a bias has one element a row */
    switch (l->role) {
    case ROLE_Q:
        return by_heads(c, rows, h->q, h->size_q, h->q_first, h->q_count);
    case ROLE_K:
        return by_heads(c, rows, h->kv, h->size_k, h->kv_first, h->kv_count);
    case ROLE_V:
        return by_heads(c, rows, h->kv, h->size_v, h->kv_first, h->kv_count);
    case ROLE_QKV:
        return by_fused_heads(c, rows, h);
    case ROLE_O: /* its bias is added once */
        if (l->bias) return NULL;
        return c->whole_sums ? by_rows(c, 1, r->ne[1])
                             : by_heads(c, 0, h->q, h->size_v, h->q_first, h->q_count);
    case ROLE_SINKS:
        return by_heads(c, 0, h->q, 1, h->q_first, h->q_count);
    case ROLE_CACHE_K:
        return r->ne[0] == h->kv * h->size_k
                   ? by_heads(c, 0, h->kv, h->size_k, h->kv_first, h->kv_count)
                   : NULL;
    case ROLE_CACHE_V:
        return r->ne[0] == h->kv * h->size_v
                   ? by_heads(c, 0, h->kv, h->size_v, h->kv_first, h->kv_count)
                   : NULL;
    default:
        return NULL;
    }
}

static bool is_attention(enum role role) { return role >= ROLE_Q && role <= ROLE_CACHE_V; }

static enum sheaf_status cut_attention(const struct gg_cutter *c, const struct whole *g,
                                       const char *layer, struct sheaf_split_state **states,
                                       const char **why) {
    const size_t n = (size_t)c->n_members;
    int64_t *numbers = calloc(4 * n, sizeof *numbers);
    struct heads h = {.q_first = numbers,
                      .q_count = numbers + n,
                      .kv_first = numbers + 2 * n,
                      .kv_count = numbers + 3 * n};
    if (!numbers) return SHEAF_STATUS_ALLOC_FAILED;
    const bool known = find_heads(g, layer, &h);
    enum sheaf_status st = known ? sheaf__split_heads(h.kv, h.q / h.kv, c->shares, c->n_members,
                                                      h.q_first, h.q_count, h.kv_first, h.kv_count)
                                 : SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < c->e->n_unbound && !st; i++) {
        const struct leaf *l = &g->unbound[i];
        if (!is_attention(l->role) || strcmp(l->layer, layer)) continue;
        if (known) states[i] = attention_state(c, l, c->e->unbound[i], &h);
        if (!states[i])
            why[i] = known ? "its dimensions are not those of the layer's heads"
                           : "the graph does not say how many heads it has";
        if (states[i] &&
            sheaf_split_state_check(
                states[i],
                &(struct sheaf_tensor){.type = c->e->unbound[i]->type,
                                       .ne = {c->e->unbound[i]->ne[0], c->e->unbound[i]->ne[1],
                                              c->e->unbound[i]->ne[2], c->e->unbound[i]->ne[3]}})) {
            sheaf_split_state_free(states[i]);
            states[i] = NULL;
            why[i] = "its heads are no whole blocks of its type";
        }
    }
    free(numbers);
    return st;
}

static struct sheaf_split_state *
feed_forward_state(const struct gg_cutter *c, const struct whole *g, size_t i, const char **why) {
    const struct leaf *l = &g->unbound[i];
    const struct gg_region *r = c->e->unbound[i];
    const struct gg_tensor *down = find(g, l->layer, ROLE_FFN_OUT, l->family);
    const int rows = l->bias ? 0 : 1;
    if (!down) {
        *why = "its feed-forward has no ffn_down";
        return NULL;
    }
    const int64_t n = down->ne[0];
    const int type = gg_type_of(c->e->host, down->type); /* -1: of another device alone */
    const int64_t block = type < 0 ? 1 : sheaf_blck_size((enum sheaf_type)type);
    const int64_t inner = c->whole_sums ? sheaf__row_group(n) : block;
    if (l->role == ROLE_FFN_OUT) {
        if (l->bias) return NULL;
        return c->whole_sums ? by_rows(c, 1, r->ne[1]) : by_inner(c, 0, n, inner, 1);
    }
    if (r->ne[rows] == n) return by_inner(c, rows, n, inner, 1);
    if (r->ne[rows] == 2 * n) return by_inner(c, rows, n, inner, 2);
    *why = "its rows are not the columns of ffn_down";
    return NULL;
}

enum sheaf_status gg_cut_by_names(const struct gg_cutter *c, struct sheaf_split_state **states,
                                  const char **why) {
    const struct gg_encoder *e = c->e;
    const size_t n = e->n_unbound;
    struct whole g = {.unbound = calloc(n + 1, sizeof *g.unbound)};
    enum sheaf_status st = g.unbound && find_all(e->host, c->graph, &g) ? SHEAF_STATUS_SUCCESS
                                                                        : SHEAF_STATUS_ALLOC_FAILED;
    for (size_t i = 0; i < n && !st; i++) read_name(e->unbound[i]->name, &g.unbound[i]);
    for (size_t i = 0; i < n && !st; i++) {
        const struct gg_region *r = e->unbound[i];
        const struct leaf *l = &g.unbound[i];
        if (states[i] || why[i]) continue;
        if (is_attention(l->role))
            st = cut_attention(c, &g, l->layer, states, why);
        else if (l->role == ROLE_FFN_IN || l->role == ROLE_FFN_OUT)
            states[i] = feed_forward_state(c, &g, i, &why[i]);
        else if (l->role == ROLE_VOCABULARY)
            states[i] = by_rows(c, l->bias ? 0 : 1, r->ne[l->bias ? 0 : 1]);
    }
    free(g.all);
    free(g.unbound);
    return st;
}
