/* Tensors and the arena contexts that hold their descriptors.
 *
 * A tensor has up to 4 dimensions; ne[0] is the fastest. nb[i] is the stride of dimension i in
 * bytes, for i = 0 the size of one element or block. Concepts, order and names follow ggml's.
 * Ownership: tensors live in a context and are freed with it. A context is used by one thread at a
 * time. */
#ifndef SHEAF_TENSOR_H
#define SHEAF_TENSOR_H

#include "sheaf/type.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SHEAF_MAX_DIMS = 4,
    SHEAF_MAX_SRC = 10,
    SHEAF_MAX_NAME = 64,
    SHEAF_MAX_OP_PARAMS = 16, /* 32-bit words */
};

enum sheaf_op {
    SHEAF_OP_NONE = 0, /* a leaf: weights, caches, inputs */
    SHEAF_OP_DUP,
    SHEAF_OP_ADD,
    SHEAF_OP_SUB,
    SHEAF_OP_MUL,
    SHEAF_OP_DIV,
    SHEAF_OP_SCALE,
    SHEAF_OP_SUM_ROWS,
    SHEAF_OP_ARGMAX,
    SHEAF_OP_TOP_K,
    SHEAF_OP_CONCAT,
    SHEAF_OP_RMS_NORM,
    SHEAF_OP_MUL_MAT,
    SHEAF_OP_MUL_MAT_ID,
    SHEAF_OP_CPY,
    SHEAF_OP_CONT,
    SHEAF_OP_RESHAPE,
    SHEAF_OP_VIEW,
    SHEAF_OP_PERMUTE,
    SHEAF_OP_TRANSPOSE,
    SHEAF_OP_GET_ROWS,
    SHEAF_OP_SET_ROWS,
    SHEAF_OP_SOFT_MAX,
    SHEAF_OP_ROPE,
    SHEAF_OP_FLASH_ATTN_EXT,
    SHEAF_OP_UNARY,
    SHEAF_OP_GLU,
    SHEAF_OP_COUNT,
};

enum sheaf_unary_op {
    SHEAF_UNARY_OP_SILU,
    SHEAF_UNARY_OP_GELU, /* tanh approximation */
    SHEAF_UNARY_OP_RELU,
    SHEAF_UNARY_OP_TANH,
    SHEAF_UNARY_OP_SIGMOID,
    SHEAF_UNARY_OP_NEG,
    SHEAF_UNARY_OP_EXP,
    SHEAF_UNARY_OP_COUNT,
};

enum sheaf_glu_op {
    SHEAF_GLU_OP_SWIGLU, /* silu(a) * b */
    SHEAF_GLU_OP_GEGLU,  /* gelu(a) * b */
    SHEAF_GLU_OP_REGLU,  /* relu(a) * b */
    SHEAF_GLU_OP_COUNT,
};

enum sheaf_tensor_flag {
    SHEAF_TENSOR_FLAG_INPUT =
        1, /* set by the user before a compute; never reused before its last use */
    SHEAF_TENSOR_FLAG_OUTPUT =
        2, /* readable after a compute; its memory is not reused inside the graph */
};

struct sheaf_backend_buffer;

struct sheaf_tensor {
    enum sheaf_type type;
    enum sheaf_op op;
    int32_t flags; /* of enum sheaf_tensor_flag */
    int64_t ne[SHEAF_MAX_DIMS];
    size_t nb[SHEAF_MAX_DIMS];
    int32_t op_params[SHEAF_MAX_OP_PARAMS]; /* layout of each op: sheaf/ops.h */
    struct sheaf_tensor *src[SHEAF_MAX_SRC];
    struct sheaf_tensor
        *view_src; /* the tensor that owns the memory, never itself a view; NULL if this one does */
    size_t view_offs; /* bytes from the start of view_src */
    struct sheaf_backend_buffer *buffer;
    void *data;  /* set by an allocator; on a device that is not host memory, an address of that
                    device */
    void *extra; /* belongs to the backend that owns the buffer */
    char name[SHEAF_MAX_NAME];
};

struct sheaf_context;

struct sheaf_init_params {
    size_t
        mem_size; /* bytes of the arena; see sheaf_tensor_overhead() and sheaf_graph_overhead() */
    void *mem_buffer; /* caller's memory (16-byte aligned, outlives the context), or NULL: allocated
                         here */
    bool no_alloc;    /* true: descriptors only, data stays NULL; false: data in the arena too (host
                         use) */
};

/* NULL if out of memory. */
struct sheaf_context *sheaf_init(struct sheaf_init_params params);
void sheaf_free(struct sheaf_context *ctx);  /* accepts NULL */
void sheaf_reset(struct sheaf_context *ctx); /* forgets all tensors, keeps the arena */
size_t sheaf_used_mem(const struct sheaf_context *ctx);
size_t sheaf_get_mem_size(const struct sheaf_context *ctx);
bool sheaf_get_no_alloc(const struct sheaf_context *ctx);
void sheaf_set_no_alloc(struct sheaf_context *ctx, bool no_alloc);
/* Arena bytes that one tensor descriptor takes. */
size_t sheaf_tensor_overhead(void);

/* New tensors, contiguous. NULL (and sheaf_last_error) if the arena is full, the type is unknown, a
 * dimension is negative, ne0 is not whole blocks, or the size overflows. A dimension of 0 is valid:
 * an empty tensor. */
struct sheaf_tensor *sheaf_new_tensor(struct sheaf_context *ctx, enum sheaf_type type, int n_dims,
                                      const int64_t *ne);
struct sheaf_tensor *sheaf_new_tensor_1d(struct sheaf_context *ctx, enum sheaf_type type,
                                         int64_t ne0);
struct sheaf_tensor *sheaf_new_tensor_2d(struct sheaf_context *ctx, enum sheaf_type type,
                                         int64_t ne0, int64_t ne1);
struct sheaf_tensor *sheaf_new_tensor_3d(struct sheaf_context *ctx, enum sheaf_type type,
                                         int64_t ne0, int64_t ne1, int64_t ne2);
struct sheaf_tensor *sheaf_new_tensor_4d(struct sheaf_context *ctx, enum sheaf_type type,
                                         int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
/* A new leaf of the same type and shape. */
struct sheaf_tensor *sheaf_dup_tensor(struct sheaf_context *ctx, const struct sheaf_tensor *src);
/* A view of the whole of src. */
struct sheaf_tensor *sheaf_view_tensor(struct sheaf_context *ctx, struct sheaf_tensor *src);

struct sheaf_tensor *sheaf_get_first_tensor(const struct sheaf_context *ctx);
struct sheaf_tensor *sheaf_get_next_tensor(const struct sheaf_context *ctx,
                                           const struct sheaf_tensor *tensor);
struct sheaf_tensor *sheaf_get_tensor(const struct sheaf_context *ctx, const char *name);

/* Names longer than SHEAF_MAX_NAME-1 bytes are cut. All three return `tensor` and accept NULL. */
struct sheaf_tensor *sheaf_set_name(struct sheaf_tensor *tensor, const char *name);
struct sheaf_tensor *sheaf_format_name(struct sheaf_tensor *tensor, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
const char *sheaf_get_name(const struct sheaf_tensor *tensor);
void sheaf_set_input(struct sheaf_tensor *tensor);
void sheaf_set_output(struct sheaf_tensor *tensor);

int64_t sheaf_nelements(const struct sheaf_tensor *tensor);
int64_t sheaf_nrows(const struct sheaf_tensor *tensor); /* ne[1]*ne[2]*ne[3] */
/* Bytes from the first to the end of the last element (strides counted); 0 for an empty tensor. */
size_t sheaf_nbytes(const struct sheaf_tensor *tensor);
size_t sheaf_element_size(const struct sheaf_tensor *tensor); /* bytes of one element or block */
int sheaf_n_dims(const struct sheaf_tensor *tensor);          /* 1 for a scalar */
bool sheaf_is_contiguous(const struct sheaf_tensor *tensor);
bool sheaf_is_contiguous_rows(
    const struct sheaf_tensor *tensor); /* dimension 0 is dense; rows may be anywhere */
bool sheaf_is_transposed(const struct sheaf_tensor *tensor);
bool sheaf_is_permuted(const struct sheaf_tensor *tensor);
bool sheaf_is_empty(const struct sheaf_tensor *tensor);
bool sheaf_is_view(const struct sheaf_tensor *tensor);
bool sheaf_are_same_shape(const struct sheaf_tensor *a, const struct sheaf_tensor *b);
bool sheaf_are_same_layout(const struct sheaf_tensor *a,
                           const struct sheaf_tensor *b); /* type, ne, nb */
bool sheaf_can_repeat(const struct sheaf_tensor *a,
                      const struct sheaf_tensor *b); /* a repeats to the shape of b */

const char *sheaf_op_name(enum sheaf_op op); /* "MUL_MAT" */
const char *
sheaf_op_desc(const struct sheaf_tensor *t); /* as op_name, with the unary / glu op's own name */
enum sheaf_unary_op sheaf_get_unary_op(const struct sheaf_tensor *t);
enum sheaf_glu_op sheaf_get_glu_op(const struct sheaf_tensor *t);
const char *sheaf_unary_op_name(enum sheaf_unary_op op);
const char *sheaf_glu_op_name(enum sheaf_glu_op op);

#ifdef __cplusplus
}
#endif
#endif
