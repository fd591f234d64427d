/* Bytes, operations and collectives of a plan. Invariant: counts only; times of collectives come
 * from the costs. */
#include "sum.h"

#include <stdlib.h>

#include "model/place/memory.h"

enum sheaf_status plan_sum_new(int n_members, struct plan_sum *out) {
    *out = (struct plan_sum){.n_members = n_members};
    out->read = calloc((size_t)n_members, sizeof *out->read);
    out->flops = calloc((size_t)n_members, sizeof *out->flops);
    if (out->read && out->flops) return SHEAF_STATUS_SUCCESS;
    plan_sum_free(out);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to describe the plan");
}

void plan_sum_free(struct plan_sum *sum) {
    free(sum->read);
    free(sum->flops);
    sum->read = sum->flops = NULL;
}

int plan_sum_largest(const double *values, int n) {
    int best = 0;
    for (int j = 1; j < n; j++)
        if (values[j] > values[best]) best = j;
    return best;
}

static bool is_static(const struct sheaf_tensor *t) {
    if (t->view_src) t = t->view_src;
    return t->op == SHEAF_OP_NONE && !(t->flags & SHEAF_TENSOR_FLAG_INPUT);
}

static double local_elements(const struct sheaf_backend_meta_value *v, int member) {
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(v->state, v->tensor->ne, member, ne);
    return (double)ne[0] * (double)ne[1] * (double)ne[2] * (double)ne[3];
}

/* Each product reads its weights once; a gather reads the rows that it returns; views and writes
 * into the cache read next to nothing; a product of experts reads those that are used. */
static void add_read(struct plan_sum *s, const struct sheaf_backend_meta_step *step) {
    const struct sheaf_tensor *t = step->out.tensor;
    const enum sheaf_op_cost cost = sheaf_op_get_cost(t->op);
    if (cost == SHEAF_OP_COST_FREE || cost == SHEAF_OP_COST_MOVE) return;
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        const struct sheaf_backend_meta_value *v = &step->in[i];
        double used = 1;
        if (v->number < 0 || !is_static(v->tensor)) continue;
        if (t->op == SHEAF_OP_MUL_MAT_ID && i == 0 && v->tensor->ne[2] > 0) {
            used = (double)sheaf_nelements(t->src[2]) / (double)v->tensor->ne[2];
            if (used > 1) used = 1;
        }
        for (int j = 0; j < s->n_members; j++) s->read[j] += used * sheaf__memory_value(v, j);
    }
}

/* Products: two operations for each element of the first operand and each column that meets it.
 * Attention: four for each element of the result and each row of the cache. */
static void add_flops(struct plan_sum *s, const struct sheaf_backend_meta_step *step) {
    const struct sheaf_tensor *t = step->out.tensor, *a = t->src[0], *b = t->src[1];
    for (int j = 0; j < s->n_members; j++) {
        double n = 0;
        if (t->op == SHEAF_OP_MUL_MAT)
            n = 2 * local_elements(&step->in[0], j) * (double)sheaf_nelements(b) /
                (double)(b->ne[0] * a->ne[2] * a->ne[3]);
        else if (t->op == SHEAF_OP_MUL_MAT_ID)
            n = 2 * local_elements(&step->in[0], j) / (double)a->ne[2] *
                (double)sheaf_nelements(t->src[2]);
        else if (t->op == SHEAF_OP_FLASH_ATTN_EXT)
            n = 4 * local_elements(&step->out, j) * (double)b->ne[1];
        s->flops[j] += n;
    }
}

void plan_sum_add(struct plan_sum *s, const struct plan_costs *costs,
                  const struct sheaf_backend_meta_step *step) {
    if (step->kind == SHEAF_SPLIT_STEP_COLLECTIVE) {
        s->collective_s += plan_costs_collective(costs, step->collective, step->bytes);
        s->count[step->collective]++;
        s->bytes[step->collective] += step->bytes;
        return;
    }
    s->n_spans = step->span + 1;
    if (step->kind != SHEAF_SPLIT_STEP_NODE) return;
    add_read(s, step);
    add_flops(s, step);
}
