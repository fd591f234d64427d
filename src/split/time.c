/* An estimate of what a plan's messages and memory traffic cost, for choosing between two plans of
 * one graph. Products and attention are left out: both plans do them alike. */
#include "core/internal.h"
#include "split/plan-impl.h"

static int64_t local_bytes(const struct sheaf__plan_impl *impl, int value, int member) {
    const struct sheaf_tensor *t = impl->plan.values[value].tensor;
    const struct sheaf__st st = impl->st[value];
    const int64_t bytes = (int64_t)sheaf_row_size(t->type, t->ne[0]) * sheaf_nrows(t);
    if (st.lie != SHEAF__S) return bytes;
    return st.cut->extent ? bytes / st.cut->extent * sheaf__cut_count(st.cut, member) : 0;
}

/* Bound by memory, and run on rows: what differs between the plans. */
static bool is_light(enum sheaf_op op) {
    return !sheaf__op_is_view(op) && op != SHEAF_OP_MUL_MAT && op != SHEAF_OP_MUL_MAT_ID &&
           op != SHEAF_OP_FLASH_ATTN_EXT && op != SHEAF_OP_SET_ROWS && op != SHEAF_OP_GET_ROWS &&
           op != SHEAF_OP_CPY;
}

static int64_t moved(const struct sheaf__plan_impl *impl, const struct sheaf__split_step *step,
                     int member) {
    int64_t bytes = local_bytes(impl, step->out, member);
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        if (step->in[i] >= 0) bytes += local_bytes(impl, step->in[i], member);
    }
    return bytes;
}

int64_t sheaf__split_plan_time(const struct sheaf__split_plan *plan,
                               const struct sheaf_cgraph *graph,
                               const struct sheaf__split_options *options) {
    const struct sheaf__plan_impl *impl = sheaf__plan_impl(plan);
    const int64_t latency = options->latency_ns > 0 ? options->latency_ns : 10000;
    const int64_t link = options->link_bytes_us > 0 ? options->link_bytes_us : 1170;
    const int64_t memory = options->memory_bytes_us > 0 ? options->memory_bytes_us : 10000;
    const int64_t d = plan->n_members;
    int64_t sum = 0;
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step *step = &plan->steps[s];
        const int64_t wire = (int64_t)((double)step->bytes * 1000 / (double)link);
        switch (step->kind) {
        case SHEAF__STEP_ALL_REDUCE: { /* in one shot, or scattered and gathered */
            const int64_t one = latency + (d - 1) * wire;
            const int64_t two = 2 * (latency + wire / d * (d - 1));
            sum += d < 2 ? 0 : one < two ? one : two;
            break;
        }
        case SHEAF__STEP_REDUCE_SCATTER:
        case SHEAF__STEP_ALL_GATHER:
            sum += latency + wire / d * (d - 1);
            break;
        case SHEAF__STEP_NODE: {
            int64_t most = 0;
            if (!is_light(graph->nodes[step->node]->op)) break;
            for (int j = 0; j < d; j++) {
                const int64_t bytes = moved(impl, step, j);
                if (bytes > most) most = bytes;
            }
            sum += (int64_t)((double)most * 1000 / (double)memory);
            break;
        }
        case SHEAF__STEP_SLICE:
        case SHEAF__STEP_KEEP_ONE:
        case SHEAF__STEP_KIND_COUNT:
            break;
        }
    }
    return sum;
}
