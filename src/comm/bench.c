/* MPI's own all-reduce, for the benchmark that prints it beside ours. */
#include "sheaf/comm-bench.h"

#include <limits.h>

#include "comm/world.h"

enum sheaf_status sheaf_comm_bench_mpi_all_reduce(float *data, size_t n) {
    struct sheaf__world *w = sheaf__world();
    if (!w->mpi) return SHEAF_STATUS_SUCCESS;
    if (n > INT_MAX)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "MPI_Allreduce: %zu floats are too many", n);
    sheaf__mpi_lock();
    int code = MPI_Allreduce(MPI_IN_PLACE, data, (int)n, MPI_FLOAT, MPI_SUM, w->data);
    sheaf__mpi_unlock();
    return sheaf__mpi_check(code, "MPI_Allreduce");
}
