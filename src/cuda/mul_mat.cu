/* MUL_MAT and MUL_MAT_ID: by which method a product is computed, and what its operands need before.
 *
 *   few columns (up to 8), experts   mul_vec.cu; block types against columns rounded to 8 bits, those
 *                                    of iq.cuh against floats
 *   more columns                     cuBLASLt on F16 or BF16, weights converted chunk by chunk
 *   without cuBLASLt, odd shapes     mul_tile.cu
 *
 * Columns that are not dense F32 are gathered into the work memory first. Work memory, each part
 * aligned: gathered columns | rounded columns, or for cuBLASLt: converted columns | converted
 * weights of a chunk. */
#include "cuda/product.h"
#include "tensor/mul_mat.h"

enum { ALIGN = 256, THREADS = 256 };
#ifdef SHEAF_CUDA_EMULATED /* matrices of tests are small, and shall have several chunks */
static const size_t CHUNK_BYTES = 16384;
#else
static const size_t CHUNK_BYTES = (size_t)64 << 20; /* of converted weights */
#endif

enum Method { METHOD_VEC, METHOD_BLAS, METHOD_TILE };

/* ---- conversions ---- */

/* b, any strides, to out F32 [its shape], dense */
static __global__ void gather_kernel(View b, float *out, int64_t n) {
    next_may_start();
    previous_done();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        const Divided at = divided(i, b.ne[0]);
        const char *row = row_data(b, row_at(b.ne, at.quotient));
        out[i] = load_plain(b.type, row + (size_t)at.rest * b.nb[0]);
    }
}

/* ---- choice ---- */

static bool dense_rows(const struct sheaf_tensor *t) {
    return t->nb[0] == sheaf_type_size(t->type);
}

static bool needs_gather(const struct sheaf_tensor *b) {
    return b->type != SHEAF_TYPE_F32 || !dense_rows(b);
}

/* A slice of the columns goes the way of the whole. */
static enum Method method_of(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    if (dst->op == SHEAF_OP_MUL_MAT_ID || sheaf__mul_mat_whole_ne1(dst) <= SHEAF__CUDA_VEC_MAX) return METHOD_VEC;
    if (!q->blas || a->type == SHEAF_TYPE_F32 || a->ne[0] % 8 != 0 || a->ne[0] == 0)
        return METHOD_TILE;
    return METHOD_BLAS;
}

/* F16 weights stay as they are; all others go through BF16, whose range no activation leaves. */
static enum sheaf_type half_type(const struct sheaf_tensor *a) {
    return a->type == SHEAF_TYPE_F16 ? SHEAF_TYPE_F16 : SHEAF_TYPE_BF16;
}
static bool as_it_is(const struct sheaf_tensor *a) {
    const uintptr_t bits = (uintptr_t)a->data | a->nb[1] | a->nb[2] | a->nb[3];
    return a->type == half_type(a) && bits % 16 == 0;
}
static int64_t rows_of_chunk(const struct sheaf_tensor *a) {
    int64_t rows = (int64_t)(CHUNK_BYTES / ((size_t)a->ne[0] * 2)) / 8 * 8;
    if (rows < 8) rows = 8;
    return rows < a->ne[1] ? rows : a->ne[1];
}

/* What the columns become in the scratch, where they stay for a product that follows: 8-bit
 * integers (Q8_0 here), halves of a single matrix, or COUNT: nothing that stays. */
static enum sheaf_type rounded_type(const struct sheaf_tensor *dst, enum Method method) {
    const struct sheaf_tensor *a = dst->src[0];
    if (method == METHOD_VEC && sheaf__cuda_by_integers(a->type)) return SHEAF_TYPE_Q8_0;
    if (method == METHOD_BLAS && dst->ne[2] * dst->ne[3] == 1) return half_type(a);
    return SHEAF_TYPE_COUNT;
}

struct Parts { /* bytes of the work memory */
    size_t gathered, columns, weights;
};

static struct Parts parts_of(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const enum Method method = method_of(q, dst);
    struct Parts p = {0, 0, 0};
    if (needs_gather(b)) p.gathered = (size_t)sheaf_nelements(b) * sizeof(float);
    if (method == METHOD_VEC && sheaf__cuda_by_integers(a->type))
        p.columns = sheaf__cuda_columns_size(b->ne[0], sheaf_nrows(b));
    if (method == METHOD_BLAS) {
        p.columns = (size_t)b->ne[0] * (size_t)b->ne[1] * 2;
        /* counted also where the weights serve as they are: a plan may come before the addresses */
        p.weights = (size_t)rows_of_chunk(a) * (size_t)a->ne[0] * 2;
    }
    p.gathered = sheaf__align_up(p.gathered, ALIGN);
    p.columns = sheaf__align_up(p.columns, ALIGN);
    p.weights = sheaf__align_up(p.weights, ALIGN);
    return p;
}

static size_t work_mul_mat(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct Parts p = parts_of(q, dst);
    return p.gathered + p.columns + p.weights;
}

/* ---- launch ---- */

/* a, b of matrix (i2, i3) of dst: columns to halves, unless they are there already; weights in
 * chunks of rows. */
static bool through_blas(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst,
                         const Product *p, char *columns, char *weights, bool converted) {
    const struct sheaf_tensor *a = dst->src[0];
    const enum sheaf_type half = half_type(a);
    const int64_t k = a->ne[0], m = a->ne[1], n = dst->ne[1], chunk = rows_of_chunk(a);
    const bool direct = as_it_is(a);
    for (int64_t z = 0; z < dst->ne[2] * dst->ne[3]; z++) {
        const int64_t i2 = z % dst->ne[2], i3 = z / dst->ne[2];
        const int64_t r2 = dst->ne[2] / a->ne[2], r3 = dst->ne[3] / a->ne[3];
        const char *x =
            (const char *)a->data + (size_t)(i2 / r2) * a->nb[2] + (size_t)(i3 / r3) * a->nb[3];
        const char *y = p->b.data + (size_t)i2 * p->b.nb[2] + (size_t)i3 * p->b.nb[3];
        char *out = (char *)dst->data + (size_t)i2 * dst->nb[2] + (size_t)i3 * dst->nb[3];
        if (!converted)
            sheaf__cuda_to_halves(q, y, p->b.nb[1], SHEAF_TYPE_F32, half, columns, k, n);
        for (int64_t row = 0; row < m; row += direct ? m : chunk) {
            const int64_t rows = direct ? m : m - row < chunk ? m - row : chunk;
            if (!direct)
                sheaf__cuda_to_halves(q, x + (size_t)row * a->nb[1], a->nb[1], a->type, half,
                                      weights, k, rows);
            if (!sheaf__cuda_blas_product(
                    q->blas, q->stream, half, rows, n, k, direct ? x : weights,
                    direct ? (int64_t)(a->nb[1] / 2) : k, columns, (float *)(void *)out + row,
                    (int64_t)(dst->nb[1] / sizeof(float))))
                return false;
        }
    }
    return true;
}

/* One node, or several that join the first. */
static enum sheaf_status launch_nodes(struct sheaf__cuda_queue *q,
                                      const struct sheaf_tensor *const *nodes, int n) {
    const struct sheaf_tensor *dst = nodes[0];
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const struct Parts parts = parts_of(q, dst);
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    Product p;
    memset(&p, 0, sizeof p);
    p.dst = sheaf__cuda_view(dst);
    p.a = sheaf__cuda_view(a);
    p.b = sheaf__cuda_view(b);
    if (dst->op == SHEAF_OP_MUL_MAT_ID) {
        p.ids = sheaf__cuda_view(dst->src[2]);
        p.base = dst->op_params[SHEAF_OP_PARAM_BASE];
        p.held = a->ne[2];
        p.limit = extent ? extent : a->ne[2];
        p.node = (uint64_t)(uintptr_t)dst;
        p.fault = q->fault;
    }
    p.early = sheaf__cuda_is_weight(a) && dst->op == SHEAF_OP_MUL_MAT;
    for (p.n_more = 0; p.n_more < n - 1; p.n_more++) {
        const struct sheaf_tensor *other = nodes[p.n_more + 1], *w = other->src[0];
        p.early = p.early && sheaf__cuda_is_weight(w);
        p.more[p.n_more].a = (const char *)w->data;
        p.more[p.n_more].nb1 = w->nb[1];
        p.more[p.n_more].m = w->ne[1];
        p.more[p.n_more].dst = (char *)other->data;
        p.more[p.n_more].step = other->nb[1];
    }
    const enum Method method = method_of(q, dst);
    const enum sheaf_type as = rounded_type(dst, method);
    const bool rounded = as != SHEAF_TYPE_COUNT && q->rounded == b && q->rounded_type == as;
    if (parts.gathered + parts.columns + parts.weights) {
        q->rounded = as != SHEAF_TYPE_COUNT ? b : NULL;
        q->rounded_type = as;
    }
    if (needs_gather(b) && !sheaf_is_empty(b)) {
        if (!rounded)
            CUDA_LAUNCH_AHEAD_PLAIN(q->ahead, gather_kernel,
                                    sheaf__cuda_blocks(sheaf_nelements(b), THREADS), THREADS, 0,
                                    q->stream, p.b, (float *)(void *)q->work, sheaf_nelements(b));
        p.b.data = q->work;
        p.b.type = SHEAF_TYPE_F32;
        p.b.nb[0] = sizeof(float);
        for (int i = 1; i < SHEAF_MAX_DIMS; i++) p.b.nb[i] = p.b.nb[i - 1] * (size_t)p.b.ne[i - 1];
    }
    char *columns = q->work + parts.gathered, *weights = columns + parts.columns;
    switch (method) {
    case METHOD_VEC:
        if (parts.columns) sheaf__cuda_place_columns(&p, columns);
        if (parts.columns && !rounded) sheaf__cuda_quantize_columns(q, &p);
        sheaf__cuda_mul_vec(q, &p);
        q->counts.few++;
        q->counts.early += p.early && q->ahead;
        break;
    case METHOD_BLAS:
        if (through_blas(q, dst, &p, columns, weights, rounded)) {
            q->counts.blas++;
            break;
        }
        sheaf__cuda_mul_tile(q, &p);
        q->counts.tiles++;
        break;
    case METHOD_TILE:
        sheaf__cuda_mul_tile(q, &p);
        q->counts.tiles++;
        break;
    }
    return sheaf__cuda_launched(q, dst);
}

/* Do blocks of one product write nothing that those of another read or write? */
static bool independent(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    return sheaf__cuda_disjoint(a, b) && sheaf__cuda_disjoint(a->src[0], b) &&
           sheaf__cuda_disjoint(b->src[0], a) && sheaf__cuda_disjoint(a->src[1], b) &&
           sheaf__cuda_disjoint(b->src[1], a);
}

/* May they be one launch of the vector kernels? Alike are type, columns, one matrix, 16-byte pieces. */
static bool joins(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *first,
                       const struct sheaf_tensor *other) {
    const struct sheaf_tensor *const both[] = {first, other};
    for (int i = 0; i < 2; i++) {
        const struct sheaf_tensor *t = both[i], *a = t->src[0];
        if (t->op != SHEAF_OP_MUL_MAT || method_of(q, t) != METHOD_VEC ||
            t->ne[2] * t->ne[3] != 1 ||
            (!sheaf__cuda_by_integers(a->type) && ((uintptr_t)a->data | a->nb[1]) % 16 != 0))
            return false;
    }
    return first->src[1] == other->src[1] && first->src[0]->type == other->src[0]->type &&
           independent(first, other);
}

bool sheaf__cuda_rounds(struct sheaf__cuda_queue *q, const struct sheaf_tensor *x,
                        const struct sheaf_tensor *user, bool halves, struct Rounded *r) {
    memset(r, 0, sizeof *r);
    if (!user || user->op != SHEAF_OP_MUL_MAT || user->src[1] != x || needs_gather(x)) return false;
    const enum Method method = method_of(q, user);
    const enum sheaf_type as = rounded_type(user, method);
    if (method == METHOD_VEC && as == SHEAF_TYPE_Q8_0) {
        Product p;
        memset(&p, 0, sizeof p);
        p.b = sheaf__cuda_view(x);
        sheaf__cuda_place_columns(&p, q->work);
        r->q = p.q;
        r->ds = p.ds;
        r->chunks = (int)p.chunks;
    } else if (method == METHOD_BLAS && as != SHEAF_TYPE_COUNT && halves) {
        r->halves = (uint16_t *)(void *)q->work; /* nothing is gathered before them */
        r->half = as;
    } else {
        return false;
    }
    q->rounds = x;
    q->rounds_type = as;
    return true;
}

int sheaf__cuda_launch_products(struct sheaf__cuda_queue *q, const struct sheaf_tensor *const *next,
                                int n, enum sheaf_status *st) {
    int together = 1;
    if (next[0]->op != SHEAF_OP_MUL_MAT) return 0;
    while (together < n && together < 3 && joins(q, next[0], next[together]) &&
           (together < 2 || independent(next[1], next[2])))
        together++;
    if (together > 1) *st = launch_nodes(q, next, together);
    return together > 1 ? together : 0;
}

static enum sheaf_status launch_mul_mat(struct sheaf__cuda_queue *q,
                                        const struct sheaf_tensor *dst) {
    return launch_nodes(q, &dst, 1);
}

SHEAF__CUDA_OP(MUL_MAT) = {launch_mul_mat, work_mul_mat};
SHEAF__CUDA_OP(MUL_MAT_ID) = {launch_mul_mat, work_mul_mat};
