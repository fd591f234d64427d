/* Runs the scenarios of unlike members on ranks, started under mpirun by test-mixed.c. Argument r
 * is "CPUS,FARS": the devices that rank r brings; a rank that brings no CPU device has one all the
 * same, outside the group. Prints "ok N members on R ranks" on rank 0. */
#include "meta_random.h"
#include "mixed_members.h"
#include "sched_scenario.h"

enum { MOST = 16, RANKS = 8 };

static int my_rank(void) {
    const char *text = getenv("OMPI_COMM_WORLD_RANK");
    return text ? atoi(text) : 0;
}

int main(int argc, char **argv) {
    int cpus[RANKS] = {0}, fars[RANKS] = {0};
    const int rank = my_rank();
    for (int r = 0; r + 1 < argc && r < RANKS; r++) {
        if (sscanf(argv[r + 1], "%d,%d", &cpus[r], &fars[r]) != 2) return 2;
    }
    if (rank >= RANKS || !mixed_devices(cpus[rank] ? cpus[rank] : 1, fars[rank])) return 1;
    if (sheaf_world_init(NULL)) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return 1;
    }
    const sheaf_backend_dev_t *devices;
    sheaf_backend_dev_t members[MOST];
    size_t n = 0, used = 0;
    bool ok = sheaf_world_devices(&devices, &n) == SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < n && used < MOST; i++) {
        const int r = sheaf_world_device_rank(devices[i]);
        if (cpus[r] || sheaf_backend_dev_type(devices[i]) != SHEAF_BACKEND_DEVICE_TYPE_CPU)
            members[used++] = devices[i];
    }
    /* without a scheduler nothing takes over an op that a member refuses */
    const bool all_ops = !getenv("SHEAF_FAR_REFUSES");
    for (int hole = 0; hole < 2 && ok && all_ops; hole++)
        ok = run_meta_scenario(members, used, hole ? SHEAF_TYPE_F32 : SHEAF_TYPE_Q8_0, hole);
    ok = ok && (!all_ops || run_meta_random(members, used, 1000, 60));
    ok = ok && run_sched_scenario(members, used, all_ops ? 1 : 0);
    if (ok && fars[rank] && far_counted("pinned") < 100) {
        fprintf(stderr, "rank %d: no transfer through pinned memory\n", rank);
        ok = false;
    }
    const bool all = sheaf_world_agree(ok ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_FAILED,
                                       "scenario") == SHEAF_STATUS_SUCCESS;
    if (all && sheaf_world_rank() == 0)
        printf("ok %zu members on %d ranks\n", used, sheaf_world_size());
    sheaf_world_finalize();
    return all ? 0 : 1;
}
