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

static const struct sheaf_split_link assumed[SHEAF_SPLIT_LEVEL_COUNT] = {
    [SHEAF_SPLIT_LEVEL_HOST] = {.latency_ns = 1000, .byte_ps = 200},
    [SHEAF_SPLIT_LEVEL_HOSTS] = {.latency_ns = 15000, .byte_ps = 855},
};
enum { ASSUMED_MEMORY_PS = 100, PS_PER_NS = 1000 };

/* Products of bytes and picoseconds leave 64 bits for gigabytes over slow links. */
static int64_t ns_of(int64_t bytes, int64_t byte_ps) {
    const int64_t whole = bytes / PS_PER_NS, rest = bytes % PS_PER_NS;
    int64_t ns;
    if (__builtin_mul_overflow(whole, byte_ps, &ns)) return INT64_MAX / 1024;
    return ns + rest * byte_ps / PS_PER_NS;
}

static int64_t collective_ns(const struct sheaf_split_costs *costs, int n_members,
                             enum sheaf__step_kind kind, int64_t bytes) {
    bool known = false;
    int64_t sum = 0;
    for (int l = 0; l < SHEAF_SPLIT_LEVEL_COUNT; l++) known = known || costs->link[l].n > 0;
    for (int l = 0; l < SHEAF_SPLIT_LEVEL_COUNT; l++) {
        const struct sheaf_split_link *link = &costs->link[l];
        const int64_t n = known ? link->n : l == SHEAF_SPLIT_LEVEL_HOSTS ? n_members : 1;
        if (n < 2) continue;
        const int64_t a = link->latency_ns > 0 ? link->latency_ns : assumed[l].latency_ns;
        const int64_t all = ns_of(bytes, link->byte_ps > 0 ? link->byte_ps : assumed[l].byte_ps);
        const int64_t part = a + all / n * (n - 1), one = a + (n - 1) * all;
        sum += kind != SHEAF__STEP_ALL_REDUCE ? part : one < 2 * part ? one : 2 * part;
    }
    return sum;
}

int64_t sheaf__split_plan_time(const struct sheaf__split_plan *plan,
                               const struct sheaf_cgraph *graph,
                               const struct sheaf_split_costs *costs) {
    const struct sheaf__plan_impl *impl = sheaf__plan_impl(plan);
    const int64_t memory_ps = costs->memory_byte_ps > 0 ? costs->memory_byte_ps : ASSUMED_MEMORY_PS;
    int64_t sum = 0;
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step *step = &plan->steps[s];
        switch (step->kind) {
        case SHEAF__STEP_ALL_REDUCE:
        case SHEAF__STEP_REDUCE_SCATTER:
        case SHEAF__STEP_ALL_GATHER:
            sum += collective_ns(costs, plan->n_members, step->kind, step->bytes);
            break;
        case SHEAF__STEP_NODE: {
            int64_t most = 0;
            if (!is_light(graph->nodes[step->node]->op)) break;
            for (int j = 0; j < plan->n_members; j++) {
                const int64_t bytes = moved(impl, step, j);
                if (bytes > most) most = bytes;
            }
            sum += ns_of(most, memory_ps);
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
