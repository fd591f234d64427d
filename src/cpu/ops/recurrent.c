/* Layers with a state: SSM_CONV, SSM_SCAN, GATED_DELTA_NET, RWKV_WKV6, RWKV_WKV7 and
 * GATED_LINEAR_ATTN, each a loop over tokens around the kernels of cpu/kernels/recurrent.h.
 *
 * The result of all but SSM_CONV is one flat tensor: what the tokens read, then the states they
 * leave. Work is shared out by blocks of rows (columns) of the state of one head and sequence,
 * which do not depend on each other, so the result does not depend on the number of threads. */
#include <inttypes.h>
#include <math.h>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"
#include "cpu/ops/ops.h"

/* Rows, and columns, of a state in one piece of work. */
enum { BLOCK = 32, COLUMNS = 64 };

static int64_t pieces_of(int64_t n, int64_t block) { return (n + block - 1) / block; }
static int64_t blocks_of(int64_t n) { return pieces_of(n, BLOCK); }
static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }

/* Row (i1, i2, i3) of floats. */
static const float *row_of(const struct sheaf_tensor *t, int64_t i1, int64_t i2, int64_t i3) {
    return (const float *)(const void *)sheaf__cpu_row_data(t, (struct sheaf__cpu_row){i1, i2, i3});
}
static float element(const struct sheaf_tensor *t, int64_t i0, int64_t i1, int64_t i2) {
    float f;
    memcpy(&f,
           (const char *)t->data + (size_t)i0 * t->nb[0] + (size_t)i1 * t->nb[1] +
               (size_t)i2 * t->nb[2],
           sizeof f);
    return f;
}

/* As ggml computes it: above 20 the difference is below half an ulp. */
static float softplus(float x) { return x > 20.0f ? x : logf(1.0f + expf(x)); }

/* Floats of work memory that each thread has, whole cache lines. */
static size_t work_of(int64_t floats, int nth) {
    return (size_t)nth * (size_t)((floats + 15) / 16 * 16) * sizeof(float);
}
static float *own_work(void *work, int64_t floats, int ith) {
    return (float *)work + (size_t)ith * (size_t)((floats + 15) / 16 * 16);
}

/* The states that tokens leave: `kept` of them, the newest first. One alone is written in place by
 * each token; of several, the state is in `own` and those wanted are copied. */
struct kept {
    int64_t kept, n_tokens, size, stride; /* floats of the part; from one kept state to the next */
    float *first;                         /* of the newest */
    float *own;                           /* NULL if one is kept */
};
static float *state_now(const struct kept *s) { return s->own ? s->own : s->first; }
static void keep(const struct kept *s, int64_t token) {
    const int64_t slot = s->n_tokens - 1 - token;
    if (s->own && slot < s->kept)
        memcpy(s->first + slot * s->stride, s->own, (size_t)s->size * sizeof(float));
}
/* Before the first token: the result for no tokens, and for states older than the first. */
static void keep_none(const struct kept *s, const float *from) {
    for (int64_t slot = s->n_tokens; slot < s->kept; slot++) {
        if (slot == 0)
            memcpy(s->first, from, (size_t)s->size * sizeof(float));
        else
            memset(s->first + slot * s->stride, 0, (size_t)s->size * sizeof(float));
    }
}

/* ---- SSM_CONV: x [t+k-1, c, s], w [k, c] -> dst [c, t, s] ---- */

static enum sheaf_status op_ssm_conv(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *x = dst->src[0], *w = dst->src[1];
    const int64_t n_blocks = blocks_of(dst->ne[0]);
    int64_t first, last;
    sheaf__cpu_share(n_blocks * dst->ne[2], ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t u = first; u < last; u++) {
        const int64_t c = u % n_blocks * BLOCK, s = u / n_blocks;
        float *y = (float *)(void *)sheaf__cpu_row_data(dst, (struct sheaf__cpu_row){0, s, 0}) + c;
        sheaf__cpu_kernels()->conv_rows(dst->ne[1], at_most(dst->ne[0] - c, BLOCK), w->ne[0],
                                        row_of(x, c, s, 0), (int64_t)(x->nb[1] / sizeof *y),
                                        row_of(w, c, 0, 0), (int64_t)(w->nb[1] / sizeof *y), y,
                                        (int64_t)(dst->nb[1] / sizeof *y));
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- SSM_SCAN ----
 *
 * Row d of head h of a state [k, d, h]: state = state * exp(dt A) + (x dt) B, y = state . C, with
 * dt = softplus of the operand; head h is of group h / (heads / groups). */

struct scan {
    const struct sheaf_tensor *s, *x, *dt, *a, *b, *c;
    float *y, *states;
    int64_t k, d, h, g, t, kept, n_seqs;
    bool scalar;     /* a head has one decay: the rows of a piece of work are those of one head */
    int64_t runs, n; /* else of one group: as many runs of n rows in all heads */
};

static struct scan scan_of(const struct sheaf_tensor *dst) {
    struct sheaf_tensor *const *src = dst->src;
    struct scan p = {.s = src[0], .x = src[1], .dt = src[2], .a = src[3], .b = src[4], .c = src[5]};
    p.k = p.s->ne[0];
    p.d = p.x->ne[0];
    p.h = p.x->ne[1];
    p.t = p.x->ne[2];
    p.n_seqs = p.x->ne[3];
    p.g = p.b->ne[1];
    p.kept = dst->op_params[0];
    p.y = dst->data;
    p.states = p.y + p.n_seqs * p.t * p.h * p.d;
    p.scalar = p.a->ne[0] == 1;
    p.runs = p.scalar ? p.h : p.g;
    p.n = p.runs ? p.h * p.d / p.runs : 0;
    return p;
}

static int64_t scan_work(const struct scan *p) { /* decays, x dt, states */
    return (p->scalar ? 1 : BLOCK) * p->k + BLOCK + (p->kept > 1 ? BLOCK * p->k : 0);
}
static size_t ssm_scan_work(const struct sheaf_tensor *dst, int nth) {
    const struct scan p = scan_of(dst);
    return work_of(scan_work(&p), nth);
}

/* The decays of a token and x dt for n rows, counted through all heads from `row` on. */
static void scan_inputs(const struct scan *p, int64_t s, int64_t t, int64_t row, int64_t n,
                        float *decay, float *xdt) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    for (int64_t i = 0, many; i < n; i += many) { /* rows of one head */
        const int64_t h = (row + i) / p->d, d = row + i - h * p->d;
        const float *a = row_of(p->a, h, 0, 0), *x = row_of(p->x, h, t, s) + d;
        const float dt = softplus(element(p->dt, h, t, s));
        many = at_most(n - i, p->d - d);
        for (int64_t j = 0; j < many; j++) xdt[i + j] = x[j] * dt;
        for (int64_t j = 0; j < many && !p->scalar; j++)
            kern->exp_products(p->k, 1, &dt, a, 0, decay + (i + j) * p->k);
        if (!p->scalar) continue;
        decay[0] = expf(dt * a[0]);
        for (int64_t k = 1; k < p->k; k++) decay[k] = decay[0];
    }
}

/* Rows [row, row + n), counted through all heads. */
static void scan_block(const struct scan *p, int64_t s, int64_t row, int64_t n, const float *from,
                       float *work) {
    const int64_t g = row / p->d / (p->h / p->g);
    float *decay = work, *xdt = decay + (p->scalar ? 1 : BLOCK) * p->k;
    const struct kept out = {.kept = p->kept,
                             .n_tokens = p->t,
                             .size = n * p->k,
                             .stride = p->n_seqs * p->h * p->d * p->k,
                             .first = p->states + (s * p->h * p->d + row) * p->k,
                             .own = p->kept > 1 ? xdt + BLOCK : NULL};
    from += row * p->k;
    keep_none(&out, from);
    for (int64_t t = 0; t < p->t; t++) {
        scan_inputs(p, s, t, row, n, decay, xdt);
        const struct sheaf__state_rows step = {.w = decay,
                                               .w_stride = p->scalar ? 0 : p->k,
                                               .k = row_of(p->b, g, t, s),
                                               .q = row_of(p->c, g, t, s),
                                               .v = xdt,
                                               .from = from,
                                               .to = state_now(&out),
                                               .y = p->y + (s * p->t + t) * p->h * p->d + row};
        sheaf__cpu_kernels()->state_rows(p->k, n, &step);
        from = step.to;
        keep(&out, t);
    }
}

static enum sheaf_status op_ssm_scan(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    const struct scan p = scan_of(dst);
    const struct sheaf_tensor *ids = dst->src[6];
    const int64_t n_blocks = blocks_of(p.n);
    int64_t first, last;
    sheaf__cpu_share(n_blocks * p.runs * p.n_seqs, ith, nth, &first, &last);
    (void)sync;
    for (int64_t u = first; u < last; u++) {
        const int64_t r = u % n_blocks * BLOCK, s = u / n_blocks / p.runs;
        int32_t id;
        memcpy(&id, (const char *)ids->data + (size_t)s * ids->nb[0], sizeof id);
        if (id < 0 || id >= p.s->ne[3])
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "cpu: SSM_SCAN '%s': state %" PRId32 " (element %" PRId64
                                   " of '%s') is outside [0, %" PRId64 ")",
                                   dst->name, id, s, ids->name, p.s->ne[3]);
        scan_block(&p, s, u / n_blocks % p.runs * p.n + r, at_most(p.n - r, BLOCK),
                   row_of(p.s, 0, 0, id), own_work(work, scan_work(&p), ith));
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- GATED_DELTA_NET ----
 *
 * Row j of the state [i, j] of a head: M = M exp(g), M += beta (v[j] - M . k) k,
 * y[j] = M . q / sqrt(size). With w = exp(g): M = M w + beta v[j] k - (M . (w k)) beta k. */

static int64_t delta_work(const struct sheaf_tensor *dst) { /* w, w k, -beta k, beta k, q; states */
    const int64_t n = dst->src[2]->ne[0];
    return 5 * n + (dst->op_params[0] > 1 ? BLOCK * n : 0);
}
static size_t gated_delta_net_work(const struct sheaf_tensor *dst, int nth) {
    return work_of(delta_work(dst), nth);
}

static void delta_block(const struct sheaf_tensor *dst, int64_t s, int64_t h, int64_t j,
                        float *work) {
    const struct sheaf_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2],
                              *g = dst->src[3], *beta = dst->src[4], *state = dst->src[5];
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const int64_t n = v->ne[0], heads = v->ne[1], tokens = v->ne[2], rows = at_most(n - j, BLOCK);
    const float scale = 1.0f / sqrtf((float)n);
    float *w = work, *wk = w + n, *minus = wk + n, *plus = minus + n, *scaled = plus + n;
    float *y = dst->data, *states = y + v->ne[3] * tokens * heads * n;
    const struct kept out = {.kept = dst->op_params[0],
                             .n_tokens = tokens,
                             .size = rows * n,
                             .stride = v->ne[3] * heads * n * n,
                             .first = states + ((s * heads + h) * n + j) * n,
                             .own = dst->op_params[0] > 1 ? scaled + n : NULL};
    const float *from = row_of(state, j, h, s);
    keep_none(&out, from);
    for (int64_t t = 0; t < tokens; t++) {
        const float *kt = row_of(k, h % k->ne[1], t, s), *qt = row_of(q, h % q->ne[1], t, s);
        const float *gate = row_of(g, h, t, s), b = *row_of(beta, h, t, s);
        if (g->ne[0] == n)
            kern->exp_products(n, 1, (const float[]){1}, gate, 0, w);
        else
            kern->exp_products(1, 1, (const float[]){1}, gate, 0, w);
        for (int64_t i = 0; i < n; i++) {
            if (g->ne[0] != n) w[i] = w[0];
            wk[i] = w[i] * kt[i];
            plus[i] = b * kt[i];
            minus[i] = -plus[i];
            scaled[i] = qt[i] * scale;
        }
        const struct sheaf__state_rows step = {.w = w,
                                               .a = wk,
                                               .b = minus,
                                               .k = plus,
                                               .q = scaled,
                                               .v = row_of(v, h, t, s) + j,
                                               .from = from,
                                               .to = state_now(&out),
                                               .y = y + ((s * tokens + t) * heads + h) * n + j};
        kern->state_rows(n, rows, &step);
        from = step.to;
        keep(&out, t);
    }
}

static enum sheaf_status op_gated_delta_net(struct sheaf_tensor *dst, int ith, int nth,
                                            struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *v = dst->src[2];
    const int64_t n_blocks = blocks_of(v->ne[0]);
    int64_t first, last;
    sheaf__cpu_share(n_blocks * v->ne[1] * v->ne[3], ith, nth, &first, &last);
    (void)sync;
    for (int64_t u = first; u < last; u++)
        delta_block(dst, u / n_blocks / v->ne[1], u / n_blocks % v->ne[1], u % n_blocks * BLOCK,
                    own_work(work, delta_work(dst), ith));
    return SHEAF_STATUS_SUCCESS;
}

/* ---- RWKV and gated linear attention: heads of n x n, tokens of all sequences in a row ---- */

struct heads {
    const struct sheaf_tensor *state; /* [n n h, s] */
    int64_t n, h, t, s;               /* t: tokens of one sequence */
    float *y, *states;
};

static struct heads heads_of(const struct sheaf_tensor *dst, const struct sheaf_tensor *k,
                             const struct sheaf_tensor *state) {
    struct heads p = {.state = state, .n = k->ne[0], .h = k->ne[1], .s = state->ne[1]};
    p.t = p.s ? k->ne[2] / p.s : 0;
    p.y = dst->data;
    p.states = p.y + k->ne[2] * p.h * p.n;
    return p;
}

/* A piece of work: columns or rows [j, j + m) of head h of sequence s. */
struct piece {
    int64_t s, h, j, m;
};
static struct piece piece_at(const struct heads *p, int64_t block, int64_t u) {
    const int64_t n_blocks = pieces_of(p->n, block), j = u % n_blocks * block;
    return (struct piece){u / n_blocks / p->h, u / n_blocks % p->h, j, at_most(p->n - j, block)};
}
static void share_pieces(const struct heads *p, int64_t block, int ith, int nth, int64_t *first,
                         int64_t *last) {
    sheaf__cpu_share(pieces_of(p->n, block) * p->h * p->s, ith, nth, first, last);
}

/* The state [j, i]: state = state w + v[j] k + (state . a) b, y[j] = state . r. */
static enum sheaf_status op_rwkv_wkv7(struct sheaf_tensor *dst, int ith, int nth,
                                      struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *r = dst->src[0], *w = dst->src[1], *k = dst->src[2],
                              *v = dst->src[3], *a = dst->src[4], *b = dst->src[5];
    const struct heads p = heads_of(dst, k, dst->src[6]);
    int64_t first, last;
    share_pieces(&p, BLOCK, ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t u = first; u < last; u++) {
        const struct piece at = piece_at(&p, BLOCK, u);
        const int64_t offset = (at.h * p.n + at.j) * p.n;
        const float *from = row_of(p.state, at.s, 0, 0) + offset;
        float *to = p.states + at.s * p.h * p.n * p.n + offset;
        if (p.t == 0) memcpy(to, from, (size_t)(at.m * p.n) * sizeof *to);
        for (int64_t t = at.s * p.t; t < (at.s + 1) * p.t; t++) {
            const struct sheaf__state_rows step = {.w = row_of(w, at.h, t, 0),
                                                   .a = row_of(a, at.h, t, 0),
                                                   .b = row_of(b, at.h, t, 0),
                                                   .k = row_of(k, at.h, t, 0),
                                                   .q = row_of(r, at.h, t, 0),
                                                   .v = row_of(v, at.h, t, 0) + at.j,
                                                   .from = from,
                                                   .to = to,
                                                   .y = p.y + (t * p.h + at.h) * p.n + at.j};
            sheaf__cpu_kernels()->state_rows(p.n, at.m, &step);
            from = to;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* In double, in the lanes of vec.h. */
static double sum_of_products(int64_t n, const float *x, const float *y) {
    double lanes[SHEAF__LANES] = {0};
    int64_t i = 0;
    for (; i + SHEAF__LANES <= n; i += SHEAF__LANES) {
        for (int j = 0; j < SHEAF__LANES; j++) lanes[j] += (double)x[i + j] * (double)y[i + j];
    }
    for (int j = 0; i < n; i++, j++) lanes[j] += (double)x[i] * (double)y[i];
    return sheaf__lanes_sum(lanes);
}

/* The state [i, j], row i: y[j] = sum over i of (state u[i]) + c v[j], state = state w[i] + v[j]
 * k[i]. RWKV 6: u = r, c = sum of r f k. GLA: u = scale q w, c = scale * (q . k). */
static enum sheaf_status columns(struct sheaf_tensor *dst, const struct sheaf_tensor *q,
                                 const struct sheaf_tensor *f, const struct sheaf_tensor *w,
                                 const struct sheaf_tensor *state, float scale, int ith, int nth,
                                 float *reads) {
    const struct sheaf_tensor *k = dst->src[0], *v = dst->src[1];
    const struct heads p = heads_of(dst, k, state);
    int64_t first, last;
    share_pieces(&p, COLUMNS, ith, nth, &first, &last);
    for (int64_t u = first; u < last; u++) {
        const struct piece at = piece_at(&p, COLUMNS, u);
        const int64_t offset = at.h * p.n * p.n + at.j;
        const float *from = row_of(state, at.s, 0, 0) + offset;
        float *to = p.states + at.s * p.h * p.n * p.n + offset;
        for (int64_t i = 0; i < p.n && p.t == 0; i++)
            memcpy(to + i * p.n, from + i * p.n, (size_t)at.m * sizeof *to);
        for (int64_t t = at.s * p.t; t < (at.s + 1) * p.t; t++) {
            const float *kt = row_of(k, at.h, t, 0), *qt = row_of(q, at.h, t, 0);
            const float *wt = row_of(w, at.h, t, 0), *ft = f ? row_of(f, at.h, 0, 0) : NULL;
            if (ft)
                for (int64_t i = 0; i < p.n; i++) reads[i] = qt[i] * ft[i];
            const double c = sum_of_products(p.n, ft ? reads : qt, kt);
            for (int64_t i = 0; i < p.n; i++) reads[i] = ft ? qt[i] : qt[i] * scale * wt[i];
            const struct sheaf__state_cols step = {.w = wt,
                                                   .k = kt,
                                                   .u = reads,
                                                   .v = row_of(v, at.h, t, 0) + at.j,
                                                   .c = (float)c * scale,
                                                   .from = from,
                                                   .to = to,
                                                   .stride = p.n,
                                                   .y = p.y + (t * p.h + at.h) * p.n + at.j};
            sheaf__cpu_kernels()->state_cols(at.m, p.n, &step);
            from = to;
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

static size_t columns_work(const struct sheaf_tensor *dst, int nth) {
    return work_of(dst->src[0]->ne[0], nth);
}
static enum sheaf_status op_rwkv_wkv6(struct sheaf_tensor *dst, int ith, int nth,
                                      struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    return columns(dst, dst->src[2], dst->src[3], dst->src[4], dst->src[5], 1, ith, nth,
                   own_work(work, dst->src[0]->ne[0], ith));
}
static enum sheaf_status op_gated_linear_attn(struct sheaf_tensor *dst, int ith, int nth,
                                              struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    return columns(dst, dst->src[2], NULL, dst->src[3], dst->src[4], sheaf__param_f32(dst, 0), ith,
                   nth, own_work(work, dst->src[0]->ne[0], ith));
}

SHEAF__CPU_OP(SSM_CONV) = {.fn = op_ssm_conv};
SHEAF__CPU_OP(SSM_SCAN) = {.fn = op_ssm_scan, .work_size = ssm_scan_work};
SHEAF__CPU_OP(GATED_DELTA_NET) = {.fn = op_gated_delta_net, .work_size = gated_delta_net_work};
SHEAF__CPU_OP(RWKV_WKV6) = {.fn = op_rwkv_wkv6, .work_size = columns_work};
SHEAF__CPU_OP(RWKV_WKV7) = {.fn = op_rwkv_wkv7};
SHEAF__CPU_OP(GATED_LINEAR_ATTN) = {.fn = op_gated_linear_attn, .work_size = columns_work};
