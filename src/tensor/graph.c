/* Graphs: arrays of nodes and leaves in arena memory, and the set of tensors already visited. */
#include "sheaf/graph.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tensor/context.h"
#include "tensor/graph.h"

uint64_t sheaf__graph_next_uid(void) {
    static atomic_uint_fast64_t uid = 1;
    return atomic_fetch_add_explicit(&uid, 1, memory_order_relaxed);
}

static size_t visited_slots(size_t size) {
    size_t slots = 16;
    while (slots < size * 4) slots *= 2; /* nodes + leaves, at most half full */
    return slots;
}

static size_t graph_bytes(size_t size) {
    return sizeof(struct sheaf_cgraph) + size * 2 * sizeof(struct sheaf__graph_frame) +
           size * 2 * sizeof(void *) + visited_slots(size) * sizeof(void *);
}

size_t sheaf_graph_overhead_custom(size_t size) {
    return sheaf__object_overhead(graph_bytes(size));
}
size_t sheaf_graph_overhead(void) { return sheaf_graph_overhead_custom(SHEAF_DEFAULT_GRAPH_SIZE); }
struct sheaf_cgraph *sheaf_new_graph(struct sheaf_context *ctx) {
    return sheaf_new_graph_custom(ctx, SHEAF_DEFAULT_GRAPH_SIZE);
}

struct sheaf_cgraph *sheaf_new_graph_custom(struct sheaf_context *ctx, size_t size) {
    if (size == 0 || size > (1u << 26)) {
        sheaf_set_error(SHEAF_STATUS_INVALID, "new graph: size %zu; 1 to %u nodes are possible",
                        size, 1u << 26);
        return NULL;
    }
    struct sheaf_cgraph *g = sheaf__context_alloc(ctx, graph_bytes(size));
    if (!g) return NULL;
    g->size = (int)size;
    g->stack = (struct sheaf__graph_frame *)(g + 1);
    g->nodes = (struct sheaf_tensor **)(g->stack + 2 * size);
    g->leafs = g->nodes + size;
    g->visited = (const struct sheaf_tensor **)(g->leafs + size);
    g->n_visited = visited_slots(size);
    sheaf_graph_clear(g);
    return g;
}

void sheaf_graph_clear(struct sheaf_cgraph *g) {
    g->n_nodes = g->n_leafs = 0;
    g->overflowed = false;
    g->version = 0;
    if (g->visited) memset(g->visited, 0, g->n_visited * sizeof *g->visited);
    g->uid = sheaf__graph_next_uid();
}

/* Puts t into the set; false if it was there. */
static bool visit(struct sheaf_cgraph *g, const struct sheaf_tensor *t) {
    size_t i = sheaf__hash_address(t, g->n_visited);
    for (; g->visited[i]; i = (i + 1) & (g->n_visited - 1)) {
        if (g->visited[i] == t) return false;
    }
    g->visited[i] = t;
    return true;
}

/* Tensors that did not fit are in the visited set all the same, so nothing may be added after this:
 * it would pass for complete, and the set would fill up. */
static enum sheaf_status full(struct sheaf_cgraph *g) {
    g->overflowed = true;
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                           "graph: no room for more than %d nodes and as many leaves; make it with "
                           "sheaf_new_graph_custom and a larger size",
                           g->size);
}

/* Depth first over operands with a stack of its own, so that a long chain cannot overflow the
 * thread's. Each tensor is pushed once, when it is first visited. */
static enum sheaf_status add(struct sheaf_cgraph *g, struct sheaf_tensor *root) {
    if (g->overflowed) return full(g);
    if (!visit(g, root)) return SHEAF_STATUS_SUCCESS;
    int depth = 0;
    g->stack[depth++] = (struct sheaf__graph_frame){root, 0};
    while (depth) {
        struct sheaf__graph_frame *top = &g->stack[depth - 1];
        struct sheaf_tensor *t = top->tensor, *next = NULL;
        while (!next && top->next <= SHEAF_MAX_SRC) {
            next = top->next < SHEAF_MAX_SRC ? t->src[top->next] : t->view_src;
            top->next++;
            if (next && !visit(g, next)) next = NULL;
        }
        if (next) {
            if (depth + g->n_nodes + g->n_leafs >= 2 * g->size) return full(g);
            g->stack[depth++] = (struct sheaf__graph_frame){next, 0};
            continue;
        }
        depth--;
        if (t->op == SHEAF_OP_NONE && !t->view_src) {
            if (g->n_leafs == g->size) return full(g);
            g->leafs[g->n_leafs++] = t;
        } else {
            if (g->n_nodes == g->size) return full(g);
            g->nodes[g->n_nodes++] = t;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_build_forward_expand(struct sheaf_cgraph *g, struct sheaf_tensor *tensor) {
    if (!tensor) {
        const char *text = sheaf_last_error();
        return sheaf_set_error(SHEAF_STATUS_INVALID, "graph: %s",
                               *text ? text : "the tensor to expand is NULL");
    }
    if (!g || !g->visited) {
        return sheaf_set_error(SHEAF_STATUS_INVALID, "graph: a view of a graph cannot be built on");
    }
    g->uid = sheaf__graph_next_uid();
    return add(g, tensor);
}

enum sheaf_status sheaf__graph_check_whole(const struct sheaf_cgraph *g) {
    if (!g->overflowed) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(
        SHEAF_STATUS_INVALID,
        "graph: it is not whole, since a tensor did not fit when it was built (%d "
        "nodes); make it with sheaf_new_graph_custom and a larger size",
        g->size);
}

int sheaf_graph_size(const struct sheaf_cgraph *g) { return g->size; }
int sheaf_graph_n_nodes(const struct sheaf_cgraph *g) { return g->n_nodes; }
int sheaf_graph_n_leafs(const struct sheaf_cgraph *g) { return g->n_leafs; }
uint64_t sheaf_graph_uid(const struct sheaf_cgraph *g) { return g->uid; }

struct sheaf_tensor *sheaf_graph_node(const struct sheaf_cgraph *g, int i) {
    if (i < 0) i += g->n_nodes;
    return i >= 0 && i < g->n_nodes ? g->nodes[i] : NULL;
}

struct sheaf_tensor *sheaf_graph_leaf(const struct sheaf_cgraph *g, int i) {
    if (i < 0) i += g->n_leafs;
    return i >= 0 && i < g->n_leafs ? g->leafs[i] : NULL;
}

struct sheaf_tensor *sheaf_graph_get_tensor(const struct sheaf_cgraph *g, const char *name) {
    for (int i = 0; i < g->n_leafs; i++) {
        if (!strcmp(g->leafs[i]->name, name)) return g->leafs[i];
    }
    for (int i = 0; i < g->n_nodes; i++) {
        if (!strcmp(g->nodes[i]->name, name)) return g->nodes[i];
    }
    return NULL;
}

struct sheaf_cgraph *sheaf_graph_view(struct sheaf_context *ctx, struct sheaf_cgraph *g, int first,
                                      int last) {
    if (first < 0 || last < first || last > g->n_nodes) {
        sheaf_set_error(SHEAF_STATUS_INVALID, "graph view: nodes %d to %d of a graph with %d",
                        first, last, g->n_nodes);
        return NULL;
    }
    struct sheaf_cgraph *v = sheaf__context_alloc(ctx, sizeof *v);
    if (!v) return NULL;
    *v = (struct sheaf_cgraph){
        .size = last - first,
        .n_nodes = last - first,
        .n_leafs = g->n_leafs,
        .nodes = g->nodes + first,
        .leafs = g->leafs,
        .uid = sheaf__graph_next_uid(),
        .overflowed = g->overflowed,
    };
    return v;
}

struct sheaf_cgraph *sheaf__graph_shallow_copy(const struct sheaf_cgraph *graph) {
    const size_t n_nodes = (size_t)graph->n_nodes, n_leafs = (size_t)graph->n_leafs;
    struct sheaf_cgraph *copy =
        malloc(sizeof *copy + (n_nodes + n_leafs) * sizeof(struct sheaf_tensor *));
    if (!copy) {
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "plan: no memory for %zu nodes", n_nodes);
        return NULL;
    }
    struct sheaf_tensor **list = (struct sheaf_tensor **)(void *)(copy + 1);
    *copy = (struct sheaf_cgraph){
        .size = graph->n_nodes > graph->n_leafs ? graph->n_nodes : graph->n_leafs,
        .n_nodes = graph->n_nodes,
        .n_leafs = graph->n_leafs,
        .nodes = list,
        .leafs = list + n_nodes,
        .uid = graph->uid,
        .overflowed = graph->overflowed,
    };
    if (n_nodes) memcpy(copy->nodes, graph->nodes, n_nodes * sizeof *list);
    if (n_leafs) memcpy(copy->leafs, graph->leafs, n_leafs * sizeof *list);
    return copy;
}
