/* A program of ggml's in small: what ggml itself does with the tables of a backend, over a library that
 * stands for ggml (tests/ggml/fake-ggml.c). Included by programs of one file. */
#ifndef SHEAF_TESTS_GGML_HOST_H
#define SHEAF_TESTS_GGML_HOST_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/abi.h"

static int api, failures;
static size_t n_devices;
static struct gg_device *dev;
static struct gg_backend *backend;

static inline void *function(const char *name) {
    void *f = dlsym(RTLD_DEFAULT, name);
    if (!f) exit(3);
    return f;
}
#define CALL(type, name) ((type)(uintptr_t)function(name))

static inline void expect(int ok, const char *what) {
    if (ok) return;
    printf("wrong: %s\n", what);
    failures++;
}

/* ---- what ggml does with the tables ---- */

static inline struct gg_buffer *alloc(size_t size) {
    struct gg_buft *b = dev->iface.get_buffer_type(dev);
    struct gg_buft_2 *v2 = (struct gg_buft_2 *)b;
    struct gg_buft_3 *v3 = (struct gg_buft_3 *)b;
    expect((api == 2 ? v2->device : v3->device) == dev, "device of the buffer type");
    expect((api == 2 ? v2->get_alignment(b) : v3->get_alignment(b)) % 32 == 0, "alignment");
    return api == 2 ? v2->alloc_buffer(b, size) : v3->alloc_buffer(b, size);
}

static inline struct gg_tensor *tensor(void *ctx, int64_t n, int64_t m, const char *name) {
    typedef struct gg_tensor *(*make_fn)(void *, int, int64_t, int64_t, int64_t, int64_t);
    typedef struct gg_tensor *(*name_fn)(struct gg_tensor *, const char *);
    return CALL(name_fn, "ggml_set_name")(CALL(make_fn, "ggml_new_tensor_4d")(ctx, 0, n, m, 1, 1),
                                          name);
}
static inline struct gg_tensor *add(void *ctx, struct gg_tensor *a, struct gg_tensor *b) {
    typedef struct gg_tensor *(*fn)(void *, struct gg_tensor *, struct gg_tensor *);
    return CALL(fn, "ggml_add")(ctx, a, b);
}
static inline struct gg_tensor *scale(void *ctx, struct gg_tensor *a, float s) {
    typedef struct gg_tensor *(*fn)(void *, struct gg_tensor *, float);
    return CALL(fn, "ggml_scale")(ctx, a, s);
}
static inline struct gg_tensor *view(void *ctx, struct gg_tensor *a, int64_t n, size_t offset) {
    typedef struct gg_tensor *(*fn)(void *, struct gg_tensor *, int64_t, size_t);
    return CALL(fn, "ggml_view_1d")(ctx, a, n, offset);
}
static inline void set_uid(struct gg_cgraph *g, uint64_t uid) {
    (void)g, (void)uid;
    GG_SINCE_0_10(g->uid = uid;)
}
/* Adds t and what it is computed from. */
static inline void add_node(struct gg_cgraph *g, struct gg_tensor *t) {
    typedef void (*expand_fn)(struct gg_cgraph *, struct gg_tensor *);
    CALL(expand_fn, "ggml_build_forward_expand")(g, t);
}
static inline struct gg_cgraph *graph_of(void *ctx, struct gg_tensor *t, uint64_t uid) {
    typedef struct gg_cgraph *(*new_fn)(void *);
    struct gg_cgraph *g = CALL(new_fn, "ggml_new_graph")(ctx);
    add_node(g, t);
    set_uid(g, uid);
    return g;
}

/* Places t in b, as ggml's allocators do. */
static inline void put_at(struct gg_buffer *b, struct gg_tensor *t, size_t *at) {
    t->buffer = b;
    t->data = (char *)b->iface.get_base(b) + *at;
    *at += (t->nb[3] * (size_t)t->ne[3] + 127) / 128 * 128;
}
static inline void set(struct gg_tensor *t, const void *data, size_t offset, size_t size) {
    t->buffer->iface.set_tensor(t->buffer, t, data, offset, size);
}
static inline void get(const struct gg_tensor *t, void *data, size_t size) {
    t->buffer->iface.get_tensor(t->buffer, t, data, 0, size);
}
static inline void fill_bytes(struct gg_tensor *t, uint8_t value, size_t offset, size_t size) {
    t->buffer->iface.memset_tensor(t->buffer, t, value, offset, size);
}
/* As ggml_backend_graph_compute and _graph_compute_async. */
static inline int start(struct gg_cgraph *g) { return backend->iface.graph_compute(backend, g); }
static inline int compute(struct gg_cgraph *g) {
    const int status = start(g);
    if (backend->iface.synchronize) backend->iface.synchronize(backend);
    return status;
}

/* Memory that this process has mapped, in MiB: pages that were never written are not resident. */
static inline long mapped_mib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return pages / 256;
}
/* A tensor of any size: it has no memory until put_at. */
static inline struct gg_tensor *large(void *ctx, int64_t n, int64_t m, const char *name) {
    struct gg_tensor *t = tensor(ctx, n, 1, name);
    t->ne[1] = m;
    t->nb[2] = t->nb[3] = t->nb[1] * (size_t)m;
    return t;
}

/* The libraries that the arguments LIBRARY PLUGIN API name. The plugin's handle; NULL: not there. */
static inline void *load(char **argv) {
    void *plugin =
        dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!plugin) puts(dlerror());
    api = atoi(argv[3]);
    return plugin;
}
/* What the plugin registers; NULL if it stays out. */
static inline struct gg_reg *registry(void *plugin) {
    struct gg_reg *(*init)(void) =
        (struct gg_reg * (*)(void))(uintptr_t)dlsym(plugin, "ggml_backend_init");
    struct gg_reg *reg = init();
    expect(init() == reg, "asked twice, one answer");
    return reg;
}

#endif
