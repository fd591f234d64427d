/* Builds what follows attention in a layer: one gated unit, or a router and a unit for each
 * expert. */
#include <math.h>

#include "model/arch/builder.h"

static const float LEAST_WEIGHT = 6.103515625e-5f; /* F16's least normal number; of a sum */
static const float OAI_ALPHA = 1.702f, OAI_LIMIT = 7.0f;

static struct sheaf_tensor *unit(struct sheaf__builder *b, struct sheaf_tensor *gate,
                                 struct sheaf_tensor *up, enum sheaf_glu_op glu) {
    if (glu == SHEAF_GLU_OP_SWIGLU_OAI)
        return sheaf_swiglu_oai(b->ctx, gate, up, OAI_ALPHA, OAI_LIMIT);
    return sheaf_glu_split(b->ctx, gate, up, glu);
}

/* down(glu(gate x, up x)) */
static struct sheaf_tensor *gated(struct sheaf__builder *b, struct sheaf_tensor *x,
                                  struct sheaf_tensor *gate, struct sheaf_tensor *up,
                                  struct sheaf_tensor *down, enum sheaf_glu_op glu) {
    gate = sheaf_mul_mat(b->ctx, gate, x); // [f, n]
    up = sheaf_mul_mat(b->ctx, up, x);
    return sheaf_mul_mat(b->ctx, down, unit(b, gate, up, glu));
}

struct sheaf_tensor *sheaf__build_ffn(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x,
                                      enum sheaf_glu_op glu) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    struct sheaf_tensor *y;
    if (w[SHEAF__W_GATE_UP]) {
        y = sheaf_mul_mat(b->ctx, w[SHEAF__W_GATE_UP], x); // [f + f, n]
        y = sheaf_mul_mat(b->ctx, w[SHEAF__W_DOWN], sheaf_glu(b->ctx, y, glu, false));
    } else {
        y = gated(b, x, w[SHEAF__W_GATE], w[SHEAF__W_UP], w[SHEAF__W_DOWN], glu);
    }
    return sheaf_format_name(y, "ffn_out-%d", (int)il);
}

/* Scores p [x, n] of experts, of which those of the n_groups_used best groups stay and all others
 * become -inf. A group is as good as its two best experts together. */
static struct sheaf_tensor *of_best_groups(struct sheaf__builder *b, struct sheaf_tensor *p) {
    const struct sheaf__hparams *hp = b->hp;
    const int64_t groups = hp->n_groups, each = hp->n_expert / groups, n = p ? p->ne[1] : 0;
    p = sheaf_reshape_3d(b->ctx, p, each, groups, n);
    struct sheaf_tensor *best = sheaf_top_k(b->ctx, p, 2); // [2, groups, n]
    best = sheaf_get_rows(b->ctx, sheaf_reshape_4d(b->ctx, p, 1, each, groups, n), best);
    best = sheaf_sum_rows(b->ctx, sheaf_reshape_3d(b->ctx, best, 2, groups, n)); // [1, groups, n]
    best = sheaf_top_k(b->ctx, sheaf_reshape_2d(b->ctx, best, groups, n), (int)hp->n_groups_used);
    struct sheaf_tensor *kept = sheaf_get_rows(b->ctx, p, best); // [each, used, n]
    p = sheaf_set_rows(b->ctx, sheaf_fill(b->ctx, p, -INFINITY), kept, best);
    return sheaf_reshape_2d(b->ctx, p, hp->n_expert, n);
}

/* The weights of the chosen experts, [1, u, n], and their numbers, [u, n]. */
static struct sheaf_tensor *route(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x,
                                  struct sheaf_tensor **ids) {
    const struct sheaf__hparams *hp = b->hp;
    struct sheaf_tensor *const *layer = b->model->layers[il].w;
    const int64_t n = x ? x->ne[1] : 0, used = hp->n_expert_used;
    struct sheaf_tensor *p = sheaf_mul_mat(b->ctx, layer[SHEAF__W_ROUTER], x); // [x, n]
    if (layer[SHEAF__W_ROUTER_BIAS]) p = sheaf_add(b->ctx, p, layer[SHEAF__W_ROUTER_BIAS]);
    if (hp->gating == SHEAF__GATING_SOFTMAX) p = sheaf_soft_max(b->ctx, p);
    if (hp->gating == SHEAF__GATING_SIGMOID) p = sheaf_sigmoid(b->ctx, p);
    struct sheaf_tensor *score = p;
    if (layer[SHEAF__W_CHOICE_BIAS]) score = sheaf_add(b->ctx, p, layer[SHEAF__W_CHOICE_BIAS]);
    if (hp->n_groups > 1) score = of_best_groups(b, score);
    *ids = sheaf_top_k(b->ctx, score, (int)used); // [u, n]
    struct sheaf_tensor *w =
        sheaf_get_rows(b->ctx, sheaf_reshape_3d(b->ctx, p, 1, hp->n_expert, n), *ids); // [1, u, n]
    w = sheaf_reshape_2d(b->ctx, w, used, n);
    if (hp->gating == SHEAF__GATING_SOFTMAX_OF_CHOSEN) {
        w = sheaf_soft_max(b->ctx, w);
    } else if (hp->expert_norm) {
        struct sheaf_tensor *sum = sheaf_sum_rows(b->ctx, w);
        if (hp->gating == SHEAF__GATING_SIGMOID)
            sum = sheaf_clamp(b->ctx, sum, LEAST_WEIGHT, INFINITY);
        w = sheaf_div(b->ctx, w, sum);
    }
    if (hp->expert_scale < 1 || hp->expert_scale > 1) w = sheaf_scale(b->ctx, w, hp->expert_scale);
    return sheaf_reshape_3d(b->ctx, w, 1, used, n);
}

/* A product with the experts' matrices, and their biases: x [k, 1 or u, n] to [m, u, n]. */
static struct sheaf_tensor *of_experts(struct sheaf__builder *b, struct sheaf_tensor *weight,
                                       struct sheaf_tensor *bias, struct sheaf_tensor *x,
                                       struct sheaf_tensor *ids) {
    x = sheaf_mul_mat_id(b->ctx, weight, x, ids);
    return bias ? sheaf_add_id(b->ctx, x, bias, ids) : x;
}

struct sheaf_tensor *sheaf__build_mixture(struct sheaf__builder *b, int64_t il,
                                          struct sheaf_tensor *x, enum sheaf_glu_op glu) {
    struct sheaf_tensor *const *w = b->model->layers[il].w;
    const int64_t e = b->hp->n_embd, used = b->hp->n_expert_used, n = x ? x->ne[1] : 0;
    struct sheaf_tensor *ids, *weights = route(b, il, x, &ids), *sum = NULL;
    if (w[SHEAF__W_GATE_SHARED])
        sum = gated(b, x, w[SHEAF__W_GATE_SHARED], w[SHEAF__W_UP_SHARED], w[SHEAF__W_DOWN_SHARED],
                    glu);
    x = sheaf_reshape_3d(b->ctx, x, e, 1, n);
    struct sheaf_tensor *gate =
        of_experts(b, w[SHEAF__W_GATE_EXPERTS], w[SHEAF__W_GATE_EXPERTS_BIAS], x, ids);
    struct sheaf_tensor *up = // [f, u, n]
        of_experts(b, w[SHEAF__W_UP_EXPERTS], w[SHEAF__W_UP_EXPERTS_BIAS], x, ids);
    struct sheaf_tensor *y = of_experts(b, w[SHEAF__W_DOWN_EXPERTS], w[SHEAF__W_DOWN_EXPERTS_BIAS],
                                        unit(b, gate, up, glu), ids);
    y = sheaf_mul(b->ctx, y, weights); // [e, u, n]
    for (int64_t i = 0; i < used && y; i++) {
        struct sheaf_tensor *one =
            sheaf_view_2d(b->ctx, y, e, n, y->nb[2], (size_t)i * y->nb[1]); // [e, n]
        sum = sum ? sheaf_add(b->ctx, sum, one) : one;
    }
    return sheaf_format_name(sum, "ffn_out-%d", (int)il);
}
