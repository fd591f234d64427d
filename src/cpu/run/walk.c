/* A team walks a graph.
 *
 * The whole team walks; between nodes there is a barrier. Small nodes are done by the calling
 * thread alone, and a run of them costs one barrier. Every member decides the same from the nodes
 * alone, so they never disagree about a barrier. The work buffer grows to the largest need and is
 * kept: a graph no larger than an earlier one allocates nothing.
 *
 * Stopping: a member that fails (or sees the abort callback say so) notes the number of the current
 * phase, phases being separated by barriers. All members look after a barrier whether a phase up to
 * the one just ended was noted; a note made later, in the next phase, cannot make them disagree. */
#include "cpu/run/walk.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/matmul/repacked.h"

/* ---- the team's part ---- */

static bool is_small(const struct sheaf_tensor *node, const struct sheaf__cpu_op *op) {
    const struct sheaf_tensor *t = op->measure > 0 ? node->src[op->measure - 1] : node;
    return !op->heavy && sheaf_nelements(t) <= SHEAF__CPU_SMALL;
}

static void stop(struct cpu_backend *b, int ith, int phase, enum sheaf_status status,
                 const char *text) {
    struct cpu_failure *f = &b->failure;
    pthread_mutex_lock(&f->lock);
    if (f->status == SHEAF_STATUS_SUCCESS || ith < f->ith) {
        f->status = status;
        f->ith = ith;
        snprintf(f->text, sizeof f->text, "%s", text);
    }
    if (phase < atomic_load(&b->stop_phase)) atomic_store(&b->stop_phase, phase);
    pthread_mutex_unlock(&f->lock);
}

static bool run_node(struct cpu_backend *b, struct sheaf_tensor *node, int ith, int nth, int phase,
                     struct sheaf__cpu_sync *sync) {
    const struct sheaf__cpu_op *op = sheaf__cpu_ops[node->op];
    sheaf__cpu_op_fn fn = b->reference && op->reference ? op->reference : op->fn;
    char *work = op->product || !b->work ? b->work : b->work + b->products;
    const enum sheaf_status status = fn(node, ith, nth, sync, work);
    /* columns that a product has packed are good until their source changes */
    if (ith == 0 && sync && sync->packed && sheaf__overlaps(node, sync->packed->src[1]))
        sync->packed = NULL;
    if (status == SHEAF_STATUS_SUCCESS) return true;
    stop(b, ith, phase, status, sheaf_last_error());
    return false;
}

static bool aborted(struct cpu_backend *b, int phase) {
    if (!b->abort || !b->abort(b->abort_data)) return false;
    stop(b, 0, phase, SHEAF_STATUS_ABORTED, "cpu: the compute was stopped by its abort callback");
    return true;
}

static void walk_nodes(struct cpu_backend *b, int ith, int nth, struct sheaf__cpu_sync *sync) {
    const struct sheaf_cgraph *graph = b->graph;
    int phase = 0;
    bool alone = false; /* the caller has worked alone since the last barrier */
    bool stopped = false;
    for (int i = 0; i < graph->n_nodes; i++) {
        struct sheaf_tensor *node = graph->nodes[i];
        const struct sheaf__cpu_op *op = sheaf__cpu_ops[node->op];
        if (!op->fn || sheaf_is_empty(node)) continue;
        if (nth == 1 || is_small(node, op)) {
            alone = true;
            if (ith != 0 || stopped) continue;
            stopped = aborted(b, phase) || !run_node(b, node, 0, 1, phase, sync);
            if (b->profile) sheaf__cpu_profile_node(b->profile, node);
            continue;
        }
        if (alone) {
            sheaf__cpu_barrier(sync, nth);
            if (atomic_load(&b->stop_phase) <= phase) return;
            phase++;
            alone = false;
        }
        /* A thread that stops takes part to the end of the node, which may have barriers inside. */
        if (ith == 0) aborted(b, phase);
        run_node(b, node, ith, nth, phase, sync);
        sheaf__cpu_barrier(sync, nth);
        if (ith == 0 && b->profile) sheaf__cpu_profile_node(b->profile, node);
        if (atomic_load(&b->stop_phase) <= phase) return;
        phase++;
    }
}

static void walk(void *user, int ith, int nth, struct sheaf__cpu_sync *sync) {
    walk_nodes(user, ith, nth, sync);
    if (ith == 0 && sync) sync->packed = NULL; /* leaves may change before the next graph */
}

/* ---- the caller's part ---- */

static enum sheaf_status check_node(const struct cpu_backend *b, const struct sheaf_tensor *node) {
    if (!sheaf_backend_op_is_valid(node)) {
        const struct sheaf_tensor *a = node->src[0], *c = node->src[1];
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "%s: cannot compute %s '%s' (%s from %s%s%s): types or strides that "
                               "this device does not handle",
                               b->device->name, sheaf_op_name(node->op), node->name,
                               sheaf_type_name(node->type), a ? sheaf_type_name(a->type) : "-",
                               c ? ", " : "", c ? sheaf_type_name(c->type) : "");
    }
    if (!node->data) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: '%s' (%s) has no memory; allocate the graph", b->device->name,
                               node->name, sheaf_op_name(node->op));
    }
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        const struct sheaf_tensor *s = node->src[i];
        if (s && !s->data && !sheaf_is_empty(s)) {
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s: '%s', operand %d of '%s' (%s), has no memory; allocate the "
                                   "graph",
                                   b->device->name, s->name, i, node->name,
                                   sheaf_op_name(node->op));
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- weights in the kernels' order ---- */

/* By kernels, which read both orders. */
static bool is_product(const struct cpu_backend *b, const struct sheaf_tensor *node) {
    return sheaf__cpu_ops[node->op]->product && !b->reference;
}
/* Does a node read its weight as well repacked? What else it reads is of other types. */
static bool reads_repacked(const struct cpu_backend *b, const struct sheaf_tensor *node) {
    return (is_product(b, node) || node->op == SHEAF_OP_GET_ROWS) &&
           sheaf__cpu_is_of_units(node->src[0]);
}

static void note_repacked(const struct cpu_backend *b, const struct sheaf_tensor *node,
                          struct cpu_demand *demand) {
    for (int i = 0; i < SHEAF_MAX_SRC; i++) { /* what a node writes over is an operand, too */
        const struct sheaf_tensor *t = node->src[i];
        if (!t || !sheaf__cpu_may_be_repacked(t)) continue;
        const enum sheaf__cpu_order order = sheaf__cpu_order_of(t);
        if (!reads_repacked(b, node))
            demand->as_written = demand->as_written || order != SHEAF__ORDER_WRITTEN;
        else if (is_product(b, node) && !t->view_src)
            demand->repacks = demand->repacks || order == SHEAF__ORDER_OPEN;
    }
}

static enum sheaf_status keep_as_written(const struct cpu_backend *b,
                                         const struct sheaf_cgraph *graph) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int n = 0; n < graph->n_nodes && !status; n++) {
        const struct sheaf_tensor *node = graph->nodes[n];
        if (!sheaf__cpu_ops[node->op]->fn || reads_repacked(b, node)) continue;
        for (int i = 0; i < SHEAF_MAX_SRC && !status; i++)
            if (node->src[i]) status = sheaf__cpu_keep_as_written(node->src[i]);
    }
    return status;
}

struct repacking {
    const struct sheaf_tensor **weights;
    int n;
};

static void repack(void *user, int ith, int nth, struct sheaf__cpu_sync *sync) {
    const struct repacking *r = user;
    (void)sync;
    for (int i = 0; i < r->n; i++) sheaf__cpu_repack_share(r->weights[i], ith, nth);
}

/* Those of products; without memory for a list they stay as they are. */
static void repack_weights(struct cpu_backend *b, const struct sheaf_cgraph *graph) {
    struct repacking r = {malloc((size_t)graph->n_nodes * sizeof *r.weights), 0};
    for (int i = 0; i < graph->n_nodes && r.weights; i++) {
        const struct sheaf_tensor *node = graph->nodes[i];
        if (is_product(b, node) && sheaf__cpu_repack_begin(node->src[0]))
            r.weights[r.n++] = node->src[0];
    }
    if (r.n > 0) sheaf__cpu_team_run(b->team, repack, &r);
    free(r.weights);
}

enum sheaf_status sheaf__cpu_check_graph(const struct cpu_backend *b,
                                         const struct sheaf_cgraph *graph, int nth,
                                         struct cpu_demand *demand) {
    *demand = (struct cpu_demand){0};
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct sheaf_tensor *node = graph->nodes[i];
        if ((unsigned)node->op < SHEAF_OP_COUNT) {
            if (!sheaf__cpu_ops[node->op]->fn || sheaf_is_empty(node)) continue;
        }
        enum sheaf_status status = check_node(b, node);
        if (status != SHEAF_STATUS_SUCCESS) return status;
        const struct sheaf__cpu_op *op = sheaf__cpu_ops[node->op];
        size_t n = op->work_size ? op->work_size(node, nth) : 0;
        size_t *most = op->product ? &demand->products : &demand->work;
        if (n > *most) *most = n;
        demand->team = demand->team || !is_small(node, op);
        note_repacked(b, node, demand);
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status grow_work(struct cpu_backend *b, size_t need) {
    if (need <= b->work_size) return SHEAF_STATUS_SUCCESS;
    free(b->work);
    b->work_size = 0;
    b->work = aligned_alloc(64, sheaf__align_up(need, 64));
    if (!b->work) {
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for %zu bytes of work",
                               b->device->name, need);
    }
    b->work_size = need;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cpu_run_checked(struct cpu_backend *b, const struct sheaf_cgraph *graph,
                                         struct cpu_demand *demand) {
    b->products = sheaf__align_up(demand->products, 64);
    enum sheaf_status status = grow_work(b, b->products + demand->work);
    if (!status && demand->as_written) status = keep_as_written(b, graph);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    if (demand->repacks) repack_weights(b, graph);
    demand->repacks = false; /* a plan's weights are settled */
    b->graph = graph;
    b->failure.status = SHEAF_STATUS_SUCCESS;
    atomic_store(&b->stop_phase, INT_MAX);
    if (b->profile) sheaf__cpu_profile_start(b->profile);
    if (demand->team) {
        sheaf__cpu_team_run(b->team, walk, b);
    } else {
        walk(b, 0, 1, NULL); /* no worker needs to wake */
    }
    if (b->failure.status == SHEAF_STATUS_SUCCESS) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(b->failure.status, "%s", b->failure.text);
}
