/* Compares fused with plain all-reduces over all devices of the job; started under mpirun by
 * test-fuse.c with one thread a device. Prints "ok N members" on rank 0. */
#include "fuse_scenario.h"
#include "start_job.h"

int main(void) {
    if (start_job()) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return 1;
    }
    const sheaf_backend_dev_t *devices;
    size_t n = 0;
    const bool ok = !sheaf_world_devices(&devices, &n) && fuse_compare(devices, n, 1, false);
    const bool all = !sheaf_world_agree(ok ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_FAILED, "compare");
    if (all && sheaf_world_rank() == 0)
        printf("ok %zu members on %d ranks\n", n, sheaf_world_size());
    sheaf_world_finalize();
    return all ? 0 : 1;
}
