/* What a launcher tells a process through its environment, before MPI is initialized. */
#ifndef SHEAF_BASE_LAUNCHER_H
#define SHEAF_BASE_LAUNCHER_H

#include <stdlib.h>

/* The rank that the launcher gave this process, as text; NULL: no launcher started it. Open MPI's
 * mpirun, PMIx (Slurm's srun --mpi=pmix), PMI (hydra of MPICH, srun --mpi=pmi2), any srun. */
static inline const char *sheaf__launcher_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    const char *rank = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !rank; i++) rank = getenv(names[i]);
    return rank;
}

#endif
