/* Computing a split graph: copies, submissions, and waits between backends.
 *
 * Inside a graph the splits run one after another: before a split is submitted its backend is made
 * to wait for the split before it. Between graphs in flight only copies are held back, each until
 * the last split that used its slot is done; where that is not enough (one slot, or splits that
 * read each other's memory where it lies) a graph starts when everything before it is done. */
#include <stdlib.h>

#include "sched/sched.h"

static sheaf_backend_event_t event_of(const struct sheaf_backend_sched *s, int b) {
    return s->events[b * s->n_copies + s->current];
}

static enum sheaf_status settle(struct sheaf_backend_sched *s, int b) {
    if (b == SCHED_NONE || !s->dirty[b]) return SHEAF_STATUS_SUCCESS;
    s->dirty[b] = false;
    return sheaf_backend_synchronize(s->backends[b]);
}

/* Work submitted to b from now on runs after the work that this graph submitted to `before`. */
static enum sheaf_status wait_for(struct sheaf_backend_sched *s, int b, int before) {
    if (before == SCHED_NONE || b == before || !s->dirty[before]) return SHEAF_STATUS_SUCCESS;
    const sheaf_backend_event_t event = event_of(s, before);
    return event && s->async[b] ? sheaf_backend_event_wait(s->backends[b], event)
                                : settle(s, before);
}

/* ---- copies ---- */

enum sheaf_status sheaf__sched_stage(struct sheaf_backend_sched *s, size_t size) {
    if (size <= s->staging_size) return SHEAF_STATUS_SUCCESS;
    free(s->staging);
    s->staging_size = 0;
    s->staging = malloc(size);
    if (!s->staging)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                               "scheduler: no staging memory of %zu bytes", size);
    s->staging_size = size;
    return SHEAF_STATUS_SUCCESS;
}

/* As sheaf_backend_tensor_copy, with staging memory that is kept. */
static enum sheaf_status copy_plain(struct sheaf_backend_sched *s, struct sheaf_tensor *src,
                                    struct sheaf_tensor *dst) {
    const sheaf_backend_buffer_t from = sheaf__memory_owner(src)->buffer, to = dst->buffer;
    if (!from || sheaf_backend_buffer_is_host(from) || sheaf_backend_buffer_is_host(to) ||
        to->iface->cpy_tensor)
        return sheaf_backend_tensor_copy(src, dst);
    const size_t size = sheaf_nbytes(src);
    enum sheaf_status st = sheaf__sched_stage(s, size);
    if (!st) st = sheaf_backend_tensor_get(src, s->staging, 0, size);
    return st ? st : sheaf_backend_tensor_set(dst, s->staging, 0, size);
}

/* A strided tensor into a dense one, through its owner's bytes: on a meta device those are the
 * bytes that the strides speak of. */
static enum sheaf_status copy_strided(struct sheaf_backend_sched *s, const struct sheaf_tensor *src,
                                      struct sheaf_tensor *dst) {
    const size_t span = sheaf_nbytes(src), bytes = sheaf_nbytes(dst);
    const size_t element = sheaf_type_size(src->type), row = dst->nb[1];
    enum sheaf_status st = sheaf__sched_stage(s, span + bytes);
    if (!st)
        st = sheaf_backend_tensor_get(sheaf__memory_owner(src), s->staging, src->view_offs, span);
    if (st) return st;
    char *out = s->staging + span;
    for (int64_t r = 0; r < sheaf_nrows(src); r++, out += row) {
        const char *in = s->staging + sheaf__row_offset(src, r);
        if (src->nb[0] == element) {
            memcpy(out, in, row);
            continue;
        }
        for (size_t k = 0; k * element < row; k++)
            memcpy(out + k * element, in + k * src->nb[0], element);
    }
    return sheaf_backend_tensor_set(dst, s->staging + span, 0, bytes);
}

static enum sheaf_status fill_copy(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                   const struct sched_copy *copy, int before) {
    struct sheaf_tensor *dst = copy->copy[s->current];
    const int owner = sheaf__sched_map_get(&slot->map, sheaf__memory_owner(copy->src));
    const int from = owner == SCHED_NONE ? SCHED_NONE : slot->info.at[owner].backend;
    const int to = copy->backend;
    if (sheaf_is_empty(dst)) return SHEAF_STATUS_SUCCESS;
    const bool plain = sheaf_are_same_layout(copy->src, dst);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (plain && !copy->from_user && from != SCHED_NONE && from != to && s->async[from] &&
        s->async[to]) {
        if (event_of(s, to) && s->dirty[to]) { /* until the slot's copy has been read */
            st = sheaf_backend_event_wait(s->backends[from], event_of(s, to));
        } else {
            st = settle(s, to);
        }
        /* With one slot its memory may have been that of a result of `to`, which was copied to
         * another backend after that event. */
        if (!st && s->n_copies == 1) st = wait_for(s, from, before);
        if (!st)
            st =
                sheaf_backend_tensor_copy_async(s->backends[from], s->backends[to], copy->src, dst);
        s->dirty[from] = s->dirty[to] = true;
        return st;
    }
    if (copy->from_user && s->n_copies > 1 && event_of(s, to)) {
        /* nothing in flight writes an input, so only the copy's readers are waited for */
        st = sheaf_backend_event_synchronize(event_of(s, to));
    } else {
        st = settle(s, from);
        if (!st) st = settle(s, to);
    }
    if (st) return st;
    return plain ? copy_plain(s, copy->src, dst) : copy_strided(s, copy->src, dst);
}

/* `dense` into the bytes of a strided tensor, through its owner. Rows are set alone; where elements
 * lie apart, all bytes between them are read and written back. */
static enum sheaf_status put_strided(const char *dense, char *span,
                                     const struct sheaf_tensor *dst) {
    struct sheaf_tensor *owner = sheaf__memory_owner(dst);
    const size_t element = sheaf_type_size(dst->type), row = sheaf_row_size(dst->type, dst->ne[0]);
    const bool whole_rows = dst->nb[0] == element || row == element;
    const size_t size = sheaf_nbytes(dst), offset = dst->view_offs;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!whole_rows) st = sheaf_backend_tensor_get(owner, span, offset, size);
    for (int64_t i3 = 0; i3 < dst->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < dst->ne[2] && !st; i2++) {
            const size_t at = (size_t)i3 * dst->nb[3] + (size_t)i2 * dst->nb[2];
            if (whole_rows) {
                st = sheaf_backend_tensor_set_2d(owner, dense, offset + at, row, (size_t)dst->ne[1],
                                                 dst->nb[1], row);
                dense += row * (size_t)dst->ne[1];
                continue;
            }
            for (int64_t i1 = 0; i1 < dst->ne[1]; i1++) {
                char *out = span + at + (size_t)i1 * dst->nb[1];
                for (int64_t i0 = 0; i0 < dst->ne[0]; i0++, dense += element)
                    memcpy(out + (size_t)i0 * dst->nb[0], dense, element);
            }
        }
    }
    return st || whole_rows ? st : sheaf_backend_tensor_set(owner, span, offset, size);
}

/* Takes what a redirected node wrote to where it belongs. */
static enum sheaf_status bring_back(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                    const struct sched_split *sp, const struct sched_exec *exec) {
    const struct sheaf_tensor *target = exec->target;
    if (!target || sheaf_is_empty(target)) return SHEAF_STATUS_SUCCESS;
    const struct sheaf_tensor *from = exec->run->view_src;
    const int owner = sheaf__sched_map_get(&slot->map, sheaf__memory_owner(target));
    const size_t size = sheaf_nbytes(from);
    enum sheaf_status st = settle(s, sp->backend);
    if (!st && owner != SCHED_NONE) st = settle(s, slot->info.at[owner].backend);
    if (!st) st = sheaf__sched_stage(s, size + sheaf_nbytes(target));
    if (!st) st = sheaf_backend_tensor_get(from, s->staging, 0, size);
    if (st) return st;
    if (!sheaf_are_same_layout(from, target))
        return put_strided(s->staging, s->staging + size, target);
    return sheaf_backend_tensor_set(sheaf__memory_owner(target), s->staging, target->view_offs,
                                    size);
}

static bool is_host(const struct sheaf_backend_sched *s, const struct sched_slot *slot,
                    const struct sheaf_tensor *t) {
    const struct sheaf_tensor *o = sheaf__memory_owner(t);
    if (o->buffer) return sheaf_backend_buffer_is_host(o->buffer);
    const int at = sheaf__sched_map_get(&slot->map, o);
    const int b = at == SCHED_NONE ? SCHED_NONE : slot->info.at[at].backend;
    return b != SCHED_NONE && sheaf_backend_buft_is_host(s->bufts[b]);
}

size_t sheaf__sched_staging(const struct sheaf_backend_sched *s, const struct sched_slot *slot) {
    size_t most = 0;
    for (int i = 0; i < slot->copies.n; i++) {
        const struct sched_copy *copy = &slot->copies.at[i];
        const struct sheaf_tensor *dst = copy->copy[s->current];
        const bool direct =
            is_host(s, slot, copy->src) || sheaf_backend_buft_is_host(s->bufts[copy->backend]);
        if (direct && copy->shared && sheaf_are_same_layout(copy->src, dst)) continue;
        const size_t n = sheaf_nbytes(copy->src) + sheaf_nbytes(dst);
        if (n > most) most = n;
    }
    return most;
}

/* ---- values carried between splits ---- */

static void release(struct sheaf_backend_sched *s, int until) {
    int n = 0;
    for (int i = 0; i < s->carried.n; i++) {
        const struct sched_carried c = s->carried.at[i];
        if (c.until < until) {
            s->backends[c.backend]->iface->release_tensor(s->backends[c.backend], c.tensor);
        } else {
            s->carried.at[n++] = c;
        }
    }
    s->carried.n = n;
}

static enum sheaf_status note_carried(struct sheaf_backend_sched *s, const struct sched_slot *slot,
                                      const struct sched_subgraph *subgraph, int backend) {
    for (int p = subgraph->first; p < subgraph->last; p++) {
        struct sheaf_tensor *t = slot->exec.at[p].run;
        if (!(t->flags & SHEAF_BACKEND_TENSOR_CARRIED)) continue;
        enum sheaf_status st = SCHED_ROOM(s->carried, s->carried.n + 1);
        if (st) return st;
        s->carried.at[s->carried.n++] =
            (struct sched_carried){t, backend, sheaf__sched_info_of(slot, t)->last_read};
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- splits ---- */

static enum sheaf_status submit(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                const struct sched_split *sp, struct sched_subgraph *subgraph,
                                bool dry) {
    const bool whole = sheaf__sched_hands_on(s, sp->backend);
    const uint64_t uid = subgraph->graph.uid ? subgraph->graph.uid : sheaf__graph_next_uid();
    subgraph->graph = (struct sheaf_cgraph){
        .size = subgraph->n_nodes,
        .n_nodes = subgraph->n_nodes,
        .n_leafs = whole ? subgraph->n_leafs : 0,
        .nodes = slot->nodes.at + subgraph->first_node,
        .leafs = whole ? slot->leafs.at + subgraph->first_leaf : NULL,
        .uid = uid,
    };
    const sheaf_backend_t backend = s->backends[sp->backend];
    enum sheaf_status st = dry ? backend->iface->graph_reserve(backend, &subgraph->graph)
                               : sheaf_backend_graph_compute_async(backend, &subgraph->graph);
    if (st) return st;
    s->dirty[sp->backend] = s->async[sp->backend];
    return whole ? note_carried(s, slot, subgraph, sp->backend) : SHEAF_STATUS_SUCCESS;
}

/* Groups of nodes that end where the callback wants to look. */
static enum sheaf_status run_observed(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                      const struct sched_split *sp) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int first = sp->first; first < sp->last && !st;) {
        int last = first;
        bool wanted = false;
        while (last < sp->last && !wanted)
            wanted = s->callback(slot->exec.at[last++].tensor, true, s->callback_user);
        const int n_nodes = slot->nodes.n, n_leafs = slot->leafs.n;
        st = sheaf__sched_subgraph(s, slot, sp, first, last,
                                   sheaf__sched_next_start(slot, sp->backend, last));
        if (!st) st = submit(s, slot, sp, &slot->subgraphs.at[slot->subgraphs.n - 1], false);
        if (!st) st = settle(s, sp->backend);
        if (!st) st = bring_back(s, slot, sp, &slot->exec.at[last - 1]);
        slot->nodes.n = n_nodes;
        slot->leafs.n = n_leafs;
        slot->subgraphs.n = slot->splits.n;
        release(s, last);
        if (!st && wanted && !s->callback(slot->exec.at[last - 1].tensor, false, s->callback_user))
            st = sheaf_set_error(SHEAF_STATUS_ABORTED,
                                 "scheduler: the callback ended the compute at '%s'",
                                 slot->exec.at[last - 1].tensor->name);
        first = last;
    }
    return st;
}

void sheaf__sched_release_all(struct sheaf_backend_sched *s) {
    for (int i = 0; i < s->carried.n; i++) {
        const sheaf_backend_t backend = s->backends[s->carried.at[i].backend];
        backend->iface->release_tensor(backend, s->carried.at[i].tensor);
    }
    s->carried.n = 0;
}

enum sheaf_status sheaf__sched_dry_run(struct sheaf_backend_sched *s, struct sched_slot *slot) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    sheaf__sched_release_all(s);
    for (int i = 0; i < slot->splits.n && !st; i++) {
        const struct sched_split *sp = &slot->splits.at[i];
        if (!sheaf__sched_reserves(s, sp->backend)) continue;
        st = submit(s, slot, sp, &slot->subgraphs.at[sp->subgraph], true);
        release(s, sp->last);
    }
    sheaf__sched_release_all(s);
    return st;
}

enum sheaf_status sheaf__sched_run(struct sheaf_backend_sched *s, struct sched_slot *slot) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    int before = SCHED_NONE;
    sheaf__sched_release_all(s);
    for (int i = 0; i < slot->splits.n && !st; i++) {
        const struct sched_split *sp = &slot->splits.at[i];
        const int b = sp->backend;
        /* what a copy reads or replaces may lie in memory that another backend uses */
        if (slot->direct)
            st = settle(s, before);
        for (int k = 0; k < sp->n_copies && !st; k++)
            st = fill_copy(s, slot, &slot->copies.at[sp->first_copy + k], before);
        if (!st) st = wait_for(s, b, before);
        if (st) break;
        if (s->callback) {
            st = run_observed(s, slot, sp);
        } else {
            st = submit(s, slot, sp, &slot->subgraphs.at[sp->subgraph], false);
            if (!st) st = bring_back(s, slot, sp, &slot->exec.at[sp->last - 1]);
        }
        if (!st && s->async[b] && event_of(s, b))
            st = sheaf_backend_event_record(event_of(s, b), s->backends[b]);
        release(s, sp->last);
        before = b;
    }
    return st;
}
