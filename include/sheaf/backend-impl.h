/* What a backend implements. A backend outside this repository needs the installed headers alone.
 *
 * Every object starts with its const vtable; the base struct is the first member of the backend's
 * own struct or is linked through `context`. Entries marked optional may be NULL. Vtables grow by
 * appending, and every growth raises SHEAF_BACKEND_API_VERSION. */
#ifndef SHEAF_BACKEND_IMPL_H
#define SHEAF_BACKEND_IMPL_H

#include "sheaf/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHEAF_BACKEND_API_VERSION = 5 };

/* ---- buffer type ---- */
struct sheaf_backend_buffer_type_i {
    const char *(*get_name)(sheaf_backend_buffer_type_t buft);
    enum sheaf_status (*alloc_buffer)(sheaf_backend_buffer_type_t buft, size_t size,
                                      sheaf_backend_buffer_t *out);
    size_t (*get_alignment)(sheaf_backend_buffer_type_t buft);
    size_t (*get_max_size)(sheaf_backend_buffer_type_t buft); /* optional: SIZE_MAX */
    size_t (*get_alloc_size)(sheaf_backend_buffer_type_t buft,
                             const struct sheaf_tensor *tensor); /* optional: nbytes */
    bool (*is_host)(sheaf_backend_buffer_type_t buft);           /* optional: false */
    /* optional: allocates one buffer that holds all n tensors (none a view) and initialises them;
     * used by sheaf_backend_alloc_ctx_tensors_from_buft instead of packing */
    enum sheaf_status (*alloc_tensors)(sheaf_backend_buffer_type_t buft,
                                       struct sheaf_tensor **tensors, size_t n,
                                       sheaf_backend_buffer_t *out);
};

struct sheaf_backend_buffer_type {
    const struct sheaf_backend_buffer_type_i *iface;
    sheaf_backend_dev_t device;
    void *context;
};

/* ---- buffer ---- */
struct sheaf_backend_buffer_i {
    void (*free_buffer)(sheaf_backend_buffer_t buffer); /* frees `context` only; optional */
    void *(*get_base)(sheaf_backend_buffer_t buffer);
    enum sheaf_status (*init_tensor)(sheaf_backend_buffer_t buffer,
                                     struct sheaf_tensor *tensor); /* optional */
    enum sheaf_status (*memset_tensor)(sheaf_backend_buffer_t buffer, struct sheaf_tensor *tensor,
                                       uint8_t value, size_t offset, size_t size);
    enum sheaf_status (*set_tensor)(sheaf_backend_buffer_t buffer, struct sheaf_tensor *tensor,
                                    const void *data, size_t offset, size_t size);
    enum sheaf_status (*get_tensor)(sheaf_backend_buffer_t buffer,
                                    const struct sheaf_tensor *tensor, void *data, size_t offset,
                                    size_t size);
    /* optional: a loop over set_tensor / get_tensor */
    enum sheaf_status (*set_tensor_2d)(sheaf_backend_buffer_t buffer, struct sheaf_tensor *tensor,
                                       const void *data, size_t offset, size_t size,
                                       size_t n_copies, size_t stride_tensor, size_t stride_data);
    enum sheaf_status (*get_tensor_2d)(sheaf_backend_buffer_t buffer,
                                       const struct sheaf_tensor *tensor, void *data, size_t offset,
                                       size_t size, size_t n_copies, size_t stride_tensor,
                                       size_t stride_data);
    /* optional: host buffers are read into directly, others through a staging block */
    enum sheaf_status (*set_tensor_from)(sheaf_backend_buffer_t buffer, struct sheaf_tensor *tensor,
                                         sheaf_tensor_read_fn read, void *user);
    /* optional: false if it cannot copy between these buffers, neither of which is host memory */
    bool (*cpy_tensor)(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *src,
                       struct sheaf_tensor *dst);
    enum sheaf_status (*clear)(sheaf_backend_buffer_t buffer, uint8_t value);
    enum sheaf_status (*reset)(sheaf_backend_buffer_t buffer); /* optional */
    /* Since version 4; optional. For buffers that consist of others: they are of the same usage. */
    void (*set_usage)(sheaf_backend_buffer_t buffer, enum sheaf_backend_buffer_usage usage);
};

struct sheaf_backend_buffer {
    const struct sheaf_backend_buffer_i *iface;
    sheaf_backend_buffer_type_t buft;
    void *context;
    size_t size;
    enum sheaf_backend_buffer_usage usage;
};

/* Makes a buffer object around `context` (for alloc_buffer). NULL if out of memory. The only way to
 * make one: it is larger than the struct, and counts as a user of its device's module. */
sheaf_backend_buffer_t sheaf_backend_buffer_init(sheaf_backend_buffer_type_t buft,
                                                 const struct sheaf_backend_buffer_i *iface,
                                                 void *context, size_t size);

/* ---- backend ---- */
/* Bits of tensor->flags that the library sets for devices. A bit has one meaning: 0 to 15 are those
 * of enum sheaf_tensor_flag, 16, 17, 22 and 24 the meta device's own (src/meta/meta_impl.h), 19 is
 * SHEAF__TENSOR_INTERNAL (src/backend/optional.h), 21 SHEAF_BACKEND_META_TENSOR_MOVES
 * (sheaf/meta.h), 25 SHEAF__TENSOR_PRIVATE (src/backend/optional.h). */
enum sheaf_backend_tensor_flag {
    /* Of a node whose result a later graph reads; the scheduler sets it for backends with
     * release_tensor. */
    SHEAF_BACKEND_TENSOR_CARRIED = 1 << 18,
    /* Of ARGMAX and TOP_K: their order of ties (sheaf/ops.h) is needed, since the choice is
     * compared with those of other devices. A device with another order does not support the
     * node. */
    SHEAF_BACKEND_TENSOR_TIES_BY_INDEX = 1 << 20,
    /* Of a weight that only MUL_MAT and MUL_MAT_ID read, as their first operand, that is written
     * before the first of them is computed, and not read back: a device may keep it in a layout of
     * its own, and in no other, and then refuse what that layout does not serve, as products of
     * strided columns or with operands of more than two dimensions. A meta device gives the flag to
     * the slices of a weight that it cuts, and to that of its only member. */
    SHEAF_BACKEND_TENSOR_FACTOR = 1 << 23,
};

struct sheaf_backend_i {
    const char *(*get_name)(sheaf_backend_t backend);
    void (*free)(sheaf_backend_t backend); /* frees the backend object too */
    enum sheaf_status (*graph_compute)(sheaf_backend_t backend, struct sheaf_cgraph *graph);
    enum sheaf_status (*synchronize)(sheaf_backend_t backend); /* optional: synchronous */
    /* All below are optional. Tensor ranges and layouts are checked before the call. */
    const uint8_t *(*get_guid)(sheaf_backend_t backend); /* 16 bytes */
    /* submits; NULL if graph_compute does. Given both, graph_compute is the synchronous one. */
    enum sheaf_status (*graph_compute_async)(sheaf_backend_t backend, struct sheaf_cgraph *graph);
    enum sheaf_status (*set_tensor_async)(sheaf_backend_t backend, struct sheaf_tensor *tensor,
                                          const void *data, size_t offset, size_t size);
    enum sheaf_status (*get_tensor_async)(sheaf_backend_t backend,
                                          const struct sheaf_tensor *tensor, void *data,
                                          size_t offset, size_t size);
    /* the entry of `dst`'s backend. *done false: cannot, nothing was submitted */
    enum sheaf_status (*cpy_tensor_async)(sheaf_backend_t backend_src, sheaf_backend_t backend_dst,
                                          struct sheaf_tensor *src, struct sheaf_tensor *dst,
                                          bool *done);
    /* all four or none; a plan is the backend's own struct behind the opaque pointer */
    enum sheaf_status (*graph_plan_create)(sheaf_backend_t backend,
                                           const struct sheaf_cgraph *graph,
                                           sheaf_backend_graph_plan_t *out);
    void (*graph_plan_free)(sheaf_backend_t backend, sheaf_backend_graph_plan_t plan);
    enum sheaf_status (*graph_plan_update)(sheaf_backend_t backend, sheaf_backend_graph_plan_t plan,
                                           const struct sheaf_cgraph *graph);
    enum sheaf_status (*graph_plan_compute)(sheaf_backend_t backend,
                                            sheaf_backend_graph_plan_t plan);
    /* both if the device makes events; event_wait is called for events of devices that have this
     * device's vtable */
    enum sheaf_status (*event_record)(sheaf_backend_t backend, sheaf_backend_event_t event);
    enum sheaf_status (*event_wait)(sheaf_backend_t backend, sheaf_backend_event_t event);
    /* Only for backends whose results do not lie at tensor->data (the meta device). The scheduler
     * then gives them graphs that are whole: operands are nodes of the graph or among its leaves.
     * A node flagged SHEAF_BACKEND_TENSOR_CARRIED must keep its value, as tensor->extra, until this
     * is called; it is a leaf of later graphs. `tensor` is a key, it may be gone. */
    void (*release_tensor)(sheaf_backend_t backend, const struct sheaf_tensor *tensor);
    /* Since version 3. Does all of graph_compute except the arithmetic: takes the memory that the
     * graph needs besides that of its tensors, and keeps it; the graph is placed as for a compute.
     * The scheduler calls it of backends with release_tensor, whose results have memory of their own;
     * a meta device of its members, before the first compute of a graph: what it cannot take now is
     * that compute's failure. May wait for the queue. */
    enum sheaf_status (*graph_reserve)(sheaf_backend_t backend, struct sheaf_cgraph *graph);
    /* Since version 5. sheaf_backend_tensors_set, of tensors that have memory and are not empty. */
    enum sheaf_status (*set_tensors)(sheaf_backend_t backend,
                                     const struct sheaf_tensor_write *writes, size_t n);
};

/* The first member of a backend's own event. */
struct sheaf_backend_event {
    sheaf_backend_dev_t device;
};

struct sheaf_backend {
    const struct sheaf_backend_i *iface;
    sheaf_backend_dev_t device;
    void *context;
};

/* ---- device ---- */
struct sheaf_backend_device_i {
    const char *(*get_name)(sheaf_backend_dev_t dev);
    const char *(*get_description)(sheaf_backend_dev_t dev);
    void (*get_memory)(sheaf_backend_dev_t dev, size_t *free, size_t *total);
    enum sheaf_backend_dev_type (*get_type)(sheaf_backend_dev_t dev);
    void (*get_props)(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props);
    enum sheaf_status (*init_backend)(sheaf_backend_dev_t dev, const char *params,
                                      sheaf_backend_t *out);
    sheaf_backend_buffer_type_t (*get_buffer_type)(sheaf_backend_dev_t dev);
    sheaf_backend_buffer_type_t (*get_host_buffer_type)(sheaf_backend_dev_t dev); /* optional */
    bool (*supports_op)(sheaf_backend_dev_t dev, const struct sheaf_tensor *op);
    bool (*supports_buft)(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft);
    /* All below are optional. */
    bool (*offload_op)(sheaf_backend_dev_t dev, const struct sheaf_tensor *op); /* false */
    /* all three or none; `device` of the event is set by the caller */
    enum sheaf_status (*event_new)(sheaf_backend_dev_t dev, sheaf_backend_event_t *out);
    void (*event_free)(sheaf_backend_dev_t dev, sheaf_backend_event_t event);
    enum sheaf_status (*event_synchronize)(sheaf_backend_dev_t dev, sheaf_backend_event_t event);
    /* a buffer around `size` bytes of the caller's at `ptr`, which outlive it */
    enum sheaf_status (*buffer_from_host_ptr)(sheaf_backend_dev_t dev, void *ptr, size_t size,
                                              size_t max_tensor_size, sheaf_backend_buffer_t *out);
};

struct sheaf_backend_device {
    const struct sheaf_backend_device_i *iface;
    sheaf_backend_reg_t reg;
    void *context;
};

/* For supports_op: has a node the operands, types, shapes, layouts and parameters that its op is
 * defined for? A backend that computes the op for all of them answers with this alone; another
 * looks at the types besides. Works on unchecked nodes, as those of graphs from outside. */
bool sheaf_backend_op_is_valid(const struct sheaf_tensor *op);

/* ---- registry entry ---- */
struct sheaf_backend_reg_i {
    const char *(*get_name)(sheaf_backend_reg_t reg);
    size_t (*get_device_count)(sheaf_backend_reg_t reg);
    sheaf_backend_dev_t (*get_device)(sheaf_backend_reg_t reg, size_t index);
    void *(*get_proc_address)(sheaf_backend_reg_t reg, const char *name); /* optional */
};

struct sheaf_backend_reg {
    int api_version; /* SHEAF_BACKEND_API_VERSION */
    const struct sheaf_backend_reg_i *iface;
    void *context;
};

/* ---- modules ----
 *
 * A backend in a file of its own (libsheaf-NAME.so, loaded by the functions of sheaf/module.h)
 * defines these two functions; libsheaf has neither. They are called by one thread at a time for a
 * given load. A module may be loaded, unloaded and loaded again. */
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
/* The entry to register: static or kept until the module is unloaded, the same at every call. NULL
 * if the backend cannot be had here; the reason in sheaf_set_error. It may list no devices. Its
 * api_version is looked at before anything else of it. */
sheaf_backend_reg_t sheaf_backend_init(void);
/* How good this build is on this machine: 0 if it cannot run here, more for a better one. Of the
 * files libsheaf-NAME-*.so sheaf_backend_load_all loads the best. It is called first, so it must
 * not run instructions that the machine may lack. A module without it has score 1. */
int sheaf_backend_score(void);
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
