/* The ggml library whose devices are members: that of the program in this process, or one that is
 * opened here. Functions are found by name, and no structure is read before gg_host_check has
 * checked the layouts. Opened once, by one thread, and kept until the process ends. */
#ifndef SHEAF_GGML_LIBRARY_H
#define SHEAF_GGML_LIBRARY_H

#include "ggml/host.h"

/* What ggml_backend_dev_get_props fills; room for what later versions append. */
union gg_any_props {
    struct gg_props p;
    char room[512];
};

struct gg_library {
    struct gg_host host;
    char path[512];
    bool own;                       /* opened here; false: the program's */
    int16_t type[SHEAF_TYPE_COUNT]; /* ggml's number; -1: none */

    /* loading and logging; NULL: this version lacks the function */
    void (*load_all)(void);
    void (*load_all_from_path)(const char *dir);
    void (*log_set)(void (*fn)(int level, const char *text, void *user), void *user);
    void (*set_abort_callback)(void (*fn)(const char *text));
    /* devices */
    size_t (*dev_count)(void);
    struct gg_device *(*dev_get)(size_t index);
    const char *(*dev_name)(struct gg_device *dev);
    const char *(*dev_description)(struct gg_device *dev);
    void (*dev_memory)(struct gg_device *dev, size_t *free_bytes, size_t *total);
    void (*dev_get_props)(struct gg_device *dev, union gg_any_props *props);
    struct gg_reg *(*dev_backend_reg)(struct gg_device *dev);
    struct gg_backend *(*dev_init)(struct gg_device *dev, const char *params);
    struct gg_buft *(*dev_buffer_type)(struct gg_device *dev);
    struct gg_buft *(*dev_host_buffer_type)(struct gg_device *dev);
    bool (*dev_supports_op)(struct gg_device *dev, const struct gg_tensor *op);
    const char *(*reg_name)(struct gg_reg *reg);
    void *(*reg_get_proc_address)(struct gg_reg *reg, const char *name);
    /* memory */
    struct gg_buffer *(*buft_alloc_buffer)(struct gg_buft *buft, size_t size);
    size_t (*buft_get_alignment)(struct gg_buft *buft);
    size_t (*buft_get_max_size)(struct gg_buft *buft);
    size_t (*buft_get_alloc_size)(struct gg_buft *buft, const struct gg_tensor *t);
    bool (*buft_is_host)(struct gg_buft *buft);
    void (*buffer_free)(struct gg_buffer *buffer);
    void *(*buffer_get_base)(struct gg_buffer *buffer);
    void (*buffer_clear)(struct gg_buffer *buffer, uint8_t value);
    void (*buffer_set_usage)(struct gg_buffer *buffer, int usage);
    int (*tensor_alloc)(struct gg_buffer *buffer, struct gg_tensor *t, void *addr);
    int (*view_init)(struct gg_tensor *t);
    void (*tensor_set)(struct gg_tensor *t, const void *data, size_t offset, size_t size);
    void (*tensor_get)(const struct gg_tensor *t, void *data, size_t offset, size_t size);
    void (*tensor_copy)(const struct gg_tensor *src, struct gg_tensor *dst);
    /* backends */
    void (*backend_free)(struct gg_backend *backend);
    void (*synchronize)(struct gg_backend *backend);
    int (*graph_compute_async)(struct gg_backend *backend, struct gg_cgraph *graph);
    void (*tensor_set_async)(struct gg_backend *backend, struct gg_tensor *t, const void *data,
                             size_t offset, size_t size);
    void (*tensor_get_async)(struct gg_backend *backend, const struct gg_tensor *t, void *data,
                             size_t offset, size_t size);
    void (*tensor_copy_async)(struct gg_backend *from, struct gg_backend *to,
                              const struct gg_tensor *src, struct gg_tensor *dst);
    struct gg_event *(*event_new)(struct gg_device *dev);
    void (*event_free)(struct gg_event *event);
    void (*event_record)(struct gg_event *event, struct gg_backend *backend);
    void (*event_wait)(struct gg_backend *backend, struct gg_event *event);
    void (*event_synchronize)(struct gg_event *event);
    /* graphs */
    void *(*init)(struct gg_init_params params);
    void (*free)(void *ctx);
    size_t (*graph_overhead_custom)(size_t size, bool grads);
    struct gg_cgraph *(*new_graph_custom)(void *ctx, size_t size, bool grads);
    void (*build_forward_expand)(struct gg_cgraph *graph, struct gg_tensor *t);
    uint64_t (*graph_next_uid)(void); /* NULL: graphs of this version have no number */
};

/* The library, with its backends loaded; the same at every call. NULL: there is none that can be
 * used; the text says why. */
const struct gg_library *gg_library_open(void);

/* "ggml 0.27.0, /usr/lib/libggml-base.so.0": for texts. */
const char *gg_library_text(const struct gg_library *lib);
/* What the library logged as an error last, "" if nothing; forgets it. */
const char *gg_library_last_error(void);

#endif
