/* The scheduler's splits: which nodes a backend computes at once, what is copied for them, and the
 * graph that the backend is given.
 *
 * A copy stands for one tensor in the memory of one backend, dense, filled before the first split
 * that reads it. A node that writes into memory which its backend cannot use is *redirected*: a
 * node like it writes into a copy. The copy is brought back, and the split ends there, so that
 * readers of the result come after that.
 *
 * Backends with release_tensor (see backend-impl.h) are given whole graphs: views of earlier
 * results are listed again, earlier results are leaves. */
#include <stdlib.h>

#include "sched/sched.h"
#include "tensor/access.h"

/* ---- patches ---- */

static void apply(struct sched_patch *p) {
    if (p->src == SCHED_NONE) {
        p->added = p->flags & ~p->tensor->flags;
        p->tensor->flags |= p->flags;
    } else {
        p->tensor->src[p->src] = p->to;
    }
}

void sheaf__sched_patch(struct sched_slot *slot) {
    if (slot->patched) return;
    for (int i = 0; i < slot->patches.n; i++) apply(&slot->patches.at[i]);
    slot->patched = true;
}

void sheaf__sched_unpatch(struct sched_slot *slot) {
    if (!slot->patched) return;
    for (int i = slot->patches.n - 1; i >= 0; i--) {
        const struct sched_patch *p = &slot->patches.at[i];
        if (p->src == SCHED_NONE) {
            p->tensor->flags &= ~p->added;
        } else {
            p->tensor->src[p->src] = p->from;
        }
    }
    slot->patched = false;
}

/* Adds a patch and applies it: slots are patched while they are split. */
static enum sheaf_status patch(struct sched_slot *slot, struct sched_patch p) {
    enum sheaf_status st = SCHED_ROOM(slot->patches, slot->patches.n + 1);
    if (st) return st;
    slot->patches.at[slot->patches.n] = p;
    apply(&slot->patches.at[slot->patches.n++]);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status patch_src(struct sched_slot *slot, struct sheaf_tensor *t, int j,
                                   struct sheaf_tensor *to) {
    return patch(slot, (struct sched_patch){.tensor = t, .src = j, .from = t->src[j], .to = to});
}

/* ---- descriptors ---- */

static struct sheaf_tensor *new_tensor(struct sched_slot *slot) {
    const int block = slot->n_tensors / SCHED_BLOCK;
    if (block == slot->blocks.n) {
        struct sheaf_tensor *tensors =
            SCHED_ROOM(slot->blocks, block + 1) ? NULL : malloc(SCHED_BLOCK * sizeof *tensors);
        if (!tensors) {
            sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "scheduler: out of memory");
            return NULL;
        }
        slot->blocks.at[slot->blocks.n++] = tensors;
    }
    struct sheaf_tensor *t = &slot->blocks.at[block][slot->n_tensors++ % SCHED_BLOCK];
    memset(t, 0, sizeof *t);
    return t;
}

static void shape_like(struct sheaf_tensor *t, const struct sheaf_tensor *src) {
    t->type = src->type;
    memcpy(t->ne, src->ne, sizeof t->ne);
    sheaf__set_dense_strides(t);
    memcpy(t->name, src->name, sizeof t->name);
}

/* ---- copies ---- */

static struct sched_copy *find_copy(struct sched_slot *slot, const struct sheaf_tensor *src,
                                    int backend) {
    for (int c = sheaf__sched_info_of(slot, src)->copies; c != SCHED_NONE;
         c = slot->copies.at[c].next) {
        if (slot->copies.at[c].backend == backend) return &slot->copies.at[c];
    }
    return NULL;
}

static bool is_user_input(const struct sheaf_tensor *t) {
    return (sheaf__memory_owner(t)->flags & SHEAF_TENSOR_FLAG_INPUT) != 0 &&
           sheaf__memory_owner(t)->op == SHEAF_OP_NONE;
}

/* Does it have what the user has set? No node before has written into it. */
static bool is_as_set(struct sched_slot *slot, const struct sheaf_tensor *t) {
    return is_user_input(t) && !sheaf__sched_info_of(slot, sheaf__memory_owner(t))->written;
}

static bool wants_copy(struct sheaf_backend_sched *s, struct sched_slot *slot, int backend,
                       struct sheaf_tensor *t) {
    if (!sheaf__sched_can_use(s, slot, backend, t)) return true;
    return s->n_copies > 1 && is_as_set(slot, t); /* the user sets the next one early */
}

static enum sheaf_status add_copy(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                  struct sheaf_tensor *src, int backend, bool shared,
                                  struct sched_copy **out) {
    const int i = slot->copies.n;
    enum sheaf_status st = SCHED_ROOM(slot->copies, i + 1);
    if (st) return st;
    struct sched_info *info = sheaf__sched_info_of(slot, src);
    struct sched_copy *copy = &slot->copies.at[i];
    *copy = (struct sched_copy){.src = src,
                                .backend = backend,
                                .next = shared ? info->copies : SCHED_NONE,
                                .from_user = is_as_set(slot, src),
                                .shared = shared};
    for (int c = 0; c < s->n_copies; c++) {
        struct sheaf_tensor *t = copy->copy[c] = new_tensor(slot);
        if (!t) return SHEAF_STATUS_ALLOC_FAILED;
        shape_like(t, src);
        if (s->n_copies > 1 || sheaf__sched_hands_on(s, backend))
            t->flags |= SHEAF_TENSOR_FLAG_INPUT;
        if (s->n_copies > 1) t->flags |= SHEAF_TENSOR_FLAG_OUTPUT;
    }
    if (shared) info->copies = i;
    for (int b = 0; s->n_copies == 1 && b < s->n_backends; b++) {
        /* the copy may lie where a dead result of b was */
        if (b != backend && s->bufts[b] == s->bufts[backend]) slot->direct = true;
    }
    slot->copies.n++;
    slot->splits.at[slot->splits.n - 1].n_copies++;
    *out = copy;
    return st;
}

/* ---- nodes ---- */

/* Operand through which the node writes into memory that is not its own, or SCHED_NONE. */
static int written_operand(const struct sheaf_tensor *t) {
    if (!t->view_src || sheaf__sched_is_view(t)) return SCHED_NONE;
    for (int j = SHEAF_MAX_SRC - 1; j >= 0; j--) {
        const struct sheaf_tensor *p = t->src[j];
        if (p && sheaf__memory_owner(p) == t->view_src && p->view_offs == t->view_offs &&
            sheaf_are_same_layout(p, t))
            return j;
    }
    return SCHED_NONE;
}

static enum sheaf_status redirect(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                  struct sched_exec *exec, int backend) {
    struct sheaf_tensor *t = exec->tensor;
    const int j = written_operand(t);
    if (j == SCHED_NONE) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "scheduler: '%s' writes into '%s' through a layout that none of its "
                               "operands has, and %s cannot use that memory; assign it to the "
                               "backend of that tensor",
                               t->name, t->view_src->name,
                               sheaf_backend_name(s->backends[backend]));
    }
    struct sched_copy *copy;
    enum sheaf_status st = add_copy(s, slot, t->src[j], backend, false, &copy);
    struct sheaf_tensor *run = st ? NULL : new_tensor(slot);
    if (!run) return SHEAF_STATUS_ALLOC_FAILED;
    struct sheaf_tensor *into = copy->copy[s->current];
    *run = *t;
    shape_like(run, t);
    run->src[j] = into;
    run->view_src = into;
    run->view_offs = 0;
    run->buffer = NULL;
    run->data = run->extra = NULL;
    exec->run = run;
    exec->target = t->src[j];
    return st;
}

/* Copies that the node would add to a split of `backend`. */
static int n_new_copies(struct sheaf_backend_sched *s, struct sched_slot *slot,
                        struct sheaf_tensor *t, int backend, bool *moves_weight) {
    int n = 0;
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        struct sheaf_tensor *src = t->src[j];
        if (!src || !wants_copy(s, slot, backend, src) || find_copy(slot, src, backend)) continue;
        const struct sheaf_tensor *owner = sheaf__memory_owner(src);
        n++;
        if (owner->buffer && owner->buffer->usage == SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS)
            *moves_weight = true;
    }
    return n;
}

/* A node writes into memory that is not its own: copies of it are of what it was. */
static void note_written(struct sched_slot *slot, const struct sheaf_tensor *t, int backend) {
    const struct sheaf_tensor *owner = sheaf__memory_owner(t);
    if (sheaf__sched_info_of(slot, owner)->backend != backend || is_user_input(t))
        slot->direct = true;
    for (int i = 0; i < slot->info.n; i++) {
        struct sched_info *info = &slot->info.at[i];
        if (sheaf__memory_owner(info->tensor) == owner) info->copies = SCHED_NONE;
    }
}

static enum sheaf_status begin_split(struct sched_slot *slot, int backend) {
    enum sheaf_status st = SCHED_ROOM(slot->splits, slot->splits.n + 1);
    if (st) return st;
    slot->splits.at[slot->splits.n++] = (struct sched_split){.backend = backend,
                                                             .first = slot->exec.n,
                                                             .last = slot->exec.n,
                                                             .first_copy = slot->copies.n,
                                                             .subgraph = SCHED_NONE};
    return st;
}

static enum sheaf_status add_node(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                  struct sheaf_tensor *t, bool *ended) {
    const int backend = sheaf__sched_info_of(slot, t)->backend;
    const struct sched_split *last = slot->splits.n ? &slot->splits.at[slot->splits.n - 1] : NULL;
    bool moves_weight = false;
    if (t->view_src) /* the node takes what it writes over as it lies */
        sheaf__sched_info_of(slot, sheaf__memory_owner(t))->written = true;
    const int more = n_new_copies(s, slot, t, backend, &moves_weight);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    /* weights moved for one split have their memory used again by those of the next */
    const bool full = last && last->n_copies > 0 &&
                      (last->n_copies + more > SHEAF_SCHED_MAX_SPLIT_INPUTS || moves_weight);
    if (!last || last->backend != backend || *ended || full) st = begin_split(slot, backend);
    *ended = false;
    if (!st) st = SCHED_ROOM(slot->exec, slot->exec.n + 1);
    if (st) return st;
    struct sched_exec *exec = &slot->exec.at[slot->exec.n];
    *exec = (struct sched_exec){.tensor = t, .run = t};
    if (t->view_src && !sheaf__sched_can_use(s, slot, backend, t)) {
        st = redirect(s, slot, exec, backend);
        *ended = true;
    }
    for (int j = 0; j < SHEAF_MAX_SRC && !st; j++) {
        struct sheaf_tensor *src = t->src[j];
        if (!src || (exec->target && exec->run->src[j] != src)) continue;
        if (!wants_copy(s, slot, backend, src)) {
            const struct sched_info *home = sheaf__sched_info_of(slot, sheaf__memory_owner(src));
            /* a leaf without memory of its own: copies may get its memory after its last reader */
            if (home->backend != backend &&
                (home->position != SCHED_NONE || !sheaf__sched_is_placed(s, src)))
                slot->direct = true;
            continue;
        }
        struct sched_copy *copy = find_copy(slot, src, backend);
        if (!copy) st = add_copy(s, slot, src, backend, true, &copy);
        if (st) break;
        if (exec->target) {
            exec->run->src[j] = copy->copy[s->current];
        } else {
            st = patch_src(slot, t, j, copy->copy[s->current]);
        }
    }
    if (!st && t->view_src) note_written(slot, t, backend);
    sheaf__sched_info_of(slot, t)->position = slot->exec.n++;
    slot->splits.at[slot->splits.n - 1].last = slot->exec.n;
    return st;
}

/* ---- the graph for the allocator ---- */

static enum sheaf_status add_alloc(struct sched_slot *slot, struct sheaf_tensor *t, int id) {
    const int n = slot->alloc_nodes.n;
    enum sheaf_status st = SCHED_ROOM(slot->alloc_nodes, n + 1);
    if (!st) st = SCHED_ROOM(slot->node_ids, n + 1);
    if (st) return st;
    slot->alloc_nodes.at[n] = t;
    slot->node_ids.at[n] = id;
    slot->alloc_nodes.n++;
    return st;
}

/* The user's nodes in order, the copies for a split before its first one, redirected nodes
 * beside. */
static enum sheaf_status list_for_allocator(struct sheaf_backend_sched *s,
                                            struct sched_slot *slot) {
    const struct sheaf_cgraph *g = slot->graph;
    enum sheaf_status st = SCHED_ROOM(slot->leaf_ids, g->n_leafs);
    for (int i = 0; i < g->n_leafs && !st; i++) {
        const int b = sheaf__sched_info_of(slot, g->leafs[i])->backend;
        slot->leaf_ids.at[i] = b == SCHED_NONE ? s->n_backends - 1 : b;
        if (s->n_copies > 1 && is_user_input(g->leafs[i]))
            st = patch(slot, (struct sched_patch){.tensor = g->leafs[i],
                                                  .src = SCHED_NONE,
                                                  .flags = SHEAF_TENSOR_FLAG_OUTPUT});
    }
    slot->alloc_nodes.n = 0;
    int split = 0;
    for (int i = 0; i < g->n_nodes && !st; i++) {
        struct sheaf_tensor *t = g->nodes[i];
        const struct sched_info *info = sheaf__sched_info_of(slot, t);
        if (split < slot->splits.n && info->position == slot->splits.at[split].first) {
            const struct sched_split *sp = &slot->splits.at[split++];
            for (int k = 0; k < sp->n_copies && !st; k++) {
                const struct sched_copy *copy = &slot->copies.at[sp->first_copy + k];
                for (int c = 0; c < s->n_copies && !st; c++) {
                    /* as its operand the source stays until it is copied; taken off again below */
                    copy->copy[c]->src[0] = copy->src;
                    st = add_alloc(slot, copy->copy[c], sp->backend);
                }
            }
        }
        if (!st) st = add_alloc(slot, t, info->backend == SCHED_NONE ? 0 : info->backend);
        if (!st && info->position != SCHED_NONE) {
            struct sheaf_tensor *run = slot->exec.at[info->position].run;
            if (run != t) st = add_alloc(slot, run, info->backend);
        }
    }
    return st;
}

/* ---- subgraphs ---- */

int sheaf__sched_next_start(const struct sched_slot *slot, int backend, int position) {
    for (int i = 0; i < slot->splits.n; i++) {
        const struct sched_split *sp = &slot->splits.at[i];
        if (sp->backend != backend || sp->last <= position) continue;
        return sp->first > position ? sp->first : position;
    }
    return SCHED_NONE;
}

/* Last readers of what backends must hand on. */
static void find_last_reads(struct sheaf_backend_sched *s, struct sched_slot *slot) {
    for (int i = 0; i < slot->splits.n; i++) {
        const struct sched_split *sp = &slot->splits.at[i];
        for (int k = 0; k < sp->n_copies; k++) {
            const struct sheaf_tensor *src = slot->copies.at[sp->first_copy + k].src;
            sheaf__sched_info_of(slot, sheaf__memory_owner(src))->last_read = sp->first;
        }
        for (int p = sp->first; sheaf__sched_hands_on(s, sp->backend) && p < sp->last; p++) {
            const struct sheaf_tensor *t = slot->exec.at[p].run;
            for (int j = 0; j < SHEAF_MAX_SRC; j++) {
                const struct sheaf_tensor *o = t->src[j] ? sheaf__memory_owner(t->src[j]) : NULL;
                const int found = o ? sheaf__sched_map_get(&slot->map, o) : SCHED_NONE;
                if (found != SCHED_NONE) slot->info.at[found].last_read = p;
            }
        }
    }
    for (int i = 0; i < slot->info.n; i++) {
        const struct sheaf_tensor *t = slot->info.at[i].tensor;
        if (t->flags & SHEAF_TENSOR_FLAG_OUTPUT)
            sheaf__sched_info_of(slot, sheaf__memory_owner(t))->last_read = SCHED_ALWAYS;
    }
}

struct lister { /* of a whole graph */
    struct sheaf_backend_sched *s;
    struct sched_slot *slot;
    struct sched_subgraph *subgraph;
};

static bool mark_seen(struct sched_slot *slot, const struct sheaf_tensor *t) {
    const int i = sheaf__sched_map_get(&slot->map, t);
    if (i == SCHED_NONE || slot->seen.at[i] == slot->n_subgraphs) return false;
    slot->seen.at[i] = slot->n_subgraphs;
    return true;
}

static enum sheaf_status list_leaf(struct lister *l, struct sheaf_tensor *t) {
    enum sheaf_status st = SCHED_ROOM(l->slot->leafs, l->slot->leafs.n + 1);
    if (!st) l->slot->leafs.at[l->slot->leafs.n++] = t;
    return st;
}

static enum sheaf_status list_node(struct lister *l, struct sheaf_tensor *t) {
    enum sheaf_status st = SCHED_ROOM(l->slot->nodes, l->slot->nodes.n + 1);
    if (!st) l->slot->nodes.at[l->slot->nodes.n++] = t;
    return st;
}

static bool is_earlier(const struct lister *l, const struct sheaf_tensor *t) {
    const int i = sheaf__sched_map_get(&l->slot->map, t);
    return i != SCHED_NONE && l->slot->info.at[i].position != SCHED_NONE &&
           l->slot->info.at[i].position < l->subgraph->first;
}

static enum sheaf_status list_operand(struct lister *l, struct sheaf_tensor *reader, int j) {
    struct sheaf_tensor *t = reader->src[j];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    /* written in an earlier subgraph into memory of another tensor: look at that */
    while (!st && is_earlier(l, t) && t->view_src && !sheaf__sched_is_view(t)) {
        const int w = written_operand(t);
        if (w == SCHED_NONE) {
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                   "scheduler: '%s' is written by one scheduler split and read by "
                                   "'%s' in another, through a layout of its own",
                                   t->name, reader->name);
        }
        st = patch_src(l->slot, reader, j, t->src[w]);
        t = reader->src[j];
    }
    if (st) return st;
    if (sheaf__sched_map_get(&l->slot->map, t) == SCHED_NONE) { /* a copy: a leaf, listed once */
        for (int i = l->subgraph->first_leaf; i < l->slot->leafs.n; i++) {
            if (l->slot->leafs.at[i] == t) return st;
        }
        return list_leaf(l, t);
    }
    if (!mark_seen(l->slot, t)) return st;
    if (sheaf__sched_is_view(t) && t->view_src) {
        if (t->op == SHEAF_OP_NONE || !t->src[0])
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                   "scheduler: '%s' is a view without the op that makes it",
                                   t->name);
        st = list_operand(l, t, 0);
        return st ? st : list_node(l, t);
    }
    return list_leaf(l,
                     t); /* an earlier result, a weight, an input; own results were seen before */
}

static enum sheaf_status list_whole(struct lister *l, int next_start) {
    struct sched_slot *slot = l->slot;
    enum sheaf_status st = SCHED_ROOM(slot->seen, slot->info.cap);
    for (; !st && (size_t)slot->seen.n < slot->info.cap; slot->seen.n++)
        slot->seen.at[slot->seen.n] = 0;
    for (int p = l->subgraph->first; p < l->subgraph->last && !st; p++) {
        struct sheaf_tensor *t = slot->exec.at[p].run;
        for (int j = 0; j < SHEAF_MAX_SRC && !st; j++) {
            if (t->src[j]) st = list_operand(l, t, j);
        }
        mark_seen(slot, t);
        if (!st) st = list_node(l, t);
        if (st || t->view_src) continue;
        const int last_read = sheaf__sched_info_of(slot, t)->last_read;
        int32_t flags = 0;
        if (last_read >= l->subgraph->last) flags = SHEAF_TENSOR_FLAG_OUTPUT;
        if (next_start != SCHED_NONE && last_read >= next_start)
            flags |= SHEAF_BACKEND_TENSOR_CARRIED;
        if (flags)
            st = patch(slot, (struct sched_patch){.tensor = t, .src = SCHED_NONE, .flags = flags});
    }
    return st;
}

enum sheaf_status sheaf__sched_subgraph(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                        const struct sched_split *split, int first, int last,
                                        int next_start) {
    enum sheaf_status st = SCHED_ROOM(slot->subgraphs, slot->subgraphs.n + 1);
    if (st) return st;
    struct sched_subgraph *subgraph = &slot->subgraphs.at[slot->subgraphs.n];
    *subgraph = (struct sched_subgraph){
        .first = first, .last = last, .first_node = slot->nodes.n, .first_leaf = slot->leafs.n};
    slot->n_subgraphs++;
    if (sheaf__sched_hands_on(s, split->backend)) {
        struct lister l = {s, slot, subgraph};
        st = list_whole(&l, next_start);
    } else {
        st = SCHED_ROOM(slot->nodes, slot->nodes.n + last - first);
        for (int p = first; p < last && !st; p++)
            slot->nodes.at[slot->nodes.n++] = slot->exec.at[p].run;
    }
    subgraph->n_nodes = slot->nodes.n - subgraph->first_node;
    subgraph->n_leafs = slot->leafs.n - subgraph->first_leaf;
    slot->subgraphs.n++;
    return st;
}

/* ---- the whole graph ---- */

enum sheaf_status sheaf__sched_split(struct sheaf_backend_sched *s, struct sched_slot *slot) {
    const struct sheaf_cgraph *g = slot->graph;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    bool ended = false;
    slot->splits.n = slot->copies.n = slot->exec.n = slot->patches.n = 0;
    slot->subgraphs.n = slot->nodes.n = slot->leafs.n = slot->n_tensors = 0;
    slot->direct = false;
    slot->patched = true;
    for (int i = 0; i < g->n_nodes && !st; i++) {
        if (!sheaf__sched_is_view(g->nodes[i])) st = add_node(s, slot, g->nodes[i], &ended);
    }
    if (!st) find_last_reads(s, slot);
    for (int i = 0; i < slot->splits.n && !st; i++) {
        struct sched_split *sp = &slot->splits.at[i];
        sp->subgraph = slot->subgraphs.n;
        st = sheaf__sched_subgraph(s, slot, sp, sp->first, sp->last,
                                   sheaf__sched_next_start(slot, sp->backend, sp->last));
    }
    if (!st) st = list_for_allocator(s, slot);
    return st;
}
