/* Transfers in a backend's queue, graph plans and events: dispatch, and what happens on backends
 * that lack them.
 *
 * The fall-back of a transfer keeps the order of the queue by waiting for it. The fall-back of a
 * plan is a list of nodes. Events have none: a device without them says so once, when one is made.
 */
#include <stdlib.h>

#include "backend/buffer.h"
#include "backend/registry.h"
#include "sheaf/backend-impl.h"
#include "tensor/graph.h"

/* ---- transfers ---- */

enum sheaf_status sheaf_backend_tensor_set_async(sheaf_backend_t backend, struct sheaf_tensor *t,
                                                 const void *data, size_t offset, size_t size) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st = sheaf__tensor_locate(t, "set tensor", offset, size, 1, 0, &b);
    if (st || !size) return st;
    if (backend->iface->set_tensor_async)
        return backend->iface->set_tensor_async(backend, t, data, offset, size);
    st = sheaf_backend_synchronize(backend);
    return st ? st : b->iface->set_tensor(b, t, data, offset, size);
}

/* Tensors without elements left out, the others in pieces of the array. */
enum sheaf_status sheaf_backend_tensors_set(sheaf_backend_t backend,
                                            const struct sheaf_tensor_write *writes, size_t n) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < n && !st; i++)
        st = sheaf__tensor_locate(writes[i].tensor, "set tensor", 0, sheaf_nbytes(writes[i].tensor),
                                  1, 0, &b);
    const bool together = backend->iface->set_tensors;
    if (!st && !together) st = sheaf_backend_synchronize(backend);
    for (size_t i = 0, from = 0; i < n && !st; from = i) {
        while (i < n && !sheaf_is_empty(writes[i].tensor)) i++;
        if (i > from && together)
            st = backend->iface->set_tensors(backend, writes + from, i - from);
        for (size_t j = from; j < i && !st && !together; j++)
            st = sheaf_backend_tensor_set(writes[j].tensor, writes[j].data, 0,
                                          sheaf_nbytes(writes[j].tensor));
        i += i < n; /* an empty one */
    }
    return st;
}

enum sheaf_status sheaf_backend_tensor_get_async(sheaf_backend_t backend,
                                                 const struct sheaf_tensor *t, void *data,
                                                 size_t offset, size_t size) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st = sheaf__tensor_locate(t, "get tensor", offset, size, 1, 0, &b);
    if (st || !size) return st;
    if (backend->iface->get_tensor_async)
        return backend->iface->get_tensor_async(backend, t, data, offset, size);
    st = sheaf_backend_synchronize(backend);
    return st ? st : b->iface->get_tensor(b, t, data, offset, size);
}

enum sheaf_status sheaf_backend_tensor_set_2d_async(sheaf_backend_t backend, struct sheaf_tensor *t,
                                                    const void *data, size_t offset, size_t size,
                                                    size_t n_copies, size_t stride_tensor,
                                                    size_t stride_data) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st =
        sheaf__tensor_locate(t, "set tensor", offset, size, n_copies, stride_tensor, &b);
    if (st || !size || !n_copies) return st;
    if (!backend->iface->set_tensor_async) {
        st = sheaf_backend_synchronize(backend);
        return st ? st
                  : sheaf_backend_tensor_set_2d(t, data, offset, size, n_copies, stride_tensor,
                                                stride_data);
    }
    for (size_t i = 0; i < n_copies && !st; i++) {
        st = backend->iface->set_tensor_async(backend, t, (const char *)data + i * stride_data,
                                              offset + i * stride_tensor, size);
    }
    return st;
}

enum sheaf_status sheaf_backend_tensor_get_2d_async(sheaf_backend_t backend,
                                                    const struct sheaf_tensor *t, void *data,
                                                    size_t offset, size_t size, size_t n_copies,
                                                    size_t stride_tensor, size_t stride_data) {
    sheaf_backend_buffer_t b;
    enum sheaf_status st =
        sheaf__tensor_locate(t, "get tensor", offset, size, n_copies, stride_tensor, &b);
    if (st || !size || !n_copies) return st;
    if (!backend->iface->get_tensor_async) {
        st = sheaf_backend_synchronize(backend);
        return st ? st
                  : sheaf_backend_tensor_get_2d(t, data, offset, size, n_copies, stride_tensor,
                                                stride_data);
    }
    for (size_t i = 0; i < n_copies && !st; i++) {
        st = backend->iface->get_tensor_async(backend, t, (char *)data + i * stride_data,
                                              offset + i * stride_tensor, size);
    }
    return st;
}

enum sheaf_status sheaf_backend_tensor_copy_async(sheaf_backend_t backend_src,
                                                  sheaf_backend_t backend_dst,
                                                  struct sheaf_tensor *src,
                                                  struct sheaf_tensor *dst) {
    if (src == dst) return SHEAF_STATUS_SUCCESS;
    sheaf_backend_buffer_t from, to;
    enum sheaf_status st = sheaf__copy_locate(src, dst, &from, &to);
    if (st || sheaf_is_empty(src)) return st;
    bool done = false;
    if (backend_dst->iface->cpy_tensor_async)
        st = backend_dst->iface->cpy_tensor_async(backend_src, backend_dst, src, dst, &done);
    if (st || done) return st;
    st = sheaf_backend_synchronize(backend_src);
    if (!st && backend_dst != backend_src) st = sheaf_backend_synchronize(backend_dst);
    return st ? st : sheaf_backend_tensor_copy(src, dst);
}

/* ---- plans ---- */

/* Of backends without plans of their own. */
struct plain_plan {
    struct sheaf_cgraph *graph;
};

enum sheaf_status sheaf_backend_graph_plan_create(sheaf_backend_t backend,
                                                  const struct sheaf_cgraph *graph,
                                                  sheaf_backend_graph_plan_t *out) {
    *out = NULL;
    const enum sheaf_status st = sheaf__graph_check_whole(graph);
    if (st) return st;
    if (backend->iface->graph_plan_create)
        return backend->iface->graph_plan_create(backend, graph, out);
    struct plain_plan *p = malloc(sizeof *p);
    if (!p) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "plan: out of memory");
    p->graph = sheaf__graph_shallow_copy(graph);
    if (!p->graph) {
        free(p);
        return SHEAF_STATUS_ALLOC_FAILED;
    }
    *out = (sheaf_backend_graph_plan_t)(void *)p;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf_backend_graph_plan_free(sheaf_backend_t backend, sheaf_backend_graph_plan_t plan) {
    if (!plan) return;
    if (backend->iface->graph_plan_create) {
        backend->iface->graph_plan_free(backend, plan);
        return;
    }
    struct plain_plan *p = (struct plain_plan *)(void *)plan;
    free(p->graph);
    free(p);
}

enum sheaf_status sheaf_backend_graph_plan_update(sheaf_backend_t backend,
                                                  sheaf_backend_graph_plan_t plan,
                                                  const struct sheaf_cgraph *graph) {
    const enum sheaf_status st = sheaf__graph_check_whole(graph);
    if (st) return st;
    if (backend->iface->graph_plan_create)
        return backend->iface->graph_plan_update(backend, plan, graph);
    struct plain_plan *p = (struct plain_plan *)(void *)plan;
    struct sheaf_cgraph *copy = sheaf__graph_shallow_copy(graph);
    if (!copy) return SHEAF_STATUS_ALLOC_FAILED;
    free(p->graph);
    p->graph = copy;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_backend_graph_plan_compute(sheaf_backend_t backend,
                                                   sheaf_backend_graph_plan_t plan) {
    if (backend->iface->graph_plan_create) return backend->iface->graph_plan_compute(backend, plan);
    return sheaf_backend_graph_compute(backend, ((struct plain_plan *)(void *)plan)->graph);
}

/* ---- events ---- */

enum sheaf_status sheaf_backend_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out) {
    *out = NULL;
    if (!dev->iface->event_new) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%s has no events; synchronize instead",
                               sheaf_backend_dev_name(dev));
    }
    enum sheaf_status st = dev->iface->event_new(dev, out);
    if (st) return st;
    (*out)->device = dev;
    sheaf__registry_retain(dev->reg);
    return SHEAF_STATUS_SUCCESS;
}

void sheaf_backend_event_free(sheaf_backend_event_t event) {
    if (!event) return;
    sheaf_backend_reg_t reg = event->device->reg;
    event->device->iface->event_free(event->device, event);
    sheaf__registry_release(reg);
}

enum sheaf_status sheaf_backend_event_record(sheaf_backend_event_t event, sheaf_backend_t backend) {
    if (backend->device != event->device || !backend->iface->event_record) {
        return sheaf_set_error(
            SHEAF_STATUS_INVALID, "record event: it is of device %s, the backend of %s",
            sheaf_backend_dev_name(event->device), sheaf_backend_dev_name(backend->device));
    }
    return backend->iface->event_record(backend, event);
}

enum sheaf_status sheaf_backend_event_synchronize(sheaf_backend_event_t event) {
    return event->device->iface->event_synchronize(event->device, event);
}

enum sheaf_status sheaf_backend_event_wait(sheaf_backend_t backend, sheaf_backend_event_t event) {
    if (backend->device->iface == event->device->iface && backend->iface->event_wait)
        return backend->iface->event_wait(backend, event);
    return sheaf_backend_event_synchronize(event);
}
