/* Started by test-comm.c under mpirun: `helper-comm MODE MEMBERS [args]`, MEMBERS = members of each
 * rank ("1,1", "2,0,1"; the last number repeats). Prints "ok ..." lines, or the error once a job,
 * and exits with 1 after an error. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm/testing.h"

#include "comm-check.h"
#include "start_job.h"

/* In place of the C library's: a folder of this name is on a file system that does not answer. */
int mkdir(const char *path, mode_t mode) {
    while (strstr(path, "never-answers")) pause();
    return (int)syscall(SYS_mkdirat, -100 /* AT_FDCWD */, path, mode);
}

static struct sheaf_comm *comm, *second; /* the latter of two_groups alone */
static int n_members, member_rank[CHECK_MAX_MEMBERS];

/* Lines of a file of this process, or names that its links have, that say "memfd:sheaf": memory that
 * ranks share, which is mapped, and its files, which are open. */
static int shared_maps(void) {
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) n += strstr(line, "memfd:sheaf") != NULL;
    if (f) fclose(f);
    return n;
}
static int shared_files(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[64] = "";
        if (readlinkat(dirfd(dir), e->d_name, path, sizeof path - 1) > 0)
            n += strstr(path, "memfd:sheaf") != NULL;
    }
    if (dir) closedir(dir);
    return n;
}

static int quit(bool ok) {
    if (!ok && sheaf_world_reports_error()) fprintf(stderr, "error: %s\n", sheaf_last_error());
    sheaf_comm_free(second);
    sheaf_comm_free(comm);
    if (ok && (shared_files() || shared_maps() > 1 /* the board */)) {
        fprintf(stderr, "error: a group leaves memory: %d files, %d maps\n", shared_files(),
                shared_maps());
        ok = false;
    }
    sheaf_world_finalize();
    return ok ? 0 : 1;
}

static void parse_members(const char *text) {
    long count = 1;
    for (int r = 0; r < sheaf_world_size(); r++) {
        if (*text) {
            char *end;
            count = strtol(text, &end, 10);
            text = *end == ',' ? end + 1 : end;
        }
        for (long i = 0; i < count && n_members < CHECK_MAX_MEMBERS; i++)
            member_rank[n_members++] = r;
    }
}

/* The label of a rank's host under SHEAF_COMM_TRANSPORT. */
static int host_label(int rank) {
    const char *t = getenv("SHEAF_COMM_TRANSPORT");
    if (!t || !strcmp(t, "auto")) return sheaf_world_host_index(rank);
    if (!strcmp(t, "mpi")) return rank;
    t = strchr(t, ':') + 1;
    for (int r = 0; r < rank; r++) t = strchr(t, ',') + 1;
    return atoi(t);
}

static void *check_thread(void *arg) {
    if (!check_member(arg)) sheaf_world_abort("wrong values"); /* others need not wait */
    return NULL;
}

/* A member that another rank drives is no member to call for; the group lives on. */
static bool refuses_members_of_others(void) {
    float x = 0;
    for (int m = 0; m < n_members; m++) {
        if (member_rank[m] == sheaf_world_rank()) continue;
        if (sheaf_comm_all_reduce(comm, m, &x, 1, NULL) == SHEAF_STATUS_INVALID) continue;
        sheaf_set_error(SHEAF_STATUS_FAILED, "member %d is not refused", m);
        return false;
    }
    return true;
}

/* Members of each group in groups [n_groups], of the same ranks: all of them work at the same time. */
static bool check_groups(size_t largest, struct sheaf_comm *const *groups, int n_groups,
                         enum sheaf_type wire) {
    enum { MOST = 2 * CHECK_MAX_MEMBERS };
    struct check c[MOST] = {0};
    pthread_t threads[MOST];
    const int n_local = sheaf_comm_n_local(comm), n = n_groups * n_local;
    bool ok = refuses_members_of_others();
    if (!ok) sheaf_world_abort(sheaf_last_error());
    for (int i = 0; i < n; i++) {
        c[i].comm = groups[i / n_local];
        c[i].member = sheaf_comm_local_member(comm, i % n_local);
        c[i].n = n_members;
        c[i].largest = largest;
        c[i].starts = getenv("TEST_START") != NULL;
        c[i].wire = wire;
        for (int m = 0; m < n_members; m++) c[i].host[m] = host_label(member_rank[m]);
        if (pthread_create(&threads[i], NULL, check_thread, &c[i])) abort();
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        if (c[i].error[0])
            fprintf(stderr, "error: %s\n", c[i].error);
        else
            printf("ok %s member %d %s hash %016llx\n", sheaf_comm_describe(c[i].comm), c[i].member,
                   sheaf_type_name(wire), (unsigned long long)c[i].hash);
        ok = ok && !c[i].error[0];
    }
    fflush(stdout);
    if (!ok) sheaf_world_abort("wrong values");
    return ok;
}

static int values(size_t largest, struct sheaf_comm *const *groups, int n_groups) {
    return quit(check_groups(largest, groups, n_groups, SHEAF_TYPE_F32));
}

/* One group after the other, whose sums travel as each wire type. */
static int wire_types(size_t largest, struct sheaf_comm_params params) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_BF16, SHEAF_TYPE_Q8_0};
    for (size_t t = 0; t < 3; t += SANITIZED ? 2 : 1) {
        params.wire_type = types[t];
        sheaf_comm_free(comm);
        if (sheaf_comm_new(member_rank, n_members, &params, &comm) ||
            !check_groups(largest, &comm, 1, types[t]))
            return quit(false);
    }
    return quit(true);
}

static int two_groups(size_t largest) {
    if (sheaf_comm_new(member_rank, n_members, NULL, &second)) return quit(false);
    struct sheaf_comm *const groups[] = {comm, second};
    return values(largest, groups, 2);
}

/* Rank 0's member comes last in the list. */
static int backwards(void) {
    struct sheaf_comm *other;
    const int list[] = {1, 0};
    if (sheaf_comm_new(list, 2, NULL, &other) == SHEAF_STATUS_INVALID &&
        strstr(sheaf_last_error(), "list the members by rank") && !sheaf_world_failed())
        printf("ok rank %d\n", sheaf_world_rank());
    return quit(true);
}

static long resident_kib(void) {
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &size, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* `n` small all-reduces, each checked; says how much memory the process gained meanwhile. */
static int many(long n) {
    const int me = sheaf_comm_local_member(comm, 0);
    long before = 0;
    for (long i = 0; i < n; i++) {
        float x[16], want = 0;
        const struct sheaf_comm_what what = {(uint32_t)i, "many"};
        for (int k = 0; k < 16; k++) x[k] = (float)(me + 1) + (float)(i % 1000);
        for (int m = 0; m < n_members; m++) want += (float)(m + 1) + (float)(i % 1000);
        if (i == n / 10) before = resident_kib(); /* after the first use of everything */
        if (sheaf_comm_all_reduce(comm, me, x, 16, &what)) return quit(false);
        for (int k = 0; k < 16; k++) {
            if (x[k] == want) continue;
            fprintf(stderr, "error: all-reduce %ld gives %g, not %g\n", i, (double)x[k],
                    (double)want);
            sheaf_world_abort("wrong values");
            return quit(false);
        }
    }
    printf("ok rank %d gained %ld KiB\n", sheaf_world_rank(), resident_kib() - before);
    fflush(stdout);
    return quit(true);
}

/* So long has this member waited in collectives. */
static uint64_t waited_ns(int me) {
    struct sheaf_comm_stats s;
    uint64_t sum = 0;
    for (int k = 0; k < SHEAF_COMM_KIND_COUNT; k++) {
        sheaf_comm_get_stats(comm, me, (enum sheaf_comm_kind)k, &s);
        sum += s.wait_ns;
    }
    return sum;
}

/* Each rank in turn comes 250 ms late to a short sum, a long one, a gather and a barrier: all others
 * wait for it, it waits for none. */
static int waits(void) {
    enum { LATE_US = 250000, MUST_NS = 150000000, MAY_NS = 100000000, LONG = 400000, KINDS = 4 };
    static float x[LONG], all[CHECK_MAX_MEMBERS];
    size_t bytes[CHECK_MAX_MEMBERS];
    const int me = sheaf_comm_local_member(comm, 0), rank = sheaf_world_rank();
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int m = 0; m < n_members; m++) bytes[m] = sizeof *x;
    for (int i = 0; i < sheaf_world_size() * KINDS && !st; i++) {
        const int late = i / KINDS, kind = i % KINDS;
        if ((st = sheaf_world_barrier("before"))) break;
        const uint64_t before = waited_ns(me);
        if (rank == late) usleep(LATE_US);
        st = kind == 3   ? sheaf_comm_barrier(comm, me, NULL)
             : kind == 2 ? sheaf_comm_all_gather(comm, me, x, all, bytes, NULL)
                         : sheaf_comm_all_reduce(comm, me, x, kind ? LONG : 16, NULL);
        const uint64_t ns = waited_ns(me) - before;
        if (!st && (rank == late ? ns > MAY_NS : ns < MUST_NS))
            printf("WRONG: collective %d, rank %d late: rank %d waited %.0f ms\n", kind, late, rank,
                   1e-6 * (double)ns);
    }
    if (!st) printf("ok rank %d\n", rank);
    fflush(stdout);
    return quit(!st);
}

/* A long sum for which all ranks come at the same time: the wait for the others is a part of it. */
static int transfer(void) {
    enum { FLOATS = 400000 };
    static float x[FLOATS];
    struct sheaf_comm_stats s;
    const int me = sheaf_comm_local_member(comm, 0);
    enum sheaf_status st = sheaf_world_barrier("before");
    if (!st) st = sheaf_comm_all_reduce(comm, me, x, FLOATS, NULL);
    sheaf_comm_get_stats(comm, me, SHEAF_COMM_ALL_REDUCE, &s);
    if (!st)
        printf("ok rank %d waited %llu of %llu us\n", sheaf_world_rank(),
               (unsigned long long)(s.wait_ns / 1000), (unsigned long long)(s.time_ns / 1000));
    fflush(stdout);
    return quit(!st);
}

/* What this host has sent over eth0 so far; -1 if it has none. */
static long long sent_bytes(void) {
    char line[512];
    long long bytes = -1;
    FILE *f = fopen("/proc/net/dev", "r");
    while (f && bytes < 0 && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "eth0:");
        if (at && sscanf(at, "eth0: %*d %*d %*d %*d %*d %*d %*d %*d %lld", &bytes) != 1) break;
    }
    if (f) fclose(f);
    return bytes;
}

/* Prints, for each collective of n floats, the bytes that this host sends to the others, as parts
 * of the bytes of all floats. */
static int crossings(size_t n) {
    enum { CALLS = 10 };
    static const char *const kinds[] = {"all_reduce", "reduce_scatter", "all_gather"};
    const int me = sheaf_comm_local_member(comm, 0);
    size_t bytes[CHECK_MAX_MEMBERS], counts[CHECK_MAX_MEMBERS];
    float *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
    enum sheaf_status st = a && b ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
    for (int m = 0; m < n_members; m++) {
        counts[m] = n / (size_t)n_members;
        bytes[m] = counts[m] * sizeof *a;
    }
    for (int k = 0; k < 3 && !st; k++) {
        if ((st = sheaf_world_barrier("before"))) break;
        const long long before = sent_bytes();
        for (int i = 0; i < CALLS && !st; i++)
            st = k == 0   ? sheaf_comm_all_reduce(comm, me, a, n, NULL)
                 : k == 1 ? sheaf_comm_reduce_scatter(comm, me, a, b, counts, NULL)
                          : sheaf_comm_all_gather(comm, me, a, b, bytes, NULL);
        if (!st) st = sheaf_world_barrier("after");
        if (before >= 0)
            printf("host %d sends %.3f for %s\n", sheaf_world_host_index(sheaf_world_rank()),
                   (double)(sent_bytes() - before) / (CALLS * (double)n * sizeof *a), kinds[k]);
    }
    fflush(stdout);
    free(a);
    free(b);
    return quit(!st);
}

/* TEST_START: it is started, and the rank has other work for a while. */
static enum sheaf_status sum(int me, float *x, size_t n, const struct sheaf_comm_what *what,
                             const char *then) {
    if (!getenv("TEST_START")) return sheaf_comm_all_reduce(comm, me, x, n, what);
    const struct sheaf_comm_call call = {
        .size = sizeof call, .kind = SHEAF_COMM_ALL_REDUCE, .recv = x, .n = n, .what = *what};
    uint64_t ticket;
    const enum sheaf_status st = sheaf_comm_start(comm, me, &call, &ticket);
    if (st) return st;
    if (!strcmp(then, "kill")) raise(SIGKILL);
    if (!strcmp(then, "stop")) raise(SIGSTOP);
    usleep(20000);
    return sheaf_comm_wait(comm, me, ticket);
}

/* Rank 0 starts some all-reduces at once and waits for the last; the others come to each `ms` later
 * than to the one before it. */
static int queue(int ms) {
    enum { CALLS = 4, FLOATS = 1024 };
    static float x[CALLS][FLOATS];
    uint64_t ticket = 0;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const int me = sheaf_comm_local_member(comm, 0);
    for (uint32_t i = 0; i < CALLS && !st; i++) {
        const struct sheaf_comm_call call = {.size = sizeof call,
                                             .kind = SHEAF_COMM_ALL_REDUCE,
                                             .recv = x[i],
                                             .n = FLOATS,
                                             .what = {i, "queued"}};
        if (sheaf_world_rank()) usleep((useconds_t)ms * 1000);
        st = sheaf_comm_start(comm, me, &call, &ticket);
    }
    if (!st) st = sheaf_comm_wait(comm, me, ticket);
    if (!st) printf("ok rank %d\n", sheaf_world_rank());
    return quit(!st);
}

/* The process is stopped in 0.2 s, and goes on 3 s later. */
static void stop_for_a_while(void) {
    const pid_t self = getpid();
    if (fork()) return;
    usleep(200000);
    kill(self, SIGSTOP);
    sleep(3);
    kill(self, SIGCONT);
    _exit(0);
}

/* Works for so long while the process runs. */
static void compute(int ms) {
    sheaf_world_enter(SHEAF_PHASE_COMPUTE, "long");
    for (int i = 0; i < ms / 10; i++) usleep(10000);
    sheaf_world_enter(SHEAF_PHASE_IDLE, NULL);
}

/* Rank `culprit` misbehaves in the third all-reduce. */
static int fault(const char *kind, int culprit, size_t n) {
    float *x = calloc(2 * n + 1, sizeof *x), *all = calloc(2 * n * (size_t)n_members, sizeof *x);
    size_t bytes[CHECK_MAX_MEMBERS];
    const int me = sheaf_comm_n_local(comm) ? sheaf_comm_local_member(comm, 0) : 0;
    const bool mine = sheaf_world_rank() == culprit;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (uint32_t i = 0; i < 5 && !st; i++) {
        const struct sheaf_comm_what what = {i, "ffn_out"};
        if (i == 2 && !strcmp(kind, "gather")) { /* all gather, and disagree on the sizes */
            for (int m = 0; m < n_members; m++) bytes[m] = (mine ? 2 : 1) * n * sizeof *x;
            st = sheaf_comm_all_gather(comm, me, x, all, bytes, &what);
            break;
        }
        if (i == 2 && !strcmp(kind, "cast")) { /* all broadcast, and disagree on the size */
            st = sheaf_comm_broadcast(comm, me, x, (mine ? 2 : 1) * n * sizeof *x, 0, &what);
            break;
        }
        if (i == 2 && !strcmp(kind, "suspend")) stop_for_a_while(); /* on all ranks */
        if (mine && i == 2) {
            if (!strcmp(kind, "late")) usleep(1200000);
            if (!strcmp(kind, "later")) sleep(5);
            if (!strcmp(kind, "suspend")) compute(600); /* until behind the stop */
            if (!strcmp(kind, "slow")) compute(3500);   /* longer than the limit */
            if (!strcmp(kind,
                        "loads")) { /* longer than the limit of a wait for it and of its guard */
                sheaf_world_enter(SHEAF_PHASE_LOAD, "a large file");
                sleep(7);
            }
            if (!strcmp(kind, "die")) _exit(9);
            if (!strcmp(kind, "kill") || !strcmp(kind, "stop")) {
                if (getenv("TEST_START")) sum(me, x, n, &what, kind);
                raise(!strcmp(kind, "kill") ? SIGKILL : SIGSTOP);
            }
            if (!strcmp(kind, "never")) {
                for (int t = 0; t < 100 && !sheaf_world_failed(); t++) usleep(100000);
                st = sheaf_comm_all_reduce(comm, me, x, n, &what);
                break;
            }
            if (!strcmp(kind, "kind")) {
                st = sheaf_comm_barrier(comm, me, &what);
                break;
            }
            if (!strcmp(kind, "size")) {
                st = sheaf_comm_all_reduce(comm, me, x, n / 2, &what);
                break;
            }
            if (!strcmp(kind, "bigger")) {
                st = sheaf_comm_all_reduce(comm, me, x, 2 * n, &what);
                break;
            }
            if (!strcmp(kind, "node")) {
                st = sheaf_comm_all_reduce(comm, me, x, n, &(struct sheaf_comm_what){99, "other"});
                break;
            }
            if (!strcmp(kind, "abort")) {
                const char *given = getenv("SHEAF_TEST_REASON");
                const char *reason = given ? given : "the cat sat on the keyboard";
                sheaf_world_abort(reason);
                st = sheaf_set_error(SHEAF_STATUS_FAILED, "%s", reason);
                break;
            }
        }
        st = sum(me, x, n, &what, "");
    }
    if (st && sheaf_comm_all_reduce(comm, me, x, n, NULL) == SHEAF_STATUS_SUCCESS)
        fprintf(stderr, "BUG: a call after a failure succeeded\n");
    if (st && sheaf_world_barrier("after") == SHEAF_STATUS_SUCCESS)
        fprintf(stderr, "BUG: a barrier after a failure succeeded\n");
    if (!st) printf("ok rank %d\n", sheaf_world_rank());
    free(x);
    free(all);
    return quit(!st);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    if (start_job()) return quit(false);
    parse_members(argv[2]);
    struct sheaf_comm_params params = {.size = sizeof params};
    const char *slot = getenv("TEST_SLOT");
    if (slot) params.slot_bytes = (size_t)atol(slot);
    if (!strcmp(argv[1], "later")) params.timeout_ms = 20000;
    if (!strcmp(argv[1], "list") && sheaf_world_rank() == 1) n_members--;
    if (!strcmp(argv[1], "slot") && sheaf_world_rank() == 1) params.slot_bytes = 8192;
    if (!strcmp(argv[1], "wire") && sheaf_world_rank() == 1) params.wire_type = SHEAF_TYPE_BF16;
    if (sheaf_comm_new(member_rank, n_members, &params, &comm)) return quit(false);
    if (!strcmp(argv[1], "many")) return many(argc > 3 ? atol(argv[3]) : 100000);
    if (!strcmp(argv[1], "waits")) return waits();
    if (!strcmp(argv[1], "transfer")) return transfer();
    if (!strcmp(argv[1], "queue")) return queue(argc > 4 ? atoi(argv[4]) : 0);
    if (!strcmp(argv[1], "crossings")) return crossings(argc > 3 ? (size_t)atol(argv[3]) : 240000);
    if (!strcmp(argv[1], "wrap")) { /* numbers of steps and collectives pass their largest value */
        sheaf__comm_start_at(comm, UINT64_MAX - 39);
        if (sheaf_world_barrier("start near the wrap")) return quit(false);
    }
    const size_t largest = argc > 3 ? (size_t)atol(argv[3]) : 70001;
    if (!strcmp(argv[1], "values") || !strcmp(argv[1], "wrap")) return values(largest, &comm, 1);
    if (!strcmp(argv[1], "wires")) return wire_types(largest, params);
    if (!strcmp(argv[1], "groups")) return two_groups(largest);
    if (!strcmp(argv[1], "backwards")) return backwards();
    return fault(argv[1], argc > 3 ? atoi(argv[3]) : 1, argc > 4 ? (size_t)atol(argv[4]) : 2048);
}
