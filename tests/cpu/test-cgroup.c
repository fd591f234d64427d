/* Limits of control groups, read from files of both versions that the tests write. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "cpu/device/cgroup.h"
#include "temp_dir.h"

enum { MIB = 1 << 20 };

/* Writes a file of the directory, with the folders above it. */
static void put(const char *name, const char *text) {
    char cmd[512];
    snprintf(cmd, sizeof cmd, "mkdir -p \"$(dirname %s/%s)\"", dir, name);
    cr_assert_eq(system(cmd), 0);
    FILE *f = fopen(in_dir(name), "w");
    cr_assert_not_null(f, "%s", name);
    fputs(text, f);
    fclose(f);
}

static void put_mib(const char *name, int mib) {
    char text[32];
    snprintf(text, sizeof text, "%lld\n", (long long)mib * MIB);
    put(name, text);
}

/* MiB that are left of a host with 1000 of 2000 available. */
static void expect(int avail, int total) {
    char membership[128];
    struct sheaf__cgroup_limits l = {(size_t)1000 * MIB, (size_t)2000 * MIB, 8};
    snprintf(membership, sizeof membership, "%s/membership", dir);
    sheaf__cgroup_limit(membership, dir, &l);
    cr_expect_eq(l.avail / MIB, (size_t)avail, "%zu MiB are available", l.avail / MIB);
    cr_expect_eq(l.total / MIB, (size_t)total, "%zu MiB in all", l.total / MIB);
    cr_expect_eq(l.cpus, 8, "%zu processors", l.cpus);
}

/* Processors that are left of a host with 8. */
static void expect_cpus(size_t cpus) {
    char membership[128];
    struct sheaf__cgroup_limits l = {1, 1, 8};
    snprintf(membership, sizeof membership, "%s/membership", dir);
    sheaf__cgroup_limit(membership, dir, &l);
    cr_expect_eq(l.cpus, cpus, "%zu processors, not %zu", l.cpus, cpus);
    cr_expect(l.avail == 1 && l.total == 1);
}

TestSuite(cgroup, .init = setup, .fini = teardown);

Test(cgroup, no_files_are_no_limit) {
    expect(1000, 2000);
    put("membership", "0::/a/b\nno line\n");
    expect(1000, 2000);
    put("a/b/memory.max", "max\n");
    put("a/memory.max", "\n");
    expect(1000, 2000);
}

Test(cgroup, version_2_the_smallest_limit_above) {
    put("membership", "0::/job/step\n");
    put("job/step/memory.max", "max\n");
    put_mib("job/memory.max", 600);
    put_mib("job/memory.current", 150);
    expect(450, 600);
    /* page cache of files can be dropped */
    put("job/memory.stat",
        "anon 1\ninactive_file_x 9\ninactive_file 52428800\nactive_file 20971520\n");
    expect(520, 600);
    put_mib("job/step/memory.max", 100);
    expect(100, 100);
    put_mib("job/step/memory.current", 300); /* more than the limit, which was lowered */
    expect(0, 100);
    put_mib("memory.max", 50);
    expect(0, 50);
}

/* Counts are not of one moment. */
Test(cgroup, more_cache_than_memory_in_use) {
    put("membership", "0::/\n");
    put_mib("memory.max", 50);
    put_mib("memory.current", 10);
    put("memory.stat", "inactive_file 52428800\nactive_file 52428800\n");
    expect(50, 50);
}

Test(cgroup, version_1) {
    put("membership",
        "5:cpu,cpuacct:/other\n4:hugetlb,memory:/slurm/job_7\n1:name=systemd:/\n0::/\n");
    put("memory/slurm/job_7/memory.limit_in_bytes", "9223372036854771712\n");
    put_mib("memory/slurm/memory.limit_in_bytes", 900);
    put_mib("memory/slurm/memory.usage_in_bytes", 300);
    put("memory/slurm/memory.stat", "inactive_file 1\ntotal_inactive_file 104857600\n");
    put_mib("memory/other/memory.limit_in_bytes", 1); /* of a group that it is not in */
    expect(700, 900);
}

/* What a container sees of the host's tree is its own group alone, at the root. */
Test(cgroup, paths_that_are_not_seen) {
    put("membership", "0::/../../host/docker-1\n");
    put_mib("memory.max", 64);
    expect(64, 64);
    put("membership", "0::/docker/0123/nested\n");
    expect(64, 64);
}

Test(cgroup, processors_of_version_2) {
    put("membership", "0::/pod/task\n");
    expect_cpus(8);
    put("pod/task/cpu.max", "max 100000\n");
    expect_cpus(8);
    put("pod/cpu.max", "350000 100000\n");
    expect_cpus(3);
    put("pod/task/cpu.max", "20000 10000\n");
    expect_cpus(2);
    put("pod/task/cpu.max", "5000 100000\n"); /* a part of one */
    expect_cpus(1);
    put("pod/task/cpu.max", "5000 0\n");
    expect_cpus(3);
    put("pod/cpu.max", "1600000 100000\n"); /* more than there are */
    expect_cpus(8);
}

Test(cgroup, processors_of_version_1) {
    put("membership", "2:cpuset:/other\n1:cpu,cpuacct:/docker/7\n");
    put("cpu/docker/7/cpu.cfs_quota_us", "-1\n");
    put("cpu/docker/7/cpu.cfs_period_us", "100000\n");
    put("cpu/other/cpu.cfs_quota_us", "100000\n"); /* of a group that it is not in */
    put("cpu/other/cpu.cfs_period_us", "100000\n");
    expect_cpus(8);
    put("cpu/docker/7/cpu.cfs_quota_us", "400000\n");
    expect_cpus(4);
}
