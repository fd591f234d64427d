/* What tools/sheaf-comm-bench measures against. */
#ifndef SHEAF_COMM_BENCH_H
#define SHEAF_COMM_BENCH_H

#include "sheaf/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* MPI_Allreduce (float, sum, in place) over all ranks. Blocks without a deadline: for measuring
 * beside sheaf_comm_all_reduce, never for work. In a world of one it does nothing. */
enum sheaf_status sheaf_comm_bench_mpi_all_reduce(float *data, size_t n);

#ifdef __cplusplus
}
#endif
#endif
