/* Sums the memory of a host's CPU devices. */
#include "model/run/host_room.h"

void sheaf__host_room(const sheaf_backend_dev_t *devices, size_t n, int host, size_t *avail,
                      size_t *total) {
    *avail = *total = 0;
    for (size_t i = 0; i < n; i++) {
        size_t a = 0, t = 0;
        if (sheaf_backend_dev_type(devices[i]) != SHEAF_BACKEND_DEVICE_TYPE_CPU ||
            sheaf_world_host_index(sheaf_world_device_rank(devices[i])) != host)
            continue;
        sheaf_backend_dev_memory(devices[i], &a, &t);
        *avail += a;
        *total += t;
    }
}
