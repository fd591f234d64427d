/* ggml's binary interface: its structures, and its tables of functions.
 *
 * They are declared here, so that no header of ggml is needed to build and one plugin fits several
 * versions. Facts are those of ggml.h and ggml-backend-impl.h, backend API versions 2 (ggml 0.9.5
 * to 0.25) and 3 (from 0.26).
 *
 * Three tables differ between versions: GG_..._FIELDS lists the fields of each once, and a
 * parameter of the macro keeps or drops those that a version added. Version 3 added two functions
 * to the table of a buffer type. ggml 0.10 added two functions each to the tables of buffers and
 * backends, and left the number at 2.
 *
 * Invariant: no layout and no number is trusted. host.c finds functions by name, maps ops, unary
 * ops, GLU ops and types by their names, and checks the layouts on tensors that the host makes. */
#ifndef SHEAF_GGML_ABI_H
#define SHEAF_GGML_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GG_KEEP(...) __VA_ARGS__
#define GG_DROP(...)

/* Fields that 0.10 added. Tests are built with GG_BEFORE_0_10, as programs of an older ggml. */
#ifdef GG_BEFORE_0_10
#define GG_SINCE_0_10 GG_DROP
#else
#define GG_SINCE_0_10 GG_KEEP
#endif

enum { GG_MAX_DIMS = 4, GG_MAX_SRC = 10, GG_MAX_NAME = 64, GG_PARAM_WORDS = 16 };
enum { GG_FLAG_INPUT = 1, GG_FLAG_OUTPUT = 2, GG_FLAG_COMPUTE = 16 };
enum gg_status {
    GG_STATUS_ALLOC_FAILED = -2,
    GG_STATUS_FAILED = -1,
    GG_STATUS_SUCCESS = 0,
};
enum { GG_PREC_F32 = 10 }; /* how a device sums: word 0 of MUL_MAT, word 3 of FLASH_ATTN_EXT */
enum { GG_USAGE_ANY = 0, GG_USAGE_WEIGHTS = 1, GG_USAGE_COMPUTE = 2 };
enum {
    GG_DEVICE_TYPE_CPU = 0,
    GG_DEVICE_TYPE_GPU = 1,
    GG_DEVICE_TYPE_IGPU = 2,
    GG_DEVICE_TYPE_ACCEL = 3,
    GG_DEVICE_TYPE_META = 4, /* several devices as one, llama.cpp's -sm tensor */
};

struct gg_buffer;
struct gg_backend;
struct gg_device;
struct gg_reg;

struct gg_event {
    struct gg_device *device;
    void *context;
};

struct gg_tensor {
    int32_t type;
    struct gg_buffer *buffer;
    int64_t ne[GG_MAX_DIMS];
    size_t nb[GG_MAX_DIMS];
    int32_t op;
    int32_t op_params[GG_PARAM_WORDS];
    int32_t flags;
    struct gg_tensor *src[GG_MAX_SRC];
    struct gg_tensor *view_src;
    size_t view_offs;
    void *data;
    char name[GG_MAX_NAME];
    void *extra;
    char padding[8];
};

struct gg_hash_set {
    size_t size;
    uint32_t *used; /* a bit a key */
    struct gg_tensor **keys;
};

struct gg_cgraph {
    int size, n_nodes, n_leafs;
    struct gg_tensor **nodes, **grads, **grad_accs, **leafs;
    int32_t *use_counts; /* by place in visited; of the graph that this one is a part of */
    struct gg_hash_set visited;
    int order;
    GG_SINCE_0_10(uint64_t uid;) /* 0: none; read with gg_uid */
};

struct gg_init_params {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
};

/* ---- tables of functions; entries that this plugin leaves empty are void pointers ---- */

typedef void (*gg_fn)(void);

/* A buffer type. SINCE_3: GG_KEEP or GG_DROP. */
#define GG_BUFT_FIELDS(SINCE_3)                                                                    \
    const char *(*get_name)(struct gg_buft * buft);                                                \
    struct gg_buffer *(*alloc_buffer)(struct gg_buft * buft, size_t size);                         \
    SINCE_3(gg_fn alloc_buffer_n;)                                                                 \
    size_t (*get_alignment)(struct gg_buft * buft);                                                \
    gg_fn get_max_size, get_alloc_size;                                                            \
    SINCE_3(gg_fn get_alloc_size_n;)                                                               \
    gg_fn is_host;                                                                                 \
    struct gg_device *device;                                                                      \
    void *context;

struct gg_buft; /* one of these two, as the host's API version says */
struct gg_buft_2 {
    GG_BUFT_FIELDS(GG_DROP)
};
struct gg_buft_3 {
    GG_BUFT_FIELDS(GG_KEEP)
};

/* The table of a buffer. SINCE_0_10: GG_KEEP or GG_DROP. */
#define GG_BUFFER_I_FIELDS(SINCE_0_10)                                                             \
    void (*free_buffer)(struct gg_buffer * buffer);                                                \
    void *(*get_base)(struct gg_buffer * buffer);                                                  \
    gg_fn init_tensor;                                                                             \
    void (*memset_tensor)(struct gg_buffer * buffer, struct gg_tensor * t, uint8_t value,          \
                          size_t offset, size_t size);                                             \
    void (*set_tensor)(struct gg_buffer * buffer, struct gg_tensor * t, const void *data,          \
                       size_t offset, size_t size);                                                \
    void (*get_tensor)(struct gg_buffer * buffer, const struct gg_tensor *t, void *data,           \
                       size_t offset, size_t size);                                                \
    SINCE_0_10(gg_fn set_tensor_2d, get_tensor_2d;)                                                \
    gg_fn cpy_tensor;                                                                              \
    void (*clear)(struct gg_buffer * buffer, uint8_t value);                                       \
    void (*reset)(struct gg_buffer * buffer);

struct gg_buffer_i {
    GG_BUFFER_I_FIELDS(GG_SINCE_0_10)
};
struct gg_buffer_i_0_9 { /* before 0.10 */
    GG_BUFFER_I_FIELDS(GG_DROP)
};

/* Behind the table, whose size depends on the version: found with gg_host_rest. */
#define GG_BUFFER_REST_FIELDS                                                                      \
    struct gg_buft *buft;                                                                          \
    void *context;                                                                                 \
    size_t size;                                                                                   \
    int32_t usage;

struct gg_buffer_rest {
    GG_BUFFER_REST_FIELDS
};
struct gg_buffer {
    struct gg_buffer_i iface;
    GG_BUFFER_REST_FIELDS
};

/* The table of a backend. SINCE_0_10: GG_KEEP or GG_DROP. */
#define GG_BACKEND_I_FIELDS(SINCE_0_10)                                                            \
    const char *(*get_name)(struct gg_backend * backend);                                          \
    void (*free)(struct gg_backend * backend);                                                     \
    gg_fn set_tensor_async, get_tensor_async;                                                      \
    SINCE_0_10(gg_fn set_tensor_2d_async, get_tensor_2d_async;)                                    \
    bool (*cpy_tensor_async)(struct gg_backend * from, struct gg_backend * to,                     \
                             const struct gg_tensor *src, struct gg_tensor *dst);                  \
    void (*synchronize)(struct gg_backend * backend);                                              \
    gg_fn graph_plan_create, graph_plan_free, graph_plan_update, graph_plan_compute;               \
    int32_t (*graph_compute)(struct gg_backend * backend, struct gg_cgraph * graph);               \
    void (*event_record)(struct gg_backend * backend, struct gg_event * event);                    \
    void (*event_wait)(struct gg_backend * backend, struct gg_event * event);                      \
    gg_fn graph_optimize;

struct gg_backend_i {
    GG_BACKEND_I_FIELDS(GG_SINCE_0_10)
};
struct gg_backend_i_0_9 { /* before 0.10 */
    GG_BACKEND_I_FIELDS(GG_DROP)
};
struct gg_backend {
    uint8_t *guid; /* [16] */
    struct gg_backend_i iface;
    struct gg_device *device;
    void *context;
};
struct gg_backend_0_9 {
    uint8_t *guid;
    struct gg_backend_i_0_9 iface;
    struct gg_device *device;
    void *context;
};

struct gg_caps {
    bool async, host_buffer, buffer_from_host_ptr, events, mmap_support;
};
struct gg_props {
    const char *name, *description;
    size_t memory_free, memory_total;
    int32_t type;
    const char *device_id;
    struct gg_caps caps;
};
struct gg_device_i {
    const char *(*get_name)(struct gg_device *dev);
    const char *(*get_description)(struct gg_device *dev);
    void (*get_memory)(struct gg_device *dev, size_t *free_bytes, size_t *total);
    int32_t (*get_type)(struct gg_device *dev);
    void (*get_props)(struct gg_device *dev, struct gg_props *props);
    struct gg_backend *(*init_backend)(struct gg_device *dev, const char *params);
    struct gg_buft *(*get_buffer_type)(struct gg_device *dev);
    gg_fn get_host_buffer_type, buffer_from_host_ptr;
    bool (*supports_op)(struct gg_device *dev, const struct gg_tensor *op);
    bool (*supports_buft)(struct gg_device *dev, struct gg_buft *buft);
    gg_fn offload_op;
    struct gg_event *(*event_new)(struct gg_device *dev);
    void (*event_free)(struct gg_device *dev, struct gg_event *event);
    void (*event_synchronize)(struct gg_device *dev, struct gg_event *event);
};
struct gg_device {
    struct gg_device_i iface;
    struct gg_reg *reg;
    void *context;
};

struct gg_reg_i {
    const char *(*get_name)(struct gg_reg *reg);
    size_t (*get_device_count)(struct gg_reg *reg);
    struct gg_device *(*get_device)(struct gg_reg *reg, size_t index);
    void *(*get_proc_address)(struct gg_reg *reg, const char *name);
};
struct gg_reg {
    int32_t api_version;
    struct gg_reg_i iface;
    void *context;
};

static inline const struct gg_tensor *gg_root(const struct gg_tensor *t) {
    return t->view_src ? t->view_src : t;
}

#endif
