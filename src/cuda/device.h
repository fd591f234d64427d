/* What the files of the CUDA backend share on the host's side.
 *
 * Errors: a CUDA call that fails becomes a status and a text with the device, what was being done,
 * and the runtime's own words; nothing here aborts. CUDA's sticky errors (a fault inside a kernel)
 * are returned by every later call of the device, so the text says that the process must start
 * anew. */
#ifndef SHEAF_CUDA_DEVICE_H
#define SHEAF_CUDA_DEVICE_H

extern "C" {
#include "base/arith.h"
#include "tensor/access.h"
#include "tensor/graph.h"
#include "tensor/op_info.h"
}
#include "cuda/kernel.cuh"
#include "sheaf/backend-impl.h"

enum { SHEAF__CUDA_MAX_DEVICES = 16 };

struct sheaf__cuda_device {
    struct sheaf_backend_device base;
    int ordinal;
    int n_sm;
    size_t most_shared; /* bytes of shared memory that a block may have if its kernel asks */
    size_t total_memory;
    int capability; /* 90 for 9.0 */
    int code;       /* architecture that the kernels which it runs were compiled for */
    bool used;      /* this process has a context on it (module.cu) */
    char name[16];  /* "CUDA0" */
    char description[400];
    char buft_name[16];
    struct sheaf_backend_buffer_type buft, host_buft;
};

/* From an error to a status and a text: "CUDA0: allocating 12 bytes: out of memory". */
enum sheaf_status sheaf__cuda_error(const char *device, cudaError_t error, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Makes the device the calling thread's current one; this process has a context on it from then on. */
cudaError_t sheaf__cuda_use(struct sheaf__cuda_device *device);
/* Lets this device and each other one that this process uses read and write each other's memory
 * directly, where the hardware can. Without it the driver copies between them through host memory. */
void sheaf__cuda_reach_peers(struct sheaf__cuda_device *device);

/* The device that owns the type, NULL if it is not one of ours. */
struct sheaf__cuda_device *sheaf__cuda_device_of_buft(sheaf_backend_buffer_type_t buft);
/* The device whose memory the tensor lies in, NULL if it is other memory. */
struct sheaf__cuda_device *sheaf__cuda_device_of_tensor(const struct sheaf_tensor *t);

extern const struct sheaf_backend_buffer_type_i sheaf__cuda_buft_i, sheaf__cuda_host_buft_i;

enum sheaf_status sheaf__cuda_backend_new(struct sheaf__cuda_device *device, const char *params,
                                          sheaf_backend_t *out);
enum sheaf_status sheaf__cuda_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out);
void sheaf__cuda_event_free(sheaf_backend_dev_t dev, sheaf_backend_event_t event);
enum sheaf_status sheaf__cuda_event_synchronize(sheaf_backend_dev_t dev,
                                                sheaf_backend_event_t event);

/* ---- ops ---- */

/* How graphs and products ran ("counts=1"). Launches of a captured graph count once, in
 * the capture, not in each replay. */
struct sheaf__cuda_counts {
    uint64_t captured, replayed;
    uint64_t refused;      /* captures that failed: such a graph runs node by node for ever */
    uint64_t node_by_node; /* runs of graphs */
    uint64_t few, early;   /* products of few columns, and those that fetch weights ahead */
    uint64_t blas, tiles;  /* products of more columns */
};

/* Where the nodes of a graph run. */
struct sheaf__cuda_queue {
    const struct sheaf__cuda_device *device;
    cudaStream_t stream;
    bool ahead;   /* kernels may start before the one before them is done */
    Fault *fault; /* address for kernels */
    char *work;   /* scratch of the node that is launched */
    size_t work_size;
    struct sheaf__cuda_blas *blas; /* NULL: cuBLASLt is not there */
    /* The tensor whose columns lie in the scratch as integers or halves (mul_mat.cu), so that the
     * products of one x by several matrices convert it once; NULL: none. */
    const struct sheaf_tensor *rounded;
    enum sheaf_type rounded_type;
    const struct sheaf_tensor *rounds; /* what the kernels of a launch wrote in that form, too */
    enum sheaf_type rounds_type;
    struct sheaf__sum sum;             /* kept for the nodes that come next (backend/sum.h) */
    struct sheaf__cuda_counts counts;
};

/* One op: exact support, scratch bytes, launch. A launch only submits. */
struct sheaf__cuda_op {
    enum sheaf_status (*launch)(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst);
    size_t (*work_size)(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst);
};
/* NULL for views and leaves, which compute nothing. */
const struct sheaf__cuda_op *sheaf__cuda_op(enum sheaf_op op);
/* Types that kernels read an element at a time (iq.cuh), and do not write. */
bool sheaf__cuda_by_elements(enum sheaf_type type);
bool sheaf__cuda_supports_op(const struct sheaf_tensor *op);
/* May the device compute the node, with all its operands in its memory? */
enum sheaf_status sheaf__cuda_check_node(const struct sheaf__cuda_device *device, const struct sheaf_tensor *node);

/* Defines the entry of one op in its family's file: SHEAF__CUDA_OP(ADD) = {launch_binary, NULL}; an
 * op of tensor/op_info.h without one does not link. */
#define SHEAF__CUDA_OP(op) const struct sheaf__cuda_op sheaf__cuda_op_##op

#define DECLARE(op, ...) extern SHEAF__CUDA_OP(op);
SHEAF__OPS(DECLARE)
#undef DECLARE

/* Is there the shared memory for its heads? */
bool sheaf__cuda_attention_fits(const struct sheaf_tensor *dst);
/* A row is sorted by counting, whose work is the square of its elements: up to 4096 of them. */
bool sheaf__cuda_sort_fits(const struct sheaf_tensor *dst);
/* Do a warp's registers hold a row of the state, if the op has one? */
bool sheaf__cuda_state_fits(const struct sheaf_tensor *op);

/* Nodes that one kernel computes together, with the bits of one after another; all results are
 * written. next [n]: nodes to come, views left out. How many were submitted; 0: not such nodes, or
 * their memory does not allow it. Where a product of block types comes next, its columns become
 * integers in the same kernel (product.h); those of cuBLASLt halves, after a chain or a GLU.
 *   chain: ADD, RMS_NORM, MUL by a row of weights, or two of them with the norm
 *   products: two or three MUL_MAT of few columns, all of one x
 *   glu: a GLU that such a product comes after
 *   attention: FLASH_ATTN_EXT that a product of block types comes after
 *   turn:  RMS_NORM and MUL by a row of weights, or not; ROPE; SET_ROWS into a cache, or not; also
 *          those of q and of k together, and the SET_ROWS of V into its cache */
enum { SHEAF__CUDA_TOGETHER = 8 };
int sheaf__cuda_launch_products(struct sheaf__cuda_queue *q, const struct sheaf_tensor *const *next,
                                int n, enum sheaf_status *st);
int sheaf__cuda_launch_glu_rounded(struct sheaf__cuda_queue *q,
                                   const struct sheaf_tensor *const *next, int n,
                                   enum sheaf_status *st);
int sheaf__cuda_launch_attention(struct sheaf__cuda_queue *q,
                                 const struct sheaf_tensor *const *next, int n,
                                 enum sheaf_status *st);
int sheaf__cuda_launch_turn(struct sheaf__cuda_queue *q, const struct sheaf_tensor *const *next,
                            int n, enum sheaf_status *st);
int sheaf__cuda_launch_chain(struct sheaf__cuda_queue *q, const struct sheaf_tensor *const *next,
                             int n, enum sheaf_status *st);

/* Submits the sum that was kept. A chain that begins with its result takes it along; while there is
 * one, launch_chain submits no other. */
enum sheaf_status sheaf__cuda_launch_sum(struct sheaf__cuda_queue *q);

/* ---- inputs in one upload (inputs.cu) ---- */

struct sheaf__cuda_inputs;
/* Queues them, after which their data may change. *block: made when it is first needed; freed when
 * the queue is empty. *done false: not so, nothing was submitted. */
enum sheaf_status sheaf__cuda_inputs_write(struct sheaf__cuda_inputs **block,
                                           const struct sheaf__cuda_queue *q,
                                           const struct sheaf_tensor_write *writes, size_t n,
                                           bool *done);
void sheaf__cuda_inputs_free(struct sheaf__cuda_inputs *in); /* accepts NULL */

/* ---- times of launches (times.cu) ---- */

struct sheaf__cuda_times;
struct sheaf__cuda_times *sheaf__cuda_times_new(void); /* NULL: not now */
/* Around a launch of the nodes, which may be views in part. */
void sheaf__cuda_times_begin(struct sheaf__cuda_times *t, cudaStream_t stream);
void sheaf__cuda_times_end(struct sheaf__cuda_times *t, cudaStream_t stream,
                           struct sheaf_tensor *const *nodes, int n);
/* Prints them on standard error; accepts NULL. */
void sheaf__cuda_times_free(struct sheaf__cuda_times *t, const char *device);

/* ---- collectives of members on one GPU (shared_gpu.cu) ---- */

extern const struct sheaf__devcomm_i sheaf__cuda_shared_gpu;
void *sheaf__cuda_backend_stream(sheaf_backend_t backend); /* NULL: not one of ours */
enum sheaf_status sheaf__cuda_backend_sum(sheaf_backend_t backend, const struct sheaf__sum *sum);

/* ---- captures between runs (backend/optional.h) ---- */

void sheaf__cuda_backend_capture(sheaf_backend_t backend, bool now);

/* ---- shared by the op files ---- */

static inline View sheaf__cuda_view(const struct sheaf_tensor *t) {
    View v;
    v.data = (char *)t->data;
    memcpy(v.ne, t->ne, sizeof v.ne);
    memcpy(v.nb, t->nb, sizeof v.nb);
    v.type = t->type;
    return v;
}
static inline bool sheaf__cuda_is_plain(const struct sheaf_tensor *t) {
    return t->type == SHEAF_TYPE_F32 || t->type == SHEAF_TYPE_F16 || t->type == SHEAF_TYPE_BF16;
}
/* Elements (blocks) of a row lie side by side. */
static inline bool sheaf__cuda_is_dense(const struct sheaf_tensor *t) {
    return t->ne[0] <= sheaf_blck_size(t->type) || t->nb[0] == sheaf_type_size(t->type);
}
/* F32 of that shape, rows dense. */
static inline bool sheaf__cuda_plain_rows(const struct sheaf_tensor *t,
                                          const struct sheaf_tensor *shape) {
    return t->type == SHEAF_TYPE_F32 && sheaf__cuda_is_dense(t) && sheaf_are_same_shape(t, shape);
}
/* Rows of F32 that are taken four elements at a time, wide (kernel.cuh), one step of less than 4 GB apart. */
static inline bool sheaf__cuda_in_fours(const struct sheaf_tensor *t) {
    return sheaf__cuda_plain_rows(t, t) && t->ne[0] % 4 == 0 && t->ne[0] <= 1 << 30 &&
           in_sixteens(sheaf__cuda_view(t)) && t->nb[1] <= UINT32_MAX &&
           (t->ne[2] == 1 || t->nb[2] == t->nb[1] * (size_t)t->ne[1]) &&
           (t->ne[3] == 1 || t->nb[3] == t->nb[2] * (size_t)t->ne[2]);
}
/* Have they no byte in common? */
static inline bool sheaf__cuda_disjoint(const struct sheaf_tensor *s,
                                        const struct sheaf_tensor *t) {
    const char *x = (const char *)s->data, *y = (const char *)t->data;
    return x + sheaf_nbytes(s) <= y || y + sheaf_nbytes(t) <= x;
}
/* The MUL of norm by one row of F32 weights, all rows dense. */
static inline bool sheaf__cuda_is_weighted(const struct sheaf_tensor *mul,
                                           const struct sheaf_tensor *norm) {
    if (mul->op != SHEAF_OP_MUL || mul->src[0] != norm) return false;
    const struct sheaf_tensor *w = mul->src[1];
    return sheaf__cuda_plain_rows(mul, norm) && w->type == SHEAF_TYPE_F32 &&
           sheaf__cuda_is_dense(w) && w->ne[0] == norm->ne[0] && sheaf_nrows(w) == 1 &&
           sheaf__cuda_disjoint(w, norm) && sheaf__cuda_disjoint(w, mul);
}
/* In a buffer of weights, which graphs read only. */
static inline bool sheaf__cuda_is_weight(const struct sheaf_tensor *t) {
    return t->op == SHEAF_OP_NONE && !t->view_src && t->buffer &&
           t->buffer->usage == SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS;
}
/* May `out` be written while other rows of `in` are still to be read? If they are the same memory
 * in the same layout, or have none in common. The allocator gives the memory of an operand to
 * others once the node that it was for is done; in one kernel they all are at once. */
static inline bool sheaf__cuda_apart(const struct sheaf_tensor *out,
                                     const struct sheaf_tensor *in) {
    const char *x = (const char *)out->data, *y = (const char *)in->data;
    if (x == y && !memcmp(out->nb, in->nb, sizeof out->nb)) return true;
    return sheaf__cuda_disjoint(out, in);
}
/* Blocks for n items; kernels stride over what is left. */
static inline unsigned sheaf__cuda_blocks(int64_t n, int64_t per_block) {
    int64_t blocks = (n + per_block - 1) / per_block;
    return (unsigned)(blocks < 1 ? 1 : blocks > 0x3fffffff ? 0x3fffffff : blocks);
}
/* Threads of a block that has a row to sum: a power of two from 32 on, about four elements each, which the norms take
 * at a time. */
static inline unsigned sheaf__cuda_row_threads(int64_t n) {
    unsigned t = 32;
    while (t < 1024 && (int64_t)t * 4 < n) t *= 2;
    return t;
}
/* May blocks of the kernel have so many bytes of dynamic shared memory, more than the 48 KiB that need no asking?
 * The kernel is asked for all that there is, whatever the launch wants: kernels belong to the GPU, and a member on
 * it must take nothing from what another one is about to launch. */
template <class Kernel>
static inline bool sheaf__cuda_allows_shared(const struct sheaf__cuda_queue *q, Kernel *kernel,
                                             size_t bytes) {
    const size_t most = q->device->most_shared;
    if (bytes > most) return false;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most);
    if (e) cudaGetLastError();
    return !e;
}
static inline unsigned sheaf__cuda_blocks_y(int64_t n) {
    return (unsigned)(n < 1 ? 1 : n > 65535 ? 65535 : n);
}
/* After a launch. */
enum sheaf_status sheaf__cuda_launched(const struct sheaf__cuda_queue *q,
                                       const struct sheaf_tensor *dst);

/* ---- cuBLASLt, taken at run time ---- */

/* *out NULL if the library is not there (no error); what is missing is not linked. */
void sheaf__cuda_blas_new(const struct sheaf__cuda_device *device, struct sheaf__cuda_blas **out);
void sheaf__cuda_blas_free(struct sheaf__cuda_blas *blas);
/* out F32 [m, n] = a^T b: a [k, m] with lda elements a column, b [k, n] dense, both of type F16 or
 * BF16. false: no algorithm for this shape, nothing was submitted. */
bool sheaf__cuda_blas_product(struct sheaf__cuda_blas *blas, cudaStream_t stream,
                              enum sheaf_type type, int64_t m, int64_t n, int64_t k, const void *a,
                              int64_t lda, const void *b, float *out, int64_t ldo);

#endif
