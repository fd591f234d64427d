/* The check before a job: each rank looks at its host; the facts are gathered and compared. */
#include "check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/launcher.h"
#include "base/sort.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>

#include "copies.h"
#include "model/file/weights.h"
#include "model/run/host_room.h"

enum { MAX_NETS = 32, NET_TEXT = 44, TURNS = 5, SMALL_CALLS = 40, LARGE_CALLS = 1 };
enum { ALL_PAIRS = 11 }; /* hosts: up to so many, every link is measured */
static const size_t LARGE_BYTES = (size_t)4 << 20;
static const uint64_t MIN_SHM = (uint64_t)64 << 20; /* Open MPI takes 4 MiB a rank */
static const double MAX_CLOCK_S = 1.0, OUTLIER = 3;
static const double mib = 1024.0 * 1024;

struct net {
    uint32_t address, mask;
    char name[16];
};

struct facts { /* of one rank; plain numbers, because they travel as they are */
    char kernel[64], build[64], mpi[64], model_error[200];
    uint64_t shm_free, model_bytes, model_print;
    uint64_t model_device, model_inode; /* of the (first) file */
    double clock; /* seconds since 1970, when all came out of a barrier */
    int32_t n_nets, more_nets;
    int32_t model_absent; /* it cannot be opened, and may be elsewhere */
    struct net nets[MAX_NETS];
};

static int n_problems;

__attribute__((format(printf, 2, 3))) static void problem(int rank, const char *fmt, ...) {
    va_list ap;
    n_problems++;
    printf("UNFIT  host %s (rank %d): ", sheaf_world_host_name(rank), rank);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

static void add_net(struct facts *f, const char *name, uint32_t address, uint32_t mask) {
    if (f->n_nets == MAX_NETS) {
        f->more_nets = 1;
        return;
    }
    struct net *n = &f->nets[f->n_nets++];
    *n = (struct net){.address = address, .mask = mask};
    snprintf(n->name, sizeof n->name, "%s", name);
}

static void find_nets(struct facts *f) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all)) return;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        struct sockaddr_in a, m;
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !i->ifa_netmask ||
            !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
            continue;
        memcpy(&a, i->ifa_addr, sizeof a);
        memcpy(&m, i->ifa_netmask, sizeof m);
        add_net(f, i->ifa_name, ntohl(a.sin_addr.s_addr), ntohl(m.sin_addr.s_addr));
    }
    freeifaddrs(all);
}

static void find_model(const char *path, struct facts *f) {
    struct sheaf__weights *model = NULL;
    const enum sheaf_status status = sheaf__weights_open(path, &model);
    if (status || copies_find(path, &f->model_device, &f->model_inode)) {
        f->model_absent = status == SHEAF_STATUS_IO;
        snprintf(f->model_error, sizeof f->model_error, "%s", sheaf_last_error());
        sheaf__weights_free(model);
        return;
    }
    f->model_bytes = model->total_bytes;
    const struct sheaf__fingerprint print = sheaf__weights_fingerprint(model);
    f->model_print = sheaf__mix(print.header, print.samples);
    sheaf__weights_free(model);
}

static void find_facts(const char *path, struct facts *f) {
    struct utsname u;
    struct statvfs shm;
    if (!uname(&u)) snprintf(f->kernel, sizeof f->kernel, "%.63s", u.release);
    snprintf(f->build, sizeof f->build, "%.63s", sheaf_build_info());
    snprintf(f->mpi, sizeof f->mpi, "%.63s", sheaf_world_mpi());
    if (!statvfs("/dev/shm", &shm)) f->shm_free = (uint64_t)shm.f_bavail * shm.f_frsize;
    find_nets(f);
    if (path) find_model(path, f);
}

/* Or may it, in one that is not listed? */
static bool shares_a_net(const struct facts *a, const struct facts *b) {
    if (a->more_nets || b->more_nets) return true;
    for (int i = 0; i < a->n_nets; i++)
        for (int k = 0; k < b->n_nets; k++)
            if (a->nets[i].mask == b->nets[k].mask &&
                (a->nets[i].address & a->nets[i].mask) == (b->nets[k].address & b->nets[k].mask))
                return true;
    return false;
}

static void net_text(const struct net *n, char text[NET_TEXT]) {
    const uint32_t a = n->address;
    int bits = 0;
    for (uint32_t m = n->mask; m; m <<= 1) bits++;
    snprintf(text, NET_TEXT, "%s %u.%u.%u.%u/%d", n->name, a >> 24, a >> 16 & 255, a >> 8 & 255,
             a & 255, bits);
}

/* First rank of each host. */
static int first_of(int host) {
    int r = 0;
    while (sheaf_world_host_index(r) != host) r++;
    return r;
}

/* The first rank that has the model; -1: none. */
static int find_sender(const struct facts *all, const char *path) {
    for (int r = 0; path && r < sheaf_world_size(); r++)
        if (!all[r].model_error[0]) return r;
    return -1;
}

/* A rank without the model is sent its part of it, which takes longer than reading it. */
static void compare_models(const struct facts *all, const char *path, int sender) {
    for (int r = 0; r < sheaf_world_size(); r++) {
        const struct facts *f = &all[r];
        if (f->model_absent && sender >= 0)
            printf("host %s (rank %d): %s; rank %d (%s) would send its slices\n",
                   sheaf_world_host_name(r), r, f->model_error, sender,
                   sheaf_world_host_name(sender));
        else if (f->model_error[0])
            problem(r, "%s", f->model_error);
        else if (sender >= 0 && f->model_print != all[sender].model_print)
            problem(r, "another model under %s than on host %s", path,
                    sheaf_world_host_name(sender));
    }
}

static void compare(const struct facts *all, const char *path, const sheaf_backend_dev_t *devices,
                    size_t n_devices) {
    const int sender = find_sender(all, path);
    const uint64_t model_bytes = sender < 0 ? 0 : all[sender].model_bytes;
    for (int host = 0; host < sheaf_world_n_hosts(); host++) {
        const int r = first_of(host);
        const struct facts *f = &all[r], *zero = &all[0];
        size_t avail, total;
        int ranks = 0;
        sheaf__host_room(devices, n_devices, host, &avail, &total);
        for (int q = 0; q < sheaf_world_size(); q++) ranks += sheaf_world_host_index(q) == host;
        printf("host %s: %d rank%s, Linux %s, %.0f of %.0f MiB free, /dev/shm %.0f MiB free",
               sheaf_world_host_name(r), ranks, ranks == 1 ? "" : "s", f->kernel,
               (double)avail / mib, (double)total / mib, (double)f->shm_free / mib);
        for (int i = 0; i < f->n_nets; i++) {
            char text[NET_TEXT];
            net_text(&f->nets[i], text);
            printf("%s%s", i ? ", " : "; ", text);
        }
        printf("; clock %+.3f s\n", f->clock - zero->clock);
        if (f->shm_free < MIN_SHM)
            problem(r, "/dev/shm has %.1f MiB free; mount it with more (containers: --shm-size)",
                    (double)f->shm_free / mib);
        if (host && !shares_a_net(f, zero))
            problem(r, "no interface in a network of host %s", sheaf_world_host_name(0));
        if (fabs(f->clock - zero->clock) > MAX_CLOCK_S)
            problem(r, "its clock differs by %.1f s from host %s: logs will not fit together",
                    f->clock - zero->clock, sheaf_world_host_name(0));
        const double wanted = 1.1 * (double)model_bytes * ranks / sheaf_world_size();
        if ((double)avail < wanted)
            problem(
                r, "%.0f MiB free are less than its even share of the model and a tenth (%.0f MiB)",
                floor((double)avail / mib), ceil(wanted / mib));
    }
    for (int r = 0; r < sheaf_world_size(); r++) {
        const struct facts *f = &all[r], *zero = &all[0];
        if (strcmp(f->build, zero->build))
            problem(r, "another build: %s; host %s has %s", f->build, sheaf_world_host_name(0),
                    zero->build);
        if (strcmp(f->mpi, zero->mpi))
            problem(r, "another MPI: %s; host %s has %s", f->mpi, sheaf_world_host_name(0),
                    zero->mpi);
    }
    if (path) compare_models(all, path, sender);
}

/* ---- copies of the model ---- */

struct copy { /* travels as it is */
    uint64_t hash;
    char error[200];
};

/* Is the rank the first of its host that has this file? */
static bool reads_copy(const struct facts *all, int rank) {
    if (all[rank].model_error[0]) return false;
    for (int q = 0; q < rank; q++)
        if (sheaf_world_host_index(q) == sheaf_world_host_index(rank) && !all[q].model_error[0] &&
            all[q].model_device == all[rank].model_device &&
            all[q].model_inode == all[rank].model_inode)
            return false;
    return true;
}

/* Every copy is read whole, at once on all hosts: the start of a run compares samples only. The
 * ranks wait for each other without a limit. */
static enum sheaf_status compare_copies(const char *path, const struct facts *all) {
    struct copy mine = {0}, first = {0};
    int n = 0, first_rank = -1;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int r = 0; r < sheaf_world_size(); r++) n += reads_copy(all, r);
    if (n < 2) return st;
    if (sheaf_world_rank() == 0) {
        printf("reading all of %s (%.2f GiB) on each host\n", path,
               (double)all[find_sender(all, path)].model_bytes / (1024 * mib));
        fflush(stdout);
    }
    if (reads_copy(all, sheaf_world_rank()) && copies_hash(path, &mine.hash))
        snprintf(mine.error, sizeof mine.error, "%s", sheaf_last_error());
    for (int r = 0; r < sheaf_world_size() && !st; r++) {
        if (!reads_copy(all, r)) continue;
        struct copy c = mine;
        st = sheaf_world_call(&c, sizeof c, r, "the bytes of a model");
        if (st || sheaf_world_rank()) continue;
        if (c.error[0]) {
            problem(r, "%.*s", (int)sizeof c.error - 1, c.error);
        } else if (first_rank < 0) {
            first = c;
            first_rank = r;
        } else if (c.hash != first.hash && all[r].model_print == all[first_rank].model_print) {
            problem(r, "bytes of %s are others than on host %s: copy it again", path,
                    sheaf_world_host_name(first_rank));
        }
    }
    return st;
}

/* A missing feature is no problem of a host: jobs run without it. */
static void print_mpi(void) {
    printf("MPI: %s\n", sheaf_world_mpi());
    const char *text;
    if (sheaf_world_size() == 1 && !sheaf__launcher_mpi_rank()) {
        puts("one process without mpirun: it looks at this host alone; start it as the job will "
             "be started");
        return;
    }
    for (size_t i = 0; (text = sheaf_world_mpi_lacks(i)); i++) printf("without  %s\n", text);
}

/* ---- links ---- */

struct link {
    int a, b; /* hosts */
    double us, gb_s;
};

/* Of one call: the median of TURNS turns, so that a stall of a busy host is not taken for the link. */
static double time_calls(struct sheaf_comm *comm, int member, float *data, size_t n, int calls,
                         enum sheaf_status *st) {
    const struct sheaf_comm_what what = {0, "check of the link"};
    double seconds[TURNS];
    for (int i = 0; i < 2 && !*st; i++) *st = sheaf_comm_all_reduce(comm, member, data, n, &what);
    for (int turn = 0; turn < TURNS; turn++) {
        const double start = sheaf__seconds();
        for (int i = 0; i < calls && !*st; i++)
            *st = sheaf_comm_all_reduce(comm, member, data, n, &what);
        seconds[turn] = (sheaf__seconds() - start) / calls;
    }
    return sheaf__median_of_reals(seconds, TURNS);
}

/* An all-reduce between the first ranks of two hosts: the exchange of one message. */
static enum sheaf_status measure(struct link *l, float *data) {
    const int members[2] = {first_of(l->a), first_of(l->b)};
    struct sheaf_comm *comm = NULL;
    double times[2] = {0}, *all = calloc((size_t)sheaf_world_size() * 2, sizeof *all);
    enum sheaf_status st = all ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
    st = sheaf_world_agree(st, "check of links");
    if (!st) st = sheaf_comm_new(members, 2, NULL, &comm);
    if (!st && sheaf_comm_n_local(comm)) {
        const int me = sheaf_comm_local_member(comm, 0);
        times[0] = time_calls(comm, me, data, 1, SMALL_CALLS, &st);
        times[1] = time_calls(comm, me, data, LARGE_BYTES / sizeof *data, LARGE_CALLS, &st);
    }
    if (!st) st = sheaf_world_all_gather(times, sizeof times, all, "times of links");
    if (!st) {
        const double *t = all + 2 * members[0];
        l->us = t[0] * 1e6;
        l->gb_s = (double)LARGE_BYTES / (t[1] > t[0] ? t[1] - t[0] : t[1]) * 1e-9;
    }
    sheaf_comm_free(comm);
    free(all);
    return st;
}

/* v [n]: room. */
static double median(const struct link *links, int n, bool latency, double *v) {
    for (int i = 0; i < n; i++) v[i] = latency ? links[i].us : links[i].gb_s;
    return sheaf__median_of_reals(v, (size_t)n);
}

static void judge(const struct link *links, int n, double *room) {
    const double us = median(links, n, true, room), gb_s = median(links, n, false, room);
    for (int i = 0; i < n; i++) {
        const struct link *l = &links[i];
        printf("link %s - %s: %.0f us, %.3f GB/s\n", sheaf_world_host_name(first_of(l->a)),
               sheaf_world_host_name(first_of(l->b)), l->us, l->gb_s);
        if (l->us <= OUTLIER * us && l->gb_s >= gb_s / OUTLIER) continue;
        /* blame the host whose links are all this bad, else the later host */
        int bad_a = 0, bad_b = 0;
        for (int k = 0; k < n; k++) {
            const bool bad = links[k].us > OUTLIER * us || links[k].gb_s < gb_s / OUTLIER;
            bad_a += bad && (links[k].a == l->a || links[k].b == l->a);
            bad_b += bad && (links[k].a == l->b || links[k].b == l->b);
        }
        problem(first_of(bad_a > bad_b ? l->a : l->b),
                "the link %s - %s takes %.0f us and %.3f GB/s, while the median is %.0f us and "
                "%.3f GB/s",
                sheaf_world_host_name(first_of(l->a)), sheaf_world_host_name(first_of(l->b)), l->us,
                l->gb_s, us, gb_s);
    }
}

/* All pairs; of many hosts, each with the next one and with the first. Returns how many; links:
 * NULL, or room for them. */
static int choose_links(int hosts, struct link *links) {
    int n = 0;
    for (int a = 0; a < hosts; a++) {
        const int last = hosts <= ALL_PAIRS || a == 0 ? hosts - 1 : a + 1;
        for (int b = a + 1; b < hosts && b <= last; b++, n++)
            if (links) links[n] = (struct link){.a = a, .b = b};
    }
    return n;
}

static enum sheaf_status check_links(void) {
    const int hosts = sheaf_world_n_hosts(), n = choose_links(hosts, NULL);
    struct link *links = calloc((size_t)n + 1, sizeof *links);
    double *room = calloc((size_t)n + 1, sizeof *room);
    float *data = calloc(1, LARGE_BYTES);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!links || !room || !data)
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to check links");
    st = sheaf_world_agree(st, "check of links");
    if (!st) choose_links(hosts, links);
    for (int i = 0; i < n && !st; i++) st = measure(&links[i], data);
    if (!st && n && sheaf_world_rank() == 0) judge(links, n, room);
    free(links);
    free(room);
    free(data);
    return st;
}

enum sheaf_status check_job(const char *path) {
    struct facts *mine = calloc(1, sizeof *mine);
    struct facts *all = calloc((size_t)sheaf_world_size(), sizeof *all);
    const sheaf_backend_dev_t *devices = NULL;
    size_t n_devices = 0;
    struct timespec t;
    enum sheaf_status st = mine && all ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
    st = sheaf_world_agree(st, "check");
    if (!st) st = sheaf_world_devices(&devices, &n_devices);
    if (!st) {
        find_facts(path, mine);
        st = sheaf_world_barrier("check of clocks");
        clock_gettime(CLOCK_REALTIME, &t);
        mine->clock = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    if (!st && sheaf_world_size() == 1) *all = *mine;
    if (!st && sheaf_world_size() > 1)
        st = sheaf_world_all_gather(mine, sizeof *mine, all, "check");
    if (!st && sheaf_world_rank() == 0) {
        print_mpi();
        compare(all, path, devices, n_devices);
    }
    if (!st && path) st = compare_copies(path, all);
    if (!st) st = check_links();
    if (!st) st = sheaf_world_broadcast(&n_problems, sizeof n_problems, 0, "result of the check");
    if (!st && n_problems)
        st = sheaf_set_error(SHEAF_STATUS_FAILED, "%d problem%s (above)", n_problems,
                             n_problems == 1 ? "" : "s");
    if (!st && sheaf_world_rank() == 0)
        printf("fit: %d rank%s on %d host%s\n", sheaf_world_size(),
               sheaf_world_size() == 1 ? "" : "s", sheaf_world_n_hosts(),
               sheaf_world_n_hosts() == 1 ? "" : "s");
    fflush(stdout);
    free(mine);
    free(all);
    return st;
}
