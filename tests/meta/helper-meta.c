/* Runs the meta scenario over all devices of the job; started under mpirun by test-meta.c. Prints
 * "ok N members" on rank 0. Argument "leave": the last rank drives no member, so mirrored results
 * must reach it by message; "unlisted": each rank gives its first device, and has not listed those of
 * the job. */
#include "meta_scenario.h"
#include "start_job.h"

int main(int argc, char **argv) {
    const bool leave = argc > 1 && !strcmp(argv[1], "leave");
    if (start_job()) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return 1;
    }
    if (argc > 1 && !strcmp(argv[1], "unlisted")) {
        const sheaf_backend_dev_t first = sheaf_backend_dev_get(0);
        return end_job(run_meta_scenario(&first, 1, SHEAF_TYPE_F32, false), 1);
    }
    const sheaf_backend_dev_t *devices;
    size_t n, used = 0;
    bool ok = sheaf_world_devices(&devices, &n) == SHEAF_STATUS_SUCCESS;
    if (ok) used = n;
    while (ok && leave && used > 1 &&
           sheaf_world_device_rank(devices[used - 1]) == sheaf_world_size() - 1)
        used--;
    const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_Q8_0};
    for (int i = 0; i < 2 && ok; i++) {
        for (int hole = 0; hole < 2 && ok; hole++)
            ok = run_meta_scenario(devices, used, types[i], hole);
    }
    return end_job(ok, used);
}
