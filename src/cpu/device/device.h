/* The CPU backend's own objects: registry entry, devices, buffer types. See sheaf/cpu.h for the
 * public part. */
#ifndef SHEAF_CPU_DEVICE_DEVICE_H
#define SHEAF_CPU_DEVICE_DEVICE_H

#include "cpu/device/topology.h"
#include "sheaf/backend-impl.h"
#include "sheaf/cpu.h"

enum { SHEAF__CPU_MAX_MEMORIES = 4 };

/* A kind of memory near a device; the context of its buffer type. */
struct sheaf__cpu_memory {
    struct sheaf_backend_buffer_type buft;
    struct sheaf_backend_buffer_type
        repacked; /* of buffers with repacked weights: not the host's to read */
    struct sheaf__cpu_device *device;
    int numa; /* -1: wherever the system puts it */
    char name[32];
};

struct sheaf__cpu_device {
    struct sheaf_backend_device base;
    struct sheaf__cpu_memory memories[SHEAF__CPU_MAX_MEMORIES]; /* 0: the default */
    int n_memories;
    const struct sheaf__cpu_place *place;
    char name[16]; /* "CPU0" */
};

extern const struct sheaf_backend_buffer_type_i sheaf__cpu_buft_iface, sheaf__cpu_repacked_iface;
struct sheaf__cpu_weights;
/* NULL: not a buffer that the CPU devices have allocated. */
struct sheaf__cpu_weights *sheaf__cpu_buffer_weights(sheaf_backend_buffer_t buffer);
/* Its weights are repacked, some of them at least, or none any more. */
void sheaf__cpu_buffer_set_repacked(sheaf_backend_buffer_t buffer, bool some);
enum sheaf_status sheaf__cpu_buffer_from_ptr(sheaf_backend_dev_t dev, void *ptr, size_t size,
                                             size_t max_tensor_size, sheaf_backend_buffer_t *out);

/* params: "threads=N" or NULL. */
enum sheaf_status sheaf__cpu_backend_new(struct sheaf__cpu_device *device, const char *params,
                                         sheaf_backend_t *out);
enum sheaf_status sheaf__cpu_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out);
void sheaf__cpu_event_free(sheaf_backend_dev_t dev, sheaf_backend_event_t event);
enum sheaf_status sheaf__cpu_event_synchronize(sheaf_backend_dev_t dev,
                                               sheaf_backend_event_t event);

#endif
