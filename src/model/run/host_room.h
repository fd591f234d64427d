/* The memory of a host that its ranks may use. */
#ifndef SHEAF_MODEL_RUN_HOST_ROOM_H
#define SHEAF_MODEL_RUN_HOST_ROOM_H

#include "sheaf/world.h"

/* Bytes of the CPU devices on host number `host` together: each reports its part of the host's
 * memory, and all of them allocate from the same. `devices` are those of sheaf_world_devices. */
void sheaf__host_room(const sheaf_backend_dev_t *devices, size_t n, int host, size_t *avail,
                      size_t *total);

#endif
