/* The graph allocator: places the tensors of a graph in one buffer a buffer type, reusing memory
 * whose last reader has run.
 *
 * It walks the nodes in order over a model of each buffer (a list of free ranges). A tensor's range
 * is freed after its last use, counted over operands and over views of it. An op that may run in
 * place takes over the range of an operand that it alone uses. Invariant: no two tensors that are
 * live at the same node overlap, unless one is a view of, or computed in place on, the other.
 *
 * The result depends on the graph alone, so that a graph of the same structure lands at the same
 * offsets. All working memory is kept: allocating a graph no larger than an earlier one allocates
 * nothing. */
#include <stdlib.h>
#include <string.h>

#include "alloc/gallocr.h"
#include "backend/buffer.h"
#include "base/arith.h"
#include "base/array.h"
#include "base/hash.h"
#include "sheaf/alloc.h"
#include "sheaf/backend-impl.h"
#include "tensor/graph.h"
#include "tensor/op_info.h"

struct range {
    size_t offset, size;
};

struct entry { /* of a tensor in the graph at hand */
    const struct sheaf_tensor *tensor;
    int n_children, n_views;
    int pool; /* index of the pool that the tensor belongs in */
    size_t offset;
    bool placed; /* this allocator gave it memory, and has not freed or passed it on */
    bool has_offset;
    bool ended; /* a view that is no longer counted with its owner */
};

struct pool { /* the memory of one buffer type */
    sheaf_backend_buffer_type_t buft;
    sheaf_backend_buffer_t buffer;
    /* Outgrown, or given back: their memory is freed; the objects stay, because tensors of graphs placed earlier
     * still name them, and another buffer at the same address would be taken for ours. */
    sheaf_backend_buffer_t *retired;
    size_t n_retired, cap_retired;
    size_t alignment;
    struct range *ranges; /* free ranges, by offset; the last one reaches to SIZE_MAX */
    size_t n_ranges, cap_ranges;
    size_t peak;
};

struct sheaf_gallocr {
    struct pool *pools; /* one a distinct buffer type */
    int n_pools;
    int *pool_of; /* [n_ids] */
    int n_ids;
    struct entry *table; /* open-addressed by tensor */
    size_t n_slots;
};

sheaf_gallocr_t sheaf_gallocr_new_n(const sheaf_backend_buffer_type_t *bufts, int n) {
    struct sheaf_gallocr *g = n > 0 ? calloc(1, sizeof *g) : NULL;
    if (g) {
        g->pools = calloc((size_t)n, sizeof *g->pools);
        g->pool_of = calloc((size_t)n, sizeof *g->pool_of);
    }
    if (!g || !g->pools || !g->pool_of) {
        if (n > 0) sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "graph allocator: out of memory");
        if (n <= 0) sheaf_set_error(SHEAF_STATUS_INVALID, "graph allocator: no buffer type given");
        sheaf_gallocr_free(g);
        return NULL;
    }
    g->n_ids = n;
    for (int i = 0; i < n; i++) {
        int p = 0;
        while (p < g->n_pools && g->pools[p].buft != bufts[i]) p++;
        if (p == g->n_pools) {
            g->pools[p].buft = bufts[i];
            g->pools[p].alignment = sheaf_backend_buft_get_alignment(bufts[i]);
            g->n_pools++;
        }
        g->pool_of[i] = p;
    }
    return g;
}

sheaf_gallocr_t sheaf_gallocr_new(sheaf_backend_buffer_type_t buft) {
    return sheaf_gallocr_new_n(&buft, 1);
}

void sheaf_gallocr_free(sheaf_gallocr_t g) {
    if (!g) return;
    for (int i = 0; i < g->n_pools; i++) {
        struct pool *p = &g->pools[i];
        sheaf_backend_buffer_free(p->buffer);
        for (size_t j = 0; j < p->n_retired; j++) sheaf_backend_buffer_free(p->retired[j]);
        free(p->retired);
        free(p->ranges);
    }
    free(g->pools);
    free(g->pool_of);
    free(g->table);
    free(g);
}

size_t sheaf_gallocr_get_buffer_size_n(sheaf_gallocr_t g, int id) {
    if (id < 0 || id >= g->n_ids) return 0;
    const struct pool *p = &g->pools[g->pool_of[id]];
    return p->buffer ? sheaf_backend_buffer_get_size(p->buffer) : 0;
}

size_t sheaf_gallocr_get_buffer_size(sheaf_gallocr_t g) {
    size_t size = 0;
    for (int i = 0; i < g->n_pools; i++)
        size += g->pools[i].buffer ? sheaf_backend_buffer_get_size(g->pools[i].buffer) : 0;
    return size;
}

/* ---- free ranges ---- */

static enum sheaf_status insert_range(struct pool *p, size_t at, struct range r) {
    if (!sheaf__grow(&p->ranges, &p->cap_ranges, p->n_ranges + 1, sizeof *p->ranges))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "graph allocator: out of memory");
    memmove(&p->ranges[at + 1], &p->ranges[at], (p->n_ranges - at) * sizeof *p->ranges);
    p->ranges[at] = r;
    p->n_ranges++;
    return SHEAF_STATUS_SUCCESS;
}

static void remove_range(struct pool *p, size_t at) {
    memmove(&p->ranges[at], &p->ranges[at + 1], (p->n_ranges - at - 1) * sizeof *p->ranges);
    p->n_ranges--;
}

/* Best fit; the open-ended last range only if nothing else is large enough. */
static size_t take(struct pool *p, size_t size) {
    size_t best = p->n_ranges - 1;
    for (size_t i = 0; i + 1 < p->n_ranges; i++) {
        if (p->ranges[i].size >= size &&
            (best == p->n_ranges - 1 || p->ranges[i].size < p->ranges[best].size))
            best = i;
    }
    struct range *r = &p->ranges[best];
    const size_t offset = r->offset;
    r->offset += size;
    r->size -= size;
    if (r->size == 0) remove_range(p, best);
    if (offset + size > p->peak) p->peak = offset + size;
    return offset;
}

static enum sheaf_status give_back(struct pool *p, size_t offset, size_t size) {
    if (!size) return SHEAF_STATUS_SUCCESS;
    size_t i = 0;
    while (i < p->n_ranges && p->ranges[i].offset < offset) i++;
    const bool joins_next = i < p->n_ranges && offset + size == p->ranges[i].offset;
    const bool joins_prev = i > 0 && p->ranges[i - 1].offset + p->ranges[i - 1].size == offset;
    if (joins_prev && joins_next) {
        p->ranges[i - 1].size += size + p->ranges[i].size;
        remove_range(p, i);
    } else if (joins_prev) {
        p->ranges[i - 1].size += size;
    } else if (joins_next) {
        p->ranges[i].offset = offset;
        p->ranges[i].size += size;
    } else {
        return insert_range(p, i, (struct range){offset, size});
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- the graph's tensors ---- */

static struct entry *find(struct sheaf_gallocr *g, const struct sheaf_tensor *t) {
    size_t i = sheaf__hash_address(t, g->n_slots);
    while (g->table[i].tensor && g->table[i].tensor != t) i = (i + 1) & (g->n_slots - 1);
    if (!g->table[i].tensor) g->table[i] = (struct entry){.tensor = t};
    return &g->table[i];
}

/* A buffer that this allocator fills, or one that it outgrew. */
static bool is_our_buffer(const struct sheaf_gallocr *g, const struct sheaf_backend_buffer *b) {
    for (int i = 0; i < g->n_pools; i++) {
        const struct pool *p = &g->pools[i];
        if (b == p->buffer) return true;
        for (size_t j = 0; j < p->n_retired; j++) {
            if (b == p->retired[j]) return true;
        }
    }
    return false;
}

bool sheaf__gallocr_owns(const struct sheaf_gallocr *g, const struct sheaf_backend_buffer *b) {
    return b && is_our_buffer(g, b);
}

/* Memory of its own to come from here: not a view, and either unplaced or placed here for an
 * earlier compute. */
static bool is_ours(const struct sheaf_gallocr *g, const struct sheaf_tensor *t) {
    return !t->view_src && (!t->data || (t->buffer && is_our_buffer(g, t->buffer)));
}

static size_t padded_size(const struct pool *p, const struct sheaf_tensor *t) {
    return sheaf__align_up(sheaf_backend_buft_get_alloc_size(p->buft, t), p->alignment);
}

/* The entry of the tensor whose memory a node reads as its operand p, if nothing else will read it;
 * else NULL. */
static struct entry *sole_use(struct sheaf_gallocr *g, const struct sheaf_tensor *p) {
    struct entry *e = find(g, p);
    if (e->n_children != 1 || e->n_views != 0 || p->flags & SHEAF_TENSOR_FLAG_OUTPUT) return NULL;
    if (!p->view_src) return e;
    struct entry *owner = find(g, p->view_src);
    const bool whole = sheaf_nbytes(p) == sheaf_nbytes(p->view_src);
    return whole && owner->n_children == 0 && owner->n_views == 1 &&
                   !(p->view_src->flags & SHEAF_TENSOR_FLAG_OUTPUT)
               ? owner
               : NULL;
}

static void place(struct sheaf_gallocr *g, const struct sheaf_tensor *t) {
    struct entry *e = find(g, t);
    if (!is_ours(g, t) || e->placed) return;
    struct pool *pool = &g->pools[e->pool];
    const size_t size = padded_size(pool, t);
    e->placed = e->has_offset = true;
    for (int i = 0; i < sheaf__op_info(t->op)->in_place; i++) {
        const struct sheaf_tensor *p = t->src[i];
        struct entry *from = p && sheaf_are_same_layout(p, t) ? sole_use(g, p) : NULL;
        if (!from || !from->placed || from->pool != e->pool ||
            padded_size(pool, from->tensor) != size)
            continue;
        e->offset = from->offset;
        from->placed = false; /* passed on */
        return;
    }
    e->offset = take(pool, size);
}

static enum sheaf_status release_if_dead(struct sheaf_gallocr *g, const struct sheaf_tensor *t) {
    struct entry *e = find(g, t);
    if (e->n_children || e->n_views || !e->placed || t->flags & SHEAF_TENSOR_FLAG_OUTPUT)
        return SHEAF_STATUS_SUCCESS;
    e->placed = false;
    struct pool *pool = &g->pools[e->pool];
    return give_back(pool, e->offset, padded_size(pool, t));
}

/* The last reader of a view has run: its owner is looked at by one view less. Once: the scheduler
 * lists copies at the start of a split, so a view may be read before it is listed. */
static enum sheaf_status end_view(struct sheaf_gallocr *g, const struct sheaf_tensor *view) {
    struct entry *e = find(g, view);
    if (e->ended || view->flags & SHEAF_TENSOR_FLAG_OUTPUT) return SHEAF_STATUS_SUCCESS;
    e->ended = true;
    find(g, view->view_src)->n_views--;
    return release_if_dead(g, view->view_src);
}

/* The pool for buffer id ids[i]; ids NULL: the first. */
static enum sheaf_status set_pool(struct sheaf_gallocr *g, const struct sheaf_tensor *t,
                                  const int *ids, int i) {
    if (ids && (ids[i] < 0 || ids[i] >= g->n_ids)) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "graph allocator: buffer id %d of '%s'; there are %d", ids[i],
                               t->name, g->n_ids);
    }
    find(g, t)->pool = ids ? g->pool_of[ids[i]] : 0;
    return SHEAF_STATUS_SUCCESS;
}

/* An empty table with room for every tensor that the graph names. */
static enum sheaf_status clear_table(struct sheaf_gallocr *g, const struct sheaf_cgraph *graph) {
    size_t n = (size_t)graph->n_nodes + (size_t)graph->n_leafs, want = 64;
    /* operands may lie outside the graph, in a graph view */
    for (int i = 0; i < graph->n_nodes; i++) {
        n += graph->nodes[i]->view_src != NULL;
        for (int j = 0; j < SHEAF_MAX_SRC; j++) n += graph->nodes[i]->src[j] != NULL;
    }
    while (want < 2 * n) want *= 2;
    if (want > g->n_slots) {
        struct entry *p = realloc(g->table, want * sizeof *p);
        if (!p) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "graph allocator: out of memory");
        g->table = p;
        g->n_slots = want;
    }
    memset(g->table, 0, g->n_slots * sizeof *g->table);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status clear_pools(struct sheaf_gallocr *g) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < g->n_pools && !st; i++) {
        g->pools[i].n_ranges = 0;
        g->pools[i].peak = 0;
        st = insert_range(&g->pools[i], 0, (struct range){0, SIZE_MAX / 2});
    }
    return st;
}

static void count_uses(struct sheaf_gallocr *g, const struct sheaf_cgraph *graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct sheaf_tensor *t = graph->nodes[i];
        if (t->view_src) find(g, t->view_src)->n_views++;
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            if (t->src[j]) find(g, t->src[j])->n_children++;
        }
    }
}

/* The operands of a node that has run, and the node itself if no other reads it: what has no reader
 * left is given back. */
static enum sheaf_status end_uses(struct sheaf_gallocr *g, const struct sheaf_tensor *t) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int j = 0; j < SHEAF_MAX_SRC && !st; j++) {
        const struct sheaf_tensor *p = t->src[j];
        if (!p || --find(g, p)->n_children) continue;
        st = p->view_src ? end_view(g, p) : release_if_dead(g, p);
    }
    return !st && t->view_src && !find(g, t)->n_children ? end_view(g, t) : st;
}

/* Gives every tensor of the graph its pool and its offset there. */
static enum sheaf_status plan(struct sheaf_gallocr *g, const struct sheaf_cgraph *graph,
                              const int *node_ids, const int *leaf_ids) {
    enum sheaf_status st = clear_table(g, graph);
    if (!st) st = clear_pools(g);
    for (int i = 0; i < graph->n_leafs && !st; i++) st = set_pool(g, graph->leafs[i], leaf_ids, i);
    for (int i = 0; i < graph->n_nodes && !st; i++) st = set_pool(g, graph->nodes[i], node_ids, i);
    if (st) return st;
    count_uses(g, graph);
    /* leaves first: they are written before anything runs, so nothing may share their memory before
     * their last use */
    for (int i = 0; i < graph->n_leafs; i++) place(g, graph->leafs[i]);
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->flags & SHEAF_TENSOR_FLAG_INPUT) place(g, graph->nodes[i]);
    }
    for (int i = 0; i < graph->n_nodes && !st; i++) {
        place(g, graph->nodes[i]);
        st = end_uses(g, graph->nodes[i]);
    }
    return st;
}

static bool can_retire(struct pool *p) {
    return sheaf__grow(&p->retired, &p->cap_retired, p->n_retired + 1, sizeof *p->retired);
}

static void retire(struct pool *p) {
    sheaf__buffer_release(p->buffer);
    p->retired[p->n_retired++] = p->buffer;
    p->buffer = NULL;
}

static enum sheaf_status grow(struct pool *p) {
    if (p->buffer && p->peak <= sheaf_backend_buffer_get_size(p->buffer))
        return SHEAF_STATUS_SUCCESS;
    if (p->buffer && !can_retire(p))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "graph allocator: out of memory");
    sheaf_backend_buffer_t grown;
    enum sheaf_status st = sheaf_backend_buft_alloc_buffer(p->buft, p->peak, &grown);
    if (st) return st;
    sheaf_backend_buffer_set_usage(grown, SHEAF_BACKEND_BUFFER_USAGE_COMPUTE);
    if (p->buffer) retire(p);
    p->buffer = grown;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__gallocr_fits(struct sheaf_gallocr *g, const struct sheaf_cgraph *graph,
                                      const int *node_buffer_ids, const int *leaf_buffer_ids,
                                      bool *fits) {
    enum sheaf_status st = plan(g, graph, node_buffer_ids, leaf_buffer_ids);
    *fits = true;
    for (int i = 0; i < g->n_pools && !st; i++) {
        const struct pool *p = &g->pools[i];
        *fits = *fits && p->buffer && p->peak <= sheaf_backend_buffer_get_size(p->buffer);
    }
    return st;
}

enum sheaf_status sheaf__gallocr_measure(struct sheaf_gallocr *g, const struct sheaf_cgraph *graph,
                                         size_t *bytes) {
    const enum sheaf_status st = plan(g, graph, NULL, NULL);
    *bytes = g->pools[0].peak;
    return st;
}

size_t sheaf__gallocr_needed(const struct sheaf_gallocr *g) { return g->pools[0].peak; }

void sheaf__gallocr_give_back(struct sheaf_gallocr *g) {
    for (int i = 0; i < g->n_pools; i++)
        if (g->pools[i].buffer && can_retire(&g->pools[i])) retire(&g->pools[i]);
}

enum sheaf_status sheaf_gallocr_reserve_n(sheaf_gallocr_t g, struct sheaf_cgraph *graph,
                                          const int *node_buffer_ids, const int *leaf_buffer_ids) {
    enum sheaf_status st = plan(g, graph, node_buffer_ids, leaf_buffer_ids);
    for (int i = 0; i < g->n_pools && !st; i++) st = grow(&g->pools[i]);
    return st;
}

enum sheaf_status sheaf_gallocr_reserve(sheaf_gallocr_t g, struct sheaf_cgraph *graph) {
    return sheaf_gallocr_reserve_n(g, graph, NULL, NULL);
}

static enum sheaf_status init(struct sheaf_gallocr *g, struct sheaf_tensor *t) {
    if (t->view_src) {
        const bool unset = !t->buffer || is_our_buffer(g, t->buffer);
        return unset && t->view_src->buffer ? sheaf_backend_view_init(t) : SHEAF_STATUS_SUCCESS;
    }
    const struct entry *e = find(g, t);
    if (!e->has_offset) return SHEAF_STATUS_SUCCESS;
    sheaf_backend_buffer_t buffer = g->pools[e->pool].buffer;
    return sheaf_backend_tensor_alloc(buffer, t,
                                      (char *)sheaf_backend_buffer_get_base(buffer) + e->offset);
}

enum sheaf_status sheaf_gallocr_alloc_graph_n(sheaf_gallocr_t g, struct sheaf_cgraph *graph,
                                              const int *node_buffer_ids,
                                              const int *leaf_buffer_ids) {
    enum sheaf_status st = sheaf_gallocr_reserve_n(g, graph, node_buffer_ids, leaf_buffer_ids);
    for (int i = 0; i < g->n_pools && !st; i++) /* every tensor in it is placed anew below */
        st = sheaf_backend_buffer_reset(g->pools[i].buffer);
    for (int i = 0; i < graph->n_leafs && !st; i++) st = init(g, graph->leafs[i]);
    for (int i = 0; i < graph->n_nodes && !st; i++) st = init(g, graph->nodes[i]);
    return st;
}

enum sheaf_status sheaf_gallocr_alloc_graph(sheaf_gallocr_t g, struct sheaf_cgraph *graph) {
    return sheaf_gallocr_alloc_graph_n(g, graph, NULL, NULL);
}
