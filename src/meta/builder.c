/* The local graph and the instructions of a part under construction, node by node.
 *
 * Local descriptors have op NONE where a collective or a zero fill writes them; the allocator
 * places them like any other node, and devices skip them. */
#include "meta/builder.h"

#include "base/array.h"
#include "tensor/access.h"

enum sheaf_status sheaf__meta_no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta program: out of memory");
}

/* Room for more descriptors. */
static bool grow_part(struct meta_part *part) {
    enum { AT_ONCE = 16 };
    if (!sheaf__grow(&part->ctx, &part->cap_ctx, part->n_ctx + 1, sizeof(struct sheaf_context *)))
        return false;
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = AT_ONCE * sheaf_tensor_overhead(), .no_alloc = true});
    if (!ctx) return false;
    part->ctx[part->n_ctx++] = ctx;
    part->room = AT_ONCE;
    return true;
}

struct sheaf_tensor *sheaf__meta_part_tensor(struct meta_part *part, enum sheaf_type type) {
    if (!part->room && !grow_part(part)) {
        sheaf__meta_no_memory();
        return NULL;
    }
    part->room--;
    return sheaf_new_tensor_1d(part->ctx[part->n_ctx - 1], type, 0);
}

/* A descriptor; reports failure through b->status and then returns a harmless zeroed one. */
struct sheaf_tensor *sheaf__meta_descriptor(struct builder *b, enum sheaf_type type,
                                            const char *name) {
    struct sheaf_tensor *t = sheaf__meta_part_tensor(b->part, type);
    if (!t) {
        if (!b->status) b->status = SHEAF_STATUS_ALLOC_FAILED;
        b->no_tensor = (struct sheaf_tensor){.type = type};
        return &b->no_tensor;
    }
    sheaf_set_name(t, name);
    return t;
}

void sheaf__meta_shape_dense(struct sheaf_tensor *t, const int64_t ne[SHEAF_MAX_DIMS]) {
    memcpy(t->ne, ne, sizeof t->ne);
    sheaf__set_dense_strides(t);
}

static void note_moving(struct builder *b, struct sheaf_tensor *t) {
    struct meta_part *part = b->part;
    struct sheaf_tensor *of = t->view_src ? sheaf__op_target(t) : NULL;
    const bool is_view = t->flags & META_FLAG_MOVES;
    if (!of || !(is_view || of->flags & META_FLAG_MOVES)) return;
    if (!sheaf__grow(&part->moving, &part->cap_moving, part->n_moving + 1, sizeof *part->moving)) {
        b->status = sheaf__meta_no_memory();
        return;
    }
    t->flags |= META_FLAG_MOVES;
    part->moving[part->n_moving++] =
        (struct meta_moving){t, of, t->view_offs - of->view_offs, is_view ? b->n_views++ : -1};
}

struct sheaf_tensor *sheaf__meta_append(struct builder *b, struct sheaf_tensor *t) {
    struct sheaf_cgraph *g = &b->part->graph;
    note_moving(b, t);
    if (!sheaf__grow(&g->nodes, &b->cap_nodes, (size_t)g->n_nodes + 1, sizeof t)) {
        b->status = sheaf__meta_no_memory();
        return t;
    }
    g->nodes[g->n_nodes++] = t;
    return t;
}

struct meta_instr *sheaf__meta_new_instr(struct builder *b) {
    if (!sheaf__grow(&b->part->instrs, &b->cap_instrs, (size_t)b->part->n_instrs + 1,
                     sizeof *b->part->instrs)) {
        b->status = sheaf__meta_no_memory();
        b->no_instr = (struct meta_instr){0};
        return &b->no_instr;
    }
    struct meta_instr *instr = &b->part->instrs[b->part->n_instrs++];
    memset(instr, 0, sizeof *instr);
    return instr;
}

static bool computes(const struct sheaf_tensor *t) {
    return t->op != SHEAF_OP_NONE && !sheaf_op_is_view(t->op) && !sheaf_is_empty(t);
}

void sheaf__meta_end_span(struct builder *b) {
    const int first = b->span_first, last = b->part->graph.n_nodes;
    b->span_first = last;
    bool work = false;
    for (int i = first; i < last; i++) work = work || computes(b->part->graph.nodes[i]);
    if (!work) return;
    struct meta_instr *instr = sheaf__meta_new_instr(b);
    instr->kind = INSTR_SPAN;
    instr->first = first;
    instr->last = last;
}

struct sheaf_tensor *sheaf__meta_placeholder(struct builder *b, enum sheaf_type type,
                                             const int64_t ne[SHEAF_MAX_DIMS],
                                             struct sheaf_tensor *after, const char *name) {
    struct sheaf_tensor *t = sheaf__meta_descriptor(b, type, name);
    sheaf__meta_shape_dense(t, ne);
    t->src[0] = after;
    return sheaf__meta_append(b, t);
}

struct sheaf_tensor *sheaf__meta_view_of(struct builder *b, struct sheaf_tensor *of,
                                         const int64_t ne[SHEAF_MAX_DIMS], size_t offset) {
    struct sheaf_tensor *t = sheaf__meta_descriptor(b, of->type, of->name);
    t->op = SHEAF_OP_VIEW;
    t->src[0] = of;
    t->view_src = sheaf__memory_owner(of);
    t->view_offs = of->view_offs + offset;
    memcpy(t->ne, ne, sizeof t->ne);
    memcpy(t->nb, of->nb, sizeof t->nb);
    return sheaf__meta_append(b, t);
}

bool sheaf__meta_is_taken(const struct builder *b, const struct sheaf_tensor *node) {
    return !b->takes || b->status || sheaf_is_empty(node) || sheaf_op_is_view(node->op) ||
           b->takes(b->dev->members[b->member], node);
}

/* `copy`, of `from` to `to`, is a node if the device takes it. Else it only holds its place for the
 * allocator. */
static void append_copy(struct builder *b, struct sheaf_tensor *copy, struct sheaf_tensor *from,
                        struct sheaf_tensor *to) {
    const bool taken = sheaf__meta_is_taken(b, copy);
    if (!taken) copy->op = SHEAF_OP_NONE;
    sheaf__meta_append(b, copy);
    if (taken) return;
    sheaf__meta_end_span(b);
    struct meta_instr *instr = sheaf__meta_new_instr(b);
    instr->kind = INSTR_COPY;
    instr->in = from;
    instr->out = to;
    b->n_copies++;
}

void sheaf__meta_copy_node(struct builder *b, struct sheaf_tensor *from, struct sheaf_tensor *to) {
    struct sheaf_tensor *t = sheaf__meta_descriptor(b, to->type, to->name);
    t->op = SHEAF_OP_CPY;
    t->src[0] = from;
    t->src[1] = to;
    t->view_src = sheaf__memory_owner(to);
    t->view_offs = to->view_offs;
    memcpy(t->ne, to->ne, sizeof t->ne);
    memcpy(t->nb, to->nb, sizeof t->nb);
    append_copy(b, t, from, to);
}

struct sheaf_tensor *sheaf__meta_dense_copy(struct builder *b, struct sheaf_tensor *t) {
    struct sheaf_tensor *c = sheaf__meta_descriptor(b, t->type, t->name);
    sheaf__meta_shape_dense(c, t->ne);
    c->op = SHEAF_OP_CONT;
    c->src[0] = t;
    append_copy(b, c, t, c);
    return c;
}

struct sheaf_tensor *sheaf__meta_dense(struct builder *b, struct sheaf_tensor *t) {
    return sheaf_is_contiguous(t) ? t : sheaf__meta_dense_copy(b, t);
}

void sheaf__meta_zero(struct builder *b, struct sheaf_tensor *t) {
    sheaf__meta_end_span(b);
    struct meta_instr *instr = sheaf__meta_new_instr(b);
    instr->kind = INSTR_ZERO;
    instr->out = t;
}
