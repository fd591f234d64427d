/* Plain MPI, which tools/comm-bench compares with. */
#ifndef SHEAF_COMM_BENCH_H
#define SHEAF_COMM_BENCH_H

#include "sheaf/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* MPI_Allreduce (float, sum, in place) over all ranks. Blocks without a deadline: for measuring
 * beside sheaf_comm_all_reduce, never for work. In a world of one it does nothing.
 *
 * component: NULL, or the Open MPI component of collectives to prefer ("sm"). Its first use is
 * collective and makes a communicator, which lasts until sheaf_world_finalize; another MPI, or an
 * Open MPI without the component, takes its default. */
enum sheaf_status sheaf_comm_bench_mpi_all_reduce(float *data, size_t n, const char *component);

#ifdef __cplusplus
}
#endif
#endif
