/* What a launcher tells a process through its environment, before MPI is initialized. */
#ifndef SHEAF_BASE_LAUNCHER_H
#define SHEAF_BASE_LAUNCHER_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The rank in a launcher's job of MPI, as text; NULL: in none. Open MPI's mpirun, PMIx (Slurm's
 * srun --mpi=pmix), PMI (hydra of MPICH, srun --mpi=pmi2). Tasks of another srun may be programs of
 * one. */
static inline const char *sheaf__launcher_mpi_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    const char *rank = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !rank; i++) rank = getenv(names[i]);
    return rank;
}

/* The rank that the launcher gave this process, as text; NULL: no launcher started it. As above,
 * and of any srun. */
static inline const char *sheaf__launcher_rank(void) {
    const char *rank = sheaf__launcher_mpi_rank();
    return rank ? rank : getenv("SLURM_PROCID");
}

/* Was Open MPI's mpirun told to leave ranks alone when others end? */
static inline bool sheaf__launcher_recovers(void) {
    const char *recovery = getenv("OMPI_MCA_orte_enable_recovery");
    return recovery && strcmp(recovery, "0") != 0;
}

#endif
