/* The place of this process among the ranks of its host, and which of them may run on its CPUs. */
#ifndef SHEAF_BACKEND_LOCALITY_H
#define SHEAF_BACKEND_LOCALITY_H

#include <stdbool.h>

/* A binding: CPUs that a process may run on, by the kernel's numbers. */
enum { SHEAF__MOST_CPUS = 8192 }; /* of a kernel for x86-64 */
struct sheaf__cpus {
    unsigned long word[SHEAF__MOST_CPUS / (8 * sizeof(unsigned long))];
};

/* Of the calling thread; if the system does not tell it, all CPUs that are online. */
void sheaf__cpus_here(struct sheaf__cpus *cpus);
/* CPUs that each task of process `me` gets, of n processes that have so many tasks each and share every CPU evenly with
 * all tasks that may run on it. Below 1: tasks wait for each other's CPUs. */
double sheaf__cpus_each(const struct sheaf__cpus *of, const int *tasks, int n, int me);

struct sheaf__locality {
    int rank, size;  /* among the ranks of the host */
    int twin, twins; /* among those with this rank's binding, which divide it */
    bool mixed;      /* ranks with another binding may run on some of its CPUs, too */
    double part;     /* of its binding that it gets if all ranks share every CPU evenly */
    struct sheaf__cpus binding, used; /* of this rank; used: of any rank of the host */
};

/* Of process `me` of n; here[i]: 1 for those of its host, 0 for others. */
struct sheaf__locality sheaf__locality_of(const struct sheaf__cpus *bindings, const int *here,
                                          int n, int me);

/* Set by the world before devices are listed, read by the CPU backend to share cores. */
void sheaf__set_locality(const struct sheaf__locality *locality);
/* NULL: it has not been set, which only a launcher's ranks do. */
const struct sheaf__locality *sheaf__get_locality(void);

#endif
