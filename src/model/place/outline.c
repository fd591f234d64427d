/* Builds the graph with the architecture's own function, then tells layers apart by the weights
 * and caches that the nodes read: their tags name the layer. */
#include "model/place/outline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/tensor.h"

#include "model/arch/builder.h"
#include "model/arch/tag.h"

void sheaf__outline_free(struct sheaf__outline *o) {
    if (!o) return;
    sheaf__kv_cache_free(o->cache);
    sheaf_free(o->ctx);
    free(o->layer);
    free(o);
}

/* Layer of a leaf; -1 if it belongs to none; n_layer if it is a weight of the whole model. */
static int64_t layer_of_leaf(const struct sheaf_tensor *t, int64_t n_layer) {
    int64_t layer;
    const int kind = sheaf__tag_get(t, &layer);
    if (layer >= 0) return layer;
    return kind == SHEAF__W_OUTPUT || kind == SHEAF__W_OUTPUT_NORM || kind == SHEAF__W_TOKEN_EMBD
               ? n_layer
               : -1;
}

static int64_t layer_of(const struct sheaf__outline *o, int before, const struct sheaf_tensor *t) {
    for (int i = before - 1; i >= 0; i--) { /* operands are near */
        if (sheaf_graph_node(o->graph, i) == t) return o->layer[i];
    }
    return -1;
}

/* A node belongs where its latest operand does. A weight of the whole model that meets a layer's
 * result is the output's. A norm without its weight belongs to the one that reads it. */
static void assign_layers(struct sheaf__outline *o) {
    const int n = sheaf_graph_n_nodes(o->graph);
    for (int i = 0; i < n; i++) {
        const struct sheaf_tensor *t = sheaf_graph_node(o->graph, i);
        int64_t layer = -1;
        bool whole_model = false;
        for (int k = 0; k < SHEAF_MAX_SRC; k++) {
            if (!t->src[k]) continue;
            const bool leaf = t->src[k]->op == SHEAF_OP_NONE;
            const int64_t l =
                leaf ? layer_of_leaf(t->src[k], o->n_layer) : layer_of(o, i, t->src[k]);
            if (leaf && l == o->n_layer) {
                whole_model = true;
            } else if (l > layer) {
                layer = l;
            }
        }
        o->layer[i] = whole_model && layer >= 0 ? o->n_layer : layer;
        if (i > 0 && t->src[0] == sheaf_graph_node(o->graph, i - 1) &&
            t->src[0]->op == SHEAF_OP_RMS_NORM && o->layer[i] > o->layer[i - 1])
            o->layer[i - 1] = o->layer[i];
    }
}

static enum sheaf_status build(struct sheaf__outline *o, const struct sheaf__weights *model) {
    const size_t nodes = sheaf__builder_max_nodes(&model->hp, 1);
    o->ctx = sheaf_init((struct sheaf_init_params){.mem_size = nodes * sheaf_tensor_overhead() +
                                                               sheaf_graph_overhead_custom(nodes),
                                                   .no_alloc = true});
    o->graph = o->ctx ? sheaf_new_graph_custom(o->ctx, nodes) : NULL;
    if (!o->graph) return SHEAF_STATUS_ALLOC_FAILED;
    struct sheaf__builder b = {.model = model,
                               .hp = &model->hp,
                               .cache = o->cache,
                               .ctx = o->ctx,
                               .graph = o->graph,
                               .order = o->graph,
                               .n_tokens = o->n_tokens,
                               .n_kv = o->n_kv,
                               .n_wanted = 1};
    sheaf__build_inputs(&b);
    struct sheaf_tensor *logits = sheaf__build_model(&b, 1);
    if (logits) sheaf_set_output(logits);
    enum sheaf_status status = sheaf_build_forward_expand(o->graph, logits);
    if (status) return status;
    o->layer = calloc((size_t)sheaf_graph_n_nodes(o->graph) + 1, sizeof *o->layer);
    if (!o->layer) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the layers");
    assign_layers(o);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__outline_new(const struct sheaf__weights *model, int64_t n_tokens,
                                     int64_t n_kv, enum sheaf_type kv_type,
                                     struct sheaf__outline **out) {
    *out = NULL;
    if (n_tokens < 1 || n_kv < n_tokens || n_kv > 1 << 24)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "a graph of %" PRId64 " tokens over %" PRId64
                               " cached ones is not possible",
                               n_tokens, n_kv);
    struct sheaf__outline *o = calloc(1, sizeof *o);
    if (!o) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a graph");
    o->n_tokens = n_tokens;
    o->n_kv = n_kv;
    o->n_layer = model->hp.n_layer;
    enum sheaf_status status = sheaf__kv_cache_new(&model->hp, n_kv, kv_type, NULL, &o->cache);
    if (!status) status = build(o, model);
    if (status)
        sheaf__outline_free(o);
    else
        *out = o;
    return status;
}
