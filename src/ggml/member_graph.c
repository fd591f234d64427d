/* A graph of the library as a graph of ggml, with memory: that of the library's tensors, or scratch
 * of its own for what lowering has added.
 *
 * Invariant: a kept graph holds copies of all tensors it was made of, so that a graph that comes
 * again is known to be the same, or the same with views that have moved, before anything is
 * computed; no allocation is needed then. A result that is read outside of its graph is an output
 * to ggml, which therefore never fuses it away. */
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "ggml/member_build.h"

enum { SELF_SPAN = offsetof(struct sheaf_tensor, extra) };

/* ---- memory ---- */

static enum sheaf_status no_memory(const struct gg_member *m) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for a graph", m->name);
}

static enum sheaf_status place(const struct gg_build *b, struct gg_buffer *buffer,
                               struct gg_tensor *gg, void *data) {
    if (!b->lib->tensor_alloc(buffer, gg, data)) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_FAILED, "%s: cannot place '%s' (%s)", b->g->m->name,
                           gg->name, gg_library_text(b->lib));
}

static enum sheaf_status place_owner(const struct gg_build *b, struct gg_item *item) {
    const struct sheaf_tensor *t = item->from;
    const struct gg_member_buffer *buffer = gg_member_buffer_of(t);
    if (sheaf_is_empty(t)) return SHEAF_STATUS_SUCCESS;
    if (!buffer || !t->data)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: tensor '%s' does not lie in its memory",
                               b->g->m->name, t->name);
    struct gg_buft *buft = t->buffer->buft->context;
    const size_t room = sheaf_backend_buft_get_alloc_size(t->buffer->buft, t);
    const size_t wanted = b->lib->buft_get_alloc_size(buft, &item->gg);
    if (wanted > room) /* a kernel would write to what lies behind */
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "%s: the device wants %zu bytes for %s '%s' and was asked about %zu "
                               "(%s)",
                               b->g->m->name, wanted, sheaf_op_desc(t), t->name, room,
                               gg_library_text(b->lib));
    return place(b, buffer->gg, &item->gg, t->data);
}

static size_t scratch_bytes(const struct gg_build *b, const struct gg_item *item) {
    struct gg_buft *buft = b->g->m->gg_buft;
    return sheaf__align_up(b->lib->buft_get_alloc_size(buft, &item->gg),
                           b->lib->buft_get_alignment(buft));
}

static bool is_scratch(const struct gg_item *item) { return !item->from && !item->gg.view_src; }

static size_t all_scratch_bytes(const struct gg_build *b) {
    size_t total = 0;
    for (struct gg_chunk *c = b->g->first; c; c = c->next)
        for (size_t i = 0; i < c->n; i++)
            if (is_scratch(&c->items[i])) total += scratch_bytes(b, &c->items[i]);
    return total;
}

static void write_values(const struct gg_build *b, struct gg_item *item) {
    const int64_t *ne = item->gg.ne;
    if (item->values)
        b->lib->tensor_set(&item->gg, item->values, 0,
                           (size_t)(ne[2] * ne[1] * ne[0]) * sizeof *item->values);
}

static enum sheaf_status place_scratch(struct gg_build *b) {
    struct gg_member_graph *g = b->g;
    const size_t total = all_scratch_bytes(b);
    if (!total) return SHEAF_STATUS_SUCCESS;
    g->scratch = b->lib->buft_alloc_buffer(g->m->gg_buft, total);
    if (!g->scratch) return no_memory(g->m);
    char *at = b->lib->buffer_get_base(g->scratch);
    for (struct gg_chunk *c = g->first; c; c = c->next) {
        for (size_t i = 0; i < c->n; i++) {
            struct gg_item *item = &c->items[i];
            if (!is_scratch(item)) continue;
            const enum sheaf_status st = place(b, g->scratch, &item->gg, at);
            if (st) return st;
            at += scratch_bytes(b, item);
            write_values(b, item);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status place_all(struct gg_build *b) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (struct gg_chunk *c = b->g->first; c; c = c->next)
        for (size_t i = 0; i < c->n && !st; i++)
            if (c->items[i].from) st = place_owner(b, &c->items[i]);
    if (!st) st = place_scratch(b);
    for (struct gg_chunk *c = b->g->first; c; c = c->next) {
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

static enum sheaf_status refuse(const struct gg_build *b, const struct sheaf_tensor *node) {
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

static enum sheaf_status build_nodes(struct gg_build *b, const struct sheaf_cgraph *graph) {
    for (int i = 0; i < b->g->n_nodes; i++) {
        const struct sheaf_tensor *node = sheaf_graph_node(graph, i);
        const size_t before = b->n_nodes;
        if (node->op == SHEAF_OP_NONE || sheaf_is_empty(node)) continue; /* a leaf, if anything */
        bool ok = gg_build_node(b, node);
        if (b->no_memory) return no_memory(b->g->m);
        if (b->refused) return b->refused;
        if (ok && !sheaf_op_is_view(node->op)) ok = gg_member_accepts(b->g->m, node);
        for (size_t k = before; k < b->n_nodes && ok; k++) ok = gg_build_runs(b, b->nodes[k]);
        if (!ok) return refuse(b, node);
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status make_graph(struct gg_build *b) {
    struct gg_member_graph *g = b->g;
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

enum sheaf_status gg_member_graph_new(struct gg_member *m, const struct sheaf_cgraph *graph,
                                      struct gg_member_graph **out) {
    struct gg_member_graph *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return no_memory(m);
    struct gg_build b = {.g = g, .lib = m->lib, .with_memory = true};
    g->m = m;
    g->n_nodes = sheaf_graph_n_nodes(graph);
    for (int i = 0; i < g->n_nodes; i++) gg_build_remember(&b, sheaf_graph_node(graph, i));
    enum sheaf_status st = b.no_memory ? no_memory(m) : build_nodes(&b, graph);
    if (!st) st = place_all(&b);
    if (!st) st = make_graph(&b);
    for (size_t i = 0; i < g->n_seen; i++) g->seen[i].gg = gg_build_find(&b, g->seen[i].tensor);
    gg_build_free(&b);
    if (st) {
        gg_member_graph_free(g);
        return st;
    }
    *out = g;
    return st;
}

void gg_member_graph_free(struct gg_member_graph *g) {
    if (!g) return;
    if (g->ctx) g->m->lib->free(g->ctx);
    if (g->scratch) g->m->lib->buffer_free(g->scratch);
    gg_items_free(g);
    free(g->seen);
    free(g);
}

static bool is_like(const struct gg_seen *s, const struct sheaf_tensor *copy) {
    return !memcmp(s->tensor, copy, SELF_SPAN) && gg_serial_of(s->tensor) == s->serial;
}

/* A view that lies elsewhere in its owner. A lowered node has views of its own. */
static bool has_moved(const struct gg_member_graph *g, const struct gg_seen *s) {
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
enum gg_fit gg_member_graph_fit(const struct gg_member_graph *g, const struct sheaf_cgraph *graph) {
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
static bool takes_still(const struct gg_member_graph *g, const struct gg_seen *node) {
    const struct sheaf_tensor *t = node->tensor;
    if (t->op == SHEAF_OP_NONE || sheaf_op_is_view(t->op) || sheaf_is_empty(t)) return true;
    return gg_member_accepts(g->m, t) && g->m->lib->dev_supports_op(g->m->dev, node->gg);
}

bool gg_member_graph_move(struct gg_member_graph *g) {
    bool good = true;
    for (size_t i = 0; i < g->n_seen; i++) {
        struct gg_seen *s = &g->seen[i];
        if (is_like(s, &s->copy)) continue;
        s->gg->data = s->tensor->data;
        s->gg->view_offs = s->tensor->view_offs;
        memcpy(&s->copy, s->tensor, sizeof s->copy);
    }
    for (int i = 0; i < g->n_nodes && good; i++) good = takes_still(g, &g->seen[i]);
    if (g->graph && g->m->lib->graph_next_uid) g->graph->uid = g->m->lib->graph_next_uid();
    return good;
}

struct gg_cgraph *gg_member_graph_get(const struct gg_member_graph *g) {
    return g->graph;
}
size_t gg_member_graph_n_tensors(const struct gg_member_graph *g) { return g->n_items + g->n_seen; }
