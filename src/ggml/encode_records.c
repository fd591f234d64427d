/* What the encoder remembers while it writes a graph: the tensors that it has met, by address, and
 * the records that it has written. Nothing is allocated once the arrays are large enough. */
#include "ggml/encode_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"

/* ---- the table of tensors ---- */

bool gg_slots_clear(struct gg_encoder *e, size_t n) {
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

/* Where t is, or is to be. */
static struct gg_slot *place_of(const struct gg_encoder *e, const struct gg_tensor *t) {
    size_t i = sheaf__hash_address(t, e->n_slots);
    while (e->slots[i].tensor && e->slots[i].tensor != t) i = (i + 1) & (e->n_slots - 1);
    return &e->slots[i];
}

static bool double_slots(struct gg_encoder *e) {
    struct gg_slot *old = e->slots, *twice = calloc(2 * e->n_slots, sizeof *twice);
    const size_t n = e->n_slots;
    if (!twice) return false;
    e->slots = twice;
    e->n_slots = 2 * n;
    for (size_t i = 0; i < n; i++)
        if (old[i].tensor) *place_of(e, old[i].tensor) = old[i];
    free(old);
    return true;
}

struct gg_slot *gg_slot_of(struct gg_encoder *e, const struct gg_tensor *t) {
    struct gg_slot *slot = place_of(e, t);
    if (slot->tensor) return slot;
    if (e->n_used + 1 >= e->n_slots) {
        if (!double_slots(e)) return NULL;
        slot = place_of(e, t);
    }
    e->n_used++;
    slot->tensor = t;
    return slot;
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

uint32_t gg_record_add(struct gg_encoder *e, const struct gg_record *r, const struct gg_tensor *t) {
    if (!sheaf__grow(&e->made, &e->cap_made, e->n_made + 1, sizeof *e->made)) return 0;
    const uint32_t owner = r->view_of ? r->view_of - 1 : (uint32_t)e->n_made;
    e->made[e->n_made++] = (struct gg_made){*r, t, owner, false};
    if (!r->view_of || e->made[owner].record.kind != GG_LEAF_OBJECT)
        gg_put_record(&e->graph, r);
    else if (!put_placeless(e, *r))
        return 0;
    return e->graph.failed ? 0 : (uint32_t)e->n_made;
}

bool gg_record_fits(const struct gg_record *view, const struct gg_record *owner) {
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

void gg_record_fill(struct gg_record *r, const struct sheaf_tensor *s, uint32_t kind) {
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

void gg_record_make_dense(struct gg_record *r) {
    const enum sheaf_type type = (enum sheaf_type)r->type;
    r->nb[0] = sheaf_type_size(type);
    r->nb[1] = sheaf_row_size(type, (int64_t)r->ne[0]);
    for (int i = 2; i < SHEAF_MAX_DIMS; i++) r->nb[i] = r->nb[i - 1] * r->ne[i - 1];
}

/* ---- errors ---- */

enum sheaf_status gg_refuse_tensor(const struct gg_tensor *t) {
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "graph: '%s' has an op or a type that this device lacks", t->name);
}
