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

static float *out_buffer(const struct sheaf_tensor *dst, char *p, float *buf) {
    return dst->type == SHEAF_TYPE_F32 && sheaf__cpu_is_dense(dst) ? (float *)p : buf;
}

/* ---- two operands ---- */

typedef void (*binary_fn)(int64_t n, float *d, const float *a, const float *b);

void sheaf__cpu_add_row(int64_t n, float *y, const float *a, const float *b) {
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}
static void sub_f32(int64_t n, float *d, const float *a, const float *b) {
    for (int64_t i = 0; i < n; i++) d[i] = a[i] - b[i];
}
void sheaf__cpu_mul_row(int64_t n, float *y, const float *a, const float *b) {
    for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}
static void div_f32(int64_t n, float *d, const float *a, const float *b) {
    for (int64_t i = 0; i < n; i++) d[i] = a[i] / b[i];
}

static const binary_fn binary_fns[SHEAF_OP_COUNT] = {
    [SHEAF_OP_ADD] = sheaf__cpu_add_row,
    [SHEAF_OP_SUB] = sub_f32,
    [SHEAF_OP_MUL] = sheaf__cpu_mul_row,
    [SHEAF_OP_DIV] = div_f32,
};

/* dst, a [i, j, h, s], b repeated to it */
static enum sheaf_status op_binary(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const binary_fn fn = binary_fns[dst->op];
    float abuf[CHUNK], bbuf[CHUNK], dbuf[CHUNK];
    struct chunks c = chunks_of(dst, ith, nth);
    (void)sync;
    (void)work;
    for (int64_t item = c.first; item < c.last; item++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, item / c.per_row);
        int64_t i0 = item % c.per_row * CHUNK;
        int64_t n = dst->ne[0] - i0 < CHUNK ? dst->ne[0] - i0 : CHUNK;
        char *dp = sheaf__cpu_row_data(dst, at) + (size_t)i0 * dst->nb[0];
        const char *ap = sheaf__cpu_row_data(a, at) + (size_t)i0 * a->nb[0];
        const char *brow = sheaf__cpu_row_repeat(b, at);
        const float *av = sheaf__cpu_load(a->type, ap, a->nb[0], n, abuf), *bv = bbuf;
        if (b->ne[0] == dst->ne[0]) {
            bv = sheaf__cpu_load(b->type, brow + (size_t)i0 * b->nb[0], b->nb[0], n, bbuf);
        } else {
            for (int64_t i = 0; i < n; i++) {
                float one;
                const char *p = brow + (size_t)((i0 + i) % b->ne[0]) * b->nb[0];
                bbuf[i] = *sheaf__cpu_load(b->type, p, b->nb[0], 1, &one);
            }
        }
        float *dv = out_buffer(dst, dp, dbuf);
        fn(n, dv, av, bv);
        sheaf__cpu_store(dst->type, dv, dp, dst->nb[0], n);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- one operand ---- */

/* dst, a [i, j, h, s] */
static void unary(const struct sheaf__cpu_kernels *kern, const struct sheaf_tensor *dst, int ith,
                  int nth) {
    const struct sheaf_tensor *a = dst->src[0];
    const struct sheaf__cpu_function f = sheaf__cpu_function_of(kern, dst);
    float abuf[CHUNK], dbuf[CHUNK];
    struct chunks c = chunks_of(dst, ith, nth);
    for (int64_t item = c.first; item < c.last; item++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, item / c.per_row);
        int64_t i0 = item % c.per_row * CHUNK;
        int64_t n = dst->ne[0] - i0 < CHUNK ? dst->ne[0] - i0 : CHUNK;
        char *dp = sheaf__cpu_row_data(dst, at) + (size_t)i0 * dst->nb[0];
        const char *ap = sheaf__cpu_row_data(a, at) + (size_t)i0 * a->nb[0];
        const float *av = sheaf__cpu_load(a->type, ap, a->nb[0], n, abuf);
        float *dv = out_buffer(dst, dp, dbuf);
        if (f.plain) {
            f.plain(n, av, dv);
        } else {
            f.with(n, av, f.p, dv);
        }
        sheaf__cpu_store(dst->type, dv, dp, dst->nb[0], n);
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
    float abuf[CHUNK], bbuf[CHUNK], dbuf[CHUNK], gate[CHUNK];
    struct chunks c = chunks_of(dst, ith, nth);
    for (int64_t item = c.first; item < c.last; item++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, item / c.per_row);
        int64_t i0 = item % c.per_row * CHUNK;
        int64_t n = dst->ne[0] - i0 < CHUNK ? dst->ne[0] - i0 : CHUNK;
        char *dp = sheaf__cpu_row_data(dst, at) + (size_t)i0 * dst->nb[0];
        const char *ap = sheaf__cpu_row_data(a, at) + (size_t)(a0 + i0) * a->nb[0];
        const char *bp = sheaf__cpu_row_data(b, at) + (size_t)(b0 + i0) * b->nb[0];
        const float *av = sheaf__cpu_load(a->type, ap, a->nb[0], n, abuf);
        const float *bv = sheaf__cpu_load(b->type, bp, b->nb[0], n, bbuf);
        float *dv = out_buffer(dst, dp, dbuf);
        if (g.plain) {
            g.plain(n, av, gate);
            sheaf__cpu_mul_row(n, dv, gate, bv);
        } else {
            g.with(n, av, bv, g.p, dv);
        }
        sheaf__cpu_store(dst->type, dv, dp, dst->nb[0], n);
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
