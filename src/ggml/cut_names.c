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

struct leaf { /* of e->objects or e->unbound */
    enum role role;
    bool bias;
    char layer[GG_MAX_NAME]; /* "blk.7." */
    const char *family;      /* "_exps", "_shexp" or "": feed-forwards of one layer */
};

struct leaves {
    struct leaf *all, *unbound; /* of e->objects, e->unbound */
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

/* Also one that has its cut already: the caches of a second context follow the weights. */
static const struct gg_region *find(const struct gg_cutter *c, const struct leaves *leaves,
                                    const char *layer, enum role role, const char *family) {
    for (size_t i = 0; i < c->e->n_objects; i++) {
        const struct leaf *l = &leaves->all[i];
        if (l->role == role && !l->bias && !strcmp(l->layer, layer) && !strcmp(l->family, family))
            return c->e->objects[i];
    }
    return NULL;
}

/* ---- the graph ---- */

static uint32_t leaf_record(const struct gg_encoder *e, const struct gg_region *r) {
    for (size_t i = 0; i < e->n_made; i++)
        if (e->made[i].record.kind == GG_LEAF_OBJECT && e->made[i].record.object == r->object)
            return (uint32_t)i + 1;
    return 0;
}

static bool passes_rows_on(uint32_t op) {
    return op == SHEAF_OP_ADD || op == SHEAF_OP_SCALE || op == SHEAF_OP_MUL ||
           op == SHEAF_OP_RMS_NORM || op == SHEAF_OP_CONT;
}

/* The views that take a product's rows apart, in the order of the graph: their records. */
static int views_behind(const struct gg_encoder *e, const struct gg_region *weight, uint32_t *out,
                        int room) {
    const uint32_t w = leaf_record(e, weight);
    uint32_t now = 0; /* the product, then what is added to it */
    int n = 0;
    for (size_t i = w; w && i < e->n_made; i++) {
        const struct gg_record *r = &e->made[i].record;
        if (r->kind != GG_NODE) continue;
        if (r->op == SHEAF_OP_MUL_MAT && r->src[0] == w && !now) now = (uint32_t)i + 1;
        if (!now || (r->src[0] != now && r->src[1] != now)) continue;
        if (passes_rows_on(r->op) && r->ne[0] == e->made[now - 1].record.ne[0] && !n)
            now = (uint32_t)i + 1;
        else if ((r->op == SHEAF_OP_RESHAPE || r->op == SHEAF_OP_VIEW) && n < room)
            out[n++] = (uint32_t)i;
    }
    return n;
}

/* Heads and their size in a product's rows; false: the graph does not say. */
static bool heads_of(const struct gg_encoder *e, const struct gg_region *weight, int64_t *heads,
                     int64_t *size) {
    uint32_t views[8];
    const int n = weight ? views_behind(e, weight, views, 8) : 0;
    for (int i = 0; i < n; i++) {
        const struct gg_record *r = &e->made[views[i]].record;
        if ((int64_t)(r->ne[0] * r->ne[1]) != weight->ne[1] || r->ne[0] == 0) continue;
        *size = (int64_t)r->ne[0];
        *heads = (int64_t)r->ne[1];
        return true;
    }
    return false;
}

/* q, k and v in a fused product: three views of heads, one behind the other. */
static bool heads_of_fused(const struct gg_encoder *e, const struct gg_region *weight,
                           struct heads *h) {
    uint32_t views[8];
    const struct gg_record *part[3] = {0};
    const int n = views_behind(e, weight, views, 8);
    for (int i = 0; i < n; i++) {
        const struct gg_record *r = &e->made[views[i]].record;
        for (int k = 0; k < 3; k++) {
            if (part[k] && r->view_offs == part[k]->view_offs) break;
            if (part[k] && r->view_offs > part[k]->view_offs) continue;
            for (int m = 2; m > k; m--) part[m] = part[m - 1];
            part[k] = r;
            break;
        }
    }
    if (!part[2]) return false;
    h->q = (int64_t)part[0]->ne[1];
    h->kv = (int64_t)part[1]->ne[1];
    h->size_q = (int64_t)part[0]->ne[0];
    h->size_k = (int64_t)part[1]->ne[0];
    h->size_v = (int64_t)part[2]->ne[0];
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

static bool find_heads(const struct gg_cutter *c, const struct leaves *leaves, const char *layer,
                       struct heads *h) {
    const struct gg_region *q = find(c, leaves, layer, ROLE_Q, "");
    const struct gg_region *k = find(c, leaves, layer, ROLE_K, "");
    const struct gg_region *v = find(c, leaves, layer, ROLE_V, "");
    const struct gg_region *qkv = find(c, leaves, layer, ROLE_QKV, "");
    int64_t kv_of_v = 0;
    if (qkv) {
        if (!heads_of_fused(c->e, qkv, h)) return false;
    } else if (!heads_of(c->e, q, &h->q, &h->size_q) || !heads_of(c->e, k, &h->kv, &h->size_k) ||
               !heads_of(c->e, v, &kv_of_v, &h->size_v) || kv_of_v != h->kv) {
        return false;
    }
    const struct gg_region *o = find(c, leaves, layer, ROLE_O, "");
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

static enum sheaf_status cut_attention(const struct gg_cutter *c, const struct leaves *leaves,
                                       const char *layer, struct sheaf_split_state **states,
                                       const char **why) {
    const size_t n = (size_t)c->n_members;
    int64_t *numbers = calloc(4 * n, sizeof *numbers);
    struct heads h = {.q_first = numbers,
                      .q_count = numbers + n,
                      .kv_first = numbers + 2 * n,
                      .kv_count = numbers + 3 * n};
    if (!numbers) return SHEAF_STATUS_ALLOC_FAILED;
    const bool known = find_heads(c, leaves, layer, &h);
    enum sheaf_status st = known ? sheaf__split_heads(h.kv, h.q / h.kv, c->shares, c->n_members,
                                                      h.q_first, h.q_count, h.kv_first, h.kv_count)
                                 : SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < c->e->n_unbound && !st; i++) {
        const struct leaf *l = &leaves->unbound[i];
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

static struct sheaf_split_state *feed_forward_state(const struct gg_cutter *c,
                                                    const struct leaves *leaves, size_t i,
                                                    const char **why) {
    const struct leaf *l = &leaves->unbound[i];
    const struct gg_region *r = c->e->unbound[i];
    const struct gg_region *down = find(c, leaves, l->layer, ROLE_FFN_OUT, l->family);
    const int rows = l->bias ? 0 : 1;
    if (!down) {
        *why = "its feed-forward has no ffn_down";
        return NULL;
    }
    const int64_t n = down->ne[0];
    const int64_t inner = c->whole_sums ? sheaf__row_group(n) : sheaf_blck_size(down->type);
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
    struct leaves leaves = {calloc(e->n_objects + 1, sizeof *leaves.all),
                            calloc(n + 1, sizeof *leaves.unbound)};
    enum sheaf_status st =
        leaves.all && leaves.unbound ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
    for (size_t i = 0; i < e->n_objects && !st; i++) read_name(e->objects[i]->name, &leaves.all[i]);
    for (size_t i = 0; i < n && !st; i++) read_name(e->unbound[i]->name, &leaves.unbound[i]);
    for (size_t i = 0; i < n && !st; i++) {
        const struct gg_region *r = e->unbound[i];
        const struct leaf *l = &leaves.unbound[i];
        if (states[i] || why[i]) continue;
        if (is_attention(l->role))
            st = cut_attention(c, &leaves, l->layer, states, why);
        else if (l->role == ROLE_FFN_IN || l->role == ROLE_FFN_OUT)
            states[i] = feed_forward_state(c, &leaves, i, &why[i]);
        else if (l->role == ROLE_VOCABULARY)
            states[i] = by_rows(c, l->bias ? 0 : 1, r->ne[l->bias ? 0 : 1]);
    }
    free(leaves.all);
    free(leaves.unbound);
    return st;
}
