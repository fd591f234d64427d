/* Walks over a graph of ggml: counts the uses of its tensors, has its nodes written as records, and
 * finds its results. */
#include "ggml/encode.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "ggml/encode_impl.h"

/* ---- nodes ---- */

/* A node without elements is not computed: llama.cpp copies the states of further sequences, of
 * which there may be none. */
static bool is_computed(const struct gg_encoder *e, const struct gg_tensor *t) {
    for (int i = 0; i < GG_MAX_DIMS; i++)
        if (t->ne[i] == 0) return false;
    return t->op != 0 && (!e->host->has_compute_flag || t->flags & GG_FLAG_COMPUTE);
}

/* The scheduler leaves views of other devices' tensors between the nodes of this one. */
static bool is_view(const struct gg_encoder *e, const struct gg_tensor *t) {
    struct sheaf_tensor s;
    struct gg_operands o;
    return t->view_src && gg_translate(e->host, t, &s, &o) && gg_is_view(&s);
}

static void count_uses(struct gg_encoder *e, const struct gg_cgraph *graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct gg_tensor *t = graph->nodes[i];
        const bool views = gg_op_of(e->host, t->op) == SHEAF_OP_VIEW;
        const bool over_heads = e->shares_norms && gg_is_norm_over_heads(e, t);
        for (int k = 0; k < GG_MAX_SRC; k++) {
            struct gg_slot *slot = t->src[k] ? gg_slot_of(e, t->src[k]) : NULL;
            if (!slot) continue;
            slot->uses++;
            slot->views += views;
            if (k == 0 && over_heads) slot->over_heads = true;
        }
    }
}

/* ---- buffers ---- */

static bool is_weight_elsewhere(const struct gg_encoder *e, const struct gg_tensor *t,
                                const struct gg_buffer *b) {
    return t && gg_root(t)->buffer != b && gg_is_static(e->host, t);
}

/* Does the graph read weights or caches of another buffer? */
static bool has_weights_elsewhere(const struct gg_encoder *e, const struct gg_cgraph *graph,
                                  const struct gg_buffer *b) {
    for (int i = 0; i < graph->n_nodes; i++)
        for (int k = 0; k < GG_MAX_SRC; k++)
            if (is_weight_elsewhere(e, graph->nodes[i]->src[k], b)) return true;
    return false;
}

/* A buffer without a usage that has results, and no weights, is one of a program elsewhere
 * (ggml-rpc-server does not learn what its buffers are for) or of ggml's meta device. Inputs of one
 * graph lie there where results of another do. From now on it is for computing; what graphs have
 * used of it must be brought back first. */
static enum sheaf_status settle_buffer(struct gg_encoder *e, const struct gg_cgraph *graph,
                                       const struct gg_tensor *t) {
    struct gg_memory *m = e->memory_of(t);
    if (!m || !has_weights_elsewhere(e, graph, t->buffer)) return SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < m->n_regions; i++) {
        if (m->regions[i]->object == GG_NO_OBJECT && !m->regions[i]->file) continue;
        e->stale = m->regions[i];
        e->stale_in = m;
        return sheaf_set_error(SHEAF_STATUS_INVALID, "graph: '%s' was a weight before",
                               m->regions[i]->name);
    }
    gg_host_rest(e->host, t->buffer)->usage = GG_USAGE_COMPUTE;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status settle_buffers(struct gg_encoder *e, const struct gg_cgraph *graph) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const struct gg_buffer *last = NULL; /* results of a graph lie in one buffer, mostly */
    for (int i = 0; i < graph->n_nodes && !st; i++) {
        const struct gg_tensor *t = graph->nodes[i];
        if (!is_computed(e, t) || t->view_src || !t->buffer || t->buffer == last ||
            gg_host_rest(e->host, t->buffer)->usage != GG_USAGE_ANY)
            continue;
        last = t->buffer;
        st = settle_buffer(e, graph, t);
    }
    return st;
}

/* ---- nodes ---- */

/* Views are encoded with the nodes that read them. */
static enum sheaf_status encode_nodes(struct gg_encoder *e, const struct gg_cgraph *graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct gg_tensor *t = graph->nodes[i];
        uint32_t record = 0;
        if (!is_computed(e, t) || is_view(e, t)) continue;
        const enum sheaf_status st = gg_encode_node(e, t, &record);
        if (st) return st;
        struct gg_slot *slot = gg_slot_of(e, t);
        if (!slot) return gg_no_memory("graph");
        slot->record = record;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- results ---- */

static enum sheaf_status add_result(struct gg_encoder *e, const struct gg_tensor *root,
                                    uint32_t record) {
    struct gg_slot *slot = gg_slot_of(e, root);
    if (!slot || slot->output) return slot ? SHEAF_STATUS_SUCCESS : gg_no_memory("graph");
    slot->output = true;
    if (!sheaf__grow(&e->results, &e->cap_results, e->n_results + 1, sizeof *e->results))
        return gg_no_memory("graph");
    e->results[e->n_results++] = root;
    gg_put_u64(&e->outputs, record);
    return e->outputs.failed ? gg_no_memory("graph") : SHEAF_STATUS_SUCCESS;
}

/* Is t read by something that is not in this part of the graph? encode.h says how that is known. */
static bool is_read_outside(const struct gg_host *host, const struct gg_cgraph *graph,
                            const struct gg_tensor *t, const struct gg_slot *slot, bool last) {
    if (t->flags & GG_FLAG_OUTPUT || (last && gg_uid(host, graph) == 0)) return true;
    const struct gg_tensor *root = gg_root(t);
    if (root->op != 0 && root->buffer &&
        gg_host_rest(host, root->buffer)->usage != GG_USAGE_COMPUTE)
        return true;
    const int count = gg_use_count(graph, t);
    return count <= 0 || (uint32_t)count > slot->uses; /* 0: no node of the whole graph reads it */
}

static enum sheaf_status find_result(struct gg_encoder *e, const struct gg_cgraph *graph,
                                     const struct gg_tensor *t, bool last) {
    const struct gg_slot *root = gg_slot_of(e, gg_root(t));
    const uint32_t of_root = root ? root->record : 0;
    const struct gg_slot *slot = root ? gg_slot_of(e, t) : NULL;
    if (!slot) return gg_no_memory("graph");
    const uint32_t record = slot->record ? slot->record : of_root;
    if (!record) return SHEAF_STATUS_SUCCESS; /* a view of another device's tensor */
    const struct gg_made *made = &e->made[record - 1];
    const struct gg_made *owner = &e->made[made->owner];
    if (owner->record.kind == GG_LEAF_OBJECT) return SHEAF_STATUS_SUCCESS;
    const bool writes_input = owner->record.kind == GG_LEAF_INPUT && made != owner &&
                              !sheaf_op_is_view((enum sheaf_op)made->record.op);
    if (!writes_input &&
        (owner->record.kind == GG_LEAF_INPUT || !is_read_outside(e->host, graph, t, slot, last)))
        return SHEAF_STATUS_SUCCESS;
    return add_result(e, gg_root(t), made->owner);
}

/* A callback looks at the node that ends its part, and at what that node has read: the allocator
 * keeps an operand until then, unless the node was computed in its place. */
static enum sheaf_status find_operands(struct gg_encoder *e, const struct gg_cgraph *graph,
                                       const struct gg_tensor *t) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int k = 0; k < GG_MAX_SRC && !st; k++) {
        const struct gg_tensor *root = t->src[k] ? gg_root(t->src[k]) : NULL;
        if (root && root->data != gg_root(t)->data)
            st = find_result(e, graph, t->src[k], true);
    }
    return st;
}

static enum sheaf_status find_results(struct gg_encoder *e, const struct gg_cgraph *graph) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const struct gg_tensor *last = graph->n_nodes ? graph->nodes[graph->n_nodes - 1] : NULL;
    for (int i = 0; i < graph->n_nodes && !st; i++)
        if (is_computed(e, graph->nodes[i]))
            st = find_result(e, graph, graph->nodes[i], graph->nodes[i] == last);
    const bool ends_part = last && gg_uid(e->host, graph) == 0 && is_computed(e, last);
    return st || !ends_part ? st : find_operands(e, graph, last);
}

/* ---- graphs ---- */

static enum sheaf_status start(struct gg_encoder *e, size_t n_nodes) {
    e->graph.n = e->outputs.n = 0;
    e->graph.failed = e->outputs.failed = false;
    e->n_made = e->n_inputs = e->n_results = e->n_unbound = e->n_offsets = 0;
    e->stale = NULL;
    return gg_slots_clear(e, 8 * n_nodes + 64) ? SHEAF_STATUS_SUCCESS : gg_no_memory("graph");
}

enum sheaf_status gg_encode(struct gg_encoder *e, const struct gg_cgraph *graph) {
    enum sheaf_status st = start(e, (size_t)graph->n_nodes);
    if (!st) st = settle_buffers(e, graph);
    if (st) return st;
    count_uses(e, graph);
    st = encode_nodes(e, graph);
    return st ? st : find_results(e, graph);
}

/* The copy of record `node`, which is r, to where its tensor is. */
static bool add_copy(struct gg_encoder *e, const struct gg_record *r, uint32_t node,
                     const struct gg_tensor *t) {
    struct gg_record target = *r, copy;
    target.kind = GG_LEAF_INPUT;
    target.op = SHEAF_OP_NONE;
    memset(target.src, 0, sizeof target.src);
    memset(target.params, 0, sizeof target.params);
    copy = target;
    copy.kind = GG_NODE;
    copy.op = SHEAF_OP_CPY;
    copy.src[0] = node;
    copy.src[1] = copy.view_of = gg_record_add(e, &target, t);
    return copy.view_of && gg_record_add(e, &copy, t);
}

enum sheaf_status gg_encode_question(struct gg_encoder *e, const struct gg_tensor *t) {
    struct sheaf_tensor s;
    struct gg_record r;
    struct gg_operands o;
    enum sheaf_status st = start(e, 1);
    if (!st && !gg_translate(e->host, t, &s, &o)) st = gg_refuse_tensor(t);
    if (st) return st;
    gg_record_fill(&r, &s, GG_NODE);
    for (int i = 0; i < SHEAF_MAX_SRC && o.order[i] >= 0; i++) {
        const struct gg_tensor *src = t->src[o.order[i]];
        struct sheaf_tensor shape;
        struct gg_record operand;
        if (!src) continue;
        if (!gg_operand(e->host, &o, i, src, &shape)) return gg_refuse_tensor(src);
        gg_record_fill(&operand, &shape, GG_LEAF_INPUT);
        gg_record_make_dense(&operand);
        r.src[i] = gg_record_add(e, &operand, src);
    }
    if (gg_writes_operand(&s)) r.view_of = r.src[gg_shown_operand(&s)];
    gg_record_make_dense(&r);
    const uint32_t node = gg_record_add(e, &r, t);
    const bool is_copied = t->view_src && !gg_writes_operand(&s);
    return node && (!is_copied || add_copy(e, &r, node, t)) ? st : gg_no_memory("graph");
}

void gg_encoder_free(struct gg_encoder *e) {
    free(e->graph.data);
    free(e->outputs.data);
    free(e->offsets);
    free(e->made);
    free(e->inputs);
    free(e->results);
    free(e->unbound);
    free(e->unbound_in);
    free(e->slots);
}
