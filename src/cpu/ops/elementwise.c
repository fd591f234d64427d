/* ADD SUB MUL DIV, UNARY, GLU and the ops that map an element by a function of functions.c: one
 * result element from one element of each operand.
 *
 * Work is cut into chunks of at most CHUNK elements of a row, computed in F32. dst may be the
 * memory of an operand of the same layout: a chunk is read before it is written. */
#include "cpu/ops/functions.h"
#include "cpu/ops/ops.h"

enum { CHUNK = 512 };

struct chunks {
    int64_t per_row, first, last;
};

static struct chunks chunks_of(const struct sheaf_tensor *dst, int ith, int nth) {
    struct chunks c;
    c.per_row = (dst->ne[0] + CHUNK - 1) / CHUNK;
    sheaf__cpu_share(c.per_row * sheaf_nrows(dst), ith, nth, &c.first, &c.last);
    return c;
}

/* Elements [i0, i0 + n) of a row. */
struct span {
    struct sheaf__cpu_row at;
    int64_t i0, n;
};

/* Takes a chunk, or, if elements need no buffer, all those that are left of a row. */
static struct span next_span(const struct sheaf_tensor *dst, struct chunks *c, bool plain) {
    const int64_t row = c->per_row == 1 ? c->first : c->first / c->per_row;
    const int64_t in_row = c->first - row * c->per_row, ends = (row + 1) * c->per_row;
    const int64_t next = !plain ? c->first + 1 : ends < c->last ? ends : c->last;
    const int64_t i0 = in_row * CHUNK, end = (next - row * c->per_row) * CHUNK;
    c->first = next;
    return (struct span){.at = sheaf__cpu_row_at(dst->ne, row),
                         .i0 = i0,
                         .n = (end < dst->ne[0] ? end : dst->ne[0]) - i0};
}

static bool is_plain(const struct sheaf_tensor *t) {
    return t->type == SHEAF_TYPE_F32 && sheaf__cpu_is_dense(t);
}
static float *out_buffer(const struct sheaf_tensor *dst, char *p, float *buf) {
    return is_plain(dst) ? (float *)(void *)p : buf;
}

/* ---- two operands ---- */

void sheaf__cpu_add_row(int64_t n, float *y, const float *a, const float *b) {
    sheaf__cpu_kernels()->elements.add(n, a, b, y);
}

static sheaf__cpu_pair_fn pair_of(enum sheaf_op op) {
    const struct sheaf__cpu_elements *e = &sheaf__cpu_kernels()->elements;
    switch (op) {
    case SHEAF_OP_ADD:
        return e->add;
    case SHEAF_OP_SUB:
        return e->sub;
    case SHEAF_OP_MUL:
        return e->mul;
    default:
        return e->div;
    }
}

/* n elements of a row of b, which repeats from element i0 on. */
static const float *repeated(const struct sheaf_tensor *b, const char *row, int64_t i0, int64_t n,
                             float *buf) {
    float one;
    if (b->ne[0] == 1) {
        one = *sheaf__cpu_load(b->type, row, b->nb[0], 1, &one);
        for (int64_t i = 0; i < n; i++) buf[i] = one;
        return buf;
    }
    for (int64_t i = 0; i < n; i++) {
        const char *p = row + (size_t)((i0 + i) % b->ne[0]) * b->nb[0];
        buf[i] = *sheaf__cpu_load(b->type, p, b->nb[0], 1, &one);
    }
    return buf;
}

/* dst, a [i, j, h, s], b repeated to it */
static enum sheaf_status op_binary(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const sheaf__cpu_pair_fn fn = pair_of(dst->op);
    const bool repeats = b->ne[0] != dst->ne[0];
    const bool plain = is_plain(dst) && is_plain(a) && is_plain(b) && !repeats;
    float abuf[CHUNK], bbuf[CHUNK], dbuf[CHUNK];
    struct chunks c = chunks_of(dst, ith, nth);
    (void)sync;
    (void)work;
    while (c.first < c.last) {
        const struct span s = next_span(dst, &c, plain);
        char *dp = sheaf__cpu_row_data(dst, s.at) + (size_t)s.i0 * dst->nb[0];
        const char *ap = sheaf__cpu_row_data(a, s.at) + (size_t)s.i0 * a->nb[0];
        const char *brow = sheaf__cpu_row_repeat(b, s.at);
        const float *av = sheaf__cpu_load(a->type, ap, a->nb[0], s.n, abuf);
        const float *bv =
            repeats ? repeated(b, brow, s.i0, s.n, bbuf)
                    : sheaf__cpu_load(b->type, brow + (size_t)s.i0 * b->nb[0], b->nb[0], s.n, bbuf);
        float *dv = out_buffer(dst, dp, dbuf);
        fn(s.n, av, bv, dv);
        sheaf__cpu_store(dst->type, dv, dp, dst->nb[0], s.n);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- one operand ---- */

/* dst, a [i, j, h, s] */
static void unary(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst, int ith,
                  int nth) {
    const struct sheaf_tensor *a = dst->src[0];
    const struct sheaf__cpu_function f = sheaf__cpu_function_of(kern, dst);
    const bool plain = is_plain(dst) && is_plain(a);
    float abuf[CHUNK], dbuf[CHUNK];
    struct chunks c = chunks_of(dst, ith, nth);
    while (c.first < c.last) {
        const struct span s = next_span(dst, &c, plain);
        char *dp = sheaf__cpu_row_data(dst, s.at) + (size_t)s.i0 * dst->nb[0];
        const char *ap = sheaf__cpu_row_data(a, s.at) + (size_t)s.i0 * a->nb[0];
        const float *av = sheaf__cpu_load(a->type, ap, a->nb[0], s.n, abuf);
        float *dv = out_buffer(dst, dp, dbuf);
        if (f.plain) {
            f.plain(s.n, av, dv);
        } else {
            f.with(s.n, av, f.p, dv);
        }
        sheaf__cpu_store(dst->type, dv, dp, dst->nb[0], s.n);
    }
}

static enum sheaf_status op_unary(struct sheaf_tensor *dst, int ith, int nth,
                                  struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    (void)work;
    unary(sheaf__cpu_kernels(), dst, ith, nth);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status op_unary_ref(struct sheaf_tensor *dst, int ith, int nth,
                                      struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    (void)work;
    unary(&sheaf__cpu_kernels_portable, dst, ith, nth);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- gated ---- */

/* a [f+f, n] -> dst [f, n], or a, b [f, n] -> dst [f, n] */
static void glu(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst, int ith,
                int nth) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1] ? dst->src[1] : a;
    const struct sheaf__cpu_gate g = sheaf__cpu_gate_of(kern, dst);
    const bool fused = !dst->src[1], swapped = fused && dst->op_params[1] != 0;
    const int64_t a0 = swapped ? dst->ne[0] : 0, b0 = fused && !swapped ? dst->ne[0] : 0;
    const bool plain = is_plain(dst) && is_plain(a) && is_plain(b) && !g.plain;
    float abuf[CHUNK], bbuf[CHUNK], dbuf[CHUNK], gate[CHUNK];
    struct chunks c = chunks_of(dst, ith, nth);
    while (c.first < c.last) {
        const struct span s = next_span(dst, &c, plain);
        char *dp = sheaf__cpu_row_data(dst, s.at) + (size_t)s.i0 * dst->nb[0];
        const char *ap = sheaf__cpu_row_data(a, s.at) + (size_t)(a0 + s.i0) * a->nb[0];
        const char *bp = sheaf__cpu_row_data(b, s.at) + (size_t)(b0 + s.i0) * b->nb[0];
        const float *av = sheaf__cpu_load(a->type, ap, a->nb[0], s.n, abuf);
        const float *bv = sheaf__cpu_load(b->type, bp, b->nb[0], s.n, bbuf);
        float *dv = out_buffer(dst, dp, dbuf);
        if (g.both) {
            g.both(s.n, av, bv, dv);
        } else if (g.with) {
            g.with(s.n, av, bv, g.p, dv);
        } else {
            g.plain(s.n, av, gate);
            kern->elements.mul(s.n, gate, bv, dv);
        }
        sheaf__cpu_store(dst->type, dv, dp, dst->nb[0], s.n);
    }
}

static enum sheaf_status op_glu(struct sheaf_tensor *dst, int ith, int nth,
                                struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    (void)work;
    glu(sheaf__cpu_kernels(), dst, ith, nth);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status op_glu_ref(struct sheaf_tensor *dst, int ith, int nth,
                                    struct sheaf__cpu_sync *sync, void *work) {
    (void)sync;
    (void)work;
    glu(&sheaf__cpu_kernels_portable, dst, ith, nth);
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(ADD) = {.fn = op_binary};
SHEAF__CPU_OP(SUB) = {.fn = op_binary};
SHEAF__CPU_OP(MUL) = {.fn = op_binary};
SHEAF__CPU_OP(DIV) = {.fn = op_binary};
SHEAF__CPU_OP(SCALE) = {.fn = op_unary};
SHEAF__CPU_OP(SQR) = {.fn = op_unary};
SHEAF__CPU_OP(SQRT) = {.fn = op_unary};
SHEAF__CPU_OP(SIN) = {.fn = op_unary};
SHEAF__CPU_OP(COS) = {.fn = op_unary};
SHEAF__CPU_OP(LOG) = {.fn = op_unary};
SHEAF__CPU_OP(CLAMP) = {.fn = op_unary};
SHEAF__CPU_OP(LEAKY_RELU) = {.fn = op_unary};
SHEAF__CPU_OP(UNARY) = {.fn = op_unary, .reference = op_unary_ref};
SHEAF__CPU_OP(GLU) = {.fn = op_glu, .reference = op_glu_ref};
