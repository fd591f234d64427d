/* Cuts by the graph alone, for programs whose weights have no names that are known (whisper.cpp,
 * stable-diffusion.cpp: "leaf_7").
 *
 * A matrix whose rows become, element by element, the columns of another one is cut by them, and
 * the other by its columns: one sum behind the pair. Flash attention is such a pair, too, in units
 * of heads: the matrices of q, k and v by rows, the caches that k and v are copied to by heads, the
 * matrix behind by columns. A product that nothing in the graph reads is cut by rows.
 *
 * A graph in which one name is known is left to the names (cut_names.c), and with whole sums
 * (SHEAF_SPLIT_SUMS) nothing is cut here. A cut that does not suit costs speed, never the
 * result. */
#include "ggml/cut_axis.h"
#include "ggml/translate.h"

enum { MAX_PARTS = 24, MAX_DEPTH = 16, LEAST_BYTES = 64 << 10 };

/* Weights and caches that are cut together: n elements in units of `unit`. */
struct pair {
    const struct gg_cutter *c;
    int64_t n, unit;
    struct part {
        size_t region; /* of e->unbound */
        int axis;
        int64_t outer; /* repeats of all units */
    } parts[MAX_PARTS];
    int n_parts;
    int n_products; /* whose rows are cut */
};

static enum sheaf_op op_of(const struct gg_cutter *c, const struct gg_tensor *t) {
    return t->op ? gg_op_of(c->e->host, t->op) : SHEAF_OP_COUNT;
}

static bool is_leaf(const struct gg_tensor *t) { return t->op == 0 && !t->view_src; }

/* The number of a weight or cache that has no cut yet; n_unbound: it has one, or is none. */
static size_t region_of(const struct gg_cutter *c, const struct gg_tensor *t) {
    const struct gg_memory *m = c->e->memory_of(t);
    const struct gg_region *r = m && gg_is_static(c->e->host, t) ? gg_region_find(m, t) : NULL;
    size_t i = 0;
    while (i < c->e->n_unbound && c->e->unbound[i] != r) i++;
    return i;
}

static bool add_part(struct pair *p, const struct gg_tensor *t, int axis, int64_t outer) {
    const size_t region = region_of(p->c, t);
    if (region == p->c->e->n_unbound || p->n_parts == MAX_PARTS) return false;
    for (int i = 0; i < p->n_parts; i++)
        if (p->parts[i].region == region)
            return p->parts[i].axis == axis && p->parts[i].outer == outer;
    p->parts[p->n_parts++] = (struct part){region, axis, outer};
    return true;
}

static bool is_matrix(const struct gg_tensor *t) {
    return is_leaf(t) && t->ne[2] == 1 && t->ne[3] == 1;
}

static bool follow(struct pair *p, const struct gg_tensor *t, int depth);

/* A vector of n elements for all columns; one that is cut already, or an input, is as good. */
static bool follow_leaf(struct pair *p, const struct gg_tensor *t) {
    if (t->ne[0] != p->n || t->ne[1] != 1 || t->ne[2] != 1 || t->ne[3] != 1) return false;
    return region_of(p->c, t) == p->c->e->n_unbound || add_part(p, t, 0, 1);
}

static bool follow_product(struct pair *p, const struct gg_tensor *t) {
    const struct gg_tensor *w = t->src[0];
    if (!is_matrix(w) || w->ne[1] != p->n || !add_part(p, w, 1, 1)) return false;
    p->n_products++;
    return true;
}

/* q, k or v of heads: a product, or a cache with what is copied to it. */
static bool follow_heads(struct pair *p, const struct gg_tensor *t, int depth) {
    const struct gg_tensor *root = gg_root(t);
    while (root->op && root->ne[0] != p->n && depth++ < MAX_DEPTH && root->src[0])
        root = gg_root(root->src[0]);
    if (root->op) return follow(p, root, depth);
    int64_t n = 1;
    for (int i = 0; i < GG_MAX_DIMS; i++) n *= root->ne[i];
    if (n % p->n || (root->ne[0] != p->n && root->ne[0] != n)) return false;
    if (region_of(p->c, root) < p->c->e->n_unbound && !add_part(p, root, 0, root->ne[0] / p->n))
        return false;
    for (int i = 0; i < p->c->graph->n_nodes; i++) {
        const struct gg_tensor *copy = p->c->graph->nodes[i];
        const struct pair before = *p;
        if (op_of(p->c, copy) != SHEAF_OP_CPY || gg_root(copy) != root) continue;
        if (!follow(p, copy->src[0], depth)) *p = before; /* it is gathered */
    }
    return true;
}

static bool follow_attention(struct pair *p, const struct gg_tensor *t, int depth) {
    const struct gg_tensor *q = t->src[0], *k = t->src[1], *v = t->src[2];
    if (p->unit != 1 || q->ne[0] != k->ne[0] || q->ne[0] != v->ne[0] || q->ne[2] != k->ne[2] ||
        q->ne[2] != v->ne[2] || q->ne[0] * q->ne[2] != p->n || t->src[4])
        return false;
    p->unit = q->ne[0];
    return follow_heads(p, q, depth) && follow_heads(p, k, depth) && follow_heads(p, v, depth);
}

/* Back from t [n, ...] to the products that it comes from. */
static bool follow(struct pair *p, const struct gg_tensor *t, int depth) {
    if (depth > MAX_DEPTH) return false;
    if (is_leaf(t)) return follow_leaf(p, t);
    switch (op_of(p->c, t)) {
    case SHEAF_OP_MUL_MAT:
        return follow_product(p, t);
    case SHEAF_OP_FLASH_ATTN_EXT:
        return follow_attention(p, t, depth + 1);
    case SHEAF_OP_RESHAPE:
    case SHEAF_OP_CONT:
    case SHEAF_OP_DUP:
        if (t->ne[0] != p->n) return false;
        if (t->src[0]->ne[0] != p->n && op_of(p->c, t->src[0]) != SHEAF_OP_FLASH_ATTN_EXT)
            return false;
        return follow(p, t->src[0], depth + 1);
    case SHEAF_OP_UNARY:
    case SHEAF_OP_SCALE:
    case SHEAF_OP_SQR:
    case SHEAF_OP_CLAMP:
    case SHEAF_OP_LEAKY_RELU:
        return follow(p, t->src[0], depth + 1);
    case SHEAF_OP_ADD:
    case SHEAF_OP_SUB:
    case SHEAF_OP_MUL:
    case SHEAF_OP_DIV:
        return t->src[0]->ne[0] == p->n && t->src[1]->ne[0] == p->n &&
               follow(p, t->src[0], depth + 1) && follow(p, t->src[1], depth + 1);
    case SHEAF_OP_GLU:
        return t->src[1] && follow(p, t->src[0], depth + 1) && follow(p, t->src[1], depth + 1);
    default:
        return false;
    }
}

/* ---- states ---- */

static struct sheaf_split_state *state_of(const struct pair *p, const struct part *part) {
    struct sheaf_split_state *s = gg_cut_axis(p->c, part->axis, p->n / p->unit, p->unit);
    if (s) s->segments[0].outer = part->outer;
    return s;
}

/* All of them, or none. */
static enum sheaf_status apply(const struct pair *p, struct sheaf_split_state **states) {
    struct sheaf_split_state *made[MAX_PARTS] = {0};
    bool all = true;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < p->n_parts && all && !st; i++) {
        const size_t region = p->parts[i].region;
        made[i] = state_of(p, &p->parts[i]);
        if (!made[i]) st = SHEAF_STATUS_ALLOC_FAILED;
        all = !st && !states[region] && gg_suits(p->c->e->unbound[region], made[i]);
    }
    for (int i = 0; i < p->n_parts; i++) {
        if (all && !st)
            states[p->parts[i].region] = made[i];
        else
            sheaf_split_state_free(made[i]);
    }
    return st;
}

/* Is it a matrix that is worth a cut and has none yet? *region: its number. */
static bool wants_cut(const struct gg_cutter *c, const struct gg_tensor *w,
                      struct sheaf_split_state *const *states, size_t *region) {
    *region = region_of(c, w);
    return is_matrix(w) && *region < c->e->n_unbound && !states[*region] &&
           c->e->unbound[*region]->bytes >= LEAST_BYTES;
}

static enum sheaf_status cut_pair(const struct gg_cutter *c, const struct gg_tensor *product,
                                  struct sheaf_split_state **states) {
    const struct gg_tensor *w = product->src[0];
    struct pair p = {.c = c, .n = w->ne[0], .unit = 1};
    size_t region;
    if (!wants_cut(c, w, states, &region) || !add_part(&p, w, 0, 1) ||
        !follow(&p, product->src[1], 0) || !p.n_products)
        return SHEAF_STATUS_SUCCESS;
    const int64_t block = sheaf_blck_size(c->e->unbound[region]->type);
    if (p.unit % block) p.unit = block % p.unit ? p.n : block;
    const bool divides = p.n % p.unit == 0 && p.n > p.unit;
    return divides ? apply(&p, states) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status cut_last(const struct gg_cutter *c, const struct gg_tensor *product,
                                  struct sheaf_split_state **states) {
    const struct gg_tensor *w = product->src[0];
    size_t region;
    if (!wants_cut(c, w, states, &region) || gg_use_count(c->graph, product) > 0)
        return SHEAF_STATUS_SUCCESS;
    states[region] = gg_cut_axis(c, 1, w->ne[1], 1);
    return states[region] ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* ---- all ---- */

enum sheaf_status gg_cut_by_graph(const struct gg_cutter *c, struct sheaf_split_state **states) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (c->whole_sums) return st;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < c->graph->n_nodes && !st; i++) {
            const struct gg_tensor *t = c->graph->nodes[i];
            if (op_of(c, t) != SHEAF_OP_MUL_MAT) continue;
            st = pass ? cut_last(c, t, states) : cut_pair(c, t, states);
        }
    }
    return st;
}
