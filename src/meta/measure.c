/* The memory that members need to compute a graph, measured without devices: for people and tools
 * that want to know it before they load a model. */
#include <stdlib.h>

#include "alloc/gallocr.h"
#include "base/hash.h"
#include "meta/builder.h"
#include "meta/leaves.h"

enum { ALIGNMENT = 64 }; /* of the CPU's buffers */

static const char *imagined_name(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return "imagined";
}
static size_t imagined_alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return ALIGNMENT;
}
static const struct sheaf_backend_buffer_type_i imagined_iface = {
    .get_name = imagined_name,
    .get_alignment = imagined_alignment,
};

/* Slices of weights, caches and inputs: they lie elsewhere, and nothing reads them. */
static enum sheaf_status imagine_leaves(const struct sheaf__split_plan *plan, const bool *is_leaf,
                                        int member, struct meta_part *part) {
    static char elsewhere;
    for (int v = 0; v < plan->n_values; v++) {
        if (!is_leaf[v]) continue;
        const struct sheaf_tensor *leaf = plan->values[v].tensor;
        struct sheaf_tensor *t = sheaf__meta_part_tensor(part, leaf->type);
        if (!t) return SHEAF_STATUS_ALLOC_FAILED;
        sheaf_split_state_local_ne(plan->values[v].state, leaf->ne, member, t->ne);
        sheaf__set_dense_strides(t);
        t->flags = leaf->flags & ~SHEAF_BACKEND_TENSOR_FACTOR; /* which would be read (steps.c) */
        t->data = &elsewhere;
        part->value[v] = t;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Of the member's local graph. */
static enum sheaf_status measure_part(struct sheaf__split_plan *plan,
                                      const struct sheaf_cgraph *graph,
                                      const struct meta_uses *uses, int n_members, int member,
                                      sheaf_gallocr_t galloc, size_t *bytes) {
    struct meta_device imagined = {.n_members = n_members};
    struct meta_part part = {0};
    struct builder b = {.dev = &imagined,
                        .graph = graph,
                        .plan = plan,
                        .part = &part,
                        .member = member,
                        .last_read = uses->last_read};
    part.value = calloc((size_t)plan->n_values + 1, sizeof *part.value);
    enum sheaf_status st = part.value ? SHEAF_STATUS_SUCCESS : sheaf__meta_no_memory();
    if (!st) st = imagine_leaves(plan, uses->leaf, member, &part);
    if (!st) st = sheaf__meta_build_part(&b);
    if (!st) st = sheaf__gallocr_measure(galloc, &part.graph, bytes);
    sheaf__meta_part_free(&part);
    return st;
}

/* The cut states of the values; the plan has each once. Owned by the caller. */
static const struct sheaf_split_state **find_cuts(const struct sheaf__split_plan *plan, int *n) {
    const struct sheaf_split_state **cuts = calloc((size_t)plan->n_values + 1, sizeof(void *));
    *n = 0;
    for (int v = 0; cuts && v < plan->n_values; v++) {
        const struct sheaf_split_state *state = plan->values[v].state;
        int i = 0;
        while (i < *n && cuts[i] != state) i++;
        if (i == *n && state->axis <= SHEAF_SPLIT_AXIS_3) cuts[(*n)++] = state;
    }
    return cuts;
}

/* Members with the same number have local graphs of the same shape: the sizes of all slices, the
 * pieces that they consist of, and whether it is member 0, which adds what is added once. */
static uint64_t shape_of(const struct sheaf_split_state *const *cuts, int n, int member) {
    uint64_t h = sheaf__mix(1, member == 0);
    for (int i = 0; i < n; i++) {
        h = sheaf__mix(h, (uint64_t)sheaf_split_state_extent(cuts[i], member, 0));
        h = sheaf__mix(h, (uint64_t)sheaf_split_state_intervals(cuts[i], member, NULL, 0));
    }
    return h;
}

static size_t input_bytes(const struct sheaf_cgraph *graph) {
    size_t bytes = 0;
    for (int i = 0; i < graph->n_leafs; i++)
        if (graph->leafs[i]->flags & SHEAF_TENSOR_FLAG_INPUT)
            bytes += sheaf__align_up(sheaf_nbytes(graph->leafs[i]), ALIGNMENT);
    return bytes;
}

static enum sheaf_status measure_parts(struct sheaf__split_plan *plan,
                                       const struct sheaf_cgraph *graph,
                                       const struct meta_uses *uses, int n_members,
                                       sheaf_gallocr_t galloc, size_t *bytes) {
    int n_cuts = 0;
    const struct sheaf_split_state **cuts = find_cuts(plan, &n_cuts);
    uint64_t *shape = calloc((size_t)n_members, sizeof *shape);
    enum sheaf_status st = cuts && shape ? SHEAF_STATUS_SUCCESS : sheaf__meta_no_memory();
    for (int j = 0; j < n_members && !st; j++) {
        shape[j] = shape_of(cuts, n_cuts, j);
        int like = j - 1;
        while (like >= 0 && shape[like] != shape[j]) like--;
        if (like >= 0)
            bytes[j] = bytes[like];
        else if (!(st = measure_part(plan, graph, uses, n_members, j, galloc, &bytes[j])))
            bytes[j] += input_bytes(graph);
    }
    free((void *)cuts);
    free(shape);
    return st;
}

enum sheaf_status
sheaf_backend_meta_measure_graph(const struct sheaf_cgraph *graph, int n_members,
                                 sheaf_backend_meta_get_split_state_fn get_split_state,
                                 const void *user, size_t *bytes) {
    if (!graph || n_members < 1 || !get_split_state || !bytes)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "measure graph: it takes a graph, at least one member, a function "
                               "that gives split states, and room for the result");
    struct meta_leaves leaves = {.graph = graph};
    struct sheaf__split_plan *plan = NULL;
    struct meta_uses uses = {0};
    struct sheaf_backend_buffer_type buft = {.iface = &imagined_iface};
    sheaf_gallocr_t galloc = sheaf_gallocr_new(&buft);
    enum sheaf_status st = galloc
                               ? sheaf__meta_ask_leaves(&leaves, n_members, get_split_state, user)
                               : SHEAF_STATUS_ALLOC_FAILED;
    if (!st) st = sheaf__meta_plan_leaves(&leaves, n_members, &plan);
    if (!st) st = sheaf__meta_find_uses(plan, &uses);
    if (!st) st = measure_parts(plan, graph, &uses, n_members, galloc, bytes);
    sheaf__meta_free_uses(&uses);
    sheaf__split_plan_free(plan);
    sheaf__meta_free_leaves(&leaves);
    sheaf_gallocr_free(galloc);
    return st;
}
