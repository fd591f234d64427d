/* Programs: a graph, planned for the members, turned into what each local member of this rank does.
 *
 * A program holds, per local member, a graph of its slices and a list of instructions: spans of
 * that graph, with collectives, zero fills and copies between them (steps.c). */
#include <assert.h>
#include <stdlib.h>

#include "backend/optional.h"
#include "backend/registry.h"
#include "base/array.h"
#include "meta/builder.h"
#include "meta/overlap.h"
#include "sheaf/backend-impl.h"

/* ---- leaves ---- */

static const struct sheaf_split_state *leaf_state(const struct sheaf_tensor *leaf, void *user) {
    const struct meta_tensor *record = sheaf__meta_leaf(user, leaf);
    return record ? record->state : NULL;
}

static int by_address(const void *a, const void *b) {
    const char *x = (*(struct sheaf_tensor *const *)a)->data,
               *y = (*(struct sheaf_tensor *const *)b)->data;
    return (x > y) - (x < y);
}

static enum sheaf_status refuse_overlap(const struct meta_device *dev, const struct sheaf_tensor *a,
                                        const struct sheaf_tensor *b) {
    return sheaf_set_error(
        SHEAF_STATUS_UNSUPPORTED,
        "graph: '%s' and '%s' lie over each other in a buffer of the meta device %s, which has "
        "memory for each of them; make one a view of the other",
        a->name, b->name, dev->name);
}

/* Weights and caches have slices of their own: what is written through one that lies over another
 * would not be seen through that. */
static enum sheaf_status check_overlaps(const struct meta_device *dev,
                                        const struct sheaf_cgraph *graph) {
    struct sheaf_tensor **all = malloc(((size_t)graph->n_leafs + 1) * sizeof *all);
    size_t n = 0;
    enum sheaf_status st = all ? SHEAF_STATUS_SUCCESS : sheaf__meta_no_memory();
    for (int i = 0; i < graph->n_leafs && !st; i++) {
        struct sheaf_tensor *leaf = graph->leafs[i];
        if (!sheaf__meta_leaf_is_input(leaf) && !sheaf_is_empty(leaf)) all[n++] = leaf;
    }
    if (n) qsort(all, n, sizeof *all, by_address);
    for (size_t i = 1; i < n && !st; i++) {
        const char *end = (const char *)all[i - 1]->data + sheaf_nbytes(all[i - 1]);
        if ((const char *)all[i]->data < end) st = refuse_overlap(dev, all[i - 1], all[i]);
    }
    free(all);
    return st;
}

/* Neighbours mostly lie in the same buffer. */
static enum sheaf_status note_buffer(struct meta_program *p, sheaf_backend_buffer_t buffer) {
    if (p->n_buffers && p->buffers[p->n_buffers - 1] == buffer) return SHEAF_STATUS_SUCCESS;
    if (!sheaf__grow(&p->buffers, &p->cap_buffers, p->n_buffers + 1, sizeof buffer))
        return sheaf__meta_no_memory();
    p->buffers[p->n_buffers++] = buffer;
    return SHEAF_STATUS_SUCCESS;
}

/* The next input: own descriptors of its slices, which sheaf__meta_program_bind points at its memory. */
static enum sheaf_status bind_input(const struct meta_device *dev, struct meta_program *p,
                                    const struct sheaf_cgraph *graph, int value,
                                    const struct meta_tensor *record) {
    const int input = p->n_inputs++;
    for (int i = 0; i < graph->n_leafs; i++)
        if (graph->leafs[i] == p->plan->values[value].tensor) p->input_leaf[input] = i;
    for (int m = 0; m < dev->n_local; m++) {
        struct sheaf_tensor *own = sheaf__meta_part_tensor(&p->parts[m], record->slices[m]->type);
        if (!own) return SHEAF_STATUS_ALLOC_FAILED;
        *own = *record->slices[m];
        p->input[input * dev->n_local + m] = p->parts[m].value[value] = own;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* The leaf values of the plan: the slices of weights and caches themselves; own descriptors for
 * inputs. */
static enum sheaf_status bind_leaves(const struct meta_device *dev, struct meta_program *p,
                                     const struct sheaf_cgraph *graph, const bool *is_leaf) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int v = 0; v < p->plan->n_values && !st; v++) {
        if (!is_leaf[v]) continue;
        const struct sheaf_tensor *leaf = p->plan->values[v].tensor;
        const struct meta_tensor *record = sheaf__meta_leaf(dev, leaf);
        if (!record) return SHEAF_STATUS_INVALID;
        if (sheaf__meta_leaf_is_input(leaf)) {
            st = bind_input(dev, p, graph, v, record);
        } else {
            for (int m = 0; m < dev->n_local; m++) p->parts[m].value[v] = record->slices[m];
            st = note_buffer(p, leaf->buffer);
        }
    }
    return st;
}

void sheaf__meta_renew_spans(struct meta_part *part) {
    for (int i = 0; i < part->n_instrs; i++)
        if (part->instrs[i].kind == INSTR_SPAN)
            part->instrs[i].span.version = sheaf__graph_next_uid();
}

/* Views of the descriptor take its new address. */
static enum sheaf_status renew_views(const struct meta_part *part, const struct sheaf_tensor *of) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < part->graph.n_nodes && !st; i++)
        if (part->graph.nodes[i]->view_src == of)
            st = sheaf_backend_view_init(part->graph.nodes[i]);
    return st;
}

enum sheaf_status sheaf__meta_program_bind(const struct meta_device *dev, struct meta_program *p,
                                           const struct sheaf_cgraph *graph) {
    for (int i = 0; i < p->n_inputs; i++) {
        const struct meta_tensor *record = sheaf__meta_leaf(dev, graph->leafs[p->input_leaf[i]]);
        if (!record) return SHEAF_STATUS_INVALID;
        for (int m = 0; m < dev->n_local; m++) {
            struct sheaf_tensor *own = p->input[i * dev->n_local + m];
            const struct sheaf_tensor *slice = record->slices[m];
            if (own->data == slice->data && own->buffer == slice->buffer) continue;
            own->data = slice->data;
            own->buffer = slice->buffer;
            sheaf__meta_renew_spans(&p->parts[m]);
            const enum sheaf_status st = renew_views(&p->parts[m], own);
            if (!st) continue;
            own->data = NULL; /* the next call begins again */
            return st;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- one part ---- */

enum {
    OWN_FLAGS =
        META_FLAG_CHECK_NODE | META_FLAG_CHECK_COLLECTIVE | META_FLAG_MOVES | META_FLAG_IN_SPAN,
    OTHER_FLAGS = SHEAF_TENSOR_FLAG_INPUT | SHEAF_TENSOR_FLAG_OUTPUT |
                  SHEAF_BACKEND_TENSOR_CARRIED | SHEAF_BACKEND_TENSOR_TIES_BY_INDEX |
                  SHEAF_BACKEND_TENSOR_FACTOR | SHEAF__TENSOR_INTERNAL | SHEAF__TENSOR_PRIVATE |
                  SHEAF_BACKEND_META_TENSOR_MOVES,
};
static_assert(!((int)OWN_FLAGS & (int)OTHER_FLAGS), "a bit of tensor->flags has one meaning");

static void unmark(struct sheaf_tensor *t) {
    if (!t) return;
    if (!(t->flags & META_FLAG_IN_SPAN)) t->flags &= ~SHEAF__TENSOR_INTERNAL;
    if (t->view_src) unmark(t->view_src);
}

/* Nodes of the span are internal, except those that are read behind it or lie elsewhere. */
static void mark_span(const struct sheaf_cgraph *g, int first, int last) {
    for (int i = first; i < last; i++)
        g->nodes[i]->flags |= SHEAF__TENSOR_INTERNAL | META_FLAG_IN_SPAN;
    for (int i = first; i < last; i++)
        for (int k = 0; k < SHEAF_MAX_SRC; k++) unmark(g->nodes[i]->src[k]);
    for (int i = first; i < last; i++) g->nodes[i]->flags &= ~META_FLAG_IN_SPAN;
    for (int i = first; i < last; i++) { /* what is read after the program, or lies elsewhere */
        struct sheaf_tensor *t = g->nodes[i];
        const int read = SHEAF_TENSOR_FLAG_OUTPUT | SHEAF_BACKEND_TENSOR_CARRIED;
        if (t->flags & read || (t->view_src && !sheaf_op_is_view(t->op))) unmark(t);
    }
}

/* Marks what nothing but one span reads, for devices that compute several nodes as one. */
static void mark_internal(const struct meta_part *part) {
    for (int i = 0; i < part->n_instrs; i++) {
        const struct meta_instr *instr = &part->instrs[i];
        if (instr->kind == INSTR_SPAN) {
            mark_span(&part->graph, instr->first, instr->last);
        } else {
            unmark(instr->in);
            unmark(instr->out);
        }
    }
}

enum sheaf_status sheaf__meta_build_part(struct builder *b) {
    const enum sheaf_status st = sheaf__meta_build_steps(b);
    if (st) return st;
    for (int i = 0; i < b->graph->n_nodes; i++) {
        b->part->value[b->plan->node_final[i]]->flags |=
            b->graph->nodes[i]->flags & (SHEAF_TENSOR_FLAG_OUTPUT | SHEAF_BACKEND_TENSOR_CARRIED);
    }
    struct sheaf_cgraph *g = &b->part->graph;
    g->size = g->n_nodes;
    mark_internal(b->part);
    for (int i = 0; i < b->part->n_instrs; i++) {
        struct meta_instr *instr = &b->part->instrs[i];
        if (instr->kind != INSTR_SPAN) continue;
        instr->span = (struct sheaf_cgraph){
            .size = instr->last - instr->first,
            .n_nodes = instr->last - instr->first,
            .nodes = g->nodes + instr->first,
            .uid = (uint64_t)(uintptr_t)instr, /* spans are told apart by where they are */
        };
    }
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__meta_part_free(struct meta_part *part) {
    for (int i = 0; i < part->n_instrs; i++) free(part->instrs[i].sizes);
    free(part->instrs);
    free(part->moving);
    free(part->graph.nodes);
    free(part->value);
    for (size_t i = 0; i < part->n_ctx; i++) sheaf_free(part->ctx[i]);
    free((void *)part->ctx);
}

enum sheaf_status sheaf__meta_find_uses(const struct sheaf__split_plan *plan,
                                        struct meta_uses *uses) {
    const size_t n = (size_t)plan->n_values + 1;
    bool *made = calloc(n, sizeof *made);
    uses->leaf = calloc(n, sizeof *uses->leaf);
    uses->last_read = malloc(n * sizeof *uses->last_read);
    if (!made || !uses->leaf || !uses->last_read) {
        free(made);
        return sheaf__meta_no_memory();
    }
    for (size_t v = 0; v < n; v++) uses->last_read[v] = -1;
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step *step = &plan->steps[s];
        for (int i = 0; i < SHEAF_MAX_SRC; i++) {
            const int v = step->in[i];
            if (v < 0) continue;
            /* a leaf is read before a step writes it, if any does */
            uses->leaf[v] = uses->leaf[v] || !made[v];
            uses->last_read[v] = s;
        }
        /* a write-back: the memory must be its own until then */
        if (made[step->out]) uses->last_read[step->out] = s;
        made[step->out] = true;
    }
    for (size_t v = 0; v < n; v++) uses->leaf[v] = uses->leaf[v] || !made[v];
    free(made);
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__meta_free_uses(struct meta_uses *uses) {
    free(uses->leaf);
    free(uses->last_read);
}

/* ---- the whole program ---- */

/* Arrays for the graph, the plan and the local members; no part is built. */
static enum sheaf_status make_room(struct meta_program *p, const struct sheaf_cgraph *graph,
                                   size_t n_local) {
    const size_t nodes = (size_t)graph->n_nodes + 1, leafs = (size_t)graph->n_leafs + 1;
    p->parts = calloc(n_local + 1, sizeof *p->parts);
    p->refused = calloc(nodes, sizeof *p->refused);
    p->node_record = calloc(nodes, sizeof *p->node_record);
    p->slices = calloc(nodes * (n_local + 1), sizeof *p->slices);
    p->input_leaf = calloc(leafs, sizeof *p->input_leaf);
    p->input = calloc(leafs * (n_local + 1), sizeof *p->input);
    bool ok = p->parts && p->refused && p->node_record && p->slices && p->input_leaf && p->input;
    for (size_t m = 0; m < n_local && ok; m++) {
        p->parts[m].value = calloc((size_t)p->plan->n_values + 1, sizeof *p->parts[m].value);
        ok = p->parts[m].value;
    }
    return ok ? SHEAF_STATUS_SUCCESS : sheaf__meta_no_memory();
}

static enum sheaf_status build_parts(struct meta_device *dev, struct meta_program *p,
                                     const struct sheaf_cgraph *graph,
                                     const struct meta_uses *uses) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int m = 0; m < dev->n_local && !st; m++) {
        struct builder b = {.dev = dev,
                            .graph = graph,
                            .plan = p->plan,
                            .part = &p->parts[m],
                            .member = dev->local[m],
                            .local = m,
                            .last_read = uses->last_read,
                            .refused = p->refused};
        sheaf__dev_find_proc(dev->members[b.member], SHEAF__TAKES_SLICE_PROC, &b.takes);
        st = sheaf__meta_build_part(&b);
        p->n_copies += b.n_copies;
    }
    return st;
}

/* How the results lie: the slices of each node's final value. */
static void record_nodes(struct meta_program *p, size_t n_local) {
    for (int i = 0; i < p->n_nodes; i++) {
        const int v = p->plan->node_final[i];
        struct sheaf_tensor **slices = p->slices + (size_t)i * n_local;
        for (size_t m = 0; m < n_local; m++) slices[m] = p->parts[m].value[v];
        p->node_record[i] =
            (struct meta_tensor){.state = p->plan->values[v].state, .slices = slices};
    }
}

static int count_checked(const struct sheaf__split_plan *plan) {
    int n = 0;
    for (int s = 0; s < plan->n_steps; s++) n += sheaf__meta_is_checked(plan, &plan->steps[s]);
    return n;
}

enum sheaf_status sheaf__meta_program_new(struct meta_device *dev, const struct sheaf_cgraph *graph,
                                          const uint8_t *whole, struct meta_program **out) {
    *out = NULL;
    const size_t n_local = (size_t)dev->n_local;
    struct meta_uses uses = {0};
    struct meta_program *p = calloc(1, sizeof *p);
    if (!p) return sheaf__meta_no_memory();
    p->n_nodes = graph->n_nodes;
    enum sheaf_status st = sheaf__split_plan_new_with(graph, dev->n_members, leaf_state, dev, whole,
                                                      dev->whole_sums, &p->plan);
    if (st) goto out;
    sheaf__meta_hoist(dev, p->plan, graph);
    p->n_checked = count_checked(p->plan);
    st = sheaf__meta_find_uses(p->plan, &uses);
    if (!st) st = sheaf__meta_find_views(p, graph);
    if (!st) st = check_overlaps(dev, graph);
    if (!st) st = make_room(p, graph, n_local);
    if (!st) st = bind_leaves(dev, p, graph, uses.leaf);
    if (!st) st = build_parts(dev, p, graph, &uses);
    if (!st) record_nodes(p, n_local);
out:
    sheaf__meta_free_uses(&uses);
    if (st) {
        sheaf__meta_program_free(p, dev->n_local);
    } else {
        *out = p;
    }
    return st;
}

void sheaf__meta_program_empty(struct meta_program *p, int n_local) {
    for (int m = 0; p->parts && m < n_local; m++) sheaf__meta_part_free(&p->parts[m]);
    sheaf__split_plan_free(p->plan);
    free(p->parts);
    free(p->refused);
    free(p->views);
    free(p->slices);
    free(p->input_leaf);
    free(p->input);
    free((void *)p->buffers);
    for (int i = 0; p->node_record && i < p->n_nodes; i++)
        p->node_record[i] = (struct meta_tensor){.state = NULL};
    *p = (struct meta_program){.last_use = p->last_use,
                               .n_nodes = p->n_nodes,
                               .node_record = p->node_record,
                               .weights_gone = p->weights_gone};
}

void sheaf__meta_program_free(struct meta_program *p, int n_local) {
    if (!p) return;
    sheaf__meta_program_empty(p, n_local);
    free(p->node_record);
    free(p);
}
