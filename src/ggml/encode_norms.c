/* A norm over all heads: attn_q_norm of OLMo 2 and MiniMax M2, ssm_norm of Mamba 2 with one group.
 * As one node it would need all heads on every member. */
#include <string.h>

#include "ggml/encode_impl.h"
#include "ggml/leaf.h"

static bool is(const struct gg_encoder *e, const struct gg_tensor *t, enum sheaf_op op) {
    return gg_op_of(e->host, t->op) == op;
}

/* The rows of a product, or these with a scale and a bias. */
static bool is_projection(const struct gg_encoder *e, const struct gg_tensor *x) {
    for (int i = 0; i < 2; i++)
        if ((is(e, x, SHEAF_OP_ADD) || is(e, x, SHEAF_OP_MUL)) && x->src[1]->op == 0) x = x->src[0];
    return is(e, x, SHEAF_OP_MUL_MAT);
}

bool gg_is_norm_over_heads(const struct gg_encoder *e, const struct gg_tensor *mul) {
    const struct gg_tensor *norm = mul->src[0], *weight = mul->src[1];
    struct gg_leaf l;
    if (!is(e, mul, SHEAF_OP_MUL) || !is(e, norm, SHEAF_OP_RMS_NORM) || weight->op != 0 ||
        weight->ne[0] != norm->ne[0] || weight->ne[1] != 1)
        return false;
    const struct gg_tensor *x = norm->src[0];
    const bool is_row = is(e, x, SHEAF_OP_RESHAPE) && x->src[0]->ne[0] < x->ne[0];
    if (!is_row && !is_projection(e, x)) return false;
    gg_leaf_of(weight->name, &l);
    if (is_row) return l.role == GG_ROLE_NORM_2 || (l.role == GG_ROLE_STATE_NORM && x->ne[1] == 1);
    return l.role == GG_ROLE_Q_NORM || l.role == GG_ROLE_K_NORM;
}

enum sheaf_status gg_encode_norm_over_heads(struct gg_encoder *e, const struct gg_tensor *t,
                                            const struct gg_record *norm, uint32_t *out) {
    static const enum sheaf_op ops[] = {SHEAF_OP_SQR, SHEAF_OP_SUM_ROWS, SHEAF_OP_SCALE,
                                        SHEAF_OP_SQRT};
    const float mean[] = {1.0f / (float)norm->ne[0], 0};
    struct gg_record r = *norm;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        r.op = ops[i];
        if (ops[i] == SHEAF_OP_SUM_ROWS) r.ne[0] = 1;
        gg_record_make_dense(&r);
        memset(r.params, 0, sizeof r.params);
        if (ops[i] == SHEAF_OP_SCALE) {
            memcpy(r.params, mean, sizeof *mean);
            memcpy((char *)r.params + sizeof *mean, norm->params, sizeof *mean); /* eps */
        }
        if (!(r.src[0] = gg_record_add(e, &r, t))) return gg_no_memory("graph");
    }
    const uint32_t root = r.src[0];
    r = *norm;
    r.op = SHEAF_OP_DIV;
    r.src[1] = root;
    gg_record_make_dense(&r);
    memset(r.params, 0, sizeof r.params);
    *out = gg_record_add(e, &r, t);
    return *out ? SHEAF_STATUS_SUCCESS : gg_no_memory("graph");
}
