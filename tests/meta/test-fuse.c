/* SHEAF_FUSE: the nodes after an all-reduce, and chains of nodes on a CPU, give the same bits
 * whether they are computed row by row or one after the other. */
#include "cpu_members.h"
#include "fuse_scenario.h"
#include "mpirun.h"

static void in_process(size_t n, const char *threads) {
    cr_assert(fuse_compare(cpu_members_of(n, threads), n, atoi(threads), true));
}
Test(fuse, one_member) { in_process(1, "1"); }
Test(fuse, two_members) { in_process(2, "1"); }
Test(fuse, members_with_teams) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    in_process(cores < 7 ? (size_t)cores + 1 : 8, "3"); /* more devices than cores: any threads */
}

static void under_mpirun(int np, const char *env, const char *want) {
    char out[8192];
    const int status = run_mpirun(np, env, 120, out, sizeof out, "helper-fuse");
    cr_assert_eq(status, 0, "status %d:\n%s", status, out);
    cr_assert(strstr(out, want), "wanted '%s':\n%s", want, out);
}

Test(fuse_mpirun, three_ranks) {
    under_mpirun(3, "SHEAF_CPU_THREADS=1", "ok 3 members on 3 ranks");
}
Test(fuse_mpirun, ranks_as_hosts) {
    under_mpirun(2, "SHEAF_COMM_TRANSPORT=mpi SHEAF_CPU_THREADS=1", "ok 2 members on 2 ranks");
    under_mpirun(3, "SHEAF_COMM_TRANSPORT=mpi SHEAF_CPU_THREADS=1", "ok 3 members on 3 ranks");
}
Test(fuse_mpirun, two_hosts_of_two) {
    under_mpirun(4, "SHEAF_COMM_TRANSPORT=hosts:0,1,0,1 SHEAF_CPU_THREADS=1",
                 "ok 4 members on 4 ranks");
}
