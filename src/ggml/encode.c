/* Walks a ggml graph and writes records. Nothing is allocated once the arrays are large enough. */
#include "ggml/encode.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "ggml/cut_layer.h"
#include "ggml/translate.h"

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "graph: out of memory");
}

/* ---- the table of tensors ---- */

static bool grow_slots(struct gg_encoder *e, size_t n) {
    size_t want = 256;
    while (want < n) want *= 2;
    if (want > e->n_slots) {
        free(e->slots);
        e->slots = malloc(want * sizeof *e->slots);
        e->n_slots = e->slots ? want : 0;
    }
    if (e->slots) memset(e->slots, 0, e->n_slots * sizeof *e->slots);
    e->n_used = 0;
    return e->slots;
}

/* NULL: more tensors than a graph of so many nodes can have. */
static struct gg_slot *slot_of(struct gg_encoder *e, const struct gg_tensor *t) {
    size_t i = sheaf__hash_address(t, e->n_slots);
    while (e->slots[i].tensor && e->slots[i].tensor != t) i = (i + 1) & (e->n_slots - 1);
    if (e->slots[i].tensor) return &e->slots[i];
    if (e->n_used + 1 >= e->n_slots) return NULL;
    e->n_used++;
    e->slots[i].tensor = t;
    return &e->slots[i];
}

/* ---- records ---- */

/* The record of a node that shows an object's memory, without its place there. */
static bool put_placeless(struct gg_encoder *e, struct gg_record r) {
    r.view_offs = 0;
    if (r.op == SHEAF_OP_VIEW) {
        if (!sheaf__grow(&e->offsets, &e->cap_offsets, e->n_offsets + 1, sizeof *e->offsets))
            return false;
        memcpy(&e->offsets[e->n_offsets++], r.params, sizeof *e->offsets);
        memset(r.params, 0, sizeof *e->offsets);
        r.moves = 1;
    }
    gg_put_record(&e->graph, &r);
    return true;
}

/* 1 + record; 0: out of memory. The owner is the record itself unless view_of says another. */
static uint32_t add_record(struct gg_encoder *e, const struct gg_record *r,
                           const struct gg_tensor *t) {
    if (!sheaf__grow(&e->made, &e->cap_made, e->n_made + 1, sizeof *e->made)) return 0;
    const uint32_t owner = r->view_of ? r->view_of - 1 : (uint32_t)e->n_made;
    e->made[e->n_made++] = (struct gg_made){*r, t, owner, false};
    if (!r->view_of || e->made[owner].record.kind != GG_LEAF_OBJECT)
        gg_put_record(&e->graph, r);
    else if (!put_placeless(e, *r))
        return 0;
    return e->graph.failed ? 0 : (uint32_t)e->n_made;
}

/* The ranks check views against offset 0 only when they make a program. */
static bool fits_owner(const struct gg_record *view, const struct gg_record *owner) {
    const struct gg_record *record[] = {view, owner};
    struct sheaf_tensor t[2] = {{.view_offs = (size_t)view->view_offs}};
    for (int k = 0; k < 2; k++) {
        t[k].type = (enum sheaf_type)record[k]->type;
        for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
            t[k].ne[i] = (int64_t)record[k]->ne[i];
            t[k].nb[i] = (size_t)record[k]->nb[i];
        }
    }
    return gg_fits_owner(&t[0], &t[1]);
}

static void fill(struct gg_record *r, const struct sheaf_tensor *s, uint32_t kind) {
    memset(r, 0, sizeof *r);
    r->kind = kind;
    r->op = (uint32_t)s->op;
    r->type = (uint32_t)s->type;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        r->ne[i] = (uint64_t)s->ne[i];
        r->nb[i] = s->nb[i];
    }
    memcpy(r->params, s->op_params, sizeof r->params);
}

static void make_dense(struct gg_record *r) {
    const enum sheaf_type type = (enum sheaf_type)r->type;
    r->nb[0] = sheaf_type_size(type);
    r->nb[1] = sheaf_row_size(type, (int64_t)r->ne[0]);
    for (int i = 2; i < SHEAF_MAX_DIMS; i++) r->nb[i] = r->nb[i - 1] * r->ne[i - 1];
}

static enum sheaf_status unknown(const struct gg_tensor *t) {
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "graph: '%s' has an op or a type that this device lacks", t->name);
}

/* ---- leaves ---- */

static enum sheaf_status add_view(struct gg_encoder *e, const struct gg_tensor *t,
                                  struct gg_record *r, uint32_t of, uint32_t *out);

static enum sheaf_status note_unbound(struct gg_encoder *e, struct gg_memory *m,
                                      struct gg_region *region) {
    if (!sheaf__grow(&e->unbound, &e->cap_unbound, e->n_unbound + 1, sizeof *e->unbound) ||
        !sheaf__grow(&e->unbound_in, &e->cap_unbound_in, e->n_unbound + 1, sizeof *e->unbound_in) ||
        !gg_number_take(e->numbers, region))
        return no_memory();
    for (size_t i = 0; i < e->n_unbound; i++)
        if (e->unbound[i] == region) return SHEAF_STATUS_SUCCESS;
    e->unbound_in[e->n_unbound] = m;
    e->unbound[e->n_unbound++] = region;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status object_leaf(struct gg_encoder *e, const struct gg_tensor *t,
                                     struct gg_record *r) {
    struct gg_memory *m = e->memory_of(t);
    struct gg_region *other = NULL, *region = m ? gg_region_of(m, e->host, t, &other) : NULL;
    if (!region && other) {
        e->stale = other;
        e->stale_in = m;
        return sheaf_set_error(SHEAF_STATUS_INVALID, "graph: '%s' was another tensor before",
                               t->name);
    }
    if (!region)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "graph: '%s' lies in no buffer of SHEAF",
                               t->name);
    r->kind = GG_LEAF_OBJECT;
    const enum sheaf_status st = region->bound ? SHEAF_STATUS_SUCCESS : note_unbound(e, m, region);
    r->object = (uint32_t)region->object;
    return st;
}

static enum sheaf_status input_leaf(struct gg_encoder *e, const struct gg_tensor *t) {
    if (!sheaf__grow(&e->inputs, &e->cap_inputs, e->n_inputs + 1, sizeof *e->inputs))
        return no_memory();
    e->inputs[e->n_inputs++] = t;
    return SHEAF_STATUS_SUCCESS;
}

/* The scheduler copies views of other devices' tensors with the strides that they have: such a leaf
 * is its bytes, and a view of them. */
static enum sheaf_status strided_leaf(struct gg_encoder *e, const struct gg_tensor *t,
                                      const struct sheaf_tensor *s, uint32_t *out) {
    struct sheaf_tensor bytes = {.type = s->type, .ne = {0, 1, 1, 1}};
    struct gg_record r;
    bytes.ne[0] = (int64_t)(sheaf_nbytes(s) / sheaf_type_size(s->type)) * sheaf_blck_size(s->type);
    fill(&r, &bytes, GG_LEAF_INPUT);
    make_dense(&r);
    const uint32_t all = add_record(e, &r, t);
    if (!all) return no_memory();
    fill(&r, s, GG_NODE);
    r.op = SHEAF_OP_VIEW;
    return add_view(e, t, &r, all, out);
}

static enum sheaf_status leaf(struct gg_encoder *e, const struct gg_tensor *t, uint32_t *out) {
    static const struct gg_operands plain;
    struct sheaf_tensor s;
    struct gg_record r;
    if (!gg_operand(e->host, &plain, 0, t, &s)) return unknown(t);
    const bool is_object = gg_is_static(e->host, t), dense = gg_is_dense(e->host, t);
    if (is_object && !dense)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "graph: the elements of '%s' do not lie one behind the other",
                               t->name);
    fill(&r, &s, GG_LEAF_INPUT);
    make_dense(&r);
    enum sheaf_status st = is_object ? object_leaf(e, t, &r) : input_leaf(e, t);
    if (st) return st;
    if (!dense) return strided_leaf(e, t, &s, out);
    *out = add_record(e, &r, t);
    return *out ? st : no_memory();
}

/* ---- nodes ---- */

static enum sheaf_status record_of(struct gg_encoder *e, const struct gg_tensor *t, uint32_t *out);

/* A view of `of`, whose memory t shows: shape, strides and offset are t's. */
static enum sheaf_status add_view(struct gg_encoder *e, const struct gg_tensor *t,
                                  struct gg_record *r, uint32_t of, uint32_t *out) {
    if (r->op == SHEAF_OP_VIEW && e->made[of - 1].unflat) of = e->made[of - 1].owner + 1;
    const struct gg_made *source = &e->made[of - 1];
    const uint64_t from = source->record.view_of ? source->record.view_offs : 0;
    r->kind = GG_NODE;
    r->view_of = source->owner + 1;
    r->view_offs = t->view_offs;
    memset(r->src, 0, sizeof r->src);
    r->src[0] = of;
    if (r->op == SHEAF_OP_VIEW) {
        const uint64_t offset = r->view_offs - from;
        if (r->view_offs < from) /* relative to the owner then */
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "graph: view '%s' begins before '%s'",
                                   t->name, source->tensor->name);
        memcpy(r->params, &offset, sizeof offset);
    }
    if (!fits_owner(r, &e->made[source->owner].record))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "graph: view '%s' ends outside of '%s'",
                               t->name, e->made[source->owner].tensor->name);
    *out = add_record(e, r, t);
    return *out ? SHEAF_STATUS_SUCCESS : no_memory();
}

/* The memory that t shows, as a view of its root. */
static enum sheaf_status view_of_root(struct gg_encoder *e, const struct gg_tensor *t,
                                      uint32_t *out) {
    struct gg_record r;
    struct sheaf_tensor s = {.op = SHEAF_OP_VIEW};
    uint32_t root = 0;
    enum sheaf_status st = record_of(e, t->view_src, &root);
    if (st) return st;
    s.type = (enum sheaf_type)e->host->type[t->type];
    memcpy(s.ne, t->ne, sizeof s.ne);
    memcpy(s.nb, t->nb, sizeof s.nb);
    fill(&r, &s, GG_NODE);
    return add_view(e, t, &r, root, out);
}

/* CPY of `from` into the memory that t shows. */
static enum sheaf_status copy_into(struct gg_encoder *e, const struct gg_tensor *t, uint32_t from,
                                   uint32_t *out) {
    uint32_t target = 0;
    enum sheaf_status st = view_of_root(e, t, &target);
    if (st) return st;
    struct gg_record r = e->made[target - 1].record;
    r.op = SHEAF_OP_CPY;
    memset(r.params, 0, sizeof r.params);
    r.src[0] = from;
    r.src[1] = target;
    *out = add_record(e, &r, t);
    return *out ? st : no_memory();
}

/* Record *of, signals, as images. */
static enum sheaf_status as_images(struct gg_encoder *e, const struct gg_operands *o,
                                   const struct gg_tensor *src, uint32_t *of) {
    static const int32_t axes[SHEAF_MAX_DIMS] = {0, 2, 3, 1};
    struct sheaf_tensor s;
    struct gg_record r;
    if (!gg_operand(e->host, o, 0, src, &s)) return unknown(src);
    s.op = SHEAF_OP_PERMUTE;
    memcpy(s.op_params, axes, sizeof axes);
    fill(&r, &s, GG_NODE);
    return add_view(e, src, &r, *of, of);
}

static enum sheaf_status operands(struct gg_encoder *e, const struct gg_tensor *t,
                                  const struct gg_operands *o, struct gg_record *r) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < SHEAF_MAX_SRC && o->order[i] >= 0 && !st; i++) {
        const struct gg_tensor *src = t->src[o->order[i]];
        if (src) st = record_of(e, src, &r->src[i]);
        if (!st && i == 0 && o->signals) st = as_images(e, o, src, &r->src[0]);
    }
    return st;
}

/* Nodes that read the result by views read the flat one (add_view). */
static enum sheaf_status unflatten(struct gg_encoder *e, const struct gg_tensor *t, uint32_t of,
                                   uint32_t *out) {
    struct gg_record r = e->made[of - 1].record;
    r.op = SHEAF_OP_RESHAPE;
    memset(r.params, 0, sizeof r.params);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) r.ne[i] = (uint64_t)t->ne[i];
    make_dense(&r);
    const enum sheaf_status st = add_view(e, t, &r, of, out);
    if (!st) e->made[*out - 1].unflat = true;
    return st;
}

/* ---- norms over all heads ---- */

static enum sheaf_op op_of(const struct gg_encoder *e, const struct gg_tensor *t) {
    return gg_op_of(e->host, t->op);
}

/* The rows of a product, or these with a scale and a bias. */
static bool is_projection(const struct gg_encoder *e, const struct gg_tensor *x) {
    for (int i = 0; i < 2; i++)
        if ((op_of(e, x) == SHEAF_OP_ADD || op_of(e, x) == SHEAF_OP_MUL) && x->src[1]->op == 0)
            x = x->src[0];
    return op_of(e, x) == SHEAF_OP_MUL_MAT;
}

/* By the weight that the norm is multiplied by, and its operand: a product's rows, or heads that were
 * made one row. */
static bool is_over_heads(const struct gg_encoder *e, const struct gg_tensor *mul) {
    const struct gg_tensor *norm = mul->src[0], *weight = mul->src[1];
    struct gg_leaf l;
    if (op_of(e, mul) != SHEAF_OP_MUL || op_of(e, norm) != SHEAF_OP_RMS_NORM || norm->view_src ||
        weight->op != 0 || weight->ne[0] != norm->ne[0] || weight->ne[1] != 1)
        return false;
    const struct gg_tensor *x = norm->src[0];
    const bool is_row =
        op_of(e, x) == SHEAF_OP_RESHAPE && x->ne[1] == 1 && x->src[0]->ne[0] < x->ne[0];
    if (!is_row && !is_projection(e, x)) return false;
    gg_leaf_of(weight->name, &l);
    return is_row ? l.role == GG_ROLE_STATE_NORM
                  : l.role == GG_ROLE_Q_NORM || l.role == GG_ROLE_K_NORM;
}

/* x / sqrt(sum of squares / n + eps). */
static enum sheaf_status norm_over_heads(struct gg_encoder *e, const struct gg_tensor *t,
                                         const struct gg_record *norm, uint32_t *out) {
    static const enum sheaf_op ops[] = {SHEAF_OP_SQR, SHEAF_OP_SUM_ROWS, SHEAF_OP_SCALE,
                                        SHEAF_OP_SQRT};
    const float mean[] = {1.0f / (float)norm->ne[0], 0};
    struct gg_record r = *norm;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        r.op = ops[i];
        if (ops[i] == SHEAF_OP_SUM_ROWS) r.ne[0] = 1;
        make_dense(&r);
        memset(r.params, 0, sizeof r.params);
        if (ops[i] == SHEAF_OP_SCALE) {
            memcpy(r.params, mean, sizeof *mean);
            memcpy((char *)r.params + sizeof *mean, norm->params, sizeof *mean); /* eps */
        }
        if (!(r.src[0] = add_record(e, &r, t))) return no_memory();
    }
    const uint32_t root = r.src[0];
    r = *norm;
    r.op = SHEAF_OP_DIV;
    r.src[1] = root;
    make_dense(&r);
    memset(r.params, 0, sizeof r.params);
    *out = add_record(e, &r, t);
    return *out ? SHEAF_STATUS_SUCCESS : no_memory();
}

static enum sheaf_status node(struct gg_encoder *e, const struct gg_tensor *t, uint32_t *out) {
    struct sheaf_tensor s;
    struct gg_record r;
    struct gg_operands o;
    if (!gg_translate(e->host, t, &s, &o)) return unknown(t);
    fill(&r, &s, GG_NODE);
    if (gg_is_view(&s)) {
        uint32_t of = 0;
        const enum sheaf_status st = record_of(e, t->src[0], &of);
        return st ? st : add_view(e, t, &r, of, out);
    }
    enum sheaf_status st = operands(e, t, &o, &r);
    if (st) return st;
    if (gg_writes_operand(&s)) {
        const uint32_t target = r.src[gg_shown_operand(&s)];
        r.view_of = e->made[target - 1].owner + 1;
        r.view_offs = t->view_offs;
    } else if (t->view_src) { /* computed in place: compute, then copy to that place */
        uint32_t fresh;
        make_dense(&r);
        fresh = add_record(e, &r, t);
        return fresh ? copy_into(e, t, fresh, out) : no_memory();
    }
    const struct gg_slot *slot = slot_of(e, t);
    if (!slot) return no_memory();
    if (slot->over_heads) return norm_over_heads(e, t, &r, out);
    *out = add_record(e, &r, t);
    if (!*out) return no_memory();
    const bool as_it_is = !memcmp(s.ne, t->ne, sizeof s.ne) || slot->uses == slot->views;
    return as_it_is ? st : unflatten(e, t, *out, out);
}

/* The record of an operand. One that is no node of this part was computed before, or is a leaf; the
 * views that led to it are taken along. */
static enum sheaf_status record_of(struct gg_encoder *e, const struct gg_tensor *t, uint32_t *out) {
    struct gg_slot *slot = slot_of(e, t);
    if (!slot) return no_memory();
    if (slot->record) {
        *out = slot->record;
        return SHEAF_STATUS_SUCCESS;
    }
    struct sheaf_tensor s;
    struct gg_operands o;
    enum sheaf_status st;
    if (!t->view_src)
        st = leaf(e, t, out);
    else if (gg_translate(e->host, t, &s, &o) && gg_is_view(&s) && t->src[0])
        st = node(e, t, out);
    else if (e->host->type[t->type] < 0)
        st = unknown(t);
    else
        st = view_of_root(e, t, out);
    if (!st) slot_of(e, t)->record = *out;
    return st;
}

/* ---- results ---- */

static enum sheaf_status add_result(struct gg_encoder *e, const struct gg_tensor *root,
                                    uint32_t record) {
    struct gg_slot *slot = slot_of(e, root);
    if (!slot || slot->output) return slot ? SHEAF_STATUS_SUCCESS : no_memory();
    slot->output = true;
    if (!sheaf__grow(&e->results, &e->cap_results, e->n_results + 1, sizeof *e->results))
        return no_memory();
    e->results[e->n_results++] = root;
    gg_put_u64(&e->outputs, record);
    return e->outputs.failed ? no_memory() : SHEAF_STATUS_SUCCESS;
}

static bool is_read_outside(const struct gg_host *host, const struct gg_cgraph *graph,
                            const struct gg_tensor *t, const struct gg_slot *slot, bool last) {
    if (t->flags & GG_FLAG_OUTPUT || (last && gg_uid(host, graph) == 0)) return true;
    const struct gg_tensor *root = gg_root(t);
    if (root->op != 0 && root->buffer &&
        gg_host_rest(host, root->buffer)->usage != GG_USAGE_COMPUTE)
        return true;
    const int count = gg_use_count(graph, t);
    return count <= 0 || (uint32_t)count > slot->uses; /* 0: nothing in the graph reads it */
}

static enum sheaf_status find_result(struct gg_encoder *e, const struct gg_cgraph *graph,
                                     const struct gg_tensor *t, bool last) {
    struct gg_slot *slot = slot_of(e, t), *root = slot_of(e, gg_root(t));
    const uint32_t record = slot->record ? slot->record : root->record;
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
        if (root && (root == gg_root(t) || root->data != gg_root(t)->data))
            st = find_result(e, graph, t->src[k], true);
    }
    return st;
}

/* ---- graphs ---- */

/* Nothing is computed of a node without elements: llama.cpp copies the states of no further sequences. */
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

static enum sheaf_status start(struct gg_encoder *e, size_t n_nodes) {
    e->graph.n = e->outputs.n = 0;
    e->graph.failed = e->outputs.failed = false;
    e->n_made = e->n_inputs = e->n_results = e->n_unbound = e->n_offsets = 0;
    e->stale = NULL;
    return grow_slots(e, 8 * n_nodes + 64) ? SHEAF_STATUS_SUCCESS : no_memory();
}

static enum sheaf_status count_uses(struct gg_encoder *e, const struct gg_cgraph *graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct gg_tensor *t = graph->nodes[i];
        const bool views = op_of(e, t) == SHEAF_OP_VIEW;
        const bool over_heads = e->shares_norms && is_over_heads(e, t);
        for (int k = 0; k < GG_MAX_SRC; k++) {
            struct gg_slot *slot = t->src[k] ? slot_of(e, t->src[k]) : NULL;
            if (!slot) continue;
            slot->uses++;
            slot->views += views;
            if (k == 0 && over_heads) slot->over_heads = true;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_encode(struct gg_encoder *e, const struct gg_cgraph *graph) {
    enum sheaf_status st = start(e, (size_t)graph->n_nodes);
    if (!st) st = count_uses(e, graph);
    for (int i = 0; i < graph->n_nodes && !st; i++) {
        const struct gg_tensor *t = graph->nodes[i];
        uint32_t record = 0;
        if (!is_computed(e, t) || is_view(e, t)) continue; /* views come with what reads them */
        st = node(e, t, &record);
        struct gg_slot *slot = st ? NULL : slot_of(e, t);
        if (slot) slot->record = record;
        if (!st && !slot) st = no_memory();
    }
    for (int i = 0; i < graph->n_nodes && !st; i++)
        if (is_computed(e, graph->nodes[i]))
            st = find_result(e, graph, graph->nodes[i], i == graph->n_nodes - 1);
    const struct gg_tensor *last = graph->n_nodes ? graph->nodes[graph->n_nodes - 1] : NULL;
    return !st && last && gg_uid(e->host, graph) == 0 && is_computed(e, last)
               ? find_operands(e, graph, last)
               : st;
}

enum sheaf_status gg_encode_question(struct gg_encoder *e, const struct gg_tensor *t) {
    struct sheaf_tensor s;
    struct gg_record r;
    struct gg_operands o;
    enum sheaf_status st = start(e, 1);
    if (!st && !gg_translate(e->host, t, &s, &o)) st = unknown(t);
    if (st) return st;
    fill(&r, &s, GG_NODE);
    for (int i = 0; i < SHEAF_MAX_SRC && o.order[i] >= 0; i++) {
        const struct gg_tensor *src = t->src[o.order[i]];
        struct sheaf_tensor shape;
        struct gg_record operand;
        if (!src) continue;
        if (!gg_operand(e->host, &o, i, src, &shape)) return unknown(src);
        fill(&operand, &shape, GG_LEAF_INPUT);
        make_dense(&operand);
        r.src[i] = add_record(e, &operand, src);
    }
    if (gg_writes_operand(&s)) r.view_of = r.src[gg_shown_operand(&s)];
    make_dense(&r);
    return add_record(e, &r, t) ? st : no_memory();
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
