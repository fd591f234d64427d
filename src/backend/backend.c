/* Backends and devices: dispatch to the vtables. */
#include <string.h>

#include "sheaf/backend-impl.h"

#include "backend/registry.h"
#include "tensor/graph.h"

const char *sheaf_backend_name(sheaf_backend_t backend) {
    return backend->iface->get_name(backend);
}

void sheaf_backend_free(sheaf_backend_t backend) {
    if (!backend) return;
    sheaf_backend_reg_t reg = backend->device ? backend->device->reg : NULL;
    backend->iface->free(backend);
    sheaf__registry_release(reg);
}

sheaf_backend_dev_t sheaf_backend_get_device(sheaf_backend_t backend) { return backend->device; }

sheaf_backend_buffer_type_t sheaf_backend_get_default_buffer_type(sheaf_backend_t backend) {
    return sheaf_backend_dev_buffer_type(backend->device);
}

const uint8_t *sheaf_backend_guid(sheaf_backend_t backend) {
    return backend->iface->get_guid ? backend->iface->get_guid(backend) : NULL;
}

size_t sheaf_backend_get_alignment(sheaf_backend_t backend) {
    return sheaf_backend_buft_get_alignment(sheaf_backend_get_default_buffer_type(backend));
}

size_t sheaf_backend_get_max_size(sheaf_backend_t backend) {
    return sheaf_backend_buft_get_max_size(sheaf_backend_get_default_buffer_type(backend));
}

enum sheaf_status sheaf_backend_alloc_buffer(sheaf_backend_t backend, size_t size,
                                             sheaf_backend_buffer_t *out) {
    return sheaf_backend_buft_alloc_buffer(sheaf_backend_get_default_buffer_type(backend), size,
                                           out);
}

enum sheaf_status sheaf_backend_graph_compute_async(sheaf_backend_t backend,
                                                    struct sheaf_cgraph *graph) {
    const enum sheaf_status st = sheaf__graph_check_whole(graph);
    if (st) return st;
    return backend->iface->graph_compute_async ? backend->iface->graph_compute_async(backend, graph)
                                               : backend->iface->graph_compute(backend, graph);
}

enum sheaf_status sheaf_backend_graph_compute(sheaf_backend_t backend, struct sheaf_cgraph *graph) {
    enum sheaf_status st = sheaf__graph_check_whole(graph);
    if (!st) st = backend->iface->graph_compute(backend, graph);
    return st ? st : sheaf_backend_synchronize(backend);
}

enum sheaf_status sheaf_backend_synchronize(sheaf_backend_t backend) {
    return backend->iface->synchronize ? backend->iface->synchronize(backend)
                                       : SHEAF_STATUS_SUCCESS;
}

bool sheaf_backend_supports_op(sheaf_backend_t backend, const struct sheaf_tensor *op) {
    return sheaf_backend_dev_supports_op(backend->device, op);
}

bool sheaf_backend_supports_buft(sheaf_backend_t backend, sheaf_backend_buffer_type_t buft) {
    return sheaf_backend_dev_supports_buft(backend->device, buft);
}

bool sheaf_backend_offload_op(sheaf_backend_t backend, const struct sheaf_tensor *op) {
    return sheaf_backend_dev_offload_op(backend->device, op);
}

const char *sheaf_backend_dev_name(sheaf_backend_dev_t dev) { return dev->iface->get_name(dev); }
const char *sheaf_backend_dev_description(sheaf_backend_dev_t dev) {
    return dev->iface->get_description(dev);
}
void sheaf_backend_dev_memory(sheaf_backend_dev_t dev, size_t *free, size_t *total) {
    dev->iface->get_memory(dev, free, total);
}
enum sheaf_backend_dev_type sheaf_backend_dev_type(sheaf_backend_dev_t dev) {
    return dev->iface->get_type(dev);
}

void sheaf_backend_dev_get_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    memset(props, 0, sizeof *props);
    dev->iface->get_props(dev, props);
}

sheaf_backend_reg_t sheaf_backend_dev_backend_reg(sheaf_backend_dev_t dev) { return dev->reg; }

enum sheaf_status sheaf_backend_dev_init(sheaf_backend_dev_t dev, const char *params,
                                         sheaf_backend_t *out) {
    *out = NULL;
    enum sheaf_status st = dev->iface->init_backend(dev, params, out);
    if (!st) sheaf__registry_retain(dev->reg);
    return st;
}

sheaf_backend_buffer_type_t sheaf_backend_dev_buffer_type(sheaf_backend_dev_t dev) {
    return dev->iface->get_buffer_type(dev);
}

sheaf_backend_buffer_type_t sheaf_backend_dev_host_buffer_type(sheaf_backend_dev_t dev) {
    return dev->iface->get_host_buffer_type ? dev->iface->get_host_buffer_type(dev) : NULL;
}

bool sheaf_backend_dev_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    return dev->iface->supports_op(dev, op);
}

bool sheaf_backend_dev_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    return dev->iface->supports_buft(dev, buft);
}

bool sheaf_backend_dev_offload_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    return dev->iface->offload_op && dev->iface->offload_op(dev, op);
}

enum sheaf_status sheaf_backend_dev_buffer_from_host_ptr(sheaf_backend_dev_t dev, void *ptr,
                                                         size_t size, size_t max_tensor_size,
                                                         sheaf_backend_buffer_t *out) {
    *out = NULL;
    if (!dev->iface->buffer_from_host_ptr) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "%s cannot use host memory as it is; allocate a buffer and copy",
                               sheaf_backend_dev_name(dev));
    }
    if (!ptr && size)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "host memory of %zu bytes at NULL", size);
    return dev->iface->buffer_from_host_ptr(dev, ptr, size, max_tensor_size, out);
}
