/* Small graphs and cuts for the tests of src/split: transformer layers as loaders build them. */
#ifndef SHEAF_TESTS_SPLIT_GRAPHS_H
#define SHEAF_TESTS_SPLIT_GRAPHS_H

#include "split_exec.h"

enum { SPLIT_MAX_LEAVES = 512 };

/* Leaves with their states; tensors that are not listed are MIRRORED. */
struct split_model {
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    int n_members;
    int n_leaves;
    const struct sheaf_tensor *leaf[SPLIT_MAX_LEAVES];
    struct sheaf_split_state *state[SPLIT_MAX_LEAVES];
    struct sheaf_split_state *mirrored;
    uint64_t seed;
};

/* Under a sanitizer the shadow of `memory` bytes is filled for each model: ask for no more than the
 * graph needs. */
static inline void split_model_init_sized(struct split_model *m, int n_members, uint64_t seed,
                                          size_t memory, size_t n_nodes) {
    memset(m, 0, sizeof *m);
    m->ctx = sheaf_init((struct sheaf_init_params){.mem_size = memory});
    m->graph = sheaf_new_graph_custom(m->ctx, n_nodes);
    m->n_members = n_members;
    m->mirrored = sheaf_split_state_mirrored(n_members);
    m->seed = seed;
    if (!m->ctx || !m->graph || !m->mirrored) abort();
}

static inline void split_model_init(struct split_model *m, int n_members, uint64_t seed) {
    split_model_init_sized(m, n_members, seed, (size_t)24 << 20, 4096);
}

static inline void split_model_free(struct split_model *m) {
    for (int i = 0; i < m->n_leaves; i++) sheaf_split_state_free(m->state[i]);
    sheaf_split_state_free(m->mirrored);
    sheaf_free(m->ctx);
}

static inline const struct sheaf_split_state *split_model_state(const struct sheaf_tensor *leaf,
                                                                void *user) {
    const struct split_model *m = user;
    for (int i = 0; i < m->n_leaves; i++) {
        if (m->leaf[i] == leaf) return m->state[i];
    }
    return m->mirrored;
}

/* counts[j] of `units` by the weights 1, 2, 1, 2, ... (uneven) or equally. */
static inline void split_counts(int64_t units, int n, bool uneven, int64_t *counts) {
    int64_t sum = 0, weights = 0, done = 0;
    for (int j = 0; j < n; j++) weights += uneven ? 1 + j % 2 : 1;
    for (int j = 0; j < n; j++) {
        sum += uneven ? 1 + j % 2 : 1;
        counts[j] = units * sum / weights - done;
        done += counts[j];
    }
}

static inline void split_give(struct split_model *m, const struct sheaf_tensor *t,
                              struct sheaf_split_state *state) {
    if (!t || !state || m->n_leaves == SPLIT_MAX_LEAVES) abort();
    m->leaf[m->n_leaves] = t;
    m->state[m->n_leaves++] = state;
}

/* Cuts axis of t in `units` equal units. */
static inline void split_cut(struct split_model *m, const struct sheaf_tensor *t, int axis,
                             int64_t units, bool uneven) {
    int64_t counts[64];
    split_counts(units, m->n_members, uneven, counts);
    split_give(m, t,
               sheaf_split_state_cut((enum sheaf_split_axis)axis, m->n_members, counts,
                                     t->ne[axis] / units));
}

static inline struct sheaf_tensor *split_fill(struct split_model *m, struct sheaf_tensor *t) {
    if (!t) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        abort();
    }
    const int64_t n = sheaf_nelements(t);
    float *f = malloc((size_t)n * sizeof *f);
    for (int64_t i = 0; i < n; i++) f[i] = split_random_float(&m->seed) * 0.5f;
    if (sheaf_from_float(t->type, f, t->data, n) != SHEAF_STATUS_SUCCESS) abort();
    free(f);
    return t;
}
static inline struct sheaf_tensor *split_new(struct split_model *m, const char *name, int64_t a,
                                             int64_t b, int64_t c, int64_t d) {
    return split_fill(
        m,
        sheaf_set_name(sheaf_new_tensor(m->ctx, SHEAF_TYPE_F32, 4, (int64_t[]){a, b, c, d}), name));
}
static inline struct sheaf_tensor *split_ids(struct split_model *m, const char *name, int64_t a,
                                             int64_t b, int64_t below) {
    struct sheaf_tensor *t =
        sheaf_set_name(sheaf_new_tensor(m->ctx, SHEAF_TYPE_I32, 2, (int64_t[]){a, b}), name);
    if (!t) abort();
    for (int64_t i = 0; i < a * b; i++)
        ((int32_t *)t->data)[i] = (int32_t)(split_random(&m->seed) % (uint64_t)below);
    return t;
}

struct split_shape {
    int64_t n_embd, n_head, n_kv, d, n_ff, n_vocab, n_ctx, n_tokens;
    int n_layers;
    bool uneven, bias, parallel, fused_qkv, flash, moe, overlap;
    int by_expert; /* 1: ffn_down by experts, the rest mirrored; 2: all three by experts */
    bool embd_by_vocab;
};
static const struct split_shape split_llama = {.n_embd = 48,
                                               .n_head = 8,
                                               .n_kv = 4,
                                               .d = 6,
                                               .n_ff = 40,
                                               .n_vocab = 30,
                                               .n_ctx = 16,
                                               .n_tokens = 5,
                                               .n_layers = 2,
                                               .flash = true};

/* A cut of query heads that keeps groups whole, and the K/V heads that go with it. */
static inline void split_heads(struct split_model *m, const struct sheaf_tensor *t, int axis,
                               const struct split_shape *c, bool query) {
    const int64_t r = c->n_head / c->n_kv;
    const int64_t unit = t->ne[axis] / (query ? c->n_head : c->n_kv);
    if (!c->overlap) {
        int64_t counts[64];
        split_counts(c->n_kv, m->n_members, c->uneven, counts);
        split_give(m, t,
                   sheaf_split_state_cut((enum sheaf_split_axis)axis, m->n_members, counts,
                                         query ? unit * r : unit));
        return;
    }
    /* more members than K/V heads: query heads in equal shares, K/V heads copied */
    struct sheaf_split_state *s =
        sheaf_split_state_new((enum sheaf_split_axis)axis, m->n_members, 1);
    struct sheaf_split_segment *seg = s->segments;
    seg->inner = unit;
    seg->units = query ? c->n_head : c->n_kv;
    for (int j = 0; j < m->n_members; j++) {
        const int64_t lo = c->n_head * j / m->n_members, hi = c->n_head * (j + 1) / m->n_members;
        seg->first[j] = query ? lo : lo / r;
        seg->count[j] = query ? hi - lo : (hi + r - 1) / r - lo / r;
    }
    split_give(m, t, s);
}

static inline struct sheaf_tensor *
split_attention(struct split_model *m, const struct split_shape *c, struct sheaf_tensor *x,
                struct sheaf_tensor *pos, struct sheaf_tensor *mask, struct sheaf_tensor *rows) {
    struct sheaf_context *ctx = m->ctx;
    const int64_t d = c->d, h = c->n_head, g = c->n_kv, n = c->n_tokens;
    struct sheaf_tensor *q, *k, *v;
    if (c->fused_qkv) {
        struct sheaf_tensor *w = split_new(m, "wqkv", c->n_embd, (h + 2 * g) * d, 1, 1);
        int64_t counts[64];
        split_counts(g, m->n_members, c->uneven, counts);
        struct sheaf_split_state *s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_1, m->n_members, 3);
        for (int i = 0; i < 3; i++) {
            s->segments[i].inner = i ? d : d * (h / g);
            s->segments[i].units = g;
            for (int j = 0, at = 0; j < m->n_members; at += (int)counts[j++]) {
                s->segments[i].first[j] = at;
                s->segments[i].count[j] = counts[j];
            }
        }
        split_give(m, w, s);
        struct sheaf_tensor *qkv = sheaf_mul_mat(ctx, w, x);
        const size_t es = sizeof(float), row = qkv->nb[1];
        q = sheaf_view_3d(ctx, qkv, d, h, n, (size_t)d * es, row, 0);
        k = sheaf_view_3d(ctx, qkv, d, g, n, (size_t)d * es, row, (size_t)(h * d) * es);
        v = sheaf_view_3d(ctx, qkv, d, g, n, (size_t)d * es, row, (size_t)((h + g) * d) * es);
    } else {
        struct sheaf_tensor *wq = split_new(m, "wq", c->n_embd, h * d, 1, 1);
        struct sheaf_tensor *wk = split_new(m, "wk", c->n_embd, g * d, 1, 1);
        struct sheaf_tensor *wv = split_new(m, "wv", c->n_embd, g * d, 1, 1);
        split_heads(m, wq, 1, c, true);
        split_heads(m, wk, 1, c, false);
        split_heads(m, wv, 1, c, false);
        q = sheaf_mul_mat(ctx, wq, x);
        k = sheaf_mul_mat(ctx, wk, x);
        v = sheaf_mul_mat(ctx, wv, x);
        if (c->bias) {
            struct sheaf_tensor *b = split_new(m, "bq", h * d, 1, 1, 1);
            split_heads(m, b, 0, c, true);
            q = sheaf_add(ctx, q, b);
        }
        q = sheaf_reshape_3d(ctx, q, d, h, n);
        k = sheaf_reshape_3d(ctx, k, d, g, n);
        v = sheaf_reshape_3d(ctx, v, d, g, n);
    }
    struct sheaf_tensor *freq = split_new(m, "freq", d / 2, 1, 1, 1);
    q = sheaf_rope_ext(ctx, q, pos, freq, (int)d, SHEAF_ROPE_TYPE_NORMAL, 0, 10000.0f, 1, 0, 1, 32,
                       1);
    k = sheaf_rope_ext(ctx, k, pos, freq, (int)d, SHEAF_ROPE_TYPE_NEOX, 0, 10000.0f, 1, 0, 1, 32,
                       1);

    struct sheaf_tensor *kc = split_new(m, "cache_k", g * d, c->n_ctx, 1, 1);
    struct sheaf_tensor *vc = split_new(m, "cache_v", g * d, c->n_ctx, 1, 1);
    split_heads(m, kc, 0, c, false);
    split_heads(m, vc, 0, c, false);
    v = sheaf_cont(ctx, v);
    k = sheaf_reshape_2d(ctx, k, g * d, n);
    v = sheaf_reshape_2d(ctx, v, g * d, n);
    sheaf_build_forward_expand(m->graph, sheaf_set_rows(ctx, kc, k, rows));
    sheaf_build_forward_expand(m->graph, sheaf_set_rows(ctx, vc, v, rows));
    const size_t es = sizeof(float);
    const int64_t t = mask->ne[0];
    k = sheaf_view_3d(ctx, kc, d, g, t, (size_t)d * es, kc->nb[1], 0);
    v = sheaf_view_3d(ctx, vc, d, g, t, (size_t)d * es, vc->nb[1], 0);
    k = sheaf_permute(ctx, k, 0, 2, 1, 3);
    v = sheaf_permute(ctx, v, 0, 2, 1, 3);
    q = sheaf_permute(ctx, q, 0, 2, 1, 3);
    struct sheaf_tensor *o;
    if (c->flash) {
        o = sheaf_flash_attn_ext(ctx, q, k, v, mask, 0.4f, 0, 0);
    } else {
        struct sheaf_tensor *kq = sheaf_mul_mat(ctx, k, q); /* [t, n, h] */
        kq = sheaf_soft_max_ext(ctx, kq, mask, 0.4f, 0);
        v = sheaf_cont(ctx, sheaf_transpose(ctx, v)); /* [t, d, g] */
        o = sheaf_mul_mat(ctx, v, kq);                /* [d, n, h] */
        o = sheaf_cont(ctx, sheaf_permute(ctx, o, 0, 2, 1, 3));
    }
    o = sheaf_reshape_2d(ctx, o, h * d, n);
    struct sheaf_tensor *wo = split_new(m, "wo", h * d, c->n_embd, 1, 1);
    split_heads(m, wo, 0, c, true);
    o = sheaf_mul_mat(ctx, wo, o);
    if (c->bias) o = sheaf_add(ctx, o, split_new(m, "bo", c->n_embd, 1, 1, 1));
    return sheaf_set_name(o, "attn_out");
}

static inline struct sheaf_tensor *split_ffn(struct split_model *m, const struct split_shape *c,
                                             struct sheaf_tensor *x) {
    struct sheaf_context *ctx = m->ctx;
    if (!c->moe) {
        struct sheaf_tensor *gate = split_new(m, "gate", c->n_embd, c->n_ff, 1, 1);
        struct sheaf_tensor *up = split_new(m, "up", c->n_embd, c->n_ff, 1, 1);
        struct sheaf_tensor *down = split_new(m, "down", c->n_ff, c->n_embd, 1, 1);
        split_cut(m, gate, 1, c->n_ff, c->uneven);
        split_cut(m, up, 1, c->n_ff, c->uneven);
        split_cut(m, down, 0, c->n_ff, c->uneven);
        struct sheaf_tensor *f =
            sheaf_swiglu_split(ctx, sheaf_mul_mat(ctx, gate, x), sheaf_mul_mat(ctx, up, x));
        return sheaf_set_name(sheaf_mul_mat(ctx, down, f), "ffn_out");
    }
    enum { X = 6, U = 2 };
    const int64_t n = c->n_tokens;
    struct sheaf_tensor *router = split_new(m, "router", c->n_embd, X, 1, 1);
    struct sheaf_tensor *gate = split_new(m, "gate_exps", c->n_embd, c->n_ff, X, 1);
    struct sheaf_tensor *up = split_new(m, "up_exps", c->n_embd, c->n_ff, X, 1);
    struct sheaf_tensor *down = split_new(m, "down_exps", c->n_ff, c->n_embd, X, 1);
    if (c->by_expert) {
        split_cut(m, down, 2, X, c->uneven);
        if (c->by_expert == 2) {
            split_cut(m, gate, 2, X, c->uneven);
            split_cut(m, up, 2, X, c->uneven);
        }
    } else {
        split_cut(m, gate, 1, c->n_ff, c->uneven);
        split_cut(m, up, 1, c->n_ff, c->uneven);
        split_cut(m, down, 0, c->n_ff, c->uneven);
    }
    struct sheaf_tensor *probs = sheaf_soft_max(ctx, sheaf_mul_mat(ctx, router, x)); /* [x, n] */
    struct sheaf_tensor *ids = sheaf_top_k(ctx, probs, U);                           /* [u, n] */
    struct sheaf_tensor *w =
        sheaf_get_rows(ctx, sheaf_reshape_3d(ctx, probs, 1, X, n), ids); /* [1, u, n] */
    x = sheaf_reshape_3d(ctx, x, c->n_embd, 1, n);
    struct sheaf_tensor *f = sheaf_swiglu_split(ctx, sheaf_mul_mat_id(ctx, gate, x, ids),
                                                sheaf_mul_mat_id(ctx, up, x, ids));
    struct sheaf_tensor *e = sheaf_mul(ctx, sheaf_mul_mat_id(ctx, down, f, ids), w);
    struct sheaf_tensor *sum = NULL;
    for (int i = 0; i < U; i++) {
        struct sheaf_tensor *v =
            sheaf_view_2d(ctx, e, c->n_embd, n, e->nb[2], (size_t)i * e->nb[1]);
        sum = sum ? sheaf_add(ctx, sum, v) : v;
    }
    return sheaf_set_name(sum, "moe_out");
}

static inline struct sheaf_tensor *split_norm(struct split_model *m, const struct split_shape *c,
                                              struct sheaf_tensor *x) {
    return sheaf_mul(m->ctx, sheaf_rms_norm(m->ctx, x, 1e-5f),
                     split_new(m, "norm", c->n_embd, 1, 1, 1));
}

/* Logits of a small model; also the graph. */
static inline struct sheaf_tensor *split_transformer(struct split_model *m,
                                                     const struct split_shape *c) {
    struct sheaf_context *ctx = m->ctx;
    const int64_t n = c->n_tokens, t = c->n_ctx - 4;
    struct sheaf_tensor *embd = split_new(m, "tok_embd", c->n_embd, c->n_vocab, 1, 1);
    if (c->embd_by_vocab) split_cut(m, embd, 1, c->n_vocab, c->uneven);
    struct sheaf_tensor *ids = split_ids(m, "ids", n, 1, c->n_vocab);
    struct sheaf_tensor *pos = split_ids(m, "pos", n, 1, 100);
    struct sheaf_tensor *rows = split_ids(m, "rows", n, 1, 1);
    for (int i = 0; i < n; i++) ((int32_t *)rows->data)[i] = (i * 3 + 2) % (int32_t)c->n_ctx;
    struct sheaf_tensor *mask = split_new(m, "mask", t, n, 1, 1);
    struct sheaf_tensor *x = sheaf_get_rows(ctx, embd, ids);
    for (int l = 0; l < c->n_layers; l++) {
        struct sheaf_tensor *y = split_norm(m, c, x);
        struct sheaf_tensor *a = split_attention(m, c, y, pos, mask, rows);
        if (c->parallel) {
            x = sheaf_add(ctx, sheaf_add(ctx, a, split_ffn(m, c, y)), x);
            continue;
        }
        x = sheaf_add(ctx, a, x);
        x = sheaf_add(ctx, split_ffn(m, c, split_norm(m, c, x)), x);
    }
    struct sheaf_tensor *out = split_new(m, "output", c->n_embd, c->n_vocab, 1, 1);
    split_cut(m, out, 1, c->n_vocab, c->uneven);
    struct sheaf_tensor *logits = sheaf_mul_mat(ctx, out, split_norm(m, c, x));
    sheaf_set_output(sheaf_set_name(logits, "logits"));
    if (sheaf_build_forward_expand(m->graph, logits) != SHEAF_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        abort();
    }
    return logits;
}

/* ---- what a plan does ---- */

struct split_tally {
    int kind[SHEAF_SPLIT_STEP_KIND_COUNT], collective[SHEAF_COMM_KIND_COUNT];
    int once;
};

static inline struct split_tally split_count(const struct sheaf__split_plan *p) {
    struct split_tally t = {.once = 0};
    for (int s = 0; s < p->n_steps; s++) {
        t.kind[p->steps[s].kind]++;
        if (p->steps[s].kind == SHEAF_SPLIT_STEP_COLLECTIVE) t.collective[p->steps[s].collective]++;
        t.once += p->steps[s].add_once;
    }
    return t;
}

/* Runs the plan of the model's graph, compares every node that has a final value. Returns the worst
 * error. */
static inline double split_run_and_compare(struct split_model *m,
                                           const struct sheaf__split_plan *plan) {
    struct split_run r = {.graph = m->graph, .plan = plan};
    r.slice = split_alloc((size_t)plan->n_values * (size_t)plan->n_members * sizeof *r.slice);
    split_run_leaves(&r, m->seed);
    if (split_run_all(&r) != SHEAF_STATUS_SUCCESS) {
        split_print_plan(plan, m->graph);
        fprintf(stderr, "%s\n", sheaf_last_error());
        return 1e30;
    }
    for (int i = 0; i < m->graph->n_nodes; i++) {
        if (split_run_node(m->graph->nodes[i]) != SHEAF_STATUS_SUCCESS) return 1e30;
    }
    double worst = 0;
    for (int i = 0; i < m->graph->n_nodes; i++) {
        const double e = split_nmse(split_run_join(&r, plan->node_final[i]), m->graph->nodes[i]);
        if (e > 1e-10) {
            if (worst <= 1e-10)
                fprintf(stderr, "node %d %s '%s' differs: %g\n", i,
                        sheaf_op_desc(m->graph->nodes[i]), m->graph->nodes[i]->name, e);
        }
        worst = fmax(worst, e);
    }
    return worst;
}

#endif
