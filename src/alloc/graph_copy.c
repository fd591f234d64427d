/* Copies of graphs on other backends, and the comparison of two backends on one graph.
 *
 * A copy has every tensor of the graph, what the graph reads but does not compute as leaves, with
 * the data of the original. Its nodes are marked as outputs, so that each keeps its value until the
 * next compute. The original is only read. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "sheaf/alloc.h"
#include "sheaf/backend-impl.h"
#include "tensor/graph.h"

struct pair {
    struct sheaf_tensor *from, *to;
};

struct map { /* open-addressed by `from` */
    struct pair *slots;
    size_t mask;
};

static struct pair *find(const struct map *m, const struct sheaf_tensor *t) {
    size_t i = sheaf__hash_address(t, m->mask + 1);
    while (m->slots[i].from && m->slots[i].from != t) i = (i + 1) & m->mask;
    return &m->slots[i];
}

static void note(const struct map *m, struct sheaf_tensor *t, size_t *n) {
    struct pair *p = find(m, t);
    if (!p->from) p->from = t, ++*n;
    if (t->view_src) {
        p = find(m, t->view_src);
        if (!p->from) p->from = t->view_src, ++*n;
    }
}

/* Everything that the graph touches. */
static size_t note_graph(const struct map *m, const struct sheaf_cgraph *g) {
    size_t n = 0;
    for (int i = 0; i < g->n_leafs; i++) note(m, g->leafs[i], &n);
    for (int i = 0; i < g->n_nodes; i++) {
        note(m, g->nodes[i], &n);
        for (int j = 0; j < SHEAF_MAX_SRC; j++)
            if (g->nodes[i]->src[j]) note(m, g->nodes[i]->src[j], &n);
    }
    return n;
}

/* The copy of t as a leaf. */
static struct sheaf_tensor *copy_tensor(struct sheaf_context *ctx, const struct map *m,
                                        const struct sheaf_tensor *t) {
    struct pair *p = find(m, t);
    if (p->to) return p->to;
    if (t->view_src) {
        struct sheaf_tensor *owner = copy_tensor(ctx, m, t->view_src);
        p->to = owner ? sheaf_view_tensor(ctx, owner) : NULL;
    } else {
        p->to = sheaf_dup_tensor(ctx, t);
    }
    if (!p->to) return NULL;
    p->to->type = t->type;
    memcpy(p->to->ne, t->ne, sizeof t->ne);
    memcpy(p->to->nb, t->nb, sizeof t->nb);
    p->to->op = SHEAF_OP_NONE;
    memset(p->to->src, 0, sizeof p->to->src);
    p->to->view_offs = t->view_offs;
    p->to->flags = t->flags;
    return sheaf_set_name(p->to, t->name);
}

static enum sheaf_status copy_nodes(struct sheaf_context *ctx, const struct map *m,
                                    const struct sheaf_cgraph *g) {
    for (int i = 0; i < g->n_nodes; i++) {
        const struct sheaf_tensor *t = g->nodes[i];
        struct sheaf_tensor *to = copy_tensor(ctx, m, t);
        if (!to) return SHEAF_STATUS_ALLOC_FAILED;
        to->op = t->op;
        memcpy(to->op_params, t->op_params, sizeof t->op_params);
        to->flags |= SHEAF_TENSOR_FLAG_OUTPUT;
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            if (!t->src[j]) continue;
            to->src[j] = copy_tensor(ctx, m, t->src[j]);
            if (!to->src[j]) return SHEAF_STATUS_ALLOC_FAILED;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* What the graph reads and does not compute. */
static enum sheaf_status copy_leaf_data(const struct map *m) {
    for (size_t i = 0; i <= m->mask; i++) {
        struct pair *p = &m->slots[i];
        if (!p->from || !p->to || p->to->op != SHEAF_OP_NONE || p->to->view_src ||
            sheaf_is_empty(p->from))
            continue;
        enum sheaf_status st = sheaf_backend_tensor_copy(p->from, p->to);
        if (st) return st;
    }
    return SHEAF_STATUS_SUCCESS;
}

void sheaf_backend_graph_copy_free(struct sheaf_backend_graph_copy *copy) {
    if (!copy) return;
    sheaf_gallocr_free(copy->galloc);
    sheaf_backend_buffer_free(copy->buffer);
    sheaf_free(copy->ctx_leafs);
    sheaf_free(copy->ctx_nodes);
    *copy = (struct sheaf_backend_graph_copy){0};
}

enum sheaf_status sheaf_backend_graph_copy(sheaf_backend_t backend,
                                           const struct sheaf_cgraph *graph,
                                           struct sheaf_backend_graph_copy *out) {
    *out = (struct sheaf_backend_graph_copy){0};
    const size_t most = ((size_t)graph->n_nodes * (SHEAF_MAX_SRC + 1) + (size_t)graph->n_leafs) * 2;
    struct map m = {.mask = 63};
    while (m.mask < 2 * most) m.mask = m.mask * 2 + 1;
    m.slots = calloc(m.mask + 1, sizeof *m.slots);
    enum sheaf_status st = SHEAF_STATUS_ALLOC_FAILED;
    if (!m.slots) {
        sheaf_set_error(st, "graph copy: no memory for %d nodes", graph->n_nodes);
        goto out;
    }
    const size_t n = note_graph(&m, graph) + 1, n_nodes = (size_t)graph->n_nodes + 1;
    out->ctx_leafs = sheaf_init(
        (struct sheaf_init_params){.mem_size = n * sheaf_tensor_overhead(), .no_alloc = true});
    out->ctx_nodes = sheaf_init((struct sheaf_init_params){
        .mem_size = n * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(n + n_nodes),
        .no_alloc = true});
    if (!out->ctx_leafs || !out->ctx_nodes) goto out;

    /* leaves first, into their own context: what is neither a node nor a view of one */
    for (int i = 0; i < graph->n_nodes; i++) find(&m, graph->nodes[i])->to = graph->nodes[i];
    for (size_t i = 0; i <= m.mask; i++) {
        struct sheaf_tensor *t = m.slots[i].from;
        if (!t || m.slots[i].to || (t->view_src && find(&m, t->view_src)->to == t->view_src))
            continue;
        if (!copy_tensor(out->ctx_leafs, &m, t)) goto out;
    }
    for (int i = 0; i < graph->n_nodes; i++) find(&m, graph->nodes[i])->to = NULL;
    st = copy_nodes(out->ctx_nodes, &m, graph);
    if (st) goto out;
    out->graph = sheaf_new_graph_custom(out->ctx_nodes, n + n_nodes);
    if (!out->graph) {
        st = SHEAF_STATUS_ALLOC_FAILED;
        goto out;
    }
    for (int i = 0; i < graph->n_nodes && !st; i++)
        st = sheaf_build_forward_expand(out->graph, find(&m, graph->nodes[i])->to);
    if (!st) {
        /* views that the original only reads, as a part of a graph does, were added as nodes */
        out->graph->n_nodes = graph->n_nodes;
        for (int i = 0; i < graph->n_nodes; i++)
            out->graph->nodes[i] = find(&m, graph->nodes[i])->to;
    }
    if (!st) st = sheaf_backend_alloc_ctx_tensors(out->ctx_leafs, backend, &out->buffer);
    if (!st) {
        out->galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
        st = out->galloc ? sheaf_gallocr_alloc_graph(out->galloc, out->graph)
                         : SHEAF_STATUS_ALLOC_FAILED;
    }
    if (!st) st = copy_leaf_data(&m);
out:
    free(m.slots);
    if (st) sheaf_backend_graph_copy_free(out);
    return st;
}

enum sheaf_status sheaf_backend_compare_graph_backend(sheaf_backend_t backend1,
                                                      sheaf_backend_t backend2,
                                                      const struct sheaf_cgraph *graph,
                                                      sheaf_backend_eval_fn callback, void *user,
                                                      struct sheaf_tensor *const *test_nodes,
                                                      size_t n_test_nodes) {
    struct sheaf_backend_graph_copy a = {0}, b = {0};
    enum sheaf_status st = sheaf_backend_graph_copy(backend1, graph, &a);
    if (!st) st = sheaf_backend_graph_copy(backend2, graph, &b);
    if (!st) st = sheaf_backend_graph_compute(backend1, a.graph);
    if (!st) st = sheaf_backend_graph_compute(backend2, b.graph);
    for (int i = 0; i < graph->n_nodes && !st; i++) {
        bool wanted = !n_test_nodes && !sheaf_op_is_view(graph->nodes[i]->op);
        for (size_t j = 0; j < n_test_nodes; j++)
            wanted = wanted || test_nodes[j] == graph->nodes[i];
        if (wanted &&
            !callback(i, sheaf_graph_node(a.graph, i), sheaf_graph_node(b.graph, i), user)) {
            st = sheaf_set_error(SHEAF_STATUS_ABORTED,
                                 "compare graph: the callback stopped at node %d, '%s' (%s)", i,
                                 graph->nodes[i]->name, sheaf_op_desc(graph->nodes[i]));
        }
    }
    sheaf_backend_graph_copy_free(&a);
    sheaf_backend_graph_copy_free(&b);
    return st;
}
