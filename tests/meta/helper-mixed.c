/* Runs the scenarios of unlike members on ranks, started under mpirun by test-mixed.c. Argument r
 * is "CPUS,FARS": the devices that rank r brings; a rank that brings no CPU device has one all the
 * same, outside the group. Prints "ok N members on R ranks" on rank 0.
 *
 *   helper-mixed -m CPU0,CUDA [-e BOUND [FIRST N]]
 *
 * runs on the devices whose names begin so, of all modules of the search path. With a bound on the
 * NMSE of a node, for members that round activations, it runs the random graphs alone: 60 of them
 * from 1000 on, or N from FIRST on. */
#include "base/launcher.h"
#include "meta_random.h"
#include "mixed_members.h"
#include "sched_scenario.h"
#include "start_job.h"

enum { MOST = 16, RANKS = 8 };

static int my_rank(void) {
    const char *text = sheaf__launcher_rank();
    return text ? atoi(text) : 0;
}

static bool is_listed(const char *list, sheaf_backend_dev_t dev) {
    for (const char *p = list, *end; *p; p = end + (*end == ',')) {
        end = p + strcspn(p, ",");
        if (end > p && !strncmp(sheaf_backend_dev_name(dev), p, (size_t)(end - p))) return true;
    }
    return false;
}

static uint64_t first_graph = 1000, n_graphs = 60;

static bool prepare(int argc, char **argv, int *cpus, int *fars, const char **list) {
    const int rank = my_rank();
    const bool bound = (argc == 5 || argc == 7) && !strcmp(argv[3], "-e");
    if ((argc == 3 || bound) && !strcmp(argv[1], "-m")) {
        *list = argv[2];
        if (bound) meta_random_bound = atof(argv[4]);
        if (argc == 7) first_graph = strtoull(argv[5], NULL, 10);
        if (argc == 7) n_graphs = strtoull(argv[6], NULL, 10);
        return true;
    }
    for (int r = 0; r + 1 < argc && r < RANKS; r++) {
        if (sscanf(argv[r + 1], "%d,%d", &cpus[r], &fars[r]) != 2) return false;
    }
    return rank < RANKS && mixed_devices(cpus[rank] ? cpus[rank] : 1, fars[rank]);
}

static size_t choose(const int *cpus, const char *list, sheaf_backend_dev_t *members) {
    const sheaf_backend_dev_t *devices;
    size_t n = 0, used = 0;
    if (sheaf_world_devices(&devices, &n)) return 0;
    for (size_t i = 0; i < n && used < MOST; i++) {
        const int r = sheaf_world_device_rank(devices[i]);
        const bool far = sheaf_backend_dev_type(devices[i]) != SHEAF_BACKEND_DEVICE_TYPE_CPU;
        if (list ? is_listed(list, devices[i]) : cpus[r] || far) members[used++] = devices[i];
    }
    return used;
}

int main(int argc, char **argv) {
    int cpus[RANKS] = {0}, fars[RANKS] = {0};
    const char *list = NULL;
    sheaf_backend_dev_t members[MOST];
    if (!prepare(argc, argv, cpus, fars, &list)) return 2;
    if (getenv("SHEAF_TEST_FAR_SLICES")) sheaf_log_set(mixed_leave_out_info, NULL);
    if (start_job() || (list && sheaf_backend_load_all())) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return 1;
    }
    const size_t used = choose(cpus, list, members);
    bool ok = used > 0;
    if (!ok) fprintf(stderr, "no members: %s\n", sheaf_last_error());
    /* without a scheduler nothing takes over an op that a member refuses */
    const bool all_ops = !getenv("SHEAF_TEST_FAR_REFUSES");
    /* the random graphs ask about every node */
    const bool rounds = (list && argc >= 5) || getenv("SHEAF_TEST_FAR_SLICES");
    for (int hole = 0; hole < 2 && ok && all_ops && !rounds; hole++)
        /* devices of modules may round activations for products with quantized weights */
        ok =
            run_meta_scenario(members, used, hole || list ? SHEAF_TYPE_F32 : SHEAF_TYPE_Q8_0, hole);
    ok = ok &&
         (!all_ops || run_meta_random(members, used, first_graph, list && !rounds ? 25 : n_graphs));
    ok = ok && (rounds || run_sched_scenario(members, used, all_ops ? 1 : 0));
    if (ok && !list && fars[my_rank()] && far_counted("pinned") < (rounds ? 10 : 100)) {
        fprintf(stderr, "rank %d: no transfer through pinned memory\n", my_rank());
        ok = false;
    }
    return end_job(ok, used);
}
