/* The limits of this process's control groups: Slurm's --mem, containers, Kubernetes, systemd. */
#ifndef SHEAF_CPU_DEVICE_CGROUP_H
#define SHEAF_CPU_DEVICE_CGROUP_H

#include <stddef.h>

struct sheaf__cgroup_limits {
    size_t avail, total; /* bytes */
    size_t cpus;         /* processors, as much time as these have */
};

/* Lowers the limits, of a host, to what the groups leave: the smallest limit from the process's group up to the root
 * counts. Page cache of files counts as available. Processors are rounded down, to one at least. `membership` is
 * /proc/self/cgroup, `root` /sys/fs/cgroup, others in tests. Versions 1 and 2; source:
 * Documentation/admin-guide/{cgroup-v1/memory.rst,cgroup-v2.rst} and Documentation/scheduler/sched-bwc.rst of Linux. */
void sheaf__cgroup_limit(const char *membership, const char *root,
                         struct sheaf__cgroup_limits *limits);

#endif
