/* MPI's own all-reduce, for the benchmark that prints it beside ours. */
#include "sheaf/comm-bench.h"

#include <limits.h>
#include <stdio.h>

#include "comm/world/world.h"

/* A communicator that prefers a component; Open MPI 4.1 reads the preference from this key. */
static enum sheaf_status preferring(const char *component, MPI_Comm *out) {
    static MPI_Comm made = MPI_COMM_NULL;
    static char name[32];
    MPI_Info info;
    if (made != MPI_COMM_NULL && !strcmp(name, component)) {
        *out = made;
        return SHEAF_STATUS_SUCCESS;
    }
    if (snprintf(name, sizeof name, "%s", component) >= (int)sizeof name)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "MPI_Allreduce: component '%s'?", component);
    sheaf__mpi_lock();
    if (made != MPI_COMM_NULL) MPI_Comm_free(&made);
    MPI_Info_create(&info);
    MPI_Info_set(info, "ompi_comm_coll_preference", component);
    const int code = MPI_Comm_dup_with_info(sheaf__world()->data, info, &made);
    MPI_Info_free(&info);
    sheaf__mpi_unlock();
    *out = made;
    return sheaf__mpi_check(code, "MPI_Comm_dup_with_info");
}

enum sheaf_status sheaf_comm_bench_mpi_all_reduce(float *data, size_t n, const char *component) {
    struct sheaf__world *w = sheaf__world();
    if (!w->mpi) return SHEAF_STATUS_SUCCESS;
    if (n > INT_MAX)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "MPI_Allreduce: %zu floats are too many", n);
    MPI_Comm comm = w->data;
    enum sheaf_status st = component ? preferring(component, &comm) : SHEAF_STATUS_SUCCESS;
    if (st) return st;
    sheaf__mpi_lock();
    int code = MPI_Allreduce(MPI_IN_PLACE, data, (int)n, MPI_FLOAT, MPI_SUM, comm);
    sheaf__mpi_unlock();
    return sheaf__mpi_check(code, "MPI_Allreduce");
}
