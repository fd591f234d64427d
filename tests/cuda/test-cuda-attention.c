/* Attention of the CUDA device against its formula in double: types of the cache, sizes of heads, groups,
 * parts of the keys, what masks hide, each also with blocks and warps in an order by chance. */
#include <criterion/criterion.h>
#include <math.h>

#include "attention_part.h"
#include "rig.h"

enum {
    HIDDEN_NAN = 1,
    SINKS = 2,
    CAUSAL = 4,
    SAME = 8,
    NO_MASK = 16,
    TILES = 32,
    GAP = 64,
    LARGE = 128, /* scores, so that the largest of a row grows again and again */
    PAST = 256   /* causal without a window: tiles seen whole, by part of the rows, by none */
};

static const struct attention {
    int64_t d, e, t, n, heads, kv, seqs;
    enum sheaf_type k, v;
    float max_bias, softcap;
    int flags;
    int base, group; /* of heads that divide a group */
} cases[] = {
    {64, 64, 1, 1, 4, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, NO_MASK, 0, 0},
    {64, 64, 33, 1, 1, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, 0, 0, 0},
    {128, 128, 700, 1, 8, 2, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, HIDDEN_NAN, 0, 0},
    {128, 128, 129, 1, 2, 2, 2, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q8_0, 0, 0, HIDDEN_NAN, 0, 0},
    {128, 128, 513, 1, 32, 4, 1, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_0, 0, 0, 0, 0, 0},
    {64, 64, 300, 3, 6, 2, 1, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, 0, 0, CAUSAL, 0, 0},
    {80, 80, 100, 2, 3, 3, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 8, 0, CAUSAL, 0, 0},
    {96, 96, 65, 5, 4, 4, 1, SHEAF_TYPE_BF16, SHEAF_TYPE_F16, 0, 20, CAUSAL, 0, 0},
    {192, 128, 97, 1, 5, 5, 1, SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0, 0, 0, SINKS, 0, 0},
    {256, 256, 260, 2, 4, 2, 1, SHEAF_TYPE_F16, SHEAF_TYPE_BF16, 4, 30, CAUSAL | SINKS, 0, 0},
    {256, 256, 130, 1, 16, 1, 1, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q8_0, 0, 0, 0, 0, 0},
    {576, 512, 140, 1, 16, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, SAME | HIDDEN_NAN, 0, 0},
    {576, 512, 70, 2, 9, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, CAUSAL, 0, 0},
    {576, 576, 40, 1, 2, 1, 1, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q8_0, 0, 0, SAME, 0, 0},
    {96, 96, 70, 1, 3, 1, 1, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q8_0, 0, 0, 0, 0, 0}, /* rows of 102 bytes */
    {128, 128, 300, 40, 4, 2, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, CAUSAL | HIDDEN_NAN, 0, 0},
    {64, 64, 352, 40, 2, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, TILES | HIDDEN_NAN, 0, 0},
    {64, 64, 200, 9, 4, 4, 1, SHEAF_TYPE_F32, SHEAF_TYPE_F32, 0, 0, CAUSAL, 0, 0},
    {64, 64, 300, 1, 5, 2, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, 0, 0, 3},
    {64, 64, 130, 3, 4, 2, 1, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q8_0, 0, 0, CAUSAL | SINKS, 5, 3},
    {64, 64, 352, 40, 4, 2, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, TILES | HIDDEN_NAN, 5, 3},
    {64, 64, 100, 5, 7, 3, 2, SHEAF_TYPE_F32, SHEAF_TYPE_F32, 0, 0, CAUSAL, 2, 4},
    /* few queries by tensor cores: up to 8 rows, up to 16, several groups of rows; one part and several */
    {128, 128, 250, 1, 4, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, HIDDEN_NAN, 0, 0},
    {128, 128, 1000, 1, 12, 1, 2, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, HIDDEN_NAN | SINKS, 0, 0},
    {128, 128, 270, 7, 6, 2, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, CAUSAL | HIDDEN_NAN, 0, 0},
    {128, 128, 391, 1, 8, 1, 1, SHEAF_TYPE_BF16, SHEAF_TYPE_BF16, 0, 0, HIDDEN_NAN, 0, 0},
    {64, 64, 1025, 4, 8, 2, 1, SHEAF_TYPE_BF16, SHEAF_TYPE_BF16, 8, 0, CAUSAL | SINKS, 0, 0},
    {64, 64, 270, 4, 7, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, TILES | HIDDEN_NAN, 0, 0},
    {192, 128, 301, 1, 3, 3, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 25, HIDDEN_NAN, 0, 0},
    {256, 256, 420, 3, 8, 2, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, CAUSAL | HIDDEN_NAN, 0, 0},
    {256, 256, 100, 1, 8, 1, 1, SHEAF_TYPE_BF16, SHEAF_TYPE_BF16, 0, 0, 0, 0, 0},
    {80, 112, 333, 1, 9, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, HIDDEN_NAN, 0, 0},
    {64, 64, 600, 3, 7, 3, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, CAUSAL | SINKS, 2, 4},
    {128, 128, 237, 70, 4, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, PAST | HIDDEN_NAN, 0, 0},
    {64, 64, 700, 33, 8, 2, 2, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, PAST | SINKS | LARGE, 0, 0},
    {128, 128, 333, 40, 3, 3, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 20, PAST | LARGE, 0, 0},
    {64, 64, 2300, 35, 2, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 8, 0, GAP | HIDDEN_NAN, 0, 0},
    {128, 128, 200, 50, 7, 3, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, PAST | SINKS, 5, 3},
    {64, 64, 70, 33, 2, 1, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, HIDDEN_NAN, 0, 0},
    {64, 64, 130, 64, 2, 2, 1, SHEAF_TYPE_F16, SHEAF_TYPE_F16, 0, 0, NO_MASK, 0, 0},
};

struct made {
    struct rig r;
    struct sheaf_tensor *q, *k, *v, *mask, *sinks, *y;
    float *fq, *fk, *fv, *fm, *fs; /* what the tensors hold */
};

static bool sees(const struct attention *a, int64_t i, int64_t j) {
    if (a->flags & CAUSAL) return j <= a->t - a->n + i && j + 150 > a->t - a->n + i; /* a window */
    if (a->flags & PAST) return j <= a->t - a->n - 7 + i; /* nothing sees the last seven */
    if (a->flags & TILES) return j / 64 % 2;              /* every other tile is left out */
    if (a->flags & GAP) return j < 70 || j > 2150;
    return j % 7 != 3;
}

static float *floats(int64_t n, uint64_t seed, float size) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = ((float)(seed >> 40) / (float)(1 << 23) - 1) * size;
    }
    return x;
}

/* Fills t, of rows of `type`, with x, and x with what t can hold; keys that nothing sees become NaN. */
static void give(struct sheaf_tensor *t, float *x, const bool *hidden) {
    const size_t row = sheaf_row_size(t->type, t->ne[0]);
    char *bytes = malloc(sheaf_nbytes(t));
    for (int64_t i = 0; i < sheaf_nrows(t); i++) {
        char *to = bytes + (size_t)i * row;
        float *from = x + i * t->ne[0];
        if (t->type == SHEAF_TYPE_F32) {
            memcpy(to, from, row);
        } else {
            cr_assert_eq(sheaf_from_float(t->type, from, to, t->ne[0]), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_to_float(t->type, to, from, t->ne[0]), SHEAF_STATUS_SUCCESS);
        }
        if (hidden && hidden[i % t->ne[1]]) memset(to, 0x7f, row); /* NaN in F16, BF16 and scales */
    }
    cr_assert_eq(sheaf_backend_tensor_set(t, bytes, 0, sheaf_nbytes(t)), SHEAF_STATUS_SUCCESS);
    free(bytes);
}

static void make(const struct attention *a, const char *machine, struct made *m) {
    m->r = rig_up(machine, NULL);
    struct sheaf_context *ctx = m->r.ctx;
    m->q = sheaf_new_tensor_4d(ctx, SHEAF_TYPE_F32, a->d, a->n, a->heads, a->seqs);
    m->k = sheaf_new_tensor_4d(ctx, a->k, a->d, a->t, a->kv, a->seqs);
    m->v = a->flags & SAME ? sheaf_view_4d(ctx, m->k, a->e, a->t, a->kv, a->seqs, m->k->nb[1],
                                           m->k->nb[2], m->k->nb[3], 0)
                           : sheaf_new_tensor_4d(ctx, a->v, a->e, a->t, a->kv, a->seqs);
    m->mask = a->flags & NO_MASK ? NULL : sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F16, a->t, a->n);
    m->sinks = a->flags & SINKS ? sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, a->heads) : NULL;
    const float params[] = {1 / sqrtf((float)a->d), a->max_bias, a->softcap};
    struct sheaf_tensor *const src[] = {m->q, m->k, m->v, m->mask, m->sinks};
    m->y = a->group ? attention_part(ctx, src, params, a->base, (int)(2 * a->heads), a->group)
                    : sheaf_flash_attn_sinks(ctx, m->q, m->k, m->v, m->mask, m->sinks, params[0],
                                             a->max_bias, a->softcap);
    cr_assert_eq(sheaf_build_forward_expand(m->r.graph, m->y), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    rig_alloc(&m->r);
    bool *hidden = calloc((size_t)a->t, sizeof *hidden);
    for (int64_t j = 0; j < a->t && (a->flags & HIDDEN_NAN); j++) {
        hidden[j] = true;
        for (int64_t i = 0; i < a->n; i++) hidden[j] = hidden[j] && !sees(a, i, j);
    }
    m->fq = floats(sheaf_nelements(m->q), 1, a->flags & LARGE ? 16 : 2);
    for (int64_t i = 0; (a->flags & LARGE) && i < sheaf_nelements(m->q); i++)
        m->fq[i] = roundf(m->fq[i] * 32) / 32; /* halves hold them */
    m->fk = floats(sheaf_nelements(m->k), 2, 2);
    m->fv = floats(sheaf_nelements(m->v), 3, 1);
    m->fs = m->sinks ? floats(a->heads, 4, 1) : NULL;
    m->fm = m->mask ? floats(a->t * a->n, 5, 0.5f) : NULL;
    for (int64_t i = 0; m->fm && i < a->t * a->n; i++)
        m->fm[i] = sees(a, i / a->t, i % a->t) ? a->max_bias != 0 ? m->fm[i] : 0 : -INFINITY;
    give(m->q, m->fq, NULL);
    give(m->k, m->fk, hidden);
    if (!(a->flags & SAME)) give(m->v, m->fv, hidden);
    for (int64_t i = 0; (a->flags & SAME) && i < sheaf_nelements(m->v); i++)
        m->fv[i] = m->fk[i / a->e * a->d + i % a->e];
    if (m->mask) give(m->mask, m->fm, NULL);
    if (m->sinks) give(m->sinks, m->fs, NULL);
    free(hidden);
}

/* One head of one query, out [e]; e.g. slope of ALiBi from Press et al., arXiv 2108.12409. */
static void formula(const struct attention *a, const struct made *m, int64_t i, int64_t h,
                    int64_t s, double *out) {
    const int64_t hk = a->group ? (a->base % a->group + h) / a->group : h / (a->heads / a->kv);
    double *p = malloc((size_t)a->t * sizeof *p), max = -INFINITY, sum = 0, slope = 1;
    int64_t power = 1;
    while (power * 2 <= a->heads) power *= 2;
    if (a->max_bias > 0)
        slope =
            h < power
                ? pow(2, -(double)a->max_bias / (double)power * (double)(h + 1))
                : pow(2, -(double)a->max_bias / 2 / (double)power * (double)(2 * (h - power) + 1));
    for (int64_t j = 0; j < a->t; j++) {
        const float *q = m->fq + ((s * a->heads + h) * a->n + i) * a->d;
        const float *k = m->fk + ((s * a->kv + hk) * a->t + j) * a->d;
        const double bias = m->fm ? (double)m->fm[i * a->t + j] : 0;
        double x = 0;
        for (int64_t c = 0; c < a->d; c++) x += (double)q[c] * (double)k[c];
        x /= sqrt((double)a->d);
        if (a->softcap != 0) x = (double)a->softcap * tanh(x / (double)a->softcap);
        p[j] = bias < -1e30 ? -INFINITY : x + (m->fm ? slope * bias : 0);
        max = fmax(max, p[j]);
    }
    if (m->fs) max = fmax(max, (double)m->fs[h]);
    for (int64_t c = 0; c < a->e; c++) out[c] = 0;
    for (int64_t j = 0; j < a->t; j++) {
        const float *v = m->fv + ((s * a->kv + hk) * a->t + j) * a->e;
        const double w = p[j] == -INFINITY ? 0 : exp(p[j] - max);
        sum += w;
        for (int64_t c = 0; c < a->e && w != 0; c++) out[c] += w * (double)v[c];
    }
    if (m->fs) sum += exp((double)m->fs[h] - max);
    for (int64_t c = 0; c < a->e; c++) out[c] /= sum;
    free(p);
}

static void check(size_t number, const char *machine) {
    const struct attention *a = &cases[number];
    struct made m = {0};
    make(a, machine, &m);
    float *got = malloc(sheaf_nbytes(m.y));
    double want[576];
    cr_assert_eq(sheaf_backend_graph_compute(m.r.backend, m.r.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_tensor_get(m.y, got, 0, sheaf_nbytes(m.y)), SHEAF_STATUS_SUCCESS);
    for (int64_t row = 0; row < a->seqs * a->n * a->heads; row++) {
        const int64_t h = row % a->heads, i = row / a->heads % a->n, s = row / a->heads / a->n;
        formula(a, &m, i, h, s, want);
        for (int64_t c = 0; c < a->e; c++) {
            const double x = (double)got[row * a->e + c], bound = a->n >= 32 ? 2e-3 : 2e-5;
            cr_assert(fabs(x - want[c]) <= bound,
                      "case %zu, %s: head %ld of query %ld, %ld: %g, not %g", number, machine,
                      (long)h, (long)i, (long)c, x, want[c]);
        }
    }
    float *const all[] = {got, m.fq, m.fk, m.fv, m.fm, m.fs};
    for (int i = 0; i < 6; i++) free(all[i]);
    rig_down(&m.r);
}

Test(cuda_attention, is_its_formula) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(i, "");
}

/* Each time another order, so that a barrier that is missing shows sooner or later. */
Test(cuda_attention, in_any_order) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char machine[40];
        snprintf(machine, sizeof machine, "order=%zu", 100 + i);
        check(i, machine);
    }
}

/* A device with less shared memory has smaller tiles, and another kernel where even these do not fit. */
Test(cuda_attention, with_less_shared_memory) {
    for (size_t i = 10; i < 14; i++) check(i, "cc=86");
    for (size_t i = 22; i < sizeof cases / sizeof *cases; i++) check(i, "cc=86");
}

/* Of the same kernel one launch wants more shared memory than another. The kernel is the GPU's: if a launch gave it
 * less than before, one of another member might fail; the emulation ends the process then. */
Test(cuda_attention, no_launch_takes_shared_memory_away) {
    struct rig r = rig_up("", NULL);
    for (int i = 0; i < 3; i++) { /* keys in one part, in several, in one */
        struct sheaf_tensor *q = sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F32, 64, 1, 2);
        struct sheaf_tensor *k =
            sheaf_new_tensor_3d(r.ctx, SHEAF_TYPE_F16, 64, i == 1 ? 400 : 40, 1);
        struct sheaf_tensor *v = sheaf_dup_tensor(r.ctx, k);
        struct sheaf_tensor *y = sheaf_flash_attn_ext(r.ctx, q, k, v, NULL, 0.125f, 0, 0);
        cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    }
    rig_alloc(&r);
    cr_assert_eq(sheaf_backend_buffer_clear(r.buffer, 0), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    rig_down(&r);
}
