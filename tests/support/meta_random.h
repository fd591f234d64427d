/* Random graphs (split_random.h) on a real meta device: every node against the whole graph on the
 * CPU. Collective. */
#ifndef SHEAF_TESTS_META_RANDOM_H
#define SHEAF_TESTS_META_RANDOM_H

#include "split_random.h"

/* Leaves are found again by name in the copy of a graph. */
static inline enum sheaf_status meta_random_state(const struct sheaf_tensor *t, const void *user,
                                                  struct sheaf_split_state **out) {
    const struct split_model *m = *(struct split_model *const *)user;
    const struct sheaf_split_state *found = m->mirrored;
    int i = 0;
    if (sscanf(t->name, "leaf#%d", &i) == 1 && i < m->n_leaves) found = m->state[i];
    *out = sheaf_split_state_copy(found);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* Tensors of the arena are given a buffer around it, so that they can be copied elsewhere. */
static inline sheaf_backend_buffer_t meta_random_wrap(const struct split_model *m) {
    char *from = NULL, *to = NULL;
    sheaf_backend_buffer_t buffer;
    for (T *t = sheaf_get_first_tensor(m->ctx); t; t = sheaf_get_next_tensor(m->ctx, t)) {
        if (t->view_src || !t->data) continue;
        char *end = (char *)t->data + sheaf_nbytes(t);
        from = !from || (char *)t->data < from ? t->data : from;
        to = end > to ? end : to;
    }
    if (sheaf_backend_cpu_buffer_from_ptr(from, (size_t)(to - from), &buffer)) return NULL;
    for (T *t = sheaf_get_first_tensor(m->ctx); t; t = sheaf_get_next_tensor(m->ctx, t))
        t->buffer = buffer;
    return buffer;
}

/* NMSE of a node, at most. Devices that round activations to 8 bits are allowed more. */
static double meta_random_bound = 1e-10;

/* A node of the copy against its original, which the CPU computed. */
static inline bool meta_random_compare(T *node, const T *original, double scale, uint64_t seed) {
    if (sheaf_is_empty(original)) return true;
    if (sheaf_op_is_view(node->op)) return true; /* bytes of another node or of a leaf */
    if (node->view_src && node->view_src->op != SHEAF_OP_NONE && !sheaf_is_contiguous(node))
        return true; /* written over a part of another node: the same */
    T *got = split_tensor(original->type, original->ne);
    memcpy(got->nb, node->nb, sizeof got->nb); /* what was written into a cache keeps its strides */
    got->data = split_alloc(sheaf_nbytes(got));
    if (sheaf_backend_tensor_get(node, got->data, 0, sheaf_nbytes(got))) {
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, sheaf_last_error());
        return false;
    }
    const double error = split_nmse(got, original);
    if (error < meta_random_bound ||
        split_distance(got, original) * split_largest(original) < 2e-6 * scale)
        return true;
    fprintf(stderr, "seed %llu: %s '%s', NMSE %g, scale %g\n", (unsigned long long)seed,
            sheaf_op_desc(original), original->name, error, scale);
    return false;
}

static inline bool meta_random_run(sheaf_backend_t backend, struct maker *k, uint64_t seed,
                                   long *n_nodes) {
    struct sheaf_cgraph *g = k->m.graph;
    struct sheaf_backend_graph_copy copy = {0};
    bool good = true;
    double scale = 0;
    for (int i = 0; i < k->m.n_leaves; i++)
        sheaf_format_name((T *)(uintptr_t)k->m.leaf[i], "leaf#%d", i);
    sheaf_backend_buffer_t arena = meta_random_wrap(&k->m);
    if (!arena || sheaf_backend_graph_copy(backend, g, &copy)) {
        fprintf(stderr, "seed %llu: copy: %s\n", (unsigned long long)seed, sheaf_last_error());
        sheaf_backend_buffer_free(arena);
        return false;
    }
    for (int i = 0; i < g->n_leafs; i++) scale = fmax(scale, split_largest(g->leafs[i]));
    /* A cache's node shows the cache as it is at the end, on both sides. */
    for (int i = 0; i < g->n_nodes && good; i++) {
        good = split_run_node(g->nodes[i]) == SHEAF_STATUS_SUCCESS;
        scale = fmax(scale, split_largest(g->nodes[i]));
    }
    if (!good) {
        fprintf(stderr, "seed %llu: the whole graph: %s\n", (unsigned long long)seed,
                sheaf_last_error());
    } else if (scale <= 1e8) { /* else out of f32's useful range: nothing to compare */
        good = sheaf_backend_graph_compute(backend, copy.graph) == SHEAF_STATUS_SUCCESS;
        if (!good) fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, sheaf_last_error());
        for (int i = 0; i < g->n_nodes && good; i++)
            good = meta_random_compare(sheaf_graph_node(copy.graph, i), g->nodes[i], scale, seed);
        *n_nodes += g->n_nodes;
    }
    sheaf_backend_graph_copy_free(&copy);
    sheaf_backend_buffer_free(arena);
    return good;
}

/* Nodes that a scheduler may give to another backend than that of their operands. */
static inline bool meta_random_is_free(const struct sheaf_cgraph *g, const T *t) {
    bool is_free = !t->view_src && !sheaf_op_is_view(t->op);
    for (int i = 0; i < g->n_nodes && is_free; i++)
        is_free = g->nodes[i]->view_src != t || sheaf_op_is_view(g->nodes[i]->op);
    return is_free;
}

/* The graph as a scheduler computes it: some of its nodes on a CPU, and only some are outputs. */
static inline bool meta_random_run_split(sheaf_backend_t backend, sheaf_backend_t cpu,
                                         sheaf_backend_sched_t sched, struct maker *k,
                                         uint64_t seed) {
    struct sheaf_cgraph *g = k->m.graph;
    struct sheaf_backend_graph_copy copy = {0};
    uint64_t lot = ~seed;
    const uint64_t one_of = 2 + split_random(&lot) % 4;
    double scale = 0;
    for (int i = 0; i < k->m.n_leaves; i++)
        sheaf_format_name((T *)(uintptr_t)k->m.leaf[i], "leaf#%d", i);
    sheaf_backend_buffer_t arena = meta_random_wrap(&k->m);
    bool good =
        arena && !sheaf_backend_graph_copy(backend, g, &copy) && !sheaf_backend_sched_reset(sched);
    for (int i = 0; i < g->n_nodes && good; i++) {
        T *t = sheaf_graph_node(copy.graph, i);
        const bool on_cpu = split_random(&lot) % one_of == 0, last = i == g->n_nodes - 1;
        if (!t->view_src || t->view_src->op != SHEAF_OP_NONE) t->data = NULL, t->buffer = NULL;
        if (!last && !(g->nodes[i]->flags & SHEAF_TENSOR_FLAG_OUTPUT))
            t->flags &= ~SHEAF_TENSOR_FLAG_OUTPUT;
        if (on_cpu && meta_random_is_free(copy.graph, t))
            good = !sheaf_backend_sched_set_tensor_backend(sched, t, cpu);
        good = good && !split_run_node(g->nodes[i]);
        scale = fmax(scale, split_largest(g->nodes[i]));
    }
    for (int i = 0; i < g->n_leafs; i++) scale = fmax(scale, split_largest(g->leafs[i]));
    if (good && scale <= 1e8) good = !sheaf_backend_sched_graph_compute(sched, copy.graph);
    if (!good) fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, sheaf_last_error());
    for (int i = 0; i < g->n_nodes && good && scale <= 1e8; i++) {
        T *t = sheaf_graph_node(copy.graph, i);
        if (t->flags & SHEAF_TENSOR_FLAG_OUTPUT)
            good = meta_random_compare(t, g->nodes[i], scale, seed);
    }
    sheaf_backend_graph_copy_free(&copy);
    sheaf_backend_buffer_free(arena);
    return good;
}

/* Not every kind of device has a kernel for every op; a meta device leaves such graphs to a
 * scheduler. The answer is the same on every rank. */
static inline bool meta_random_can(sheaf_backend_dev_t meta, const struct sheaf_cgraph *g) {
    bool can = true;
    for (int i = 0; i < g->n_nodes; i++)
        can = sheaf_backend_dev_supports_op(meta, g->nodes[i]) && can;
    return can;
}

/* Graphs `first` .. `first + n - 1`; at least a fifth must be computed. *n_started (may be NULL):
 * how many collectives ran beside spans. */
static inline bool run_meta_random_with(const sheaf_backend_dev_t *members, size_t n_members,
                                        uint64_t first, uint64_t n,
                                        enum sheaf_backend_meta_overlap overlap,
                                        uint64_t *n_started) {
    const struct sheaf_backend_meta_params params = {.size = sizeof params, .overlap = overlap};
    struct split_model *model = NULL;
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend;
    long n_nodes = 0, n_run = 0;
    bool good = true;
    if (sheaf_backend_meta_device(members, n_members, meta_random_state, &model, &params, &meta) ||
        sheaf_backend_dev_init(meta, NULL, &backend)) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return false;
    }
    for (uint64_t seed = first; seed < first + n && good; seed++) {
        struct maker k;
        make_graph_for(&k, seed, 14, (int)n_members);
        model = &k.m;
        sheaf_backend_meta_set_check(backend, seed % 2);
        if (meta_random_can(meta, k.m.graph)) {
            good = meta_random_run(backend, &k, seed, &n_nodes);
            n_run++;
        }
        split_model_free(&k.m);
        split_free_all();
    }
    if (good && (5 * n_run < (long)n || n_nodes < 2 * n_run)) {
        fprintf(stderr, "only %ld nodes in %ld of %llu graphs\n", n_nodes, n_run,
                (unsigned long long)n);
        good = false;
    }
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    sheaf_backend_meta_get_stats(backend, &stats);
    if (n_started) *n_started = stats.n_started;
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
    return good;
}

/* Graphs `first` .. `first + n - 1` on a scheduler over the members and a CPU. */
static inline bool run_meta_random_split(const sheaf_backend_dev_t *members, size_t n_members,
                                         uint64_t first, uint64_t n) {
    struct split_model *model = NULL;
    sheaf_backend_dev_t meta;
    sheaf_backend_t both[2];
    bool good =
        !sheaf_backend_meta_device(members, n_members, meta_random_state, &model, NULL, &meta) &&
        !sheaf_backend_dev_init(meta, NULL, &both[0]) &&
        !sheaf_backend_dev_init(members[0], NULL, &both[1]);
    sheaf_backend_sched_t sched =
        good ? sheaf_backend_sched_new(both, NULL, 2, 256, false, false) : NULL;
    if (!sched) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return false;
    }
    for (uint64_t seed = first; seed < first + n && good; seed++) {
        struct maker k;
        make_graph_for(&k, seed, 14, (int)n_members);
        model = &k.m;
        if (meta_random_can(meta, k.m.graph))
            good = meta_random_run_split(both[0], both[1], sched, &k, seed);
        split_model_free(&k.m);
        split_free_all();
    }
    sheaf_backend_sched_free(sched);
    sheaf_backend_free(both[0]);
    sheaf_backend_free(both[1]);
    sheaf_backend_meta_device_free(meta);
    return good;
}

static inline bool run_meta_random(const sheaf_backend_dev_t *members, size_t n_members,
                                   uint64_t first, uint64_t n) {
    return run_meta_random_with(members, n_members, first, n, SHEAF_BACKEND_META_OVERLAP_CHEAPER,
                                NULL);
}

#endif
