/* How cores become devices: settings, ranks that share a host, and machines other than this one
 * (described to hwloc by HWLOC_SYNTHETIC). Every test is a process of its own, so each may set the
 * environment. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/locality.h"
#include "cpu/device/topology.h"
#include "sheaf/sheaf.h"

/* In place of the C library's. */
static bool without_affinity;
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
    memset(set, 0, size);
    return without_affinity || syscall(SYS_sched_getaffinity, pid, size, set) < 0 ? -1 : 0;
}

static int bound_cores(void) {
    cpu_set_t set;
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

Test(cpu_topology, lists_devices) {
    unsetenv("SHEAF_CPU_DEVICES");
    unsetenv("SHEAF_CPU_THREADS");
    sheaf_backend_reg_t reg = sheaf_backend_reg_by_name("CPU");
    cr_assert_eq(reg, sheaf_backend_cpu_reg());
    cr_assert_geq(sheaf_backend_reg_dev_count(reg), 1);
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_name("CPU0");
    cr_assert_eq(dev, sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU));
    struct sheaf_backend_dev_props props;
    sheaf_backend_dev_get_props(dev, &props);
    cr_assert_str_eq(props.name, "CPU0");
    cr_assert(strstr(props.description, sheaf_cpu_isa_name()), "%s", props.description);
    cr_assert(strstr(props.description, "core"), "%s", props.description);
    cr_assert(strstr(props.description, ", CPU"), "%s", props.description);
    cr_assert_gt(props.memory_free, 0);
    cr_assert_leq(props.memory_free, props.memory_total);
    cr_assert_leq(props.memory_total,
                  (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE));
    cr_assert_not(props.remote);
    sheaf_backend_buffer_type_t buft = sheaf_backend_dev_buffer_type(dev);
    cr_assert(sheaf_backend_buft_is_host(buft));
    cr_assert(sheaf_backend_dev_supports_buft(dev, buft));
}

Test(cpu_topology, cut_into_three) {
    setenv("SHEAF_CPU_DEVICES", "3", 1);
    sheaf_backend_reg_t reg = sheaf_backend_cpu_reg();
    size_t n = sheaf_backend_reg_dev_count(reg), sum = 0;
    cr_assert_eq(n % 3, 0);
    cr_assert_geq(n, 3);
    cr_assert_not_null(sheaf_backend_dev_by_name("CPU2"));
    for (size_t i = 0; i < n; i++) {
        size_t avail, total;
        sheaf_backend_t backend;
        sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(reg, i);
        sheaf_backend_dev_memory(dev, &avail, &total);
        sum += total;
        cr_assert_eq(sheaf_backend_dev_init(dev, NULL, &backend), SHEAF_STATUS_SUCCESS);
        cr_assert_geq(sheaf_backend_cpu_get_n_threads(backend), 1);
        if (bound_cores() < 3)
            cr_assert(strstr(sheaf_backend_dev_description(dev), "shared"), "%s",
                      sheaf_backend_dev_description(dev));
        sheaf_backend_free(backend);
    }
    /* the devices' memory adds up to no more than there is */
    cr_assert_leq(sum, (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE));
}

Test(cpu_topology, bad_settings_name_the_variable) {
    static const struct {
        const char *name, *value;
    } bad[] = {
        {"SHEAF_CPU_DEVICES", "0"},       {"SHEAF_CPU_DEVICES", "-1"},
        {"SHEAF_CPU_DEVICES", "two"},     {"SHEAF_CPU_DEVICES", ""},
        {"SHEAF_CPU_DEVICES", "2x"},      {"SHEAF_CPU_DEVICES", "99999999999999999999"},
        {"SHEAF_CPU_THREADS", "0"},       {"SHEAF_CPU_THREADS", "1.5"},
        {"SHEAF_CPU_THREADS", "1000000"}, {"SHEAF_CPU_THREADS", "1024"},
    };
    unsetenv("SHEAF_CPU_DEVICES");
    unsetenv("SHEAF_CPU_THREADS");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv(bad[i].name, bad[i].value, 1);
        sheaf_clear_error();
        cr_assert_eq(sheaf_backend_dev_count(), 0, "%s=%s", bad[i].name, bad[i].value);
        cr_assert(strstr(sheaf_last_error(), bad[i].name), "%s=%s: '%s'", bad[i].name, bad[i].value,
                  sheaf_last_error());
        struct sheaf__cpu_topology *t;
        cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_INVALID);
        cr_assert_null(t);
        unsetenv(bad[i].name);
    }
    cr_assert_geq(sheaf_backend_dev_count(), 1); /* mended: no restart needed */
}

Test(cpu_topology, bad_instruction_set) {
    setenv("SHEAF_CPU_ISA", "quantum", 1);
    cr_assert_eq(sheaf_backend_dev_count(), 0);
    cr_assert(strstr(sheaf_last_error(), "SHEAF_CPU_ISA"), "'%s'", sheaf_last_error());
}

Test(cpu_topology, threads_are_set) {
    sheaf_backend_t backend;
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_cpu_get_n_threads(backend), 1);
    sheaf_backend_free(backend);
}

/* "0-3,8" */
static struct sheaf__cpus cpus_of(const char *list) {
    enum { BITS = 8 * sizeof(unsigned long) };
    struct sheaf__cpus cpus = {{0}};
    for (char *end; *list; list = *end ? end + 1 : end) {
        long last = strtol(list, &end, 10);
        const long first = last;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last; i++) cpus.word[i / BITS] |= 1ul << i % BITS;
    }
    return cpus;
}

/* This process is the rank `me` of a host whose ranks have these bindings. */
static void set_bindings(const char *const *bindings, int n, int me) {
    enum { MOST = 8 };
    struct sheaf__cpus cpus[MOST];
    int here[MOST];
    for (int i = 0; i < n; i++) {
        cpus[i] = cpus_of(bindings[i]);
        here[i] = 1;
    }
    const struct sheaf__locality l = sheaf__locality_of(cpus, here, n, me);
    sheaf__set_locality(&l);
}

/* ---- described machines ---- */

/* A line a case: machine, devices setting, threads setting (0: none), local rank and size, then
 * each device as cores:threads:numa:memory share:limit share, 's' at the end if shared. */
static const struct {
    const char *machine;
    int devices, threads, rank, size;
    const char *expect;
} machines[] = {
    {"numa:1 core:8 pu:1", 1, 0, 0, 1, "8:8:0:1:1"},
    {"numa:1 core:8 pu:2", 1, 0, 0, 1, "8:8:0:1:1"},
    {"numa:2 core:4 pu:2", 1, 0, 0, 1, "4:4:0:1:2 4:4:1:1:2"},
    {"numa:2 core:4 pu:1", 2, 0, 0, 1, "2:2:0:2:4 2:2:0:2:4 2:2:1:2:4 2:2:1:2:4"},
    {"numa:1 core:5 pu:1", 3, 0, 0, 1, "1:1:0:3:3 2:2:0:3:3 2:2:0:3:3"},
    {"numa:1 core:2 pu:1", 3, 0, 0, 1, "1:1:0:3:3s 1:1:0:3:3s 1:1:0:3:3s"},
    {"numa:1 core:4 pu:1", 1, 3, 0, 1, "4:3:0:1:1"},
    {"numa:1 core:2 pu:1", 3, 4, 0, 1, "1:4:0:3:3s 1:4:0:3:3s 1:4:0:3:3s"},
    {"numa:1 core:4 pu:1", 1, 0, 1, 2, "2:2:0:2:2"},
    {"numa:2 core:4 pu:1", 1, 0, 1, 2, "4:4:1:1:2"},
    {"numa:2 core:4 pu:1", 1, 0, 1, 4, "2:2:0:2:4"},
    {"numa:2 core:3 pu:1", 1, 0, 0, 1, "3:3:0:1:2 3:3:1:1:2"},
    {"numa:2 core:4 pu:1", 1, 0, 1, 3, "2:2:0:3:6 1:1:1:3:6"},
    {"numa:1 core:3 pu:1", 1, 0, 0, 2, "1:1:0:2:2"},
    {"numa:1 core:3 pu:1", 1, 0, 1, 2, "2:2:0:2:2"},
    {"numa:1 core:2 pu:1", 1, 0, 0, 4, "1:1:0:4:4s"},
    {"numa:1 core:2 pu:1", 1, 0, 3, 4, "1:1:0:4:4s"},
    {"numa:1 core:2 pu:1", 2, 0, 3, 4, "1:1:0:8:8s 1:1:0:8:8s"},
    {"numa:2 pu:3", 1, 0, 0, 1, "3:3:0:1:2 3:3:1:1:2"}, /* cores are not told */
    /* memory of all cores, or of a package, beside that of its parts */
    {"[numa] pack:2 [numa] core:2 pu:1", 1, 0, 0, 1, "2:2:0:1:2 2:2:1:1:2"},
    {"[numa] pack:2 [numa] core:2 pu:1", 1, 0, 0, 3, "1:1:0:2:3"},
    {"pack:2 [numa] group:2 [numa] core:2 pu:2", 1, 0, 4, 5, "2:2:4:2:5"},
};

/* Each device of the machine as the table has it. */
static void expect_devices(const char *machine, const char *expect) {
    char got[512] = "";
    struct sheaf__cpu_topology *t;
    setenv("HWLOC_SYNTHETIC", machine, 1);
    cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    for (int j = 0; j < sheaf__cpu_topology_n_places(t); j++) {
        const struct sheaf__cpu_place *p = sheaf__cpu_topology_place(t, j);
        size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%s%d:%d:%d:%d:%d%s", j ? " " : "", p->n_cores,
                 p->n_threads, p->numa, p->memory_share, p->limit_share, p->shared ? "s" : "");
        if (strncmp(machine, "numa:1", 6) == 0)
            cr_expect_null(strstr(p->description, "NUMA"), "%s", p->description);
        sheaf__cpu_place_bind_thread(p, 0); /* not this machine: nothing may happen */
    }
    cr_expect_str_eq(got, expect, "machine '%s': %s, not %s", machine, got, expect);
    sheaf__cpu_topology_free(t);
}

Test(cpu_topology, described_machines) {
    static const char *const all[] = {"0-99", "0-99", "0-99", "0-99", "0-99"};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        char value[16];
        snprintf(value, sizeof value, "%d", machines[i].devices);
        setenv("SHEAF_CPU_DEVICES", value, 1);
        snprintf(value, sizeof value, "%d", machines[i].threads);
        setenv("SHEAF_CPU_THREADS", value, 1);
        if (machines[i].threads == 0) unsetenv("SHEAF_CPU_THREADS");
        set_bindings(all, machines[i].size, machines[i].rank);
        expect_devices(machines[i].machine, machines[i].expect);
    }
}

Test(cpu_topology, bound_ranks) {
    static const struct {
        const char *machine;
        int rank;
        const char *expect, *bindings[4];
    } cases[] = {
        {"numa:1 core:8 pu:1", 1, "1:1:0:2:2", {"3", "4"}},
        {"numa:1 core:8 pu:1", 0, "2:2:0:2:2", {"0-3", "0-3"}},
        {"numa:1 core:8 pu:1", 1, "1:1:0:2:2s", {"5", "5"}},
        {"numa:1 core:8 pu:1", 1, "8:7:0:2:2s", {"0", "0-7"}},
        {"numa:1 core:8 pu:1", 0, "1:1:0:2:2s", {"0", "0-7"}},
        {"numa:1 core:8 pu:1", 0, "4:2:0:3:3s", {"0-3", "2-5", "2-3"}},
        {"numa:1 core:4 pu:2", 1, "2:2:0:2:2", {"0-7", "0-7"}},
        {"numa:1 core:4 pu:2", 1, "1:1:0:2:2", {"0", "1"}}, /* halves of a core */
        {"numa:2 core:4 pu:1", 2, "2:2:1:2:4", {"0-3", "0-3", "4-7", "4-7"}},
        {"numa:2 core:4 pu:1", 0, "4:3:0:2:4s 4:3:1:2:4s", {"0-7", "6"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = 0;
        while (n < 4 && cases[i].bindings[n]) n++;
        set_bindings(cases[i].bindings, n, cases[i].rank);
        expect_devices(cases[i].machine, cases[i].expect);
    }
}

/* The message of the last topology that gave one. */
static char warning[512];
static void keep_warning(enum sheaf_log_level level, const char *text, void *user) {
    (void)level, (void)user;
    snprintf(warning, sizeof warning, "%s", text);
}

Test(cpu_topology, names_cores_that_no_rank_may_use) {
    static const struct {
        const char *bindings[2];
        int rank;
        const char *says;
    } cases[] = {
        {{"0-3", "0-3"}, 0, "the 2 ranks of this host are bound to 4 of its 8 cores"},
        {{"0", "1"}, 0, "are bound to 2 of its 8 cores"},
        {{"0", "1"}, 1, ""},   /* said once */
        {{"0-3", "4"}, 0, ""}, /* more than half is used */
        {{"0", "0-7"}, 0, ""},
    };
    setenv("HWLOC_SYNTHETIC", "numa:1 core:8 pu:1", 1);
    sheaf_log_set(keep_warning, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sheaf__cpu_topology *t;
        warning[0] = 0;
        set_bindings(cases[i].bindings, 2, cases[i].rank);
        cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        cr_expect(*cases[i].says ? strstr(warning, cases[i].says) != NULL : !*warning,
                  "case %zu: '%s'", i, warning);
        sheaf__cpu_topology_free(t);
    }
}

/* The place's own memory first, then the faster ones; what is near all places is none's. */
Test(cpu_topology, memories_by_speed) {
    static const char *const expect[] = {"0 NUMA0, 2 HBM, 1 NUMA1, ", "3 NUMA3, 5 HBM, 4 NUMA4, "};
    struct sheaf__cpu_topology *t;
    setenv("HWLOC_XMLFILE", SHEAF_SOURCE_DIR "/tests/cpu/machines/three-memories.xml", 1);
    cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_eq(sheaf__cpu_topology_n_places(t), 2);
    for (int i = 0; i < 2; i++) {
        struct sheaf__cpu_place_memory_kind kinds[5];
        const struct sheaf__cpu_place *p = sheaf__cpu_topology_place(t, i);
        char got[128] = "";
        const int n = sheaf__cpu_place_memory_kinds(p, kinds, 5);
        for (int j = 0; j < n; j++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%d %s, ", kinds[j].numa,
                     kinds[j].name);
        cr_expect_str_eq(got, expect[i], "%s, not %s", got, expect[i]);
        kinds[2].numa = 77;
        cr_expect_eq(sheaf__cpu_place_memory_kinds(p, kinds, 2), 2);
        cr_expect_eq(kinds[2].numa, 77, "more than there is room for");
        cr_expect(!strncmp(p->description, "Neoverse V2, 2 cores", 20), "%s", p->description);
    }
    sheaf__cpu_topology_free(t);
}

Test(cpu_topology, more_threads_than_cores_is_an_error) {
    struct sheaf__cpu_topology *t;
    setenv("HWLOC_SYNTHETIC", "numa:1 core:4 pu:1", 1);
    setenv("SHEAF_CPU_THREADS", "5", 1);
    cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "SHEAF_CPU_THREADS"));
    cr_assert(strstr(sheaf_last_error(), "at most 4"), "%s", sheaf_last_error());
}

Test(cpu_topology, threads_of_a_control_group) {
    static const struct {
        int cores;
        size_t cpus;
        int sharers, threads;
    } cases[] = {{8, SIZE_MAX, 1, 8}, {8, 8, 1, 8}, {8, 7, 1, 7}, {8, 4, 2, 2},
                 {4, 7, 2, 3},        {8, 1, 2, 1}, {1, 64, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(sheaf__cpu_threads_of(cases[i].cores, cases[i].cpus, cases[i].sharers),
                     cases[i].threads, "case %zu", i);
}

/* Writes to a file of a control group; false if the system does not allow it. */
static bool put(const char *folder, const char *file, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    const bool written = fputs(text, f) >= 0;
    return fclose(f) == 0 && written;
}

/* In a group that leaves the time of one processor to this process. */
Test(cpu_topology, a_limit_of_processor_time) {
    static const char *const parents[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"};
    char folder[64], pid[16];
    bool in = false;
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    int parent = access("/sys/fs/cgroup/cpu", F_OK) != 0;
    snprintf(folder, sizeof folder, "%s/sheaf-test-%s", parents[parent], pid);
    if (mkdir(folder, 0755) == 0)
        in = (parent ? put(folder, "cpu.max", "100000 100000")
                     : put(folder, "cpu.cfs_quota_us", "100000")) &&
             put(folder, "cgroup.procs", pid);
    struct sheaf__cpu_topology *t = NULL;
    const enum sheaf_status status = in ? sheaf__cpu_topology_load(&t) : SHEAF_STATUS_SUCCESS;
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    struct sheaf__cpu_topology *two = NULL;
    if (in && !status) sheaf__cpu_topology_load(&two);
    put(parents[parent], "cgroup.procs", pid);
    rmdir(folder);
    if (!in) cr_skip("this process may make no control group with a limit of processor time");
    cr_assert_eq(status, SHEAF_STATUS_SUCCESS);
    cr_assert_not_null(two);
    if (sheaf__cpu_topology_n_places(t) == 1)
        cr_expect_not(sheaf__cpu_topology_place(t, 0)->shared);
    cr_expect_eq(sheaf__cpu_topology_place(t, 0)->n_threads, 1);
    cr_expect(sheaf__cpu_topology_place(two, 0)->shared,
              "two devices of one processor's time spin");
    sheaf__cpu_topology_free(t);
    sheaf__cpu_topology_free(two);
}

/* ---- bindings of this process ---- */

Test(cpu_topology, a_binding_is_taken_as_it_is) {
    cpu_set_t all;
    struct sheaf__cpu_topology *t;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) cr_skip("there is one core here, for two bindings it takes two");
    int last = CPU_SETSIZE - 1, first = 0;
    while (!CPU_ISSET((size_t)last, &all)) last--;
    while (!CPU_ISSET((size_t)first, &all)) first++;
    char mine[16], other[16], units[32];
    snprintf(mine, sizeof mine, "%d", last);
    snprintf(other, sizeof other, "%d", first);
    /* as mpirun -np 2 binds its ranks by default */
    set_bindings((const char *const[]){other, mine}, 2, 1);
    cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf__cpu_topology_n_places(t), 1);
    const struct sheaf__cpu_place *p = sheaf__cpu_topology_place(t, 0);
    cr_assert_eq(p->n_cores, 1);
    cr_assert_not(p->shared);
    snprintf(units, sizeof units, ", CPU %d", last);
    cr_expect(strstr(p->description, units), "'%s' is not in %s", units, p->description);
    sheaf__cpu_topology_free(t);

    set_bindings((const char *const[]){mine, mine}, 2, 1);
    cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_SUCCESS);
    p = sheaf__cpu_topology_place(t, 0);
    cr_expect(strstr(p->description, " 1 core (shared with other ranks)"), "%s", p->description);
    sheaf__cpu_topology_free(t);
}

/* ---- bindings of the ranks of a host ---- */

Test(cpu_topology, ranks_share_cpus_by_their_bindings) {
    static const struct {
        const char *bindings[6]; /* of the ranks; '@' before one of another host */
        int me, rank, size, twin, twins;
        bool mixed;
        double part, each; /* each: where every rank has two tasks */
    } cases[] = {
        {{"0-7"}, 0, 0, 1, 0, 1, false, 1, 4},
        {{"0", "1"}, 1, 1, 2, 0, 1, false, 1, 0.5},
        {{"0", "0"}, 1, 1, 2, 1, 2, false, 0.5, 0.25},
        {{"0-3", "0-3"}, 0, 0, 2, 0, 2, false, 0.5, 1},
        {{"0-3", "4-7", "0-3", "4-7"}, 3, 3, 4, 1, 2, false, 0.5, 1},
        {{"0", "0-3"}, 0, 0, 2, 0, 1, true, 0.5, 0.25},
        {{"0", "0-3"}, 1, 1, 2, 0, 1, true, 0.875, 1.75},
        {{"0-1", "1-2", "3"}, 1, 1, 3, 0, 1, true, 0.75, 0.75},
        {{"0-1", "1-2", "3"}, 2, 2, 3, 0, 1, false, 1, 0.5},
        {{"@0-3", "0-3", "@0-3", "0-3"}, 3, 1, 2, 1, 2, false, 0.5, 1},
        {{"0-5", "0-5", "0-5", "0-5", "0-5", "0-5"}, 5, 5, 6, 5, 6, false, 1.0 / 6, 0.5},
        {{"8190-8191,63-64", "63"}, 0, 0, 2, 0, 1, true, 0.875, 1.75},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sheaf__cpus bindings[6];
        int here[6], tasks[6], n = 0;
        for (; n < 6 && cases[i].bindings[n]; n++) {
            here[n] = cases[i].bindings[n][0] != '@';
            tasks[n] = 2 * here[n];
            bindings[n] = cpus_of(cases[i].bindings[n] + !here[n]);
        }
        const struct sheaf__locality l = sheaf__locality_of(bindings, here, n, cases[i].me);
        cr_expect(l.rank == cases[i].rank && l.size == cases[i].size && l.twin == cases[i].twin &&
                      l.twins == cases[i].twins && l.mixed == cases[i].mixed,
                  "case %zu: %d of %d, twin %d of %d, mixed %d", i, l.rank, l.size, l.twin, l.twins,
                  l.mixed);
        const double each = sheaf__cpus_each(bindings, tasks, n, cases[i].me);
        cr_expect_float_eq(l.part, cases[i].part, 1e-6, "case %zu: %g", i, l.part);
        cr_expect_float_eq(each, cases[i].each, 1e-6, "case %zu: %g", i, each);
        cr_expect_geq(each, cases[i].each, "case %zu", i);
    }
    struct sheaf__cpus here;
    without_affinity = true;
    sheaf__cpus_here(&here);
    without_affinity = false;
    cr_expect_eq((long)sheaf__cpus_each(&here, (const int[]){1}, 1, 0),
                 sysconf(_SC_NPROCESSORS_ONLN));

    struct sheaf__cpus used = cpus_of("0-2,5"), two[] = {cpus_of("0-2"), cpus_of("5")};
    const struct sheaf__locality l = sheaf__locality_of(two, (const int[]){1, 1}, 2, 1);
    cr_expect_arr_eq(&l.used, &used, sizeof used);
    cr_expect_arr_eq(&l.binding, &two[1], sizeof used);
    cr_expect_float_eq(sheaf__cpus_each(two, (const int[]){2, 0}, 2, 1), 1, 1e-6,
                       "a CPU without tasks");
}

Test(cpu_topology, threads_are_bound) {
    cpu_set_t set;
    struct sheaf__cpu_topology *t;
    const int before = bound_cores();
    cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_SUCCESS);
    const struct sheaf__cpu_place *p = sheaf__cpu_topology_place(t, 0);
    sheaf__cpu_place_bind_thread(p, p->n_cores - 1);
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    cr_assert_geq(CPU_COUNT(&set), 1);
    if (p->n_cores > 1) cr_assert_lt(CPU_COUNT(&set), before);
    sheaf__cpu_topology_free(t);
}

/* Fewer threads than cores are not held to some of these. */
Test(cpu_topology, few_threads_may_move) {
    struct sheaf__cpu_topology *t;
    const int before = bound_cores();
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_SUCCESS);
    if (sheaf__cpu_topology_n_places(t) > 1) cr_skip("a place is not all cores here");
    sheaf__cpu_place_bind_thread(sheaf__cpu_topology_place(t, 0), 0);
    cr_expect_eq(bound_cores(), before);
    sheaf__cpu_topology_free(t);
}

static bool note_cores(void *cores) {
    *(int *)cores = bound_cores();
    return false;
}
/* The thread of a queue is the first of its device's: one core, of more than one. */
Test(cpu_topology, queues_are_bound) {
    sheaf_backend_t backend;
    int cores = 0;
    struct sheaf__cpu_topology *t;
    const int before = bound_cores();
    cr_assert_eq(sheaf__cpu_topology_load(&t), SHEAF_STATUS_SUCCESS);
    const bool several = sheaf__cpu_topology_place(t, 0)->n_cores > 1;
    sheaf__cpu_topology_free(t);
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16});
    struct sheaf_tensor *x = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 4);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    cr_assert_eq(sheaf_build_forward_expand(graph, sheaf_scale(ctx, x, 2)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS);
    sheaf_backend_cpu_set_abort_callback(backend, note_cores, &cores);
    cr_assert_eq(sheaf_backend_graph_compute_async(backend, graph), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_synchronize(backend), SHEAF_STATUS_SUCCESS);
    cr_expect(cores > 0 && (!several || cores < before), "%d of %d cores", cores, before);
    sheaf_backend_free(backend);
    sheaf_free(ctx);
}

/* ---- buffers ---- */

static size_t resident(void) {
    unsigned long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%lu %lu", &size, &pages), 2);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

Test(cpu_topology, buffers_are_aligned_and_untouched) {
    static const size_t sizes[] = {0, 1, 63, 4096, (1 << 20) + 1, 512u << 20};
    sheaf_backend_buffer_type_t buft =
        sheaf_backend_dev_buffer_type(sheaf_backend_dev_by_name("CPU0"));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sheaf_backend_buffer_t buffer;
        size_t before = resident();
        cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, sizes[i], &buffer),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq((uintptr_t)sheaf_backend_buffer_get_base(buffer) % 64, 0);
        cr_assert_eq(sheaf_backend_buffer_get_size(buffer), sizes[i]);
        cr_assert_lt(resident(), before + (16u << 20), "%zu bytes are resident at once", sizes[i]);
        if (sizes[i] < (64u << 20)) {
            cr_assert_eq(sheaf_backend_buffer_clear(buffer, 7), SHEAF_STATUS_SUCCESS);
            if (sizes[i]) cr_assert_eq(((char *)sheaf_backend_buffer_get_base(buffer))[0], 7);
        }
        sheaf_backend_buffer_free(buffer);
    }
    sheaf_backend_buffer_t none;
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, SIZE_MAX / 2, &none),
                 SHEAF_STATUS_ALLOC_FAILED);
    cr_assert_null(none);
}
