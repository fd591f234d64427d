/* Runs the scheduler scenario, [meta over all devices of the job, CPU]; started under mpirun by
 * test-sched.c. Prints "ok N members on R ranks" on rank 0. The argument is the number of lots. */
#include "sched_scenario.h"
#include "start_job.h"

int main(int argc, char **argv) {
    if (start_job()) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return 1;
    }
    const sheaf_backend_dev_t *devices;
    size_t n = 0;
    bool ok = sheaf_world_devices(&devices, &n) == SHEAF_STATUS_SUCCESS;
    ok = ok && run_sched_scenario(devices, n, argc > 1 ? atoi(argv[1]) : 0);
    return end_job(ok, n);
}
