/* Tensors and the arena contexts that hold their descriptors.
 *
 * A tensor has up to 4 dimensions; ne[0] is the fastest. nb[i] is the stride of dimension i in
 * bytes, for i = 0 the size of one element or block. Concepts, order and names follow ggml's.
 * Ownership: tensors live in a context and are freed with it. A context is used by one thread at a
 * time. */
#ifndef SHEAF_TENSOR_H
#define SHEAF_TENSOR_H

#include "sheaf/ops.h"
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

enum sheaf_tensor_flag {
    /* set by the user before a compute; its memory is not reused before its last use */
    SHEAF_TENSOR_FLAG_INPUT = 1,
    /* readable after a compute; its memory is not reused inside the graph */
    SHEAF_TENSOR_FLAG_OUTPUT = 2,
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
    /* the tensor that owns the memory, never itself a view; NULL if this one does */
    struct sheaf_tensor *view_src;
    size_t view_offs; /* bytes from the start of view_src */
    struct sheaf_backend_buffer *buffer;
    /* set by an allocator; on a device that is not host memory, an address of that device */
    void *data;
    void *extra; /* belongs to the backend that owns the buffer */
    char name[SHEAF_MAX_NAME];
};

struct sheaf_context;

struct sheaf_init_params {
    /* bytes of the arena; see sheaf_tensor_overhead() and sheaf_graph_overhead() */
    size_t mem_size;
    /* the caller's memory (16-byte aligned, outlives the context); NULL: allocated here */
    void *mem_buffer;
    /* true: descriptors only, data stays NULL; false: data in the arena too (host use) */
    bool no_alloc;
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

/* Names longer than SHEAF_MAX_NAME-1 bytes are cut. Both that set one return `tensor` and accept
 * NULL; the old name may be an argument. */
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
/* Dimension 0 is dense; rows may be anywhere. */
bool sheaf_is_contiguous_rows(const struct sheaf_tensor *tensor);
bool sheaf_is_transposed(const struct sheaf_tensor *tensor);
bool sheaf_is_permuted(const struct sheaf_tensor *tensor);
bool sheaf_is_empty(const struct sheaf_tensor *tensor);
bool sheaf_is_view(const struct sheaf_tensor *tensor);
bool sheaf_are_same_shape(const struct sheaf_tensor *a, const struct sheaf_tensor *b);
/* The same type, ne and nb. */
bool sheaf_are_same_layout(const struct sheaf_tensor *a, const struct sheaf_tensor *b);
/* a repeats to the shape of b. */
bool sheaf_can_repeat(const struct sheaf_tensor *a, const struct sheaf_tensor *b);

#ifdef __cplusplus
}
#endif
#endif
