/* Programs: a graph, planned for the members, turned into what each local member of this rank does.
 *
 * A program holds, per local member, a graph of its slices and a list of instructions: spans of
 * that graph, with collectives and zero fills between them. Conversions between split states become
 * nodes too (views and copies, which every device can run), so that only the collectives themselves
 * need other code:
 *
 *   all-reduce      in place on the partial value, or on a copy if the partial value is read again
 *   all-gather      slices -> (scratch in member order -> copies of intervals ->) the whole
 *   reduce-scatter  the partial value -> (copies into member order ->) the sum of one's own block
 *   slice           copies of intervals, or a view where the slice is one dense piece
 *   keep one        member 0: a view; others: zeros
 *
 * Local descriptors have op NONE where a collective or a zero fill writes them; the allocator
 * places them like any other node, and devices skip them. */
#include <stdio.h>
#include <stdlib.h>

#include "meta/overlap.h"

struct builder { /* of one part */
    struct meta_device *dev;
    const struct sheaf_cgraph *graph;
    struct sheaf__split_plan *plan;
    struct meta_part *part;
    int member;
    int cap_nodes, cap_instrs;
    int span_first; /* nodes from here on are not in an instruction yet */
    enum sheaf_status status;
    const int *last_read; /* [plan values] last step that reads the value, -1 if none */
};

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta program: out of memory");
}

/* ---- local nodes ---- */

/* A descriptor; reports failure through b->status and then returns a harmless zeroed one. */
static struct sheaf_tensor *descriptor(struct builder *b, enum sheaf_type type, const char *name) {
    struct sheaf_tensor *t = sheaf_new_tensor_1d(b->part->ctx, type, 0);
    if (!t) {
        static struct sheaf_tensor dummy;
        if (!b->status) b->status = SHEAF_STATUS_ALLOC_FAILED;
        return &dummy;
    }
    sheaf_set_name(t, name);
    return t;
}

static void shape_dense(struct sheaf_tensor *t, const int64_t ne[SHEAF_MAX_DIMS]) {
    memcpy(t->ne, ne, sizeof t->ne);
    t->nb[0] = sheaf_type_size(t->type);
    t->nb[1] = sheaf_row_size(t->type, ne[0]);
    t->nb[2] = t->nb[1] * (size_t)ne[1];
    t->nb[3] = t->nb[2] * (size_t)ne[2];
}

static struct sheaf_tensor *append(struct builder *b, struct sheaf_tensor *t) {
    struct sheaf_cgraph *g = &b->part->graph;
    if (g->n_nodes == b->cap_nodes) {
        const int cap = b->cap_nodes ? b->cap_nodes * 2 : 64;
        struct sheaf_tensor **p = realloc(g->nodes, (size_t)cap * sizeof *p);
        if (!p) {
            b->status = no_memory();
            return t;
        }
        g->nodes = p;
        b->cap_nodes = cap;
    }
    g->nodes[g->n_nodes++] = t;
    return t;
}

static struct meta_instr *new_instr(struct builder *b) {
    static struct meta_instr dummy;
    if (b->part->n_instrs == b->cap_instrs) {
        const int cap = b->cap_instrs ? b->cap_instrs * 2 : 16;
        struct meta_instr *p = realloc(b->part->instrs, (size_t)cap * sizeof *p);
        if (!p) {
            b->status = no_memory();
            return &dummy;
        }
        b->part->instrs = p;
        b->cap_instrs = cap;
    }
    struct meta_instr *instr = &b->part->instrs[b->part->n_instrs++];
    memset(instr, 0, sizeof *instr);
    return instr;
}

static bool computes(const struct sheaf_tensor *t) {
    return t->op != SHEAF_OP_NONE && !sheaf_op_is_view(t->op) && !sheaf_is_empty(t);
}

/* Ends the running span; an instruction for it only if it has something to compute. */
static void end_span(struct builder *b) {
    const int first = b->span_first, last = b->part->graph.n_nodes;
    b->span_first = last;
    bool work = false;
    for (int i = first; i < last; i++) work = work || computes(b->part->graph.nodes[i]);
    if (!work) return;
    struct meta_instr *instr = new_instr(b);
    instr->kind = INSTR_SPAN;
    instr->first = first;
    instr->last = last;
}

/* A result that something other than the device writes: `like` a shape, placed after `after` was
 * computed. */
static struct sheaf_tensor *placeholder(struct builder *b, enum sheaf_type type,
                                        const int64_t ne[SHEAF_MAX_DIMS],
                                        struct sheaf_tensor *after, const char *name) {
    struct sheaf_tensor *t = descriptor(b, type, name);
    shape_dense(t, ne);
    t->src[0] = after;
    return append(b, t);
}

/* A view of `of`: shape ne, its strides kept, `offset` bytes in. */
static struct sheaf_tensor *view_of(struct builder *b, struct sheaf_tensor *of,
                                    const int64_t ne[SHEAF_MAX_DIMS], size_t offset) {
    struct sheaf_tensor *t = descriptor(b, of->type, of->name);
    t->op = SHEAF_OP_VIEW;
    t->src[0] = of;
    t->view_src = of->view_src ? of->view_src : of;
    t->view_offs = of->view_offs + offset;
    memcpy(t->ne, ne, sizeof t->ne);
    memcpy(t->nb, of->nb, sizeof t->nb);
    return append(b, t);
}

static void copy_node(struct builder *b, struct sheaf_tensor *from, struct sheaf_tensor *to) {
    struct sheaf_tensor *t = descriptor(b, to->type, to->name);
    t->op = SHEAF_OP_CPY;
    t->src[0] = from;
    t->src[1] = to;
    t->view_src = to->view_src ? to->view_src : to;
    t->view_offs = to->view_offs;
    memcpy(t->ne, to->ne, sizeof t->ne);
    memcpy(t->nb, to->nb, sizeof t->nb);
    append(b, t);
}

static struct sheaf_tensor *dense(struct builder *b, struct sheaf_tensor *t) {
    if (sheaf_is_contiguous(t)) return t;
    struct sheaf_tensor *c = descriptor(b, t->type, t->name);
    shape_dense(c, t->ne);
    c->op = SHEAF_OP_CONT;
    c->src[0] = t;
    return append(b, c);
}

static void zero(struct builder *b, struct sheaf_tensor *t) {
    end_span(b);
    struct meta_instr *instr = new_instr(b);
    instr->kind = INSTR_ZERO;
    instr->out = t;
}

/* ---- geometry of a cut ---- */

static int64_t *all_intervals(struct builder *b, const struct sheaf_split_state *state, int member,
                              int64_t *n) {
    *n = sheaf_split_state_intervals(state, member, NULL, 0);
    int64_t *pairs = malloc((size_t)(*n ? *n : 1) * 2 * sizeof *pairs);
    if (!pairs) {
        b->status = no_memory();
        *n = 0;
        return NULL;
    }
    sheaf_split_state_intervals(state, member, pairs, *n);
    return pairs;
}

/* Do the members' slices, one after another, make the whole tensor? */
static bool blocks_are_whole(const struct sheaf_split_state *s, const int64_t ne[SHEAF_MAX_DIMS]) {
    for (int i = (int)s->axis + 1; i < SHEAF_MAX_DIMS; i++) {
        if (ne[i] != 1) return false;
    }
    if (s->n_segments != 1 || s->segments[0].outer != 1 || !sheaf_split_state_is_partition(s))
        return false;
    int64_t at = 0; /* a partition may list its members in any order */
    for (int j = 0; j < s->n_members; j++) {
        const struct sheaf_split_segment *seg = &s->segments[0];
        if (seg->count[j] && seg->first[j] != at) return false;
        at += seg->count[j];
    }
    return true;
}

static size_t index_bytes(const struct sheaf_tensor *t, int axis, int64_t index) {
    /* not the size of a row's beginning: in a transposed tensor, elements lie apart */
    return (size_t)(axis == 0 ? index / sheaf_blck_size(t->type) : index) * t->nb[axis];
}

enum copy_direction { WHOLE_TO_SLICE, SLICE_TO_WHOLE };

/* Copies between a whole tensor and a dense slice of `member`, interval by interval. */
static void copy_intervals(struct builder *b, const struct sheaf_split_state *state, int member,
                           struct sheaf_tensor *whole, struct sheaf_tensor *slice,
                           enum copy_direction direction) {
    int64_t n, local = 0, *pairs = all_intervals(b, state, member, &n);
    const int a = (int)state->axis;
    for (int64_t i = 0; i < n && !b->status && !sheaf_is_empty(slice); i++) {
        int64_t ne[SHEAF_MAX_DIMS];
        memcpy(ne, slice->ne, sizeof ne);
        ne[a] = pairs[2 * i + 1];
        struct sheaf_tensor *in_whole = view_of(b, whole, ne, index_bytes(whole, a, pairs[2 * i]));
        struct sheaf_tensor *in_slice = view_of(b, slice, ne, index_bytes(slice, a, local));
        local += ne[a];
        if (direction == WHOLE_TO_SLICE) {
            copy_node(b, in_whole, in_slice);
        } else {
            copy_node(b, in_slice, in_whole);
        }
    }
    free(pairs);
}

/* Scratch for all members' slices in member order, and the view of it that is member j's dense
 * slice. */
static struct sheaf_tensor *scratch_in_order(struct builder *b,
                                             const struct sheaf_split_state *state,
                                             const struct sheaf_tensor *whole,
                                             struct sheaf_tensor *after) {
    int64_t total = 0, ne[SHEAF_MAX_DIMS];
    for (int j = 0; j < b->dev->n_members; j++) {
        sheaf_split_state_local_ne(state, whole->ne, j, ne);
        total += ne[0] * ne[1] * ne[2] * ne[3];
    }
    return placeholder(b, whole->type, (int64_t[]){total, 1, 1, 1}, after, whole->name);
}

static struct sheaf_tensor *block_of(struct builder *b, struct sheaf_tensor *scratch,
                                     const struct sheaf_split_state *state,
                                     const struct sheaf_tensor *whole, int j) {
    int64_t before = 0, ne[SHEAF_MAX_DIMS];
    for (int i = 0; i < j; i++) {
        sheaf_split_state_local_ne(state, whole->ne, i, ne);
        before += ne[0] * ne[1] * ne[2] * ne[3];
    }
    sheaf_split_state_local_ne(state, whole->ne, j, ne);
    struct sheaf_tensor *t = view_of(b, scratch, ne, sheaf_row_size(scratch->type, before));
    shape_dense(t, ne);
    return t;
}

/* Sizes of the members' slices, in bytes or elements; owned by the instruction. */
static size_t *slice_sizes(struct builder *b, const struct sheaf_split_state *state,
                           const struct sheaf_tensor *whole, bool in_bytes) {
    size_t *sizes = malloc((size_t)b->dev->n_members * sizeof *sizes);
    if (!sizes) {
        b->status = no_memory();
        return NULL;
    }
    for (int j = 0; j < b->dev->n_members; j++) {
        int64_t ne[SHEAF_MAX_DIMS];
        sheaf_split_state_local_ne(state, whole->ne, j, ne);
        const size_t n = (size_t)(ne[0] * ne[1] * ne[2] * ne[3]);
        sizes[j] = in_bytes ? sheaf_row_size(whole->type, (int64_t)n) : n;
    }
    return sizes;
}

/* Of what a conversion reads. For messages, the same on every member, whose own nodes may differ. A
 * value without a name goes by that of an operand, if it can by one that members do not have in
 * full. */
static const char *name_for(const struct sheaf__split_plan *plan, int step) {
    const int v = plan->steps[step].in[0];
    const char *name = plan->values[v].tensor->name;
    if (*name) return name;
    do step--;
    while (step >= 0 && plan->steps[step].out != v);
    for (int i = 0; step >= 0 && i < SHEAF_MAX_SRC; i++) {
        const int from = plan->steps[step].in[i];
        if (from < 0) continue;
        const struct sheaf__split_value *value = &plan->values[from];
        if (!*name || value->state->axis != SHEAF_SPLIT_AXIS_MIRRORED) name = value->tensor->name;
    }
    return name;
}

static void collective(struct builder *b, enum sheaf_comm_kind kind, int step,
                       struct sheaf_tensor *in, struct sheaf_tensor *out, size_t *sizes) {
    end_span(b);
    struct meta_instr *instr = new_instr(b);
    sheaf_set_name(out, name_for(b->plan, step));
    *instr = (struct meta_instr){
        .kind = INSTR_COLLECTIVE,
        .in = in,
        .out = out,
        .sizes = sizes,
        .call = {.size = sizeof instr->call,
                 .kind = kind,
                 .n = (size_t)sheaf_nelements(out),
                 .sizes = sizes,
                 .what = {.node = (uint32_t)step, .tensor = out->name}},
    };
}

/* ---- steps ---- */

static const struct sheaf_tensor *memory_of(const struct sheaf_tensor *t) {
    return t->view_src ? t->view_src : t;
}

/* Is the memory of value v read by a later step through a value other than those it makes from now
 * on? */
static bool read_again(const struct builder *b, int v, int step) {
    const struct sheaf_tensor *memory = memory_of(b->part->value[v]);
    for (int u = 0; u < b->plan->n_values; u++) {
        const struct sheaf_tensor *t = b->part->value[u];
        if (t && b->last_read[u] > step && memory_of(t) == memory) return true;
    }
    return false;
}

static struct sheaf_tensor *build_all_reduce(struct builder *b,
                                             const struct sheaf__split_step *step, int index) {
    struct sheaf_tensor *in = b->part->value[step->in[0]], *out;
    const bool owned = memory_of(in)->data == NULL; /* a leaf's memory is not ours to change */
    if (owned && sheaf_is_contiguous(in) && !read_again(b, step->in[0], index)) {
        out = view_of(b, in, in->ne, 0);
    } else {
        out = descriptor(b, in->type, in->name);
        shape_dense(out, in->ne);
        out->op = SHEAF_OP_CONT;
        out->src[0] = in;
        append(b, out);
    }
    collective(b, SHEAF_COMM_ALL_REDUCE, index, NULL, out, NULL);
    return out;
}

static struct sheaf_tensor *build_all_gather(struct builder *b,
                                             const struct sheaf__split_step *step, int index) {
    const struct sheaf__split_value *from = &b->plan->values[step->in[0]];
    const struct sheaf_tensor *whole = from->tensor;
    struct sheaf_tensor *in = dense(b, b->part->value[step->in[0]]);
    size_t *sizes = slice_sizes(b, from->state, whole, true);
    if (blocks_are_whole(from->state, whole->ne)) {
        struct sheaf_tensor *out = placeholder(b, whole->type, whole->ne, in, whole->name);
        collective(b, SHEAF_COMM_ALL_GATHER, index, in, out, sizes);
        return out;
    }
    struct sheaf_tensor *scratch = scratch_in_order(b, from->state, whole, in);
    collective(b, SHEAF_COMM_ALL_GATHER, index, in, scratch, sizes);
    struct sheaf_tensor *out = placeholder(b, whole->type, whole->ne, scratch, whole->name);
    for (int j = 0; j < b->dev->n_members && !b->status; j++) {
        copy_intervals(b, from->state, j, out, block_of(b, scratch, from->state, whole, j),
                       SLICE_TO_WHOLE);
    }
    return out;
}

static struct sheaf_tensor *build_reduce_scatter(struct builder *b,
                                                 const struct sheaf__split_step *step, int index) {
    const struct sheaf__split_value *to = &b->plan->values[step->out];
    const struct sheaf_tensor *whole = to->tensor;
    struct sheaf_tensor *in = dense(b, b->part->value[step->in[0]]);
    size_t *sizes = slice_sizes(b, to->state, whole, false);
    if (!blocks_are_whole(to->state, whole->ne)) {
        struct sheaf_tensor *scratch = scratch_in_order(b, to->state, whole, in);
        for (int j = 0; j < b->dev->n_members && !b->status; j++) {
            copy_intervals(b, to->state, j, in, block_of(b, scratch, to->state, whole, j),
                           WHOLE_TO_SLICE);
        }
        in = scratch;
    }
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(to->state, whole->ne, b->member, ne);
    struct sheaf_tensor *out = placeholder(b, whole->type, ne, in, whole->name);
    collective(b, SHEAF_COMM_REDUCE_SCATTER, index, in, out, sizes);
    return out;
}

static struct sheaf_tensor *(*const build_collective[])(struct builder *b,
                                                        const struct sheaf__split_step *step,
                                                        int index) = {
    [SHEAF_COMM_ALL_REDUCE] = build_all_reduce,
    [SHEAF_COMM_ALL_GATHER] = build_all_gather,
    [SHEAF_COMM_REDUCE_SCATTER] = build_reduce_scatter,
};

static struct sheaf_tensor *build_slice(struct builder *b, const struct sheaf__split_step *step) {
    const struct sheaf_split_state *state = b->plan->values[step->out].state;
    struct sheaf_tensor *in = b->part->value[step->in[0]];
    int64_t ne[SHEAF_MAX_DIMS], n, *pairs = all_intervals(b, state, b->member, &n);
    sheaf_split_state_local_ne(state, in->ne, b->member, ne);
    if (n == 1 && !b->status) {
        const int a = (int)state->axis;
        struct sheaf_tensor *view = view_of(b, in, ne, index_bytes(in, a, pairs[0]));
        free(pairs);
        return dense(b, view);
    }
    free(pairs);
    struct sheaf_tensor *out = placeholder(b, in->type, ne, in, in->name);
    copy_intervals(b, state, b->member, in, out, WHOLE_TO_SLICE);
    return out;
}

static struct sheaf_tensor *build_keep_one(struct builder *b,
                                           const struct sheaf__split_step *step) {
    struct sheaf_tensor *in = b->part->value[step->in[0]];
    if (b->member == 0) return view_of(b, in, in->ne, 0);
    struct sheaf_tensor *out = placeholder(b, in->type, in->ne, in, in->name);
    zero(b, out);
    return out;
}

/* A value that exists already: a cache whose mirrored copy was written. Its memory takes the slice
 * or the addend. */
static void write_back(struct builder *b, const struct sheaf__split_step *step) {
    struct sheaf_tensor *in = b->part->value[step->in[0]], *out = b->part->value[step->out];
    if (step->kind == SHEAF_SPLIT_STEP_SLICE) {
        copy_intervals(b, b->plan->values[step->out].state, b->member, in, out, WHOLE_TO_SLICE);
    } else if (b->member == 0) {
        copy_node(b, in, out);
    } else {
        zero(b, out);
    }
}

static struct sheaf_tensor *build_node(struct builder *b, const struct sheaf__split_step *step) {
    const struct sheaf_tensor *node = b->graph->nodes[step->node];
    struct sheaf_tensor *const *value = b->part->value;
    if (step->add_once && b->member != 0) {
        struct sheaf_tensor *addend = value[step->in[1 - step->once]];
        return view_of(b, addend, addend->ne, 0);
    }
    const struct sheaf_tensor *src[SHEAF_MAX_SRC] = {NULL};
    struct sheaf_tensor *t = descriptor(b, node->type, node->name);
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        if (step->in[i] >= 0) src[i] = t->src[i] = value[step->in[i]];
    }
    t->op = node->op;
    enum sheaf_status st = sheaf__split_local_node(b->plan, step, b->graph, b->member, src, t);
    if (st && !b->status) b->status = st;
    struct sheaf_tensor *target = sheaf__op_target(t);
    if (target) {
        t->view_src = target->view_src ? target->view_src : target;
        if (!sheaf_op_is_view(node->op)) {
            t->view_offs = target->view_offs;
            memcpy(t->ne, target->ne, sizeof t->ne);
            memcpy(t->nb, target->nb, sizeof t->nb);
        }
    } else {
        shape_dense(t, t->ne);
        if (sheaf__split_contributes_zero(b->plan, step, b->graph, b->member)) {
            t->op = SHEAF_OP_NONE;
            append(b, t);
            zero(b, t);
            return t;
        }
    }
    return append(b, t);
}

/* Must every member hold the same bytes after this step? Empty results and views have none of their
 * own. */
static bool is_checked(const struct sheaf__split_plan *plan, const struct sheaf__split_step *step) {
    const struct sheaf__split_value *out = &plan->values[step->out];
    if (out->state->axis != SHEAF_SPLIT_AXIS_MIRRORED || sheaf_is_empty(out->tensor)) return false;
    switch (step->kind) {
    case SHEAF_SPLIT_STEP_NODE:
        return !sheaf_op_is_view(out->tensor->op);
    case SHEAF_SPLIT_STEP_COLLECTIVE:
        return true;
    default:
        return false;
    }
}

static void mark_collective(struct builder *b) {
    for (int i = b->part->n_instrs - 1; i >= 0; i--) {
        struct meta_instr *instr = &b->part->instrs[i];
        if (instr->kind != INSTR_COLLECTIVE) continue;
        instr->out->flags |= META_FLAG_CHECK_COLLECTIVE;
        return;
    }
}

static enum sheaf_status build_part(struct builder *b) {
    for (int s = 0; s < b->plan->n_steps && !b->status; s++) {
        const struct sheaf__split_step *step = &b->plan->steps[s];
        const bool local =
            step->kind == SHEAF_SPLIT_STEP_SLICE || step->kind == SHEAF_SPLIT_STEP_KEEP_ONE;
        struct sheaf_tensor *out = NULL;
        if (local && b->part->value[step->out]) {
            write_back(b, step);
            continue;
        }
        switch (step->kind) {
        case SHEAF_SPLIT_STEP_NODE:
            out = build_node(b, step);
            break;
        case SHEAF_SPLIT_STEP_COLLECTIVE:
            out = build_collective[step->collective](b, step, s);
            break;
        case SHEAF_SPLIT_STEP_SLICE:
            out = build_slice(b, step);
            break;
        case SHEAF_SPLIT_STEP_KEEP_ONE:
            out = build_keep_one(b, step);
            break;
        case SHEAF_SPLIT_STEP_KIND_COUNT:
            break;
        }
        b->part->value[step->out] = out;
        if (is_checked(b->plan, step)) {
            if (step->kind == SHEAF_SPLIT_STEP_NODE) {
                out->flags |= META_FLAG_CHECK_NODE;
            } else { /* what the collective wrote; a gather through scratch is whole only after the
                        copies */
                mark_collective(b);
            }
        }
    }
    end_span(b);
    if (b->status) return b->status;
    for (int i = 0; i < b->graph->n_nodes; i++) {
        if (b->graph->nodes[i]->flags & SHEAF_TENSOR_FLAG_OUTPUT) {
            b->part->value[b->plan->node_final[i]]->flags |= SHEAF_TENSOR_FLAG_OUTPUT;
        }
    }
    struct sheaf_cgraph *g = &b->part->graph;
    g->size = g->n_nodes;
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

/* ---- programs ---- */

static const struct sheaf_split_state *leaf_state(const struct sheaf_tensor *leaf, void *user) {
    const struct meta_tensor *record = sheaf__meta_leaf(user, leaf);
    return record ? record->state : NULL;
}

/* The leaf values of the plan: the slices of weights and caches themselves; own descriptors for
 * inputs. */
static enum sheaf_status bind_leaves(struct meta_device *dev, struct meta_program *p,
                                     const struct sheaf_cgraph *graph, const bool *is_leaf) {
    for (int v = 0; v < p->plan->n_values; v++) {
        if (!is_leaf[v]) continue;
        const struct sheaf_tensor *leaf = p->plan->values[v].tensor;
        const struct meta_tensor *record = sheaf__meta_leaf(dev, leaf);
        if (!record) return SHEAF_STATUS_INVALID;
        if (sheaf__meta_leaf_is_input(leaf)) {
            for (int i = 0; i < graph->n_leafs; i++) {
                if (graph->leafs[i] == leaf) p->input_leaf[p->n_inputs] = i;
            }
        }
        for (int m = 0; m < dev->n_local; m++) {
            struct sheaf_tensor *slice = record->slices[m];
            if (sheaf__meta_leaf_is_input(leaf)) {
                struct sheaf_tensor *own = sheaf_new_tensor_1d(p->parts[m].ctx, slice->type, 0);
                if (!own) return SHEAF_STATUS_ALLOC_FAILED;
                *own = *slice;
                p->input[p->n_inputs * dev->n_local + m] = own;
                slice = own;
            }
            p->parts[m].value[v] = slice;
        }
        p->n_inputs += sheaf__meta_leaf_is_input(leaf);
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__meta_program_bind(const struct meta_device *dev, struct meta_program *p,
                                           const struct sheaf_cgraph *graph) {
    for (int i = 0; i < p->n_inputs; i++) {
        const struct meta_tensor *record = sheaf__meta_leaf(dev, graph->leafs[p->input_leaf[i]]);
        if (!record) return SHEAF_STATUS_INVALID;
        for (int m = 0; m < dev->n_local; m++) {
            struct sheaf_tensor *own = p->input[i * dev->n_local + m];
            if (own->data == record->slices[m]->data && own->buffer == record->slices[m]->buffer)
                continue;
            own->data = record->slices[m]->data;
            own->buffer = record->slices[m]->buffer;
            const struct sheaf_cgraph *g = &p->parts[m].graph;
            for (int k = 0; k < g->n_nodes; k++) {
                if (g->nodes[k]->view_src != own) continue;
                enum sheaf_status st = sheaf_backend_view_init(g->nodes[k]);
                if (st) return st;
            }
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Descriptors that a part may need: one a value, and views and copies for every interval of every
 * conversion. */
static size_t count_descriptors(const struct sheaf__split_plan *plan, int n_members) {
    size_t n = (size_t)plan->n_values + (size_t)plan->n_steps * 4;
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step *step = &plan->steps[s];
        if (step->kind == SHEAF_SPLIT_STEP_NODE) continue;
        const struct sheaf_split_state *state = plan->values[step->in[0]].state;
        if (state->axis > SHEAF_SPLIT_AXIS_3) state = plan->values[step->out].state;
        if (state->axis > SHEAF_SPLIT_AXIS_3) continue;
        for (int j = 0; j < n_members; j++) {
            n += 3 * (size_t)sheaf_split_state_intervals(state, j, NULL, 0) + 2;
        }
    }
    return n;
}

enum sheaf_status sheaf__meta_program_new(struct meta_device *dev, const struct sheaf_cgraph *graph,
                                          struct meta_program **out) {
    *out = NULL;
    struct meta_program *p = calloc(1, sizeof *p);
    bool *made = NULL, *leaf = NULL;
    int *last_read = NULL;
    enum sheaf_status st = SHEAF_STATUS_ALLOC_FAILED;
    if (!p) return no_memory();
    const size_t n_local = (size_t)dev->n_local;
    p->n_nodes = graph->n_nodes;
    st = sheaf__split_plan_new(graph, dev->n_members, leaf_state, dev, &p->plan);
    if (st) goto out;
    sheaf__meta_hoist(dev, p->plan, graph);

    const size_t n_values = (size_t)p->plan->n_values + 1;
    made = calloc(n_values, sizeof *made);
    leaf = calloc(n_values, sizeof *leaf);
    last_read = malloc(n_values * sizeof *last_read);
    p->parts = calloc(n_local + 1, sizeof *p->parts);
    p->node_record = calloc((size_t)graph->n_nodes + 1, sizeof *p->node_record);
    p->slices = calloc(((size_t)graph->n_nodes + 1) * (n_local + 1), sizeof *p->slices);
    p->input_leaf = calloc((size_t)graph->n_leafs + 1, sizeof *p->input_leaf);
    p->input = calloc(((size_t)graph->n_leafs + 1) * (n_local + 1), sizeof *p->input);
    st = no_memory();
    if (!made || !leaf || !last_read || !p->parts || !p->node_record || !p->slices ||
        !p->input_leaf || !p->input)
        goto out;
    for (size_t v = 0; v < n_values; v++) last_read[v] = -1;
    for (int s = 0; s < p->plan->n_steps; s++) {
        const struct sheaf__split_step *step = &p->plan->steps[s];
        for (int i = 0; i < SHEAF_MAX_SRC;
             i++) { /* a leaf is read before a step writes it, if any does */
            if (step->in[i] >= 0 && !made[step->in[i]]) leaf[step->in[i]] = true;
        }
        made[step->out] = true;
        p->n_checked += is_checked(p->plan, step);
        for (int i = 0; i < SHEAF_MAX_SRC; i++) {
            if (step->in[i] >= 0) last_read[step->in[i]] = s;
        }
    }
    const size_t n_descriptors =
        count_descriptors(p->plan, dev->n_members) + (size_t)graph->n_leafs;
    for (size_t m = 0; m < n_local; m++) {
        p->parts[m].ctx = sheaf_init((struct sheaf_init_params){
            .mem_size = n_descriptors * sheaf_tensor_overhead(), .no_alloc = true});
        p->parts[m].value = calloc(n_values, sizeof *p->parts[m].value);
        if (!p->parts[m].ctx || !p->parts[m].value) goto out;
    }
    for (size_t v = 0; v < n_values; v++) leaf[v] = leaf[v] || !made[v];
    st = bind_leaves(dev, p, graph, leaf);
    for (size_t m = 0; m < n_local && !st; m++) {
        struct builder b = {.dev = dev,
                            .graph = graph,
                            .plan = p->plan,
                            .part = &p->parts[m],
                            .member = dev->local[m],
                            .last_read = last_read};
        st = build_part(&b);
    }
    for (int i = 0; i < graph->n_nodes && !st; i++) {
        const int v = p->plan->node_final[i];
        struct sheaf_tensor **slices = p->slices + (size_t)i * n_local;
        for (size_t m = 0; m < n_local; m++) slices[m] = p->parts[m].value[v];
        p->node_record[i] =
            (struct meta_tensor){.state = p->plan->values[v].state, .slices = slices};
    }
out:
    free(made);
    free(leaf);
    free(last_read);
    if (st) {
        sheaf__meta_program_free(p, dev->n_local);
    } else {
        *out = p;
    }
    return st;
}

void sheaf__meta_program_free(struct meta_program *p, int n_local) {
    if (!p) return;
    for (int m = 0; p->parts && m < n_local; m++) {
        struct meta_part *part = &p->parts[m];
        for (int i = 0; i < part->n_instrs; i++) free(part->instrs[i].sizes);
        free(part->instrs);
        free(part->graph.nodes);
        free(part->value);
        sheaf_free(part->ctx);
    }
    sheaf__split_plan_free(p->plan);
    free(p->parts);
    free(p->node_record);
    free(p->slices);
    free(p->input_leaf);
    free(p->input);
    free(p);
}
