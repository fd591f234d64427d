/* Islands: CPU devices whose memory no other backend may use, made from the installed interface, so
 * that whatever crosses between backends must be copied. */
#ifndef SHEAF_TEST_ISLANDS_H
#define SHEAF_TEST_ISLANDS_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/backend-impl.h"

struct island {
    struct sheaf_backend_device dev; /* first */
    struct sheaf_backend_buffer_type buft;
    struct sheaf_backend backend;
    sheaf_backend_t cpu; /* computes for it */
    const char *name;
    enum sheaf_op refuses; /* an op that it does not run */
    enum sheaf_op offloads;
    int n_graphs, n_buffers;
    bool fails;
};

static struct island *island_of(sheaf_backend_dev_t dev) { return (struct island *)dev; }
static const char *dev_name(sheaf_backend_dev_t dev) { return island_of(dev)->name; }
static void dev_memory(sheaf_backend_dev_t dev, size_t *f, size_t *t) {
    (void)dev;
    *f = *t = (size_t)1 << 30;
}
static enum sheaf_backend_dev_type dev_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return SHEAF_BACKEND_DEVICE_TYPE_ACCEL;
}
static void dev_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *p) {
    p->name = p->description = dev_name(dev);
    p->type = dev_type(dev);
}
static sheaf_backend_buffer_type_t dev_buft(sheaf_backend_dev_t dev) {
    return &island_of(dev)->buft;
}
static bool dev_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    const struct island *i = island_of(dev);
    return op->op != i->refuses && sheaf_backend_supports_op(i->cpu, op);
}
static bool dev_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    return buft->device == dev;
}
static bool dev_offload_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    return op->op == island_of(dev)->offloads;
}
static const struct sheaf_backend_device_i island_i = {
    .get_name = dev_name,
    .get_description = dev_name,
    .get_memory = dev_memory,
    .get_type = dev_type,
    .get_props = dev_props,
    .get_buffer_type = dev_buft,
    .supports_op = dev_supports_op,
    .supports_buft = dev_supports_buft,
    .offload_op = dev_offload_op,
};

static const char *buft_name(sheaf_backend_buffer_type_t b) { return dev_name(b->device); }
static size_t buft_alignment(sheaf_backend_buffer_type_t b) {
    (void)b;
    return 64;
}
static void buffer_free(sheaf_backend_buffer_t b) {
    memset(b->context, 0xA5, b->size); /* so shall a reader after the end */
    free(b->context);
}
static void *buffer_base(sheaf_backend_buffer_t b) { return b->context; }
static enum sheaf_status buffer_memset(sheaf_backend_buffer_t b, struct sheaf_tensor *t, uint8_t v,
                                       size_t offset, size_t size) {
    (void)b;
    memset((char *)t->data + offset, v, size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status buffer_set(sheaf_backend_buffer_t b, struct sheaf_tensor *t,
                                    const void *data, size_t offset, size_t size) {
    (void)b;
    memcpy((char *)t->data + offset, data, size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status buffer_get(sheaf_backend_buffer_t b, const struct sheaf_tensor *t,
                                    void *data, size_t offset, size_t size) {
    (void)b;
    memcpy(data, (const char *)t->data + offset, size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status buffer_clear(sheaf_backend_buffer_t b, uint8_t v) {
    memset(b->context, v, b->size);
    return SHEAF_STATUS_SUCCESS;
}
static const struct sheaf_backend_buffer_i buffer_i = {
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .memset_tensor = buffer_memset,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .clear = buffer_clear,
};
static enum sheaf_status buft_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    void *p = aligned_alloc(64, (size + 64) / 64 * 64);
    memset(p, 0xA5, (size + 64) / 64 * 64); /* a reader before the first write shall notice */
    island_of(buft->device)->n_buffers++;
    *out = sheaf_backend_buffer_init(buft, &buffer_i, p, size);
    return SHEAF_STATUS_SUCCESS;
}
static const struct sheaf_backend_buffer_type_i buft_i = {
    .get_name = buft_name, .alloc_buffer = buft_alloc, .get_alignment = buft_alignment};

static const char *backend_name(sheaf_backend_t b) { return dev_name(b->device); }
static enum sheaf_status backend_compute(sheaf_backend_t b, struct sheaf_cgraph *graph) {
    struct island *i = island_of(b->device);
    i->n_graphs++;
    if (i->fails) return sheaf_set_error(SHEAF_STATUS_FAILED, "%s is under water", i->name);
    for (int k = 0; k < sheaf_graph_n_nodes(graph); k++) { /* nothing from elsewhere got through */
        const struct sheaf_tensor *t = sheaf_graph_node(graph, k);
        cr_assert_eq(t->buffer->buft, &i->buft, "'%s' is not on %s", t->name, i->name);
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            cr_assert(!t->src[j] || t->src[j]->buffer->buft == &i->buft,
                      "'%s', read by '%s', is not on %s", t->src[j] ? t->src[j]->name : "", t->name,
                      i->name);
        }
    }
    return sheaf_backend_graph_compute(i->cpu, graph);
}
static void backend_free(sheaf_backend_t b) { (void)b; }
static const struct sheaf_backend_i backend_i = {
    .get_name = backend_name, .free = backend_free, .graph_compute = backend_compute};

static void island_up(struct island *i, const char *name, sheaf_backend_t cpu) {
    *i = (struct island){.dev = {.iface = &island_i},
                         .buft = {.iface = &buft_i, .device = &i->dev},
                         .backend = {.iface = &backend_i, .device = &i->dev},
                         .cpu = cpu,
                         .name = name,
                         .refuses = SHEAF_OP_COUNT,
                         .offloads = SHEAF_OP_COUNT};
}

#endif
