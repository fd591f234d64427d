/* The key of a graph, by which the meta backend finds the program that it compiled for it.
 *
 * A program keeps the strides of its leaves' slices. Those of weights, caches and inputs are made
 * with the leaf. Of an earlier result the key has the state, which says the rest: only nodes that
 * are no views are kept (sched/split.c), those are dense, and so are the members' slices of them,
 * computed or converted. */
#include <stdlib.h>

#include "base/hash.h"
#include "meta/backend.h"

static struct meta_slot *find_slot(struct meta_backend *b, const struct sheaf_tensor *t) {
    size_t i = sheaf__hash_address(t, b->n_map);
    while (b->map[i].tensor && b->map[i].tensor != t) i = (i + 1) & (b->n_map - 1);
    return &b->map[i];
}

static uint64_t mix_shape(uint64_t h, const struct sheaf_tensor *t) {
    h = sheaf__mix(h, (uint64_t)t->type << 32 | (uint32_t)t->flags);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++)
        h = sheaf__mix(sheaf__mix(h, (uint64_t)t->ne[i]), t->nb[i]);
    return h;
}

static uint64_t mix_state(uint64_t h, const struct sheaf_split_state *s) {
    h = sheaf__mix(sheaf__mix(h, (uint64_t)s->axis), (uint64_t)s->n_segments);
    for (int i = 0; i < s->n_segments; i++) {
        const struct sheaf_split_segment *seg = &s->segments[i];
        h = sheaf__mix(sheaf__mix(sheaf__mix(h, (uint64_t)seg->outer), (uint64_t)seg->inner),
                       (uint64_t)seg->units);
        for (int j = 0; j < s->n_members; j++)
            h = sheaf__mix(sheaf__mix(h, (uint64_t)seg->first[j]), (uint64_t)seg->count[j]);
    }
    return h;
}

/* Parameters, which operand a node writes over, and where in its operand one lies that shows its
 * memory. Of a view that moves, the first two words are its place. */
static uint64_t mix_params(uint64_t h, const struct sheaf_tensor *t) {
    const bool moves = sheaf__meta_is_moving(t);
    const struct sheaf_tensor *of = t->view_src ? sheaf__op_target(t) : NULL;
    h = sheaf__mix(h, (uint64_t)sheaf__op_written(t));
    if (!moves) h = sheaf__mix(h, t->view_offs - (of ? of->view_offs : 0));
    for (int j = moves ? 2 : 0; j < SHEAF_MAX_OP_PARAMS; j += 2)
        h = sheaf__mix(h,
                       (uint64_t)(uint32_t)t->op_params[j] << 32 | (uint32_t)t->op_params[j + 1]);
    return h;
}

enum sheaf_status sheaf__meta_leaves_key(const struct meta_backend *b, const struct sheaf_cgraph *g,
                                         uint64_t *key) {
    uint64_t h = sheaf__mix(0, (uint64_t)g->n_leafs);
    for (int i = 0; i < g->n_leafs; i++) {
        const struct sheaf_tensor *t = g->leafs[i];
        const struct meta_tensor *record = sheaf__meta_leaf(b->dev, t);
        if (!record) return SHEAF_STATUS_INVALID;
        h = sheaf__mix(h, sheaf__meta_leaf_is_input(t) ? 0 : record->serial);
        if (record->carried) h = mix_state(h, record->state);
    }
    *key = h;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__meta_graph_key(struct meta_backend *b, const struct sheaf_cgraph *g,
                                        uint64_t leaves, uint64_t *key) {
    size_t want = 64;
    while (want < 2 * ((size_t)g->n_nodes + (size_t)g->n_leafs)) want *= 2;
    if (want > b->n_map) {
        struct meta_slot *p = realloc(b->map, want * sizeof *p);
        if (!p) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta: out of memory");
        b->map = p;
        b->n_map = want;
    }
    memset(b->map, 0, b->n_map * sizeof *b->map);
    uint64_t h = sheaf__mix(leaves, (uint64_t)g->n_nodes), number = 0;
    for (int i = 0; i < g->n_leafs; i++) {
        const struct sheaf_tensor *t = g->leafs[i];
        *find_slot(b, t) = (struct meta_slot){t, ++number};
        h = mix_shape(h, t);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const struct sheaf_tensor *t = g->nodes[i];
        *find_slot(b, t) = (struct meta_slot){t, ++number};
        h = mix_shape(sheaf__mix(h, (uint64_t)t->op), t);
        h = mix_params(h, t);
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            if (!t->src[j]) continue;
            const struct meta_slot *s = find_slot(b, t->src[j]);
            if (!s->tensor) {
                return sheaf_set_error(
                    SHEAF_STATUS_INVALID,
                    "graph: operand '%s' of '%s' is not in the graph; views of graphs cannot be "
                    "computed on a meta device",
                    t->src[j]->name, t->name);
            }
            h = sheaf__mix(h, s->number << 8 | (uint64_t)j);
        }
    }
    *key = h;
    return SHEAF_STATUS_SUCCESS;
}
