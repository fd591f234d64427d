/* A node of ggml as records: leaves that it reads, views that lead to its operands, and the node
 * itself. Some nodes become several records: what is computed in place, results that are flat in
 * the library, operands that are images there. */
#include <string.h>

#include "base/array.h"
#include "ggml/encode_impl.h"

static enum sheaf_status record_of(struct gg_encoder *e, const struct gg_tensor *t, uint32_t *out);
static enum sheaf_status add_view(struct gg_encoder *e, const struct gg_tensor *t,
                                  struct gg_record *r, uint32_t of, uint32_t *out);

/* ---- leaves ---- */

static enum sheaf_status note_unbound(struct gg_encoder *e, struct gg_memory *m,
                                      struct gg_region *region) {
    if (!sheaf__grow(&e->unbound, &e->cap_unbound, e->n_unbound + 1, sizeof *e->unbound) ||
        !sheaf__grow(&e->unbound_in, &e->cap_unbound_in, e->n_unbound + 1, sizeof *e->unbound_in) ||
        !gg_number_take(e->numbers, region))
        return gg_no_memory("graph");
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
        return gg_no_memory("graph");
    e->inputs[e->n_inputs++] = t;
    return SHEAF_STATUS_SUCCESS;
}

/* The scheduler copies views of other devices' tensors with the strides that they have: such a leaf
 * is its bytes, and a view of them, and never an object. */
static enum sheaf_status strided_leaf(struct gg_encoder *e, const struct gg_tensor *t,
                                      const struct sheaf_tensor *s, uint32_t *out) {
    struct sheaf_tensor bytes = {.type = s->type, .ne = {0, 1, 1, 1}};
    struct gg_record r;
    bytes.ne[0] = (int64_t)(sheaf_nbytes(s) / sheaf_type_size(s->type)) * sheaf_blck_size(s->type);
    gg_record_fill(&r, &bytes, GG_LEAF_INPUT);
    gg_record_make_dense(&r);
    const uint32_t all = gg_record_add(e, &r, t);
    if (!all) return gg_no_memory("graph");
    gg_record_fill(&r, s, GG_NODE);
    r.op = SHEAF_OP_VIEW;
    return add_view(e, t, &r, all, out);
}

static enum sheaf_status encode_leaf(struct gg_encoder *e, const struct gg_tensor *t,
                                     uint32_t *out) {
    static const struct gg_operands plain;
    struct sheaf_tensor s;
    struct gg_record r;
    if (!gg_operand(e->host, &plain, 0, t, &s)) return gg_refuse_tensor(t);
    const bool is_object = gg_is_static(e->host, t), dense = gg_is_dense(e->host, t);
    gg_record_fill(&r, &s, GG_LEAF_INPUT);
    gg_record_make_dense(&r);
    enum sheaf_status st = is_object ? object_leaf(e, t, &r) : input_leaf(e, t);
    if (st) return st;
    if (!dense) return strided_leaf(e, t, &s, out);
    *out = gg_record_add(e, &r, t);
    return *out ? st : gg_no_memory("graph");
}

/* ---- views ---- */

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
    if (!gg_record_fits(r, &e->made[source->owner].record))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "graph: view '%s' ends outside of '%s'",
                               t->name, e->made[source->owner].tensor->name);
    *out = gg_record_add(e, r, t);
    return *out ? SHEAF_STATUS_SUCCESS : gg_no_memory("graph");
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
    gg_record_fill(&r, &s, GG_NODE);
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
    *out = gg_record_add(e, &r, t);
    return *out ? st : gg_no_memory("graph");
}

/* ---- nodes ---- */

/* Record *of, signals, as images. */
static enum sheaf_status as_images(struct gg_encoder *e, const struct gg_operands *o,
                                   const struct gg_tensor *src, uint32_t *of) {
    static const int32_t axes[SHEAF_MAX_DIMS] = {0, 2, 3, 1};
    struct sheaf_tensor s;
    struct gg_record r;
    if (!gg_operand(e->host, o, 0, src, &s)) return gg_refuse_tensor(src);
    s.op = SHEAF_OP_PERMUTE;
    memcpy(s.op_params, axes, sizeof axes);
    gg_record_fill(&r, &s, GG_NODE);
    return add_view(e, src, &r, *of, of);
}

static enum sheaf_status encode_operands(struct gg_encoder *e, const struct gg_tensor *t,
                                         const struct gg_operands *o, struct gg_record *r) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < SHEAF_MAX_SRC && o->order[i] >= 0 && !st; i++) {
        const struct gg_tensor *src = t->src[o->order[i]];
        if (src) st = record_of(e, src, &r->src[i]);
        if (!st && i == 0 && o->signals) st = as_images(e, o, src, &r->src[0]);
    }
    return st;
}

/* A result that is flat here, in the shape that it has in ggml. Nodes that read it by views read
 * the flat one (add_view). */
static enum sheaf_status unflatten(struct gg_encoder *e, const struct gg_tensor *t, uint32_t of,
                                   uint32_t *out) {
    struct gg_record r = e->made[of - 1].record;
    r.op = SHEAF_OP_RESHAPE;
    memset(r.params, 0, sizeof r.params);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) r.ne[i] = (uint64_t)t->ne[i];
    gg_record_make_dense(&r);
    const enum sheaf_status st = add_view(e, t, &r, of, out);
    if (!st) e->made[*out - 1].unflat = true;
    return st;
}

enum sheaf_status gg_encode_node(struct gg_encoder *e, const struct gg_tensor *t, uint32_t *out) {
    struct sheaf_tensor s;
    struct gg_record r;
    struct gg_operands o;
    if (!gg_translate(e->host, t, &s, &o)) return gg_refuse_tensor(t);
    gg_record_fill(&r, &s, GG_NODE);
    if (gg_is_view(&s)) {
        uint32_t of = 0;
        const enum sheaf_status st = record_of(e, t->src[0], &of);
        return st ? st : add_view(e, t, &r, of, out);
    }
    enum sheaf_status st = encode_operands(e, t, &o, &r);
    if (st) return st;
    if (gg_writes_operand(&s)) {
        const uint32_t target = r.src[gg_shown_operand(&s)];
        r.view_of = e->made[target - 1].owner + 1;
        r.view_offs = t->view_offs;
    } else if (t->view_src) { /* computed in place: compute, then copy to that place */
        uint32_t fresh;
        gg_record_make_dense(&r);
        fresh = gg_record_add(e, &r, t);
        return fresh ? copy_into(e, t, fresh, out) : gg_no_memory("graph");
    }
    const struct gg_slot *slot = gg_slot_of(e, t);
    if (!slot) return gg_no_memory("graph");
    if (slot->over_heads) return gg_encode_norm_over_heads(e, t, &r, out);
    *out = gg_record_add(e, &r, t);
    if (!*out) return gg_no_memory("graph");
    const bool as_it_is = !memcmp(s.ne, t->ne, sizeof s.ne) || slot->uses == slot->views;
    return as_it_is ? st : unflatten(e, t, *out, out);
}

/* The record of an operand. One that is no node of this part was computed before, or is a leaf; the
 * views that led to it are taken along. */
static enum sheaf_status record_of(struct gg_encoder *e, const struct gg_tensor *t, uint32_t *out) {
    struct gg_slot *slot = gg_slot_of(e, t);
    if (!slot) return gg_no_memory("graph");
    if (slot->record) {
        *out = slot->record;
        return SHEAF_STATUS_SUCCESS;
    }
    struct sheaf_tensor s;
    struct gg_operands o;
    enum sheaf_status st;
    if (!t->view_src)
        st = encode_leaf(e, t, out);
    else if (gg_translate(e->host, t, &s, &o) && gg_is_view(&s) && t->src[0])
        st = gg_encode_node(e, t, out);
    else if (e->host->type[t->type] < 0)
        st = gg_refuse_tensor(t);
    else
        st = view_of_root(e, t, out);
    if (!st) gg_slot_of(e, t)->record = *out;
    return st;
}
