/* The scheduler's assignment: a backend for every tensor of a graph, in passes.
 *
 *   1  what is fixed: by the user, by memory, inputs, weights
 *   2  expansion to neighbours: better backends down and up, then the last one down and up
 *   3  better backends where operands allow it; the best for nodes still left
 *   4  leaves and owners still left, from their readers; views from their owners
 *
 * The passes are those of ggml's scheduler. Invariant: afterwards every node that computes has a
 * backend that can run it. The result depends on the graph and on where tensors lie, so all ranks
 * of a job come to the same one. */
#include "sched/sched.h"

struct sched_info *sheaf__sched_info(struct sched_slot *slot, struct sheaf_tensor *t) {
    int i = sheaf__sched_map_get(&slot->map, t);
    if (i == SCHED_NONE) {
        i = slot->info.n;
        if (SCHED_ROOM(slot->info, i + 1) || sheaf__sched_map_put(&slot->map, t, i)) return NULL;
        slot->info.n++;
        slot->info.at[i] = (struct sched_info){.tensor = t,
                                               .backend = SCHED_NONE,
                                               .cause = "",
                                               .last_read = SCHED_NONE,
                                               .position = SCHED_NONE,
                                               .copies = SCHED_NONE};
    }
    return &slot->info.at[i];
}

static bool runs(const struct sheaf_backend_sched *s, int b, const struct sheaf_tensor *t) {
    return sheaf__sched_is_view(t) || sheaf_backend_supports_op(s->backends[b], t);
}

static void set(struct sched_info *info, int backend, const char *cause,
                const struct sheaf_tensor *cause_tensor) {
    info->backend = backend;
    info->cause = cause;
    info->cause_tensor = cause_tensor;
}

bool sheaf__sched_can_use(struct sheaf_backend_sched *s, struct sched_slot *slot, int backend,
                          struct sheaf_tensor *t) {
    const struct sheaf_tensor *owner = sheaf__memory_owner(t);
    if (sheaf__sched_is_placed(s, t))
        return sheaf_backend_supports_buft(s->backends[backend], owner->buffer->buft);
    const int home = sheaf__sched_info_of(slot, owner)->backend;
    return home == backend || (home != SCHED_NONE &&
                               sheaf_backend_supports_buft(s->backends[backend], s->bufts[home]));
}

/* The best backend that can use the memory of `t` and run `op`. */
static int of_memory(const struct sheaf_backend_sched *s, const struct sheaf_tensor *t,
                     const struct sheaf_tensor *op) {
    if (!sheaf__sched_is_placed(s, t)) return SCHED_NONE;
    const struct sheaf_tensor *owner = sheaf__memory_owner(t);
    for (int b = 0; b < s->n_backends; b++) {
        if (sheaf_backend_supports_buft(s->backends[b], owner->buffer->buft) && runs(s, b, op))
            return b;
    }
    return SCHED_NONE;
}

/* The backend whose device the weights are on; of_memory alone would give every host buffer to the
 * best backend that can read host memory. */
static int of_weight(const struct sheaf_backend_sched *s, const struct sheaf_tensor *t,
                     const struct sheaf_tensor *op) {
    const sheaf_backend_dev_t dev = sheaf__memory_owner(t)->buffer->buft->device;
    for (int b = 0; b < s->n_backends; b++) {
        if (dev && s->backends[b]->device == dev && runs(s, b, op)) return b;
    }
    return of_memory(s, t, op);
}

static bool is_weight(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *o = sheaf__memory_owner(t);
    return o->buffer && o->buffer->usage == SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS;
}

/* ---- pass 1 ---- */

static void fix(struct sheaf_backend_sched *s, struct sched_info *info) {
    struct sheaf_tensor *t = info->tensor;
    const int user = s->user.n_used ? sheaf__sched_map_get(&s->user, t) : SCHED_NONE;
    if (user != SCHED_NONE && !sheaf_op_is_view(t->op)) {
        set(info, user, "by the user", NULL);
        info->by_user = true;
        return;
    }
    const int memory = of_memory(s, t, t);
    if (memory != SCHED_NONE) {
        const bool leaf = t->op == SHEAF_OP_NONE;
        set(info, leaf ? of_weight(s, t, t) : memory, "where it lies", sheaf__memory_owner(t));
        return;
    }
    if (t->flags & SHEAF_TENSOR_FLAG_INPUT && t->op == SHEAF_OP_NONE && !t->view_src &&
        !sheaf__sched_is_placed(s, t)) {
        set(info, s->n_backends - 1, "input", NULL);
        return;
    }
    if (sheaf__sched_is_view(t)) return;
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        const struct sheaf_tensor *w = t->src[j];
        if (!w || !is_weight(w) || sheaf__op_info(t->op)->small_weights) continue;
        const int b = of_weight(s, w, t);
        if (b == SCHED_NONE) continue;
        if (s->op_offload && b == s->n_backends - 1 &&
            sheaf_backend_buffer_is_host(sheaf__memory_owner(w)->buffer)) {
            for (int better = 0; better < b; better++) {
                if (runs(s, better, t) && sheaf_backend_offload_op(s->backends[better], t)) {
                    set(info, better, "offloaded from its weights", w);
                    return;
                }
            }
        }
        set(info, b, "weights", w);
        return;
    }
}

/* ---- pass 2 ---- */

/* Carries the backend of a node on to the next ones that have none. `last`: also the backend of
 * lowest priority. */
static void expand(struct sheaf_backend_sched *s, struct sched_slot *slot, bool down, bool last,
                   const char *cause) {
    const struct sheaf_cgraph *g = slot->graph;
    const struct sheaf_tensor *from = NULL;
    int current = SCHED_NONE;
    for (int k = 0; k < g->n_nodes; k++) {
        struct sheaf_tensor *t = g->nodes[down ? k : g->n_nodes - 1 - k];
        if (sheaf__sched_is_view(t)) continue;
        struct sched_info *info = sheaf__sched_info_of(slot, t);
        if (info->backend != SCHED_NONE) {
            current = !last && info->backend == s->n_backends - 1 ? SCHED_NONE : info->backend;
        } else if (current != SCHED_NONE && runs(s, current, t)) {
            set(info, current, cause, from);
        }
        from = t;
    }
}

/* ---- pass 3 ---- */

static int n_usable(struct sheaf_backend_sched *s, struct sched_slot *slot, int b,
                    const struct sheaf_tensor *t, bool *all) {
    int n = 0;
    *all = true;
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        if (!t->src[j]) continue;
        const bool usable = sheaf__sched_can_use(s, slot, b, t->src[j]);
        n += usable;
        *all = *all && usable;
    }
    return n;
}

static void improve(struct sheaf_backend_sched *s, struct sched_slot *slot,
                    struct sched_info *info) {
    const struct sheaf_tensor *t = info->tensor;
    bool all;
    if (info->backend == SCHED_NONE) {
        int best = SCHED_NONE;
        for (int b = 0; b < s->n_backends; b++) {
            if (!runs(s, b, t)) continue;
            const int n = n_usable(s, slot, b, t, &all);
            if (n > best) {
                best = n;
                set(info, b, "most operands usable", NULL);
            }
        }
        return;
    }
    if (info->by_user) return;
    for (int b = 0; b < info->backend; b++) {
        if (s->bufts[b] != s->bufts[info->backend] || !runs(s, b, t)) continue;
        n_usable(s, slot, b, t, &all);
        if (!all) continue;
        set(info, b, "a better backend with the same memory", NULL);
        return;
    }
}

/* ---- pass 4 ---- */

static void from_reader(struct sched_slot *slot, struct sheaf_tensor *t,
                        const struct sched_info *reader) {
    struct sched_info *owner = sheaf__sched_info_of(slot, sheaf__memory_owner(t));
    if (owner->backend == SCHED_NONE && reader->backend != SCHED_NONE)
        set(owner, reader->backend, "its reader", reader->tensor);
}

static enum sheaf_status check(struct sheaf_backend_sched *s, struct sched_slot *slot,
                               const struct sheaf_tensor *t) {
    const struct sched_info *info = sheaf__sched_info_of(slot, t);
    if (info->backend == SCHED_NONE) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "scheduler: no backend runs %s for '%s' (%s); add one that does at "
                               "the end of the list, the CPU for example",
                               sheaf_op_desc(t), t->name, sheaf_type_name(t->type));
    }
    if (!runs(s, info->backend, t)) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "scheduler: '%s' was assigned to %s by the user, which does not run "
                               "%s on these operands",
                               t->name, sheaf_backend_name(s->backends[info->backend]),
                               sheaf_op_desc(t));
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- all ---- */

static enum sheaf_status list_tensors(struct sched_slot *slot) {
    const struct sheaf_cgraph *g = slot->graph;
    bool ok = true;
    slot->info.n = 0;
    enum sheaf_status st =
        sheaf__sched_map_clear(&slot->map, (size_t)g->n_nodes + (size_t)g->n_leafs);
    if (st) return st;
    for (int i = 0; i < g->n_leafs && ok; i++) ok = sheaf__sched_info(slot, g->leafs[i]) != NULL;
    for (int i = 0; i < g->n_nodes && ok; i++) {
        struct sheaf_tensor *t = g->nodes[i];
        ok = sheaf__sched_info(slot, t) && sheaf__sched_info(slot, sheaf__memory_owner(t));
        for (int j = 0; j < SHEAF_MAX_SRC && ok; j++) { /* in a graph view also from outside it */
            struct sheaf_tensor *src = t->src[j];
            ok = !src || (sheaf__sched_info(slot, src) &&
                          sheaf__sched_info(slot, sheaf__memory_owner(src)));
        }
    }
    return ok ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

enum sheaf_status sheaf__sched_assign(struct sheaf_backend_sched *s, struct sched_slot *slot) {
    const struct sheaf_cgraph *g = slot->graph;
    enum sheaf_status st = list_tensors(slot);
    if (st) return st;
    for (int i = 0; i < slot->info.n; i++) fix(s, &slot->info.at[i]);
    expand(s, slot, true, false, "follows");
    expand(s, slot, false, false, "comes before");
    expand(s, slot, true, true, "follows");
    expand(s, slot, false, true, "comes before");
    for (int i = 0; i < g->n_nodes; i++) {
        struct sheaf_tensor *t = g->nodes[i];
        if (sheaf__sched_is_view(t)) continue;
        improve(s, slot, sheaf__sched_info_of(slot, t));
        const struct sched_info *info = sheaf__sched_info_of(slot, t);
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            if (t->src[j]) from_reader(slot, t->src[j], info);
        }
        st = check(s, slot, t);
        if (st) return st;
    }
    for (int i = 0; i < slot->info.n; i++) { /* leaves that nothing reads */
        struct sched_info *info = &slot->info.at[i];
        if (!info->tensor->view_src && info->backend == SCHED_NONE &&
            !sheaf__sched_is_placed(s, info->tensor))
            set(info, s->n_backends - 1, "nothing reads it", NULL);
    }
    for (int i = 0; i < slot->info.n; i++) {
        struct sched_info *info = &slot->info.at[i];
        if (!info->tensor->view_src || !sheaf__sched_is_view(info->tensor)) continue;
        set(info, sheaf__sched_info_of(slot, info->tensor->view_src)->backend, "a view of",
            info->tensor->view_src);
    }
    return SHEAF_STATUS_SUCCESS;
}
