/* Views whose offsets are numbers of a compute: caches that are written at another place for every
 * token.
 *
 * Invariant: a program's parts are right for the offsets in p->views. Whether it can be made right
 * for others follows from its plan alone, so that all ranks keep it or make another one
 * together. */
#include <stdlib.h>

#include "meta/builder.h"

/* Views of results do not: started collectives may work on other parts of these. */
bool sheaf__meta_is_moving(const struct sheaf_tensor *node) {
    return node->op == SHEAF_OP_VIEW && node->flags & SHEAF_BACKEND_META_TENSOR_MOVES &&
           sheaf__memory_owner(node)->op == SHEAF_OP_NONE;
}

static int64_t offset_of(const struct sheaf_tensor *view) {
    return (int64_t)view->view_offs - (int64_t)view->src[0]->view_offs;
}

/* The node of a step that makes a moving view, else NULL. */
static const struct sheaf_tensor *view_of_step(const struct sheaf__split_step *step,
                                               const struct sheaf_cgraph *graph) {
    const struct sheaf_tensor *node =
        step->kind == SHEAF_SPLIT_STEP_NODE ? graph->nodes[step->node] : NULL;
    return node && sheaf__meta_is_moving(node) ? node : NULL;
}

enum sheaf_status sheaf__meta_find_views(struct meta_program *p, const struct sheaf_cgraph *graph) {
    int n = 0;
    for (int s = 0; s < p->plan->n_steps; s++) n += view_of_step(&p->plan->steps[s], graph) != NULL;
    if (!n) return SHEAF_STATUS_SUCCESS;
    p->views = calloc((size_t)n, sizeof *p->views);
    if (!p->views) return sheaf__meta_no_memory();
    for (int s = 0; s < p->plan->n_steps; s++) {
        const struct sheaf_tensor *view = view_of_step(&p->plan->steps[s], graph);
        if (view) p->views[p->n_views++] = (struct meta_view){s, offset_of(view), false};
    }
    return SHEAF_STATUS_SUCCESS;
}

static const struct sheaf_tensor *now(const struct meta_program *p, int view,
                                      const struct sheaf_cgraph *graph) {
    return graph->nodes[p->plan->steps[p->views[view].step].node];
}

bool sheaf__meta_can_move(const struct meta_program *p, const struct sheaf_cgraph *graph) {
    for (int i = 0; i < p->n_views; i++) {
        const struct meta_view *v = &p->views[i];
        const struct sheaf_tensor *t = now(p, i, graph);
        if (offset_of(t) != v->offset &&
            !sheaf__split_view_moves(p->plan, &p->plan->steps[v->step], t, v->offset))
            return false;
    }
    return true;
}

/* The offset of a member's part of the view, from its own operand. */
static enum sheaf_status move_view(const struct meta_program *p, int member, struct meta_moving *m,
                                   const struct sheaf_cgraph *graph) {
    const struct sheaf__split_step *step = &p->plan->steps[p->views[m->view].step];
    const struct sheaf_tensor *src[SHEAF_MAX_SRC] = {m->of};
    struct sheaf_tensor local = *m->tensor;
    const enum sheaf_status st = sheaf__split_local_node(p->plan, step, graph, member, src, &local);
    if (st) return st;
    m->offset = local.view_offs - m->of->view_offs;
    memcpy(m->tensor->op_params, local.op_params, sizeof local.op_params);
    return st;
}

static enum sheaf_status move_part(const struct meta_program *p, struct meta_part *part, int member,
                                   const struct sheaf_cgraph *graph) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < part->n_moving && !st; i++) {
        struct meta_moving *m = &part->moving[i];
        if (m->view >= 0 && p->views[m->view].moved) st = move_view(p, member, m, graph);
        const size_t at = m->of->view_offs + m->offset;
        if (st || m->tensor->view_offs == at) continue;
        const size_t before = m->tensor->view_offs;
        m->tensor->view_offs = at;
        if (m->tensor->view_src->buffer) st = sheaf_backend_view_init(m->tensor);
        if (st) m->tensor->view_offs = before;
    }
    sheaf__meta_renew_spans(part);
    return st;
}

enum sheaf_status sheaf__meta_move(const struct meta_device *dev, struct meta_program *p,
                                   const struct sheaf_cgraph *graph) {
    bool moved = false;
    for (int i = 0; i < p->n_views; i++) {
        struct meta_view *v = &p->views[i];
        v->moved = p->views_unsure || offset_of(now(p, i, graph)) != v->offset;
        moved = moved || v->moved;
    }
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int m = 0; m < dev->n_local && moved && !st; m++)
        st = move_part(p, &p->parts[m], dev->local[m], graph);
    p->views_unsure = st != SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < p->n_views && !st; i++) p->views[i].offset = offset_of(now(p, i, graph));
    return st;
}
