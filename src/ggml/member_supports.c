/* Does a device of ggml compute a node, or a slice of one? It does if ggml's constructors accept
 * the node, and the device says of all nodes of ggml that it becomes that it computes them. And how
 * much memory does it want for the result? */
#include "ggml/member_build.h"
#include "sheaf/ops.h"

/* Is there nothing to compute? */
static bool is_free(const struct sheaf_tensor *node) {
    return node->op == SHEAF_OP_NONE || sheaf_op_is_view(node->op);
}

bool gg_member_takes(const struct gg_member *m, const struct sheaf_tensor *node) {
    if (is_free(node)) return true;
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
    return is_free(node) || (sheaf_backend_op_is_valid(node) && gg_member_takes(m, node));
}

/* Ops whose results devices of ggml 0.27 want room behind, where a kernel works: CUDA puts copies of
 * K and V there, and a server of RPC may have a device that does so of these two. */
static bool may_want_room(const struct sheaf_tensor *t) {
    return (t->op == SHEAF_OP_FLASH_ATTN_EXT || t->op == SHEAF_OP_MUL_MAT_ID) && !t->view_src &&
           !sheaf_is_empty(t);
}

size_t gg_member_alloc_size(const struct gg_member *m, struct gg_buft *buft,
                            const struct sheaf_tensor *t) {
    const struct gg_tensor plain = gg_member_describe_shape(m, t);
    size_t most = m->lib->buft_get_alloc_size(buft, &plain);
    if (!may_want_room(t)) return most;
    struct gg_member_graph g = {.m = (struct gg_member *)(uintptr_t)m};
    struct gg_build b = {.g = &g, .lib = m->lib};
    const bool built = gg_build_node(&b, t);
    for (size_t i = 0; i < b.n_nodes && built; i++) {
        const struct gg_item *item = (const struct gg_item *)(const void *)b.nodes[i];
        const size_t n = item->from ? m->lib->buft_get_alloc_size(buft, &item->gg) : 0;
        most = n > most ? n : most;
    }
    gg_build_free(&b);
    gg_items_free(&g);
    return most;
}
