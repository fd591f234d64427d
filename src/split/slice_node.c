/* One member's node: the shape, strides, offset and parameters of its part of a step. */
#include <inttypes.h>
#include <string.h>

#include "sheaf/tensor.h"
#include "split/plan-impl.h"
#include "split/view.h"
#include "tensor/access.h"
#include "tensor/graph.h"
#include "tensor/mul_mat.h"

static void local_ne(const struct sheaf_tensor *t, struct sheaf__st st, int member,
                     int64_t ne[SHEAF_MAX_DIMS]) {
    memcpy(ne, t->ne, sizeof t->ne);
    if (st.kind == SHEAF__S) ne[st.axis] = sheaf__cut_count(st.cut, member);
}

static enum sheaf_status local_view(const struct sheaf_tensor *t, struct sheaf__st in,
                                    struct sheaf__st out, int member,
                                    const struct sheaf_tensor *source, struct sheaf_tensor *local) {
    const struct sheaf__layout from = sheaf__layout_of(t->src[0]), to = sheaf__layout_of(t);
    const int64_t offset = (int64_t)t->view_offs - (int64_t)t->src[0]->view_offs;
    int64_t at = 0;
    if (!sheaf__view_local(&from, &to, offset, in, out, member, source->nb, local->ne, local->nb,
                           &at)) {
        return sheaf_set_error(SHEAF_STATUS_FAILED,
                               "split: view '%s' has no address on member %d; please report it",
                               t->name, member);
    }
    local->view_offs = source->view_offs + (size_t)at;
    if (t->op == SHEAF_OP_VIEW) {
        const uint64_t offs = (uint64_t)at;
        memcpy(local->op_params, &offs, sizeof offs);
    }
    return SHEAF_STATUS_SUCCESS;
}

bool sheaf__split_view_moves(const struct sheaf__split_plan *plan,
                             const struct sheaf__split_step *step, const struct sheaf_tensor *t,
                             int64_t was) {
    const struct sheaf__plan_impl *impl = sheaf__plan_impl(plan);
    const struct sheaf__layout from = sheaf__layout_of(t->src[0]), to = sheaf__layout_of(t);
    const int64_t now = (int64_t)t->view_offs - (int64_t)t->src[0]->view_offs;
    return sheaf__view_moves(&from, &to, was, now, impl->st[step->in[0]], impl->st[step->out],
                             plan->n_members);
}

static enum sheaf_status tell_slice(const struct sheaf_tensor *t, const struct sheaf__cut *cut,
                                    int member, struct sheaf_tensor *local) {
    const int first = cut->begin[member];
    const bool any = first < cut->begin[member + 1];
    if (cut->extent > INT32_MAX)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "split: '%s': an indexed dimension of %" PRId64 " cannot be cut",
                               t->name, cut->extent);
    local->op_params[SHEAF_OP_PARAM_BASE] = any ? (int32_t)cut->interval[first].lo : 0;
    local->op_params[SHEAF_OP_PARAM_EXTENT] = (int32_t)cut->extent;
    return SHEAF_STATUS_SUCCESS;
}

/* Where a member has heads that divide a group, shapes do not tell which head reads which K/V
 * head. */
static enum sheaf_status tell_group(const struct sheaf_tensor *t, const struct sheaf__rule *rule,
                                    struct sheaf__st out, int member, struct sheaf_tensor *local) {
    struct sheaf__expr e;
    if (out.kind != SHEAF__S || !sheaf__expr_of(t, rule, &e, NULL)) return SHEAF_STATUS_SUCCESS;
    const int r = sheaf__expr_factor(&e, rule->group[1]);
    if (r < 0 || sheaf__expr_axis(&e, e.n_operands, r) != out.axis ||
        !sheaf__cut_divides_groups(out.cut, member, e.size[r]))
        return SHEAF_STATUS_SUCCESS;
    local->op_params[SHEAF_OP_PARAM_GROUP] = (int32_t)e.size[r];
    return tell_slice(t, out.cut, member, local);
}

/* A device chooses the kernel of a product by the number of its columns, and kernels agree to rounding: a member that
 * has some of the columns takes the kernel of the whole. */
static void tell_columns(const struct sheaf_tensor *t, const struct sheaf_tensor *local_a,
                         struct sheaf_tensor *local) {
    const int64_t whole = sheaf__mul_mat_columns(t->src[0], t);
    if (sheaf__mul_mat_columns(local_a, local) == whole) return;
    local->op_params[SHEAF_OP_PARAM_NE1] = (int32_t)(t->ne[1] < INT32_MAX ? t->ne[1] : INT32_MAX);
    local->op_params[SHEAF_OP_PARAM_COLUMNS] = (int32_t)(whole < INT32_MAX ? whole : INT32_MAX);
}

enum sheaf_status sheaf__split_local_node(const struct sheaf__split_plan *plan,
                                          const struct sheaf__split_step *step,
                                          const struct sheaf_cgraph *graph, int member,
                                          const struct sheaf_tensor *const local_src[SHEAF_MAX_SRC],
                                          struct sheaf_tensor *local) {
    const struct sheaf__plan_impl *impl = sheaf__plan_impl(plan);
    const struct sheaf_tensor *t = graph->nodes[step->node];
    const struct sheaf__rule *rule = sheaf__rule_of(t);
    const struct sheaf__st out = impl->st[step->out];
    local->op = t->op;
    memcpy(local->op_params, t->op_params, sizeof local->op_params);
    local_ne(t, out, member, local->ne);

    if (rule->base_axis || rule->extent) { /* the kernel is told which slice of an index it has */
        const struct sheaf__st st =
            rule->base_operand < 0 ? out : impl->st[step->in[rule->base_operand]];
        if (st.kind == SHEAF__S && st.axis == rule->base_axis) {
            const enum sheaf_status status = tell_slice(t, st.cut, member, local);
            if (status != SHEAF_STATUS_SUCCESS) return status;
        }
    }

    if (rule->columns) tell_columns(t, local_src[0], local);
    if (rule->parts) {
        const enum sheaf_status status = tell_group(t, rule, out, member, local);
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    if (rule->form == SHEAF__FORM_VIEW)
        return local_view(t, impl->st[step->in[0]], out, member, local_src[0], local);
    if (rule->form == SHEAF__FORM_PERMUTE) {
        for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
            const int to = t->op == SHEAF_OP_PERMUTE ? t->op_params[i] : i < 2 ? 1 - i : i;
            local->nb[to] = local_src[0]->nb[i];
        }
        local->view_offs = local_src[0]->view_offs;
        return SHEAF_STATUS_SUCCESS;
    }
    const int written = sheaf__op_written(t);
    if (written) {
        const struct sheaf_tensor *target = local_src[written - 1];
        memcpy(local->nb, target->nb, sizeof local->nb);
        local->view_offs = target->view_offs;
        return SHEAF_STATUS_SUCCESS;
    }
    local->view_offs = 0;
    sheaf__set_dense_strides(local);
    return SHEAF_STATUS_SUCCESS;
}

bool sheaf__split_contributes_zero(const struct sheaf__split_plan *plan,
                                   const struct sheaf__split_step *step,
                                   const struct sheaf_cgraph *graph, int member) {
    const struct sheaf__plan_impl *impl = sheaf__plan_impl(plan);
    if (step->kind != SHEAF_SPLIT_STEP_NODE || impl->st[step->out].kind != SHEAF__P) return false;
    for (int i = 0, n = sheaf__n_operands(graph->nodes[step->node]); i < n; i++) {
        if (step->in[i] < 0) continue;
        const struct sheaf__st st = impl->st[step->in[i]];
        if (st.kind == SHEAF__S && sheaf__cut_count(st.cut, member) == 0) return true;
    }
    return false;
}
