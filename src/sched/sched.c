/* The scheduler: its life, allocation, public functions, and the dump of a graph's assignment.
 *
 * Invariant: outside of a compute, the user's tensors are as the user made them except for
 * buffer, data and extra. Changes in flight are undone at the next wait. */
#include "sheaf/sched.h"
#include "alloc/gallocr.h"
#include "base/array.h"
#include "base/hash.h"
#include "base/settings.h"
#include "base/text.h"
#include "sheaf/log.h"

#include <stdio.h>
#include <stdlib.h>

#include "sched/sched.h"

/* ---- lists and maps ---- */

enum sheaf_status sheaf__sched_room(void *array, size_t *cap, size_t n, size_t entry) {
    if (n <= INT32_MAX && sheaf__grow(array, cap, n, entry)) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "scheduler: out of memory");
}

static size_t slot_of(const struct sched_map *m, const struct sheaf_tensor *t) {
    size_t i = sheaf__hash_address(t, m->n_slots);
    while (m->slots[i].tensor && m->slots[i].tensor != t) i = (i + 1) & (m->n_slots - 1);
    return i;
}

int sheaf__sched_map_get(const struct sched_map *m, const struct sheaf_tensor *t) {
    if (!m->n_slots) return SCHED_NONE;
    const size_t i = slot_of(m, t);
    return m->slots[i].tensor ? m->slots[i].value : SCHED_NONE;
}

static enum sheaf_status resize(struct sched_map *m, size_t n_slots) {
    struct sched_map bigger = {.slots = calloc(n_slots, sizeof *m->slots), .n_slots = n_slots};
    if (!bigger.slots)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "scheduler: out of memory");
    for (size_t i = 0; i < m->n_slots; i++) {
        if (m->slots[i].tensor) bigger.slots[slot_of(&bigger, m->slots[i].tensor)] = m->slots[i];
    }
    bigger.n_used = m->n_used;
    free(m->slots);
    *m = bigger;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__sched_map_put(struct sched_map *m, const struct sheaf_tensor *t,
                                       int value) {
    if (2 * (m->n_used + 1) > m->n_slots) {
        enum sheaf_status st = resize(m, m->n_slots ? 2 * m->n_slots : 64);
        if (st) return st;
    }
    const size_t i = slot_of(m, t);
    m->n_used += !m->slots[i].tensor;
    m->slots[i].tensor = t;
    m->slots[i].value = value;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__sched_map_clear(struct sched_map *m, size_t n_expected) {
    size_t want = m->n_slots ? m->n_slots : 64;
    while (want < 2 * (n_expected + 1)) want *= 2;
    if (m->n_slots) memset(m->slots, 0, m->n_slots * sizeof *m->slots);
    m->n_used = 0;
    return want > m->n_slots ? resize(m, want) : SHEAF_STATUS_SUCCESS;
}

/* ---- life ---- */

static enum sheaf_status reserve_lists(struct sched_slot *slot, size_t graph_size) {
    enum sheaf_status st = SCHED_ROOM(slot->info, graph_size);
    if (!st) st = sheaf__sched_map_clear(&slot->map, graph_size);
    if (!st) st = SCHED_ROOM(slot->exec, graph_size);
    if (!st) st = SCHED_ROOM(slot->nodes, graph_size);
    if (!st) st = SCHED_ROOM(slot->alloc_nodes, graph_size);
    if (!st) st = SCHED_ROOM(slot->node_ids, graph_size);
    if (!st) st = SCHED_ROOM(slot->leaf_ids, graph_size);
    return st;
}

static enum sheaf_status check_backends(const sheaf_backend_t *backends, int n_backends,
                                        size_t graph_size) {
    if (!backends || n_backends < 1 || graph_size > (1u << 26))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "scheduler: %d backends, a graph size of %zu; it wants at least one "
                               "backend and at most %u nodes",
                               n_backends, graph_size, 1u << 26);
    for (int b = 0; b < n_backends; b++)
        if (!backends[b])
            return sheaf_set_error(SHEAF_STATUS_INVALID, "scheduler: backend %d is NULL", b);
    return SHEAF_STATUS_SUCCESS;
}

/* Arrays for s->n_backends and s->n_copies. */
static enum sheaf_status make_room(struct sheaf_backend_sched *s) {
    const size_t n = (size_t)s->n_backends;
    s->backends = calloc(n, sizeof(sheaf_backend_t));
    s->bufts = calloc(n, sizeof(sheaf_backend_buffer_type_t));
    s->async = calloc(n, sizeof *s->async);
    s->dirty = calloc(n, sizeof *s->dirty);
    s->events = calloc(n * (size_t)s->n_copies, sizeof(sheaf_backend_event_t));
    return s->backends && s->bufts && s->async && s->dirty && s->events
               ? SHEAF_STATUS_SUCCESS
               : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "scheduler: out of memory");
}

static enum sheaf_status take_backend(struct sheaf_backend_sched *s, int b, sheaf_backend_t backend,
                                      sheaf_backend_buffer_type_t buft) {
    struct sheaf_backend_dev_props props;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    s->backends[b] = backend;
    s->bufts[b] = buft ? buft : sheaf_backend_get_default_buffer_type(backend);
    sheaf_backend_dev_get_props(backend->device, &props);
    s->async[b] = props.caps.async;
    if (!sheaf_backend_supports_buft(backend, s->bufts[b]))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "scheduler: %s cannot use buffers of type %s",
                               sheaf_backend_name(backend), sheaf_backend_buft_name(s->bufts[b]));
    for (int c = 0; props.caps.events && c < s->n_copies && !st; c++)
        st = sheaf_backend_event_new(backend->device, &s->events[b * s->n_copies + c]);
    return st;
}

sheaf_backend_sched_t sheaf_backend_sched_new(const sheaf_backend_t *backends,
                                              const sheaf_backend_buffer_type_t *bufts,
                                              int n_backends, size_t graph_size, bool parallel,
                                              bool op_offload) {
    long debug = 0;
    if (check_backends(backends, n_backends, graph_size) ||
        sheaf__setting_int(SHEAF__SET_SCHED_DEBUG, &debug))
        return NULL;
    struct sheaf_backend_sched *s = calloc(1, sizeof *s);
    if (!s) {
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "scheduler: out of memory");
        return NULL;
    }
    s->n_backends = n_backends;
    s->n_copies = parallel ? SHEAF_SCHED_MAX_COPIES : 1;
    s->op_offload = op_offload;
    s->debug = (int)debug;
    enum sheaf_status st = make_room(s);
    for (int b = 0; b < n_backends && !st; b++)
        st = take_backend(s, b, backends[b], bufts ? bufts[b] : NULL);
    if (!st && !(s->galloc = sheaf_gallocr_new_n(s->bufts, n_backends)))
        st = SHEAF_STATUS_ALLOC_FAILED;
    for (int c = 0; c < s->n_copies && !st; c++) st = reserve_lists(&s->slots[c], graph_size);
    if (!st) return s;
    sheaf_backend_sched_free(s);
    return NULL;
}

static void free_slot(struct sched_slot *slot) {
    free(slot->map.slots);
    free(slot->info.at);
    free(slot->splits.at);
    free(slot->copies.at);
    free(slot->exec.at);
    free(slot->patches.at);
    free(slot->subgraphs.at);
    free((void *)slot->nodes.at);
    free((void *)slot->leafs.at);
    free(slot->seen.at);
    free((void *)slot->alloc_nodes.at);
    free(slot->node_ids.at);
    free(slot->leaf_ids.at);
    for (int i = 0; i < slot->blocks.n; i++) free(slot->blocks.at[i]);
    free((void *)slot->blocks.at);
}

void sheaf_backend_sched_free(sheaf_backend_sched_t s) {
    if (!s) return;
    if (s->galloc) sheaf_backend_sched_synchronize(s);
    sheaf__sched_release_all(s);
    for (int i = 0; s->events && i < s->n_backends * s->n_copies; i++)
        sheaf_backend_event_free(s->events[i]);
    for (int c = 0; c < SHEAF_SCHED_MAX_COPIES; c++) free_slot(&s->slots[c]);
    sheaf_gallocr_free(s->galloc);
    free(s->user.slots);
    free((void *)s->backends);
    free((void *)s->bufts);
    free(s->async);
    free(s->dirty);
    free((void *)s->events);
    free(s->staging);
    free(s->carried.at);
    free(s);
}

/* ---- the dump ---- */

static const char *backend_text(const struct sheaf_backend_sched *s, int b) {
    return b == SCHED_NONE ? "none" : sheaf_backend_name(s->backends[b]);
}

static void dump(const struct sheaf_backend_sched *s, const struct sched_slot *slot) {
    char memory[1024];
    sheaf_log(SHEAF_LOG_DEBUG, "scheduler: %d nodes, %d leaves, %d splits", slot->graph->n_nodes,
              slot->graph->n_leafs, slot->splits.n);
    for (int i = 0; i < slot->splits.n; i++) {
        const struct sched_split *sp = &slot->splits.at[i];
        struct sheaf__text line = {memory, sizeof memory, 0};
        sheaf__put(&line, "split %d: %s, %d nodes, %d copies", i, backend_text(s, sp->backend),
                   sp->last - sp->first, sp->n_copies);
        for (int k = 0; k < sp->n_copies; k++) {
            const struct sheaf_tensor *src = slot->copies.at[sp->first_copy + k].src;
            sheaf__put(&line, "%s '%s' (%zu bytes)", k ? "," : ":", src->name, sheaf_nbytes(src));
        }
        sheaf_log(SHEAF_LOG_DEBUG, "%s", memory);
        for (int p = sp->first; s->debug > 1 && p < sp->last; p++) {
            const struct sheaf_tensor *t = slot->exec.at[p].tensor;
            const struct sched_info *info = sheaf__sched_info_of(slot, t);
            sheaf_log(SHEAF_LOG_DEBUG, "  %-12s '%s' on %s: %s%s%s%s", sheaf_op_desc(t), t->name,
                      backend_text(s, info->backend), info->cause, info->cause_tensor ? " '" : "",
                      info->cause_tensor ? info->cause_tensor->name : "",
                      info->cause_tensor ? "'" : "");
            for (int j = 0; j < SHEAF_MAX_SRC; j++) {
                const struct sheaf_tensor *src = t->src[j];
                if (!src) continue;
                const int at = sheaf__sched_map_get(&slot->map, src);
                const struct sched_info *from = at == SCHED_NONE ? NULL : &slot->info.at[at];
                sheaf_log(SHEAF_LOG_DEBUG, "    reads '%s' on %s: %s", src->name,
                          backend_text(s, from ? from->backend : SCHED_NONE),
                          from ? from->cause : "");
            }
        }
    }
}

/* ---- splitting and allocation ---- */

/* Waits for the graph that the slot holds. */
static enum sheaf_status clear_slot(struct sheaf_backend_sched *s, int c) {
    struct sched_slot *slot = &s->slots[c];
    bool all_events = true;
    if (!slot->in_flight) return SHEAF_STATUS_SUCCESS;
    for (int b = 0; b < s->n_backends; b++)
        all_events = all_events && (!s->dirty[b] || s->events[b * s->n_copies + c]);
    if (!all_events) return sheaf_backend_sched_synchronize(s);
    for (int b = 0; b < s->n_backends; b++) {
        const sheaf_backend_event_t event = s->events[b * s->n_copies + c];
        enum sheaf_status st = event ? sheaf_backend_event_synchronize(event) : 0;
        if (st) return st;
    }
    sheaf__sched_unpatch(slot);
    slot->in_flight = false;
    return SHEAF_STATUS_SUCCESS;
}

/* Splits into the current slot. */
static enum sheaf_status split(struct sheaf_backend_sched *s, struct sheaf_cgraph *graph) {
    struct sched_slot *slot = &s->slots[s->current];
    s->is_split = s->is_alloc = false;
    enum sheaf_status st = clear_slot(s, s->current);
    for (int c = 0; c < s->n_copies && !st; c++) /* its nodes have the copies of that slot */
        if (s->slots[c].graph == graph) st = clear_slot(s, c);
    if (!st) st = sheaf__graph_check_whole(graph);
    if (st) return st;
    slot->graph = graph;
    slot->uid = graph->uid;
    st = sheaf__sched_assign(s, slot);
    if (!st) st = sheaf__sched_split(s, slot);
    if (st) {
        sheaf__sched_unpatch(slot);
        return st;
    }
    s->is_split = true;
    return st;
}

static struct sheaf_cgraph allocator_graph(const struct sched_slot *slot) {
    return (struct sheaf_cgraph){.size = slot->alloc_nodes.n,
                                 .n_nodes = slot->alloc_nodes.n,
                                 .n_leafs = slot->graph->n_leafs,
                                 .nodes = slot->alloc_nodes.at,
                                 .leafs = slot->graph->leafs};
}

/* Ends the allocator's work: copies are leaves again, and the user's tensors as they were. */
static void end_allocation(struct sheaf_backend_sched *s, struct sched_slot *slot) {
    for (int i = 0; i < slot->copies.n; i++) {
        for (int c = 0; c < s->n_copies; c++) slot->copies.at[i].copy[c]->src[0] = NULL;
    }
    sheaf__sched_unpatch(slot);
    if (s->debug) dump(s, slot);
}

enum sheaf_status sheaf_backend_sched_split_graph(sheaf_backend_sched_t s,
                                                  struct sheaf_cgraph *graph) {
    enum sheaf_status st = split(s, graph);
    if (!st) end_allocation(s, &s->slots[s->current]);
    return st;
}

/* A measure graph has no memory when it was measured. */
static void take_memory_back(struct sheaf_backend_sched *s, struct sheaf_cgraph *g) {
    for (int i = 0; i < g->n_leafs + g->n_nodes; i++) {
        struct sheaf_tensor *t = i < g->n_leafs ? g->leafs[i] : g->nodes[i - g->n_leafs];
        if (!t->buffer || !sheaf__gallocr_owns(s->galloc, t->buffer)) continue;
        t->buffer = NULL;
        t->data = t->extra = NULL;
    }
}

enum sheaf_status sheaf_backend_sched_reserve(sheaf_backend_sched_t s, struct sheaf_cgraph *graph) {
    enum sheaf_status st = sheaf_backend_sched_synchronize(s);
    bool hand_on = false;
    for (int b = 0; b < s->n_backends; b++) hand_on = hand_on || sheaf__sched_reserves(s, b);
    for (int c = 0; c < s->n_copies && !st; c++) { /* every slot's lists take the graph's size */
        struct sched_slot *slot = &s->slots[s->current];
        st = split(s, graph);
        if (st) break;
        struct sheaf_cgraph g = allocator_graph(slot);
        if (hand_on) { /* what such backends need can only be seen with the graph in place */
            st = sheaf_gallocr_alloc_graph_n(s->galloc, &g, slot->node_ids.at, slot->leaf_ids.at);
        } else {
            st = sheaf_gallocr_reserve_n(s->galloc, &g, slot->node_ids.at, slot->leaf_ids.at);
        }
        if (!st) st = sheaf__sched_stage(s, sheaf__sched_staging(s, slot));
        end_allocation(s, slot);
        if (hand_on && !st) {
            sheaf__sched_patch(slot);
            st = sheaf__sched_dry_run(s, slot);
            sheaf__sched_unpatch(slot);
        }
        if (hand_on) take_memory_back(s, graph);
        s->current = (s->current + 1) % s->n_copies;
    }
    if (st) return st;
    return sheaf_backend_sched_reset(s);
}

static uint64_t layout_of(const struct sched_slot *slot, const struct sheaf_cgraph *g) {
    uint64_t h = (uint64_t)g->n_nodes;
    for (int i = 0; i < g->n_leafs + g->n_nodes; i++) {
        const bool leaf = i < g->n_leafs;
        const struct sheaf_tensor *t = leaf ? g->leafs[i] : g->nodes[i - g->n_leafs];
        const int backend = leaf ? slot->leaf_ids.at[i] : slot->node_ids.at[i - g->n_leafs];
        h = sheaf__mix(sheaf__mix(h, (uint64_t)(uintptr_t)t->data), sheaf_nbytes(t));
        h = sheaf__mix(h, (uint64_t)backend);
    }
    return h;
}

enum sheaf_status sheaf_backend_sched_alloc_graph(sheaf_backend_sched_t s,
                                                  struct sheaf_cgraph *graph) {
    s->current = (s->current + 1) % s->n_copies;
    struct sched_slot *slot = &s->slots[s->current];
    enum sheaf_status st = split(s, graph);
    if (st) return st;
    struct sheaf_cgraph g = allocator_graph(slot);
    bool fits = true, busy = false;
    for (int c = 0; c < s->n_copies; c++) busy = busy || s->slots[c].in_flight;
    if (busy) /* a buffer that is too small is freed, and must not be in use then */
        st = sheaf__gallocr_fits(s->galloc, &g, slot->node_ids.at, slot->leaf_ids.at, &fits);
    if (!st && !fits) st = sheaf_backend_sched_synchronize(s);
    if (!st) st = sheaf_gallocr_alloc_graph_n(s->galloc, &g, slot->node_ids.at, slot->leaf_ids.at);
    const uint64_t layout = st ? 0 : layout_of(slot, &g);
    end_allocation(s, slot);
    /* graphs in flight keep clear of each other only if they lie alike */
    if (!st && layout != s->layout) st = sheaf_backend_sched_synchronize(s);
    s->layout = layout;
    s->is_alloc = !st;
    return st;
}

/* ---- computing ---- */

enum sheaf_status sheaf_backend_sched_synchronize(sheaf_backend_sched_t s) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    char text[512] = "";
    for (int b = 0; b < s->n_backends; b++) {
        const enum sheaf_status one = sheaf_backend_synchronize(s->backends[b]);
        s->dirty[b] = false;
        if (!one || st) continue;
        st = one;
        snprintf(text, sizeof text, "%s", sheaf_last_error());
    }
    for (int c = 0; c < s->n_copies; c++) {
        if (!s->slots[c].in_flight) continue;
        sheaf__sched_unpatch(&s->slots[c]);
        s->slots[c].in_flight = false;
    }
    return st ? sheaf_set_error(st, "%s", text) : st;
}

enum sheaf_status sheaf_backend_sched_graph_compute_async(sheaf_backend_sched_t s,
                                                          struct sheaf_cgraph *graph) {
    struct sched_slot *slot = &s->slots[s->current];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!s->is_alloc || slot->graph != graph || slot->uid != graph->uid) {
        st = sheaf_backend_sched_alloc_graph(s, graph);
        slot = &s->slots[s->current];
    }
    if (!st) st = clear_slot(s, s->current);
    bool alone = s->n_copies == 1 || slot->direct || s->callback;
    for (int c = 0; c < s->n_copies; c++)
        alone = alone || (s->slots[c].in_flight && s->slots[c].direct);
    if (!st && alone) st = sheaf_backend_sched_synchronize(s);
    if (st) return st;
    const int n_patches = slot->patches.n;
    sheaf__sched_patch(slot);
    slot->in_flight = true;
    st = sheaf__sched_run(s, slot);
    if (!st && s->callback) st = sheaf_backend_sched_synchronize(s); /* copies may be under way */
    bool waiting = false;
    for (int b = 0; b < s->n_backends; b++) waiting = waiting || s->dirty[b];
    if (st && waiting) { /* the first error is the one to tell */
        char text[512];
        snprintf(text, sizeof text, "%s", sheaf_last_error());
        sheaf_backend_sched_synchronize(s);
        sheaf_set_error(st, "%s", text);
    } else if (!waiting) {
        sheaf__sched_unpatch(slot);
        slot->in_flight = false;
    }
    if (s->callback) slot->patches.n = n_patches; /* unpatched: the callback's were added last */
    return st;
}

enum sheaf_status sheaf_backend_sched_graph_compute(sheaf_backend_sched_t s,
                                                    struct sheaf_cgraph *graph) {
    enum sheaf_status st = sheaf_backend_sched_graph_compute_async(s, graph);
    return st ? st : sheaf_backend_sched_synchronize(s);
}

enum sheaf_status sheaf_backend_sched_reset(sheaf_backend_sched_t s) {
    s->is_split = s->is_alloc = false;
    enum sheaf_status st =
        s->n_copies == 1 ? sheaf_backend_sched_synchronize(s) : SHEAF_STATUS_SUCCESS;
    enum sheaf_status cleared = sheaf__sched_map_clear(&s->user, 0);
    return st ? st : cleared;
}

/* ---- looking and setting ---- */

static int index_of(const struct sheaf_backend_sched *s, sheaf_backend_t backend) {
    for (int b = 0; b < s->n_backends; b++) {
        if (s->backends[b] == backend) return b;
    }
    return SCHED_NONE;
}

enum sheaf_status sheaf_backend_sched_set_tensor_backend(sheaf_backend_sched_t s,
                                                         struct sheaf_tensor *tensor,
                                                         sheaf_backend_t backend) {
    const int b = index_of(s, backend);
    if (b == SCHED_NONE || !tensor) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "scheduler: the backend for '%s' is none of its %d backends",
                               tensor ? tensor->name : "(NULL)", s->n_backends);
    }
    s->is_alloc = false; /* takes effect at the next compute */
    return sheaf__sched_map_put(&s->user, tensor, b);
}

static const struct sched_info *info_of(const struct sheaf_backend_sched *s,
                                        const struct sheaf_tensor *t) {
    const struct sched_slot *slot = &s->slots[s->current];
    const int i = s->is_split ? sheaf__sched_map_get(&slot->map, t) : SCHED_NONE;
    return i == SCHED_NONE ? NULL : &slot->info.at[i];
}

sheaf_backend_t sheaf_backend_sched_get_tensor_backend(sheaf_backend_sched_t s,
                                                       const struct sheaf_tensor *tensor) {
    const struct sched_info *info = info_of(s, tensor);
    int b = sheaf__sched_map_get(&s->user, tensor);
    if (b == SCHED_NONE && info) b = info->backend;
    return b == SCHED_NONE ? NULL : s->backends[b];
}

const char *sheaf_backend_sched_get_tensor_cause(sheaf_backend_sched_t s,
                                                 const struct sheaf_tensor *tensor) {
    const struct sched_info *info = info_of(s, tensor);
    return info ? info->cause : "";
}

int sheaf_backend_sched_get_n_backends(sheaf_backend_sched_t s) { return s->n_backends; }
sheaf_backend_t sheaf_backend_sched_get_backend(sheaf_backend_sched_t s, int i) {
    return i >= 0 && i < s->n_backends ? s->backends[i] : NULL;
}
int sheaf_backend_sched_get_n_splits(sheaf_backend_sched_t s) {
    return s->slots[s->current].splits.n;
}
int sheaf_backend_sched_get_n_copies(sheaf_backend_sched_t s) { return s->n_copies; }

sheaf_backend_buffer_type_t sheaf_backend_sched_get_buffer_type(sheaf_backend_sched_t s,
                                                                sheaf_backend_t backend) {
    const int b = index_of(s, backend);
    return b == SCHED_NONE ? NULL : s->bufts[b];
}

size_t sheaf_backend_sched_get_buffer_size(sheaf_backend_sched_t s, sheaf_backend_t backend) {
    return sheaf_gallocr_get_buffer_size_n(s->galloc, index_of(s, backend));
}

void sheaf_backend_sched_set_eval_callback(sheaf_backend_sched_t s,
                                           sheaf_backend_sched_eval_fn callback, void *user_data) {
    s->callback = callback;
    s->callback_user = user_data;
}
