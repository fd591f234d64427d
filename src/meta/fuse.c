/* All-reduces whose sums go on into the next nodes row by row: in a transformer the residual and
 * the norm, in cache and while the rest of the sum is under way.
 *
 * The nodes are a chain of the member's device (backend/chain.h). They leave the span that they were
 * in, and are computed as a span of their own where the chain cannot be used: in check mode, or
 * when the allocator has put rows where others are still needed. */
#include "backend/chain.h"
#include "comm/diag/events.h"
#include "comm/transport/epilogue.h"
#include "meta/backend.h"

const struct sheaf__chain_i *sheaf__meta_chain_of(sheaf_backend_dev_t device) {
    sheaf_backend_reg_t reg = sheaf_backend_dev_backend_reg(device);
    const void *found = reg ? sheaf_backend_reg_get_proc_address(reg, SHEAF__CHAIN_PROC) : NULL;
    return found;
}

static const struct sheaf_tensor *memory_of(const struct sheaf_tensor *t) {
    return t->view_src ? t->view_src : t;
}

/* Otherwise it has nothing to wait for: the collective may run beside it (overlap.c). */
static bool reads(const struct sheaf_tensor *node, const struct sheaf_tensor *sum) {
    for (int i = 0; i < SHEAF_MAX_SRC; i++)
        if (node->src[i] && memory_of(node->src[i]) == memory_of(sum)) return true;
    return false;
}

void sheaf__meta_fuse(struct meta_part *part, sheaf_backend_dev_t device) {
    const struct sheaf__chain_i *chain = sheaf__meta_chain_of(device);
    if (!chain) return;
    int kept = 0;
    for (int i = 0; i < part->n_instrs; i++) {
        struct meta_instr *span = &part->instrs[i], *sum = kept ? &part->instrs[kept - 1] : NULL;
        if (span->kind == INSTR_SPAN && sum && sum->kind == INSTR_COLLECTIVE &&
            sum->call.kind == SHEAF_COMM_ALL_REDUCE) {
            struct sheaf_tensor **nodes = part->graph.nodes + span->first;
            const int n = reads(nodes[0], sum->out)
                              ? chain->length(sum->out, nodes, span->last - span->first)
                              : 0;
            sum->first = span->first;
            sum->last = span->first += n;
            if (span->first == span->last) continue; /* nothing is left of it */
        }
        part->instrs[kept++] = *span;
    }
    part->n_instrs = kept;
}

/* ---- running ---- */

struct following {
    struct meta_member *me;
    const struct meta_instr *sum;
    int64_t rows; /* done */
};

static enum sheaf_status follow(void *user, size_t end) {
    struct following *f = user;
    const struct sheaf_cgraph *nodes = &f->sum->span;
    const int64_t first = f->rows, last = (int64_t)end / f->sum->out->ne[0];
    if (last == first) return SHEAF_STATUS_SUCCESS;
    f->rows = last;
    return f->me->chain->rows(f->me->device_backend, nodes->nodes, nodes->n_nodes, first, last);
}

bool sheaf__meta_can_follow(const struct meta_member *me, const struct meta_instr *sum) {
    const struct sheaf_cgraph *nodes = &sum->span;
    return nodes->n_nodes && !me->backend->check && !me->backend->devcomm && !me->staged &&
           me->chain->begin(me->device_backend, sum->out, nodes->nodes, nodes->n_nodes);
}

enum sheaf_status sheaf__meta_reduce_and_follow(struct meta_member *me,
                                                const struct meta_instr *sum) {
    const struct meta_device *dev = me->backend->dev;
    struct following f = {.me = me, .sum = sum};
    struct sheaf__epilogue then = {.ready = follow, .user = &f};
    const enum sheaf_status st =
        sheaf__comm_all_reduce_then(dev->comm, dev->local[me->local], sum->out->data,
                                    (size_t)sheaf_nelements(sum->out), &sum->call.what, &then);
    me->compute_ns += then.took_ns;
    me->n_fused++;
    sheaf__trace(SHEAF__TRACE_COMPUTE, sum->span.nodes[sum->span.n_nodes - 1]->name,
                 sheaf__time_ns() - then.took_ns, then.took_ns);
    return st;
}
