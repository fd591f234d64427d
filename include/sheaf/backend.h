/* Buffer types, buffers, backends (execution streams), devices, and the registry.
 *
 * The names and semantics are ggml's. Where ggml returns void and asserts, these return enum
 * sheaf_status. Threads: the registry may be used from any thread; a backend and its buffers by one
 * thread at a time. */
#ifndef SHEAF_BACKEND_H
#define SHEAF_BACKEND_H

#include "sheaf/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_backend_buffer_type *sheaf_backend_buffer_type_t;
typedef struct sheaf_backend_buffer *sheaf_backend_buffer_t;
typedef struct sheaf_backend *sheaf_backend_t;
typedef struct sheaf_backend_device *sheaf_backend_dev_t;
typedef struct sheaf_backend_reg *sheaf_backend_reg_t;
typedef struct sheaf_backend_event *sheaf_backend_event_t;
typedef struct sheaf_backend_graph_plan *sheaf_backend_graph_plan_t;

/* ---- buffer types: owned by their device, valid as long as it is ---- */
const char *sheaf_backend_buft_name(sheaf_backend_buffer_type_t buft);
/* *out owned by the caller (sheaf_backend_buffer_free). size 0 is valid. */
enum sheaf_status sheaf_backend_buft_alloc_buffer(sheaf_backend_buffer_type_t buft, size_t size,
                                                  sheaf_backend_buffer_t *out);
/* Of tensors in its buffers: bytes, a power of two. */
size_t sheaf_backend_buft_get_alignment(sheaf_backend_buffer_type_t buft);
/* Of one buffer, in bytes; SIZE_MAX: no limit. */
size_t sheaf_backend_buft_get_max_size(sheaf_backend_buffer_type_t buft);
/* Bytes that `tensor` takes in a buffer of this type (may exceed sheaf_nbytes). */
size_t sheaf_backend_buft_get_alloc_size(sheaf_backend_buffer_type_t buft,
                                         const struct sheaf_tensor *tensor);
/* May this process read and write tensor->data in its buffers directly? */
bool sheaf_backend_buft_is_host(sheaf_backend_buffer_type_t buft);
sheaf_backend_dev_t sheaf_backend_buft_get_device(sheaf_backend_buffer_type_t buft);

/* ---- buffers ---- */
/* Memory with tensors in it; freed before the device. The tensors stay, without memory, and must
 * not be used. */
enum sheaf_backend_buffer_usage {
    SHEAF_BACKEND_BUFFER_USAGE_ANY = 0,
    SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS = 1, /* ops run where their weights are */
    SHEAF_BACKEND_BUFFER_USAGE_COMPUTE = 2, /* of a graph: inputs and intermediate results */
};

void sheaf_backend_buffer_free(sheaf_backend_buffer_t buffer);        /* accepts NULL */
void *sheaf_backend_buffer_get_base(sheaf_backend_buffer_t buffer);   /* NULL if it has none */
const char *sheaf_backend_buffer_name(sheaf_backend_buffer_t buffer); /* of its type */
size_t sheaf_backend_buffer_get_size(sheaf_backend_buffer_t buffer);
size_t sheaf_backend_buffer_get_max_size(sheaf_backend_buffer_t buffer);
size_t sheaf_backend_buffer_get_alignment(sheaf_backend_buffer_t buffer);
size_t sheaf_backend_buffer_get_alloc_size(sheaf_backend_buffer_t buffer,
                                           const struct sheaf_tensor *tensor);
/* Lets the buffer prepare a tensor that was placed in it; the allocators and
 * sheaf_backend_tensor_alloc do this. */
enum sheaf_status sheaf_backend_buffer_init_tensor(sheaf_backend_buffer_t buffer,
                                                   struct sheaf_tensor *tensor);
/* Every byte becomes `value`. */
enum sheaf_status sheaf_backend_buffer_clear(sheaf_backend_buffer_t buffer, uint8_t value);
/* Forgets what init_tensor noted for the tensors in it, before others are placed there. */
enum sheaf_status sheaf_backend_buffer_reset(sheaf_backend_buffer_t buffer);
bool sheaf_backend_buffer_is_host(sheaf_backend_buffer_t buffer);
void sheaf_backend_buffer_set_usage(sheaf_backend_buffer_t buffer,
                                    enum sheaf_backend_buffer_usage usage);
enum sheaf_backend_buffer_usage sheaf_backend_buffer_get_usage(sheaf_backend_buffer_t buffer);
sheaf_backend_buffer_type_t sheaf_backend_buffer_get_type(sheaf_backend_buffer_t buffer);

/* One handle for n buffers, which it takes over on success: freeing, clearing, resetting it and
 * setting its usage do so with all of them. It has no base (NULL); its size is their sum, its type
 * that of the first. INVALID if n is 0 or a buffer is NULL. */
enum sheaf_status sheaf_backend_multi_buffer_alloc_buffer(const sheaf_backend_buffer_t *buffers,
                                                          size_t n, sheaf_backend_buffer_t *out);
bool sheaf_backend_buffer_is_multi_buffer(sheaf_backend_buffer_t buffer);

/* ---- tensor data ---- */
/* Tensors must be allocated; offset and size are in bytes of the (contiguous) tensor.
 * data [size] to or from bytes [offset, offset + size) of the tensor. INVALID if it has no memory
 * or the range is outside. On a meta device `get` is collective. size 0 does nothing. */
enum sheaf_status sheaf_backend_tensor_set(struct sheaf_tensor *tensor, const void *data,
                                           size_t offset, size_t size);
enum sheaf_status sheaf_backend_tensor_get(const struct sheaf_tensor *tensor, void *data,
                                           size_t offset, size_t size);
enum sheaf_status sheaf_backend_tensor_memset(struct sheaf_tensor *tensor, uint8_t value,
                                              size_t offset, size_t size);
/* n_copies pieces of `size` bytes: piece i at offset + i*stride_tensor in the tensor, data +
 * i*stride_data in memory. */
enum sheaf_status sheaf_backend_tensor_set_2d(struct sheaf_tensor *tensor, const void *data,
                                              size_t offset, size_t size, size_t n_copies,
                                              size_t stride_tensor, size_t stride_data);
enum sheaf_status sheaf_backend_tensor_get_2d(const struct sheaf_tensor *tensor, void *data,
                                              size_t offset, size_t size, size_t n_copies,
                                              size_t stride_tensor, size_t stride_data);
/* Fills the whole tensor through `read`, which is called only for the byte ranges that this process
 * holds; host buffers are read into directly. `read` puts bytes [offset, offset+size) of the
 * tensor's data at dst. It may be called from several threads only if the device says so (none does
 * now). */
typedef enum sheaf_status (*sheaf_tensor_read_fn)(void *user, size_t offset, void *dst,
                                                  size_t size);
enum sheaf_status sheaf_backend_tensor_set_from(struct sheaf_tensor *tensor,
                                                sheaf_tensor_read_fn read, void *user);
/* Any two tensors of the same layout, in any buffers. INVALID if the layouts differ. */
enum sheaf_status sheaf_backend_tensor_copy(struct sheaf_tensor *src, struct sheaf_tensor *dst);
/* Places `tensor` at `addr` inside `buffer` and initialises it. */
enum sheaf_status sheaf_backend_tensor_alloc(sheaf_backend_buffer_t buffer,
                                             struct sheaf_tensor *tensor, void *addr);
/* Initialises a view whose owner is allocated. */
enum sheaf_status sheaf_backend_view_init(struct sheaf_tensor *tensor);

/* ---- backends ---- */
const char *sheaf_backend_name(sheaf_backend_t backend); /* of its device: "CPU0" */
/* 16 bytes that identify the kind of backend, the same in every process; NULL if it has none. */
const uint8_t *sheaf_backend_guid(sheaf_backend_t backend);
/* Finishes the submitted work. Accepts NULL. */
void sheaf_backend_free(sheaf_backend_t backend);
sheaf_backend_dev_t sheaf_backend_get_device(sheaf_backend_t backend);
sheaf_backend_buffer_type_t sheaf_backend_get_default_buffer_type(sheaf_backend_t backend);
enum sheaf_status sheaf_backend_alloc_buffer(sheaf_backend_t backend, size_t size,
                                             sheaf_backend_buffer_t *out);
/* Of the default buffer type: bytes. */
size_t sheaf_backend_get_alignment(sheaf_backend_t backend);
size_t sheaf_backend_get_max_size(sheaf_backend_t backend);
/* Runs the graph after everything submitted before; its tensors must be allocated. Returns when it
 * is done, with the error of an earlier submission if there was one. */
enum sheaf_status sheaf_backend_graph_compute(sheaf_backend_t backend, struct sheaf_cgraph *graph);
/* Submits; the graph and its tensors stay untouched until sheaf_backend_synchronize. A backend
 * without a queue (caps.async false) returns when the graph is done. Submitted work runs in the
 * order of submission. An error that shows only later is returned by the next synchronize (or
 * synchronous call); work submitted after the failed part and before that is not run. */
enum sheaf_status sheaf_backend_graph_compute_async(sheaf_backend_t backend,
                                                    struct sheaf_cgraph *graph);
/* Waits for all submitted work; returns its first error, once. */
enum sheaf_status sheaf_backend_synchronize(sheaf_backend_t backend);
/* Can it compute the node `op`, whose operands need no memory yet; and use tensors in such buffers?
 */
bool sheaf_backend_supports_op(sheaf_backend_t backend, const struct sheaf_tensor *op);
bool sheaf_backend_supports_buft(sheaf_backend_t backend, sheaf_backend_buffer_type_t buft);
/* Would this backend rather run `op` than leave it where its weights are, though they must be
 * copied? (A GPU for large batches.) */
bool sheaf_backend_offload_op(sheaf_backend_t backend, const struct sheaf_tensor *op);

/* ---- data, in the backend's queue ---- */
/* `tensor` lies in a buffer that the backend supports. Ranges
 * are checked at once, as by the synchronous forms; the bytes move after everything submitted
 * before. Tensor and data stay valid and untouched until sheaf_backend_synchronize. A backend that
 * cannot queue a transfer waits for its queue and does it at once. */
enum sheaf_status sheaf_backend_tensor_set_async(sheaf_backend_t backend,
                                                 struct sheaf_tensor *tensor, const void *data,
                                                 size_t offset, size_t size);
enum sheaf_status sheaf_backend_tensor_get_async(sheaf_backend_t backend,
                                                 const struct sheaf_tensor *tensor, void *data,
                                                 size_t offset, size_t size);
enum sheaf_status sheaf_backend_tensor_set_2d_async(sheaf_backend_t backend,
                                                    struct sheaf_tensor *tensor, const void *data,
                                                    size_t offset, size_t size, size_t n_copies,
                                                    size_t stride_tensor, size_t stride_data);
enum sheaf_status sheaf_backend_tensor_get_2d_async(sheaf_backend_t backend,
                                                    const struct sheaf_tensor *tensor, void *data,
                                                    size_t offset, size_t size, size_t n_copies,
                                                    size_t stride_tensor, size_t stride_data);
/* Inputs of a graph, each whole, before work that is submitted later: like sheaf_backend_tensor_set
 * of each behind the queue, but the data may change when it returns: a device with a queue takes
 * them at once, or waits. Until sheaf_backend_synchronize the tensors are valid and only the queue
 * touches them. On a meta device they are of that device and placed. A failure may leave some
 * written. */
struct sheaf_tensor_write {
    struct sheaf_tensor *tensor;
    const void *data; /* [sheaf_nbytes(tensor)] */
};
enum sheaf_status sheaf_backend_tensors_set(sheaf_backend_t backend,
                                            const struct sheaf_tensor_write *writes, size_t n);
/* Two tensors of the same layout, src of backend_src and dst of backend_dst (which may be the same
 * backend). The copy runs after all that was submitted to backend_src; work submitted to
 * backend_dst later waits for it. Nothing holds back work submitted to backend_dst before: if that
 * may still use dst, make backend_src wait for an event of backend_dst first. Where the two cannot
 * do this between them, both are synchronized and the copy is done at once. */
enum sheaf_status sheaf_backend_tensor_copy_async(sheaf_backend_t backend_src,
                                                  sheaf_backend_t backend_dst,
                                                  struct sheaf_tensor *src,
                                                  struct sheaf_tensor *dst);

/* ---- graph plans ---- */
/* A graph prepared once and computed many times. The plan keeps its own list of
 * nodes, not the tensors, which stay alive and allocated. Every backend has them; those with
 * nothing to prepare hold the list alone. */
/* *out is freed by sheaf_backend_graph_plan_free with the same backend, before the backend is. */
enum sheaf_status sheaf_backend_graph_plan_create(sheaf_backend_t backend,
                                                  const struct sheaf_cgraph *graph,
                                                  sheaf_backend_graph_plan_t *out);
/* Accepts a NULL plan. Not while it is being computed. */
void sheaf_backend_graph_plan_free(sheaf_backend_t backend, sheaf_backend_graph_plan_t plan);
/* Replaces the plan's graph; on failure the plan is as before. */
enum sheaf_status sheaf_backend_graph_plan_update(sheaf_backend_t backend,
                                                  sheaf_backend_graph_plan_t plan,
                                                  const struct sheaf_cgraph *graph);
/* As sheaf_backend_graph_compute of the plan's graph. */
enum sheaf_status sheaf_backend_graph_plan_compute(sheaf_backend_t backend,
                                                   sheaf_backend_graph_plan_t plan);

/* ---- events ---- */
/* A point in a backend's queue that others can wait for. An event that was never
 * recorded has passed; recording again moves it. Recording and waiting by one thread at a time;
 * sheaf_backend_event_synchronize by any. */
/* UNSUPPORTED if the device has none (caps.events). *out: sheaf_backend_event_free. */
enum sheaf_status sheaf_backend_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out);
void sheaf_backend_event_free(sheaf_backend_event_t event); /* accepts NULL; safe at any time */
/* The event passes when all that was submitted to `backend`, of the event's device, is done (or
 * was left out after an error). */
enum sheaf_status sheaf_backend_event_record(sheaf_backend_event_t event, sheaf_backend_t backend);
/* Blocks the caller until the event, as last recorded, has passed. Does not report errors. */
enum sheaf_status sheaf_backend_event_synchronize(sheaf_backend_event_t event);
/* Work submitted to `backend` from now on waits for the event as last recorded. For an event of
 * another kind of device the caller is blocked instead. */
enum sheaf_status sheaf_backend_event_wait(sheaf_backend_t backend, sheaf_backend_event_t event);

/* ---- devices ---- */
enum sheaf_backend_dev_type {
    SHEAF_BACKEND_DEVICE_TYPE_CPU,
    SHEAF_BACKEND_DEVICE_TYPE_GPU,
    SHEAF_BACKEND_DEVICE_TYPE_ACCEL,
    SHEAF_BACKEND_DEVICE_TYPE_META,
};

struct sheaf_backend_dev_caps {
    bool async;                /* graph_compute_async really returns early */
    bool host_buffer;          /* has a pinned host buffer type */
    bool buffer_from_host_ptr; /* can wrap host memory */
    bool events;
};

struct sheaf_backend_dev_props {
    const char *name;        /* "CPU0" */
    const char *description; /* "AMD EPYC, 2 cores, AVX2" */
    size_t memory_free;      /* bytes */
    size_t memory_total;
    enum sheaf_backend_dev_type type;
    bool remote; /* driven by another rank */
    int rank;    /* the rank that drives it; 0 without MPI */
    struct sheaf_backend_dev_caps caps;
};

/* Strings live as long as the device. Memory in bytes: available now, and in all; a meta device's
 * are sums over its members. */
const char *sheaf_backend_dev_name(sheaf_backend_dev_t dev);
const char *sheaf_backend_dev_description(sheaf_backend_dev_t dev);
void sheaf_backend_dev_memory(sheaf_backend_dev_t dev, size_t *free, size_t *total);
enum sheaf_backend_dev_type sheaf_backend_dev_type(sheaf_backend_dev_t dev);
void sheaf_backend_dev_get_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props);
/* The registry entry it belongs to; NULL for a meta device. */
sheaf_backend_reg_t sheaf_backend_dev_backend_reg(sheaf_backend_dev_t dev);
/* A new execution stream. params: device-specific "key=value,..." or NULL. A remote device refuses.
 */
enum sheaf_status sheaf_backend_dev_init(sheaf_backend_dev_t dev, const char *params,
                                         sheaf_backend_t *out);
sheaf_backend_buffer_type_t sheaf_backend_dev_buffer_type(sheaf_backend_dev_t dev);
/* Host memory that transfers to and from the device do best with (pinned). NULL if there is none,
 * as for a CPU device, all of whose memory is the host's. */
sheaf_backend_buffer_type_t sheaf_backend_dev_host_buffer_type(sheaf_backend_dev_t dev);
/* As the functions of its backends. */
bool sheaf_backend_dev_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op);
bool sheaf_backend_dev_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft);
bool sheaf_backend_dev_offload_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op);
/* A buffer of the device around `size` bytes of the caller's at ptr, which outlive it and may be
 * read-only as long as nothing writes (a mapped file of weights). No tensor in it takes more than
 * max_tensor_size bytes. UNSUPPORTED if the device cannot (caps.buffer_from_host_ptr). */
enum sheaf_status sheaf_backend_dev_buffer_from_host_ptr(sheaf_backend_dev_t dev, void *ptr,
                                                         size_t size, size_t max_tensor_size,
                                                         sheaf_backend_buffer_t *out);

/* ---- copies and comparisons of graphs ---- */
/* A graph on another backend: node i is the copy of the original's node i. */
struct sheaf_backend_graph_copy {
    struct sheaf_cgraph *graph;
    sheaf_backend_buffer_t buffer;   /* of the leaves; NULL if there are none */
    struct sheaf_gallocr *galloc;    /* memory of the nodes */
    struct sheaf_context *ctx_leafs; /* weights, caches and inputs */
    struct sheaf_context *ctx_nodes;
};
/* Copies the graph, the tensors that it touches, and the data of those that it does not compute
 * (which must be allocated) to `backend`. Every node is marked as an output, so that it keeps its
 * value after the compute. The original is only read. Freed with the function below, before the
 * backend; *out is all zero on failure. On a meta device its split states are asked for. */
enum sheaf_status sheaf_backend_graph_copy(sheaf_backend_t backend,
                                           const struct sheaf_cgraph *graph,
                                           struct sheaf_backend_graph_copy *out);
void sheaf_backend_graph_copy_free(struct sheaf_backend_graph_copy *copy); /* accepts zeroes */

/* Node number, and the node as each backend computed it. false: stop. */
typedef bool (*sheaf_backend_eval_fn)(int node, struct sheaf_tensor *t1, struct sheaf_tensor *t2,
                                      void *user);
/* Computes copies of the graph on both backends and calls back for every node in order, views left
 * out; or, if n_test_nodes is not 0, for these nodes alone. ABORTED if the callback stopped. */
enum sheaf_status sheaf_backend_compare_graph_backend(sheaf_backend_t backend1,
                                                      sheaf_backend_t backend2,
                                                      const struct sheaf_cgraph *graph,
                                                      sheaf_backend_eval_fn callback, void *user,
                                                      struct sheaf_tensor *const *test_nodes,
                                                      size_t n_test_nodes);

/* ---- registry: the devices that this process drives. Backends in files: sheaf/module.h ---- */
const char *sheaf_backend_reg_name(sheaf_backend_reg_t reg);
size_t sheaf_backend_reg_dev_count(sheaf_backend_reg_t reg);
sheaf_backend_dev_t sheaf_backend_reg_dev_get(sheaf_backend_reg_t reg, size_t index);
void *sheaf_backend_reg_get_proc_address(sheaf_backend_reg_t reg, const char *name);

enum sheaf_status sheaf_backend_register(sheaf_backend_reg_t reg);
size_t sheaf_backend_reg_count(void);
sheaf_backend_reg_t sheaf_backend_reg_get(size_t index);
/* Case does not matter in names. NULL: there is none of that name, or no name. */
sheaf_backend_reg_t sheaf_backend_reg_by_name(const char *name);
size_t sheaf_backend_dev_count(void);
sheaf_backend_dev_t sheaf_backend_dev_get(size_t index);
sheaf_backend_dev_t sheaf_backend_dev_by_name(const char *name);
/* The first of that type. */
sheaf_backend_dev_t sheaf_backend_dev_by_type(enum sheaf_backend_dev_type type);
enum sheaf_status sheaf_backend_init_by_name(const char *name, const char *params,
                                             sheaf_backend_t *out);
enum sheaf_status sheaf_backend_init_by_type(enum sheaf_backend_dev_type type, const char *params,
                                             sheaf_backend_t *out);
/* text: "NAME" or "NAME:PARAMS". NAME is a device ("CPU0") or a backend ("CPU": its first device);
 * PARAMS is what sheaf_backend_dev_init takes. Case of the name does not matter. */
enum sheaf_status sheaf_backend_init_from_string(const char *text, sheaf_backend_t *out);
/* The first GPU, the first CPU device if there is none. */
enum sheaf_status sheaf_backend_init_best(sheaf_backend_t *out);

#ifdef __cplusplus
}
#endif
#endif
