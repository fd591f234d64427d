/* Does a device of ggml compute a node, or a slice of one? It does if ggml's constructors accept
 * the node, and the device says of all nodes of ggml that it becomes that it computes them. */
#include "ggml/member_build.h"
#include "sheaf/ops.h"

bool gg_member_takes(const struct gg_member *m, const struct sheaf_tensor *node) {
    if (node->op == SHEAF_OP_NONE || sheaf_op_is_view(node->op)) return true;
    if (!gg_member_accepts(m, node)) return false;
    struct gg_member_graph g = {.m = (struct gg_member *)(uintptr_t)m};
    struct gg_build b = {.g = &g, .lib = m->lib};
    bool yes = gg_build_node(&b, node) && !b.no_memory;
    for (size_t i = 0; i < b.n_nodes && yes; i++) yes = gg_build_runs(&b, b.nodes[i]);
    gg_build_free(&b);
    gg_items_free(&g);
    return yes;
}

bool gg_member_supports(const struct gg_member *m, const struct sheaf_tensor *node) {
    const bool works = node->op != SHEAF_OP_NONE && !sheaf_op_is_view(node->op);
    return !works || (sheaf_backend_op_is_valid(node) && gg_member_takes(m, node));
}
