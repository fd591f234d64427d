/* Cores and domains by hwloc. See topology.h.
 *
 * Sharing between ranks. A launcher, or taskset, may bind each rank to its own cores, bind several
 * ranks to the same cores, or bind no rank; the ranks of a host know each other's bindings (D185). A
 * binding of c cores
 *   meets no other           is taken as it is (mpirun's default)
 *   is that of n ranks       is divided: the r-th of them takes cores [c r / n, c (r+1) / n); with
 *                            more ranks than cores it shares one
 *   meets different ones     is kept, with threads for its part if all ranks share each CPU evenly,
 *                            each free to move inside the binding
 * Cores shared with another rank or device are marked: waits on them must not spin.
 *
 * A control group may leave less time than the cores have (docker --cpus, limits of Kubernetes). All threads stop for
 * the rest of a period once they have taken what it leaves, also by spinning, so by default a device has no more of
 * them than it leaves processors to the device.
 *
 * Memory is read from /proc and /sys, not from hwloc, whose total is wrong on some virtual machines
 * (hwloc 2.9 reported a moving 5 to 14 GB of 24). */
#include "cpu/device/topology.h"
#include "base/settings.h"

#include <hwloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/locality.h"
#include "base/arm_cpu.h"
#include "cpu/device/cgroup.h"
#include "sheaf/cpu.h"
#include "sheaf/log.h"

struct sheaf__cpu_topology {
    hwloc_topology_t hwloc;
    bool real; /* describes this machine, not a file: threads and memory can be bound */
    int n_domains; /* of the host that have cores; memory beside these (HBM, CXL) has no cores of its own */
    int n_places;
    struct sheaf__cpu_place *places;
    hwloc_cpuset_t *cores; /* all that this rank uses; the places point into it */
    int *core_numa;
    int n_cores;
};

/* Settings and facts that decide the cut. */
struct situation {
    int host_cores, used_cores; /* used: by any rank of the host */
    struct sheaf__locality ranks;
    long devices;  /* per domain */
    long threads;  /* per device, 0: not set */
    bool launched; /* by mpirun, srun, ... */
    bool shared;   /* with other ranks */
    size_t cpus;   /* as much time as these have is what the control groups leave to all ranks */
};

static struct sheaf__cgroup_limits limits_of_groups(void) {
    struct sheaf__cgroup_limits limits = {SIZE_MAX, SIZE_MAX, SIZE_MAX};
    sheaf__cgroup_limit("/proc/self/cgroup", "/sys/fs/cgroup", &limits);
    return limits;
}

/* The domain of a core: hwloc lists the nearer ones first. */
static int numa_of(hwloc_topology_t hwloc, hwloc_const_cpuset_t core) {
    int n = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE);
    for (int i = 0; i < n; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, (unsigned)i);
        if (hwloc_bitmap_isincluded(core, node->cpuset)) return (int)node->os_index;
    }
    return -1;
}

static void take_cpus(hwloc_cpuset_t set, const struct sheaf__cpus *cpus) {
    for (unsigned i = 0; i < sizeof cpus->word / sizeof *cpus->word; i++)
        hwloc_bitmap_set_ith_ulong(set, i, cpus->word[i]);
}

/* The core as its processing units inside the binding, if it has any there. False: no memory. */
static bool add_core(struct sheaf__cpu_topology *t, hwloc_obj_t core, hwloc_const_cpuset_t binding,
                     int numa) {
    if (!hwloc_bitmap_intersects(core->cpuset, binding)) return true;
    hwloc_cpuset_t units = hwloc_bitmap_dup(core->cpuset);
    if (!units) return false;
    hwloc_bitmap_and(units, units, binding);
    t->core_numa[t->n_cores] = numa;
    t->cores[t->n_cores++] = units;
    return true;
}

/* Cores of the binding, in hwloc's order, which keeps neighbours together. Machines that report no
 * cores count processing units. */
static enum sheaf_status list_cores(struct sheaf__cpu_topology *t, struct situation *s) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    hwloc_cpuset_t binding = hwloc_bitmap_alloc(), used = hwloc_bitmap_alloc();
    hwloc_obj_type_t type = HWLOC_OBJ_CORE;
    if (hwloc_get_nbobjs_by_type(t->hwloc, type) <= 0) type = HWLOC_OBJ_PU;
    s->host_cores = hwloc_get_nbobjs_by_type(t->hwloc, type);
    if (!binding || !used || s->host_cores <= 0) {
        status = sheaf_set_error(SHEAF_STATUS_FAILED, "cpu: hwloc finds no processor core");
        goto out;
    }
    take_cpus(used, &s->ranks.used);
    if (s->launched)
        take_cpus(binding, &s->ranks.binding);
    else if (!t->real || hwloc_get_cpubind(t->hwloc, binding, HWLOC_CPUBIND_PROCESS) != 0 ||
             hwloc_bitmap_iszero(binding))
        hwloc_bitmap_copy(binding, hwloc_topology_get_topology_cpuset(t->hwloc));
    t->cores = calloc((size_t)s->host_cores, sizeof *t->cores);
    t->core_numa = calloc((size_t)s->host_cores, sizeof *t->core_numa);
    if (!t->cores || !t->core_numa) {
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "cpu: no memory for %d cores",
                                 s->host_cores);
        goto out;
    }
    for (int i = 0, numa = -1, before; i < s->host_cores; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(t->hwloc, type, (unsigned)i);
        before = numa;
        numa = numa_of(t->hwloc, core->cpuset);
        t->n_domains += i == 0 || numa != before;
        s->used_cores += hwloc_bitmap_intersects(core->cpuset, used);
        if (!add_core(t, core, binding, numa)) {
            status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "cpu: no memory for a core");
            goto out;
        }
    }
    if (t->n_cores == 0) {
        status = sheaf_set_error(SHEAF_STATUS_FAILED,
                                 "cpu: the process is bound to processors that hwloc does not see");
    }
out:
    hwloc_bitmap_free(binding);
    hwloc_bitmap_free(used);
    return status;
}

static void keep_cores(struct sheaf__cpu_topology *t, int first, int last) {
    for (int i = 0; i < t->n_cores; i++) {
        if (i < first || i >= last) hwloc_bitmap_free(t->cores[i]);
    }
    memmove(t->cores, t->cores + first, (size_t)(last - first) * sizeof *t->cores);
    memmove(t->core_numa, t->core_numa + first, (size_t)(last - first) * sizeof *t->core_numa);
    t->n_cores = last - first;
}

static void share_with_ranks(struct sheaf__cpu_topology *t, struct situation *s) {
    const long n = s->ranks.twins, r = s->ranks.twin, cores = t->n_cores;
    s->shared = s->ranks.mixed || n > cores;
    if (s->ranks.mixed) return;
    const int first = (int)(cores * r / n), last = (int)(cores * (r + 1) / n);
    keep_cores(t, first, last > first ? last : first + 1);
    s->ranks.part = 1;
}

/* mpirun binds a rank to one core if there are two ranks or fewer, on hosts of any size. A setting of
 * threads says that this is meant. */
static void warn_of_idle_cores(const struct situation *s) {
    if (!s->launched || s->ranks.rank || s->threads) return;
    if (2 * s->used_cores > s->host_cores) return;
    const bool one = s->ranks.size == 1;
    sheaf_log(
        SHEAF_LOG_WARN,
        "cpu: the %d rank%s of this host %s bound to %d of its %d cores; with mpirun, --bind-to "
        "none or numa gives them all, unless taskset or the like binds them, too "
        "(SHEAF_CPU_THREADS says how many threads a rank takes, and that this is meant)",
        s->ranks.size, one ? "" : "s", one ? "is" : "are", s->used_cores, s->host_cores);
}

/* ", CPUs 0-3,8": the processing units of the place, by the operating system's numbers; "" without
 * memory for them. A long list ends in "...". */
static void list_units(const struct sheaf__cpu_place *p, char *text, size_t size) {
    char list[32];
    hwloc_bitmap_t all = hwloc_bitmap_alloc();
    text[0] = 0;
    for (int i = 0; all && i < p->n_cores; i++) hwloc_bitmap_or(all, all, p->cores[i]);
    const int n = all ? hwloc_bitmap_list_snprintf(list, sizeof list, all) : 0;
    if (n > 0)
        snprintf(text, size, ", CPU%s %s%s", hwloc_bitmap_weight(all) == 1 ? "" : "s", list,
                 n < (int)sizeof list ? "" : "...");
    hwloc_bitmap_free(all);
}

static void describe(struct sheaf__cpu_place *p, const struct sheaf__cpu_topology *t,
                     const struct situation *s) {
    const char *model = NULL, *isa = sheaf_cpu_isa_name();
    hwloc_obj_t package = hwloc_get_obj_by_type(t->hwloc, HWLOC_OBJ_PACKAGE, 0);
    if (package) model = hwloc_obj_get_info_by_name(package, "CPUModel");
    if (package && !model)
        model = sheaf__arm_cpu_name(hwloc_obj_get_info_by_name(package, "CPUImplementer"),
                                    hwloc_obj_get_info_by_name(package, "CPUPart"));
    char domain[32] = "", shared[48] = "", units[48];
    if (t->n_domains > 1 && p->numa >= 0) snprintf(domain, sizeof domain, " of NUMA %d", p->numa);
    if (p->shared) {
        snprintf(shared, sizeof shared, " (shared%s)", s->shared ? " with other ranks" : "");
    }
    list_units(p, units, sizeof units);
    snprintf(p->description, sizeof p->description, "%.64s, %d core%s%s%s, %.16s%s",
             model ? model : "CPU", p->n_cores, p->n_cores == 1 ? "" : "s", domain, shared, isa,
             units);
}

int sheaf__cpu_threads_of(int cores, size_t cpus, int sharers) {
    const size_t part = cpus / (size_t)sharers;
    return part >= (size_t)cores ? cores : part > 0 ? (int)part : 1;
}

/* Cores [first, last) are one domain of this process's n_domains: cuts them into s->devices places. */
static enum sheaf_status cut_domain(struct sheaf__cpu_topology *t, const struct situation *s,
                                    int first, int last, int sharers, int n_domains) {
    const int n = last - first;
    for (long j = 0; j < s->devices; j++) {
        struct sheaf__cpu_place *p = &t->places[t->n_places];
        int a = first + (int)(n * j / s->devices), b = first + (int)(n * (j + 1) / s->devices);
        if (b == a) b++;
        p->topology = t;
        p->cores = t->cores + a;
        p->n_cores = b - a;
        p->numa = t->core_numa[first];
        p->memory_share = (int)s->devices * sharers;
        p->limit_share = (int)s->devices * s->ranks.size * n_domains;
        p->shared = s->shared || s->devices > n || s->cpus < (size_t)p->limit_share;
        p->n_threads = sheaf__cpu_threads_of(p->n_cores, s->cpus, p->limit_share);
        const int part = (int)(p->n_cores * s->ranks.part);
        if (p->n_threads > part) p->n_threads = part > 0 ? part : 1;
        if (s->threads > p->n_cores && !p->shared) {
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "setting SHEAF_CPU_THREADS is '%ld', but CPU%d has "
                                   "%d core%s; use at most %d, or give this process more cores "
                                   "(mpirun --bind-to none, fewer ranks on this host)",
                                   s->threads, t->n_places, p->n_cores, p->n_cores == 1 ? "" : "s",
                                   p->n_cores);
        }
        if (s->threads > 0) p->n_threads = (int)s->threads;
        describe(p, t, s);
        t->n_places++;
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status cut(struct sheaf__cpu_topology *t, const struct situation *s) {
    int mine = 0;
    for (int i = 0; i < t->n_cores; i++) mine += i == 0 || t->core_numa[i] != t->core_numa[i - 1];
    /* Ranks that use the memory of one domain, supposing that they spread evenly. */
    int sharers = (s->ranks.size * mine + t->n_domains - 1) / t->n_domains;
    t->places = calloc((size_t)mine * (size_t)s->devices, sizeof *t->places);
    if (!t->places) {
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "cpu: no memory for %ld devices",
                               mine * s->devices);
    }
    for (int first = 0, last; first < t->n_cores; first = last) {
        for (last = first + 1; last < t->n_cores && t->core_numa[last] == t->core_numa[first];)
            last++;
        enum sheaf_status status = cut_domain(t, s, first, last, sharers > 0 ? sharers : 1, mine);
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cpu_topology_load(struct sheaf__cpu_topology **out) {
    struct situation s = {.devices = 1,
                          .launched = sheaf__get_locality(),
                          .ranks = {.size = 1, .twins = 1, .part = 1}};
    struct sheaf__cpu_topology *t = NULL;
    enum sheaf_status status;
    *out = NULL;
    if (s.launched) s.ranks = *sheaf__get_locality();
    status = sheaf__setting_int(SHEAF__SET_CPU_DEVICES, &s.devices);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    status = sheaf__setting_int(SHEAF__SET_CPU_THREADS, &s.threads);
    if (status != SHEAF_STATUS_SUCCESS) return status;
    t = calloc(1, sizeof *t);
    if (!t) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "cpu: no memory for the topology");
    if (hwloc_topology_init(&t->hwloc) != 0) {
        t->hwloc = NULL;
        status = sheaf_set_error(SHEAF_STATUS_FAILED, "cpu: hwloc cannot start");
        goto out;
    }
    if (hwloc_topology_load(t->hwloc) != 0) {
        status = sheaf_set_error(SHEAF_STATUS_FAILED, "cpu: hwloc cannot read the topology");
        goto out;
    }
    t->real = hwloc_topology_is_thissystem(t->hwloc) != 0;
    s.cpus = t->real ? limits_of_groups().cpus : SIZE_MAX;
    status = list_cores(t, &s);
    if (status != SHEAF_STATUS_SUCCESS) goto out;
    warn_of_idle_cores(&s);
    share_with_ranks(t, &s);
    status = cut(t, &s);
out:
    if (status != SHEAF_STATUS_SUCCESS) {
        sheaf__cpu_topology_free(t);
        return status;
    }
    *out = t;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__cpu_topology_free(struct sheaf__cpu_topology *t) {
    if (!t) return;
    for (int i = 0; i < t->n_cores; i++) hwloc_bitmap_free(t->cores[i]);
    free(t->cores);
    free(t->core_numa);
    free(t->places);
    if (t->hwloc) hwloc_topology_destroy(t->hwloc);
    free(t);
}

int sheaf__cpu_topology_n_places(const struct sheaf__cpu_topology *t) { return t->n_places; }

const struct sheaf__cpu_place *sheaf__cpu_topology_place(const struct sheaf__cpu_topology *t,
                                                         int i) {
    return &t->places[i];
}

/* Bytes of the line of a meminfo file that has `key` ("MemTotal:"); 0 if there is none. */
static size_t meminfo(const char *path, const char *key) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (kib == 0 && fgets(line, sizeof line, f)) {
        const char *p = strstr(line, key);
        if (p) sscanf(p + strlen(key), "%llu", &kib);
    }
    fclose(f);
    return (size_t)kib * 1024;
}

void sheaf__cpu_place_memory(const struct sheaf__cpu_place *p, size_t *avail, size_t *total) {
    *total = meminfo("/proc/meminfo", "MemTotal:");
    *avail = meminfo("/proc/meminfo", "MemAvailable:");
    if (p->topology->n_domains > 1 && p->numa >= 0) {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", p->numa);
        size_t node_total = meminfo(path, "MemTotal:");
        /* A domain's file has no estimate of what is available; file pages can be dropped. */
        size_t node_free =
            meminfo(path, "MemFree:") + meminfo(path, "FilePages:") - meminfo(path, "Shmem:");
        if (node_total > 0) {
            *total = node_total;
            *avail = node_free < *avail ? node_free : *avail;
        }
    }
    *total /= (size_t)p->memory_share;
    *avail /= (size_t)p->memory_share;
    /* A limit holds for all domains together. */
    const struct sheaf__cgroup_limits limits = limits_of_groups();
    const size_t most = limits.total / (size_t)p->limit_share;
    const size_t left = limits.avail / (size_t)p->limit_share;
    if (most < *total) *total = most;
    if (left < *avail) *avail = left;
}

void sheaf__cpu_place_bind_thread(const struct sheaf__cpu_place *p, int ith) {
    if (!p->topology->real) return;
    if (p->n_threads >= p->n_cores) {
        hwloc_set_cpubind(p->topology->hwloc, p->cores[ith % p->n_cores], HWLOC_CPUBIND_THREAD);
        return;
    }
    hwloc_cpuset_t all = hwloc_bitmap_alloc(); /* fewer threads than cores: free inside the place */
    if (!all) return;
    for (int i = 0; i < p->n_cores; i++) hwloc_bitmap_or(all, all, p->cores[i]);
    hwloc_set_cpubind(p->topology->hwloc, all, HWLOC_CPUBIND_THREAD);
    hwloc_bitmap_free(all);
}

static void name_kind(hwloc_obj_t node, struct sheaf__cpu_place_memory_kind *kind) {
    kind->numa = (int)node->os_index;
    if (node->subtype && *node->subtype) {
        snprintf(kind->name, sizeof kind->name, "%.15s", node->subtype);
    } else {
        snprintf(kind->name, sizeof kind->name, "NUMA%d", kind->numa);
    }
}

/* Bytes per second as the platform states them; 0: it does not. */
static hwloc_uint64_t bandwidth(hwloc_topology_t hwloc, hwloc_obj_t node, hwloc_cpuset_t cores) {
    struct hwloc_location from = {.type = HWLOC_LOCATION_TYPE_CPUSET, .location.cpuset = cores};
    hwloc_uint64_t value = 0;
    if (hwloc_memattr_get_value(hwloc, HWLOC_MEMATTR_ID_BANDWIDTH, node, &from, 0, &value))
        return 0;
    return value;
}

int sheaf__cpu_place_memory_kinds(const struct sheaf__cpu_place *p,
                                  struct sheaf__cpu_place_memory_kind *kinds, int cap) {
    enum { MOST = 16 };
    hwloc_topology_t hwloc = p->topology->hwloc;
    hwloc_obj_t nodes[MOST];
    unsigned n = MOST;
    struct hwloc_location near = {.type = HWLOC_LOCATION_TYPE_CPUSET,
                                  .location.cpuset = p->cores[0]};
    if (hwloc_get_local_numanode_objs(hwloc, &near, &n, nodes,
                                      HWLOC_LOCAL_NUMANODE_FLAG_LARGER_LOCALITY))
        n = 0;
    if (n > MOST) n = MOST;
    /* insertion: the place's own, which hwloc lists first (numa_of), then the faster, then hwloc's order */
    for (unsigned i = 2; i < n; i++) {
        for (unsigned j = i; j > 1; j--) {
            if (bandwidth(hwloc, nodes[j], p->cores[0]) <=
                bandwidth(hwloc, nodes[j - 1], p->cores[0]))
                break;
            hwloc_obj_t t = nodes[j];
            nodes[j] = nodes[j - 1];
            nodes[j - 1] = t;
        }
    }
    int found = 0;
    for (unsigned i = 0; i < n && found < cap; i++) {
        const bool whole_machine =
            hwloc_bitmap_isequal(nodes[i]->cpuset, hwloc_topology_get_topology_cpuset(hwloc));
        if (whole_machine && p->topology->n_domains > 1 && (int)nodes[i]->os_index != p->numa)
            continue; /* near no domain in particular */
        name_kind(nodes[i], &kinds[found++]);
    }
    if (!found) {
        kinds[0] = (struct sheaf__cpu_place_memory_kind){.numa = p->numa, .name = "DRAM"};
        found = 1;
    }
    return found;
}

void sheaf__cpu_place_bind_memory(const struct sheaf__cpu_place *p, int numa, void *data,
                                  size_t size) {
    hwloc_topology_t hwloc = p->topology->hwloc;
    if (!p->topology->real || numa < 0 || hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE) < 2)
        return;
    hwloc_nodeset_t nodes = hwloc_bitmap_alloc();
    if (!nodes) return;
    hwloc_bitmap_only(nodes, (unsigned)numa);
    hwloc_set_area_membind(hwloc, data, size, nodes, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET);
    hwloc_bitmap_free(nodes);
}
