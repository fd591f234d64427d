/* Nodes of the library as descriptors of ggml: a node is lowered if need be, every node of the
 * result is translated, and operands become descriptors, those that a buffer keeps for its weights
 * or new ones. */
#include "ggml/member_build.h"

#include <stdlib.h>
#include <string.h>

#include "backend/optional.h"
#include "base/array.h"
#include "base/hash.h"

/* ---- descriptors by tensor ---- */

static struct gg_build_slot *slot_of(const struct gg_build *b, const struct sheaf_tensor *key) {
    size_t i = sheaf__hash_address(key, b->n_slots);
    while (b->slots[i].key && b->slots[i].key != key) i = (i + 1) & (b->n_slots - 1);
    return &b->slots[i];
}

static bool grow_slots(struct gg_build *b) {
    struct gg_build_slot *old = b->slots;
    const size_t n = b->n_slots;
    b->n_slots = n ? 2 * n : 64;
    b->slots = calloc(b->n_slots, sizeof *b->slots);
    if (!b->slots) {
        b->slots = old;
        b->n_slots = n;
        return false;
    }
    for (size_t i = 0; i < n; i++)
        if (old[i].key) *slot_of(b, old[i].key) = old[i];
    free(old);
    return true;
}

struct gg_tensor *gg_build_find(const struct gg_build *b, const struct sheaf_tensor *t) {
    return b->n_slots ? slot_of(b, t)->gg : NULL;
}

static void map(struct gg_build *b, const struct sheaf_tensor *key, struct gg_tensor *gg) {
    if (2 * (b->n_used + 1) > b->n_slots && !grow_slots(b)) {
        b->no_memory = true;
        return;
    }
    struct gg_build_slot *s = slot_of(b, key);
    b->n_used += !s->key;
    *s = (struct gg_build_slot){key, gg};
}

static struct gg_item *new_item(struct gg_build *b) {
    static struct gg_item none; /* when out of memory: written to, never computed with */
    struct gg_member_graph *g = b->g;
    if (!g->last || g->last->n == GG_CHUNK) {
        struct gg_chunk *c = calloc(1, sizeof *c);
        if (!c) {
            b->no_memory = true;
            return &none;
        }
        if (g->last)
            g->last->next = c;
        else
            g->first = c;
        g->last = c;
    }
    g->n_items++;
    return &g->last->items[g->last->n++];
}

uint64_t gg_serial_of(const struct sheaf_tensor *t) {
    const struct gg_member_buffer *m = gg_member_buffer_of(t);
    return m ? m->serial : 0;
}

void gg_build_remember(struct gg_build *b, const struct sheaf_tensor *t) {
    struct gg_member_graph *g = b->g;
    if (!b->with_memory) return;
    if (!sheaf__grow(&g->seen, &g->cap_seen, g->n_seen + 1, sizeof *g->seen)) {
        b->no_memory = true;
        return;
    }
    struct gg_seen *s = &g->seen[g->n_seen++];
    s->tensor = t;
    s->gg = NULL;
    s->serial = gg_serial_of(t);
    memcpy(&s->copy, t, sizeof s->copy);
}

/* ---- leaves ---- */

/* The descriptor that the buffer of a weight keeps, if there is one of this very layout. */
static struct gg_tensor *kept_of(const struct gg_build *b, const struct sheaf_tensor *t) {
    struct gg_kept *kept = gg_member_kept(t);
    struct gg_tensor own;
    gg_describe_shape(b->lib, t, &own);
    return kept && gg_has_layout(&kept->gg, &own) ? &kept->gg : NULL;
}

static struct gg_tensor *descriptor_of(struct gg_build *b, const struct sheaf_tensor *t);

static struct gg_tensor *new_leaf(struct gg_build *b, const struct sheaf_tensor *t) {
    struct gg_tensor *kept = b->with_memory && !t->view_src ? kept_of(b, t) : NULL;
    if (kept) return kept;
    struct gg_item *item = new_item(b);
    gg_describe_shape(b->lib, t, &item->gg);
    if (t->view_src) {
        item->gg.view_src = descriptor_of(b, t->view_src);
        item->gg.view_offs = t->view_offs;
    } else {
        item->from = t;
    }
    return &item->gg;
}

/* Of an operand: that of the node which makes it, or of a leaf. */
static struct gg_tensor *descriptor_of(struct gg_build *b, const struct sheaf_tensor *t) {
    struct gg_tensor *gg = gg_build_find(b, t);
    if (gg) return gg;
    gg_build_remember(b, t);
    gg = new_leaf(b, t);
    map(b, t, gg);
    return gg;
}

/* ---- nodes ---- */

static bool add_node(struct gg_build *b, struct gg_tensor *gg) {
    if (!sheaf__grow(&b->nodes, &b->cap_nodes, b->n_nodes + 1, sizeof *b->nodes)) {
        b->no_memory = true;
        return false;
    }
    b->nodes[b->n_nodes++] = gg;
    return true;
}

/* A result that has two dimensions in ggml and is flat in the library, as a flat one, which the
 * nodes that read it get. NULL: no such node. */
static struct gg_tensor *add_flat(struct gg_build *b, const struct sheaf_tensor *node,
                                  struct gg_tensor *gg) {
    struct sheaf_tensor flat = *node;
    int8_t order[GG_MAX_SRC];
    struct gg_item *item = new_item(b);
    flat.op = SHEAF_OP_RESHAPE;
    memset(flat.op_params, 0, sizeof flat.op_params);
    memset(flat.src, 0, sizeof flat.src);
    if (!gg_translate_back(&b->lib->host, &flat, &item->gg, order)) return NULL;
    item->gg.src[0] = item->gg.view_src = gg;
    return &item->gg;
}

/* May a token name an expert twice? Ids of other members' experts become that of one held here.
 * ggml's kernels for packed experts have room for as many rows of an expert as there are tokens. */
static bool repeats_experts(const struct gg_build *b, const struct sheaf_tensor *node) {
    return b->lowers && node->op == SHEAF_OP_MUL_MAT_ID && node->src[2]->ne[0] > 1;
}

/* Makes operands those in a layout of the device, where it has or now gets them so. False: the node
 * reads a weight that is packed, and cannot read it so. */
static bool take_packed(struct gg_build *b, struct gg_tensor *gg, const int8_t order[GG_MAX_SRC],
                        const struct sheaf_tensor *node) {
    for (int i = 0; i < GG_MAX_SRC && b->with_memory && b->g->m->n_layouts; i++) {
        const struct sheaf_tensor *src = order[i] >= 0 ? node->src[order[i]] : NULL;
        const bool may = src && !i && !repeats_experts(b, node);
        struct gg_tensor *packed = may ? gg_pack(src, node, gg) : NULL;
        if (packed)
            gg->src[i] = packed;
        else if (src && gg_read_as_written(src, "compute with")) {
            b->refused = SHEAF_STATUS_UNSUPPORTED;
            return false;
        }
    }
    return true;
}

/* GPUs sum in F16 unless a node says otherwise: scores and sums of values leave its range. Products by
 * weights are theirs to sum as they do, as llama.cpp has it: F32 would cost them their matrix units. */
static void ask_for_f32(const struct sheaf_tensor *node, struct gg_tensor *gg) {
    const struct sheaf_tensor *a = node->src[0];
    if (node->op == SHEAF_OP_FLASH_ATTN_EXT) gg->op_params[3] = GG_PREC_F32;
    if (node->op == SHEAF_OP_MUL_MAT && (a->op != SHEAF_OP_NONE || a->view_src))
        gg->op_params[0] = GG_PREC_F32;
}

/* A node that ggml has. Its result as nodes that read it see it; NULL: ggml has no such node. */
static struct gg_tensor *add_plain(struct gg_build *b, const struct sheaf_tensor *node) {
    int8_t order[GG_MAX_SRC];
    struct gg_tensor gg;
    if (!gg_translate_back(&b->lib->host, node, &gg, order)) return NULL;
    ask_for_f32(node, &gg);
    struct gg_item *item = new_item(b);
    item->gg = gg;
    for (int i = 0; i < GG_MAX_SRC; i++) {
        const struct sheaf_tensor *src = order[i] >= 0 ? node->src[order[i]] : NULL;
        item->gg.src[i] = order[i] == GG_SELF_SRC ? &item->gg : src ? descriptor_of(b, src) : NULL;
        if (src && item->gg.src[i]->type < 0) return NULL; /* a type that this ggml lacks */
    }
    if (!take_packed(b, &item->gg, order, node)) return NULL;
    if (node->view_src) {
        item->gg.view_src = descriptor_of(b, node->view_src);
        item->gg.view_offs = node->view_offs;
    } else {
        item->from = node;
    }
    if (!(node->flags & SHEAF__TENSOR_INTERNAL)) item->gg.flags |= GG_FLAG_OUTPUT;
    const bool same = !memcmp(item->gg.ne, node->ne, sizeof node->ne);
    if (same) gg_lay_out(node, &item->gg);
    struct gg_tensor *seen = same ? &item->gg : add_flat(b, node, &item->gg);
    if (!seen) return NULL;
    map(b, node, seen);
    if (!sheaf_op_is_view(node->op)) add_node(b, &item->gg);
    return seen;
}

static struct gg_tensor *add_values(struct gg_build *b, const struct sheaf_tensor *t,
                                    const float *values) {
    struct gg_item *item = new_item(b);
    gg_describe_shape(b->lib, t, &item->gg);
    item->values = values;
    map(b, t, &item->gg);
    return &item->gg;
}

static bool add_lowered(struct gg_build *b, const struct sheaf_tensor *node, struct gg_lowered *l) {
    struct gg_tensor *gg = NULL;
    for (int i = 0; i < l->n; i++) {
        const struct sheaf_tensor *t = &l->t[i];
        gg = t->op == SHEAF_OP_NONE ? add_values(b, t, l->values) : add_plain(b, t);
        if (!gg) return false;
        if (!l->takes[i] && t->op != SHEAF_OP_NONE && !t->view_src) { /* scratch */
            struct gg_item *item = (struct gg_item *)(void *)gg;
            item->from = NULL;
        }
    }
    map(b, node, gg);
    return true;
}

bool gg_build_node(struct gg_build *b, const struct sheaf_tensor *node) {
    struct gg_lowered *l = malloc(sizeof *l);
    if (!l || !sheaf__grow(&b->lowered, &b->cap_lowered, b->n_lowered + 1, sizeof(void *))) {
        free(l);
        b->no_memory = true;
        return false;
    }
    if (gg_lower(b->g->m, node, l)) {
        b->lowered[b->n_lowered++] = l; /* its tensors are keys */
        b->g->has_lowered = b->lowers = true;
        const bool added = add_lowered(b, node, l);
        b->lowers = false;
        return added;
    }
    const bool refused = l->n < 0;
    free(l);
    return !refused && add_plain(b, node);
}

void gg_build_free(struct gg_build *b) {
    for (size_t i = 0; i < b->n_lowered; i++) {
        gg_lowered_free(b->lowered[i]);
        free(b->lowered[i]);
    }
    free(b->lowered);
    free(b->slots);
    free(b->nodes);
}

/* ---- end ---- */

void gg_items_free(struct gg_member_graph *g) {
    for (struct gg_chunk *c = g->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
}
