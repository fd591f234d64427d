/* Which cores this process may compute on, cut into devices; the only user of hwloc.
 *
 * One device per NUMA domain of the process's binding, each cut into SHEAF_CPU_DEVICES. Where
 * several ranks of a host share one binding, each takes its share of the cores (see topology.c).
 * Immutable once loaded; any thread may read it. */
#ifndef SHEAF_CPU_DEVICE_TOPOLOGY_H
#define SHEAF_CPU_DEVICE_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>

#include "sheaf/status.h"

struct sheaf__cpu_topology;

struct sheaf__cpu_place {
    char description[256]; /* "AMD EPYC, 2 cores, avx2, CPUs 0-1" */
    int n_cores;
    int n_threads;    /* default of a team: SHEAF_CPU_THREADS or as sheaf__cpu_threads_of says */
    bool shared;      /* other devices or ranks compute on these cores too */
    int numa;         /* the operating system's number of the domain, -1 if there is none */
    int memory_share; /* devices of the host, all ranks, that live on the domain's memory */
    int limit_share;  /* devices of the host, all ranks: they share the limit of a control group */
    const struct sheaf__cpu_topology *topology;
    struct hwloc_bitmap_s **cores; /* [n_cores] processing units of each core */
};

/* INVALID, naming the variable, for a bad setting. Needs sheaf__set_locality done before. */
enum sheaf_status sheaf__cpu_topology_load(struct sheaf__cpu_topology **out);
void sheaf__cpu_topology_free(struct sheaf__cpu_topology *topology); /* accepts NULL */
int sheaf__cpu_topology_n_places(const struct sheaf__cpu_topology *topology);
const struct sheaf__cpu_place *sheaf__cpu_topology_place(const struct sheaf__cpu_topology *topology,
                                                         int i);

/* Threads of a device by default: one for each of its cores, of the processors whose time a control group leaves to so
 * many devices no more than its part, and at least one. */
int sheaf__cpu_threads_of(int cores, size_t cpus, int sharers);

/* The place's part of its domain's memory, in bytes: available now, and in all. */
void sheaf__cpu_place_memory(const struct sheaf__cpu_place *place, size_t *free, size_t *total);
/* Binds the calling thread to the core of member ith of a team; more members than cores wrap. A
 * system that refuses is not an error: the thread runs, it only may move. */
void sheaf__cpu_place_bind_thread(const struct sheaf__cpu_place *place, int ith);
/* The memories near the place, the default first, the others by bandwidth: their domains' numbers
 * and names ("HBM", "DRAM" where hwloc knows, else "NUMA3"). At most cap; at least one. */
struct sheaf__cpu_place_memory_kind {
    int numa;
    char name[16];
};
int sheaf__cpu_place_memory_kinds(const struct sheaf__cpu_place *place,
                                  struct sheaf__cpu_place_memory_kind *kinds, int cap);
/* Prefers the memory of domain `numa` for pages of [data, data + size) that are not touched yet.
 * Nothing to do on a machine of one memory. */
void sheaf__cpu_place_bind_memory(const struct sheaf__cpu_place *place, int numa, void *data,
                                  size_t size);

#endif
