/* Layers with a state as models have them, cut by heads: Mamba-2 with its fused input [z x B C dt],
 * of which B and C are cut by groups or are whole on every member, and the gated delta net of
 * hybrid models. */
#ifndef SHEAF_TESTS_SPLIT_LAYERS_H
#define SHEAF_TESTS_SPLIT_LAYERS_H

#include "split_graphs.h"

struct split_mamba {
    int64_t n_embd, heads, head_size, groups, state, taps, tokens, seqs;
    int n_layers;
    bool uneven;
};

/* Heads of each member, whole or (more members than groups) parts of groups. */
struct split_heads {
    int64_t first[64], count[64], group_first[64], group_count[64];
};

static inline struct split_heads split_heads_of(int64_t heads, int64_t groups, int n, bool uneven) {
    struct split_heads s;
    const int64_t r = heads / groups, units = groups >= n ? groups : heads;
    split_counts(units, n, uneven, s.count);
    int64_t at = 0;
    for (int j = 0; j < n; j++) {
        s.count[j] *= heads / units;
        s.first[j] = at;
        at += s.count[j];
        s.group_first[j] = s.first[j] / r;
        s.group_count[j] = s.count[j] ? (at - 1) / r - s.group_first[j] + 1 : 0;
    }
    return s;
}

/* A segment of `units` units of `inner`, which members own as first and count say. */
static inline void split_segment(struct sheaf_split_state *s, int i, int64_t units, int64_t inner,
                                 const int64_t *first, const int64_t *count) {
    struct sheaf_split_segment *seg = &s->segments[i];
    seg->units = units;
    seg->inner = inner;
    for (int j = 0; j < s->n_members; j++) {
        seg->first[j] = first[j];
        seg->count[j] = count[j];
    }
}

/* Segments x, B, C of a dimension from segment `at` on, each element `wide` times. */
static inline void split_xbc(struct sheaf_split_state *s, int at, const struct split_mamba *c,
                             const struct split_heads *h, int64_t wide) {
    split_segment(s, at, c->heads, c->head_size * wide, h->first, h->count);
    for (int i = 1; i <= 2; i++)
        split_segment(s, at + i, c->groups, c->state * wide, h->group_first, h->group_count);
}

static inline struct sheaf_tensor *
split_mamba_layer(struct split_model *m, const struct split_mamba *c, struct sheaf_tensor *in) {
    struct sheaf_context *ctx = m->ctx;
    const int d = m->n_members;
    const int64_t inner = c->heads * c->head_size, bc = c->groups * c->state;
    const int64_t channels = inner + 2 * bc, width = inner + channels + c->heads,
                  rows = c->seqs + 1;
    const int64_t n = c->tokens * c->seqs, before = c->taps - 1;
    const struct split_heads h = split_heads_of(c->heads, c->groups, d, c->uneven);

    struct sheaf_tensor *w_in = split_new(m, "ssm_in", c->n_embd, width, 1, 1);
    struct sheaf_split_state *s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_1, d, 5);
    split_segment(s, 0, c->heads, c->head_size, h.first, h.count);
    split_xbc(s, 1, c, &h, 1);
    split_segment(s, 4, c->heads, 1, h.first, h.count);
    split_give(m, w_in, s);
    struct sheaf_tensor *w_conv = split_new(m, "ssm_conv", c->taps, channels, 1, 1);
    split_xbc(s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_1, d, 3), 0, c, &h, 1);
    split_give(m, w_conv, s);
    struct sheaf_tensor *b_conv = split_new(m, "ssm_conv.bias", channels, 1, 1, 1);
    split_xbc(s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, d, 3), 0, c, &h, 1);
    split_give(m, b_conv, s);
    struct sheaf_tensor *cache_r = split_new(m, "cache_r", before * channels, rows, 1, 1);
    split_xbc(s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, d, 3), 0, c, &h, before);
    split_give(m, cache_r, s);
    struct sheaf_tensor *cache_s = split_new(m, "cache_s", c->state * inner, rows, 1, 1);
    s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, d, 1);
    split_segment(s, 0, c->heads, c->head_size * c->state, h.first, h.count);
    split_give(m, cache_s, s);
    struct sheaf_tensor *by_head[3]; /* dt bias [h], A [1, h], D [1, h] */
    for (int i = 0; i < 3; i++) {
        by_head[i] =
            i ? split_new(m, "ssm_a", 1, c->heads, 1, 1) : split_new(m, "dt", c->heads, 1, 1, 1);
        s = sheaf_split_state_new(i ? SHEAF_SPLIT_AXIS_1 : SHEAF_SPLIT_AXIS_0, d, 1);
        split_segment(s, 0, c->heads, 1, h.first, h.count);
        split_give(m, by_head[i], s);
    }
    struct sheaf_tensor *w_norm = split_new(m, "ssm_norm", inner / c->groups, c->groups, 1, 1);
    if (c->groups >= d) {
        s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_1, d, 1);
        split_segment(s, 0, c->groups, 1, h.group_first, h.group_count);
        split_give(m, w_norm, s);
    }
    struct sheaf_tensor *w_out = split_new(m, "ssm_out", inner, c->n_embd, 1, 1);
    s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, d, 1);
    split_segment(s, 0, c->heads, c->head_size, h.first, h.count);
    split_give(m, w_out, s);
    struct sheaf_tensor *ids = split_ids(m, "rs", c->seqs, 1, 1);
    for (int64_t i = 0; i < c->seqs; i++) ((int32_t *)ids->data)[i] = (int32_t)(c->seqs - i);

    const size_t one = sizeof(float);
    struct sheaf_tensor *zx =
        sheaf_mul_mat(ctx, w_in, sheaf_rms_norm(ctx, in, 1e-5f)); /* [width, n] */
    const size_t row = zx->nb[1], seq = row * (size_t)c->tokens;
    struct sheaf_tensor *z = sheaf_view_4d(ctx, zx, c->head_size, c->heads, c->tokens, c->seqs,
                                           (size_t)c->head_size * one, row, seq, 0);
    struct sheaf_tensor *xbc =
        sheaf_view_3d(ctx, zx, channels, c->tokens, c->seqs, row, seq, (size_t)inner * one);
    struct sheaf_tensor *dt = sheaf_view_3d(ctx, zx, c->heads, c->tokens, c->seqs, row, seq,
                                            (size_t)(inner + channels) * one);
    struct sheaf_tensor *conv =
        sheaf_reshape_3d(ctx, sheaf_get_rows(ctx, cache_r, ids), before, channels, c->seqs);
    conv = sheaf_concat(ctx, conv, sheaf_cont(ctx, sheaf_transpose(ctx, xbc)), 0);
    struct sheaf_tensor *last = sheaf_view_3d(ctx, conv, before, channels, c->seqs, conv->nb[1],
                                              conv->nb[2], (size_t)c->tokens * one);
    struct sheaf_tensor *to = sheaf_view_1d(ctx, cache_r, before * channels * c->seqs, 0);
    if (sheaf_build_forward_expand(m->graph, sheaf_cpy(ctx, last, to))) abort();
    xbc = sheaf_silu(ctx, sheaf_add(ctx, sheaf_ssm_conv(ctx, conv, w_conv), b_conv));
    const size_t r1 = xbc->nb[1], r2 = xbc->nb[2];
    struct sheaf_tensor *x = sheaf_view_4d(ctx, xbc, c->head_size, c->heads, c->tokens, c->seqs,
                                           (size_t)c->head_size * one, r1, r2, 0);
    struct sheaf_tensor *b[2];
    for (int i = 0; i < 2; i++)
        b[i] = sheaf_view_4d(ctx, xbc, c->state, c->groups, c->tokens, c->seqs,
                             (size_t)c->state * one, r1, r2, (size_t)(inner + i * bc) * one);
    dt = sheaf_add(ctx, sheaf_cont(ctx, dt), by_head[0]);
    struct sheaf_tensor *states =
        sheaf_reshape_4d(ctx, cache_s, c->state, c->head_size, c->heads, rows);
    struct sheaf_tensor *scan = sheaf_ssm_scan(ctx, states, x, dt, by_head[1], b[0], b[1], ids, 1);
    struct sheaf_tensor *kept =
        sheaf_view_1d(ctx, scan, c->state * inner * c->seqs, (size_t)(inner * n) * one);
    to = sheaf_view_1d(ctx, cache_s, c->state * inner * c->seqs, 0);
    if (sheaf_build_forward_expand(m->graph, sheaf_cpy(ctx, kept, to))) abort();
    struct sheaf_tensor *y = sheaf_view_4d(ctx, scan, c->head_size, c->heads, c->tokens, c->seqs,
                                           (size_t)c->head_size * one, (size_t)inner * one,
                                           (size_t)(inner * c->tokens) * one, 0);
    y = sheaf_add(ctx, y, sheaf_mul(ctx, x, by_head[2]));
    y = sheaf_swiglu_split(ctx, sheaf_cont(ctx, z), y);
    y = sheaf_reshape_3d(ctx, y, inner / c->groups, c->groups, n);
    y = sheaf_mul(ctx, sheaf_rms_norm(ctx, y, 1e-5f), w_norm);
    y = sheaf_mul_mat(ctx, w_out, sheaf_reshape_2d(ctx, y, inner, n));
    return sheaf_add(ctx, y, in);
}

/* A graph of such layers. */
static inline void split_mamba_graph(struct split_model *m, const struct split_mamba *c) {
    struct sheaf_tensor *x = split_new(m, "inp", c->n_embd, c->tokens * c->seqs, 1, 1);
    for (int l = 0; l < c->n_layers; l++) x = split_mamba_layer(m, c, x);
    if (!x || sheaf_build_forward_expand(m->graph, x)) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        abort();
    }
}

/* ---- gated delta net ---- */

struct split_delta {
    int64_t n_embd, k_heads, v_heads, size, tokens;
    bool uneven;
    bool by_key; /* cut by key heads, with all value heads of each; else by value heads alone */
};

/* Value heads h, h + k_heads, ...: a cut of key heads, for each round of value heads. */
static inline struct sheaf_split_state *split_rounds(int axis, int n, int64_t rounds, int64_t heads,
                                                     int64_t inner, const int64_t *count) {
    struct sheaf_split_state *s =
        sheaf_split_state_cut((enum sheaf_split_axis)axis, n, count, inner);
    s->segments[0].outer = rounds;
    (void)heads;
    return s;
}

static inline void split_delta_graph(struct split_model *m, const struct split_delta *c) {
    struct sheaf_context *ctx = m->ctx;
    const int d = m->n_members;
    const int64_t rounds = c->v_heads / c->k_heads, n = c->size;
    int64_t keys[64], values[64];
    split_counts(c->k_heads, d, c->uneven, keys);
    split_counts(c->v_heads, d, c->uneven, values);
    struct sheaf_tensor *in = split_new(m, "inp", c->n_embd, c->tokens, 1, 1), *qk[2], *w[4];
    for (int i = 0; i < 2; i++) {
        qk[i] = split_new(m, i ? "wk" : "wq", c->n_embd, c->k_heads * n, 1, 1);
        if (c->by_key) split_give(m, qk[i], sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, d, keys, n));
        qk[i] = sheaf_reshape_4d(ctx, sheaf_mul_mat(ctx, qk[i], in), n, c->k_heads, c->tokens, 1);
    }
    const int64_t wide[] = {n, 1, 1, n}; /* v, gate, beta, output */
    for (int i = 0; i < 4; i++) {
        const int64_t all = c->v_heads * wide[i];
        w[i] = i < 3 ? split_new(m, "wv", c->n_embd, all, 1, 1)
                     : split_new(m, "wo", all, c->n_embd, 1, 1);
        split_give(m, w[i],
                   c->by_key
                       ? split_rounds(i < 3, d, rounds, c->k_heads, wide[i], keys)
                       : sheaf_split_state_cut((enum sheaf_split_axis)(i < 3), d, values, wide[i]));
    }
    struct sheaf_tensor *cache = split_new(m, "cache_s", n * n * c->v_heads, 2, 1, 1);
    split_give(m, cache,
               c->by_key ? split_rounds(0, d, rounds, c->k_heads, n * n, keys)
                         : sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, d, values, n * n));
    struct sheaf_tensor *at = split_ids(m, "rs", 1, 1, 2);
    struct sheaf_tensor *v[3];
    for (int i = 0; i < 3; i++)
        v[i] =
            sheaf_reshape_4d(ctx, sheaf_mul_mat(ctx, w[i], in), wide[i], c->v_heads, c->tokens, 1);
    struct sheaf_tensor *state =
        sheaf_reshape_4d(ctx, sheaf_get_rows(ctx, cache, at), n, n, c->v_heads, 1);
    struct sheaf_tensor *net =
        sheaf_gated_delta_net(ctx, qk[0], qk[1], v[0], v[1], sheaf_sigmoid(ctx, v[2]), state, 1);
    const int64_t reads = n * c->v_heads * c->tokens;
    struct sheaf_tensor *kept =
        sheaf_view_1d(ctx, net, n * n * c->v_heads, (size_t)reads * sizeof(float));
    struct sheaf_tensor *to = sheaf_view_1d(ctx, cache, n * n * c->v_heads, 0);
    if (sheaf_build_forward_expand(m->graph, sheaf_cpy(ctx, kept, to))) abort();
    struct sheaf_tensor *y =
        sheaf_view_3d(ctx, net, n, c->v_heads, c->tokens, (size_t)n * sizeof(float),
                      (size_t)(n * c->v_heads) * sizeof(float), 0);
    y = sheaf_rms_norm(ctx, y, 1e-5f); /* by head */
    y = sheaf_mul_mat(ctx, w[3], sheaf_reshape_2d(ctx, y, n * c->v_heads, c->tokens));
    y = sheaf_add(ctx, y, in);
    if (!y || sheaf_build_forward_expand(m->graph, y)) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        abort();
    }
}

#endif
