/* The fingerprint of a plan: what every rank must agree on before it exchanges data. No addresses
 * and no names go in, so that it is the same in every process. */
#include "base/hash.h"
#include "split/plan-impl.h"
#include "tensor/graph.h"

static uint64_t mix_tensor(uint64_t h, const struct sheaf_tensor *t) {
    h = sheaf__mix(h,
                   (uint64_t)t->type | (uint64_t)t->op << 16 | (uint64_t)(uint32_t)t->flags << 32);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        h = sheaf__mix(h, (uint64_t)t->ne[i]);
        h = sheaf__mix(h, (uint64_t)t->nb[i]);
    }
    for (int i = 0; i < SHEAF_MAX_OP_PARAMS; i += 2)
        h = sheaf__mix(h,
                       (uint32_t)t->op_params[i] | (uint64_t)(uint32_t)t->op_params[i + 1] << 32);
    return sheaf__mix(sheaf__mix(h, t->view_offs), (uint64_t)sheaf__op_written(t));
}

uint64_t sheaf__split_plan_fingerprint(const struct sheaf__split_plan *plan,
                                       const struct sheaf_cgraph *graph) {
    const struct sheaf__plan_impl *impl = sheaf__plan_impl(plan);
    uint64_t h = sheaf__mix(0x73686561662d3031u, (uint64_t)plan->n_members);
    for (int i = 0; i < graph->n_nodes; i++) h = mix_tensor(h, graph->nodes[i]);
    for (int v = 0; v < plan->n_values; v++) {
        const struct sheaf_tensor *t = plan->values[v].tensor;
        h = sheaf__mix(h, (uint64_t)impl->st[v].kind << 8 | (uint64_t)impl->st[v].axis);
        if (impl->st[v].cut) h = sheaf__mix(h, impl->st[v].cut->hash);
        if (t->op == SHEAF_OP_NONE) h = mix_tensor(h, t);
    }
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step *step = &plan->steps[s];
        h = sheaf__mix(h, (uint64_t)step->kind << 40 | (uint64_t)step->collective << 48 |
                              (uint64_t)(uint32_t)step->node);
        h = sheaf__mix(h, (uint64_t)(uint32_t)step->out << 32 | (uint64_t)step->add_once << 8 |
                              (uint64_t)step->once);
        int n = SHEAF_MAX_SRC;
        while (n > 0 && step->in[n - 1] < 0) n--;
        for (int i = 0; i < n; i++) h = sheaf__mix(h, (uint64_t)(uint32_t)step->in[i] + 1);
    }
    return h;
}
