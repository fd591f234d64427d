/* What a member does for each step of a plan. Conversions between split states become nodes too
 * (views and copies), so that only the collectives themselves, and copies that a device does not
 * take, need other code:
 *
 *   all-reduce      in place on the partial value, or on a copy if the partial value is read again
 *   all-gather      slices -> (scratch in member order -> copies of intervals ->) the whole
 *   reduce-scatter  the partial value -> (copies into member order ->) the sum of one's own block
 *   slice           copies of intervals, or a view where the slice is one dense piece
 *   keep one        member 0: a view; others: zeros */
#include <stdlib.h>

#include "meta/builder.h"

/* ---- geometry of a cut ---- */

static int64_t *all_intervals(struct builder *b, const struct sheaf_split_state *state, int member,
                              int64_t *n) {
    *n = sheaf_split_state_intervals(state, member, NULL, 0);
    int64_t *pairs = malloc((size_t)(*n ? *n : 1) * 2 * sizeof *pairs);
    if (!pairs) {
        b->status = sheaf__meta_no_memory();
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
    if (s->n_segments != 1 || s->segments[0].outer != 1) return false;
    int64_t at = 0; /* members may stand in any order, and hold units of others */
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
        struct sheaf_tensor *in_whole =
            sheaf__meta_view_of(b, whole, ne, index_bytes(whole, a, pairs[2 * i]));
        struct sheaf_tensor *in_slice =
            sheaf__meta_view_of(b, slice, ne, index_bytes(slice, a, local));
        local += ne[a];
        if (direction == WHOLE_TO_SLICE) {
            sheaf__meta_copy_node(b, in_whole, in_slice);
        } else {
            sheaf__meta_copy_node(b, in_slice, in_whole);
        }
    }
    free(pairs);
}

/* Scratch for all members' slices in member order. */
static struct sheaf_tensor *scratch_in_order(struct builder *b,
                                             const struct sheaf_split_state *state,
                                             const struct sheaf_tensor *whole,
                                             struct sheaf_tensor *after) {
    int64_t total = 0, ne[SHEAF_MAX_DIMS];
    for (int j = 0; j < b->dev->n_members; j++) {
        sheaf_split_state_local_ne(state, whole->ne, j, ne);
        total += ne[0] * ne[1] * ne[2] * ne[3];
    }
    return sheaf__meta_placeholder(b, whole->type, (int64_t[]){total, 1, 1, 1}, after, whole->name);
}

/* Copies between the whole, which `whole` describes, and the members' dense slices in the scratch. */
static void copy_blocks(struct builder *b, const struct sheaf_split_state *state,
                        const struct sheaf_tensor *whole, struct sheaf_tensor *dense,
                        struct sheaf_tensor *scratch, enum copy_direction direction) {
    size_t before = 0;
    for (int j = 0; j < b->dev->n_members && !b->status; j++) {
        int64_t ne[SHEAF_MAX_DIMS];
        sheaf_split_state_local_ne(state, whole->ne, j, ne);
        struct sheaf_tensor *block = sheaf__meta_view_of(b, scratch, ne, before);
        sheaf__meta_shape_dense(block, ne);
        copy_intervals(b, state, j, dense, block, direction);
        before += sheaf__meta_slice_bytes(state, j, whole->type, whole->ne);
    }
}

/* Sizes of the members' slices in units of so many bytes; owned by the instruction. */
static size_t *slice_sizes(struct builder *b, const struct sheaf_split_state *state,
                           const struct sheaf_tensor *whole, size_t unit) {
    size_t *sizes = malloc((size_t)b->dev->n_members * sizeof *sizes);
    if (!sizes) {
        b->status = sheaf__meta_no_memory();
        return NULL;
    }
    for (int j = 0; j < b->dev->n_members; j++)
        sizes[j] = sheaf__meta_slice_bytes(state, j, whole->type, whole->ne) / unit;
    return sizes;
}

/* The name of a conversion's operand, for messages: the same on every member, whose own nodes may
 * differ. A value without a name gets the name of one of its operands, preferably one that members
 * do not have in full. */
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

/* A collective reads memory past the device, so a weight must lie there as it was written: the
 * device that has it in a layout of its own says so when it is read. */
static void take_as_written(struct builder *b, struct sheaf_tensor *t) {
    uint8_t byte;
    if (!t || !(t->flags & SHEAF_BACKEND_TENSOR_FACTOR) || sheaf_is_empty(t) || b->status) return;
    b->status = sheaf_backend_tensor_get(t, &byte, 0, 1);
}

static void collective(struct builder *b, enum sheaf_comm_kind kind, int step,
                       struct sheaf_tensor *in, struct sheaf_tensor *out, size_t *sizes) {
    sheaf__meta_end_span(b);
    struct meta_instr *instr = sheaf__meta_new_instr(b);
    take_as_written(b, in);
    if (b->status) {
        free(sizes);
        return;
    }
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

/* Does a later step read the memory of value v, as that value or as another one made so far? */
static bool read_again(const struct builder *b, int v, int step) {
    const struct sheaf_tensor *memory = sheaf__memory_owner(b->part->value[v]);
    for (int u = 0; u < b->plan->n_values; u++) {
        const struct sheaf_tensor *t = b->part->value[u];
        if (t && b->last_read[u] > step && sheaf__memory_owner(t) == memory) return true;
    }
    return false;
}

static struct sheaf_tensor *build_all_reduce(struct builder *b,
                                             const struct sheaf__split_step *step, int index) {
    struct sheaf_tensor *in = b->part->value[step->in[0]], *out;
    /* a leaf's memory is not ours to change */
    const bool owned = sheaf__memory_owner(in)->data == NULL;
    if (owned && sheaf_is_contiguous(in) && !read_again(b, step->in[0], index)) {
        out = sheaf__meta_view_of(b, in, in->ne, 0);
    } else {
        out = sheaf__meta_dense_copy(b, in);
    }
    collective(b, SHEAF_COMM_ALL_REDUCE, index, NULL, out, NULL);
    return out;
}

static struct sheaf_tensor *build_all_gather(struct builder *b,
                                             const struct sheaf__split_step *step, int index) {
    const struct sheaf__split_value *from = &b->plan->values[step->in[0]];
    const struct sheaf_tensor *whole = from->tensor;
    struct sheaf_tensor *in = sheaf__meta_dense(b, b->part->value[step->in[0]]);
    size_t *sizes = slice_sizes(b, from->state, whole, 1);
    if (blocks_are_whole(from->state, whole->ne)) {
        struct sheaf_tensor *out =
            sheaf__meta_placeholder(b, whole->type, whole->ne, in, whole->name);
        collective(b, SHEAF_COMM_ALL_GATHER, index, in, out, sizes);
        return out;
    }
    struct sheaf_tensor *scratch = scratch_in_order(b, from->state, whole, in);
    collective(b, SHEAF_COMM_ALL_GATHER, index, in, scratch, sizes);
    struct sheaf_tensor *out =
        sheaf__meta_placeholder(b, whole->type, whole->ne, scratch, whole->name);
    copy_blocks(b, from->state, whole, out, scratch, SLICE_TO_WHOLE);
    return out;
}

static struct sheaf_tensor *build_reduce_scatter(struct builder *b,
                                                 const struct sheaf__split_step *step, int index) {
    const struct sheaf__split_value *to = &b->plan->values[step->out];
    const struct sheaf_tensor *whole = to->tensor;
    struct sheaf_tensor *in = sheaf__meta_dense(b, b->part->value[step->in[0]]);
    size_t *sizes = slice_sizes(b, to->state, whole, sizeof(float));
    if (!blocks_are_whole(to->state, whole->ne)) {
        struct sheaf_tensor *scratch = scratch_in_order(b, to->state, whole, in);
        copy_blocks(b, to->state, whole, in, scratch, WHOLE_TO_SLICE);
        in = scratch;
    }
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(to->state, whole->ne, b->member, ne);
    struct sheaf_tensor *out = sheaf__meta_placeholder(b, whole->type, ne, in, whole->name);
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
        struct sheaf_tensor *view = sheaf__meta_view_of(b, in, ne, index_bytes(in, a, pairs[0]));
        free(pairs);
        return sheaf__meta_dense(b, view);
    }
    free(pairs);
    struct sheaf_tensor *out = sheaf__meta_placeholder(b, in->type, ne, in, in->name);
    copy_intervals(b, state, b->member, in, out, WHOLE_TO_SLICE);
    return out;
}

static struct sheaf_tensor *build_keep_one(struct builder *b,
                                           const struct sheaf__split_step *step) {
    struct sheaf_tensor *in = b->part->value[step->in[0]];
    if (b->member == 0) return sheaf__meta_view_of(b, in, in->ne, 0);
    struct sheaf_tensor *out = sheaf__meta_placeholder(b, in->type, in->ne, in, in->name);
    sheaf__meta_zero(b, out);
    return out;
}

/* A value that exists already: a cache whose mirrored copy was written. Its memory takes the slice
 * or the addend. */
static void write_back(struct builder *b, const struct sheaf__split_step *step) {
    struct sheaf_tensor *in = b->part->value[step->in[0]], *out = b->part->value[step->out];
    if (step->kind == SHEAF_SPLIT_STEP_SLICE) {
        copy_intervals(b, b->plan->values[step->out].state, b->member, in, out, WHOLE_TO_SLICE);
    } else if (b->member == 0) {
        sheaf__meta_copy_node(b, in, out);
    } else { /* the view keeps the memory of `out` from other nodes until then */
        sheaf__meta_zero(b, sheaf__meta_view_of(b, out, out->ne, 0));
    }
}

static void ask_device(struct builder *b, const struct sheaf__split_step *step,
                       const struct sheaf_tensor *t) {
    if (sheaf__meta_is_taken(b, t)) return;
    b->refused[step->node] = (uint8_t)(1 + (b->local < UINT8_MAX ? b->local : UINT8_MAX - 1));
}

static struct sheaf_tensor *build_node(struct builder *b, const struct sheaf__split_step *step) {
    const struct sheaf_tensor *node = b->graph->nodes[step->node];
    struct sheaf_tensor *const *value = b->part->value;
    if (step->add_once && b->member != 0) {
        struct sheaf_tensor *addend = value[step->in[1 - step->once]];
        return sheaf__meta_view_of(b, addend, addend->ne, 0);
    }
    const struct sheaf_tensor *src[SHEAF_MAX_SRC] = {NULL};
    struct sheaf_tensor *t = sheaf__meta_descriptor(b, node->type, node->name);
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        if (step->in[i] >= 0) src[i] = t->src[i] = value[step->in[i]];
    }
    enum sheaf_status st = sheaf__split_local_node(b->plan, step, b->graph, b->member, src, t);
    if (st && !b->status) b->status = st;
    if (sheaf__meta_is_moving(node)) t->flags |= META_FLAG_MOVES;
    const int written = sheaf__op_written(node);
    const struct sheaf_tensor *target = written                   ? t->src[written - 1]
                                        : sheaf_op_is_view(t->op) ? t->src[0]
                                                                  : NULL;
    if (target) {
        t->view_src = sheaf__memory_owner(target);
    } else if (sheaf__split_contributes_zero(b->plan, step, b->graph, b->member)) {
        t->op = SHEAF_OP_NONE;
        sheaf__meta_append(b, t);
        sheaf__meta_zero(b, t);
        return t;
    }
    ask_device(b, step, t);
    return sheaf__meta_append(b, t);
}

bool sheaf__meta_is_checked(const struct sheaf__split_plan *plan,
                            const struct sheaf__split_step *step) {
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

enum sheaf_status sheaf__meta_build_steps(struct builder *b) {
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
        if (sheaf__meta_is_checked(b->plan, step)) {
            if (step->kind == SHEAF_SPLIT_STEP_NODE) {
                out->flags |= META_FLAG_CHECK_NODE;
            } else { /* what the collective wrote; a gather through scratch is whole only after the
                        copies */
                mark_collective(b);
            }
        }
    }
    sheaf__meta_end_span(b);
    return b->status;
}
