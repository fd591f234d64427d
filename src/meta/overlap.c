/* Collectives that run while the members compute: which, how early they start, and which
 * instruction has to wait for them.
 *
 * How early is part of the plan, the same on every rank. Each member decides on its own whether a
 * collective is started or run, and where it waits: that follows from its tensors' addresses. */
#include "meta/overlap.h"
#include "alloc/gallocr.h"

/* A shorter collective ends before a sleeping thread has woken up. */
static const int64_t LEAST_NS = 200000;

static int64_t least_bytes(const struct meta_device *dev) {
    struct sheaf_comm_level hosts;
    if (dev->overlap == SHEAF_BACKEND_META_OVERLAP_ALWAYS) return 1;
    if (dev->overlap == SHEAF_BACKEND_META_OVERLAP_NEVER) return INT64_MAX;
    sheaf_comm_get_level(dev->comm, SHEAF_COMM_LEVEL_HOSTS, &hosts);
    if (hosts.link.byte_ps < 1)
        return INT64_MAX; /* one host: the cores that would compute move the bytes */
    return LEAST_NS * 1000 / hosts.link.byte_ps;
}

/* ---- plans ---- */

/* Does the step write into memory that had a value before? Then the order counts. */
static bool writes(const struct sheaf__split_plan *plan, const struct sheaf__split_step *step,
                   const struct sheaf_cgraph *graph, const struct sheaf_tensor *owner) {
    const struct sheaf_tensor *target = plan->values[step->out].tensor;
    if (step->kind == SHEAF_SPLIT_STEP_NODE) {
        const struct sheaf_tensor *node = graph->nodes[step->node];
        if (!sheaf__op_written(node)) return false;
        target = sheaf__op_target(node);
    }
    return sheaf__memory_owner(target) == owner;
}

void sheaf__meta_hoist(const struct meta_device *dev, struct sheaf__split_plan *plan,
                       const struct sheaf_cgraph *graph) {
    const int64_t least = least_bytes(dev);
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step step = plan->steps[s];
        if (!sheaf__step_is(&step, SHEAF_COMM_ALL_REDUCE) || step.bytes < least) continue;
        const struct sheaf_tensor *owner = sheaf__memory_owner(plan->values[step.in[0]].tensor);
        int to = s;
        while (to > 0 && plan->steps[to - 1].out != step.in[0] &&
               !writes(plan, &plan->steps[to - 1], graph, owner))
            to--;
        if (to == 0) continue; /* of a leaf */
        memmove(&plan->steps[to + 1], &plan->steps[to], (size_t)(s - to) * sizeof step);
        plan->steps[to] = step;
    }
}

/* ---- programs ---- */

static bool meets(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    return a && b && sheaf__overlaps(a, b);
}

/* Does the instruction read or write memory of the collective? */
static bool touches(const struct meta_instr *instr, const struct meta_instr *collective) {
    const struct sheaf_tensor *const mine[] = {collective->in, collective->out};
    for (int k = 0; k < 2; k++) {
        if (meets(mine[k], instr->in) || meets(mine[k], instr->out)) return true;
        for (int i = 0; i < instr->span.n_nodes; i++) {
            const struct sheaf_tensor *node = instr->span.nodes[i];
            if (node->op == SHEAF_OP_NONE || sheaf_op_is_view(node->op)) continue;
            if (meets(mine[k], node)) return true;
            for (int j = 0; j < SHEAF_MAX_SRC; j++)
                if (meets(mine[k], node->src[j])) return true;
        }
    }
    return false;
}

/* Memory of inputs moves from compute to compute. */
static bool stays(sheaf_gallocr_t galloc, const struct sheaf_tensor *t) {
    return !t || sheaf__gallocr_owns(galloc, sheaf__memory_owner(t)->buffer);
}

void sheaf__meta_place_waits(const struct meta_device *dev, struct meta_part *part,
                             sheaf_gallocr_t galloc) {
    const int64_t least = least_bytes(dev);
    for (int i = 0; i < part->n_instrs; i++) {
        part->instrs[i].started = false;
        part->instrs[i].after = NULL;
    }
    for (int i = 0; i < part->n_instrs; i++) {
        struct meta_instr *c = &part->instrs[i];
        if (c->kind != INSTR_COLLECTIVE || (int64_t)sheaf_nbytes(c->out) < least ||
            !stays(galloc, c->in) || !stays(galloc, c->out))
            continue;
        int j = i + 1;
        bool spans = false;
        while (j < part->n_instrs && !touches(&part->instrs[j], c))
            spans = part->instrs[j++].kind == INSTR_SPAN || spans;
        if (!spans) continue; /* no work to overlap with */
        c->started = true;
        /* collectives end in order: what waits for this one waits for those before it */
        if (j < part->n_instrs) part->instrs[j].after = c;
    }
}
