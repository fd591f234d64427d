/* Asks for each node of an outline of the graph. */
#include "model/place/runnable.h"

#include "sheaf/world.h"

#include "base/text.h"
#include "model/place/outline.h"

enum { N_TOKENS = 2, N_KV = 32 }; /* of the outline: what devices compute does not depend on them */

/* The weight, cache or other operand whose type a reader would look at. */
static const struct sheaf_tensor *operand_of(const struct sheaf_tensor *node) {
    for (int i = 0; i < SHEAF_MAX_SRC; i++)
        if (node->src[i] && node->src[i]->op == SHEAF_OP_NONE) return node->src[i];
    return node->src[0];
}

static enum sheaf_status refuse(const struct sheaf__weights *model, const struct sheaf_tensor *node,
                                const sheaf_backend_dev_t *members, int n_members) {
    char devices[256] = "";
    struct sheaf__text text = {devices, sizeof devices, 0};
    const struct sheaf_tensor *operand = operand_of(node);
    for (int j = 0; j < n_members; j++) {
        char name[96];
        sheaf_world_device_name(members[j], name, sizeof name);
        sheaf__put(&text, "%s%s", j ? ", " : "", name);
    }
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "%s: %s '%s' with '%s' of type %s is not computed by every device here; "
                           "asked: %s. Leave devices out with --devices, or convert the model",
                           sheaf_gguf_path(model->gguf), sheaf_op_desc(node), node->name,
                           operand ? operand->name : "",
                           sheaf_type_name(operand ? operand->type : node->type), devices);
}

enum sheaf_status sheaf__runnable_check(const struct sheaf__weights *model, sheaf_backend_dev_t dev,
                                        const sheaf_backend_dev_t *members, int n_members,
                                        enum sheaf_type kv_type) {
    struct sheaf__outline *o = NULL;
    enum sheaf_status status = sheaf__outline_new(model, N_TOKENS, N_KV, kv_type, &o);
    for (int i = 0; !status && i < sheaf_graph_n_nodes(o->graph); i++) {
        const struct sheaf_tensor *node = sheaf_graph_node(o->graph, i);
        if (!sheaf_backend_dev_supports_op(dev, node))
            status = refuse(model, node, members, n_members);
    }
    sheaf__outline_free(o);
    return status;
}
