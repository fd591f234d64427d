/* sheaf-info --plan --explain TENSOR: which rows of states the planner considered for the node that
 * computes a tensor. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "plan.h"

enum { N_NEAR = 3, TEXT = 16 << 10 };

struct near {
    const char *name[N_NEAR];
    int distance[N_NEAR], n;
};

/* Keeps the nearest names, each once. */
static void take_name(struct near *near, const char *name, const char *wanted) {
    int distance = sheaf__word_distance(name, wanted), at = near->n;
    if (!*name) return;
    for (int i = 0; i < near->n; i++)
        if (!strcmp(near->name[i], name)) return;
    while (at > 0 && near->distance[at - 1] > distance) at--;
    if (at == N_NEAR) return;
    if (near->n < N_NEAR) near->n++;
    for (int i = near->n - 1; i > at; i--) {
        near->name[i] = near->name[i - 1];
        near->distance[i] = near->distance[i - 1];
    }
    near->name[at] = name;
    near->distance[at] = distance;
}

static enum sheaf_status not_a_node(const struct sheaf_cgraph *graph, const char *wanted) {
    struct near near = {.n = 0};
    char names[N_NEAR * (SHEAF_MAX_NAME + 4)];
    struct sheaf__text t = {names, sizeof names, 0};
    for (int i = 0; i < sheaf_graph_n_nodes(graph); i++) {
        const struct sheaf_tensor *node = sheaf_graph_node(graph, i);
        take_name(&near, node->name, wanted);
        for (int k = 0; k < SHEAF_MAX_SRC && node->src[k]; k++) {
            const struct sheaf_tensor *leaf = node->src[k];
            if (leaf->op != SHEAF_OP_NONE || leaf->view_src || strcmp(leaf->name, wanted)) continue;
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "--explain: '%s' is not computed; --tensors prints its cut. Ask "
                                   "for node %d, %s '%s', which reads it",
                                   wanted, i, sheaf_op_desc(node), node->name);
        }
    }
    *names = 0;
    for (int i = 0; i < near.n; i++)
        sheaf__put(&t, "%s'%s'", !i ? "" : i + 1 < near.n ? ", " : " or ", near.name[i]);
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "--explain: the graph has no tensor '%.80s'; did you mean %s?", wanted,
                           names);
}

enum sheaf_status plan_explain(const struct sheaf_cgraph *graph, struct sheaf__policy *policy,
                               const char *name) {
    char *text = malloc(TEXT);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    bool found = false;
    if (!text) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to explain the plan");
    const bool number = *name && name[strspn(name, "0123456789")] == 0;
    for (int i = 0; i < sheaf_graph_n_nodes(graph) && !st; i++) {
        const struct sheaf_tensor *node = sheaf_graph_node(graph, i);
        if (number ? i != atoi(name) : strcmp(node->name, name) != 0 || node->op == SHEAF_OP_NONE)
            continue;
        found = true;
        st = sheaf_backend_meta_explain_node(graph, sheaf__policy_n_members(policy),
                                             sheaf__policy_get_state, policy, i, text, TEXT);
        if (!st) printf("\n%s", text);
    }
    free(text);
    return st || found ? st : not_a_node(graph, name);
}
