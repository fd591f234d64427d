/* A graph of ours as a graph of ggml, and whether a device computes a node.
 *
 * Both ways use the same steps: a node is lowered if need be, every node of the result is
 * translated, and operands become descriptors. A graph then gives all of them memory: that of our
 * tensors, or scratch of its own for what lowering has added; the question whether a node can be
 * computed does without.
 *
 * Invariant: a kept graph holds copies of all tensors it was made of, so that a graph that comes
 * again is known to be the same, or the same with views that have moved, before anything is
 * computed; no allocation is needed then. A result that is read outside of its graph is an output
 * to ggml, which therefore never fuses it away. */
#include <stdlib.h>
#include <string.h>

#include "backend/optional.h"
#include "base/array.h"
#include "base/hash.h"
#include "ggml/member.h"

enum { CHUNK = 64, SELF_SPAN = offsetof(struct sheaf_tensor, extra) };

/* A descriptor made here. */
struct item {
    struct gg_tensor gg;
    const struct sheaf_tensor *from; /* the tensor whose memory it has; NULL: scratch or a view */
    const float *values;             /* to be written once; NULL: none */
};
struct chunk {
    struct chunk *next;
    size_t n;
    struct item items[CHUNK];
};

/* A tensor of ours as it was. */
struct seen {
    const struct sheaf_tensor *tensor;
    struct gg_tensor *gg; /* NULL: none */
    uint64_t serial;      /* of the buffer */
    struct sheaf_tensor copy;
};

struct gg_graph {
    struct gg_member *m;
    struct chunk *first, *last;
    size_t n_items;
    struct seen *seen; /* the nodes, then what they read */
    size_t n_seen, cap_seen;
    int n_nodes;
    bool has_lowered;
    void *ctx;
    struct gg_cgraph *graph;
    struct gg_buffer *scratch;
};

/* ---- building ---- */

struct slot {
    const struct sheaf_tensor *key;
    struct gg_tensor *gg;
};
struct build {
    struct gg_graph *g;
    const struct gg_library *lib;
    struct slot *slots; /* open addressed */
    size_t n_slots, n_used;
    struct gg_tensor **nodes; /* of ggml, in order */
    size_t n_nodes, cap_nodes;
    struct gg_lowered **lowered;
    size_t n_lowered, cap_lowered;
    bool with_memory, no_memory; /* the latter: out of it */
    bool lowers;                 /* the nodes are those of a lowered one */
    enum sheaf_status refused;   /* with its text */
};

static struct slot *slot_of(const struct build *b, const struct sheaf_tensor *key) {
    size_t i = sheaf__hash_address(key, b->n_slots);
    while (b->slots[i].key && b->slots[i].key != key) i = (i + 1) & (b->n_slots - 1);
    return &b->slots[i];
}

static bool grow_slots(struct build *b) {
    struct slot *old = b->slots;
    const size_t n = b->n_slots;
    b->n_slots = n ? 2 * n : 64;
    b->slots = calloc(b->n_slots, sizeof *b->slots);
    if (!b->slots) {
        b->slots = old;
        b->n_slots = n;
        return false;
    }
    for (size_t i = 0; i < n; i++)
        if (old[i].key) *slot_of(b, old[i].key) = old[i];
    free(old);
    return true;
}

static void map(struct build *b, const struct sheaf_tensor *key, struct gg_tensor *gg) {
    if (2 * (b->n_used + 1) > b->n_slots && !grow_slots(b)) {
        b->no_memory = true;
        return;
    }
    struct slot *s = slot_of(b, key);
    b->n_used += !s->key;
    *s = (struct slot){key, gg};
}

static struct item *new_item(struct build *b) {
    static struct item none; /* when out of memory: written to, never computed with */
    struct gg_graph *g = b->g;
    if (!g->last || g->last->n == CHUNK) {
        struct chunk *c = calloc(1, sizeof *c);
        if (!c) {
            b->no_memory = true;
            return &none;
        }
        if (g->last)
            g->last->next = c;
        else
            g->first = c;
        g->last = c;
    }
    g->n_items++;
    return &g->last->items[g->last->n++];
}

static uint64_t serial_of(const struct sheaf_tensor *t) {
    const struct gg_member_buffer *m = gg_member_buffer_of(t);
    return m ? m->serial : 0;
}

static void remember(struct build *b, const struct sheaf_tensor *t) {
    struct gg_graph *g = b->g;
    if (!b->with_memory) return;
    if (!sheaf__grow(&g->seen, &g->cap_seen, g->n_seen + 1, sizeof *g->seen)) {
        b->no_memory = true;
        return;
    }
    struct seen *s = &g->seen[g->n_seen++];
    s->tensor = t;
    s->gg = NULL;
    s->serial = serial_of(t);
    memcpy(&s->copy, t, sizeof s->copy);
}

/* The descriptor that the buffer of a weight keeps, if there is one of this very layout. */
static struct gg_tensor *kept_of(const struct sheaf_tensor *t) {
    struct gg_kept *kept = gg_member_kept(t);
    struct gg_tensor own, *k = kept ? &kept->gg : NULL;
    gg_lay_out(t, &own);
    const bool same = k && k->type == gg_member_buffer_of(t)->member->lib->type[t->type] &&
                      !memcmp(k->ne, own.ne, sizeof k->ne) && !memcmp(k->nb, own.nb, sizeof k->nb);
    return same ? k : NULL;
}

static void shape(const struct gg_library *lib, const struct sheaf_tensor *t,
                  struct gg_tensor *out) {
    out->type = lib->type[t->type];
    gg_lay_out(t, out);
    memcpy(out->name, t->name, sizeof out->name);
}

static struct gg_tensor *descriptor(struct build *b, const struct sheaf_tensor *t);

static struct gg_tensor *new_leaf(struct build *b, const struct sheaf_tensor *t) {
    struct gg_tensor *kept = b->with_memory && !t->view_src ? kept_of(t) : NULL;
    if (kept) return kept;
    struct item *item = new_item(b);
    shape(b->lib, t, &item->gg);
    if (t->view_src) {
        item->gg.view_src = descriptor(b, t->view_src);
        item->gg.view_offs = t->view_offs;
    } else {
        item->from = t;
    }
    return &item->gg;
}

/* Of an operand: that of the node which makes it, or of a leaf. */
static struct gg_tensor *descriptor(struct build *b, const struct sheaf_tensor *t) {
    struct gg_tensor *gg = b->n_slots ? slot_of(b, t)->gg : NULL;
    if (gg) return gg;
    remember(b, t);
    gg = new_leaf(b, t);
    map(b, t, gg);
    return gg;
}

static bool add_node(struct build *b, struct gg_tensor *gg) {
    if (!sheaf__grow(&b->nodes, &b->cap_nodes, b->n_nodes + 1, sizeof *b->nodes)) {
        b->no_memory = true;
        return false;
    }
    b->nodes[b->n_nodes++] = gg;
    return true;
}

/* Results of two dimensions in ggml that are flat here (translate.c): nodes that read them see them
 * so. NULL: no such node. */
static struct gg_tensor *emit_flat(struct build *b, const struct sheaf_tensor *node,
                                   struct gg_tensor *gg) {
    struct sheaf_tensor flat = *node;
    int8_t order[GG_MAX_SRC];
    struct item *item = new_item(b);
    flat.op = SHEAF_OP_RESHAPE;
    memset(flat.op_params, 0, sizeof flat.op_params);
    memset(flat.src, 0, sizeof flat.src);
    if (!gg_translate_back(&b->lib->host, &flat, &item->gg, order)) return NULL;
    item->gg.src[0] = item->gg.view_src = gg;
    return &item->gg;
}

/* May a token name an expert twice? Ids of other members' experts become that of one held here.
 * ggml's kernels for packed experts have room for as many rows of an expert as there are tokens. */
static bool repeats_experts(const struct build *b, const struct sheaf_tensor *node) {
    return b->lowers && node->op == SHEAF_OP_MUL_MAT_ID && node->src[2]->ne[0] > 1;
}

/* Weights that the device has, or now gets, in a layout of its own. False: something else reads
 * one. */
static bool take_packed(struct build *b, struct gg_tensor *gg, const int8_t order[GG_MAX_SRC],
                        const struct sheaf_tensor *node) {
    for (int i = 0; i < GG_MAX_SRC && b->with_memory && b->g->m->n_layouts; i++) {
        const struct sheaf_tensor *src = order[i] >= 0 ? node->src[order[i]] : NULL;
        const bool may = src && !i && !repeats_experts(b, node);
        struct gg_tensor *packed = may ? gg_pack(src, node, gg) : NULL;
        if (packed)
            gg->src[i] = packed;
        else if (src && gg_read_as_written(src, "compute with")) {
            b->refused = SHEAF_STATUS_UNSUPPORTED;
            return false;
        }
    }
    return true;
}

/* One node that ggml has. NULL: it has not. */
static struct gg_tensor *emit_plain(struct build *b, const struct sheaf_tensor *node) {
    int8_t order[GG_MAX_SRC];
    struct gg_tensor gg;
    if (!gg_translate_back(&b->lib->host, node, &gg, order)) return NULL;
    struct item *item = new_item(b);
    item->gg = gg;
    for (int i = 0; i < GG_MAX_SRC; i++) {
        const struct sheaf_tensor *src = order[i] >= 0 ? node->src[order[i]] : NULL;
        item->gg.src[i] = order[i] == GG_SELF_SRC ? &item->gg : src ? descriptor(b, src) : NULL;
        if (src && item->gg.src[i]->type < 0) return NULL; /* a type that this ggml lacks */
    }
    if (!take_packed(b, &item->gg, order, node)) return NULL;
    if (node->view_src) {
        item->gg.view_src = descriptor(b, node->view_src);
        item->gg.view_offs = node->view_offs;
    } else {
        item->from = node;
    }
    if (!(node->flags & SHEAF__TENSOR_INTERNAL)) item->gg.flags |= GG_FLAG_OUTPUT;
    const bool same = !memcmp(item->gg.ne, node->ne, sizeof node->ne);
    if (same) gg_lay_out(node, &item->gg);
    struct gg_tensor *seen = same ? &item->gg : emit_flat(b, node, &item->gg);
    if (!seen) return NULL;
    map(b, node, seen);
    if (!sheaf_op_is_view(node->op)) add_node(b, &item->gg);
    return seen;
}

static struct gg_tensor *emit_values(struct build *b, const struct sheaf_tensor *t,
                                     const float *values) {
    struct item *item = new_item(b);
    shape(b->lib, t, &item->gg);
    item->values = values;
    map(b, t, &item->gg);
    return &item->gg;
}

static bool emit_lowered(struct build *b, const struct sheaf_tensor *node, struct gg_lowered *l) {
    struct gg_tensor *gg = NULL;
    for (int i = 0; i < l->n; i++) {
        const struct sheaf_tensor *t = &l->t[i];
        gg = t->op == SHEAF_OP_NONE ? emit_values(b, t, l->values) : emit_plain(b, t);
        if (!gg) return false;
        if (!l->takes[i] && t->op != SHEAF_OP_NONE && !t->view_src) { /* scratch */
            struct item *item = (struct item *)(void *)gg;
            item->from = NULL;
        }
    }
    map(b, node, gg);
    return true;
}

/* False: there is no such node in ggml, or no memory. */
static bool emit(struct build *b, const struct sheaf_tensor *node) {
    struct gg_lowered *l = malloc(sizeof *l);
    if (!l || !sheaf__grow(&b->lowered, &b->cap_lowered, b->n_lowered + 1, sizeof(void *))) {
        free(l);
        b->no_memory = true;
        return false;
    }
    if (gg_lower(b->g->m, node, l)) {
        b->lowered[b->n_lowered++] = l; /* its tensors are keys */
        b->g->has_lowered = b->lowers = true;
        const bool emitted = emit_lowered(b, node, l);
        b->lowers = false;
        return emitted;
    }
    const bool refused = l->n < 0;
    free(l);
    return !refused && emit_plain(b, node);
}

static void build_free(struct build *b) {
    for (size_t i = 0; i < b->n_lowered; i++) {
        gg_lowered_free(b->lowered[i]);
        free(b->lowered[i]);
    }
    free(b->lowered);
    free(b->slots);
    free(b->nodes);
}

/* ---- questions of support ---- */

static bool runs(const struct build *b, const struct gg_tensor *gg) {
    return b->lib->dev_supports_op(b->g->m->dev, gg);
}

bool gg_member_takes(const struct gg_member *m, const struct sheaf_tensor *node) {
    if (node->op == SHEAF_OP_NONE || sheaf_op_is_view(node->op)) return true;
    if (!gg_member_accepts(m, node)) return false;
    struct gg_graph g = {.m = (struct gg_member *)(uintptr_t)m};
    struct build b = {.g = &g, .lib = m->lib};
    bool yes = emit(&b, node) && !b.no_memory;
    for (size_t i = 0; i < b.n_nodes && yes; i++) yes = runs(&b, b.nodes[i]);
    build_free(&b);
    for (struct chunk *c = g.first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    return yes;
}

bool gg_member_supports(const struct gg_member *m, const struct sheaf_tensor *node) {
    const bool works = node->op != SHEAF_OP_NONE && !sheaf_op_is_view(node->op);
    return !works || (sheaf_backend_op_is_valid(node) && gg_member_takes(m, node));
}

/* ---- memory ---- */

static enum sheaf_status no_memory(const struct gg_member *m) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for a graph", m->name);
}

static enum sheaf_status place(const struct build *b, struct gg_buffer *buffer,
                               struct gg_tensor *gg, void *data) {
    if (!b->lib->tensor_alloc(buffer, gg, data)) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_FAILED, "%s: cannot place '%s' (%s)", b->g->m->name,
                           gg->name, gg_library_text(b->lib));
}

static enum sheaf_status place_owner(const struct build *b, struct item *item) {
    const struct sheaf_tensor *t = item->from;
    const struct gg_member_buffer *buffer = gg_member_buffer_of(t);
    if (sheaf_is_empty(t)) return SHEAF_STATUS_SUCCESS;
    if (!buffer || !t->data)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: tensor '%s' does not lie in its memory",
                               b->g->m->name, t->name);
    return place(b, buffer->gg, &item->gg, t->data);
}

static size_t aligned(const struct build *b, size_t n) {
    const size_t a = b->lib->buft_get_alignment(b->g->m->gg_buft);
    return (n + a - 1) / a * a;
}

static size_t scratch_bytes(const struct build *b, const struct item *item) {
    return aligned(b, b->lib->buft_get_alloc_size(b->g->m->gg_buft, &item->gg));
}

static enum sheaf_status place_scratch(struct build *b) {
    struct gg_graph *g = b->g;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    size_t total = 0, at = 0;
    for (struct chunk *c = g->first; c; c = c->next)
        for (size_t i = 0; i < c->n; i++)
            if (!c->items[i].from && !c->items[i].gg.view_src)
                total += scratch_bytes(b, &c->items[i]);
    if (!total) return st;
    g->scratch = b->lib->buft_alloc_buffer(g->m->gg_buft, total);
    if (!g->scratch) return no_memory(g->m);
    char *base = b->lib->buffer_get_base(g->scratch);
    for (struct chunk *c = g->first; c; c = c->next) {
        for (size_t i = 0; i < c->n && !st; i++) {
            struct item *item = &c->items[i];
            if (item->from || item->gg.view_src) continue;
            st = place(b, g->scratch, &item->gg, base + at);
            at += scratch_bytes(b, item);
            if (!st && item->values)
                b->lib->tensor_set(&item->gg, item->values, 0,
                                   (size_t)(item->gg.ne[2] * item->gg.ne[1] * item->gg.ne[0]) *
                                       sizeof *item->values);
        }
    }
    return st;
}

static enum sheaf_status place_all(struct build *b) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (struct chunk *c = b->g->first; c; c = c->next)
        for (size_t i = 0; i < c->n && !st; i++)
            if (c->items[i].from) st = place_owner(b, &c->items[i]);
    if (!st) st = place_scratch(b);
    for (struct chunk *c = b->g->first; c; c = c->next) {
        for (size_t i = 0; i < c->n && !st; i++) {
            struct gg_tensor *gg = &c->items[i].gg;
            if (gg->view_src && gg->view_src->data && b->lib->view_init(gg))
                st = sheaf_set_error(SHEAF_STATUS_FAILED, "%s: cannot place '%s'", b->g->m->name,
                                     gg->name);
        }
    }
    return st;
}

/* ---- graphs ---- */

static enum sheaf_status refuse(const struct build *b, const struct sheaf_tensor *node) {
    const struct sheaf_tensor *a = node->src[0];
    return sheaf_set_error(
        SHEAF_STATUS_UNSUPPORTED,
        "%s cannot compute %s '%s' [%lld, %lld, %lld, %lld] of %s%s (%s); leave the device out, or "
        "cut the model otherwise",
        b->g->m->name, sheaf_op_desc(node), node->name, (long long)node->ne[0],
        (long long)node->ne[1], (long long)node->ne[2], (long long)node->ne[3],
        a ? sheaf_type_name(a->type) : "nothing",
        node->op_params[SHEAF_OP_PARAM_EXTENT] ? " as a slice" : "", gg_library_text(b->lib));
}

static enum sheaf_status emit_nodes(struct build *b, const struct sheaf_cgraph *graph) {
    for (int i = 0; i < b->g->n_nodes; i++) {
        const struct sheaf_tensor *node = sheaf_graph_node(graph, i);
        const size_t before = b->n_nodes;
        if (node->op == SHEAF_OP_NONE || sheaf_is_empty(node)) continue; /* a leaf, if anything */
        bool ok = emit(b, node);
        if (b->no_memory) return no_memory(b->g->m);
        if (b->refused) return b->refused;
        if (ok && !sheaf_op_is_view(node->op)) ok = gg_member_accepts(b->g->m, node);
        for (size_t k = before; k < b->n_nodes && ok; k++) ok = runs(b, b->nodes[k]);
        if (!ok) return refuse(b, node);
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status make_graph(struct build *b) {
    struct gg_graph *g = b->g;
    const struct gg_library *lib = b->lib;
    if (!b->n_nodes) return SHEAF_STATUS_SUCCESS;
    const size_t size = 2 * g->n_items + g->n_seen + 16;
    g->ctx = lib->init((struct gg_init_params){
        .mem_size = lib->graph_overhead_custom(size, false) + 1024, .no_alloc = true});
    g->graph = g->ctx ? lib->new_graph_custom(g->ctx, size, false) : NULL;
    if (!g->graph) return no_memory(g->m);
    for (size_t i = 0; i < b->n_nodes; i++) lib->build_forward_expand(g->graph, b->nodes[i]);
    if (lib->graph_next_uid) g->graph->uid = lib->graph_next_uid();
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_graph_new(struct gg_member *m, const struct sheaf_cgraph *graph,
                               struct gg_graph **out) {
    struct gg_graph *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return no_memory(m);
    struct build b = {.g = g, .lib = m->lib, .with_memory = true};
    g->m = m;
    g->n_nodes = sheaf_graph_n_nodes(graph);
    for (int i = 0; i < g->n_nodes; i++) remember(&b, sheaf_graph_node(graph, i));
    enum sheaf_status st = b.no_memory ? no_memory(m) : emit_nodes(&b, graph);
    if (!st) st = place_all(&b);
    if (!st) st = make_graph(&b);
    for (size_t i = 0; i < g->n_seen && b.n_slots; i++)
        g->seen[i].gg = slot_of(&b, g->seen[i].tensor)->gg;
    build_free(&b);
    if (st) {
        gg_graph_free(g);
        return st;
    }
    *out = g;
    return st;
}

void gg_graph_free(struct gg_graph *g) {
    if (!g) return;
    if (g->ctx) g->m->lib->free(g->ctx);
    if (g->scratch) g->m->lib->buffer_free(g->scratch);
    for (struct chunk *c = g->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(g->seen);
    free(g);
}

static bool is_like(const struct seen *s, const struct sheaf_tensor *copy) {
    return !memcmp(s->tensor, copy, SELF_SPAN) && serial_of(s->tensor) == s->serial;
}

/* A view that lies elsewhere in its owner. A lowered node has views of its own. */
static bool has_moved(const struct gg_graph *g, const struct seen *s) {
    struct sheaf_tensor there;
    if (g->has_lowered || !s->gg || !s->copy.view_src) return false;
    memcpy(&there, &s->copy, sizeof there);
    there.data = s->tensor->data;
    there.view_offs = s->tensor->view_offs;
    if (there.op == SHEAF_OP_VIEW)
        memcpy(there.op_params, s->tensor->op_params, sizeof there.op_params);
    return is_like(s, &there);
}

/* An operand is looked at after the node that names it was found to name it still. */
enum gg_fit gg_graph_fit(const struct gg_graph *g, const struct sheaf_cgraph *graph) {
    enum gg_fit fit = GG_FITS;
    if (sheaf_graph_n_nodes(graph) != g->n_nodes) return GG_FITS_NOT;
    for (int i = 0; i < g->n_nodes; i++)
        if (sheaf_graph_node((struct sheaf_cgraph *)(uintptr_t)graph, i) != g->seen[i].tensor)
            return GG_FITS_NOT;
    for (size_t i = 0; i < g->n_seen; i++) {
        if (is_like(&g->seen[i], &g->seen[i].copy)) continue;
        if (!has_moved(g, &g->seen[i])) return GG_FITS_NOT;
        fit = GG_FITS_MOVED;
    }
    return fit;
}

/* Kernels of GPUs do not take every offset. */
static bool takes_still(const struct gg_graph *g, const struct seen *node) {
    const struct sheaf_tensor *t = node->tensor;
    if (t->op == SHEAF_OP_NONE || sheaf_op_is_view(t->op) || sheaf_is_empty(t)) return true;
    return gg_member_accepts(g->m, t) && g->m->lib->dev_supports_op(g->m->dev, node->gg);
}

bool gg_graph_move(struct gg_graph *g) {
    bool good = true;
    for (size_t i = 0; i < g->n_seen; i++) {
        struct seen *s = &g->seen[i];
        if (is_like(s, &s->copy)) continue;
        s->gg->data = s->tensor->data;
        s->gg->view_offs = s->tensor->view_offs;
        memcpy(&s->copy, s->tensor, sizeof s->copy);
    }
    for (int i = 0; i < g->n_nodes && good; i++) good = takes_still(g, &g->seen[i]);
    if (g->graph && g->m->lib->graph_next_uid) g->graph->uid = g->m->lib->graph_next_uid();
    return good;
}

struct gg_cgraph *gg_graph_get(const struct gg_graph *g) {
    return g->graph;
}
size_t gg_graph_n_tensors(const struct gg_graph *g) { return g->n_items + g->n_seen; }
