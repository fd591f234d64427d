/* Random graphs of ops with random states of their leaves: cuts of any order, with holes, overlaps
 * and several segments. The same seed makes the same graph. */
#ifndef SHEAF_TESTS_SPLIT_RANDOM_H
#define SHEAF_TESTS_SPLIT_RANDOM_H

#include "split_graphs.h"

typedef struct sheaf_tensor T;

enum { MAX_POOL = 96, MAX_ELEMENTS = 1500 };

struct maker {
    struct split_model m;
    T *pool[MAX_POOL];
    int n_pool;
    uint64_t seed;
    const uint8_t *bytes; /* choices, as long as there are any; then the seed makes them */
    size_t n_bytes;
};

static int64_t below(struct maker *k, int64_t n) {
    if (k->n_bytes) {
        k->n_bytes--;
        return *k->bytes++ % n;
    }
    return (int64_t)(split_random(&k->seed) % (uint64_t)n);
}
static bool one_in(struct maker *k, int n) { return below(k, n) == 0; }

/* ---- leaf states ---- */

/* One segment of `length` indices: units, repeats, order of members, holes and overlaps at random.
 */
static void random_segment(struct maker *k, struct sheaf_split_segment *s, int64_t length,
                           bool overlap) {
    const int d = k->m.n_members;
    s->outer = length % 2 == 0 && one_in(k, 4) ? 2 : 1;
    length /= s->outer;
    s->inner = 1;
    for (int64_t i = 2; i <= 4; i++) {
        if (length % i == 0 && one_in(k, 2)) s->inner = i;
    }
    s->units = length / s->inner;
    int order[64];
    for (int j = 0; j < d; j++) order[j] = j;
    if (one_in(k, 3)) {
        for (int j = d - 1; j > 0; j--) {
            const int o = (int)below(k, j + 1), t = order[j];
            order[j] = order[o];
            order[o] = t;
        }
    }
    int64_t at = 0;
    for (int j = 0; j < d; j++) {
        const int64_t left = s->units - at;
        int64_t n = j == d - 1 ? left : below(k, left * 2 / (d - j) + 1);
        if (n > left) n = left;
        s->first[order[j]] = at;
        s->count[order[j]] = n;
        at += n;
        if (overlap && at < s->units && n > 0 && one_in(k, 2)) s->count[order[j]]++;
    }
}

static struct sheaf_split_state *random_state(struct maker *k, const T *t) {
    const int d = k->m.n_members;
    if (one_in(k, 4)) return sheaf_split_state_mirrored(d);
    if (t->type == SHEAF_TYPE_F32 && one_in(k, 5)) return sheaf_split_state_partial(d);
    int axis = (int)below(k, 4);
    for (int i = 0; i < 4 && t->ne[axis] < 2; i++) axis = (axis + 1) % 4;
    const int n = one_in(k, 5) ? 2 : 1;
    struct sheaf_split_state *s = sheaf_split_state_new((enum sheaf_split_axis)axis, d, n);
    const bool overlap = one_in(k, 8);
    const int64_t part = n == 1 ? t->ne[axis] : t->ne[axis] / 2;
    random_segment(k, &s->segments[0], part, overlap);
    if (n == 2) random_segment(k, &s->segments[1], t->ne[axis] - part, overlap);
    for (int j = 0; n == 2 && j < d && overlap; j++) { /* which all members have */
        s->segments[1].first[j] = 0;
        s->segments[1].count[j] = s->segments[1].units;
    }
    return s;
}

static T *leaf(struct maker *k, int64_t a, int64_t b, int64_t c, int64_t d) {
    T *t = split_new(&k->m, "leaf", a, b, c, d);
    sheaf_format_name(t, "leaf%d", k->m.n_leaves);
    split_give(&k->m, t, random_state(k, t));
    return t;
}
static T *leaf_like(struct maker *k, const T *t) {
    return leaf(k, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
}
static T *ids(struct maker *k, int64_t a, int64_t b, int64_t limit) {
    T *t = split_ids(&k->m, "ids", a, b, limit);
    if (one_in(k, 3)) split_give(&k->m, t, random_state(k, t));
    return t;
}
/* Distinct row numbers. */
static T *places(struct maker *k, int64_t n, int64_t limit) {
    T *t = split_ids(&k->m, "places", n, 1, limit);
    const int64_t start = below(k, limit);
    for (int64_t i = 0; i < n; i++) ((int32_t *)t->data)[i] = (int32_t)((start + i) % limit);
    return t;
}

/* ---- nodes ---- */

static T *pick(struct maker *k) { return k->pool[below(k, k->n_pool)]; }
static bool is_f32(const T *t) { return t->type == SHEAF_TYPE_F32; }

/* Another tensor of the shape: from the pool if there is one, else a leaf. */
static T *partner(struct maker *k, const T *a) {
    for (int i = 0; i < 8; i++) {
        T *b = pick(k);
        if (is_f32(b) && sheaf_are_same_shape(a, b)) return b;
    }
    return leaf_like(k, a);
}

static T *broadcast(struct maker *k, const T *a) {
    int64_t ne[4];
    for (int i = 0; i < 4; i++) {
        ne[i] = a->ne[i];
        if (one_in(k, 2)) ne[i] = 1;
        if (ne[i] % 2 == 0 && one_in(k, 6)) ne[i] /= 2;
    }
    return leaf(k, ne[0], ne[1], ne[2], ne[3]);
}

static T *random_reshape(struct maker *k, T *a) {
    if (!sheaf_is_contiguous(a)) a = sheaf_cont(k->m.ctx, a);
    int64_t left = sheaf_nelements(a), ne[4] = {1, 1, 1, 1};
    if (one_in(k, 2)) { /* join or part two neighbours */
        memcpy(ne, a->ne, sizeof ne);
        const int i = (int)below(k, 3);
        if (one_in(k, 2) || ne[3] != 1 || i == 2) {
            ne[i] *= ne[i + 1];
            for (int j = i + 1; j < 3; j++) ne[j] = ne[j + 1];
            ne[3] = 1;
        } else {
            int64_t f = 1 + below(k, ne[i]);
            while (ne[i] % f) f--;
            for (int j = 3; j > i + 1; j--) ne[j] = ne[j - 1];
            ne[i + 1] = ne[i] / f;
            ne[i] = f;
        }
        int64_t n = 1;
        for (int j = 0; j < 4; j++) n *= ne[j];
        if (n == left) return sheaf_reshape_4d(k->m.ctx, a, ne[0], ne[1], ne[2], ne[3]);
    }
    for (int i = 0; i < 3; i++) {
        int64_t f = 1 + below(k, left < 12 ? left : 12);
        while (left % f) f--;
        ne[i] = f;
        left /= f;
    }
    ne[3] = left;
    return sheaf_reshape_4d(k->m.ctx, a, ne[0], ne[1], ne[2], ne[3]);
}

static T *random_view(struct maker *k, T *a) {
    int64_t ne[4];
    size_t offset = 0;
    for (int i = 0; i < 4; i++) {
        const int64_t n = one_in(k, 2) ? a->ne[i] : 1 + below(k, a->ne[i]);
        offset += (size_t)below(k, a->ne[i] - n + 1) * a->nb[i];
        ne[i] = n;
    }
    if (a->nb[0] != sizeof(float)) return NULL;
    if (ne[3] == 1 && ne[0] % 2 == 0 && one_in(k, 2)) /* heads */
        return sheaf_view_4d(k->m.ctx, a, ne[0] / 2, 2, ne[1], ne[2],
                             (size_t)(ne[0] / 2) * sizeof(float), a->nb[1], a->nb[2], offset);
    return sheaf_view_4d(k->m.ctx, a, ne[0], ne[1], ne[2], ne[3], a->nb[1], a->nb[2], a->nb[3],
                         offset);
}

static T *random_permute(struct maker *k, T *a) {
    int axis[4] = {0, 1, 2, 3};
    for (int i = 3; i > 0; i--) {
        const int j = (int)below(k, i + 1), t = axis[i];
        axis[i] = axis[j];
        axis[j] = t;
    }
    return sheaf_permute(k->m.ctx, a, axis[0], axis[1], axis[2], axis[3]);
}

static T *random_product(struct maker *k, T *a) {
    struct sheaf_context *c = k->m.ctx;
    if (one_in(k, 4) && !sheaf_is_transposed(a)) { /* as weights */
        const int64_t r = 1 + below(k, 3);
        return sheaf_mul_mat(c, a, leaf(k, a->ne[0], 1 + below(k, 5), a->ne[2] * r, a->ne[3]));
    }
    int64_t g = a->ne[2], s = a->ne[3];
    if (one_in(k, 2)) g = 1;
    if (g % 2 == 0 && one_in(k, 2)) g /= 2;
    if (one_in(k, 2)) s = 1;
    return sheaf_mul_mat(c, leaf(k, a->ne[0], 2 + below(k, 7), g, s), a);
}

static T *random_experts(struct maker *k, T *a) {
    struct sheaf_context *c = k->m.ctx;
    if (a->ne[3] != 1) return NULL;
    const int64_t x = 2 + below(k, 4), u = a->ne[1] == 1 ? 1 + below(k, 3) : a->ne[1];
    return sheaf_mul_mat_id(c, leaf(k, a->ne[0], 2 + below(k, 6), x, 1), a, ids(k, u, a->ne[2], x));
}

/* A gated unit of experts. Three of four times all weights are cut by experts, alike, so that what
 * the members have does not overlap. */
static T *expert_weight(struct maker *k, int64_t a, int64_t b, int64_t x, const int64_t *counts) {
    T *t = split_new(&k->m, "experts", a, b, x, 1);
    split_give(&k->m, t,
               counts ? sheaf_split_state_cut(SHEAF_SPLIT_AXIS_2, k->m.n_members, counts, 1)
                      : random_state(k, t));
    return t;
}
static T *random_gated_experts(struct maker *k, T *a) {
    struct sheaf_context *c = k->m.ctx;
    if (a->ne[3] != 1 || sheaf_is_transposed(a)) return NULL;
    const int64_t x = 2 + below(k, 5), u = a->ne[1] == 1 ? 1 + below(k, 3) : a->ne[1];
    const int64_t f = 2 + below(k, 6);
    int64_t counts[64], n = x;
    for (int j = 0; j < k->m.n_members; j++) {
        counts[j] = j == k->m.n_members - 1 ? n : below(k, n + 1);
        n -= counts[j];
    }
    const int64_t *cut = one_in(k, 4) ? NULL : counts;
    T *at = split_ids(&k->m, "experts used", u, a->ne[2], x);
    T *gate = sheaf_mul_mat_id(c, expert_weight(k, a->ne[0], f, x, cut), a, at);
    T *up = sheaf_mul_mat_id(c, expert_weight(k, a->ne[0], f, x, cut), a, at);
    T *unit = one_in(k, 2) ? sheaf_geglu_split(c, gate, up) : sheaf_mul(c, sheaf_silu(c, gate), up);
    if (one_in(k, 4)) unit = sheaf_rms_norm(c, unit, 1e-3f);
    if (one_in(k, 2))
        unit = sheaf_mul_mat_id(c, expert_weight(k, f, 2 + below(k, 6), x, cut), unit, at);
    return one_in(k, 2) ? sheaf_mul(c, unit, leaf(k, 1, u, a->ne[2], 1)) : unit;
}

static T *random_attention(struct maker *k, T *q) {
    struct sheaf_context *c = k->m.ctx;
    int64_t g = q->ne[2];
    if (one_in(k, 3)) g = 1;
    if (g % 2 == 0 && one_in(k, 2)) g /= 2;
    const int64_t t = 2 + below(k, 6), s = q->ne[3];
    T *key = leaf(k, q->ne[0], t, g, s), *value = leaf(k, 2 + below(k, 6), t, g, s);
    T *mask = NULL;
    if (one_in(k, 2)) {
        mask = leaf(k, t, q->ne[1] + (one_in(k, 4) ? 3 : 0), one_in(k, 2) ? 1 : q->ne[2],
                    one_in(k, 2) ? 1 : s);
    }
    return sheaf_flash_attn_ext(c, q, key, value, mask, 0.5f, mask && one_in(k, 3) ? 8.0f : 0,
                                one_in(k, 4) ? 3.0f : 0);
}

static T *random_rope(struct maker *k, T *a) {
    if (a->ne[0] < 2) return NULL;
    int n_dims = (int)(a->ne[0] / 2 * 2);
    if (n_dims > 2 && one_in(k, 3)) n_dims -= 2;
    /* not PARTIAL: positions magnify the rounding of a sum */
    T *freq = one_in(k, 3) ? split_new(&k->m, "freq", n_dims / 2, 1, 1, 1) : NULL;
    return sheaf_rope_ext(k->m.ctx, a, ids(k, a->ne[2], 1, 40), freq, n_dims,
                          one_in(k, 2) ? SHEAF_ROPE_TYPE_NEOX : SHEAF_ROPE_TYPE_NORMAL, 64, 1e4f, 1,
                          0, 1, 32, 1);
}

/* Writes into a cache (or a part of it) and returns something that reads it back. */
static T *random_write(struct maker *k, T *a) {
    struct sheaf_context *c = k->m.ctx;
    const int64_t more = below(k, 4);
    T *cache = leaf(k, a->ne[0], a->ne[1] + more, a->ne[2], a->ne[3]), *written;
    if (one_in(k, 3)) k->pool[k->n_pool++] = sheaf_scale(c, cache, 0.5f); /* before the write */
    if (k->n_pool > 0 && k->pool[k->n_pool - 1]->src[0] == cache)
        sheaf_build_forward_expand(k->m.graph, k->pool[k->n_pool - 1]);
    if (one_in(k, 2)) {
        written = sheaf_set_rows(c, cache, a, places(k, a->ne[1], cache->ne[1]));
    } else {
        T *part =
            sheaf_view_4d(c, cache, a->ne[0], a->ne[1], a->ne[2], a->ne[3], cache->nb[1],
                          cache->nb[2], cache->nb[3], (size_t)below(k, more + 1) * cache->nb[1]);
        if (one_in(k, 4) && a->ne[2] * a->ne[3] == 1) /* flat, as older caches are written */
            part = sheaf_view_1d(c, cache, a->ne[0] * a->ne[1],
                                 (size_t)below(k, more + 1) * cache->nb[1]);
        written = sheaf_cpy(c, a, part);
    }
    if (!written || sheaf_build_forward_expand(k->m.graph, written) != SHEAF_STATUS_SUCCESS)
        return NULL;
    if (one_in(k, 3)) return sheaf_scale(c, cache, 1.5f);
    return one_in(k, 2) ? written : random_view(k, cache);
}

/* A part of a flat result, from element `first` on. */
static T *part_of(struct maker *k, T *flat, int64_t first, int64_t a, int64_t b, int64_t c,
                  int64_t d) {
    const size_t one = sizeof(float);
    if (!flat || one_in(k, 4)) return flat;
    return sheaf_view_4d(k->m.ctx, flat, a, b, c, d, (size_t)a * one, (size_t)(a * b) * one,
                         (size_t)(a * b * c) * one, (size_t)first * one);
}

static int64_t divisor(struct maker *k, int64_t n) {
    int64_t g = 1 + below(k, n);
    while (n % g) g--;
    return g;
}

static T *random_scan(struct maker *k, T *x) {
    struct sheaf_context *c = k->m.ctx;
    const int64_t d = x->ne[0], h = x->ne[1], t = x->ne[2], s = x->ne[3];
    const int64_t n = 1 + below(k, 4), g = divisor(k, h), seqs = s + below(k, 3);
    const bool each = one_in(k, 2);
    const int kept = each ? 1 : 1 + (int)below(k, 2);
    T *y = sheaf_ssm_scan(c, leaf(k, n, d, h, seqs), x, leaf(k, h, t, s, 1),
                          leaf(k, each ? n : 1, h, 1, 1), leaf(k, n, g, t, s), leaf(k, n, g, t, s),
                          ids(k, s, 1, seqs), kept);
    return one_in(k, 2) ? part_of(k, y, 0, d, h, t, s)
                        : part_of(k, y, d * h * t * s, n, d, h, s * kept);
}

static T *random_delta_net(struct maker *k, T *v) {
    const int64_t n = v->ne[0], h = v->ne[1], t = v->ne[2], s = v->ne[3], g = divisor(k, h);
    const int kept = 1 + (int)below(k, 2);
    if (n > 6) return NULL;
    T *y = sheaf_gated_delta_net(k->m.ctx, leaf(k, n, g, t, s), leaf(k, n, g, t, s), v,
                                 leaf(k, one_in(k, 2) ? n : 1, h, t, s), leaf(k, 1, h, t, s),
                                 leaf(k, n, n, h, s), kept);
    return one_in(k, 2) ? part_of(k, y, 0, n, h, t, s)
                        : part_of(k, y, n * h * t * s, n, n, h, s * kept);
}

static T *random_heads(struct maker *k, T *v) {
    struct sheaf_context *c = k->m.ctx;
    const int64_t n = v->ne[0], h = v->ne[1], t = v->ne[2], s = divisor(k, t);
    if (v->ne[3] != 1 || n > 6) return NULL;
    T *x[4], *state = leaf(k, n * n * h, s, 1, 1), *y;
    for (int i = 0; i < 4; i++) x[i] = leaf_like(k, v);
    if (one_in(k, 3)) {
        y = sheaf_rwkv_wkv6(c, x[0], v, x[1], leaf(k, n, h, 1, 1), x[2], state);
    } else if (one_in(k, 2)) {
        y = sheaf_rwkv_wkv7(c, x[0], x[1], x[2], v, x[3], x[1], state);
    } else {
        y = sheaf_gated_linear_attn(c, x[0], v, x[1], x[2], state, 0.5f);
    }
    return one_in(k, 2) ? part_of(k, y, 0, n, h, t, 1) : part_of(k, y, n * h * t, n * n, h, s, 1);
}

static T *random_convolution(struct maker *k, T *x) {
    if (x->ne[3] != 1) return NULL;
    return sheaf_ssm_conv(k->m.ctx, x, leaf(k, 1 + below(k, x->ne[0]), x->ne[1], 1, 1));
}

static T *random_state_layer(struct maker *k, T *a) {
    static T *(*const make[])(struct maker *, T *) = {random_scan, random_delta_net, random_heads,
                                                      random_convolution};
    return make[below(k, 4)](k, a);
}

/* Experts cut alike with biases. */
static T *random_bias(struct maker *k, T *a) {
    struct sheaf_context *c = k->m.ctx;
    if (a->ne[3] != 1 || sheaf_is_transposed(a)) return NULL;
    const int64_t x = 2 + below(k, 5), u = a->ne[1] == 1 ? 1 + below(k, 3) : a->ne[1];
    int64_t counts[64], n = x;
    for (int j = 0; j < k->m.n_members; j++) {
        counts[j] = j == k->m.n_members - 1 ? n : below(k, n + 1);
        n -= counts[j];
    }
    T *at = split_ids(&k->m, "experts used", u, a->ne[2], x);
    T *bias = split_new(&k->m, "biases", 2 + below(k, 6), x, 1, 1);
    split_give(&k->m, bias,
               one_in(k, 4) ? random_state(k, bias)
                            : sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, k->m.n_members, counts, 1));
    T *w = expert_weight(k, a->ne[0], bias->ne[0], x, one_in(k, 4) ? NULL : counts);
    return sheaf_add_id(c, sheaf_mul_mat_id(c, w, a, at), bias, at);
}

static T *random_place(struct maker *k, T *a) {
    struct sheaf_context *c = k->m.ctx;
    int ends[2][4];
    int64_t ne[4], start[4];
    for (int i = 0; i < 4; i++) {
        ends[0][i] = one_in(k, 4) ? (int)below(k, 3) : 0;
        ends[1][i] = one_in(k, 4) ? (int)below(k, 3) : 0;
        ne[i] = one_in(k, 2) ? a->ne[i] : 1 + below(k, a->ne[i]);
        start[i] = below(k, a->ne[i] - ne[i] + 1);
    }
    switch (below(k, 6)) {
    case 0:
        return sheaf_repeat_4d(c, a, a->ne[0] * (1 + below(k, 2)), a->ne[1] * (1 + below(k, 2)),
                               a->ne[2] * (1 + below(k, 2)), a->ne[3] * (1 + below(k, 2)));
    case 1:
        return sheaf_pad(c, a, ends[0], ends[1], one_in(k, 4));
    case 2:
        return sheaf_set(c, a, leaf(k, ne[0], ne[1], ne[2], ne[3]), start);
    case 3:
        return sheaf_acc(c, a, leaf(k, ne[0], ne[1], ne[2], ne[3]), start);
    case 4:
        return sheaf_roll(c, a, ends[0]);
    default:
        return sheaf_add(c, a, sheaf_fill(c, a, 0.5f));
    }
}

/* Ops whose results do not jump where an operand moves by a rounding. */
static T *random_map_or_row(struct maker *k, T *a) {
    struct sheaf_context *c = k->m.ctx;
    const int64_t n = a->ne[0];
    switch (below(k, 17)) {
    case 0:
        return sheaf_norm(c, a, 0.1f);
    case 1:
        return sheaf_l2_norm(c, a, 0.1f);
    case 2:
        return sheaf_group_norm(c, a, (int)divisor(k, a->ne[2]), 0.1f);
    case 3:
        return sheaf_mean(c, a);
    case 4:
        return sheaf_sum(c, a);
    case 5:
        return sheaf_clamp(c, a, -0.5f, one_in(k, 2) ? 0.75f : -0.25f);
    case 6:
        return sheaf_leaky_relu(c, a, 0.1f);
    case 7:
        return sheaf_sin(c, a);
    case 8:
        return sheaf_unary(c, a, SHEAF_UNARY_OP_SOFTPLUS);
    case 9:
        return sheaf_unary(c, a, SHEAF_UNARY_OP_GELU_ERF);
    case 10:
        return sheaf_swiglu_oai(c, a, partner(k, a), 1.7f, 3.0f);
    case 11:
        return sheaf_swiglu_clamp(c, a, partner(k, a), 3.0f);
    case 12:
        return sheaf_cumsum(c, a);
    case 13:
        return sheaf_diag_mask_zero(c, a, (int)below(k, 3));
    case 14:
        return a->ne[1] > 6
                   ? NULL
                   : sheaf_solve_tri(c, leaf(k, a->ne[1], a->ne[1], a->ne[2], a->ne[3]), a);
    case 15:
        return n % 2 ? NULL
                     : sheaf_pool_1d(c, a, one_in(k, 2) ? SHEAF_POOL_MAX : SHEAF_POOL_AVG, 2, 2, 0);
    default:
        return sheaf_sqr(c, a);
    }
}

static T *random_node(struct maker *k) {
    struct sheaf_context *c = k->m.ctx;
    T *a = pick(k);
    for (int i = 0; i < 8 && !is_f32(a); i++) a = pick(k);
    if (!is_f32(a)) return NULL;
    if (one_in(k, 6)) a = sheaf_cont(c, a);
    if (one_in(k, 10)) return random_state_layer(k, a);
    if (one_in(k, 8)) return random_map_or_row(k, a);
    if (one_in(k, 16)) return random_place(k, a);
    if (one_in(k, 30)) return random_bias(k, a);
    switch (below(k, 29)) {
    case 0:
        return sheaf_add(c, a, partner(k, a));
    case 1:
        return sheaf_add(c, a, broadcast(k, a));
    case 2:
        return sheaf_sub(c, a, one_in(k, 2) ? partner(k, a) : broadcast(k, a));
    case 3:
        return sheaf_mul(c, a, partner(k, a));
    case 4:
        return sheaf_mul(c, a, broadcast(k, a));
    case 5:
        return sheaf_div(c, a, leaf_like(k, a));
    case 6:
        return one_in(k, 2) ? sheaf_scale(c, a, -0.7f) : sheaf_scale_bias(c, a, 0.7f, 0.2f);
    case 7:
        return sheaf_silu(c, a);
    case 8:
        return sheaf_unary(c, a, SHEAF_UNARY_OP_NEG);
    case 9:
        return sheaf_rms_norm(c, a, 1e-3f);
    case 10: {
        T *mask = one_in(k, 2) ? leaf(k, a->ne[0], a->ne[1] + (one_in(k, 4) ? 2 : 0),
                                      one_in(k, 2) ? 1 : a->ne[2], one_in(k, 2) ? 1 : a->ne[3])
                               : NULL;
        return sheaf_soft_max_ext(c, a, mask, 0.5f, mask && one_in(k, 3) ? 8.0f : 0);
    }
    case 11:
        return sheaf_sum_rows(c, a);
    case 12:
    case 13:
    case 14:
        return random_product(k, a);
    case 15:
        return random_experts(k, a);
    case 16:
    case 17:
        return random_reshape(k, a);
    case 18:
        return random_permute(k, a);
    case 19:
        return random_view(k, a);
    case 20: {
        const int dim = (int)below(k, 4);
        int64_t ne[4];
        memcpy(ne, a->ne, sizeof ne);
        if (one_in(k, 2)) ne[dim] = 1 + below(k, 4);
        return sheaf_concat(c, a, leaf(k, ne[0], ne[1], ne[2], ne[3]), dim);
    }
    case 21:
        return a->ne[0] % 2 ? NULL : sheaf_glu(c, a, SHEAF_GLU_OP_SWIGLU, one_in(k, 2));
    case 22:
        return sheaf_geglu_split(c, a, partner(k, a));
    case 23: {
        if (a->ne[3] != 1 && a->ne[2] * a->ne[3] > 64) return NULL;
        T *at = sheaf_new_tensor_3d(c, SHEAF_TYPE_I32, 1 + below(k, 5), a->ne[2], a->ne[3]);
        if (!at) return NULL;
        for (int64_t i = 0; i < sheaf_nelements(at); i++)
            ((int32_t *)at->data)[i] = (int32_t)below(k, a->ne[1]);
        return sheaf_get_rows(c, a, at);
    }
    case 24:
        return random_write(k, a);
    case 25:
        return random_rope(k, a);
    case 26:
        return random_attention(k, a);
    case 27:
        return random_gated_experts(k, a);
    default:
        return sheaf_top_k(c, a, 1 + (int)below(k, a->ne[0]));
    }
}

static bool acceptable(T *t) {
    return t && !sheaf_is_empty(t) && sheaf_nelements(t) <= MAX_ELEMENTS;
}

/* All nodes below t can be computed by the CPU, whole and in slices: rows of operands are dense. */
static bool computable(const T *t) {
    if (sheaf_op_is_view(t->op) || t->op == SHEAF_OP_NONE) return true;
    if (!sheaf_backend_supports_op(split_backend(), t)) return false;
    for (int i = 0; i < SHEAF_MAX_SRC && t->src[i]; i++) {
        const bool copies = t->op == SHEAF_OP_CONT || t->op == SHEAF_OP_CPY;
        if (!copies && t->src[i]->nb[0] != sheaf_type_size(t->src[i]->type)) return false;
    }
    return true;
}

/* Writes the result over an operand, if the op can. */
static void over_operand(struct maker *k, T *t) {
    const struct sheaf__op_info *info = sheaf__op_info(t->op);
    const int i = info->in_place ? (int)below(k, info->in_place) : 0;
    if (t->view_src || i >= info->in_place || !t->src[i]) return;
    if (t->type != t->src[i]->type || !sheaf_are_same_shape(t, t->src[i])) return;
    const T before = *t;
    if (!sheaf_in_place(t, i) || !computable(t)) *t = before;
}

/* k: its seed and bytes are set, the rest is zero. */
static inline void grow_graph(struct maker *k, int most_nodes, int n_members) {
    const uint64_t seed = k->seed;
    const int any = 2 + (int)below(k, 4);
    split_model_init_sized(&k->m, n_members ? n_members : any, seed ^ 0x55, 1 << 20, 256);
    for (int i = 0; i < 3; i++)
        k->pool[k->n_pool++] =
            leaf(k, 2 + below(k, 11), 1 + below(k, 9), 1 + below(k, 5), one_in(k, 4) ? 2 : 1);
    const int n = 3 + (int)below(k, most_nodes);
    for (int i = 0; i < n && k->n_pool < MAX_POOL - 4 && k->m.n_leaves < SPLIT_MAX_LEAVES - 8;
         i++) {
        T *t = random_node(k);
        if (!acceptable(t)) continue;
        /* a graph whose constructors refused something already written is still a graph */
        if (!computable(t)) {
            T *dense = t->src[0] ? NULL : t;
            if (!dense) continue;
        }
        bool inputs = true;
        for (int s = 0; s < SHEAF_MAX_SRC && t->src[s]; s++)
            inputs = inputs && computable(t->src[s]);
        if (!inputs) continue;
        if (one_in(k, 6)) over_operand(k, t);
        if (one_in(k, 8)) sheaf_set_output(t);
        if (sheaf_build_forward_expand(k->m.graph, t) != SHEAF_STATUS_SUCCESS) continue;
        k->pool[k->n_pool++] = t;
    }
}

/* At most most_nodes more than a few; n_members 0: 2..5. */
static inline void make_graph_for(struct maker *k, uint64_t seed, int most_nodes, int n_members) {
    memset(k, 0, sizeof *k);
    k->seed = seed;
    grow_graph(k, most_nodes, n_members);
}

/* The bytes choose the graph; data are as the number of bytes has it. */
static inline void make_graph_of(struct maker *k, const uint8_t *bytes, size_t n, int most_nodes,
                                 int n_members) {
    memset(k, 0, sizeof *k);
    k->seed = n;
    k->bytes = bytes;
    k->n_bytes = n;
    grow_graph(k, most_nodes, n_members);
}

/* A node of a graph of few tensors, views of them, and writes over both. */
static T *random_view_node(struct maker *k) {
    struct sheaf_context *c = k->m.ctx;
    T *a = pick(k), *t;
    switch (below(k, 9)) {
    case 0:
    case 1:
        return sheaf_mul(c, a, leaf_like(k, a));
    case 2:
        return one_in(k, 2) ? sheaf_transpose(c, a) : random_permute(k, a);
    case 3:
    case 4:
        return random_view(k, a);
    case 5:
    case 6:
        t = one_in(k, 2)   ? sheaf_scale(c, a, 0.8f)
            : one_in(k, 2) ? sheaf_tanh(c, a)
                           : sheaf_mul(c, a, leaf_like(k, a));
        return sheaf_in_place(t, 0);
    case 7:
        return sheaf_cont(c, a);
    default:
        return one_in(k, 2) ? sheaf_scale(c, a, 1.1f) : sheaf_sum_rows(c, a);
    }
}

/* Views are read before and after writes to the memory that they show. */
static inline void make_view_graph(struct maker *k, uint64_t seed, int most_nodes) {
    memset(k, 0, sizeof *k);
    k->seed = seed;
    split_model_init_sized(&k->m, 2 + (int)below(k, 4), seed ^ 0x55, 1 << 20, 256);
    T *x = split_new(&k->m, "leaf", 2 + below(k, 7), 2 + below(k, 6), 1 + below(k, 2), 1);
    split_give(&k->m, x,
               one_in(k, 2) ? sheaf_split_state_partial(k->m.n_members) : random_state(k, x));
    k->pool[k->n_pool++] = x;
    if (one_in(k, 2)) {
        T *y = sheaf_mul_mat(k->m.ctx, leaf(k, 5, x->ne[0], 1, 1), leaf(k, 5, x->ne[1], 1, 1));
        if (!sheaf_build_forward_expand(k->m.graph, y)) k->pool[k->n_pool++] = y;
    }
    for (int i = 0; i < most_nodes; i++) {
        T *t = random_view_node(k);
        if (!acceptable(t) || !computable(t)) continue;
        if (one_in(k, 8)) sheaf_set_output(t);
        if (!sheaf_build_forward_expand(k->m.graph, t)) k->pool[k->n_pool++] = t;
    }
}

static inline void make_graph(struct maker *k, uint64_t seed, int most_nodes) {
    make_graph_for(k, seed, most_nodes, 0);
}

#endif
