/* See leaves.h. Inputs are mirrored; the states of other leaves are what the user's function
 * gives. */
#include "meta/leaves.h"

#include <stdlib.h>

#include "base/settings.h"

enum sheaf_status sheaf__meta_ask_leaves(struct meta_leaves *l, int n_members,
                                         sheaf_backend_meta_get_split_state_fn get_split_state,
                                         const void *user) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    l->state = calloc((size_t)l->graph->n_leafs + 1, sizeof *l->state);
    if (!l->state)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "describe plan: out of memory");
    for (int i = 0; i < l->graph->n_leafs && !st; i++) {
        if (!(l->graph->leafs[i]->flags & SHEAF_TENSOR_FLAG_INPUT)) {
            st = get_split_state(l->graph->leafs[i], user, &l->state[i]);
        } else if (!(l->state[i] = sheaf_split_state_mirrored(n_members))) {
            st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "describe plan: out of memory");
        }
    }
    return st;
}

const struct sheaf_split_state *sheaf__meta_leaf_state(const struct sheaf_tensor *leaf,
                                                       void *leaves) {
    struct meta_leaves *l = leaves;
    for (int k = 0; k < l->graph->n_leafs; k++) {
        const int i = (l->next + k) % l->graph->n_leafs;
        if (l->graph->leafs[i] != leaf) continue;
        l->next = i;
        return l->state[i];
    }
    return NULL;
}

enum sheaf_status sheaf__meta_plan_leaves(struct meta_leaves *l, int n_members,
                                          struct sheaf__split_plan **out) {
    return sheaf__split_plan_new_with(l->graph, n_members, sheaf__meta_leaf_state, l, NULL,
                                      sheaf__whole_sums(), out);
}

void sheaf__meta_free_leaves(struct meta_leaves *l) {
    for (int i = 0; l->state && i < l->graph->n_leafs; i++) sheaf_split_state_free(l->state[i]);
    free(l->state);
}
