/* ADD SUB MUL DIV, UNARY, GLU and the ops that map an element by a function of functions.cuh: one
 * result element from one element of each operand, computed in F32. dst may be the memory of an operand of
 * the same layout: a thread reads what it writes.
 *
 * A block takes a piece of a row; tensors that are dense throughout count as one row. */
#include "cuda/functions.cuh"
#include "cuda/product.h"

enum { THREADS = 256, PER_THREAD = 4, PIECE = THREADS * PER_THREAD };
enum { ROUND_THREADS = 128 }; /* with four elements each: a row of one token is some blocks */

HD float binary_of(int op, float a, float b) {
    switch (op) {
    case SHEAF_OP_ADD:
        return a + b;
    case SHEAF_OP_SUB:
        return a - b;
    case SHEAF_OP_MUL:
        return a * b;
    default:
        return a / b;
    }
}
/* ---- kernels ---- */

/* A thread's elements of row p, `first` and more THREADS apart; those behind the n-th are 0. All are
 * under way before one is used. */
struct Loaded {
    float v[PER_THREAD];
};
static __device__ __forceinline__ Loaded load_piece(const View &a, const char *p, int64_t first,
                                                    int64_t n) {
    Loaded x;
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        const int64_t i = first + k * THREADS;
        x.v[k] = i < n ? load_plain(a.type, p + (size_t)i * a.nb[0]) : 0.0f;
    }
    return x;
}
static __device__ __forceinline__ void store_piece(const View &dst, char *p, int64_t first,
                                                   const Loaded &x) {
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        const int64_t i = first + k * THREADS;
        if (i < dst.ne[0]) store_plain(dst.type, x.v[k], p + (size_t)i * dst.nb[0]);
    }
}

/* dst, a [i, j, h, s], b repeated to it */
static __global__ void binary_kernel(View dst, View a, View b, int op, Pieces pieces) {
    next_may_start();
    previous_done();
    for (int64_t piece = blockIdx.x; piece < pieces.n; piece += gridDim.x) {
        const Piece at = piece_at(dst, pieces, PIECE, piece);
        const char *q = row_repeat(b, at.row);
        Loaded x = load_piece(a, row_data(a, at.row), at.first, dst.ne[0]), y;
        if (b.ne[0] == dst.ne[0]) {
            y = load_piece(b, q, at.first, dst.ne[0]);
        } else {
#pragma unroll
            for (int k = 0; k < PER_THREAD; k++) {
                const int64_t j = divided(at.first + k * THREADS, b.ne[0]).rest;
                y.v[k] = load_plain(b.type, q + (size_t)j * b.nb[0]);
            }
        }
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) x.v[k] = binary_of(op, x.v[k], y.v[k]);
        store_piece(dst, row_data(dst, at.row), at.first, x);
    }
}

static __global__ void unary_kernel(View dst, View a, Function f, Pieces pieces) {
    next_may_start();
    previous_done();
    for (int64_t piece = blockIdx.x; piece < pieces.n; piece += gridDim.x) {
        const Piece at = piece_at(dst, pieces, PIECE, piece);
        const char *x = row_data(a, at.row);
        char *d = row_data(dst, at.row);
        for (int k = 0; k < PER_THREAD; k++) { /* not at once: the functions are long */
            const int64_t i = at.first + k * THREADS;
            if (i >= dst.ne[0]) break;
            const float v = map_of(f, load_plain(a.type, x + (size_t)i * a.nb[0]));
            store_plain(dst.type, v, d + (size_t)i * dst.nb[0]);
        }
    }
}

/* a, b: the gate and the value, both of dst's shape */
static __global__ void glu_kernel(View dst, View a, View b, Function f, Pieces pieces) {
    next_may_start();
    previous_done();
    for (int64_t piece = blockIdx.x; piece < pieces.n; piece += gridDim.x) {
        const Piece at = piece_at(dst, pieces, PIECE, piece);
        Loaded x = load_piece(a, row_data(a, at.row), at.first, dst.ne[0]);
        const Loaded y = load_piece(b, row_data(b, at.row), at.first, dst.ne[0]);
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) x.v[k] = glu_of(f, x.v[k], y.v[k]);
        store_piece(dst, row_data(dst, at.row), at.first, x);
    }
}

HD Four glu_of(const Function &f, const Four &a, const Four &b) {
    Four y;
    if (f.number == SHEAF_GLU_OP_SWIGLU) { /* chosen once, not for each */
        for (int j = 0; j < 4; j++) y.v[j] = silu_of(a.v[j]) * b.v[j];
    } else {
        for (int j = 0; j < 4; j++) y.v[j] = glu_of(f, a.v[j], b.v[j]);
    }
    return y;
}

/* The same for dense F32 rows, with what products of the result want beside it. A thread has four elements; those
 * behind the last are zeros. grid: x pieces of a row, y rows */
template <bool WIDE>
static __global__ void __launch_bounds__(ROUND_THREADS)
    glu_rounded_kernel(View dst, View a, View b, Function f, Rounded rounded) {
    next_may_start();
    previous_done();
    const int n = (int)dst.ne[0], i = 4 * (int)(blockIdx.x * ROUND_THREADS + threadIdx.x);
    const int rows = (int)n_rows(dst);
    for (int row = (int)blockIdx.y; row < rows; row += (int)gridDim.y) {
        Four y = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (i < n) {
            const Four gate = load_four(row_of<WIDE>(a, row), i, n, WIDE);
            y = glu_of(f, gate, load_four(row_of<WIDE>(b, row), i, n, WIDE));
            store_four(row_of<WIDE>(dst, row), i, n, WIDE, y);
        }
        round_four(rounded, (unsigned)row, i, n, y);
    }
}

/* ---- launches ---- */

static void flatten(View *v, int64_t n) {
    v->ne[0] = n;
    v->ne[1] = v->ne[2] = v->ne[3] = 1;
}

static enum sheaf_status launch_binary(struct sheaf__cuda_queue *q,
                                       const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    View d = sheaf__cuda_view(dst), x = sheaf__cuda_view(a), y = sheaf__cuda_view(b);
    if (sheaf_is_contiguous(dst) && sheaf_is_contiguous(a) && sheaf_is_contiguous(b) &&
        sheaf_are_same_shape(a, b)) {
        const int64_t n = sheaf_nelements(dst);
        flatten(&d, n);
        flatten(&x, n);
        flatten(&y, n);
    }
    const Pieces p = pieces_of(d, PIECE);
    CUDA_LAUNCH_AHEAD_PLAIN(q->ahead, binary_kernel, sheaf__cuda_blocks(p.n, 1), THREADS, 0,
                            q->stream, d, x, y, (int)dst->op, p);
    return sheaf__cuda_launched(q, dst);
}

static enum sheaf_status launch_unary(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    View d = sheaf__cuda_view(dst), x = sheaf__cuda_view(a);
    if (sheaf_is_contiguous(dst) && sheaf_is_contiguous(a)) {
        flatten(&d, sheaf_nelements(dst));
        flatten(&x, sheaf_nelements(dst));
    }
    const Pieces p = pieces_of(d, PIECE);
    CUDA_LAUNCH_AHEAD_PLAIN(q->ahead, unary_kernel, sheaf__cuda_blocks(p.n, 1), THREADS, 0,
                            q->stream, d, x, function_of(dst), p);
    return sheaf__cuda_launched(q, dst);
}

/* a [f+f, n] -> dst [f, n], or a, b [f, n] -> dst [f, n] */
static enum sheaf_status launch_glu(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    View d = sheaf__cuda_view(dst), x = sheaf__cuda_view(a), y = sheaf__cuda_view(b ? b : a);
    if (!b) {
        const bool swapped = dst->op_params[1] != 0;
        x.ne[0] = y.ne[0] = dst->ne[0];
        (swapped ? x : y).data += (size_t)dst->ne[0] * a->nb[0];
    } else if (sheaf_is_contiguous(dst) && sheaf_is_contiguous(a) && sheaf_is_contiguous(b)) {
        flatten(&d, sheaf_nelements(dst));
        flatten(&x, sheaf_nelements(dst));
        flatten(&y, sheaf_nelements(dst));
    }
    const Pieces p = pieces_of(d, PIECE);
    CUDA_LAUNCH_AHEAD_PLAIN(q->ahead, glu_kernel, sheaf__cuda_blocks(p.n, 1), THREADS, 0, q->stream,
                            d, x, y, function_of(dst), p);
    return sheaf__cuda_launched(q, dst);
}

int sheaf__cuda_launch_glu_rounded(struct sheaf__cuda_queue *q,
                                   const struct sheaf_tensor *const *next, int n,
                                   enum sheaf_status *st) {
    const struct sheaf_tensor *dst = next[0], *a = dst->src[0], *b = dst->src[1];
    Rounded rounded;
    if (dst->op != SHEAF_OP_GLU || !b || !sheaf__cuda_plain_rows(dst, dst) ||
        !sheaf__cuda_plain_rows(a, dst) || !sheaf__cuda_plain_rows(b, dst) ||
        dst->ne[0] > 1 << 30 || sheaf_nrows(dst) > 1 << 30 ||
        !sheaf__cuda_rounds(q, dst, n > 1 ? next[1] : NULL, true, &rounded))
        return 0;
    const bool wide =
        sheaf__cuda_in_fours(dst) && sheaf__cuda_in_fours(a) && sheaf__cuda_in_fours(b);
    const int64_t per_row = rounded.q ? (int64_t)rounded.chunks * 1024 : dst->ne[0];
    const dim3 grid(sheaf__cuda_blocks(per_row, 4 * ROUND_THREADS),
                    sheaf__cuda_blocks_y(sheaf_nrows(dst)));
    CUDA_LAUNCH_AHEAD(q->ahead, wide ? glu_rounded_kernel<true> : glu_rounded_kernel<false>, grid,
                      ROUND_THREADS, 0, q->stream, sheaf__cuda_view(dst), sheaf__cuda_view(a),
                      sheaf__cuda_view(b), function_of(dst), rounded);
    *st = sheaf__cuda_launched(q, dst);
    return 1;
}

SHEAF__CUDA_OP(ADD) = {launch_binary, NULL};
SHEAF__CUDA_OP(SUB) = {launch_binary, NULL};
SHEAF__CUDA_OP(MUL) = {launch_binary, NULL};
SHEAF__CUDA_OP(DIV) = {launch_binary, NULL};
SHEAF__CUDA_OP(SCALE) = {launch_unary, NULL};
SHEAF__CUDA_OP(SQR) = {launch_unary, NULL};
SHEAF__CUDA_OP(SQRT) = {launch_unary, NULL};
SHEAF__CUDA_OP(SIN) = {launch_unary, NULL};
SHEAF__CUDA_OP(COS) = {launch_unary, NULL};
SHEAF__CUDA_OP(LOG) = {launch_unary, NULL};
SHEAF__CUDA_OP(CLAMP) = {launch_unary, NULL};
SHEAF__CUDA_OP(LEAKY_RELU) = {launch_unary, NULL};
SHEAF__CUDA_OP(UNARY) = {launch_unary, NULL};
SHEAF__CUDA_OP(GLU) = {launch_glu, NULL};
