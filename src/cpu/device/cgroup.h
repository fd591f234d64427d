/* The memory limits of this process's control groups: Slurm's --mem, containers, systemd. */
#ifndef SHEAF_CPU_DEVICE_CGROUP_H
#define SHEAF_CPU_DEVICE_CGROUP_H

#include <stddef.h>

/* Lowers *avail and *total, of a host, to what the groups leave: the smallest limit from the
 * process's group up to the root counts, and page cache of files counts as available. `membership`
 * is /proc/self/cgroup, `root` /sys/fs/cgroup, others in tests. Versions 1 and 2; source:
 * Documentation/admin-guide/{cgroup-v1/memory.rst,cgroup-v2.rst} of Linux. */
void sheaf__cgroup_memory(const char *membership, const char *root, size_t *avail, size_t *total);

#endif
