/* The list of sheaf-info and sheaf-run --list-devices. */
#include "common/devices.h"

#include <stdio.h>

#include "sheaf/version.h"
#include "sheaf/world.h"

static const char *const type_names[] = {
    [SHEAF_BACKEND_DEVICE_TYPE_CPU] = "CPU",
    [SHEAF_BACKEND_DEVICE_TYPE_GPU] = "GPU",
    [SHEAF_BACKEND_DEVICE_TYPE_ACCEL] = "accelerator",
    [SHEAF_BACKEND_DEVICE_TYPE_META] = "meta",
};

static void print_device(sheaf_backend_dev_t dev) {
    char name[96];
    size_t free_bytes = 0, total = 0;
    sheaf_world_device_name(dev, name, sizeof name);
    sheaf_backend_dev_memory(dev, &free_bytes, &total);
    printf("  %-12s %s, %s, %.0f of %.0f MiB free\n", name, type_names[sheaf_backend_dev_type(dev)],
           sheaf_backend_dev_description(dev), (double)free_bytes / (1024.0 * 1024),
           (double)total / (1024.0 * 1024));
}

static const char *s(long n) { return n == 1 ? "" : "s"; }

enum sheaf_status devices_print(void) {
    const sheaf_backend_dev_t *devices = NULL;
    size_t n = 0;
    const enum sheaf_status status = sheaf_world_devices(&devices, &n);
    const int ranks = sheaf_world_size(), hosts = sheaf_world_n_hosts();
    if (status || sheaf_world_rank() != 0) return status;
    printf("sheaf %s\n%d rank%s on %d host%s, %zu device%s\n", sheaf_version(), ranks, s(ranks),
           hosts, s(hosts), n, s((long)n));
    for (int r = 0; r < ranks; r++) {
        printf("rank %d on %s (host %d)\n", r, sheaf_world_host_name(r), sheaf_world_host_index(r));
        for (size_t i = 0; i < n; i++)
            if (sheaf_world_device_rank(devices[i]) == r) print_device(devices[i]);
    }
    return SHEAF_STATUS_SUCCESS;
}
